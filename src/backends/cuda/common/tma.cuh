/* tma.cuh: copies of boxes of a matrix between device and shared memory by the tensor memory accelerator, and barriers
 * over the thread blocks of a cluster, on compute capability 9.0.
 *
 * A box is described by a tensor map: 64 columns of 16 bits, in the 128-byte swizzle of wgmma.cuh. What lies outside
 * the matrix is read as 0 and not written. */
#ifndef TARN__CUDA_TMA_CUH
#define TARN__CUDA_TMA_CUH

#include <cuda.h>

#include "backends/cuda/common/wgmma.cuh"

/* ---- clusters ---------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of the cluster. */
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Arrives at the barrier with this address in block `rank` of the cluster. Without release at cluster scope, which
 * would wait for all stores of the thread: only earlier reads of shared memory must be complete. */
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank)
{
    asm volatile("{\n.reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

/* Makes initialized barriers visible to other blocks and to the accelerator. */
__device__ __forceinline__ void publish_barriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    publish_shared();
}

/* The only arrival of this phase, which ends when `bytes` bytes have been copied as well. */
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

__device__ __forceinline__ void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Copies the box at (row, column) to shared memory; its bytes are counted at the barrier. */
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap *map, int column, int row, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
                 "[%4];" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

/* The same to all blocks of the cluster in the mask `blocks`, at the same address and barrier in each. */
__device__ __forceinline__ void load_box_to(uint32_t to, const CUtensorMap *map, int column, int row, uint32_t barrier,
                                            uint16_t blocks)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
                 : "memory");
}

/* Copies the box at (row, column) from shared memory, which must not change until wait_stores_read(). */
__device__ __forceinline__ void store_box(const CUtensorMap *map, int column, int row, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column),
                 "r"(row), "r"(from)
                 : "memory");
}
__device__ __forceinline__ void commit_stores()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Waits until at most PENDING commits of this thread still read shared memory; that of the others may be written. */
template <int PENDING> __device__ __forceinline__ void wait_stores_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void wait_stores()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* ---- accumulators in shared memory ------------------------------------------------------------------------------- */

/* Four (8, 8) matrices of 16 bits from registers, as load_matrices() (mma.cuh) reads them. */
__device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t *from)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(from[0]),
                 "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
}
__device__ __forceinline__ void load_matrices_at(uint32_t *to, uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_trans_at(uint32_t *to, uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

#define NAMES_128 \
    NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
             "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, " \
             "%103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, " \
             "%120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_256 SUM_8(0), SUM_8(8), SUM_8(16), SUM_8(24)

/* sum (64, 256) = left (64, 16) · right, both in shared memory, plus the old sum if `adds`. The rows of the right
 * operand are the 16 of k if it is transposed, else columns of the sum. */
template <typename T, bool is_transposed>
__device__ __forceinline__ void product_wide(float (&sum)[32][4], uint64_t left, uint64_t right, int adds)
{
    if constexpr (is_bf16<T> && is_transposed) {
        PRODUCT(256, "bf16", NAMES_128, "%128", "%129", "%130", "0, 1", "l"(left), "l"(right), "r"(adds));
    } else if constexpr (is_bf16<T>) {
        PRODUCT(256, "bf16", NAMES_128, "%128", "%129", "%130", "0, 0", "l"(left), "l"(right), "r"(adds));
    } else if constexpr (is_transposed) {
        PRODUCT(256, "f16", NAMES_128, "%128", "%129", "%130", "0, 1", "l"(left), "l"(right), "r"(adds));
    } else {
        PRODUCT(256, "f16", NAMES_128, "%128", "%129", "%130", "0, 0", "l"(left), "l"(right), "r"(adds));
    }
}

#endif
