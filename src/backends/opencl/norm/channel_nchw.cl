/* channel_nchw.cl: the passes of batchnorm and groupnorm where the elements of a channel lie closer than channels: by
 * lines. See channel_stats.cl. */
#include "backends/opencl/norm/channel_stats.cl"

/* Operand k's stride on the axis taken in lines. */
#ifdef DENSE
#define STEP(k) 1
#else
#define STEP(k) ((INDEX)c.along[k])
#endif

/* The chunk of a group: neighbours have neighbouring sets. A pass that reads again what another has read begins at its
 * end: that is what a cache still holds. */
#if GROUP > 1 && (defined(NORMALISE) || defined(SLOPES))
#define MY_PIECE ((INDEX)(c.sets * c.chunks) - 1 - (INDEX)MY_ROW)
#else
#define MY_PIECE ((INDEX)MY_ROW)
#endif
#define MY_SET (MY_PIECE % (INDEX)c.sets)
#define MY_CHUNK (MY_PIECE / (INDEX)c.sets)

/* Where a line of a set begins, behind an operand's first element. WHOLE_LINES: lines are as long as their axis, and
 * lie a step apart; ONE_STEP: the axes that they are cut from do. */
long line_at(const channel_set *c, INDEX set, INDEX line, int k)
{
    const INDEX channels = (INDEX)c->channels, part = set / channels;
    const long begin = (set - part * channels) * c->channel_step[k] + part * c->part_step[k];
#ifdef WHOLE_LINES
    return begin + line * c->outer.stride[k][0];
#else
    const INDEX segments = (INDEX)c->segments, outer = line / segments;
    const long cut = begin + (line - outer * segments) * c->segment * c->along[k];
#ifdef ONE_STEP
    return cut + outer * c->outer.stride[k][0];
#else
    return cut + nest_at(&c->outer, outer, k);
#endif
#endif
}

INDEX line_length(const channel_set *c, INDEX line)
{
#ifdef WHOLE_LINES
    return (INDEX)c->inner;
#else
    return (INDEX)min(c->segment, c->inner - line % (INDEX)c->segments * c->segment);
#endif
}

/* LINE(line, length) for each line of chunk number `chunk` that is this work-item's or that it has a part in. */
#define EACH_LINE(line, length) \
    for (INDEX line = (INDEX)(MY_CHUNK * c.chunk) + MY_PLACE / WIDTH, length; \
         line < last_line && (length = line_length(&c, line), true); line += GROUP / WIDTH)

/* An element of an operand in a line, and where a result goes. With QUADS lines lie in fours, and a work-item has
 * fours: EACH_FOUR reads some of those of the operands that READ names before BODY(at, lane) for each of them, and
 * writes those that WRITE names behind it. */
