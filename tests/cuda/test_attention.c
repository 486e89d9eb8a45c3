/* test_attention.c: attention on a CUDA device against the CPU: every shape its kernels support, document starts, TF32,
 * equal dropout masks, bitwise identical runs and captured steps, memory linear in the rows. Skipped without a device.
 */
#include "support/gpu.h"

#include <tarn/graph.h>

enum { Q, K, V, OPERANDS };

typedef struct sizes {
    int64_t batches, heads, kv_heads, rows, keys, depth;
} sizes;

/* The sizes themselves; under a sanitizer, which needs minutes for these, smaller ones that still span several
 * tiles. */
static sizes cut(sizes s, tarn_dtype dtype)
{
    if (!is_quick())
        return s;
    const int64_t most = s.depth > 128 || tarn_dtype_size(dtype) > 2 ? 70 : 140, heads = s.heads < 2 ? s.heads : 2;
    return (sizes){s.batches,
                   heads,
                   s.kv_heads < s.heads ? 1 : heads,
                   s.rows < most ? s.rows : most,
                   s.keys < most ? s.keys : most,
                   s.depth};
}

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

/* The largest difference, relative to the largest value. */
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

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void agrees_with_the_cpu(sizes s, tarn_dtype dtype, tarn_attention_options o, double tolerance)
{
    tarn_tensor *here[OPERANDS], *there[OPERANDS];
    make_operands(s, dtype, here, there);
    tarn_attention_options other = o;
    other.lengths = o.lengths ? good(tarn_to(o.lengths, gpu)) : NULL;
    other.document_starts = o.document_starts ? good(tarn_to(o.document_starts, gpu)) : NULL;
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

/* Every head_dim that tensor cores support, and sizes next to them; blocks of rows and keys that end anywhere. */
static void every_shape_matches_the_cpu(void **state)
{
    NEEDS_GPU();
    static const sizes all[] = {{2, 2, 1, 65, 65, 32},    {1, 4, 2, 130, 200, 64}, {1, 2, 2, 70, 33, 80},
                                {1, 2, 1, 129, 127, 128}, {1, 2, 1, 65, 130, 256}, {2, 3, 1, 1, 190, 64},
                                {1, 2, 1, 40, 50, 7},     {1, 1, 1, 20, 30, 300},  {1, 2, 2, 64, 64, 8},
                                {1, 4, 2, 290, 290, 128}, {1, 3, 1, 260, 310, 40}};
    static const tarn_dtype dtypes[] = {TARN_F64, TARN_F32, TARN_BF16, TARN_F16};
    static const double tolerance[] = {1e-12, 1e-5, 3e-2, 4e-3};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (int d = 0; d < 4; d++)
            for (int causal = 0; causal < 2; causal++) {
                if (is_quick() && causal != (int)(i + d) % 2)
                    continue;
                tarn_scope *scope = tarn_scope_open();
                agrees_with_the_cpu(cut(all[i], dtypes[d]), dtypes[d], (tarn_attention_options){.causal = causal},
                                    tolerance[d]);
                tarn_scope_close(scope);
            }
}

/* So many heads that a block computes the gradients of several tiles of keys, one after the other. */
static void many_heads_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const int64_t depths[] = {8, 40, 72, 100, 132};
    for (int i = 0; i < 5; i++) {
        tarn_scope *scope = tarn_scope_open();
        agrees_with_the_cpu((sizes){i == 1 ? 140 : 66, 4, i == 2 ? 2 : 4, 20, 300, depths[i]}, TARN_F32,
                            (tarn_attention_options){.causal = i % 2}, 1e-5);
        tarn_scope_close(scope);
    }
}

