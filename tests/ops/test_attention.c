/* test_attention.c: attention against the operations it composes: values, gradients, dropout's mask, layouts,
 * memory. TARN_TEST_DEVICE names the device; default: the CPU. */
#include "base/philox.h"
#include "support/check.h"

static tarn_device device;

enum { Q, K, V, OPERANDS };

typedef struct sizes {
    int64_t batches, heads, kv_heads, rows, keys, depth;
} sizes;

static void make_operands(sizes s, tarn_dtype dtype, tarn_tensor **o)
{
    tarn_seed(5);
    o[Q] = tarn_normal(TARN_SHAPE(s.batches, s.heads, s.rows, s.depth), 0, 1, dtype, device);
    o[K] = tarn_normal(TARN_SHAPE(s.batches, s.kv_heads, s.keys, s.depth), 0, 1, dtype, device);
    o[V] = tarn_normal(TARN_SHAPE(s.batches, s.kv_heads, s.keys, s.depth), 0, 1, dtype, device);
    for (int i = 0; i < OPERANDS; i++)
        tarn_requires_grad(good(o[i]), true);
}

/* -1e30 where row t of the last rows may not look at key s, 0 elsewhere. */
static tarn_tensor *triangle(sizes s, tarn_dtype dtype)
{
    float *mask = calloc((size_t)(s.rows * s.keys), sizeof(float));
    assert_non_null(mask);
    for (int64_t t = 0; t < s.rows; t++)
        for (int64_t key = 0; key < s.keys; key++)
            mask[t * s.keys + key] = key > s.keys - s.rows + t ? -1e30f : 0;
    tarn_tensor *made = tarn_cast(good(tarn_from_f32(mask, TARN_SHAPE(s.rows, s.keys), device)), dtype);
    free(mask);
    return good(made);
}

/* The same in steps; heads of k and v are repeated for their group. */
static tarn_tensor *composed(sizes s, tarn_tensor **o, bool causal)
{
    tarn_shape grouped = TARN_SHAPE(s.batches, s.kv_heads, s.heads / s.kv_heads, s.rows, s.depth);
    tarn_tensor *q = tarn_reshape(o[Q], grouped), *k = tarn_unsqueeze(o[K], 2), *v = tarn_unsqueeze(o[V], 2);
    tarn_tensor *scores = tarn_mul(tarn_matmul(q, tarn_transpose(k, -1, -2)), tarn_scalar(1 / sqrt((double)s.depth)));
    if (causal)
        scores = tarn_add(scores, triangle(s, tarn_dtype_of(scores)));
    return good(
        tarn_reshape(tarn_matmul(tarn_softmax(scores, -1), v), TARN_SHAPE(s.batches, s.heads, s.rows, s.depth)));
}

/* The largest difference, as a share of the largest value. */
static double apart(tarn_tensor *a, tarn_tensor *b)
{
    double *x = values_of(a), *y = values_of(b), most = 0, size = 0;
    for (int64_t i = 0; i < tarn_count(a); i++) {
        most = fmax(most, fabs(x[i] - y[i]));
        size = fmax(size, fabs(y[i]));
    }
    free(x);
    free(y);
    return most / size;
}

static void agrees_with_its_steps(sizes s, tarn_dtype dtype, bool causal, double tolerance)
{
    tarn_tensor *one[OPERANDS], *other[OPERANDS];
    make_operands(s, dtype, one);
    for (int i = 0; i < OPERANDS; i++) /* the same, rounded, numbers */
        other[i] = tarn_requires_grad(good(tarn_detach(tarn_cast(one[i], TARN_F64))), true);
    tarn_tensor *fused = good(tarn_attention(one[Q], one[K], one[V], &(tarn_attention_options){.causal = causal}));
    tarn_tensor *steps = composed(s, other, causal);
    assert_true(apart(fused, steps) < tolerance);
    tarn_tensor *g = good(tarn_normal_like(fused, 0, 1));
    assert_true(tarn_backward_from(fused, g, NULL) && tarn_backward_from(steps, tarn_cast(g, TARN_F64), NULL));
    for (int i = 0; i < OPERANDS; i++)
        assert_true(apart(tarn_grad(one[i]), tarn_grad(other[i])) < tolerance);
    assert_ok();
}

