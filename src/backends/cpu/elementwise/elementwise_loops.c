/* elementwise_loops.c: runs tile functions over strided operands.
 *
 * A call becomes a plan: a collapsed loop nest and, per operand, how its elements reach a tile: in place, as a
 * constant, or through a buffer. The nest is cut into tasks of `grain` elements and tiles of at most TILE, by shape
 * alone. Nothing is allocated: buffers are on the stack of each task. */
#include "backends/cpu/elementwise/elementwise_loops.h"

#include <string.h>

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/nt_store.h"
#include "backends/cpu/elementwise/two_paths.h"

#define TILE 1024
#define GRAIN (32 * TILE) /* elements per task */
#define CHUNKS 64         /* tasks of a large call with long tiles: up to 8 grains each */
/* its f32 kernels branch per vector, not per tile, and results are not stored non-temporally */
#if defined(__aarch64__)
#define LONG_TILES 1
#else
#define LONG_TILES 0
#endif
#define ROW_MIN 128 /* rows at least this long are tiled one by one, so that their elements can be used in place */

/* How one operand's elements reach a tile. */
typedef struct operand {
    char *base;
    int64_t size;          /* bytes per element */
    const int64_t *stride; /* in the nest */
    bool linear;           /* element k of the nest is at base + k · size */
    bool native;           /* its dtype is the compute type */
    bool constant;
    tarn__scalar value;
    tarn__load_fn load;
    tarn__store_fn store;
} operand;

/* A described call, read-only while tasks run. */
typedef struct plan {
    tarn__nest nest;
    const tarn__tile_job *job;
    const tarn__elementwise *params;
    int inputs, outputs;
    int64_t tile, grain; /* elements per tile, and per task */
    bool by_row;
    bool direct_rows; /* by row, two axes, and every operand in place */
    bool nontemporal; /* non-temporal stores for linear results */
    bool is_exact;    /* result independent of the instructions: simple rows, integers, comparisons */
    bool broadcast;   /* input 1 is one element per tile, and the job has a form for that */
    operand in[TARN__MAX_OPERANDS], out[TARN__MAX_OUTPUTS];
} plan;

/* bool results: the tile already wrote bytes of 0 and 1. */
static void store_bytes(const void *from, void *to, int64_t stride, int64_t n)
{
    const uint8_t *source = from;
    uint8_t *target = to;
    for (int64_t i = 0; i < n; i++)
        target[i * stride] = source[i];
}

static const tarn_dtype native_dtype[] = {TARN_F32, TARN_F64, TARN_I64};

/* Operand k of the nest; outputs come first there. */
static operand describe(const plan *p, const tarn__view *view, int k)
{
    operand o = {.base = tarn__view_at(view),
                 .size = (int64_t)tarn__dtype_bytes(view->dtype),
                 .stride = p->nest.stride[k],
                 .linear = tarn__nest_is_contiguous(&p->nest, k),
                 .native = view->dtype == native_dtype[p->job->compute],
                 .load = tarn__load[view->dtype][p->job->compute],
                 .store = tarn__store[view->dtype][p->job->compute]};
    return o;
}

/* Index of element `at` of the nest on each axis. */
static void locate(const tarn__nest *nest, int64_t at, int64_t *index)
{
    for (int i = nest->rank - 1; i >= 0; i--) {
        index[i] = at % nest->shape[i];
        at /= nest->shape[i];
    }
}

/* Offset of an index in an operand, in elements. */
static int64_t element_offset(const operand *o, const int64_t *index, int rank)
{
    int64_t offset = 0;
    for (int i = 0; i < rank; i++)
        offset += index[i] * o->stride[i];
    return offset;
}

/* Moves an index by `by` elements within its innermost row, carrying into outer axes at its end. */
static void advance(const tarn__nest *nest, int64_t *index, int64_t by)
{
    int i = nest->rank - 1;
    for (index[i] += by; i > 0 && index[i] >= nest->shape[i]; i--) {
        index[i] = 0;
        index[i - 1]++;
    }
}