static void lengths_and_dropout_match_the_cpu(void **state)
{
    NEEDS_GPU();
    tarn_tensor *lengths = good(tarn_from_i64((const int64_t[]){61, 100, 0}, TARN_SHAPE(3), CPU));
    for (int causal = 0; causal < 2; causal++) {
        tarn_attention_options o = {.causal = causal, .dropout = 0.3, .lengths = lengths};
        agrees_with_the_cpu((sizes){3, 4, 2, 70, 101, 64}, TARN_BF16, o, 3e-2);
        agrees_with_the_cpu((sizes){3, 4, 2, 150, 101, 128}, TARN_F16, o, 4e-3);
        agrees_with_the_cpu((sizes){3, 4, 2, 70, 101, 136}, TARN_F16, o, 4e-3);
        agrees_with_the_cpu((sizes){3, 4, 2, 70, 101, 20}, TARN_F32, o, 1e-5);
        agrees_with_the_cpu((sizes){3, 2, 2, 40, 101, 16}, TARN_F64, o, 1e-6); /* the factor is f32 */
    }
}

/* Forward and backward: all keys of a small model and few keys, rows before the first key, partial tiles, grouped
 * heads, a head_dim that does not fill the kernel. */
static void few_keys_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const sizes all[] = {{2, 3, 3, 256, 256, 64}, {1, 4, 2, 200, 200, 64}, {1, 2, 2, 100, 250, 40},
                                {1, 2, 1, 333, 133, 64}, {2, 2, 2, 65, 256, 56},  {1, 4, 1, 77, 77, 48},
                                {1, 2, 2, 600, 17, 64},  {1, 2, 2, 1, 256, 64},   {1, 2, 2, 257, 257, 64}};
    static const tarn_dtype dtypes[] = {TARN_BF16, TARN_F16};
    static const double tolerance[] = {3e-2, 4e-3};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (int d = 0; d < 2; d++)
            for (int which = 0; which < 4; which++) { /* causal or not, with and without dropout */
                if (is_quick() && which != (int)(i + (size_t)d) % 4)
                    continue;
                tarn_scope *scope = tarn_scope_open();
                agrees_with_the_cpu(all[i], dtypes[d],
                                    (tarn_attention_options){.causal = which & 1, .dropout = which & 2 ? 0.2 : 0},
                                    tolerance[d]);
                tarn_scope_close(scope);
            }
}

/* ---- starts ------------------------------------------------------------------------------------------------------ */

/* [B, T] document starts: documents of 1 to `longest` rows, the last one ending at the last key; `longest` 0: in no
 * order. */
static tarn_tensor *draw_starts(sizes s, int64_t longest, tarn_dtype dtype)
{
    int64_t document_starts[1024], ahead = s.keys > s.rows ? s.keys - s.rows : 0;
    uint64_t seed = 17;
    assert_true(s.batches * s.rows <= 1024);
    for (int64_t b = 0; b < s.batches; b++)
        for (int64_t t = 0, begin = 0, end = 0; t < s.rows; t++) {
            if (longest > 0 && t == end) {
                begin = t;
                end = t + 1 + random_below(&seed, longest);
            }
            int64_t start = longest > 0 ? ahead + begin : random_below(&seed, s.keys + 1);
            document_starts[b * s.rows + t] = start < s.keys ? start : s.keys;
        }
    return good(tarn_cast(tarn_from_i64(document_starts, TARN_SHAPE(s.batches, s.rows), CPU), dtype));
}

