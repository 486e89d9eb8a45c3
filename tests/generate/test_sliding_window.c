/* test_sliding_window.c: sequences longer than the context, with .slide: the tokens are those of a model that is fed
 * the beginning and the last half of the context again; for learned positions and RoPE, all KV cache types, alone
 * and several at once, on the CPU and on TARN_TEST_DEVICE. */
#include "support/check.h"

#define CPU tarn_device_cpu()
enum { VOCAB = 64, CONTEXT = 12, MADE = 60, BEGIN = 3 };

static void shake(tarn_module *model, tarn_device device)
{
    tarn_seed(4);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(
            p, tarn_add(tarn_detach(p), tarn_to(tarn_normal(tarn_shape_of(p), 0, 0.3, tarn_dtype_of(p), CPU), device)));
    }
    assert_ok();
}

static tarn_module *learned_positions(tarn_device device)
{
    const tarn_gpt2_config config = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 2, .heads = 2, .hidden_size = 32};
    tarn_module *model = tarn_model_gpt2(&config, device, 9);
    shake(model, device);
    return model;
}

static tarn_module *rotary_positions(tarn_device device)
{
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = CONTEXT,
                                      .layers = 2,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .hidden_size = 32,
                                      .ffn_size = 48,
                                      .has_bos = true,
                                      .bos = BEGIN};
    tarn_module *model = tarn_model_llama(&config, device, 9);
    shake(model, device);
    return model;
}

/* The window after it has slid: the first `keep` tokens, and the last half of a context. */
static int64_t cut(int32_t *window, int64_t count, int64_t keep)
{
    memmove(window + keep, window + count - CONTEXT / 2, sizeof(*window) * (CONTEXT / 2));
    return keep + CONTEXT / 2;
}

static const tarn_generate_options greedy = {.max_tokens = MADE, .ignore_eos = true, .slide = true};

/* What follows a window that is read anew. */
static int32_t next_of(tarn_module *model, const int32_t *window, int64_t count)
{
    tarn_decoder *decoder = tarn_decoder_new(model, NULL);
    int64_t token = -1;
    tarn_tensor *logits = tarn_decoder_feed(
        decoder, tarn_from_i32(window, TARN_SHAPE(1, count), tarn_device_of(tarn_module_parameter(model, 0))));
    assert_true(logits && tarn_read(tarn_argmax(logits, 1, false), &token, sizeof(token)));
    tarn_decoder_free(decoder);
    return (int32_t)token;
}

static void check_by_hand(tarn_module *model, int32_t first, int64_t keep)
{
    int32_t window[CONTEXT + 2] = {first, 7, 1}, made[MADE], prompt[] = {first, 7, 1};
    int64_t count = 3;
    assert_int_equal(tarn_generate(model, prompt, 3, made, &greedy), MADE);
    for (int i = 0; i < MADE; i++) {
        if (count > CONTEXT)
            count = cut(window, count, keep);
        int32_t expected = next_of(model, window, count);
        if (made[i] != expected)
            fail_msg("token %d is %d, not %d", i, (int)made[i], (int)expected);
        window[count++] = expected;
    }
    tarn_module_free(model);
}

static void a_full_context_continues_with_its_last_half(void **state)
{
    (void)state;
    check_by_hand(learned_positions(CPU), 5, 0);
    check_by_hand(rotary_positions(CPU), 5, 0);
    check_by_hand(rotary_positions(CPU), BEGIN, 1); /* BOS stays */
}

static void a_longer_prompt_is_truncated_to_its_last_half(void **state)
{
    (void)state;
    tarn_module *model = rotary_positions(CPU);
    int32_t prompt[30], rest[1 + CONTEXT / 2] = {BEGIN}, made[MADE], expected[MADE];
    for (int i = 0; i < 30; i++)
        prompt[i] = i ? (i * 7) % VOCAB : BEGIN;
    for (int count = CONTEXT; count <= 30; count += 9) {
        memcpy(rest + 1, prompt + count - CONTEXT / 2, sizeof(*rest) * (CONTEXT / 2));
        assert_int_equal(tarn_generate(model, prompt, count, made, &greedy), MADE);
        assert_int_equal(tarn_generate(model, rest, 1 + CONTEXT / 2, expected, &greedy), MADE);
        assert_memory_equal(made, expected, sizeof(made));
    }
    tarn_module_free(model);
}

