/* decode_gemv_quant.cu: the GEMV of decode_gemv.cu for one row of x and quantized weights whose rows and chunks are
 * 16-byte vectors: here instructions cost more than bytes. Q6_K and Q3_K have no such chunks, and Q2_K needs sums of x
 * over 16 elements, which are not staged here.
 *
 * A warp computes two rows at a time, adjacent ones or those of gate and up, one per half-warp: per-row overhead is
 * paid once for both. A chunk has 1,024 elements of each row, 64 per lane: two groups of Q4_K or Q5_K that share their
 * bytes, two blocks of Q8_0, of which the second starts at a whole word, or two units (dot.cuh). Chunks go to a ring in
 * the warp's own shared memory. With fewer rows than warps, several warps share the chunks of a row. Sums run in an
 * order fixed by the shape and the number of multiprocessors. */
#include "backends/cuda/decode/decode_gemv.cuh"

#define HALF 16 /* lanes per row */
#define CHUNK 1024
#define PAIR 64 /* elements per lane */
/* adding an integer below 2^22 gives the bits of 12582912 + that integer: a free int-to-float conversion */
#define MAGIC 0x4b400000

/* Bytes of a chunk of a row, and slots of the ring, each for both rows' chunks. */
template <tarn_dtype Q> struct ring_of {
    enum { bytes = CHUNK / quant_format<Q>::elements * quant_format<Q>::bytes, slots = 2304 / bytes };
};
template <> struct ring_of<TARN_Q8_0> {
    enum { bytes = CHUNK / 32 * 34, slots = 2 };
};
template <> struct ring_of<TARN_Q4_K> {
    enum { bytes = CHUNK / 256 * 144, slots = 4 };
};

/* gemv_args, and the distribution of jobs over warps. */
struct gemv_quant_args {
    gemv_args s;
    int end[2];      /* first job after the first weight, and after the second */
    int jobs, bytes; /* two rows each; bytes per row */
    int chunks;      /* per row */
    /* warps that share a job's chunks, 1 << shift; if more than one, a warp has at most one job */
    int split, shift;
    int step; /* from a warp's job to its next */
};

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

/* The row that a lane computes of a job; it may be one past the last. */
struct job_row {
    int which, row;
};

/* Gated: both halves have the same row, of gate and up; else adjacent rows of one weight. */
template <bool is_gated> __device__ __forceinline__ job_row job_row_of(const gemv_quant_args &a, int job)
{
    const int half = threadIdx.x % WARP / HALF;
    if (is_gated)
        return job_row{half, job};
    if (job < a.end[0])
        return job_row{0, 2 * job + half};
    const bool is_second = job < a.end[1];
    return job_row{is_second ? 1 : 2, 2 * (job - (is_second ? a.end[0] : a.end[1])) + half};
}

/* The next chunk that a warp loads; `from` is the lane's first vector. */
template <tarn_dtype Q, bool is_gated> struct prefetcher {
    int job, chunk;
    const char *from;

    __device__ __forceinline__ void begin(const gemv_quant_args &a, int at, int part)
    {
        job = at, chunk = part;
        if (job >= a.jobs)
            return;
        const job_row r = job_row_of<is_gated>(a, job);
        const gemv_weight &w = a.s.weight[r.which];
        from =
            w.base + min(r.row, (int)w.out - 1) * w.pitch + (part * ring_of<Q>::bytes + (int)(threadIdx.x % HALF) * 16);
    }
    /* Loads a chunk of both rows, if any, and advances. Always closes a group of copies: the ring counts groups. */
    __device__ __forceinline__ void prefetch(const gemv_quant_args &a, uint32_t slot, int part)
    {
        if (job < a.jobs) {
            const int left =
                min(a.bytes - chunk * ring_of<Q>::bytes, (int)ring_of<Q>::bytes) - (int)(threadIdx.x % HALF) * 16;
#pragma unroll
            for (int at = 0; at < ring_of<Q>::bytes; at += HALF * 16)
                if (at < left)
                    copy_async16_at(slot + at, from + at);
            from += a.split * ring_of<Q>::bytes;
            chunk += a.split;
            if (chunk >= a.chunks)
                begin(a, job + a.step, part);
        }
        commit_copies();
    }
};

