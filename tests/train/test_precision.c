/* test_precision.c: what the precision auto stands for, and that classifiers learn in bf16 too, are resumed bit for bit
 * and used. */
#include <stdlib.h>
#include <tarn/safetensors.h>
#include <tarn/train.h>

#include "support/files.h"
#include "tarn_features.h"

static tarn_train_plan plan_of(tarn_trainer *trainer)
{
    tarn_train_plan plan = {0};
    if (!trainer || !tarn_trainer_plan(trainer, &plan))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    return plan;
}

static tarn_train_options digits(const char *model, const char *folder)
{
    tarn_train_options options = {
        .data = "digits:60", .batch_size = 6, .steps = 6, .eval_every = 4, .log_every = 1, .lr = 0.01, .device = "cpu"};
    snprintf(options.model, sizeof(options.model), "%s", model);
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    return options;
}

static const char *text_file(void)
{
    static char path[1200];
    snprintf(
        path, sizeof(path), "%s",
        write_text("text.txt", "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"));
    return path;
}

static void auto_is_bf16_for_language_models_on_gpus(void **state)
{
    (void)state;
    static const struct {
        const char *device, *given, *resolved;
        bool is_text;
    } rows[] = {{"mirror", "", "bf16", true},  {"mirror", "auto", "bf16", true}, {"mirror", "f32", "f32", true},
                {"mirror", "", "f32", false},  {"cpu", "", "f32", true},         {"cpu", "auto", "f32", false},
                {"cpu", "bf16", "bf16", false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tarn_train_options options = digits("", "auto");
        if (rows[i].is_text)
            snprintf(options.data, sizeof(options.data), "text:%s", text_file());
        snprintf(options.device, sizeof(options.device), "%s", rows[i].device);
        snprintf(options.precision, sizeof(options.precision), "%s", rows[i].given);
        assert_string_equal(plan_of(tarn_trainer_dry_run(NULL, &options)).options.precision, rows[i].resolved);
    }
}

/* On the mirror a run is bf16 by itself; on the CPU, where auto is f32, it stays so. */
static void a_run_keeps_its_precision(void **state)
{
    (void)state;
    tarn_train_options options = digits("", "kept"), changes = {.steps = 3, .device = "cpu", .precision = "auto"};
    snprintf(options.data, sizeof(options.data), "text:%s", text_file());
    snprintf(options.device, sizeof(options.device), "mirror");
    options.steps = 2;
    options.batch_size = 2;
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    tarn_trainer_free(trainer);
    assert_string_equal(plan_of(tarn_trainer_resume(options.out, &changes)).options.precision, "bf16");
    snprintf(changes.precision, sizeof(changes.precision), "f32");
    assert_null(tarn_trainer_resume(options.out, &changes));
    assert_error_about(TARN_ERROR_ARGUMENT, "precision", "cannot be changed");
}

static void stop_at_3(const tarn_train_report *report, void *ctx)
{
    if (report->step >= 3)
        tarn_trainer_stop(ctx);
}

/* What a file of weights holds: parameters in bf16, running statistics as they were. */
static void assert_stored_in_bf16(const char *folder)
{
    char path[1200];
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    tarn_safetensors *file = tarn_safetensors_open(path);
    int bf16 = 0;
    for (int i = 0; i < tarn_safetensors_count(file); i++) {
        tarn_safetensors_entry entry;
        assert_true(tarn_safetensors_info(file, i, &entry));
        bool is_buffer = strstr(entry.name, "running_") || strstr(entry.name, "num_batches");
        assert_true(is_buffer || entry.dtype == TARN_BF16);
        assert_true(!is_buffer || entry.dtype == TARN_F32 || entry.dtype == TARN_I64);
        bf16 += !is_buffer;
    }
    tarn_safetensors_close(file);
    assert_true(bf16 >= 4);
}

/* Evaluation, which finds the loss that the run found, and prediction of the run in a folder. */
static void assert_usable(const char *folder, double loss)
{
    static unsigned char pixels[28 * 28];
    double probability[10], sum = 0;
    tarn_evaluation evaluation;
    tarn_run *run = tarn_run_open(folder, tarn_device_cpu());
    assert_non_null(run);
    assert_true(tarn_run_evaluate(run, NULL, 16, &evaluation, NULL, NULL));
    if (!(fabs(evaluation.loss - loss) <= 1e-3 * loss))
        fail_msg("the loss of '%s' is %g; the run found %g", folder, evaluation.loss, loss);
    assert_true(tarn_run_predict(run, &(tarn_array){.data = pixels, .dtype = TARN_U8, .shape = TARN_SHAPE(1, 28, 28)},
                                 probability));
    for (int i = 0; i < 10; i++)
        sum += probability[i];
    assert_true(sum > 0.98 && sum < 1.02);
    tarn_run_close(run);
}

static void classifiers_learn_in_bf16_and_are_resumed_bit_for_bit(void **state)
{
    (void)state;
    static const char *const models[] = {"mlp", "lenet", "resnet20"};
    for (int i = 0; i < 3; i++) {
        char name[2][32];
        snprintf(name[0], sizeof(name[0]), "%s-whole", models[i]);
        snprintf(name[1], sizeof(name[1]), "%s-parts", models[i]);
        tarn_train_options whole = digits(models[i], name[0]), parts = digits(models[i], name[1]);
        snprintf(whole.precision, sizeof(whole.precision), "bf16");
        snprintf(parts.precision, sizeof(parts.precision), "bf16");
        tarn_train_result result;
        tarn_trainer *trainer = tarn_trainer_new(&whole);
        assert_true(tarn_trainer_run(trainer, NULL, NULL, &result));
        tarn_trainer_free(trainer);
        trainer = tarn_trainer_new(&parts);
        assert_true(tarn_trainer_run(trainer, stop_at_3, trainer, NULL));
        tarn_trainer_free(trainer);
        trainer = tarn_trainer_resume(parts.out, NULL);
        assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
        tarn_trainer_free(trainer);
        assert_same_file(whole.out, parts.out, "model.safetensors");
        assert_same_file(whole.out, parts.out, "optimizer.safetensors");
        assert_same_file(whole.out, parts.out, "best.safetensors");
        assert_stored_in_bf16(whole.out);
        assert_usable(whole.out, result.best_loss);
    }
}

/* The master weights move where weights of 8 bits would stand still: the losses come close to those of f32. */
static void bf16_learns_as_f32_does(void **state)
{
    (void)state;
    tarn_train_result result[2];
    for (int i = 0; i < 2; i++) {
        tarn_train_options options = digits("lenet", i ? "half" : "single");
        snprintf(options.precision, sizeof(options.precision), "%s", i ? "bf16" : "f32");
        snprintf(options.data, sizeof(options.data), "digits:300");
        options.batch_size = 20;
        options.steps = 30;
        options.lr = 0.003;
        tarn_trainer *trainer = tarn_trainer_new(&options);
        assert_true(tarn_trainer_run(trainer, NULL, NULL, &result[i]));
        tarn_trainer_free(trainer);
    }
    print_message("validation loss %.4f in f32, %.4f in bf16\n", result[0].best_loss, result[1].best_loss);
    assert_true(result[1].best_loss < 1.2 * result[0].best_loss + 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(auto_is_bf16_for_language_models_on_gpus),
        in_scope(a_run_keeps_its_precision),
        in_scope(classifiers_learn_in_bf16_and_are_resumed_bit_for_bit),
        in_scope(bf16_learns_as_f32_does),
    };
    setenv("TARN_MIRROR_GPU", "1", 1);
    return TARN__HAVE_JANSSON ? cmocka_run_group_tests(tests, make_scratch, remove_scratch) : 0;
}
