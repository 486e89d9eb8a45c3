/* test_generate.c: decoding with a KV cache gives the logits of the whole sequence; samplers follow their options;
 * generation ends where it should. */
#include "support/check.h"

#define CPU tarn_device_cpu()
enum { VOCAB = 19, CONTEXT = 24 };

/* A model with an opinion: weights as GPT-2 has them at the beginning make all tokens alike. */
static tarn_module *make_on(tarn_dtype dtype, tarn_device device)
{
    const tarn_gpt2_config config = {.vocab_size = VOCAB,
                                     .context = CONTEXT,
                                     .layers = 3,
                                     .heads = 2,
                                     .hidden_size = 16,
                                     .dropout = 0.2,
                                     .dtype = dtype};
    tarn_module *model = tarn_model_gpt2(&config, device, 9);
    assert_ok();
    tarn_seed(4);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p), tarn_normal_like(p, 0, 0.25)));
    }
    assert_ok();
    return model;
}

static tarn_module *make(tarn_dtype dtype)
{
    return make_on(dtype, CPU);
}

static tarn_tensor *random_tokens(uint64_t *seed, int64_t rows, int64_t columns)
{
    int64_t values[4 * CONTEXT];
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = random_below(seed, VOCAB);
    return good(tarn_from_i64(values, TARN_SHAPE(rows, columns), CPU));
}

/* Logits [B, V] of the last token, without a cache. */
static tarn_tensor *whole(tarn_module *model, tarn_tensor *tokens)
{
    tarn_module_train(model, false);
    int64_t T = tarn_size(tokens, 1);
    tarn_tensor *last = tarn_squeeze(tarn_slice(tarn_forward(model, tokens), 1, T - 1, T), 1);
    tarn_module_train(model, true); /* decoding drops nothing out even then */
    return good(last);
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* Sequences are split at random into chunks of one or several tokens. */
static void chunks_give_the_logits_of_the_whole_sequence(void **state)
{
    (void)state;
    uint64_t seed = test_seed(31);
    static const struct {
        tarn_dtype dtype;
        double tolerance;
    } kinds[] = {{TARN_F64, 1e-12}, {TARN_F32, 1e-5}, {TARN_BF16, 0.2}};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
        for (int64_t batch = 1; batch <= 3; batch += 2) {
            tarn_scope *scope = tarn_scope_open();
            tarn_module *model = make(kinds[k].dtype);
            tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.batch = batch});
            tarn_tensor *tokens = random_tokens(&seed, batch, CONTEXT);
            assert_int_equal(tarn_decoder_capacity(decoder), CONTEXT);
            for (int64_t from = 0, to; from < CONTEXT; from = to) {
                to = from + 1 + (random_below(&seed, 2) ? random_below(&seed, CONTEXT - from) : 0);
                tarn_tensor *logits = good(tarn_decoder_feed(decoder, tarn_slice(tokens, 1, from, to)));
                assert_false(tarn_needs_grad(logits));
                assert_close(tarn_cast(logits, TARN_F64),
                             tarn_cast(whole(model, tarn_slice(tokens, 1, 0, to)), TARN_F64), kinds[k].tolerance);
                assert_int_equal(tarn_decoder_length(decoder), to);
            }
            tarn_decoder_free(decoder);
            tarn_module_free(model);
            tarn_scope_close(scope);
        }
}

static void a_full_context_is_an_error_and_leaves_the_decoder_as_it_was(void **state)
{
    (void)state;
    uint64_t seed = 5;
    tarn_module *model = make(TARN_F32);
    tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.context = 6});
    tarn_tensor *tokens = random_tokens(&seed, 1, 9);
    good(tarn_decoder_feed(decoder, tarn_slice(tokens, 1, 0, 4)));
    assert_null(tarn_decoder_feed(decoder, tarn_slice(tokens, 1, 4, 7)));
    assert_error(TARN_ERROR_SHAPE, "decoder_feed: 3 tokens after 4 exceed the context of 6");
    const int32_t wrong[] = {1, VOCAB};
    assert_null(tarn_decoder_feed(decoder, tarn_from_i32(wrong, TARN_SHAPE(1, 2), CPU)));
    assert_error(TARN_ERROR_ARGUMENT, "embedding");
    assert_int_equal(tarn_decoder_length(decoder), 4);
    assert_close(good(tarn_decoder_feed(decoder, tarn_slice(tokens, 1, 4, 6))),
                 whole(model, tarn_slice(tokens, 1, 0, 6)), 1e-5);
    tarn_decoder_free(decoder);
    tarn_module_free(model);
}

