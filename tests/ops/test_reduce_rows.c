/* test_reduce_rows.c: reductions along contiguous rows, which have their own loops: variance in one pass, products,
 * and the gradients of both and of max row by row. */
#include <stdlib.h>

#include "support/check.h"

#define CPU tarn_device_cpu()

static float *floats(int64_t n)
{
    float *values = malloc(sizeof(float) * (size_t)n);
    assert_non_null(values);
    return values;
}

/* The variance of a row by hand, in f64, in two passes. */
static double variance_by_hand(const float *x, int64_t n)
{
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        mean += (double)x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    return squares / (double)(n - 1);
}

/* Rows whose first `strange` elements lie far from all others: the mean of the beginning says nothing about the mean.
 */
static void check_strange_beginning(int64_t length, int64_t strange, float at)
{
    enum { ROWS = 3 };
    float *x = floats(ROWS * length);
    for (int64_t i = 0; i < ROWS * length; i++)
        x[i] = i % length < strange ? at : 10000.7f + (float)(i * 7 % 11) * 0.137f;
    tarn_tensor *y = good(tarn_var(tarn_from_f32(x, TARN_SHAPE(ROWS, length), CPU), TARN_AXES(1), 1, false));
    for (int64_t r = 0; r < ROWS; r++) {
        double expected = variance_by_hand(x + r * length, length);
        assert_true(fabs(tarn_item_at(y, TARN_SHAPE(r)) / expected - 1) < 5e-6);
    }
    free(x);
}

static void the_variance_does_not_depend_on_how_a_row_begins(void **state)
{
    (void)state;
    static const int64_t lengths[] = {2, 15, 16, 17, 63, 64, 100, 1024, 4096, 9000};
    static const int64_t strange[] = {0, 1, 4, 8, 16, 32};
    static const float places[] = {0, -3e6f, 10001.5f, 9123.4f};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        for (size_t k = 0; k < sizeof(strange) / sizeof(strange[0]); k++)
            for (size_t p = 0; p < sizeof(places) / sizeof(places[0]) && strange[k] < lengths[i]; p++)
                check_strange_beginning(lengths[i], strange[k], places[p]);
}

static void a_nan_anywhere_in_a_row_is_its_variance(void **state)
{
    (void)state;
    enum { LENGTH = 300 };
    float x[LENGTH];
    for (int at = 0; at < LENGTH; at += 23)
        for (int kind = 0; kind < 2; kind++) {
            for (int i = 0; i < LENGTH; i++)
                x[i] = (float)(i % 5);
            x[at] = kind ? INFINITY : NAN;
            tarn_scope *scope = tarn_scope_open();
            assert_true(
                isnan(tarn_item(good(tarn_var(tarn_from_f32(x, TARN_SHAPE(LENGTH), CPU), TARN_ALL_AXES, 1, false)))));
            tarn_scope_close(scope);
        }
}

/* Every row's largest value stands at as many places as the row's number says, and gets that part of the row's
 * gradient. */
static void check_shares(int64_t rows, int64_t length, tarn_dtype dtype, bool padded)
{
    int64_t stride = length + (padded ? 5 : 0);
    float *x = floats(rows * stride), *g = floats(rows);
    for (int64_t i = 0; i < rows * stride; i++)
        x[i] = (float)(i * 7919 % 101) / 128;
    for (int64_t r = 0; r < rows; r++) {
        g[r] = (float)(r % 9) - 4;
        for (int64_t k = 0; k <= r % 5; k++)
            x[r * stride + (k * 3 + r) % length] = 1;
    }
    tarn_tensor *whole = good(tarn_cast(tarn_from_f32(x, TARN_SHAPE(rows, stride), CPU), dtype));
    tarn_tensor *leaf =
        good(tarn_requires_grad(tarn_detach(tarn_shrink(whole, TARN_SHAPE(0, 0), TARN_SHAPE(rows, length))), true));
    tarn_tensor *upstream = good(tarn_cast(tarn_from_f32(g, TARN_SHAPE(rows), CPU), dtype));
    assert_true(tarn_backward_from(good(tarn_max(leaf, TARN_AXES(1), false)), upstream, NULL));
    float *found = floats(rows * length);
    assert_true(tarn_read(good(tarn_cast(good(tarn_contiguous(tarn_grad(leaf))), TARN_F32)), found,
                          sizeof(float) * (size_t)(rows * length)));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < length; i++) {
            double share = x[r * stride + i] == 1 ? (double)g[r] / (double)(r % 5 + 1) : 0;
            if (fabs((double)found[r * length + i] - share) > 1e-6)
                fail_msg("%lld rows of %lld: element %lld of row %lld is %g, not %g", (long long)rows,
                         (long long)length, (long long)i, (long long)r, (double)found[r * length + i], share);
        }
    free(x), free(g), free(found);
}

