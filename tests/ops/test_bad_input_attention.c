/* test_bad_input_attention.c: invalid arguments to attention and the fused operations of language models. */
#include "support/refuse.h"

#define CPU tarn_device_cpu()

static tarn_tensor *some(tarn_shape shape)
{
    return tarn_ones(shape, TARN_F32, CPU);
}

static tarn_tensor *whole(tarn_shape shape)
{
    return tarn_ones(shape, TARN_I64, CPU);
}

static tarn_tensor *elsewhere(tarn_shape shape, tarn_dtype dtype)
{
    return tarn_ones(shape, dtype, tarn_device_parse("mirror:1"));
}

static void attention(void **state)
{
    (void)state;
    tarn_tensor *q = some(TARN_SHAPE(2, 4, 3, 8)), *k = some(TARN_SHAPE(2, 2, 5, 8));
    REFUSE(tarn_attention_sized, tarn_attention(NULL, k, k, NULL));
    REFUSE(tarn_attention_sized, tarn_attention(q, NULL, k, NULL));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, NULL, NULL));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, some(TARN_SHAPE(2, 2, 6, 8)), NULL));
    REFUSE(tarn_attention_sized, tarn_attention(q, some(TARN_SHAPE(2, 5, 8)), some(TARN_SHAPE(2, 5, 8)), NULL));
    REFUSE(tarn_attention_sized, tarn_attention(some(TARN_SHAPE(2, 4, 3, 7)), k, k, NULL));
    REFUSE(tarn_attention_sized, tarn_attention(some(TARN_SHAPE(1, 4, 3, 8)), k, k, NULL));
    REFUSE(tarn_attention_sized, tarn_attention(some(TARN_SHAPE(2, 3, 3, 8)), k, k, NULL));
    REFUSE(tarn_attention_sized, tarn_attention(q, some(TARN_SHAPE(2, 0, 5, 8)), some(TARN_SHAPE(2, 0, 5, 8)), NULL));
    REFUSE(tarn_attention_sized, tarn_attention(some(TARN_SHAPE(2, 2, 3, 0)), some(TARN_SHAPE(2, 2, 3, 0)),
                                                some(TARN_SHAPE(2, 2, 3, 0)), NULL));
    REFUSE(tarn_attention_sized, tarn_attention(whole(TARN_SHAPE(2, 2, 3, 8)), whole(TARN_SHAPE(2, 2, 3, 8)),
                                                whole(TARN_SHAPE(2, 2, 3, 8)), NULL));
    REFUSE(tarn_attention_sized, tarn_attention(tarn_cast(q, TARN_F64), k, k, NULL));
    REFUSE(tarn_attention_sized, tarn_attention(tarn_scalar(1), tarn_scalar(1), tarn_scalar(1), NULL));
    REFUSE(tarn_attention_sized, tarn_attention(q, elsewhere(TARN_SHAPE(2, 2, 5, 8), TARN_F32), k, NULL));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.scale = NAN}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.scale = INFINITY}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.dropout = 1}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.dropout = -0.1}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.dropout = NAN}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.window = 2}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.causal = true, .window = -1}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.softcap = -1}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.softcap = NAN}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.softcap = INFINITY}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.lengths = some(TARN_SHAPE(2))}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.lengths = whole(TARN_SHAPE(3))}));
    REFUSE(tarn_attention_sized,
           tarn_attention(q, k, k, &(tarn_attention_options){.lengths = whole(TARN_SHAPE(2, 1))}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.lengths = tarn_scalar(1)}));
    REFUSE(tarn_attention_sized,
           tarn_attention(q, k, k, &(tarn_attention_options){.lengths = elsewhere(TARN_SHAPE(2), TARN_I64)}));
    REFUSE(
        tarn_attention_sized,
        tarn_attention(q, k, k, &(tarn_attention_options){.lengths = tarn_mul(whole(TARN_SHAPE(2)), tarn_scalar(6))}));
    REFUSE(tarn_attention_sized,
           tarn_attention(q, k, k, &(tarn_attention_options){.document_starts = some(TARN_SHAPE(2, 3))}));
    REFUSE(tarn_attention_sized,
           tarn_attention(q, k, k, &(tarn_attention_options){.document_starts = whole(TARN_SHAPE(2, 5))}));
    REFUSE(tarn_attention_sized,
           tarn_attention(q, k, k, &(tarn_attention_options){.document_starts = whole(TARN_SHAPE(1, 3))}));
    REFUSE(tarn_attention_sized,
           tarn_attention(q, k, k, &(tarn_attention_options){.document_starts = whole(TARN_SHAPE(3))}));
    REFUSE(tarn_attention_sized, tarn_attention(q, k, k, &(tarn_attention_options){.document_starts = tarn_scalar(0)}));
    REFUSE(
        tarn_attention_sized,
        tarn_attention(q, k, k, &(tarn_attention_options){.document_starts = elsewhere(TARN_SHAPE(2, 3), TARN_I64)}));
    REFUSE(
        tarn_attention_sized,
        tarn_attention(
            q, k, k, &(tarn_attention_options){.document_starts = tarn_mul(whole(TARN_SHAPE(2, 3)), tarn_scalar(6))}));
    ACCEPT(tarn_attention(q, k, k, &(tarn_attention_options){.document_starts = whole(TARN_SHAPE(2, 3))}));
    ACCEPT(tarn_attention(q, k, k, &(tarn_attention_options){.causal = true, .lengths = whole(TARN_SHAPE(2))}));
    ACCEPT(tarn_attention(some(TARN_SHAPE(2, 4, 0, 8)), k, k, NULL));
    ACCEPT(tarn_attention(q, some(TARN_SHAPE(2, 2, 0, 8)), some(TARN_SHAPE(2, 2, 0, 8)), NULL));
}

