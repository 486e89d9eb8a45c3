/* test_softmax.c: softmax and log_softmax along every axis against naive loops in f64. */
#include <float.h>

#include "../support/check.h"

static tarn_tensor *normal(tarn_shape shape, tarn_dtype dtype)
{
    return good(tarn_normal(shape, 0, 2, dtype, tarn_device_cpu()));
}

/* The softmax of x (outer, length, inner) along the middle. */
static void softmax_by_hand(const double *x, double *y, int64_t outer, int64_t length, int64_t inner, bool log_form)
{
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            const double *row = x + o * length * inner + i;
            double most = -INFINITY, sum = 0;
            for (int64_t k = 0; k < length; k++)
                most = fmax(most, row[k * inner]);
            for (int64_t k = 0; k < length; k++)
                sum += exp(row[k * inner] - most);
            for (int64_t k = 0; k < length; k++)
                y[o * length * inner + i + k * inner] =
                    log_form ? row[k * inner] - most - log(sum) : exp(row[k * inner] - most) / sum;
        }
}

static void assert_softmax(tarn_tensor *x, int axis, double tolerance)
{
    tarn_shape shape = tarn_shape_of(x);
    int64_t outer = 1, inner = 1, count = tarn_count(x);
    for (int i = 0; i < shape.rank; i++)
        *(i < axis ? &outer : &inner) *= i == axis ? 1 : shape.size[i];
    double *values = values_of(x), *expected = malloc(sizeof(double) * (size_t)(count + 1));
    for (int log_form = 0; log_form < 2; log_form++) {
        softmax_by_hand(values, expected, outer, shape.size[axis], inner, log_form);
        double *y = values_of(good(log_form ? tarn_log_softmax(x, axis) : tarn_softmax(x, axis)));
        for (int64_t i = 0; i < count; i++)
            if (fabs(y[i] - expected[i]) >
                tolerance * fabs(expected[i]) +
                    (log_form ? tolerance : 1e-4 * tolerance)) /* f16 has few digits left near 0 */
                fail_msg("axis %d: element %d is %.9g, not %.9g", axis, (int)i, y[i], expected[i]);
        free(y);
    }
    free(values), free(expected);
}

static void every_axis_of_every_layout_and_dtype_is_right(void **state)
{
    (void)state;
    static const double tolerance[] = {1e-6, 1e-14, 4e-3, 1e-3};
    for (tarn_dtype dtype = TARN_F32; dtype <= TARN_F16; dtype++)
        for (int axis = 0; axis < 3; axis++) {
            tarn_scope *scope = tarn_scope_open();
            assert_softmax(normal(TARN_SHAPE(7, 33, 20), dtype), axis, tolerance[dtype]);
            assert_softmax(good(tarn_transpose(normal(TARN_SHAPE(20, 33, 7), dtype), 0, 2)), axis, tolerance[dtype]);
            assert_softmax(good(tarn_expand(normal(TARN_SHAPE(5, 1, 9), dtype), TARN_SHAPE(5, 6, 9))), axis,
                           tolerance[dtype]);
            assert_softmax(good(tarn_flip(normal(TARN_SHAPE(3, 4, 300), dtype), TARN_AXES(2))), axis, tolerance[dtype]);
            tarn_scope_close(scope);
        }
}

static void long_rows_and_long_columns_are_right(void **state)
{
    (void)state;
    assert_softmax(normal(TARN_SHAPE(2, 20000), TARN_F32), 1, 2e-6);
    assert_softmax(normal(TARN_SHAPE(2, 20000), TARN_BF16), 1, 4e-3);
    assert_softmax(normal(TARN_SHAPE(9000, 11), TARN_F32), 0, 2e-6);
}

static void infinities_and_nan_follow_arithmetic(void **state)
{
    (void)state;
    double inf = INFINITY;
    assert_values(good(tarn_softmax(vector(-INFINITY, -INFINITY), 0)), 0, NAN, NAN);
    assert_values(good(tarn_softmax(vector(1, INFINITY), 0)), 0, NAN, NAN);
    assert_values(good(tarn_softmax(vector(1, NAN, 3), 0)), 0, NAN, NAN, NAN);
    assert_values(good(tarn_softmax(vector(1, -INFINITY, 1), 0)), 0, 0.5, 0, 0.5);
    assert_values(good(tarn_log_softmax(vector(1, -INFINITY), 0)), 0, 0, -inf);
    assert_values(good(tarn_softmax(vector(1000, 1000), 0)), 0, 0.5, 0.5);
}

/* Down to the smallest results of f32 and through it, with masked elements between, for rows of all lengths beside that
 * of a vector. */
static void small_results_keep_their_digits_beside_masked_ones(void **state)
{
    (void)state;
    static float row[1037];
    for (int n = 3; n <= 1037; n = n < 70 ? n + 1 : n + 967) {
        tarn_scope *scope = tarn_scope_open();
        double sum = 0;
        for (int i = 0; i < n; i++) {
            row[i] = i % 7 == 1 ? -INFINITY : -112 * (float)i / (float)(n - 1);
            sum += exp((double)row[i]);
        }
        double *y = values_of(good(tarn_softmax(good(tarn_from(row, TARN_SHAPE(n), TARN_F32, tarn_device_cpu())), 0)));
        for (int i = 0; i < n; i++) {
            double expected = exp((double)row[i]) / sum;
            if (!(fabs(y[i] - expected) <= 4 * FLT_EPSILON * expected + 0x1p-149))
                fail_msg("%d elements: exp(%g) / %g is %.9g, not %.9g", n, (double)row[i], sum, y[i], expected);
        }
        free(y);
        tarn_scope_close(scope);
    }
}

