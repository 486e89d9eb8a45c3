/* test_engine_options.c: options of single requests of an engine: stop strings, log probabilities, logit bias,
 * penalties and grammars; what it reports; requests that fail. */
#include <tarn/engine.h>

#include "support/files.h"
#include "support/noise.h"

#define CPU tarn_device_cpu()
enum { CONTEXT = 256, MAX_NEW = 40, MAX_TEXT = 1024, ENOUGH = 1000000 };

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* A random model over bytes, with an opinion. */
static tarn_module *byte_model(void)
{
    const tarn_llama_config config = {.vocab_size = 256,
                                      .context = CONTEXT,
                                      .layers = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .hidden_size = 32,
                                      .ffn_size = 88,
                                      .head_dim = 8};
    return add_noise(tarn_model_llama(&config, CPU, 9));
}

/* What a request gave. */
typedef struct result {
    int32_t token[MAX_NEW];
    double logprob[MAX_NEW], top_logprob[MAX_NEW];
    int32_t top[MAX_NEW];
    int64_t count;
    char text[MAX_TEXT];
    size_t length;
    double prompt_logprob[CONTEXT];
    int64_t echoed, shared;
    int32_t end_token;
    double end_logprob;
    tarn_finish_reason reason;
    char error[MAX_TEXT];
} result;

static void append_text(result *r, const char *text, size_t length)
{
    assert_true(r->length + length < sizeof(r->text));
    memcpy(r->text + r->length, text, length);
    r->length += length;
    r->text[r->length] = 0;
}

static void add_output(result *r, const tarn_engine_output *output)
{
    assert_int_equal(r->reason, TARN_FINISH_NONE);
    assert_true(output->wait_ms >= 0 && output->prompt_ms >= 0 && output->decode_ms >= 0);
    if (output->is_prompt) {
        r->prompt_logprob[r->echoed++] = output->logprob;
    } else if (output->token >= 0) {
        r->token[r->count] = output->token;
        r->logprob[r->count] = output->logprob;
        r->top[r->count] = output->top_logprob_count > 0 ? output->top_logprobs[0].token : -1;
        r->top_logprob[r->count++] = output->top_logprob_count > 0 ? output->top_logprobs[0].logprob : NAN;
    }
    if (output->text)
        append_text(r, output->text, output->length);
    r->reason = output->finish_reason;
    r->end_token = output->end_token;
    r->end_logprob = output->logprob;
    assert_true(output->end_token == -1 || output->token == -1);
    r->shared = output->shared;
    assert_int_equal(output->error != NULL, r->reason == TARN_FINISH_ERROR);
    if (output->error)
        snprintf(r->error, sizeof(r->error), "%s", output->error);
}

/* Runs all requests of an engine, whose numbers go from `first` on, to their end. */
static void run(tarn_engine *engine, result *results, int64_t first, int count)
{
    memset(results, 0, sizeof(*results) * (size_t)count);
    for (int64_t left = 1; left > 0;) {
        left = tarn_engine_step(engine);
        assert_ok();
        for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
            assert_true(output.request >= first && output.request < first + count);
            add_output(&results[output.request - first], &output);
        }
    }
    for (int i = 0; i < count; i++)
        assert_int_not_equal(results[i].reason, TARN_FINISH_NONE);
}

/* One request alone in an engine. */
static result run_one(tarn_engine *engine, const char *prompt, const tarn_generate_options *options)
{
    result r;
    int32_t tokens[CONTEXT];
    int64_t count = (int64_t)strlen(prompt);
    for (int64_t i = 0; i < count; i++)
        tokens[i] = (unsigned char)prompt[i];
    int64_t number = tarn_engine_add(engine, tokens, count, options);
    assert_ok();
    assert_true(number > 0);
    run(engine, &r, number, 1);
    return r;
}

/* ---- text and stop strings --------------------------------------------------------------------------------------- */

/* The same by a generator. */
static result generate(tarn_module *model, const tarn_tokenizer *tokenizer, const char *prompt,
                       const tarn_generate_options *options)
{
    result r = {0};
    tarn_generator *w = tarn_generator_new(model, tokenizer, NULL);
    assert_true(tarn_generator_prompt_text(w, 0, prompt, strlen(prompt), options));
    for (tarn_output output; tarn_generator_next(w, &output);) {
        if (output.token >= 0) {
            r.token[r.count] = output.token;
            r.logprob[r.count++] = output.logprob;
        }
        append_text(&r, output.text, output.length);
        r.reason = output.finish_reason;
    }
    assert_ok();
    tarn_generator_free(w);
    return r;
}

