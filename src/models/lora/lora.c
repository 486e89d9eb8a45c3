/* lora.c: adding LoRA adapters to a language model, and merging them into its weights. */
#include "models/lora/lora.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "core/tensor/random.h"

/* Larger ranks are errors in a configuration, not models. */
#define MAX_RANK 65536

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* State of the visit. */
typedef struct listing {
    tarn__lora_layers *list;
    const tarn_module *head, *tokens; /* the token embedding; NULL: none */
} listing;

/* Heads are linear layers, tied or not. Forwards read a position embedding's weight without tarn__lora_embedding(). */
static tarn__lora_kind kind_of(const listing *l, const tarn_module *module)
{
    if (module == l->head)
        return TARN__LORA_HEAD;
    if (module == l->tokens)
        return TARN__LORA_EMBEDDING;
    return module->linear ? TARN__LORA_LINEAR : TARN__LORA_NO_TARGET;
}

/* Adds a module with parameters that is no part of an adapter. */
static bool list_one(tarn_module *module, const char *path, void *ctx)
{
    const listing *l = ctx;
    tarn__lora_layers *list = l->list;
    if (!module->parameters || (module->parent && module->parent->adapter))
        return true;
    bool good = tarn__list_reserve(&list->layer, list->count, &list->capacity, sizeof(*list->layer));
    char *copy = good ? tarn__string_copy(path) : NULL;
    if (copy)
        list->layer[list->count++] = (tarn__lora_layer){.module = module,
                                                        .path = copy,
                                                        .kind = kind_of(l, module),
                                                        .is_selected = module->adapter && !module->adapter->is_tokens,
                                                        .has_tokens = module->adapter && module->adapter->is_tokens,
                                                        .is_saved = module->is_saved};
    return copy != NULL;
}

/* Lists the modules in tree order, so that a seed gives each layer the same A. */
bool tarn__lora_list(const char *function, const tarn_module *model, tarn__lora_layers *list)
{
    *list = (tarn__lora_layers){0};
    const tarn__arch *arch = tarn__arch_of(function, model);
    if (!arch)
        return false;
    list->form = arch->linear;
    listing l = {list, model->child[TARN__MODEL_HEAD], tarn__lora_token_embedding(model)};
    /* the visit changes nothing */
    return tarn_module_visit((tarn_module *)model, list_one, &l) || tarn__raise_within(function);
}

/* Frees the paths, tokens and the list, not the layers. */
void tarn__lora_release(tarn__lora_layers *list)
{
    for (int i = 0; i < list->count; i++) {
        tarn__string_free(list->layer[i].path);
        tarn__release(list->layer[i].token, sizeof(int64_t) * (size_t)list->layer[i].tokens);
    }
    tarn__release(list->layer, sizeof(*list->layer) * (size_t)list->capacity);
}

/* "q_proj" matches "model.layers.0.self_attn.q_proj", but not "my_q_proj": the suffix must begin after a dot. */
bool tarn__lora_name_matches(const char *path, const char *name, size_t length)
{
    size_t all = strlen(path);
    if (length == 0 || all < length || memcmp(path + all - length, name, length) != 0)
        return false;
    return all == length || path[all - length - 1] == '.';
}

/* Layers that were selected before stay selected. */
int tarn__lora_select(tarn__lora_layers *list, const char *name, size_t length)
{
    int count = 0;
    for (int i = 0; i < list->count; i++)
        if (list->layer[i].kind != TARN__LORA_NO_TARGET && tarn__lora_name_matches(list->layer[i].path, name, length)) {
            list->layer[i].is_selected = true;
            count++;
        }
    return count;
}

/* Any layer with an adapter or trained tokens counts, and any saved module. */
bool tarn_lora_has(const tarn_module *model)
{
    tarn__lora_layers list;
    bool has = false;
    if (tarn__lora_list("lora_has", model, &list))
        for (int i = 0; i < list.count; i++)
            has |= list.layer[i].is_selected || list.layer[i].is_saved || list.layer[i].has_tokens;
    tarn__lora_release(&list);
    return has;
}

/* ---- targets ----------------------------------------------------------------------------------------------------- */

/* Raises an unknown target, with the names that exist. Always false. */
static bool raise_unknown(const char *function, const char *option, const tarn__lora_layers *list, const char *name,
                          size_t length, bool with_all)
{
    char known[200] = "";
    for (int i = 0; i < list->count; i++) {
        if (list->layer[i].kind == TARN__LORA_NO_TARGET && !with_all)
            continue;
        const char *dot = strrchr(list->layer[i].path, '.'), *last = dot ? dot + 1 : list->layer[i].path;
        bool is_new = true;
        for (int k = 0; k < i; k++)
            is_new &= (list->layer[k].kind == TARN__LORA_NO_TARGET && !with_all) ||
                      !tarn__lora_name_matches(list->layer[k].path, last, strlen(last));
        size_t used = strlen(known);
        if (is_new)
            snprintf(known + used, sizeof(known) - used, "%s%s", used ? ", " : "", last);
    }
    return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s: %s '%.*s' not found; there are %s", function, option,
                       with_all ? "module" : "layer", (int)(length < 100 ? length : 100), name, known);
}

