/* transform.h: what happens to one sample between the dataset and its place in a batch: crop, flip, the caller's
 * function, normalisation. */
#ifndef TARN__TRANSFORM_H
#define TARN__TRANSFORM_H

#include "data/dataset.h"
#include "data/random.h"

typedef struct tarn__transform {
    tarn_dataset *dataset; /* held */
    int padding;
    bool flip;
    tarn_augment_fn augment;
    void *augment_ctx;
    bool normalizes;
    int channels; /* of the table; the first field's elements divide evenly among them */
    double scale;
    double *numbers;                   /* [channels, 2]: mean and deviation */
    float *table;                      /* [channels, 256] for u8; else NULL */
    tarn_dtype dtype[TARN_MAX_FIELDS]; /* in the batch */
    size_t bytes[TARN_MAX_FIELDS];     /* of one sample in the batch */
} tarn__transform;

/* Checks the options that concern samples, and keeps the dataset. tarn__transform_free() works after a failure too. */
bool tarn__transform_init(tarn__transform *plan, tarn_dataset *dataset, const tarn_loader_options *options);
void tarn__transform_free(tarn__transform *plan);

/* Bytes of scratch that one thread needs. */
size_t tarn__transform_scratch(const tarn__transform *plan);

/* Brings a sample to place[k] for each field k. False with an error. */
bool tarn__transform_run(const tarn__transform *plan, int64_t index, tarn_random_state random, void *const *place,
                         char *scratch);

#endif
