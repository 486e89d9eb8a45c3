/* transpose.cl: copies bits between layouts that are contiguous along different axes. A tile of SIDE by SIDE is read
 * along the source's contiguous axis and written along the target's, through local memory, so that both accesses
 * coalesce. GROUP work-items share it. */

/* The target is contiguous along `width`, its rows along `height`; the source the other way round. `others`: the
 * remaining axes, of target and source. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
transpose(indexer others, __global BITS *to, long to_first, __global const BITS *from, long from_first, int width,
          int height, int across, int down, int to_step, int from_step)
{
    __local BITS tile[SIDE][SIDE + 1]; /* padded, so that a column spans different banks */
    const int me = (int)get_local_id(0), own = me % SIDE, first = me / SIDE;
    const int group = (int)get_group_id(0), strip = group / across, which = strip / down;
    const int left = (group - strip * across) * SIDE, top = (strip - which * down) * SIDE;
    INDEX at[2];
    locate(&others, which, 2, at);
    const __global BITS *source = from + from_first + at[1] + left * from_step + top;
    __global BITS *target = to + to_first + at[0] + top * to_step + left;
#pragma unroll
    for (int line = first; line < SIDE; line += GROUP / SIDE)
        if (left + line < width && top + own < height)
            tile[line][own] = source[line * from_step + own];
    /* the tile is complete; it is read transposed */
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int line = first; line < SIDE; line += GROUP / SIDE)
        if (top + line < height && left + own < width)
            target[line * to_step + own] = tile[own][line];
}
