/* attention_wgmma_grad.cu: the kernel of attention_wgmma_grad.cuh, which calls it computes, and in which shapes. */
#include <cstdlib>
#include <cstring>

#include "backends/cuda/attention/wgmma/attention_wgmma_grad_copy.cuh"
#include "backends/cuda/attention/wgmma/attention_wgmma_grad_sums.cuh"
#include "backends/cuda/runtime/cuda.h"

#define MAJOR 9            /* compute capability: no later one has wgmma */
#define MAX_ROWS (1 << 30) /* row and key indices, and those just past them, fit 32 bits */

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

/* The tiles of an own tile that one of the two warpgroups walks: some before and after it sees none of. */
struct tile_counts {
    int all, before, used;
};

template <typename S> __device__ __forceinline__ tile_counts counts_of(const grad_work &w, int first, int group_row)
{
    const row_range range = range_of<S::is_of_keys, S::N>(w, first, OWN_ROWS),
                    needed = range_of<S::is_of_keys, S::N>(w, group_row, GROUP_ROWS);
    const int all = tiles_in<S::N>(range), before = min(all, (needed.begin - range.begin) / S::N);
    return {all, before, min(all - before, tiles_in<S::N>(needed))};
}

/* The sums of an own tile, for the rows of g. */
template <typename T, typename S>
__device__ __forceinline__ void sum_tiles(const attention_args &a, const grad_work &w, const own_tile &at,
                                          grad_group<S> &g, grad_sums<S> &sums, const tile_walk<S> &walk,
                                          ring<S::BUFFERS> &buffer)
{
    const tile_counts tiles = counts_of<S>(w, at.first, g.group_row);
    const int slot = buffer.slot, group = (g.group_row - at.first) / GROUP_ROWS,
              begin = range_of<S::is_of_keys, S::N>(w, at.first, OWN_ROWS).begin;
    if (tiles.all == 0 && S::is_of_keys)
        return;
    g.own = walk.shared + slot * S::OPERANDS * S::OWN_BYTES + group * GROUP_ROWS * PANEL_ROW_BYTES;
    barrier_wait(walk.barriers.own_full(slot), buffer.parity);
    if constexpr (!S::is_of_keys)
        make_stats<T, S>(a, g, walk.generic + (g.own - walk.shared),
                         (const float *)(walk.generic + S::STATS + slot * S::STATS_BYTES) + group * GROUP_ROWS,
                         (at.batch * a.heads + at.head) * a.rows);
    if constexpr (S::HELD > 0)
        hold(g);
    if constexpr (S::HELD == 2)
        release(walk.barriers.own_empty(slot));
    for (int member = 0; member < w.group; member++) {
        tile_walk<S> mine = walk;
        mine.row = begin + tiles.before * S::N;
        if constexpr (S::drops)
            mine.keep = keep_source_of<S::is_of_keys>(
                a, at.batch * a.heads + (S::is_of_keys ? at.head * w.group + member : at.head), g.row);
        skip_tiles(walk.barriers, walk.stage, tiles.before);
        add_tiles<T, S>(a, w, g, sums, mine, tiles.used);
        skip_tiles(walk.barriers, walk.stage, tiles.all - tiles.before - tiles.used);
    }
    if constexpr (S::HELD < 2)
        release(walk.barriers.own_empty(slot));
    buffer.advance();
}

/* A computing warpgroup. */
template <typename T, typename S>
__device__ __forceinline__ void compute_all(const attention_args &a, uint32_t shared, const char *generic,
                                            const grad_barriers<S> &barriers)
{
    const grad_work w = work_of<S::is_of_keys>(a);
    /* the compiler sees that it is the same in a warp */
    const int warp = __shfl_sync(FULL_WARP, threadIdx.x / WARP, 0), head_dim = (int)a.head_dim;
    const float scale = (float)a.scale;
    ring<S::STAGES> stage;
    ring<S::BUFFERS> buffer;
    for_own_tiles<S::is_of_keys>(a, w, [&](const own_tile &at) {
        grad_group<S> g;
        grad_sums<S> sums = {};
        g.group_row = at.first + warp / 4 * GROUP_ROWS;
        g.row = g.group_row + warp % 4 * 16;
        sum_tiles<T, S>(a, w, at, g, sums, {stage, shared, generic, barriers, 0, {NULL}}, buffer);
        auto write = [&](const bhtd_tensor &to, const float(&sum)[S::DEPTH / 8][4], float factor) {
            if (to.base)
                write_sums<T, S::DEPTH>(head_of(to, at.batch, at.head), sum, factor, g.row, w.own, head_dim);
        };
        if constexpr (S::is_of_keys)
            write(a.gv, sums.second, S::drops ? a.keep_scale : 1);
        write(S::is_of_keys ? a.gk : a.gq, sums.first, scale);
    });
}

