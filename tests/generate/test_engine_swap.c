/* test_engine_swap.c: pages of preempted requests in host memory: a request has the same tokens alone and when its
 * pages were moved there and back, with fewer tokens computed than without; where there is no room it is recomputed.
 * On the mirror backend, which has memory of its own and is batch invariant as the CPU is. */
#include <math.h>
#include <tarn/engine.h>

#include "support/check.h"
#include "support/noise.h"

enum { VOCAB = 61, CONTEXT = 256, REQUESTS = 16, MAX_NEW = 70, PAGE = 64, ENOUGH = 1 << 30 };

static tarn_device device;
static bool has_mirror;

typedef struct request {
    int32_t prompt[CONTEXT], result[MAX_NEW];
    int64_t count, results, number;
    uint64_t hash; /* of its log probabilities */
    tarn_generate_options options;
    tarn_finish_reason reason;
} request;

/* Prompts of one to three pages, a third of which begin alike; enough new tokens to grow by a page. Three of the first
 * six have two pages each at the same time, and grow to a third: more than there are. */
static void make_requests(request *r, int count, uint64_t *seed)
{
    for (int i = 0; i < count; i++) {
        r[i] = (request){.count = 40 + random_below(seed, 140),
                         .options = {.max_tokens = 20 + random_below(seed, MAX_NEW - 20),
                                     .temperature = i % 2 ? 0.9 : 0,
                                     .logprobs = true,
                                     .prompt_logprobs = i % 5 == 4,
                                     .repeat_penalty = i % 4 == 3 ? 1.2 : 0,
                                     .seed = (uint64_t)i}};
        if (i < 6)
            r[i].count = PAGE, r[i].options.max_tokens = MAX_NEW - 2;
        int64_t same = i % 3 == 0 ? 70 : 0;
        for (int64_t k = 0; k < r[i].count; k++)
            r[i].prompt[k] = (int32_t)(k < same ? (3 * k + 1) % VOCAB : random_below(seed, VOCAB));
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

/* Adds the requests, up to three at a time; the seed has some cancelled on the way, which are added again. */
static void run(tarn_engine *engine, request *r, int count, uint64_t *seed)
{
    int added = 0;
    for (int64_t left = 1; left > 0 || added < count;) {
        int more = count == 1 ? 1 : (int)random_below(seed, 4);
        for (int i = 0; i < more && added < count; i++, added++) {
            r[added].results = 0, r[added].hash = 0, r[added].reason = TARN_FINISH_NONE;
            r[added].number = tarn_engine_add(engine, r[added].prompt, r[added].count, &r[added].options);
            assert_true(r[added].number > 0);
        }
        left = tarn_engine_step(engine);
        assert_ok();
        take_outputs(engine, r, added);
        int last = added - 1;
        if (count > 1 && added > 0 && r[last].reason == TARN_FINISH_NONE && random_below(seed, 16) == 0) {
            assert_true(tarn_engine_cancel(engine, r[last].number));
            take_outputs(engine, r, added);
            added--;
        }
    }
}

static tarn_module *make_model(int64_t window)
{
    tarn_lm_config config;
    assert_true(tarn_lm_config_named(window ? "mistral" : "llama", &config));
    config.vocab_size = VOCAB, config.context = CONTEXT, config.layers = 2, config.heads = 4, config.kv_heads = 2;
    config.hidden_size = 32, config.ffn_size = 64, config.head_dim = 8, config.window = window;
    config.eos_count = 0, config.has_bos = false;
    return add_noise(tarn_model_lm(&config, device, 9));
}

/* Bytes of a page of these models in f32: keys and values of 2 layers, 2 heads of 8. */
#define PAGE_BYTES ((int64_t)2 * 2 * PAGE * 2 * 8 * 4)

/* Runs all requests with few pages, and compares with alone; returns the engine's counters. */
static tarn_engine_stats run_swapping(tarn_module *model, const request *alone, const tarn_engine_options *options,
                                      uint64_t seed)
{
    static request r[REQUESTS];
    tarn_engine_stats stats;
    memcpy(r, alone, sizeof(r));
    tarn_engine *engine = tarn_engine_new(model, options);
    assert_ok();
    run(engine, r, REQUESTS, &seed);
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(r[i].reason, alone[i].reason);
        assert_int_equal(r[i].results, alone[i].results);
        for (int64_t k = 0; k < r[i].results; k++)
            if (r[i].result[k] != alone[i].result[k])
                fail_msg("swap %lld: request %d: token %lld of %lld differs", (long long)options->swap_bytes, i,
                         (long long)k, (long long)r[i].results);
        if (r[i].hash != alone[i].hash)
            fail_msg("request %d: log probabilities differ", i);
    }
    assert_true(tarn_engine_query(engine, &stats));
    assert_true(stats.free_pages == stats.pages && stats.free_swap_pages == stats.swap_pages);
    assert_true(stats.running == 0 && stats.waiting == 0);
    tarn_engine_free(engine);
    return stats;
}

static void swapped_requests_have_the_same_tokens(void **state)
{
    (void)state;
    if (!has_mirror)
        skip();
    static request alone[REQUESTS];
    uint64_t seed = test_seed(4);
    for (int i = 0; i < 4; i++) {
        tarn_module *model = make_model(i == 2 ? 70 : 0);
        int64_t page = i == 1 ? PAGE_BYTES / 32 * 10 : PAGE_BYTES; /* 8 bytes and an f16 in place of 8 f32 */
        tarn_engine_options options = {.prompt_tokens = 50,
                                       .kv_bytes = 6 * page,
                                       .kv_type = i == 1 ? TARN_KV_Q8_0 : TARN_KV_MODEL,
                                       .no_sharing = i == 3};
        make_requests(alone, REQUESTS, &seed);
        for (int k = 0; k < REQUESTS; k++) {
            tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.kv_type = options.kv_type});
            run(engine, &alone[k], 1, &seed);
            tarn_engine_free(engine);
        }
        uint64_t schedule = random_bits(&seed);
        tarn_engine_stats without = run_swapping(model, alone, &options, schedule);
        options.swap_bytes = 2 * page;
        tarn_engine_stats little = run_swapping(model, alone, &options, schedule);
        options.swap_bytes = 64 * page;
        tarn_engine_stats with = run_swapping(model, alone, &options, schedule);
        assert_true(without.preemptions > 0 && without.swapped_out == 0 && without.swap_pages == 0);
        assert_true(with.preemptions > 0 && with.swapped_out > 0 && with.swapped_in > 0);
        assert_true(with.swapped_in <= with.swapped_out);
        assert_true(little.swap_pages == 2 && little.preemptions > 0);
        tarn_module_free(model);
    }
}

