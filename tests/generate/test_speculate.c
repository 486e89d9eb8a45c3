/* test_speculate.c: speculative decoding gives the tokens, texts and log probabilities that come without it, bit by
 * bit: of every architecture, with every kind of KV cache, with options of sampling, stop strings, grammars, windows
 * and longrope, for n-grams and for draft models; what it refuses; and what it counts. Proposals are forced, whatever
 * time they take. */
#include "generate/generator.h"
#include "support/arch_models.h"
#include "support/files.h"
#include "support/noise.h"
#include "support/scratch.h"
#include "support/stories.h"

#define CPU tarn_device_cpu()
enum { MOST = 300 };

static int64_t proposed_tokens, accepted_tokens; /* of all generators */

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* What a sequence gave. */
typedef struct result {
    int32_t token[MOST];
    int64_t count;
    uint64_t hash; /* of texts and log probabilities */
    tarn_finish_reason reason;
} result;

static void add_to_hash(uint64_t *hash, const void *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        *hash = (*hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
}

static int64_t added_steps; /* by force() */

/* Proposals are made as if they always paid, and from the first step on. */
static void force(tarn_generator *generator)
{
    tarn__speculation *p = &generator->speculation;
    int64_t before = p->stats.steps;
    p->extra_ms = -1e9;
    p->stats.steps += before < 2 ? 2 : before % 32 == 0;
    added_steps += p->stats.steps - before;
}

/* Up to `most` outputs after a prompt; then the sequence is stopped. */
static result outputs_of(tarn_generator *generator, const int32_t *prompt, int64_t count,
                         const tarn_generate_options *options, int64_t most)
{
    result r = {0};
    tarn_output output;
    assert_true(tarn_generator_prompt(generator, 0, prompt, count, options));
    for (force(generator); r.count < most && tarn_generator_next(generator, &output); force(generator)) {
        if (output.token >= 0)
            r.token[r.count++] = output.token;
        if (output.text)
            add_to_hash(&r.hash, output.text, output.length);
        if (output.token >= 0 && options->logprobs)
            add_to_hash(&r.hash, &output.logprob, sizeof(output.logprob));
        add_to_hash(&r.hash, &output.slid, sizeof(output.slid));
        for (int i = 0; i < output.top_logprob_count; i++) {
            add_to_hash(&r.hash, &output.top_logprobs[i].token, sizeof(int32_t));
            add_to_hash(&r.hash, &output.top_logprobs[i].logprob, sizeof(double));
        }
        r.reason = output.finish_reason;
    }
    assert_ok();
    assert_true(tarn_generator_stop(generator, 0));
    return r;
}

static void expect_same(const char *what, const result *found, const result *expected)
{
    for (int64_t i = 0; i < expected->count && i < found->count; i++)
        if (found->token[i] != expected->token[i])
            fail_msg("%s: token %d is %d, not %d", what, (int)i, (int)found->token[i], (int)expected->token[i]);
    if (found->count != expected->count || found->reason != expected->reason || found->hash != expected->hash)
        fail_msg("%s: %d tokens, reason %d; without proposals %d tokens, reason %d; texts and logprobs %s", what,
                 (int)found->count, found->reason, (int)expected->count, expected->reason,
                 found->hash == expected->hash ? "agree" : "differ");
}

/* A conversation of three turns, the second of which is stopped by the caller, with and without proposals. */
static void check(const char *what, tarn_module *model, tarn_module *draft, const tarn_tokenizer *tokenizer,
                  const tarn_generator_options *creation, tarn_generate_options options, const int32_t *prompt,
                  int64_t count)
{
    tarn_generator_options with_draft = *creation;
    with_draft.draft = draft;
    tarn_generator *plain = tarn_generator_new(model, tokenizer, creation),
                   *fast = tarn_generator_new(model, tokenizer, &with_draft);
    assert_ok();
    tarn_generate_options proposing = options;
    proposing.speculate = draft ? TARN_SPECULATE_DRAFT : TARN_SPECULATE_NGRAM;
    options.draft_tokens = 0;
    int32_t text[MOST];
    memcpy(text, prompt, sizeof(*text) * (size_t)count);
    for (int turn = 0; turn < 3; turn++) {
        tarn_scope *scope = tarn_scope_open();
        const int64_t most = turn == 1 ? 3 : MOST;
        options.seed = proposing.seed = options.seed + 1;
        result expected = outputs_of(plain, text, count, &options, most),
               found = outputs_of(fast, text, count, &proposing, most);
        expect_same(what, &found, &expected);
        tarn_scope_close(scope);
        /* the next prompt is that text, or its beginning, and one more token */
        const int64_t capacity = plain->decoder->cache.shape.capacity,
                      kept = turn == 0 ? expected.count / 2 : expected.count;
        for (int64_t i = 0; i < kept && count < capacity - 3; i++)
            text[count++] = expected.token[i];
        text[count < capacity - 3 ? count++ : count - 1] = 1;
    }
    tarn_generator_stats stats;
    assert_true(tarn_generator_query(fast, &stats));
    assert_true(stats.accepted_tokens <= stats.proposed_tokens);
    proposed_tokens += stats.proposed_tokens, accepted_tokens += stats.accepted_tokens;
    tarn_generator_free(plain);
    tarn_generator_free(fast);
}

/* Options of sampling, by number. */
enum { HOWS = 6 };
static tarn_generate_options how(int i)
{
    static const tarn_logit_bias biases[] = {{3, 2.5}, {7, -100}};
    const tarn_generate_options options[HOWS] = {
        {.logprobs = true, .top_logprobs = 3},
        {.temperature = 0.3, .logprobs = true},
        {.temperature = 1.1, .top_k = 20, .top_p = 0.9},
        {.repeat_penalty = 1.3, .repeat_last_n = 7, .logprobs = true},
        {.temperature = 0.8, .frequency_penalty = 0.5, .presence_penalty = 0.4, .min_p = 0.05},
        {.logit_bias = biases, .logit_bias_count = 2, .draft_tokens = 2}};
    tarn_generate_options o = options[i];
    o.ignore_eos = true;
    return o;
}

static const int32_t repeating[] = {5, 9, 13, 5, 9, 13, 5, 9};

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* Also another model as the draft, in context and beyond it. */
static void every_architecture_has_the_same_tokens(void **state)
{
    (void)state;
    static const tarn_kv_type types[] = {TARN_KV_MODEL, TARN_KV_Q8_0, TARN_KV_BF16, TARN_KV_F16};
    const bool is_long = getenv("TARN_TEST_LONG") != NULL;
    proposed_tokens = accepted_tokens = 0;
    for (int i = 0; i < ARCH_CASES; i++) {
        tarn_module *model = arch_model(&arch_cases[i], 2), *draft = arch_model(&arch_cases[(i + 1) % ARCH_CASES], 1);
        for (int k = is_long ? 0 : i % 3; k < HOWS; k += is_long ? 1 : 3) {
            tarn_generate_options o = how(k);
            o.slide = k % 2;
            o.max_tokens = o.slide ? 2 * ARCH_CONTEXT : 0;
            o.draft_tokens = o.draft_tokens ? o.draft_tokens : k;
            for (int with_draft = 0; with_draft < 2; with_draft++) {
                char what[96];
                snprintf(what, sizeof(what), "%s, options %d, %s", arch_cases[i].arch, k,
                         with_draft ? "draft" : "n-grams");
                o.draft_tokens = with_draft || k == 5 ? o.draft_tokens : 0;
                check(what, model, with_draft ? draft : NULL, NULL,
                      &(tarn_generator_options){.kv_type = types[(i + k) % 4]}, o, repeating, 8);
            }
        }
        tarn_module_free(model);
        tarn_module_free(draft);
    }
    printf("(%d of %d proposed tokens accepted)\n", (int)accepted_tokens, (int)proposed_tokens);
    assert_true(accepted_tokens > 300 && proposed_tokens - accepted_tokens > 300);
}

/* A model with sizes of which no vector is whole, and weights that prefer some tokens. */
static tarn_module *make(const char *arch, tarn_dtype dtype, int64_t context, int64_t window,
                         const tarn_rope_options *rope)
{
    tarn_lm_config c = {0};
    assert_true(tarn_lm_config_named(arch, &c));
    c.vocab_size = 256, c.context = context, c.layers = 2, c.heads = 3, c.kv_heads = 1, c.hidden_size = 38;
    c.ffn_size = 101, c.head_dim = 8, c.eos_count = 0, c.dtype = dtype, c.window = window;
    c.windows = (tarn_lm_layers){0};
    c.has_bos = c.has_bos && c.bos < c.vocab_size;
    if (rope)
        c.rope = *rope;
    for (int i = 0; i < 4; i++) {
        c.rope_factors[0][i] = 1.0f + 0.1f * (float)i;
        c.rope_factors[1][i] = 3.0f + (float)i;
    }
    tarn_module *model = add_noise(tarn_model_lm(&c, CPU, 5));
    assert_ok();
    assert_true(tarn_module_train(model, false));
    return model;
}

static void every_dtype_has_the_same_tokens(void **state)
{
    (void)state;
    static const tarn_dtype floats[] = {TARN_F32, TARN_BF16, TARN_F16, TARN_F64}, quantized[] = {TARN_Q8_0, TARN_Q4_0};
    for (int i = 0; i < 4; i++) {
        tarn_module *model = make("llama", floats[i], 128, 0, NULL);
        for (int k = 0; k < HOWS; k += 2)
            check(tarn_dtype_name(floats[i]), model, NULL, NULL, &(tarn_generator_options){0}, how(k), repeating, 8);
        tarn_module_free(model);
    }
    for (int i = 0; i < ARCH_CASES; i += 2) {
        tarn_module *model = arch_model(&arch_cases[i], 2);
        assert_true(tarn_model_write(model, scratch("model")));
        tarn_module_free(model);
        assert_true(tarn_model_convert(
            scratch("model"), scratch("model.gguf"), NULL,
            &(tarn_convert_options){.quantize = true, .type = quantized[i / 2 % 2], .replace = true}));
        model = tarn_model_open(scratch("model.gguf"), CPU, NULL);
        assert_ok();
        check(tarn_dtype_name(quantized[i / 2 % 2]), model, NULL, NULL, &(tarn_generator_options){0}, how(i % HOWS),
              repeating, 8);
        tarn_module_free(model);
    }
}

/* Adapters that are not merged add their update in another order to rows of a batch than to those of one sequence. */
static void adapters_have_the_same_tokens(void **state)
{
    (void)state;
    static const tarn_dtype floats[] = {TARN_F32, TARN_BF16, TARN_F16};
    for (int i = 0; i < 6; i++) {
        tarn_module *model = make(i % 2 ? "gpt2" : "llama", floats[i / 2], 128, 0, NULL);
        assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 8}));
        assert_true(tarn_module_train(add_noise(model), false));
        for (int k = 1; k < HOWS; k += 2)
            check(tarn_dtype_name(floats[i / 2]), model, NULL, NULL, &(tarn_generator_options){0}, how(k), repeating,
                  8);
        tarn_module_free(model);
    }
}

