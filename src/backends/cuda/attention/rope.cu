/* rope.cu: rotary position embedding (RoPE). A block handles a few positions: it computes the sines and cosines of
 * their angles once, in f64, keeps them in shared memory and rotates all heads with them. Where batches share positions
 * it does so for several: a thread then keeps its angles in registers, with several batches' loads in flight. Bytes: a
 * read and a write per element. ops/attention/rope.c computes the frequencies, with their scaling, and the factor of
 * cos and sin. */
#include "backends/cuda/common/rows.cuh"

#define MAX_ANGLES TARN__ROPE_PAIRS /* per block */
#define ENOUGH_BLOCKS (132 * 4)
#define ROPE_AHEAD 2   /* batches whose loads are in flight */
#define ROPE_BATCHES 8 /* per block, at most */

/* x and y are (batch, position, head, D) in any order of strides. */
struct rope_args {
    row_operand x, y;
    int64_t x_stride[3], y_stride[3]; /* along batch, position, head */
    const void *positions;            /* NULL: 0, 1, 2 ... */
    bool are_i64;
    int64_t position_stride[2];             /* along batch, position */
    int64_t length, heads, batches, blocks; /* blocks per group of batches */
    /* batches per block: group; is_inverse: the gradient, rotated by -angle */
    int pairs, positions_per_block, group, inverse;
    int rotated, units; /* rotated units of a head, and all of them */
    divider by_heads, by_units;
    double magnitude; /* factor of cos and sin */
    double frequency[TARN__ROPE_PAIRS];
};

/* What a thread rotates in one batch: a vector and its partner `pairs` further on, a vector of adjacent pairs, or a
 * part of the head beyond the rotated dimensions. */
template <typename R, bool is_interleaved> struct rope_unit {
    typedef typename R::real C;
    enum {
        width = R::width,
        has_pairs_within = is_interleaved && R::width > 1,
        angles = has_pairs_within ? R::width / 2 : R::width
    };
    int first, second; /* vectors of the head; second is -1 if there is only one */
    bool is_rotated;
    C cosine[angles], sine[angles];

    __device__ __forceinline__ void assign(const rope_args &a, int unit)
    {
        is_rotated = unit < a.rotated;
        second = -1;
        if (!is_rotated)
            first = 2 * a.pairs / width + unit - a.rotated;
        else if (has_pairs_within)
            first = unit;
        else
            first = is_interleaved ? 2 * unit : unit, second = is_interleaved ? first + 1 : first + a.pairs / width;
    }
    __device__ __forceinline__ void fetch(const rope_args &a, int64_t from, typename R::raw *x) const
    {
        x[0] = R::fetch(a.x, from, first);
        if (second >= 0)
            x[1] = R::fetch(a.x, from, second);
    }
    __device__ __forceinline__ void store(const rope_args &a, int64_t to, const typename R::raw *x) const
    {
        C one[width], other[width];
#pragma unroll
        for (int i = 0; i < width; i++)
            one[i] = R::element(x[0], i);
        if (is_rotated && has_pairs_within) {
#pragma unroll
            for (int i = 0; i + 1 < width; i += 2) {
                C p = one[i], q = one[i + 1];
                one[i] = p * cosine[i / 2] - q * sine[i / 2];
                one[i + 1] = q * cosine[i / 2] + p * sine[i / 2];
            }
        } else if (second >= 0) {
#pragma unroll
            for (int i = 0; i < width; i++) {
                C p = one[i], q = R::element(x[1], i);
                one[i] = p * cosine[i % angles] - q * sine[i % angles];
                other[i] = q * cosine[i % angles] + p * sine[i % angles];
            }
            R::store(a.y, to, second, other);
        }
        R::store(a.y, to, first, one);
    }
};

