/* lora_linear.c: linear layers with the same input, frozen weights and LoRA adapters: yᵢ = x · Wᵢᵀ + biasᵢ + scaleᵢ
 * · (x · Aᵢᵀ) · Bᵢᵀ.
 *
 * The adapters' GEMMs are skinny and bound by memory. So all Aᵢ are stacked into one matrix and x is read once for
 * all; the adapter's part is written to yᵢ first, with the bias, and the base layer's GEMM adds to it (beta = 1),
 * which costs no extra pass. Backward does the same:
 *
 *   gradient of h = x · Aᵀ:  dhᵢ = scaleᵢ · gᵢ · Bᵢ       dBᵢ = scaleᵢ · gᵢᵀ · hᵢ
 *   dx = dh · A + Σ gᵢ · Wᵢ                               dA = dhᵀ · x */
#include "ops/internal.h"

#define FEW_ROWS 64 /* fewer rows of x stay in cache anyway, and copying A would cost more */

static const char function[] = "lora_linear";

/* What backward needs: ranks and scales of the layers. */
typedef struct lora_record {
    int count;
    bool in_out;
    int64_t rank[TARN__MAX_LORA_LINEARS]; /* 0: no adapter */
    double scale[TARN__MAX_LORA_LINEARS];
} lora_record;

/* Inputs: x, then Aᵢ and Bᵢ of each layer. Saved: x, h, all A, then Wᵢ and Bᵢ of each layer. */
enum { X, FIRST_A };
enum { SAVED_X, SAVED_H, SAVED_A, FIRST_SAVED };
#define INPUTS (FIRST_A + 2 * TARN__MAX_LORA_LINEARS)
#define SAVES (FIRST_SAVED + 2 * TARN__MAX_LORA_LINEARS)

/* to = alpha · a @ b + beta · to + bias; false where an operand is NULL. */
static bool multiply(double alpha, tarn_tensor *a, tarn_tensor *b, tarn_tensor *bias, double beta, tarn_tensor *to)
{
    tarn__matmul params = {
        .alpha = alpha, .beta = beta, .tf32 = tarn__tf32(), .batch_invariant = tarn__batch_invariant()};
    return a && b && to &&
           tarn__kernel_call(TARN__K_matmul, function, params, TARN__IN(a, b, bias), TARN__OUT(to),
                             .reads_output = beta != 0);
}

/* Rows or columns `first` to `first + count` of a matrix: a view in the open scope; NULL for NULL. */
static tarn_tensor *slice_of(tarn_tensor *x, int axis, int64_t first, int64_t count)
{
    tarn_tensor *part = x ? tarn__tensor_view(x) : NULL;
    if (part) {
        part->view.shape[axis] = count;
        tarn__tensor_set_start(part, x->start + first * x->view.stride[axis]);
    }
    return part;
}

