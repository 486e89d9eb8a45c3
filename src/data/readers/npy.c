/* npy.c: NumPy's .npy files as arrays and as datasets. */
#include <ctype.h>
#include <string.h>

#include "data/dataset.h"
#include "data/readers/input.h"

/* ---- the header -------------------------------------------------------------------------------------------------- */

typedef struct npy_header {
    tarn_dtype dtype;
    bool is_big_endian, is_fortran;
    tarn_shape shape;
} npy_header;

#define MAX_TEXT 65535 /* NumPy's own heads have about a hundred bytes */

/* A place in the dictionary. */
typedef struct cursor {
    const tarn__data_input *source;
    const char *text, *at;
    int64_t first; /* byte of the file where the text begins */
} cursor;

static bool bad(const cursor *c, const char *what)
{
    return tarn__data_input_bad(c->source, c->first + (c->at - c->text), "%s", what);
}

static void skip_spaces(cursor *c)
{
    while (*c->at == ' ' || *c->at == '\t' || *c->at == '\n')
        c->at++;
}

static bool take(cursor *c, char wanted)
{
    skip_spaces(c);
    if (*c->at != wanted)
        return false;
    c->at++;
    return true;
}

/* A text in quotes, of at most size - 1 bytes. */
static bool take_text(cursor *c, char *text, size_t size)
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

static bool take_dtype(cursor *c, npy_header *head)
{
    static const struct {
        const char *code;
        tarn_dtype dtype;
    } known[] = {{"f4", TARN_F32}, {"f8", TARN_F64}, {"f2", TARN_F16}, {"i4", TARN_I32},
                 {"i8", TARN_I64}, {"u1", TARN_U8},  {"b1", TARN_BOOL}};
    char text[64];
    const char *start = c->at;
    if (!take_text(c, text, sizeof(text)))
        return false;
    for (size_t i = 0; text[0] && strchr("<>|=", text[0]) && i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(text + 1, known[i].code) == 0) {
            head->dtype = known[i].dtype;
            head->is_big_endian = text[0] == '>';
            return true;
        }
    return tarn__data_input_bad(c->source, c->first + (start - c->text),
                                "elements of type '%s', which tarn does not have; save it with .astype() as float32, "
                                "float64, float16, int32, int64, uint8 or bool",
                                text);
}

static bool take_bool(cursor *c, bool *value)
{
    skip_spaces(c);
    *value = strncmp(c->at, "True", 4) == 0;
    if (!*value && strncmp(c->at, "False", 5) != 0)
        return bad(c, "True or False is expected");
    c->at += *value ? 4 : 5;
    return true;
}

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

/* (), (3,), (3, 4) or (3, 4,) */
static bool take_shape(cursor *c, tarn_shape *shape)
{
    *shape = (tarn_shape){0};
    if (!take(c, '('))
        return bad(c, "the shape is no tuple");
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
    return shape->rank != 1 || follows || bad(c, "a comma is missing: one size in parentheses is no tuple");
}

static bool parse(cursor *c, npy_header *head)
{
    enum { DESCR, ORDER, SHAPE };
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    int seen = 0;
    if (!take(c, '{'))
        return bad(c, "the head is no dictionary");
    while (!take(c, '}')) {
        char key[32];
        int k = 0;
        if (!take_text(c, key, sizeof(key)))
            return false;
        while (k < 3 && strcmp(key, keys[k]) != 0)
            k++;
        if (k == 3 || (seen >> k & 1) || !take(c, ':'))
            return bad(c, "a key that is unknown, stands there twice or has no value");
        seen |= 1 << k;
        if (!(k == DESCR   ? take_dtype(c, head)
              : k == ORDER ? take_bool(c, &head->is_fortran)
                           : take_shape(c, &head->shape)))
            return false;
        skip_spaces(c);
        if (!take(c, ',') && *c->at != '}')
            return bad(c, "a comma is missing");
    }
    skip_spaces(c);
    return (*c->at == 0 && seen == 7) ||
           bad(c, seen == 7 ? "something follows the dictionary" : "descr, fortran_order or shape is missing");
}

static bool check_size(const tarn__data_input *source, const npy_header *head)
{
    if (!tarn__data_input_fits(source, head->shape, tarn__dtype_bytes(head->dtype)))
        return tarn__data_input_bad(source, source->at,
                                    "the shape has more elements than the rest of the file can hold");
    return tarn__check_shape(source->function, head->shape, head->dtype);
}

static bool read_header(tarn__data_input *source, npy_header *head)
{
    unsigned char start[12];
    if (!tarn__data_input_read(source, start, 8, "the head of a .npy file"))
        return false;
    if (memcmp(start, "\x93NUMPY", 6) != 0)
        return tarn__data_input_bad(source, 0, "this is no .npy file: it does not begin with \\x93NUMPY");
    if (start[6] < 1 || start[6] > 3 || start[7] != 0)
        return tarn__data_input_bad(source, 6, "version %d.%d; 1.0, 2.0 and 3.0 are known", start[6], start[7]);
    int width = start[6] == 1 ? 2 : 4;
    if (!tarn__data_input_read(source, start + 8, (size_t)width, "the head of a .npy file"))
        return false;
    uint32_t length =
        start[8] | (uint32_t)start[9] << 8 | (width == 4 ? (uint32_t)start[10] << 16 | (uint32_t)start[11] << 24 : 0);
    if (length > MAX_TEXT || length > tarn__data_input_remaining(source))
        return tarn__data_input_bad(source, 8, "a head of %lu bytes; the file can hold %lld, and %d are enough",
                                    (unsigned long)length, (long long)tarn__data_input_remaining(source), MAX_TEXT);
    char *text = tarn__alloc((size_t)length + 1);
    cursor c = {source, text, text, source->at};
    bool good = text && tarn__data_input_read(source, text, length, "the head of a .npy file") &&
                (strlen(text) == length || tarn__data_input_bad(source, c.first, "a zero byte in the head")) &&
                parse(&c, head) && check_size(source, head);
    tarn__release(text, (size_t)length + 1);
    return good;
}

/* ---- the elements ------------------------------------------------------------------------------------------------ */

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

static bool read_elements(tarn__data_input *source, const npy_header *head, tarn_array *array)
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
    npy_header head = {0};
    bool good = tarn__data_input_open(&source, function, path) && read_header(&source, &head) &&
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