static void every_dtype_agrees_with_its_steps_in_f64(void **state)
{
    (void)state;
    for (int causal = 0; causal < 2; causal++) {
        agrees_with_its_steps((sizes){2, 3, 3, 70, 70, 24}, TARN_F64, causal, 1e-13);
        agrees_with_its_steps((sizes){2, 3, 3, 70, 70, 24}, TARN_F32, causal, 2e-6);
        agrees_with_its_steps((sizes){1, 6, 2, 33, 100, 64}, TARN_F32, causal, 2e-6);
        agrees_with_its_steps((sizes){2, 4, 1, 17, 50, 32}, TARN_BF16, causal, 1e-2);
        agrees_with_its_steps((sizes){2, 4, 1, 17, 50, 32}, TARN_F16, causal, 1e-3);
    }
}

/* Gradients of 16-bit leaves are f32, and are made from weights that nobody rounded. */
static void gradients_of_bf16_have_the_digits_of_f32(void **state)
{
    (void)state;
    sizes s = {1, 2, 2, 40, 40, 16};
    tarn_tensor *one[OPERANDS], *other[OPERANDS];
    make_operands(s, TARN_BF16, one);
    for (int i = 0; i < OPERANDS; i++)
        other[i] = tarn_requires_grad(good(tarn_detach(tarn_cast(one[i], TARN_F64))), true);
    tarn_tensor *y = good(tarn_attention(one[Q], one[K], one[V], NULL)), *g = good(tarn_normal_like(y, 0, 1));
    assert_true(tarn_backward_from(y, g, NULL) &&
                tarn_backward_from(composed(s, other, false), tarn_cast(g, TARN_F64), NULL));
    for (int i = 0; i < OPERANDS; i++) {
        assert_int_equal(tarn_dtype_of(tarn_grad(one[i])), TARN_F32);
        assert_true(apart(tarn_grad(one[i]), tarn_grad(other[i])) <
                    (tarn_device_cpu().backend == device.backend ? 2e-6 : 2e-2));
    }
}

/* More keys than the CPU holds weights of at once, few enough units that their rows are shared out. */
static void long_rows_agree_too(void **state)
{
    (void)state;
    for (int causal = 0; causal < 2; causal++) {
        agrees_with_its_steps((sizes){1, 2, 1, 60, 4100, 8}, TARN_F32, causal, 1e-5);
        agrees_with_its_steps((sizes){1, 1, 1, 5, 3841, 8}, TARN_BF16, causal, 1e-2);
    }
}

/* Scores of hundreds: the rounding of their logarithm must not reach the gradient. */
static void large_scores_keep_their_digits(void **state)
{
    (void)state;
    sizes s = {1, 1, 1, 20, 20, 8};
    tarn_tensor *one[OPERANDS], *other[OPERANDS];
    make_operands(s, TARN_F32, one);
    one[Q] = tarn_requires_grad(good(tarn_detach(tarn_mul(one[Q], tarn_scalar(64)))), true);
    for (int i = 0; i < OPERANDS; i++)
        other[i] = tarn_requires_grad(good(tarn_detach(tarn_cast(one[i], TARN_F64))), true);
    tarn_tensor *y = good(tarn_attention(one[Q], one[K], one[V], NULL)), *g = good(tarn_normal_like(y, 0, 1));
    assert_true(tarn_backward_from(y, g, NULL) &&
                tarn_backward_from(composed(s, other, false), tarn_cast(g, TARN_F64), NULL));
    for (int i = 0; i < OPERANDS; i++)
        assert_true(apart(tarn_grad(one[i]), tarn_grad(other[i])) < 1e-4);
}

