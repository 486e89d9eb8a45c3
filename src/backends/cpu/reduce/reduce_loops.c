/* reduce_loops.c: the loops of all reductions.
 *
 * After collapsing axes there are kept and reduced axes. One kept axis is the column axis, the others are outer. A
 * task is one outer position, one tile of columns and one chunk of the reduced elements; all three are cut by size
 * alone. Where there is more than one chunk, their states go to scratch and are merged in order by a second pass.
 * Chunks exist only where outer positions and tiles are too few for many threads, so scratch stays small. Tasks are
 * numbered in the memory order of x, so that a thread reads what it has in its cache from the operation before. */
#include "backends/cpu/reduce/reduce_loops.h"

#include <string.h>

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/int_math.h"

#define TASKS 64            /* with this many tasks no chunks are needed */
#define CHUNK (32 * 1024)   /* elements per chunk, at least */
#define GRAIN (32 * 1024)   /* elements per task, at least */
#define SHORT_ROW 16        /* shorter rows are reduced by columns, even with a stride */
#define SHORT_RUN 64        /* shorter runs are gathered before they are reduced */
#define CACHED (4 << 20)    /* bytes of x that are likely in cache */
#define CACHED_COLUMNS 256  /* columns per tile then: fewer states to write and merge */
#define NARROW 8            /* narrower tiles are reduced by rows, even with a stride */
#define BUFFER (64 * 1024)  /* bytes for converted elements */
#define LOADED_COLUMNS 1024 /* columns per tile with conversion: TARN__ROWS rows of f32 fit the buffer */

/* ---- planning ---------------------------------------------------------------------------------------------------- */

/* y has stride 0 exactly on reduced axes. */
static bool is_reduced(const tarn__nest *nest, int axis)
{
    return nest->stride[1][axis] == 0;
}

/* Narrow contiguous rows of a reducer that does not number rows: they fill vectors better when joined. */
static bool can_join_rows(const tarn__nest *nest, const tarn__reducer *op, int kept, int reduced)
{
    return op->joins_rows && reduced >= 0 && kept == nest->rank - 1 && reduced == kept - 1 &&
           nest->stride[0][kept] == 1 && nest->stride[0][reduced] == nest->shape[kept] &&
           nest->shape[kept] <= LOADED_COLUMNS / 4 && nest->shape[reduced] >= 8;
}

/* Processes several rows as one where rows are narrow and contiguous. */
static void join_rows(tarn__reduction *p)
{
    int last = p->reduced_rank - 1;
    int64_t size = p->reduced_shape[last];
    p->joined = min_i64(LOADED_COLUMNS / p->columns, size / 4);
    p->last_joined = size % p->joined ? size % p->joined : p->joined;
    p->reduced_shape[last] = ceil_div(size, p->joined);
    p->reduced_x[last] *= p->joined;
    p->rows = p->rows / size * p->reduced_shape[last];
}

/* By columns where a kept axis is innermost and wide enough, or where rows would be too short. */
static bool choose_columns(const tarn__nest *nest, const tarn__reducer *op, int kept, int reduced)
{
    if (kept < 0 || !op->add_columns)
        return false;
    if (kept < nest->rank - 1)
        return nest->shape[reduced] < SHORT_ROW;
    return nest->shape[kept] >= NARROW || reduced < 0 || nest->shape[reduced] < SHORT_ROW ||
           can_join_rows(nest, op, kept, reduced);
}

/* Columns per tile, at most. From memory, long runs of a row are faster. */
static int64_t max_tile(const tarn__reduction *p)
{
    if (p->joined > 1)
        return p->columns;
    if (!p->by_columns)
        return min_i64(256, max_i64(1, TARN__PIECE / max_i64(1, p->count)));
    if (!p->direct)
        return LOADED_COLUMNS;
    return p->count * p->columns * p->outer * p->x_size <= CACHED ? CACHED_COLUMNS : TARN__COLUMNS;
}

/* Cuts tiles and chunks, by size only. */
static void choose_tasks(tarn__reduction *p)
{
    int64_t max_columns = max_tile(p);
    p->tiles = ceil_div(p->columns, max_columns);
    p->tile = ceil_div(p->columns, p->tiles);
    /* Whole vectors and cache lines per tile. */
    if (p->tiles > 1 && p->tile > 64)
        p->tile = min_i64(max_columns, ceil_div(p->tile, 64) * 64);
    p->tiles = ceil_div(p->columns, p->tile);
    int64_t tasks = p->outer * p->tiles, unit = p->by_columns ? TARN__ROWS : TARN__PIECE;
    p->chunk = p->rows;
    /* Chunks are multiples of the unit that accumulators take, so that only the last chunk has a partial one. */
    if (tasks < TASKS) {
        int64_t chunks = min_i64(ceil_div(p->count * p->tile, CHUNK), ceil_div(2 * TASKS, tasks));
        p->chunk = ceil_div(ceil_div(p->rows, max_i64(1, chunks)), unit) * unit;
    }
    p->chunks = p->rows > p->chunk ? ceil_div(p->rows, p->chunk) : 1;
}

