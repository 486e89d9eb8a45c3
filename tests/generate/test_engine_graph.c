/* test_engine_graph.c: engines whose decode steps are captured: the same tokens and log probabilities as without
 * graphs, while requests join, leave and outgrow their tables; fewer kernel launches; memory is freed with the engine.
 * TARN_TEST_DEVICE names the device; default: the mirror. */
#include <math.h>
#include <stdlib.h>
#include <tarn/engine.h>
#include <tarn/profile.h>

#include "core/launch/graph.h"
#include "generate/engine/engine.h"
#include "support/check.h"
#include "support/noise.h"

enum { VOCAB = 61, CONTEXT = 1024, REQUESTS = 12, MAX_PROMPT = 300, MAX_NEW = 120 };

static tarn_device device;
static bool is_mirror, can_capture;

typedef struct request {
    int32_t prompt[MAX_PROMPT], result[MAX_NEW];
    int64_t count, results, number;
    uint64_t hash; /* of its log probabilities */
    tarn_generate_options options;
    tarn_finish_reason reason;
} request;

static tarn_module *make_model(const char *arch, int64_t window)
{
    tarn_lm_config c;
    assert_true(tarn_lm_config_named(arch, &c));
    c.vocab_size = VOCAB, c.context = CONTEXT, c.layers = 2, c.heads = 4, c.kv_heads = c.kv_heads ? 2 : 0;
    c.hidden_size = 32, c.ffn_size = 64, c.head_dim = c.head_dim ? 8 : 0, c.window = window;
    c.eos_count = 0, c.has_bos = false;
    return add_noise(tarn_model_lm(&c, device, 9));
}

/* Short and long prompts; every third request is greedy, every fourth has its prompt's log probabilities. */
static void make_requests(request *r, int count, uint64_t *seed)
{
    for (int i = 0; i < count; i++) {
        r[i] = (request){.count = 1 + random_below(seed, i % 2 ? MAX_PROMPT : 20),
                         .options = {.max_tokens = 5 + random_below(seed, MAX_NEW - 5),
                                     .temperature = i % 3 ? 0.9 : 0,
                                     .logprobs = true,
                                     .prompt_logprobs = i % 4 == 3,
                                     .repeat_penalty = i % 4 == 2 ? 1.2 : 0,
                                     .seed = (uint64_t)i}};
        for (int64_t k = 0; k < r[i].count; k++)
            r[i].prompt[k] = (int32_t)random_below(seed, VOCAB);
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
    }
    assert_ok();
}

/* Steps until all requests have ended; new ones come now and then. */
static void run(tarn_engine *engine, request *r, int count, uint64_t seed)
{
    int added = 0;
    for (int64_t left = 1; left > 0 || added < count;) {
        if (added < count && (left == 0 || random_below(&seed, 8) == 0)) {
            r[added].number = tarn_engine_add(engine, r[added].prompt, r[added].count, &r[added].options);
            assert_true(r[added].number > 0);
            added++;
        }
        left = tarn_engine_step(engine);
        assert_ok();
        take_outputs(engine, r, added);
    }
}

static void assert_same_requests(const request *a, const request *b, int count)
{
    for (int i = 0; i < count; i++) {
        assert_int_equal(a[i].reason, b[i].reason);
        assert_int_equal(a[i].results, b[i].results);
        assert_memory_equal(a[i].result, b[i].result, sizeof(a[i].result[0]) * (size_t)a[i].results);
        assert_true(a[i].hash == b[i].hash);
    }
}

