/* test_engine_swap.c: pages of preempted requests and of past prefixes in host memory: a request has the same tokens
 * alone and when pages were moved there and back, with fewer tokens computed than without; where there is no room it is
 * recomputed.
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

/* Has the prompts be beginnings of four, of two pages each: their pages are needed again when they are past. */
static void repeat_prompts(request *r, int count, uint64_t *seed)
{
    for (int i = 0; i < count; i++) {
        r[i].count = 2 * PAGE + 1 + i;
        for (int64_t k = 0; k < r[i].count; k++)
            r[i].prompt[k] = i < 4 || k >= 2 * PAGE ? (int32_t)random_below(seed, VOCAB) : r[i % 4].prompt[k];
    }
}

static void swapped_requests_have_the_same_tokens(void **state)
{
    (void)state;
    if (!has_mirror)
        skip();
    static request alone[REQUESTS];
    uint64_t seed = test_seed(4);
    for (int i = 0; i < 6; i++) {
        tarn_module *model = make_model(i == 2 || i == 5 ? 70 : 0);
        int64_t page = i == 1 ? PAGE_BYTES / 32 * 10 : PAGE_BYTES; /* 8 bytes and an f16 in place of 8 f32 */
        tarn_engine_options options = {.prompt_tokens = 50,
                                       .kv_bytes = 6 * page,
                                       .kv_type = i == 1 ? TARN_KV_Q8_0 : TARN_KV_MODEL,
                                       .no_sharing = i == 3};
        make_requests(alone, REQUESTS, &seed);
        if (i >= 4)
            repeat_prompts(alone, REQUESTS, &seed);
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
        assert_true(without.swapped_out == 0 && without.swap_pages == 0 && little.swap_pages == 2);
        if (i < 4)
            assert_true(without.preemptions > 0 && with.preemptions > 0 && little.preemptions > 0 &&
                        with.swapped_out > 0 && with.swapped_in > 0);
        assert_true(with.swapped_in <= with.swapped_out);
        assert_int_equal(with.prefixes_out > 0, !options.no_sharing);
        assert_true(with.prefixes_in <= with.prefixes_out && without.prefixes_out == 0);
        assert_true(with.prefixes_in > 0 || i < 4);
        assert_int_equal(little.prefixes_dropped > 0, !options.no_sharing);
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

/* ---- past prefixes ----------------------------------------------------------------------------------------------- */

/* Prompts of three pages and 8 tokens that have nothing in common. */
static void make_long_requests(request *r, int count)
{
    uint64_t seed = 7;
    for (int i = 0; i < count; i++) {
        r[i] = (request){.count = 3 * PAGE + 8, .options = {.max_tokens = 20, .temperature = 0.9, .logprobs = true}};
        for (int64_t k = 0; k < r[i].count; k++)
            r[i].prompt[k] = (int32_t)random_below(&seed, VOCAB);
    }
}

/* Runs one request; `shared`: of its prompt, from pages. */
static void run_one(tarn_engine *engine, request *r, int64_t *shared)
{
    r->results = 0, r->hash = 0, r->reason = TARN_FINISH_NONE;
    r->number = tarn_engine_add(engine, r->prompt, r->count, &r->options);
    for (int64_t left = 1; left > 0;) {
        tarn_engine_request now = {.shared = 0};
        left = tarn_engine_step(engine);
        assert_ok();
        if (tarn_engine_requests(engine, &now, 1) == 1)
            *shared = now.shared;
        take_outputs(engine, r, 1);
    }
}

/* Three prompts of three pages each, one after the other, in four pages: the pages of the others are where there is
 * memory for them. With a window only those that a prompt's end attends to are moved. */
static void past_prefixes_come_back(void **state)
{
    (void)state;
    if (!has_mirror)
        skip();
    static request r[3], again[3];
    for (int i = 0; i < 8; i++) {
        bool has_window = i % 2 == 1, is_q8 = i == 6;
        int slots = i < 2 ? 0 : i < 4 ? 4 : 16;
        int64_t page = is_q8 ? PAGE_BYTES / 32 * 10 : PAGE_BYTES, shared = 0;
        tarn_engine_stats stats;
        tarn_module *model = make_model(has_window ? 70 : 0);
        tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.kv_bytes = 4 * page,
                                                                            .kv_type = is_q8 ? TARN_KV_Q8_0 : 0,
                                                                            .swap_bytes = slots * page,
                                                                            .prompt_tokens = 50});
        assert_ok();
        make_long_requests(r, 3);
        for (int k = 0; k < 3; k++)
            run_one(engine, &r[k], &shared);
        memcpy(again, r, sizeof(r));
        for (int k = 0; k < 3; k++) {
            tarn_engine_stats before;
            assert_true(tarn_engine_query(engine, &before));
            run_one(engine, &again[k], &shared);
            assert_true(tarn_engine_query(engine, &stats));
            if (slots == 16) {
                assert_int_equal(shared, 3 * PAGE);
                assert_int_equal(stats.prompt_tokens - before.prompt_tokens, 8);
                assert_in_range(stats.prefixes_in - before.prefixes_in, 1, has_window ? 2 : 3);
            }
            if (again[k].hash != r[k].hash || memcmp(again[k].result, r[k].result, sizeof(r[k].result)) != 0)
                fail_msg("%d slots: prompt %d has other tokens", slots, k);
        }
        assert_int_equal(stats.prefixes_out > 0, slots > 0);
        assert_int_equal(stats.prefixes_dropped > 0, slots == 4);
        assert_true(stats.cached_swap_pages <= slots && stats.free_swap_pages == slots);
        assert_int_equal(stats.cached_swap_pages > 0, slots > 0);
        tarn_engine_free(engine);
        tarn_module_free(model);
    }
}

