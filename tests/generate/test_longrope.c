/* test_longrope.c: sequences that grow past longrope's short context: Phi-3 computes its cache anew, so that every
 * token is the one after a forward pass over the whole text. */
#include <tarn/engine.h>

#include "support/check.h"

enum { VOCAB = 23, CONTEXT = 48, SHORT = 12, PAIRS = 4 };

static tarn_device device;

/* Factors far apart, and weights that give tokens different logits. */
static tarn_module *make(const char *arch)
{
    tarn_lm_config c = {0};
    assert_true(tarn_lm_config_named(arch, &c));
    c.vocab_size = VOCAB, c.context = CONTEXT, c.layers = 2, c.heads = 2, c.kv_heads = 1, c.hidden_size = 16;
    c.ffn_size = 20, c.head_dim = 2 * PAIRS, c.eos_count = 0, c.window = 0, c.windows = (tarn_lm_layers){0};
    c.rope = (tarn_rope_options){
        .base = 100, .dims = 2 * PAIRS, .scaling = TARN_ROPE_LONGROPE, .factor = 4, .original_context = SHORT};
    for (int i = 0; i < PAIRS; i++) {
        c.rope_factors[0][i] = 1.0f + 0.1f * (float)i;
        c.rope_factors[1][i] = 3.0f + (float)i;
    }
    tarn_module *model = tarn_model_lm(&c, device, 5);
    assert_non_null(model);
    tarn_seed(8);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p), tarn_normal(tarn_shape_of(p), 0, 0.4, TARN_F32, device)));
    }
    tarn_module_train(model, false);
    assert_ok();
    return model;
}

/* Greedy tokens after a prompt, each by a forward pass over the whole text. */
static void by_forward(tarn_module *model, const int32_t *prompt, int64_t count, int32_t *out, int64_t tokens)
{
    int32_t text[CONTEXT];
    memcpy(text, prompt, sizeof(*text) * (size_t)count);
    for (int64_t i = 0; i < tokens; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *logits = good(tarn_forward(model, good(tarn_from_i32(text, TARN_SHAPE(1, count + i), device))));
        text[count + i] = out[i] = (int32_t)tarn_item(tarn_argmax(
            tarn_slice(tarn_reshape(logits, TARN_SHAPE(count + i, VOCAB)), 0, count + i - 1, count + i), 1, false));
        tarn_scope_close(scope);
    }
    assert_ok();
}

static void check_text(tarn_generator *generator, tarn_module *model, int64_t sequence, const int32_t *prompt,
                       int64_t count)
{
    int32_t expected[CONTEXT];
    int64_t tokens = CONTEXT - count;
    tarn_output output;
    by_forward(model, prompt, count, expected, tokens);
    assert_true(tarn_generator_prompt(generator, sequence, prompt, count,
                                      &(tarn_generate_options){.max_tokens = tokens, .ignore_eos = true}));
    for (int64_t i = 0; i < tokens; i++) {
        assert_true(tarn_generator_next(generator, &output));
        assert_int_equal(output.token, expected[i]);
    }
    assert_ok();
}

static const int32_t prompt[CONTEXT] = {3,  7, 1, 0,  22, 4,  9,  9, 15, 2, 6,  20, 11, 5, 8, 1, 17, 3, 14, 19,
                                        21, 2, 7, 13, 0,  10, 12, 4, 16, 5, 18, 3,  9,  1, 6, 8, 22, 0, 2,  7};

/* Prompts before, at and after the boundary; later ones share tokens with a cache of the same side and of the other. */
static void phi3_is_recomputed_past_its_short_context(void **state)
{
    (void)state;
    static const int64_t counts[] = {4, 1, SHORT - 1, SHORT, SHORT + 1, 30, 31, 6};
    for (int chunk = 0; chunk < 2; chunk++) {
        tarn_module *model = make("phi3");
        tarn_generator *generator =
            tarn_generator_new(model, NULL, &(tarn_generator_options){.prefill_chunk = chunk ? 5 : 0});
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
            check_text(generator, model, 0, prompt, counts[i]);
        tarn_generator_free(generator);
        tarn_module_free(model);
    }
}

/* Sequences on both sides of the boundary, which cross it at different steps. */
static void sequences_cross_one_by_one(void **state)
{
    (void)state;
    enum { COUNT = 3, TOKENS = 20 };
    static const int64_t counts[COUNT] = {20, 9, 3};
    tarn_module *model = make("phi3");
    tarn_generator *generator = tarn_generator_new(model, NULL, &(tarn_generator_options){.sequences = COUNT});
    int32_t expected[COUNT][CONTEXT];
    int64_t at[COUNT] = {0};
    tarn_output output;
    for (int64_t i = 0; i < COUNT; i++) {
        by_forward(model, prompt + i, counts[i], expected[i], TOKENS);
        assert_true(tarn_generator_prompt(generator, i, prompt + i, counts[i],
                                          &(tarn_generate_options){.max_tokens = TOKENS, .ignore_eos = true}));
    }
    while (tarn_generator_next(generator, &output))
        assert_int_equal(output.token, expected[output.sequence][at[output.sequence]++]);
    assert_ok();
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(at[i], TOKENS);
    tarn_generator_free(generator);
    tarn_module_free(model);
}

/* A long prompt in chunks has the angles of the whole one, in any architecture. */
static void chunks_are_rotated_for_the_whole_prompt(void **state)
{
    (void)state;
    tarn_module *model = make("llama");
    tarn_tensor *tokens = good(tarn_from_i32(prompt, TARN_SHAPE(1, 30), device)),
                *whole = tarn_slice(good(tarn_forward(model, tokens)), 1, 29, 30);
    for (int64_t chunk = 1; chunk < 31; chunk += 7) {
        tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.prefill_chunk = chunk});
        tarn_tensor *gap = tarn_max(
            tarn_abs(tarn_sub(tarn_reshape(whole, TARN_SHAPE(1, VOCAB)), good(tarn_decoder_feed(decoder, tokens)))),
            TARN_ALL_AXES, false);
        assert_true(tarn_item(gap) < 1e-4);
        tarn_decoder_free(decoder);
    }
    tarn_module_free(model);
}

/* Unless it is asked for a longer context: test_engine_longrope.c. */
static void an_engine_has_the_short_context(void **state)
{
    (void)state;
    int32_t expected[CONTEXT];
    tarn_engine_stats stats;
    tarn_module *model = make("phi3");
    tarn_engine *engine = tarn_engine_new(model, NULL);
    assert_true(tarn_engine_query(engine, &stats));
    assert_int_equal(stats.context, SHORT);
    by_forward(model, prompt, 4, expected, SHORT - 4);
    assert_int_equal(tarn_engine_add(engine, prompt, 4, &(tarn_generate_options){.ignore_eos = true}), 1);
    int64_t count = 0;
    while (tarn_engine_step(engine) > 0)
        for (tarn_engine_output output; tarn_engine_next(engine, &output); count++)
            assert_int_equal(output.token, expected[count]);
    assert_int_equal(count, SHORT - 4);
    tarn_engine_free(engine);
    engine = tarn_engine_new(model, &(tarn_engine_options){.context = CONTEXT});
    assert_true(tarn_engine_query(engine, &stats) && stats.context == CONTEXT);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {
        in_scope(phi3_is_recomputed_past_its_short_context),
        in_scope(sequences_cross_one_by_one),
        in_scope(chunks_are_rotated_for_the_whole_prompt),
        in_scope(an_engine_has_the_short_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
