/* test_batchnorm.c: batchnorm and groupnorm: values against their formulas in f64, layouts without copies, running
 * statistics, gradients. TARN_TEST_DEVICE names the device; the CPU otherwise. */
#include "../support/check.h"

static tarn_device device;

static tarn_tensor *normal(tarn_shape shape, tarn_dtype dtype)
{
    return good(tarn_normal(shape, 0.5, 2, dtype, device));
}

/* A vector on the device. */
#define numbers(...) good(tarn_to(vector(__VA_ARGS__), device))

/* The same elements with the channels last in memory. */
static tarn_tensor *channels_last(tarn_tensor *x)
{
    return good(tarn_permute(good(tarn_contiguous(tarn_permute(x, TARN_AXES(0, 2, 3, 1)))), TARN_AXES(0, 3, 1, 2)));
}

/* x [N, C, L] row-major: mean and variance of a set of its elements: all of channel c (part < 0), or channels [c, c +
 * members) of one part. */
static void measure(const double *x, int64_t parts, int64_t channels, int64_t length, int64_t part, int64_t c,
                    int64_t members, double *mean, double *variance)
{
    for (int pass = 0; pass < 2; pass++) {
        long double sum = 0;
        int64_t count = 0;
        for (int64_t n = part < 0 ? 0 : part; n < (part < 0 ? parts : part + 1); n++)
            for (int64_t k = c; k < c + members; k++)
                for (int64_t i = 0; i < length; i++, count++) {
                    double value = x[(n * channels + k) * length + i];
                    sum += pass == 0 ? (long double)value : ((long double)value - *mean) * ((long double)value - *mean);
                }
        *(pass == 0 ? mean : variance) = (double)(sum / (long double)count);
    }
}

/* groups 0: batchnorm. */
static void assert_norm(tarn_tensor *x, int64_t groups, tarn_tensor *weight, tarn_tensor *bias, double tolerance)
{
    tarn_tensor *y =
        good(groups ? tarn_groupnorm(x, groups, weight, bias, 1e-5)
                    : tarn_batchnorm(x, weight, bias, NULL, NULL, &(tarn_batchnorm_options){.training = true}));
    int64_t parts = tarn_size(x, 0), channels = tarn_size(x, 1), length = tarn_count(x) / parts / channels,
            members = groups ? channels / groups : 1;
    double *vx = values_of(x), *vy = values_of(y), *vw = weight ? values_of(weight) : NULL,
           *vb = bias ? values_of(bias) : NULL, *means = malloc(sizeof(double) * (size_t)(2 * channels)),
           *variances = means + channels;
    assert_non_null(means);
    for (int64_t n = 0; n < parts; n++)
        for (int64_t c = 0; c < channels; c++) {
            int64_t first = c / members * members; /* channel of the set */
            if (groups ? c == first : n == 0)
                measure(vx, parts, channels, length, groups ? n : -1, first, members, &means[first], &variances[first]);
            double mean = means[first], deviation = sqrt(variances[first] + 1e-5);
            for (int64_t i = 0; i < length; i++) {
                int64_t at = (n * channels + c) * length + i;
                double expected = (vx[at] - mean) / deviation * (vw ? vw[c] : 1) + (vb ? vb[c] : 0);
                if (!(fabs(vy[at] - expected) <= tolerance * (1 + fabs(expected))))
                    fail_msg("part %d, channel %d, element %d is %.9g, not %.9g", (int)n, (int)c, (int)i, vy[at],
                             expected);
            }
        }
    for (int i = 0; i < tarn_rank(x); i++) /* the layout is kept */
        assert_true(tarn_size(x, i) == 1 || tarn_stride_of(x, i) == tarn_stride_of(y, i));
    free(vx), free(vy), free(vw), free(vb), free(means);
}

