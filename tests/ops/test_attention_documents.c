/* test_attention_documents.c: attention with document starts: several documents in one row. Against the composed
 * steps in f64, with the mask written out pair by pair; against each document alone; and on a device without a
 * kernel for it, where it is composed of other operations and nothing falls back to the CPU. */
#include "ops/internal.h"
#include "support/check.h"

enum { Q, K, V, OPERANDS };

typedef struct sizes {
    int64_t batches, heads, kv_heads, rows, keys, depth;
} sizes;

static tarn_device device;

static void make_operands(sizes s, tarn_dtype dtype, tarn_tensor **o)
{
    tarn_seed(5);
    o[Q] = tarn_normal(TARN_SHAPE(s.batches, s.heads, s.rows, s.depth), 0, 1, dtype, device);
    o[K] = tarn_normal(TARN_SHAPE(s.batches, s.kv_heads, s.keys, s.depth), 0, 1, dtype, device);
    o[V] = tarn_normal(TARN_SHAPE(s.batches, s.kv_heads, s.keys, s.depth), 0, 1, dtype, device);
    for (int i = 0; i < OPERANDS; i++)
        tarn_requires_grad(good(o[i]), true);
}

/* The same numbers in f64, as leaves of their own. */
static void copy_operands(tarn_tensor *const *from, tarn_tensor **to)
{
    for (int i = 0; i < OPERANDS; i++)
        to[i] = tarn_requires_grad(good(tarn_clone(tarn_detach(tarn_cast(from[i], TARN_F64)))), true);
}

/* Starts [B, T] of documents of random lengths; as a view with gaps where `is_general`. The caller frees `starts`. */
static tarn_tensor *draw_starts(sizes s, uint64_t seed, int64_t longest, bool is_general, int32_t **document_starts)
{
    int64_t count = s.batches * s.rows, ahead = s.keys - s.rows;
    int32_t *wide = calloc((size_t)count * 2, sizeof(*wide));
    *document_starts = calloc((size_t)count, sizeof(**document_starts));
    assert_true(wide && *document_starts);
    for (int64_t b = 0; b < s.batches; b++)
        for (int64_t t = 0, begin = 0, end = 0; t < s.rows; t++) {
            if (t == end) {
                begin = t;
                end = t + 1 + random_below(&seed, longest);
            }
            (*document_starts)[b * s.rows + t] = wide[2 * (b * s.rows + t)] =
                (int32_t)(begin + (ahead > 0 ? ahead : 0));
        }
    tarn_tensor *made =
        is_general ? tarn_stride(tarn_from(wide, TARN_SHAPE(s.batches, 2 * s.rows), TARN_I32, device), TARN_SHAPE(1, 2))
                   : tarn_from(*document_starts, TARN_SHAPE(s.batches, s.rows), TARN_I32, device);
    free(wide);
    return good(made);
}

/* -1e300 where a row may not look, [B, 1, 1, T, S]. */
static tarn_tensor *mask_of(sizes s, const int32_t *document_starts, bool causal)
{
    double *mask = calloc((size_t)(s.batches * s.rows * s.keys), sizeof(double));
    assert_non_null(mask);
    for (int64_t r = 0; r < s.batches * s.rows; r++)
        for (int64_t key = 0; key < s.keys; key++)
            mask[r * s.keys + key] =
                key < document_starts[r] || (causal && key > s.keys - s.rows + r % s.rows) ? -1e300 : 0;
    tarn_tensor *made = tarn_from(mask, TARN_SHAPE(s.batches, 1, 1, s.rows, s.keys), TARN_F64, device);
    free(mask);
    return good(made);
}

