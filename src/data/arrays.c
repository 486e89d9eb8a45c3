/* arrays.c: datasets whose samples are the rows of arrays in memory.
 *
 * Used for the caller's arrays, which are copied, and for the results of file readers, which are taken over. Sample i
 * is row i of every array: reading one is a memcpy per field. */
#include <string.h>

#include "data/dataset.h"

typedef struct rows {
    int count;
    tarn_array array[TARN_MAX_FIELDS]; /* [N, ...] */
    size_t bytes[TARN_MAX_FIELDS];     /* per row */
} rows;

size_t tarn__array_bytes(const tarn_array *array)
{
    size_t bytes = tarn__dtype_bytes(array->dtype);
    for (int i = 0; i < array->shape.rank; i++)
        bytes *= (size_t)array->shape.size[i];
    return bytes;
}

static bool get(int64_t index, void *const *memory, void *ctx)
{
    const rows *r = ctx;
    for (int k = 0; k < r->count; k++)
        memcpy(memory[k], (const char *)r->array[k].data + (size_t)index * r->bytes[k], r->bytes[k]);
    return true;
}

static void release(void *ctx)
{
    rows *r = ctx;
    for (int k = 0; k < r->count; k++)
        tarn_array_free(&r->array[k]);
    tarn__release(r, sizeof(*r));
}

/* Fills in the fields of one sample: each array's shape without its first axis. Raises unless all arrays have the same
 * number of rows. */
static bool rows_of(const char *function, const char *const *names, const tarn_array *arrays, int count,
                    tarn_field *fields)
{
    for (int k = 0; k < count; k++) {
        const tarn_shape *shape = &arrays[k].shape;
        const char *name = names[k] ? names[k] : "";
        if (shape->rank < 1)
            return tarn__raise(TARN_ERROR_SHAPE,
                               "%s: array '%s' is a single value; its first axis must count the samples", function,
                               name);
        if (shape->size[0] != arrays[0].shape.size[0])
            return tarn__raise(TARN_ERROR_SHAPE, "%s: '%s' has %lld samples, but '%s' has %lld", function,
                               names[0] ? names[0] : "", (long long)arrays[0].shape.size[0], name,
                               (long long)shape->size[0]);
        fields[k] = (tarn_field){names[k], arrays[k].dtype, {shape->rank - 1, {0}}};
        memcpy(fields[k].shape.size, shape->size + 1, sizeof(int64_t) * (size_t)(shape->rank - 1));
    }
    return true;
}

tarn_dataset *tarn__dataset_on_arrays(const char *function, const char *const *names, tarn_array *arrays, int count)
{
    tarn_field fields[TARN_MAX_FIELDS];
    rows *r = rows_of(function, names, arrays, count, fields) ? tarn__alloc(sizeof(*r)) : NULL;
    if (!r) {
        for (int k = 0; k < count; k++)
            tarn_array_free(&arrays[k]);
        return NULL;
    }
    r->count = count;
    for (int k = 0; k < count; k++) {
        r->array[k] = arrays[k];
        int64_t samples = arrays[k].shape.size[0];
        r->bytes[k] = samples ? tarn__array_bytes(&arrays[k]) / (size_t)samples : 0;
        arrays[k] = (tarn_array){0};
    }
    return tarn__dataset_new(function, fields, count, r->array[0].shape.size[0], get, r, release);
}

/* Checks one of the caller's arrays and copies it. `copy` is unchanged on failure. */
static bool copy_array(tarn_array *copy, const tarn_array *array, const char *name)
{
    if (!array->data || !name)
        return tarn__raise(TARN_ERROR_ARGUMENT, "dataset_from_arrays: %s of array '%s' is NULL",
                           name ? "the data" : "the name", name ? name : "?");
    if ((unsigned)array->dtype >= TARN_DTYPE_COUNT)
        return tarn__raise(TARN_ERROR_DTYPE, "dataset_from_arrays: array '%s': %d is not a dtype", name,
                           (int)array->dtype);
    if (tarn__is_quantized(array->dtype))
        return tarn__raise(TARN_ERROR_DTYPE, "dataset_from_arrays: array '%s' is %s; samples cannot be quantized", name,
                           tarn_dtype_name(array->dtype));
    if (!tarn__check_shape("dataset_from_arrays", array->shape, array->dtype))
        return false;
    size_t bytes = tarn__array_bytes(array);
    copy->data = tarn__alloc(bytes);
    if (!copy->data)
        return false;
    copy->shape = array->shape;
    copy->dtype = array->dtype;
    memcpy(copy->data, array->data, bytes);
    return true;
}

tarn_dataset *tarn_dataset_from_arrays(const char *const *names, const tarn_array *arrays, int count)
{
    tarn_array copies[TARN_MAX_FIELDS] = {{0}};
    if (tarn_failed())
        return NULL;
    if (!names || !arrays || count < 1 || count > TARN_MAX_FIELDS) {
        tarn__raise(TARN_ERROR_ARGUMENT, "dataset_from_arrays: %s",
                    !names    ? "names is NULL"
                    : !arrays ? "arrays is NULL"
                              : "there must be 1 to 8 arrays");
        return NULL;
    }
    for (int k = 0; k < count; k++)
        if (!copy_array(&copies[k], &arrays[k], names[k])) {
            for (int j = 0; j < k; j++)
                tarn_array_free(&copies[j]);
            return NULL;
        }
    return tarn__dataset_on_arrays("dataset_from_arrays", names, copies, count);
}
