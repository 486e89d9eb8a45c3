/* safetensors_read.c: the safetensors reader. A file is 8 bytes of header length, a JSON header, and the elements:
 *
 *   {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}
 *
 * Offsets count from the end of the header. Files are not trusted: everything is checked when a file is opened, as
 * strictly as in the reference implementation. Tensors cover the data one after the other, without overlap and without
 * a gap; code after the checks may trust an entry. */
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "core/launch/graph.h"
#include "core/tensor/tensor.h"
#include "formats/file_type.h"
#include "formats/safetensors_file.h"

/* Files are little-endian, and their elements are copied unchanged. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "a big-endian machine would have to swap the bytes of every element");

#define NO_DTYPE TARN_DTYPE_COUNT

/* Name, bits per element, dtype. The order is the reference implementation's and decides the order in written files. */
const tarn__safetensors_type tarn__safetensors_types[TARN__SAFETENSORS_TYPES] = {
    {"BOOL", 8, TARN_BOOL},   {"F4", 4, NO_DTYPE},          {"F6_E2M3", 6, NO_DTYPE},     {"F6_E3M2", 6, NO_DTYPE},
    {"U8", 8, TARN_U8},       {"I8", 8, NO_DTYPE},          {"F8_E5M2", 8, NO_DTYPE},     {"F8_E4M3", 8, NO_DTYPE},
    {"F8_E8M0", 8, NO_DTYPE}, {"F8_E4M3FNUZ", 8, NO_DTYPE}, {"F8_E5M2FNUZ", 8, NO_DTYPE}, {"I16", 16, NO_DTYPE},
    {"U16", 16, NO_DTYPE},    {"F16", 16, TARN_F16},        {"BF16", 16, TARN_BF16},      {"I32", 32, TARN_I32},
    {"U32", 32, NO_DTYPE},    {"F32", 32, TARN_F32},        {"C64", 64, NO_DTYPE},        {"F64", 64, TARN_F64},
    {"I64", 64, TARN_I64},    {"U64", 64, NO_DTYPE},
};

#define METADATA "__metadata__"
/* ---- the header -------------------------------------------------------------------------------------------------- */

/* Raises an error for a file of another known type. */
static bool check_kind(const tarn_safetensors *file)
{
    uint64_t length = 0;
    if (file->map.bytes >= 8)
        memcpy(&length, file->map.memory, 8);
    bool is_possible = length > 0 && length <= TARN__SAFETENSORS_MAX_HEADER && length <= file->map.bytes - 8 &&
                       file->map.memory[8] == '{';
    return is_possible ||
           tarn__not_recognized("safetensors_open", file->path, file->map.memory, file->map.bytes, "safetensors file");
}

/* Reads the header's length and checks it against the file's size before anything is parsed. */
static bool check_length(const tarn_safetensors *file, uint64_t *length)
{
    if (file->map.bytes < 8)
        return tarn__raise(
            TARN_ERROR_FORMAT,
            "safetensors_open: '%s': %zu bytes are too few for a safetensors file: the header length alone takes 8",
            file->path, file->map.bytes);
    memcpy(length, file->map.memory, 8);
    if (*length > TARN__SAFETENSORS_MAX_HEADER)
        return tarn__raise(
            TARN_ERROR_FORMAT,
            "safetensors_open: '%s': byte 0: a header of %llu bytes is longer than %d; is this a safetensors file?",
            file->path, (unsigned long long)*length, TARN__SAFETENSORS_MAX_HEADER);
    if (*length > file->map.bytes - 8)
        return tarn__raise(
            TARN_ERROR_FORMAT,
            "safetensors_open: '%s': byte 0: the header has %llu bytes, but only %zu follow; is the file truncated?",
            file->path, (unsigned long long)*length, file->map.bytes - 8);
    if (*length == 0 || file->map.memory[8] != '{')
        return tarn__raise(TARN_ERROR_FORMAT, "safetensors_open: '%s': byte 8: the header does not begin with '{'",
                           file->path);
    return true;
}

