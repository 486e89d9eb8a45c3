/* test_embedder.c: embeddings are the mean of the hidden states, in chunks of any size. */
#include "support/check.h"
#include "support/noise.h"

#define CPU tarn_device_cpu()
enum { VOCAB = 23, CONTEXT = 40, SIZE = 16 };

static tarn_module *make_gpt2(void)
{
    const tarn_gpt2_config config = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 2, .heads = 2, .hidden_size = SIZE, .dropout = 0.5};
    return add_noise(tarn_model_gpt2(&config, CPU, 9));
}

static tarn_module *make_llama(void)
{
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = CONTEXT,
                                      .layers = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .hidden_size = SIZE,
                                      .ffn_size = 24,
                                      .head_dim = 6};
    return add_noise(tarn_model_llama(&config, CPU, 9));
}

static void embed(tarn_embedder *embedder, const int32_t *tokens, int64_t count, int64_t chunk, float *embedding)
{
    assert_true(tarn_embedder_begin(embedder, tokens, count));
    for (int64_t left = count; left > 0;) {
        left = left > chunk ? left - chunk : 0;
        assert_int_equal(tarn_embedder_step(embedder), left);
    }
    assert_int_equal(tarn_embedder_step(embedder), 0);
    assert_true(tarn_embedder_read(embedder, embedding, SIZE));
    assert_ok();
}

/* The head is linear and has more rows than columns: the mean of the logits is the head of the mean, of no other. */
static void expect_mean(tarn_module *model, const char *head, const int32_t *tokens, int64_t count,
                        const float *embedding)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_module_train(model, false);
    float expected[VOCAB], got[VOCAB];
    tarn_no_grad_open();
    tarn_tensor *logits = good(tarn_forward(model, tarn_from_i32(tokens, TARN_SHAPE(1, count), CPU))),
                *mean = good(tarn_mean(logits, TARN_AXES(0, 1), false)), *weight = good(tarn_module_find(model, head)),
                *back = good(tarn_linear_apply(tarn_from_f32(embedding, TARN_SHAPE(1, SIZE), CPU), weight, NULL));
    tarn_no_grad_close();
    assert_true(tarn_read_f32(mean, expected, VOCAB) && tarn_read_f32(back, got, VOCAB));
    for (int i = 0; i < VOCAB; i++)
        if (fabs(expected[i] - got[i]) > 1e-4 * (1 + fabs(expected[i])))
            fail_msg("logit %d of the mean is %g, not %g", i, got[i], expected[i]);
    tarn_scope_close(scope);
}

static void embeddings_are_the_mean_of_hidden_states(void **state)
{
    (void)state;
    uint64_t seed = test_seed(7);
    for (int round = 0; round < 20; round++) {
        bool is_gpt2 = round % 2;
        tarn_module *model = is_gpt2 ? make_gpt2() : make_llama();
        int64_t chunk = 1 + random_below(&seed, 9);
        tarn_embedder *embedder = tarn_embedder_new(model, &(tarn_embedder_options){.prefill_chunk = chunk});
        for (int i = 0; i < 3; i++) {
            int32_t tokens[CONTEXT];
            float embedding[SIZE];
            int64_t count = 1 + random_below(&seed, CONTEXT);
            for (int64_t k = 0; k < count; k++)
                tokens[k] = (int32_t)random_below(&seed, VOCAB);
            tarn_module_train(model, i == 1); /* without dropout all the same */
            embed(embedder, tokens, count, chunk, embedding);
            expect_mean(model, is_gpt2 ? "transformer.wte.weight" : "lm_head.weight", tokens, count, embedding);
        }
        tarn_embedder_free(embedder);
        tarn_module_free(model);
    }
}

static void a_new_sequence_drops_the_one_before(void **state)
{
    (void)state;
    const int32_t tokens[] = {1, 2, 3, 4, 5};
    float alone[SIZE], after[SIZE];
    tarn_module *model = make_llama();
    tarn_embedder *embedder = tarn_embedder_new(model, &(tarn_embedder_options){.context = 5, .prefill_chunk = 2});
    embed(embedder, tokens, 3, 2, alone);
    assert_true(tarn_embedder_begin(embedder, tokens, 5));
    assert_int_equal(tarn_embedder_step(embedder), 3);
    embed(embedder, tokens, 3, 2, after);
    assert_memory_equal(alone, after, sizeof(alone));
    tarn_embedder_free(embedder);
    tarn_module_free(model);
}

static void hidden_states_that_are_not_finite_are_an_error(void **state)
{
    (void)state;
    float embedding[SIZE];
    tarn_module *model = make_llama();
    tarn_tensor *weight = good(tarn_module_find(model, "model.norm.weight"));
    assert_true(tarn_copy(weight, tarn_full(TARN_SHAPE(SIZE), INFINITY, TARN_F32, CPU)));
    tarn_embedder *embedder = tarn_embedder_new(model, NULL);
    assert_true(tarn_embedder_begin(embedder, (int32_t[]){1, 2}, 2));
    assert_int_equal(tarn_embedder_step(embedder), 0);
    assert_false(tarn_embedder_read(embedder, embedding, SIZE));
    assert_contains(tarn_error(), "not finite");
    tarn_clear_error();
    tarn_embedder_free(embedder);
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(embeddings_are_the_mean_of_hidden_states),
        in_scope(a_new_sequence_drops_the_one_before),
        in_scope(hidden_states_that_are_not_finite_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
