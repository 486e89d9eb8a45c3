/* test_copy_rows.c: copies of rows of every length and element size, against naive loops: contiguous, every second
 * element, reversed, and both; and transposed matrices. */
#include <stdlib.h>

#include "support/check.h"

#define CPU tarn_device_cpu()

enum { SLABS = 3, ROWS = 5, LONGEST = 140 };

/* One of each size in bytes. */
static const tarn_dtype dtypes[] = {TARN_U8, TARN_BF16, TARN_F32, TARN_F64};

/* The bytes of [SLABS, ROWS, width] elements, all different enough that a wrong place shows. */
static unsigned char *fill(int64_t bytes)
{
    unsigned char *values = malloc((size_t)bytes);
    assert_non_null(values);
    for (int64_t i = 0; i < bytes; i++)
        values[i] = (unsigned char)(i * 31 % 127 + i / 127 % 120);
    return values;
}

/* Elements begin, begin + step … of every row but the first, n of them, in a copy; step may be negative. */
static void check_rows(tarn_dtype dtype, int64_t width, int64_t begin, int64_t step, int64_t n)
{
    tarn_scope *scope = tarn_scope_open();
    int64_t size = (int64_t)tarn_dtype_size(dtype), steps = step < 0 ? -step : step, reach = (n - 1) * steps + 1;
    int64_t low = step < 0 ? begin - reach + 1 : begin;
    unsigned char *from = fill(SLABS * ROWS * width * size), *to = malloc((size_t)(SLABS * (ROWS - 1) * n * size));
    assert_non_null(to);
    tarn_tensor *x = good(tarn_from(from, TARN_SHAPE(SLABS, ROWS, width), dtype, CPU));
    x = good(tarn_shrink(x, TARN_SHAPE(0, 1, low), TARN_SHAPE(SLABS, ROWS, low + reach)));
    x = step < 0 ? good(tarn_flip(x, TARN_AXES(2))) : x;
    x = good(tarn_contiguous(good(tarn_stride(x, TARN_SHAPE(1, 1, steps)))));
    assert_shape(x, SLABS, ROWS - 1, n);
    assert_true(tarn_read(x, to, (size_t)(SLABS * (ROWS - 1) * n * size)));
    for (int64_t row = 0, k = 0; row < SLABS * ROWS; row++)
        for (int64_t i = 0; row % ROWS != 0 && i < n; i++, k++)
            if (memcmp(to + k * size, from + (row * width + begin + i * step) * size, (size_t)size) != 0)
                fail_msg("%s, rows of %lld, step %lld: element %lld of row %lld is not the one copied",
                         tarn_dtype_name(dtype), (long long)n, (long long)step, (long long)i, (long long)row);
    free(from), free(to);
    tarn_scope_close(scope);
}

static void check_step(int64_t step)
{
    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
        for (int64_t n = 1; n <= LONGEST; n++) {
            int64_t reach = (n - 1) * (step < 0 ? -step : step) + 1;
            /* the row's first and last elements are the memory's, or lie one within */
            for (int64_t gap = 0; gap < 2; gap++)
                check_rows(dtypes[d], reach + 2 * gap, step < 0 ? gap + reach - 1 : gap, step, n);
        }
}

static void dense_rows_are_copied_whatever_their_length(void **state)
{
    (void)state;
    check_step(1);
}

static void every_second_element_is_copied_whatever_the_length(void **state)
{
    (void)state;
    check_step(2);
    check_step(-2);
}

static void rows_of_any_length_are_reversed(void **state)
{
    (void)state;
    check_step(-1);
}

static void every_third_element_is_copied_whatever_the_length(void **state)
{
    (void)state;
    check_step(3);
}

