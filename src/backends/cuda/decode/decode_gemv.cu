/* decode_gemv.cu: GEMV with a few rows of x, as in decoding: bound by the bytes of the weight. Norm of x, and bias,
 * activation, residual or gate are fused.
 *
 * A warp computes one element of y, then others. Chunks of the weight's row go to a ring in the warp's own shared
 * memory, as many ahead as it has slots; all blocks together have megabytes in flight and keep loading while they
 * compute. x is staged in the block's shared memory, f32 for float weights, else 8 bits (decode_x.cuh). Sums run in an
 * order fixed by the shape. */
#include "backends/cuda/decode/decode_gemv.cuh"
#include "backends/cuda/matmul/rows_matmul.h"

#define HEAD_JOBS 32768 /* min elements of y of a head */
#define RING_BYTES 4704 /* per warp: with MAX_BYTE_ROW elements of x, 16 warps stay within 99 KiB */

/* ---- chunks of weights ------------------------------------------------------------------------------------------- */

/* Rings of 16-bit floats: one that fits beside MAX_ROW elements of x; a deep one, where two blocks still fit a
 * multiprocessor, to load more before x is known; a deep one of shorter chunks, of which rows of 2,304 elements, say,
 * are a multiple. */
enum ring_form { RING, DEEP_RING, SHORT_CHUNKS };

/* Elements and bytes of a chunk, and slots of the ring. A slot has space for a row that starts anywhere within 16
 * bytes, and for reads past its end. */
template <tarn_dtype Q, ring_form = RING> struct chunk_of {
    enum {
        elements = 2048,
        bytes = elements / quant_format<Q>::elements * quant_format<Q>::bytes,
        slot_bytes = bytes + 32,
        slots = RING_BYTES / slot_bytes,
        is_quantized = 1
    };
};
template <> struct chunk_of<TARN_F32> {
    enum { elements = 512, bytes = 2048, slot_bytes = 2048, slots = 2, is_quantized = 0 };
};
template <> struct chunk_of<TARN_BF16> {
    enum { elements = 1024, bytes = 2048, slot_bytes = 2048, slots = 2, is_quantized = 0 };
};
template <> struct chunk_of<TARN_F16> {
    enum { elements = 1024, bytes = 2048, slot_bytes = 2048, slots = 2, is_quantized = 0 };
};
template <> struct chunk_of<TARN_BF16, DEEP_RING> {
    enum { elements = 1024, bytes = 2048, slot_bytes = 2048, slots = 3, is_quantized = 0 };
};
template <> struct chunk_of<TARN_F16, DEEP_RING> : chunk_of<TARN_BF16, DEEP_RING> {
};
template <> struct chunk_of<TARN_BF16, SHORT_CHUNKS> {
    enum { elements = 768, bytes = 1536, slot_bytes = 1536, slots = 4, is_quantized = 0 };
};
template <> struct chunk_of<TARN_F16, SHORT_CHUNKS> : chunk_of<TARN_BF16, SHORT_CHUNKS> {
};
template <> struct chunk_of<TARN_Q8_0> {
    enum { elements = 2048, bytes = 64 * 34, slot_bytes = bytes + 32, slots = 2, is_quantized = 1 };
};
template <> struct chunk_of<TARN_Q4_0> {
    enum { elements = 2048, bytes = 64 * 18, slot_bytes = bytes + 32, slots = 3, is_quantized = 1 };
};
template <> struct chunk_of<TARN_Q4_K> {
    enum { elements = 2048, bytes = 8 * 144, slot_bytes = bytes, slots = 3, is_quantized = 1 };
};
template <> struct chunk_of<TARN_Q6_K> {
    enum { elements = 2048, bytes = 8 * 210, slot_bytes = bytes + 32, slots = 2, is_quantized = 1 };
};

/* Position of a warp: an element of y (a job), which of a gated job's two rows, and which chunk. */
struct cursor {
    int64_t job;
    int half, chunk;
};

