/* test_sequences.c: several sequences of different lengths in one decoder, prefill in chunks, and KV cache types. */
#include "support/check.h"

#define CPU tarn_device_cpu()
enum { VOCAB = 19, CONTEXT = 40 };

/* The device that the tests of other devices take: $TARN_TEST_DEVICE, or the mirror. False: there is none. */
static bool find_device(tarn_device *device)
{
    if (!getenv("TARN_TEST_DEVICE") && tarn_device_count("mirror") < 1)
        return false;
    *device = test_device("mirror:0");
    return true;
}

/* Gives a model an opinion: weights as they are at the beginning make all tokens alike. */
static tarn_module *opinionated(tarn_module *model, tarn_device device)
{
    tarn_seed(4);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p),
                              tarn_to(tarn_normal(tarn_shape_of(p), 0, 0.25, tarn_dtype_of(p), CPU), device)));
    }
    assert_ok();
    return model;
}

static tarn_module *make_on(tarn_dtype dtype, tarn_device device)
{
    const tarn_gpt2_config config = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 3, .heads = 2, .hidden_size = 16, .dtype = dtype};
    return opinionated(tarn_model_gpt2(&config, device, 9), device);
}

/* Positions are angles rather than a table; heads share keys and values. */
static tarn_module *make_llama_on(tarn_device device)
{
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = CONTEXT,
                                      .layers = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .hidden_size = 16,
                                      .ffn_size = 24,
                                      .head_dim = 6};
    return opinionated(tarn_model_llama(&config, device, 9), device);
}

static tarn_tensor *random_tokens(uint64_t *seed, int64_t columns, tarn_device device)
{
    int64_t values[CONTEXT];
    for (int64_t i = 0; i < columns; i++)
        values[i] = random_below(seed, VOCAB);
    return good(tarn_from_i64(values, TARN_SHAPE(1, columns), device));
}

/* Logits [1, V] of the last token, without a cache. */
static tarn_tensor *whole(tarn_module *model, tarn_tensor *tokens)
{
    int64_t T = tarn_size(tokens, 1);
    tarn_module_train(model, false);
    return good(tarn_squeeze(tarn_slice(tarn_forward(model, tokens), 1, T - 1, T), 1));
}

/* Three texts grow by random numbers of tokens, alone and together, go back now and then, and always have the logits of
 * what they are. */
static void grow(tarn_module *model, tarn_device device, tarn_kv_type kv_type, double tolerance, uint64_t *seed)
{
    enum { TEXTS = 3 };
    tarn_decoder *decoder = tarn_decoder_new(
        model, &(tarn_decoder_options){
                   .batch = TEXTS, .context = 30, .kv_type = kv_type, .prefill_chunk = 1 + random_below(seed, 6)});
    tarn_tensor *text[TEXTS] = {0};
    for (int round = 0; round < 12; round++) {
        int64_t one = random_below(seed, TEXTS + 1), more = 1 + random_below(seed, 5);
        bool all = one == TEXTS;
        tarn_tensor *new[TEXTS], *logits;
        for (int i = 0; i < TEXTS; i++) {
            int64_t length = text[i] ? tarn_size(text[i], 1) : 0;
            if (length + more > 30) {
                assert_true(tarn_decoder_rewind_one(decoder, i, 4));
                text[i] = tarn_slice(text[i], 1, 0, 4);
            }
            new[i] = random_tokens(seed, more, device);
            tarn_tensor *both[] = {text[i], new[i]};
            if (all || i == one)
                text[i] = text[i] ? good(tarn_concat(both, 2, 1)) : new[i];
        }
        logits = good(all ? tarn_decoder_feed(decoder, tarn_concat(new, TEXTS, 0))
                          : tarn_decoder_feed_one(decoder, one, new[one]));
        for (int i = 0; i < TEXTS; i++) {
            assert_int_equal(tarn_decoder_length_of(decoder, i), text[i] ? tarn_size(text[i], 1) : 0);
            if (all || i == one)
                assert_close(tarn_slice(logits, 0, all ? i : 0, all ? i + 1 : 1), whole(model, text[i]), tolerance);
        }
    }
    tarn_decoder_free(decoder);
    tarn_module_free(model);
}

