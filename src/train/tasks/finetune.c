/* finetune.c: fine-tuning: checks of its options, opening the base model, and adding adapters.
 *
 * A run starts from a base (a folder of transformers, a GGUF file, or the best weights of another run) and trains all
 * of its weights, or with --lora adapters next to frozen weights. Model sizes are the base's; options may repeat them
 * but not change them. A resumed run that trains all weights is created from its own config.json without values: the
 * checkpoint has them, and the base may be gone. With adapters the base is opened again and its hash compared
 * (lora_run.c). */
#include "train/tasks/finetune.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <tarn/lora.h>
#include <tarn/model.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/os/files.h"
#include "models/hf/weights.h"
#include "models/lora/lora.h"
#include "text/tokenizer/tokenizer.h"
#include "train/options.h"

/* default context in tokens: few documents fill the context of published models, and activations grow with it */
enum { MAX_DEFAULT_CONTEXT = 2048 };

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* An option and whether it was given. first_given() returns the first given name, or NULL. */
typedef struct given {
    const char *name;
    bool is_given;
} given;

static const char *first_given(const given *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].is_given)
            return list[i].name;
    return NULL;
}

bool tarn__finetune_check(const char *function, const tarn_train_options *o, bool is_measured)
{
    const given of_adapters[] = {
        {"lora_alpha", o->lora_alpha > 0},         {"lora_dropout", o->lora_dropout > 0},
        {"lora_targets", o->lora_targets[0] != 0}, {"lora_modules_to_save", o->lora_modules_to_save[0] != 0},
        {"quantize", o->quantize[0] != 0},         {"merge", o->merge[0] != 0}};
    const given of_a_base[] = {{"lora", o->lora > 0 && !is_measured}, {"quantize", o->quantize[0] != 0}};
    const char *name = first_given(of_adapters, 6);
    if (!o->lora && name)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s applies to adapters only; give .lora too", function, name);
    if (o->base[0] && o->tokenizer[0])
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: tokenizer does not apply to fine-tuning: the base model '%s' has its own", function,
                           o->base);
    if (!o->base[0] && (name = first_given(of_a_base, 2)))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s needs a base model; give its folder or GGUF file as .model",
                           function, name);
    if (o->val[0] && o->val_fraction > 0)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: val is a validation file, and val_fraction a fraction of the data; give one of them",
                           function);
    return !o->quantize[0] || !tarn__ends_with(o->base, ".gguf") ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: quantize applies to model folders only; '%s' is a GGUF file", function,
                       o->base);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* True if the folder has a file of that name. */
static bool holds(const char *folder, const char *name)
{
    tarn__path path;
    return tarn__path_exists(tarn__path_in(folder, name, &path));
}

/* Replaces a run folder by its best/ folder, in o->base. A folder with adapters alone is an error: it has no weights to
 * train. */
static bool resolve_base(const char *function, tarn_train_options *o)
{
    char best[sizeof(o->base)];
    if (tarn__ends_with(o->base, ".gguf"))
        return true;
    if (holds(o->base, "best/config.json")) {
        if ((size_t)snprintf(best, sizeof(best), "%.1000s/best", o->base) >= sizeof(best) || strlen(o->base) > 1000)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the path '%.64s…' is too long", function, o->base);
        memcpy(o->base, best, sizeof(best));
    }
    if (holds(o->base, "adapter_config.json") && !holds(o->base, "model.safetensors"))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: '%s' has adapters only; merge them into a model first: tarn convert %s FOLDER",
                           function, o->base, o->base);
    return true;
}

/* Dtype of trained weights; tf32 is f32 with faster matmuls. */
static tarn_dtype dtype_of(const tarn_train_options *o)
{
    return strcmp(o->precision, "bf16") == 0 ? TARN_BF16 : TARN_F32;
}

/* Stops the walk at the first quantized weight: false ends it. */
static bool find_quantized(const tarn__parameter *parameter, void *found)
{
    if (parameter->is_buffer && tarn__is_quantized(parameter->tensor->view.dtype))
        *(const tarn__parameter **)found = parameter;
    return *(const tarn__parameter **)found == NULL;
}

