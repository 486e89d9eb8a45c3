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

/* Groups of eight that a thread has in registers. */
#define HELD_GROUPS 2

__device__ __forceinline__ float squares_of(const float *v)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += v[i] * v[i];
    return sum;
}

/* 1 / the root of the mean of squares, in all threads, from each one's part. `turn` goes from 0 to 1 and back: a place is used again when all have read it. */
__device__ __forceinline__ float inverse_rms(const step_x &x, float part, int turn)
{
    __shared__ float space[2][WARP];
    part = over_warp<add_up>(part);
    if (threadIdx.x % WARP == 0)
        space[turn][threadIdx.x / WARP] = part;
    __syncthreads();
    double total = 0;
    for (int i = 0; i < (int)blockDim.x / WARP; i++)
        total += (double)space[turn][i];
    return 1.0f / sqrtf((float)((double)(float)(total / x.in) + x.epsilon));
}

/* Some groups of a row, from `begin` on: loaded; normalised; and put where they stay. All of the block come here. */
struct some_groups {
    float v[HELD_GROUPS][8];

    __device__ __forceinline__ void load(const void *base, tarn_dtype dtype, int64_t row, int begin, int count)
    {
#pragma unroll
        for (int k = 0; k < HELD_GROUPS; k++) {
            int group = begin + k * blockDim.x + threadIdx.x;
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[k][i] = 0;
            if (group < count)
                load_eight(base, dtype, row + group * 8, v[k]);
        }
    }
    __device__ __forceinline__ void normalise(float factor, const some_groups &weight, tarn_dtype dtype)
    {
#pragma unroll
        for (int k = 0; k < HELD_GROUPS; k++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[k][i] = rounded(v[k][i] * factor * weight.v[k][i], dtype);
    }
    template <bool is_bytes> __device__ __forceinline__ void hold(const held_x &to, int row, int begin, int count) const
    {
#pragma unroll
        for (int k = 0; k < HELD_GROUPS; k++) {
            int group = begin + k * blockDim.x + threadIdx.x;
            if (is_bytes && begin + k * (int)blockDim.x < count)
                hold_bytes(to, row, group, group < count, v[k]);
            else if (!is_bytes && group < count)
                hold_floats(to, row, group, v[k]);
        }
    }
};

/* Rows `first` and after, by all threads of the block; __syncthreads() comes after it. `weight` is the norm's first groups, which were loaded before. */
template <bool is_bytes> __device__ __forceinline__ void hold_rows(const step_x &x, int64_t first, int rows, const some_groups &weight, const held_x &to)
{
    const int count = x.in / 8, step = HELD_GROUPS * blockDim.x;
    for (int row = 0; row < rows; row++) {
        const int64_t from = (first + row) * x.down;
        some_groups some;
        float part = 0, factor = 1;
        some.load(x.base, x.dtype, from, 0, count);
        if (x.norm) {
#pragma unroll
            for (int k = 0; k < HELD_GROUPS; k++)
                part += squares_of(some.v[k]);
            for (int group = step + threadIdx.x; group < count; group += blockDim.x) {
                float v[8];
                load_eight(x.base, x.dtype, from + group * 8, v);
                part += squares_of(v);
            }
            factor = inverse_rms(x, part, row % 2);
            some.normalise(factor, weight, x.dtype);
        }
        some.hold<is_bytes>(to, row, 0, count);
        for (int begin = step; begin < count; begin += step) {
            some_groups of_norm;
            some.load(x.base, x.dtype, from, begin, count);
            if (x.norm) {
                of_norm.load(x.norm, x.dtype, 0, begin, count);
                some.normalise(factor, of_norm, x.dtype);
            }
            some.hold<is_bytes>(to, row, begin, count);
        }
    }
}

#endif
