/* test_plan.c: the plan of a run, which is made from shapes alone: that of the model itself, for any model, in a moment, and before any memory is asked for. */
#include <tarn/model.h>
#include <tarn/profile.h>
#include <tarn/train.h>
#include <time.h>

#include "support/files.h"
#include "tarn_features.h"
#include "train/trainer.h"

#define CPU tarn_device_cpu()

static const char *make_text(void)
{
    static char path[1200];
    static const char line[] = "the cat sat on the mat; a dog ran by.\n";
    char text[6001];
    for (int i = 0; i < 6000; i++)
        text[i] = line[(size_t)i % (sizeof(line) - 1)];
    text[6000] = 0;
    snprintf(path, sizeof(path), "%s", write_text("text.txt", text));
    return path;
}

static tarn_train_options named(const char *model, const char *device)
{
    tarn_train_options options = {.batch_size = 4, .micro_batch = 2, .steps = 3};
    snprintf(options.model, sizeof(options.model), "%s", model);
    snprintf(options.device, sizeof(options.device), "%s", device);
    snprintf(options.tokenizer, sizeof(options.tokenizer), "bytes");
    snprintf(options.data, sizeof(options.data), "text:%s", make_text());
    snprintf(options.out, sizeof(options.out), "%s", scratch("run"));
    return options;
}

static tarn_train_plan plan_of(tarn_trainer *trainer)
{
    tarn_train_plan plan = {0};
    if (!trainer || !tarn_trainer_plan(trainer, &plan))
        fail_msg("%s", tarn_error());
    return plan;
}

static void assert_same_plan(const tarn_train_plan *a, const tarn_train_plan *b)
{
    assert_int_equal(a->trained, b->trained);
    assert_int_equal(a->frozen, b->frozen);
    assert_int_equal(a->weight_bytes, b->weight_bytes);
    assert_int_equal(a->gradient_bytes, b->gradient_bytes);
    assert_int_equal(a->state_bytes, b->state_bytes);
    assert_int_equal(a->activation_bytes, b->activation_bytes);
    assert_int_equal(a->memory_needed, b->memory_needed);
    assert_int_equal(a->captures, b->captures);
    assert_string_equal(a->folder, b->folder);
    assert_string_equal(a->device, b->device);
}

/* What is imagined, what a run says, and what the run's own model takes when it is tried on its device. */
static void plans_agree(const tarn_train_options *options)
{
    tarn_trainer *imagined = tarn_trainer_imagine(NULL, options);
    tarn_train_plan early = plan_of(imagined);
    tarn_trainer_free(imagined);
    tarn_trainer *trainer = tarn_trainer_new(options);
    tarn_train_plan plan = plan_of(trainer);
    assert_same_plan(&early, &plan);
    assert_true(tarn__try_model("test", trainer));
    plan = plan_of(trainer);
    assert_same_plan(&early, &plan);
    assert_true(plan.activation_bytes > 0 && plan.weight_bytes > 0);
    tarn_trainer_free(trainer);
}

static void plans_are_those_of_the_model_itself(void **state)
{
    (void)state;
    static const char *const recompute[] = {"none", "cheap", "block"}, *const models[] = {"gpt2", "llama", "qwen3"}, *const devices[] = {"cpu", "mirror"};
    for (int i = 0; i < 36; i++) {
        if (i % 2 && tarn_device_count("mirror") == 0)
            continue;
        tarn_train_options o = named(models[i / 2 % 3], devices[i % 2]);
        o.layers = 3, o.heads = 4, o.width = 64, o.context = 48;
        o.kv_heads = i / 2 % 3 ? 2 : 0;
        snprintf(o.recompute, sizeof(o.recompute), "%s", recompute[i / 6 % 3]);
        snprintf(o.precision, sizeof(o.precision), "%s", i / 18 ? "bf16" : "f32");
        plans_agree(&o);
    }
}

static void plans_of_classifiers_are_too(void **state)
{
    (void)state;
    static const char *const models[] = {"mlp", "lenet", "resnet20"};
    for (int i = 0; i < 3; i++) {
        tarn_train_options o = {.batch_size = 5, .steps = 3, .device = "cpu"};
        snprintf(o.model, sizeof(o.model), "%s", models[i]);
        snprintf(o.data, sizeof(o.data), "digits:50");
        snprintf(o.out, sizeof(o.out), "%s", scratch("run"));
        plans_agree(&o);
    }
}

