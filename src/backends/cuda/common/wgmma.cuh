/* wgmma.cuh: products of warpgroups on compute capability 9.0a, their tiles in shared memory, and the barriers between
 * the warps that copy tiles and those that use them.
 *
 * A tile has rows of 64 columns in 16 bits, 128 bytes, in the 128-byte swizzle: the 16-byte vector v of row r is at
 * v ^ r % 8 of that row. Wider rows are panels of 64 columns, one tile after another. Eight rows are 1,024 bytes: tiles
 * begin at multiples of it. The accumulator of a warpgroup is (64, N): its warp w owns rows 16 w ... of it, as
 * mma.cuh's (16, 8) accumulators, so that two adjacent ones, narrowed, are a left operand. */
#ifndef TARN__CUDA_WGMMA_CUH
#define TARN__CUDA_WGMMA_CUH

#include "backends/cuda/common/mma.cuh"

#define GROUP_THREADS 128 /* of a warpgroup */
#define GROUP_ROWS 64     /* of its accumulator */
#define PANEL 64          /* columns of a tile */
#define PANEL_ROW_BYTES 128

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared_address(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* True once the phase of this parity is complete. */
__device__ __forceinline__ bool is_barrier_done(uint32_t barrier, uint32_t parity)
{
    uint32_t is_done;
    asm volatile("{\n.reg .pred done;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n}"
                 : "=r"(is_done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return is_done != 0;
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    while (!is_barrier_done(barrier, parity))
        continue;
}

/* What this thread wrote to shared memory becomes visible to wgmma. */
__device__ __forceinline__ void publish_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Registers per thread of the calling warpgroup, from here on. */
template <int COUNT> __device__ __forceinline__ void raise_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void lower_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* ---- operands in shared memory ----------------------------------------------------------------------------------- */

/* Matrix descriptor: 128-byte swizzle, 1,024 bytes from eight rows to the next; `panel_bytes` from a panel to the next
 * where the operand is wider than one and read transposed. */
__device__ __forceinline__ uint64_t matrix_at(uint32_t address, uint32_t panel_bytes = 16)
{
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(panel_bytes >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* Byte offset of a 16-byte vector of a row of a panel. */
__device__ __forceinline__ uint32_t swizzled(int row, int vector)
{
    return (uint32_t)(row * PANEL_ROW_BYTES + ((vector ^ row) & 7) * 16);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Registers were written: the next products may read them. */
__device__ __forceinline__ void begin_products()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until at most PENDING commits are in flight. */
template <int PENDING> __device__ __forceinline__ void wait_products()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* The compiler must not use these registers before this point, nor keep copies of them over it. */
template <int N> __device__ __forceinline__ void pin(float (&sum)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(sum[n][i])::"memory");
}

#define SUM_1(n) "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
#define SUM_8(n) \
    SUM_1(n), SUM_1(n + 1), SUM_1(n + 2), SUM_1(n + 3), SUM_1(n + 4), SUM_1(n + 5), SUM_1(n + 6), SUM_1(n + 7)
#define NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 \
    NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
             "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define SUMS_64 SUM_8(0)
#define SUMS_128 SUM_8(0), SUM_8(8)

/* One wgmma of width `n`: `left` is its text, `tail` its transpositions; then the operands. */
#define PRODUCT(n, type, names, left, right, adds, tail, ...) \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " adds ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" names "}, " left ", " right \
                 ", adds, 1, 1, " tail ";\n}" \
                 : SUMS_##n \
                 : __VA_ARGS__)
#define PRODUCT_SHARED(type) \
    if constexpr (N == 64) \
        PRODUCT(64, type, NAMES_32, "%32", "%33", "%34", "0, 0", "l"(left), "l"(right), "r"(adds)); \
    else \
        PRODUCT(128, type, NAMES_64, "%64", "%65", "%66", "0, 0", "l"(left), "l"(right), "r"(adds))
#define PRODUCT_HELD(type, tail) \
    if constexpr (N == 64) \
        PRODUCT(64, type, NAMES_32, "{%32, %33, %34, %35}", "%36", "%37", tail, "r"(left[0]), "r"(left[1]), \
                "r"(left[2]), "r"(left[3]), "l"(right), "r"(adds)); \
    else \
        PRODUCT(128, type, NAMES_64, "{%64, %65, %66, %67}", "%68", "%69", tail, "r"(left[0]), "r"(left[1]), \
                "r"(left[2]), "r"(left[3]), "l"(right), "r"(adds))

/* sum (64, N) = left (64, 16) · rightᵀ, both of shared memory, plus the sum where it `adds`. */
template <typename T, int N>
__device__ __forceinline__ void product_shared(float (&sum)[N / 8][4], uint64_t left, uint64_t right, int adds)
{
    static_assert(N == 64 || N == 128, "a width of wgmma");
    if constexpr (is_bf16<T>) {
        PRODUCT_SHARED("bf16");
    } else {
        PRODUCT_SHARED("f16");
    }
}

/* The same with the left operand in registers. The rows of the right one are k, 16 of them, where it is transposed,
 * else columns of the sum. */
template <typename T, int N, bool is_transposed>
__device__ __forceinline__ void product_held(float (&sum)[N / 8][4], const uint32_t (&left)[4], uint64_t right,
                                             int adds)
{
    static_assert(N == 64 || N == 128, "a width of wgmma");
    if constexpr (is_bf16<T> && is_transposed) {
        PRODUCT_HELD("bf16", "1");
    } else if constexpr (is_bf16<T>) {
        PRODUCT_HELD("bf16", "0");
    } else if constexpr (is_transposed) {
        PRODUCT_HELD("f16", "1");
    } else {
        PRODUCT_HELD("f16", "0");
    }
}

#endif
