/* test_report.c: the page of a run: what it holds, what it escapes, which points it keeps, and that it never holds a
 * number that SVG does not know. A first argument makes the program write a page from the metrics in the second, to
 * look at. */
#include "base/memory.h"
#include "support/files.h"
#include "tarn_features.h"
#include "train/report/report.h"

static char *page; /* the last one that was read; freed by the next and at the end */

static const char *read_page(const char *path)
{
    size_t count;
    free(page);
    char *text = get_file(path, &count);
    page = text ? realloc(text, count + 1) : NULL;
    assert_non_null(page);
    page[count] = 0;
    return page;
}

static bool write_report(const char *path, const char *title, const tarn__report_setting *settings, int setting_count,
                         const tarn__report_chart *charts, int chart_count)
{
    return tarn__report_write(path, &(tarn__report){.title = title,
                                                    .settings = settings,
                                                    .setting_count = setting_count,
                                                    .charts = charts,
                                                    .chart_count = chart_count});
}

static bool write_metrics(const char *path, const char *title, const tarn__report_setting *settings, int setting_count,
                          const char *metrics)
{
    return tarn__report_write_metrics(
        path, &(tarn__report){.title = title, .settings = settings, .setting_count = setting_count}, metrics);
}

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        count++;
    return count;
}

/* Every tag that must be closed is, in its order; attributes stand in quotes; no coordinate is "nan" or "inf". */
static void check_page(const char *html)
{
    const char *stack[64];
    size_t lengths[64];
    int depth = 0;
    for (const char *at = strchr(html, '<'); at; at = strchr(at, '<')) {
        const char *end = at + 1;
        for (bool quoted = false; *end && (quoted || *end != '>'); end++)
            quoted ^= *end == '"';
        assert_true(*end == '>');
        size_t length = strcspn(at + 1, " >/\n");
        bool is_void =
            end[-1] == '/' || at[1] == '!' || strncmp(at + 1, "meta", 4) == 0 || strncmp(at + 1, "input", 5) == 0;
        if (at[1] == '/') {
            size_t name = strcspn(at + 2, ">");
            assert_true(depth > 0);
            depth--;
            assert_true(lengths[depth] == name && strncmp(stack[depth], at + 2, name) == 0);
        } else if (!is_void) {
            assert_true(depth < 64);
            stack[depth] = at + 1;
            lengths[depth++] = length;
        }
        bool is_text = length == 5 && strncmp(at + 1, "style", 5) == 0;
        bool is_code = length == 6 && strncmp(at + 1, "script", 6) == 0;
        at = is_text ? strstr(end, "</style>") : is_code ? strstr(end, "</script>") : end;
    }
    assert_int_equal(depth, 0);
    for (const char *d = strstr(html, " d=\""); d; d = strstr(d + 1, " d=\"")) {
        size_t length = strcspn(d + 4, "\"");
        assert_int_equal(strspn(d + 4, "MLHVvh0123456789.- "), length);
    }
    assert_null(strstr(html, "data-y=\"nan"));
    assert_null(strstr(html, "http")); /* no other file, no network */
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

static void expect_ticks(const tarn__axis *scale, const char *expected)
{
    char all[512] = "", text[64];
    for (int i = 0; i < scale->tick_count; i++) {
        tarn__tick_text(scale, scale->tick[i], text, sizeof(text));
        snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", i ? " " : "", text);
    }
    assert_string_equal(all, expected);
}

static void ticks_are_round(void **state)
{
    (void)state;
    static const struct {
        double low, high;
        bool is_tight;
        const char *ticks;
    } rows[] = {{0, 2.31, false, "0 0.5 1.0 1.5 2.0 2.5"},
                {.862, .9903, false, "0.85 0.90 0.95 1.00"},
                {0, 1000, true, "0 200 400 600 800 1000"},
                {3, 937, true, "200 400 600 800"},
                {0, 48000, true, "0 10k 20k 30k 40k"},
                {-3, 4, false, "-4 -2 0 2 4"},
                {0, 3.2e6, true, "0 1M 2M 3M"},
                {5, 5, false, "4.4 4.6 4.8 5.0 5.2 5.4 5.6"},
                {0, 0, false, "-1.0 -0.5 0.0 0.5 1.0"},
                {1e-5, 3e-5, false, "1e-5 1.5e-5 2e-5 2.5e-5 3e-5"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tarn__axis scale = tarn__axis_linear(rows[i].low, rows[i].high, rows[i].is_tight);
        if (i == 7)
            assert_true(scale.low <= 4.5 && scale.high >= 5.5);
        else if (i == 8)
            assert_true(scale.low <= -1 && scale.high >= 1);
        else
            expect_ticks(&scale, rows[i].ticks);
        assert_true(tarn__axis_position(&scale, rows[i].low) >= -1e-12 &&
                    tarn__axis_position(&scale, rows[i].high) <= 1 + 1e-12);
    }
    tarn__axis scale = tarn__axis_log(.013, 2.4);
    expect_ticks(&scale, "0.01 0.02 0.05 0.1 0.2 0.5 1 2 5");
    scale = tarn__axis_log(1e-6, 30);
    expect_ticks(&scale, "1e-6 1e-5 0.0001 0.001 0.01 0.1 1 10");
    scale = tarn__axis_log(1e-20, 1);
    assert_true(scale.tick_count >= 4 && scale.tick_count <= 9);
}

static void scales_hold_any_values(void **state)
{
    (void)state;
    uint64_t random = test_seed(31);
    for (int i = 0; i < 20000; i++) {
        double a = ldexp((double)random_below(&random, 2000001) - 1000000, (int)random_below(&random, 1900) - 960),
               b = a;
        if (random_below(&random, 4))
            b = ldexp((double)random_below(&random, 2000001) - 1000000, (int)random_below(&random, 1900) - 960);
        double low = fmin(a, b), high = fmax(a, b);
        if (fabs(low) >= 1e300 || fabs(high) >= 1e300)
            continue;
        tarn__axis scale = tarn__axis_linear(low, high, false);
        double first = tarn__axis_position(&scale, low), last = tarn__axis_position(&scale, high);
        if (!(first >= -1e-6 && last <= 1 + 1e-6 && first <= last && scale.tick_count >= 2))
            print_error("%g to %g: %g to %g, %d ticks from %g to %g\n", low, high, first, last, scale.tick_count,
                        scale.low, scale.high);
        assert_true(first >= -1e-6 && last <= 1 + 1e-6 && first <= last && scale.tick_count >= 2);
    }
}

/* Values that hardly change do not fill the axis, and no two ticks of an axis have one label. */
static void axes_of_values_do_not_magnify_noise(void **state)
{
    (void)state;
    tarn__axis axis = tarn__axis_of_values(19.044, 19.047, false);
    assert_true(axis.high - axis.low >= .05 * 19.047);
    expect_ticks(&axis, "18.4 18.6 18.8 19.0 19.2 19.4 19.6");
    axis = tarn__axis_of_values(.9991, .9992, true);
    expect_ticks(&axis, "95 % 96 % 97 % 98 % 99 % 100 %");
    axis = tarn__axis_of_values(0, 0, true);
    expect_ticks(&axis, "0 % 1 % 2 % 3 % 4 % 5 %");
    axis = tarn__axis_of_values(.5, 2, false); /* an axis of ratios starts at 0 */
    assert_true(axis.low == 0);
    axis = tarn__axis_steps(1, 3);
    expect_ticks(&axis, "1 2 3");
    axis = tarn__axis_steps(7, 7);
    expect_ticks(&axis, "6 7 8");
    axis = tarn__axis_steps(1000000, 1000004);
    expect_ticks(&axis, "1000000 1000001 1000002 1000003 1000004");
}

static void ticks_have_labels_of_their_own(void **state)
{
    (void)state;
    uint64_t random = test_seed(57);
    for (int i = 0; i < 5000; i++) {
        double low = ldexp((double)random_below(&random, 2000001) - 1000000, (int)random_below(&random, 80) - 50),
               spread = fabs(low) * pow(10, -(double)random_below(&random, 8));
        bool is_fraction = random_below(&random, 2);
        tarn__axis axes[] = {tarn__axis_linear(low, low + spread, random_below(&random, 2)),
                             tarn__axis_of_values(low, low + spread, is_fraction)};
        for (int k = 0; k < 2; k++) {
            char text[64] = "", before[64] = "";
            for (int j = 0; j < axes[k].tick_count; j++) {
                snprintf(before, sizeof(before), "%s", text);
                tarn__tick_text(&axes[k], axes[k].tick[j], text, sizeof(text));
                if (strcmp(text, before) == 0)
                    fail_msg("%.17g to %.17g: two ticks are labelled %s", low, low + spread, text);
            }
        }
    }
}

static void durations_are_in_words(void **state)
{
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } rows[] = {{.04, "0.0 s"},      {12.34, "12.3 s"},      {99.9, "99.9 s"},     {99.96, "1 min 40 s"},
                {245, "4 min 05 s"}, {3599.6, "1 h 00 min"}, {7620, "2 h 07 min"}, {360000, "100 h 00 min"}};
    char text[64];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tarn__duration_text(rows[i].seconds, text, sizeof(text));
        assert_string_equal(text, rows[i].text);
    }
}

