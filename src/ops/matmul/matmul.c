/* matmul.c: matmul and linear layers, forward and backward.
 *
 * Every operand is viewed as [batch…, rows, columns]: a vector gets the axis it lacks, a broadcast batch axis gets
 * stride 0. Where the second operand has no batches and the first one's batches and rows merge into one axis, the
 * product is a single GEMM. A gradient that needs no un-broadcasting is accumulated straight into its accumulator
 * (beta = 1).
 *
 * Saved: each operand only if the other needs a gradient. Gradients of 16-bit leaves are f32: the GEMM writes f32
 * from 16-bit operands, so no rounding happens between the product and the optimizer.
 *
 * Determinism: the backend splits work by shape, never by load, and autotuned algorithms are replayed in resumed
 * runs. */
#include <stdatomic.h>
#include <string.h>

#include "ops/internal.h"

static atomic_bool allows_tf32;

/* For the whole process. Relaxed reads suffice: a matmul of another thread may see the change late. */
void tarn_set_tf32(bool on)
{
    atomic_store(&allows_tf32, on);
}

bool tarn__tf32(void)
{
    return atomic_load_explicit(&allows_tf32, memory_order_relaxed);
}

static _Thread_local int invariant_depth, alone_depth;

void tarn__batch_invariant_open(void)
{
    invariant_depth++;
}

void tarn__batch_invariant_close(void)
{
    invariant_depth--;
}

void tarn__rows_alone_open(void)
{
    alone_depth++;
}

void tarn__rows_alone_close(void)
{
    alone_depth--;
}

tarn__invariance tarn__batch_invariant(void)
{
    return alone_depth > 0 ? TARN__INVARIANT_ALONE : invariant_depth > 0 ? TARN__INVARIANT_BATCH : TARN__INVARIANT_NONE;
}

/* For error messages. */
static const char *const roles[] = {"a", "b"};

/* How the operands of a matmul are viewed; recorded for backward. */
typedef struct layout {
    int batch_rank;
    int64_t batch[TARN_MAX_RANK];
    bool a_vector, b_vector; /* of rank 1 */
} layout;

/* ---- views ------------------------------------------------------------------------------------------------------- */

/* Inserts an axis with stride 0. */
static void insert_axis(tarn__view *view, int at, int64_t size)
{
    memmove(view->shape + at + 1, view->shape + at, sizeof(int64_t) * (size_t)(view->rank - at));
    memmove(view->stride + at + 1, view->stride + at, sizeof(int64_t) * (size_t)(view->rank - at));
    view->shape[at] = size;
    view->stride[at] = 0;
    view->rank++;
}

/* x as [batch…, rows, columns], broadcast to l->batch, with missing axes inserted. A new view in the open scope. */
static tarn_tensor *as_matrices(tarn_tensor *x, const layout *l, bool no_rows, bool no_columns)
{
    tarn_tensor *matrices = tarn__tensor_view(x);
    if (!matrices)
        return NULL;
    tarn__view *view = &matrices->view;
    if (no_columns)
        insert_axis(view, view->rank, 1);
    if (no_rows)
        insert_axis(view, view->rank - 1, 1);
    while (view->rank < l->batch_rank + 2)
        insert_axis(view, 0, 1);
    for (int i = 0; i < l->batch_rank; i++)
        if (view->shape[i] == 1 && l->batch[i] != 1) {
            view->shape[i] = l->batch[i];
            view->stride[i] = 0;
        }
    return matrices;
}

/* Swaps the last two axes; not recorded. */
tarn_tensor *tarn__transposed(tarn_tensor *x)
{
    tarn_tensor *result = x ? tarn__tensor_view(x) : NULL;
    if (!result)
        return NULL;
    tarn__view *view = &result->view;
    int last = view->rank - 1;
    view->shape[last] = x->view.shape[last - 1], view->shape[last - 1] = x->view.shape[last];
    view->stride[last] = x->view.stride[last - 1], view->stride[last - 1] = x->view.stride[last];
    return result;
}

/* Merges batches and rows into one axis, in place; false where the strides do not allow it. */
static bool flatten(tarn_tensor *matrices)
{
    tarn__view *view = &matrices->view;
    int64_t rows = 1, stride = 0;
    bool empty = tarn__view_count(view) == 0;
    for (int i = view->rank - 2; i >= 0; i--) {
        if (view->shape[i] == 1)
            continue;
        if (rows > 1 && !empty && view->stride[i] != stride * rows)
            return false;
        stride = rows > 1 ? stride : view->stride[i];
        rows *= view->shape[i];
    }
    view->shape[0] = rows, view->stride[0] = stride;
    view->shape[1] = view->shape[view->rank - 1], view->stride[1] = view->stride[view->rank - 1];
    view->rank = 2;
    return true;
}

