/* cudnn_attention_graph.c: attention and its gradient as graphs that cuDNN fuses into one kernel, or a few.
 *
 *   forward   S = q · kᵀ · scale, masked;  M = max S;  E = exp(S - M);  L = sum E;  lse = M + log L;  y = (E / L) · v
 *   backward  delta = Σ g · y;  P = exp(S - lse), masked;  gv = Pᵀ · g
 *             dS = P · (g · vᵀ - delta) · scale;  gk = dSᵀ · q;  gq = dS · k
 *
 * Only the caller's tensors are in memory, and one more: gq = dS · k is a GEMM of its own, whose order of sums is
 * fixed, so dS is in the workspace: (B, H, T, S) of a chunk. The graph that accumulates gq while it walks the keys
 * needs no such space, but adds in the order in which its blocks arrive. */
#include <string.h>

#include "backends/cuda/attention/cudnn_attention.h"

#define MAX_OPERATIONS 32
#define FIRST_VIRTUAL_ID 32 /* ids of virtual tensors */

/* A graph under construction. */
typedef struct builder {
    tarn__cudnn_graph *graph;
    const tarn__cudnn_attention *a;
    int64_t heads;                  /* of q in a chunk */
    void *tensor[FIRST_VIRTUAL_ID]; /* by id */
    void *operations[MAX_OPERATIONS];
    int count, virtuals;
} builder;

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* A 16-bit tensor, with its last two axes exchanged if it is the right operand of a product over D. */
static tarn__cudnn_tensor tensor_of(const builder *b, int operand, bool is_transposed)
{
    const tarn__cudnn_attention *a = b->a;
    const int64_t *stride = a->stride[operand], rows = tarn__attention_is_kv(operand) ? a->keys : a->rows;
    tarn__cudnn_tensor t = {.id = TARN__ATTENTION_ID(operand), .dtype = (tarn_dtype)a->dtype, .rank = 4};
    t.shape[0] = a->chunk_batches, t.stride[0] = stride[0];
    t.shape[1] = tarn__attention_is_kv(operand) ? a->chunk_kv_heads : b->heads, t.stride[1] = stride[1];
    t.shape[is_transposed ? 3 : 2] = rows, t.stride[is_transposed ? 3 : 2] = stride[2];
    t.shape[is_transposed ? 2 : 3] = a->head_dim, t.stride[is_transposed ? 2 : 3] = 1;
    return t;
}

static void add_tensor(builder *b, int operand, bool is_transposed)
{
    tarn__cudnn_tensor t = tensor_of(b, operand, is_transposed);
    b->tensor[operand] = tarn__cudnn_add_tensor(b->graph, &t);
}

/* A contiguous tensor (B, H, rows, columns). */
static tarn__cudnn_tensor contiguous(const builder *b, tarn_dtype dtype, int64_t rows, int64_t columns)
{
    return (tarn__cudnn_tensor){.dtype = dtype,
                                .rank = 4,
                                .shape = {b->a->chunk_batches, b->heads, rows, columns},
                                .stride = {b->heads * rows * columns, rows * columns, columns, 1}};
}

/* One f32 value per row, in memory; a chunk may start at any row, hence the alignment of one element. */
static void add_rows(builder *b, int operand)
{
    tarn__cudnn_tensor t = contiguous(b, TARN_F32, b->a->rows, 1);
    t.id = TARN__ATTENTION_ID(operand);
    t.alignment = sizeof(float);
    b->tensor[operand] = tarn__cudnn_add_tensor(b->graph, &t);
}

/* A scalar operand in host memory, read at each execution. */
static void add_scalar(builder *b, int operand)
{
    tarn__cudnn_tensor t = {.id = TARN__ATTENTION_ID(operand),
                            .dtype = TARN_F32,
                            .rank = 4,
                            .shape = {1, 1, 1, 1},
                            .stride = {1, 1, 1, 1},
                            .is_by_value = true};
    b->tensor[operand] = tarn__cudnn_add_tensor(b->graph, &t);
}

