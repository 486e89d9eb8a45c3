/* csv.c: datasets of the numbers in a CSV file.
 *
 * The first line fixes the number of columns and the label's column; every other line must match it. Memory grows by
 * doubling, in proportion to the bytes read. Tables with words and missing values are read by data/table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "data/dataset.h"
#include "data/readers/csv_fields.h"

#define MAX_FIELD 4096 /* bytes, including the terminator */
#define LABEL_BYTES 8  /* i64 or f64; f32 labels use half of it */

/* ---- the table --------------------------------------------------------------------------------------------------- */

typedef struct table {
    tarn__csv csv;
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

/* Classes are integers unless label_is_real says that labels are measurements. */
static tarn_dtype label_dtype(const table *t)
{
    return t->options.label_is_real ? t->options.dtype : TARN_I64;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Converts a field for which tarn__csv_is_number() holds. f32 is read by strtof(), to round once. */
static bool read_number(tarn__csv *csv, tarn_dtype dtype, void *out)
{
    double f64_value = tarn__csv_f64(csv->text, '.');
    float f32_value = dtype == TARN_F32 ? tarn__csv_f32(csv->text, '.') : 0;
    if (isinf(dtype == TARN_F32 ? (double)f32_value : f64_value))
        return tarn__csv_bad(csv, "%.60s is too large for %s", csv->text, tarn_dtype_name(dtype));
    if (dtype == TARN_I64 && (f64_value != floor(f64_value) || fabs(f64_value) > 0x1p53))
        return tarn__csv_bad(csv, "the label %.60s is not an integer; .label_is_real accepts any number", csv->text);
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
    if (tarn__csv_at_end(&t->csv))
        return !tarn_failed() && tarn__data_input_bad(t->csv.input, 0, "the file is empty");
    do {
        if (!tarn__csv_field(&t->csv) || !store_first_field(t))
            return false;
        is_text = is_text || !tarn__csv_is_number(t->csv.text, '.');
    } while (t->csv.after == TARN__CSV_DELIMITER);
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
    tarn__csv *csv = &t->csv;
    if (column >= t->columns)
        return tarn__csv_bad(csv, "one field more than the %lld of the first line", (long long)t->columns);
    if (csv->text[strspn(csv->text, " \t")] == 0)
        return tarn__csv_bad(csv, "the value is missing");
    if (!tarn__csv_is_number(csv->text, '.'))
        return tarn__csv_bad(csv, "'%.60s' is not a number", csv->text);
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
    tarn__csv_end after = t->csv.after;
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
        if (!tarn__csv_field(&t->csv))
            return false;
        bool ends = t->csv.after != TARN__CSV_DELIMITER;
        if (column == 0 && ends && t->csv.length == 0 && !t->csv.was_quoted) {
            empty_line = empty_line ? empty_line : t->csv.line;
            if (tarn__csv_at_end(&t->csv))
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
        return tarn__csv_bad(&t->csv, "the line ends after %lld fields; the first line has %lld", (long long)column + 1,
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
    while (!tarn__csv_at_end(&t->csv))
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

/* Starts at the front of the file. */
static bool begin(table *t, tarn__data_input *input)
{
    bool good = tarn__csv_begin(&t->csv, input);
    t->csv.delimiter = t->options.delimiter;
    t->csv.max_field = MAX_FIELD;
    return good;
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
    bool good = tarn__data_input_open(&input, "dataset_csv", path) && begin(t, &input) && read_table(t);
    tarn_dataset *dataset = good ? create_dataset(t) : NULL;
    tarn__data_input_close(&input);
    tarn__buffer_free(&t->first, 1);
    tarn__buffer_free(&t->x, tarn__dtype_bytes(t->options.dtype));
    tarn__buffer_free(&t->labels, LABEL_BYTES);
    tarn__release(t, sizeof(*t));
    return dataset;
}
