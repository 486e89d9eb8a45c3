/* test_engine.c: a request has the same tokens alone, among 31 others, when it is preempted, and when its prefix is
 * shared; on random models of several architectures, and on stories260K. TARN_TEST_DEVICE names the device; default:
 * the CPU. */
#include <math.h>
#include <tarn/engine.h>

#include "support/files.h"
#include "support/noise.h"
#include "support/stories.h"

enum { VOCAB = 61, CONTEXT = 256, REQUESTS = 32, MAX_NEW = 24 };

static tarn_device device;
static const tarn_tokenizer *tokenizer; /* of the engines; NULL: none */
static tarn_grammar *grammar;           /* of some requests; NULL: of none */

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* A prompt with its options, and the tokens it gave. */
typedef struct request {
    int32_t prompt[CONTEXT];
    int64_t count;
    tarn_generate_options options;
    int32_t result[MAX_NEW];
    int64_t results, shared, number, echoed;
    tarn_finish_reason reason;
    uint64_t hash; /* of all texts and log probabilities */
} request;

static const tarn_logit_bias biases[] = {{3, 2.5}, {7, -100}, {11, 1}, {3, 0.5}};
static const char *const stops[] = {"a", "e", "i", "o", "u", "th", "\n", "0", "1", "2", "3", "~", "}"};

/* Prompts of 1 to about 200 tokens; half of them begin like another, for one to three pages. The first twelve fill a
 * page, so that each needs one more for its first new token. */
static void make_requests(request *r, int count, int64_t vocab_size, uint64_t *seed)
{
    int32_t common[CONTEXT];
    for (int i = 0; i < CONTEXT; i++)
        common[i] = (int32_t)random_below(seed, vocab_size);
    for (int i = 0; i < count; i++) {
        r[i] = (request){.count = 1 + random_below(seed, 200),
                         .options = {.max_tokens = 1 + random_below(seed, MAX_NEW),
                                     .temperature = i % 2 ? 0.9 : 0,
                                     .top_k = i % 4 == 3 ? 20 : 0,
                                     .repeat_penalty = i % 8 == 5 ? 1.2 : 0,
                                     .frequency_penalty = i % 8 == 1 ? 0.5 : 0,
                                     .presence_penalty = i % 8 == 2 ? 1.5 : 0,
                                     .logit_bias = biases,
                                     .logit_bias_count = i % 8 == 6 ? 4 : 0,
                                     .logprobs = i % 4 == 0,
                                     .top_logprobs = i % 8 == 4 ? 3 : 0,
                                     .prompt_logprobs = i % 16 == 7,
                                     .cache_salt = i % 16 == 9 ? 5 : 0,
                                     .stop_strings = stops,
                                     .stop_string_count = tokenizer && i % 3 == 1 ? 13 : 0,
                                     .grammar = i % 3 == 2 ? grammar : NULL,
                                     .seed = (uint64_t)i,
                                     .ignore_eos = !(grammar && i % 3 == 2)}};
        if (i < 12)
            r[i].count = 64, r[i].options.max_tokens = MAX_NEW / 2 + i;
        int64_t same = random_below(seed, 2) ? 64 * (1 + random_below(seed, 3)) + random_below(seed, 9) : 0;
        for (int64_t k = 0; k < r[i].count; k++)
            r[i].prompt[k] = k < same ? common[k] : (int32_t)random_below(seed, vocab_size);
    }
}

static request *find(request *r, int count, int64_t number)
{
    for (int i = 0; i < count; i++)
        if (r[i].number == number)
            return &r[i];
    fail_msg("an output of request %lld, which does not exist", (long long)number);
    return NULL;
}

