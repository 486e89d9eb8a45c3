/* test_llama_runs.c: runs of Llama models: they learn, write folders of transformers, resume bitwise
 * identically, and need the planned memory. test_lm_runs.c tests what all language models have in common. */
#include <tarn/generate.h>
#include <tarn/model.h>
#include <tarn/profile.h>
#include <tarn/train.h>

#include "support/files.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

/* A text that is easy to train on, of 2,400 bytes. */
static const char *make_text(void)
{
    static char path[1200];
    static const char line[] = "the cat sat on the mat; a dog ran by.\n";
    char text[2401];
    for (int i = 0; i < 2400; i++)
        text[i] = line[(size_t)i % (sizeof(line) - 1)];
    text[2400] = 0;
    snprintf(path, sizeof(path), "%s", write_text("text.txt", text));
    return path;
}

/* A small run: two blocks of width 16 on windows of 12 characters, 8 of them in a step. */
static tarn_train_options small(const char *model, const char *folder)
{
    tarn_train_options options = {.layers = 2,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .hidden_size = 16,
                                  .context = 12,
                                  .batch_size = 8,
                                  .steps = 30,
                                  .lr = 0.01,
                                  .min_lr = 0.001,
                                  .weight_decay = 0.1,
                                  .clip_norm = 1,
                                  .device = "cpu",
                                  .eval_every = 7,
                                  .log_every = 4,
                                  .seed = 5};
    snprintf(options.model, sizeof(options.model), "%s", model);
    snprintf(options.data, sizeof(options.data), "text:%s", make_text());
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    return options;
}

typedef struct story {
    tarn_trainer *trainer;
    int64_t stop_at; /* 0: never */
    double last_val_loss;
} story;

static void listen(const tarn_train_report *report, void *ctx)
{
    story *s = ctx;
    if (report->kind == TARN_REPORT_EVALUATION)
        s->last_val_loss = report->loss;
    if (s->stop_at && report->step >= s->stop_at)
        tarn_trainer_stop(s->trainer);
}

/* Runs a trainer and frees it. Returns the loss of the last evaluation. */
static double run(tarn_trainer *trainer, int64_t stop_at)
{
    story s = {.trainer = trainer, .stop_at = stop_at};
    if (!trainer || !tarn_trainer_run(trainer, listen, &s, NULL))
        fail_msg("%s", tarn_error());
    tarn_trainer_free(trainer);
    assert_ok();
    return s.last_val_loss;
}

static void every_family_learns_and_is_evaluated_and_generates(void **state)
{
    (void)state;
    static const char *const families[] = {"llama", "mistral", "qwen2", "qwen3"};
    for (int i = 0; i < 4; i++) {
        tarn_text_evaluation own;
        tarn_llama_config config;
        int32_t made[6];
        tarn_train_options options = small(families[i], families[i]);
        options.steps = options.eval_every = 100;
        double val_loss = run(tarn_trainer_new(&options), 0);
        if (!(val_loss < 1.2))
            fail_msg("%s learns to %g only", families[i], val_loss);
        tarn_run *trained = tarn_run_open(options.out, CPU);
        assert_ok();
        assert_string_equal(tarn_run_task(trained), "lm");
        assert_string_equal(tarn_run_kind(trained), families[i]);
        assert_true(tarn_run_evaluate_text(trained, NULL, 8, &own) && own.loss == val_loss);
        tarn_run_close(trained);
        tarn_module *model = tarn_model_open(options.out, CPU, NULL); /* as anybody else would */
        assert_true(tarn_llama_config_of(model, &config));
        assert_string_equal(config.arch, families[i]);
        /* 8/3 · 16, in whole 32s */
        assert_true(config.kv_heads == 2 && config.ffn_size == 64 && config.tie_embeddings && config.head_dim == 4);
        assert_int_equal(tarn_generate(model, &(int32_t){0}, 1, made, &(tarn_generate_options){.max_tokens = 6}), 6);
        tarn_module_free(model);
    }
}

