/* test_decode.c: the kernels of a decode step on a CUDA device against composed operations on the CPU: all dtypes of
 * weights, odd sizes, several rows; a token that is rotated, cached and attends, with every cache dtype; and whole
 * models, captured and eager. Skipped without a device. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/lm/kv_cache.h"
#include "ops/internal.h"
#include "support/decode_kernels.h"
#include "support/gpu.h"
#include "support/scratch.h"

static const tarn_dtype floats[] = {TARN_F32, TARN_BF16, TARN_F16},
                        weights[] = {TARN_F32,  TARN_BF16, TARN_F16,  TARN_Q8_0,   TARN_Q4_0,
                                     TARN_Q4_K, TARN_Q6_K, TARN_Q4_1, TARN_Q5_0,   TARN_Q5_1,
                                     TARN_Q2_K, TARN_Q3_K, TARN_Q5_K, TARN_IQ4_NL, TARN_IQ4_XS};
enum { FLOATS = 3, WEIGHTS = 15 };

/* ---- GEMV -------------------------------------------------------------------------------------------------------- */

/* Formats that take long to quantize to repeat DISTINCT rows. */
enum { DISTINCT = 509, MAX_ROWS = 15002 };

static tarn_tensor *weight_of(tarn_dtype dtype, int64_t out, int64_t in)
{
    static int64_t list[MAX_ROWS];
    if (dtype > TARN_Q6_K && out > DISTINCT) {
        for (int64_t i = 0; i < MAX_ROWS; i++)
            list[i] = i % DISTINCT;
        return good(tarn_index_select(weight_of(dtype, DISTINCT, in), 0, tarn_from_i64(list, TARN_SHAPE(out), CPU)));
    }
    return good(tarn_cast(tarn_normal(TARN_SHAPE(out, in), 0, 1 / sqrt((double)in), TARN_F32, CPU), dtype));
}

/* A weight on both devices. With TARN_TEST_ROOM there is a row after it: 16-byte copies that end early read no more
 * than asked, but initcheck counts all 16 bytes. */
static tarn_tensor *weight_of_both(tarn_dtype dtype, int64_t out, int64_t in, tarn_tensor **far)
{
    tarn_tensor *all = weight_of(dtype, out + (getenv("TARN_TEST_ROOM") != NULL), in);
    *far = good(tarn_slice(there(all), 0, 0, out));
    return good(tarn_slice(all, 0, 0, out));
}

/* The rounding of x, of the norm's result and of y: quantized values that fall to the other side, and last bits. */
static double tolerance_of(tarn_dtype x, tarn_dtype weight)
{
    double of_x = x == TARN_F32 ? 1e-5 : x == TARN_F16 ? 4e-3 : 3e-2;
    return tarn_dtype_block_size(weight) > 1 ? of_x + 8e-3 : of_x;
}

typedef struct product {
    tarn_dtype x, weight;
    int64_t rows, in, out[3];
    int count;
    bool has_norm, has_bias;
    int general; /* of generals */
} product;

/* Norm, activation of an MLP and scale of a residual branch, by architecture. */
static const struct {
    bool is_layernorm, has_bias;
    double offset, scale;
    tarn_activation_kind act;
} generals[] = {{false, false, 0, 1, TARN_SILU},
                {true, true, 0, 1, TARN_GELU},
                {false, false, 1, 1, TARN_GELU},
                {true, false, 0, 1, TARN_GELU_ERF},
                {false, false, 0, 0.22, TARN_RELU}};

enum { GENERALS = sizeof(generals) / sizeof(generals[0]) };

/* The norm on the CPU, and on the GPU. */
static tarn__decode_norm norm_of(const product *p, tarn__decode_norm *far)
{
    tarn__decode_norm norm = {
        .epsilon = 1e-5, .offset = generals[p->general].offset, .is_layernorm = generals[p->general].is_layernorm};
    norm.weight = p->has_norm ? good(tarn_normal(TARN_SHAPE(p->in), 1, 0.3, p->x, CPU)) : NULL;
    norm.bias =
        p->has_norm && generals[p->general].has_bias ? good(tarn_normal(TARN_SHAPE(p->in), 0, 1, p->x, CPU)) : NULL;
    *far = norm;
    far->weight = there(norm.weight), far->bias = there(norm.bias);
    return norm;
}

