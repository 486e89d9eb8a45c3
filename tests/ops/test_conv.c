/* test_conv.c: convolution beyond its cases: values by hand, layouts, gradients that add up, sizes that are cut into
 * bands and shares. */
#include "../support/check.h"

#define CPU tarn_device_cpu()

static tarn_tensor *normal(tarn_shape shape, tarn_dtype dtype)
{
    return good(tarn_normal(shape, 0, 1, dtype, CPU));
}

/* [N, C, H, W] that lies in memory as [N, H, W, C]. */
static tarn_tensor *channels_last(tarn_tensor *x)
{
    tarn_tensor *moved = good(tarn_contiguous(tarn_permute(x, TARN_AXES(0, 2, 3, 1))));
    return good(tarn_permute(moved, TARN_AXES(0, 3, 1, 2)));
}

static bool is_channels_last(tarn_tensor *x)
{
    return tarn_stride_of(x, 1) == 1 && tarn_stride_of(x, 3) == tarn_size(x, 1);
}

static void values_by_hand(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(1, 1, 3, 3)),
                *w = good(tarn_reshape(vector(1, 2, 3, 4), TARN_SHAPE(1, 1, 2, 2)));
    expect(good(tarn_conv2d(x, w, NULL, NULL)), TARN_SHAPE(1, 1, 2, 2), VALUES(27, 37, 57, 67));
    expect(good(tarn_conv2d(x, w, vector(1), &(tarn_conv2d_options){.stride = {2, 2}, .padding = {1, 1}})),
           TARN_SHAPE(1, 1, 2, 2), VALUES(1, 12, 31, 68));
    expect(good(tarn_conv2d(x, w, NULL, &(tarn_conv2d_options){.dilation = {2, 2}})), TARN_SHAPE(1, 1, 1, 1),
           VALUES(54));
}

static void the_result_has_the_layout_of_x_and_nothing_is_copied(void **state)
{
    (void)state;
    tarn_tensor *x = normal(TARN_SHAPE(2, 6, 9, 8), TARN_F32), *last = channels_last(x);
    tarn_tensor *w = normal(TARN_SHAPE(12, 6, 3, 3), TARN_F32), *b = normal(TARN_SHAPE(12), TARN_F32);
    tarn_conv2d_options options = {.padding = {1, 1}};
    tarn_requires_grad(x, true), tarn_requires_grad(last, true), tarn_requires_grad(w, true);
    tarn_stats_reset();
    tarn_tensor *y = good(tarn_conv2d(x, w, b, &options)), *y_last = good(tarn_conv2d(last, w, b, &options));
    assert_true(tarn_backward(tarn_sum(tarn_square(y), TARN_ALL_AXES, false)));
    assert_true(tarn_backward(tarn_sum(tarn_square(y_last), TARN_ALL_AXES, false)));
    assert_int_equal(tarn_stats().layout_copies, 0);
    assert_int_equal(tarn_stride_of(y, 3), 1);
    assert_true(is_channels_last(y_last));
    assert_close(y_last, y, 1e-6);
    assert_close(tarn_grad(last), tarn_grad(x), 1e-5);
}

/* A weight that is used twice collects both gradients, also on top of what an earlier backward left. */
static void gradients_of_the_weight_add_up(void **state)
{
    (void)state;
    tarn_tensor *x = normal(TARN_SHAPE(2, 3, 6, 5), TARN_F64),
                *w = tarn_requires_grad(normal(TARN_SHAPE(4, 3, 3, 3), TARN_F64), true);
    assert_true(tarn_backward(tarn_sum(tarn_conv2d(x, w, NULL, NULL), TARN_ALL_AXES, false)));
    tarn_tensor *once = good(tarn_clone(tarn_grad(w)));
    assert_true(tarn_backward(
        tarn_sum(tarn_add(tarn_conv2d(x, w, NULL, NULL), tarn_conv2d(x, w, NULL, NULL)), TARN_ALL_AXES, false)));
    assert_close(tarn_grad(w), good(tarn_mul(once, tarn_scalar(3))), 1e-12);
}

/* The same convolution as a product: every window laid out as a row. */
static tarn_tensor *as_product(tarn_tensor *x, tarn_tensor *w, int64_t stride)
{
    int64_t rows = (tarn_size(x, 2) - tarn_size(w, 2)) / stride + 1,
            columns = (tarn_size(x, 3) - tarn_size(w, 3)) / stride + 1;
    tarn_tensor *taps[64];
    int count = 0;
    for (int64_t i = 0; i < tarn_size(w, 2); i++)
        for (int64_t j = 0; j < tarn_size(w, 3); j++) {
            tarn_tensor *part = tarn_shrink(x, TARN_SHAPE(0, 0, i, j),
                                            TARN_SHAPE(tarn_size(x, 0), tarn_size(x, 1), i + (rows - 1) * stride + 1,
                                                       j + (columns - 1) * stride + 1));
            taps[count++] = tarn_stride(part, TARN_SHAPE(1, 1, stride, stride));
        }
    /* (N, OH, OW, C, taps) */
    tarn_tensor *windows = tarn_permute(tarn_stack(taps, count, 2), TARN_AXES(0, 3, 4, 1, 2));
    windows =
        tarn_reshape(tarn_contiguous(windows), TARN_SHAPE(tarn_size(x, 0), rows, columns, tarn_size(x, 1) * count));
    tarn_tensor *rows_of_w = tarn_reshape(w, TARN_SHAPE(tarn_size(w, 0), -1));
    return good(tarn_permute(tarn_linear_apply(windows, rows_of_w, NULL), TARN_AXES(0, 3, 1, 2)));
}

