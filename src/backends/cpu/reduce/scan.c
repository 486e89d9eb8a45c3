/* scan.c: cumulative sums along an axis, in f64 (i64 for integers) for every dtype.
 *
 * By columns where another axis is denser in memory: a tile of running sums goes along the axis. By rows otherwise;
 * few long rows are cut into chunks by size: sums of chunks first, then an exclusive scan of these, then all
 * chunks. */
#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/int_math.h"
#include "backends/cpu/reduce/reduce_loops.h"

#define TILE 1024         /* columns per tile, and elements of a row per load */
#define NARROW 16         /* fewer columns are processed as rows */
#define CHUNK (32 * 1024) /* elements per chunk of a row, and per task */
#define FEW_LINES 64

typedef union value {
    double real;
    int64_t integer;
} value;

/* A described scan; a reversed one starts at the last element with negated strides. run() sets addresses in a copy. */
typedef struct job {
    const char *x;
    char *y;
    int64_t x_size, y_size;
    bool real;
    bool is_f32; /* by columns: f32 to f32, contiguous rows */
    tarn__load_fn load;
    tarn__store_fn store;
    int64_t length, along_x, along_y; /* the axis */
    int64_t first_x, first_y;         /* elements before the first one of the scan */
    int64_t columns, column_x, column_y, tiles;
    int rank; /* of the other axes */
    int64_t shape[TARN_MAX_RANK], stride_x[TARN_MAX_RANK], stride_y[TARN_MAX_RANK];
    int64_t outer, chunk, chunks;
    value *before; /* [row][chunk]: sum of the chunk, then of all chunks before it */
} job;

/* The column axis is the densest axis other than the scanned one, if denser than that and wide enough. */
static void describe(job *p, const tarn__call *call)
{
    const tarn__view *x = call->in[0], *y = call->out[0];
    const tarn__along *along = call->params;
    bool real = tarn__is_float(x->dtype);
    *p = (job){.x_size = (int64_t)tarn__dtype_bytes(x->dtype),
               .y_size = (int64_t)tarn__dtype_bytes(y->dtype),
               .real = real,
               .load = tarn__load[x->dtype][real ? COMPUTE_F64 : COMPUTE_I64],
               .store = tarn__store[y->dtype][real ? COMPUTE_F64 : COMPUTE_I64],
               .length = 1,
               .columns = 1,
               .outer = 1};
    int axis = x->rank > 0 ? along->axis : -1, column = -1;
    if (axis >= 0)
        p->length = x->shape[axis], p->along_x = x->stride[axis], p->along_y = y->stride[axis];
    for (int i = 0; i < x->rank; i++)
        if (i != axis && x->shape[i] >= NARROW && abs_i64(x->stride[i]) < abs_i64(p->along_x) &&
            (column < 0 || abs_i64(x->stride[i]) <= abs_i64(x->stride[column])))
            column = i;
    /* The column axis leaves the outer axes. */
    if (column >= 0)
        p->columns = x->shape[column], p->column_x = x->stride[column], p->column_y = y->stride[column];
    for (int i = 0; i < x->rank; i++)
        if (i != axis && i != column) {
            p->shape[p->rank] = x->shape[i];
            p->stride_x[p->rank] = x->stride[i];
            p->stride_y[p->rank++] = y->stride[i];
            p->outer *= x->shape[i];
        }
    /* Reversed: start at the last element and walk backwards. */
    if (along->reverse && p->length > 0) {
        p->first_x = (p->length - 1) * p->along_x;
        p->first_y = (p->length - 1) * p->along_y;
        p->along_x = -p->along_x;
        p->along_y = -p->along_y;
    }
    p->is_f32 = x->dtype == TARN_F32 && y->dtype == TARN_F32 && p->column_x == 1 && p->column_y == 1;
    p->tiles = (p->columns + TILE - 1) / TILE;
    p->chunk = p->columns == 1 && p->outer < FEW_LINES && p->length > 2 * CHUNK ? CHUNK : p->length;
    p->chunks = p->chunk > 0 ? (p->length + p->chunk - 1) / p->chunk : 0;
}

