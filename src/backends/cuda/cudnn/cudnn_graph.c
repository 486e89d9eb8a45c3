/* cudnn_graph.c: descriptors of tensors and operations, and the graph they form. Operations compute in f32, whatever
 * their tensors' dtypes. */
#include "backends/cuda/cudnn/cudnn.h"

#include <string.h>

int tarn__cudnn_dtype(tarn_dtype dtype)
{
    switch (dtype) {
    case TARN_BF16: return TARN__CUDNN_BF16;
    case TARN_F16: return TARN__CUDNN_F16;
    case TARN_I32: return TARN__CUDNN_I32;
    case TARN_BOOL: return TARN__CUDNN_BOOL;
    default: return TARN__CUDNN_F32;
    }
}

/* The tensor as a view of `memory`, borrowed. */
tarn__view tarn__cudnn_view(const tarn__cudnn_tensor *tensor, void *memory)
{
    tarn__view v = {.memory = memory, .dtype = tensor->dtype, .rank = (int)tensor->rank};
    memcpy(v.shape, tensor->shape, sizeof(v.shape));
    memcpy(v.stride, tensor->stride, sizeof(v.stride));
    return v;
}

/* The graph owns the descriptor. NULL once the graph has failed, or is full. */
void *tarn__cudnn_create(tarn__cudnn_graph *graph, int kind)
{
    void *made = NULL;
    if (graph->status == 0 && graph->count == TARN__CUDNN_MAX_DESCRIPTORS)
        graph->status = -1;
    if (graph->status == 0)
        graph->status = tarn__cudnn_open()->create_descriptor(kind, &made);
    if (graph->status != 0)
        return NULL;
    graph->descriptors[graph->count++] = made;
    return made;
}

/* Values are copied by cuDNN. */
void tarn__cudnn_set(tarn__cudnn_graph *graph, void *descriptor, int name, int type, int64_t count, const void *values)
{
    if (graph->status == 0)
        graph->status = tarn__cudnn_open()->set(descriptor, name, type, count, values);
}

void *tarn__cudnn_finalize(tarn__cudnn_graph *graph, void *descriptor)
{
    if (graph->status == 0)
        graph->status = tarn__cudnn_open()->finalize(descriptor);
    return graph->status == 0 ? descriptor : NULL;
}

/* Strides are explicit: any layout, also transposed. */
void *tarn__cudnn_add_tensor(tarn__cudnn_graph *graph, const tarn__cudnn_tensor *tensor)
{
    void *made = tarn__cudnn_create(graph, TARN__CUDNN_TENSOR);
    int dtype = tarn__cudnn_dtype(tensor->dtype);
    int64_t alignment = tensor->alignment ? tensor->alignment : TARN__CUDNN_ALIGNMENT;
    tarn__cudnn_set(graph, made, TARN__CUDNN_TENSOR_DTYPE, TARN__CUDNN_IS_DTYPE, 1, &dtype);
    tarn__cudnn_set(graph, made, TARN__CUDNN_TENSOR_SHAPE, TARN__CUDNN_IS_INT64, tensor->rank, tensor->shape);
    tarn__cudnn_set(graph, made, TARN__CUDNN_TENSOR_STRIDE, TARN__CUDNN_IS_INT64, tensor->rank, tensor->stride);
    tarn__cudnn_set(graph, made, TARN__CUDNN_TENSOR_ID, TARN__CUDNN_IS_INT64, 1, &tensor->id);
    tarn__cudnn_set(graph, made, TARN__CUDNN_TENSOR_ALIGNMENT, TARN__CUDNN_IS_INT64, 1, &alignment);
    if (tensor->is_virtual)
        tarn__cudnn_set(graph, made, TARN__CUDNN_TENSOR_IS_VIRTUAL, TARN__CUDNN_IS_BOOL, 1, &tensor->is_virtual);
    if (tensor->is_by_value)
        tarn__cudnn_set(graph, made, TARN__CUDNN_TENSOR_IS_BY_VALUE, TARN__CUDNN_IS_BOOL, 1, &tensor->is_by_value);
    return tarn__cudnn_finalize(graph, made);
}

/* False if any step before has failed: errors are checked here once. */
bool tarn__cudnn_finalize_graph(tarn__cudnn_graph *graph, void *handle, void *const *operations, int count)
{
    void *finalized = tarn__cudnn_create(graph, TARN__CUDNN_GRAPH);
    tarn__cudnn_set(graph, finalized, TARN__CUDNN_GRAPH_OPERATIONS, TARN__CUDNN_IS_DESCRIPTOR, count, operations);
    tarn__cudnn_set(graph, finalized, TARN__CUDNN_GRAPH_HANDLE, TARN__CUDNN_IS_HANDLE, 1, &handle);
    graph->finalized = tarn__cudnn_finalize(graph, finalized);
    return graph->finalized != NULL;
}

