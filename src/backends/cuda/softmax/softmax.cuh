/* softmax.cuh: kernel selection by layout for softmax.cu, softmax_grad.cu and softmax_grad_from_x.cu.
 *
 *   registers  a row of up to 1,024 elements has a warp, one of up to 32,768 (gradients: 16,384) a block, and stays
 *              in registers between passes: one read and one write of memory
 *   stream     longer rows: a block reads the row twice, the second time mostly from L2
 *   columns    another axis is contiguous: a block takes 32 adjacent columns and walks the axis with all its warps,
 *              twice
 *
 * Rows of aligned 16-byte vectors move in vectors, others element by element, and dtype mixtures through load_any. */
#ifndef TARN__CUDA_SOFTMAX_CUH
#define TARN__CUDA_SOFTMAX_CUH

#include "backends/cuda/common/rows.cuh"

#define COLUMNS WARP  /* per block */
#define MAX_SLICES 32 /* warps that share them */
#define MIN_COLUMNS 8 /* adjacent columns from which on they are processed together */

enum { OUT, IN, GRADIENT, OPERANDS }; /* gradients: gx, y, g */

/* Kernel arguments; is_log selects log_softmax. */
struct softmax_args {
    row_set<OPERANDS> rows;
    bool is_log;
};

__device__ __forceinline__ float log_of(float x)
{
    return logf(x);
}
__device__ __forceinline__ double log_of(double x)
{
    return log(x);
}

/* Rows of one dtype. Kernels is `forward` or `backward`, which launches the three kinds. */
template <typename Kernels, typename T> static void launch_rows(const tarn__call *call, const softmax_args &a)
{
    /* elements per thread of a warp */
    constexpr int N = vec_size<T>::value, WARP_ELEMENTS = 32 * 4 / (int)sizeof(compute<T>);
    /* and of a block, where registers are fewer */
    constexpr int BLOCK_ELEMENTS = WARP_ELEMENTS / Kernels::rows_in_registers, SINGLES = WARP_ELEMENTS / 2;
    int64_t length = a.rows.length, count = a.rows.count;
    unsigned blocks = blocks_for(count, 1);
    if constexpr (sizeof(T) < 8) {
        if (has_vecs(a.rows, OUT, N) && has_vecs(a.rows, IN, N) && has_vecs(a.rows, GRADIENT, N)) {
            if (length <= WARP * WARP_ELEMENTS)
                Kernels::template registers<typed<T, N>, WARP_ELEMENTS / N, true>(call, a, warp_blocks(count),
                                                                                  WARP * WARPS_PER_BLOCK);
            else if (length <= 1024 * BLOCK_ELEMENTS)
                Kernels::template registers<typed<T, N>, BLOCK_ELEMENTS / N, false>(
                    call, a, blocks, warps_for(length, BLOCK_ELEMENTS, 1024));
            else
                Kernels::template stream<typed<T, N>>(call, a);
            return;
        }
    }
    if (length <= WARP * WARP_ELEMENTS)
        Kernels::template registers<typed<T, 1>, WARP_ELEMENTS, true>(call, a, warp_blocks(count),
                                                                      WARP * WARPS_PER_BLOCK);
    else if (length <= 1024 * SINGLES)
        Kernels::template registers<typed<T, 1>, SINGLES, false>(call, a, blocks, warps_for(length, SINGLES, 1024));
    else
        Kernels::template stream<typed<T, 1>>(call, a);
}

/* True if another axis of operand IN is contiguous. */
static inline bool has_columns(const tarn__nest &nest, const row_set<OPERANDS> &rows)
{
    int last = nest.rank - 1;
    return last >= 0 && nest.shape[last] >= MIN_COLUMNS && nest.stride[IN][last] == 1 && rows.operand[IN].along != 1 &&
           rows.length > 1;
}

/* Describes the call, then selects by layout and dtypes. */
template <typename Kernels, int operands> static void run_softmax(const tarn__call *call, bool is_log)
{
    const tarn__view *views[OPERANDS] = {call->out[0], call->in[0], operands > 2 ? call->in[1] : NULL};
    softmax_args a = {};
    tarn__nest nest;
    a.is_log = is_log;
    a.rows = rows_of<OPERANDS>(((const tarn__along *)call->params)->axis, views, &nest);
    if (a.rows.count == 0 || a.rows.length == 0)
        return;
    tarn_dtype dtype = call->out[0]->dtype;
    bool is_double = dtype == TARN_F64, is_same = true;
    for (int k = 0; k < operands; k++)
        is_same = is_same && views[k]->dtype == dtype;
    if (has_columns(nest, a.rows)) {
        if (!is_same)
            is_double ? Kernels::template columns<untyped<double>>(call, a)
                      : Kernels::template columns<untyped<float>>(call, a);
        else
            FOR_FLOAT(dtype, (Kernels::template columns<typed<T, 1>>(call, a)))
    } else if (is_same) {
        FOR_FLOAT(dtype, (launch_rows<Kernels, T>(call, a)))
    } else {
        is_double ? Kernels::template stream<untyped<double>>(call, a)
                  : Kernels::template stream<untyped<float>>(call, a);
    }
}

/* Slices of the axis: more if it is long. */
static inline dim3 column_block(int64_t length)
{
    return dim3(COLUMNS, length < 128 ? 4 : length < 1024 ? 8 : MAX_SLICES);
}

/* Four elements per thread, at most 1,024 threads. */
static inline unsigned stream_block(int64_t length)
{
    return warps_for(length, 4, 1024);
}

/* softmax_grad_from_x.cu: the gradients from x instead of y. */
void tarn__cuda_run_softmax_grad_from_x(const tarn__call *call, bool is_log);

/* softmax_grad.cu: entries of the kernel table. */
void tarn__cuda_run_softmax_grad(const tarn__call *call);
void tarn__cuda_run_log_softmax_grad(const tarn__call *call);

#endif