/* Full contexts, windows, and RoPE that depends on the length. */
static void every_length_has_the_same_tokens(void **state)
{
    (void)state;
    const tarn_rope_options
        longrope = {.base = 100, .dims = 8, .scaling = TARN_ROPE_LONGROPE, .factor = 4, .original_context = 40},
        dynamic = {.base = 100, .dims = 8, .scaling = TARN_ROPE_DYNAMIC, .factor = 2, .original_context = 40};
    tarn_module *models[] = {make("mistral", TARN_F32, 200, 21, NULL), make("phi3", TARN_F32, 120, 0, &longrope),
                             make("llama", TARN_F32, 120, 0, &longrope), make("llama", TARN_F32, 120, 0, &dynamic)};
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < HOWS; k++) {
            tarn_generate_options o = how(k);
            o.slide = k % 2;
            o.max_tokens = o.slide ? 250 : 0;
            char what[64];
            snprintf(what, sizeof(what), "model %d, options %d", i, k);
            check(what, models[i], NULL, NULL, &(tarn_generator_options){.prefill_chunk = k == 3 ? 5 : 0}, o, repeating,
                  8);
            if (k % 3 == 0)
                check(what, models[i], models[i], NULL, &(tarn_generator_options){0}, o, repeating, 8);
        }
        tarn_module_free(models[i]);
    }
}

