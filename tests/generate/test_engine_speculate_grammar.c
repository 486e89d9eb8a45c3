/* test_engine_speculate_grammar.c: speculative decoding with structured output, in engines and generators: random GBNF
 * grammars, regular expressions and JSON Schemas give the same tokens and log probabilities with and without, greedy
 * and with seeds; proposals that the grammar does not allow are never computed. */
#include <math.h>
#include <stdarg.h>
#include <tarn/engine.h>

#include "generate/engine/engine.h"
#include "support/check.h"
#include "support/noise.h"

#define CPU tarn_device_cpu()
enum { CONTEXT = 320, MAX_NEW = 150, REQUESTS = 9, GRAMMARS = 3 };

typedef struct result {
    int64_t number, count, proposed, accepted;
    int32_t token[MAX_NEW];
    tarn_finish_reason reason;
    uint64_t hash; /* of its log probabilities */
} result;

static struct {
    tarn_tokenizer *tokenizer;
    tarn_grammar_vocab *vocab;
    tarn_module *model;
} f;

static void open_fixture(void)
{
    f.tokenizer = tarn_tokenizer_bytes();
    f.vocab = tarn_grammar_vocab_new(f.tokenizer, NULL);
    const tarn_llama_config config = {.vocab_size = tarn_tokenizer_count(f.tokenizer),
                                      .context = CONTEXT,
                                      .layers = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .hidden_size = 32,
                                      .ffn_size = 88,
                                      .head_dim = 8};
    f.model = add_noise(tarn_model_llama(&config, CPU, 9));
    assert_ok();
}

static void close_fixture(void)
{
    tarn_module_free(f.model);
    tarn_grammar_vocab_free(f.vocab);
    tarn_tokenizer_free(f.tokenizer);
}

/* ---- random grammars --------------------------------------------------------------------------------------------- */

typedef struct text {
    char data[4096];
    size_t length;
} text;

__attribute__((format(printf, 2, 3))) static void put(text *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    t->length += (size_t)vsnprintf(t->data + t->length, sizeof(t->data) - t->length, format, arguments);
    va_end(arguments);
    assert_true(t->length < sizeof(t->data));
}

/* A literal, a class or a group, of a regular expression or of GBNF. */
static void put_atom(text *t, uint64_t *seed, bool is_regex, int depth)
{
    static const char *const times[] = {"", "", "", "?", "{1,3}", "{2}"};
    const char *quote = is_regex ? "" : "\"";
    int64_t kind = random_below(seed, depth > 0 ? 4 : 2);
    if (kind == 0)
        put(t, "[a-%c]", (char)('b' + random_below(seed, 4)));
    else if (kind == 1)
        put(t, "%s%.*s%s", quote, (int)(is_regex ? 1 : 1 + random_below(seed, 4)), "abcabd", quote);
    for (int64_t i = 0, n = 2 + random_below(seed, 2); kind > 1 && i < n; i++) {
        put(t, "%s", i == 0 ? "(" : kind == 2 ? "|" : "");
        put_atom(t, seed, is_regex, depth - 1);
        if (i == n - 1)
            put(t, ")");
    }
    put(t, "%s%s", times[random_below(seed, 6)], is_regex ? "" : " ");
}

/* What repeats itself, so that n-grams are found. */
static void put_repeated(text *t, uint64_t *seed, bool is_regex)
{
    put(t, is_regex ? "(" : "root ::= (");
    for (int i = 0; i < 3; i++)
        put_atom(t, seed, is_regex, 2);
    put(t, is_regex ? "(, |; )){2,40}" : "(\", \" | \"; \")){2,40}");
}

static void put_schema(text *t, uint64_t *seed, int depth)
{
    static const char *const leaves[] = {
        "{\"type\":\"integer\",\"minimum\":0,\"maximum\":120}", "{\"enum\":[\"red\",\"green\",\"blue\"]}",
        "{\"type\":\"string\",\"maxLength\":4}", "{\"type\":\"boolean\"}", "{\"type\":\"string\",\"format\":\"date\"}"};
    int64_t kind = depth == 3 ? 1 : random_below(seed, depth > 0 ? 4 : 2);
    if (kind == 1 && depth > 0) {
        put(t, "{\"type\":\"array\",\"minItems\":%d,\"maxItems\":9,\"items\":", 2 + depth);
        put_schema(t, seed, depth - 1);
        put(t, "}");
    } else if (kind > 1) {
        put(t, "{\"type\":\"object\",\"additionalProperties\":false,\"required\":[\"key\",\"other\"],\"properties\":{");
        put(t, "\"key\":");
        put_schema(t, seed, depth - 1);
        put(t, ",\"other\":");
        put_schema(t, seed, depth - 1);
        put(t, "}}");
    } else {
        put(t, "%s", leaves[random_below(seed, 5)]);
    }
}