/* "q_proj, v_proj": selects targets, or modules to save, by their names. */
static bool select_names(const char *function, tarn__lora_layers *list, const char *names, bool is_saved)
{
    const char *option = is_saved ? ".modules_to_save (--lora-modules-to-save)" : ".targets (--lora-targets)";
    for (const char *at = names; at;) {
        at += strspn(at, " ");
        const char *end = at + strcspn(at, ",");
        size_t length = (size_t)(end - at);
        while (length && at[length - 1] == ' ')
            length--;
        if (length == 0)
            return tarn__raise(
                TARN_ERROR_ARGUMENT,
                "%s: %s: '%.100s' has an empty name; it must be names of layers and commas, \"q_proj,v_proj\"",
                function, option, names);
        if ((is_saved ? tarn__lora_select_saved(list, at, length) : tarn__lora_select(list, at, length)) == 0)
            return raise_unknown(function, option, list, at, length, is_saved);
        at = *end ? end + 1 : NULL;
    }
    return true;
}

/* Sets the tokens of embedding and head. */
static bool select_tokens(const char *function, tarn__lora_layers *list, const tarn_lora_options *o)
{
    static const tarn__lora_kind kinds[] = {TARN__LORA_EMBEDDING, TARN__LORA_HEAD};
    bool good = o->trained_token_count >= 0 && o->trained_token_count <= INT32_MAX &&
                (o->trained_tokens || !o->trained_token_count);
    if (!good)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .trained_token_count is %lld, of .trained_tokens%s", function,
                           (long long)o->trained_token_count, o->trained_tokens ? "" : " that are NULL");
    for (int i = 0; good && i < 2; i++) {
        tarn__lora_layer *layer = tarn__lora_layer_of(list, kinds[i]);
        good = !layer ||
               tarn__lora_set_tokens(function, ".trained_tokens", layer, o->trained_tokens, o->trained_token_count);
    }
    return good;
}

/* Targets NULL: all linear layers that are not saved. */
static bool select_all(const char *function, const tarn_module *model, tarn__lora_layers *list,
                       const tarn_lora_options *o)
{
    if (!select_names(function, list, o->modules_to_save, true) || !select_names(function, list, o->targets, false))
        return false;
    for (int i = 0; i < list->count && !o->targets; i++)
        list->layer[i].is_selected = list->layer[i].kind == TARN__LORA_LINEAR && !list->layer[i].is_saved;
    return select_tokens(function, list, o) && tarn__lora_check_saved(function, list) &&
           tarn__lora_check_tokens(function, model, list);
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

/* alpha / rank, or alpha / sqrt(rank) with rslora, whose gradients do not shrink with the rank. */
double tarn__lora_scale(const tarn__adapter *settings)
{
    return settings->alpha / (settings->rslora ? sqrt((double)settings->rank) : (double)settings->rank);
}

/* Raises invalid options. */
static bool check_options(const char *function, const tarn_lora_options *o)
{
    if (o->rank < 1 || o->rank > MAX_RANK)
        return tarn__raise(TARN_ERROR_SHAPE, "%s: .rank is %lld; it must be from 1 to %d", function, (long long)o->rank,
                           MAX_RANK);
    if (!(o->alpha >= 0) || !isfinite(o->alpha))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .alpha is %g; it must be a number above 0, or 0 for 8", function,
                           o->alpha);
    if (!(o->dropout >= 0 && o->dropout < 1))
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .dropout is %g; it must be from 0 to below 1", function,
                           o->dropout);
    return tarn__check_parameter_dtype(function, o->dtype);
}

/* Also raises modules that are not language models. */
bool tarn__lora_check_none(const char *function, const tarn_module *model)
{
    if (!tarn__arch_of(function, model))
        return false;
    return !tarn_lora_has(model) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: the model already has adapters; merge them with tarn_lora_merge()",
                       function);
}

/* Sets what the layers of the list train: A and B, or their own parameters. */
bool tarn__lora_freeze(const char *function, tarn_module *model, const tarn__lora_layers *list)
{
    if (!tarn_module_freeze(model, true))
        return tarn__raise_within(function);
    for (int i = 0; i < list->count; i++) {
        tarn_module *module = list->layer[i].module;
        bool has_tokens = module->adapter && module->adapter->is_tokens;
        if (has_tokens)
            tarn__tokens_rows(module)->requires_grad = true;
        for (int k = 0; module->adapter && !has_tokens && k < 2; k++)
            tarn__adapter_weight(module, k)->requires_grad = true;
        for (int k = 0; module->is_saved && k < module->parameters; k++)
            module->parameter[k].tensor->requires_grad = !module->parameter[k].is_buffer;
    }
    return true;
}

