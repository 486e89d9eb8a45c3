/* gguf_read.c: opening a file. It is: "GGUF", a version, how many tensors and keys; the keys, each a name, a type and a
 * value; the tensors, each a name, sizes (the innermost first), an element type and an offset; filling up to the
 * alignment; the elements, from where offsets count.
 *
 * Everything is checked here. What is below may trust keys and entries: they lie in the file, and no two tensors share
 * a byte. Filling between tensors and behind the last is not looked at. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "core/tensor/tensor.h"
#include "formats/file_type.h"
#include "formats/gguf.h"

#define DEEPEST 4    /* lists in lists */
#define MOST_AXES 4  /* that the format has */
#define LEAST_KEY 13 /* bytes: a length, a type, a value of one byte */
#define LEAST_TENSOR 24
#define MOST (1 << 20)       /* keys or tensors: holes in a file cost nothing, records of what they might hold do */
#define MOST_TEXTS (1 << 24) /* of a list */
#define LONGEST_TEXT ((uint64_t)1 << 30) /* bytes of a key's text, which is copied */

/* A place in the file. */
typedef struct reader {
    const tarn_gguf *file;
    int64_t at;
} reader;

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

#define BAD(r, place, ...) bad((r)->file, place, __VA_ARGS__)

/* Raises an error at a byte of the file. Is false. */
static bool bad(const tarn_gguf *file, int64_t at, const char *format, ...) TARN_PRINTF(3, 4);
static bool bad(const tarn_gguf *file, int64_t at, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return tarn__raise(TARN_ERROR_FORMAT, "gguf_open: '%s': byte %lld: %s", file->path, (long long)at, text);
}

/* True when so many bytes are left. */
static bool need(const reader *r, uint64_t bytes, const char *what)
{
    uint64_t left = (uint64_t)(r->file->size - r->at);
    return bytes <= left ||
           BAD(r, r->at, "%s needs %" PRIu64 " bytes, but only %" PRIu64 " follow; is the file cut short?", what, bytes,
               left);
}

static bool read_u32(reader *r, const char *what, uint32_t *value)
{
    if (!need(r, 4, what))
        return false;
    memcpy(value, r->file->memory + r->at, 4);
    r->at += 4;
    return true;
}

static bool read_u64(reader *r, const char *what, uint64_t *value)
{
    if (!need(r, 8, what))
        return false;
    memcpy(value, r->file->memory + r->at, 8);
    r->at += 8;
    return true;
}

/* A length and so many bytes, which are passed. */
static bool read_text(reader *r, const char *what, const char **text, uint64_t *length)
{
    if (!read_u64(r, what, length) || !need(r, *length, what))
        return false;
    *text = r->file->memory + r->at;
    r->at += (int64_t)*length;
    return true;
}

static char *copy_text(const char *text, uint64_t length)
{
    char *copy = tarn__alloc((size_t)length + 1);
    if (copy)
        memcpy(copy, text, (size_t)length);
    return copy;
}

