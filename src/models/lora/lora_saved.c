/* lora_saved.c: modules that are trained whole next to adapters (PEFT's modules_to_save), and weights that adapters
 * replace: token embedding and head of another size, or no longer tied.
 *
 * The trained copy takes the place of the base weights; these are in the base model's files. As in PEFT, a saved
 * embedding or head of a model with tied embeddings is a copy of its own. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"
#include "core/tensor/random.h"
#include "models/lora/lora.h"

#define MAX_DRAWN ((int64_t)1 << 24) /* normal values at once for new rows */

/* True if another module of the tree has the tensor too. */
static bool is_shared(const tarn_module *top, const tarn_module *module, const tarn_tensor *tensor)
{
    for (int i = 0; top != module && i < top->parameters; i++)
        if (top->parameter[i].tensor == tensor)
            return true;
    for (int i = 0; i < top->children; i++)
        if (is_shared(top->child[i], module, tensor))
            return true;
    return false;
}

/* Renames tensors that lost their first entry. */
static bool rename_entries(tarn_module *module)
{
    bool good = true;
    for (int i = 0; good && i < module->parameters; i++)
        good = tarn__name_tensor(module, &module->parameter[i]);
    return good;
}

/* A copy in the model's dtype, and in the layout of the architecture's unquantized weights. */
static tarn_tensor *dequantized(tarn_module *module, tarn_tensor *weight, tarn_dtype dtype, tarn__linear_form form)
{
    tarn_tensor *copy = tarn_cast(weight, dtype);
    if (module->linear != TARN__LINEAR_OUT_IN || form != TARN__LINEAR_IN_OUT || !copy)
        return copy;
    module->linear = form;
    return tarn_clone(tarn_transpose(copy, 0, 1));
}

/* Quantized parameters become floats, which alone can be trained; shared ones are copied, which unties the head. */
bool tarn__lora_make_own(tarn_module *model, tarn_module *module)
{
    tarn_model_info info;
    const tarn__arch *arch = tarn__arch_of("lora_add", model);
    bool good = arch && tarn_model_query(model, &info);
    tarn_scope *scope = good ? tarn_scope_open() : NULL;
    good = scope != NULL;
    tarn_no_grad_open();
    for (int i = 0; good && i < module->parameters; i++) {
        tarn_tensor *tensor = module->parameter[i].tensor;
        bool is_quantized = tarn__is_quantized(tensor->view.dtype);
        if (!is_quantized && !is_shared(model, module, tensor))
            continue;
        tarn_tensor *copy = is_quantized ? dequantized(module, tensor, info.dtype, arch->linear) : tarn_clone(tensor);
        const char *name = strrchr(module->parameter[i].path, '.');
        good = copy && tarn__module_replace(module, name ? name + 1 : module->parameter[i].path, copy);
    }
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return good && rename_entries(model->child[TARN__MODEL_HEAD]);
}

/* By the tensor, not by the configuration: adapters may have parted the two. */
bool tarn__lora_is_tied(const tarn_module *model)
{
    const tarn_module *head = model->child[TARN__MODEL_HEAD];
    return is_shared(model, head, tarn__module_own(head, "weight"));
}

/* The token embedding is the first embedding of the body. */
tarn_module *tarn__lora_token_embedding(const tarn_module *model)
{
    const tarn_module *body = model->child[TARN__MODEL_BODY];
    for (int i = 0; i < body->children; i++)
        if (tarn__is_embedding(body->child[i]))
            return body->child[i];
    return NULL;
}

bool tarn__lora_note_embeddings(const char *function, tarn_module *model)
{
    const tarn__arch *arch = tarn__arch_of(function, model);
    const tarn_module *embedding = tarn__lora_token_embedding(model);
    if (!arch || !embedding)
        return arch != NULL;
    int64_t rows = tarn__module_own(embedding, "weight")->view.shape[0],
            outputs = tarn__module_own(model->child[TARN__MODEL_HEAD], "weight")->view.shape[0];
    if (rows != outputs)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "%s: the token embedding has %lld rows and the head %lld; an adapter must resize both",
                           function, (long long)rows, (long long)outputs);
    tarn__model_set_embeddings(model, rows, tarn__lora_is_tied(model));
    return true;
}

/* New rows [count, columns] from the f32 ones of a weight minus their mean, [n, columns]: mean + sqrt(1e-9 / n) · g ·
 * (rows - mean), g [count, n] normal, has the mean and 1e-9 of the covariance of the rows without that matrix being
 * formed. g is drawn on the CPU: the same on all devices. */
static tarn_tensor *draw_some(tarn_tensor *centred, tarn_tensor *mean, int64_t count)
{
    int64_t n = centred->view.shape[0];
    tarn_tensor *g = tarn_normal(TARN_SHAPE(count, n), 0, sqrt(1e-9 / (double)n), TARN_F32, tarn_device_cpu());
    tarn_tensor *noise = g ? tarn_matmul(tarn_to(g, tarn__device(centred)), centred) : NULL;
    return noise ? tarn_add(noise, mean) : NULL;
}

