/* test_lora_files.c: folders of adapters: what is saved comes back, what is not understood is refused by its name and
 * leaves the model as it was; and models that adapters were merged into on their way to folders and GGUF files.
 * tests/parity/lora.py does so with PEFT. */
#include "support/files.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()
enum { VOCAB = 40, CONTEXT = 10 };

static tarn_module *make(bool is_gpt2, tarn_dtype dtype)
{
    const tarn_gpt2_config gpt2 = {
        .vocab_size = VOCAB, .context = CONTEXT, .layers = 2, .heads = 2, .hidden_size = 8, .dtype = dtype};
    const tarn_llama_config llama = {.vocab_size = VOCAB,
                                     .context = CONTEXT,
                                     .layers = 2,
                                     .heads = 4,
                                     .hidden_size = 64,
                                     .ffn_size = 96,
                                     .kv_heads = 2,
                                     .dtype = dtype};
    tarn_module *model = is_gpt2 ? tarn_model_gpt2(&gpt2, CPU, 3) : tarn_model_llama(&llama, CPU, 3);
    assert_ok();
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        assert_true(tarn_copy(p, tarn_normal_like(p, 0, 0.2)));
    }
    assert_true(tarn_module_train(model, false));
    return model;
}

static void stir(tarn_module *model)
{
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        if (tarn_needs_grad(p))
            assert_true(tarn_copy(p, tarn_normal_like(p, 0, 0.1)));
    }
}

static tarn_tensor *logits_of(tarn_module *model)
{
    const int32_t ids[] = {1, 17, 39, 0, 24, 24, 3, 12};
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

/* scratch("adapter"), which stays valid. */
static const char *adapter(void)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s", scratch("adapter"));
    return path;
}

/* Writes a model to "base", its adapters to "adapter", and returns its logits with them. */
static tarn_tensor *write_both(bool is_gpt2, tarn_dtype dtype, const tarn_lora_options *options)
{
    tarn_module *model = make(is_gpt2, dtype);
    assert_true(tarn_model_write(model, scratch("base")) && tarn_lora_add(model, options));
    stir(model);
    assert_true(tarn_lora_save(model, scratch("adapter"), "base"));
    tarn_tensor *logits = logits_of(model);
    tarn_module_free(model);
    return logits;
}

/* ---- there and back ---------------------------------------------------------------------------------------------- */

static void saved_adapters_load_again(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    static const tarn_lora_options options[] = {{.rank = 2},
                                                {.rank = 3, .alpha = 2.5, .targets = "mlp.c_proj", .dropout = 0.1},
                                                {.rank = 1, .rslora = true, .dtype = TARN_BF16},
                                                {.rank = 5, .alpha = 3, .targets = "c_proj,c_fc", .dtype = TARN_F64}};
    for (int i = 0; i < 8; i++) {
        tarn_lora_options o = options[i / 2];
        o.targets = i % 2 && o.targets ? "k_proj,mlp.up_proj" : o.targets;
        tarn_tensor *logits = write_both(i % 2 == 0, TARN_F32, &o);
        tarn_module *model = tarn_model_open(scratch("base"), CPU, NULL);
        assert_true(tarn_lora_load(model, scratch("adapter")) && tarn_lora_has(model));
        assert_close(logits_of(model), logits, 0);
        for (int k = 0; k < tarn_module_parameter_count(model); k++)
            assert_true((strstr(tarn_module_parameter_name(model, k), "lora_") != NULL) ==
                        tarn_needs_grad(tarn_module_parameter(model, k)));
        char *first = get_file(scratch("adapter/adapter_config.json"), &(size_t){0});
        assert_true(tarn_lora_save(model, scratch("adapter"), "base")); /* over existing adapters */
        char *second = get_file(scratch("adapter/adapter_config.json"), &(size_t){0});
        assert_string_equal(first, second);
        free(first);
        free(second);
        tarn_module_free(model);
    }
    assert_null(fopen(scratch("adapter/adapter_config.json.new"), "r"));
    assert_null(fopen(scratch("adapter/adapter_model.safetensors.new"), "r"));
}