/* Seeds, with a grammar of repeated words and with stop strings, where they end a text in the middle of proposals. */
static void ends_of_texts_are_the_same(void **state)
{
    (void)state;
    static const char *const stops[] = {"th", "\n", "ab", "z", "~"};
    static const char rules[] = "root ::= (\"abcabc\" | [a-f]+ \"-\" | \"[\" [0-9] [0-9] \"]\")*";
    tarn_module *model = make("llama", TARN_F32, 160, 0, NULL);
    tarn_tokenizer *of_bytes = tarn_tokenizer_bytes();
    tarn_grammar_vocab *vocab = tarn_grammar_vocab_new(of_bytes, &(tarn_grammar_vocab_options){.vocab_size = 256});
    tarn_grammar *grammar = tarn_grammar_gbnf(vocab, rules, sizeof(rules) - 1);
    assert_ok();
    for (int seed = 0; seed < 24; seed++) {
        tarn_generate_options o = {.max_tokens = 20 + seed,
                                   .temperature = seed % 3 ? 0.1 * seed : 0,
                                   .seed = (uint64_t)(100 * seed),
                                   .logprobs = true,
                                   .stop = (const int32_t[]){'x', 'y'},
                                   .stop_count = seed % 5 == 0 ? 2 : 0,
                                   .stop_strings = stops,
                                   .stop_string_count = seed % 4 == 1 ? 5 : 0,
                                   .repeat_penalty = seed % 7 == 3 ? 1.2 : 0,
                                   .grammar = seed % 2 ? grammar : NULL};
        char what[32];
        snprintf(what, sizeof(what), "seed %d", seed);
        check(what, model, seed % 3 == 2 ? model : NULL, of_bytes, &(tarn_generator_options){0}, o,
              (const int32_t[]){'a', 'b', 'c', 'a', 'b', 'c', 'a'}, 7);
    }
    tarn_grammar_free(grammar);
    tarn_grammar_vocab_free(vocab);
    tarn_tokenizer_free(of_bytes);
    tarn_module_free(model);
}

