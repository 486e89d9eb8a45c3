/* test_engine_draft.c: a draft model in an engine: requests have the tokens and log probabilities that they have alone
 * and without, under load, preempted, with grammars, shared prefixes and cancelled neighbours; the draft's pages come
 * back; what an engine cannot do is refused. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <tarn/engine.h>

#include "generate/engine/engine.h"
#include "support/check.h"
#include "support/noise.h"
#include "support/scratch.h"
#include "support/small_tokenizer.h"

enum { CONTEXT = 256, REQUESTS = 20, MAX_NEW = 100, ENOUGH = 1 << 30 };

typedef struct request {
    int32_t prompt[CONTEXT], result[MAX_NEW];
    int64_t count, results, number, proposed, accepted;
    uint64_t hash; /* of its log probabilities */
    tarn_generate_options options;
    tarn_finish_reason reason;
} request;

static struct {
    tarn_tokenizer *tokenizer;
    tarn_grammar_vocab *vocab;
    tarn_grammar *grammar;
} f;

static void open_grammar(void)
{
    static const char rules[] = "root ::= ([a-c]{2} \", \" | \"(\" [x-z] \")\"){3,30}";
    f.tokenizer = tarn_tokenizer_bytes();
    f.vocab = tarn_grammar_vocab_new(f.tokenizer, NULL);
    f.grammar = tarn_grammar_gbnf(f.vocab, rules, sizeof(rules) - 1);
}

static void close_grammar(void)
{
    tarn_grammar_free(f.grammar);
    tarn_grammar_vocab_free(f.vocab);
    tarn_tokenizer_free(f.tokenizer);
}

static int open_fixture(void **state)
{
    open_grammar();
    return tarn_failed() || make_scratch(state);
}

static int close_fixture(void **state)
{
    close_grammar();
    return remove_scratch(state);
}

/* Weak layers: what comes next depends on the last tokens, so that models of one seed often agree. */
static tarn_module *make_model(int64_t layers, int64_t context, int64_t window)
{
    tarn_lm_config config;
    assert_true(tarn_lm_config_named(window ? "mistral" : "llama", &config));
    config.vocab_size = tarn_tokenizer_count(f.tokenizer), config.context = context, config.layers = layers;
    config.heads = 4, config.kv_heads = 2, config.hidden_size = 32, config.ffn_size = 64, config.head_dim = 8;
    config.window = window, config.eos_count = 1, config.eos[0] = 7, config.has_bos = false;
    return add_noise(tarn_model_lm(&config, tarn_device_cpu(), 9));
}

/* Half of them begin with the same 70 tokens: a page that they share. */
static void make_requests(request *r, uint64_t *seed)
{
    for (int i = 0; i < REQUESTS; i++) {
        r[i] = (request){.count = 5 + random_below(seed, 150),
                         .options = {.max_tokens = 1 + random_below(seed, MAX_NEW),
                                     .temperature = i % 3 ? 0 : 0.3,
                                     .logprobs = i % 4 > 0,
                                     .top_logprobs = i % 4 == 2 ? 3 : 0,
                                     .prompt_logprobs = i % 8 == 7,
                                     .repeat_penalty = i % 6 == 5 ? 1.1 : 0,
                                     .ignore_eos = i % 5 != 1,
                                     .grammar = i % 5 == 1 ? f.grammar : NULL,
                                     .seed = (uint64_t)i}};
        for (int64_t k = 0; k < r[i].count; k++)
            r[i].prompt[k] = i % 2 && k < 70 ? (int32_t)(32 + 5 * k % 90) : (int32_t)(32 + random_below(seed, 90));
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
        r[i].reason = output.finish_reason;
        r[i].proposed = output.proposed_tokens, r[i].accepted = output.accepted_tokens;
    }
    assert_ok();
}

/* Proposals cost nothing, so that there are some in every step. */
static void set_times(tarn_engine *engine)
{
    for (int i = 1; i <= TARN__ENGINE_TIMED_TOKENS; i++)
        engine->decode_ms[i] = 1;
    engine->draft.token_ms = 0;
}

