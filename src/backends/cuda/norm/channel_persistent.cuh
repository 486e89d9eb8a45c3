/* channel_persistent.cuh: batchnorm in one kernel: blocks hold in shared memory what they read of x, and in backward of
 * g, until they write the result from it.
 *
 * A block reads its piece, adds up, writes down its part of the channels' sums, and waits until the blocks with the
 * rest of its channels have done so. Then it puts all parts together itself, in the order in which the others do, too.
 * What found no room in shared memory is read again, the last of it first: that is what the cache still holds. Two
 * forms:
 *
 *   rows      a block has a piece of one channel, and waits for the others of that channel; four blocks a
 * multiprocessor. columns   a block has positions with all their channels, thread t the packs t, t + threads ... of
 * them, which belong to the same channels; one block a multiprocessor, and each waits for all.
 *
 * Blocks that wait for each other must all be running: the launch is a cooperative one. Pieces depend on shapes and on
 * the device's number of multiprocessors. A thread reads what it has asked for itself and nothing else, so what is held
 * needs no barrier. */
#ifndef TARN__CHANNELS_HELD_CUH
#define TARN__CHANNELS_HELD_CUH

#include <cuda_pipeline.h>

#include "backends/cuda/norm/channel_stats.cuh"

#define ROW_THREADS 128 /* of a block */
#define COLUMN_THREADS 512
#define ROW_BLOCKS 4      /* of a multiprocessor */
#define HELD_CHANNELS 128 /* by columns, at most: every block puts together the parts of all */
#define ROW_STATIC 512    /* bytes of shared memory that kernels have besides */
#define COLUMN_STATIC 4096
#define HELD_GROUP 16    /* packs of a thread whose numbers are added in f32 before they are in f64 */
#define LEAST_HELD 32    /* one pack of as many, at least, stays: with fewer there is nothing to gain */
#define PARTS_AT_ONCE 12 /* of blocks' sums that a thread loads */
#define FEW_TURNS 2      /* packs of a thread, at least, where that leaves more than one block */

struct held_args {
    int places;                        /* packs of each operand that a thread holds */
    int across;                        /* by columns: packs of a position, a power of two */
    int sharers;                       /* blocks that share channels */
    int64_t piece, packs;              /* of a block, but for the last of the sharers; of all sharers */
    divider by_sharers, by_line;       /* by rows: packs of a line */
    int64_t line_stride;               /* by rows: from one line of a channel to the next */
    double elements, elements_of_last; /* of each channel in a piece */
    double inverse, inverse_of_last;   /* 1 / these */
    double inverse_of_all;             /* 1 / elements of a channel */
    double2 *parts;                    /* by rows (blocks), by columns (blocks, channels) */
    /* two for each set of sharers, 0 between kernels: blocks that have come, and that have gone */
    int *counters;
    unsigned blocks, threads;
    size_t bytes; /* of shared memory */
};

/* ---- whether, and how -------------------------------------------------------------------------------------------- */

/* True where an element has the same offset in every operand. */
static bool is_alike(const channel_args &a)
{
    for (int k = 1; k < CHANNEL_OPERANDS; k++) {
        if (!a.operand[k].base)
            continue;
        if (a.channel_stride[k] != a.channel_stride[X])
            return false;
        for (int i = 0; i < a.at.rank; i++)
            if (a.at.stride[k][i] != a.at.stride[X][i])
                return false;
    }
    return true;
}

/* Pieces of channels: as many as fill the device once. */
static bool cut_rows(const channel_args &a, int width, int slots, held_args *h)
{
    int64_t lines = a.at.rank > 1 ? (int64_t)a.at.size[0].by : 1, pieces = a.channels > 0 ? slots / a.channels : 0;
    if (a.at.rank < 1 || a.at.rank > 2 || pieces < 1)
        return false;
    h->threads = ROW_THREADS;
    h->packs = a.count / width;
    h->by_line = divider_of(h->packs / lines);
    h->line_stride = a.at.rank > 1 ? a.at.stride[X][0] : 0;
    int64_t most = (h->packs + FEW_TURNS * ROW_THREADS - 1) / (FEW_TURNS * ROW_THREADS);
    const bool is_cut_short = pieces >= most;
    pieces = is_cut_short ? most : pieces;
    h->piece = (h->packs + pieces - 1) / pieces;
    h->sharers = (int)((h->packs + h->piece - 1) / h->piece);
    h->by_sharers = divider_of(h->sharers);
    h->blocks = (unsigned)(a.channels * h->sharers);
    return is_cut_short || h->blocks >= (unsigned)slots * 3 / 4; /* else multiprocessors would be idle */
}

