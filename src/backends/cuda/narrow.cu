/* narrow.cu: products of a long matrix x (rows, columns), 16 bits, with narrow ones, r wide: p = x · s (rows, r) and q = xᵀ · t (columns, r), either or both from one
 * way through x. What they take is that way: rows · columns · 2 bytes.
 *
 * A block has a strip of 256 columns and a part of the rows, 64 at a time, two tiles in shared memory. Of each tile it makes all of its strip's share of p, which it writes,
 * and adds to its share of qᵀ, (r, 256), which stays in registers. A second kernel adds the shares up, in order: how many there are depends on the shape alone. */
#include "backends/cuda/element.cuh"
#include "backends/cuda/mma.cuh"

#define STRIP 256
#define SHARE (STRIP / MMA_WARPS) /* a warp's columns of a strip */
#define BLOCKS 256                /* about as many: two for each multiprocessor of a large device */

struct narrow_args {
    const void *x, *s, *t; /* s or t may be NULL */
    int64_t rows, columns, rank;
    int64_t x_line, t_line;
    int64_t s_column, s_rank;      /* strides of s along columns of x, and along r */
    int64_t strips, parts, height; /* rows of a part */
    float *p_shares, *q_shares;    /* (strips, rows, r filled up), (parts, r filled up, strips · 256) */
    void *p, *q;
    tarn_dtype p_dtype, q_dtype;
    int64_t p_line, p_along, q_column, q_rank;
    float alpha, beta;
};

/* sᵀ of a strip, (r, 256), filled up with zeros. */
template <typename T, int R> __device__ __forceinline__ void stage_s(T *to, const narrow_args &a, int64_t column)
{
    const bool by_columns = a.s_column == 1; /* neighbours are read by neighbours */
    for (int at = threadIdx.x; at < R * STRIP; at += MMA_THREADS) {
        const int c = by_columns ? at % STRIP : at / R, r = by_columns ? at / STRIP : at % R;
        const bool is_there = column + c < a.columns && r < a.rank;
        to[r * line_of<STRIP> + c] = is_there ? ((const T *)a.s)[(column + c) * a.s_column + r * a.s_rank] : narrow<T>(0.0f);
    }
}

/* A warp's 16 rows of p, of this strip alone. */
template <int R> __device__ __forceinline__ void write_p(const narrow_args &a, const float (*sum)[4], int64_t strip, int64_t row, int64_t end)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t i = row + lane / 4 + half * 8;
        if (i >= end)
            continue;
#pragma unroll
        for (int n = 0; n < R / 8; n++)
            *(float2 *)(a.p_shares + (strip * a.rows + i) * R + n * 8 + lane % 4 * 2) = make_float2(sum[n][2 * half], sum[n][2 * half + 1]);
    }
}

/* qᵀ (r, 64 columns) += tᵀ · x for 64 rows of both. */
template <typename T, int R> __device__ __forceinline__ void add_q(float (*q)[SHARE / 8][4], const T *t, const T *x)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int step = 0; step < MMA_ROWS / 16; step++) {
        uint32_t left[R / 16][4], right[4];
#pragma unroll
        for (int r = 0; r < R / 16; r++) /* (16 of r, 16 rows): turned as it is loaded */
            load_turned(left[r], t + (step * 16 + lane % 8 + lane / 16 * 8) * line_of<R> + r * 16 + lane / 8 % 2 * 8);
#pragma unroll
        for (int w = 0; w < SHARE / 16; w++) {
            load_turned(right, x + (step * 16 + lane % 16) * line_of<STRIP> + w * 16 + lane / 16 * 8);
#pragma unroll
            for (int r = 0; r < R / 16; r++) {
                multiply<T>(q[r][2 * w], left[r], right[0], right[1]);
                multiply<T>(q[r][2 * w + 1], left[r], right[2], right[3]);
            }
        }
    }
}

