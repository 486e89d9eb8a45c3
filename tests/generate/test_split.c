/* test_split.c: models with their layers on several devices: the tokens of one device for every architecture, KV cache
 * type, quantized weights, adapters and engines; one transfer per boundary; plans by free memory and by proportions;
 * and errors that name what each device needs. The mirror's devices have 16 MiB here. */
#include <tarn/engine.h>
#include <tarn/lora.h>
#include <tarn/profile.h>

#include "support/arch_models.h"
#include "support/check.h"
#include "support/noise.h"
#include "support/scratch.h"

#define CPU tarn_device_cpu()
enum { MADE = 12, LAYERS = 3, PROMPT = 5, TEXTS = 3 };

static const int32_t prompt[9] = {3, 1, 4, 1, 5, 9, 2, 6, 5};

static tarn_device mirror(int index)
{
    return tarn_device_parse(index ? "mirror:1" : "mirror:0");
}

static bool is_here(void)
{
    return tarn_device_count("mirror") > 1;
}

/* The splits of 3 layers that tests use. */
enum { SPLITS = 4 };
static tarn_model_split split_of(int which)
{
    const tarn_model_split splits[SPLITS] = {
        {.count = 2, .device = {mirror(0), mirror(1)}, .layers = {1, 2}},
        {.count = 3, .device = {CPU, mirror(0), mirror(1)}, .layers = {1, 1, 1}},
        {.count = 3, .device = {mirror(1), mirror(0), CPU}, .layers = {0, 2, 1}},
        {.count = 2, .device = {mirror(0), CPU}, .layers = {3, 0}},
    };
    return splits[which];
}

/* Greedy tokens of several sequences whose prompts differ in length. */
static void write_texts(tarn_module *model, tarn_kv_type kv_type, int32_t made[TEXTS][MADE])
{
    int count[TEXTS] = {0};
    tarn_generator *generator = tarn_generator_new(
        model, NULL,
        &(tarn_generator_options){.sequences = TEXTS, .context = 24, .kv_type = kv_type, .prefill_chunk = 4});
    assert_ok();
    for (int i = 0; i < TEXTS; i++)
        assert_true(tarn_generator_prompt(generator, i, prompt, 4 * i + 1,
                                          &(tarn_generate_options){.max_tokens = MADE, .ignore_eos = true}));
    for (tarn_output output; tarn_generator_next(generator, &output);)
        made[output.sequence][count[output.sequence]++] = output.token;
    assert_ok();
    for (int i = 0; i < TEXTS; i++)
        assert_int_equal(count[i], MADE);
    tarn_generator_free(generator);
}

static void write_one(tarn_module *model, int32_t made[MADE])
{
    assert_int_equal(
        tarn_generate(model, prompt, PROMPT, made, &(tarn_generate_options){.max_tokens = MADE, .ignore_eos = true}),
        MADE);
}

/* The same by an engine. */
static void serve_texts(tarn_module *model, tarn_kv_type kv_type, int32_t made[TEXTS][MADE])
{
    int count[TEXTS] = {0};
    tarn_engine *engine =
        tarn_engine_new(model, &(tarn_engine_options){.context = 24, .sequences = TEXTS, .kv_type = kv_type});
    assert_ok();
    for (int i = 0; i < TEXTS; i++)
        assert_true(tarn_engine_add(engine, prompt, 4 * i + 1,
                                    &(tarn_generate_options){.max_tokens = MADE, .ignore_eos = true}) > 0);
    while (tarn_engine_step(engine) > 0)
        for (tarn_engine_output output; tarn_engine_next(engine, &output);)
            if (output.token >= 0)
                made[output.request - 1][count[output.request - 1]++] = output.token;
    assert_ok();
    for (int i = 0; i < TEXTS; i++)
        assert_int_equal(count[i], MADE);
    tarn_engine_free(engine);
}

/* ---- the same tokens --------------------------------------------------------------------------------------------- */

static void every_architecture_generates_the_same_tokens(void **state)
{
    (void)state;
    if (!is_here())
        skip();
    for (int kind = 0; kind < ARCH_CASES; kind++) {
        tarn_module *model = arch_model(&arch_cases[kind], LAYERS);
        int32_t alone[MADE], split[MADE];
        write_one(model, alone);
        for (int i = 0; i < SPLITS; i++) {
            const tarn_model_split where = split_of(i);
            assert_true(tarn_model_split_layers(model, &where));
            write_one(model, split);
            if (memcmp(alone, split, sizeof(alone)) != 0)
                fail_msg("%s, split %d", arch_cases[kind].arch, i);
        }
        tarn_module_free(model);
    }
}

