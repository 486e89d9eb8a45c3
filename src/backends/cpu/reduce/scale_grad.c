/* scale_grad.c: gradients of x · w with w broadcast along axes of x: gx = g · w, and gw = sums of g · x, in one pass
 * over x and g.
 *
 * Two forms: w has one element per row (sums run along the innermost axis), or w is one row (sums run over rows, cut
 * into chunks by their number alone and added in order). ops/reduce/scale_grad.c uses no other.
 *
 * Sums of the first form run in f64 from block to block, those of the second in the compute type for F32_ROWS rows,
 * then in f64. */
#include "backends/cpu/common/nt_store.h"
#include "backends/cpu/common/rows.h"

#define CHUNKS 64   /* chunks of rows, at most */
#define MIN_ROWS 16 /* rows per chunk, at least */
#define F32_ROWS 64 /* products added in the compute type before they move to f64 */

enum { X, G, GX, W, GW };

/* One call. gx may be absent; gw never is. */
typedef struct job {
    row_set r; /* along the innermost axis; W and GW only where they have one element per row */
    bool by_row, nontemporal;
    const tarn__view *w, *gw;
    int64_t w_along, gw_along; /* strides of w and gw as rows */
    int64_t chunk, chunks, tiles;
    double *partial; /* (chunks, length) */
} job;

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Blocks of one type: gx = g · w, sum += g · x, and moving sums of T to f64. */
#define DEFINE_BLOCKS(T, NAME) \
    static void scale_##NAME(const void *from, const void *by, bool one, void *to, int64_t n) \
    { \
        const T *g = from, *w = by; \
        T *gx = to; \
        if (one) { \
            T factor = w[0]; \
            TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) gx[i] = g[i] * factor; \
        } else { \
            TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) gx[i] = g[i] * w[i]; \
        } \
    } \
    static void add_products_##NAME(const void *from, const void *with, void *to, int64_t n) \
    { \
        const T *g = from, *x = with; \
        T *sum = to; \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) sum[i] += g[i] * x[i]; \
    } \
    static void move_sums_##NAME(void *from, double *to, int64_t n) \
    { \
        T *sum = from; \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++) \
        { \
            to[i] += (double)sum[i]; \
            sum[i] = 0; \
        } \
    }

DEFINE_BLOCKS(float, f32)
DEFINE_BLOCKS(double, f64)

static void scale(const job *j, const void *g, const void *w, bool one, void *gx, int64_t n)
{
    (j->r.compute == COMPUTE_F32 ? scale_f32 : scale_f64)(g, w, one, gx, n);
}

/* Per-task buffers: 56 KiB of stack. */
typedef struct buffers {
    _Alignas(64) char x[BLOCK * 8], g[BLOCK * 8], gx[BLOCK * 8], narrow[BLOCK * 8], w[BLOCK * 8], sum[BLOCK * 8];
    double sum64[BLOCK];
} buffers;

/* n elements of a row of gx from g and w; non-temporal where gx exceeds the caches. */
static void write_gx(const job *j, buffers *b, char *row, int64_t begin, int64_t n, const void *g, const void *w,
                     bool one)
{
    const operand *o = &j->r.operand[GX];
    char *to = row + begin * o->size;
    if (!j->nontemporal || ((uintptr_t)to & 63) != 0) {
        scale(j, g, w, one, block_out(&j->r, GX, row, begin, b->gx), n);
        store_back(&j->r, GX, row, begin, n, b->gx);
        return;
    }
    scale(j, g, w, one, b->gx, n);
    bool native = is_in_place(&j->r, GX);
    if (!native)
        tarn__store[o->dtype][j->r.compute](b->gx, b->narrow, 1, n);
    tarn__nt_store(to, native ? b->gx : b->narrow, n * o->size);
}

/* ---- one element of w per row ------------------------------------------------------------------------------------ */

/* A task is a range of rows: gw[row] = Σ g · x in f64 over blocks, gx = g · w[row]. */
static void run_rows(int64_t first, int64_t end, void *ctx)
{
    const job *j = ctx;
    const row_set *r = &j->r;
    buffers b;
    for (int64_t row = first; row < end; row++) {
        const char *x = row_at(r, X, row), *g = row_at(r, G, row);
        char *gx = row_at(r, GX, row);
        double sum = 0;
        /* One factor for the whole row. */
        tarn__load[r->operand[W].dtype][r->compute](row_at(r, W, row), 1, b.w, 1);
        for (int64_t begin = 0; begin < r->length; begin += BLOCK) {
            int64_t n = r->length - begin < BLOCK ? r->length - begin : BLOCK;
            const void *from = fetch(r, G, g, begin, n, b.g), *with = fetch(r, X, x, begin, n, b.x);
            sum += r->compute == COMPUTE_F32 ? block_dot_f32(from, with, n) : block_dot_f64(from, with, n);
            if (gx)
                write_gx(j, &b, gx, begin, n, from, b.w, true);
        }
        tarn__store[r->operand[GW].dtype][COMPUTE_F64](&sum, row_at(r, GW, row), 1, 1);
    }
    if (j->nontemporal)
        tarn__nt_fence();
}

/* ---- w is one row ------------------------------------------------------------------------------------------------ */