/* Of large layers and few samples most is weights, and one gradient beside them. */
static void the_plan_of_a_classifier_is_what_it_takes(void **state)
{
    (void)state;
    tarn_train_options o = {.model = "mlp", .hidden = {800, 800}, .hidden_count = 2, .batch_size = 5, .steps = 3, .device = "cpu", .data = "digits:50"};
    snprintf(o.out, sizeof(o.out), "%s", scratch("large-layers"));
    tarn_stats_reset();
    int64_t before = tarn_memory_of(CPU).peak_used;
    tarn_trainer *trainer = tarn_trainer_new(&o);
    tarn_train_plan plan = plan_of(trainer);
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    double ratio = (double)plan.memory_needed / (double)(tarn_memory_of(CPU).peak_used - before);
    print_message("the plan is %.2f of what was taken\n", ratio);
    assert_true(ratio > 0.87 && ratio < 1.2);
    tarn_trainer_free(trainer);
}

static void write_base(bool is_gpt2, const char *folder)
{
    const tarn_llama_config llama = {.vocab = 256, .context = 32, .layers = 2, .heads = 2, .kv_heads = 1, .width = 32, .inner = 64, .tied = true};
    const tarn_gpt2_config gpt2 = {.vocab = 256, .context = 32, .layers = 2, .heads = 2, .width = 32, .inner = 64};
    tarn_module *model = is_gpt2 ? tarn_model_gpt2(&gpt2, CPU, 3) : tarn_model_llama(&llama, CPU, 3);
    tarn_tokenizer *tokenizer = tarn_tokenizer_bytes();
    assert_true(tarn_model_write(model, folder) && tarn_tokenizer_save(tokenizer, folder));
    tarn_tokenizer_free(tokenizer);
    tarn_module_free(model);
}

/* Adapters, and adapters beside blocks. */
static void plans_of_fine_tuning_are_too(void **state)
{
    (void)state;
    char folder[1200];
    for (int i = 0; i < 6; i++) {
        snprintf(folder, sizeof(folder), "%s", scratch(i < 3 ? "base" : "base-gpt2"));
        write_base(i >= 3, folder);
        tarn_train_options o = named("", "cpu");
        o.tokenizer[0] = 0;
        o.lora = i % 3 ? 4 : 0;
        o.context = 16;
        snprintf(o.quantize, sizeof(o.quantize), "%s", i % 3 == 2 ? "q8_0" : "");
        assert_true(tarn_train_options_set(&o, "model", folder));
        plans_agree(&o);
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Models of 6 and 11 GB of weights: nothing is filled, nothing is held. */
static void large_models_are_planned_in_a_moment(void **state)
{
    (void)state;
    static const char *const models[] = {"gpt2-1.5b", "llama-3b"};
    for (int i = 0; i < 2; i++) {
        tarn_train_options o = named(models[i], "cpu");
        double begin = seconds();
        int64_t before = tarn_memory_of(CPU).peak_used;
        o.context = 1024;
        tarn_trainer *imagined = tarn_trainer_imagine(NULL, &o);
        tarn_train_plan plan = plan_of(imagined);
        assert_true(plan.trained > INT64_C(1400) << 20 && plan.weight_bytes >= 4 * plan.trained && plan.memory_needed > 16 * plan.trained);
        assert_false(tarn_trainer_run(imagined, NULL, NULL, NULL));
        assert_error(TARN_ERROR_ARGUMENT, "the trainer is imagined");
        tarn_trainer_free(imagined);
        assert_true(tarn_memory_of(CPU).peak_used - before < INT64_C(64) << 20);
        assert_true(seconds() - begin < 3 || getenv("TARN_TEST_QUICK")); /* under valgrind */
    }
}

/* The device has 4 GiB: the run is refused before it asks for any of them. */
static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") == 0)
        skip();
    tarn_train_options o = named("gpt2-774m", "mirror");
    o.context = 1024;
    tarn_trainer *imagined = tarn_trainer_imagine(NULL, &o);
    tarn_train_plan plan = plan_of(imagined);
    assert_true(plan.memory_needed > plan.memory_free && plan.memory_free > 0);
    tarn_trainer_free(imagined);
    assert_null(tarn_trainer_new(&o));
    assert_error_about(TARN_ERROR_MEMORY, "weights, gradients and the optimizer's state of this model take", "more than mirror:0 has free");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(plans_are_those_of_the_model_itself),  in_scope(plans_of_classifiers_are_too), in_scope(the_plan_of_a_classifier_is_what_it_takes), in_scope(plans_of_fine_tuning_are_too),
        in_scope(large_models_are_planned_in_a_moment), in_scope(what_does_not_fit_is_refused),
    };
    return TARN__HAVE_JANSSON ? cmocka_run_group_tests(tests, make_scratch, remove_scratch) : 0;
}
