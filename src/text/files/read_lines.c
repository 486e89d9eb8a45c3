/* read_lines.c: the text in a line of JSON. */
#include <jansson.h>

#include "base/error.h"
#include "text/shards/documents.h"

bool tarn__jsonl_text(const char *function, tarn__buffer *text, const char *line, size_t length, const char *field,
                      const char *path, int64_t number)
{
    json_error_t error;
    json_t *root = json_loadb(line, length, JSON_ALLOW_NUL, &error), *found = json_object_get(root, field);
    bool good = false;
    if (!root)
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s', line %lld, column %d: %s", function, path, (long long)number,
                    error.column, error.text);
    else if (!json_is_string(found))
        tarn__raise(TARN_ERROR_FORMAT, "%s: '%s', line %lld: no object with a text under \"%.100s\"", function, path,
                    (long long)number, field);
    else
        good = tarn__buffer_add(text, json_string_value(found), json_string_length(found), 1);
    json_decref(root);
    return good;
}
