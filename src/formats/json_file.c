/* json_file.c: small JSON files, on jansson. */
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
#include "formats/json_checksum.h"
#include "formats/json_dump.h"

#define LONGEST ((size_t)64 << 20) /* bytes of a file of settings */
#define LONGEST_VALUE 2048         /* bytes of a member's value as text */

struct tarn__json_file {
    const char *function; /* borrowed */
    char *name;           /* of the file, for errors; owned */
    json_t *root;
    tarn__json_checksum sum; /* of the text that it comes from */
};

/* ---- coming and going -------------------------------------------------------------------------------------------- */

/* Takes the root, on failure too; NULL: jansson had no memory. */
static tarn__json_file *wrap(const char *function, const char *name, json_t *root)
{
    tarn__json_file *document = root ? tarn__alloc(sizeof(*document)) : NULL;
    if (document)
        *document = (tarn__json_file){.function = function, .name = tarn__string_copy(name), .root = root};
    else
        json_decref(root);
    if (document && document->name)
        return document;
    tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for '%s'", function, name);
    tarn__json_file_free(document);
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
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (root && json_is_object(root)) {
        tarn__json_file *document = wrap(function, name, root);
        if (document)
            document->sum = tarn__json_checksum_of(text, length);
        return document;
    }
    if (root)
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' holds JSON, but no object", function, name);
    else if (tarn__not_recognized(function, name, text, length, "JSON file"))
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s', line %d, column %d: %s", function, name, error.line, error.column,
                    error.text);
    json_decref(root);
    return NULL;
}

tarn__json_file *tarn__json_file_open(const char *function, const char *path)
{
    tarn__map map;
    if (tarn_failed() || !tarn__map_open(&map, function, path))
        return NULL;
    tarn__json_file *document = NULL;
    if (map.bytes > LONGEST)
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' has %zu bytes; a file of settings has at most %zu", function, path,
                    map.bytes, LONGEST);
    else
        document = tarn__json_file_parse(function, path, map.bytes ? map.memory : "", map.bytes);
    tarn__map_close(&map);
    return document;
}

void tarn__json_file_free(tarn__json_file *document)
{
    if (!document)
        return;
    json_decref(document->root);
    tarn__string_free(document->name);
    tarn__release(document, sizeof(*document));
}

static bool write_text(const tarn__json_file *document, const char *path, const char *text, size_t length)
{
    tarn__output output;
    if (!tarn__output_open(&output, document->function, path))
        return false;
    if (tarn__output_write(&output, text, length))
        return tarn__output_commit(&output);
    tarn__output_discard(&output);
    return false;
}

bool tarn__json_file_save(const tarn__json_file *document, const char *path)
{
    if (tarn_failed())
        return false;
    char *text = tarn__json_dump(document->root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    size_t length = text ? strlen(text) : 0;
    if (!text)
        return tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for '%s'", document->function, path);
    text[length++] = '\n'; /* in place of its end, which is not needed */
    if (json_object_get(document->root, "checksum"))
        tarn__json_checksum_put(text, length);
    bool good = write_text(document, path, text, length);
    free(text);
    return good;
}

bool tarn__json_file_add_checksum(tarn__json_file *document)
{
    return tarn__json_file_set_string(document, "checksum", TARN__JSON_CHECKSUM);
}

bool tarn__json_file_verify(const tarn__json_file *document, const char *advice)
{
    const tarn__json_checksum *sum = &document->sum;
    if (tarn_failed() || (sum->is_there && sum->stored == sum->computed))
        return !tarn_failed();
    if (!sum->is_there)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' is damaged: it has no \"checksum\"; %s", document->function,
                           document->name, advice);
    return tarn__raise(TARN_ERROR_FORMAT,
                       "%s: '%s' is damaged: its checksum is %016" PRIx64 ", but %016" PRIx64 " is stored; %s",
                       document->function, document->name, sum->computed, sum->stored, advice);
}

