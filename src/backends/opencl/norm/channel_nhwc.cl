/* channel_nhwc.cl: the passes of batchnorm and groupnorm where channels lie closer than the elements of one: by
 * columns. See channel_stats.cl.
 *
 * A group has a chunk of positions of a tile of channels: ACROSS work-items side by side have N neighbouring channels
 * each, and the group's rows of work-items take positions in turn. A work-item asks for HELD positions of all operands
 * before it computes with the first. */
#include "backends/opencl/norm/channel_stats.cl"

#define ROWS (GROUP / ACROSS)

#ifdef QUADS
#include "backends/opencl/common/vec4.cl"
#define N 4
#define FETCH(T, name, place, to) vstore4(LOAD_4(T, name, place), 0, to)
#define DELIVER(T, name, place, from) STORE_4(T, name, place, vload4(0, from))
#else
#define N 1
#define FETCH(T, name, place, to) *(to) = (C)LOAD(T, name, place)
#define DELIVER(T, name, place, from) PUT(T, name, place, *(from))
#endif

/* ---- what a work-item has ---------------------------------------------------------------------------------------- */

#define TILES (((INDEX)c.channels + ACROSS * N - 1) / (ACROSS * N))
#define PIECES ((INDEX)c.sets / (INDEX)c.channels * (INDEX)c.chunks * TILES)

/* Its first channel, its first position in the group's chunk, and where that ends: at 0 where there is no such channel.
 */
typedef struct piece {
    INDEX part, channel, chunk, begin, end;
} piece;

piece piece_of(const channel_set *c, INDEX tiles, INDEX number)
{
    const INDEX chunks = (INDEX)c->chunks, rest = number / tiles;
    piece p;
    p.part = rest / chunks;
    p.chunk = rest - p.part * chunks;
    p.channel = ((number - rest * tiles) * ACROSS + MY_PLACE % ACROSS) * N;
    p.begin = (INDEX)(p.chunk * c->chunk) + MY_PLACE / ACROSS;
    p.end = p.channel < c->channels ? (INDEX)min(c->lines * c->inner, (p.chunk + 1) * c->chunk) : 0;
    return p;
}

/* A pass that reads again what another has read begins at its end: that is what a cache still holds. */
#define FROM_THE_FRONT piece_of(&c, TILES, (INDEX)MY_ROW)
#define FROM_THE_END piece_of(&c, TILES, PIECES - 1 - (INDEX)MY_ROW)

/* The set of its first channel; some set where it has none. */
#define MY_SET (p.part * (INDEX)c.channels + min(p.channel, (INDEX)c.channels - N))

/* Where an operand's channel begins, and how far behind it a position lies. STRAIGHT: all lie a step apart. */
#define BASE(name, k) (name##_at + p.part * c.part_step[k] + p.channel * c.channel_step[k])
#ifdef STRAIGHT
#define PLACE(k) ((first_ + h * ROWS) * (INDEX)c.along[k])
#else
long place_of(const channel_set *c, INDEX at, int k)
{
    const INDEX inner = (INDEX)c->inner, outer = at / inner;
    return nest_at(&c->outer, outer, k) + (at - outer * inner) * c->along[k];
}
#define PLACE(k) place_of(&c, first_ + h * ROWS, k)
#endif

/* HELD of its positions at a time, each of them, and each of the channels. */
#define EACH_TURN for (INDEX first_ = p.begin; first_ < p.end; first_ += HELD * ROWS)
#define EACH_HELD _Pragma("unroll") for (int h = 0; h < HELD; h++) if (first_ + h * ROWS < p.end)
#define EACH_LANE _Pragma("unroll") for (int lane = 0; lane < N; lane++)

#define HOLD(T, name, k) FETCH(T, name, name##_base + PLACE(k), name##_held[h])
#define ELEMENT(T, name, at, k) name##_held[h][lane]

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Sums over the group's rows of work-items, of each channel, for all of them. A few rows take every TOP_ROWS-th row,
 * then all take what those have; loops that are not unrolled leave the registers to what is held. */
#define TOP_ROWS (ROWS >= 64 ? 8 : ROWS >= 16 ? 4 : 1)