static void attention_packed(void **state)
{
    (void)state;
    tarn_tensor *qkv = some(TARN_SHAPE(2, 3, 24));
    REFUSE(tarn_attention_packed_sized, tarn_attention_packed(NULL, 2, 2, NULL));
    REFUSE(tarn_attention_packed_sized, tarn_attention_packed(qkv, 0, 0, NULL));
    REFUSE(tarn_attention_packed_sized, tarn_attention_packed(qkv, -2, -2, NULL));
    REFUSE(tarn_attention_packed_sized, tarn_attention_packed(qkv, 3, 2, NULL));
    REFUSE(tarn_attention_packed_sized, tarn_attention_packed(qkv, 5, 5, NULL));
    REFUSE(tarn_attention_packed_sized, tarn_attention_packed(qkv, INT64_MAX, 1, NULL));
    REFUSE(tarn_attention_packed_sized, tarn_attention_packed(qkv, INT64_MAX, INT64_MAX, NULL));
    REFUSE(tarn_attention_packed_sized, tarn_attention_packed(some(TARN_SHAPE(3, 24)), 2, 2, NULL));
    REFUSE(tarn_attention_packed_sized, tarn_attention_packed(some(TARN_SHAPE(2, 3, 0)), 2, 2, NULL));
    REFUSE(tarn_attention_packed_sized, tarn_attention_packed(whole(TARN_SHAPE(2, 3, 24)), 2, 2, NULL));
    REFUSE(tarn_attention_packed_sized, tarn_attention_packed(tarn_scalar(1), 2, 2, NULL));
    REFUSE(tarn_attention_packed_sized, tarn_attention_packed(qkv, 2, 2, &(tarn_attention_options){.dropout = 2}));
    REFUSE(tarn_attention_packed_sized,
           tarn_attention_packed(qkv, 2, 2, &(tarn_attention_options){.lengths = whole(TARN_SHAPE(3))}));
    REFUSE(tarn_attention_packed_sized,
           tarn_attention_packed(qkv, 2, 2, &(tarn_attention_options){.lengths = elsewhere(TARN_SHAPE(2), TARN_I64)}));
    REFUSE(tarn_attention_packed_sized,
           tarn_attention_packed(qkv, 2, 2, &(tarn_attention_options){.document_starts = whole(TARN_SHAPE(2, 4))}));
    REFUSE(tarn_attention_packed_sized,
           tarn_attention_packed(qkv, 2, 2,
                                 &(tarn_attention_options){.document_starts = elsewhere(TARN_SHAPE(2, 3), TARN_I64)}));
    ACCEPT(tarn_attention_packed(qkv, 2, 1, NULL));
}

