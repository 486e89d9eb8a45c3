/* transform.h: the transform of one sample between the dataset and its position in a batch: crop, flip, the caller's
 * augment function, normalization. Immutable once initialized: threads share it, each with scratch of its own. */
#ifndef TARN__TRANSFORM_H
#define TARN__TRANSFORM_H

#include "data/dataset.h"
#include "data/random.h"

typedef struct tarn__transform {
    tarn_dataset *dataset; /* retained */
    int padding;
    bool flip;
    double crop_scale; /* least area of a random crop of the image file; 0: none */
    float jitter;
    tarn_augment_fn augment;
    void *augment_ctx;
    bool normalizes;
    int channels; /* of mean_std and table; the first field's elements divide evenly among them */
    double scale;
    double *mean_std;                  /* [channels, 2] */
    float *table;                      /* [channels, 256]: normalized values of u8; else NULL */
    tarn_dtype dtype[TARN_MAX_FIELDS]; /* in the batch */
    size_t bytes[TARN_MAX_FIELDS];     /* of one sample in the batch */
} tarn__transform;

/* Checks the options of samples and retains the dataset. tarn__transform_free() works after a failure too. */
bool tarn__transform_init(tarn__transform *transform, tarn_dataset *dataset, const tarn_loader_options *options);
void tarn__transform_free(tarn__transform *transform);

/* Bytes of scratch per thread. */
size_t tarn__transform_scratch(const tarn__transform *transform);

/* Writes the transformed sample to out[k] for each field k. `random` is the sample's own state. False with an error. */
bool tarn__transform_run(const tarn__transform *transform, int64_t index, tarn_random_state random, void *const *out,
                         char *scratch);

/* Changes brightness, contrast and saturation of an image, u8 (channels, plane), in place, by factors drawn from
 * 1 - strength … 1 + strength (jitter.c). */
void tarn__jitter(uint8_t *image, int channels, int64_t plane, float strength, tarn_random_state *random);

#endif
