/* channel_nhwc.cl: passes of batchnorm and groupnorm where channels are closer than the elements of one (NHWC). See
 * channel_stats.cl.
 *
 * A work-group has a chunk of positions of a tile of channels: ACROSS work-items have N adjacent channels each, and the
 * rows of work-items take positions in turn. A work-item loads POSITIONS positions of all operands before it computes
 * with the first, to have several loads in flight. */
#include "backends/opencl/norm/channel_stats.cl"

#define ROWS (GROUP / ACROSS)

#ifdef VEC4
#include "backends/opencl/common/vec4.cl"
#define N 4
#define FETCH(T, name, place, to) vstore4(LOAD_4(T, name, place), 0, to)
#define WRITE(T, name, place, from) STORE_4(T, name, place, vload4(0, from))
#else
#define N 1
#define FETCH(T, name, place, to) *(to) = (C)LOAD(T, name, place)
#define WRITE(T, name, place, from) PUT(T, name, place, *(from))
#endif

/* ---- what a work-item has ---------------------------------------------------------------------------------------- */

#define TILES (((INDEX)c.channels + ACROSS * N - 1) / (ACROSS * N))
#define PIECES ((INDEX)c.sets / (INDEX)c.channels * (INDEX)c.chunks * TILES)

/* A work-item's part: its first channel, its first position in the work-group's chunk, and the end of that; 0 where the
 * channel does not exist. */
typedef struct piece {
    INDEX part, channel, chunk, begin, end;
} piece;

/* Tiles of channels vary fastest, so that adjacent work-groups read adjacent memory; then chunks, then samples. */
piece piece_of(const channel_set *c, INDEX tiles, INDEX number)
{
    const INDEX chunks = (INDEX)c->chunks, rest = number / tiles;
    piece p;
    p.part = rest / chunks;
    p.chunk = rest - p.part * chunks;
    p.channel = ((number - rest * tiles) * ACROSS + MY_ITEM % ACROSS) * N;
    p.begin = (INDEX)(p.chunk * c->chunk) + MY_ITEM / ACROSS;
    p.end = p.channel < c->channels ? (INDEX)min(c->lines * c->inner, (p.chunk + 1) * c->chunk) : 0;
    return p;
}

/* A pass that reads what another has just read starts at its end, which a cache still holds. */
#define FROM_THE_FRONT piece_of(&c, TILES, (INDEX)MY_ROW)
#define FROM_THE_END piece_of(&c, TILES, PIECES - 1 - (INDEX)MY_ROW)

/* The set of its first channel; any valid set where it has none. */
#define MY_SET (p.part * (INDEX)c.channels + min(p.channel, (INDEX)c.channels - N))

/* Offset of an operand's channel, and of a position from it. STRAIGHT: positions are a constant step apart. */
#define BASE(name, k) (name##_at + p.part * c.sample_step[k] + p.channel * c.channel_step[k])
#ifdef STRAIGHT
#define OFFSET(k) ((first_ + h * ROWS) * (INDEX)c.along[k])
#else
long offset_of(const channel_set *c, INDEX at, int k)
{
    const INDEX inner = (INDEX)c->inner, outer = at / inner;
    return nest_at(&c->outer, outer, k) + (at - outer * inner) * c->along[k];
}
#define OFFSET(k) offset_of(&c, first_ + h * ROWS, k)
#endif

/* POSITIONS positions at a time, each of them, and each channel of a work-item. */
#define EACH_TURN for (INDEX first_ = p.begin; first_ < p.end; first_ += POSITIONS * ROWS)
#define EACH_POSITION _Pragma("unroll") for (int h = 0; h < POSITIONS; h++) if (first_ + h * ROWS < p.end)
#define EACH_LANE _Pragma("unroll") for (int lane = 0; lane < N; lane++)

