/* test_conv_wgrad.c: our wgrad kernel on a CUDA device, wherever it applies, against the CPU. Operands are small
 * integers, exact in bf16 and TF32, and so are their f32 sums: the gradients must be bitwise identical to the CPU's, in
 * any order of summation. Skipped without a device. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tarn/profile.h>
#include <unistd.h>

#include "support/gpu.h"

/* ---- operands ---------------------------------------------------------------------------------------------------- */

typedef struct sized {
    int64_t images, in, out, size[2], kernel[2];
    tarn_conv2d_options options;
} sized;

/* The GPU's operands: bf16, or f32 multiplied in TF32; x in NHWC, in NCHW, or a slice of a larger image. */
enum { CHANNELS_LAST, ROWS, PART, LAYOUTS };
typedef struct way {
    tarn_dtype dtype;
    int layout;
    bool is_narrow; /* the gradient has x's dtype: the weight is no leaf */
} way;

/* From -3 to 3. */
static tarn_tensor *whole_numbers(tarn_shape shape)
{
    return good(tarn_cast(tarn_cast(tarn_uniform(shape, -4, 4, TARN_F32, CPU), TARN_I32), TARN_F32));
}

static tarn_tensor *with_channels_last(tarn_tensor *x)
{
    return good(tarn_permute(tarn_contiguous(tarn_permute(x, TARN_AXES(0, 2, 3, 1))), TARN_AXES(0, 3, 1, 2)));
}

/* The same values on the GPU. A slice is cut out of a larger tensor: neither contiguous nor aligned. */
static tarn_tensor *laid_out(tarn_tensor *x, way w)
{
    tarn_tensor *copy = good(tarn_to(tarn_cast(x, w.dtype), gpu));
    if (w.layout == CHANNELS_LAST)
        return with_channels_last(copy);
    if (w.layout == ROWS)
        return copy;
    tarn_tensor *more = good(tarn_pad(copy, TARN_SHAPE(0, 0, 1, 1), TARN_SHAPE(0, 0, 0, 2), 7));
    return good(tarn_shrink(more, TARN_SHAPE(0, 0, 1, 1),
                            TARN_SHAPE(tarn_size(x, 0), tarn_size(x, 1), tarn_size(x, 2) + 1, tarn_size(x, 3) + 1)));
}

typedef struct operands {
    tarn_tensor *x, *g, *weight; /* on the CPU, f32 */
} operands;

static operands make(const sized *s)
{
    operands o = {.x = whole_numbers(TARN_SHAPE(s->images, s->in, s->size[0], s->size[1])),
                  .weight =
                      tarn_requires_grad(whole_numbers(TARN_SHAPE(s->out, s->in, s->kernel[0], s->kernel[1])), true)};
    o.g = whole_numbers(tarn_shape_of(good(tarn_conv2d(o.x, o.weight, NULL, &s->options))));
    return o;
}

static tarn_tensor *gradient_here(const operands *o, const sized *s)
{
    assert_true(tarn_backward_from(good(tarn_conv2d(o->x, o->weight, NULL, &s->options)), o->g, NULL));
    return tarn_grad(o->weight);
}

static tarn_tensor *gradient_there(const operands *o, const sized *s, way w, int times)
{
    tarn_tensor *leaf =
        good(tarn_to(w.is_narrow ? tarn_detach(o->weight) : tarn_cast(tarn_detach(o->weight), w.dtype), gpu));
    leaf = tarn_requires_grad(good(tarn_clone(leaf)), true);
    tarn_tensor *x = laid_out(o->x, w),
                *g = laid_out(o->g, (way){w.dtype, w.layout == CHANNELS_LAST ? CHANNELS_LAST : ROWS, false});
    tarn_set_tf32(true);
    for (int i = 0; i < times; i++)
        assert_true(tarn_backward_from(
            good(tarn_conv2d(x, w.is_narrow ? good(tarn_cast(leaf, w.dtype)) : leaf, NULL, &s->options)), g, NULL));
    tarn_set_tf32(false);
    return good(tarn_to(tarn_grad(leaf), CPU));
}

