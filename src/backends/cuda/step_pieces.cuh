/* step_pieces.cuh: pieces of two rows of a weight, in a warp's shared memory, multiplied by rows of x: what step_product.cu goes through its weights with. */
#ifndef TARN__CUDA_STEP_PIECES_CUH
#define TARN__CUDA_STEP_PIECES_CUH

#include "backends/cuda/step_x.cuh"

#define PAIR 2 /* rows of the weights that a warp has at a time */

/* Elements of a piece of a row, its bytes, and places of the ring, each for a piece of both rows. Where rows need not begin at 16 bytes' alignment, a place has room for
 * what comes before, and for reading behind. */
template <tarn_dtype Q> struct piece_of;
template <> struct piece_of<TARN_F32> {
    enum { elements = 512, bytes = 2048, place = 2048, places = 2, is_bytes = 0, is_aligned = 1 };
};
template <> struct piece_of<TARN_BF16> {
    enum { elements = 1024, bytes = 2048, place = 2048, places = 2, is_bytes = 0, is_aligned = 1 };
};
template <> struct piece_of<TARN_F16> {
    enum { elements = 1024, bytes = 2048, place = 2048, places = 2, is_bytes = 0, is_aligned = 1 };
};
template <> struct piece_of<TARN_Q8_0> {
    enum { elements = 2048, bytes = 64 * 34, place = bytes + 32, places = 2, is_bytes = 1, is_aligned = 0 };
};
template <> struct piece_of<TARN_Q4_0> {
    enum { elements = 2048, bytes = 64 * 18, place = bytes + 32, places = 3, is_bytes = 1, is_aligned = 0 };
};
template <> struct piece_of<TARN_Q4_K> {
    enum { elements = 2048, bytes = 8 * 144, place = bytes, places = 3, is_bytes = 1, is_aligned = 1 };
};
template <> struct piece_of<TARN_Q6_K> {
    enum { elements = 2048, bytes = 8 * 210, place = bytes + 32, places = 2, is_bytes = 1, is_aligned = 0 };
};

template <typename T> __device__ __forceinline__ void open_pack(const char *from, float *w)
{
    widen_pack(*(const pack<T, 8> *)from, w);
}

/* Adds the products of a piece of 16-bit floats, from group `first` of x on. */
template <typename T, int R, int PLACE> __device__ __forceinline__ void add_short(const char *place, int bytes, const held_x &x, int first, float (*sums)[R])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int pack = threadIdx.x % WARP + i * WARP;
        if (pack * 16 >= bytes)
            return;
        float w[PAIR][8];
#pragma unroll
        for (int n = 0; n < PAIR; n++)
            open_pack<T>(place + n * PLACE + pack * 16, w[n]);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 low = x.floats(r, first + pack, 0), high = x.floats(r, first + pack, 1);
#pragma unroll
            for (int n = 0; n < PAIR; n++)
                sums[n][r] += w[n][0] * low.x + w[n][1] * low.y + w[n][2] * low.z + w[n][3] * low.w +
                              (w[n][4] * high.x + w[n][5] * high.y + w[n][6] * high.z + w[n][7] * high.w);
        }
    }
}

template <int R, int PLACE> __device__ __forceinline__ void add_f32(const char *place, int bytes, const held_x &x, int first, float (*sums)[R])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int pack = threadIdx.x % WARP + i * WARP;
        if (pack * 16 >= bytes)
            return;
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 v = x.floats(r, first + pack / 2, pack % 2);
#pragma unroll
            for (int n = 0; n < PAIR; n++) {
                float4 w = *(const float4 *)(place + n * PLACE + pack * 16);
                sums[n][r] += w.x * v.x + w.y * v.y + w.z * v.z + w.w * v.w;
            }
        }
    }
}

__device__ __forceinline__ int dot_16(const int *q, const int4 &x)
{
    return __dp4a(q[0], x.x, __dp4a(q[1], x.y, __dp4a(q[2], x.z, __dp4a(q[3], x.w, 0))));
}

/* Two groups of 32 of a Q4_K block: nibbles, and scales and leasts of both. */
struct pair_of_groups {
    int q[2][8];
    float scale[2], least[2];
};

