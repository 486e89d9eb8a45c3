/* npy.c: NumPy's .npy files (versions 1.0 to 3.0) as arrays and datasets.
 *
 * A file is a magic string, a version, a length and a Python dictionary, {'descr': '<f4', 'fortran_order': False,
 * 'shape': (3, 4), }, then the elements. The parser accepts exactly the literals that NumPy writes. Elements become
 * native byte order and row-major. */
#include <ctype.h>
#include <string.h>

#include "data/dataset.h"
#include "data/readers/input.h"

/* ---- the header -------------------------------------------------------------------------------------------------- */

/* The dictionary of the header. */
typedef struct npy_header {
    tarn_dtype dtype;
    bool is_big_endian, is_fortran;
    tarn_shape shape;
} npy_header;

#define MAX_HEADER 65535 /* bytes; NumPy writes about a hundred */

/* A position in the dictionary. The string is terminated, so that no check needs its length. */
typedef struct cursor {
    const tarn__data_input *input;
    const char *text, *at;
    int64_t first; /* byte of the file at which the string begins, for errors */
} cursor;

static bool bad(const cursor *c, const char *what)
{
    return tarn__data_input_bad(c->input, c->first + (c->at - c->text), "%s", what);
}

static void skip_spaces(cursor *c)
{
    while (*c->at == ' ' || *c->at == '\t' || *c->at == '\n')
        c->at++;
}

/* Consumes a character after spaces, if it is the next one. */
static bool take(cursor *c, char wanted)
{
    skip_spaces(c);
    if (*c->at != wanted)
        return false;
    c->at++;
    return true;
}

/* Consumes a quoted string of at most size - 1 bytes. */
static bool take_string(cursor *c, char *text, size_t size)
{
    skip_spaces(c);
    char quote = *c->at;
    if (quote != '\'' && quote != '"')
        return bad(c, "a text in quotes is expected; arrays of records are not supported");
    const char *end = strchr(c->at + 1, quote);
    if (!end || (size_t)(end - c->at) > size)
        return bad(c, "a text that does not end, or is too long");
    size_t length = (size_t)(end - c->at) - 1;
    memcpy(text, c->at + 1, length);
    text[length] = 0;
    c->at = end + 1;
    return true;
}

/* Consumes NumPy's type code: byte order, kind and size in bytes. */
static bool take_dtype(cursor *c, npy_header *header)
{
    static const struct {
        const char *code;
        tarn_dtype dtype;
    } known[] = {{"f4", TARN_F32}, {"f8", TARN_F64}, {"f2", TARN_F16}, {"i4", TARN_I32},
                 {"i8", TARN_I64}, {"u1", TARN_U8},  {"b1", TARN_BOOL}};
    char text[64];
    const char *begin = c->at;
    if (!take_string(c, text, sizeof(text)))
        return false;
    for (size_t i = 0; text[0] && strchr("<>|=", text[0]) && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(text + 1, known[i].code) == 0) {
            header->dtype = known[i].dtype;
            header->is_big_endian = text[0] == '>';
            return true;
        }
    return tarn__data_input_bad(c->input, c->first + (begin - c->text),
                                "elements of type '%s' are not supported; save the array with .astype() as float32, "
                                "float64, float16, int32, int64, uint8 or bool",
                                text);
}

/* Consumes True or False. */
static bool take_bool(cursor *c, bool *value)
{
    skip_spaces(c);
    *value = strncmp(c->at, "True", 4) == 0;
    if (!*value && strncmp(c->at, "False", 5) != 0)
        return bad(c, "True or False is expected");
    c->at += *value ? 4 : 5;
    return true;
}