static void linears_agree(const product *p)
{
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(p->rows, 1, p->in), 0, 2, p->x, CPU)), *w[3], *b[3] = {0}, *far_w[3],
                *far_b[3] = {0}, *y[3], *far[3];
    tarn__decode_norm far_norm, norm = norm_of(p, &far_norm);
    for (int i = 0; i < p->count; i++) {
        w[i] = weight_of_both(p->weight, p->out[i], p->in, &far_w[i]);
        b[i] = p->has_bias && i != 1 ? good(tarn_normal(TARN_SHAPE(p->out[i]), 0, 1, p->x, CPU)) : NULL,
        far_b[i] = there(b[i]);
    }
    tarn_stats_reset();
    assert_true(tarn__norm_linear(there(x), &far_norm, far_w, far_b, p->count, far));
    assert_int_equal(runs_of(TARN__K_norm_linear), 1);
    assert_true(tarn__norm_linear(x, &norm, w, b, p->count, y));
    for (int i = 0; i < p->count; i++)
        assert_close_for_size(good(tarn_to(far[i], CPU)), y[i], tolerance_of(p->x, p->weight));
}

static void gates_and_sums_agree(const product *p)
{
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(p->rows, 1, p->in), 0, 2, p->x, CPU)), *far_gate, *far_up;
    tarn_tensor *gate = weight_of_both(p->weight, p->out[0], p->in, &far_gate),
                *up = weight_of_both(p->weight, p->out[0], p->in, &far_up);
    tarn__decode_norm far_norm, norm = norm_of(p, &far_norm);
    const tarn_activation_kind act = generals[p->general].act;
    const double scale = generals[p->general].scale;
    tarn_tensor *sum = good(tarn_normal(TARN_SHAPE(p->rows, 1, p->out[0]), 0, 1, p->x, CPU));
    tarn_tensor *bias = p->has_bias ? good(tarn_normal(TARN_SHAPE(p->out[0]), 0, 1, p->x, CPU)) : NULL;
    tarn_stats_reset();
    tarn_tensor *far = good(tarn__norm_gate_up(there(x), &far_norm, far_gate, far_up, act));
    assert_int_equal(runs_of(TARN__K_norm_gate_up), 1);
    assert_close_for_size(good(tarn_to(far, CPU)), good(tarn__norm_gate_up(x, &norm, gate, up, act)),
                          2 * tolerance_of(p->x, p->weight));
    tarn_stats_reset();
    far = good(tarn__norm_up(there(x), &far_norm, far_up, there(bias), act));
    assert_int_equal(runs_of(TARN__K_norm_linear), 1);
    assert_close_for_size(good(tarn_to(far, CPU)), good(tarn__norm_up(x, &norm, up, bias, act)),
                          2 * tolerance_of(p->x, p->weight));
    tarn_stats_reset();
    far = good(tarn__linear_residual(there(x), far_up, there(bias), there(sum), scale));
    assert_int_equal(runs_of(TARN__K_linear_residual), 1);
    assert_close_for_size(good(tarn_to(far, CPU)), good(tarn__linear_residual(x, up, bias, sum, scale)),
                          tolerance_of(p->x, p->weight));
}

/* A weight has x's dtype, or fewer bits. */
static bool fit(tarn_dtype x, tarn_dtype weight)
{
    return weight == x || x == TARN_F32 || tarn_dtype_block_size(weight) > 1;
}

/* Shorter than a chunk, several chunks and a part of one, a row whose quant blocks are not aligned. */
static void gemv_matches_the_cpu(void **state)
{
    NEEDS_GPU();
    static const int64_t lengths[] = {256, 512, 768, 2048, 2304, 8192};
    int step = getenv("TARN_TEST_QUICK") ? 4 : 1;
    for (int w = 0; w < WEIGHTS; w++)
        for (int d = 0; d < FLOATS; d++)
            for (int i = 0; i < 6 && fit(floats[d], weights[w]); i += step) {
                tarn_scope *scope = tarn_scope_open();
                product p = {.x = floats[d],
                             .weight = weights[w],
                             .rows = 1 + (w + d + i) % 3 * 3,
                             .in = lengths[i],
                             .out = {40, 7, 24},
                             .count = 3,
                             .has_norm = i % 2 == 0,
                             .has_bias = i % 3 == 0};
                linears_agree(&p);
                p.rows = 1, p.count = 1, p.out[0] = 129;
                linears_agree(&p);
                p.rows = 1 + i;
                gates_and_sums_agree(&p);
                p.out[0] = 64;
                gates_and_sums_agree(&p);
                p.general = 1 + (w + d + i) % (GENERALS - 1);
                gates_and_sums_agree(&p);
                p.rows = 1, p.out[0] = 129, p.has_norm = true;
                linears_agree(&p);
                gates_and_sums_agree(&p);
                tarn_scope_close(scope);
            }
}