/* A zero and B normal: as PEFT initializes an embedding's. */
static bool add_to_embedding(tarn_module *embedding, const tarn__adapter *settings, tarn_dtype dtype)
{
    const tarn_tensor *weight = tarn__module_own(embedding, "weight");
    tarn_device device = tarn__device(weight);
    tarn_tensor *a = tarn_zeros(TARN_SHAPE(settings->rank, weight->view.shape[0]), dtype, device);
    tarn_tensor *b = a ? tarn_normal(TARN_SHAPE(weight->view.shape[1], settings->rank), 0, 1, dtype, device) : NULL;
    if (b)
        return tarn__adapter_add(embedding, settings, a, b);
    tarn_free(a);
    return false;
}

/* A as PyTorch initializes a linear layer (Kaiming uniform, a = sqrt(5)), B zero. */
static bool add_initialized(tarn_module *layer, const tarn__adapter *settings, tarn_dtype dtype)
{
    if (tarn__is_embedding(layer))
        return add_to_embedding(layer, settings, dtype);
    tarn_device device = tarn__device(tarn__module_own(layer, "weight"));
    /* The layer adds scale · (x Aᵀ) Bᵀ with A [rank, in] and B [out, rank]: 0 at first, as B is. */
    int64_t in = tarn__linear_in(layer), out = tarn__linear_out(layer);
    double bound = 1 / sqrt((double)in);
    tarn_tensor *a = tarn_uniform(TARN_SHAPE(settings->rank, in), -bound, bound, dtype, device);
    tarn_tensor *b = a ? tarn_zeros(TARN_SHAPE(out, settings->rank), dtype, device) : NULL;
    if (b)
        return tarn__adapter_add(layer, settings, a, b);
    tarn_free(a);
    return false;
}

/* With adapters in place: saved modules get parameters of their own, and all but adapters and these are frozen. */
bool tarn__lora_start(const char *function, tarn_module *model, const tarn__lora_layers *list)
{
    bool good = true;
    for (int i = 0; good && i < list->count; i++) {
        if (list->layer[i].is_saved)
            good = tarn__lora_make_own(model, list->layer[i].module);
        list->layer[i].module->is_saved = good && list->layer[i].is_saved;
    }
    good = good ? tarn__lora_note_embeddings(function, model) && tarn__lora_freeze(function, model, list)
                : tarn__raise_within(function);
    for (int i = 0; !good && i < list->count; i++)
        list->layer[i].module->is_saved = false;
    return good;
}

/* Adds adapters to all selected layers with the seed's generator; removes them on failure. */
static bool add_all(const char *function, tarn_module *model, const tarn__lora_layers *list, const tarn_lora_options *o)
{
    tarn__adapter settings = {
        .rank = o->rank, .alpha = o->alpha > 0 ? o->alpha : 8, .dropout = o->dropout, .rslora = o->rslora};
    settings.scale = tarn__lora_scale(&settings);
    /* The caller's generator must not notice that numbers were drawn here. */
    tarn__rng_state callers = tarn__random_save();
    tarn_seed(o->seed);
    bool good = true;
    for (int i = 0; good && i < list->count; i++)
        good = !list->layer[i].is_selected || add_initialized(list->layer[i].module, &settings, o->dtype);
    tarn__random_restore(&callers);
    good = good && tarn__lora_add_trained_tokens(function, model, list, o->dtype);
    good = good ? tarn__lora_start(function, model, list) : tarn__raise_within(function);
    for (int i = 0; !good && i < list->count; i++)
        tarn__adapter_remove(list->layer[i].module);
    return good;
}

