/* test_images.c: convolution and pooling on a CUDA device against the CPU, results and gradients, with random options:
 * both layouts, slices, flips, all float dtypes, and images whose im2col matrix exceeds the scratch limit. Convolutions
 * use cuDNN if it is installed; run the program again with TARN_CUDNN=off for the other path. Skipped without a
 * device. */
#include <sys/wait.h>
#include <unistd.h>

#include <tarn/graph.h>

#include "support/gpu.h"
#include "support/pools.h"

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

enum { ROWS, CHANNELS_LAST, PART, FLIPPED, LAYOUTS };

/* The operand as the operation sees it. A slice is the inside of x: its first element is not aligned, and the gradient
 * around it is 0. */
static tarn_tensor *laid_out(tarn_tensor *x, int layout)
{
    switch (layout) {
    case CHANNELS_LAST:
        return good(tarn_permute(tarn_contiguous(tarn_permute(x, TARN_AXES(0, 2, 3, 1))), TARN_AXES(0, 3, 1, 2)));
    case PART:
        return good(tarn_shrink(x, TARN_SHAPE(0, 0, 1, 1),
                                TARN_SHAPE(tarn_size(x, 0), tarn_size(x, 1), tarn_size(x, 2), tarn_size(x, 3))));
    case FLIPPED: return good(tarn_flip(x, TARN_AXES(1, 3)));
    default: return x;
    }
}

/* ---- one comparison ---------------------------------------------------------------------------------------------- */

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

/* ---- convolution ------------------------------------------------------------------------------------------------- */

static tarn_tensor *convolve(tarn_tensor *x, tarn_tensor *const *more, const void *options)
{
    return tarn_conv2d(x, more[0], more[1], options);
}

static void convolutions_match_the_cpu(void **state)
{
    NEEDS_GPU();
    uint64_t bits = test_seed(1);
    for (int trial = 0; trial < (is_quick() ? 60 : 200); trial++) {
        tarn_scope *scope = tarn_scope_open();
        double tolerance;
        tarn_dtype dtype = any_dtype(&bits, &tolerance);
        int64_t groups = random_below(&bits, 3) ? 1 : 1 + random_below(&bits, 4), in = 1 + random_below(&bits, 9),
                out = 1 + random_below(&bits, 9);
        tarn_conv2d_options o = {.groups = groups};
        int64_t kernel[2], size[2];
        for (int i = 0; i < 2; i++) {
            kernel[i] = 1 + random_below(&bits, 4);
            o.stride[i] = 1 + random_below(&bits, 3), o.padding[i] = random_below(&bits, 3),
            o.dilation[i] = 1 + random_below(&bits, 3);
            size[i] = 2 + o.dilation[i] * (kernel[i] - 1) + random_below(&bits, 12);
        }
        tarn_tensor *leaf[] = {
            good(tarn_normal(TARN_SHAPE(1 + random_below(&bits, 6), in * groups, size[0], size[1]), 0, 1, dtype, CPU)),
            good(tarn_normal(TARN_SHAPE(out * groups, in, kernel[0], kernel[1]), 0, 0.3, dtype, CPU)),
            random_below(&bits, 2) ? good(tarn_normal(TARN_SHAPE(out * groups), 0, 1, dtype, CPU)) : NULL};
        compare(convolve, leaf, leaf[2] ? 3 : 2, &o, (int)random_below(&bits, LAYOUTS), tolerance);
        tarn_scope_close(scope);
    }
}

