/*
 * test_kernels.c: kernels at sizes beyond those of the operation cases: reductions in chunks, long prefix sums, sorts
 * of many runs, sums at repeated indices; random elements and quant blocks, bitwise identical with the CPU. Reductions
 * run as the device prefers, and in groups that share local memory, as on a GPU. Without a device every test is
 * skipped.
 * */
#include <string.h>

#include "support/opencl.h"
#include "support/quant.h"

#define CPU tarn_device_cpu()
#define SEED 71

static tarn_tensor *there(tarn_tensor *x)
{
    return good(tarn_to(x, opencl));
}

static void assert_equal_bits(tarn_tensor *made, tarn_tensor *expected)
{
    size_t bytes = (size_t)tarn_bytes(expected);
    assert_int_equal(tarn_bytes(good(made)), bytes);
    char *a = malloc(bytes), *b = malloc(bytes);
    assert_true(tarn_read(made, a, bytes) && tarn_read(expected, b, bytes));
    assert_memory_equal(a, b, bytes);
    free(a);
    free(b);
}

/* ---- bitwise identical  ------------------------------------------------------------------------------------------ */

static tarn_tensor *draw(int which, tarn_dtype dtype, tarn_device device)
{
    tarn_seed(SEED);
    tarn_shape shape = TARN_SHAPE(37, 1003);
    tarn_tensor *x = which == 2 ? good(tarn_ones(shape, dtype, device)) : NULL;
    return good(which == 0   ? tarn_uniform(shape, -0.3, 1.7, dtype, device)
                : which == 1 ? tarn_normal(shape, 0.5, 2, dtype, device)
                             : tarn_dropout(x, 0.3));
}

static void random_elements_equal_the_cpus(void **state)
{
    NEEDS_OPENCL();
    for (int which = 0; which < 3; which += 2)
        for (int half = 0; half < 2; half++)
            assert_equal_bits(draw(which, half ? TARN_BF16 : TARN_F32, opencl),
                              draw(which, half ? TARN_BF16 : TARN_F32, CPU));
    /* a processor without fused operations rounds otherwise */
    assert_close(good(tarn_to(draw(1, TARN_F32, opencl), CPU)), draw(1, TARN_F32, CPU), 0x1p-22);
}

/* Dtypes that the device quantizes to. */
static const tarn_dtype kinds[] = {TARN_Q8_0, TARN_Q4_0, TARN_Q4_K, TARN_Q6_K, TARN_Q4_1, TARN_Q5_0, TARN_Q5_1};

static void quant_blocks_equal_the_cpus(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(9, 1024), 0, 0.05, TARN_F32, CPU));
    for (int k = 0; k < (int)(sizeof(kinds) / sizeof(kinds[0])); k++) {
        int64_t before = tarn_stats().fallbacks;
        tarn_tensor *here = good(tarn_cast(x, kinds[k])), *packed = good(tarn_cast(there(x), kinds[k]));
        assert_equal_bits(packed, here);
        assert_equal_bits(good(tarn_cast(packed, TARN_F32)), good(tarn_cast(here, TARN_F32)));
        assert_equal_bits(good(tarn_cast(tarn_flip(tarn_slice(packed, 0, 2, 8), TARN_AXES(0)), TARN_BF16)),
                          good(tarn_cast(tarn_flip(tarn_slice(here, 0, 2, 8), TARN_AXES(0)), TARN_BF16)));
        assert_int_equal(tarn_stats().fallbacks, before);
    }
}

/* Of every dtype, also those that tarn does not quantize to. */
static void random_quant_blocks_dequantize_as_on_the_cpu(void **state)
{
    NEEDS_OPENCL();
    uint64_t random = test_seed(7);
    for (tarn_dtype dtype = TARN_Q8_0; dtype < TARN_DTYPE_COUNT; dtype++) {
        tarn_tensor *here = random_quant_blocks(dtype, 40, 1280, &random), *packed = there(here);
        int64_t before = tarn_stats().fallbacks;
        assert_equal_bits(good(tarn_cast(packed, TARN_F32)), good(tarn_cast(here, TARN_F32)));
        assert_equal_bits(good(tarn_cast(tarn_flip(tarn_slice(packed, 0, 2, 8), TARN_AXES(0)), TARN_BF16)),
                          good(tarn_cast(tarn_flip(tarn_slice(here, 0, 2, 8), TARN_AXES(0)), TARN_BF16)));
        tarn_tensor *index = good(tarn_from_i64((const int64_t[]){3, 39, 0, 3}, TARN_SHAPE(4), CPU));
        assert_equal_bits(good(tarn_embedding(packed, there(index))), good(tarn_embedding(here, index)));
        assert_int_equal(tarn_stats().fallbacks, before);
    }
}

