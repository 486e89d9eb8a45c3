/* reduce.cl: reductions over any axes. An output's elements enter a state; states of parts are merged in order, so the
 * result depends on the shape alone.
 *
 * Options: OP_sum, OP_prod, OP_max, OP_min, OP_argmax, OP_argmin, OP_var, OP_nonfinite, OP_equal (elements equal to a
 * second operand), OP_nonzero (product of nonzeros and number of zeros) or OP_dot (sum of products with a second
 * operand). C is the type of states: real for sums, products and variances.
 *
 * `kept` are the axes of outputs: result, x, second operand; `inner` those of an output's elements: x, second operand.
 * An output is cut into `chunks` of `chunk` elements. IS_PARTIAL: states go to scratch, merged by `combine`; IS_STATE:
 * the result itself is a state in scratch.
 *
 * A program has the kernels of one plan of reduce.c, since drivers compile all there is: BY_rows, BY_across or GROUP
 * (the work-group size) selects them; MANY_CHUNKS adds the merge by work-groups. */
#include "backends/opencl/common/element.cl"
#ifdef VEC4
#include "backends/opencl/common/vec4.cl"
#endif

#define LANES 8

/* Axes of outputs or of an output's elements: a nest of three operands, since arguments are limited to 1024 bytes. */
typedef struct axes {
    int rank, spare;
    long count;
    long shape[MAX_RANK];
    long stride[3][MAX_RANK];
} axes;

#include "backends/opencl/reduce/reduce_states.cl"

/* ---- an output's elements ---------------------------------------------------------------------------------------- */

/* The elements of one output, and those of the second operand. */
typedef struct slice {
    __global const void *x, *z;
    long x_at, z_at;
    INDEX x_step, z_step; /* of inner's only axis, where IS_FLAT */
} slice;

#ifdef IS_FLAT
#define X_AT(i) GET(T_X, r->x, r->x_at + (i)*r->x_step)
#define Z_AT(i) GET(T_Z, r->z, r->z_at + (i)*r->z_step)
#else
static INDEX inner_at(const axes *inner, INDEX i, int operand)
{
    INDEX at = 0;
    EACH_AXIS(axis, 0, inner->rank)
    {
        INDEX size = (INDEX)inner->shape[axis], next = i / size;
        at += (i - next * size) * (INDEX)inner->stride[operand][axis];
        i = next;
    }
    return at;
}
#define X_AT(i) GET(T_X, r->x, r->x_at + inner_at(inner, i, 0))
#define Z_AT(i) GET(T_Z, r->z, r->z_at + inner_at(inner, i, 1))
#endif
#ifndef HAS_SECOND
#undef Z_AT
#define Z_AT(i) 0
#endif

/* Offsets of output i in its three operands. */
static void locate_output(const axes *kept, INDEX i, INDEX *at)
{
    at[0] = at[1] = at[2] = 0;
    EACH_AXIS(axis, 0, kept->rank)
    {
        INDEX size = (INDEX)kept->shape[axis], next = i / size, here = i - next * size;
        for (int k = 0; k < 3; k++)
            at[k] += here * (INDEX)kept->stride[k][axis];
        i = next;
    }
}

/* Reduces elements begin, begin + step, … below end. */
#ifdef OP_var
/* The mean first, relative to the first element, so that the mean of equal elements is exact; then the squared
 * deviations from it, whose sum corrects the rounding of the mean. */
