/* test_decode_window.c: attention of a decode step with a sliding window and a soft cap on a CUDA device, against
 * tarn_attention() on the CPU over the cache with the token's key and value in it. Every cache dtype and the compiled
 * head sizes; positions before, at and after the end of the window, one block of keys and several. Skipped without a
 * device. */
#include "ops/internal.h"
#include "support/gpu.h"

/* One call: cache (B, KV, capacity, D) of dtype `stored`, the token at `position`. */
typedef struct trial {
    int64_t heads, kv_heads, depth, capacity, position, window;
    double softcap;
    tarn_dtype stored;
} trial;

enum { BATCH = 2 };

/* Cached rows as the cache stores them; `scale` is NULL but for 8 bits. */
static tarn_tensor *cached(const trial *t, tarn_tensor **scale)
{
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(BATCH, t->kv_heads, t->capacity, t->depth), 0, 1, TARN_F32, CPU));
    *scale = NULL;
    return good(t->stored == TARN_U8 ? tarn__quantize_kv(x, scale) : tarn_cast(x, t->stored));
}

/* The rows in f32 with the token's row, rounded as the cache stores it, at its position. */
static tarn_tensor *with_token(const trial *t, tarn_tensor *rows, tarn_tensor *scale, tarn_tensor *token)
{
    tarn_tensor *own_scale = NULL, *own = good(tarn_permute(token, TARN_AXES(0, 2, 1, 3)));
    own = good(t->stored == TARN_U8 ? tarn__quantize_kv(own, &own_scale) : tarn_cast(own, t->stored));
    own = good(own_scale ? tarn__dequantize_kv(own, own_scale, TARN_F32) : tarn_cast(own, TARN_F32));
    tarn_tensor *all = good(scale ? tarn__dequantize_kv(rows, scale, TARN_F32) : tarn_cast(rows, TARN_F32));
    all = good(tarn_clone(all));
    assert_true(tarn_copy(good(tarn_slice(all, 2, t->position, t->position + 1)), own));
    return all;
}

static void agrees(const trial *t)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *part[3], *rows[2], *scale[2], *all[2];
    const int64_t position[BATCH] = {t->position, t->position};
    for (int i = 0; i < 3; i++)
        part[i] = good(tarn_normal(TARN_SHAPE(BATCH, 1, i ? t->kv_heads : t->heads, t->depth), 0, 1, TARN_F32, CPU));
    for (int i = 0; i < 2; i++) {
        rows[i] = cached(t, &scale[i]);
        all[i] = with_token(t, rows[i], scale[i], part[1 + i]);
    }
    const tarn__decode_kv keys = {there(rows[0]), there(scale[0])}, values = {there(rows[1]), there(scale[1])};
    const tarn__decode_attention_options options = {.window = t->window, .softcap = t->softcap};
    tarn_tensor *q = there(part[0]), *at = there(good(tarn_from_i64(position, TARN_SHAPE(BATCH), CPU)));
    assert_true(tarn__attention_decode_fits(q, &keys, &options));
    tarn_tensor *y = good(tarn__decode_attention(q, there(part[1]), there(part[2]), at, &options, &keys, &values));
    const int64_t length = t->position + 1;
    tarn_tensor *expected =
        good(tarn_attention(good(tarn_permute(part[0], TARN_AXES(0, 2, 1, 3))), all[0], all[1],
                            &(tarn_attention_options){.causal = true,
                                                      .lengths = good(tarn_from_i64(&length, TARN_SHAPE(1), CPU)),
                                                      .window = t->window,
                                                      .softcap = t->softcap}));
    assert_close_for_size(good(tarn_to(y, CPU)), good(tarn_permute(expected, TARN_AXES(0, 2, 1, 3))),
                          t->stored == TARN_U8 ? 2e-2 : 2e-5);
    tarn_scope_close(scope);
}

static void a_token_attends_to_its_window(void **state)
{
    NEEDS_GPU();
    static const int64_t depths[] = {64, 128, 256, 96, 8}, heads[][2] = {{8, 4}, {4, 1}, {6, 2}, {3, 3}, {14, 2}};
    static const int64_t positions[] = {0, 30, 31, 32, 33, 200, 3999}, windows[] = {1, 32, 33, 100, 2500, 0};
    static const tarn_dtype stored[] = {TARN_F32, TARN_BF16, TARN_F16, TARN_U8};
    tarn_seed(5);
    for (int i = 0; i < 5 * 7 * 6; i++) {
        const trial t = {.heads = heads[i % 5][0],
                         .kv_heads = heads[i % 5][1],
                         .depth = depths[i / 3 % 5],
                         .capacity = 4000,
                         .position = positions[i % 7],
                         .window = windows[i % 6],
                         .softcap = i / 2 % 3 == 0   ? 0
                                    : i / 2 % 3 == 1 ? 1.5
                                                     : 30,
                         .stored = stored[i / 4 % 4]};
        agrees(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_token_attends_to_its_window, open_gpu, close_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