/* Pair `pair` of a piece that lies at 16 bytes' alignment. The six bits of scales and leasts of both groups are taken from their words together. */
__device__ __forceinline__ pair_of_groups open_pair(const char *piece, int pair)
{
    const char *block = piece + pair / 4 * (int)sizeof(tarn__q4_k);
    const uint4 head = *(const uint4 *)block, a = *(const uint4 *)(block + 16 + pair % 4 * 32), b = *(const uint4 *)(block + 32 + pair % 4 * 32);
    const uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, shift = pair % 2 * 16;
    const uint32_t one = head.y >> shift, two = head.z >> shift, three = head.w >> shift;
    const uint32_t scales = pair % 4 < 2 ? one & 0x3f3fu : (three & 0x0f0fu) | (one >> 2 & 0x3030u);
    const uint32_t leasts = pair % 4 < 2 ? two & 0x3f3fu : (three >> 4 & 0x0f0fu) | (two >> 2 & 0x3030u);
    const float scale = scale_of((uint16_t)head.x), least = scale_of((uint16_t)(head.x >> 16));
    pair_of_groups p;
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            p.q[k][i] = (int)(words[i] >> k * 4 & 0x0f0f0f0fu);
        p.scale[k] = scale * (float)(scales >> k * 8 & 0xffu);
        p.least[k] = least * (float)(leasts >> k * 8 & 0xffu);
    }
    return p;
}

/* A lane has two groups, which share their bytes. */
template <int R, int PLACE> __device__ __forceinline__ void add_q4_k(const char *place, int units, const held_x &x, int first, float (*sums)[R])
{
    const int pair = threadIdx.x % WARP;
    if (pair * 2 >= units)
        return;
    pair_of_groups p[PAIR];
#pragma unroll
    for (int n = 0; n < PAIR; n++)
        p[n] = open_pair(place + n * PLACE, pair);
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int unit = first + pair * 2 + k;
            const int4 low = x.bytes(r, unit, 0), high = x.bytes(r, unit, 1);
            const float2 of_x = x.scale(r, unit);
#pragma unroll
            for (int n = 0; n < PAIR; n++)
                sums[n][r] += p[n].scale[k] * of_x.x * (float)(dot_16(p[n].q[k], low) + dot_16(p[n].q[k] + 4, high)) - p[n].least[k] * of_x.y;
        }
}

/* A unit of 32 elements a lane. The two groups of a unit have scales of their own in Q6_K alone. */
template <tarn_dtype Q, int R> __device__ __forceinline__ void add_units(const char *const *piece, int units, const held_x &x, int first, float (*sums)[R])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int at = threadIdx.x % WARP + i * WARP;
        if (at >= units)
            return;
        unit_of_weight w[PAIR];
#pragma unroll
        for (int n = 0; n < PAIR; n++)
            w[n] = open_unit<Q>(piece[n], at);
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float2 of_x = x.scale(r, first + at);
            const int4 low = x.bytes(r, first + at, 0), high = x.bytes(r, first + at, 1);
#pragma unroll
            for (int n = 0; n < PAIR; n++) {
                int one = dot_16(w[n].q, low), two = dot_16(w[n].q + 4, high);
                if (Q == TARN_Q6_K) {
                    int2 sum = x.sums(r, first + at);
                    sums[n][r] += of_x.x * (w[n].scale[0] * (float)(one - 32 * sum.x) + w[n].scale[1] * (float)(two - 32 * sum.y));
                } else {
                    sums[n][r] += w[n].scale[0] * of_x.x * (float)(one + two) - (Q == TARN_Q4_0 ? w[n].least[0] * of_x.y : 0);
                }
            }
        }
    }
}

/* Adds the products of piece `number` of both rows, of `in` elements, with R rows of x. `shift` is where within 16 bytes the rows begin. */
template <tarn_dtype Q, int R>
__device__ __forceinline__ void add_piece(int in, int number, const char *place, const int *shift, const held_x &x, float (*sums)[R])
{
    enum { elements = piece_of<Q>::elements, room = piece_of<Q>::place };
    const int left = min(in - number * (int)elements, (int)elements);
    if constexpr (Q == TARN_BF16)
        add_short<bf16, R, room>(place, left * 2, x, number * (elements / 8), sums);
    else if constexpr (Q == TARN_F16)
        add_short<f16, R, room>(place, left * 2, x, number * (elements / 8), sums);
    else if constexpr (Q == TARN_F32)
        add_f32<R, room>(place, left * 4, x, number * (elements / 8), sums);
    else if constexpr (Q == TARN_Q4_K)
        add_q4_k<R, room>(place, left / UNIT, x, number * (elements / UNIT), sums);
    else {
        const int skip = number * (int)piece_of<Q>::bytes;
        const char *const piece[PAIR] = {place + ((shift[0] + skip) & 15), place + room + ((shift[1] + skip) & 15)};
        add_units<Q, R>(piece, left / UNIT, x, number * (elements / UNIT), sums);
    }
}

#endif
