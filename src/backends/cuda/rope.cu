/* rope.cu: rotary positions. A block has a few positions of one batch: it makes the sines and cosines of their angles once, in f64, keeps them
 * in shared memory and turns all heads with them. Bytes: a read and a write of each element. */
#include "backends/cuda/rows.cuh"

#define MOST_ANGLES TARN__ROPE_PAIRS /* of a block: one a thread */
#define ENOUGH_BLOCKS (132 * 4)

struct rope_args {
    row_operand x, y;
    int64_t x_stride[3], y_stride[3]; /* along batch, position, head */
    const void *positions; /* NULL: 0, 1, 2 ... */
    bool are_long;
    int64_t position_stride[2]; /* along batch, position */
    int64_t length, heads, blocks; /* blocks of each batch */
    int pairs, held, back; /* held: positions of a block */
    int turned, units; /* units of a head that are turned, and all of them */
    divider by_heads, by_units;
    double frequency[TARN__ROPE_PAIRS];
};

/* A unit of a head that is turned: a pack and its partner `pairs` further on, or a pack of neighbouring pairs. */
template <typename R, bool is_interleaved>
__device__ __forceinline__ void turn(const rope_args &a, int64_t from, int64_t to, int unit, const typename R::real (*angle)[2])
{
    typedef typename R::real C;
    constexpr int N = R::width;
    C first[N], second[N];
    if constexpr (is_interleaved && N > 1) {
        typename R::raw x = R::fetch(a.x, from, unit);
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            C p = R::element(x, i), q = R::element(x, i + 1), c = angle[(unit * N + i) / 2][0], s = angle[(unit * N + i) / 2][1];
            first[i] = p * c - q * s;
            first[i + 1] = q * c + p * s;
        }
        R::store(a.y, to, unit, first);
    } else {
        int at = is_interleaved ? 2 * unit : unit, other = is_interleaved ? at + 1 : at + a.pairs / N;
        typename R::raw x = R::fetch(a.x, from, at), y = R::fetch(a.x, from, other);
#pragma unroll
        for (int i = 0; i < N; i++) {
            C p = R::element(x, i), q = R::element(y, i), c = angle[unit * N + i][0], s = angle[unit * N + i][1];
            first[i] = p * c - q * s;
            second[i] = q * c + p * s;
        }
        R::store(a.y, to, at, first);
        R::store(a.y, to, other, second);
    }
}

/* What lies behind the turned elements. */
template <typename R> __device__ __forceinline__ void keep(const rope_args &a, int64_t from, int64_t to, int unit)
{
    typename R::real same[R::width];
    int at = 2 * a.pairs / R::width + unit - a.turned;
    typename R::raw x = R::fetch(a.x, from, at);
#pragma unroll
    for (int i = 0; i < R::width; i++)
        same[i] = R::element(x, i);
    R::store(a.y, to, at, same);
}

template <typename R, bool is_interleaved> static __global__ void __launch_bounds__(THREADS) rope_kernel(const __grid_constant__ rope_args a)
{
    typedef typename R::real C;
    __shared__ C angle[MOST_ANGLES][2];
    const int64_t batch = blockIdx.x / a.blocks, begin = (blockIdx.x - batch * a.blocks) * a.held;
    const int count = (int)(a.length - begin < a.held ? a.length - begin : a.held);
    for (int i = threadIdx.x; i < count * a.pairs; i += THREADS) {
        int64_t at = begin + i / a.pairs;
        int64_t position = a.positions ? index_at(a.positions, a.are_long, batch * a.position_stride[0] + at * a.position_stride[1]) : at;
        double sine, cosine;
        sincos((double)position * a.frequency[i % a.pairs], &sine, &cosine);
        angle[i][0] = (C)cosine;
        angle[i][1] = (C)(a.back ? -sine : sine);
    }
    __syncthreads();
    const uint32_t work = (uint32_t)(count * a.heads * a.units);
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < work; i += THREADS) {
        uint32_t row = divide_small(i, a.by_units), place = divide_small(row, a.by_heads);
        int unit = (int)(i - row * (uint32_t)a.units);
        int64_t head = row - place * (uint32_t)a.heads, position = begin + place;
        int64_t from = batch * a.x_stride[0] + position * a.x_stride[1] + head * a.x_stride[2];
        int64_t to = batch * a.y_stride[0] + position * a.y_stride[1] + head * a.y_stride[2];
        if (unit < a.turned)
            turn<R, is_interleaved>(a, from, to, unit, angle + place * a.pairs);
        else
            keep<R>(a, from, to, unit);
    }
}

