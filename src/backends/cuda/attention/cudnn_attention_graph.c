/* cudnn_attention_graph.c: attention and its gradient as graphs that cuDNN knows and makes one kernel of, or a few.
 *
 *   forward   S = q · kᵀ · scale, masked;  M = max S;  E = exp(S - M);  L = sum E;  logarithm = M + log L;  y = (E / L)
 * · v backward  sums = Σ g · y;  P = exp(S - logarithm), masked;  gv = Pᵀ · g dS = P · (g · vᵀ - sums) · scale;  gk =
 * dSᵀ · q;  gq = dS · k
 *
 * Of all these only what the caller names is in memory; but gq = dS · k is a product of its own, whose order of sums is
 * fixed, and dS lies in the workspace between: (B, H, T, S) of a piece. (The graph that adds to gq while it goes
 * through the keys needs no such place, and adds in whatever order its blocks come.) */
#include <string.h>

#include "backends/cuda/attention/cudnn_attention.h"

#define MOST_OPERATIONS 32
#define FIRST_BETWEEN 32 /* ids of what lies between operations */

typedef struct builder {
    tarn__cudnn_graph *graph;
    const tarn__cudnn_attention *a;
    int64_t heads;               /* of q in a piece */
    void *tensor[FIRST_BETWEEN]; /* by their ids */
    void *operations[MOST_OPERATIONS];
    int count, between;
} builder;

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static bool is_of_keys(int which)
{
    return which == TARN__ATTENTION_K || which == TARN__ATTENTION_V || which == TARN__ATTENTION_GK ||
           which == TARN__ATTENTION_GV;
}

/* One of the tensors of 16 bits, with its last two axes exchanged where it is the right side of a product over D. */
static tarn__cudnn_tensor whole(const builder *b, int which, bool is_turned)
{
    const tarn__cudnn_attention *a = b->a;
    const int64_t *stride = a->stride[which], rows = is_of_keys(which) ? a->keys : a->rows;
    tarn__cudnn_tensor t = {.id = TARN__ATTENTION_ID(which), .dtype = (tarn_dtype)a->dtype, .rank = 4};
    t.shape[0] = a->piece_batches, t.stride[0] = stride[0];
    t.shape[1] = is_of_keys(which) ? a->piece_kv_heads : b->heads, t.stride[1] = stride[1];
    t.shape[is_turned ? 3 : 2] = rows, t.stride[is_turned ? 3 : 2] = stride[2];
    t.shape[is_turned ? 2 : 3] = a->depth, t.stride[is_turned ? 2 : 3] = 1;
    return t;
}

static void add_whole(builder *b, int which, bool is_turned)
{
    tarn__cudnn_tensor t = whole(b, which, is_turned);
    b->tensor[which] = tarn__cudnn_add_tensor(b->graph, &t);
}

/* A dense tensor (B, H, rows, columns). */
static tarn__cudnn_tensor dense(const builder *b, tarn_dtype dtype, int64_t rows, int64_t columns)
{
    return (tarn__cudnn_tensor){.dtype = dtype,
                                .rank = 4,
                                .shape = {b->a->piece_batches, b->heads, rows, columns},
                                .stride = {b->heads * rows * columns, rows * columns, columns, 1}};
}

/* One number for each row, f32, in memory; a piece may begin at any. */
static void add_rows(builder *b, int which)
{
    tarn__cudnn_tensor t = dense(b, TARN_F32, b->a->rows, 1);
    t.id = TARN__ATTENTION_ID(which);
    t.alignment = sizeof(float);
    b->tensor[which] = tarn__cudnn_add_tensor(b->graph, &t);
}

static void add_number(builder *b, int which)
{
    tarn__cudnn_tensor t = {.id = TARN__ATTENTION_ID(which),
                            .dtype = TARN_F32,
                            .rank = 4,
                            .shape = {1, 1, 1, 1},
                            .stride = {1, 1, 1, 1},
                            .is_by_value = true};
    b->tensor[which] = tarn__cudnn_add_tensor(b->graph, &t);
}