/* kind 0: GBNF, 1: a regular expression, 2: a JSON Schema. */
static tarn_grammar *random_grammar(int kind, uint64_t *seed, text *t)
{
    *t = (text){0};
    if (kind == 2)
        put_schema(t, seed, 3);
    else
        put_repeated(t, seed, kind == 1);
    tarn_grammar *g = kind == 0   ? tarn_grammar_gbnf(f.vocab, t->data, t->length)
                      : kind == 1 ? tarn_grammar_regex(f.vocab, t->data, t->length)
                                  : tarn_grammar_json_schema(f.vocab, t->data, t->length);
    if (!g)
        fail_msg("%s: %s", t->data, tarn_error());
    return g;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static tarn_generate_options options_of(int i, tarn_grammar *grammar)
{
    static const int32_t stop[] = {';'};
    static const char *const strings[] = {"ca", "7"};
    return (tarn_generate_options){.max_tokens = i == 5 ? 20 : MAX_NEW,
                                   .temperature = i % 2 ? 0.4 * i : 0,
                                   .repeat_penalty = i == 6 ? 1.1 : 0,
                                   .seed = (uint64_t)(50 + i),
                                   .logprobs = true,
                                   .stop = stop,
                                   .stop_count = i == 7,
                                   .stop_strings = strings,
                                   .stop_string_count = i == 3 || i == 8 ? 2 : 0,
                                   .grammar = grammar};
}

static void add_logprob(result *r, double logprob)
{
    for (size_t k = 0; !isnan(logprob) && k < sizeof(double); k++)
        r->hash = (r->hash ^ ((const unsigned char *)&logprob)[k]) * UINT64_C(0x100000001b3);
}

static void take_outputs(tarn_engine *engine, result *r, int count)
{
    for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
        int i = 0;
        while (i < count && r[i].number != output.request)
            i++;
        assert_true(i < count && r[i].reason == TARN_FINISH_NONE);
        if (output.token >= 0)
            r[i].token[r[i].count++] = output.token;
        add_logprob(&r[i], output.logprob);
        r[i].reason = output.finish_reason;
        r[i].proposed = output.proposed_tokens, r[i].accepted = output.accepted_tokens;
    }
    assert_ok();
}

static tarn_engine *new_engine(void)
{
    tarn_engine *engine =
        tarn_engine_new(f.model, &(tarn_engine_options){.tokenizer = f.tokenizer, .sequences = 4, .kv_bytes = 1 << 20});
    assert_non_null(engine);
    return engine;
}

/* Runs the requests; proposals cost nothing, so that there are some in every step. */
static void run(tarn_engine *engine, tarn_grammar **grammar, tarn_speculate speculate, result *r, uint64_t *seed)
{
    int added = 0;
    for (int64_t left = 1; left > 0 || added < REQUESTS;) {
        for (int64_t more = random_below(seed, 3); more > 0 && added < REQUESTS; more--, added++) {
            tarn_generate_options o = options_of(added, grammar[added % GRAMMARS]);
            int32_t prompt[] = {'a', 'b', ',', ' ', 'a', 'b', ',', ' ', (int32_t)('a' + added)};
            o.speculate = speculate;
            r[added] = (result){.number = tarn_engine_add(engine, prompt, 9, &o)};
            assert_true(r[added].number > 0);
        }
        for (int i = 1; i <= TARN__ENGINE_TIMED_TOKENS; i++)
            engine->decode_ms[i] = 1;
        left = tarn_engine_step(engine);
        assert_ok();
        take_outputs(engine, r, added);
    }
}

static void compare(const result *r, const result *without, int i, const text *grammar)
{
    if (r->reason == TARN_FINISH_ERROR || r->count != without->count || r->reason != without->reason ||
        memcmp(r->token, without->token, sizeof(*r->token) * (size_t)r->count) != 0 || r->hash != without->hash)
        fail_msg("request %d differs with speculation: %lld and %lld tokens; grammar: %s", i, (long long)r->count,
                 (long long)without->count, grammar->data);
}

