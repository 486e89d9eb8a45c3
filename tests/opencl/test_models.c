/*
 * test_models.c: networks trained on an OpenCL device and on the CPU from the same seed: losses agree within 1e-4 for
 * 100 steps, nothing falls back to the CPU, and a second run is bitwise identical. Quantized weights decode there, too.
 * */
#include "support/files.h"
#include "support/opencl.h"

#include <tarn/convert.h>
#include <tarn/generate.h>
#include <tarn/model.h>
#include <tarn/profile.h>
#include <tarn/train.h>

#include "tarn_features.h"

#define CPU tarn_device_cpu()
enum { STEPS = 100 };

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static void note_loss(const tarn_train_report *report, void *ctx)
{
    double *losses = ctx;
    if (report->kind == TARN_REPORT_TRAINING && report->step >= 1 && report->step <= STEPS)
        losses[report->step - 1] = report->loss;
}

/* The loss of each step. Counts what fell back to the CPU. */
static int64_t train(tarn_train_options options, const char *device, double *losses)
{
    static int runs;
    char folder[32];
    snprintf(folder, sizeof(folder), "run-%d", runs++);
    snprintf(options.device, sizeof(options.device), "%s", device);
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    options.steps = STEPS;
    options.epochs = 1000;
    options.log_every = 1;
    options.eval_every = STEPS;
    options.seed = 11;
    for (int i = 0; i < STEPS; i++)
        losses[i] = NAN;
    tarn_stats_reset();
    tarn_trainer *trainer = tarn_trainer_new(&options);
    if (!trainer || !tarn_trainer_run(trainer, note_loss, losses, NULL))
        fail_msg("%s on %s: %s", options.model, device, tarn_error());
    tarn_trainer_free(trainer);
    return tarn_stats().fallbacks;
}

static void compare_runs(tarn_train_options options)
{
    double here[STEPS], there[STEPS], again[STEPS], worst = 0;
    train(options, "cpu", here);
    assert_int_equal(train(options, "opencl", there), 0);
    train(options, "opencl", again);
    for (int i = 0; i < STEPS; i++) {
        worst = fmax(worst, fabs(here[i] - there[i]));
        if (!(fabs(here[i] - there[i]) <= 1e-4))
            fail_msg("%s: the loss of step %d is %.9g on the CPU and %.9g there", options.model, i + 1, here[i],
                     there[i]);
        if (there[i] != again[i])
            fail_msg("%s: the loss of step %d is %.17g, and %.17g in the next run", options.model, i + 1, there[i],
                     again[i]);
    }
    printf("%s: from %.4f to %.4f, at most %.2g apart\n", options.model, here[0], here[STEPS - 1], worst);
    assert_true(here[STEPS - 1] < here[0]);
}

static tarn_train_options classifier(const char *model)
{
    tarn_train_options options = {.batch_size = 16, .lr = 0.001, .clip_norm = 1};
    snprintf(options.model, sizeof(options.model), "%s", model);
    return options;
}

/* On a text that is easy to train on. */
static tarn_train_options writer(const char *model)
{
    static const char line[] = "the cat sat on the mat; a dog ran by.\n";
    char text[2401];
    tarn_train_options options = {.layers = 2,
                                  .heads = 4,
                                  .hidden_size = 32,
                                  .context = 16,
                                  .batch_size = 8,
                                  .lr = 0.003,
                                  .weight_decay = 0.1,
                                  .clip_norm = 1,
                                  .dropout = 0};
    for (int i = 0; i < 2400; i++)
        text[i] = line[(size_t)i % (sizeof(line) - 1)];
    text[2400] = 0;
    snprintf(options.model, sizeof(options.model), "%s", model);
    snprintf(options.data, sizeof(options.data), "text:%s", write_text("text.txt", text));
    return options;
}

static void an_mlp_trains_as_on_the_cpu(void **state)
{
    NEEDS_OPENCL();
    compare_runs(classifier("mlp"));
}

static void a_cnn_trains_as_on_the_cpu(void **state)
{
    NEEDS_OPENCL();
    compare_runs(classifier("lenet"));
}

static void a_gpt_trains_as_on_the_cpu(void **state)
{
    NEEDS_OPENCL();
    tarn_train_options options = writer("gpt2");
    options.dropout = 0.1;
    compare_runs(options);
}