static void sequences_of_any_length_share_a_decoder(void **state)
{
    (void)state;
    uint64_t seed = test_seed(77);
    for (int i = 0; i < 6; i++)
        grow(i % 2 ? make_llama_on(CPU) : make_on(TARN_F32, CPU), CPU, TARN_KV_MODEL, 1e-5, &seed);
}

static void the_kv_cache_may_have_lower_precision(void **state)
{
    (void)state;
    uint64_t seed = test_seed(78);
    grow(make_on(TARN_F32, CPU), CPU, TARN_KV_F32, 1e-5, &seed);
    grow(make_on(TARN_F32, CPU), CPU, TARN_KV_F16, 1e-2, &seed);
    grow(make_on(TARN_F32, CPU), CPU, TARN_KV_BF16, 8e-2, &seed);
    grow(make_on(TARN_F32, CPU), CPU, TARN_KV_Q8_0, 8e-2, &seed);
}

/* A token is decoded without the whole cache being written out in another form: what a step needs does not grow with
 * what the cache holds. */
static void a_kv_cache_of_lower_precision_is_not_expanded(void **state)
{
    (void)state;
    enum { LONG = 2048 };
    tarn_set_threads(2); /* each has memory of its own */
    const tarn_gpt2_config config = {
        .vocab_size = VOCAB, .context = LONG, .layers = 1, .heads = 16, .hidden_size = 256};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 9);
    for (tarn_kv_type kv_type = TARN_KV_BF16; kv_type <= TARN_KV_Q8_0; kv_type++) {
        tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.kv_type = kv_type});
        tarn_decoder_feed(decoder, good(tarn_zeros(TARN_SHAPE(1, LONG - 2), TARN_I64, CPU)));
        tarn_tensor *token = good(tarn_zeros(TARN_SHAPE(1, 1), TARN_I64, CPU));
        int64_t held = tarn_memory_of(CPU).used;
        tarn_stats_reset();
        good(tarn_decoder_feed(decoder, token));
        /* 4 MiB */
        int64_t more = tarn_memory_of(CPU).peak_used - held, whole = 2 * LONG * 256 * (int64_t)sizeof(float);
        assert_true(more < whole / 4);
        tarn_decoder_free(decoder);
    }
    tarn_module_free(model);
}

static void another_device_does_the_same(void **state)
{
    (void)state;
    uint64_t seed = test_seed(79);
    tarn_device there;
    if (!find_device(&there))
        skip();
    double tolerance = getenv("TARN_TEST_DEVICE") ? 1e-4 : 1e-5;
    grow(make_on(TARN_F32, there), there, TARN_KV_MODEL, tolerance, &seed);
    grow(make_llama_on(there), there, TARN_KV_MODEL, tolerance, &seed);
    grow(make_on(TARN_F32, there), there, TARN_KV_Q8_0, 8e-2, &seed);
}

/* A prompt cut into chunks has the logits of one that is not; one that fails in its last chunk leaves nothing. */
static void prompts_are_prefilled_in_chunks(void **state)
{
    (void)state;
    uint64_t seed = test_seed(80);
    tarn_module *model = make_on(TARN_F64, CPU);
    tarn_tensor *tokens = random_tokens(&seed, CONTEXT, CPU), *expected = whole(model, tokens);
    for (int64_t prefill_chunk = 1; prefill_chunk < CONTEXT + 2; prefill_chunk += 7) {
        tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.prefill_chunk = prefill_chunk});
        assert_close(good(tarn_decoder_feed(decoder, tokens)), expected, 1e-12);
        tarn_decoder_free(decoder);
    }
    tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.prefill_chunk = 3});
    good(tarn_decoder_feed(decoder, tarn_slice(tokens, 1, 0, 5)));
    const int32_t wrong[] = {1, 2, 3, 4, 5, 6, 7, VOCAB};
    assert_null(tarn_decoder_feed(decoder, tarn_from_i32(wrong, TARN_SHAPE(1, 8), CPU)));
    assert_error(TARN_ERROR_ARGUMENT, "decoder_feed: embedding");
    assert_int_equal(tarn_decoder_length(decoder), 5);
    assert_close(good(tarn_decoder_feed(decoder, tarn_slice(tokens, 1, 5, CONTEXT))), expected, 1e-12);
    tarn_decoder_free(decoder);
    tarn_module_free(model);
}