/* ---- multiply ---------------------------------------------------------------------------------------------------- */

/* Dot product of four bytes in 0 … 255 with four in -128 … 127. */
__device__ __forceinline__ int dot_unsigned(uint32_t q, int x, int sum)
{
    int result;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(q), "r"(x), "r"(sum));
    return result;
}

__device__ __forceinline__ float from_biased(int sum)
{
    return __int_as_float(sum) - 12582912.0f;
}

/* Calls take(i, a, b) with the eight words of each unit of a pair of x. */
template <typename F> __device__ __forceinline__ void for_words(const staged_x &x, int pair, F take)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int4 a = x.bytes(0, pair, half), b = x.bytes(0, pair, 2 + half);
        const int of_a[4] = {a.x, a.y, a.z, a.w}, of_b[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            take(half * 4 + i, of_a[i], of_b[i]);
    }
}

/* A pair's result from its two sums of products, biased: Q4_K and Q5_K begin with the same 16 bytes, `head`. Sums of
 * the second group are 1 / `factor` times too large. */
__device__ __forceinline__ float scale_k_pair(const uint4 &head, int lane, const staged_x &x, int pair, const int *sums,
                                              float factor)
{
    /* 6-bit scales and mins: those of the first four groups are whole bytes; of the others two bits are above those and
     * four in the last word */
    const bool is_upper = lane % 4 >= 2;
    const uint32_t shift = lane % 2 * 16, above = is_upper ? shift + 2 : shift, mask = is_upper ? 0x3030u : 0x3f3fu,
                   rest = is_upper ? 0x0f0fu : 0;
    const uint32_t group_scales = (head.y >> above & mask) | (head.w >> shift & rest),
                   group_mins = (head.z >> above & mask) | (head.w >> (shift + 4) & rest);
    const float scale = scale_of((uint16_t)head.x), block_min = scale_of((uint16_t)(head.x >> 16));
    const float4 of_x = *(const float4 *)x.scales_of(pair);
    const float first = scale * (float)(group_scales & 0xffu) * of_x.x,
                second = scale * (float)(group_scales >> 8) * (of_x.y * factor);
    return first * from_biased(sums[0]) + second * from_biased(sums[1]) -
           block_min * ((float)(group_mins & 0xffu) * of_x.z + (float)(group_mins >> 8) * of_x.w);
}

/* x · 64 elements of Q4_K. Upper nibbles are used in place, 16 times too large; the scale corrects that. */
__device__ __forceinline__ float dot_q4_k_pair(const char *chunk, int lane, const staged_x &x, int pair)
{
    const char *block = chunk + lane / 4 * (int)sizeof(tarn__q4_k);
    const uint4 head = *(const uint4 *)block, low = *(const uint4 *)(block + 16 + lane % 4 * 32),
                high = *(const uint4 *)(block + 32 + lane % 4 * 32);
    const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    int sums[2] = {MAGIC, MAGIC};
    for_words(x, pair, [&](int i, int a, int b) {
        sums[0] = dot_unsigned(words[i] & 0x0f0f0f0fu, a, sums[0]);
        sums[1] = dot_unsigned(words[i] & 0xf0f0f0f0u, b, sums[1]);
    });
    return scale_k_pair(head, lane, x, pair, sums, 0.0625f);
}