static tarn_tensor *by_hand(sizes s, tarn_tensor **o, tarn_tensor *mask)
{
    tarn_shape grouped = TARN_SHAPE(s.batches, s.kv_heads, s.heads / s.kv_heads, s.rows, s.depth);
    tarn_tensor *q = tarn_reshape(o[Q], grouped), *k = tarn_unsqueeze(o[K], 2), *v = tarn_unsqueeze(o[V], 2);
    tarn_tensor *scores = tarn_mul(tarn_matmul(q, tarn_transpose(k, -1, -2)), tarn_scalar(1 / sqrt((double)s.depth)));
    tarn_tensor *y = tarn_matmul(tarn_softmax(tarn_add(scores, mask), -1), v);
    return good(tarn_reshape(y, TARN_SHAPE(s.batches, s.heads, s.rows, s.depth)));
}

/* The largest difference, as a share of the largest value. */
static double apart(tarn_tensor *a, tarn_tensor *b)
{
    double *x = values_of(a), *y = values_of(b), most = 0, size = 0;
    for (int64_t i = 0; i < tarn_count(a); i++) {
        most = fmax(most, isfinite(x[i]) ? fabs(x[i] - y[i]) : INFINITY);
        size = fmax(size, fabs(y[i]));
    }
    free(x);
    free(y);
    return size > 0 ? most / size : most;
}

/* ---- against its steps ------------------------------------------------------------------------------------------- */

typedef struct trial {
    sizes s;
    tarn_dtype dtype;
    bool causal, is_general;
    int64_t longest;
    double tolerance;
} trial;

static void agrees(const trial *t)
{
    int32_t *document_starts;
    tarn_tensor *one[OPERANDS], *other[OPERANDS],
        *given = draw_starts(t->s, 11, t->longest, t->is_general, &document_starts);
    make_operands(t->s, t->dtype, one);
    copy_operands(one, other);
    tarn_tensor *fused = good(tarn_attention(one[Q], one[K], one[V],
                                             &(tarn_attention_options){.causal = t->causal, .document_starts = given}));
    tarn_tensor *steps = by_hand(t->s, other, mask_of(t->s, document_starts, t->causal));
    assert_true(apart(fused, steps) < t->tolerance);
    tarn_tensor *g = good(tarn_normal_like(fused, 0, 1));
    assert_true(tarn_backward_from(fused, g, NULL) && tarn_backward_from(steps, tarn_cast(g, TARN_F64), NULL));
    for (int i = 0; i < OPERANDS; i++)
        assert_true(apart(tarn_grad(one[i]), tarn_grad(other[i])) < t->tolerance);
    free(document_starts);
    assert_ok();
}

static void every_dtype_agrees_with_its_steps_in_f64(void **state)
{
    (void)state;
    for (int causal = 0; causal < 2; causal++) {
        agrees(&(trial){{2, 3, 3, 70, 70, 24}, TARN_F64, causal, false, 20, 1e-13});
        agrees(&(trial){{2, 3, 3, 70, 70, 24}, TARN_F32, causal, true, 1, 2e-6});
        agrees(&(trial){{1, 6, 2, 130, 130, 16}, TARN_F32, causal, true, 60, 2e-6});
        agrees(&(trial){{2, 2, 1, 33, 50, 8}, TARN_F64, causal, false, 9, 1e-13}); /* more keys than rows */
        agrees(&(trial){{2, 4, 1, 50, 50, 32}, TARN_BF16, causal, false, 20, 1e-2});
        agrees(&(trial){{2, 4, 1, 50, 50, 32}, TARN_F16, causal, false, 20, 1e-3});
        agrees(&(trial){{2, 1, 1, 3, 3, 8}, TARN_F64, causal, false, 2, 1e-13}); /* few rows, which are not packed */
    }
}

/* More keys than the CPU holds weights of at once; documents that begin within a chunk, and behind the first. */
static void long_rows_agree_too(void **state)
{
    (void)state;
    agrees(&(trial){{1, 1, 1, 40, 4100, 8}, TARN_F64, true, false, 30, 1e-12});
    agrees(&(trial){{1, 1, 1, 2000, 2000, 2}, TARN_F64, true, false, 1990, 1e-12});
}