static void numbers_are_short(void **state)
{
    (void)state;
    static const struct {
        double value;
        bool is_fraction;
        const char *text;
    } rows[] = {{.98765, true, "98.77 %"},
                {.1234567, false, "0.1235"},
                {12345.6, false, "12,346"},
                {-1234567, false, "-1,234,567"},
                {999, false, "999"},
                {1e20, false, "1e+20"},
                {0, false, "0"},
                {3e-4, false, "0.0003"}};
    char text[64];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tarn__value_text(rows[i].value, rows[i].is_fraction, text, sizeof(text));
        assert_string_equal(text, rows[i].text);
    }
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

static void a_page_holds_what_it_was_given(void **state)
{
    (void)state;
    const double step[] = {0, 10, 20, 30}, loss[] = {2.3, 1.1, .5, .25}, val[] = {2.2, 1.2, .7, .8},
                 accuracy[] = {.1, .5, .8, .9};
    const tarn__report_series losses[] = {{"training", step, loss, 4}, {"validation", step, val, 4}},
                              one = {"training", step, accuracy, 4};
    const tarn__report_chart charts[] = {{"Loss", losses, 2, TARN__GOAL_MIN, false},
                                         {"Accuracy", &one, 1, TARN__GOAL_MAX, true},
                                         {"Nothing", NULL, 0, 0, false}};
    const tarn__report_setting settings[] = {{"model", "lenet"}, {"batch size", "64"}};
    const char *path = scratch("report.html");
    int files = scratch_count();
    assert_true(write_report(path, "lenet on digits", settings, 2, charts, 3));
    assert_int_equal(scratch_count(), files + 1); /* nothing temporary stays */
    const char *html = read_page(path);
    check_page(html);
    assert_contains(html, "<title>lenet on digits</title>");
    assert_contains(html, "<dt>batch size</dt><dd>64</dd>");
    assert_contains(html, "best 0.7 at step 20");
    assert_contains(html, "best 90.00 % at step 30");
    assert_contains(html, "prefers-color-scheme:dark");
    assert_int_equal(count_of(html, "<section"), 2);
    assert_int_equal(count_of(html, "<svg"), 3); /* the loss on two scales */
    assert_int_equal(count_of(html, "data-name=\"validation\""), 2);
    assert_null(strstr(html, "Nothing"));
    assert_null(strstr(html, "thick:"));                        /* nothing is smoothed */
    assert_true(write_report(path, "again", NULL, 0, NULL, 0)); /* a run that has just begun */
    check_page(read_page(path));
}