/* x · 64 elements of Q5_K. Byte i of `bits` has the fifth bit of element i of every group: it is rotated to bit 4. */
__device__ __forceinline__ float dot_q5_k_pair(const char *chunk, int lane, const staged_x &x, int pair)
{
    const char *block = chunk + lane / 4 * (int)sizeof(tarn__q5_k);
    const uint4 head = *(const uint4 *)block, low = *(const uint4 *)(block + 48 + lane % 4 * 32),
                high = *(const uint4 *)(block + 64 + lane % 4 * 32), low_bits = *(const uint4 *)(block + 16),
                high_bits = *(const uint4 *)(block + 32);
    const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w},
                   bits[8] = {low_bits.x,  low_bits.y,  low_bits.z,  low_bits.w,
                              high_bits.x, high_bits.y, high_bits.z, high_bits.w},
                   group = lane % 4 * 2;
    int sums[2] = {MAGIC, MAGIC};
    for_words(x, pair, [&](int i, int a, int b) {
        const uint32_t first = __funnelshift_l(bits[i], bits[i], 4 - group),
                       second = __funnelshift_l(bits[i], bits[i], 3 - group);
        sums[0] = dot_unsigned((words[i] & 0x0f0f0f0fu) | (first & 0x10101010u), a, sums[0]);
        sums[1] = dot_unsigned((words[i] >> 4 & 0x0f0f0f0fu) | (second & 0x10101010u), b, sums[1]);
    });
    return scale_k_pair(head, lane, x, pair, sums, 1);
}

/* x · 64 elements: two Q8_0 blocks. A block is 34 bytes, so the first one's bytes are shifted by two. */
__device__ __forceinline__ float dot_q8_0_pair(const char *chunk, int lane, const staged_x &x, int pair)
{
    const uint32_t *from = (const uint32_t *)(chunk + lane * 2 * (int)sizeof(tarn__q8_0));
    uint32_t words[17];
#pragma unroll
    for (int i = 0; i < 17; i++)
        words[i] = from[i];
    int sums[2] = {MAGIC, MAGIC};
    for_words(x, pair, [&](int i, int a, int b) {
        sums[0] = __dp4a((int)__byte_perm(words[i], words[i + 1], 0x5432), a, sums[0]);
        sums[1] = __dp4a((int)words[9 + i], b, sums[1]);
    });
    const float2 of_x = *(const float2 *)x.scales_of(pair);
    return scale_of((uint16_t)words[0]) * of_x.x * from_biased(sums[0]) +
           scale_of((uint16_t)(words[8] >> 16)) * of_x.y * from_biased(sums[1]);
}

/* x · 64 elements: two units. Two blocks are a multiple of four bytes. */
template <tarn_dtype Q>
__device__ __forceinline__ float dot_unit_pair(const char *chunk, int lane, const staged_x &x, int pair)
{
    constexpr block_memory M = quant_format<Q>::bytes % 4 == 0 ? SHARED_AT_0 : SHARED_AT_2;
    const quant_unit first = unpack_unit<Q, SHARED_AT_0>(chunk, lane * 2),
                     second = unpack_unit<Q, M>(chunk, lane * 2 + 1);
    int sums[2] = {MAGIC, MAGIC};
    for_words(x, pair, [&](int i, int a, int b) {
        sums[0] = __dp4a(first.q[i], a, sums[0]);
        sums[1] = __dp4a(second.q[i], b, sums[1]);
    });
    const float4 of_x = *(const float4 *)x.scales_of(pair);
    const float sum = first.scale[0] * of_x.x * from_biased(sums[0]) + second.scale[0] * of_x.y * from_biased(sums[1]);
    return unit_traits<Q>::has_min ? sum - (first.min[0] * of_x.z + second.min[0] * of_x.w) : sum;
}

