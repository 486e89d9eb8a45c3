/* test_step_graph.c: runs whose steps are captured, on a device with graphs: bitwise identical to eager steps, whatever
 * takes part in them, and no transfers between host and device but batches. */
#include <math.h>
#include <stdlib.h>
#include <tarn/profile.h>
#include <tarn/train.h>

#include "support/files.h"

/* A text that is easy to train on. */
static const char *make_text(void)
{
    static char path[1200];
    static const char line[] = "the cat sat on the mat; a dog ran by.\n";
    char text[1601];
    for (int i = 0; i < 1600; i++)
        text[i] = line[(size_t)i % (sizeof(line) - 1)];
    text[1600] = 0;
    snprintf(path, sizeof(path), "%s", write_text("text.txt", text));
    return path;
}

/* One block of width 16 on windows of 10 characters, 4 in a step; dropout everywhere, also in attention. */
static tarn_train_options language(void)
{
    tarn_train_options options = {.layers = 1,
                                  .heads = 2,
                                  .hidden_size = 16,
                                  .context = 10,
                                  .batch_size = 4,
                                  .dropout = 0.2,
                                  .steps = 24,
                                  .lr = 0.01,
                                  .min_lr = 0.001,
                                  .warmup = 5,
                                  .weight_decay = 0.1,
                                  .clip_norm = 0.8,
                                  .device = "mirror:0",
                                  .eval_every = 8,
                                  .eval_batches = 2,
                                  .log_every = 3,
                                  .seed = 5};
    snprintf(options.data, sizeof(options.data), "text:%s", make_text());
    return options;
}

