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