/* Names where names say it, paths where a name would say more. */
static void layers_are_named_as_shortly_as_can_be(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    write_both(true, TARN_F32, &(tarn_lora_options){.rank = 2, .targets = "c_attn,mlp.c_proj"});
    char *text = get_file(scratch("adapter/adapter_config.json"), &(size_t){0});
    assert_contains(text, "\"c_attn\"");
    assert_contains(text, "\"transformer.h.1.mlp.c_proj\"");
    assert_null(strstr(text, "\"c_proj\""));
    assert_contains(text, "\"fan_in_fan_out\": true");
    assert_contains(text, "\"lora_alpha\": 8");
    free(text);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static const char plain[] = "\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 8, \"target_modules\": [\"c_attn\"]";

/* The model refuses a folder whose configuration has these members, and stays as it was. */
static void refuse(tarn_module *model, const char *members, tarn_code code, const char *part)
{
    char text[512];
    snprintf(text, sizeof(text), "{%s}", members);
    write_text("adapter/adapter_config.json", text);
    assert_false(tarn_lora_load(model, scratch("adapter")));
    assert_error_about(code, "lora_load", part);
    assert_false(tarn_lora_has(model));
    assert_true(tarn_needs_grad(tarn_module_parameter(model, 0)));
}

static void unsupported_adapter_settings_are_named(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    static const struct {
        const char *more, *part;
    } unsupported[] = {{"\"lora_bias\": true", "\"lora_bias\""},
                       {"\"layer_replication\": [[0, 2]]", "\"layer_replication\""},
                       {"\"target_parameters\": [\"x\"]", "\"target_parameters\""},
                       {"\"of_a_later_version\": 1", "\"of_a_later_version\" is not supported"},
                       {"\"bias\": \"all\"", "\"bias\": 'all'"},
                       {"\"init_lora_weights\": \"pissa\"", "'pissa' is not supported"}};
    write_both(true, TARN_F32, &(tarn_lora_options){.rank = 2, .targets = "c_attn"});
    tarn_module *model = make(true, TARN_F32);
    char text[400];
    for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
        snprintf(text, sizeof(text), "%s, %s", plain, unsupported[i].more);
        refuse(model, text, TARN_ERROR_UNSUPPORTED, unsupported[i].part);
    }
    refuse(model, "\"peft_type\": \"LOHA\", \"r\": 2", TARN_ERROR_UNSUPPORTED, "'LOHA'");
    /* Keys that are off are fine, and keys without effect on the results. */
    snprintf(text, sizeof(text),
             "{%s, \"use_dora\": false, \"modules_to_save\": null, \"rank_pattern\": {}, \"exclude_modules\": [], "
             "\"later\": \"\", \"bias\": "
             "\"none\", \"init_lora_weights\": \"gaussian\", \"revision\": \"main\", \"loftq_config\": {\"a\": 1}}",
             plain);
    write_text("adapter/adapter_config.json", text);
    assert_true(tarn_lora_load(model, scratch("adapter")));
    assert_false(tarn_lora_load(model, scratch("adapter")));
    assert_error_about(TARN_ERROR_ARGUMENT, "lora_load", "already has adapters");
    tarn_module_free(model);
}

/* The folder with `members` instead of its own is that of the saved adapters, loaded and saved again. */
static void accept(const char *members)
{
    char text[512];
    tarn_module *model = make(true, TARN_F32);
    snprintf(text, sizeof(text), "{\"peft_type\": \"LORA\", %s}", members);
    write_text("adapter/adapter_config.json", text);
    assert_true(tarn_lora_load(model, scratch("adapter")));
    assert_true(tarn_lora_save(model, scratch("again"), NULL));
    tarn_module_free(model);
}

