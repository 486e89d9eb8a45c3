/* decode_mma_x.cuh: x as the tensor-core kernels of a decode step read it: fragments of rows that are normalized and
 * quantized as in the other kernels, in shared memory, or of floats straight from global memory. */
#ifndef TARN__CUDA_DECODE_MMA_X_CUH
#define TARN__CUDA_DECODE_MMA_X_CUH

#include "backends/cuda/decode/decode_mma.cuh"

/* ---- four elements ----------------------------------------------------------------------------------------------- */

/* Four elements as loaded. */
template <typename T> struct four {
    uint2 words;
};
template <typename T> __device__ __forceinline__ void widen_four(const four<T> &x, float *v)
{
    widen_vec(*(const vec<T, 4> *)&x, v);
}
template <typename T> __device__ __forceinline__ void narrow_four(const float *v, four<T> &x)
{
    narrow_vec(v, *(vec<T, 4> *)&x);
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* A piece of x is 32 elements of up to eight rows, distributed over the lanes as in a fragment: lane l has elements of
 * row l / 4. With fewer rows a piece is several times 32 elements of each. */
struct x_pieces {
    int shift, row, step; /* log2 of the multiple; the lane's row, and which 32 elements it has */

    __device__ __forceinline__ x_pieces(int rows)
    {
        const int g = threadIdx.x % WARP / 4;
        shift = rows > 4 ? 0 : rows > 2 ? 1 : rows > 1 ? 2 : 3;
        row = g & ((COLUMNS >> shift) - 1), step = g >> (3 - shift);
    }
};

/* The pieces of a warp: first, first + stride, … of those of the groups of 32 elements `begin` … `end` - 1. Consecutive
 * pieces have the same elements of other rows. */
template <int NT> struct x_range {
    int first, stride, begin, end, count;

    __device__ __forceinline__ x_range(const x_pieces &p, int at, int by, int from, int to)
    {
        first = at, stride = by, begin = from, end = to;
        count = ((to - from + (1 << p.shift) - 1) >> p.shift) * NT;
    }
    __device__ __forceinline__ bool has(int i) const
    {
        return first + i * stride < count;
    }
};

/* Where fragments are stored: one per 32 elements from `first` on. */
template <int NT> struct x_stage {
    char *base;
    float *scale, *sum;
    int first;
};

enum { BATCH = 4 }; /* pieces at a time: four lanes each divide for one of them */

__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}

/* Bits of the largest absolute value of a lane's eight elements. */
template <typename T> __device__ __forceinline__ uint32_t largest_bits(const four<T> *x)
{
    uint32_t bits = 0;
    float v[8];
    widen_four(x[0], v), widen_four(x[1], v + 4);
#pragma unroll
    for (int k = 0; k < 8; k++)
        bits = max(bits, __float_as_uint(v[k]) & 0x7fffffffu);
    bits = max(bits, __shfl_xor_sync(FULL_WARP, bits, 1));
    return max(bits, __shfl_xor_sync(FULL_WARP, bits, 2));
}
template <> __device__ __forceinline__ uint32_t largest_bits<bf16>(const four<bf16> *x)
{
    enum { abs = 0x7fff7fff };
    uint32_t bits =
        __vmaxu2(__vmaxu2(x[0].words.x & abs, x[0].words.y & abs), __vmaxu2(x[1].words.x & abs, x[1].words.y & abs));
    bits = __vmaxu2(bits, __shfl_xor_sync(FULL_WARP, bits, 1));
    bits = __vmaxu2(bits, __shfl_xor_sync(FULL_WARP, bits, 2));
    return max(bits << 16, bits & 0xffff0000u);
}