/* Sorts axes into outer, column and reduced; `kept` is the column axis, -1: none. */
static void sort_axes(tarn__reduction *p, const tarn__nest *nest, int kept)
{
    for (int i = 0; i < nest->rank; i++) {
        if (is_reduced(nest, i)) {
            p->reduced_shape[p->reduced_rank] = nest->shape[i];
            p->reduced_x[p->reduced_rank++] = nest->stride[0][i];
            p->rows *= nest->shape[i];
        } else if (i == kept) {
            p->columns = nest->shape[i];
            p->column_x = nest->stride[0][i], p->column_y = nest->stride[1][i], p->column_aux = nest->stride[2][i];
        } else {
            p->outer_shape[p->outer_rank] = nest->shape[i];
            p->outer_x[p->outer_rank] = nest->stride[0][i], p->outer_y[p->outer_rank] = nest->stride[1][i];
            p->outer_aux[p->outer_rank++] = nest->stride[2][i];
            p->outer *= nest->shape[i];
        }
    }
    /* Nothing reduced: a row of one element, so that loops need no special case. */
    if (p->reduced_rank == 0)
        p->reduced_shape[p->reduced_rank++] = 1;
    p->count = p->rows;
}

/* True where elements can be read in place: contiguous, in a dtype the reducer reads, and in long enough runs. */
static void choose_direct(tarn__reduction *p)
{
    static const tarn_dtype native[] = {TARN_F32, TARN_F64, TARN_I64};
    const tarn__reducer *op = p->reducer;
    int last = p->reduced_rank - 1;
    bool other = op->add_row_other && p->x_dtype == op->other;
    bool dense = p->by_columns ? p->column_x == 1 || p->columns == 1 : p->reduced_x[last] == 1 || p->count == 1;
    bool broken = !p->by_columns && last > 0 && p->reduced_shape[last] < SHORT_RUN;
    p->direct = dense && !broken && (other || p->x_dtype == native[op->compute]);
    p->other = p->direct && other;
}

/* One state per part, chunk and output; none where there is one chunk. */
static size_t scratch_bytes(const tarn__reduction *p)
{
    return p->chunks == 1 ? 0 : sizeof(tarn__acc) * (size_t)(p->reducer->parts * p->chunks * p->outer * p->columns);
}

size_t TARN__AT_LEVEL(tarn__describe_reduction)(tarn__reduction *p, const tarn__reducer *reducer, const tarn__view *x,
                                                const tarn__view *y, const tarn__view *aux)
{
    tarn__nest nest;
    tarn__nest_make(&nest, 3, (const tarn__view *[]){x, y, aux});
    *p = (tarn__reduction){
        .reducer = reducer, .x_dtype = x->dtype, .y_dtype = y->dtype, .columns = 1, .rows = 1, .joined = 1, .outer = 1};
    p->x_size = (int64_t)tarn__dtype_bytes(x->dtype);
    p->y_size = (int64_t)tarn__dtype_bytes(y->dtype);
    if (aux) {
        p->aux_dtype = aux->dtype;
        p->aux_size = (int64_t)tarn__dtype_bytes(aux->dtype);
    }
    int kept = nest.rank - 1, reduced = nest.rank - 1;
    while (kept >= 0 && is_reduced(&nest, kept))
        kept--;
    while (reduced >= 0 && !is_reduced(&nest, reduced))
        reduced--;
    sort_axes(p, &nest, kept);
    p->is_empty = p->columns * p->outer == 0;
    if (p->is_empty)
        return 0;
    p->by_columns = choose_columns(&nest, reducer, kept, reduced);
    choose_direct(p);
    if (p->by_columns && p->rows > 0 && can_join_rows(&nest, reducer, kept, reduced))
        join_rows(p);
    choose_tasks(p);
    return scratch_bytes(p);
}

/* ---- walking the reduced elements -------------------------------------------------------------------------------- */

/* A position among the reduced elements of an output. */
typedef struct walk {
    int64_t index[TARN_MAX_RANK];
    int64_t offset; /* of the element at the index, in elements of x */
} walk;