/* The same, with a copy where needed. */
static tarn_tensor *flat(const char *function, tarn_tensor *matrices)
{
    if (!matrices || flatten(matrices))
        return matrices;
    tarn_tensor *copy = tarn__contiguous(function, matrices);
    return copy && (copy = tarn__tensor_view(copy)) && flatten(copy) ? copy : NULL;
}

/* Keeps the last two axes of a view. */
static void drop_batches(tarn_tensor *matrices)
{
    tarn__view *view = &matrices->view;
    memmove(view->shape, view->shape + view->rank - 2, sizeof(int64_t) * 2);
    memmove(view->stride, view->stride + view->rank - 2, sizeof(int64_t) * 2);
    view->rank = 2;
}

bool tarn__gemm(const char *function, tarn_tensor *a, tarn_tensor *b, tarn_tensor *bias, double beta, tarn_tensor *to)
{
    tarn__matmul params = {.alpha = 1, .beta = beta, .tf32 = tarn__tf32(), .batch_invariant = tarn__batch_invariant()};
    return a && b && to &&
           tarn__kernel_call(TARN__K_matmul, function, params, TARN__IN(a, b, bias), TARN__OUT(to),
                             .reads_output = beta != 0);
}

/* ---- matmul: shapes ---------------------------------------------------------------------------------------------- */

/* Suggests a transpose where one would fit. */
static bool raise_inner(const tarn_tensor *a, const tarn_tensor *b, int64_t k, int64_t inner)
{
    const tarn__view *va = &a->view, *vb = &b->view;
    const char *advice = "";
    if (vb->rank > 1 && vb->shape[vb->rank - 1] == k)
        advice = "; did you mean to transpose the second operand?";
    else if (va->rank > 1 && va->shape[va->rank - 2] == inner)
        advice = "; did you mean to transpose the first operand?";
    return tarn__raise(TARN_ERROR_SHAPE, "matmul: inner sizes differ: %s @ %s (%lld vs %lld)%s", TARN__SHAPE_STRING(a),
                       TARN__SHAPE_STRING(b), (long long)k, (long long)inner, advice);
}

static int batch_axes(const tarn_tensor *x)
{
    return x->view.rank > 2 ? x->view.rank - 2 : 0;
}

/* Size of batch axis i of the result in x; 1 where x lacks it. */
static int64_t batch_size(const tarn_tensor *x, const layout *l, int i)
{
    int own = i - (l->batch_rank - batch_axes(x));
    return own < 0 ? 1 : x->view.shape[own];
}

/* Shape of the result: broadcast batches, then rows and columns unless an operand is a vector. */
static bool plan(const tarn_tensor *a, const tarn_tensor *b, layout *l, tarn_shape *shape)
{
    *l = (layout){.a_vector = a->view.rank == 1, .b_vector = b->view.rank == 1};
    *shape = (tarn_shape){0};
    if (a->view.rank == 0 || b->view.rank == 0)
        return tarn__raise(TARN_ERROR_SHAPE,
                           "matmul: %s @ %s: operands must have at least one axis; scale a tensor with tarn_mul()",
                           TARN__SHAPE_STRING(a), TARN__SHAPE_STRING(b));
    int64_t k = a->view.shape[a->view.rank - 1], inner = b->view.shape[l->b_vector ? 0 : b->view.rank - 2];
    if (k != inner)
        return raise_inner(a, b, k, inner);
    l->batch_rank = batch_axes(a) > batch_axes(b) ? batch_axes(a) : batch_axes(b);
    for (int i = 0; i < l->batch_rank; i++) {
        int64_t in_a = batch_size(a, l, i), in_b = batch_size(b, l, i);
        if (in_a != in_b && in_a != 1 && in_b != 1)
            return tarn__raise(TARN_ERROR_SHAPE, "matmul: batches do not broadcast: %s @ %s (axis %d has %lld vs %lld)",
                               TARN__SHAPE_STRING(a), TARN__SHAPE_STRING(b), i - l->batch_rank - 2, (long long)in_a,
                               (long long)in_b);
        shape->size[shape->rank++] = l->batch[i] = in_a == 1 ? in_b : in_a;
    }
    if (!l->a_vector)
        shape->size[shape->rank++] = a->view.shape[a->view.rank - 2];
    if (!l->b_vector)
        shape->size[shape->rank++] = b->view.shape[b->view.rank - 1];
    return true;
}

