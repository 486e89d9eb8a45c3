/* gguf_query.c: queries of an open GGUF file: its tensors and its metadata. The header was checked when the file was
 * opened: offsets and sizes need no further checks here. */
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "core/launch/graph.h"
#include "core/tensor/tensor.h"
#include "formats/gguf.h"

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* False while an error is pending; raises one when the file is NULL. */
static bool check_file(const char *function, const tarn_gguf *file)
{
    if (tarn_failed())
        return false;
    return file || tarn__raise(TARN_ERROR_ARGUMENT, "%s: file is NULL", function);
}

/* Tensor `index`; NULL with an error. */
static const tarn__gguf_tensor *tensor_at(const char *function, const tarn_gguf *file, int index)
{
    if (!check_file(function, file))
        return NULL;
    if (index >= 0 && index < file->tensors)
        return &file->tensor[index];
    tarn__raise(TARN_ERROR_ARGUMENT, "%s: tensor %d is out of range; '%s' has %d tensors", function, index, file->path,
                file->tensors);
    return NULL;
}

int tarn_gguf_count(const tarn_gguf *file)
{
    return check_file("gguf_count", file) ? file->tensors : -1;
}

const char *tarn_gguf_name(const tarn_gguf *file, int index)
{
    const tarn__gguf_tensor *t = tensor_at("gguf_name", file, index);
    return t ? t->name : NULL;
}

/* Describes tensors of any element type, also of those that tarn cannot load. */
bool tarn_gguf_info(const tarn_gguf *file, int index, tarn_gguf_entry *entry)
{
    const tarn__gguf_tensor *t = tensor_at("gguf_info", file, index);
    if (!t)
        return false;
    if (!entry)
        return tarn__raise(TARN_ERROR_ARGUMENT, "gguf_info: entry is NULL");
    const tarn__gguf_dtype *type = &tarn__gguf_dtypes[t->type];
    *entry = (tarn_gguf_entry){t->name, type->name, type->dtype, t->shape, t->begin, t->bytes};
    return true;
}

int tarn_gguf_find(const tarn_gguf *file, const char *name)
{
    if (!check_file("gguf_find", file))
        return -1;
    if (name)
        return tarn__gguf_find(file->tensor_named, file->tensors, name);
    tarn__raise(TARN_ERROR_ARGUMENT, "gguf_find: name is NULL");
    return -1;
}

/* A tensor whose storage is the mapped file; it retains the map. In the open scope. NULL with an error. */
static tarn_tensor *map_tensor(const char *function, const tarn__gguf_tensor *t, tarn_device device)
{
    void *memory = (void *)(t->file->memory + t->begin);
    tarn__storage *storage =
        tarn__storage_borrow(device, memory, (size_t)t->bytes, tarn__gguf_map_release, t->file->map);
    if (!storage) {
        tarn__raise_within(function);
        return NULL;
    }
    /* Relaxed: the open file has a reference of its own, so the count cannot reach 0 meanwhile. */
    atomic_fetch_add_explicit(&t->file->map->references, 1, memory_order_relaxed);
    return tarn__tensor_on(function, t->shape, tarn__gguf_dtypes[t->type].dtype, storage);
}

/* A tensor on a device, uploaded from the map. In the open scope. NULL with an error. */
static tarn_tensor *copy_tensor(const char *function, const tarn__gguf_tensor *t, tarn_device device)
{
    tarn_tensor *tensor = tarn__tensor_new(function, t->shape, tarn__gguf_dtypes[t->type].dtype, device);
    bool good = tensor && tarn__not_captured(function, device, "a copy from the host") &&
                tarn__storage_upload(tensor->storage, 0, t->file->memory + t->begin, (size_t)t->bytes);
    return good ? tensor : NULL;
}

