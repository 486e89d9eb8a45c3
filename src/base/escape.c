/* escape.c: strings from outside (names in files, names of files) as they may be printed. The one place that decides
 * which characters a terminal would obey, or that would make one line look like another. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <tarn/base.h>

#include "base/utf8.h"

/* A decoded code point; `bytes` is 0 where the text is not valid UTF-8. */
typedef struct code_point {
    uint32_t code;
    size_t bytes;
} code_point;

static code_point read_code_point(const char *text, size_t length)
{
    char copy[5] = {0}; /* terminated: the string may end inside a code point */
    memcpy(copy, text, length < 4 ? length : 4);
    code_point c = {(unsigned char)copy[0], tarn__utf8_code_point_bytes(copy)};
    if (c.bytes > 1)
        c.code &= 0x7Fu >> c.bytes;
    for (size_t i = 1; i < c.bytes; i++)
        c.code = c.code << 6 | ((unsigned char)copy[i] & 0x3Fu);
    return c;
}

/* Control characters (C0, DEL, C1), line and paragraph separators, and bidirectional formatting characters. */
static bool is_unsafe(uint32_t code)
{
    return code < 0x20 || (code >= 0x7F && code <= 0x9F) || code == 0x61C || code == 0x200E || code == 0x200F ||
           (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

/* Writes one code point as it is shown; returns the bytes, at most 6. Unsafe and invalid bytes become \n, \t, \r,
 * \xHH or \uHHHH. */
static size_t show(code_point c, const char *at, bool keep_lines, char *shown)
{
    if ((c.code == '\n' || c.code == '\t') && keep_lines)
        return (size_t)snprintf(shown, 8, "%c", (int)c.code);
    if (c.code == '\n' || c.code == '\t' || c.code == '\r')
        return (size_t)snprintf(shown, 8, "\\%c", c.code == '\n' ? 'n' : c.code == '\t' ? 't' : 'r');
    if (c.bytes < 2 && (c.bytes == 0 || is_unsafe(c.code)))
        return (size_t)snprintf(shown, 8, "\\x%02x", (unsigned char)*at);
    if (is_unsafe(c.code))
        return (size_t)snprintf(shown, 8, "\\u%04x", (unsigned)c.code);
    memcpy(shown, at, c.bytes);
    return c.bytes;
}

/* Like snprintf(): returns the bytes the whole result needs, writes as many whole code points as fit, and
 * terminates. */
size_t tarn_string_escape(char *to, size_t size, const char *text, size_t length, bool keep_lines)
{
    size_t all = 0, used = 0;
    size = to ? size : 0;
    bool fits = size > 0;
    for (size_t i = 0; text && i < length;) {
        char shown[8];
        code_point c = read_code_point(text + i, length - i);
        size_t bytes = show(c, text + i, keep_lines, shown);
        fits = fits && used + bytes < size;
        if (fits) {
            memcpy(to + used, shown, bytes);
            used += bytes;
        }
        all += bytes;
        i += c.bytes ? c.bytes : 1;
    }
    if (size > 0)
        to[used] = 0;
    return all;
}
