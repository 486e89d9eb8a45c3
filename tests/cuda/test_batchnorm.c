/* test_batchnorm.c: the persistent batchnorm kernel on a CUDA device: against the CPU, against multipass
 * (TARN_CUDA_BATCHNORM=multipass), twice, and in a captured step. Sizes from a few elements to more than all blocks can
 * keep in shared memory. Skipped without a device. */
#include <stdlib.h>

#include <tarn/graph.h>

#include "support/gpu.h"

static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F16};
static const double tolerances[] = {1e-5, 1e-2, 2e-3};
enum { DTYPES = 3 };

/* Channels that fill one vector of a position and many; ranges that end inside a line; one, two and eight blocks per
 * channel. */
static const tarn_shape small[] = {
    {4, {9, 64, 7, 5}},    {4, {5, 8, 40, 40}},  {4, {3, 16, 37, 41}}, {4, {33, 128, 9, 8}},  {4, {2, 4, 1, 4096}},
    {4, {6, 200, 16, 24}}, {4, {11, 520, 8, 8}}, {4, {70, 3, 24, 8}},  {4, {600, 32, 3, 16}},
};
static const tarn_shape large[] = {{4, {128, 64, 32, 32}}, {4, {1024, 16, 32, 32}}, {4, {517, 128, 14, 14}}};
enum { SMALL = sizeof(small) / sizeof(small[0]), LARGE = sizeof(large) / sizeof(large[0]) };

/* ---- what is compared -------------------------------------------------------------------------------------------- */

enum { X, WEIGHT, BIAS, RESIDUAL, LEAVES };                  /* all but the residual have gradients in every kind */
enum { Y, MEAN, VARIANCE, GRADS, FIGURES = GRADS + LEAVES }; /* results of a call */
enum { PLAIN, RELU, RELU_OF_SUM, KINDS };

static tarn_tensor *laid_out(tarn_tensor *x, bool is_last)
{
    return is_last ? good(tarn_permute(good(tarn_contiguous(tarn_permute(x, TARN_AXES(0, 2, 3, 1)))),
                                       TARN_AXES(0, 3, 1, 2)))
                   : x;
}

typedef struct operands {
    tarn_tensor *leaf[LEAVES], *g;
} operands;

static operands draw(tarn_shape shape, tarn_dtype dtype, bool is_last)
{
    tarn_shape channels = TARN_SHAPE(shape.size[1]);
    return (operands){{laid_out(good(tarn_normal(shape, 0.5, 2, dtype, gpu)), is_last),
                       good(tarn_normal(channels, 1, 0.3, TARN_F32, gpu)),
                       good(tarn_normal(channels, 0, 0.3, TARN_F32, gpu)),
                       laid_out(good(tarn_normal(shape, 0, 1, dtype, gpu)), is_last)},
                      laid_out(good(tarn_normal(shape, 0, 1, dtype, gpu)), is_last)};
}

/* Result, running statistics and gradients of a call on a device. */
static void run(const operands *o, int kind, tarn_device device, tarn_tensor **made)
{
    static const tarn_batchnorm_options training = {.training = true};
    tarn_tensor *leaf[LEAVES];
    tarn_shape channels = tarn_shape_of(o->leaf[WEIGHT]);
    for (int i = 0; i < LEAVES; i++)
        leaf[i] = tarn_requires_grad(good(tarn_detach(good(tarn_to(o->leaf[i], device)))), true);
    made[MEAN] = good(tarn_zeros(channels, TARN_F32, device));
    made[VARIANCE] = good(tarn_ones(channels, TARN_F32, device));
    if (kind == PLAIN)
        made[Y] = good(tarn_batchnorm(leaf[X], leaf[WEIGHT], leaf[BIAS], made[MEAN], made[VARIANCE], &training));
    else
        made[Y] = good(tarn_batchnorm_relu(leaf[X], kind == RELU ? NULL : leaf[RESIDUAL], leaf[WEIGHT], leaf[BIAS],
                                           made[MEAN], made[VARIANCE], &training));
    assert_true(tarn_backward_from(made[Y], good(tarn_to(o->g, device)), NULL));
    for (int i = 0; i < LEAVES; i++)
        made[GRADS + i] = tarn_grad(leaf[i]);
}

/* The largest difference, relative to the largest value. */
static double apart(tarn_tensor *a, tarn_tensor *b)
{
    double *x = values_of(a), *y = values_of(b), most = 0, size = 1e-30;
    for (int64_t i = 0; i < tarn_count(a); i++) {
        most = isfinite(x[i]) && isfinite(y[i]) ? fmax(most, fabs(x[i] - y[i])) : INFINITY;
        size = fmax(size, fabs(y[i]));
    }
    free(x);
    free(y);
    return most / size;
}

static void assert_alike(tarn_tensor *const *made, tarn_tensor *const *wanted, double tolerance)
{
    for (int i = 0; i < FIGURES; i++) {
        assert_true((made[i] == NULL) == (wanted[i] == NULL));
        assert_true(!made[i] || apart(made[i], wanted[i]) <= tolerance);
    }
}

