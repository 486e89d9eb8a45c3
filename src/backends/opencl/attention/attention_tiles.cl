/* attention_tiles.cl: shared by attention and its gradients: tiles of weights, SIDE_M by SIDE_N per work-group, so that
 * memory stays linear in the sequence length (FlashAttention). Tiles that no row attends to are skipped. Everything is
 * summed in an order given by shape alone.
 *
 * A work-group is ACROSS by ACROSS work-items; each has M rows of the tile and VECTORS vectors of LANES columns of
 * each. Tile products go through local memory STEP terms at a time. Results (SIDE_M, D) are computed in windows of
 * WINDOW columns, one per work-group; each recomputes the weights. On a CPU ACROSS is 1: a work-item is a work-group,
 * and has REGISTERS rows in registers at a time.
 *
 * Options: REAL, the compute type; T, dtype of q, k, v; T_G of gy; ACROSS, M, LANES, VECTORS, STEP, WINDOW, REGISTERS
 * (in groups M, LANES and REGISTERS are 4); LENGTH, i32 or i64; START, i32 or i64, where rows have document starts;
 * SLIDING where they have a sliding window; SOFTCAP where scores have a soft cap, an argument after the scale;
 * VEC4_ROWS where rows of q, k, v and gy are contiguous, aligned vec4s, as is D. */
#include "backends/opencl/common/vec4.cl"
#include "base/philox.h"

#define VECTOR JOIN(REAL, LANES)
#define LOAD_VECTOR JOIN(vload, LANES)
#define STORE_VECTOR JOIN(vstore, LANES)
#define GROUP (ACROSS * ACROSS)
#define SIDE_M (ACROSS * M)
#define SIDE_N (ACROSS * LANES * VECTORS)
#define LINE (SIDE_M + 4)                          /* row pitch in local memory of tiles with SIDE_M columns, */
#define LINE_N (SIDE_N + 4)                        /* and SIDE_N */
#define WINDOW_VECTORS (WINDOW / (ACROSS * LANES)) /* vectors of a window per work-item */
#define STAGE_TILES (STEP * (LINE + LINE_N))
#define STAGE_ROWS (STEP * WINDOW)
#define STAGE (STAGE_TILES > STAGE_ROWS ? STAGE_TILES : STAGE_ROWS)
/* Registers bound the number of vectors that are multiplied together. */
#define TOGETHER(count) ((count) < 2 ? (count) : 2) /* vectors of a row in registers at a time */
#if defined(IS_CPU) && ACROSS > 1 /* a work-group on a processor: it compiles, in minutes if all is unrolled */
#define EACH(i, count) for (int i = 0; i < (count); i++)
#else
#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)
#endif
#define REAL4 JOIN(REAL, 4)
#define A_STAGE(name, size) \
    __local REAL name[size] __attribute__((aligned(32))) /* in local memory, aligned for vec4 reads */

/* Rows of a work-item, and lanes of a vector: too many to unroll on a CPU. */
#if ACROSS == 1
#define EACH_ROW(i) for (int i = 0; i < M; i++)
#define EACH_LANE(e) for (int e = 0; e < LANES; e++)
#define SYNC() /* one work-item per work-group */
#else
#define SYNC() barrier(CLK_LOCAL_MEM_FENCE)
#define EACH_ROW(i) EACH(i, M)
#define EACH_LANE(e) EACH(e, LANES)
#endif

#define INFINITE ((REAL)INFINITY)

/* Tensors (B, heads, rows, D); LSE lacks D. */
enum { Q, K, V, Y, LSE, G, GQ, GK, GV, TENSORS };

/* attention of attention.c, passed by value. */
typedef struct attention {
    long heads, kv_heads, group, rows, keys, depth; /* H, KV, H / KV, T, S, D */
    long blocks, windows;                           /* blocks of rows (or keys) of a head; parts of D */
    long length_stride, start_stride[2];
    long stride[TENSORS][4];
    ulong seed, offset;
    uint limit;       /* of 16 bits: a weight whose number is below is dropped; 0: none */
    float keep_scale; /* what the others are multiplied by */
    int causal, last_first;
    long sliding_window; /* of keys; 0: none */
} attention;

/* One head of a tensor: base, offset, and strides of rows and of D. */
typedef struct head_view {
    const __global void *base;
    long tile_index, row, along;
} head_view;

