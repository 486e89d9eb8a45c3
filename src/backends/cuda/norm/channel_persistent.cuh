/* channel_persistent.cuh: batchnorm in one persistent kernel: blocks keep x, and in backward g, in shared memory until
 * they write the result.
 *
 * A block reads its range, adds up, publishes its partial sums of the channels, and waits for the other blocks of the
 * same channels (its peers). Then every block adds all partials itself, in the same order. Vectors that did not fit in
 * shared memory are read again, the last ones first: they are still in the cache. Two layouts:
 *
 *   NCHW   a block has a range of one channel, and waits for that channel's other blocks; four blocks per
 *          multiprocessor.
 *   NHWC   a block has positions with all their channels, thread t the vectors t, t + threads ..., which have the
 *          same channels; one block per multiprocessor, and each waits for all.
 *
 * Blocks that wait for each other must all be resident: the launch is cooperative. Ranges depend on shapes and on the
 * number of multiprocessors. A thread reads only what it loaded itself, so the resident data needs no barrier. */
#ifndef TARN__CUDA_CHANNEL_PERSISTENT_CUH
#define TARN__CUDA_CHANNEL_PERSISTENT_CUH

#include <cuda_pipeline.h>

#include "backends/cuda/norm/channel_stats.cuh"

#define NCHW_THREADS 128 /* per block */
#define NHWC_THREADS 512
#define NCHW_BLOCKS 4    /* per multiprocessor */
#define MAX_CHANNELS 128 /* NHWC: every block adds up the partials of all channels */
#define NCHW_STATIC 512  /* bytes of static shared memory of the kernels */
#define NHWC_STATIC 4096
#define F32_GROUP 16          /* vectors of a thread that are added in f32 before they go to f64 */
#define MIN_RESIDENT 32       /* at least one vector in this many stays resident: with fewer there is nothing to gain */
#define PARTIALS_IN_FLIGHT 12 /* partials that a thread loads at a time */
#define MIN_TURNS 2           /* vectors per thread, at least, if that leaves more than one block */

/* ---- planning ---------------------------------------------------------------------------------------------------- */

/* True if an element has the same offset in every operand. */
static bool has_same_offsets(const channel_args &a)
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

/* Ranges of channels: as many as fill the device once. */
static bool split_nchw(const channel_args &a, int width, int slots, persistent_args *h)
{
    int64_t lines = a.at.rank > 1 ? (int64_t)a.at.size[0].by : 1,
            blocks_per_channel = a.channels > 0 ? slots / a.channels : 0;
    /* lines of one stride, at most; and at least one block per channel */
    if (a.at.rank < 1 || a.at.rank > 2 || blocks_per_channel < 1)
        return false;
    h->threads = NCHW_THREADS;
    h->vecs = a.count / width;
    h->by_line = divider_of(h->vecs / lines);
    h->line_stride = a.at.rank > 1 ? a.at.stride[X][0] : 0;
    int64_t limit = (h->vecs + MIN_TURNS * NCHW_THREADS - 1) / (MIN_TURNS * NCHW_THREADS);
    const bool is_limited = blocks_per_channel >= limit;
    blocks_per_channel = is_limited ? limit : blocks_per_channel;
    h->per_block = (h->vecs + blocks_per_channel - 1) / blocks_per_channel;
    h->peers = (int)((h->vecs + h->per_block - 1) / h->per_block);
    h->by_peers = divider_of(h->peers);
    h->blocks = (unsigned)(a.channels * h->peers);
    return is_limited || h->blocks >= (unsigned)slots * 3 / 4; /* otherwise multiprocessors would be idle */
}

/* Equal numbers of positions. */
static bool split_nhwc(const channel_args &a, int width, int slots, persistent_args *h)
{
    int64_t across = a.channels / width,
            turns = (a.count * across + MIN_TURNS * NHWC_THREADS - 1) / (MIN_TURNS * NHWC_THREADS);
    if (a.at.rank != 1 || a.at.stride[X][0] != a.channels || a.channels > MAX_CHANNELS || (across & (across - 1)) != 0)
        return false;
    h->threads = NHWC_THREADS;
    h->across = (int)across;
    int64_t blocks = turns < slots ? turns : slots, positions = (a.count + blocks - 1) / blocks;
    h->vecs = a.count * across;
    h->per_block = positions * across;
    h->peers = (int)((a.count + positions - 1) / positions);
    h->blocks = (unsigned)h->peers;
    return true;
}

/* Sums of a block's warps in NHWC, and of its threads when it adds partials. */
static size_t reduction_bytes(const channel_args &a, int width)
{
    size_t warps = (size_t)(a.channels / width * (2 * width + 1)) * sizeof(double) * (NHWC_THREADS / WARP);
    size_t threads = NHWC_THREADS * sizeof(double2);
    return a.is_nchw ? 0 : warps > threads ? warps : threads;
}

