/* test_generator.c: generators with one or several sequences: stop strings, ends, reuse of the KV cache; and the
 * transfers per token, on TARN_TEST_DEVICE if it is set. */
#include "support/check.h"

#define CPU tarn_device_cpu()
enum { VOCAB = 256, CONTEXT = 40 };

static tarn_module *make_on(tarn_device device)
{
    const tarn_gpt2_config config = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 2, .heads = 2, .hidden_size = 16, .has_eos = true, .eos = 1};
    tarn_module *model = tarn_model_gpt2(&config, device, 9);
    tarn_seed(4);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p),
                              tarn_to(tarn_normal(tarn_shape_of(p), 0, 0.25, tarn_dtype_of(p), CPU), device)));
    }
    assert_ok();
    return model;
}

/* A model that writes these bytes whatever it is given, one for each position from `first` on: positions alone are
 * looked at. */
static tarn_module *parrot(const char *bytes, int first)
{
    const tarn_gpt2_config config = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 1, .heads = 1, .hidden_size = VOCAB, .ffn_size = 1};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 1);
    for (int i = 0; i < tarn_module_parameter_count(model); i++)
        tarn_fill_inplace(tarn_requires_grad(tarn_module_parameter(model, i), false), 0);
    tarn_fill_inplace(tarn_module_find(model, "transformer.ln_f.weight"), 1);
    tarn_copy(tarn_module_find(model, "transformer.wte.weight"), tarn_eye(VOCAB, VOCAB, TARN_F32, CPU));
    for (int i = 0; bytes[i]; i++) {
        tarn_tensor *place = tarn_slice(tarn_module_find(model, "transformer.wpe.weight"), 0, first + i, first + i + 1);
        tarn_fill_inplace(tarn_slice(place, 1, (unsigned char)bytes[i], (unsigned char)bytes[i] + 1), 50);
    }
    assert_ok();
    return model;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Outputs of a sequence with these stop strings, each followed by |, and its finish reason. */
static void expect_outputs(const char *written, int tokens, const char *const *stops, int stop_count,
                           const char *expected, tarn_finish_reason end)
{
    tarn_module *model = parrot(written, 0);
    tarn_tokenizer *bytes = tarn_tokenizer_bytes();
    tarn_generator *generator = tarn_generator_new(model, bytes, NULL);
    tarn_output output = {0};
    char found[256] = "";
    assert_true(tarn_generator_prompt_text(
        generator, 0, "?", 1,
        &(tarn_generate_options){.max_tokens = tokens, .stop_strings = stops, .stop_string_count = stop_count}));
    while (tarn_generator_next(generator, &output)) {
        strncat(found, output.text, output.length);
        strcat(found, "|");
    }
    assert_ok();
    assert_string_equal(found, expected);
    assert_int_equal(output.finish_reason, end);
    tarn_generator_free(generator);
    tarn_tokenizer_free(bytes);
    tarn_module_free(model);
}

static void a_stop_string_is_never_output(void **state)
{
    (void)state;
    expect_outputs("one END two", 11, (const char *[]){"END"}, 1, "o|n|e| ||||", TARN_FINISH_STRING);
    expect_outputs("EN EEND", 7, (const char *[]){"END"}, 1, "||EN ||E|||", TARN_FINISH_STRING);
    expect_outputs("abcabd", 6, (const char *[]){"abd", "xyz"}, 2, "||abc||||", TARN_FINISH_STRING);
    expect_outputs("aab", 3, (const char *[]){"ab"}, 1, "|a||", TARN_FINISH_STRING);
    expect_outputs("abcd", 4, (const char *[]){"bcde", "cd"}, 2, "a|||b|", TARN_FINISH_STRING);
    expect_outputs("abEN", 4, (const char *[]){"END"}, 1, "a|b||EN|", TARN_FINISH_LENGTH); /* it did not come */
}

