/* test_reduce.c: reductions: shapes, edge cases, ties, gradients, errors, accuracy on long inputs, and bitwise
 * identical results with any number of threads. */
#include "support/check.h"

#define CPU tarn_device_cpu()

static tarn_tensor *matrix(int64_t rows, int64_t columns, const float *values)
{
    return good(tarn_from_f32(values, TARN_SHAPE(rows, columns), CPU));
}

static tarn_tensor *two_by_three(void)
{
    return matrix(2, 3, (const float[]){1, 5, 3, 4, 2, 6});
}

static void assert_rank_0(const tarn_tensor *x)
{
    assert_non_null(x);
    assert_int_equal(tarn_rank(x), 0);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static void an_empty_list_of_axes_reduces_all(void **state)
{
    (void)state;
    tarn_tensor *x = two_by_three();
    tarn_tensor *sum = good(tarn_sum(x, TARN_ALL_AXES, false));
    assert_rank_0(sum);
    assert_values(sum, 0, 21);
    assert_values(good(tarn_mean(x, TARN_ALL_AXES, false)), 1e-7, 3.5);
    assert_values(good(tarn_prod(x, TARN_ALL_AXES, false)), 0, 720);
    assert_values(good(tarn_max(x, TARN_ALL_AXES, false)), 0, 6);
    assert_values(good(tarn_min(x, TARN_ALL_AXES, false)), 0, 1);
    assert_values(good(tarn_var(x, TARN_ALL_AXES, 1, false)), 1e-6, 3.5);
}

static void keep_leaves_reduced_axes_with_size_1(void **state)
{
    (void)state;
    tarn_tensor *x = two_by_three();
    assert_shape(good(tarn_sum(x, TARN_AXES(1), true)), 2, 1);
    assert_shape(good(tarn_sum(x, TARN_AXES(1), false)), 2);
    assert_shape(good(tarn_max(x, TARN_AXES(0), true)), 1, 3);
    assert_shape(good(tarn_max(x, TARN_ALL_AXES, true)), 1, 1);
    assert_shape(good(tarn_argmax(x, 0, true)), 1, 3);
    assert_shape(good(tarn_argmin(x, 1, false)), 2);
    assert_shape(good(tarn_var(x, TARN_AXES(0), 1, true)), 1, 3);
}

static void negative_axes_count_from_the_last(void **state)
{
    (void)state;
    tarn_tensor *x = two_by_three();
    assert_values(good(tarn_sum(x, TARN_AXES(-1), false)), 0, 9, 12);
    assert_values(good(tarn_sum(x, TARN_AXES(-2), false)), 0, 5, 7, 9);
    assert_values(good(tarn_max(x, TARN_AXES(-1), false)), 0, 5, 6);
    assert_values(good(tarn_argmax(x, -1, false)), 0, 1, 2);
    assert_values(good(tarn_cumsum(x, -1)), 0, 1, 6, 9, 4, 6, 12);
    assert_values(good(tarn_cumsum(x, -2)), 0, 1, 5, 3, 5, 7, 9);
}

static void axes_that_do_not_exist_or_are_listed_twice_are_errors(void **state)
{
    (void)state;
    tarn_tensor *x = two_by_three();
    assert_null(tarn_sum(x, TARN_AXES(2), false));
    assert_error(TARN_ERROR_SHAPE, "sum: axis 2");
    assert_null(tarn_mean(x, TARN_AXES(0, -3), false));
    assert_error(TARN_ERROR_SHAPE, "mean: axis -3");
    assert_null(tarn_max(x, TARN_AXES(1, -1), false));
    assert_error(TARN_ERROR_ARGUMENT, "max: axis 1 is listed twice");
    assert_null(tarn_argmin(x, 5, false));
    assert_error(TARN_ERROR_SHAPE, "argmin: axis 5");
    assert_null(tarn_cumsum(x, -3));
    assert_error(TARN_ERROR_SHAPE, "cumsum: axis -3");
    assert_null(tarn_var(NULL, TARN_ALL_AXES, 1, false));
    assert_error(TARN_ERROR_ARGUMENT, "var: x is NULL");
}

static void rank_0_reduces_to_itself(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_full(TARN_SCALAR, 2.5, TARN_F32, CPU));
    tarn_tensor *results[] = {tarn_sum(x, TARN_ALL_AXES, false),  tarn_mean(x, TARN_AXES(0), true),
                              tarn_prod(x, TARN_AXES(-1), false), tarn_max(x, TARN_ALL_AXES, true),
                              tarn_min(x, TARN_ALL_AXES, false),  tarn_cumsum(x, 0)};
    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        assert_rank_0(results[i]);
        assert_values(results[i], 0, 2.5);
    }
    assert_values(good(tarn_argmax(x, 0, false)), 0, 0);
    assert_values(good(tarn_var(x, TARN_ALL_AXES, 0, false)), 0, 0);
    assert_values(good(tarn_var(x, TARN_ALL_AXES, 1, false)), 0, NAN);
}

