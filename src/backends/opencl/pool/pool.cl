/* pool.cl: pooling of images: the maximum (LARGEST) or the average of each window, and gradients.
 *
 * The maximum is the first of equal elements; NaN is larger than everything; padding does not count. Gradients are
 * gathered: an element of the image loops over the windows that contain it, so that no two work-items add to it.
 * Disjoint windows (APART) scatter instead; with PAIRS they are two columns wide, which move at once. A work-item has
 * one result, with VEC4 those of four adjacent channels, with TWO those of two such windows.
 *
 * The index of a maximum counts the window's elements row by row, in u8 or i32 (T_INDICES); a window of padding alone
 * has -1, whose low byte is 255. */

#define OPERAND(name) __global void *name, long name##_at

typedef COMPUTE(T_X) C;

/* Vectors of indices. */
typedef uchar2 two_u8;
typedef uchar4 four_u8;
typedef int2 two_i32;
typedef int4 four_i32;
#define to_two_u8 convert_uchar2
#define to_four_u8 convert_uchar4
#define to_two_i32
#define to_four_i32

/* Values and indices of a work-item: scalars or vectors. */
#define UNSEEN (-2) /* index of an element that a dilated window skips: equals no index */
#ifdef VEC4
#include "backends/opencl/common/vec4.cl"
typedef float4 V;
typedef int4 P, IS;
#define CHANNELS_EACH 4
#define COLUMNS_EACH 1
#define GET(T, pointer, index) LOAD_4(T, pointer, index)
#define SET(T, pointer, index, value) STORE_4(T, pointer, index, value)
#define GET_INDICES(pointer, index) \
    convert_int4(*(const __global JOIN(four_, T_INDICES) *)((const __global T_INDICES *)(pointer) + (index)))
#define SET_INDICES(pointer, index, value) \
    *(__global JOIN(four_, T_INDICES) *)((__global T_INDICES *)(pointer) + (index)) = JOIN(to_four_, T_INDICES)(value)
#elif defined(TWO)
#include "backends/opencl/common/vec4.cl"
typedef float2 V;
typedef int2 P, IS;
#define CHANNELS_EACH 1
#define COLUMNS_EACH 2
#define SET(T, pointer, index, value) STORE_2(T, pointer, index, value)
#define SET_INDICES(pointer, index, value) \
    *(__global JOIN(two_, T_INDICES) *)((__global T_INDICES *)(pointer) + (index)) = JOIN(to_two_, T_INDICES)(value)
#else
typedef C V;
typedef INDEX P;
typedef int IS;
#define CHANNELS_EACH 1
#define COLUMNS_EACH 1
#define GET(T, pointer, index) LOAD(T, pointer, index)
#define SET(T, pointer, index, value) STORE(T, pointer, index, value)
#define GET_INDICES(pointer, index) ((INDEX)LOAD(T_INDICES, pointer, index))
#define SET_INDICES(pointer, index, value) STORE(T_INDICES, pointer, index, value)
#endif

enum { ROWS, COLUMNS, CHANNELS, DOWN, ACROSS, DIVISORS };

/* Struct `pool` of pool.c, passed by value. */
typedef struct pool {
    INDEX image[4], result[4];                            /* shapes */
    INDEX image_step[4], result_step[4], index_step[4];   /* strides in elements */
    INDEX kernel_[2], stride[2], padding[2], dilation[2]; /* of rows, of columns; `kernel` is a keyword */
    uint factor[DIVISORS];                                /* multiplication and shift in place of a division */
    int shift[DIVISORS];
    int exclude_padding, by_channel; /* by_channel: channels are contiguous */
} pool;

/* The window on an axis. Programs for one window shape have constants: divisions become multiplications, loops unroll.
 */
#ifdef KERNEL_0
#define KERNEL(p, axis) ((axis) == 0 ? KERNEL_0 : KERNEL_1)
#define STRIDE(p, axis) ((axis) == 0 ? STRIDE_0 : STRIDE_1)
#define DILATION(p, axis) ((axis) == 0 ? DILATION_0 : DILATION_1)
#define BY_STRIDE(p, axis, n) ((INDEX)((uint)(n) / (uint)STRIDE(p, axis)))
#else
#define KERNEL(p, axis) ((p)->kernel_[axis])
#define STRIDE(p, axis) ((p)->stride[axis])
#define DILATION(p, axis) ((p)->dilation[axis])
#define BY_STRIDE(p, axis, n) quotient(p, DOWN + (axis), n, STRIDE(p, axis))
#endif

/* n / size for n >= 0, where `which` selects the size's factor and shift. */
INDEX quotient(const pool *p, int which, INDEX n, INDEX size)
{
    if (sizeof(INDEX) > sizeof(int))
        return n / size;
    return size == 1 ? n : (INDEX)(mul_hi((uint)n, p->factor[which]) >> p->shift[which]);
}

/* An element of a tensor: adjacent work-items have adjacent channels where these are contiguous, else columns. */
typedef struct spot {
    INDEX image, channel, row, column;
} spot;