static void characters_are_output_whole(void **state)
{
    (void)state;
    expect_outputs("a\303\251b", 4, NULL, 0, "a||\303\251|b|", TARN_FINISH_LENGTH);
    expect_outputs("\342\202\254!", 4, NULL, 0, "||\342\202\254|!|", TARN_FINISH_LENGTH);
    expect_outputs("\360\237\230\200", 4, NULL, 0, "|||\360\237\230\200|", TARN_FINISH_LENGTH);
    expect_outputs("\303(", 2, NULL, 0, "|\357\277\275(|", TARN_FINISH_LENGTH);      /* no character: U+FFFD */
    expect_outputs("a\342\202", 3, NULL, 0, "a||\357\277\275|", TARN_FINISH_LENGTH); /* nothing follows */
    expect_outputs("\200\377", 2, NULL, 0, "\357\277\275|\357\277\275|", TARN_FINISH_LENGTH);
}

/* ---- several texts ----------------------------------------------------------------------------------------------- */

/* Each of several texts is the one that it would be alone, with its own prompt, sampler and end. */
static void texts_do_not_notice_each_other(tarn_device device)
{
    enum { TEXTS = 4 };
    static const struct {
        int32_t prompt[6];
        int64_t count;
        tarn_generate_options options;
    } cases[TEXTS] = {{{3, 1, 4}, 3, {.max_tokens = 9}},
                      {{9}, 1, {.max_tokens = 20, .temperature = 1, .seed = 5, .top_k = 20}},
                      {{2, 7, 1, 8, 2, 8}, 6, {.max_tokens = 4, .temperature = 1, .seed = 6, .repeat_penalty = 1.3}},
                      {{5, 5}, 2, {.temperature = 1.5, .seed = 7, .ignore_eos = true}}};
    tarn_module *model = make_on(device);
    tarn_generator *generator = tarn_generator_new(model, NULL, &(tarn_generator_options){.sequences = TEXTS});
    int32_t found[TEXTS][CONTEXT], alone[CONTEXT];
    int64_t made[TEXTS] = {0};
    tarn_output output;
    for (int i = 0; i < TEXTS; i++)
        assert_true(tarn_generator_prompt(generator, i, cases[i].prompt, cases[i].count, &cases[i].options));
    while (tarn_generator_next(generator, &output))
        if (output.token >= 0)
            found[output.sequence][made[output.sequence]++] = output.token;
    assert_ok();
    for (int i = 0; i < TEXTS; i++) {
        int64_t count = 0;
        const int32_t *tokens = tarn_generator_tokens(generator, i, &count);
        assert_int_equal(tarn_generate(model, cases[i].prompt, cases[i].count, alone, &cases[i].options), made[i]);
        assert_memory_equal(found[i], alone, sizeof(int32_t) * (size_t)made[i]);
        /* a full one may have given up its last */
        assert_true(count >= cases[i].count + made[i] - 1 && count <= cases[i].count + made[i]);
        assert_memory_equal(tokens, cases[i].prompt, sizeof(int32_t) * (size_t)cases[i].count);
    }
    tarn_generator_free(generator);
    tarn_module_free(model);
}

static void several_sequences_at_once(void **state)
{
    (void)state;
    texts_do_not_notice_each_other(CPU);
}

static void several_sequences_at_once_on_a_device(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    texts_do_not_notice_each_other(tarn_device_parse("mirror:0"));
}

/* Several texts after one prompt are those that they would be alone, and only the first of them computes it: the others
 * copy 2 parts of 2 layers, and draw. */