/* Three requests of one page that grow to three pages each, in six. */
static void swapped_requests_are_not_recomputed(void **state)
{
    (void)state;
    if (!has_mirror)
        skip();
    static request r[3];
    uint64_t seed = 1;
    tarn_module *model = make_model(0);
    for (int swaps = 0; swaps < 2; swaps++) {
        tarn_engine_stats stats;
        tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.kv_bytes = 6 * PAGE_BYTES,
                                                                            .swap_bytes = swaps * 6 * PAGE_BYTES,
                                                                            .no_sharing = true});
        make_requests(r, 3, &seed);
        for (int i = 0; i < 3; i++) {
            r[i].options.prompt_logprobs = false;
            r[i].number = tarn_engine_add(engine, r[i].prompt, r[i].count, &r[i].options);
        }
        while (tarn_engine_step(engine) > 0)
            take_outputs(engine, r, 3);
        assert_true(tarn_engine_query(engine, &stats) && stats.preemptions > 0);
        assert_int_equal(stats.swapped_in > 0, swaps);
        assert_int_equal(stats.prompt_tokens == 3 * PAGE, swaps); /* each once */
        tarn_engine_free(engine);
    }
    tarn_module_free(model);
}

static void the_cpu_needs_no_swapping(void **state)
{
    (void)state;
    const tarn_gpt2_config config = {.vocab_size = 7, .context = 5, .layers = 1, .heads = 2, .hidden_size = 4};
    tarn_module *model = tarn_model_gpt2(&config, tarn_device_cpu(), 1);
    assert_null(tarn_engine_new(model, &(tarn_engine_options){.swap_bytes = 1 << 20}));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "engine_new: .swap_bytes is 1048576, and the device is the CPU",
                       "give these bytes to .kv_bytes");
    assert_null(tarn_engine_new(model, &(tarn_engine_options){.swap_bytes = -1}));
    assert_error(TARN_ERROR_ARGUMENT, "engine_new: .swap_bytes is -1");
    tarn_module_free(model);
}

