/* test_llama_files.c: the Llama family in folders: what is written is opened again as it was, in one file or several;
 * what config.json asks for and tarn does not compute is refused by name; a real model writes its story. */
#include <unistd.h>

#include "support/files.h"
#include "support/stories.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

static const char *in_folder(const char *name, const char *file)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/%s", name, file);
    return scratch(path);
}

static tarn_tensor *tokens_of(int64_t columns)
{
    const int32_t values[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
    return good(tarn_from_i32(values, TARN_SHAPE(1, columns), CPU));
}

static tarn_module *with_random_weights(const tarn_llama_config *config)
{
    tarn_module *model = tarn_model_llama(config, CPU, 1);
    assert_ok();
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p), tarn_normal_like(p, 0, 0.25)));
    }
    assert_ok();
    return model;
}

/* ---- round trips ------------------------------------------------------------------------------------------------- */

static const tarn_llama_config configs[] = {
    {.vocab_size = 17,
     .context = 12,
     .layers = 2,
     .heads = 2,
     .hidden_size = 8,
     .ffn_size = 20,
     .epsilon = 1e-3,
     .rope_theta = 123.5,
     .has_bos = true,
     .bos = 3,
     .eos_count = 3,
     .eos = {0, 5, 16}},
    {.vocab_size = 17,
     .context = 12,
     .layers = 1,
     .heads = 4,
     .hidden_size = 8,
     .ffn_size = 5,
     .kv_heads = 1,
     .head_dim = 6,
     .tie_embeddings = true,
     .arch = "mistral",
     .rope_scaling = TARN_ROPE_LINEAR,
     .rope_factor = 2.5},
    {.vocab_size = 17,
     .context = 12,
     .layers = 1,
     .heads = 2,
     .hidden_size = 8,
     .ffn_size = 5,
     .qkv_bias = true,
     .arch = "qwen2",
     .eos_count = 1,
     .eos = {16}},
    {.vocab_size = 17,
     .context = 12,
     .layers = 2,
     .heads = 2,
     .hidden_size = 6,
     .ffn_size = 5,
     .head_dim = 4,
     .qk_norm = true,
     .tie_embeddings = true,
     .arch = "qwen3",
     .rope_scaling = TARN_ROPE_LLAMA3,
     .rope_factor = 32,
     .rope_low_freq_factor = 0.5,
     .rope_high_freq_factor = 3,
     .rope_original_context = 10},
};

/* Field by field: padding is undefined. */
static void assert_same_config(const tarn_llama_config *a, const tarn_llama_config *b)
{
    assert_true(a->vocab_size == b->vocab_size && a->context == b->context && a->layers == b->layers &&
                a->heads == b->heads && a->hidden_size == b->hidden_size);
    assert_true(a->ffn_size == b->ffn_size && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
                a->epsilon == b->epsilon);
    assert_true(a->rope_theta == b->rope_theta && a->rope_scaling == b->rope_scaling && a->qkv_bias == b->qkv_bias &&
                a->qk_norm == b->qk_norm);
    assert_true(a->rope_scaling == TARN_ROPE_DEFAULT || a->rope_factor == b->rope_factor);
    assert_true(a->rope_scaling != TARN_ROPE_LLAMA3 || (a->rope_low_freq_factor == b->rope_low_freq_factor &&
                                                        a->rope_high_freq_factor == b->rope_high_freq_factor &&
                                                        a->rope_original_context == b->rope_original_context));
    assert_true(a->tie_embeddings == b->tie_embeddings && a->has_bos == b->has_bos && a->bos == b->bos);
    assert_true(a->eos_count == b->eos_count && memcmp(a->eos, b->eos, sizeof(a->eos)) == 0 && a->dtype == b->dtype);
    assert_string_equal(a->arch, b->arch);
}

static void a_folder_keeps_all_of_a_model(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        tarn_llama_config config, found;
        tarn_module *model = with_random_weights(&configs[i]);
        assert_true(tarn_model_write(model, scratch("kept")));
        tarn_module *opened = tarn_model_open(scratch("kept"), CPU, NULL);
        assert_ok();
        assert_false(tarn_module_is_training(opened));
        assert_true(tarn_llama_config_of(model, &config) && tarn_llama_config_of(opened, &found));
        assert_same_config(&config, &found);
        assert_close(tarn_forward(opened, tokens_of(12)), tarn_forward(model, tokens_of(12)), 0);
        tarn_module_free(opened);
        tarn_module_free(model);
    }
}

