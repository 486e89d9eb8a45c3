/* decode_x.cuh: the rows of x that a block multiplies by, in shared memory: normalized if requested, as f32 or
 * quantized to 8 bits. Kernels with `is_general` have layernorm and offsets too; the others, rmsnorm alone, stay
 * smaller.
 *
 * Lanes of a warp read adjacent 16-byte vectors, so there are no bank conflicts. Of eight f32 elements, of 32 quantized
 * ones, and of 64 where a lane takes two units, all first vectors are stored together, then all second ones, and so
 * on. */
#ifndef TARN__CUDA_DECODE_X_CUH
#define TARN__CUDA_DECODE_X_CUH

#include "backends/cuda/decode/decode.cuh"

#define DECODE_WARPS 16 /* per block: many, since every block stages x for itself */
#define BLOCKS_PER_SM 2 /* resident per multiprocessor */

/* x as the GEMV kernels read it: (rows, in). */
struct decode_x {
    const void *base;
    tarn_dtype dtype;
    int64_t down;     /* row stride, in elements */
    const void *norm; /* weight of the norm, of x's dtype; NULL: no norm */
    float epsilon;
    int in, rows;
    /* with is_general: */
    const void *norm_bias; /* of layernorm; NULL: none */
    float offset;          /* of the weight */
    bool is_centred;       /* layernorm instead of rmsnorm */
    /* with a post-norm `base` is a branch of the residual stream, and x is sum + post_scale · post-norm(branch) */
    const void *post, *sum; /* weight of the rmsnorm, NULL: none; (rows, in) of x's dtype */
    void *new_sum;          /* x, written by the first block of each row */
    int64_t sum_down, new_sum_down;
    float post_epsilon, post_offset, post_scale;
};

/* Form of the staged rows: f32; 8 bits, one unit of 32 per lane; 8 bits, two units per lane. */
enum x_layout { F32_ROWS, Q8_UNITS, Q8_PAIRS };

/* Bytes of shared memory per row. */
static __host__ __device__ __forceinline__ int staged_pitch(int in, x_layout form)
{
    return form == F32_ROWS ? in * 4 : form == Q8_UNITS ? in / UNIT * 48 : in / (2 * UNIT) * 80;
}

/* Rows in shared memory, `pitch` bytes apart. Units: both halves of each, scale and scale · sum, sums of the halves.
 * Pairs: both halves of one unit and of the other, both scales, both scales · sums. */
struct staged_x {
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
    __device__ __forceinline__ const char *scales_of(int pair) const
    {
        return base + (count * 4 + pair) * 16;
    }
    __device__ __forceinline__ float4 floats(int row, int group, int half) const
    {
        return *(const float4 *)(base + row * pitch + (half * count + group) * 16);
    }
};

/* Rows start at `base`, 16-byte aligned. */
__device__ __forceinline__ staged_x staged_x_at(char *base, int in, x_layout form)
{
    return staged_x{base, staged_pitch(in, form),
                    form == F32_ROWS   ? in / 8
                    : form == Q8_UNITS ? in / UNIT
                                       : in / (2 * UNIT)};
}

/* ---- writing elements -------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void stage_floats(const staged_x &to, int row, int group, const float *v)
{
    *(float4 *)(to.base + row * to.pitch + group * 16) = make_float4(v[0], v[1], v[2], v[3]);
    *(float4 *)(to.base + row * to.pitch + (to.count + group) * 16) = make_float4(v[4], v[5], v[6], v[7]);
}

/* Eight elements as bytes; the sum over the unit's half, and over its other half. */
struct q8_group {
    uint32_t word[2];
    float scale;
    int sum, other;
};

/* Quantizes to 8 bits: four threads share a unit, eight elements each. All lanes of the warp call it. Same rounding as
 * in quant_matmul.cu, bitwise. */
__device__ __forceinline__ q8_group quantize8(const float *v)
{
    q8_group g = {};
    uint32_t max_bits = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        max_bits = max(max_bits, __float_as_uint(v[i]) & 0x7fffffffu);
    max_bits = max(max_bits, __shfl_xor_sync(FULL_WARP, max_bits, 1));
    max_bits = max(max_bits, __shfl_xor_sync(FULL_WARP, max_bits, 2));
    bool is_finite = max_bits < 0x7f800000u, is_tiny = max_bits < 0x04800000u;
    float largest = __uint_as_float(max_bits), inverse = is_finite && !is_tiny ? __fdiv_rn(127.0f, largest) : 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t q = __float_as_uint(__fadd_rn(__fmul_rn(is_finite ? v[i] : 0, inverse), 12582912.0f)) & 0xffu;
        g.word[i / 4] |= q << i % 4 * 8;
    }
    g.sum = __dp4a((int)g.word[0], 0x01010101, __dp4a((int)g.word[1], 0x01010101, 0));
    g.sum += __shfl_xor_sync(FULL_WARP, g.sum, 1);
    g.other = __shfl_xor_sync(FULL_WARP, g.sum, 2);
    g.scale = !is_finite ? CUDART_NAN_F : is_tiny ? 0 : __fdiv_rn(largest, 127.0f);
    return g;
}

