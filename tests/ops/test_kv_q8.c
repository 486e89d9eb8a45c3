/* test_kv_q8.c: quantized KV rows against Q8_0 blocks, and rows of any length. TARN_TEST_DEVICE names the device;
 * default: the CPU. */
#include "ops/internal.h"
#include "support/check.h"

#define CPU tarn_device_cpu()

static tarn_device device;

/* Rows of very different sizes, some all 0, some at the end of f32's range, some too small for a scale of 16 bits. */
static tarn_tensor *rows_of(int64_t B, int64_t heads, int64_t T, int64_t D, tarn_dtype dtype)
{
    static const double sizes[] = {1, 0, 1e-3, 1e4, 1e-6, 3e-39, 17.5, 0.1};
    double *size = malloc(sizeof(*size) * (size_t)(B * heads * T));
    for (int64_t i = 0; i < B * heads * T; i++)
        size[i] = sizes[i % 8];
    tarn_tensor *factor = good(tarn_cast(tarn_from_f64(size, TARN_SHAPE(B, heads, T, 1), CPU), TARN_F32));
    free(size);
    return good(tarn_cast(tarn_mul(tarn_normal(TARN_SHAPE(B, heads, T, D), 0, 1, TARN_F32, CPU), factor), dtype));
}

static tarn_tensor *back(tarn_tensor *x)
{
    return good(tarn_to(x, CPU));
}

/* Whole groups: bit for bit what blocks hold. */
static void groups_are_quant_blocks(void **state)
{
    (void)state;
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F16, TARN_F64};
    static const int64_t depths[] = {32, 64, 96, 128, 256};
    for (int i = 0; i < 20; i++) {
        tarn_tensor *x = rows_of(2, 3, 11, depths[i % 5], dtypes[i / 5]), *scales;
        tarn_tensor *expected = good(tarn_cast(tarn_cast(x, TARN_Q8_0), TARN_F32));
        tarn_tensor *q8 = good(tarn__quantize_kv(good(tarn_to(x, device)), &scales));
        assert_int_equal(tarn_dtype_of(q8), TARN_U8);
        assert_int_equal(tarn_dtype_of(scales), TARN_F16);
        assert_int_equal(tarn_size(scales, 3), depths[i % 5] / 32);
        assert_close(back(tarn__dequantize_kv(q8, scales, TARN_F32)), expected, 0);
        for (int k = 0; k < 4; k++)
            assert_close(back(tarn__dequantize_kv(q8, scales, dtypes[k])), good(tarn_cast(expected, dtypes[k])), 0);
    }
}

/* Where the scale is 1: half of a step goes away from 0, as in blocks, and what is just below it does not. */
static void ties_go_away_from_zero(void **state)
{
    (void)state;
    float values[32] = {127,   0.5f,        -0.5f,        1.5f,   -1.5f,   2.5f,
                        -2.5f, 0.49999997f, -0.49999997f, 126.5f, -126.5f, 3.4999998f};
    const float expected[] = {127, 1, -1, 2, -2, 3, -3, 0, 0, 127, -127, 3};
    tarn_tensor *scales, *x = good(tarn_from_f32(values, TARN_SHAPE(1, 1, 1, 32), device));
    tarn_tensor *q8 = good(tarn__quantize_kv(x, &scales)), *y = back(tarn__dequantize_kv(q8, scales, TARN_F32));
    for (int64_t i = 0; i < 12; i++)
        assert_true(tarn_item_at(y, TARN_SHAPE(0, 0, 0, i)) == expected[i]);
    assert_close(y, good(tarn_cast(tarn_cast(tarn_to(x, CPU), TARN_Q8_0), TARN_F32)), 0);
}

/* The last group of a row may be short: as if zeros followed. */
static void rows_of_any_width(void **state)
{
    (void)state;
    static const int64_t depths[] = {1, 5, 8, 31, 33, 40, 72, 80, 130};
    for (int i = 0; i < 9; i++) {
        int64_t D = depths[i], whole = (D + 31) / 32 * 32;
        tarn_tensor *x = rows_of(1, 2, 9, D, TARN_F32), *scales;
        tarn_tensor *zeros = good(tarn_zeros(TARN_SHAPE(1, 2, 9, whole), TARN_F32, CPU));
        assert_true(tarn_copy(tarn_slice(zeros, 3, 0, D), x));
        tarn_tensor *expected = good(tarn_slice(tarn_cast(tarn_cast(zeros, TARN_Q8_0), TARN_F32), 3, 0, D));
        tarn_tensor *q8 = good(tarn__quantize_kv(good(tarn_to(x, device)), &scales));
        assert_int_equal(tarn_size(scales, 3), whole / 32);
        assert_close(back(tarn__dequantize_kv(q8, scales, TARN_F32)), expected, 0);
    }
}

/* Heads packed in rows, as a model has them, and a part of a longer cache. */
static void views_are_read_where_they_lie(void **state)
{
    (void)state;
    tarn_tensor *x = rows_of(2, 7, 3, 48, TARN_F32),
                *turned = good(tarn_permute(tarn_to(x, device), TARN_AXES(0, 2, 1, 3))), *scales, *plain_scales;
    tarn_tensor *q8 = good(tarn__quantize_kv(turned, &scales)),
                *plain = good(tarn__quantize_kv(good(tarn_contiguous(turned)), &plain_scales));
    assert_close(back(tarn_cast(q8, TARN_F32)), back(tarn_cast(plain, TARN_F32)), 0);
    assert_close(back(tarn_cast(scales, TARN_F32)), back(tarn_cast(plain_scales, TARN_F32)), 0);
    tarn_tensor *whole = good(tarn__dequantize_kv(q8, scales, TARN_F32));
    tarn_tensor *part =
        good(tarn__dequantize_kv(good(tarn_slice(q8, 2, 2, 5)), good(tarn_slice(scales, 2, 2, 5)), TARN_F32));
    assert_close(back(part), back(tarn_slice(whole, 2, 2, 5)), 0);
}

/* A group that is not finite is not hidden; those beside it are as they were. */
static void what_is_not_finite_stays_so(void **state)
{
    (void)state;
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        tarn_tensor *x = good(tarn_ones(TARN_SHAPE(1, 1, 2, 64), TARN_F32, CPU)), *scales;
        assert_true(tarn_fill_inplace(tarn_slice(tarn_slice(x, 2, 1, 2), 3, 40, 41), odd[i]));
        tarn_tensor *q8 = good(tarn__quantize_kv(good(tarn_to(x, device)), &scales)),
                    *y = back(tarn__dequantize_kv(q8, scales, TARN_F32));
        for (int64_t d = 0; d < 64; d++) {
            double before = tarn_item_at(y, TARN_SHAPE(0, 0, 0, d)), beside = tarn_item_at(y, TARN_SHAPE(0, 0, 1, d));
            assert_true(isfinite(before) && isfinite(beside) == (d < 32));
        }
    }
}

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {
        in_scope(groups_are_quant_blocks),       in_scope(ties_go_away_from_zero),      in_scope(rows_of_any_width),
        in_scope(views_are_read_where_they_lie), in_scope(what_is_not_finite_stays_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