/* The weights of a folder in three files with an index, and the one file gone. */
static void split(const char *folder)
{
    static const char *const names[] = {"model-1.safetensors", "model-2.safetensors", "model-3.safetensors"};
    tarn_safetensors *file = tarn_safetensors_open(in_folder(folder, "model.safetensors"));
    tarn_safetensors_writer *writer[3];
    bytes index = {.count = 0};
    put_text(&index, "{\"weight_map\": {");
    for (int i = 0; i < 3; i++)
        writer[i] = tarn_safetensors_create(in_folder(folder, names[i]));
    for (int i = 0; i < tarn_safetensors_count(file); i++) {
        char member[200];
        const char *name = tarn_safetensors_name(file, i);
        tarn_safetensors_add(writer[i % 3], name, tarn_safetensors_read(file, name, CPU));
        snprintf(member, sizeof(member), "%s\"%s\": \"%s\"", i ? ", " : "", name, names[i % 3]);
        put_text(&index, member);
    }
    put_text(&index, "}}");
    for (int i = 0; i < 3; i++)
        assert_true(tarn_safetensors_finish(writer[i]));
    tarn_safetensors_close(file);
    put_file(in_folder(folder, "model.safetensors.index.json"), index.data, index.count);
    assert_int_equal(unlink(in_folder(folder, "model.safetensors")), 0);
}

static void weights_may_be_sharded(void **state)
{
    (void)state;
    const tarn_gpt2_config gpt2 = {.vocab_size = 17, .context = 12, .layers = 1, .heads = 2, .hidden_size = 8};
    tarn_module *models[] = {with_random_weights(&configs[3]), tarn_model_gpt2(&gpt2, CPU, 1)};
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "split-gpt2" : "split-llama";
        assert_true(tarn_model_write(models[i], scratch(name)));
        split(name);
        tarn_module *opened = tarn_model_open(scratch(name), CPU, NULL);
        assert_ok();
        assert_close(tarn_forward(opened, tokens_of(12)), tarn_forward(models[i], tokens_of(12)), 0);
        tarn_module_free(opened);
        assert_int_equal(unlink(in_folder(name, "model-2.safetensors")), 0);
        assert_null(tarn_model_open(scratch(name), CPU, NULL));
        assert_error_about(TARN_ERROR_IO, "model_open", "model-2.safetensors");
        assert_true(tarn_model_write(models[i], scratch(name))); /* one file again, which counts before an index */
        opened = tarn_model_open(scratch(name), CPU, NULL);
        assert_ok();
        tarn_module_free(opened);
        tarn_module_free(models[i]);
    }
}

static void weights_are_converted_or_stay_as_they_are_stored(void **state)
{
    (void)state;
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F16, TARN_F64};
    for (int from = 0; from < 4; from++) {
        tarn_llama_config config = configs[0];
        config.dtype = dtypes[from];
        tarn_module *model = with_random_weights(&config);
        assert_true(tarn_model_write(model, scratch("stored")));
        tarn_module *opened = tarn_model_open(scratch("stored"), CPU, &(tarn_model_open_options){.as_stored = true});
        assert_ok();
        for (int i = 0; i < tarn_module_parameter_count(model); i++) {
            assert_int_equal(tarn_dtype_of(tarn_module_parameter(opened, i)), dtypes[from]);
            assert_close(tarn_module_parameter(opened, i), tarn_module_parameter(model, i), 0);
        }
        tarn_module_free(opened);
        for (int to = 0; to < 4; to++) {
            opened = tarn_model_open(scratch("stored"), CPU, &(tarn_model_open_options){.dtype = dtypes[to]});
            assert_ok();
            for (int i = 0; i < tarn_module_parameter_count(model); i++)
                assert_close(tarn_module_parameter(opened, i),
                             tarn_cast(tarn_detach(tarn_module_parameter(model, i)), dtypes[to]), 0);
            tarn_module_free(opened);
        }
        tarn_module_free(model);
    }
}

