/* test_engine_speculate.c: speculative decoding of an engine's requests: the same tokens and log probabilities as alone
 * and without, in fewer steps; proposals that do not pay are given up. */
#include <math.h>
#include <tarn/engine.h>

#include "generate/engine/engine.h"
#include "support/check.h"
#include "support/noise.h"

enum { VOCAB = 61, CONTEXT = 256, REQUESTS = 24, MAX_NEW = 120 };

typedef struct request {
    int32_t prompt[CONTEXT], result[MAX_NEW];
    int64_t count, results, number, proposed, accepted;
    uint64_t hash; /* of its log probabilities */
    tarn_generate_options options;
    tarn_finish_reason reason;
} request;

/* Weak layers: what comes next depends on the last tokens, and greedy texts repeat themselves. */
static tarn_module *make_model(int64_t window)
{
    tarn_lm_config config;
    assert_true(tarn_lm_config_named(window ? "mistral" : "llama", &config));
    config.vocab_size = VOCAB, config.context = CONTEXT, config.layers = 2, config.heads = 4, config.kv_heads = 2;
    config.hidden_size = 32, config.ffn_size = 64, config.head_dim = 8, config.window = window;
    config.eos_count = 1, config.eos[0] = 7, config.has_bos = false;
    return add_noise(tarn_model_lm(&config, tarn_device_cpu(), 9));
}

/* Prompts with a period, and all that a request may have beside it. */
static void make_requests(request *r, uint64_t *seed)
{
    for (int i = 0; i < REQUESTS; i++) {
        int64_t period = 2 + random_below(seed, 20);
        r[i] = (request){.count = 10 + random_below(seed, 120),
                         .options = {.max_tokens = 1 + random_below(seed, MAX_NEW),
                                     .temperature = i % 3 ? 0 : 0.3,
                                     .logprobs = i % 4 > 0,
                                     .top_logprobs = i % 4 == 2 ? 3 : 0,
                                     .prompt_logprobs = i % 8 == 7,
                                     .repeat_penalty = i % 6 == 5 ? 1.1 : 0,
                                     .ignore_eos = i % 2 == 0,
                                     .draft_tokens = 0,
                                     .seed = (uint64_t)i}};
        for (int64_t k = 0; k < r[i].count; k++)
            r[i].prompt[k] = (int32_t)(k < period ? random_below(seed, VOCAB) : r[i].prompt[k - period]);
    }
}

static void take_outputs(tarn_engine *engine, request *r, int count)
{
    for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
        int i = 0;
        while (i < count && r[i].number != output.request)
            i++;
        assert_true(i < count && r[i].reason == TARN_FINISH_NONE);
        if (output.token >= 0 && !output.is_prompt)
            r[i].result[r[i].results++] = output.token;
        for (size_t k = 0; !isnan(output.logprob) && k < sizeof(double); k++)
            r[i].hash = (r[i].hash ^ ((const unsigned char *)&output.logprob)[k]) * UINT64_C(0x100000001b3);
        for (int k = 0; k < output.top_logprob_count; k++)
            r[i].hash = (r[i].hash ^ (uint64_t)output.top_logprobs[k].token) * UINT64_C(0x100000001b3);
        r[i].reason = output.finish_reason;
        r[i].proposed = output.proposed_tokens, r[i].accepted = output.accepted_tokens;
    }
    assert_ok();
}

/* Milliseconds of steps: proposals cost nothing, so that there are some in every step; or too much. */
static void set_times(tarn_engine *engine, bool is_free)
{
    for (int i = 1; i <= TARN__ENGINE_TIMED_TOKENS; i++)
        engine->decode_ms[i] = is_free ? 1 : (double)i * i;
}

/* Runs the requests, a few more at each step. */
static void run(tarn_engine *engine, request *r, int count, bool is_free, uint64_t *seed)
{
    int added = 0;
    for (int64_t left = 1; left > 0 || added < count;) {
        for (int64_t more = count == 1 ? 1 : random_below(seed, 3); more > 0 && added < count; more--, added++) {
            r[added].results = 0, r[added].hash = 0, r[added].reason = TARN_FINISH_NONE;
            r[added].number = tarn_engine_add(engine, r[added].prompt, r[added].count, &r[added].options);
            assert_true(r[added].number > 0);
        }
        set_times(engine, is_free);
        left = tarn_engine_step(engine);
        assert_ok();
        take_outputs(engine, r, added);
    }
}

static void compare(const request *r, const request *alone, const char *how)
{
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(r[i].reason, alone[i].reason);
        assert_int_equal(r[i].results, alone[i].results);
        for (int64_t k = 0; k < r[i].results; k++)
            if (r[i].result[k] != alone[i].result[k])
                fail_msg("%s: request %d: token %lld of %lld differs", how, i, (long long)k, (long long)r[i].results);
        if (r[i].hash != alone[i].hash)
            fail_msg("%s: request %d: log probabilities differ", how, i);
    }
}

