/* lora_linear.c: linear layers that share x, with frozen weights and adapters of low rank: yᵢ = x · Wᵢᵀ + biasᵢ +
 * scaleᵢ · (x · Aᵢᵀ) · Bᵢᵀ.
 *
 * An adapter's products are narrow: what they take is the way through memory. So all Aᵢ lie in one matrix for a while,
 * and x is read once for all; the adapter's part is written to yᵢ first, with the bias, and the layer's own product is
 * added to it, which costs no pass of its own. Backward does the same:
 *
 *   slopes of h = x · Aᵀ:  dhᵢ = scaleᵢ · gᵢ · Bᵢ       dBᵢ = scaleᵢ · gᵢᵀ · hᵢ
 *   dx = dh · A + Σ gᵢ · Wᵢ                             dA = dhᵀ · x */
#include "ops/internal.h"

#define FEW_ROWS 64 /* fewer are read from the cache anyway, and copies of A would cost more */

static const char function[] = "linear_adapted";

typedef struct adapted_record {
    int count;
    bool in_out;
    int64_t rank[TARN__MAX_LORA_LINEARS]; /* 0: no adapter */
    double scale[TARN__MAX_LORA_LINEARS];
} adapted_record;

/* Inputs: x, and Aᵢ and Bᵢ of each layer. What is saved: x, h, all A, and Wᵢ and Bᵢ of each layer. */
enum { X, FIRST_A };
enum { SAVED_X, SAVED_H, SAVED_A, FIRST_SAVED };
#define INPUTS (FIRST_A + 2 * TARN__MAX_LORA_LINEARS)
#define SAVES (FIRST_SAVED + 2 * TARN__MAX_LORA_LINEARS)

/* to = alpha · a @ b + beta · to + bias. */
static bool multiply(double alpha, tarn_tensor *a, tarn_tensor *b, tarn_tensor *bias, double beta, tarn_tensor *to)
{
    tarn__matmul tail = {.alpha = alpha, .beta = beta, .tf32 = tarn__tf32()};
    return a && b && to &&
           tarn__kernel_call(TARN__K_matmul, function, tail, TARN__IN(a, b, bias), TARN__OUT(to),
                             .reads_output = beta != 0);
}

/* `count` rows or columns of a matrix from `first`. A view in the open scope. */
static tarn_tensor *part_of(tarn_tensor *x, int axis, int64_t first, int64_t count)
{
    tarn_tensor *part = x ? tarn__tensor_view(x) : NULL;
    if (part) {
        part->view.shape[axis] = count;
        tarn__tensor_set_start(part, x->start + first * x->view.stride[axis]);
    }
    return part;
}

