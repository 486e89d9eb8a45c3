/* rows.cl: what kernels that work along one axis share; see rows.h. Compiled with GROUP, LANES, INDEX, perhaps DENSE,
 * T_X, the first operand's dtype, and WIDE where it is computed in `real`. */

#ifdef WIDE
typedef real C;
#define PUT STORE_REAL
#else
typedef COMPUTE(T_X) C;
#define PUT STORE
#endif

typedef struct row_set {
    nest others;
    long count, length;
    long along[6];
} row_set;

#define OPERAND(name) __global void *name, long name##_at
#define VECTOR(name) __global void *name, long name##_at, long name##_step

/* Operand k's stride on the axis. */
#ifdef DENSE
#define ALONG(rows, k) 1
#else
#define ALONG(rows, k) ((INDEX)(rows).along[k])
#endif

#define MY_ROW ((long)(get_global_id(0) / GROUP))
#define MY_PLACE (GROUP > 1 ? (int)get_local_id(0) : 0)
#ifndef WIDTH /* work-items that share a stretch of elements; the others of the group have others */
#define WIDTH GROUP
#endif
#define MY_COLUMN (WIDTH == GROUP ? MY_PLACE : MY_PLACE % WIDTH)
#define SPAN \
    (64 * GROUP * LANES) /* elements whose sum is kept in the type computed in, before it goes to one of `real` */

/* BODY(at, lane) for each element of [begin, end) that is this work-item's: the same ones in every pass. */
#define EACH(BODY, begin, end) \
    { \
        INDEX first_ = (begin) + MY_COLUMN * LANES; \
        for (; first_ + LANES <= (end); first_ += WIDTH * LANES) { \
            _Pragma("unroll") for (int lane_ = 0; lane_ < LANES; lane_++) \
            { \
                BODY(first_ + lane_, lane_) \
            } \
        } \
        for (int lane_ = 0; first_ + lane_ < (end); lane_++) { \
            BODY(first_ + lane_, lane_) \
        } \
    }

/* Ends what is beyond the last row. Where a group has a row there are as many groups as rows: barriers follow, and
 * nobody may leave. */
#if GROUP > 1
#define END_BEYOND(count)
#else
#define END_BEYOND(count) \
    if (MY_ROW >= (count)) \
        return;
#endif

/* ITEM(i) for each i of [first, end) that is this work-item's. All work-items go round as often, since barriers follow.
 */
#define EACH_OF(ITEM, first, end) \
    for (long begin_ = (first); begin_ < (end); begin_ += GROUP) { \
        const long item_ = begin_ + MY_PLACE; \
        if (item_ < (end)) { \
            ITEM(item_) \
        } \
    }

/* True for the work-item whose element `at` is. */
bool is_mine(INDEX at)
{
    return GROUP == 1 || at / LANES % GROUP == MY_PLACE;
}

real lanes_sum(const C *part)
{
    real sum = 0;
    for (int k = 0; k < LANES; k++)
        sum += part[k];
    return sum;
}

/* Every work-item of a row gets the sum, or the largest of the numbers; `space` may be used again at once. A few
 * work-items take every ROOT-th number, then all take what those have: two steps, of which a compiler sees the length.
 * Where there are subgroups each finds its own first. */
#if GROUP > 1 && defined(HAS_SUBGROUPS)
#include "backends/opencl/common/subgroups.cl"
#define OVER_GROUP(name, PUT) \
    real name(real x, __local real *space) \
    { \
        EACH_HALF(lanes) \
        { \
            const real other = across_real(x, lanes); \
            PUT(x, other); \
        } \
        if (MY_LANE == 0) \
            space[MY_SUBGROUP] = x; \
        barrier(CLK_LOCAL_MEM_FENCE); \
        x = space[0]; \
        for (int at = 1; at < SUBGROUPS; at++) { \
            PUT(x, space[at]); \
        } \
        barrier(CLK_LOCAL_MEM_FENCE); \
        return x; \
    }
#elif GROUP > 1
#define ROOT (GROUP >= 128 ? 16 : GROUP >= 32 ? 8 : 2)
#define OVER_GROUP(name, PUT) \
    real name(real x, __local real *space) \
    { \
        const int me = get_local_id(0); \
        space[me] = x; \
        barrier(CLK_LOCAL_MEM_FENCE); \
        if (me < ROOT) { \
            _Pragma("unroll") for (int at = ROOT; at < GROUP; at += ROOT) \
            { \
                PUT(x, space[me + at]); \
            } \
            space[me] = x; \
        } \
        barrier(CLK_LOCAL_MEM_FENCE); \
        x = space[0]; \
        _Pragma("unroll") for (int at = 1; at < ROOT; at++) \
        { \
            PUT(x, space[at]); \
        } \
        barrier(CLK_LOCAL_MEM_FENCE); \
        return x; \
    }
#endif
#if GROUP > 1
#define PUT_SUM(x, y) x += y
#define PUT_LARGER(x, y) x = y > x ? y : x
OVER_GROUP(group_sum, PUT_SUM)
OVER_GROUP(group_most, PUT_LARGER)
#else
#define group_sum(x, space) (x)
#define group_most(x, space) (x)
#endif
