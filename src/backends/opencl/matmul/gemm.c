/* gemm.c: selection of a GEMM algorithm, split-K, and the launches of all but the panels. See gemm.h. */
#include "backends/opencl/matmul/gemm.h"

#include <stdio.h>
#include <string.h>

#define SKINNY_ROWS 4               /* at max_i64: rows or columns for gemm_skinny.cl */
#define SKINNY_GROUP 64             /* work-items that share a column */
#define MMA_GROUP 256               /* work-items of gemm_mma.cl */
#define MIN_PART 512                /* terms per split */
#define MAX_PART (INT64_C(1) << 30) /* terms per split: kernels count them in 32 bits */
#define MAX_SPLITS 64
#define SPLITS_BYTES (INT64_C(64) << 20)

enum algorithm { EMPTY, NAIVE, SKINNY, PANELS, TILES, MMA };

static int64_t ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

tarn_dtype tarn__cl_accum_dtype(tarn_dtype dtype)
{
    return dtype == TARN_F64 ? TARN_F64 : tarn__is_float(dtype) ? TARN_F32 : TARN_I64;
}

static tarn_dtype accum_of(const tarn__cl_gemm *p)
{
    return tarn__cl_accum_dtype(p->a.dtype);
}

static int64_t accum_bytes(const tarn__cl_gemm *p)
{
    return (int64_t)tarn__dtype_bytes(accum_of(p));
}

static const char *accum_type(tarn_dtype sums)
{
    return sums == TARN_F64 ? "double" : sums == TARN_F32 ? "float" : "long";
}