static void channels_are_normalised_in_every_dtype_and_layout(void **state)
{
    (void)state;
    static const double tolerance[] = {3e-6, 1e-13, 8e-3, 1e-3};
    static const int64_t shapes[][4] = {{3, 4, 5, 6},   {2, 6, 1, 1},    {40, 2, 1, 1}, {2, 2, 40, 50},
                                        {5, 300, 3, 3}, {2, 10, 64, 64}, {700, 8, 2, 2}};
    for (tarn_dtype dtype = TARN_F32; dtype <= TARN_F16; dtype++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            tarn_scope *scope = tarn_scope_open();
            const int64_t *s = shapes[i];
            tarn_tensor *x = normal(TARN_SHAPE(s[0], s[1], s[2], s[3]), dtype), *last = channels_last(x);
            tarn_tensor *w = normal(TARN_SHAPE(s[1]), dtype),
                        *b = normal(TARN_SHAPE(s[1]), tarn_dtype_size(dtype) == 2 ? TARN_F32 : dtype);
            for (int64_t groups = 0; groups <= 2; groups++) {
                assert_norm(x, groups, w, b, tolerance[dtype]);
                assert_norm(last, groups, w, b, tolerance[dtype]);
                assert_norm(last, groups, NULL, NULL, tolerance[dtype]);
            }
            tarn_scope_close(scope);
        }
}

static void no_layout_is_copied_forward_or_backward(void **state)
{
    (void)state;
    for (int last = 0; last < 2; last++)
        for (int groups = 0; groups < 2; groups++) {
            tarn_tensor *x = normal(TARN_SHAPE(4, 6, 7, 9), TARN_F32), *g = normal(TARN_SHAPE(4, 6, 7, 9), TARN_F32);
            x = good(tarn_detach(last ? channels_last(x) : x));
            g = last ? channels_last(g) : g;
            tarn_tensor *inside = good(tarn_mul(tarn_requires_grad(x, true), tarn_scalar(1)));
            tarn_stats_reset();
            tarn_tensor *y = good(
                groups ? tarn_groupnorm(inside, 3, NULL, NULL, 1e-5)
                       : tarn_batchnorm(inside, NULL, NULL, NULL, NULL, &(tarn_batchnorm_options){.training = true}));
            assert_int_equal(tarn_stats().kernels, 1);
            assert_true(tarn_backward_from(y, g, NULL));
            assert_int_equal(tarn_stats().layout_copies, 0);
        }
}

static void a_mean_far_above_the_deviation_costs_no_digits(void **state)
{
    (void)state;
    for (int last = 0; last < 2; last++)
        for (int far = 0; far < 2; far++) {
            tarn_tensor *x =
                good(tarn_add(normal(TARN_SHAPE(16, 4, 20, 20), TARN_F32), tarn_scalar(far ? -30000 : 3000)));
            if (far) /* one outlier at the front does not decide */
                good(tarn_fill_inplace(tarn_slice(tarn_slice(tarn_slice(x, 0, 0, 1), 2, 0, 1), 3, 0, 1), 0));
            x = last ? channels_last(x) : x;
            assert_norm(x, 0, NULL, NULL, 1e-5);
            assert_norm(x, 2, NULL, NULL, 1e-5);
        }
}

/* Enough for several turns of each thread of a GPU, and for parts that a whole block puts together; channels that fill
 * no tile. */
static void many_positions_are_measured_as_exactly_as_few(void **state)
{
    (void)state;
    for (int is_half = 0; is_half < 2; is_half++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *x = normal(is_half ? TARN_SHAPE(1, 132, 280, 130) : TARN_SHAPE(1, 16, 912, 301), TARN_F32);
        x = good(tarn_cast(good(tarn_add(x, tarn_scalar(20))), is_half ? TARN_BF16 : TARN_F32));
        assert_norm(channels_last(x), 0, NULL, NULL, is_half ? 8e-3 : 6e-6);
        tarn_scope_close(scope);
    }
}

static void squares_may_leave_the_range_of_f32(void **state)
{
    (void)state;
    for (int last = 0; last < 2; last++)
        for (int small = 0; small < 2; small++) {
            tarn_tensor *x =
                good(tarn_mul(normal(TARN_SHAPE(9, 8, 20, 20), TARN_F32), tarn_scalar(small ? 1e-18 : 1e16)));
            assert_norm(last ? channels_last(x) : x, 0, NULL, NULL, 1e-5);
        }
}