static void stories_have_the_same_tokens(void **state)
{
    (void)state;
    if (!real_data("stories260K"))
        skip();
    tarn_module *model = open_stories();
    const int32_t prompt[] = {1, 403, 407, 261, 378}; /* Once upon a time */
    proposed_tokens = accepted_tokens = 0;
    for (int i = 0; i < 4; i++) {
        tarn_generate_options o = how(i);
        o.max_tokens = 120;
        check("stories260K", model, NULL, NULL, &(tarn_generator_options){0}, o, prompt, 5);
        check("stories260K", model, model, NULL, &(tarn_generator_options){0}, o, prompt, 5);
    }
    assert_true(accepted_tokens > 0);
    tarn_module_free(model);
}

/* ---- proposals --------------------------------------------------------------------------------------------------- */

static void a_draft_that_is_the_model_is_always_right(void **state)
{
    (void)state;
    tarn_module *model = make("llama", TARN_F32, 200, 0, NULL);
    const tarn_generate_options o = {.speculate = TARN_SPECULATE_DRAFT, .ignore_eos = true};
    tarn_generator *generator = tarn_generator_new(model, NULL, &(tarn_generator_options){.draft = model});
    tarn_generator_stats stats;
    assert_ok();
    added_steps = 0;
    tarn_scope *scope = tarn_scope_open();
    result r = outputs_of(generator, repeating, 8, &o, MOST);
    tarn_scope_close(scope);
    assert_int_equal(r.count, 192);
    assert_true(tarn_generator_query(generator, &stats));
    assert_true(stats.proposed_tokens > 100);
    assert_int_equal(stats.accepted_tokens, stats.proposed_tokens);
    /* the first token is the prompt's, the others are those of steps or accepted */
    assert_int_equal(stats.steps - added_steps + stats.accepted_tokens, 191);
    tarn_generator_free(generator);
    tarn_module_free(model);
}