/* Moves n elements from position `at` between an operand and a tile, row by row. */
static void move_rows(const plan *p, const operand *o, const int64_t *at, char *tile, int64_t tile_size, int64_t n,
                      bool storing)
{
    int64_t index[TARN_MAX_RANK], inner = p->nest.shape[p->nest.rank - 1], stride = o->stride[p->nest.rank - 1];
    memcpy(index, at, sizeof(index));
    for (int64_t done = 0; done < n;) {
        int64_t here = inner - index[p->nest.rank - 1];
        here = here < n - done ? here : n - done;
        char *at_index = o->base + element_offset(o, index, p->nest.rank) * o->size;
        if (storing)
            o->store(tile + done * tile_size, at_index, stride, here);
        else
            o->load(at_index, stride, tile + done * tile_size, here);
        done += here;
        advance(&p->nest, index, here);
    }
}

/* Address of the operand's elements where they can be used in place; else NULL. */
static char *in_place(const plan *p, const operand *o, int64_t begin, const int64_t *index)
{
    if (!o->native)
        return NULL;
    if (o->linear)
        return o->base + begin * o->size;
    if (p->by_row && o->stride[p->nest.rank - 1] == 1)
        return o->base + element_offset(o, index, p->nest.rank) * o->size;
    return NULL;
}

/* A whole tile once per task, not once per tile. */
static void fill_constant(int compute, tarn__scalar value, void *tile)
{
    for (int i = 0; i < TILE; i++)
        if (compute == COMPUTE_F32)
            ((float *)tile)[i] = (float)value.real;
        else if (compute == COMPUTE_F64)
            ((double *)tile)[i] = value.real;
        else
            ((int64_t *)tile)[i] = value.integer;
}

/* Per-task tiles: on the stack, uninitialized. */
typedef struct buffers {
    _Alignas(64) char tile[TARN__MAX_OPERANDS][TILE * 8];
    _Alignas(64) char narrow[TILE * 8];
    const void *in[TARN__MAX_OPERANDS];
    void *out[TARN__MAX_OUTPUTS];
    /* source of the elements in an input's tile, where they are the start of one row */
    const char *address[TARN__MAX_OPERANDS];
    int64_t cached_count[TARN__MAX_OPERANDS];
} buffers;

/* Loads n elements of a non-linear input into its tile. A broadcast row is still there from the previous tile. */
static void load_rows(const plan *p, buffers *b, int k, int64_t size, int64_t n, const int64_t *index)
{
    const operand *o = &p->in[k];
    const char *from = p->by_row ? o->base + element_offset(o, index, p->nest.rank) * o->size : NULL;
    /* Rows that broadcast along an outer axis come back tile after tile. */
    if (from && from == b->address[k] && n <= b->cached_count[k])
        return;
    move_rows(p, o, index, b->tile[k], size, n, false);
    b->address[k] = from;
    b->cached_count[k] = n;
}

/* Address of the one element of input 1 that a tile needs. */
static const void *broadcast_element(const plan *p, buffers *b, const int64_t *index)
{
    const operand *o = &p->in[1];
    const char *from = o->base + element_offset(o, index, p->nest.rank) * o->size;
    if (o->native)
        return from;
    o->load(from, 1, b->tile[1], 1);
    return b->tile[1];
}

/* Stores a linear result non-temporally, converted first if needed. */
static void nt_store_result(const operand *o, buffers *b, int k, int64_t begin, int64_t n)
{
    const char *from = b->out[k];
    if (!o->native) {
        o->store(b->out[k], b->narrow, 1, n);
        from = b->narrow;
    }
    tarn__nt_store(o->base + begin * o->size, from, n * o->size);
}