/* Padding writes rows with gaps between them into what is there, and must not touch the gaps. */
static void rows_laid_into_a_frame_leave_the_frame_alone(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= LONGEST; n++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *x = good(tarn_ones(TARN_SHAPE(SLABS, ROWS, n), TARN_F32, CPU));
        tarn_tensor *y = good(tarn_pad(x, TARN_SHAPE(0, 1, 1), TARN_SHAPE(0, 1, 2), 7));
        double inside = (double)(SLABS * ROWS * n), frame = (double)(SLABS * (ROWS + 2) * (n + 3)) - inside;
        assert_true(tarn_item(good(tarn_sum(y, TARN_ALL_AXES, false))) == inside + 7 * frame);
        tarn_tensor *middle = good(tarn_shrink(y, TARN_SHAPE(0, 1, 1), TARN_SHAPE(SLABS, ROWS + 1, n + 1)));
        assert_true(tarn_item(good(tarn_sum(middle, TARN_ALL_AXES, false))) == inside);
        tarn_scope_close(scope);
    }
}

/* Matrices turned over their diagonal: whole tiles, less than one, and what is left beside and below them; also parts
 * of larger ones. */
static void check_turned(tarn_dtype dtype, int64_t rows, int64_t columns, int64_t skip)
{
    tarn_scope *scope = tarn_scope_open();
    int64_t size = (int64_t)tarn_dtype_size(dtype), height = rows + skip, width = columns + skip;
    unsigned char *from = fill(SLABS * height * width * size), *to = malloc((size_t)(SLABS * rows * columns * size));
    assert_non_null(to);
    tarn_tensor *x = good(tarn_from(from, TARN_SHAPE(SLABS, height, width), dtype, CPU));
    x = good(tarn_shrink(x, TARN_SHAPE(0, skip, skip), TARN_SHAPE(SLABS, height, width)));
    x = good(tarn_contiguous(good(tarn_transpose(x, 1, 2))));
    assert_true(tarn_read(x, to, (size_t)(SLABS * rows * columns * size)));
    for (int64_t slab = 0, k = 0; slab < SLABS; slab++)
        for (int64_t c = 0; c < columns; c++)
            for (int64_t r = 0; r < rows; r++, k++)
                if (memcmp(to + k * size, from + ((slab * height + skip + r) * width + skip + c) * size,
                           (size_t)size) != 0)
                    fail_msg("%s [%lld, %lld]: row %lld, column %lld is not where it belongs", tarn_dtype_name(dtype),
                             (long long)rows, (long long)columns, (long long)r, (long long)c);
    free(from), free(to);
    tarn_scope_close(scope);
}

static void matrices_of_any_size_are_transposed(void **state)
{
    (void)state;
    static const int64_t sides[] = {1, 7, 8, 9, 16, 31, 33, 40, 71};
    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
        for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++)
            for (size_t k = 0; k < sizeof(sides) / sizeof(sides[0]); k++)
                check_turned(dtypes[d], sides[i], sides[k], (int64_t)(i + k) % 3);
}

static void long_rows_that_are_repeated_are_whole_in_every_copy(void **state)
{
    (void)state;
    enum { SLABS_HERE = 2, COPIES = 3, LENGTH = 70000 };
    unsigned char *from = fill(SLABS_HERE * LENGTH * 4), *to = malloc((size_t)SLABS_HERE * COPIES * LENGTH * 4);
    assert_non_null(to);
    tarn_tensor *x = good(tarn_from(from, TARN_SHAPE(SLABS_HERE, 1, LENGTH), TARN_I32, CPU));
    x = good(tarn_contiguous(good(tarn_expand(x, TARN_SHAPE(SLABS_HERE, COPIES, LENGTH)))));
    assert_true(tarn_read(x, to, (size_t)SLABS_HERE * COPIES * LENGTH * 4));
    for (int64_t row = 0; row < SLABS_HERE * COPIES; row++)
        assert_memory_equal(to + row * LENGTH * 4, from + row / COPIES * LENGTH * 4, (size_t)LENGTH * 4);
    free(from), free(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(dense_rows_are_copied_whatever_their_length),
        in_scope(every_second_element_is_copied_whatever_the_length),
        in_scope(rows_of_any_length_are_reversed),
        in_scope(every_third_element_is_copied_whatever_the_length),
        in_scope(rows_laid_into_a_frame_leave_the_frame_alone),
        in_scope(matrices_of_any_size_are_transposed),
        in_scope(long_rows_that_are_repeated_are_whole_in_every_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