/* Pieces of a warp, eight elements per lane: adjacent ones for float weights, else words l % 4 and l % 4 + 4. */
template <typename T, int NT, bool is_float> struct x_batch {
    four<T> at[BATCH][2];

    /* A lane's row and its 32 elements in piece i; false if there are none. */
    static __device__ __forceinline__ bool find(const decode_x &x, const x_pieces &p, const x_range<NT> &r, int i,
                                                int *row, int *step)
    {
        const int id = r.first + i * r.stride;
        *row = id % NT * COLUMNS + p.row;
        *step = r.begin + ((id / NT) << p.shift) + p.step;
        return *row < x.rows && *step < r.end;
    }
    /* Pieces of rows `down` elements apart. */
    __device__ __forceinline__ void load(const decode_x &x, const x_pieces &p, const x_range<NT> &r, const void *base,
                                         int64_t down)
    {
        const T *from = (const T *)base + threadIdx.x % 4 * (is_float ? 8 : 4);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int row, step;
            at[i][0] = at[i][1] = four<T>{};
            if (r.has(i) && find(x, p, r, i, &row, &step)) {
                const T *here = from + row * down + step * 32;
                at[i][0] = *(const four<T> *)here, at[i][1] = *(const four<T> *)(here + (is_float ? 4 : 16));
            }
        }
    }
    /* Sums of the elements, or of the squares of (x - mean), one per row and 32 elements. */
    template <bool is_square>
    __device__ __forceinline__ void put_sums(const decode_x &x, const x_pieces &p, const x_range<NT> &r,
                                             const float *mean, float *to) const
    {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (!r.has(i))
                break;
            int row, step;
            const float centre = (r.first + i * r.stride) % NT ? mean[NT - 1] : mean[0];
            float v[8], sum = 0;
            widen_four(at[i][0], v), widen_four(at[i][1], v + 4);
#pragma unroll
            for (int k = 0; k < 8; k++)
                sum += is_square ? (v[k] - centre) * (v[k] - centre) : v[k];
            sum = quad_sum(sum);
            if (find(x, p, r, i, &row, &step) && threadIdx.x % 4 == 0)
                to[step * (NT * COLUMNS) + row] = sum;
        }
    }
    /* (x - mean) · factor · (offset + weight) + bias, rounded to T as the operation would. */
    __device__ __forceinline__ void normalize(const x_range<NT> &r, const x_batch &weight, const x_batch &bias,
                                              const float *mean, const float *factor, float offset)
    {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (!r.has(i))
                break;
            const bool is_second = (r.first + i * r.stride) % NT != 0;
            const float by = is_second ? factor[NT - 1] : factor[0], centre = is_second ? mean[NT - 1] : mean[0];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float v[4], w[4], b[4];
                widen_four(at[i][half], v), widen_four(weight.at[i][half], w), widen_four(bias.at[i][half], b);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    v[k] = (v[k] - centre) * by * (w[k] + offset) + b[k];
                narrow_four(v, at[i][half]);
            }
        }
    }
    __device__ __forceinline__ void put_floats(const decode_x &x, const x_pieces &p, const x_range<NT> &r,
                                               const x_stage<NT> &to) const
    {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int row, step;
            if (!r.has(i))
                break;
            if (find(x, p, r, i, &row, &step))
                ((uint4 *)
                     to.base)[((step - to.first) * NT + row / COLUMNS) * WARP + row % COLUMNS * 4 + threadIdx.x % 4] =
                    make_uint4(at[i][0].words.x, at[i][0].words.y, at[i][1].words.x, at[i][1].words.y);
        }
    }
    /* Quantizes to 8 bits with a scale per 32 elements, as quant_matmul.cu does. NaN where one is not finite. */
    __device__ __forceinline__ void put_bytes(const decode_x &x, const x_pieces &p, const x_range<NT> &r,
                                              const x_stage<NT> &to) const
    {
        const int t = threadIdx.x % 4, quad = threadIdx.x % WARP & ~3;
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (r.has(i)) {
                const uint32_t of_piece = largest_bits<T>(at[i]);
                bits = t == i ? of_piece : bits;
            }
        /* lane l % 4 = i divides for piece i */
        const bool is_finite = bits < 0x7f800000u, is_tiny = bits < 0x04800000u;
        const float largest = __uint_as_float(bits),
                    my_inverse = is_finite && !is_tiny ? __fdiv_rn(127.0f, largest) : 0,
                    my_scale = !is_finite ? CUDART_NAN_F
                               : is_tiny  ? 0
                                          : __fdiv_rn(largest, 127.0f);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (!r.has(i))
                break;
            const float inverse = __shfl_sync(FULL_WARP, my_inverse, quad + i),
                        scale = __shfl_sync(FULL_WARP, my_scale, quad + i);
            float v[8];
            uint32_t q[8];
            int row, step, sum = 0;
            widen_four(at[i][0], v), widen_four(at[i][1], v + 4);
#pragma unroll
            for (int k = 0; k < 8; k++)
                q[k] = __float_as_uint(__fadd_rn(__fmul_rn(v[k], inverse), BIAS_FLOAT));
            const uint2 words =
                make_uint2(__byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410),
                           __byte_perm(__byte_perm(q[4], q[5], 0x0040), __byte_perm(q[6], q[7], 0x0040), 0x5410));
            if (to.sum) {
                sum = __dp4a((int)words.x, 0x01010101, __dp4a((int)words.y, 0x01010101, 0));
                sum += __shfl_xor_sync(FULL_WARP, sum, 1);
                sum += __shfl_xor_sync(FULL_WARP, sum, 2);
            }
            if (!find(x, p, r, i, &row, &step))
                continue;
            const int at_step = step - to.first, tile = row / COLUMNS, column = row % COLUMNS,
                      block = at_step * NT + tile;
            ((uint2 *)to.base)[block * WARP + column * 4 + t] = words;
            if (t != 0)
                continue;
            to.scale[block * COLUMNS + column] = scale;
            if (to.sum) {
                const float scaled = scale * (float)sum, part = tf32_part(scaled);
                float *parts =
                    to.sum + ((at_step / 8 * NT + tile) * WARP + column * 4 + at_step % 4) * 4 + at_step % 8 / 4;
                parts[0] = part, parts[2] = scaled - part;
            }
        }
    }
    __device__ __forceinline__ void put(const decode_x &x, const x_pieces &p, const x_range<NT> &r,
                                        const x_stage<NT> &to) const
    {
        if constexpr (is_float)
            put_floats(x, p, r, to);
        else
            put_bytes(x, p, r, to);
    }
};

