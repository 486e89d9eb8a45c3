/* test_images.c: convolution and pooling on a CUDA device against the CPU, results and gradients, with options drawn at random: both layouts, slices,
 * flips, all float dtypes, and images whose columns do not fit into one piece of scratch. Without a device every test is skipped. */
#include "support/check.h"

#define CPU tarn_device_cpu()

static tarn_device gpu;

static int open_gpu(void **state)
{
    if (tarn_device_count("cuda") == 0)
        return 0;
    gpu = tarn_device_parse("cuda");
    return open_test(state);
}

static int close_gpu(void **state)
{
    return tarn_device_count("cuda") == 0 ? 0 : close_test(state);
}

#define NEEDS_GPU()                                                                                                                       \
    do {                                                                                                                                  \
        if (tarn_device_count("cuda") == 0)                                                                                               \
            skip();                                                                                                                       \
        (void)state;                                                                                                                      \
    } while (0)

/* ---- layouts --------------------------------------------------------------------------------------------------------------- */

enum { ROWS, CHANNELS_LAST, PART, FLIPPED, LAYOUTS };

/* The operand as the operation is to see it. A part is the inside of x, so that its first element is not aligned; the gradient around it is 0. */
static tarn_tensor *laid_out(tarn_tensor *x, int layout)
{
    switch (layout) {
    case CHANNELS_LAST:
        return good(tarn_permute(tarn_contiguous(tarn_permute(x, TARN_AXES(0, 2, 3, 1))), TARN_AXES(0, 3, 1, 2)));
    case PART:
        return good(tarn_shrink(x, TARN_SHAPE(0, 0, 1, 1), TARN_SHAPE(tarn_size(x, 0), tarn_size(x, 1), tarn_size(x, 2), tarn_size(x, 3))));
    case FLIPPED:
        return good(tarn_flip(x, TARN_AXES(1, 3)));
    default:
        return x;
    }
}

/* ---- one comparison -------------------------------------------------------------------------------------------------------- */

typedef tarn_tensor *apply_fn(tarn_tensor *x, tarn_tensor *const *more, const void *options);

/* Operands are leaves on the CPU; the same values on the GPU must give the same result and the same gradients. */
static void compare(apply_fn *apply, tarn_tensor **leaf, int count, const void *options, int layout, double tolerance)
{
    tarn_tensor *there[3] = {0}, *y[2];
    for (int i = 0; i < count; i++) {
        there[i] = tarn_requires_grad(good(tarn_to(leaf[i], gpu)), true);
        tarn_requires_grad(leaf[i], true);
    }
    y[0] = good(apply(laid_out(leaf[0], layout), leaf + 1, options));
    y[1] = good(apply(laid_out(there[0], layout), there + 1, options));
    tarn_tensor *g = good(tarn_normal(tarn_shape_of(y[0]), 0, 1, tarn_dtype_of(y[0]), CPU));
    assert_close(good(tarn_to(y[1], CPU)), y[0], tolerance);
    assert_true(tarn_backward_from(y[0], g, NULL));
    assert_true(tarn_backward_from(y[1], good(tarn_to(g, gpu)), NULL));
    for (int i = 0; i < count; i++)
        assert_close(good(tarn_to(tarn_grad(there[i]), CPU)), tarn_grad(leaf[i]), tolerance);
}

static tarn_dtype any_dtype(uint64_t *bits, double *tolerance)
{
    static const tarn_dtype dtypes[] = {TARN_F64, TARN_F32, TARN_BF16, TARN_F16};
    static const double tolerances[] = {1e-11, 1e-4, 5e-2, 5e-3};
    int64_t i = random_below(bits, 4);
    *tolerance = tolerances[i];
    return dtypes[i];
}

/* ---- convolution ----------------------------------------------------------------------------------------------------------- */

static tarn_tensor *convolve(tarn_tensor *x, tarn_tensor *const *more, const void *options)
{
    return tarn_conv2d(x, more[0], more[1], options);
}