static void the_gradient_of_max_is_shared_within_each_row(void **state)
{
    (void)state;
    static const int64_t lengths[] = {15, 16, 17, 31, 64, 1000, 1024, 4099, 32768, 32769};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        for (int kind = 0; kind < 4; kind++) {
            tarn_scope *scope = tarn_scope_open();
            check_shares(11, lengths[i], kind & 1 ? TARN_F64 : TARN_F32, kind & 2);
            tarn_scope_close(scope);
        }
}

/* From 32 MiB on, results are written past the caches. */
static void the_gradient_of_max_is_shared_in_large_results_too(void **state)
{
    (void)state;
    check_shares(2100, 4096, TARN_F32, false);
    check_shares(2100, 4099, TARN_F32, false);
}

static void where_nan_is_the_largest_all_gradients_of_the_row_are_nan(void **state)
{
    (void)state;
    enum { LENGTH = 40 };
    float x[2 * LENGTH], found[2 * LENGTH];
    for (int i = 0; i < 2 * LENGTH; i++)
        x[i] = (float)i;
    x[17] = NAN;
    tarn_tensor *leaf = good(tarn_requires_grad(tarn_from_f32(x, TARN_SHAPE(2, LENGTH), CPU), true));
    assert_true(tarn_backward_from(good(tarn_max(leaf, TARN_AXES(1), false)),
                                   good(tarn_ones(TARN_SHAPE(2), TARN_F32, CPU)), NULL));
    assert_true(tarn_read(tarn_grad(leaf), found, sizeof(found)));
    for (int i = 0; i < LENGTH; i++) {
        assert_true(isnan(found[i]));
        assert_true(found[LENGTH + i] == (i == LENGTH - 1 ? 1.0f : 0.0f));
    }
}

/* Factors in turn, which lead products far up and down within a row, and back: against the sum of logarithms. */
static void check_product(const float *factor, int factors, int64_t length)
{
    enum { ROWS = 2 };
    float *x = floats(ROWS * length);
    for (int64_t i = 0; i < ROWS * length; i++)
        x[i] = factor[i % factors] * (1 + (float)(i * 37 % 101) * 0x1p-10f);
    tarn_tensor *y = good(tarn_prod(tarn_from_f32(x, TARN_SHAPE(ROWS, length), CPU), TARN_AXES(1), false));
    for (int64_t r = 0; r < ROWS; r++) {
        double mantissa = 1;
        int exponent = 0, more;
        for (int64_t i = 0; i < length; i++) {
            mantissa = frexp(mantissa * (double)x[r * length + i], &more);
            exponent += more;
        }
        double found = tarn_item_at(y, TARN_SHAPE(r)), expected = ldexp(mantissa, exponent);
        bool special = expected == 0 || !isfinite((float)expected) || fabs(expected) < 0x1p-126;
        if (special ? !((float)expected == (float)found || (isnan(expected) && isnan(found)) ||
                        fabs(expected - found) <= 0x1p-149)
                    : fabs(found / expected - 1) > 1e-6)
            fail_msg("rows of %lld, first factor %g: the product is %a, not %a", (long long)length, (double)factor[0],
                     found, expected);
    }
    free(x);
}

static void products_may_leave_the_range_of_f32_on_the_way(void **state)
{
    (void)state;
    static const struct {
        float factor[4];
        int64_t longest; /* up to here the products of lanes stay within f64 */
    } kinds[] = {
        {{0.5f, 1.4f, 0.9f, 1.2f}, 5000},
        {{-0.5f, 1.8f, -1.1f, 1}, 5000},
        {{0, 1, 1.2f, 0.8f}, 5000},
        {{INFINITY, 1, 0.5f, 1}, 5000},
        {{NAN, 1, 1, 1}, 5000},
        {{0, INFINITY, 1, 1}, 5000},
        {{1e15f, 1e15f, 1e-15f, 1e-15f}, 128},
        {{1e-15f, 1e-15f, 1e15f, 1e15f}, 128},
        {{1e-9f, 1, 1, 1e9f}, 128},
        {{0x1p-99f, 0x1p99f, 1, 1}, 65},
        {{0x1p-101f, 0x1p101f, 1, 1}, 65},
    };
    static const int64_t lengths[] = {4, 60, 64, 65, 100, 128, 1000, 1024, 4096, 5000};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]) && lengths[i] <= kinds[k].longest; i++) {
            tarn_scope *scope = tarn_scope_open();
            check_product(kinds[k].factor, 4, lengths[i]);
            check_product(kinds[k].factor, 3, lengths[i] < 65 ? lengths[i] : 65);
            tarn_scope_close(scope);
        }
}