static void one_prompt_is_computed_once(tarn_device device, tarn_kv_type kv_type)
{
    enum { TEXTS = 3, PROMPT = 20 };
    int32_t prompt[PROMPT], found[TEXTS][CONTEXT], alone[CONTEXT];
    int64_t kernels[TEXTS], made[TEXTS] = {0};
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = (int32_t)(7 * i % VOCAB);
    tarn_module *model = make_on(device);
    tarn_generator *generator = tarn_generator_new(
        model, NULL, &(tarn_generator_options){.sequences = TEXTS, .kv_type = kv_type, .prefill_chunk = 2});
    for (int i = 0; i < TEXTS; i++) {
        tarn_stats_reset();
        assert_true(tarn_generator_prompt(
            generator, i, prompt, PROMPT,
            &(tarn_generate_options){.max_tokens = 10, .temperature = 1.5, .seed = (uint64_t)i, .ignore_eos = true}));
        kernels[i] = tarn_stats().kernels;
    }
    for (int i = 1; i < TEXTS; i++) /* a step of one chunk of ten would be more */
        assert_true(kernels[0] > 100 && kernels[i] < kernels[0] / 10);
    for (tarn_output output; tarn_generator_next(generator, &output);)
        found[output.sequence][made[output.sequence]++] = output.token;
    assert_ok();
    tarn_generator *one =
        tarn_generator_new(model, NULL, &(tarn_generator_options){.kv_type = kv_type, .prefill_chunk = 2});
    for (int i = 0; i < TEXTS; i++) {
        int64_t count = 0;
        assert_true(tarn_generator_prompt(
            one, 0, prompt, PROMPT,
            &(tarn_generate_options){.max_tokens = 10, .temperature = 1.5, .seed = (uint64_t)i, .ignore_eos = true}));
        for (tarn_output output; tarn_generator_next(one, &output);)
            alone[count++] = output.token;
        assert_int_equal(made[i], 10);
        assert_int_equal(count, 10);
        assert_memory_equal(found[i], alone, sizeof(int32_t) * 10);
    }
    tarn_generator_free(one);
    tarn_generator_free(generator);
    tarn_module_free(model);
}

static void a_prompt_of_several_sequences_is_computed_once(void **state)
{
    (void)state;
    one_prompt_is_computed_once(CPU, TARN_KV_MODEL);
    one_prompt_is_computed_once(CPU, TARN_KV_Q8_0);
    if (tarn_device_count("mirror") > 0)
        one_prompt_is_computed_once(tarn_device_parse("mirror:0"), TARN_KV_BF16);
}

/* A sequence that has gone on, or has another prompt by now, is no source. */
static void a_computed_prompt_is_reused_only_while_it_is_cached(void **state)
{
    (void)state;
    const int32_t first[] = {3, 1, 4}, second[] = {3, 1, 5};
    const tarn_generate_options how = {.max_tokens = 6, .ignore_eos = true};
    int32_t expected[2][6];
    tarn_module *model = make_on(CPU);
    assert_int_equal(tarn_generate(model, first, 3, expected[0], &how), 6);
    assert_int_equal(tarn_generate(model, second, 3, expected[1], &how), 6);
    tarn_generator *generator = tarn_generator_new(model, NULL, &(tarn_generator_options){.sequences = 2});
    tarn_output output;
    assert_true(tarn_generator_prompt(generator, 0, first, 3, &how));
    assert_true(tarn_generator_prompt(generator, 0, second, 3, &how));
    assert_true(tarn_generator_prompt(generator, 1, first, 3, &how)); /* which sequence 0 has no more */
    for (int64_t made[2] = {0}; tarn_generator_next(generator, &output); made[output.sequence]++)
        assert_int_equal(output.token, expected[1 - output.sequence][made[output.sequence]]);
    assert_true(tarn_generator_prompt(generator, 0, first, 3, &how)); /* and 1 has gone on */
    for (int i = 0; i < 6; i++)
        assert_true(tarn_generator_next(generator, &output) && output.token == expected[0][i]);
    assert_ok();
    tarn_generator_free(generator);
    tarn_module_free(model);
}

/* A text that is begun while another one goes on. */
static void a_sequence_may_start_later(void **state)
{
    (void)state;
    const int32_t a[] = {3, 1, 4}, b[] = {2, 7};
    int32_t alone[2][CONTEXT], found[2][CONTEXT];
    int64_t made[2] = {0};
    tarn_output output;
    tarn_module *model = make_on(CPU);
    tarn_generate(model, a, 3, alone[0], &(tarn_generate_options){.max_tokens = 12, .ignore_eos = true});
    tarn_generate(model, b, 2, alone[1], &(tarn_generate_options){.max_tokens = 5, .ignore_eos = true});
    tarn_generator *generator = tarn_generator_new(model, NULL, &(tarn_generator_options){.sequences = 2});
    assert_true(
        tarn_generator_prompt(generator, 0, a, 3, &(tarn_generate_options){.max_tokens = 12, .ignore_eos = true}));
    for (int i = 0; i < 4; i++) {
        assert_true(tarn_generator_next(generator, &output));
        found[0][made[0]++] = output.token;
    }
    assert_true(
        tarn_generator_prompt(generator, 1, b, 2, &(tarn_generate_options){.max_tokens = 5, .ignore_eos = true}));
    while (tarn_generator_next(generator, &output))
        found[output.sequence][made[output.sequence]++] = output.token;
    assert_ok();
    assert_int_equal(made[0], 12);
    assert_int_equal(made[1], 5);
    assert_memory_equal(found[0], alone[0], sizeof(int32_t) * 12);
    assert_memory_equal(found[1], alone[1], sizeof(int32_t) * 5);
    tarn_generator_free(generator);
    tarn_module_free(model);
}