/* A tensor between two operations. */
static void *add_virtual(builder *b, tarn__cudnn_tensor t)
{
    t.id = FIRST_VIRTUAL_ID + b->virtuals++;
    t.is_virtual = true;
    return tarn__cudnn_add_tensor(b->graph, &t);
}

static void *scores_like(builder *b, tarn_dtype dtype)
{
    return add_virtual(b, contiguous(b, dtype, b->a->rows, b->a->keys));
}

static void *row_values(builder *b)
{
    return add_virtual(b, contiguous(b, TARN_F32, b->a->rows, 1));
}

/* ---- operations; each returns its result ------------------------------------------------------------------------- */

static void *done(builder *b, void *operation, void *result)
{
    if (b->count < MAX_OPERATIONS)
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
        .mode = TARN__CUDNN_POINTWISE_GEN_INDEX, .a = x, .y = scores_like(b, TARN_I32), .axis = axis};
    return done(b, tarn__cudnn_add_pointwise(b->graph, &p), p.y);
}

/* Causal mask: keys after the row's own become -infinity. */
static void *mask(builder *b, void *scores)
{
    if (!b->a->causal)
        return scores;
    void *row = index_along(b, scores, 2), *key = index_along(b, scores, 3);
    void *is_visible = pointwise(b, TARN__CUDNN_POINTWISE_CMP_GE, row, key, scores_like(b, TARN_BOOL));
    tarn__cudnn_pointwise p = {.mode = TARN__CUDNN_POINTWISE_BINARY_SELECT,
                               .a = scores,
                               .b = b->tensor[TARN__ATTENTION_MASKED],
                               .predicate = is_visible,
                               .y = scores_like(b, TARN_F32)};
    return done(b, tarn__cudnn_add_pointwise(b->graph, &p), p.y);
}

/* Transposes, and rounds to the operands' dtype. */
static void *transpose(builder *b, void *x)
{
    const tarn__cudnn_attention *a = b->a;
    tarn__cudnn_tensor t = contiguous(b, (tarn_dtype)a->dtype, a->keys, a->rows);
    t.stride[2] = 1, t.stride[3] = a->keys;
    void *y = add_virtual(b, t);
    return done(b, tarn__cudnn_add_reshape(b->graph, x, y), y);
}