static state take_all(const slice *r, const axes *inner, INDEX begin, INDEX end, INDEX step)
{
    state s = empty_state();
    if (begin >= end)
        return s;
    /* deviations are taken from the first element: exact for constant slices */
    const C one = X_AT(begin);
    C sum = 0, rest = 0, squares = 0;
    INDEX count = 0;
    for (INDEX i = begin; i < end; i += step, count++)
        sum += X_AT(i) - one;
    C mean = one + sum / (C)count;
    for (INDEX i = begin; i < end; i += step) {
        C d = X_AT(i) - mean;
        rest += d;
        squares += d * d;
    }
    s.a = mean + rest / (C)count;
    s.b = squares - rest * (rest / (C)count);
    s.n = count;
    return s;
}
#else
static state take_all(const slice *r, const axes *inner, INDEX begin, INDEX end, INDEX step)
{
    state s[LANES];
    for (int lane = 0; lane < LANES; lane++)
        s[lane] = empty_state();
    INDEX i = begin;
    for (; i + (LANES - 1) * step < end; i += LANES * step)
        for (int lane = 0; lane < LANES; lane++)
            take(&s[lane], X_AT(i + lane * step), Z_AT(i + lane * step), i + lane * step);
    for (; i < end; i += step)
        take(&s[0], X_AT(i), Z_AT(i), i);
    for (int lane = 1; lane < LANES; lane++)
        merge(&s[0], &s[lane]);
    return s[0];
}
#endif

#ifdef VEC4
#define AHEAD 4 /* vec4 loads in flight */

/* Lane k of the vec4s has state k. */
static void take_vec4(state *s, float4 x, INDEX i)
{
    take(&s[0], (C)x.x, 0, i);
    take(&s[1], (C)x.y, 0, i + 1);
    take(&s[2], (C)x.z, 0, i + 2);
    take(&s[3], (C)x.w, 0, i + 3);
}