static tarn_tensor *run(tarn_tensor *const *inputs, int count, void *document_starts)
{
    (void)count;
    return tarn_attention(inputs[0], inputs[1], inputs[2],
                          &(tarn_attention_options){.causal = true, .document_starts = document_starts});
}

static void its_gradients_are_derivatives(void **state)
{
    (void)state;
    sizes s = {2, 2, 1, 7, 7, 3};
    int32_t *document_starts;
    tarn_tensor *o[OPERANDS], *given = draw_starts(s, 3, 4, false, &document_starts);
    make_operands(s, TARN_F64, o);
    assert_true(tarn_gradcheck(run, given, o, OPERANDS, NULL));
    free(document_starts);
}

/* ---- what it means ----------------------------------------------------------------------------------------------- */

static void documents_are_as_they_are_alone(void **state)
{
    (void)state;
    static const int64_t begins[] = {0, 5, 6, 45, 100};
    int64_t document_starts[100];
    for (int d = 0; d < 4; d++)
        for (int64_t t = begins[d]; t < begins[d + 1]; t++)
            document_starts[t] = begins[d];
    sizes s = {1, 4, 2, 100, 100, 16};
    tarn_tensor *o[OPERANDS], *alone[OPERANDS], *g;
    make_operands(s, TARN_F64, o);
    copy_operands(o, alone);
    tarn_tensor *all = good(tarn_attention(
        o[Q], o[K], o[V],
        &(tarn_attention_options){.causal = true,
                                  .document_starts = tarn_from_i64(document_starts, TARN_SHAPE(1, 100), device)}));
    g = good(tarn_normal_like(all, 0, 1));
    assert_true(tarn_backward_from(all, g, NULL));
    for (int d = 0; d < 4; d++) {
        tarn_tensor *part[OPERANDS];
        for (int i = 0; i < OPERANDS; i++)
            part[i] = good(tarn_slice(alone[i], 2, begins[d], begins[d + 1]));
        tarn_tensor *one = good(tarn_attention(part[Q], part[K], part[V], &(tarn_attention_options){.causal = true}));
        assert_true(apart(good(tarn_slice(all, 2, begins[d], begins[d + 1])), one) < 1e-13);
        assert_true(tarn_backward_from(one, good(tarn_contiguous(tarn_slice(g, 2, begins[d], begins[d + 1]))), NULL));
    }
    for (int i = 0; i < OPERANDS; i++)
        assert_true(apart(tarn_grad(o[i]), tarn_grad(alone[i])) < 1e-13);
}

static void starts_of_0_change_no_bit(void **state)
{
    (void)state;
    sizes s = {2, 4, 2, 150, 150, 16};
    tarn_tensor *one[OPERANDS], *other[OPERANDS];
    make_operands(s, TARN_F32, one);
    make_operands(s, TARN_F32, other);
    tarn_tensor *zeros = good(tarn_zeros(TARN_SHAPE(2, 150), TARN_I64, device));
    tarn_tensor *a = good(
        tarn_attention(one[Q], one[K], one[V], &(tarn_attention_options){.causal = true, .document_starts = zeros}));
    tarn_tensor *b = good(tarn_attention(other[Q], other[K], other[V], &(tarn_attention_options){.causal = true}));
    tarn_tensor *g = good(tarn_normal_like(a, 0, 1));
    assert_true(tarn_backward_from(a, g, NULL) && tarn_backward_from(b, g, NULL));
    assert_true(apart(a, b) == 0);
    for (int i = 0; i < OPERANDS; i++)
        assert_true(apart(tarn_grad(one[i]), tarn_grad(other[i])) == 0);
}