static void rope(void **state)
{
    (void)state;
    tarn_tensor *x = some(TARN_SHAPE(2, 3, 4, 6));
    REFUSE(tarn_rope_sized, tarn_rope(NULL, NULL, NULL));
    REFUSE(tarn_rope_sized, tarn_rope(some(TARN_SHAPE(3, 4, 6)), NULL, NULL));
    REFUSE(tarn_rope_sized, tarn_rope(whole(TARN_SHAPE(2, 3, 4, 6)), NULL, NULL));
    REFUSE(tarn_rope_sized, tarn_rope(tarn_scalar(1), NULL, NULL));
    REFUSE(tarn_rope_sized, tarn_rope(some(TARN_SHAPE(2, 3, 4, 5)), NULL, NULL));
    REFUSE(tarn_rope_sized, tarn_rope(some(TARN_SHAPE(2, 3, 4, 0)), NULL, NULL));
    REFUSE(tarn_rope_sized, tarn_rope(some(TARN_SHAPE(1, 1, 1, 514)), NULL, NULL));
    REFUSE(tarn_rope_sized, tarn_rope(x, some(TARN_SHAPE(3)), NULL));
    REFUSE(tarn_rope_sized, tarn_rope(x, whole(TARN_SHAPE(4)), NULL));
    REFUSE(tarn_rope_sized, tarn_rope(x, whole(TARN_SHAPE(3, 2)), NULL));
    REFUSE(tarn_rope_sized, tarn_rope(x, tarn_scalar(1), NULL));
    REFUSE(tarn_rope_sized, tarn_rope(x, elsewhere(TARN_SHAPE(3), TARN_I64), NULL));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.axis = 3}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.axis = -2}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.dims = 3}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.dims = -2}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.dims = 8}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.base = -1}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.base = NAN}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.scaling = (tarn_rope_scaling)7}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.scaling = TARN_ROPE_LINEAR, .factor = -1}));
    REFUSE(tarn_rope_sized,
           tarn_rope(x, NULL, &(tarn_rope_options){.scaling = TARN_ROPE_LLAMA3, .low_freq_factor = 5}));
    REFUSE(tarn_rope_sized,
           tarn_rope(x, NULL, &(tarn_rope_options){.scaling = TARN_ROPE_LLAMA3, .original_context = -1}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.attention_factor = -1}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.scaling = TARN_ROPE_DYNAMIC, .dims = 2}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.scaling = TARN_ROPE_DYNAMIC, .length = -1}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.scaling = TARN_ROPE_YARN, .beta_slow = -1}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.scaling = TARN_ROPE_YARN, .base = 1}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.scaling = TARN_ROPE_YARN, .mscale = INFINITY}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.scaling = TARN_ROPE_LONGROPE}));
    const float ones[] = {1, 1, 1}, bad[] = {1, 0, 1};
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.pair_factors = ones, .pair_factor_count = 2}));
    REFUSE(tarn_rope_sized, tarn_rope(x, NULL, &(tarn_rope_options){.pair_factors = bad, .pair_factor_count = 3}));
    REFUSE(tarn_rope_sized,
           tarn_rope(x, NULL, &(tarn_rope_options){.long_pair_factors = ones, .pair_factor_count = 3}));
    ACCEPT(tarn_rope(x, NULL, &(tarn_rope_options){.pair_factors = ones, .pair_factor_count = 3}));
    ACCEPT(tarn_rope(x, whole(TARN_SHAPE(2, 3)), &(tarn_rope_options){.dims = 4}));
}

static void residual_norm(void **state)
{
    (void)state;
    tarn_tensor *x = some(TARN_SHAPE(2, 3)), *three = vector(1, 2, 3), *four = vector(1, 2, 3, 4), *sum = NULL;
    REFUSE(tarn_residual_norm, tarn_residual_norm(NULL, x, NULL, NULL, false, 1e-5, &sum));
    REFUSE(tarn_residual_norm, tarn_residual_norm(x, NULL, NULL, NULL, false, 1e-5, &sum));
    REFUSE(tarn_residual_norm, tarn_residual_norm(x, x, NULL, NULL, false, 1e-5, NULL));
    REFUSE(tarn_residual_norm, tarn_residual_norm(x, three, NULL, NULL, false, 1e-5, &sum));
    REFUSE(tarn_residual_norm, tarn_residual_norm(x, tarn_scalar(1), NULL, NULL, false, 1e-5, &sum));
    REFUSE(tarn_residual_norm, tarn_residual_norm(tarn_scalar(1), tarn_scalar(1), NULL, NULL, false, 1e-5, &sum));
    REFUSE(tarn_residual_norm, tarn_residual_norm(x, tarn_cast(x, TARN_F64), NULL, NULL, false, 1e-5, &sum));
    REFUSE(tarn_residual_norm,
           tarn_residual_norm(whole(TARN_SHAPE(2, 3)), whole(TARN_SHAPE(2, 3)), NULL, NULL, false, 1e-5, &sum));
    REFUSE(tarn_residual_norm, tarn_residual_norm(x, x, four, NULL, false, 1e-5, &sum));
    REFUSE(tarn_residual_norm, tarn_residual_norm(x, x, three, four, false, 1e-5, &sum));
    REFUSE(tarn_residual_norm, tarn_residual_norm(x, x, three, three, true, 1e-5, &sum));
    REFUSE(tarn_residual_norm, tarn_residual_norm(x, x, elsewhere(TARN_SHAPE(3), TARN_F32), NULL, true, 1e-5, &sum));
    REFUSE(tarn_residual_norm,
           tarn_residual_norm(x, elsewhere(TARN_SHAPE(2, 3), TARN_F32), NULL, NULL, true, 1e-5, &sum));
    REFUSE(tarn_residual_norm, tarn_residual_norm(x, x, three, NULL, true, -1, &sum));
    REFUSE(tarn_residual_norm, tarn_residual_norm(x, x, three, NULL, true, NAN, &sum));
    ACCEPT(tarn_residual_norm(x, x, three, three, false, 1e-5, &sum));
    REFUSE(tarn_residual_rmsnorm, tarn_residual_rmsnorm(x, x, four, 1, 1e-5, &sum));
    REFUSE(tarn_residual_rmsnorm, tarn_residual_rmsnorm(x, x, three, NAN, 1e-5, &sum));
    REFUSE(tarn_residual_rmsnorm, tarn_residual_rmsnorm(x, x, three, 1, 1e-5, NULL));
    ACCEPT(tarn_residual_rmsnorm(x, x, three, 1, 1e-5, &sum));
}

