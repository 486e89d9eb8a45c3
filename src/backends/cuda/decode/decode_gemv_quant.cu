/* decode_gemv_quant.cu: the products of decode_gemv.cu for one row of x and weights in Q4_K or Q8_0, whose rows begin
 * at 16 bytes' alignment: there instructions cost more than bytes.
 *
 * A warp makes two rows at a time, neighbours or those of gate and up, one in each half of it: what is done around a
 * row is done once for both. A piece has 1,024 elements of each, a lane 64 of them: two groups of Q4_K that share their
 * bytes, or two blocks of Q8_0, of which the second begins at a whole word. Pieces go to a ring in the warp's own
 * shared memory. Where there are fewer rows than warps, several warps share the pieces of a row. Sums are added in an
 * order given by the shape and the number of multiprocessors. */
#include "backends/cuda/decode/decode_gemv.cuh"

#define HALF 16 /* lanes that have a row */
#define PIECE 1024
#define PAIR 64          /* elements of a lane */
#define MAGIC 0x4b400000 /* an integer below 2^22 added to it is the bits of 12582912 and that integer */

/* Bytes of a piece of a row, and places of the ring, each for both rows' pieces. */
template <tarn_dtype Q> struct ring_of;
template <> struct ring_of<TARN_Q8_0> {
    enum { bytes = PIECE / 32 * 34, places = 2 };
};
template <> struct ring_of<TARN_Q4_K> {
    enum { bytes = PIECE / 256 * 144, places = 4 };
};

struct pair_args {
    step_args s;
    int end[2];      /* number of the job behind the last of the first weight, and of the second */
    int jobs, bytes; /* two rows each; bytes of a row */
    int pieces;      /* of a row */
    /* warps that share the pieces of a job, 1 << shift; where they are several, a warp has one job at most */
    int split, shift;
    int step; /* from a warp's job to its next */
};

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

/* The row that a lane has of a job, which may be one behind the last. */
struct row_of_job {
    int which, row;
};

template <bool is_gated> __device__ __forceinline__ row_of_job row_of(const pair_args &a, int job)
{
    const int half = threadIdx.x % WARP / HALF;
    if (is_gated)
        return row_of_job{half, job};
    if (job < a.end[0])
        return row_of_job{0, 2 * job + half};
    const bool is_second = job < a.end[1];
    return row_of_job{is_second ? 1 : 2, 2 * (job - (is_second ? a.end[0] : a.end[1])) + half};
}

/* What a warp asks for next: `from` is the lane's first pack of it. */
template <tarn_dtype Q, bool is_gated> struct asking {
    int job, piece;
    const char *from;

    __device__ __forceinline__ void begin(const pair_args &a, int at, int part)
    {
        job = at, piece = part;
        if (job >= a.jobs)
            return;
        const row_of_job r = row_of<is_gated>(a, job);
        const step_weight &w = a.s.weight[r.which];
        from =
            w.base + min(r.row, (int)w.out - 1) * w.pitch + (part * ring_of<Q>::bytes + (int)(threadIdx.x % HALF) * 16);
    }
    /* Asks for a piece of both rows, if there is one, and goes on. The group of copies ends in any case. */
    __device__ __forceinline__ void ask(const pair_args &a, uint32_t place, int part)
    {
        if (job < a.jobs) {
            const int left =
                min(a.bytes - piece * ring_of<Q>::bytes, (int)ring_of<Q>::bytes) - (int)(threadIdx.x % HALF) * 16;
#pragma unroll
            for (int at = 0; at < ring_of<Q>::bytes; at += HALF * 16)
                if (at < left)
                    copy_whole_pack(place + at, from + at);
            from += a.split * ring_of<Q>::bytes;
            piece += a.split;
            if (piece >= a.pieces)
                begin(a, job + a.step, part);
        }
        end_copies();
    }
};

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Four bytes from 0 to 255 by four from -128 to 127. */
__device__ __forceinline__ int dot_unsigned(uint32_t q, int x, int sum)
{
    int result;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(q), "r"(x), "r"(sum));
    return result;
}

__device__ __forceinline__ float from_magic(int sum)
{
    return __int_as_float(sum) - 12582912.0f;
}

/* Gives the eight words of each half of a pair of x, with their number. */
template <typename F> __device__ __forceinline__ void each_word(const held_x &x, int pair, F take)
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

