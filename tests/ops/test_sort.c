/* test_sort.c: sorting: order, stability, NaN, gradients and errors; random rows against insertion sort. */
#include "support/check.h"

#define CPU tarn_device_cpu()

static tarn_tensor *from(tarn_shape shape, const double *values)
{
    return tarn_from_f64(values, shape, CPU);
}

static void sort_orders_along_any_axis_both_ways(void **state)
{
    (void)state;
    tarn_tensor *x = from(TARN_SHAPE(2, 3), VALUES(3, 1, 2, -1, 5, 0)), *v, *i;
    assert_true(tarn_sort(x, -1, false, &v, &i));
    expect(v, TARN_SHAPE(2, 3), VALUES(1, 2, 3, -1, 0, 5));
    expect(i, TARN_SHAPE(2, 3), VALUES(1, 2, 0, 0, 2, 1));
    assert_int_equal(tarn_dtype_of(i), TARN_I64);
    assert_true(tarn_sort(x, 0, true, &v, &i));
    expect(v, TARN_SHAPE(2, 3), VALUES(3, 5, 2, -1, 1, 0));
    expect(i, TARN_SHAPE(2, 3), VALUES(0, 1, 0, 1, 0, 1));
    assert_true(tarn_sort(tarn_transpose(x, 0, 1), 0, false, &v, NULL));
    expect(v, TARN_SHAPE(3, 2), VALUES(1, -1, 2, 0, 3, 5));
    assert_true(tarn_sort(x, 1, false, NULL, &i));
    expect(i, TARN_SHAPE(2, 3), VALUES(1, 2, 0, 0, 2, 1));
}

static void sort_is_stable_and_takes_nan_as_the_largest(void **state)
{
    (void)state;
    tarn_tensor *x = from(TARN_SHAPE(7), VALUES(0.0, NAN, -0.0, -INFINITY, INFINITY, -NAN, 0.0)), *v, *i;
    const tarn_dtype floats[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16};
    for (int k = 0; k < 4; k++) {
        assert_true(tarn_sort(tarn_cast(x, floats[k]), 0, false, &v, &i));
        expect(v, TARN_SHAPE(7), VALUES(-INFINITY, 0, 0, 0, INFINITY, NAN, NAN));
        expect(i, TARN_SHAPE(7), VALUES(3, 0, 2, 6, 4, 1, 5));
        assert_true(signbit(tarn_item_at(v, TARN_SHAPE(2))));
        assert_true(tarn_sort(tarn_cast(x, floats[k]), 0, true, &v, &i));
        expect(i, TARN_SHAPE(7), VALUES(1, 5, 4, 0, 2, 6, 3));
        assert_true(tarn_topk(tarn_cast(x, floats[k]), 4, 0, false, &v, &i));
        expect(i, TARN_SHAPE(4), VALUES(3, 0, 2, 6));
    }
}

static void every_dtype_is_sorted(void **state)
{
    (void)state;
    tarn_tensor *x = from(TARN_SHAPE(4), VALUES(100, -7, 0, 3)), *v;
    const tarn_dtype dtypes[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16, TARN_I32, TARN_I64};
    for (int k = 0; k < 6; k++) {
        assert_true(tarn_sort(tarn_cast(x, dtypes[k]), 0, false, &v, NULL));
        assert_int_equal(tarn_dtype_of(v), dtypes[k]);
        expect(v, TARN_SHAPE(4), VALUES(-7, 0, 3, 100));
        assert_true(tarn_sort(tarn_cast(x, dtypes[k]), 0, true, &v, NULL));
        expect(v, TARN_SHAPE(4), VALUES(100, 3, 0, -7));
    }
    assert_true(tarn_sort(tarn_from_u8((const uint8_t[]){200, 3, 127}, TARN_SHAPE(3), CPU), 0, false, &v, NULL));
    expect(v, TARN_SHAPE(3), VALUES(3, 127, 200));
    assert_true(tarn_sort(tarn_gt(x, tarn_scalar(0)), 0, false, &v, NULL));
    expect(v, TARN_SHAPE(4), VALUES(0, 0, 1, 1));
    int64_t far[] = {INT64_MAX, INT64_MIN, -1, 0};
    assert_true(tarn_sort(tarn_from_i64(far, TARN_SHAPE(4), CPU), 0, false, NULL, &v));
    expect(v, TARN_SHAPE(4), VALUES(1, 2, 3, 0));
}