/* Two steps by torch's rule, written out. */
static void training_moves_the_running_statistics_and_evaluation_uses_them(void **state)
{
    (void)state;
    for (tarn_dtype dtype = TARN_F32; dtype <= TARN_BF16; dtype++) {
        tarn_tensor *mean = good(tarn_zeros(TARN_SHAPE(3), dtype == TARN_F64 ? TARN_F64 : TARN_F32, device));
        tarn_tensor *variance = good(tarn_ones(TARN_SHAPE(3), dtype == TARN_F64 ? TARN_F64 : TARN_F32, device));
        double expected[2][3] = {{0, 0, 0}, {1, 1, 1}};
        tarn_tensor *x = NULL;
        for (int step = 0; step < 2; step++) {
            x = normal(TARN_SHAPE(4, 3, 5), dtype);
            good(tarn_batchnorm(x, NULL, NULL, mean, variance,
                                &(tarn_batchnorm_options){.training = true, .momentum = 0.3}));
            double *values = values_of(x);
            for (int c = 0; c < 3; c++) {
                double m, v;
                measure(values, 4, 3, 5, -1, c, 1, &m, &v);
                expected[0][c] = 0.7 * expected[0][c] + 0.3 * m;
                expected[1][c] = 0.7 * expected[1][c] + 0.3 * v * 20 / 19;
            }
            free(values);
        }
        assert_values(mean, 1e-6, expected[0][0], expected[0][1], expected[0][2]);
        assert_values(variance, 1e-6, expected[1][0], expected[1][1], expected[1][2]);
        tarn_tensor *y = good(tarn_batchnorm(x, NULL, NULL, mean, variance, &(tarn_batchnorm_options){.epsilon = 0.1}));
        double value = tarn_item_at(x, TARN_SHAPE(2, 1, 3));
        double wanted = (value - expected[0][1]) / sqrt(expected[1][1] + 0.1);
        assert_true(fabs(tarn_item_at(y, TARN_SHAPE(2, 1, 3)) - wanted) < (dtype == TARN_BF16 ? 2e-2 : 1e-5));
        assert_values(mean, 1e-6, expected[0][0], expected[0][1], expected[0][2]); /* evaluation leaves them */
    }
}

typedef struct norm_case {
    int64_t groups; /* 0: batchnorm */
    bool training, last;
    tarn_tensor *mean, *variance;
} norm_case;

static tarn_tensor *run_norm(tarn_tensor *const *in, int count, void *ctx)
{
    const norm_case *n = ctx;
    tarn_tensor *x = n->last ? tarn_permute(in[0], TARN_AXES(0, 3, 1, 2)) : in[0];
    tarn_tensor *w = count > 1 ? in[1] : NULL, *b = count > 2 ? in[2] : NULL;
    return n->groups ? tarn_groupnorm(x, n->groups, w, b, 1e-5)
                     : tarn_batchnorm(x, w, b, n->training ? NULL : n->mean, n->training ? NULL : n->variance,
                                      &(tarn_batchnorm_options){.training = n->training});
}

static void gradients_agree_with_differences_in_both_layouts(void **state)
{
    (void)state;
    /* each runs a kernel for every element, which a sanitizer makes long */
    const bool quick = getenv("TARN_TEST_QUICK") != NULL;
    const int64_t images = quick ? 1 : 3, high = quick ? 2 : 4;
    for (int last = 0; last < 2; last++) {
        tarn_tensor *in[] = {normal(last ? TARN_SHAPE(images, high, 5, 6) : TARN_SHAPE(images, 6, high, 5), TARN_F64),
                             normal(TARN_SHAPE(6), TARN_F64), normal(TARN_SHAPE(6), TARN_F64)};
        for (int k = 0; k < 3; k++)
            good(tarn_requires_grad(in[k], true));
        norm_case cases[] = {{.training = true}, {.training = false}, {.groups = 1}, {.groups = 3}, {.groups = 6}};
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
            for (int count = quick ? 3 : 1; count <= 3; count++) {
                cases[i].last = last;
                cases[i].mean = tarn_full(TARN_SHAPE(6), 0.3, TARN_F64, device);
                cases[i].variance = tarn_full(TARN_SHAPE(6), 2, TARN_F64, device);
                tarn_gradcheck(run_norm, &cases[i], in, count, NULL);
                assert_ok();
            }
    }
}

