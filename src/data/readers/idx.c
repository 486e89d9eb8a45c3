/* idx.c: the idx format of MNIST.
 *
 * Two zero bytes, a type, a rank, the sizes as big-endian 32-bit integers, then the elements, big-endian. Integers of 8
 * and 16 bits with a sign become i32, since tarn has no such dtypes. */
#include <string.h>

#include "base/os/files.h"
#include "data/dataset.h"
#include "data/readers/input.h"

#define MAX_IDX_RANK (TARN_MAX_RANK - 1) /* images get an axis for their channel */

enum { CLASSES = 10 }; /* of MNIST and Fashion-MNIST */

/* An element type of the format and the dtype it becomes. */
typedef struct idx_type {
    unsigned char code;
    unsigned char bytes; /* in the file */
    tarn_dtype dtype;    /* in memory */
} idx_type;

static const idx_type types[] = {{0x08, 1, TARN_U8},  {0x09, 1, TARN_I32}, {0x0B, 2, TARN_I32},
                                 {0x0C, 4, TARN_I32}, {0x0D, 4, TARN_F32}, {0x0E, 8, TARN_F64}};

static const idx_type *type_of(unsigned char code)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (types[i].code == code)
            return &types[i];
    return NULL;
}

/* Reads type and sizes, and checks that the elements can fit into the rest of the file. NULL with an error. */
static const idx_type *read_header(tarn__data_input *input, tarn_shape *shape)
{
    unsigned char head[4], size[4];
    if (!tarn__data_input_read(input, head, 4, "the header of an idx file"))
        return NULL;
    const idx_type *type = type_of(head[2]);
    if (head[0] || head[1] || !type || head[3] < 1 || head[3] > MAX_IDX_RANK) {
        tarn__data_input_bad(input, 0, "%02x %02x %02x %02x does not begin an idx file of 1 to %d axes", head[0],
                             head[1], head[2], head[3], MAX_IDX_RANK);
        return NULL;
    }
    *shape = (tarn_shape){.rank = head[3]};
    for (int i = 0; i < shape->rank; i++) {
        if (!tarn__data_input_read(input, size, 4, "the sizes of an idx file"))
            return NULL;
        shape->size[i] = (int64_t)size[0] << 24 | (int64_t)size[1] << 16 | (int64_t)size[2] << 8 | size[3];
    }
    tarn__shape_buffer text;
    if (!tarn__data_input_fits(input, *shape, type->bytes))
        tarn__data_input_bad(input, 4, "the sizes %s are more than the file can hold",
                             tarn__shape_string(shape->size, shape->rank, &text));
    return tarn_failed() || !tarn__check_shape(input->function, *shape, type->dtype) ? NULL : type;
}

/* A big-endian integer of `count` bytes. */
static uint64_t big_endian(const unsigned char *bytes, int count)
{
    uint64_t value = 0;
    for (int i = 0; i < count; i++)
        value = value << 8 | bytes[i];
    return value;
}

/* Converts the elements to native order and size, in place. They were read into the end of the memory, and the result
 * is at least as large as the stored element, so writing element i never overwrites one that is still to be read. */
static void convert_in_place(const idx_type *type, char *memory, size_t count)
{
    size_t size = tarn__dtype_bytes(type->dtype), first = count * (size - type->bytes);
    for (size_t i = 0; type->dtype != TARN_U8 && i < count; i++) {
        uint64_t bits = big_endian((const unsigned char *)memory + first + i * type->bytes, type->bytes);
        int32_t signed_value = type->bytes == 1 ? (int8_t)bits : type->bytes == 2 ? (int16_t)bits : (int32_t)bits;
        uint32_t word = (uint32_t)bits;
        memcpy(memory + i * size,
               size == 8                 ? (const void *)&bits
               : type->dtype == TARN_F32 ? (const void *)&word
                                         : (const void *)&signed_value,
               size);
    }
}

/* Reads all elements into array->data, which the caller frees, on failure too. */
static bool read_elements(tarn__data_input *input, const idx_type *type, tarn_array *array)
{
    size_t size = tarn__dtype_bytes(type->dtype), bytes = tarn__array_bytes(array), count = bytes / size;
    char *memory = array->data = tarn__alloc(bytes);
    if (!memory ||
        !tarn__data_input_read(input, memory + count * (size - type->bytes), count * type->bytes, "the elements") ||
        !tarn__data_input_expect_end(input, "the elements"))
        return false;
    convert_in_place(type, memory, count);
    return true;
}

/* Reads a file into an array that the caller owns. On failure the array is empty. */
static bool read_file(const char *function, const char *path, tarn_array *array)
{
    tarn__data_input input;
    *array = (tarn_array){0};
    const idx_type *type = tarn__data_input_open(&input, function, path) ? read_header(&input, &array->shape) : NULL;
    array->dtype = type ? type->dtype : TARN_U8;
    bool good = type && read_elements(&input, type, array);
    tarn__data_input_close(&input);
    if (!good)
        tarn_array_free(array);
    return good;
}

