/* token_adapter.c: trained rows of a token embedding or head, next to its frozen weight (PEFT's
 * trainable_token_indices).
 *
 * The rows are the parameter "trainable_tokens_delta" of the child "token_adapter". They replace rows of the weight; in
 * spite of PEFT's name they are not added to them. An embedding looks its indices up in "slots" and "is_trained"; a
 * head computes the logits of the trained rows and exchanges them by "columns", as would the whole weight with the rows
 * in it, which tarn__tokens_weight() composes where it is needed. */
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "nn/lora.h"
#include "ops/internal.h"

#define CHILD "token_adapter"
#define ROWS "trainable_tokens_delta"
#define SLOTS "slots"           /* [V, 1], i64: the trained row of a token; 0 for others */
#define IS_TRAINED "is_trained" /* [V, 1], bool */
#define COLUMNS "columns"       /* [V], i64: the row in [weight; trained rows] */

tarn_tensor *tarn__tokens_rows(const tarn_module *layer)
{
    return tarn__module_own(layer->child[0], ROWS);
}

static tarn_tensor *buffer_of(const tarn_module *layer, const char *name)
{
    return tarn__module_own(layer->child[0], name);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

tarn_tensor *tarn__tokens_embedding(const tarn_module *embedding, tarn_tensor *index, tarn_tensor *y)
{
    tarn_tensor *slot = y ? tarn_embedding(buffer_of(embedding, SLOTS), index) : NULL,
                *is_trained = slot ? tarn_embedding(buffer_of(embedding, IS_TRAINED), index) : NULL;
    slot = is_trained ? tarn_reshape(slot, tarn__shape_of(index)) : NULL;
    tarn_tensor *rows = slot ? tarn_embedding(tarn_cast(tarn__tokens_rows(embedding), y->view.dtype), slot) : NULL;
    return rows ? tarn_where(is_trained, rows, y) : NULL;
}

tarn_tensor *tarn__tokens_logits(const tarn_module *head, tarn_tensor *x, tarn_tensor *y)
{
    tarn_tensor *rows = y ? tarn_cast(tarn__tokens_rows(head), x->view.dtype) : NULL;
    tarn_tensor *more = rows ? tarn_linear_apply(x, rows, NULL) : NULL;
    tarn_tensor *all = more ? tarn_concat((tarn_tensor *[]){y, tarn_cast(more, y->view.dtype)}, 2, -1) : NULL;
    return all ? tarn_index_select(all, -1, buffer_of(head, COLUMNS)) : NULL;
}

/* Indices of the rows in [weight; trained rows]. The caller releases the array, of `count` elements. */
static int64_t *list_rows(const tarn__adapter *adapter, int64_t count)
{
    int64_t *row = tarn__alloc(sizeof(*row) * (size_t)count);
    for (int64_t i = 0; row && i < count; i++)
        row[i] = i;
    for (int64_t i = 0; row && i < adapter->tokens; i++)
        row[adapter->token[i]] = count + i;
    return row;
}

/* A quantized weight is dequantized. */
tarn_tensor *tarn__tokens_weight(const tarn_module *layer, tarn_dtype dtype)
{
    tarn_tensor *weight = tarn__module_own(layer, "weight"), *rows = tarn__tokens_rows(layer);
    int64_t count = weight->view.shape[0], *row = list_rows(layer->adapter, count);
    tarn_tensor *index = row ? tarn_from(row, TARN_SHAPE(count), TARN_I64, tarn__device(weight)) : NULL;
    tarn__release(row, sizeof(*row) * (size_t)count);
    bool is_quantized = tarn__is_quantized(weight->view.dtype);
    tarn_tensor *wide = index ? tarn_cast(is_quantized ? tarn_cast(weight, TARN_F32) : weight, dtype) : NULL;
    tarn_tensor *all = wide ? tarn_concat((tarn_tensor *[]){wide, tarn_cast(rows, dtype)}, 2, 0) : NULL;
    return all ? tarn_index_select(all, 0, index) : NULL;
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

/* Forward of the child as a module of its own: trained rows by their number. */
static tarn_tensor *forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return tarn_embedding(tarn__module_own(module, ROWS), x);
}

/* Adds a buffer with a copy of values. */
static bool add_buffer(tarn_module *child, const char *name, const void *values, tarn_shape shape, tarn_dtype dtype,
                       tarn_device device)
{
    tarn_tensor *tensor = values ? tarn_from(values, shape, dtype, device) : NULL;
    return tensor && tarn_module_add_buffer(child, name, tensor);
}

/* Where an embedding finds the row of a token. */
static bool add_lookup(tarn_module *child, const tarn__adapter *adapter, int64_t count, tarn_device device)
{
    size_t bytes = sizeof(int64_t) * (size_t)count;
    int64_t *slot = tarn__alloc(bytes);
    bool *is_trained = slot ? tarn__alloc((size_t)count) : NULL;
    for (int64_t i = 0; is_trained && i < count; i++) {
        slot[i] = 0;
        is_trained[i] = false;
    }
    for (int64_t i = 0; is_trained && i < adapter->tokens; i++) {
        slot[adapter->token[i]] = i;
        is_trained[adapter->token[i]] = true;
    }
    bool good = is_trained && add_buffer(child, SLOTS, slot, TARN_SHAPE(count, 1), TARN_I64, device) &&
                add_buffer(child, IS_TRAINED, is_trained, TARN_SHAPE(count, 1), TARN_BOOL, device);
    tarn__release(is_trained, (size_t)count);
    tarn__release(slot, bytes);
    return good;
}

static bool add_columns(tarn_module *child, const tarn__adapter *adapter, int64_t count, tarn_device device)
{
    int64_t *row = list_rows(adapter, count);
    bool good = row && add_buffer(child, COLUMNS, row, TARN_SHAPE(count), TARN_I64, device);
    tarn__release(row, sizeof(*row) * (size_t)count);
    return good;
}

/* The adapter with a copy of the tokens. The caller owns it. NULL with an error. */
static tarn__adapter *make_adapter(const int64_t *token, int64_t count)
{
    tarn__adapter *adapter = tarn__alloc(sizeof(*adapter));
    int64_t *copy = adapter ? tarn__alloc(sizeof(*copy) * (size_t)count) : NULL;
    if (!copy) {
        tarn__release(adapter, sizeof(*adapter));
        return NULL;
    }
    memcpy(copy, token, sizeof(*copy) * (size_t)count);
    *adapter = (tarn__adapter){.is_tokens = true, .token = copy, .tokens = count};
    return adapter;
}

/* The child is complete before the layer gets it: a failure leaves the layer unchanged. `is_shared`: another module has
 * the rows, which are not freed then. */
static bool add(tarn_module *layer, const int64_t *token, int64_t count, tarn_tensor *rows, bool is_shared)
{
    const tarn_tensor *weight = tarn__module_own(layer, "weight");
    tarn__adapter *adapter = make_adapter(token, count);
    tarn_module *child = adapter ? tarn__module_new("lora", "token_adapter", forward, NULL, NULL) : NULL;
    bool good = child && tarn_module_add_parameter(child, ROWS, rows);
    if (!child && !is_shared)
        tarn_free(rows);
    int64_t all = weight->view.shape[0];
    good = good && (tarn__is_embedding(layer) ? add_lookup(child, adapter, all, tarn__device(weight))
                                              : add_columns(child, adapter, all, tarn__device(weight)));
    if (child)
        child->training = layer->training;
    if (good && tarn_module_add_child(layer, CHILD, child)) {
        layer->adapter = adapter;
        return true;
    }
    if (!good)
        tarn_module_free(child);
    tarn__adapter_free(adapter);
    return false;
}

bool tarn__tokens_add(tarn_module *layer, const int64_t *token, int64_t count, tarn_tensor *rows)
{
    return add(layer, token, count, rows, false);
}

bool tarn__tokens_share(tarn_module *head, const tarn_module *embedding)
{
    const tarn__adapter *adapter = embedding->adapter;
    bool good = add(head, adapter->token, adapter->tokens, tarn__tokens_rows(embedding), true);
    if (good)
        head->adapter->is_tied = true;
    return good;
}

void tarn__adapter_free(tarn__adapter *adapter)
{
    if (!adapter)
        return;
    tarn__release(adapter->token, sizeof(*adapter->token) * (size_t)adapter->tokens);
    tarn__release(adapter, sizeof(*adapter));
}