#ifdef QUADS
#include "backends/opencl/common/vec4.cl"
#if defined(SUMS) || defined(SLOPES)
#define AT_ONCE 2
#else
#define AT_ONCE 4
#endif
#define EACH_AT_ONCE(end) _Pragma("unroll") for (int h = 0; h < AT_ONCE; h++) if (first_ + h * 4 * WIDTH < (end))
#define ELEMENT(T, name, at, k) name##_four[h][lane]
#define MADE(T, name, at, k, value) name##_made[lane] = value;
#define READ_FOUR(T, name) \
    C name##_four[AT_ONCE][4]; \
    if (name) \
        EACH_AT_ONCE(length) vstore4(LOAD_4(T, name, name##_line + first_ + h * 4 * WIDTH), 0, name##_four[h]);
#define WRITE_FOUR(T, name) \
    if (name) \
        STORE_4(T, name, name##_line + first_ + h * 4 * WIDTH, vload4(0, name##_made));
#define EACH_FOUR(READ, BODY, WRITE, end) \
    for (INDEX first_ = 4 * MY_COLUMN; first_ < (end); first_ += AT_ONCE * 4 * WIDTH) { \
        READ EACH_AT_ONCE(end) \
        { \
            _Pragma("unroll") for (int lane = 0; lane < 4; lane++){BODY(first_ + lane, lane)} WRITE \
        } \
    }
#else
#define ELEMENT(T, name, at, k) ((C)LOAD(T, name, name##_line + (at)*STEP(k)))
#define MADE(T, name, at, k, value) PUT(T, name, name##_line + (at)*STEP(k), value);
#define READ_FOUR(T, name)
#define WRITE_FOUR(T, name)
#define EACH_FOUR(READ, BODY, WRITE, end) EACH(BODY, 0, end)
#endif

#if defined(MOMENTS) && defined(CHUNK_FOURS) && GROUP >= 64
/* The same as below of chunks that are one line, or some whole ones, of at most CHUNK_FOURS fours: a group holds them,
 * and x is read once. */
#define HELD ((CHUNK_FOURS + GROUP - 1) / GROUP)
#define EACH_HELD(k, at) \
    _Pragma("unroll") for (INDEX k = 0, at = 4 * MY_PLACE; k < HELD; k++, at += 4 * GROUP) if (at < length)
#ifdef WHOLE_LINES
#define IN_CHUNK(at) ((at) + (at) / (INDEX)c.inner * (c.outer.stride[X][0] - c.inner))
#define CHUNK_LENGTH (((INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk) - first_line) * (INDEX)c.inner)
#else
#define IN_CHUNK(at) (at)
#define CHUNK_LENGTH line_length(&c, first_line)
#endif

__kernel void channel_moments(channel_set c, OPERAND(x), OPERAND(parts))
{
    __local real space[GROUP];
    const INDEX first_line = (INDEX)(MY_CHUNK * c.chunk), length = CHUNK_LENGTH;
    const long begin = x_at + line_at(&c, MY_SET, first_line, X);
    C middle = (C)LOAD(T_X, x, begin);
    float4 held[HELD], part = 0, squares = 0;
    EACH_HELD(k, at) held[k] = LOAD_4(T_X, x, begin + IN_CHUNK(at));
    EACH_HELD(k, at) part += held[k] - middle;
    middle = (C)((real)middle + group_sum((real)((part.x + part.y) + (part.z + part.w)), space) / (real)length);
    part = 0;
    EACH_HELD(k, at)
    {
        const float4 d = held[k] - middle;
        part += d;
        squares += d * d;
    }
    const real rest = group_sum((real)((part.x + part.y) + (part.z + part.w)), space);
    const real square = group_sum((real)((squares.x + squares.y) + (squares.z + squares.w)), space);
    if (MY_PLACE != 0)
        return;
    __global real *to = PARTS + 3 * (MY_SET * c.chunks + MY_CHUNK);
    to[0] = (real)length;
    to[1] = (real)middle + rest / (real)length;
    to[2] = square - rest * rest / (real)length;
}
#elif defined(MOMENTS)
/* A chunk for each group: count, mean and sum of squared distances from it, (sets, chunks, 3). The chunk is read twice,
 * the second time from a cache: first a mean is made from the distances to its first element, then the distances from
 * that mean. */
__kernel void channel_moments(channel_set c, OPERAND(x), OPERAND(parts))
{
    __local real space[GROUP];
    END_BEYOND(c.sets * c.chunks)
    const INDEX last_line = (INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk), first_line = (INDEX)(MY_CHUNK * c.chunk);
    const long short_ones = last_line / c.segments - first_line / c.segments; /* the last lines of the axis */
    const real count = (real)((last_line - first_line) * c.segment - short_ones * (c.segments * c.segment - c.inner));
    C middle = (C)LOAD(T_X, x, x_at + line_at(&c, MY_SET, first_line, X));
    real rest = 0, square = 0;
    for (int pass = 0; pass < 2; pass++) {
        rest = square = 0;
        EACH_LINE(line, length)
        {
            const long x_line = x_at + line_at(&c, MY_SET, line, X);
            C part[LANES] = {0}, squares[LANES] = {0};
#define ADD(at, lane) \
    const C d = ELEMENT(T_X, x, at, X) - middle; \
    part[lane] += d; \
    squares[lane] += d * d;
            EACH_FOUR(READ_FOUR(T_X, x), ADD, , length)
#undef ADD
            rest += lanes_sum(part);
            square += lanes_sum(squares);
        }
        rest = group_sum(rest, space);
        if (pass == 0)
            middle = (C)((real)middle + rest / count);
    }
    square = group_sum(square, space);
    if (MY_PLACE != 0)
        return;
    __global real *to = PARTS + 3 * (MY_SET * c.chunks + MY_CHUNK);
    to[0] = count;
    to[1] = (real)middle + rest / count;
    to[2] = square - rest * rest / count;
}
#endif

#ifdef NORMALISE
/* A chunk for each group. Bytes: x read, y written; with relu, what is added before it, too. */
__kernel void channel_normalise(channel_set c, OPERAND(x), OPERAND(to), OPERAND(beside), OPERAND(numbers))
{
    END_BEYOND(c.sets * c.chunks)
    const INDEX last_line = (INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk);
    const real mean = NUMBER(MEAN, MY_SET);
    const C high = (C)mean, low = (C)(mean - (real)high), scale = (C)NUMBER(SCALE, MY_SET),
            plus = (C)NUMBER(BIAS, MY_SET);
    EACH_LINE(line, length)
    {
        const long x_line = x_at + line_at(&c, MY_SET, line, X), to_line = to_at + line_at(&c, MY_SET, line, TO);
#ifdef ADDED
        const long beside_line = beside_at + line_at(&c, MY_SET, line, BESIDE);
#define MAKE(at, lane) \
    const C y = CENTRED(ELEMENT(T_X, x, at, X)) * scale + plus + ELEMENT(T_BESIDE, beside, at, BESIDE); \
    MADE(T_TO, to, at, TO, CUT(y))
        EACH_FOUR(READ_FOUR(T_X, x) READ_FOUR(T_BESIDE, beside) C to_made[4];, MAKE, WRITE_FOUR(T_TO, to), length)
#else
#define MAKE(at, lane) \
    const C y = CENTRED(ELEMENT(T_X, x, at, X)) * scale + plus; \
    MADE(T_TO, to, at, TO, CUT(y))
        EACH_FOUR(READ_FOUR(T_X, x) C to_made[4];, MAKE, WRITE_FOUR(T_TO, to), length)
#endif
#undef MAKE
    }
}
#endif

#ifdef ADDED
#define READ_GRADIENTS READ_FOUR(T_X, x) READ_FOUR(T_G, g) READ_FOUR(T_BESIDE, beside) C passed_made[4];
#define MAKE_PASSED(at) \
    if (passed) \
    MADE(T_PASSED, passed, at, PASSED, up)
#define WRITE_PASSED WRITE_FOUR(T_PASSED, passed)
#else
#define READ_GRADIENTS READ_FOUR(T_X, x) READ_FOUR(T_G, g)
#define MAKE_PASSED(at)
#define WRITE_PASSED
#endif
#define MAKE_SLOPE(at) \
    if (to) \
    MADE(T_TO, to, at, TO, SLOPE(at))

#define GRADIENT_NUMBERS \
    const real middle = MEAN_OF(MY_SET); \
    const C high = (C)middle, low = (C)(middle - (real)high), rstd_ = (C)RSTD_OF(MY_SET), scale = (C)SCALE_OF(MY_SET), \
            plus = (C)BIAS_OF(MY_SET), least = (C)least_;

#define GRADIENT_LINES \
    const long x_line = x_at + line_at(&c, MY_SET, line, X), g_line = g_at + line_at(&c, MY_SET, line, UP), \
               to_line = to_at + line_at(&c, MY_SET, line, TO), \
               beside_line = beside_at + line_at(&c, MY_SET, line, BESIDE), \
               passed_line = passed_at + line_at(&c, MY_SET, line, PASSED);

#ifdef SUMS
/* A chunk for each group: the sums of g, and of g · (x - mean) · rstd, (sets, chunks, 2). What goes through relu is
 * written on the way, and with FIXED the gradient of x. Bytes: x and g read, and with relu its result, where it is
 * given. */
__kernel void channel_sums(channel_set c, OPERAND(x), OPERAND(to), OPERAND(g), OPERAND(beside), OPERAND(passed),
                           STATISTICS, OPERAND(parts), real least_)
{
    __local real space[GROUP];
    END_BEYOND(c.sets * c.chunks)
    const INDEX last_line = (INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk);
    GRADIENT_NUMBERS
    real sum = 0, product = 0;
    EACH_LINE(line, length)
    {
        GRADIENT_LINES
        C part[LANES] = {0}, products[LANES] = {0};
#define ADD(at, lane) \
    PASS(at) \
    part[lane] += up; \
    products[lane] += up * (CENTRED(ELEMENT(T_X, x, at, X)) * rstd_); \
    MAKE_PASSED(at) \
    MAKE_ON_THE_WAY(at)
#ifdef FIXED
#define MAKE_ON_THE_WAY(at) MAKE_SLOPE(at)
        EACH_FOUR(READ_GRADIENTS C to_made[4];, ADD, WRITE_PASSED WRITE_FOUR(T_TO, to), length)
#else
#define MAKE_ON_THE_WAY(at)
        EACH_FOUR(READ_GRADIENTS, ADD, WRITE_PASSED, length)
#endif
#undef ADD
        sum += lanes_sum(part);
        product += lanes_sum(products);
    }
    sum = group_sum(sum, space);
    product = group_sum(product, space);
    if (MY_PLACE != 0)
        return;
    __global real *into = PARTS + 2 * (MY_SET * c.chunks + MY_CHUNK);
    into[0] = sum, into[1] = product;
}
#endif

#ifdef SLOPES
/* A chunk for each group. Bytes: g and x read, with FIXED g alone, gx written, and what goes through relu. */
__kernel void channel_slopes(channel_set c, OPERAND(x), OPERAND(to), OPERAND(g), OPERAND(beside), OPERAND(passed),
                             STATISTICS, OPERAND(numbers), real least_)
{
    END_BEYOND(c.sets * c.chunks)
    const INDEX last_line = (INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk);
    GRADIENT_NUMBERS
#ifndef FIXED
    const C first = (C)NUMBER(FIRST, MY_SET), second = (C)NUMBER(SECOND, MY_SET);
#endif
    EACH_LINE(line, length)
    {
        GRADIENT_LINES
#define MAKE(at, lane) \
    PASS(at) \
    MAKE_PASSED(at) \
    MAKE_SLOPE(at)
        EACH_FOUR(READ_GRADIENTS C to_made[4];, MAKE, WRITE_PASSED WRITE_FOUR(T_TO, to), length)
#undef MAKE
    }
}
#endif