/* All pages are published and all slots used: others are dropped for what is moved back, not what is to follow it. */
static void a_prefix_does_not_push_itself_out(void **state)
{
    (void)state;
    if (!has_mirror)
        skip();
    static request r[3];
    int64_t shared = 0;
    tarn_module *model = make_model(0);
    tarn_engine *engine =
        tarn_engine_new(model, &(tarn_engine_options){.kv_bytes = 4 * PAGE_BYTES, .swap_bytes = 4 * PAGE_BYTES});
    make_long_requests(r, 3);
    for (int k = 0; k < 3; k++) {
        r[k].count = 3 * PAGE, r[k].options.max_tokens = 1;
        run_one(engine, &r[k], &shared);
    }
    tarn_engine_output output = {.shared = 0};
    assert_true(tarn_engine_add(engine, r[0].prompt, r[0].count, &r[0].options) > 0);
    assert_true(tarn_engine_step(engine) > 0 && tarn_engine_next(engine, &output));
    assert_int_equal(output.shared, 2 * PAGE);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* With a grain of memory for the second run of a prompt: it fails or not, and a third has the same tokens. */
static void failed_moves_leave_no_wrong_pages(void **state)
{
    (void)state;
    if (!has_mirror)
        skip();
    static request r[2], again;
    int failed = 0;
    bool is_done = false;
    allocations_left = ENOUGH;
    tarn_empty_cache(device);
    tarn_empty_cache(tarn_device_cpu());
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    tarn_scope *scope = tarn_scope_open();
    tarn_module *model = make_model(0);
    make_long_requests(r, 2);
    for (int room = 0; !is_done; room += 1 + room / 16) {
        int64_t shared = 0;
        tarn_engine *engine =
            tarn_engine_new(model, &(tarn_engine_options){.kv_bytes = 4 * PAGE_BYTES, .swap_bytes = 16 * PAGE_BYTES});
        run_one(engine, &r[0], &shared);
        run_one(engine, &r[1], &shared);
        again = r[0];
        tarn_empty_cache(tarn_device_cpu());
        assert_true(tarn_engine_add(engine, r[0].prompt, r[0].count, &r[0].options) > 0);
        allocations_left = room;
        is_done = tarn_engine_step(engine) >= 0;
        failed += !is_done;
        allocations_left = ENOUGH;
        tarn_clear_error();
        for (tarn_engine_output output; tarn_engine_step(engine) > 0 || tarn_engine_next(engine, &output);)
            while (tarn_engine_next(engine, &output))
                ;
        run_one(engine, &again, &shared);
        assert_int_equal(again.reason, r[0].reason);
        if (again.hash != r[0].hash)
            fail_msg("room for %d allocations: other log probabilities afterwards", room);
        tarn_engine_free(engine);
        assert_true(room < 10000);
    }
    assert_true(failed > 0);
    tarn_module_free(model);
    tarn_scope_close(scope);
    tarn_empty_cache(device);
    tarn_empty_cache(tarn_device_cpu());
    assert_true(tarn_set_allocator(NULL));
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
        in_scope(past_prefixes_come_back),
        in_scope(a_prefix_does_not_push_itself_out),
        cmocka_unit_test(failed_moves_leave_no_wrong_pages),
        in_scope(the_cpu_needs_no_swapping),
        cmocka_unit_test(out_of_memory_loses_no_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
