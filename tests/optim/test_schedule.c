/* Schedules of the learning rate, and parameter groups. */
#include "support/check.h"

#define PI 3.14159265358979323846

static tarn_device cpu;

static void assert_factors(const tarn_schedule *schedule, const double *expected, int count)
{
    for (int i = 0; i < count; i++) {
        double factor = tarn_schedule_at(schedule, i);
        if (!(fabs(factor - expected[i]) < 1e-12))
            fail_msg("step %d has the factor %.15g, not %.15g", i, factor, expected[i]);
    }
    assert_ok();
}

static void a_schedule_rises_and_then_falls_as_its_kind_says(void **state)
{
    (void)state;
    assert_factors(&(tarn_schedule){0}, (double[]){1, 1, 1}, 3);
    assert_factors(&(tarn_schedule){.warmup_steps = 4}, (double[]){0.25, 0.5, 0.75, 1, 1, 1}, 6);
    assert_factors(&(tarn_schedule){.kind = TARN_SCHEDULE_LINEAR, .total_steps = 4},
                   (double[]){1, 0.75, 0.5, 0.25, 0, 0}, 6);
    assert_factors(
        &(tarn_schedule){.kind = TARN_SCHEDULE_LINEAR, .warmup_steps = 2, .total_steps = 6, .final_factor = 0.2},
        (double[]){0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2}, 8);
    assert_factors(&(tarn_schedule){.kind = TARN_SCHEDULE_COSINE, .total_steps = 4},
                   (double[]){1, 0.5 + sqrt(0.125), 0.5, 0.5 - sqrt(0.125), 0, 0}, 6);
    assert_factors(
        &(tarn_schedule){.kind = TARN_SCHEDULE_COSINE, .warmup_steps = 1, .total_steps = 3, .final_factor = 0.5},
        (double[]){1, 1, 0.75, 0.5, 0.5}, 5);
    assert_factors(&(tarn_schedule){.kind = TARN_SCHEDULE_STEP, .step_size = 2, .gamma = 0.5},
                   (double[]){1, 1, 0.5, 0.5, 0.25}, 5);
    assert_factors(&(tarn_schedule){.kind = TARN_SCHEDULE_STEP, .step_size = 1, .warmup_steps = 1},
                   (double[]){1, 1, 0.1, 0.01}, 4);
    assert_factors(&(tarn_schedule){.kind = TARN_SCHEDULE_ONE_CYCLE,
                                    .warmup_steps = 3,
                                    .total_steps = 7,
                                    .start_factor = 0.2,
                                    .final_factor = 0.1},
                   (double[]){0.2, 0.6, 1, 0.55 + 0.45 * sqrt(0.5), 0.55, 0.55 - 0.45 * sqrt(0.5), 0.1, 0.1}, 8);
    /* 0.3 of 15 steps: the peak is between steps 3 and 4 */
    assert_factors(&(tarn_schedule){.kind = TARN_SCHEDULE_ONE_CYCLE, .total_steps = 15},
                   (double[]){0.04, 0.52 - 0.48 * cos(PI / 3.5), 0.52 - 0.48 * cos(PI * 2 / 3.5),
                              0.52 - 0.48 * cos(PI * 3 / 3.5), 0.5 + 0.5 * cos(PI * 0.5 / 10.5)},
                   5);
    assert_factors(&(tarn_schedule){.kind = TARN_SCHEDULE_ONE_CYCLE, .total_steps = 2}, (double[]){1, 0, 0}, 3);
}

/* Two parameters, of 1, named "body.weight" [2, 2] and "body.bias" [2]. */
static tarn_module *module_new(void)
{
    tarn_module *body = tarn_module_new("body", unchanged, NULL, NULL),
                *module = tarn_module_new("all", unchanged, NULL, NULL);
    tarn_module_add_parameter(body, "weight", tarn_ones(TARN_SHAPE(2, 2), TARN_F64, cpu));
    tarn_module_add_parameter(body, "bias", tarn_ones(TARN_SHAPE(2), TARN_F64, cpu));
    tarn_module_add_child(module, "body", body);
    assert_ok();
    return module;
}

static void give(tarn_module *module, double value)
{
    for (int i = 0; i < 2; i++) {
        tarn_tensor *parameter = tarn_module_parameter(module, i);
        tarn_backward_from(parameter, tarn_full(tarn_shape_of(parameter), value, TARN_F64, cpu), NULL);
    }
    assert_ok();
}

static double weight(tarn_module *module)
{
    return tarn_item_at(tarn_module_find(module, "body.weight"), TARN_SHAPE(1, 1));
}

static double bias(tarn_module *module)
{
    return tarn_item_at(tarn_module_find(module, "body.bias"), TARN_SHAPE(1));
}

