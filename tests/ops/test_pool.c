/* test_pool.c: pooling beyond its cases: ties, NaN, empty windows, layouts, planes that are cut into bands. */
#include "../support/pools.h"

#define CPU tarn_device_cpu()

static tarn_tensor *channels_last(tarn_tensor *x)
{
    return good(tarn_permute(tarn_contiguous(tarn_permute(x, TARN_AXES(0, 2, 3, 1))), TARN_AXES(0, 3, 1, 2)));
}

static void the_first_of_equal_elements_gets_the_gradient(void **state)
{
    (void)state;
    tarn_tensor *x = tarn_requires_grad(good(tarn_ones(TARN_SHAPE(1, 1, 2, 4), TARN_F32, CPU)), true);
    tarn_tensor *y = good(tarn_max_pool2d(x, &(tarn_pool2d_options){.kernel = {2, 2}}));
    expect(y, TARN_SHAPE(1, 1, 1, 2), VALUES(1, 1));
    expect(grad_from(y, x), TARN_SHAPE(1, 1, 2, 4), VALUES(1, 0, 2, 0, 0, 0, 0, 0));
}

static void overlapping_windows_add_up(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(1, 1, 3, 3));
    tarn_tensor *y =
        good(tarn_max_pool2d(x, &(tarn_pool2d_options){.kernel = {2, 2}, .stride = {1, 1}, .padding = {1, 1}}));
    expect(y, TARN_SHAPE(1, 1, 4, 4), VALUES(0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 8, 6, 7, 8, 8));
    expect(grad_from(y, x), TARN_SHAPE(1, 1, 3, 3), VALUES(1, 2, 7, 5, 6, 15, 9 + 13, 10 + 14, 11 + 12 + 15 + 16));
}

static void nan_is_larger_than_everything(void **state)
{
    (void)state;
    tarn_tensor *x =
        tarn_requires_grad(tarn_reshape(vector(INFINITY, NAN, 3, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY),
                                        TARN_SHAPE(1, 2, 2, 2)),
                           true);
    tarn_tensor *y = good(tarn_max_pool2d(x, &(tarn_pool2d_options){.kernel = {2, 2}}));
    expect(y, TARN_SHAPE(1, 2, 1, 1), VALUES(NAN, -INFINITY));
    assert_true(tarn_backward_from(y, tarn_ones(TARN_SHAPE(1, 2, 1, 1), TARN_F32, CPU), NULL));
    (void)state;
}

/* With a dilation a window may lie around a small image: nothing is the largest, and nothing gets a gradient. */
static void a_window_that_sees_nothing_is_minus_infinity(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(1, 1, 1, 1));
    tarn_tensor *y =
        good(tarn_max_pool2d(x, &(tarn_pool2d_options){.kernel = {2, 2}, .padding = {1, 1}, .dilation = {2, 2}}));
    expect(y, TARN_SHAPE(1, 1, 1, 1), VALUES(-INFINITY));
    expect(grad_from(y, x), TARN_SHAPE(1, 1, 1, 1), VALUES(0));
}

static void averages_count_padding_or_do_not(void **state)
{
    (void)state;
    tarn_tensor *x = counted_leaf(TARN_SHAPE(1, 1, 2, 2));
    tarn_pool2d_options options = {.kernel = {2, 2}, .stride = {2, 2}, .padding = {1, 1}};
    expect(good(tarn_avg_pool2d(x, &options)), TARN_SHAPE(1, 1, 2, 2), VALUES(0, 0.25, 0.5, 0.75));
    options.exclude_padding = true;
    tarn_tensor *y = good(tarn_avg_pool2d(x, &options));
    expect(y, TARN_SHAPE(1, 1, 2, 2), VALUES(0, 1, 2, 3));
    expect(grad_from(y, x), TARN_SHAPE(1, 1, 2, 2), VALUES(1, 2, 3, 4));
    expect(good(tarn_global_avg_pool2d(x)), TARN_SHAPE(1, 1, 1, 1), VALUES(1.5));
}

/* Planes of 300 by 700 are cut into bands backward; channels last takes another way through the kernels. */
static void both_layouts_agree_on_large_images(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(2, 3, 300, 700), 0, 1, TARN_F32, CPU)), *last = channels_last(x);
    tarn_requires_grad(x, true), tarn_requires_grad(last, true);
    const tarn_pool2d_options threes = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
                              twos = {.kernel = {2, 2}};
    for (int trial = 0; trial < 4; trial++) {
        const bool average = trial % 2;
        const tarn_pool2d_options options = trial < 2 ? threes : twos;
        tarn_stats_reset();
        tarn_tensor *y = good(average ? tarn_avg_pool2d(x, &options) : tarn_max_pool2d(x, &options));
        tarn_tensor *y_last = good(average ? tarn_avg_pool2d(last, &options) : tarn_max_pool2d(last, &options));
        assert_int_equal(tarn_stride_of(y_last, 1), 1);
        assert_int_equal(tarn_stats().layout_copies, 0);
        assert_close(y_last, y, average ? 1e-6 : 0);
        tarn_tensor *g = good(tarn_normal(tarn_shape_of(y), 0, 1, TARN_F32, CPU));
        assert_true(tarn_backward_from(y, g, NULL) && tarn_backward_from(y_last, channels_last(g), NULL));
        assert_close(tarn_grad(last), tarn_grad(x), 1e-6);
        tarn_zero_grad(x), tarn_zero_grad(last);
    }
}

static void windows_of_all_sizes_have_their_largest_elements(void **state)
{
    (void)state;
    check_windows(CPU, true);
}

static void windows_side_by_side_have_their_averages(void **state)
{
    (void)state;
    check_averages(CPU, true);
}

static void errors_say_what_does_not_fit(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(1, 2, 3, 4));
    assert_null(tarn_max_pool2d(x, &(tarn_pool2d_options){.kernel = {4, 2}}));
    assert_error_about(TARN_ERROR_SHAPE, "max_pool2d: a window of 4 rows", "x [1, 2, 3, 4]");
    assert_null(tarn_avg_pool2d(x, &(tarn_pool2d_options){.kernel = {2, 2}, .padding = {0, 2}}));
    assert_error(TARN_ERROR_ARGUMENT, "avg_pool2d: padding 2 is more than half of a kernel of 2");
    assert_null(tarn_avg_pool2d(x, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "must give a kernel");
    assert_null(tarn_max_pool2d(x, &(tarn_pool2d_options){.kernel = {50000, 50000}, .padding = {25000, 25000}}));
    assert_error(TARN_ERROR_ARGUMENT, "max_pool2d: a kernel of 50000 x 50000 has more than 2147483647 elements");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_first_of_equal_elements_gets_the_gradient),
        in_scope(overlapping_windows_add_up),
        in_scope(nan_is_larger_than_everything),
        in_scope(a_window_that_sees_nothing_is_minus_infinity),
        in_scope(averages_count_padding_or_do_not),
        in_scope(both_layouts_agree_on_large_images),
        in_scope(windows_of_all_sizes_have_their_largest_elements),
        in_scope(windows_side_by_side_have_their_averages),
        in_scope(errors_say_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