/* Chunks first, then the gated job's second row, then the warp's next job. */
__device__ __forceinline__ void advance(const gemv_args &a, cursor &c)
{
    if (++c.chunk < a.chunks)
        return;
    c.chunk = 0;
    if (++c.half <= a.is_gated)
        return;
    c.half = 0;
    c.job += (int64_t)gridDim.x * DECODE_WARPS;
}

/* The weight that a job's row belongs to, and its row there. */
__device__ __forceinline__ int weight_of_job(const gemv_args &a, const cursor &c, int64_t *row)
{
    int which = c.half;
    *row = c.job;
    if (!a.is_gated)
        while (which < 2 && *row >= a.weight[which].out)
            *row -= a.weight[which++].out;
    return which;
}

/* The next chunk that a warp loads, and its address. */
struct prefetcher {
    cursor c;
    const char *from;

    __device__ __forceinline__ void find_row(const gemv_args &a)
    {
        int64_t row;
        int which = weight_of_job(a, c, &row);
        if (c.job < a.jobs)
            from = a.weight[which].base + row * a.weight[which].pitch;
    }
    /* Loads the next chunk, if any, and advances. Bytes before an unaligned start, in the same 16, come along. Always
     * closes a group of copies: the ring counts groups. */
    template <typename C> __device__ __forceinline__ void prefetch(const gemv_args &a, char *slot)
    {
        if (c.job < a.jobs) {
            const int shift = C::is_quantized ? (int)((uintptr_t)from & 15) : 0, at = threadIdx.x % WARP * 16;
            const int left = min((int)a.row_bytes - c.chunk * (int)C::bytes, (int)C::bytes) + shift - at;
            const char *first = from - shift + at;
#pragma unroll
            for (int i = 0; i < C::slot_bytes; i += WARP * 16)
                if (i < left)
                    copy_async16(slot + at + i, first + i, C::is_quantized ? min(left - i, 16) : 16);
            from += C::bytes;
            advance(a, c);
            if (c.chunk == 0)
                find_row(a);
        }
        commit_copies();
    }
};

/* ---- multiply ---------------------------------------------------------------------------------------------------- */

template <typename T> __device__ __forceinline__ void widen_vec8(const char *from, float *w);
template <> __device__ __forceinline__ void widen_vec8<bf16>(const char *from, float *w)
{
    widen_vec(*(const vec<bf16, 8> *)from, w);
}
template <> __device__ __forceinline__ void widen_vec8<f16>(const char *from, float *w)
{
    widen_vec(*(const vec<f16, 8> *)from, w);
}

/* Adds the products of a chunk of 16-bit floats, from group `first` of x on. */
template <typename T, int R>
__device__ __forceinline__ void add_f16(const char *chunk, int bytes, const staged_x &x, int first, float *sums)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int vec = threadIdx.x % WARP + i * WARP;
        if (vec * 16 >= bytes)
            return;
        float w[8];
        widen_vec8<T>(chunk + vec * 16, w);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 low = x.floats(r, first + vec, 0), high = x.floats(r, first + vec, 1);
            sums[r] += w[0] * low.x + w[1] * low.y + w[2] * low.z + w[3] * low.w +
                       (w[4] * high.x + w[5] * high.y + w[6] * high.z + w[7] * high.w);
        }
    }
}

/* The same for f32 weights: 4 elements per vector. */
template <int R>
__device__ __forceinline__ void add_f32(const char *chunk, int bytes, const staged_x &x, int first, float *sums)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int vec = threadIdx.x % WARP + i * WARP;
        if (vec * 16 >= bytes)
            return;
        float4 w = *(const float4 *)(chunk + vec * 16);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float4 v = x.floats(r, first + vec / 2, vec % 2);
            sums[r] += w.x * v.x + w.y * v.y + w.z * v.z + w.w * v.w;
        }
    }
}