/* Training loss stands in the headline next to validation; only a language model has a perplexity. */
static void the_headline_has_both_losses(void **state)
{
    (void)state;
    const double step[] = {10, 20}, loss[] = {1.5, 1.25}, val[] = {1, 2};
    const tarn__report_series losses[] = {{"training", step, loss, 2}, {"validation", step, val, 2}};
    const tarn__report_chart chart = {"Loss", losses, 2, TARN__GOAL_MIN, false};
    tarn__report report = {.title = "x",
                           .date = "2026-11-18 12:00:00",
                           .charts = &chart,
                           .chart_count = 1,
                           .seconds = 245,
                           .has_perplexity = true};
    const char *path = scratch("headline.html");
    assert_true(tarn__report_write(path, &report));
    const char *html = read_page(path);
    check_page(html);
    assert_contains(html, "<span>Loss, training</span><b>1.25</b>");
    assert_contains(html, "<span>Loss, validation</span><b>2</b>");
    assert_contains(html, "<span>Perplexity, validation</span><b>7.389</b><small>best 2.718</small>");
    assert_contains(html, "<span>Elapsed time</span><b>4 min 05 s</b>");
    assert_contains(html, "<p class=\"date\">2026-11-18 12:00:00</p>");
    report.has_perplexity = false;
    report.date = NULL;
    report.seconds = 0;
    assert_true(tarn__report_write(path, &report));
    html = read_page(path);
    assert_null(strstr(html, "Perplexity"));
    assert_null(strstr(html, "Elapsed"));
    assert_null(strstr(html, "<p class=\"date\">"));
}

