/* test_attention_window.c: attention with a sliding window, a soft cap and wide heads, against its composed form, whose
 * mask and gradients come from other operations; against itself where the two mean nothing; derivatives in f64.
 * TARN_TEST_DEVICE names the device; default: the CPU. */
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

/* Largest difference relative to the largest value. */
static double apart(tarn_tensor *a, tarn_tensor *b)
{
    double *x = values_of(a), *y = values_of(b), most = 0, size = 0;
    for (int64_t i = 0; i < tarn_count(a); i++) {
        most = fmax(most, fabs(x[i] - y[i]));
        size = fmax(size, fabs(y[i]));
    }
    free(x);
    free(y);
    return size > 0 ? most / size : most;
}

/* Kernel and composed form of equal operands, the composed form in f64. */
static void agrees(sizes s, tarn_dtype dtype, const tarn_attention_options *o, double tolerance)
{
    tarn_tensor *one[OPERANDS], *other[OPERANDS];
    make_operands(s, dtype, one);
    for (int i = 0; i < OPERANDS; i++)
        other[i] = tarn_requires_grad(good(tarn_clone(tarn_detach(tarn_cast(one[i], TARN_F64)))), true);
    tarn_tensor *y = good(tarn_attention(one[Q], one[K], one[V], o));
    tarn_tensor *steps = good(tarn__attention_composed(other[Q], other[K], other[V], o)),
                *g = good(tarn_normal_like(y, 0, 1));
    assert_true(apart(y, steps) < tolerance);
    assert_true(tarn_backward_from(y, g, NULL) && tarn_backward_from(steps, tarn_cast(g, TARN_F64), NULL));
    for (int i = 0; i < OPERANDS; i++)
        assert_true(apart(tarn_grad(one[i]), tarn_grad(other[i])) < tolerance);
    assert_ok();
}

/* Window, soft cap and both; lengths and document starts with them where `masks` has bits 1 and 2. */
static void agrees_with_limits(sizes s, tarn_dtype dtype, int64_t window, int masks, double tolerance)
{
    int64_t lengths[] = {s.keys, s.keys - s.keys / 3};
    int32_t *starts = calloc((size_t)(s.batches * s.rows), sizeof(*starts));
    assert_non_null(starts);
    for (int64_t i = 0; i < s.batches * s.rows; i++) /* documents of 7 rows */ {
        int64_t start = (s.keys > s.rows ? s.keys - s.rows : 0) + i % s.rows / 7 * 7;
        starts[i] = (int32_t)(start < s.keys ? start : s.keys);
    }
    tarn_attention_options o = {.causal = true, .window = window};
    if (masks & 1)
        o.lengths = good(tarn_from_i64(lengths, TARN_SHAPE(s.batches), device));
    if (masks & 2)
        o.document_starts = good(tarn_from_i32(starts, TARN_SHAPE(s.batches, s.rows), device));
    free(starts);
    agrees(s, dtype, &o, tolerance);
    o.softcap = 1.5;
    agrees(s, dtype, &o, tolerance);
    o.window = 0, o.causal = false;
    agrees(s, dtype, &o, tolerance);
}

static void every_dtype_agrees_with_its_steps_in_f64(void **state)
{
    (void)state;
    for (int masks = 0; masks < 4; masks++) {
        agrees_with_limits((sizes){2, 4, 2, 70, 70, 24}, TARN_F64, 9, masks, 1e-13);
        agrees_with_limits((sizes){2, 4, 2, 70, 70, 24}, TARN_F32, 33, masks, 4e-6);
        agrees_with_limits((sizes){1, 6, 2, 33, 100, 64}, TARN_F32, 1, masks, 4e-6);
        agrees_with_limits((sizes){2, 3, 1, 40, 17, 8}, TARN_F32, 5, masks, 4e-6);
        agrees_with_limits((sizes){2, 2, 1, 1, 90, 32}, TARN_F32, 20, masks, 4e-6);
        agrees_with_limits((sizes){2, 4, 1, 70, 90, 32}, TARN_BF16, 30, masks, 1e-2);
        agrees_with_limits((sizes){2, 4, 1, 70, 90, 32}, TARN_F16, 64, masks, 2e-3);
    }
}