static void add_to_hash(uint64_t *hash, const void *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        *hash = (*hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
}

/* Text, and log probabilities bit by bit. */
static void hash_output(request *r, const tarn_engine_output *output)
{
    assert_true((output->text != NULL) == (tokenizer != NULL));
    assert_int_equal(isnan(output->logprob),
                     output->token < 0 || (output->is_prompt && r->echoed == 0) ||
                         !(r->options.logprobs || r->options.top_logprobs > 0 || r->options.prompt_logprobs));
    if (output->text) {
        assert_int_equal(output->text[output->length], 0);
        add_to_hash(&r->hash, output->text, output->length);
    }
    if (!isnan(output->logprob)) {
        assert_int_equal(output->top_logprob_count, r->options.top_logprobs);
        add_to_hash(&r->hash, &output->logprob, sizeof(output->logprob));
    }
    for (int i = 0; i < output->top_logprob_count; i++) {
        add_to_hash(&r->hash, &output->top_logprobs[i].token, sizeof(int32_t));
        add_to_hash(&r->hash, &output->top_logprobs[i].logprob, sizeof(double));
    }
}

static void take_outputs(tarn_engine *engine, request *r, int count)
{
    for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
        request *one = find(r, count, output.request);
        assert_int_equal(one->reason, TARN_FINISH_NONE);
        hash_output(one, &output);
        if (output.is_prompt)
            assert_int_equal(one->prompt[one->echoed++], output.token);
        else if (output.token >= 0)
            one->result[one->results++] = output.token;
        one->reason = output.finish_reason;
        one->shared = output.shared;
    }
    assert_ok();
}

/* Adds the requests, a few at a time between steps, and runs them all. */
static void run(tarn_engine *engine, request *r, int count, int together)
{
    int added = 0;
    for (int64_t left = 1; left > 0 || added < count;) {
        for (int i = 0; i < together && added < count; i++, added++) {
            r[added].results = r[added].echoed = 0, r[added].hash = 0, r[added].reason = TARN_FINISH_NONE;
            r[added].number = tarn_engine_add(engine, r[added].prompt, r[added].count, &r[added].options);
            assert_true(r[added].number > 0);
        }
        left = tarn_engine_step(engine);
        assert_ok();
        take_outputs(engine, r, added);
    }
}

static void assert_same_results(const request *a, const request *b, int count)
{
    for (int i = 0; i < count; i++) {
        assert_int_equal(a[i].results, b[i].results);
        assert_int_equal(a[i].reason, b[i].reason);
        assert_int_equal(a[i].echoed, a[i].options.prompt_logprobs ? a[i].count : 0);
        assert_int_equal(b[i].echoed, a[i].echoed);
        for (int64_t k = 0; k < a[i].results; k++)
            if (a[i].result[k] != b[i].result[k])
                fail_msg("request %d: token %lld of %lld differs", i, (long long)k, (long long)a[i].results);
        if (a[i].hash != b[i].hash)
            fail_msg("request %d: texts or log probabilities differ", i);
    }
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

static tarn_module *llama_of(tarn_dtype dtype, int64_t vocab_size)
{
    const tarn_llama_config config = {.vocab_size = vocab_size,
                                      .context = CONTEXT,
                                      .layers = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .hidden_size = 32,
                                      .ffn_size = 88,
                                      .head_dim = 8,
                                      .dtype = dtype};
    return add_noise(tarn_model_llama(&config, device, 9));
}

static tarn_module *llama(tarn_dtype dtype)
{
    return llama_of(dtype, VOCAB);
}

static tarn_module *gpt2(void)
{
    const tarn_gpt2_config config = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 2, .heads = 2, .hidden_size = 32};
    return add_noise(tarn_model_gpt2(&config, device, 9));
}

/* ---- the same tokens --------------------------------------------------------------------------------------------- */

/* Every request alone in an engine of its own. */
static void run_alone(tarn_module *model, request *r, int count, tarn_kv_type kv_type)
{
    for (int i = 0; i < count; i++) {
        tarn_engine *engine = tarn_engine_new(
            model,
            &(tarn_engine_options){.context = CONTEXT, .sequences = 1, .kv_type = kv_type, .tokenizer = tokenizer});
        run(engine, &r[i], 1, 1);
        assert_int_equal(r[i].shared, 0);
        tarn_engine_free(engine);
    }
}

/* Alone; 32 at once with all pages; 32 with so few pages that some are preempted; and twice in one engine, the second
 * time with shared prefixes. */
