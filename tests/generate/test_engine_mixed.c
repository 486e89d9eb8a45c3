/* test_engine_mixed.c: everything at once: requests with stop strings, grammars, penalties, biases, salts, adapters and
 * echoes, of models with windows, longrope and quantized weights, that speculate by n-grams or a draft whose vocabulary
 * is padded otherwise, while others are cancelled and pages are few: the texts, tokens and log probabilities that each
 * has alone and without speculation. */
#include <math.h>
#include <tarn/engine.h>
#include <tarn/lora.h>

#include "generate/engine/engine.h"
#include "support/check.h"
#include "support/noise.h"
#include "support/scratch.h"

enum { CONTEXT = 320, REQUESTS = 12, MAX_NEW = 120, PADDING = 5, ADAPTERS = 2, GRAMMARS = 3 };

typedef struct request {
    int32_t prompt[CONTEXT], result[CONTEXT];
    int64_t count, results, number, proposed, accepted;
    uint64_t hash; /* of its texts and log probabilities */
    tarn_generate_options options;
    tarn_finish_reason reason;
} request;

typedef struct kind {
    const char *arch;
    int64_t window, short_context; /* of longrope; 0: none */
    tarn_dtype quantize;           /* 0: not */
    tarn_kv_type kv_type;
    bool has_adapters;
} kind;

static const kind kinds[] = {{"llama", 0, 0, 0, TARN_KV_MODEL, true},
                             {"mistral", 70, 0, 0, TARN_KV_Q8_0, false},
                             {"phi3", 0, 150, 0, TARN_KV_MODEL, false},
                             {"llama", 0, 0, TARN_Q8_0, TARN_KV_BF16, true},
                             {"gpt2", 0, 0, 0, TARN_KV_MODEL, false}};

static struct {
    tarn_tokenizer *tokenizer;
    tarn_grammar_vocab *vocab;
    tarn_grammar *grammar[GRAMMARS];
} f;

static int open_fixture(void **state)
{
    static const char *const rules[GRAMMARS] = {"root ::= ([a-c]{2} \", \" | \"(\" [x-z] \")\"){3,30}",
                                                "root ::= (\"\xc3\xa9\" | \"\xe4\xb8\xad\" | [a-d]){1,80}",
                                                "root ::= \"abcabcabcabcabcabdabcabcabcabcabcabdabcabcabcabe\""};
    f.tokenizer = tarn_tokenizer_bytes();
    f.vocab = tarn_grammar_vocab_new(
        f.tokenizer, &(tarn_grammar_vocab_options){.vocab_size = tarn_tokenizer_count(f.tokenizer) + PADDING});
    for (int i = 0; i < GRAMMARS; i++)
        f.grammar[i] = tarn_grammar_gbnf(f.vocab, rules[i], strlen(rules[i]));
    return tarn_failed() || make_scratch(state);
}

static int close_fixture(void **state)
{
    for (int i = 0; i < GRAMMARS; i++)
        tarn_grammar_free(f.grammar[i]);
    tarn_grammar_vocab_free(f.vocab);
    tarn_tokenizer_free(f.tokenizer);
    return remove_scratch(state);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

static tarn_module *make_model(const kind *k, int64_t layers, int64_t padding)
{
    tarn_lm_config c;
    assert_true(tarn_lm_config_named(k->arch, &c));
    c.vocab_size = tarn_tokenizer_count(f.tokenizer) + padding, c.context = CONTEXT, c.layers = layers, c.heads = 4;
    c.kv_heads = strcmp(k->arch, "gpt2") == 0 ? 4 : 2, c.hidden_size = 32, c.ffn_size = 64, c.head_dim = 8;
    c.window = k->window, c.windows = (tarn_lm_layers){0}, c.eos_count = 1, c.eos[0] = 7, c.has_bos = false;
    if (k->short_context)
        c.rope = (tarn_rope_options){
            .base = 100, .dims = 8, .scaling = TARN_ROPE_LONGROPE, .factor = 4, .original_context = k->short_context};
    for (int i = 0; k->short_context && i < 4; i++) {
        c.rope_factors[0][i] = 1.0f + 0.1f * (float)i;
        c.rope_factors[1][i] = 3.0f + (float)i;
    }
    tarn_module *model = add_noise(tarn_model_lm(&c, tarn_device_cpu(), 9));
    assert_ok();
    return model;
}

static const char *file_of(const char *what, int number)
{
    char name[64];
    snprintf(name, sizeof(name), "%s-%d", what, number);
    return scratch(name);
}

/* Adapters with noise, and the model, quantized where its kind is. */
static tarn_module *make_target(const kind *k)
{
    for (int i = 0; k->has_adapters && i < ADAPTERS; i++) {
        tarn_module *model = make_model(k, 2, PADDING);
        assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 3, .seed = (uint64_t)i}));
        for (int p = 0; p < tarn_module_parameter_count(model); p++) {
            tarn_tensor *parameter = tarn_module_parameter(model, p);
            if (tarn_needs_grad(parameter))
                assert_true(tarn_copy(parameter, tarn_normal_like(parameter, 0, 0.3)));
        }
        assert_true(tarn_lora_save(model, file_of("adapter", i), NULL));
        tarn_module_free(model);
    }
    tarn_module *model = make_model(k, 2, PADDING);
    if (!k->quantize)
        return model;
    assert_true(tarn_model_write(model, file_of("model", 0)));
    tarn_module_free(model);
    return tarn_model_open(file_of("model", 0), tarn_device_cpu(), &(tarn_model_open_options){.quantize = k->quantize});
}

