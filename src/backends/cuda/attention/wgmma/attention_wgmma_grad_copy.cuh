/* attention_wgmma_grad_copy.cuh: the warpgroup that copies operands to shared memory (attention_wgmma_grad.cuh). */
#ifndef TARN__CUDA_ATTENTION_WGMMA_GRAD_COPY_CUH
#define TARN__CUDA_ATTENTION_WGMMA_GRAD_COPY_CUH

#include "backends/cuda/attention/wgmma/attention_wgmma_grad.cuh"

/* Copies ROWS rows from `row` of x to panels at `to`; rows from `rows` on, and columns beyond D, are 0. */
template <typename T, int ROWS, int DEPTH>
__device__ __forceinline__ void copy_rows(uint32_t to, const head_matrix &x, int row, int rows, int head_dim)
{
    constexpr int VECTORS = DEPTH / 8, AT_ONCE = GROUP_THREADS / VECTORS;
    const int first = threadIdx.x % GROUP_THREADS / VECTORS, vector = threadIdx.x % VECTORS;
    const bool is_inside = vector * 8 < head_dim;
    const T *from = (const T *)x.base + (int64_t)(row + first) * x.row + vector * 8;
    to += vector / 8 * ROWS * PANEL_ROW_BYTES + swizzled(first, vector % 8);
#pragma unroll
    for (int i = 0; i < ROWS; i += AT_ONCE) {
        const bool is_there = is_inside && row + first + i < rows;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + i * PANEL_ROW_BYTES),
                     "l"(is_there ? from + i * x.row : (const T *)x.base), "r"(is_there ? 16 : 0)
                     : "memory");
    }
}

/* LSE and delta of N rows, in two planes. */
template <int N> __device__ __forceinline__ void copy_stats(uint32_t to, const float2 *stats, int row, int rows)
{
#pragma unroll
    for (int i = threadIdx.x % GROUP_THREADS; i < 2 * N; i += GROUP_THREADS) {
        const int t = row + i % N;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + i * 4),
                     "l"((const float *)(stats + (t < rows ? t : 0)) + i / N), "r"(t < rows ? 4 : 0)
                     : "memory");
    }
}

/* The LSE of OWN_ROWS rows, one per thread. */
__device__ __forceinline__ void copy_lse(uint32_t to, const head_matrix &lse, int row, int rows)
{
    const int i = threadIdx.x % GROUP_THREADS, t = row + i;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + i * 4),
                 "l"((const float *)lse.base + (t < rows ? t : 0) * lse.row), "r"(t < rows ? 4 : 0)
                 : "memory");
}

/* Says that copies have arrived, one step late: the copies after them are in flight meanwhile. */
struct copy_queue {
    uint32_t pending = 0; /* barrier of the last copies; 0: none */
    __device__ __forceinline__ void signal()
    {
        publish_shared();
        barrier_arrive(pending);
    }
    __device__ __forceinline__ void flush()
    {
        if (pending == 0)
            return;
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        signal();
        pending = 0;
    }
    /* Before writing to a buffer that may be in use. */
    __device__ __forceinline__ void wait_empty(uint32_t barrier, uint32_t parity)
    {
        if (is_barrier_done(barrier, parity))
            return;
        flush();
        barrier_wait(barrier, parity);
    }
    __device__ __forceinline__ void push(uint32_t barrier)
    {
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (pending != 0) {
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            signal();
        }
        pending = barrier;
    }
};

/* The rings of the copying warpgroup. */
template <typename S> struct copy_rings {
    uint32_t shared; /* address of all shared memory */
    grad_barriers<S> barriers;
    copy_queue queue;
    ring<S::STAGES> stage;
    ring<S::BUFFERS> buffer;
};

/* The operands of an own tile. */
template <typename T, typename S>
__device__ __forceinline__ void copy_own(const attention_args &a, const grad_work &w, const own_tile &at,
                                         copy_rings<S> &rings)
{
    const int slot = rings.buffer.slot, head_dim = (int)a.head_dim;
    const uint32_t own = rings.shared + slot * S::OPERANDS * S::OWN_BYTES;
    auto copy = [&](int operand, const bhtd_tensor &x) {
        copy_rows<T, OWN_ROWS, S::DEPTH>(own + operand * S::OWN_BYTES, head_of(x, at.batch, at.head), at.first, w.own,
                                         head_dim);
    };
    rings.queue.wait_empty(rings.barriers.own_empty(slot), rings.buffer.parity ^ 1);
    copy(0, S::is_of_keys ? a.k : a.q);
    copy(1, S::is_of_keys ? a.v : a.g);
    if constexpr (!S::is_of_keys) {
        copy(2, a.y);
        copy_lse(rings.shared + S::STATS + slot * S::STATS_BYTES, head_of(a.lse, at.batch, at.head), at.first, w.own);
    }
    rings.queue.push(rings.barriers.own_full(slot));
    rings.buffer.advance();
}

/* The tiles of a head of the other operands. */
template <typename T, typename S>
__device__ __forceinline__ void copy_tiles(const attention_args &a, const grad_work &w, int batch, int head,
                                           const row_range &range, copy_rings<S> &rings)
{
    const int head_dim = (int)a.head_dim;
    const head_matrix first = head_of(S::is_of_keys ? a.q : a.k, batch, head),
                      second = head_of(S::is_of_keys ? a.g : a.v, batch, head);
    for (int row = range.begin; row < range.end; row += S::N) {
        const int slot = rings.stage.slot;
        const uint32_t tile = rings.shared + S::TILES + slot * 2 * S::TILE_BYTES;
        rings.queue.wait_empty(rings.barriers.empty(slot), rings.stage.parity ^ 1);
        copy_rows<T, S::N, S::DEPTH>(tile, first, row, w.other, head_dim);
        copy_rows<T, S::N, S::DEPTH>(tile + S::TILE_BYTES, second, row, w.other, head_dim);
        if constexpr (S::is_of_keys)
            copy_stats<S::N>(rings.shared + S::STATS + slot * S::STATS_BYTES,
                             (const float2 *)a.row_stats + (batch * a.heads + head) * a.rows, row, w.other);
        rings.queue.push(rings.barriers.full(slot));
        rings.stage.advance();
    }
}

/* For every own tile its operands, then the tiles of the other two. */
template <typename T, typename S>
__device__ __forceinline__ void copy_all(const attention_args &a, uint32_t shared, const grad_barriers<S> &barriers)
{
    const grad_work w = work_of<S::is_of_keys>(a);
    copy_rings<S> rings = {shared, barriers};
    for_own_tiles<S::is_of_keys>(a, w, [&](const own_tile &at) {
        const row_range range = range_of<S::is_of_keys, S::N>(w, at.first, OWN_ROWS);
        if (S::is_of_keys && range.begin >= range.end)
            return;
        copy_own<T, S>(a, w, at, rings);
        for (int member = 0; member < w.group; member++)
            copy_tiles<T, S>(a, w, at.batch, S::is_of_keys ? at.head * w.group + member : (int)(at.head / a.group),
                             range, rings);
    });
    rings.queue.flush();
}

#endif
