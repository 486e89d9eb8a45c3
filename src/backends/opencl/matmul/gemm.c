/* gemm.c: how products are made: which way, and the launches of it. */
#include "backends/opencl/matmul/gemm.h"

#include <stdio.h>
#include <string.h>

#define THIN_ROWS 4
#define THIN_GROUP 64                /* items of a group that sums up a column */
#define LEAST_PART 512               /* terms that are worth a part of their own */
#define MOST_PART (INT64_C(1) << 30) /* terms of a part, which kernels count in 32 bits */
#define MOST_SPLITS 64
#define SPLITS_BYTES (INT64_C(64) << 20)

enum way { PLAIN, THIN, PANELS, TILES };

static int64_t ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

tarn_dtype tarn__cl_accum_dtype(tarn_dtype dtype)
{
    return dtype == TARN_F64 ? TARN_F64 : tarn__is_float(dtype) ? TARN_F32 : TARN_I64;
}

static tarn_dtype sums_of(const tarn__cl_gemm *p)
{
    return tarn__cl_accum_dtype(p->a.dtype);
}

static int64_t size_of_sum(const tarn__cl_gemm *p)
{
    return (int64_t)tarn__dtype_bytes(sums_of(p));
}

static const char *real_of(tarn_dtype sums)
{
    return sums == TARN_F64 ? "double" : sums == TARN_F32 ? "float" : "long";
}

tarn__view tarn__cl_scratch_view(const tarn__call *call, int64_t bytes, tarn_dtype dtype)
{
    int64_t offset = (call->scratch_offset + bytes) / (int64_t)tarn__dtype_bytes(dtype);
    return (tarn__view){.memory = call->scratch, .offset = offset, .dtype = dtype};
}

/* ---- the way ----------------------------------------------------------------------------------------------------- */

static enum way way_of(const tarn__cl_device *device, const tarn__cl_gemm *p)
{
    const tarn__cl_gemm_sizes *s = &p->sizes;
    if (s->k == 0 || !tarn__is_float(p->a.dtype))
        return PLAIN;
    if (!p->b_is_packed && (s->m <= THIN_ROWS || s->n <= THIN_ROWS))
        return THIN;
    return device->has_local_memory ? TILES : PANELS;
}

/* A processor is kept busy by some tiles for each unit, whose count is rounded up; a GPU by two groups for each, and
 * parts that do not fit beside each other would only wait. Sides are nominal, so that the tile does not count. */
