/* test_meta.c: meta devices: shapes and sizes are correct, nothing is computed, no memory is used. */
#include "core/device/device.h"
#include "core/launch/launch.h"
#include "support/check.h"
#include <tarn/profile.h>

#define CPU tarn_device_cpu()

static void tensors_have_sizes_and_take_no_memory(void **state)
{
    (void)state;
    tarn_device meta = tarn__meta_device_of(CPU);
    int64_t real = tarn_memory_of(CPU).used, before = tarn_memory_of(meta).used;
    tarn_stats_reset();
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(1 << 20, 1 << 20), TARN_F32, meta)); /* 4 TiB */
    tarn_tensor *y = good(tarn_matmul(x, good(tarn_normal(TARN_SHAPE(1 << 20, 3), 0, 1, TARN_F32, meta))));
    assert_int_equal(tarn_size(y, 0), 1 << 20);
    assert_int_equal(tarn_size(y, 1), 3);
    assert_true(tarn_memory_of(meta).used - before >= INT64_C(4) << 40);
    assert_int_equal(tarn_memory_of(CPU).used, real);
    assert_int_equal(tarn_stats().kernels, 0);
    assert_true(tarn_item_at(y, TARN_SHAPE(5, 1)) == 0);
}

static void a_meta_device_chooses_as_its_device_does(void **state)
{
    (void)state;
    tarn_device meta = tarn__meta_device_of(CPU), again = tarn__meta_device_of(meta);
    char name[32];
    assert_true(tarn_device_equal(meta, again));
    assert_false(tarn_device_equal(meta, CPU));
    assert_string_equal(tarn_device_name(meta, name, sizeof(name)), "cpu");
    for (int kernel = 0; kernel < TARN__KERNEL_COUNT; kernel++)
        assert_int_equal(tarn__has_kernel(meta, (tarn__kernel)kernel, TARN_F32),
                         tarn__has_kernel(CPU, (tarn__kernel)kernel, TARN_F32));
}

/* Shapes are checked as ever, and what lies elsewhere does not mix. */
static void mistakes_are_found(void **state)
{
    (void)state;
    tarn_device meta = tarn__meta_device_of(CPU);
    tarn_tensor *x = good(tarn_zeros(TARN_SHAPE(2, 3), TARN_F32, meta));
    assert_null(tarn_matmul(x, x));
    assert_error(TARN_ERROR_SHAPE, "inner sizes differ");
    assert_null(tarn_add(x, tarn_zeros(TARN_SHAPE(2, 3), TARN_F32, CPU)));
    assert_int_equal(tarn_error_code(), TARN_ERROR_DEVICE);
    tarn_clear_error();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(tensors_have_sizes_and_take_no_memory),
        in_scope(a_meta_device_chooses_as_its_device_does),
        in_scope(mistakes_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
