/* json.c: the JSON writer: streams to a FILE, without a tree in memory.
 *
 * The caller pairs brackets; commas follow from `follows`. Strings are valid UTF-8 and harmless on a terminal, whatever
 * the input: JSON itself would allow control characters beyond ASCII. */
#include "cli/cli.h"

#include <math.h>
#include <string.h>

/* Writes one code point; 0 bytes is invalid UTF-8. JSON allows DEL, C1 controls and bidirectional marks verbatim, but a
 * terminal would obey them, so they are escaped too. */
static void write_character(FILE *to, const char *text, size_t bytes)
{
    char shown[8]; /* the code point, or \uNNNN */
    unsigned char c = (unsigned char)*text;
    if (bytes == 0)
        fputs("\\ufffd", to);
    else if (c < 0x20 || c == 0x7F)
        fprintf(to, "\\u%04x", c);
    else if (c == '"' || c == '\\')
        fprintf(to, "\\%c", c);
    else if (tarn_string_escape(shown, sizeof(shown), text, bytes, false) > 0)
        fputs(shown, to);
}

static void write_text(FILE *to, const char *text, size_t length)
{
    fputc('"', to);
    for (size_t at = 0, bytes; at < length; at += bytes ? bytes : 1) {
        bytes = tarn__utf8_bytes(text + at, length - at);
        write_character(to, text + at, bytes);
    }
    fputc('"', to);
}

/* Comma and key of the next member. `key` is NULL in an array, and for the outermost object. */
static void begin(tarn__json *json, const char *key)
{
    if (json->follows)
        fputs(", ", json->to);
    json->follows = true;
    if (key) {
        write_text(json->to, key, strlen(key));
        fputs(": ", json->to);
    }
}

void tarn__json_open(tarn__json *json, const char *key, char bracket)
{
    begin(json, key);
    fputc(bracket, json->to);
    json->follows = false;
}

void tarn__json_close(tarn__json *json, char bracket)
{
    fputc(bracket, json->to);
    json->follows = true;
}

/* An object per line, flushed: a reader of the pipe sees each as soon as it is complete. */
void tarn__json_end(tarn__json *json)
{
    tarn__json_close(json, '}');
    fputc('\n', json->to);
    fflush(json->to);
    json->follows = false;
}

void tarn__json_string(tarn__json *json, const char *key, const char *text)
{
    begin(json, key);
    if (text)
        write_text(json->to, text, strlen(text));
    else
        fputs("null", json->to);
}

/* 0: not the beginning of a character, by the table of well-formed sequences of the Unicode standard. */
size_t tarn__utf8_bytes(const char *text, size_t length)
{
    const unsigned char *c = (const unsigned char *)text;
    if (length == 0)
        return 0;
    size_t bytes = c[0] < 0x80                   ? 1
                   : c[0] >= 0xC2 && c[0] < 0xE0 ? 2
                   : c[0] >> 4 == 14             ? 3
                   : c[0] >= 0xF0 && c[0] < 0xF5 ? 4
                                                 : 0;
    bool good = bytes > 0 && bytes <= length;
    for (size_t i = 1; good && i < bytes; i++)
        good = c[i] >> 6 == 2;
    /* overlong forms, surrogates, and code points above U+10FFFF */
    if (!good || (c[0] == 0xE0 && c[1] < 0xA0) || (c[0] == 0xED && c[1] > 0x9F) || (c[0] == 0xF0 && c[1] < 0x90) ||
        (c[0] == 0xF4 && c[1] > 0x8F))
        return 0;
    return bytes;
}

void tarn__json_bytes(tarn__json *json, const char *key, const char *text, size_t length)
{
    begin(json, key);
    write_text(json->to, text, length);
}

void tarn__json_int(tarn__json *json, const char *key, int64_t number)
{
    begin(json, key);
    fprintf(json->to, "%lld", (long long)number);
}

/* JSON has neither NaN nor infinity: null. 0.5000 with four digits is 0.5, and 2.0000 is 2.0. */
void tarn__json_real(tarn__json *json, const char *key, double number, int digits)
{
    /* a double has up to 309 digits before the point */
    char text[400];
    begin(json, key);
    if (!isfinite(number)) {
        fputs("null", json->to);
        return;
    }
    int length = snprintf(text, sizeof(text), "%.*f", digits, number);
    /* at least one digit stays after the point */
    while (digits > 0 && length > 2 && text[length - 1] == '0' && text[length - 2] >= '0' && text[length - 2] <= '9')
        text[--length] = 0;
    fputs(text, json->to);
}

/* By significant digits, for numbers of any magnitude; 17 bring every double back. */
void tarn__json_precise(tarn__json *json, const char *key, double number, int digits)
{
    begin(json, key);
    if (isfinite(number))
        fprintf(json->to, "%.*g", digits, number);
    else
        fputs("null", json->to);
}

void tarn__json_bool(tarn__json *json, const char *key, bool value)
{
    begin(json, key);
    fputs(value ? "true" : "false", json->to);
}

void tarn__json_null(tarn__json *json, const char *key)
{
    begin(json, key);
    fputs("null", json->to);
}

void tarn__json_shape(tarn__json *json, const char *key, tarn_shape shape)
{
    tarn__json_open(json, key, '[');
    for (int i = 0; i < shape.rank; i++)
        tarn__json_int(json, NULL, shape.size[i]);
    tarn__json_close(json, ']');
}