/* Only linear results at aligned addresses. */
static bool is_nontemporal(const plan *p, const operand *o, int64_t begin)
{
    return p->nontemporal && o->linear && ((uintptr_t)(o->base + begin * o->size) & 63) == 0;
}

/* ---- tiles of any length by whole vectors ------------------------------------------------------------------------ */

#define MULTIPLE TARN__TILE_MULTIPLE

/* One TARN__TILE_MULTIPLE of every operand. */
typedef struct padded {
    _Alignas(64) char in[TARN__MAX_OPERANDS][MULTIPLE * 8];
    _Alignas(64) char out[TARN__MAX_OUTPUTS][MULTIPLE * 8];
} padded;

/* Copy sizes are constants where these are inlined: a copy is one or two vectors. */
#define REMAINDERS(real, t, attributes) \
    /* n elements, fewer than TARN__TILE_MULTIPLE, padded with copies of the first */ \
    static inline void pad_few_##t(real *to, const real *from, int64_t n) \
    { \
        for (int i = 0; i < MULTIPLE; i++) \
            to[i] = from[0]; \
        for (int64_t i = 1; i < n; i++) \
            to[i] = from[i]; \
    } \
    /* fewer elements than TARN__TILE_MULTIPLE */ \
    attributes static void run_few_##t(const plan *p, tarn__tile_fn tile, int64_t n, const void *const *in, \
                                       void *const *out) \
    { \
        padded r; \
        const void *from[TARN__MAX_OPERANDS]; \
        void *to[TARN__MAX_OUTPUTS]; \
        for (int k = 0; k < p->inputs; k++) { \
            from[k] = r.in[k]; \
            pad_few_##t((real *)r.in[k], in[k], k == 1 && p->broadcast ? 1 : n); \
        } \
        for (int k = 0; k < p->outputs; k++) \
            to[k] = r.out[k]; \
        tile(MULTIPLE, from, to, p->params); \
        for (int k = 0; k < p->outputs; k++) \
            for (int64_t i = 0; i < n; i++) \
                ((real *)out[k])[i] = ((const real *)r.out[k])[i]; \
    } \
    /* more: the remainder is recomputed together with the elements before it, whose results are the same again. \
     * Operands are copied first, since an output may alias them */ \
    attributes static void run_with_remainder_##t(const plan *p, tarn__tile_fn tile, int64_t n, const void *const *in, \
                                                  void *const *out) \
    { \
        padded r; \
        const void *from[TARN__MAX_OPERANDS]; \
        void *to[TARN__MAX_OUTPUTS]; \
        for (int k = 0; k < p->inputs; k++) { \
            from[k] = r.in[k]; \
            if (k == 1 && p->broadcast) \
                memcpy(r.in[k], in[k], sizeof(real)); \
            else \
                memcpy(r.in[k], (const real *)in[k] + n - MULTIPLE, sizeof(real) * MULTIPLE); \
        } \
        for (int k = 0; k < p->outputs; k++) \
            to[k] = r.out[k]; \
        tile(n - n % MULTIPLE, in, out, p->params); \
        tile(MULTIPLE, from, to, p->params); \
        for (int k = 0; k < p->outputs; k++) \
            memcpy((real *)out[k] + n - MULTIPLE, r.out[k], sizeof(real) * MULTIPLE); \
    } \
    static inline void run_any_##t(const plan *p, tarn__tile_fn tile, int64_t n, const void *const *in, \
                                   void *const *out) \
    { \
        if (n < MULTIPLE) \
            run_few_##t(p, tile, n, in, out); \
        else \
            run_with_remainder_##t(p, tile, n, in, out); \
    }
REMAINDERS(float, f32, )
REMAINDERS(double, f64, TARN__COLD)