/* More rows of the weight than all warps have at once, and few elements. */
static void gemv_of_many_and_short_rows_works(void **state)
{
    NEEDS_GPU();
    linears_agree(&(product){
        .x = TARN_BF16, .weight = TARN_BF16, .rows = 1, .in = 64, .out = {30000, 8, 1}, .count = 3, .has_norm = true});
    linears_agree(&(product){
        .x = TARN_BF16, .weight = TARN_Q8_0, .rows = 2, .in = 32, .out = {30001}, .count = 1, .has_norm = true});
    linears_agree(&(product){.x = TARN_F32, .weight = TARN_F32, .rows = 8, .in = 8, .out = {5000, 5}, .count = 2});
    gates_and_sums_agree(
        &(product){.x = TARN_F32, .weight = TARN_F16, .rows = 3, .in = 3072, .out = {9000}, .has_norm = true});
    /* two rows at a time, of one row of x: several pairs per warp, an odd number of rows in each weight */
    static const tarn_dtype paired[] = {TARN_Q4_K, TARN_Q8_0, TARN_Q4_1,   TARN_Q5_0,
                                        TARN_Q5_1, TARN_Q5_K, TARN_IQ4_NL, TARN_IQ4_XS};
    for (size_t i = 0; i < sizeof(paired) / sizeof(paired[0]); i++) {
        tarn_scope *scope = tarn_scope_open();
        const tarn_dtype weight = paired[i];
        linears_agree(&(product){.x = TARN_BF16,
                                 .weight = weight,
                                 .rows = 1,
                                 .in = 256,
                                 .out = {12001, 3, 15001},
                                 .count = 3,
                                 .has_norm = true,
                                 .has_bias = true});
        linears_agree(&(product){
            .x = TARN_F32, .weight = weight, .rows = 1, .in = 3072, .out = {6001}, .count = 1, .has_norm = true});
        gates_and_sums_agree(&(product){
            .x = TARN_F16, .weight = weight, .rows = 1, .in = 1280, .out = {6001}, .has_norm = true, .has_bias = true});
        gates_and_sums_agree(
            &(product){.x = TARN_BF16, .weight = weight, .rows = 1, .in = 16384, .out = {301}, .has_norm = true});
        tarn_scope_close(scope);
    }
    /* rows that are not 16-byte aligned */
    linears_agree(&(product){.x = TARN_F32, .weight = TARN_Q8_0, .rows = 1, .in = 96, .out = {301, 7}, .count = 2});
}

/* Rows of floats of which some devices stage all, others none: there they are composed. */
static void long_float_rows_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const int64_t lengths[] = {8200, 9216, 14336, 16384, 43008};
    for (int i = 0; i < 5 * FLOATS; i++) {
        tarn_scope *scope = tarn_scope_open();
        const int64_t in = lengths[i / FLOATS], rows = 1 + i % 2 * 3;
        const tarn_dtype dtype = floats[i % FLOATS];
        tarn_tensor *x = good(tarn_normal(TARN_SHAPE(rows, 1, in), 0, 2, dtype, CPU)), *far_w,
                    *w = weight_of_both(dtype, 40, in, &far_w),
                    *sum = good(tarn_normal(TARN_SHAPE(rows, 1, 40), 0, 1, dtype, CPU));
        assert_close_for_size(good(tarn_to(tarn__linear_residual(there(x), far_w, NULL, there(sum), 1), CPU)),
                              good(tarn__linear_residual(x, w, NULL, sum, 1)), tolerance_of(dtype, dtype));
        tarn_scope_close(scope);
    }
}

/* Weights of two dtypes take a call each; views of rows are read in place; results are bitwise identical twice; NaN
 * stays. */