/* Returns number % size, and divides number by size. */
INDEX take_remainder(const pool *p, int which, INDEX size, INDEX *number)
{
    const INDEX next = quotient(p, which, *number, size), rest = *number - next * size;
    *number = next;
    return rest;
}

/* The fastest axis is the one that is contiguous: channels (NHWC) or columns (NCHW). */
spot spot_of(const pool *p, const INDEX *shape, INDEX number)
{
    const INDEX channels = shape[1] / CHANNELS_EACH, columns = shape[3] / COLUMNS_EACH;
    spot s;
    if (p->by_channel)
        s.channel = take_remainder(p, CHANNELS, channels, &number) * CHANNELS_EACH;
    s.column = take_remainder(p, COLUMNS, columns, &number) * COLUMNS_EACH;
    s.row = take_remainder(p, ROWS, shape[2], &number);
    if (!p->by_channel)
        s.channel = take_remainder(p, CHANNELS, channels, &number);
    s.image = number;
    return s;
}

INDEX offset_of(const INDEX *step, INDEX image, INDEX channel, INDEX row, INDEX column)
{
    return image * step[0] + channel * step[1] + row * step[2] + column * step[3];
}

/* Length of a window on an axis, with or without padding. */
INDEX window_length(const pool *p, int axis, INDEX at)
{
    const INDEX begin = at * STRIDE(p, axis) - p->padding[axis], size = p->image[2 + axis];
    const INDEX end = min(begin + KERNEL(p, axis), size + p->padding[axis]);
    return p->exclude_padding ? max((INDEX)1, min(end, size) - max(begin, (INDEX)0)) : end - begin;
}

/* Divisor of an average. */
C window_count(const pool *p, INDEX row, INDEX column)
{
    return (C)(window_length(p, 0, row) * window_length(p, 1, column));
}

/* Two adjacent elements, the first at an even offset. */
#ifdef PAIRS
#define LOAD_2(T, pointer, index) JOIN(load_2_, T)((const __global T *)(pointer) + (index))
#define STORE_2(T, pointer, index, value) JOIN(store_2_, T)((__global T *)(pointer) + (index), value)
float2 load_2_f32(const __global f32 *p)
{
    return *(const __global float2 *)p;
}
float2 load_2_bf16(const __global bf16 *p)
{
    return as_float2(convert_uint2(*(const __global ushort2 *)p) << 16);
}
float2 load_2_f16(const __global f16 *p)
{
    return vloada_half2(0, (const __global half *)p);
}
void store_2_f32(__global f32 *p, float2 x)
{
    *(__global float2 *)p = x;
}
void store_2_bf16(__global bf16 *p, float2 x)
{
    *(__global ushort2 *)p = (ushort2)(f32_to_bf16(x.x), f32_to_bf16(x.y));
}
void store_2_f16(__global f16 *p, float2 x)
{
    vstorea_half2_rte(x, 0, (__global half *)p);
}
#endif

#ifdef FORWARD
#ifdef LARGEST
/* The first of equal elements wins, and NaN. */
#define TAKE(value, place) \
    { \
        const V here = value; \
        const IS is_better = (at < 0) | (here > best) | (here != here); \
        best = is_better ? here : best; \
        at = is_better ? (P)(place) : at; \
    }
#else
#define TAKE(value, place) best += value;
#endif

/* One result per work-item, or a vector. Bytes: the image read, the result and its indices written. */
__kernel void pool_windows(pool p, long count, OPERAND(x), OPERAND(y), OPERAND(indices))
{
    if (get_global_id(0) >= count)
        return;
    const spot s = spot_of(&p, p.result, (INDEX)get_global_id(0));
    const INDEX rows = (INDEX)p.image[2], columns = (INDEX)p.image[3];
    const INDEX top = s.row * STRIDE(&p, 0) - p.padding[0], left = s.column * STRIDE(&p, 1) - p.padding[1];
    const long plane = x_at + offset_of(p.image_step, s.image, s.channel, 0, 0);
#ifdef LARGEST
    V best = -(C)INFINITY;
    P at = -1;
#else
    V best = 0;
#endif
    /* rows of the window, then columns: the order that defines the first of equal elements */
    for (INDEX a = 0; a < KERNEL(&p, 0); a++) {
        const INDEX row = top + a * DILATION(&p, 0);
        if (row < 0 || row >= rows)
            continue;
#if defined(TWO)
        const float4 vec = LOAD_4(T_X, x, plane + row * p.image_step[2] + left);
        TAKE(vec.even, 2 * a)
        TAKE(vec.odd, 2 * a + 1)
#elif defined(PAIRS)
        const float2 both = LOAD_2(T_X, x, plane + row * p.image_step[2] + left);
        TAKE(both.x, 2 * a)
        TAKE(both.y, 2 * a + 1)
#else
        for (INDEX b = 0; b < KERNEL(&p, 1); b++) {
            const INDEX column = left + b * DILATION(&p, 1);
            if (column >= 0 && column < columns)
                TAKE(GET(T_X, x, plane + row * p.image_step[2] + column * p.image_step[3]), a * KERNEL(&p, 1) + b)
        }
#endif
    }
    const long to = offset_of(p.result_step, s.image, s.channel, s.row, s.column);
#ifdef LARGEST
    if (indices)
        SET_INDICES(indices, indices_at + offset_of(p.index_step, s.image, s.channel, s.row, s.column), at);
#else
    best /= window_count(&p, s.row, s.column);
#endif
    SET(T_Y, y, y_at + to, best);
}
#endif

