/* test_bad_input_optim.c: optimizers, their schedules and their clipping are given what they do not take. */
#include "support/refuse.h"
#include "support/scratch.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

static void optimizers(void **state)
{
    (void)state;
    tarn_module *linear = tarn_linear(2, 3, CPU);
    tarn_adam_options rate = {.lr = 1};
    tarn_parameter_group group = {.names = "weight"};
    REFUSE(tarn_adam_sized, tarn_adam(NULL, &rate));
    REFUSE(tarn_adam_sized, tarn_adam(linear, NULL));
    REFUSE(tarn_adam_sized, tarn_adam(linear, &(tarn_adam_options){.lr = -1}));
    REFUSE(tarn_adam_sized, tarn_adam(linear, &(tarn_adam_options){.lr = (float)NAN}));
    REFUSE(tarn_adam_sized, tarn_adam(linear, &(tarn_adam_options){.lr = 1, .beta1 = 1}));
    REFUSE(tarn_adam_sized, tarn_adam(linear, &(tarn_adam_options){.lr = 1, .beta2 = -1}));
    REFUSE(tarn_adam_sized, tarn_adam(linear, &(tarn_adam_options){.lr = 1, .epsilon = -1}));
    REFUSE(tarn_adam_sized, tarn_adam(linear, &(tarn_adam_options){.lr = 1, .weight_decay = -1}));
    REFUSE(tarn_adam_sized, tarn_adam(linear, &(tarn_adam_options){.lr = 1, .group_count = 1}));
    REFUSE(tarn_adam_sized, tarn_adam(linear, &(tarn_adam_options){.lr = 1, .groups = &group, .group_count = -1}));
    static const tarn_parameter_group wrong[] = {
        {.names = NULL},
        {.names = ""},
        {.names = "nothing"},
        {.names = "weight", .lr_scale = -1},
        {.names = "weight", .lr_scale = (float)INFINITY},
        {.names = "weight", .weight_decay = -1},
        {.names = "weight", .weight_decay = (float)NAN},
        {.names = "weight", .weight_decay = 1, .no_decay = true},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        REFUSE(tarn_adam_sized,
               tarn_adam(linear, &(tarn_adam_options){.lr = 1, .groups = &wrong[i], .group_count = 1}));
    tarn_optimizer *adam = tarn_adam(linear, &rate);
    assert_ok();
    REFUSE(tarn_adam_sized, tarn_adam(linear, &rate)); /* it has an optimizer */
    REFUSE(tarn_optimizer_steps, tarn_optimizer_steps(NULL));
    REFUSE(tarn_optimizer_clip_norm, tarn_optimizer_clip_norm(NULL, 1));
    REFUSE(tarn_optimizer_clip_norm, tarn_optimizer_clip_norm(adam, 0));
    REFUSE(tarn_optimizer_clip_norm, tarn_optimizer_clip_norm(adam, -1));
    REFUSE(tarn_optimizer_clip_norm, tarn_optimizer_clip_norm(adam, NAN));
    REFUSE(tarn_optimizer_clip_value, tarn_optimizer_clip_value(NULL, 1));
    REFUSE(tarn_optimizer_clip_value, tarn_optimizer_clip_value(adam, 0));
    REFUSE(tarn_optimizer_clip_value, tarn_optimizer_clip_value(adam, NAN));
    REFUSE(tarn_optimizer_nonfinite, tarn_optimizer_nonfinite(NULL));
    ACCEPT(tarn_optimizer_clip_norm(adam, 1)); /* no gradients: the norm is 0 */
    ACCEPT(tarn_optimizer_clip_value(adam, 1));
    ACCEPT(tarn_optimizer_nonfinite(adam));
    tarn_optimizer_free(adam);
    tarn_module_free(linear);
}

static void averages(void **state)
{
    (void)state;
    tarn_module *linear = tarn_linear(2, 3, CPU);
    tarn_optimizer *sgd = tarn_sgd(linear, &(tarn_sgd_options){.lr = 1});
    const tarn_ema_options good = {.decay = 0.5};
    REFUSE(tarn_ema_new_sized, tarn_ema_new(NULL, sgd, &good));
    REFUSE(tarn_ema_new_sized, tarn_ema_new(linear, NULL, &good));
    REFUSE(tarn_ema_new_sized, tarn_ema_new(linear, sgd, NULL));
    REFUSE(tarn_ema_new_sized, tarn_ema_new(linear, sgd, &(tarn_ema_options){.decay = 1}));
    REFUSE(tarn_ema_new_sized, tarn_ema_new(linear, sgd, &(tarn_ema_options){.decay = -0.5}));
    REFUSE(tarn_ema_new_sized, tarn_ema_new(linear, sgd, &(tarn_ema_options){.decay = NAN}));
    tarn_ema *ema = tarn_ema_new(linear, sgd, &good);
    assert_ok();
    REFUSE(tarn_ema_update, tarn_ema_update(NULL));
    REFUSE(tarn_ema_updates, tarn_ema_updates(NULL));
    REFUSE(tarn_ema_apply, tarn_ema_apply(NULL));
    REFUSE(tarn_ema_restore, tarn_ema_restore(NULL));
    REFUSE(tarn_ema_restore, tarn_ema_restore(ema));
    REFUSE(tarn_ema_save, tarn_ema_save(NULL, scratch("ema")));
    REFUSE(tarn_ema_save, tarn_ema_save(ema, NULL));
    REFUSE(tarn_ema_load, tarn_ema_load(NULL, scratch("ema")));
    REFUSE(tarn_ema_load, tarn_ema_load(ema, NULL));
    ACCEPT(tarn_ema_free(NULL));
    tarn_ema_free(ema);
    tarn_optimizer_free(sgd);
    tarn_module_free(linear);
}

static void schedules(void **state)
{
    (void)state;
    tarn_module *linear = tarn_linear(2, 3, CPU);
    tarn_optimizer *sgd = tarn_sgd(linear, &(tarn_sgd_options){.lr = 1});
    tarn_schedule fine = {.kind = TARN_SCHEDULE_COSINE, .total_steps = 10};
    static const tarn_schedule wrong[] = {
        {.kind = (tarn_schedule_kind)9},
        {.warmup_steps = -1},
        {.kind = TARN_SCHEDULE_LINEAR},
        {.kind = TARN_SCHEDULE_LINEAR, .total_steps = -3},
        {.kind = TARN_SCHEDULE_COSINE, .warmup_steps = 5, .total_steps = 5},
        {.kind = TARN_SCHEDULE_COSINE, .total_steps = 5, .final_factor = 1.5},
        {.kind = TARN_SCHEDULE_COSINE, .total_steps = 5, .final_factor = (double)NAN},
        {.kind = TARN_SCHEDULE_ONE_CYCLE},
        {.kind = TARN_SCHEDULE_ONE_CYCLE, .warmup_steps = 5, .total_steps = 5},
        {.kind = TARN_SCHEDULE_ONE_CYCLE, .total_steps = 5, .final_factor = 2},
        {.kind = TARN_SCHEDULE_ONE_CYCLE, .total_steps = 5, .start_factor = -0.1},
        {.kind = TARN_SCHEDULE_ONE_CYCLE, .total_steps = 5, .start_factor = (double)NAN},
        {.kind = TARN_SCHEDULE_STEP},
        {.kind = TARN_SCHEDULE_STEP, .step_size = 2, .gamma = -1},
        {.kind = TARN_SCHEDULE_STEP, .step_size = 2, .gamma = (double)INFINITY},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        REFUSE(tarn_schedule_at, tarn_schedule_at(&wrong[i], 0));
        REFUSE(tarn_optimizer_set_schedule, tarn_optimizer_set_schedule(sgd, &wrong[i]));
    }
    REFUSE(tarn_schedule_at, tarn_schedule_at(NULL, 0));
    REFUSE(tarn_schedule_at, tarn_schedule_at(&fine, -1));
    REFUSE(tarn_optimizer_set_schedule, tarn_optimizer_set_schedule(NULL, &fine));
    ACCEPT(tarn_optimizer_set_schedule(sgd, &fine));
    ACCEPT(tarn_optimizer_set_schedule(sgd, NULL));
    tarn_optimizer_free(sgd);
    tarn_module_free(linear);
}

static void files(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip(); /* then both refuse everything */
    tarn_module *linear = tarn_linear(2, 3, CPU);
    tarn_optimizer *sgd = tarn_sgd(linear, &(tarn_sgd_options){.lr = 1});
    const char *path = scratch("optimizer.safetensors"), *other = scratch("other.safetensors");
    tarn_safetensors_writer *writer = tarn_safetensors_create(other);
    tarn_safetensors_add(writer, "x", vector(1));
    tarn_safetensors_finish(writer);
    REFUSE(tarn_optimizer_save, tarn_optimizer_save(NULL, path));
    REFUSE(tarn_optimizer_save, tarn_optimizer_save(sgd, NULL));
    REFUSE(tarn_optimizer_save, tarn_optimizer_save(sgd, ""));
    REFUSE(tarn_optimizer_save, tarn_optimizer_save(sgd, "/nonexistent-folder/x"));
    ACCEPT(tarn_optimizer_save(sgd, path));
    REFUSE(tarn_optimizer_load, tarn_optimizer_load(NULL, path));
    REFUSE(tarn_optimizer_load, tarn_optimizer_load(sgd, NULL));
    REFUSE(tarn_optimizer_load, tarn_optimizer_load(sgd, "/nonexistent-folder/x"));
    REFUSE(tarn_optimizer_load, tarn_optimizer_load(sgd, other));
    ACCEPT(tarn_optimizer_load(sgd, path));
    tarn_optimizer_free(sgd);
    tarn_module_free(linear);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(optimizers, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(files, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(averages, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(schedules, open_refusals, close_refusals),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