/* Runs a tile of any length; floats by whole multiples, so that a result does not depend on its position. */
static inline void call_tile(const plan *p, int64_t n, const void *const *in, void *const *out)
{
    /* Whole multiples need no padding; exact rows may be split anywhere. */
    const tarn__tile_fn tile = p->broadcast ? p->job->broadcast : p->job->tile;
    if (n % MULTIPLE == 0 || p->is_exact)
        tile(n, in, out, p->params);
    else if (p->job->compute == COMPUTE_F32)
        run_any_f32(p, tile, n, in, out);
    else
        run_any_f64(p, tile, n, in, out);
}

/* Fetches inputs, runs the tile, stores outputs: each step skipped where the operand is in place. */
static void run_tile(const plan *p, buffers *b, int64_t begin, int64_t n, const int64_t *index)
{
    int64_t size = p->job->compute == COMPUTE_F32 ? 4 : 8;
    for (int k = 0; k < p->inputs; k++) {
        const operand *o = &p->in[k];
        /* Constants were filled in at the start of the task. */
        if (o->constant)
            continue;
        if (k == 1 && p->broadcast) {
            b->in[1] = broadcast_element(p, b, index);
            continue;
        }
        b->in[k] = in_place(p, o, begin, index);
        if (b->in[k])
            continue;
        b->in[k] = b->tile[k];
        if (o->linear)
            o->load(o->base + begin * o->size, 1, b->tile[k], n);
        else
            load_rows(p, b, k, size, n, index);
    }
    /* NULL: the output goes through a buffer. */
    char *address[TARN__MAX_OUTPUTS];
    for (int k = 0; k < p->outputs; k++) {
        address[k] = is_nontemporal(p, &p->out[k], begin) ? NULL : in_place(p, &p->out[k], begin, index);
        b->out[k] = address[k] ? address[k] : b->tile[p->inputs + k];
    }
    call_tile(p, n, b->in, b->out);
    for (int k = 0; k < p->outputs; k++) {
        const operand *o = &p->out[k];
        if (address[k])
            continue;
        if (is_nontemporal(p, o, begin))
            nt_store_result(o, b, k, begin, n);
        else if (o->linear)
            o->store(b->out[k], o->base + begin * o->size, 1, n);
        else
            move_rows(p, o, index, b->out[k], p->job->bool_output ? 1 : size, n, true);
    }
}

/* Rows with every operand in place: only row addresses are computed. */
static void run_rows(const plan *p, buffers *b, int64_t begin, int64_t end)
{
    const int64_t inner = p->nest.shape[1];
    int64_t row = begin / inner, column = begin % inner;
    while (begin < end) {
        int64_t n = inner - column < end - begin ? inner - column : end - begin;
        n = n < TILE ? n : TILE;
        for (int k = 0; k < p->inputs; k++)
            if (!p->in[k].constant)
                b->in[k] = p->in[k].base + (row * p->in[k].stride[0] + column * p->in[k].stride[1]) * p->in[k].size;
        for (int k = 0; k < p->outputs; k++)
            b->out[k] = p->out[k].base + (row * p->out[k].stride[0] + column * p->out[k].stride[1]) * p->out[k].size;
        call_tile(p, n, b->in, b->out);
        begin += n;
        column += n;
        if (column == inner)
            column = 0, row++;
    }
}

/* A task: elements [begin, end) of the nest, by rows where rows are long, else across them. */
static void run_range(int64_t begin, int64_t end, void *ctx)
{
    const plan *p = ctx;
    buffers b;
    int64_t index[TARN_MAX_RANK] = {0};
    for (int k = 0; k < p->inputs; k++) {
        b.address[k] = NULL;
        if (p->in[k].constant) {
            fill_constant(p->job->compute, p->in[k].value, b.tile[k]);
            b.in[k] = b.tile[k];
        }
    }
    if (p->direct_rows) {
        run_rows(p, &b, begin, end);
        return;
    }
    locate(&p->nest, begin, index);
    while (begin < end) {
        int64_t n = end - begin < p->tile ? end - begin : p->tile;
        if (p->by_row) {
            int64_t row = p->nest.shape[p->nest.rank - 1] - index[p->nest.rank - 1];
            n = row < n ? row : n;
        }
        run_tile(p, &b, begin, n, index);
        begin += n;
        if (p->by_row)
            advance(&p->nest, index, n);
        else if (p->nest.rank > 1)
            locate(&p->nest, begin, index);
        else
            index[0] = begin;
    }
    if (p->nontemporal)
        tarn__nt_fence();
}