#if defined(BACKWARD) && defined(APART)
/* Disjoint windows: one per work-item, which writes all of its elements; elements beyond the last window become 0. */
__kernel void pool_scatter(pool p, long count, OPERAND(g), OPERAND(indices), OPERAND(gx))
{
    if (get_global_id(0) >= count)
        return;
    const INDEX grid[4] = {p.image[0], p.image[1], (p.image[2] + KERNEL_0 - 1) / KERNEL_0,
                           (p.image[3] + KERNEL_1 - 1) / KERNEL_1};
    const spot s = spot_of(&p, grid, (INDEX)get_global_id(0));
    const bool has_window = s.row < p.result[2] && s.column < p.result[3];
    const long to = gx_at + offset_of(p.image_step, s.image, s.channel, 0, 0);
    V here = 0;
    if (has_window)
        here = GET(T_X, g, g_at + offset_of(p.result_step, s.image, s.channel, s.row, s.column));
#ifdef LARGEST
    P mine = -1;
    if (has_window)
        mine = GET_INDICES(indices, indices_at + offset_of(p.index_step, s.image, s.channel, s.row, s.column));
#define GRAD_OF(number) ((P)(number) == mine ? here : (V)0)
#else
    if (has_window)
        here /= window_count(&p, s.row, s.column);
#define GRAD_OF(number) here
#endif
    for (INDEX a = 0; a < KERNEL_0; a++) {
        const INDEX row = s.row * KERNEL_0 + a, left = s.column * KERNEL_1;
        if (row >= p.image[2])
            break;
#ifdef PAIRS
        STORE_2(T_Y, gx, to + row * p.image_step[2] + left, (float2)(GRAD_OF(2 * a), GRAD_OF(2 * a + 1)));
#else
        for (INDEX column = left; column < min(left + (INDEX)KERNEL_1, p.image[3]); column++)
            SET(T_Y, gx, to + row * p.image_step[2] + column * p.image_step[3], GRAD_OF(a * KERNEL_1 + column - left));
#endif
    }
}
#endif

#ifdef BACKWARD
/* The first window that reaches `at` on an axis, and the last that begins there or before. */
INDEX first_window(const pool *p, int axis, INDEX at)
{
    const INDEX distance = at + p->padding[axis] - (KERNEL(p, axis) - 1) * DILATION(p, axis);
    return distance <= 0 ? 0 : BY_STRIDE(p, axis, distance + STRIDE(p, axis) - 1);
}

INDEX last_window(const pool *p, int axis, INDEX at)
{
    return min(p->result[2 + axis] - 1, BY_STRIDE(p, axis, at + p->padding[axis]));
}

/* Index of element `at` along an axis of a window that spans it, or UNSEEN. */
INDEX number_along(const pool *p, int axis, INDEX at, INDEX window)
{
    const INDEX distance = at + p->padding[axis] - window * STRIDE(p, axis), step = DILATION(p, axis);
    return step == 1 ? distance : distance % step == 0 ? distance / step : UNSEEN;
}

/* One element of the image per work-item, or of adjacent channels. */
__kernel void pool_grad(pool p, long count, OPERAND(g), OPERAND(indices), OPERAND(gx))
{
    if (get_global_id(0) >= count)
        return;
    const spot s = spot_of(&p, p.image, (INDEX)get_global_id(0));
    const INDEX last_row = last_window(&p, 0, s.row), first_column = first_window(&p, 1, s.column),
                last_column = last_window(&p, 1, s.column);
    const long gy_plane = g_at + offset_of(p.result_step, s.image, s.channel, 0, 0),
               index_plane = indices_at + offset_of(p.index_step, s.image, s.channel, 0, 0);
    V sum = 0;
    for (INDEX row = first_window(&p, 0, s.row); row <= last_row; row++)
        for (INDEX column = first_column; column <= last_column; column++) {
            const V here = GET(T_X, g, gy_plane + row * p.result_step[2] + column * p.result_step[3]);
#ifdef LARGEST
            const INDEX down = number_along(&p, 0, s.row, row), across = number_along(&p, 1, s.column, column);
            const P mine = down < 0 || across < 0 ? UNSEEN : down * KERNEL(&p, 1) + across;
            sum += GET_INDICES(indices, index_plane + row * p.index_step[2] + column * p.index_step[3]) == mine ? here
                                                                                                                : (V)0;
#else
            sum += here / window_count(&p, row, column);
#endif
        }
    SET(T_Y, gx, gx_at + offset_of(p.image_step, s.image, s.channel, s.row, s.column), sum);
}
#endif
