/* test_attention_quant_kv.c: attention over a quantized KV cache equals attention over the dequantized values. */
#include "ops/internal.h"
#include "support/check.h"

#define CPU tarn_device_cpu()

/* The numbers that codes stand for, in f32: a scale serves 32 of them. */
static tarn_tensor *decoded(tarn_tensor *code, tarn_tensor *scale)
{
    const int64_t *size = code->view.shape, groups = tarn_size(scale, 3);
    tarn_tensor *repeated =
        tarn_expand(tarn_unsqueeze(tarn_cast(scale, TARN_F32), 4), TARN_SHAPE(size[0], size[1], size[2], groups, 32));
    tarn_tensor *of_each =
        tarn_slice(tarn_reshape(repeated, TARN_SHAPE(size[0], size[1], size[2], groups * 32)), 3, 0, size[3]);
    return good(tarn_mul(tarn_sub(tarn_cast(code, TARN_F32), tarn_scalar(128)), of_each));
}

/* Random codes [B, KV, S, D], of which `keys` are looked at, as a view of a longer cache. */
static tarn_tensor *codes(int64_t B, int64_t heads, int64_t keys, int64_t D, tarn_device device)
{
    tarn_tensor *all = tarn_cast(tarn_uniform(TARN_SHAPE(B, heads, keys + 5, D), 1, 255.99, TARN_F32, CPU), TARN_U8);
    return good(tarn_slice(tarn_to(all, device), 2, 0, keys));
}

static tarn_tensor *scales(int64_t B, int64_t heads, int64_t keys, int64_t D, tarn_device device)
{
    tarn_tensor *all = tarn_uniform(TARN_SHAPE(B, heads, keys + 5, (D + 31) / 32), 0, 0.02, TARN_F16, CPU);
    return good(tarn_slice(tarn_to(all, device), 2, 0, keys));
}

/* Few rows, which are taken as they lie, and many, which are packed; several keys to a chunk; lengths that differ;
 * where `limited`, with a window and a soft cap. */
static void codes_attend_as_their_values_do(tarn_device device, bool limited)
{
    static const struct {
        int64_t B, heads, kv_heads, rows, keys, D;
    } shapes[] = {{1, 2, 2, 1, 7, 6},    {2, 8, 2, 1, 300, 64}, {1, 3, 1, 5, 33, 40},
                  {2, 4, 4, 40, 90, 80}, {1, 2, 1, 1, 2100, 8}, {1, 1, 1, 3, 3, 130}};
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int d = 0; d < 4; d++) {
            int64_t B = shapes[i].B, KV = shapes[i].kv_heads, S = shapes[i].keys, D = shapes[i].D,
                    rows = shapes[i].rows;
            int64_t lengths[] = {S, (S + rows) / 2};
            tarn_tensor *q =
                good(tarn_to(tarn_normal(TARN_SHAPE(B, shapes[i].heads, rows, D), 0, 1, dtypes[d], CPU), device));
            tarn_tensor *k = codes(B, KV, S, D, device), *v = codes(B, KV, S, D, device),
                        *of_k = scales(B, KV, S, D, device), *of_v = scales(B, KV, S, D, device);
            const tarn_attention_options o = {.causal = true,
                                              .lengths = B == 2 ? tarn_from_i64(lengths, TARN_SHAPE(2), device) : NULL,
                                              .window = limited ? S / 3 + 1 : 0,
                                              .softcap = limited ? 2 : 0};
            assert_true(tarn__attention_quant_kv_fits(q, k));
            tarn_tensor *y = good(tarn__attention_quant_kv(q, k, v, of_k, of_v, &o));
            tarn_dtype wide = dtypes[d] == TARN_F64 ? TARN_F64 : TARN_F32;
            tarn_tensor *expected = good(tarn_attention(tarn_cast(q, wide), tarn_cast(decoded(k, of_k), wide),
                                                        tarn_cast(decoded(v, of_v), wide), &o));
            assert_int_equal(tarn_dtype_of(y), dtypes[d]);
            assert_close(tarn_cast(y, wide), expected, d < 2 ? 1e-6 : d == 2 ? 8e-3 : 1e-3);
        }
}

