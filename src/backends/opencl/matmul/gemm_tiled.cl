/* gemm_tiled.cl: GEMM on GPUs: a work-group computes a tile of SIDE_M by SIDE_N, each work-item TILE_M by TILE_N of it
 * in registers.
 *
 * Both operands go through local memory, DEPTH terms at a time, straight from global memory with any strides and
 * dtypes. There are two stages: while one is multiplied, the next terms are fetched into registers and then stored to
 * the other. The terms of an element are added in order whatever the tile.
 *
 * Options: those of gemm.cl; T_A and T_B, dtypes of the operands; ACROSS and DOWN, work-items of a work-group; TILE_M
 * and TILE_N, multiples of 4; DEPTH; LAYOUT_A and LAYOUT_B, below; C_IS_VEC4 where rows of c are whole vec4s. */
#include "backends/opencl/common/vec4.cl"
#include "backends/opencl/matmul/gemm.cl"

/* Layout of an operand: any, or vec4s along terms, or vec4s along lines (rows of a, columns of b). */
#define ANY 0
#define OF_TERMS 1
#define OF_LINES 2

#define REAL4 JOIN(REAL, 4)
#define GROUP (ACROSS * DOWN)
#define SIDE_M (DOWN * TILE_M)
#define SIDE_N (ACROSS * TILE_N)
#define LINE_M (SIDE_M / 4 + 1) /* vec4s per term, one more than needed: terms start in different banks */
#define LINE_N (SIDE_N / 4 + 1)
#define VECS(side) ((side)*DEPTH / GROUP / 4) /* per work-item and stage */
#ifdef IS_CPU                                 /* PoCL takes minutes over unrolled loops */
#define EACH(i, count) for (int i = 0; i < (count); i++)
#else
#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)
#endif

/* Line and term of the first element of a work-item's i-th vec4: adjacent work-items fetch adjacent memory. */
#define LINE_OF(i, side, along) ((along) ? (item + (i)*GROUP) / (DEPTH / 4) : (item + (i)*GROUP) % ((side) / 4) * 4)
#define TERM_OF(i, side, along) ((along) ? (item + (i)*GROUP) % (DEPTH / 4) * 4 : (item + (i)*GROUP) / ((side) / 4))

/* Four elements of an operand, `step` apart, of which the first `count` exist; the others are 0. */
#define FETCH(name, T, LAYOUT) \
    REAL4 name(const __global T *x, long step, int count) \
    { \
        REAL4 vec = 0; \
        if (LAYOUT != ANY) { \
            if (count > 0) \
                vec = LOAD_4(T, x, 0); \
            return vec; \
        } \
        if (count > 0) \
            vec.x = LOAD(T, x, 0); \
        if (count > 1) \
            vec.y = LOAD(T, x, step); \
        if (count > 2) \
            vec.z = LOAD(T, x, 2 * step); \
        if (count > 3) \
            vec.w = LOAD(T, x, 3 * step); \
        return vec; \
    }
FETCH(fetch_a, T_A, LAYOUT_A)
FETCH(fetch_b, T_B, LAYOUT_B)

/* Number of existing elements of a vec4 that starts at (line, term). */
#define VALID(line, lines, term, terms, along) \
    ((line) < (lines) && (term) < (terms) ? ((along) ? (terms) - (term) : (lines) - (line)) : 0)

/* Stores a fetched vec4 to its stage (terms, lines), transposing where it runs along terms. */
void store_stage(__local REAL4 *stage, int line_vecs, int line, int term, bool along, REAL4 vec)
{
    if (along) {
        __local REAL *to = (__local REAL *)(stage + term * line_vecs) + line;
        to[0] = vec.x, to[4 * line_vecs] = vec.y, to[8 * line_vecs] = vec.z, to[12 * line_vecs] = vec.w;
    } else {
        stage[term * line_vecs + line / 4] = vec;
    }
}

/* Row (column) i of a work-item: it has four adjacent ones of every `items` · 4, so that stores coalesce. */
#define TILE_INDEX(own, i, items) ((i) / 4 * ((items)*4) + (own)*4 + (i) % 4)

/* Multiplies a stage into a work-item's sums: 2 · TILE_M · TILE_N · DEPTH operations on (TILE_M + TILE_N) · DEPTH
 * loads. */
void multiply(const __local REAL4 *a, const __local REAL4 *b, int down, int across, REAL4 sum[TILE_M][TILE_N / 4])
{
#ifndef IS_CPU
#pragma unroll 2
#endif
    for (int d = 0; d < DEPTH; d++) {
        REAL left[TILE_M];
        REAL4 right[TILE_N / 4];
        EACH(i, TILE_M / 4) vstore4(a[d * LINE_M + i * DOWN + down], i, left);
        EACH(j, TILE_N / 4) right[j] = b[d * LINE_N + j * ACROSS + across];
        EACH(i, TILE_M)
        EACH(j, TILE_N / 4) sum[i][j] += left[i] * right[j];
    }
}

