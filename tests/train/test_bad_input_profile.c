/* test_bad_input_profile.c: measuring of training called wrongly. */
#include <tarn/train.h>

#include "support/files.h"
#include "support/refuse.h"

static void measuring(void **state)
{
    (void)state;
    tarn_train_timing timing;
    tarn_train_options small = {
        .model = "mlp", .mlp_sizes = {4}, .mlp_size_count = 1, .batch_size = 4, .device = "cpu"};
    REFUSE(tarn_train_measure_sized, tarn_train_measure(0, 1, NULL, &small));
    REFUSE(tarn_train_measure_sized, tarn_train_measure(0, 0, &timing, &small));
    REFUSE(tarn_train_measure_sized, tarn_train_measure(-1, 1, &timing, &small));
    REFUSE(tarn_train_measure_sized, tarn_train_measure(0, INT64_MAX, &timing, &small));
    REFUSE(tarn_train_measure_sized, tarn_train_measure(0, 1, &timing, &(tarn_train_options){.model = "gpt3"}));
    REFUSE(tarn_train_measure_sized, tarn_train_measure(0, 1, &timing, &(tarn_train_options){.device = "nowhere"}));
    REFUSE(tarn_train_measure_sized,
           tarn_train_measure(0, 1, &timing, &(tarn_train_options){.model = "mlp", .data = "digits"}));
    REFUSE(tarn_train_measure_sized,
           tarn_train_measure(0, 1, &timing, &(tarn_train_options){.model = "mlp", .steps = 3}));
    REFUSE(tarn_train_measure_sized,
           tarn_train_measure(0, 1, &timing, &(tarn_train_options){.model = "mlp", .layers = 3}));
    REFUSE(tarn_train_measure_sized,
           tarn_train_measure(0, 1, &timing, &(tarn_train_options){.model = "mlp", .batch_size = -1}));
    REFUSE(
        tarn_train_measure_sized,
        tarn_train_measure(0, 1, &timing,
                           &(tarn_train_options){.model = "gpt2", .batch_size = 4, .micro_batch = 3, .device = "cpu"}));
    ACCEPT(tarn_profile_start(tarn_device_cpu()));
    REFUSE(tarn_train_measure_sized, tarn_train_measure(0, 1, &timing, &small));
    ACCEPT(tarn_profile_stop());
    tarn_profile_clear();
    ACCEPT(tarn_train_measure(0, 1, &timing, &small));
}

static void trainers(void **state)
{
    (void)state;
    tarn_train_options options = {.model = "mlp", .data = "digits:40", .batch_size = 20, .steps = 2, .device = "cpu"};
    snprintf(options.out, sizeof(options.out), "%s", scratch("run"));
    tarn_trainer *trainer = tarn_trainer_new(&options);
    REFUSE(tarn_trainer_profile, tarn_trainer_profile(NULL, 1));
    REFUSE(tarn_trainer_profile, tarn_trainer_profile(trainer, -1));
    REFUSE(tarn_trainer_profile, tarn_trainer_profile(trainer, INT64_MAX));
    ACCEPT(tarn_trainer_profile(trainer, 1));
    ACCEPT(tarn_trainer_profile(trainer, 0));
    tarn_trainer_free(trainer);
}

#define refusing(test) cmocka_unit_test_setup_teardown(test, open_refusals, close_refusals)

int main(void)
{
    const struct CMUnitTest tests[] = {refusing(measuring), refusing(trainers)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
