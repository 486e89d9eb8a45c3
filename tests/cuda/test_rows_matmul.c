/* test_rows_matmul.c: linear layers of a decode step of dozens to hundreds of sequences on a CUDA device: against the
 * CPU, in shapes of every kernel; rows that do not depend on other rows; two bitwise identical runs. Skipped without a
 * device. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/internal.h"
#include "support/gpu.h"

/* The reference is in f32, with weights dequantized exactly: the CPU's own products with quant blocks round x to 8
 * bits, and are less accurate than these kernels. */
static tarn_tensor *wide(tarn_tensor *x)
{
    return x ? good(tarn_cast(x, TARN_F32)) : NULL;
}

static tarn__decode_norm wide_norm(const tarn__decode_norm *norm)
{
    tarn__decode_norm w = *norm;
    w.weight = wide(norm->weight), w.bias = wide(norm->bias);
    return w;
}

/* ---- linear layers ----------------------------------------------------------------------------------------------- */

typedef struct layer {
    tarn_dtype weight;
    int64_t rows, in, out[3];
    int count;
    bool has_norm, is_layernorm, has_bias;
    tarn_activation_kind act;
    double offset, scale;
} layer;

static tarn__decode_norm norm_of(const layer *l, tarn__decode_norm *far)
{
    tarn__decode_norm norm = {.epsilon = 1e-5, .offset = l->offset, .is_layernorm = l->is_layernorm};
    norm.weight = l->has_norm ? good(tarn_normal(TARN_SHAPE(l->in), 1, 0.3, TARN_BF16, CPU)) : NULL;
    norm.bias = l->has_norm && l->is_layernorm ? normal(TARN_SHAPE(l->in), 1, TARN_BF16) : NULL;
    *far = norm;
    far->weight = there(norm.weight), far->bias = there(norm.bias);
    return norm;
}

static void linears_agree(const layer *l)
{
    tarn_tensor *x = normal(TARN_SHAPE(l->rows, 1, l->in), 2, TARN_BF16), *w[3], *b[3] = {0}, *far_w[3], *far_b[3],
                *y[3], *far[3], *again[3];
    tarn__decode_norm far_norm, own_norm = norm_of(l, &far_norm), norm = wide_norm(&own_norm);
    for (int i = 0; i < l->count; i++) {
        w[i] = normal(TARN_SHAPE(l->out[i], l->in), 1 / sqrt((double)l->in), l->weight);
        b[i] = l->has_bias && i != 1 ? normal(TARN_SHAPE(l->out[i]), 1, TARN_BF16) : NULL;
        far_w[i] = there(w[i]), far_b[i] = there(b[i]);
        w[i] = wide(w[i]), b[i] = wide(b[i]);
    }
    tarn_tensor *far_x = there(x);
    assert_true(tarn_profile_start(gpu) && tarn__norm_linear(far_x, &far_norm, far_w, far_b, l->count, far));
    const char *variant = profiled_variant(TARN_PROFILE_MATMUL);
    if (has_wgmma())
        assert_string_equal(variant, "wgmma");
    assert_true(tarn__norm_linear(far_x, &far_norm, far_w, far_b, l->count, again) &&
                tarn__norm_linear(wide(x), &norm, w, b, l->count, y));
    for (int i = 0; i < l->count; i++) {
        assert_close_for_size(back(far[i]), y[i], 2e-2);
        assert_close(back(again[i]), back(far[i]), 0);
    }
}

static void gates_and_sums_agree(const layer *l)
{
    tarn_tensor *x = normal(TARN_SHAPE(l->rows, 1, l->in), 2, TARN_BF16),
                *gate = normal(TARN_SHAPE(l->out[0], l->in), 1 / sqrt((double)l->in), l->weight),
                *up = normal(TARN_SHAPE(l->out[0], l->in), 1 / sqrt((double)l->in), l->weight),
                *sum = normal(TARN_SHAPE(l->rows, 1, l->out[0]), 1, TARN_BF16),
                *bias = l->has_bias ? normal(TARN_SHAPE(l->out[0]), 1, TARN_BF16) : NULL;
    tarn__decode_norm far_norm, own_norm = norm_of(l, &far_norm), norm = wide_norm(&own_norm);
    tarn_tensor *far_x = there(x), *far_gate = there(gate), *far_up = there(up), *far_sum = there(sum),
                *far_bias = there(bias), *y[2];
    x = wide(x), gate = wide(gate), up = wide(up), sum = wide(sum), bias = wide(bias);
    for (int i = 0; i < 2; i++)
        y[i] = back(tarn__norm_gate_up(far_x, &far_norm, far_gate, far_up, l->act));
    assert_close_for_size(y[0], good(tarn__norm_gate_up(x, &norm, gate, up, l->act)), 4e-2);
    assert_close(y[1], y[0], 0);
    for (int i = 0; i < 2; i++)
        y[i] = back(tarn__linear_residual(far_x, far_up, far_bias, far_sum, l->scale));
    assert_close_for_size(y[0], good(tarn__linear_residual(x, up, bias, sum, l->scale)), 2e-2);
    assert_close(y[1], y[0], 0);
    y[0] = back(tarn__norm_up(far_x, &far_norm, far_up, far_bias, l->act));
    assert_close_for_size(y[0], good(tarn__norm_up(x, &norm, up, bias, l->act)), 4e-2);
}

