/* test_compare.c: the page that compares runs: the curves and results of each, the options that differ and no others,
 * and strings that are escaped. */
#include <sys/stat.h>

#include "support/files.h"
#include "tarn_features.h"

static char *page; /* the last one that was read; freed by the next and at the end */

/* Writes a run folder with two options that may differ and one that does not. Returns its path, which stays valid. */
static const char *put_run(char *path, const char *name, const char *lr, const char *extra, const char *metrics)
{
    char file[1400], config[1000];
    snprintf(path, 600, "%s", scratch(name));
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(config, sizeof(config),
             "{\"train\": {\"model\": \"lenet\", \"lr\": %s, \"out\": \"%s\", \"mlp_sizes\": [3, 4]%s}}", lr, name,
             extra);
    snprintf(file, sizeof(file), "%s/config.json", path);
    put_file(file, config, strlen(config));
    snprintf(file, sizeof(file), "%s/metrics.jsonl", path);
    put_file(file, metrics, strlen(metrics));
    return path;
}

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

#define FIRST \
    "{\"step\": 10, \"loss\": 2, \"seconds\": 1}\n{\"step\": 10, \"val_loss\": 1.5, \"seconds\": 2}\n" \
    "{\"step\": 20, \"loss\": 1, \"val_loss\": 1.75, \"seconds\": 130}\n"
#define SECOND \
    "{\"step\": 10, \"loss\": 3, \"val_loss\": 0.5, \"lr\": 0.1, \"seconds\": 1}\n" \
    "{\"step\": 40, \"loss\": 0.5, \"seconds\": 3.25}\n"

static void a_page_compares_runs(void **state)
{
    (void)state;
    char paths[3][600];
    const char *folders[] = {put_run(paths[0], "a", "0.1", "", FIRST),
                             put_run(paths[1], "<b>&", "0.25", ", \"warmup\": 7", SECOND),
                             put_run(paths[2], "c", "0.1", "", FIRST)};
    const char *to = scratch("compare.html");
    int files = scratch_count();
    assert_true(tarn_runs_compare(folders, 2, to));
    assert_int_equal(scratch_count(), files + 1); /* nothing temporary stays */
    const char *html = read_page(to);
    assert_contains(html, "Comparison of 2 runs");
    assert_contains(html, "<i class=\"c0\"></i>a</th><th scope=\"col\"><i class=\"c1\"></i>&lt;b&gt;&amp;</th>");
    assert_null(strstr(html, "<b>&"));
    assert_contains(html, ">Steps</th><td>20</td><td>40</td>");
    assert_contains(html, ">Elapsed time</th><td>2 min 10 s</td><td>3.2 s</td>");
    assert_contains(html, ">Loss, training, last</th><td>1</td><td class=\"best\">0.5</td>");
    assert_contains(html, ">Loss, validation, best</th><td>1.5</td><td class=\"best\">0.5</td>");
    assert_contains(html, ">Learning rate, last</th><td>–</td><td>0.1</td>");
    assert_contains(html, ">lr</th><td>0.1</td><td>0.25</td>");
    assert_contains(html, ">warmup</th><td>–</td><td>7</td>");
    assert_null(strstr(html, ">model</th>"));
    assert_null(strstr(html, ">mlp_sizes</th>"));
    assert_null(strstr(html, ">out</th>"));
    assert_contains(html, "<h2>Loss, training</h2>");
    assert_contains(html, "<h2>Loss, validation</h2>");
    assert_contains(html, "data-name=\"&lt;b&gt;&amp;\"");
    assert_contains(html, "prefers-color-scheme:dark");
    assert_null(strstr(html, "http")); /* no other file, no network */
    folders[1] = folders[2];
    assert_true(tarn_runs_compare(folders, 2, to));
    assert_contains(read_page(to), "All options are equal.");
}

static void runs_of_one_name_are_told_apart(void **state)
{
    (void)state;
    char paths[2][600], parent[600];
    snprintf(parent, sizeof(parent), "%s", scratch("d"));
    assert_int_equal(mkdir(parent, 0777), 0);
    const char *folders[] = {put_run(paths[0], "same", "1", "", FIRST), put_run(paths[1], "d/same", "1", "", FIRST)};
    assert_true(tarn_runs_compare(folders, 2, scratch("same.html")));
    const char *html = read_page(scratch("same.html"));
    assert_contains(html, "/d/same</th>");
    assert_null(strstr(html, "</i>same</th>"));
}

static void results_of_other_data_are_not_the_best(void **state)
{
    (void)state;
    char paths[3][600];
    const char *folders[] = {put_run(paths[0], "x", "1", ", \"data\": \"one\"", FIRST),
                             put_run(paths[1], "y", "1", ", \"data\": \"one\"", SECOND),
                             put_run(paths[2], "z", "1", ", \"data\": \"two\"", SECOND)};
    assert_true(tarn_runs_compare(folders, 2, scratch("data.html")));
    assert_contains(read_page(scratch("data.html")), "<td class=\"best\">0.5</td>");
    assert_true(tarn_runs_compare(folders + 1, 2, scratch("data.html")));
    assert_null(strstr(read_page(scratch("data.html")), "<td class=\"best\">"));
}

