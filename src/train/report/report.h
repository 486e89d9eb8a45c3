/* report.h: report.html, one page per run: its settings, the last and best values, a chart per metric, and samples.
 *
 * The page is self-contained: no other file, no network. Charts are SVG and need no script; a small script adds a
 * read-out under the pointer. Layers: series.c reads metrics.jsonl into series, report.c lays the page out, tiles.c
 * writes its headline, samples.c the samples, classes.c what a
 * classifier mistakes, chart.c draws one chart over two axes (axis.c), page.c buffers and
 * escapes the output, style.c holds CSS and script. */
#ifndef TARN__REPORT_H
#define TARN__REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tarn/predict.h>

#include "base/error.h"
#include "base/os/files.h"
#include "train/trainer.h"

/* ---- contents ---------------------------------------------------------------------------------------------------- */

/* One row of the table of settings. */
typedef struct tarn__report_setting {
    const char *name, *value;
} tarn__report_setting;

#define TARN__MAX_SETTINGS 32

/* Settings with their storage; copying the struct would leave `row` pointing into the original. */
typedef struct tarn__report_settings {
    int count;
    tarn__report_setting row[TARN__MAX_SETTINGS]; /* names are literals, values point into `text` */
    char text[TARN__MAX_SETTINGS][1100];
} tarn__report_settings;

/* A curve: value[i] at step[i]. Non-finite values leave a gap and are counted; long series are downsampled. */
typedef struct tarn__report_series {
    const char *name; /* "training" */
    const double *step, *value;
    int64_t count;
} tarn__report_series;

/* Which value counts as the best and is pointed out. */
typedef enum tarn__report_goal { TARN__GOAL_NONE = 0, TARN__GOAL_MIN, TARN__GOAL_MAX } tarn__report_goal;

typedef struct tarn__report_chart {
    const char *title; /* "Loss" */
    const tarn__report_series *series;
    int series_count;
    tarn__report_goal goal;
    bool is_fraction; /* values from 0 to 1, shown as percent */
} tarn__report_chart;

#define TARN__MAX_MISTAKES 12
#define TARN__MAX_MATRIX 20 /* classes of a confusion matrix */

/* A sample that was taken for another class. */
typedef struct tarn__mistake {
    tarn_prediction prediction; /* its path is NULL: see `path` */
    char *path;                 /* image file, relative to the folder of the data, owned; NULL: none */
    tarn_array picture;         /* u8 [1 or 3, H, W], owned; no data: none */
} tarn__mistake;

/* Predictions of a classifier's best weights for its validation set. */
typedef struct tarn__class_results {
    int64_t classes, samples, step;         /* step: of the weights */
    char *const *names;                     /* [classes], borrowed from the trainer */
    int64_t *class_samples, *class_correct; /* [classes], owned */
    int64_t *confusion; /* [classes, classes], owned: samples of class i that were taken for class j; NULL: too many */
    tarn__mistake worst[TARN__MAX_MISTAKES]; /* the least probable own class first */
    int count;
} tarn__class_results;

/* Contents of a page. All is borrowed; strings may hold any bytes. Charts without a finite value are omitted. */
typedef struct tarn__report {
    const char *title;
    const char *date; /* when the page is written; NULL: not shown */
    const tarn__report_setting *settings;
    int setting_count;
    const tarn__report_chart *charts;
    int chart_count;
    double seconds;                     /* elapsed time of the run; 0: not shown */
    const char *samples;                /* path of samples.jsonl; NULL, or no such file: no samples */
    const tarn__class_results *classes; /* NULL: none */
    bool has_perplexity;                /* loss is the cross-entropy per token of a language model */
} tarn__report;

/* Collects the settings that apply to this run. Borrows the trainer. False with an error. */
bool tarn__report_settings_collect(const tarn_trainer *trainer, tarn__report_settings *settings);

/* Writes the page with an atomic write. */
bool tarn__report_write(const char *path, const tarn__report *report);

/* Charts of a metrics file, with the elapsed time of its last line. */
typedef struct tarn__metrics_charts {
    const tarn__report_chart *chart;
    int count;
    double seconds;
} tarn__metrics_charts;

/* Reads a metrics file; the rules are those of tarn__report_write_metrics(). The caller frees the charts. NULL with an
 * error. */
tarn__metrics_charts *tarn__metrics_charts_read(const char *metrics);
void tarn__metrics_charts_free(tarn__metrics_charts *charts); /* NULL is allowed */

/* Writes the page with charts and elapsed time from a metrics file: one JSON object per line with "step" and numbers.
 * loss and val_loss share a chart, as do accuracy and val_accuracy; "epoch" and "time" have none; the last "seconds" is
 * the elapsed time; every other number gets its own chart, titled by its key. A line may lack any key; null is a
 * non-finite number. A step below the previous one starts a resumed segment: later points of the earlier segment are
 * dropped. A truncated last line is ignored; any other malformed line is an error with its number. Needs jansson. */
bool tarn__report_write_metrics(const char *path, const tarn__report *report, const char *metrics);

/* ---- the page (page.c, style.c) ---------------------------------------------------------------------------------- */

/* A buffered page on its way to its file. After an error every call is a no-op, so that callers check once. */
typedef struct tarn__page {
    tarn__output output;
    bool good; /* false: an error was raised */
    size_t count;
    char buffer[8192];
} tarn__page;

