/* test_bad_input_generate.c: invalid arguments of decoders, embedders, samplers and generators. */
#include "support/refuse.h"

#define CPU tarn_device_cpu()

static const tarn_gpt2_config small = {.vocab_size = 7, .context = 5, .layers = 1, .heads = 2, .hidden_size = 4};

static void decoders(void **state)
{
    (void)state;
    tarn_module *model = tarn_model_gpt2(&small, CPU, 1), *other = tarn_linear(2, 2, CPU);
    tarn_decoder *decoder = tarn_decoder_new(model, NULL);
    tarn_tensor *one = tarn_zeros(TARN_SHAPE(1, 1), TARN_I32, CPU);
    REFUSE(tarn_decoder_new, tarn_decoder_new(NULL, NULL));
    REFUSE(tarn_decoder_new, tarn_decoder_new(other, NULL));
    REFUSE(tarn_decoder_new, tarn_decoder_new(model, &(tarn_decoder_options){.batch = -1}));
    REFUSE(tarn_decoder_new, tarn_decoder_new(model, &(tarn_decoder_options){.batch = INT64_MAX}));
    REFUSE(tarn_decoder_new, tarn_decoder_new(model, &(tarn_decoder_options){.context = -1}));
    REFUSE(tarn_decoder_new, tarn_decoder_new(model, &(tarn_decoder_options){.context = 6}));
    REFUSE(tarn_decoder_new, tarn_decoder_new(model, &(tarn_decoder_options){.prefill_chunk = -1}));
    REFUSE(tarn_decoder_new, tarn_decoder_new(model, &(tarn_decoder_options){.kv_type = (tarn_kv_type)5}));
    REFUSE(tarn_decoder_new, tarn_decoder_new(model, &(tarn_decoder_options){.kv_type = (tarn_kv_type)-1}));
    REFUSE(tarn_decoder_new, tarn_decoder_new_sized(other, NULL, 0));
    REFUSE(tarn_decoder_feed_one, tarn_decoder_feed_one(NULL, 0, one));
    REFUSE(tarn_decoder_feed_one, tarn_decoder_feed_one(decoder, 1, one));
    REFUSE(tarn_decoder_feed_one, tarn_decoder_feed_one(decoder, -1, one));
    REFUSE(tarn_decoder_feed_one, tarn_decoder_feed_one(decoder, 0, NULL));
    REFUSE(tarn_decoder_feed_one, tarn_decoder_feed_one(decoder, 0, tarn_zeros(TARN_SHAPE(1, 6), TARN_I32, CPU)));
    REFUSE(tarn_decoder_feed_one, tarn_decoder_feed_one(decoder, 0, tarn_zeros(TARN_SHAPE(2, 1), TARN_I32, CPU)));
    REFUSE(tarn_decoder_length_of, tarn_decoder_length_of(NULL, 0));
    REFUSE(tarn_decoder_length_of, tarn_decoder_length_of(decoder, 1));
    REFUSE(tarn_decoder_rewind_one, tarn_decoder_rewind_one(NULL, 0, 0));
    REFUSE(tarn_decoder_rewind_one, tarn_decoder_rewind_one(decoder, 1, 0));
    REFUSE(tarn_decoder_rewind_one, tarn_decoder_rewind_one(decoder, 0, 1));
    REFUSE(tarn_decoder_rewind_one, tarn_decoder_rewind_one(decoder, 0, -1));
    tarn_kv_type kv_type;
    REFUSE(tarn_kv_type_name, tarn_kv_type_name((tarn_kv_type)5));
    REFUSE(tarn_kv_type_parse, tarn_kv_type_parse("f64", &kv_type));
    REFUSE(tarn_kv_type_parse, tarn_kv_type_parse(NULL, &kv_type));
    REFUSE(tarn_kv_type_parse, tarn_kv_type_parse("f32", NULL));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(NULL, one));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, NULL));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(1), TARN_I32, CPU)));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(2, 1), TARN_I32, CPU)));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(1, 0), TARN_I32, CPU)));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(1, 6), TARN_I32, CPU)));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(1, 1), TARN_F32, CPU)));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_full(TARN_SHAPE(1, 1), 7, TARN_I32, CPU)));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_full(TARN_SHAPE(1, 1), -1, TARN_I64, CPU)));
    REFUSE(tarn_decoder_length, tarn_decoder_length(NULL));
    REFUSE(tarn_decoder_capacity, tarn_decoder_capacity(NULL));
    REFUSE(tarn_decoder_rewind, tarn_decoder_rewind(NULL, 0));
    REFUSE(tarn_decoder_rewind, tarn_decoder_rewind(decoder, 1));
    REFUSE(tarn_decoder_rewind, tarn_decoder_rewind(decoder, -1));
    ACCEPT(tarn_decoder_free(NULL));
    assert_int_equal(tarn_decoder_length(decoder), 0);
    tarn_decoder_free(decoder);
    tarn_module_free(model);
    tarn_module_free(other);
}