/* Runs may each have 32 metrics of their own. */
static void all_metrics_of_all_runs_are_shown(void **state)
{
    (void)state;
    char paths[3][600], metrics[1000], title[64];
    const char *folders[3];
    for (int i = 0; i < 3; i++) {
        int length = snprintf(metrics, sizeof(metrics), "{\"step\": 1");
        for (int k = 0; k < 28; k++)
            length += snprintf(metrics + length, sizeof(metrics) - (size_t)length, ", \"metric_%d_%d\": %d", i, k, k);
        snprintf(metrics + length, sizeof(metrics) - (size_t)length, "}\n");
        snprintf(title, sizeof(title), "many%d", i);
        folders[i] = put_run(paths[i], title, "1", "", metrics);
    }
    assert_true(tarn_runs_compare(folders, 3, scratch("many.html")));
    const char *html = read_page(scratch("many.html"));
    int found = 0;
    for (const char *at = html; (at = strstr(at, "<th scope=\"row\">Metric ")); at++)
        found++;
    assert_int_equal(found, 3 * 28);
}

static void what_cannot_be_compared_is_an_error(void **state)
{
    (void)state;
    char paths[3][600], many[9][16];
    const char *to = scratch("never.html");
    const char *folders[9] = {put_run(paths[0], "good", "1", "", FIRST), "/nosuch"};
    assert_false(tarn_runs_compare(folders, 2, to));
    assert_error(TARN_ERROR_IO, "/nosuch/config.json");
    assert_false(tarn_runs_compare(folders, 1, to));
    assert_error(TARN_ERROR_ARGUMENT, "runs_compare: 1 run is given; from 2 to 8 can be compared");
    folders[1] = folders[0];
    assert_false(tarn_runs_compare(folders, 2, to));
    assert_error(TARN_ERROR_ARGUMENT, "is given twice");
    char again[700];
    snprintf(again, sizeof(again), "%s/../good/", folders[0]);
    folders[1] = again;
    assert_false(tarn_runs_compare(folders, 2, to));
    assert_error(TARN_ERROR_ARGUMENT, "is given twice");
    folders[1] = NULL;
    assert_false(tarn_runs_compare(folders, 2, to));
    assert_error(TARN_ERROR_ARGUMENT, "folder 1 is missing");
    assert_false(tarn_runs_compare(NULL, 2, to));
    assert_error(TARN_ERROR_ARGUMENT, "the folders are missing");
    folders[1] = put_run(paths[1], "broken", "1", "", "{\"step\": 1\n{}\n");
    assert_false(tarn_runs_compare(folders, 2, to));
    assert_error_about(TARN_ERROR_FORMAT, "runs_compare: ", "broken/metrics.jsonl: line 1");
    folders[1] = put_run(paths[2], "fine", "1", "", FIRST);
    assert_false(tarn_runs_compare(folders, 2, ""));
    assert_error(TARN_ERROR_ARGUMENT, "the path is missing");
    assert_false(tarn_runs_compare(folders, 2, "/nosuch/page.html"));
    assert_error(TARN_ERROR_IO, "runs_compare: ");
    for (int i = 0; i < 9; i++) {
        snprintf(many[i], sizeof(many[i]), "%d", i);
        folders[i] = many[i];
    }
    assert_false(tarn_runs_compare(folders, 9, to));
    assert_error(TARN_ERROR_ARGUMENT, "9 runs are given; from 2 to 8 can be compared");
}

/* Every allocation fails once; no memory is lost. */
static void memory_runs_out(void **state)
{
    (void)state;
    char paths[2][600], to[600];
    const char *folders[] = {put_run(paths[0], "m", "1", "", FIRST), put_run(paths[1], "n", "2", "", SECOND)};
    snprintf(to, sizeof(to), "%s", scratch("memory.html"));
    assert_true(tarn_set_allocator(&scarce_allocator));
    bool good = false;
    for (int n = 0; !good; n++) {
        assert_true(n < 100);
        allocations_left = n;
        good = tarn_runs_compare(folders, 2, to);
        allocations_left = 1000;
        if (!good)
            assert_error(TARN_ERROR_MEMORY, "");
    }
    assert_true(tarn_set_allocator(NULL));
}

static int remove_page(void **state)
{
    free(page);
    return remove_scratch(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(a_page_compares_runs),
                                       in_scope(runs_of_one_name_are_told_apart),
                                       in_scope(what_cannot_be_compared_is_an_error),
                                       in_scope(results_of_other_data_are_not_the_best),
                                       in_scope(all_metrics_of_all_runs_are_shown),
                                       cmocka_unit_test(memory_runs_out)};
    return TARN__HAVE_JANSSON ? cmocka_run_group_tests(tests, make_scratch, remove_page) : 0;
}
