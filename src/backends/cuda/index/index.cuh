/* index.cuh: what reading and adding at indices share. */
#ifndef TARN__CUDA_INDEX_CUH
#define TARN__CUDA_INDEX_CUH

#include "backends/cuda/common/lines.cuh"

/* scatter.cu */
void tarn__cuda_run_scatter_add(const tarn__call *call);
void tarn__cuda_run_index_add(const tarn__call *call);
size_t tarn__cuda_scratch_scatter_add(const tarn__call *call);
size_t tarn__cuda_scratch_index_add(const tarn__call *call);

#endif
