/* test_default_sizes.c: default sizes of a language model: they suit the device and the text, given ones override them,
 * and a run keeps them. Where the devices are GPUs, they are the mirror's. */
#include <stdlib.h>
#include <tarn/train.h>

#include "support/files.h"
#include "tarn_features.h"

/* A text of so many letters; valid until the next one. */
static tarn_train_options on_text(int letters, const char *device)
{
    tarn_train_options options = {0};
    char *text = malloc((size_t)letters + 1);
    for (int i = 0; i < letters; i++)
        text[i] = "the cat sat on the mat; a dog ran by.\n"[i % 38];
    text[letters] = 0;
    snprintf(options.data, sizeof(options.data), "text:%s", write_text("text.txt", text));
    snprintf(options.device, sizeof(options.device), "%s", device);
    snprintf(options.out, sizeof(options.out), "%s", scratch("run"));
    free(text);
    return options;
}

static tarn_train_plan plan_of(tarn_trainer *trainer)
{
    tarn_train_plan plan = {0};
    if (!trainer || !tarn_trainer_plan(trainer, &plan))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    return plan;
}

static tarn_train_plan imagine(const tarn_train_options *options)
{
    return plan_of(tarn_trainer_dry_run(NULL, options));
}

static void assert_sizes(const tarn_train_options *o, int64_t layers, int64_t heads, int64_t hidden_size,
                         int64_t context, int64_t batch_size)
{
    assert_int_equal(o->layers, layers);
    assert_int_equal(o->heads, heads);
    assert_int_equal(o->hidden_size, hidden_size);
    assert_int_equal(o->context, context);
    assert_int_equal(o->batch_size, batch_size);
}

static void sizes_suit_device_and_text(void **state)
{
    (void)state;
    static const struct {
        const char *device;
        int letters;
        int64_t layers, heads, hidden_size, context, batch_size;
    } rows[] = {{"cpu", 3000, 2, 2, 64, 64, 8},
                {"cpu", 300, 2, 2, 64, 32, 16},
                {"cpu", 300000, 4, 4, 128, 128, 8},
                {"mirror", 3000, 4, 4, 128, 128, 32},
                {"mirror", 500000, 6, 6, 384, 256, 64}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tarn_train_options options = on_text(rows[i].letters, rows[i].device);
        tarn_train_plan plan = imagine(&options);
        assert_string_equal(plan.options.model, "gpt2");
        assert_sizes(&plan.options, rows[i].layers, rows[i].heads, rows[i].hidden_size, rows[i].context,
                     rows[i].batch_size);
        assert_contains(plan.chosen, rows[i].device[0] == 'c' ? "to train in minutes on a CPU with"
                                                              : "to train in minutes on a GPU with");
        assert_contains(plan.chosen, ": layers ");
        assert_true(plan.steps >= 100 && plan.steps <= 3000);
        assert_true(plan.options.epochs <= (rows[i].letters > 300000 ? 20 : 100));
    }
}

static void a_given_size_is_used_and_the_rest_suits_it(void **state)
{
    (void)state;
    tarn_train_options options = on_text(300000, "cpu");
    options.hidden_size = 96;
    options.context = 32;
    tarn_train_plan plan = imagine(&options);
    assert_sizes(&plan.options, 4, 3, 96, 32, 16);
    options = on_text(300000, "cpu");
    options.heads = 5;
    options.batch_size = 6;
    options.epochs = 7;
    plan = imagine(&options);
    assert_sizes(&plan.options, 4, 5, 130, 128, 6);
    assert_int_equal(plan.options.epochs, 7);
    assert_int_equal(plan.options.steps, 0);
    assert_null(strstr(plan.chosen, "heads"));
    assert_null(strstr(plan.chosen, "batch"));
    assert_null(strstr(plan.chosen, "epoch"));
    options = on_text(300000, "cpu");
    snprintf(options.model, sizeof(options.model), "qwen3");
    options.kv_heads = 3;
    options.micro_batch = 3;
    options.steps = 11;
    plan = imagine(&options);
    assert_sizes(&plan.options, 4, 3, 132, 128, 9);
    assert_int_equal(plan.steps, 11);
}

static void whole_sizes_and_named_models_are_left_alone(void **state)
{
    (void)state;
    tarn_train_options options = on_text(30000, "cpu");
    options.layers = 1;
    options.hidden_size = 48;
    options.context = 16;
    tarn_train_plan plan = imagine(&options);
    assert_sizes(&plan.options, 1, 1, 48, 16, 64);
    assert_int_equal(plan.options.epochs, 5);
    assert_string_equal(plan.chosen, "");
    options = on_text(30000, "cpu");
    snprintf(options.model, sizeof(options.model), "gpt2-124m");
    plan = imagine(&options);
    assert_sizes(&plan.options, 12, 12, 768, 1024, 64);
    assert_int_equal(plan.options.epochs, 5);
    assert_string_equal(plan.chosen, "");
}

/* A long text has an epoch of more steps than a run of minutes, and more validation data than it can look at. */
static void a_long_text_is_evaluated_on_a_part(void **state)
{
    (void)state;
    tarn_train_options options = on_text(6000000, "cpu");
    tarn_train_plan plan = imagine(&options);
    assert_int_equal(plan.steps, plan.options.steps);
    assert_true(plan.steps < plan.steps_in_epoch);
    assert_int_equal(plan.options.eval_every, plan.steps / 5);
    assert_int_equal(plan.options.eval_batches, plan.steps / 10);
    assert_contains(plan.chosen, " steps");
}

static void a_run_keeps_what_was_chosen(void **state)
{
    (void)state;
    tarn_train_options options = on_text(1000, "cpu"), changes = {.epochs = 3};
    options.epochs = 2;
    snprintf(options.out, sizeof(options.out), "%s", scratch("kept"));
    tarn_trainer *trainer = tarn_trainer_new(&options);
    tarn_train_plan began, resumed;
    assert_true(tarn_trainer_plan(trainer, &began));
    assert_true(tarn_trainer_run(trainer, NULL, NULL, NULL));
    tarn_trainer_free(trainer);
    resumed = plan_of(tarn_trainer_resume(options.out, &changes));
    assert_int_equal(resumed.first_step, began.steps);
    assert_sizes(&resumed.options, began.options.layers, began.options.heads, began.options.hidden_size,
                 began.options.context, began.options.batch_size);
    assert_string_equal(resumed.chosen, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(sizes_suit_device_and_text),
        in_scope(a_given_size_is_used_and_the_rest_suits_it),
        in_scope(whole_sizes_and_named_models_are_left_alone),
        in_scope(a_long_text_is_evaluated_on_a_part),
        in_scope(a_run_keeps_what_was_chosen),
    };
    setenv("TARN_MIRROR_GPU", "1", 1);
    return TARN__HAVE_JANSSON ? cmocka_run_group_tests(tests, make_scratch, remove_scratch) : 0;
}
