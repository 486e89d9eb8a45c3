/* test_lr_step.c: runs with the learning rate schedules "step" and "one-cycle". */
#include <math.h>

#include "support/files.h"

/* A small run: an mlp on 300 drawn digits, 10 steps in an epoch, 30 in all, each with a line of its own. */
static tarn_train_options small(const char *folder)
{
    tarn_train_options options = {.model = "mlp",
                                  .data = "digits:300",
                                  .mlp_sizes = {8},
                                  .mlp_size_count = 1,
                                  .batch_size = 30,
                                  .epochs = 3,
                                  .optimizer = "sgd",
                                  .lr = 0.5,
                                  .schedule = "step",
                                  .device = "cpu",
                                  .eval_every = 30,
                                  .log_every = 1,
                                  .seed = 3};
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    return options;
}

typedef struct rates {
    tarn_trainer *trainer;
    int64_t stop_at; /* 0: never */
    double lr[31];   /* of each step, from 1 on; 0: it was not reached */
} rates;

static void listen(const tarn_train_report *report, void *ctx)
{
    rates *r = ctx;
    if (report->kind == TARN_REPORT_TRAINING)
        r->lr[report->step] = report->lr;
    if (r->stop_at && report->step >= r->stop_at)
        tarn_trainer_stop(r->trainer);
}

