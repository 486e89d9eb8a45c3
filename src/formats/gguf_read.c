/* gguf_read.c: opening a GGUF file.
 *
 * A file is "GGUF", a version, the numbers of tensors and keys; the keys, each a name, a type and a value; the tensors,
 * each a name, sizes (innermost first), an element type and an offset; padding up to the alignment; the elements, from
 * where offsets count.
 *
 * Files are not trusted, and everything is checked here: once a file is open, keys and tensors are known to be inside
 * it and no two tensors share a byte. Every count is bounded by the bytes that follow before memory is allocated for
 * it. Padding is not checked. */
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

#define MAX_DEPTH 4 /* arrays in arrays */
#define MAX_AXES 4  /* of the format */
#define MIN_KEY 13  /* bytes: a length, a type, a value of one byte */
#define MIN_TENSOR 24
#define MAX_STRINGS (1 << 24)          /* of an array */
#define MAX_STRING ((uint64_t)1 << 30) /* bytes of a key's string, which is copied */

/* A position in the file; never beyond its size. */
typedef struct reader {
    const tarn_gguf *file;
    int64_t at;
} reader;

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

#define BAD(r, at, ...) bad((r)->file, at, __VA_ARGS__)

/* Raises an error at a byte of the file. Returns false. */
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

/* True when `bytes` bytes follow; `what` names them in the error. */
static bool need(const reader *r, uint64_t bytes, const char *what)
{
    uint64_t left = (uint64_t)(r->file->size - r->at);
    return bytes <= left ||
           BAD(r, r->at, "%s needs %" PRIu64 " bytes, but only %" PRIu64 " follow; is the file truncated?", what, bytes,
               left);
}

/* Reads an integer at the current position; little-endian, as the machine, and perhaps unaligned. */
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

/* Reads a length and that many bytes. *text is borrowed from the map and not terminated. */
static bool read_string(reader *r, const char *what, const char **text, uint64_t *length)
{
    if (!read_u64(r, what, length) || !need(r, *length, what))
        return false;
    *text = r->file->memory + r->at;
    r->at += (int64_t)*length;
    return true;
}

/* A terminated copy; the caller owns it. NULL with an error. */
static char *copy_string(const char *text, uint64_t length)
{
    char *copy = tarn__alloc((size_t)length + 1);
    if (copy)
        memcpy(copy, text, (size_t)length);
    return copy;
}

