/* test_decode.c: the fused decode step of every architecture: logits equal to those of the forward pass, composed on
 * the CPU and with a device's kernels, with quantized weights, several sequences, windows and soft caps; and the
 * kernels that a layer takes. */
#include <math.h>

#include "core/launch/stats.h"
#include "models/lm/arch.h"
#include "support/arch_models.h"
#include "support/check.h"
#include "support/scratch.h"

#define CPU tarn_device_cpu()
enum { TOKENS = 12 };

/* Logits after each token, [B, T, vocab_size], by steps of one token. */
static tarn_tensor *logits_by_steps(tarn_module *model, tarn_tensor *tokens, tarn_device device, bool is_direct)
{
    const tarn_lm_config *c = tarn__model_config(model);
    const tarn__kv_cache_shape shape = {.layers = c->layers,
                                        .batch = tarn_size(tokens, 0),
                                        .heads = c->kv_heads,
                                        .capacity = TOKENS,
                                        .head_dim = c->head_dim,
                                        .dtype = TARN_F32,
                                        .map = tarn__device_map_one(device)};
    tarn_tensor *logits[TOKENS];
    tarn__kv_cache cache;
    assert_true(tarn__kv_cache_open("test", &cache, &shape));
    tarn_no_grad_open();
    for (int i = 0; i < TOKENS; i++) {
        tarn_tensor *token = good(tarn_to(tarn_slice(tokens, 1, i, i + 1), device));
        assert_true(tarn__kv_cache_begin_step(&cache, 0, shape.batch, 1, i % 2 ? TOKENS : 0));
        assert_true(is_direct || tarn__model_can_decode(model, token, &cache));
        logits[i] = good(tarn_to(tarn__model_decode(model, token, &cache), CPU));
        assert_true(tarn__kv_cache_end_step(&cache));
        tarn__kv_cache_advance(&cache, 0, shape.batch, 1);
    }
    tarn_no_grad_close();
    tarn__kv_cache_close(&cache);
    return good(tarn_stack(logits, TOKENS, 1));
}

static double square_of(tarn_tensor *x)
{
    double sum = 0;
    assert_true(tarn_read(tarn_cast(tarn_sum(tarn_mul(x, x), TARN_AXES(0, 1, 2), false), TARN_F64), &sum, sizeof(sum)));
    return sum;
}

/* Relative to all logits together: with quantized weights x is quantized to 8 bits too, and a value that falls to the
 * other side changes single logits by some percent. */
static void expect_close(tarn_tensor *found, tarn_tensor *expected, double tolerance)
{
    double error = sqrt(square_of(good(tarn_sub(found, expected))) / square_of(expected));
    if (!(error <= tolerance))
        fail_msg("logits differ by %g, more than %g", error, tolerance);
}

static void check_model(tarn_module *model, double tolerance)
{
    for (int64_t batch = 1; batch <= 3; batch += 2) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *tokens = arch_tokens(batch, TOKENS);
        tarn_no_grad_open();
        tarn_tensor *expected = good(tarn_forward(model, tokens));
        tarn_no_grad_close();
        expect_close(logits_by_steps(model, tokens, CPU, true), expected, tolerance);
        tarn_scope_close(scope);
    }
}

static void a_composed_step_is_the_forward_pass(void **state)
{
    (void)state;
    for (int i = 0; i < ARCH_CASES; i++) {
        tarn_module *model = arch_model(&arch_cases[i], 3);
        check_model(model, 1e-5);
        tarn_module_free(model);
    }
}

static void quantized_weights_work_in_every_architecture(void **state)
{
    (void)state;
    for (int i = 0; i < ARCH_CASES; i++) {
        tarn_module *model = arch_model(&arch_cases[i], 2);
        assert_true(tarn_model_write(model, scratch("model")));
        tarn_module_free(model);
        assert_true(tarn_model_convert(
            scratch("model"), scratch("model.gguf"), NULL,
            &(tarn_convert_options){.quantize = true, .type = i % 2 ? TARN_Q8_0 : TARN_Q4_0, .replace = true}));
        model = tarn_model_open(scratch("model.gguf"), CPU, NULL);
        assert_ok();
        check_model(model, 5e-2);
        tarn_module_free(model);
    }
}

/* ---- a device with the kernels ----------------------------------------------------------------------------------- */

static bool has_mirror(tarn_device *device)
{
    if (tarn_device_count("mirror") < 1)
        return false;
    *device = tarn_device_parse("mirror:0");
    return true;
}

/* Kernels that ran on the devices of a backend. */
static int64_t kernels_run(tarn_device device)
{
    int64_t runs = 0;
    for (int k = 0; k < TARN__KERNEL_COUNT; k++)
        runs += tarn__kernel_runs(device.backend, (tarn__kernel)k);
    return runs;
}

static void a_step_of_kernels_is_the_forward_pass(void **state)
{
    (void)state;
    tarn_device mirror;
    if (!has_mirror(&mirror))
        skip();
    for (int i = 0; i < ARCH_CASES; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_module *model = arch_model(&arch_cases[i], 3);
        tarn_tensor *tokens = arch_tokens(2, TOKENS);
        tarn_no_grad_open();
        tarn_tensor *expected = good(tarn_forward(model, tokens));
        tarn_no_grad_close();
        assert_true(tarn_module_to(model, mirror));
        expect_close(logits_by_steps(model, tokens, mirror, false), expected, 1e-5);
        tarn_module_free(model);
        tarn_scope_close(scope);
    }
}

/* Kernels of a step of two and of four layers. */
static void a_layer_takes_few_kernels(void **state)
{
    (void)state;
    tarn_device mirror;
    if (!has_mirror(&mirror))
        skip();
    for (int i = 0; i < ARCH_CASES; i++) {
        int64_t runs[2];
        for (int k = 0; k < 2; k++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_module *model = arch_model(&arch_cases[i], 2 + 2 * k);
            assert_true(tarn_module_to(model, mirror));
            tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.no_capture = true});
            good(tarn_decoder_feed(decoder, tarn_to(arch_tokens(1, TOKENS), mirror)));
            tarn_tensor *token = good(tarn_zeros(TARN_SHAPE(1, 1), TARN_I64, mirror));
            tarn_stats_reset();
            good(tarn_decoder_feed(decoder, token));
            runs[k] = kernels_run(mirror);
            tarn_decoder_free(decoder);
            tarn_module_free(model);
            tarn_scope_close(scope);
        }
        if (runs[1] - runs[0] != 2 * arch_cases[i].kernels)
            fail_msg("%s: two layers take %d kernels, not %d", arch_cases[i].arch, (int)(runs[1] - runs[0]),
                     2 * arch_cases[i].kernels);
    }
}

int main(void)
{
    setenv("TARN_MIRROR_DECODE", "1", 1);
    const struct CMUnitTest tests[] = {
        in_scope(a_composed_step_is_the_forward_pass), in_scope(quantized_weights_work_in_every_architecture),
        in_scope(a_step_of_kernels_is_the_forward_pass), in_scope(a_layer_takes_few_kernels)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