static void a_decoder_rewinds_and_continues_with_other_tokens(void **state)
{
    (void)state;
    uint64_t seed = 6;
    tarn_module *model = make(TARN_F32);
    tarn_decoder *decoder = tarn_decoder_new(model, NULL);
    tarn_tensor *a = random_tokens(&seed, 1, 8), *b = random_tokens(&seed, 1, 5);
    good(tarn_decoder_feed(decoder, a));
    assert_true(tarn_decoder_rewind(decoder, 3));
    tarn_tensor *both[] = {tarn_slice(a, 1, 0, 3), b};
    assert_close(good(tarn_decoder_feed(decoder, b)), whole(model, tarn_concat(both, 2, 1)), 1e-5);
    assert_true(tarn_decoder_rewind(decoder, 0));
    assert_close(good(tarn_decoder_feed(decoder, b)), whole(model, b), 1e-5);
    tarn_decoder_free(decoder);
    tarn_module_free(model);
}

/* After the prompt nothing is uploaded, and one token is downloaded per step. */
static void everything_stays_on_the_device(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_device there = tarn_device_parse("mirror:0");
    tarn_module *model = make_on(TARN_F32, there);
    tarn_decoder *decoder = tarn_decoder_new(model, NULL);
    tarn_sampler *sampler = tarn_sampler_new(&(tarn_sampler_options){.temperature = 1, .top_k = 5, .top_p = 0.9});
    tarn_tensor *token =
        good(tarn_sampler_sample(sampler, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(1, 4), TARN_I64, there))));
    tarn_counters before = tarn_stats();
    token = good(tarn_sampler_sample(sampler, tarn_decoder_feed(decoder, token)));
    tarn_counters after = tarn_stats();
    assert_int_equal(after.uploads, before.uploads);
    assert_int_equal(after.downloads, before.downloads);
    assert_int_equal(after.fallbacks, before.fallbacks);
    assert_true(tarn_item(token) >= 0);
    tarn_sampler_free(sampler);
    tarn_decoder_free(decoder);
    tarn_module_free(model);
}

/* ---- sampling ---------------------------------------------------------------------------------------------------- */

enum { DRAWS = 20000, TOKENS = 6 };

/* How often each token comes from the logits, in DRAWS draws. */
static void count_draws(const tarn_sampler_options *options, const float *logits, double share[TOKENS])
{
    static int64_t token[DRAWS];
    tarn_sampler *sampler = tarn_sampler_new(options);
    tarn_tensor *rows = tarn_expand(tarn_from_f32(logits, TARN_SHAPE(1, TOKENS), CPU), TARN_SHAPE(DRAWS, TOKENS));
    assert_true(tarn_read(good(tarn_sampler_sample(sampler, rows)), token, sizeof(token)));
    for (int i = 0; i < TOKENS; i++)
        share[i] = 0;
    for (int i = 0; i < DRAWS; i++)
        share[token[i]]++;
    for (int i = 0; i < TOKENS; i++)
        share[i] /= DRAWS;
    tarn_sampler_free(sampler);
}

