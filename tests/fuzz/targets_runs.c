/* targets_runs.c: files of models and runs, each damaged next to valid ones. */
#include <tarn/lora.h>
#include <tarn/model.h>
#include <tarn/safetensors.h>
#include <tarn/train.h>

#include "fuzz/targets.h"
#include "support/files.h"

#define CPU tarn_device_cpu()

/* ---- models ------------------------------------------------------------------------------------------------------ */

static void make_model(void)
{
    const tarn_gpt2_config config = {
        .vocab_size = 7, .context = 5, .layers = 1, .heads = 2, .hidden_size = 4, .has_eos = true, .eos = 6};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 1);
    fuzz_must(model && tarn_model_write(model, scratch("model")), "a model is written");
    tarn_module_free(model);
}

static bool take_model_file(const char *name, const void *from, size_t count)
{
    fuzz_write(name, from, count);
    tarn_module *model = tarn_model_open(scratch("model"), CPU, NULL);
    tarn_module_free(model);
    return model != NULL;
}

static bool take_config(const void *from, size_t count)
{
    return take_model_file("model/config.json", from, count);
}

static bool take_weights(const void *from, size_t count)
{
    return take_model_file("model/model.safetensors", from, count);
}

static void config_seeds(fuzz_seed_fn use, void *ctx)
{
    make_model();
    fuzz_seed_file("model/config.json", use, ctx);
}

static void weights_seeds(fuzz_seed_fn use, void *ctx)
{
    make_model();
    fuzz_seed_file("model/model.safetensors", use, ctx);
}

/* ---- models of the Llama family, in several files ---------------------------------------------------------------- */

/* The weights of the folder "llama" in two files, and an index of them. */
static void split_weights(void)
{
    static const char *const names[] = {"a.safetensors", "b.safetensors"};
    char text[4096] = "{\"weight_map\": {";
    tarn_scope *scope = tarn_scope_open();
    tarn_safetensors *file = tarn_safetensors_open(scratch("llama/model.safetensors"));
    tarn_safetensors_writer *writer[] = {tarn_safetensors_create(scratch("llama/a.safetensors")),
                                         tarn_safetensors_create(scratch("llama/b.safetensors"))};
    for (int i = 0; i < tarn_safetensors_count(file); i++) {
        const char *name = tarn_safetensors_name(file, i);
        tarn_safetensors_add(writer[i % 2], name, tarn_safetensors_read(file, name, CPU));
        size_t used = strlen(text);
        snprintf(text + used, sizeof(text) - used, "%s\"%s\": \"%s\"", i ? ", " : "", name, names[i % 2]);
    }
    tarn_safetensors_close(file);
    fuzz_must(tarn_safetensors_finish(writer[0]) && tarn_safetensors_finish(writer[1]), "weights are split");
    tarn_scope_close(scope);
    strcat(text, "}}");
    fuzz_write("llama/model.safetensors.index.json", text, strlen(text));
    remove(scratch("llama/model.safetensors"));
}

static void make_llama(void)
{
    const tarn_llama_config config = {.vocab_size = 7,
                                      .context = 5,
                                      .layers = 1,
                                      .heads = 2,
                                      .hidden_size = 4,
                                      .ffn_size = 3,
                                      .kv_heads = 1,
                                      .eos_count = 1,
                                      .eos = {6},
                                      .rope_scaling = TARN_ROPE_LLAMA3};
    tarn_module *model = tarn_model_llama(&config, CPU, 1);
    fuzz_must(model && tarn_model_write(model, scratch("llama")), "a model is written");
    tarn_module_free(model);
    split_weights();
}

static bool take_llama_file(const char *name, const void *from, size_t count)
{
    fuzz_write(name, from, count);
    tarn_module *model = tarn_model_open(scratch("llama"), CPU, NULL);
    tarn_module_free(model);
    return model != NULL;
}

static bool take_llama_config(const void *from, size_t count)
{
    return take_llama_file("llama/config.json", from, count);
}

static bool take_index(const void *from, size_t count)
{
    return take_llama_file("llama/model.safetensors.index.json", from, count);
}