static void check_same(tarn_module *model, int64_t vocab_size, tarn_kv_type kv_type, uint64_t seed)
{
    static request alone[REQUESTS], others[REQUESTS];
    tarn_engine_stats stats;
    make_requests(alone, REQUESTS, vocab_size, &seed);
    memcpy(others, alone, sizeof(others));
    run_alone(model, alone, REQUESTS, kv_type);
    tarn_engine *engine = tarn_engine_new(
        model,
        &(tarn_engine_options){.context = CONTEXT, .kv_type = kv_type, .prompt_tokens = 100, .tokenizer = tokenizer});
    run(engine, others, REQUESTS, 3);
    assert_same_results(alone, others, REQUESTS);
    run(engine, others, REQUESTS, REQUESTS);
    assert_same_results(alone, others, REQUESTS);
    assert_true(tarn_engine_query(engine, &stats) && stats.shared_tokens > 0 && stats.preemptions == 0);
    assert_true(stats.running == 0 && stats.waiting == 0 && stats.free_pages == stats.pages);
    int64_t page_bytes = 0;
    tarn_engine_free(engine);
    /* the least that one context needs, found by asking for less */
    assert_null(tarn_engine_new(model, &(tarn_engine_options){.context = CONTEXT, .kv_type = kv_type, .kv_bytes = 1}));
    const char *needs = strstr(tarn_error(), "needs ");
    assert_non_null(needs);
    page_bytes = strtoll(needs + 6, NULL, 10) / 4; /* a context of 256 has 4 pages */
    tarn_clear_error();
    for (int sharing = 0; sharing < 2; sharing++) {
        engine = tarn_engine_new(model, &(tarn_engine_options){.kv_type = kv_type,
                                                               .prompt_tokens = 33,
                                                               .kv_bytes = 9 * page_bytes,
                                                               .no_sharing = !sharing,
                                                               .tokenizer = tokenizer});
        run(engine, others, REQUESTS, 5);
        assert_same_results(alone, others, REQUESTS);
        assert_true(tarn_engine_query(engine, &stats) && stats.preemptions > 0 && stats.free_pages == stats.pages);
        tarn_engine_free(engine);
    }
}

static void tokens_do_not_depend_on_other_requests(void **state)
{
    (void)state;
    tarn_module *models[] = {llama(TARN_F32), llama(TARN_BF16), gpt2()};
    for (int i = 0; i < 3; i++) {
        check_same(models[i], VOCAB, i == 0 ? TARN_KV_Q8_0 : TARN_KV_MODEL, test_seed(3) + (uint64_t)i);
        tarn_module_free(models[i]);
    }
}

/* With stop strings, grammars and text, of a tokenizer of bytes. */
static void texts_do_not_depend_on_other_requests(void **state)
{
    (void)state;
    static const char words[] = "root ::= [a-z]{2,6} (\" \" [a-z]{2,6})*";
    tarn_tokenizer *by_bytes = tarn_tokenizer_bytes();
    tarn_module *model = llama_of(TARN_F32, tarn_tokenizer_count(by_bytes));
    tarn_grammar_vocab *vocab = tarn_grammar_vocab_new(by_bytes, NULL);
    tokenizer = by_bytes;
    grammar = tarn_grammar_gbnf(vocab, words, sizeof(words) - 1);
    assert_ok();
    check_same(model, tarn_tokenizer_count(by_bytes), TARN_KV_MODEL, test_seed(12));
    tokenizer = NULL;
    tarn_grammar_free(grammar);
    grammar = NULL;
    tarn_grammar_vocab_free(vocab);
    tarn_module_free(model);
    tarn_tokenizer_free(by_bytes);
}

