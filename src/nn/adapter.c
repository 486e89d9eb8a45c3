/* adapter.c: what adapters of linear layers compute, and how layers get and lose them. */
#include "nn/adapter.h"

#include "base/dtype.h"
#include "base/memory.h"

int64_t tarn__linear_in(const tarn_module *layer)
{
    return tarn__module_own(layer, "weight")->view.shape[layer->linear == TARN__LINEAR_OUT_IN];
}

int64_t tarn__linear_out(const tarn_module *layer)
{
    return tarn__module_own(layer, "weight")->view.shape[layer->linear == TARN__LINEAR_IN_OUT];
}

tarn_tensor *tarn__adapter_weight(const tarn_module *layer, int which)
{
    return tarn__module_own(layer->child[which], "weight");
}

/* ---- computing ------------------------------------------------------------------------------------------------------------- */

/* The dtype that holds the numbers of both. */
static tarn_dtype wider_of(tarn_dtype a, tarn_dtype b)
{
    if (a == b)
        return a;
    return a == TARN_F64 || b == TARN_F64 ? TARN_F64 : TARN_F32;
}

static tarn_tensor *as(tarn_tensor *x, tarn_dtype dtype)
{
    return x && x->view.dtype != dtype ? tarn_cast(x, dtype) : x;
}

tarn_tensor *tarn__adapted(const tarn_module *layer, tarn_tensor *x, tarn_tensor *y)
{
    const tarn__adapter *adapter = layer->adapter;
    if (!adapter || !y)
        return y;
    tarn_dtype inner = tarn__adapter_weight(layer, TARN__ADAPTER_A)->view.dtype, outer = y->view.dtype, wide = wider_of(inner, outer);
    tarn_tensor *h = as(x, inner);
    if (h && adapter->dropout > 0 && layer->training)
        h = tarn_dropout(h, adapter->dropout);
    h = h ? tarn_forward(layer->child[TARN__ADAPTER_A], h) : NULL;
    if (h && adapter->scale != 1) /* here, where there are few numbers */
        h = tarn_mul(h, tarn_scalar(adapter->scale));
    h = h ? as(tarn_forward(layer->child[TARN__ADAPTER_B], h), wide) : NULL;
    y = h ? as(y, wide) : NULL;
    return y ? as(tarn_add(y, h), outer) : NULL;
}

/* ---- life ------------------------------------------------------------------------------------------------------------------ */

static tarn_tensor *forward(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)ctx;
    return tarn_linear_apply(x, tarn__module_own(module, "weight"), NULL);
}

/* A child with one parameter. Takes the tensor, on failure too. */
static bool add_matrix(tarn_module *layer, const char *name, tarn_tensor *weight)
{
    tarn_module *matrix = tarn__module_new("lora", "linear", forward, NULL, NULL);
    if (!matrix) {
        tarn_free(weight);
        return false;
    }
    matrix->training = layer->training;
    if (tarn_module_add_parameter(matrix, "weight", weight))
        return tarn_module_add_child(layer, name, matrix);
    tarn_module_free(matrix);
    return false;
}

bool tarn__adapter_add(tarn_module *layer, const tarn__adapter *settings, tarn_tensor *a, tarn_tensor *b)
{
    tarn__adapter *adapter = tarn__alloc(sizeof(*adapter));
    bool good = adapter != NULL;
    if (good)
        *adapter = *settings;
    else
        tarn_free(a);
    layer->adapter = adapter;
    good = good && add_matrix(layer, "lora_A", a);
    if (!good)
        tarn_free(b);
    good = good && add_matrix(layer, "lora_B", b);
    if (!good)
        tarn__adapter_remove(layer);
    return good;
}

void tarn__adapter_remove(tarn_module *layer)
{
    if (!layer->adapter)
        return;
    for (int i = 0; i < layer->children; i++)
        tarn__module_free_tree(layer->child[i]);
    layer->children = 0;
    tarn__release(layer->adapter, sizeof(*layer->adapter));
    layer->adapter = NULL;
}