static void llama_config_seeds(fuzz_seed_fn use, void *ctx)
{
    make_llama();
    fuzz_seed_file("llama/config.json", use, ctx);
}

static void index_seeds(fuzz_seed_fn use, void *ctx)
{
    make_llama();
    fuzz_seed_file("llama/model.safetensors.index.json", use, ctx);
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

static tarn_module *small_model(void)
{
    const tarn_gpt2_config config = {.vocab_size = 7, .context = 5, .layers = 1, .heads = 2, .hidden_size = 4};
    return tarn_model_gpt2(&config, CPU, 1);
}

/* Adapters, trained tokens and a saved module. */
static void make_adapter(void)
{
    static const int64_t tokens[] = {1, 3};
    tarn_module *model = small_model();
    fuzz_must(model &&
                  tarn_lora_add(model, &(tarn_lora_options){.rank = 2,
                                                            .targets = "c_attn",
                                                            .modules_to_save = "ln_f",
                                                            .trained_tokens = tokens,
                                                            .trained_token_count = 2}) &&
                  tarn_lora_save(model, scratch("adapter"), "base"),
              "an adapter is written");
    tarn_module_free(model);
}

/* Loads adapters. What is taken can be used, saved and merged. */
static bool take_adapters(tarn_module *model, const char *path)
{
    const int32_t ids[] = {1, 6, 3};
    bool taken = tarn_lora_load(model, path);
    tarn_scope *scope = taken ? tarn_scope_open() : NULL;
    tarn_no_grad_open();
    tarn_module_train(model, false);
    fuzz_must(!taken || (tarn_forward(model, tarn_from_i32(ids, TARN_SHAPE(1, 3), CPU)) &&
                         tarn_lora_save(model, scratch("again"), NULL) && tarn_lora_merge(model)),
              "adapters that were taken can be used, saved and merged");
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return taken;
}

static bool take_adapter_file(const char *name, const void *from, size_t count)
{
    fuzz_write(name, from, count);
    tarn_module *model = small_model();
    bool taken = take_adapters(model, scratch("adapter"));
    tarn_module_free(model);
    return taken;
}

static bool take_adapter_config(const void *from, size_t count)
{
    return take_adapter_file("adapter/adapter_config.json", from, count);
}

static bool take_adapter_weights(const void *from, size_t count)
{
    return take_adapter_file("adapter/adapter_model.safetensors", from, count);
}

/* As PEFT writes them, for the same weights. */
static void adapter_config_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char *const others[] = {
        "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 8, \"target_modules\": [\"c_attn\"], \"modules_to_save\": "
        "[\"ln_f\"], \"trainable_token_indices\": {\"wte\": [1, 3], \"lm_head\": [1, 3]}, \"lora_dropout\": 0.1, "
        "\"fan_in_fan_out\": true, \"bias\": \"none\", \"layers_to_transform\": [0], \"use_rslora\": true}",
        "{\"peft_type\": \"LORA\", \"r\": 3, \"target_modules\": \".*\\\\.attn\\\\.c_(attn|x)\", \"exclude_modules\": "
        "[\"mlp.c_fc\"], \"rank_pattern\": {\"h\\\\.[0-9]\\\\..*\": 2}, \"alpha_pattern\": {\"c_attn\": 1.5}, "
        "\"modules_to_save\": [\"ln_f\"], \"trainable_token_indices\": [1, 3], \"init_lora_weights\": \"gaussian\"}"};
    make_adapter();
    fuzz_seed_file("adapter/adapter_config.json", use, ctx);
    for (int i = 0; i < (fuzz_has_bpe() ? 2 : 1); i++) /* the second has patterns */
        use(others[i], strlen(others[i]), ctx);
}

static void adapter_weights_seeds(fuzz_seed_fn use, void *ctx)
{
    make_adapter();
    fuzz_seed_file("adapter/adapter_model.safetensors", use, ctx);
}

/* A model whose rows of queries and keys have another order in GGUF files. */
static tarn_module *small_llama(void)
{
    const tarn_llama_config config = {
        .vocab_size = 7, .context = 5, .layers = 1, .heads = 2, .kv_heads = 1, .hidden_size = 4, .ffn_size = 8};
    return tarn_model_llama(&config, CPU, 1);
}