/* ---- reuse of the KV cache --------------------------------------------------------------------------------------- */

static int64_t products(void)
{
    return tarn_stats().kernels;
}

/* A longer prompt with the same prefix costs its new tokens; the output is that of a new generator. */
static void a_conversation_costs_its_last_turn(void **state)
{
    (void)state;
    int32_t text[CONTEXT], again[4], fresh[4];
    tarn_output output;
    tarn_module *model = make_on(CPU);
    /* a kernel for each token: they can be counted */
    tarn_generator *generator = tarn_generator_new(model, NULL, &(tarn_generator_options){.prefill_chunk = 1});
    const tarn_generate_options four = {.max_tokens = 4, .ignore_eos = true};
    for (int i = 0; i < CONTEXT; i++)
        text[i] = i * 5 % 17;
    tarn_stats_reset();
    assert_true(tarn_generator_prompt(generator, 0, text, 20, &four));
    int64_t first = products();
    while (tarn_generator_next(generator, &output))
        ;
    int64_t count = 0;
    const int32_t *all = tarn_generator_tokens(generator, 0, &count);
    assert_int_equal(count, 24);
    memcpy(text, all, sizeof(int32_t) * 24);
    text[24] = 3, text[25] = 7;
    tarn_stats_reset();
    assert_true(tarn_generator_prompt(generator, 0, text, 26, &four)); /* the 24th was drawn, but not fed */
    assert_true(products() < first / 5);
    for (int i = 0; i < 4; i++) {
        assert_true(tarn_generator_next(generator, &output));
        again[i] = output.token;
    }
    text[10] = 11; /* an earlier token is another one: what follows counts no more */
    assert_true(tarn_generator_prompt(generator, 0, text, 26, &four));
    assert_int_equal(tarn_generate(model, text, 26, fresh, &four), 4);
    for (int i = 0; i < 4; i++) {
        assert_true(tarn_generator_next(generator, &output));
        assert_int_equal(output.token, fresh[i]);
    }
    text[10] = 10 * 5 % 17;
    assert_int_equal(tarn_generate(model, text, 26, fresh, &four), 4);
    assert_memory_equal(again, fresh, sizeof(fresh));
    tarn_generator_free(generator);
    tarn_module_free(model);
}

static void a_sequence_can_be_stopped(void **state)
{
    (void)state;
    const int32_t prompt[] = {3, 1, 4};
    tarn_output output;
    tarn_module *model = make_on(CPU);
    tarn_generator *generator = tarn_generator_new(model, NULL, NULL);
    assert_true(tarn_generator_prompt(generator, 0, prompt, 3, &(tarn_generate_options){.ignore_eos = true}));
    assert_true(tarn_generator_next(generator, &output));
    assert_true(tarn_generator_stop(generator, 0));
    assert_false(tarn_generator_next(generator, &output));
    assert_ok();
    assert_true(
        tarn_generator_prompt(generator, 0, prompt, 3, &(tarn_generate_options){.max_tokens = 2, .ignore_eos = true}));
    assert_true(tarn_generator_next(generator, &output));
    assert_true(tarn_generator_next(generator, &output));
    assert_int_equal(output.finish_reason, TARN_FINISH_LENGTH);
    assert_false(tarn_generator_next(generator, &output));
    tarn_generator_free(generator);
    tarn_module_free(model);
}