static void embedders(void **state)
{
    (void)state;
    tarn_module *model = tarn_model_gpt2(&small, CPU, 1), *other = tarn_linear(2, 2, CPU);
    tarn_embedder *embedder = tarn_embedder_new(model, &(tarn_embedder_options){.context = 3, .prefill_chunk = 2});
    float values[4];
    REFUSE(tarn_embedder_new, tarn_embedder_new(NULL, NULL));
    REFUSE(tarn_embedder_new, tarn_embedder_new(other, NULL));
    REFUSE(tarn_embedder_new, tarn_embedder_new(model, &(tarn_embedder_options){.context = 6}));
    REFUSE(tarn_embedder_new, tarn_embedder_new(model, &(tarn_embedder_options){.prefill_chunk = -1}));
    REFUSE(tarn_embedder_new, tarn_embedder_new(model, &(tarn_embedder_options){.kv_type = (tarn_kv_type)5}));
    REFUSE(tarn_embedder_new, tarn_embedder_new_sized(other, NULL, 0));
    REFUSE(tarn_embedder_begin, tarn_embedder_begin(NULL, (int32_t[]){1}, 1));
    REFUSE(tarn_embedder_begin, tarn_embedder_begin(embedder, NULL, 1));
    REFUSE(tarn_embedder_begin, tarn_embedder_begin(embedder, (int32_t[]){1}, 0));
    REFUSE(tarn_embedder_begin, tarn_embedder_begin(embedder, (int32_t[]){1, 1, 1, 1}, 4));
    REFUSE(tarn_embedder_begin, tarn_embedder_begin(embedder, (int32_t[]){7}, 1));
    REFUSE(tarn_embedder_begin, tarn_embedder_begin(embedder, (int32_t[]){-1}, 1));
    REFUSE(tarn_embedder_step, tarn_embedder_step(NULL));
    REFUSE(tarn_embedder_step, tarn_embedder_step(embedder));
    REFUSE(tarn_embedder_read, tarn_embedder_read(embedder, values, 4));
    assert_true(tarn_embedder_begin(embedder, (int32_t[]){1, 2, 3}, 3));
    assert_int_equal(tarn_embedder_step(embedder), 1);
    REFUSE(tarn_embedder_read, tarn_embedder_read(embedder, values, 4));
    assert_int_equal(tarn_embedder_step(embedder), 0);
    REFUSE(tarn_embedder_read, tarn_embedder_read(NULL, values, 4));
    REFUSE(tarn_embedder_read, tarn_embedder_read(embedder, NULL, 4));
    REFUSE(tarn_embedder_read, tarn_embedder_read(embedder, values, 3));
    ACCEPT(tarn_embedder_free(NULL));
    tarn_embedder_free(embedder);
    tarn_module_free(other);
    tarn_module_free(model);
}