/* 16 products of bytes in four dp4a. */
__device__ __forceinline__ int dot_16(const int *q, const int4 &x)
{
    return __dp4a(q[0], x.x, __dp4a(q[1], x.y, __dp4a(q[2], x.z, __dp4a(q[3], x.w, 0))));
}

/* Two groups of 32 share their bytes: a lane takes both. Q4_K chunks are 16-byte aligned. */
template <int R>
__device__ __forceinline__ void add_q4_k(const char *chunk, int units, const staged_x &x, int first, float *sums)
{
    int pair = threadIdx.x % WARP;
    if (pair * 2 >= units)
        return;
    const tarn__q4_k *block = (const tarn__q4_k *)chunk + pair / 4;
    const uint4 *from = (const uint4 *)(block->q + pair % 4 * 32);
    uint4 a = from[0], b = from[1];
    uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float scale = scale_of(block->scale), block_min = scale_of(block->min);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int q[8], group_scale, group_min, unit = first + pair * 2 + k;
#pragma unroll
        for (int i = 0; i < 8; i++)
            q[i] = (int)(words[i] >> k * 4 & 0x0f0f0f0fu);
        q4_k_scales(block->scales, pair % 4 * 2 + k, &group_scale, &group_min);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float2 of_x = x.scale(r, unit);
            int sum = dot_16(q, x.bytes(r, unit, 0)) + dot_16(q + 4, x.bytes(r, unit, 1));
            sums[r] += scale * (float)group_scale * of_x.x * (float)sum - block_min * (float)group_min * of_x.y;
        }
    }
}

/* One unit of 32 elements per lane, then another; both at once would spill registers in Q3_K and Q5_K. */
template <tarn_dtype Q, int R>
__device__ __forceinline__ void add_units(const char *chunk, int units, const staged_x &x, int first, float *sums)
{
#pragma unroll(Q == TARN_Q3_K || Q == TARN_Q5_K ? 1 : 2)
    for (int i = 0; i < 2; i++) {
        int at = threadIdx.x % WARP + i * WARP;
        if (at >= units)
            return;
        quant_unit w = unpack_unit<Q>(chunk, at);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float2 of_x = x.scale(r, first + at);
            int one = dot_16(w.q, x.bytes(r, first + at, 0)), two = dot_16(w.q + 4, x.bytes(r, first + at, 1));
            if (Q == TARN_Q6_K) {
                int2 sum = x.sums(r, first + at);
                sums[r] += of_x.x * (w.scale[0] * (float)(one - 32 * sum.x) + w.scale[1] * (float)(two - 32 * sum.y));
            } else if (unit_traits<Q>::has_halves) {
                int2 sum = x.sums(r, first + at);
                sums[r] += of_x.x * (w.scale[0] * (float)one - w.min[0] * (float)sum.x +
                                     (w.scale[1] * (float)two - w.min[1] * (float)sum.y));
            } else {
                sums[r] += w.scale[0] * of_x.x * (float)(one + two) - (unit_traits<Q>::has_min ? w.min[0] * of_x.y : 0);
            }
        }
    }
}