/* Scales that are subnormal in f16, where rounding to nearest and up differ most, among others. The CPU quantizes to
 * dtypes that the device does not. */
static void hard_quant_blocks_equal_the_cpus(void **state)
{
    NEEDS_OPENCL();
    enum { ROWS = 100, COLUMNS = 2048 };
    float *values = malloc(ROWS * COLUMNS * sizeof(float));
    assert_non_null(values);
    fill_quant_patterns(values, ROWS * COLUMNS);
    tarn_tensor *x = good(tarn_from_f32(values, TARN_SHAPE(ROWS, COLUMNS), CPU));
    free(values);
    for (tarn_dtype dtype = TARN_Q8_0; dtype < TARN_DTYPE_COUNT; dtype++)
        assert_equal_bits(good(tarn_cast(there(x), dtype)), good(tarn_cast(x, dtype)));
}

/* A processor with fused operations may round the last bit of f64 otherwise. */
static void arange_agrees(void **state)
{
    NEEDS_OPENCL();
    assert_close(good(tarn_to(tarn_arange(3, 13, 0.1, TARN_F64, opencl), CPU)),
                 good(tarn_arange(3, 13, 0.1, TARN_F64, CPU)), 1e-15);
    assert_equal_bits(good(tarn_arange(3, -60, -2.5, TARN_F32, opencl)),
                      good(tarn_arange(3, -60, -2.5, TARN_F32, CPU)));
    assert_equal_bits(good(tarn_arange(7, -300, -3, TARN_I64, opencl)), good(tarn_arange(7, -300, -3, TARN_I64, CPU)));
}

/* ---- sizes that are cut ------------------------------------------------------------------------------------------ */

/* Numbers of which many are equal, on the CPU. */
static tarn_tensor *some(tarn_shape shape, tarn_dtype dtype)
{
    tarn_seed(SEED);
    tarn_tensor *x = good(tarn_normal(shape, 1, 1, TARN_F32, CPU));
    tarn_tensor *cut =
        good(tarn_mul(tarn_cast(tarn_cast(tarn_mul(x, tarn_scalar(64)), TARN_I32), TARN_F32), tarn_scalar(0x1p-6)));
    return good(tarn_cast(cut, dtype));
}

static void assert_reduced_alike(tarn_tensor *here, tarn_axes axes, double tolerance)
{
    tarn_tensor *x = there(here);
    assert_close(good(tarn_to(tarn_sum(x, axes, false), CPU)), good(tarn_sum(here, axes, false)), tolerance);
    assert_close(good(tarn_to(tarn_var(x, axes, 1, true), CPU)), good(tarn_var(here, axes, 1, true)), tolerance);
    assert_equal_bits(good(tarn_max(x, axes, false)), good(tarn_max(here, axes, false)));
}

/* Of all; of rows; of columns; of axes that are not neighbours. */
static void reductions_cut_into_chunks_agree(void **state)
{
    NEEDS_OPENCL();
    assert_reduced_alike(some(TARN_SHAPE(100003), TARN_BF16), TARN_ALL_AXES, 8e-3);
    assert_reduced_alike(some(TARN_SHAPE(3, 20011), TARN_F32), TARN_AXES(1), 2e-6);
    assert_reduced_alike(some(TARN_SHAPE(100004), TARN_BF16), TARN_ALL_AXES, 8e-3); /* by fours */
    assert_reduced_alike(some(TARN_SHAPE(3, 20012), TARN_F32), TARN_AXES(1), 2e-6);
    assert_reduced_alike(some(TARN_SHAPE(300, 516), TARN_F16), TARN_AXES(1), 1e-3);
    assert_reduced_alike(some(TARN_SHAPE(9001, 13), TARN_F32), TARN_AXES(0), 2e-6);
    assert_reduced_alike(some(TARN_SHAPE(141, 19, 23), TARN_F32), TARN_AXES(0, 2), 2e-6);
    tarn_tensor *whole = good(tarn_cast(some(TARN_SHAPE(60013), TARN_F32), TARN_I32));
    assert_equal_bits(good(tarn_sum(there(whole), TARN_ALL_AXES, false)), good(tarn_sum(whole, TARN_ALL_AXES, false)));
}