/* A copy of a folder's weights, with one tensor more or one in another form. */
static void add_weight(const char *folder, const char *name, tarn_tensor *tensor)
{
    const char *path = in_folder(folder, "model.safetensors");
    tarn_safetensors *file = tarn_safetensors_open(path);
    tarn_safetensors_writer *writer = tarn_safetensors_create(path);
    for (int i = 0; i < tarn_safetensors_count(file); i++)
        if (strcmp(tarn_safetensors_name(file, i), name) != 0)
            tarn_safetensors_add(writer, tarn_safetensors_name(file, i),
                                 tarn_safetensors_read(file, tarn_safetensors_name(file, i), CPU));
    if (tensor)
        tarn_safetensors_add(writer, name, tensor);
    assert_true(tarn_safetensors_finish(writer));
    tarn_safetensors_close(file);
}

static void mismatched_weights_are_errors(void **state)
{
    (void)state;
    tarn_module *model = with_random_weights(&configs[1]); /* whose head is the tokens' table */
    const struct {
        const char *name, *error;
        tarn_tensor *tensor;
    } files[] = {{"model.layers.0.self_attn.rotary_emb.inv_freq", "", tarn_ones(TARN_SHAPE(3), TARN_F32, CPU)},
                 {"lm_head.weight", "", tarn_clone(tarn_detach(tarn_module_find(model, "model.embed_tokens.weight")))},
                 {"lm_head.weight", "differ", tarn_ones(TARN_SHAPE(17, 8), TARN_F32, CPU)},
                 {"model.layers.1.mlp.up_proj.weight", "unknown tensor", tarn_ones(TARN_SHAPE(5, 8), TARN_F32, CPU)},
                 {"model.layers.0.self_attn.q_proj.bias", "unknown tensor", tarn_ones(TARN_SHAPE(24), TARN_F32, CPU)},
                 {"model.norm.weight", "do not fit", tarn_ones(TARN_SHAPE(7), TARN_F32, CPU)},
                 {"model.norm.weight", "do not fit", tarn_ones(TARN_SHAPE(8), TARN_I32, CPU)},
                 {"model.norm.weight", "missing", NULL}};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        assert_true(tarn_model_write(model, scratch("misfits")));
        add_weight("misfits", files[i].name, files[i].tensor);
        tarn_module *opened = tarn_model_open(scratch("misfits"), CPU, NULL);
        if (files[i].error[0])
            assert_error_about(TARN_ERROR_FORMAT, "model_open", files[i].error);
        assert_ok();
        tarn_module_free(opened);
    }
    assert_true(tarn_model_write(model, scratch("misfits")));
    add_weight("misfits", "model.norm.weight", tarn_ones(TARN_SHAPE(8), TARN_BF16, CPU));
    assert_null(tarn_model_open(scratch("misfits"), CPU, &(tarn_model_open_options){.as_stored = true}));
    assert_error_about(TARN_ERROR_DTYPE, "model_open", "several dtypes");
    tarn_module_free(model);
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

#define SIZES \
    "\"vocab_size\": 17, \"max_position_embeddings\": 12, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, " \
    "\"hidden_size\": 8, " \
    "\"intermediate_size\": 5, " \
    "\"num_key_value_heads\": 1, \"head_dim\": 6, \"tie_word_embeddings\": true"
#define A(type) "{\"model_type\": \"" type "\", " SIZES
#define ROPE ", \"rope_scaling\": "
#define NEW ", \"rope_parameters\": "

/* What config.json may say of a model with the weights of configs[1], and a part of the error where it may not ("":
 * it may). */