/* Layers and ranks by patterns, blocks and exclusions. tests/parity/lora.py has more, drawn at random, with PEFT. */
static void layers_are_found_by_patterns_and_blocks(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON || !TARN__HAVE_PCRE2)
        skip();
    write_both(true, TARN_F32, &(tarn_lora_options){.rank = 2, .targets = "c_attn"});
    tarn_module *model = make(true, TARN_F32);
    accept("\"r\": 2, \"target_modules\": \".*\\\\.attn\\\\.c_attn\"");
    accept("\"r\": 2, \"target_modules\": [\"c_attn\", \"c_fc\"], \"exclude_modules\": [\"mlp.c_fc\"]");
    accept("\"r\": 2, \"target_modules\": [\"c_attn\", \"c_fc\"], \"exclude_modules\": \".*c_fc\"");
    accept("\"r\": 2, \"target_modules\": [\"c_attn\"], \"layers_to_transform\": [1, 0, 7]");
    accept("\"r\": 7, \"target_modules\": [\"c_attn\"], \"rank_pattern\": {\"h\\\\.[0-9]+\\\\..*\": 2, \"c_attn\": 3}");
    accept("\"r\": 2, \"target_modules\": [\"c_attn\"], \"alpha_pattern\": {\"h.1.attn.c_attn\": 16.5}");
    char *config = get_file(scratch("again/adapter_config.json"), &(size_t){0});
    assert_contains(config, "\"lora_alpha\": 8");
    assert_contains(config, "\"transformer.h.1.attn.c_attn\": 16.5");
    assert_null(strstr(config, "rank_pattern"));
    free(config);
    refuse(model, "\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"c_attn\"], \"layers_to_transform\": 0",
           TARN_ERROR_FORMAT, "unknown tensor 'base_model.model.transformer.h.1.attn.c_attn.lora_A.weight'");
    refuse(model,
           "\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"c_attn\"], \"layers_to_transform\": [0, 1], "
           "\"layers_pattern\": \"blocks\"",
           TARN_ERROR_FORMAT, "names no linear layer");
    refuse(model,
           "\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"c_attn\"], \"rank_pattern\": {\"h.1.*\": 4}",
           TARN_ERROR_SHAPE, "must be [4, 8]");
    refuse(model,
           "\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"c_attn\"], \"rank_pattern\": {\"c_fc\": 0}",
           TARN_ERROR_FORMAT, "has '0' for 'c_fc'");
    refuse(model, "\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \"(c_attn\"", TARN_ERROR_FORMAT, "(c_attn");
    tarn_module_free(model);
}