static void samplers(void **state)
{
    (void)state;
    tarn_sampler *sampler = tarn_sampler_new(NULL);
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.temperature = -1}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.temperature = 101}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.temperature = 1e-300}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.temperature = NAN}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.top_k = -1}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.top_p = 1.1}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.top_p = -0.1}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.frequency_penalty = -101}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.presence_penalty = NAN}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.logit_bias_count = -1}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.logit_bias_count = 1}));
    REFUSE(tarn_sampler_new,
           tarn_sampler_new(&(tarn_sampler_options){.logit_bias = &(tarn_logit_bias){-1, 0}, .logit_bias_count = 1}));
    REFUSE(tarn_sampler_new,
           tarn_sampler_new(&(tarn_sampler_options){.logit_bias = &(tarn_logit_bias){0, 101}, .logit_bias_count = 1}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.min_p = 1.1}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.min_p = -0.1}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.min_p = NAN}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.repeat_penalty = -1}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.repeat_penalty = 101}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.repeat_penalty = NAN}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.repeat_last_n = -1}));
    tarn_tensor *two = tarn_zeros(TARN_SHAPE(2, 1), TARN_I32, CPU),
                *logits = tarn_zeros(TARN_SHAPE(2, 3), TARN_F32, CPU);
    REFUSE(tarn_sampler_accept, tarn_sampler_accept(NULL, two));
    REFUSE(tarn_sampler_accept, tarn_sampler_accept(sampler, NULL));
    REFUSE(tarn_sampler_accept, tarn_sampler_accept(sampler, logits));
    REFUSE(tarn_sampler_accept, tarn_sampler_accept(sampler, tarn_zeros(TARN_SHAPE(2), TARN_I32, CPU)));
    REFUSE(tarn_sampler_accept, tarn_sampler_accept(sampler, tarn_zeros(TARN_SHAPE(1, 0), TARN_I32, CPU)));
    REFUSE(tarn_sampler_reset, tarn_sampler_reset(NULL));
    const uint32_t mask = 1;
    REFUSE(tarn_sampler_mask, tarn_sampler_mask(NULL, &mask, 1, 1));
    REFUSE(tarn_sampler_mask, tarn_sampler_mask(sampler, &mask, 0, 1));
    REFUSE(tarn_sampler_mask, tarn_sampler_mask(sampler, &mask, 1, -1));
    ACCEPT(tarn_sampler_mask(sampler, NULL, 0, 0));
    REFUSE(tarn_token_logprobs, tarn_token_logprobs(NULL, two, 1));
    REFUSE(tarn_token_logprobs, tarn_token_logprobs(logits, NULL, 1));
    REFUSE(tarn_token_logprobs, tarn_token_logprobs(logits, two, 4));
    REFUSE(tarn_token_logprobs, tarn_token_logprobs(logits, two, -1));
    REFUSE(tarn_token_logprobs, tarn_token_logprobs(logits, tarn_zeros(TARN_SHAPE(1, 1), TARN_I32, CPU), 1));
    REFUSE(tarn_token_logprobs, tarn_token_logprobs(logits, tarn_full(TARN_SHAPE(2, 1), 3, TARN_I32, CPU), 1));
    REFUSE(tarn_token_logprobs, tarn_token_logprobs(two, two, 1));
    const tarn_sampler_options nan = {.top_p = NAN};
    REFUSE(tarn_sampler_new, tarn_sampler_new_sized(&nan, sizeof(nan)));
    REFUSE(tarn_sampler_sample, tarn_sampler_sample(NULL, vector(1)));
    REFUSE(tarn_sampler_sample, tarn_sampler_sample(sampler, NULL));
    REFUSE(tarn_sampler_sample, tarn_sampler_sample(sampler, vector(1, 2)));
    REFUSE(tarn_sampler_sample, tarn_sampler_sample(sampler, tarn_zeros(TARN_SHAPE(1, 0), TARN_F32, CPU)));
    REFUSE(tarn_sampler_sample, tarn_sampler_sample(sampler, tarn_zeros(TARN_SHAPE(0, 3), TARN_F32, CPU)));
    REFUSE(tarn_sampler_sample, tarn_sampler_sample(sampler, tarn_zeros(TARN_SHAPE(1, 3), TARN_I32, CPU)));
    ACCEPT(tarn_sampler_free(NULL));
    tarn_sampler_free(sampler);
}

static bool broken(int32_t token, void *ctx)
{
    (void)token, (void)ctx;
    return tarn_set_error(TARN_ERROR_IO, "the pipe is closed");
}

