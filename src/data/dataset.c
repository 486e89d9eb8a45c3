/* dataset.c: creation, queries and reference counts of datasets.
 *
 * Arguments are checked when a dataset is created, so that readers and the loader need not look at a field twice: names
 * are unique, dtypes are unquantized, and a batch of any field has at most TARN_MAX_RANK axes. */
#include "data/dataset.h"

#include <string.h>

bool tarn__check_dataset(const char *function, const tarn_dataset *dataset)
{
    if (tarn_failed())
        return false;
    return dataset || tarn__raise(TARN_ERROR_ARGUMENT, "%s: dataset is NULL", function);
}

tarn_dataset *tarn__dataset_retain(tarn_dataset *dataset)
{
    atomic_fetch_add_explicit(&dataset->references, 1, memory_order_relaxed);
    return dataset;
}

void tarn_dataset_free(tarn_dataset *dataset)
{
    /* acq_rel: the thread that drops the last reference must see the writes of all others before it frees. */
    if (!dataset || atomic_fetch_sub_explicit(&dataset->references, 1, memory_order_acq_rel) != 1)
        return;
    if (dataset->release)
        dataset->release(dataset->ctx);
    for (int i = 0; i < dataset->field_count; i++) /* names are NULL after a failed creation */
        if (dataset->field[i].name)
            tarn__release((char *)dataset->field[i].name, strlen(dataset->field[i].name) + 1);
    tarn__release(dataset, sizeof(*dataset));
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* Checks field `index`; the fields before it are valid. */
static bool check_field(const char *function, const tarn_field *fields, int index)
{
    const tarn_field *field = &fields[index];
    if (!field->name || !field->name[0])
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: field %d has no name", function, index);
    if ((unsigned)field->dtype >= TARN_DTYPE_COUNT)
        return tarn__raise(TARN_ERROR_DTYPE, "%s: field '%s': %d is not a dtype", function, field->name,
                           (int)field->dtype);
    if (tarn__is_quantized(field->dtype))
        return tarn__raise(TARN_ERROR_DTYPE, "%s: field '%s' is %s; samples cannot be quantized", function, field->name,
                           tarn_dtype_name(field->dtype));
    if (field->shape.rank > TARN_MAX_FIELD_RANK)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "%s: field '%s' has %d axes; a field has at most %d, so that a batch has one more", function,
                           field->name, field->shape.rank, TARN_MAX_FIELD_RANK);
    for (int i = 0; i < index; i++)
        if (strcmp(fields[i].name, field->name) == 0)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: fields %d and %d are both called '%s'", function, i, index,
                               field->name);
    return tarn__check_shape(function, field->shape, field->dtype);
}

/* Checks all arguments of a new dataset. */
static bool check(const char *function, const tarn_field *fields, int field_count, int64_t count, tarn_get_fn get)
{
    if (tarn_failed())
        return false;
    if (!fields || !get)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s", function, fields ? "get is NULL" : "fields is NULL");
    if (field_count < 1 || field_count > TARN_MAX_FIELDS)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %d fields; there must be 1 to %d", function, field_count,
                           TARN_MAX_FIELDS);
    if (count < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %lld samples; there cannot be fewer than 0", function,
                           (long long)count);
    for (int i = 0; i < field_count; i++)
        if (!check_field(function, fields, i))
            return false;
    return true;
}

/* Copies a field and its name, and computes the bytes of one sample. The shape was checked: the product does not
 * overflow. */
static bool copy_field(tarn_dataset *dataset, int index, const tarn_field *field)
{
    size_t length = strlen(field->name) + 1;
    char *name = tarn__alloc(length);
    if (!name)
        return false;
    memcpy(name, field->name, length);
    dataset->field[index] = (tarn_field){name, field->dtype, field->shape};
    dataset->bytes[index] = tarn__dtype_bytes(field->dtype);
    for (int i = 0; i < field->shape.rank; i++)
        dataset->bytes[index] *= (size_t)field->shape.size[i];
    return true;
}

tarn_dataset *tarn__dataset_new(const char *function, const tarn_field *fields, int field_count, int64_t count,
                                tarn_get_fn get, void *ctx, void (*release)(void *ctx))
{
    tarn_dataset *dataset = check(function, fields, field_count, count, get) ? tarn__alloc(sizeof(*dataset)) : NULL;
    if (!dataset) {
        if (release)
            release(ctx);
        return NULL;
    }
    dataset->references = 1;
    dataset->field_count = field_count;
    dataset->count = count;
    dataset->get = get;
    dataset->ctx = ctx;
    dataset->release = release;
    for (int i = 0; i < field_count; i++)
        if (!copy_field(dataset, i, &fields[i])) {
            tarn_dataset_free(dataset);
            return NULL;
        }
    return dataset;
}

tarn_dataset *tarn_dataset_new(const tarn_field *fields, int field_count, int64_t count, tarn_get_fn get, void *ctx,
                               void (*release)(void *ctx))
{
    return tarn__dataset_new("dataset_new", fields, field_count, count, get, ctx, release);
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

int64_t tarn_dataset_count(const tarn_dataset *dataset)
{
    return tarn__check_dataset("dataset_count", dataset) ? dataset->count : -1;
}

int tarn_dataset_field_count(const tarn_dataset *dataset)
{
    return tarn__check_dataset("dataset_field_count", dataset) ? dataset->field_count : -1;
}

bool tarn_dataset_field(const tarn_dataset *dataset, int index, tarn_field *field)
{
    if (!tarn__check_dataset("dataset_field", dataset))
        return false;
    if (!field)
        return tarn__raise(TARN_ERROR_ARGUMENT, "dataset_field: `field` is NULL");
    if (index < 0 || index >= dataset->field_count)
        return tarn__raise(TARN_ERROR_ARGUMENT, "dataset_field: field %d is out of range; the dataset has %d fields",
                           index, dataset->field_count);
    *field = dataset->field[index];
    return true;
}

bool tarn__dataset_get(const tarn_dataset *dataset, int64_t index, void *const *memory)
{
    /* A callback may fail without raising an error, or raise one and return true; both count as failure. tarn__raise()
     * keeps an error that is already pending. */
    bool good = dataset->get(index, memory, dataset->ctx);
    if (!good || tarn_failed())
        return tarn__raise(TARN_ERROR_ARGUMENT, "the get function returned false without an error");
    return true;
}

bool tarn_dataset_read(const tarn_dataset *dataset, int64_t index, void *const *memory)
{
    if (!tarn__check_dataset("dataset_read", dataset))
        return false;
    if (index < 0 || index >= dataset->count)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "dataset_read: sample %lld is out of range; the dataset has %lld samples", (long long)index,
                           (long long)dataset->count);
    for (int i = 0; i < dataset->field_count; i++)
        if (!memory || !memory[i])
            return tarn__raise(TARN_ERROR_ARGUMENT, "dataset_read: the memory for field '%s' is NULL",
                               dataset->field[i].name);
    return tarn__dataset_get(dataset, index, memory) || tarn__raise_within("dataset_read");
}