/* Consumes a size; overflow is an error. */
static bool take_size(cursor *c, int64_t *size)
{
    *size = 0;
    if (!isdigit((unsigned char)*c->at))
        return bad(c, "a size is expected");
    for (; isdigit((unsigned char)*c->at); c->at++) {
        if (*size > (INT64_MAX - 9) / 10)
            return bad(c, "a size that is too large");
        *size = *size * 10 + (*c->at - '0');
    }
    c->at += *c->at == 'L'; /* as Python 2 wrote it */
    return true;
}

/* Consumes a tuple: (), (3,), (3, 4) or (3, 4,). */
static bool take_shape(cursor *c, tarn_shape *shape)
{
    *shape = (tarn_shape){0};
    if (!take(c, '('))
        return bad(c, "the shape is not a tuple");
    bool follows = true;
    while (!take(c, ')')) {
        if (!follows)
            return bad(c, "a comma is missing");
        if (shape->rank == TARN_MAX_RANK)
            return bad(c, "more than 8 axes");
        skip_spaces(c);
        if (!take_size(c, &shape->size[shape->rank++]))
            return false;
        follows = take(c, ',');
    }
    return shape->rank != 1 || follows || bad(c, "a comma is missing: one size in parentheses is not a tuple");
}

/* Parses the dictionary: all three keys once, in any order. */
static bool parse(cursor *c, npy_header *header)
{
    enum { DESCR, ORDER, SHAPE };
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    int seen = 0;
    if (!take(c, '{'))
        return bad(c, "the header is not a dictionary");
    while (!take(c, '}')) {
        char key[32];
        int k = 0;
        if (!take_string(c, key, sizeof(key)))
            return false;
        while (k < 3 && strcmp(key, keys[k]) != 0)
            k++;
        if (k == 3 || (seen >> k & 1) || !take(c, ':'))
            return bad(c, "a key is unknown, given twice or without a value");
        seen |= 1 << k;
        if (!(k == DESCR   ? take_dtype(c, header)
              : k == ORDER ? take_bool(c, &header->is_fortran)
                           : take_shape(c, &header->shape)))
            return false;
        skip_spaces(c);
        if (!take(c, ',') && *c->at != '}')
            return bad(c, "a comma is missing");
    }
    skip_spaces(c);
    return (*c->at == 0 && seen == 7) ||
           bad(c, seen == 7 ? "text follows the dictionary" : "descr, fortran_order or shape is missing");
}

/* Checks the shape against the rest of the file before memory is allocated. */
static bool check_size(const tarn__data_input *input, const npy_header *header)
{
    if (!tarn__data_input_fits(input, header->shape, tarn__dtype_bytes(header->dtype)))
        return tarn__data_input_bad(input, input->at, "the shape has more elements than the file can hold");
    return tarn__check_shape(input->function, header->shape, header->dtype);
}

/* Reads the header; the input is then at the first element, and the elements can fit into the rest of the file. */
static bool read_header(tarn__data_input *input, npy_header *header)
{
    unsigned char prefix[12];
    if (!tarn__data_input_read(input, prefix, 8, "the header of a .npy file"))
        return false;
    if (memcmp(prefix, "\x93NUMPY", 6) != 0)
        return tarn__data_input_bad(input, 0, "not a .npy file: it does not begin with \\x93NUMPY");
    if (prefix[6] < 1 || prefix[6] > 3 || prefix[7] != 0)
        return tarn__data_input_bad(input, 6, "version %d.%d; 1.0, 2.0 and 3.0 are supported", prefix[6], prefix[7]);
    int width = prefix[6] == 1 ? 2 : 4;
    if (!tarn__data_input_read(input, prefix + 8, (size_t)width, "the header of a .npy file"))
        return false;
    uint32_t length = prefix[8] | (uint32_t)prefix[9] << 8 |
                      (width == 4 ? (uint32_t)prefix[10] << 16 | (uint32_t)prefix[11] << 24 : 0);
    if (length > MAX_HEADER || length > tarn__data_input_remaining(input))
        return tarn__data_input_bad(input, 8, "a header of %lu bytes; the file has %lld, and %d are allowed",
                                    (unsigned long)length, (long long)tarn__data_input_remaining(input), MAX_HEADER);
    char *text = tarn__alloc((size_t)length + 1);
    cursor c = {input, text, text, input->at};
    bool good = text && tarn__data_input_read(input, text, length, "the header of a .npy file") &&
                (strlen(text) == length || tarn__data_input_bad(input, c.first, "a zero byte in the header")) &&
                parse(&c, header) && check_size(input, header);
    tarn__release(text, (size_t)length + 1);
    return good;
}