/* Nothing has changed if this fails: adapters already added are removed again. */
bool tarn_lora_add_sized(tarn_module *model, const tarn_lora_options *options, size_t options_size)
{
    const char *function = "lora_add";
    tarn_lora_options own = {0};
    tarn__lora_layers list = {0};
    if (options)
        memcpy(&own, options, options_size < sizeof(own) ? options_size : sizeof(own));
    if (!tarn__lora_check_none(function, model))
        return false;
    if (!options)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the options are NULL; .rank is required", function);
    bool good = check_options(function, &own) && tarn__lora_list(function, model, &list) &&
                select_all(function, model, &list, &own) && add_all(function, model, &list, &own);
    tarn__lora_release(&list);
    return good;
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* Replaces a weight, quantized or tied, by a frozen parameter with the layout `form`. A quantized one is [out, in], as
 * its tensor here is, which belongs to the open scope. */
static bool replace_weight(tarn_module *layer, tarn_tensor *weight, bool is_quantized, tarn__linear_form form)
{
    if (is_quantized && form == TARN__LINEAR_IN_OUT)
        weight = tarn_clone(tarn_transpose(weight, 0, 1));
    if (!weight || !tarn__module_replace(layer, "weight", weight))
        return false;
    if (is_quantized)
        layer->linear = form;
    return true;
}

/* Trained rows that embedding and head share go into the weight that both share. */
static bool merge_shared(tarn_module *model, tarn_module *embedding, tarn_dtype dtype)
{
    tarn_tensor *weight = tarn__module_own(embedding, "weight"), *sum = tarn__adapter_merged(embedding);
    return sum && (tarn__is_quantized(weight->view.dtype) ? tarn__lora_replace_tied(model, tarn_cast(sum, dtype))
                                                          : tarn_copy(weight, sum));
}

/* The weight with its adapter, computed in f32 (f64 if either is) and rounded once. The head's and the embedding's
 * adapters must not change the weight of the other, so tied ones part here. */
static bool merge_layer(const tarn__lora_layer *layer, bool is_tied, tarn_dtype dtype, tarn__linear_form form)
{
    tarn_module *module = layer->module;
    tarn_tensor *weight = tarn__module_own(module, "weight"), *sum = tarn__adapter_merged(module);
    bool is_quantized = tarn__is_quantized(weight->view.dtype), is_linear = layer->kind == TARN__LORA_LINEAR;
    if (!sum)
        return false;
    bool good = is_quantized || (is_tied && !is_linear)
                    ? replace_weight(module, tarn_cast(sum, is_quantized ? dtype : weight->view.dtype), is_quantized,
                                     is_linear ? form : module->linear)
                    : tarn_copy(weight, sum);
    if (good)
        tarn__adapter_remove(module);
    return good;
}

/* Raises if an optimizer trains an adapter, which would keep updating a freed tensor, or a saved module. */
static bool check_untrained(const char *function, const tarn__lora_layers *list)
{
    for (int i = 0; i < list->count; i++) {
        const tarn_module *module = list->layer[i].module;
        if (module->is_saved && module->parameter[0].tensor->optimizer)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: '%s' is trained by an optimizer; free that first", function,
                               list->layer[i].path);
        for (int k = 0; (list->layer[i].is_selected || list->layer[i].has_tokens) && k < 2; k++)
            if ((list->layer[i].has_tokens ? tarn__tokens_rows(module) : tarn__adapter_weight(module, k))->optimizer)
                return tarn__raise(TARN_ERROR_ARGUMENT,
                                   "%s: the adapter of '%s' is trained by an optimizer; free that first", function,
                                   list->layer[i].path);
    }
    return true;
}

/* Layer by layer: a failure leaves a model that computes the same, with fewer adapters. */
static bool merge_all(const char *function, tarn_module *model, const tarn__lora_layers *list)
{
    tarn_model_info info;
    /* Saved modules count as merged: their values are in the model already. */
    int merged = 0;
    if (!check_untrained(function, list) || !tarn_model_query(model, &info))
        return false;
    bool good = true;
    tarn_no_grad_open();
    for (int i = 0; good && i < list->count; i++) {
        tarn_module *module = list->layer[i].module;
        for (int k = 0; module->is_saved && k < module->parameters; k++)
            module->parameter[k].tensor->requires_grad = false;
        merged += module->is_saved;
        module->is_saved = false; /* its parameters are the model's own now */
        if (!module->adapter)
            continue;
        /* A scope per layer: the f32 copies of one weight are freed before the next. */
        tarn_scope *scope = tarn_scope_open();
        const tarn__adapter *of_head = model->child[TARN__MODEL_HEAD]->adapter;
        /* Embedding and head share trained rows and the weight: both are merged at once, at the embedding. */
        bool is_shared = of_head && of_head->is_tied && list->layer[i].kind == TARN__LORA_EMBEDDING;
        good = scope && (is_shared ? merge_shared(model, module, info.dtype)
                                   : merge_layer(&list->layer[i], tarn__lora_is_tied(model), info.dtype, list->form));
        if (good && is_shared) {
            tarn__adapter_remove(model->child[TARN__MODEL_HEAD]);
            tarn__adapter_remove(module);
        }
        tarn_scope_close(scope);
        merged += good;
    }
    tarn_no_grad_close();
    if (good && merged == 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the model has no adapters", function);
    good = good && tarn__lora_note_embeddings(function, model);
    return good || tarn__raise_within(function);
}

/* Layers are merged one by one; see merge_all() for failures. */
bool tarn_lora_merge(tarn_module *model)
{
    const char *function = "lora_merge";
    tarn__lora_layers list;
    bool good = tarn__lora_list(function, model, &list) && merge_all(function, model, &list);
    tarn__lora_release(&list);
    return good;
}