/* A Llama with tied embeddings in a folder, and adapters for it. */
static void write_folders(void)
{
    tarn_lm_config config;
    assert_true(tarn_lm_config_named("llama", &config));
    config.vocab_size = 64, config.context = 48, config.layers = LAYERS, config.heads = 4, config.hidden_size = 64;
    config.ffn_size = 96, config.kv_heads = 2, config.tie_embeddings = true, config.head_dim = 32;
    tarn_module *model = add_noise(tarn_model_lm(&config, CPU, 9));
    assert_true(tarn_model_write(model, scratch("llama")));
    assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 4}));
    for (int i = 0; i < tarn_module_parameter_count(model); i++)
        if (tarn_needs_grad(tarn_module_parameter(model, i)))
            assert_true(
                tarn_copy(tarn_module_parameter(model, i), tarn_normal_like(tarn_module_parameter(model, i), 0, 0.3)));
    assert_true(tarn_lora_save(model, scratch("adapter"), NULL));
    tarn_module_free(model);
}

/* As stored or quantized, with and without adapters; on one device, or opened with a split. */
static tarn_module *open_model(bool quantizes, bool adapts, const tarn_model_split *split)
{
    tarn_module *model =
        tarn_model_open(scratch("llama"), split ? split->device[0] : CPU,
                        &(tarn_model_open_options){.quantize = quantizes ? TARN_Q8_0 : TARN_F32, .split = split});
    assert_ok();
    if (adapts)
        assert_true(tarn_lora_load(model, scratch("adapter")));
    return model;
}

static void weights_caches_adapters_and_engines_give_the_same_tokens(void **state)
{
    (void)state;
    if (!is_here())
        skip();
    write_folders();
    static const tarn_kv_type types[] = {TARN_KV_MODEL, TARN_KV_F16, TARN_KV_Q8_0};
    for (int kind = 0; kind < 4; kind++)
        for (int type = 0; type < 3; type++) {
            int32_t alone[TEXTS][MADE], served[TEXTS][MADE], split[TEXTS][MADE];
            tarn_module *model = open_model(kind & 1, kind & 2, NULL);
            write_texts(model, types[type], alone);
            serve_texts(model, types[type], served);
            tarn_module_free(model);
            for (int i = 0; i < SPLITS; i++) {
                const tarn_model_split where = split_of(i);
                model = open_model(kind & 1, kind & 2, &where);
                write_texts(model, types[type], split);
                if (memcmp(alone, split, sizeof(alone)) != 0)
                    fail_msg("weights %d, KV cache type %d, split %d", kind, (int)types[type], i);
                serve_texts(model, types[type], split);
                if (memcmp(served, split, sizeof(served)) != 0)
                    fail_msg("engine, weights %d, KV cache type %d, split %d", kind, (int)types[type], i);
                tarn_module_free(model);
            }
        }
}

/* ---- transfers --------------------------------------------------------------------------------------------------- */

static void activations_are_transferred_at_boundaries_only(void **state)
{
    (void)state;
    if (!is_here())
        skip();
    static const int64_t peers[SPLITS] = {2, 1, 1, 0}, uploads[SPLITS] = {0, 1, 1, 0}, downloads[SPLITS] = {0, 1, 1, 0};
    const int64_t row = ARCH_HIDDEN * (int64_t)sizeof(float);
    for (int kind = 0; kind < ARCH_CASES; kind++)
        for (int i = 0; i < SPLITS; i++) {
            const tarn_model_split where = split_of(i);
            tarn_module *model = arch_model(&arch_cases[kind], LAYERS);
            assert_true(tarn_model_split_layers(model, &where));
            tarn_decoder *decoder = tarn_decoder_new(model, &(tarn_decoder_options){.no_capture = true});
            tarn_tensor *token = good(tarn_zeros(TARN_SHAPE(1, 1), TARN_I64, where.device[0]));
            for (int k = 0; k < 4; k++) {
                tarn_stats_reset();
                assert_non_null(tarn_decoder_feed(decoder, token));
            }
            tarn_counters s = tarn_stats();
            assert_int_equal(s.peer_copies, peers[i]);
            assert_int_equal(s.peer_bytes, peers[i] * row);
            assert_int_equal(s.uploads, uploads[i]);
            assert_int_equal(s.upload_bytes, uploads[i] * row);
            assert_int_equal(s.downloads, downloads[i]);
            assert_int_equal(s.download_bytes, downloads[i] * row);
            assert_int_equal(s.fallbacks, 0);
            tarn_decoder_free(decoder);
            tarn_module_free(model);
        }
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

/* 8 layers of 3 MiB in f32, and 2 MiB of positions. */
static const char *write_large(void)
{
    const tarn_gpt2_config config = {.vocab_size = 64, .context = 2048, .layers = 8, .heads = 4, .hidden_size = 256};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 5);
    assert_true(tarn_model_write(model, scratch("large")));
    tarn_module_free(model);
    return scratch("large");
}