/* ---- matmul: backward -------------------------------------------------------------------------------------------- */

/* True when x was not broadcast over batches: its gradient needs no sum. */
static bool has_all_batches(const tarn_shape *x, const layout *l)
{
    int axes = x->rank > 2 ? x->rank - 2 : 0;
    for (int i = 0; i < l->batch_rank; i++) {
        int own = i - (l->batch_rank - axes);
        if ((own < 0 ? 1 : x->size[own]) != l->batch[i])
            return false;
    }
    return true;
}

/* Gradient of input i = left @ right, summed over broadcast batches. */
static bool gradient_matmul(const tarn__backward *b, int i, const layout *l, tarn_tensor *left, tarn_tensor *right)
{
    if (!left || !right)
        return false;
    const tarn__tensor_spec *spec = tarn__input_spec(b, i);
    bool no_rows = i == 0 && l->a_vector, no_columns = i == 1 && l->b_vector;
    if (has_all_batches(&spec->shape, l)) {
        tarn__grad_acc acc;
        return tarn__grad_acc_open(b, i, &acc) &&
               tarn__gemm(b->function, left, right, NULL, acc.beta, as_matrices(acc.tensor, l, no_rows, no_columns)) &&
               tarn__grad_acc_close(b, i, &acc);
    }
    /* Broadcast over batches: all products are computed, then summed by the accumulation. */
    tarn_shape shape = {.rank = l->batch_rank};
    memcpy(shape.size, l->batch, sizeof(shape.size));
    if (!no_rows)
        shape.size[shape.rank++] = left->view.shape[left->view.rank - 2];
    if (!no_columns)
        shape.size[shape.rank++] = right->view.shape[right->view.rank - 1];
    tarn_tensor *whole = tarn__tensor_new(b->function, shape, tarn__acc_dtype(spec->dtype), spec->device);
    return whole && tarn__gemm(b->function, left, right, NULL, 0, as_matrices(whole, l, no_rows, no_columns)) &&
           tarn__accumulate_grad(b, i, whole);
}

/* The second operand has no batches: batches and rows of the first are one axis, and each gradient is one GEMM. */
static bool flat_backward(const tarn__backward *b, const layout *l, tarn_tensor *g)
{
    static const layout none = {0};
    tarn__grad_acc acc;
    tarn_tensor *rows = flat(b->function, g); /* (B M, N) */
    if (!rows)
        return false;
    if (tarn__needs_grad(b, 0)) {
        if (!tarn__grad_acc_open(b, 0, &acc))
            return false;
        tarn_tensor *to = as_matrices(acc.tensor, l, l->a_vector, false);
        tarn_tensor *right = tarn__transposed(as_matrices(b->saved[1], &none, false, l->b_vector));
        if (!to || !flatten(to) || !tarn__gemm(b->function, rows, right, NULL, acc.beta, to) ||
            !tarn__grad_acc_close(b, 0, &acc))
            return false;
    }
    if (!tarn__needs_grad(b, 1))
        return true;
    tarn_tensor *left = tarn__transposed(flat(b->function, as_matrices(b->saved[0], l, l->a_vector, false)));
    return tarn__grad_acc_open(b, 1, &acc) &&
           tarn__gemm(b->function, left, rows, NULL, acc.beta, as_matrices(acc.tensor, &none, false, l->b_vector)) &&
           tarn__grad_acc_close(b, 1, &acc);
}

/* ga = g @ bᵀ, gb = aᵀ @ g. */
static bool matmul_backward(const tarn__backward *b)
{
    const layout *l = b->params;
    tarn_tensor *g = as_matrices(b->grads[0], l, l->a_vector, l->b_vector);
    if (!g)
        return false;
    if (l->batch_rank > 0 && tarn__input_spec(b, 1)->shape.rank <= 2)
        return flat_backward(b, l, g);
    return (!tarn__needs_grad(b, 0) ||
            gradient_matmul(b, 0, l, g, tarn__transposed(as_matrices(b->saved[1], l, false, l->b_vector)))) &&
           (!tarn__needs_grad(b, 1) ||
            gradient_matmul(b, 1, l, tarn__transposed(as_matrices(b->saved[0], l, l->a_vector, false)), g));
}

/* ---- matmul ------------------------------------------------------------------------------------------------------ */