/* Parses the JSON header. Duplicate names are rejected by jansson. */
static bool read_header(tarn_safetensors *file)
{
    uint64_t length = 0;
    json_error_t error;
    if (!check_kind(file) || !check_length(file, &length))
        return false;
    file->data = 8 + (int64_t)length;
    file->header = json_loadb(file->map.memory + 8, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (!file->header && json_error_code(&error) == json_error_out_of_memory)
        return tarn__raise(TARN_ERROR_MEMORY, "safetensors_open: '%s': out of host memory for the header", file->path);
    return file->header ||
           tarn__raise(TARN_ERROR_FORMAT, "safetensors_open: '%s': byte %d: the header is not valid JSON: %s",
                       file->path, 8 + error.position, error.text);
}

/* Checks that __metadata__, if any, maps strings to strings, as the format requires. */
static bool check_metadata(tarn_safetensors *file)
{
    const char *key;
    json_t *value;
    file->metadata = json_object_get(file->header, METADATA);
    if (!file->metadata)
        return true;
    if (!json_is_object(file->metadata))
        return tarn__raise(TARN_ERROR_FORMAT, "safetensors_open: '%s': " METADATA " is not an object", file->path);
    json_object_foreach(file->metadata, key, value)
    {
        if (!json_is_string(value))
            return tarn__raise(TARN_ERROR_FORMAT,
                               "safetensors_open: '%s': " METADATA ": the value of '%.*s' is not a string", file->path,
                               TARN__NAME_SHOWN, key);
    }
    return true;
}

/* ---- one entry --------------------------------------------------------------------------------------------------- */

/* Reads the dtype. Types that tarn cannot load are accepted: the file can still be inspected, and its other tensors
 * loaded. */
static bool read_type(const tarn_safetensors *file, const json_t *value, tarn__safetensors_entry *e)
{
    const char *name = json_string_value(json_object_get(value, "dtype"));
    if (!name)
        return tarn__raise(TARN_ERROR_FORMAT, "safetensors_open: '%s': tensor '%.*s' has no string \"dtype\"",
                           file->path, TARN__NAME_SHOWN, e->name);
    for (int i = 0; i < TARN__SAFETENSORS_TYPES; i++)
        if (strcmp(name, tarn__safetensors_types[i].name) == 0)
            e->type = &tarn__safetensors_types[i];
    return e->type ||
           tarn__raise(TARN_ERROR_FORMAT, "safetensors_open: '%s': tensor '%.*s' has the unknown dtype '%.40s'",
                       file->path, TARN__NAME_SHOWN, e->name, name);
}

/* Reads the shape; more axes than a tarn tensor can have are an error. */
static bool read_shape(const tarn_safetensors *file, const json_t *value, tarn__safetensors_entry *e)
{
    const json_t *list = json_object_get(value, "shape");
    if (!json_is_array(list))
        return tarn__raise(TARN_ERROR_FORMAT, "safetensors_open: '%s': tensor '%.*s' has no array \"shape\"",
                           file->path, TARN__NAME_SHOWN, e->name);
    size_t rank = json_array_size(list);
    if (rank > TARN_MAX_RANK)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "safetensors_open: '%s': tensor '%.*s' has %zu axes; tarn's tensors have at most %d",
                           file->path, TARN__NAME_SHOWN, e->name, rank, TARN_MAX_RANK);
    e->shape.rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        const json_t *size = json_array_get(list, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return tarn__raise(
                TARN_ERROR_FORMAT,
                "safetensors_open: '%s': tensor '%.*s': size %zu of its shape is not an integer of at least 0",
                file->path, TARN__NAME_SHOWN, e->name, i);
        e->shape.size[i] = json_integer_value(size);
    }
    return true;
}

/* Bytes of the elements; -1: they overflow, or are not a whole number of bytes (F4, F6). */
static int64_t bytes_of(const tarn__safetensors_entry *e)
{
    int64_t bits = e->type->bits;
    bool overflow = false;
    for (int i = 0; i < e->shape.rank; i++)
        overflow |= __builtin_mul_overflow(bits, e->shape.size[i], &bits);
    return overflow || bits % 8 ? -1 : bits / 8;
}

