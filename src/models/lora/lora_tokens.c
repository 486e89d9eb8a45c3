/* lora_tokens.c: rows of token embedding and head that are trained next to adapters (PEFT's trainable_token_indices):
 * selecting, adding and sharing them, and their member of adapter_config.json.
 *
 * A head that shares its weight with the embedding shares its trained rows too, unless it has tokens of its own, as in
 * PEFT. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "models/lora/lora.h"

#define KEY "trainable_token_indices"
#define MAX_TOKENS ((size_t)1 << 24)

/* ---- selecting --------------------------------------------------------------------------------------------------- */

/* Ascending. */
static int compare_ids(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts a copy: lists of added tokens can be long. */
static bool check_different(const char *function, const char *where, const int64_t *token, int64_t count)
{
    size_t bytes = sizeof(*token) * (size_t)count;
    int64_t *sorted = tarn__alloc(bytes), twice = -1;
    if (!sorted)
        return false;
    memcpy(sorted, token, bytes);
    qsort(sorted, (size_t)count, sizeof(*sorted), compare_ids);
    for (int64_t i = 1; i < count && twice < 0; i++)
        twice = sorted[i] == sorted[i - 1] ? sorted[i] : -1;
    bool is_negative = sorted[0] < 0;
    int64_t lowest = sorted[0];
    tarn__release(sorted, bytes);
    if (is_negative)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s has the token %lld; ids start at 0", function, where,
                           (long long)lowest);
    return twice < 0 ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s has the token %lld twice", function, where, (long long)twice);
}

/* The ids are copied. No ids leave the layer without trained tokens. */
bool tarn__lora_set_tokens(const char *function, const char *where, tarn__lora_layer *layer, const int64_t *token,
                           int64_t count)
{
    if (layer->kind != TARN__LORA_EMBEDDING && layer->kind != TARN__LORA_HEAD)
        return tarn__raise(TARN_ERROR_UNSUPPORTED,
                           "%s: %s has tokens of '%s', which is neither the token embedding nor the head", function,
                           where, layer->path);
    if (count == 0)
        return true;
    if (layer->token)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s names '%s' twice", function, where, layer->path);
    if (!check_different(function, where, token, count))
        return false;
    layer->token = tarn__alloc(sizeof(*token) * (size_t)count);
    if (!layer->token)
        return false;
    memcpy(layer->token, token, sizeof(*token) * (size_t)count);
    layer->tokens = count;
    layer->has_tokens = true;
    return true;
}

/* The first of a kind: a model has at most one embedding and one head. NULL: none. */
tarn__lora_layer *tarn__lora_layer_of(const tarn__lora_layers *list, tarn__lora_kind kind)
{
    for (int i = 0; i < list->count; i++)
        if (list->layer[i].kind == kind)
            return &list->layer[i];
    return NULL;
}

bool tarn__lora_shares_tokens(const tarn_module *model, const tarn__lora_layers *list)
{
    const tarn__lora_layer *embedding = tarn__lora_layer_of(list, TARN__LORA_EMBEDDING),
                           *head = tarn__lora_layer_of(list, TARN__LORA_HEAD);
    if (!embedding || !head || !embedding->tokens || !tarn__lora_is_tied(model))
        return false;
    return !head->tokens || (head->tokens == embedding->tokens &&
                             memcmp(head->token, embedding->token, sizeof(*head->token) * (size_t)head->tokens) == 0);
}

/* A row cannot be trained twice: by itself and as part of the whole weight, or of an adapter's product. */
bool tarn__lora_check_tokens(const char *function, const tarn_module *model, const tarn__lora_layers *list)
{
    for (int i = 0; i < list->count; i++) {
        const tarn__lora_layer *layer = &list->layer[i];
        bool has = layer->tokens || (layer->kind == TARN__LORA_HEAD && tarn__lora_shares_tokens(model, list));
        if (has && (layer->is_saved || layer->is_selected))
            return tarn__raise(TARN_ERROR_UNSUPPORTED,
                               "%s: '%s' has trainable tokens and is also %s, which is not supported", function,
                               layer->path, layer->is_saved ? "one of the modules to save" : "a target of adapters");
    }
    return true;
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

/* -1 without tokens. */
int64_t tarn__lora_highest_token(const tarn__lora_layer *layer)
{
    int64_t highest = -1;
    for (int64_t i = 0; i < layer->tokens; i++)
        highest = layer->token[i] > highest ? layer->token[i] : highest;
    return highest;
}

/* The head's rows are the embedding's own, not copies, so that both train one set. */
bool tarn__lora_share_tokens(const tarn_module *model, const tarn__lora_layers *list)
{
    const tarn__lora_layer *embedding = tarn__lora_layer_of(list, TARN__LORA_EMBEDDING),
                           *head = tarn__lora_layer_of(list, TARN__LORA_HEAD);
    return !tarn__lora_shares_tokens(model, list) || tarn__tokens_share(head->module, embedding->module);
}

/* Rows of the weight in the adapters' dtype, which the caller owns. */
static tarn_tensor *rows_of(tarn_module *module, const int64_t *token, int64_t count, tarn_dtype dtype)
{
    tarn_tensor *weight = tarn__module_own(module, "weight");
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *index = scope ? tarn_from(token, TARN_SHAPE(count), TARN_I64, tarn__device(weight)) : NULL;
    tarn_no_grad_open();
    tarn_tensor *rows = index ? tarn_cast(tarn_embedding(weight, index), dtype) : NULL;
    rows = rows ? tarn_scope_return(scope, rows->view.dtype == weight->view.dtype ? tarn_clone(rows) : rows) : NULL;
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return rows;
}

bool tarn__lora_add_trained_tokens(const char *function, const tarn_module *model, const tarn__lora_layers *list,
                                   tarn_dtype dtype)
{
    bool is_shared = tarn__lora_shares_tokens(model, list), good = true;
    for (int i = 0; good && i < list->count; i++) {
        const tarn__lora_layer *layer = &list->layer[i];
        if (!layer->tokens || (is_shared && layer->kind == TARN__LORA_HEAD))
            continue;
        /* Rows are a shape's, so that a token added to the tokenizer alone is an error. */
        int64_t rows = tarn__module_own(layer->module, "weight")->view.shape[0],
                highest = tarn__lora_highest_token(layer);
        if (highest >= rows)
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the trained token %lld is not one of the %lld of '%s'",
                               function, (long long)highest, (long long)rows, layer->path);
        /* Training starts from the rows as they are. */
        tarn_tensor *values = rows_of(layer->module, layer->token, layer->tokens, dtype);
        good = values && tarn__tokens_add(layer->module, layer->token, layer->tokens, values);
    }
    return good && tarn__lora_share_tokens(model, list);
}