/* Even numbers of positions. */
static bool cut_columns(const channel_args &a, int width, int slots, held_args *h)
{
    int64_t across = a.channels / width,
            turns = (a.count * across + FEW_TURNS * COLUMN_THREADS - 1) / (FEW_TURNS * COLUMN_THREADS);
    if (a.at.rank != 1 || a.at.stride[X][0] != a.channels || a.channels > HELD_CHANNELS || (across & (across - 1)) != 0)
        return false;
    h->threads = COLUMN_THREADS;
    h->across = (int)across;
    int64_t blocks = turns < slots ? turns : slots, positions = (a.count + blocks - 1) / blocks;
    h->packs = a.count * across;
    h->piece = positions * across;
    h->sharers = (int)((a.count + positions - 1) / positions);
    h->blocks = (unsigned)h->sharers;
    return true;
}

/* The sums of a block's warps, by columns, and of its threads when it puts parts together. */
static size_t space_bytes(const channel_args &a, int width)
{
    size_t warps = (size_t)(a.channels / width * (2 * width + 1)) * sizeof(double) * (COLUMN_THREADS / WARP);
    size_t threads = COLUMN_THREADS * sizeof(double2);
    return a.by_rows ? 0 : warps > threads ? warps : threads;
}

static void count_elements(const channel_args &a, int width, held_args *h)
{
    const int64_t last = h->packs - (h->sharers - 1) * h->piece;
    h->elements = (double)(a.by_rows ? h->piece * width : h->piece / h->across);
    h->elements_of_last = (double)(a.by_rows ? last * width : last / h->across);
    h->inverse = 1 / h->elements;
    h->inverse_of_last = 1 / h->elements_of_last;
    h->inverse_of_all = 1 / a.values;
}

/* How a call of batchnorm that holds `operands` is cut; false where the passes are better, or the only way. `beside`
 * operands come through a ring of `ahead` packs a thread. Known before scratch is. */
static bool plan_held(const tarn__call *call, const channel_args &a, int operands, int beside, int ahead, held_args *h)
{
    const tarn__cuda_device *d = tarn__cuda_at(call->device);
    const char *text = getenv("TARN_CUDA_BATCHNORM");
    const tarn_dtype dtype = a.operand[X].dtype;
    const int width = (int)(16 / tarn__dtype_bytes(dtype));
    *h = {};
    if (!d || (text && strcmp(text, "passes") == 0) || a.is_double || a.count * a.channels == 0 ||
        a.count * a.channels > INT32_MAX || !has_one_dtype(a) || !has_packs(a, dtype, width) || !is_alike(a))
        return false;
    if (!(a.by_rows ? cut_rows(a, width, ROW_BLOCKS * d->multiprocessors, h)
                    : cut_columns(a, width, d->multiprocessors, h)))
        return false;
    const int64_t turns = (h->piece + h->threads - 1) / h->threads, row = 16 * (int64_t)h->threads;
    const int64_t rest = (int64_t)space_bytes(a, width) + row * beside * ahead;
    /* of each block a KiB is the system's */
    int64_t bytes = a.by_rows ? d->shared_bytes / ROW_BLOCKS - 1024 : d->shared_bytes;
    int64_t most = (bytes - (a.by_rows ? ROW_STATIC : COLUMN_STATIC) - rest) / (row * operands);
    h->places = (int)(most < turns ? most : turns > ahead ? turns : ahead);
    h->counters = d->counters;
    count_elements(a, width, h);
    h->bytes = (size_t)(rest + row * operands * h->places);
    return most >= ahead && LEAST_HELD * most >= turns && 2 * (a.by_rows ? a.channels : 1) <= TARN__CUDA_COUNTERS;
}

static size_t part_bytes(const channel_args &a, const held_args &h)
{
    return sizeof(double2) * (size_t)h.blocks * (size_t)(a.by_rows ? 1 : a.channels);
}

/* Starts a kernel of all blocks at once. */
template <typename S>
static void launch_held(const tarn__call *call, void (*kernel)(channel_args, S, held_args), const channel_args &a,
                        const S &s, const held_args &h)
{
    cudaLaunchAttribute all = {};
    cudaLaunchConfig_t how = {};
    how.gridDim = dim3(h.blocks), how.blockDim = dim3(h.threads), how.dynamicSmemBytes = h.bytes,
    how.stream = stream_of(call);
    all.id = cudaLaunchAttributeCooperative;
    all.val.cooperative = 1;
    how.attrs = &all;
    how.numAttrs = 1;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)h.bytes);
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    cudaLaunchKernelEx(&how, kernel, a, s, h);
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