/* Blocks of rows with different windows, several chunks of keys, parts of a unit. */
static void long_rows_agree_too(void **state)
{
    (void)state;
    agrees_with_limits((sizes){1, 2, 1, 500, 500, 16}, TARN_F32, 100, 0, 4e-6);
    agrees_with_limits((sizes){1, 2, 1, 60, 4100, 8}, TARN_F32, 3000, 1, 1e-5);
    agrees_with_limits((sizes){1, 1, 1, 5, 3841, 8}, TARN_BF16, 3000, 0, 1e-2);
}

static void wide_heads_agree_too(void **state)
{
    (void)state;
    const int64_t depth[] = {160, 200, 256};
    for (int i = 0; i < 3; i++) {
        sizes s = {1, 4, 2, 70, 80, depth[i]};
        agrees(s, TARN_F64, &(tarn_attention_options){.causal = true}, 1e-13);
        agrees_with_limits(s, TARN_F32, 20, 3, 4e-6);
        agrees_with_limits(s, TARN_BF16, 20, 0, 1e-2);
        agrees_with_limits(s, TARN_F16, 70, 1, 2e-3);
    }
}

static tarn_tensor *attend(tarn_tensor *const *in, int count, void *options)
{
    (void)count;
    tarn_seed(3); /* the same weights are dropped each time */
    return tarn_attention(in[Q], in[K], in[V], options);
}

static void its_gradients_are_derivatives(void **state)
{
    (void)state;
    tarn_tensor *o[OPERANDS];
    tarn_tensor *valid = good(tarn_from_i64((const int64_t[]){9, 6}, TARN_SHAPE(2), device)),
                *starts = good(tarn_from_i32((const int32_t[]){2, 2, 2, 5, 5, 5, 5, 2, 3, 4, 4, 4, 7, 7},
                                             TARN_SHAPE(2, 7), device));
    tarn_attention_options options[] = {{.causal = true, .window = 3},
                                        {.softcap = 0.7},
                                        {.causal = true, .window = 4, .softcap = 2, .scale = 0.9},
                                        {.causal = true, .window = 1, .softcap = 2},
                                        {.causal = true, .window = 4, .dropout = 0.3},
                                        {.causal = true, .window = 5, .softcap = 1, .dropout = 0.4, .lengths = valid},
                                        {.causal = true, .window = 5, .softcap = 1, .document_starts = starts}};
    for (int i = 0; i < 7; i++) {
        make_operands((sizes){2, 4, 2, 7, 9, 5}, TARN_F64, o);
        assert_true(tarn_gradcheck(attend, &options[i], o, OPERANDS, NULL));
    }
}

/* A window of one key is that key's value. */
static void a_window_of_one_key_is_its_value(void **state)
{
    (void)state;
    tarn_tensor *o[OPERANDS];
    make_operands((sizes){2, 2, 2, 20, 33, 8}, TARN_F32, o);
    tarn_tensor *y = good(tarn_attention(o[Q], o[K], o[V], &(tarn_attention_options){.causal = true, .window = 1}));
    assert_close(y, good(tarn_slice(o[V], 2, 13, 33)), 0);
}

static void a_window_of_all_keys_changes_no_bit(void **state)
{
    (void)state;
    tarn_tensor *o[OPERANDS];
    make_operands((sizes){1, 4, 2, 50, 60, 16}, TARN_F32, o);
    tarn_tensor *y = good(tarn_attention(o[Q], o[K], o[V], &(tarn_attention_options){.causal = true}));
    const int64_t window[] = {60, 61, INT64_MAX};
    for (int i = 0; i < 3; i++)
        assert_close(
            y, good(tarn_attention(o[Q], o[K], o[V], &(tarn_attention_options){.causal = true, .window = window[i]})),
            0);
}