static void plans_are_by_free_memory_or_by_proportions(void **state)
{
    (void)state;
    if (!is_here())
        skip();
    tarn_model_split plan;
    const tarn_device two[] = {mirror(0), mirror(1)}, three[] = {mirror(0), mirror(1), CPU};
    const char *folder = write_large();
    assert_true(tarn_empty_cache(mirror(0)) && tarn_empty_cache(mirror(1)));
    assert_true(tarn_model_plan_split(folder, two, 2, &plan, &(tarn_model_split_options){.kv_tokens = -1}));
    assert_int_equal(plan.count, 2);
    assert_int_equal(plan.layers[0], 4);
    assert_int_equal(plan.layers[1], 4);
    assert_int_equal(plan.free_bytes[1], (int64_t)16 << 20);
    assert_int_equal(plan.kv_bytes[0], 0);
    tarn_module *model = tarn_model_open(folder, mirror(0), &(tarn_model_open_options){.split = &plan});
    assert_ok();
    /* what is counted is what is there, but for the pool's rounding of small tensors */
    for (int i = 0; i < 2; i++) {
        int64_t used = tarn_memory_of(mirror(i)).used;
        if (used < plan.weight_bytes[i] || used > plan.weight_bytes[i] + (64 << 10))
            fail_msg("mirror:%d: %lld bytes for %lld", i, (long long)used, (long long)plan.weight_bytes[i]);
    }
    tarn_module_free(model);
    assert_true(tarn_empty_cache(mirror(0)) && tarn_empty_cache(mirror(1)));
    /* of less free memory fewer layers */
    tarn_tensor *ballast = tarn_keep(good(tarn_zeros(TARN_SHAPE(6 << 20), TARN_U8, mirror(1))));
    assert_false(tarn_model_plan_split(folder, two, 2, &plan, &(tarn_model_split_options){.kv_tokens = -1}));
    assert_error_about(TARN_ERROR_MEMORY, "mirror:0 needs ", "mirror:1 needs 9.");
    assert_int_equal(plan.layers[0], 5);
    /* the CPU takes what does not fit in nine tenths of the others' memory; keys and values are counted */
    assert_true(tarn_model_plan_split(folder, three, 3, &plan, &(tarn_model_split_options){.kv_tokens = -1}));
    assert_int_equal(plan.layers[0], 4);
    assert_int_equal(plan.layers[1], 2);
    assert_int_equal(plan.layers[2], 2);
    assert_true(tarn_model_plan_split(folder, three, 3, &plan, &(tarn_model_split_options){.context = 512}));
    assert_int_equal(plan.layers[0], 3);
    assert_int_equal(plan.kv_bytes[0], 3 * 512 * 2 * 256 * 4);
    tarn_free(ballast);
    assert_true(tarn_empty_cache(mirror(1)));
    /* given proportions */
    assert_true(tarn_model_plan_split(
        folder, three, 3, &plan, &(tarn_model_split_options){.kv_tokens = -1, .tensor_split = (double[]){2, 1, 1}}));
    assert_int_equal(plan.layers[0], 4);
    assert_int_equal(plan.layers[1], 2);
    assert_int_equal(plan.layers[2], 2);
    assert_true(tarn_model_plan_split(
        folder, three, 3, &plan, &(tarn_model_split_options){.kv_tokens = -1, .tensor_split = (double[]){0, 1, 3}}));
    assert_int_equal(plan.layers[0], 0);
    assert_int_equal(plan.layers[2], 6);
}