/* Runs the requests, a few more at each step. */
static void run(tarn_engine *engine, request *r, int count, uint64_t *seed)
{
    int added = 0;
    for (int64_t left = 1; left > 0 || added < count;) {
        for (int64_t more = count == 1 ? 1 : random_below(seed, 3); more > 0 && added < count; more--, added++) {
            r[added].results = 0, r[added].hash = 0, r[added].reason = TARN_FINISH_NONE;
            r[added].number = tarn_engine_add(engine, r[added].prompt, r[added].count, &r[added].options);
            assert_ok();
        }
        set_times(engine);
        left = tarn_engine_step(engine);
        assert_ok();
        take_outputs(engine, r, added);
    }
}

static void compare(const request *r, const request *alone, int round)
{
    for (int i = 0; i < REQUESTS; i++) {
        if (r[i].reason != alone[i].reason || r[i].results != alone[i].results || r[i].reason == TARN_FINISH_ERROR ||
            memcmp(r[i].result, alone[i].result, sizeof(*r[i].result) * (size_t)r[i].results) != 0)
            fail_msg("round %d: request %d: the tokens differ", round, i);
        if (r[i].hash != alone[i].hash)
            fail_msg("round %d: request %d: the log probabilities differ", round, i);
    }
}

static void assert_all_free(const tarn_engine *engine)
{
    tarn_engine_stats stats;
    assert_true(tarn_engine_query(engine, &stats));
    assert_int_equal(stats.free_pages, stats.pages);
    assert_int_equal(tarn__page_pool_available(&engine->draft.pool), engine->draft.pool.count);
}

/* Rounds: the model as its own draft; a smaller one; with few pages, so that requests are preempted; with a window, and
 * prompts that the draft reads in chunks; a draft of a short context, whose pages are not enough for all; one whose
 * pages are not shared. */
static void requests_have_the_same_tokens(void **state)
{
    (void)state;
    static request alone[REQUESTS], r[REQUESTS];
    uint64_t seed = test_seed(6);
    for (int round = 0; round < 6; round++) {
        tarn_module *model = make_model(2, CONTEXT, round == 3 ? 70 : 0),
                    *draft = round == 0 ? model : make_model(1, round == 4 ? 100 : CONTEXT, 0);
        tarn_engine_stats stats;
        int64_t proposed = 0, accepted = 0;
        make_requests(alone, &seed);
        for (int k = 0; round == 2 && k < REQUESTS; k++)
            alone[k].options.max_tokens = MAX_NEW;
        for (int k = 0; k < REQUESTS; k++) {
            tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.sequences = 1});
            run(engine, &alone[k], 1, &seed);
            tarn_engine_free(engine);
        }
        memcpy(r, alone, sizeof(r));
        for (int k = 0; k < REQUESTS; k++) {
            r[k].options.speculate = k % 7 == 6   ? TARN_SPECULATE_OFF
                                     : k % 7 == 5 ? TARN_SPECULATE_NGRAM
                                                  : TARN_SPECULATE_DRAFT;
            r[k].options.draft_tokens = k % 7 == 3 ? 1 + random_below(&seed, 7) : 0;
        }
        const tarn_engine_options o = {.sequences = 6,
                                       .kv_bytes = round == 2 ? (int64_t)5 * 2 * 2 * 64 * 2 * 8 * 4 : 0,
                                       .prompt_tokens = round == 3 ? 24 : 0,
                                       .no_sharing = round == 5,
                                       .draft = draft};
        tarn_engine *engine = tarn_engine_new(model, &o);
        assert_ok();
        run(engine, r, REQUESTS, &seed);
        compare(r, alone, round);
        assert_true(tarn_engine_query(engine, &stats));
        for (int k = 0; k < REQUESTS; k++) {
            assert_true(k % 7 != 6 || r[k].proposed == 0);
            proposed += r[k].proposed, accepted += r[k].accepted;
        }
        printf("(round %d: %d of %d proposed tokens accepted)\n", round, (int)accepted, (int)proposed);
        assert_true(accepted > 0 && (round == 0 || accepted < proposed));
        assert_true(stats.proposed_tokens == proposed && stats.accepted_tokens == accepted);
        assert_int_equal(stats.preemptions > 0, round == 2);
        assert_true(round != 0 || stats.shared_tokens > 0);
        assert_all_free(engine);
        tarn_engine_free(engine);
        tarn_module_free(model);
        if (draft != model)
            tarn_module_free(draft);
    }
}