/* The same for a work-item of a work-group, by vec4s: begin and end are multiples of four. */
static state take_vec4s(const slice *r, INDEX begin, INDEX end)
{
    const INDEX step = 4 * GROUP;
    state s[4];
    for (int lane = 0; lane < 4; lane++)
        s[lane] = empty_state();
    INDEX i = begin + 4 * (INDEX)get_local_id(0);
    for (; i + (AHEAD - 1) * step < end; i += AHEAD * step) {
        float4 x[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            x[k] = LOAD_4(T_X, r->x, r->x_at + i + k * step);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            take_vec4(s, x[k], i + k * step);
    }
    for (; i < end; i += step)
        take_vec4(s, LOAD_4(T_X, r->x, r->x_at + i), i);
    for (int lane = 1; lane < 4; lane++)
        merge(&s[0], &s[lane]);
    return s[0];
}
#endif

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Writes a result. `first` is the offset of the first one, in elements; of states, in bytes. */
static void finish(__global void *y, long first, INDEX offset, state s, C scale, C correction)
{
    long at = first + offset;
#if defined(IS_STATE)
#if defined(OP_sum)
    C mean = (s.a + s.b) * scale;
#ifdef COMPUTES_F32
    /* scale was rounded; the mean of equals is their value */
    const C rest = (fma(-mean, correction, s.a) + s.b) * scale;
    mean += rest - rest == 0 ? rest : 0;
#endif
    s.a = mean;
#endif
    ((__global state *)((__global char *)y + first))[offset] = s;
#elif defined(OP_sum) || defined(OP_dot)
    C sum = s.a;
#ifdef COMPUTES_F32
    sum += s.b;
#endif
    PUT(T_Y, y, at, scale == 1 ? sum : sum * scale);
#elif defined(OP_var)
    C divisor = (C)s.n - correction;
    PUT(T_Y, y, at, s.b / (divisor < 0 ? (C)0 : divisor)); /* as torch: NaN or infinity */
#elif defined(OP_argmax) || defined(OP_argmin)
    ((__global long *)y)[at] = s.n == NO_INDEX ? 0 : s.n;
#elif defined(OP_nonfinite)
    ((__global long *)y)[at] = s.n;
#else
    PUT(T_Y, y, at, s.a);
#endif
}

#define PARAMETERS \
    __global void *y, long y_first, __global const void *x, long x_first, __global const void *z, long z_first, \
        __global char *scratch, long scratch_first, C scale, C correction, long outputs, long chunk, long chunks, \
        axes kept, axes inner

/* Writes a part of output `which`, whose offset is `at`: to scratch, or as the result. */
static void write_part(__global void *y, long y_first, __global char *scratch, long scratch_first, INDEX at,
                       INDEX which, INDEX part, long chunks, state s, C scale, C correction)
{
#ifdef IS_PARTIAL
    ((__global state *)(scratch + scratch_first))[(long)which * chunks + part] = s;
#else
    finish(y, y_first, at, s, scale, correction);
#endif
}

/* The slice of x, and of z for dot products, that an output reduces. Steps are those of the innermost axis; rank 0 has
 * one element. */
static slice slice_at(__global const void *x, long x_at, __global const void *z, long z_at, const axes *inner)
{
    slice r = {x, z, x_at, z_at, 0, 0};
    if (inner->rank > 0) {
        r.x_step = (INDEX)inner->stride[0][0];
        r.z_step = (INDEX)inner->stride[1][0];
    }
    return r;
}

#ifdef BY_rows
/* One chunk of an output per work-item. */
__kernel void rows(PARAMETERS)
{
    INDEX item = (INDEX)get_global_id(0), at[3];
    if (item >= outputs * chunks)
        return;
    /* adjacent work-items have adjacent outputs */
    INDEX part = item / (INDEX)outputs, which = item - part * (INDEX)outputs, begin = part * (INDEX)chunk;
    locate_output(&kept, which, at);
    slice r = slice_at(x, x_first + at[1], z, z_first + at[2], &inner);
    state s = take_all(&r, &inner, begin, min(begin + (INDEX)chunk, (INDEX)inner.count), 1);
    write_part(y, y_first, scratch, scratch_first, at[0], which, part, chunks, s, scale, correction);
}
#endif

#ifdef GROUP
#ifdef HAS_SUBGROUPS
#include "backends/opencl/common/subgroups.cl"
#if defined(COMPUTES_F32)
#define ACROSS across_float
#elif defined(COMPUTES_F64)
#define ACROSS across_double
#else
#define ACROSS across_long
#endif
/* Merges the states of a work-group into the first work-item's: each subgroup by shuffles, then one over subgroups. */
static void merge_group(state *own, __local state *shared)
{
    EACH_HALF(lanes)
    {
        const state other = {ACROSS(own->a, lanes), ACROSS(own->b, lanes), across_long(own->n, lanes)};
        merge(own, &other);
    }
    if (MY_LANE == 0)
        shared[MY_SUBGROUP] = *own;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) != 0)
        return;
    *own = shared[0];
    for (int k = 1; k < SUBGROUPS; k++) {
        state other = shared[k];
        merge(own, &other);
    }
}
#else
#define ROOT 8
/* Merges the states of a work-group into the first work-item's: a few merge every ROOT-th, then one theirs. */
static void merge_group(state *own, __local state *shared)
{
    int me = (int)get_local_id(0);
    shared[me] = *own;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me < ROOT) {
        for (int k = ROOT; k < GROUP; k += ROOT) {
            state other = shared[me + k];
            merge(own, &other);
        }
        shared[me] = *own;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 1; k < ROOT && me == 0; k++) {
        state other = shared[k];
        merge(own, &other);
    }
}
#endif

