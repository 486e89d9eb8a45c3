/* test_attention_grad.c: gradients of attention in 16 bits on a CUDA device, on both tensor-core paths, wgmma and
 * mma.sync (TARN_CUDA_ATTENTION=mma): which one runs, against the CPU, packed, with some gradients only, and bitwise
 * identical runs and captured steps. Without cuDNN. Skipped without a device. */
#include "support/gpu.h"

#include <tarn/graph.h>
#include <tarn/profile.h>

enum { Q, K, V, OPERANDS };

typedef struct sizes {
    int64_t batches, heads, kv_heads, rows, keys, depth;
} sizes;

/* With the kernels of earlier devices, or the best. */
static void choose(bool earlier)
{
    if (earlier)
        setenv("TARN_CUDA_ATTENTION", "mma", 1);
    else
        unsetenv("TARN_CUDA_ATTENTION");
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

static void draw(sizes s, tarn_dtype dtype, tarn_tensor **here)
{
    const tarn_shape shape[] = {TARN_SHAPE(s.batches, s.heads, s.rows, s.depth),
                                TARN_SHAPE(s.batches, s.kv_heads, s.keys, s.depth)};
    for (int i = 0; i < OPERANDS; i++)
        here[i] = good(tarn_normal(shape[i != Q], 0, 1, dtype, CPU));
}

/* Gradients of those operands whose bit is set in `wanted`. The same elements are dropped on every device. */
static void attend(tarn_tensor *const *in, tarn_tensor *g, bool causal, double dropout, int wanted, tarn_tensor **grad)
{
    tarn_tensor *leaf[OPERANDS];
    for (int i = 0; i < OPERANDS; i++) {
        leaf[i] = good(tarn_detach(in[i]));
        if (wanted >> i & 1)
            tarn_requires_grad(leaf[i], true);
    }
    tarn_seed(11);
    tarn_tensor *y = good(
        tarn_attention(leaf[Q], leaf[K], leaf[V], &(tarn_attention_options){.causal = causal, .dropout = dropout}));
    assert_true(tarn_backward_from(y, g, NULL));
    for (int i = 0; i < OPERANDS; i++)
        grad[i] = wanted >> i & 1 ? good(tarn_grad(leaf[i])) : NULL;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void agrees_with_the_cpu(sizes s, tarn_dtype dtype, bool causal, double dropout, int wanted, double tolerance)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *here[OPERANDS], *there[OPERANDS], *expected[OPERANDS], *found[OPERANDS];
    draw(s, dtype, here);
    for (int i = 0; i < OPERANDS; i++)
        there[i] = good(tarn_to(here[i], gpu));
    tarn_tensor *g = good(tarn_normal(TARN_SHAPE(s.batches, s.heads, s.rows, s.depth), 0, 1, dtype, CPU)),
                *g_there = good(tarn_to(g, gpu));
    attend(here, g, causal, dropout, wanted, expected);
    for (int earlier = 0; earlier < 2; earlier++) {
        choose(earlier);
        attend(there, g_there, causal, dropout, wanted, found);
        choose(false);
        for (int i = 0; i < OPERANDS; i++)
            if (wanted >> i & 1 && !(apart(found[i], expected[i]) < tolerance))
                fail_msg("gradient %d of %lld x %lld (%lld) x %lld (%lld) x %lld%s, dropout %g, %s: %g away from the "
                         "CPU's",
                         i, (long long)s.batches, (long long)s.heads, (long long)s.kv_heads, (long long)s.rows,
                         (long long)s.keys, (long long)s.depth, causal ? ", causal" : "", dropout,
                         earlier ? "mma" : "best", apart(found[i], expected[i]));
    }
    assert_ok();
    tarn_scope_close(scope);
}

/* One tile of 128 and many, tiles that are not full, one own tile in the middle of an odd number, more work than there
 * are multiprocessors, grouped heads, rows that see no key, head_dim that does not fill its kernel. */
static void both_paths_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const sizes all[] = {{1, 1, 1, 64, 64, 64},    {1, 2, 2, 128, 128, 64},  {2, 3, 3, 129, 257, 64},
                                {1, 4, 2, 300, 300, 64},  {1, 4, 1, 333, 77, 64},   {1, 2, 2, 700, 650, 64},
                                {30, 8, 8, 130, 130, 64}, {1, 2, 1, 128, 128, 128}, {1, 4, 2, 390, 390, 128},
                                {1, 2, 1, 260, 129, 128}, {20, 8, 4, 70, 140, 128}, {1, 2, 2, 200, 300, 40},
                                {1, 2, 2, 150, 150, 72},  {1, 2, 1, 290, 200, 96}};
    static const tarn_dtype dtypes[] = {TARN_BF16, TARN_F16};
    static const double tolerance[] = {3e-2, 4e-3};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (int d = 0; d < 2; d++)
            for (int causal = 0; causal < 2; causal++)
                if (!is_quick() || (all[i].batches < 3 && causal == (int)(i + (size_t)d) % 2))
                    agrees_with_the_cpu(all[i], dtypes[d], causal, 0, 7, tolerance[d]);
}

