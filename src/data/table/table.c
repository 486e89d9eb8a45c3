/* table.c: tables in memory: a column is an array of doubles, or of indices into its distinct words. The number of rows
 * and the type of each column are known from the first pass (rows.c), so arrays are allocated once. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number_format.h"
#include "data/table/table.h"

/* ---- columns ----------------------------------------------------------------------------------------------------- */

/* Where a column of the table comes from. */
typedef struct column_plan {
    int from; /* column of the file */
    bool is_category;
} column_plan;

/* True for a column of the encoder, with its type; the target may be absent. */
static int find_input(const tarn_table_encoder *like, const char *name, bool *is_category)
{
    for (int i = 0; i < like->input_count; i++)
        if (strcmp(like->input[i].name, name) == 0) {
            *is_category = like->input[i].is_category;
            return true;
        }
    *is_category = like->target_is_category;
    return strcmp(like->target, name) == 0;
}

/* A column of numbers with a few words in it is most likely one of numbers: the warning names the first word. */
static bool has_type_category(const tarn__rows *r, const tarn__column_scan *c)
{
    int k = r->point == ',';
    if (c->words[k] && c->words[k] * 10 <= c->values)
        tarn__log(TARN_LOG_WARNING,
                  "%s: column '%.100s' has %lld words among %lld values, the first in line %lld: '%s'; all its values "
                  "are categories",
                  r->path, c->name, (long long)c->words[k], (long long)c->values, (long long)c->first_line[k],
                  c->first_word[k]);
    return c->words[k] > 0;
}

/* Chooses columns and types. Returns their number. */
static int choose(const tarn__rows *r, column_plan *plan)
{
    int count = 0;
    for (int i = 0; i < r->columns; i++) {
        bool is_category = false;
        if (r->options.like ? !find_input(r->options.like, r->column[i].name, &is_category) : false)
            continue;
        if (!r->options.like)
            is_category = has_type_category(r, &r->column[i]);
        plan[count++] = (column_plan){i, is_category};
    }
    return count;
}

/* What was allocated is freed with the table, with an error too. */
static bool alloc_columns(tarn_table *t, const tarn__rows *r, const column_plan *plan, int count)
{
    t->column = tarn__alloc(sizeof(*t->column) * (size_t)(count ? count : 1));
    t->line = tarn__alloc(sizeof(int64_t) * (size_t)(t->rows ? t->rows : 1));
    bool good = t->column && t->line;
    t->column_count = t->column ? count : 0;
    for (int i = 0; good && i < count; i++) {
        tarn__column *c = &t->column[i];
        c->is_category = plan[i].is_category;
        c->name = tarn__string_copy(r->column[plan[i].from].name);
        if (c->is_category)
            c->category = tarn__alloc(sizeof(int32_t) * (size_t)(t->rows ? t->rows : 1));
        else
            c->number = tarn__alloc(sizeof(double) * (size_t)(t->rows ? t->rows : 1));
        good = c->name && (c->category || c->number);
    }
    return good;
}

/* A word among numbers can only be met where an encoder says that the column is one of numbers. */
static bool store_cell(tarn__rows *r, tarn__column *c, int from, int64_t row)
{
    char *text = r->cell[from];
    bool is_missing = tarn__is_missing(text);
    c->missing += is_missing;
    if (c->is_category) {
        c->category[row] = is_missing ? -1 : tarn__words_add(&c->words, text);
        return is_missing || c->category[row] >= 0;
    }
    bool is_number = !is_missing && tarn__csv_is_number(text, r->point);
    c->number[row] = is_number ? tarn__csv_f64(text, r->point) : (double)NAN;
    if (is_missing || (is_number && isfinite(c->number[row])))
        return true;
    return tarn__raise(TARN_ERROR_FORMAT, "%s: %s: line %lld, column %d ('%.60s'): '%.60s' is %s", r->function, r->path,
                       (long long)r->line, from + 1, c->name, text, is_number ? "too large" : "not a number");
}

/* The second pass. A file that has grown since the first is an error; the memory is of the first. */
static bool read_rows(tarn_table *t, tarn__rows *r, const column_plan *plan)
{
    int64_t row = 0;
    if (!tarn__rows_begin(r))
        return false;
    for (; tarn__rows_next(r); row++) {
        if (row == t->rows)
            break;
        t->line[row] = r->line;
        for (int i = 0; i < t->column_count; i++)
            if (!store_cell(r, &t->column[i], plan[i].from, row))
                return false;
    }
    return !tarn_failed() &&
           (row == t->rows || tarn__raise(TARN_ERROR_FORMAT, "%s: %s changed while it was read", r->function, r->path));
}