/* True where no operand needs a buffer: each is contiguous, or one element. */
static bool all_in_place(const plan *p)
{
    bool all = true;
    for (int k = 0; k < p->inputs; k++)
        all &= (k == 1 && p->broadcast) ? p->nest.rank == 1 : !p->in[k].constant && p->in[k].native && p->in[k].linear;
    for (int k = 0; k < p->outputs; k++)
        all &= p->out[k].native && p->out[k].linear;
    return all;
}

/* True for two axes with every operand contiguous along the rows, in the compute type: run_rows() applies. */
static bool rows_in_place(const plan *p)
{
    bool all = true;
    if (!p->by_row || p->nest.rank != 2 || p->nontemporal)
        return false;
    for (int k = 0; k < p->inputs; k++)
        all &= p->in[k].constant || (p->in[k].native && (p->in[k].stride[1] == 1 || (k == 1 && p->broadcast)));
    for (int k = 0; k < p->outputs; k++)
        all &= p->out[k].native && p->out[k].stride[1] == 1;
    return all;
}

/* A tile in place may be as long as a task: restarting costs time in which memory idles. */
static void choose_lengths(plan *p)
{
    p->tile = TILE;
    p->grain = GRAIN;
    if (LONG_TILES && p->job->compute == COMPUTE_F32 && !p->job->multipass && all_in_place(p)) {
        int64_t grains = p->nest.count / (CHUNKS * GRAIN);
        p->grain = GRAIN * (grains < 1 ? 1 : grains > 8 ? 8 : grains);
        p->tile = p->grain;
    }
}

void TARN__AT_LEVEL(tarn__run_tiles)(const tarn__call *call, const tarn__tile_job *job)
{
    plan p; /* filled in field by field: clearing it would cost more than a small operation */
    p.job = job;
    p.params = call->params;
    const tarn__view *views[TARN__MAX_OPERANDS];
    int used = 0;
    for (int k = 0; k < call->outputs; k++)
        if (call->out[k])
            views[used++] = call->out[k];
    p.outputs = used;
    for (int k = 0; k < call->inputs; k++)
        /* NULL inputs are constants and have stride 0 everywhere. */
        views[used++] = call->in[k];
    p.inputs = call->inputs;
    tarn__nest_make(&p.nest, used, views);
    if (p.nest.count == 0)
        return;
    for (int k = 0; k < p.outputs; k++) {
        p.out[k] = describe(&p, views[k], k);
        if (job->bool_output) {
            p.out[k].native = true;
            p.out[k].store = store_bytes;
        }
    }
    for (int k = 0; k < p.inputs; k++) {
        if (call->in[k])
            p.in[k] = describe(&p, call->in[k], p.outputs + k);
        else
            p.in[k] = (operand){.constant = true, .value = p.params->constant[k]};
    }
    /* All decisions from here on depend on shapes, strides and dtypes only. */
    p.by_row = p.nest.rank > 1 && p.nest.shape[p.nest.rank - 1] >= ROW_MIN;
    p.is_exact = job->simple || job->compute == COMPUTE_I64 || job->bool_output;
    p.nontemporal = p.nest.count * p.out[0].size >= TARN__NT_STORE_MIN;
    p.broadcast = job->broadcast &&
                  (p.in[1].constant || ((p.by_row || p.nest.rank == 1) && p.in[1].stride[p.nest.rank - 1] == 0));
    p.direct_rows = rows_in_place(&p);
    choose_lengths(&p);
    tarn__parallel_for(p.nest.count, p.grain, run_range, &p);
}