static void linear_cross_entropy(void **state)
{
    (void)state;
    tarn_tensor *x = some(TARN_SHAPE(4, 3)), *weight = some(TARN_SHAPE(5, 3)), *target = whole(TARN_SHAPE(4));
    REFUSE(tarn_linear_cross_entropy_sized, tarn_linear_cross_entropy(NULL, weight, target, NULL));
    REFUSE(tarn_linear_cross_entropy_sized, tarn_linear_cross_entropy(x, NULL, target, NULL));
    REFUSE(tarn_linear_cross_entropy_sized, tarn_linear_cross_entropy(x, weight, NULL, NULL));
    REFUSE(tarn_linear_cross_entropy_sized, tarn_linear_cross_entropy(x, some(TARN_SHAPE(5, 4)), target, NULL));
    REFUSE(tarn_linear_cross_entropy_sized, tarn_linear_cross_entropy(x, some(TARN_SHAPE(3)), target, NULL));
    REFUSE(tarn_linear_cross_entropy_sized, tarn_linear_cross_entropy(x, tarn_scalar(1), target, NULL));
    REFUSE(tarn_linear_cross_entropy_sized, tarn_linear_cross_entropy(tarn_scalar(1), weight, target, NULL));
    REFUSE(tarn_linear_cross_entropy_sized, tarn_linear_cross_entropy(x, tarn_cast(weight, TARN_F64), target, NULL));
    REFUSE(tarn_linear_cross_entropy_sized, tarn_linear_cross_entropy(x, weight, some(TARN_SHAPE(4)), NULL));
    REFUSE(tarn_linear_cross_entropy_sized, tarn_linear_cross_entropy(x, weight, whole(TARN_SHAPE(3)), NULL));
    REFUSE(tarn_linear_cross_entropy_sized, tarn_linear_cross_entropy(x, weight, tarn_scalar(1), NULL));
    REFUSE(tarn_linear_cross_entropy_sized,
           tarn_linear_cross_entropy(x, weight, tarn_mul(target, tarn_scalar(5)), NULL));
    REFUSE(tarn_linear_cross_entropy_sized,
           tarn_linear_cross_entropy(x, weight, tarn_mul(target, tarn_scalar(-1)), NULL));
    REFUSE(tarn_linear_cross_entropy_sized,
           tarn_linear_cross_entropy(whole(TARN_SHAPE(4, 3)), whole(TARN_SHAPE(5, 3)), target, NULL));
    REFUSE(tarn_linear_cross_entropy_sized,
           tarn_linear_cross_entropy(x, elsewhere(TARN_SHAPE(5, 3), TARN_F32), target, NULL));
    REFUSE(tarn_linear_cross_entropy_sized,
           tarn_linear_cross_entropy(x, weight, elsewhere(TARN_SHAPE(4), TARN_I64), NULL));
    REFUSE(tarn_linear_cross_entropy_sized,
           tarn_linear_cross_entropy(x, weight, target, &(tarn_cross_entropy_options){.label_smoothing = 2}));
    REFUSE(tarn_linear_cross_entropy_sized,
           tarn_linear_cross_entropy(x, weight, target, &(tarn_cross_entropy_options){.reduction = (tarn_reduction)9}));
    REFUSE(tarn_linear_cross_entropy_sized,
           tarn_linear_cross_entropy(x, weight, target, &(tarn_cross_entropy_options){.softcap = -1}));
    REFUSE(tarn_linear_cross_entropy_sized,
           tarn_linear_cross_entropy(x, weight, target, &(tarn_cross_entropy_options){.softcap = INFINITY}));
    ACCEPT(tarn_linear_cross_entropy(x, weight, target, NULL));
    ACCEPT(tarn_linear_cross_entropy(some(TARN_SHAPE(0, 3)), weight, whole(TARN_SHAPE(0)), NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(attention, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(attention_packed, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(rope, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(residual_norm, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(linear_cross_entropy, open_refusals, close_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