static void a_stopped_run_resumes_bitwise_identically(void **state)
{
    (void)state;
    static const char *const precisions[] = {"f32", "bf16"};
    for (int i = 0; i < 2; i++) {
        tarn_train_options whole = small("llama", i ? "whole-bf16" : "whole"),
                           options = small("llama", i ? "stopped-bf16" : "stopped");
        snprintf(whole.precision, sizeof(whole.precision), "%s", precisions[i]);
        snprintf(options.precision, sizeof(options.precision), "%s", precisions[i]);
        whole.ffn_size = options.ffn_size = 20;
        whole.micro_batch = options.micro_batch = 4;
        run(tarn_trainer_new(&whole), 0);
        run(tarn_trainer_new(&options), 9);
        run(tarn_trainer_resume(options.out, &(tarn_train_options){.workers = 2}), 18);
        run(tarn_trainer_resume(options.out, NULL), 0);
        assert_same_file(whole.out, options.out, "model.safetensors");
        assert_same_file(whole.out, options.out, "optimizer.safetensors");
        assert_same_file(whole.out, options.out, "best/model.safetensors");
    }
}

static void the_plan_says_what_will_be_done(void **state)
{
    (void)state;
    tarn_train_plan plan;
    tarn_train_options options = small("smollm-135m", "plan");
    options.out[0] = 0;
    options.heads = options.kv_heads = options.hidden_size = 0; /* the model's */
    options.layers = 1;
    tarn_trainer *trainer = tarn_trainer_new(&options);
    assert_ok();
    assert_true(tarn_trainer_plan(trainer, &plan));
    assert_string_equal(plan.folder, "runs/smollm-135m-text-1x576x12-cpu");
    assert_true(plan.options.layers == 1 && plan.options.heads == 9 && plan.options.kv_heads == 3 &&
                plan.options.ffn_size == 1536);
    /* The published number, but for the vocabulary, which is the text's, and 29 blocks. */
    assert_int_equal(plan.trained,
                     134515008 - (49152 - 18) * 576 - 29 * (2 * 576 * 64 * (9 + 3) + 3 * 576 * 1536 + 2 * 576));
    tarn_trainer_free(trainer);
}

/* By what is computed again: the peak, and what the plan says; each less than the one before. */
static void what_is_recomputed_takes_the_memory_that_was_planned(void **state)
{
    (void)state;
    static const char *const how[] = {"none", "selective", "full"};
    int64_t peak[3];
    char folder[3][1200];
    for (int i = 0; i < 3; i++) {
        char name[32];
        tarn_train_plan plan;
        snprintf(name, sizeof(name), "recompute-%s", how[i]);
        tarn_train_options options = small("llama", name);
        snprintf(options.recompute, sizeof(options.recompute), "%s", how[i]);
        options.layers = 6;
        options.batch_size = 64;
        options.steps = options.eval_every = 5;
        tarn_empty_cache(CPU);
        tarn_trainer *trainer = tarn_trainer_new(&options);
        assert_true(tarn_trainer_plan(trainer, &plan));
        tarn_stats_reset();
        run(trainer, 0);
        peak[i] = tarn_memory_of(CPU).peak_used;
        if (plan.memory_needed < peak[i] || plan.memory_needed > peak[i] + peak[i] / 4)
            fail_msg("recompute %s: %lld bytes were planned, and %lld taken", how[i], (long long)plan.memory_needed,
                     (long long)peak[i]);
        snprintf(folder[i], sizeof(folder[i]), "%s", options.out);
    }
    assert_same_file(folder[0], folder[1], "model.safetensors"); /* bit for bit */
    assert_true(peak[1] < peak[0] && peak[2] < peak[1] * 2 / 3);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *model, *name, *value, *text;
    } mistakes[] = {
        {"llama", "dropout", "0.1", "dropout is 0.1; a llama does not support it"},
        {"llama", "kv_heads", "3", ".kv_heads is 3; it must divide .heads, which is 4"},
        {"llama", "heads", "3", "must divide"},
        {"llama", "heads", "16", "head_dim is 1"},
        {"llama", "mlp_sizes", "3", "mlp_sizes applies to classifiers"},
        {"llama", "data", "digits:50", "applies to language models"},
        {"llama-3b", "vocab_size", "5", "the tokenizer has 18 tokens"},
        {"gpt2", "kv_heads", "2", "kv_heads is for Llama models"},
        {"lenet", "ffn_size", "2", "the model lenet needs samples with labels"},
    };
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        tarn_train_options options = small(mistakes[i].model, "mistakes");
        assert_true(tarn_train_options_set(&options, mistakes[i].name, mistakes[i].value));
        if (tarn_trainer_new(&options))
            fail_msg("%s: %s=%s is taken", mistakes[i].model, mistakes[i].name, mistakes[i].value);
        if (!strstr(tarn_error(), mistakes[i].text))
            fail_msg("%s: %s=%s: \"%s\" says nothing of \"%s\"", mistakes[i].model, mistakes[i].name, mistakes[i].value,
                     tarn_error(), mistakes[i].text);
        tarn_clear_error();
    }
    /* a family has no size of its own, and without data there is nothing to choose one by */
    for (int i = 0; i < 4; i++) {
        static const char *const missing[] = {"layers is missing", "heads is missing", "hidden_size is missing",
                                              "context is missing"};
        tarn_train_options options = {.model = "qwen3",
                                      .layers = 1,
                                      .heads = 2,
                                      .hidden_size = 16,
                                      .context = 8,
                                      .vocab_size = 64,
                                      .batch_size = 2,
                                      .device = "cpu"};
        tarn_train_timing timing;
        *(i == 0 ? &options.layers : i == 1 ? &options.heads : i == 2 ? &options.hidden_size : &options.context) = 0;
        assert_false(tarn_train_measure(0, 1, &timing, &options));
        assert_error_about(TARN_ERROR_ARGUMENT, missing[i], "a qwen3 has no size of its own");
    }
}