/* x · 64 elements. The upper four bits of bytes are taken 16 times as large as they are. */
__device__ __forceinline__ float q4_k_pair(const char *piece, int lane, const held_x &x, int pair)
{
    const char *block = piece + lane / 4 * (int)sizeof(tarn__q4_k);
    const uint4 head = *(const uint4 *)block, low = *(const uint4 *)(block + 16 + lane % 4 * 32),
                high = *(const uint4 *)(block + 32 + lane % 4 * 32);
    const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    int sums[2] = {MAGIC, MAGIC};
    each_word(x, pair, [&](int i, int a, int b) {
        sums[0] = dot_unsigned(words[i] & 0x0f0f0f0fu, a, sums[0]);
        sums[1] = dot_unsigned(words[i] & 0xf0f0f0f0u, b, sums[1]);
    });
    /* six bits of scales and leasts: the first four groups' lie together, of the others two bits above those and four
     * in the last word */
    const bool is_late = lane % 4 >= 2;
    const uint32_t shift = lane % 2 * 16, above = is_late ? shift + 2 : shift, mask = is_late ? 0x3030u : 0x3f3fu,
                   rest = is_late ? 0x0f0fu : 0;
    const uint32_t scales = (head.y >> above & mask) | (head.w >> shift & rest),
                   leasts = (head.z >> above & mask) | (head.w >> (shift + 4) & rest);
    const float scale = scale_of((uint16_t)head.x), least = scale_of((uint16_t)(head.x >> 16));
    const float4 of_x = *(const float4 *)x.scales(pair);
    const float first = scale * (float)(scales & 0xffu) * of_x.x,
                second = scale * (float)(scales >> 8) * (of_x.y * 0.0625f);
    return first * from_magic(sums[0]) + second * from_magic(sums[1]) -
           least * ((float)(leasts & 0xffu) * of_x.z + (float)(leasts >> 8) * of_x.w);
}

__device__ __forceinline__ float q8_0_pair(const char *piece, int lane, const held_x &x, int pair)
{
    const uint32_t *from = (const uint32_t *)(piece + lane * 2 * (int)sizeof(tarn__q8_0));
    uint32_t words[17];
#pragma unroll
    for (int i = 0; i < 17; i++)
        words[i] = from[i];
    int sums[2] = {MAGIC, MAGIC};
    each_word(x, pair, [&](int i, int a, int b) {
        sums[0] = __dp4a((int)__byte_perm(words[i], words[i + 1], 0x5432), a, sums[0]);
        sums[1] = __dp4a((int)words[9 + i], b, sums[1]);
    });
    const float2 of_x = *(const float2 *)x.scales(pair);
    return scale_of((uint16_t)words[0]) * of_x.x * from_magic(sums[0]) +
           scale_of((uint16_t)(words[8] >> 16)) * of_x.y * from_magic(sums[1]);
}