/* Angles of the block's positions. Sines and cosines are separate arrays, so that a thread's are vectors. */
template <typename C>
__device__ __forceinline__ void make_angles(const rope_args &a, int64_t batch, int64_t begin, int count, C *cosines,
                                            C *sines)
{
    for (int i = threadIdx.x; i < count * a.pairs; i += blockDim.x) {
        int64_t at = begin + i / a.pairs;
        int64_t position =
            a.positions ? index_at(a.positions, a.are_i64, batch * a.position_stride[0] + at * a.position_stride[1])
                        : at;
        double sine, cosine;
        sincos((double)position * a.frequency[i % a.pairs], &sine, &cosine);
        cosines[i] = (C)(a.magnitude * cosine);
        sines[i] = (C)(a.magnitude * (a.inverse ? -sine : sine));
    }
    __syncthreads();
}

/* N values from shared memory, aligned, at most 16 bytes at a time. */
template <int N, typename C> __device__ __forceinline__ void copy_vecs(const C *from, C *to)
{
    constexpr int most = 16 / (int)sizeof(C), W = N < most ? N : most;
#pragma unroll
    for (int i = 0; i < N; i += W) {
        vec<C, W> some = *(const vec<C, W> *)(from + i);
#pragma unroll
        for (int k = 0; k < W; k++)
            to[i + k] = some.at[k];
    }
}

