/* copy.c: copies with any strides and dtypes, pad, fill, arange.
 *
 * Copies within one dtype move bytes, in one of three ways, by the innermost axis of the target: both sides
 * contiguous (memcpy of rows); the source contiguous along another axis (a transpose in cache blocks, so that both
 * sides use whole lines); anything else (element by element). Copies that convert run as elementwise kernels. */
#include <string.h>

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/nt_store.h"
#include "backends/cpu/copy/copy_rows.h"
#include "backends/cpu/copy/transpose8.h"
#include "backends/cpu/elementwise/elementwise_loops.h"

#define GRAIN_BYTES (256 * 1024)
#define ROW_GRAIN_BYTES (64 * 1024) /* for rows, which cost more per byte than a flat copy */
#define BLOCK 32                    /* a 32 × 32 block of 8-byte elements fits L1 twice */

/* A copy within one dtype. Depends on views only; tasks are ranges of jobs. */
typedef struct copy_plan {
    tarn__nest nest; /* operand 0 is the target, 1 the source */
    char *to;
    const char *from;
    int64_t size;
    int inner;        /* axes of the nest per job: 1, or 2 for a transpose */
    bool nontemporal; /* a broadcast source stays in cache: results are written past the caches */
} copy_plan;

/* rows × columns elements; the target is contiguous along columns, the source along rows. */
static void transpose_block(char *to, int64_t to_row, const char *from, int64_t from_column, int64_t rows,
                            int64_t columns, int64_t size)
{
#define MOVE(type) \
    for (int64_t r = 0; r < rows; r++) \
        for (int64_t c = 0; c < columns; c++) \
            ((type *)to)[r * to_row + c] = ((const type *)from)[c * from_column + r];
    BY_SIZE(size, MOVE)
#undef MOVE
}

/* The same for whole 8 × 8 tiles. */
static void transpose_tiles(char *to, int64_t to_row, const char *from, int64_t from_column, int64_t rows,
                            int64_t columns, int64_t size)
{
#if TARN__HAS_TRANSPOSE8
    for (int64_t r = 0; r < rows; r += TILE_SIDE)
        for (int64_t c = 0; c < columns; c += TILE_SIDE) {
            char *tile_to = to + (r * to_row + c) * size;
            const char *tile = from + (c * from_column + r) * size;
            if (size == 4)
                transpose8_u32((uint32_t *)(void *)tile_to, to_row, (const uint32_t *)(const void *)tile, from_column);
            else
                transpose8_u16((uint16_t *)(void *)tile_to, to_row, (const uint16_t *)(const void *)tile, from_column);
        }
#else
    transpose_block(to, to_row, from, from_column, rows, columns, size);
#endif
}

/* A block as whole tiles where its element size has them, then the rows below and the columns right of them. 8 × 8
 * tiles need rows and columns of at least 8. */
static void transpose_in_tiles(char *to, int64_t to_row, const char *from, int64_t from_column, int64_t rows,
                               int64_t columns, int64_t size)
{
    bool has_tiles = TARN__HAS_TRANSPOSE8 && (size == 4 || size == 2);
    int64_t down = has_tiles ? rows / TILE_SIDE * TILE_SIDE : 0,
            across = has_tiles ? columns / TILE_SIDE * TILE_SIDE : 0;
    if (down > 0 && across > 0)
        transpose_tiles(to, to_row, from, from_column, down, across, size);
    else
        down = across = 0;
    if (across < columns && down > 0)
        transpose_block(to + across * size, to_row, from + across * from_column * size, from_column, down,
                        columns - across, size);
    if (down < rows)
        transpose_block(to + down * to_row * size, to_row, from + down * size, from_column, rows - down, columns, size);
}

/* One 2-D slab in BLOCK × BLOCK blocks, each of which fits L1 on both sides. */
static void transpose_slab(const copy_plan *p, char *to, const char *from)
{
    int r = p->nest.rank - 2, c = p->nest.rank - 1;
    int64_t rows = p->nest.shape[r], columns = p->nest.shape[c], to_row = p->nest.stride[0][r],
            from_column = p->nest.stride[1][c];
    for (int64_t i = 0; i < rows; i += BLOCK)
        for (int64_t j = 0; j < columns; j += BLOCK) {
            int64_t h = rows - i < BLOCK ? rows - i : BLOCK, w = columns - j < BLOCK ? columns - j : BLOCK;
            transpose_in_tiles(to + (i * to_row + j) * p->size, to_row, from + (j * from_column + i) * p->size,
                               from_column, h, w, p->size);
        }
}

/* Offsets of a job on both sides, in elements, and its index on each outer axis. */
typedef struct position {
    int64_t index[TARN_MAX_RANK];
    int64_t to, from;
} position;