/* x · what a lane has of piece `number` of its row. */
template <tarn_dtype Q> __device__ __forceinline__ float pair_of(const char *piece, int number, const held_x &x)
{
    const int lane = threadIdx.x % HALF, pair = number * (PIECE / PAIR) + lane;
    if (pair >= x.count)
        return 0;
    return Q == TARN_Q4_K ? q4_k_pair(piece, lane, x, pair) : q8_0_pair(piece, lane, x, pair);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* A job of a warp: the row that a lane writes, the first of a half or the first of all, and what is added to it. */
template <bool is_gated> struct making {
    int job, which, row; /* row: -1 in lanes that write nothing */
    addition more;

    __device__ __forceinline__ void begin(const pair_args &a, int at)
    {
        job = at, row = -1;
        if (job >= a.jobs || threadIdx.x % (is_gated ? WARP : HALF) != 0)
            return;
        const row_of_job r = row_of<is_gated>(a, job);
        const step_weight &w = a.s.weight[which = r.which];
        if (r.row >= (int)w.out)
            return;
        row = r.row;
        if (!is_gated)
            more.ask(a.s, w, row, 0);
    }
    /* All lanes of a half have their row's sum. */
    __device__ __forceinline__ void write(const pair_args &a, float value) const
    {
        if (is_gated)
            value = value / (1 + expf(-value)) * __shfl_xor_sync(FULL_WARP, value, HALF);
        if (row < 0)
            return;
        const step_weight &w = a.s.weight[is_gated ? 0 : which];
        store_float(w.y, a.s.x.dtype, row, is_gated ? value : more.added_to(a.s, w, value));
    }
    /* The same where several warps, neighbours, have a part each. All of the block come here; there may be no job. */
    __device__ __forceinline__ void write_shared(const pair_args &a, float value) const
    {
        __shared__ float parts[STEP_WARPS][2];
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

template <tarn_dtype Q, bool is_gated>
static __global__ void __launch_bounds__(STEP_WARPS *WARP, BLOCKS_AT_ONCE)
    pairs_kernel(const __grid_constant__ pair_args a)
{
    extern __shared__ __align__(16) char space[];
    enum { places = ring_of<Q>::places, room = 2 * ring_of<Q>::bytes };
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, part = warp & (a.split - 1),
              first_job = (int)(blockIdx.x * STEP_WARPS + warp) >> a.shift;
    const held_x x = held_at(space + STEP_WARPS * places * room, a.s.x.in, OF_PAIRS);
    const char *ring = space + warp * places * room + lane / HALF * ring_of<Q>::bytes;
    const uint32_t asked = (uint32_t)__cvta_generic_to_shared(ring) + lane % HALF * 16;
    asking<Q, is_gated> next = {};
    making<is_gated> now = {};
    int number = part;
    float sum = 0;
    call_next();
    next.begin(a, first_job, part);
#pragma unroll 1
    for (int i = 0; i < places; i++)
        next.ask(a, asked + i * room, part);
    expect_norm(a.s.x);
    wait_for_front();
    now.begin(a, first_job);
    hold_rows<OF_PAIRS>(a.s.x, 0, 1, x);
    __syncthreads();
    for (int at = 0; now.job < a.jobs; at = at + room < places * room ? at + room : 0) {
        wait_for_copies<places - 1>();
        __syncwarp();
        sum += pair_of<Q>(ring + at, number, x);
        __syncwarp();
        next.ask(a, asked + at, part);
        if ((number += a.split) < a.pieces)
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

/* ---- starting it ------------------------------------------------------------------------------------------------- */

/* As many warps share a job as let all jobs be under way at once. */
static int shift_for(const pair_args &a, int64_t room)
{
    int shift = 0;
    while (1 << shift < STEP_WARPS && 2 << shift <= a.pieces && ((int64_t)a.jobs << (shift + 1)) <= room * STEP_WARPS)
        shift++;
    return shift;
}

/* Grid: as many blocks as there is room for at once, or fewer, with the same number of jobs each. Bytes: the weights'.
 */
template <tarn_dtype Q, bool is_gated> static void launch(const tarn__call *call, pair_args &a)
{
    void (*kernel)(pair_args) = pairs_kernel<Q, is_gated>;
    size_t shared = (size_t)(STEP_WARPS * ring_of<Q>::places * 2 * ring_of<Q>::bytes + held_pitch(a.s.x.in, OF_PAIRS));
    int at_once = 0;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, kernel, STEP_WARPS * WARP, shared);
    int64_t room = (int64_t)(at_once > 0 ? at_once : 1) * tarn__cuda_at(call->device)->multiprocessors;
    a.bytes = (int)tarn__bytes_of(Q, a.s.x.in);
    a.pieces = (a.s.x.in + PIECE - 1) / PIECE;
    a.shift = shift_for(a, room), a.split = 1 << a.shift;
    int64_t needed = ((int64_t)a.jobs * a.split + STEP_WARPS - 1) / STEP_WARPS, rounds = (needed + room - 1) / room;
    unsigned blocks = blocks_for(needed, rounds);
    a.step = (int)(blocks * STEP_WARPS) >> a.shift;
    launch_step(call, kernel, dim3(blocks), STEP_WARPS * WARP, shared, a);
}

static bool is_aligned(const step_weight &w)
{
    return (uintptr_t)w.base % 16 == 0 && w.pitch % 16 == 0;
}

bool tarn__cuda_decode_gemv_quant(const tarn__call *call, const step_args &args, tarn_dtype dtype)
{
    pair_args a = {};
    bool is_good = (dtype == TARN_Q4_K || dtype == TARN_Q8_0) && args.x.rows == 1 && args.x.in % 256 == 0 &&
                   args.jobs < INT32_MAX / 4;
    a.s = args;
    for (int i = 0; i < 3; i++) {
        is_good = is_good && is_aligned(args.weight[i]);
        a.jobs += args.is_gated && i > 0 ? 0 : (int)(args.is_gated ? args.weight[i].out : (args.weight[i].out + 1) / 2);
        if (i < 2)
            a.end[i] = a.jobs;
    }
    if (!is_good)
        return false;
    if (dtype == TARN_Q4_K)
        args.is_gated ? launch<TARN_Q4_K, true>(call, a) : launch<TARN_Q4_K, false>(call, a);
    else
        args.is_gated ? launch<TARN_Q8_0, true>(call, a) : launch<TARN_Q8_0, false>(call, a);
    return true;
}