/* A classifier of drawn digits, 6 in a step. */
static tarn_train_options classifier(const char *model)
{
    tarn_train_options options = {.data = "digits:60",
                                  .batch_size = 6,
                                  .steps = 12,
                                  .lr = 0.01,
                                  .label_smoothing = 0.1,
                                  .augment = true,
                                  .device = "mirror:0",
                                  .eval_every = 6,
                                  .log_every = 3,
                                  .seed = 5};
    snprintf(options.model, sizeof(options.model), "%s", model);
    return options;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

typedef struct story {
    tarn_trainer *trainer;
    int64_t stop_at; /* 0: never */
    int reports;
    double loss[64], norm[64]; /* of every report */
} story;

static void listen(const tarn_train_report *report, void *ctx)
{
    story *s = ctx;
    assert_true(s->reports < 64);
    s->loss[s->reports] = report->loss;
    s->norm[s->reports++] = report->gradient_norm;
    if (s->stop_at && report->step >= s->stop_at)
        tarn_trainer_stop(s->trainer);
}

static story run(tarn_trainer *trainer, int64_t stop_at)
{
    story s = {.trainer = trainer, .stop_at = stop_at};
    if (!trainer || !tarn_trainer_run(trainer, listen, &s, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    assert_ok();
    return s;
}

static story run_in(tarn_train_options options, const char *folder, const char *capture, int64_t stop_at)
{
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    snprintf(options.capture, sizeof(options.capture), "%s", capture);
    return run(tarn_trainer_new(&options), stop_at);
}

static void assert_same_in_runs(const char *folder, const char *other, const char *name)
{
    assert_same_file(scratch(folder), scratch(other), name);
}

/* Weights, moments, step counts and everything that was reported. */
static void assert_same_runs(tarn_train_options options)
{
    char eager[32], captured[32];
    static int number;
    snprintf(eager, sizeof(eager), "eager%d", ++number);
    snprintf(captured, sizeof(captured), "captured%d", number);
    story a = run_in(options, eager, "off", 0), b = run_in(options, captured, "on", 0);
    assert_int_equal(a.reports, b.reports);
    for (int i = 0; i < a.reports; i++)
        if (a.loss[i] != b.loss[i] || a.norm[i] != b.norm[i])
            fail_msg("report %d: loss %.17g and %.17g, norm %.17g and %.17g", i, a.loss[i], b.loss[i], a.norm[i],
                     b.norm[i]);
    assert_same_in_runs(eager, captured, "model.safetensors");
    assert_same_in_runs(eager, captured, "optimizer.safetensors");
    if (options.ema > 0)
        assert_same_in_runs(eager, captured, "ema.safetensors");
}

/* ---- bitwise identical ------------------------------------------------------------------------------------------- */

static void a_language_model_with_dropout_clipping_and_a_schedule(void **state)
{
    (void)state;
    assert_same_runs(language());
}

static void micro_batches_are_captured_together(void **state)
{
    (void)state;
    tarn_train_options options = language();
    options.micro_batch = 1;
    assert_same_runs(options);
}

static void master_weights_and_recomputed_blocks(void **state)
{
    (void)state;
    tarn_train_options options = language();
    snprintf(options.precision, sizeof(options.precision), "bf16");
    snprintf(options.recompute, sizeof(options.recompute), "full");
    options.ema = 0.8;
    assert_same_runs(options);
}

static void classifiers_with_every_optimizer(void **state)
{
    (void)state;
    tarn_train_options options = classifier("lenet");
    options.clip_norm = 1;
    options.workers = 2;
    assert_same_runs(options);
    snprintf(options.optimizer, sizeof(options.optimizer), "sgd");
    options.momentum = 0.9;
    options.weight_decay = 0.01;
    options.workers = 0;
    assert_same_runs(options);
}

static void running_statistics_of_batchnorms(void **state)
{
    (void)state;
    tarn_train_options options = classifier("resnet20");
    options.batch_size = 2;
    options.steps = options.eval_every = 6;
    snprintf(options.data, sizeof(options.data), "digits:20");
    options.ema = 0.8; /* reached by the warm-up after 35 steps: each replay has a decay of its own */
    assert_same_runs(options);
}

/* One launch per virtual rank: dropout, two micro-batches each, weights in bf16, recomputed layers, an average. */
static void virtual_ranks(void **state)
{
    (void)state;
    tarn_train_options options = language();
    options.virtual_ranks = 4;
    assert_same_runs(options);
    options.batch_size = 8;
    options.micro_batch = 1;
    assert_same_runs(options);
    snprintf(options.precision, sizeof(options.precision), "bf16");
    snprintf(options.recompute, sizeof(options.recompute), "full");
    options.ema = 0.8;
    assert_same_runs(options);
}

/* Statistics of batchnorms start anew for each virtual rank; correct answers are counted. */
static void virtual_ranks_of_classifiers(void **state)
{
    (void)state;
    tarn_train_options options = classifier("resnet20");
    options.batch_size = 4;
    options.virtual_ranks = 2;
    options.steps = options.eval_every = 6;
    snprintf(options.data, sizeof(options.data), "digits:20");
    assert_same_runs(options);
}

/* Forward and backward are graph launches; sums, clipping and the optimizer remain eager. */
static void virtual_ranks_take_few_kernels_when_captured(void **state)
{
    (void)state;
    int64_t kernels[2];
    for (int captured = 0; captured < 2; captured++) {
        tarn_train_options options = language();
        options.virtual_ranks = 4;
        int64_t before = tarn_stats().kernels;
        run_in(options, captured ? "few" : "many", captured ? "on" : "off", 0);
        kernels[captured] = tarn_stats().kernels - before;
    }
    if (kernels[1] > kernels[0] / 2)
        fail_msg("%lld kernels captured, %lld eager", (long long)kernels[1], (long long)kernels[0]);
}

static void a_run_is_resumed_captured_or_not(void **state)
{
    (void)state;
    static const char *const first[] = {"on", "off", "on"}, *const second[] = {"on", "on", "off"};
    run_in(language(), "whole", "off", 0);
    for (int i = 0; i < 3; i++) {
        char folder[32];
        tarn_train_options change = {0};
        snprintf(folder, sizeof(folder), "parts%d", i);
        run_in(language(), folder, first[i], 13); /* which is no evaluation's step */
        snprintf(change.capture, sizeof(change.capture), "%s", second[i]);
        run(tarn_trainer_resume(scratch(folder), &change), 0);
        assert_same_in_runs("whole", folder, "model.safetensors");
        assert_same_in_runs("whole", folder, "optimizer.safetensors");
    }
}

/* ---- what it costs ----------------------------------------------------------------------------------------------- */

typedef struct traffic {
    int64_t first_downloads, downloads, first_kernels, kernels, used;
} traffic;

static void count(const tarn_train_report *report, void *ctx)
{
    traffic *t = ctx;
    tarn_counters now = tarn_stats();
    if (report->kind != TARN_REPORT_TRAINING)
        return;
    if (report->step == 10) {
        t->first_downloads = now.downloads;
        t->first_kernels = now.kernels;
        t->used = tarn_memory_of(tarn_device_parse("mirror:0")).used;
    } else {
        t->downloads = now.downloads;
        t->kernels = now.kernels;
        assert_int_equal(tarn_memory_of(tarn_device_parse("mirror:0")).used, t->used);
    }
}

static void nothing_is_read_between_lines_of_metrics(void **state)
{
    (void)state;
    traffic t = {0};
    tarn_train_options options = language();
    options.steps = options.eval_every = 30;
    options.log_every = 10;
    snprintf(options.out, sizeof(options.out), "%s", scratch("traffic"));
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_true(tarn_trainer_run(trainer, count, &t, NULL));
    tarn_trainer_free(trainer);
    assert_int_equal(t.downloads - t.first_downloads, 2 * 2); /* losses and norms, after steps 20 and 30 */
    /* of a step: two fields of its batch to their static tensors, two metrics to theirs */
    assert_true(t.kernels - t.first_kernels <= 20 * 4 + 4);
}

static void its_memory_comes_back(void **state)
{
    (void)state;
    tarn_device device = tarn_device_parse("mirror:0");
    int64_t before = tarn_memory_of(device).used;
    run_in(language(), "memory", "on", 0);
    assert_int_equal(tarn_memory_of(device).used, before);
}

/* ---- who decides ------------------------------------------------------------------------------------------------- */

static bool captures(tarn_train_options options, const char *capture)
{
    tarn_train_plan plan;
    snprintf(options.out, sizeof(options.out), "%s", scratch("never"));
    snprintf(options.capture, sizeof(options.capture), "%s", capture);
    tarn_trainer *trainer = tarn_trainer_new(&options);
    if (!trainer)
        return false;
    assert_true(tarn_trainer_plan(trainer, &plan));
    tarn_trainer_free(trainer);
    return plan.captures;
}

static void the_plan_says_whether_steps_are_captured(void **state)
{
    (void)state;
    tarn_train_options options = language();
    assert_true(captures(options, "auto"));
    assert_true(captures(options, ""));
    assert_true(captures(options, "on"));
    assert_false(captures(options, "off"));
    options.batch_size = 17;
    options.micro_batch = 1; /* many small parts: only when asked for */
    assert_false(captures(options, "auto"));
    assert_true(captures(options, "on"));
    assert_ok();
    options = language();
    snprintf(options.device, sizeof(options.device), "cpu");
    assert_false(captures(options, "auto"));
    assert_ok();
    assert_false(captures(options, "on"));
    assert_error(TARN_ERROR_ARGUMENT, "capture is on, but cpu does not support graph capture");
    options = language();
    options.virtual_ranks = 4;
    assert_true(captures(options, "auto"));
    assert_true(captures(options, "on"));
    snprintf(options.reduce, sizeof(options.reduce), "fast");
    assert_false(captures(options, "auto"));
    assert_ok();
    assert_false(captures(options, "on"));
    assert_error(TARN_ERROR_ARGUMENT, "capture is on, but with reduce fast a rank accumulates several virtual_ranks; "
                                      "use .capture auto");
}

/* ---- a loss that is not finite ----------------------------------------------------------------------------------- */

static void a_loss_that_is_not_finite_is_found_all_the_same(void **state)
{
    (void)state;
    char error[2][64];
    for (int captured = 0; captured < 2; captured++) {
        tarn_train_options options = classifier("mlp");
        snprintf(options.optimizer, sizeof(options.optimizer), "sgd");
        snprintf(options.capture, sizeof(options.capture), "%s", captured ? "on" : "off");
        snprintf(options.out, sizeof(options.out), "%s", scratch(captured ? "diverges-captured" : "diverges"));
        options.lr = 1e5;
        options.warmup = 8;
        options.log_every = 10; /* so the bad one is in the middle */
        options.steps = options.eval_every = 40;
        tarn_trainer *trainer = tarn_trainer_new(&options);
        assert_ok();
        assert_false(tarn_trainer_run(trainer, NULL, NULL, NULL));
        snprintf(error[captured], sizeof(error[captured]), "%s", tarn_error());
        assert_error(TARN_ERROR_ARGUMENT, "is not finite; the state before that step is in");
        tarn_trainer_free(trainer);
    }
    error[0][50] = error[1][50] = 0; /* before the folder's name */
    print_message("%s\n", error[0]);
    assert_string_equal(error[0], error[1]);
    assert_same_in_runs("diverges", "diverges-captured", "model.safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_language_model_with_dropout_clipping_and_a_schedule),
        in_scope(micro_batches_are_captured_together),
        in_scope(master_weights_and_recomputed_blocks),
        in_scope(classifiers_with_every_optimizer),
        in_scope(running_statistics_of_batchnorms),
        in_scope(virtual_ranks),
        in_scope(virtual_ranks_of_classifiers),
        in_scope(virtual_ranks_take_few_kernels_when_captured),
        in_scope(a_run_is_resumed_captured_or_not),
        in_scope(nothing_is_read_between_lines_of_metrics),
        in_scope(its_memory_comes_back),
        in_scope(the_plan_says_whether_steps_are_captured),
        in_scope(a_loss_that_is_not_finite_is_found_all_the_same),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
