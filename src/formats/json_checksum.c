/* json_checksum.c: a JSON file's own checksum, found in its text: where white space stands counts too. */
#include "formats/json_checksum.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/xxh64.h"

#define HEAD "\"checksum\": \"xxh64:"
enum { DIGITS = 16 };

/* Where the digits begin; 0: there are none. */
static size_t find_digits(const char *text, size_t length)
{
    const size_t head = strlen(HEAD);
    for (size_t at = 0; at + head + DIGITS <= length; at++)
        if (text[at] == '"' && memcmp(text + at, HEAD, head) == 0)
            return at + head;
    return 0;
}

static uint64_t sum_around(const char *text, size_t length, size_t digits)
{
    tarn__xxh64 sum;
    tarn__xxh64_begin(&sum);
    tarn__xxh64_add(&sum, text, digits);
    tarn__xxh64_add(&sum, "0000000000000000", DIGITS);
    tarn__xxh64_add(&sum, text + digits + DIGITS, length - digits - DIGITS);
    return tarn__xxh64_end(&sum);
}

void tarn__json_checksum_put(char *text, size_t length)
{
    char value[DIGITS + 1];
    size_t digits = find_digits(text, length);
    if (digits == 0)
        return;
    snprintf(value, sizeof(value), "%016" PRIx64, sum_around(text, length, digits));
    memcpy(text + digits, value, DIGITS);
}

tarn__json_checksum tarn__json_checksum_of(const char *text, size_t length)
{
    static const char digit[] = "0123456789abcdef";
    size_t digits = find_digits(text, length);
    tarn__json_checksum sum = {.is_there = digits > 0};
    if (digits == 0)
        return sum;
    sum.computed = sum_around(text, length, digits);
    for (size_t i = 0; i < DIGITS; i++) {
        const char *found = text[digits + i] ? strchr(digit, text[digits + i]) : NULL;
        if (!found) { /* no checksum is its own complement */
            sum.stored = ~sum.computed;
            return sum;
        }
        sum.stored = sum.stored << 4 | (uint64_t)(found - digit);
    }
    return sum;
}
