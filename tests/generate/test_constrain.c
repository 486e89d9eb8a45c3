/* test_constrain.c: generation that follows a grammar, by models of random weights: the text is valid where the grammar
 * ends it, and says so where the length does. Masks of samplers. */
#include <math.h>
#include <tarn/generate.h>

#include "support/files.h"
#include "text/grammar/schema.h"

#define CPU tarn_device_cpu()

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{\"type\":"
    "\"integer\","
    "\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\",null]},\"maxItems\":"
    "3},"
    "\"day\":{\"type\":\"string\",\"format\":\"date\"}},\"required\":[\"name\",\"age\",\"tags\",\"day\"],"
    "\"additionalProperties\":false}";

static const char small[] = "root ::= \"{\\\"a\\\":\" [1-9] [0-9]{0,3} \",\\\"s\\\":\\\"\" [a-z]{0,9} \"\\\"}\"";

static tarn_module *random_model(int64_t vocab_size, uint64_t seed)
{
    const tarn_gpt2_config config = {.vocab_size = vocab_size,
                                     .context = 600,
                                     .layers = 1,
                                     .heads = 2,
                                     .hidden_size = 16,
                                     .has_eos = true,
                                     .eos = 0};
    tarn_module *model = tarn_model_gpt2(&config, CPU, seed);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p), tarn_normal_like(p, 0, 0.3)));
    }
    assert_ok();
    return model;
}

/* Generates two sequences at once, one of them greedy, and checks both. Returns how many the grammar has ended. */
static int generate(tarn_module *model, const tarn_tokenizer *t, tarn_grammar *g, int64_t max_tokens, uint64_t seed)
{
    char text[2][4096];
    size_t length[2] = {0};
    int ended = 0;
    tarn_output output;
    tarn_generator *w = tarn_generator_new(model, t, &(tarn_generator_options){.sequences = 2, .context = 600});
    for (int i = 0; i < 2; i++)
        assert_true(tarn_generator_prompt(
            w, i, (int32_t[]){65, 66}, 2,
            &(tarn_generate_options){.max_tokens = max_tokens, .grammar = g, .temperature = i, .seed = seed}));
    while (tarn_generator_next(w, &output)) {
        int i = (int)output.sequence;
        assert_true(length[i] + output.length <= sizeof(text[i]));
        memcpy(text[i] + length[i], output.text, output.length);
        length[i] += output.length;
        if (output.finish_reason == TARN_FINISH_NONE)
            continue;
        tarn__json_tree tree;
        bool is_json = tarn__json_parse(&tree, "test", text[i], length[i]);
        tarn__json_close(&tree);
        tarn_clear_error();
        ended += output.finish_reason != TARN_FINISH_LENGTH;
        if (is_json != (output.finish_reason != TARN_FINISH_LENGTH))
            fail_msg("seed %llu: '%.*s' ends by %d", (unsigned long long)seed, (int)length[i], text[i],
                     (int)output.finish_reason);
    }
    assert_ok();
    tarn_generator_free(w);
    return ended;
}

static void random_models_write_valid_json(void **state)
{
    (void)state;
    uint64_t first = test_seed(1) % 1000000;
    const char *path = real_data("stories260K/tok512.model");
    for (int kind = 0; kind < (path ? 2 : 1); kind++) {
        tarn_tokenizer *t = kind ? tarn_tokenizer_open(path) : tarn_tokenizer_bytes();
        int64_t size = tarn_tokenizer_count(t) + 7; /* padded */
        tarn_grammar_vocab *v = tarn_grammar_vocab_new(t, &(tarn_grammar_vocab_options){.vocab_size = size});
        tarn_grammar *by_schema = tarn_grammar_json_schema(v, schema, sizeof(schema) - 1), *open = tarn_grammar_json(v);
        tarn_grammar *bounded = tarn_grammar_gbnf(v, small, sizeof(small) - 1);
        assert_ok();
        for (uint64_t seed = first; seed < first + 4; seed++) {
            tarn_module *model = random_model(size, seed);
            assert_int_equal(generate(model, t, bounded, 50, seed), 2); /* of at most 35 bytes */
            generate(model, t, bounded, 5, seed);
            generate(model, t, by_schema, 590, seed);
            generate(model, t, open, 60, seed);
            tarn_module_free(model);
        }
        tarn_grammar_free(bounded);
        tarn_grammar_free(by_schema);
        tarn_grammar_free(open);
        tarn_grammar_vocab_free(v);
        tarn_tokenizer_free(t);
    }
}