/* Two warpgroups compute, the third one copies: it needs few registers, and leaves them to the others. */
template <typename T, typename S>
static __global__ void __launch_bounds__(WGMMA_THREADS, 1) grad_kernel(const __grid_constant__ attention_args a)
{
    extern __shared__ uint4 dynamic[];
    char *const generic = (char *)dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT;
    const uint32_t shared = shared_address(generic);
    const grad_barriers<S> barriers = {shared + S::BARRIERS};
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES + S::BUFFERS; i++) {
            barrier_init(barriers.full(i), GROUP_THREADS);
            barrier_init(barriers.empty(i), USERS);
        }
        publish_shared();
    }
    __syncthreads();
    if (__shfl_sync(FULL_WARP, threadIdx.x / GROUP_THREADS, 0) == 2) {
        lower_registers<40>();
        copy_all<T, S>(a, shared, barriers);
    } else {
        raise_registers<232>();
        compute_all<T, S>(a, shared, generic, barriers);
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Measured on an H200. */
using rows64 = grad_shape<64, 128, false, 0, 4, 2>;
using keys64_causal = grad_shape<64, 64, true, 1, 4, 2>;
using keys64 = grad_shape<64, 128, true, 0, 4, 2>;
using rows128 = grad_shape<128, 64, false, 0, 4, 1>;
using keys128 = grad_shape<128, 64, true, 0, 3, 1>;
using rows64_dropping = grad_shape<64, 128, false, 0, 4, 2, true>;
using keys64_dropping = grad_shape<64, 64, true, 1, 4, 2, true>;

/* Grid: a block per multiprocessor, or per unit of work if those are fewer; 384 threads. Multiply-adds: 3 (rows) and 4
 * (keys) · rows · keys · D, of causal heads half of them. */
template <typename T, typename S>
static bool launch(const tarn__call *call, const attention_args &a, int multiprocessors)
{
    const int64_t units = units_of<S::is_of_keys>(a);
    return launch_large_smem<grad_kernel<T, S>, WGMMA_THREADS>(
        call, a, units < multiprocessors ? units : multiprocessors, S::BYTES + ALIGNMENT);
}

template <typename T> static bool launch_all(const tarn__call *call, const attention_args &a)
{
    const int blocks = tarn__cuda_at(call->device)->multiprocessors;
    const bool is_wide = a.head_dim > 64;
    bool done = true;
    if (a.is_dropping) {
        launch_masks(call, a);
        done = !a.gq.base || launch<T, rows64_dropping>(call, a, blocks);
        return done && ((!a.gk.base && !a.gv.base) || launch<T, keys64_dropping>(call, a, blocks));
    }
    if (a.gq.base)
        done = is_wide ? launch<T, rows128>(call, a, blocks) : launch<T, rows64>(call, a, blocks);
    if (!done || (!a.gk.base && !a.gv.base))
        return done;
    if (is_wide)
        return launch<T, keys128>(call, a, blocks);
    return a.is_causal ? launch<T, keys64_causal>(call, a, blocks) : launch<T, keys64>(call, a, blocks);
}

/* TARN_CUDA_ATTENTION=mma: the kernels of earlier devices. */
static bool is_wanted()
{
    const char *text = getenv("TARN_CUDA_ATTENTION");
    return !text || strcmp(text, "mma") != 0;
}

bool tarn__cuda_attention_wgmma_grad_fits(const tarn__call *call)
{
    const tarn__attention *params = (const tarn__attention *)call->params;
    const tarn__view *q = call->in[0], *k = call->in[1];
    const int64_t rows = q->shape[2], keys = k->shape[2], head_dim = q->shape[3];
    if (!is_wanted() || !tarn__cuda_attention_mma_grad_fits(call) || call->in[3] || call->inputs != 7 ||
        (params->random.a > 0 && (head_dim > 64 || keys > MAX_MASK_KEYS)) || params->window > 0 || head_dim <= 32 ||
        head_dim > 128 || rows > MAX_ROWS || keys > MAX_ROWS ||
        q->shape[0] * q->shape[1] * (rows > keys ? rows : keys) > (int64_t)MAX_ROWS * OWN_ROWS ||
        !has_vector_rows(call->in[4], q->dtype) || call->in[5]->dtype != TARN_F32)
        return false;
    const tarn__cuda_device *device = tarn__cuda_at(call->device);
    return device && device->major == MAJOR;
}

size_t tarn__cuda_attention_wgmma_grad_mask_bytes(const tarn__call *call)
{
    const int64_t *q = call->in[0]->shape;
    return ((const tarn__attention *)call->params)->random.a > 0
               ? mask_bytes_of(q[0] * q[1], q[2], call->in[1]->shape[2])
               : 0;
}

/* Nothing is lost where the device has too little shared memory: the caller then computes all gradients again. */
bool tarn__cuda_attention_wgmma_grad(const tarn__call *call, const attention_args *a)
{
    return a->q.dtype == TARN_BF16 ? launch_all<bf16>(call, *a) : launch_all<f16>(call, *a);
}
