/* dataset.h: what a dataset is inside: its fields, its samples, and who keeps it. */
#ifndef TARN__DATASET_H
#define TARN__DATASET_H

#include <stdatomic.h>
#include <tarn/data.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/memory.h"
#include "core/tensor/tensor.h"

struct tarn_dataset {
    _Atomic int references;
    int field_count;
    tarn_field field[TARN_MAX_FIELDS]; /* names owned */
    size_t bytes[TARN_MAX_FIELDS];     /* of one sample's field */
    int64_t count;
    tarn_get_fn get;
    void *ctx;
    void (*release)(void *ctx);
};

/* tarn_dataset_new() under the name that errors give it. */
tarn_dataset *tarn__dataset_new(const char *function, const tarn_field *fields, int field_count, int64_t count,
                                tarn_get_fn get, void *ctx, void (*release)(void *ctx));

/* False while an error is pending; raises one when the dataset is NULL. */
bool tarn__check_dataset(const char *function, const tarn_dataset *dataset);

/* One more reference. Returns the dataset. */
tarn_dataset *tarn__dataset_retain(tarn_dataset *dataset);

/* Writes a sample; the index is good. */
bool tarn__dataset_get(const tarn_dataset *dataset, int64_t index, void *const *memory);

/* A dataset on arrays, which it takes, on failure too: arrays[k] of shape [N, ...] becomes a field of shape [...]. */
tarn_dataset *tarn__dataset_on_arrays(const char *function, const char *const *names, tarn_array *arrays, int count);

/* Bytes of an array's elements; its shape is good. */
size_t tarn__array_bytes(const tarn_array *array);

#endif