static void texts_are_escaped(void **state)
{
    (void)state;
    const char *evil = "</title><script>alert('&\"1\")</script>\x01\xFF\xC3(";
    const double step[] = {1, 2}, value[] = {1, 2};
    const tarn__report_series series = {evil, step, value, 2};
    const tarn__report_chart chart = {evil, &series, 1, TARN__GOAL_MIN, false};
    const tarn__report_setting fact = {evil, evil};
    const char *path = scratch("evil.html");
    assert_true(write_report(path, evil, &fact, 1, &chart, 1));
    const char *html = read_page(path);
    check_page(html);
    assert_int_equal(count_of(html, "<script>"), 1); /* the page's own */
    assert_null(strstr(html, "alert('"));
    assert_contains(html,
                    "&lt;script&gt;alert(&#39;&amp;&quot;1&quot;)&lt;/script&gt;\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD(");
}

static void odd_values_leave_gaps(void **state)
{
    (void)state;
    const double step[] = {0, 1, 2, 3, 4, 5}, value[] = {1, NAN, INFINITY, 2, -1e305, 3},
                 none[] = {NAN, NAN, NAN, NAN, NAN, NAN};
    const tarn__report_series series[] = {{"some", step, value, 6}, {"none", step, none, 6}};
    const tarn__report_chart charts[] = {{"Both", series, 2, TARN__GOAL_MIN, false},
                                         {"None", series + 1, 1, TARN__GOAL_MIN, false}};
    const char *path = scratch("gaps.html");
    assert_true(write_report(path, "x", NULL, 0, charts, 2));
    const char *html = read_page(path);
    check_page(html);
    assert_contains(html, "3 not finite");
    assert_contains(html, "no finite value");
    assert_int_equal(count_of(html, "<section"), 1);
    const char *line = strstr(html, "class=\"line c0\"");
    line = strstr(line, " d=\"");
    assert_int_equal(strncmp(line + 4, "M", 1), 0);
    size_t length = strcspn(line + 4, "\"");
    int lifts = 0;
    for (size_t i = 0; i < length; i++)
        lifts += line[4 + i] == 'M';
    assert_int_equal(lifts, 3);
}

static void long_lines_are_thinned_and_keep_their_peaks(void **state)
{
    (void)state;
    enum { COUNT = 300000 };
    double *step = malloc(sizeof(double) * COUNT), *value = malloc(sizeof(double) * COUNT);
    for (int i = 0; i < COUNT; i++) {
        step[i] = i;
        value[i] = i == 123456 ? 9 : 1 + (i % 7) * .01;
    }
    const tarn__report_series series = {"x", step, value, COUNT};
    const tarn__report_chart chart = {"X", &series, 1, TARN__GOAL_NONE, false};
    const char *path = scratch("long.html");
    assert_true(write_report(path, "x", NULL, 0, &chart, 1));
    const char *html = read_page(path);
    check_page(html);
    assert_true(strlen(html) < 120000);
    const char *raw = strstr(html, "class=\"raw c0\"");
    double x = 0, y, highest = 1e9, there = 0;
    for (const char *at = strstr(raw, " d=\"") + 4; *at != '"' && sscanf(at + 1, "%lf %lf", &x, &y) == 2;
         at += 1 + strcspn(at + 1, "L\"")) {
        there = y < highest ? x : there;
        highest = fmin(y, highest);
    }
    tarn__axis scale = tarn__axis_linear(1, 9, false);
    assert_true(fabs(highest - (246 - 236 * tarn__axis_position(&scale, 9))) < 30 &&
                fabs(there - (66 + 480 * 123456 / 299999.0)) < 1);
    free(step);
    free(value);
}