static void an_error_names_what_each_device_needs(void **state)
{
    (void)state;
    if (!is_here())
        skip();
    const char *folder = write_large();
    const tarn_model_split where = {.count = 2, .device = {mirror(0), mirror(1)}, .layers = {7, 1}};
    assert_null(tarn_model_open(folder, mirror(0), &(tarn_model_open_options){.split = &where}));
    assert_error(TARN_ERROR_MEMORY, "model_open: the weights do not fit: mirror:0 needs 23.2 MiB of 16.0 MiB free, "
                                    "mirror:1 needs 3.0 MiB of 16.0 MiB free");
    assert_int_equal(tarn_memory_of(mirror(0)).used, 0);
    const tarn_model_split fits = {.count = 2, .device = {mirror(0), mirror(1)}, .layers = {4, 4}};
    tarn_module *model = tarn_model_open(folder, mirror(0), &(tarn_model_open_options){.split = &fits});
    assert_ok();
    assert_null(tarn_decoder_new(model, NULL));
    assert_error_about(TARN_ERROR_MEMORY, "decoder_new: a KV cache of 2048 tokens takes 16.0 MiB", "mirror:0 has free");
    tarn_module_free(model);
    assert_true(tarn_empty_cache(mirror(0)) && tarn_empty_cache(mirror(1)));
}

/* ---- bad input --------------------------------------------------------------------------------------------------- */

static void wrong_splits_are_refused(void **state)
{
    (void)state;
    if (!is_here())
        skip();
    const char *folder = write_large();
    const tarn_device twice[] = {mirror(0), mirror(0)};
    tarn_module *model = arch_model(&arch_cases[0], LAYERS);
    tarn_model_split s = split_of(0), plan;
    s.layers[1] = 1;
    assert_false(tarn_model_split_layers(model, &s));
    assert_error(TARN_ERROR_ARGUMENT, "model_split_layers: the split has 2 layers; the model has 3");
    s.layers[1] = -1;
    assert_false(tarn_model_split_layers(model, &s));
    assert_error(TARN_ERROR_ARGUMENT, "model_split_layers: the split has -1 layers on device 1; expected 0 or more");
    s.count = 17;
    assert_false(tarn_model_split_layers(model, &s));
    assert_error(TARN_ERROR_ARGUMENT, "model_split_layers: the split has 17 devices; it must have from 1 to 16");
    assert_false(tarn_model_split_layers(model, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "model_split_layers: the split is NULL");
    s = split_of(0);
    assert_null(tarn_model_open(folder, CPU, &(tarn_model_open_options){.split = &s}));
    assert_error(TARN_ERROR_ARGUMENT, "model_open: the device is cpu; it must be the split's first, mirror:0");
    assert_null(tarn_model_open(folder, mirror(0), &(tarn_model_open_options){.split = &s, .device_layers = 1}));
    assert_error(TARN_ERROR_ARGUMENT, "model_open: .device_layers is 1, and .split is given; set one of them");
    assert_null(tarn_model_open(folder, mirror(0), &(tarn_model_open_options){.split = &s}));
    assert_error(TARN_ERROR_ARGUMENT, "model_open: the split has 3 layers; the model has 8");
    assert_false(tarn_model_plan_split(folder, twice, 2, &plan, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "model_plan_split: mirror:0 is given twice; name each device once");
    assert_false(tarn_model_plan_split(folder, NULL, 2, &plan, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "model_plan_split: the devices are NULL; expected 1 to 16 of them");
    assert_false(tarn_model_plan_split(folder, twice, 1, NULL, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "model_plan_split: the result is NULL");
    assert_false(
        tarn_model_plan_split(folder, twice, 1, &plan, &(tarn_model_split_options){.tensor_split = (double[]){0}}));
    assert_error(TARN_ERROR_ARGUMENT,
                 "model_plan_split: .tensor_split has only zeros; one device at least needs layers");
    assert_false(tarn_model_plan_split(folder, twice, 1, &plan, &(tarn_model_split_options){.context = -1}));
    assert_error(TARN_ERROR_ARGUMENT, "model_plan_split: .context is negative; expected 0 or more");
    assert_false(tarn_model_plan_split(scratch("nothing"), twice, 1, &plan, NULL));
    assert_true(tarn_error_code() == TARN_ERROR_IO);
    tarn_clear_error();
    tarn_module_free(model);
}

int main(void)
{
    setenv("TARN_MIRROR_MEMORY", "16777216", 1);
    const struct CMUnitTest tests[] = {
        in_scope(every_architecture_generates_the_same_tokens),
        in_scope(weights_caches_adapters_and_engines_give_the_same_tokens),
        in_scope(activations_are_transferred_at_boundaries_only),
        in_scope(plans_are_by_free_memory_or_by_proportions),
        in_scope(an_error_names_what_each_device_needs),
        in_scope(wrong_splits_are_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