/* The token after the one given, of 8; positions do not matter. Only the first layer's MLP would: it is 0. */
static tarn_module *cycle_of_eight(void)
{
    enum { V = 8 };
    const tarn_gpt2_config config = {
        .vocab_size = V, .context = 400, .layers = 1, .heads = 1, .hidden_size = V, .ffn_size = 1};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 1);
    for (int i = 0; i < tarn_module_parameter_count(model); i++)
        tarn_fill_inplace(tarn_requires_grad(tarn_module_parameter(model, i), false), 0);
    tarn_fill_inplace(tarn_module_find(model, "transformer.ln_f.weight"), 1);
    /* embeddings are neighbours on a circle turned a little: the head, which shares them, prefers the next one */
    float rows[V][V] = {{0}};
    for (int i = 0; i < V; i++) {
        rows[i][i] = 1;
        rows[(i + V - 1) % V][i] = 1.5f;
    }
    tarn_copy(tarn_module_find(model, "transformer.wte.weight"), tarn_from_f32(&rows[0][0], TARN_SHAPE(V, V), CPU));
    assert_ok();
    return model;
}

/* A text that repeats takes about an eighth of the steps; one whose proposals are wrong takes few proposals. */
static void proposals_follow_what_is_accepted(void **state)
{
    (void)state;
    tarn_module *model = cycle_of_eight();
    tarn_generate_options o = {.speculate = TARN_SPECULATE_NGRAM, .max_tokens = 256};
    tarn_generator *generator = tarn_generator_new(model, NULL, &(tarn_generator_options){0});
    tarn_generator_stats stats;
    tarn_scope *scope = tarn_scope_open();
    result r = outputs_of(generator, (const int32_t[]){0, 1, 2}, 3, &o, MOST);
    assert_int_equal(r.count, 256);
    assert_true(tarn_generator_query(generator, &stats));
    assert_true(stats.accepted_tokens > 190);
    tarn_generator_free(generator);
    /* extra time that no saving makes up for: nothing is proposed */
    generator = tarn_generator_new(model, NULL, &(tarn_generator_options){0});
    tarn_output output;
    assert_true(tarn_generator_prompt(generator, 0, (const int32_t[]){0, 1, 0, 1, 0, 1}, 6, &o));
    do
        generator->speculation.extra_ms = 1e9;
    while (tarn_generator_next(generator, &output));
    assert_true(tarn_generator_query(generator, &stats));
    assert_int_equal(stats.proposed_tokens, 0);
    assert_int_equal(stats.steps, 255);
    tarn_scope_close(scope);
    tarn_generator_free(generator);
    tarn_module_free(model);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void refuse(tarn_generator *generator, const tarn_generate_options *o, tarn_code code, const char *why)
{
    assert_false(tarn_generator_prompt(generator, 0, repeating, 8, o));
    assert_error(code, why);
}

static void what_cannot_be_honoured_is_refused(void **state)
{
    (void)state;
    tarn_module *model = make("llama", TARN_F32, 64, 0, NULL), *other = arch_model(&arch_cases[1], 1);
    tarn_generator *one = tarn_generator_new(model, NULL, NULL),
                   *two = tarn_generator_new(model, NULL, &(tarn_generator_options){.sequences = 2});
    assert_ok();
    refuse(two, &(tarn_generate_options){.speculate = TARN_SPECULATE_NGRAM}, TARN_ERROR_UNSUPPORTED,
           ".speculate is for one sequence; the generator has 2");
    refuse(one, &(tarn_generate_options){.speculate = TARN_SPECULATE_DRAFT}, TARN_ERROR_ARGUMENT,
           ".speculate needs the generator's .draft: it has no draft model");
    refuse(one, &(tarn_generate_options){.speculate = (tarn_speculate)3}, TARN_ERROR_ARGUMENT, ".speculate is 3");
    refuse(one, &(tarn_generate_options){.draft_tokens = 3}, TARN_ERROR_ARGUMENT,
           ".draft_tokens is 3; it needs .speculate");
    refuse(one, &(tarn_generate_options){.speculate = TARN_SPECULATE_NGRAM, .draft_tokens = 8}, TARN_ERROR_ARGUMENT,
           ".draft_tokens is 8; it must be from 0 to 7");
    tarn_generator_stats stats;
    assert_false(tarn_generator_query(one, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "stats is NULL");
    assert_true(tarn_generator_query(one, &stats));
    assert_int_equal(stats.steps + stats.proposed_tokens, 0);
    tarn_tokenizer *of_bytes = tarn_tokenizer_bytes(), *letters = tarn_tokenizer_characters("abc", 3);
    assert_null(tarn_generator_new(model, NULL, &(tarn_generator_options){.draft = other}));
    assert_error(TARN_ERROR_ARGUMENT, "the draft model has a vocabulary of 64 tokens; it must be the model's, of 256");
    assert_null(
        tarn_generator_new(model, of_bytes, &(tarn_generator_options){.draft = model, .draft_tokenizer = letters}));
    assert_error(TARN_ERROR_ARGUMENT, "the draft model has another tokenizer: characters of 3 tokens; it must have the "
                                      "model's, bytes of 256 tokens");
    assert_null(tarn_generator_new(model, of_bytes, &(tarn_generator_options){.draft_tokenizer = of_bytes}));
    assert_error(TARN_ERROR_ARGUMENT, ".draft_tokenizer needs .draft");
    tarn_tokenizer_free(of_bytes);
    tarn_tokenizer_free(letters);
    tarn_generator_free(one);
    tarn_generator_free(two);
    tarn_module_free(model);
    tarn_module_free(other);
}

/* On a device that is not the CPU, here the mirror of the tests. */
static void other_devices_are_refused(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_module *model = make("llama", TARN_F32, 64, 0, NULL);
    assert_true(tarn_module_to(model, tarn_device_parse("mirror:0")));
    tarn_generator *generator = tarn_generator_new(model, NULL, &(tarn_generator_options){.no_capture = true});
    assert_ok();
    refuse(generator, &(tarn_generate_options){.speculate = TARN_SPECULATE_NGRAM}, TARN_ERROR_UNSUPPORTED,
           ".speculate needs the whole model on the CPU");
    tarn_generator_free(generator);
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(every_architecture_has_the_same_tokens),
                                       in_scope(every_dtype_has_the_same_tokens),
                                       in_scope(adapters_have_the_same_tokens),
                                       in_scope(every_length_has_the_same_tokens),
                                       in_scope(ends_of_texts_are_the_same),
                                       in_scope(stories_have_the_same_tokens),
                                       in_scope(a_draft_that_is_the_model_is_always_right),
                                       in_scope(proposals_follow_what_is_accepted),
                                       in_scope(what_cannot_be_honoured_is_refused),
                                       in_scope(other_devices_are_refused)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