/* A noisy line is smoothed without a lag: the smoothed one of a noisy slope lies on the slope. An exact line is left as
 * it is. */
static void noise_is_smoothed_and_formulas_are_not(void **state)
{
    (void)state;
    enum { COUNT = 500 };
    static double step[COUNT], noisy[COUNT], exact[COUNT];
    uint64_t random = test_seed(77);
    for (int i = 0; i < COUNT; i++) {
        step[i] = i;
        noisy[i] = 10 * (i / 499.0) + 2 * ((double)random_below(&random, 1000001) / 1e6 - .5);
        exact[i] = cos(i * .006);
    }
    const tarn__report_series series[] = {{"noisy", step, noisy, COUNT}, {"exact", step, exact, COUNT}};
    const tarn__report_chart charts[] = {{"Noisy", series, 1, TARN__GOAL_NONE, false},
                                         {"Exact", series + 1, 1, TARN__GOAL_NONE, false}};
    const char *path = scratch("noise.html");
    assert_true(write_report(path, "x", NULL, 0, charts, 2));
    const char *html = read_page(path);
    assert_int_equal(count_of(html, "class=\"raw c0\""), 1);
    assert_int_equal(count_of(html, "class=\"line c0\""), 2);
    assert_int_equal(count_of(html, "thick: mean over 33 values"), 1); /* a legend for the curve that has one */
    tarn__extent extent = tarn__chart_extent(&charts[0]);
    tarn__axis scale = tarn__axis_linear(extent.low, extent.high, false);
    double x, y;
    for (const char *at = strstr(strstr(html, "class=\"line c0\""), " d=\"") + 4; *at != '"';
         at += 1 + strcspn(at + 1, "L\"")) {
        assert_int_equal(sscanf(at + 1, "%lf %lf", &x, &y), 2);
        double part = (x - 66) / 480, value = scale.low + (246 - y) / 236 * (scale.high - scale.low);
        assert_true(fabs(value - 10 * part) < (part > .05 && part < .95 ? .5 : 1.01));
    }
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    const double step[] = {1};
    const tarn__report_series bad[] = {
        {NULL, step, step, 1}, {"a", NULL, step, 1}, {"a", step, NULL, 1}, {"a", step, step, -1}};
    const tarn__report_setting fact = {"a", NULL};
    const tarn__report_chart untitled = {NULL, NULL, 0, 0, false}, empty = {"x", NULL, 1, 0, false};
    const char *path = scratch("never.html");
    for (int i = 0; i < 4; i++) {
        tarn__report_chart chart = {"x", &bad[i], 1, 0, false};
        assert_false(write_report(path, "x", NULL, 0, &chart, 1));
        assert_error(TARN_ERROR_ARGUMENT, "report_write: series 0 of chart 'x'");
    }
    assert_false(write_report(NULL, "x", NULL, 0, NULL, 0) || tarn_failed() == false);
    assert_error(TARN_ERROR_ARGUMENT, "report_write: ");
    assert_false(write_report(path, NULL, NULL, 0, NULL, 0));
    assert_error(TARN_ERROR_ARGUMENT, "report_write: ");
    assert_false(write_report(path, "x", &fact, 1, NULL, 0));
    assert_error(TARN_ERROR_ARGUMENT, "setting 0 has no name or no value");
    assert_false(write_report(path, "x", NULL, 1, NULL, 0));
    assert_error(TARN_ERROR_ARGUMENT, "report_write: ");
    assert_false(write_report(path, "x", NULL, 0, &untitled, 1));
    assert_error(TARN_ERROR_ARGUMENT, "chart 0");
    assert_false(write_report(path, "x", NULL, 0, &empty, 1));
    assert_error(TARN_ERROR_ARGUMENT, "chart 0");
    assert_false(write_report("/nowhere/report.html", "x", NULL, 0, NULL, 0));
    assert_error(TARN_ERROR_IO, "report_write: ");
}