static void captured_steps_have_the_same_tokens(void **state)
{
    (void)state;
    if (!can_capture)
        skip();
    static const struct {
        const char *arch;
        int64_t window;
        tarn_kv_type kv_type;
    } cases[] = {{"llama", 0, TARN_KV_MODEL}, {"llama", 0, TARN_KV_Q8_0}, {"mistral", 100, TARN_KV_MODEL},
                 {"gpt2", 0, TARN_KV_F16},    {"phi3", 0, TARN_KV_MODEL}, {"gemma2", 70, TARN_KV_MODEL}};
    uint64_t seed = test_seed(7);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static request r[2][REQUESTS];
        int64_t kernels[2];
        tarn_module *model = make_model(cases[i].arch, cases[i].window);
        assert_ok();
        make_requests(r[0], REQUESTS, &seed);
        memcpy(r[1], r[0], sizeof(r[0]));
        uint64_t schedule = random_bits(&seed);
        for (int captured = 0; captured < 2; captured++) {
            tarn_engine *engine = tarn_engine_new(
                model, &(tarn_engine_options){.kv_type = cases[i].kv_type, .sequences = 8, .no_capture = !captured});
            assert_ok();
            int64_t before = tarn_stats().kernels;
            run(engine, r[captured], REQUESTS, schedule);
            kernels[captured] = tarn_stats().kernels - before;
            tarn_engine_free(engine);
        }
        assert_same_requests(r[0], r[1], REQUESTS);
        if (kernels[1] > kernels[0] * 9 / 10)
            fail_msg("%s: %lld kernels with graphs, %lld without", cases[i].arch, (long long)kernels[1],
                     (long long)kernels[0]);
        tarn_module_free(model);
    }
}

static int count_graphs(const tarn_engine *engine)
{
    int count = 0;
    for (int i = 0; i < TARN__ENGINE_GRAPHS; i++)
        count += engine->graphs.graph[i].captured != NULL;
    return count;
}

/* A single request has a graph per width of its table; a graph is launched again when its shape recurs. */
static void graphs_are_kept_and_replaced(void **state)
{
    (void)state;
    if (!can_capture)
        skip();
    static request r[REQUESTS];
    uint64_t seed = 3;
    tarn_module *model = make_model("llama", 0);
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.sequences = 16});
    make_requests(r, REQUESTS, &seed);
    r[0].count = 200, r[0].options.max_tokens = 100; /* beyond four pages, up to eight */
    run(engine, r, 1, seed);
    assert_int_equal(count_graphs(engine), 2);
    int64_t clock = engine->graphs.clock;
    r[0].results = 0, r[0].reason = TARN_FINISH_NONE;
    run(engine, r, 1, seed);
    assert_int_equal(count_graphs(engine), 2);
    assert_true(engine->graphs.clock > clock + 90); /* every step but those before the first capture */
    for (int count = 2; count <= REQUESTS; count++) {
        for (int i = 0; i < count; i++) {
            r[i].count = 4, r[i].results = 0, r[i].reason = TARN_FINISH_NONE;
            r[i].options = (tarn_generate_options){.max_tokens = 12};
            r[i].number = tarn_engine_add(engine, r[i].prompt, r[i].count, &r[i].options);
        }
        while (tarn_engine_step(engine) > 0)
            take_outputs(engine, r, count);
        take_outputs(engine, r, count);
        assert_true(count_graphs(engine) == (count + 1 < TARN__ENGINE_GRAPHS ? count + 1 : TARN__ENGINE_GRAPHS));
    }
    tarn_engine_free(engine);
    tarn_module_free(model);
}

static void memory_comes_back(void **state)
{
    (void)state;
    if (!is_mirror)
        skip();
    static request r[REQUESTS];
    uint64_t seed = 5;
    tarn_module *model = make_model("llama", 0);
    int64_t before = tarn_memory_of(device).used;
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.sequences = 8});
    make_requests(r, REQUESTS, &seed);
    run(engine, r, REQUESTS, seed);
    assert_true(count_graphs(engine) > 0);
    tarn_engine_free(engine);
    assert_int_equal(tarn_memory_of(device).used, before);
    tarn_module_free(model);
}

int main(void)
{
    const char *name = getenv("TARN_TEST_DEVICE");
    is_mirror = !name && tarn_device_count("mirror") > 0;
    device = tarn_device_parse(name ? name : is_mirror ? "mirror:0" : "cpu");
    can_capture = tarn__can_capture(device);
    const struct CMUnitTest tests[] = {
        in_scope(captured_steps_have_the_same_tokens),
        in_scope(graphs_are_kept_and_replaced),
        in_scope(memory_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