/* A key or a name, as a copy. */
static bool read_name(reader *r, const char *what, char **name)
{
    int64_t from = r->at;
    const char *text;
    uint64_t length;
    if (!read_text(r, what, &text, &length))
        return false;
    if (length == 0 || length > TARN__GGUF_MAX_NAME)
        return BAD(r, from, "%s has %" PRIu64 " bytes; from 1 to %d are possible", what, length, TARN__GGUF_MAX_NAME);
    if (memchr(text, 0, (size_t)length))
        return BAD(r, from, "%s has a zero byte inside", what);
    if (!(*name = copy_text(text, length)))
        return false;
    return tarn__utf8_valid(*name) || BAD(r, from, "%s is not valid UTF-8", what);
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

static bool read_type(reader *r, tarn_gguf_type *type)
{
    uint32_t number;
    if (!read_u32(r, "a type of metadata", &number))
        return false;
    if (number >= TARN_GGUF_TYPE_COUNT)
        return BAD(r, r->at - 4, "%u is no type of metadata", number);
    *type = (tarn_gguf_type)number;
    return true;
}

static bool check_bools(const reader *r, int64_t count)
{
    const char *value = r->file->memory + r->at;
    for (int64_t i = 0; i < count; i++)
        if (value[i] != 0 && value[i] != 1)
            return BAD(r, r->at + i, "%d is no bool", (unsigned char)value[i]);
    return true;
}

/* Passes `count` values of a type whose size is fixed. */
static bool pass_numbers(reader *r, tarn_gguf_type type, uint64_t count)
{
    uint64_t size = (uint64_t)tarn__gguf_type_bytes(type), left = (uint64_t)(r->file->size - r->at);
    if (count > left / size)
        return BAD(r, r->at, "%" PRIu64 " values of %s do not fit in the %" PRIu64 " bytes that follow", count,
                   tarn_gguf_type_name(type), left);
    if (type == TARN_GGUF_BOOL && !check_bools(r, (int64_t)count))
        return false;
    r->at += (int64_t)(count * size);
    return true;
}

static bool read_list_head(reader *r, tarn_gguf_type *element, uint64_t *count)
{
    int64_t from = r->at;
    if (!read_type(r, element) || !read_u64(r, "the length of a list", count))
        return false;
    int least = *element == TARN_GGUF_STRING ? 8 : *element == TARN_GGUF_ARRAY ? 12 : 1;
    uint64_t left = (uint64_t)(r->file->size - r->at);
    return *count <= left / (uint64_t)least ||
           BAD(r, from, "a list of %" PRIu64 " values of %s does not fit in the %" PRIu64 " bytes that follow", *count,
               tarn_gguf_type_name(*element), left);
}

/* Passes a value, checking all of it. */
static bool pass_value(reader *r, tarn_gguf_type type, int depth)
{
    const char *text;
    uint64_t count;
    tarn_gguf_type element;
    if (type == TARN_GGUF_STRING)
        return read_text(r, "a text", &text, &count);
    if (type != TARN_GGUF_ARRAY)
        return pass_numbers(r, type, 1);
    if (depth == DEEPEST)
        return BAD(r, r->at, "lists are more than %d deep in each other", DEEPEST);
    if (!read_list_head(r, &element, &count))
        return false;
    if (element != TARN_GGUF_STRING && element != TARN_GGUF_ARRAY)
        return pass_numbers(r, element, count);
    for (uint64_t i = 0; i < count; i++)
        if (!pass_value(r, element, depth + 1))
            return false;
    return true;
}

/* A list that is a key's value; of texts it is noted where they begin. */
static bool read_list(reader *r, tarn__gguf_key *key)
{
    uint64_t count;
    if (!read_list_head(r, &key->element, &count))
        return false;
    key->begin = r->at;
    if (key->element != TARN_GGUF_STRING && key->element != TARN_GGUF_ARRAY) {
        key->count = (int64_t)count;
        return pass_numbers(r, key->element, count);
    }
    if (key->element == TARN_GGUF_STRING && count > MOST_TEXTS)
        return BAD(r, key->begin, "a list of %" PRIu64 " texts is longer than the %d that are possible", count,
                   MOST_TEXTS);
    if (key->element == TARN_GGUF_STRING && !(key->texts = tarn__alloc(sizeof(int64_t) * (size_t)count)))
        return false;
    key->count = (int64_t)count; /* from here on `texts` can be given back */
    for (uint64_t i = 0; i < count; i++) {
        if (key->texts)
            key->texts[i] = r->at;
        if (!pass_value(r, key->element, 1))
            return false;
    }
    return true;
}

static bool read_key_text(reader *r, tarn__gguf_key *key)
{
    const char *text;
    uint64_t length;
    if (!read_text(r, "a text", &text, &length))
        return false;
    if (length > LONGEST_TEXT)
        return BAD(r, key->begin, "a text of %" PRIu64 " bytes is longer than the %" PRIu64 " that are possible",
                   length, LONGEST_TEXT);
    key->length = (size_t)length;
    return (key->text = copy_text(text, length)) != NULL;
}

static bool read_value(reader *r, tarn__gguf_key *key)
{
    key->begin = r->at;
    key->element = key->type;
    key->count = 1;
    if (key->type == TARN_GGUF_ARRAY) {
        key->count = 0;
        return read_list(r, key);
    }
    return key->type == TARN_GGUF_STRING ? read_key_text(r, key) : pass_numbers(r, key->type, 1);
}

static bool read_keys(tarn_gguf *file, reader *r, int count)
{
    file->key = tarn__alloc(sizeof(*file->key) * (size_t)count);
    if (!file->key)
        return false;
    file->keys = count;
    for (int i = 0; i < count; i++) {
        tarn__gguf_key *key = &file->key[i];
        if (!read_name(r, "a key", &key->name) || !read_type(r, &key->type) || !read_value(r, key))
            return false;
        key->end = r->at;
    }
    return true;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const tarn__gguf_named *)left)->name, ((const tarn__gguf_named *)right)->name);
}