#define READ(T, name, k) FETCH(T, name, name##_base + OFFSET(k), name##_regs[h])
#define ELEMENT(T, name, at, k) name##_regs[h][lane]

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Sums per channel over the work-group's rows of work-items, for all of them: a few rows combine every TOP_ROWS-th,
 * then all combine theirs. Loops are not unrolled, to leave registers to the data. */
#define TOP_ROWS (ROWS >= 64 ? 8 : ROWS >= 16 ? 4 : 1)

void sum_rows(real *x, __local real *space)
{
#if GROUP > 1
    const int me = MY_ITEM, column = me % ACROSS;
    /* Lane by lane, so that adjacent work-items touch adjacent words of local memory. */
    EACH_LANE space[lane * GROUP + me] = x[lane];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me < TOP_ROWS * ACROSS) {
        _Pragma("unroll 1") for (int at = me + TOP_ROWS * ACROSS; at < GROUP; at += TOP_ROWS * ACROSS)
            EACH_LANE x[lane] += space[lane * GROUP + at];
        EACH_LANE space[lane * GROUP + me] = x[lane];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH_LANE x[lane] = space[lane * GROUP + column];
    _Pragma("unroll 1") for (int at = column + ACROSS; at < TOP_ROWS * ACROSS; at += ACROSS) EACH_LANE x[lane] +=
        space[lane * GROUP + at];
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
}

#ifdef MOMENTS
#define POSITIONS 4
#define FEW (4 * POSITIONS) /* positions summed in the compute type before they are added in `real` */

/* False where squares may have left the range of f32; the sums are then repeated in `real`. */
bool is_in_range(C sum, C squares)
{
    return sizeof(C) == sizeof(real) || (squares > (C)1e-30f && squares < (C)1e30f) || (squares == 0 && sum == 0);
}

/* Count, mean and sum of squared deviations per set and chunk, (sets, chunks, 3). A work-item measures from its first
 * element, so that cancellation at the end is bounded by that element's part in the squares. Bytes: x read once. */
__kernel void nhwc_moments(channel_set c, OPERAND(x), OPERAND(parts))
{
    __local real space[N * GROUP];
    END_BEYOND(PIECES)
    const piece p = FROM_THE_FRONT;
    const long x_base = BASE(x, X);
    C from[N] = {0};
    real sums[N] = {0}, squares[N] = {0};
    _Pragma("unroll 1") for (INDEX next = p.begin; next < p.end; next += FEW * ROWS)
    {
        const INDEX stop = min(p.end, next + FEW * ROWS);
        C few[N] = {0}, few_squares[N] = {0};
        _Pragma("unroll 1") for (INDEX first_ = next; first_ < stop; first_ += POSITIONS * ROWS)
        {
            C x_regs[POSITIONS][N];
            EACH_POSITION READ(T_X, x, X);
            if (first_ == p.begin)
                EACH_LANE from[lane] = x_regs[0][lane];
            EACH_POSITION EACH_LANE
            {
                const C d = x_regs[h][lane] - from[lane];
                few[lane] += d;
                few_squares[lane] += d * d;
            }
        }
        EACH_LANE
        {
            real sum = few[lane], square = few_squares[lane];
            if (!is_in_range(few[lane], few_squares[lane])) {
                sum = square = 0;
                _Pragma("unroll 1") for (INDEX first_ = next, h = 0; first_ < stop; first_ += ROWS)
                {
                    const real d = (real)(C)LOAD(T_X, x, x_base + OFFSET(X) + lane) - (real)from[lane];
                    sum += d;
                    square += d * d;
                }
            }
            sums[lane] += sum, squares[lane] += square;
        }
    }
    /* combines the work-items of a column: sums relative to the chunk's first element give its mean, then squares are
     * moved to that mean */
    const INDEX first_ = (INDEX)(p.chunk * c.chunk), h = 0;
    const real length = (real)(p.end - first_), seen = (real)((p.end - p.begin + ROWS - 1) / ROWS),
               inverse = p.begin < p.end ? 1 / seen : (real)0;
    C start[N] = {0};
    real middle[N];
    if (p.end > 0)
        FETCH(T_X, x, x_base + OFFSET(X), start);
    EACH_LANE middle[lane] = p.begin < p.end ? sums[lane] + seen * ((real)from[lane] - (real)start[lane]) : (real)0;
    sum_rows(middle, space);
    EACH_LANE
    {
        middle[lane] = (real)start[lane] + middle[lane] / length;
        const real apart = (real)from[lane] + sums[lane] * inverse - middle[lane];
        squares[lane] =
            p.begin < p.end ? squares[lane] - sums[lane] * sums[lane] * inverse + seen * apart * apart : (real)0;
    }
    sum_rows(squares, space);
    /* The first row of work-items writes: after sum_rows() all have the same sums. */
    if (MY_ITEM >= ACROSS || p.end == 0)
        return;
    EACH_LANE
    {
        __global real *into = PARTS + 3 * ((MY_SET + lane) * c.chunks + p.chunk);
        into[0] = length, into[1] = middle[lane], into[2] = squares[lane];
    }
}
#endif

