/* report.c: layout of the page: headline figures, settings, a card per chart, and samples.
 *
 * A chart whose values span a wide range is drawn twice, on a linear and on a logarithmic axis, and CSS shows one of
 * them by two radio buttons, so that the choice works without a script. All charts share one axis of steps. */
#include "train/report/report.h"

#include <math.h>

#define LOG_LOWEST 1e-100 /* smaller values are noise, and their logarithm would stretch the axis */
#define LOG_OFFERED 5     /* high / low from which a logarithmic axis is offered */
#define LOG_FIRST 20      /* and from which it is the default, for metrics that are minimized */

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Arrays may be NULL for an empty series. */
static bool check_series(const tarn__report_series *series)
{
    return series->name && series->count >= 0 && (series->count == 0 || (series->step && series->value));
}

static bool check(const char *path, const tarn__report *r)
{
    const char *function = "report_write";
    if (tarn_failed())
        return false;
    if (!path || !path[0] || !r || !r->title || (!r->settings && r->setting_count) || (!r->charts && r->chart_count) ||
        r->setting_count < 0 || r->chart_count < 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the path, the title, the settings or the charts are missing",
                           function);
    const tarn__report_chart *charts = r->charts;
    for (int i = 0; i < r->setting_count; i++)
        if (!r->settings[i].name || !r->settings[i].value)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: setting %d has no name or no value", function, i);
    for (int i = 0; i < r->chart_count; i++) {
        if (!charts[i].title || charts[i].series_count < 0 || (!charts[i].series && charts[i].series_count))
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: chart %d has no title or no series", function, i);
        for (int k = 0; k < charts[i].series_count; k++)
            if (!check_series(&charts[i].series[k]))
                return tarn__raise(TARN_ERROR_ARGUMENT, "%s: series %d of chart '%s' has no name or no values",
                                   function, k, charts[i].title);
    }
    return true;
}

/* ---- cards ------------------------------------------------------------------------------------------------------- */

/* A series without finite values is listed, with a note; one without any points is not. A smoothed curve is named: its
 * points are not those of the run. */
static void write_legend(tarn__page *page, const tarn__report_chart *chart)
{
    tarn__page_html(page, "<ul class=\"legend\">\n");
    for (int i = 0; i < chart->series_count; i++) {
        char text[64];
        const tarn__report_series *series = &chart->series[i];
        tarn__extent extent = tarn__series_extent(series, chart->goal);
        int64_t smoothing = tarn__series_smoothing(series);
        if (series->count == 0)
            continue;
        tarn__page_format(page, "<li><i class=\"c%d\"></i>", i % TARN__COLOURS);
        tarn__page_text(page, series->name);
        if (extent.finite > 0) {
            tarn__value_text(extent.last, chart->is_fraction, text, sizeof(text));
            tarn__page_format(page, " last <b>%s</b> ", text);
        } else {
            tarn__page_html(page, " no finite value");
        }
        tarn__best_write(page, chart, &extent);
        if (extent.nonfinite > 0 && extent.finite > 0)
            tarn__page_format(page, " <small>%lld not finite</small>", (long long)extent.nonfinite);
        if (smoothing > 0)
            tarn__page_format(page, " <small>thin: values; thick: mean over %lld values</small>", (long long)smoothing);
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
    tarn__axis linear = tarn__axis_of_values(low, high, chart->is_fraction);
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
    return first <= last ? tarn__axis_steps(first, last) : tarn__axis_steps(0, 0);
}

void tarn__charts_write(tarn__page *page, const tarn__report_chart *charts, int count)
{
    tarn__axis x = steps_of(charts, count);
    tarn__page_html(page, "<div class=\"charts\">\n");
    for (int i = 0; i < count; i++)
        write_chart(page, &charts[i], i, &x);
    tarn__page_html(page, "</div>\n");
}

bool tarn__report_write(const char *path, const tarn__report *report)
{
    tarn__page *page = check(path, report) ? tarn__page_open(path, report->title, report->date) : NULL;
    if (!page)
        return false;
    tarn__tiles_write(page, report);
    tarn__settings_write(page, report->settings, report->setting_count);
    tarn__charts_write(page, report->charts, report->chart_count);
    tarn__samples_write(page, report->samples);
    if (report->classes)
        tarn__classes_write(page, report->classes);
    return tarn__page_close(page);
}