/* Types without a dtype: dequantized to f32 on the host. */
static tarn_tensor *dequantize_tensor(const char *function, const tarn__gguf_tensor *t, tarn_device device)
{
    tarn_scope *scope = tarn_scope_open(); /* frees the host copy of a tensor on another device */
    tarn_tensor *host = scope ? tarn__tensor_new(function, t->shape, TARN_F32, tarn_device_cpu()) : NULL, *result;
    if (host && tarn_count(host) > 0)
        tarn__dequantize_iquant(tarn__gguf_dtypes[t->type].iquant, t->file->memory + t->begin, tarn_count(host),
                                tarn_data(host));
    result = host ? tarn_to(host, device) : NULL;
    if (result)
        tarn_scope_return(scope, result);
    tarn_scope_close(scope);
    return result;
}

tarn__iquant tarn__gguf_iquant(const tarn_gguf *file, int index)
{
    return tarn__gguf_dtypes[file->tensor[index].type].iquant;
}

const char *tarn__gguf_elements(const tarn_gguf *file, int index)
{
    return file->tensor[index].file->memory + file->tensor[index].begin;
}

tarn_tensor *tarn_gguf_tensor(const tarn_gguf *file, int index, tarn_device device)
{
    const char *function = "gguf_tensor";
    const tarn__gguf_tensor *t = tensor_at(function, file, index);
    const tarn__backend *backend = t ? tarn__backend_of(device, function) : NULL;
    if (!backend)
        return NULL;
    if (tarn__gguf_dtypes[t->type].iquant)
        return dequantize_tensor(function, t, device);
    if (tarn__gguf_dtypes[t->type].dtype == TARN_DTYPE_COUNT) {
        tarn__raise(TARN_ERROR_UNSUPPORTED,
                    "%s: '%s': tensor '%.*s' is %s, which tarn cannot load; supported are " TARN__GGUF_SUPPORTED,
                    function, t->file->path, TARN__GGUF_SHOWN_BYTES, t->name, tarn__gguf_dtypes[t->type].name);
        return NULL;
    }
    /* On the host the tensor is a view of the map: opening a model costs no copy. An empty tensor has no address to
     * borrow. */
    return backend->on_host && t->bytes > 0 ? map_tensor(function, t, device) : copy_tensor(function, t, device);
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

int tarn_gguf_metadata_count(const tarn_gguf *file)
{
    return check_file("gguf_metadata_count", file) ? file->keys : -1;
}

/* The public description of a key; its name is borrowed from the file. */
static tarn_gguf_value value_of(const tarn__gguf_key *key)
{
    return (tarn_gguf_value){key->name, key->type, key->element, key->count};
}

bool tarn_gguf_metadata_at(const tarn_gguf *file, int index, tarn_gguf_value *value)
{
    const char *function = "gguf_metadata_at";
    if (!check_file(function, file))
        return false;
    if (index < 0 || index >= file->keys)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: key %d is out of range; '%s' has %d keys", function, index,
                           file->path, file->keys);
    if (!value)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: value is NULL", function);
    *value = value_of(&file->key[index]);
    return true;
}

/* A missing key is an answer, not an error. */
bool tarn_gguf_has(const tarn_gguf *file, const char *key, tarn_gguf_value *value)
{
    if (!check_file("gguf_has", file))
        return false;
    if (!key)
        return tarn__raise(TARN_ERROR_ARGUMENT, "gguf_has: key is NULL");
    int index = tarn__gguf_find(file->key_named, file->keys, key);
    if (index >= 0 && value)
        *value = value_of(&file->key[index]);
    return index >= 0;
}

/* The key of that name; an error when it is missing or an argument is NULL. */
static const tarn__gguf_key *key_of(const char *function, const tarn_gguf *file, const char *key, const void *result)
{
    if (!check_file(function, file))
        return NULL;
    if (!key || !result) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s is NULL", function, key ? "result pointer" : "key");
        return NULL;
    }
    int index = tarn__gguf_find(file->key_named, file->keys, key);
    if (index < 0)
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has no key '%.*s'", function, file->path, TARN__GGUF_SHOWN_BYTES, key);
    return index < 0 ? NULL : &file->key[index];
}