static void dtype_mixtures_and_views_work(void **state)
{
    NEEDS_GPU();
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(2, 1, 512), 0, 1, TARN_F32, CPU)), *y[3], *far[3], *again[3],
                *far_w[3];
    tarn_tensor *q6 = weight_of(TARN_Q6_K, 50, 512),
                *w[] = {weight_of(TARN_Q4_K, 24, 512), good(tarn_slice(q6, 0, 3, 40)), good(tarn_slice(q6, 0, 1, 2))};
    tarn_tensor *far_q6 = there(q6), *far_x = there(x);
    far_w[0] = there(w[0]), far_w[1] = good(tarn_slice(far_q6, 0, 3, 40)), far_w[2] = good(tarn_slice(far_q6, 0, 1, 2));
    tarn_stats_reset();
    assert_true(tarn__norm_linear(far_x, &(tarn__decode_norm){0}, far_w, NULL, 3, far));
    assert_int_equal(runs_of(TARN__K_norm_linear), 2);
    assert_true(tarn__norm_linear(x, &(tarn__decode_norm){0}, w, NULL, 3, y) &&
                tarn__norm_linear(far_x, &(tarn__decode_norm){0}, far_w, NULL, 3, again));
    for (int i = 0; i < 3; i++) {
        assert_close_for_size(good(tarn_to(far[i], CPU)), y[i], tolerance_of(TARN_F32, TARN_Q6_K));
        assert_close(good(tarn_to(again[i], CPU)), good(tarn_to(far[i], CPU)), 0);
    }
    tarn_tensor *odd = good(tarn_mul(far_x, tarn_scalar(NAN)));
    assert_true(tarn__norm_linear(odd, &(tarn__decode_norm){0}, far_w, NULL, 3, far));
    double *values = values_of(good(tarn_to(far[1], CPU)));
    assert_true(isnan(values[0]) && isnan(values[36]));
    free(values);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static void tokens_attend_to_the_cache(void **state)
{
    NEEDS_GPU();
    static const int64_t depths[] = {64, 80, 96, 128, 256, 8, 40}, lengths[] = {0, 1, 63, 64, 65, 300, 1111, 5000};
    static const int64_t heads[][2] = {{4, 1}, {6, 2}, {3, 3}, {14, 2}, {8, 8}, {32, 8}, {8, 4}, {32, 32}, {16, 16}};
    static const tarn_dtype stored[] = {TARN_F32, TARN_BF16, TARN_F16, TARN_U8};
    const tarn_rope_options ropes[] = {{.axis = 1}, {.axis = 1, .scaling = TARN_ROPE_LLAMA3, .base = 500000}};
    for (int i = 0; i < 72; i++) {
        tarn_scope *scope = tarn_scope_open();
        const past p = {.batch = 1 + i % 3,
                        .heads = heads[i % 9][0],
                        .kv_heads = heads[i % 9][1],
                        .depth = depths[i % 7],
                        .length = lengths[i % 8],
                        .dtype = floats[i % 3],
                        .stored = stored[i / 2 % 4]};
        tokens_attend(&p, &ropes[i % 2], gpu);
        tarn_scope_close(scope);
    }
    for (int i = 0; i < 7 * 6; i++) { /* quantized cache: each head_dim has its own groups */
        tarn_scope *scope = tarn_scope_open();
        tokens_attend(&(past){.batch = 2,
                              .heads = 6,
                              .kv_heads = 2,
                              .depth = depths[i % 7],
                              .length = lengths[i / 7],
                              .dtype = floats[i % 3],
                              .stored = TARN_U8},
                      &ropes[i % 2], gpu);
        tarn_scope_close(scope);
    }
    const tarn_rope_options odd[] = {{.axis = 1, .interleaved = true},
                                     {.axis = 1, .dims = 32},
                                     {.axis = 1, .scaling = TARN_ROPE_YARN, .original_context = 64}};
    for (int i = 0; i < 3; i++)
        tokens_attend(&(past){.batch = 2,
                              .heads = 4,
                              .kv_heads = 2,
                              .depth = 64,
                              .length = 130,
                              .dtype = TARN_F32,
                              .stored = TARN_F32},
                      &odd[i], gpu);
}