extern __shared__ uint4 held_memory[];

/* What a thread has: packs number 0 … turns - 1. By columns `channel` is its first. */
template <typename T, bool IS_BY_ROWS> struct held_piece {
    static constexpr int N = pack_size<T>::value;
    int64_t base;
    uint32_t first;                    /* of the thread's packs among the sharers' */
    int sharer, count, turns, channel; /* count: packs of the block */

    __device__ __forceinline__ held_piece(const channel_args &a, const held_args &h)
    {
        uint32_t rest = blockIdx.x;
        const int me = (int)threadIdx.x;
        sharer = (int)(IS_BY_ROWS ? block_digit(rest, h.by_sharers) : rest);
        const int64_t begin = sharer * h.piece;
        count = (int)(h.packs - begin < h.piece ? h.packs - begin : h.piece);
        turns = me < count ? (count - 1 - me) / (int)blockDim.x + 1 : 0;
        first = (uint32_t)begin + (uint32_t)me;
        channel = IS_BY_ROWS ? (int)rest : (me & (h.across - 1)) * N;
        base = IS_BY_ROWS ? channel * a.channel_stride[X] : 0;
    }
    __device__ __forceinline__ int64_t place_of(const held_args &h, uint32_t number) const
    {
        if (!IS_BY_ROWS)
            return (int64_t)number * N;
        const uint32_t line = divide_small(number, h.by_line);
        return base + line * h.line_stride + (int64_t)(number - line * (uint32_t)h.by_line.by) * N;
    }
    __device__ __forceinline__ int64_t offset(const held_args &h, int turn) const
    {
        return place_of(h, first + (uint32_t)turn * blockDim.x);
    }
    /* The block's first pack of the thread's channels. */
    __device__ __forceinline__ int64_t offset_of_first(const held_args &h) const
    {
        return place_of(h, first - threadIdx.x + (IS_BY_ROWS ? 0 : threadIdx.x & (uint32_t)(h.across - 1)));
    }
};

/* A thread's packs of HELD operands on their way into its places, AHEAD of them at a time; one more operand, if there
 * is one, has AHEAD places only. Pack number i lies at place i % places, so that the last ones stay. */
template <typename T, int HELD, bool HAS_MORE, int AHEAD, bool IS_BY_ROWS> struct held_ring {
    static_assert((AHEAD & (AHEAD - 1)) == 0, "the place of one more operand is found by a mask");
    const T *from[HELD + (HAS_MORE ? 1 : 0)];
    int asked, asked_at, taken_at; /* the next one to ask for and its place; the place of the one taken last */

    __device__ __forceinline__ uint4 *at(int place, int operand) const
    {
        return held_memory + (place * HELD + operand) * blockDim.x + threadIdx.x;
    }
    __device__ __forceinline__ uint4 *more_at(const held_args &h, int turn) const
    {
        return held_memory + (h.places * HELD + (turn & (AHEAD - 1))) * blockDim.x + threadIdx.x;
    }
    /* Every call is a group of its own, with or without a pack. */
    __device__ __forceinline__ void ask(const held_args &h, const held_piece<T, IS_BY_ROWS> &p)
    {
        if (asked < p.turns) {
            const int64_t offset = p.offset(h, asked);
#pragma unroll
            for (int k = 0; k < HELD; k++)
                __pipeline_memcpy_async(at(asked_at, k), from[k] + offset, 16);
            if (HAS_MORE)
                __pipeline_memcpy_async(more_at(h, asked), from[HELD] + offset, 16);
            asked_at = asked_at + 1 == h.places ? 0 : asked_at + 1;
            asked++;
        }
        __pipeline_commit();
    }
    __device__ __forceinline__ void begin(const held_args &h, const held_piece<T, IS_BY_ROWS> &p)
    {
        asked = asked_at = 0;
        taken_at = h.places - 1;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            ask(h, p);
    }
    /* The next pack is there, at taken_at. */
    __device__ __forceinline__ void take(const held_args &h)
    {
        __pipeline_wait_prior(AHEAD - 1);
        taken_at = taken_at + 1 == h.places ? 0 : taken_at + 1;
    }
    /* From the last one taken to the one before it. */
    __device__ __forceinline__ void back(const held_args &h)
    {
        taken_at = taken_at == 0 ? h.places - 1 : taken_at - 1;
    }
};

template <typename T> __device__ __forceinline__ pack<T, pack_size<T>::value> pack_at(const uint4 *from)
{
    const uint4 words = *from;
    pack<T, pack_size<T>::value> x;
    memcpy(&x, &words, sizeof(x));
    return x;
}