/* To reduced element `at`: divisions once per chunk, walk_on() afterwards. */
static void walk_to(const tarn__reduction *p, walk *w, int64_t at)
{
    w->offset = 0;
    for (int i = p->reduced_rank - 1; i >= 0; i--) {
        w->index[i] = at % p->reduced_shape[i];
        at /= p->reduced_shape[i];
        w->offset += w->index[i] * p->reduced_x[i];
    }
}

/* Advances by `by` elements, not past the end of the innermost axis. */
static void walk_on(const tarn__reduction *p, walk *w, int64_t by)
{
    int i = p->reduced_rank - 1;
    w->index[i] += by;
    w->offset += by * p->reduced_x[i];
    for (; i > 0 && w->index[i] == p->reduced_shape[i]; i--) {
        w->offset += p->reduced_x[i - 1] - w->index[i] * p->reduced_x[i];
        w->index[i] = 0;
        w->index[i - 1]++;
    }
}

/* ---- one task ---------------------------------------------------------------------------------------------------- */

/* States of a tile, one array per part. */
typedef struct states {
    _Alignas(64) tarn__acc first[TARN__COLUMNS];
    _Alignas(64) tarn__acc second[TARN__COLUMNS];
} states;

/* Per-task memory, on the stack: about 176 KiB, uninitialized until used. */
typedef struct workspace {
    tarn__columns columns;
    states state, fresh;
    _Alignas(64) tarn__acc aux[TARN__COLUMNS];
    _Alignas(64) char buffer[BUFFER];
} workspace;

/* Bytes of an element in the compute type. */
static int64_t compute_size(const tarn__reduction *p)
{
    return p->reducer->compute == COMPUTE_F32 ? 4 : 8;
}

/* Reduces elements [begin, end) of one output, whose element 0 is at x, into a state. */
static void run_row(const tarn__reduction *p, workspace *w, const char *x, const void *aux, int64_t begin, int64_t end,
                    tarn__acc *a, tarn__acc *b)
{
    const tarn__reducer *op = p->reducer;
    int last = p->reduced_rank - 1;
    int64_t start = begin, run = p->reduced_shape[last], stride = p->reduced_x[last], size = compute_size(p);
    tarn__load_fn load = tarn__load[p->x_dtype][op->compute];
    walk at;
    if (begin < end)
        walk_to(p, &at, begin);
    while (begin < end) {
        int64_t n = min_i64(min_i64(run - at.index[last], end - begin), TARN__PIECE);
        if (p->direct) {
            (p->other ? op->add_row_other : op->add_row)(a, b, x + at.offset * p->x_size, n, begin - start, aux);
            walk_on(p, &at, n);
            begin += n;
            continue;
        }
        /* Short runs are gathered into one piece: the reducer is called once for many of them. */
        int64_t filled = 0, wanted = min_i64(end - begin, TARN__PIECE);
        for (; filled < wanted; filled += n) {
            n = min_i64(run - at.index[last], wanted - filled);
            load(x + at.offset * p->x_size, stride, w->buffer + filled * size, n);
            walk_on(p, &at, n);
        }
        op->add_row(a, b, w->buffer, filled, begin - start, aux);
        begin += filled;
    }
}

/* By rows: each output of the tile in turn. The common case, one contiguous row that fits a piece, skips the walk. */
static void run_rows(const tarn__reduction *p, workspace *w, const char *x, int64_t width, int64_t begin, int64_t end)
{
    const tarn__reducer *op = p->reducer;
    int64_t step = p->column_x * p->x_size, size = compute_size(p);
    bool simple = p->direct && p->reduced_rank == 1 && end - begin <= TARN__PIECE && begin < end;
    for (int64_t c = 0; c < width; c++, x += step) {
        const void *aux = p->aux ? (const char *)w->aux + c * size : NULL;
        tarn__acc *a = &w->state.first[c], *b = &w->state.second[c];
        if (simple)
            (p->other ? op->add_row_other : op->add_row)(a, b, x + begin * p->x_size, end - begin, 0, aux);
        else
            run_row(p, w, x, aux, begin, end, a, b);
    }
}

/* Number of rows from `at` with equal width: the last row of a joined axis may be narrower. */
static int rows_alike(const tarn__reduction *p, const walk *at, int64_t max_rows, int64_t *width)
{
    int last = p->reduced_rank - 1;
    *width *= p->joined;
    if (p->joined == 1 || p->last_joined == p->joined)
        return (int)max_rows;
    int64_t before = p->reduced_shape[last] - 1 - at->index[last];
    if (before > 0)
        return (int)min_i64(max_rows, before);
    *width = *width / p->joined * p->last_joined;
    return 1;
}