/* ---- transfers --------------------------------------------------------------------------------------------------- */

/* Takes the model. */
static void one_token_crosses(tarn_module *model, tarn_kv_type kv_type)
{
    const int32_t prompt[] = {3, 1, 4};
    tarn_output output;
    tarn_generator *generator = tarn_generator_new(model, NULL, &(tarn_generator_options){.kv_type = kv_type});
    assert_true(tarn_generator_prompt(
        generator, 0, prompt, 3,
        &(tarn_generate_options){
            .temperature = 1, .top_k = 9, .repeat_penalty = 1.1, .min_p = 0.01, .ignore_eos = true}));
    tarn_counters before = tarn_stats();
    for (int i = 0; i < 10; i++)
        assert_true(tarn_generator_next(generator, &output));
    tarn_counters after = tarn_stats();
    assert_int_equal(after.uploads, before.uploads);
    assert_int_equal(after.downloads, before.downloads + 10);
    assert_int_equal(after.download_bytes, before.download_bytes + 10 * (int64_t)sizeof(int64_t));
    assert_int_equal(after.peer_copies, before.peer_copies);
    assert_int_equal(after.fallbacks, before.fallbacks);
    tarn_generator_free(generator);
    tarn_module_free(model);
}

/* On $TARN_TEST_DEVICE, or the mirror. */
static void one_token_is_downloaded_per_token(void **state)
{
    (void)state;
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = CONTEXT,
                                      .layers = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .hidden_size = 64,
                                      .ffn_size = 96};
    if (!getenv("TARN_TEST_DEVICE") && tarn_device_count("mirror") < 1)
        skip();
    tarn_device device = test_device("mirror:0");
    for (tarn_kv_type kv_type = TARN_KV_MODEL; kv_type <= TARN_KV_Q8_0; kv_type++) {
        one_token_crosses(make_on(device), kv_type);
        one_token_crosses(tarn_model_llama(&config, device, 9), kv_type);
    }
}

static void outputs_have_log_probabilities(void **state)
{
    (void)state;
    const int32_t prompt[] = {3, 1, 4};
    tarn_output output;
    tarn_module *model = make_on(CPU);
    tarn_generator *generator = tarn_generator_new(model, NULL, NULL);
    tarn_decoder *decoder = tarn_decoder_new(model, NULL);
    tarn_tensor *logits = good(tarn_decoder_feed(decoder, tarn_from_i32(prompt, TARN_SHAPE(1, 3), CPU)));
    assert_true(tarn_generator_prompt(
        generator, 0, prompt, 3,
        &(tarn_generate_options){
            .temperature = 2, .seed = 3, .logprobs = true, .top_logprobs = 3, .ignore_eos = true}));
    for (int i = 0; i < 5; i++) {
        assert_true(tarn_generator_next(generator, &output));
        tarn_tensor *token = tarn_from_i32(&output.token, TARN_SHAPE(1, 1), CPU),
                    *expected = good(tarn_token_logprobs(logits, token, 3));
        assert_int_equal(output.top_logprob_count, 3);
        assert_values(expected, 1e-6, output.logprob, output.top_logprobs[0].token, output.top_logprobs[1].token,
                      output.top_logprobs[2].token, output.top_logprobs[0].logprob, output.top_logprobs[1].logprob,
                      output.top_logprobs[2].logprob);
        logits = good(tarn_decoder_feed(decoder, token));
    }
    tarn_decoder_free(decoder);
    tarn_generator_free(generator);
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_stop_string_is_never_output),
        in_scope(characters_are_output_whole),
        in_scope(several_sequences_at_once),
        in_scope(several_sequences_at_once_on_a_device),
        in_scope(a_prompt_of_several_sequences_is_computed_once),
        in_scope(a_computed_prompt_is_reused_only_while_it_is_cached),
        in_scope(a_sequence_may_start_later),
        in_scope(a_conversation_costs_its_last_turn),
        in_scope(a_sequence_can_be_stopped),
        in_scope(one_token_is_downloaded_per_token),
        in_scope(outputs_have_log_probabilities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