/* Documents shorter than a tile, ending within one and spanning several; rows that start after themselves. */
static void document_starts_match_the_cpu(void **state)
{
    NEEDS_GPU();
    static const sizes all[] = {{2, 2, 1, 65, 65, 32},    {1, 4, 2, 400, 400, 64},  {1, 2, 2, 70, 33, 80},
                                {1, 2, 1, 129, 200, 128}, {1, 2, 1, 200, 200, 256}, {2, 4, 2, 300, 300, 64},
                                {1, 2, 1, 90, 90, 7},     {1, 1, 1, 70, 70, 300}};
    static const tarn_dtype dtypes[] = {TARN_F64, TARN_F32, TARN_BF16, TARN_F16};
    static const double tolerance[] = {1e-12, 1e-5, 3e-2, 4e-3};
    static const int64_t longest[] = {0, 2, 20, 190};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (int d = 0; d < 4; d++)
            for (int l = 0; l < 4; l++) {
                if (is_quick() && l != (int)(i + d) % 4)
                    continue;
                tarn_scope *scope = tarn_scope_open();
                const sizes s = cut(all[i], dtypes[d]);
                tarn_attention_options o = {.causal = l > 0 || d % 2 == 0,
                                            .document_starts = draw_starts(s, longest[l], d % 2 ? TARN_I32 : TARN_I64)};
                agrees_with_the_cpu(s, dtypes[d], o, tolerance[d]);
                tarn_scope_close(scope);
            }
}

/* A row that sees only itself has a weight of 1 whatever q and k are: the result is v, and the gradients of q and k are
 * rounding errors of 0. The last row is f32 in TF32, which rounds v and g to 11 bits. */
static void a_row_that_sees_only_itself_has_a_gradient_of_v_only(void **state)
{
    NEEDS_GPU();
    static const tarn_dtype dtypes[] = {TARN_F64, TARN_F32, TARN_BF16, TARN_F16, TARN_F32};
    static const double tolerance[] = {1e-14, 1e-5, 1e-5, 1e-5, 5e-4}, result_tolerance[] = {0, 0, 0, 0, 5e-4};
    for (int d = 0; d < 5; d++) {
        tarn_set_tf32(d == 4);
        tarn_tensor *here[OPERANDS], *x[OPERANDS],
            *document_starts = good(tarn_unsqueeze(tarn_arange(0, 200, 1, TARN_I64, gpu), 0));
        make_operands((sizes){1, 2, 2, 200, 200, 64}, dtypes[d], here, x);
        tarn_tensor *y = good(tarn_attention(
            x[Q], x[K], x[V], &(tarn_attention_options){.causal = true, .document_starts = document_starts}));
        tarn_tensor *g = good(tarn_normal_like(y, 0, 1));
        assert_true(tarn_backward_from(y, g, NULL));
        assert_true(apart(y, x[V]) <= result_tolerance[d]);
        assert_true(apart(tarn_grad(x[V]), g) < tolerance[d]);
        tarn_set_tf32(false);
        for (int i = Q; i <= K; i++) {
            double *noise = values_of(good(tarn_grad(x[i])));
            for (int64_t k = 0; k < tarn_count(x[i]); k++)
                assert_true(fabs(noise[k]) <
                            tolerance[d] * 100); /* sums of 64 products of values of about 1, times one */
            free(noise);
        }
    }
}

static void document_starts_with_lengths_and_dropout_match_the_cpu(void **state)
{
    NEEDS_GPU();
    tarn_tensor *lengths = good(tarn_from_i64((const int64_t[]){61, 100, 0}, TARN_SHAPE(3), CPU));
    for (int causal = 0; causal < 2; causal++) {
        sizes s = {3, 4, 2, 70, 101, 64};
        tarn_attention_options o = {.causal = causal,
                                    .dropout = 0.3,
                                    .lengths = lengths,
                                    .document_starts = draw_starts(s, causal ? 40 : 0, TARN_I64)};
        agrees_with_the_cpu(s, TARN_BF16, o, 3e-2);
        agrees_with_the_cpu((sizes){3, 4, 2, 70, 101, 128}, TARN_BF16, o, 3e-2);
        agrees_with_the_cpu((sizes){3, 4, 2, 70, 101, 136}, TARN_F16, o, 4e-3);
        agrees_with_the_cpu((sizes){3, 4, 2, 70, 101, 20}, TARN_F32, o, 1e-5);
    }
}

