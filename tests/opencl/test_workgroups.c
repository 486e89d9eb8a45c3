/*
 * test_workgroups.c: devices with small work-groups and little local memory, emulated by TARN_OPENCL_WORKGROUP and
 * TARN_OPENCL_LOCAL_BYTES: kernels use a variant that fits, and what has none runs on the CPU, counted and named.
 */
#include "opencl/compare.h"

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static tarn_tensor *layernorm(tarn_tensor **x, const void *options)
{
    (void)options;
    return tarn_layernorm(x[0], x[1], x[2], 1e-5);
}

/* Rows that the smallest group keeps, and that only a larger one could. */
static void rows_are_normalized(void **state)
{
    NEEDS_OPENCL();
    for (int64_t length = 384; length <= 768; length += 384)
        compare(TARN_F32, layernorm,
                (tarn_tensor *[]){random_of(TARN_SHAPE(9, length)), random_of(TARN_SHAPE(length)),
                                  random_of(TARN_SHAPE(length))},
                3, NULL, 2e-5);
}

static tarn_tensor *softmax(tarn_tensor **x, const void *options)
{
    (void)options;
    return tarn_softmax(x[0], -1);
}

static tarn_tensor *cross_entropy(tarn_tensor **x, const void *options)
{
    const int64_t target[] = {0, 1499, 63};
    (void)options;
    return tarn_cross_entropy(x[0], tarn_from_i64(target, TARN_SHAPE(3), tarn_device_of(x[0])), NULL);
}

static void softmax_and_losses_are_computed(void **state)
{
    NEEDS_OPENCL();
    compare(TARN_F32, softmax, (tarn_tensor *[]){random_of(TARN_SHAPE(3, 1500))}, 1, NULL, 2e-5);
    compare(TARN_F32, cross_entropy, (tarn_tensor *[]){random_of(TARN_SHAPE(3, 1500))}, 1, NULL, 2e-5);
}

/* ---- channels ---------------------------------------------------------------------------------------------------- */

static tarn_tensor *groupnorm(tarn_tensor **x, const void *options)
{
    (void)options;
    return tarn_groupnorm(x[0], 2, x[1], x[2], 1e-5);
}

/* Of NHWC images. */
static tarn_tensor *batchnorm_last(tarn_tensor **x, const void *options)
{
    (void)options;
    tarn_tensor *y = tarn_batchnorm(tarn_permute(x[0], TARN_AXES(0, 3, 1, 2)), x[1], x[2], NULL, NULL,
                                    &(tarn_batchnorm_options){.training = true});
    return tarn_permute(good(y), TARN_AXES(0, 2, 3, 1));
}

static void channels_are_normalized(void **state)
{
    NEEDS_OPENCL();
    compare(TARN_F32, groupnorm,
            (tarn_tensor *[]){random_of(TARN_SHAPE(2, 6, 70, 64)), random_of(TARN_SHAPE(6)), random_of(TARN_SHAPE(6))},
            3, NULL, 2e-5);
    compare(
        TARN_F32, batchnorm_last,
        (tarn_tensor *[]){random_of(TARN_SHAPE(3, 9, 11, 132)), random_of(TARN_SHAPE(132)), random_of(TARN_SHAPE(132))},
        3, NULL, 2e-5);
}

/* The running mean takes a step, and only one. */
static void running_statistics_are_updated_once(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = good(tarn_full(TARN_SHAPE(2, 1, 40, 40), 4, TARN_F32, opencl)),
                *ones = good(tarn_ones(TARN_SHAPE(1), TARN_F32, opencl));
    tarn_tensor *mean = good(tarn_zeros(TARN_SHAPE(1), TARN_F32, opencl)),
                *variance = good(tarn_ones(TARN_SHAPE(1), TARN_F32, opencl));
    tarn_stats_reset();
    good(tarn_batchnorm(x, ones, ones, mean, variance, &(tarn_batchnorm_options){.training = true, .momentum = 0.25}));
    assert_int_equal(tarn_stats().fallbacks, 0);
    assert_values(mean, 1e-6, 1);
    assert_values(variance, 1e-6, 0.75);
}

/* ---- reductions, copies, products -------------------------------------------------------------------------------- */

static tarn_tensor *sum(tarn_tensor **x, const void *options)
{
    (void)options;
    return tarn_sum(x[0], TARN_ALL_AXES, false);
}

/* So many chunks that a group merges them. */
static void elements_are_reduced(void **state)
{
    NEEDS_OPENCL();
    compare(TARN_F32, sum, (tarn_tensor *[]){tarn_square(random_of(TARN_SHAPE(100003)))}, 1, NULL, 2e-5);
}

