/* compare.c: a page that compares runs: their last and best values, the options that differ, and a chart per metric
 * with a curve per run.
 *
 * The charts of each run come from its metrics.jsonl as for report.html. A series that several runs have, such as the
 * validation loss, becomes one chart here; its title names it. Options come from config.json. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <tarn/runs.h>

#include "base/memory.h"
#include "formats/json_file.h"
#include "train/report/report.h"

#define FUNCTION "runs_compare"
#define MISSING "–"

/* An option of a run, as it is typed. */
typedef struct setting {
    char *name, *value; /* owned */
} setting;

typedef struct compared_run {
    const char *name;             /* for the reader; borrowed */
    tarn__metrics_charts *charts; /* owned */
    setting *settings;            /* owned; [count] */
    int count, capacity;
} compared_run;

/* A series that some runs have, as a chart with a curve per run. A run without it has an empty series. */
typedef struct joined_chart {
    char title[160];
    const char *chart, *series; /* of the runs; borrowed */
    tarn__report_series of_run[TARN_MAX_COMPARED];
} joined_chart;

typedef struct comparison {
    compared_run run[TARN_MAX_COMPARED];
    const char *names[TARN_MAX_COMPARED];
    int runs;
    joined_chart *joined; /* owned, as the next; [capacity] */
    tarn__report_chart *chart;
    int charts, capacity;
} comparison;

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* The folder of a run is its name, which the page shows already. */
static bool add_setting(const char *name, const char *text, void *ctx)
{
    compared_run *run = ctx;
    if (strcmp(name, "out") == 0 || strcmp(name, "overwrite") == 0)
        return true;
    if (!tarn__list_reserve(&run->settings, run->count, &run->capacity, sizeof(*run->settings)))
        return false;
    setting *added = &run->settings[run->count];
    *added = (setting){tarn__string_copy(name), NULL};
    if (!added->name)
        return false;
    run->count++;
    return (added->value = tarn__string_copy(text)) != NULL;
}

static bool read_run(compared_run *run, const char *folder)
{
    tarn__path path;
    tarn__json_file *config = tarn__json_file_open(FUNCTION, tarn__path_in(folder, "config.json", &path));
    bool good = config != NULL;
    if (good && !tarn__json_file_has(config, "train"))
        good =
            tarn__raise(TARN_ERROR_FORMAT, FUNCTION ": '%.200s' is not a run: its config.json has no options", folder);
    good = good && tarn__json_file_each(config, "train", add_setting, run);
    tarn__json_file_free(config);
    run->charts = good ? tarn__metrics_charts_read(tarn__path_in(folder, "metrics.jsonl", &path)) : NULL;
    return run->charts || tarn__raise_within(FUNCTION);
}

static void free_comparison(comparison *c)
{
    for (int i = 0; i < c->runs; i++) {
        compared_run *run = &c->run[i];
        for (int k = 0; k < run->count; k++) {
            tarn__string_free(run->settings[k].name);
            tarn__string_free(run->settings[k].value);
        }
        tarn__release(run->settings, sizeof(*run->settings) * (size_t)run->capacity);
        tarn__metrics_charts_free(run->charts);
    }
    tarn__release(c->joined, sizeof(*c->joined) * (size_t)c->capacity);
    tarn__release(c->chart, sizeof(*c->chart) * (size_t)c->capacity);
    tarn__release(c, sizeof(*c));
}

/* "runs/a" is named "a", unless two runs have that name. */
static void name_runs(comparison *c, const char *const *folders)
{
    bool is_unique = true;
    for (int i = 0; i < c->runs; i++) {
        const char *slash = strrchr(folders[i], '/');
        c->names[i] = slash && slash[1] ? slash + 1 : folders[i];
        for (int k = 0; k < i; k++)
            is_unique = is_unique && strcmp(c->names[i], c->names[k]) != 0;
    }
    for (int i = 0; i < c->runs; i++) {
        c->names[i] = is_unique ? c->names[i] : folders[i];
        c->run[i].name = c->names[i];
    }
}

/* ---- charts ------------------------------------------------------------------------------------------------------ */

/* The chart of a run with that title; NULL: none. Titles come from the metrics' names, so those of two runs agree
 * where their metrics do. */
static const tarn__report_chart *chart_of(const compared_run *run, const char *title)
{
    for (int i = 0; i < run->charts->count; i++)
        if (strcmp(run->charts->chart[i].title, title) == 0)
            return &run->charts->chart[i];
    return NULL;
}