/* Numbers of rows that fill a kernel, or a part of one; full and partial tiles of outputs; `in` of one slice and of
 * eight. */
static void linear_layers_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const tarn_dtype weights[] = {TARN_Q8_0, TARN_Q4_K};
    static const int64_t rows[] = {17, 32, 64, 65, 100, 128, 129, 200, 256}, ins[] = {256, 768, 2048, 1280};
    for (int i = 0; i < 2 * 9; i++) {
        tarn_scope *scope = tarn_scope_open();
        layer l = {.weight = weights[i % 2],
                   .rows = rows[i / 2],
                   .in = ins[(i + i / 4) % 4],
                   .out = {132, 64, 20},
                   .count = 3,
                   .has_norm = i % 3 != 1,
                   .is_layernorm = i % 6 == 2,
                   .has_bias = i % 5 != 1,
                   .act = i % 5 == 2 ? TARN_GELU : TARN_SILU,
                   .offset = i % 4 == 0,
                   .scale = i % 2 == 0 ? 1 : 0.22};
        linears_agree(&l);
        gates_and_sums_agree(&l);
        l.out[0] = 4, l.count = 1;
        gates_and_sums_agree(&l);
        tarn_scope_close(scope);
    }
}

/* Many tiles and slices: more thread blocks than a device has at once. */
static void wide_layers_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const tarn_dtype weights[] = {TARN_Q8_0, TARN_Q4_K};
    for (int i = 0; i < 2; i++) {
        tarn_scope *scope = tarn_scope_open();
        const layer l = {.weight = weights[i],
                         .rows = 40,
                         .in = 512,
                         .out = {i ? 9000 : 20000, 1024, 512}, /* Q4_K takes long to quantize to */
                         .count = 3,
                         .has_norm = true,
                         .scale = 1};
        linears_agree(&l);
        tarn_scope_close(scope);
    }
}

/* A row is bitwise identical whatever the other rows are, NaN included, and for every number of rows of one kernel. */
static void rows_do_not_depend_on_others(void **state)
{
    NEEDS_GPU();
    static const tarn_dtype weights[] = {TARN_Q8_0, TARN_Q4_K};
    static const int64_t most[] = {64, 256}, some[] = {20, 70};
    for (int i = 0; i < 4 && has_wgmma(); i++) {
        tarn_scope *scope = tarn_scope_open();
        const int64_t rows = most[i / 2], few_rows = some[i / 2];
        tarn_tensor *x = there(normal(TARN_SHAPE(rows, 1, 2048), 1, TARN_BF16)),
                    *w = there(normal(TARN_SHAPE(2048, 2048), 0.02, weights[i % 2])), *all, *few, *odd;
        const tarn__decode_norm none = {0};
        assert_true(tarn__norm_linear(x, &none, &w, NULL, 1, &all));
        assert_true(tarn__norm_linear(good(tarn_slice(x, 0, 0, few_rows)), &none, &w, NULL, 1, &few));
        assert_close(back(few), back(tarn_slice(all, 0, 0, few_rows)), 0);
        assert_true(tarn_fill_inplace(tarn_slice(x, 0, 7, 8), NAN));
        assert_true(tarn__norm_linear(x, &none, &w, NULL, 1, &odd));
        assert_close(back(tarn_slice(odd, 0, 0, 7)), back(tarn_slice(all, 0, 0, 7)), 0);
        assert_close(back(tarn_slice(odd, 0, 8, rows)), back(tarn_slice(all, 0, 8, rows)), 0);
        assert_true(isnan(tarn_item(tarn_cast(tarn_slice(tarn_slice(odd, 0, 7, 8), 2, 5, 6), TARN_F32))));
        tarn_scope_close(scope);
    }
}

/* Rows with a negative stride, and one repeated row: the copy engine supports neither. */
static void reversed_and_repeated_rows_match_the_cpu(void **state)
{
    NEEDS_GPU();
    tarn_tensor *x = normal(TARN_SHAPE(32, 512), 1, TARN_BF16), *one = normal(TARN_SHAPE(1, 512), 1, TARN_BF16),
                *w = normal(TARN_SHAPE(64, 512), 0.05, TARN_Q8_0), *far_w = there(w);
    const tarn_axes rows = TARN_AXES(0);
    w = wide(w);
    assert_close_for_size(back(tarn_linear_apply(tarn_flip(there(x), rows), far_w, NULL)),
                          good(tarn_linear_apply(tarn_flip(wide(x), rows), w, NULL)), 2e-2);
    assert_close_for_size(back(tarn_linear_apply(tarn_expand(there(one), TARN_SHAPE(32, 512)), far_w, NULL)),
                          good(tarn_linear_apply(tarn_expand(wide(one), TARN_SHAPE(32, 512)), w, NULL)), 2e-2);
}

#define on_gpu(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)

int main(void)
{
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
    const struct CMUnitTest tests[] = {
        on_gpu(linear_layers_match_the_cpu),
        on_gpu(wide_layers_match_the_cpu),
        on_gpu(rows_do_not_depend_on_others),
        on_gpu(reversed_and_repeated_rows_match_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