head_view head_view_of(const __global void *base, long tile_index, const attention *a, int tensor, long batch,
                       long head)
{
    const long *stride = a->stride[tensor];
    return (head_view){base, tile_index + batch * stride[0] + head * stride[1], stride[2], stride[3]};
}

/* ---- what a row attends to --------------------------------------------------------------------------------------- */

#define MASK_FN static inline
#define MASK_ARGS const attention *a
#define MASK_CAUSAL a->causal
#define MASK_ROWS a->rows
#define MASK_KEYS a->keys
#ifdef SLIDING
#define MASK_WINDOW a->sliding_window
#else
#define MASK_WINDOW 0
#endif
#include "base/kernel/attention_mask.inc"

/* Keys that exist. An invalid length counts as the nearest valid one, and forward reports it. */
long valid_keys(const attention *a, const __global void *lengths, long lengths_offset, long batch)
{
    return lengths ? clamp_to_keys(a, LOAD(LENGTH, lengths, lengths_offset + batch * a->length_stride)) : a->keys;
}

/* ---- starts: rows of documents beside each other, in any order --------------------------------------------------- */

/* The starts of a sequence. */
head_view starts_of(const __global void *starts, long starts_offset, const attention *a, long batch)
{
    return (head_view){starts, starts_offset + batch * a->start_stride[0], a->start_stride[1], 0};
}

#ifdef START

#define AN_EDGE(name) __local int name /* the tile where those of a work-group begin, or end */

/* The first key of a row's document. An invalid start counts as the nearest valid one, and forward reports it. */
long start_of(const attention *a, const head_view *starts, long row)
{
    return clamp_to_keys(a, LOAD(START, starts->base, starts->tile_index + row * starts->row));
}

/* Reports an invalid start of a work-group's rows. */
void check_starts(const attention *a, const head_view *starts, long first, int item, FAULT_PARAMETERS)
{
    for (long row = first + item; row < min(first + SIDE_M, a->rows); row += GROUP) {
        const long start = LOAD(START, starts->base, starts->tile_index + row * starts->row);
        if (!is_within_keys(a, start))
            report_fault(fault, start, a->keys);
    }
}

/* The first key of the first tile with a document of one of a work-group's rows. */
long first_document_of(const attention *a, const head_view *starts, long first, int item, __local int *edge)
{
    long min_start = a->keys;
    if (item == 0)
        *edge = INT_MAX;
    SYNC();
    for (long row = first + item; row < min(first + SIDE_M, a->rows); row += GROUP)
        min_start = min(min_start, start_of(a, starts, row));
    atomic_min(edge, (int)(min_start / SIDE_N));
    SYNC();
    return (long)*edge * SIDE_N;
}

/* The end of the last tile of rows from `begin` on that has a row starting at `key` or before. */
long end_of_rows(const attention *a, const head_view *starts, long begin, long key, int item, __local int *edge)
{
    long end = begin;
    if (item == 0)
        *edge = 0;
    SYNC();
    for (long row = begin + item; row < a->rows; row += GROUP)
        end = start_of(a, starts, row) <= key ? row + 1 : end;
    atomic_max(edge, (int)((end + SIDE_N - 1) / SIDE_N));
    SYNC();
    return min((long)*edge * SIDE_N, a->rows);
}

#else

#define AN_EDGE(name)
#define start_of(a, starts, row) 0L
#define check_starts(a, starts, first, item, fault, fault_function)
#define first_document_of(a, starts, first, item, edge) 0L
#define end_of_rows(a, starts, begin, key, item, edge) (a)->rows

#endif

/* ---- starts and windows ------------------------------------------------------------------------------------------ */

/* The keys that a row attends to, tested by SEES(); rows beyond the last have none. */
typedef struct key_range {
    long begin, end;
} key_range;

#if defined(START) || defined(SLIDING)
#define SEES(key_range, key) ((key) >= (key_range).begin && (key) < (key_range).end)
#else
#define SEES(key_range, key) ((key) < (key_range).end)
#endif

#ifdef SLIDING
/* The first key of the first tile that one of a work-group's rows attends to: windows begin later from row to row. */
#define FIRST_KEY_OF(a, starts, valid, first, item, edge) \
    max(first_document_of(a, starts, first, item, edge), window_start_of(a, valid, first) / SIDE_N * SIDE_N)