/* A config.json that was changed does not make another model of the weights that are there. */
static void a_damaged_run_does_not_resume(void **state)
{
    (void)state;
    tarn_train_options options = small("llama", "damaged");
    run(tarn_trainer_new(&options), 7);
    char path[1200];
    size_t count;
    snprintf(path, sizeof(path), "%s/config.json", options.out);
    drop_checksums(path);
    char *text = get_file(path, &count);
    text = realloc(text, count + 1);
    text[count] = 0;
    char *at = strstr(text, "\"ffn_size\": 64");
    assert_non_null(at);
    memcpy(at, "\"ffn_size\": 99", strlen("\"ffn_size\": 99"));
    put_file(path, text, count);
    free(text);
    assert_null(tarn_trainer_resume(options.out, NULL));
    assert_error_about(TARN_ERROR_FORMAT, "trainer_resume", "bytes of weights");
}

static void a_step_can_be_measured(void **state)
{
    (void)state;
    tarn_train_timing timing;
    tarn_train_options o = {.model = "llama",
                            .layers = 2,
                            .heads = 2,
                            .kv_heads = 1,
                            .hidden_size = 16,
                            .ffn_size = 24,
                            .context = 8,
                            .vocab_size = 64,
                            .batch_size = 4,
                            .device = "cpu"};
    assert_true(tarn_train_measure(0, 1, &timing, &o));
    assert_true(timing.tokens == 32 && timing.step_ms > 0);
    assert_int_equal(timing.parameters, 64 * 16 + 2 * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 2 * 16) + 16);
    assert_true(timing.flops == 32.0 * (6.0 * (double)timing.parameters + 12 * 2 * 16 * 8));
    o.vocab_size = 0;
    assert_false(tarn_train_measure(0, 1, &timing, &o));
    assert_error(TARN_ERROR_ARGUMENT, "the model llama has no default");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(every_family_learns_and_is_evaluated_and_generates),
        in_scope(a_stopped_run_resumes_bitwise_identically),
        in_scope(the_plan_says_what_will_be_done),
        in_scope(what_is_recomputed_takes_the_memory_that_was_planned),
        in_scope(mistakes_are_named),
        in_scope(a_damaged_run_does_not_resume),
        in_scope(a_step_can_be_measured),
    };
    return TARN__HAVE_JANSSON ? cmocka_run_group_tests(tests, make_scratch, remove_scratch) : 0;
}