static void convolutions_agree_with_the_cpu(void **state)
{
    NEEDS_GPU();
    uint64_t bits = test_seed(1);
    for (int trial = 0; trial < 200; trial++) {
        tarn_scope *scope = tarn_scope_open();
        double tolerance;
        tarn_dtype dtype = any_dtype(&bits, &tolerance);
        int64_t groups = random_below(&bits, 3) ? 1 : 1 + random_below(&bits, 4), in = 1 + random_below(&bits, 9), out = 1 + random_below(&bits, 9);
        tarn_conv2d_options o = {.groups = groups};
        int64_t kernel[2], size[2];
        for (int i = 0; i < 2; i++) {
            kernel[i] = 1 + random_below(&bits, 4);
            o.stride[i] = 1 + random_below(&bits, 3), o.padding[i] = random_below(&bits, 3), o.dilation[i] = 1 + random_below(&bits, 3);
            size[i] = 2 + o.dilation[i] * (kernel[i] - 1) + random_below(&bits, 12);
        }
        tarn_tensor *leaf[] = {good(tarn_normal(TARN_SHAPE(1 + random_below(&bits, 6), in * groups, size[0], size[1]), 0, 1, dtype, CPU)),
                               good(tarn_normal(TARN_SHAPE(out * groups, in, kernel[0], kernel[1]), 0, 0.3, dtype, CPU)),
                               random_below(&bits, 2) ? good(tarn_normal(TARN_SHAPE(out * groups), 0, 1, dtype, CPU)) : NULL};
        compare(convolve, leaf, leaf[2] ? 3 : 2, &o, (int)random_below(&bits, LAYOUTS), tolerance);
        tarn_scope_close(scope);
    }
}

/* Columns of more than 256 MiB: several images a piece, and bands of one image. */
static void large_convolutions_go_in_pieces(void **state)
{
    NEEDS_GPU();
    static const int64_t sizes[][4] = {{6, 8, 400, 300}, {1, 16, 700, 601}};
    for (int layout = ROWS; layout <= CHANNELS_LAST; layout++)
        for (int i = 0; i < 2; i++) {
            tarn_scope *scope = tarn_scope_open();
            const int64_t *s = sizes[i];
            tarn_tensor *leaf[] = {good(tarn_normal(TARN_SHAPE(s[0], s[1], s[2], s[3]), 0, 1, TARN_F64, CPU)),
                                   good(tarn_normal(TARN_SHAPE(4, s[1], 3, 3), 0, 0.1, TARN_F64, CPU)),
                                   good(tarn_normal(TARN_SHAPE(4), 0, 1, TARN_F64, CPU))};
            compare(convolve, leaf, 3, &(tarn_conv2d_options){.padding = {1, 1}}, layout, 1e-9);
            tarn_scope_close(scope);
        }
}

/* ---- pooling --------------------------------------------------------------------------------------------------------------- */

static tarn_tensor *take_largest(tarn_tensor *x, tarn_tensor *const *more, const void *options)
{
    (void)more;
    return tarn_max_pool2d(x, options);
}

static tarn_tensor *take_average(tarn_tensor *x, tarn_tensor *const *more, const void *options)
{
    (void)more;
    return tarn_avg_pool2d(x, options);
}

static void pools_agree_with_the_cpu(void **state)
{
    NEEDS_GPU();
    uint64_t bits = test_seed(2);
    for (int trial = 0; trial < 200; trial++) {
        tarn_scope *scope = tarn_scope_open();
        bool largest = random_below(&bits, 2);
        tarn_pool2d_options o = {.ceil_mode = random_below(&bits, 2), .exclude_padding = !largest && random_below(&bits, 2)};
        int64_t size[2], square = random_below(&bits, 3);
        double tolerance;
        tarn_dtype dtype = any_dtype(&bits, &tolerance);
        for (int i = 0; i < 2; i++) {
            o.kernel[i] = square ? square + 1 : 1 + random_below(&bits, 5);
            o.stride[i] = random_below(&bits, 4), o.padding[i] = random_below(&bits, o.kernel[i] / 2 + 1);
            o.dilation[i] = largest ? 1 + random_below(&bits, 3) : 1;
            size[i] = 2 + o.dilation[i] * (o.kernel[i] - 1) + random_below(&bits, 20);
        }
        tarn_tensor *leaf[] = {good(tarn_normal(TARN_SHAPE(1 + random_below(&bits, 4), 1 + random_below(&bits, 40), size[0], size[1]), 0, 1, dtype, CPU)),
                               NULL, NULL};
        compare(largest ? take_largest : take_average, leaf, 1, &o, (int)random_below(&bits, LAYOUTS), tolerance);
        tarn_scope_close(scope);
    }
}

/* The largest of a window with NaN is NaN, and one without anything larger than -inf has its first element. */
static void nan_and_ties_are_those_of_the_cpu(void **state)
{
    NEEDS_GPU();
    tarn_tensor *leaf[] = {good(tarn_from_f32((const float[]){1, 1, NAN, 2, 1, 1, NAN, 0, -INFINITY, -INFINITY, 3, 3, -INFINITY, -INFINITY, 3, 4},
                                              TARN_SHAPE(1, 1, 4, 4), CPU)),
                           NULL, NULL};
    compare(take_largest, leaf, 1, &(tarn_pool2d_options){.kernel = {2, 2}}, ROWS, 0);
}

int main(void)
{
#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        ON_GPU(convolutions_agree_with_the_cpu),
        ON_GPU(large_convolutions_go_in_pieces),
        ON_GPU(pools_agree_with_the_cpu),
        ON_GPU(nan_and_ties_are_those_of_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