/* Quantized weights cannot be trained: without adapters most of the model would silently keep its values. */
static bool check_trained(const char *function, const tarn_trainer *t)
{
    const tarn__parameter *found = NULL;
    tarn__module_walk_over(t->model, TARN__MODULE_BUFFERS, find_quantized, &found);
    return !found || t->options.lora ||
           tarn__raise(TARN_ERROR_ARGUMENT,
                       "%s: '%s' has quantized weights ('%.200s' is %s), which cannot be trained; train adapters "
                       "(.lora), or use an unquantized model",
                       function, t->options.base, found->path, tarn_dtype_name(found->tensor->view.dtype));
}

/* Creates the model of a resumed run from its config.json, without values: its checkpoint is loaded later. The caller
 * owns it. NULL with an error. */
static tarn_module *create_from_config(const char *function, const tarn_trainer *t, tarn_device device)
{
    tarn__path path;
    tarn__json_file *config = tarn__json_file_open(function, tarn__path_in(t->options.out, "config.json", &path));
    const char *type = config ? tarn__json_file_string(config, "model_type") : NULL;
    const tarn__arch *kind = type ? tarn__arch_named(function, path.text, type) : NULL;
    const tarn__device_map only = tarn__device_map_one(device);
    tarn_module *model = kind ? tarn__model_from_config(function, config, dtype_of(&t->options), &only) : NULL;
    tarn__json_file_free(config);
    return model;
}

bool tarn__base_model_open(const char *function, tarn_trainer *t, tarn_device device)
{
    tarn_train_options *o = &t->options;
    if (!t->is_resumed && !resolve_base(function, o))
        return false;
    bool has_checkpoint =
        t->is_resumed && !o->lora && (holds(o->out, "model.safetensors") || holds(o->out, "model.safetensors.next"));
    t->model = has_checkpoint
                   ? create_from_config(function, t, device)
                   : tarn_model_open(o->base, device,
                                     &(tarn_model_open_options){.dtype = dtype_of(o),
                                                                .quantize = tarn__quant_type_named(o->quantize)});
    if (t->model)
        return check_trained(function, t);
    return tarn__raise_within(function);
}

/* Copies the sizes of the base to the options. Sizes that were given, perhaps by the config.json of another run, must
 * match. The context may be shorter than the base's, never longer. */
static bool copy_sizes(const char *function, tarn_train_options *o, const tarn__model_sizes *own)
{
    const struct {
        const char *name;
        int64_t *given, own;
    } sizes[] = {{"layers", &o->layers, own->layers},       {"heads", &o->heads, own->heads},
                 {"kv_heads", &o->kv_heads, own->kv_heads}, {"hidden_size", &o->hidden_size, own->hidden_size},
                 {"ffn_size", &o->ffn_size, own->ffn_size}, {"vocab_size", &o->vocab_size, own->vocab_size}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (*sizes[i].given && *sizes[i].given != sizes[i].own)
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "%s: %s is %" PRId64 ", but the base model '%s' has %" PRId64 "; omit it", function,
                               sizes[i].name, *sizes[i].given, o->base, sizes[i].own);
        *sizes[i].given = sizes[i].own;
    }
    if (o->context > own->context)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: context is %" PRId64 ", but the base model '%s' supports at most %" PRId64 " tokens",
                           function, o->context, o->base, own->context);
    o->context = o->context ? o->context : own->context < MAX_DEFAULT_CONTEXT ? own->context : MAX_DEFAULT_CONTEXT;
    return true;
}

/* Ids of the tokens of add_tokens, int64_t; none without. The caller frees the buffer. False with an error. */
static bool list_added(const char *function, const tarn_trainer *t, tarn__buffer *ids)
{
    const char *tokens = t->options.add_tokens;
    return !tokens[0] || tarn__tokenizer_listed(function, t->corpus.tokenizer, tokens, ids);
}

/* True if adapters train the rows from `rows` to `vocab_size`: add_tokens names them all. */
static bool trains_added(const tarn__buffer *ids, int64_t rows, int64_t vocab_size)
{
    const int64_t *id = (const int64_t *)(const void *)ids->data;
    int64_t above = 0;
    for (size_t i = 0; i < ids->count; i++)
        above += id[i] >= rows && id[i] < vocab_size;
    return above == vocab_size - rows;
}