/* Adds the chart of a series, with the curves of all runs, unless it exists. */
static void join(comparison *c, const tarn__report_chart *chart, const char *series)
{
    for (int i = 0; i < c->charts; i++)
        if (strcmp(c->joined[i].chart, chart->title) == 0 && strcmp(c->joined[i].series, series) == 0)
            return;
    joined_chart *joined = &c->joined[c->charts];
    bool is_named = strcmp(series, "training") == 0 || strcmp(series, "validation") == 0;
    *joined = (joined_chart){.chart = chart->title, .series = series};
    snprintf(joined->title, sizeof(joined->title), "%s%s%s", chart->title, is_named ? ", " : "",
             is_named ? series : "");
    for (int i = 0; i < c->runs; i++) {
        const tarn__report_chart *of_run = chart_of(&c->run[i], chart->title);
        joined->of_run[i].name = c->names[i];
        for (int k = 0; of_run && k < of_run->series_count; k++)
            if (strcmp(of_run->series[k].name, series) == 0) {
                joined->of_run[i] = of_run->series[k];
                joined->of_run[i].name = c->names[i];
            }
    }
    c->chart[c->charts++] =
        (tarn__report_chart){joined->title, joined->of_run, c->runs, chart->goal, chart->is_fraction};
}

/* In the order of the first run, then those that only later runs have. There is space for all series of all runs. False
 * with an error. */
