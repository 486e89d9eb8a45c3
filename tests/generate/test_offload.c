/* test_offload.c: models with their last layers on the CPU: the same tokens, one transfer each way, and errors when
 * memory is short. The mirror's devices have 16 MiB here. */
#include <tarn/profile.h>

#include "support/check.h"
#include "support/scratch.h"

#define CPU tarn_device_cpu()
#define MIB ((int64_t)1 << 20)
enum { VOCAB = 64, MADE = 24 };

static tarn_device mirror(void)
{
    return tarn_device_parse("mirror:0");
}

/* Gives a model an opinion: weights as they are at the beginning make all tokens alike. */
static tarn_module *opinionated(tarn_module *model)
{
    assert_non_null(model);
    tarn_seed(4);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p), tarn_normal(tarn_shape_of(p), 0, 0.2, tarn_dtype_of(p), CPU)));
    }
    assert_true(tarn_module_train(model, false));
    assert_ok();
    return model;
}

static tarn_module *make_gpt2(void)
{
    const tarn_gpt2_config config = {.vocab_size = VOCAB, .context = 48, .layers = 4, .heads = 2, .hidden_size = 32};
    return opinionated(tarn_model_gpt2(&config, CPU, 5));
}

static tarn_module *make_llama(void)
{
    const tarn_llama_config config = {.vocab_size = VOCAB,
                                      .context = 48,
                                      .layers = 4,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .hidden_size = 32,
                                      .ffn_size = 48,
                                      .head_dim = 8,
                                      .tie_embeddings = true};
    return opinionated(tarn_model_llama(&config, CPU, 5));
}

/* ---- the same text ----------------------------------------------------------------------------------------------- */

static void write_some(tarn_module *model, int32_t *made, uint64_t seed)
{
    const int32_t prompt[] = {3, 1, 4, 1, 5};
    const tarn_generate_options how = {
        .max_tokens = MADE, .ignore_eos = true, .temperature = seed ? 1 : 0, .seed = seed};
    assert_int_equal(tarn_generate(model, prompt, 5, made, &how), MADE);
}

static void an_offloaded_model_generates_the_same_tokens(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_module *(*const makers[])(void) = {make_gpt2, make_llama};
    for (int kind = 0; kind < 2; kind++) {
        tarn_module *model = makers[kind]();
        int32_t alone[2][MADE], placed[MADE];
        write_some(model, alone[0], 0);
        write_some(model, alone[1], 7);
        for (int64_t layers = 1; layers <= 4; layers++) {
            tarn_model_info info;
            assert_true(tarn_model_offload(model, mirror(), layers));
            assert_true(tarn_model_query(model, &info));
            assert_int_equal(info.device_layers, layers);
            assert_true(tarn_device_equal(info.device, mirror()));
            for (int i = 0; i < 2; i++) {
                write_some(model, placed, i ? 7 : 0);
                assert_memory_equal(placed, alone[i], sizeof(placed));
            }
        }
        tarn_module_free(model);
    }
}

/* Lengths that differ are read by kernels on both sides; prompts come in chunks, and texts go back. */
static void sequences_of_different_lengths_are_the_same(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    enum { TEXTS = 3 };
    const int32_t prompt[] = {9, 2, 6, 5, 3, 5, 8, 9, 7};
    int32_t made[2][TEXTS][MADE];
    for (int placed = 0; placed < 2; placed++) {
        tarn_module *model = make_llama();
        assert_true(!placed || tarn_model_offload(model, mirror(), 2));
        for (tarn_kv_type kv_type = TARN_KV_MODEL; kv_type <= TARN_KV_Q8_0;
             kv_type = kv_type ? kv_type + 1 : TARN_KV_Q8_0) {
            tarn_generator *generator = tarn_generator_new(
                model, NULL,
                &(tarn_generator_options){.sequences = TEXTS, .context = 40, .kv_type = kv_type, .prefill_chunk = 4});
            int64_t count[TEXTS] = {0};
            assert_non_null(generator);
            for (int i = 0; i < TEXTS; i++)
                assert_true(
                    tarn_generator_prompt(generator, i, prompt, 3 * i + 1,
                                          &(tarn_generate_options){.max_tokens = MADE - 4 * i, .ignore_eos = true}));
            for (tarn_output output; tarn_generator_next(generator, &output);)
                made[placed][output.sequence][count[output.sequence]++] = output.token;
            assert_ok();
            for (int i = 0; i < TEXTS; i++)
                assert_int_equal(count[i], MADE - 4 * i);
            tarn_generator_free(generator);
        }
        tarn_module_free(model);
    }
    for (int i = 0; i < TEXTS; i++)
        assert_memory_equal(made[0][i], made[1][i], sizeof(int32_t) * (size_t)(MADE - 4 * i));
}

static void the_loss_is_the_same(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    int64_t tokens[2 * 17];
    uint64_t seed = test_seed(11);
    for (int i = 0; i < 2 * 17; i++)
        tokens[i] = random_below(&seed, VOCAB);
    tarn_module *(*const makers[])(void) = {make_gpt2, make_llama};
    for (int kind = 0; kind < 2; kind++) {
        tarn_module *model = makers[kind]();
        tarn_tensor *all = good(tarn_from_i64(tokens, TARN_SHAPE(2, 17), CPU));
        double expected = tarn_item(good(tarn_model_loss(model, tarn_slice(all, 1, 0, 16), tarn_slice(all, 1, 1, 17))));
        assert_true(tarn_model_offload(model, mirror(), 3));
        all = good(tarn_to(all, mirror()));
        double loss = tarn_item(good(tarn_model_loss(model, tarn_slice(all, 1, 0, 16), tarn_slice(all, 1, 1, 17))));
        assert_true(loss > expected - 1e-5 && loss < expected + 1e-5);
        tarn_module_free(model);
    }
}