/* ---- nothing to reduce ------------------------------------------------------------------------------------------- */

static void sums_and_products_of_nothing_are_0_and_1(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_empty(TARN_SHAPE(2, 0), TARN_F32, CPU));
    assert_values(good(tarn_sum(x, TARN_AXES(1), false)), 0, 0, 0);
    assert_values(good(tarn_prod(x, TARN_AXES(1), false)), 0, 1, 1);
    assert_values(good(tarn_mean(x, TARN_AXES(1), false)), 0, NAN, NAN);
    assert_values(good(tarn_var(x, TARN_AXES(1), 1, false)), 0, NAN, NAN);
    assert_shape(good(tarn_sum(x, TARN_AXES(0), false)), 0);
    assert_shape(good(tarn_max(x, TARN_AXES(0), true)), 1, 0);
    assert_shape(good(tarn_cumsum(x, 1)), 2, 0);
    tarn_tensor *whole = good(tarn_empty(TARN_SHAPE(0), TARN_I32, CPU));
    assert_values(good(tarn_sum(whole, TARN_ALL_AXES, false)), 0, 0);
    assert_values(good(tarn_prod(whole, TARN_ALL_AXES, false)), 0, 1);
}

static void the_largest_of_nothing_is_an_error_naming_the_axis(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_empty(TARN_SHAPE(2, 0), TARN_F32, CPU));
    assert_null(tarn_max(x, TARN_AXES(1), false));
    assert_error(TARN_ERROR_SHAPE, "max: axis 1 of x, which is [2, 0], has no elements");
    assert_null(tarn_min(x, TARN_ALL_AXES, false));
    assert_error(TARN_ERROR_SHAPE, "min: axis 1");
    assert_null(tarn_argmax(x, -1, false));
    assert_error(TARN_ERROR_SHAPE, "argmax: axis 1");
}

/* ---- dtypes ------------------------------------------------------------------------------------------------------ */

static void integers_and_bool_are_summed_in_i64(void **state)
{
    (void)state;
    tarn_tensor *bytes = good(tarn_from_u8((const uint8_t[]){200, 100, 7}, TARN_SHAPE(3), CPU));
    tarn_tensor *sum = good(tarn_sum(bytes, TARN_ALL_AXES, false));
    assert_int_equal(tarn_dtype_of(sum), TARN_I64);
    assert_values(sum, 0, 307);
    assert_int_equal(tarn_dtype_of(good(tarn_prod(bytes, TARN_ALL_AXES, false))), TARN_I64);
    assert_int_equal(tarn_dtype_of(good(tarn_max(bytes, TARN_ALL_AXES, false))), TARN_U8);
    assert_values(good(tarn_cumsum(bytes, 0)), 0, 200, 300, 307);
    tarn_tensor *flags = good(tarn_gt(vector(1, -1, 2), tarn_scalar(0)));
    assert_values(good(tarn_sum(flags, TARN_ALL_AXES, false)), 0, 2);
    assert_int_equal(tarn_dtype_of(good(tarn_min(flags, TARN_ALL_AXES, false))), TARN_BOOL);
    int64_t large[] = {INT64_C(1) << 60, 1, 1};
    sum = good(tarn_sum(tarn_from_i64(large, TARN_SHAPE(3), CPU), TARN_ALL_AXES, false));
    int64_t exact = 0;
    assert_true(tarn_read(sum, &exact, sizeof(exact)));
    assert_true(exact == (INT64_C(1) << 60) + 2);
}