/* Threads stride over (position, head, unit) of the block; batches are the inner loop, with the same angles. */
template <typename R, bool is_interleaved>
static __global__ void __launch_bounds__(THREADS) rope_kernel(const __grid_constant__ rope_args a)
{
    typedef typename R::real C;
    typedef rope_unit<R, is_interleaved> unit_type;
    __shared__ __align__(16) C cosines[MAX_ANGLES], sines[MAX_ANGLES];
    const int64_t group = blockIdx.x / a.blocks, begin = (blockIdx.x - group * a.blocks) * a.positions_per_block,
                  first = group * a.group;
    const int64_t last = first + a.group < a.batches ? first + a.group : a.batches;
    const int count = (int)(a.length - begin < a.positions_per_block ? a.length - begin : a.positions_per_block);
    make_angles(a, first, begin, count, cosines, sines);
    const uint32_t work = (uint32_t)(count * a.heads * a.units);
    for (uint32_t i = threadIdx.x; i < work; i += blockDim.x) {
        uint32_t row = divide_small(i, a.by_units), slot = divide_small(row, a.by_heads);
        int64_t head = row - slot * (uint32_t)a.heads, position = begin + slot;
        int unit = (int)(i - row * (uint32_t)a.units);
        unit_type u;
        u.assign(a, unit);
        if (u.is_rotated) {
            const int angle = (int)slot * a.pairs + unit * unit_type::angles;
            copy_vecs<unit_type::angles>(cosines + angle, u.cosine);
            copy_vecs<unit_type::angles>(sines + angle, u.sine);
        }
        int64_t from = first * a.x_stride[0] + position * a.x_stride[1] + head * a.x_stride[2];
        int64_t to = first * a.y_stride[0] + position * a.y_stride[1] + head * a.y_stride[2];
        for (int64_t batch = first; batch < last; batch += ROPE_AHEAD) {
            typename R::raw x[ROPE_AHEAD][2];
#pragma unroll
            for (int k = 0; k < ROPE_AHEAD; k++)
                if (batch + k < last)
                    u.fetch(a, from + k * a.x_stride[0], x[k]);
#pragma unroll
            for (int k = 0; k < ROPE_AHEAD; k++)
                if (batch + k < last)
                    u.store(a, to + k * a.y_stride[0], x[k]);
            from += ROPE_AHEAD * a.x_stride[0];
            to += ROPE_AHEAD * a.y_stride[0];
        }
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* `axis` is the position's axis, 1 or 2; the other one is the heads'. */
static row_operand operand_of(const tarn__view *view, int axis, int64_t *stride)
{
    stride[0] = view->stride[0];
    stride[1] = view->stride[axis];
    stride[2] = view->stride[3 - axis];
    return row_operand{tarn__view_at(view), view->stride[3], view->dtype};
}

static bool has_vecs_of(const row_operand &o, const int64_t *stride, int width)
{
    return o.along == 1 && is_aligned(o.base, tarn__dtype_bytes(o.dtype) * (size_t)width) && stride[0] % width == 0 &&
           stride[1] % width == 0 && stride[2] % width == 0;
}

/* Grid: a block per `positions_per_block` positions of a group of batches: as many as it has angles for, or fewer if
 * there would be too few blocks. Block size: as many threads as there is work for. */
template <typename R> static void launch(const tarn__call *call, rope_args &a, int64_t depth, bool is_interleaved)
{
    a.rotated = is_interleaved && R::width > 1 ? 2 * a.pairs / R::width : a.pairs / R::width;
    a.units = a.rotated + (int)((depth - 2 * a.pairs) / R::width);
    a.by_units = divider_of(a.units);
    a.by_heads = divider_of(a.heads);
    a.positions_per_block = MAX_ANGLES / a.pairs;
    while (a.positions_per_block > 1 &&
           a.batches * ((a.length + a.positions_per_block - 1) / a.positions_per_block) < ENOUGH_BLOCKS)
        a.positions_per_block /= 2;
    a.blocks = (a.length + a.positions_per_block - 1) / a.positions_per_block;
    a.group = a.position_stride[0] == 0 ? ROPE_BATCHES : 1;
    while (a.group > 1 && (a.batches + a.group - 1) / a.group * a.blocks < 2 * ENOUGH_BLOCKS)
        a.group /= 2;
    unsigned blocks = blocks_for((a.batches + a.group - 1) / a.group * a.blocks, 1),
             threads = warps_for(a.positions_per_block * a.heads * a.units, 1, THREADS);
    if (is_interleaved)
        rope_kernel<R, true><<<blocks, threads, 0, stream_of(call)>>>(a);
    else
        rope_kernel<R, false><<<blocks, threads, 0, stream_of(call)>>>(a);
}

/* Vectors if the rotated part and the rest of a head are whole vectors on both sides. */
template <typename T> static void launch_typed(const tarn__call *call, rope_args &a, int64_t depth, bool is_interleaved)
{
    constexpr int N = vec_size<T>::value;
    bool fits = (is_interleaved ? 2 * a.pairs : a.pairs) % N == 0 && depth % N == 0;
    if (fits && has_vecs_of(a.x, a.x_stride, N) && has_vecs_of(a.y, a.y_stride, N))
        launch<typed<T, N>>(call, a, depth, is_interleaved);
    else
        launch<untyped<float>>(call, a, depth, is_interleaved);
}

/* Positions are optional: NULL counts from 0; rank 1 is shared by all batches. */
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
    a.are_i64 = positions && positions->dtype == TARN_I64;
    a.position_stride[0] = positions && positions->rank == 2 ? positions->stride[0] : 0;
    a.position_stride[1] = positions ? positions->stride[positions->rank - 1] : 0;
    a.batches = x->shape[0];
    a.length = x->shape[params->axis];
    a.heads = x->shape[3 - params->axis];
    a.pairs = (int)(params->dims / 2);
    a.inverse = params->inverse;
    a.magnitude = params->magnitude;
    memcpy(a.frequency, params->frequency, sizeof(double) * (size_t)a.pairs);
    bool is_interleaved = params->interleaved != 0;
    if (x->dtype == TARN_F64 || y->dtype == TARN_F64)
        launch<untyped<double>>(call, a, x->shape[3], is_interleaved);
    else if (x->dtype != y->dtype)
        launch<untyped<float>>(call, a, x->shape[3], is_interleaved);
    else if (x->dtype == TARN_F32)
        launch_typed<float>(call, a, x->shape[3], is_interleaved);
    else if (x->dtype == TARN_BF16)
        launch_typed<bf16>(call, a, x->shape[3], is_interleaved);
    else
        launch_typed<f16>(call, a, x->shape[3], is_interleaved);
}

void tarn__cuda_register_rope(tarn__kernel_row *rows)
{
    rows[TARN__K_rope] = tarn__row(run_rope, TARN__FLOATS);
}
