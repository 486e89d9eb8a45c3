/* tiles.c: the headline of a page: steps, elapsed time, the last and best value of each metric, and the settings. */
#include <math.h>

#include "train/report/report.h"

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

void tarn__best_write(tarn__page *page, const tarn__report_chart *chart, const tarn__extent *extent)
{
    char value[64], step[64];
    if (chart->goal == TARN__GOAL_NONE || extent->finite < 2)
        return;
    tarn__value_text(extent->best, chart->is_fraction, value, sizeof(value));
    tarn__step_text(extent->best_step, step, sizeof(step));
    tarn__page_format(page, "<small>best %s at step %s</small>", value, step);
}

/* One tile per series with a finite value. */
static void write_chart_tiles(tarn__page *page, const tarn__report_chart *chart)
{
    char text[64];
    for (int i = 0; i < chart->series_count; i++) {
        tarn__extent extent = tarn__series_extent(&chart->series[i], chart->goal);
        if (extent.finite == 0)
            continue;
        tarn__value_text(extent.last, chart->is_fraction, text, sizeof(text));
        tarn__page_html(page, "<div><span>");
        tarn__page_text(page, chart->title);
        if (chart->series_count > 1) {
            tarn__page_html(page, ", ");
            tarn__page_text(page, chart->series[i].name);
        }
        tarn__page_format(page, "</span><b>%s</b>", text);
        tarn__best_write(page, chart, &extent);
        tarn__page_html(page, "</div>\n");
    }
}

/* Perplexity is exp(loss), here of the last series of the chart of losses: validation, where there is one. */
static void write_perplexity(tarn__page *page, const tarn__report_chart *losses)
{
    const tarn__report_series *found = NULL;
    char text[64];
    for (int i = 0; i < losses->series_count; i++)
        if (tarn__series_extent(&losses->series[i], losses->goal).finite > 0)
            found = &losses->series[i];
    if (!found)
        return;
    tarn__extent extent = tarn__series_extent(found, losses->goal);
    if (!(exp(extent.last) < 1e15))
        return;
    tarn__value_text(exp(extent.last), false, text, sizeof(text));
    tarn__page_html(page, "<div><span>Perplexity, ");
    tarn__page_text(page, found->name);
    tarn__page_format(page, "</span><b>%s</b>", text);
    tarn__value_text(exp(extent.best), false, text, sizeof(text));
    if (extent.finite > 1)
        tarn__page_format(page, "<small>best %s</small>", text);
    tarn__page_html(page, "</div>\n");
}

/* 0 without charts. */
static double last_step(const tarn__report *r)
{
    double last = 0;
    for (int i = 0; i < r->chart_count; i++)
        last = fmax(last, tarn__chart_extent(&r->charts[i]).last_step);
    return last;
}

/* Charts with a goal come first in every report; the first of them is the loss. */
void tarn__tiles_write(tarn__page *page, const tarn__report *r)
{
    char text[64];
    tarn__step_text(last_step(r), text, sizeof(text));
    tarn__page_format(page, "<div class=\"tiles\">\n<div><span>Steps</span><b>%s</b></div>\n", text);
    if (r->seconds > 0) {
        tarn__duration_text(r->seconds, text, sizeof(text));
        tarn__page_format(page, "<div><span>Elapsed time</span><b>%s</b></div>\n", text);
    }
    for (int i = 0; i < r->chart_count; i++) {
        write_chart_tiles(page, &r->charts[i]);
        if (i == 0 && r->has_perplexity)
            write_perplexity(page, &r->charts[i]);
    }
    tarn__page_html(page, "</div>\n");
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

void tarn__settings_write(tarn__page *page, const tarn__report_setting *settings, int count)
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