/* From a job number to its index and offsets: divisions once per task, additions afterwards. */
static void seek(const copy_plan *p, position *at, int64_t job)
{
    at->to = at->from = 0;
    for (int i = p->nest.rank - p->inner - 1; i >= 0; i--) {
        at->index[i] = job % p->nest.shape[i];
        job /= p->nest.shape[i];
        at->to += at->index[i] * p->nest.stride[0][i];
        at->from += at->index[i] * p->nest.stride[1][i];
    }
}

/* Advances by `by` jobs, not past the end of the innermost job axis. */
static void advance(const copy_plan *p, position *at, int64_t by)
{
    for (int i = p->nest.rank - p->inner - 1; i >= 0; i--, by = 1) {
        at->to += by * p->nest.stride[0][i];
        at->from += by * p->nest.stride[1][i];
        at->index[i] += by;
        if (at->index[i] < p->nest.shape[i])
            return;
        at->to -= at->index[i] * p->nest.stride[0][i];
        at->from -= at->index[i] * p->nest.stride[1][i];
        at->index[i] = 0;
    }
}

/* A task: slabs [begin, end). */
static void transpose_range(const copy_plan *p, int64_t begin, int64_t end)
{
    position at;
    seek(p, &at, begin);
    for (int64_t k = begin; k < end; k++, advance(p, &at, 1))
        transpose_slab(p, p->to + at.to * p->size, p->from + at.from * p->size);
}

/* Rows, as many at a time as are equally spaced. A task: jobs [begin, end), each a row of the innermost axis. */
static void copy_row_range(const copy_plan *p, int64_t begin, int64_t end)
{
    int last = p->nest.rank - 1, before = last - 1;
    row_moves m = {.n = p->nest.shape[last],
                   .size = p->size,
                   .to_stride = p->nest.stride[0][last],
                   .from_stride = p->nest.stride[1][last],
                   .nontemporal = p->nontemporal};
    if (before >= 0)
        m.to_row = p->nest.stride[0][before] * p->size, m.from_row = p->nest.stride[1][before] * p->size;
    position at;
    seek(p, &at, begin);
    for (int64_t k = begin; k < end; k += m.rows, advance(p, &at, m.rows)) {
        m.to = p->to + at.to * p->size;
        m.from = p->from + at.from * p->size;
        /* Rows up to the end of the axis before the last are equally spaced. */
        int64_t alike = before >= 0 ? p->nest.shape[before] - at.index[before] : 1;
        m.rows = alike < end - k ? alike : end - k;
        move_rows(&m);
    }
}

/* A task of either kind. The fence covers all of its non-temporal stores. */
static void copy_range(int64_t begin, int64_t end, void *ctx)
{
    const copy_plan *p = ctx;
    (p->inner == 2 ? transpose_range : copy_row_range)(p, begin, end);
    if (p->nontemporal)
        tarn__nt_fence();
}

/* Both sides are one contiguous piece. */
static void copy_bytes(int64_t begin, int64_t end, void *ctx)
{
    const copy_plan *p = ctx;
    memcpy(p->to + begin, p->from + begin, (size_t)(end - begin));
}

/* Splits an axis in two, so that a job moves about ROW_GRAIN_BYTES. */
static void split_axis(tarn__nest *nest, int axis, int64_t segments)
{
    int64_t segment = nest->shape[axis] / segments;
    for (int i = nest->rank; i > axis; i--) {
        nest->shape[i] = nest->shape[i - 1];
        for (int k = 0; k < 2; k++)
            nest->stride[k][i] = nest->stride[k][i - 1];
    }
    nest->shape[axis] = segments;
    nest->shape[axis + 1] = segment;
    for (int k = 0; k < 2; k++)
        nest->stride[k][axis] = nest->stride[k][axis + 1] * segment;
    nest->rank++;
}

/* Largest number of equal segments, up to `wanted`, that an axis divides into. */
static int64_t even_segments(int64_t size, int64_t wanted)
{
    wanted = wanted < size ? wanted : size;
    while (wanted > 1 && size % wanted != 0)
        wanted--;
    return wanted < 1 ? 1 : wanted;
}

/* Repeats a broadcast source segment by segment, each while it is in a near cache, by interchanging the two axes. */
static void interchange_repeat(tarn__nest *nest, int segments)
{
    int repeats = segments - 1;
    if (repeats < 0 || nest->stride[1][repeats] != 0)
        return;
    int64_t shape = nest->shape[repeats];
    nest->shape[repeats] = nest->shape[segments];
    nest->shape[segments] = shape;
    for (int k = 0; k < 2; k++) {
        int64_t stride = nest->stride[k][repeats];
        nest->stride[k][repeats] = nest->stride[k][segments];
        nest->stride[k][segments] = stride;
    }
}

