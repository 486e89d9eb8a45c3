/* report.c: layout of the page: title, tiles with the last and best values, settings, and a card per chart.
 *
 * A chart whose values span a wide range is drawn twice, on a linear and on a logarithmic axis, and CSS shows one of
 * them by two radio buttons, so that the choice works without a script. All charts share one axis of steps. */
#include "train/report/report.h"

#include <math.h>

#include "base/memory.h"

#define LOG_LOWEST 1e-100 /* smaller values are noise, and their logarithm would stretch the axis */
#define LOG_OFFERED 5     /* high / low from which a logarithmic axis is offered */
#define LOG_FIRST 20      /* and from which it is the default, for metrics that are minimized */

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Arrays may be NULL for an empty series. */
static bool check_series(const tarn__report_series *series)
{
    return series->name && series->count >= 0 && (series->count == 0 || (series->step && series->value));
}

static bool check(const char *path, const char *title, const tarn__report_setting *settings, int setting_count,
                  const tarn__report_chart *charts, int chart_count)
{
    const char *function = "report_write";
    if (tarn_failed())
        return false;
    if (!path || !path[0] || !title || (!settings && setting_count) || (!charts && chart_count) || setting_count < 0 ||
        chart_count < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the path, the title, the settings or the charts are missing",
                           function);
    for (int i = 0; i < setting_count; i++)
        if (!settings[i].name || !settings[i].value)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: setting %d has no name or no value", function, i);
    for (int i = 0; i < chart_count; i++) {
        if (!charts[i].title || charts[i].series_count < 0 || (!charts[i].series && charts[i].series_count))
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: chart %d has no title or no series", function, i);
        for (int k = 0; k < charts[i].series_count; k++)
            if (!check_series(&charts[i].series[k]))
                return tarn__raise(TARN_ERROR_ARGUMENT, "%s: series %d of chart '%s' has no name or no values",
                                   function, k, charts[i].title);
    }
    return true;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* The last series with points, which is validation where there is one. NULL: none has points. */
static const tarn__report_series *main_series(const tarn__report_chart *chart)
{
    const tarn__report_series *found = NULL;
    for (int i = 0; i < chart->series_count; i++)
        if (tarn__series_extent(&chart->series[i], chart->goal).finite > 0)
            found = &chart->series[i];
    return found;
}

static void write_best(tarn__page *page, const tarn__report_chart *chart, const tarn__extent *extent)
{
    char value[64], step[64];
    if (chart->goal == TARN__GOAL_NONE || extent->finite < 2)
        return;
    tarn__value_text(extent->best, chart->is_fraction, value, sizeof(value));
    tarn__step_text(extent->best_step, step, sizeof(step));
    tarn__page_format(page, "<small>best %s at step %s</small>", value, step);
}

/* One tile per chart with its main series, after one for the steps. */
static void write_tiles(tarn__page *page, const tarn__report_chart *charts, int count, double last_step)
{
    char text[64];
    tarn__step_text(last_step, text, sizeof(text));
    tarn__page_format(page, "<div class=\"tiles\">\n<div><span>Steps</span><b>%s</b></div>\n", text);
    for (int i = 0; i < count; i++) {
        const tarn__report_series *series = main_series(&charts[i]);
        if (!series)
            continue;
        tarn__extent extent = tarn__series_extent(series, charts[i].goal);
        tarn__value_text(extent.last, charts[i].is_fraction, text, sizeof(text));
        tarn__page_html(page, "<div><span>");
        tarn__page_text(page, charts[i].title);
        if (charts[i].series_count > 1) {
            tarn__page_html(page, ", ");
            tarn__page_text(page, series->name);
        }
        tarn__page_format(page, "</span><b>%s</b>", text);
        write_best(page, &charts[i], &extent);
        tarn__page_html(page, "</div>\n");
    }
    tarn__page_html(page, "</div>\n");
}

static void write_settings(tarn__page *page, const tarn__report_setting *settings, int count)
{
    tarn__page_html(page, count ? "<dl class=\"settings card\">\n" : "");
    for (int i = 0; i < count; i++) {
        tarn__page_html(page, "<div><dt>");
        tarn__page_text(page, settings[i].name);
        tarn__page_html(page, "</dt><dd>");
        tarn__page_text(page, settings[i].value);
        tarn__page_html(page, "</dd></div>\n");
    }
    tarn__page_html(page, count ? "</dl>\n" : "");
}

/* ---- cards ------------------------------------------------------------------------------------------------------- */

/* A series without finite values is listed, with a note; one without any points is not. */
static void write_legend(tarn__page *page, const tarn__report_chart *chart)
{
    tarn__page_html(page, "<ul class=\"legend\">\n");
    for (int i = 0; i < chart->series_count; i++) {
        char text[64] = "no finite value";
        tarn__extent extent = tarn__series_extent(&chart->series[i], chart->goal);
        if (chart->series[i].count == 0)
            continue;
        if (extent.finite > 0)
            tarn__value_text(extent.last, chart->is_fraction, text, sizeof(text));
        tarn__page_format(page, "<li><i class=\"c%d\"></i>", i % 6);
        tarn__page_text(page, chart->series[i].name);
        tarn__page_format(page, " <b>%s</b> ", text);
        write_best(page, chart, &extent);
        if (extent.nonfinite > 0 && extent.finite > 0)
            tarn__page_format(page, " <small>%lld not finite</small>", (long long)extent.nonfinite);
        tarn__page_html(page, "</li>\n");
    }
    tarn__page_html(page, "</ul>\n");
}

/* Radio buttons that choose the axis. They float to the right, so the first one is shown rightmost. */
static void write_buttons(tarn__page *page, int number, bool log_first)
{
    static const char *const kinds[] = {"log", "linear"};
    for (int i = 0; i < 2; i++)
        tarn__page_format(page,
                          "<input type=\"radio\" class=\"as%s\" name=\"scale%d\" id=\"scale%d%s\"%s><label "
                          "class=\"%s\" for=\"scale%d%s\">%s</label>\n",
                          kinds[i], number, number, kinds[i], (i == 0) == log_first ? " checked" : "",
                          i == 0 ? "first" : "second", number, kinds[i], kinds[i]);
}

/* A chart without a finite value is omitted. `number` makes the names of its radio buttons unique. */
static void write_chart(tarn__page *page, const tarn__report_chart *chart, int number, const tarn__axis *x)
{
    tarn__extent extent = tarn__chart_extent(chart);
    if (extent.finite == 0)
        return;
    double low = extent.low, high = extent.high;
    bool log_offered = low > LOG_LOWEST && high < 1 / LOG_LOWEST && high / low >= LOG_OFFERED && !chart->is_fraction;
    if (low > 0 && low < .4 * high) /* an axis from 0 shows ratios */
        low = 0;
    tarn__axis linear = tarn__axis_linear(low, high, false);
    linear.is_fraction = chart->is_fraction;
    tarn__page_html(page, "<section class=\"chart card\">\n<div class=\"head\"><h2>");
    tarn__page_text(page, chart->title);
    tarn__page_html(page, "</h2></div>\n");
    if (log_offered)
        write_buttons(page, number, chart->goal == TARN__GOAL_MIN && extent.high / extent.low >= LOG_FIRST);
    write_legend(page, chart);
    tarn__chart_draw(page, chart, x, &linear, log_offered ? "linear" : "only");
    if (log_offered) {
        tarn__axis log_axis = tarn__axis_log(extent.low, extent.high);
        tarn__chart_draw(page, chart, x, &log_axis, "log");
    }
    tarn__page_html(page, "</section>\n");
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

/* One axis of steps for all charts, so that they can be compared. */
static tarn__axis steps_of(const tarn__report_chart *charts, int count)
{
    double first = INFINITY, last = -INFINITY;
    for (int i = 0; i < count; i++) {
        tarn__extent extent = tarn__chart_extent(&charts[i]);
        if (extent.finite > 0) {
            first = fmin(first, extent.first_step);
            last = fmax(last, extent.last_step);
        }
    }
    if (!(first <= last))
        first = last = 0;
    if (first > 0 && first < .1 * last)
        first = 0;
    return first < last ? tarn__axis_linear(first, last, true) : tarn__axis_linear(first - 1, first + 1, true);
}

/* 0 without charts. */
static double last_step(const tarn__report_chart *charts, int count)
{
    double last = 0;
    for (int i = 0; i < count; i++)
        last = fmax(last, tarn__chart_extent(&charts[i]).last_step);
    return last;
}

static void write_page(tarn__page *page, const char *title, const tarn__report_setting *settings, int setting_count,
                       const tarn__report_chart *charts, int chart_count)
{
    tarn__axis x = steps_of(charts, chart_count);
    tarn__page_html(page, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
                          "content=\"width=device-width,initial-scale=1\">\n<title>");
    tarn__page_text(page, title);
    tarn__page_html(page, "</title>\n<style>\n");
    tarn__page_html(page, tarn__page_style);
    tarn__page_html(page, "</style></head>\n<body><main>\n<h1>");
    tarn__page_text(page, title);
    tarn__page_html(page, "</h1>\n");
    write_tiles(page, charts, chart_count, last_step(charts, chart_count));
    write_settings(page, settings, setting_count);
    tarn__page_html(page, "<div class=\"charts\">\n");
    for (int i = 0; i < chart_count; i++)
        write_chart(page, &charts[i], i, &x);
    tarn__page_format(
        page, "</div>\n<footer>tarn %s. Thin lines are values, thick lines are smoothed.</footer>\n</main>\n<script>\n",
        tarn_version());
    tarn__page_html(page, tarn__page_script);
    tarn__page_html(page, "</script>\n</body></html>\n");
    tarn__page_flush(page);
}

/* An atomic write: readers see the old page or the new one. */
bool tarn__report_write(const char *path, const char *title, const tarn__report_setting *settings, int setting_count,
                        const tarn__report_chart *charts, int chart_count)
{
    if (!check(path, title, settings, setting_count, charts, chart_count))
        return false;
    tarn__page *page = tarn__alloc(sizeof(*page)); /* its buffer is too large for small stacks */
    if (!page)
        return false;
    page->good = tarn__output_open(&page->output, "report_write", path);
    bool is_open = page->good;
    if (is_open)
        write_page(page, title, settings, setting_count, charts, chart_count);
    bool good = page->good && tarn__output_commit(&page->output);
    if (is_open && !page->good)
        tarn__output_discard(&page->output);
    tarn__release(page, sizeof(*page));
    return good;
}