/* Two requests that grow to three pages each in five, and `room` allocations from the first preemption on. True if all
 * ended well. */
static bool run_scarce(tarn_module *model, int room, int64_t *swapped)
{
    int32_t tokens[120];
    int ends = 0, lengths = 0;
    tarn_engine_stats stats = {.preemptions = 0};
    for (int i = 0; i < 120; i++)
        tokens[i] = i % VOCAB;
    tarn_engine *engine = tarn_engine_new(
        model, &(tarn_engine_options){
                   .context = 256, .kv_bytes = 5 * PAGE_BYTES, .swap_bytes = 8 * PAGE_BYTES, .no_sharing = true});
    for (int i = 0; i < 2; i++)
        assert_int_equal(tarn_engine_add(engine, tokens, 120, &(tarn_generate_options){.max_tokens = 12}), i + 1);
    for (int64_t left = 2; left > 0;) {
        left = tarn_engine_step(engine);
        tarn_clear_error();
        assert_true(tarn_engine_query(engine, &stats));
        if (stats.new_tokens == 16)
            allocations_left = room; /* both have filled their pages */
        if (left < 0)
            allocations_left = ENOUGH;
        left = left < 0 ? 2 : left;
        for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
            ends += output.finish_reason != TARN_FINISH_NONE;
            lengths += output.finish_reason == TARN_FINISH_LENGTH;
        }
        left = ends < 2;
    }
    allocations_left = ENOUGH;
    tarn_clear_error();
    assert_int_equal(ends, 2);
    assert_true(tarn_engine_query(engine, &stats));
    assert_true(stats.free_pages == stats.pages && stats.free_swap_pages == stats.swap_pages);
    *swapped = stats.swapped_in;
    tarn_engine_free(engine);
    return lengths == 2;
}

/* Whatever allocation fails: both requests end, by an error or their length, and all pages and slots come back. */
static void out_of_memory_loses_no_slots(void **state)
{
    (void)state;
    if (!has_mirror)
        skip();
    int failed = 0, recomputed = 0;
    tarn_empty_cache(device);
    tarn_empty_cache(tarn_device_cpu());
    allocations_left = ENOUGH;
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    tarn_scope *scope = tarn_scope_open();
    tarn_module *model = make_model(0);
    for (int room = 0, is_done = 0; !is_done; room += 1 + room / 32) {
        int64_t swapped = 0;
        assert_true(room < 10000);
        tarn_empty_cache(tarn_device_cpu());
        bool good = run_scarce(model, room, &swapped);
        failed += !good;
        recomputed += good && swapped == 0;
        is_done = good && swapped > 0;
    }
    assert_true(failed > 0);
    print_message("%d runs ended by an error, %d recomputed\n", failed, recomputed);
    tarn_module_free(model);
    tarn_scope_close(scope);
    tarn_empty_cache(device);
    tarn_empty_cache(tarn_device_cpu());
    assert_true(tarn_set_allocator(NULL)); /* fails if bytes leaked */
}

int main(void)
{
    has_mirror = tarn_device_count("mirror") > 0;
    device = has_mirror ? tarn_device_parse("mirror:0") : tarn_device_cpu();
    const struct CMUnitTest tests[] = {
        in_scope(swapped_requests_have_the_same_tokens),
        in_scope(swapped_requests_are_not_recomputed),
        in_scope(the_cpu_needs_no_swapping),
        cmocka_unit_test(out_of_memory_loses_no_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
