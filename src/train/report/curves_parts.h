/* curves_parts.h: what the files that make report.html share: the page as it is written, the scale of an axis, and a
 * chart. */
#ifndef TARN__CURVES_PARTS_H
#define TARN__CURVES_PARTS_H

#include <stddef.h>

#include "base/error.h"
#include "base/os/files.h"
#include "train/report/report.h"

/* ---- the page ---------------------------------------------------------------------------------------------------- */

typedef struct tarn__page {
    tarn__output output;
    bool good; /* false: an error was raised, and nothing more is written */
    size_t count;
    char buffer[8192];
} tarn__page;

/* HTML as it stands; made by a format, which must not be given texts from outside; and such texts, escaped, with U+FFFD
 * for what is no letter. */
void tarn__page_html(tarn__page *page, const char *html);
void tarn__page_format(tarn__page *page, const char *format, ...) TARN_PRINTF(2, 3);
void tarn__page_text(tarn__page *page, const char *text);

/* Writes what is in the buffer. */
void tarn__page_flush(tarn__page *page);

extern const char tarn__page_style[], tarn__page_script[];

/* ---- scales ------------------------------------------------------------------------------------------------------ */

#define TARN__MAX_TICKS 16

typedef struct tarn__scale {
    double low, high; /* what the axis spans: low < high */
    bool is_log;
    bool is_share;
    double step; /* between ticks of a linear scale */
    int tick_count;
    double tick[TARN__MAX_TICKS];
} tarn__scale;

/* Scales that hold low to high, with round ticks. A logarithmic one wants 0 < low; a tight one ends where the values
 * do. */
tarn__scale tarn__axis_linear(double low, double high, bool is_tight);
tarn__scale tarn__axis_log(double low, double high);

/* Where a value lies on the scale, from 0 to 1. */
double tarn__axis_position(const tarn__scale *scale, double value);

/* The text of a tick, and of a value: as few digits as are worth it. */
void tarn__tick_text(const tarn__scale *scale, double tick, char *text, size_t size);
void tarn__value_text(double value, bool is_share, char *text, size_t size);

/* A step with its thousands apart: "12,500". */
void tarn__step_text(double step, char *text, size_t size);

/* ---- charts ------------------------------------------------------------------------------------------------------ */

/* What is worth knowing of a series or of several. */
typedef struct tarn__extent {
    int64_t finite, others; /* points, and values that are not finite */
    double low, high;       /* of the finite values */
    double first_step, last_step;
    double last, best, best_step; /* by the chart's aim */
} tarn__extent;

tarn__extent tarn__series_extent(const tarn__report_series *series, tarn__report_goal aim);
tarn__extent tarn__chart_extent(const tarn__report_chart *chart);

/* The drawing, <svg class="CLASS">, with steps along the scale x. */
void tarn__chart_draw(tarn__page *page, const tarn__report_chart *chart, const tarn__scale *x, const tarn__scale *y,
                      const char *class_name);

#endif