/* Raises an error at the first label that is not a class of MNIST, by its byte: labels follow a header of 8 bytes. */
static bool check_classes(const char *function, const char *path, const tarn_array *labels)
{
    const uint8_t *label = labels->data;
    if (labels->dtype != TARN_U8 || labels->shape.rank != 1)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: %s holds %s on %d axes; the labels of MNIST are u8 on one", function,
                           path, tarn_dtype_name(labels->dtype), labels->shape.rank);
    for (int64_t i = 0; i < labels->shape.size[0]; i++)
        if (label[i] >= CLASSES)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: byte %lld: label %d; MNIST has %d classes", function, path,
                               (long long)(8 + i), label[i], CLASSES);
    return true;
}

/* Converts labels of any integer dtype to i64, in place of the array. */
static bool widen(const char *function, const char *path, tarn_array *labels)
{
    if (labels->shape.rank != 1 || tarn__is_float(labels->dtype))
        return tarn__raise(TARN_ERROR_FORMAT, "%s: %s holds %s on %d axes; labels are integers on one axis", function,
                           path, tarn_dtype_name(labels->dtype), labels->shape.rank);
    tarn_array wide = {tarn__alloc(sizeof(int64_t) * (size_t)labels->shape.size[0]), labels->shape, TARN_I64};
    if (!wide.data)
        return false;
    for (int64_t i = 0; i < wide.shape.size[0]; i++)
        ((int64_t *)wide.data)[i] =
            labels->dtype == TARN_U8 ? ((const uint8_t *)labels->data)[i] : ((const int32_t *)labels->data)[i];
    tarn_array_free(labels);
    *labels = wide;
    return true;
}

/* Images and labels must belong together. */
static bool check_counts(const char *function, const char *images, const tarn_array *image, const char *labels,
                         const tarn_array *label)
{
    return image->shape.size[0] == label->shape.size[0] ||
           tarn__raise(TARN_ERROR_FORMAT, "%s: %s has %lld images, but %s has %lld labels; do they belong together?",
                       function, images, (long long)image->shape.size[0], labels, (long long)label->shape.size[0]);
}

/* A dataset of images and, unless `labels` is NULL, labels. NULL with an error. */
static tarn_dataset *open_pair(const char *function, const char *images, const char *labels, bool is_mnist)
{
    tarn_array arrays[2] = {{0}};
    bool good =
        read_file(function, images, &arrays[0]) &&
        (!labels ||
         (read_file(function, labels, &arrays[1]) && (!is_mnist || check_classes(function, labels, &arrays[1])) &&
          widen(function, labels, &arrays[1]) && check_counts(function, images, &arrays[0], labels, &arrays[1])));
    if (!good) {
        tarn_array_free(&arrays[0]);
        tarn_array_free(&arrays[1]);
        return NULL;
    }
    tarn_shape *shape = &arrays[0].shape;
    if (shape->rank == 3) /* (N, H, W) → (N, 1, H, W): images have a channel axis */
        *shape = TARN_SHAPE(shape->size[0], 1, shape->size[1], shape->size[2]);
    return tarn__dataset_on_arrays(function, (const char *const[]){"image", "label"}, arrays, labels ? 2 : 1);
}

tarn_dataset *tarn_dataset_idx(const char *images, const char *labels)
{
    return open_pair("dataset_idx", images, labels, false);
}

/* ---- MNIST in a folder ------------------------------------------------------------------------------------------- */

/* Writes the first of folder/name and folder/name.gz that can be opened to `path`. False with an error. */
static bool find_file(const char *folder, const char *name, char *path, size_t size)
{
    static const char *const endings[] = {"", ".gz"};
    for (int i = 0; i < 2; i++) {
        int length = snprintf(path, size, "%s/%s%s", folder, name, endings[i]);
        FILE *file = length > 0 && (size_t)length < size ? tarn__file_open(path) : NULL;
        if (!file)
            continue;
        fclose(file);
        return true;
    }
    return tarn__raise(TARN_ERROR_IO, "dataset_mnist: neither %s nor %s.gz can be read in %s", name, name, folder);
}

tarn_dataset *tarn_dataset_mnist(const char *folder, bool training)
{
    char images[4096], labels[4096];
    if (tarn_failed())
        return NULL;
    if (!folder) {
        tarn__raise(TARN_ERROR_ARGUMENT, "dataset_mnist: folder is NULL");
        return NULL;
    }
    if (!find_file(folder, training ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte", images, sizeof(images)) ||
        !find_file(folder, training ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte", labels, sizeof(labels)))
        return NULL;
    return open_pair("dataset_mnist", images, labels, true);
}
