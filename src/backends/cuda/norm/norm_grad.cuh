/* norm_grad.cuh: what the kernels of layernorm_grad.cu and layernorm_grad_async.cuh are given. */
#ifndef TARN__NORM_GRAD_CUH
#define TARN__NORM_GRAD_CUH

#include "backends/cuda/norm/layernorm.cuh"

enum { OUT, IN, MEAN, RSTD, GRADIENT, OWN, OPERANDS };

struct grad_args {
    row_set<OPERANDS> rows; /* gx, or x where gx is not wanted */
    row_operand weight;
    bool wants_gx, wants_weight, wants_bias, is_centred, is_short;
    double epsilon, length, inverse;
    int64_t chunk_rows;
    void *partial; /* (chunks, 2, length), of the type computed in */
};

template <typename C> __device__ __forceinline__ C read_number(const grad_args &a, int k, int64_t at)
{
    return a.rows.operand[k].base ? load_any<C>(a.rows.operand[k].base, a.rows.operand[k].dtype, at) : (C)0;
}

#endif
