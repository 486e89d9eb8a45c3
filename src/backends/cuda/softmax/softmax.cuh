/* softmax.cuh: how softmax.cu, softmax_grad.cu and softmax_grad_from_x.cu choose a kernel for a layout.
 *
 *   held     a row of up to 1024 elements has a warp, one of up to 32768 (gradients: 16384) a block, and stays in
 * registers between passes: one read and one write of memory stream   longer rows: a block reads the row twice, the
 * second time mostly from the second-level cache columns  another axis lies along memory: a block has 32 neighbouring
 * columns and goes down the axis with all its warps, twice
 *
 * Rows of whole aligned 16-byte packs move in packs, others element by element, and mixtures of dtypes through
 * load_any. */
#ifndef TARN__SOFTMAX_CUH
#define TARN__SOFTMAX_CUH

#include "backends/cuda/common/rows.cuh"

#define COLUMNS WARP   /* of a block */
#define MOST_SLICES 32 /* warps that share them */
#define LEAST_BESIDE 8 /* neighbouring columns from which on they are taken together */

enum { OUT, IN, GRADIENT, OPERANDS }; /* gradients: gx, y, g */

struct softmax_args {
    row_set<OPERANDS> rows;
    bool is_log;
};

__device__ __forceinline__ float logarithm(float x)
{
    return logf(x);
}
__device__ __forceinline__ double logarithm(double x)
{
    return log(x);
}

/* Rows of one dtype. Kernels is `forward` or `backward`, whose functions start the three kinds. */
template <typename Kernels, typename T> static void launch_rows(const tarn__call *call, const softmax_args &a)
{
    constexpr int N = pack_size<T>::value, EACH = 32 * 4 / (int)sizeof(wide<T>); /* elements a thread of a warp holds */
    /* and of a block, where registers are fewer */
    constexpr int HELD = EACH / Kernels::rows_held, SINGLES = EACH / 2;
    int64_t length = a.rows.length, count = a.rows.count;
    unsigned blocks = blocks_for(count, 1);
    if constexpr (sizeof(T) < 8) {
        if (has_packs(a.rows, OUT, N) && has_packs(a.rows, IN, N) && has_packs(a.rows, GRADIENT, N)) {
            if (length <= WARP * EACH)
                Kernels::template held<typed<T, N>, EACH / N, true>(call, a, warp_blocks(count), WARP * WARPS_A_BLOCK);
            else if (length <= 1024 * HELD)
                Kernels::template held<typed<T, N>, HELD / N, false>(call, a, blocks, warps_for(length, HELD, 1024));
            else
                Kernels::template stream<typed<T, N>>(call, a);
            return;
        }
    }
    if (length <= WARP * EACH)
        Kernels::template held<typed<T, 1>, EACH, true>(call, a, warp_blocks(count), WARP * WARPS_A_BLOCK);
    else if (length <= 1024 * SINGLES)
        Kernels::template held<typed<T, 1>, SINGLES, false>(call, a, blocks, warps_for(length, SINGLES, 1024));
    else
        Kernels::template stream<typed<T, 1>>(call, a);
}

/* True when another axis of operand IN lies along memory. */
static inline bool has_columns(const tarn__nest &nest, const row_set<OPERANDS> &rows)
{
    int last = nest.rank - 1;
    return last >= 0 && nest.shape[last] >= LEAST_BESIDE && nest.stride[IN][last] == 1 && rows.operand[IN].along != 1 &&
           rows.length > 1;
}

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

/* Slices of the axis: more where it is long. */
static inline dim3 column_block(int64_t length)
{
    return dim3(COLUMNS, length < 128 ? 4 : length < 1024 ? 8 : MOST_SLICES);
}

static inline unsigned stream_block(int64_t length)
{
    return warps_for(length, 4, 1024);
}

/* The gradients from x instead of y, in softmax_grad_from_x.cu. */
void tarn__cuda_run_softmax_grad_from_x(const tarn__call *call, bool is_log);

/* The gradients' entries, in softmax_grad.cu. */
void tarn__cuda_run_softmax_grad(const tarn__call *call);
void tarn__cuda_run_log_softmax_grad(const tarn__call *call);

#endif