/* Reciprocals are computed on the host: f64 divisions are slow on the device. */
static void count_elements(const channel_args &a, int width, persistent_args *h)
{
    const int64_t last = h->vecs - (h->peers - 1) * h->per_block;
    h->elements = (double)(a.is_nchw ? h->per_block * width : h->per_block / h->across);
    h->last_elements = (double)(a.is_nchw ? last * width : last / h->across);
    h->inverse = 1 / h->elements;
    h->last_inverse = 1 / h->last_elements;
    h->channel_inverse = 1 / a.values;
}

/* Plans a batchnorm with `operands` resident operands and `streamed` ones through a ring of `ahead` vectors per thread.
 * False if multipass is better, or the only way. Known before the scratch is. */
static bool plan_persistent(const tarn__call *call, const channel_args &a, int operands, int streamed, int ahead,
                            persistent_args *h)
{
    const tarn__cuda_device *d = tarn__cuda_at(call->device);
    const char *text = getenv("TARN_CUDA_BATCHNORM");
    const tarn_dtype dtype = a.operand[X].dtype;
    const int width = (int)(16 / tarn__dtype_bytes(dtype));
    *h = {};
    if (!d || (text && (strcmp(text, "multipass") == 0 || strcmp(text, "passes") == 0)) || a.is_double ||
        a.count * a.channels == 0 || a.count * a.channels > INT32_MAX || !has_one_dtype(a) ||
        !has_vecs(a, dtype, width) || !has_same_offsets(a))
        return false;
    if (!(a.is_nchw ? split_nchw(a, width, NCHW_BLOCKS * d->multiprocessors, h)
                    : split_nhwc(a, width, d->multiprocessors, h)))
        return false;
    const int64_t turns = (h->per_block + h->threads - 1) / h->threads, row = 16 * (int64_t)h->threads;
    const int64_t other = (int64_t)reduction_bytes(a, width) + row * streamed * ahead;
    /* 1 KiB per block is reserved by the system */
    int64_t bytes = a.is_nchw ? d->shared_bytes / NCHW_BLOCKS - 1024 : d->shared_bytes;
    int64_t limit = (bytes - (a.is_nchw ? NCHW_STATIC : NHWC_STATIC) - other) / (row * operands);
    /* as many slots as fit, but no more than there are vectors */
    h->slots = (int)(limit < turns ? limit : turns > ahead ? turns : ahead);
    h->counters = d->counters;
    count_elements(a, width, h);
    h->bytes = (size_t)(other + row * operands * h->slots);
    return limit >= ahead && MIN_RESIDENT * limit >= turns && 2 * (a.is_nchw ? a.channels : 1) <= TARN__CUDA_COUNTERS;
}

/* Scratch for the published partials. */
static size_t partial_bytes(const channel_args &a, const persistent_args &h)
{
    return sizeof(double2) * (size_t)h.blocks * (size_t)(a.is_nchw ? 1 : a.channels);
}

/* Cooperative launch: all blocks resident at once, or an error. */
template <typename S>
static void launch_persistent(const tarn__call *call, void (*kernel)(channel_args, S, persistent_args),
                              const channel_args &a, const S &s, const persistent_args &h)
{
    cudaLaunchAttribute cooperative = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(h.blocks), config.blockDim = dim3(h.threads), config.dynamicSmemBytes = h.bytes,
    config.stream = stream_of(call);
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    config.attrs = &cooperative;
    config.numAttrs = 1;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)h.bytes);
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    cudaLaunchKernelEx(&config, kernel, a, s, h);
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

extern __shared__ uint4 persistent_smem[];

/* A thread's vectors 0 … turns - 1. In NHWC `channel` is its first. */
template <typename T, bool IS_NCHW> struct persistent_range {
    static constexpr int N = vec_size<T>::value;
    int64_t base;
    uint32_t first;                  /* the thread's first vector among the peers' */
    int peer, count, turns, channel; /* count: vectors of the block */

    __device__ __forceinline__ persistent_range(const channel_args &a, const persistent_args &h)
    {
        uint32_t other = blockIdx.x;
        const int me = (int)threadIdx.x;
        peer = (int)(IS_NCHW ? pop_index(other, h.by_peers) : other);
        const int64_t first_vec = peer * h.per_block;
        count = (int)(h.vecs - first_vec < h.per_block ? h.vecs - first_vec : h.per_block);
        turns = me < count ? (count - 1 - me) / (int)blockDim.x + 1 : 0;
        first = (uint32_t)first_vec + (uint32_t)me;
        channel = IS_NCHW ? (int)other : (me & (h.across - 1)) * N;
        base = IS_NCHW ? channel * a.channel_stride[X] : 0;
    }
    __device__ __forceinline__ int64_t offset_of(const persistent_args &h, uint32_t index) const
    {
        if (!IS_NCHW)
            return (int64_t)index * N;
        const uint32_t line = divide_small(index, h.by_line);
        return base + line * h.line_stride + (int64_t)(index - line * (uint32_t)h.by_line.by) * N;
    }
    __device__ __forceinline__ int64_t offset(const persistent_args &h, int turn) const
    {
        return offset_of(h, first + (uint32_t)turn * blockDim.x);
    }
    /* The block's first vector of the thread's channels. */
    __device__ __forceinline__ int64_t first_offset(const persistent_args &h) const
    {
        return offset_of(h, first - threadIdx.x + (IS_NCHW ? 0 : threadIdx.x & (uint32_t)(h.across - 1)));
    }
};