static void each_step_takes_its_rate_from_the_schedule(void **state)
{
    (void)state;
    tarn_module *module = module_new();
    tarn_optimizer *sgd = tarn_sgd(module, &(tarn_sgd_options){.lr = 0.5f});
    tarn_schedule schedule = {.kind = TARN_SCHEDULE_LINEAR, .warmup_steps = 2, .total_steps = 6};
    assert_true(tarn_optimizer_set_schedule(sgd, &schedule));
    double expected = 1;
    for (int step = 0; step < 8; step++) {
        assert_int_equal(tarn_optimizer_steps(sgd), step);
        assert_true(tarn_optimizer_lr(sgd) == 0.5 * tarn_schedule_at(&schedule, step));
        expected -= 0.5 * tarn_schedule_at(&schedule, step);
        give(module, 1);
        assert_true(tarn_optimizer_step(sgd));
    }
    assert_true(fabs(weight(module) - expected) < 1e-14 && fabs(bias(module) - expected) < 1e-14);
    assert_true(tarn_optimizer_set_lr(sgd, 0.25)); /* what the schedule scales */
    assert_true(
        tarn_optimizer_set_schedule(sgd, &(tarn_schedule){.kind = TARN_SCHEDULE_STEP, .step_size = 4, .gamma = 0.5}));
    assert_true(tarn_optimizer_lr(sgd) == 0.0625);
    assert_true(tarn_optimizer_set_schedule(sgd, NULL));
    assert_true(tarn_optimizer_lr(sgd) == 0.25);
    tarn_optimizer_free(sgd);
    tarn_module_free(module);
}

static void groups_have_rates_of_their_own(void **state)
{
    (void)state;
    tarn_module *module = module_new();
    tarn_parameter_group groups[] = {{.names = "*.bias", .lr_scale = 0.5f, .no_decay = true},
                                     {.names = "body.w*", .weight_decay = 0.5f}};
    tarn_optimizer *sgd =
        tarn_sgd(module, &(tarn_sgd_options){.lr = 0.25f, .weight_decay = 4, .groups = groups, .group_count = 2});
    give(module, 1);
    assert_true(tarn_optimizer_step(sgd));
    assert_true(weight(module) == 1 - 0.25 * 1.5 && bias(module) == 1 - 0.125);
    tarn_optimizer_free(sgd);
    groups[0] = (tarn_parameter_group){.names = "????.bias", .weight_decay = 0.5f}; /* vectors too, where it is said */
    tarn_optimizer *adam = tarn_adamw(module, &(tarn_adamw_options){.lr = 0.5f, .groups = groups, .group_count = 1});
    double before_weight = weight(module), before_bias = bias(module);
    give(module, 1);
    assert_true(tarn_optimizer_step(adam));
    assert_true(fabs(weight(module) - (before_weight - 0.5)) < 1e-7);
    assert_true(fabs(bias(module) - (before_bias * 0.75 - 0.5)) < 1e-7);
    tarn_optimizer_free(adam);
    tarn_module_free(module);
}

static void a_group_that_gets_no_parameter_is_an_error(void **state)
{
    (void)state;
    tarn_module *module = module_new();
    tarn_parameter_group groups[] = {{.names = "body.*"}, {.names = "*.bias", .no_decay = true}};
    assert_null(tarn_sgd(module, &(tarn_sgd_options){.lr = 1, .groups = groups, .group_count = 2}));
    assert_error_about(TARN_ERROR_ARGUMENT, "sgd: no parameter is in group '*.bias'", "groups before it");
    static const char *const wrong[] = {"bias", "*.bia", "body.weigh?t", "body.weight?", "?", "x*"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        groups[0].names = wrong[i];
        assert_null(tarn_adam(module, &(tarn_adam_options){.lr = 1, .groups = groups, .group_count = 1}));
        assert_error_about(TARN_ERROR_ARGUMENT, "adam: no parameter is in group", wrong[i]);
    }
    static const char *const right[] = {"*", "*.bias", "*b*.*ias*", "body.bias", "body.????", "**bias"};
    for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
        groups[0].names = right[i];
        tarn_optimizer *adam = tarn_adam(module, &(tarn_adam_options){.lr = 1, .groups = groups, .group_count = 1});
        assert_ok();
        tarn_optimizer_free(adam);
    }
    tarn_module_free(module);
}

/* m and v begin at 0, so that the first step moves each element by lr against the sign of g + decay · p; the second is
 * written out. */
static void adam_adds_its_decay_to_the_gradient(void **state)
{
    (void)state;
    tarn_module *module = module_new();
    tarn_optimizer *adam =
        tarn_adam(module, &(tarn_adam_options){.lr = 0.125f, .weight_decay = 0.5f, .beta1 = 0.5f, .beta2 = 0.75f});
    double p = 1, m = 0, v = 0;
    for (int t = 1; t <= 5; t++) {
        double g = sin(t) + 0.5 * p;
        m = 0.5 * m + 0.5 * g;
        v = 0.75 * v + 0.25 * g * g;
        p -= 0.125 * (m / (1 - pow(0.5, t))) / (sqrt(v / (1 - pow(0.75, t))) + 1e-8);
        give(module, sin(t));
        assert_true(tarn_optimizer_step(adam));
    }
    assert_true(fabs(weight(module) - p) < 1e-12 && fabs(bias(module) - p) < 1e-12);
    tarn_optimizer_free(adam);
    tarn_module_free(module);
}

int main(void)
{
    cpu = tarn_device_cpu();
    const struct CMUnitTest tests[] = {
        in_scope(a_schedule_rises_and_then_falls_as_its_kind_says),
        in_scope(each_step_takes_its_rate_from_the_schedule),
        in_scope(groups_have_rates_of_their_own),
        in_scope(a_group_that_gets_no_parameter_is_an_error),
        in_scope(adam_adds_its_decay_to_the_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