/* ---- results ----------------------------------------------------------------------------------------------------- */

#ifdef NORMALIZE
#define POSITIONS 4
/* y = relu((x - mean) · scale + bias + residual). Bytes: x read, y written; with a residual, that too. */
__kernel void nhwc_normalize(channel_set c, OPERAND(x), OPERAND(to), OPERAND(residual), OPERAND(stats))
{
    END_BEYOND(PIECES)
    const piece p = FROM_THE_END;
    const long x_base = BASE(x, X), to_base = BASE(to, Y), residual_base = BASE(residual, RESIDUAL);
    C highs[N], lows[N], scales[N], biases[N];
    EACH_LANE
    {
        const real mean = STAT(MEAN, MY_SET + lane);
        highs[lane] = (C)mean, lows[lane] = (C)(mean - (real)highs[lane]);
        scales[lane] = (C)STAT(SCALE, MY_SET + lane), biases[lane] = (C)STAT(BIAS, MY_SET + lane);
    }
    EACH_TURN
    {
        C x_regs[POSITIONS][N], residual_regs[POSITIONS][N];
        EACH_POSITION
        {
            READ(T_X, x, X);
#ifdef ADDED
            READ(T_RESIDUAL, residual, RESIDUAL);
#endif
        }
        EACH_POSITION
        {
            C result[N];
            EACH_LANE
            {
                const C high = highs[lane], low = lows[lane];
                C y = CENTRED(x_regs[h][lane]) * scales[lane] + biases[lane];
#ifdef ADDED
                y += residual_regs[h][lane];
#endif
                result[lane] = RELU_OUT(y);
            }
            WRITE(T_Y, to, to_base + OFFSET(Y), result);
        }
    }
}
#endif

/* ---- gradients --------------------------------------------------------------------------------------------------- */

#if defined(SUMS) || defined(GRAD)
#define POSITIONS 4

/* Statistics of the N channels of a work-item, in registers. */
typedef struct lane_stats {
    C high[N], low[N], rstd[N], scale[N], bias[N];
} lane_stats;

/* Offsets of all operands, and the mean in two parts: `high` rounded to C, `low` the rounding error. */
#define GRADIENT_STATS \
    const long x_base = BASE(x, X), to_base = BASE(to, Y), g_base = BASE(g, GY), \
               residual_base = BASE(residual, RESIDUAL), gres_base = BASE(gres, GRES); \
    const C min_output = (C)min_output_; \
    lane_stats own; \
    EACH_LANE \
    { \
        const INDEX set = MY_SET + lane; \
        const real middle = MEAN_OF(set); \
        own.high[lane] = (C)middle, own.low[lane] = (C)(middle - (real)own.high[lane]); \
        own.rstd[lane] = (C)RSTD_OF(set), own.scale[lane] = (C)SCALE_OF(set), own.bias[lane] = (C)BIAS_OF(set); \
    }

