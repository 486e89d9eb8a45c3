/* gemm.h: the blocked matrix product for one compute type. matmul.c includes it twice, with
 *
 *   T          float or double
 *   COMPUTE    COMPUTE_F32 or COMPUTE_F64, and NATIVE its dtype
 *   SQUARE     lines that turn_square() takes
 *   NAMED(x)   the name x has for this type
 *
 * Both operands are first packed into panels: MR rows of a, or NR columns of b, side by side for every k, converted to T and filled up with
 * zeros at the edge. So dtypes, strides and transposes are dealt with once for each element, and the innermost loop reads memory in
 * order. Rows of a that lie along memory in T already are read where they are, if there are few columns to read them for. The output is cut into tiles; a tile runs over all of k in blocks that keep a panel of b in the first-level cache, with its sums
 * in a buffer of its own, and is scaled, added to what was there, given its bias and rounded once as it is stored. Which tiles there are
 * depends on the shape alone, and every sum runs over k in order: the bits do not depend on threads. */

#define LANES ((int)(VECTOR_BYTES / sizeof(T)))
#define NR (2 * LANES)
#define TILE_ROWS (20 * MR)
#define TILE_COLUMNS ((int)(1024 / sizeof(T)))
#if defined(__aarch64__)
#define K_BLOCK ((int)(2048 / sizeof(T))) /* first-level caches of 64 KiB */
#else
#define K_BLOCK ((int)(768 / sizeof(T)))
#endif
#define SMALL_K_BLOCK ((int)(768 / sizeof(T))) /* of products that lie on the stack */
#define SMALL_LINES 256 /* rows and columns together of a product that one thread packs by itself */

#include "backends/cpu/by_lane.h"
#include "backends/cpu/panels.h"

/* The sums have names of their own so that they stay in registers. */
#define SUMS(i, from, offset) NAMED(vector) l##i = {0}, r##i = {0};
#define ADD(i, from, offset) l##i += NAMED(load_vector)(c + i * ldc), r##i += NAMED(load_vector)(c + i * ldc + LANES);
#define STORE(i, from, offset) NAMED(store_vector)(c + i * ldc, l##i), NAMED(store_vector)(c + i * ldc + LANES, r##i);

/* c (MR, NR) = or += a panel (k, MR) times b panel (k, NR). */
static void NAMED(micro)(int64_t k, const T *restrict a, const T *restrict b, T *restrict c, int64_t ldc, bool first)
{
    EACH_ROW(SUMS)
    for (int64_t p = 0; p < k; p++) {
        NAMED(vector) left = NAMED(load_vector)(b), right = NAMED(load_vector)(b + LANES);
#if defined(__aarch64__)
        NAMED(LOAD_EIGHT)(a)
#define MULTIPLY(i, v, lane) NAMED(BY_LANE)(l##i, left, v, lane), NAMED(BY_LANE)(r##i, right, v, lane);
        NAMED(EACH_OF_EIGHT)(MULTIPLY)
#else
#define MULTIPLY(i, from, offset) l##i += left * a[i], r##i += right * a[i];
        EACH_ROW(MULTIPLY)
#endif
#undef MULTIPLY
        a += MR;
        b += NR;
    }
    if (!first) {
        EACH_ROW(ADD)
    }
    EACH_ROW(STORE)
}

/* The same for MR rows of a as they lie, `row` elements apart: the same sums in the same order. */
static void NAMED(micro_rows)(int64_t k, const T *restrict a, int64_t row, const T *restrict b, T *restrict c, int64_t ldc, bool first)
{
    const int64_t twice = 2 * row;
    const T *a3 = a + 3 * row, *a6 = MR > 6 ? a3 + 3 * row : a, *a9 = MR > 9 ? a6 + 3 * row : a;
    (void)a6, (void)a9; /* where a tile has fewer rows */
    EACH_ROW(SUMS)
    for (int64_t p = 0; p < k; p++) {
        NAMED(vector) left = NAMED(load_vector)(b), right = NAMED(load_vector)(b + LANES);
#define MULTIPLY(i, from, offset) l##i += left * from[p + (offset)], r##i += right * from[p + (offset)];
        EACH_ROW(MULTIPLY)
#undef MULTIPLY
        b += NR;
    }
    if (!first) {
        EACH_ROW(ADD)
    }
    EACH_ROW(STORE)
}
#undef SUMS
#undef ADD
#undef STORE