/* ---- the elements ------------------------------------------------------------------------------------------------ */

/* Reverses the bytes of each element. */
static void swap_bytes(unsigned char *memory, size_t size, size_t bytes)
{
    for (size_t begin = 0; begin < bytes; begin += size)
        for (size_t i = 0; i < size / 2; i++) {
            unsigned char swapped = memory[begin + i];
            memory[begin + i] = memory[begin + size - 1 - i];
            memory[begin + size - 1 - i] = swapped;
        }
}

/* Converts Fortran order to row-major: walks the result in order and keeps `from`, the source's offset, as an
 * odometer. */
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
        for (int axis = shape->rank - 1; axis >= 0; axis--) { /* advance the index, last axis first */
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

/* Raises an error for a bool that is neither 0 nor 1: kernels rely on it. */
static bool check_bools(const tarn__data_input *input, const tarn_array *array, int64_t first)
{
    const unsigned char *value = array->data;
    int64_t count = (int64_t)tarn__array_bytes(array);
    for (int64_t i = 0; array->dtype == TARN_BOOL && i < count; i++)
        if (value[i] > 1)
            return tarn__data_input_bad(input, first + i, "a bool is %d, not 0 or 1", value[i]);
    return true;
}

/* Reads the elements and converts them to native order. The caller frees the array, on failure too. */
static bool read_elements(tarn__data_input *input, const npy_header *header, tarn_array *array)
{
    *array = (tarn_array){NULL, header->shape, header->dtype};
    size_t size = tarn__dtype_bytes(header->dtype), bytes = tarn__array_bytes(array);
    int64_t first = input->at;
    array->data = tarn__alloc(bytes);
    if (!array->data || !tarn__data_input_read(input, array->data, bytes, "the elements") ||
        !tarn__data_input_expect_end(input, "the elements") || !check_bools(input, array, first))
        return false;
    if (header->is_big_endian)
        swap_bytes(array->data, size, bytes);
    return !header->is_fortran || header->shape.rank < 2 || to_row_major(array);
}

/* Reads a file into an array that the caller owns. On failure the array is empty. */
static bool load(const char *function, const char *path, tarn_array *array)
{
    tarn__data_input input;
    npy_header header = {0};
    bool good = tarn__data_input_open(&input, function, path) && read_header(&input, &header) &&
                read_elements(&input, &header, array);
    tarn__data_input_close(&input);
    if (!good)
        tarn_array_free(array);
    return good;
}

/* The array belongs to the caller; tarn_array_free() frees it. */
bool tarn_npy_load(const char *path, tarn_array *array)
{
    if (tarn_failed())
        return false;
    if (!array)
        return tarn__raise(TARN_ERROR_ARGUMENT, "npy_load: array is NULL");
    *array = (tarn_array){0};
    return load("npy_load", path, array);
}

/* Each file is a field; all have the same number of rows. */
tarn_dataset *tarn_dataset_npy(const char *const *names, const char *const *paths, int count)
{
    tarn_array arrays[TARN_MAX_FIELDS] = {{0}};
    if (tarn_failed())
        return NULL;
    if (!names || !paths || count < 1 || count > TARN_MAX_FIELDS) {
        tarn__raise(TARN_ERROR_ARGUMENT, "dataset_npy: %s",
                    !names   ? "names is NULL"
                    : !paths ? "paths is NULL"
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