/* ---- starting it ------------------------------------------------------------------------------------------------------------ */

static row_operand operand_of(const tarn__view *view, int axis, int64_t *stride)
{
    stride[0] = view->stride[0];
    stride[1] = view->stride[axis];
    stride[2] = view->stride[3 - axis];
    return row_operand{tarn__view_at(view), view->stride[3], view->dtype};
}

static bool has_packs_of(const row_operand &o, const int64_t *stride, int width)
{
    return o.along == 1 && is_aligned(o.base, tarn__dtype_bytes(o.dtype) * (size_t)width) && stride[0] % width == 0 && stride[1] % width == 0 &&
           stride[2] % width == 0;
}

/* Grid: a block for `held` positions of a batch, as many as 256 threads make the angles of, or fewer where blocks would be few. */
template <typename R> static void launch(const tarn__call *call, rope_args &a, int64_t batches, int64_t depth, bool is_interleaved)
{
    a.turned = is_interleaved && R::width > 1 ? 2 * a.pairs / R::width : a.pairs / R::width;
    a.units = a.turned + (int)((depth - 2 * a.pairs) / R::width);
    a.by_units = divider_of(a.units);
    a.by_heads = divider_of(a.heads);
    a.held = MOST_ANGLES / a.pairs;
    while (a.held > 1 && batches * ((a.length + a.held - 1) / a.held) < ENOUGH_BLOCKS)
        a.held /= 2;
    a.blocks = (a.length + a.held - 1) / a.held;
    if (is_interleaved)
        rope_kernel<R, true><<<blocks_for(batches * a.blocks, 1), THREADS, 0, stream_of(call)>>>(a);
    else
        rope_kernel<R, false><<<blocks_for(batches * a.blocks, 1), THREADS, 0, stream_of(call)>>>(a);
}

template <typename T> static void launch_typed(const tarn__call *call, rope_args &a, int64_t batches, int64_t depth, bool is_interleaved)
{
    constexpr int N = pack_size<T>::value;
    bool fits = (is_interleaved ? 2 * a.pairs : a.pairs) % N == 0 && depth % N == 0;
    if (fits && has_packs_of(a.x, a.x_stride, N) && has_packs_of(a.y, a.y_stride, N))
        launch<typed<T, N>>(call, a, batches, depth, is_interleaved);
    else
        launch<untyped<float>>(call, a, batches, depth, is_interleaved);
}

static void run_rope(const tarn__call *call)
{
    const tarn__rope *params = (const tarn__rope *)call->params;
    const tarn__view *x = call->in[0], *positions = call->in[1], *y = call->out[0];
    if (tarn__view_count(x) == 0)
        return;
    rope_args a = {};
    a.x = operand_of(x, params->axis, a.x_stride);
    a.y = operand_of(y, params->axis, a.y_stride);
    a.positions = data_of<void>(positions);
    a.are_long = positions && positions->dtype == TARN_I64;
    a.position_stride[0] = positions && positions->rank == 2 ? positions->stride[0] : 0;
    a.position_stride[1] = positions ? positions->stride[positions->rank - 1] : 0;
    a.length = x->shape[params->axis];
    a.heads = x->shape[3 - params->axis];
    a.pairs = (int)(params->dims / 2);
    a.back = params->back;
    memcpy(a.frequency, params->frequency, sizeof(double) * (size_t)a.pairs);
    bool is_interleaved = params->interleaved != 0;
    if (x->dtype == TARN_F64 || y->dtype == TARN_F64)
        launch<untyped<double>>(call, a, x->shape[0], x->shape[3], is_interleaved);
    else if (x->dtype != y->dtype)
        launch<untyped<float>>(call, a, x->shape[0], x->shape[3], is_interleaved);
    else if (x->dtype == TARN_F32)
        launch_typed<float>(call, a, x->shape[0], x->shape[3], is_interleaved);
    else if (x->dtype == TARN_BF16)
        launch_typed<bf16>(call, a, x->shape[0], x->shape[3], is_interleaved);
    else
        launch_typed<f16>(call, a, x->shape[0], x->shape[3], is_interleaved);
}

void tarn__cuda_rope(tarn__kernel_row *rows)
{
    rows[TARN__K_rope] = tarn__kernel_row{run_rope, TARN__FLOATS, NULL};
}
