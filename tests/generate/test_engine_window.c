/* test_engine_window.c: an engine releases the pages before every layer's window: a long generation has a bounded
 * number of them, with the same tokens and log probabilities, bit by bit, as one that keeps them; others still find
 * released pages. */
#include <tarn/engine.h>

#include "generate/engine/engine.h"
#include "support/check.h"
#include "support/noise.h"

#define CPU tarn_device_cpu()
enum {
    VOCAB = 61,
    CONTEXT = 1024,
    WINDOW = 100,
    PAGE = TARN__KV_PAGE,
    PAGES = CONTEXT / PAGE,
    STEP = 48,
    REQUESTS = 6
};

/* pages of a request: those of the window and of a step's tokens, both cut anywhere */
enum { MAX_PAGES = (WINDOW - 1 + STEP + 2 * (PAGE - 1)) / PAGE };

typedef struct result {
    int64_t number, count, shared;
    int32_t token[CONTEXT];
    double logprob[CONTEXT];
} result;

static tarn_module *model_of(const char *arch)
{
    tarn_lm_config config;
    assert_true(tarn_lm_config_named(arch, &config));
    config.vocab_size = VOCAB, config.context = CONTEXT, config.layers = 2, config.heads = 4;
    config.hidden_size = 32, config.ffn_size = 64, config.head_dim = 8;
    config.window = WINDOW;
    config.eos_count = 0, config.has_bos = false;
    tarn_module *model = add_noise(tarn_model_lm(&config, CPU, 9));
    assert_ok();
    return model;
}

/* Bytes of a page, by the error of an engine without memory for one context. */
static int64_t page_bytes(tarn_module *model, int64_t pages)
{
    assert_null(tarn_engine_new(model, &(tarn_engine_options){.prompt_tokens = STEP, .kv_bytes = 1}));
    const char *needs = strstr(tarn_error(), "needs ");
    assert_non_null(needs);
    int64_t bytes = strtoll(needs + 6, NULL, 10);
    tarn_clear_error();
    assert_int_equal(bytes % pages, 0);
    return bytes / pages;
}

static tarn_engine *engine_of(tarn_module *model, int64_t pages, bool no_sharing)
{
    tarn_engine *engine = tarn_engine_new(
        model, &(tarn_engine_options){
                   .prompt_tokens = STEP, .kv_bytes = pages * page_bytes(model, MAX_PAGES), .no_sharing = no_sharing});
    assert_non_null(engine);
    return engine;
}

static void add(tarn_engine *engine, result *r, const int32_t *prompt, int64_t count, int64_t max_tokens)
{
    *r = (result){
        .number = tarn_engine_add(
            engine, prompt, count,
            &(tarn_generate_options){.max_tokens = max_tokens, .temperature = 0.8, .logprobs = true, .seed = 7})};
    assert_true(r->number > 0);
}

/* Runs all requests; returns the largest number of pages that one of them had. */
static int64_t run(tarn_engine *engine, result *r, int count)
{
    int64_t largest = 0;
    for (int64_t left = 1; left > 0;) {
        tarn_engine_request now[REQUESTS];
        left = tarn_engine_step(engine);
        assert_ok();
        for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
            int at = 0;
            while (at < count && r[at].number != output.request)
                at++;
            assert_true(at < count && output.token >= 0);
            r[at].token[r[at].count] = output.token;
            r[at].logprob[r[at].count++] = output.logprob;
            r[at].shared = output.shared;
        }
        int64_t alive = tarn_engine_requests(engine, now, REQUESTS);
        for (int64_t i = 0; i < alive; i++)
            largest = now[i].pages > largest ? now[i].pages : largest;
    }
    return largest;
}

static void assert_same(const result *a, const result *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->token, b->token, sizeof(*a->token) * (size_t)a->count);
    assert_memory_equal(a->logprob, b->logprob, sizeof(*a->logprob) * (size_t)a->count);
}

static void make_prompt(int32_t *prompt, uint64_t seed)
{
    for (int i = 0; i < CONTEXT; i++)
        prompt[i] = (int32_t)random_below(&seed, VOCAB);
}

/* One that keeps all pages, for comparison. */
static void run_keeping(tarn_module *model, result *r, const int32_t *prompt, int64_t count, int64_t max_tokens)
{
    tarn_engine *engine = engine_of(model, PAGES, true);
    assert_int_equal(engine->window, WINDOW);
    engine->window = 0;
    add(engine, r, prompt, count, max_tokens);
    assert_int_equal(run(engine, r, 1), (count + max_tokens - 1 + PAGE - 1) / PAGE);
    tarn_engine_free(engine);
}

