/* chart.c: one chart as SVG: grid, tick labels and curves. A noisy curve of many points is drawn thin, with a smoothed
 * one over it; a curve of few points has dots.
 *
 * The size of a drawing does not grow with the length of a run: curves are downsampled to MAX_BUCKETS buckets, of which
 * the extremes are kept, so that spikes stay visible. The script reads values back out of the paths, with the ranges
 * in data-x and data-y. */
#include <math.h>
#include <stdio.h>

#include "train/report/report.h"

#define WIDTH 560
#define HEIGHT 290
#define LEFT 66.0 /* plot area inside the drawing; labels are outside it */
#define RIGHT 546.0
#define TOP 10.0
#define BOTTOM 246.0

#define MAX_BUCKETS 600  /* of a downsampled curve: each contributes its minimum and its maximum */
#define FEW_POINTS 40    /* up to here points are dots and nothing is smoothed */
#define SMOOTHED_PART 30 /* the smoothing window reaches over 1 / SMOOTHED_PART of the points on either side */

/* ---- extents ----------------------------------------------------------------------------------------------------- */

#define TOO_LARGE 1e300 /* differences would overflow */

/* A value that can be drawn: finite, and not so large that it overflows. */
static bool is_point(const tarn__report_series *series, int64_t i)
{
    return fabs(series->step[i]) < TOO_LARGE && fabs(series->value[i]) < TOO_LARGE; /* false for NaN */
}

/* Adds a point to an extent; `best` is the first of equal values. */
static void widen(tarn__extent *extent, double step, double value, tarn__report_goal goal)
{
    bool is_first = extent->finite++ == 0;
    bool is_better = goal == TARN__GOAL_MIN ? value < extent->best : goal == TARN__GOAL_MAX && value > extent->best;
    extent->low = is_first || value < extent->low ? value : extent->low;
    extent->high = is_first || value > extent->high ? value : extent->high;
    extent->first_step = is_first || step < extent->first_step ? step : extent->first_step;
    extent->last_step = is_first || step > extent->last_step ? step : extent->last_step;
    extent->last = value;
    if (is_first || is_better) {
        extent->best = value;
        extent->best_step = step;
    }
}

tarn__extent tarn__series_extent(const tarn__report_series *series, tarn__report_goal goal)
{
    tarn__extent extent = {0};
    for (int64_t i = 0; i < series->count; i++) {
        if (is_point(series, i))
            widen(&extent, series->step[i], series->value[i], goal);
        else
            extent.nonfinite++;
    }
    return extent;
}

