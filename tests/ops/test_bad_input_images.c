/* test_bad_input_images.c: invalid arguments to convolution and pooling. */
#include "support/refuse.h"

#define CPU tarn_device_cpu()
#define HUGE_SIZE ((int64_t)1 << 61)

static tarn_tensor *ones(tarn_shape shape, tarn_dtype dtype)
{
    return tarn_ones(shape, dtype, CPU);
}

#define CONVOLVE(x, w, b, ...) REFUSE(tarn_conv2d_sized, tarn_conv2d(x, w, b, &(tarn_conv2d_options){__VA_ARGS__}))

static void convolution(void **state)
{
    (void)state;
    tarn_tensor *x = ones(TARN_SHAPE(2, 4, 6, 5), TARN_F32), *w = ones(TARN_SHAPE(6, 4, 3, 3), TARN_F32),
                *b = ones(TARN_SHAPE(6), TARN_F32);
    tarn_tensor *wide = ones(TARN_SHAPE(2, 4, 6, 5), TARN_F64), *whole = ones(TARN_SHAPE(2, 4, 6, 5), TARN_I32);
    REFUSE(tarn_conv2d_sized, tarn_conv2d(NULL, w, b, NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(x, NULL, b, NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(wide, w, b, NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(whole, tarn_cast(w, TARN_I32), NULL, NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(x, w, tarn_cast(b, TARN_BF16), NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(tarn_reshape(x, TARN_SHAPE(8, 6, 5)), w, b, NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(x, tarn_reshape(w, TARN_SHAPE(24, 3, 3)), b, NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(tarn_scalar(1), w, b, NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(x, tarn_scalar(1), b, NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(x, w, tarn_scalar(1), NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(x, w, ones(TARN_SHAPE(4), TARN_F32), NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(x, w, ones(TARN_SHAPE(6, 1), TARN_F32), NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(x, ones(TARN_SHAPE(6, 3, 3, 3), TARN_F32), b, NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(x, ones(TARN_SHAPE(6, 4, 0, 3), TARN_F32), b, NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(x, ones(TARN_SHAPE(0, 4, 3, 3), TARN_F32), NULL, NULL));
    REFUSE(tarn_conv2d_sized,
           tarn_conv2d(ones(TARN_SHAPE(2, 0, 6, 5), TARN_F32), ones(TARN_SHAPE(6, 0, 3, 3), TARN_F32), b, NULL));
    REFUSE(tarn_conv2d_sized,
           tarn_conv2d(ones(TARN_SHAPE(2, 4, 0, 5), TARN_F32), w, b, &(tarn_conv2d_options){.padding = {2, 2}}));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(ones(TARN_SHAPE(2, 4, 2, 5), TARN_F32), w, b, NULL));
    REFUSE(tarn_conv2d_sized, tarn_conv2d(tarn_to(x, tarn_device_parse("mirror:1")), w, b, NULL));
    CONVOLVE(x, w, b, .stride = {-1, 1});
    CONVOLVE(x, w, b, .stride = {1, HUGE_SIZE});
    CONVOLVE(x, w, b, .padding = {0, -1});
    CONVOLVE(x, w, b, .padding = {HUGE_SIZE, 0});
    CONVOLVE(x, w, b, .dilation = {-2, 1});
    CONVOLVE(x, w, b, .dilation = {3, 1});
    CONVOLVE(x, w, b, .dilation = {1, HUGE_SIZE});
    CONVOLVE(x, w, b, .dilation = {1, (int64_t)1 << 31});
    CONVOLVE(x, w, b, .groups = 2);
    CONVOLVE(x, w, b, .groups = 3);
    CONVOLVE(x, w, b, .groups = -1);
    ACCEPT(tarn_conv2d(x, w, NULL, NULL));
    ACCEPT(tarn_conv2d(ones(TARN_SHAPE(0, 4, 6, 5), TARN_F32), w, b, NULL));
    ACCEPT(tarn_conv2d(x, ones(TARN_SHAPE(6, 2, 3, 3), TARN_F32), b,
                       &(tarn_conv2d_options){.groups = 2, .stride = {100, 1000000}}));
}

#define TRANSPOSE(x, w, b, ...) \
    REFUSE(tarn_conv_transpose2d_sized, tarn_conv_transpose2d(x, w, b, &(tarn_conv_transpose2d_options){__VA_ARGS__}))

static void transposed_convolution(void **state)
{
    (void)state;
    tarn_tensor *x = ones(TARN_SHAPE(2, 4, 6, 5), TARN_F32), *w = ones(TARN_SHAPE(4, 6, 3, 3), TARN_F32),
                *b = ones(TARN_SHAPE(6), TARN_F32);
    TRANSPOSE(NULL, w, b, .groups = 1);
    TRANSPOSE(x, NULL, b, .groups = 1);
    TRANSPOSE(tarn_cast(x, TARN_F64), w, b, .groups = 1);
    TRANSPOSE(tarn_cast(x, TARN_I32), tarn_cast(w, TARN_I32), NULL, .groups = 1);
    TRANSPOSE(tarn_reshape(x, TARN_SHAPE(8, 6, 5)), w, b, .groups = 1);
    TRANSPOSE(x, tarn_reshape(w, TARN_SHAPE(24, 3, 3)), b, .groups = 1);
    TRANSPOSE(x, ones(TARN_SHAPE(6, 4, 3, 3), TARN_F32), b, .groups = 1);
    TRANSPOSE(x, ones(TARN_SHAPE(4, 6, 0, 3), TARN_F32), b, .groups = 1);
    TRANSPOSE(x, w, ones(TARN_SHAPE(4), TARN_F32), .groups = 1);
    TRANSPOSE(x, w, ones(TARN_SHAPE(6, 1), TARN_F32), .groups = 1);
    TRANSPOSE(x, w, tarn_scalar(1), .groups = 1);
    TRANSPOSE(x, w, b, .stride = {-1, 1});
    TRANSPOSE(x, w, b, .stride = {1, HUGE_SIZE});
    TRANSPOSE(x, w, b, .stride = {1, (int64_t)1 << 31});
    TRANSPOSE(x, w, b, .padding = {0, -1});
    TRANSPOSE(x, w, b, .padding = {4, 0});
    TRANSPOSE(x, w, b, .dilation = {-1, 1});
    TRANSPOSE(x, w, b, .dilation = {1, (int64_t)1 << 31});
    TRANSPOSE(x, w, b, .output_padding = {1, 0});
    TRANSPOSE(x, w, b, .output_padding = {0, -1});
    REFUSE(tarn_conv_transpose2d_sized,
           tarn_conv_transpose2d(x, w, NULL, &(tarn_conv_transpose2d_options){.groups = 3}));
    REFUSE(tarn_conv_transpose2d_sized,
           tarn_conv_transpose2d(x, w, NULL, &(tarn_conv_transpose2d_options){.groups = -1}));
    ACCEPT(tarn_conv_transpose2d(x, w, NULL, NULL));
    ACCEPT(tarn_conv_transpose2d(ones(TARN_SHAPE(0, 4, 6, 5), TARN_F32), w, b, NULL));
}

static void sequences(void **state)
{
    (void)state;
    tarn_tensor *x = ones(TARN_SHAPE(2, 4, 6), TARN_F32), *w = ones(TARN_SHAPE(6, 4, 3), TARN_F32),
                *b = ones(TARN_SHAPE(6), TARN_F32);
    REFUSE(tarn_conv1d_sized, tarn_conv1d(NULL, w, b, NULL));
    REFUSE(tarn_conv1d_sized, tarn_conv1d(x, NULL, b, NULL));
    REFUSE(tarn_conv1d_sized, tarn_conv1d(tarn_reshape(x, TARN_SHAPE(8, 6)), w, b, NULL));
    REFUSE(tarn_conv1d_sized, tarn_conv1d(x, tarn_reshape(w, TARN_SHAPE(24, 3)), b, NULL));
    REFUSE(tarn_conv1d_sized, tarn_conv1d(x, ones(TARN_SHAPE(6, 3, 3), TARN_F32), b, NULL));
    REFUSE(tarn_conv1d_sized, tarn_conv1d(x, w, ones(TARN_SHAPE(5), TARN_F32), NULL));
    REFUSE(tarn_conv1d_sized, tarn_conv1d(x, w, b, &(tarn_conv1d_options){.stride = -1}));
    REFUSE(tarn_conv1d_sized, tarn_conv1d(x, w, b, &(tarn_conv1d_options){.padding = -1}));
    REFUSE(tarn_conv1d_sized, tarn_conv1d(x, w, b, &(tarn_conv1d_options){.dilation = 3}));
    REFUSE(tarn_conv1d_sized, tarn_conv1d(x, w, b, &(tarn_conv1d_options){.groups = 4}));
    ACCEPT(tarn_conv1d(x, w, b, NULL));
}

#define UPSAMPLE(...) REFUSE(tarn_upsample_sized, tarn_upsample(x, &(tarn_upsample_options){__VA_ARGS__}))

static void upsampling(void **state)
{
    (void)state;
    tarn_tensor *x = ones(TARN_SHAPE(2, 4, 6, 5), TARN_F32);
    REFUSE(tarn_upsample_sized, tarn_upsample(NULL, &(tarn_upsample_options){.size = {2, 2}}));
    REFUSE(tarn_upsample_sized, tarn_upsample(x, NULL));
    REFUSE(tarn_upsample_sized,
           tarn_upsample(tarn_reshape(x, TARN_SHAPE(8, 6, 5)), &(tarn_upsample_options){.size = {2, 2}}));
    REFUSE(tarn_upsample_sized, tarn_upsample(tarn_cast(x, TARN_I32), &(tarn_upsample_options){.size = {2, 2}}));
    UPSAMPLE(.mode = TARN_UPSAMPLE_BILINEAR);
    UPSAMPLE(.size = {2, 0});
    UPSAMPLE(.size = {-1, 2});
    UPSAMPLE(.size = {2, HUGE_SIZE});
    UPSAMPLE(.size = {2, 2}, .scale = {2, 2});
    UPSAMPLE(.scale = {2, 0});
    UPSAMPLE(.scale = {2, -1});
    UPSAMPLE(.scale = {2, NAN});
    UPSAMPLE(.scale = {2, INFINITY});
    UPSAMPLE(.scale = {2, 0.1}); /* no column is left */
    UPSAMPLE(.scale = {2, 1e12});
    UPSAMPLE(.size = {2, 2}, .mode = (tarn_upsample_mode)2);
    UPSAMPLE(.size = {2, 2}, .align_corners = true);
    ACCEPT(tarn_upsample(x, &(tarn_upsample_options){.size = {1, 1}}));
    ACCEPT(tarn_upsample(ones(TARN_SHAPE(0, 4, 6, 5), TARN_F32), &(tarn_upsample_options){.scale = {2, 1.5}}));
}

#define POOL(...) \
    REFUSE(tarn_max_pool2d_sized, tarn_max_pool2d(x, &(tarn_pool2d_options){__VA_ARGS__})); \
    REFUSE(tarn_avg_pool2d_sized, tarn_avg_pool2d(x, &(tarn_pool2d_options){__VA_ARGS__}))
#define POOL_OF(tensor) \
    REFUSE(tarn_max_pool2d_sized, tarn_max_pool2d(tensor, &(tarn_pool2d_options){.kernel = {2, 2}})); \
    REFUSE(tarn_avg_pool2d_sized, tarn_avg_pool2d(tensor, &(tarn_pool2d_options){.kernel = {2, 2}})); \
    REFUSE(tarn_global_avg_pool2d, tarn_global_avg_pool2d(tensor))

static void pooling(void **state)
{
    (void)state;
    tarn_tensor *x = ones(TARN_SHAPE(2, 4, 6, 5), TARN_F32);
    POOL_OF(NULL);
    POOL_OF(tarn_scalar(1));
    POOL_OF(ones(TARN_SHAPE(2, 4, 6, 5), TARN_I64));
    POOL_OF(ones(TARN_SHAPE(4, 6, 5), TARN_F32));
    POOL_OF(ones(TARN_SHAPE(2, 0, 6, 5), TARN_F32));
    POOL_OF(ones(TARN_SHAPE(2, 4, 6, 0), TARN_F32));
    REFUSE(tarn_max_pool2d_sized, tarn_max_pool2d(x, NULL));
    REFUSE(tarn_avg_pool2d_sized, tarn_avg_pool2d(x, NULL));
    POOL(.stride = {1, 1});
    POOL(.kernel = {0, 2});
    POOL(.kernel = {2, -2});
    POOL(.kernel = {7, 2});
    POOL(.kernel = {2, HUGE_SIZE});
    POOL(.kernel = {2, 2}, .stride = {-1, 1});
    POOL(.kernel = {2, 2}, .stride = {1, HUGE_SIZE});
    POOL(.kernel = {2, 2}, .padding = {2, 0});
    POOL(.kernel = {2, 2}, .padding = {0, -1});
    POOL(.kernel = {2, 2}, .padding = {HUGE_SIZE, 0});
    POOL(.kernel = {2, 2}, .dilation = {-1, 1});
    POOL(.kernel = {3, 2}, .dilation = {3, 1});
    POOL(.kernel = {2, 3}, .dilation = {1, HUGE_SIZE});
    REFUSE(tarn_max_pool2d_sized,
           tarn_max_pool2d(x, &(tarn_pool2d_options){.kernel = {2, 2}, .exclude_padding = true}));
    REFUSE(tarn_avg_pool2d_sized, tarn_avg_pool2d(x, &(tarn_pool2d_options){.kernel = {2, 2}, .dilation = {2, 1}}));
    ACCEPT(tarn_global_avg_pool2d(ones(TARN_SHAPE(0, 4, 6, 5), TARN_F32)));
    ACCEPT(tarn_max_pool2d(ones(TARN_SHAPE(0, 4, 6, 5), TARN_F32), &(tarn_pool2d_options){.kernel = {2, 2}}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(convolution, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(transposed_convolution, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(sequences, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(upsampling, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(pooling, open_refusals, close_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