/* im2col of more than 256 MiB: chunks of several images, and bands of one image. */
static void large_convolutions_run_in_chunks(void **state)
{
    NEEDS_GPU();
    static const int64_t sizes[][4] = {{6, 8, 400, 300}, {1, 16, 700, 601}};
    for (int layout = ROWS; layout <= CHANNELS_LAST; layout++)
        for (int i = 0; i < 2; i++) {
            if (is_quick() && i != layout % 2)
                continue;
            tarn_scope *scope = tarn_scope_open();
            const int64_t *s = sizes[i];
            tarn_tensor *leaf[] = {good(tarn_normal(TARN_SHAPE(s[0], s[1], s[2], s[3]), 0, 1, TARN_F64, CPU)),
                                   good(tarn_normal(TARN_SHAPE(4, s[1], 3, 3), 0, 0.1, TARN_F64, CPU)),
                                   good(tarn_normal(TARN_SHAPE(4), 0, 1, TARN_F64, CPU))};
            compare(convolve, leaf, 3, &(tarn_conv2d_options){.padding = {1, 1}}, layout, 1e-9);
            tarn_scope_close(scope);
        }
}

/* ---- algorithms of a convolution --------------------------------------------------------------------------------- */

typedef struct kind {
    tarn_dtype dtype;
    bool tf32;
    double tolerance;
} kind;

static const kind kinds[] = {
    {TARN_F32, false, 1e-4}, {TARN_F32, true, 5e-2}, {TARN_BF16, false, 5e-2}, {TARN_F16, false, 5e-3}};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* Convolutions large enough to tune; few pixels, so that wgrad is a short sum. */
typedef struct sized {
    int64_t images, in, out, rows, columns, kernel;
    tarn_conv2d_options options;
} sized;

static const sized measured[] = {
    {2, 128, 128, 9, 8, 3, {.padding = {1, 1}}},
    {4, 256, 192, 15, 11, 3, {.padding = {1, 1}, .stride = {2, 2}, .groups = 2}},
    {3, 130, 67, 17, 13, 5, {.padding = {2, 3}, .dilation = {2, 1}, .stride = {1, 2}}},
    {2, 512, 256, 9, 9, 1, {.groups = 1}},
    {6, 64, 128, 15, 12, 3, {.padding = {1, 1}, .stride = {2, 2}}},
    {3, 64, 128, 9, 9, 3, {.padding = {1, 1}}},
};
enum { MEASURED = sizeof(measured) / sizeof(measured[0]) };

/* Under a sanitizer a quarter of the channels, where there are many, and few images. */
static sized cut(sized s)
{
    const int64_t share = is_quick() && s.in > 100 ? 4 : 1;
    s.in /= share;
    s.out /= share;
    s.images = is_quick() && s.images > 4 ? 4 : s.images;
    return s;
}

static void make_leaves(tarn_tensor **leaf, const sized *whole, tarn_dtype dtype)
{
    const sized size = cut(*whole), *s = &size;
    int64_t groups = s->options.groups ? s->options.groups : 1;
    leaf[0] = good(tarn_normal(TARN_SHAPE(s->images, s->in, s->rows, s->columns), 0, 1, dtype, CPU));
    leaf[1] = good(tarn_normal(TARN_SHAPE(s->out, s->in / groups, s->kernel, s->kernel), 0, 0.05, dtype, CPU));
    leaf[2] = good(tarn_normal(TARN_SHAPE(s->out), 0, 1, dtype, CPU));
}

static void tuned_convolutions_match_the_cpu(void **state)
{
    NEEDS_GPU();
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < MEASURED; i++)
            for (int layout = ROWS; layout <= CHANNELS_LAST; layout++) {
                tarn_scope *scope = tarn_scope_open();
                tarn_tensor *leaf[3];
                make_leaves(leaf, &measured[i], kinds[k].dtype);
                tarn_set_tf32(kinds[k].tf32);
                if (i % 2)
                    leaf[2] = NULL;
                compare(convolve, leaf, leaf[2] ? 3 : 2, &measured[i].options, layout, kinds[k].tolerance);
                tarn_set_tf32(false);
                tarn_scope_close(scope);
            }
}