static void invalid_input_is_an_error_that_names_it(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    static const struct {
        const char *members, *part;
        tarn_code code;
    } wrong[] = {{"\"r\": 2", "peft_type", TARN_ERROR_FORMAT},
                 {"\"peft_type\": \"LORA\", \"target_modules\": [\"c_attn\"]", "\"r\"", TARN_ERROR_FORMAT},
                 {"\"peft_type\": \"LORA\", \"r\": 0, \"target_modules\": [\"c_attn\"]", "\"r\"", TARN_ERROR_FORMAT},
                 {"\"peft_type\": \"LORA\", \"r\": 2.5, \"target_modules\": [\"c_attn\"]", "\"r\"", TARN_ERROR_FORMAT},
                 {"\"peft_type\": \"LORA\", \"r\": 2", "target_modules", TARN_ERROR_FORMAT},
                 {"\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [3]", "target_modules", TARN_ERROR_FORMAT},
                 {"\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"q_proj\", \"\"]", "names no linear layer",
                  TARN_ERROR_FORMAT},
                 {"\"peft_type\": \"LORA\", \"r\": 2, \"lora_dropout\": 1, \"target_modules\": [\"c_attn\"]",
                  "lora_dropout", TARN_ERROR_FORMAT},
                 {"\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": \"x\", \"target_modules\": [\"c_attn\"]",
                  "lora_alpha", TARN_ERROR_FORMAT},
                 {"\"peft_type\": \"LORA\", \"r\": 2, \"use_rslora\": 1, \"target_modules\": [\"c_attn\"]",
                  "use_rslora", TARN_ERROR_FORMAT},
                 {"\"peft_type\": \"LORA\", \"r\": 3, \"target_modules\": [\"c_attn\"]",
                  "is [2, 8], but must be [3, 8]", TARN_ERROR_SHAPE},
                 {"\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"c_attn\", \"c_fc\"]",
                  "has no 'base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight'", TARN_ERROR_FORMAT},
                 {"\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": [\"h.0.attn.c_attn\"]",
                  "unknown tensor 'base_model.model.transformer.h.1.attn.c_attn.lora_A.weight'", TARN_ERROR_FORMAT},
                 {"\"peft_type\": \"LORA\", \"r\": 2, \"target_modules\": \"all-linear\"",
                  "has no 'base_model.model.transformer.h.0.attn.c_proj.lora_A.weight'", TARN_ERROR_FORMAT}};
    write_both(true, TARN_F32, &(tarn_lora_options){.rank = 2, .targets = "c_attn"});
    tarn_module *model = make(true, TARN_F32), *other = make(false, TARN_F32);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        refuse(model, wrong[i].members, wrong[i].code, wrong[i].part);
    refuse(other, plain, TARN_ERROR_FORMAT, "names no linear layer and no embedding of this model");
    write_text("adapter/adapter_model.safetensors", "no header");
    refuse(model, plain, TARN_ERROR_FORMAT, "adapter_model.safetensors");
    tarn_module_free(model);
    tarn_module_free(other);
}

/* ---- without memory ---------------------------------------------------------------------------------------------- */

/* Adds adapters, reads or merges them with room for so many allocations. True when that was enough; else the model is
 * as it was. */
static bool try_with(int what, int room)
{
    allocations_left = 1000000;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *model = make(true, TARN_F32);
    if (what == 2)
        assert_true(tarn_lora_load(model, scratch("adapter")));
    tarn_tensor *logits = logits_of(model);
    allocations_left = room;
    bool done = what == 0   ? tarn_lora_add(model, &(tarn_lora_options){.rank = 2})
                : what == 1 ? tarn_lora_load(model, scratch("adapter"))
                            : tarn_lora_merge(model);
    allocations_left = 1000000;
    if (!done) {
        assert_error(TARN_ERROR_MEMORY, "memory");
        assert_close(logits_of(model), logits, what == 2 ? 1e-4 : 0); /* a part may be merged */
        if (what < 2)
            assert_true(!tarn_lora_has(model) && tarn_needs_grad(tarn_module_parameter(model, 0)));
    }
    tarn_module_free(model);
    tarn_scope_close(scope);
    return done;
}

static void a_failed_allocation_anywhere_leaves_nothing_behind(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    tarn_empty_cache(CPU);
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    allocations_left = 1000000;
    tarn_scope *scope = tarn_scope_open();
    write_both(true, TARN_F32, &(tarn_lora_options){.rank = 2, .targets = "c_attn"});
    tarn_scope_close(scope);
    tarn_empty_cache(CPU);
    int64_t held = tarn_memory_of(CPU).used;
    for (int what = 0; what < 3; what++)
        for (int room = 0; !try_with(what, room); room++) {
            assert_true(room < 3000);
            tarn_empty_cache(CPU); /* so that what a pool has kept is asked for again */
            assert_int_equal(tarn_memory_of(CPU).used, held);
        }
    tarn_empty_cache(CPU);
    if (!tarn_set_allocator(NULL)) /* which refuses while memory is held */
        fail_msg("%s", tarn_error());
}

/* ---- merged models ----------------------------------------------------------------------------------------------- */

static void a_merged_folder_computes_the_same(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    for (int i = 0; i < 2; i++) {
        char to[32];
        snprintf(to, sizeof(to), "merged-%d", i);
        tarn_tensor *logits = write_both(i, TARN_F32, &(tarn_lora_options){.rank = 4});
        tarn_convert_options how = {.adapter = adapter()};
        tarn_convert_summary summary;
        write_text("base/tokenizer_config.json", "{\"x\": 1}");
        assert_true(tarn_model_convert(scratch("base"), scratch(to), &summary, &how));
        assert_true(summary.changed == 0 && summary.before == summary.after && summary.tensors > 10);
        assert_close_for_size(logits_from(scratch(to)), logits, 1e-4);
        assert_false(tarn_model_convert(scratch("base"), scratch(to), NULL, &how));
        assert_error_about(TARN_ERROR_IO, "model_convert", "set .replace");
        how.replace = true;
        assert_true(tarn_model_convert(scratch("base"), scratch(to), NULL, &how));
        assert_close_for_size(logits_from(scratch(to)), logits, 1e-4);
        snprintf(to, sizeof(to), "merged-%d/tokenizer_config.json", i);
        char *text = get_file(scratch(to), &(size_t){0});
        assert_string_equal(text, "{\"x\": 1}");
        free(text);
    }
}

static void a_merged_file_computes_the_same(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    for (int is_gpt2 = 0; is_gpt2 < 2; is_gpt2++) {
        tarn_tensor *logits = write_both(is_gpt2, TARN_F32, &(tarn_lora_options){.rank = 4});
        tarn_convert_options how = {.adapter = adapter(), .replace = true};
        assert_true(tarn_model_convert(scratch("base"), scratch("merged.gguf"), NULL, &how)); /* folder to file */
        assert_close_for_size(logits_from(scratch("merged.gguf")), logits, 1e-4);
        assert_true(
            tarn_model_convert(scratch("base"), scratch("base.gguf"), NULL, &(tarn_convert_options){.replace = true}));
        assert_true(tarn_model_convert(scratch("base.gguf"), scratch("again.gguf"), NULL, &how)); /* file to file */
        assert_close(logits_from(scratch("again.gguf")), logits_from(scratch("merged.gguf")), 0);
        assert_true(tarn_model_convert(scratch("base.gguf"), scratch("folder"), NULL, &how)); /* file to folder */
        assert_close(logits_from(scratch("folder")), logits_from(scratch("merged.gguf")), 0);
        how.quantize = true;
        how.type = TARN_Q8_0;
        assert_true(tarn_model_convert(scratch("base"), scratch("fewer.gguf"), NULL, &how));
        assert_close_for_size(logits_from(scratch("fewer.gguf")), logits, 0.2);
    }
}

/* The type of a tensor of a file, as text. */
static const char *type_in(const char *path, const char *name)
{
    static char text[32];
    tarn_gguf_entry e = {.dtype_name = "missing"};
    tarn_gguf *file = tarn_gguf_open(path);
    tarn_gguf_info(file, tarn_gguf_find(file, name), &e);
    assert_ok();
    snprintf(text, sizeof(text), "%s", e.dtype_name);
    tarn_gguf_close(file);
    return text;
}

/* The bytes of all tensors of a file. */
static int64_t bytes_in(const char *path)
{
    int64_t all = 0;
    tarn_gguf_entry e;
    tarn_gguf *file = tarn_gguf_open(path);
    for (int i = 0; i < tarn_gguf_count(file) && tarn_gguf_info(file, i, &e); i++)
        all += e.bytes;
    assert_ok();
    tarn_gguf_close(file);
    return all;
}

static void quantized_weights_with_adapters_become_bf16(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    write_both(false, TARN_F32, &(tarn_lora_options){.rank = 4, .targets = "q_proj,down_proj"});
    tarn_convert_options how = {.quantize = true, .type = TARN_Q8_0};
    assert_true(tarn_model_convert(scratch("base"), scratch("blocks.gguf"), NULL, &how));
    tarn_module *model = tarn_model_open(scratch("blocks.gguf"), CPU, NULL);
    assert_true(tarn_lora_load(model, scratch("adapter")));
    tarn_tensor *logits = logits_of(model);
    tarn_module_free(model);
    how = (tarn_convert_options){.adapter = adapter()};
    tarn_convert_summary summary;
    assert_true(tarn_model_convert(scratch("blocks.gguf"), scratch("mixed.gguf"), &summary, &how));
    int64_t in_blocks = bytes_in(scratch("blocks.gguf")), mixed = bytes_in(scratch("mixed.gguf"));
    assert_true(summary.changed == 4 && summary.before == in_blocks && summary.after == mixed && mixed > in_blocks);
    assert_string_equal(type_in(scratch("mixed.gguf"), "blk.0.attn_q.weight"), "BF16");
    assert_string_equal(type_in(scratch("mixed.gguf"), "blk.1.ffn_down.weight"), "BF16");
    assert_string_equal(type_in(scratch("mixed.gguf"), "blk.1.ffn_up.weight"), "Q8_0");
    assert_string_equal(type_in(scratch("mixed.gguf"), "blk.1.attn_norm.weight"), "F32");
    assert_close_for_size(logits_from(scratch("mixed.gguf")), logits, 0.1);
    assert_true(tarn_model_convert(scratch("blocks.gguf"), scratch("of-blocks"), &summary, &how));
    assert_true(summary.changed == summary.tensors && summary.after > summary.before);
    tarn_module *whole = tarn_model_open(scratch("of-blocks"), CPU, &(tarn_model_open_options){.as_stored = true});
    assert_ok();
    assert_true(tarn_dtype_of(tarn_module_parameter(whole, 0)) == TARN_BF16);
    assert_close_for_size(logits_of(whole), logits, 0.1);
    tarn_module_free(whole);
}

/* ---- GGUF files -------------------------------------------------------------------------------------------------- */

/* Embedding and head included, with scales that the format lacks. */
static void adapters_in_gguf_files_load_again(void **state)
{
    (void)state;
    for (int is_gpt2 = 0; is_gpt2 < 2; is_gpt2++) {
        const tarn_lora_options options = {.rank = 3,
                                           .alpha = 5,
                                           .rslora = true,
                                           .targets = is_gpt2 ? "wte,c_attn,lm_head"
                                                              : "embed_tokens,q_proj,k_proj,down_proj,lm_head"};
        tarn_module *model = make(is_gpt2, TARN_F32), *again = make(is_gpt2, TARN_F32);
        for (int i = 0; i < tarn_module_parameter_count(model); i++)
            assert_true(tarn_copy(tarn_module_parameter(again, i), tarn_module_parameter(model, i)));
        assert_true(tarn_lora_add(model, &options));
        stir(model);
        assert_true(tarn_lora_save(model, scratch("adapter.gguf"), NULL));
        assert_true(tarn_lora_load(again, scratch("adapter.gguf")));
        assert_close_for_size(logits_of(again), logits_of(model), 1e-5);
        tarn_module *other = make(!is_gpt2, TARN_F32);
        assert_false(tarn_lora_load(other, scratch("adapter.gguf")));
        assert_error_about(TARN_ERROR_FORMAT, "lora_load", "the model is");
        assert_false(tarn_lora_has(other));
        tarn_module_free(other);
        tarn_module_free(model);
        tarn_module_free(again);
    }
}

/* Replaces the GGUF file by one with these parts. */
static void write_adapter_gguf(const char *type, const char *kind, const char *name, tarn_shape shape)
{
    tarn_gguf_writer *writer = tarn_gguf_create(scratch("bad.gguf"));
    assert_true(tarn_gguf_add_string(writer, "general.architecture", "llama", 5) &&
                tarn_gguf_add_string(writer, "general.type", type, strlen(type)) &&
                tarn_gguf_add_string(writer, "adapter.type", kind, strlen(kind)) &&
                tarn_gguf_add(writer, name, tarn_zeros(shape, TARN_F32, CPU)) && tarn_gguf_finish(writer));
}

static void bad_adapters_in_gguf_files_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *type, *kind, *name;
        int64_t rows, columns;
        tarn_code code;
        const char *part;
    } bad[] = {{"model", "lora", "blk.0.attn_q.weight.lora_a", 2, 64, TARN_ERROR_FORMAT, "general.type 'model'"},
               {"adapter", "control", "blk.0.attn_q.weight.lora_a", 2, 64, TARN_ERROR_UNSUPPORTED, "'control'"},
               {"adapter", "lora", "blk.0.attn_norm.weight", 2, 64, TARN_ERROR_FORMAT, "'blk.0.attn_norm.weight'"},
               {"adapter", "lora", "blk.9.attn_q.weight.lora_a", 2, 64, TARN_ERROR_FORMAT, "blk.9.attn_q"},
               {"adapter", "lora", "blk.0.attn_q.weight.lora_a", 2, 64, TARN_ERROR_FORMAT, "attn_q.weight.lora_b"},
               {"adapter", "lora", "blk.0.attn_q.weight.lora_a", 2, 63, TARN_ERROR_SHAPE, "must be [2, 64]"}};
    tarn_module *model = make(false, TARN_F32);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_adapter_gguf(bad[i].type, bad[i].kind, bad[i].name, TARN_SHAPE(bad[i].rows, bad[i].columns));
        assert_false(tarn_lora_load(model, scratch("bad.gguf")));
        assert_error_about(bad[i].code, "lora_load", bad[i].part);
        assert_false(tarn_lora_has(model));
    }
    assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .modules_to_save = "lm_head"}));
    assert_false(tarn_lora_save(model, scratch("bad.gguf"), NULL));
    assert_error_about(TARN_ERROR_UNSUPPORTED, "lora_save", "'lm_head' is saved whole");
    tarn_module_free(model);
}

