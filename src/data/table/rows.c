/* rows.c: a CSV or TSV file as rows of text, and what the whole file says about dialect, header and column types.
 *
 * The file is read twice: types are known at its end only, and memory stays bounded by one row. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/utf8.h"
#include "data/table/table.h"

enum { SNIFF_LINES = 50, MAX_NAMED = 10 }; /* lines looked at for the delimiter; broken rows named in warnings */

static const char delimiters[] = {'\t', ';', ','}; /* in order of preference: a decimal comma must not win */
enum { DELIMITERS = sizeof(delimiters) };

bool tarn__is_missing(const char *text)
{
    static const char *const words[] = {"", "na", "nan", "null", "?"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcasecmp(text, words[i]) == 0)
            return true;
    return false;
}

/* ---- the delimiter ----------------------------------------------------------------------------------------------- */

/* Counts of the delimiters outside quotes in the next line of a text; `*at` moves after it. False at a line that the
 * buffer has in part. */
static bool count_line(const char *text, size_t length, size_t *at, int counts[DELIMITERS], bool *is_blank)
{
    bool in_quotes = false;
    memset(counts, 0, sizeof(int) * DELIMITERS);
    *is_blank = true;
    for (; *at < length; ++*at) {
        char c = text[*at];
        if (c == '\n' && !in_quotes) {
            ++*at;
            return true;
        }
        in_quotes = in_quotes != (c == '"');
        *is_blank = *is_blank && (c == '\r' || c == ' ');
        for (int d = 0; d < DELIMITERS; d++)
            counts[d] += c == delimiters[d] && !in_quotes;
    }
    return length < TARN__CSV_BUFFER_BYTES - 3; /* the file ends here */
}

/* The delimiter that all of the first lines have equally often; else the most frequent of the first line; else ','. */
static char find_delimiter(const char *text, size_t length)
{
    int first[DELIMITERS] = {0}, counts[DELIMITERS], lines = 0;
    bool same[DELIMITERS] = {true, true, true}, is_blank;
    for (size_t at = 0; at < length && lines < SNIFF_LINES && count_line(text, length, &at, counts, &is_blank);) {
        if (is_blank)
            continue;
        for (int d = 0; d < DELIMITERS; d++) {
            first[d] = lines ? first[d] : counts[d];
            same[d] = same[d] && counts[d] == first[d] && counts[d] > 0;
        }
        lines++;
    }
    int best = DELIMITERS - 1;
    for (int d = 0; lines && d < DELIMITERS; d++)
        if (same[d])
            return delimiters[d];
    for (int d = DELIMITERS; d-- > 0;)
        best = first[d] > first[best] ? d : best;
    return delimiters[best];
}

/* ---- a row ------------------------------------------------------------------------------------------------------- */

/* FAILED: with an error, which ends the reading; BROKEN: this row is skipped. */
typedef enum row_kind { ROW_GOOD, ROW_BLANK, ROW_BROKEN, ROW_END, ROW_FAILED } row_kind;