/* ---- sums of a block, by columns --------------------------------------------------------------------------------- */

/* V numbers of each thread over the lanes of its warp that own the same channels. At each step two lanes share out what
 * both have: each adds up half of it. */
template <int V, int STEP>
__device__ __forceinline__ void fold_lanes(double *v, int across, int first, bool is_writer, double *to)
{
    if constexpr (STEP > 0) {
        if (STEP >= across) {
            const bool is_upper = threadIdx.x & STEP;
            if constexpr (V > 1) {
#pragma unroll
                for (int i = 0; i < V / 2; i++) {
                    const double kept = is_upper ? v[i + V / 2] : v[i], given = is_upper ? v[i] : v[i + V / 2];
                    v[i] = kept + __shfl_xor_sync(FULL_WARP, given, STEP);
                }
                fold_lanes<V / 2, STEP / 2>(v, across, first + (is_upper ? V / 2 : 0), is_writer, to);
            } else {
                v[0] += __shfl_xor_sync(FULL_WARP, v[0], STEP);
                fold_lanes<1, STEP / 2>(v, across, first, is_writer && !is_upper, to);
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < V; i++)
        if (is_writer)
            to[first + i] = v[i];
}

/* Two sums of each of the thread's N channels over the block: thread c gets those of channel c. All threads come here.
 */
template <int N> __device__ __forceinline__ double2 over_columns(const held_args &h, double *v, double *space)
{
    constexpr int OWN = 2 * N + 1; /* one more than there are: neighbours then write to different banks */
    const int me = (int)threadIdx.x, warp_size = h.across * OWN;
    fold_lanes<2 * N, WARP / 2>(v, h.across, 0, true, space + me / WARP * warp_size + (me & (h.across - 1)) * OWN);
    __syncthreads();
    double2 sums = {0, 0};
    if (me < h.across * N)
#pragma unroll
        for (int warp = 0; warp < COLUMN_THREADS / WARP; warp++) {
            const double *its = space + warp * warp_size + me / N * OWN + me % N;
            sums.x += its[0];
            sums.y += its[N];
        }
    return sums;
}

/* Adds up what threads a number of channels apart have: thread c gets the sums of channel c. All threads come here. */
__device__ __forceinline__ double2 over_rows_of_threads(const double2 &own, int channels, double2 *space)
{
    double2 sums = {0, 0};
    space[threadIdx.x] = own;
    __syncthreads();
    if ((int)threadIdx.x < channels)
        for (int at = (int)threadIdx.x; at < COLUMN_THREADS; at += channels) {
            sums.x += space[at].x;
            sums.y += space[at].y;
        }
    return sums;
}

/* Parts `first`, `first` + `step` ... of the sharers, in batches whose loads are all under way at once, each given to
 * take(part, its number). */
template <typename Take>
__device__ __forceinline__ void for_parts(const held_args &h, const double2 *parts, int apart, int first, int step,
                                          const Take &take)
{
#pragma unroll 1
    for (int begin = first; begin < h.sharers; begin += PARTS_AT_ONCE * step) {
        double2 part[PARTS_AT_ONCE];
#pragma unroll
        for (int u = 0; u < PARTS_AT_ONCE; u++)
            if (begin + u * step < h.sharers)
                part[u] = __ldcg(parts + (begin + u * step) * apart);
#pragma unroll
        for (int u = 0; u < PARTS_AT_ONCE; u++)
            if (begin + u * step < h.sharers)
                take(part[u], begin + u * step);
    }
}

/* ---- waiting for each other -------------------------------------------------------------------------------------- */

__device__ __forceinline__ int count_one(int *counter)
{
    int before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

/* Until all sharers have come here: what each has written before is then seen by all. */
__device__ __forceinline__ void wait_for_sharers(int *counters, int sharers)
{
    __syncthreads();
    if (sharers == 1)
        return;
    if (threadIdx.x == 0) {
        int come;
        asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counters) : "memory");
        do
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(come) : "l"(counters) : "memory");
        while (come < sharers);
    }
    __syncthreads();
}

/* Said once wait_for_sharers() is over; the last one to go leaves the counters at 0. By a thread that has nothing else
 * to do while channels are settled. */
__device__ __forceinline__ void leave_sharers(int *counters, int sharers)
{
    if (sharers > 1 && threadIdx.x == blockDim.x - 1 && count_one(counters + 1) == sharers - 1)
        counters[0] = counters[1] = 0;
}

#endif
