/* arch.c: the list of architectures, and functions that every language model has. */
#include "models/lm/arch.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "models/gguf/gguf_arch.h"

static const tarn__arch *const archs[] = {&tarn__gpt2_arch, &tarn__llama_arch};
#define ARCH_COUNT ((int)(sizeof(archs) / sizeof(archs[0])))

static bool contains(const char *const *list, const char *word)
{
    for (; *list; list++)
        if (strcmp(*list, word) == 0)
            return true;
    return false;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* A language model is recognized by its forward function. */
const tarn__arch *tarn__arch_of(const char *function, const tarn_module *module)
{
    if (tarn_failed() || !tarn__check_module(function, module))
        return NULL;
    for (int i = 0; i < ARCH_COUNT; i++)
        if (module->forward == archs[i]->forward)
            return archs[i];
    tarn__raise(TARN_ERROR_ARGUMENT,
                "%s: the module is a %s; it must be a language model, as of tarn_model_gpt2() or tarn_model_llama()",
                function, module->kind);
    return NULL;
}

const tarn__arch *tarn__arch_find(const char *type)
{
    for (int i = 0; i < ARCH_COUNT; i++)
        if (contains(archs[i]->types, type))
            return archs[i];
    return NULL;
}

const tarn__arch *tarn__arch_find_trainable(const char *name)
{
    for (int i = 0; i < ARCH_COUNT; i++)
        if (contains(archs[i]->names, name))
            return archs[i];
    return NULL;
}

/* Appends names to a comma-separated list. */
static void append_names(char *list, size_t capacity, const char *const *words)
{
    for (; *words; words++)
        snprintf(list + strlen(list), capacity - strlen(list), "%s%s", list[0] ? ", " : "", *words);
}

const tarn__arch *tarn__arch_named(const char *function, const char *path, const char *type)
{
    char known[128] = "";
    const tarn__arch *arch = tarn__arch_find(type);
    if (arch)
        return arch;
    for (int i = 0; i < ARCH_COUNT; i++)
        append_names(known, sizeof(known), archs[i]->types);
    tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': the model_type '%.64s' is not supported; supported are %s", function,
                path, type, known);
    return NULL;
}

const tarn__arch *tarn__arch_in_gguf(const char *function, const char *path, const char *architecture)
{
    char known[128] = "";
    for (int i = 0; i < ARCH_COUNT; i++) {
        if (contains(archs[i]->gguf->architectures, architecture))
            return archs[i];
        append_names(known, sizeof(known), archs[i]->gguf->architectures);
    }
    tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': the architecture '%.64s' is not supported; supported are %s",
                function, path, architecture, known);
    return NULL;
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

const char *tarn__torch_name(tarn_dtype dtype)
{
    return dtype == TARN_F64 ? "float64" : dtype == TARN_BF16 ? "bfloat16" : dtype == TARN_F16 ? "float16" : "float32";
}

bool tarn_model_query_sized(const tarn_module *model, tarn_model_info *info, size_t info_size)
{
    const char *function = "model_query";
    tarn_model_info found = {0};
    const tarn__arch *arch = tarn__arch_of(function, model);
    if (!arch)
        return false;
    if (!info)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the result is NULL", function);
    arch->info(model, &found);
    memset(info, 0, info_size);
    memcpy(info, &found, info_size < sizeof(found) ? info_size : sizeof(found));
    return true;
}

/* Raises unless positions and starts have the shape of the tokens. */
static bool check_documents(const char *function, const tarn_tensor *tokens, const tarn__documents *d)
{
    if (!tarn__check(function, d->positions, "positions") || !tarn__check(function, d->document_starts, "starts"))
        return false;
    return (tarn__same_shape(&tokens->view, &d->positions->view) &&
            tarn__same_shape(&tokens->view, &d->document_starts->view)) ||
           tarn__raise(TARN_ERROR_SHAPE, "%s: positions %s and starts %s must have the shape of the tokens, %s",
                       function, TARN__SHAPE_STRING(d->positions), TARN__SHAPE_STRING(d->document_starts),
                       TARN__SHAPE_STRING(tokens));
}

/* [B, T, hidden_size] of all tokens. */
static tarn_tensor *hidden_states(const tarn__arch *arch, tarn_module *model, tarn_tensor *tokens,
                                  const tarn__documents *documents)
{
    tarn_module *body = model->child[TARN__MODEL_BODY];
    return documents ? arch->hidden(body, tokens, documents) : tarn_forward(body, tokens);
}

/* Loss over targets that are not ignored. An unquantized head is computed in chunks, so that the whole logits are
 * never stored. */
tarn_tensor *tarn__model_loss_of(const char *function, tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets,
                                 const tarn__documents *documents)
{
    const int64_t ignored = -100;
    const tarn__arch *arch = tarn__arch_of(function, model);
    if (!arch || !tarn__check(function, tokens, "tokens") || !tarn__check(function, targets, "targets") ||
        (documents && !check_documents(function, tokens, documents)))
        return NULL;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *head = model->child[TARN__MODEL_HEAD];
    tarn_tensor *weight = tarn__module_own(head, "weight");
    tarn_tensor *x = hidden_states(arch, model, tokens, documents);
    const tarn_cross_entropy_options options = {.ignore_index = &ignored};
    /* A quantized head, and one with an adapter, computes all logits at once. Where a gradient is needed, for adapters
     * below it, they would take too much memory: then the head is dequantized and the loss computed in chunks. */
    bool is_quantized = x && !tarn__is_float(weight->view.dtype);
    if (is_quantized && tarn_needs_grad(x) && !head->adapter) {
        weight = tarn_cast(weight, x->view.dtype);
        is_quantized = false;
    }
    tarn_tensor *loss = x && (is_quantized || head->adapter)
                            ? tarn_cross_entropy(tarn_forward(head, x), targets, &options)
                            : tarn_linear_cross_entropy(x, weight, targets, &options);
    if (loss)
        tarn_scope_return(scope, loss);
    else
        tarn__raise_within(function);
    tarn_scope_close(scope);
    return loss;
}

tarn_tensor *tarn__model_loss(const char *function, tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets)
{
    return tarn__model_loss_of(function, model, tokens, targets, NULL);
}

tarn_tensor *tarn_model_loss(tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets)
{
    const char *function = "model_loss";
    return tarn__arch_of(function, model) ? tarn__model_loss(function, model, tokens, targets) : NULL;
}