/* Loads a thread's vectors of the resident operands into its slots, AHEAD at a time; one more operand, if any, has
 * AHEAD slots only. Vector i is in slot i % slots, so the last ones stay. */
template <typename T, int RESIDENT, bool HAS_STREAMED, int AHEAD, bool IS_NCHW> struct smem_ring {
    static_assert((AHEAD & (AHEAD - 1)) == 0, "the slot of the streamed operand is found by a mask");
    const T *from[RESIDENT + (HAS_STREAMED ? 1 : 0)];
    int loaded, loaded_at, taken_at; /* the next vector to load and its slot; the slot of the one taken last */

    __device__ __forceinline__ uint4 *at(int slot, int operand) const
    {
        return persistent_smem + (slot * RESIDENT + operand) * blockDim.x + threadIdx.x;
    }
    __device__ __forceinline__ uint4 *streamed_at(const persistent_args &h, int turn) const
    {
        return persistent_smem + (h.slots * RESIDENT + (turn & (AHEAD - 1))) * blockDim.x + threadIdx.x;
    }
    /* Every call commits one group of copies, with or without a vector. */
    __device__ __forceinline__ void load(const persistent_args &h, const persistent_range<T, IS_NCHW> &p)
    {
        if (loaded < p.turns) {
            const int64_t offset = p.offset(h, loaded);
#pragma unroll
            for (int k = 0; k < RESIDENT; k++)
                __pipeline_memcpy_async(at(loaded_at, k), from[k] + offset, 16);
            if (HAS_STREAMED)
                __pipeline_memcpy_async(streamed_at(h, loaded), from[RESIDENT] + offset, 16);
            loaded_at = loaded_at + 1 == h.slots ? 0 : loaded_at + 1;
            loaded++;
        }
        __pipeline_commit();
    }
    __device__ __forceinline__ void start(const persistent_args &h, const persistent_range<T, IS_NCHW> &p)
    {
        loaded = loaded_at = 0;
        taken_at = h.slots - 1;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            load(h, p);
    }
    /* The next vector has arrived, at taken_at. */
    __device__ __forceinline__ void take(const persistent_args &h)
    {
        __pipeline_wait_prior(AHEAD - 1);
        taken_at = taken_at + 1 == h.slots ? 0 : taken_at + 1;
    }
    /* From the last vector taken to the one before it. */
    __device__ __forceinline__ void step_back(const persistent_args &h)
    {
        taken_at = taken_at == 0 ? h.slots - 1 : taken_at - 1;
    }
};