int tarn__gguf_find(const tarn__gguf_named *list, int count, const char *name)
{
    const tarn__gguf_named wanted = {name, 0};
    const tarn__gguf_named *found = count ? bsearch(&wanted, list, (size_t)count, sizeof(*list), compare_names) : NULL;
    return found ? found->index : -1;
}

/* Sorts a list of names, none of which may come twice. */
static bool sort_names(const tarn_gguf *file, tarn__gguf_named *list, int count, const char *what)
{
    if (count)
        qsort(list, (size_t)count, sizeof(*list), compare_names);
    for (int i = 1; i < count; i++)
        if (strcmp(list[i - 1].name, list[i].name) == 0)
            return tarn__raise(TARN_ERROR_FORMAT, "gguf_open: '%s': the %s '%.*s' is there twice", file->path, what,
                               TARN__GGUF_SHOWN_BYTES, list[i].name);
    return true;
}

static bool name_all(tarn_gguf *file)
{
    file->key_named = tarn__alloc(sizeof(tarn__gguf_named) * (size_t)file->keys);
    file->tensor_named = tarn__alloc(sizeof(tarn__gguf_named) * (size_t)file->tensors);
    if (!file->key_named || !file->tensor_named)
        return false;
    for (int i = 0; i < file->keys; i++)
        file->key_named[i] = (tarn__gguf_named){file->key[i].name, i};
    for (int i = 0; i < file->tensors; i++)
        file->tensor_named[i] = (tarn__gguf_named){file->tensor[i].name, i};
    return sort_names(file, file->key_named, file->keys, "key") &&
           sort_names(file, file->tensor_named, file->tensors, "tensor");
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static bool read_sizes(reader *r, tarn__gguf_tensor *t)
{
    uint32_t rank;
    uint64_t size;
    if (!read_u32(r, "the number of a tensor's axes", &rank))
        return false;
    if (rank > MOST_AXES)
        return BAD(r, r->at - 4, "tensor '%.*s' has %u axes; at most %d are possible", TARN__GGUF_SHOWN_BYTES, t->name,
                   rank, MOST_AXES);
    t->shape.rank = (int)rank;
    for (uint32_t i = 0; i < rank; i++) {
        if (!read_u64(r, "a tensor's size", &size))
            return false;
        if (size > INT64_MAX)
            return BAD(r, r->at - 8, "tensor '%.*s' has the size %" PRIu64, TARN__GGUF_SHOWN_BYTES, t->name, size);
        t->shape.size[rank - 1 - i] = (int64_t)size;
    }
    return true;
}

static bool read_dtype(reader *r, tarn__gguf_tensor *t)
{
    uint32_t number;
    if (!read_u32(r, "a tensor's element type", &number))
        return false;
    if (number >= TARN__GGUF_DTYPES || !tarn__gguf_dtypes[number].name)
        return BAD(r, r->at - 4, "tensor '%.*s' has element type %u, which tarn does not know", TARN__GGUF_SHOWN_BYTES,
                   t->name, number);
    t->type = (int)number;
    return true;
}

/* The bytes that the shape needs. */
static bool count_bytes(const reader *r, tarn__gguf_tensor *t)
{
    const tarn__gguf_dtype *type = &tarn__gguf_dtypes[t->type];
    int64_t count = 1, row = t->shape.rank ? t->shape.size[t->shape.rank - 1] : 1;
    bool overflow = false;
    bool empty = false;
    for (int i = 0; i < t->shape.rank; i++) { /* an empty tensor, too, must have strides that can be counted */
        overflow |= __builtin_mul_overflow(count, t->shape.size[i] ? t->shape.size[i] : 1, &count);
        empty |= t->shape.size[i] == 0;
    }
    if (row % type->block_elements)
        return BAD(r, r->at, "tensor '%.*s': rows of %lld elements are no whole number of %s's blocks of %d",
                   TARN__GGUF_SHOWN_BYTES, t->name, (long long)row, type->name, type->block_elements);
    overflow |= count > INT64_MAX / 2 / type->block_bytes;
    t->bytes = overflow || empty ? 0 : count / type->block_elements * type->block_bytes;
    return !overflow ||
           BAD(r, r->at, "tensor '%.*s': its shape %s of %s is no possible number of bytes", TARN__GGUF_SHOWN_BYTES,
               t->name, tarn__shape_string(t->shape.size, t->shape.rank, &(tarn__shape_buffer){{0}}), type->name);
}

/* `begin` counts from the elements' beginning, which is not known yet. */
static bool read_tensor(reader *r, tarn__gguf_tensor *t)
{
    uint64_t offset;
    if (!read_name(r, "a tensor's name", &t->name) || !read_sizes(r, t) || !read_dtype(r, t) || !count_bytes(r, t) ||
        !read_u64(r, "a tensor's offset", &offset))
        return false;
    if (offset > INT64_MAX / 2)
        return BAD(r, r->at - 8, "tensor '%.*s' has the offset %" PRIu64 ", which is beyond any file",
                   TARN__GGUF_SHOWN_BYTES, t->name, offset);
    if (offset % (uint64_t)r->file->alignment)
        return BAD(r, r->at - 8,
                   "tensor '%.*s' has the offset %" PRIu64 ", which is no multiple of the alignment, %lld",
                   TARN__GGUF_SHOWN_BYTES, t->name, offset, (long long)r->file->alignment);
    t->begin = (int64_t)offset;
    return true;
}

static bool read_tensors(tarn_gguf *file, reader *r, int count)
{
    file->tensor = tarn__alloc(sizeof(*file->tensor) * (size_t)count);
    if (!file->tensor)
        return false;
    file->tensors = count;
    for (int i = 0; i < count; i++)
        if (!read_tensor(r, &file->tensor[i]))
            return false;
    return true;
}

static int compare_places(const void *left, const void *right)
{
    const tarn__gguf_tensor *a = *(tarn__gguf_tensor *const *)left, *b = *(tarn__gguf_tensor *const *)right;
    int64_t a_end = a->begin + a->bytes, b_end = b->begin + b->bytes;
    return a->begin != b->begin ? (a->begin < b->begin ? -1 : 1) : (a_end > b_end) - (a_end < b_end);
}

/* No two tensors share a byte. */
static bool check_overlap(const tarn_gguf *file)
{
    size_t bytes = sizeof(tarn__gguf_tensor *) * (size_t)file->tensors;
    tarn__gguf_tensor **list = tarn__alloc(bytes);
    bool good = list != NULL;
    if (list) {
        for (int i = 0; i < file->tensors; i++)
            list[i] = &file->tensor[i];
        if (file->tensors)
            qsort(list, (size_t)file->tensors, sizeof(*list), compare_places);
        for (int i = 1; good && i < file->tensors; i++) {
            int64_t end = list[i - 1]->begin + list[i - 1]->bytes;
            good =
                list[i]->begin >= end ||
                bad(file, list[i]->begin, "tensor '%.*s' begins before '%.*s' ends, at byte %lld",
                    TARN__GGUF_SHOWN_BYTES, list[i]->name, TARN__GGUF_SHOWN_BYTES, list[i - 1]->name, (long long)end);
        }
    }
    tarn__release(list, bytes);
    return good;
}

/* Moves offsets to where the elements begin, behind the header that ends at `at`. */
static bool place_tensors(tarn_gguf *file, int64_t at)
{
    int64_t data = (at + file->alignment - 1) / file->alignment * file->alignment;
    for (int i = 0; i < file->tensors; i++) {
        tarn__gguf_tensor *t = &file->tensor[i];
        t->begin += data;
        if (t->begin > file->size || t->bytes > file->size - t->begin)
            return bad(file, t->begin,
                       "tensor '%.*s' needs %lld bytes from here on, but the file ends at byte %lld; is it cut short?",
                       TARN__GGUF_SHOWN_BYTES, t->name, (long long)t->bytes, (long long)file->size);
    }
    return check_overlap(file);
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

static bool read_version(reader *r)
{
    uint32_t version = 0;
    if (r->file->size < 4 || memcmp(r->file->memory, "GGUF", 4) != 0)
        return tarn__not_recognized("gguf_open", r->file->path, r->file->memory, (size_t)r->file->size, "GGUF file") &&
               BAD(r, (int64_t)0, "the file does not begin with \"GGUF\"; is it a GGUF file?");
    r->at = 4;
    if (!read_u32(r, "the version", &version))
        return false;
    if (version != 0 && (version & 0xffff) == 0)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "gguf_open: '%s': byte 4: the file is big-endian; convert it to little-endian",
                           r->file->path);
    return version == 2 || version == 3 ||
           tarn__raise(TARN_ERROR_UNSUPPORTED,
                       "gguf_open: '%s': byte 4: version %u of the format is not supported; 2 and 3 are", r->file->path,
                       version);
}

static bool read_alignment(tarn_gguf *file, const reader *r)
{
    const char *name = "general.alignment";
    file->alignment = TARN__GGUF_ALIGNMENT;
    for (int i = 0; i < file->keys; i++) {
        const tarn__gguf_key *key = &file->key[i];
        uint32_t value = 0;
        if (strcmp(key->name, name) != 0)
            continue;
        if (key->type == TARN_GGUF_U32)
            memcpy(&value, file->memory + key->begin, 4);
        if (value < 8 || value > TARN__GGUF_MAX_ALIGNMENT || (value & (value - 1)))
            return BAD(r, key->begin, "%s is no u32 that is a power of two from 8 to %d", name,
                       TARN__GGUF_MAX_ALIGNMENT);
        file->alignment = value;
    }
    return true;
}

static bool read_header(tarn_gguf *file)
{
    reader r = {file, 0};
    uint64_t tensors, keys;
    if (!read_version(&r) || !read_u64(&r, "the number of tensors", &tensors) ||
        !read_u64(&r, "the number of keys", &keys))
        return false;
    uint64_t left = (uint64_t)(file->size - r.at);
    if (tensors > left / LEAST_TENSOR || keys > left / LEAST_KEY || tensors > INT32_MAX || keys > INT32_MAX)
        return BAD(&r, (int64_t)8,
                   "%" PRIu64 " tensors and %" PRIu64 " keys do not fit in the %" PRIu64 " bytes that follow", tensors,
                   keys, left);
    if (tensors > MOST || keys > MOST)
        return BAD(&r, (int64_t)8, "%" PRIu64 " tensors and %" PRIu64 " keys are more than the %d that are possible",
                   tensors, keys, MOST);
    return read_keys(file, &r, (int)keys) && read_alignment(file, &r) && read_tensors(file, &r, (int)tensors) &&
           name_all(file) && place_tensors(file, r.at);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

void tarn__gguf_map_release(void *map)
{
    tarn__gguf_map *shared = map;
    if (!shared || atomic_fetch_sub_explicit(&shared->references, 1, memory_order_acq_rel) != 1)
        return;
    tarn__map_close(&shared->map);
    tarn__release(shared, sizeof(*shared));
}

static bool open_map(tarn_gguf *file, const char *path)
{
    file->map = tarn__alloc(sizeof(*file->map));
    if (!file->map)
        return false;
    file->map->references = 1;
    if (!tarn__map_open_private(&file->map->map, "gguf_open", path))
        return false;
    file->memory = file->map->map.memory;
    file->size = (int64_t)file->map->map.bytes;
    return true;
}

tarn_gguf *tarn_gguf_open(const char *path)
{
    if (tarn_failed())
        return NULL;
    if (!path) {
        tarn__raise(TARN_ERROR_ARGUMENT, "gguf_open: the path is NULL");
        return NULL;
    }
    tarn_gguf *file = tarn__alloc(sizeof(*file));
    if (!file)
        return NULL;
    if ((file->path = tarn__string_copy(path)) && open_map(file, path) && read_header(file))
        return file;
    tarn_gguf_close(file);
    return NULL;
}

static void release_key(tarn__gguf_key *key)
{
    tarn__release(key->text, key->length + 1);
    tarn__release(key->texts, sizeof(int64_t) * (size_t)key->count);
    tarn__string_free(key->name);
}

void tarn_gguf_close(tarn_gguf *file)
{
    if (!file)
        return;
    for (int i = 0; i < file->keys; i++)
        release_key(&file->key[i]);
    for (int i = 0; i < file->tensors; i++)
        tarn__string_free(file->tensor[i].name);
    tarn__release(file->key_named, sizeof(tarn__gguf_named) * (size_t)file->keys);
    tarn__release(file->tensor_named, sizeof(tarn__gguf_named) * (size_t)file->tensors);
    tarn__release(file->key, sizeof(*file->key) * (size_t)file->keys);
    tarn__release(file->tensor, sizeof(*file->tensor) * (size_t)file->tensors);
    tarn__gguf_map_release(file->map);
    tarn__string_free(file->path);
    tarn__release(file, sizeof(*file));
}