/* The model as its own draft: greedy proposals are accepted, and a text of n tokens takes about n / 8 steps. */
static void a_draft_that_agrees_saves_steps(void **state)
{
    (void)state;
    static request r;
    uint64_t seed = 1;
    tarn_module *model = make_model(2, CONTEXT, 0);
    tarn_engine_stats stats;
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.draft = model});
    r = (request){.count = 40,
                  .options = {.max_tokens = MAX_NEW, .ignore_eos = true, .speculate = TARN_SPECULATE_DRAFT}};
    for (int64_t k = 0; k < r.count; k++)
        r.prompt[k] = (int32_t)(32 + 7 * k % 90);
    run(engine, &r, 1, &seed);
    assert_true(tarn_engine_query(engine, &stats));
    assert_int_equal(stats.accepted_tokens, stats.proposed_tokens);
    assert_int_equal(stats.steps, MAX_NEW - stats.accepted_tokens);
    assert_in_range(stats.steps, 1, MAX_NEW / 4);
    assert_all_free(engine);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* One request to its end, with steps of a millisecond, and proposals of so many; 0: as measured. Returns how often the
 * draft ran. */
static int count_runs(tarn_engine *engine, const tarn_generate_options *options, double token_ms)
{
    const int32_t prompt[] = {40, 41, 42, 43, 44, 45, 46, 47};
    int runs = 0;
    int64_t computed = 0;
    assert_true(tarn_engine_add(engine, prompt, 8, options) > 0);
    for (int64_t left = 1; left > 0;) {
        for (int i = 1; i <= TARN__ENGINE_TIMED_TOKENS; i++)
            engine->decode_ms[i] = 1;
        engine->draft.token_ms = token_ms > 0 ? token_ms : engine->draft.token_ms;
        left = tarn_engine_step(engine);
        for (tarn_engine_output output; tarn_engine_next(engine, &output);)
            assert_true(output.finish_reason != TARN_FINISH_ERROR);
        int64_t now = engine->count > 0 ? engine->request[0]->draft.computed : computed;
        runs += now > computed;
        computed = now;
    }
    assert_ok();
    return runs;
}

/* As of a step during which another program had the processor: the draft is tried again, and its time found. */
static void a_slow_measure_of_the_draft_is_corrected(void **state)
{
    (void)state;
    const double slow = 1e6;
    tarn_module *model = make_model(1, CONTEXT, 0);
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.draft = model});
    engine->draft.token_ms = slow;
    count_runs(engine,
               &(tarn_generate_options){.max_tokens = 200, .ignore_eos = true, .speculate = TARN_SPECULATE_DRAFT}, 0);
    assert_true(engine->draft.token_ms < slow / 8);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* The grammar allows one token, which the draft hardly proposes: it is given up, though what it proposes is not even
 * computed. */
static void a_draft_that_the_grammar_refuses_is_given_up(void **state)
{
    (void)state;
    static const char rules[] = "root ::= \"q\"{90}";
    tarn_grammar *grammar = tarn_grammar_gbnf(f.vocab, rules, sizeof(rules) - 1);
    tarn_module *model = make_model(1, CONTEXT, 0);
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.draft = model});
    tarn_engine_stats stats;
    assert_in_range(
        count_runs(engine,
                   &(tarn_generate_options){.max_tokens = 100, .grammar = grammar, .speculate = TARN_SPECULATE_DRAFT},
                   0.1),
        2, 25);
    assert_true(tarn_engine_query(engine, &stats));
    assert_int_equal(stats.new_tokens, 90);
    tarn_engine_free(engine);
    tarn_grammar_free(grammar);
    tarn_module_free(model);
}

/* Requests of one prompt share its pages in the draft, too: the second one needs one page of its own. */
static void prefixes_are_shared_in_the_draft(void **state)
{
    (void)state;
    static request r[2];
    uint64_t seed = 1;
    tarn_module *model = make_model(1, CONTEXT, 0);
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.draft = model});
    for (int i = 0; i < 2; i++) {
        r[i] = (request){.count = 150,
                         .options = {.max_tokens = 30, .ignore_eos = true, .speculate = TARN_SPECULATE_DRAFT}};
        for (int64_t k = 0; k < r[i].count; k++)
            r[i].prompt[k] = (int32_t)(32 + 7 * k % 90);
        run(engine, &r[i], 1, &seed);
        assert_true(r[i].accepted > 0);
    }
    assert_int_equal(engine->draft.pool.unreferenced.length, 2);
    assert_memory_equal(r[0].result, r[1].result, sizeof(r[0].result));
    assert_all_free(engine);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* A cancelled request gives its pages of the draft back, at any time. */