static void means_and_variances_of_integers_are_errors(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_from_i32((const int32_t[]){1, 2}, TARN_SHAPE(2), CPU));
    assert_null(tarn_mean(x, TARN_ALL_AXES, false));
    assert_error(TARN_ERROR_DTYPE, "mean: x is i32");
    assert_null(tarn_var(x, TARN_ALL_AXES, 1, false));
    assert_error(TARN_ERROR_DTYPE, "var: x is i32");
}

static void bf16_is_accumulated_in_more_digits(void **state)
{
    (void)state;
    /* 4096 times 1: a bf16 accumulator would stop at 256. */
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(4096, 3), TARN_BF16, CPU));
    assert_values(good(tarn_sum(x, TARN_AXES(0), false)), 0, 4096, 4096, 4096);
    assert_values(good(tarn_sum(x, TARN_ALL_AXES, false)), 0, 12288);
    assert_int_equal(tarn_dtype_of(good(tarn_sum(x, TARN_ALL_AXES, false))), TARN_BF16);
}

/* ---- NaN, infinity, ties ----------------------------------------------------------------------------------------- */

static void nan_wins_wherever_it_stands(void **state)
{
    (void)state;
    for (int64_t n = 1; n < 200; n += 7)
        for (int64_t at = 0; at < n; at += 5) {
            tarn_scope *scope = tarn_scope_open();
            float values[200];
            for (int64_t i = 0; i < n; i++)
                values[i] = i == at ? NAN : (float)i;
            tarn_tensor *row = good(tarn_from_f32(values, TARN_SHAPE(n), CPU));
            assert_values(good(tarn_max(row, TARN_ALL_AXES, false)), 0, NAN);
            assert_values(good(tarn_min(row, TARN_ALL_AXES, false)), 0, NAN);
            assert_values(good(tarn_argmax(row, 0, false)), 0, (double)at);
            assert_values(good(tarn_argmin(row, 0, false)), 0, (double)at);
            tarn_tensor *column = good(tarn_expand(tarn_reshape(row, TARN_SHAPE(n, 1)), TARN_SHAPE(n, 20)));
            assert_true(isnan(tarn_item_at(good(tarn_max(column, TARN_AXES(0), false)), TARN_SHAPE(19))));
            assert_true(tarn_item_at(good(tarn_argmin(column, 0, false)), TARN_SHAPE(19)) == (double)at);
            tarn_scope_close(scope);
        }
}

static void infinities_are_values_like_others(void **state)
{
    (void)state;
    tarn_tensor *x = vector(-INFINITY, -INFINITY);
    assert_values(good(tarn_max(x, TARN_ALL_AXES, false)), 0, -INFINITY);
    assert_values(good(tarn_argmax(x, 0, false)), 0, 0);
    assert_values(good(tarn_sum(x, TARN_ALL_AXES, false)), 0, -INFINITY);
    assert_values(good(tarn_sum(vector(INFINITY, -INFINITY), TARN_ALL_AXES, false)), 0, NAN);
    assert_values(good(tarn_var(vector(INFINITY, 1), TARN_ALL_AXES, 1, false)), 0, NAN);
}