/* Multipass, whatever the size. */
static void run_in_passes(const operands *o, int kind, tarn_tensor **made)
{
    setenv("TARN_CUDA_BATCHNORM", "multipass", 1);
    run(o, kind, gpu, made);
    unsetenv("TARN_CUDA_BATCHNORM");
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* With relu, elements near 0 could be on its other side on the CPU. */
static void compare(tarn_shape shape, int d, bool is_last)
{
    tarn_tensor *made[FIGURES], *wanted[FIGURES];
    for (int kind = PLAIN; kind < KINDS; kind++) {
        tarn_scope *scope = tarn_scope_open();
        operands o = draw(shape, dtypes[d], is_last);
        run(&o, kind, gpu, made);
        if (kind == PLAIN)
            run(&o, kind, CPU, wanted);
        else
            run_in_passes(&o, kind, wanted);
        assert_alike(made, wanted, tolerances[d]);
        tarn_scope_close(scope);
    }
}

static int64_t count_of(tarn_shape s)
{
    return s.size[0] * s.size[1] * s.size[2] * s.size[3];
}

static void small_tensors_match(void **state)
{
    NEEDS_GPU();
    for (int d = 0; d < DTYPES; d++)
        for (int i = 0; i < SMALL; i++)
            for (int last = 0; last < 2; last++)
                if (!is_quick() || (count_of(small[i]) < 100000 && (i + d + last) % 2 == 0))
                    compare(small[i], d, last);
}

static void tensors_larger_than_shared_memory_match(void **state)
{
    NEEDS_GPU();
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < LARGE; i++)
            for (int last = 0; last < 2; last++)
                compare(large[i], d, last);
}

/* Sums of integers are exact in any order: a vector that is skipped or counted twice shows. */
static void persistent_and_multipass_sum_the_same_elements(void **state)
{
    NEEDS_GPU();
    for (int i = 0; i < SMALL + LARGE; i++)
        for (int last = 0; last < 2; last++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_shape shape = i < SMALL ? small[i] : large[i - SMALL];
            operands o = draw(shape, TARN_F32, last);
            o.g = good(tarn_cast(good(tarn_cast(o.g, TARN_I32)), TARN_F32));
            tarn_tensor *made[FIGURES];
            run(&o, PLAIN, gpu, made);
            assert_close(made[GRADS + BIAS], good(tarn_sum(o.g, TARN_AXES(0, 2, 3), false)), 0);
            tarn_scope_close(scope);
        }
}

static void runs_are_bitwise_identical(void **state)
{
    NEEDS_GPU();
    for (int d = 0; d < DTYPES; d++)
        for (int last = 0; last < 2; last++)
            for (int kind = PLAIN; kind < KINDS; kind++) {
                tarn_scope *scope = tarn_scope_open();
                tarn_tensor *first[FIGURES], *second[FIGURES];
                operands o = draw(large[0], dtypes[d], last);
                run(&o, kind, gpu, first);
                run(&o, kind, gpu, second);
                assert_alike(second, first, 0);
                tarn_scope_close(scope);
            }
}

typedef struct step {
    operands o;
    tarn_tensor *made[2], *mean, *variance; /* y and the gradient of x */
} step;

static bool take_step(void *ctx)
{
    step *s = ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = tarn_requires_grad(tarn_detach(s->o.leaf[X]), true);
    tarn_tensor *y = tarn_batchnorm_relu(x, NULL, s->o.leaf[WEIGHT], s->o.leaf[BIAS], s->mean, s->variance,
                                         &(tarn_batchnorm_options){.training = true});
    bool done = tarn_backward_from(y, s->o.g, NULL) && tarn_copy(s->made[0], y) && tarn_copy(s->made[1], tarn_grad(x));
    tarn_scope_close(scope);
    return done;
}

/* The counters that blocks wait on are left at 0, run after run. */
static void a_captured_step_is_bitwise_identical_to_an_eager_one(void **state)
{
    NEEDS_GPU();
    for (int last = 0; last < 2; last++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_shape shape = {4, {40, 32, 24, 24}}, channels = TARN_SHAPE(32);
        step s = {.o = draw(shape, TARN_BF16, last),
                  .mean = good(tarn_zeros(channels, TARN_F32, gpu)),
                  .variance = good(tarn_ones(channels, TARN_F32, gpu))};
        for (int i = 0; i < 2; i++)
            s.made[i] = good(tarn_zeros(shape, TARN_BF16, gpu));
        tarn_tensor *wanted[2];
        assert_true(take_step(&s));
        for (int i = 0; i < 2; i++)
            wanted[i] = good(tarn_clone(s.made[i]));
        tarn_graph *graph = tarn_graph_capture(gpu, take_step, &s);
        assert_ok();
        for (int run = 0; run < 3; run++) {
            for (int i = 0; i < 2; i++)
                assert_true(tarn_copy(s.made[i], good(tarn_zeros(shape, TARN_BF16, gpu))));
            assert_true(tarn_graph_run(graph));
            for (int i = 0; i < 2; i++)
                assert_close(s.made[i], wanted[i], 0);
        }
        tarn_graph_free(graph);
        tarn_scope_close(scope);
    }
}

#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)

int main(void)
{
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
    const struct CMUnitTest tests[] = {
        ON_GPU(small_tensors_match),
        ON_GPU(tensors_larger_than_shared_memory_match),
        ON_GPU(persistent_and_multipass_sum_the_same_elements),
        ON_GPU(runs_are_bitwise_identical),
        ON_GPU(a_captured_step_is_bitwise_identical_to_an_eager_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
