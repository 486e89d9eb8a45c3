/* window.cl: bits of x laid into a window of y, which is written once and whole, with one number around it; or a copy,
 * whose window is all of y.
 *
 * Rows that do not lie alike cannot be moved by many bytes at once: what counts is that neighbours touch neighbours and
 * that an element costs few operations. A work-item writes units of N neighbours, reads their elements one by one, and
 * works its place out once for TURNS units, which lie apart on the axis TURNING. */
#define TURNS 8

/* An axis of y, and which part of it is x: every step-th element from `begin` on, the last one before begin + span.
 * Division by size and step is a product. */
typedef struct window_axis {
    uint size, size_factor, step, step_factor;
    int size_shift, step_shift;
    uint begin, span;
    int to, from;
} window_axis;

typedef struct window {
    window_axis last, outer[MAX_RANK]; /* of `last` the size counts units; of TURNING it is what one turn covers */
    uint units, turn;                  /* of a turn; places from one turn to the next */
    uint size;                         /* of TURNING */
    int turn_to, turn_from;
} window;

#define DIVIDE(n, size, factor, shift) ((size) == 1 ? (n) : mul_hi((n), (factor)) >> (shift))
#if N > 1
#define UNIT JOIN(BITS, N)
#else
#define UNIT BITS
#endif

/* Whether an element of x lies at a place of an axis, and which. */
static bool find_source(const window_axis *axis, uint at, uint *source)
{
    const uint far = at - axis->begin;
#ifdef HAS_STEPS
    *source = DIVIDE(far, axis->step, axis->step_factor, axis->step_shift);
    return far < axis->span && *source * axis->step == far;
#else
    *source = far;
    return far < axis->span;
#endif
}

__kernel void lay(window w, __global BITS *y, long y_first, __global const BITS *x, long x_first, BITS value)
{
    const uint at = (uint)get_global_id(0);
    uint along[N], source, place = 0, rest, to, from = 0;
    bool has[N], inside = true;
    BITS held[TURNS][N];
    if (at >= w.units)
        return;
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
        if (i == TURNING)
            place = source = here - w.outer[i].begin;
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
    for (int turn = 0; turn < TURNS; turn++) {
        const bool is_here = place + turn * w.turn < w.outer[TURNING].span;
#pragma unroll
        for (int i = 0; i < N; i++)
            held[turn][i] = is_here && has[i] ? x[x_first + (int)(along[i] + turn * (uint)w.turn_from)] : value;
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        if (place + w.outer[TURNING].begin + turn * w.turn < w.size)
            *(__global UNIT *)(y + (y_first + (int)(to + turn * (uint)w.turn_to))) =
#if N == 4
                (UNIT)(held[turn][0], held[turn][1], held[turn][2], held[turn][3]);
#elif N == 2
                (UNIT)(held[turn][0], held[turn][1]);
#else
                held[turn][0];
#endif
}