void over_rows(real *x, __local real *space)
{
#if GROUP > 1
    const int me = MY_PLACE, column = me % ACROSS;
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
#define HELD 4
#define FEW (4 * HELD) /* positions whose numbers are added in the type computed in before they are in `real` */

/* False where squares may have left what f32 can hold. */
bool is_in_range(C sum, C squares)
{
    return sizeof(C) == sizeof(real) || (squares > (C)1e-30f && squares < (C)1e30f) || (squares == 0 && sum == 0);
}

/* A chunk of a tile for each group: count, mean and sum of squared distances from it, (sets, chunks, 3). A work-item
 * measures from its first element: what cancels in the end is no larger than that element's part in the squares, times
 * the work-item's number of elements. Bytes: x read once. */
__kernel void column_moments(channel_set c, OPERAND(x), OPERAND(parts))
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
        _Pragma("unroll 1") for (INDEX first_ = next; first_ < stop; first_ += HELD * ROWS)
        {
            C x_held[HELD][N];
            EACH_HELD HOLD(T_X, x, X);
            if (first_ == p.begin)
                EACH_LANE from[lane] = x_held[0][lane];
            EACH_HELD EACH_LANE
            {
                const C d = x_held[h][lane] - from[lane];
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
                    const real d = (real)(C)LOAD(T_X, x, x_base + PLACE(X) + lane) - (real)from[lane];
                    sum += d;
                    square += d * d;
                }
            }
            sums[lane] += sum, squares[lane] += square;
        }
    }
    const INDEX first_ = (INDEX)(p.chunk * c.chunk), h = 0;
    const real length = (real)(p.end - first_), seen = (real)((p.end - p.begin + ROWS - 1) / ROWS),
               inverse = p.begin < p.end ? 1 / seen : (real)0;
    C start[N] = {0};
    real middle[N];
    if (p.end > 0)
        FETCH(T_X, x, x_base + PLACE(X), start);
    EACH_LANE middle[lane] = p.begin < p.end ? sums[lane] + seen * ((real)from[lane] - (real)start[lane]) : (real)0;
    over_rows(middle, space);
    EACH_LANE
    {
        middle[lane] = (real)start[lane] + middle[lane] / length;
        const real apart = (real)from[lane] + sums[lane] * inverse - middle[lane];
        squares[lane] =
            p.begin < p.end ? squares[lane] - sums[lane] * sums[lane] * inverse + seen * apart * apart : (real)0;
    }
    over_rows(squares, space);
    if (MY_PLACE >= ACROSS || p.end == 0)
        return;
    EACH_LANE
    {
        __global real *into = PARTS + 3 * ((MY_SET + lane) * c.chunks + p.chunk);
        into[0] = length, into[1] = middle[lane], into[2] = squares[lane];
    }
}
#endif

/* ---- results ----------------------------------------------------------------------------------------------------- */

#ifdef NORMALISE
#define HELD 4
/* A chunk of a tile for each group. Bytes: x read, y written; with relu, what is added before it, too. */
__kernel void column_normalise(channel_set c, OPERAND(x), OPERAND(to), OPERAND(beside), OPERAND(numbers))
{
    END_BEYOND(PIECES)
    const piece p = FROM_THE_END;
    const long x_base = BASE(x, X), to_base = BASE(to, TO), beside_base = BASE(beside, BESIDE);
    C highs[N], lows[N], scales[N], biases[N];
    EACH_LANE
    {
        const real mean = NUMBER(MEAN, MY_SET + lane);
        highs[lane] = (C)mean, lows[lane] = (C)(mean - (real)highs[lane]);
        scales[lane] = (C)NUMBER(SCALE, MY_SET + lane), biases[lane] = (C)NUMBER(BIAS, MY_SET + lane);
    }
    EACH_TURN
    {
        C x_held[HELD][N], beside_held[HELD][N];
        EACH_HELD
        {
            HOLD(T_X, x, X);
#ifdef ADDED
            HOLD(T_BESIDE, beside, BESIDE);
#endif
        }
        EACH_HELD
        {
            C made[N];
            EACH_LANE
            {
                const C high = highs[lane], low = lows[lane];
                C y = CENTRED(x_held[h][lane]) * scales[lane] + biases[lane];
#ifdef ADDED
                y += beside_held[h][lane];
#endif
                made[lane] = CUT(y);
            }
            DELIVER(T_TO, to, to_base + PLACE(TO), made);
        }
    }
}
#endif

/* ---- gradients --------------------------------------------------------------------------------------------------- */

#if defined(SUMS) || defined(SLOPES)
#define HELD 4

typedef struct numbers_of {
    C high[N], low[N], rstd[N], scale[N], bias[N];
} numbers_of;

