/* lora.c: forward of linear layers with LoRA adapters, and adding and removing these.
 *
 * Layers that share x (q, k, v; gate, up) are one operation where everything fits (tarn__lora_linears() of ops).
 * Otherwise, and for layers without an adapter, the same terms are composed of public operations. */
#include "nn/lora.h"

#include "base/dtype.h"
#include "base/memory.h"
#include "ops/internal.h"

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

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* The smallest dtype that represents both exactly; of bf16 and f16 that is f32. */
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

/* Dropout applies to the adapter's input alone, in training mode. */
static bool drops_out(const tarn_module *layer)
{
    return layer->adapter && layer->adapter->dropout > 0 && layer->training;
}

/* The layer's own output, plus the adapter's term. */
static tarn_tensor *compose(const tarn_module *layer, tarn_tensor *x)
{
    const tarn__adapter *adapter = layer->adapter;
    tarn_tensor *weight = tarn__module_own(layer, "weight"), *bias = tarn__module_own(layer, "bias");
    tarn_tensor *y = layer->linear == TARN__LINEAR_IN_OUT ? tarn__linear_in_out(x, weight, bias)
                                                          : tarn_linear_apply(x, weight, bias);
    if (!adapter || !y)
        return y;
    tarn_dtype inner = tarn__adapter_weight(layer, TARN__ADAPTER_A)->view.dtype, outer = y->view.dtype,
               wide = wider_of(inner, outer);
    tarn_tensor *h = as(x, inner);
    if (h && drops_out(layer))
        h = tarn_dropout(h, adapter->dropout);
    h = h ? tarn_forward(layer->child[TARN__ADAPTER_A], h) : NULL;
    if (h && adapter->scale != 1) /* on (.., rank), the smallest of the tensors */
        h = tarn_mul(h, tarn_scalar(adapter->scale));
    h = h ? as(tarn_forward(layer->child[TARN__ADAPTER_B], h), wide) : NULL;
    y = h ? as(y, wide) : NULL;
    return y ? as(tarn_add(y, h), outer) : NULL;
}

/* Of x's dtype, on its device. */
static bool matches(tarn_tensor *x, tarn_tensor *weight)
{
    return weight->view.dtype == x->view.dtype && tarn__same_device(tarn__device(weight), tarn__device(x));
}

/* True when the fused operation applies: unquantized frozen weights, one dtype and device, no dropout, x of the right
 * size, and at least one adapter. */
static bool can_fuse(tarn_module *const *layer, int count, tarn_tensor *x)
{
    bool any = false, can = tarn__is_float(x->view.dtype) && !x->is_constant && x->view.rank > 0;
    for (int i = 0; can && i < count; i++) {
        tarn_tensor *weight = tarn__module_own(layer[i], "weight"), *bias = tarn__module_own(layer[i], "bias");
        can = matches(x, weight) && !tarn_needs_grad(weight) &&
              (!bias || (matches(x, bias) && !tarn_needs_grad(bias))) && !drops_out(layer[i]) &&
              tarn__linear_in(layer[i]) == x->view.shape[x->view.rank - 1];
        for (int k = 0; can && layer[i]->adapter && k < 2; k++)
            can = matches(x, tarn__adapter_weight(layer[i], k));
        any = any || layer[i]->adapter;
    }
    return can && any;
}

/* y[i] belongs to the open scope. */
bool tarn__lora_forward_shared(tarn_module *const *layer, int count, tarn_tensor *x, tarn_tensor **y)
{
    tarn__lora_linear fused[TARN__MAX_LORA_LINEARS] = {0};
    bool good = true;
    if (!can_fuse(layer, count, x)) {
        for (int i = 0; good && i < count; i++)
            good = (y[i] = compose(layer[i], x)) != NULL;
    } else {
        for (int i = 0; i < count; i++) {
            fused[i].weight = tarn__module_own(layer[i], "weight"), fused[i].bias = tarn__module_own(layer[i], "bias");
            if (layer[i]->adapter) {
                fused[i].a = tarn__adapter_weight(layer[i], TARN__ADAPTER_A),
                fused[i].b = tarn__adapter_weight(layer[i], TARN__ADAPTER_B);
                fused[i].scale = layer[i]->adapter->scale;
            }
        }
        good = tarn__lora_linears(x, fused, count, layer[0]->linear == TARN__LINEAR_IN_OUT, y);
    }
    return good;
}

tarn_tensor *tarn__lora_forward(const tarn_module *layer, tarn_tensor *x)
{
    tarn_tensor *y;
    return tarn__lora_forward_shared((tarn_module *const[]){(tarn_module *)layer}, 1, x, &y) ? y : NULL;
}

/* ---- adding and removing ----------------------------------------------------------------------------------------- */

/* Forward of A and B as modules of their own: y = x · weightᵀ, without a bias. */
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

/* The layer must have no children yet: A and B are found by their index. */
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

/* All children of a layer with an adapter are A and B. */
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