/* With all pages that they may need, and with so few that requests are preempted. */
static void requests_have_the_same_tokens(void **state)
{
    (void)state;
    static request alone[REQUESTS], r[REQUESTS];
    uint64_t seed = test_seed(2);
    for (int i = 0; i < 4; i++) {
        tarn_module *model = make_model(i == 3 ? 70 : 0);
        tarn_engine_stats stats;
        int64_t proposed = 0, accepted = 0;
        make_requests(alone, &seed);
        for (int k = 0; k < REQUESTS; k++) {
            tarn_engine *engine = tarn_engine_new(model, NULL);
            run(engine, &alone[k], 1, true, &seed);
            tarn_engine_free(engine);
        }
        memcpy(r, alone, sizeof(r));
        for (int k = 0; k < REQUESTS; k++) {
            r[k].options.speculate = k % 5 == 4 ? TARN_SPECULATE_OFF : TARN_SPECULATE_NGRAM;
            r[k].options.draft_tokens = k % 5 == 3 ? 1 + random_below(&seed, 7) : 0;
        }
        tarn_engine *engine = tarn_engine_new(
            model, &(tarn_engine_options){.sequences = i == 1 ? 2 : 8,
                                          .kv_bytes = i == 2 ? (int64_t)5 * 2 * 2 * 64 * 2 * 8 * 4 : 0});
        run(engine, r, REQUESTS, true, &seed);
        compare(r, alone, "speculating");
        assert_true(tarn_engine_query(engine, &stats));
        for (int k = 0; k < REQUESTS; k++) {
            assert_true(k % 5 != 4 || r[k].proposed == 0);
            proposed += r[k].proposed, accepted += r[k].accepted;
        }
        assert_true(accepted > 0 && accepted < proposed);
        assert_true(stats.proposed_tokens == proposed && stats.accepted_tokens == accepted);
        assert_int_equal(stats.preemptions > 0, i == 2);
        assert_int_equal(stats.free_pages, stats.pages);
        tarn_engine_free(engine);
        tarn_module_free(model);
    }
}

/* A text that repeats itself takes fewer steps; where a step's time grows too fast with its tokens, there are proposals
 * now and then alone, with as many steps as tokens less what those save. */
static void proposals_have_to_pay(void **state)
{
    (void)state;
    static request r;
    uint64_t seed = 1;
    tarn_module *model = make_model(0);
    for (int is_free = 0; is_free < 2; is_free++) {
        tarn_engine_stats stats;
        tarn_engine *engine = tarn_engine_new(model, NULL);
        r = (request){.count = 40,
                      .options = {.max_tokens = MAX_NEW, .ignore_eos = true, .speculate = TARN_SPECULATE_NGRAM}};
        for (int64_t k = 0; k < r.count; k++)
            r.prompt[k] = (int32_t)(k % 4);
        run(engine, &r, 1, is_free, &seed);
        assert_true(tarn_engine_query(engine, &stats));
        assert_int_equal(stats.new_tokens, MAX_NEW);
        assert_int_equal(stats.steps, MAX_NEW - stats.accepted_tokens);
        if (is_free)
            assert_true(stats.accepted_tokens > MAX_NEW / 2);
        else
            assert_in_range(stats.proposed_tokens, 1, 3 * (MAX_NEW / 32));
        tarn_engine_free(engine);
    }
    tarn_module_free(model);
}

static void what_an_engine_cannot_do_is_refused(void **state)
{
    (void)state;
    const int32_t tokens[] = {1, 2, 3};
    tarn_module *model = make_model(0);
    tarn_engine *engine = tarn_engine_new(model, NULL),
                *other = tarn_engine_new(model, &(tarn_engine_options){.not_invariant = true});
    assert_true(tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.speculate = TARN_SPECULATE_DRAFT}) < 0);
    assert_error(TARN_ERROR_ARGUMENT, "engine_add: .speculate needs the engine's .draft: it has no draft model");
    assert_true(tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.speculate = (tarn_speculate)3}) < 0);
    assert_error(TARN_ERROR_ARGUMENT, "engine_add: .speculate is 3; it must be from 0 to 2");
    assert_true(tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.draft_tokens = 3}) < 0);
    assert_error(TARN_ERROR_ARGUMENT, "engine_add: .draft_tokens is 3; it needs .speculate");
    assert_true(tarn_engine_add(engine, tokens, 3,
                                &(tarn_generate_options){.speculate = TARN_SPECULATE_NGRAM, .draft_tokens = 8}) < 0);
    assert_error(TARN_ERROR_ARGUMENT, "engine_add: .draft_tokens is 8; it must be from 0 to 7");
    assert_true(tarn_engine_add(other, tokens, 3, &(tarn_generate_options){.speculate = TARN_SPECULATE_NGRAM}) < 0);
    assert_error(TARN_ERROR_UNSUPPORTED, "engine_add: .speculate needs batch invariance");
    tarn_engine_free(engine);
    tarn_engine_free(other);
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(requests_have_the_same_tokens),
        in_scope(proposals_have_to_pay),
        in_scope(what_an_engine_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