static void gradients_in_f32_are_those_in_f64(void **state)
{
    (void)state;
    for (int last = 0; last < 2; last++)
        for (int groups = 0; groups < 2; groups++) {
            tarn_tensor *narrow[] = {normal(last ? TARN_SHAPE(40, 9, 10, 12) : TARN_SHAPE(40, 12, 9, 10), TARN_F32),
                                     normal(TARN_SHAPE(12), TARN_F32), normal(TARN_SHAPE(12), TARN_F32)};
            tarn_tensor *g = normal(TARN_SHAPE(40, 12, 9, 10), TARN_F32), *wide[3];
            narrow[0] = good(tarn_add(narrow[0], tarn_scalar(100)));
            for (int k = 0; k < 3; k++) {
                wide[k] = good(tarn_requires_grad(good(tarn_cast(narrow[k], TARN_F64)), true));
                good(tarn_requires_grad(narrow[k], true));
            }
            norm_case one = {.groups = groups ? 4 : 0, .training = true, .last = last};
            assert_true(tarn_backward_from(run_norm(narrow, 3, &one), g, NULL));
            assert_true(tarn_backward_from(run_norm(wide, 3, &one), good(tarn_cast(g, TARN_F64)), NULL));
            for (int k = 0; k < 3; k++)
                assert_close(good(tarn_cast(good(tarn_grad(narrow[k])), TARN_F64)), good(tarn_grad(wide[k])), 1e-5);
        }
}

/* Small whole numbers, `times` each, with the channels last in memory. */
static tarn_tensor *whole_numbers(tarn_shape shape, tarn_dtype dtype, double times)
{
    tarn_tensor *x = good(tarn_cast(normal(shape, TARN_F32), TARN_I32));
    return channels_last(good(tarn_cast(good(tarn_mul(good(tarn_cast(x, TARN_F32)), tarn_scalar(times))), dtype)));
}

/* With a deviation of 2 all numbers are whole, and so are all sums: one position left out or taken twice shows. */
static void sums_of_many_whole_numbers_are_exact(void **state)
{
    (void)state;
    tarn_shape shape = TARN_SHAPE(1, 16, 912, 301);
    for (int is_half = 0; is_half < 2; is_half++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_dtype dtype = is_half ? TARN_BF16 : TARN_F32;
        tarn_tensor *x = good(tarn_requires_grad(whole_numbers(shape, dtype, 2), true)),
                    *g = whole_numbers(shape, dtype, 1);
        tarn_tensor *w = good(tarn_requires_grad(good(tarn_full(TARN_SHAPE(16), 2, TARN_F32, device)), true));
        tarn_tensor *b = good(tarn_requires_grad(good(tarn_zeros(TARN_SHAPE(16), TARN_F32, device)), true));
        tarn_tensor *zero = good(tarn_zeros(TARN_SHAPE(16), TARN_F32, device)),
                    *three = good(tarn_full(TARN_SHAPE(16), 3, TARN_F32, device));
        tarn_tensor *y = good(tarn_batchnorm(x, w, b, zero, three, &(tarn_batchnorm_options){.epsilon = 1}));
        assert_close(y, x, 0);
        assert_true(tarn_backward_from(y, g, NULL));
        assert_close(good(tarn_grad(x)), g, 0);
        tarn_tensor *g_wide = good(tarn_cast(g, TARN_F32)),
                    *half = good(tarn_mul(tarn_cast(tarn_detach(x), TARN_F32), tarn_scalar(0.5)));
        assert_close(good(tarn_grad(b)), good(tarn_sum(g_wide, TARN_AXES(0, 2, 3), false)), 0);
        assert_close(good(tarn_grad(w)), good(tarn_sum(tarn_mul(g_wide, half), TARN_AXES(0, 2, 3), false)), 0);
        tarn_scope_close(scope);
    }
}

static void infinite_elements_do_not_spoil_the_gradient_of_fixed_statistics(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(good(tarn_full(TARN_SHAPE(2, 1), INFINITY, TARN_F32, device)), true));
    tarn_tensor *y =
        good(tarn_batchnorm(x, NULL, NULL, numbers(0), numbers(3), &(tarn_batchnorm_options){.epsilon = 1}));
    assert_true(tarn_backward_from(y, good(tarn_ones(TARN_SHAPE(2, 1), TARN_F32, device)), NULL));
    assert_values(good(tarn_grad(x)), 1e-6, 0.5, 0.5);
}