static void every_invalid_config_is_an_error_that_names_it(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } files[] = {
        {A("llama") "}", ""},
        {A("mistral") ", \"sliding_window\": null}", ""},
        {A("mistral") "}", ""}, /* the usual window is wider than the context */
        {A("mistral") ", \"sliding_window\": 12}", ""},
        {A("mistral") ", \"sliding_window\": 11}", ""},
        {A("mistral") ", \"sliding_window\": 0}", "\"sliding_window\" is 0"},
        {A("mistral") ", \"sliding_window\": \"x\"}", "\"sliding_window\" is not an integer"},
        {A("llama") ", \"sliding_window\": 4}", ""}, /* which means nothing there */
        {A("llama") ", \"use_sliding_window\": true}", "\"use_sliding_window\": true is not supported"},
        {A("llama") ", \"layer_types\": [\"full_attention\"]}", ""},
        {A("llama") ", \"layer_types\": [\"sliding_attention\"]}",
         "\"layer_types\": sliding_attention is not supported"},
        {A("llama") ", \"hidden_act\": \"silu\", \"mlp_bias\": false, \"attention_bias\": false, "
                    "\"attention_dropout\": 0.0, \"unknown\": "
                    "[1]}",
         ""},
        {A("llama") ", \"hidden_act\": \"gelu\"}", ""},
        {A("llama") ", \"hidden_act\": \"quick_gelu\"}", "'quick_gelu' is not supported; silu, gelu, "},
        {A("llama") ", \"hidden_act\": 3}", "\"hidden_act\" is not a string"},
        {A("llama") ", \"attention_bias\": true}", "missing"},
        {A("mistral") ", \"attention_bias\": true}", "\"attention_bias\": true is not supported"},
        {A("llama") ", \"mlp_bias\": true}", "missing"},
        {A("mistral") ", \"mlp_bias\": true}", "\"mlp_bias\": true is not supported"},
        {A("llama") ", \"mlp_bias\": 1}", "neither true nor false"},
        {A("llama") ", \"attention_dropout\": 0.1}", ""},
        {A("llama") ", \"attention_dropout\": 1}", "\"attention_dropout\" is 1"},
        {A("llama") ", \"partial_rotary_factor\": 0.5}", ".rope.dims is 3"},
        {A("llama") ", \"partial_rotary_factor\": 0.7}", ""}, /* 4 of 6 elements */
        {A("llama") ", \"partial_rotary_factor\": 2}", "RoPE of 2 of head_dim"},
        {A("llama") ", \"quantization_config\": {\"bits\": 4}}", "\"quantization_config\""},
        {A("llama") ROPE "null, \"rope_theta\": 500000}", ""},
        {A("llama") ROPE "{\"type\": \"linear\", \"factor\": 2}}", ""},
        {A("llama") ROPE "{\"rope_type\": \"default\"}}", ""},
        {A("llama") NEW "{\"rope_type\": \"default\", \"rope_theta\": 500000.0}}", ""},
        {A("llama") NEW "{\"rope_type\": \"default\", \"rope_theta\": 5.0}, \"rope_theta\": 5}", ""},
        {A("llama") NEW "{\"rope_type\": \"default\", \"rope_theta\": 5.0}, \"rope_theta\": 6}",
         "that of \"rope_parameters\" 5"},
        {A("llama") NEW "{\"rope_type\": \"default\"}" ROPE "{\"type\": \"linear\", \"factor\": 2}}",
         "only one is expected"},
        {A("llama") ROPE "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "
                         "\"original_max_position_embeddings\": 8}}",
         ""},
        {A("llama") ROPE "{\"rope_type\": \"llama3\", \"factor\": 8}}", "low_freq_factor\" is missing"},
        {A("llama") ROPE "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 1, "
                         "\"original_max_position_embeddings\": 8}}",
         "the first below the second"},
        {A("llama") ROPE "{\"rope_type\": \"yarn\", \"factor\": 8}}", ""},
        {A("llama") ROPE "{\"rope_type\": \"yarn\", \"factor\": 8, \"beta\": 2}}", "\"beta\" is not supported"},
        {A("llama") ROPE "{\"rope_type\": \"proportional\", \"factor\": 8}}", "'proportional' is not supported"},
        {A("llama") ROPE "{\"rope_type\": \"dynamic\", \"factor\": 8}}", ""},
        {A("llama") NEW "{\"rope_type\": \"longrope\", \"long_factor\": [1, 2]}}",
         "rope_parameters.short_factor\" is missing"},
        {A("llama") NEW "{\"rope_type\": \"longrope\", \"short_factor\": [1, 2, 3], \"long_factor\": [1, 2]}}",
         "has 2 elements; it must have 3, one per pair"},
        {A("llama") NEW "{\"rope_type\": \"longrope\", \"short_factor\": [1, 2, 3], \"long_factor\": [1, 2, -1]}}",
         "has -1; it must have numbers above 0"},
        {A("llama") ROPE "{\"rope_type\": 3}}", "rope_type\" is not a string"},
        {A("llama") ROPE "{\"rope_type\": \"linear\"}}", "has no factor"},
        {A("llama") ROPE "{\"rope_type\": \"linear\", \"factor\": -2}}", "factor\" is -2"},
        {A("llama") ROPE "{\"rope_type\": \"linear\", \"factor\": null}}", "has no factor"},
        {A("llama") ROPE "4}", "\"rope_scaling\" is not an object"},
        {A("llama") ", \"rope_theta\": 0}", "\"rope_theta\" is 0"},
        {A("llama") ", \"rms_norm_eps\": 0}", "\"rms_norm_eps\" is 0"},
        {A("llama") ", \"rms_norm_eps\": \"x\"}", "\"rms_norm_eps\" is not a number"},
        {A("llama") ", \"eos_token_id\": [1, 2, 3], \"bos_token_id\": 1}", ""},
        {A("llama") ", \"eos_token_id\": [50000], \"bos_token_id\": 128000}", ""}, /* tokens that cannot come */
        {A("llama") ", \"eos_token_id\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}", "\"eos_token_id\" has too many elements"},
        {A("llama") ", \"eos_token_id\": [\"x\"]}", "\"eos_token_id\" is not an integer"},
        {A("llama") ", \"eos_token_id\": 1.5}", "\"eos_token_id\" is not an integer"},
        {A("llama") ", \"bos_token_id\": [1]}", "\"bos_token_id\" is not an integer"},
        {A("qwen2") "}", "missing"}, /* biases */
        {A("qwen3") "}", "missing"}, /* norms of queries and keys */
        {A("mixtral") "}", "'mixtral' is not supported; supported are gpt2, llama, mistral, qwen2, qwen3"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 17}", "\"max_position_embeddings\" is missing"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 17.5}", "\"vocab_size\" is not an integer"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 17, \"max_position_embeddings\": 12, \"num_hidden_layers\": 1, "
         "\"num_attention_heads\": 4, \"hidden_size\": 8, "
         "\"intermediate_size\": 5, \"num_key_value_heads\": 3}",
         ".kv_heads is 3; it must divide .heads, which is 4"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 17, \"max_position_embeddings\": 12, \"num_hidden_layers\": 1, "
         "\"num_attention_heads\": 4, \"hidden_size\": 9, "
         "\"intermediate_size\": 5}",
         "it must divide .hidden_size, which is 9"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 17, \"max_position_embeddings\": 12, \"num_hidden_layers\": 1, "
         "\"num_attention_heads\": 4, \"hidden_size\": 8, "
         "\"intermediate_size\": 5, \"head_dim\": 5}",
         "head_dim is 5"},
        {"{\"model_type\": \"llama\", \"vocab_size\": 17, \"max_position_embeddings\": 12, \"num_hidden_layers\": 1, "
         "\"num_attention_heads\": 4, \"hidden_size\": 8, "
         "\"intermediate_size\": 5, \"num_key_value_heads\": 1, \"head_dim\": 6}",
         "missing: 'lm_head.weight'"}, /* not tied unless it says so */
    };
    tarn_module *model = with_random_weights(&configs[1]);
    assert_true(tarn_model_write(model, scratch("configs")));
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        put_file(in_folder("configs", "config.json"), files[i].text, strlen(files[i].text));
        tarn_module *opened = tarn_model_open(scratch("configs"), CPU, NULL);
        if (!files[i].error[0])
            assert_ok();
        else if (opened || !strstr(tarn_error(), files[i].error) || !strstr(tarn_error(), "model_open"))
            fail_msg("%s: '%s' and not '%s'", files[i].text, tarn_error(), files[i].error);
        tarn_clear_error();
        tarn_module_free(opened);
    }
    tarn_module_free(model);
}