/* More keys than the smallest split lets all blocks have. */
static void long_caches_are_split(void **state)
{
    NEEDS_GPU();
    tokens_attend(
        &(past){
            .batch = 1, .heads = 4, .kv_heads = 1, .depth = 64, .length = 9000, .dtype = TARN_F32, .stored = TARN_F32},
        &(tarn_rope_options){.axis = 1}, gpu);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static void the_argmax_matches_the_cpu(void **state)
{
    NEEDS_GPU();
    static const int64_t lengths[] = {1, 5, 255, 2048, 2049, 50000, 300001};
    for (int i = 0; i < 7 * FLOATS; i++)
        argmax_matches(lengths[i / FLOATS], floats[i % FLOATS], gpu);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

enum { TOKENS = 40, VOCAB = 320 };

static tarn_module *make_model(tarn_dtype dtype, const char *arch)
{
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = 512,
                                      .layers = 3,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .hidden_size = 256,
                                      .ffn_size = 512,
                                      .dtype = dtype,
                                      .arch = arch,
                                      .qkv_bias = strcmp(arch, "qwen2") == 0,
                                      .qk_norm = strcmp(arch, "qwen3") == 0};
    tarn_module *model = tarn_model_llama(&config, CPU, 5);
    assert_ok();
    return model;
}

/* Logits of some tokens after a prompt. */
static void decode(tarn_module *model, tarn_device device, bool no_capture, tarn_kv_type kv_type, tarn_tensor **logits)
{
    int64_t prompt[150];
    tarn_decoder *decoder =
        tarn_decoder_new(model, &(tarn_decoder_options){.no_capture = no_capture, .kv_type = kv_type});
    for (int i = 0; i < 150; i++)
        prompt[i] = i * 37 % VOCAB;
    good(tarn_decoder_feed(decoder, tarn_from_i64(prompt, TARN_SHAPE(1, 150), device)));
    for (int i = 0; i < TOKENS; i++)
        logits[i] = good(tarn_to(tarn_decoder_feed(decoder, tarn_from_i64(prompt + i, TARN_SHAPE(1, 1), device)), CPU));
    tarn_decoder_free(decoder);
}

/* Captured steps, launched with PDL, are bitwise identical to eager ones. */
static void models_decode_as_on_the_cpu(void **state)
{
    NEEDS_GPU();
    static const char *const families[] = {"llama", "qwen2", "qwen3"};
    static const tarn_kv_type kinds[] = {TARN_KV_MODEL, TARN_KV_F16, TARN_KV_Q8_0};
    for (int i = 0; i < 6; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *wanted[TOKENS], *recorded[TOKENS], *one_by_one[TOKENS];
        tarn_dtype dtype = i < 3 ? TARN_F32 : TARN_BF16;
        tarn_module *model = make_model(dtype, families[i % 3]);
        decode(model, CPU, true, kinds[i % 3], wanted);
        assert_true(tarn_module_to(model, gpu));
        int64_t before = tarn_stats().fallbacks;
        decode(model, gpu, false, kinds[i % 3], recorded);
        decode(model, gpu, true, kinds[i % 3], one_by_one);
        assert_int_equal(tarn_stats().fallbacks, before);
        for (int t = 0; t < TOKENS; t++) {
            assert_close(recorded[t], one_by_one[t], 0);
            assert_close_for_size(recorded[t], wanted[t],
                                  dtype == TARN_BF16              ? 8e-2
                                  : kinds[i % 3] == TARN_KV_MODEL ? 1e-4
                                                                  : 2e-2);
        }
        tarn_module_free(model);
        tarn_scope_close(scope);
    }
}

/* Two layers with the shapes of a Llama of 1B: rows of one chunk, or of several that warps share, and kernels short
 * enough for PDL to overlap. */
static void captured_decode_steps_are_bitwise_identical(void **state)
{
    NEEDS_GPU();
    static const tarn_dtype packed[] = {TARN_Q8_0, TARN_Q4_K};
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = 512,
                                      .layers = 2,
                                      .heads = 32,
                                      .kv_heads = 8,
                                      .hidden_size = 2048,
                                      .ffn_size = 8192,
                                      .dtype = TARN_BF16,
                                      .arch = "llama"};
    tarn_module *model = tarn_model_llama(&config, CPU, 6);
    assert_true(tarn_model_write(model, scratch("llama")));
    tarn_module_free(model);
    for (int i = 0; i < 2; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *recorded[TOKENS], *one_by_one[TOKENS];
        model = tarn_model_open(scratch("llama"), gpu,
                                &(tarn_model_open_options){.dtype = TARN_BF16, .quantize = packed[i]});
        assert_ok();
        decode(model, gpu, false, TARN_KV_MODEL, recorded);
        decode(model, gpu, true, TARN_KV_MODEL, one_by_one);
        for (int t = 0; t < TOKENS; t++) {
            assert_true(isfinite(tarn_item(tarn_sum(tarn_cast(recorded[t], TARN_F32), TARN_ALL_AXES, false))));
            assert_close(recorded[t], one_by_one[t], 0);
        }
        tarn_module_free(model);
        tarn_scope_close(scope);
    }
}

#define on_gpu(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)

int main(void)
{
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
    const struct CMUnitTest tests[] = {
        on_gpu(gemv_matches_the_cpu),
        on_gpu(gemv_of_many_and_short_rows_works),
        on_gpu(long_float_rows_match_the_cpu),
        on_gpu(dtype_mixtures_and_views_work),
        on_gpu(tokens_attend_to_the_cache),
        on_gpu(long_caches_are_split),
        on_gpu(the_argmax_matches_the_cpu),
        on_gpu(models_decode_as_on_the_cpu),
        on_gpu(captured_decode_steps_are_bitwise_identical),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