/* Pointers to `rows` contiguous rows from a position on, converted where needed. */
static void fetch_rows(const tarn__reduction *p, workspace *w, const char *x, walk *at, int rows, int64_t width,
                       const void **row)
{
    tarn__load_fn load = tarn__load[p->x_dtype][p->reducer->compute];
    int64_t size = compute_size(p);
    for (int i = 0; i < rows; i++) {
        row[i] = x + at->offset * p->x_size;
        if (!p->direct) {
            char *loaded = w->buffer + i * width * size;
            load(row[i], p->joined > 1 ? 1 : p->column_x, loaded, width);
            row[i] = loaded;
        }
        walk_on(p, at, 1);
    }
}

/* Merges the states of joined rows. */
static void merge_joined(const tarn__reduction *p, states *state, int64_t width)
{
    tarn__acc *into[] = {state->first, state->second};
    for (int64_t k = 1; k < p->joined; k++) {
        const tarn__acc *from[] = {state->first + k * width, state->second + k * width};
        p->reducer->merge(into, from, width, 1, 1);
    }
}

/* By columns: TARN__BLOCK_ROWS rows into narrow accumulators, then into the states, which are merged in order. */
static void run_columns(const tarn__reduction *p, workspace *w, const char *x, int64_t width, int64_t begin,
                        int64_t end)
{
    const tarn__reducer *op = p->reducer;
    tarn__acc *state[] = {w->state.first, w->state.second}, *fresh[] = {w->fresh.first, w->fresh.second};
    const void *row[TARN__ROWS];
    int64_t joined_width = width * p->joined, start = begin, size = compute_size(p);
    int64_t max_rows = p->direct ? TARN__ROWS : min_i64(TARN__ROWS, BUFFER / (joined_width * size));
    walk at;
    walk_to(p, &at, begin);
    while (begin < end) {
        int64_t block = min_i64(TARN__BLOCK_ROWS, end - begin);
        op->init_columns(&w->columns, joined_width);
        for (int64_t done = 0; done < block;) {
            int64_t here = width;
            int rows = rows_alike(p, &at, min_i64(max_rows, block - done), &here);
            fetch_rows(p, w, x, &at, rows, here, row);
            (p->other ? op->add_columns_other : op->add_columns)(&w->columns, row, rows, here, done,
                                                                 p->aux ? w->aux : NULL);
            done += rows;
        }
        /* The first block initializes the states directly; later ones go through `fresh`. */
        bool first = begin == start;
        op->read_columns(&w->columns, joined_width, first ? state : fresh);
        if (!first)
            op->merge(state, (const tarn__acc *const *)fresh, joined_width, begin - start, block);
        begin += block;
    }
    merge_joined(p, &w->state, width);
}

/* Where a task's columns are. */
typedef struct task_position {
    int64_t x, y, aux; /* in elements from the first */
    int64_t first;     /* number of the first output, in the order of outer positions and columns */
    int64_t width;
} task_position;

/* Outer position and tile to offsets. */
static task_position locate(const tarn__reduction *p, int64_t outer, int64_t tile)
{
    int64_t column = tile * p->tile;
    task_position at = {column * p->column_x, column * p->column_y, column * p->column_aux, outer * p->columns + column,
                        min_i64(p->tile, p->columns - column)};
    for (int i = p->outer_rank - 1; i >= 0; i--) {
        int64_t index = outer % p->outer_shape[i];
        outer /= p->outer_shape[i];
        at.x += index * p->outer_x[i];
        at.y += index * p->outer_y[i];
        at.aux += index * p->outer_aux[i];
    }
    return at;
}

/* States become results in place, then y's dtype. */
static void store_results(const tarn__reduction *p, states *state, const task_position *at)
{
    const tarn__reducer *op = p->reducer;
    tarn__acc *part[] = {state->first, state->second};
    if (op->finish)
        op->finish(part, at->width, p->count, p->params);
    tarn__store_fn store = tarn__store[p->y_dtype][op->integer_result ? COMPUTE_I64 : COMPUTE_F64];
    store(part[op->result], p->y + at->y * p->y_size, p->column_y, at->width);
    if (p->second)
        tarn__store[TARN_F64][COMPUTE_F64](state->second, p->second + at->y, p->column_y, at->width);
}

/* Scratch is [part][chunk][output]. */
static tarn__acc *partial(const tarn__reduction *p, int part, int64_t chunk, int64_t first)
{
    return (tarn__acc *)p->scratch + ((part * p->chunks + chunk) * p->outer * p->columns + first);
}

