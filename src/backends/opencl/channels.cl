/* channels.cl: numbers for each channel of a tensor [N, C, ...], or for each channel of each of its N parts, and the passes that use them: the kernels of
 * batchnorm and groupnorm. channels.h says how elements are shared out.
 *
 * A set is a channel, of all parts or of one. Its elements are taken in chunks, whose moments or sums go to scratch; a group for each set puts them together in an
 * order fixed by their number. A mean is used as two numbers of the type computed in, so that what is left of an element after it is exact to f32
 * even where the mean is much larger than the deviation. */
#pragma OPENCL FP_CONTRACT OFF /* backward makes the result again: with the same roundings */
#include "rows.cl"

enum { X, TO, UP, BESIDE, PASSED, OPERANDS };

typedef struct channel_set {
    nest outer; /* over all axes but the channel's, the one taken in lines and, with parts, the first */
    long channels, sets;
    long inner, segment, segments; /* elements of the axis taken in lines; of a line at most; lines of that axis */
    long lines, chunk, chunks;     /* lines of a set; of a chunk; chunks of a set */
    long along[OPERANDS], channel_step[OPERANDS], part_step[OPERANDS];
} channel_set;

/* Arrays of a number for each set, in scratch: result (x - mean) · scale + bias, gradient scale · g - first - (x - mean) · rstd · second. */
enum { MEAN, RSTD, SCALE, BIAS, FIRST, SECOND };
#define NUMBERS(name) ((__global real *)((__global char *)name + name##_at))
#define NUMBER(which, set) NUMBERS(numbers)[(which) * c.sets + (set)]
#define PARTS ((__global real *)((__global char *)parts + parts_at))

/* Operand k's stride on the axis taken in lines. */
#ifdef DENSE
#define STEP(k) 1
#else
#define STEP(k) ((INDEX)c.along[k])
#endif

/* The chunk of a group: neighbours have neighbouring sets. */
#define MY_SET ((INDEX)MY_ROW % (INDEX)c.sets)
#define MY_CHUNK ((INDEX)MY_ROW / (INDEX)c.sets)

/* Where a line of a set begins, behind an operand's first element. */
long line_at(const channel_set *c, INDEX set, INDEX line, int k)
{
    const INDEX channels = (INDEX)c->channels, segments = (INDEX)c->segments, part = set / channels, outer = line / segments;
    return nest_at(&c->outer, outer, k) + (line - outer * segments) * c->segment * c->along[k] + (set - part * channels) * c->channel_step[k] +
           part * c->part_step[k];
}

INDEX line_length(const channel_set *c, INDEX line)
{
    return (INDEX)min(c->segment, c->inner - line % (INDEX)c->segments * c->segment);
}

/* LINE(line, length) for each line of chunk number `chunk` that is this work-item's or that it has a part in. */
#define EACH_LINE(line, length)                                                                                                           \
    for (INDEX line = (INDEX)(MY_CHUNK * c.chunk) + MY_PLACE / WIDTH, length; line < last_line && (length = line_length(&c, line), true);  \
         line += GROUP / WIDTH)

/* An element of an operand in a line, and where a result goes. With QUADS lines lie in fours, and a work-item has fours: EACH_FOUR reads those of the operands that
 * READ names before BODY(at, lane) for each of them, and writes those that WRITE names behind it. */