/* Raises an error that a key has another type. Returns false. */
static bool raise_type(const char *function, const tarn_gguf *file, const tarn__gguf_key *key, const char *wanted)
{
    bool is_array = key->type == TARN_GGUF_ARRAY;
    return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%.*s' is %s%s, not %s", function, file->path,
                       TARN__GGUF_SHOWN_BYTES, key->name, is_array ? "an array of " : "of type ",
                       tarn_gguf_type_name(key->element), wanted);
}

/* Reads an integer of any width; values in files are not aligned. False for floats, and for a u64 above INT64_MAX. */
static bool int_at(const char *at, tarn_gguf_type type, int64_t *value)
{
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    memcpy(&u8, at, 1);
    switch (type) {
    case TARN_GGUF_BOOL:
    case TARN_GGUF_U8: *value = u8; return true;
    case TARN_GGUF_I8: *value = (int8_t)u8; return true;
    case TARN_GGUF_U16:
        memcpy(&u16, at, 2);
        *value = u16;
        return true;
    case TARN_GGUF_I16:
        memcpy(&u16, at, 2);
        *value = (int16_t)u16;
        return true;
    case TARN_GGUF_U32:
        memcpy(&u32, at, 4);
        *value = u32;
        return true;
    case TARN_GGUF_I32:
        memcpy(&u32, at, 4);
        *value = (int32_t)u32;
        return true;
    case TARN_GGUF_I64: memcpy(value, at, 8); return true;
    case TARN_GGUF_U64:
        memcpy(&u64, at, 8);
        *value = (int64_t)u64;
        return u64 <= INT64_MAX;
    default: return false;
    }
}

/* Reads a number of any type as a double; 64-bit integers may round. */
static bool real_at(const char *at, tarn_gguf_type type, double *value)
{
    float f32;
    uint64_t u64;
    int64_t integer = 0;
    if (type == TARN_GGUF_F32) {
        memcpy(&f32, at, 4);
        *value = f32;
    } else if (type == TARN_GGUF_F64) {
        memcpy(value, at, 8);
    } else if (type == TARN_GGUF_U64) {
        memcpy(&u64, at, 8);
        *value = (double)u64;
    } else {
        bool good = int_at(at, type, &integer);
        *value = (double)integer;
        return good;
    }
    return true;
}

/* True for integers and floats, not for bools. */
static bool is_number(tarn_gguf_type type)
{
    return type != TARN_GGUF_STRING && type != TARN_GGUF_ARRAY && type != TARN_GGUF_BOOL;
}

/* Any integer type is accepted: writers disagree about widths. A u64 above INT64_MAX counts as out of range. The sign
 * is printed apart, so that INT64_MIN and large u64 are shown correctly. */
bool tarn_gguf_int(const tarn_gguf *file, const char *key, int64_t low, int64_t high, int64_t *value)
{
    const char *function = "gguf_int";
    const tarn__gguf_key *k = key_of(function, file, key, value);
    int64_t found = 0;
    if (!k)
        return false;
    if (!is_number(k->type) || k->type == TARN_GGUF_F32 || k->type == TARN_GGUF_F64)
        return raise_type(function, file, k, "an integer");
    bool fits = int_at(file->memory + k->begin, k->type, &found);
    if (!fits || found < low || found > high)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%.*s' is %" PRIu64 "%s; it must be from %lld to %lld",
                           function, file->path, TARN__GGUF_SHOWN_BYTES, key,
                           fits && found < 0 ? (uint64_t)0 - (uint64_t)found : (uint64_t)found,
                           fits && found < 0 ? " below zero" : "", (long long)low, (long long)high);
    *value = found;
    return true;
}

/* Integers are accepted too: 1 is often written for 1.0. */
bool tarn_gguf_real(const tarn_gguf *file, const char *key, double *value)
{
    const tarn__gguf_key *k = key_of("gguf_real", file, key, value);
    if (!k)
        return false;
    return is_number(k->type) ? real_at(file->memory + k->begin, k->type, value)
                              : raise_type("gguf_real", file, k, "a number");
}