/* Masks of one block of 64 rows and 64 keys and of many, of partial blocks, of grouped heads, of rows that see no key;
 * the max number of keys with dropout in wgmma kernels, and one more; a head_dim above theirs. */
static void dropout_matches_the_cpu(void **state)
{
    NEEDS_GPU();
    static const sizes all[] = {{1, 1, 1, 64, 64, 64},   {2, 3, 3, 256, 256, 64}, {2, 3, 3, 129, 257, 64},
                                {1, 4, 2, 300, 300, 64}, {1, 4, 1, 333, 77, 64},  {1, 2, 2, 200, 390, 40},
                                {1, 2, 1, 70, 1024, 64}, {1, 2, 1, 70, 1025, 64}, {1, 2, 2, 150, 150, 72}};
    static const tarn_dtype dtypes[] = {TARN_BF16, TARN_F16};
    static const double tolerance[] = {3e-2, 4e-3};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (int d = 0; d < 2; d++)
            for (int causal = 0; causal < 2; causal++)
                if (!is_quick() || causal == (int)(i + (size_t)d) % 2)
                    agrees_with_the_cpu(all[i], dtypes[d], causal, i % 2 ? 0.2 : 0.5, 7, tolerance[d]);
}

/* Without a gradient of q, delta has a kernel of its own. */
static void some_gradients_match_the_cpu(void **state)
{
    NEEDS_GPU();
    for (int wanted = 1; wanted < 7; wanted++)
        for (int64_t depth = 64; depth <= 128; depth += 64)
            agrees_with_the_cpu((sizes){1, 2, 1, 200, 170, depth}, TARN_BF16, wanted % 2, depth == 64 ? 0.2 : 0, wanted,
                                3e-2);
}

/* q, k and v in one tensor, whose gradient is in 16 bits: rows are further apart than they are long. */
static void packed_gradients_match_the_cpu(void **state)
{
    NEEDS_GPU();
    for (int earlier = 0; earlier < 2; earlier++) {
        tarn_tensor *x = good(tarn_normal(TARN_SHAPE(2, 290, 8 * 64), 0, 1, TARN_F32, CPU)), *grad[2], *g = NULL;
        for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
            tarn_tensor *leaf = good(tarn_to(tarn_detach(x), on_gpu ? gpu : CPU));
            tarn_requires_grad(leaf, true);
            choose(earlier);
            tarn_tensor *y = good(tarn_attention_packed(good(tarn_cast(leaf, TARN_BF16)), 4, 2,
                                                        &(tarn_attention_options){.causal = true}));
            g = on_gpu ? good(tarn_to(g, gpu)) : good(tarn_normal_like(y, 0, 1));
            assert_true(tarn_backward_from(y, g, NULL));
            choose(false);
            grad[on_gpu] = good(tarn_grad(leaf));
        }
        assert_true(apart(grad[1], grad[0]) < 3e-2);
    }
}

/* ---- choice ------------------------------------------------------------------------------------------------------ */

