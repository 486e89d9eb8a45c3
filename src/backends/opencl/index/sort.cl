/* sort.cl: stable merge sort of lines of pairs (key, index): for sort and topk, and for scatter in source order.
 *
 * Runs of RUN adjacent pairs are sorted by insertion, one work-item each or, in lockstep, by rank, one work-item per
 * pair; then runs are merged pairwise, one work-item per pair: its target is its own rank plus that in the other run,
 * by binary search. Two buffers in scratch alternate, line after line, `length` pairs each. */

/* Key, and position in the line. 16 bytes; scratch is sized for two per element. */
typedef struct pair {
    ulong key;
    long index;
} pair;

/* Offset of a line of an operand. */
static long line_at(const nest *lines, long line, int operand)
{
    return nest_at(lines, line, operand);
}

#ifdef MAKES_RUNS
#ifdef I
/* Keys are indices; an invalid one becomes `limit`, sorted last. */
static ulong key_at(__global const void *x, long at, ulong limit, ulong unused_1, ulong unused_2, FAULT_PARAMETERS)
{
    long which = LOAD(I, x, at);
    if (which >= 0 && which < (long)limit)
        return (ulong)which;
    report_fault(fault, which, (long)limit);
    return limit;
}
#else
/* Key of an element by its bits: NaN largest, -0 equals 0, negative floats reversed; `flip` inverts all bits for
 * descending order. `infinity` is 0 for integers, `sign` 0 for unsigned ones. */
static ulong key_at(__global const void *x, long at, ulong sign, ulong infinity, ulong flip, FAULT_PARAMETERS)
{
    ulong bits = ((__global const BITS *)x)[at], size = bits & (sign - 1);
    if (infinity && size > infinity)
        return (sign | (sign - 1)) ^ flip;
    if (infinity && size == 0)
        return sign ^ flip;
    if (infinity && (bits & sign))
        return (~bits & (sign | (sign - 1))) ^ flip;
    return bits ^ sign ^ flip;
}
#endif

#ifdef IN_LOCKSTEP
/* Number of keys of the run before this one. */
static long rank_in_run(__global const void *x, long from, long step, long begin, long end, long own, ulong key,
                        ulong a, ulong b, ulong c, FAULT_PARAMETERS)
{
    long rank = 0;
    for (long i = begin; i < end; i++) {
        ulong other = key_at(x, from + i * step, a, b, c, fault, fault_function);
        rank += other < key || (other == key && i < own);
    }
    return rank;
}

__kernel void make_runs(__global char *scratch, long to_first, __global const void *x, long x_first, long length,
                        long step, ulong a, ulong b, ulong c, nest lines, FAULT_PARAMETERS)
{
    long item = get_global_id(0), line = item / length, own = item - line * length, begin = own / RUN * RUN;
    if (line >= lines.count)
        return;
    long from = x_first + line_at(&lines, line, 0);
    pair one = {key_at(x, from + own * step, a, b, c, fault, fault_function), own};
    long rank =
        rank_in_run(x, from, step, begin, min(begin + RUN, length), own, one.key, a, b, c, fault, fault_function);
    ((__global pair *)(scratch + to_first))[line * length + begin + rank] = one;
}
#else
__kernel void make_runs(__global char *scratch, long to_first, __global const void *x, long x_first, long length,
                        long step, ulong a, ulong b, ulong c, nest lines, FAULT_PARAMETERS)
{
    long runs = (length + RUN - 1) / RUN, item = get_global_id(0), line = item / runs, begin = item % runs * RUN;
    if (line >= lines.count)
        return;
    long end = min(begin + RUN, length), from = x_first + line_at(&lines, line, 0);
    __global pair *to = (__global pair *)(scratch + to_first) + line * length;
    for (long i = begin; i < end; i++) {
        pair one = {key_at(x, from + i * step, a, b, c, fault, fault_function), i};
        long k = i;
        for (; k > begin && to[k - 1].key > one.key; k--)
            to[k] = to[k - 1];
        to[k] = one;
    }
}
#endif
#endif

/* Number of pairs with a smaller key or, or_equal, one not larger. */
static long rank_of(__global const pair *run, long count, ulong key, bool or_equal)
{
    long low = 0, high = count;
    while (low < high) {
        long middle = (low + high) / 2;
        if (run[middle].key < key || (or_equal && run[middle].key == key))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Merges runs of `width` to runs twice as long. */
__kernel void merge_runs(__global char *scratch, long from_first, __global char *same, long to_first, long length,
                         long width, long count)
{
    long item = get_global_id(0), line = item / length, i = item - line * length;
    if (item >= count)
        return;
    __global const pair *from = (__global const pair *)(scratch + from_first) + line * length;
    __global pair *to = (__global pair *)(same + to_first) + line * length;
    /* ties keep their order: elements of the first run go before equal ones of the second */
    long begin = i / (2 * width) * (2 * width), middle = min(begin + width, length),
         end = min(begin + 2 * width, length);
    pair one = from[i];
    long target = i < middle ? i + rank_of(from + middle, end - middle, one.key, false)
                             : begin + (i - middle) + rank_of(from + begin, middle - begin, one.key, true);
    to[target] = one;
}

#if defined(BITS) && !defined(MAKES_RUNS)
/* Writes the first `taken` pairs of each line. Operands of the nest: x, values, indices. */
__kernel void write_sorted(__global const char *scratch, long from_first, __global const BITS *x, long x_first,
                           __global BITS *values, long values_first, __global long *indices, long indices_first,
                           long length, long taken, long x_step, long values_step, long indices_step, nest lines)
{
    long item = get_global_id(0), line = item / taken, i = item - line * taken;
    if (line >= lines.count)
        return;
    long from = ((__global const pair *)(scratch + from_first))[line * length + i].index;
#ifdef HAS_VALUES
    values[values_first + line_at(&lines, line, 1) + i * values_step] =
        x[x_first + line_at(&lines, line, 0) + from * x_step];
#endif
#ifdef HAS_INDICES
    indices[indices_first + line_at(&lines, line, 2) + i * indices_step] = from;
#endif
}
#endif