/* Union of the series: its last and best are not meaningful, only the ranges are. */
tarn__extent tarn__chart_extent(const tarn__report_chart *chart)
{
    tarn__extent all = {0};
    for (int i = 0; i < chart->series_count; i++) {
        tarn__extent one = tarn__series_extent(&chart->series[i], chart->goal);
        if (one.finite > 0) {
            widen(&all, one.first_step, one.low, chart->goal);
            widen(&all, one.last_step, one.high, chart->goal);
        }
    }
    return all;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* The path being written. */
typedef struct plot {
    tarn__page *page;
    const tarn__axis *x, *y;
    bool is_open; /* the current subpath continues */
} plot;

/* SVG's y points down. */
static void draw_to(plot *p, double step, double value)
{
    double x = LEFT + (RIGHT - LEFT) * tarn__axis_position(p->x, step),
           y = BOTTOM - (BOTTOM - TOP) * tarn__axis_position(p->y, value);
    tarn__page_format(p->page, "%c%.2f %.2f", p->is_open ? 'L' : 'M', x, y);
    p->is_open = true;
}

/* All points, or minimum and maximum of each bucket in their order. A non-finite value interrupts the curve. */
static void draw_points(plot *p, const tarn__report_series *s)
{
    int64_t size = s->count > 2 * MAX_BUCKETS ? (s->count + MAX_BUCKETS - 1) / MAX_BUCKETS : 1;
    for (int64_t begin = 0; begin < s->count; begin += size) {
        int64_t end = begin + size < s->count ? begin + size : s->count, low = -1, high = -1;
        bool has_gap = false;
        for (int64_t i = begin; i < end; i++) {
            if (!is_point(s, i)) {
                has_gap = true;
                continue;
            }
            low = low < 0 || s->value[i] < s->value[low] ? i : low;
            high = high < 0 || s->value[i] > s->value[high] ? i : high;
        }
        p->is_open = p->is_open && !has_gap;
        if (low < 0)
            continue;
        int64_t first = low < high ? low : high, second = low < high ? high : low;
        draw_to(p, s->step[first], s->value[first]);
        if (second != first)
            draw_to(p, s->step[second], s->value[second]);
    }
}

/* True for a noisy series: its second differences are about as large as its first differences, or larger. A smooth
 * curve, such as a learning rate schedule, would only be distorted by smoothing. */
static bool is_noisy(const tarn__report_series *s)
{
    double value[2] = {0}, first = 0, second = 0;
    int64_t seen = 0;
    for (int64_t i = 0; i < s->count; i++) {
        if (!is_point(s, i))
            continue;
        first += seen > 0 ? fabs(s->value[i] - value[1]) : 0;
        second += seen > 1 ? fabs(s->value[i] - 2 * value[1] + value[0]) : 0;
        value[0] = value[1];
        value[1] = s->value[i];
        seen++;
    }
    return seen > FEW_POINTS && second > first / 2;
}

int64_t tarn__series_smoothing(const tarn__report_series *s)
{
    return is_noisy(s) ? 2 * (s->count / SMOOTHED_PART) + 1 : 0;
}

/* Weighted mean around point i, with a triangular window. The window is symmetric, so that the curve does not lag; it
 * shrinks towards the ends, to a third at least, so that the curve does not end in a single noisy point. */
static double mean_around(const tarn__report_series *s, int64_t i, int64_t reach)
{
    int64_t before = i, after = s->count - 1 - i, near_end = before < after ? before : after;
    double sum = 0, weight = 0;
    reach = near_end >= reach ? reach : near_end > reach / 3 ? near_end : reach / 3;
    for (int64_t k = i < reach ? -i : -reach; k <= reach && i + k < s->count; k++)
        if (is_point(s, i + k)) {
            double factor = (double)(reach + 1 - (k < 0 ? -k : k)) / (double)(reach + 1);
            sum += factor * s->value[i + k];
            weight += factor;
        }
    return sum / weight;
}

/* Downsampled to MAX_BUCKETS points: the window is wider than a bucket, so none is missed. */
static void draw_smoothed(plot *p, const tarn__report_series *s)
{
    int64_t size = s->count > MAX_BUCKETS ? (s->count + MAX_BUCKETS - 1) / MAX_BUCKETS : 1;
    for (int64_t i = 0; i < s->count; i += size)
        if (is_point(s, i))
            draw_to(p, s->step[i], mean_around(s, i, s->count / SMOOTHED_PART));
}

/* A dot is a zero-length line with round caps. */
static void draw_dots(plot *p, const tarn__report_series *s)
{
    for (int64_t i = 0; i < s->count; i++)
        if (is_point(s, i)) {
            p->is_open = false;
            draw_to(p, s->step[i], s->value[i]);
            tarn__page_html(p->page, "h0");
        }
}

/* Only one path per series has a name, so that the read-out lists each series once. */
static void begin_path(plot *p, const char *kind, int colour, const char *name)
{
    p->is_open = false;
    tarn__page_format(p->page, "<path class=\"%s c%d\"", kind, colour);
    if (name) { /* shown by the read-out */
        tarn__page_html(p->page, " data-name=\"");
        tarn__page_text(p->page, name);
        tarn__page_html(p->page, "\"");
    }
    tarn__page_html(p->page, " d=\"");
}

/* Raw and smoothed curve of a noisy series; dots and line of a short one; else a line. */
static void draw_series(plot *p, const tarn__report_series *s, int colour)
{
    int64_t finite = tarn__series_extent(s, TARN__GOAL_NONE).finite;
    bool is_smoothed = tarn__series_smoothing(s) > 0;
    if (finite == 0)
        return;
    begin_path(p, is_smoothed ? "raw" : "line", colour, s->name);
    draw_points(p, s);
    tarn__page_html(p->page, "\"/>\n");
    if (!is_smoothed && finite > FEW_POINTS)
        return;
    begin_path(p, is_smoothed ? "line" : "dots", colour, NULL);
    if (is_smoothed)
        draw_smoothed(p, s);
    else
        draw_dots(p, s);
    tarn__page_html(p->page, "\"/>\n");
}

/* ---- the frame --------------------------------------------------------------------------------------------------- */

/* Ticks are numbers formatted here: no escaping needed. */
static void draw_axes(tarn__page *page, const tarn__axis *x, const tarn__axis *y)
{
    char text[64];
    for (int i = 0; i < y->tick_count; i++) {
        double at = BOTTOM - (BOTTOM - TOP) * tarn__axis_position(y, y->tick[i]);
        tarn__tick_text(y, y->tick[i], text, sizeof(text));
        tarn__page_format(
            page, "<path class=\"grid\" d=\"M%.1f %.2fH%.1f\"/><text class=\"y\" x=\"%.1f\" y=\"%.2f\">%s</text>\n",
            LEFT, at, RIGHT, LEFT - 8, at + 4, text);
    }
    for (int i = 0; i < x->tick_count; i++) {
        double at = LEFT + (RIGHT - LEFT) * tarn__axis_position(x, x->tick[i]);
        tarn__tick_text(x, x->tick[i], text, sizeof(text));
        tarn__page_format(
            page, "<path class=\"axis\" d=\"M%.2f %.1fv5\"/><text class=\"x\" x=\"%.2f\" y=\"%.1f\">%s</text>\n", at,
            BOTTOM, at, BOTTOM + 19, text);
    }
    tarn__page_format(page,
                      "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/><text class=\"x\" x=\"%.1f\" y=\"%d\">step</text>\n",
                      LEFT, BOTTOM, RIGHT, (LEFT + RIGHT) / 2, HEIGHT - 5);
}

void tarn__chart_draw(tarn__page *page, const tarn__report_chart *chart, const tarn__axis *x, const tarn__axis *y,
                      const char *class_name)
{
    plot p = {.page = page, .x = x, .y = y};
    tarn__page_format(page, "<svg class=\"%s\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", class_name, WIDTH,
                      HEIGHT);
    tarn__page_text(page, chart->title);
    tarn__page_format(
        page,
        "\" data-x=\"%.1f %.1f %.17g %.17g\" data-y=\"%.1f %.1f %.17g %.17g\" data-log=\"%d\" data-fraction=\"%d\">\n",
        LEFT, RIGHT, x->low, x->high, BOTTOM, TOP, y->low, y->high, y->is_log, y->is_fraction);
    draw_axes(page, x, y);
    for (int i = 0; i < chart->series_count; i++)
        draw_series(&p, &chart->series[i], i % TARN__COLOURS);
    tarn__page_format(page, "<path class=\"cursor\" d=\"M0 %.1fV%.1f\"/></svg>\n", TOP, BOTTOM);
}
