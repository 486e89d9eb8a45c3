/* channel_nchw.cl: passes of batchnorm and groupnorm where the elements of a channel are closer than channels (NCHW):
 * by lines. See channel_stats.cl. Kernels have a chunk per work-group, or per work-item with GROUP 1. */
#include "backends/opencl/norm/channel_stats.cl"

/* Stride of operand k along lines. */
#ifdef CONTIGUOUS
#define STEP(k) 1
#else
#define STEP(k) ((INDEX)c.along[k])
#endif

/* The chunk of a work-group: adjacent work-groups have adjacent sets. A pass that reads what another has just read
 * starts at its end, which a cache still holds. */
#if GROUP > 1 && (defined(NORMALIZE) || defined(GRAD))
#define MY_PIECE ((INDEX)(c.sets * c.chunks) - 1 - (INDEX)MY_ROW)
#else
#define MY_PIECE ((INDEX)MY_ROW)
#endif
#define MY_SET (MY_PIECE % (INDEX)c.sets)
#define MY_CHUNK (MY_PIECE / (INDEX)c.sets)

/* Offset of a line of a set from an operand's first element. WHOLE_LINES: lines are whole axes, a constant step apart;
 * ONE_STEP: the axes they are cut from are. */
long line_at(const channel_set *c, INDEX set, INDEX line, int k)
{
    const INDEX channels = (INDEX)c->channels, part = set / channels;
    const long begin = (set - part * channels) * c->channel_step[k] + part * c->sample_step[k];
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

/* The last line of an axis may be shorter. */
INDEX line_length(const channel_set *c, INDEX line)
{
#ifdef WHOLE_LINES
    return (INDEX)c->inner;
#else
    return (INDEX)min(c->segment, c->inner - line % (INDEX)c->segments * c->segment);
#endif
}

/* The lines of this work-item's chunk in which it takes part, with their lengths. */
#define EACH_LINE(line, length) \
    for (INDEX line = (INDEX)(MY_CHUNK * c.chunk) + MY_ITEM / WIDTH, length; \
         line < last_line && (length = line_length(&c, line), true); line += GROUP / WIDTH)

/* ELEMENT reads, STORE_ELEMENT writes an element of a line. With VEC4 lines are aligned vec4s and a work-item has
 * vec4s: EACH_VEC4 loads those of the operands in READ before BODY(at, lane) for each, and stores those in WRITE after
 * it. */
#ifdef VEC4
#include "backends/opencl/common/vec4.cl"
#if defined(SUMS) || defined(GRAD)
#define AT_ONCE 2
#else
#define AT_ONCE 4
#endif
#define EACH_AT_ONCE(end) _Pragma("unroll") for (int h = 0; h < AT_ONCE; h++) if (first_ + h * 4 * WIDTH < (end))
#define ELEMENT(T, name, at, k) name##_vec4[h][lane]
#define STORE_ELEMENT(T, name, at, k, value) name##_made[lane] = value;
#define READ_VEC4(T, name) \
    C name##_vec4[AT_ONCE][4]; \
    if (name) \
        EACH_AT_ONCE(length) vstore4(LOAD_4(T, name, name##_line + first_ + h * 4 * WIDTH), 0, name##_vec4[h]);
#define WRITE_VEC4(T, name) \
    if (name) \
        STORE_4(T, name, name##_line + first_ + h * 4 * WIDTH, vload4(0, name##_made));
#define EACH_VEC4(READ, BODY, WRITE, end) \
    for (INDEX first_ = 4 * MY_COLUMN; first_ < (end); first_ += AT_ONCE * 4 * WIDTH) { \
        READ EACH_AT_ONCE(end) \
        { \
            _Pragma("unroll") for (int lane = 0; lane < 4; lane++){BODY(first_ + lane, lane)} WRITE \
        } \
    }
#else
#define ELEMENT(T, name, at, k) ((C)LOAD(T, name, name##_line + (at)*STEP(k)))
#define STORE_ELEMENT(T, name, at, k, value) PUT(T, name, name##_line + (at)*STEP(k), value);
#define READ_VEC4(T, name)
#define WRITE_VEC4(T, name)
#define EACH_VEC4(READ, BODY, WRITE, end) EACH(BODY, 0, end)
#endif

#if defined(MOMENTS) && defined(CHUNK_VECS) && GROUP >= 64
/* As below for chunks of at most CHUNK_VECS vec4s, one line or whole lines: the work-group keeps them in registers, and
 * x is read once. */
#define VECS ((CHUNK_VECS + GROUP - 1) / GROUP)
#define EACH_VEC(k, at) \
    _Pragma("unroll") for (INDEX k = 0, at = 4 * MY_ITEM; k < VECS; k++, at += 4 * GROUP) if (at < length)
#ifdef WHOLE_LINES
#define IN_CHUNK(at) ((at) + (at) / (INDEX)c.inner * (c.outer.stride[X][0] - c.inner))
#define CHUNK_LENGTH (((INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk) - first_line) * (INDEX)c.inner)
#else
#define IN_CHUNK(at) (at)
#define CHUNK_LENGTH line_length(&c, first_line)
#endif

/* Bytes: x read once. Deviations are taken from a rounded mean; `rest` corrects for its rounding. */
__kernel void nchw_moments(channel_set c, OPERAND(x), OPERAND(parts))
{
    __local real space[GROUP];
    const INDEX first_line = (INDEX)(MY_CHUNK * c.chunk), length = CHUNK_LENGTH;
    const long begin = x_at + line_at(&c, MY_SET, first_line, X);
    C middle = (C)LOAD(T_X, x, begin);
    float4 vec[VECS], part = 0, squares = 0;
    EACH_VEC(k, at) vec[k] = LOAD_4(T_X, x, begin + IN_CHUNK(at));
    EACH_VEC(k, at) part += vec[k] - middle;
    middle = (C)((real)middle + group_sum((real)((part.x + part.y) + (part.z + part.w)), space) / (real)length);
    part = 0;
    EACH_VEC(k, at)
    {
        const float4 d = vec[k] - middle;
        part += d;
        squares += d * d;
    }
    const real rest = group_sum((real)((part.x + part.y) + (part.z + part.w)), space);
    const real square = group_sum((real)((squares.x + squares.y) + (squares.z + squares.w)), space);
    if (MY_ITEM != 0)
        return;
    __global real *to = PARTS + 3 * (MY_SET * c.chunks + MY_CHUNK);
    to[0] = (real)length;
    to[1] = (real)middle + rest / (real)length;
    to[2] = square - rest * rest / (real)length;
}
#elif defined(MOMENTS)
/* Count, mean and sum of squared deviations of each chunk, (sets, chunks, 3). The chunk is read twice, the second time
 * from a cache: first the mean, relative to the first element, then the deviations from it. */
__kernel void nchw_moments(channel_set c, OPERAND(x), OPERAND(parts))
{
    __local real space[GROUP];
    END_BEYOND(c.sets * c.chunks)
    const INDEX last_line = (INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk), first_line = (INDEX)(MY_CHUNK * c.chunk);
    /* lines of a chunk have `segment` elements, except the last ones of an axis */
    const long short_ones = last_line / c.segments - first_line / c.segments; /* the last lines of the axis */
    const real count = (real)((last_line - first_line) * c.segment - short_ones * (c.segments * c.segment - c.inner));
    C middle = (C)LOAD(T_X, x, x_at + line_at(&c, MY_SET, first_line, X));
    real rest = 0, square = 0;
    /* first the mean, then deviations from it */
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
            EACH_VEC4(READ_VEC4(T_X, x), ADD, , length)
#undef ADD
            rest += lanes_sum(part);
            square += lanes_sum(squares);
        }
        rest = group_sum(rest, space);
        if (pass == 0)
            middle = (C)((real)middle + rest / count);
    }
    square = group_sum(square, space);
    if (MY_ITEM != 0)
        return;
    __global real *to = PARTS + 3 * (MY_SET * c.chunks + MY_CHUNK);
    to[0] = count;
    to[1] = (real)middle + rest / count;
    to[2] = square - rest * rest / count;
}
#endif

#ifdef NORMALIZE
/* y = relu((x - mean) · scale + bias + residual). Bytes: x read, y written; with a residual, that too. */
__kernel void nchw_normalize(channel_set c, OPERAND(x), OPERAND(to), OPERAND(residual), OPERAND(stats))
{
    END_BEYOND(c.sets * c.chunks)
    const INDEX last_line = (INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk);
    const real mean = STAT(MEAN, MY_SET);
    const C high = (C)mean, low = (C)(mean - (real)high), scale = (C)STAT(SCALE, MY_SET), plus = (C)STAT(BIAS, MY_SET);
    EACH_LINE(line, length)
    {
        const long x_line = x_at + line_at(&c, MY_SET, line, X), to_line = to_at + line_at(&c, MY_SET, line, Y);
#ifdef ADDED
        const long residual_line = residual_at + line_at(&c, MY_SET, line, RESIDUAL);
#define MAKE(at, lane) \
    const C y = CENTRED(ELEMENT(T_X, x, at, X)) * scale + plus + ELEMENT(T_RESIDUAL, residual, at, RESIDUAL); \
    STORE_ELEMENT(T_Y, to, at, Y, RELU_OUT(y))
        EACH_VEC4(READ_VEC4(T_X, x) READ_VEC4(T_RESIDUAL, residual) C to_made[4];, MAKE, WRITE_VEC4(T_Y, to), length)
#else
#define MAKE(at, lane) \
    const C y = CENTRED(ELEMENT(T_X, x, at, X)) * scale + plus; \
    STORE_ELEMENT(T_Y, to, at, Y, RELU_OUT(y))
        EACH_VEC4(READ_VEC4(T_X, x) C to_made[4];, MAKE, WRITE_VEC4(T_Y, to), length)
#endif
#undef MAKE
    }
}
#endif

#ifdef ADDED
#define READ_GRADIENTS READ_VEC4(T_X, x) READ_VEC4(T_G, g) READ_VEC4(T_RESIDUAL, residual) C gres_made[4];
#define WRITE_GRES_ELEMENT(at) \
    if (gres) \
    STORE_ELEMENT(T_GRES, gres, at, GRES, gy)
#define WRITE_GRES WRITE_VEC4(T_GRES, gres)
#else
#define READ_GRADIENTS READ_VEC4(T_X, x) READ_VEC4(T_G, g)
#define WRITE_GRES_ELEMENT(at)
#define WRITE_GRES
#endif
#define WRITE_GRAD_X_ELEMENT(at) \
    if (to) \
    STORE_ELEMENT(T_Y, to, at, Y, GRAD_X(at))

/* The mean in two parts: `high` rounded to C, `low` the rounding error. */
#define GRADIENT_STATS \
    const real middle = MEAN_OF(MY_SET); \
    const C high = (C)middle, low = (C)(middle - (real)high), rstd_ = (C)RSTD_OF(MY_SET), scale = (C)SCALE_OF(MY_SET), \
            plus = (C)BIAS_OF(MY_SET), min_output = (C)min_output_;

/* Offsets of a line in all operands; those of absent ones are not used. */
#define GRADIENT_LINES \
    const long x_line = x_at + line_at(&c, MY_SET, line, X), g_line = g_at + line_at(&c, MY_SET, line, GY), \
               to_line = to_at + line_at(&c, MY_SET, line, Y), \
               residual_line = residual_at + line_at(&c, MY_SET, line, RESIDUAL), \
               gres_line = gres_at + line_at(&c, MY_SET, line, GRES);

#ifdef SUMS
/* Σ gy and Σ gy · (x - mean) · rstd of each chunk, (sets, chunks, 2). The gradient after relu is written on the way,
 * and with FIXED gx. Bytes: x and gy read, and relu's output where it is given. */
__kernel void nchw_sums(channel_set c, OPERAND(x), OPERAND(to), OPERAND(g), OPERAND(residual), OPERAND(gres),
                        STATISTICS, OPERAND(parts), real min_output_)
{
    __local real space[GROUP];
    END_BEYOND(c.sets * c.chunks)
    const INDEX last_line = (INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk);
    GRADIENT_STATS
    real sum = 0, product = 0;
    EACH_LINE(line, length)
    {
        GRADIENT_LINES
        C part[LANES] = {0}, products[LANES] = {0};
#define ADD(at, lane) \
    LOAD_GRAD(at) \
    part[lane] += gy; \
    products[lane] += gy * (CENTRED(ELEMENT(T_X, x, at, X)) * rstd_); \
    WRITE_GRES_ELEMENT(at) \
    WRITE_FIXED(at)
#ifdef FIXED
#define WRITE_FIXED(at) WRITE_GRAD_X_ELEMENT(at)
        EACH_VEC4(READ_GRADIENTS C to_made[4];, ADD, WRITE_GRES WRITE_VEC4(T_Y, to), length)
#else
#define WRITE_FIXED(at)
        EACH_VEC4(READ_GRADIENTS, ADD, WRITE_GRES, length)
#endif
#undef ADD
        sum += lanes_sum(part);
        product += lanes_sum(products);
    }
    sum = group_sum(sum, space);
    product = group_sum(product, space);
    if (MY_ITEM != 0)
        return;
    __global real *into = PARTS + 2 * (MY_SET * c.chunks + MY_CHUNK);
    into[0] = sum, into[1] = product;
}
#endif

#ifdef GRAD
/* gx. Bytes: gy and x read, with FIXED gy alone; gx written, and the gradient after relu. */
__kernel void nchw_grad(channel_set c, OPERAND(x), OPERAND(to), OPERAND(g), OPERAND(residual), OPERAND(gres),
                        STATISTICS, OPERAND(stats), real min_output_)
{
    END_BEYOND(c.sets * c.chunks)
    const INDEX last_line = (INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk);
    GRADIENT_STATS
#ifndef FIXED
    const C first = (C)STAT(FIRST, MY_SET), second = (C)STAT(SECOND, MY_SET);
#endif
    EACH_LINE(line, length)
    {
        GRADIENT_LINES
#define MAKE(at, lane) \
    LOAD_GRAD(at) \
    WRITE_GRES_ELEMENT(at) \
    WRITE_GRAD_X_ELEMENT(at)
        EACH_VEC4(READ_GRADIENTS C to_made[4];, MAKE, WRITE_GRES WRITE_VEC4(T_Y, to), length)
#undef MAKE
    }
}
#endif
