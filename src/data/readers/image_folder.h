/* image_folder.h: image files with a class each, decoded when a sample is read.
 *
 * A table of files and class names: a folder per class, or labels.csv. Files are in the order of class and path, byte
 * by byte, whatever order the file system lists them in. Immutable once opened, but for the files that turned out to be
 * broken: those are marked by whichever thread found one. */
#ifndef TARN__DATA_IMAGE_FOLDER_H
#define TARN__DATA_IMAGE_FOLDER_H

#include <pthread.h>

#include "data/readers/image.h"

enum { TARN__MAX_IMAGE_CLASSES = 65536, TARN__MIN_IMAGE_SIZE = 8, TARN__MAX_IMAGE_SIZE = 4096 };

typedef struct tarn__image_file {
    char *path;  /* from the folder, owned */
    char *class; /* its class while the files are listed, owned; then NULL */
    int64_t label;
    int part;            /* of a split: a broken file is replaced within its part */
    _Atomic bool broken; /* cannot be decoded */
} tarn__image_file;

typedef struct tarn__image_folder {
    char *root;             /* owned */
    int64_t size, channels; /* of samples: u8 (channels, size, size) */
    tarn__image_file *file; /* [count], owned */
    size_t count, capacity; /* in files */
    char **class_name;      /* [classes], owned */
    size_t classes, class_capacity;
    pthread_mutex_t lock; /* guards what follows */
    char **skipped;       /* [skipped_count]: "PATH: why", owned */
    size_t skipped_count, skipped_capacity;
} tarn__image_folder;

/* Reads labels.csv: lines of file and label, after an optional header. Adds its files. False with an error. */
bool tarn__image_labels_read(tarn__image_folder *folder, const char *path);

/* Adds a file and its class, both copied. False with an error. */
bool tarn__image_folder_add(tarn__image_folder *folder, const char *path, const char *class);

/* Splits a dataset of image files by class: of each class, the fraction goes to `second`, rounded to nearest, but at
 * least one file stays on each side where a class has two. A function of the seed alone. The caller owns both. False
 * with an error, and both NULL. */
bool tarn__image_folder_split(const char *function, tarn_dataset *dataset, double fraction, uint64_t seed,
                              tarn_dataset **first, tarn_dataset **second);

/* A hash of the names, labels and sizes of a dataset's files, which stands for their contents. */
uint64_t tarn__image_folder_hash(const tarn_dataset *dataset);

#endif
