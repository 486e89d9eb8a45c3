/* decode_mma.cuh: fragments of the tensor-core kernels of a decode step (decode_mma.cu).
 *
 * A tile is 16 rows of a weight, the left operand of mma: lane l has elements of rows l / 4 and l / 4 + 8. Its columns
 * are rows of x, eight per accumulator: lane l holds those of columns 2 (l % 4) and the next. The order of the products
 * along k is free as long as both operands have the same one: lane l takes 16 bytes of adjacent floats, or of 32
 * quantized elements words l % 4 and l % 4 + 4. */
#ifndef TARN__CUDA_DECODE_MMA_CUH
#define TARN__CUDA_DECODE_MMA_CUH

#include "backends/cuda/common/mma.cuh"
#include "backends/cuda/decode/decode_gemv.cuh"

#define TILE 16   /* rows of a weight */
#define COLUMNS 8 /* rows of x per accumulator */

/* ---- integer products -------------------------------------------------------------------------------------------- */

/* Bits of 12582912.0f. An integer below 2^22 added to them gives the bits of 12582912 + that integer as a float: a free
 * conversion. */
#define BIAS_BITS 0x4b400000
#define BIAS_FLOAT 12582912.0f

/* sum (16, 8) = left (16, 32) · right (32, 8) + BIAS_BITS; left unsigned if is_unsigned. */
__device__ __forceinline__ void mma_bytes(int *sum, const uint32_t *left, uint2 right)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, "
        "%10};"
        : "=r"(sum[0]), "=r"(sum[1]), "=r"(sum[2]), "=r"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right.x), "r"(right.y), "r"(BIAS_BITS));
}

/* sum (16, 8) = left (16, 16) · right (16, 8). */
__device__ __forceinline__ void mma_half(int *sum, uint32_t left0, uint32_t left1, uint32_t right)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(sum[0]), "=r"(sum[1]), "=r"(sum[2]), "=r"(sum[3])
        : "r"(left0), "r"(left1), "r"(right), "r"(0));
}

/* sum (16, 8) += left (16, 8) · right (8, 8) in TF32. */
__device__ __forceinline__ void mma_tf32(float *sum, const float *left, float right0, float right1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(__float_as_uint(left[0])), "r"(__float_as_uint(left[1])), "r"(__float_as_uint(left[2])),
          "r"(__float_as_uint(left[3])), "r"(__float_as_uint(right0)), "r"(__float_as_uint(right1)));
}

/* The part of a float that TF32 holds. */
__device__ __forceinline__ float tf32_part(float x)
{
    return __uint_as_float(__float_as_uint(x) & 0xffffe000u);
}

/* ---- x in shared memory ------------------------------------------------------------------------------------------ */

/* Fragments of x in the order of lanes: per 32 elements and eight rows 16 bytes of floats per lane, or 8 of quantized
 * elements, and their scales. Sums of 32 elements times their scale are operands of mma, too, in two parts. */
template <int NT> struct x_fragments {
    const char *base;
    const float *scale;
    const float4 *sum; /* per 256 elements and eight rows: sums l % 4 and l % 4 + 4 of eight, high part; remainders */

    __device__ __forceinline__ uint4 floats(int step, int n) const
    {
        return *(const uint4 *)(base + ((step * NT + n) * WARP + (int)(threadIdx.x % WARP)) * 16);
    }
    __device__ __forceinline__ uint2 bytes(int step, int n) const
    {
        return *(const uint2 *)(base + ((step * NT + n) * WARP + (int)(threadIdx.x % WARP)) * 8);
    }
    __device__ __forceinline__ float2 scales(int step, int n) const
    {
        return *(const float2 *)(scale + (step * NT + n) * COLUMNS + threadIdx.x % 4 * 2);
    }
    __device__ __forceinline__ float4 sums(int step, int n) const
    {
        return sum[(step / 8 * NT + n) * WARP + (int)(threadIdx.x % WARP)];
    }
};

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Part of a tile that is loaded at once: `unit` elements of each row, as `vecs` vectors of 16 bytes, the first of which
 * may begin before the unit. Rows are `pitch` bytes apart in shared memory, chosen to avoid bank conflicts. */
template <tarn_dtype Q> struct tile_format;
template <> struct tile_format<TARN_BF16> {
    enum { unit = 64, bytes = 128, vecs = 8, pitch = 128, is_float = 1, has_sums = 0 };
};
template <> struct tile_format<TARN_F16> : tile_format<TARN_BF16> {
};
template <> struct tile_format<TARN_Q8_0> {
    enum { unit = 128, bytes = 136, vecs = 9, pitch = 144, is_float = 0, has_sums = 0 };
};
template <> struct tile_format<TARN_Q4_K> {
    enum { unit = 256, bytes = 144, vecs = 9, pitch = 144, is_float = 0, has_sums = 1 };
};
template <> struct tile_format<TARN_Q6_K> {
    enum { unit = 256, bytes = 210, vecs = 14, pitch = 240, is_float = 0, has_sums = 0 };
};

