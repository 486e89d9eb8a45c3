/*
 * test_nhwc.c: batchnorm and groupnorm of NHWC images by the GPU kernels: TARN_OPENCL_LOCAL_MEM=1 selects them on any
 * device. Numbers of channels that are and are not multiples of four, that fill less than a tile and several; positions
 * a constant step apart, and not.
 * */
#include "opencl/compare.h"

enum { TRAINING, FIXED, RELU, RESIDUAL, RESIDUAL_FIXED, GROUPS };

typedef struct kind {
    int what;
    bool is_cut; /* a column of the images is left out: positions do not lie a step apart */
} kind;

static tarn_tensor *in_front(tarn_tensor *x, const kind *k)
{
    x = k->is_cut ? tarn_slice(x, 2, 1, tarn_size(x, 2)) : x;
    return tarn_permute(x, TARN_AXES(0, 3, 1, 2));
}

/* x [N, H, W, C] as [N, C, H, W], normalised, and back: the gradient that arrives has its channels last, too. */
static tarn_tensor *norm(tarn_tensor **x, const void *options)
{
    const kind *k = options;
    const bool is_fixed = k->what == FIXED || k->what == RESIDUAL_FIXED,
               has_residual = k->what == RESIDUAL || k->what == RESIDUAL_FIXED;
    const tarn_batchnorm_options how = {.training = !is_fixed};
    tarn_tensor *image = in_front(x[0], k), *mean = NULL, *variance = NULL, *y;
    if (is_fixed) {
        mean = good(tarn_full(TARN_SHAPE(tarn_size(x[1], 0)), 0.25, tarn_dtype_of(x[1]), tarn_device_of(x[1])));
        variance = good(tarn_full(TARN_SHAPE(tarn_size(x[1], 0)), 2, tarn_dtype_of(x[1]), tarn_device_of(x[1])));
    }
    if (k->what == GROUPS)
        y = tarn_groupnorm(image, 2, x[1], x[2], 1e-5);
    else if (k->what == RELU || has_residual)
        y = tarn_batchnorm_relu(image, has_residual ? in_front(x[3], k) : NULL, x[1], x[2], mean, variance, &how);
    else
        y = tarn_batchnorm(image, x[1], x[2], mean, variance, &how);
    return tarn_permute(good(y), TARN_AXES(0, 2, 3, 1));
}

static void check(int64_t images, int64_t side, int64_t channels, tarn_dtype dtype, kind k)
{
    const bool has_residual = k.what == RESIDUAL || k.what == RESIDUAL_FIXED;
    const tarn_shape shape = TARN_SHAPE(images, side, side + 2, channels);
    tarn_tensor *x[] = {random_of(shape), random_of(TARN_SHAPE(channels)), random_of(TARN_SHAPE(channels)),
                        has_residual ? random_of(shape) : NULL};
    compare(dtype, norm, x, has_residual ? 4 : 3, &k, dtype == TARN_BF16 ? 2e-2 : 2e-5);
}

static void any_number_of_channels_is_normalized(void **state)
{
    NEEDS_OPENCL();
    const int64_t channels[] = {2, 3, 16, 17, 132, 1000};
    for (size_t i = 0; i < sizeof(channels) / sizeof(channels[0]); i++)
        check(3, 5, channels[i], TARN_F32, (kind){TRAINING, false});
    check(3, 5, 16, TARN_BF16, (kind){TRAINING, false});
    check(3, 5, 17, TARN_F64, (kind){TRAINING, false});
}

static void few_and_many_positions_are_normalized(void **state)
{
    NEEDS_OPENCL();
    check(2, 2, 16, TARN_F32, (kind){TRAINING, false}); /* computed in f64 where there is one */
    check(1, 2, 16, TARN_F32, (kind){GROUPS, false});
    check(8, 90, 4, TARN_F32, (kind){TRAINING, false}); /* many turns of a work-item, of which the last is not whole */
    check(3, 7, 16, TARN_F32, (kind){TRAINING, true});
}

static void given_statistics_relu_and_groups_are_used(void **state)
{
    NEEDS_OPENCL();
    for (int what = FIXED; what <= GROUPS; what++)
        check(3, 6, 16, TARN_F32, (kind){what, false});
    check(3, 6, 6, TARN_F32, (kind){RESIDUAL, true});
    check(3, 6, 6, TARN_F32, (kind){GROUPS, true});
}

int main(void)
{
    setenv("TARN_OPENCL_LOCAL_MEM", "1", 1);
    const struct CMUnitTest tests[] = {
        ON_OPENCL(any_number_of_channels_is_normalized),
        ON_OPENCL(few_and_many_positions_are_normalized),
        ON_OPENCL(given_statistics_relu_and_groups_are_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