typedef struct NAMED(blocks) {
    const product *p;
    int64_t batch, batches;             /* the first batch, and how many are packed */
    int64_t row, rows, column, columns; /* the part of the output */
    int64_t row_panels, column_panels;
    int64_t rows_as_they_lie; /* panels, the first ones, whose rows are read where they are */
    int64_t tile_rows, tile_columns, tiles_down, tiles_across;
    T *a, *b; /* packed: (batches, panels, k, MR or NR) */
} NAMED(blocks);

/* Columns of b, k rows of them from `row` on, in panels. Where a panel is narrower than a cache line, a few rows are dealt out to all panels at a time: panel by
 * panel, every line and page of b would be touched again and again. */
static void NAMED(pack_columns)(const product *p, int64_t batch, int64_t row, int64_t k, int64_t column, int64_t columns, T *to)
{
    int64_t dealt = NR * sizeof(T) < 64 && p->b.across == 1 && p->b.dtype == NATIVE ? columns / NR * NR : 0;
    const T *from = (const T *)(const void *)element(p, &p->b, batch, row, column);
    for (int64_t begin = 0; dealt > 0 && begin < k; begin += DEALT_ROWS)
        for (int64_t j = 0; j < dealt; j += NR)
            for (int64_t i = begin; i < least(begin + DEALT_ROWS, k); i++)
                memcpy(to + j * k + i * NR, from + i * p->b.down + j, sizeof(T) * NR);
    for (int64_t j = dealt; j < columns; j += NR)
        NAMED(interleave)(element(p, &p->b, batch, row, column + j), p->b.dtype, p->b.across, p->b.down, (int)least(columns - j, NR), NR, k,
                          to + j * k);
}

static void NAMED(pack_panels)(int64_t begin, int64_t end, void *ctx)
{
    const NAMED(blocks) *s = ctx;
    const product *p = s->p;
    int64_t panels = s->row_panels - s->rows_as_they_lie + s->column_panels;
    for (int64_t count; begin < end; begin += count) {
        int64_t batch = begin / panels, at = begin % panels + s->rows_as_they_lie;
        count = 1;
        if (at < s->row_panels) {
            int64_t width = s->rows - at * MR < MR ? s->rows - at * MR : MR;
            NAMED(interleave)(element(p, &p->a, s->batch + batch, s->row + at * MR, 0), p->a.dtype, p->a.down, p->a.across, (int)width, MR, p->k,
                              s->a + (batch * s->row_panels + at) * MR * p->k);
        } else {
            at -= s->row_panels;
            count = least(end - begin, s->column_panels - at);
            NAMED(pack_columns)(p, s->batch + batch, 0, p->k, s->column + at * NR, least(s->columns - at * NR, count * NR),
                                s->b + (batch * s->column_panels + at) * NR * p->k);
        }
    }
}

/* ---- storing --------------------------------------------------------------------------------------------------------------- */

/* sum + bias (NULL: none) to memory in order, which may be the sum's own. */
static inline void NAMED(store_plain)(const T *sum, const T *bias, T *to, int64_t n)
{
    if (bias)
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) to[i] = sum[i] + bias[i];
    else if (to != sum)
        memcpy(to, sum, sizeof(T) * (size_t)n);
}