/* One row of three begins behind its own position. */
static void a_row_that_begins_behind_itself_is_0(void **state)
{
    (void)state;
    tarn_tensor *o[OPERANDS];
    make_operands((sizes){1, 1, 1, 3, 3, 4}, TARN_F32, o);
    tarn_tensor *document_starts = good(tarn_from_i64((const int64_t[]){0, 2, 2}, TARN_SHAPE(1, 3), device));
    tarn_tensor *y = good(tarn_attention(
        o[Q], o[K], o[V], &(tarn_attention_options){.causal = true, .document_starts = document_starts}));
    assert_true(tarn_backward_from(y, good(tarn_ones_like(y)), NULL));
    expect(good(tarn_slice(y, 2, 1, 2)), TARN_SHAPE(1, 1, 1, 4), VALUES(0, 0, 0, 0));
    expect(good(tarn_slice(tarn_grad(o[Q]), 2, 1, 2)), TARN_SHAPE(1, 1, 1, 4), VALUES(0, 0, 0, 0));
    assert_close(good(tarn_slice(y, 2, 2, 3)), good(tarn_slice(o[V], 2, 2, 3)), 1e-6); /* it sees itself alone */
}

static void a_start_outside_the_keys_is_an_error(void **state)
{
    (void)state;
    tarn_tensor *o[OPERANDS];
    make_operands((sizes){1, 1, 1, 2, 5, 4}, TARN_F32, o);
    static const int64_t wrong[] = {6, -1};
    for (int i = 0; i < 2; i++) {
        tarn_tensor *document_starts = good(tarn_from_i64((const int64_t[]){3, wrong[i]}, TARN_SHAPE(1, 2), device));
        tarn_attention(o[Q], o[K], o[V], &(tarn_attention_options){.document_starts = document_starts});
        tarn_synchronize(device);
        assert_error_about(TARN_ERROR_ARGUMENT, "attention", i ? "-1" : "6");
    }
}

static void the_packed_form_is_bitwise_identical(void **state)
{
    (void)state;
    enum { HEADS = 4, KV = 2, DEPTH = 5, ROWS = 50, WIDTH = (HEADS + 2 * KV) * DEPTH };
    int32_t *document_starts;
    tarn_tensor *given = draw_starts((sizes){2, HEADS, KV, ROWS, ROWS, DEPTH}, 4, 20, true, &document_starts), *part[3];
    tarn_tensor *qkv = good(tarn_normal(TARN_SHAPE(2, ROWS, WIDTH), 0, 1, TARN_F32, device)),
                *same = good(tarn_clone(qkv));
    tarn_requires_grad(qkv, true);
    tarn_requires_grad(same, true);
    tarn_attention_options options = {.causal = true, .document_starts = given};
    tarn_tensor *packed = good(tarn_attention_packed(qkv, HEADS, KV, &options));
    assert_true(tarn_split(same, 2, (const int64_t[]){HEADS * DEPTH, KV * DEPTH, KV * DEPTH}, 3, part));
    for (int i = 0; i < 3; i++)
        part[i] = good(
            tarn_permute(tarn_reshape(part[i], TARN_SHAPE(2, ROWS, i ? KV : HEADS, DEPTH)), TARN_AXES(0, 2, 1, 3)));
    tarn_tensor *y = tarn_attention(part[Q], part[K], part[V], &options);
    tarn_tensor *merged =
        good(tarn_reshape(tarn_permute(y, TARN_AXES(0, 2, 1, 3)), TARN_SHAPE(2, ROWS, HEADS * DEPTH)));
    assert_true(apart(packed, merged) == 0);
    tarn_tensor *g = good(tarn_normal_like(packed, 0, 1));
    assert_true(tarn_backward_from(packed, g, NULL) && tarn_backward_from(merged, g, NULL));
    assert_true(apart(tarn_grad(qkv), tarn_grad(same)) == 0);
    free(document_starts);
}

