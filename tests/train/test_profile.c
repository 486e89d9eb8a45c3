/* test_profile.c: a profile of a run, and how long a step takes: what is measured, and that the run is the same with
 * and without it. */
#include <math.h>
#include <tarn/train.h>

#include "support/check.h"
#include "support/files.h"
#include "support/trace.h"

static const char *make_text(void)
{
    char text[2001];
    for (int i = 0; i < 2000; i++)
        text[i] = "one two three four five; \n"[i % 26];
    text[2000] = 0;
    return write_text("numbers.txt", text);
}

static tarn_train_options text_run(const char *folder, const char *device)
{
    tarn_train_options o = {.layers = 1,
                            .heads = 2,
                            .hidden_size = 16,
                            .context = 12,
                            .batch_size = 8,
                            .micro_batch = 4,
                            .steps = 30,
                            .eval_every = 24,
                            .eval_batches = 1,
                            .log_every = 5,
                            .clip_norm = 1,
                            .workers = 1};
    snprintf(o.data, sizeof(o.data), "text:%s", make_text());
    snprintf(o.out, sizeof(o.out), "%s", scratch(folder));
    snprintf(o.device, sizeof(o.device), "%s", device);
    return o;
}

/* What the reports of a run had. */
typedef struct seen {
    int training, utilization, validations;
    double last_left;
} seen;

static void look(const tarn_train_report *r, void *ctx)
{
    seen *s = ctx;
    if (r->kind != TARN_REPORT_TRAINING)
        return;
    s->training++;
    s->utilization += r->utilization > 0 && r->utilization <= 1;
    s->validations += !isnan(r->val_loss);
    s->last_left = r->eta;
}

static tarn_train_result run(const tarn_train_options *options, int64_t profiled, seen *s)
{
    tarn_train_result result = {0};
    tarn_trainer *trainer = tarn_trainer_new(options);
    if (!trainer || !tarn_trainer_profile(trainer, profiled) || !tarn_trainer_run(trainer, look, s, &result))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    return result;
}

static void assert_same_files(const char *a, const char *b)
{
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 2; i++) {
        char path[2][1200];
        size_t count[2];
        snprintf(path[0], sizeof(path[0]), "%s/%s", scratch(a), names[i]);
        snprintf(path[1], sizeof(path[1]), "%s/%s", scratch(b), names[i]);
        char *x = get_file(path[0], &count[0]), *y = get_file(path[1], &count[1]);
        if (count[0] != count[1] || memcmp(x, y, count[0]) != 0)
            fail_msg("%s and %s differ", path[0], path[1]);
        free(x);
        free(y);
    }
}

static void assert_parts_within_steps(const trace *t, int steps, int micro_batches)
{
    assert_int_equal(count_events(t, TRACE_HOST, "step"), steps);
    assert_int_equal(count_events(t, TRACE_HOST, "forward"), steps * micro_batches);
    assert_int_equal(count_events(t, TRACE_HOST, "backward"), steps * micro_batches);
    assert_int_equal(count_events(t, TRACE_HOST, "update"), steps);
    assert_nested(t);
}

static void a_profiled_run_is_the_same_run(void **state)
{
    (void)state;
    seen with = {0}, without = {0};
    tarn_train_options plain = text_run("plain", "cpu"), profiled = text_run("profiled", "cpu");
    assert_int_equal(run(&plain, 0, &without).profiled, 0);
    assert_int_equal(run(&profiled, 6, &with).profiled, 6);
    assert_same_files("plain", "profiled");
    assert_true(without.training > 3 && without.utilization > 0 && without.validations > 0 && without.last_left == 0);
    tarn_profile_summary sum;
    assert_true(tarn_profile_summarize(&sum, NULL, 0));
    assert_true(sum.utilization > 0 && sum.part[TARN_PART_MATMUL] > 0 && sum.part[TARN_PART_ATTENTION] > 0);
    char path[1200];
    snprintf(path, sizeof(path), "%s/trace.json", scratch("profiled"));
    trace t = read_trace(path);
    assert_parts_within_steps(&t, 6, 2);
    free_trace(&t);
    tarn_profile_clear();
}

/* On a device with memory of its own batches travel while a step is under way. Its steps are recorded but for those of
 * the profile: the run is the same nevertheless. */