/* The end of the rows that attend to a key up to `key`. */
#define END_OF_ROWS(a, starts, valid, begin, key, item, edge) \
    min(end_of_rows(a, starts, begin, key, item, edge), end_row_of(a, valid, key))
#define BEGIN_OF_KEYS(a, starts, valid, row) max((long)start_of(a, starts, row), window_start_of(a, valid, row))
#else
#define FIRST_KEY_OF(a, starts, valid, first, item, edge) first_document_of(a, starts, first, item, edge)
#define END_OF_ROWS(a, starts, valid, begin, key, item, edge) end_of_rows(a, starts, begin, key, item, edge)
#define BEGIN_OF_KEYS(a, starts, valid, row) start_of(a, starts, row)
#endif

key_range key_range_of(const attention *a, const head_view *starts, long valid, long row)
{
    return row < a->rows ? (key_range){BEGIN_OF_KEYS(a, starts, valid, row), keys_of(a, valid, row)}
                         : (key_range){0, 0};
}

/* ---- soft cap ---------------------------------------------------------------------------------------------------- */

/* The parameter after the scale, the capped score of a scaled one (a vector or one element), and the gradient of the
 * scaled score: 0 stays 0, also where the score of a masked key is NaN. */
#ifdef SOFTCAP
#define CAP_PARAMETER , real softcap_
#define CAP_VALUE const REAL softcap = (REAL)softcap_
#define CAPPED(score) (softcap * tanh((score) / softcap))
#define UNCAPPED_GRAD(grad, capped) ((grad) == 0 ? (REAL)0 : (grad) * (1 - ((capped) / softcap) * ((capped) / softcap)))
#else
#define CAP_PARAMETER
#define CAP_VALUE
#define CAPPED(score) (score)
#define UNCAPPED_GRAD(grad, capped) (grad)
#endif

/* ---- dropout and grid -------------------------------------------------------------------------------------------- */

/* Dropout's factor for a key of a row: Philox words serve 8 keys, drawn where `key` is the first of them or `fresh`.
 * `number` is the row's index among all, so that forward and backward draw the same. */
REAL drop_factor(const attention *a, long number, long key, bool fresh, uint4 *words)
{
    if (a->limit == 0)
        return 1;
    if (fresh || (key & 7) == 0) {
        uint drawn[4];
        tarn__philox(a->seed, a->offset + (ulong)(number * ((a->keys + 7) / 8) + key / 8), drawn);
        *words = vload4(0, drawn);
    }
    int i = (int)(key & 7);
    uint word = i < 2 ? words->x : i < 4 ? words->y : i < 6 ? words->z : words->w;
    return tarn__half_word(word, i & 1) < a->limit ? (REAL)0 : (REAL)a->keep_scale;
}

/* The block of rows (or keys) of a work-group. With `last_first` the last rows, which attend to the most keys, come
 * first: the longest work-groups start early. */
typedef struct tile_index {
    long batch, head, block, window;
} tile_index;