/* Texts, tokens, reasons and log probabilities are those of a generator, whatever two bytes of the text are the stop
 * string. */
static void stop_strings_and_text_are_those_of_a_generator(void **state)
{
    (void)state;
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_module *model = byte_model();
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.tokenizer = t});
    tarn_generate_options options = {.max_tokens = MAX_NEW, .logprobs = true, .grammar = NULL};
    tarn_grammar_vocab *vocab = tarn_grammar_vocab_new(t, NULL);
    tarn_grammar *letters = tarn_grammar_regex(vocab, "[a-z ]*", 7); /* no end, so that there is text to stop in */
    options.grammar = letters;
    const result all = run_one(engine, "once upon", &options);
    assert_int_equal(all.reason, TARN_FINISH_LENGTH);
    assert_int_equal(all.length, MAX_NEW);
    int stopped = 0;
    for (size_t at = 0; at + 2 <= all.length; at += 3) {
        const char stop[] = {all.text[at], all.text[at + 1], 0};
        const char *const stops[] = {"never", stop};
        options.stop_strings = stops, options.stop_string_count = 2;
        const result r = run_one(engine, "once upon", &options), expected = generate(model, t, "once upon", &options);
        assert_int_equal(r.reason, expected.reason);
        assert_int_equal(r.count, expected.count);
        assert_string_equal(r.text, expected.text);
        for (int64_t i = 0; i < r.count; i++) {
            assert_int_equal(r.token[i], expected.token[i]);
            assert_true(fabs(r.logprob[i] - expected.logprob[i]) < 1e-4);
        }
        assert_null(strstr(r.text, stop));
        stopped += r.reason == TARN_FINISH_STRING;
    }
    assert_true(stopped > 5);
    tarn_grammar_free(letters);
    tarn_grammar_vocab_free(vocab);
    tarn_engine_free(engine);
    tarn_module_free(model);
    tarn_tokenizer_free(t);
}