void tarn__cl_gemm_choose_splits(const tarn__cl_device *device, const tarn__cl_gemm *p, tarn__cl_gemm_sizes *s)
{
    bool is_gpu = device->has_local_memory;
    int64_t down = !is_gpu                    ? 12
                   : s->m <= 64 || s->n <= 64 ? 64
                                              : 128,
            across = !is_gpu ? (sums_of(p) == TARN_F64 ? 16 : 32) : down;
    int64_t tiles = ceiling(s->m, down) * ceiling(s->n, across) * p->batches.count, units = (int64_t)device->units,
            whole = is_gpu ? 16 : 1;
    int64_t room = SPLITS_BYTES / (s->m * s->n * p->batches.count * size_of_sum(p) + 1);
    int64_t splits = least(least(is_gpu ? 2 * units / tiles : ceiling(4 * units, tiles), s->k / LEAST_PART),
                           least(MOST_SPLITS, room));
    splits = most(splits, ceiling(s->k, MOST_PART));
    s->part = ceiling(ceiling(s->k, splits), whole) * whole;
    s->splits = ceiling(s->k, s->part);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static const char *bias_type(const tarn__cl_gemm *p)
{
    return tarn__cl_dtype_name(p->bias.memory ? p->bias.dtype : p->c.dtype);
}

tarn__cl_gemm_program tarn__cl_gemm_program_of(const tarn__cl_gemm *p, const char *source, const char *kernel,
                                               bool are_parts)
{
    tarn__cl_gemm_program g = {.source = source, .kernel = kernel};
    const char *c = tarn__cl_dtype_name(are_parts ? sums_of(p) : p->c.dtype);
    snprintf(g.options, sizeof(g.options), "-DREAL=%s -DT_C=%s -DT_BIAS=%s", real_of(sums_of(p)), c,
             are_parts ? c : bias_type(p));
    return g;
}

/* With the dtypes of operands that are read as they lie, and the kernel's own options. */
static tarn__cl_gemm_program program_of(const tarn__cl_gemm *p, const char *source, const char *kernel, bool are_parts,
                                        const char *own)
{
    tarn__cl_gemm_program g = tarn__cl_gemm_program_of(p, source, kernel, are_parts);
    size_t length = strlen(g.options);
    snprintf(g.options + length, sizeof(g.options) - length, " -DT_A=%s -DT_B=%s%s", tarn__cl_dtype_name(p->a.dtype),
             tarn__cl_dtype_name(p->b.dtype), own);
    return g;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

tarn__cl_launch tarn__cl_gemm_begin(const tarn__call *call, const tarn__cl_gemm_program *g, const tarn__view *a,
                                    const tarn__view *b)
{
    tarn__cl_launch l = tarn__cl_begin(call, g->source, g->kernel, g->options);
    tarn__cl_arg_view(&l, a);
    tarn__cl_arg_view(&l, b);
    return l;
}

void tarn__cl_gemm_arg_result(tarn__cl_launch *l, const tarn__cl_gemm *p, const tarn__view *c,
                              const tarn__cl_gemm_sizes *s, bool are_parts)
{
    tarn__cl_arg_view(l, c);
    tarn__cl_arg_view(l, p->bias.memory && !are_parts ? &p->bias : NULL);
    tarn__cl_arg_value(l, &p->batches, sizeof(p->batches));
    tarn__cl_arg_value(l, s, sizeof(*s));
    tarn__cl_arg_real(l, are_parts ? 1 : p->alpha);
    tarn__cl_arg_real(l, are_parts ? 0 : p->beta);
}

void tarn__cl_gemm_add_splits(const tarn__call *call, const tarn__cl_gemm *p, const tarn__cl_gemm_sizes *s,
                              const tarn__view *parts)
{
    tarn__cl_gemm_program g = tarn__cl_gemm_program_of(p, "gemm_splitk", "combine", false);
    tarn__cl_launch l = tarn__cl_begin(call, g.source, g.kernel, g.options);
    tarn__cl_arg_view(&l, parts);
    tarn__cl_gemm_arg_result(&l, p, &p->c, s, false);
    tarn__cl_enqueue_independent(&l, 3, (size_t[]){(size_t)s->n, (size_t)s->m, (size_t)p->batches.count},
                                 tarn__cl_device_at(call->device)->is_cpu ? 16 : 64);
}

static void run_plain(const tarn__call *call, const tarn__cl_gemm *p)
{
    tarn__cl_gemm_program g = program_of(p, "gemm_naive", "plain", false, "");
    tarn__cl_launch l = tarn__cl_gemm_begin(call, &g, &p->a, &p->b);
    tarn__cl_gemm_arg_result(&l, p, &p->c, &p->sizes, false);
    tarn__cl_enqueue_independent(&l, 3, (size_t[]){(size_t)p->sizes.n, (size_t)p->sizes.m, (size_t)p->batches.count},
                                 16);
}

/* ---- a few rows -------------------------------------------------------------------------------------------------- */

static void exchange(int64_t *x, int64_t *y)
{
    int64_t held = *x;
    *x = *y;
    *y = held;
}

/* cᵀ = bᵀ @ aᵀ: a product with few columns becomes one with few rows. */
static tarn__cl_gemm turned(const tarn__cl_gemm *p)
{
    tarn__cl_gemm t = *p;
    tarn__cl_gemm_sizes *s = &t.sizes;
    t.a = p->b, t.b = p->a;
    memcpy(t.batches.stride[1], p->batches.stride[2], sizeof(t.batches.stride[1]));
    memcpy(t.batches.stride[2], p->batches.stride[1], sizeof(t.batches.stride[2]));
    exchange(&s->m, &s->n);
    exchange(&s->a_row_stride, &s->b_col_stride);
    exchange(&s->a_col_stride, &s->b_row_stride);
    exchange(&s->c_row_stride, &s->c_col_stride);
    exchange(&s->bias_row_stride, &s->bias_col_stride);
    return t;
}

static tarn__cl_gemm thin_of(const tarn__cl_gemm *p)
{
    return p->sizes.m > THIN_ROWS || (p->sizes.n <= THIN_ROWS && p->sizes.n < p->sizes.m) ? turned(p) : *p;
}

/* With groups of `items`; 1: the form for processors. */
static tarn__cl_launch try_thin(const tarn__call *call, const tarn__cl_gemm *p, size_t items)
{
    char own[48], lanes[32] = "";
    if (items > 1)
        snprintf(lanes, sizeof(lanes), " -DON_GPU -DLANES=%zu", items);
    snprintf(own, sizeof(own), " -DROWS=%d%s", p->sizes.m == 1 ? 1 : THIN_ROWS, lanes);
    tarn__cl_gemm_program g = program_of(p, "gemm_skinny", "thin", false, own);
    return items > 1 ? tarn__cl_try(call, g.source, g.kernel, g.options, items)
                     : tarn__cl_begin(call, g.source, g.kernel, g.options);
}

static void run_thin(const tarn__call *call, const tarn__cl_device *device, const tarn__cl_gemm *product)
{
    tarn__cl_gemm p = thin_of(product);
    size_t items = device->has_local_memory ? THIN_GROUP : 1, count = (size_t)p.batches.count,
           columns = (size_t)p.sizes.n;
    tarn__cl_launch l = try_thin(call, &p, items);
    while (!l.good && items > 1) {
        items = tarn__cl_max_group(&l);
        l = try_thin(call, &p, items);
    }
    tarn__cl_arg_view(&l, &p.a);
    tarn__cl_arg_view(&l, &p.b);
    tarn__cl_gemm_arg_result(&l, &p, &p.c, &p.sizes, false);
    size_t across = items == 1 ? (columns + 15) / 16 : p.sizes.b_row_stride == 1 ? columns * items : columns;
    tarn__cl_enqueue(&l, 3, (size_t[]){across, 1, count}, (size_t[]){items, 1, 1});
}

/* ---- tiles of groups --------------------------------------------------------------------------------------------- */

enum form { ANY, OF_TERMS, OF_LINES }; /* as gemm_tiled.cl has them */

/* True when an operand of the nest begins at multiples of four in every batch. */
static bool begins_in_fours(const tarn__cl_gemm *p, int operand, const tarn__view *view)
{
    int64_t odd = view->offset;
    for (int i = 0; i < p->batches.rank; i++)
        odd |= p->batches.stride[operand][i];
    return odd % 4 == 0;
}

/* In which fours an operand of `lines` lines and `terms` terms lies. */
static enum form form_of(const tarn__cl_gemm *p, int operand, const tarn__view *view, int64_t lines, int64_t terms,
                         int64_t line_stride, int64_t term_stride)
{
    if (!begins_in_fours(p, operand, view))
        return ANY;
    return term_stride == 1 && (line_stride | terms) % 4 == 0   ? OF_TERMS
           : line_stride == 1 && (term_stride | lines) % 4 == 0 ? OF_LINES
                                                                : ANY;
}

static tarn__cl_gemm_program tiles_program(const tarn__cl_device *device, const tarn__cl_gemm *p, const tarn__view *c,
                                           const tarn__cl_gemm_sizes *s, bool are_parts)
{
    const tarn__cl_gemm_tile *t = &p->tile;
    char own[192], registers[40] = "";
    bool c_in_fours = s->c_col_stride == 1 &&
                      (s->n | s->c_row_stride | (are_parts ? c->offset | s->m * s->n : 0)) % 4 == 0 &&
                      (are_parts || begins_in_fours(p, 0, c));
    if (t->registers > 0 && strstr(device->vendor, "NVIDIA"))
        snprintf(registers, sizeof(registers), " -cl-nv-maxrregcount=%d", t->registers);
    snprintf(own, sizeof(own), " -DACROSS=%d -DDOWN=%d -DTILE_M=%d -DTILE_N=%d -DDEPTH=%d -DFORM_A=%d -DFORM_B=%d%s%s",
             t->across, t->down, t->down_each, t->across_each, t->depth,
             form_of(p, 1, &p->a, s->m, s->k, s->a_row_stride, s->a_col_stride),
             form_of(p, 2, &p->b, s->n, s->k, s->b_col_stride, s->b_row_stride), c_in_fours ? " -DC_IN_FOURS" : "",
             registers);
    return program_of(p, "gemm_tiled", "tile", are_parts, own);
}

/* A launch with the product's tile, or with the first one after it that the device has room for. */
static tarn__cl_launch try_tiles(const tarn__call *call, const tarn__cl_device *device, tarn__cl_gemm *p,
                                 const tarn__view *c, const tarn__cl_gemm_sizes *s, bool are_parts)
{
    tarn__cl_launch l;
    do {
        tarn__cl_gemm_program g = tiles_program(device, p, c, s, are_parts);
        if (p->is_trial)
            return tarn__cl_begin(call, g.source, g.kernel, g.options);
        l = tarn__cl_try(call, g.source, g.kernel, g.options, (size_t)(p->tile.across * p->tile.down));
    } while (!l.good && tarn__cl_gemm_next_tile(device, sums_of(p), l.max_items, &p->tile));
    return l;
}

/* A product that no tile fits has a work-item for each element. */
static void run_tiles(const tarn__call *call, const tarn__cl_device *device, tarn__cl_gemm *p, int64_t scratch)
{
    tarn__cl_gemm_sizes s = p->sizes;
    tarn__cl_gemm_choose_splits(device, p, &s);
    tarn__view parts = tarn__cl_scratch_view(call, scratch, sums_of(p));
    bool are_parts = s.splits > 1;
    tarn__cl_gemm_sizes own = s;
    if (are_parts)
        own.c_row_stride = s.n, own.c_col_stride = 1;
    const tarn__view *c = are_parts ? &parts : &p->c;
    tarn__cl_launch l = try_tiles(call, device, p, c, &own, are_parts);
    if (!l.good && !p->is_trial) {
        run_plain(call, p);
        return;
    }
    tarn__cl_arg_view(&l, &p->a);
    tarn__cl_arg_view(&l, &p->b);
    tarn__cl_gemm_arg_result(&l, p, c, &own, are_parts);
    size_t across = (size_t)p->tile.across, down = (size_t)p->tile.down;
    tarn__cl_enqueue(&l, 3,
                     (size_t[]){(size_t)ceiling(s.n, p->tile.width) * across, (size_t)ceiling(s.m, p->tile.rows) * down,
                                (size_t)(p->batches.count * s.splits)},
                     (size_t[]){across, down, 1});
    if (are_parts)
        tarn__cl_gemm_add_splits(call, p, &s, &parts);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static bool is_empty(const tarn__cl_gemm *p)
{
    return p->sizes.m == 0 || p->sizes.n == 0 || p->batches.count == 0;
}

/* The product with its tile. */
static tarn__cl_gemm with_tile(tarn__cl_device *device, const tarn__cl_gemm *product)
{
    tarn__cl_gemm p = *product;
    if (p.tile.rows == 0)
        p.tile = tarn__cl_gemm_tile_of(device, sums_of(&p), p.sizes.m, p.sizes.n, p.sizes.k, p.batches.count);
    return p;
}

size_t tarn__cl_gemm_scratch(const tarn__call *call, const tarn__cl_gemm *product)
{
    tarn__cl_device *device = tarn__cl_device_at(call->device);
    if (is_empty(product) || !device)
        return 0;
    enum way way = way_of(device, product);
    if (way == PLAIN || way == THIN)
        return 0;
    tarn__cl_gemm p = with_tile(device, product);
    if (way == PANELS)
        return tarn__cl_gemm_panels_scratch(device, &p);
    tarn__cl_gemm_sizes s = p.sizes;
    tarn__cl_gemm_choose_splits(device, &p, &s);
    return s.splits > 1 ? (size_t)(s.splits * p.batches.count * s.m * s.n * size_of_sum(&p)) : 0;
}

void tarn__cl_gemm_run(const tarn__call *call, const tarn__cl_gemm *product, int64_t scratch)
{
    tarn__cl_device *device = tarn__cl_device_at(call->device);
    if (is_empty(product) || !device)
        return;
    enum way way = way_of(device, product);
    if (way == PLAIN || way == THIN) {
        way == PLAIN ? run_plain(call, product) : run_thin(call, device, product);
        return;
    }
    tarn__cl_gemm p = with_tile(device, product);
    if (way == TILES)
        run_tiles(call, device, &p, scratch);
    else
        tarn__cl_gemm_panels_run(call, device, &p, scratch);
}
