/* index.cuh: what reading and adding at indices share. */
#ifndef TARN__INDEX_CUH
#define TARN__INDEX_CUH

#include "backends/cuda/lines.cuh"

/* index_add.cu */
void tarn__cuda_run_scatter_add(const tarn__call *call);
void tarn__cuda_run_index_add(const tarn__call *call);
size_t tarn__cuda_scratch_scatter_add(const tarn__call *call);
size_t tarn__cuda_scratch_index_add(const tarn__call *call);

/* A 1-D index of slices as an index of every element. */
static inline tarn__view repeated(const tarn__view *index, const tarn__view *like, int axis)
{
    tarn__view wide = *like;
    wide.memory = index->memory;
    wide.offset = index->offset;
    wide.dtype = index->dtype;
    for (int i = 0; i < like->rank; i++)
        wide.stride[i] = i == axis ? index->stride[0] : 0;
    return wide;
}

#endif