/* x · this lane's part of chunk `number` of its row. */
template <tarn_dtype Q> __device__ __forceinline__ float dot_pair(const char *chunk, int number, const staged_x &x)
{
    const int lane = threadIdx.x % HALF, pair = number * (CHUNK / PAIR) + lane;
    if (pair >= x.count)
        return 0;
    if constexpr (Q == TARN_Q4_K)
        return dot_q4_k_pair(chunk, lane, x, pair);
    else if constexpr (Q == TARN_Q5_K)
        return dot_q5_k_pair(chunk, lane, x, pair);
    else if constexpr (Q == TARN_Q8_0)
        return dot_q8_0_pair(chunk, lane, x, pair);
    else
        return dot_unit_pair<Q>(chunk, lane, x, pair);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* A warp's job: the row that a lane writes (the first lane of a half, or of the warp), and its addend. */
template <bool is_gated, bool is_general> struct output_row {
    int job, which, row; /* -1 in lanes that write nothing */
    addend extra;

    __device__ __forceinline__ void begin(const gemv_quant_args &a, int at)
    {
        job = at, row = -1;
        if (job >= a.jobs || threadIdx.x % (is_gated ? WARP : HALF) != 0)
            return;
        const job_row r = job_row_of<is_gated>(a, job);
        const gemv_weight &w = a.s.weight[which = r.which];
        if (r.row >= (int)w.out)
            return;
        row = r.row;
        if (!is_gated)
            extra.load(a.s, w, row, 0);
    }
    /* All lanes of a half have their row's sum. */
    __device__ __forceinline__ void write(const gemv_quant_args &a, float value) const
    {
        if (is_gated)
            value = (is_general ? activate(a.s.act, value) : value / (1 + expf(-value))) *
                    __shfl_xor_sync(FULL_WARP, value, HALF);
        if (row < 0)
            return;
        const gemv_weight &w = a.s.weight[is_gated ? 0 : which];
        store_float(w.y, a.s.x.dtype, row,
                    is_gated     ? value
                    : is_general ? extra.add_general(a.s, w, value)
                                 : extra.add_to(a.s, w, value));
    }
    /* The same if several adjacent warps have a part each. All threads of the block call it, with or without a job. */
    __device__ __forceinline__ void write_shared(const gemv_quant_args &a, float value) const
    {
        __shared__ float parts[DECODE_WARPS][2];
        const int warp = threadIdx.x / WARP, half = threadIdx.x % WARP / HALF;
        if (threadIdx.x % HALF == 0)
            parts[warp][half] = value;
        __syncthreads();
        if (warp % a.split != 0 || job >= a.jobs)
            return;
        for (int i = 1; i < a.split; i++)
            value += parts[warp + i][half];
        write(a, value);
    }
};

/* FLOPs: 2 · in · out; bytes: the weight, once. */
template <tarn_dtype Q, bool is_gated, bool is_general>
static __global__ void __launch_bounds__(DECODE_WARPS *WARP, BLOCKS_PER_SM)
    gemv_quant_kernel(const __grid_constant__ gemv_quant_args a)
{
    extern __shared__ __align__(16) char space[];
    enum { slots = ring_of<Q>::slots, slot_bytes = 2 * ring_of<Q>::bytes };
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, part = warp & (a.split - 1),
              first_job = a.split > 1 ? (int)(blockIdx.x * DECODE_WARPS + warp) >> a.shift
                                      : (int)(warp * gridDim.x + blockIdx.x);
    const staged_x x = staged_x_at(space + DECODE_WARPS * slots * slot_bytes, a.s.x.in, Q8_PAIRS);
    const char *ring = space + warp * slots * slot_bytes + lane / HALF * ring_of<Q>::bytes;
    const uint32_t slot_address = (uint32_t)__cvta_generic_to_shared(ring) + lane % HALF * 16;
    prefetcher<Q, is_gated> next = {};
    output_row<is_gated, is_general> now = {};
    int number = part;
    float sum = 0;
    pdl_launch_dependents();
    next.begin(a, first_job, part);
#pragma unroll 1
    for (int i = 0; i < slots; i++)
        next.prefetch(a, slot_address + i * slot_bytes, part);
    prefetch_norm(a.s.x);
    /* weights are in flight; x is written by the previous kernel */
    pdl_wait();
    now.begin(a, first_job);
    stage_rows<Q8_PAIRS, is_general>(a.s.x, 0, 1, x);
    __syncthreads();
    for (int at = 0; now.job < a.jobs; at = at + slot_bytes < slots * slot_bytes ? at + slot_bytes : 0) {
        wait_for_copies<slots - 1>();
        __syncwarp();
        sum += dot_pair<Q>(ring + at, number, x);
        __syncwarp();
        next.prefetch(a, slot_address + at, part);
        if ((number += a.split) < a.chunks)
            continue;
        number = part;
#pragma unroll
        for (int step = HALF / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(FULL_WARP, sum, step);
        if (a.split > 1)
            break;
        now.write(a, sum);
        sum = 0;
        now.begin(a, now.job + a.step);
    }
    if (a.split > 1)
        now.write_shared(a, sum);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Warps per job: as many as keep all jobs resident at once. */
static int shift_for(const gemv_quant_args &a, int64_t resident)
{
    int shift = 0;
    while (1 << shift < DECODE_WARPS && 2 << shift <= a.chunks &&
           ((int64_t)a.jobs << (shift + 1)) <= resident * DECODE_WARPS)
        shift++;
    return shift;
}

/* Grid: as many blocks as are resident at once, or fewer; jobs go to blocks in turn. Bytes: the weights'. */
template <tarn_dtype Q, bool is_gated, bool is_general> static void launch(const tarn__call *call, gemv_quant_args &a)
{
    void (*kernel)(gemv_quant_args) = gemv_quant_kernel<Q, is_gated, is_general>;
    size_t shared =
        (size_t)(DECODE_WARPS * ring_of<Q>::slots * 2 * ring_of<Q>::bytes + staged_pitch(a.s.x.in, Q8_PAIRS));
    int per_sm = 0;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, DECODE_WARPS * WARP, shared);
    int64_t resident = (int64_t)(per_sm > 0 ? per_sm : 1) * tarn__cuda_at(call->device)->multiprocessors;
    a.bytes = (int)tarn__bytes_of(Q, a.s.x.in);
    a.chunks = (a.s.x.in + CHUNK - 1) / CHUNK;
    a.shift = shift_for(a, resident), a.split = 1 << a.shift;
    int64_t needed = ((int64_t)a.jobs * a.split + DECODE_WARPS - 1) / DECODE_WARPS;
    unsigned blocks = blocks_for(needed < resident ? needed : resident, 1);
    a.step = (int)(blocks * DECODE_WARPS) >> a.shift;
    launch_decode(call, kernel, dim3(blocks), DECODE_WARPS * WARP, shared, a);
}

template <tarn_dtype Q, bool is_gated> static void launch_form(const tarn__call *call, gemv_quant_args &a)
{
    is_general(a.s) ? launch<Q, is_gated, true>(call, a) : launch<Q, is_gated, false>(call, a);
}

static bool is_aligned(const gemv_weight &w)
{
    return (uintptr_t)w.base % 16 == 0 && w.pitch % 16 == 0;
}

/* Chunks are 16-byte vectors, and a unit has one scale. */
template <tarn_dtype Q> static constexpr bool has_kernel(void)
{
    if constexpr (is_described(Q))
        return ring_of<Q>::bytes % 16 == 0 && !unit_traits<Q>::has_halves;
    return Q == TARN_Q4_K || Q == TARN_Q8_0;
}

template <tarn_dtype Q> static bool launch_either(const tarn__call *call, gemv_quant_args &a)
{
    if constexpr (has_kernel<Q>())
        a.s.is_gated ? launch_form<Q, true>(call, a) : launch_form<Q, false>(call, a);
    return has_kernel<Q>();
}

/* Needs one row of x, 256-element multiples and rows of 16-byte vectors. */
bool tarn__cuda_decode_gemv_quant(const tarn__call *call, const gemv_args &args, tarn_dtype dtype)
{
    gemv_quant_args a = {};
    bool is_good = tarn__is_quantized(dtype) && args.x.rows == 1 && args.x.in % 256 == 0 &&
                   tarn__bytes_of(dtype, args.x.in) % 16 == 0 && args.jobs < INT32_MAX / 4;
    a.s = args;
    for (int i = 0; i < 3; i++) {
        is_good = is_good && is_aligned(args.weight[i]);
        a.jobs += args.is_gated && i > 0 ? 0 : (int)(args.is_gated ? args.weight[i].out : (args.weight[i].out + 1) / 2);
        if (i < 2)
            a.end[i] = a.jobs;
    }
    if (is_good)
        with_format(dtype, [&](auto format) { is_good = launch_either<decltype(format)::dtype>(call, a); });
    return is_good;
}