/* One line of the output: alpha · sum + beta · (what is there) + bias. `sum` may be that line itself. n is at most LONGEST_LINE. */
static void NAMED(store_line)(const product *p, int64_t batch, int64_t row, int64_t column, T *sum, int64_t n)
{
    T other[LONGEST_LINE];
    char *to = element(p, &p->c, batch, row, column);
    if (p->alpha == 1 && p->beta == 0 && p->c.dtype == NATIVE && p->c.across == 1 && (!p->bias.base || (p->bias.dtype == NATIVE && p->bias.across == 1))) {
        const T *bias = p->bias.base ? (const T *)(const void *)element(p, &p->bias, batch, row, column) : NULL;
        NAMED(store_plain)(sum, bias, (T *)(void *)to, n);
        return;
    }
    if (p->alpha != 1)
        for (int64_t i = 0; i < n; i++)
            sum[i] *= (T)p->alpha;
    if (p->beta != 0) {
        tarn__load[p->c.dtype][COMPUTE](to, p->c.across, other, n);
        for (int64_t i = 0; i < n; i++)
            sum[i] += (T)p->beta * other[i];
    }
    if (p->bias.base) {
        tarn__load[p->bias.dtype][COMPUTE](element(p, &p->bias, batch, row, column), p->bias.across, other, n);
        for (int64_t i = 0; i < n; i++)
            sum[i] += other[i];
    }
    if (to != (char *)sum)
        tarn__store[p->c.dtype][COMPUTE](sum, to, p->c.across, n);
}

/* ---- tiles ----------------------------------------------------------------------------------------------------------------- */

/* Asks for part i of `parts` of the panel of b that is due next: AArch64's processors do not see it coming. */
static inline void NAMED(ask_for_part)(const T *panel, int64_t n, int64_t i, int64_t parts)
{
#if defined(__aarch64__)
    int64_t lines = n * NR * (int64_t)sizeof(T) / 64, some = ceiling(lines, parts), end = least((i + 1) * some, lines);
    for (int64_t line = i * some; line < end; line++)
        __builtin_prefetch((const char *)panel + 64 * line);
#else
    (void)panel, (void)n, (void)i, (void)parts;
#endif
}

static void NAMED(run_tile)(const NAMED(blocks) *s, int64_t batch, int64_t row_panel, int64_t row_panels, int64_t column_panel,
                            int64_t column_panels, T *sums)
{
    int64_t k = s->p->k, ld = column_panels * NR;
    const T *a = s->a + (batch * s->row_panels + row_panel) * MR * k, *b = s->b + (batch * s->column_panels + column_panel) * NR * k;
    const T *lies = (const T *)(const void *)element(s->p, &s->p->a, s->batch + batch, s->row + row_panel * MR, 0);
    int64_t down = s->p->a.down, as_it_lies = s->rows_as_they_lie - row_panel;
    for (int64_t begin = 0; begin < k; begin += K_BLOCK) {
        int64_t n = k - begin < K_BLOCK ? k - begin : K_BLOCK;
        for (int64_t j = 0; j < column_panels; j++)
            for (int64_t i = 0; i < row_panels; i++) {
                const T *column = b + (j * k + begin) * NR;
                T *to = sums + i * MR * ld + j * NR;
                if (j + 1 < column_panels)
                    NAMED(ask_for_part)(column + k * NR, n, i, row_panels);
                if (i < as_it_lies)
                    NAMED(micro_rows)(n, lies + i * MR * down + begin, down, column, to, ld, begin == 0);
                else
                    NAMED(micro)(n, a + (i * k + begin) * MR, column, to, ld, begin == 0);
            }
    }
    if (k == 0)
        memset(sums, 0, sizeof(T) * (size_t)(row_panels * MR * ld));
    int64_t row = row_panel * MR, column = column_panel * NR;
    int64_t rows = s->rows - row < row_panels * MR ? s->rows - row : row_panels * MR;
    int64_t columns = s->columns - column < ld ? s->columns - column : ld;
    for (int64_t i = 0; i < rows; i++)
        NAMED(store_line)(s->p, s->batch + batch, s->row + row + i, s->column + column, sums + i * ld, columns);
}

