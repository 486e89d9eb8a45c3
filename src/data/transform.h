/* transform.h: what happens to one sample between the dataset and its place in a batch: crop, flip, the caller's
 * function, normalisation. */
#ifndef TARN__PLAN_H
#define TARN__PLAN_H

#include "data/dataset.h"
#include "data/random.h"

typedef struct tarn__plan {
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
} tarn__plan;

/* Checks the options that concern samples, and keeps the dataset. tarn__plan_release() works after a failure too. */
bool tarn__plan_make(tarn__plan *plan, tarn_dataset *dataset, const tarn_loader_options *options);
void tarn__plan_release(tarn__plan *plan);

/* Bytes of scratch that one thread needs. */
size_t tarn__plan_scratch(const tarn__plan *plan);

/* Brings a sample to place[k] for each field k. False with an error. */
bool tarn__plan_run(const tarn__plan *plan, int64_t index, tarn_random_state random, void *const *place, char *scratch);

#endif
