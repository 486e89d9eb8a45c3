/* data_source.h: classification data by its name ("mnist:FOLDER"), the data spec that a model depends on, and a run's
 * paths.
 *
 * A name is the same data in every run: splits and generated samples do not depend on the run's seed. A data spec owns
 * its arrays; loader options borrow them, so the spec must outlive the loader. */
#ifndef TARN__DATA_SOURCE_H
#define TARN__DATA_SOURCE_H

#include <tarn/train.h>

#include "formats/json_file.h"

/* Opens the training and the validation split. Data without a split of its own (csv, npy, idx, single files) is split
 * at random, the same way every time: a tenth is for validation. The caller frees both. False with an error, and both
 * NULL. */
bool tarn__data_open(const char *function, const char *name, tarn_dataset **training, tarn_dataset **validation);

/* Opens data for evaluation: its test split if there is one, else all of it. NULL with an error. */
tarn_dataset *tarn__data_open_for_evaluation(const char *function, const char *name);

/* The data spec: properties of the data that a model depends on, in training and afterwards; stored in config.json.
 * Text and chats have the first three members and the input alone. */
typedef struct tarn__data_spec {
    int64_t training_tokens, validation_tokens;
    uint64_t hash; /* of the tokens, or of some of the samples: a run is resumed with the same */
    int64_t training_samples, validation_samples; /* 0: not recorded */
    tarn_shape input;                             /* of one sample: [columns], or an image [C, H, W] */
    int64_t classes;                              /* at least 2; 0: tokens, without classes */
    char **class_name;                            /* [classes], owned */
    bool can_be_mirrored;                         /* a mirrored image is of the same class */
    bool is_real;                                 /* inputs are f32 or f64 */
    float scale;
    float *mean, *std; /* [channels], owned: inputs become (value · scale - mean) / std */
    int channels;
    /* of a table, owned: its datasets are normalized, mean and std are per feature; NULL: other data. The classes of a
     * regression are 1: its output. */
    tarn_table_encoder *table;
} tarn__data_spec;

/* Creates the spec from the name and the samples of both splits. False with an error; free it then too. */
bool tarn__data_spec_create(const char *function, const char *name, tarn_dataset *training, tarn_dataset *validation,
                            tarn__data_spec *spec);

/* The same for a table by its encoder, which the spec retains. */
bool tarn__data_spec_create_table(const char *function, tarn_table_encoder *encoder, tarn_dataset *training,
                                  tarn_dataset *validation, tarn__data_spec *spec);
void tarn__data_spec_free(tarn__data_spec *spec);

enum { TARN__MAX_CLASSES = 65536, TARN__MAX_CHANNELS = 1 << 20 };

/* Allocates the arrays for d->classes and d->channels. False with an error. */
bool tarn__data_spec_alloc(tarn__data_spec *spec);

/* Writes the object "data" of config.json, and reads it. False with an error. */
bool tarn__data_spec_write(const tarn__data_spec *spec, tarn__json_file *document);
bool tarn__data_spec_read(tarn__data_spec *spec, const tarn__json_file *document);

/* Raises an error unless the samples of a dataset have the spec's shape, scale and labels. */
bool tarn__data_spec_fits(const char *function, const tarn__data_spec *spec, const tarn_dataset *dataset);

/* Raises an error unless the data is that of the spec: the same number of samples, and the same hash of those that were
 * scanned. */
bool tarn__data_spec_matches(const char *function, const char *name, const tarn__data_spec *spec,
                             tarn_dataset *training, tarn_dataset *validation);

/* True for a table whose target is a number. */
bool tarn__data_spec_is_regression(const tarn__data_spec *spec);

/* True when the spec has a hash of the data; classifiers of early versions have none. */
bool tarn__data_spec_has_hash(const tarn__data_spec *spec);

/* Raises an error unless all labels of a dataset are classes of the spec. */
bool tarn__data_spec_check_labels(const char *function, const tarn__data_spec *spec, tarn_dataset *dataset);

/* Loader options of the spec: normalization of inputs. Arrays are borrowed from the spec. */
tarn_loader_options tarn__data_spec_loader_options(const tarn__data_spec *spec, int64_t batch_size, tarn_device device);

/* The same for samples that are not normalized, of tables too. */
tarn_loader_options tarn__data_spec_raw_loader_options(const tarn__data_spec *spec, int64_t batch_size,
                                                       tarn_device device);

/* A batch's inputs in the dtype of the model's parameters. Belongs to the open scope. */
tarn_tensor *tarn__batch_input(const tarn_module *model, tarn_tensor *input);

/* A batch's labels as i64. */
tarn_tensor *tarn__batch_label(tarn_tensor *label);

/* ---- image files (image_source.c) -------------------------------------------------------------------------------- */

/* "images:FOLDER": the splits, and the data spec, which needs no pass over the samples. Options give size, channels and
 * the validation fraction; image_size must be set. */
bool tarn__data_is_images(const char *data);
bool tarn__images_open(const char *function, const tarn_train_options *options, tarn_dataset **training,
                       tarn_dataset **validation);
bool tarn__images_spec_create(const char *function, const tarn_train_options *options, const tarn_dataset *training,
                              const tarn_dataset *validation, tarn__data_spec *spec);
bool tarn__images_spec_matches(const char *function, const char *name, const tarn__data_spec *spec,
                               const tarn_dataset *training, const tarn_dataset *validation);

/* Path of a sample's file, relative to the folder; NULL for other data. Borrowed from the dataset. */
const char *tarn__images_path(const tarn_dataset *dataset, int64_t index);

/* Number of files of both splits that could not be read so far; 0 for other data. */
int64_t tarn__images_skipped(const tarn_dataset *training, const tarn_dataset *validation);

/* Images of the spec's classes: the validation split of a folder that has one, else all. NULL with an error. */
tarn_dataset *tarn__images_open_for_evaluation(const char *function, const char *data,
                                               const tarn_train_options *options, const tarn__data_spec *spec);

/* ---- paths (data_paths.c) ---------------------------------------------------------------------------------------- */

/* Relative paths of a run, resolved from another working directory. Paths in config.json stay as typed; only the
 * options in memory are changed. */

/* Writes the working directory to config.json: relative paths start there. */
bool tarn__data_paths_write(tarn__json_file *document);

/* Replaces relative paths in the options that do not exist from here, but do from the directory in config.json. False
 * with an error. */
bool tarn__data_paths_read(const tarn__json_file *document, tarn_train_options *options);

/* After a failure to open a resumed run's data: an I/O error becomes one that names the option for a new path; others
 * are unchanged. Returns false. */
bool tarn__data_paths_hint(const char *function, const char *data);

#endif