static void empty_tensors_have_empty_results_and_zero_gradients(void **state)
{
    (void)state;
    tarn_tensor *w = good(tarn_requires_grad(numbers(1, 2), true)), *b = good(tarn_requires_grad(numbers(1, 2), true));
    tarn_tensor *x = normal(TARN_SHAPE(0, 2, 3), TARN_F32), *g = normal(TARN_SHAPE(0, 2, 3), TARN_F32);
    tarn_tensor *y = good(tarn_batchnorm(x, w, b, numbers(0, 0), numbers(1, 1), NULL));
    assert_shape(y, 0, 2, 3);
    assert_true(tarn_backward_from(y, g, NULL));
    assert_values(good(tarn_grad(w)), 0, 0, 0);
    assert_true(tarn_backward_from(good(tarn_groupnorm(x, 2, w, b, 1e-5)), g, NULL));
    assert_values(good(tarn_grad(b)), 0, 0, 0);
    assert_shape(good(tarn_groupnorm(normal(TARN_SHAPE(2, 4, 0), TARN_F32), 2, NULL, NULL, 1e-5)), 2, 4, 0);
}

static void wrong_operands_are_errors_that_name_them(void **state)
{
    (void)state;
    tarn_batchnorm_options training = {.training = true};
    tarn_tensor *x = normal(TARN_SHAPE(5, 3, 4), TARN_F32), *three = numbers(1, 2, 3);
    assert_null(tarn_batchnorm(x, numbers(1, 2), NULL, NULL, NULL, &training));
    assert_error(TARN_ERROR_SHAPE, "batchnorm: weight [2] does not fit x [5, 3, 4]: it must be [3]");
    assert_null(tarn_batchnorm(x, NULL, NULL, NULL, NULL, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "batchnorm: without .training it needs running_mean and running_var");
    assert_null(tarn_batchnorm(x, NULL, NULL, three, NULL, &training));
    assert_error(TARN_ERROR_ARGUMENT, "batchnorm: running_var is NULL and running_mean is not");
    assert_null(tarn_batchnorm(normal(TARN_SHAPE(1, 3), TARN_F32), NULL, NULL, NULL, NULL, &training));
    assert_error(TARN_ERROR_SHAPE, "batchnorm: x [1, 3] has 1 value per channel; training needs at least 2");
    assert_null(tarn_batchnorm(x, NULL, NULL, three, good(tarn_requires_grad(numbers(1, 2, 3), true)), &training));
    assert_error(TARN_ERROR_ARGUMENT, "running_var needs a gradient");
    assert_null(tarn_batchnorm(x, NULL, NULL, three, good(tarn_expand(numbers(1), TARN_SHAPE(3))), &training));
    assert_error(TARN_ERROR_SHAPE, "running_var is expanded");
    assert_null(tarn_batchnorm(x, good(tarn_cast(three, TARN_F64)), NULL, NULL, NULL, &training));
    assert_error(TARN_ERROR_DTYPE, "x is f32 and weight is f64");
    assert_null(tarn_groupnorm(x, 2, NULL, NULL, 1e-5));
    assert_error(TARN_ERROR_ARGUMENT, "groupnorm: 2 groups do not divide the 3 channels of x [5, 3, 4]");
    assert_null(tarn_groupnorm(three, 1, NULL, NULL, 1e-5));
    assert_error(TARN_ERROR_SHAPE, "groupnorm: x [3] has no channels");
}

int main(void)
{
    device = test_device("cpu");
    cmocka_set_skip_filter(getenv("TARN_TEST_SKIP"));
    const struct CMUnitTest tests[] = {
        in_scope(channels_are_normalised_in_every_dtype_and_layout),
        in_scope(no_layout_is_copied_forward_or_backward),
        in_scope(a_mean_far_above_the_deviation_costs_no_digits),
        in_scope(many_positions_are_measured_as_exactly_as_few),
        in_scope(squares_may_leave_the_range_of_f32),
        in_scope(training_moves_the_running_statistics_and_evaluation_uses_them),
        in_scope(gradients_agree_with_differences_in_both_layouts),
        in_scope(gradients_in_f32_are_those_in_f64),
        in_scope(sums_of_many_whole_numbers_are_exact),
        in_scope(infinite_elements_do_not_spoil_the_gradient_of_fixed_statistics),
        in_scope(empty_tensors_have_empty_results_and_zero_gradients),
        in_scope(wrong_operands_are_errors_that_name_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