/* The tokens that end a text of the model in a path, as "0 5 16". */
static const char *ends_of(const char *path)
{
    static char text[64];
    tarn_model_info info;
    tarn_module *model = tarn_model_open(path, CPU, NULL);
    assert_ok();
    assert_true(tarn_model_query(model, &info) && info.eos_count > 0);
    int used = snprintf(text, sizeof(text), "%lld", (long long)info.eos[0]);
    for (int i = 1; i < info.eos_count; i++)
        used += snprintf(text + used, sizeof(text) - (size_t)used, " %lld", (long long)info.eos[i]);
    tarn_module_free(model);
    return text;
}

/* As transformers stops at them. */
static void eos_tokens_of_generation_config_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text, *ends; /* or the error, after ':' */
    } files[] = {
        {"{\"eos_token_id\": [5, 2, 0], \"temperature\": 0.6}", "0 5 16 2"},
        {"{\"eos_token_id\": 9}", "0 5 16 9"},
        {"{\"eos_token_id\": null}", "0 5 16"},
        {"{\"eos_token_id\": [17, -1]}", "0 5 16"}, /* that cannot come */
        {"{}", "0 5 16"},
        {"{\"eos_token_id\": [1, 2, 3, 4, 6, 7]}", ":more than 8 EOS tokens"},
        {"{\"eos_token_id\": \"x\"}", ":generation_config.json': \"eos_token_id\" is not an integer"},
        {"{\"eos_token_id\": [1.5]}", ":generation_config.json': \"eos_token_id\" is not an integer"},
        {"{", ":generation_config.json', line 1"},
    };
    tarn_module *model = with_random_weights(&configs[0]);
    assert_true(tarn_model_write(model, scratch("ends")));
    tarn_module_free(model);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        put_file(in_folder("ends", "generation_config.json"), files[i].text, strlen(files[i].text));
        if (files[i].ends[0] == ':') {
            assert_null(tarn_model_open(scratch("ends"), CPU, NULL));
            if (!strstr(tarn_error(), files[i].ends + 1))
                fail_msg("%s: '%s' and not '%s'", files[i].text, tarn_error(), files[i].ends + 1);
            tarn_clear_error();
            continue;
        }
        assert_string_equal(ends_of(scratch("ends")), files[i].ends);
        assert_true(
            tarn_model_convert(scratch("ends"), scratch("ends.gguf"), NULL, &(tarn_convert_options){.replace = true}));
        assert_string_equal(ends_of(scratch("ends.gguf")), files[i].ends);
    }
}