static void swap_axes(tarn_dtype dtype)
{
    tarn_tensor *x = good(tarn_cast(random_of(TARN_SHAPE(2, 65, 40)), dtype)), *there = good(tarn_to(x, opencl));
    tarn_stats_reset();
    tarn_tensor *swapped = good(tarn_contiguous(tarn_permute(there, TARN_AXES(0, 2, 1))));
    assert_int_equal(tarn_stats().fallbacks, 0);
    assert_close(tarn_to(swapped, CPU), good(tarn_contiguous(tarn_permute(x, TARN_AXES(0, 2, 1)))), 0);
}

/* By tiles whose side a group has, and without them. */
static void axes_are_transposed(void **state)
{
    NEEDS_OPENCL();
    swap_axes(TARN_F32);
    swap_axes(TARN_U8);
}

static void multiply(tarn_tensor *a, tarn_tensor *b)
{
    tarn_stats_reset();
    tarn_tensor *there = good(tarn_matmul(tarn_to(a, opencl), tarn_to(b, opencl)));
    assert_int_equal(tarn_stats().fallbacks, 0);
    assert_close_for_size(tarn_cast(tarn_to(there, CPU), TARN_F64),
                          good(tarn_matmul(tarn_cast(a, TARN_F64), tarn_cast(b, TARN_F64))), 2e-5);
}

/* Without tiles, of a few rows, and gradients that are added to what is there. */
static void matrices_are_multiplied(void **state)
{
    NEEDS_OPENCL();
    multiply(random_of(TARN_SHAPE(37, 1200)), random_of(TARN_SHAPE(1200, 45)));
    multiply(random_of(TARN_SHAPE(1, 300)), tarn_transpose(random_of(TARN_SHAPE(70, 300)), 0, 1));
    tarn_tensor *a = good(tarn_requires_grad(tarn_normal(TARN_SHAPE(9, 9), 0, 1, TARN_F32, opencl), true)),
                *ones = good(tarn_ones(TARN_SHAPE(9, 9), TARN_F32, opencl));
    for (int i = 0; i < 2; i++)
        assert_true(tarn_backward(tarn_sum(tarn_matmul(a, ones), TARN_ALL_AXES, false)));
    assert_close(tarn_to(tarn_grad(a), CPU), good(tarn_full(TARN_SHAPE(9, 9), 18, TARN_F32, CPU)), 0);
}

static void quantized_weights_are_multiplied(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *w = good(tarn_cast(random_of(TARN_SHAPE(37, 768)), TARN_Q8_0)), *x = random_of(TARN_SHAPE(1, 768));
    tarn_stats_reset();
    tarn_tensor *there = good(tarn_linear_apply(tarn_to(x, opencl), tarn_to(w, opencl), NULL));
    assert_int_equal(tarn_stats().fallbacks, 0);
    tarn_tensor *here =
        good(tarn_linear_apply(tarn_cast(x, TARN_F64), tarn_cast(tarn_cast(w, TARN_F32), TARN_F64), NULL));
    assert_close_for_size(tarn_cast(tarn_to(there, CPU), TARN_F64), here, 1e-5);
}

/* ---- what does not fit ------------------------------------------------------------------------------------------- */

static char last_warning[256];

static void listen(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == TARN_LOG_WARNING)
        snprintf(last_warning, sizeof(last_warning), "%s", text);
}

static void attention_without_local_memory_is_named(void **state)
{
    NEEDS_OPENCL();
    const tarn_attention_options options = {.causal = true};
    tarn_tensor *q = random_of(TARN_SHAPE(1, 2, 40, 24)), *there = good(tarn_to(q, opencl));
    tarn_set_log(listen, NULL);
    tarn_stats_reset();
    tarn_tensor *y = good(tarn_attention(there, there, there, &options));
    tarn_set_log(NULL, NULL);
    assert_int_equal(tarn_stats().fallbacks, 1);
    assert_contains(last_warning, "opencl:0 has no kernel 'attention' for this call");
    assert_close_for_size(tarn_to(y, CPU), good(tarn_attention(q, q, q, &options)), 2e-5);
    tarn_set_fallback(TARN_FALLBACK_ERROR);
    assert_null(tarn_attention(there, there, there, &options));
    assert_error(TARN_ERROR_UNSUPPORTED, "opencl:0 has no kernel 'attention', and fallbacks are errors");
    tarn_set_fallback(TARN_FALLBACK_WARN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_OPENCL(rows_are_normalized),
        ON_OPENCL(softmax_and_losses_are_computed),
        ON_OPENCL(channels_are_normalized),
        ON_OPENCL(running_statistics_are_updated_once),
        ON_OPENCL(elements_are_reduced),
        ON_OPENCL(axes_are_transposed),
        ON_OPENCL(matrices_are_multiplied),
        ON_OPENCL(quantized_weights_are_multiplied),
        ON_OPENCL(attention_without_local_memory_is_named),
    };
    setenv("TARN_OPENCL_LOCAL_MEM", "1", 1);
    setenv("TARN_OPENCL_WORKGROUP", "32", 1);
    setenv("TARN_OPENCL_LOCAL_BYTES", "8192", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