static bool join_all(comparison *c)
{
    for (int i = 0; i < c->runs; i++)
        for (int k = 0; k < c->run[i].charts->count; k++)
            c->capacity += c->run[i].charts->chart[k].series_count;
    if (c->capacity == 0)
        return true;
    c->joined = tarn__alloc(sizeof(*c->joined) * (size_t)c->capacity);
    c->chart = tarn__alloc(sizeof(*c->chart) * (size_t)c->capacity);
    if (!c->joined || !c->chart)
        return false;
    for (int i = 0; i < c->runs; i++)
        for (int k = 0; k < c->run[i].charts->count; k++) {
            const tarn__report_chart *chart = &c->run[i].charts->chart[k];
            for (int s = 0; s < chart->series_count; s++)
                join(c, chart, chart->series[s].name);
        }
    return true;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* NULL: the run has no such option. */
static const char *value_of(const compared_run *run, const char *name)
{
    for (int i = 0; i < run->count; i++)
        if (strcmp(run->settings[i].name, name) == 0)
            return run->settings[i].value;
    return NULL;
}

static bool differs(const comparison *c, const char *name)
{
    const char *first = value_of(&c->run[0], name);
    for (int i = 1; i < c->runs; i++) {
        const char *other = value_of(&c->run[i], name);
        if (!first != !other || (first && strcmp(first, other) != 0))
            return true;
    }
    return false;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static void begin_row(tarn__page *page, const char *label, const char *note)
{
    tarn__page_html(page, "<tr><th scope=\"row\">");
    tarn__page_text(page, label);
    tarn__page_html(page, note);
    tarn__page_html(page, "</th>");
}

static void write_cell(tarn__page *page, const char *text, bool is_best)
{
    tarn__page_html(page, is_best ? "<td class=\"best\">" : "<td>");
    tarn__page_text(page, text);
    tarn__page_html(page, "</td>");
}

/* The last values of a metric, or the best ones; the best of all runs is marked, also if several have it, where all
 * have the same data. */
static void write_values(tarn__page *page, const comparison *c, const tarn__report_chart *chart, bool is_best)
{
    bool is_marked = chart->goal != TARN__GOAL_NONE && !differs(c, "data");
    double top = 0;
    bool has_top = false;
    for (int i = 0; i < c->runs; i++) {
        tarn__extent e = tarn__series_extent(&chart->series[i], chart->goal);
        double value = is_best ? e.best : e.last;
        if (e.finite > 0 && (!has_top || (chart->goal == TARN__GOAL_MIN ? value < top : value > top)))
            top = value;
        has_top = has_top || e.finite > 0;
    }
    begin_row(page, chart->title, is_best ? ", best" : ", last");
    for (int i = 0; i < c->runs; i++) {
        char text[64] = MISSING;
        tarn__extent e = tarn__series_extent(&chart->series[i], chart->goal);
        double value = is_best ? e.best : e.last;
        if (e.finite > 0)
            tarn__value_text(value, chart->is_fraction, text, sizeof(text));
        write_cell(page, text, e.finite > 0 && value == top && is_marked);
    }
    tarn__page_html(page, "</tr>\n");
}

static double last_step(const compared_run *run)
{
    double last = 0;
    for (int i = 0; i < run->charts->count; i++) {
        tarn__extent extent = tarn__chart_extent(&run->charts->chart[i]);
        last = extent.finite > 0 && extent.last_step > last ? extent.last_step : last;
    }
    return last;
}

static void write_results(tarn__page *page, const comparison *c)
{
    char text[64];
    tarn__table_begin(page, "Results", c->names, c->runs);
    begin_row(page, "Steps", "");
    for (int i = 0; i < c->runs; i++) {
        tarn__step_text(last_step(&c->run[i]), text, sizeof(text));
        write_cell(page, text, false);
    }
    tarn__page_html(page, "</tr>\n");
    begin_row(page, "Elapsed time", "");
    for (int i = 0; i < c->runs; i++) {
        tarn__duration_text(c->run[i].charts->seconds, text, sizeof(text));
        write_cell(page, text, false);
    }
    tarn__page_html(page, "</tr>\n");
    for (int i = 0; i < c->charts; i++) {
        write_values(page, c, &c->chart[i], false);
        if (c->chart[i].goal != TARN__GOAL_NONE)
            write_values(page, c, &c->chart[i], true);
    }
    tarn__table_end(page);
}

static void write_difference(tarn__page *page, const comparison *c, const char *name)
{
    begin_row(page, name, "");
    for (int i = 0; i < c->runs; i++) {
        const char *value = value_of(&c->run[i], name);
        write_cell(page, value && value[0] ? value : MISSING, false);
    }
    tarn__page_html(page, "</tr>\n");
}

/* Options of the first run, then those that only later runs have, each once. */
static void write_differences(tarn__page *page, const comparison *c)
{
    int rows = 0;
    for (int i = 0; i < c->runs; i++)
        for (int k = 0; k < c->run[i].count; k++) {
            const char *name = c->run[i].settings[k].name;
            bool is_seen = !differs(c, name);
            for (int before = 0; before < i; before++)
                is_seen = is_seen || value_of(&c->run[before], name);
            if (is_seen)
                continue;
            if (rows++ == 0)
                tarn__table_begin(page, "Options that differ", c->names, c->runs);
            write_difference(page, c, name);
        }
    if (rows)
        tarn__table_end(page);
    else
        tarn__page_html(page, "<p>All options are equal.</p>\n");
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

/* Also by two names, such as "a" and "a/". */
static bool is_same_folder(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return strcmp(a, b) == 0 ||
           (stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino);
}

static bool check(const char *const *folders, int count, const char *path)
{
    if (tarn_failed())
        return false;
    if (!folders || !path || !path[0])
        return tarn__raise(TARN_ERROR_ARGUMENT, FUNCTION ": the %s missing", folders ? "path is" : "folders are");
    if (count < 2 || count > TARN_MAX_COMPARED)
        return tarn__raise(TARN_ERROR_ARGUMENT, FUNCTION ": %d run%s given; from 2 to %d can be compared", count,
                           count == 1 ? " is" : "s are", TARN_MAX_COMPARED);
    for (int i = 0; i < count; i++) {
        if (!folders[i] || !folders[i][0])
            return tarn__raise(TARN_ERROR_ARGUMENT, FUNCTION ": folder %d is missing", i);
        if (strlen(folders[i]) > 1000)
            return tarn__raise(TARN_ERROR_ARGUMENT, FUNCTION ": the name of folder %d is longer than 1000 bytes", i);
        for (int k = 0; k < i; k++)
            if (is_same_folder(folders[i], folders[k]))
                return tarn__raise(TARN_ERROR_ARGUMENT, FUNCTION ": '%s' is given twice", folders[i]);
    }
    return true;
}

static bool write_page(const comparison *c, const char *path)
{
    char title[64];
    snprintf(title, sizeof(title), "Comparison of %d runs", c->runs);
    tarn__page *page = tarn__page_open(path, title, NULL);
    if (!page)
        return tarn__raise_within(FUNCTION);
    write_results(page, c);
    write_differences(page, c);
    tarn__charts_write(page, c->chart, c->charts);
    return tarn__page_close(page) || tarn__raise_within(FUNCTION);
}

bool tarn_runs_compare(const char *const *folders, int count, const char *path)
{
    comparison *c = check(folders, count, path) ? tarn__alloc(sizeof(*c)) : NULL; /* too large for small stacks */
    if (!c)
        return false;
    bool good = true;
    for (int i = 0; i < count && good; i++) {
        c->runs = i + 1;
        good = read_run(&c->run[i], folders[i]);
    }
    if (good) {
        name_runs(c, folders);
        good = join_all(c) && write_page(c, path);
    }
    free_comparison(c);
    return good;
}