/* A vector from shared memory, in one load. */
template <typename T> __device__ __forceinline__ vec<T, vec_size<T>::value> vec_at(const uint4 *from)
{
    const uint4 words = *from;
    vec<T, vec_size<T>::value> x;
    memcpy(&x, &words, sizeof(x));
    return x;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* V values per thread over the lanes of its warp with the same channels. At each step two lanes split their values:
 * each adds up one half. */
template <int V, int STEP>
__device__ __forceinline__ void reduce_lanes(double *v, int across, int first, bool is_writer, double *to)
{
    if constexpr (STEP > 0) {
        if (STEP >= across) {
            const bool is_upper = threadIdx.x & STEP;
            if constexpr (V > 1) {
#pragma unroll
                for (int i = 0; i < V / 2; i++) {
                    const double keep = is_upper ? v[i + V / 2] : v[i], send = is_upper ? v[i] : v[i + V / 2];
                    v[i] = keep + __shfl_xor_sync(FULL_WARP, send, STEP);
                }
                reduce_lanes<V / 2, STEP / 2>(v, across, first + (is_upper ? V / 2 : 0), is_writer, to);
            } else {
                v[0] += __shfl_xor_sync(FULL_WARP, v[0], STEP);
                reduce_lanes<1, STEP / 2>(v, across, first, is_writer && !is_upper, to);
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < V; i++)
        if (is_writer)
            to[first + i] = v[i];
}

/* Two sums of each of the thread's N channels over the block: thread c gets channel c's. All threads call it. */
template <int N> __device__ __forceinline__ double2 reduce_nhwc(const persistent_args &h, double *v, double *space)
{
    constexpr int PITCH = 2 * N + 1; /* odd: adjacent lanes write to different banks */
    const int me = (int)threadIdx.x, warp_size = h.across * PITCH;
    reduce_lanes<2 * N, WARP / 2>(v, h.across, 0, true, space + me / WARP * warp_size + (me & (h.across - 1)) * PITCH);
    __syncthreads();
    double2 sums = {0, 0};
    if (me < h.across * N)
#pragma unroll
        for (int warp = 0; warp < NHWC_THREADS / WARP; warp++) {
            const double *its = space + warp * warp_size + me / N * PITCH + me % N;
            sums.x += its[0];
            sums.y += its[N];
        }
    return sums;
}

/* Two sums per channel over the block: NCHW in all threads, NHWC in thread c for channel c. All threads call it. */
template <int N, bool IS_NCHW>
__device__ __forceinline__ double2 reduce_block(const persistent_args &h, double *v, double *space)
{
    if constexpr (IS_NCHW) {
        __shared__ double of_warps[WARP];
        const double first = block_reduce<plus>(v[0], of_warps, 0.0), second = block_reduce<plus>(v[1], of_warps, 0.0);
        return double2{first, second};
    } else {
        return reduce_nhwc<N>(h, v, space);
    }
}

/* Adds up threads that are `channels` apart: thread c gets channel c's sums. All threads call it. */
__device__ __forceinline__ double2 reduce_thread_rows(const double2 &own, int channels, double2 *space)
{
    double2 sums = {0, 0};
    space[threadIdx.x] = own;
    __syncthreads();
    if ((int)threadIdx.x < channels)
        for (int at = (int)threadIdx.x; at < NHWC_THREADS; at += channels) {
            sums.x += space[at].x;
            sums.y += space[at].y;
        }
    return sums;
}

/* Calls take(partial, index) for partials first, first + step ..., loaded in batches. */
template <typename Take>
__device__ __forceinline__ void for_partials(const persistent_args &h, const double2 *partials, int apart, int first,
                                             int step, const Take &take)
{
#pragma unroll 1
    for (int base = first; base < h.peers; base += PARTIALS_IN_FLIGHT * step) {
        double2 partial[PARTIALS_IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < PARTIALS_IN_FLIGHT; u++)
            if (base + u * step < h.peers)
                partial[u] = __ldcg(partials + (base + u * step) * apart);
#pragma unroll
        for (int u = 0; u < PARTIALS_IN_FLIGHT; u++)
            if (base + u * step < h.peers)
                take(partial[u], base + u * step);
    }
}

/* The first peer's partial of the thread's channel. */
template <bool IS_NCHW>
__device__ __forceinline__ const double2 *peer_partials(const channel_args &a, const persistent_args &h)
{
    return IS_NCHW ? h.partials + blockIdx.x / h.peers * h.peers
                   : h.partials + ((int)threadIdx.x & ((int)a.channels - 1));
}

/* Sums of a channel over all peers, as `add(sums, partial, peer)` adds them up: NCHW in every lane of a warp, NHWC in
 * thread c for channel c. */
template <bool IS_NCHW, typename Add>
__device__ __forceinline__ double2 reduce_peers(const channel_args &a, const persistent_args &h,
                                                const double2 *partials, double *space, const Add &add)
{
    const int me = (int)threadIdx.x, channels = (int)a.channels;
    double2 sums = {0, 0};
    auto take = [&](const double2 &partial, int peer) { add(sums, partial, peer); };
    if constexpr (IS_NCHW) {
        for_partials(h, partials, 1, me % WARP, WARP, take);
        return double2{warp_reduce<plus>(sums.x), warp_reduce<plus>(sums.y)};
    } else {
        for_partials(h, partials, channels, me / channels, NHWC_THREADS / channels, take);
        return reduce_thread_rows(sums, channels, (double2 *)space);
    }
}

/* ---- waiting for peers ------------------------------------------------------------------------------------------- */

/* Barrier over all peers: their earlier writes are visible afterwards. */
__device__ __forceinline__ void wait_for_peers(int *counters, int peers)
{
    __syncthreads();
    if (peers == 1)
        return;
    if (threadIdx.x == 0) {
        int arrived;
        asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counters) : "memory");
        do
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(arrived) : "l"(counters) : "memory");
        while (arrived < peers);
    }
    __syncthreads();
}

/* After wait_for_peers(); the last block to leave resets the counters. Called by a thread that is idle while the
 * channels are finalized. */
__device__ __forceinline__ void leave_peers(int *counters, int peers)
{
    if (peers > 1 && threadIdx.x == blockDim.x - 1 && atomic_inc(counters + 1) == peers - 1)
        counters[0] = counters[1] = 0;
}

#endif