/* Thread `group` writes its eight bytes; the first of a unit also writes scale and sums. */
template <x_layout form>
__device__ __forceinline__ void stage_bytes(const staged_x &to, int row, int group, const q8_group &g)
{
    const int unit = group / 4, part = group % 4;
    char *base = to.base + row * to.pitch;
    const float scaled_sum = g.scale * (float)(g.sum + g.other);
    if (form == Q8_UNITS) {
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

/* Sum of the threads' parts, in all threads. `buffer` is 0 or 1; one may be used again only after a call with the
 * other, because it may still be read. */
__device__ __forceinline__ float block_sum(float part, int buffer)
{
    __shared__ __align__(16) float space[2][DECODE_WARPS];
    part = warp_reduce<plus>(part);
    if (threadIdx.x % WARP == 0)
        space[buffer][threadIdx.x / WARP] = part;
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int i = 0; i < DECODE_WARPS; i++)
        total += space[buffer][i];
    return total;
}

/* Some groups of eight of a row, from `begin` on; all loads of a thread are in flight together. */
template <typename T> struct row_groups {
    enum { each = 4 / sizeof(T), step = each * DECODE_WARPS * WARP };
    vec8<T> group[each];

    __device__ __forceinline__ void load(const void *row, int begin, int count)
    {
#pragma unroll
        for (int k = 0; k < each; k++) {
            int at = begin + k * DECODE_WARPS * WARP + (int)threadIdx.x;
            group[k] = vec8<T>{};
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
            group[k].unpack(0, v);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum += v[i] * v[i];
        }
        return sum;
    }
    /* Missing groups are zeros. */
    __device__ __forceinline__ float sum(void) const
    {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < each; k++) {
            float v[8];
            group[k].unpack(0, v);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum += v[i];
        }
        return sum;
    }
    /* True if no thread has group k of these: rows are often shorter than a batch. */
    __device__ __forceinline__ static bool is_past(int k, int count)
    {
        return k * DECODE_WARPS * WARP >= count;
    }
    /* Sum of (x - mean)². */
    __device__ __forceinline__ float deviations(float mean, int begin, int count) const
    {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < each; k++) {
            float v[8];
            if (begin + k * DECODE_WARPS * WARP + (int)threadIdx.x >= count)
                continue;
            group[k].unpack(0, v);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum += (v[i] - mean) * (v[i] - mean);
        }
        return sum;
    }
    /* (x - mean) · factor · (offset + weight) + bias, rounded to x's dtype as the operation would. */
    __device__ __forceinline__ void normalize(const row_groups &weight, const row_groups &bias, float mean,
                                              float factor, float offset, int count)
    {
#pragma unroll
        for (int k = 0; k < each; k++) {
            float v[8], w[8], b[8];
            if (is_past(k, count))
                return;
            group[k].unpack(0, v);
            weight.group[k].unpack(0, w);
            bias.group[k].unpack(0, b);
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = (v[i] - mean) * factor * (w[i] + offset) + b[i];
            group[k].pack(v);
        }
    }
    /* sum + scale · these, rounded. */
    __device__ __forceinline__ void add_to(const row_groups &sum, float scale, int count)
    {
#pragma unroll
        for (int k = 0; k < each; k++) {
            float v[8], s[8];
            if (is_past(k, count))
                return;
            group[k].unpack(0, v);
            sum.group[k].unpack(0, s);
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = s[i] + scale * v[i];
            group[k].pack(v);
        }
    }
    __device__ __forceinline__ void store(void *row, int count) const
    {
#pragma unroll
        for (int k = 0; k < each; k++) {
            int at = k * DECODE_WARPS * WARP + (int)threadIdx.x;
            if (at < count)
                group[k].store((char *)row + (int64_t)at * 8 * (int)sizeof(T));
        }
    }
    /* Normalizes if requested, and stages. All threads of the block call it. */
    template <x_layout form>
    __device__ __forceinline__ void stage(bool is_normed, const row_groups &weight, float factor, int begin, int count,
                                          const staged_x &to, int row) const
    {
#pragma unroll
        for (int k = 0; k < each; k++) {
            int first = begin + k * DECODE_WARPS * WARP, at = first + (int)threadIdx.x;
            if (first >= count)
                return;
            float v[8];
            group[k].unpack(0, v);
            if (is_normed) {
                float w[8];
                weight.group[k].unpack(0, w);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    v[i] = widen(narrow<T>(v[i] * factor * w[i]));
            }
            if (form == F32_ROWS) {
                if (at < count)
                    stage_floats(to, row, at, v);
                continue;
            }
            q8_group g = quantize8(v);
            if (at < count)
                stage_bytes<form>(to, row, at, g);
        }
    }
};

