/* test_engine_adapters.c: requests that choose LoRA adapters: bit for bit the tokens and log probabilities that a model
 * with this adapter alone gives, whatever adapters the others have; pages are shared within an adapter; adapters that
 * do not fit are refused. TARN_TEST_DEVICE names the device; default: the CPU. */
#include <math.h>
#include <tarn/engine.h>
#include <tarn/lora.h>

#include "support/files.h"
#include "support/noise.h"
#include "tarn_features.h"

enum { VOCAB = 61, CONTEXT = 256, MAX_NEW = 12, REQUESTS = 20, ADAPTERS = 5, ENOUGH = 1 << 30 };

static tarn_device device;
static bool is_cpu;

/* ---- models and adapters ----------------------------------------------------------------------------------------- */

/* A model and how it is opened, with the layers of its second and third adapter. */
typedef struct kind {
    const char *arch, *few, *ends;
    tarn_dtype dtype, quantize;
} kind;

static const char *at(const char *name, int number)
{
    char full[64];
    snprintf(full, sizeof(full), "%s-%d%s", name, number, number == 4 ? ".gguf" : "");
    return scratch(full);
}

static tarn_module *open_base(const kind *k)
{
    tarn_module *model = tarn_model_open(
        at(k->arch, 0), device, &(tarn_model_open_options){.as_stored = !k->quantize, .quantize = k->quantize});
    assert_ok();
    return model;
}

static void write_base(const kind *k)
{
    tarn_lm_config config;
    assert_true(tarn_lm_config_named(k->arch, &config));
    config.vocab_size = VOCAB, config.context = CONTEXT, config.layers = 2, config.heads = 4, config.hidden_size = 32;
    config.ffn_size = 64, config.head_dim = 8, config.window = 0, config.dtype = k->dtype;
    config.eos_count = 0, config.has_bos = false;
    tarn_module *model = add_noise(tarn_model_lm(&config, device, 9));
    assert_true(tarn_model_write(model, at(k->arch, 0)));
    tarn_module_free(model);
}

/* Noise for the matrices, of which B is zero: large enough to change tokens. */
static void stir(tarn_module *model)
{
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        if (tarn_needs_grad(p))
            assert_true(tarn_copy(p, tarn_normal_like(p, 0, 0.5)));
    }
}

static void write_adapter(const kind *k, int number, const tarn_lora_options *options)
{
    tarn_module *model = open_base(k);
    assert_true(tarn_lora_add(model, options));
    stir(model);
    assert_true(tarn_lora_save(model, at("adapter", number), NULL));
    tarn_module_free(model);
}

/* Makes a saved adapter one with DoRA: magnitudes from 0.5 to 1.5 beside A and B. */
static void make_dora(int number)
{
    char weights[600], config[600], name[300];
    size_t count;
    uint64_t seed = 3;
    snprintf(weights, sizeof(weights), "%s/adapter_model.safetensors", at("adapter", number));
    snprintf(config, sizeof(config), "%s/adapter_config.json", at("adapter", number));
    char *text = get_file(config, &count), *flag = strstr(text, "\"use_dora\": false");
    assert_non_null(flag);
    memcpy(flag, "\"use_dora\":  true", 17);
    put_file(config, text, count);
    free(text);
    tarn_safetensors *from = tarn_safetensors_open(weights);
    tarn_safetensors_writer *to = tarn_safetensors_create(scratch("dora.safetensors"));
    for (int i = 0; i < tarn_safetensors_count(from); i++) {
        tarn_tensor *x = tarn_safetensors_read(from, tarn_safetensors_name(from, i), tarn_device_cpu());
        snprintf(name, sizeof(name), "%s", tarn_safetensors_name(from, i));
        assert_true(tarn_safetensors_add(to, name, x));
        char *end = strstr(name, "lora_B.weight");
        if (!end)
            continue;
        float magnitude[512];
        for (int64_t k = 0; k < tarn_size(x, 0); k++)
            magnitude[k] = 0.5F + (float)random_below(&seed, 1000) / 1000;
        strcpy(end, "lora_magnitude_vector");
        assert_true(
            tarn_safetensors_add(to, name, tarn_from_f32(magnitude, TARN_SHAPE(tarn_size(x, 0)), tarn_device_cpu())));
    }
    assert_true(tarn_safetensors_finish(to));
    tarn_safetensors_close(from);
    assert_int_equal(rename(scratch("dora.safetensors"), weights), 0);
}