static void rows_with_nothing_to_attend_to_are_zero(void **state)
{
    (void)state;
    tarn_tensor *o[OPERANDS];
    make_operands((sizes){1, 1, 1, 3, 2, 4}, TARN_F32, o); /* row 0 stands before the first key */
    tarn_tensor *y = good(tarn_attention(o[Q], o[K], o[V], &(tarn_attention_options){.causal = true}));
    assert_true(tarn_backward_from(y, good(tarn_normal_like(y, 0, 1)), NULL));
    double *values = values_of(y), *gq = values_of(tarn_grad(o[Q])), *v = values_of(o[V]);
    for (int i = 0; i < 4; i++) {
        assert_true(values[i] == 0 && gq[i] == 0);
        assert_true(fabs(values[4 + i] - v[i]) < 1e-6); /* row 1 sees one key */
    }
    free(values);
    free(gq);
    free(v);
}

/* ---- lengths ----------------------------------------------------------------------------------------------------- */

/* What lies in a cache beyond its length may be anything. */
static void keys_beyond_the_length_are_not_read(void **state)
{
    (void)state;
    sizes s = {2, 2, 1, 1, 9, 4};
    tarn_tensor *o[OPERANDS];
    make_operands(s, TARN_F32, o);
    tarn_tensor *used =
        good(tarn_lt(tarn_reshape(tarn_arange(0, 9, 1, TARN_I64, device), TARN_SHAPE(1, 1, 9, 1)), tarn_scalar(6)));
    tarn_tensor *k = good(tarn_where(used, o[K], tarn_scalar(NAN))),
                *v = good(tarn_where(used, o[V], tarn_scalar(INFINITY)));
    tarn_tensor *six = good(tarn_from_i64((const int64_t[]){6}, (tarn_shape){0}, device));
    tarn_attention_options cached = {.causal = true, .lengths = six};
    tarn_tensor *found = good(tarn_attention(o[Q], k, v, &cached));
    tarn_tensor *wanted = good(tarn_attention(o[Q], tarn_slice(o[K], 2, 0, 6), tarn_slice(o[V], 2, 0, 6),
                                              &(tarn_attention_options){.causal = true}));
    assert_true(apart(found, wanted) == 0);
    cached.lengths = tarn_cast(six, TARN_I32);
    assert_true(apart(good(tarn_attention(o[Q], k, v, &cached)), wanted) == 0);
}

/* As in PyTorch: such a row attends to nothing. */
static void a_row_of_scores_of_minus_infinity_is_0(void **state)
{
    (void)state;
    static const double tolerances[] = {1e-6, 1e-12};
    for (int wide = 0; wide < 2; wide++) {
        tarn_dtype dtype = wide ? TARN_F64 : TARN_F32;
        tarn_tensor *q = good(tarn_cast(
            tarn_to(tarn_from_f32((const float[]){INFINITY, 0, 1, 1}, TARN_SHAPE(1, 1, 2, 2), tarn_device_cpu()),
                    device),
            dtype));
        tarn_tensor *k = good(tarn_cast(
            tarn_to(tarn_from_f32((const float[]){-1, 0, -2, 1, -0.5f, 3}, TARN_SHAPE(1, 1, 3, 2), tarn_device_cpu()),
                    device),
            dtype));
        tarn_tensor *v = good(tarn_normal(TARN_SHAPE(1, 1, 3, 2), 0, 1, dtype, device));
        tarn_requires_grad(q, true), tarn_requires_grad(v, true);
        tarn_tensor *y = good(tarn_attention(q, k, v, NULL)), *second = good(tarn_slice(tarn_detach(q), 2, 1, 2)),
                    *plain = good(tarn_clone(tarn_detach(v)));
        tarn_requires_grad(plain, true);
        tarn_tensor *alone = good(tarn_attention(second, k, plain, NULL));
        expect(good(tarn_slice(y, 2, 0, 1)), TARN_SHAPE(1, 1, 1, 2), VALUES(0, 0));
        assert_close(good(tarn_slice(y, 2, 1, 2)), alone, tolerances[wide]);
        assert_true(tarn_backward(good(tarn_sum(tarn_square(y), TARN_ALL_AXES, false))) &&
                    tarn_backward(good(tarn_sum(tarn_square(alone), TARN_ALL_AXES, false))));
        expect(good(tarn_slice(tarn_grad(q), 2, 0, 1)), TARN_SHAPE(1, 1, 1, 2), VALUES(0, 0));
        assert_close(tarn_grad(v), tarn_grad(plain), tolerances[wide]);
    }
}

