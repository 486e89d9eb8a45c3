#include "backends/cuda/cudnn/cudnn.h"

static void set_descriptor(tarn__cudnn_graph *graph, void *operation, int name, void *value)
{
    if (value)
        tarn__cudnn_set(graph, operation, name, TARN__CUDNN_IS_DESCRIPTOR, 1, &value);
}

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

void *tarn__cudnn_add_reshape(tarn__cudnn_graph *graph, void *x, void *y)
{
    void *operation = tarn__cudnn_create(graph, TARN__CUDNN_RESHAPE);
    set_descriptor(graph, operation, TARN__CUDNN_RESHAPE_X, x);
    set_descriptor(graph, operation, TARN__CUDNN_RESHAPE_Y, y);
    return tarn__cudnn_finalize(graph, operation);
}