/* Reads the offsets and checks them against the data and the shape. */
static bool read_offsets(const tarn_safetensors *file, const json_t *value, tarn__safetensors_entry *e)
{
    const json_t *pair = json_object_get(value, "data_offsets"), *begin = json_array_get(pair, 0),
                 *end = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return tarn__raise(TARN_ERROR_FORMAT,
                           "safetensors_open: '%s': tensor '%.*s' has no array \"data_offsets\" of two integers",
                           file->path, TARN__NAME_SHOWN, e->name);
    e->begin = json_integer_value(begin);
    e->end = json_integer_value(end);
    int64_t capacity = (int64_t)file->map.bytes - file->data, needed = bytes_of(e);
    if (e->begin < 0 || e->end < e->begin || e->end > capacity)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "safetensors_open: '%s': tensor '%.*s' has offsets %lld to %lld, outside the %lld bytes of "
                           "data from byte %lld",
                           file->path, TARN__NAME_SHOWN, e->name, (long long)e->begin, (long long)e->end,
                           (long long)capacity, (long long)file->data);
    if (needed < 0)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "safetensors_open: '%s': tensor '%.*s': its shape %s of %s is not a valid number of bytes",
                           file->path, TARN__NAME_SHOWN, e->name,
                           tarn__shape_string(e->shape.size, e->shape.rank, &(tarn__shape_buffer){{0}}), e->type->name);
    /* The offsets are redundant: shape and dtype must give the same number of bytes. */
    return e->end - e->begin == needed ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "safetensors_open: '%s': tensor '%.*s', at byte %lld: its shape %s of %s needs %lld bytes, but "
                       "it has %lld",
                       file->path, TARN__NAME_SHOWN, e->name, (long long)(file->data + e->begin),
                       tarn__shape_string(e->shape.size, e->shape.rank, &(tarn__shape_buffer){{0}}), e->type->name,
                       (long long)needed, (long long)(e->end - e->begin));
}

/* Reads one member of the header. The name is borrowed from the JSON tree, which the file owns. */
static bool read_entry(const tarn_safetensors *file, const char *name, const json_t *value, tarn__safetensors_entry *e)
{
    *e = (tarn__safetensors_entry){.name = name, .part = file};
    if (!json_is_object(value))
        return tarn__raise(TARN_ERROR_FORMAT, "safetensors_open: '%s': tensor '%.*s' is not an object", file->path,
                           TARN__NAME_SHOWN, name);
    return read_type(file, value, e) && read_shape(file, value, e) && read_offsets(file, value, e);
}

/* ---- all entries ------------------------------------------------------------------------------------------------- */

/* Reads all tensors. file->count grows with each, so that closing after a failure frees what exists. */
static bool read_entries(tarn_safetensors *file)
{
    const char *name;
    json_t *value;
    size_t count = json_object_size(file->header) - (file->metadata ? 1 : 0);
    file->capacity = count;
    file->entry = tarn__alloc(sizeof(tarn__safetensors_entry) * count);
    if (!file->entry)
        return false;
    json_object_foreach(file->header, name, value)
    {
        if (value != file->metadata && !read_entry(file, name, value, &file->entry[file->count++]))
            return false;
    }
    return true;
}

