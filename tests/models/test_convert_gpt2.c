/* test_convert_gpt2.c: GPT-2 between folders and GGUF files: nothing is lost on the way there and back, matrices lie as
 * llama.cpp has them, blocks run, take adapters and become numbers again, and what is wrong is refused by its name.
 * tests/parity/gguf_files.py does so with transformers and the gguf package. */
#include <math.h>

#include "support/check.h"
#include "support/scratch.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

static const tarn_gpt2_config small = {
    .vocab_size = 300, .context = 64, .layers = 2, .heads = 4, .hidden_size = 64, .ffn_size = 96};

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

/* A folder of random parameters, so that a wrong order shows. */
static tarn_module *write_model(tarn_gpt2_config config, const char *folder)
{
    tarn_module *model = tarn_model_gpt2(&config, CPU, 3);
    assert_ok();
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        assert_true(tarn_copy(p, tarn_normal_like(p, 0, 0.1)));
    }
    assert_true(tarn_module_train(model, false) && tarn_model_write(model, folder));
    return model;
}

static tarn_tensor *logits_of(tarn_module *model)
{
    const int32_t ids[] = {1, 17, 299, 0, 44, 44, 3, 120};
    tarn_no_grad_open();
    tarn_tensor *logits = good(tarn_cast(tarn_forward(model, tarn_from_i32(ids, TARN_SHAPE(1, 8), CPU)), TARN_F32));
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

static tarn_dtype type_in(const char *path, const char *name)
{
    tarn_gguf_entry e = {0};
    tarn_gguf *file = tarn_gguf_open(path);
    assert_true(tarn_gguf_info(file, tarn_gguf_find(file, name), &e));
    tarn_gguf_close(file);
    return e.dtype;
}

/* ---- there and back ---------------------------------------------------------------------------------------------- */

static void go_round(const char *name, tarn_gpt2_config config)
{
    names n = named(name);
    tarn_module *model = write_model(config, n.folder);
    assert_true(tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    assert_true(tarn_model_convert(n.gguf, n.back, NULL, NULL));
    check_same_files(n.folder, n.back, "model.safetensors");
    check_same_files(n.folder, n.back, "config.json");
    assert_close(logits_from(n.gguf), logits_from(n.folder), 0);
    assert_close(logits_from(n.back), logits_from(n.folder), 0);
    assert_int_equal(type_in(n.gguf, "position_embd.weight"), TARN_F32);
    assert_int_equal(type_in(n.gguf, "blk.1.ffn_up.weight"), config.dtype);
    tarn_module_free(model);
}

static void every_dtype_survives_a_round_trip(void **state)
{
    (void)state;
    tarn_gpt2_config c = small;
    go_round("plain", c);
    c.dtype = TARN_BF16;
    c.dropout = 0.25, c.attention_dropout = -1, c.epsilon = 1e-6;
    go_round("bf16", c);
    c.dtype = TARN_F16;
    c.untie_embeddings = c.has_eos = true;
    c.eos = 7;
    go_round("f16", c);
}

/* Several tiles and several chunks. */
static void wide_matrices_survive_a_round_trip(void **state)
{
    (void)state;
    names n = named("wide");
    tarn_gpt2_config c = {
        .vocab_size = 300, .context = 8, .layers = 1, .heads = 2, .hidden_size = 608, .ffn_size = 288};
    tarn_module_free(write_model(c, n.folder));
    assert_true(tarn_model_convert(n.folder, n.gguf, NULL, NULL) && tarn_model_convert(n.gguf, n.back, NULL, NULL));
    check_same_files(n.folder, n.back, "model.safetensors");
    assert_true(tarn_model_convert(n.folder, n.gguf, NULL,
                                   &(tarn_convert_options){.quantize = true, .type = TARN_Q8_0, .replace = true}));
    assert_true(tarn_model_convert(n.gguf, n.back, NULL, &(tarn_convert_options){.replace = true}));
    tarn_module *model = tarn_model_open(n.folder, CPU, NULL), *back = tarn_model_open(n.back, CPU, NULL);
    assert_ok();
    for (int i = 0; i < tarn_module_parameter_count(model); i++) /* half a step of a block's largest */
        assert_close(tarn_module_parameter(back, i), tarn_module_parameter(model, i), 0.005);
    tarn_module_free(model);
    tarn_module_free(back);
}

static void rows_are_outputs(void **state)
{
    (void)state;
    static const struct {
        const char *folder, *gguf;
    } pairs[] = {{"transformer.h.1.attn.c_attn.weight", "blk.1.attn_qkv.weight"},
                 {"transformer.h.1.attn.c_proj.weight", "blk.1.attn_output.weight"},
                 {"transformer.h.0.mlp.c_fc.weight", "blk.0.ffn_up.weight"},
                 {"transformer.h.0.mlp.c_proj.weight", "blk.0.ffn_down.weight"}};
    names n = named("rows");
    tarn_module *model = write_model(small, n.folder);
    assert_true(tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    tarn_gguf *file = tarn_gguf_open(n.gguf);
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        assert_close(tarn_gguf_tensor(file, tarn_gguf_find(file, pairs[i].gguf), CPU),
                     tarn_transpose(tarn_module_find(model, pairs[i].folder), 0, 1), 0);
    assert_close(tarn_gguf_tensor(file, tarn_gguf_find(file, "token_embd.weight"), CPU),
                 tarn_module_find(model, "transformer.wte.weight"), 0);
    assert_string_equal(tarn_gguf_string(file, "general.architecture", NULL), "gpt2");
    assert_int_equal(tarn_gguf_find(file, "output.weight"), -1);
    tarn_gguf_close(file);
    tarn_module_free(model);
}

/* Files of GPT2Model, and the first ones, have the body alone; some have the mask of attention, and a copy of the
 * tokens as the head. */
static void names_may_lack_the_body(void **state)
{
    (void)state;
    names n = named("body");
    tarn_module *model = write_model(small, n.folder);
    for (int is_wrong = 0; is_wrong < 2; is_wrong++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/model.safetensors", n.folder);
        tarn_safetensors_writer *w = tarn_safetensors_create(path);
        for (int i = 0; i < tarn_module_parameter_count(model); i++)
            assert_true(tarn_safetensors_add(w, tarn_module_parameter_name(model, i) + strlen("transformer."),
                                             tarn_module_parameter(model, i)));
        tarn_tensor *head = tarn_module_find(model, "transformer.wte.weight");
        assert_true(tarn_safetensors_add(w, "lm_head.weight", is_wrong ? tarn_add(head, tarn_scalar(1)) : head));
        assert_true(tarn_safetensors_add(w, "h.0.attn.bias", tarn_ones(TARN_SHAPE(2), TARN_F32, CPU)) &&
                    tarn_safetensors_finish(w));
        if (is_wrong) {
            assert_false(tarn_model_convert(n.folder, n.gguf, NULL, &(tarn_convert_options){.replace = true}));
            assert_error_about(TARN_ERROR_FORMAT, "'transformer.wte.weight' and 'lm_head.weight' differ",
                               "tie_word_embeddings is true");
        } else {
            assert_true(tarn_model_convert(n.folder, n.gguf, NULL, NULL));
            assert_close(logits_from(n.gguf), logits_of(model), 0);
        }
    }
    tarn_module_free(model);
}

/* ---- quantized weights ------------------------------------------------------------------------------------------- */

static void quantized_weights_run_and_are_dequantized(void **state)
{
    (void)state;
    names n = named("blocks");
    tarn_module *model = write_model(small, n.folder);
    tarn_convert_summary s;
    assert_true(tarn_model_convert(n.folder, n.gguf, &s, &(tarn_convert_options){.quantize = true, .type = TARN_Q8_0}));
    assert_true(s.changed == 9 && s.fallback == 0 &&
                s.unquantized == 19); /* four matrices in each of two layers, and the token embedding */
    assert_int_equal(type_in(n.gguf, "position_embd.weight"), TARN_F32);
    assert_int_equal(type_in(n.gguf, "blk.0.ffn_down.weight"), TARN_Q8_0);
    assert_close_for_size(logits_from(n.gguf), logits_of(model), 0.1);
    tarn_module *packed = tarn_model_open(n.gguf, CPU, NULL);
    assert_ok();
    tarn_model_info info;
    assert_true(tarn_model_query(packed, &info) && info.dtype == TARN_F32);
    assert_true(tarn_model_write(packed, n.back)); /* the same values as through the file */
    assert_true(tarn_model_convert(n.gguf, scratch("converted"), NULL, NULL));
    assert_close(logits_from(n.back), logits_from(scratch("converted")), 0);
    assert_close_for_size(logits_from(n.back), logits_of(packed), 0.05);
    tarn_module_free(packed);
    packed =
        tarn_model_open(n.folder, CPU, &(tarn_model_open_options){.quantize = TARN_Q8_0}); /* head and tokens stay */
    assert_ok();
    assert_close_for_size(logits_of(packed), logits_of(model), 0.1);
    tarn_module_free(packed);
    tarn_module_free(model);
    assert_true(tarn_model_convert(n.folder, n.gguf, &s,
                                   &(tarn_convert_options){.quantize = true, .type = TARN_Q4_K, .replace = true}));
    assert_true(s.fallback == 9 && type_in(n.gguf, "blk.0.ffn_down.weight") == TARN_Q8_0); /* rows of 64 and 96 */
}

/* Adapters of quantized weights, merged in memory, to a file and to a folder. */
static void quantized_weights_take_adapters(void **state)
{
    (void)state;
    names n = named("adapted");
    char adapter[256];
    snprintf(adapter, sizeof(adapter), "%s", scratch("adapter"));
    tarn_module_free(write_model(small, n.folder));
    assert_true(
        tarn_model_convert(n.folder, n.gguf, NULL, &(tarn_convert_options){.quantize = true, .type = TARN_Q8_0}));
    tarn_module *model = tarn_model_open(n.gguf, CPU, NULL);
    assert_true(model && tarn_lora_add(model, &(tarn_lora_options){.rank = 4, .targets = "c_attn,mlp.c_proj"}));
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        if (tarn_needs_grad(p))
            assert_true(tarn_copy(p, tarn_normal_like(p, 0, 0.1)));
    }
    tarn_tensor *logits = logits_of(model);
    assert_true(tarn_lora_save(model, adapter, n.gguf));
    char *config = get_file(scratch("adapter/adapter_config.json"), &(size_t){0});
    assert_contains(config, "\"fan_in_fan_out\": true"); /* as transformers' model is */
    free(config);
    assert_true(tarn_lora_merge(model));
    assert_close_for_size(logits_of(model), logits, 0.05);
    assert_shape(tarn_module_find(model, "transformer.h.0.attn.c_attn.weight"), 64, 192);
    assert_true(tarn_model_write(model, n.back));
    tarn_tensor *merged = logits_from(n.back);
    assert_close_for_size(merged, logits_of(model), 0.05);
    tarn_module_free(model);
    tarn_convert_options how = {.adapter = adapter, .quantize = true, .type = TARN_F32};
    assert_true(tarn_model_convert(n.gguf, scratch("merged.gguf"), NULL, &how));
    assert_close_for_size(logits_from(scratch("merged.gguf")), merged, 1e-4);
    how = (tarn_convert_options){.adapter = adapter};
    assert_true(tarn_model_convert(n.gguf, scratch("mixed.gguf"), NULL, &how));
    assert_true(type_in(scratch("mixed.gguf"), "blk.0.attn_qkv.weight") == TARN_BF16 &&
                type_in(scratch("mixed.gguf"), "blk.0.ffn_up.weight") == TARN_Q8_0);
    assert_close_for_size(logits_from(scratch("mixed.gguf")), logits, 0.1);
    assert_true(tarn_model_convert(n.gguf, scratch("merged"), NULL, &how));
    assert_close_for_size(logits_from(scratch("merged")), logits, 0.1);
}

/* The gradient of an adapter's matrix. */
static tarn_tensor *gradient_from(const char *path, const char *name)
{
    const int32_t ids[] = {1, 17, 299, 0, 44, 44, 3, 120};
    tarn_module *model = tarn_model_open(path, CPU, NULL);
    assert_true(model && tarn_lora_add(model, &(tarn_lora_options){.rank = 4}));
    tarn_tensor *tokens = tarn_from_i32(ids, TARN_SHAPE(1, 8), CPU);
    assert_true(tarn_backward(tarn_model_loss(model, tokens, tokens)));
    tarn_tensor *gradient = good(tarn_clone(tarn_grad(tarn_module_find(model, name))));
    tarn_module_free(model);
    return gradient;
}

/* Gradients through quantized weights equal those through the dequantized ones. */
static void adapters_of_quantized_weights_get_gradients(void **state)
{
    (void)state;
    static const char *const matrices[] = {"transformer.h.0.attn.c_attn.lora_B.weight",
                                           "transformer.h.0.mlp.c_fc.lora_B.weight",
                                           "transformer.h.1.mlp.c_proj.lora_B.weight"};
    names n = named("gradients");
    tarn_module_free(write_model(small, n.folder));
    assert_true(
        tarn_model_convert(n.folder, n.gguf, NULL, &(tarn_convert_options){.quantize = true, .type = TARN_Q8_0}) &&
        tarn_model_convert(n.gguf, n.back, NULL, NULL));
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++)
        assert_close_for_size(gradient_from(n.gguf, matrices[i]), gradient_from(n.back, matrices[i]), 0.1);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* A copy of a file without the key or tensor of a name, or with another tensor, or number, under it. */
static const char *changed(const char *path, const char *name, tarn_tensor *instead, const uint32_t *number)
{
    tarn_gguf *file = tarn_gguf_open(path);
    tarn_gguf_writer *w = tarn_gguf_create(scratch("changed.gguf"));
    tarn_gguf_value v;
    for (int i = 0; i < tarn_gguf_metadata_count(file); i++)
        assert_true(tarn_gguf_metadata_at(file, i, &v) && (strcmp(v.key, name) == 0 || tarn_gguf_add_from(w, file, i)));
    for (int i = 0; i < tarn_gguf_count(file); i++)
        assert_true(strcmp(tarn_gguf_name(file, i), name) == 0 ||
                    tarn_gguf_add(w, tarn_gguf_name(file, i), tarn_gguf_tensor(file, i, CPU)));
    assert_true(!instead || tarn_gguf_add(w, name, instead));
    assert_true(!number || tarn_gguf_add_value(w, name, TARN_GGUF_U32, number));
    assert_true(tarn_gguf_finish(w));
    tarn_gguf_close(file);
    return scratch("changed.gguf");
}

static void invalid_input_is_an_error_that_names_it(void **state)
{
    (void)state;
    names n = named("wrong");
    tarn_module_free(write_model(small, n.folder));
    assert_true(tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    const struct {
        const char *name;
        tarn_tensor *instead;
        int64_t number;
        const char *sentence;
    } cases[] = {
        {"blk.1.ffn_up.bias", NULL, -1, "has no tensor 'blk.1.ffn_up.bias' (transformer.h.1.mlp.c_fc.bias)"},
        {"position_embd.weight", NULL, -1, "has no tensor 'position_embd.weight'"},
        {"token_embd.weight", NULL, -1, "has no tensor 'token_embd.weight' of two axes"},
        {"blk.0.attn_qkv.weight", tarn_zeros(TARN_SHAPE(64, 192), TARN_F32, CPU), -1,
         "'blk.0.attn_qkv.weight' is [64, 192], but a model of this configuration has [192, 64]"},
        {"blk.0.attn_norm.weight", tarn_zeros(TARN_SHAPE(63), TARN_F32, CPU), -1, "'blk.0.attn_norm.weight' is [63]"},
        {"position_embd.weight", tarn_zeros(TARN_SHAPE(63, 64), TARN_F32, CPU), -1,
         "'position_embd.weight' is [63, 64]"},
        {"blk.0.attn_q.weight", tarn_zeros(TARN_SHAPE(64, 64), TARN_F32, CPU), -1,
         "unknown tensor 'blk.0.attn_q.weight'; a gpt2"},
        {"gpt2.context_length", NULL, -1, "has no key 'gpt2.context_length'"},
        {"gpt2.feed_forward_length", NULL, -1, "has no key 'gpt2.feed_forward_length'"},
        {"gpt2.attention.head_count", NULL, -1, "has no key 'gpt2.attention.head_count'"},
        {"gpt2.attention.layer_norm_epsilon", NULL, -1, "has no key 'gpt2.attention.layer_norm_epsilon'"},
        {"gpt2.attention.head_count", NULL, 5, ".heads is 5; it must divide .hidden_size, which is 64"},
        {"gpt2.attention.head_count", NULL, 0, "'gpt2.attention.head_count'"},
        {"gpt2.attention.head_count_kv", NULL, 2, "with grouped-query attention is not supported"},
        {"gpt2.vocab_size", NULL, 299, "vocab_size is 299, but 'token_embd.weight' has 300 rows"},
        {"tokenizer.ggml.eos_token_id", NULL, 300, "'tokenizer.ggml.eos_token_id'"},
        {"tarn.gpt2.dropout", NULL, 1, "'tarn.gpt2.dropout'"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const uint32_t number = (uint32_t)cases[i].number;
        const char *path = changed(n.gguf, cases[i].name, cases[i].instead, cases[i].number < 0 ? NULL : &number);
        tarn_module *model = tarn_model_open(path, CPU, NULL);
        if (model || !strstr(tarn_error(), cases[i].sentence) || !strstr(tarn_error(), "model_open"))
            fail_msg("%s: '%s' and not '%s'", cases[i].name, tarn_error(), cases[i].sentence);
        tarn_clear_error();
    }
    assert_false(tarn_model_convert(changed(n.gguf, "blk.1.ffn_up.bias", NULL, NULL), n.back, NULL, NULL));
    assert_error(TARN_ERROR_FORMAT, "has no tensor 'blk.1.ffn_up.bias'");
}

/* With an untied head, as in older files, which may be of higher precision than the embedding. */
static void an_untied_head_is_kept(void **state)
{
    (void)state;
    names n = named("headed");
    tarn_module *model = write_model(small, n.folder);
    assert_true(tarn_model_convert(n.folder, n.gguf, NULL, NULL));
    const char *path = changed(n.gguf, "output.weight",
                               tarn_mul(tarn_module_find(model, "transformer.wte.weight"), tarn_scalar(2)), NULL);
    assert_close(logits_from(path), tarn_mul(logits_of(model), tarn_scalar(2)), 0);
    assert_true(tarn_model_convert(path, n.back, NULL, NULL));
    assert_close(logits_from(n.back), tarn_mul(logits_of(model), tarn_scalar(2)), 0);
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(every_dtype_survives_a_round_trip),
        in_scope(wide_matrices_survive_a_round_trip),
        in_scope(rows_are_outputs),
        in_scope(names_may_lack_the_body),
        in_scope(quantized_weights_run_and_are_dequantized),
        in_scope(quantized_weights_take_adapters),
        in_scope(adapters_of_quantized_weights_get_gradients),
        in_scope(invalid_input_is_an_error_that_names_it),
        in_scope(an_untied_head_is_kept),
    };
    if (!TARN__HAVE_JANSSON) {
        printf("folders need jansson: nothing to test\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
