/* test_convert.c: models between folders and GGUF files: nothing is lost on the way there and back, a model runs from
 * either with the same logits, weights become other types, and what cannot be converted is refused by its name.
 * tests/parity/gguf_files.py does so with transformers and the gguf package. */
#include <math.h>
#include <sys/stat.h>

#include "support/check.h"
#include "support/gguf_shards.h"
#include "support/scratch.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef struct names {
    char folder[256], gguf[256], back[256];
} names;

static names named(const char *name)
{
    names n;
    snprintf(n.folder, sizeof(n.folder), "%s", scratch(name));
    snprintf(n.gguf, sizeof(n.gguf), "%s.gguf", n.folder);
    snprintf(n.back, sizeof(n.back), "%s-back", n.folder);
    return n;
}

static const tarn_llama_config small = {
    .vocab_size = 300, .context = 64, .layers = 2, .heads = 4, .hidden_size = 64, .ffn_size = 96, .kv_heads = 2};

/* Parameters far from those of a beginning, so that an order that is wrong shows. */
static tarn_module *make_model(tarn_llama_config config)
{
    tarn_module *model = tarn_model_llama(&config, CPU, 3);
    assert_ok();
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        assert_true(tarn_copy(p, tarn_normal_like(p, 0, 0.3)));
    }
    assert_true(tarn_module_train(model, false));
    return model;
}

static tarn_tensor *logits_of(tarn_module *model)
{
    const int32_t ids[] = {1, 17, 299, 0, 44, 44, 3, 120};
    tarn_no_grad_open();
    tarn_tensor *logits = good(tarn_forward(model, tarn_from_i32(ids, TARN_SHAPE(1, 8), CPU)));
    tarn_no_grad_close();
    return logits;
}

static tarn_tensor *logits_from(const char *path)
{
    tarn_module *model = tarn_model_open(path, CPU, NULL);
    assert_ok();
    tarn_tensor *logits = logits_of(model);
    tarn_module_free(model);
    return logits;
}

static void check_same_files(const char *one, const char *other, const char *name)
{
    char path[512];
    size_t a_count, b_count;
    snprintf(path, sizeof(path), "%s/%s", one, name);
    char *a = get_file(path, &a_count);
    snprintf(path, sizeof(path), "%s/%s", other, name);
    char *b = get_file(path, &b_count);
    assert_int_equal(a_count, b_count);
    assert_memory_equal(a, b, a_count);
    free(a);
    free(b);
}

/* ---- there and back ---------------------------------------------------------------------------------------------- */

/* Without a tokenizer that must be said: llama.cpp refuses files that do not. */
static void check_says_none(const char *path)
{
    tarn_gguf *file = tarn_gguf_open(path);
    assert_non_null(file);
    assert_string_equal(tarn_gguf_string(file, "tokenizer.ggml.model", NULL), "none");
    tarn_gguf_close(file);
}

/* Writes a model, converts it there and back, and compares files, configuration and logits. */
static void go_round(const char *name, tarn_llama_config config)
{
    names n = named(name);
    tarn_module *model = make_model(config);
    tarn_convert_summary summary;
    assert_true(tarn_model_write(model, n.folder));
    assert_true(tarn_model_convert(n.folder, n.gguf, &summary, NULL));
    assert_false(summary.has_tokenizer);
    check_says_none(n.gguf);
    assert_true(tarn_model_convert(n.gguf, n.back, NULL, NULL));
    check_same_files(n.folder, n.back, "model.safetensors");
    check_same_files(n.folder, n.back, "config.json");
    if (config.dtype == TARN_F32) {
        assert_close(logits_from(n.gguf), logits_of(model), 0);
        assert_close(logits_from(n.back), logits_of(model), 0);
    }
    tarn_module_free(model);
}