/* Adds the products of a chunk with R rows of x. */
template <tarn_dtype Q, typename C, int R>
__device__ __forceinline__ void add_chunk(const gemv_args &a, const cursor &c, const char *slot, const staged_x &x,
                                          float *sums)
{
    int64_t row, skip = (int64_t)c.chunk * C::bytes;
    int which = weight_of_job(a, c, &row), bytes = (int)min(a.row_bytes - skip, (int64_t)C::bytes);
    int left = min(a.x.in - c.chunk * C::elements, (int)C::elements);
    if (Q == TARN_BF16)
        add_f16<bf16, R>(slot, bytes, x, c.chunk * (C::elements / 8), sums);
    else if (Q == TARN_F16)
        add_f16<f16, R>(slot, bytes, x, c.chunk * (C::elements / 8), sums);
    else if (Q == TARN_F32)
        add_f32<R>(slot, bytes, x, c.chunk * (C::elements / 8), sums);
    else if (Q == TARN_Q4_K)
        add_q4_k<R>(slot, left / UNIT, x, c.chunk * (C::elements / UNIT), sums);
    else if constexpr (C::is_quantized)
        add_units<Q, R>(slot + ((uintptr_t)(a.weight[which].base + row * a.weight[which].pitch + skip) & 15),
                        left / UNIT, x, c.chunk * (C::elements / UNIT), sums);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Lane r loads the addend for row r of x. */
__device__ __forceinline__ void load_addend(const gemv_args &a, const cursor &c, int64_t first, int rows, addend &extra)
{
    int64_t row = c.job;
    int lane = threadIdx.x % WARP;
    if (c.job < a.jobs && lane < rows && !a.is_gated)
        extra.load(a, a.weight[weight_of_job(a, c, &row)], row, first + lane);
}

/* Writes y of a job for all rows of x. */
template <int R, bool is_general>
__device__ __forceinline__ void write_job(const gemv_args &a, const cursor &c, int64_t first, int rows,
                                          const float *sums, const float *gates, const addend &extra)
{
    int64_t row = c.job;
    const gemv_weight &w = a.weight[a.is_gated ? 0 : weight_of_job(a, c, &row)];
    int lane = threadIdx.x % WARP;
    float value = sums[0], gate = gates[0];
#pragma unroll
    for (int r = 1; r < R; r++) {
        value = lane == r ? sums[r] : value;
        gate = lane == r ? gates[r] : gate;
    }
    if (lane >= rows)
        return;
    if (a.is_gated)
        value *= is_general ? activate(a.act, gate) : gate / (1 + expf(-gate));
    else
        value = is_general ? extra.add_general(a, w, value) : extra.add_to(a, w, value);
    store_float(w.y, a.x.dtype, (first + lane) * w.y_down + row, value);
}

template <tarn_dtype Q> static __host__ __device__ __forceinline__ constexpr x_layout x_layout_of(void)
{
    return chunk_of<Q>::is_quantized ? Q8_UNITS : F32_ROWS;
}

/* Q: dtype of the weight; FORM: of the ring; R: rows of x per block; is_general: any norm, activation and scale. FLOPs:
 * 2 · rows · in · out; bytes: the weight once per R rows. */
template <tarn_dtype Q, ring_form FORM, int R, bool is_general>
static __global__ void __launch_bounds__(DECODE_WARPS *WARP, R == 1 ? BLOCKS_PER_SM : 1)
    gemv_kernel(const __grid_constant__ gemv_args a)
{
    extern __shared__ __align__(16) char space[];
    typedef chunk_of<Q, FORM> C;
    enum { slots = C::slots };
    const int64_t first = (int64_t)blockIdx.y * R;
    const int rows = (int)min(a.x.rows - first, (int64_t)R), warp = threadIdx.x / WARP;
    const staged_x x = staged_x_at(space + DECODE_WARPS * slots * C::slot_bytes, a.x.in, x_layout_of<Q>());
    char *ring = space + warp * slots * C::slot_bytes;
    cursor now = {(int64_t)warp * gridDim.x + blockIdx.x, 0, 0};
    prefetcher ahead = {now, NULL};
    pdl_launch_dependents();
    ahead.find_row(a);
#pragma unroll 1
    for (int i = 0; i < slots; i++)
        ahead.prefetch<C>(a, ring + i * C::slot_bytes);
    prefetch_norm(a.x);
    /* weights are in flight; x is written by the previous kernel */
    pdl_wait();
    addend extra = {};
    load_addend(a, now, first, rows, extra);
    stage_rows<x_layout_of<Q>(), is_general>(a.x, first, rows, x);
    __syncthreads();
    float sums[R] = {}, gates[R] = {};
    for (int at = 0; now.job < a.jobs; at = at + 1 < slots ? at + 1 : 0) {
        wait_for_copies<slots - 1>();
        __syncwarp();
        add_chunk<Q, C, R>(a, now, ring + at * C::slot_bytes, x, sums);
        __syncwarp();
        ahead.prefetch<C>(a, ring + at * C::slot_bytes);
        if (now.chunk + 1 == a.chunks) {
#pragma unroll
            for (int r = 0; r < R; r++)
                sums[r] = warp_reduce<plus>(sums[r]);
            /* after the job's last row */
            if (now.half == a.is_gated)
                write_job<R, is_general>(a, now, first, rows, sums, gates, extra);
#pragma unroll
            for (int r = 0; r < R; r++)
                gates[r] = sums[r], sums[r] = 0;
        }
        advance(a, now);
        if (now.chunk == 0 && now.half == 0)
            load_addend(a, now, first, rows, extra);
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Dynamic shared memory of a block: the rings, and rows of x. */
template <typename C> static size_t shared_of(int rows)
{
    return (size_t)(DECODE_WARPS * C::slots * C::slot_bytes + rows);
}

/* Grid: as many blocks as are resident at once, or fewer; jobs go to blocks in turn, so that each has equally many,
 * give or take one; y: groups of R rows of x, each of which reads the weights. Bytes: the weights'. */
template <tarn_dtype Q, ring_form FORM, int R, bool is_general>
static void launch_ring(const tarn__call *call, const gemv_args &args)
{
    typedef chunk_of<Q, FORM> C;
    gemv_args a = args;
    a.chunks = (a.x.in + C::elements - 1) / C::elements;
    const size_t shared = shared_of<C>(R * staged_pitch(a.x.in, x_layout_of<Q>()));
    static_assert(C::slot_bytes % 16 == 0 && C::bytes % 16 == 0, "chunks are 16-byte vectors");
    int per_sm = 0;
    cudaFuncSetAttribute(gemv_kernel<Q, FORM, R, is_general>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, gemv_kernel<Q, FORM, R, is_general>, DECODE_WARPS * WARP,
                                                  shared);
    const int64_t needed = (a.jobs + DECODE_WARPS - 1) / DECODE_WARPS,
                  resident = (int64_t)(per_sm > 0 ? per_sm : 1) * tarn__cuda_at(call->device)->multiprocessors;
    launch_decode(call, gemv_kernel<Q, FORM, R, is_general>,
                  dim3(blocks_for(needed < resident ? needed : resident, 1), blocks_for(a.x.rows, R)),
                  DECODE_WARPS * WARP, shared, a);
}

/* One row of x and 16-bit floats: a deep ring, if two blocks have the memory. */
template <tarn_dtype Q, int R, bool is_general> static void launch(const tarn__call *call, const gemv_args &a)
{
    if constexpr (R == 1 && (Q == TARN_BF16 || Q == TARN_F16)) {
        const bool is_deep = two_blocks_fit(call, shared_of<chunk_of<Q, DEEP_RING>>(staged_pitch(a.x.in, F32_ROWS)));
        if (is_deep && a.x.in % 768 == 0 && a.x.in % 1024 != 0)
            return launch_ring<Q, SHORT_CHUNKS, R, is_general>(call, a);
        if (is_deep)
            return launch_ring<Q, DEEP_RING, R, is_general>(call, a);
    }
    launch_ring<Q, RING, R, is_general>(call, a);
}

/* Several rows of x share the loaded weights, if shared memory holds them. */
template <tarn_dtype Q> static void launch_rows(const tarn__call *call, gemv_args &a)
{
    a.row_bytes = tarn__bytes_of(Q, a.x.in);
    const int64_t shared = (int64_t)shared_of<chunk_of<Q>>(ROWS_AT_ONCE * staged_pitch(a.x.in, x_layout_of<Q>()));
    if (a.x.rows > 1 && shared + STATIC_SHARED <= tarn__cuda_at(call->device)->shared_bytes)
        is_general(a) ? launch<Q, ROWS_AT_ONCE, true>(call, a) : launch<Q, ROWS_AT_ONCE, false>(call, a);
    else
        is_general(a) ? launch<Q, 1, true>(call, a) : launch<Q, 1, false>(call, a);
}

/* Tensor cores for several rows of x, and for a single one with a head of Q6_K; else the two-rows-per-warp kernel is
 * preferred. */
static void launch_dtype(const tarn__call *call, gemv_args &a, tarn_dtype dtype)
{
    if (a.jobs == 0 || a.x.rows == 0)
        return;
    const bool has_tiles = a.x.rows > 1 || (dtype == TARN_Q6_K && a.jobs >= HEAD_JOBS);
    if ((has_tiles && tarn__cuda_decode_mma(call, a, dtype, true)) || tarn__cuda_decode_gemv_quant(call, a, dtype))
        return;
    switch (dtype) {
    case TARN_F32: launch_rows<TARN_F32>(call, a); break;
    case TARN_BF16: launch_rows<TARN_BF16>(call, a); break;
    case TARN_F16: launch_rows<TARN_F16>(call, a); break;
    default: with_format(dtype, [&](auto format) { launch_rows<decltype(format)::dtype>(call, a); }); break;
    }
}

/* Up to three weights (q, k, v) share one norm of x and one launch. */
static gemv_args norm_linear_args(const tarn__call *call)
{
    gemv_args a = args_of(call, call->in[1], input_at(call, 8));
    set_post(call, &a.x, 9, 10, 3);
    for (int i = 0; i < 3 && input_at(call, 2 + i); i++) {
        a.weight[i] = weight_of(call->in[2 + i], input_at(call, 5 + i), call->out[i]);
        a.jobs += a.weight[i].out;
    }
    return a;
}

static void kernel_norm_linear(const tarn__call *call)
{
    gemv_args a = norm_linear_args(call);
    launch_dtype(call, a, call->in[2]->dtype);
}

/* act(gate) · up: both rows of an output are one job, so no intermediate tensor. */
static gemv_args norm_gate_up_args(const tarn__call *call)
{
    gemv_args a = args_of(call, call->in[1], input_at(call, 4));
    set_post(call, &a.x, 5, 6, 1);
    a.weight[0] = weight_of(call->in[2], NULL, call->out[0]);
    a.weight[1] = weight_of(call->in[3], NULL, NULL);
    a.jobs = a.weight[0].out, a.is_gated = 1;
    return a;
}

static void kernel_norm_gate_up(const tarn__call *call)
{
    gemv_args a = norm_gate_up_args(call);
    launch_dtype(call, a, call->in[2]->dtype);
}

/* Output projections: bias and the residual stream are added in the epilogue. */
static gemv_args linear_residual_args(const tarn__call *call)
{
    gemv_args a = args_of(call, NULL, NULL);
    a.weight[0] = weight_of(call->in[1], call->in[2], call->out[0]);
    a.sum = tarn__view_at(call->in[3]), a.sum_down = call->in[3]->stride[0];
    a.jobs = a.weight[0].out;
    return a;
}

static void kernel_linear_residual(const tarn__call *call)
{
    gemv_args a = linear_residual_args(call);
    launch_dtype(call, a, call->in[1]->dtype);
}

/* ---- which calls fit --------------------------------------------------------------------------------------------- */

/* True if a block stages float rows of x: one, or ROWS_AT_ONCE of several, since for fewer at once the weight would be
 * read again. */
static bool float_rows_fit(const tarn__call *call, int64_t in)
{
    enum { rings = DECODE_WARPS * chunk_of<TARN_F32>::slots * chunk_of<TARN_F32>::slot_bytes };
    if (in <= MAX_ROW)
        return true;
    const tarn__cuda_device *device = tarn__cuda_at(call->device);
    const int64_t rows = call->in[0]->shape[0] > 1 ? ROWS_AT_ONCE : 1;
    return in <= MAX_BYTE_ROW && device &&
           rings + STATIC_SHARED + rows * staged_pitch((int)in, F32_ROWS) <= device->shared_bytes;
}

/* Quant blocks are read by bytes. */
static bool weight_fits(const tarn__call *call, const tarn__view *weight)
{
    return tarn__is_quantized(weight->dtype) ? weight->shape[1] <= MAX_BYTE_ROW
                                             : is_aligned(weight) && float_rows_fit(call, weight->shape[1]);
}

/* True if the tensor-core kernel supports these rows of x, two or more, and the weights from input `first` on. Single
 * rows fit other kernels in any case, also with a head of Q6_K. */
static bool mma_fits(const tarn__call *call, const gemv_args &a, int first, int count)
{
    bool good = call->in[0]->shape[0] > 1;
    for (int i = 0; i < count; i++)
        good = good && (!input_at(call, first + i) || call->in[first + i]->stride[1] == 1);
    return good && tarn__cuda_decode_mma(call, a, call->in[first]->dtype, false);
}

static bool fits_norm_linear(const tarn__call *call)
{
    const tarn__view *norm = call->in[1], *norm_bias = input_at(call, 8);
    bool good = x_fits(call->in[0], norm, norm_bias) && post_fits(call, 9);
    for (int i = 2; good && i < 5 && input_at(call, i); i++)
        good = weight_fits(call, call->in[i]);
    return good || (is_x_aligned(call->in[0], norm, norm_bias) && !input_at(call, 9) &&
                    mma_fits(call, norm_linear_args(call), 2, 3));
}

static bool fits_norm_gate_up(const tarn__call *call)
{
    const tarn__view *norm = call->in[1], *norm_bias = input_at(call, 4);
    return (x_fits(call->in[0], norm, norm_bias) && post_fits(call, 5) && weight_fits(call, call->in[2]) &&
            weight_fits(call, call->in[3])) ||
           (is_x_aligned(call->in[0], norm, norm_bias) && !input_at(call, 5) &&
            mma_fits(call, norm_gate_up_args(call), 2, 2));
}

static bool fits_linear_residual(const tarn__call *call)
{
    return call->in[3]->stride[1] == 1 &&
           ((x_fits(call->in[0], NULL, NULL) && weight_fits(call, call->in[1])) ||
            (is_x_aligned(call->in[0], NULL, NULL) && mma_fits(call, linear_residual_args(call), 1, 1)));
}

/* Weights: any float or quantized dtype; one dtype per launch. Float weights [in, out], and many rows of x, have kernel
 * rows of their own. */
void tarn__cuda_register_decode_gemv(tarn__kernel_row *rows)
{
    const uint32_t dtypes = TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16) | TARN__QUANTIZED;
    static tarn__kernel_row others[5];
    rows[TARN__K_norm_linear] = tarn__row_fits(tarn__row(kernel_norm_linear, dtypes), fits_norm_linear);
    rows[TARN__K_norm_gate_up] = tarn__row_fits(tarn__row(kernel_norm_gate_up, dtypes), fits_norm_gate_up);
    rows[TARN__K_linear_residual] = tarn__row_fits(tarn__row(kernel_linear_residual, dtypes), fits_linear_residual);
    tarn__push_row(rows, TARN__K_norm_linear, tarn__cuda_norm_linear_in_out(), &others[0]);
    tarn__push_row(rows, TARN__K_linear_residual, tarn__cuda_linear_residual_in_out(), &others[1]);
    tarn__push_row(rows, TARN__K_norm_linear, tarn__cuda_rows_norm_linear(), &others[2]);
    tarn__push_row(rows, TARN__K_norm_gate_up, tarn__cuda_rows_norm_gate_up(), &others[3]);
    tarn__push_row(rows, TARN__K_linear_residual, tarn__cuda_rows_linear_residual(), &others[4]);
}