static void locate(const job *p, int64_t outer, const char **x, char **y)
{
    int64_t at_x = 0, at_y = 0;
    for (int i = p->rank - 1; i >= 0; i--) {
        int64_t index = outer % p->shape[i];
        outer /= p->shape[i];
        at_x += index * p->stride_x[i];
        at_y += index * p->stride_y[i];
    }
    *x = p->x + at_x * p->x_size;
    *y = p->y + at_y * p->y_size;
}

/* ---- by columns -------------------------------------------------------------------------------------------------- */

/* One row of a tile of columns: sums in f64, results in f32. */
static void add_row(double *restrict sum, const float *restrict x, float *restrict y, int64_t width)
{
    for (int64_t c = 0; c < width; c++) {
        sum[c] += x[c];
        y[c] = (float)sum[c];
    }
}

/* f32 columns skip the load and store through f64 tiles: sums stay f64, results round as they are written. */
static void scan_f32_columns(const job *p, const char *x, char *y, int64_t width)
{
    double sum[TILE] = {0};
    for (int64_t i = 0; i < p->length; i++)
        add_row(sum, (const float *)(const void *)x + i * p->along_x, (float *)(void *)y + i * p->along_y, width);
}

/* A task is a tile of columns of one outer position, from the first row to the last. */
static void scan_columns(int64_t begin, int64_t end, void *ctx)
{
    const job *p = ctx;
    value sum[TILE], row[TILE];
    for (int64_t task = begin; task < end; task++) {
        const char *x;
        char *y;
        int64_t first = task % p->tiles * TILE, width = p->columns - first < TILE ? p->columns - first : TILE;
        locate(p, task / p->tiles, &x, &y);
        x += first * p->column_x * p->x_size;
        y += first * p->column_y * p->y_size;
        if (p->is_f32) {
            scan_f32_columns(p, x, y, width);
            continue;
        }
        memset(sum, 0, sizeof(sum));
        for (int64_t i = 0; i < p->length; i++) {
            p->load(x + i * p->along_x * p->x_size, p->column_x, row, width);
            if (p->real)
                for (int64_t c = 0; c < width; c++)
                    sum[c].real += row[c].real;
            else
                for (int64_t c = 0; c < width; c++)
                    sum[c].integer += row[c].integer;
            p->store(sum, y + i * p->along_y * p->y_size, p->column_y, width);
        }
    }
}

/* ---- by rows ----------------------------------------------------------------------------------------------------- */

/* In-place running sums of n values on top of `before`, ascending or descending; the dependency chain has one
 * addition per four elements. Returns the last sum. */
#define FIRST(i) (i)
#define LAST(i) (n - 1 - (i))
/* AT maps the i-th element in scan order to its place in memory. */
#define SCAN(name, T, part, AT) \
    static value scan_##name(value *x, int64_t n, value before) \
    { \
        T sum = before.part; \
        int64_t i = 0; \
        for (; i + 4 <= n; i += 4) { \
            T a = x[AT(i)].part, b = a + x[AT(i + 1)].part, c = b + x[AT(i + 2)].part, d = c + x[AT(i + 3)].part; \
            x[AT(i)].part = sum + a; \
            x[AT(i + 1)].part = sum + b; \
            x[AT(i + 2)].part = sum + c; \
            x[AT(i + 3)].part = sum += d; \
        } \
        for (; i < n; i++) \
            x[AT(i)].part = sum += x[AT(i)].part; \
        return (value){.part = sum}; \
    }
SCAN(real, double, real, FIRST)
SCAN(integer, int64_t, integer, FIRST)
SCAN(real_back, double, real, LAST)
SCAN(integer_back, int64_t, integer, LAST)