tile_index tile_index_of(const attention *a, long heads)
{
    long at = get_group_id(0);
    tile_index p;
    p.window = at % a->windows, at /= a->windows;
    p.block = at % a->blocks, at /= a->blocks;
    p.block = a->last_first ? a->blocks - 1 - p.block : p.block;
    p.head = at % heads, p.batch = at / heads;
    return p;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* REGISTERS adjacent elements of local memory, and a vector of it. */
#if ACROSS == 1
#define FETCH_LEFT(to, from) EACH(i, REGISTERS)(to)[i] = (from)[i];
#define FETCH_RIGHT(from) LOAD_VECTOR(0, from)
#else
#define FETCH_LEFT(to, from) vstore4(*(const __local REAL4 *)(from), 0, to);
#define FETCH_RIGHT(from) (*(const __local VECTOR *)(from))
#endif

/* sum[i][j] += left[d][i] · right[d][j] over `terms` terms, for the rows of a work-item and COUNT vectors. 2 · M ·
 * COUNT · LANES operations per term. */
#define MULTIPLY(sum, COUNT, left, left_line, right, right_line, terms) \
    for (int first = 0; first < M; first += REGISTERS) \
        EACH(pair, (COUNT) / TOGETHER(COUNT)) \
        { \
            VECTOR part[REGISTERS][TOGETHER(COUNT)]; \
            EACH(i, REGISTERS) EACH(j, TOGETHER(COUNT)) part[i][j] = (sum)[first + i][pair * TOGETHER(COUNT) + j]; \
            for (int d = 0; d < (terms); d++) { \
                VECTOR y[TOGETHER(COUNT)]; \
                REAL x[REGISTERS]; \
                EACH(j, TOGETHER(COUNT)) \
                y[j] = FETCH_RIGHT((right) + d * (right_line) + ((pair * TOGETHER(COUNT) + j) * ACROSS + tx) * LANES); \
                FETCH_LEFT(x, (left) + d * (left_line) + ty * M + first) \
                EACH(i, REGISTERS) EACH(j, TOGETHER(COUNT)) part[i][j] += x[i] * y[j]; \
            } \
            EACH(i, REGISTERS) EACH(j, TOGETHER(COUNT))(sum)[first + i][pair * TOGETHER(COUNT) + j] = part[i][j]; \
        }

#ifdef VEC4_ROWS

/* (STEP columns, side rows) of x to `to`; 0 outside all rows and D. */
#define STAGE_COLUMNS(to, line, side, dtype, x, begin, end) \
    for (int n = item; n < (side)*STEP / 4; n += GROUP) { \
        const int i = n / (STEP / 4), j = n % (STEP / 4) * 4; \
        REAL4 vec = 0; \
        if ((begin) + i < (end) && depth_at + j < a.depth) \
            vec = LOAD_4(dtype, (x).base, (x).tile_index + ((begin) + i) * (x).row + depth_at + j); \
        (to)[j * (line) + i] = vec.s0, (to)[(j + 1) * (line) + i] = vec.s1; \
        (to)[(j + 2) * (line) + i] = vec.s2, (to)[(j + 3) * (line) + i] = vec.s3; \
    }

/* (STEP rows, WINDOW columns from `across`) of x. */
#define STAGE_LINES(to, dtype, x, begin, end, across) \
    for (int n = item; n < STEP * WINDOW / 4; n += GROUP) { \
        const int i = n / (WINDOW / 4), j = n % (WINDOW / 4) * 4; \
        REAL4 vec = 0; \
        if ((begin) + i < (end) && (across) + j < a.depth) \
            vec = LOAD_4(dtype, (x).base, (x).tile_index + ((begin) + i) * (x).row + (across) + j); \
        *(__local REAL4 *)((to) + 4 * n) = vec; \
    }

#else

/* (STEP columns, side rows) of x to `to`; 0 outside all rows and D. */
#define STAGE_COLUMNS(to, line, side, dtype, x, begin, end) \
    for (int n = item; n < (side)*STEP; n += GROUP) { \
        const int i = n / STEP, j = n % STEP; \
        (to)[j * (line) + i] = \
            (begin) + i < (end) && depth_at + j < a.depth \
                ? (REAL)LOAD(dtype, (x).base, (x).tile_index + ((begin) + i) * (x).row + (depth_at + j) * (x).along) \
                : (REAL)0; \
    }

/* (STEP rows, WINDOW columns from `across`) of x. */
#define STAGE_LINES(to, dtype, x, begin, end, across) \
    for (int n = item; n < STEP * WINDOW; n += GROUP) { \
        const int i = n / WINDOW, j = n % WINDOW; \
        (to)[n] = \
            (begin) + i < (end) && (across) + j < a.depth \
                ? (REAL)LOAD(dtype, (x).base, (x).tile_index + ((begin) + i) * (x).row + ((across) + j) * (x).along) \
                : (REAL)0; \
    }

#endif

/* sum (SIDE_M, SIDE_N) = x · yᵀ over all of D: rows of each from `begin` on, 0 from `end` on. */
#define MULTIPLY_TILES(sum, x_dtype, x, x_begin, x_end, y_dtype, y, y_begin, y_end) \
    do { \
        EACH_ROW(i) EACH(j, VECTORS)(sum)[i][j] = 0; \
        for (long depth_at = 0; depth_at < a.depth; depth_at += STEP) { \
            SYNC(); \
            STAGE_COLUMNS(stage, LINE, SIDE_M, x_dtype, x, x_begin, x_end) \
            STAGE_COLUMNS(stage + STEP * LINE, LINE_N, SIDE_N, y_dtype, y, y_begin, y_end) \
            SYNC(); \
            MULTIPLY(sum, VECTORS, stage, LINE, stage + STEP * LINE, LINE_N, (int)min((long)STEP, a.depth - depth_at)) \
        } \
    } while (0)

/* sum (SIDE_M, WINDOW) += wᵀ · x for a tile of weights w (SIDE_N, SIDE_M) in local memory, and the window from
 * `across` of SIDE_N rows of x. */
#define MULTIPLY_ROWS(sum, weights, dtype, x, begin, end, across) \
    for (int from = 0; from < SIDE_N; from += STEP) { \
        SYNC(); \
        STAGE_LINES(stage, dtype, x, (begin) + from, end, across) \
        SYNC(); \
        MULTIPLY(sum, WINDOW_VECTORS, (weights) + from * LINE, LINE, stage, WINDOW, STEP) \
    }

/* Stores element `i` of all rows of a work-item adjacently to local memory. */
#if ACROSS == 1
#define STORE_ROWS(to, element) EACH_ROW(i)(to)[i] = element;
#else
#define STORE_ROWS(to, element) \
    { \
        REAL vec[M]; \
        EACH_ROW(i) vec[i] = element; \
        *(__local REAL4 *)(to) = (REAL4)(vec[0], vec[1], vec[2], vec[3]); \
    }
#endif

/* Stores a work-item's tile transposed to local memory: (columns, rows). */
#define STORE_TILE(to, tile) \
    EACH(j, VECTORS) \
    { \
        REAL lines[M][LANES]; \
        EACH_ROW(i) STORE_VECTOR((tile)[i][j], 0, lines[i]); \
        EACH_LANE(e) STORE_ROWS((to) + ((j * ACROSS + tx) * LANES + e) * LINE + ty * M, lines[i][e]) \
    }

/* Reduces over the ACROSS work-items of a row: maximum, or sum in a fixed order. `stage` is free before and after. */
#if ACROSS == 1
#define max_of_rows(own, ty, tx, stage)
#define sum_of_rows(own, ty, tx, stage)
#else
/* Exchanges per-row values through local memory: (SIDE_M, ACROSS). */
void share_rows(const REAL *own, int ty, int tx, __local REAL *stage)
{
    SYNC();
    EACH_ROW(i) stage[(ty * M + i) * ACROSS + tx] = own[i];
    SYNC();
}

void max_of_rows(REAL *own, int ty, int tx, __local REAL *stage)
{
    share_rows(own, ty, tx, stage);
    EACH_ROW(i)
    EACH(k, ACROSS / 4)
    {
        const REAL4 vec = *(const __local REAL4 *)(stage + (ty * M + i) * ACROSS + 4 * k);
        own[i] = fmax(own[i], fmax(fmax(vec.x, vec.y), fmax(vec.z, vec.w)));
    }
}

void sum_of_rows(REAL *own, int ty, int tx, __local REAL *stage)
{
    share_rows(own, ty, tx, stage);
    EACH_ROW(i)
    {
        REAL4 vec = 0;
        EACH(k, ACROSS / 4) vec += *(const __local REAL4 *)(stage + (ty * M + i) * ACROSS + 4 * k);
        own[i] = (vec.x + vec.y) + (vec.z + vec.w);
    }
}
#endif

/* Writes a work-item's part of a window of SIDE_M rows from `begin`, each row times its factor. */
#define WRITE_ROWS(dtype, to, to_offset, tensor, batch_, head_, sum, factor, begin, end, across) \
    EACH_ROW(i) \
    EACH(j, WINDOW_VECTORS) \
    { \
        REAL elements[LANES]; \
        STORE_VECTOR((sum)[i][j] * (factor)[i], 0, elements); \
        EACH(e, LANES) \
        { \
            const long t = (begin) + ty * M + i, d = (across) + (j * ACROSS + tx) * LANES + e; \
            if (t < (end) && d < a.depth) \
                STORE(dtype, to, \
                      to_offset + (batch_)*a.stride[tensor][0] + (head_)*a.stride[tensor][1] + \
                          t * a.stride[tensor][2] + d * a.stride[tensor][3], \
                      elements[e]); \
        } \
    }

#define ITEM_INDEX const int tx = (int)get_local_id(0), ty = (int)get_local_id(1), item = ty * ACROSS + tx