static void every_architecture_survives_a_round_trip(void **state)
{
    (void)state;
    tarn_llama_config c = small;
    go_round("llama", c);
    c.tie_embeddings = true;
    c.rope_scaling = TARN_ROPE_LLAMA3;
    c.rope_factor = 32;
    c.rope_theta = 500000;
    c.rope_original_context = 16;
    c.has_bos = true;
    c.bos = 1, c.eos_count = 3, c.eos[0] = 2, c.eos[1] = 7, c.eos[2] = 9;
    go_round("llama3", c);
    c = small;
    c.arch = "mistral";
    c.rope_scaling = TARN_ROPE_LINEAR;
    c.rope_factor = 2.5;
    c.head_dim = 6; /* not width / heads */
    go_round("mistral", c);
    c = small;
    c.arch = "qwen2";
    c.qkv_bias = true;
    c.dtype = TARN_BF16;
    go_round("qwen2", c);
    c = small;
    c.arch = "qwen3";
    c.qk_norm = true;
    c.epsilon = 1e-6;
    c.dtype = TARN_F16;
    go_round("qwen3", c);
}

/* Llama 3's divisors of frequencies are a tensor, and so are in another file than the metadata. */
static void a_model_in_shards_is_as_the_whole_file(void **state)
{
    (void)state;
    names n = named("sharded");
    tarn_llama_config c = small;
    c.rope_scaling = TARN_ROPE_LLAMA3;
    c.rope_factor = 32, c.rope_original_context = 16;
    tarn_module *model = make_model(c);
    assert_true(tarn_model_write(model, n.folder) && tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    split_gguf(n.gguf, "parts", 4);
    for (int i = 0; i < 4; i++)
        assert_close(logits_from(shard_path("parts", i, 4)), logits_of(model), 0);
    tarn_module_free(model);
    assert_true(tarn_model_convert(shard_path("parts", 0, 4), n.back, NULL, NULL));
    check_same_files(n.folder, n.back, "model.safetensors");
    check_same_files(n.folder, n.back, "config.json");
    const tarn_convert_options how = {.quantize = true, .type = TARN_Q8_0};
    mkdir(scratch("one"), 0777);
    mkdir(scratch("two"), 0777);
    assert_true(tarn_model_convert(n.gguf, scratch("one/q8.gguf"), NULL, &how));
    assert_true(tarn_model_convert(shard_path("parts", 0, 4), scratch("two/q8.gguf"), NULL, &how));
    check_same_files(scratch("one"), scratch("two"), "q8.gguf");
}

static void weights_are_views_of_the_mapped_file(void **state)
{
    (void)state;
    names n = named("mapped");
    tarn_llama_config c = small;
    c.arch = "qwen3"; /* whose rows keep their order */
    c.qk_norm = true;
    tarn_module *model = make_model(c);
    assert_true(tarn_model_write(model, n.folder) && tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    tarn_module_free(model);
    int64_t before = tarn_memory_of(CPU).used;
    model = tarn_model_open(n.gguf, CPU, NULL);
    assert_ok();
    assert_int_equal(tarn_memory_of(CPU).used, before);
    tarn_module_free(model);
}

static void a_tokenizer_goes_with_its_model(void **state)
{
    (void)state;
    if (!TARN__HAVE_PCRE2)
        skip();
    names n = named("spoken");
    tarn_llama_config config = small;
    config.has_bos = true, config.eos_count = 1; /* token 0, of which the tokenizer's files say nothing */
    tarn_convert_summary summary;
    tarn_tokenizer *t =
        tarn_bpe_train(&(const char *){"the cat sat on the mat, the cat sat"}, &(size_t){35}, 1, 280, NULL);
    assert_ok();
    tarn_module *model = make_model(config);
    assert_true(tarn_model_write(model, n.folder) && tarn_tokenizer_save(t, n.folder));
    tarn_module_free(model);
    assert_true(tarn_model_convert(n.folder, n.gguf, &summary, NULL) && summary.has_tokenizer);
    tarn_gguf *file = tarn_gguf_open(n.gguf);
    tarn_gguf_value tokens, merges;
    size_t length;
    int64_t begin = -1, end = -1;
    assert_true(tarn_gguf_int(file, "tokenizer.ggml.bos_token_id", 0, 0, &begin));
    assert_true(tarn_gguf_int(file, "tokenizer.ggml.eos_token_id", 0, 0, &end));
    assert_string_equal(tarn_gguf_string(file, "tokenizer.ggml.model", NULL), "gpt2");
    assert_string_equal(tarn_gguf_string(file, "tokenizer.ggml.pre", NULL), "gpt-2");
    /* one for each row */
    assert_true(tarn_gguf_has(file, "tokenizer.ggml.tokens", &tokens) && tokens.count == small.vocab_size);
    assert_true(tarn_gguf_has(file, "tokenizer.ggml.merges", &merges) && merges.count == tarn_tokenizer_count(t) - 257);
    assert_memory_equal(tarn_gguf_string_at(file, "tokenizer.ggml.tokens", 299, &length), "[PAD299]", 8);
    tarn_gguf_close(file);
    assert_true(tarn_model_convert(n.gguf, n.back, &summary, NULL) && summary.has_tokenizer);
    check_same_files(n.folder, n.back, "tokenizer.json");
    tarn_tokenizer *again = tarn_tokenizer_open(n.back);
    assert_int_equal(tarn_tokenizer_hash(again), tarn_tokenizer_hash(t));
    tarn_tokenizer_free(again);
    tarn_tokenizer_free(t);
}

/* ---- other types ------------------------------------------------------------------------------------------------- */

static double distance(tarn_tensor *a, tarn_tensor *b)
{
    double sum = 0, all = 0, *x = values_of(a), *y = values_of(b);
    for (int64_t i = 0; i < tarn_count(a); i++) {
        sum += (x[i] - y[i]) * (x[i] - y[i]);
        all += y[i] * y[i];
    }
    free(x);
    free(y);
    return sqrt(sum / all);
}

static void weights_are_converted_to_other_types(void **state)
{
    (void)state;
    static const struct {
        tarn_dtype type;
        double most; /* of the logits' distance */
        int promoted;
    } rows[] = {{TARN_F32, 0, 0},    {TARN_F16, 3e-3, 0}, {TARN_BF16, 2e-2, 0}, {TARN_Q8_0, 3e-2, 0},
                {TARN_Q6_K, 0.1, 0}, {TARN_Q4_0, 0.5, 0}, {TARN_Q4_K, 0.4, 1}};
    names n = named("packed");
    tarn_llama_config c = small;
    c.hidden_size = c.ffn_size = 256;
    tarn_module *model = make_model(c);
    /* smaller, so that the network does not blow its errors up */
    for (int i = 0; i < tarn_module_parameter_count(model); i++)
        assert_true(
            tarn_copy(tarn_module_parameter(model, i), tarn_mul(tarn_module_parameter(model, i), tarn_scalar(0.2))));
    assert_true(tarn_model_write(model, n.folder) && tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tarn_convert_summary s;
        const tarn_convert_options how = {.quantize = true, .type = rows[i].type, .replace = true};
        assert_true(tarn_model_convert(n.gguf, scratch("to.gguf"), &s, &how));
        assert_true(s.unquantized == 5 && s.fallback == 0 && s.promoted == rows[i].promoted && s.tensors == 21);
        double off = distance(logits_from(scratch("to.gguf")), logits_of(model));
        print_message("%s: %.2g bytes, logits off by %.2g\n", tarn_dtype_name(rows[i].type), (double)s.after, off);
        assert_true(off <= rows[i].most);
        assert_true(tarn_model_convert(n.folder, scratch("direct.gguf"), &s, &how)); /* without the step between */
        assert_close(logits_from(scratch("direct.gguf")), logits_from(scratch("to.gguf")), 0);
    }
    tarn_module_free(model);
}

/* All matrices of a file are of that type. */
static void expect_types(const char *path, tarn_dtype dtype)
{
    tarn_gguf *file = tarn_gguf_open(path);
    tarn_gguf_entry e;
    assert_non_null(file);
    for (int i = 0; i < tarn_gguf_count(file); i++)
        assert_true(tarn_gguf_info(file, i, &e) && e.dtype == (e.shape.rank > 1 ? dtype : TARN_F32));
    tarn_gguf_close(file);
}

/* Rows of 24 fit no block size: such tensors stay unchanged. */
static void rows_that_are_not_a_multiple_of_the_block_size_stay(void **state)
{
    (void)state;
    tarn_convert_summary s;
    tarn_gguf_writer *w = tarn_gguf_create(scratch("odd.gguf"));
    assert_true(tarn_gguf_add(w, "a.weight", tarn_ones(TARN_SHAPE(2, 24), TARN_BF16, CPU)) &&
                tarn_gguf_add(w, "b.weight", tarn_ones(TARN_SHAPE(2, 512), TARN_BF16, CPU)));
    assert_true(tarn_gguf_finish(w));
    assert_true(tarn_model_convert(scratch("odd.gguf"), scratch("to.gguf"), &s,
                                   &(tarn_convert_options){.quantize = true, .type = TARN_Q4_K, .replace = true}));
    assert_true(s.fallback == 1 && s.changed == 1);
    tarn_gguf *file = tarn_gguf_open(scratch("to.gguf"));
    tarn_gguf_entry e;
    assert_true(tarn_gguf_info(file, tarn_gguf_find(file, "a.weight"), &e) && e.dtype == TARN_BF16);
    assert_true(tarn_gguf_info(file, tarn_gguf_find(file, "b.weight"), &e) && e.dtype == TARN_Q4_K);
    tarn_gguf_close(file);
}

/* A folder, or a GGUF file, that lacks a tensor, or has one too many, is refused by its name, both ways. */
static void missing_and_foreign_tensors_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *left_out, *added, *sentence;
    } cases[] = {{"model.layers.1.mlp.up_proj.weight", NULL, "has no tensor 'model.layers.1.mlp.up_proj.weight'"},
                 {"model.norm.weight", NULL, "has no tensor 'model.norm.weight'"},
                 {"model.embed_tokens.weight", NULL, "has no tensor 'model.embed_tokens.weight'"},
                 {NULL, "model.layers.7.mlp.up_proj.weight", "7.mlp.up_proj.weight'; a llama"},
                 {NULL, "model.layers.0.self_attn.q_norm.weight", "q_norm.weight'; a"}};
    names n = named("lacking");
    tarn_module *model = make_model(small);
    assert_true(tarn_model_write(model, n.folder));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/model.safetensors", n.folder);
        tarn_safetensors_writer *w = tarn_safetensors_create(path);
        for (int k = 0; k < tarn_module_parameter_count(model); k++)
            if (!cases[i].left_out || strcmp(tarn_module_parameter_name(model, k), cases[i].left_out) != 0)
                assert_true(
                    tarn_safetensors_add(w, tarn_module_parameter_name(model, k), tarn_module_parameter(model, k)));
        assert_true(!cases[i].added ||
                    tarn_safetensors_add(w, cases[i].added, tarn_ones(TARN_SHAPE(2), TARN_F32, CPU)));
        assert_true(tarn_safetensors_finish(w));
        assert_false(
            tarn_model_convert(n.folder, scratch("lacking.gguf"), NULL, &(tarn_convert_options){.replace = true}));
        assert_error_about(TARN_ERROR_FORMAT, "model_convert", cases[i].sentence);
    }
    assert_true(tarn_model_write(model, n.folder) && tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    tarn_module_free(model);
    tarn_gguf *file = tarn_gguf_open(n.gguf);
    tarn_gguf_writer *w = tarn_gguf_create(scratch("lacking.gguf"));
    for (int i = 0; i < tarn_gguf_metadata_count(file); i++)
        assert_true(tarn_gguf_add_from(w, file, i));
    for (int i = 0; i < tarn_gguf_count(file); i++)
        assert_true(strcmp(tarn_gguf_name(file, i), "blk.1.ffn_up.weight") == 0 ||
                    tarn_gguf_add(w, tarn_gguf_name(file, i), tarn_gguf_tensor(file, i, CPU)));
    assert_true(tarn_gguf_finish(w));
    tarn_gguf_close(file);
    assert_false(tarn_model_convert(scratch("lacking.gguf"), scratch("lacking-back"), NULL, NULL));
    assert_error_about(TARN_ERROR_FORMAT, "model_convert", "has no tensor 'blk.1.ffn_up.weight'");
}