static void finish_reasons_say_what_ended_a_request(void **state)
{
    (void)state;
    tarn_module *model = byte_model();
    tarn_engine *engine = tarn_engine_new(model, NULL);
    tarn_generate_options options = {.max_tokens = 8, .logprobs = true};
    const result all = run_one(engine, "abc", &options);
    assert_int_equal(all.reason, TARN_FINISH_LENGTH);
    assert_int_equal(all.end_token, -1);
    const int32_t stop[] = {all.token[5]};
    options.stop = stop;
    options.stop_count = 1;
    const result r = run_one(engine, "abc", &options);
    assert_int_equal(r.reason, TARN_FINISH_TOKEN);
    assert_true(r.count <= 5);
    assert_int_equal(r.end_token, stop[0]);
    assert_true(r.end_logprob == all.logprob[r.count]);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* ---- log probabilities ------------------------------------------------------------------------------------------- */

/* Log probabilities of tokens[1 …] by a decoder. */
static void expect_logprobs(tarn_module *model, const int32_t *tokens, int64_t count, double *logprob)
{
    tarn_decoder *decoder = tarn_decoder_new(model, NULL);
    for (int64_t i = 0; i + 1 < count; i++) {
        tarn_tensor *logits = tarn_decoder_feed(decoder, tarn_from_i32(tokens + i, TARN_SHAPE(1, 1), CPU));
        tarn_tensor *next = tarn_from_i32(tokens + i + 1, TARN_SHAPE(1, 1), CPU);
        assert_true(tarn_read(good(tarn_token_logprobs(logits, next, 0)), &logprob[i + 1], sizeof(double)));
    }
    tarn_decoder_free(decoder);
}

/* Of prompts of up to the whole context, with and without new tokens, in chunks of 50 tokens. */
static void prompts_have_log_probabilities(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 2, 64, 65, 200, CONTEXT - 3, CONTEXT};
    static result r;
    tarn_module *model = byte_model();
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.prompt_tokens = 50});
    int32_t tokens[CONTEXT + 3];
    double expected[CONTEXT + 3];
    for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
        int64_t count = lengths[k];
        bool is_full = count == CONTEXT;
        for (int64_t i = 0; i < count; i++)
            tokens[i] = (int32_t)((i * i + 7 * i) % 251);
        int64_t number = tarn_engine_add(
            engine, tokens, count,
            &(tarn_generate_options){.prompt_logprobs = true, .prompt_only = is_full, .max_tokens = is_full ? 0 : 3});
        assert_ok();
        run(engine, &r, number, 1);
        assert_int_equal(r.reason, TARN_FINISH_LENGTH);
        assert_int_equal(r.echoed, count);
        assert_int_equal(r.count, is_full ? 0 : 3);
        assert_int_equal(r.shared, 0); /* the second prompt is the beginning of the third, and so on */
        memcpy(tokens + count, r.token, sizeof(int32_t) * (size_t)r.count);
        expect_logprobs(model, tokens, count + r.count, expected);
        assert_true(isnan(r.prompt_logprob[0]));
        for (int64_t i = 1; i < count + r.count; i++) {
            double found = i < count ? r.prompt_logprob[i] : r.logprob[i - count];
            if (!(fabs(found - expected[i]) < 1e-4))
                fail_msg("token %d of %d: %g, not %g", (int)i, (int)count, found, expected[i]);
        }
    }
    assert_int_equal(tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.prompt_only = true}), -1);
    assert_error(TARN_ERROR_ARGUMENT, "engine_add: .prompt_only is set; it needs .prompt_logprobs");
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* A bias of 100 forces a token; log probabilities are those of the model without it, so the top one is another. */
static void log_probabilities_are_those_before_the_bias(void **state)
{
    (void)state;
    tarn_module *model = byte_model();
    tarn_engine *engine = tarn_engine_new(model, NULL);
    const result plain =
        run_one(engine, "tell me", &(tarn_generate_options){.max_tokens = 1, .logprobs = true, .top_logprobs = 1});
    assert_int_equal(plain.top[0], plain.token[0]);
    int32_t other = (plain.token[0] + 1) % 256;
    const tarn_logit_bias bias[] = {{other, 60}, {other, 40}, {plain.token[0], -100}};
    for (int temperature = 0; temperature < 2; temperature++) {
        const result r = run_one(engine, "tell me",
                                 &(tarn_generate_options){.max_tokens = 4,
                                                          .temperature = temperature,
                                                          .top_logprobs = 1,
                                                          .logit_bias = bias,
                                                          .logit_bias_count = 3});
        for (int i = 0; i < 4; i++)
            assert_int_equal(r.token[i], other);
        assert_int_equal(r.top[0], plain.token[0]);
        assert_true(r.top_logprob[0] == plain.logprob[0] && r.logprob[0] < plain.logprob[0]);
    }
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* With a frequency penalty of 100 no token comes twice; with that of the presence neither. */
static void penalties_of_sampled_tokens_leave_the_prompt_alone(void **state)
{
    (void)state;
    tarn_module *model = byte_model();
    tarn_engine *engine = tarn_engine_new(model, NULL);
    const result plain = run_one(engine, "aaaa", &(tarn_generate_options){.max_tokens = 1});
    char prompt[] = {(char)plain.token[0], 0};
    bool was_prompt_sampled = plain.token[0] == 0; /* it cannot be in a string */
    for (int kind = 0; kind < 2; kind++) {
        const tarn_generate_options options = {
            .max_tokens = MAX_NEW, .frequency_penalty = kind ? 0 : 100, .presence_penalty = kind ? 100 : 0};
        const result r = run_one(engine, "aaaa", &options), again = run_one(engine, prompt, &options);
        bool seen[256] = {false};
        assert_int_equal(r.token[0], plain.token[0]);
        for (int i = 0; i < MAX_NEW; i++) {
            assert_false(seen[r.token[i]]);
            seen[r.token[i]] = true;
            was_prompt_sampled = was_prompt_sampled || again.token[i] == plain.token[0];
        }
    }
    assert_true(was_prompt_sampled);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Makes the embedding of token 7 not a number. */
static void break_token(tarn_module *model)
{
    tarn_tensor *embedding = NULL;
    for (int i = 0; i < tarn_module_parameter_count(model) && !embedding; i++)
        if (strstr(tarn_module_parameter_name(model, i), "embed"))
            embedding = tarn_module_parameter(model, i);
    tarn_copy(tarn_slice(tarn_detach(embedding), 0, 7, 8), tarn_full(TARN_SHAPE(1, 32), NAN, TARN_F32, CPU));
    assert_ok();
}

/* A token whose embedding is not a number ends its request with an error, and no other; what it left in its pages does
 * no harm to those who get them. */
static void a_request_that_fails_ends_alone(void **state)
{
    (void)state;
    result r[6], expected[6];
    tarn_module *model = byte_model();
    break_token(model);
    for (int round = 0; round < 2; round++) {
        tarn_engine *engine =
            tarn_engine_new(model, &(tarn_engine_options){.kv_bytes = 5 * 64 * 2 * 2 * 16 * 4, .prompt_tokens = 70});
        assert_ok();
        int64_t first = 0;
        for (int i = 0; i < 6; i++) {
            int32_t tokens[100];
            for (int k = 0; k < 100; k++)
                tokens[k] = round == 1 && i % 2 == 0 && k == 10 ? 7 : 20 + (i * 5 + k) % 200;
            int64_t number = tarn_engine_add(engine, tokens, 100, &(tarn_generate_options){.max_tokens = 9});
            first = i == 0 ? number : first;
        }
        run(engine, round ? r : expected, first, 6);
        tarn_engine_stats stats;
        assert_true(tarn_engine_query(engine, &stats) && stats.free_pages == stats.pages);
        assert_true(stats.added == 6 && stats.failed == (round ? 3 : 0) && stats.finished == (round ? 3 : 6));
        tarn_engine_free(engine);
    }
    for (int i = 0; i < 6; i++)
        if (i % 2 == 0) {
            assert_int_equal(r[i].reason, TARN_FINISH_ERROR);
            assert_contains(r[i].error, "the logits of token 100 are not finite");
        } else {
            assert_memory_equal(r[i].token, expected[i].token, sizeof(r[i].token));
        }
    tarn_module_free(model);
}

static void log_probabilities_of_a_prompt_that_are_not_finite_are_an_error(void **state)
{
    (void)state;
    static result r;
    const int32_t tokens[] = {20, 21, 22, 7, 23, 24};
    tarn_module *model = byte_model();
    break_token(model);
    tarn_engine *engine = tarn_engine_new(model, NULL);
    for (int prompt_only = 0; prompt_only < 2; prompt_only++) {
        int64_t number = tarn_engine_add(engine, tokens, 6,
                                         &(tarn_generate_options){.prompt_logprobs = true, .prompt_only = prompt_only});
        run(engine, &r, number, 1);
        assert_int_equal(r.reason, TARN_FINISH_ERROR);
        assert_contains(r.error, "the logits of token 1 are not finite");
        assert_int_equal(r.echoed, 1); /* the embedding is the head, too: all rows have a logit that is not a number */
    }
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* Memory of at most `bytes_left` bytes, of one thread. */
static int64_t bytes_left;

static void *limited_alloc(size_t size, size_t alignment, void *ctx)
{
    (void)ctx;
    if (bytes_left < (int64_t)size)
        return NULL;
    bytes_left -= (int64_t)size;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void limited_release(void *memory, size_t size, void *ctx)
{
    (void)ctx;
    bytes_left += memory ? (int64_t)size : 0;
    free(memory);
}

/* With memory for the logits, but not for the log probabilities of 64 rows, only the request that wants them ends. */
static void log_probabilities_without_memory_end_their_request_only(void **state)
{
    (void)state;
    enum { VOCAB = 8192, STEP = 1 << 17 };
    static const tarn_allocator limited = {limited_alloc, limited_release, NULL};
    const tarn_llama_config config = {
        .vocab_size = VOCAB, .context = 128, .layers = 1, .heads = 1, .kv_heads = 1, .hidden_size = 8, .ffn_size = 8};
    int32_t tokens[64];
    int alone = 0, both = 0, none = 0;
    for (int i = 0; i < 64; i++)
        tokens[i] = i;
    tarn_empty_cache(CPU);
    bytes_left = INT64_MAX;
    assert_true(tarn_set_allocator(&limited));
    tarn_scope *scope = tarn_scope_open();
    tarn_module *model = tarn_model_llama(&config, CPU, 9);
    for (int64_t room = STEP; none == 0; room += STEP) {
        bool has_failed[2] = {false, false};
        tarn_engine *engine = tarn_engine_new(model, NULL);
        assert_int_equal(
            tarn_engine_add(engine, tokens, 64,
                            &(tarn_generate_options){.max_tokens = 1, .prompt_logprobs = true, .top_logprobs = 4}),
            1);
        assert_int_equal(tarn_engine_add(engine, tokens, 1, &(tarn_generate_options){.max_tokens = 1}), 2);
        tarn_empty_cache(CPU);
        bytes_left = room;
        tarn_engine_step(engine);
        bytes_left = INT64_MAX / 2;
        tarn_clear_error();
        for (tarn_engine_output output; tarn_engine_next(engine, &output);)
            has_failed[output.request - 1] |= output.finish_reason == TARN_FINISH_ERROR;
        both += has_failed[0] && has_failed[1];
        alone += has_failed[0] && !has_failed[1];
        none += !has_failed[0] && !has_failed[1];
        tarn_engine_free(engine);
    }
    assert_true(both > 0 && alone > 0);
    tarn_module_free(model);
    tarn_scope_close(scope);
    tarn_empty_cache(CPU);
    assert_true(tarn_set_allocator(NULL)); /* fails if bytes leaked */
}

/* Runs one request with `room` allocations; afterwards there is memory again. Returns how it ended. */
static tarn_finish_reason run_scarce(tarn_engine *engine, int room)
{
    const int32_t tokens[] = {1, 2, 3};
    const char *const stops[] = {"zz"};
    tarn_finish_reason reason = TARN_FINISH_NONE;
    allocations_left = room;
    int64_t number = tarn_engine_add(engine, tokens, 3,
                                     &(tarn_generate_options){.max_tokens = 2,
                                                              .prompt_logprobs = true,
                                                              .top_logprobs = 2,
                                                              .frequency_penalty = 1,
                                                              .stop_strings = stops,
                                                              .stop_string_count = 1});
    assert_int_equal(number < 0, tarn_failed());
    int ends = 0;
    for (int64_t left = number > 0; left != 0;) {
        left = tarn_engine_step(engine);
        if (left < 0) {
            assert_int_equal(tarn_error_code(), TARN_ERROR_MEMORY);
            allocations_left = ENOUGH;
        }
        tarn_clear_error();
        for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
            assert_int_equal(ends, 0);
            ends += output.finish_reason != TARN_FINISH_NONE;
            reason = output.finish_reason;
        }
    }
    allocations_left = ENOUGH;
    tarn_clear_error();
    assert_int_equal(ends, number > 0);
    return reason;
}

/* Whatever allocation fails: a request that was added ends with one last output, and all memory comes back. */
static void out_of_memory_ends_requests_with_an_error(void **state)
{
    (void)state;
    int failed = 0, refused = 0, finished = 0;
    tarn_empty_cache(CPU);
    allocations_left = ENOUGH;
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    tarn_scope *scope = tarn_scope_open();
    tarn_tokenizer *t = tarn_tokenizer_bytes();
    tarn_module *model = byte_model();
    for (int room = 0; room < 5000 && finished == 0; room++) {
        tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.tokenizer = t, .sequences = 2});
        assert_ok();
        tarn_empty_cache(CPU);
        tarn_finish_reason reason = run_scarce(engine, room);
        refused += reason == TARN_FINISH_NONE;
        failed += reason == TARN_FINISH_ERROR;
        finished += reason == TARN_FINISH_LENGTH;
        tarn_engine_free(engine);
    }
    assert_true(refused > 3 && failed > 3 && finished == 1);
    tarn_module_free(model);
    tarn_tokenizer_free(t);
    tarn_scope_close(scope);
    tarn_empty_cache(CPU);
    assert_true(tarn_set_allocator(NULL)); /* fails if bytes leaked */
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

/* Four samples of one prompt of 200 tokens: three full pages are computed once, the last 8 tokens by each. */
static void samples_of_one_prompt_compute_it_once(void **state)
{
    (void)state;
    result alone[4], together[4];
    int32_t tokens[200];
    tarn_module *model = byte_model();
    for (int i = 0; i < 200; i++)
        tokens[i] = i;
    for (int i = 0; i < 4; i++) {
        tarn_engine *engine = tarn_engine_new(model, NULL);
        tarn_engine_add(engine, tokens, 200,
                        &(tarn_generate_options){.max_tokens = 20, .temperature = 1, .seed = (uint64_t)i});
        run(engine, &alone[i], 1, 1);
        tarn_engine_free(engine);
    }
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.prompt_tokens = 100});
    for (int i = 0; i < 4; i++)
        tarn_engine_add(engine, tokens, 200,
                        &(tarn_generate_options){.max_tokens = 20, .temperature = 1, .seed = (uint64_t)i});
    run(engine, together, 1, 4);
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(alone[i].token, together[i].token, sizeof(alone[i].token));
        assert_int_equal(together[i].shared, i == 0 ? 0 : 192);
    }
    assert_memory_not_equal(alone[0].token, alone[1].token, sizeof(alone[0].token));
    tarn_engine_stats stats;
    assert_true(tarn_engine_query(engine, &stats));
    assert_int_equal(stats.prompt_tokens, 200 + 3 * 8);
    assert_int_equal(stats.shared_tokens, 3 * 192);
    /* with another salt nothing is shared */
    int64_t number = tarn_engine_add(engine, tokens, 200, &(tarn_generate_options){.max_tokens = 1, .cache_salt = 1});
    run(engine, together, number, 1);
    assert_int_equal(together[0].shared, 0);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

