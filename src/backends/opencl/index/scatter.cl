/* scatter.cl: sums at indices. Scratch has pairs of index and source position, sorted by index (sort.cl); pairs of one
 * index are a run.
 *
 * T_Y and T_S are dtypes of y and source; sums run in C and are rounded once. IS_FRESH: y has no old values. Without
 * PIECE the first pair of a run adds up all of it, in the order of the source. With PIECE a work-item has that many
 * pairs: runs within them are added directly; of longer ones the partial sums go to scratch and are added in order by
 * `join_pieces`, so that a frequent index does not keep one work-item busy alone. */
#include "backends/opencl/common/element.cl"

/* As in sort.cl. */
typedef struct pair {
    ulong key;
    long index;
} pair;

/* Operands of `lines`: y and source across the axis. A work-item has a pair, or a piece, of a line; adjacent ones have
 * adjacent lines. `line_pairs`: pairs per line; 0 where all lines share them. */
#define PARAMETERS \
    __global void *y, long y_first, __global const void *source, long source_first, __global char *scratch, \
        long pairs_first, long parts_first, INDEX length, INDEX line_pairs, ulong limit, INDEX y_step, \
        INDEX source_step, INDEX count, uint factor, int shift, indexer lines

#ifdef IS_FRESH
#define OLD(to) (C)0
#else
#define OLD(to) GET(T_Y, y, to)
#endif

/* item / count by multiplication, in 32 bits. */
static INDEX divided(INDEX item, INDEX count, uint factor, int shift)
{
    return count == 1                    ? item
           : sizeof(INDEX) > sizeof(int) ? item / count
                                         : (INDEX)(mul_hi((uint)item, factor) >> shift);
}

#ifndef PIECE
/* One pair of one line per work-item; the first of a run adds all of it. */
__kernel void add_sorted(PARAMETERS)
{
    const INDEX item = (INDEX)get_global_id(0), position = divided(item, count, factor, shift),
                line = item - position * count;
    INDEX at[2];
    if (position >= length)
        return;
    __global const pair *pairs = (__global const pair *)(scratch + pairs_first) + (long)line * line_pairs;
    ulong key = pairs[position].key;
    if (key >= limit || (position > 0 && pairs[position - 1].key == key))
        return;
    locate(&lines, line, 2, at);
    const long to = y_first + at[0] + (INDEX)key * y_step, from = source_first + at[1];
    C sum = OLD(to);
    for (INDEX i = position; i < length && pairs[i].key == key; i++)
        sum += GET(T_S, source, from + (INDEX)pairs[i].index * source_step);
    PUT(T_Y, y, to, sum);
}
#else
#define AHEAD 8 /* loads in flight */

/* Partial sums of a piece, two per line: of its first run if that began before, and of its last if that continues. */
static __global C *part_of(__global char *scratch, long parts_first, long piece, int which, INDEX count, INDEX line)
{
    return (__global C *)(scratch + parts_first) + (piece * 2 + which) * count + line;
}

/* One piece of one line per work-item. AHEAD elements are loaded before they are added. */
__kernel void add_pieces(PARAMETERS)
{
    const INDEX item = (INDEX)get_global_id(0), piece = divided(item, count, factor, shift),
                line = item - piece * count, begin = piece * PIECE;
    INDEX at[2];
    if (begin >= length)
        return;
    __global const pair *pairs = (__global const pair *)(scratch + pairs_first) + (long)line * line_pairs;
    const INDEX end = min(begin + (INDEX)PIECE, length);
    locate(&lines, line, 2, at);
    const long to = y_first + at[0], from = source_first + at[1];
    ulong key = pairs[begin].key;
    bool began_before = begin > 0 && pairs[begin - 1].key == key;
    C sum = began_before || key >= limit ? (C)0 : OLD(to + (INDEX)key * y_step);
    for (INDEX i = begin; i < end; i += AHEAD) {
        pair own[AHEAD];
        C value[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            own[k] = pairs[min(i + k, end - 1)];
            value[k] = GET(T_S, source, from + (INDEX)own[k].index * source_step);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (i + k >= end)
                break;
            if (own[k].key != key) {
                if (began_before)
                    *part_of(scratch, parts_first, piece, 0, count, line) = sum;
                else
                    PUT(T_Y, y, to + (INDEX)key * y_step, sum); /* invalid indices are sorted last */
                key = own[k].key;
                began_before = false;
                sum = key >= limit ? (C)0 : OLD(to + (INDEX)key * y_step);
            }
            sum += value[k];
        }
    }
    if (began_before || (end < length && pairs[end].key == key))
        *part_of(scratch, parts_first, piece, began_before ? 0 : 1, count, line) = sum;
    else if (key < limit)
        PUT(T_Y, y, to + (INDEX)key * y_step, sum);
}

/* For each piece whose last run begins there and continues: adds the parts of the following pieces. */
__kernel void join_pieces(PARAMETERS)
{
    const INDEX item = (INDEX)get_global_id(0), piece = divided(item, count, factor, shift),
                line = item - piece * count, begin = piece * PIECE, end = begin + PIECE;
    INDEX at[2];
    if (end >= length)
        return;
    __global const pair *pairs = (__global const pair *)(scratch + pairs_first) + (long)line * line_pairs;
    const ulong key = pairs[end - 1].key;
    if (key >= limit || pairs[end].key != key || (begin > 0 && pairs[begin - 1].key == key))
        return;
    C sum = *part_of(scratch, parts_first, piece, 1, count, line);
    /* following pieces of the same index, AHEAD at a time */
    bool goes_on = true;
    for (INDEX next = piece + 1; goes_on; next += AHEAD) {
        C part[AHEAD];
        bool is_same[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const INDEX first = (next + k) * PIECE;
            is_same[k] = first < length && pairs[first].key == key;
            part[k] = is_same[k] ? *part_of(scratch, parts_first, next + k, 0, count, line) : (C)0;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            sum = is_same[k] ? sum + part[k] : sum;
        goes_on = is_same[AHEAD - 1];
    }
    locate(&lines, line, 2, at);
    PUT(T_Y, y, y_first + at[0] + (INDEX)key * y_step, sum);
}
#endif