template <int NT> struct sums_of_tile {
    float at[NT][4];
};

/* Adds the products of 64 floats. `rows` is the lane's row l / 4 in shared memory; the other is 8 rows on. Vectors of
 * odd rows are swapped by halves. x from shared memory, or the lane's fragments. */
template <typename T, int NT, typename F>
__device__ __forceinline__ void add_floats(const char *rows, F x, sums_of_tile<NT> &sums)
{
    const int t = threadIdx.x % 4, swap = threadIdx.x / 4 % 2 * 4;
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const char *from = rows + ((s * 4 + t) ^ swap) * 16;
        const uint4 a = *(const uint4 *)from, b = *(const uint4 *)(from + 8 * tile_format<TARN_BF16>::pitch);
        const uint32_t first[4] = {a.x, b.x, a.y, b.y}, second[4] = {a.z, b.z, a.w, b.w};
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint4 v = x(s, n);
            mma<T>(sums.at[n], first, v.x, v.y);
            mma<T>(sums.at[n], second, v.z, v.w);
        }
    }
}

__device__ __forceinline__ float unbiased(int sum)
{
    return __int_as_float(sum) - BIAS_FLOAT;
}

/* Adds the products of 32 elements, with a scale for both rows. */
template <int NT>
__device__ __forceinline__ void add_scaled(const uint32_t *q, float scale0, float scale1, const x_fragments<NT> &x,
                                           int step, sums_of_tile<NT> &sums)
{
#pragma unroll
    for (int n = 0; n < NT; n++) {
        int sum[4];
        const float2 of_x = x.scales(step, n);
        mma_bytes(sum, q, x.bytes(step, n));
        sums.at[n][0] += scale0 * of_x.x * unbiased(sum[0]);
        sums.at[n][1] += scale0 * of_x.y * unbiased(sum[1]);
        sums.at[n][2] += scale1 * of_x.x * unbiased(sum[2]);
        sums.at[n][3] += scale1 * of_x.y * unbiased(sum[3]);
    }
}

/* Two quant blocks, 17 words. The quants of the first block are not aligned to words. */
__device__ __forceinline__ void unpack_q8_0(const uint32_t *pair, uint32_t *first, uint32_t *second, float *scales)
{
    const int t = threadIdx.x % 4;
    first[0] = __byte_perm(pair[t], pair[t + 1], 0x5432), first[2] = __byte_perm(pair[t + 4], pair[t + 5], 0x5432);
    second[0] = pair[9 + t], second[2] = pair[13 + t];
    scales[0] = scale_of((uint16_t)pair[0]), scales[1] = scale_of((uint16_t)(pair[8] >> 16));
}

template <int NT>
__device__ __forceinline__ void add_q8_0(const char *rows, const x_fragments<NT> &x, int step, sums_of_tile<NT> &sums)
{
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        uint32_t first[4], second[4];
        float low[2], high[2];
        unpack_q8_0((const uint32_t *)(rows + pair * 68), first, second, low);
        unpack_q8_0((const uint32_t *)(rows + pair * 68 + 8 * tile_format<TARN_Q8_0>::pitch), first + 1, second + 1,
                    high);
        add_scaled<NT>(first, low[0], high[0], x, step + 2 * pair, sums);
        add_scaled<NT>(second, low[1], high[1], x, step + 2 * pair + 1, sums);
    }
}

/* Byte i of a word, as a float. */
__device__ __forceinline__ float float_of_byte(uint32_t word, int i)
{
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u + (uint32_t)i)) - 8388608.0f;
}

/* Scales and mins of the eight groups of a block of Q4_K, one byte each. */
struct k_scales {
    uint32_t scale[2], min[2];
    float of_scales, of_mins;
};