/* In reverse order: later descriptors refer to earlier ones. */
void tarn__cudnn_free_graph(tarn__cudnn_graph *graph)
{
    while (graph->count > 0)
        tarn__cudnn_open()->free(graph->descriptors[--graph->count]);
    graph->finalized = NULL;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* Sets a descriptor attribute; NULL leaves it unset. */
static void set_descriptor(tarn__cudnn_graph *graph, void *operation, int name, void *value)
{
    if (value)
        tarn__cudnn_set(graph, operation, name, TARN__CUDNN_IS_DESCRIPTOR, 1, &value);
}

/* Comparisons compute in bool, all others in f32. */
void *tarn__cudnn_add_pointwise(tarn__cudnn_graph *graph, const tarn__cudnn_pointwise *p)
{
    void *desc = tarn__cudnn_create(graph, TARN__CUDNN_POINTWISE);
    int dtype = p->mode == TARN__CUDNN_POINTWISE_CMP_GE ? TARN__CUDNN_BOOL : TARN__CUDNN_F32;
    tarn__cudnn_set(graph, desc, TARN__CUDNN_POINTWISE_MODE, TARN__CUDNN_IS_POINTWISE_MODE, 1, &p->mode);
    tarn__cudnn_set(graph, desc, TARN__CUDNN_POINTWISE_DTYPE, TARN__CUDNN_IS_DTYPE, 1, &dtype);
    if (p->mode == TARN__CUDNN_POINTWISE_GEN_INDEX)
        tarn__cudnn_set(graph, desc, TARN__CUDNN_POINTWISE_AXIS, TARN__CUDNN_IS_INT64, 1, &p->axis);
    tarn__cudnn_finalize(graph, desc);
    void *operation = tarn__cudnn_create(graph, TARN__CUDNN_OPERATION_POINTWISE);
    set_descriptor(graph, operation, TARN__CUDNN_OPERATION_POINTWISE_DESC, desc);
    set_descriptor(graph, operation, TARN__CUDNN_OPERATION_POINTWISE_A, p->a);
    set_descriptor(graph, operation, TARN__CUDNN_OPERATION_POINTWISE_B, p->b);
    set_descriptor(graph, operation, TARN__CUDNN_OPERATION_POINTWISE_PREDICATE, p->predicate);
    set_descriptor(graph, operation, TARN__CUDNN_OPERATION_POINTWISE_Y, p->y);
    return tarn__cudnn_finalize(graph, operation);
}

/* c = a · b over the last two axes, accumulated in f32. */
void *tarn__cudnn_add_matmul(tarn__cudnn_graph *graph, void *a, void *b, void *c)
{
    void *desc = tarn__cudnn_create(graph, TARN__CUDNN_MATMUL);
    int dtype = TARN__CUDNN_F32;
    tarn__cudnn_set(graph, desc, TARN__CUDNN_MATMUL_DTYPE, TARN__CUDNN_IS_DTYPE, 1, &dtype);
    tarn__cudnn_finalize(graph, desc);
    void *operation = tarn__cudnn_create(graph, TARN__CUDNN_OPERATION_MATMUL);
    set_descriptor(graph, operation, TARN__CUDNN_OPERATION_MATMUL_A, a);
    set_descriptor(graph, operation, TARN__CUDNN_OPERATION_MATMUL_B, b);
    set_descriptor(graph, operation, TARN__CUDNN_OPERATION_MATMUL_C, c);
    set_descriptor(graph, operation, TARN__CUDNN_OPERATION_MATMUL_DESC, desc);
    return tarn__cudnn_finalize(graph, operation);
}

/* Axes along which y is smaller than x are reduced. */
void *tarn__cudnn_add_reduction(tarn__cudnn_graph *graph, int mode, void *x, void *y)
{
    void *desc = tarn__cudnn_create(graph, TARN__CUDNN_REDUCTION);
    int dtype = TARN__CUDNN_F32;
    tarn__cudnn_set(graph, desc, TARN__CUDNN_REDUCTION_MODE, TARN__CUDNN_IS_REDUCTION_MODE, 1, &mode);
    tarn__cudnn_set(graph, desc, TARN__CUDNN_REDUCTION_DTYPE, TARN__CUDNN_IS_DTYPE, 1, &dtype);
    tarn__cudnn_finalize(graph, desc);
    void *operation = tarn__cudnn_create(graph, TARN__CUDNN_OPERATION_REDUCTION);
    set_descriptor(graph, operation, TARN__CUDNN_OPERATION_REDUCTION_X, x);
    set_descriptor(graph, operation, TARN__CUDNN_OPERATION_REDUCTION_Y, y);
    set_descriptor(graph, operation, TARN__CUDNN_OPERATION_REDUCTION_DESC, desc);
    return tarn__cudnn_finalize(graph, operation);
}

/* Also transposes: y's strides decide. */
void *tarn__cudnn_add_reshape(tarn__cudnn_graph *graph, void *x, void *y)
{
    void *operation = tarn__cudnn_create(graph, TARN__CUDNN_RESHAPE);
    set_descriptor(graph, operation, TARN__CUDNN_RESHAPE_X, x);
    set_descriptor(graph, operation, TARN__CUDNN_RESHAPE_Y, y);
    return tarn__cudnn_finalize(graph, operation);
}