/* One lane's statistics by the names that the shared formulas use. */
#define LANE_STATS \
    const C high = own.high[lane], low = own.low[lane], rstd_ = own.rstd[lane], scale = own.scale[lane], \
            plus = own.bias[lane];

#ifdef ADDED
#define READ_GRADIENTS \
    C x_regs[POSITIONS][N], g_regs[POSITIONS][N], residual_regs[POSITIONS][N]; \
    EACH_POSITION \
    { \
        READ(T_X, x, X); \
        READ(T_G, g, GY); \
        READ(T_RESIDUAL, residual, RESIDUAL); \
    }
#else
#define READ_GRADIENTS \
    C x_regs[POSITIONS][N], g_regs[POSITIONS][N]; \
    EACH_POSITION \
    { \
        READ(T_X, x, X); \
        READ(T_G, g, GY); \
    }
#endif
#endif

#ifdef SUMS
/* Σ gy and Σ gy · (x - mean) · rstd per set and chunk, (sets, chunks, 2). The gradient after relu is written on the
 * way, and with FIXED gx. Bytes: x and gy read, and relu's output where it is given. */
__kernel void nhwc_sums(channel_set c, OPERAND(x), OPERAND(to), OPERAND(g), OPERAND(residual), OPERAND(gres),
                        STATISTICS, OPERAND(parts), real min_output_)
{
    __local real space[N * GROUP];
    END_BEYOND(PIECES)
    const piece p = FROM_THE_FRONT;
    real sums[N] = {0}, products[N] = {0};
    GRADIENT_STATS
    EACH_TURN
    {
        C few[N] = {0}, few_products[N] = {0};
        READ_GRADIENTS
        EACH_POSITION
        {
            C gys[N], grads[N];
            EACH_LANE
            {
                LANE_STATS
                LOAD_GRAD()
                few[lane] += gy;
                few_products[lane] += gy * (CENTRED(x_regs[h][lane]) * rstd_);
                gys[lane] = gy, grads[lane] = gy * scale;
            }
#ifdef ADDED
            if (gres)
                WRITE(T_GRES, gres, gres_base + OFFSET(GRES), gys);
#endif
#ifdef FIXED
            if (to)
                WRITE(T_Y, to, to_base + OFFSET(Y), grads);
#endif
        }
        EACH_LANE sums[lane] += few[lane], products[lane] += few_products[lane];
    }
    sum_rows(sums, space);
    sum_rows(products, space);
    if (MY_ITEM >= ACROSS || p.end == 0)
        return;
    EACH_LANE
    {
        __global real *into = PARTS + 2 * ((MY_SET + lane) * c.chunks + p.chunk);
        into[0] = sums[lane], into[1] = products[lane];
    }
}
#endif

#ifdef GRAD
/* gx. Bytes: gy and x read, with FIXED gy alone; gx written, and the gradient after relu. */
__kernel void nhwc_grad(channel_set c, OPERAND(x), OPERAND(to), OPERAND(g), OPERAND(residual), OPERAND(gres),
                        STATISTICS, OPERAND(stats), real min_output_)
{
    END_BEYOND(PIECES)
    const piece p = FROM_THE_END;
    GRADIENT_STATS
#ifndef FIXED
    C firsts[N], seconds[N];
    EACH_LANE firsts[lane] = (C)STAT(FIRST, MY_SET + lane), seconds[lane] = (C)STAT(SECOND, MY_SET + lane);
#endif
    EACH_TURN
    {
        READ_GRADIENTS
        EACH_POSITION
        {
            C gys[N], grads[N];
            EACH_LANE
            {
                LANE_STATS
                LOAD_GRAD()
#ifndef FIXED
                const C first = firsts[lane], second = seconds[lane];
#endif
                gys[lane] = gy, grads[lane] = GRAD_X();
            }
#ifdef ADDED
            if (gres)
                WRITE(T_GRES, gres, gres_base + OFFSET(GRES), gys);
#endif
            if (to)
                WRITE(T_Y, to, to_base + OFFSET(Y), grads);
        }
    }
}
#endif
