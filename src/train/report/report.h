/* report.h: a run as one page for a browser: report.html, with its settings and a chart for each thing that was
 * measured. It needs no other file, no network and no script; a small script adds a read-out under the pointer. */
#ifndef TARN__CURVES_H
#define TARN__CURVES_H

#include <stdbool.h>
#include <stdint.h>

/* A row of the table of settings. */
typedef struct tarn__report_setting {
    const char *name, *value;
} tarn__report_setting;

/* A line of a chart: value[i] at step[i]. Values that are not finite leave a gap and are counted; long lines are
 * thinned out for the page. */
typedef struct tarn__report_series {
    const char *name; /* "training" */
    const double *step, *value;
    int64_t count;
} tarn__report_series;

/* Which values are good ones: the best is pointed out. */
typedef enum tarn__report_goal { TARN__GOAL_NONE = 0, TARN__GOAL_MIN, TARN__GOAL_MAX } tarn__report_goal;

typedef struct tarn__report_chart {
    const char *title; /* "Loss" */
    const tarn__report_series *series;
    int series_count;
    tarn__report_goal aim;
    bool is_share; /* values from 0 to 1 that are shown as percent */
} tarn__report_chart;

/* Writes the page, atomically. Borrows everything; texts may hold anything. Charts without a point are left out. */
bool tarn__report_write(const char *path, const char *title, const tarn__report_setting *facts, int fact_count,
                        const tarn__report_chart *charts, int chart_count);

/* The same from a file of metrics: one JSON object a line with "step" and numbers. loss and val_loss share a chart,
 * as do accuracy and val_accuracy; "epoch", "seconds" and "time" have none; every other number gets one of its own,
 * under its name in words. Lines may lack any of them; null is a number that JSON cannot hold. A step below the one
 * before begins a run that was resumed there: later points of the earlier run are dropped. A last line that was cut is
 * left out; any other line that is no such object is an error with its number. Needs jansson. */
bool tarn__report_write_metrics(const char *path, const char *title, const tarn__report_setting *facts, int fact_count,
                                const char *metrics);

#endif