static void threads_change_no_bit(void **state)
{
    (void)state;
    sizes s = {1, 2, 1, 200, 200, 16};
    tarn_tensor *o[2][OPERANDS], *y[2];
    int32_t *document_starts;
    tarn_tensor *given = draw_starts(s, 8, 70, false, &document_starts);
    for (int i = 0; i < 2; i++) {
        tarn_set_threads(i ? 4 : 1);
        make_operands(s, TARN_F32, o[i]);
        y[i] = good(tarn_attention(o[i][Q], o[i][K], o[i][V],
                                   &(tarn_attention_options){.causal = true, .document_starts = given}));
        assert_true(tarn_backward_from(y[i], good(tarn_ones_like(y[i])), NULL));
    }
    assert_true(apart(y[0], y[1]) == 0);
    for (int k = 0; k < OPERANDS; k++)
        assert_true(apart(tarn_grad(o[0][k]), tarn_grad(o[1][k])) == 0);
    free(document_starts);
}

/* The place of a weight says whether it is dropped, in backward too: with half of them gone the gradient is still that
 * of the value. */
static tarn_tensor *run_dropped(tarn_tensor *const *inputs, int count, void *document_starts)
{
    (void)count;
    tarn_seed(7);
    return tarn_attention(
        inputs[0], inputs[1], inputs[2],
        &(tarn_attention_options){.causal = true, .dropout = 0.5, .document_starts = document_starts});
}

static void what_is_dropped_is_the_same_in_backward(void **state)
{
    (void)state;
    sizes s = {1, 2, 2, 40, 40, 3};
    int32_t *document_starts;
    tarn_tensor *o[OPERANDS], *given = draw_starts(s, 3, 38, false, &document_starts);
    make_operands(s, TARN_F64, o);
    assert_true(tarn_gradcheck(run_dropped, given, o, OPERANDS, NULL));
    free(document_starts);
}

/* Forward and backward of that many rows: the most memory that was in use beyond the operands. */
static int64_t extra_memory(int64_t rows)
{
    sizes s = {1, 1, 1, rows, rows, 16};
    int32_t *unused;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *o[OPERANDS], *document_starts = draw_starts(s, 6, 500, false, &unused);
    make_operands(s, TARN_F32, o);
    tarn_tensor *g = good(tarn_normal_like(o[Q], 0, 1));
    tarn_stats_reset();
    int64_t before = tarn_memory_of(device).used;
    tarn_tensor *y = good(tarn_attention(
        o[Q], o[K], o[V], &(tarn_attention_options){.causal = true, .document_starts = document_starts}));
    assert_true(tarn_backward_from(y, g, NULL));
    int64_t peak = tarn_memory_of(device).peak_used - before;
    tarn_scope_close(scope);
    free(unused);
    return peak;
}

static void memory_is_linear_in_the_rows(void **state)
{
    (void)state;
    int threads = tarn_threads();
    tarn_set_threads(2);
    int64_t some = extra_memory(2048), twice = extra_memory(4096);
    tarn_set_threads(threads);
    assert_true(twice < some * 22 / 10);
    assert_true(twice < (int64_t)4096 * 4096 * 4);
}

/* ---- where there is no kernel ------------------------------------------------------------------------------------ */

static void composed_and_kernel_agree(sizes s, tarn_dtype dtype, const tarn_attention_options *options,
                                      double tolerance)
{
    tarn_tensor *one[OPERANDS], *other[OPERANDS];
    make_operands(s, dtype, one);
    make_operands(s, dtype, other);
    tarn_tensor *a = good(tarn_attention(one[Q], one[K], one[V], options));
    tarn_tensor *b = good(tarn__attention_composed(other[Q], other[K], other[V], options)),
                *g = good(tarn_normal_like(a, 0, 1));
    assert_true(apart(a, b) < tolerance);
    assert_true(tarn_backward_from(a, g, NULL) && tarn_backward_from(b, g, NULL));
    for (int i = 0; i < OPERANDS; i++)
        assert_true(apart(tarn_grad(one[i]), tarn_grad(other[i])) < tolerance);
}

