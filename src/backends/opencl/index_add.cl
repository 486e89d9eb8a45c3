/* index_add.cl: sums at indices, in the order of the source. Pairs of index and place in the source, sorted by index (sort.cl), stand in scratch; the first of a
 * stretch with the same index adds up all of it, the others do nothing.
 *
 * T_Y and T_S are the dtypes of y and the source; sums run in C and are rounded once. */
#include "element.cl"

typedef struct pair {
    ulong key;
    long index;
} pair;

/* Operands of `lines`: y and source across the axis. A work-item has a pair and a line, neighbours have neighbouring lines. `line_pairs`: from one line's pairs to the
 * next; 0 where all lines have the same. */
__kernel void add_sorted(__global void *y, long y_first, __global const void *source, long source_first, __global const char *scratch, long pairs_first, INDEX length,
                         INDEX line_pairs, ulong limit, INDEX y_step, INDEX source_step, INDEX count, uint factor, int shift, places lines)
{
    const INDEX item = (INDEX)get_global_id(0);
    const INDEX place = count == 1 ? item : sizeof(INDEX) > sizeof(int) ? item / count : (INDEX)(mul_hi((uint)item, factor) >> shift), line = item - place * count;
    INDEX at[2];
    if (place >= length)
        return;
    __global const pair *pairs = (__global const pair *)(scratch + pairs_first) + (long)line * line_pairs;
    ulong key = pairs[place].key;
    if (key >= limit || (place > 0 && pairs[place - 1].key == key))
        return;
    locate(&lines, line, 2, at);
    const long to = y_first + at[0] + (INDEX)key * y_step, from = source_first + at[1];
    C sum = GET(T_Y, y, to);
    for (INDEX i = place; i < length && pairs[i].key == key; i++)
        sum += GET(T_S, source, from + (INDEX)pairs[i].index * source_step);
    PUT(T_Y, y, to, sum);
}