/* Several texts of other lengths, which slide at other times: each is the one that it would be alone. */
static void check_several(tarn_module *model, tarn_kv_type kv_type, bool no_capture)
{
    enum { TEXTS = 3 };
    int32_t found[TEXTS][MADE], prompt[] = {BEGIN, 9, 2, 8, 1, 30};
    int64_t made[TEXTS] = {0};
    int slides[TEXTS] = {0};
    for (int alone = 0; alone < 2; alone++)
        for (int k = 0; k < (alone ? TEXTS : 1); k++) {
            tarn_generator *w =
                tarn_generator_new(model, NULL,
                                   &(tarn_generator_options){
                                       .sequences = alone ? 1 : TEXTS, .kv_type = kv_type, .no_capture = no_capture});
            int64_t again = 0, length = 0;
            tarn_output output;
            for (int i = alone ? k : 0; i < (alone ? k + 1 : TEXTS); i++) {
                const tarn_generate_options how = {.max_tokens = MADE - 7 * i,
                                                   .temperature = 1,
                                                   .seed = (uint64_t)(20 + i),
                                                   .ignore_eos = true,
                                                   .slide = true,
                                                   .keep = i};
                assert_true(tarn_generator_prompt(w, alone ? 0 : i, prompt, 1 + 2 * i, &how));
            }
            while (tarn_generator_next(w, &output)) {
                if (!alone) {
                    found[output.sequence][made[output.sequence]++] = output.token;
                    slides[output.sequence] += output.slid;
                } else if (output.token != found[k][again++])
                    fail_msg("text %d is another alone, from token %d on", k, (int)again - 1);
            }
            assert_ok();
            assert_true(tarn_generator_tokens(w, 0, &length) && length <= CONTEXT + 1);
            assert_true(!alone || again == MADE - 7 * k);
            tarn_generator_free(w);
        }
    for (int i = 0; i < TEXTS; i++)
        assert_true(made[i] == MADE - 7 * i && slides[i] >= 4);
}

static void sequences_slide_independently(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        tarn_module *model = kind ? rotary_positions(CPU) : learned_positions(CPU);
        check_several(model, TARN_KV_MODEL, false);
        check_several(model, TARN_KV_BF16, false);
        tarn_module_free(model);
    }
    const tarn_llama_config config = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 1, .heads = 1, .hidden_size = 32, .ffn_size = 48};
    tarn_module *model = tarn_model_llama(&config, CPU, 9); /* heads of 32 elements, as q8_0 has them */
    shake(model, CPU);
    check_several(model, TARN_KV_Q8_0, false);
    tarn_module_free(model);
}

/* A recorded step goes on after the window has slid. */
static void another_device_slides_too(void **state)
{
    (void)state;
    const char *name = getenv("TARN_TEST_DEVICE");
    tarn_device device = tarn_device_parse(name && name[0] ? name : "mirror");
    assert_ok();
    check_by_hand(learned_positions(device), 5, 0);
    check_by_hand(rotary_positions(device), BEGIN, 1);
    tarn_module *model = rotary_positions(device);
    check_several(model, TARN_KV_MODEL, false);
    check_several(model, TARN_KV_MODEL, true);
    tarn_module_free(model);
}

static void invalid_slides_are_errors(void **state)
{
    (void)state;
    tarn_module *model = learned_positions(CPU);
    int32_t prompt[CONTEXT] = {1}, made[MADE];
    assert_int_equal(tarn_generate(model, prompt, CONTEXT, made, &(tarn_generate_options){.max_tokens = 1}), -1);
    assert_error(TARN_ERROR_SHAPE, "must be shorter than");
    assert_int_equal(tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.max_tokens = CONTEXT}), -1);
    assert_error(TARN_ERROR_SHAPE, "exceed");
    assert_int_equal(tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.max_tokens = 2, .keep = 1}), -1);
    assert_error(TARN_ERROR_ARGUMENT, ".keep is 1; it needs .slide");
    assert_int_equal(tarn_generate(model, prompt, 2, made,
                                   &(tarn_generate_options){.max_tokens = 20, .slide = true, .keep = CONTEXT / 2}),
                     -1);
    assert_error(TARN_ERROR_ARGUMENT, ".keep is 6; it must be from 0 to 5");
    assert_int_equal(
        tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.max_tokens = 20, .slide = true, .keep = -1}),
        -1);
    assert_error(TARN_ERROR_ARGUMENT, ".keep is -1");
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_full_context_continues_with_its_last_half),
        in_scope(a_longer_prompt_is_truncated_to_its_last_half),
        in_scope(sequences_slide_independently),
        in_scope(another_device_slides_too),
        in_scope(invalid_slides_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