/* Offsets of views count elements, so the position must be a multiple of the dtype's size. */
tarn__view tarn__cl_scratch_view(const tarn__call *call, int64_t bytes, tarn_dtype dtype)
{
    int64_t offset = (call->scratch_offset + bytes) / (int64_t)tarn__dtype_bytes(dtype);
    return (tarn__view){.memory = call->scratch, .offset = offset, .dtype = dtype};
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* True if an operand's lines are contiguous along k (terms) and begin at multiples of eight elements in all batches. */
static bool has_lines_of_8(const tarn__cl_gemm *p, int operand, const tarn__view *view, int64_t line_stride,
                           int64_t term_stride)
{
    int64_t odd = view->offset | line_stride;
    for (int i = 0; i < p->batches.rank; i++)
        odd |= p->batches.stride[operand][i];
    return term_stride == 1 && odd % 8 == 0;
}

/* True if gemm_mma.cl supports the operands. */
static bool mma_fits(const tarn__cl_device *device, const tarn__cl_gemm *p)
{
    const tarn__cl_gemm_sizes *s = &p->sizes;
    return device->has_mma && device->has_local_memory && p->tile.rows == 0 && !p->b_is_packed &&
           p->a.dtype == p->b.dtype && (p->a.dtype == TARN_BF16 || p->a.dtype == TARN_F16) && s->k % 8 == 0 &&
           s->k <= MAX_PART && has_lines_of_8(p, 1, &p->a, s->a_row_stride, s->a_col_stride) &&
           has_lines_of_8(p, 2, &p->b, s->b_col_stride, s->b_row_stride);
}

/* Without local memory tiles come from panels. EMPTY: c has no elements; k = 0 is not empty, c = beta · c + bias. */
static enum algorithm algorithm_of(const tarn__cl_device *device, const tarn__cl_gemm *p)
{
    const tarn__cl_gemm_sizes *s = &p->sizes;
    if (s->m == 0 || s->n == 0 || p->batches.count == 0)
        return EMPTY;
    if (s->k == 0 || !tarn__is_float(p->a.dtype))
        return NAIVE;
    if (!p->b_is_packed && (s->m <= SKINNY_ROWS || s->n <= SKINNY_ROWS))
        return SKINNY;
    return mma_fits(device, p) ? MMA : device->has_local_memory ? TILES : PANELS;
}

/* A CPU is filled by about 4 tiles per compute unit, rounded up; a GPU by two groups per unit: more splits would only
 * wait. Tile sides are nominal, so that the actual tile does not influence the sums. */
void tarn__cl_gemm_choose_splits(const tarn__cl_device *device, const tarn__cl_gemm *p, tarn__cl_gemm_sizes *s)
{
    bool is_gpu = device->has_local_memory;
    int64_t down = !is_gpu                    ? 12
                   : s->m <= 64 || s->n <= 64 ? 64
                                              : 128,
            across = !is_gpu ? (accum_of(p) == TARN_F64 ? 16 : 32) : down;
    int64_t tiles = ceiling(s->m, down) * ceiling(s->n, across) * p->batches.count,
            units = (int64_t)device->compute_units, whole = is_gpu ? 16 : 1;
    int64_t max_splits = SPLITS_BYTES / (s->m * s->n * p->batches.count * accum_bytes(p) + 1);
    int64_t splits = min_i64(min_i64(is_gpu ? 2 * units / tiles : ceiling(4 * units, tiles), s->k / MIN_PART),
                             min_i64(MAX_SPLITS, max_splits));
    splits = max_i64(splits, ceiling(s->k, MAX_PART));
    s->part = ceiling(ceiling(s->k, splits), whole) * whole;
    s->splits = ceiling(s->k, s->part);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static const char *bias_type(const tarn__cl_gemm *p)
{
    return tarn__cl_dtype_name(p->bias.memory ? p->bias.dtype : p->c.dtype);
}

tarn__cl_gemm_program tarn__cl_gemm_program_of(const tarn__cl_gemm *p, const char *source, const char *kernel,
                                               bool is_split)
{
    tarn__cl_gemm_program g = {.source = source, .kernel = kernel};
    const char *c = tarn__cl_dtype_name(is_split ? accum_of(p) : p->c.dtype);
    snprintf(g.options, sizeof(g.options), "-DREAL=%s -DT_C=%s -DT_BIAS=%s", accum_type(accum_of(p)), c,
             is_split ? c : bias_type(p));
    return g;
}

/* The same with the dtypes of operands that are read in place, and options of the kernel's own. */
static tarn__cl_gemm_program program_of(const tarn__cl_gemm *p, const char *source, const char *kernel, bool is_split,
                                        const char *own)
{
    tarn__cl_gemm_program g = tarn__cl_gemm_program_of(p, source, kernel, is_split);
    size_t length = strlen(g.options);
    snprintf(g.options + length, sizeof(g.options) - length, " -DT_A=%s -DT_B=%s%s", tarn__cl_dtype_name(p->a.dtype),
             tarn__cl_dtype_name(p->b.dtype), own);
    return g;
}

const tarn__cl_kernel *tarn__cl_gemm_find(const tarn__call *call, const tarn__cl_gemm_program *g)
{
    return tarn__cl_find(call, g->source, g->kernel, g->options);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

tarn__cl_launch tarn__cl_gemm_begin(const tarn__call *call, const tarn__cl_kernel *kernel, const tarn__view *a,
                                    const tarn__view *b)
{
    tarn__cl_launch l = tarn__cl_begin_kernel(call, kernel);
    tarn__cl_arg_view(&l, a);
    tarn__cl_arg_view(&l, b);
    return l;
}

void tarn__cl_gemm_arg_result(tarn__cl_launch *l, const tarn__cl_gemm *p, const tarn__view *c,
                              const tarn__cl_gemm_sizes *s, bool is_split)
{
    tarn__cl_arg_view(l, c);
    tarn__cl_arg_view(l, p->bias.memory && !is_split ? &p->bias : NULL);
    tarn__cl_arg_value(l, &p->batches, sizeof(p->batches));
    tarn__cl_arg_value(l, s, sizeof(*s));
    tarn__cl_arg_real(l, is_split ? 1 : p->alpha);
    tarn__cl_arg_real(l, is_split ? 0 : p->beta);
}

/* The second kernel of split-K. */
static bool find_add_splits(const tarn__call *call, const tarn__cl_gemm *p, tarn__cl_gemm_plan *plan)
{
    tarn__cl_gemm_program g = tarn__cl_gemm_program_of(p, "gemm_splitk", "add_splits", false);
    plan->add_splits = tarn__cl_gemm_find(call, &g);
    return tarn__cl_allows(plan->add_splits, 1);
}

void tarn__cl_gemm_add_splits(const tarn__call *call, const tarn__cl_gemm *p, const tarn__cl_gemm_plan *plan,
                              const tarn__view *parts)
{
    const tarn__cl_gemm_sizes *s = &plan->sizes;
    tarn__cl_launch l = tarn__cl_begin_kernel(call, plan->add_splits);
    tarn__cl_arg_view(&l, parts);
    tarn__cl_gemm_arg_result(&l, p, &p->c, s, false);
    tarn__cl_enqueue_independent(&l, 3, (size_t[]){(size_t)s->n, (size_t)s->m, (size_t)p->batches.count},
                                 tarn__cl_device_at(call->device)->is_cpu ? 16 : 64);
}

static bool find_naive(const tarn__call *call, const tarn__cl_gemm *p, tarn__cl_gemm_plan *plan)
{
    tarn__cl_gemm_program g = program_of(p, "gemm_naive", "naive", false, "");
    plan->multiply = tarn__cl_gemm_find(call, &g);
    return tarn__cl_allows(plan->multiply, 1);
}

/* One work-item per element of c. */
static void run_naive(const tarn__call *call, const tarn__cl_gemm *p, const tarn__cl_gemm_plan *plan)
{
    const tarn__cl_gemm_sizes *s = &plan->sizes;
    tarn__cl_launch l = tarn__cl_gemm_begin(call, plan->multiply, &p->a, &p->b);
    tarn__cl_gemm_arg_result(&l, p, &p->c, s, false);
    tarn__cl_enqueue_independent(&l, 3, (size_t[]){(size_t)s->n, (size_t)s->m, (size_t)p->batches.count}, 16);
}

/* ---- skinny ------------------------------------------------------------------------------------------------------ */

static void swap(int64_t *x, int64_t *y)
{
    int64_t first = *x;
    *x = *y;
    *y = first;
}

/* cᵀ = bᵀ · aᵀ: a GEMM with few columns becomes one with few rows. */
static void transpose(tarn__cl_gemm *p)
{
    const tarn__view a = p->a;
    int64_t stride[TARN_MAX_RANK];
    p->a = p->b, p->b = a;
    memcpy(stride, p->batches.stride[1], sizeof(stride));
    memcpy(p->batches.stride[1], p->batches.stride[2], sizeof(stride));
    memcpy(p->batches.stride[2], stride, sizeof(stride));
}

static void transpose_sizes(tarn__cl_gemm_sizes *s)
{
    swap(&s->m, &s->n);
    swap(&s->a_row_stride, &s->b_col_stride);
    swap(&s->a_col_stride, &s->b_row_stride);
    swap(&s->c_row_stride, &s->c_col_stride);
    swap(&s->bias_row_stride, &s->bias_col_stride);
}

/* True where columns, not rows, are few. */
static bool has_few_columns(const tarn__cl_gemm_sizes *s)
{
    return s->m > SKINNY_ROWS || (s->n <= SKINNY_ROWS && s->n < s->m);
}

/* Shrinks the work-group where the driver limits the kernel; 1 is the variant for CPUs, which always compiles. */
static bool find_skinny(const tarn__call *call, const tarn__cl_device *device, const tarn__cl_gemm *gemm,
                        tarn__cl_gemm_plan *plan)
{
    char own[48], lanes[32];
    tarn__cl_gemm p = *gemm;
    plan->is_transposed = has_few_columns(&plan->sizes);
    if (plan->is_transposed) {
        transpose(&p);
        transpose_sizes(&plan->sizes);
    }
    for (size_t items = device->has_local_memory ? SKINNY_GROUP : 1;;) {
        lanes[0] = 0;
        if (items > 1)
            snprintf(lanes, sizeof(lanes), " -DON_GPU -DLANES=%zu", items);
        snprintf(own, sizeof(own), " -DROWS=%d%s", plan->sizes.m == 1 ? 1 : SKINNY_ROWS, lanes);
        tarn__cl_gemm_program g = program_of(&p, "gemm_skinny", "skinny", false, own);
        plan->multiply = tarn__cl_gemm_find(call, &g);
        plan->items = items;
        if (items == 1 || tarn__cl_allows(plan->multiply, items))
            return tarn__cl_allows(plan->multiply, 1);
        items = tarn__cl_group_of(plan->multiply);
    }
}

static void run_skinny(const tarn__call *call, const tarn__cl_gemm *gemm, const tarn__cl_gemm_plan *plan)
{
    tarn__cl_gemm p = *gemm;
    if (plan->is_transposed)
        transpose(&p);
    const tarn__cl_gemm_sizes *s = &plan->sizes;
    const size_t items = plan->items, columns = (size_t)s->n;
    tarn__cl_launch l = tarn__cl_gemm_begin(call, plan->multiply, &p.a, &p.b);
    tarn__cl_gemm_arg_result(&l, &p, &p.c, s, false);
    size_t across = items == 1 ? (columns + 15) / 16 : s->b_row_stride == 1 ? columns * items : columns;
    tarn__cl_enqueue(&l, 3, (size_t[]){across, 1, (size_t)p.batches.count}, (size_t[]){items, 1, 1});
}

/* ---- tiled ------------------------------------------------------------------------------------------------------- */

enum layout { ANY, OF_TERMS, OF_LINES }; /* layouts, as in gemm_tiled.cl */

/* True when an operand begins at a multiple of four elements in every batch. */
static bool begins_aligned(const tarn__cl_gemm *p, int operand, const tarn__view *view)
{
    int64_t odd = view->offset;
    for (int i = 0; i < p->batches.rank; i++)
        odd |= p->batches.stride[operand][i];
    return odd % 4 == 0;
}

/* The vec4 layout of an operand of `lines` rows (columns) and `terms` terms: contiguous along terms, along lines, or
 * neither. */
static enum layout layout_of(const tarn__cl_gemm *p, int operand, const tarn__view *view, int64_t lines, int64_t terms,
                             int64_t line_stride, int64_t term_stride)
{
    if (!begins_aligned(p, operand, view))
        return ANY;
    return term_stride == 1 && (line_stride | terms) % 4 == 0   ? OF_TERMS
           : line_stride == 1 && (term_stride | lines) % 4 == 0 ? OF_LINES
                                                                : ANY;
}

/* Sizes of the launch over tiles: with split-K c is the contiguous array of partial sums. */
static tarn__cl_gemm_sizes tile_sizes(const tarn__cl_gemm_plan *plan)
{
    tarn__cl_gemm_sizes s = plan->sizes;
    if (s.splits > 1)
        s.c_row_stride = s.n, s.c_col_stride = 1;
    return s;
}

/* One program per tile, layouts and dtypes. Partial sums of split-K are contiguous, in the type of sums. */
static tarn__cl_gemm_program tiles_program(const tarn__cl_device *device, const tarn__cl_gemm *p,
                                           const tarn__cl_gemm_plan *plan)
{
    const tarn__cl_gemm_tile *t = &plan->tile;
    const tarn__cl_gemm_sizes s = tile_sizes(plan);
    const bool is_split = s.splits > 1;
    char own[192], registers[40] = "";
    /* scratch is aligned, and so are partial sums in it */
    bool c_is_vec4 = s.c_col_stride == 1 && (s.n | s.c_row_stride | (is_split ? s.m * s.n : 0)) % 4 == 0 &&
                     (is_split || begins_aligned(p, 0, &p->c));
    if (t->registers > 0 && strstr(device->vendor, "NVIDIA"))
        snprintf(registers, sizeof(registers), " -cl-nv-maxrregcount=%d", t->registers);
    snprintf(
        own, sizeof(own), " -DACROSS=%d -DDOWN=%d -DTILE_M=%d -DTILE_N=%d -DDEPTH=%d -DLAYOUT_A=%d -DLAYOUT_B=%d%s%s",
        t->across, t->down, t->down_each, t->across_each, t->depth,
        layout_of(p, 1, &p->a, s.m, s.k, s.a_row_stride, s.a_col_stride),
        layout_of(p, 2, &p->b, s.n, s.k, s.b_col_stride, s.b_row_stride), c_is_vec4 ? " -DC_IS_VEC4" : "", registers);
    return program_of(p, "gemm_tiled", "tile", is_split, own);
}

/* The chosen tile, or the first one after it for which the device has resources; a trial has no other. False: none. */
static bool find_tiles(const tarn__call *call, const tarn__cl_device *device, const tarn__cl_gemm *p,
                       tarn__cl_gemm_plan *plan)
{
    size_t max_items;
    do {
        tarn__cl_gemm_program g = tiles_program(device, p, plan);
        plan->multiply = tarn__cl_gemm_find(call, &g);
        if (tarn__cl_allows(plan->multiply, (size_t)(plan->tile.across * plan->tile.down)))
            return plan->sizes.splits == 1 || find_add_splits(call, p, plan);
        max_items = plan->multiply ? plan->multiply->max_items : 0;
    } while (!p->is_trial && tarn__cl_gemm_next_tile(device, accum_of(p), max_items, &plan->tile));
    return false;
}

/* With split-K the tiles go to scratch and are added up by a second kernel. */
static void run_tiles(const tarn__call *call, const tarn__cl_gemm *p, const tarn__cl_gemm_plan *plan, int64_t scratch)
{
    const tarn__cl_gemm_sizes s = tile_sizes(plan);
    const tarn__view parts = tarn__cl_scratch_view(call, scratch, accum_of(p));
    const bool is_split = s.splits > 1;
    tarn__cl_launch l = tarn__cl_gemm_begin(call, plan->multiply, &p->a, &p->b);
    tarn__cl_gemm_arg_result(&l, p, is_split ? &parts : &p->c, &s, is_split);
    size_t across = (size_t)plan->tile.across, down = (size_t)plan->tile.down;
    tarn__cl_enqueue(&l, 3,
                     (size_t[]){(size_t)ceiling(s.n, plan->tile.width) * across,
                                (size_t)ceiling(s.m, plan->tile.rows) * down, (size_t)(p->batches.count * s.splits)},
                     (size_t[]){across, down, 1});
    if (is_split)
        tarn__cl_gemm_add_splits(call, p, plan, &parts);
}

/* ---- tensor cores ------------------------------------------------------------------------------------------------ */

/* Chooses the largest tile with which there are enough tiles to occupy the device; split-K if even the smallest has too
 * few. */
static void choose_mma_tile(const tarn__cl_device *device, const tarn__cl_gemm *p, tarn__cl_gemm_plan *plan)
{
    static const int sides[][2] = {{128, 128}, {128, 64}, {64, 64}};
    tarn__cl_gemm_sizes *s = &plan->sizes;
    const int64_t units = (int64_t)device->compute_units;
    int64_t tiles = 0;
    for (int i = 0; i < 3; i++) {
        plan->tile = (tarn__cl_gemm_tile){.rows = sides[i][0], .width = sides[i][1]};
        tiles = ceiling(s->m, sides[i][0]) * ceiling(s->n, sides[i][1]) * p->batches.count;
        if (tiles >= units * 7 / 8)
            return;
    }
    const int64_t max_splits = SPLITS_BYTES / (s->m * s->n * p->batches.count * accum_bytes(p) + 1),
                  splits =
                      max_i64(1, min_i64(min_i64(units / tiles, s->k / MIN_PART), min_i64(MAX_SPLITS, max_splits)));
    s->part = ceiling(ceiling(s->k, splits), 32) * 32;
    s->splits = ceiling(s->k, s->part);
}

static bool find_mma(const tarn__call *call, const tarn__cl_gemm *p, tarn__cl_gemm_plan *plan)
{
    const tarn__cl_gemm_tile *t = &plan->tile;
    char own[96];
    snprintf(own, sizeof(own), " -DSIDE_M=%d -DSIDE_N=%d -DWARPS_M=%d", t->rows, t->width, t->rows > t->width ? 4 : 2);
    tarn__cl_gemm_program g = program_of(p, "gemm_mma", "mma", plan->sizes.splits > 1, own);
    plan->multiply = tarn__cl_gemm_find(call, &g);
    return tarn__cl_allows(plan->multiply, MMA_GROUP) && (plan->sizes.splits == 1 || find_add_splits(call, p, plan));
}

static void run_mma(const tarn__call *call, const tarn__cl_gemm *p, const tarn__cl_gemm_plan *plan, int64_t scratch)
{
    const tarn__cl_gemm_sizes s = tile_sizes(plan);
    const tarn__view parts = tarn__cl_scratch_view(call, scratch, accum_of(p));
    const bool is_split = s.splits > 1;
    tarn__cl_launch l = tarn__cl_gemm_begin(call, plan->multiply, &p->a, &p->b);
    tarn__cl_gemm_arg_result(&l, p, is_split ? &parts : &p->c, &s, is_split);
    tarn__cl_enqueue(&l, 3,
                     (size_t[]){(size_t)ceiling(s.n, plan->tile.width) * MMA_GROUP,
                                (size_t)ceiling(s.m, plan->tile.rows), (size_t)(p->batches.count * s.splits)},
                     (size_t[]){MMA_GROUP, 1, 1});
    if (is_split)
        tarn__cl_gemm_add_splits(call, p, plan, &parts);
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

/* Chooses tile and splits. */
static void describe_tiles(const tarn__call *call, const tarn__cl_gemm *p, tarn__cl_gemm_plan *plan)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    const tarn__cl_gemm_sizes *s = &p->sizes;
    plan->sizes = *s;
    if (plan->algorithm == MMA) {
        choose_mma_tile(device, p, plan);
    } else {
        if (plan->tile.rows == 0)
            plan->tile = tarn__cl_gemm_tile_of(call, accum_of(p), s->m, s->n, s->k, p->batches.count);
        tarn__cl_gemm_choose_splits(device, p, &plan->sizes);
    }
    if (plan->algorithm == PANELS)
        tarn__cl_gemm_panels_describe(p, plan);
    else if (plan->sizes.splits > 1)
        plan->scratch_bytes = (size_t)(plan->sizes.splits * p->batches.count * s->m * s->n * accum_bytes(p));
}

/* Chooses algorithm, tile and splits. */
static void describe(const tarn__call *call, const tarn__cl_gemm *p, tarn__cl_gemm_plan *plan)
{
    const enum algorithm algorithm = algorithm_of(tarn__cl_device_at(call->device), p);
    *plan = (tarn__cl_gemm_plan){.algorithm = algorithm, .sizes = p->sizes, .tile = p->tile};
    if (algorithm == MMA || algorithm == PANELS || algorithm == TILES)
        describe_tiles(call, p, plan);
}

/* Falls back from tensor cores to general tiles, and to gemm_naive.cl where no tile fits. */
static bool find_kernels(const tarn__call *call, const tarn__cl_gemm *p, tarn__cl_gemm_plan *plan)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    if (plan->algorithm == EMPTY)
        return true;
    if (plan->algorithm == SKINNY)
        return find_skinny(call, device, p, plan);
    if (plan->algorithm == PANELS)
        return tarn__cl_gemm_panels_find(call, p, plan) && (plan->sizes.splits == 1 || find_add_splits(call, p, plan));
    if (plan->algorithm == MMA) {
        if (find_mma(call, p, plan))
            return true;
        *plan = (tarn__cl_gemm_plan){.algorithm = TILES, .sizes = p->sizes, .tile = p->tile};
        describe_tiles(call, p, plan);
    }
    if (plan->algorithm == TILES && find_tiles(call, device, p, plan))
        return true;
    plan->algorithm = NAIVE;
    plan->sizes = p->sizes;
    return !p->is_trial && find_naive(call, p, plan);
}

tarn__plan_status tarn__cl_gemm_prepare(const tarn__call *call, const tarn__cl_gemm *gemm, tarn__cl_gemm_plan *plan)
{
    describe(call, gemm, plan);
    return call->is_meta ? TARN__PLAN_READY : tarn__cl_ready(call, find_kernels(call, gemm, plan));
}

/* Every algorithm writes each element of c once. */
void tarn__cl_gemm_run(const tarn__call *call, const tarn__cl_gemm *gemm, const tarn__cl_gemm_plan *plan,
                       int64_t scratch)
{
    if (plan->algorithm == NAIVE)
        run_naive(call, gemm, plan);
    else if (plan->algorithm == SKINNY)
        run_skinny(call, gemm, plan);
    else if (plan->algorithm == TILES)
        run_tiles(call, gemm, plan, scratch);
    else if (plan->algorithm == MMA)
        run_mma(call, gemm, plan, scratch);
    else if (plan->algorithm == PANELS)
        tarn__cl_gemm_panels_run(call, gemm, plan, scratch);
}