static void samples_follow_temperature_top_k_and_top_p(void **state)
{
    (void)state;
    /* probabilities 0.4, 0.05, 0.3, 0.05, 0, 0.2 */
    const float logits[TOKENS] = {logf(0.4f), logf(0.05f), logf(0.3f), logf(0.05f), -INFINITY, logf(0.2f)};
    static const struct {
        tarn_sampler_options options;
        double expected[TOKENS];
    } cases[] = {
        {{.temperature = 1, .seed = 1}, {0.4, 0.05, 0.3, 0.05, 0, 0.2}},
        {{.temperature = 0.5, .seed = 2},
         {0.16 / 0.295, 0.0025 / 0.295, 0.09 / 0.295, 0.0025 / 0.295, 0, 0.04 / 0.295}},
        {{.temperature = 1, .top_k = 2, .seed = 3}, {4.0 / 7, 0, 3.0 / 7, 0, 0, 0}},
        {{.temperature = 1, .top_k = 1, .seed = 4}, {1, 0, 0, 0, 0, 0}},
        {{.temperature = 1, .top_k = 100, .seed = 5}, {0.4, 0.05, 0.3, 0.05, 0, 0.2}},
        {{.temperature = 1, .top_p = 0.65, .seed = 6}, {4.0 / 7, 0, 3.0 / 7, 0, 0, 0}},
        {{.temperature = 1, .top_p = 0.75, .seed = 7}, {4.0 / 9, 0, 3.0 / 9, 0, 0, 2.0 / 9}},
        {{.temperature = 1, .top_p = 1e-9, .seed = 8}, {1, 0, 0, 0, 0, 0}},
        {{.temperature = 1, .top_k = 2, .top_p = 0.9, .seed = 9},
         {4.0 / 7, 0, 3.0 / 7, 0, 0, 0}}, /* of what top_k leaves */
        {{.temperature = 1e-4, .seed = 10}, {1, 0, 0, 0, 0, 0}},
        {{.temperature = 0}, {1, 0, 0, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double share[TOKENS];
        count_draws(&cases[i].options, logits, share);
        for (int k = 0; k < TOKENS; k++) {
            double p = cases[i].expected[k], five = 5 * sqrt(p * (1 - p) / DRAWS);
            if (!(fabs(share[k] - p) <= five))
                fail_msg("case %zu: token %d has a share of %g, not %g within %g", i, k, share[k], p, five);
        }
    }
}

static void the_same_seed_samples_the_same_and_the_thread_s_generator_is_unused(void **state)
{
    (void)state;
    tarn_tensor *logits = tarn_zeros(TARN_SHAPE(40, 1000), TARN_F32, CPU), *drawn[3];
    tarn_seed(8);
    double next = tarn_item(tarn_uniform(TARN_SCALAR, 0, 1, TARN_F32, CPU));
    tarn_seed(8);
    tarn_sampler *sampler[3];
    for (int i = 0; i < 3; i++) {
        sampler[i] = tarn_sampler_new(&(tarn_sampler_options){.temperature = 1, .seed = i < 2 ? 77 : 78});
        drawn[i] = good(tarn_sampler_sample(sampler[i], logits));
    }
    assert_true(tarn_item(tarn_uniform(TARN_SCALAR, 0, 1, TARN_F32, CPU)) == next);
    assert_close(drawn[0], drawn[1], 0);
    assert_true(tarn_item(tarn_sum(tarn_ne(drawn[0], drawn[2]), TARN_ALL_AXES, false)) > 30);
    assert_true(tarn_item(tarn_sum(tarn_ne(drawn[0], good(tarn_sampler_sample(sampler[0], logits))), TARN_ALL_AXES,
                                   false)) > 30);
    for (int i = 0; i < 3; i++)
        tarn_sampler_free(sampler[i]);
}

static void logits_that_are_not_finite_are_marked(void **state)
{
    (void)state;
    const float logits[] = {0, 1,         2,         0,         NAN,       2, 0,        INFINITY,
                            2, -INFINITY, -INFINITY, -INFINITY, -INFINITY, 1, -INFINITY};
    for (int i = 0; i < 4; i++) {
        tarn_sampler *sampler = tarn_sampler_new(
            &(tarn_sampler_options){.temperature = i ? 1e-4 : 0, .top_k = i == 2, .top_p = i == 3 ? 0.5 : 0});
        expect(good(tarn_sampler_sample(sampler, tarn_from_f32(logits, TARN_SHAPE(5, 3), CPU))), TARN_SHAPE(5, 1),
               VALUES(2, -1, -1, -1, 1));
        tarn_sampler_free(sampler);
    }
}

static void half_precision_logits_are_sampled_too(void **state)
{
    (void)state;
    tarn_sampler *sampler = tarn_sampler_new(NULL);
    expect(good(tarn_sampler_sample(sampler, tarn_cast(tarn_reshape(vector(1, 3, 2), TARN_SHAPE(1, 3)), TARN_BF16))),
           TARN_SHAPE(1, 1), VALUES(1));
    tarn_sampler_free(sampler);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Greedy decoding, step by step, without a cache. */
static void greedy(tarn_module *model, const int32_t *prompt, int64_t count, int32_t *made, int64_t most)
{
    int32_t text[CONTEXT];
    memcpy(text, prompt, sizeof(int32_t) * (size_t)count);
    for (int64_t i = 0; i < most; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *logits = whole(model, tarn_from_i32(text, TARN_SHAPE(1, count + i), CPU));
        text[count + i] = made[i] = (int32_t)tarn_item(tarn_argmax(logits, 1, false));
        tarn_scope_close(scope);
    }
}

static void greedy_generation_takes_the_argmax_of_each_step(void **state)
{
    (void)state;
    const int32_t prompt[] = {3, 1, 4};
    int32_t expected[CONTEXT], found[CONTEXT];
    tarn_module *model = make(TARN_F64);
    greedy(model, prompt, 3, expected, CONTEXT - 3);
    assert_int_equal(tarn_generate(model, prompt, 3, found, NULL), CONTEXT - 3); /* as much as there is room for */
    assert_memory_equal(found, expected, sizeof(int32_t) * (CONTEXT - 3));
    assert_int_equal(tarn_generate(model, prompt, 3, found, &(tarn_generate_options){.max_tokens = 5}), 5);
    assert_memory_equal(found, expected, sizeof(int32_t) * 5);
    tarn_module_free(model);
}

typedef struct listening {
    int32_t heard[CONTEXT];
    int count, most;
} listening;

static bool listen(int32_t token, void *ctx)
{
    listening *l = ctx;
    l->heard[l->count++] = token;
    return l->count < l->most;
}

static void a_sequence_ends_at_a_stop_token_or_when_the_callback_says_so(void **state)
{
    (void)state;
    const int32_t prompt[] = {3, 1, 4};
    int32_t expected[CONTEXT], found[CONTEXT], stop[2];
    tarn_module *model = make(TARN_F32);
    int64_t first = 6;
    greedy(model, prompt, 3, expected, CONTEXT - 3);
    for (int64_t i = 0; i < first; i++) /* where the text has that token for the first time */
        if (expected[i] == expected[first])
            first = i;
    stop[0] = -5; /* comes never */
    stop[1] = expected[first];
    assert_int_equal(tarn_generate(model, prompt, 3, found, &(tarn_generate_options){.stop = stop, .stop_count = 2}),
                     first);
    assert_memory_equal(found, expected, sizeof(int32_t) * (size_t)first);

    listening l = {.most = 4};
    assert_int_equal(tarn_generate(model, prompt, 3, NULL, &(tarn_generate_options){.on_token = listen, .ctx = &l}), 4);
    assert_int_equal(l.count, 4);
    assert_memory_equal(l.heard, expected, sizeof(int32_t) * 4);
    tarn_module_free(model);
}

static void eos_ends_a_sequence(void **state)
{
    (void)state;
    const int32_t prompt[] = {2};
    int32_t found[8];
    tarn_gpt2_config config = {
        .vocab_size = 4, .context = 8, .layers = 1, .heads = 1, .hidden_size = 4, .has_eos = true, .eos = 3};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 1);
    /* All tokens look alike but the last, which fits whatever the last norm adds. */
    tarn_fill_inplace(tarn_requires_grad(tarn_module_find(model, "transformer.wte.weight"), false), 0);
    tarn_fill_inplace(tarn_slice(tarn_module_find(model, "transformer.wte.weight"), 0, 3, 4), 1);
    tarn_fill_inplace(tarn_requires_grad(tarn_module_find(model, "transformer.ln_f.bias"), false), 5);
    assert_ok();
    assert_int_equal(tarn_generate(model, prompt, 1, found, NULL), 0);
    assert_int_equal(tarn_generate(model, prompt, 1, found, &(tarn_generate_options){.ignore_eos = true}), 7);
    assert_int_equal(found[6], 3);
    tarn_module_free(model);
}

static void the_same_seed_generates_the_same_tokens(void **state)
{
    (void)state;
    const int32_t prompt[] = {3, 1, 4};
    int32_t text[3][CONTEXT];
    tarn_module *model = make(TARN_F32);
    for (int i = 0; i < 3; i++) {
        tarn_set_threads(i == 1 ? 3 : 1);
        assert_int_equal(tarn_generate(model, prompt, 3, text[i],
                                       &(tarn_generate_options){
                                           .temperature = 2, .top_k = 15, .top_p = 0.95, .seed = i < 2 ? 5 : 6}),
                         CONTEXT - 3);
    }
    assert_memory_equal(text[0], text[1], sizeof(int32_t) * (CONTEXT - 3));
    assert_memory_not_equal(text[0], text[2], sizeof(int32_t) * (CONTEXT - 3));
    tarn_module_free(model);
}

static void non_finite_weights_are_an_error(void **state)
{
    (void)state;
    const int32_t prompt[] = {3, 1, 4};
    int32_t text[CONTEXT];
    tarn_module *model = make(TARN_F32);
    tarn_fill_inplace(tarn_requires_grad(tarn_module_find(model, "transformer.ln_f.bias"), false), NAN);
    assert_int_equal(tarn_generate(model, prompt, 3, text, NULL), -1);
    assert_error(TARN_ERROR_FORMAT, "generate: the logits of token 3 are not finite");
    tarn_module_free(model);
}

/* ---- without memory ---------------------------------------------------------------------------------------------- */

static void a_failed_allocation_anywhere_leaves_nothing_behind(void **state)
{
    (void)state;
    const int32_t prompt[] = {1, 2};
    int32_t text[4];
    tarn_empty_cache(CPU);
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    allocations_left = 1000000;
    const tarn_gpt2_config config = {.vocab_size = 5, .context = 4, .layers = 1, .heads = 1, .hidden_size = 4};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 1);
    int64_t made = -1;
    for (int room = 0; made < 0 && room < 20000; room++) {
        allocations_left = room;
        made = tarn_generate(model, prompt, 2, text, &(tarn_generate_options){.temperature = 1, .top_p = 0.9});
        tarn_code code = tarn_error_code();
        allocations_left = 1000000;
        tarn_clear_error();
        assert_true(made > 0 || code == TARN_ERROR_MEMORY);
        tarn_empty_cache(CPU);
    }
    assert_int_equal(made, 2);
    tarn_module_free(model);
    tarn_empty_cache(CPU);
    if (!tarn_set_allocator(NULL)) /* which it refuses while memory is out */
        fail_msg("%s", tarn_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_failed_allocation_anywhere_leaves_nothing_behind,
                               clear_error), /* first: nothing holds memory yet */
        in_scope(chunks_give_the_logits_of_the_whole_sequence),
        in_scope(a_full_context_is_an_error_and_leaves_the_decoder_as_it_was),
        in_scope(a_decoder_rewinds_and_continues_with_other_tokens),
        in_scope(everything_stays_on_the_device),
        in_scope(samples_follow_temperature_top_k_and_top_p),
        in_scope(the_same_seed_samples_the_same_and_the_thread_s_generator_is_unused),
        in_scope(logits_that_are_not_finite_are_marked),
        in_scope(half_precision_logits_are_sampled_too),
        in_scope(greedy_generation_takes_the_argmax_of_each_step),
        in_scope(a_sequence_ends_at_a_stop_token_or_when_the_callback_says_so),
        in_scope(eos_ends_a_sequence),
        in_scope(the_same_seed_generates_the_same_tokens),
        in_scope(non_finite_weights_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