/* The gradient of one reduction of x, rows of `length`, by what comes from above. */
static float *gradient_of(tarn_tensor *(*reduce)(tarn_tensor *), const float *x, const float *above, int64_t rows,
                          int64_t length)
{
    tarn_tensor *leaf = good(tarn_requires_grad(tarn_from_f32(x, TARN_SHAPE(rows, length), CPU), true));
    assert_true(tarn_backward_from(good(reduce(leaf)), tarn_from_f32(above, TARN_SHAPE(rows), CPU), NULL));
    float *found = floats(rows * length);
    assert_true(tarn_read(tarn_grad(leaf), found, sizeof(float) * (size_t)(rows * length)));
    return found;
}

static tarn_tensor *product_of_rows(tarn_tensor *x)
{
    return tarn_prod(x, TARN_AXES(1), false);
}

static tarn_tensor *variance_of_rows(tarn_tensor *x)
{
    return tarn_var(x, TARN_AXES(1), 1, false);
}

/* Rows with no zero, one, two, and one with an infinity; long ones are worked on in pieces. */
static void the_gradient_of_a_product_is_that_of_the_others(void **state)
{
    (void)state;
    enum { ROWS = 4 };
    static const int64_t lengths[] = {63, 64, 66, 1023, 16384, 40001};
    static const float above[ROWS] = {2, -3, 5, 0.5f};
    for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
        int64_t length = lengths[k];
        float *x = floats(ROWS * length);
        for (int64_t i = 0; i < ROWS * length; i++)
            x[i] = i % 2 ? 1.25f + (float)(i * 37 % 101) * 0x1p-12f : -0.79f;
        x[length + 5] = 0;
        x[2 * length + 7] = x[2 * length + length - 1] = 0;
        x[3 * length + 9] = INFINITY;
        float *found = gradient_of(product_of_rows, x, above, ROWS, length);
        for (int64_t r = 0; r < ROWS; r++) {
            double product = 1;
            for (int64_t i = 0; i < length; i++)
                product *= x[r * length + i] == 0 ? 1 : (double)x[r * length + i];
            for (int64_t i = 0; i < length; i++) {
                double at = (double)x[r * length + i], expected = r == 0 || r == 3    ? product / at
                                                                  : r == 1 && at == 0 ? product
                                                                                      : 0;
                double got = (double)found[r * length + i];
                expected = (double)(float)(expected * (double)above[r]);
                if (isnan(expected) ? !isnan(got) : got != expected && !(fabs(got - expected) <= 3e-7 * fabs(expected)))
                    fail_msg("row %lld of %lld, element %lld: %a, not %a", (long long)r, (long long)length,
                             (long long)i, got, expected);
            }
        }
        free(x), free(found);
    }
}

static void the_gradient_of_a_variance_is_the_distance_from_the_mean(void **state)
{
    (void)state;
    enum { ROWS = 3 };
    static const int64_t lengths[] = {63, 64, 66, 1023, 16384, 40001};
    static const float above[ROWS] = {2, -3, 0.5f};
    for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
        int64_t length = lengths[k];
        float *x = floats(ROWS * length);
        for (int64_t i = 0; i < ROWS * length; i++)
            x[i] = (float)(i * 7919 % 1009) / 256 - 1;
        float *found = gradient_of(variance_of_rows, x, above, ROWS, length);
        for (int64_t r = 0; r < ROWS; r++) {
            double mean = 0;
            for (int64_t i = 0; i < length; i++)
                mean += (double)x[r * length + i] / (double)length;
            for (int64_t i = 0; i < length; i++) {
                double factor = 2 * (double)above[r] / (double)(length - 1),
                       expected = ((double)x[r * length + i] - mean) * factor;
                assert_true(fabs((double)found[r * length + i] - expected) <= 1e-6 * fabs(factor));
            }
        }
        free(x), free(found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_variance_does_not_depend_on_how_a_row_begins),
        in_scope(a_nan_anywhere_in_a_row_is_its_variance),
        in_scope(the_gradient_of_max_is_shared_within_each_row),
        in_scope(the_gradient_of_max_is_shared_in_large_results_too),
        in_scope(products_may_leave_the_range_of_f32_on_the_way),
        in_scope(where_nan_is_the_largest_all_gradients_of_the_row_are_nan),
        in_scope(the_gradient_of_a_product_is_that_of_the_others),
        in_scope(the_gradient_of_a_variance_is_the_distance_from_the_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