static void rank_0_is_one_and_empty_tensors_stay_empty(void **state)
{
    (void)state;
    tarn_tensor *one = good(tarn_full(TARN_SCALAR, 3, TARN_F32, tarn_device_cpu()));
    assert_values(good(tarn_softmax(one, -1)), 0, 1);
    assert_values(good(tarn_log_softmax(one, 0)), 0, 0);
    assert_shape(good(tarn_softmax(normal(TARN_SHAPE(3, 0), TARN_F32), 1)), 3, 0);
    assert_shape(good(tarn_softmax(normal(TARN_SHAPE(0, 3), TARN_F32), 1)), 0, 3);
}

typedef tarn_tensor *(*along_fn)(tarn_tensor *x, int axis);

typedef struct along {
    along_fn fn;
    int axis;
} along;

static tarn_tensor *run(tarn_tensor *const *in, int count, void *ctx)
{
    (void)count;
    const along *a = ctx;
    return a->fn(in[0], a->axis);
}

static void gradients_agree_with_differences_on_every_axis(void **state)
{
    (void)state;
    for (int axis = -3; axis < 0; axis++)
        for (int i = 0; i < 2; i++) {
            along a = {i ? tarn_log_softmax : tarn_softmax, axis};
            tarn_tensor *x = good(tarn_requires_grad(normal(TARN_SHAPE(4, 5, 9), TARN_F64), true));
            tarn_gradcheck(run, &a, &x, 1, NULL);
            assert_ok();
        }
}

/* y · (g - Σ y · g) from the y that was given. Every third row has one large element, which leaves little of the
 * difference. */
static void gradients_keep_their_digits_in_rows_with_and_without_a_large_element(void **state)
{
    (void)state;
    static const int64_t lengths[] = {7, 40, 1024, 1030};
    for (int i = 0; i < 4; i++) {
        int64_t n = lengths[i], rows = 7;
        tarn_tensor *x = good(tarn_normal(TARN_SHAPE(rows, n), 0, 1, TARN_F32, tarn_device_cpu()));
        tarn_tensor *g = good(tarn_normal(TARN_SHAPE(rows, n), 1, 1, TARN_F32, tarn_device_cpu()));
        for (int64_t r = 1; r < rows; r += 3)
            ((float *)tarn_data(x))[r * n + r] = 22;
        good(tarn_requires_grad(x, true));
        tarn_tensor *y = good(tarn_softmax(x, -1));
        assert_true(tarn_backward_from(y, g, NULL));
        double *vy = values_of(y), *vg = values_of(g), *got = values_of(good(tarn_grad(x)));
        for (int64_t r = 0; r < rows; r++) {
            double dot = 0;
            for (int64_t k = r * n; k < (r + 1) * n; k++)
                dot += vy[k] * vg[k];
            for (int64_t k = r * n; k < (r + 1) * n; k++) {
                double expected = vy[k] * (vg[k] - dot), off = fabs(got[k] - expected);
                if (off > 1e-6 * (r % 3 == 1 ? fabs(expected) : vy[k] * (fabs(vg[k]) + fabs(dot))))
                    fail_msg("row %d of %d, element %d is %.9g, not %.9g", (int)r, (int)n, (int)(k - r * n), got[k],
                             expected);
            }
        }
        free(vy), free(vg), free(got);
    }
}

static void the_bits_are_the_same_with_one_two_and_four_threads(void **state)
{
    (void)state;
    static const along_fn fns[] = {tarn_softmax, tarn_log_softmax};
    int before = tarn_threads();
    for (int i = 0; i < 4; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *x = normal(TARN_SHAPE(300, 400), TARN_F32), *g = normal(TARN_SHAPE(300, 400), TARN_F32),
                    *one[2] = {0};
        for (int threads = 1; threads <= 4; threads *= 2) {
            tarn_set_threads(threads);
            tarn_tensor *in = good(tarn_requires_grad(good(tarn_detach(x)), true)), *y = good(fns[i / 2](in, i % 2));
            assert_true(tarn_backward_from(y, g, NULL));
            tarn_tensor *now[] = {good(tarn_detach(y)), good(tarn_grad(in))};
            for (int k = 0; k < 2; k++) {
                if (one[k])
                    assert_memory_equal(tarn_data(one[k]), tarn_data(now[k]), (size_t)tarn_bytes(now[k]));
                one[k] = now[k];
            }
        }
        tarn_scope_close(scope);
    }
    tarn_set_threads(before);
}

static void integers_and_wrong_axes_are_refused(void **state)
{
    (void)state;
    assert_null(tarn_softmax(good(tarn_zeros(TARN_SHAPE(3), TARN_I64, tarn_device_cpu())), 0));
    assert_error(TARN_ERROR_DTYPE, "softmax: x is i64");
    assert_null(tarn_log_softmax(vector(1, 2), 1));
    assert_error(TARN_ERROR_SHAPE, "log_softmax: axis 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(every_axis_of_every_layout_and_dtype_is_right),
        in_scope(long_rows_and_long_columns_are_right),
        in_scope(infinities_and_nan_follow_arithmetic),
        in_scope(small_results_keep_their_digits_beside_masked_ones),
        in_scope(rank_0_is_one_and_empty_tensors_stay_empty),
        in_scope(gradients_agree_with_differences_on_every_axis),
        in_scope(gradients_keep_their_digits_in_rows_with_and_without_a_large_element),
        in_scope(the_bits_are_the_same_with_one_two_and_four_threads),
        in_scope(integers_and_wrong_axes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