static void *scores(builder *b)
{
    void *products = multiply(b, b->tensor[TARN__ATTENTION_Q], b->tensor[TARN__ATTENTION_K], scores_like(b, TARN_F32));
    return pointwise(b, TARN__CUDNN_POINTWISE_MUL, products, b->tensor[TARN__ATTENTION_SCALE],
                     scores_like(b, TARN_F32));
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* The pattern that cuDNN recognizes as flash attention, with the LSE as second output. */
static void describe_forward(builder *b)
{
    void **t = b->tensor, *s = mask(b, scores(b));
    void *row_max = reduce(b, TARN__CUDNN_REDUCTION_MAX, s, row_values(b));
    void *shifted = pointwise(b, TARN__CUDNN_POINTWISE_SUB, s, row_max, scores_like(b, TARN_F32));
    void *exps = pointwise(b, TARN__CUDNN_POINTWISE_EXP, shifted, NULL, scores_like(b, TARN_F32));
    void *sum = reduce(b, TARN__CUDNN_REDUCTION_SUM, exps, row_values(b));
    void *log_of_sum = pointwise(b, TARN__CUDNN_POINTWISE_LOG, sum, NULL, row_values(b));
    pointwise(b, TARN__CUDNN_POINTWISE_ADD, row_max, log_of_sum, t[TARN__ATTENTION_LSE]);
    void *p = pointwise(b, TARN__CUDNN_POINTWISE_DIV, exps, sum, scores_like(b, (tarn_dtype)b->a->dtype));
    multiply(b, p, t[TARN__ATTENTION_V], t[TARN__ATTENTION_Y]);
}

/* A product for gk or gv. With grouped-query attention each head of q computes its own, rounded to 16 bits as cuDNN's
 * kernels write it; then the group is summed. */
static void multiply_for_kv(builder *b, void *x, void *with, void *to)
{
    const tarn__cudnn_attention *a = b->a;
    if (b->heads == a->chunk_kv_heads) {
        multiply(b, x, with, to);
        return;
    }
    void *per_head = multiply(b, x, with, add_virtual(b, contiguous(b, (tarn_dtype)a->dtype, a->keys, a->head_dim)));
    reduce(b, TARN__CUDNN_REDUCTION_SUM, per_head, to);
}

/* delta reaches its tensor through a multiplication by one: in cuDNN's own graphs the factor is dropout's scale. */
static void describe_backward(builder *b)
{
    const tarn__cudnn_attention *a = b->a;
    void **t = b->tensor;
    void *gy = pointwise(b, TARN__CUDNN_POINTWISE_MUL, t[TARN__ATTENTION_G], t[TARN__ATTENTION_Y],
                         add_virtual(b, contiguous(b, TARN_F32, a->rows, a->head_dim)));
    void *delta = reduce(b, TARN__CUDNN_REDUCTION_SUM, gy, row_values(b));
    delta = pointwise(b, TARN__CUDNN_POINTWISE_MUL, delta, t[TARN__ATTENTION_ONE], t[TARN__ATTENTION_DELTA]);
    void *shifted =
        pointwise(b, TARN__CUDNN_POINTWISE_SUB, scores(b), t[TARN__ATTENTION_LSE], scores_like(b, TARN_F32));
    void *p = pointwise(b, TARN__CUDNN_POINTWISE_EXP, mask(b, shifted), NULL, scores_like(b, TARN_F32));
    multiply_for_kv(b, transpose(b, p), t[TARN__ATTENTION_G], t[TARN__ATTENTION_GV]);
    void *dp = multiply(b, t[TARN__ATTENTION_G], t[TARN__ATTENTION_V], scores_like(b, TARN_F32));
    dp = pointwise(b, TARN__CUDNN_POINTWISE_SUB, dp, delta, scores_like(b, TARN_F32));
    void *ds = pointwise(b, TARN__CUDNN_POINTWISE_MUL, dp, p, scores_like(b, TARN_F32));
    ds = pointwise(b, TARN__CUDNN_POINTWISE_MUL, ds, t[TARN__ATTENTION_SCALE], scores_like(b, TARN_F32));
    multiply_for_kv(b, transpose(b, ds), t[TARN__ATTENTION_Q], t[TARN__ATTENTION_GK]);
    void *keys = add_virtual(b, tensor_of(b, TARN__ATTENTION_K, false));
    done(b, tarn__cudnn_add_reshape(b->graph, t[TARN__ATTENTION_K], keys), keys);
    multiply(b, ds, keys, t[TARN__ATTENTION_GQ]);
}

/* K, and in backward V, are transposed: right operands of products over D. */
bool tarn__cudnn_attention_describe(tarn__cudnn_graph *graph, void *handle, const tarn__cudnn_attention *a)
{
    builder b = {.graph = graph, .a = a, .heads = a->heads / a->kv_heads * a->chunk_kv_heads};
    int last = a->is_backward ? TARN__ATTENTION_GV : TARN__ATTENTION_Y;
    for (int i = 0; i <= last; i++)
        add_tensor(&b, i, i == TARN__ATTENTION_K || (a->is_backward && i == TARN__ATTENTION_V));
    add_rows(&b, TARN__ATTENTION_LSE);
    add_scalar(&b, TARN__ATTENTION_SCALE);
    if (a->causal)
        add_scalar(&b, TARN__ATTENTION_MASKED);
    if (a->is_backward) {
        add_rows(&b, TARN__ATTENTION_DELTA);
        add_scalar(&b, TARN__ATTENTION_ONE);
        describe_backward(&b);
    } else {
        describe_forward(&b);
    }
    return tarn__cudnn_finalize_graph(graph, handle, b.operations, b.count);
}
