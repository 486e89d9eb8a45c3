/* test_batch_invariant.c: batch-invariant matmuls: a row of a result is bitwise identical for any number of rows. */
#include "ops/internal.h"
#include "support/check.h"

#define CPU tarn_device_cpu()
enum { ROWS = 70 };

/* Rows [first, first + count) of a linear layer by themselves, against those of all rows. */
static void check_linear(tarn_dtype dtype, tarn_dtype weight, int64_t out, int64_t in)
{
    tarn_tensor *w = good(tarn_cast(tarn_normal(TARN_SHAPE(out, in), 0, 0.1, TARN_F32, CPU), weight)),
                *x = good(tarn_normal(TARN_SHAPE(ROWS, in), 0, 1, dtype, CPU));
    tarn__batch_invariant_open();
    tarn_tensor *whole = good(tarn_linear_apply(x, w, NULL));
    static const int64_t counts[] = {1, 2, 4, 5, 8, 13, 33, 64};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        for (int64_t first = 0; first + counts[i] <= ROWS; first += 6) {
            tarn_tensor *y = good(tarn_linear_apply(tarn_slice(x, 0, first, first + counts[i]), w, NULL));
            assert_close(y, tarn_slice(whole, 0, first, first + counts[i]), 0);
        }
    tarn__batch_invariant_close();
    assert_false(tarn__batch_invariant());
}

static void rows_do_not_depend_on_their_number(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{64, 64}, {172, 64}, {64, 172}, {96, 256}, {8, 4200}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        check_linear(TARN_F32, TARN_F32, sizes[i][0], sizes[i][1]);
        check_linear(TARN_BF16, TARN_BF16, sizes[i][0], sizes[i][1]);
        check_linear(TARN_F16, TARN_F16, sizes[i][0], sizes[i][1]);
        check_linear(TARN_F32, TARN_BF16, sizes[i][0], sizes[i][1]);
    }
    check_linear(TARN_F32, TARN_Q8_0, 96, 256);
    check_linear(TARN_F32, TARN_Q4_K, 96, 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(rows_do_not_depend_on_their_number)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
