/* test_engine_offload.c: engines of models with their last layers on the CPU: the tokens of the CPU alone, and pages of
 * a layer on its device, so that nothing but the residual stream is transferred more than without. On the mirror
 * backend, which has memory of its own and the CPU's kernels. */
#include <tarn/engine.h>
#include <tarn/profile.h>

#include "models/lm/device_map.h"
#include "support/check.h"
#include "support/noise.h"
#include "support/scratch.h"

#define CPU tarn_device_cpu()
enum { VOCAB = 61, CONTEXT = 256, LAYERS = 4, HIDDEN = 32, REQUESTS = 10, MAX_NEW = 90 };

typedef struct request {
    int32_t prompt[CONTEXT], result[MAX_NEW];
    int64_t count, results, number;
    tarn_generate_options options;
    tarn_finish_reason reason;
} request;

static tarn_device mirror(void)
{
    return tarn_device_parse("mirror:0");
}

/* arch "gpt2": with position embeddings, which are on the device of the first layer. */
static tarn_module *make_model(const char *arch, int64_t window)
{
    tarn_lm_config config;
    assert_true(tarn_lm_config_named(arch, &config));
    config.vocab_size = VOCAB, config.context = CONTEXT, config.layers = LAYERS, config.heads = 4;
    config.kv_heads = strcmp(arch, "gpt2") == 0 ? 4 : 2, config.hidden_size = HIDDEN, config.ffn_size = 64;
    config.head_dim = 8, config.window = window, config.eos_count = 1, config.eos[0] = 7, config.has_bos = false;
    return add_noise(tarn_model_lm(&config, CPU, 9));
}

static void make_requests(request *r, uint64_t *seed, int adapters)
{
    for (int i = 0; i < REQUESTS; i++) {
        r[i] = (request){.count = 5 + random_below(seed, 150),
                         .options = {.max_tokens = 1 + random_below(seed, MAX_NEW),
                                     .temperature = i % 3 ? 0 : 0.5,
                                     .ignore_eos = i % 2,
                                     .logprobs = i % 4 == 0,
                                     .adapter = adapters ? i % (adapters + 1) : 0,
                                     .seed = (uint64_t)i}};
        for (int64_t k = 0; k < r[i].count; k++)
            r[i].prompt[k] = i % 2 && k < 70 ? (int32_t)(5 * k % VOCAB) : (int32_t)random_below(seed, VOCAB);
    }
}

static void take_outputs(tarn_engine *engine, request *r, int count)
{
    for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
        int i = 0;
        while (i < count && r[i].number != output.request)
            i++;
        assert_true(i < count && r[i].reason == TARN_FINISH_NONE);
        if (output.token >= 0)
            r[i].result[r[i].results++] = output.token;
        r[i].reason = output.finish_reason;
    }
    assert_ok();
}

/* Runs all requests, two more at each step. */
static tarn_engine_stats run(tarn_module *model, const tarn_engine_options *options, const char *adapter, request *r)
{
    tarn_engine_stats stats;
    tarn_engine *engine = tarn_engine_new(model, options);
    assert_ok();
    for (int i = 0; adapter && i < 2; i++)
        assert_int_equal(tarn_engine_add_adapter(engine, adapter), i + 1);
    int added = 0;
    for (int64_t left = 1; left > 0 || added < REQUESTS;) {
        for (int more = 0; more < 2 && added < REQUESTS; more++, added++) {
            r[added].results = 0, r[added].reason = TARN_FINISH_NONE;
            r[added].number = tarn_engine_add(engine, r[added].prompt, r[added].count, &r[added].options);
            assert_ok();
        }
        left = tarn_engine_step(engine);
        assert_ok();
        take_outputs(engine, r, added);
    }
    assert_true(tarn_engine_query(engine, &stats) && stats.free_pages == stats.pages);
    tarn_engine_free(engine);
    return stats;
}

static void compare(const request *r, const request *alone, const char *what, int64_t layers)
{
    for (int i = 0; i < REQUESTS; i++)
        if (r[i].reason != alone[i].reason || r[i].results != alone[i].results || r[i].reason == TARN_FINISH_ERROR ||
            memcmp(r[i].result, alone[i].result, sizeof(*r[i].result) * (size_t)r[i].results) != 0)
            fail_msg("%s with %lld layers on the device: the tokens of request %d differ", what, (long long)layers, i);
}

/* An adapter of the model, whose update changes the tokens. */
static const char *make_adapter(void)
{
    tarn_module *model = make_model("llama", 0);
    assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 4}));
    assert_true(tarn_lora_save(add_noise(model), scratch("adapter"), NULL));
    tarn_module_free(model);
    return scratch("adapter");
}

/* Some or most layers on the device; of models with position embeddings, windows, quantized rows and
 * adapters; with few pages, so that requests are preempted, recomputed or moved to host memory. */
