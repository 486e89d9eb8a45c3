/* body.c: members of a request's body.
 *
 * Names that were read are literals of the callers, so the list of them borrows. More than fit would be refused as
 * unknown, which the test of the document would show. */
#include "serve/api/body.h"

#include <math.h>
#include <string.h>

static void mark_read(tarn__body *f, const char *name)
{
    if (f->read_count < TARN__BODY_READ_MAX)
        f->read[f->read_count++] = name;
}

json_t *tarn__body_member(tarn__body *f, const char *name)
{
    json_t *value = json_object_get(f->object, name);
    mark_read(f, name);
    return json_is_null(value) ? NULL : value;
}

bool tarn__body_bool(tarn__body *f, const char *name, bool *value)
{
    json_t *found = tarn__body_member(f, name);
    if (found && !json_is_boolean(found))
        return tarn__api_refuse(f->error, 400, NULL, name, "%s must be true or false", name);
    if (found)
        *value = json_is_true(found);
    return true;
}

/* 4.0 is an integer, as some clients write it; doubles beyond 9e15 no longer have every integer. */
bool tarn__body_int(tarn__body *f, const char *name, int64_t low, int64_t high, int64_t *value)
{
    json_t *found = tarn__body_member(f, name);
    if (!found)
        return true;
    double real = json_number_value(found);
    bool is_int = json_is_integer(found) || (json_is_real(found) && fabs(real) < 9e15 && real == floor(real));
    int64_t given = json_is_integer(found) ? (int64_t)json_integer_value(found) : (int64_t)(is_int ? real : 0);
    if (!is_int || given < low || given > high)
        return tarn__api_refuse(f->error, 400, NULL, name, "%s must be an integer from %lld to %lld", name,
                                (long long)low, (long long)high);
    *value = given;
    return true;
}

bool tarn__body_real(tarn__body *f, const char *name, double low, double high, double *value)
{
    json_t *found = tarn__body_member(f, name);
    if (!found)
        return true;
    double given = json_number_value(found);
    if (!json_is_number(found) || !(given >= low && given <= high))
        return tarn__api_refuse(f->error, 400, NULL, name, "%s must be a number from %g to %g", name, low, high);
    *value = given;
    return true;
}

bool tarn__body_string(tarn__body *f, const char *name, const char **value, size_t *length)
{
    json_t *found = tarn__body_member(f, name);
    if (found && !json_is_string(found))
        return tarn__api_refuse(f->error, 400, NULL, name, "%s must be a string", name);
    if (found) {
        *value = json_string_value(found);
        *length = json_string_length(found);
    }
    return true;
}

void tarn__body_skip(tarn__body *f, const char *name)
{
    mark_read(f, name);
}

/* True for values that ask for nothing. Clients often send every member they know, with its default. */
static bool is_neutral(const json_t *value)
{
    return json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

bool tarn__body_unsupported(tarn__body *f, const char *name)
{
    json_t *found = tarn__body_member(f, name);
    return !found || is_neutral(found) ||
           tarn__api_refuse(f->error, 400, "unsupported_parameter", name, "%s is not supported", name);
}

/* A misspelt member would change nothing without a word, so it is refused. Null is what clients send for absent. */
bool tarn__body_end(tarn__body *f)
{
    const char *name;
    json_t *value;
    json_object_foreach(f->object, name, value)
    {
        bool was_read = json_is_null(value);
        for (int i = 0; i < f->read_count && !was_read; i++)
            was_read = strcmp(f->read[i], name) == 0;
        if (!was_read) {
            const char *near = tarn_suggest(name, f->read, f->read_count);
            return tarn__api_refuse(f->error, 400, "unknown_parameter", name, "unknown field '%.60s'%s%s%s", name,
                                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
        }
    }
    return true;
}