static void a_llama_trains_as_on_the_cpu(void **state)
{
    NEEDS_OPENCL();
    tarn_train_options options = writer("llama");
    options.kv_heads = 2;
    compare_runs(options);
}

/* 16-bit weights round differently where sums differ in their last bits: no bound on the losses, but they are the same
 * in every run. */
static void bf16_trains_without_the_cpu(void **state)
{
    NEEDS_OPENCL();
    double losses[STEPS], again[STEPS];
    tarn_train_options options = writer("llama");
    snprintf(options.precision, sizeof(options.precision), "bf16");
    assert_int_equal(train(options, "opencl", losses), 0);
    train(options, "opencl", again);
    for (int i = 0; i < STEPS; i++)
        assert_true(losses[i] == again[i]);
    assert_true(losses[STEPS - 1] < 0.7 * losses[0]);
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

enum { VOCAB = 40, TOKENS = 12 };

/* Rows of 256, which blocks of every kind fill. */
static const char *make_folder(void)
{
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = 32,
                                      .layers = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .hidden_size = 256,
                                      .ffn_size = 256,
                                      .tie_embeddings = true};
    static char folder[1200];
    snprintf(folder, sizeof(folder), "%s", scratch("model"));
    tarn_module *model = tarn_model_llama(&config, CPU, 3);
    assert_true(tarn_model_write(model, folder));
    tarn_module_free(model);
    return folder;
}

/* Logits of a prompt, then of one token after the other. */
static void decode(const char *path, tarn_device device, float *logits)
{
    static const int64_t prompt[] = {1, 7, 3, 22, 39};
    tarn_module *model = tarn_model_open(path, device, NULL);
    tarn_decoder *decoder = tarn_decoder_new(model, NULL);
    tarn_tensor *out = good(tarn_decoder_feed(decoder, tarn_from_i64(prompt, TARN_SHAPE(1, 5), device)));
    for (int i = 0; i < TOKENS; i++) {
        assert_true(tarn_read_f32(out, logits + i * VOCAB, VOCAB));
        out = good(tarn_decoder_feed(decoder, tarn_from_i64(&(int64_t){i * 3 % VOCAB}, TARN_SHAPE(1, 1), device)));
    }
    tarn_decoder_free(decoder);
    tarn_module_free(model);
}

static void quantized_weights_decode_without_the_cpu(void **state)
{
    NEEDS_OPENCL();
    if (!TARN__HAVE_JANSSON)
        skip();
    static const tarn_dtype kinds[] = {TARN_F32, TARN_BF16, TARN_Q8_0, TARN_Q4_0, TARN_Q4_K, TARN_Q6_K, TARN_Q5_K};
    const char *folder = make_folder();
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        float here[TOKENS * VOCAB], there[TOKENS * VOCAB];
        char path[1300];
        snprintf(path, sizeof(path), "%s-%s.gguf", folder, tarn_dtype_name(kinds[k]));
        assert_true(
            tarn_model_convert(folder, path, NULL, &(tarn_convert_options){.quantize = true, .type = kinds[k]}));
        decode(path, CPU, here);
        tarn_stats_reset();
        decode(path, opencl, there);
        assert_int_equal(tarn_stats().fallbacks, 0);
        double size = 0, apart = 0;
        for (int i = 0; i < TOKENS * VOCAB; i++) {
            size = fmax(size, fabs((double)here[i]));
            apart = fmax(apart, fabs((double)here[i] - there[i]));
        }
        printf("%s: logits up to %.3g, at most %.2g apart\n", tarn_dtype_name(kinds[k]), size, apart);
        /* the CPU rounds x to 8 bits before a product with blocks; 16 bits have 8 */
        assert_true(apart <= (kinds[k] == TARN_F32 ? 1e-5 : 0.02) * size);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_OPENCL(an_mlp_trains_as_on_the_cpu), ON_OPENCL(a_cnn_trains_as_on_the_cpu),
        ON_OPENCL(a_gpt_trains_as_on_the_cpu),  ON_OPENCL(a_llama_trains_as_on_the_cpu),
        ON_OPENCL(bf16_trains_without_the_cpu), ON_OPENCL(quantized_weights_decode_without_the_cpu),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
