/* test_matmul_gelu.c: matmul with GELU's gradient and its column sums in bf16, by our own kernel for compute capability
 * 9.0 (TARN_CUDA_GEMM=wgmma) and by the library: which one runs, values against the CPU, and bitwise identical runs and
 * captured steps. Skipped without a device. */
#include "support/gpu.h"

#include <tarn/graph.h>
#include <tarn/profile.h>

#include "ops/internal.h"

enum { X, UP, DOWN, UP_BIAS, DOWN_BIAS, OPERANDS };

typedef struct sizes {
    int64_t rows, in, hidden, out;
    bool in_out; /* weights are [in, out] */
    bool has_biases;
} sizes;

/* Our own kernel wherever it fits, or never. */
static void choose(bool own)
{
    setenv("TARN_CUDA_GEMM", own ? "wgmma" : "cublaslt", 1);
}

/* The largest difference, relative to the largest value. */
static double apart(tarn_tensor *a, tarn_tensor *b)
{
    double *x = values_of(a), *y = values_of(b), most = 0, size = 1e-30;
    for (int64_t i = 0; i < tarn_count(a); i++) {
        most = isnan(x[i]) || isnan(y[i]) ? INFINITY : fmax(most, fabs(x[i] - y[i]));
        size = fmax(size, fabs(y[i]));
    }
    free(x);
    free(y);
    return most / size;
}

static void draw(sizes s, tarn_tensor **here)
{
    const double up = 1 / sqrt((double)s.in), down = 1 / sqrt((double)s.hidden);
    here[X] = good(tarn_normal(TARN_SHAPE(s.rows, s.in), 0, 1, TARN_BF16, CPU));
    here[UP] =
        good(tarn_normal(s.in_out ? TARN_SHAPE(s.in, s.hidden) : TARN_SHAPE(s.hidden, s.in), 0, up, TARN_BF16, CPU));
    here[DOWN] = good(
        tarn_normal(s.in_out ? TARN_SHAPE(s.hidden, s.out) : TARN_SHAPE(s.out, s.hidden), 0, down, TARN_BF16, CPU));
    here[UP_BIAS] = s.has_biases ? good(tarn_normal(TARN_SHAPE(s.hidden), 0, 1, TARN_BF16, CPU)) : NULL;
    here[DOWN_BIAS] = s.has_biases ? good(tarn_normal(TARN_SHAPE(s.out), 0, 1, TARN_BF16, CPU)) : NULL;
}

/* The result and the gradients of all operands. */
static tarn_tensor *apply(sizes s, tarn_tensor *const *in, tarn_tensor *g, tarn_device device, tarn_tensor **grad)
{
    tarn_tensor *leaf[OPERANDS];
    for (int i = 0; i < OPERANDS; i++)
        leaf[i] = in[i] ? tarn_requires_grad(good(tarn_to(tarn_detach(in[i]), device)), true) : NULL;
    tarn_tensor *y =
        good(s.in_out ? tarn__mlp_in_out(leaf[X], leaf[UP], leaf[DOWN], leaf[UP_BIAS], leaf[DOWN_BIAS], TARN_GELU)
                      : tarn_mlp(leaf[X], leaf[UP], leaf[DOWN], leaf[UP_BIAS], leaf[DOWN_BIAS]));
    assert_true(tarn_backward_from(y, good(tarn_to(g, device)), NULL));
    for (int i = 0; i < OPERANDS; i++)
        grad[i] = leaf[i] ? good(tarn_grad(leaf[i])) : NULL;
    return y;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void agrees_with_the_cpu(sizes s)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *in[OPERANDS], *expected[OPERANDS + 1], *found[OPERANDS + 1];
    draw(s, in);
    tarn_tensor *g = good(tarn_normal(TARN_SHAPE(s.rows, s.out), 0, 1, TARN_BF16, CPU));
    expected[OPERANDS] = apply(s, in, g, CPU, expected);
    for (int own = 0; own < 2; own++) {
        choose(own);
        found[OPERANDS] = apply(s, in, g, gpu, found);
        for (int i = 0; i <= OPERANDS; i++)
            if (expected[i] && !(apart(found[i], expected[i]) < 2e-2))
                fail_msg("value %d of %lld x %lld x %lld x %lld%s%s, %s: %g away from the CPU's", i, (long long)s.rows,
                         (long long)s.in, (long long)s.hidden, (long long)s.out, s.in_out ? ", in out" : "",
                         s.has_biases ? ", biases" : "", own ? "wgmma" : "cublaslt", apart(found[i], expected[i]));
    }
    assert_ok();
    tarn_scope_close(scope);
}

/* One tile and many, partial tiles in each direction, an odd number of rows of tiles, a k that is not a multiple of the
 * copied box, more tiles than multiprocessors. */
