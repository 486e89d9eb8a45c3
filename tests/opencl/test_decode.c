/* test_decode.c: the GPU kernels of a decode step, on any device, against composed operations on the CPU: all dtypes of
 * weights, odd sizes, several rows; RoPE, cache and attention of a token with every cache dtype; argmax. */
#include <math.h>
#include <string.h>

#include "ops/internal.h"
#include "support/decode_kernels.h"
#include "support/opencl.h"

#define CPU tarn_device_cpu()

static const tarn_dtype floats[] = {TARN_F32, TARN_BF16, TARN_F16};
enum { FLOATS = 3 };

static tarn_tensor *there(tarn_tensor *x)
{
    return x ? good(tarn_to(x, opencl)) : NULL;
}

/* ---- linear layers ----------------------------------------------------------------------------------------------- */

/* Tolerance for the rounding of x, of the norm's result and of y. */
static double tolerance_of(tarn_dtype x)
{
    return x == TARN_F32 ? 1e-5 : x == TARN_F16 ? 4e-3 : 3e-2;
}

/* The CPU's weight, dequantized: with quantized weights the CPU rounds x to 8 bits, which the device does not. */
static tarn_tensor *exact(tarn_tensor *weight, tarn_dtype x)
{
    return tarn_dtype_block_size(tarn_dtype_of(weight)) > 1 ? good(tarn_cast(weight, x)) : weight;
}

static tarn_tensor *weight_of(tarn_dtype dtype, int64_t out, int64_t in)
{
    return good(tarn_cast(tarn_normal(TARN_SHAPE(out, in), 0, 1 / sqrt((double)in), TARN_F32, CPU), dtype));
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

/* The norm on the CPU, and on the device. */
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

/* q, k and v; a second run is bitwise identical. */
static void linears_agree(const product *p)
{
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(p->rows, 1, p->in), 0, 2, p->x, CPU)), *w[3], *b[3] = {0}, *far_w[3],
                *far_b[3] = {0}, *y[3], *far[3], *again[3];
    tarn__decode_norm far_norm, norm = norm_of(p, &far_norm);
    for (int i = 0; i < p->count; i++) {
        w[i] = weight_of(p->weight, p->out[i], p->in), far_w[i] = there(w[i]), w[i] = exact(w[i], p->x);
        b[i] = p->has_bias && i != 1 ? good(tarn_normal(TARN_SHAPE(p->out[i]), 0, 1, p->x, CPU)) : NULL,
        far_b[i] = there(b[i]);
    }
    tarn_tensor *far_x = there(x);
    tarn_stats_reset();
    assert_true(tarn__norm_linear(far_x, &far_norm, far_w, far_b, p->count, far));
    assert_int_equal(runs_of(TARN__K_norm_linear), 1);
    assert_true(tarn__norm_linear(far_x, &far_norm, far_w, far_b, p->count, again));
    assert_true(tarn__norm_linear(x, &norm, w, b, p->count, y));
    for (int i = 0; i < p->count; i++) {
        assert_close(good(tarn_to(again[i], CPU)), good(tarn_to(far[i], CPU)), 0);
        assert_close_for_size(good(tarn_to(far[i], CPU)), y[i], tolerance_of(p->x));
    }
}

