/* gemm_tiled.cl: matrix products on GPUs: a group makes a tile of the result, SIDE_M by SIDE_N, each work-item TILE_M
 * by TILE_N of it in registers. Both operands go through the group's memory, DEPTH terms at a time, straight from where
 * they lie, whatever their strides and dtypes: there are two stages, and while one is multiplied the next terms are
 * fetched into registers and laid into the other. The terms of an element are added in order, whatever the tile.
 *
 * Options: gemm.cl's; T_A and T_B, the dtypes of the operands; ACROSS and DOWN, work-items of a group; TILE_M and
 * TILE_N, multiples of 4; DEPTH; FORM_A and FORM_B, below; C_IN_FOURS where c is made of whole fours. */
#include "backends/opencl/common/vec4.cl"
#include "backends/opencl/matmul/gemm.cl"

/* How an operand lies: in any way, or in whole fours of terms or of lines (rows of a, columns of b). */
#define ANY 0
#define OF_TERMS 1
#define OF_LINES 2

#define FOUR JOIN(REAL, 4)
#define GROUP (ACROSS * DOWN)
#define SIDE_M (DOWN * TILE_M)
#define SIDE_N (ACROSS * TILE_N)
#define LINE_M (SIDE_M / 4 + 1) /* fours from term to term: not all on one bank */
#define LINE_N (SIDE_N / 4 + 1)
#define FOURS(side) ((side)*DEPTH / GROUP / 4) /* that a work-item fetches */
#ifdef IS_CPU                                  /* where unrolled loops take long to compile */
#define EACH(i, count) for (int i = 0; i < (count); i++)
#else
#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)
#endif

/* Line and term of the first element of a work-item's i-th four: neighbours fetch what lies side by side. */
#define LINE_OF(i, side, along) ((along) ? (item + (i)*GROUP) / (DEPTH / 4) : (item + (i)*GROUP) % ((side) / 4) * 4)
#define TERM_OF(i, side, along) ((along) ? (item + (i)*GROUP) % (DEPTH / 4) * 4 : (item + (i)*GROUP) / ((side) / 4))

/* Four neighbours of an operand, `step` apart, of which `count` are there; 0 outside. */
#define FETCH(name, T, FORM) \
    FOUR name(const __global T *x, long step, int count) \
    { \
        FOUR four = 0; \
        if (FORM != ANY) { \
            if (count > 0) \
                four = LOAD_4(T, x, 0); \
            return four; \
        } \
        if (count > 0) \
            four.x = LOAD(T, x, 0); \
        if (count > 1) \
            four.y = LOAD(T, x, step); \
        if (count > 2) \
            four.z = LOAD(T, x, 2 * step); \
        if (count > 3) \
            four.w = LOAD(T, x, 3 * step); \
        return four; \
    }
FETCH(fetch_a, T_A, FORM_A)
FETCH(fetch_b, T_B, FORM_B)

/* How many of a four from (line, term) on are there. */
#define THERE(line, lines, term, terms, along) \
    ((line) < (lines) && (term) < (terms) ? ((along) ? (terms) - (term) : (lines) - (line)) : 0)

/* A four that was fetched, into its stage: (terms, lines). */
void lay(__local FOUR *stage, int line_fours, int line, int term, bool along, FOUR four)
{
    if (along) {
        __local REAL *to = (__local REAL *)(stage + term * line_fours) + line;
        to[0] = four.x, to[4 * line_fours] = four.y, to[8 * line_fours] = four.z, to[12 * line_fours] = four.w;
    } else {
        stage[term * line_fours + line / 4] = four;
    }
}

/* An item has four neighbouring rows (columns) of each `items` · 4. */
#define PLACE(own, i, items) ((i) / 4 * ((items)*4) + (own)*4 + (i) % 4)

/* The terms of a stage, added to an item's sums. */
void multiply(const __local FOUR *a, const __local FOUR *b, int down, int across, FOUR sum[TILE_M][TILE_N / 4])
{
#ifndef IS_CPU
#pragma unroll 2
#endif
    for (int d = 0; d < DEPTH; d++) {
        REAL left[TILE_M];
        FOUR right[TILE_N / 4];
        EACH(i, TILE_M / 4) vstore4(a[d * LINE_M + i * DOWN + down], i, left);
        EACH(j, TILE_N / 4) right[j] = b[d * LINE_N + j * ACROSS + across];
        EACH(i, TILE_M)
        EACH(j, TILE_N / 4) sum[i][j] += left[i] * right[j];
    }
}

/* Four neighbours of a row of the result. */
void finish_four(__global void *c, long c_place, const __global void *bias, long bias_place, const sizes *s, long row,
                 long column, FOUR sum, REAL alpha, REAL beta)
{
#ifdef C_IN_FOURS
    const long at = c_place + row * s->c_row_stride + column,
               bias_at = bias_place + row * s->bias_row_stride + column * s->bias_col_stride;
    sum *= alpha;
    if (beta != 0)
        sum += beta * LOAD_4(T_C, c, at);
    if (bias)
        sum += (FOUR)(LOAD(T_BIAS, bias, bias_at), LOAD(T_BIAS, bias, bias_at + s->bias_col_stride),
                      LOAD(T_BIAS, bias, bias_at + 2 * s->bias_col_stride),
                      LOAD(T_BIAS, bias, bias_at + 3 * s->bias_col_stride));
    STORE_4(T_C, c, at, sum);
#else
    REAL line[4];
    vstore4(sum, 0, line);
    EACH(e, 4)
    if (column + e < s->n)
        finish(c, c_place, bias, bias_place, s, row, column + e, line[e], alpha, beta);
#endif
}

