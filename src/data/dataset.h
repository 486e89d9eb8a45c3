/* dataset.h: a dataset as a table of fields and a function that writes one sample.
 *
 * Datasets are immutable and counted by reference: subsets and loaders retain the one they read. Threads may read
 * samples at the same time; the `get` function must allow that. */
#ifndef TARN__DATASET_H
#define TARN__DATASET_H

#include <stdatomic.h>
#include <tarn/data.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/memory.h"
#include "core/tensor/tensor.h"

struct tarn__image_folder;

/* As tarn_get_fn, of a random crop of the image: at least min_scale of its area. */
typedef bool (*tarn__get_crop_fn)(int64_t index, tarn_random_state *random, double min_scale, void *const *memory,
                                  void *ctx);

struct tarn_dataset {
    _Atomic int references;
    int field_count;
    tarn_field field[TARN_MAX_FIELDS]; /* names are owned */
    size_t bytes[TARN_MAX_FIELDS];     /* of one sample's field */
    int64_t count;
    tarn_get_fn get;            /* writes sample `index` into memory[k] for each field k */
    void *ctx;                  /* argument of both functions; owned through `release` */
    void (*release)(void *ctx); /* NULL: nothing to free */

    /* Of samples from image files (readers/image_folder.c), or a subset of them; NULL of others. */
    struct tarn__image_folder *images; /* owned by the ctx of a dataset that this one retains, or its own */
    tarn__get_crop_fn get_crop;
    int64_t (*source)(int64_t index, void *ctx); /* index of a sample's file; NULL: its own index */
};

/* tarn_dataset_new(); errors begin with `function`. Takes ctx, on failure too: `release` has then been called. Names
 * are copied. The caller owns the result. NULL with an error. */
tarn_dataset *tarn__dataset_new(const char *function, const tarn_field *fields, int field_count, int64_t count,
                                tarn_get_fn get, void *ctx, void (*release)(void *ctx));

/* False while an error is pending; raises an error when the dataset is NULL. */
bool tarn__check_dataset(const char *function, const tarn_dataset *dataset);

/* Adds a reference, which tarn_dataset_free() drops. Returns the dataset. */
tarn_dataset *tarn__dataset_retain(tarn_dataset *dataset);

/* Writes a sample into memory[k] for each field k. The index must be in range: it is not checked again. */
bool tarn__dataset_get(const tarn_dataset *dataset, int64_t index, void *const *memory);

/* A dataset over arrays: arrays[k], (N, ...), becomes a field of shape (...). Takes the arrays, on failure too. */
tarn_dataset *tarn__dataset_on_arrays(const char *function, const char *const *names, tarn_array *arrays, int count);

/* Bytes of an array's elements. The shape must be valid. */
size_t tarn__array_bytes(const tarn_array *array);

#endif
