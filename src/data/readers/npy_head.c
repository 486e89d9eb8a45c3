/* npy_head.c: magic bytes, a version, a length, and a Python dictionary: {'descr': '<f4', 'fortran_order': False,
 * 'shape': (3, 4), }. */
#include "data/readers/npy_head.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

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

static bool take_dtype(cursor *c, tarn__npy_head *head)
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

static bool parse(cursor *c, tarn__npy_head *head)
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

static bool check_size(const tarn__data_input *source, const tarn__npy_head *head)
{
    if (!tarn__data_input_fits(source, head->shape, tarn__dtype_bytes(head->dtype)))
        return tarn__data_input_bad(source, source->at,
                                    "the shape has more elements than the rest of the file can hold");
    return tarn__check_shape(source->function, head->shape, head->dtype);
}

bool tarn__npy_head_read(tarn__data_input *source, tarn__npy_head *head)
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