/* Runs a trainer and frees it; adds to what is known of its steps. */
static void run(tarn_trainer *trainer, int64_t stop_at, rates *r)
{
    r->trainer = trainer;
    r->stop_at = stop_at;
    if (!trainer || !tarn_trainer_run(trainer, listen, r, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
}

static void assert_lr_steps(const rates *r, int64_t warmup, int64_t step_size, double lr_gamma)
{
    for (int64_t step = 1; step <= 30; step++) {
        double expected = step <= warmup ? 0.5 * (double)step / (double)warmup
                                         : 0.5 * pow(lr_gamma, (double)((step - 1 - warmup) / step_size));
        if (fabs(r->lr[step] - expected) > 1e-6 * expected)
            fail_msg("step %lld has the rate %g, not %g", (long long)step, r->lr[step], expected);
    }
}

static void the_rate_falls_every_lr_step_steps_or_epochs(void **state)
{
    (void)state;
    rates by_steps = {0}, by_epochs = {0};
    tarn_train_options options = small("steps");
    options.lr_step = 7;
    options.lr_gamma = 0.5;
    options.warmup = 4;
    run(tarn_trainer_new(&options), 0, &by_steps);
    assert_lr_steps(&by_steps, 4, 7, 0.5);
    options = small("epochs");
    options.lr_step_epochs = 1;
    run(tarn_trainer_new(&options), 0, &by_epochs);
    assert_lr_steps(&by_epochs, 0, 10, 0.1);
}

static void a_resumed_run_has_the_same_lr_steps(void **state)
{
    (void)state;
    rates whole = {0}, parts = {0};
    tarn_train_options options = small("whole"), stopped = small("stopped");
    options.lr_step_epochs = stopped.lr_step_epochs = 1;
    options.lr_gamma = stopped.lr_gamma = 0.25;
    run(tarn_trainer_new(&options), 0, &whole);
    run(tarn_trainer_new(&stopped), 9, &parts); /* just before a drop */
    run(tarn_trainer_resume(stopped.out, NULL), 20, &parts);
    run(tarn_trainer_resume(stopped.out, NULL), 0, &parts);
    assert_lr_steps(&parts, 0, 10, 0.25);
    assert_same_file(options.out, stopped.out, "model.safetensors");
    assert_same_file(options.out, stopped.out, "optimizer.safetensors");
}

/* An extended run has as many more LR steps. */
static void an_extended_run_has_more_lr_steps(void **state)
{
    (void)state;
    rates r = {0};
    tarn_train_options options = small("longer");
    options.lr_step = 10;
    options.epochs = 1;
    run(tarn_trainer_new(&options), 0, &r);
    run(tarn_trainer_resume(options.out, &(tarn_train_options){.epochs = 3}), 0, &r);
    assert_lr_steps(&r, 0, 10, 0.1);
}

static void one_cycle_rises_to_the_rate_and_falls_to_the_last(void **state)
{
    (void)state;
    rates whole = {0}, parts = {0};
    tarn_train_options options = small("cycle"), stopped = small("half-a-cycle");
    snprintf(options.schedule, sizeof(options.schedule), "one-cycle");
    options.min_lr = 0.01;
    memcpy(stopped.schedule, options.schedule, sizeof(stopped.schedule));
    stopped.min_lr = options.min_lr;
    run(tarn_trainer_new(&options), 0, &whole);
    run(tarn_trainer_new(&stopped), 12, &parts);
    run(tarn_trainer_resume(stopped.out, NULL), 0, &parts);
    tarn_schedule schedule = {.kind = TARN_SCHEDULE_ONE_CYCLE, .total_steps = 30, .final_factor = 0.02};
    for (int step = 1; step <= 30; step++) {
        double expected = 0.5 * tarn_schedule_at(&schedule, step - 1);
        if (fabs(whole.lr[step] - expected) > 1e-6 * expected || whole.lr[step] != parts.lr[step])
            fail_msg("step %d has the rate %g, resumed %g, not %g", step, whole.lr[step], parts.lr[step], expected);
    }
    assert_true(fabs(whole.lr[1] - 0.02) < 1e-8 && fabs(whole.lr[9] - 0.5) < 1e-8 && fabs(whole.lr[30] - 0.01) < 1e-8);
    assert_same_file(options.out, stopped.out, "model.safetensors");
    assert_same_file(options.out, stopped.out, "optimizer.safetensors");
}

static void a_config_file_sets_the_schedule(void **state)
{
    (void)state;
    static const char text[] = "{\"schedule\": \"step\", \"lr_step_epochs\": 30, \"lr_gamma\": 0.2}";
    tarn_train_options options = {0};
    put_file(scratch("step.json"), text, sizeof(text) - 1);
    assert_true(tarn_train_options_load(&options, scratch("step.json")));
    assert_string_equal(options.schedule, "step");
    assert_int_equal(options.lr_step_epochs, 30);
    assert_true(options.lr_gamma == 0.2);
}

static void assert_refused(const tarn_train_options *options, const char *text)
{
    assert_null(tarn_trainer_new(options));
    assert_error(TARN_ERROR_ARGUMENT, text);
}

static void a_step_schedule_without_lr_step_and_the_reverse_are_refused(void **state)
{
    (void)state;
    tarn_train_options options = small("refused");
    assert_refused(&options, "needs lr_step (in steps) or lr_step_epochs");
    options.lr_step = options.lr_step_epochs = 2;
    assert_refused(&options, "not both");
    options.lr_step_epochs = 0;
    options.min_lr = 0.1;
    assert_refused(&options, "the schedule is step");
    options.min_lr = 0;
    options.lr_gamma = 1.5;
    assert_refused(&options, "lr_gamma");
    options.lr_gamma = 0;
    options.lr_step = -3;
    assert_refused(&options, "lr_step");
    options = small("refused");
    memset(options.schedule, 0, sizeof(options.schedule));
    options.lr_step = 2;
    assert_refused(&options, "lr_step applies to the schedule step only; the schedule is cosine");
    options.lr_step = 0;
    options.lr_gamma = 0.5;
    assert_refused(&options, "lr_gamma applies to the schedule step");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_rate_falls_every_lr_step_steps_or_epochs),
        in_scope(a_resumed_run_has_the_same_lr_steps),
        in_scope(an_extended_run_has_more_lr_steps),
        in_scope(one_cycle_rises_to_the_rate_and_falls_to_the_last),
        in_scope(a_config_file_sets_the_schedule),
        in_scope(a_step_schedule_without_lr_step_and_the_reverse_are_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
