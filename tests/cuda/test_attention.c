/*
 * Attention on a CUDA device against the CPU: every form that its kernels take, the same weights dropped, the same bits in every run and in a
 * captured one, memory that is linear in the rows. Without a device every test is skipped.
 */
#include "support/gpu.h"

#include <tarn/graph.h>

#define CPU tarn_device_cpu()

enum { Q, K, V, OPERANDS };

typedef struct sizes {
    int64_t batches, heads, kv_heads, rows, keys, depth;
} sizes;

/* Leaves on the CPU and the same on the device. */
static void make_operands(sizes s, tarn_dtype dtype, tarn_tensor **here, tarn_tensor **there)
{
    here[Q] = tarn_normal(TARN_SHAPE(s.batches, s.heads, s.rows, s.depth), 0, 1, dtype, CPU);
    here[K] = tarn_normal(TARN_SHAPE(s.batches, s.kv_heads, s.keys, s.depth), 0, 1, dtype, CPU);
    here[V] = tarn_normal(TARN_SHAPE(s.batches, s.kv_heads, s.keys, s.depth), 0, 1, dtype, CPU);
    for (int i = 0; i < OPERANDS; i++) {
        tarn_requires_grad(good(here[i]), true);
        there[i] = tarn_requires_grad(good(tarn_to(tarn_detach(here[i]), gpu)), true);
    }
}

/* The largest difference, as a share of the largest value. */
static double apart(tarn_tensor *a, tarn_tensor *b)
{
    double *x = values_of(a), *y = values_of(b), most = 0, size = 1e-30;
    for (int64_t i = 0; i < tarn_count(a); i++) {
        most = fmax(most, fabs(x[i] - y[i]));
        most = isnan(x[i]) != isnan(y[i]) ? INFINITY : most;
        size = fmax(size, fabs(y[i]));
    }
    free(x);
    free(y);
    return most / size;
}

/* ---- values ---------------------------------------------------------------------------------------------------------------- */

static void agrees_with_the_cpu(sizes s, tarn_dtype dtype, tarn_attention_options o, double tolerance)
{
    tarn_tensor *here[OPERANDS], *there[OPERANDS];
    make_operands(s, dtype, here, there);
    tarn_attention_options other = o;
    other.lengths = o.lengths ? good(tarn_to(o.lengths, gpu)) : NULL;
    tarn_seed(11);
    tarn_tensor *wanted = good(tarn_attention(here[Q], here[K], here[V], &o));
    tarn_seed(11);
    tarn_tensor *found = good(tarn_attention(there[Q], there[K], there[V], &other));
    assert_true(apart(found, wanted) < tolerance);
    tarn_tensor *g = good(tarn_normal_like(wanted, 0, 1));
    assert_true(tarn_backward_from(wanted, g, NULL) && tarn_backward_from(found, tarn_to(g, gpu), NULL));
    for (int i = 0; i < OPERANDS; i++)
        assert_true(apart(tarn_grad(there[i]), tarn_grad(here[i])) < tolerance);
    assert_ok();
}

/* Every width that tensor cores take, and sizes beside them; blocks of rows and keys that end anywhere. */
static void every_form_agrees_with_the_cpu(void **state)
{
    NEEDS_GPU();
    static const sizes all[] = {{2, 2, 1, 65, 65, 32},    {1, 4, 2, 130, 200, 64}, {1, 2, 2, 70, 33, 80}, {1, 2, 1, 129, 127, 128},
                                {1, 2, 1, 65, 130, 256}, {2, 3, 1, 1, 190, 64},    {1, 2, 1, 40, 50, 7},  {1, 1, 1, 20, 30, 300},
                                {1, 2, 2, 64, 64, 8}};
    static const tarn_dtype dtypes[] = {TARN_F64, TARN_F32, TARN_BF16, TARN_F16};
    static const double tolerance[] = {1e-12, 1e-5, 3e-2, 4e-3};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (int d = 0; d < 4; d++)
            for (int causal = 0; causal < 2; causal++) {
                tarn_scope *scope = tarn_scope_open();
                agrees_with_the_cpu(all[i], dtypes[d], (tarn_attention_options){.causal = causal}, tolerance[d]);
                tarn_scope_close(scope);
            }
}

static void lengths_and_dropout_agree_with_the_cpu(void **state)
{
    NEEDS_GPU();
    tarn_tensor *lengths = good(tarn_from_i64((const int64_t[]){61, 100, 0}, TARN_SHAPE(3), CPU));
    for (int causal = 0; causal < 2; causal++) {
        tarn_attention_options o = {.causal = causal, .dropout = 0.3, .lengths = lengths};
        agrees_with_the_cpu((sizes){3, 4, 2, 70, 101, 64}, TARN_BF16, o, 3e-2);
        agrees_with_the_cpu((sizes){3, 4, 2, 70, 101, 136}, TARN_F16, o, 4e-3);
        agrees_with_the_cpu((sizes){3, 4, 2, 70, 101, 20}, TARN_F32, o, 1e-5);
        agrees_with_the_cpu((sizes){3, 2, 2, 40, 101, 16}, TARN_F64, o, 1e-6); /* the factor is f32 */
    }
}