typedef struct canceller {
    tarn_engine *engine;
    atomic_int number;
    atomic_bool is_over;
} canceller;

static void *cancel_all(void *arg)
{
    canceller *c = arg;
    for (int64_t next = 1; !atomic_load(&c->is_over);)
        if (next <= atomic_load(&c->number))
            tarn_engine_cancel(c->engine, next++);
    return NULL;
}

static void requests_are_cancelled_with_their_drafts(void **state)
{
    (void)state;
    static request r;
    uint64_t seed = test_seed(7);
    tarn_module *model = make_model(2, CONTEXT, 0), *draft = make_model(1, CONTEXT, 0);
    canceller c = {.engine = tarn_engine_new(model, &(tarn_engine_options){.draft = draft, .sequences = 4})};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_all, &c), 0);
    for (int i = 0; i < 60; i++) {
        r.options = (tarn_generate_options){.max_tokens = 40,
                                            .ignore_eos = i % 3 > 0,
                                            .grammar = i % 3 ? NULL : f.grammar,
                                            .speculate = TARN_SPECULATE_DRAFT};
        for (int64_t k = 0; k < 30; k++)
            r.prompt[k] = (int32_t)(32 + random_below(&seed, 90));
        int64_t number = tarn_engine_add(c.engine, r.prompt, 1 + random_below(&seed, 30), &r.options);
        assert_true(number > 0);
        for (int64_t steps = random_below(&seed, 4); steps >= 0; steps--) {
            set_times(c.engine);
            assert_true(tarn_engine_step(c.engine) >= 0);
        }
        atomic_store(&c.number, (int)number);
        for (tarn_engine_output output; tarn_engine_next(c.engine, &output);)
            assert_true(output.finish_reason != TARN_FINISH_ERROR);
    }
    for (int64_t left = 1; left > 0;) {
        left = tarn_engine_step(c.engine);
        for (tarn_engine_output output; tarn_engine_next(c.engine, &output);)
            assert_true(output.finish_reason != TARN_FINISH_ERROR);
    }
    atomic_store(&c.is_over, true);
    pthread_join(thread, NULL);
    assert_ok();
    assert_all_free(c.engine);
    tarn_engine_free(c.engine);
    tarn_module_free(model);
    tarn_module_free(draft);
}

static void what_an_engine_cannot_do_is_refused(void **state)
{
    (void)state;
    const int32_t tokens[] = {1, 2, 3};
    tarn_module *model = make_model(1, CONTEXT, 0);
    put_file(scratch("tokenizer.json"), small_tokenizer_text(), strlen(small_tokenizer_text()));
    tarn_tokenizer *small = tarn_tokenizer_open(scratch("tokenizer.json"));
    tarn_lm_config config = {0};
    assert_true(tarn_lm_config_named("llama", &config));
    config.vocab_size = 61, config.context = CONTEXT, config.layers = 1, config.heads = 4, config.kv_heads = 2;
    config.hidden_size = 32, config.ffn_size = 64, config.head_dim = 8, config.eos_count = 0, config.has_bos = false;
    tarn_module *other = tarn_model_lm(&config, tarn_device_cpu(), 9), *linear = tarn_linear(4, 4, tarn_device_cpu());
    assert_ok();
    assert_null(tarn_engine_new(model, &(tarn_engine_options){.draft = other}));
    assert_error(TARN_ERROR_ARGUMENT, "engine_new: the draft model has a vocabulary of 61 tokens; it must be the "
                                      "model's, of");
    assert_null(tarn_engine_new(
        model, &(tarn_engine_options){.draft = model, .tokenizer = f.tokenizer, .draft_tokenizer = small}));
    assert_error(TARN_ERROR_ARGUMENT, "engine_new: the draft model has another tokenizer");
    assert_null(tarn_engine_new(model, &(tarn_engine_options){.draft_tokenizer = small}));
    assert_error(TARN_ERROR_ARGUMENT, "engine_new: .draft_tokenizer needs .draft");
    assert_null(tarn_engine_new(model, &(tarn_engine_options){.draft = linear}));
    assert_error(TARN_ERROR_ARGUMENT, "it must be a language model");
    assert_null(tarn_engine_new(model, &(tarn_engine_options){.draft = model, .not_invariant = true}));
    assert_error(TARN_ERROR_UNSUPPORTED, "engine_new: .draft needs batch invariance; .not_invariant is set");
    tarn_engine *engine = tarn_engine_new(model, NULL);
    assert_true(tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.speculate = TARN_SPECULATE_DRAFT}) < 0);
    assert_error(TARN_ERROR_ARGUMENT, "engine_add: .speculate needs the engine's .draft: it has no draft model");
    tarn_engine_free(engine);
    tarn_tokenizer_free(small);
    tarn_module_free(linear);
    tarn_module_free(other);
    tarn_module_free(model);
}