static void requests_have_the_tokens_of_the_cpu(void **state)
{
    (void)state;
    static const struct {
        const char *name, *arch;
        int64_t window, pages, swap;
        tarn_kv_type kv_type;
        bool has_adapters;
    } kinds[] = {{"llama", "llama", 0, 0, 0, TARN_KV_MODEL, false},
                 {"gpt2, recomputed", "gpt2", 0, 5, 0, TARN_KV_MODEL, false},
                 {"mistral, q8_0", "mistral", 70, 0, 0, TARN_KV_Q8_0, false},
                 {"llama, swapped", "llama", 0, 5, 1 << 20, TARN_KV_BF16, false},
                 {"adapters", "llama", 0, 0, 0, TARN_KV_MODEL, true}};
    static request alone[REQUESTS], r[REQUESTS];
    uint64_t seed = test_seed(8);
    if (tarn_device_count("mirror") < 1)
        skip();
    const char *adapter = make_adapter();
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        tarn_module *model = make_model(kinds[i].arch, kinds[i].window);
        int64_t heads = strcmp(kinds[i].arch, "gpt2") == 0 ? 4 : 2, size = kinds[i].kv_type == TARN_KV_BF16 ? 2 : 4;
        tarn_engine_options o = {.sequences = 4,
                                 .kv_type = kinds[i].kv_type,
                                 .kv_bytes = kinds[i].pages * 2 * LAYERS * heads * 64 * 8 * size};
        const char *path = kinds[i].has_adapters ? adapter : NULL;
        make_requests(alone, &seed, path ? 2 : 0);
        for (int k = 0; kinds[i].pages > 0 && k < REQUESTS; k++)
            alone[k].options.max_tokens = MAX_NEW, alone[k].options.ignore_eos = true;
        run(model, &o, path, alone);
        o.swap_bytes = kinds[i].swap;
        for (int64_t layers = 1; layers < LAYERS; layers += i == 0 ? 1 : 2) {
            memcpy(r, alone, sizeof(r));
            assert_true(tarn_model_offload(model, mirror(), layers));
            tarn_engine_stats stats = run(model, &o, path, r);
            compare(r, alone, kinds[i].name, layers);
            assert_int_equal(stats.preemptions > 0, kinds[i].pages > 0);
            assert_int_equal(stats.swapped_in > 0, kinds[i].swap > 0);
        }
        tarn_module_free(model);
    }
}

/* Of an eager step that decodes one token, once all buffers exist. */
static tarn_counters transfers_of_a_step(tarn_module *model)
{
    static const int32_t prompt[] = {1, 2, 3, 4, 5};
    tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.no_capture = true});
    assert_true(tarn_engine_add(engine, prompt, 5, &(tarn_generate_options){.max_tokens = 20, .ignore_eos = true}) > 0);
    for (int i = 0; i < 8; i++) {
        tarn_stats_reset();
        assert_true(tarn_engine_step(engine) > 0);
    }
    tarn_counters found = tarn_stats();
    tarn_engine_free(engine);
    assert_ok();
    return found;
}

static void the_residual_stream_is_transferred_once_each_way(void **state)
{
    (void)state;
    static const char *const archs[] = {"gpt2", "llama"};
    if (tarn_device_count("mirror") < 1)
        skip();
    for (int i = 0; i < 2; i++) {
        tarn_module *model = make_model(archs[i], 0);
        assert_true(tarn_model_offload(model, mirror(), LAYERS));
        tarn_counters whole = transfers_of_a_step(model);
        for (int64_t layers = 1; layers < LAYERS; layers++) {
            assert_true(tarn_model_offload(model, mirror(), layers));
            tarn_counters s = transfers_of_a_step(model);
            assert_int_equal(s.uploads, whole.uploads + 1);
            assert_int_equal(s.upload_bytes, whole.upload_bytes + HIDDEN * (int64_t)sizeof(float));
            assert_int_equal(s.downloads, whole.downloads + 1);
            assert_int_equal(s.download_bytes, whole.download_bytes + HIDDEN * (int64_t)sizeof(float));
            assert_int_equal(s.fallbacks, 0);
        }
        tarn_module_free(model);
    }
}

/* Half of the layers: half of the keys and values are on the device. */
static void pages_are_on_the_devices_of_their_layers(void **state)
{
    (void)state;
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_module *model = make_model("llama", 0);
    int64_t used[2];
    for (int i = 0; i < 2; i++) {
        assert_true(tarn_model_offload(model, mirror(), i ? LAYERS / 2 : LAYERS));
        int64_t before = tarn_memory_of(mirror()).used;
        tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.kv_bytes = 1 << 20});
        used[i] = tarn_memory_of(mirror()).used - before;
        tarn_engine_free(engine);
    }
    assert_in_range(used[0], (1 << 20) - (1 << 16), (1 << 20) + (1 << 16));
    assert_int_equal(used[1], used[0] / 2);
    tarn_module_free(model);
}

/* As on a device alone. Layers may be in another order than that of offloading. */
static void what_an_engine_cannot_do_is_refused(void **state)
{
    (void)state;
    static const int32_t prompt[] = {1, 2, 3};
    if (tarn_device_count("mirror") < 1)
        skip();
    tarn_module *model = make_model("llama", 0);
    assert_true(tarn_model_offload(model, mirror(), 2));
    tarn_engine *engine = tarn_engine_new(model, NULL);
    assert_ok();
    assert_true(tarn_engine_add(engine, prompt, 3, &(tarn_generate_options){.speculate = TARN_SPECULATE_NGRAM}) < 0);
    assert_error(TARN_ERROR_UNSUPPORTED, "engine_add: .speculate needs batch invariance");
    tarn_engine_free(engine);
    assert_true(tarn_module_to(tarn__model_layers(model)->child[0], CPU));
    engine = tarn_engine_new(model, NULL);
    assert_ok();
    tarn_engine_free(engine);
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(requests_have_the_tokens_of_the_cpu),
        in_scope(the_residual_stream_is_transferred_once_each_way),
        in_scope(pages_are_on_the_devices_of_their_layers),
        in_scope(what_an_engine_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