/* cuDNN's engines with an identity epilogue gave wrong gradients for these: they must not be used. */
static void wgrad_of_unusual_16_bit_shapes_matches_the_cpu(void **state)
{
    static const sized odd[] = {
        {3, 8, 8, 5, 4, 3, {.stride = {3, 1}, .padding = {1, 3}, .dilation = {1, 3}}},
        {60, 64, 64, 15, 16, 3, {.stride = {3, 1}, .padding = {1, 3}, .dilation = {1, 3}}},
        {8, 64, 128, 16, 16, 3, {.stride = {1, 1}, .padding = {2, 2}, .dilation = {2, 2}}},
    };
    NEEDS_GPU();
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
        for (int layout = ROWS; layout <= PART; layout++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_tensor *leaf[3];
            make_leaves(leaf, &odd[i], TARN_BF16);
            compare(convolve, leaf, 3, &odd[i].options, layout, 5e-2);
            tarn_scope_close(scope);
        }
}

/* f32 results and gradients on the GPU against f64 on the CPU, for sums so long that small elements are the remainder
 * of large ones. */
static void compare_long_sums(tarn_tensor *const *leaf, const tarn_conv2d_options *options, int layout,
                              double tolerance)
{
    tarn_tensor *wide[3], *there[3], *y[2];
    for (int i = 0; i < 3; i++) {
        wide[i] = tarn_requires_grad(good(tarn_cast(leaf[i], TARN_F64)), true);
        there[i] = tarn_requires_grad(good(tarn_to(leaf[i], gpu)), true);
    }
    y[0] = good(convolve(laid_out(wide[0], layout), wide + 1, options));
    y[1] = good(convolve(laid_out(there[0], layout), there + 1, options));
    tarn_tensor *g = good(tarn_normal(tarn_shape_of(y[0]), 0, 1, TARN_F32, CPU));
    assert_close_for_size(good(tarn_to(y[1], CPU)), y[0], tolerance);
    assert_true(tarn_backward_from(y[0], good(tarn_cast(g, TARN_F64)), NULL));
    assert_true(tarn_backward_from(y[1], good(tarn_to(g, gpu)), NULL));
    for (int i = 0; i < 3; i++)
        assert_close_for_size(good(tarn_to(tarn_grad(there[i]), CPU)), tarn_grad(wide[i]), tolerance);
}

#define LONG_SUM 10000 /* terms, from which on the comparison with PyTorch allows 1e-4, too */

/* Few channels and many pixels, in full f32, with rows of whole vectors and others. */
static void wgrad_of_small_weights_matches_the_cpu(void **state)
{
    static const sized small[] = {
        {8, 32, 32, 16, 16, 3, {.padding = {1, 1}}},
        {5, 17, 40, 12, 101, 3, {.padding = {1, 1}}},
        {5, 16, 16, 40, 64, 3, {.padding = {1, 1}}},
        {40, 33, 70, 7, 8, 3, {.padding = {1, 1}}},
    };
    NEEDS_GPU();
    for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++)
        for (int layout = ROWS; layout <= CHANNELS_LAST; layout++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_tensor *leaf[3];
            make_leaves(leaf, &small[i], TARN_F32);
            /* of an element of wgrad */
            int64_t terms = tarn_size(leaf[0], 0) * small[i].rows * small[i].columns;
            print_message("convolution %d, layout %d\n", (int)i, layout);
            compare_long_sums(leaf, &small[i].options, layout, terms > LONG_SUM ? 1e-4 : 1e-5);
            tarn_scope_close(scope);
        }
}

/* The result, and the gradients of x, weight and bias, on the GPU. */
static void everything_of(tarn_tensor *const *leaf, const tarn_conv2d_options *options, int layout, tarn_tensor **made)
{
    tarn_tensor *there[3];
    for (int i = 0; i < 3; i++)
        there[i] = tarn_requires_grad(good(tarn_to(leaf[i], gpu)), true);
    made[0] = good(tarn_conv2d(laid_out(there[0], layout), there[1], there[2], options));
    assert_true(
        tarn_backward_from(made[0], good(tarn_ones(tarn_shape_of(made[0]), tarn_dtype_of(made[0]), gpu)), NULL));
    for (int i = 0; i < 3; i++)
        made[1 + i] = good(tarn_to(tarn_grad(there[i]), CPU));
    made[0] = good(tarn_to(made[0], CPU));
}