static void a_length_outside_the_cache_is_an_error(void **state)
{
    (void)state;
    tarn_tensor *o[OPERANDS];
    make_operands((sizes){2, 1, 1, 1, 5, 4}, TARN_F32, o);
    static const int64_t wrong[] = {6, -1};
    for (int i = 0; i < 2; i++) {
        tarn_tensor *lengths = good(tarn_from_i64((const int64_t[]){3, wrong[i]}, TARN_SHAPE(2), device));
        tarn_attention(o[Q], o[K], o[V], &(tarn_attention_options){.lengths = lengths});
        tarn_synchronize(device);
        assert_error_about(TARN_ERROR_ARGUMENT, "attention", i ? "-1" : "6");
    }
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/* With values of one 1 each, the result is the weights; and each is dropped by the number that its place has. */
static void dropout_drops_by_place(void **state)
{
    (void)state;
    enum { HEADS = 2, ROWS = 5, KEYS = 11 };
    const double p = 0.4;
    const uint32_t limit = 26214; /* p · 65536 */
    tarn_seed(9);
    tarn_tensor *q = tarn_normal(TARN_SHAPE(1, HEADS, ROWS, KEYS), 0, 1, TARN_F32, device),
                *k = tarn_normal(TARN_SHAPE(1, HEADS, KEYS, KEYS), 0, 1, TARN_F32, device);
    tarn_tensor *eye = tarn_one_hot(tarn_arange(0, KEYS, 1, TARN_I64, device), KEYS, TARN_F32);
    tarn_tensor *v = good(tarn_expand(eye, TARN_SHAPE(1, HEADS, KEYS, KEYS)));
    tarn_tensor *whole = good(tarn_attention(q, k, v, NULL));
    tarn_seed(77);
    tarn_tensor *dropped = good(tarn_attention(q, k, v, &(tarn_attention_options){.dropout = p}));
    double *all = values_of(whole), *some = values_of(dropped);
    int zeros = 0;
    for (int64_t row = 0; row < HEADS * ROWS; row++)
        for (int64_t key = 0; key < KEYS; key++) {
            uint32_t word[4];
            tarn__philox(77, (uint64_t)(row * ((KEYS + 7) / 8) + key / 8), word);
            bool drops = (word[key % 8 / 2] >> 16 * (key % 2) & 0xFFFF) < limit;
            assert_true(fabs(some[row * KEYS + key] - (drops ? 0 : all[row * KEYS + key] / (1 - limit / 65536.0))) <
                        1e-6);
            zeros += drops;
        }
    assert_true(zeros > 20 && zeros < 70);
    free(all);
    free(some);
}

/* The next draw after attention begins where its numbers end: nothing is drawn twice. */
static void dropout_uses_its_numbers_up(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(1, 1, 4, 4), 0, 1, TARN_F32, device));
    tarn_attention_options half = {.dropout = 0.5};
    tarn_seed(3);
    tarn_tensor *first = good(tarn_attention(x, x, x, &half)), *second = good(tarn_attention(x, x, x, &half));
    tarn_seed(3);
    tarn_tensor *again = good(tarn_attention(x, x, x, &half));
    assert_true(apart(first, again) == 0);
    assert_true(apart(first, second) > 0);
}

/* ---- layouts and memory ------------------------------------------------------------------------------------------ */

/* x [B, T, heads · D] as [B, heads, T, D]. */
static tarn_tensor *heads_of(tarn_tensor *x, int64_t heads)
{
    tarn_tensor *apart_ = tarn_reshape(x, TARN_SHAPE(tarn_size(x, 0), tarn_size(x, 1), heads, tarn_size(x, 2) / heads));
    return good(tarn_permute(apart_, TARN_AXES(0, 2, 1, 3)));
}