/* One GEMM where the second operand has no batches and the first can be flattened, else a batched GEMM. */
static bool matmul_into(tarn_tensor *a, tarn_tensor *b, const layout *l, tarn_tensor *y)
{
    if (a->view.rank == 2 && b->view.rank == 2)
        return tarn__gemm("matmul", a, b, NULL, 0, y);
    tarn_tensor *left = as_matrices(a, l, l->a_vector, false), *right = as_matrices(b, l, false, l->b_vector);
    tarn_tensor *to = as_matrices(y, l, l->a_vector, l->b_vector);
    if (!left || !right || !to)
        return false;
    if (l->batch_rank > 0 && b->view.rank <= 2 && flatten(left)) {
        /* y is contiguous, so it always flattens where the first operand did. */
        flatten(to);
        drop_batches(right);
    }
    return tarn__gemm("matmul", left, right, NULL, 0, to);
}

/* a […, M, K] @ b […, K, N] -> […, M, N], batches broadcast; vectors act as a row or column. An operand is saved
 * only for the gradient of the other. FLOPs: 2 · batches · M · N · K. */
tarn_tensor *tarn_matmul(tarn_tensor *a, tarn_tensor *b)
{
    tarn_tensor *operand[] = {a, b};
    layout l;
    tarn_shape shape;
    if (!tarn__unify_operands("matmul", operand, roles, 2) || !plan(operand[0], operand[1], &l, &shape) ||
        !tarn__check_dtype("matmul", operand[0], TARN__NUMBERS, "a"))
        return NULL;
    a = operand[0], b = operand[1];
    tarn_tensor *y = tarn__tensor_new("matmul", shape, a->view.dtype, tarn__device(a));
    if (!y || !matmul_into(a, b, &l, y))
        return NULL;
    tarn_tensor *saved[] = {tarn_needs_grad(b) ? a : NULL, tarn_needs_grad(a) ? b : NULL};
    return tarn__finish("matmul", matmul_backward, l, TARN__INPUTS(a, b), TARN__OUTPUTS(y),
                        TARN__SAVED(saved[0], saved[1]))
               ? y
               : NULL;
}

bool tarn__apply_matmul(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_matmul(v->in[0], v->in[1])) != NULL;
}

/* ---- linear ------------------------------------------------------------------------------------------------------ */

/* x […, n] as (rows, n): a view where the strides allow it. */
tarn_tensor *tarn__rows_of(const char *function, tarn_tensor *x)
{
    layout l = {.batch_rank = x->view.rank > 2 ? x->view.rank - 2 : 0};
    memcpy(l.batch, x->view.shape, sizeof(l.batch));
    return flat(function, as_matrices(x, &l, x->view.rank == 1, false));
}

/* Weight and bias gradient in one kernel. The bias gradient is added to an existing one afterwards. */
static bool both_backward(const tarn__backward *b, int bias, tarn_tensor *g, tarn_tensor *x, const tarn__grad_acc *acc)
{
    tarn_tensor *sums = tarn__grad_buffer(b, bias, tarn__grad_dtype(b, bias)), *left = tarn__transposed(g);
    tarn__matmul params = {
        .alpha = 1, .beta = acc->beta, .tf32 = tarn__tf32(), .batch_invariant = tarn__batch_invariant()};
    return sums && left &&
           tarn__kernel_call(TARN__K_matmul_bias_grad, b->function, params, TARN__IN(left, x),
                             TARN__OUT(acc->tensor, sums), .reads_output = acc->beta != 0) &&
           tarn__accumulate_grad(b, bias, sums);
}

/* With [out, in] weights the fused kernel reads g once for both gradients; with [in, out] the bias gradient is a
 * sum. */
bool tarn__weight_backward(const tarn__backward *b, int weight, int bias, tarn_tensor *g, tarn_tensor *x, bool in_out)
{
    bool with_bias = bias < b->node->inputs && tarn__needs_grad(b, bias),
         apart = in_out || !tarn__needs_grad(b, weight);
    tarn__grad_acc acc;
    if (with_bias && apart && !tarn__accumulate_grad(b, bias, g))
        return false;
    if (!tarn__needs_grad(b, weight))
        return true;
    if (!x || !tarn__grad_acc_open(b, weight, &acc))
        return false;
    bool good = in_out                ? tarn__gemm(b->function, tarn__transposed(x), g, NULL, acc.beta, acc.tensor)
                : with_bias && !apart ? both_backward(b, bias, g, x, &acc)
                                      : tarn__gemm(b->function, tarn__transposed(g), x, NULL, acc.beta, acc.tensor);
    return good && tarn__grad_acc_close(b, weight, &acc);
}