static void the_first_of_equal_elements_is_found(void **state)
{
    (void)state;
    assert_values(good(tarn_argmax(vector(1, 3, 3, 2, 3), 0, false)), 0, 1);
    assert_values(good(tarn_argmin(vector(1, 0, 3, 0), 0, false)), 0, 1);
    tarn_tensor *x = good(tarn_zeros(TARN_SHAPE(5000, 40), TARN_F32, CPU));
    tarn_tensor *rows = good(tarn_argmax(x, 1, false)), *columns = good(tarn_argmax(x, 0, false));
    assert_true(tarn_item(good(tarn_max(rows, TARN_ALL_AXES, false))) == 0);
    assert_true(tarn_item(good(tarn_max(columns, TARN_ALL_AXES, false))) == 0);
}

static void too_few_elements_for_the_correction_give_nan_or_infinity(void **state)
{
    (void)state;
    assert_values(good(tarn_var(vector(3), TARN_ALL_AXES, 1, false)), 0, NAN);
    assert_values(good(tarn_var(vector(1, 2), TARN_ALL_AXES, 2, false)), 0, INFINITY);
    assert_values(good(tarn_var(vector(1, 2), TARN_ALL_AXES, 5, false)), 0, INFINITY);
    assert_values(good(tarn_var(vector(1, 2), TARN_ALL_AXES, 0, false)), 0, 0.25);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static void equal_elements_share_the_gradient_of_max(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(matrix(2, 3, (const float[]){1, 4, 4, 2, 2, 2}), true));
    assert_true(tarn_backward_from(good(tarn_max(x, TARN_AXES(1), false)), vector(1, 3), NULL));
    assert_values(tarn_grad(x), 1e-6, 0, 0.5, 0.5, 1, 1, 1);
    tarn_tensor *y = good(tarn_requires_grad(vector(5, 1, 1), true));
    assert_true(tarn_backward(good(tarn_min(y, TARN_ALL_AXES, true))));
    assert_values(tarn_grad(y), 1e-6, 0, 0.5, 0.5);
}

static void the_gradient_of_a_product_is_right_with_zeros(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(matrix(3, 3, (const float[]){2, 3, 4, 2, 0, 4, 0, 0, 4}), true));
    assert_true(tarn_backward_from(good(tarn_prod(x, TARN_AXES(-1), false)), vector(1, 1, 1), NULL));
    assert_values(tarn_grad(x), 1e-6, 12, 8, 6, 0, 8, 0, 0, 0, 0);
}

static void a_gradient_may_reach_a_tensor_through_several_reductions(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(vector(1, 2, 3), true));
    tarn_tensor *h = good(tarn_mul(x, tarn_scalar(2)));
    tarn_tensor *sums = good(tarn_add(tarn_sum(h, TARN_ALL_AXES, false), tarn_mean(h, TARN_ALL_AXES, false)));
    assert_true(tarn_backward(good(tarn_add(sums, tarn_sum(tarn_mul(h, h), TARN_ALL_AXES, false)))));
    double each = 2 + 2.0 / 3;
    assert_values(tarn_grad(x), 1e-6, each + 8, each + 16, each + 24);
}

static tarn_tensor *all_reductions(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)count;
    tarn_axes axes = *(const tarn_axes *)ctx;
    tarn_tensor *x = inputs[0];
    tarn_tensor *sum = tarn_add(tarn_sum(x, axes, true), tarn_mean(tarn_square(x), axes, true));
    tarn_tensor *rest = tarn_add(tarn_prod(x, axes, true), tarn_var(x, axes, 1, true));
    tarn_tensor *running = tarn_sum(tarn_square(tarn_cumsum(x, 1)), axes, true);
    return tarn_add(tarn_add(sum, rest), tarn_add(running, tarn_mul(tarn_max(x, axes, true), tarn_min(x, axes, true))));
}

