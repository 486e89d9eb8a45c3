/* test_batch_invariant.c: batch-invariant matmuls: a row of a result is bitwise identical for any number of rows; and
 * matmuls of few rows, each bitwise as it is alone without invariance. */
#include "ops/internal.h"
#include "support/check.h"

#define CPU tarn_device_cpu()
enum { ROWS = 70 };

/* The same weight, stored the other way round. */
static tarn_tensor *stored_in_out(tarn_tensor *w)
{
    return good(tarn_transpose(tarn_contiguous(tarn_transpose(w, 0, 1)), 0, 1));
}

/* Rows [first, first + count) of a linear layer by themselves, against those of all rows. */
static void check_linear(tarn_dtype dtype, tarn_dtype weight, int64_t out, int64_t in, bool in_out)
{
    tarn_tensor *w = good(tarn_cast(tarn_normal(TARN_SHAPE(out, in), 0, 0.1, TARN_F32, CPU), weight)),
                *x = good(tarn_normal(TARN_SHAPE(ROWS, in), 0, 1, dtype, CPU));
    w = in_out ? stored_in_out(w) : w;
    tarn__batch_invariant_open();
    tarn_tensor *whole = good(tarn_linear_apply(x, w, NULL));
    static const int64_t counts[] = {1, 2, 4, 5, 8, 13, 33, 64};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        for (int64_t first = 0; first + counts[i] <= ROWS; first += 6) {
            tarn_tensor *y = good(tarn_linear_apply(tarn_slice(x, 0, first, first + counts[i]), w, NULL));
            assert_close(y, tarn_slice(whole, 0, first, first + counts[i]), 0);
        }
    tarn__batch_invariant_close();
    assert_int_equal(tarn__batch_invariant(), TARN__INVARIANT_NONE);
}

/* Up to eight rows together, against those that each of them has by itself. */
static void check_alone(tarn_dtype dtype, tarn_dtype weight, int64_t out, int64_t in, bool in_out, bool has_bias)
{
    tarn_tensor *w = good(tarn_cast(tarn_normal(TARN_SHAPE(out, in), 0, 0.1, TARN_F32, CPU), weight)),
                *x = good(tarn_normal(TARN_SHAPE(TARN__ALONE_ROWS, in), 0, 1, dtype, CPU)),
                *bias = has_bias ? good(tarn_normal(TARN_SHAPE(out), 0, 1, dtype, CPU)) : NULL;
    w = in_out ? stored_in_out(w) : w;
    for (int64_t rows = 2; rows <= TARN__ALONE_ROWS; rows++) {
        tarn__rows_alone_open();
        tarn_tensor *together = good(tarn_linear_apply(tarn_slice(x, 0, 0, rows), w, bias));
        tarn__rows_alone_close();
        assert_int_equal(tarn__batch_invariant(), TARN__INVARIANT_NONE);
        for (int64_t i = 0; i < rows; i++)
            assert_close(good(tarn_linear_apply(tarn_slice(x, 0, i, i + 1), w, bias)),
                         tarn_slice(together, 0, i, i + 1), 0);
    }
}

static void rows_are_as_they_are_alone(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{64, 64}, {172, 64}, {3, 172}, {96, 256}, {200, 600}, {8, 4200}};
    static const tarn_dtype dtypes[][2] = {{TARN_F32, TARN_F32},
                                           {TARN_BF16, TARN_BF16},
                                           {TARN_F16, TARN_F16},
                                           {TARN_F32, TARN_BF16},
                                           {TARN_F64, TARN_F64}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (size_t k = 0; k < sizeof(dtypes) / sizeof(dtypes[0]); k++)
            for (int in_out = 0; in_out < 2; in_out++)
                check_alone(dtypes[k][0], dtypes[k][1], sizes[i][0], sizes[i][1], in_out, i % 2);
    check_alone(TARN_F32, TARN_F32, 2500, 4100, false, false); /* k is split for up to six rows */
    static const tarn_dtype quantized[] = {TARN_Q8_0, TARN_Q4_0, TARN_Q5_1, TARN_Q4_K, TARN_Q6_K, TARN_Q2_K};
    for (size_t i = 0; i < sizeof(quantized) / sizeof(quantized[0]); i++)
        check_alone(i % 2 ? TARN_BF16 : TARN_F32, quantized[i], 100, 512, false, true);
}

static void rows_do_not_depend_on_their_number(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{64, 64}, {172, 64}, {64, 172}, {96, 256}, {8, 4200}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        check_linear(TARN_F32, TARN_F32, sizes[i][0], sizes[i][1], false);
        check_linear(TARN_F32, TARN_F32, sizes[i][0], sizes[i][1], true);
        check_linear(TARN_BF16, TARN_BF16, sizes[i][0], sizes[i][1], i % 2);
        check_linear(TARN_F16, TARN_F16, sizes[i][0], sizes[i][1], i % 2);
        check_linear(TARN_F32, TARN_BF16, sizes[i][0], sizes[i][1], i % 2);
    }
    check_linear(TARN_F32, TARN_Q8_0, 96, 256, false);
    check_linear(TARN_F32, TARN_Q4_K, 96, 256, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(rows_do_not_depend_on_their_number),
                                       in_scope(rows_are_as_they_are_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
