/* test_subgroups.c: group reductions by subgroups. TARN_OPENCL_SUBGROUPS=1 makes each work-item a subgroup on devices
 * without, TARN_OPENCL_LOCAL_MEM=1 selects the GPU kernels. */
#include "opencl/compare.h"

static tarn_tensor *softmax(tarn_tensor **x, const void *options)
{
    (void)options;
    return tarn_softmax(x[0], -1);
}

static tarn_tensor *layernorm(tarn_tensor **x, const void *options)
{
    (void)options;
    return tarn_layernorm(x[0], x[1], x[2], 1e-5);
}

static tarn_tensor *rmsnorm(tarn_tensor **x, const void *options)
{
    (void)options;
    return tarn_rmsnorm(x[0], x[1], 1e-5);
}

static tarn_tensor *groupnorm(tarn_tensor **x, const void *options)
{
    (void)options;
    return tarn_groupnorm(x[0], 2, NULL, NULL, 1e-5);
}

static void a_device_reports_its_subgroups(void **state)
{
    NEEDS_OPENCL();
    tarn_device_info info;
    assert_true(tarn_device_query(opencl, &info));
    assert_contains(info.detail, ", subgroups");
}

/* Rows that groups share, with sums held in two places and in one, and rows whose lengths are no multiple of anything.
 */
static void rows_are_summed(void **state)
{
    NEEDS_OPENCL();
    compare(TARN_F32, softmax, (tarn_tensor *[]){random_of(TARN_SHAPE(5, 1500))}, 1, NULL, 2e-5);
    compare(TARN_F32, layernorm,
            (tarn_tensor *[]){random_of(TARN_SHAPE(40, 768)), random_of(TARN_SHAPE(768)), random_of(TARN_SHAPE(768))},
            3, NULL, 5e-5);
    compare(TARN_F32, rmsnorm, (tarn_tensor *[]){random_of(TARN_SHAPE(7, 1001)), random_of(TARN_SHAPE(1001))}, 2, NULL,
            5e-5);
    compare(TARN_F32, groupnorm, (tarn_tensor *[]){random_of(TARN_SHAPE(2, 6, 20, 20))}, 1, NULL, 5e-5);
}

/* Whole numbers have one sum in any order. */
static void check_reductions(tarn_tensor *x)
{
    tarn_tensor *there = good(tarn_to(x, opencl));
    const tarn_axes last = TARN_AXES(1);
    tarn_stats_reset();
    assert_same_bits(good(tarn_sum(there, last, false)), good(tarn_sum(x, last, false)));
    assert_same_bits(good(tarn_max(there, last, false)), good(tarn_max(x, last, false)));
    assert_same_bits(good(tarn_min(there, last, false)), good(tarn_min(x, last, false)));
    assert_same_bits(good(tarn_argmax(there, 1, false)), good(tarn_argmax(x, 1, false)));
    assert_same_bits(good(tarn_sum(there, TARN_ALL_AXES, false)), good(tarn_sum(x, TARN_ALL_AXES, false)));
    assert_int_equal(tarn_stats().fallbacks, 0);
}

static void reductions_are_merged(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *whole =
        good(tarn_cast(tarn_mul(random_of(TARN_SHAPE(6, 5000)), tarn_full(TARN_SCALAR, 30, TARN_F32, CPU)), TARN_I32));
    check_reductions(whole);
    check_reductions(good(tarn_cast(whole, TARN_F32)));
    tarn_tensor *x = random_of(TARN_SHAPE(6, 5000));
    assert_close_for_size(tarn_to(tarn_var(tarn_to(x, opencl), TARN_AXES(1), 1, false), CPU),
                          good(tarn_var(x, TARN_AXES(1), 1, false)), 1e-6);
}

int main(void)
{
    setenv("TARN_OPENCL_LOCAL_MEM", "1", 1);
    setenv("TARN_OPENCL_SUBGROUPS", "1", 1);
    const struct CMUnitTest tests[] = {
        ON_OPENCL(a_device_reports_its_subgroups),
        ON_OPENCL(rows_are_summed),
        ON_OPENCL(reductions_are_merged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