static void generation(void **state)
{
    (void)state;
    const int32_t prompt[] = {1, 2, 3, 4, 5, 6}, outside[] = {1, 7}, negative[] = {-1};
    int32_t made[5];
    tarn_module *model = tarn_model_gpt2(&small, CPU, 1), *other = tarn_linear(2, 2, CPU);
    REFUSE(tarn_generate, tarn_generate(NULL, prompt, 2, made, NULL));
    REFUSE(tarn_generate, tarn_generate(other, prompt, 2, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, NULL, 2, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 0, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, prompt, -1, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 5, made, NULL)); /* no room left */
    REFUSE(tarn_generate, tarn_generate(model, prompt, 6, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, outside, 2, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, negative, 1, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.max_tokens = 4}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.max_tokens = -1}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.temperature = -1}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.top_k = -1}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.top_p = 2}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.stop_count = 1}));
    REFUSE(tarn_generate,
           tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.stop = prompt, .stop_count = -1}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.on_token = broken}));
    REFUSE(tarn_generate, tarn_generate_sized(other, prompt, 2, made, NULL, 0));
    tarn_module_free(model);
    tarn_module_free(other);
}

static void benchmarks(void **state)
{
    (void)state;
    tarn_decode_timing timing;
    REFUSE(tarn_decode_measure, tarn_decode_measure(&timing, NULL));
    REFUSE(tarn_decode_measure,
           tarn_decode_measure_sized(NULL, 0, &(tarn_decode_options){.model = "gpt2"}, sizeof(tarn_decode_options)));
    REFUSE(tarn_decode_measure, tarn_decode_measure(&timing, &(tarn_decode_options){0}));
    REFUSE(tarn_decode_measure, tarn_decode_measure(&timing, &(tarn_decode_options){.model = "gpt9"}));
    REFUSE(tarn_decode_measure,
           tarn_decode_measure(&timing, &(tarn_decode_options){.model = "gpt2", .dtype = TARN_I32}));
    REFUSE(tarn_decode_measure,
           tarn_decode_measure(&timing, &(tarn_decode_options){.model = "gpt2", .dtype = (tarn_dtype)99}));
    REFUSE(tarn_decode_measure, tarn_decode_measure(&timing, &(tarn_decode_options){.model = "gpt2", .prompt = 1024}));
    REFUSE(tarn_decode_measure, tarn_decode_measure(&timing, &(tarn_decode_options){.model = "gpt2", .prompt = -1}));
    REFUSE(tarn_decode_measure, tarn_decode_measure(&timing, &(tarn_decode_options){.model = "gpt2", .tokens = -1}));
    REFUSE(tarn_decode_measure,
           tarn_decode_measure(&timing, &(tarn_decode_options){.model = "gpt2", .sequences = 2000}));
    REFUSE(tarn_decode_measure, tarn_decode_measure(&timing, &(tarn_decode_options){.model = "gpt2", .runs = 200}));
}

static void splits(void **state)
{
    (void)state;
    const tarn_device one[] = {tarn_device_cpu()}, nowhere[] = {{6, 0}}, twice[] = {one[0], one[0]};
    tarn_model_split split;
    REFUSE(tarn_model_plan_split, tarn_model_plan_split(NULL, one, 1, &split, NULL));
    REFUSE(tarn_model_plan_split, tarn_model_plan_split("no such folder", one, 1, &split, NULL));
    REFUSE(tarn_model_plan_split, tarn_model_plan_split("folder", NULL, 1, &split, NULL));
    REFUSE(tarn_model_plan_split, tarn_model_plan_split_sized("folder", one, 0, &split, sizeof(split), NULL, 0));
    REFUSE(tarn_model_plan_split, tarn_model_plan_split("folder", one, 17, &split, NULL));
    REFUSE(tarn_model_plan_split, tarn_model_plan_split("folder", one, 1, NULL, NULL));
    REFUSE(tarn_model_plan_split, tarn_model_plan_split("folder", nowhere, 1, &split, NULL));
    REFUSE(tarn_model_plan_split, tarn_model_plan_split("folder", twice, 2, &split, NULL));
    REFUSE(tarn_model_plan_split,
           tarn_model_plan_split("folder", one, 1, &split, &(tarn_model_split_options){.kv_tokens = -2}));
    REFUSE(tarn_model_plan_split, tarn_model_plan_split("folder", one, 1, &split,
                                                        &(tarn_model_split_options){.tensor_split = (double[]){-1}}));
    REFUSE(tarn_kv_type_name,
           tarn_model_plan_split("folder", one, 1, &split, &(tarn_model_split_options){.kv_type = 99}));
}