static void codes_dequantize_to_their_values(void **state)
{
    (void)state;
    for (int limited = 0; limited < 2; limited++) {
        codes_attend_as_their_values_do(CPU, limited);
        if (tarn_device_count("mirror") > 0)
            codes_attend_as_their_values_do(tarn_device_parse("mirror:0"), limited);
    }
}

static void other_floats_are_what_they_stand_for(void **state)
{
    (void)state;
    static const tarn_dtype stored[] = {TARN_BF16, TARN_F16, TARN_F32};
    for (int i = 0; i < 3; i++)
        for (int64_t rows = 1; rows < 20; rows += 9) {
            tarn_dtype of_q = stored[i] == TARN_F32 ? TARN_BF16 : TARN_F32;
            tarn_tensor *q = good(tarn_normal(TARN_SHAPE(2, 4, rows, 24), 0, 1, of_q, CPU));
            tarn_tensor *k = good(tarn_normal(TARN_SHAPE(2, 2, 50, 24), 0, 1, stored[i], CPU)),
                        *v = good(tarn_normal_like(k, 0, 1));
            const tarn_attention_options o = {.causal = true};
            tarn_tensor *y = good(tarn_cast(tarn__attention_quant_kv(q, k, v, NULL, NULL, &o), TARN_F32));
            tarn_tensor *expected =
                good(tarn_attention(tarn_cast(q, TARN_F32), tarn_cast(k, TARN_F32), tarn_cast(v, TARN_F32), &o));
            assert_close(y, expected, of_q == TARN_F32 ? 1e-6 : 8e-3);
        }
}

/* A scale that is not finite is not hidden: the row that looks at it is not finite, either. */
static void what_is_not_finite_stays_so(void **state)
{
    (void)state;
    tarn_tensor *q = good(tarn_ones(TARN_SHAPE(1, 1, 1, 4), TARN_F32, CPU)), *k = codes(1, 1, 3, 4, CPU),
                *v = codes(1, 1, 3, 4, CPU);
    tarn_tensor *of_k = scales(1, 1, 3, 4, CPU), *of_v = good(tarn_fill_inplace(scales(1, 1, 3, 4, CPU), INFINITY));
    tarn_tensor *y = good(tarn__attention_quant_kv(q, k, v, of_k, of_v, &(tarn_attention_options){.causal = true}));
    assert_false(isfinite(tarn_item_at(y, TARN_SHAPE(0, 0, 0, 0))));
}

/* Keys and values in 8 bits are those that blocks of Q8_0 hold, no more and no less: attention to them is attention to
 * these, written out in f32. */
static void values_equal_those_of_q8_0(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows < 50; rows += 40) {
        tarn_tensor *q = good(tarn_normal(TARN_SHAPE(2, 4, rows, 96), 0, 1, TARN_F32, CPU)), *part[2], *code[2],
                    *scale[2];
        for (int i = 0; i < 2; i++) {
            tarn_tensor *x = good(tarn_normal(TARN_SHAPE(2, 2, 70, 96), 0, 1, TARN_F32, CPU));
            code[i] = good(tarn__quantize_kv(x, &scale[i]));
            part[i] = good(tarn_cast(tarn_cast(x, TARN_Q8_0), TARN_F32));
        }
        const tarn_attention_options o = {.causal = true};
        tarn_tensor *y = good(tarn__attention_quant_kv(q, code[0], code[1], scale[0], scale[1], &o));
        /* one row is not packed: another order of sums */
        assert_close(y, good(tarn_attention(q, part[0], part[1], &o)), rows == 1 ? 1e-6 : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(codes_dequantize_to_their_values),
        in_scope(other_floats_are_what_they_stand_for),
        in_scope(what_is_not_finite_stays_so),
        in_scope(values_equal_those_of_q8_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