/* A transpose where the target is contiguous along its last axis and the source along another one: that axis moves
 * next to last. */
static void choose_transposition(copy_plan *p)
{
    tarn__nest *nest = &p->nest;
    int last = nest->rank - 1;
    if (nest->rank < 2 || nest->stride[0][last] != 1 || nest->stride[1][last] == 1 || nest->stride[1][last] == 0)
        return;
    int across = -1;
    for (int i = 0; i < last; i++)
        if (nest->stride[1][i] == 1 && nest->shape[i] >= 4)
            across = i;
    if (across < 0)
        return;
    int64_t size = nest->shape[across], to = nest->stride[0][across];
    for (int i = across; i < last - 1; i++) {
        nest->shape[i] = nest->shape[i + 1];
        nest->stride[0][i] = nest->stride[0][i + 1];
        nest->stride[1][i] = nest->stride[1][i + 1];
    }
    nest->shape[last - 1] = size;
    nest->stride[0][last - 1] = to;
    nest->stride[1][last - 1] = 1;
    p->inner = 2;
}

/* Flat memcpy, rows, or a transpose; long rows are split so that threads get even work. */
static void copy_same_dtype(const tarn__view *to, const tarn__view *from)
{
    copy_plan p = {.to = tarn__view_at(to),
                   .from = tarn__view_at(from),
                   .size = (int64_t)tarn__dtype_bytes(to->dtype),
                   .inner = 1};
    const tarn__view *views[] = {to, from};
    tarn__nest_make(&p.nest, 2, views);
    if (p.nest.count == 0)
        return;
    if (p.nest.rank == 0 || (p.nest.rank == 1 && p.nest.stride[0][0] == 1 && p.nest.stride[1][0] == 1)) {
        tarn__parallel_for(p.nest.count * p.size, GRAIN_BYTES, copy_bytes, &p);
        return;
    }
    choose_transposition(&p);
    /* Only a broadcast source is written past the caches: its reads stay in cache, whereas other copies gain
     * nothing. */
    for (int i = 0; i < p.nest.rank; i++)
        p.nontemporal |= p.nest.stride[1][i] == 0 && p.nest.count * p.size >= TARN__NT_STORE_MIN;
    int64_t job = p.size;
    for (int i = p.nest.rank - p.inner; i < p.nest.rank; i++)
        job *= p.nest.shape[i];
    int first = p.nest.rank - p.inner;
    if (job > ROW_GRAIN_BYTES && p.nest.rank < TARN_MAX_RANK) {
        int64_t segments = even_segments(p.nest.shape[first], job / ROW_GRAIN_BYTES);
        job /= segments;
        split_axis(&p.nest, first, segments);
        if (p.inner == 1)
            interchange_repeat(&p.nest, first);
    }
    int64_t jobs = p.nest.count * p.size / job, grain = ROW_GRAIN_BYTES / job;
    tarn__parallel_for(jobs, grain > 0 ? grain : 1, copy_range, &p);
}

/* ---- converting -------------------------------------------------------------------------------------------------- */