/* A saved embedding of tied weights is a copy: the head keeps the base's. */
static void saved_modules_load_again(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    for (int is_gpt2 = 0; is_gpt2 < 2; is_gpt2++) {
        tarn_module *model = make(is_gpt2, TARN_F32);
        assert_true(tarn_model_write(model, scratch("base")));
        const tarn_lora_options options = {.rank = 2,
                                           .modules_to_save = is_gpt2 ? "wte,ln_f" : "embed_tokens,model.norm"};
        assert_true(tarn_lora_add(model, &options));
        stir(model);
        tarn_tensor *logits = logits_of(model);
        assert_true(tarn_lora_save(model, scratch("adapter"), scratch("base")));
        assert_close_for_size(logits_from(scratch("adapter")), logits, 1e-6);
        assert_true(tarn_lora_merge(model) && tarn_model_write(model, scratch("whole")));
        assert_close_for_size(logits_from(scratch("whole")), logits, 1e-5);
        tarn_module_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_failed_allocation_anywhere_leaves_nothing_behind,
                               clear_error), /* first: nothing holds memory yet */
        in_scope(saved_adapters_load_again),
        in_scope(layers_are_named_as_shortly_as_can_be),
        in_scope(unsupported_adapter_settings_are_named),
        in_scope(layers_are_found_by_patterns_and_blocks),
        in_scope(invalid_input_is_an_error_that_names_it),
        in_scope(adapters_in_gguf_files_load_again),
        in_scope(bad_adapters_in_gguf_files_are_named),
        in_scope(saved_modules_load_again),
        in_scope(a_merged_folder_computes_the_same),
        in_scope(a_merged_file_computes_the_same),
        in_scope(quantized_weights_with_adapters_become_bf16),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
