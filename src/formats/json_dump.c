/* json_dump.c: shortens the reals in jansson's output, which have a fixed number of digits. Works on the text: outside
 * of strings a token that begins with a digit or a minus is a number. */
#include "formats/json_dump.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/number_format.h"

/* Copies a string with its quotes; returns the byte after it. A backslash escapes the next byte, so that \" ends
 * nothing. */
static const char *copy_string(const char *from, char **to)
{
    *(*to)++ = *from++;
    for (bool ends = false; !ends; from++) {
        ends = *from == '"';
        if (*from == '\\')
            *(*to)++ = *from++;
        *(*to)++ = *from;
    }
    return from;
}

/* Copies a number, reals in their shortest form; returns the byte after it. */
static const char *copy_number(const char *from, char **to)
{
    size_t length = strspn(from, "+-.0123456789eE");
    char own[TARN__NUMBER_SIZE * 2], text[TARN__NUMBER_SIZE];
    bool is_real = length < sizeof(own) && (memchr(from, '.', length) || memchr(from, 'e', length));
    memcpy(own, from, length < sizeof(own) ? length : 0);
    own[length < sizeof(own) ? length : 0] = 0;
    const char *shown = is_real ? tarn__number_format(tarn__number_parse(own), text) : from;
    size_t count = is_real ? strlen(shown) : length;
    memcpy(*to, shown, count);
    *to += count;
    return from + length;
}

/* Copies jansson's output token by token. Strings are skipped as a whole, so that digits inside them stay. */
char *tarn__json_dump(const json_t *root, size_t flags)
{
    char *text = json_dumps(root, flags);
    char *shorter = text ? malloc(2 * strlen(text) + 1) : NULL, *to = shorter;
    for (const char *from = text; shorter && *from;) {
        if (*from == '"')
            from = copy_string(from, &to);
        else if (*from == '-' || (*from >= '0' && *from <= '9'))
            from = copy_number(from, &to);
        else
            *to++ = *from++;
    }
    if (shorter)
        *to = 0;
    free(text);
    return shorter;
}
