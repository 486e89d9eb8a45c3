/* test_engine_longrope.c: requests of an engine that grow past longrope's short context have the tokens of
 * tarn_generate(), among others on both sides of it, with shared prefixes and when they are preempted. */
#include <tarn/engine.h>

#include "support/check.h"
#include "support/noise.h"

enum { VOCAB = 61, CONTEXT = 320, SHORT = 150, PAIRS = 4, REQUESTS = 9, NEW = 60, PAGE = 64 };

/* prompts before, at and after the boundary; all but the last begin alike, for more than one page */
static const int64_t counts[REQUESTS] = {100, 149, 150, 151, 210, 140, 20, 250, 145};

static tarn_device device;
static int32_t prompt[REQUESTS][CONTEXT];

typedef struct result {
    int64_t number, count, shared;
    int32_t token[NEW];
    double logprob[NEW];
} result;

/* Factors far apart. */
static tarn_module *make(const char *arch)
{
    tarn_lm_config c = {0};
    assert_true(tarn_lm_config_named(arch, &c));
    c.vocab_size = VOCAB, c.context = CONTEXT, c.layers = 2, c.heads = 4, c.kv_heads = 2, c.hidden_size = 32;
    c.ffn_size = 40, c.head_dim = 2 * PAIRS, c.eos_count = 0, c.window = 0, c.windows = (tarn_lm_layers){0};
    c.rope = (tarn_rope_options){
        .base = 100, .dims = 2 * PAIRS, .scaling = TARN_ROPE_LONGROPE, .factor = 4, .original_context = SHORT};
    for (int i = 0; i < PAIRS; i++) {
        c.rope_factors[0][i] = 1.0f + 0.1f * (float)i;
        c.rope_factors[1][i] = 3.0f + (float)i;
    }
    tarn_module *model = add_noise(tarn_model_lm(&c, device, 5));
    assert_ok();
    return model;
}

static void make_prompts(uint64_t seed)
{
    for (int i = 0; i < REQUESTS; i++)
        for (int k = 0; k < CONTEXT; k++)
            prompt[i][k] = i > 0 && i < REQUESTS - 1 && k < 130 ? prompt[0][k] : (int32_t)random_below(&seed, VOCAB);
}

static tarn_generate_options options_of(int i)
{
    return (tarn_generate_options){
        .max_tokens = NEW, .temperature = i % 2 ? 0.9 : 0, .seed = (uint64_t)i, .logprobs = true, .ignore_eos = true};
}

static void add(tarn_engine *engine, result *r, int i)
{
    const tarn_generate_options options = options_of(i);
    *r = (result){.number = tarn_engine_add(engine, prompt[i], counts[i], &options)};
    assert_true(r->number > 0);
}

static void run(tarn_engine *engine, result *r, int count)
{
    for (int64_t left = 1; left > 0;) {
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
    }
}

static void assert_same(const result *a, const result *b, int i)
{
    assert_int_equal(a->count, NEW);
    assert_int_equal(b->count, NEW);
    for (int k = 0; k < NEW; k++)
        if (a->token[k] != b->token[k] || a->logprob[k] != b->logprob[k])
            fail_msg("request %d: token %d or its log probability differs", i, k);
}

/* Alone in an engine; greedy ones also by tarn_generate(). */
static void run_alone(tarn_module *model, result *r, int i)
{
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.context = CONTEXT, .sequences = 1});
    add(engine, r, i);
    run(engine, r, 1);
    tarn_engine_free(engine);
    const tarn_generate_options options = options_of(i);
    int32_t expected[NEW];
    if (options.temperature > 0)
        return;
    assert_int_equal(tarn_generate(model, prompt[i], counts[i], expected, &options), NEW);
    for (int k = 0; k < NEW; k++)
        if (expected[k] != r->token[k])
            fail_msg("request %d: token %d is %d, that of tarn_generate() %d", i, k, (int)r->token[k],
                     (int)expected[k]);
}

static void requests_cross_the_short_context_one_by_one(void **state)
{
    (void)state;
    static result alone[REQUESTS], others[REQUESTS];
    tarn_engine_stats stats;
    tarn_module *model = make("phi3");
    bool is_cpu = tarn_device_equal(device, tarn_device_cpu());
    int64_t page_bytes = 2 * 2 * 2 * PAGE * 2 * PAIRS * 4; /* layers, keys and values, kv_heads, f32 */
    make_prompts(test_seed(3));
    for (int i = 0; i < REQUESTS; i++)
        run_alone(model, &alone[i], i);
    for (int few = 0; few < 2; few++) {
        tarn_engine *engine = tarn_engine_new(
            model,
            &(tarn_engine_options){.context = CONTEXT, .prompt_tokens = 70, .kv_bytes = few ? 11 * page_bytes : 0});
        for (int again = 0; again < 2; again++) {
            for (int i = 0; i < REQUESTS; i++)
                add(engine, &others[i], i);
            run(engine, others, REQUESTS);
            for (int i = 0; is_cpu && i < REQUESTS; i++)
                assert_same(&alone[i], &others[i], i);
        }
        assert_true(tarn_engine_query(engine, &stats) && stats.free_pages == stats.pages);
        assert_true(stats.shared_tokens > 0 && (stats.preemptions > 0) == (few == 1));
        tarn_engine_free(engine);
    }
    tarn_module_free(model);
}

/* The prefix of a short prompt and of a long one: equal tokens, other keys. */
static void pages_are_shared_on_one_side_only(void **state)
{
    (void)state;
    static const int order[] = {5, 7, 4, 0}; /* 140, 250, 210 and 100 tokens */
    static const int64_t shared[] = {0, 0, 2 * PAGE, PAGE};
    result r;
    tarn_module *model = make("phi3");
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.context = CONTEXT});
    make_prompts(7);
    for (int i = 0; i < 4; i++) {
        const tarn_generate_options options = {.max_tokens = 2, .ignore_eos = true};
        r = (result){.number = tarn_engine_add(engine, prompt[order[i]], counts[order[i]], &options)};
        run(engine, &r, 1);
        assert_int_equal(r.shared, shared[i]);
    }
    tarn_engine_free(engine);
    tarn_module_free(model);
}

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {
        in_scope(requests_cross_the_short_context_one_by_one),
        in_scope(pages_are_shared_on_one_side_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