/* A GGUF file that has one tensor more than it should. */
static void check_added_tensor(const char *from, const char *name, tarn_code code, const char *sentence)
{
    tarn_gguf *file = tarn_gguf_open(from);
    tarn_gguf_writer *w = tarn_gguf_create(scratch("added.gguf"));
    for (int i = 0; i < tarn_gguf_metadata_count(file); i++)
        assert_true(tarn_gguf_add_from(w, file, i));
    for (int i = 0; i < tarn_gguf_count(file); i++)
        assert_true(tarn_gguf_add(w, tarn_gguf_name(file, i), tarn_gguf_tensor(file, i, CPU)));
    assert_true(tarn_gguf_add(w, name, tarn_ones(TARN_SHAPE(2), TARN_F32, CPU)) && tarn_gguf_finish(w));
    tarn_gguf_close(file);
    assert_null(tarn_model_open(scratch("added.gguf"), CPU, NULL));
    assert_error_about(code, sentence, name);
}

static void biases_of_attention_and_longrope_are_named(void **state)
{
    (void)state;
    names n = named("biased");
    tarn_llama_config config = small;
    config.arch = "mistral";
    tarn_module *model = make_model(config);
    assert_true(tarn_model_write(model, n.folder) && tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    tarn_module_free(model);
    check_added_tensor(n.gguf, "blk.0.attn_q.bias", TARN_ERROR_UNSUPPORTED, "attention biases");
    check_added_tensor(n.gguf, "blk.0.attn_output.bias", TARN_ERROR_UNSUPPORTED, "attention biases");
    check_added_tensor(n.gguf, "rope_factors_short.weight", TARN_ERROR_FORMAT, "one element per pair");
}

/* The file of a small Llama with a RoPE scaling, and the folder that comes back from it. */
static tarn_gguf *scaled_file(const char *name, tarn_rope_options rope)
{
    names n = named(name);
    tarn_lm_config c = {0};
    assert_true(tarn_lm_config_named("llama", &c));
    c.vocab_size = 30, c.context = 64, c.layers = 1, c.heads = 2, c.kv_heads = 1, c.hidden_size = 16;
    c.ffn_size = 20, c.head_dim = 8, c.rope = rope;
    for (int i = 0; i < 4; i++) {
        c.rope_factors[0][i] = 1.0f + 0.1f * (float)i;
        c.rope_factors[1][i] = 3.0f + (float)i;
    }
    tarn_module *model = tarn_model_lm(&c, CPU, 5);
    assert_true(tarn_model_write(model, n.folder) && tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    tarn_module_free(model);
    assert_true(tarn_model_convert(n.gguf, n.back, NULL, NULL));
    check_same_files(n.folder, n.back, "config.json");
    tarn_gguf *file = tarn_gguf_open(n.gguf);
    assert_non_null(file);
    return file;
}

/* llama.cpp divides all angles by rope.scaling.factor, also longrope's, and multiplies cos and sin by attn_factor, with
 * yarn times 1 + ln(factor) / 10. */
static void rope_scalings_are_written_as_llama_cpp_computes_them(void **state)
{
    (void)state;
    double value;
    tarn_rope_options rope = {
        .base = 100, .dims = 8, .scaling = TARN_ROPE_LONGROPE, .factor = 4, .original_context = 16};
    tarn_gguf *file = scaled_file("longrope", rope);
    assert_false(tarn_gguf_has(file, "llama.rope.scaling.factor", NULL));
    assert_true(tarn_gguf_real(file, "llama.rope.scaling.attn_factor", &value));
    assert_float_equal(value, sqrt(1 + log(4) / log(16)), 1e-6);
    tarn_gguf_close(file);

    rope.scaling = TARN_ROPE_YARN, rope.beta_fast = 32, rope.beta_slow = 1;
    file = scaled_file("yarn", rope);
    assert_false(tarn_gguf_has(file, "llama.rope.scaling.attn_factor", NULL));
    tarn_gguf_close(file);
    rope.attention_factor = 1.25;
    file = scaled_file("yarn-factor", rope);
    assert_true(tarn_gguf_real(file, "llama.rope.scaling.attn_factor", &value));
    assert_float_equal(value * (1 + 0.1 * log(4)), 1.25, 1e-6);
    tarn_gguf_close(file);
    rope.attention_factor = 0, rope.mscale = 0.8, rope.mscale_all_dim = 0.4;
    file = scaled_file("yarn-mscale", rope);
    assert_true(tarn_gguf_real(file, "llama.rope.scaling.attn_factor", &value));
    assert_float_equal(value * (1 + 0.1 * log(4)), (1 + 0.08 * log(4)) / (1 + 0.04 * log(4)), 1e-6);
    tarn_gguf_close(file);
}

/* A file of another program has attn_factor alone. */
static void yarns_attn_factor_is_read(void **state)
{
    (void)state;
    const tarn_rope_options rope = {.base = 100,
                                    .dims = 8,
                                    .scaling = TARN_ROPE_YARN,
                                    .factor = 4,
                                    .original_context = 16,
                                    .beta_fast = 32,
                                    .beta_slow = 1,
                                    .attention_factor = 1.25};
    tarn_gguf *file = scaled_file("own", rope);
    tarn_gguf_writer *w = tarn_gguf_create(scratch("other.gguf"));
    tarn_gguf_value value;
    for (int i = 0; i < tarn_gguf_metadata_count(file); i++)
        assert_true(tarn_gguf_metadata_at(file, i, &value) &&
                    (strncmp(value.key, "tarn.", 5) == 0 || tarn_gguf_add_from(w, file, i)));
    for (int i = 0; i < tarn_gguf_count(file); i++)
        assert_true(tarn_gguf_add(w, tarn_gguf_name(file, i), tarn_gguf_tensor(file, i, CPU)));
    assert_true(tarn_gguf_finish(w));
    tarn_gguf_close(file);
    tarn_lm_config found;
    tarn_module *model = tarn_model_open(scratch("other.gguf"), CPU, NULL);
    assert_true(model && tarn_lm_config_of(model, &found));
    assert_float_equal(found.rope.attention_factor, 1.25, 1e-6);
    tarn_module_free(model);
}

/* What a conversion to a folder holds in memory is not the model. */
static void a_folder_is_written_tensor_by_tensor(void **state)
{
    (void)state;
    const tarn_llama_config config = {
        .vocab_size = 512, .context = 32, .layers = 12, .heads = 4, .kv_heads = 2, .hidden_size = 256, .ffn_size = 512};
    names n = named("streamed");
    tarn_module *model = tarn_model_llama(&config, CPU, 1);
    assert_true(
        tarn_model_write(model, n.folder) &&
        tarn_model_convert(n.folder, n.gguf, NULL, &(tarn_convert_options){.quantize = true, .type = TARN_Q8_0}));
    tarn_module_free(model);
    tarn_stats_reset();
    int64_t before = tarn_memory_of(CPU).used;
    tarn_convert_summary s;
    assert_true(tarn_model_convert(n.gguf, scratch("streamed-back"), &s, NULL));
    assert_true(s.after > 24 << 20); /* f32, where the largest tensor has 512 KiB */
    assert_true(tarn_memory_of(CPU).peak_used - before < 1 << 20);
}

static void rows_that_do_not_fit_large_blocks_fall_back_to_q8_0(void **state)
{
    (void)state;
    names n = named("uneven");
    tarn_convert_summary s;
    tarn_module *model = make_model(small); /* rows of 64 and 96 */
    assert_true(tarn_model_write(model, n.folder));
    tarn_module_free(model);
    assert_true(tarn_model_convert(n.folder, n.gguf, &s, &(tarn_convert_options){.quantize = true, .type = TARN_Q6_K}));
    assert_true(s.fallback == 16 && s.changed == 16 && s.after < s.before / 3);
    expect_types(n.gguf, TARN_Q8_0);
    /* Quantized weights stay unchanged. */
    assert_true(tarn_model_convert(n.folder, n.gguf, &s,
                                   &(tarn_convert_options){.quantize = true, .type = TARN_Q4_0, .replace = true}));
    assert_true(tarn_model_convert(n.gguf, scratch("to.gguf"), &s,
                                   &(tarn_convert_options){.quantize = true, .type = TARN_Q4_K, .replace = true}));
    assert_true(s.fallback == 16 && s.changed == 0 && s.after == s.before);
    expect_types(scratch("to.gguf"), TARN_Q4_0);
    assert_true(tarn_model_convert(n.folder, n.gguf, &s,
                                   &(tarn_convert_options){.quantize = true, .type = TARN_Q4_0, .replace = true}));
    assert_true(s.fallback == 0 && s.changed == 16 && s.after < s.before / 4);
}

static void f64_next_to_quantized_weights_is_an_error(void **state)
{
    (void)state;
    names n = named("exact");
    tarn_module *model = make_model(small);
    assert_true(
        tarn_model_write(model, n.folder) &&
        tarn_model_convert(n.folder, n.gguf, NULL, &(tarn_convert_options){.quantize = true, .type = TARN_Q8_0}));
    tarn_module_free(model);
    assert_null(tarn_model_open(n.gguf, CPU, &(tarn_model_open_options){.dtype = TARN_F64}));
    assert_error_about(TARN_ERROR_DTYPE, "tensor 'token_embd.weight' is Q8_0", "use f32, bf16 or f16");
    assert_null(tarn_model_open(n.folder, CPU, &(tarn_model_open_options){.dtype = TARN_F64, .quantize = TARN_Q8_0}));
    assert_error_about(TARN_ERROR_DTYPE, ".dtype is f64", "which .quantize does not support");
}

static void quantized_vectors_are_dequantized(void **state)
{
    (void)state;
    char blocks[2][34] = {{0, 0x3c, 1, 2, 3}, {0, 0x40, 4, 5, 6}}; /* scales 1 and 2 */
    tarn_gguf_writer *w = tarn_gguf_create(scratch("vector.gguf"));
    assert_true(tarn_gguf_add(w, "v", tarn_from(blocks, TARN_SHAPE(64), TARN_Q8_0, CPU)) && tarn_gguf_finish(w));
    assert_true(tarn_model_convert(scratch("vector.gguf"), scratch("numbers.gguf"), NULL,
                                   &(tarn_convert_options){.quantize = true}));
    tarn_gguf *file = tarn_gguf_open(scratch("numbers.gguf"));
    float expected[64] = {[0] = 1, [1] = 2, [2] = 3, [32] = 8, [33] = 10, [34] = 12};
    assert_close(good(tarn_gguf_tensor(file, 0, CPU)), tarn_from_f32(expected, TARN_SHAPE(64), CPU), 0);
    tarn_gguf_close(file);
}

/* A model in f64 has the values of one in f32. */
static void weights_become_f64(void **state)
{
    (void)state;
    names n = named("wide");
    tarn_module *model = make_model(small);
    assert_true(tarn_model_write(model, n.folder) && tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    tarn_module *wide = tarn_model_open(n.gguf, CPU, &(tarn_model_open_options){.dtype = TARN_F64});
    assert_ok();
    for (int i = 0; i < tarn_module_parameter_count(model); i++)
        assert_close(tarn_cast(tarn_module_parameter(wide, i), TARN_F32), tarn_module_parameter(model, i), 0);
    tarn_module_free(wide);
    tarn_module_free(model);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* A GGUF file of one tensor, and one key. */
static const char *write_gguf(const char *name, const char *architecture, const char *tensor_name, tarn_tensor *tensor)
{
    tarn_gguf_writer *w = tarn_gguf_create(scratch(name));
    assert_true(tarn_gguf_add_string(w, "general.architecture", architecture, strlen(architecture)) &&
                tarn_gguf_add(w, tensor_name, tensor) && tarn_gguf_finish(w));
    return scratch(name);
}

static void nan_is_an_error_that_names_the_tensor(void **state)
{
    (void)state;
    tarn_tensor *x = tarn_zeros(TARN_SHAPE(2, 256), TARN_F32, CPU);
    float values[512] = {[300] = NAN};
    assert_true(tarn_write(x, values, sizeof(values)));
    const char *path = write_gguf("nan.gguf", "any", "some.weight", x);
    const tarn_dtype types[] = {TARN_F16, TARN_BF16, TARN_Q8_0, TARN_Q4_0, TARN_Q4_K, TARN_Q6_K};
    for (int i = 0; i < 6; i++) {
        assert_false(tarn_model_convert(path, scratch("never.gguf"), NULL,
                                        &(tarn_convert_options){.quantize = true, .type = types[i]}));
        assert_error_about(TARN_ERROR_FORMAT, "nan.gguf", "tensor 'some.weight', element 300 is nan");
    }
    assert_null(tarn_gguf_open(scratch("never.gguf"))); /* nothing is left of it */
    tarn_clear_error();
}

static void existing_files_are_not_replaced(void **state)
{
    (void)state;
    names n = named("there");
    tarn_module *model = make_model(small);
    assert_true(tarn_model_write(model, n.folder) && tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    tarn_module_free(model);
    assert_false(tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    assert_error(TARN_ERROR_IO, "already exists");
    assert_false(tarn_model_convert(n.gguf, n.folder, NULL, NULL));
    assert_error(TARN_ERROR_IO, "already has a model");
    assert_true(tarn_model_convert(n.gguf, n.folder, NULL, &(tarn_convert_options){.replace = true}));
}

static void unsupported_settings_are_named(void **state)
{
    (void)state;
    const char *path =
        write_gguf("other.gguf", "mamba", "token_embd.weight", tarn_zeros(TARN_SHAPE(4, 4), TARN_F32, CPU));
    assert_null(tarn_model_open(path, CPU, NULL));
    assert_error(TARN_ERROR_UNSUPPORTED, "the architecture 'mamba' is not supported");
    assert_false(tarn_model_convert(path, scratch("out"), NULL, NULL));
    assert_error(TARN_ERROR_UNSUPPORTED, "'mamba'");
    path = write_gguf("bare.gguf", "llama", "token_embd.weight", tarn_zeros(TARN_SHAPE(4, 4), TARN_F32, CPU));
    assert_null(tarn_model_open(path, CPU, NULL));
    assert_error(TARN_ERROR_FORMAT, "has no key 'llama.context_length'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(every_architecture_survives_a_round_trip),
        in_scope(a_model_in_shards_is_as_the_whole_file),
        in_scope(weights_are_views_of_the_mapped_file),
        in_scope(a_tokenizer_goes_with_its_model),
        in_scope(weights_are_converted_to_other_types),
        in_scope(rows_that_are_not_a_multiple_of_the_block_size_stay),
        in_scope(rows_that_do_not_fit_large_blocks_fall_back_to_q8_0),
        in_scope(missing_and_foreign_tensors_are_named),
        in_scope(biases_of_attention_and_longrope_are_named),
        in_scope(rope_scalings_are_written_as_llama_cpp_computes_them),
        in_scope(yarns_attn_factor_is_read),
        in_scope(a_folder_is_written_tensor_by_tensor),
        in_scope(f64_next_to_quantized_weights_is_an_error),
        in_scope(quantized_vectors_are_dequantized),
        in_scope(weights_become_f64),
        in_scope(nan_is_an_error_that_names_the_tensor),
        in_scope(existing_files_are_not_replaced),
        in_scope(unsupported_settings_are_named),
    };
    if (!TARN__HAVE_JANSSON) {
        printf("folders need jansson: nothing to test\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