/* One chunk of a row: stored, or only summed. */
static value scan_chunk(const job *p, int64_t task, value before, bool storing)
{
    const char *x;
    char *y;
    value tile[TILE];
    int64_t i = task % p->chunks * p->chunk, end = i + p->chunk < p->length ? i + p->chunk : p->length;
    locate(p, task / p->chunks, &x, &y);
    /* Contiguous but reversed rows are loaded forwards and scanned from the end: strided loads are slower. */
    bool back = p->along_x == -1 && p->along_y == -1; /* reversed, but loaded and stored in memory order */
    value (*scan)(value *, int64_t, value) = p->real ? back ? scan_real_back : scan_real
                                             : back  ? scan_integer_back
                                                     : scan_integer;
    for (; i < end; i += TILE) {
        int64_t n = end - i < TILE ? end - i : TILE, first = back ? i + n - 1 : i;
        p->load(x + first * p->along_x * p->x_size, back ? 1 : p->along_x, tile, n);
        before = scan(tile, n, before);
        if (storing)
            p->store(tile, y + first * p->along_y * p->y_size, back ? 1 : p->along_y, n);
    }
    return before;
}

/* First pass over chunked rows: reads only. */
static void sum_chunks(int64_t begin, int64_t end, void *ctx)
{
    const job *p = ctx;
    for (int64_t task = begin; task < end; task++)
        p->before[task] = scan_chunk(p, task, (value){0}, false);
}

/* Final pass: each chunk starts from the sum of all before it. */
static void scan_chunks(int64_t begin, int64_t end, void *ctx)
{
    const job *p = ctx;
    for (int64_t task = begin; task < end; task++)
        scan_chunk(p, task, p->chunks > 1 ? p->before[task] : (value){0}, true);
}

/* Exclusive scan: from the sum of each chunk to the sum of all before it. */
static void sums_before(const job *p)
{
    for (int64_t row = 0; row < p->outer; row++) {
        value total = {0};
        for (int64_t k = 0; k < p->chunks; k++) {
            value *entry = &p->before[row * p->chunks + k], chunk_sum = *entry;
            *entry = total;
            if (p->real)
                total.real += chunk_sum.real;
            else
                total.integer += chunk_sum.integer;
        }
    }
}

static tarn__plan_status prepare_cumsum(const tarn__call *call, tarn__plan *plan)
{
    job *p = tarn__plan_reserve(plan, sizeof(*p));
    if (!p)
        return TARN__PLAN_FAILED;
    describe(p, call);
    plan->scratch_bytes = p->chunks > 1 ? sizeof(value) * (size_t)(p->outer * p->chunks) : 0;
    return TARN__PLAN_READY;
}

/* x is read once, or twice where lines are cut into chunks. */
static void kernel_cumsum(const tarn__call *call)
{
    job p = *(const job *)tarn__plan_job(call->plan);
    p.x = (char *)tarn__view_at(call->in[0]) + p.first_x * p.x_size;
    p.y = (char *)tarn__view_at(call->out[0]) + p.first_y * p.y_size;
    p.before = call->scratch;
    if (p.outer * p.columns * p.length == 0)
        return;
    if (p.columns > 1) {
        int64_t grain = CHUNK / (p.length * (p.columns < TILE ? p.columns : TILE));
        tarn__parallel_for(p.outer * p.tiles, grain > 0 ? grain : 1, scan_columns, &p);
        return;
    }
    int64_t grain = CHUNK / p.chunk > 0 ? CHUNK / p.chunk : 1;
    if (p.chunks > 1) {
        tarn__parallel_for(p.outer * p.chunks, grain, sum_chunks, &p);
        sums_before(&p);
    }
    tarn__parallel_for(p.outer * p.chunks, grain, scan_chunks, &p);
}

void TARN__AT_LEVEL(tarn__cpu_register_scan)(tarn__kernel_row *rows)
{
    rows[TARN__K_cumsum] = tarn__row_planned(prepare_cumsum, kernel_cumsum, TARN__ALL);
}