static void gates_and_sums_agree(const product *p)
{
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(p->rows, 1, p->in), 0, 2, p->x, CPU)),
                *gate = weight_of(p->weight, p->out[0], p->in), *up = weight_of(p->weight, p->out[0], p->in),
                *far_gate = there(gate), *far_up = there(up);
    gate = exact(gate, p->x), up = exact(up, p->x);
    tarn__decode_norm far_norm, norm = norm_of(p, &far_norm);
    const tarn_activation_kind act = generals[p->general].act;
    const double scale = generals[p->general].scale;
    tarn_tensor *sum = good(tarn_normal(TARN_SHAPE(p->rows, 1, p->out[0]), 0, 1, p->x, CPU));
    tarn_tensor *bias = p->has_bias ? good(tarn_normal(TARN_SHAPE(p->out[0]), 0, 1, p->x, CPU)) : NULL;
    tarn_stats_reset();
    tarn_tensor *far = good(tarn__norm_gate_up(there(x), &far_norm, far_gate, far_up, act));
    assert_int_equal(runs_of(TARN__K_norm_gate_up), 1);
    assert_close_for_size(good(tarn_to(far, CPU)), good(tarn__norm_gate_up(x, &norm, gate, up, act)),
                          2 * tolerance_of(p->x));
    tarn_stats_reset();
    far = good(tarn__norm_up(there(x), &far_norm, far_up, there(bias), act));
    assert_int_equal(runs_of(TARN__K_norm_linear), 1);
    assert_close_for_size(good(tarn_to(far, CPU)), good(tarn__norm_up(x, &norm, up, bias, act)),
                          2 * tolerance_of(p->x));
    tarn_stats_reset();
    far = good(tarn__linear_residual(there(x), far_up, there(bias), there(sum), scale));
    assert_int_equal(runs_of(TARN__K_linear_residual), 1);
    assert_close_for_size(good(tarn_to(far, CPU)), good(tarn__linear_residual(x, up, bias, sum, scale)),
                          tolerance_of(p->x));
}

/* Rows shorter than a chunk, of several chunks and of a part of one; 1 to 8 rows of x; outputs that are not a multiple
 * of a team's. Few combinations, since each is compiled. */
static void linear_layers_match_the_cpu(void **state)
{
    NEEDS_OPENCL();
    static const product all[] = {
        {TARN_F32, TARN_F32, 1, 768, {40, 7, 24}, 3, true, false, 0},
        {TARN_F32, TARN_Q4_K, 4, 2304, {129}, 1, true, false, 0},
        {TARN_BF16, TARN_BF16, 1, 2304, {129, 7, 24}, 3, true, false, 0},
        {TARN_BF16, TARN_BF16, 8, 1024, {40}, 1, true, false, 0},
        {TARN_BF16, TARN_Q8_0, 1, 2304, {33}, 1, true, false, 0},
        {TARN_BF16, TARN_Q8_0, 8, 4096, {33}, 1, true, false, 0},
        {TARN_BF16, TARN_Q4_K, 1, 4096, {65}, 1, true, true, 0},
        {TARN_F16, TARN_F16, 2, 512, {33, 5}, 2, true, true, 1},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        tarn_scope *scope = tarn_scope_open();
        linears_agree(&all[i]);
        tarn_scope_close(scope);
    }
}

/* Every activation and norm; gates and residuals. */
static void gates_and_residuals_match_the_cpu(void **state)
{
    NEEDS_OPENCL();
    static const product all[] = {
        {TARN_F32, TARN_F32, 1, 256, {129}, 1, true, false, 0},
        {TARN_F32, TARN_F32, 1, 256, {40}, 1, true, false, 2},
        {TARN_F32, TARN_F32, 1, 256, {129}, 1, true, false, 4},
        {TARN_F32, TARN_F32, 1, 256, {7}, 1, true, true, 1},
        {TARN_BF16, TARN_Q8_0, 1, 2304, {65}, 1, true, false, 2},
        {TARN_BF16, TARN_Q4_K, 7, 512, {33}, 1, true, false, 3},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        tarn_scope *scope = tarn_scope_open();
        gates_and_sums_agree(&all[i]);
        tarn_scope_close(scope);
    }
}

/* More rows of the weight than all work-groups compute at once, with few elements. */
static void many_and_short_rows_work(void **state)
{
    NEEDS_OPENCL();
    linears_agree(&(product){
        .x = TARN_BF16, .weight = TARN_BF16, .rows = 1, .in = 64, .out = {30000, 8, 1}, .count = 3, .has_norm = true});
    linears_agree(&(product){
        .x = TARN_F32, .weight = TARN_F32, .rows = 1, .in = 8, .out = {5000, 5, 3}, .count = 3, .has_norm = true});
    linears_agree(&(product){
        .x = TARN_BF16, .weight = TARN_Q4_K, .rows = 8, .in = 256, .out = {3001, 4, 5}, .count = 3, .has_norm = true});
}