__device__ __forceinline__ k_scales k_scales_of(const char *block)
{
    const uint4 head = *(const uint4 *)block;
    k_scales s;
    s.scale[0] = head.y & 0x3f3f3f3fu, s.min[0] = head.z & 0x3f3f3f3fu;
    s.scale[1] = (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
    s.min[1] = (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);
    s.of_scales = scale_of((uint16_t)head.x), s.of_mins = scale_of((uint16_t)(head.x >> 16));
    return s;
}

template <int NT>
__device__ __forceinline__ void add_q4_k(const char *rows, const x_fragments<NT> &x, int step, sums_of_tile<NT> &sums)
{
    const char *other = rows + 8 * tile_format<TARN_Q4_K>::pitch;
    const k_scales low = k_scales_of(rows), high = k_scales_of(other);
    const int t = threadIdx.x % 4;
    sums_of_tile<NT> scaled = {}, mins = {};
    /* 6-bit mins are exact in TF32, sums of x nearly so in two parts */
    const float of_min[4] = {float_of_byte(low.min[0], t), float_of_byte(high.min[0], t), float_of_byte(low.min[1], t),
                             float_of_byte(high.min[1], t)};
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const float4 of_x = x.sums(step, n);
        mma_tf32(mins.at[n], of_min, of_x.z, of_x.w);
        mma_tf32(mins.at[n], of_min, of_x.x, of_x.y);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t *a = (const uint32_t *)(rows + 16 + j * 32) + t,
                       *b = (const uint32_t *)(other + 16 + j * 32) + t;
        const uint32_t words[4] = {a[0], b[0], a[4], b[4]};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int group = 2 * j + half;
            uint32_t q[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[i] = words[i] >> half * 4 & 0x0f0f0f0fu;
            add_scaled<NT>(q, float_of_byte(low.scale[group / 4], group % 4),
                           float_of_byte(high.scale[group / 4], group % 4), x, step + group, scaled);
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const k_scales &s = i < 2 ? low : high;
            sums.at[n][i] += s.of_scales * scaled.at[n][i] - s.of_mins * mins.at[n][i];
        }
}

/* Words of a row that begins at an even address. */
struct even_row {
    const uint32_t *words;
    uint32_t select;

    __device__ __forceinline__ even_row(const char *row)
    {
        const int shift = (int)((uintptr_t)row & 3);
        words = (const uint32_t *)(row - shift);
        select = shift ? 0x5432 : 0x3210;
    }
    __device__ __forceinline__ uint32_t operator[](int i) const
    {
        return __byte_perm(words[i], words[i + 1], select);
    }
};

/* Quants 0 … 63 of four bytes, minus 32. */
__device__ __forceinline__ uint32_t centre_q6(uint32_t q)
{
    return ((q | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
}

/* 128 elements of a block of Q6_K. Groups of 16 have a scale each, so their sums stay integers until both are added:
 * below 2^24. */
template <int NT>
__device__ __forceinline__ void add_q6_k_half(const even_row *row, int half, const x_fragments<NT> &x, int step,
                                              sums_of_tile<NT> &scaled)
{
    const int t = threadIdx.x % 4;
    uint32_t low[2][4], high[2][2], scales[2][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            low[r][i] = row[r][half * 16 + i * 4 + t];
        high[r][0] = row[r][32 + half * 8 + t], high[r][1] = row[r][32 + half * 8 + 4 + t];
        scales[r][0] = row[r][48 + half * 2], scales[r][1] = row[r][49 + half * 2];
    }
#pragma unroll
    for (int part = 0; part < 4; part++) {
        uint32_t q[2][2];
        int scale[2][2];
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                q[r][i] = centre_q6((low[r][part % 2 * 2 + i] >> part / 2 * 4 & 0x0f0f0f0fu) |
                                    (high[r][i] >> part * 2 & 0x03030303u) << 4);
                scale[r][i] = (int)(int8_t)(scales[r][part / 2] >> (part % 2 * 2 + i) * 8 & 0xffu);
            }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint2 v = x.bytes(step + part, n);
            const float2 of_x = x.scales(step + part, n);
            int first[4], second[4];
            mma_half(first, q[0][0], q[1][0], v.x);
            mma_half(second, q[0][1], q[1][1], v.y);
#pragma unroll
            for (int i = 0; i < 4; i++)
                scaled.at[n][i] +=
                    (i % 2 ? of_x.y : of_x.x) * (float)(first[i] * scale[i / 2][0] + second[i] * scale[i / 2][1]);
        }
    }
}

template <int NT>
__device__ __forceinline__ void add_q6_k(const char *rows, const x_fragments<NT> &x, int step, sums_of_tile<NT> &sums)
{
    const char *other = rows + 8 * tile_format<TARN_Q6_K>::pitch;
    const even_row row[2] = {even_row(rows), even_row(other)};
    const float scale[2] = {scale_of(*(const uint16_t *)(rows + 208)), scale_of(*(const uint16_t *)(other + 208))};
    sums_of_tile<NT> scaled = {};
    add_q6_k_half<NT>(row, 0, x, step, scaled);
    add_q6_k_half<NT>(row, 1, x, step + 4, scaled);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums.at[n][i] += scale[i / 2] * scaled.at[n][i];
}

#endif