static void convolutions_are_bitwise_identical_twice(void **state)
{
    NEEDS_GPU();
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < MEASURED; i++)
            for (int layout = ROWS; layout <= CHANNELS_LAST; layout++) {
                tarn_scope *scope = tarn_scope_open();
                tarn_tensor *leaf[3], *first[4], *second[4];
                make_leaves(leaf, &measured[i], kinds[k].dtype);
                tarn_set_tf32(kinds[k].tf32);
                everything_of(leaf, &measured[i].options, layout, first);
                everything_of(leaf, &measured[i].options, layout, second);
                tarn_set_tf32(false);
                for (int j = 0; j < 4; j++)
                    assert_close(second[j], first[j], 0);
                tarn_scope_close(scope);
            }
}

/* A second backward pass accumulates. */
static void wgrad_accumulates(void **state)
{
    NEEDS_GPU();
    for (int k = 0; k < KINDS; k++)
        for (int layout = ROWS; layout <= CHANNELS_LAST; layout++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_tensor *leaf[3], *weight[2];
            make_leaves(leaf, &measured[1], kinds[k].dtype);
            tarn_set_tf32(kinds[k].tf32);
            for (int d = 0; d < 2; d++) {
                tarn_device device = d ? gpu : CPU;
                tarn_tensor *x = laid_out(good(tarn_to(leaf[0], device)), layout);
                weight[d] = tarn_requires_grad(good(tarn_clone(tarn_to(leaf[1], device))), true);
                for (int i = 0; i < 2; i++) {
                    tarn_tensor *y = good(tarn_conv2d(x, weight[d], NULL, &measured[1].options));
                    tarn_tensor *g = good(tarn_full(tarn_shape_of(y), i ? 0.25 : -1, tarn_dtype_of(y), device));
                    assert_true(tarn_backward_from(y, g, NULL));
                }
            }
            tarn_set_tf32(false);
            assert_close(good(tarn_to(tarn_grad(weight[1]), CPU)), tarn_grad(weight[0]), kinds[k].tolerance);
            tarn_scope_close(scope);
        }
}

/* ---- captured steps ---------------------------------------------------------------------------------------------- */

typedef struct training {
    tarn_tensor *x, *loss;
    tarn_module *net;
    tarn_optimizer *sgd;
} training;

static bool step(void *ctx)
{
    training *t = ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *loss = tarn_mean(tarn_square(tarn_forward(t->net, t->x)), TARN_ALL_AXES, false);
    bool done = tarn_backward(loss) && tarn_optimizer_step(t->sgd) && tarn_copy(t->loss, loss);
    tarn_scope_close(scope);
    return done;
}

enum { WARM_UP = 2, STEPS = 6 };

static void losses_of(bool captured, double *losses)
{
    tarn_seed(5);
    training t = {.x = laid_out(good(tarn_normal(TARN_SHAPE(8, 3, 20, 18), 0, 1, TARN_F32, gpu)), CHANNELS_LAST),
                  .loss = good(tarn_zeros(((tarn_shape){0, {0}}), TARN_F32, gpu)),
                  .net = tarn_sequential(tarn_conv2d_layer(3, 64, 3, gpu), tarn_activation(TARN_RELU),
                                         tarn_conv2d_layer(64, 64, 3, gpu), NULL)};
    t.sgd = tarn_sgd(t.net, &(tarn_sgd_options){.lr = 0.05f});
    assert_ok();
    for (int i = 0; i < WARM_UP; i++)
        assert_true(step(&t));
    tarn_graph *graph = captured ? tarn_graph_capture(gpu, step, &t) : NULL;
    assert_ok();
    for (int i = 0; i < STEPS; i++) {
        assert_true(captured ? tarn_graph_run(graph) : step(&t));
        losses[i] = tarn_item(t.loss);
    }
    tarn_graph_free(graph);
    tarn_optimizer_free(t.sgd);
    tarn_module_free(t.net);
}