static void both_paths_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const sizes all[] = {{128, 512, 256, 512, false, true}, {256, 512, 512, 512, true, true},
                                {100, 520, 264, 568, true, true},  {300, 640, 776, 512, false, false},
                                {65, 512, 8, 640, true, false},    {390, 768, 1032, 768, true, true},
                                {8, 512, 2056, 512, false, true},  {2100, 512, 2304, 512, true, true}};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (!is_quick() || i < 3)
            agrees_with_the_cpu(all[i]);
}

/* ---- choice ------------------------------------------------------------------------------------------------------ */

/* True if a kernel of this variant ran in a step. */
static bool runs_variant(sizes s, const char *variant)
{
    tarn_tensor *in[OPERANDS], *grad[OPERANDS], *g = good(tarn_normal(TARN_SHAPE(s.rows, s.out), 0, 1, TARN_BF16, CPU));
    draw(s, in);
    assert_true(tarn_profile_start(gpu));
    apply(s, in, g, gpu, grad);
    assert_true(tarn_profile_stop());
    int count = 0;
    tarn_profile_record record;
    for (int64_t i = 0; i < tarn_profile_count(); i++)
        count += tarn_profile_get(i, &record) && record.variant && strcmp(record.variant, variant) == 0;
    tarn_profile_clear();
    return count > 0;
}

static void the_device_and_the_call_choose_the_path(void **state)
{
    NEEDS_GPU();
    const sizes fits = {256, 512, 512, 512, true, true}, is_shallow = {256, 256, 512, 256, true, true};
    choose(true);
    assert_int_equal(runs_variant(fits, "wgmma"), has_wgmma());
    assert_false(runs_variant(is_shallow, "wgmma"));
    choose(false);
    assert_false(runs_variant(fits, "wgmma"));
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

typedef struct recording {
    tarn_tensor *in[OPERANDS], *g, *y, *grad, *sums; /* sums: the gradient of up_bias */
} recording;

static bool step(void *ctx)
{
    recording *r = ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *y = tarn__mlp_in_out(r->in[X], r->in[UP], r->in[DOWN], r->in[UP_BIAS], r->in[DOWN_BIAS], TARN_GELU);
    bool done = tarn_copy(r->y, y) && tarn_backward_from(y, r->g, NULL) && tarn_copy(r->grad, tarn_grad(r->in[X])) &&
                tarn_copy(r->sums, tarn_grad(r->in[UP_BIAS]));
    for (int i = 0; i < OPERANDS; i++)
        tarn_zero_grad(r->in[i]);
    tarn_scope_close(scope);
    return done;
}

static void runs_and_captured_steps_are_bitwise_identical(void **state)
{
    NEEDS_GPU();
    const sizes s = {is_quick() ? 200 : 3000, 768, is_quick() ? 512 : 3072, 768, true, true};
    const size_t bytes = sizeof(double) * (size_t)(s.rows * s.in);
    recording r;
    choose(true);
    draw(s, r.in);
    for (int i = 0; i < OPERANDS; i++)
        r.in[i] = tarn_requires_grad(good(tarn_to(r.in[i], gpu)), true);
    r.g = good(tarn_normal(TARN_SHAPE(s.rows, s.out), 0, 1, TARN_BF16, gpu));
    r.y = good(tarn_zeros(TARN_SHAPE(s.rows, s.out), TARN_BF16, gpu));
    r.grad = good(tarn_zeros(TARN_SHAPE(s.rows, s.in), TARN_F32, gpu));
    r.sums = good(tarn_zeros(TARN_SHAPE(s.hidden), TARN_F32, gpu));
    double *y[3], *grad[3], *sums[3];
    for (int run = 0; run < 3; run++) {
        tarn_graph *graph = run == 2 ? tarn_graph_capture(gpu, step, &r) : NULL;
        assert_true(run == 2 ? tarn_graph_run(graph) : step(&r));
        y[run] = values_of(r.y);
        grad[run] = values_of(r.grad);
        sums[run] = values_of(r.sums);
        tarn_graph_free(graph);
    }
    assert_ok();
    for (int run = 1; run < 3; run++) {
        assert_memory_equal(y[run], y[0], bytes);
        assert_memory_equal(grad[run], grad[0], bytes);
        assert_memory_equal(sums[run], sums[0], sizeof(double) * (size_t)s.hidden);
    }
    for (int run = 0; run < 3; run++) {
        free(y[run]);
        free(grad[run]);
        free(sums[run]);
    }
}

int main(void)
{
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        ON_GPU(both_paths_match_the_cpu),
        ON_GPU(the_device_and_the_call_choose_the_path),
        ON_GPU(runs_and_captured_steps_are_bitwise_identical),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