static void the_packed_form_is_bitwise_identical(void **state)
{
    (void)state;
    const tarn_attention_options o = {.causal = true, .window = 11, .softcap = 3};
    tarn_tensor *qkv = good(tarn_normal(TARN_SHAPE(2, 70, 8 * 16), 0, 1, TARN_F32, device)), *part[3];
    assert_true(tarn_split(qkv, 2, (const int64_t[]){64, 32, 32}, 3, part));
    for (int i = 0; i < 3; i++)
        part[i] = tarn_permute(tarn_reshape(part[i], TARN_SHAPE(2, 70, i == 0 ? 4 : 2, 16)), TARN_AXES(0, 2, 1, 3));
    tarn_tensor *y = tarn_permute(good(tarn_attention(part[Q], part[K], part[V], &o)), TARN_AXES(0, 2, 1, 3));
    assert_close(good(tarn_attention_packed(qkv, 4, 2, &o)), good(tarn_reshape(y, TARN_SHAPE(2, 70, 64))), 0);
}

/* Row and key alone decide what is dropped. */
static void what_is_dropped_does_not_depend_on_the_window(void **state)
{
    (void)state;
    tarn_tensor *y[2];
    for (int i = 0; i < 2; i++) { /* equal scores: weights are 1 / window before dropout */
        tarn_seed(9);
        tarn_tensor *q = good(tarn_zeros(TARN_SHAPE(1, 2, 40, 40), TARN_F32, device)),
                    *k = good(tarn_zeros(TARN_SHAPE(1, 1, 40, 40), TARN_F32, device)),
                    *v = good(tarn_reshape(tarn_eye(40, 40, TARN_F32, device), TARN_SHAPE(1, 1, 40, 40)));
        y[i] = good(
            tarn_attention(q, k, v, &(tarn_attention_options){.causal = true, .dropout = 0.4, .window = i ? 9 : 0}));
    }
    double *all = values_of(y[0]), *some = values_of(y[1]);
    for (int64_t i = 0; i < 2 * 40 * 40; i++) {
        int64_t row = i / 40 % 40, key = i % 40;
        bool inside = key <= row && key > row - 9;
        assert_true((some[i] != 0) == (inside && all[i] != 0));
    }
    free(all);
    free(some);
}

/* mirror:0 has no attention kernel (main()): windows and soft caps are composed there, and nothing falls back to the
 * CPU. */
static void a_device_without_the_kernel_does_it_in_steps(void **state)
{
    (void)state;
    tarn_device mirror = tarn_device_parse("mirror:0");
    for (int i = 1; i < 4; i++) {
        const tarn_attention_options o = {.causal = true, .window = i & 1 ? 5 : 0, .softcap = i & 2 ? 2 : 0};
        tarn_tensor *qkv = good(tarn_normal(TARN_SHAPE(2, 20, 64), 0, 1, TARN_F32, device)),
                    *there = good(tarn_to(qkv, mirror));
        tarn_tensor *wanted = good(tarn_attention_packed(qkv, 4, 2, &o));
        tarn_stats_reset();
        tarn_tensor *found = good(tarn_attention_packed(there, 4, 2, &o));
        assert_int_equal(tarn_stats().fallbacks, 0);
        assert_true(apart(found, wanted) < 2e-6);
    }
}

int main(void)
{
    setenv("TARN_MIRROR_DISABLE", "attention", 1);
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {
        in_scope(every_dtype_agrees_with_its_steps_in_f64),
        in_scope(long_rows_agree_too),
        in_scope(wide_heads_agree_too),
        in_scope(its_gradients_are_derivatives),
        in_scope(a_window_of_one_key_is_its_value),
        in_scope(a_window_of_all_keys_changes_no_bit),
        in_scope(the_packed_form_is_bitwise_identical),
        in_scope(what_is_dropped_does_not_depend_on_the_window),
        in_scope(a_device_without_the_kernel_does_it_in_steps),
    };
    return cmocka_run_group_tests_name("ops/attention_window", tests, NULL, NULL);
}