/* Five: all linear layers; few of them; embedding and head too; a GGUF file; DoRA. */
static void write_adapters(const kind *k)
{
    write_base(k);
    write_adapter(k, 1, &(tarn_lora_options){.rank = 3, .seed = 1});
    write_adapter(k, 2, &(tarn_lora_options){.rank = 1, .rslora = true, .targets = k->few, .seed = 2});
    write_adapter(k, 3, &(tarn_lora_options){.rank = 2, .targets = k->ends, .dtype = k->dtype, .seed = 3});
    write_adapter(k, 4, &(tarn_lora_options){.rank = 4, .alpha = 3, .seed = 4});
    write_adapter(k, 5, &(tarn_lora_options){.rank = 2, .seed = 5});
    make_dora(5);
    assert_ok();
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

typedef struct request {
    int32_t prompt[CONTEXT], result[MAX_NEW];
    double logprob[MAX_NEW];
    int64_t count, results, shared, number;
    tarn_generate_options options;
    tarn_finish_reason reason;
} request;

/* Half of the prompts begin alike, for one page or two; adapters at random, 0 among them. The first eight fill a page,
 * so that each needs one more for its first new token. */
static void make_requests(request *r, int count, uint64_t *seed)
{
    int32_t common[CONTEXT];
    for (int i = 0; i < CONTEXT; i++)
        common[i] = (int32_t)random_below(seed, VOCAB);
    for (int i = 0; i < count; i++) {
        r[i] = (request){.count = 1 + random_below(seed, 180),
                         .options = {.max_tokens = 1 + random_below(seed, MAX_NEW),
                                     .temperature = i % 2 ? 0.9 : 0,
                                     .logprobs = true,
                                     .seed = (uint64_t)i,
                                     .adapter = random_below(seed, ADAPTERS + 1)}};
        if (i < 8)
            r[i].count = 64, r[i].options.max_tokens = MAX_NEW - i % 3;
        int64_t same = random_below(seed, 2) ? 64 * (1 + random_below(seed, 2)) + random_below(seed, 9) : 0;
        for (int64_t k = 0; k < r[i].count; k++)
            r[i].prompt[k] = k < same ? common[k] : (int32_t)random_below(seed, VOCAB);
    }
}

static void take_outputs(tarn_engine *engine, request *r, int count)
{
    for (tarn_engine_output output; tarn_engine_next(engine, &output);) {
        int i = 0;
        while (i < count && r[i].number != output.request)
            i++;
        assert_true(i < count && r[i].reason == TARN_FINISH_NONE);
        if (output.token >= 0) {
            r[i].logprob[r[i].results] = output.logprob;
            r[i].result[r[i].results++] = output.token;
        }
        r[i].reason = output.finish_reason;
        r[i].shared = output.shared;
    }
    assert_ok();
}

/* Adds the requests, up to three at a time between steps, and runs them all; of those that a seed chooses, some are
 * cancelled on the way and added again. */
static void run(tarn_engine *engine, request *r, int count, uint64_t *seed)
{
    int added = 0;
    for (int64_t left = 1; left > 0 || added < count;) {
        int more = count == 1 ? 1 : (int)random_below(seed, 4);
        for (int i = 0; i < more && added < count; i++, added++) {
            r[added].results = 0, r[added].reason = TARN_FINISH_NONE;
            r[added].number = tarn_engine_add(engine, r[added].prompt, r[added].count, &r[added].options);
            assert_true(r[added].number > 0);
        }
        left = tarn_engine_step(engine);
        assert_ok();
        take_outputs(engine, r, added);
        int last = added - 1;
        if (count > 1 && last >= 0 && r[last].reason == TARN_FINISH_NONE && random_below(seed, 4) == 0) {
            assert_true(tarn_engine_cancel(engine, r[last].number));
            take_outputs(engine, r, added);
            assert_int_equal(r[last].reason, TARN_FINISH_CANCELLED);
            added--;
        }
    }
}

/* On other devices the last bits depend on the batch. */
static void assert_same_results(const request *a, const request *b, int count)
{
    for (int i = 0; i < count; i++) {
        assert_int_equal(a[i].reason, b[i].reason);
        if (!is_cpu)
            continue;
        assert_int_equal(a[i].results, b[i].results);
        for (int64_t k = 0; k < a[i].results; k++)
            if (a[i].result[k] != b[i].result[k] || memcmp(&a[i].logprob[k], &b[i].logprob[k], sizeof(double)) != 0)
                fail_msg("request %d, adapter %d: token %lld is %d (%.17g), not %d (%.17g)", i,
                         (int)a[i].options.adapter, (long long)k, (int)b[i].result[k], b[i].logprob[k],
                         (int)a[i].result[k], a[i].logprob[k]);
    }
}

/* Every request alone, in an engine of the model with its adapter loaded; greedy tokens are tarn_generate()'s too. */
static void run_alone(const kind *k, request *r, int count)
{
    uint64_t seed = 1;
    for (int adapter = 0; adapter <= ADAPTERS; adapter++) {
        tarn_module *model = open_base(k);
        assert_true(adapter == 0 || tarn_lora_load(model, at("adapter", adapter)));
        for (int i = 0; i < count; i++) {
            if (r[i].options.adapter != adapter)
                continue;
            request one = r[i];
            int32_t expected[MAX_NEW];
            one.options.adapter = 0;
            tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.sequences = 1});
            run(engine, &one, 1, &seed);
            tarn_engine_free(engine);
            if (one.options.temperature == 0 && k->dtype == TARN_F32 && !k->quantize) {
                assert_int_equal(tarn_generate(model, one.prompt, one.count, expected, &one.options), one.results);
                assert_memory_equal(expected, one.result, sizeof(*expected) * (size_t)one.results);
            }
            one.options.adapter = adapter;
            r[i] = one;
        }
        tarn_module_free(model);
    }
}