/* ---- adapter_config.json ----------------------------------------------------------------------------------------- */

/* State of one read. */
typedef struct reader {
    const char *function, *path;
    const tarn__json_file *document;
    tarn__lora_layers *list;
} reader;

/* The tokens of one layer; `name` NULL: the whole member, of the token embedding. */
static bool read_list(const reader *r, const char *name, tarn__lora_layer *layer)
{
    char where[1200];
    size_t count = 0;
    int64_t *token = NULL;
    snprintf(where, sizeof(where), "'%.1000s': \"" KEY "\"", r->path);
    bool good = tarn__json_file_ints(r->document, KEY, name, MAX_TOKENS, 0, INT32_MAX, &token, &count) &&
                tarn__lora_set_tokens(r->function, where, layer, token, (int64_t)count);
    tarn__release(token, sizeof(*token) * count);
    return good;
}

/* PEFT compares ends of paths. */
static bool read_named(const char *name, bool is_off, void *ctx)
{
    const reader *r = ctx;
    bool good = true, is_found = false;
    (void)is_off;
    for (int i = 0; good && i < r->list->count; i++) {
        const char *path = r->list->layer[i].path;
        size_t all = strlen(path), length = strlen(name);
        if (length == 0 || length > all || strcmp(path + all - length, name) != 0)
            continue;
        is_found = true;
        good = read_list(r, name, &r->list->layer[i]);
    }
    return good && (is_found ||
                    tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': \"" KEY "\": '%.100s' matches no module of this model",
                                r->function, r->path, name));
}

/* null, an array of the embedding's tokens, or {"embed_tokens": […], "lm_head": […]}. */
bool tarn__lora_read_tokens(const char *function, const tarn__json_file *document, const char *path,
                            tarn__lora_layers *list)
{
    reader r = {function, path, document, list};
    tarn__lora_layer *embedding = tarn__lora_layer_of(list, TARN__LORA_EMBEDDING);
    switch (tarn__json_file_kind(document, KEY)) {
    case TARN__MEMBER_MISSING:
    case TARN__MEMBER_NULL: return true;
    case TARN__MEMBER_OBJECT: return tarn__json_file_each_name(document, KEY, read_named, &r);
    case TARN__MEMBER_ARRAY:
        return embedding ? read_list(&r, NULL, embedding)
                         : tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': \"" KEY "\": the model has no token embedding",
                                       function, path);
    default: break;
    }
    return tarn__raise(TARN_ERROR_FORMAT,
                       "%s: '%s': \"" KEY "\" must be an array of token ids, or an object of such arrays", function,
                       path);
}

/* An array where only the embedding has tokens of its own, as older versions of PEFT expect; else an object. */
bool tarn__lora_write_tokens(const tarn__lora_layers *list, tarn__json_file *document)
{
    const tarn__adapter *of[2] = {NULL, NULL};
    const tarn__lora_layer *layer[2] = {tarn__lora_layer_of(list, TARN__LORA_EMBEDDING),
                                        tarn__lora_layer_of(list, TARN__LORA_HEAD)};
    for (int i = 0; i < 2; i++)
        if (layer[i] && layer[i]->has_tokens && !layer[i]->module->adapter->is_tied)
            of[i] = layer[i]->module->adapter;
    if (!of[0] && !of[1])
        return tarn__json_file_set_real(document, KEY, NAN); /* null */
    bool good = true;
    for (int i = 0; good && i < 2; i++) {
        const char *name = layer[i] ? strrchr(layer[i]->path, '.') : NULL;
        if (of[i])
            good = tarn__json_file_put_ints(document, KEY,
                                            !of[1] ? NULL
                                            : name ? name + 1
                                                   : layer[i]->path,
                                            of[i]->token, (size_t)of[i]->tokens);
    }
    return good;
}