/* ---- steps that are recorded ------------------------------------------------------------------------------------- */

/* Greedy tokens [rounds] of two texts of different lengths; kernels that the host asked for in the last ten rounds. */
static int64_t write_greedily(tarn_module *model, tarn_device device, const tarn_decoder_options *options, int rounds,
                              int64_t (*tokens)[2])
{
    uint64_t seed = 5;
    int64_t before = 0;
    tarn_decoder *decoder = tarn_decoder_new(model, options);
    tarn_sampler *sampler = tarn_sampler_new(NULL);
    good(tarn_decoder_feed_one(decoder, 0, random_tokens(&seed, 9, device)));
    good(tarn_decoder_feed_one(decoder, 1, random_tokens(&seed, 3, device)));
    tarn_tensor *token = tarn_keep(tarn_ones(TARN_SHAPE(2, 1), TARN_I64, device));
    for (int i = 0; i < rounds; i++) {
        tarn_scope *scope = tarn_scope_open();
        if (i == rounds - 10)
            before = tarn_stats().kernels;
        if (i == rounds / 2)
            assert_true(tarn_decoder_rewind_one(decoder, 0, 4));
        tarn_tensor *next = tarn_keep(good(tarn_sampler_sample(sampler, tarn_decoder_feed(decoder, token))));
        tarn_scope_close(scope);
        tarn_free(token);
        token = next;
        assert_true(tarn_read(token, tokens[i], sizeof(tokens[i])));
    }
    tarn_free(token);
    tarn_sampler_free(sampler);
    tarn_decoder_free(decoder);
    return tarn_stats().kernels - before;
}

/* OpenCL's devices have no recordings. */
static bool records_steps(tarn_device device)
{
    char name[32];
    return strncmp(tarn_device_name(device, name, sizeof(name)), "opencl", 6) != 0;
}

/* Longer than the keys that the first recorded step looks at. */
static void a_captured_step_decodes_the_same(void **state)
{
    (void)state;
    enum { ROUNDS = 270 };
    static int64_t one_by_one[ROUNDS][2], recorded[ROUNDS][2];
    tarn_device there;
    if (!find_device(&there))
        skip();
    const tarn_llama_config config = {
        .vocab_size = VOCAB, .context = 400, .layers = 4, .heads = 2, .hidden_size = 8, .ffn_size = 8};
    tarn_module *model = opinionated(tarn_model_llama(&config, there, 9), there);
    for (tarn_kv_type kv_type = TARN_KV_MODEL; kv_type <= TARN_KV_Q8_0; kv_type += TARN_KV_Q8_0) {
        int64_t many =
            write_greedily(model, there, &(tarn_decoder_options){.batch = 2, .kv_type = kv_type, .no_capture = true},
                           ROUNDS, one_by_one);
        int64_t few =
            write_greedily(model, there, &(tarn_decoder_options){.batch = 2, .kv_type = kv_type}, ROUNDS, recorded);
        assert_memory_equal(recorded, one_by_one, sizeof(recorded));
        assert_true(many >= 10 * 30);
        /* the host asks for the copy of the token, and what the sampler needs */
        assert_true(few <= 10 * 10 || !records_steps(there));
    }
    tarn_module_free(model);
}

static void rewinding_all_sequences_is_all_or_none(void **state)
{
    (void)state;
    uint64_t seed = 3;
    tarn_module *model = make_on(TARN_F32, CPU);
    tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.batch = 2});
    good(tarn_decoder_feed_one(decoder, 0, random_tokens(&seed, 7, CPU)));
    good(tarn_decoder_feed_one(decoder, 1, random_tokens(&seed, 3, CPU)));
    assert_int_equal(tarn_decoder_length(decoder), 7);
    assert_false(tarn_decoder_rewind(decoder, 5));
    assert_error(TARN_ERROR_ARGUMENT, "decoder_rewind: length is 5; it must be from 0 to 3");
    assert_int_equal(tarn_decoder_length_of(decoder, 0), 7);
    assert_true(tarn_decoder_rewind(decoder, 2));
    assert_int_equal(tarn_decoder_length_of(decoder, 0), 2);
    assert_int_equal(tarn_decoder_length_of(decoder, 1), 2);
    tarn_decoder_free(decoder);
    tarn_module_free(model);
}

