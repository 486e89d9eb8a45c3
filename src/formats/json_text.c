/* json_text.c: what is done to the text of a JSON file.
 *
 * Reals in jansson's output have a fixed number of digits and are shortened: outside of strings a token that begins
 * with a digit or a minus is a number. The checksum is searched in the bytes, not in the parsed tree: whitespace is
 * covered too, and a file that another program reformatted no longer matches. */
#include "formats/json_text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number_format.h"
#include "base/xxh64.h"

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

/* ---- a file's own checksum --------------------------------------------------------------------------------------- */

#define MEMBER "\"checksum\": \"xxh64:"
enum { DIGITS = 16 };

/* Offset of the digits; 0: no checksum. No string can contain the member's text: its quotes would be escaped. */
static size_t find_digits(const char *text, size_t length)
{
    const size_t member = strlen(MEMBER);
    for (size_t at = 0; at + member + DIGITS <= length; at++)
        if (text[at] == '"' && memcmp(text + at, MEMBER, member) == 0)
            return at + member;
    return 0;
}

/* xxh64 of the bytes with zeros in place of the digits. */
static uint64_t checksum_without(const char *text, size_t length, size_t digits)
{
    tarn__xxh64 sum;
    tarn__xxh64_begin(&sum);
    tarn__xxh64_add(&sum, text, digits);
    tarn__xxh64_add(&sum, "0000000000000000", DIGITS);
    tarn__xxh64_add(&sum, text + digits + DIGITS, length - digits - DIGITS);
    return tarn__xxh64_end(&sum);
}

/* In place: the placeholder has as many digits as the checksum, so no byte moves. */
void tarn__json_checksum_put(char *text, size_t length)
{
    char value[DIGITS + 1];
    size_t digits = find_digits(text, length);
    if (digits == 0)
        return;
    snprintf(value, sizeof(value), "%016" PRIx64, checksum_without(text, length, digits));
    memcpy(text + digits, value, DIGITS);
}

tarn__json_checksum tarn__json_checksum_of(const char *text, size_t length)
{
    static const char digit[] = "0123456789abcdef";
    size_t digits = find_digits(text, length);
    tarn__json_checksum sum = {.is_there = digits > 0};
    if (digits == 0)
        return sum;
    sum.computed = checksum_without(text, length, digits);
    for (size_t i = 0; i < DIGITS; i++) {
        const char *found = text[digits + i] ? strchr(digit, text[digits + i]) : NULL;
        if (!found) { /* damaged digits: a value that cannot match */
            sum.stored = ~sum.computed;
            return sum;
        }
        sum.stored = sum.stored << 4 | (uint64_t)(found - digit);
    }
    return sum;
}