/* A row is read once if it fits one batch of loads, else twice: for the norm, and to stage. */
template <typename T, x_layout form>
__device__ __forceinline__ void stage_rows_of(const decode_x &x, int64_t first, int rows, const staged_x &to)
{
    typedef row_groups<T> groups;
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
            factor = 1.0f / sqrtf(block_sum(squares, row % 2) / (float)x.in + x.epsilon);
        }
        for (int begin = 0; begin < count; begin += groups::step) {
            if (begin > 0) {
                some.load(from, begin, count);
                if (is_normed)
                    weight.load(x.norm, begin, count);
            }
            some.template stage<form>(is_normed, weight, factor, begin, count, to, row);
        }
    }
}

/* A row that fits one batch of loads, from the branch with its post-norm; `buffer` is block_sum()'s. */
template <typename T>
__device__ __forceinline__ void add_branch(const decode_x &x, int64_t row, int buffer, row_groups<T> &branch)
{
    const int count = x.in / 8;
    row_groups<T> weight, sum;
    weight.load(x.post, 0, count);
    sum.load((const T *)x.sum + row * x.sum_down, 0, count);
    const float squares = branch.deviations(0, 0, count);
    branch.normalize(weight, row_groups<T>{}, 0,
                     1.0f / sqrtf(block_sum(squares, buffer) / (float)x.in + x.post_epsilon), x.post_offset, count);
    branch.add_to(sum, x.post_scale, count);
    if (blockIdx.x == 0)
        branch.store((T *)x.new_sum + row * x.new_sum_down, count);
}

/* The same with any norm: mean, variance around it, then result. A row of several batches is read once for each. With a
 * post-norm it is one batch, and the norm an rmsnorm. */
template <typename T, x_layout form>
__device__ __forceinline__ void stage_general_rows(const decode_x &x, int64_t first, int rows, const staged_x &to)
{
    typedef row_groups<T> groups;
    const int count = x.in / 8;
    const bool is_normed = x.norm != NULL;
    for (int row = 0; row < rows; row++) {
        const T *from = (const T *)x.base + (first + row) * x.down;
        groups some, weight, bias;
        float mean = 0, factor = 1;
        some.load(from, 0, count);
        if (is_normed)
            weight.load(x.norm, 0, count);
        if (x.post)
            add_branch<T>(x, first + row, is_normed ? 1 : (int)(row % 2), some);
        if (is_normed && x.is_centred) {
            float sum = some.sum();
            for (int begin = groups::step; begin < count; begin += groups::step) {
                groups rest;
                rest.load(from, begin, count);
                sum += rest.sum();
            }
            mean = block_sum(sum, 0) / (float)x.in;
        }
        if (is_normed) {
            float squares = some.deviations(mean, 0, count);
            for (int begin = groups::step; begin < count; begin += groups::step) {
                groups rest;
                rest.load(from, begin, count);
                squares += rest.deviations(mean, begin, count);
            }
            /* with a mean its sum lies between two uses of this buffer */
            factor = 1.0f / sqrtf(block_sum(squares, x.is_centred ? 1
                                                     : x.post     ? 0
                                                                  : row % 2) /
                                      (float)x.in +
                                  x.epsilon);
        }
        for (int begin = 0; begin < count; begin += groups::step) {
            if (begin > 0) {
                some.load(from, begin, count);
                if (is_normed)
                    weight.load(x.norm, begin, count);
            }
            if (is_normed) {
                bias = groups{};
                if (x.norm_bias)
                    bias.load(x.norm_bias, begin, count);
                some.normalize(weight, bias, mean, factor, x.offset, count - begin);
            }
            some.template stage<form>(false, weight, 1, begin, count, to, row);
        }
    }
}

/* Stages rows `first` and on, by all threads of the block; __syncthreads() must follow. */
template <x_layout form, bool is_general = false>
__device__ __forceinline__ void stage_rows(const decode_x &x, int64_t first, int rows, const staged_x &to)
{
    if constexpr (is_general) {
        if (x.dtype == TARN_BF16)
            stage_general_rows<bf16, form>(x, first, rows, to);
        else if (x.dtype == TARN_F16)
            stage_general_rows<f16, form>(x, first, rows, to);
        else
            stage_general_rows<float, form>(x, first, rows, to);
    } else if (x.dtype == TARN_BF16) {
        stage_rows_of<bf16, form>(x, first, rows, to);
    } else if (x.dtype == TARN_F16) {
        stage_rows_of<f16, form>(x, first, rows, to);
    } else {
        stage_rows_of<float, form>(x, first, rows, to);
    }
}

/* Prefetches the weights of the norms before pdl_wait(). */
__device__ __forceinline__ void prefetch_norm(const decode_x &x)
{
    const int bytes = x.in * (x.dtype == TARN_F32 ? 4 : 2);
    for (int at = threadIdx.x * 128; at < bytes; at += DECODE_WARPS * WARP * 128) {
        if (x.norm)
            prefetch_l2((const char *)x.norm + at);
        if (x.post)
            prefetch_l2((const char *)x.post + at);
    }
}

#endif
