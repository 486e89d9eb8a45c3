/* npy.c: NumPy's .npy files as arrays and as datasets. */
#include <string.h>

#include "data/readers/npy_head.h"

static void swap_bytes(unsigned char *memory, size_t size, size_t bytes)
{
    for (size_t start = 0; start < bytes; start += size)
        for (size_t i = 0; i < size / 2; i++) {
            unsigned char held = memory[start + i];
            memory[start + i] = memory[start + size - 1 - i];
            memory[start + size - 1 - i] = held;
        }
}

/* From the first axis running fastest to the last one doing so. */
static bool to_row_major(tarn_array *array)
{
    const tarn_shape *shape = &array->shape;
    size_t size = tarn__dtype_bytes(array->dtype), bytes = tarn__array_bytes(array);
    char *to = tarn__alloc(bytes);
    if (!to)
        return false;
    int64_t stride[TARN_MAX_RANK], at[TARN_MAX_RANK] = {0}, from = 0;
    for (int i = 0; i < shape->rank; i++)
        stride[i] = i ? stride[i - 1] * shape->size[i - 1] : 1;
    for (size_t done = 0; done < bytes; done += size) {
        memcpy(to + done, (const char *)array->data + (size_t)from * size, size);
        for (int axis = shape->rank - 1; axis >= 0; axis--) { /* the next index, as an odometer turns */
            from += stride[axis];
            if (++at[axis] < shape->size[axis])
                break;
            from -= stride[axis] * shape->size[axis];
            at[axis] = 0;
        }
    }
    tarn__release(array->data, bytes);
    array->data = to;
    return true;
}

/* Kernels count on a bool being 0 or 1. */
static bool check_bools(const tarn__data_input *source, const tarn_array *array, int64_t first)
{
    const unsigned char *value = array->data;
    int64_t count = (int64_t)tarn__array_bytes(array);
    for (int64_t i = 0; array->dtype == TARN_BOOL && i < count; i++)
        if (value[i] > 1)
            return tarn__data_input_bad(source, first + i, "a bool is %d, not 0 or 1", value[i]);
    return true;
}

static bool read_elements(tarn__data_input *source, const tarn__npy_head *head, tarn_array *array)
{
    *array = (tarn_array){NULL, head->shape, head->dtype};
    size_t size = tarn__dtype_bytes(head->dtype), bytes = tarn__array_bytes(array);
    int64_t first = source->at;
    array->data = tarn__alloc(bytes);
    if (!array->data || !tarn__data_input_read(source, array->data, bytes, "the elements") ||
        !tarn__data_input_expect_end(source, "the elements") || !check_bools(source, array, first))
        return false;
    if (head->is_big_endian)
        swap_bytes(array->data, size, bytes);
    return !head->is_fortran || head->shape.rank < 2 || to_row_major(array);
}

/* On failure the array is empty. */
static bool load(const char *function, const char *path, tarn_array *array)
{
    tarn__data_input source;
    tarn__npy_head head = {0};
    bool good = tarn__data_input_open(&source, function, path) && tarn__npy_head_read(&source, &head) &&
                read_elements(&source, &head, array);
    tarn__data_input_close(&source);
    if (!good)
        tarn_array_free(array);
    return good;
}

bool tarn_npy_load(const char *path, tarn_array *array)
{
    if (tarn_failed())
        return false;
    if (!array)
        return tarn__raise(TARN_ERROR_ARGUMENT, "npy_load: the place for the array is NULL");
    *array = (tarn_array){0};
    return load("npy_load", path, array);
}

tarn_dataset *tarn_dataset_npy(const char *const *names, const char *const *paths, int count)
{
    tarn_array arrays[TARN_MAX_FIELDS] = {{0}};
    if (tarn_failed())
        return NULL;
    if (!names || !paths || count < 1 || count > TARN_MAX_FIELDS) {
        tarn__raise(TARN_ERROR_ARGUMENT, "dataset_npy: %s",
                    !names   ? "the names are NULL"
                    : !paths ? "the paths are NULL"
                             : "there must be 1 to 8 files");
        return NULL;
    }
    for (int k = 0; k < count; k++)
        if (!load("dataset_npy", paths[k], &arrays[k])) {
            for (int j = 0; j < k; j++)
                tarn_array_free(&arrays[j]);
            return NULL;
        }
    return tarn__dataset_on_arrays("dataset_npy", names, arrays, count);
}