/* With many classes those with the lowest recall are listed, names escaped; pictures keep their colours and rows. */
static void many_classes_are_a_table_and_mistakes_have_pictures(void **state)
{
    (void)state;
    enum { CLASSES = 30 };
    char text[CLASSES][16], *names[CLASSES], path[] = "a&b.png";
    int64_t samples[CLASSES], correct[CLASSES];
    unsigned char pixels[3 * 2 * 1] = {10, 20, 30, 40, 50, 60}; /* [3, 2, 1]: two rows of one pixel */
    for (int i = 0; i < CLASSES; i++) {
        snprintf(text[i], sizeof(text[i]), "<c%d>", i);
        names[i] = text[i];
        samples[i] = i == 3 ? 0 : 10;
        correct[i] = i == 3 ? 0 : i == 7 ? 2 : i == 20 ? 1 : 9;
    }
    tarn__class_results results = {
        .classes = CLASSES,
        .samples = 290,
        .step = 1500,
        .names = names,
        .class_samples = samples,
        .class_correct = correct,
        .worst[0] = {.prediction = {.label = 20, .predicted = 7, .probability = .875, .label_probability = .0625},
                     .path = path,
                     .picture = {.data = pixels, .dtype = TARN_U8, .shape = {3, {3, 2, 1}}}},
        .count = 1};
    const char *to = scratch("classes.html");
    assert_true(tarn__report_write(to, &(tarn__report){.title = "x", .classes = &results}));
    const char *html = read_page(to);
    check_page(html);
    assert_null(strstr(html, "Confusion matrix"));
    assert_int_equal(count_of(html, "<th scope=\"row\">"), 20);
    const char *first = strstr(html, "<th scope=\"row\">&lt;c20&gt;</th><td>10</td><td>1</td><td>10.0 %</td>"),
               *second = strstr(html, "<th scope=\"row\">&lt;c7&gt;</th><td>10</td><td>2</td><td>20.0 %</td>"),
               *third = strstr(html, "<th scope=\"row\">&lt;c0&gt;</th><td>10</td><td>9</td><td>90.0 %</td>");
    assert_true(first && first < second && second < third);
    assert_null(strstr(html, "&lt;c3&gt;")); /* no samples, so nothing can be said */
    assert_contains(html, "validation set, 290 samples, best weights (step 1,500)");
    assert_contains(html, "<b>&lt;c20&gt;</b> 6.2 %<br/>taken for <b>&lt;c7&gt;</b> 87.5 %<small>a&amp;b.png</small>");
    /* 54 bytes of headers are 72 characters; then the lower row, BGR and a byte of padding, then the upper one */
    const char *picture = strstr(html, "base64,") + 7;
    assert_int_equal(strcspn(picture, "\""), 84);
    assert_memory_equal(picture + 72, "PCgUADIeCgA=", 12);
}

/* The first and the last sample are shown, and some between them; any bytes are accepted. */
static void samples_are_shown_as_they_changed(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    const char evil[] = "</pre><script>alert(1)</script>\xC3\0\xFF\xC3\xA9";
    char path[600], longest[2100];
    snprintf(path, sizeof(path), "%s", scratch("samples.jsonl"));
    memset(longest, 'a', sizeof(longest));
    memcpy(longest + 1999, "\xC3\xA9", 2); /* a cut after 2000 bytes would split it */
    assert_true(tarn__samples_append("test", path, 10, evil, sizeof(evil) - 1));
    for (int i = 2; i < 30; i++)
        assert_true(tarn__samples_append("test", path, 10 * i, "middle", 6));
    assert_true(tarn__samples_append("test", path, 300, longest, sizeof(longest)));
    const char *to = scratch("samples.html");
    assert_true(tarn__report_write(to, &(tarn__report){.title = "x", .samples = path}));
    const char *html = read_page(to);
    check_page(html);
    assert_int_equal(count_of(html, "<h3>step "), 8);
    assert_contains(html,
                    "<h3>step 10</h3><pre>&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;\xEF\xBF\xBD\xEF\xBF\xBD"
                    "\xEF\xBF\xBD\xC3\xA9</pre>");
    assert_contains(html, "<h3>step 300</h3><pre>aaa");
    assert_contains(html, "aaa …</pre>");
    FILE *file = fopen(path, "a");
    fputs("{\"step\": 400, \"te", file); /* truncated by a kill */
    fclose(file);
    assert_true(tarn__report_write(to, &(tarn__report){.title = "x", .samples = path}));
    assert_null(strstr(read_page(to), "step 400"));
    assert_true(tarn__report_write(to, &(tarn__report){.title = "x", .samples = write_text("none.jsonl", "")}));
    assert_null(strstr(read_page(to), "<h2>Samples"));
    const char *bad = write_text("bad.jsonl", "{\"step\": 1, \"text\": 5}\nno JSON\n{\"text\": \"a\"}\n"
                                              "{\"step\": 2, \"text\": \"one\\r\\ntwo\"}\n");
    assert_true(tarn__report_write(to, &(tarn__report){.title = "x", .samples = bad}));
    assert_ok();
    assert_int_equal(count_of(html = read_page(to), "<h3>step "), 1);
    assert_contains(html, "<h3>step 2</h3><pre>one\r\ntwo</pre>");
}

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