/* The warp's columns, from `column`, of a part's qᵀ. */
template <int R> __device__ __forceinline__ void write_q(const narrow_args &a, const float (*q)[SHARE / 8][4], int64_t part, int64_t column)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int r = 0; r < R / 16; r++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int w = 0; w < SHARE / 8; w++)
                *(float2 *)(a.q_shares + (part * R + r * 16 + lane / 4 + half * 8) * (a.strips * STRIP) + column + w * 8 + lane % 4 * 2) =
                    make_float2(q[r][w][2 * half], q[r][w][2 * half + 1]);
}

template <typename T, int R> static __global__ void __launch_bounds__(MMA_THREADS, 2) shares_kernel(const __grid_constant__ narrow_args a)
{
    extern __shared__ uint4 shared[];
    constexpr int TILE = MMA_ROWS * line_of<STRIP>, T_TILE = MMA_ROWS * line_of<R>;
    T *const x_at = (T *)shared, *const s_at = x_at + 2 * TILE, *const t_at = s_at + (a.s ? R * line_of<STRIP> : 0);
    const int warp = threadIdx.x / WARP;
    const int64_t strip = blockIdx.x % a.strips, part = blockIdx.x / a.strips, column = strip * STRIP;
    const int64_t begin = part * a.height, end = begin + a.height < a.rows ? begin + a.height : a.rows;
    float sum[R / 8][4], q[R / 16][SHARE / 8][4] = {};
    auto stage = [&](int half, int64_t row) {
        stage_lines<T, MMA_ROWS, STRIP>(x_at + half * TILE, (const T *)a.x + column, a.x_line, row, end, a.columns - column);
        if (a.t)
            stage_lines<T, MMA_ROWS, R>(t_at + half * T_TILE, (const T *)a.t, a.t_line, row, end, a.rank);
    };
    stage(0, begin);
    if (a.s)
        stage_s<T, R>(s_at, a, column);
    for (int64_t row = begin; row < end; row += MMA_ROWS) {
        const int half = (int)((row - begin) / MMA_ROWS % 2);
        wait_copies();
        __syncthreads(); /* this tile is here, and all are done with the one before */
        if (row + MMA_ROWS < end)
            stage(1 - half, row + MMA_ROWS);
        if (a.s) {
            multiply_across<T, STRIP, R>(sum, x_at + half * TILE + warp * 16 * line_of<STRIP>, s_at);
            write_p<R>(a, sum, strip, row + warp * 16, end);
        }
        if (a.t)
            add_q<T, R>(q, t_at + half * T_TILE, x_at + half * TILE + warp * SHARE);
    }
    if (a.t)
        write_q<R>(a, q, part, column + warp * SHARE);
}

/* A thread an element of p, then of q: the sum of its shares. `wide` is r filled up. */
static __global__ void __launch_bounds__(THREADS) combine_kernel(const __grid_constant__ narrow_args a, int64_t wide)
{
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, of_p = a.p ? a.rows * wide : 0;
    float sum = 0;
    if (at < of_p) {
        const int64_t row = at / wide, r = at % wide;
        if (r >= a.rank)
            return;
#pragma unroll 4
        for (int64_t strip = 0; strip < a.strips; strip++)
            sum += a.p_shares[(strip * a.rows + row) * wide + r];
        store_any(a.p, a.p_dtype, row * a.p_line + r * a.p_along, a.alpha * sum);
        return;
    }
    const int64_t column = (at - of_p) % a.columns, r = (at - of_p) / a.columns, to = column * a.q_column + r * a.q_rank;
    if (!a.q || r >= a.rank)
        return;
#pragma unroll 4
    for (int64_t part = 0; part < a.parts; part++)
        sum += a.q_shares[(part * wide + r) * (a.strips * STRIP) + column];
    store_any(a.q, a.q_dtype, to, a.alpha * sum + (a.beta != 0 ? a.beta * load_any<float>(a.q, a.q_dtype, to) : 0));
}

/* ---- starting them ---------------------------------------------------------------------------------------------------------- */

static int64_t filled(int64_t rank)
{
    return (rank + 15) / 16 * 16;
}

