/* test_large.c: tensors of more than 2^31 elements. Needs a few gigabytes; skipped where memory is short or
 * TARN_TEST_QUICK is set. */
#include "base/os/platform.h"
#include "support/check.h"

#define COUNT (((int64_t)1 << 31) + 4099)

static bool too_large_here(void)
{
    const char *quick = getenv("TARN_TEST_QUICK");
    return (quick && quick[0] && quick[0] != '0') || tarn__platform_memory_free() < (int64_t)10 << 30;
}

static double at(tarn_tensor *x, int64_t index)
{
    return tarn_item_at(x, TARN_SHAPE(index));
}

static void more_than_two_to_the_31_elements(void **state)
{
    (void)state;
    if (too_large_here())
        skip();
    tarn_tensor *x = good(tarn_full(TARN_SHAPE(COUNT), 3, TARN_U8, tarn_device_cpu()));
    assert_int_equal(tarn_count(x), COUNT);
    uint8_t last = 9;
    assert_true(tarn_write(tarn_slice(x, 0, COUNT - 1, COUNT), &last, 1));
    assert_true(at(x, 0) == 3 && at(x, COUNT - 2) == 3 && at(x, -1) == 9);
    good(tarn_add_inplace(x, tarn_scalar(4)));
    assert_true(at(x, 0) == 7 && at(x, (int64_t)1 << 31) == 7 && at(x, COUNT - 1) == 13);
    char text[64];
    tarn_format(x, text, sizeof(text));
    assert_string_equal(text, "[ 7  7  7 ...  7  7 13]");
    tarn_tensor *copy = good(tarn_clone(x));
    assert_true(at(copy, COUNT - 1) == 13 && at(copy, COUNT - 2) == 7);
    tarn_free(x);
    tarn_tensor *equal = good(tarn_eq(copy, tarn_scalar(7)));
    assert_true(at(equal, 0) == 1 && at(equal, COUNT - 2) == 1 && at(equal, COUNT - 1) == 0);
    assert_true(tarn_item(good(tarn_sum(equal, TARN_ALL_AXES, false))) == (double)(COUNT - 1));
    tarn_free(equal);
    assert_true(tarn_item(good(tarn_sum(copy, TARN_ALL_AXES, false))) == 7.0 * (double)(COUNT - 1) + 13);
    tarn_tensor *turned = good(tarn_flip(copy, TARN_AXES(0)));
    assert_true(at(turned, 0) == 13 && at(turned, COUNT - 1) == 7);
    assert_ok();
}

static void rows_beyond_two_to_the_31(void **state)
{
    (void)state;
    if (too_large_here())
        skip();
    int64_t rows = 70000, columns = 40000; /* 2.8e9 elements */
    tarn_tensor *x = good(tarn_full(TARN_SHAPE(rows, columns), 1, TARN_U8, tarn_device_cpu()));
    tarn_tensor *line = good(tarn_cast(tarn_arange(0, 200, 1, TARN_I32, tarn_device_cpu()), TARN_U8));
    assert_true(
        tarn_copy(tarn_slice(tarn_slice(x, 0, rows - 1, rows), 1, columns - 200, columns), tarn_unsqueeze(line, 0)));
    assert_true(tarn_item_at(x, TARN_SHAPE(-1, -1)) == 199);
    tarn_tensor *sums = good(tarn_sum(x, TARN_AXES(1), false));
    assert_true(at(sums, 0) == 40000 && at(sums, rows - 1) == 40000 - 200 + 19900);
    tarn_tensor *turned = good(tarn_transpose(x, 0, 1));
    assert_true(tarn_item_at(turned, TARN_SHAPE(columns - 2, rows - 1)) == 198);
    tarn_tensor *columns_sum = good(tarn_sum(x, TARN_AXES(0), false));
    assert_true(at(columns_sum, 0) == 70000 && at(columns_sum, columns - 1) == 70000 - 1 + 199);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(more_than_two_to_the_31_elements), in_scope(rows_beyond_two_to_the_31)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