static void batches_travel_during_steps_of_a_run(void **state)
{
    (void)state;
    seen s = {0}, unseen = {0};
    tarn_train_options options = text_run("mirror", "mirror:0"), plain = text_run("mirror-plain", "mirror:0");
    run(&plain, 0, &unseen);
    assert_int_equal(run(&options, 8, &s).profiled, 8);
    assert_same_files("mirror", "mirror-plain");
    char path[1200];
    snprintf(path, sizeof(path), "%s/trace.json", scratch("mirror"));
    trace t = read_trace(path);
    assert_parts_within_steps(&t, 8, 2);
    assert_true(count_events(&t, TRACE_DEVICE, "batch") >= 8);
    assert_true(count_overlaps(&t, "forward") > 0); /* its own batch was there before; this is the next one */
    free_trace(&t);
    tarn_profile_clear();
}

/* Between two evaluations there are four steps: a longer profile is that long. */
static void a_profile_does_not_reach_over_an_evaluation(void **state)
{
    (void)state;
    seen s = {0};
    tarn_train_options options = text_run("short", "cpu");
    options.eval_every = 4;
    assert_int_equal(run(&options, 9, &s).profiled, 4);
    tarn_train_options two = text_run("two", "cpu");
    two.steps = 2;
    assert_int_equal(run(&two, 9, &s).profiled, 2);
    tarn_profile_clear();
}

/* ---- how long a step takes --------------------------------------------------------------------------------------- */

static void assert_sensible(const tarn_train_timing *t)
{
    double parts = t->batch_ms + t->forward_ms + t->backward_ms + t->update_ms;
    assert_true(t->min_step_ms > 0 && t->min_step_ms <= t->step_ms);
    assert_true(t->forward_ms > 0 && t->backward_ms > 0 && t->update_ms > 0 && t->host_ms > 0 && parts > 0);
    assert_true(t->utilization > 0 && t->utilization <= 1);
    const tarn_memory_kinds *m = &t->memory;
    assert_true(m->parameters >= 4 * t->parameters && m->gradients == m->parameters && m->state == 2 * m->parameters);
    assert_true(m->activations > 0);
    assert_int_equal(m->peak, m->parameters + m->gradients + m->state + m->activations + m->workspace);
}

static void steps_on_random_tokens_are_measured(void **state)
{
    (void)state;
    tarn_train_timing t;
    tarn_train_options o = {.model = "gpt2-124m",
                            .layers = 2,
                            .heads = 2,
                            .hidden_size = 16,
                            .context = 8,
                            .vocab_size = 64,
                            .batch_size = 4,
                            .device = "cpu"};
    if (!tarn_train_measure(1, 3, &t, &o))
        fail_msg("%s", tarn_error());
    assert_sensible(&t);
    int64_t block = 16 * 48 + 48 + 16 * 16 + 16 + 16 * 64 + 64 + 64 * 16 + 16 + 4 * 16;
    assert_int_equal(t.parameters, 64 * 16 + 8 * 16 + 2 * block + 2 * 16);
    assert_int_equal(t.tokens, 32);
    assert_true(t.flops == 32 * (6.0 * (double)t.parameters + 12.0 * 2 * 16 * 8));
}

static void steps_on_random_images_are_measured_on_any_device(void **state)
{
    (void)state;
    static const char *const models[] = {"mlp", "lenet"};
    for (int i = 0; i < 2; i++) {
        tarn_train_timing t;
        tarn_train_options o = {.batch_size = 4, .device = "mirror:0"};
        snprintf(o.model, sizeof(o.model), "%s", models[i]);
        if (!tarn_train_measure(1, 2, &t, &o))
            fail_msg("%s", tarn_error());
        assert_sensible(&t);
        assert_int_equal(t.samples, 4);
        assert_int_equal(t.tokens, 0);
        assert_true(t.flops == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_profiled_run_is_the_same_run),
        in_scope(batches_travel_during_steps_of_a_run),
        in_scope(a_profile_does_not_reach_over_an_evaluation),
        in_scope(steps_on_random_tokens_are_measured),
        in_scope(steps_on_random_images_are_measured_on_any_device),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