static tarn_engine *open_engine(tarn_module *model, const tarn_engine_options *options)
{
    tarn_engine *engine = tarn_engine_new(model, options);
    for (int i = 1; i <= ADAPTERS; i++)
        assert_int_equal(tarn_engine_add_adapter(engine, at("adapter", i)), i);
    assert_ok();
    return engine;
}

/* Bytes of so many pages: a layer's keys and values are 2 · 64 · heads · 8 elements. */
static int64_t bytes_of_pages(const tarn_module *model, int64_t pages)
{
    tarn_model_info info;
    assert_true(tarn_model_query(model, &info));
    return pages * 2 * info.layers * 64 * info.kv_heads * info.head_dim * (int64_t)tarn_dtype_size(info.dtype);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static const kind kinds[] = {
    {"llama", "q_proj,v_proj", "embed_tokens,lm_head,down_proj", TARN_F32, TARN_F32},
    {"llama", "q_proj,v_proj", "embed_tokens,lm_head,up_proj", TARN_BF16, TARN_F32},
    {"llama", "up_proj,o_proj", "gate_proj,lm_head", TARN_F32, TARN_Q8_0},
    {"gpt2", "c_attn", "wte,lm_head,c_fc", TARN_F32, TARN_F32},
    {"qwen2", "k_proj", "embed_tokens,lm_head,q_proj", TARN_F32, TARN_F32},
    {"phi3", "qkv_proj", "gate_up_proj,lm_head", TARN_BF16, TARN_F32},
};

/* All together with all pages, with so few that some requests are preempted, and alone in an engine with all adapters.
 */
static void requests_have_the_tokens_of_their_adapter_alone(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    static request alone[REQUESTS], others[REQUESTS];
    uint64_t seed = test_seed(6);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        tarn_engine_stats stats;
        write_adapters(&kinds[i]);
        make_requests(alone, REQUESTS, &seed);
        run_alone(&kinds[i], alone, REQUESTS);
        tarn_module *model = open_base(&kinds[i]);
        tarn_engine *engine = open_engine(model, &(tarn_engine_options){.prompt_tokens = 100});
        memcpy(others, alone, sizeof(others));
        run(engine, others, REQUESTS, &seed);
        assert_same_results(alone, others, REQUESTS);
        for (int k = 0; k < REQUESTS; k++) {
            run(engine, &others[k], 1, &seed);
            assert_same_results(&alone[k], &others[k], 1);
        }
        assert_true(tarn_engine_query(engine, &stats) && stats.shared_tokens > 0 && stats.free_pages == stats.pages);
        tarn_engine_free(engine);
        engine = open_engine(
            model, &(tarn_engine_options){.prompt_tokens = 33, .kv_bytes = bytes_of_pages(model, 5), .sequences = 8});
        run(engine, others, REQUESTS, &seed);
        assert_same_results(alone, others, REQUESTS);
        assert_true(tarn_engine_query(engine, &stats) && stats.preemptions > 0 && stats.free_pages == stats.pages);
        tarn_engine_free(engine);
        tarn_module_free(model);
    }
}