/* Reads a key or a tensor's name into a terminated copy that the caller owns, on failure too. */
static bool read_name(reader *r, const char *what, char **name)
{
    int64_t from = r->at;
    const char *text;
    uint64_t length;
    if (!read_string(r, what, &text, &length))
        return false;
    if (length == 0 || length > TARN__GGUF_MAX_NAME)
        return BAD(r, from, "%s has %" PRIu64 " bytes; it must have 1 to %d", what, length, TARN__GGUF_MAX_NAME);
    if (memchr(text, 0, (size_t)length))
        return BAD(r, from, "%s has a zero byte inside", what);
    if (!(*name = copy_string(text, length)))
        return false;
    return tarn__utf8_valid(*name) || BAD(r, from, "%s is not valid UTF-8", what);
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

/* Reads the type of a metadata value. */
static bool read_type(reader *r, tarn_gguf_type *type)
{
    uint32_t number;
    if (!read_u32(r, "a type of metadata", &number))
        return false;
    if (number >= TARN_GGUF_TYPE_COUNT)
        return BAD(r, r->at - 4, "%u is not a metadata type", number);
    *type = (tarn_gguf_type)number;
    return true;
}

/* Checks bools at the current position: any byte other than 0 and 1 would be undefined as a C bool. */
static bool check_bools(const reader *r, int64_t count)
{
    const char *value = r->file->memory + r->at;
    for (int64_t i = 0; i < count; i++)
        if (value[i] != 0 && value[i] != 1)
            return BAD(r, r->at + i, "%d is not a bool", (unsigned char)value[i]);
    return true;
}

/* Skips `count` values of a fixed size, checking bools. */
static bool skip_numbers(reader *r, tarn_gguf_type type, uint64_t count)
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

/* Reads element type and count; the count is possible for the bytes that follow. */
static bool read_array_header(reader *r, tarn_gguf_type *element, uint64_t *count)
{
    int64_t from = r->at;
    if (!read_type(r, element) || !read_u64(r, "the length of an array", count))
        return false;
    int min_bytes = *element == TARN_GGUF_STRING ? 8 : *element == TARN_GGUF_ARRAY ? 12 : 1;
    uint64_t left = (uint64_t)(r->file->size - r->at);
    return *count <= left / (uint64_t)min_bytes ||
           BAD(r, from, "an array of %" PRIu64 " values of %s does not fit in the %" PRIu64 " bytes that follow",
               *count, tarn_gguf_type_name(*element), left);
}

/* Skips a value of any type, checking all of it. */
static bool skip_value(reader *r, tarn_gguf_type type, int depth)
{
    const char *text;
    uint64_t count;
    tarn_gguf_type element;
    if (type == TARN_GGUF_STRING)
        return read_string(r, "a string", &text, &count);
    if (type != TARN_GGUF_ARRAY)
        return skip_numbers(r, type, 1);
    if (depth == MAX_DEPTH)
        return BAD(r, r->at, "arrays are nested more than %d deep", MAX_DEPTH);
    if (!read_array_header(r, &element, &count))
        return false;
    if (element != TARN_GGUF_STRING && element != TARN_GGUF_ARRAY)
        return skip_numbers(r, element, count);
    for (uint64_t i = 0; i < count; i++)
        if (!skip_value(r, element, depth + 1))
            return false;
    return true;
}

/* Reads an array as a key's value. Offsets of strings are recorded, so that tarn_gguf_texts() need not walk the
 * array. */
static bool read_array(reader *r, tarn__gguf_key *key)
{
    uint64_t count;
    if (!read_array_header(r, &key->element, &count))
        return false;
    key->begin = r->at;
    if (key->element != TARN_GGUF_STRING && key->element != TARN_GGUF_ARRAY) {
        key->count = (int64_t)count;
        return skip_numbers(r, key->element, count);
    }
    if (key->element == TARN_GGUF_STRING && count > MAX_STRINGS)
        return BAD(r, key->begin, "an array of %" PRIu64 " strings; at most %d are supported", count, MAX_STRINGS);
    if (key->element == TARN_GGUF_STRING && !(key->texts = tarn__alloc(sizeof(int64_t) * (size_t)count)))
        return false;
    key->count = (int64_t)count; /* from here on release_key() knows the size of `texts` */
    for (uint64_t i = 0; i < count; i++) {
        if (key->texts)
            key->texts[i] = r->at;
        if (!skip_value(r, key->element, 1))
            return false;
    }
    return true;
}

/* Copies a key's string, so that tarn_gguf_string() can return a terminated one. Strings may contain zero bytes: the
 * length is kept beside the copy. */
static bool read_key_string(reader *r, tarn__gguf_key *key)
{
    const char *text;
    uint64_t length;
    if (!read_string(r, "a string", &text, &length))
        return false;
    if (length > MAX_STRING)
        return BAD(r, key->begin, "a string of %" PRIu64 " bytes; at most %" PRIu64 " are supported", length,
                   MAX_STRING);
    key->length = (size_t)length;
    return (key->text = copy_string(text, length)) != NULL;
}

/* Reads the value of a key. Numbers stay in the map and are decoded when asked for. */
static bool read_value(reader *r, tarn__gguf_key *key)
{
    key->begin = r->at;
    key->element = key->type;
    key->count = 1;
    if (key->type == TARN_GGUF_ARRAY) {
        key->count = 0;
        return read_array(r, key);
    }
    return key->type == TARN_GGUF_STRING ? read_key_string(r, key) : skip_numbers(r, key->type, 1);
}

/* Reads all keys. file->keys is set before the first one, so that tarn_gguf_close() frees a partly read array: its
 * records are zeroed. */
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

int tarn__gguf_find(const tarn__gguf_named *array, int count, const char *name)
{
    const tarn__gguf_named wanted = {name, 0};
    const tarn__gguf_named *found =
        count ? bsearch(&wanted, array, (size_t)count, sizeof(*array), compare_names) : NULL;
    return found ? found->index : -1;
}

/* Sorts an array of names. Returns the index of one that is there twice; 0: there is none. */
static int sort_names(tarn__gguf_named *array, int count)
{
    if (count)
        qsort(array, (size_t)count, sizeof(*array), compare_names);
    for (int i = 1; i < count; i++)
        if (strcmp(array[i - 1].name, array[i].name) == 0)
            return i;
    return 0;
}

static bool raise_duplicate(const char *path, const char *what, const char *name)
{
    return tarn__raise(TARN_ERROR_FORMAT, "gguf_open: '%s': duplicate %s '%.*s'", path, what, TARN__GGUF_SHOWN_BYTES,
                       name);
}

/* Builds the sorted array by which keys are found. */
static bool index_keys(tarn_gguf *file)
{
    file->key_named = tarn__alloc(sizeof(tarn__gguf_named) * (size_t)file->keys);
    if (!file->key_named)
        return false;
    for (int i = 0; i < file->keys; i++)
        file->key_named[i] = (tarn__gguf_named){file->key[i].name, i};
    int twice = sort_names(file->key_named, file->keys);
    return !twice || raise_duplicate(file->path, "key", file->key_named[twice].name);
}

bool tarn__gguf_index_tensors(tarn_gguf *file)
{
    tarn__gguf_named *array = tarn__alloc(sizeof(*array) * (size_t)file->tensors);
    if (!(file->tensor_named = array))
        return false;
    for (int i = 0; i < file->tensors; i++)
        array[i] = (tarn__gguf_named){file->tensor[i].name, i};
    int twice = sort_names(array, file->tensors);
    if (!twice)
        return true;
    const tarn_gguf *one = file->tensor[array[twice - 1].index].file, *other = file->tensor[array[twice].index].file;
    return one == other ? raise_duplicate(one->path, "tensor", array[twice].name)
                        : tarn__raise(TARN_ERROR_FORMAT, "gguf_open: '%s' and '%s' both have a tensor '%.*s'",
                                      one->path, other->path, TARN__GGUF_SHOWN_BYTES, array[twice].name);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Reads the sizes, innermost first in the file, into a row-major shape. */
static bool read_sizes(reader *r, tarn__gguf_tensor *t)
{
    uint32_t rank;
    uint64_t size;
    if (!read_u32(r, "the number of a tensor's axes", &rank))
        return false;
    if (rank > MAX_AXES)
        return BAD(r, r->at - 4, "tensor '%.*s' has %u axes; at most %d are supported", TARN__GGUF_SHOWN_BYTES, t->name,
                   rank, MAX_AXES);
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

/* Reads the element type. Types that tarn cannot load are accepted: other tensors of the file may be usable. */
static bool read_dtype(reader *r, tarn__gguf_tensor *t)
{
    uint32_t number;
    if (!read_u32(r, "a tensor's element type", &number))
        return false;
    if (number >= TARN__GGUF_DTYPES || !tarn__gguf_dtypes[number].name)
        return BAD(r, r->at - 4, "tensor '%.*s' has the unknown element type %u", TARN__GGUF_SHOWN_BYTES, t->name,
                   number);
    t->type = (int)number;
    return true;
}

/* Computes the bytes of a tensor. Rows are a multiple of the block size: a block never spans rows. */
static bool count_bytes(const reader *r, tarn__gguf_tensor *t)
{
    const tarn__gguf_dtype *type = &tarn__gguf_dtypes[t->type];
    int64_t count = 1, row = t->shape.rank ? t->shape.size[t->shape.rank - 1] : 1;
    bool overflow = false;
    bool empty = false;
    for (int i = 0; i < t->shape.rank; i++) { /* the strides of an empty tensor must not overflow either */
        overflow |= __builtin_mul_overflow(count, t->shape.size[i] ? t->shape.size[i] : 1, &count);
        empty |= t->shape.size[i] == 0;
    }
    if (row % type->block_elements)
        return BAD(r, r->at, "tensor '%.*s': rows of %lld elements are not a multiple of %s's block size %d",
                   TARN__GGUF_SHOWN_BYTES, t->name, (long long)row, type->name, type->block_elements);
    overflow |= count > INT64_MAX / 2 / type->block_bytes;
    t->bytes = overflow || empty ? 0 : count / type->block_elements * type->block_bytes;
    return !overflow ||
           BAD(r, r->at, "tensor '%.*s': its shape %s of %s is not a valid number of bytes", TARN__GGUF_SHOWN_BYTES,
               t->name, tarn__shape_string(t->shape.size, t->shape.rank, &(tarn__shape_buffer){{0}}), type->name);
}

/* Reads a tensor's description. `begin` counts from the start of the data, which is known only after the last one. */
static bool read_tensor(reader *r, tarn__gguf_tensor *t)
{
    uint64_t offset;
    if (!read_name(r, "a tensor's name", &t->name) || !read_sizes(r, t) || !read_dtype(r, t) || !count_bytes(r, t) ||
        !read_u64(r, "a tensor's offset", &offset))
        return false;
    if (offset > INT64_MAX / 2)
        return BAD(r, r->at - 8, "tensor '%.*s' has the offset %" PRIu64 ", beyond any file", TARN__GGUF_SHOWN_BYTES,
                   t->name, offset);
    if (offset % (uint64_t)r->file->alignment)
        return BAD(r, r->at - 8,
                   "tensor '%.*s' has the offset %" PRIu64 "; it must be a multiple of the alignment, %lld",
                   TARN__GGUF_SHOWN_BYTES, t->name, offset, (long long)r->file->alignment);
    t->begin = (int64_t)offset;
    return true;
}

/* Reads all tensors' descriptions; as in read_keys(), the count is set first. */
static bool read_tensors(tarn_gguf *file, reader *r, int count)
{
    file->tensor = tarn__alloc(sizeof(*file->tensor) * (size_t)count);
    if (!file->tensor)
        return false;
    file->tensors = count;
    for (int i = 0; i < count; i++) {
        file->tensor[i].file = file;
        if (!read_tensor(r, &file->tensor[i]))
            return false;
    }
    return true;
}

/* By beginning, then by end: an empty tensor comes before one at the same offset. */
static int compare_offsets(const void *left, const void *right)
{
    const tarn__gguf_tensor *a = *(tarn__gguf_tensor *const *)left, *b = *(tarn__gguf_tensor *const *)right;
    int64_t a_end = a->begin + a->bytes, b_end = b->begin + b->bytes;
    return a->begin != b->begin ? (a->begin < b->begin ? -1 : 1) : (a_end > b_end) - (a_end < b_end);
}

/* Checks that no two tensors share a byte: sorted by offset, each must begin after the one before ends. */
static bool check_overlap(const tarn_gguf *file)
{
    size_t bytes = sizeof(tarn__gguf_tensor *) * (size_t)file->tensors;
    tarn__gguf_tensor **array = tarn__alloc(bytes);
    bool good = array != NULL;
    if (array) {
        for (int i = 0; i < file->tensors; i++)
            array[i] = &file->tensor[i];
        if (file->tensors)
            qsort(array, (size_t)file->tensors, sizeof(*array), compare_offsets);
        for (int i = 1; good && i < file->tensors; i++) {
            int64_t end = array[i - 1]->begin + array[i - 1]->bytes;
            good =
                array[i]->begin >= end ||
                bad(file, array[i]->begin, "tensor '%.*s' begins before '%.*s' ends, at byte %lld",
                    TARN__GGUF_SHOWN_BYTES, array[i]->name, TARN__GGUF_SHOWN_BYTES, array[i - 1]->name, (long long)end);
        }
    }
    tarn__release(array, bytes);
    return good;
}

/* Makes offsets absolute: the data begins at the next multiple of the alignment after the header's end. */
static bool resolve_offsets(tarn_gguf *file, int64_t at)
{
    int64_t data = (at + file->alignment - 1) / file->alignment * file->alignment;
    for (int i = 0; i < file->tensors; i++) {
        tarn__gguf_tensor *t = &file->tensor[i];
        t->begin += data;
        if (t->begin > file->size || t->bytes > file->size - t->begin)
            return bad(file, t->begin,
                       "tensor '%.*s' needs %lld bytes from here on, but the file ends at byte %lld; is it truncated?",
                       TARN__GGUF_SHOWN_BYTES, t->name, (long long)t->bytes, (long long)file->size);
    }
    return check_overlap(file);
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

/* Checks magic and version. In a big-endian file the version's low 16 bits are 0. */
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

/* Takes general.alignment from the keys just read; tensors are checked against it. */
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
            return BAD(r, key->begin, "%s must be a u32 and a power of two from 8 to %d", name,
                       TARN__GGUF_MAX_ALIGNMENT);
        file->alignment = value;
    }
    return true;
}

/* Reads everything before the data. The counts are bounded twice before anything is allocated: by the bytes that
 * follow, and by TARN__GGUF_MAX_COUNT, since a sparse file can have any size for free. */
static bool read_header(tarn_gguf *file)
{
    reader r = {file, 0};
    uint64_t tensors, keys;
    if (!read_version(&r) || !read_u64(&r, "the number of tensors", &tensors) ||
        !read_u64(&r, "the number of keys", &keys))
        return false;
    uint64_t left = (uint64_t)(file->size - r.at);
    if (tensors > left / MIN_TENSOR || keys > left / MIN_KEY || tensors > INT32_MAX || keys > INT32_MAX)
        return BAD(&r, (int64_t)8,
                   "%" PRIu64 " tensors and %" PRIu64 " keys do not fit in the %" PRIu64 " bytes that follow", tensors,
                   keys, left);
    if (tensors > TARN__GGUF_MAX_COUNT || keys > TARN__GGUF_MAX_COUNT)
        return BAD(&r, (int64_t)8,
                   "%" PRIu64 " tensors and %" PRIu64 " keys are too many; at most %d of each are supported", tensors,
                   keys, TARN__GGUF_MAX_COUNT);
    return read_keys(file, &r, (int)keys) && read_alignment(file, &r) && read_tensors(file, &r, (int)tensors) &&
           index_keys(file) && tarn__gguf_index_tensors(file) && resolve_offsets(file, r.at);
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

void tarn__gguf_map_release(void *map)
{
    tarn__gguf_map *shared = map;
    if (!shared || atomic_fetch_sub_explicit(&shared->references, 1, memory_order_acq_rel) != 1)
        return;
    tarn__map_close(&shared->map);
    tarn__release(shared, sizeof(*shared));
}

/* Maps the file privately: writes through a tensor stay in memory and never reach the file. */
static bool open_map(tarn_gguf *file, const char *path)
{
    file->map = tarn__alloc(sizeof(*file->map));
    if (!file->map)
        return false;
    file->map->references = 1; /* the file's own; each tensor in the map has another */
    if (!tarn__map_open_private(&file->map->map, "gguf_open", path))
        return false;
    file->memory = file->map->map.memory;
    file->size = (int64_t)file->map->map.bytes;
    return true;
}

tarn_gguf *tarn__gguf_open_file(const char *path)
{
    tarn_gguf *file = tarn__alloc(sizeof(*file));
    if (!file)
        return NULL;
    if ((file->path = tarn__string_copy(path)) && open_map(file, path) && read_header(file))
        return file;
    tarn_gguf_close(file);
    return NULL;
}

tarn_gguf *tarn_gguf_open(const char *path)
{
    if (tarn_failed())
        return NULL;
    if (!path) {
        tarn__raise(TARN_ERROR_ARGUMENT, "gguf_open: path is NULL");
        return NULL;
    }
    tarn_gguf *file = tarn__gguf_open_file(path);
    if (file && tarn__gguf_open_shards(&file))
        return file;
    tarn_gguf_close(file);
    return NULL;
}

/* Frees what a key owns; also after a failed read of the key. */
static void release_key(tarn__gguf_key *key)
{
    tarn__release(key->text, key->length + 1);
    tarn__release(key->texts, sizeof(int64_t) * (size_t)key->count);
    tarn__string_free(key->name);
}

/* Tensors that are views keep the map alive; everything else of the file is freed. */
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
    for (int i = 0; i < file->shards; i++)
        tarn_gguf_close(file->shard[i]);
    tarn__release(file->shard, sizeof(tarn_gguf *) * (size_t)file->shards);
    tarn__gguf_map_release(file->map);
    tarn__string_free(file->path);
    tarn__release(file, sizeof(*file));
}