/* ---- norm -------------------------------------------------------------------------------------------------------- */

/* Adds the `steps` partial sums of each of a lane's rows, in an order that does not depend on the number of rows. */
template <int NT>
__device__ __forceinline__ void total_rows(const float *sums, const x_pieces &p, int steps, float *total)
{
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const float *from = sums + n * COLUMNS + p.row;
        float sum = 0;
#pragma unroll 8
        for (int i = threadIdx.x % 4; i < steps; i += 4)
            sum += from[i * (NT * COLUMNS)];
        total[n] = quad_sum(sum);
    }
}

/* Normalizes and stages all of x, by all threads of the block. `norm` has the norm's weights of a warp's first batch.
 * `sums` may be used again after the next __syncthreads(). */
template <typename T, int NT, bool is_float>
__device__ __forceinline__ void stage_x(const decode_x &x, const x_pieces &p, x_batch<T, NT, is_float> &norm,
                                        const x_stage<NT> &to, float *sums)
{
    typedef x_batch<T, NT, is_float> batch;
    const int warps = blockDim.x / WARP, steps = x.in / 32;
    const x_range<NT> mine(p, threadIdx.x / WARP, warps, 0, steps);
    float mean[NT] = {}, factor[NT];
    batch held, more;
    held.load(x, p, mine, x.base, x.down);
    /* calls act(batch, range) with the batches after the first */
    const auto for_rest = [&](auto act) {
        x_range<NT> range = mine;
#pragma unroll 1
        for (range.first += BATCH * warps; range.first < range.count; range.first += BATCH * warps) {
            more.load(x, p, range, x.base, x.down);
            act(range);
        }
    };
    if (x.is_centred) {
        held.template put_sums<false>(x, p, mine, mean, sums);
        for_rest([&](const x_range<NT> &range) { more.template put_sums<false>(x, p, range, mean, sums); });
        __syncthreads();
        total_rows<NT>(sums, p, steps, mean);
#pragma unroll
        for (int n = 0; n < NT; n++)
            mean[n] /= (float)x.in;
        __syncthreads();
    }
    held.template put_sums<true>(x, p, mine, mean, sums);
    for_rest([&](const x_range<NT> &range) { more.template put_sums<true>(x, p, range, mean, sums); });
    __syncthreads();
    total_rows<NT>(sums, p, steps, factor);
#pragma unroll
    for (int n = 0; n < NT; n++)
        factor[n] = 1.0f / sqrtf(factor[n] / (float)x.in + x.epsilon);
    batch bias = {};
    if (x.norm_bias)
        bias.load(x, p, mine, x.norm_bias, 0);
    held.normalize(mine, norm, bias, mean, factor, x.offset);
    held.put(x, p, mine, to);
    for_rest([&](const x_range<NT> &range) {
        norm.load(x, p, range, x.norm, 0);
        if (x.norm_bias)
            bias.load(x, p, range, x.norm_bias, 0);
        more.normalize(range, norm, bias, mean, factor, x.offset);
        more.put(x, p, range, to);
    });
}

/* ---- floats without a norm --------------------------------------------------------------------------------------- */

/* Fragments of floats straight from global memory, one unit ahead. Columns past the end repeat the last row. */
template <typename T, int NT> struct x_ahead {
    const char *row[NT];
    uint4 next[2 * NT];

    __device__ __forceinline__ void start(const decode_x &x)
    {
#pragma unroll
        for (int n = 0; n < NT; n++)
            row[n] = (const char *)((const T *)x.base +
                                    min(n * COLUMNS + (int)(threadIdx.x % WARP / 4), x.rows - 1) * x.down) +
                     threadIdx.x % 4 * 16;
    }
    __device__ __forceinline__ void load(int unit)
    {
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int n = 0; n < NT; n++)
                next[s * NT + n] = *(const uint4 *)(row[n] + (unit * 2 + s) * 64);
    }
};

#endif