/* Every architecture: windows, soft caps, q/k norms, parallel residuals, learned positions. */
static void tokens_of_every_architecture_do_not_depend_on_other_requests(void **state)
{
    (void)state;
    static const char *const archs[] = {"gpt2",     "llama",    "mistral", "qwen2",      "qwen3",
                                        "phi3",     "smollm3",  "granite", "olmo2",      "starcoder2",
                                        "gpt_neox", "stablelm", "gemma2",  "gemma3_text"};
    enum { FEW = 6 };
    request alone[FEW], others[FEW];
    uint64_t seed = 11;
    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
        tarn_lm_config config;
        assert_true(tarn_lm_config_named(archs[i], &config));
        config.vocab_size = VOCAB, config.context = CONTEXT, config.layers = 2, config.heads = 4;
        config.hidden_size = 32, config.ffn_size = 64, config.head_dim = 8;
        config.window = config.window > 0 ? 70 : 0;
        config.eos_count = 0, config.has_bos = false;
        tarn_module *model = add_noise(tarn_model_lm(&config, device, 9));
        make_requests(alone, FEW, VOCAB, &seed);
        for (int k = 0; k < FEW; k++)
            alone[k].options.max_tokens = 4;
        memcpy(others, alone, sizeof(others));
        run_alone(model, alone, FEW, TARN_KV_MODEL);
        tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.prompt_tokens = 70});
        run(engine, others, FEW, 2);
        assert_same_results(alone, others, FEW);
        int32_t expected[MAX_NEW]; /* request 0 is greedy */
        assert_int_equal(tarn_generate(model, alone[0].prompt, alone[0].count, expected, &alone[0].options), 4);
        for (int k = 0; k < 4; k++)
            if (expected[k] != alone[0].result[k])
                fail_msg("%s: token %d is %d, that of tarn_generate() %d", archs[i], k, (int)alone[0].result[k],
                         (int)expected[k]);
        tarn_engine_free(engine);
        tarn_module_free(model);
    }
}

/* Greedy tokens equal those of tarn_generate(). */
static void tokens_are_those_of_generate(void **state)
{
    (void)state;
    tarn_module *model = llama(TARN_F32);
    request r[4];
    int32_t expected[MAX_NEW];
    uint64_t seed = 8;
    make_requests(r, 4, VOCAB, &seed);
    for (int i = 0; i < 4; i++)
        r[i].options.temperature = 0, r[i].options.repeat_penalty = 0;
    tarn_engine *engine = tarn_engine_new(model, NULL);
    run(engine, r, 4, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tarn_generate(model, r[i].prompt, r[i].count, expected, &r[i].options), r[i].results);
        for (int64_t k = 0; k < r[i].results; k++)
            assert_int_equal(expected[k], r[i].result[k]);
    }
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* ---- single properties ------------------------------------------------------------------------------------------- */

static void a_cancelled_request_frees_its_pages(void **state)
{
    (void)state;
    tarn_module *model = llama(TARN_F32);
    request r[3];
    tarn_engine_stats stats;
    uint64_t seed = 5;
    make_requests(r, 3, VOCAB, &seed);
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.prompt_tokens = 20});
    for (int i = 0; i < 3; i++)
        r[i].number = tarn_engine_add(engine, r[i].prompt, r[i].count, &r[i].options);
    assert_true(tarn_engine_step(engine) >= 2);
    for (int i = 0; i < 3; i++)
        assert_true(tarn_engine_cancel(engine, r[i].number));
    assert_true(tarn_engine_query(engine, &stats) && stats.free_pages == stats.pages && stats.running == 0);
    assert_int_equal(stats.cancelled, 3);
    assert_int_equal(tarn_engine_step(engine), 3);
    assert_true(tarn_engine_cancel(engine, r[1].number)); /* again: still one output each */
    tarn_engine_output output;
    for (int i = 0; i < 3; i++) {
        assert_true(tarn_engine_next(engine, &output));
        assert_true(output.token == -1 && output.finish_reason == TARN_FINISH_CANCELLED);
    }
    assert_false(tarn_engine_next(engine, &output));
    assert_int_equal(tarn_engine_step(engine), 0);
    assert_true(tarn_engine_cancel(engine, r[0].number));
    assert_false(tarn_engine_next(engine, &output));
    assert_false(tarn_engine_cancel(engine, 99));
    assert_error(TARN_ERROR_ARGUMENT, "engine_cancel: request 99 does not exist");
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* A prompt of 60 tokens and 20 new ones: the first page is found by a request that begins with all of them only where
 * another batch would have computed it bitwise identical. */