static void gradients_agree_with_differences_over_every_kind_of_axes(void **state)
{
    (void)state;
    tarn_axes lists[] = {TARN_AXES(0), TARN_AXES(1), TARN_AXES(2), TARN_AXES(0, 2), TARN_AXES(1, 2), TARN_ALL_AXES};
    tarn_seed(7);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        tarn_tensor *x = good(tarn_requires_grad(tarn_uniform(TARN_SHAPE(3, 4, 2), 0.5, 2, TARN_F64, CPU), true));
        assert_true(tarn_gradcheck(all_reductions, &lists[i], (tarn_tensor *[]){x}, 1, NULL));
        tarn_tensor *turned = good(tarn_requires_grad(good(tarn_detach(tarn_permute(x, TARN_AXES(2, 0, 1)))), true));
        assert_true(tarn_gradcheck(all_reductions, &lists[i], (tarn_tensor *[]){turned}, 1, NULL));
    }
    assert_ok();
}

/* ---- accuracy ---------------------------------------------------------------------------------------------------- */

static void long_sums_keep_their_digits(void **state)
{
    (void)state;
    /* 3 million times 0.1: one f32 accumulator would be off in the third digit. */
    int64_t n = 3000000;
    tarn_tensor *x = good(tarn_full(TARN_SHAPE(n / 3, 3), 0.1, TARN_F32, CPU));
    double each = (double)0.1f;
    assert_values(good(tarn_sum(x, TARN_ALL_AXES, false)), 1e-6, each * (double)n);
    assert_values(good(tarn_sum(x, TARN_AXES(0), false)), 1e-6, each * (double)n / 3, each * (double)n / 3,
                  each * (double)n / 3);
    assert_true(fabs(tarn_item(good(tarn_mean(x, TARN_ALL_AXES, false))) - each) < 1e-7);
}

static void the_variance_far_from_0_keeps_its_digits(void **state)
{
    (void)state;
    /* 10000 ± 1: squares minus the square of the mean would lose everything in f32. */
    int64_t n = 100000;
    float *values = malloc(sizeof(float) * (size_t)n);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++)
        values[i] = i % 2 ? 10001.0f : 9999.0f;
    tarn_tensor *x = good(tarn_from_f32(values, TARN_SHAPE(n / 50, 50), CPU));
    free(values);
    assert_values(good(tarn_var(x, TARN_ALL_AXES, 0, false)), 1e-6, 1);
    assert_close(good(tarn_var(x, TARN_AXES(1), 0, false)), good(tarn_ones(TARN_SHAPE(n / 50), TARN_F32, CPU)), 1e-6);
    tarn_tensor *columns = good(tarn_var(tarn_cumsum(tarn_ones_like(x), 0), TARN_AXES(0), 0, false));
    double rows = (double)(n / 50);
    assert_true(fabs(tarn_item_at(columns, TARN_SHAPE(17)) / ((rows * rows - 1) / 12) - 1) < 1e-6);
}

/* ---- every layout, against plain loops --------------------------------------------------------------------------- */

/* Reduces by hand, in f64, element by element. */
static void check_by_hand(tarn_tensor *x, uint32_t mask)
{
    tarn_axes axes = {0};
    tarn_shape shape = tarn_shape_of(x), small = shape;
    for (int i = 0; i < shape.rank; i++)
        if ((mask >> i) & 1) {
            axes.axis[axes.count++] = i;
            small.size[i] = 1;
        }
    int64_t outputs = 1, count = tarn_count(x);
    for (int i = 0; i < small.rank; i++)
        outputs *= small.size[i];
    double *values = values_of(x), *sum = calloc((size_t)outputs, sizeof(double)),
           *most = calloc((size_t)outputs, sizeof(double));
    assert_true(values && sum && most);
    for (int64_t o = 0; o < outputs; o++)
        most[o] = -INFINITY;
    for (int64_t k = 0; k < count; k++) {
        int64_t rest = k, o = 0, step = 1;
        for (int i = shape.rank - 1; i >= 0; i--) {
            o += (mask >> i) & 1 ? 0 : rest % shape.size[i] * step;
            step *= small.size[i];
            rest /= shape.size[i];
        }
        sum[o] += values[k];
        most[o] = values[k] > most[o] ? values[k] : most[o];
    }
    double tolerance = tarn_dtype_of(x) == TARN_BF16 ? 0x1p-8 : 1e-6 * sqrt((double)count / (double)outputs);
    assert_close(good(tarn_cast(tarn_sum(x, axes, true), TARN_F64)), good(tarn_from_f64(sum, small, CPU)), tolerance);
    assert_close(good(tarn_cast(tarn_max(x, axes, true), TARN_F64)), good(tarn_from_f64(most, small, CPU)), 0);
    free(values);
    free(sum);
    free(most);
}