static void the_packed_form_is_bitwise_identical(void **state)
{
    (void)state;
    int64_t heads = 4, kv_heads = 2, depth = 5, width = (heads + 2 * kv_heads) * depth;
    tarn_tensor *qkv = good(tarn_normal(TARN_SHAPE(2, 50, width), 0, 1, TARN_F32, device)),
                *same = good(tarn_clone(qkv));
    tarn_requires_grad(qkv, true);
    tarn_requires_grad(same, true);
    tarn_attention_options causal = {.causal = true};
    tarn_tensor *packed = good(tarn_attention_packed(qkv, heads, kv_heads, &causal));
    tarn_tensor *q = heads_of(tarn_slice(same, 2, 0, heads * depth), heads);
    tarn_tensor *k = heads_of(tarn_slice(same, 2, heads * depth, (heads + kv_heads) * depth), kv_heads);
    tarn_tensor *v = heads_of(tarn_slice(same, 2, (heads + kv_heads) * depth, width), kv_heads);
    tarn_tensor *merged = tarn_reshape(tarn_permute(tarn_attention(q, k, v, &causal), TARN_AXES(0, 2, 1, 3)),
                                       TARN_SHAPE(2, 50, heads * depth));
    assert_true(apart(packed, good(merged)) == 0);
    tarn_tensor *g = good(tarn_normal_like(packed, 0, 1));
    assert_true(tarn_backward_from(packed, g, NULL) && tarn_backward_from(merged, g, NULL));
    assert_true(apart(tarn_grad(qkv), tarn_grad(same)) == 0);
}

static void neither_form_copies(void **state)
{
    (void)state;
    tarn_tensor *qkv = good(tarn_normal(TARN_SHAPE(2, 6, 24), 0, 1, TARN_F32, device)),
                *x = good(tarn_normal(TARN_SHAPE(2, 6, 8), 0, 1, TARN_F32, device));
    tarn_requires_grad(qkv, true);
    tarn_requires_grad(x, true);
    tarn_tensor *g = good(tarn_ones(TARN_SHAPE(2, 6, 8), TARN_F32, device));
    tarn_stats_reset();
    tarn_tensor *y = good(tarn_attention_packed(qkv, 2, 0, NULL)), *heads = heads_of(x, 2);
    tarn_tensor *z = good(tarn_reshape(tarn_permute(tarn_attention(heads, heads, heads, NULL), TARN_AXES(0, 2, 1, 3)),
                                       TARN_SHAPE(2, 6, 8)));
    int64_t kernels = tarn_stats().kernels;
    assert_int_equal(kernels, 2);
    assert_true(tarn_backward_from(y, g, NULL) && tarn_backward_from(z, g, NULL));
    assert_int_equal(tarn_stats().layout_copies, 0);
}

/* Forward and backward of one head with that many rows: the most memory that was in use beyond its operands. */
static int64_t extra_memory(int64_t rows)
{
    tarn_tensor *o[OPERANDS];
    tarn_scope *scope = tarn_scope_open();
    make_operands((sizes){1, 1, 1, rows, rows, 16}, TARN_F32, o);
    tarn_tensor *g = good(tarn_normal_like(o[Q], 0, 1));
    tarn_stats_reset();
    int64_t before = tarn_memory_of(device).used;
    tarn_tensor *y = good(tarn_attention(o[Q], o[K], o[V], &(tarn_attention_options){.causal = true}));
    assert_true(tarn_backward_from(y, g, NULL));
    int64_t peak = tarn_memory_of(device).peak_used - before;
    tarn_scope_close(scope);
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

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {
        in_scope(every_dtype_agrees_with_its_steps_in_f64),
        in_scope(gradients_of_bf16_have_the_digits_of_f32),
        in_scope(long_rows_agree_too),
        in_scope(large_scores_keep_their_digits),
        in_scope(rows_with_nothing_to_attend_to_are_zero),
        in_scope(keys_beyond_the_length_are_not_read),
        in_scope(a_row_of_scores_of_minus_infinity_is_0),
        in_scope(a_length_outside_the_cache_is_an_error),
        in_scope(dropout_drops_by_place),
        in_scope(dropout_uses_its_numbers_up),
        in_scope(the_packed_form_is_bitwise_identical),
        in_scope(neither_form_copies),
        in_scope(memory_is_linear_in_the_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
