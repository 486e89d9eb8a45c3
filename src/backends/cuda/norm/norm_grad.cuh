/* ---- arguments of the gradient kernels */
#ifndef TARN__CUDA_NORM_GRAD_CUH
#define TARN__CUDA_NORM_GRAD_CUH

#include "backends/cuda/norm/layernorm.cuh"

enum { OUT, IN, MEAN, RSTD, GRADIENT, RESIDUAL, OPERANDS };

struct grad_args {
    row_set<OPERANDS> rows; /* gx, or x if gx is not needed */
    row_operand weight;
    bool wants_gx, wants_weight, wants_bias, is_centred, is_short;
    double epsilon, length, inverse;
    int64_t chunk_rows;
    void *partial; /* (chunks, 2, length), in the compute type */
};

template <typename C> __device__ __forceinline__ C load_row_stat(const grad_args &a, int k, int64_t at)
{
    return a.rows.operand[k].base ? load_any<C>(a.rows.operand[k].base, a.rows.operand[k].dtype, at) : (C)0;
}

#endif