/* In kernels that support both: neither cuDNN, which is not used with dropout, nor wgmma. */
static void document_starts_of_0_change_no_bit(void **state)
{
    NEEDS_GPU();
    setenv("TARN_CUDA_ATTENTION", "mma", 1);
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(2, 150, 8 * 40), 0, 1, TARN_BF16, gpu)), *same = good(tarn_clone(x));
    tarn_requires_grad(x, true);
    tarn_requires_grad(same, true);
    tarn_attention_options o = {.causal = true, .dropout = 0.1}, with = o;
    with.document_starts = good(tarn_zeros(TARN_SHAPE(2, 150), TARN_I32, gpu));
    tarn_seed(13);
    tarn_tensor *y = good(tarn_attention_packed(x, 4, 2, &o)), *g = good(tarn_normal_like(y, 0, 1));
    tarn_seed(13);
    tarn_tensor *other = good(tarn_attention_packed(same, 4, 2, &with));
    assert_true(tarn_backward_from(y, g, NULL) && tarn_backward_from(other, g, NULL));
    unsetenv("TARN_CUDA_ATTENTION");
    assert_true(apart(other, y) == 0);
    assert_true(apart(tarn_grad(same), tarn_grad(x)) == 0);
}

static void a_document_start_outside_the_keys_is_an_error(void **state)
{
    NEEDS_GPU();
    static const int64_t wrong[] = {6, -1};
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16};
    for (int i = 0; i < 4; i++) {
        tarn_tensor *x = good(tarn_normal(TARN_SHAPE(1, 1, 5, 8), 0, 1, dtypes[i / 2], gpu));
        tarn_tensor *document_starts =
            good(tarn_from_i64((const int64_t[]){0, 1, 1, wrong[i % 2], 2}, TARN_SHAPE(1, 5), gpu));
        tarn_attention(x, x, x, &(tarn_attention_options){.causal = true, .document_starts = document_starts});
        tarn_synchronize(gpu);
        assert_error_about(TARN_ERROR_ARGUMENT, "attention", i % 2 ? "-1" : "6");
    }
}

/* ---- TF32 -------------------------------------------------------------------------------------------------------- */

/* TF32 has 10 mantissa bits, as f16: operands and weights are rounded as there, so its tolerance holds. */
#define TF32_TOLERANCE 4e-3

static void tf32_agrees_with_the_cpu(sizes s, tarn_attention_options o)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_set_tf32(true);
    agrees_with_the_cpu(cut(s, TARN_F32), TARN_F32, o, TF32_TOLERANCE);
    tarn_set_tf32(false);
    tarn_scope_close(scope);
}

/* Every head_dim that has a kernel, sizes that do not fill it, one that only SIMT kernels take; with every option. */
static void tf32_matches_the_cpu(void **state)
{
    NEEDS_GPU();
    static const sizes all[] = {{2, 2, 1, 65, 65, 32},    {1, 4, 2, 130, 200, 64},  {1, 2, 2, 70, 33, 80},
                                {1, 2, 1, 129, 127, 128}, {1, 2, 1, 65, 130, 256},  {2, 3, 1, 1, 190, 64},
                                {1, 2, 1, 40, 50, 7},     {1, 1, 1, 20, 30, 300},   {1, 2, 2, 64, 64, 20},
                                {1, 4, 2, 290, 290, 128}, {1, 3, 1, 1000, 1000, 64}};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (int causal = 0; causal < 2; causal++) {
            tf32_agrees_with_the_cpu(all[i], (tarn_attention_options){.causal = causal});
            tf32_agrees_with_the_cpu(all[i], (tarn_attention_options){.causal = causal, .dropout = 0.3});
        }
    for (size_t i = 0; i < 6; i++) {
        const sizes s = cut(all[i], TARN_F32);
        tf32_agrees_with_the_cpu(s, (tarn_attention_options){.causal = true, .window = 40});
        tf32_agrees_with_the_cpu(s, (tarn_attention_options){.causal = true, .softcap = 3});
        /* with documents and few rows each sees one key at most: gradients of 0, which have no relative error */
        const bool has_documents = s.rows > 1 && s.rows <= s.keys + 2;
        for (int longest = 0; longest < (has_documents ? 80 : 20); longest += 20)
            tf32_agrees_with_the_cpu(s, (tarn_attention_options){.causal = longest > 0,
                                                                 .document_starts = draw_starts(s, longest, TARN_I64)});
    }
}

