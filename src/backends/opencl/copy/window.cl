/* window.cl: bits of x copied into y with one value around and between them, y written once; or a plain copy, which
 * covers all of y.
 *
 * Misaligned rows cannot be moved many bytes at a time: adjacent work-items should touch adjacent elements, with few
 * operations per element. A work-item stores units of N adjacent elements, loads theirs one by one, and computes
 * offsets once for UNROLL units, which are spaced along the axis UNROLL_AXIS. */
#define UNROLL 8

/* An axis of y and the part of it that is x: every step-th element from `begin` on, the last before begin + span.
 * Division by size and step is a multiplication. */
typedef struct window_axis {
    uint size, size_factor, step, step_factor; /* of y; distance of x's elements in it; factors divide by them */
    int size_shift, step_shift;
    uint begin, span;
    int to, from; /* strides */
} window_axis;

/* The struct of window.c, passed by value. */
typedef struct window {
    window_axis last, outer[MAX_RANK]; /* of `last` the size is in units; of UNROLL_AXIS it is unroll_step */
    uint units, unroll_step;           /* work-items; positions between the UNROLL units of one */
    uint size;                         /* of UNROLL_AXIS */
    int unroll_to, unroll_from;        /* strides of unroll_step in y and x */
} window;

#define DIVIDE(n, size, factor, shift) ((size) == 1 ? (n) : mul_hi((n), (factor)) >> (shift))
#if N > 1
#define UNIT JOIN(BITS, N)
#else
#define UNIT BITS
#endif

/* Whether an element of x is at position `at` of an axis, and which. */
static bool find_source(const window_axis *axis, uint at, uint *source)
{
    const uint distance = at - axis->begin;
#ifdef HAS_STEPS
    *source = DIVIDE(distance, axis->step, axis->step_factor, axis->step_shift);
    return distance < axis->span && *source * axis->step == distance;
#else
    *source = distance;
    return distance < axis->span;
#endif
}

/* Loads of UNROLL units are issued before the first store. Elements outside x take `value`. */
__kernel void copy_window(window w, __global BITS *y, long y_first, __global const BITS *x, long x_first, BITS value)
{
    const uint at = (uint)get_global_id(0);
    uint along[N], source, position = 0, rest, to, from = 0;
    bool has[N], inside = true; /* has: the element is in x; inside: all outer positions are */
    BITS loaded[UNROLL][N];
    if (at >= w.units)
        return;
    /* position in y: the unit along the last axis, then outer axes from the last to the first */
    rest = DIVIDE(at, w.last.size, w.last.size_factor, w.last.size_shift);
    const uint first = (at - rest * w.last.size) * N;
    to = first * (uint)w.last.to;
#pragma unroll
    for (int i = OUTER - 1; i >= 0; i--) {
        const uint next = DIVIDE(rest, w.outer[i].size, w.outer[i].size_factor, w.outer[i].size_shift),
                   here = rest - next * w.outer[i].size;
        const bool is_here = find_source(&w.outer[i], here, &source);
        rest = next;
        to += here * (uint)w.outer[i].to;
        if (i == UNROLL_AXIS)
            position = source = here - w.outer[i].begin;
        else
            inside = inside && is_here;
        from += source * (uint)w.outer[i].from;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        has[i] = find_source(&w.last, first + (uint)i, &source) && inside;
        along[i] = from + source * (uint)w.last.from;
    }
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        const bool is_here = position + k * w.unroll_step < w.outer[UNROLL_AXIS].span;
#pragma unroll
        for (int i = 0; i < N; i++)
            loaded[k][i] = is_here && has[i] ? x[x_first + (int)(along[i] + k * (uint)w.unroll_from)] : value;
    }
#pragma unroll
    for (int k = 0; k < UNROLL; k++)
        if (position + w.outer[UNROLL_AXIS].begin + k * w.unroll_step < w.size)
            *(__global UNIT *)(y + (y_first + (int)(to + k * (uint)w.unroll_to))) =
#if N == 4
                (UNIT)(loaded[k][0], loaded[k][1], loaded[k][2], loaded[k][3]);
#elif N == 2
                (UNIT)(loaded[k][0], loaded[k][1]);
#else
                loaded[k][0];
#endif
}