bool tarn__json_file_append(const tarn__json_file *document, const char *path)
{
    if (tarn_failed())
        return false;
    char *text = tarn__json_dump(document->root, JSON_REAL_PRECISION(9));
    size_t length = text ? strlen(text) : 0;
    if (!text)
        return tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory for '%s'", document->function, path);
    text[length] = '\n'; /* in place of its end, which is not needed */
    bool good = tarn__file_append(document->function, path, text, length + 1);
    free(text);
    return good;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* The value under a key with dots; NULL: there is none. With `make`, objects on the way are made; then *last is what
 * remains of the key. */
static json_t *follow(json_t *at, const char *key, bool make, const char **last)
{
    for (const char *dot; at && (dot = strchr(key, '.')); key = dot + 1) {
        char part[64];
        snprintf(part, sizeof(part), "%.*s", (int)(dot - key), key);
        json_t *next = json_object_get(at, part);
        if (!next && make && json_object_set_new(at, part, json_object()) == 0)
            next = json_object_get(at, part);
        at = next;
    }
    if (last) {
        *last = key;
        return at;
    }
    return key[0] ? json_object_get(at, key) : at;
}

/* Takes the value; NULL: there was no memory, or the text was not UTF-8. */
static bool put(tarn__json_file *document, const char *key, json_t *value, bool append)
{
    const char *last;
    if (tarn_failed()) {
        json_decref(value);
        return false;
    }
    json_t *object = follow(document->root, key, true, &last), *list = append ? json_object_get(object, last) : NULL;
    if (append && !list && json_object_set_new(object, last, json_array()) == 0)
        list = json_object_get(object, last);
    if (value && (append ? json_array_append_new(list, value) : json_object_set_new(object, last, value)) == 0)
        return true;
    return tarn__raise(value ? TARN_ERROR_MEMORY : TARN_ERROR_ARGUMENT,
                       "%s: the value of '%s' is no valid UTF-8, or there is no memory for it", document->function,
                       key);
}

static json_t *real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

bool tarn__json_file_set_string(tarn__json_file *document, const char *key, const char *text)
{
    return put(document, key, json_string(text), false);
}

bool tarn__json_file_set_int(tarn__json_file *document, const char *key, int64_t value)
{
    return put(document, key, json_integer(value), false);
}

bool tarn__json_file_set_real(tarn__json_file *document, const char *key, double value)
{
    return put(document, key, real(value), false);
}

bool tarn__json_file_set_bool(tarn__json_file *document, const char *key, bool value)
{
    return put(document, key, json_boolean(value), false);
}

bool tarn__json_file_add_string(tarn__json_file *document, const char *key, const char *text)
{
    return put(document, key, json_string(text), true);
}

bool tarn__json_file_add_int(tarn__json_file *document, const char *key, int64_t value)
{
    return put(document, key, json_integer(value), true);
}

bool tarn__json_file_add_real(tarn__json_file *document, const char *key, double value)
{
    return put(document, key, real(value), true);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

bool tarn__json_file_has(const tarn__json_file *document, const char *key)
{
    return follow(document->root, key, false, NULL) != NULL;
}

tarn__member_kind tarn__json_file_kind(const tarn__json_file *document, const char *key)
{
    const json_t *value = follow(document->root, key, false, NULL);
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

/* Raises what is wrong with a key. Is false. */
static bool wrong(const tarn__json_file *document, const char *key, const char *problem)
{
    return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': \"%s\" %s", document->function, document->name, key, problem);
}

/* The value under a key, or element `index` of the list there; NULL with an error. An index of -1 is none. */
static json_t *find(const tarn__json_file *document, const char *key, int64_t index)
{
    json_t *value = tarn_failed() ? NULL : follow(document->root, key, false, NULL);
    if (value && index >= 0)
        value = json_is_array(value) ? json_array_get(value, (size_t)index) : NULL;
    if (!value)
        wrong(document, key, index < 0 ? "is missing" : "is no list, or too short a one");
    return value;
}

static const char *text_of(const tarn__json_file *document, const char *key, int64_t index)
{
    json_t *value = find(document, key, index);
    if (value && !json_is_string(value))
        wrong(document, key, "is no text");
    return json_string_value(value);
}

static bool whole_of(const tarn__json_file *document, const char *key, int64_t index, int64_t low, int64_t high,
                     int64_t *result)
{
    char problem[96];
    json_t *value = find(document, key, index);
    if (!value)
        return false;
    if (!json_is_integer(value))
        return wrong(document, key, "is no whole number");
    *result = json_integer_value(value);
    if (*result >= low && *result <= high)
        return true;
    snprintf(problem, sizeof(problem), "is %" PRId64 ", which is outside %" PRId64 " to %" PRId64, *result, low, high);
    return wrong(document, key, problem);
}

static bool real_of(const tarn__json_file *document, const char *key, int64_t index, double *result)
{
    json_t *value = find(document, key, index);
    if (!value)
        return false;
    if (!json_is_number(value) && !json_is_null(value))
        return wrong(document, key, "is no number");
    *result = json_is_null(value) ? NAN : json_number_value(value);
    return true;
}

const char *tarn__json_file_string(const tarn__json_file *document, const char *key)
{
    return text_of(document, key, -1);
}

const char *tarn__json_file_string_at(const tarn__json_file *document, const char *key, size_t index)
{
    return text_of(document, key, (int64_t)index);
}

bool tarn__json_file_int(const tarn__json_file *document, const char *key, int64_t low, int64_t high, int64_t *value)
{
    return whole_of(document, key, -1, low, high, value);
}

bool tarn__json_file_int_at(const tarn__json_file *document, const char *key, size_t index, int64_t low, int64_t high,
                            int64_t *value)
{
    return whole_of(document, key, (int64_t)index, low, high, value);
}

bool tarn__json_file_real(const tarn__json_file *document, const char *key, double *value)
{
    return real_of(document, key, -1, value);
}

bool tarn__json_file_real_at(const tarn__json_file *document, const char *key, size_t index, double *value)
{
    return real_of(document, key, (int64_t)index, value);
}

bool tarn__json_file_bool(const tarn__json_file *document, const char *key, bool *value)
{
    json_t *found = find(document, key, -1);
    if (!found)
        return false;
    *value = json_is_true(found);
    return json_is_boolean(found) || wrong(document, key, "is neither true nor false");
}

bool tarn__json_file_count(const tarn__json_file *document, const char *key, size_t most, size_t *count)
{
    json_t *list = find(document, key, -1);
    if (!list)
        return false;
    *count = json_array_size(list);
    if (!json_is_array(list))
        return wrong(document, key, "is no list");
    return *count <= most || wrong(document, key, "is too long a list");
}

/* ---- members as text --------------------------------------------------------------------------------------------- */

/* Appends a value as it would be typed; false where it has no such form. */
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

bool tarn__json_file_each(const tarn__json_file *document, const char *key, tarn__member_fn visit, void *ctx)
{
    json_t *object = key[0] ? find(document, key, -1) : document->root;
    if (!object || tarn_failed())
        return false;
    if (!json_is_object(object))
        return wrong(document, key, "is no object");
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        char text[LONGEST_VALUE] = "";
        if (!append_text(text, sizeof(text), value))
            return wrong(document, name,
                         "is neither a number, a text, true or false, nor a list of these, or it is too long");
        if (!visit(name, text, ctx))
            return false;
    }
    return true;
}

/* True for what asks for nothing. */
static bool is_off(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

bool tarn__json_file_each_name(const tarn__json_file *document, const char *key, tarn__member_name_fn visit, void *ctx)
{
    json_t *object = key[0] ? find(document, key, -1) : document->root;
    if (!object || tarn_failed())
        return false;
    if (!json_is_object(object))
        return wrong(document, key, "is no object");
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        if (!visit(name, is_off(value), ctx))
            return false;
    }
    return true;
}