static void NAMED(run_tiles)(int64_t begin, int64_t end, void *ctx)
{
    const NAMED(blocks) *s = ctx;
    _Alignas(64) T sums[TILE_ROWS * TILE_COLUMNS];
    int64_t tiles = s->tiles_down * s->tiles_across;
    for (; begin < end; begin++) {
        int64_t i = begin % tiles / s->tiles_across * s->tile_rows, j = begin % s->tiles_across * s->tile_columns;
        int64_t rows = s->row_panels - i < s->tile_rows ? s->row_panels - i : s->tile_rows;
        int64_t columns = s->column_panels - j < s->tile_columns ? s->column_panels - j : s->tile_columns;
        NAMED(run_tile)(s, begin / tiles, i, rows, j, columns, sums);
    }
}

/* Tiles of nearly equal size, and, where there is work enough, so many that several threads find some. */
static void NAMED(choose_tiles)(NAMED(blocks) *s)
{
    int64_t rows = TILE_ROWS / MR, columns = TILE_COLUMNS / NR;
    for (;;) {
        s->tiles_down = ceiling(s->row_panels, rows);
        s->tiles_across = ceiling(s->column_panels, columns);
        s->tile_rows = ceiling(s->row_panels, s->tiles_down);
        s->tile_columns = ceiling(s->column_panels, s->tiles_across);
        s->tiles_down = ceiling(s->row_panels, s->tile_rows);
        s->tiles_across = ceiling(s->column_panels, s->tile_columns);
        if (s->batches * s->tiles_down * s->tiles_across >= ENOUGH_TILES ||
            s->tile_rows * MR * s->tile_columns * NR * s->p->k < SMALL_TILE || (s->tile_rows == 1 && s->tile_columns == 1))
            return;
        if (s->tile_rows * MR >= s->tile_columns * NR || s->tile_columns == 1)
            rows = ceiling(s->tile_rows, 2);
        else
            columns = ceiling(s->tile_columns, 2);
    }
}

/* How much is packed at a time, so that the panels take at most PACKED_BYTES (or one tile's, where k is very long). */
typedef struct NAMED(extent) {
    int64_t batches, rows, columns;
} NAMED(extent);

static NAMED(extent) NAMED(choose_extent)(const product *p)
{
    int64_t room = PACKED_BYTES / (int64_t)sizeof(T) / (p->k > 0 ? p->k : 1); /* lines of length k */
    int64_t rows = ceiling(p->m, MR) * MR, columns = ceiling(p->n, NR) * NR;
    if (rows + columns <= room) {
        int64_t batches = room / (rows + columns);
        return (NAMED(extent)){batches < p->batches ? batches : p->batches, rows, columns};
    }
    int64_t half = room / 2 / TILE_ROWS * TILE_ROWS, most_rows = half > TILE_ROWS ? half : TILE_ROWS;
    rows = rows < most_rows ? rows : most_rows;
    int64_t left = (room - rows) / TILE_COLUMNS * TILE_COLUMNS, most_columns = left > TILE_COLUMNS ? left : TILE_COLUMNS;
    return (NAMED(extent)){1, rows, columns < most_columns ? columns : most_columns};
}

static size_t NAMED(gemm_scratch)(const product *p)
{
    NAMED(extent) e = NAMED(choose_extent)(p);
    return sizeof(T) * (size_t)(e.batches * (e.rows + e.columns) * p->k + NR);
}

static void NAMED(run_part)(NAMED(blocks) *s)
{
    int64_t k = s->p->k;
    s->row_panels = ceiling(s->rows, MR);
    s->column_panels = ceiling(s->columns, NR);
    s->b = s->a + ceiling(s->batches * s->row_panels * MR * k, NR) * NR; /* b is read in whole vectors: aligned */
    NAMED(choose_tiles)(s);
    if (s->p->a.dtype == NATIVE && s->p->a.across == 1 && s->p->n <= FEW_COLUMNS)
        s->rows_as_they_lie = s->rows / MR; /* all but one that is not full */
    int64_t panels = s->batches * (s->row_panels - s->rows_as_they_lie + s->column_panels), panel_work = k * NR + 1;
    int64_t together = least(panels / ENOUGH_TILES, PANELS_TOGETHER), enough = ceiling(PACK_GRAIN, panel_work);
    tarn__parallel_for(panels, together > enough ? together : enough, NAMED(pack_panels), s);
    int64_t tile_work = s->tile_rows * MR * s->tile_columns * NR * k + 1;
    tarn__parallel_for(s->batches * s->tiles_down * s->tiles_across, ceiling(SMALL_TILE / 2, tile_work), NAMED(run_tiles), s);
}