/* By beginning, then end, then name, so that empty tensors have a fixed order. */
static int compare_offsets(const void *left, const void *right)
{
    const tarn__safetensors_entry *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Sorts the entries by offset and checks that they cover the data exactly. */
static bool check_offsets(tarn_safetensors *file)
{
    int64_t at = 0, capacity = (int64_t)file->map.bytes - file->data;
    qsort(file->entry, (size_t)file->count, sizeof(tarn__safetensors_entry), compare_offsets);
    for (int i = 0; i < file->count; i++) {
        const tarn__safetensors_entry *e = &file->entry[i];
        if (e->begin != at)
            return tarn__raise(TARN_ERROR_FORMAT,
                               "safetensors_open: '%s': tensor '%.*s' begins at byte %lld, but the one before it ends "
                               "at byte %lld: %s",
                               file->path, TARN__NAME_SHOWN, e->name, (long long)(file->data + e->begin),
                               (long long)(file->data + at), e->begin < at ? "they overlap" : "there is a gap");
        at = e->end;
    }
    return at == capacity ||
           tarn__raise(TARN_ERROR_FORMAT,
                       "safetensors_open: '%s': the last tensor ends at byte %lld, but the file ends at byte %lld",
                       file->path, (long long)(file->data + at), (long long)(file->data + capacity));
}

/* A name and the index of its entry, for qsort(), whose comparison does not see the file. */
typedef struct named {
    const char *name;
    int index;
} named;

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const named *)left)->name, ((const named *)right)->name);
}