/* The variant of the gradient's kernel. */
static const char *variant_of(sizes s, const tarn_attention_options *o)
{
    tarn_tensor *in[OPERANDS];
    draw(s, TARN_BF16, in);
    for (int i = 0; i < OPERANDS; i++)
        in[i] = tarn_requires_grad(good(tarn_to(in[i], gpu)), true);
    tarn_tensor *y = good(tarn_attention(in[Q], in[K], in[V], o)), *g = good(tarn_normal_like(y, 0, 1));
    assert_true(tarn_profile_start(gpu) && tarn_backward_from(y, g, NULL) && tarn_profile_stop());
    const char *found = NULL;
    tarn_profile_record record;
    for (int64_t i = 0; i < tarn_profile_count(); i++)
        if (tarn_profile_get(i, &record) && record.kind == TARN_PROFILE_ATTENTION)
            found = record.variant;
    tarn_profile_clear();
    assert_non_null(found);
    return found;
}

static void the_device_and_the_call_choose_the_path(void **state)
{
    NEEDS_GPU();
    const sizes s = {1, 2, 1, 150, 150, 64};
    const tarn_attention_options causal = {.causal = true}, dropout = {.dropout = 0.2},
                                 window = {.causal = true, .window = 9};
    assert_string_equal(variant_of(s, &causal), has_wgmma() ? "wgmma" : "mma");
    assert_string_equal(variant_of(s, &dropout), has_wgmma() ? "wgmma" : "mma");
    assert_string_equal(variant_of((sizes){1, 2, 1, 150, 150, 72}, &dropout), "mma");
    assert_string_equal(variant_of((sizes){1, 2, 1, 70, 1025, 64}, &dropout), "mma");
    assert_string_equal(variant_of(s, &window), "mma");
    assert_string_equal(variant_of((sizes){1, 2, 1, 150, 150, 32}, &causal), "mma");
    choose(true);
    assert_string_equal(variant_of(s, &causal), "mma");
    choose(false);
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

typedef struct recording {
    tarn_tensor *x, *g, *grad;
} recording;

static bool step(void *ctx)
{
    recording *r = ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *y = tarn_attention_packed(r->x, 4, 2, &(tarn_attention_options){.causal = true});
    bool done = tarn_backward_from(y, r->g, NULL) && tarn_copy(r->grad, tarn_grad(r->x));
    tarn_zero_grad(r->x);
    tarn_scope_close(scope);
    return done;
}

static void runs_and_captured_steps_are_bitwise_identical(void **state)
{
    NEEDS_GPU();
    for (int64_t depth = 64; depth <= 128; depth += 64) {
        const int64_t rows = is_quick() ? 140 : 600, batches = is_quick() ? 1 : 12, count = batches * rows * 8 * depth;
        recording r = {.x = tarn_requires_grad(
                           good(tarn_normal(TARN_SHAPE(batches, rows, 8 * depth), 0, 1, TARN_BF16, gpu)), true),
                       .g = good(tarn_normal(TARN_SHAPE(batches, rows, 4 * depth), 0, 1, TARN_BF16, gpu)),
                       .grad = good(tarn_zeros(TARN_SHAPE(batches, rows, 8 * depth), TARN_F32, gpu))};
        double *grad[3];
        for (int run = 0; run < 3; run++) {
            tarn_graph *graph = run == 2 ? tarn_graph_capture(gpu, step, &r) : NULL;
            assert_true(run == 2 ? tarn_graph_run(graph) : step(&r));
            grad[run] = values_of(r.grad);
            tarn_graph_free(graph);
        }
        assert_ok();
        assert_memory_equal(grad[1], grad[0], sizeof(double) * (size_t)count);
        assert_memory_equal(grad[2], grad[0], sizeof(double) * (size_t)count);
        for (int run = 0; run < 3; run++)
            free(grad[run]);
    }
}

int main(void)
{
    setenv("TARN_CUDNN", "off", 1);
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        ON_GPU(both_paths_match_the_cpu),
        ON_GPU(dropout_matches_the_cpu),
        ON_GPU(some_gradients_match_the_cpu),
        ON_GPU(packed_gradients_match_the_cpu),
        ON_GPU(the_device_and_the_call_choose_the_path),
        ON_GPU(runs_and_captured_steps_are_bitwise_identical),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
