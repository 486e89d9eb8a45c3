/* scatter.cl: sums at indices. Pairs of index and place in the source, sorted by index (sort.cl), stand in scratch;
 * pairs of the same index are a stretch.
 *
 * T_Y and T_S are the dtypes of y and the source; sums run in C and are rounded once. IS_FRESH: y has no old values.
 * Without PIECE the first of a stretch adds up all of it, the others do nothing: the order of the source. With PIECE a
 * work-item has that many pairs: stretches that lie within them are added as they come; of one that goes on the sums of
 * its pieces are kept in scratch, and added up in order by `join_pieces`: a frequent index would keep one work-item
 * busy after all others have ended. */
#include "backends/opencl/common/element.cl"

typedef struct pair {
    ulong key;
    long index;
} pair;

/* Operands of `lines`: y and source across the axis. A work-item has a pair, or a piece, and a line; neighbours have
 * neighbouring lines. `line_pairs`: from one line's pairs to the next; 0 where all lines have the same. */
#define PARAMETERS \
    __global void *y, long y_first, __global const void *source, long source_first, __global char *scratch, \
        long pairs_first, long parts_first, INDEX length, INDEX line_pairs, ulong limit, INDEX y_step, \
        INDEX source_step, INDEX count, uint factor, int shift, places lines

#ifdef IS_FRESH
#define OLD(to) (C)0
#else
#define OLD(to) GET(T_Y, y, to)
#endif

static INDEX divided(INDEX item, INDEX count, uint factor, int shift)
{
    return count == 1                    ? item
           : sizeof(INDEX) > sizeof(int) ? item / count
                                         : (INDEX)(mul_hi((uint)item, factor) >> shift);
}

#ifndef PIECE
__kernel void add_sorted(PARAMETERS)
{
    const INDEX item = (INDEX)get_global_id(0), place = divided(item, count, factor, shift),
                line = item - place * count;
    INDEX at[2];
    if (place >= length)
        return;
    __global const pair *pairs = (__global const pair *)(scratch + pairs_first) + (long)line * line_pairs;
    ulong key = pairs[place].key;
    if (key >= limit || (place > 0 && pairs[place - 1].key == key))
        return;
    locate(&lines, line, 2, at);
    const long to = y_first + at[0] + (INDEX)key * y_step, from = source_first + at[1];
    C sum = OLD(to);
    for (INDEX i = place; i < length && pairs[i].key == key; i++)
        sum += GET(T_S, source, from + (INDEX)pairs[i].index * source_step);
    PUT(T_Y, y, to, sum);
}
#else
#define AHEAD 8 /* elements that are under way at once */

/* Parts of a piece, two numbers for each line: the sum of its first stretch where that began before, and of its last
 * where that goes on. */
static __global C *part_of(__global char *scratch, long parts_first, long piece, int which, INDEX count, INDEX line)
{
    return (__global C *)(scratch + parts_first) + (piece * 2 + which) * count + line;
}

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
                    PUT(T_Y, y, to + (INDEX)key * y_step, sum); /* indices outside the axis stand behind all others */
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

/* For each piece whose last stretch begins there and goes on: what the pieces behind it have of the stretch. */
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