static void engines_have_the_same_tokens(void **state)
{
    (void)state;
    static result without[REQUESTS], with[REQUESTS];
    static text texts[GRAMMARS];
    uint64_t seed = test_seed(3);
    int64_t proposed = 0, accepted = 0, by_kind[GRAMMARS] = {0};
    open_fixture();
    for (int round = 0; round < 6; round++) {
        tarn_grammar *grammar[GRAMMARS];
        tarn_engine_stats stats;
        for (int i = 0; i < GRAMMARS; i++)
            grammar[i] = random_grammar(i, &seed, &texts[i]);
        tarn_engine *engine = new_engine();
        run(engine, grammar, TARN_SPECULATE_OFF, without, &seed);
        assert_true(tarn_engine_query(engine, &stats) && stats.proposed_tokens == 0);
        tarn_engine_free(engine);
        engine = new_engine();
        run(engine, grammar, TARN_SPECULATE_NGRAM, with, &seed);
        for (int i = 0; i < REQUESTS; i++) {
            compare(&with[i], &without[i], i, &texts[i % GRAMMARS]);
            assert_in_range(with[i].accepted, 0, with[i].proposed);
            proposed += with[i].proposed, accepted += with[i].accepted, by_kind[i % GRAMMARS] += with[i].accepted;
        }
        assert_true(tarn_engine_query(engine, &stats) && stats.free_pages == stats.pages);
        tarn_engine_free(engine);
        for (int i = 0; i < GRAMMARS; i++)
            tarn_grammar_free(grammar[i]);
    }
    printf("(%d of %d proposed tokens accepted)\n", (int)accepted, (int)proposed);
    assert_true(accepted > 100 && accepted < proposed);
    for (int i = 0; i < GRAMMARS; i++)
        assert_true(by_kind[i] > 10);
    close_fixture();
}

/* A generator's text, and its counters. */
static void generate(tarn_grammar *grammar, int i, tarn_speculate speculate, result *r)
{
    static const int32_t prompt[] = {'a', 'b', ',', ' ', 'a', 'b', ',', ' ', 'a'};
    tarn_generator_stats stats;
    tarn_generator *w = tarn_generator_new(f.model, f.tokenizer, NULL);
    tarn_generate_options o = options_of(i, grammar);
    o.speculate = speculate;
    *r = (result){0};
    assert_true(tarn_generator_prompt(w, 0, prompt, 9, &o));
    for (tarn_output output; tarn_generator_next(w, &output); r->reason = output.finish_reason) {
        if (output.token >= 0)
            r->token[r->count++] = output.token;
        add_logprob(r, output.logprob);
    }
    assert_ok();
    assert_true(tarn_generator_query(w, &stats));
    r->proposed = stats.proposed_tokens, r->accepted = stats.accepted_tokens;
    tarn_generator_free(w);
}

static void generators_have_the_same_tokens(void **state)
{
    (void)state;
    static result without, with;
    static text t;
    uint64_t seed = test_seed(4);
    open_fixture();
    for (int i = 0; i < 12; i++) {
        tarn_grammar *grammar = random_grammar(i % GRAMMARS, &seed, &t);
        generate(grammar, i % 9, TARN_SPECULATE_OFF, &without);
        generate(grammar, i % 9, TARN_SPECULATE_NGRAM, &with);
        compare(&with, &without, i, &t);
        tarn_grammar_free(grammar);
    }
    close_fixture();
}

/* The grammar has one text, so that each proposal that it allows is accepted: none that it does not is computed. */
static void only_what_the_grammar_allows_is_computed(void **state)
{
    (void)state;
    static const char rules[] = "root ::= \"abcdefgh abcdefgx abcdefgh abcdefgy abcdefgh abcdefgz\"";
    static result r[REQUESTS], g;
    uint64_t seed = 5;
    tarn_grammar *grammar[GRAMMARS];
    open_fixture();
    for (int i = 0; i < GRAMMARS; i++)
        grammar[i] = tarn_grammar_gbnf(f.vocab, rules, sizeof(rules) - 1);
    assert_ok();
    tarn_engine *engine = new_engine();
    run(engine, grammar, TARN_SPECULATE_NGRAM, r, &seed);
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(r[i].accepted, r[i].proposed);
        assert_true(r[i].proposed > 10 || r[i].reason != TARN_FINISH_GRAMMAR);
    }
    generate(grammar[0], 0, TARN_SPECULATE_NGRAM, &g);
    assert_int_equal(g.reason, TARN_FINISH_GRAMMAR);
    assert_int_equal(g.accepted, g.proposed);
    tarn_engine_free(engine);
    for (int i = 0; i < GRAMMARS; i++)
        tarn_grammar_free(grammar[i]);
    close_fixture();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(engines_have_the_same_tokens),
        in_scope(generators_have_the_same_tokens),
        in_scope(only_what_the_grammar_allows_is_computed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