/* What lies between two operations. */
static void *add_between(builder *b, tarn__cudnn_tensor t)
{
    t.id = FIRST_BETWEEN + b->between++;
    t.is_virtual = true;
    return tarn__cudnn_add_tensor(b->graph, &t);
}

static void *weights(builder *b, tarn_dtype dtype)
{
    return add_between(b, dense(b, dtype, b->a->rows, b->a->keys));
}

static void *numbers_of_rows(builder *b)
{
    return add_between(b, dense(b, TARN_F32, b->a->rows, 1));
}

/* ---- operations, each giving its result -------------------------------------------------------------------------- */

static void *done(builder *b, void *operation, void *result)
{
    if (b->count < MOST_OPERATIONS)
        b->operations[b->count++] = operation;
    return result;
}

static void *pointwise(builder *b, int mode, void *x, void *with, void *y)
{
    return done(
        b, tarn__cudnn_add_pointwise(b->graph, &(tarn__cudnn_pointwise){.mode = mode, .a = x, .b = with, .y = y}), y);
}

static void *multiply(builder *b, void *x, void *with, void *y)
{
    return done(b, tarn__cudnn_add_matmul(b->graph, x, with, y), y);
}

static void *reduce(builder *b, int mode, void *x, void *y)
{
    return done(b, tarn__cudnn_add_reduction(b->graph, mode, x, y), y);
}

static void *index_along(builder *b, void *x, int64_t axis)
{
    tarn__cudnn_pointwise p = {
        .mode = TARN__CUDNN_POINTWISE_GEN_INDEX, .a = x, .y = weights(b, TARN_I32), .axis = axis};
    return done(b, tarn__cudnn_add_pointwise(b->graph, &p), p.y);
}

/* Keys behind a row's own count as nothing. */
static void *mask(builder *b, void *scores)
{
    if (!b->a->causal)
        return scores;
    void *row = index_along(b, scores, 2), *key = index_along(b, scores, 3);
    void *is_seen = pointwise(b, TARN__CUDNN_POINTWISE_CMP_GE, row, key, weights(b, TARN_BOOL));
    tarn__cudnn_pointwise p = {.mode = TARN__CUDNN_POINTWISE_BINARY_SELECT,
                               .a = scores,
                               .b = b->tensor[TARN__ATTENTION_MASKED],
                               .which = is_seen,
                               .y = weights(b, TARN_F32)};
    return done(b, tarn__cudnn_add_pointwise(b->graph, &p), p.y);
}

/* Rows become columns; rounded to the operands' dtype on the way. */
static void *turn(builder *b, void *x)
{
    const tarn__cudnn_attention *a = b->a;
    tarn__cudnn_tensor t = dense(b, (tarn_dtype)a->dtype, a->keys, a->rows);
    t.stride[2] = 1, t.stride[3] = a->keys;
    void *y = add_between(b, t);
    return done(b, tarn__cudnn_add_reshape(b->graph, x, y), y);
}