static void compare(const sized *s, way w)
{
    tarn_scope *scope = tarn_scope_open();
    operands o = make(s);
    tarn_tensor *wanted = gradient_here(&o, s), *got = gradient_there(&o, s, w, 1);
    if (w.is_narrow)
        wanted = good(tarn_cast(tarn_cast(wanted, w.dtype), TARN_F32));
    assert_close(got, wanted, 0);
    tarn_scope_close(scope);
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

/* Tiles of several images, of bands of rows, and of parts of rows; blocks with all rows of the weight and with 64 of
 * them; kernels with more taps than a block has. */
static const sized kinds[] = {
    {130, 16, 16, {32, 32}, {3, 3}, {.padding = {1, 1}}},
    {370, 32, 32, {16, 16}, {3, 3}, {.padding = {1, 1}}},
    {700, 64, 64, {8, 8}, {3, 3}, {.padding = {1, 1}}},
    {9, 16, 32, {32, 32}, {3, 3}, {.padding = {1, 1}, .stride = {2, 2}}},
    {21, 32, 64, {16, 16}, {3, 3}, {.padding = {1, 1}, .stride = {2, 2}}},
    {14, 64, 64, {56, 56}, {3, 3}, {.padding = {1, 1}}},
    {3, 64, 128, {28, 29}, {1, 1}, {.stride = {2, 2}}},
    {5, 40, 72, {13, 11}, {1, 1}, {.stride = {1, 1}}},
    {2, 24, 8, {9, 301}, {3, 3}, {.padding = {1, 1}}},
    {1, 8, 8, {1, 5000}, {1, 3}, {.padding = {0, 1}}},
    {3, 8, 24, {20, 17}, {7, 7}, {.padding = {3, 3}, .stride = {2, 2}}},
    {4, 136, 96, {7, 7}, {3, 3}, {.padding = {1, 1}}},
    {3, 16, 16, {19, 23}, {3, 3}, {.padding = {2, 3}, .dilation = {2, 3}}},
    {3, 8, 8, {15, 16}, {3, 3}, {.stride = {3, 1}, .padding = {1, 3}, .dilation = {1, 3}}},
    {70000, 8, 8, {1, 1}, {1, 1}, {.stride = {1, 1}}},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* A shape, with fewer images under a sanitizer: still several tiles per block, and several blocks. */
static sized kind_of(int i)
{
    sized s = kinds[i];
    if (is_quick() && s.images > 12)
        s.images = s.size[0] * s.size[1] == 1 ? 3000 : 12;
    return s;
}

static void wgrad_matches_the_cpu(void **state)
{
    NEEDS_GPU();
    for (int i = 0; i < KINDS; i++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            const sized s = kind_of(i);
            print_message("convolution %d, layout %d\n", i, layout);
            for (int k = 0; k < 3; k++)
                if (!is_quick() || k == (i + layout) % 3)
                    compare(&s, (way){k == 1 ? TARN_F32 : TARN_BF16, layout, k == 2});
        }
}

static void wgrad_of_any_shape_matches_the_cpu(void **state)
{
    NEEDS_GPU();
    uint64_t bits = test_seed(3);
    for (int trial = 0; trial < (is_quick() ? 10 : 100); trial++) {
        sized s = {.images = 1 + random_below(&bits, 9),
                   .in = 8 + 8 * random_below(&bits, 10),
                   .out = 8 + 8 * random_below(&bits, 10)};
        for (int i = 0; i < 2; i++) {
            s.kernel[i] = random_below(&bits, 2) ? 3 : 1 + random_below(&bits, 5);
            s.options.stride[i] = 1 + random_below(&bits, 3), s.options.padding[i] = random_below(&bits, 4),
            s.options.dilation[i] = 1 + random_below(&bits, 3);
            s.size[i] = 1 + s.options.dilation[i] * (s.kernel[i] - 1) + random_below(&bits, 24);
        }
        compare(&s, (way){trial % 2 ? TARN_BF16 : TARN_F32, (int)random_below(&bits, LAYOUTS),
                          random_below(&bits, 3) == 0});
    }
}

/* Non-integer values: within the rounding of 8 or 11 bits, and bitwise identical twice. */
static void wgrad_is_bitwise_identical_twice(void **state)
{
    NEEDS_GPU();
    for (int i = 0; i < KINDS; i += is_quick() ? 3 : 1)
        for (int wide = 0; wide < 2; wide++) {
            tarn_scope *scope = tarn_scope_open();
            way w = {wide ? TARN_F32 : TARN_BF16, CHANNELS_LAST, false};
            const sized s = kind_of(i);
            operands o = make(&s);
            o.x = good(tarn_normal(tarn_shape_of(o.x), 0, 1, TARN_F32, CPU));
            o.g = good(tarn_normal(tarn_shape_of(o.g), 0, 1, TARN_F32, CPU));
            tarn_tensor *wanted = gradient_here(&o, &s), *got = gradient_there(&o, &s, w, 1);
            assert_close_for_size(got, wanted, wide ? 5e-3 : 3e-2);
            assert_close(gradient_there(&o, &s, w, 1), got, 0);
            tarn_scope_close(scope);
        }
}

static void wgrad_accumulates(void **state)
{
    NEEDS_GPU();
    for (int wide = 0; wide < 2; wide++) {
        operands o = make(&kinds[3]);
        tarn_tensor *once = gradient_here(&o, &kinds[3]),
                    *thrice =
                        gradient_there(&o, &kinds[3], (way){wide ? TARN_F32 : TARN_BF16, CHANNELS_LAST, false}, 3);
        assert_close(thrice, good(tarn_add(tarn_add(once, once), once)), 0);
    }
}

/* An infinity in x reaches the gradients of its channel and makes nothing NaN: it meets no padding zeros. */
static void an_infinity_stays_in_its_channel(void **state)
{
    NEEDS_GPU();
    static const sized s = {3, 16, 16, {9, 11}, {3, 3}, {.stride = {1, 1}}};
    for (int wide = 0; wide < 2; wide++)
        for (int at = 0; at < 99; at += is_quick() ? 35 : 7) {
            tarn_scope *scope = tarn_scope_open();
            operands o = make(&s);
            o.g = good(tarn_full(tarn_shape_of(o.g), -2, TARN_F32, CPU));
            float *x = calloc((size_t)tarn_count(o.x), sizeof(float));
            assert_non_null(x);
            x[16 * 99 + 5 * 99 + at] = INFINITY;
            o.x = good(tarn_from_f32(x, tarn_shape_of(o.x), CPU));
            free(x);
            tarn_tensor *got = gradient_there(&o, &s, (way){wide ? TARN_F32 : TARN_BF16, CHANNELS_LAST, false}, 1);
            for (int64_t i = 0; i < tarn_count(got); i++) {
                double g = tarn_item_at(got, TARN_SHAPE(i / 144, i / 9 % 16, i / 3 % 3, i % 3));
                /* of the result whose window contains it */
                int64_t row = at / 11 - i / 3 % 3, column = at % 11 - i % 3;
                bool meets = i / 9 % 16 == 5 && row >= 0 && row < 7 && column >= 0 && column < 9;
                assert_true(meets ? g == -INFINITY : g == 0);
            }
            tarn_scope_close(scope);
        }
}

/* TF32 would round these to 1. */
static void without_tf32_wgrad_is_f32(void **state)
{
    NEEDS_GPU();
    tarn_tensor *x = with_channels_last(good(tarn_full(TARN_SHAPE(64, 64, 8, 8), 1 + 0x1p-12, TARN_F32, gpu)));
    tarn_tensor *weight = tarn_requires_grad(good(tarn_zeros(TARN_SHAPE(64, 64, 1, 1), TARN_F32, gpu)), true),
                *y = good(tarn_conv2d(x, weight, NULL, NULL));
    assert_true(tarn_backward_from(y, good(tarn_ones(tarn_shape_of(y), TARN_F32, gpu)), NULL));
    assert_close(good(tarn_to(tarn_grad(weight), CPU)),
                 good(tarn_full(TARN_SHAPE(64, 64, 1, 1), 4096 + 1, TARN_F32, CPU)), 1e-2);
}

/* ---- that the kernel is run -------------------------------------------------------------------------------------- */

/* What another process does: MiB of workspace, at most 250, that wgrad may use. */
static int workspace_of(bool wide)
{
    gpu = tarn_device_parse("cuda");
    tarn_dtype dtype = wide ? TARN_F32 : TARN_BF16;
    tarn_set_tf32(true);
    tarn_tensor *x = with_channels_last(tarn_ones(TARN_SHAPE(16, 64, 56, 56), dtype, gpu));
    tarn_tensor *weight = tarn_requires_grad(tarn_ones(TARN_SHAPE(64, 64, 3, 3), dtype, gpu), true);
    tarn_tensor *y = tarn_conv2d(x, weight, NULL, &(tarn_conv2d_options){.padding = {1, 1}}),
                *g = with_channels_last(tarn_ones(tarn_shape_of(y), dtype, gpu));
    tarn_stats_reset();
    if (!tarn_backward_from(y, g, NULL) || tarn_item_at(tarn_grad(weight), TARN_SHAPE(0, 0, 1, 1)) != 16 * 56 * 56)
        return 255;
    int64_t mebibytes = tarn_memory_kinds_of(gpu).workspace >> 20;
    return (int)(mebibytes < 250 ? mebibytes : 250);
}

static int workspace_with(const char *setting, const char *what)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("TARN_CUDA_WGRAD", setting, 1);
        execl("/proc/self/exe", "test_conv_weight", what, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

/* im2col of these images takes 55 MiB in bf16 and 110 in f32; without it the partial gradients need at most 150 KB per
 * block. */
static void wgrad_needs_no_im2col(void **state)
{
    NEEDS_GPU();
    static const char *const what[] = {"bf16", "tf32"};
    for (int wide = 0; wide < 2; wide++) {
        int with = workspace_with("off", what[wide]), without = workspace_with("on", what[wide]);
        print_message("%s: %d MiB with columns, %d without\n", what[wide], with, without);
        assert_true(with >= (wide ? 110 : 55) && with <= 250);
        assert_true(without <= 40);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return workspace_of(strcmp(argv[1], "tf32") == 0);
    setenv("TARN_CUDA_WGRAD", "on", 1); /* read at the first wgrad */
    setenv("TARN_CUDNN", "off", 1);     /* and nothing else is tuned */
    setenv("TARN_AUTOTUNE", "off", 1);
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        ON_GPU(wgrad_matches_the_cpu),
        ON_GPU(wgrad_of_any_shape_matches_the_cpu),
        ON_GPU(wgrad_is_bitwise_identical_twice),
        ON_GPU(wgrad_accumulates),
        ON_GPU(an_infinity_stays_in_its_channel),
        ON_GPU(without_tf32_wgrad_is_f32),
        ON_GPU(wgrad_needs_no_im2col),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