#ifdef QUADS
#include "vectors.cl"
#define ELEMENT(T, name, at, k) name##_four[lane]
#define MADE(T, name, at, k, value) name##_made[lane] = value;
#define READ_FOUR(T, name)                                                                                                                \
    C name##_four[4];                                                                                                                     \
    if (name)                                                                                                                             \
        vstore4(LOAD_4(T, name, name##_line + first_), 0, name##_four);
#define WRITE_FOUR(T, name)                                                                                                               \
    if (name)                                                                                                                             \
        STORE_4(T, name, name##_line + first_, vload4(0, name##_made));
#define EACH_FOUR(READ, BODY, WRITE, end)                                                                                                 \
    for (INDEX first_ = 4 * MY_COLUMN; first_ < (end); first_ += 4 * WIDTH) {                                                             \
        READ _Pragma("unroll") for (int lane = 0; lane < 4; lane++) { BODY(first_ + lane, lane) }                                         \
        WRITE                                                                                                                             \
    }
#else
#define ELEMENT(T, name, at, k) ((C)LOAD(T, name, name##_line + (at) * STEP(k)))
#define MADE(T, name, at, k, value) PUT(T, name, name##_line + (at) * STEP(k), value);
#define READ_FOUR(T, name)
#define WRITE_FOUR(T, name)
#define EACH_FOUR(READ, BODY, WRITE, end) EACH(BODY, 0, end)
#endif

/* What is left of an element when the mean is taken off. */
#define CENTRED(x) (((x)-high) - low)

#if defined(MOMENTS) && defined(LINE_FOURS) && GROUP >= 64
/* The same as below of chunks that are one line of at most LINE_FOURS fours: a group holds it, and x is read once. */
#define HELD ((LINE_FOURS + GROUP - 1) / GROUP)
#define EACH_HELD(k, at) _Pragma("unroll") for (INDEX k = 0, at = 4 * MY_PLACE; k < HELD; k++, at += 4 * GROUP) if (at < length)

__kernel void channel_moments(channel_set c, OPERAND(x), OPERAND(parts))
{
    __local real space[GROUP];
    const INDEX length = line_length(&c, MY_CHUNK);
    const long line = x_at + line_at(&c, MY_SET, MY_CHUNK, X);
    C middle = (C)LOAD(T_X, x, line);
    float4 held[HELD], part = 0, squares = 0;
    EACH_HELD(k, at) held[k] = LOAD_4(T_X, x, line + at);
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
/* A chunk for each group: count, mean and sum of squared distances from it, (sets, chunks, 3). The chunk is read twice, the second time from a cache:
 * first a mean is made from the distances to its first element, then the distances from that mean. */
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
        EACH_LINE(line, length) {
            const long x_line = x_at + line_at(&c, MY_SET, line, X);
            C part[LANES] = {0}, squares[LANES] = {0};
#define ADD(at, lane)                                                                                                                     \
    const C d = ELEMENT(T_X, x, at, X) - middle;                                                                                          \
    part[lane] += d;                                                                                                                      \
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

#ifdef SETTLE_MOMENTS
/* A group for each of the sets that share a mean, `members` neighbours: their numbers, and the statistics that are kept. Without `training` the mean and the
 * variance are given. */
__kernel void settle_moments(channel_set c, long members, OPERAND(parts), OPERAND(numbers), VECTOR(weight), VECTOR(bias), VECTOR(given_mean),
                             VECTOR(given_variance), OPERAND(mean), OPERAND(rstd), VECTOR(running_mean), VECTOR(running_variance), real epsilon,
                             real momentum, real values, int training)
{
    __local real space[GROUP];
    const long group = MY_ROW, first = group * members, count = members * c.chunks;
    END_BEYOND(c.sets / members)
    const __global real *from = PARTS + 3 * first * c.chunks;
    real middle = 0, squares = 0, variance;
    if (training) {
        const real start = count > 0 ? from[1] : (real)0;
#define ADD(i) middle += from[3 * i] * (from[3 * i + 1] - start);
        EACH_OF(ADD, 0, count)
#undef ADD
        middle = start + (count > 0 ? group_sum(middle, space) / values : (real)0);
#define ADD(i)                                                                                                                            \
    const real d = from[3 * i + 1] - middle;                                                                                              \
    squares += from[3 * i + 2] + from[3 * i] * d * d;
        EACH_OF(ADD, 0, count)
#undef ADD
        squares = group_sum(squares, space);
        variance = squares / values;
    } else {
        middle = (real)LOAD(T_GM, given_mean, given_mean_at + group * given_mean_step);
        variance = (real)LOAD(T_GV, given_variance, given_variance_at + group * given_variance_step);
    }
    const real inverse = 1 / sqrt(variance + epsilon);
    for (long i = MY_PLACE; i < members; i += GROUP) {
        const long set = first + i, channel = set % c.channels;
        NUMBER(MEAN, set) = middle;
        NUMBER(SCALE, set) = weight ? inverse * (real)LOAD(T_W, weight, weight_at + channel * weight_step) : inverse;
        NUMBER(BIAS, set) = bias ? (real)LOAD(T_B, bias, bias_at + channel * bias_step) : (real)0;
    }
    if (MY_PLACE != 0)
        return;
    if (mean)
        store_stat(mean, mean_at + group, middle);
    if (rstd)
        store_stat(rstd, rstd_at + group, inverse);
    if (training && running_mean) {
        const long at = running_mean_at + group * running_mean_step;
        STORE_REAL(T_RM, running_mean, at, (1 - momentum) * (real)LOAD(T_RM, running_mean, at) + momentum * middle);
    }
    if (training && running_variance) {
        const long at = running_variance_at + group * running_variance_step;
        STORE_REAL(T_RV, running_variance, at,
                   (1 - momentum) * (real)LOAD(T_RV, running_variance, at) + momentum * squares / (values - 1));
    }
}
#endif

#ifdef NORMALISE
/* A chunk for each group. Bytes: x read, y written; with relu, what is added before it, too. */
__kernel void channel_normalise(channel_set c, OPERAND(x), OPERAND(to), OPERAND(beside), OPERAND(numbers))
{
    END_BEYOND(c.sets * c.chunks)
    const INDEX last_line = (INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk);
    const real mean = NUMBER(MEAN, MY_SET);
    const C high = (C)mean, low = (C)(mean - (real)high), scale = (C)NUMBER(SCALE, MY_SET), plus = (C)NUMBER(BIAS, MY_SET);
    EACH_LINE(line, length) {
        const long x_line = x_at + line_at(&c, MY_SET, line, X), to_line = to_at + line_at(&c, MY_SET, line, TO);
#ifdef RELU
        const long beside_line = beside_at + line_at(&c, MY_SET, line, BESIDE);
#define MAKE(at, lane)                                                                                                                    \
    C y = CENTRED(ELEMENT(T_X, x, at, X)) * scale + plus;                                                                                 \
    if (beside)                                                                                                                           \
        y += ELEMENT(T_BESIDE, beside, at, BESIDE);                                                                                       \
    MADE(T_TO, to, at, TO, y < 0 ? (C)0 : y)
        EACH_FOUR(READ_FOUR(T_X, x) READ_FOUR(T_BESIDE, beside) C to_made[4];, MAKE, WRITE_FOUR(T_TO, to), length)
#else
#define MAKE(at, lane) MADE(T_TO, to, at, TO, CENTRED(ELEMENT(T_X, x, at, X)) * scale + plus)
        EACH_FOUR(READ_FOUR(T_X, x) C to_made[4];, MAKE, WRITE_FOUR(T_TO, to), length)
#endif
#undef MAKE
    }
}
#endif

#ifdef FETCH
/* A work-item for each set: the numbers that backward begins with. */
__kernel void fetch_numbers(channel_set c, long members, OPERAND(numbers), VECTOR(weight), VECTOR(bias), OPERAND(mean), OPERAND(rstd))
{
    const long set = get_global_id(0), channel = set % c.channels;
    END_BEYOND(c.sets)
    const real inverse = load_stat(rstd, rstd_at + set / members);
    NUMBER(MEAN, set) = load_stat(mean, mean_at + set / members);
    NUMBER(RSTD, set) = inverse;
    NUMBER(SCALE, set) = weight ? inverse * (real)LOAD(T_W, weight, weight_at + channel * weight_step) : inverse;
    NUMBER(BIAS, set) = bias ? (real)LOAD(T_B, bias, bias_at + channel * bias_step) : (real)0;
}
#endif

/* What of g goes through relu: where its result, given or made again, is above `least`. What is not a number goes through, as its value does. */
#ifdef RELU
#define PASS(at)                                                                                                                          \
    C up = ELEMENT(T_G, g, at, UP);                                                                                                       \
    {                                                                                                                                     \
        const C y = beside ? ELEMENT(T_BESIDE, beside, at, BESIDE) : CENTRED(ELEMENT(T_X, x, at, X)) * scale + plus;                      \
        up = y <= least ? (C)0 : up;                                                                                                      \
    }
#else
#define PASS(at) const C up = ELEMENT(T_G, g, at, UP);
#endif

#ifdef RELU
#define READ_GRADIENTS READ_FOUR(T_X, x) READ_FOUR(T_G, g) READ_FOUR(T_BESIDE, beside)
#else
#define READ_GRADIENTS READ_FOUR(T_X, x) READ_FOUR(T_G, g)
#endif

#define GRADIENT_NUMBERS                                                                                                                  \
    const real mean = NUMBER(MEAN, MY_SET);                                                                                               \
    const C high = (C)mean, low = (C)(mean - (real)high), rstd = (C)NUMBER(RSTD, MY_SET), scale = (C)NUMBER(SCALE, MY_SET),               \
            plus = (C)NUMBER(BIAS, MY_SET), least = (C)least_;

#define GRADIENT_LINES                                                                                                                    \
    const long x_line = x_at + line_at(&c, MY_SET, line, X), g_line = g_at + line_at(&c, MY_SET, line, UP),                               \
               beside_line = beside_at + line_at(&c, MY_SET, line, BESIDE);

#ifdef SUMS
/* A chunk for each group: the sums of g, and of g · (x - mean) · rstd, (sets, chunks, 2). Bytes: x and g read. */
__kernel void channel_sums(channel_set c, OPERAND(x), OPERAND(g), OPERAND(beside), OPERAND(numbers), OPERAND(parts), real least_)
{
    __local real space[GROUP];
    END_BEYOND(c.sets * c.chunks)
    const INDEX last_line = (INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk);
    GRADIENT_NUMBERS
    real sum = 0, product = 0;
    EACH_LINE(line, length) {
        GRADIENT_LINES
        C part[LANES] = {0}, products[LANES] = {0};
#define ADD(at, lane)                                                                                                                     \
    PASS(at)                                                                                                                              \
    part[lane] += up;                                                                                                                     \
    products[lane] += up * (CENTRED(ELEMENT(T_X, x, at, X)) * rstd);
        EACH_FOUR(READ_GRADIENTS, ADD, , length)
#undef ADD
        sum += lanes_sum(part);
        product += lanes_sum(products);
    }
    sum = group_sum(sum, space);
    product = group_sum(product, space);
    if (MY_PLACE != 0)
        return;
    __global real *to = PARTS + 2 * (MY_SET * c.chunks + MY_CHUNK);
    to[0] = sum, to[1] = product;
}
#endif

#ifdef SETTLE_SUMS
/* A group for each set: its sums. Where a set is all of a channel they are gradients, of bias and weight, and where it shares its mean with no other, too,
 * they become what the gradient of x is made with. */
__kernel void settle_sums(channel_set c, long members, OPERAND(parts), OPERAND(numbers), VECTOR(gweight), VECTOR(gbias), real values)
{
    __local real space[GROUP];
    const long set = MY_ROW;
    END_BEYOND(c.sets)
    const __global real *from = PARTS + 2 * set * c.chunks;
    real sum = 0, product = 0;
#define ADD(i) sum += from[2 * i], product += from[2 * i + 1];
    EACH_OF(ADD, 0, c.chunks)
#undef ADD
    sum = group_sum(sum, space);
    product = group_sum(product, space);
    const bool is_whole = c.sets == c.channels;
    const real by = members == 1 && is_whole ? NUMBER(SCALE, set) / values : (real)1;
    if (MY_PLACE == 0) {
        NUMBER(FIRST, set) = sum * by;
        NUMBER(SECOND, set) = product * by;
        if (is_whole && gweight)
            STORE_REAL(T_GW, gweight, gweight_at + set * gweight_step, product);
        if (is_whole && gbias)
            STORE_REAL(T_GB, gbias, gbias_at + set * gbias_step, sum);
    }
}
#endif

#ifdef ADD_PARTS
/* A work-item for each channel: the gradients of weight and bias from the sums of all parts, in order. */
__kernel void add_parts(channel_set c, OPERAND(numbers), VECTOR(gweight), VECTOR(gbias))
{
    const long channel = get_global_id(0);
    if (channel >= c.channels)
        return;
    real sum = 0, product = 0;
    for (long set = channel; set < c.sets; set += c.channels)
        sum += NUMBER(FIRST, set), product += NUMBER(SECOND, set);
    if (gweight)
        STORE_REAL(T_GW, gweight, gweight_at + channel * gweight_step, product);
    if (gbias)
        STORE_REAL(T_GB, gbias, gbias_at + channel * gbias_step, sum);
}
#endif

#ifdef AVERAGE
/* A work-item for each of the sets that share a mean: their sums, times scale, become averages. */
__kernel void average_sums(channel_set c, long members, OPERAND(numbers), real values)
{
    const long first = get_global_id(0) * members;
    if (first >= c.sets)
        return;
    real sum = 0, product = 0;
    for (long set = first; set < first + members; set++)
        sum += NUMBER(FIRST, set) * NUMBER(SCALE, set), product += NUMBER(SECOND, set) * NUMBER(SCALE, set);
    for (long set = first; set < first + members; set++)
        NUMBER(FIRST, set) = sum / values, NUMBER(SECOND, set) = product / values;
}
#endif

#ifdef SLOPES
/* A chunk for each group. `has_means`: the statistics were the batch's own, and count. Bytes: g and x read, gx written, and what goes through relu. */
__kernel void channel_slopes(channel_set c, OPERAND(x), OPERAND(to), OPERAND(g), OPERAND(beside), OPERAND(passed), OPERAND(numbers), real least_,
                             int has_means)
{
    END_BEYOND(c.sets * c.chunks)
    const INDEX last_line = (INDEX)min(c.lines, (MY_CHUNK + 1) * c.chunk);
    GRADIENT_NUMBERS
    const C first = has_means ? (C)NUMBER(FIRST, MY_SET) : (C)0, second = has_means ? (C)NUMBER(SECOND, MY_SET) : (C)0;
    EACH_LINE(line, length) {
        GRADIENT_LINES
        const long to_line = to_at + line_at(&c, MY_SET, line, TO), passed_line = passed_at + line_at(&c, MY_SET, line, PASSED);
#define MAKE(at, lane)                                                                                                                    \
    PASS(at)                                                                                                                              \
    if (passed)                                                                                                                           \
        MADE(T_PASSED, passed, at, PASSED, up)                                                                                            \
    if (to)                                                                                                                               \
        MADE(T_TO, to, at, TO, has_means ? up * scale - first - CENTRED(ELEMENT(T_X, x, at, X)) * rstd * second : up * scale)
        EACH_FOUR(READ_GRADIENTS C to_made[4]; C passed_made[4];, MAKE, WRITE_FOUR(T_TO, to) WRITE_FOUR(T_PASSED, passed), length)
#undef MAKE
    }
}
#endif