/* A tile of the conversion: load and store do the work, in place where source or target has the compute type. */
static void identity_4(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
{
    (void)params;
    if (in[0] != out[0])
        memcpy(out[0], in[0], (size_t)n * 4);
}

/* The same for f64 and i64. */
static void identity_8(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
{
    (void)params;
    if (in[0] != out[0])
        memcpy(out[0], in[0], (size_t)n * 8);
}

/* Both sides contiguous, one of them in the compute type: no intermediate tile. */
typedef struct conversion {
    char *to;
    const char *from;
    int64_t to_size, from_size;
    tarn__load_fn load; /* NULL where `from` has the compute type: it is stored then */
    tarn__store_fn store;
} conversion;

/* A task of a contiguous conversion: one loader or storer call for the whole range. */
static void convert_range(int64_t begin, int64_t end, void *ctx)
{
    const conversion *c = ctx;
    char *to = c->to + begin * c->to_size;
    const char *from = c->from + begin * c->from_size;
    if (c->load)
        c->load(from, 1, to, end - begin);
    else
        c->store(from, to, 1, end - begin);
}

/* False where a tile is needed: other layouts, two conversions, or non-temporal stores. */
static bool convert_dense(const tarn__view *to, const tarn__view *from, int compute)
{
    static const tarn_dtype native[] = {[COMPUTE_F32] = TARN_F32, [COMPUTE_F64] = TARN_F64, [COMPUTE_I64] = TARN_I64};
    conversion c = {.to = tarn__view_at(to),
                    .from = tarn__view_at(from),
                    .to_size = (int64_t)tarn__dtype_bytes(to->dtype),
                    .from_size = (int64_t)tarn__dtype_bytes(from->dtype),
                    .store = tarn__store[to->dtype][compute]};
    tarn__nest nest;
    tarn__nest_make(&nest, 2, (const tarn__view *[]){to, from});
    if (to->dtype == native[compute])
        c.load = tarn__load[from->dtype][compute];
    else if (from->dtype != native[compute])
        return false;
    if (nest.rank != 1 || nest.stride[0][0] != 1 || nest.stride[1][0] != 1 ||
        nest.count * c.to_size >= TARN__NT_STORE_MIN)
        return false;
    tarn__parallel_for(nest.count, GRAIN_BYTES / 8, convert_range, &c);
    return true;
}

/* 2 · n elements of traffic; conversions are rarely slower than memory. */
static void kernel_copy(const tarn__call *call)
{
    tarn_dtype from = call->in[0]->dtype, to = call->out[0]->dtype;
    if (from == to) {
        copy_same_dtype(call->out[0], call->in[0]);
        return;
    }
    /* Integers convert through i64, so that nothing is lost; f64 to a 16-bit float is rounded once. */
    int compute = !tarn__is_float(from) ? COMPUTE_I64 : from == TARN_F64 || to == TARN_F64 ? COMPUTE_F64 : COMPUTE_F32;
    if (convert_dense(call->out[0], call->in[0], compute))
        return;
    tarn__tile_job job = {.tile = compute == COMPUTE_F32 ? identity_4 : identity_8, .compute = compute};
    TARN__AT_LEVEL(tarn__run_tiles)(call, &job);
}

/* ---- filling ----------------------------------------------------------------------------------------------------- */

/* The elementwise engine on a constant input: large tensors are written non-temporally. */
static void kernel_fill(const tarn__call *call)
{
    const tarn__fill *fill = call->params;
    tarn__elementwise constant = {.constants = 1, .constant = {fill->value}};
    int compute = tarn__compute_of(call->out[0]->dtype);
    if (call->out[0]->dtype == TARN_BOOL)
        constant.constant[0].integer = fill->value.real != 0;
    tarn__call with = *call;
    with.inputs = 1;
    with.in[0] = NULL;
    with.params = &constant;
    tarn__tile_job job = {.tile = compute == COMPUTE_F32 ? identity_4 : identity_8, .compute = compute};
    TARN__AT_LEVEL(tarn__run_tiles)(&with, &job);
}

/* pad: fills the output with the value, then copies the elements over it. */
static void kernel_pad(const tarn__call *call)
{
    const tarn__pad *pad = call->params;
    tarn__fill fill = {.value = pad->value};
    tarn__call part = *call;
    part.inputs = 0;
    part.params = &fill;
    kernel_fill(&part);
    tarn__view region = *call->out[0];
    for (int i = 0; i < region.rank; i++) {
        region.offset += pad->begin[i] * region.stride[i];
        region.shape[i] = call->in[0]->shape[i];
        region.stride[i] *= pad->step[i];
    }
    part.inputs = 1;
    part.out[0] = &region;
    if (tarn__view_count(&region) > 0)
        kernel_copy(&part);
}

/* arange: value + i · step; begin and step as f64 and as i64. */
typedef struct arange_job {
    const tarn__view *view;
    const tarn__fill *fill;
} arange_job;

/* Integer tensors with an integer step count exactly; otherwise value + i · step in f64, rounded once per element. */
static void arange_range(int64_t begin, int64_t end, void *ctx)
{
    const arange_job *job = ctx;
    char *base = tarn__view_at(job->view);
    int64_t stride = job->view->stride[0], size = (int64_t)tarn__dtype_bytes(job->view->dtype);
    const tarn__fill *f = job->fill;
    bool real = tarn__is_float(job->view->dtype);
    for (int64_t i = begin; i < end; i++) {
        double x = f->value.real + (double)i * f->step.real;
        int64_t k = f->step.real == (double)f->step.integer ? f->value.integer + i * f->step.integer : (int64_t)x;
        void *to = base + i * stride * size;
        if (real)
            tarn__store[job->view->dtype][COMPUTE_F64](&x, to, 1, 1);
        else
            tarn__store[job->view->dtype][COMPUTE_I64](&k, to, 1, 1);
    }
}

static void kernel_arange(const tarn__call *call)
{
    arange_job job = {call->out[0], call->params};
    tarn__parallel_for(call->out[0]->shape[0], 16384, arange_range, &job);
}

void TARN__AT_LEVEL(tarn__cpu_register_copy)(tarn__kernel_row *rows)
{
    rows[TARN__K_copy] = tarn__row(kernel_copy, TARN__ALL);
    rows[TARN__K_fill] = tarn__row(kernel_fill, TARN__ALL);
    rows[TARN__K_pad] = tarn__row(kernel_pad, TARN__ALL);
    rows[TARN__K_arange] = tarn__row(kernel_arange, TARN__NUMBERS);
}