/* The neutral element of every output of a tile. */
static void start_states(const tarn__reducer *op, states *state, int64_t width)
{
    for (int64_t c = 0; c < width; c++)
        state->first[c] = op->start[0];
    for (int64_t c = 0; op->parts > 1 && c < width; c++)
        state->second[c] = op->start[1];
}

/* Tasks are numbered tiles fastest, then chunks, then outer positions: the memory order of a contiguous x. */
static void run_tasks(int64_t begin, int64_t end, void *ctx)
{
    const tarn__reduction *p = ctx;
    const tarn__reducer *op = p->reducer;
    workspace w;
    for (int64_t task = begin; task < end; task++) {
        int64_t outer_chunk = task / p->tiles, chunk = outer_chunk % p->chunks, first = chunk * p->chunk;
        task_position at = locate(p, outer_chunk / p->chunks, task % p->tiles);
        if (!p->by_columns || p->rows == 0)
            start_states(op, &w.state, at.width);
        if (p->aux)
            tarn__load[p->aux_dtype][op->compute](p->aux + at.aux * p->aux_size, p->column_aux, w.aux, at.width);
        const char *x = p->x + at.x * p->x_size;
        int64_t end_row = min_i64(p->rows, first + p->chunk);
        (p->by_columns && p->rows > 0 ? run_columns : run_rows)(p, &w, x, at.width, first, end_row);
        if (p->chunks == 1) {
            store_results(p, &w.state, &at);
            continue;
        }
        memcpy(partial(p, 0, chunk, at.first), w.state.first, sizeof(tarn__acc) * (size_t)at.width);
        if (op->parts > 1)
            memcpy(partial(p, 1, chunk, at.first), w.state.second, sizeof(tarn__acc) * (size_t)at.width);
    }
}

/* Second pass, where there are chunks: merges them in order from the start state. */
static void merge_tasks(int64_t begin, int64_t end, void *ctx)
{
    const tarn__reduction *p = ctx;
    const tarn__reducer *op = p->reducer;
    states state;
    tarn__acc *into[] = {state.first, state.second};
    for (int64_t task = begin; task < end; task++) {
        task_position at = locate(p, task / p->tiles, task % p->tiles);
        start_states(op, &state, at.width);
        for (int64_t chunk = 0, taken = 0; chunk < p->chunks; chunk++) {
            int64_t rows = min_i64(p->chunk, p->rows - taken);
            const tarn__acc *from[] = {partial(p, 0, chunk, at.first), partial(p, op->parts - 1, chunk, at.first)};
            op->merge(into, from, at.width, taken, rows);
            taken += rows;
        }
        store_results(p, &state, &at);
    }
}

/* Reads x once; parallel over tasks, then over outputs where chunks must be merged. */
void TARN__AT_LEVEL(tarn__run_reduction)(const tarn__reduction *described, const tarn__reduction_operands *operands)
{
    if (described->is_empty)
        return;
    tarn__reduction p = *described;
    p.x = tarn__view_at(operands->x);
    p.y = tarn__view_at(operands->y);
    p.aux = operands->aux ? tarn__view_at(operands->aux) : NULL;
    p.second = operands->second;
    p.params = operands->params;
    p.scratch = operands->scratch;
    int64_t elements = max_i64(1, p.chunk * p.tile * p.joined), grain = max_i64(1, GRAIN / elements);
    tarn__parallel_for(p.outer * p.tiles * p.chunks, grain, run_tasks, &p);
    if (p.chunks > 1)
        tarn__parallel_for(p.outer * p.tiles, max_i64(1, GRAIN / (p.chunks * p.tile)), merge_tasks, &p);
}

tarn__plan_status TARN__AT_LEVEL(tarn__prepare_reduce)(const tarn__call *call, tarn__plan *plan,
                                                       const tarn__reducer *reducers)
{
    tarn__reduction *r = tarn__plan_reserve(plan, sizeof(*r));
    const tarn__view *x = call->in[0];
    if (!r)
        return TARN__PLAN_FAILED;
    plan->scratch_bytes =
        TARN__AT_LEVEL(tarn__describe_reduction)(r, &reducers[tarn__compute_of(x->dtype)], x, call->out[0], NULL);
    return TARN__PLAN_READY;
}

void TARN__AT_LEVEL(tarn__kernel_reduce)(const tarn__call *call)
{
    TARN__AT_LEVEL(tarn__run_reduction)
    (tarn__plan_job(call->plan),
     &(tarn__reduction_operands){
         .x = call->in[0], .y = call->out[0], .params = call->params, .scratch = call->scratch});
}