static void topk_takes_the_largest_or_smallest_first_of_equal_ones(void **state)
{
    (void)state;
    tarn_tensor *x = from(TARN_SHAPE(2, 4), VALUES(1, 4, 4, 2, 7, 7, 7, 7)), *v, *i;
    assert_true(tarn_topk(x, 2, 1, true, &v, &i));
    expect(v, TARN_SHAPE(2, 2), VALUES(4, 4, 7, 7));
    expect(i, TARN_SHAPE(2, 2), VALUES(1, 2, 0, 1));
    assert_true(tarn_topk(x, 3, -1, false, &v, &i));
    expect(v, TARN_SHAPE(2, 3), VALUES(1, 2, 4, 7, 7, 7));
    expect(i, TARN_SHAPE(2, 3), VALUES(0, 3, 1, 0, 1, 2));
    assert_true(tarn_topk(x, 0, 0, true, &v, &i));
    expect(v, TARN_SHAPE(0, 4), NULL);
}

static void empty_tensors_and_rank_0_are_sorted(void **state)
{
    (void)state;
    tarn_tensor *v, *i, *one = tarn_full(TARN_SCALAR, 5, TARN_F32, CPU);
    assert_true(tarn_sort(tarn_zeros(TARN_SHAPE(3, 0), TARN_F32, CPU), 1, false, &v, &i));
    expect(v, TARN_SHAPE(3, 0), NULL);
    assert_true(tarn_sort(tarn_zeros(TARN_SHAPE(0, 3), TARN_F32, CPU), 1, false, &v, &i));
    expect(i, TARN_SHAPE(0, 3), NULL);
    assert_true(tarn_sort(one, -1, true, &v, &i));
    expect(v, TARN_SCALAR, VALUES(5));
    expect(i, TARN_SCALAR, VALUES(0));
    assert_true(tarn_topk(one, 1, 0, true, &v, &i));
    expect(v, TARN_SCALAR, VALUES(5));
    assert_true(tarn_sort(tarn_scalar(2), 0, false, &v, NULL));
    expect(v, TARN_SCALAR, VALUES(2));
}

static void gradients_of_the_values_go_back_to_where_they_came_from(void **state)
{
    (void)state;
    tarn_tensor *x = tarn_requires_grad(from(TARN_SHAPE(2, 3), VALUES(3, 1, 2, -1, 5, 0)), true), *v, *i;
    assert_true(tarn_sort(x, 1, false, &v, &i));
    assert_true(tarn_needs_grad(v));
    assert_false(tarn_needs_grad(i));
    assert_true(tarn_backward_from(v, from(TARN_SHAPE(2, 3), VALUES(1, 2, 3, 4, 5, 6)), NULL));
    expect(tarn_grad(x), TARN_SHAPE(2, 3), VALUES(3, 1, 2, 4, 6, 5));
    assert_true(tarn_topk(x, 1, 0, true, &v, NULL)); /* added to what is there, the indices kept inside */
    assert_true(tarn_backward_from(v, from(TARN_SHAPE(1, 3), VALUES(10, 20, 30)), NULL));
    expect(tarn_grad(x), TARN_SHAPE(2, 3), VALUES(13, 1, 32, 4, 26, 5));
}

static void sorting_refuses_what_it_cannot_do(void **state)
{
    (void)state;
    tarn_tensor *x = tarn_zeros(TARN_SHAPE(2, 3), TARN_F32, CPU), *v;
    assert_false(tarn_topk(x, 4, 1, true, &v, NULL));
    assert_error(TARN_ERROR_SHAPE, "topk: k is 4, but axis 1 of x [2, 3] has 3 elements");
    assert_false(tarn_topk(x, -1, 1, true, &v, NULL));
    assert_error(TARN_ERROR_SHAPE, "k is -1");
    assert_false(tarn_sort(x, 2, true, &v, NULL));
    assert_error(TARN_ERROR_SHAPE, "sort: axis 2");
    assert_false(tarn_sort(x, 0, true, NULL, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "both NULL");
    assert_false(tarn_sort(NULL, 0, true, &v, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "sort: x is NULL");
}

/* ---- random ------------------------------------------------------------------------------------------------------ */

/* A stable insertion of indices: slow, and easy to see through. */
static void order_line(const double *x, int64_t step, int64_t n, bool descending, int64_t *order)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t k = i;
        for (; k > 0; k--) {
            double before = x[order[k - 1] * step], here = x[i * step];
            bool moves = descending ? here > before || (isnan(here) && !isnan(before))
                                    : here < before || (isnan(before) && !isnan(here));
            if (!moves)
                break;
            order[k] = order[k - 1];
        }
        order[k] = i;
    }
}