/* A group a tile: (tiles across · ACROSS, tiles down · DOWN, batches · splits). */
__attribute__((reqd_work_group_size(ACROSS, DOWN, 1))) __kernel void
tile(const __global void *a, long a_place, const __global void *b, long b_place, __global void *c, long c_place,
     const __global void *bias, long bias_place, nest batches, sizes s, real alpha, real beta)
{
    __local FOUR stage_a[2][DEPTH * LINE_M], stage_b[2][DEPTH * LINE_N];
    const int across = (int)get_local_id(0), down = (int)get_local_id(1), item = down * ACROSS + across;
    const long row = get_group_id(1) * SIDE_M, column = get_group_id(0) * SIDE_N;
    const long batch = s.first + get_global_id(2) / s.splits, begin = get_global_id(2) % s.splits * s.part,
               end = min(begin + s.part, s.k);
    const bool a_along = FORM_A == ANY ? s.a_col_stride == 1 : FORM_A == OF_TERMS,
               b_along = FORM_B == ANY ? s.b_row_stride == 1 : FORM_B == OF_TERMS;
    const int rows = (int)min((long)SIDE_M, s.m - row), columns = (int)min((long)SIDE_N, s.n - column);
    const __global T_A *from_a[FOURS(SIDE_M)];
    const __global T_B *from_b[FOURS(SIDE_N)];
    EACH(i, FOURS(SIDE_M))
    from_a[i] = (const __global T_A *)a + a_place + nest_at(&batches, batch, 1) +
                (row + LINE_OF(i, SIDE_M, a_along)) * s.a_row_stride +
                (begin + TERM_OF(i, SIDE_M, a_along)) * s.a_col_stride;
    EACH(i, FOURS(SIDE_N))
    from_b[i] = (const __global T_B *)b + b_place + nest_at(&batches, batch, 2) +
                (column + LINE_OF(i, SIDE_N, b_along)) * s.b_col_stride +
                (begin + TERM_OF(i, SIDE_N, b_along)) * s.b_row_stride;
    FOUR next_a[FOURS(SIDE_M)], next_b[FOURS(SIDE_N)], sum[TILE_M][TILE_N / 4];
    EACH(i, TILE_M)
    EACH(j, TILE_N / 4) sum[i][j] = 0;

/* The next DEPTH terms, of which `left` are there. */
#define FETCH_NEXT(left) \
    EACH(i, FOURS(SIDE_M)) \
    { \
        next_a[i] = fetch_a(from_a[i], a_along ? s.a_col_stride : s.a_row_stride, \
                            THERE(LINE_OF(i, SIDE_M, a_along), rows, TERM_OF(i, SIDE_M, a_along), left, a_along)); \
        from_a[i] += DEPTH * s.a_col_stride; \
    } \
    EACH(i, FOURS(SIDE_N)) \
    { \
        next_b[i] = fetch_b(from_b[i], b_along ? s.b_row_stride : s.b_col_stride, \
                            THERE(LINE_OF(i, SIDE_N, b_along), columns, TERM_OF(i, SIDE_N, b_along), left, b_along)); \
        from_b[i] += DEPTH * s.b_row_stride; \
    }
#define LAY(turn) \
    EACH(i, FOURS(SIDE_M)) \
    lay(stage_a[turn], LINE_M, LINE_OF(i, SIDE_M, a_along), TERM_OF(i, SIDE_M, a_along), a_along, next_a[i]); \
    EACH(i, FOURS(SIDE_N)) \
    lay(stage_b[turn], LINE_N, LINE_OF(i, SIDE_N, b_along), TERM_OF(i, SIDE_N, b_along), b_along, next_b[i]);

    int left = (int)(end - begin), turn = 0;
    FETCH_NEXT(left)
    LAY(0)
    barrier(CLK_LOCAL_MEM_FENCE);
    for (; left > 0; left -= DEPTH) {
        if (left > DEPTH) {
            FETCH_NEXT(left - DEPTH)
        }
        multiply(stage_a[turn], stage_b[turn], down, across, sum);
        turn ^= 1;
        if (left > DEPTH) {
            LAY(turn)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    bias_place += nest_at(&batches, batch, 3);
    c_place += s.splits > 1 ? get_global_id(2) * s.m * s.n : nest_at(&batches, batch, 0);
    EACH(i, TILE_M)
    EACH(j, TILE_N / 4)
    {
        const long at = row + PLACE(down, i, DOWN), from = column + PLACE(across, 4 * j, ACROSS);
        if (at < s.m && from < s.n)
            finish_four(c, c_place, bias, bias_place, &s, at, from, sum[i][j], (REAL)alpha, (REAL)beta);
    }
}
