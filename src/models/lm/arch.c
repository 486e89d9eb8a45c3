/* arch.c: which kinds of language models there are, and what can be asked of all of them. */
#include "models/lm/arch.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "models/gguf/gguf_arch.h"

static const tarn__arch *const kinds[] = {&tarn__gpt2_arch, &tarn__llama_arch};
#define KINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

static bool is_among(const char *const *list, const char *word)
{
    for (; *list; list++)
        if (strcmp(*list, word) == 0)
            return true;
    return false;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

const tarn__arch *tarn__arch_of(const char *function, const tarn_module *module)
{
    if (tarn_failed() || !tarn__check_module(function, module))
        return NULL;
    for (int i = 0; i < KINDS; i++)
        if (module->forward == kinds[i]->forward)
            return kinds[i];
    tarn__raise(TARN_ERROR_ARGUMENT,
                "%s: the %s module is no language model, such as tarn_model_gpt2() and tarn_model_llama() make",
                function, module->kind);
    return NULL;
}

const tarn__arch *tarn__arch_find(const char *type)
{
    for (int i = 0; i < KINDS; i++)
        if (is_among(kinds[i]->types, type))
            return kinds[i];
    return NULL;
}

const tarn__arch *tarn__arch_find_trainable(const char *name)
{
    for (int i = 0; i < KINDS; i++)
        if (is_among(kinds[i]->names, name))
            return kinds[i];
    return NULL;
}

/* Appends words to a list of them. */
static void add_words(char *list, size_t capacity, const char *const *words)
{
    for (; *words; words++)
        snprintf(list + strlen(list), capacity - strlen(list), "%s%s", list[0] ? ", " : "", *words);
}

const tarn__arch *tarn__arch_named(const char *function, const char *path, const char *type)
{
    char known[128] = "";
    const tarn__arch *kind = tarn__arch_find(type);
    if (kind)
        return kind;
    for (int i = 0; i < KINDS; i++)
        add_words(known, sizeof(known), kinds[i]->types);
    tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': the model_type '%.64s' is none that tarn knows: %s", function, path,
                type, known);
    return NULL;
}

const tarn__arch *tarn__arch_in_gguf(const char *function, const char *path, const char *architecture)
{
    char known[128] = "";
    for (int i = 0; i < KINDS; i++) {
        if (is_among(kinds[i]->gguf->architectures, architecture))
            return kinds[i];
        add_words(known, sizeof(known), kinds[i]->gguf->architectures);
    }
    tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: '%s': the architecture '%.64s' is none that tarn knows: %s", function,
                path, architecture, known);
    return NULL;
}

/* ---- what can be asked ------------------------------------------------------------------------------------------- */

const char *tarn__torch_name(tarn_dtype dtype)
{
    return dtype == TARN_F64 ? "float64" : dtype == TARN_BF16 ? "bfloat16" : dtype == TARN_F16 ? "float16" : "float32";
}

bool tarn_model_query_sized(const tarn_module *model, tarn_model_info *info, size_t info_size)
{
    const char *function = "model_query";
    tarn_model_info found = {0};
    const tarn__arch *kind = tarn__arch_of(function, model);
    if (!kind)
        return false;
    if (!info)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the result is NULL", function);
    kind->info(model, &found);
    memset(info, 0, info_size);
    memcpy(info, &found, info_size < sizeof(found) ? info_size : sizeof(found));
    return true;
}

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

/* [B, T, width] of all tokens. */
static tarn_tensor *hidden_of(const tarn__arch *kind, tarn_module *model, tarn_tensor *tokens,
                              const tarn__documents *documents)
{
    tarn_module *body = model->child[TARN__MODEL_BODY];
    return documents ? kind->hidden(body, tokens, documents) : tarn_forward(body, tokens);
}

tarn_tensor *tarn__model_loss_of(const char *function, tarn_module *model, tarn_tensor *tokens, tarn_tensor *targets,
                                 const tarn__documents *documents)
{
    const int64_t ignored = -100;
    const tarn__arch *kind = tarn__arch_of(function, model);
    if (!kind || !tarn__check(function, tokens, "tokens") || !tarn__check(function, targets, "targets") ||
        (documents && !check_documents(function, tokens, documents)))
        return NULL;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *weight = tarn__module_own(model->child[TARN__MODEL_HEAD], "weight");
    tarn_tensor *x = hidden_of(kind, model, tokens, documents);
    const tarn_cross_entropy_options options = {.ignore_index = &ignored};
    /* A head in blocks makes its logits by itself. Where a gradient passes, for adapters below it, all logits at once
     * would be too many: then it is unpacked. */
    bool is_packed = x && !tarn__is_float(weight->view.dtype);
    if (is_packed && tarn_needs_grad(x)) {
        weight = tarn_cast(weight, x->view.dtype);
        is_packed = false;
    }
    tarn_tensor *loss = is_packed ? tarn_cross_entropy(tarn_linear_apply(x, weight, NULL), targets, &options)
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