/* One chunk of an output per work-group, whose work-items take every GROUP-th element, or vec4: adjacent ones read
 * adjacent memory. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void groups(PARAMETERS)
{
    __local state shared[GROUP];
    int me = (int)get_local_id(0);
    INDEX item = (INDEX)get_group_id(0), at[3];
    INDEX which = item / (INDEX)chunks, part = item - which * (INDEX)chunks, begin = part * (INDEX)chunk;
    locate_output(&kept, which, at);
    slice r = slice_at(x, x_first + at[1], z, z_first + at[2], &inner);
#ifdef VEC4
    state own = take_vec4s(&r, begin, min(begin + (INDEX)chunk, (INDEX)inner.count));
#else
    state own = take_all(&r, &inner, begin + me, min(begin + (INDEX)chunk, (INDEX)inner.count), GROUP);
#endif
    merge_group(&own, shared);
    if (me == 0)
        write_part(y, y_first, scratch, scratch_first, at[0], which, part, chunks, own, scale, correction);
}

#ifdef MANY_CHUNKS
/* Merges many chunks of an output: each work-item every GROUP-th, then the work-group. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void combine_groups(PARAMETERS)
{
    __local state shared[GROUP];
    INDEX which = (INDEX)get_group_id(0), at[3];
    __global const state *parts = (__global const state *)(scratch + scratch_first) + (long)which * chunks;
    state own = empty_state();
    for (long i = get_local_id(0); i < chunks; i += GROUP) {
        state t = parts[i];
        merge(&own, &t);
    }
    merge_group(&own, shared);
    if (get_local_id(0) != 0)
        return;
    locate_output(&kept, which, at);
    finish(y, y_first, at[0], own, scale, correction);
}
#endif
#endif

#ifdef BY_across
/* One chunk of LANES adjacent outputs per work-item: along the last axis of `kept`, where x has stride 1. */
__kernel void across(PARAMETERS)
{
    INDEX length = (INDEX)kept.shape[kept.rank - 1], blocks = (length + LANES - 1) / LANES,
          item = (INDEX)get_global_id(0), at[3];
    INDEX items = (INDEX)(outputs / length) * blocks * (INDEX)chunks;
    if (item >= items)
        return;
    INDEX place = item / (INDEX)chunks, part = item - place * (INDEX)chunks, row = place / blocks,
          first = (place - row * blocks) * LANES;
    INDEX begin = part * (INDEX)chunk, end = min(begin + (INDEX)chunk, (INDEX)inner.count),
          width = min((INDEX)LANES, length - first);
    locate_output(&kept, row * length + first, at);
    slice whole = slice_at(x, x_first + at[1], z, z_first + at[2], &inner);
    const slice *r = &whole;
    INDEX z_along = (INDEX)kept.stride[2][kept.rank - 1];
    state s[LANES];
    for (int lane = 0; lane < LANES; lane++)
        s[lane] = empty_state();
    if (width == LANES && z_along <= 1) {
        for (INDEX i = begin; i < end; i++)
            for (int lane = 0; lane < LANES; lane++)
#ifdef HAS_SECOND
                take(&s[lane], GET(T_X, x, r->x_at + i * r->x_step + lane),
                     GET(T_Z, z, r->z_at + i * r->z_step + lane * z_along), i);
#else
                take(&s[lane], GET(T_X, x, r->x_at + i * r->x_step + lane), 0, i);
#endif
    } else {
        for (INDEX i = begin; i < end; i++)
            for (int lane = 0; lane < width; lane++)
#ifdef HAS_SECOND
                take(&s[lane], GET(T_X, x, r->x_at + i * r->x_step + lane),
                     GET(T_Z, z, r->z_at + i * r->z_step + lane * z_along), i);
#else
                take(&s[lane], GET(T_X, x, r->x_at + i * r->x_step + lane), 0, i);
#endif
    }
    INDEX along = (INDEX)kept.stride[0][kept.rank - 1];
    for (int lane = 0; lane < width; lane++)
        write_part(y, y_first, scratch, scratch_first, at[0] + lane * along, row * length + first + lane, part, chunks,
                   s[lane], scale, correction);
}
#endif

#ifdef IS_PARTIAL
/* Merges the chunks of each output. */
__kernel void combine(PARAMETERS)
{
    INDEX which = (INDEX)get_global_id(0), at[3];
    if (which >= outputs)
        return;
    __global const state *parts = (__global const state *)(scratch + scratch_first) + (long)which * chunks;
    state s = parts[0];
    for (long i = 1; i < chunks; i++) {
        state t = parts[i];
        merge(&s, &t);
    }
    locate_output(&kept, which, at);
    finish(y, y_first, at[0], s, scale, correction);
}
#endif