static void generators(void **state)
{
    (void)state;
    const int32_t prompt[] = {1, 2, 3, 4, 5, 6}, outside[] = {1, 7};
    const char *const empty[] = {""}, *const none[] = {NULL}, *const stop[] = {"x"};
    int64_t count;
    tarn_output output;
    tarn_module *model = tarn_model_gpt2(&small, CPU, 1), *other = tarn_linear(2, 2, CPU);
    tarn_tokenizer *letters = tarn_tokenizer_bytes();
    REFUSE(tarn_generator_new, tarn_generator_new(NULL, NULL, NULL));
    REFUSE(tarn_generator_new, tarn_generator_new(other, NULL, NULL));
    REFUSE(tarn_generator_new, tarn_generator_new(model, NULL, &(tarn_generator_options){.sequences = -1}));
    REFUSE(tarn_generator_new, tarn_generator_new(model, NULL, &(tarn_generator_options){.context = 6}));
    REFUSE(tarn_generator_new, tarn_generator_new(model, NULL, &(tarn_generator_options){.kv_type = (tarn_kv_type)9}));
    REFUSE(tarn_generator_new, tarn_generator_new_sized(model, NULL, &(tarn_generator_options){.sequences = 1 << 20},
                                                        sizeof(tarn_generator_options)));
    REFUSE(tarn_generator_open, tarn_generator_open(NULL, CPU, NULL));
    REFUSE(tarn_generator_open, tarn_generator_open("/nonexistent", CPU, NULL));
    REFUSE(tarn_generator_open,
           tarn_generator_open_sized("/nonexistent", CPU, &(tarn_generator_options){.sequences = -1},
                                     sizeof(tarn_generator_options)));
    tarn_generator *numbers = tarn_generator_new(model, NULL, NULL),
                   *generator = tarn_generator_new(model, letters, &(tarn_generator_options){.sequences = 2});
    REFUSE(tarn_generator_model, tarn_generator_model(NULL));
    REFUSE(tarn_generator_tokenizer, tarn_generator_tokenizer(NULL));
    REFUSE(tarn_generator_prompt, tarn_generator_prompt(NULL, 0, prompt, 1, NULL));
    REFUSE(tarn_generator_prompt, tarn_generator_prompt(generator, 2, prompt, 1, NULL));
    REFUSE(tarn_generator_prompt, tarn_generator_prompt(generator, 0, NULL, 1, NULL));
    REFUSE(tarn_generator_prompt, tarn_generator_prompt(generator, 0, prompt, 0, NULL));
    REFUSE(tarn_generator_prompt, tarn_generator_prompt(generator, 0, prompt, 5, NULL));
    REFUSE(tarn_generator_prompt, tarn_generator_prompt(generator, 0, outside, 2, NULL));
    REFUSE(tarn_generator_prompt,
           tarn_generator_prompt(generator, 0, prompt, 2, &(tarn_generate_options){.prompt_logprobs = true}));
    REFUSE(tarn_generator_prompt,
           tarn_generator_prompt(generator, 0, prompt, 2, &(tarn_generate_options){.prompt_only = true}));
    REFUSE(tarn_generator_prompt,
           tarn_generator_prompt(generator, 0, prompt, 2, &(tarn_generate_options){.cache_salt = 1}));
    REFUSE(tarn_generator_prompt,
           tarn_generator_prompt(generator, 0, prompt, 2, &(tarn_generate_options){.max_tokens = 4}));
    REFUSE(tarn_generator_prompt, tarn_generator_prompt(generator, 0, prompt, 2, &(tarn_generate_options){.min_p = 2}));
    REFUSE(tarn_generator_prompt,
           tarn_generator_prompt(generator, 0, prompt, 2, &(tarn_generate_options){.repeat_penalty = -2}));
    REFUSE(tarn_generator_prompt,
           tarn_generator_prompt(generator, 0, prompt, 2, &(tarn_generate_options){.top_logprobs = 8}));
    REFUSE(tarn_generator_prompt,
           tarn_generator_prompt(generator, 0, prompt, 2, &(tarn_generate_options){.top_logprobs = -1}));
    REFUSE(tarn_generator_prompt,
           tarn_generator_prompt(generator, 0, prompt, 2, &(tarn_generate_options){.stop_string_count = 1}));
    REFUSE(tarn_generator_prompt,
           tarn_generator_prompt(generator, 0, prompt, 2,
                                 &(tarn_generate_options){.stop_strings = empty, .stop_string_count = 1}));
    REFUSE(tarn_generator_prompt,
           tarn_generator_prompt(generator, 0, prompt, 2,
                                 &(tarn_generate_options){.stop_strings = none, .stop_string_count = 1}));
    REFUSE(tarn_generator_prompt,
           tarn_generator_prompt(numbers, 0, prompt, 2,
                                 &(tarn_generate_options){.stop_strings = stop, .stop_string_count = 1}));
    REFUSE(tarn_generator_prompt, tarn_generator_prompt_sized(numbers, 0, prompt, -1, NULL, 0));
    REFUSE(tarn_generator_prompt_text, tarn_generator_prompt_text(NULL, 0, "a", 1, NULL));
    REFUSE(tarn_generator_prompt_text, tarn_generator_prompt_text(numbers, 0, "a", 1, NULL));
    REFUSE(tarn_generator_prompt_text, tarn_generator_prompt_text(generator, 0, NULL, 1, NULL));
    REFUSE(tarn_generator_prompt_text, tarn_generator_prompt_text(generator, 0, "", 0, NULL));
    /* whose token the model does not have */
    REFUSE(tarn_generator_prompt_text, tarn_generator_prompt_text(generator, 0, "a", 1, NULL));
    REFUSE(tarn_generator_prompt_text, tarn_generator_prompt_text_sized(generator, 3, "a", 1, NULL, 0));
    REFUSE(tarn_generator_next, tarn_generator_next(NULL, &output));
    REFUSE(tarn_generator_next, tarn_generator_next_sized(generator, NULL, sizeof(output)));
    REFUSE(tarn_generator_tokens, tarn_generator_tokens(NULL, 0, &count));
    REFUSE(tarn_generator_tokens, tarn_generator_tokens(generator, 2, &count));
    REFUSE(tarn_generator_tokens, tarn_generator_tokens(generator, 0, NULL));
    REFUSE(tarn_generator_stop, tarn_generator_stop(NULL, 0));
    REFUSE(tarn_generator_stop, tarn_generator_stop(generator, -1));
    REFUSE(tarn_generator_query_sized, tarn_generator_query(NULL, &(tarn_generator_stats){0}));
    REFUSE(tarn_generator_query_sized, tarn_generator_query(generator, NULL));
    assert_false(tarn_generator_next(generator, &output)); /* nothing was begun: no error */
    tarn_generator_prompt(generator, 0, prompt, 1, NULL);
    tarn_generator_prompt(generator, 1, prompt, 2, NULL);
    assert_true(tarn_generator_next(generator, &output));
    REFUSE(tarn_generator_prompt,
           tarn_generator_prompt(generator, 0, prompt, 1, NULL)); /* an output of the other one is pending */
    ACCEPT(tarn_generator_free(NULL));
    tarn_generator_free(generator);
    tarn_generator_free(numbers);
    tarn_tokenizer_free(letters);
    tarn_module_free(model);
    tarn_module_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(decoders, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(embedders, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(samplers, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(generation, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(benchmarks, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(splits, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(generators, open_refusals, close_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