static void pages_of_sampled_tokens_are_shared_where_batches_are_invariant(void **state)
{
    (void)state;
    bool is_cpu = tarn_device_equal(device, tarn_device_cpu());
    tarn_module *model = llama(TARN_F32);
    for (int not_invariant = 0; not_invariant < 2; not_invariant++) {
        request r = {.count = 60, .options = {.max_tokens = 20}};
        for (int i = 0; i < 60; i++)
            r.prompt[i] = i;
        tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.not_invariant = not_invariant});
        run(engine, &r, 1, 1);
        assert_int_equal(r.results, 20);
        memcpy(r.prompt + 60, r.result, sizeof(int32_t) * 20);
        r.count = 80;
        run(engine, &r, 1, 1);
        assert_int_equal(r.shared, is_cpu && !not_invariant ? 64 : 0);
        tarn_engine_free(engine);
    }
    tarn_module_free(model);
}

static void bad_arguments_are_errors(void **state)
{
    (void)state;
    tarn_module *model = llama(TARN_F32);
    const int32_t tokens[CONTEXT] = {1, 2, 3}, wrong[] = {VOCAB};
    tarn_engine *engine = tarn_engine_new(model, NULL);
    assert_int_equal(tarn_engine_add(engine, tokens, 0, NULL), -1);
    assert_error(TARN_ERROR_ARGUMENT, "engine_add: the prompt has no tokens");
    assert_int_equal(tarn_engine_add(engine, tokens, CONTEXT, NULL), -1);
    assert_error(TARN_ERROR_SHAPE, "engine_add: the prompt has 256 tokens");
    assert_int_equal(tarn_engine_add(engine, wrong, 1, NULL), -1);
    assert_error(TARN_ERROR_ARGUMENT, "engine_add: token 0 of the prompt is 61");
    assert_int_equal(tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.max_tokens = 254}), -1);
    assert_error(TARN_ERROR_ARGUMENT, "engine_add: .max_tokens is 254");
    assert_int_equal(tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.slide = true}), -1);
    assert_error(TARN_ERROR_UNSUPPORTED, "engine_add: .slide is not supported by engines");
    assert_int_equal(tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.cache_salt = (uint64_t)1 << 63}), -1);
    assert_error(TARN_ERROR_ARGUMENT, "engine_add: .cache_salt is 9223372036854775808; it must be less than 2^63");
    assert_int_equal(tarn_engine_step(engine), 0);
    assert_int_equal(tarn_engine_step(NULL), -1);
    assert_error(TARN_ERROR_ARGUMENT, "engine_step: the engine is NULL");
    assert_null(tarn_engine_new(model, &(tarn_engine_options){.context = CONTEXT + 1}));
    assert_error(TARN_ERROR_ARGUMENT, "engine_new: .context is 257");
    assert_null(tarn_engine_new(model, &(tarn_engine_options){.sequences = 1025}));
    assert_error(TARN_ERROR_ARGUMENT, "engine_new: .sequences is 1025");
    tarn_engine_free(engine);
    tarn_engine_free(NULL);
    tarn_module_free(model);
}

static void stories_do_not_depend_on_other_requests(void **state)
{
    (void)state;
    if (!real_data("stories260K"))
        skip();
    tarn_module *model = open_stories();
    assert_true(tarn_module_to(model, device));
    check_same(model, 512, TARN_KV_MODEL, 6);
    tarn_module_free(model);
}

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {
        in_scope(tokens_do_not_depend_on_other_requests),
        in_scope(texts_do_not_depend_on_other_requests),
        in_scope(tokens_of_every_architecture_do_not_depend_on_other_requests),
        in_scope(tokens_are_those_of_generate),
        in_scope(a_cancelled_request_frees_its_pages),
        in_scope(pages_of_sampled_tokens_are_shared_where_batches_are_invariant),
        in_scope(bad_arguments_are_errors),
        in_scope(stories_do_not_depend_on_other_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