static void *scores(builder *b)
{
    void *products = multiply(b, b->tensor[TARN__ATTENTION_Q], b->tensor[TARN__ATTENTION_K], weights(b, TARN_F32));
    return pointwise(b, TARN__CUDNN_POINTWISE_MUL, products, b->tensor[TARN__ATTENTION_SCALE], weights(b, TARN_F32));
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static void describe_forward(builder *b)
{
    void **t = b->tensor, *s = mask(b, scores(b));
    void *most = reduce(b, TARN__CUDNN_REDUCTION_MAX, s, numbers_of_rows(b));
    void *below = pointwise(b, TARN__CUDNN_POINTWISE_SUB, s, most, weights(b, TARN_F32));
    void *powers = pointwise(b, TARN__CUDNN_POINTWISE_EXP, below, NULL, weights(b, TARN_F32));
    void *sum = reduce(b, TARN__CUDNN_REDUCTION_SUM, powers, numbers_of_rows(b));
    void *logarithm = pointwise(b, TARN__CUDNN_POINTWISE_LOG, sum, NULL, numbers_of_rows(b));
    pointwise(b, TARN__CUDNN_POINTWISE_ADD, most, logarithm, t[TARN__ATTENTION_LSE]);
    void *shares = pointwise(b, TARN__CUDNN_POINTWISE_DIV, powers, sum, weights(b, (tarn_dtype)b->a->dtype));
    multiply(b, shares, t[TARN__ATTENTION_V], t[TARN__ATTENTION_Y]);
}

/* A product that belongs to keys. Where heads of q share them, each makes its own, rounded to 16 bits as cuDNN's
 * kernels write it; then these are summed. */
static void multiply_for_keys(builder *b, void *x, void *with, void *to)
{
    const tarn__cudnn_attention *a = b->a;
    if (b->heads == a->piece_kv_heads) {
        multiply(b, x, with, to);
        return;
    }
    void *of_heads = multiply(b, x, with, add_between(b, dense(b, (tarn_dtype)a->dtype, a->keys, a->depth)));
    reduce(b, TARN__CUDNN_REDUCTION_SUM, of_heads, to);
}

static void describe_backward(builder *b)
{
    const tarn__cudnn_attention *a = b->a;
    void **t = b->tensor;
    void *gy = pointwise(b, TARN__CUDNN_POINTWISE_MUL, t[TARN__ATTENTION_G], t[TARN__ATTENTION_Y],
                         add_between(b, dense(b, TARN_F32, a->rows, a->depth)));
    void *sums = reduce(b, TARN__CUDNN_REDUCTION_SUM, gy, numbers_of_rows(b));
    sums = pointwise(b, TARN__CUDNN_POINTWISE_MUL, sums, t[TARN__ATTENTION_ONE], t[TARN__ATTENTION_DELTA]);
    void *below = pointwise(b, TARN__CUDNN_POINTWISE_SUB, scores(b), t[TARN__ATTENTION_LSE], weights(b, TARN_F32));
    void *p = pointwise(b, TARN__CUDNN_POINTWISE_EXP, mask(b, below), NULL, weights(b, TARN_F32));
    multiply_for_keys(b, turn(b, p), t[TARN__ATTENTION_G], t[TARN__ATTENTION_GV]);
    void *pull = multiply(b, t[TARN__ATTENTION_G], t[TARN__ATTENTION_V], weights(b, TARN_F32));
    pull = pointwise(b, TARN__CUDNN_POINTWISE_SUB, pull, sums, weights(b, TARN_F32));
    void *slopes = pointwise(b, TARN__CUDNN_POINTWISE_MUL, pull, p, weights(b, TARN_F32));
    slopes = pointwise(b, TARN__CUDNN_POINTWISE_MUL, slopes, t[TARN__ATTENTION_SCALE], weights(b, TARN_F32));
    multiply_for_keys(b, turn(b, slopes), t[TARN__ATTENTION_Q], t[TARN__ATTENTION_GK]);
    void *keys = add_between(b, whole(b, TARN__ATTENTION_K, false));
    done(b, tarn__cudnn_add_reshape(b->graph, t[TARN__ATTENTION_K], keys), keys);
    multiply(b, slopes, keys, t[TARN__ATTENTION_GQ]);
}

bool tarn__cudnn_attention_describe(tarn__cudnn_graph *graph, void *handle, const tarn__cudnn_attention *a)
{
    builder b = {.graph = graph, .a = a, .heads = a->heads / a->kv_heads * a->piece_kv_heads};
    int last = a->is_backward ? TARN__ATTENTION_GV : TARN__ATTENTION_Y;
    for (int i = 0; i <= last; i++)
        add_whole(&b, i, i == TARN__ATTENTION_K || (a->is_backward && i == TARN__ATTENTION_V));
    add_rows(&b, TARN__ATTENTION_LSE);
    add_number(&b, TARN__ATTENTION_SCALE);
    if (a->causal)
        add_number(&b, TARN__ATTENTION_MASKED);
    if (a->is_backward) {
        add_rows(&b, TARN__ATTENTION_DELTA);
        add_number(&b, TARN__ATTENTION_ONE);
        describe_backward(&b);
    } else {
        describe_forward(&b);
    }
    return tarn__cudnn_finalize_graph(graph, handle, b.operations, b.count);
}