/* The first of equals, and a NaN before all; one by one and by fours. */
static void check_places(int64_t length)
{
    tarn_tensor *x = some(TARN_SHAPE(3, length), TARN_F32),
                *high = good(tarn_full(TARN_SHAPE(1, length), -INFINITY, TARN_F32, CPU));
    tarn_tensor *odd = good(tarn_full(TARN_SHAPE(1, length), NAN, TARN_F32, CPU));
    tarn_tensor *all = good(tarn_concat((tarn_tensor *[]){x, high, odd}, 3, 0));
    for (int axis = 0; axis < 2; axis++) {
        assert_equal_bits(good(tarn_argmax(there(all), axis, false)), good(tarn_argmax(all, axis, false)));
        assert_equal_bits(good(tarn_argmin(there(all), axis, true)), good(tarn_argmin(all, axis, true)));
    }
}

static void argmax_in_chunks_agrees(void **state)
{
    NEEDS_OPENCL();
    check_places(50021);
    check_places(50024);
}

static void long_prefix_sums_agree(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = some(TARN_SHAPE(3, 10007), TARN_F32), *whole = good(tarn_cast(x, TARN_I64));
    assert_close(good(tarn_to(tarn_cumsum(there(x), 1), CPU)), good(tarn_cumsum(x, 1)), 1e-6);
    assert_close(good(tarn_to(tarn_cumsum(there(x), 0), CPU)), good(tarn_cumsum(x, 0)), 1e-6);
    assert_equal_bits(good(tarn_cumsum(there(whole), 1)), good(tarn_cumsum(whole, 1)));
}

static void sorts_are_stable_at_any_length(void **state)
{
    NEEDS_OPENCL();
    static const int64_t lengths[] = {1, 15, 17, 1000, 20011};
    for (int i = 0; i < 5; i++)
        for (int down = 0; down < 2; down++) {
            tarn_tensor *x = some(TARN_SHAPE(2, lengths[i]), TARN_F32), *values, *places, *expected = NULL,
                        *expected_places = NULL;
            int64_t k = lengths[i] < 7 ? lengths[i] : 7;
            assert_true(tarn_sort(there(x), 1, down, &values, &places) &&
                        tarn_sort(x, 1, down, &expected, &expected_places));
            assert_equal_bits(values, expected);
            assert_equal_bits(places, expected_places);
            assert_true(tarn_topk(there(x), k, 1, down, &values, &places) &&
                        tarn_topk(x, k, 1, down, &expected, &expected_places));
            assert_equal_bits(values, expected);
            assert_equal_bits(places, expected_places);
        }
}

/* 3000 rows onto 50. */
static tarn_tensor *gradient_of_embedding(tarn_dtype dtype, tarn_device device)
{
    tarn_seed(SEED);
    tarn_tensor *weight = good(tarn_normal(TARN_SHAPE(50, 33), 0, 1, dtype, CPU)),
                *g = good(tarn_normal(TARN_SHAPE(3000, 33), 0, 1, dtype, CPU));
    tarn_tensor *index = good(tarn_cast(tarn_uniform(TARN_SHAPE(3000), 0, 50, TARN_F32, CPU), TARN_I64));
    weight = good(tarn_requires_grad(good(tarn_to(weight, device)), true));
    tarn_tensor *y = good(tarn_embedding(weight, good(tarn_to(index, device))));
    assert_true(tarn_backward_from(y, good(tarn_to(g, device)), NULL));
    return good(tarn_grad(weight));
}