static void tf32_lengths_match_the_cpu(void **state)
{
    NEEDS_GPU();
    tarn_tensor *lengths = good(tarn_from_i64((const int64_t[]){61, 100, 0}, TARN_SHAPE(3), CPU));
    for (int causal = 0; causal < 2; causal++) {
        tarn_attention_options o = {.causal = causal, .dropout = 0.3, .lengths = lengths};
        tf32_agrees_with_the_cpu((sizes){3, 4, 2, 70, 101, 64}, o);
        tf32_agrees_with_the_cpu((sizes){3, 4, 2, 150, 101, 128}, o);
    }
}

/* Only where it is allowed: results in TF32 differ from those in f32, which are as near to the CPU's as before. */
static void tf32_is_used_where_it_is_allowed(void **state)
{
    NEEDS_GPU();
    tarn_tensor *here[OPERANDS], *x[OPERANDS];
    make_operands((sizes){1, 2, 2, 200, 200, 64}, TARN_F32, here, x);
    tarn_tensor *exact = good(tarn_attention(x[Q], x[K], x[V], NULL));
    tarn_set_tf32(true);
    tarn_tensor *rounded = good(tarn_attention(x[Q], x[K], x[V], NULL));
    tarn_set_tf32(false);
    tarn_tensor *wanted = good(tarn_attention(here[Q], here[K], here[V], NULL));
    assert_true(apart(exact, wanted) < 1e-5);
    assert_true(apart(rounded, wanted) > 2e-5 && apart(rounded, wanted) < TF32_TOLERANCE);
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/* With one-hot values the result is the weights: the zeros are the dropped ones, the same as on the CPU. */
static void drops_as_the_cpu_does(int64_t keys)
{
    enum { ROWS = 70 };
    tarn_tensor *eye = good(tarn_expand(tarn_one_hot(tarn_arange(0, (double)keys, 1, TARN_I64, CPU), keys, TARN_BF16),
                                        TARN_SHAPE(1, 2, keys, keys)));
    tarn_tensor *q = good(tarn_normal(TARN_SHAPE(1, 2, ROWS, keys), 0, 0.1, TARN_BF16, CPU));
    tarn_tensor *k = good(tarn_normal(TARN_SHAPE(1, 2, keys, keys), 0, 0.1, TARN_BF16, CPU));
    tarn_attention_options o = {.dropout = 0.4};
    tarn_seed(21);
    double *wanted = values_of(good(tarn_attention(q, k, eye, &o)));
    tarn_seed(21);
    double *found = values_of(good(tarn_attention(tarn_to(q, gpu), tarn_to(k, gpu), tarn_to(eye, gpu), &o)));
    for (int64_t i = 0; i < 2 * ROWS * keys; i++)
        assert_true((wanted[i] == 0) == (found[i] == 0));
    free(wanted);
    free(found);
}

/* As many keys as head_dim, with the kernels for a head_dim of up to 64 and with those for more. */
static void dropout_masks_match_the_cpu(void **state)
{
    NEEDS_GPU();
    drops_as_the_cpu_does(56);
    drops_as_the_cpu_does(72);
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

typedef struct recording {
    tarn_tensor *x, *document_starts, *sum, *grad;
} recording;

static bool attend(void *ctx)
{
    recording *r = ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *y = tarn_attention_packed(
        r->x, 4, 2, &(tarn_attention_options){.causal = true, .dropout = 0.2, .document_starts = r->document_starts});
    bool done = tarn_copy(r->sum, y) && tarn_backward_from(y, r->sum, NULL) && tarn_copy(r->grad, tarn_grad(r->x));
    tarn_zero_grad(r->x);
    tarn_scope_close(scope);
    return done;
}

static void runs_and_captured_steps_are_bitwise_identical(void **state)
{
    NEEDS_GPU();
    static const tarn_dtype dtypes[] = {TARN_BF16, TARN_F32};
    for (int d = 0; d < 6; d++) { /* the last two: f32 in TF32, without and with starts */
        tarn_set_tf32(d > 3);
        recording r = {.x = tarn_requires_grad(
                           good(tarn_normal(TARN_SHAPE(2, 150, 8 * 64), 0, 1, dtypes[d > 3 ? 1 : d % 2], gpu)), true)};
        r.document_starts =
            d < 2 || d == 4 ? NULL : good(tarn_to(draw_starts((sizes){2, 4, 2, 150, 150, 64}, 70, TARN_I32), gpu));
        r.sum = good(tarn_zeros(TARN_SHAPE(2, 150, 4 * 64), dtypes[d > 3 ? 1 : d % 2], gpu));
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
    tarn_set_tf32(false);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* 32,768 rows have 2 GiB of weights in bf16; forward and backward must stay below ten tensors of the operands' size. */
static void long_texts_need_no_weights(bool has_starts)
{
    const int64_t rows = 32768, bytes = rows * 64 * 2;
    tarn_tensor *x = tarn_requires_grad(good(tarn_normal(TARN_SHAPE(1, 1, rows, 64), 0, 1, TARN_BF16, gpu)), true);
    tarn_tensor *g = good(tarn_normal_like(x, 0, 1)),
                *document_starts = has_starts ? good(tarn_zeros(TARN_SHAPE(1, rows), TARN_I32, gpu)) : NULL;
    tarn_stats_reset();
    int64_t before = tarn_memory_of(gpu).used;
    tarn_tensor *y =
        good(tarn_attention(x, x, x, &(tarn_attention_options){.causal = true, .document_starts = document_starts}));
    assert_true(tarn_backward_from(y, g, NULL));
    assert_int_equal(tarn_stats().fallbacks, 0);
    assert_true(tarn_memory_of(gpu).peak_used - before < 10 * bytes);
    double *values = values_of(tarn_slice(y, 2, 0, 1)), *first = values_of(tarn_slice(x, 2, 0, 1));
    for (int i = 0; i < 64; i++)
        assert_true(values[i] == first[i]); /* the first row sees only itself */
    free(values);
    free(first);
}

static void long_sequences_need_no_weights_in_memory(void **state)
{
    NEEDS_GPU();
    long_texts_need_no_weights(false);
    long_texts_need_no_weights(true);
}

int main(void)
{
#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        ON_GPU(every_shape_matches_the_cpu),
        ON_GPU(many_heads_match_the_cpu),
        ON_GPU(lengths_and_dropout_match_the_cpu),
        ON_GPU(few_keys_match_the_cpu),
        ON_GPU(document_starts_match_the_cpu),
        ON_GPU(a_row_that_sees_only_itself_has_a_gradient_of_v_only),
        ON_GPU(document_starts_with_lengths_and_dropout_match_the_cpu),
        ON_GPU(document_starts_of_0_change_no_bit),
        ON_GPU(a_document_start_outside_the_keys_is_an_error),
        ON_GPU(tf32_matches_the_cpu),
        ON_GPU(tf32_lengths_match_the_cpu),
        ON_GPU(tf32_is_used_where_it_is_allowed),
        ON_GPU(dropout_masks_match_the_cpu),
        ON_GPU(runs_and_captured_steps_are_bitwise_identical),
        ON_GPU(long_sequences_need_no_weights_in_memory),
    };
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