static void a_captured_convolution_is_bitwise_identical_to_an_eager_one(void **state)
{
    NEEDS_GPU();
    double eager[STEPS], captured[STEPS];
    losses_of(false, eager);
    losses_of(true, captured);
    for (int i = 0; i < STEPS; i++) {
        assert_true(eager[i] == captured[i]);
        assert_true(i == 0 || eager[i] < eager[i - 1]);
    }
}

static bool new_convolution_step(void *ctx)
{
    (void)ctx;
    tarn_tensor *x = tarn_zeros(TARN_SHAPE(4, 96, 21, 23), TARN_F32, gpu);
    return tarn_conv2d(x, tarn_zeros(TARN_SHAPE(88, 96, 3, 3), TARN_F32, gpu), NULL, NULL) != NULL;
}

static void an_untuned_convolution_cannot_be_captured(void **state)
{
    NEEDS_GPU();
    if (getenv("TARN_CUBLASLT")) /* off: nothing is tuned */
        skip();
    assert_null(tarn_graph_capture(gpu, new_convolution_step, NULL));
    /* the convolution by cuDNN, or the matmul that it is without */
    assert_error_about(TARN_ERROR_DEVICE, "conv2d: cuda:0 failed: ",
                       "is not tuned: it was first called inside a capture; run the step once before capturing it");
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(1, 1, 4, 4), TARN_F32, gpu)); /* the device still works */
    assert_true(tarn_item_at(good(tarn_conv2d(x, good(tarn_ones(TARN_SHAPE(1, 1, 3, 3), TARN_F32, gpu)), NULL, NULL)),
                             TARN_SHAPE(0, 0, 1, 1)) == 9);
}

/* ---- with cuDNN and without -------------------------------------------------------------------------------------- */

/* What a process with another TARN_CUDNN does: 0 if a convolution matches the CPU and the device describes cuDNN as the
 * argument says, 3 if the convolution fails because the library cannot be opened. */
static int convolve_once(const char *about)
{
    tarn_device_info info;
    gpu = tarn_device_parse("cuda");
    tarn_tensor *x = tarn_normal(TARN_SHAPE(2, 3, 8, 8), 0, 1, TARN_F32, CPU),
                *weight = tarn_normal(TARN_SHAPE(4, 3, 3, 3), 0, 1, TARN_F32, CPU);
    tarn_tensor *here = tarn_conv2d(x, weight, NULL, NULL),
                *there = tarn_conv2d(tarn_to(x, gpu), tarn_to(weight, gpu), NULL, NULL);
    if (!there)
        return strstr(tarn_error(), "TARN_CUDNN must be off or the path of libcudnn.so.9: ") ? 3 : 1;
    double apart = tarn_item(tarn_max(tarn_abs(tarn_sub(tarn_to(there, CPU), here)), TARN_ALL_AXES, false));
    bool told = tarn_device_query(gpu, &info) && strstr(info.detail, about);
    return tarn_error_code() == TARN_OK && apart < 1e-4 && told ? 0 : 1;
}