/* In an engine of the fewest pages: too few for all tokens. */
static void a_long_generation_has_a_bounded_number_of_pages(void **state)
{
    (void)state;
    static const char *const archs[] = {"mistral", "starcoder2"};
    static int32_t prompt[CONTEXT];
    static result kept, bounded;
    static const int64_t prompts[] = {10, 500};
    make_prompt(prompt, test_seed(4));
    for (int i = 0; i < 4; i++) {
        tarn_module *model = model_of(archs[i / 2]);
        int64_t count = prompts[i % 2], max_tokens = 900 - count;
        run_keeping(model, &kept, prompt, count, max_tokens);
        for (int no_sharing = 0; no_sharing < 2; no_sharing++) {
            tarn_engine *engine = engine_of(model, MAX_PAGES, no_sharing);
            add(engine, &bounded, prompt, count, max_tokens);
            int64_t largest = run(engine, &bounded, 1);
            assert_true(largest >= WINDOW / PAGE && largest <= MAX_PAGES);
            assert_int_equal(bounded.count, max_tokens);
            assert_same(&kept, &bounded);
            tarn_engine_stats stats;
            assert_true(tarn_engine_query(engine, &stats));
            assert_true(stats.pages == MAX_PAGES && stats.free_pages == stats.pages && stats.preemptions == 0);
            tarn_engine_free(engine);
        }
        tarn_module_free(model);
    }
}

/* The second request with the same prompt finds all of its pages, also those that the first released long before its
 * end; where their memory was needed meanwhile, it computes them again. */
static void released_pages_are_found_by_others(void **state)
{
    (void)state;
    static int32_t prompt[CONTEXT];
    static result kept, first, second;
    tarn_module *model = model_of("mistral");
    make_prompt(prompt, test_seed(5));
    run_keeping(model, &kept, prompt, 500, 200);
    for (int few = 0; few < 2; few++) {
        tarn_engine *engine = engine_of(model, few ? MAX_PAGES : 2 * PAGES, false);
        add(engine, &first, prompt, 500, 200);
        int64_t largest = run(engine, &first, 1);
        add(engine, &second, prompt, 500, 200);
        assert_true(run(engine, &second, 1) <= MAX_PAGES && largest <= MAX_PAGES);
        assert_int_equal(second.shared, few ? 0 : 500 / PAGE * PAGE);
        assert_same(&kept, &first);
        assert_same(&kept, &second);
        tarn_engine_free(engine);
    }
    tarn_module_free(model);
}

/* Requests with common prefixes, preempted for each other's pages. */
static void tokens_do_not_depend_on_other_requests(void **state)
{
    (void)state;
    static int32_t prompt[REQUESTS][CONTEXT];
    static result kept[REQUESTS], others[REQUESTS];
    static const int64_t counts[REQUESTS] = {500, 500, 300, 64, 7, 420};
    tarn_module *model = model_of("mistral");
    for (int i = 0; i < REQUESTS; i++) {
        make_prompt(prompt[i], test_seed(6) + (uint64_t)(i % 3));
        run_keeping(model, &kept[i], prompt[i], counts[i], 150 + i);
    }
    for (int sharing = 0; sharing < 2; sharing++) {
        tarn_engine *engine = engine_of(model, 2 * MAX_PAGES, !sharing);
        for (int i = 0; i < REQUESTS; i++)
            add(engine, &others[i], prompt[i], counts[i], 150 + i);
        assert_true(run(engine, others, REQUESTS) <= MAX_PAGES);
        for (int i = 0; i < REQUESTS; i++)
            assert_same(&kept[i], &others[i]);
        tarn_engine_stats stats;
        assert_true(tarn_engine_query(engine, &stats) && stats.preemptions > 0);
        assert_true(stats.free_pages == stats.pages && stats.shared_pages == 0);
        tarn_engine_free(engine);
    }
    tarn_module_free(model);
}

/* Every second layer of Gemma 2 attends to all tokens: its pages stay. */
static void pages_stay_where_a_layer_has_no_window(void **state)
{
    (void)state;
    static int32_t prompt[CONTEXT];
    static result r;
    tarn_module *model = model_of("gemma2");
    make_prompt(prompt, 1);
    assert_true(page_bytes(model, PAGES) > 0);
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.sequences = 1});
    add(engine, &r, prompt, 300, 100);
    assert_int_equal(run(engine, &r, 1), 7);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_long_generation_has_a_bounded_number_of_pages),
        in_scope(released_pages_are_found_by_others),
        in_scope(tokens_do_not_depend_on_other_requests),
        in_scope(pages_stay_where_a_layer_has_no_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