/* The table's memory is filled in place; the caller frees it with an error. */
static bool fill(tarn_table *t, tarn__rows *r)
{
    size_t bytes = sizeof(column_plan) * (size_t)r->columns;
    column_plan *plan = tarn__alloc(bytes);
    t->rows = r->rows;
    t->broken = r->broken;
    t->delimiter = r->delimiter;
    t->point = r->point;
    t->has_header = r->has_header;
    t->path = tarn__string_copy(r->path);
    bool good = plan && t->path && alloc_columns(t, r, plan, choose(r, plan)) && read_rows(t, r, plan);
    tarn__release(plan, bytes);
    return good;
}

/* ---- creation and release ---------------------------------------------------------------------------------------- */

/* The rows are too large for the stack, and closed in any case. */
tarn_table *tarn_table_open_sized(const char *path, const tarn_table_options *options, size_t options_size)
{
    const char *function = "table_open";
    tarn_table_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (tarn_failed())
        return NULL;
    tarn__rows *r = tarn__alloc(sizeof(*r));
    tarn_table *t = r ? tarn__alloc(sizeof(*t)) : NULL;
    bool good = t && tarn__rows_open(r, function, path ? path : "", &chosen, false);
    if (t)
        t->references = 1;
    good = good && fill(t, r);
    if (r)
        tarn__rows_close(r);
    tarn__release(r, sizeof(*r));
    if (good)
        return t;
    tarn_table_free(t);
    return NULL;
}

tarn_table *tarn__table_retain(tarn_table *table)
{
    table->references++;
    return table;
}

void tarn_table_free(tarn_table *t)
{
    if (!t || --t->references > 0)
        return;
    for (int i = 0; i < t->column_count; i++) {
        tarn__string_free(t->column[i].name);
        tarn__release(t->column[i].number, sizeof(double) * (size_t)(t->rows ? t->rows : 1));
        tarn__release(t->column[i].category, sizeof(int32_t) * (size_t)(t->rows ? t->rows : 1));
        tarn__words_free(&t->column[i].words);
    }
    tarn__release(t->column, sizeof(*t->column) * (size_t)(t->column_count ? t->column_count : 1));
    tarn__release(t->line, sizeof(int64_t) * (size_t)(t->rows ? t->rows : 1));
    tarn__string_free(t->path);
    tarn__release(t, sizeof(*t));
}

/* ---- properties -------------------------------------------------------------------------------------------------- */

bool tarn_table_query(const tarn_table *table, tarn_table_info *info)
{
    if (tarn_failed())
        return false;
    if (!table || !info)
        return tarn__raise(TARN_ERROR_ARGUMENT, "table_query: the %s is NULL", table ? "result" : "table");
    *info = (tarn_table_info){.rows = table->rows,
                              .broken = table->broken,
                              .columns = table->column_count,
                              .has_header = table->has_header,
                              .delimiter = table->delimiter,
                              .decimal = table->point};
    return true;
}

bool tarn_table_column(const tarn_table *table, int index, tarn_column_info *column)
{
    if (tarn_failed())
        return false;
    if (!table || !column)
        return tarn__raise(TARN_ERROR_ARGUMENT, "table_column: the %s is NULL", table ? "result" : "table");
    if (index < 0 || index >= table->column_count)
        return tarn__raise(TARN_ERROR_ARGUMENT, "table_column: column %d does not exist; the table has %d", index,
                           table->column_count);
    const tarn__column *c = &table->column[index];
    *column = (tarn_column_info){c->name, c->is_category, c->missing, c->words.count};
    return true;
}

/* "age" before numbers: a column may be named 2. "2" is the second, "-1" the last. */
int tarn__table_find(const tarn_table *t, const char *name)
{
    char *end;
    for (int i = 0; i < t->column_count; i++)
        if (strcmp(t->column[i].name, name) == 0)
            return i;
    long number = strtol(name, &end, 10);
    if (end == name || *end || number == 0 || labs(number) > t->column_count)
        return -1;
    return (int)(number > 0 ? number - 1 : number + t->column_count);
}

const char *tarn__table_text(const tarn__column *c, int64_t row, char number[32])
{
    if (c->is_category)
        return c->category[row] < 0 ? NULL : c->words.word[c->category[row]];
    double value = c->number[row];
    if (isnan(value))
        return NULL;
    /* Integers as people write them: 3, not 3.0; -0 as 0. */
    if (value == floor(value) && fabs(value) < 1e15)
        snprintf(number, 32, "%.0f", value == 0 ? 0 : value);
    else
        tarn__number_format(value, number);
    return number;
}
