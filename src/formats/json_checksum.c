/* json_checksum.c: a JSON file's own checksum. It is searched in the bytes, not in the parsed tree: whitespace is
 * covered too, and a file that another program reformatted no longer matches. */
#include "formats/json_checksum.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/xxh64.h"

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