static void metrics_become_charts(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    const char *metrics =
        write_text("metrics.jsonl",
                   "{\"step\": 10, \"epoch\": 0, \"loss\": 2.5, \"accuracy\": 0.2, \"lr\": 0.1, \"note\": \"text\"}\n"
                   "\n{\"step\": 20, \"loss\": 1.5, \"grad_norm\": 3, \"seconds\": 9}\r\n"
                   "{\"step\": 20, \"val_loss\": 1.75, \"val_accuracy\": 0.5}\n{\"step\": 30, \"loss\": null}\n"
                   "{\"step\": 40, \"lo");
    const char *path = scratch("metrics.html");
    assert_true(write_metrics(path, "x", NULL, 0, metrics));
    const char *html = read_page(path);
    check_page(html);
    /* loss, accuracy, learning rate, and one by the words of its key */
    assert_int_equal(count_of(html, "<section"), 4);
    assert_contains(html, "1 not finite");
    assert_contains(html, "data-name=\"grad norm\"");
    assert_contains(html, "<h2>Grad norm</h2>");
    assert_contains(html, "<span>Loss, validation</span><b>1.75</b>");
    assert_contains(html, "<span>Elapsed time</span><b>9.0 s</b>");
    assert_null(strstr(html, "seconds</h2>"));
    assert_true(strstr(html, ">Loss</h2>") < strstr(html, ">Accuracy</h2>"));
}

static void a_resumed_run_replaces_what_did_not_last(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    const char *metrics = write_text(
        "resumed.jsonl", "{\"step\": 10, \"loss\": 4}\n{\"step\": 20, \"loss\": 3}\n{\"step\": 30, \"loss\": 99}\n"
                         "{\"step\": 40, \"loss\": 99}\n{\"step\": 30, \"loss\": 2}\n{\"step\": 30, \"loss\": 1}\n");
    const char *path = scratch("resumed.html");
    assert_true(write_metrics(path, "x", NULL, 0, metrics));
    const char *html = read_page(path);
    assert_contains(html, "<b>1</b>");
    assert_contains(html, "<span>Steps</span><b>30</b>");
    const char *line = strstr(strstr(html, "class=\"line c0\""), " d=\"") + 4;
    int points = 0;
    for (size_t i = 0; i < strcspn(line, "\""); i++)
        points += line[i] == 'M' || line[i] == 'L';
    assert_int_equal(points, 3);
}