/* In the CPU's order, and bitwise identical to it; a GPU adds partial sums: close to it, and deterministic. */
static void assert_added(tarn_tensor *made, tarn_tensor *again, tarn_tensor *expected)
{
    tarn_device_info info;
    assert_true(tarn_device_query(opencl, &info));
    if (strcmp(info.type, "cpu") == 0) {
        assert_equal_bits(made, expected);
        return;
    }
    assert_equal_bits(made, again);
    assert_close_for_size(good(tarn_to(made, CPU)), expected, tarn_dtype_of(expected) == TARN_BF16 ? 0x1p-8 : 1e-6);
}

static void sums_at_indices_equal_the_cpus(void **state)
{
    NEEDS_OPENCL();
    for (int half = 0; half < 2; half++) {
        tarn_dtype dtype = half ? TARN_BF16 : TARN_F32;
        assert_added(gradient_of_embedding(dtype, opencl), gradient_of_embedding(dtype, opencl),
                     gradient_of_embedding(dtype, CPU));
    }
    tarn_tensor *zeros = good(tarn_zeros(TARN_SHAPE(40, 3), TARN_F32, CPU)),
                *source = some(TARN_SHAPE(4001, 3), TARN_F32), *made[2];
    tarn_tensor *index = good(tarn_cast(tarn_uniform(TARN_SHAPE(4001, 3), 0, 40, TARN_F32, CPU), TARN_I32));
    for (int i = 0; i < 2; i++)
        made[i] = good(tarn_scatter_add(there(zeros), 0, there(index), there(source)));
    assert_added(made[0], made[1], good(tarn_scatter_add(zeros, 0, index, source)));
}

/* ---- both forms of a device -------------------------------------------------------------------------------------- */

static bool is_in_groups;

/* Of two CPUs of one driver the second is one whose groups have memory: what a device is taken for is read when it is
 * first used. A GPU's groups have memory anyway, and a CPU behind it would compile for minutes what the GPU has shown.
 */
static int open_form(void **state)
{
    int status = open_opencl(state);
    tarn_device_info first;
    if (is_in_groups && tarn_device_count("opencl") > 1 && tarn_device_query(opencl, &first) &&
        strcmp(first.type, "cpu") == 0)
        opencl = tarn_device_parse("opencl:1");
    return status;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_form, close_opencl)

/* a / b² is no f32 any more, or infinite, where its product with the gradient that arrives is neither. */
static void gradients_of_divisors_keep_their_range(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *a = good(tarn_from_f32((const float[]){1e-30f, -1e-30f, 1e30f, -1e30f}, TARN_SHAPE(4), opencl));
    tarn_tensor *b = good(
        tarn_requires_grad(tarn_from_f32((const float[]){1e30f, 1e30f, 1e-30f, 1e-30f}, TARN_SHAPE(4), opencl), true));
    tarn_tensor *g = good(tarn_from_f32((const float[]){INFINITY, INFINITY, 0, 0}, TARN_SHAPE(4), opencl));
    assert_true(tarn_backward_from(good(tarn_div(a, b)), g, NULL));
    float grads[4];
    assert_true(tarn_read(good(tarn_grad(b)), grads, sizeof(grads)));
    assert_true(grads[0] == -INFINITY && grads[1] == INFINITY && grads[2] == 0 && grads[3] == 0);
}

int main(void)
{
    const struct CMUnitTest all[] = {
        TEST(random_elements_equal_the_cpus),
        TEST(quant_blocks_equal_the_cpus),
        TEST(random_quant_blocks_dequantize_as_on_the_cpu),
        TEST(hard_quant_blocks_equal_the_cpus),
        TEST(arange_agrees),
        TEST(reductions_cut_into_chunks_agree),
        TEST(argmax_in_chunks_agrees),
        TEST(long_prefix_sums_agree),
        TEST(sorts_are_stable_at_any_length),
        TEST(sums_at_indices_equal_the_cpus),
        TEST(gradients_of_divisors_keep_their_range),
    };
    const struct CMUnitTest in_groups[] = {
        TEST(reductions_cut_into_chunks_agree),
        TEST(argmax_in_chunks_agrees),
    };
    setenv("POCL_DEVICES", "pthread pthread", 1);
    int failed = cmocka_run_group_tests_name("as it is", all, NULL, NULL);
    setenv("TARN_OPENCL_LOCAL_MEM", "1", 1);
    is_in_groups = true;
    return failed + cmocka_run_group_tests_name("in groups", in_groups, NULL, NULL) != 0;
}
