/* long_columns.cuh: reductions of the long columns of a matrix, as in the gradients of biases.
 *
 * A block has 128 bytes of adjacent columns and a chunk of rows. The number of chunks is that of one wave of blocks, so
 * all blocks load all the time, merge once, and leave few states to the second kernel, that of reduce_loops.cuh. Splits
 * depend on the shape alone. */
#ifndef TARN__CUDA_LONG_COLUMNS_CUH
#define TARN__CUDA_LONG_COLUMNS_CUH

#include "backends/cuda/reduce/reduce_loops.cuh"

#define LONG_UNITS 8    /* vectors of columns per block */
#define WAVE_BLOCKS 396 /* three for each of 132 multiprocessors */

/* A planned reduction of one input. */
struct reduce_job {
    reduce_args args;
    bool has_long_columns;
};

/* Sets the chunks of a planned reduction. False if the operand is not a matrix whose rows are whole vectors, if columns
 * are short, or if whole chunks fill less than 9/10 of a wave. */
static inline bool plan_long_columns(reduce_args *a)
{
    const int rows = THREADS / LONG_UNITS;
    if (a->outputs == 0 || !a->by_columns || a->vec_width == 1 || a->outer.rank > 1 || a->reduced.rank > 1 ||
        a->length >= INT32_MAX)
        return false;
    const int64_t blocks = divide_up(a->units, LONG_UNITS), wave = WAVE_BLOCKS / blocks,
                  most = a->length / (rows * BATCH), chunks = wave < most ? wave : most;
    if (chunks < 2 || wave * blocks < WAVE_BLOCKS * 9 / 10)
        return false;
    a->chunk = divide_up(divide_up(a->length, chunks), rows) * rows;
    a->chunks = divide_up(a->length, a->chunk);
    return true;
}

static tarn__plan_status prepare_reduce(const tarn__call *call, tarn__plan *plan)
{
    reduce_job *j = reserve_job<reduce_job>(plan);
    if (!j)
        return TARN__PLAN_FAILED;
    *j = {};
    if (plan_reduce(&j->args, call->in[0], call->out[0], NULL)) {
        j->has_long_columns = plan_long_columns(&j->args);
        plan->scratch_bytes = states_bytes(j->args);
    }
    j->args.flip = 1;
    j->args.scale = 1;
    return TARN__PLAN_READY;
}

/* Adjacent threads have adjacent vectors; the rows of a warp are merged by shuffles, its warps through shared memory.
 * Grid: (units / LONG_UNITS, chunks). Bytes: x once. */
template <typename Op, typename T, int N>
static __global__ void __launch_bounds__(THREADS, 3) reduce_long_columns(const __grid_constant__ reduce_args a)
{
    constexpr int ROWS = THREADS / LONG_UNITS, COLUMNS = LONG_UNITS * N, WARPS = THREADS / WARP;
    __shared__ typename Op::state space[WARPS][COLUMNS];
    const int lane = (int)threadIdx.x % LONG_UNITS, row = (int)threadIdx.x / LONG_UNITS;
    const int64_t begin = blockIdx.y * a.chunk, unit = (int64_t)blockIdx.x * LONG_UNITS + lane,
                  stride = a.reduced.stride[0][0];
    const int end = (int)(a.length - begin < a.chunk ? a.length - begin : a.chunk);
    const auto aux = Op::aux(a, 0);
    typename Op::state s[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        s[k] = Op::start();
    if (unit < a.units) {
        const T *from = (const T *)a.x + (begin + row) * stride + unit * N;
#pragma unroll 1
        for (int i = row; i < end; i += BATCH * ROWS, from += BATCH * ROWS * stride) {
            vec<T, N> x[BATCH];
            typename Op::batch b[N];
#pragma unroll
            for (int u = 0; u < BATCH; u++)
                if (i + u * ROWS < end)
                    x[u] = load_vec<T, N>(from + u * ROWS * stride);
#pragma unroll
            for (int k = 0; k < N; k++)
                b[k] = begin_batch<Op>(s[k]);
#pragma unroll
            for (int u = 0; u < BATCH; u++)
                if (i + u * ROWS < end) {
                    compute<T> element[N];
                    widen_vec(x[u], element);
#pragma unroll
                    for (int k = 0; k < N; k++)
                        Op::take(b[k], element[k], aux, begin + i + u * ROWS);
                }
#pragma unroll
            for (int k = 0; k < N; k++)
                end_batch<Op>(s[k], b[k]);
        }
    }
#pragma unroll
    for (int apart = LONG_UNITS; apart < WARP; apart *= 2)
#pragma unroll
        for (int k = 0; k < N; k++)
            Op::merge(s[k], shuffle_state(s[k], apart));
    if (threadIdx.x % WARP < LONG_UNITS)
#pragma unroll
        for (int k = 0; k < N; k++)
            space[threadIdx.x / WARP][lane * N + k] = s[k];
    __syncthreads();
    const int64_t output = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    if (threadIdx.x >= COLUMNS || output >= a.outputs)
        return;
    typename Op::state all = space[0][threadIdx.x];
    for (int warp = 1; warp < WARPS; warp++)
        Op::merge(all, space[warp][threadIdx.x]);
    ((typename Op::state *)a.partial)[(int64_t)blockIdx.y * a.outputs + output] = all;
}

/* The second launch merges the chunks. */
template <template <typename> class Op, typename T> static void launch_long(const reduce_args &a, cudaStream_t stream)
{
    typedef Op<compute<T>> op;
    const int bits = 5;
    dim3 grid(blocks_for(a.units, LONG_UNITS), (unsigned)a.chunks);
    reduce_long_columns<op, T, vec_size<T>::value><<<grid, THREADS, 0, stream>>>(a);
    reduce_chunks<op><<<blocks_for(a.outputs, 1 << bits), THREADS, 0, stream>>>(a, bits);
}

/* Runs a reduction planned by prepare_reduce(). */
template <template <typename> class Op> static void run_reduce(const reduce_args &a, bool is_long, cudaStream_t stream)
{
    if (!is_long)
        reduce_any<Op>(a, stream);
    else if (a.x_dtype == TARN_F32)
        launch_long<Op, float>(a, stream);
    else if (a.x_dtype == TARN_BF16)
        launch_long<Op, bf16>(a, stream);
    else
        launch_long<Op, f16>(a, stream);
}

#endif