/* All of them, in parts that bound g. */
static tarn_tensor *draw_rows(tarn_tensor *rows, int64_t count, const uint64_t *seed)
{
    int64_t n = rows->view.shape[0], columns = rows->view.shape[1], part = 1 + MAX_DRAWN / n;
    tarn_tensor *mean = tarn_mean(rows, TARN_AXES(0), true), *all = NULL;
    if (!mean || !seed)
        return mean ? tarn_expand(mean, TARN_SHAPE(count, columns)) : NULL;
    tarn_tensor *centred = tarn_sub(rows, mean);
    /* The caller's generator must not notice that numbers were drawn here. */
    tarn__rng_state callers = tarn__random_save();
    tarn_seed(*seed);
    bool good = centred != NULL;
    for (int64_t done = 0; good && done < count; done += part) {
        tarn_tensor *some = draw_some(centred, mean, count - done < part ? count - done : part);
        all = all && some ? tarn_concat((tarn_tensor *[]){all, some}, 2, 0) : some;
        good = all != NULL;
    }
    tarn__random_restore(&callers);
    return good ? all : NULL;
}

/* A weight with added rows. Belongs to the open scope. */
static tarn_tensor *grown(tarn_tensor *weight, int64_t rows, tarn_dtype dtype, const uint64_t *seed)
{
    /* The old rows are cast once, without a detour through f32. */
    tarn_tensor *old = tarn_cast(weight, dtype), *wide = old ? tarn_cast(old, TARN_F32) : NULL;
    tarn_tensor *more = wide ? draw_rows(wide, rows - old->view.shape[0], seed) : NULL;
    return more ? tarn_concat((tarn_tensor *[]){old, tarn_cast(more, dtype)}, 2, 0) : NULL;
}

bool tarn__lora_replace_tied(tarn_module *model, tarn_tensor *weight)
{
    tarn_module *embedding = tarn__lora_token_embedding(model), *head = model->child[TARN__MODEL_HEAD];
    if (!weight)
        return false;
    tarn__tensor_retain(weight); /* the head's reference */
    if (!tarn__module_replace(embedding, "weight", weight)) {
        tarn__tensor_release(weight);
        return false;
    }
    tarn__module_retarget(head, "weight", weight);
    return rename_entries(head);
}

/* Grows one weight that is not tied. */
static bool grow(tarn_module *module, int64_t rows, tarn_dtype dtype, const uint64_t *seed)
{
    tarn_tensor *weight = tarn__module_own(module, "weight");
    if (weight->view.shape[0] >= rows)
        return true;
    tarn_tensor *more = grown(weight, rows, dtype, seed);
    return more && tarn__module_replace(module, "weight", more);
}

/* A tied head stays tied. */
bool tarn__lora_add_tokens(const char *function, tarn_module *model, int64_t vocab_size, const uint64_t *seed)
{
    tarn_model_info info;
    tarn_module *embedding = tarn__lora_token_embedding(model), *head = model->child[TARN__MODEL_HEAD];
    bool good = embedding && tarn_model_query(model, &info);
    tarn_scope *scope = good ? tarn_scope_open() : NULL;
    tarn_no_grad_open();
    if (scope && tarn__lora_is_tied(model))
        good =
            tarn__lora_replace_tied(model, grown(tarn__module_own(embedding, "weight"), vocab_size, info.dtype, seed));
    else
        good = scope && grow(embedding, vocab_size, info.dtype, seed) && grow(head, vocab_size, info.dtype, seed);
    tarn_no_grad_close();
    tarn_scope_close(scope);
    if (good) {
        tarn__module_own(embedding, "weight")->requires_grad = true;
        tarn__module_own(head, "weight")->requires_grad = true;
    }
    return (good && tarn__lora_note_embeddings(function, model)) || tarn__raise_within(function);
}

/* PEFT compares ends of paths, not of names: "norm" is also "model.layers.0.input_layernorm". */
int tarn__lora_select_saved(tarn__lora_layers *list, const char *name, size_t length)
{
    int count = 0;
    for (int i = 0; i < list->count; i++) {
        size_t all = strlen(list->layer[i].path);
        if (length == 0 || all < length || memcmp(list->layer[i].path + all - length, name, length) != 0)
            continue;
        list->layer[i].is_saved = true;
        count++;
    }
    return count;
}

bool tarn__lora_check_saved(const char *function, const tarn__lora_layers *list)
{
    for (int i = 0; i < list->count; i++)
        if (list->layer[i].is_saved && list->layer[i].is_selected)
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "%s: '%s' is both a target of adapters and one of the modules to save; it must be one",
                               function, list->layer[i].path);
    return true;
}
