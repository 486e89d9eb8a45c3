/* csv.c: datasets of the numbers in a CSV file.
 *
 * The first half cuts the file into fields (RFC 4180): plain up to the delimiter, or quoted, where a doubled quote is
 * one quote and a field may span lines. The second half converts fields to numbers. The first line fixes the number of
 * columns and the label's column; every other line must match it. Memory grows by doubling, in proportion to the bytes
 * read. */
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "data/dataset.h"
#include "data/readers/input.h"

/* ---- fields ------------------------------------------------------------------------------------------------------ */

#define MAX_FIELD 4096 /* bytes, including the terminator */
#define BUFFER_BYTES 65536
#define LABEL_BYTES 8 /* i64 or f64; f32 labels use half of it */

typedef enum csv_end { AT_DELIMITER, AT_LINE_END, AT_FILE_END } csv_end;

typedef struct csv_reader {
    tarn__data_input *input;
    char delimiter;
    int64_t line;         /* where the field begins; counted from 1, for errors */
    int64_t column;       /* of the field, from 1 */
    csv_end after;        /* what ended the field */
    bool was_quoted;      /* "" is a value, an empty field is a missing one */
    size_t length;        /* of text */
    char text[MAX_FIELD]; /* the field without its quotes, terminated */
    int64_t lines_read;   /* newlines so far */
    size_t have, next;    /* bytes in the buffer; the next one to read */
    char buffer[BUFFER_BYTES];
} csv_reader;

enum { END_OF_FILE = -1, FAILED = -2 };

/* Raises "function: path: line L, column C: ..."; is false. */
#define csv_bad(csv, ...) \
    ((void)sizeof(char[sizeof("" TARN__FIRST_OF(__VA_ARGS__, 0)) > 1 ? 1 : -1]), csv_raise((csv), __VA_ARGS__))
static bool csv_raise(const csv_reader *csv, const char *format, ...) TARN_PRINTF(2, 3);

static bool csv_raise(const csv_reader *csv, const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: line %lld, column %lld: %s", csv->input->function, csv->input->path,
                       (long long)csv->line, (long long)csv->column, text);
}

/* Peeks at the next byte; END_OF_FILE or FAILED. */
static int peek(csv_reader *csv)
{
    if (csv->next < csv->have)
        return (unsigned char)csv->buffer[csv->next];
    int64_t got = tarn__data_input_read_some(csv->input, csv->buffer, BUFFER_BYTES);
    csv->next = 0;
    csv->have = got > 0 ? (size_t)got : 0;
    return got > 0 ? (unsigned char)csv->buffer[0] : got == 0 ? END_OF_FILE : FAILED;
}

/* Reads the next byte; END_OF_FILE or FAILED. */
static int next_byte(csv_reader *csv)
{
    int c = peek(csv);
    if (c >= 0)
        csv->next++;
    if (c == '\n')
        csv->lines_read++;
    return c;
}

/* Starts at the front of the file, after a UTF-8 byte order mark if there is one. Borrows the input. */
static bool csv_begin(csv_reader *csv, tarn__data_input *input, char delimiter)
{
    *csv = (csv_reader){.input = input, .delimiter = delimiter, .after = AT_LINE_END};
    if (peek(csv) == FAILED)
        return false;
    if (csv->have >= 3 && memcmp(csv->buffer, "\xEF\xBB\xBF", 3) == 0)
        csv->next = 3;
    return true;
}

/* True when no field follows. An error may have been raised. */
static bool csv_at_end(csv_reader *csv)
{
    return csv->after != AT_DELIMITER && peek(csv) < 0;
}

/* Appends a byte to the current field. */
static bool add(csv_reader *csv, int c)
{
    if (c == 0)
        return csv_bad(csv, "a zero byte; this is not a text file");
    if (csv->length == MAX_FIELD - 1)
        return csv_bad(csv, "a field of more than %d bytes; is a quote missing?", MAX_FIELD - 1);
    csv->text[csv->length++] = (char)c;
    return true;
}

/* Reads a quoted field after its opening quote. */
static bool read_quoted(csv_reader *csv)
{
    csv->was_quoted = true;
    for (;;) {
        int c = next_byte(csv);
        if (c == FAILED)
            return false;
        if (c == END_OF_FILE)
            return csv_bad(csv, "the file ends inside quotes");
        if (c == '"' && peek(csv) != '"')
            return true;
        if (c == '"')
            next_byte(csv);
        if (!add(csv, c))
            return false;
    }
}