/* x repeated along a new first axis, without a copy. */
static tarn_tensor *repeated(tarn_tensor *x, int64_t times)
{
    tarn_shape shape = {.rank = tarn_rank(x) + 1, .size = {times}};
    for (int i = 1; i < shape.rank; i++)
        shape.size[i] = -1;
    return good(tarn_expand(tarn_unsqueeze(x, 0), shape));
}

static void sums_and_maxima_are_right_over_random_shapes_and_layouts(void **state)
{
    (void)state;
    uint64_t random = test_seed(11);
    static const int64_t sizes[] = {1, 2, 3, 5, 7, 8, 15, 17, 33, 70, 130};
    for (int round = 0; round < 200; round++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_shape shape = {.rank = 1 + (int)random_below(&random, 4)};
        for (int i = 0; i < shape.rank; i++)
            shape.size[i] = sizes[random_below(&random, shape.rank > 3 ? 8 : 11)];
        tarn_seed(random_bits(&random));
        tarn_tensor *x = good(tarn_normal(shape, 0, 1, round % 2 ? TARN_F32 : TARN_BF16, CPU));
        if (random_below(&random, 2))
            x = good(tarn_transpose(x, (int)random_below(&random, shape.rank), (int)random_below(&random, shape.rank)));
        if (random_below(&random, 3) == 0)
            x = good(tarn_flip(x, TARN_AXES((int)random_below(&random, shape.rank))));
        if (random_below(&random, 3) == 0)
            x = good(tarn_slice(x, -1, 0, (tarn_size(x, -1) + 1) / 2));
        if (random_below(&random, 4) == 0)
            x = repeated(x, 5);
        check_by_hand(x, 1u + (uint32_t)random_below(&random, (INT64_C(1) << tarn_rank(x)) - 1));
        tarn_scope_close(scope);
    }
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

typedef tarn_tensor *(*reduction)(tarn_tensor *x, tarn_axes axes);

static tarn_tensor *by_sum(tarn_tensor *x, tarn_axes axes)
{
    return tarn_sum(x, axes, false);
}

static tarn_tensor *by_prod(tarn_tensor *x, tarn_axes axes)
{
    return tarn_prod(x, axes, false);
}

static tarn_tensor *by_max(tarn_tensor *x, tarn_axes axes)
{
    return tarn_max(x, axes, false);
}

static tarn_tensor *by_var(tarn_tensor *x, tarn_axes axes)
{
    return tarn_var(x, axes, 1, false);
}

static tarn_tensor *by_argmax(tarn_tensor *x, tarn_axes axes)
{
    return tarn_argmax(x, axes.count ? axes.axis[0] : 0, false);
}

static tarn_tensor *by_cumsum(tarn_tensor *x, tarn_axes axes)
{
    return tarn_cumsum(x, axes.count ? axes.axis[0] : 0);
}

/* The gradient of a product and of a maximum, over one tensor. */
static tarn_tensor *by_gradient(tarn_tensor *x, tarn_axes axes)
{
    tarn_tensor *leaf = tarn_requires_grad(tarn_detach(x), true);
    tarn_tensor *y = tarn_add(tarn_sum(tarn_prod(leaf, axes, false), TARN_ALL_AXES, false),
                              tarn_sum(tarn_max(leaf, axes, false), TARN_ALL_AXES, false));
    return tarn_backward(y) ? tarn_grad(leaf) : NULL;
}

static void *bits_of(tarn_tensor *x, size_t *bytes)
{
    good(x);
    *bytes = (size_t)tarn_bytes(x);
    void *bits = malloc(*bytes);
    assert_non_null(bits);
    assert_true(tarn_read(x, bits, *bytes));
    return bits;
}

static void check_bits(reduction reduce, tarn_tensor *x, tarn_axes axes)
{
    static const int threads[] = {1, 2, 4};
    void *first = NULL;
    size_t first_bytes = 0;
    for (int i = 0; i < 3; i++) {
        tarn_scope *scope = tarn_scope_open();
        size_t bytes;
        assert_true(tarn_set_threads(threads[i]));
        void *bits = bits_of(reduce(x, axes), &bytes);
        if (first) {
            assert_int_equal(bytes, first_bytes);
            assert_memory_equal(bits, first, bytes);
            free(bits);
        } else {
            first = bits;
            first_bytes = bytes;
        }
        tarn_scope_close(scope);
    }
    free(first);
    tarn_set_threads(0);
}

static void results_are_bitwise_identical_with_any_number_of_threads(void **state)
{
    (void)state;
    static const reduction reductions[] = {by_sum, by_prod, by_max, by_var, by_argmax, by_cumsum, by_gradient};
    tarn_shape shapes[] = {TARN_SHAPE(1000, 1200), TARN_SHAPE(300000, 4), TARN_SHAPE(4, 300000), TARN_SHAPE(1200000),
                           TARN_SHAPE(60, 70, 300)};
    tarn_axes lists[] = {TARN_ALL_AXES, TARN_AXES(0), TARN_AXES(-1), TARN_AXES(0, -1)};
    tarn_seed(3);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int dtype = 0; dtype < 2; dtype++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_tensor *x = good(tarn_uniform(shapes[i], 0.999, 1.001, dtype ? TARN_BF16 : TARN_F32, CPU));
            for (size_t k = 0; k < sizeof(reductions) / sizeof(reductions[0]); k++)
                for (int list = 0; list < (shapes[i].rank > 1 ? 4 : 2); list++)
                    check_bits(reductions[k], x, lists[list]);
            tarn_scope_close(scope);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(an_empty_list_of_axes_reduces_all),
        in_scope(keep_leaves_reduced_axes_with_size_1),
        in_scope(negative_axes_count_from_the_last),
        in_scope(axes_that_do_not_exist_or_are_listed_twice_are_errors),
        in_scope(rank_0_reduces_to_itself),
        in_scope(sums_and_products_of_nothing_are_0_and_1),
        in_scope(the_largest_of_nothing_is_an_error_naming_the_axis),
        in_scope(integers_and_bool_are_summed_in_i64),
        in_scope(means_and_variances_of_integers_are_errors),
        in_scope(bf16_is_accumulated_in_more_digits),
        in_scope(nan_wins_wherever_it_stands),
        in_scope(infinities_are_values_like_others),
        in_scope(the_first_of_equal_elements_is_found),
        in_scope(too_few_elements_for_the_correction_give_nan_or_infinity),
        in_scope(equal_elements_share_the_gradient_of_max),
        in_scope(the_gradient_of_a_product_is_right_with_zeros),
        in_scope(a_gradient_may_reach_a_tensor_through_several_reductions),
        in_scope(gradients_agree_with_differences_over_every_kind_of_axes),
        in_scope(long_sums_keep_their_digits),
        in_scope(the_variance_far_from_0_keeps_its_digits),
        in_scope(sums_and_maxima_are_right_over_random_shapes_and_layouts),
        in_scope(results_are_bitwise_identical_with_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
