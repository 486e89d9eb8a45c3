/* kv_q8.cu: rows of numbers in 8 bits, with a scale for each group of a row, and back. */
#include "backends/cuda/quant/kv_q8.cuh"

#define EIGHT 8 /* elements of a thread that decodes, where they lie so; they have one scale */

/* (B, heads, tokens, D), or groups of D. */
struct codes_args {
    void *x;
    uint8_t *codes;
    f16 *scales;
    int64_t x_stride[4], code_stride[4], scale_stride[4];
    int64_t heads, tokens, depth, groups, count; /* count: of what warps or threads have */
};

/* Where a row begins. */
static __device__ __forceinline__ int64_t row_at(const codes_args &a, const int64_t *stride, int64_t row)
{
    const int64_t plane = row / a.tokens, batch = plane / a.heads;
    return batch * stride[0] + (plane - batch * a.heads) * stride[1] + (row - plane * a.tokens) * stride[2];
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) encode_kernel(const __grid_constant__ codes_args a)
{
    const int64_t at = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, row = at / a.groups,
                  group = at - row * a.groups;
    const int lane = threadIdx.x % WARP;
    if (at >= a.count)
        return;
    const int64_t d = group * TARN__KV_Q8_GROUP + lane;
    const bool is_there = d < a.depth;
    f16 scale;
    const float x = is_there ? (float)widen(((const T *)a.x)[row_at(a, a.x_stride, row) + d * a.x_stride[3]]) : 0;
    const uint8_t code = code_of(x, is_there, &scale);
    if (is_there)
        a.codes[row_at(a, a.code_stride, row) + d * a.code_stride[3]] = code;
    if (lane == 0)
        a.scales[row_at(a, a.scale_stride, row) + group * a.scale_stride[3]] = scale;
}

/* W neighbours a thread: EIGHT, which lie densely and aligned, or one. */
template <typename T, int W>
static __global__ void __launch_bounds__(THREADS) decode_kernel(const __grid_constant__ codes_args a)
{
    constexpr int P = pack_size<T>::value < W ? pack_size<T>::value : W;
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, pieces = a.depth / W, row = at / pieces,
                  d = (at - row * pieces) * W;
    if (at >= a.count)
        return;
    const pack<uint8_t, W> codes =
        *(const pack<uint8_t, W> *)(a.codes + row_at(a, a.code_stride, row) + d * a.code_stride[3]);
    const float scale = widen(a.scales[row_at(a, a.scale_stride, row) + d / TARN__KV_Q8_GROUP * a.scale_stride[3]]);
    T *to = (T *)a.x + row_at(a, a.x_stride, row) + d * a.x_stride[3];
#pragma unroll
    for (int i = 0; i < W; i += P) {
        pack<T, P> some;
#pragma unroll
        for (int k = 0; k < P; k++)
            some.at[k] = narrow<T>(__fmul_rn((float)((int)codes.at[i + k] - TARN__KV_Q8_ZERO), scale));
        *(pack<T, P> *)(to + i) = some;
    }
}

/* ---- starting them ----------------------------------------------------------------------------------------------- */

static codes_args args_of(const tarn__view *x, const tarn__view *codes, const tarn__view *scales)
{
    codes_args a = {};
    a.x = tarn__view_at(x), a.codes = (uint8_t *)tarn__view_at(codes), a.scales = (f16 *)tarn__view_at(scales);
    a.heads = x->shape[1], a.tokens = x->shape[2], a.depth = x->shape[3], a.groups = scales->shape[3];
    for (int i = 0; i < 4; i++)
        a.x_stride[i] = x->stride[i], a.code_stride[i] = codes->stride[i], a.scale_stride[i] = scales->stride[i];
    return a;
}

/* A warp for each group. Bytes: x read, codes and scales written. */
static void kernel_codes_encode(const tarn__call *call)
{
    codes_args a = args_of(call->in[0], call->out[0], call->out[1]);
    a.count = tarn__view_count(call->out[1]);
    if (a.count == 0)
        return;
    FOR_FLOAT(call->in[0]->dtype,
              encode_kernel<T><<<blocks_for(a.count, THREADS / WARP), THREADS, 0, stream_of(call)>>>(a))
}

/* Rows of whole EIGHTs, each of which begins where one may. */
static bool has_eights(const tarn__view *view)
{
    const int64_t *stride = view->stride;
    return view->shape[3] % EIGHT == 0 && stride[3] == 1 && stride[0] % EIGHT == 0 && stride[1] % EIGHT == 0 &&
           stride[2] % EIGHT == 0 && (uintptr_t)tarn__view_at(view) % (EIGHT * tarn__dtype_bytes(view->dtype)) == 0;
}

/* A thread for each EIGHT, or for each element. Bytes: codes and scales read, x written. */
static void kernel_codes_decode(const tarn__call *call)
{
    const tarn__view *x = call->out[0];
    codes_args a = args_of(x, call->in[0], call->in[1]);
    const bool are_eights = has_eights(x) && has_eights(call->in[0]);
    a.count = tarn__view_count(x) / (are_eights ? EIGHT : 1);
    if (a.count == 0)
        return;
    const unsigned blocks = blocks_for(a.count, THREADS);
    if (are_eights) {
        FOR_FLOAT(x->dtype, decode_kernel<T, EIGHT><<<blocks, THREADS, 0, stream_of(call)>>>(a))
    } else {
        FOR_FLOAT(x->dtype, decode_kernel<T, 1><<<blocks, THREADS, 0, stream_of(call)>>>(a))
    }
}

void tarn__cuda_kv_q8(tarn__kernel_row *rows)
{
    rows[TARN__K_quantize_kv] = tarn__kernel_row{kernel_codes_encode, TARN__FLOATS, NULL};
    rows[TARN__K_dequantize_kv] = tarn__kernel_row{kernel_codes_decode, TARN__BIT(TARN_U8), NULL};
}
