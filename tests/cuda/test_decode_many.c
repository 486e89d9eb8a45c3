/* test_decode_many.c: a decode step of dozens of sequences on a CUDA device: attention against the CPU, in shapes of
 * every kernel; sequences bitwise identical alone and among others; captured and eager steps of a model. Skipped
 * without a device. */
#include <stdlib.h>
#include <string.h>

#include "models/lm/kv_cache.h"
#include "ops/internal.h"
#include "support/gpu.h"
#include "support/scratch.h"

/* ---- attention --------------------------------------------------------------------------------------------------- */

typedef struct past {
    int64_t batch, heads, kv_heads, depth, length; /* sequences have up to `length` keys */
    tarn_dtype dtype;
    int64_t window;
    double softcap;
} past;

/* Fills both caches alike; sequence b has length - b % 7 * (length / 8) keys. */
static void fill_past(tarn__kv_cache *cache, const past *p)
{
    for (int part = 0; part < 2; part++) {
        tarn_tensor *rows = normal(TARN_SHAPE(p->batch, p->kv_heads, p->length + 2, p->depth), 1, p->dtype);
        for (int i = 0; i < 2; i++)
            assert_true(tarn_copy(cache[i].rows[part].rows, rows));
    }
    for (int i = 0; i < 2; i++)
        for (int64_t b = 0; b < p->batch; b++) {
            tarn__kv_cache_advance(&cache[i], b, 1, p->length + 1 - b % 7 * (p->length / 8));
            assert_true(tarn__kv_cache_rewind(&cache[i], b, cache[i].length[b] - 1));
        }
}

/* Two tokens per sequence; the second with the bound of a captured step. */
static void sequences_attend(const past *p, const tarn_rope_options *rope)
{
    tarn__kv_cache cache[2];
    tarn_device device[] = {CPU, gpu};
    const tarn__decode_attention_options how = {.rope = rope, .window = p->window, .softcap = p->softcap};
    for (int i = 0; i < 2; i++) {
        const tarn__kv_cache_shape shape = {.layers = 1,
                                            .batch = p->batch,
                                            .heads = p->kv_heads,
                                            .capacity = p->length + 2,
                                            .head_dim = p->depth,
                                            .dtype = p->dtype,
                                            .map = tarn__device_map_one(device[i])};
        assert_true(tarn__kv_cache_open("test", &cache[i], &shape));
    }
    fill_past(cache, p);
    for (int step = 0; step < 2; step++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *part[3], *y[2];
        for (int i = 0; i < 3; i++)
            part[i] = normal(TARN_SHAPE(p->batch, 1, i ? p->kv_heads : p->heads, p->depth), 1, p->dtype);
        for (int i = 0; i < 2; i++) {
            assert_true(tarn__kv_cache_begin_step(&cache[i], 0, p->batch, 1, step ? p->length + 2 : 0));
            assert_true(i == 0 || tarn_profile_start(gpu));
            y[i] =
                good(tarn__kv_cache_rotate_and_attend(&cache[i], 0, tarn_to(part[0], device[i]),
                                                      tarn_to(part[1], device[i]), tarn_to(part[2], device[i]), &how));
            if (i == 1)
                assert_string_equal(profiled_variant(TARN_PROFILE_ATTENTION), "grouped");
            assert_true(tarn__kv_cache_end_step(&cache[i]));
            tarn__kv_cache_advance(&cache[i], 0, p->batch, 1);
        }
        assert_close_for_size(back(y[1]), y[0], 3e-2);
        tarn_scope_close(scope);
    }
    for (int part = 0; part < 2; part++) /* the appended rows */
        assert_close(back(cache[1].rows[part].rows), cache[0].rows[part].rows, 2e-2);
    for (int i = 0; i < 2; i++)
        tarn__kv_cache_close(&cache[i]);
}

/* Groups of one to eight queries; one tile of keys, partial tiles, one split and several. */
static void sequences_attend_to_the_cache(void **state)
{
    NEEDS_GPU();
    static const int64_t heads[][2] = {{32, 8}, {8, 8}, {24, 8}, {16, 2}, {10, 2}, {7, 1}},
                         lengths[] = {1, 15, 63, 64, 130, 600, 1025, 2100};
    const tarn_rope_options ropes[] = {{.axis = 1},
                                       {.axis = 1, .interleaved = true},
                                       {.axis = 1, .dims = 32},
                                       {.axis = 1, .scaling = TARN_ROPE_LLAMA3}};
    for (int i = 0; i < 32; i++) {
        tarn_scope *scope = tarn_scope_open();
        const int64_t *h = heads[i % 6];
        const past p = {.batch = 64 / h[1] + i % 2,
                        .heads = h[0],
                        .kv_heads = h[1],
                        .depth = i % 3 == 1 ? 128 : 64,
                        .length = lengths[(i + i / 8) % 8],
                        .dtype = i % 2 ? TARN_F16 : TARN_BF16,
                        .window = i % 5 == 2 ? 50 : 0,
                        .softcap = i % 7 == 3 ? 5 : 0};
        sequences_attend(&p, i % 9 == 8 ? NULL : &ropes[i % 4]);
        tarn_scope_close(scope);
    }
}