/* Two requests with `room` allocations after the engine was created. True if both ended well. */
static bool run_scarce(tarn_module *model, tarn_module *draft, int room)
{
    const int32_t tokens[] = {40, 41, 42, 43, 44};
    int ends = 0, errors = 0;
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.draft = draft, .sequences = 2});
    assert_ok();
    for (int i = 0; i < 2; i++)
        assert_true(tarn_engine_add(engine, tokens, 5,
                                    &(tarn_generate_options){.max_tokens = 12,
                                                             .ignore_eos = i == 0,
                                                             .grammar = i ? f.grammar : NULL,
                                                             .speculate = TARN_SPECULATE_DRAFT}) > 0);
    allocations_left = room;
    while (ends < 2) {
        set_times(engine);
        if (tarn_engine_step(engine) < 0)
            allocations_left = ENOUGH;
        tarn_clear_error();
        for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
            ends += output.finish_reason != TARN_FINISH_NONE;
            errors += output.finish_reason == TARN_FINISH_ERROR;
        }
    }
    allocations_left = ENOUGH;
    assert_all_free(engine);
    tarn_engine_free(engine);
    return errors == 0;
}

/* Whatever allocation fails, of the creation or of a step: an error, all requests end, and no page or byte is lost. */
static void out_of_memory_loses_no_pages(void **state)
{
    (void)state;
    int failed = 0;
    close_grammar();
    tarn_empty_cache(tarn_device_cpu());
    allocations_left = ENOUGH;
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    open_grammar();
    tarn_scope *scope = tarn_scope_open();
    tarn_module *model = make_model(2, 64, 0), *draft = make_model(1, 64, 0);
    tarn_engine *engine = NULL;
    for (int room = 0; !engine; room++, failed += !engine) {
        tarn_empty_cache(tarn_device_cpu());
        allocations_left = room;
        engine = tarn_engine_new(model, &(tarn_engine_options){.draft = draft});
        allocations_left = ENOUGH;
        if (!engine)
            assert_error(TARN_ERROR_MEMORY, "");
    }
    tarn_engine_free(engine);
    assert_true(failed > 10);
    failed = 0;
    for (int room = 0, is_done = 0; !is_done; room += 1 + room / 16) {
        tarn_empty_cache(tarn_device_cpu());
        is_done = run_scarce(model, draft, room);
        failed += !is_done;
        assert_true(room < 100000);
    }
    assert_true(failed > 10);
    tarn_module_free(model);
    tarn_module_free(draft);
    tarn_scope_close(scope);
    close_grammar();
    tarn_empty_cache(tarn_device_cpu());
    assert_true(tarn_set_allocator(NULL)); /* fails if bytes leaked */
    open_grammar();
}

/* On a device whose matmuls depend on the number of rows, and with a draft there. */
static void a_draft_needs_the_cpu(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_module *model = make_model(1, CONTEXT, 0), *there = make_model(1, CONTEXT, 0);
    assert_true(tarn_module_to(there, tarn_device_parse("mirror:0")));
    assert_null(tarn_engine_new(there, &(tarn_engine_options){.draft = model}));
    assert_error(TARN_ERROR_UNSUPPORTED, "engine_new: .draft needs both models on the CPU");
    assert_null(tarn_engine_new(model, &(tarn_engine_options){.draft = there}));
    assert_error(TARN_ERROR_UNSUPPORTED, "engine_new: .draft needs both models on the CPU");
    tarn_module_free(model);
    tarn_module_free(there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(out_of_memory_loses_no_pages),
        in_scope(requests_have_the_same_tokens),
        in_scope(a_draft_that_agrees_saves_steps),
        in_scope(a_slow_measure_of_the_draft_is_corrected),
        in_scope(a_draft_that_the_grammar_refuses_is_given_up),
        in_scope(prefixes_are_shared_in_the_draft),
        in_scope(requests_are_cancelled_with_their_drafts),
        in_scope(what_an_engine_cannot_do_is_refused),
        in_scope(a_draft_needs_the_cpu),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