/* The entries stay in the order of the data; by_name lists their indices by name. */
bool tarn__safetensors_sort_names(tarn_safetensors *file)
{
    size_t bytes = sizeof(named) * (size_t)file->count;
    named *list = tarn__alloc(bytes);
    file->by_name = list ? tarn__alloc(sizeof(int) * (size_t)file->count) : NULL;
    if (file->by_name) {
        for (int i = 0; i < file->count; i++)
            list[i] = (named){file->entry[i].name, i};
        qsort(list, (size_t)file->count, sizeof(named), compare_names);
        for (int i = 0; i < file->count; i++)
            file->by_name[i] = list[i].index;
    }
    tarn__release(list, bytes);
    return file->by_name != NULL;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

/* Opens a single file: map, header, metadata, entries, checksums. */
static bool read_file(tarn_safetensors *file)
{
    return tarn__map_open(&file->map, "safetensors_open", file->path) && read_header(file) && check_metadata(file) &&
           read_entries(file) && check_offsets(file) && tarn__checksums_read(file);
}

/* A single file, or an index by its name. */
tarn_safetensors *tarn_safetensors_open(const char *path)
{
    if (tarn_failed())
        return NULL;
    if (!path) {
        tarn__raise(TARN_ERROR_ARGUMENT, "safetensors_open: path is NULL");
        return NULL;
    }
    tarn_safetensors *file = tarn__alloc(sizeof(*file));
    if (!file)
        return NULL;
    if ((file->path = tarn__string_copy(path)) &&
        (tarn__is_safetensors_index(path) ? tarn__safetensors_read_index(file) : read_file(file)) &&
        tarn__safetensors_sort_names(file))
        return file;
    tarn_safetensors_close(file);
    return NULL;
}

/* Also frees the remains of a failed open: every pointer may be NULL. */
void tarn_safetensors_close(tarn_safetensors *file)
{
    if (!file)
        return;
    for (int i = 0; i < file->parts; i++)
        tarn_safetensors_close(file->part[i]);
    tarn__release(file->part, sizeof(*file->part) * (size_t)file->part_capacity);
    tarn__release(file->by_name, sizeof(int) * (size_t)file->count);
    tarn__release(file->entry, sizeof(tarn__safetensors_entry) * file->capacity);
    json_decref(file->header);
    tarn__map_close(&file->map);
    tarn__string_free(file->path);
    tarn__release(file, sizeof(*file));
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

/* False while an error is pending; raises one when the file is NULL. */
static bool check_file(const char *function, const tarn_safetensors *file)
{
    if (tarn_failed())
        return false;
    return file || tarn__raise(TARN_ERROR_ARGUMENT, "%s: file is NULL", function);
}

/* Entry `index`; NULL with an error. */
static const tarn__safetensors_entry *entry_at(const char *function, const tarn_safetensors *file, int index)
{
    if (!check_file(function, file))
        return NULL;
    if (index >= 0 && index < file->count)
        return &file->entry[index];
    tarn__raise(TARN_ERROR_ARGUMENT, "%s: tensor %d is out of range; '%s' has %d tensors", function, index, file->path,
                file->count);
    return NULL;
}

/* Binary search by name; -1: not found. */
static int find(const tarn_safetensors *file, const char *name)
{
    int low = 0, high = file->count;
    while (low < high) {
        int middle = low + (high - low) / 2, order = strcmp(file->entry[file->by_name[middle]].name, name);
        if (order == 0)
            return file->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

int tarn_safetensors_count(const tarn_safetensors *file)
{
    return check_file("safetensors_count", file) ? file->count : -1;
}

const char *tarn_safetensors_name(const tarn_safetensors *file, int index)
{
    const tarn__safetensors_entry *e = entry_at("safetensors_name", file, index);
    return e ? e->name : NULL;
}

/* The position is that in the part's own file. */
bool tarn_safetensors_info(const tarn_safetensors *file, int index, tarn_safetensors_entry *about)
{
    const tarn__safetensors_entry *e = entry_at("safetensors_info", file, index);
    if (!e)
        return false;
    if (!about)
        return tarn__raise(TARN_ERROR_ARGUMENT, "safetensors_info: entry is NULL");
    *about = (tarn_safetensors_entry){
        e->name, e->type->name, e->type->dtype, e->shape, e->part->data + e->begin, e->end - e->begin};
    return true;
}

int tarn_safetensors_find(const tarn_safetensors *file, const char *name)
{
    if (!check_file("safetensors_find", file))
        return -1;
    if (name)
        return find(file, name);
    tarn__raise(TARN_ERROR_ARGUMENT, "safetensors_find: name is NULL");
    return -1;
}

/* Borrowed from the header; NULL, without an error, for a missing key. */
const char *tarn_safetensors_metadata(const tarn_safetensors *file, const char *key)
{
    if (!check_file("safetensors_metadata", file))
        return NULL;
    if (key)
        return json_string_value(json_object_get(file->metadata, key));
    tarn__raise(TARN_ERROR_ARGUMENT, "safetensors_metadata: key is NULL");
    return NULL;
}

int tarn_safetensors_metadata_count(const tarn_safetensors *file)
{
    return check_file("safetensors_metadata_count", file) ? (int)json_object_size(file->metadata) : -1;
}

/* Walking to a member is linear; metadata is short. */
bool tarn_safetensors_metadata_at(const tarn_safetensors *file, int index, const char **key, const char **value)
{
    if (!check_file("safetensors_metadata_at", file))
        return false;
    if (index < 0 || (size_t)index >= json_object_size(file->metadata))
        return tarn__raise(TARN_ERROR_ARGUMENT, "safetensors_metadata_at: key %d is out of range; '%s' has %zu keys",
                           index, file->path, json_object_size(file->metadata));
    void *at = json_object_iter(file->metadata);
    for (int i = 0; i < index; i++)
        at = json_object_iter_next(file->metadata, at);
    if (key)
        *key = json_object_iter_key(at);
    if (value)
        *value = json_string_value(json_object_iter_value(at));
    return true;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* The elements of an entry, in the map of its part. */
static const char *elements(const tarn__safetensors_entry *e)
{
    return e->part->map.memory + e->part->data + e->begin;
}

const void *tarn__safetensors_data(const tarn_safetensors *file, int index)
{
    return elements(&file->entry[index]);
}

/* Raises an error for a bool that is neither 0 nor 1: kernels rely on it. */
static bool check_bools(const char *function, const tarn__safetensors_entry *e)
{
    const char *value = elements(e);
    for (int64_t i = 0; i < e->end - e->begin; i++)
        if (value[i] != 0 && value[i] != 1)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': tensor '%.*s', byte %lld: %d is not a bool", function,
                               e->part->path, TARN__NAME_SHOWN, e->name, (long long)(e->part->data + e->begin + i),
                               (unsigned char)value[i]);
    return true;
}

/* The entry of that name if tarn has its dtype and its checksum matches. NULL with an error. */
static const tarn__safetensors_entry *loadable(const char *function, const tarn_safetensors *file, const char *name)
{
    if (!check_file(function, file))
        return NULL;
    int index = name ? find(file, name) : -1;
    tarn__safetensors_entry *e = index >= 0 ? &file->entry[index] : NULL;
    if (!name)
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: name is NULL", function);
    else if (!e)
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' has no tensor '%.*s'; it has %d others", function, file->path,
                    TARN__NAME_SHOWN, name, file->count);
    else if (e->type->dtype == TARN_DTYPE_COUNT)
        tarn__raise(
            TARN_ERROR_UNSUPPORTED,
            "%s: '%s': tensor '%.*s' is %s, which tarn cannot load; supported are F64 F32 F16 BF16 I64 I32 U8 BOOL",
            function, file->path, TARN__NAME_SHOWN, name, e->type->name);
    else if (tarn__checksum_check(function, e) && (e->type->dtype != TARN_BOOL || check_bools(function, e)))
        return e;
    return NULL;
}

/* Uploads an entry to a device. In the open scope. NULL with an error. */
static tarn_tensor *load(const char *function, const tarn__safetensors_entry *e, tarn_device device)
{
    tarn_tensor *tensor = tarn__tensor_new(function, e->shape, e->type->dtype, device);
    bool good = tensor && tarn__not_captured(function, device, "a copy from the host") &&
                tarn__storage_upload(tensor->storage, 0, elements(e), (size_t)(e->end - e->begin));
    return good ? tensor : NULL;
}

tarn_tensor *tarn_safetensors_read(const tarn_safetensors *file, const char *name, tarn_device device)
{
    const tarn__safetensors_entry *e = loadable("safetensors_read", file, name);
    return e ? load("safetensors_read", e, device) : NULL;
}

/* Reads into a tensor of another float dtype: loads the stored dtype to the device and converts there. */
static bool convert_into(const tarn__safetensors_entry *e, tarn_tensor *tensor)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *values = scope ? load("safetensors_read_into", e, tarn__device(tensor)) : NULL;
    bool good = values && tarn_copy(tensor, values);
    tarn_scope_close(scope);
    return good;
}

/* Reads into a tensor of the same shape. Integers must match exactly; floats are converted, since checkpoints and
 * models may differ in precision. */
bool tarn_safetensors_read_into(const tarn_safetensors *file, const char *name, tarn_tensor *tensor)
{
    const char *function = "safetensors_read_into";
    const tarn__safetensors_entry *e =
        tarn__check(function, tensor, "the tensor") ? loadable(function, file, name) : NULL;
    if (!e)
        return false;
    tarn_dtype from = e->type->dtype, to = tensor->view.dtype;
    if (e->shape.rank != tensor->view.rank ||
        memcmp(e->shape.size, tensor->view.shape, sizeof(int64_t) * (size_t)e->shape.rank) != 0)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: '%s': tensor '%.*s' is %s, but the destination is %s", function,
                           file->path, TARN__NAME_SHOWN, name,
                           tarn__shape_string(e->shape.size, e->shape.rank, &(tarn__shape_buffer){{0}}),
                           TARN__SHAPE_STRING(tensor));
    if (from != to && !(tarn__is_float(from) && tarn__is_float(to)))
        return tarn__raise(TARN_ERROR_DTYPE, "%s: '%s': tensor '%.*s' is %s, but the destination is %s", function,
                           file->path, TARN__NAME_SHOWN, name, tarn_dtype_name(from), tarn_dtype_name(to));
    bool good = from == to ? tarn_write(tensor, elements(e), (size_t)(e->end - e->begin)) : convert_into(e, tensor);
    return good || tarn__raise_within(function);
}

bool tarn__safetensors_read_part(const tarn_safetensors *file, const char *name, const tarn__tensor_part *part)
{
    static const char *const function = "safetensors_read_part";
    if (!part->elements)
        return true;
    const tarn__safetensors_entry *e = loadable(function, file, name);
    size_t bytes = (size_t)tarn_bytes(part->elements), skipped = (size_t)part->begin * tarn__dtype_bytes(part->dtype);
    return e && tarn_write(part->elements, elements(e) + skipped, bytes);
}