/* Params of a linear layer's record. */
typedef struct linear_params {
    bool in_out; /* [in, out] */
} linear_params;

tarn_tensor *tarn__transposed_if(tarn_tensor *weight, bool transpose)
{
    return transpose ? tarn__transposed(weight) : weight;
}

/* gx = g @ weight, gweight = gᵀ @ x, gbias = g summed over rows. */
static bool linear_backward(const tarn__backward *b)
{
    bool in_out = ((const linear_params *)b->params)->in_out;
    tarn_tensor *x = b->saved[0], *weight = b->saved[1];
    tarn_tensor *g = tarn__rows_of("linear_apply", b->grads[0]); /* (rows, out) */
    tarn__grad_acc acc;
    if (!g)
        return false;
    if (tarn__needs_grad(b, 0) && !(tarn__grad_acc_open(b, 0, &acc) &&
                                    tarn__gemm("linear_apply", g, tarn__transposed_if(weight, in_out), NULL, acc.beta,
                                               tarn__rows_of("linear_apply", acc.tensor)) &&
                                    tarn__grad_acc_close(b, 0, &acc)))
        return false;
    return tarn__weight_backward(b, 1, 2, g, tarn__needs_grad(b, 1) ? tarn__rows_of("linear_apply", x) : NULL, in_out);
}

/* x […, in], weight [out, in] (or [in, out]), bias [out] or NULL. */
static bool check_linear(tarn_tensor **operand, bool has_bias, bool in_out)
{
    static const char *const linear_roles[] = {"x", "weight", "bias"};
    if (!tarn__unify_operands("linear_apply", operand, linear_roles, has_bias ? 3 : 2) ||
        !tarn__check_dtype("linear_apply", operand[0], TARN__NUMBERS, "x"))
        return false;
    const tarn_tensor *x = operand[0], *weight = operand[1], *bias = operand[2];
    int out = in_out, in = !in_out; /* axes of the weight */
    if (x->view.rank < 1 || weight->view.rank != 2 || x->view.shape[x->view.rank - 1] != weight->view.shape[in])
        return tarn__raise(TARN_ERROR_SHAPE,
                           "linear_apply: x %s and weight %s do not fit: weight is %s, and x ends in `in`",
                           TARN__SHAPE_STRING(x), TARN__SHAPE_STRING(weight), in_out ? "[in, out]" : "[out, in]");
    if (has_bias && (bias->view.rank != 1 || bias->view.shape[0] != weight->view.shape[out]))
        return tarn__raise(TARN_ERROR_SHAPE, "linear_apply: bias %s and weight %s do not fit: bias is [%lld]",
                           TARN__SHAPE_STRING(bias), TARN__SHAPE_STRING(weight), (long long)weight->view.shape[out]);
    return true;
}

/* y […, out] = x @ weightᵀ + bias. Narrow weights (quantized, 16-bit with f32 x) take their own path. */
static tarn_tensor *apply_linear(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, bool in_out)
{
    tarn_tensor *operand[] = {x, weight, bias};
    if (!in_out && tarn__is_narrow(x, weight))
        return tarn__linear_narrow(x, weight, bias);
    if (!check_linear(operand, bias != NULL, in_out))
        return NULL;
    x = operand[0], weight = operand[1], bias = operand[2];
    tarn_shape shape = tarn__shape_of(x);
    shape.size[shape.rank - 1] = weight->view.shape[in_out];
    tarn_tensor *y = tarn__tensor_new("linear_apply", shape, x->view.dtype, tarn__device(x));
    if (!y || !tarn__gemm("linear_apply", tarn__rows_of("linear_apply", x), tarn__transposed_if(weight, !in_out), bias,
                          0, tarn__rows_of("linear_apply", y)))
        return NULL;
    linear_params params = {in_out};
    tarn_tensor *saved[] = {tarn_needs_grad(weight) ? x : NULL, tarn_needs_grad(x) ? weight : NULL};
    return tarn__finish("linear_apply", linear_backward, params, TARN__INPUTS(x, weight, bias), TARN__OUTPUTS(y),
                        TARN__SAVED(saved[0], saved[1]))
               ? y
               : NULL;
}

tarn_tensor *tarn_linear_apply(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias)
{
    return apply_linear(x, weight, bias, false);
}

tarn_tensor *tarn__linear_in_out(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias)
{
    return apply_linear(x, weight, bias, true);
}

bool tarn__apply_linear(const tarn__invocation *v, tarn_tensor **out)
{
    return (out[0] = tarn_linear_apply(v->in[0], v->in[1], v->in[2])) != NULL;
}