/* ---- a real model ------------------------------------------------------------------------------------------------ */

enum { STORY = 201, LOGITS = 512 };

/* The numbers of the array after a key. */
static void read_list(const char *text, const char *key, int count, double *values)
{
    const char *at = strstr(text, key);
    at = at ? strchr(at, '[') : NULL;
    assert_non_null(at);
    for (int i = 0; i < count; i++) {
        char *end;
        values[i] = strtod(at + 1, &end);
        assert_true(end > at + 1);
        at = end;
    }
}

/* On $TARN_TEST_DEVICE, or the CPU. */
static void a_published_model_generates_its_story(void **state)
{
    (void)state;
    if (!real_data("stories260K"))
        skip();
    tarn_device device = test_device("cpu");
    double ids[STORY], logits[LOGITS], found[LOGITS];
    int32_t made[STORY - 1];
    size_t count;
    char *golden = get_file(real_data("stories260K/golden_greedy200.json"), &count);
    golden = realloc(golden, count + 1);
    golden[count] = 0;
    read_list(golden, "\"ids\"", STORY, ids);
    read_list(golden, "\"logits_pos0\"", LOGITS, logits);
    free(golden);
    tarn_module *model = open_stories();
    int32_t first = (int32_t)ids[0];
    assert_true(tarn_module_to(model, device));
    assert_true(tarn_read_f64(tarn_forward(model, tarn_from_i32(&first, TARN_SHAPE(1, 1), device)), found, LOGITS));
    for (int i = 0; i < LOGITS; i++)
        assert_true(fabs(found[i] - logits[i]) <= 1e-4);
    assert_int_equal(tarn_generate(model, &first, 1, made, &(tarn_generate_options){.max_tokens = STORY - 1}),
                     STORY - 1);
    for (int i = 0; i + 1 < STORY; i++)
        assert_int_equal(made[i], (int32_t)ids[i + 1]);
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest real[] = {in_scope(a_published_model_generates_its_story)};
    const struct CMUnitTest folders[] = {
        in_scope(a_folder_keeps_all_of_a_model),
        in_scope(weights_may_be_sharded),
        in_scope(weights_are_converted_or_stay_as_they_are_stored),
        in_scope(mismatched_weights_are_errors),
        in_scope(every_invalid_config_is_an_error_that_names_it),
        in_scope(eos_tokens_of_generation_config_are_read),
    };
    int failures = cmocka_run_group_tests_name("real", real, NULL, NULL);
    return failures +
           (TARN__HAVE_JANSSON ? cmocka_run_group_tests_name("folders", folders, make_scratch, remove_scratch) : 0);
}