/* Writes four adjacent elements of a row of c. */
void finish_vec4(__global void *c, long c_offset, const __global void *bias, long bias_offset, const sizes *s, long row,
                 long column, REAL4 sum, REAL alpha, REAL beta)
{
#ifdef C_IS_VEC4
    const long at = c_offset + row * s->c_row_stride + column,
               bias_at = bias_offset + row * s->bias_row_stride + column * s->bias_col_stride;
    sum *= alpha;
    if (beta != 0)
        sum += beta * LOAD_4(T_C, c, at);
    if (bias)
        sum += (REAL4)(LOAD(T_BIAS, bias, bias_at), LOAD(T_BIAS, bias, bias_at + s->bias_col_stride),
                       LOAD(T_BIAS, bias, bias_at + 2 * s->bias_col_stride),
                       LOAD(T_BIAS, bias, bias_at + 3 * s->bias_col_stride));
    STORE_4(T_C, c, at, sum);
#else
    REAL line[4];
    vstore4(sum, 0, line);
    EACH(e, 4)
    if (column + e < s->n)
        finish(c, c_offset, bias, bias_offset, s, row, column + e, line[e], alpha, beta);
#endif
}

/* Grid (tiles across · ACROSS, tiles down · DOWN, batches · splits). */
__attribute__((reqd_work_group_size(ACROSS, DOWN, 1))) __kernel void
tile(const __global void *a, long a_offset, const __global void *b, long b_offset, __global void *c, long c_offset,
     const __global void *bias, long bias_offset, nest batches, sizes s, real alpha, real beta)
{
    __local REAL4 stage_a[2][DEPTH * LINE_M], stage_b[2][DEPTH * LINE_N];
    const int across = (int)get_local_id(0), down = (int)get_local_id(1), item = down * ACROSS + across;
    const long row = get_group_id(1) * SIDE_M, column = get_group_id(0) * SIDE_N;
    const long batch = s.first + get_global_id(2) / s.splits, begin = get_global_id(2) % s.splits * s.part,
               end = min(begin + s.part, s.k);
    const bool a_along = LAYOUT_A == ANY ? s.a_col_stride == 1 : LAYOUT_A == OF_TERMS,
               b_along = LAYOUT_B == ANY ? s.b_row_stride == 1 : LAYOUT_B == OF_TERMS;
    const int rows = (int)min((long)SIDE_M, s.m - row), columns = (int)min((long)SIDE_N, s.n - column);
    const __global T_A *from_a[VECS(SIDE_M)];
    const __global T_B *from_b[VECS(SIDE_N)];
    EACH(i, VECS(SIDE_M))
    from_a[i] = (const __global T_A *)a + a_offset + nest_at(&batches, batch, 1) +
                (row + LINE_OF(i, SIDE_M, a_along)) * s.a_row_stride +
                (begin + TERM_OF(i, SIDE_M, a_along)) * s.a_col_stride;
    EACH(i, VECS(SIDE_N))
    from_b[i] = (const __global T_B *)b + b_offset + nest_at(&batches, batch, 2) +
                (column + LINE_OF(i, SIDE_N, b_along)) * s.b_col_stride +
                (begin + TERM_OF(i, SIDE_N, b_along)) * s.b_row_stride;
    REAL4 next_a[VECS(SIDE_M)], next_b[VECS(SIDE_N)], sum[TILE_M][TILE_N / 4];
    EACH(i, TILE_M)
    EACH(j, TILE_N / 4) sum[i][j] = 0;

/* Fetches the next DEPTH terms, of which `left` exist, into registers. */
#define FETCH_NEXT(left) \
    EACH(i, VECS(SIDE_M)) \
    { \
        next_a[i] = fetch_a(from_a[i], a_along ? s.a_col_stride : s.a_row_stride, \
                            VALID(LINE_OF(i, SIDE_M, a_along), rows, TERM_OF(i, SIDE_M, a_along), left, a_along)); \
        from_a[i] += DEPTH * s.a_col_stride; \
    } \
    EACH(i, VECS(SIDE_N)) \
    { \
        next_b[i] = fetch_b(from_b[i], b_along ? s.b_row_stride : s.b_col_stride, \
                            VALID(LINE_OF(i, SIDE_N, b_along), columns, TERM_OF(i, SIDE_N, b_along), left, b_along)); \
        from_b[i] += DEPTH * s.b_row_stride; \
    }
#define STORE_STAGE(slot) \
    EACH(i, VECS(SIDE_M)) \
    store_stage(stage_a[slot], LINE_M, LINE_OF(i, SIDE_M, a_along), TERM_OF(i, SIDE_M, a_along), a_along, next_a[i]); \
    EACH(i, VECS(SIDE_N)) \
    store_stage(stage_b[slot], LINE_N, LINE_OF(i, SIDE_N, b_along), TERM_OF(i, SIDE_N, b_along), b_along, next_b[i]);

    int left = (int)(end - begin), slot = 0;
    FETCH_NEXT(left)
    STORE_STAGE(0)
    barrier(CLK_LOCAL_MEM_FENCE);
    for (; left > 0; left -= DEPTH) {
        if (left > DEPTH) {
            FETCH_NEXT(left - DEPTH)
        }
        multiply(stage_a[slot], stage_b[slot], down, across, sum);
        slot ^= 1;
        if (left > DEPTH) {
            STORE_STAGE(slot)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    bias_offset += nest_at(&batches, batch, 3);
    c_offset += s.splits > 1 ? get_global_id(2) * s.m * s.n : nest_at(&batches, batch, 0);
    EACH(i, TILE_M)
    EACH(j, TILE_N / 4)
    {
        const long at = row + TILE_INDEX(down, i, DOWN), from = column + TILE_INDEX(across, 4 * j, ACROSS);
        if (at < s.m && from < s.n)
            finish_vec4(c, c_offset, bias, bias_offset, &s, at, from, sum[i][j], (REAL)alpha, (REAL)beta);
    }
}
