/* series.c: series of a report from metrics.jsonl: every number of a line is a point of the series of its key.
 *
 * A key's column owns its points and grows with the file. Charts and series borrow from the columns, so the table lives
 * until the page is written. Without jansson the reader is a stub that raises an error. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tarn_features.h"
#include "train/report/report.h"

#if TARN__HAVE_JANSSON

#include <jansson.h>

#define MAX_KEYS 32

/* Known keys with chart and name of their series; keys with one title share a chart, and a key without a title has no
 * chart. Any other key gets a chart of its own. */
static const struct {
    const char *key, *title, *series;
    tarn__report_goal goal;
    bool is_fraction;
    double unit; /* divisor of the values; 0: none */
} known[] = {{"loss", "Loss", "training", TARN__GOAL_MIN, false, 0},
             {"val_loss", "Loss", "validation", TARN__GOAL_MIN, false, 0},
             {"accuracy", "Accuracy", "training", TARN__GOAL_MAX, true, 0},
             {"val_accuracy", "Accuracy", "validation", TARN__GOAL_MAX, true, 0},
             {"val_rmse", "RMSE", "validation", TARN__GOAL_MIN, false, 0},
             {"val_mae", "MAE", "validation", TARN__GOAL_MIN, false, 0},
             {"val_r2", "R²", "validation", TARN__GOAL_MAX, false, 0},
             {"lr", "Learning rate", "learning rate", TARN__GOAL_NONE, false, 0},
             {"gradient_norm", "Gradient norm", "gradient norm", TARN__GOAL_NONE, false, 0},
             {"images_per_second", "Images per second", "images per second", TARN__GOAL_NONE, false, 0},
             {"rows_per_second", "Rows per second", "rows per second", TARN__GOAL_NONE, false, 0},
             {"tokens_per_second", "Tokens per second", "tokens per second", TARN__GOAL_NONE, false, 0},
             {"memory", "Memory in MiB", "peak", TARN__GOAL_NONE, false, 1048576},
             {"step", NULL, NULL, TARN__GOAL_NONE, false, 0},
             {"epoch", NULL, NULL, TARN__GOAL_NONE, false, 0},
             {"seconds", NULL, NULL, TARN__GOAL_NONE, false, 0},
             {"time", NULL, NULL, TARN__GOAL_NONE, false, 0}};

#define KNOWN ((int)(sizeof(known) / sizeof(known[0])))

/* The points of one key. */
typedef struct column {
    char *key;                 /* owned */
    char title[64], words[64]; /* of an unknown key: "Grad scale", "grad scale" */
    double *step, *value;      /* two arrays: charts take steps and values separately */
    int count, step_capacity, value_capacity;
} column;

typedef struct table {
    const char *path; /* for errors; borrowed */
    column column[MAX_KEYS];
    int count;
    double last_step;
    double seconds; /* of the last line that has them */
} table;

/* KNOWN for an unknown key. */
static int known_row(const char *key)
{
    int row = 0;
    while (row < KNOWN && strcmp(key, known[row].key) != 0)
        row++;
    return row;
}

/* ---- points ------------------------------------------------------------------------------------------------------ */

/* Columns may be partly filled after a failure. */
static void release_table(table *t)
{
    for (int i = 0; i < t->count; i++) {
        tarn__release(t->column[i].step, sizeof(double) * (size_t)t->column[i].step_capacity);
        tarn__release(t->column[i].value, sizeof(double) * (size_t)t->column[i].value_capacity);
        tarn__string_free(t->column[i].key);
    }
}

/* Series name and chart title of an unknown key: grad_scale becomes "grad scale" and "Grad scale". */
static void name_column(column *c)
{
    snprintf(c->words, sizeof(c->words), "%s", c->key);
    for (char *at = c->words; *at; at++)
        *at = *at == '_' ? ' ' : *at;
    memcpy(c->title, c->words, sizeof(c->title));
    if (c->title[0] >= 'a' && c->title[0] <= 'z')
        c->title[0] = (char)(c->title[0] - 'a' + 'A');
}

/* The column of a key, added if it is new. NULL with an error. */
static column *find_column(table *t, const char *key)
{
    for (int i = 0; i < t->count; i++)
        if (strcmp(t->column[i].key, key) == 0)
            return &t->column[i];
    if (t->count == MAX_KEYS) {
        tarn__raise(TARN_ERROR_UNSUPPORTED, "report_write_metrics: %s has more than %d keys; '%.100s' exceeds them",
                    t->path, MAX_KEYS, key);
        return NULL;
    }
    column *added = &t->column[t->count];
    *added = (column){.key = tarn__string_copy(key)};
    if (!added->key)
        return NULL;
    name_column(added);
    t->count++;
    return added;
}

/* Reserves one more point. */
static bool reserve(column *c)
{
    return tarn__list_reserve(&c->step, c->count, &c->step_capacity, sizeof(*c->step)) &&
           tarn__list_reserve(&c->value, c->count, &c->value_capacity, sizeof(*c->value));
}

/* Drops the points at `step` and later. */
static void drop_from(column *c, double step)
{
    while (c->count > 0 && c->step[c->count - 1] >= step)
        c->count--;
}