static void a_grammar_must_fit_the_model(void **state)
{
    (void)state;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_grammar_vocab *v = tarn_grammar_vocab_new(t, NULL);
    tarn_grammar *g = tarn_grammar_regex(v, "a", 1), *bare = tarn_grammar_regex(NULL, "a", 1);
    tarn_module *model = random_model(260, 1), *fits = random_model(256, 1);
    tarn_generator *w = tarn_generator_new(model, t, NULL), *other = tarn_generator_new(fits, t, NULL);
    tarn_output output;
    assert_ok();
    assert_false(tarn_generator_prompt(w, 0, (int32_t[]){1}, 1, &(tarn_generate_options){.grammar = g}));
    assert_contains(tarn_error(), ".grammar was compiled for a vocabulary of 256 tokens; the model has 260");
    tarn_clear_error();
    assert_false(tarn_generator_prompt(w, 0, (int32_t[]){1}, 1, &(tarn_generate_options){.grammar = bare}));
    assert_contains(tarn_error(), "without a vocabulary");
    tarn_clear_error();
    assert_false(
        tarn_generator_prompt(other, 0, (int32_t[]){1}, 1, &(tarn_generate_options){.grammar = g, .ignore_eos = true}));
    tarn_clear_error();
    assert_true(tarn_generator_prompt(other, 0, (int32_t[]){1}, 1, &(tarn_generate_options){.grammar = g}));
    tarn_grammar_free(g); /* the sequence keeps it */
    assert_true(tarn_generator_next(other, &output));
    assert_int_equal(output.token, 'a');
    assert_int_equal(output.finish_reason, TARN_FINISH_GRAMMAR);
    assert_false(tarn_generator_next(other, &output));
    assert_ok();
    tarn_grammar_free(bare);
    tarn_generator_free(w);
    tarn_generator_free(other);
    tarn_module_free(model);
    tarn_module_free(fits);
    tarn_grammar_vocab_free(v);
    tarn_tokenizer_free(t);
}

static void masked_tokens_are_never_sampled(void **state)
{
    (void)state;
    float values[2 * 40];
    const uint32_t masks[4] = {1u << 3 | 1u << 7, 0, 0, 1u << 5}; /* tokens 3 and 7; token 37 */
    int64_t ids[2];
    for (int i = 0; i < 80; i++)
        values[i] = (float)((i * 7) % 40);
    tarn_tensor *logits = tarn_from_f32(values, TARN_SHAPE(2, 40), CPU);
    for (int round = 0; round < 30; round++) {
        tarn_sampler *s = tarn_sampler_new(&(tarn_sampler_options){.temperature = round ? 5 : 0,
                                                                   .seed = (uint64_t)round,
                                                                   .top_k = round % 3,
                                                                   .repeat_penalty = round % 2 ? 1.5 : 0});
        assert_true(tarn_sampler_mask(s, masks, 2, 2));
        assert_true(tarn_read(tarn_sampler_sample(s, logits), ids, sizeof(ids)));
        assert_true((ids[0] == 3 || ids[0] == 7) && ids[1] == 37);
        assert_true(tarn_read(tarn_sampler_sample(s, logits), ids, sizeof(ids))); /* of the next call only */
        assert_true(tarn_sampler_mask(s, masks, 1, 2));
        assert_null(tarn_sampler_sample(s, logits));
        assert_contains(tarn_error(), "the masks are [1, 2] words; the logits are [2, 40]");
        tarn_clear_error();
        tarn_sampler_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(random_models_write_valid_json),
        in_scope(a_grammar_must_fit_the_model),
        in_scope(masked_tokens_are_never_sampled),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
