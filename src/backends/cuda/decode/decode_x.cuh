/* decode_x.cuh: the rows of x that a block multiplies by, in shared memory: normalised where that is asked for, as f32
 * or rounded to bytes.
 *
 * Lanes of a warp read neighbouring packs of 16 bytes, so that no two meet in a bank: of eight elements in f32, of 32
 * bytes, and of 64 bytes where a lane takes two units, first packs lie together, and so do second ones and those after
 * them. */
#ifndef TARN__CUDA_STEP_X_CUH
#define TARN__CUDA_STEP_X_CUH

#include "backends/cuda/decode/decode.cuh"

#define STEP_WARPS 16    /* of a block: many, since each block holds x for itself */
#define BLOCKS_AT_ONCE 2 /* of a multiprocessor */

struct step_x {
    const void *base;
    tarn_dtype dtype;
    int64_t down;     /* from row to row, in elements */
    const void *norm; /* weight, of x's dtype; NULL: x is taken as it is */
    float epsilon;
    int in, rows;
};

/* What rows are held as: f32; bytes, a unit of 32 a lane; bytes, two units a lane. */
enum layout { OF_FLOATS, OF_UNITS, OF_PAIRS };

/* Bytes of shared memory of a row. */
static __host__ __device__ __forceinline__ int held_pitch(int in, layout how)
{
    return how == OF_FLOATS ? in * 4 : how == OF_UNITS ? in / UNIT * 48 : in / (2 * UNIT) * 80;
}

/* Rows in shared memory, each `pitch` bytes after the one before. Of units: two halves of each, scale and scale times
 * sum, sums of the halves. Of pairs: both halves of the one and of the other, both scales, and both scales times sums.
 */
struct held_x {
    char *base;
    int pitch, count; /* groups of eight, units or pairs */

    __device__ __forceinline__ int4 bytes(int row, int at, int part) const
    {
        return *(const int4 *)(base + row * pitch + (part * count + at) * 16);
    }
    __device__ __forceinline__ float2 scale(int row, int unit) const
    {
        return *(const float2 *)(base + row * pitch + count * 32 + unit * 8);
    }
    __device__ __forceinline__ int2 sums(int row, int unit) const
    {
        return *(const int2 *)(base + row * pitch + count * 40 + unit * 8);
    }
    __device__ __forceinline__ const char *scales(int pair) const
    {
        return base + (count * 4 + pair) * 16;
    }
    __device__ __forceinline__ float4 floats(int row, int group, int half) const
    {
        return *(const float4 *)(base + row * pitch + (half * count + group) * 16);
    }
};

__device__ __forceinline__ held_x held_at(char *base, int in, layout how)
{
    return held_x{base, held_pitch(in, how), how == OF_FLOATS ? in / 8 : how == OF_UNITS ? in / UNIT : in / (2 * UNIT)};
}

/* ---- putting elements there -------------------------------------------------------------------------------------- */

__device__ __forceinline__ void hold_floats(const held_x &to, int row, int group, const float *v)
{
    *(float4 *)(to.base + row * to.pitch + group * 16) = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(to.base + row * to.pitch + (to.count + group) * 16) = make_float4(v[4], v[5], v[6], v[7]);
}

/* Eight elements as bytes; sums over them and a neighbour's, and over those of the unit's other half. */
struct byte_group {
    uint32_t word[2];
    float scale;
    int sum, other;
};

/* Four threads have a unit, eight elements each, and all of the warp come here. Rounding as in quant_matmul.cu. */
__device__ __forceinline__ byte_group round_eight(const float *v)
{
    byte_group g = {};
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        most = max(most, __float_as_uint(v[i]) & 0x7fffffffu);
    most = max(most, __shfl_xor_sync(FULL_WARP, most, 1));
    most = max(most, __shfl_xor_sync(FULL_WARP, most, 2));
    bool finite = most < 0x7f800000u, tiny = most < 0x04800000u;
    float largest = __uint_as_float(most), inverse = finite && !tiny ? __fdiv_rn(127.0f, largest) : 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t q = __float_as_uint(__fadd_rn(__fmul_rn(finite ? v[i] : 0, inverse), 12582912.0f)) & 0xffu;
        g.word[i / 4] |= q << i % 4 * 8;
    }
    g.sum = __dp4a((int)g.word[0], 0x01010101, __dp4a((int)g.word[1], 0x01010101, 0));
    g.sum += __shfl_xor_sync(FULL_WARP, g.sum, 1);
    g.other = __shfl_xor_sync(FULL_WARP, g.sum, 2);
    g.scale = !finite ? CUDART_NAN_F : tiny ? 0 : __fdiv_rn(largest, 127.0f);
    return g;
}