/* Adds a number, or NaN for null: JSON has no non-finite numbers. A step that is repeated replaces its point. */
static bool add_point(table *t, const char *key, double step, const json_t *value)
{
    int row = known_row(key);
    double unit = row < KNOWN && known[row].unit > 0 ? known[row].unit : 1;
    if (row < KNOWN && !known[row].title)
        return true;
    column *c = find_column(t, key);
    if (!c || !reserve(c))
        return false;
    drop_from(c, step);
    c->step[c->count] = step;
    c->value[c->count++] = json_is_number(value) ? json_number_value(value) / unit : NAN;
    return true;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Values of other types (strings, booleans) are ignored. */
static bool add_object(table *t, json_t *object, int64_t line)
{
    const json_t *number = json_object_get(object, "step");
    if (!json_is_number(number))
        return tarn__raise(TARN_ERROR_FORMAT, "report_write_metrics: %s: line %lld has no number \"step\"", t->path,
                           (long long)line);
    double step = json_number_value(number);
    for (int i = 0; step < t->last_step && i < t->count; i++) /* resumed from an earlier checkpoint */
        drop_from(&t->column[i], step);
    t->last_step = step;
    const json_t *seconds = json_object_get(object, "seconds");
    if (json_is_number(seconds))
        t->seconds = json_number_value(seconds);
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) if ((json_is_number(value) || json_is_null(value)) &&
                                                !add_point(t, key, step, value)) return false;
    return true;
}

/* `is_truncated`: the last line, without a newline. It may be incomplete: a killed program leaves such a line. */
static bool read_line(table *t, const char *text, size_t length, int64_t line, bool is_truncated)
{
    json_error_t why;
    size_t blank = 0;
    while (blank < length && (text[blank] == ' ' || text[blank] == '\t' || text[blank] == '\r'))
        blank++;
    if (blank == length)
        return true;
    json_t *object = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    if (!object && is_truncated)
        return true;
    bool good = json_is_object(object)
                    ? add_object(t, object, line)
                    : tarn__raise(TARN_ERROR_FORMAT, "report_write_metrics: %s: line %lld is not a JSON object: %s",
                                  t->path, (long long)line, object ? "it has another type" : why.text);
    json_decref(object);
    return good;
}

static bool read_lines(table *t, const tarn__map *map)
{
    int64_t line = 1;
    for (size_t begin = 0; begin < map->bytes; line++) {
        const char *text = map->memory + begin, *end = memchr(text, '\n', map->bytes - begin);
        size_t length = end ? (size_t)(end - text) : map->bytes - begin;
        if (!read_line(t, text, length, line, !end))
            return false;
        begin += length + 1;
    }
    return true;
}

/* ---- charts ------------------------------------------------------------------------------------------------------ */

/* Charts of a table; series borrow from its columns. On the heap: too large for small stacks. */
typedef struct chart_list {
    tarn__metrics_charts charts; /* first: callers hold a pointer to it */
    table table;
    int count;
    tarn__report_chart chart[MAX_KEYS];
    tarn__report_series series[MAX_KEYS][2]; /* of each chart */
} chart_list;

/* Joins the chart of the same title, if it has fewer than two series. */
static void add_series(chart_list *list, const column *c)
{
    int row = known_row(c->key), at = 0;
    const char *title = row < KNOWN ? known[row].title : c->title;
    while (at < list->count && strcmp(list->chart[at].title, title) != 0)
        at++;
    tarn__report_chart *chart = &list->chart[at];
    if (at == list->count) {
        list->count++;
        *chart = (tarn__report_chart){title, list->series[at], 0, row < KNOWN ? known[row].goal : TARN__GOAL_NONE,
                                      row < KNOWN && known[row].is_fraction};
    }
    if (chart->series_count < 2)
        list->series[at][chart->series_count++] =
            (tarn__report_series){row < KNOWN ? known[row].series : c->words, c->step, c->value, c->count};
}

/* Charts of known keys first, in the order of the table, then the others in the order of the file. */
static void make_charts(chart_list *list)
{
    const table *t = &list->table;
    for (int row = 0; row <= KNOWN; row++)
        for (int i = 0; i < t->count; i++)
            if (known_row(t->column[i].key) == row)
                add_series(list, &t->column[i]);
    list->charts = (tarn__metrics_charts){list->chart, list->count, t->seconds};
}

void tarn__metrics_charts_free(tarn__metrics_charts *charts)
{
    chart_list *list = (chart_list *)charts;
    if (!list)
        return;
    release_table(&list->table);
    tarn__release(list, sizeof(*list));
}

tarn__metrics_charts *tarn__metrics_charts_read(const char *metrics)
{
    tarn__map map;
    chart_list *list = tarn_failed() ? NULL : tarn__alloc(sizeof(*list));
    if (!list)
        return NULL;
    list->table.path = metrics;
    list->table.last_step = -INFINITY;
    bool is_open = tarn__map_open(&map, "report_write_metrics", metrics),
         good = is_open && read_lines(&list->table, &map);
    if (is_open)
        tarn__map_close(&map);
    if (!good) {
        tarn__metrics_charts_free(&list->charts);
        return NULL;
    }
    make_charts(list);
    return &list->charts;
}

#else

tarn__metrics_charts *tarn__metrics_charts_read(const char *metrics)
{
    (void)metrics;
    tarn__raise(TARN_ERROR_UNSUPPORTED, "report_write_metrics: reading JSON is not supported: tarn was built without "
                                        "jansson; install libjansson-dev and build again");
    return NULL;
}

void tarn__metrics_charts_free(tarn__metrics_charts *charts)
{
    (void)charts;
}

#endif

bool tarn__report_write_metrics(const char *path, const tarn__report *report, const char *metrics)
{
    if (tarn_failed())
        return false;
    if (!metrics || !report)
        return tarn__raise(TARN_ERROR_ARGUMENT, "report_write_metrics: the %s NULL",
                           metrics ? "report is" : "path of the metrics is");
    tarn__metrics_charts *charts = tarn__metrics_charts_read(metrics);
    if (!charts)
        return false;
    tarn__report filled = *report;
    filled.charts = charts->chart;
    filled.chart_count = charts->count;
    filled.seconds = charts->seconds;
    bool good = tarn__report_write(path, &filled);
    tarn__metrics_charts_free(charts);
    return good;
}
