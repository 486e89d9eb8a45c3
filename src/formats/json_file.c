/* json_file.c: small JSON files, on jansson (json_file.h). jansson's reference counts stay inside: callers see strings
 * borrowed from the tree, numbers and bools. */
#include "formats/json_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/number_format.h"
#include "base/os/files.h"
#include "formats/file_type.h"
#include "formats/json_text.h"

#define MAX_FILE ((size_t)64 << 20) /* bytes; config files are far smaller, and jansson needs a multiple */
#define MAX_VALUE 2048              /* bytes of a member's value as typed */

struct tarn__json_file {
    const char *function; /* borrowed */
    char *name;           /* path, for errors; owned */
    json_t *root;
    tarn__json_checksum sum; /* of the bytes it was parsed from */
};

/* ---- creation and saving ----------------------------------------------------------------------------------------- */

/* Takes the root, on failure too; a NULL root means that jansson had no memory. */
static tarn__json_file *wrap(const char *function, const char *name, json_t *root)
{
    tarn__json_file *file = root ? tarn__alloc(sizeof(*file)) : NULL;
    if (file)
        *file = (tarn__json_file){.function = function, .name = tarn__string_copy(name), .root = root};
    else
        json_decref(root);
    if (file && file->name)
        return file;
    tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for '%s'", function, name);
    tarn__json_file_free(file);
    return NULL;
}

tarn__json_file *tarn__json_file_new(const char *function)
{
    return tarn_failed() ? NULL : wrap(function, "new", json_object());
}

tarn__json_file *tarn__json_file_parse(const char *function, const char *name, const char *text, size_t length)
{
    json_error_t error;
    if (tarn_failed())
        return NULL;
    /* Duplicate keys are rejected: which one counts is undefined in JSON. */
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (root && json_is_object(root)) {
        tarn__json_file *file = wrap(function, name, root);
        if (file)
            file->sum = tarn__json_checksum_of(text, length);
        return file;
    }
    if (root)
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' is JSON, but not an object", function, name);
    /* A pickle or an HTML page is named as such: jansson would complain about its first byte. */
    else if (tarn__not_recognized(function, name, text, length, "JSON file"))
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s', line %d, column %d: %s", function, name, error.line, error.column,
                    error.text);
    json_decref(root);
    return NULL;
}

/* The file is mapped, parsed and closed again: the tree owns copies of everything. */
tarn__json_file *tarn__json_file_open(const char *function, const char *path)
{
    tarn__map map;
    if (tarn_failed() || !tarn__map_open(&map, function, path))
        return NULL;
    tarn__json_file *file = NULL;
    if (map.bytes > MAX_FILE)
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has %zu bytes; at most %zu are allowed", function, path, map.bytes,
                    MAX_FILE);
    else
        file = tarn__json_file_parse(function, path, map.bytes ? map.memory : "", map.bytes);
    tarn__map_close(&map);
    return file;
}

/* Strings borrowed from the file end here. */
void tarn__json_file_free(tarn__json_file *file)
{
    if (!file)
        return;
    json_decref(file->root);
    tarn__string_free(file->name);
    tarn__release(file, sizeof(*file));
}

/* Writes bytes to a file atomically. */
static bool write_text(const tarn__json_file *file, const char *path, const char *text, size_t length)
{
    tarn__output output;
    if (!tarn__output_open(&output, file->function, path))
        return false;
    if (tarn__output_write(&output, text, length))
        return tarn__output_commit(&output);
    tarn__output_discard(&output);
    return false;
}

/* 17 digits identify a double; the dump then shortens each to the fewest digits that still do. */
bool tarn__json_file_save(const tarn__json_file *file, const char *path)
{
    if (tarn_failed())
        return false;
    char *text = tarn__json_dump(file->root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    size_t length = text ? strlen(text) : 0;
    if (!text)
        return tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for '%s'", file->function, path);
    text[length++] = '\n'; /* overwrites the terminator: the length is known */
    if (json_object_get(file->root, "checksum"))
        tarn__json_checksum_put(text, length);
    bool good = write_text(file, path, text, length);
    free(text);
    return good;
}

bool tarn__json_file_add_checksum(tarn__json_file *file)
{
    return tarn__json_file_set_string(file, "checksum", TARN__JSON_CHECKSUM);
}

/* The checksum was computed when the file was parsed, over its bytes: the tree has lost their formatting. */
bool tarn__json_file_verify(const tarn__json_file *file, const char *advice)
{
    const tarn__json_checksum *sum = &file->sum;
    if (tarn_failed() || (sum->is_there && sum->stored == sum->computed))
        return !tarn_failed();
    if (!sum->is_there)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' is damaged: it has no \"checksum\"; %s", file->function,
                           file->name, advice);
    return tarn__raise(TARN_ERROR_FORMAT,
                       "%s: '%s' is damaged: its checksum is %016" PRIx64 ", but %016" PRIx64 " is stored; %s",
                       file->function, file->name, sum->computed, sum->stored, advice);
}