static int64_t all_ranks(const adapted_record *r)
{
    int64_t all = 0;
    for (int i = 0; i < r->count; i++)
        all += r->rank[i];
    return all;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* A layer's dhᵢ, and dBᵢ where it is wanted. */
static bool put_b(const tarn__backward *b, int layer, tarn_tensor *g, tarn_tensor *h, tarn_tensor *slopes)
{
    double scale = ((const adapted_record *)b->params)->scale[layer];
    int input = FIRST_A + 2 * layer + 1;
    tarn__grad_acc sink;
    if (!multiply(scale, g, b->saved[FIRST_SAVED + 2 * layer + 1], NULL, 0, slopes))
        return false;
    return !tarn__needs_grad(b, input) ||
           (tarn__grad_acc_open(b, input, &sink) && multiply(scale, tarn__transposed(g), h, NULL, sink.beta, sink.to) &&
            tarn__grad_acc_close(b, input, &sink));
}

/* dh (rows, all ranks): 0 for a layer whose result nobody used. dB on the way. */
static tarn_tensor *inner_slopes(const tarn__backward *b, tarn_tensor *const *g)
{
    const adapted_record *r = b->params;
    tarn_tensor *h = b->saved[SAVED_H],
                *slopes = tarn__tensor_new(b->function, tarn__shape_of(h), h->view.dtype, tarn__device(h));
    bool good = slopes != NULL;
    for (int64_t i = 0, first = 0; good && i < r->count; first += r->rank[i++]) {
        if (!r->rank[i])
            continue;
        tarn_tensor *to = part_of(slopes, 1, first, r->rank[i]), *own = part_of(h, 1, first, r->rank[i]);
        good = to && own && (g[i] ? put_b(b, (int)i, g[i], own, to) : tarn__fill_with(b->function, to, 0));
    }
    return good ? slopes : NULL;
}

/* dx: the adapters' part first, which is the smaller one. */
static bool put_x(const tarn__backward *b, tarn_tensor *const *g, tarn_tensor *slopes)
{
    const adapted_record *r = b->params;
    tarn__grad_acc sink;
    if (!tarn__needs_grad(b, X))
        return true;
    if (!tarn__grad_acc_open(b, X, &sink))
        return false;
    tarn_tensor *to = tarn__rows_of(b->function, sink.to);
    bool good = multiply(1, slopes, b->saved[SAVED_A], NULL, sink.beta, to);
    for (int i = 0; good && i < r->count; i++)
        good = !g[i] || multiply(1, g[i], tarn__transposed_if(b->saved[FIRST_SAVED + 2 * i], r->in_out), NULL, 1, to);
    return good && tarn__grad_acc_close(b, X, &sink);
}

/* dA of all layers by one product, or, where there is one adapter, in its place at once. */
static bool put_a(const tarn__backward *b, tarn_tensor *const *g, tarn_tensor *slopes)
{
    const adapted_record *r = b->params;
    int64_t all = all_ranks(r);
    tarn_tensor *x = b->saved[SAVED_X] ? tarn__rows_of(b->function, b->saved[SAVED_X]) : NULL, *sums = NULL;
    for (int64_t i = 0, first = 0; i < r->count; first += r->rank[i++]) {
        int a = (int)(FIRST_A + 2 * i);
        tarn__grad_acc sink;
        if (!r->rank[i] || !g[i] || !tarn__needs_grad(b, a))
            continue;
        if (r->rank[i] == all)
            return tarn__grad_acc_open(b, a, &sink) &&
                   multiply(1, tarn__transposed(slopes), x, NULL, sink.beta, sink.to) &&
                   tarn__grad_acc_close(b, a, &sink);
        if (!sums && !(x &&
                       (sums = tarn__tensor_new(b->function, TARN_SHAPE(all, x->view.shape[1]), tarn__grad_dtype(b, a),
                                                tarn__device(x))) &&
                       multiply(1, tarn__transposed(slopes), x, NULL, 0, sums)))
            return false;
        if (!tarn__accumulate_grad(b, a, part_of(sums, 0, first, r->rank[i])))
            return false;
    }
    return true;
}

static bool adapted_backward(const tarn__backward *b)
{
    const adapted_record *r = b->params;
    tarn_tensor *g[TARN__MAX_LORA_LINEARS] = {0}, *slopes;
    for (int i = 0; i < r->count; i++)
        if (b->grads[i] && !(g[i] = tarn__rows_of(b->function, b->grads[i])))
            return false;
    return (slopes = inner_slopes(b, g)) && put_a(b, g, slopes) && put_x(b, g, slopes);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* All A, one below the other: the only one itself, or a copy. */
static tarn_tensor *gather_a(const tarn__lora_linear *layers, const adapted_record *r)
{
    tarn_tensor *all = NULL;
    for (int64_t i = 0, first = 0; i < r->count; first += r->rank[i++]) {
        tarn_tensor *a = layers[i].a;
        if (!a)
            continue;
        if (r->rank[i] == all_ranks(r))
            return a;
        if (!all && !(all = tarn__tensor_new(function, TARN_SHAPE(all_ranks(r), a->view.shape[1]), a->view.dtype,
                                             tarn__device(a))))
            return NULL;
        tarn_tensor *to = part_of(all, 0, first, r->rank[i]);
        if (!to || !tarn__copy_elements(function, to, a))
            return NULL;
    }
    return all;
}

/* h = x · Aᵀ of all layers, (rows, all ranks). `all` may be NULL: each by itself. */
static tarn_tensor *narrow(tarn_tensor *rows, const tarn__lora_linear *layers, const adapted_record *r,
                           tarn_tensor *all)
{
    tarn_tensor *h =
        tarn__tensor_new(function, TARN_SHAPE(rows->view.shape[0], all_ranks(r)), rows->view.dtype, tarn__device(rows));
    if (h && all)
        return multiply(1, rows, tarn__transposed(all), NULL, 0, h) ? h : NULL;
    bool good = h != NULL;
    for (int64_t i = 0, first = 0; good && i < r->count; first += r->rank[i++])
        good =
            !layers[i].a || multiply(1, rows, tarn__transposed(layers[i].a), NULL, 0, part_of(h, 1, first, r->rank[i]));
    return good ? h : NULL;
}

static bool widen(tarn_tensor *rows, tarn_tensor *h, const tarn__lora_linear *layers, const adapted_record *r,
                  tarn_tensor **y)
{
    for (int64_t i = 0, first = 0; i < r->count; first += r->rank[i++]) {
        const tarn__lora_linear *layer = &layers[i];
        tarn_tensor *to = tarn__rows_of(function, y[i]), *bias = layer->bias;
        if (layer->a &&
            !multiply(layer->scale, part_of(h, 1, first, r->rank[i]), tarn__transposed(layer->b), bias, 0, to))
            return false;
        if (!multiply(1, rows, tarn__transposed_if(layer->weight, !r->in_out), layer->a ? NULL : bias, layer->a != NULL,
                      to))
            return false;
    }
    return true;
}

static bool place_results(tarn_tensor *x, const tarn__lora_linear *layers, const adapted_record *r, tarn_tensor **y)
{
    tarn_shape shape = tarn__shape_of(x);
    for (int i = 0; i < r->count; i++) {
        shape.size[shape.rank - 1] = layers[i].weight->view.shape[r->in_out];
        if (!(y[i] = tarn__tensor_new(function, shape, x->view.dtype, tarn__device(x))))
            return false;
    }
    return true;
}

bool tarn__lora_linears(tarn_tensor *x, const tarn__lora_linear *layers, int count, bool in_out, tarn_tensor **y)
{
    adapted_record r = {.count = count, .in_out = in_out};
    tarn_tensor *input[INPUTS] = {x}, *saved[SAVES] = {0}, *rows = tarn__rows_of(function, x);
    bool of_a = false;
    for (int i = 0; i < count; i++) {
        r.rank[i] = layers[i].a ? layers[i].a->view.shape[0] : 0;
        r.scale[i] = layers[i].scale;
        input[FIRST_A + 2 * i] = layers[i].a, input[FIRST_A + 2 * i + 1] = layers[i].b;
        saved[FIRST_SAVED + 2 * i] = layers[i].weight, saved[FIRST_SAVED + 2 * i + 1] = layers[i].b;
        of_a = of_a || (layers[i].a && tarn_needs_grad(layers[i].a));
    }
    bool records = tarn__recording_needed(input, INPUTS);
    tarn_tensor *all = NULL;
    if (!rows || ((records || rows->view.shape[0] >= FEW_ROWS) && !(all = gather_a(layers, &r))))
        return false;
    tarn_tensor *h = narrow(rows, layers, &r, all);
    if (!h || !place_results(x, layers, &r, y) || !widen(rows, h, layers, &r, y))
        return false;
    saved[SAVED_X] = of_a ? x : NULL, saved[SAVED_H] = h, saved[SAVED_A] = all;
    return tarn__record(&(tarn__recording){.function = function,
                                           .rule = adapted_backward,
                                           .params = &r,
                                           .params_bytes = sizeof(r),
                                           .inputs = input,
                                           .input_count = FIRST_A + 2 * count,
                                           .outputs = y,
                                           .output_count = count,
                                           .saved = saved,
                                           .saved_count = FIRST_SAVED + 2 * count});
}