static void an_engine_reports_its_requests_and_pages(void **state)
{
    (void)state;
    int32_t tokens[130] = {0};
    tarn_engine_stats stats;
    tarn_engine_request requests[4];
    tarn_engine_output output;
    tarn_module *model = byte_model();
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.sequences = 2, .prompt_tokens = 64});
    assert_int_equal(tarn_engine_requests(engine, NULL, 0), 0);
    for (int i = 0; i < 3; i++) {
        tokens[0] = i == 2 ? 0 : i;
        assert_int_equal(tarn_engine_add(engine, tokens, 130, &(tarn_generate_options){.max_tokens = 30}), i + 1);
    }
    for (int i = 0; i < 6; i++) /* 260 prompt tokens of the first two: five steps */
        assert_true(tarn_engine_step(engine) > 0);
    assert_true(tarn_engine_query(engine, &stats));
    assert_int_equal(stats.running, 2);
    assert_int_equal(stats.waiting, 1);
    assert_int_equal(stats.pages - stats.free_pages, 6);
    assert_true(stats.shared_pages == 0 && stats.cached_pages == 0 && stats.page_tokens == 64);
    assert_true(stats.context == CONTEXT && stats.added == 3 && stats.prompt_tokens == 260);
    assert_int_equal(tarn_engine_requests(engine, requests, 4), 3);
    assert_int_equal(tarn_engine_requests(engine, requests, 1), 3);
    assert_int_equal(requests[0].request, 1);
    assert_true(requests[0].is_running && !requests[2].is_running);
    assert_true(requests[0].prompt == 130 && requests[0].max_tokens == 30 && requests[0].pages == 3);
    assert_true(requests[0].new_tokens >= 1 && requests[0].computed == 129 + requests[0].new_tokens);
    assert_true(requests[2].request == 3 && requests[2].pages == 0 && requests[2].computed == 0);
    assert_true(requests[0].prompt_ms > 0 && requests[2].wait_ms > 0 && requests[2].prompt_ms == 0);
    assert_true(tarn_engine_cancel(engine, 2)); /* the third starts, with two pages of the first */
    assert_true(tarn_engine_step(engine) > 0);
    assert_true(tarn_engine_query(engine, &stats) && stats.shared_pages == 2 && stats.cached_pages == 2);
    assert_true(stats.running == 2 && stats.waiting == 0 && stats.cancelled == 1);
    while (tarn_engine_step(engine) > 0)
        while (tarn_engine_next(engine, &output))
            assert_true(output.request != 3 || output.shared == 128);
    assert_true(tarn_engine_query(engine, &stats) && stats.finished == 2 && stats.new_tokens == 60 + 2);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(stop_strings_and_text_are_those_of_a_generator),
        in_scope(finish_reasons_say_what_ended_a_request),
        in_scope(prompts_have_log_probabilities),
        in_scope(log_probabilities_are_those_before_the_bias),
        in_scope(penalties_of_sampled_tokens_leave_the_prompt_alone),
        in_scope(a_request_that_fails_ends_alone),
        in_scope(log_probabilities_of_a_prompt_that_are_not_finite_are_an_error),
        cmocka_unit_test(log_probabilities_without_memory_end_their_request_only),
        cmocka_unit_test(out_of_memory_ends_requests_with_an_error),
        in_scope(samples_of_one_prompt_compute_it_once),
        in_scope(an_engine_reports_its_requests_and_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