static void its_steps_agree_with_the_kernel(void **state)
{
    (void)state;
    sizes s = {2, 4, 2, 9, 12, 8};
    int32_t *unused;
    tarn_tensor *document_starts = draw_starts(s, 5, 6, true, &unused);
    tarn_tensor *lengths = good(tarn_from_i64((const int64_t[]){12, 7}, TARN_SHAPE(2), device)),
                *one = good(tarn_from_i64((const int64_t[]){10}, (tarn_shape){0}, device));
    for (int causal = 0; causal < 2; causal++) {
        composed_and_kernel_agree(
            s, TARN_F64, &(tarn_attention_options){.causal = causal, .document_starts = document_starts}, 1e-13);
        composed_and_kernel_agree(
            s, TARN_F32, &(tarn_attention_options){.causal = causal, .document_starts = document_starts, .scale = 0.3},
            2e-6);
        composed_and_kernel_agree(
            s, TARN_BF16, &(tarn_attention_options){.causal = causal, .document_starts = document_starts}, 1e-2);
        composed_and_kernel_agree(
            s, TARN_F64,
            &(tarn_attention_options){.causal = causal, .document_starts = document_starts, .lengths = lengths}, 1e-13);
        composed_and_kernel_agree(
            s, TARN_F64,
            &(tarn_attention_options){.causal = causal, .document_starts = document_starts, .lengths = one}, 1e-13);
    }
    free(unused);
}

/* mirror:0 has no kernel with starts (main()). */
static void a_device_without_the_kernel_does_it_in_steps(void **state)
{
    (void)state;
    tarn_device mirror = tarn_device_parse("mirror:0");
    sizes s = {2, 4, 2, 20, 20, 8};
    int32_t *unused;
    tarn_tensor *given = draw_starts(s, 5, 9, false, &unused);
    tarn_tensor *qkv = good(tarn_normal(TARN_SHAPE(2, 20, 64), 0, 1, TARN_F32, device)),
                *there = good(tarn_to(qkv, mirror));
    tarn_requires_grad(qkv, true);
    tarn_requires_grad(there, true);
    tarn_tensor *wanted =
        good(tarn_attention_packed(qkv, 4, 2, &(tarn_attention_options){.causal = true, .document_starts = given}));
    tarn_tensor *document_starts = good(tarn_to(given, mirror)),
                *ones = good(tarn_ones(TARN_SHAPE(2, 20, 32), TARN_F32, mirror));
    tarn_stats_reset();
    tarn_tensor *found = good(tarn_attention_packed(
        there, 4, 2, &(tarn_attention_options){.causal = true, .document_starts = document_starts}));
    assert_true(tarn_backward_from(found, ones, NULL));
    assert_int_equal(tarn_stats().fallbacks, 0);
    assert_int_equal(tarn_stats().downloads, 0);
    assert_true(tarn_backward_from(wanted, good(tarn_ones_like(wanted)), NULL));
    assert_true(apart(found, wanted) < 2e-6);
    assert_true(apart(tarn_grad(there), tarn_grad(qkv)) < 2e-6);
    free(unused);
}

int main(void)
{
    setenv("TARN_MIRROR_DISABLE", "attention_documents,attention_documents_grad", 1);
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {
        in_scope(every_dtype_agrees_with_its_steps_in_f64),
        in_scope(long_rows_agree_too),
        in_scope(its_gradients_are_derivatives),
        in_scope(documents_are_as_they_are_alone),
        in_scope(starts_of_0_change_no_bit),
        in_scope(a_row_that_begins_behind_itself_is_0),
        in_scope(a_start_outside_the_keys_is_an_error),
        in_scope(the_packed_form_is_bitwise_identical),
        in_scope(threads_change_no_bit),
        in_scope(what_is_dropped_is_the_same_in_backward),
        in_scope(memory_is_linear_in_the_rows),
        in_scope(its_steps_agree_with_the_kernel),
        in_scope(a_device_without_the_kernel_does_it_in_steps),
    };
    return cmocka_run_group_tests_name("ops/attention_documents", tests, NULL, NULL);
}
