/* csv_text.c: fields of a CSV file: plain up to the delimiter, or in quotes, where a doubled quote stands for one and a
 * line may end. */
#include "data/readers/csv_text.h"

#include <stdarg.h>
#include <string.h>

enum { END = -1, FAILED = -2 };

bool tarn__csv_raise(const tarn__csv *csv, const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: line %lld, column %lld: %s", csv->source->function,
                       csv->source->path, (long long)csv->line, (long long)csv->column, text);
}

/* The next byte, which stays; END or FAILED. */
static int look(tarn__csv *csv)
{
    if (csv->next < csv->have)
        return (unsigned char)csv->buffer[csv->next];
    int64_t got = tarn__data_input_read_some(csv->source, csv->buffer, TARN__CSV_BUFFER);
    csv->next = 0;
    csv->have = got > 0 ? (size_t)got : 0;
    return got > 0 ? (unsigned char)csv->buffer[0] : got == 0 ? END : FAILED;
}

static int take(tarn__csv *csv)
{
    int c = look(csv);
    if (c >= 0)
        csv->next++;
    if (c == '\n')
        csv->lines_read++;
    return c;
}

bool tarn__csv_begin(tarn__csv *csv, tarn__data_input *source, char delimiter)
{
    *csv = (tarn__csv){.source = source, .delimiter = delimiter, .after = TARN__AFTER_LINE};
    if (look(csv) == FAILED)
        return false;
    if (csv->have >= 3 && memcmp(csv->buffer, "\xEF\xBB\xBF", 3) == 0)
        csv->next = 3;
    return true;
}

bool tarn__csv_at_end(tarn__csv *csv)
{
    return csv->after != TARN__AFTER_DELIMITER && look(csv) < 0;
}

static bool add(tarn__csv *csv, int c)
{
    if (c == 0)
        return tarn__csv_bad(csv, "a zero byte; this is no text");
    if (csv->length == TARN__CSV_FIELD - 1)
        return tarn__csv_bad(csv, "a field of more than %d bytes; is a quote missing?", TARN__CSV_FIELD - 1);
    csv->text[csv->length++] = (char)c;
    return true;
}

/* What stands between quotes; the first quote is gone. */
static bool quoted(tarn__csv *csv)
{
    csv->was_quoted = true;
    for (;;) {
        int c = take(csv);
        if (c == FAILED)
            return false;
        if (c == END)
            return tarn__csv_bad(csv, "the file ends inside quotes");
        if (c == '"' && look(csv) != '"')
            return true;
        if (c == '"')
            take(csv);
        if (!add(csv, c))
            return false;
    }
}

/* Takes what ends a field, if it is there. */
static bool is_over(tarn__csv *csv)
{
    int c = look(csv);
    if (c == (unsigned char)csv->delimiter) {
        csv->after = TARN__AFTER_DELIMITER;
    } else if (c == '\n') {
        csv->after = TARN__AFTER_LINE;
    } else if (c == END) {
        csv->after = TARN__AFTER_FILE;
        return true;
    } else {
        return false;
    }
    take(csv);
    return true;
}

bool tarn__csv_field(tarn__csv *csv)
{
    csv->column = csv->after == TARN__AFTER_DELIMITER ? csv->column + 1 : 1;
    csv->line = csv->lines_read + 1;
    csv->length = 0;
    csv->was_quoted = false;
    if (look(csv) == '"') {
        take(csv);
        if (!quoted(csv))
            return false;
    }
    while (!is_over(csv)) {
        int c = take(csv);
        if (c == FAILED)
            return false;
        if (c == '\r' && (look(csv) == '\n' || look(csv) == END)) /* the line ends in both */
            continue;
        if (csv->was_quoted || c == '"')
            return tarn__csv_bad(csv, "%s",
                                 csv->was_quoted ? "text follows the closing quote"
                                                 : "a quote inside a field that does not begin with one");
        if (!add(csv, c))
            return false;
    }
    csv->text[csv->length] = 0;
    return true;
}
