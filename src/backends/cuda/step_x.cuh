/* step_x.cuh: the rows of x that a block multiplies by, in shared memory: normalised where that is asked for, as f32 or rounded to bytes.
 *
 * Lanes of a warp read neighbouring packs of 16 bytes, so that no two meet in a bank: of eight elements in f32, and of 32 bytes, first halves lie together, and so do
 * second ones. */
#ifndef TARN__CUDA_STEP_X_CUH
#define TARN__CUDA_STEP_X_CUH

#include "backends/cuda/step.cuh"

struct step_x {
    const void *base;
    tarn_dtype dtype;
    int64_t down;     /* from row to row, in elements */
    const void *norm; /* weight, of x's dtype; NULL: x is taken as it is */
    double epsilon;
    int in, rows;
};

/* Rows in shared memory, each `pitch` bytes after the one before. Of bytes: two halves of each unit, scale and scale times sum, sums of the halves. */
struct held_x {
    char *base;
    int pitch, count; /* units, or groups of eight */

    __device__ __forceinline__ int4 bytes(int row, int unit, int half) const { return *(const int4 *)(base + row * pitch + (half * count + unit) * 16); }
    __device__ __forceinline__ float2 scale(int row, int unit) const { return *(const float2 *)(base + row * pitch + count * 32 + unit * 8); }
    __device__ __forceinline__ int2 sums(int row, int unit) const { return *(const int2 *)(base + row * pitch + count * 40 + unit * 8); }
    __device__ __forceinline__ float4 floats(int row, int group, int half) const
    {
        return *(const float4 *)(base + row * pitch + (half * count + group) * 16);
    }
};

/* Bytes of shared memory of a row. */
static inline int held_pitch(int in, bool is_bytes)
{
    return is_bytes ? in / UNIT * 48 : in * 4;
}

__device__ __forceinline__ held_x held_at(char *base, int in, bool is_bytes)
{
    return held_x{base, is_bytes ? in / UNIT * 48 : in * 4, is_bytes ? in / UNIT : in / 8};
}

__device__ __forceinline__ void hold_floats(const held_x &to, int row, int group, const float *v)
{
    *(float4 *)(to.base + row * to.pitch + group * 16) = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(to.base + row * to.pitch + (to.count + group) * 16) = make_float4(v[4], v[5], v[6], v[7]);
}

/* Four threads have a unit, eight elements each; `is_there` is the same for the four, and all of the warp come here. Rounding as in blocks_product.cu. */
__device__ __forceinline__ void hold_bytes(const held_x &to, int row, int group, bool is_there, const float *v)
{
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        most = max(most, __float_as_uint(v[i]) & 0x7fffffffu);
    most = max(most, __shfl_xor_sync(FULL_WARP, most, 1));
    most = max(most, __shfl_xor_sync(FULL_WARP, most, 2));
    bool finite = most < 0x7f800000u, tiny = most < 0x04800000u;
    float largest = __uint_as_float(most), inverse = finite && !tiny ? __fdiv_rn(127.0f, largest) : 0;
    uint32_t word[2] = {};
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t q = __float_as_uint(__fadd_rn(__fmul_rn(finite ? v[i] : 0, inverse), 12582912.0f)) & 0xffu;
        word[i / 4] |= q << i % 4 * 8;
        sum += (int)(int8_t)q;
    }
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    int other = __shfl_xor_sync(FULL_WARP, sum, 2), unit = group / 4, part = group % 4;
    if (!is_there)
        return;
    char *base = to.base + row * to.pitch;
    *(uint2 *)(base + (part / 2 * to.count + unit) * 16 + part % 2 * 8) = make_uint2(word[0], word[1]);
    if (part == 0) {
        float scale = !finite ? CUDART_NAN_F : tiny ? 0 : __fdiv_rn(largest, 127.0f);
        *(float2 *)(base + to.count * 32 + unit * 8) = make_float2(scale, scale * (float)(sum + other));
        *(int2 *)(base + to.count * 40 + unit * 8) = make_int2(sum, other);
    }
}

/* 1 / the root of the mean of squares, in all threads. */
__device__ __forceinline__ float inverse_rms(const step_x &x, int64_t row)
{
    __shared__ double space[WARP];
    float squares = 0;
    for (int group = threadIdx.x; group < x.in / 8; group += blockDim.x) {
        float v[8];
        load_eight(x.base, x.dtype, row * x.down + group * 8, v);
#pragma unroll
        for (int i = 0; i < 8; i++)
            squares += v[i] * v[i];
    }
    double total = over_block<add_up>((double)squares, space, 0.0);
    return 1.0f / sqrtf((float)((double)(float)(total / x.in) + x.epsilon));
}

/* Rows `first` and after, by all threads of the block; __syncthreads() comes after it. */
template <bool is_bytes> __device__ __forceinline__ void hold_rows(const step_x &x, int64_t first, int rows, const held_x &to)
{
    for (int row = 0; row < rows; row++) {
        float factor = x.norm ? inverse_rms(x, first + row) : 1;
        for (int begin = 0; begin < x.in / 8; begin += blockDim.x) {
            int group = begin + threadIdx.x;
            bool is_there = group < x.in / 8;
            float v[8] = {}, weight[8];
            if (is_there)
                load_eight(x.base, x.dtype, (first + row) * x.down + group * 8, v);
            if (is_there && x.norm) {
                load_eight(x.norm, x.dtype, group * 8, weight);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[i] = rounded(v[i] * factor * weight[i], x.dtype);
            }
            if (is_bytes)
                hold_bytes(to, row, group, is_there, v);
            else if (is_there)
                hold_floats(to, row, group, v);
        }
    }
}

#endif