/* Adapters change what is computed: else the test above says nothing. */
static void adapters_give_other_tokens(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    request r[ADAPTERS + 1] = {{.count = 0}};
    uint64_t seed = 2;
    write_adapters(&kinds[0]);
    tarn_module *model = open_base(&kinds[0]);
    tarn_engine *engine = open_engine(model, NULL);
    for (int i = 0; i <= ADAPTERS; i++)
        r[i] =
            (request){.prompt = {5, 9, 2}, .count = 3, .options = {.max_tokens = 12, .logprobs = true, .adapter = i}};
    run(engine, r, ADAPTERS + 1, &seed);
    for (int i = 0; i <= ADAPTERS; i++)
        for (int k = 0; k < i; k++)
            assert_true(r[i].logprob[0] != r[k].logprob[0]);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* One prompt of two pages: with another adapter nothing is shared, neither later nor while both run. */
static void pages_are_shared_within_an_adapter(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    static request r[6];
    uint64_t seed = 2;
    write_adapters(&kinds[0]);
    tarn_module *model = open_base(&kinds[0]);
    tarn_engine *engine = open_engine(model, NULL);
    for (int i = 0; i < 6; i++) {
        r[i] = (request){.count = 140, .options = {.max_tokens = 2, .adapter = i % 3}};
        for (int k = 0; k < 140; k++)
            r[i].prompt[k] = k % VOCAB;
    }
    for (int i = 0; i < 6; i++) {
        run(engine, &r[i], 1, &seed);
        assert_int_equal(r[i].shared, i < 3 ? 0 : 128);
    }
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 140; k++)
            r[i].prompt[k] = (k + 7) % VOCAB;
    for (int i = 0; i < 6; i++)
        r[i].number = tarn_engine_add(engine, r[i].prompt, r[i].count, &r[i].options), r[i].reason = TARN_FINISH_NONE;
    while (tarn_engine_step(engine) > 0)
        take_outputs(engine, r, 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(r[i].shared, i < 3 ? 0 : 128);
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* The numbers of its parameters, and whether they are trained, are those before. */
static void the_model_stays_as_it_is(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    write_adapters(&kinds[0]);
    tarn_module *model = open_base(&kinds[0]);
    int count = tarn_module_parameter_count(model);
    bool trained = tarn_needs_grad(tarn_module_parameter(model, 0));
    tarn_engine *engine = open_engine(model, NULL);
    assert_int_equal(tarn_module_parameter_count(model), count);
    assert_int_equal(tarn_needs_grad(tarn_module_parameter(model, 0)), trained);
    assert_false(tarn_lora_has(model));
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static void refuse(tarn_engine *engine, const char *path, tarn_code code, const char *part, const char *other)
{
    assert_int_equal(tarn_engine_add_adapter(engine, path), -1);
    assert_error_about(code, part, other);
}

static void adapters_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    const int64_t tokens[] = {3, 5};
    const int32_t prompt[] = {1};
    write_adapters(&kinds[0]);
    write_adapter(&kinds[0], 6, &(tarn_lora_options){.rank = 1, .targets = "q_proj", .modules_to_save = "lm_head"});
    write_adapter(
        &kinds[0], 7,
        &(tarn_lora_options){.rank = 1, .targets = "q_proj", .trained_tokens = tokens, .trained_token_count = 2});
    tarn_module *model = open_base(&kinds[0]);
    const tarn_llama_config wider = {.vocab_size = VOCAB,
                                     .context = CONTEXT,
                                     .layers = 2,
                                     .heads = 4,
                                     .kv_heads = 4,
                                     .hidden_size = 64,
                                     .ffn_size = 64,
                                     .head_dim = 8};
    tarn_module *other = tarn_model_llama(&wider, device, 1);
    tarn_engine *engine = tarn_engine_new(model, NULL), *others = tarn_engine_new(other, NULL);
    refuse(engine, NULL, TARN_ERROR_ARGUMENT, "engine_add_adapter: the path is NULL", "");
    refuse(engine, scratch("none"), TARN_ERROR_IO, "engine_add_adapter", "none");
    refuse(engine, at("adapter", 6), TARN_ERROR_UNSUPPORTED, "engine_add_adapter", "replaces all of 'lm_head'");
    refuse(engine, at("adapter", 7), TARN_ERROR_UNSUPPORTED, "engine_add_adapter",
           "replaces rows of 'model.embed_tokens'");
    refuse(others, at("adapter", 2), TARN_ERROR_SHAPE, "q_proj.lora_A.weight' is [1, 32]", "must be [1, 64]");
    refuse(others, at("adapter", 4), TARN_ERROR_SHAPE, ".lora_a' is [4, 32]", "must be [4, 64]");
    refuse(NULL, at("adapter", 1), TARN_ERROR_ARGUMENT, "engine_add_adapter: the engine is NULL", "");
    assert_false(tarn_lora_has(model) || tarn_lora_has(other));
    assert_int_equal(tarn_engine_add(engine, prompt, 1, &(tarn_generate_options){.adapter = 1}), -1);
    assert_error(TARN_ERROR_ARGUMENT, "engine_add: .adapter is 1; the engine has 0");
    assert_int_equal(tarn_engine_add_adapter(engine, at("adapter", 1)), 1); /* after all that */
    assert_int_equal(tarn_engine_add(engine, prompt, 1, &(tarn_generate_options){.adapter = -1}), -1);
    assert_error(TARN_ERROR_ARGUMENT, "engine_add: .adapter is -1; the engine has 1, and 0 is the model alone");
    int32_t result[4];
    assert_int_equal(tarn_generate(model, prompt, 1, result, &(tarn_generate_options){.max_tokens = 1, .adapter = 1}),
                     -1);
    assert_error(TARN_ERROR_UNSUPPORTED, ".adapter is for engines only");
    tarn_engine_free(others);
    tarn_engine_free(engine);
    assert_true(tarn_lora_load(model, at("adapter", 1)));
    engine = tarn_engine_new(model, NULL);
    refuse(engine, at("adapter", 2), TARN_ERROR_ARGUMENT, "engine_add_adapter", "already has adapters");
    tarn_engine_free(engine);
    tarn_module_free(other);
    tarn_module_free(model);
}

/* PEFT writes the weight of an embedding that is a target: that of the model is allowed, another is not. */
static void base_weights_in_a_file_must_be_those_of_the_model(void **state)
{
    (void)state;
    static const char key[] = "base_model.model.model.embed_tokens.base_layer.weight";
    if (!TARN__HAVE_JANSSON)
        skip();
    char weights[600];
    write_adapters(&kinds[0]);
    tarn_module *model = open_base(&kinds[0]);
    tarn_engine *engine = tarn_engine_new(model, NULL);
    for (int is_other = 0; is_other < 2; is_other++) {
        write_adapter(&kinds[0], 3, &(tarn_lora_options){.rank = 2, .targets = "embed_tokens"});
        snprintf(weights, sizeof(weights), "%s/adapter_model.safetensors", at("adapter", 3));
        tarn_tensor *embedding = tarn_module_parameter(model, 0), *values = tarn_to(embedding, tarn_device_cpu());
        assert_int_equal(tarn_size(values, 0), VOCAB);
        tarn_safetensors *from = tarn_safetensors_open(weights);
        tarn_safetensors_writer *to = tarn_safetensors_create(scratch("more.safetensors"));
        for (int i = 0; i < tarn_safetensors_count(from); i++)
            assert_true(
                tarn_safetensors_add(to, tarn_safetensors_name(from, i),
                                     tarn_safetensors_read(from, tarn_safetensors_name(from, i), tarn_device_cpu())));
        tarn_no_grad_open();
        assert_true(tarn_safetensors_add(to, key, is_other ? tarn_mul(values, tarn_scalar(1.01)) : values));
        tarn_no_grad_close();
        assert_true(tarn_safetensors_finish(to));
        tarn_safetensors_close(from);
        assert_int_equal(rename(scratch("more.safetensors"), weights), 0);
        if (is_other)
            refuse(engine, at("adapter", 3), TARN_ERROR_UNSUPPORTED, key, "is another weight than the model's");
        else
            assert_int_equal(tarn_engine_add_adapter(engine, at("adapter", 3)), 1);
    }
    tarn_engine_free(engine);
    tarn_module_free(model);
}

/* Whatever allocation fails: the adapter is refused or the request ends, the model is unchanged, nothing leaks. */
static void out_of_memory_refuses_adapters_and_ends_requests(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON || !is_cpu)
        skip();
    const int32_t prompt[] = {1, 2, 3};
    int refused = 0, failed = 0, finished = 0;
    tarn_empty_cache(device);
    allocations_left = ENOUGH;
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    tarn_scope *scope = tarn_scope_open();
    write_adapters(&kinds[0]);
    tarn_module *model = open_base(&kinds[0]);
    for (int room = 0; finished == 0; room++) {
        assert_true(room < 5000);
        tarn_engine *engine = tarn_engine_new(model, &(tarn_engine_options){.sequences = 2});
        tarn_empty_cache(device);
        allocations_left = room;
        int64_t adapter = tarn_engine_add_adapter(engine, at("adapter", room % 2 ? 5 : 4));
        int64_t number =
            adapter < 0
                ? -1
                : tarn_engine_add(engine, prompt, 3,
                                  &(tarn_generate_options){.max_tokens = 2, .adapter = adapter, .logprobs = true});
        tarn_finish_reason reason = TARN_FINISH_NONE;
        for (bool goes_on = number > 0; goes_on && reason == TARN_FINISH_NONE;) {
            goes_on = tarn_engine_step(engine) >= 0;
            tarn_clear_error();
            for (tarn_engine_output output; tarn_engine_next(engine, &output);)
                reason = output.finish_reason;
        }
        allocations_left = ENOUGH;
        tarn_clear_error();
        assert_false(tarn_lora_has(model));
        refused += adapter < 0;
        failed += reason == TARN_FINISH_ERROR;
        finished += reason == TARN_FINISH_LENGTH;
        tarn_engine_free(engine);
    }
    assert_true(refused > 3 && failed > 3);
    tarn_module_free(model);
    tarn_scope_close(scope);
    tarn_empty_cache(device);
    assert_true(tarn_set_allocator(NULL)); /* fails if bytes leaked */
}

int main(void)
{
    device = test_device("cpu");
    is_cpu = tarn_device_equal(device, tarn_device_cpu());
    const struct CMUnitTest tests[] = {
        in_scope(requests_have_the_tokens_of_their_adapter_alone),
        in_scope(adapters_give_other_tokens),
        in_scope(pages_are_shared_within_an_adapter),
        in_scope(the_model_stays_as_it_is),
        in_scope(adapters_that_do_not_fit_are_refused),
        in_scope(base_weights_in_a_file_must_be_those_of_the_model),
        cmocka_unit_test(out_of_memory_refuses_adapters_and_ends_requests),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