/* 9 digits identify a float: metrics are measured in f32, and lines stay short. */
bool tarn__json_file_append(const tarn__json_file *file, const char *path)
{
    if (tarn_failed())
        return false;
    char *text = tarn__json_dump(file->root, JSON_REAL_PRECISION(9));
    size_t length = text ? strlen(text) : 0;
    if (!text)
        return tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for '%s'", file->function, path);
    text[length] = '\n'; /* overwrites the terminator: the length is known */
    bool good = tarn__file_append(file->function, path, text, length + 1);
    free(text);
    return good;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* The value under a key with dots; NULL: none. With `create`, missing objects on the path are created. With `last`,
 * stops at the object of the key's last part and returns that part in *last. */
static json_t *follow(json_t *at, const char *key, bool create, const char **last)
{
    /* Keys are constants of the library: each part is shorter than 64 bytes, and no member's own name has a dot. */
    for (const char *dot; at && (dot = strchr(key, '.')); key = dot + 1) {
        char name[64];
        snprintf(name, sizeof(name), "%.*s", (int)(dot - key), key);
        json_t *next = json_object_get(at, name);
        if (!next && create && json_object_set_new(at, name, json_object()) == 0)
            next = json_object_get(at, name);
        at = next;
    }
    if (last) {
        *last = key;
        return at;
    }
    return key[0] ? json_object_get(at, key) : at;
}

/* Sets or appends a value and takes it. A NULL value means that jansson had no memory or the string was not UTF-8. */
static bool put(tarn__json_file *file, const char *key, json_t *value, bool append)
{
    const char *last;
    if (tarn_failed()) {
        json_decref(value);
        return false;
    }
    json_t *object = follow(file->root, key, true, &last), *array = append ? json_object_get(object, last) : NULL;
    if (append && !array && json_object_set_new(object, last, json_array()) == 0)
        array = json_object_get(object, last);
    if (value && (append ? json_array_append_new(array, value) : json_object_set_new(object, last, value)) == 0)
        return true;
    return tarn__raise(value ? TARN_ERROR_MEMORY : TARN_ERROR_ARGUMENT,
                       "%s: the value of '%s' is not valid UTF-8, or memory is exhausted", file->function, key);
}

/* JSON has no NaN and no infinity. */
static json_t *real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

bool tarn__json_file_set_string(tarn__json_file *file, const char *key, const char *text)
{
    return put(file, key, json_string(text), false);
}

bool tarn__json_file_set_int(tarn__json_file *file, const char *key, int64_t value)
{
    return put(file, key, json_integer(value), false);
}

bool tarn__json_file_set_real(tarn__json_file *file, const char *key, double value)
{
    return put(file, key, real(value), false);
}

bool tarn__json_file_set_bool(tarn__json_file *file, const char *key, bool value)
{
    return put(file, key, json_boolean(value), false);
}

bool tarn__json_file_add_string(tarn__json_file *file, const char *key, const char *text)
{
    return put(file, key, json_string(text), true);
}

bool tarn__json_file_add_int(tarn__json_file *file, const char *key, int64_t value)
{
    return put(file, key, json_integer(value), true);
}

bool tarn__json_file_add_real(tarn__json_file *file, const char *key, double value)
{
    return put(file, key, real(value), true);
}

/* Whole numbers as integers, as other programs write them. */
bool tarn__json_file_put_number(tarn__json_file *file, const char *key, const char *name, double value)
{
    json_t *object = tarn_failed() ? NULL : json_object_get(file->root, key);
    if (!object && !tarn_failed() && json_object_set_new(file->root, key, json_object()) == 0)
        object = json_object_get(file->root, key);
    bool is_whole = value == floor(value) && fabs(value) < 1e15;
    json_t *number = object ? is_whole ? json_integer((json_int_t)value) : real(value) : NULL;
    return (number && json_object_set_new(object, name, number) == 0) ||
           (!tarn_failed() && tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for '%s'", file->function, key));
}

bool tarn__json_file_add_pair(tarn__json_file *file, const char *key, const char *name, const char *text,
                              const char *other_name, const char *other_text)
{
    json_t *array = tarn_failed() ? NULL : json_object_get(file->root, key), *object = json_object();
    if (!array && !tarn_failed() && json_object_set_new(file->root, key, json_array()) == 0)
        array = json_object_get(file->root, key);
    bool good = array && json_object_set_new(object, name, json_string(text)) == 0 &&
                json_object_set_new(object, other_name, json_string(other_text)) == 0 &&
                json_array_append(array, object) == 0;
    json_decref(object);
    return good || (!tarn_failed() &&
                    tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has a string that is not UTF-8", file->function, key));
}

bool tarn__json_file_put_ints(tarn__json_file *file, const char *key, const char *name, const int64_t *values,
                              size_t count)
{
    json_t *array = tarn_failed() ? NULL : json_array(), *object = name ? json_object_get(file->root, key) : file->root;
    bool good = array != NULL;
    for (size_t i = 0; good && i < count; i++)
        good = json_array_append_new(array, json_integer((json_int_t)values[i])) == 0;
    if (good && !object && json_object_set_new(file->root, key, json_object()) == 0)
        object = json_object_get(file->root, key);
    if (good && object)
        good = json_object_set(object, name ? name : key, array) == 0;
    json_decref(array);
    return (good && object) ||
           (!tarn_failed() && tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for '%s'", file->function, key));
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

bool tarn__json_file_has(const tarn__json_file *file, const char *key)
{
    return follow(file->root, key, false, NULL) != NULL;
}

/* jansson has two types for true and false, and two for numbers. */
tarn__member_kind tarn__json_file_kind(const tarn__json_file *file, const char *key)
{
    const json_t *value = follow(file->root, key, false, NULL);
    if (!value)
        return TARN__MEMBER_MISSING;
    switch (json_typeof(value)) {
    case JSON_NULL: return TARN__MEMBER_NULL;
    case JSON_STRING: return TARN__MEMBER_STRING;
    case JSON_ARRAY: return TARN__MEMBER_ARRAY;
    case JSON_OBJECT: return TARN__MEMBER_OBJECT;
    case JSON_INTEGER:
    case JSON_REAL: return TARN__MEMBER_NUMBER;
    default: return TARN__MEMBER_BOOL;
    }
}

/* Raises an error about a member. Returns false. */
static bool raise_member(const tarn__json_file *file, const char *key, const char *problem)
{
    return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': \"%s\" %s", file->function, file->name, key, problem);
}

/* The value under a key, or with an index from 0, that element of its array. Borrowed. NULL with an error. */
static json_t *find(const tarn__json_file *file, const char *key, int64_t index)
{
    json_t *value = tarn_failed() ? NULL : follow(file->root, key, false, NULL);
    if (value && index >= 0)
        value = json_is_array(value) ? json_array_get(value, (size_t)index) : NULL;
    if (!value)
        raise_member(file, key, index < 0 ? "is missing" : "is not an array, or too short");
    return value;
}

/* A string, borrowed from the tree. */
static const char *string_of(const tarn__json_file *file, const char *key, int64_t index)
{
    json_t *value = find(file, key, index);
    if (value && !json_is_string(value))
        raise_member(file, key, "is not a string");
    return json_string_value(value);
}

/* An integer from low to high. 17.0 is not an integer: jansson keeps the two apart, and so do files that tarn
 * writes. */
static bool int_of(const tarn__json_file *file, const char *key, int64_t index, int64_t low, int64_t high,
                   int64_t *result)
{
    char problem[96];
    json_t *value = find(file, key, index);
    if (!value)
        return false;
    if (!json_is_integer(value))
        return raise_member(file, key, "is not an integer");
    *result = json_integer_value(value);
    if (*result >= low && *result <= high)
        return true;
    snprintf(problem, sizeof(problem), "is %" PRId64 "; it must be from %" PRId64 " to %" PRId64, *result, low, high);
    return raise_member(file, key, problem);
}

/* null reads as NaN: the counterpart of real(). */
static bool real_of(const tarn__json_file *file, const char *key, int64_t index, double *result)
{
    json_t *value = find(file, key, index);
    if (!value)
        return false;
    if (!json_is_number(value) && !json_is_null(value))
        return raise_member(file, key, "is not a number");
    *result = json_is_null(value) ? NAN : json_number_value(value);
    return true;
}

const char *tarn__json_file_string(const tarn__json_file *file, const char *key)
{
    return string_of(file, key, -1);
}

const char *tarn__json_file_string_at(const tarn__json_file *file, const char *key, size_t index)
{
    return string_of(file, key, (int64_t)index);
}

bool tarn__json_file_int(const tarn__json_file *file, const char *key, int64_t low, int64_t high, int64_t *value)
{
    return int_of(file, key, -1, low, high, value);
}

bool tarn__json_file_int_at(const tarn__json_file *file, const char *key, size_t index, int64_t low, int64_t high,
                            int64_t *value)
{
    return int_of(file, key, (int64_t)index, low, high, value);
}

bool tarn__json_file_real(const tarn__json_file *file, const char *key, double *value)
{
    return real_of(file, key, -1, value);
}

bool tarn__json_file_real_at(const tarn__json_file *file, const char *key, size_t index, double *value)
{
    return real_of(file, key, (int64_t)index, value);
}

/* Only true and false: 0 and 1 are numbers. */
bool tarn__json_file_bool(const tarn__json_file *file, const char *key, bool *value)
{
    json_t *found = find(file, key, -1);
    if (!found)
        return false;
    *value = json_is_true(found);
    return json_is_boolean(found) || raise_member(file, key, "is neither true nor false");
}

/* The bound keeps callers from allocating by a number in the file alone. */
bool tarn__json_file_count(const tarn__json_file *file, const char *key, size_t max, size_t *count)
{
    json_t *array = find(file, key, -1);
    if (!array)
        return false;
    *count = json_array_size(array);
    if (!json_is_array(array))
        return raise_member(file, key, "is not an array");
    return *count <= max || raise_member(file, key, "has too many elements");
}

/* ---- visiting members -------------------------------------------------------------------------------------------- */

/* Appends a value as an option is typed; arrays are comma-separated. False for objects, null, nested arrays and values
 * that do not fit. */
static bool append_text(char *text, size_t size, const json_t *value)
{
    size_t used = strlen(text), index;
    json_t *element;
    if (json_is_integer(value))
        snprintf(text + used, size - used, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text + used, size - used, "%s",
                 tarn__number_format(json_real_value(value), (char[TARN__NUMBER_SIZE]){0}));
    else if (json_is_boolean(value))
        snprintf(text + used, size - used, "%s", json_is_true(value) ? "true" : "false");
    else if (json_is_string(value) && strlen(json_string_value(value)) < size - used)
        snprintf(text + used, size - used, "%s", json_string_value(value));
    else if (json_is_array(value))
        json_array_foreach(value, index, element)
        {
            if (index && strlen(text) + 2 < size)
                strcat(text, ",");
            if (json_is_array(element) || !append_text(text, size, element))
                return false;
        }
    else
        return false;
    return strlen(text) + 1 < size;
}

bool tarn__json_file_ints(const tarn__json_file *file, const char *key, const char *name, size_t max, int64_t low,
                          int64_t high, int64_t **values, size_t *count)
{
    json_t *member = tarn_failed() ? NULL : json_object_get(file->root, key);
    const json_t *array = name ? json_object_get(member, name) : member;
    *values = NULL;
    *count = json_array_size(array);
    if (!json_is_array(array) || *count > max)
        return !tarn_failed() && raise_member(file, key, "is not an array of integers, or too long");
    if (*count && !(*values = tarn__alloc(sizeof(**values) * *count)))
        return false;
    for (size_t i = 0; i < *count; i++) {
        const json_t *value = json_array_get(array, i);
        int64_t number = json_is_integer(value) ? json_integer_value(value) : low - 1;
        (*values)[i] = number;
        if (number >= low && number <= high)
            continue;
        tarn__release(*values, sizeof(**values) * *count);
        *values = NULL;
        *count = 0;
        return raise_member(file, key, "has an element that is not an integer in range");
    }
    return true;
}

/* The values are passed as text, since visitors feed them to the option parser, which checks types and ranges. */
bool tarn__json_file_each(const tarn__json_file *file, const char *key, tarn__member_fn visit, void *ctx)
{
    json_t *object = key[0] ? find(file, key, -1) : file->root;
    if (!object || tarn_failed())
        return false;
    if (!json_is_object(object))
        return raise_member(file, key, "is not an object");
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        char text[MAX_VALUE] = "";
        if (!append_text(text, sizeof(text), value))
            return raise_member(file, name, "must be a number, string, bool or an array of these, and not too long");
        if (!visit(name, text, ctx))
            return false;
    }
    return true;
}

/* True for values that switch nothing on. */
static bool is_off(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* For configs of other programs: a member that is off may have any name, one that is on must be known. */
bool tarn__json_file_each_name(const tarn__json_file *file, const char *key, tarn__member_name_fn visit, void *ctx)
{
    json_t *object = key[0] ? find(file, key, -1) : file->root;
    if (!object || tarn_failed())
        return false;
    if (!json_is_object(object))
        return raise_member(file, key, "is not an object");
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        if (!visit(name, is_off(value), ctx))
            return false;
    }
    return true;
}
