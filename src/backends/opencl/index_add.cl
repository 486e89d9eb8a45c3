/* index_add.cl: sums at indices, in the order of the source. Pairs of index and place in the source, sorted by index (sort.cl), stand in scratch; the first of a
 * stretch with the same index adds up all of it, the others do nothing.
 *
 * T_Y and T_S are the dtypes of y and the source; sums run in C and are rounded once. */
#include "element.cl"

typedef struct pair {
    ulong key;
    long index;
} pair;

/* Operands of the nest: y and source across the axis. `line_pairs`: from one line's pairs to the next; 0 where all lines have the same. */
__kernel void add_sorted(__global void *y, long y_first, __global const void *source, long source_first, __global const char *scratch, long pairs_first, long length,
                         long line_pairs, ulong limit, long y_step, long source_step, nest lines)
{
    long item = get_global_id(0), place = item / lines.count, line = item - place * lines.count;
    if (place >= length)
        return;
    __global const pair *pairs = (__global const pair *)(scratch + pairs_first) + line * line_pairs;
    ulong key = pairs[place].key;
    if (key >= limit || (place > 0 && pairs[place - 1].key == key))
        return;
    long to = y_first + nest_at(&lines, line, 0) + (long)key * y_step, from = source_first + nest_at(&lines, line, 1);
    C sum = GET(T_Y, y, to);
    for (long i = place; i < length && pairs[i].key == key; i++)
        sum += GET(T_S, source, from + pairs[i].index * source_step);
    PUT(T_Y, y, to, sum);
}
