/* attention_tiles.cl: what attention and its gradients are made of: tiles of weights, SIDE_M by SIDE_N, that a group
 * has at a time, so that memory stays linear in the number of rows. Tiles that no row attends to are left out.
 * Everything is summed in an order given by shape alone.
 *
 * A group is ACROSS by ACROSS items; each has M rows of the tile and VECTORS vectors of LANES columns of each of them.
 * Products go through the group's memory STEP terms at a time. Results (SIDE_M, D) are made in windows of WINDOW
 * columns, one a group; each makes the weights again. On a processor ACROSS is 1: an item alone is a group, and works
 * on REGISTERS rows at a time.
 *
 * Options: REAL, what is computed in; T, the dtype of q, k and v; T_G that of g; ACROSS, M, LANES, VECTORS, STEP,
 * WINDOW, REGISTERS, of which in groups M, LANES and REGISTERS are 4; LENGTH, i32 or i64; START, i32 or i64, where rows
 * attend to no key before a start of their own; IN_FOURS where rows of q, k, v and g are dense and begin at multiples
 * of 4, as many as D is. */
#include "backends/opencl/common/philox.cl"
#include "backends/opencl/common/vec4.cl"

#define VECTOR JOIN(REAL, LANES)
#define LOAD_VECTOR JOIN(vload, LANES)
#define STORE_VECTOR JOIN(vstore, LANES)
#define GROUP (ACROSS * ACROSS)
#define SIDE_M (ACROSS * M)
#define SIDE_N (ACROSS * LANES * VECTORS)
#define LINE (SIDE_M + 4)   /* elements from term to term in the group's memory, of what has SIDE_M of them, */
#define LINE_N (SIDE_N + 4) /* and SIDE_N */
#define WIDE (WINDOW / (ACROSS * LANES)) /* vectors of a window that an item has */
#define STAGE_TILES (STEP * (LINE + LINE_N))
#define STAGE_ROWS (STEP * WINDOW)
#define STAGE (STAGE_TILES > STAGE_ROWS ? STAGE_TILES : STAGE_ROWS)
#define TOGETHER(count) ((count) < 2 ? (count) : 2) /* vectors of a row in registers at a time */
#if defined(IS_CPU) && ACROSS > 1 /* a group on a processor: it compiles, in minutes if all is unrolled */
#define EACH(i, count) for (int i = 0; i < (count); i++)
#else
#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)
#endif
#define FOUR JOIN(REAL, 4)
#define A_STAGE(name, size) \
    __local REAL name[size] __attribute__((aligned(32))) /* of the group's memory: fours of it are read at once */

/* All rows of an item, and all lanes of a vector: on a processor there are too many of them to unroll. */
#if ACROSS == 1
#define EACH_ROW(i) for (int i = 0; i < M; i++)
#define EACH_LANE(e) for (int e = 0; e < LANES; e++)
#define MEET() /* an item alone meets nobody */
#else
#define MEET() barrier(CLK_LOCAL_MEM_FENCE)
#define EACH_ROW(i) EACH(i, M)
#define EACH_LANE(e) EACH(e, LANES)
#endif

#define INFINITE ((REAL)INFINITY)

/* A tensor (B, heads, rows, D), or without D. */
enum { Q, K, V, Y, LOGS, G, GQ, GK, GV, CUBES };

/* `attention` of attention.c. */
typedef struct attention {
    long heads, kv_heads, group, rows, keys, depth; /* H, KV, H / KV, T, S, D */
    long blocks, windows;                           /* blocks of rows (or keys) of a head; parts of D */
    long length_stride, start_stride[2];
    long stride[CUBES][4];
    ulong seed, offset;
    uint limit; /* of 16 bits: a weight whose number is below is dropped; 0: none */
    float kept; /* what the others are multiplied by */
    int causal, last_first;
} attention;

/* One head of a tensor. */
typedef struct slab {
    const __global void *base;
    long place, row, along;
} slab;

slab slab_of(const __global void *base, long place, const attention *a, int cube, long batch, long head)
{
    const long *stride = a->stride[cube];
    return (slab){base, place + batch * stride[0] + head * stride[1], stride[2], stride[3]};
}

/* ---- what a row attends to --------------------------------------------------------------------------------------- */