/* x is [rows, n] sorted along 1, or with `turned` [n, rows] sorted along 0; few different values, so that many are
 * equal. */
static void compare_with_insertion(int64_t rows, int64_t n, int64_t k, tarn_dtype dtype, bool turned, bool descending)
{
    tarn_scope *inner = tarn_scope_open();
    tarn_tensor *x = tarn_uniform(TARN_SHAPE(turned ? n : rows, turned ? rows : n), -20, 20, TARN_F32, CPU), *v, *i;
    x = dtype == TARN_F32 ? tarn_log(x) : tarn_cast(x, dtype); /* f32: NaN for half of them */
    assert_true(tarn_topk(x, k, turned ? 0 : 1, descending, &v, &i));
    double *in = malloc(sizeof(double) * (size_t)(rows * n)), *out = malloc(sizeof(double) * (size_t)(rows * k));
    double *at = malloc(sizeof(double) * (size_t)(rows * k));
    int64_t *order = malloc(sizeof(int64_t) * (size_t)n);
    assert_true(tarn_read_f64(x, in, rows * n) && tarn_read_f64(v, out, rows * k) && tarn_read_f64(i, at, rows * k));
    for (int64_t r = 0; r < rows; r++) {
        const double *line = in + (turned ? r : r * n);
        int64_t step = turned ? rows : 1;
        order_line(line, step, n, descending, order);
        for (int64_t j = 0; j < k; j++) {
            int64_t place = turned ? j * rows + r : r * k + j;
            assert_int_equal((int64_t)at[place], order[j]);
            assert_true(out[place] == line[order[j] * step] || (isnan(out[place]) && isnan(line[order[j] * step])));
        }
    }
    free(in), free(out), free(at), free(order);
    tarn_scope_close(inner);
}

static void random_lines_are_sorted_as_by_insertion(void **state)
{
    (void)state;
    const int64_t lengths[] = {1, 2, 17, 40, 41, 300, 1000};
    const tarn_dtype dtypes[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16, TARN_I32, TARN_I64, TARN_U8, TARN_BOOL};
    for (int l = 0; l < 7; l++)
        for (int d = 0; d < 8; d++)
            for (int way = 0; way < 4; way++) {
                compare_with_insertion(5, lengths[l], lengths[l], dtypes[d], way & 1, way & 2);
                compare_with_insertion(3, lengths[l], (lengths[l] + 19) / 20, dtypes[d], way & 1, way & 2);
            }
}

static void sorting_is_bitwise_identical_with_any_number_of_threads(void **state)
{
    (void)state;
    enum { ROWS = 64, COLUMNS = 2000 };
    tarn_tensor *x = tarn_normal(TARN_SHAPE(ROWS, COLUMNS), 0, 1, TARN_BF16, CPU), *v, *i;
    size_t bytes = sizeof(int64_t) * ROWS * COLUMNS;
    int64_t *first = malloc(bytes), *again = malloc(bytes);
    for (int threads = 1; threads <= 4; threads *= 2) {
        assert_true(tarn_set_threads(threads) && tarn_sort(x, 1, true, &v, &i));
        assert_true(tarn_read(i, threads == 1 ? first : again, bytes));
        if (threads > 1)
            assert_memory_equal(first, again, bytes);
    }
    free(first), free(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(sort_orders_along_any_axis_both_ways),
        in_scope(sort_is_stable_and_takes_nan_as_the_largest),
        in_scope(every_dtype_is_sorted),
        in_scope(topk_takes_the_largest_or_smallest_first_of_equal_ones),
        in_scope(empty_tensors_and_rank_0_are_sorted),
        in_scope(gradients_of_the_values_go_back_to_where_they_came_from),
        in_scope(sorting_refuses_what_it_cannot_do),
        in_scope(random_lines_are_sorted_as_by_insertion),
        in_scope(sorting_is_bitwise_identical_with_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