static bool take_adapter_gguf(const void *from, size_t count)
{
    const char *path = fuzz_write("fuzz-adapter.gguf", from, count);
    char copy[1200];
    snprintf(copy, sizeof(copy), "%s", path);
    tarn_module *model = small_llama();
    bool taken = take_adapters(model, copy);
    tarn_module_free(model);
    return taken;
}

static void adapter_gguf_seeds(fuzz_seed_fn use, void *ctx)
{
    static const char *const targets[] = {NULL, "q_proj,embed_tokens,lm_head"};
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16};
    for (int i = 0; i < 2; i++) {
        tarn_module *model = small_llama();
        fuzz_must(
            model && tarn_lora_add(model, &(tarn_lora_options){.rank = 2, .targets = targets[i], .dtype = dtypes[i]}) &&
                tarn_lora_save(model, scratch("good-adapter.gguf"), NULL),
            "adapters are written to a GGUF file");
        tarn_module_free(model);
        fuzz_seed_file("good-adapter.gguf", use, ctx);
    }
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* The folder of the run whose files are damaged. */
static char folder[16];

/* "run1/config.json" */
static const char *in_folder(const char *name)
{
    static char path[64];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void make_run(void)
{
    static int number;
    snprintf(folder, sizeof(folder), "run%d", number++);
    tarn_train_options options = {.layers = 1,
                                  .heads = 1,
                                  .hidden_size = 8,
                                  .context = 8,
                                  .batch_size = 4,
                                  .steps = 3,
                                  .eval_every = 3,
                                  .device = "cpu"};
    char text[601];
    for (int i = 0; i < 600; i++)
        text[i] = "to be, or not to be.\n"[i % 21];
    text[600] = 0;
    snprintf(options.data, sizeof(options.data), "text:%s", write_text("text.txt", text));
    snprintf(options.out, sizeof(options.out), "%s", scratch(folder));
    tarn_trainer *trainer = tarn_trainer_new(&options);
    fuzz_must(trainer && tarn_trainer_run(trainer, NULL, NULL, NULL), "a run is made");
    tarn_trainer_free(trainer);
    tarn_empty_cache(CPU);
}

/* Resumes the run, and opens it for inference. */
static bool take_run_file(const char *name, const void *from, size_t count)
{
    fuzz_write(name, from, count);
    tarn_run *run = tarn_run_open(scratch(folder), CPU);
    tarn_run_close(run);
    fuzz_must(run || tarn_failed(), "a run that does not open has an error");
    tarn_clear_error();
    tarn_trainer *trainer = tarn_trainer_resume(scratch(folder), NULL);
    tarn_trainer_free(trainer);
    return trainer != NULL;
}

/* A target for a file of the run: how it is taken, and its seed. */
#define RUN_FILE(word, name) \
    static bool take_##word(const void *from, size_t count) \
    { \
        return take_run_file(in_folder(name), from, count); \
    } \
    static void word##_seeds(fuzz_seed_fn use, void *ctx) \
    { \
        make_run(); \
        fuzz_seed_file(in_folder(name), use, ctx); \
    }
RUN_FILE(run_config, "config.json")
RUN_FILE(place, "trainer.json")
RUN_FILE(optimizer, "optimizer.safetensors")

const fuzz_target fuzz_run_targets[] = {
    {"model_config", fuzz_has_json, config_seeds, take_config},
    {"model_weights", fuzz_has_json, weights_seeds, take_weights},
    {"llama_config", fuzz_has_json, llama_config_seeds, take_llama_config},
    {"weights_index", fuzz_has_json, index_seeds, take_index},
    {"adapter_config", fuzz_has_json, adapter_config_seeds, take_adapter_config},
    {"adapter_weights", fuzz_has_json, adapter_weights_seeds, take_adapter_weights},
    {"adapter_gguf", fuzz_has_json, adapter_gguf_seeds, take_adapter_gguf},
    {"run_config", fuzz_has_json, run_config_seeds, take_run_config},
    {"run_place", fuzz_has_json, place_seeds, take_place},
    {"run_optimizer", fuzz_has_json, optimizer_seeds, take_optimizer},
    {0},
};