/* Consumes the delimiter, line end or file end after a field, if there is one, and records which it was. */
static bool field_ends(csv_reader *csv)
{
    int c = peek(csv);
    if (c == (unsigned char)csv->delimiter) {
        csv->after = AT_DELIMITER;
    } else if (c == '\n') {
        csv->after = AT_LINE_END;
    } else if (c == END_OF_FILE) {
        csv->after = AT_FILE_END;
        return true;
    } else {
        return false;
    }
    next_byte(csv);
    return true;
}

/* Reads the next field into csv->text, without its quotes. False with an error. */
static bool csv_field(csv_reader *csv)
{
    csv->column = csv->after == AT_DELIMITER ? csv->column + 1 : 1;
    csv->line = csv->lines_read + 1;
    csv->length = 0;
    csv->was_quoted = false;
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
        if (csv->was_quoted || c == '"')
            return csv_bad(csv, "%s",
                           csv->was_quoted ? "text follows the closing quote"
                                           : "a quote inside a field that does not begin with one");
        if (!add(csv, c))
            return false;
    }
    csv->text[csv->length] = 0;
    return true;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

typedef struct table {
    csv_reader csv;
    tarn_csv_options options;
    tarn__buffer first; /* the fields of the first line, each terminated */
    int64_t columns;
    int64_t label; /* -1: none */
    int64_t rows;
    tarn__buffer x;      /* [rows, columns without the label], in options.dtype */
    tarn__buffer labels; /* 8 bytes each */
} table;

/* Values of a row of x. */
static size_t row_values(const table *t)
{
    return (size_t)(t->columns - (t->label >= 0));
}

