/* rows.cl: shared by kernels along one axis; see rows.h.
 *
 * Options: GROUP, LANES, INDEX, CONTIGUOUS where rows have unit stride, T_X (dtype of the first operand), and USE_REAL
 * where it is computed in `real`. In the macros MY_ and EACH_, the same elements fall to a work-item in every pass. */

#ifdef USE_REAL
typedef real C;
#define PUT STORE_REAL
#else
typedef COMPUTE(T_X) C;
#define PUT STORE
#endif

/* tarn__cl_row_set of rows.h, passed by value. */
typedef struct row_set {
    nest others;
    long count, length;
    long along[6];
} row_set;

#define OPERAND(name) __global void *name, long name##_at
#define VECTOR(name) __global void *name, long name##_at, long name##_step

/* Operand k's stride on the axis. */
#ifdef CONTIGUOUS
#define ALONG(rows, k) 1
#else
#define ALONG(rows, k) ((INDEX)(rows).along[k])
#endif

#define MY_ROW ((long)(get_global_id(0) / GROUP))
#define MY_ITEM (GROUP > 1 ? (int)get_local_id(0) : 0)
#ifndef WIDTH /* work-items that share a range of elements; the rest of the work-group has other ranges */
#define WIDTH GROUP
#endif
#define MY_COLUMN (WIDTH == GROUP ? MY_ITEM : MY_ITEM % WIDTH)
#define SPAN (64 * GROUP * LANES) /* elements summed in the compute type before they are added in `real` */

/* BODY(at, lane) for each element of [begin, end) that belongs to this work-item. */
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

/* Ends work-items beyond the last row. Where a work-group has a row the grid is exact: barriers follow, and no
 * work-item may leave. */
#if GROUP > 1
#define END_BEYOND(count)
#else
#define END_BEYOND(count) \
    if (MY_ROW >= (count)) \
        return;
#endif

/* ITEM(i) for each i of [first, end) that belongs to this work-item. All work-items iterate equally often, since
 * barriers follow. */
#define EACH_OF(ITEM, first, end) \
    for (long begin_ = (first); begin_ < (end); begin_ += GROUP) { \
        const long item_ = begin_ + MY_ITEM; \
        if (item_ < (end)) { \
            ITEM(item_) \
        } \
    }

/* True for the work-item that has element `at`. */
bool is_mine(INDEX at)
{
    return GROUP == 1 || at / LANES % GROUP == MY_ITEM;
}

/* Adds lanes in order, in `real`. */
real lanes_sum(const C *part)
{
    real sum = 0;
    for (int k = 0; k < LANES; k++)
        sum += part[k];
    return sum;
}

/* Group reductions: every work-item of a row gets the sum, or the maximum; `space` is free again on return. A few
 * work-items combine every ROOT-th value, then all combine theirs: two steps of compile-time length. With subgroups
 * each reduces by shuffles first. The order is fixed. */
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
OVER_GROUP(group_max, PUT_LARGER)
#else
#define group_sum(x, space) (x)
#define group_max(x, space) (x)
#endif