#define GRADIENT_NUMBERS \
    const long x_base = BASE(x, X), to_base = BASE(to, TO), g_base = BASE(g, UP), beside_base = BASE(beside, BESIDE), \
               passed_base = BASE(passed, PASSED); \
    const C least = (C)least_; \
    numbers_of own; \
    EACH_LANE \
    { \
        const INDEX set = MY_SET + lane; \
        const real middle = MEAN_OF(set); \
        own.high[lane] = (C)middle, own.low[lane] = (C)(middle - (real)own.high[lane]); \
        own.rstd[lane] = (C)RSTD_OF(set), own.scale[lane] = (C)SCALE_OF(set), own.bias[lane] = (C)BIAS_OF(set); \
    }

#define LANE_NUMBERS \
    const C high = own.high[lane], low = own.low[lane], rstd_ = own.rstd[lane], scale = own.scale[lane], \
            plus = own.bias[lane];

#ifdef ADDED
#define HOLD_GRADIENTS \
    C x_held[HELD][N], g_held[HELD][N], beside_held[HELD][N]; \
    EACH_HELD \
    { \
        HOLD(T_X, x, X); \
        HOLD(T_G, g, UP); \
        HOLD(T_BESIDE, beside, BESIDE); \
    }
#else
#define HOLD_GRADIENTS \
    C x_held[HELD][N], g_held[HELD][N]; \
    EACH_HELD \
    { \
        HOLD(T_X, x, X); \
        HOLD(T_G, g, UP); \
    }
#endif
#endif

#ifdef SUMS
/* A chunk of a tile for each group: the sums of g, and of g · (x - mean) · rstd, (sets, chunks, 2). What goes through
 * relu is written on the way, and with FIXED the gradient of x. Bytes: x and g read, and with relu its result, where it
 * is given. */
__kernel void column_sums(channel_set c, OPERAND(x), OPERAND(to), OPERAND(g), OPERAND(beside), OPERAND(passed),
                          STATISTICS, OPERAND(parts), real least_)
{
    __local real space[N * GROUP];
    END_BEYOND(PIECES)
    const piece p = FROM_THE_FRONT;
    real sums[N] = {0}, products[N] = {0};
    GRADIENT_NUMBERS
    EACH_TURN
    {
        C few[N] = {0}, few_products[N] = {0};
        HOLD_GRADIENTS
        EACH_HELD
        {
            C ups[N], slopes[N];
            EACH_LANE
            {
                LANE_NUMBERS
                PASS()
                few[lane] += up;
                few_products[lane] += up * (CENTRED(x_held[h][lane]) * rstd_);
                ups[lane] = up, slopes[lane] = up * scale;
            }
#ifdef ADDED
            if (passed)
                DELIVER(T_PASSED, passed, passed_base + PLACE(PASSED), ups);
#endif
#ifdef FIXED
            if (to)
                DELIVER(T_TO, to, to_base + PLACE(TO), slopes);
#endif
        }
        EACH_LANE sums[lane] += few[lane], products[lane] += few_products[lane];
    }
    over_rows(sums, space);
    over_rows(products, space);
    if (MY_PLACE >= ACROSS || p.end == 0)
        return;
    EACH_LANE
    {
        __global real *into = PARTS + 2 * ((MY_SET + lane) * c.chunks + p.chunk);
        into[0] = sums[lane], into[1] = products[lane];
    }
}
#endif

#ifdef SLOPES
/* A chunk of a tile for each group. Bytes: g and x read, with FIXED g alone, gx written, and what goes through relu. */
__kernel void column_slopes(channel_set c, OPERAND(x), OPERAND(to), OPERAND(g), OPERAND(beside), OPERAND(passed),
                            STATISTICS, OPERAND(numbers), real least_)
{
    END_BEYOND(PIECES)
    const piece p = FROM_THE_END;
    GRADIENT_NUMBERS
#ifndef FIXED
    C firsts[N], seconds[N];
    EACH_LANE firsts[lane] = (C)NUMBER(FIRST, MY_SET + lane), seconds[lane] = (C)NUMBER(SECOND, MY_SET + lane);
#endif
    EACH_TURN
    {
        HOLD_GRADIENTS
        EACH_HELD
        {
            C ups[N], slopes[N];
            EACH_LANE
            {
                LANE_NUMBERS
                PASS()
#ifndef FIXED
                const C first = firsts[lane], second = seconds[lane];
#endif
                ups[lane] = up, slopes[lane] = SLOPE();
            }
#ifdef ADDED
            if (passed)
                DELIVER(T_PASSED, passed, passed_base + PLACE(PASSED), ups);
#endif
            if (to)
                DELIVER(T_TO, to, to_base + PLACE(TO), slopes);
        }
    }
}
#endif
