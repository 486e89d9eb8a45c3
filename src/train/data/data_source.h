/* data_source.h: data by its name ("mnist:FOLDER"), and what a model must know of it. */
#ifndef TARN__TRAIN_DATA_H
#define TARN__TRAIN_DATA_H

#include <tarn/train.h>

#include "formats/json_file.h"

/* Opens the parts for training and for validation. Data without parts of its own (csv, npy, idx, single files) is cut
 * at random, the same way every time: a tenth is for validation. The caller frees both. False with an error, and both
 * NULL. */
bool tarn__data_open(const char *function, const char *name, tarn_dataset **training, tarn_dataset **validation);

/* Opens what an evaluation is to use: the part for testing where there is one, else everything. NULL with an error. */
tarn_dataset *tarn__data_open_for_evaluation(const char *function, const char *name);

/* What a model must know of its data, in training and ever after: it stands in config.json. Of text, only the first
 * four. */
typedef struct tarn__data_spec {
    bool is_text;
    int64_t training_tokens, validation_tokens;
    uint64_t hash; /* of the tokens, or of some of the samples: a run is resumed with the same */
    int64_t training_samples, validation_samples; /* 0: not noted */
    tarn_shape input;                             /* of one sample: a row of numbers, or an image [C, H, W] */
    int64_t classes;
    char **class_name;    /* [classes], owned */
    bool can_be_mirrored; /* a mirrored image is of the same class */
    bool is_real;         /* inputs are f32 or f64 */
    float scale;
    float *mean, *std; /* [channels], owned: inputs become (value · scale - mean) / deviation */
    int channels;
} tarn__data_spec;

/* Describes data from its name and the samples of both parts. False with an error; free it then too. */
bool tarn__data_spec_create(const char *function, const char *name, tarn_dataset *training, tarn_dataset *validation,
                            tarn__data_spec *description);
void tarn__data_spec_free(tarn__data_spec *description);

enum { TARN__MAX_CLASSES = 65536, TARN__MAX_CHANNELS = 1 << 20 };

/* Makes the arrays, for as many classes and channels as there are. False with an error. */
bool tarn__data_spec_alloc(tarn__data_spec *description);

/* To the object "data" of a document and back. */
bool tarn__data_spec_write(const tarn__data_spec *description, tarn__json_file *document);
bool tarn__data_spec_read(tarn__data_spec *description, const tarn__json_file *document);

/* Raises unless samples of a dataset are of the described shape, mean the same by their numbers and have labels. */
bool tarn__data_spec_fits(const char *function, const tarn__data_spec *description, const tarn_dataset *dataset);

/* Raises unless the data of that name is what was described: as many samples, and those that were looked at hold the
 * same. */
bool tarn__data_spec_matches(const char *function, const char *name, const tarn__data_spec *description,
                             tarn_dataset *training, tarn_dataset *validation);

/* Raises unless all labels of a dataset are classes that were described. */
bool tarn__data_spec_check_labels(const char *function, const tarn__data_spec *description, tarn_dataset *dataset);

/* The options of a loader that are the description's: how inputs are normalised. Arrays are borrowed from it. */
tarn_loader_options tarn__data_spec_loader_options(const tarn__data_spec *description, int64_t batch_size,
                                                   tarn_device device);

/* What a sample is called where speed is told, in the plural: "tokens" for text, "images", or "rows" of a table. Lives
 * as long as the program. */
const char *tarn__data_spec_unit(const tarn__data_spec *description);

/* A batch's inputs in the dtype of the model's parameters. Belongs to the open scope. */
tarn_tensor *tarn__batch_input(const tarn_module *model, tarn_tensor *input);

/* A batch's labels as i64. */
tarn_tensor *tarn__batch_label(tarn_tensor *label);

#endif