/* Formats without a kernel, and rows that are not aligned, are composed. */
static void other_weights_are_composed(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(2, 1, 512), 0, 1, TARN_F32, CPU)), *y[3], *far[3], *far_w[3],
                *w[] = {weight_of(TARN_Q4_K, 24, 512), weight_of(TARN_Q6_K, 37, 512), weight_of(TARN_Q4_0, 5, 512)};
    for (int i = 0; i < 3; i++)
        far_w[i] = there(w[i]), w[i] = exact(w[i], TARN_F32);
    tarn_stats_reset();
    assert_true(tarn__norm_linear(there(x), &(tarn__decode_norm){0}, far_w, NULL, 3, far));
    assert_int_equal(tarn_stats().fallbacks, 0);
    assert_true(tarn__norm_linear(x, &(tarn__decode_norm){0}, w, NULL, 3, y));
    for (int i = 0; i < 3; i++)
        assert_close_for_size(good(tarn_to(far[i], CPU)), y[i], tolerance_of(TARN_F32));
    tarn_tensor *odd = weight_of(TARN_BF16, 6, 36), *far_odd = there(odd),
                *rows = good(tarn_normal(TARN_SHAPE(1, 1, 36), 0, 1, TARN_BF16, CPU));
    assert_true(tarn__norm_linear(there(rows), &(tarn__decode_norm){0}, &far_odd, NULL, 1, far) &&
                tarn__norm_linear(rows, &(tarn__decode_norm){0}, &odd, NULL, 1, y));
    assert_close_for_size(good(tarn_to(far[0], CPU)), y[0], 3e-2);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static void tokens_attend_to_the_cache(void **state)
{
    NEEDS_OPENCL();
    const tarn_rope_options ropes[] = {{.axis = 1},
                                       {.axis = 1, .scaling = TARN_ROPE_LLAMA3, .base = 500000},
                                       {.axis = 1, .interleaved = true},
                                       {.axis = 1, .dims = 8}};
    static const past all[] = {
        {1, 4, 1, 64, 1111, TARN_F32, TARN_F32, 0, 0},  {3, 32, 8, 64, 65, TARN_BF16, TARN_BF16, 0, 0},
        {2, 3, 3, 80, 0, TARN_F32, TARN_F16, 0, 0},     {2, 6, 2, 64, 300, TARN_BF16, TARN_U8, 50, 0},
        {2, 4, 4, 128, 300, TARN_F32, TARN_F32, 0, 20}, {1, 6, 2, 40, 1, TARN_F16, TARN_U8, 0, 0},
    };
    for (int i = 0; i < 6; i++) {
        tarn_scope *scope = tarn_scope_open();
        tokens_attend(&all[i], i == 4 ? NULL : &ropes[i % 4], opencl);
        tarn_scope_close(scope);
    }
}

/* Few heads and many keys: split with as many compute units as a GPU has. */
static void long_caches_work(void **state)
{
    NEEDS_OPENCL();
    tokens_attend(
        &(past){
            .batch = 1, .heads = 1, .kv_heads = 1, .depth = 64, .length = 9000, .dtype = TARN_F32, .stored = TARN_F32},
        &(tarn_rope_options){.axis = 1}, opencl);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static void the_argmax_matches_the_cpu(void **state)
{
    NEEDS_OPENCL();
    static const int64_t lengths[] = {1, 5, 255, 2048, 50000};
    for (int i = 0; i < 5 * FLOATS; i++)
        argmax_matches(lengths[i / FLOATS], floats[i % FLOATS], opencl);
}

int main(void)
{
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
    const struct CMUnitTest tests[] = {
        ON_OPENCL(linear_layers_match_the_cpu), ON_OPENCL(gates_and_residuals_match_the_cpu),
        ON_OPENCL(many_and_short_rows_work),    ON_OPENCL(other_weights_are_composed),
        ON_OPENCL(tokens_attend_to_the_cache),  ON_OPENCL(long_caches_work),
        ON_OPENCL(the_argmax_matches_the_cpu),
    };
    setenv("TARN_OPENCL_LOCAL_MEM", "1", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