/* Stores the current field, without blanks around it. */
static bool store_field(tarn__rows *r)
{
    char *text = r->csv.text + strspn(r->csv.text, " \t"), *end = text + strlen(text);
    while (end > text && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = 0;
    if (!tarn__utf8_valid(text))
        return tarn__csv_bad(&r->csv, "text that is not UTF-8; convert the file: iconv -f ISO-8859-1 -t UTF-8");
    if (r->text.count + (size_t)(end - text) >= TARN__TABLE_MAX_ROW_BYTES)
        return tarn__csv_bad(&r->csv, "a row of more than %d bytes; is a quote missing?", TARN__TABLE_MAX_ROW_BYTES);
    return tarn__buffer_add(&r->text, text, (size_t)(end - text) + 1, 1);
}

/* After an error of the row alone: records it and goes on after the line. */
static row_kind leave_broken(tarn__rows *r, char *why, size_t size)
{
    tarn__error_record error;
    if (!r->csv.is_row_broken)
        return ROW_FAILED;
    tarn__error_save(&error);
    const char *at = strstr(error.text, "line ");
    snprintf(why, size, "%s", at ? at : error.text);
    return tarn__csv_skip_line(&r->csv) ? ROW_BROKEN : ROW_FAILED;
}

/* Reads a row into r->text. `columns`: expected number, 0: any. `why` describes a broken row. */
static row_kind read_row(tarn__rows *r, int columns, int *fields, char *why, size_t size)
{
    r->text.count = 0;
    *fields = 0;
    if (tarn__csv_at_end(&r->csv))
        return tarn_failed() ? ROW_FAILED : ROW_END;
    /* Fields are counted beyond the expected number, and not stored: the message needs the count. */
    do {
        if (!tarn__csv_field(&r->csv))
            return leave_broken(r, why, size);
        r->line = *fields ? r->line : r->csv.line;
        if (*fields == TARN__TABLE_MAX_COLUMNS && !columns)
            return tarn__csv_bad(&r->csv, "more than %d columns", TARN__TABLE_MAX_COLUMNS) ? ROW_GOOD : ROW_FAILED;
        if ((!columns || *fields < columns) && !store_field(r))
            return ROW_FAILED;
        *fields += *fields <= TARN__TABLE_MAX_COLUMNS;
    } while (r->csv.after == TARN__CSV_DELIMITER);
    if (*fields == 1 && r->text.count == 1 && !r->csv.was_quoted)
        return ROW_BLANK;
    if (!columns || *fields == columns)
        return ROW_GOOD;
    snprintf(why, size, "line %lld: %d fields; the first line has %d", (long long)r->line, *fields, columns);
    return ROW_BROKEN;
}

/* Points r->cell at the fields of the row. */
static void set_cells(tarn__rows *r)
{
    char *text = r->text.data;
    for (int i = 0; i < r->columns; i++, text += strlen(text) + 1)
        r->cell[i] = text;
}

/* Opens the file anew and sets the dialect. */
static bool reopen(tarn__rows *r)
{
    if (r->is_open)
        tarn__data_input_close(&r->input);
    r->is_open = true; /* closed after a failure too */
    if (!tarn__data_input_open(&r->input, r->function, r->path) || !tarn__csv_begin(&r->csv, &r->input))
        return false;
    if (!r->delimiter)
        r->delimiter = r->options.delimiter ? r->options.delimiter
                                            : find_delimiter(r->csv.buffer + r->csv.next, r->csv.have - r->csv.next);
    r->csv.delimiter = r->delimiter;
    r->csv.has_literal_quotes = true;
    return true;
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

/* Before the decimal point is known. A comma cannot be one where it is the delimiter. */
static bool is_any_number(const tarn__rows *r, const char *text)
{
    return tarn__csv_is_number(text, '.') || (r->delimiter != ',' && tarn__csv_is_number(text, ','));
}

/* Whether the first line, `names`, holds names: it has no number, or a word where the second line has a number. */
static bool is_header(const tarn__rows *r, const char *names, bool has_second)
{
    bool has_number = false, is_above_number = false;
    for (int i = 0; i < r->columns; i++, names += strlen(names) + 1) {
        bool is_number = is_any_number(r, names);
        has_number = has_number || is_number;
        is_above_number =
            is_above_number || (has_second && !is_number && !tarn__is_missing(names) && is_any_number(r, r->cell[i]));
    }
    return r->options.header == TARN_HEADER_YES ||
           (r->options.header == TARN_HEADER_AUTO && (!has_number || is_above_number));
}

/* Compared with all before it: quadratic, but for 16384 columns at most. */
static bool name_columns(tarn__rows *r, const char *names)
{
    for (int i = 0; i < r->columns; i++, names += strlen(names) + 1) {
        char number[16];
        snprintf(number, sizeof(number), "%d", i + 1);
        r->column[i].name = tarn__string_copy(r->has_header && names[0] ? names : number);
        if (!r->column[i].name)
            return false;
        for (int k = 0; k < i; k++)
            if (strcmp(r->column[k].name, r->column[i].name) == 0)
                return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: columns %d and %d have the same name '%.100s'",
                                   r->function, r->path, k + 1, i + 1, r->column[i].name);
    }
    return true;
}

/* The first line that is not blank, then the next one, to tell a header from values. */
static bool read_header(tarn__rows *r)
{
    char why[512] = "";
    int fields;
    row_kind kind = ROW_BLANK;
    while (kind == ROW_BLANK)
        kind = read_row(r, 0, &fields, why, sizeof(why));
    if (kind == ROW_END)
        return tarn__data_input_bad(&r->input, 0, "the file is empty");
    if (kind != ROW_GOOD)
        return kind == ROW_BROKEN ? tarn__raise(TARN_ERROR_FORMAT, "%s: %s: %s", r->function, r->path, why) : false;
    r->columns = fields;
    r->column = tarn__alloc(sizeof(*r->column) * (size_t)fields);
    r->cell = tarn__alloc(sizeof(*r->cell) * (size_t)fields);
    tarn__buffer names = {0};
    bool good = r->column && r->cell && tarn__buffer_add(&names, r->text.data, r->text.count, 1);
    for (kind = ROW_BLANK; good && (kind == ROW_BLANK || kind == ROW_BROKEN);)
        kind = read_row(r, fields, &fields, why, sizeof(why)), fields = r->columns;
    good = good && kind != ROW_FAILED;
    if (good && kind == ROW_GOOD)
        set_cells(r);
    if (good) {
        r->has_header = is_header(r, names.data, kind == ROW_GOOD);
        good = name_columns(r, names.data);
    }
    tarn__buffer_free(&names, 1);
    return good;
}

int tarn__rows_find(const tarn__rows *r, const char *name)
{
    for (int i = 0; i < r->columns; i++)
        if (strcmp(r->column[i].name, name) == 0)
            return i;
    return -1;
}

/* ---- the whole file ---------------------------------------------------------------------------------------------- */

/* Counts for both decimal points: which one holds is known at the end of the file. */
static void scan_cell(tarn__rows *r, tarn__column_scan *c, const char *text)
{
    if (tarn__is_missing(text)) {
        c->missing++;
        return;
    }
    c->values++;
    for (int k = 0; k < 2; k++) {
        bool is_number = tarn__csv_is_number(text, ".,"[k]);
        r->decimals[k] += is_number && strchr(text, ".,"[k]) != NULL;
        if (is_number)
            continue;
        if (!c->words[k]++) {
            c->first_line[k] = r->line;
            size_t length = strlen(text);
            snprintf(c->first_word[k], sizeof(c->first_word[k]), "%.*s",
                     (int)tarn__utf8_prefix(text, length < 63 ? length : 63), text);
        }
    }
}

/* Only the first are named: a file with the wrong delimiter would name each of its rows. */
static bool count_broken(tarn__rows *r, const char *why)
{
    if (r->needs_all)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: %s", r->function, r->path, why);
    if (!r->broken++)
        snprintf(r->first_broken, sizeof(r->first_broken), "%s", why);
    if (r->broken <= MAX_NAMED)
        tarn__log(TARN_LOG_WARNING, "%s: %s; the row is skipped", r->path, why);
    return true;
}

/* Reads all rows once, for types and counts. */
static bool scan_rows(tarn__rows *r)
{
    char why[512];
    int fields;
    if (!tarn__rows_begin(r))
        return false;
    for (;;) {
        row_kind kind = read_row(r, r->columns, &fields, why, sizeof(why));
        if (kind == ROW_END)
            break;
        if (kind == ROW_FAILED || (kind == ROW_BROKEN && !count_broken(r, why)))
            return false;
        if (kind != ROW_GOOD)
            continue;
        set_cells(r);
        r->rows++;
        for (int i = 0; i < r->columns; i++)
            scan_cell(r, &r->column[i], r->cell[i]);
    }
    if (r->broken > MAX_NAMED)
        tarn__log(TARN_LOG_WARNING, "%s: %lld rows are broken and were skipped", r->path, (long long)r->broken);
    if (r->broken * 10 > r->rows + r->broken)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: %s: %lld of %lld rows are broken; the delimiter is '%s', is that right? %s",
                           r->function, r->path, (long long)r->broken, (long long)(r->rows + r->broken),
                           r->delimiter == '\t' ? "tab" : (char[]){r->delimiter, 0}, r->first_broken);
    return true;
}