/* True if embedding and head are trained whole next to adapters. */
static bool saves_ends(const tarn_trainer *t)
{
    const char *saved = t->options.lora_modules_to_save;
    return strstr(saved, tarn__lora_token_embedding(t->model)->name) &&
           strstr(saved, t->model->child[TARN__MODEL_HEAD]->name);
}

/* vocab_size above the base's adds tokens, and so does add_tokens. Adapters leave new rows as they are, so these, or
 * embedding and head, must be trained with them. */
static bool add_tokens(const char *function, tarn_trainer *t, tarn__model_sizes *own)
{
    tarn_train_options *o = &t->options;
    int64_t tokens = o->add_tokens[0] ? tarn_tokenizer_count(t->corpus.tokenizer) : 0;
    if (!o->vocab_size && tokens > own->vocab_size)
        o->vocab_size = tokens;
    if (o->vocab_size <= own->vocab_size)
        return true;
    tarn__buffer ids = {0};
    bool good = list_added(function, t, &ids);
    bool is_trained = !o->lora || saves_ends(t) || (good && trains_added(&ids, own->vocab_size, o->vocab_size));
    tarn__buffer_free(&ids, sizeof(int64_t));
    if (good && !is_trained)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: vocab_size is %" PRId64 ", but the base model '%s' has %" PRId64
                           " tokens; lora_modules_to_save must have %s and %s to train the added ones, or add_tokens "
                           "name them",
                           function, o->vocab_size, o->base, own->vocab_size,
                           tarn__lora_token_embedding(t->model)->name, t->model->child[TARN__MODEL_HEAD]->name);
    if (!good || !tarn__lora_add_tokens(function, t->model, o->vocab_size, &(uint64_t){(uint64_t)o->seed}))
        return false;
    tarn__model_sizes_of(t->model, own);
    return true;
}

bool tarn__base_model_complete(const char *function, tarn_trainer *t, const tarn__model_sizes *wanted)
{
    tarn_train_options *o = &t->options;
    tarn__model_sizes own;
    tarn_model_info info;
    const tarn__arch *kind = tarn__arch_of(function, t->model);
    if (!kind || !tarn_model_query(t->model, &info))
        return false;
    tarn__model_sizes_of(t->model, &own);
    if (o->model[0] && strcmp(o->model, info.type) != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the model is %s, but the base model '%s' is a %s", function,
                           o->model, o->base, info.type);
    if (o->dropout > 0 && !kind->keys->dropout)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: dropout is %g, but a %s has no dropout; lora_dropout applies to adapters", function,
                           o->dropout, info.type);
    if (!add_tokens(function, t, &own) || !copy_sizes(function, o, &own))
        return false;
    snprintf(o->model, sizeof(o->model), "%s", info.type);
    /* dropout and recompute are no part of a stored model */
    tarn__model_tune(t->model, o->dropout, wanted->recompute);
    return !o->merge[0] || tarn__adapters_check_merge(function, t);
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

bool tarn__adapters_add(const char *function, tarn_trainer *t)
{
    const tarn_train_options *o = &t->options;
    const char *saved = o->lora_modules_to_save;
    if (!o->lora)
        return true;
    tarn__buffer tokens = {0};
    bool good = saves_ends(t) || list_added(function, t, &tokens);
    /* seeded by the run's seed: the same options give bitwise identical adapters */
    good = good &&
           tarn_lora_add(t->model, &(tarn_lora_options){.rank = o->lora,
                                                        .alpha = o->lora_alpha,
                                                        .dropout = o->lora_dropout,
                                                        .targets = o->lora_targets[0] ? o->lora_targets : NULL,
                                                        .seed = (uint64_t)o->seed,
                                                        .dtype = dtype_of(o),
                                                        .modules_to_save = saved[0] ? saved : NULL,
                                                        .trained_tokens = (const int64_t *)(const void *)tokens.data,
                                                        .trained_token_count = (int64_t)tokens.count});
    tarn__buffer_free(&tokens, sizeof(int64_t));
    return good || tarn__raise_within(function);
}