static void kv_types_have_names(void **state)
{
    (void)state;
    tarn_kv_type kv_type = TARN_KV_MODEL;
    for (int i = TARN_KV_MODEL; i <= TARN_KV_Q8_0; i++) {
        assert_true(tarn_kv_type_parse(tarn_kv_type_name((tarn_kv_type)i), &kv_type));
        assert_int_equal(kv_type, i);
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* On a device of its own: nobody else's memory counts. A step needs more than 5 % of a model this small, so the model
 * is not that small. */
static void device_memory_is_weights_and_cache_and_little_more(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_device there = tarn_device_parse("mirror:1");
    const tarn_gpt2_config config = {.vocab_size = 500, .context = 256, .layers = 12, .heads = 4, .hidden_size = 128};
    int64_t before = tarn_memory_of(there).used;
    tarn_module *model = tarn_model_gpt2(&config, there, 1);
    int64_t weights = tarn_memory_of(there).used - before;
    tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.prefill_chunk = 16});
    int64_t cache = tarn_memory_of(there).used - before - weights, expected = 2 * 12 * 256 * 128 * 4;
    assert_true(cache >= expected && cache <= expected + expected / 100);
    tarn_stats_reset();
    tarn_sampler *sampler = tarn_sampler_new(NULL);
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *token =
        tarn_sampler_sample(sampler, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(1, 200), TARN_I64, there)));
    for (int i = 0; i < 20; i++)
        token = good(tarn_sampler_sample(sampler, tarn_decoder_feed(decoder, token)));
    tarn_scope_close(scope);
    assert_true((double)(tarn_memory_of(there).peak_used - before) <= 1.05 * (double)(weights + cache));
    tarn_sampler_free(sampler);
    tarn_decoder_free(decoder);
    tarn_module_free(model);
}

/* The text is forgotten but for its beginning whenever it is full; after the first rounds nothing is asked from the
 * system, and nothing crosses: tokens are not read here. */
static void write_ten_thousand(tarn_device device)
{
    const tarn_gpt2_config config = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 1, .heads = 1, .hidden_size = 4};
    tarn_module *model = tarn_model_gpt2(&config, device, 1);
    tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.kv_type = TARN_KV_Q8_0});
    tarn_sampler *sampler = tarn_sampler_new(
        &(tarn_sampler_options){.temperature = 1, .top_k = 5, .repeat_penalty = 1.1, .repeat_last_n = 8});
    tarn_tensor *token = tarn_keep(tarn_zeros(TARN_SHAPE(1, 1), TARN_I64, device));
    tarn_memory memory = {0};
    tarn_counters before = {0}, after;
    int tokens = getenv("TARN_TEST_QUICK") ? 400 : 10000; /* under valgrind */
    for (int i = 0; i < tokens; i++) {
        tarn_scope *scope = tarn_scope_open();
        if (tarn_decoder_length(decoder) == CONTEXT)
            assert_true(tarn_decoder_rewind(decoder, 3));
        tarn_tensor *next = tarn_keep(good(tarn_sampler_sample(sampler, tarn_decoder_feed(decoder, token))));
        tarn_scope_close(scope);
        tarn_free(token);
        token = next;
        if (i == 199) {
            memory = tarn_memory_of(device);
            before = tarn_stats();
        }
    }
    assert_int_equal(tarn_memory_of(device).used, memory.used);
    assert_int_equal(tarn_memory_of(device).cached, memory.cached);
    assert_int_equal(tarn_memory_of(device).peak_used, memory.peak_used);
    after = tarn_stats();
    assert_int_equal(after.system_allocations, before.system_allocations);
    assert_int_equal(after.uploads, before.uploads);
    assert_int_equal(after.downloads, before.downloads);
    assert_int_equal(after.fallbacks, before.fallbacks);
    tarn_free(token);
    tarn_sampler_free(sampler);
    tarn_decoder_free(decoder);
    tarn_module_free(model);
}