static int64_t total_rank(const lora_record *r)
{
    int64_t all = 0;
    for (int i = 0; i < r->count; i++)
        all += r->rank[i];
    return all;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* dhᵢ of a layer, and dBᵢ where needed. */
static bool b_backward(const tarn__backward *b, int layer, tarn_tensor *g, tarn_tensor *h, tarn_tensor *dh)
{
    double scale = ((const lora_record *)b->params)->scale[layer];
    int input = FIRST_A + 2 * layer + 1;
    tarn__grad_acc acc;
    if (!multiply(scale, g, b->saved[FIRST_SAVED + 2 * layer + 1], NULL, 0, dh))
        return false;
    return !tarn__needs_grad(b, input) || (tarn__grad_acc_open(b, input, &acc) &&
                                           multiply(scale, tarn__transposed(g), h, NULL, acc.beta, acc.tensor) &&
                                           tarn__grad_acc_close(b, input, &acc));
}

/* dh (rows, total rank), 0 for a layer whose result was not used; computes dB on the way. */
static tarn_tensor *inner_grads(const tarn__backward *b, tarn_tensor *const *g)
{
    const lora_record *r = b->params;
    tarn_tensor *h = b->saved[SAVED_H],
                *dh = tarn__tensor_new(b->function, tarn__shape_of(h), h->view.dtype, tarn__device(h));
    bool good = dh != NULL;
    for (int64_t i = 0, first = 0; good && i < r->count; first += r->rank[i++]) {
        if (!r->rank[i])
            continue;
        tarn_tensor *to = slice_of(dh, 1, first, r->rank[i]), *own = slice_of(h, 1, first, r->rank[i]);
        good = to && own && (g[i] ? b_backward(b, (int)i, g[i], own, to) : tarn__fill_with(b->function, to, 0));
    }
    return good ? dh : NULL;
}

/* dx: the adapters' part first, then the base layers' with beta = 1. */
static bool x_backward(const tarn__backward *b, tarn_tensor *const *g, tarn_tensor *dh)
{
    const lora_record *r = b->params;
    tarn__grad_acc acc;
    if (!tarn__needs_grad(b, X))
        return true;
    if (!tarn__grad_acc_open(b, X, &acc))
        return false;
    tarn_tensor *to = tarn__rows_of(b->function, acc.tensor);
    bool good = multiply(1, dh, b->saved[SAVED_A], NULL, acc.beta, to);
    for (int i = 0; good && i < r->count; i++)
        good = !g[i] || multiply(1, g[i], tarn__transposed_if(b->saved[FIRST_SAVED + 2 * i], r->in_out), NULL, 1, to);
    return good && tarn__grad_acc_close(b, X, &acc);
}

/* dA of all layers in one GEMM; with a single adapter straight into its accumulator. */
static bool a_backward(const tarn__backward *b, tarn_tensor *const *g, tarn_tensor *dh)
{
    const lora_record *r = b->params;
    int64_t all = total_rank(r);
    tarn_tensor *x = b->saved[SAVED_X] ? tarn__rows_of(b->function, b->saved[SAVED_X]) : NULL, *sums = NULL;
    for (int64_t i = 0, first = 0; i < r->count; first += r->rank[i++]) {
        int a = (int)(FIRST_A + 2 * i);
        tarn__grad_acc acc;
        if (!r->rank[i] || !g[i] || !tarn__needs_grad(b, a))
            continue;
        if (r->rank[i] == all)
            return tarn__grad_acc_open(b, a, &acc) &&
                   multiply(1, tarn__transposed(dh), x, NULL, acc.beta, acc.tensor) && tarn__grad_acc_close(b, a, &acc);
        if (!sums && !(x &&
                       (sums = tarn__tensor_new(b->function, TARN_SHAPE(all, x->view.shape[1]), tarn__grad_dtype(b, a),
                                                tarn__device(x))) &&
                       multiply(1, tarn__transposed(dh), x, NULL, 0, sums)))
            return false;
        if (!tarn__accumulate_grad(b, a, slice_of(sums, 0, first, r->rank[i])))
            return false;
    }
    return true;
}

/* g[i] is NULL for a layer whose result was not used. */
static bool lora_backward(const tarn__backward *b)
{
    const lora_record *r = b->params;
    tarn_tensor *g[TARN__MAX_LORA_LINEARS] = {0}, *dh;
    for (int i = 0; i < r->count; i++)
        if (b->grads[i] && !(g[i] = tarn__rows_of(b->function, b->grads[i])))
            return false;
    return (dh = inner_grads(b, g)) && a_backward(b, g, dh) && x_backward(b, g, dh);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* All A stacked: a single one itself, else a copy. */
static tarn_tensor *stack_a(const tarn__lora_linear *layers, const lora_record *r)
{
    tarn_tensor *all = NULL;
    for (int64_t i = 0, first = 0; i < r->count; first += r->rank[i++]) {
        tarn_tensor *a = layers[i].a;
        if (!a)
            continue;
        if (r->rank[i] == total_rank(r))
            return a;
        if (!all && !(all = tarn__tensor_new(function, TARN_SHAPE(total_rank(r), a->view.shape[1]), a->view.dtype,
                                             tarn__device(a))))
            return NULL;
        tarn_tensor *to = slice_of(all, 0, first, r->rank[i]);
        if (!to || !tarn__copy_elements(function, to, a))
            return NULL;
    }
    return all;
}

/* h = x · Aᵀ of all layers (rows, total rank). `all` may be NULL: one GEMM per adapter. */
static tarn_tensor *project_down(tarn_tensor *rows, const tarn__lora_linear *layers, const lora_record *r,
                                 tarn_tensor *all)
{
    tarn_tensor *h = tarn__tensor_new(function, TARN_SHAPE(rows->view.shape[0], total_rank(r)), rows->view.dtype,
                                      tarn__device(rows));
    if (h && all)
        return multiply(1, rows, tarn__transposed(all), NULL, 0, h) ? h : NULL;
    bool good = h != NULL;
    for (int64_t i = 0, first = 0; good && i < r->count; first += r->rank[i++])
        good = !layers[i].a ||
               multiply(1, rows, tarn__transposed(layers[i].a), NULL, 0, slice_of(h, 1, first, r->rank[i]));
    return good ? h : NULL;
}

/* yᵢ = scaleᵢ · hᵢ · Bᵢᵀ + biasᵢ, then += x · Wᵢᵀ. */
static bool project_up(tarn_tensor *rows, tarn_tensor *h, const tarn__lora_linear *layers, const lora_record *r,
                       tarn_tensor **y)
{
    for (int64_t i = 0, first = 0; i < r->count; first += r->rank[i++]) {
        const tarn__lora_linear *layer = &layers[i];
        tarn_tensor *to = tarn__rows_of(function, y[i]), *bias = layer->bias;
        if (layer->a &&
            !multiply(layer->scale, slice_of(h, 1, first, r->rank[i]), tarn__transposed(layer->b), bias, 0, to))
            return false;
        if (!multiply(1, rows, tarn__transposed_if(layer->weight, !r->in_out), layer->a ? NULL : bias, layer->a != NULL,
                      to))
            return false;
    }
    return true;
}

/* yᵢ […, outᵢ] for all layers. */
static bool new_results(tarn_tensor *x, const tarn__lora_linear *layers, const lora_record *r, tarn_tensor **y)
{
    tarn_shape shape = tarn__shape_of(x);
    for (int i = 0; i < r->count; i++) {
        shape.size[shape.rank - 1] = layers[i].weight->view.shape[r->in_out];
        if (!(y[i] = tarn__tensor_new(function, shape, x->view.dtype, tarn__device(x))))
            return false;
    }
    return true;
}

/* Frozen weights are saved, not recorded as inputs; x is saved only if some A needs a gradient. Forward reads x once
 * for the stacked A and once per base layer. */
bool tarn__lora_linears(tarn_tensor *x, const tarn__lora_linear *layers, int count, bool in_out, tarn_tensor **y)
{
    lora_record r = {.count = count, .in_out = in_out};
    tarn_tensor *input[INPUTS] = {x}, *saved[SAVES] = {0}, *rows = tarn__rows_of(function, x);
    bool needs_x = false;
    for (int i = 0; i < count; i++) {
        r.rank[i] = layers[i].a ? layers[i].a->view.shape[0] : 0;
        r.scale[i] = layers[i].scale;
        input[FIRST_A + 2 * i] = layers[i].a, input[FIRST_A + 2 * i + 1] = layers[i].b;
        saved[FIRST_SAVED + 2 * i] = layers[i].weight, saved[FIRST_SAVED + 2 * i + 1] = layers[i].b;
        needs_x = needs_x || (layers[i].a && tarn_needs_grad(layers[i].a));
    }
    bool records = tarn__recording_needed(input, INPUTS);
    tarn_tensor *all = NULL;
    if (!rows || ((records || rows->view.shape[0] >= FEW_ROWS) && !(all = stack_a(layers, &r))))
        return false;
    tarn_tensor *h = project_down(rows, layers, &r, all);
    if (!h || !new_results(x, layers, &r, y) || !project_up(rows, h, layers, &r, y))
        return false;
    saved[SAVED_X] = needs_x ? x : NULL, saved[SAVED_H] = h, saved[SAVED_A] = all;
    return tarn__record(&(tarn__recording){.function = function,
                                           .rule = lora_backward,
                                           .params = &r,
                                           .params_bytes = sizeof(r),
                                           .inputs = input,
                                           .input_count = FIRST_A + 2 * count,
                                           .outputs = y,
                                           .output_count = count,
                                           .saved = saved,
                                           .saved_count = FIRST_SAVED + 2 * count});
}

/* ---- in place ---------------------------------------------------------------------------------------------------- */

/* y += delta, summed in f32, or f64 if either is. */
static bool add_wide(tarn_tensor *y, tarn_tensor *delta)
{
    tarn_dtype wide = y->view.dtype == TARN_F64 || delta->view.dtype == TARN_F64 ? TARN_F64 : TARN_F32;
    tarn_tensor *sum = tarn_add(tarn_cast(y, wide), tarn_cast(delta, wide));
    return sum && tarn__copy_elements(function, y, tarn_cast(sum, y->view.dtype));
}

bool tarn__lora_add(tarn_tensor *x, tarn_tensor *a, tarn_tensor *b, double scale, tarn_tensor *y)
{
    int64_t rows = x->view.shape[0];
    tarn_dtype dtype = a->view.dtype;
    tarn_device device = tarn__device(x);
    tarn_tensor *h = tarn__tensor_new(function, TARN_SHAPE(rows, a->view.shape[0]), dtype, device);
    if (!h || !multiply(1, x->view.dtype == dtype ? x : tarn_cast(x, dtype), tarn__transposed(a), NULL, 0, h))
        return false;
    if (y->view.dtype == dtype)
        return multiply(scale, h, tarn__transposed(b), NULL, 1, y);
    tarn_tensor *delta = tarn__tensor_new(function, TARN_SHAPE(rows, b->view.shape[0]), dtype, device);
    return delta && multiply(scale, h, tarn__transposed(b), NULL, 0, delta) && add_wide(y, delta);
}
