/* test_page.c: report.html of a run shows the settings that apply to it, in words and with rounded values, and no
 * others. */
#include "support/files.h"

static tarn_train_options small(const char *folder)
{
    tarn_train_options options = {
        .data = "digits:120", .batch_size = 30, .epochs = 1, .device = "cpu", .log_every = 1, .seed = 3};
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    return options;
}

/* Runs to the end; gives the page, which the caller frees. */
static char *page_of(const tarn_train_options *options)
{
    char path[1200];
    size_t count;
    tarn_trainer *trainer = tarn_trainer_new(options);
    if (!trainer || !tarn_trainer_run(trainer, NULL, NULL, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    snprintf(path, sizeof(path), "%s/report.html", options->out);
    char *file = get_file(path, &count), *page = malloc(count + 1);
    assert_non_null(page);
    memcpy(page, file, count);
    page[count] = 0;
    free(file);
    return page;
}

static void assert_setting(const char *page, const char *name, const char *value)
{
    char row[300];
    snprintf(row, sizeof(row), "<dt>%s</dt><dd>%s</dd>", name, value);
    if (!strstr(page, row))
        fail_msg("the page does not say: %s: %s", name, value);
}

static void assert_silent_about(const char *page, const char *const *words, int count)
{
    const char *settings = strstr(page, "class=\"settings"), *end = settings ? strstr(settings, "</dl>") : NULL;
    assert_non_null(end);
    for (int i = 0; i < count; i++) {
        const char *found = strstr(settings, words[i]);
        if (found && found < end)
            fail_msg("the page says something of '%s'", words[i]);
    }
}

static void a_classifiers_page_says_what_the_run_is(void **state)
{
    (void)state;
    static const char *const others[] = {"batch_size", "momentum",  "heads",  "Dropout", "Warm-up",
                                         "Patience",   "0.1000000", "Tokens", "clip"};
    tarn_train_options options = small("classifier");
    snprintf(options.model, sizeof(options.model), "mlp");
    snprintf(options.schedule, sizeof(options.schedule), "step");
    options.lr_step = 2;
    options.lr = 0.1;
    options.weight_decay = 0.3;
    char *page = page_of(&options);
    assert_setting(page, "Model", "mlp with hidden layer sizes 128");
    assert_setting(page, "Optimizer", "AdamW, beta2 0.999, weight decay 0.3");
    assert_setting(page, "Learning rate", "0.1, times 0.1 every 2 steps");
    assert_setting(page, "Batch", "30 samples");
    assert_setting(page, "Precision", "f32");
    tarn_device_info cpu;
    char name[300];
    assert_true(tarn_device_query(tarn_device_cpu(), &cpu));
    snprintf(name, sizeof(name), "<dt>CPU</dt><dd>%s, ", cpu.description);
    assert_contains(page, name);
    assert_contains(page, "<span>Loss, training</span>");
    assert_contains(page, "<span>Elapsed time</span>");
    assert_contains(page, "<p class=\"date\">20");
    assert_null(strstr(page, "Perplexity"));
    assert_silent_about(page, others, (int)(sizeof(others) / sizeof(others[0])));
    free(page);
}

static void a_language_models_page_says_what_the_run_is(void **state)
{
    (void)state;
    static const char *const others[] = {"hidden layer", "Label smoothing", "Augmentation",
                                         "Classes",      "momentum",        "0.00069999"};
    char text[2000];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = "abcdefg "[i % 8];
    put_file(scratch("text"), text, sizeof(text));
    tarn_train_options options = small("language");
    snprintf(options.data, sizeof(options.data), "text:%s", scratch("text"));
    options.layers = 1, options.heads = 2, options.hidden_size = 8, options.context = 8;
    options.batch_size = 2;
    options.steps = 6;
    options.warmup = 1;
    options.clip_norm = 0.5;
    options.lr = 0.0007;
    char *page = page_of(&options);
    assert_setting(page, "Size", "1 layer, 2 heads, hidden size 8, FFN size 32");
    assert_setting(page, "Tokenizer", "characters");
    assert_setting(page, "Learning rate", "0.0007, cosine decay to 0");
    assert_setting(page, "Warm-up", "1 step");
    assert_setting(page, "Gradient clipping", "norm 0.5");
    assert_silent_about(page, others, (int)(sizeof(others) / sizeof(others[0])));
    static const char *const charts[] = {"Loss", "Learning rate", "Gradient norm", "Tokens per second",
                                         "Memory in MiB"};
    for (size_t i = 0; i < sizeof(charts) / sizeof(charts[0]); i++) {
        char title[64];
        snprintf(title, sizeof(title), "<h2>%s</h2>", charts[i]);
        if (!strstr(page, title))
            fail_msg("the page has no chart '%s'", charts[i]);
    }
    assert_null(strstr(page, "gradient_norm"));
    assert_contains(page, "<span>Perplexity, validation</span>");
    free(page);
}

/* A language model of one layer on a text that repeats. */
static tarn_train_options small_text(const char *folder)
{
    char text[2000];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = "ab<b>&g "[i % 8];
    put_file(scratch("tagged"), text, sizeof(text));
    tarn_train_options options = small(folder);
    snprintf(options.data, sizeof(options.data), "text:%s", scratch("tagged"));
    options.layers = 1, options.heads = 2, options.hidden_size = 8, options.context = 8;
    options.batch_size = 2, options.steps = 6, options.eval_every = 2, options.sample = 40;
    return options;
}

/* Samples are stored per evaluation; those after the checkpoint that a run resumes from are removed. */
static void samples_of_a_run_are_on_its_page(void **state)
{
    (void)state;
    char path[1200];
    tarn_train_options options = small_text("sampled");
    char *page = page_of(&options);
    assert_contains(page, "<h2>Samples</h2>");
    assert_contains(page, "<h3>step 2</h3>");
    assert_contains(page, "<h3>step 6</h3>");
    free(page);
    snprintf(path, sizeof(path), "%s/samples.jsonl", options.out);
    size_t count, again;
    char *before = get_file(path, &count);
    FILE *file = fopen(path, "a");
    fputs("{\"step\": 7, \"text\": \"stale\"}\n", file);
    fclose(file);
    tarn_trainer *trainer = tarn_trainer_resume(options.out, NULL);
    assert_true(trainer && tarn_trainer_run(trainer, NULL, NULL, NULL));
    tarn_trainer_free(trainer);
    char *after = get_file(path, &again);
    assert_int_equal(again, count);
    assert_memory_equal(after, before, count);
    free(before);
    free(after);
}

/* Number of times that `part` occurs in [text, end). */
static int count_in(const char *text, const char *end, const char *part)
{
    int count = 0;
    while ((text = strstr(text, part)) && text < end) {
        count++;
        text += strlen(part);
    }
    return count;
}

/* What a receiver counts; the page must agree with a pass over the validation set. */
typedef struct tally {
    int64_t confusion[10][10];
    int64_t wrong;
    tarn_prediction worst;
} tally;

static bool add_prediction(const tarn_prediction *p, void *ctx)
{
    tally *t = ctx;
    t->confusion[p->label][p->predicted]++;
    if (p->label != p->predicted && (t->wrong++ == 0 || p->label_probability < t->worst.label_probability))
        t->worst = *p;
    return true;
}

/* The matrix and the worst mistake are those of tarn_run_predict_data(); a picture is a BMP file in the page. */
static void a_classifiers_page_shows_its_mistakes(void **state)
{
    (void)state;
    char cell[200];
    tally t = {.wrong = 0};
    tarn_train_options options = small("mistaken");
    snprintf(options.data, sizeof(options.data), "digits:600");
    char *page = page_of(&options);
    tarn_run *run = tarn_run_open(options.out, tarn_device_cpu());
    assert_true(run && tarn_run_predict_data(run, NULL, 30, add_prediction, &t));
    assert_true(t.wrong > 0); /* an epoch is too little for all of them */
    const char *at = strstr(page, "<h2>Confusion matrix</h2>"), *end = at ? strstr(at, "</section>") : NULL;
    assert_non_null(end);
    for (int i = 0; i < 10; i++) {
        snprintf(cell, sizeof(cell), "<tr><th scope=\"row\">%s</th>", tarn_run_class_name(run, i));
        at = strstr(at, cell);
        assert_true(at && at < end);
        for (int j = 0; j < 10; j++) {
            at = strstr(at, i == j ? "<td class=\"right\"" : "<td class=\"wrong\"");
            at = strchr(at, '>') + 1;
            assert_int_equal(strtoll(at, NULL, 10), t.confusion[i][j]);
        }
    }
    at = strstr(page, "<h2>Worst mistakes</h2>");
    assert_non_null(at);
    end = strstr(at, "</section>");
    assert_int_equal(count_in(at, end, "<figure><img alt=\"\" src=\"data:image/bmp;base64,Qk"),
                     t.wrong < 12 ? t.wrong : 12);
    snprintf(cell, sizeof(cell), "<b>%s</b> %.1f %%<br/>taken for <b>%s</b> %.1f %%<small>sample %lld</small>",
             tarn_run_class_name(run, t.worst.label), 100 * t.worst.label_probability,
             tarn_run_class_name(run, t.worst.predicted), 100 * t.worst.probability, (long long)t.worst.index);
    const char *first = strstr(at, "<figcaption>");
    assert_memory_equal(first + strlen("<figcaption>"), cell, strlen(cell));
    tarn_run_close(run);
    free(page);
}

/* A run that is stopped is left at once: its page has no predictions. */
static void stop_at_once(const tarn_train_report *report, void *ctx)
{
    (void)report;
    tarn_trainer_stop(ctx);
}

static void a_stopped_run_has_no_matrix(void **state)
{
    (void)state;
    char path[1200];
    size_t count;
    tarn_train_options options = small("stopped");
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_true(trainer && tarn_trainer_run(trainer, stop_at_once, trainer, NULL));
    tarn_trainer_free(trainer);
    snprintf(path, sizeof(path), "%s/report.html", options.out);
    char *page = get_file(path, &count);
    page = realloc(page, count + 1);
    page[count] = 0;
    assert_contains(page, "<h2>Loss</h2>");
    assert_null(strstr(page, "Confusion matrix"));
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_classifiers_page_says_what_the_run_is),
        in_scope(a_language_models_page_says_what_the_run_is),
        in_scope(samples_of_a_run_are_on_its_page),
        in_scope(a_classifiers_page_shows_its_mistakes),
        in_scope(a_stopped_run_has_no_matrix),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
