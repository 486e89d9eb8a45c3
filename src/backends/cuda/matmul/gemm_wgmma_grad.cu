/* gemm_wgmma_grad.cu: launches the kernel of gemm_wgmma.cuh: which GEMMs fit it, its tensor maps, and the second
 * kernel, which adds its partial sums. */
#include <atomic>

#include "backends/cuda/matmul/gemm_wgmma.cuh"
#include "backends/cuda/matmul/matmul.h"

#define MAJOR 9 /* compute capability; later ones have no wgmma */

/* ---- tensor maps ------------------------------------------------------------------------------------------------- */

/* cuTensorMapEncodeTiled(), from the driver: the runtime has no such function, and the library does not link the
 * driver. */
typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                    const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* NULL: the driver has none. */
static encode_function find_encode()
{
    static std::atomic<void *> found;
    void *encode = found.load(std::memory_order_relaxed);
    if (encode)
        return (encode_function)encode;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &result);
#else
    cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
        cudaGetLastError();
        return NULL;
    }
    found.store(encode, std::memory_order_relaxed);
    return (encode_function)encode;
}

/* Boxes of 64 columns of a bf16 matrix with contiguous rows. */
static bool encode_map(CUtensorMap *map, const void *at, int64_t rows, int64_t columns, int64_t line, int box_rows)
{
    const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)rows}, strides[] = {(cuuint64_t)line * sizeof(bf16)};
    const cuuint32_t box[] = {PANEL, (cuuint32_t)box_rows}, steps[] = {1, 1};
    encode_function encode = find_encode();
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)at, sizes, strides, box, steps,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* ---- column sums --------------------------------------------------------------------------------------------------
 */

#define SUM_LINES 32 /* threads of a column */

/* A thread block: 32 columns. Each thread adds every 32nd line of partial sums, then the first one adds the threads'.
 */
template <typename T>
static __global__ void __launch_bounds__(WARP *SUM_LINES) sum_lines(const float *lines, T *to, int count, int n)
{
    __shared__ float space[SUM_LINES][WARP];
    const int column = blockIdx.x * WARP + threadIdx.x;
    float sum = 0;
    if (column < n)
#pragma unroll 8
        for (int line = threadIdx.y; line < count; line += SUM_LINES)
            sum += lines[(int64_t)line * n + column];
    space[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= n)
        return;
    for (int i = 1; i < SUM_LINES; i++)
        sum += space[i][threadIdx.x];
    to[column] = narrow<T>(sum);
}

static int64_t sum_lines_of(const tarn__cuda_gemm *p)
{
    return (p->m + GROUP_ROWS - 1) / GROUP_ROWS;
}

size_t tarn__cuda_gemm_wgmma_workspace(const tarn__cuda_gemm *p)
{
    return tarn__cuda_align((size_t)(sum_lines_of(p) * p->n) * sizeof(float));
}

/* Grid: a block per 32 columns. Bytes: the partial sums once. */
static void add_lines(const tarn__cuda_gemm *p, const tarn__cuda_gemm_operands *operands, cudaStream_t stream)
{
    const dim3 threads(WARP, SUM_LINES);
    const float *lines = (const float *)operands->workspace;
    const int count = (int)sum_lines_of(p), n = (int)p->n;
    if (operands->sums_dtype == TARN_F32)
        sum_lines<<<blocks_for(n, WARP), threads, 0, stream>>>(lines, (float *)operands->sums, count, n);
    else
        sum_lines<<<blocks_for(n, WARP), threads, 0, stream>>>(lines, (bf16 *)operands->sums, count, n);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

bool tarn__cuda_gemm_wgmma_fits(int index, const tarn__cuda_gemm *p)
{
    const int64_t most = (int64_t)1 << 30;
    if (p->epilogue != CUBLASLT_EPILOGUE_DGELU || p->in_dtype != TARN_BF16 || p->out_dtype != TARN_BF16 ||
        p->batches != 1 || p->a_transposed || p->accumulates || p->align_a < 16 || p->align_b < 16 || p->align_c < 16 ||
        p->n % 8 != 0 || p->ldx % 8 != 0 || p->k < PIECES * TILE_K || p->k > most || p->m > most || p->n > most)
        return false;
    const tarn__cuda_device *device = tarn__cuda_at(index);
    return device && device->major == MAJOR && find_encode();
}

/* Grid: a cluster of two blocks per two multiprocessors, or per tile of 256 × 256 if those are fewer. FLOPs: 2 · M · N
 * · K. Bytes: a, b, c and x once. */
template <typename S> static bool launch(const gemm_args &g, int index, cudaStream_t stream)
{
    /* 1: yes, -1: no; concurrent first calls store the same answer */
    static std::atomic<int8_t> answers[TARN__CUDA_MAX_DEVICES];
    std::atomic<int8_t> &answer = answers[index];
    const int clusters = tarn__cuda_at(index)->multiprocessors / CLUSTER;
    if (answer.load(std::memory_order_relaxed) == 0) {
        const bool is_allowed =
            cudaFuncSetAttribute((const void *)gemm_wgmma<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED) ==
            cudaSuccess;
        answer.store(is_allowed ? 1 : -1, std::memory_order_relaxed);
        if (!is_allowed)
            cudaGetLastError(); /* clear the sticky error: the next poll must not report it */
    }
    if (answer.load(std::memory_order_relaxed) < 0)
        return false;
    gemm_wgmma<S><<<CLUSTER *(g.tiles < clusters ? g.tiles : clusters), GEMM_THREADS, S::SHARED, stream>>>(g);
    return cudaPeekAtLastError() == cudaSuccess;
}

bool tarn__cuda_gemm_wgmma_enqueue(int index, const tarn__cuda_gemm *p, const tarn__cuda_gemm_operands *operands,
                                   cudaStream_t stream)
{
    gemm_args g = {};
    const bool is_row_major = !p->b_transposed;
    if (!encode_map(&g.a, operands->a, p->m, p->k, p->lda, TILE_M) ||
        !encode_map(&g.b, operands->b, is_row_major ? p->k : p->n, is_row_major ? p->n : p->k, p->ldb,
                    is_row_major ? TILE_K : TILE_N / CLUSTER) ||
        !encode_map(&g.c, operands->c, p->m, p->n, p->ldc, GROUP_ROWS) ||
        !encode_map(&g.x, operands->aux, p->m, p->n, p->ldx, GROUP_ROWS))
        return false;
    g.sums = (float *)operands->workspace;
    g.n = (int)p->n, g.m = (int)p->m;
    g.blocks_k = (int)((p->k + TILE_K - 1) / TILE_K);
    g.tiles_n = (int)((p->n + TILE_N - 1) / TILE_N);
    g.tiles = (int)((p->m + CLUSTER * TILE_M - 1) / (CLUSTER * TILE_M)) * g.tiles_n;
    if (!(is_row_major ? launch<gemm_shape<true>>(g, index, stream) : launch<gemm_shape<false>>(g, index, stream)))
        return false;
    add_lines(p, operands, stream);
    return cudaPeekAtLastError() == cudaSuccess;
}