static int status_with(const char *cudnn, const char *about)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("TARN_CUDNN", cudnn, 1);
        execl("/proc/self/exe", "test_images", about, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void convolutions_work_without_cudnn(void **state)
{
    NEEDS_GPU();
    assert_int_equal(status_with("off", "cuDNN is off"), 0);
}

static void a_named_cudnn_that_cannot_be_opened_is_an_error(void **state)
{
    NEEDS_GPU();
    assert_int_equal(status_with("/nowhere/libcudnn.so.9", ""), 3);
}

/* ---- pooling ----------------------------------------------------------------------------------------------------- */

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

static void pooling_matches_the_cpu(void **state)
{
    NEEDS_GPU();
    uint64_t bits = test_seed(2);
    for (int trial = 0; trial < (is_quick() ? 60 : 200); trial++) {
        tarn_scope *scope = tarn_scope_open();
        bool largest = random_below(&bits, 2);
        tarn_pool2d_options o = {.ceil_mode = random_below(&bits, 2),
                                 .exclude_padding = !largest && random_below(&bits, 2)};
        int64_t size[2], square = random_below(&bits, 3);
        double tolerance;
        tarn_dtype dtype = any_dtype(&bits, &tolerance);
        for (int i = 0; i < 2; i++) {
            o.kernel[i] = square ? square + 1 : 1 + random_below(&bits, 5);
            o.stride[i] = random_below(&bits, 4), o.padding[i] = random_below(&bits, o.kernel[i] / 2 + 1);
            o.dilation[i] = largest ? 1 + random_below(&bits, 3) : 1;
            size[i] = 2 + o.dilation[i] * (o.kernel[i] - 1) + random_below(&bits, 20);
        }
        tarn_tensor *leaf[] = {
            good(tarn_normal(TARN_SHAPE(1 + random_below(&bits, 4), 1 + random_below(&bits, 40), size[0], size[1]), 0,
                             1, dtype, CPU)),
            NULL, NULL};
        compare(largest ? take_largest : take_average, leaf, 1, &o, (int)random_below(&bits, LAYOUTS), tolerance);
        tarn_scope_close(scope);
    }
}

static void windows_of_all_sizes_have_their_maxima(void **state)
{
    NEEDS_GPU();
    tarn_stats_reset();
    check_windows(gpu, true);
    assert_int_equal(tarn_stats().fallbacks, 0);
}

static void adjacent_windows_have_their_averages(void **state)
{
    NEEDS_GPU();
    tarn_stats_reset();
    check_averages(gpu, true);
    assert_int_equal(tarn_stats().fallbacks, 0);
}

/* The max of a window with NaN is NaN, and one of -inf only has its first element. */
static void nan_and_ties_match_the_cpu(void **state)
{
    NEEDS_GPU();
    tarn_tensor *leaf[] = {good(tarn_from_f32((const float[]){1, 1, NAN, 2, 1, 1, NAN, 0, -INFINITY, -INFINITY, 3, 3,
                                                              -INFINITY, -INFINITY, 3, 4},
                                              TARN_SHAPE(1, 1, 4, 4), CPU)),
                           NULL, NULL};
    compare(take_largest, leaf, 1, &(tarn_pool2d_options){.kernel = {2, 2}}, ROWS, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return convolve_once(argv[1]);
    /* run only the tests whose names match: for slow tools */
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        ON_GPU(convolutions_match_the_cpu),
        ON_GPU(large_convolutions_run_in_chunks),
        ON_GPU(tuned_convolutions_match_the_cpu),
        ON_GPU(wgrad_of_unusual_16_bit_shapes_matches_the_cpu),
        ON_GPU(wgrad_of_small_weights_matches_the_cpu),
        ON_GPU(convolutions_are_bitwise_identical_twice),
        ON_GPU(wgrad_accumulates),
        ON_GPU(a_captured_convolution_is_bitwise_identical_to_an_eager_one),
        ON_GPU(an_untuned_convolution_cannot_be_captured),
        ON_GPU(convolutions_work_without_cudnn),
        ON_GPU(a_named_cudnn_that_cannot_be_opened_is_an_error),
        ON_GPU(pooling_matches_the_cpu),
        ON_GPU(windows_of_all_sizes_have_their_maxima),
        ON_GPU(adjacent_windows_have_their_averages),
        ON_GPU(nan_and_ties_match_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