bool tarn_gguf_bool(const tarn_gguf *file, const char *key, bool *value)
{
    const tarn__gguf_key *k = key_of("gguf_bool", file, key, value);
    if (!k)
        return false;
    if (k->type != TARN_GGUF_BOOL)
        return raise_type("gguf_bool", file, k, "a bool");
    *value = file->memory[k->begin] != 0;
    return true;
}

/* The copy made when the file was opened: terminated, unlike the bytes in the map. */
const char *tarn_gguf_string(const tarn_gguf *file, const char *key, size_t *length)
{
    const tarn__gguf_key *k = key_of("gguf_string", file, key, file);
    if (!k)
        return NULL;
    if (k->type != TARN_GGUF_STRING) {
        raise_type("gguf_string", file, k, "a string");
        return NULL;
    }
    if (length)
        *length = k->length;
    return k->text;
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

/* The key of an array of `count` numbers or bools. NULL with an error. */
static const tarn__gguf_key *array_of(const char *function, const tarn_gguf *file, const char *key, const void *values,
                                      int64_t count)
{
    const tarn__gguf_key *k = key_of(function, file, key, values);
    if (!k)
        return NULL;
    if (k->type != TARN_GGUF_ARRAY || k->element == TARN_GGUF_STRING || k->element == TARN_GGUF_ARRAY)
        raise_type(function, file, k, "an array of numbers");
    else if (k->count != count)
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%.*s' has %lld values, not %lld", function, file->path,
                    TARN__GGUF_SHOWN_BYTES, key, (long long)k->count, (long long)count);
    else
        return k;
    return NULL;
}

/* Decodes element by element: arrays are not aligned in the file, and widths differ. */
bool tarn_gguf_ints(const tarn_gguf *file, const char *key, int64_t *values, int64_t count)
{
    const char *function = "gguf_ints";
    const tarn__gguf_key *k = array_of(function, file, key, values, count);
    if (!k)
        return false;
    if (k->element == TARN_GGUF_F32 || k->element == TARN_GGUF_F64)
        return raise_type(function, file, k, "an array of integers");
    for (int64_t i = 0; i < count; i++)
        if (!int_at(file->memory + k->begin + i * tarn__gguf_type_bytes(k->element), k->element, &values[i]))
            return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': '%.*s': value %lld is above %lld", function, file->path,
                               TARN__GGUF_SHOWN_BYTES, key, (long long)i, (long long)INT64_MAX);
    return true;
}

bool tarn_gguf_reals(const tarn_gguf *file, const char *key, double *values, int64_t count)
{
    const tarn__gguf_key *k = array_of("gguf_reals", file, key, values, count);
    for (int64_t i = 0; k && i < count; i++)
        real_at(file->memory + k->begin + i * tarn__gguf_type_bytes(k->element), k->element, &values[i]);
    return k != NULL;
}

/* Borrowed from the map, without a terminator: copying a vocabulary of 100,000 strings would cost more than reading
 * it. */
const char *tarn_gguf_string_at(const tarn_gguf *file, const char *key, int64_t index, size_t *length)
{
    const char *function = "gguf_string_at";
    const tarn__gguf_key *k = key_of(function, file, key, length);
    uint64_t bytes = 0;
    if (!k)
        return NULL;
    if (k->type != TARN_GGUF_ARRAY || k->element != TARN_GGUF_STRING) {
        raise_type(function, file, k, "an array of strings");
        return NULL;
    }
    if (index < 0 || index >= k->count) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s': '%.*s' has no string %lld; it has %lld", function, file->path,
                    TARN__GGUF_SHOWN_BYTES, key, (long long)index, (long long)k->count);
        return NULL;
    }
    /* The offset is that of the string's length, 8 bytes; the string follows. The reader has checked both. */
    memcpy(&bytes, file->memory + k->texts[index], 8);
    *length = (size_t)bytes;
    return file->memory + k->texts[index] + 8;
}