/* With values of one 1 each the result is the weights: those that are 0 are the same ones. */
static void the_same_weights_are_dropped(void **state)
{
    NEEDS_GPU();
    enum { KEYS = 72, ROWS = 70 };
    tarn_tensor *eye = good(tarn_expand(tarn_one_hot(tarn_arange(0, KEYS, 1, TARN_I64, CPU), KEYS, TARN_BF16), TARN_SHAPE(1, 2, KEYS, KEYS)));
    tarn_tensor *q = good(tarn_normal(TARN_SHAPE(1, 2, ROWS, KEYS), 0, 0.1, TARN_BF16, CPU));
    tarn_tensor *k = good(tarn_normal(TARN_SHAPE(1, 2, KEYS, KEYS), 0, 0.1, TARN_BF16, CPU));
    tarn_attention_options o = {.dropout = 0.4};
    tarn_seed(21);
    double *wanted = values_of(good(tarn_attention(q, k, eye, &o)));
    tarn_seed(21);
    double *found = values_of(good(tarn_attention(tarn_to(q, gpu), tarn_to(k, gpu), tarn_to(eye, gpu), &o)));
    for (int64_t i = 0; i < 2 * ROWS * KEYS; i++)
        assert_true((wanted[i] == 0) == (found[i] == 0));
    free(wanted);
    free(found);
}

/* ---- bits ------------------------------------------------------------------------------------------------------------------ */

typedef struct recording {
    tarn_tensor *x, *sum, *grad;
} recording;

static bool attend(void *ctx)
{
    recording *r = ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *y = tarn_attention_packed(r->x, 4, 2, &(tarn_attention_options){.causal = true, .dropout = 0.2});
    bool done = tarn_copy(r->sum, y) && tarn_backward_from(y, r->sum, NULL) && tarn_copy(r->grad, tarn_grad(r->x));
    tarn_zero_grad(r->x);
    tarn_scope_close(scope);
    return done;
}

static void runs_have_the_same_bits_and_so_has_a_captured_one(void **state)
{
    NEEDS_GPU();
    static const tarn_dtype dtypes[] = {TARN_BF16, TARN_F32};
    for (int d = 0; d < 2; d++) {
        recording r = {.x = tarn_requires_grad(good(tarn_normal(TARN_SHAPE(2, 150, 8 * 64), 0, 1, dtypes[d], gpu)), true)};
        r.sum = good(tarn_zeros(TARN_SHAPE(2, 150, 4 * 64), dtypes[d], gpu));
        r.grad = good(tarn_zeros(TARN_SHAPE(2, 150, 8 * 64), TARN_F32, gpu));
        double *sum[3], *grad[3];
        for (int run = 0; run < 3; run++) {
            tarn_seed(31);
            assert_true(attend(&r) && attend(&r));
            tarn_graph *graph = run == 2 ? tarn_graph_capture(gpu, attend, &r) : NULL;
            assert_true(run == 2 ? tarn_graph_run(graph) : attend(&r));
            sum[run] = values_of(r.sum);
            grad[run] = values_of(r.grad);
            tarn_graph_free(graph);
        }
        assert_ok();
        for (int run = 1; run < 3; run++) {
            assert_memory_equal(sum[run], sum[0], sizeof(double) * 2 * 150 * 4 * 64);
            assert_memory_equal(grad[run], grad[0], sizeof(double) * 2 * 150 * 8 * 64);
        }
        for (int run = 0; run < 3; run++) {
            free(sum[run]);
            free(grad[run]);
        }
    }
}

/* ---- memory ---------------------------------------------------------------------------------------------------------------- */

/* 32768 rows have 2 GiB of weights in bf16; forward and backward need less than ten tensors of their operands' size. */
static void long_texts_need_no_weights_in_memory(void **state)
{
    NEEDS_GPU();
    const int64_t rows = 32768, bytes = rows * 64 * 2;
    tarn_tensor *x = tarn_requires_grad(good(tarn_normal(TARN_SHAPE(1, 1, rows, 64), 0, 1, TARN_BF16, gpu)), true);
    tarn_tensor *g = good(tarn_normal_like(x, 0, 1));
    tarn_stats_reset();
    int64_t before = tarn_memory_of(gpu).used;
    tarn_tensor *y = good(tarn_attention(x, x, x, &(tarn_attention_options){.causal = true}));
    assert_true(tarn_backward_from(y, g, NULL));
    assert_int_equal(tarn_stats().fallbacks, 0);
    assert_true(tarn_memory_of(gpu).peak_used - before < 10 * bytes);
    double *values = values_of(tarn_slice(y, 2, 0, 1)), *first = values_of(tarn_slice(x, 2, 0, 1));
    for (int i = 0; i < 64; i++)
        assert_true(values[i] == first[i]); /* the first row sees itself alone */
    free(values);
    free(first);
}

int main(void)
{
#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        ON_GPU(every_form_agrees_with_the_cpu),
        ON_GPU(lengths_and_dropout_agree_with_the_cpu),
        ON_GPU(the_same_weights_are_dropped),
        ON_GPU(runs_have_the_same_bits_and_so_has_a_captured_one),
        ON_GPU(long_texts_need_no_weights_in_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