/* A sequence is bitwise identical alone and among others of different lengths. */
static void sequences_do_not_depend_on_others(void **state)
{
    NEEDS_GPU();
    enum { ALL = 40, FEW = 9, KEYS = 1500 };
    tarn_tensor *q = there(normal(TARN_SHAPE(ALL, 1, 32, 64), 1, TARN_BF16)),
                *k = there(normal(TARN_SHAPE(ALL, 1, 8, 64), 1, TARN_BF16)), *rows[2], *y[3];
    int64_t at[ALL];
    for (int i = 0; i < ALL; i++)
        at[i] = i * 37 % KEYS;
    for (int i = 0; i < 2; i++)
        rows[i] = there(normal(TARN_SHAPE(ALL, 8, KEYS, 64), 1, TARN_BF16));
    tarn_tensor *position = good(tarn_from_i64(at, TARN_SHAPE(ALL), gpu));
    const tarn__decode_attention_options how = {0};
    for (int i = 0; i < 3; i++) {
        const int64_t count = i == 2 ? FEW : ALL;
        const tarn__decode_kv keys = {good(tarn_slice(rows[0], 0, 0, count)), NULL},
                              values = {good(tarn_slice(rows[1], 0, 0, count)), NULL};
        tarn_tensor *token = good(tarn_slice(k, 0, 0, count));
        y[i] = good(tarn__decode_attention(good(tarn_slice(q, 0, 0, count)), token, token,
                                           good(tarn_slice(position, 0, 0, count)), &how, &keys, &values));
    }
    assert_close(back(y[1]), back(y[0]), 0);
    assert_close(back(y[2]), back(tarn_slice(y[0], 0, 0, FEW)), 0);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

enum { VOCAB = 512, TOKENS = 4, SEQUENCES = 48, PROMPT = 70 };

/* Logits of some tokens of every sequence after a prompt. */
static void decode(tarn_module *model, tarn_device device, bool no_capture, tarn_tensor **logits)
{
    static int64_t prompt[SEQUENCES * PROMPT];
    tarn_decoder *decoder = tarn_decoder_new(
        model, &(tarn_decoder_options){.batch = SEQUENCES, .context = PROMPT + TOKENS, .no_capture = no_capture});
    for (int i = 0; i < SEQUENCES * PROMPT; i++)
        prompt[i] = i * 37 % VOCAB;
    good(tarn_decoder_feed(decoder, tarn_from_i64(prompt, TARN_SHAPE(SEQUENCES, PROMPT), device)));
    for (int i = 0; i < TOKENS; i++)
        logits[i] = back(tarn_decoder_feed(decoder, tarn_from_i64(prompt + i, TARN_SHAPE(SEQUENCES, 1), device)));
    tarn_decoder_free(decoder);
}

/* Logits equal the CPU's, and captured steps are bitwise identical to eager ones. */
static void models_decode_many_sequences(void **state)
{
    NEEDS_GPU();
    static const tarn_dtype packed[] = {TARN_BF16, TARN_Q8_0, TARN_Q4_K};
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = 512,
                                      .layers = 2,
                                      .heads = 8,
                                      .kv_heads = 2,
                                      .hidden_size = 512,
                                      .ffn_size = 1024,
                                      .dtype = TARN_BF16,
                                      .arch = "llama"};
    tarn_module *model = tarn_model_llama(&config, CPU, 6);
    assert_true(tarn_model_write(model, scratch("llama")));
    tarn_module_free(model);
    for (int i = 0; i < 3; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *wanted[TOKENS], *recorded[TOKENS], *one_by_one[TOKENS];
        const tarn_model_open_options options = {.dtype = TARN_BF16, .quantize = i ? packed[i] : 0};
        model = tarn_model_open(scratch("llama"), CPU, &options);
        assert_ok();
        decode(model, CPU, true, wanted);
        assert_true(tarn_module_to(model, gpu));
        const int64_t before = tarn_stats().fallbacks;
        decode(model, gpu, false, recorded);
        decode(model, gpu, true, one_by_one);
        assert_int_equal(tarn_stats().fallbacks, before);
        for (int t = 0; t < TOKENS; t++) {
            assert_close(recorded[t], one_by_one[t], 0);
            assert_close_for_size(recorded[t], wanted[t], 8e-2);
        }
        tarn_module_free(model);
        tarn_scope_close(scope);
    }
}

#define on_gpu(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)

int main(void)
{
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
    const struct CMUnitTest tests[] = {
        on_gpu(sequences_attend_to_the_cache),
        on_gpu(sequences_do_not_depend_on_others),
        on_gpu(models_decode_many_sequences),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
