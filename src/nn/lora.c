/* lora.c: forward of linear layers with LoRA adapters, and adding and removing these.
 *
 * Layers that share x (q, k, v; gate, up) are one operation where everything fits (tarn__lora_linears() of ops).
 * Otherwise, and for layers without an adapter, the same terms are composed of public operations. */
#include "nn/lora.h"

#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "nn/lora_groups.h"
#include "ops/internal.h"

#define EMBEDDING_A "lora_embedding_A"
#define EMBEDDING_B "lora_embedding_B"
#define MAGNITUDE "lora_magnitude_vector"
#define FACTOR "lora_magnitude_factor"

int64_t tarn__linear_in(const tarn_module *layer)
{
    return tarn__module_own(layer, "weight")->view.shape[layer->linear != TARN__LINEAR_IN_OUT];
}

int64_t tarn__linear_out(const tarn_module *layer)
{
    return tarn__module_own(layer, "weight")->view.shape[layer->linear == TARN__LINEAR_IN_OUT];
}

tarn_tensor *tarn__adapter_weight(const tarn_module *layer, int which)
{
    if (layer->adapter->is_embedding)
        return tarn__module_own(layer, which == TARN__ADAPTER_A ? EMBEDDING_A : EMBEDDING_B);
    return tarn__module_own(layer->child[which], "weight");
}

tarn_tensor *tarn__adapter_factor(const tarn_module *layer)
{
    return tarn__module_own(layer, FACTOR);
}