static void broken_metrics_are_refused(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    static const struct {
        const char *text, *error;
    } rows[] = {{"{\"step\": 1}\n{\"step\": \n{\"step\": 2}\n", "line 2 is not a JSON object"},
                {"[1]\n", "line 1 is not a JSON object"},
                {"{\"loss\": 1}\n", "line 1 has no number \"step\""},
                {"{\"step\": \"1\"}\n", "line 1 has no number"},
                {"{\"step\": 1, \"step\": 2}\n", "line 1 is not a JSON object: duplicate"},
                {"{\"step\": 1, \"a\": \"\xFF\"}\n", "line 1"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_false(write_metrics(scratch("never.html"), "x", NULL, 0, write_text("broken.jsonl", rows[i].text)));
        assert_error_about(TARN_ERROR_FORMAT, "broken.jsonl: line ", rows[i].error);
    }
    static char many[4096] = "{\"step\": 1";
    for (int i = 0; i < 33; i++)
        snprintf(many + strlen(many), sizeof(many) - strlen(many), ", \"k%d\": 1", i);
    strcat(many, "}\n");
    assert_false(write_metrics(scratch("never.html"), "x", NULL, 0, write_text("many.jsonl", many)));
    assert_error(TARN_ERROR_UNSUPPORTED, "more than 32 keys");
    assert_false(write_metrics(scratch("never.html"), "x", NULL, 0, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "the path of the metrics is NULL");
    assert_false(write_metrics(scratch("never.html"), "x", NULL, 0, scratch("nosuch.jsonl")));
    assert_error(TARN_ERROR_IO, "report_write_metrics: ");
    assert_true(write_metrics(scratch("empty.html"), "x", NULL, 0, write_text("empty.jsonl", "")));
}

static void memory_runs_out(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    char metrics[600], path[600];
    snprintf(metrics, sizeof(metrics), "%s",
             write_text("some.jsonl", "{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"loss\": 2, \"lr\": 1}\n"));
    snprintf(path, sizeof(path), "%s", scratch("some.html"));
    assert_true(tarn_set_allocator(&scarce_allocator));
    bool good = false;
    for (int n = 0; !good; n++) {
        assert_true(n < 50);
        allocations_left = n;
        good = write_metrics(path, "x", NULL, 0, metrics);
        allocations_left = 1000;
        if (!good)
            assert_error(TARN_ERROR_MEMORY, "");
        assert_int_equal(tarn__memory_in_use(), 0);
    }
    assert_true(tarn_set_allocator(NULL));
}

static int remove_page(void **state)
{
    free(page);
    return remove_scratch(state);
}

static int write_to_look_at(const char *path, const char *metrics)
{
    static const tarn__report_setting settings[] = {{"model", "lenet"},
                                                    {"data", "digits"},
                                                    {"parameters", "61,706"},
                                                    {"device", "cpu"},
                                                    {"optimizer", "adamw"},
                                                    {"learning rate", "0.001"},
                                                    {"schedule", "cosine, 100 steps of warm-up"},
                                                    {"batch size", "64"},
                                                    {"epochs", "10"},
                                                    {"seed", "1"},
                                                    {"weight decay", "0.01"}};
    bool good =
        write_metrics(path, "lenet on digits, cpu", settings, (int)(sizeof(settings) / sizeof(settings[0])), metrics);
    if (!good)
        fprintf(stderr, "%s\n", tarn_error());
    return good ? 0 : 1;
}

int main(int count, char **arguments)
{
    if (count == 3)
        return write_to_look_at(arguments[1], arguments[2]);
    const struct CMUnitTest tests[] = {in_scope(ticks_are_round),
                                       in_scope(scales_hold_any_values),
                                       in_scope(axes_of_values_do_not_magnify_noise),
                                       in_scope(ticks_have_labels_of_their_own),
                                       in_scope(durations_are_in_words),
                                       in_scope(numbers_are_short),
                                       in_scope(the_headline_has_both_losses),
                                       in_scope(a_page_holds_what_it_was_given),
                                       in_scope(texts_are_escaped),
                                       in_scope(odd_values_leave_gaps),
                                       in_scope(long_lines_are_thinned_and_keep_their_peaks),
                                       in_scope(noise_is_smoothed_and_formulas_are_not),
                                       in_scope(mistakes_are_refused),
                                       in_scope(many_classes_are_a_table_and_mistakes_have_pictures),
                                       in_scope(samples_are_shown_as_they_changed),
                                       in_scope(metrics_become_charts),
                                       in_scope(a_resumed_run_replaces_what_did_not_last),
                                       in_scope(broken_metrics_are_refused),
                                       cmocka_unit_test(memory_runs_out)};
    return cmocka_run_group_tests(tests, make_scratch, remove_page);
}