/* Large enough for several bands of an image, blocks of channels, and shares of the weight's gradient. */
static void large_ones_agree_with_a_product(void **state)
{
    (void)state;
    static const int64_t sizes[][6] = {{1, 40, 61, 50, 70, 1},
                                       {3, 130, 9, 37, 30, 2},
                                       {20, 3, 40, 64, 17, 1},
                                       {1, 300, 12, 12, 9, 1},
                                       {1, 2, 300, 300, 3, 3}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tarn_scope *scope = tarn_scope_open();
        const int64_t *s = sizes[i];
        tarn_tensor *x = tarn_requires_grad(normal(TARN_SHAPE(s[0], s[1], s[2], s[3]), TARN_F64), true);
        tarn_tensor *w = tarn_requires_grad(normal(TARN_SHAPE(s[4], s[1], 3, 3), TARN_F64), true);
        tarn_tensor *y = good(tarn_conv2d(x, w, NULL, &(tarn_conv2d_options){.stride = {s[5], s[5]}})),
                    *g = good(tarn_normal_like(y, 0, 1));
        assert_true(tarn_backward_from(y, g, NULL));
        tarn_tensor *gx = good(tarn_clone(tarn_grad(x))), *gw = good(tarn_clone(tarn_grad(w)));
        tarn_zero_grad(x), tarn_zero_grad(w);
        tarn_tensor *expected = as_product(x, w, s[5]);
        assert_close(y, expected, 1e-11);
        assert_true(tarn_backward_from(expected, g, NULL));
        assert_close(gx, tarn_grad(x), 1e-11);
        assert_close(gw, tarn_grad(w), 1e-10);
        tarn_scope_close(scope);
    }
}

static void an_empty_batch_gives_a_gradient_of_zero(void **state)
{
    (void)state;
    tarn_tensor *x = tarn_requires_grad(good(tarn_zeros(TARN_SHAPE(0, 2, 4, 4), TARN_F32, CPU)), true);
    tarn_tensor *w = tarn_requires_grad(normal(TARN_SHAPE(3, 2, 3, 3), TARN_F32), true),
                *b = tarn_requires_grad(normal(TARN_SHAPE(3), TARN_F32), true);
    tarn_tensor *y = good(tarn_conv2d(x, w, b, NULL));
    assert_shape(y, 0, 3, 2, 2);
    assert_true(tarn_backward(tarn_sum(y, TARN_ALL_AXES, false)));
    assert_close(tarn_grad(w), good(tarn_zeros(TARN_SHAPE(3, 2, 3, 3), TARN_F32, CPU)), 0);
    assert_close(tarn_grad(b), good(tarn_zeros(TARN_SHAPE(3), TARN_F32, CPU)), 0);
}

static void errors_say_what_does_not_fit(void **state)
{
    (void)state;
    tarn_tensor *x = normal(TARN_SHAPE(2, 4, 6, 5), TARN_F32), *w = normal(TARN_SHAPE(6, 3, 3, 3), TARN_F32);
    assert_null(tarn_conv2d(x, w, NULL, NULL));
    assert_error_about(TARN_ERROR_SHAPE, "x [2, 4, 6, 5] and weight [6, 3, 3, 3] do not fit",
                       "but the weight expects 3");
    assert_null(tarn_conv2d(x, normal(TARN_SHAPE(6, 4, 3, 7), TARN_F32), NULL, NULL));
    assert_error_about(TARN_ERROR_SHAPE, "is larger than x", "7 columns, padding included, against 5");
    assert_null(tarn_conv2d(x, w, NULL, &(tarn_conv2d_options){.groups = 3}));
    assert_error_about(TARN_ERROR_ARGUMENT, "conv2d: groups is 3", "channels of x [2, 4, 6, 5] (4)");
}

static void options_of_an_older_caller_have_defaults_for_what_they_lack(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(1, 1, 3, 3)), *w = good(tarn_ones(TARN_SHAPE(1, 1, 1, 1), TARN_F32, CPU));
    tarn_conv2d_options options = {.stride = {2, 2}, .padding = {1, 1}};
    expect(good(tarn_conv2d_sized(x, w, NULL, &options, sizeof(options.stride))), TARN_SHAPE(1, 1, 2, 2),
           VALUES(0, 2, 6, 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(values_by_hand),
        in_scope(the_result_has_the_layout_of_x_and_nothing_is_copied),
        in_scope(gradients_of_the_weight_add_up),
        in_scope(large_ones_agree_with_a_product),
        in_scope(an_empty_batch_gives_a_gradient_of_zero),
        in_scope(errors_say_what_does_not_fit),
        in_scope(options_of_an_older_caller_have_defaults_for_what_they_lack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