/* Inputs x, s, t; outputs p, q. Gives the bytes of all shares, which begin at `scratch`. */
static size_t describe(const tarn__call *call, narrow_args *a, char *scratch)
{
    const tarn__matmul *params = (const tarn__matmul *)call->params;
    const tarn__view *x = call->in[0], *s = call->in[1], *t = call->in[2], *p = call->out[0], *q = call->out[1];
    *a = narrow_args{};
    a->x = data_of<void>(x), a->s = data_of<void>(s), a->t = data_of<void>(t), a->p = data_of<void>(p), a->q = data_of<void>(q);
    a->rows = x->shape[0], a->columns = x->shape[1], a->rank = s ? s->shape[1] : t->shape[1];
    a->x_line = x->stride[0], a->t_line = t ? t->stride[0] : 0;
    a->s_column = s ? s->stride[0] : 0, a->s_rank = s ? s->stride[1] : 0;
    if (p)
        a->p_dtype = p->dtype, a->p_line = p->stride[0], a->p_along = p->stride[1];
    if (q)
        a->q_dtype = q->dtype, a->q_column = q->stride[0], a->q_rank = q->stride[1];
    a->alpha = (float)params->alpha, a->beta = (float)params->beta;
    const int64_t tiles = (a->rows + MMA_ROWS - 1) / MMA_ROWS;
    a->strips = (a->columns + STRIP - 1) / STRIP;
    const int64_t wanted = a->strips < BLOCKS ? BLOCKS / a->strips : 1, parts = wanted < tiles ? wanted : tiles;
    a->height = (tiles + parts - 1) / parts * MMA_ROWS;
    a->parts = (a->rows + a->height - 1) / a->height;
    const size_t p_bytes = p ? (size_t)(a->strips * a->rows * filled(a->rank)) * sizeof(float) : 0;
    const size_t q_bytes = q ? (size_t)(a->parts * filled(a->rank) * a->strips * STRIP) * sizeof(float) : 0;
    a->p_shares = (float *)scratch;
    a->q_shares = (float *)(scratch + (p_bytes + 255) / 256 * 256);
    return (p_bytes + 255) / 256 * 256 + q_bytes;
}

static bool is_empty(const tarn__call *call)
{
    return tarn__view_count(call->in[0]) == 0;
}

static size_t scratch(const tarn__call *call)
{
    narrow_args a;
    return is_empty(call) ? 0 : describe(call, &a, NULL);
}

/* Grid: a block for a strip and a part. */
template <typename T, int R> static bool launch(const tarn__call *call, const narrow_args &a)
{
    constexpr size_t of_x = 2 * MMA_ROWS * line_of<STRIP> * sizeof(T), of_s = R * line_of<STRIP> * sizeof(T), of_t = 2 * MMA_ROWS * line_of<R> * sizeof(T);
    constexpr size_t most = of_x + (R <= TARN__NARROW_BOTH ? of_s + of_t : of_s > of_t ? of_s : of_t);
    return start<shares_kernel<T, R>>(call, a, a.strips * a.parts, of_x + (a.s ? of_s : 0) + (a.t ? of_t : 0), most);
}

template <typename T> static bool launch_rank(const tarn__call *call, const narrow_args &a)
{
    return a.rank <= 16 ? launch<T, 16>(call, a) : a.rank <= 32 ? launch<T, 32>(call, a) : launch<T, 48>(call, a);
}

static void run(const tarn__call *call)
{
    narrow_args a;
    if (is_empty(call))
        return;
    describe(call, &a, (char *)call->scratch);
    if (!(call->in[0]->dtype == TARN_BF16 ? launch_rank<bf16>(call, a) : launch_rank<f16>(call, a))) {
        tarn__cuda_set_failed(call->device);
        return;
    }
    const int64_t wide = filled(a.rank), count = (a.p ? a.rows * wide : 0) + (a.q ? a.columns * a.rank : 0);
    combine_kernel<<<blocks_for(count, THREADS), THREADS, 0, stream_of(call)>>>(a, wide);
}

void tarn__cuda_narrow(tarn__kernel_row *rows)
{
    rows[TARN__K_narrow_products] = tarn__kernel_row{run, TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16), scratch};
}