/* Appends HTML as is; formatted HTML, without untrusted strings; an untrusted string, escaped, with U+FFFD for invalid
 * UTF-8. */
void tarn__page_html(tarn__page *page, const char *html);
void tarn__page_format(tarn__page *page, const char *format, ...) TARN_PRINTF(2, 3);
void tarn__page_text(tarn__page *page, const char *text);

/* Writes the buffered bytes to the file. */
void tarn__page_flush(tarn__page *page);

/* A table with a label per row. The head has a cell per column, with the colour of curve i; end() closes the table. */
void tarn__table_begin(tarn__page *page, const char *title, const char *const *columns, int count);
void tarn__table_end(tarn__page *page);

extern const char tarn__page_style[], tarn__page_text_style[], tarn__page_script[];

/* Opens the file and writes the page up to the contents of <main>; NULL date: none. close() writes the rest and commits
 * the file, or discards it after an error, and frees the page. NULL, or false, with an error. */
tarn__page *tarn__page_open(const char *path, const char *title, const char *date);
bool tarn__page_close(tarn__page *page);

/* ---- axes (axis.c) ----------------------------------------------------------------------------------------------- */

#define TARN__MAX_TICKS 16

typedef struct tarn__axis {
    double low, high; /* range: low < high */
    bool is_log;
    bool is_fraction; /* ticks in percent */
    double step;      /* between ticks of a linear axis */
    int tick_count;
    double tick[TARN__MAX_TICKS];
} tarn__axis;

/* Axes that include [low, high], with round ticks. A logarithmic one needs 0 < low; a tight one ends at the values. */
tarn__axis tarn__axis_linear(double low, double high, bool is_tight);
tarn__axis tarn__axis_log(double low, double high);

/* The axis of steps, with integer ticks, and a linear one for values: it spans at least 5 % of the largest value, or 5
 * percentage points of fractions, so that it does not magnify noise. */
tarn__axis tarn__axis_steps(double first, double last);
tarn__axis tarn__axis_of_values(double low, double high, bool is_fraction);

/* Position of a value on the axis, from 0 to 1. */
double tarn__axis_position(const tarn__axis *axis, double value);

/* Formats a tick, and a value, with as few digits as are useful. Ticks of one axis are distinct. */
void tarn__tick_text(const tarn__axis *axis, double tick, char *text, size_t size);
void tarn__value_text(double value, bool is_fraction, char *text, size_t size);

/* Formats a step with thousands separators: "12,500". */
void tarn__step_text(double step, char *text, size_t size);

/* Formats a duration: "12.3 s", "4 min 05 s", "2 h 07 min". */
void tarn__duration_text(double seconds, char *text, size_t size);

/* ---- charts (chart.c) -------------------------------------------------------------------------------------------- */

#define TARN__COLOURS 8 /* of curves: classes c0 to c7 */

/* Range, last and best value of a series, or of all series of a chart. */
typedef struct tarn__extent {
    int64_t finite, nonfinite; /* number of points, and of values that cannot be drawn */
    double low, high;          /* of the finite values */
    double first_step, last_step;
    double last, best, best_step; /* by the chart's goal */
} tarn__extent;

tarn__extent tarn__series_extent(const tarn__report_series *series, tarn__report_goal goal);
tarn__extent tarn__chart_extent(const tarn__report_chart *chart);

/* Number of values that the smoothed curve of a noisy series averages; 0: the series is drawn as it is. */
int64_t tarn__series_smoothing(const tarn__report_series *series);

/* Draws the chart as <svg class="CLASS">, with steps along x. */
void tarn__chart_draw(tarn__page *page, const tarn__report_chart *chart, const tarn__axis *x, const tarn__axis *y,
                      const char *class_name);

/* ---- parts of the page ------------------------------------------------------------------------------------------- */

/* The headline figures and the table of settings (tiles.c). */
void tarn__tiles_write(tarn__page *page, const tarn__report *report);
void tarn__settings_write(tarn__page *page, const tarn__report_setting *settings, int count);

/* "best 0.25 at step 500", where the chart has a goal and the series more than one value. */
void tarn__best_write(tarn__page *page, const tarn__report_chart *chart, const tarn__extent *extent);

/* The samples of a run as they changed over its steps: some lines of samples.jsonl, evenly spaced (samples.c). append()
 * adds a line; the text may hold any bytes. */
void tarn__samples_write(tarn__page *page, const char *path);
bool tarn__samples_append(const char *function, const char *path, int64_t step, const char *text, size_t length);

/* Confusion matrix, or table of the classes that are recognized least, and worst mistakes (classes.c). */
void tarn__classes_write(tarn__page *page, const tarn__class_results *results);

/* Collects the results of a run that has ended, with pictures of its mistakes (class_results.c). Owned by the caller;
 * free() allows NULL. NULL after a warning where they cannot be had, and where the run is being stopped. False with an
 * error: the trainer's model has lost its last weights, or the last checkpoint could not be written. */
bool tarn__class_results_collect(const tarn_trainer *trainer, tarn__class_results **results);
void tarn__class_results_free(tarn__class_results *results);

/* A card per chart, over one axis of steps (report.c). */
void tarn__charts_write(tarn__page *page, const tarn__report_chart *charts, int count);

#endif
