/* tiles.cl: matrix products on GPUs: a group makes a tile of the result, SIDE_M by SIDE_N, each work-item TILE_M by TILE_N of it in registers. Both operands go
 * through the group's memory, DEPTH terms at a time, straight from where they lie, whatever their strides and dtypes; what comes next is fetched into
 * registers while the present terms are multiplied.
 *
 * Options: product.cl's; T_A and T_B, the dtypes of the operands; ACROSS, work-items of a group in both directions; TILE_M and TILE_N, multiples of 4; DEPTH. */
#include "product.cl"

#define VECTOR JOIN(REAL, 4)
#define GROUP (ACROSS * ACROSS)
#define SIDE_M (ACROSS * TILE_M)
#define SIDE_N (ACROSS * TILE_N)
#define LINE_M (SIDE_M + 4) /* elements from term to term: whole vectors, and not all on one bank */
#define LINE_N (SIDE_N + 4)
#define FETCH_M (SIDE_M * DEPTH / GROUP)
#define FETCH_N (SIDE_N * DEPTH / GROUP)
#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < count; i++)

/* Which line and which term the i-th element is that a work-item fetches: neighbours fetch what lies side by side. */
#define LINE_OF(i, side, along) ((along) ? (item + i * GROUP) / DEPTH : (item + i * GROUP) % side)
#define TERM_OF(i, side, along) ((along) ? (item + i * GROUP) % DEPTH : (item + i * GROUP) / side)

/* An item has four neighbouring rows (columns) of each ACROSS · 4. */
#define PLACE(own, i) ((i) / 4 * (ACROSS * 4) + (own) * 4 + (i) % 4)

/* The terms of the group's memory, added to an item's sums. */
void multiply(const __local REAL *a, const __local REAL *b, int down, int across, VECTOR sum[TILE_M][TILE_N / 4])
{
    for (int d = 0; d < DEPTH; d++) {
        REAL left[TILE_M];
        VECTOR right[TILE_N / 4];
        EACH(i, TILE_M / 4) vstore4(vload4(0, a + d * LINE_M + PLACE(down, 4 * i)), i, left);
        EACH(j, TILE_N / 4) right[j] = vload4(0, b + d * LINE_N + PLACE(across, 4 * j));
        EACH(i, TILE_M)
        EACH(j, TILE_N / 4) sum[i][j] += left[i] * right[j];
    }
}

/* A group a tile: (tiles across · ACROSS, tiles down · ACROSS, batches · splits). */
__attribute__((reqd_work_group_size(ACROSS, ACROSS, 1))) __kernel void tile(const __global void *a, long a_place, const __global void *b, long b_place,
                                                                            __global void *c, long c_place, const __global void *bias, long bias_place,
                                                                            nest batches, sizes s, real alpha, real beta)
{
    __local REAL stage_a[DEPTH * LINE_M], stage_b[DEPTH * LINE_N];
    const int across = (int)get_local_id(0), down = (int)get_local_id(1), item = down * ACROSS + across;
    const long row = get_group_id(1) * SIDE_M, column = get_group_id(0) * SIDE_N;
    const long batch = s.first + get_global_id(2) / s.splits, begin = get_global_id(2) % s.splits * s.part, end = min(begin + s.part, s.k);
    const bool a_along = s.a_across == 1, b_along = s.b_down == 1;
    a_place += nest_at(&batches, batch, 1);
    b_place += nest_at(&batches, batch, 2);
    REAL next_a[FETCH_M], next_b[FETCH_N];
    VECTOR sum[TILE_M][TILE_N / 4];
    EACH(i, TILE_M)
    EACH(j, TILE_N / 4) sum[i][j] = 0;
    for (long k = begin - DEPTH; k < end; k += DEPTH) {
        if (k >= begin) {
            barrier(CLK_LOCAL_MEM_FENCE);
            EACH(i, FETCH_M) stage_a[TERM_OF(i, SIDE_M, a_along) * LINE_M + LINE_OF(i, SIDE_M, a_along)] = next_a[i];
            EACH(i, FETCH_N) stage_b[TERM_OF(i, SIDE_N, b_along) * LINE_N + LINE_OF(i, SIDE_N, b_along)] = next_b[i];
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        EACH(i, FETCH_M)
        {
            long line = row + LINE_OF(i, SIDE_M, a_along), term = k + DEPTH + TERM_OF(i, SIDE_M, a_along);
            next_a[i] = line < s.m && term < end ? (REAL)LOAD(T_A, a, a_place + line * s.a_down + term * s.a_across) : 0;
        }
        EACH(i, FETCH_N)
        {
            long line = column + LINE_OF(i, SIDE_N, b_along), term = k + DEPTH + TERM_OF(i, SIDE_N, b_along);
            next_b[i] = line < s.n && term < end ? (REAL)LOAD(T_B, b, b_place + term * s.b_down + line * s.b_across) : 0;
        }
        if (k >= begin)
            multiply(stage_a, stage_b, down, across, sum);
    }
    bias_place += nest_at(&batches, batch, 3);
    c_place += s.splits > 1 ? get_global_id(2) * s.m * s.n : nest_at(&batches, batch, 0);
    EACH(i, TILE_M)
    EACH(j, TILE_N / 4)
    {
        REAL line[4];
        vstore4(sum[i][j], 0, line);
        EACH(e, 4)
        if (row + PLACE(down, i) < s.m && column + PLACE(across, 4 * j + e) < s.n)
            finish(c, c_place, bias, bias_place, &s, row + PLACE(down, i), column + PLACE(across, 4 * j + e), line[e], (REAL)alpha, (REAL)beta);
    }
}
