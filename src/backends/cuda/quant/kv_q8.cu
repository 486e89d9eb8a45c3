/* kv_q8.cu: quantizes rows of the KV cache to 8 bits with an f16 scale per group, and back. */
#include "backends/cuda/quant/kv_q8.cuh"

#define VEC 8 /* elements per thread when dequantizing, if aligned; they share a scale */

/* (B, heads, tokens, D); scales: groups of D. */
struct q8_args {
    void *x;
    uint8_t *q;
    f16 *scales;
    int64_t x_stride[4], q_stride[4], scale_stride[4];
    int64_t heads, tokens, head_dim, groups, count; /* work items: warps or threads */
};

/* Offset of a row. */
static __device__ __forceinline__ int64_t row_at(const q8_args &a, const int64_t *stride, int64_t row)
{
    const int64_t plane = row / a.tokens, batch = plane / a.heads;
    return batch * stride[0] + (plane - batch * a.heads) * stride[1] + (row - plane * a.tokens) * stride[2];
}

/* One warp per group of 32 elements. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) quantize_kernel(const __grid_constant__ q8_args a)
{
    const int64_t at = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, row = at / a.groups,
                  group = at - row * a.groups;
    const int lane = threadIdx.x % WARP;
    if (at >= a.count)
        return;
    const int64_t d = group * TARN__KV_Q8_GROUP + lane;
    const bool is_valid = d < a.head_dim;
    f16 scale;
    const float x = is_valid ? (float)widen(((const T *)a.x)[row_at(a, a.x_stride, row) + d * a.x_stride[3]]) : 0;
    const uint8_t value = quantize_q8(x, is_valid, &scale);
    if (is_valid)
        a.q[row_at(a, a.q_stride, row) + d * a.q_stride[3]] = value;
    if (lane == 0)
        a.scales[row_at(a, a.scale_stride, row) + group * a.scale_stride[3]] = scale;
}

/* W adjacent elements per thread: VEC contiguous, aligned ones, or one. */
template <typename T, int W>
static __global__ void __launch_bounds__(THREADS) dequantize_kernel(const __grid_constant__ q8_args a)
{
    /* a vector of T may be shorter than VEC */
    constexpr int P = vec_size<T>::value < W ? vec_size<T>::value : W;
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, vecs_per_row = a.head_dim / W,
                  row = at / vecs_per_row, d = (at - row * vecs_per_row) * W;
    if (at >= a.count)
        return;
    const vec<uint8_t, W> q = *(const vec<uint8_t, W> *)(a.q + row_at(a, a.q_stride, row) + d * a.q_stride[3]);
    const float scale = widen(a.scales[row_at(a, a.scale_stride, row) + d / TARN__KV_Q8_GROUP * a.scale_stride[3]]);
    T *to = (T *)a.x + row_at(a, a.x_stride, row) + d * a.x_stride[3];
#pragma unroll
    for (int i = 0; i < W; i += P) {
        vec<T, P> some;
#pragma unroll
        for (int k = 0; k < P; k++)
            some.at[k] = narrow<T>(__fmul_rn((float)((int)q.at[i + k] - TARN__KV_Q8_ZERO), scale));
        *(vec<T, P> *)(to + i) = some;
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* x is float, q u8, scales f16, all (B, heads, tokens, ·). */
static q8_args args_of(const tarn__view *x, const tarn__view *q, const tarn__view *scales)
{
    q8_args a = {};
    a.x = tarn__view_at(x), a.q = (uint8_t *)tarn__view_at(q), a.scales = (f16 *)tarn__view_at(scales);
    a.heads = x->shape[1], a.tokens = x->shape[2], a.head_dim = x->shape[3], a.groups = scales->shape[3];
    for (int i = 0; i < 4; i++)
        a.x_stride[i] = x->stride[i], a.q_stride[i] = q->stride[i], a.scale_stride[i] = scales->stride[i];
    return a;
}

/* Grid: a warp per group. Bytes: x read, values and scales written. */
static void kernel_quantize_kv(const tarn__call *call)
{
    q8_args a = args_of(call->in[0], call->out[0], call->out[1]);
    a.count = tarn__view_count(call->out[1]);
    if (a.count == 0)
        return;
    FOR_FLOAT(call->in[0]->dtype,
              quantize_kernel<T><<<blocks_for(a.count, THREADS / WARP), THREADS, 0, stream_of(call)>>>(a))
}

/* True for rows of aligned vectors of VEC elements. */
static bool has_vec8(const tarn__view *view)
{
    const int64_t *stride = view->stride;
    return view->shape[3] % VEC == 0 && stride[3] == 1 && stride[0] % VEC == 0 && stride[1] % VEC == 0 &&
           stride[2] % VEC == 0 && (uintptr_t)tarn__view_at(view) % (VEC * tarn__dtype_bytes(view->dtype)) == 0;
}

/* Grid: a thread per VEC elements, or per element. Bytes: values and scales read, x written. */
static void kernel_dequantize_kv(const tarn__call *call)
{
    const tarn__view *x = call->out[0];
    q8_args a = args_of(x, call->in[0], call->in[1]);
    const bool is_vec8 = has_vec8(x) && has_vec8(call->in[0]);
    a.count = tarn__view_count(x) / (is_vec8 ? VEC : 1);
    if (a.count == 0)
        return;
    const unsigned blocks = blocks_for(a.count, THREADS);
    if (is_vec8) {
        FOR_FLOAT(x->dtype, dequantize_kernel<T, VEC><<<blocks, THREADS, 0, stream_of(call)>>>(a))
    } else {
        FOR_FLOAT(x->dtype, dequantize_kernel<T, 1><<<blocks, THREADS, 0, stream_of(call)>>>(a))
    }
}

/* The quantized side is u8 with an offset of 128 (TARN__KV_Q8_ZERO). */
void tarn__cuda_register_kv_q8(tarn__kernel_row *rows)
{
    rows[TARN__K_quantize_kv] = tarn__row(kernel_quantize_kv, TARN__FLOATS);
    rows[TARN__K_dequantize_kv] = tarn__row(kernel_dequantize_kv, TARN__BIT(TARN_U8));
}