/* Keys that are there; what is no length counts as the nearest one, and forward reports it. */
long valid_keys(const attention *a, const __global void *lengths, long lengths_place, long batch)
{
    return lengths ? clamp((long)LOAD(LENGTH, lengths, lengths_place + batch * a->length_stride), 0L, a->keys)
                   : a->keys;
}

long keys_of(const attention *a, long valid, long row)
{
    return a->causal ? clamp(valid - a->rows + row + 1, 0L, valid) : valid;
}

/* The first row that attends to a key, at or behind which all do. */
long first_row_of(const attention *a, long valid, long key)
{
    return key >= valid ? a->rows : a->causal ? max(key - (valid - a->rows), 0L) : 0;
}

/* ---- starts: rows of documents beside each other, in any order --------------------------------------------------- */

/* Those of a batch. */
slab starts_of(const __global void *starts, long starts_place, const attention *a, long batch)
{
    return (slab){starts, starts_place + batch * a->start_stride[0], a->start_stride[1], 0};
}

#ifdef START

#define AN_EDGE(name) __local int name /* the tile where those of a group begin, or end */
#define SEES(span, key) ((key) >= (span).begin && (key) < (span).end)

/* The first key that a row attends to. What is no start counts as the nearest one, and forward reports it. */
long start_of(const attention *a, const slab *starts, long row)
{
    return clamp((long)LOAD(START, starts->base, starts->place + row * starts->row), 0L, a->keys);
}

void check_starts(const attention *a, const slab *starts, long first, int item, FAULT_PARAMETERS)
{
    for (long row = first + item; row < min(first + SIDE_M, a->rows); row += GROUP) {
        const long start = LOAD(START, starts->base, starts->place + row * starts->row);
        if (start < 0 || start > a->keys)
            report_fault(fault, start, a->keys);
    }
}

/* The first tile of keys that one of a group's rows attends to: its first key. */
long first_key_of(const attention *a, const slab *starts, long first, int item, __local int *edge)
{
    long least = a->keys;
    if (item == 0)
        *edge = INT_MAX;
    MEET();
    for (long row = first + item; row < min(first + SIDE_M, a->rows); row += GROUP)
        least = min(least, start_of(a, starts, row));
    atomic_min(edge, (int)(least / SIDE_N));
    MEET();
    return (long)*edge * SIDE_N;
}

/* Of tiles of rows from `begin` on: behind the last that has a row which begins at `key` or before. */
long end_of_rows(const attention *a, const slab *starts, long begin, long key, int item, __local int *edge)
{
    long end = begin;
    if (item == 0)
        *edge = 0;
    MEET();
    for (long row = begin + item; row < a->rows; row += GROUP)
        end = start_of(a, starts, row) <= key ? row + 1 : end;
    atomic_max(edge, (int)((end + SIDE_N - 1) / SIDE_N));
    MEET();
    return min((long)*edge * SIDE_N, a->rows);
}

#else

#define AN_EDGE(name)
#define SEES(span, key) ((key) < (span).end)
#define start_of(a, starts, row) 0L
#define check_starts(a, starts, first, item, fault, fault_function)
#define first_key_of(a, starts, first, item, edge) 0L
#define end_of_rows(a, starts, begin, key, item, edge) (a)->rows

#endif

/* The keys that a row attends to, one by one by SEES(); beyond the last row there are none. */
typedef struct span {
    long begin, end;
} span;

span span_of(const attention *a, const slab *starts, long valid, long row)
{
    return row < a->rows ? (span){start_of(a, starts, row), keys_of(a, valid, row)} : (span){0, 0};
}

/* ---- dropout and places ------------------------------------------------------------------------------------------ */

/* Dropout's factor of a key of the row of that number; `words` are those of its 8 keys, drawn where `key` is the first
 * of them or `fresh`. */
REAL drop_factor(const attention *a, long number, long key, bool fresh, uint4 *words)
{
    if (a->limit == 0)
        return 1;
    if (fresh || (key & 7) == 0)
        *words = philox(a->seed, a->offset + (ulong)(number * ((a->keys + 7) / 8) + key / 8));
    int i = (int)(key & 7);
    uint word = i < 2 ? words->x : i < 4 ? words->y : i < 6 ? words->z : words->w;
    return (i & 1 ? word >> 16 : word & 0xffffu) < a->limit ? (REAL)0 : (REAL)a->kept;
}