bool tarn__is_embedding(const tarn_module *module)
{
    return strcmp(module->kind, "embedding") == 0;
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

tarn_tensor *tarn__lora_add_wide(tarn_tensor *y, tarn_tensor *h, tarn_tensor *factor)
{
    if (!y || !h)
        return NULL;
    tarn_dtype outer = y->view.dtype, wide = wider_of(h->view.dtype, outer);
    h = as(h, wide);
    y = h ? as(y, wide) : NULL;
    y = y ? tarn_add(y, h) : NULL;
    if (y && factor)
        y = tarn_mul(y, as(factor, wide));
    return y ? as(y, outer) : NULL;
}

/* The factor of DoRA does not apply to the bias. In training mode the factor would be that of other weights. */
static tarn_tensor *compose_magnitude(const tarn_module *layer, tarn_tensor *y, tarn_tensor *h)
{
    tarn_tensor *bias = tarn__module_own(layer, "bias");
    if (layer->training && tarn_grad_enabled()) {
        tarn__raise(TARN_ERROR_UNSUPPORTED,
                    "lora: '%s' has a DoRA adapter (use_dora), which can be used and merged, "
                    "but not trained",
                    layer->name);
        return NULL;
    }
    y = tarn__lora_add_wide(y, h, tarn__module_own(layer, FACTOR));
    return y && bias ? tarn_add(y, bias) : y;
}

tarn_tensor *tarn__lora_base(const tarn_module *layer, tarn_tensor *x, tarn_tensor *bias)
{
    tarn_tensor *weight = tarn__module_own(layer, "weight");
    return layer->linear == TARN__LINEAR_IN_OUT ? tarn__linear_in_out(x, weight, bias)
                                                : tarn_linear_apply(x, weight, bias);
}

/* h [.., rank], the smallest of the tensors, times the scale. */
static tarn_tensor *scaled(tarn_tensor *h, double scale)
{
    return h && scale != 1 ? tarn_mul(h, tarn_scalar(scale)) : h;
}

tarn_tensor *tarn__lora_low_rank(tarn_tensor *x, tarn_tensor *a, tarn_tensor *b, double scale)
{
    tarn_tensor *h = as(x, a->view.dtype);
    h = scaled(h ? tarn_linear_apply(h, a, NULL) : NULL, scale);
    return h ? tarn_linear_apply(h, b, NULL) : NULL;
}

/* True where the layer's update is added as that of a group's rows (lora_groups.h), so that a request's results are
 * bitwise identical by either. Rows with the bits that they have alone take the way of one row. */
static bool adds_as_groups(const tarn_module *layer)
{
    const tarn__adapter *adapter = layer->adapter;
    return tarn__batch_invariant() == TARN__INVARIANT_BATCH && adapter && !adapter->is_tokens &&
           !adapter->has_magnitude && !tarn_grad_enabled() && !drops_out(layer);
}

static tarn_tensor *add_update(const tarn_module *layer, tarn_tensor *x, tarn_tensor *y)
{
    bool good =
        tarn__lora_add(tarn__rows_of("lora", x), tarn__adapter_weight(layer, TARN__ADAPTER_A),
                       tarn__adapter_weight(layer, TARN__ADAPTER_B), layer->adapter->scale, tarn__rows_of("lora", y));
    return good ? y : NULL;
}

/* The layer's own output, plus the adapter's term. */
static tarn_tensor *compose(const tarn_module *layer, tarn_tensor *x)
{
    const tarn__adapter *adapter = layer->adapter;
    bool has_magnitude = adapter && adapter->has_magnitude;
    tarn_tensor *y = tarn__lora_base(layer, x, has_magnitude ? NULL : tarn__module_own(layer, "bias"));
    if (!adapter || !y)
        return y;
    if (adapter->is_tokens)
        return tarn__tokens_logits(layer, x, y);
    if (adds_as_groups(layer))
        return add_update(layer, x, y);
    tarn_tensor *h = as(x, tarn__adapter_weight(layer, TARN__ADAPTER_A)->view.dtype);
    if (h && drops_out(layer))
        h = tarn_dropout(h, adapter->dropout);
    h = scaled(h ? tarn_forward(layer->child[TARN__ADAPTER_A], h) : NULL, adapter->scale);
    h = h ? tarn_forward(layer->child[TARN__ADAPTER_B], h) : NULL;
    return has_magnitude ? compose_magnitude(layer, y, h) : tarn__lora_add_wide(y, h, NULL);
}

tarn_tensor *tarn__lora_embedding_update(tarn_tensor *index, tarn_tensor *a, tarn_tensor *b, double scale)
{
    a = tarn_transpose(a, 0, 1);
    tarn_tensor *h = scaled(a ? tarn_embedding(a, index) : NULL, scale);
    return h ? tarn_linear_apply(h, b, NULL) : NULL;
}

/* Rows of Aᵀ are looked up as those of the weight are. An embedding has no dropout, as in PEFT. */
tarn_tensor *tarn__lora_embedding(const tarn_module *embedding, tarn_tensor *index, tarn_tensor *y)
{
    const tarn__adapter *adapter = embedding->adapter;
    if (!y || !adapter)
        return y ? tarn__lora_groups_add_embedding(embedding, index, y) : NULL;
    if (adapter->is_tokens)
        return tarn__tokens_embedding(embedding, index, y);
    tarn_tensor *h = tarn__lora_embedding_update(index, tarn__adapter_weight(embedding, TARN__ADAPTER_A),
                                                 tarn__adapter_weight(embedding, TARN__ADAPTER_B), adapter->scale);
    return tarn__lora_add_wide(y, h, NULL);
}

/* Of x's dtype, on its device. */
static bool matches(tarn_tensor *x, tarn_tensor *weight)
{
    return weight->view.dtype == x->view.dtype && tarn__same_device(tarn__device(weight), tarn__device(x));
}

/* True when the fused operation applies: unquantized frozen weights, one dtype and device, no dropout, no DoRA, x of
 * the right size, and at least one adapter. */
static bool can_fuse(tarn_module *const *layer, int count, tarn_tensor *x)
{
    bool any = false, can = tarn__is_float(x->view.dtype) && !x->is_constant && x->view.rank > 0;
    for (int i = 0; can && i < count; i++) {
        if (layer[i]->adapter && (layer[i]->adapter->is_tokens || adds_as_groups(layer[i])))
            return false;
        tarn_tensor *weight = tarn__module_own(layer[i], "weight"), *bias = tarn__module_own(layer[i], "bias");
        can = matches(x, weight) && !tarn_needs_grad(weight) &&
              (!bias || (matches(x, bias) && !tarn_needs_grad(bias))) && !drops_out(layer[i]) &&
              tarn__linear_in(layer[i]) == x->view.shape[x->view.rank - 1];
        for (int k = 0; can && layer[i]->adapter && k < 2; k++)
            can = matches(x, tarn__adapter_weight(layer[i], k));
        can = can && !(layer[i]->adapter && layer[i]->adapter->has_magnitude);
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
            good = (y[i] = tarn__lora_groups_add(layer[i], x, compose(layer[i], x))) != NULL;
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

/* A and B of an embedding. Takes the tensors, on failure too. */
static bool add_to_embedding(tarn_module *embedding, tarn_tensor *a, tarn_tensor *b)
{
    bool good = tarn_module_add_parameter(embedding, EMBEDDING_A, a);
    if (!good)
        tarn_free(b);
    return good && tarn_module_add_parameter(embedding, EMBEDDING_B, b);
}

/* A and B of a linear layer, which must have no children yet: they are found by their index. Takes the tensors. */
static bool add_to_linear(tarn_module *layer, tarn_tensor *a, tarn_tensor *b)
{
    bool good = add_matrix(layer, "lora_A", a);
    if (!good)
        tarn_free(b);
    return good && add_matrix(layer, "lora_B", b);
}

bool tarn__adapter_add(tarn_module *layer, const tarn__adapter *settings, tarn_tensor *a, tarn_tensor *b)
{
    tarn__adapter *adapter = tarn__alloc(sizeof(*adapter));
    if (!adapter) {
        tarn_free(a);
        tarn_free(b);
        return false;
    }
    *adapter = *settings;
    adapter->is_embedding = tarn__is_embedding(layer);
    adapter->has_magnitude = false;
    layer->adapter = adapter;
    bool good = adapter->is_embedding ? add_to_embedding(layer, a, b) : add_to_linear(layer, a, b);
    if (!good)
        tarn__adapter_remove(layer);
    return good;
}

/* The norms, of the rows of an (out, in) weight, stay in f32 or f64. */
bool tarn__adapter_add_magnitude(tarn_module *layer, tarn_tensor *magnitude)
{
    int axis = layer->linear == TARN__LINEAR_IN_OUT ? 0 : 1;
    tarn_scope *scope = tarn_scope_open();
    bool good = tarn_module_add_parameter(layer, MAGNITUDE, magnitude) && scope;
    tarn_no_grad_open();
    tarn_tensor *sum = good ? tarn__adapter_merged(layer) : NULL;
    tarn_tensor *norm = sum ? tarn_sqrt(tarn_sum(tarn_square(sum), TARN_AXES(axis), false)) : NULL;
    tarn_tensor *factor = norm ? tarn_div(as(tarn__module_own(layer, MAGNITUDE), norm->view.dtype), norm) : NULL;
    factor = factor ? tarn_scope_return(scope, factor) : NULL;
    tarn_no_grad_close();
    tarn_scope_close(scope);
    good = factor && tarn_module_add_buffer(layer, FACTOR, factor);
    layer->adapter->has_magnitude = good;
    if (!good)
        tarn__adapter_remove(layer);
    return good;
}

/* B [out, rank] @ A [rank, in] is [out, in]: transposed for (in, out) weights, and for the rows of an embedding. */
static tarn_tensor *merged_lora(const tarn_module *layer)
{
    const tarn__adapter *adapter = layer->adapter;
    tarn_tensor *weight = tarn__module_own(layer, "weight"), *a = tarn__adapter_weight(layer, TARN__ADAPTER_A),
                *b = tarn__adapter_weight(layer, TARN__ADAPTER_B), *factor = NULL;
    tarn_dtype compute = weight->view.dtype == TARN_F64 || a->view.dtype == TARN_F64 ? TARN_F64 : TARN_F32;
    bool is_transposed = adapter->is_embedding || layer->linear == TARN__LINEAR_IN_OUT;
    tarn_tensor *delta =
        tarn_mul(tarn_matmul(tarn_cast(b, compute), tarn_cast(a, compute)), tarn_scalar(adapter->scale));
    if (is_transposed)
        delta = tarn_transpose(delta, 0, 1);
    tarn_tensor *wide = tarn__is_quantized(weight->view.dtype) ? tarn_cast(tarn_cast(weight, TARN_F32), compute)
                                                               : tarn_cast(weight, compute);
    tarn_tensor *sum = tarn_add(wide, delta);
    if (!sum || !adapter->has_magnitude)
        return sum;
    factor = as(tarn__module_own(layer, FACTOR), compute);
    return factor ? tarn_mul(sum, tarn_unsqueeze(factor, is_transposed ? 0 : 1)) : NULL;
}

tarn_tensor *tarn__adapter_merged(const tarn_module *layer)
{
    tarn_dtype own = tarn__module_own(layer, "weight")->view.dtype;
    return layer->adapter->is_tokens ? tarn__tokens_weight(layer, own == TARN_F64 ? TARN_F64 : TARN_F32)
                                     : merged_lora(layer);
}

/* The entry of a name that the module has. */
static tarn__parameter *entry_of(tarn_module *module, const char *name)
{
    tarn__parameter *place = module->parameter;
    const tarn_tensor *tensor = tarn__module_own(module, name);
    while (place->tensor != tensor)
        place++;
    return place;
}

void tarn__module_retarget(tarn_module *module, const char *name, tarn_tensor *tensor)
{
    tarn__parameter *place = entry_of(module, name);
    tarn__tensor_release(place->tensor);
    place->tensor = tensor;
    place->is_buffer = false;
}

bool tarn__module_replace(tarn_module *module, const char *name, tarn_tensor *tensor)
{
    /* The module takes over the reference of the scope: retain first, so that the tensor survives its release. */
    tarn__tensor_retain(tensor);
    tarn_free(tensor);
    tarn__module_retarget(module, name, tensor);
    return tarn__name_tensor(module, entry_of(module, name));
}

/* Removes a parameter or buffer of a module, if it has it. */
static void remove_own(tarn_module *module, const char *name)
{
    tarn_tensor *tensor = tarn__module_own(module, name);
    tarn__parameter *place = module->parameter;
    if (!tensor)
        return;
    while (place->tensor != tensor)
        place++;
    tarn__string_free(place->path);
    tarn__tensor_release(tensor);
    module->parameters--;
    memmove(place, place + 1, sizeof(*place) * (size_t)(module->parameter + module->parameters - place));
}

/* All children of a layer with an adapter are its adapter's. */
void tarn__adapter_remove(tarn_module *layer)
{
    static const char *const names[] = {EMBEDDING_A, EMBEDDING_B, MAGNITUDE, FACTOR};
    if (!layer->adapter)
        return;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        remove_own(layer, names[i]);
    for (int i = 0; i < layer->children; i++)
        tarn__module_free_tree(layer->child[i]);
    layer->children = 0;
    tarn__adapter_free(layer->adapter);
    layer->adapter = NULL;
}