static tarn_dtype label_dtype(const table *t)
{
    return t->options.label_is_real ? t->options.dtype : TARN_I64;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static const char *digits(const char *text)
{
    return text + strspn(text, "0123456789");
}

/* The end of a decimal number; `text` itself when there is none. strtod() alone would also accept nan, inf and
 * hexadecimals. */
static const char *number_end(const char *text)
{
    const char *p = text + (*text == '+' || *text == '-'), *int_value = digits(p),
               *end = *int_value == '.' ? digits(int_value + 1) : int_value;
    if (int_value == p && end <= int_value + 1)
        return text;
    if (*end == 'e' || *end == 'E') {
        const char *power = end + 1 + (end[1] == '+' || end[1] == '-'), *last = digits(power);
        return last > power ? last : text;
    }
    return end;
}

/* True for a field that is one decimal number, with spaces around it at most. */
static bool is_number(const char *text)
{
    text += strspn(text, " \t");
    const char *end = number_end(text);
    return end > text && end[strspn(end, " \t")] == 0;
}

/* Converts a field for which is_number() holds. strtod() expects the decimal point of the program's locale: the point
 * is replaced for the call. f32 is read by strtof(), to round once. */
static bool read_number(csv_reader *csv, tarn_dtype dtype, void *out)
{
    char *point = strchr(csv->text, '.'), local = localeconv()->decimal_point[0];
    if (point && local)
        *point = local;
    double f64_value = strtod(csv->text, NULL);
    float f32_value = dtype == TARN_F32 ? strtof(csv->text, NULL) : 0;
    if (point)
        *point = '.';
    if (isinf(dtype == TARN_F32 ? (double)f32_value : f64_value))
        return csv_bad(csv, "%.60s is too large for %s", csv->text, tarn_dtype_name(dtype));
    if (dtype == TARN_I64 && (f64_value != floor(f64_value) || fabs(f64_value) > 0x1p53))
        return csv_bad(csv, "the label %.60s is not an integer; .label_is_real accepts any number", csv->text);
    int64_t int_value = dtype == TARN_I64 ? (int64_t)f64_value : 0;
    memcpy(out,
           dtype == TARN_I64   ? (const void *)&int_value
           : dtype == TARN_F32 ? (const void *)&f32_value
                               : (const void *)&f64_value,
           tarn__dtype_bytes(dtype));
    return true;
}

/* ---- the first line ---------------------------------------------------------------------------------------------- */

/* Stores a field of the first line: whether it holds names or values is known only at its end. */
static bool store_first_field(table *t)
{
    t->columns++;
    return tarn__buffer_add(&t->first, t->csv.text, t->csv.length + 1, 1);
}

/* Finds the label's column, by name or by index; a negative index counts from the last column. */
static bool find_label(table *t, bool has_names)
{
    const char *wanted = t->options.label;
    t->label = -1;
    if (!wanted)
        return true;
    const char *name = t->first.data;
    for (int64_t i = 0; has_names && i < t->columns; i++, name += strlen(name) + 1)
        if (strcmp(name, wanted) == 0) {
            if (t->label >= 0)
                return tarn__raise(TARN_ERROR_FORMAT, "dataset_csv: %s: two columns have the name '%s'",
                                   t->csv.input->path, wanted);
            t->label = i;
        }
    if (t->label >= 0)
        return true;
    char *end;
    long long number = strtoll(wanted, &end, 10);
    if (end != wanted && *end == 0 && number < t->columns && number >= -t->columns) {
        t->label = number < 0 ? number + t->columns : number;
        return true;
    }
    return tarn__raise(TARN_ERROR_ARGUMENT, "dataset_csv: %s: no column '%s'; the file has %lld columns%s",
                       t->csv.input->path, wanted, (long long)t->columns, has_names ? "" : " and no header line");
}

/* Reads the first line and fixes the columns; tells whether it holds names. */
static bool read_first(table *t, bool *has_names)
{
    bool is_text = false;
    if (csv_at_end(&t->csv))
        return !tarn_failed() && tarn__data_input_bad(t->csv.input, 0, "the file is empty");
    do {
        if (!csv_field(&t->csv) || !store_first_field(t))
            return false;
        is_text = is_text || !is_number(t->csv.text);
    } while (t->csv.after == AT_DELIMITER);
    *has_names = t->options.header == TARN_HEADER_YES || (t->options.header == TARN_HEADER_AUTO && is_text);
    if (!find_label(t, *has_names))
        return false;
    return t->columns > (t->label >= 0) ||
           tarn__raise(TARN_ERROR_FORMAT, "dataset_csv: %s: the label is the only column", t->csv.input->path);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Reserves capacity for one more row. */
static bool reserve_row(table *t)
{
    return tarn__buffer_reserve(&t->x, row_values(t), tarn__dtype_bytes(t->options.dtype)) &&
           tarn__buffer_reserve(&t->labels, 1, LABEL_BYTES);
}

/* Counts the row just stored. */
static void finish_row(table *t)
{
    t->labels.count = (size_t)++t->rows;
    t->x.count = t->labels.count * row_values(t);
}

/* Stores the current field as a value of the row being read. x has no column for the label: later columns move up. */
static bool store(table *t, int64_t column)
{
    csv_reader *csv = &t->csv;
    if (column >= t->columns)
        return csv_bad(csv, "one field more than the %lld of the first line", (long long)t->columns);
    if (csv->text[strspn(csv->text, " \t")] == 0)
        return csv_bad(csv, "the value is missing");
    if (!is_number(csv->text))
        return csv_bad(csv, "'%.60s' is not a number", csv->text);
    if (column == t->label)
        return read_number(csv, label_dtype(t), t->labels.data + (size_t)t->rows * tarn__dtype_bytes(label_dtype(t)));
    size_t position = (size_t)(column - (t->label >= 0 && column > t->label));
    return read_number(csv, t->options.dtype,
                       t->x.data + (t->x.count + position) * tarn__dtype_bytes(t->options.dtype));
}

/* Stores the first line as a row, when it has no names: its fields were kept as strings. */
static bool store_first(table *t)
{
    const char *text = t->first.data;
    csv_end after = t->csv.after;
    t->csv.line = 1;
    for (int64_t i = 0; i < t->columns; i++, text += strlen(text) + 1) {
        t->csv.column = i + 1;
        snprintf(t->csv.text, sizeof(t->csv.text), "%s", text);
        if (!store(t, i))
            return false;
    }
    t->csv.after = after;
    finish_row(t);
    return true;
}

/* Reads a row. Empty lines are allowed at the end of the file only. */
static bool read_row(table *t)
{
    int64_t column = 0, empty_line = 0;
    for (;; column++) {
        if (!csv_field(&t->csv))
            return false;
        bool ends = t->csv.after != AT_DELIMITER;
        if (column == 0 && ends && t->csv.length == 0 && !t->csv.was_quoted) {
            empty_line = empty_line ? empty_line : t->csv.line;
            if (csv_at_end(&t->csv))
                return !tarn_failed();
            column = -1;
            continue;
        }
        if (empty_line)
            return tarn__raise(TARN_ERROR_FORMAT, "dataset_csv: %s: line %lld is empty", t->csv.input->path,
                               (long long)empty_line);
        if (!store(t, column))
            return false;
        if (ends)
            break;
    }
    if (column + 1 < t->columns)
        return csv_bad(&t->csv, "the line ends after %lld fields; the first line has %lld", (long long)column + 1,
                       (long long)t->columns);
    finish_row(t);
    return true;
}

/* Reads all rows. A first line without names is a row too. */
static bool read_table(table *t)
{
    bool has_names = false;
    if (!read_first(t, &has_names))
        return false;
    if (!has_names && (!reserve_row(t) || !store_first(t)))
        return false;
    while (!csv_at_end(&t->csv))
        if (!reserve_row(t) || !read_row(t))
            return false;
    return !tarn_failed();
}

/* ---- the dataset ------------------------------------------------------------------------------------------------- */

/* Copies rows to an array of their exact size; the buffers have spare capacity. */
static bool copy_rows(tarn_array *array, const char *from, tarn_shape shape, tarn_dtype dtype)
{
    *array = (tarn_array){NULL, shape, dtype};
    size_t bytes = tarn__array_bytes(array);
    array->data = tarn__alloc(bytes);
    if (array->data && bytes > 0)
        memcpy(array->data, from, bytes);
    return array->data != NULL;
}

/* "x", (rows, columns without the label), and "label", (rows). */
static tarn_dataset *create_dataset(const table *t)
{
    tarn_array arrays[2] = {{0}};
    int64_t values = t->columns - (t->label >= 0);
    if (!copy_rows(&arrays[0], t->x.data, TARN_SHAPE(t->rows, values), t->options.dtype) ||
        (t->label >= 0 && !copy_rows(&arrays[1], t->labels.data, TARN_SHAPE(t->rows), label_dtype(t)))) {
        tarn_array_free(&arrays[0]);
        return NULL;
    }
    return tarn__dataset_on_arrays("dataset_csv", (const char *const[]){"x", "label"}, arrays, t->label >= 0 ? 2 : 1);
}

/* Checks the options. A delimiter that may occur in numbers or quotes is an error. */
static bool check_options(const tarn_csv_options *o)
{
    if (tarn_failed())
        return false;
    if ((unsigned)o->header > TARN_HEADER_NO)
        return tarn__raise(TARN_ERROR_ARGUMENT, "dataset_csv: .header is %d; it must be TARN_HEADER_AUTO, _YES or _NO",
                           (int)o->header);
    if (o->dtype != TARN_F32 && o->dtype != TARN_F64)
        return tarn__raise(TARN_ERROR_DTYPE, "dataset_csv: .dtype is %s; it must be f32 or f64",
                           tarn_dtype_name(o->dtype));
    return (o->delimiter && !strchr("\"\r\n+-.0123456789eE", o->delimiter)) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "dataset_csv: character %d cannot be the delimiter", o->delimiter);
}

/* The table is too large for the stack: it contains the read buffer. */
tarn_dataset *tarn_dataset_csv_sized(const char *path, const tarn_csv_options *options, size_t options_size)
{
    tarn_csv_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    chosen.delimiter = chosen.delimiter ? chosen.delimiter : ',';
    table *t = check_options(&chosen) ? tarn__alloc(sizeof(*t)) : NULL;
    if (!t)
        return NULL;
    tarn__data_input input;
    t->options = chosen;
    bool good = tarn__data_input_open(&input, "dataset_csv", path) && csv_begin(&t->csv, &input, chosen.delimiter) &&
                read_table(t);
    tarn_dataset *dataset = good ? create_dataset(t) : NULL;
    tarn__data_input_close(&input);
    tarn__buffer_free(&t->first, 1);
    tarn__buffer_free(&t->x, tarn__dtype_bytes(t->options.dtype));
    tarn__buffer_free(&t->labels, LABEL_BYTES);
    tarn__release(t, sizeof(*t));
    return dataset;
}