/* The comma is the decimal point where it can be, occurs, and no number of the file has a point. */
static void find_point(tarn__rows *r)
{
    bool can = r->delimiter != ',', occurs = r->decimals[1] > 0 && r->decimals[0] == 0;
    r->point = r->options.decimal == TARN_DECIMAL_COMMA || (r->options.decimal == TARN_DECIMAL_AUTO && can && occurs)
                   ? ','
                   : '.';
    if (r->options.decimal == TARN_DECIMAL_AUTO && can && r->decimals[1] > 0 && r->decimals[0] > 0)
        tarn__log(TARN_LOG_WARNING, "%s: %lld numbers have a decimal comma and %lld a point; the commas are words",
                  r->path, (long long)r->decimals[1], (long long)r->decimals[0]);
}

/* What can be checked without the file. */
static bool check_options(const char *function, const tarn_table_options *o)
{
    if ((unsigned)o->header > TARN_HEADER_NO)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .header is %d; it must be TARN_HEADER_AUTO, _YES or _NO", function,
                           (int)o->header);
    if ((unsigned)o->decimal > TARN_DECIMAL_COMMA)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .decimal is %d; it must be TARN_DECIMAL_AUTO, _POINT or _COMMA",
                           function, (int)o->decimal);
    if (o->delimiter && !memchr(delimiters, o->delimiter, DELIMITERS))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: character %d cannot be the delimiter; it must be ',', ';' or tab",
                           function, o->delimiter);
    return !(o->decimal == TARN_DECIMAL_COMMA && o->delimiter == ',') ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: the comma cannot be both delimiter and decimal point", function);
}