/* ---- crossings --------------------------------------------------------------------------------------------------- */

/* Transfers per decoded token, once all buffers exist. */
static tarn_counters crossings_of_a_token(tarn_module *model)
{
    tarn_decoder *decoder = tarn_decoder_new(model, NULL);
    tarn_sampler *sampler = tarn_sampler_new(NULL);
    tarn_tensor *token = good(tarn_zeros(TARN_SHAPE(1, 1), TARN_I64, mirror()));
    int64_t id;
    for (int i = 0; i < 8; i++) {
        tarn_stats_reset();
        token = good(tarn_sampler_sample(sampler, tarn_decoder_feed(decoder, token)));
        assert_true(tarn_read(token, &id, sizeof(id)));
    }
    tarn_counters found = tarn_stats();
    tarn_sampler_free(sampler);
    tarn_decoder_free(decoder);
    return found;
}

static void activations_are_transferred_once_each_way(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_module *(*const makers[])(void) = {make_gpt2, make_llama};
    for (int kind = 0; kind < 2; kind++) {
        tarn_module *model = makers[kind]();
        for (int64_t layers = 1; layers <= 4; layers++) {
            assert_true(tarn_model_offload(model, mirror(), layers));
            tarn_counters s = crossings_of_a_token(model);
            bool is_split = layers < 4;
            assert_int_equal(s.uploads, is_split);
            assert_int_equal(s.upload_bytes, is_split ? 32 * (int64_t)sizeof(float) : 0);
            assert_int_equal(s.downloads, 1 + is_split); /* and the token's number */
            assert_int_equal(s.download_bytes, (int64_t)sizeof(int64_t) + (is_split ? 32 * (int64_t)sizeof(float) : 0));
            assert_int_equal(s.fallbacks, 0);
        }
        tarn_module_free(model);
    }
}

/* ---- too little memory ------------------------------------------------------------------------------------------- */

/* 8 layers of 3 MiB each in f32. */
static tarn_module *make_large(int64_t layers)
{
    const tarn_gpt2_config config = {
        .vocab_size = VOCAB, .context = 2048, .layers = layers, .heads = 4, .hidden_size = 256};
    return tarn_model_gpt2(&config, CPU, 5);
}

static void an_error_for_weights_that_do_not_fit_says_what_would(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    const char *folder = scratch("large");
    tarn_module *model = make_large(8);
    int32_t alone[MADE], placed[MADE];
    tarn_module_train(model, false);
    write_some(model, alone, 0);
    assert_true(tarn_model_write(model, folder));
    tarn_module_free(model);
    assert_null(tarn_model_open(folder, mirror(), NULL));
    assert_error_about(TARN_ERROR_MEMORY, "model_open: the weights, with 8 layers, take 26.",
                       "more than mirror:0 has free; 4 of 8 layers would fit");
    assert_int_equal(tarn_memory_of(mirror()).used, 0);
    model = tarn_model_open(folder, mirror(), &(tarn_model_open_options){.device_layers = 4});
    assert_non_null(model);
    tarn_module_free(model);
    /* with room for what passes between layers */
    model = tarn_model_open(folder, mirror(), &(tarn_model_open_options){.device_layers = 3});
    assert_non_null(model);
    write_some(model, placed, 0);
    assert_memory_equal(placed, alone, sizeof(placed));
    tarn_module_free(model);
    assert_null(tarn_model_open(folder, mirror(), &(tarn_model_open_options){.device_layers = 9}));
    assert_error(TARN_ERROR_ARGUMENT, "model_open: 9 layers on the device; it must be from 1 to the model's 8");
    assert_true(tarn_empty_cache(mirror()));
}

static void an_error_for_a_kv_cache_that_does_not_fit_says_what_would(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_module *model = make_large(3);
    assert_true(tarn_model_offload(model, mirror(), 0));
    assert_null(tarn_decoder_new(model, NULL)); /* 12 MiB of keys and values, where 4 are free */
    assert_contains(tarn_error(), "with .kv_type = q8_0 all 2048 tokens would");
    assert_error_about(TARN_ERROR_MEMORY, "decoder_new: a KV cache of 2048 tokens takes 12.0 MiB",
                       "with 1 of 3 layers on the device (.device_layers, --gpu-layers) all would");
    assert_true(tarn_model_offload(model, mirror(), 1));
    tarn_decoder *decoder = tarn_decoder_new(model, NULL);
    assert_non_null(decoder);
    tarn_decoder_free(decoder);
    tarn_module_free(model);
    assert_true(tarn_empty_cache(mirror()));
}

int main(void)
{
    setenv("TARN_MIRROR_MEMORY", "16777216", 1);
    const struct CMUnitTest tests[] = {
        in_scope(an_offloaded_model_generates_the_same_tokens),
        in_scope(sequences_of_different_lengths_are_the_same),
        in_scope(the_loss_is_the_same),
        in_scope(activations_are_transferred_once_each_way),
        in_scope(an_error_for_weights_that_do_not_fit_says_what_would),
        in_scope(an_error_for_a_kv_cache_that_does_not_fit_says_what_would),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
