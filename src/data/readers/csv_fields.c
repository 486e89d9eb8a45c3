/* csv_fields.c: cuts a CSV file into fields (RFC 4180), and converts fields to numbers. A quote within quotes is
 * doubled; lines end in \n or \r\n; a quoted field may contain delimiters and line ends. One byte of lookahead decides
 * everything, so a file of any size is read through one buffer. */
#include "data/readers/csv_fields.h"

#include <locale.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { END_OF_FILE = -1, FAILED = -2 };

bool tarn__csv_raise(const tarn__csv *csv, const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: line %lld, column %lld: %s", csv->input->function, csv->input->path,
                       (long long)csv->line, (long long)csv->column, text);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Peeks at the next byte; END_OF_FILE or FAILED. */
static int peek(tarn__csv *csv)
{
    if (csv->next < csv->have)
        return (unsigned char)csv->buffer[csv->next];
    int64_t got = tarn__data_input_read_some(csv->input, csv->buffer, TARN__CSV_BUFFER_BYTES);
    csv->next = 0;
    csv->have = got > 0 ? (size_t)got : 0;
    return got > 0 ? (unsigned char)csv->buffer[0] : got == 0 ? END_OF_FILE : FAILED;
}

/* Reads the next byte; END_OF_FILE or FAILED. */
static int next_byte(tarn__csv *csv)
{
    int c = peek(csv);
    if (c >= 0)
        csv->next++;
    if (c == '\n')
        csv->lines_read++;
    return c;
}

/* A byte order mark, as spreadsheets write it, is skipped. */
bool tarn__csv_begin(tarn__csv *csv, tarn__data_input *input)
{
    *csv =
        (tarn__csv){.input = input, .delimiter = ',', .max_field = TARN__CSV_FIELD_BYTES, .after = TARN__CSV_LINE_END};
    if (peek(csv) == FAILED)
        return false;
    if (csv->have >= 3 && memcmp(csv->buffer, "\xEF\xBB\xBF", 3) == 0)
        csv->next = 3;
    return true;
}

/* After a delimiter one more field follows, even at the end of the file: it is empty. */
bool tarn__csv_at_end(tarn__csv *csv)
{
    return csv->after != TARN__CSV_DELIMITER && peek(csv) < 0;
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

/* Appends a byte to the current field. */
static bool add(tarn__csv *csv, int c)
{
    if (c == 0)
        return tarn__csv_bad(csv, "a zero byte; this is not a text file");
    if (csv->length == csv->max_field - 1)
        return tarn__csv_bad(csv, "a field of more than %zu bytes; is a quote missing?", csv->max_field - 1);
    csv->text[csv->length++] = (char)c;
    return true;
}

/* Reads a quoted field after its opening quote. */
static bool read_quoted(tarn__csv *csv)
{
    csv->was_quoted = true;
    for (;;) {
        int c = next_byte(csv);
        if (c == FAILED)
            return false;
        if (c == END_OF_FILE)
            return tarn__csv_bad(csv, "the file ends inside quotes");
        if (c == '"' && peek(csv) != '"')
            return true;
        if (c == '"')
            next_byte(csv);
        if (!add(csv, c))
            return false;
    }
}

/* Consumes the delimiter, line end or file end after a field, if there is one, and records which it was. */
static bool field_ends(tarn__csv *csv)
{
    int c = peek(csv);
    if (c == (unsigned char)csv->delimiter) {
        csv->after = TARN__CSV_DELIMITER;
    } else if (c == '\n') {
        csv->after = TARN__CSV_LINE_END;
    } else if (c == END_OF_FILE) {
        csv->after = TARN__CSV_FILE_END;
        return true;
    } else {
        return false;
    }
    next_byte(csv);
    return true;
}

/* "a","b ""c""" are the fields a and b "c". The field is terminated, and good until the next call. */
bool tarn__csv_field(tarn__csv *csv)
{
    csv->column = csv->after == TARN__CSV_DELIMITER ? csv->column + 1 : 1;
    csv->line = csv->lines_read + 1;
    csv->length = 0;
    csv->was_quoted = csv->is_row_broken = false;
    if (peek(csv) == '"') {
        next_byte(csv);
        if (!read_quoted(csv))
            return false;
    }
    while (!field_ends(csv)) {
        int c = next_byte(csv);
        if (c == FAILED)
            return false;
        if (c == '\r' && (peek(csv) == '\n' || peek(csv) == END_OF_FILE)) /* a line ends in \r\n */
            continue;
        if (csv->was_quoted || (c == '"' && !csv->has_literal_quotes)) {
            csv->is_row_broken = true;
            return tarn__csv_bad(csv, "%s",
                                 csv->was_quoted ? "text follows the closing quote"
                                                 : "a quote inside a field that does not begin with one");
        }
        if (!add(csv, c))
            return false;
    }
    csv->text[csv->length] = 0;
    return true;
}

/* Of a broken row: quotes are not looked at, as one of them broke it. */
bool tarn__csv_skip_line(tarn__csv *csv)
{
    int c;
    while ((c = next_byte(csv)) != '\n' && c >= 0)
        ;
    csv->after = c == '\n' ? TARN__CSV_LINE_END : TARN__CSV_FILE_END;
    return c != FAILED;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* The first character that is none. */
static const char *digits(const char *text)
{
    return text + strspn(text, "0123456789");
}

/* The end of a decimal number; `text` itself when there is none. strtod() alone would also accept nan, inf and
 * hexadecimals. */
static const char *number_end(const char *text, char point)
{
    const char *p = text + (*text == '+' || *text == '-'), *int_value = digits(p),
               *end = *int_value == point ? digits(int_value + 1) : int_value;
    if (int_value == p && end <= int_value + 1)
        return text;
    if (*end == 'e' || *end == 'E') {
        const char *power = end + 1 + (end[1] == '+' || end[1] == '-'), *last = digits(power);
        return last > power ? last : text;
    }
    return end;
}

bool tarn__csv_is_number(const char *text, char point)
{
    text += strspn(text, " \t");
    const char *end = number_end(text, point);
    return end > text && end[strspn(end, " \t")] == 0;
}

/* strtod() expects the decimal point of the program's locale: the point is replaced for the call. */
static char *set_point(char *text, char point)
{
    char *at = strchr(text, point), local = localeconv()->decimal_point[0];
    if (at && local)
        *at = local;
    return at;
}

double tarn__csv_f64(char *text, char point)
{
    char *at = set_point(text, point);
    double value = strtod(text, NULL);
    if (at)
        *at = point;
    return value;
}

/* By strtof(), which rounds once. */
float tarn__csv_f32(char *text, char point)
{
    char *at = set_point(text, point);
    float value = strtof(text, NULL);
    if (at)
        *at = point;
    return value;
}