static void NAMED(gemm)(const product *p)
{
    NAMED(extent) e = NAMED(choose_extent)(p);
    for (int64_t batch = 0; batch < p->batches; batch += e.batches)
        for (int64_t column = 0; column < p->n; column += e.columns)
            for (int64_t row = 0; row < p->m; row += e.rows) {
                NAMED(blocks) s = {.p = p, .batch = batch, .row = row, .column = column, .a = (T *)p->scratch};
                s.batches = p->batches - batch < e.batches ? p->batches - batch : e.batches;
                s.rows = p->m - row < e.rows ? p->m - row : e.rows;
                s.columns = p->n - column < e.columns ? p->n - column : e.columns;
                NAMED(run_part)(&s);
            }
}

/* ---- small products -------------------------------------------------------------------------------------------------------- */

/* A batch of small matrices: a thread packs a block of k, multiplies it and goes on, and the panels never leave its cache. */
static void NAMED(run_small)(int64_t begin, int64_t end, void *ctx)
{
    const product *p = ctx;
    _Alignas(64) T packed[(SMALL_LINES + MR + NR) * SMALL_K_BLOCK], sums[(SMALL_LINES / 2 + MR) * (SMALL_LINES / 2 + NR)];
    int64_t row_panels = ceiling(p->m, MR), column_panels = ceiling(p->n, NR), ld = column_panels * NR;
    for (; begin < end; begin++) {
        for (int64_t at = 0; at < p->k; at += SMALL_K_BLOCK) {
            int64_t k = p->k - at < SMALL_K_BLOCK ? p->k - at : SMALL_K_BLOCK;
            T *b = packed, *a = packed + ld * k; /* b is read in whole vectors: aligned */
            for (int64_t i = 0; i < row_panels; i++)
                NAMED(interleave)(element(p, &p->a, begin, i * MR, at), p->a.dtype, p->a.down, p->a.across, (int)least(p->m - i * MR, MR), MR, k,
                                  a + i * MR * k);
            NAMED(pack_columns)(p, begin, at, k, 0, p->n, b);
            for (int64_t j = 0; j < column_panels; j++)
                for (int64_t i = 0; i < row_panels; i++)
                    NAMED(micro)(k, a + i * MR * k, b + j * NR * k, sums + i * MR * ld + j * NR, ld, at == 0);
        }
        if (p->k == 0)
            memset(sums, 0, sizeof(sums));
        for (int64_t i = 0; i < p->m; i++)
            NAMED(store_line)(p, begin, i, 0, sums + i * ld, p->n);
    }
}

#include "backends/cpu/gemm_thin.h"

/* ---- parts of a long sum --------------------------------------------------------------------------------------------------- */

/* Adds up the partial products (splits, m, n) in order. */
static void NAMED(combine)(int64_t begin, int64_t end, void *ctx)
{
    const product *p = ctx;
    const T *part = (const T *)p->scratch;
    T sum[LONGEST_LINE];
    for (; begin < end; begin++)
        for (int64_t column = 0; column < p->n; column += LONGEST_LINE) {
            int64_t n = p->n - column < LONGEST_LINE ? p->n - column : LONGEST_LINE;
            memset(sum, 0, sizeof(sum));
            for (int64_t s = 0; s < p->splits; s++)
                for (int64_t j = 0; j < n; j++)
                    sum[j] += part[(s * p->m + begin) * p->n + column + j];
            NAMED(store_line)(p, 0, begin, column, sum, n);
        }
}

#undef LANES
#undef NR
#undef TILE_ROWS
#undef TILE_COLUMNS
#undef K_BLOCK
#undef SMALL_K_BLOCK
#undef SMALL_LINES
#undef SQUARE
#undef T
#undef COMPUTE
#undef NATIVE
#undef NAMED