/* Which block of which head a group has. Of causal rows the last are the longest, and come first. */
typedef struct place {
    long batch, head, block, window;
} place;

place place_of(const attention *a, long heads)
{
    long at = get_group_id(0);
    place p;
    p.window = at % a->windows, at /= a->windows;
    p.block = at % a->blocks, at /= a->blocks;
    p.block = a->last_first ? a->blocks - 1 - p.block : p.block;
    p.head = at % heads, p.batch = at / heads;
    return p;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* REGISTERS neighbours of the group's memory, and a vector of it. */
#if ACROSS == 1
#define FETCH_LEFT(to, from) EACH(i, REGISTERS)(to)[i] = (from)[i];
#define FETCH_RIGHT(from) LOAD_VECTOR(0, from)
#else
#define FETCH_LEFT(to, from) vstore4(*(const __local FOUR *)(from), 0, to);
#define FETCH_RIGHT(from) (*(const __local VECTOR *)(from))
#endif

/* sum[i][j] += left[d][i] · right[d][j] for all rows of an item and COUNT vectors, `terms` of them; vectors of
 * neighbours lie side by side. */
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

#ifdef IN_FOURS

/* (STEP columns, side rows) of x to `to`; 0 outside all rows and D. */
#define STAGE_COLUMNS(to, line, side, dtype, x, begin, end) \
    for (int n = item; n < (side)*STEP / 4; n += GROUP) { \
        const int i = n / (STEP / 4), j = n % (STEP / 4) * 4; \
        FOUR four = 0; \
        if ((begin) + i < (end) && depth_at + j < a.depth) \
            four = LOAD_4(dtype, (x).base, (x).place + ((begin) + i) * (x).row + depth_at + j); \
        (to)[j * (line) + i] = four.s0, (to)[(j + 1) * (line) + i] = four.s1; \
        (to)[(j + 2) * (line) + i] = four.s2, (to)[(j + 3) * (line) + i] = four.s3; \
    }

/* (STEP rows, WINDOW columns from `across`) of x. */
#define STAGE_LINES(to, dtype, x, begin, end, across) \
    for (int n = item; n < STEP * WINDOW / 4; n += GROUP) { \
        const int i = n / (WINDOW / 4), j = n % (WINDOW / 4) * 4; \
        FOUR four = 0; \
        if ((begin) + i < (end) && (across) + j < a.depth) \
            four = LOAD_4(dtype, (x).base, (x).place + ((begin) + i) * (x).row + (across) + j); \
        *(__local FOUR *)((to) + 4 * n) = four; \
    }

#else

/* (STEP columns, side rows) of x to `to`; 0 outside all rows and D. */
#define STAGE_COLUMNS(to, line, side, dtype, x, begin, end) \
    for (int n = item; n < (side)*STEP; n += GROUP) { \
        const int i = n / STEP, j = n % STEP; \
        (to)[j * (line) + i] = \
            (begin) + i < (end) && depth_at + j < a.depth \
                ? (REAL)LOAD(dtype, (x).base, (x).place + ((begin) + i) * (x).row + (depth_at + j) * (x).along) \
                : (REAL)0; \
    }

/* (STEP rows, WINDOW columns from `across`) of x. */
#define STAGE_LINES(to, dtype, x, begin, end, across) \
    for (int n = item; n < STEP * WINDOW; n += GROUP) { \
        const int i = n / WINDOW, j = n % WINDOW; \
        (to)[n] = (begin) + i < (end) && (across) + j < a.depth \
                      ? (REAL)LOAD(dtype, (x).base, (x).place + ((begin) + i) * (x).row + ((across) + j) * (x).along) \
                      : (REAL)0; \
    }

#endif

/* sum (SIDE_M, SIDE_N) = x · yᵀ over all of D: rows of each from `begin` on, 0 from `end` on. */
#define MULTIPLY_TILES(sum, x_dtype, x, x_begin, x_end, y_dtype, y, y_begin, y_end) \
    do { \
        EACH_ROW(i) EACH(j, VECTORS)(sum)[i][j] = 0; \
        for (long depth_at = 0; depth_at < a.depth; depth_at += STEP) { \
            MEET(); \
            STAGE_COLUMNS(stage, LINE, SIDE_M, x_dtype, x, x_begin, x_end) \
            STAGE_COLUMNS(stage + STEP * LINE, LINE_N, SIDE_N, y_dtype, y, y_begin, y_end) \
            MEET(); \
            MULTIPLY(sum, VECTORS, stage, LINE, stage + STEP * LINE, LINE_N, (int)min((long)STEP, a.depth - depth_at)) \
        } \
    } while (0)

/* sum (SIDE_M, WINDOW) += wᵀ · x for a tile of weights w (SIDE_N, SIDE_M) in the group's memory, and the window from
 * `across` of SIDE_N rows of x. */
#define MULTIPLY_ROWS(sum, weights, dtype, x, begin, end, across) \
    for (int from = 0; from < SIDE_N; from += STEP) { \
        MEET(); \
        STAGE_LINES(stage, dtype, x, (begin) + from, end, across) \
        MEET(); \
        MULTIPLY(sum, WIDE, (weights) + from * LINE, LINE, stage, WINDOW, STEP) \
    }

/* Elements `i` of all rows of an item, side by side in the group's memory. */
#if ACROSS == 1
#define PUT_ROWS(to, element) EACH_ROW(i)(to)[i] = element;
#else
#define PUT_ROWS(to, element) \
    { \
        REAL four[M]; \
        EACH_ROW(i) four[i] = element; \
        *(__local FOUR *)(to) = (FOUR)(four[0], four[1], four[2], four[3]); \
    }
#endif

/* A tile of an item, turned round, into the group's memory: (columns, rows). */
#define PUT_TILE(to, tile) \
    EACH(j, VECTORS) \
    { \
        REAL lines[M][LANES]; \
        EACH_ROW(i) STORE_VECTOR((tile)[i][j], 0, lines[i]); \
        EACH_LANE(e) PUT_ROWS((to) + ((j * ACROSS + tx) * LANES + e) * LINE + ty * M, lines[i][e]) \
    }

/* What each of ACROSS items has of an item's rows becomes the largest of it, or its sum; `stage` is free before and
 * after. */
#if ACROSS == 1
#define most_of_rows(own, ty, tx, stage)
#define sum_of_rows(own, ty, tx, stage)
#else
void share_rows(const REAL *own, int ty, int tx, __local REAL *stage)
{
    MEET();
    EACH_ROW(i) stage[(ty * M + i) * ACROSS + tx] = own[i];
    MEET();
}

void most_of_rows(REAL *own, int ty, int tx, __local REAL *stage)
{
    share_rows(own, ty, tx, stage);
    EACH_ROW(i)
    EACH(k, ACROSS / 4)
    {
        const FOUR four = *(const __local FOUR *)(stage + (ty * M + i) * ACROSS + 4 * k);
        own[i] = fmax(own[i], fmax(fmax(four.x, four.y), fmax(four.z, four.w)));
    }
}

void sum_of_rows(REAL *own, int ty, int tx, __local REAL *stage)
{
    share_rows(own, ty, tx, stage);
    EACH_ROW(i)
    {
        FOUR four = 0;
        EACH(k, ACROSS / 4) four += *(const __local FOUR *)(stage + (ty * M + i) * ACROSS + 4 * k);
        own[i] = (four.x + four.y) + (four.z + four.w);
    }
}
#endif

/* The item's part of the window from `across` of SIDE_M rows from `begin`, each times its factor. */
#define WRITE_ROWS(dtype, to, to_place, cube, batch_, head_, sum, factor, begin, end, across) \
    EACH_ROW(i) \
    EACH(j, WIDE) \
    { \
        REAL elements[LANES]; \
        STORE_VECTOR((sum)[i][j] * (factor)[i], 0, elements); \
        EACH(e, LANES) \
        { \
            const long t = (begin) + ty * M + i, d = (across) + (j * ACROSS + tx) * LANES + e; \
            if (t < (end) && d < a.depth) \
                STORE(dtype, to, \
                      to_place + (batch_)*a.stride[cube][0] + (head_)*a.stride[cube][1] + t * a.stride[cube][2] + \
                          d * a.stride[cube][3], \
                      elements[e]); \
        } \
    }

#define ITEM_PLACE const int tx = (int)get_local_id(0), ty = (int)get_local_id(1), item = ty * ACROSS + tx