template <layout how>
__device__ __forceinline__ void hold_bytes(const held_x &to, int row, int group, const byte_group &g)
{
    const int unit = group / 4, part = group % 4;
    char *base = to.base + row * to.pitch;
    const float scaled_sum = g.scale * (float)(g.sum + g.other);
    if (how == OF_UNITS) {
        *(uint2 *)(base + (part / 2 * to.count + unit) * 16 + part % 2 * 8) = make_uint2(g.word[0], g.word[1]);
        if (part == 0) {
            *(float2 *)(base + to.count * 32 + unit * 8) = make_float2(g.scale, scaled_sum);
            *(int2 *)(base + to.count * 40 + unit * 8) = make_int2(g.sum, g.other);
        }
        return;
    }
    *(uint2 *)(base + ((unit % 2 * 2 + part / 2) * to.count + unit / 2) * 16 + part % 2 * 8) =
        make_uint2(g.word[0], g.word[1]);
    if (part == 0) {
        float *scales = (float *)(base + (to.count * 4 + unit / 2) * 16) + unit % 2;
        scales[0] = g.scale, scales[2] = scaled_sum;
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* 1 / the root of the mean of squares, in all threads, from each one's part. `turn` goes from 0 to 1 and back: a place
 * is used again when all have read it. */
__device__ __forceinline__ float inverse_rms(const step_x &x, float part, int turn)
{
    __shared__ __align__(16) float space[2][STEP_WARPS];
    part = over_warp<add_up>(part);
    if (threadIdx.x % WARP == 0)
        space[turn][threadIdx.x / WARP] = part;
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int i = 0; i < STEP_WARPS; i++)
        total += space[turn][i];
    return 1.0f / sqrtf(total / (float)x.in + x.epsilon);
}

/* Some groups of a row, from `begin` on, a thread's all under way together. */
template <typename T> struct some_groups {
    enum { each = 4 / sizeof(T), step = each * STEP_WARPS * WARP };
    eight<T> group[each];

    __device__ __forceinline__ void load(const void *row, int begin, int count)
    {
#pragma unroll
        for (int k = 0; k < each; k++) {
            int at = begin + k * STEP_WARPS * WARP + (int)threadIdx.x;
            group[k] = eight<T>{};
            if (at < count)
                group[k].load((const char *)row + (int64_t)at * 8 * (int)sizeof(T));
        }
    }
    __device__ __forceinline__ float squares(void) const
    {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < each; k++) {
            float v[8];
            group[k].open(0, v);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum += v[i] * v[i];
        }
        return sum;
    }
    /* Normalised if that is asked for. All of the block come here. */
    template <layout how>
    __device__ __forceinline__ void hold(bool is_normed, const some_groups &weight, float factor, int begin, int count,
                                         const held_x &to, int row) const
    {
#pragma unroll
        for (int k = 0; k < each; k++) {
            int first = begin + k * STEP_WARPS * WARP, at = first + (int)threadIdx.x;
            if (first >= count)
                return;
            float v[8];
            group[k].open(0, v);
            if (is_normed) {
                float w[8];
                weight.group[k].open(0, w);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[i] = widen(narrow<T>(v[i] * factor * w[i]));
            }
            if (how == OF_FLOATS) {
                if (at < count)
                    hold_floats(to, row, at, v);
                continue;
            }
            byte_group g = round_eight(v);
            if (at < count)
                hold_bytes<how>(to, row, at, g);
        }
    }
};

template <typename T, layout how>
__device__ __forceinline__ void hold_rows_of(const step_x &x, int64_t first, int rows, const held_x &to)
{
    typedef some_groups<T> groups;
    const int count = x.in / 8;
    const bool is_normed = x.norm != NULL;
    for (int row = 0; row < rows; row++) {
        const T *from = (const T *)x.base + (first + row) * x.down;
        groups some, weight;
        float factor = 1;
        some.load(from, 0, count);
        if (is_normed) {
            weight.load(x.norm, 0, count);
            float squares = some.squares();
            for (int begin = groups::step; begin < count; begin += groups::step) {
                groups rest;
                rest.load(from, begin, count);
                squares += rest.squares();
            }
            factor = inverse_rms(x, squares, row % 2);
        }
        for (int begin = 0; begin < count; begin += groups::step) {
            if (begin > 0) {
                some.load(from, begin, count);
                if (is_normed)
                    weight.load(x.norm, begin, count);
            }
            some.template hold<how>(is_normed, weight, factor, begin, count, to, row);
        }
    }
}

/* Rows `first` and after, by all threads of the block; __syncthreads() comes after it. */
template <layout how>
__device__ __forceinline__ void hold_rows(const step_x &x, int64_t first, int rows, const held_x &to)
{
    if (x.dtype == TARN_BF16)
        hold_rows_of<bf16, how>(x, first, rows, to);
    else if (x.dtype == TARN_F16)
        hold_rows_of<f16, how>(x, first, rows, to);
    else
        hold_rows_of<float, how>(x, first, rows, to);
}

/* The norm's weight is wanted soon: it can be asked for before the kernel in front has ended. */
__device__ __forceinline__ void expect_norm(const step_x &x)
{
    const int bytes = x.in * (x.dtype == TARN_F32 ? 4 : 2);
    for (int at = threadIdx.x * 128; x.norm && at < bytes; at += STEP_WARPS * WARP * 128)
        expect((const char *)x.norm + at);
}

#endif