/* A task is a chunk of rows and a block of columns. */
static void run_chunks(int64_t first, int64_t end, void *ctx)
{
    const job *j = ctx;
    const row_set *r = &j->r;
    buffers b;
    for (int64_t task = first; task < end; task++) {
        int64_t chunk = task / j->tiles, begin = task % j->tiles * BLOCK,
                n = r->length - begin < BLOCK ? r->length - begin : BLOCK;
        int64_t row = chunk * j->chunk, stop = row + j->chunk < r->count ? row + j->chunk : r->count;
        tarn__load[j->w->dtype][r->compute]((char *)tarn__view_at(j->w) +
                                                begin * j->w_along * (int64_t)tarn__dtype_bytes(j->w->dtype),
                                            j->w_along, b.w, n);
        memset(b.sum, 0, sizeof(b.sum));
        memset(b.sum64, 0, sizeof(b.sum64));
        for (int64_t done = 1; row < stop; row++, done++) {
            char *gx = row_at(r, GX, row);
            const void *from = fetch(r, G, row_at(r, G, row), begin, n, b.g),
                       *with = fetch(r, X, row_at(r, X, row), begin, n, b.x);
            (r->compute == COMPUTE_F32 ? add_products_f32 : add_products_f64)(from, with, b.sum, n);
            if (gx)
                write_gx(j, &b, gx, begin, n, from, b.w, false);
            /* The compute type holds at most F32_ROWS products per sum. */
            if (done % F32_ROWS == 0)
                (r->compute == COMPUTE_F32 ? move_sums_f32 : move_sums_f64)(b.sum, b.sum64, n);
        }
        (r->compute == COMPUTE_F32 ? move_sums_f32 : move_sums_f64)(b.sum, b.sum64, n);
        memcpy(j->partial + chunk * r->length + begin, b.sum64, sizeof(double) * (size_t)n);
    }
    if (j->nontemporal)
        tarn__nt_fence();
}

/* Sums the chunks' partial gw in order, element by element. */
static void add_chunks(int64_t first, int64_t end, void *ctx)
{
    const job *j = ctx;
    int64_t size = (int64_t)tarn__dtype_bytes(j->gw->dtype);
    for (int64_t i = first; i < end; i++) {
        double sum = 0;
        for (int64_t chunk = 0; chunk < j->chunks; chunk++)
            sum += j->partial[chunk * j->r.length + i];
        tarn__store[j->gw->dtype][COMPUTE_F64](&sum, (char *)tarn__view_at(j->gw) + i * j->gw_along * size, 1, 1);
    }
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Views and scratch of the call: a plan has none. */
static void bind(job *j, const tarn__call *call)
{
    rows_bind(&j->r, 5,
              (const tarn__view *[]){call->in[0], call->in[2], call->out[0], j->by_row ? call->in[1] : NULL,
                                     j->by_row ? call->out[1] : NULL});
    j->w = call->in[1];
    j->gw = call->out[1];
    j->partial = call->scratch;
}

static void describe(job *j, const tarn__call *call)
{
    const tarn__view *x = call->in[0], *w = call->in[1], *g = call->in[2], *gx = call->out[0], *gw = call->out[1];
    int axis = tarn__view_innermost(x);
    *j = (job){.by_row = gw->shape[axis] == 1, .w_along = w->stride[axis], .gw_along = gw->stride[axis]};
    const tarn__view *views[] = {x, g, gx, j->by_row ? w : NULL, j->by_row ? gw : NULL};
    rows_describe(&j->r, axis, 5, views);
    j->nontemporal = gx && gx->stride[axis] == 1 &&
                     tarn__view_count(gx) * (int64_t)tarn__dtype_bytes(gx->dtype) >= TARN__NT_STORE_MIN;
    j->chunk = (j->r.count + CHUNKS - 1) / CHUNKS;
    j->chunk = j->chunk > MIN_ROWS ? j->chunk : MIN_ROWS;
    j->chunks = (j->r.count + j->chunk - 1) / j->chunk;
    j->tiles = (j->r.length + BLOCK - 1) / BLOCK;
}

static tarn__plan_status prepare_scale_grad(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    describe(j, call);
    plan->scratch_bytes = j->by_row ? 0 : sizeof(double) * (size_t)(j->chunks * j->r.length);
    return TARN__PLAN_READY;
}

/* Reads x and g once, writes gx once: 3 · n elements of traffic. */
static void kernel_scale_grad(const tarn__call *call)
{
    job j = *(const job *)tarn__plan_job(call->plan);
    bind(&j, call);
    if (j.by_row) {
        tarn__parallel_for(j.r.count, rows_grain(&j.r), run_rows, &j);
        return;
    }
    int64_t elements = j.chunk * (j.r.length < BLOCK ? j.r.length : BLOCK);
    tarn__parallel_for(j.chunks * j.tiles, 1 + ROWS_GRAIN / elements, run_chunks, &j);
    tarn__parallel_for(j.r.length, 1 + ROWS_GRAIN / j.chunks, add_chunks, &j);
}

void TARN__AT_LEVEL(tarn__cpu_register_scale_grad)(tarn__kernel_row *rows)
{
    rows[TARN__K_scale_grad] = tarn__row_planned(prepare_scale_grad, kernel_scale_grad, TARN__FLOATS);
}