static tarn_engine *make_engine(const kind *k, tarn_module *model, const tarn_engine_options *options)
{
    tarn_engine_options o = *options;
    o.context = CONTEXT, o.kv_type = k->kv_type, o.tokenizer = f.tokenizer;
    o.draft_tokenizer = o.draft ? f.tokenizer : NULL;
    tarn_engine *engine = tarn_engine_new(model, &o);
    assert_ok();
    for (int i = 0; k->has_adapters && i < ADAPTERS; i++)
        assert_int_equal(tarn_engine_add_adapter(engine, file_of("adapter", i)), i + 1);
    return engine;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static const tarn_logit_bias biases[] = {{97, 3}, {101, -100}, {44, 2}, {97, 0.5}};
static const char *const stops[] = {"abd", "\xc3\xa9\xc3\xa9", "qq", "z)", "\xef\xbf\xbd!", "~"};

static bool chance(uint64_t *seed, int64_t of)
{
    return random_below(seed, of) == 0;
}

/* Prompts with periods, so that n-grams are found; half of them begin alike, for up to two pages. */
static void make_prompt(request *r, uint64_t *seed, int64_t vocab_size)
{
    int64_t period = 2 + random_below(seed, 30), common = chance(seed, 2) ? 64 + random_below(seed, 70) : 0;
    r->count = chance(seed, 4) ? 64 * (1 + random_below(seed, 2)) : 1 + random_below(seed, 190);
    for (int64_t k = 0; k < r->count; k++)
        r->prompt[k] = (int32_t)(k < common   ? 97 + k * k % 7
                                 : k < period ? random_below(seed, chance(seed, 20) ? vocab_size : 127)
                                              : r->prompt[k - period]);
}

static void make_request(request *r, uint64_t *seed, const kind *k, int64_t vocab_size)
{
    *r = (request){0};
    make_prompt(r, seed, vocab_size);
    tarn_generate_options *o = &r->options;
    o->max_tokens = chance(seed, 8)   ? CONTEXT - r->count
                    : chance(seed, 6) ? 64 - r->count % 64 + random_below(seed, 2)
                                      : 1 + random_below(seed, MAX_NEW);
    o->temperature = chance(seed, 2) ? 0 : 0.3 + 0.2 * (double)random_below(seed, 4);
    o->seed = random_bits(seed);
    o->top_k = chance(seed, 4) ? 5 : 0;
    o->top_p = chance(seed, 4) ? 0.8 : 0;
    o->min_p = chance(seed, 6) ? 0.05 : 0;
    o->repeat_penalty = chance(seed, 5) ? 1.2 : 0;
    o->repeat_last_n = chance(seed, 2) ? 20 : 0;
    o->frequency_penalty = chance(seed, 6) ? 0.4 : 0;
    o->presence_penalty = chance(seed, 6) ? 0.7 : 0;
    o->logit_bias = biases;
    o->logit_bias_count = chance(seed, 4) ? 4 : 0;
    o->logprobs = chance(seed, 2);
    o->top_logprobs = chance(seed, 4) ? 3 : 0;
    o->prompt_logprobs = chance(seed, 8);
    o->cache_salt = chance(seed, 6) ? 5 : 0;
    o->stop_strings = stops;
    o->stop_string_count = chance(seed, 3) ? 6 : 0;
    o->grammar = chance(seed, 3) ? f.grammar[random_below(seed, GRAMMARS)] : NULL;
    o->ignore_eos = !o->grammar && chance(seed, 2);
    o->adapter = k->has_adapters ? random_below(seed, ADAPTERS + 1) : 0;
    if (chance(seed, 20))
        o->prompt_only = o->prompt_logprobs = true, o->max_tokens = 0;
}

static void add_to_hash(uint64_t *hash, const void *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        *hash = (*hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
}

static void take_output(request *r, const tarn_engine_output *output)
{
    assert_int_equal(r->reason, TARN_FINISH_NONE);
    add_to_hash(&r->hash, output->text, output->length);
    if (!isnan(output->logprob))
        add_to_hash(&r->hash, &output->logprob, sizeof(double));
    for (int i = 0; i < output->top_logprob_count; i++) {
        add_to_hash(&r->hash, &output->top_logprobs[i].token, sizeof(int32_t));
        add_to_hash(&r->hash, &output->top_logprobs[i].logprob, sizeof(double));
    }
    if (output->token >= 0 && !output->is_prompt)
        r->result[r->results++] = output->token;
    r->reason = output->finish_reason;
    r->proposed = output->proposed_tokens, r->accepted = output->accepted_tokens;
}

static void take_outputs(tarn_engine *engine, request *r, int count)
{
    for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
        int i = 0;
        while (i < count && r[i].number != output.request)
            i++;
        if (i < count)
            take_output(&r[i], &output);
        else
            assert_int_equal(output.finish_reason, TARN_FINISH_CANCELLED);
    }
    assert_ok();
}

static void add(tarn_engine *engine, request *r)
{
    r->results = 0, r->hash = 0, r->reason = TARN_FINISH_NONE;
    r->number = tarn_engine_add(engine, r->prompt, r->count, &r->options);
    assert_ok();
}

/* Adds the requests, a few at a time. With a seed some are cancelled on the way and added again, and steps take no
 * time, so that there are proposals in most. */
static void run(tarn_engine *engine, request *r, int count, uint64_t *seed)
{
    int added = 0;
    for (int64_t left = 1; left > 0 || added < count;) {
        for (int64_t more = seed ? random_below(seed, 4) : 1; more > 0 && added < count; more--)
            add(engine, &r[added++]);
        for (int i = 1; seed && i <= TARN__ENGINE_TIMED_TOKENS; i++)
            engine->decode_ms[i] = 1;
        engine->draft.token_ms = 0;
        left = tarn_engine_step(engine);
        assert_ok();
        int victim = seed && added > 0 && chance(seed, 6) ? (int)random_below(seed, added) : -1;
        if (victim >= 0 && r[victim].reason == TARN_FINISH_NONE) {
            assert_true(tarn_engine_cancel(engine, r[victim].number));
            add(engine, &r[victim]);
        }
        take_outputs(engine, r, added);
    }
}

static void compare(const request *r, const request *alone, const char *what, int round)
{
    for (int i = 0; i < REQUESTS; i++)
        if (r[i].reason != alone[i].reason || r[i].results != alone[i].results || r[i].reason == TARN_FINISH_ERROR ||
            memcmp(r[i].result, alone[i].result, sizeof(*r[i].result) * (size_t)r[i].results) != 0 ||
            r[i].hash != alone[i].hash)
            fail_msg("%s, round %d: request %d differs: %lld and %lld tokens, reasons %d and %d", what, round, i,
                     (long long)r[i].results, (long long)alone[i].results, (int)r[i].reason, (int)alone[i].reason);
}

static tarn_engine_options random_options(tarn_module *draft, uint64_t *seed)
{
    static const int64_t budgets[] = {0, 7, 24, 64, 130};
    return (tarn_engine_options){.sequences = 1 + random_below(seed, 8),
                                 .prompt_tokens = budgets[random_below(seed, 5)],
                                 .no_sharing = chance(seed, 5),
                                 .draft = draft};
}

static void check_round(const kind *k, int round, uint64_t *seed)
{
    static request alone[REQUESTS], r[REQUESTS];
    tarn_module *model = make_target(k), *draft = chance(seed, 3) ? model : make_model(k, 1, random_below(seed, 9));
    tarn_engine_stats stats;
    for (int i = 0; i < REQUESTS; i++) {
        make_request(&alone[i], seed, k, tarn_tokenizer_count(f.tokenizer) + PADDING);
        tarn_engine *engine = make_engine(k, model, &(tarn_engine_options){.sequences = 1});
        run(engine, &alone[i], 1, NULL);
        tarn_engine_free(engine);
    }
    memcpy(r, alone, sizeof(r));
    for (int i = 0; i < REQUESTS; i++) {
        r[i].options.speculate = (tarn_speculate)random_below(seed, 3);
        r[i].options.draft_tokens = r[i].options.speculate && chance(seed, 3) ? 1 + random_below(seed, 7) : 0;
    }
    tarn_engine_options o = random_options(draft, seed);
    tarn_engine *engine = make_engine(k, model, &o);
    if (chance(seed, 2)) { /* pages of little more than one context */
        o.kv_bytes = tarn__kv_pages_page_bytes(&engine->pages.shape) * (CONTEXT / 64 + random_below(seed, 4));
        tarn_engine_free(engine);
        engine = make_engine(k, model, &o);
    }
    run(engine, r, REQUESTS, seed);
    compare(r, alone, k->arch, round);
    assert_true(tarn_engine_query(engine, &stats));
    printf("(%s: %d of %d proposals accepted, %d preemptions, %d cancelled)\n", k->arch, (int)stats.accepted_tokens,
           (int)stats.proposed_tokens, (int)stats.preemptions, (int)stats.cancelled);
    assert_int_equal(stats.free_pages, stats.pages);
    assert_int_equal(tarn__page_pool_available(&engine->draft.pool), engine->draft.pool.count);
    tarn_engine_free(engine);
    if (draft != model)
        tarn_module_free(draft);
    tarn_module_free(model);
}

static void requests_of_all_kinds_have_what_they_have_alone(void **state)
{
    (void)state;
    uint64_t seed = test_seed(13);
    int rounds = getenv("TARN_TEST_LONG") ? 100 : 1,
        count = getenv("TARN_TEST_QUICK") ? 1 : (int)(sizeof(kinds) / sizeof(kinds[0]));
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < count; i++)
            check_round(&kinds[i], round, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(requests_of_all_kinds_have_what_they_have_alone),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