static void ten_thousand_tokens_take_no_more_memory_than_a_hundred(void **state)
{
    (void)state;
    tarn_device there;
    write_ten_thousand(CPU);
    if (find_device(&there))
        write_ten_thousand(there);
}

static void an_out_of_memory_error_says_what_would_fit(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    const tarn_gpt2_config config = {.vocab_size = 4, .context = 1 << 16, .layers = 64, .heads = 1, .hidden_size = 128};
    tarn_module *model = tarn_model_gpt2(&config, tarn_device_parse("mirror:1"), 1); /* whose devices have 4 GiB */
    assert_null(tarn_decoder_new(model, &(tarn_decoder_options){.batch = 2}));
    assert_error_about(TARN_ERROR_MEMORY, "decoder_new: a KV cache of 131072 tokens takes 8192.0 MiB",
                       "with .kv_type = q8_0 all 65536 tokens would");
    tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.batch = 2, .kv_type = TARN_KV_Q8_0});
    assert_non_null(decoder);
    tarn_decoder_free(decoder);
    tarn_module_free(model);
    tarn_empty_cache(tarn_device_parse("mirror:1"));
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static void timings_are_plausible(void **state)
{
    (void)state;
    tarn_decode_timing t;
    static const struct {
        const char *model;
        tarn_dtype dtype;
        int64_t parameters, bytes;
    } cases[] = {{"gpt2", TARN_F32, 100 * 32 + 1024 * 32 + 12 * 32 * 32 + 9 * 32 + 6 * 32,
                  4 * (100 * 32 + 1024 * 32 + 12 * 32 * 32 + 15 * 32)},
                 {"smollm-135m", TARN_F32, 0, 0},
                 {"smollm-135m", TARN_Q8_0, 0, 0},
                 {"smollm-135m", TARN_Q4_K, 0, 0}};
    int64_t bytes[4];
    for (int i = 0; i < 4; i++) {
        const tarn_decode_options options = {.model = cases[i].model,
                                             .dtype = cases[i].dtype,
                                             .prompt = 5,
                                             .tokens = 3,
                                             .sequences = 2,
                                             .runs = 2,
                                             .vocab_size = 100,
                                             .layers = 1,
                                             .heads = i ? 9 : 2,
                                             .hidden_size = i ? 576 : 32};
        assert_true(tarn_decode_measure(&t, &options));
        assert_ok();
        assert_true(t.prompt_ms > 0 && t.first_ms >= t.prompt_ms && t.token_ms > 0 && t.min_token_ms <= t.token_ms);
        assert_true(t.read_bytes <= t.weight_bytes && t.peak_bytes > t.weight_bytes + t.cache_bytes);
        bytes[i] = t.weight_bytes;
        if (cases[i].parameters) {
            assert_int_equal(t.parameters, cases[i].parameters);
            assert_int_equal(t.weight_bytes, cases[i].bytes);
        }
    }
    assert_true(bytes[2] * 3 < bytes[1] && bytes[2] * 4 > bytes[1]); /* 34 bytes for 32 elements of 4 */
    /* rows of 576 are no multiple of 256, and become q8_0; those of 1536 are */
    assert_true(bytes[3] < bytes[2] && bytes[3] * 10 > bytes[2] * 7);
    assert_false(tarn_decode_measure(&t, &(tarn_decode_options){.model = "gpt2-124m", .dtype = TARN_Q4_K}));
    assert_error(TARN_ERROR_ARGUMENT, "gpt2-124m supports f32, bf16 and f16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(sequences_of_any_length_share_a_decoder),
        in_scope(the_kv_cache_may_have_lower_precision),
        in_scope(a_kv_cache_of_lower_precision_is_not_expanded),
        in_scope(another_device_does_the_same),
        in_scope(prompts_are_prefilled_in_chunks),
        in_scope(a_captured_step_decodes_the_same),
        in_scope(rewinding_all_sequences_is_all_or_none),
        in_scope(kv_types_have_names),
        in_scope(device_memory_is_weights_and_cache_and_little_more),
        in_scope(ten_thousand_tokens_take_no_more_memory_than_a_hundred),
        in_scope(timings_are_plausible),
        in_scope(an_out_of_memory_error_says_what_would_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