bool tarn__rows_open(tarn__rows *r, const char *function, const char *path, const tarn_table_options *options,
                     bool needs_all)
{
    r->function = function;
    r->path = path;
    r->options = *options;
    r->needs_all = needs_all;
    if (tarn_failed() || !check_options(function, options) || !reopen(r) || !read_header(r) || !scan_rows(r))
        return false;
    find_point(r);
    if (r->point == ',' && r->delimiter == ',')
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: %s: the comma is the delimiter and cannot be the decimal point too; give the delimiter",
                           function, path);
    return true;
}

/* After tarn__rows_open(), which knows the dialect; the header is read again and skipped. */
bool tarn__rows_begin(tarn__rows *r)
{
    char why[512];
    int fields;
    if (!reopen(r))
        return false;
    row_kind kind = r->has_header ? ROW_BLANK : ROW_GOOD;
    while (kind == ROW_BLANK)
        kind = read_row(r, 0, &fields, why, sizeof(why));
    return kind == ROW_GOOD || (!tarn_failed() && tarn__raise(TARN_ERROR_FORMAT,
                                                              "%s: %s: the header is gone; did the "
                                                              "file change?",
                                                              r->function, r->path));
}

/* Blank rows are skipped as well. */
bool tarn__rows_next(tarn__rows *r)
{
    char why[512];
    int fields;
    row_kind kind = ROW_BLANK;
    while (kind == ROW_BLANK || (kind == ROW_BROKEN && !r->needs_all))
        kind = read_row(r, r->columns, &fields, why, sizeof(why));
    if (kind == ROW_BROKEN)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: %s", r->function, r->path, why);
    if (kind == ROW_GOOD)
        set_cells(r);
    return kind == ROW_GOOD;
}

void tarn__rows_close(tarn__rows *r)
{
    if (r->is_open)
        tarn__data_input_close(&r->input);
    for (int i = 0; r->column && i < r->columns; i++)
        tarn__string_free(r->column[i].name);
    tarn__release(r->column, sizeof(*r->column) * (size_t)r->columns);
    tarn__release(r->cell, sizeof(*r->cell) * (size_t)r->columns);
    tarn__buffer_free(&r->text, 1);
    r->is_open = false;
    r->column = NULL;
    r->cell = NULL;
}
