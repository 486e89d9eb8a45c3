/* product.c: how products are made: which way, in which pieces, and the launches of it. */
#include "backends/opencl/product.h"

#include <stdio.h>
#include <string.h>

#define THIN_ROWS 4
#define THIN_GROUP 64                       /* items of a group that sums up a column */
#define PIECE_BYTES (INT64_C(64) << 20)     /* of b that is packed at a time */
#define LEAST_PART 512                      /* terms that are worth a part of their own */
#define MOST_SPLITS 64
#define SPLITS_BYTES (INT64_C(64) << 20)
#define PACK_STEP 64                        /* of pack.cl */

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

tarn_dtype tarn__cl_sums_of(tarn_dtype dtype)
{
    return dtype == TARN_F64 ? TARN_F64 : tarn__is_float(dtype) ? TARN_F32 : TARN_I64;
}

static tarn_dtype sums_of(const tarn__cl_product *p)
{
    return tarn__cl_sums_of(p->a.dtype);
}

static int64_t size_of_sum(const tarn__cl_product *p)
{
    return (int64_t)tarn__dtype_bytes(sums_of(p));
}

static const char *real_of(tarn_dtype sums)
{
    return sums == TARN_F64 ? "double" : sums == TARN_F32 ? "float" : "long";
}

int64_t tarn__cl_packed_count(int64_t lines, int64_t depth, int64_t width)
{
    return ceiling(lines, width) * width * depth;
}

tarn__view tarn__cl_scratch_view(const tarn__call *call, int64_t bytes, tarn_dtype dtype)
{
    int64_t offset = (call->scratch_offset + bytes) / (int64_t)tarn__dtype_bytes(dtype);
    return (tarn__view){.memory = call->scratch, .offset = offset, .dtype = dtype};
}

/* ---- the way --------------------------------------------------------------------------------------------------------------- */

static tarn__cl_tile panel_tile(tarn_dtype sums)
{
    int lanes = sums == TARN_F64 ? 8 : 16;
    return (tarn__cl_tile){.rows = 12, .width = 2 * lanes, .lanes = lanes};
}

static tarn__cl_tile group_tile(const tarn__cl_device *device, tarn_dtype sums, const tarn__cl_sizes *s)
{
    int across = device->max_group >= 256 && !device->is_cpu ? 16 : 8, each = sums == TARN_F64 || s->m <= 64 || s->n <= 64 ? 4 : 8;
    return (tarn__cl_tile){.rows = across * each, .width = across * each, .across = across, .down_each = each, .across_each = each, .depth = 16};
}

tarn__cl_tile tarn__cl_tile_of(const tarn__cl_device *device, tarn_dtype sums, const tarn__cl_sizes *sizes)
{
    return device->local_is_real ? group_tile(device, sums, sizes) : panel_tile(sums);
}

static enum way way_of(const tarn__cl_device *device, const tarn__cl_product *p)
{
    const tarn__cl_sizes *s = &p->sizes;
    if (s->k == 0 || !tarn__is_float(p->a.dtype))
        return PLAIN;
    if (!p->b_is_packed && (s->m <= THIN_ROWS || s->n <= THIN_ROWS))
        return THIN;
    return device->local_is_real ? TILES : PANELS;
}

/* Parts of k where the result has too few tiles to keep the device busy: their number depends on the shape and the device alone. */
static void choose_splits(const tarn__cl_device *device, const tarn__cl_product *p, tarn__cl_sizes *s)
{
    tarn__cl_tile tile = tarn__cl_tile_of(device, sums_of(p), s);
    int64_t tiles = ceiling(s->m, tile.rows) * ceiling(s->n, tile.width) * p->batches.count, enough = 4 * (int64_t)device->units;
    int64_t room = SPLITS_BYTES / (s->m * s->n * p->batches.count * size_of_sum(p) + 1);
    int64_t splits = least(least(ceiling(enough, tiles), s->k / LEAST_PART), least(MOST_SPLITS, room));
    s->part = ceiling(ceiling(s->k, most(splits, 1)), tile.depth > 0 ? tile.depth : 1) * (tile.depth > 0 ? tile.depth : 1);
    s->splits = ceiling(s->k, s->part);
}

/* ---- programs -------------------------------------------------------------------------------------------------------------- */

typedef struct program {
    const char *source, *kernel;
    char options[224];
} program;

static const char *bias_type(const tarn__cl_product *p)
{
    return tarn__cl_type(p->bias.memory ? p->bias.dtype : p->c.dtype);
}

static program pack_program(const tarn__cl_device *device, tarn_dtype x, tarn_dtype sums)
{
    program g = {.source = "pack", .kernel = device->local_is_real ? "pack_each" : "pack"};
    snprintf(g.options, sizeof(g.options), "-DREAL=%s -DT_X=%s", real_of(sums), tarn__cl_type(x));
    return g;
}

/* The program that makes sums; where they are parts, they are what the result is. */
static program sums_program(const tarn__cl_product *p, enum way way, const tarn__cl_tile *t, bool are_parts, int64_t rows, bool on_gpu)
{
    static const char *const sources[] = {"plain", "thin", "panels", "tiles"}, *const kernels[] = {"plain", "thin", "tile", "tile"};
    program g = {.source = sources[way], .kernel = kernels[way]};
    const char *real = real_of(sums_of(p)), *c = tarn__cl_type(are_parts ? sums_of(p) : p->c.dtype), *bias = are_parts ? c : bias_type(p);
    char operands[64] = "", shape[96] = "";
    if (way != PANELS)
        snprintf(operands, sizeof(operands), " -DT_A=%s -DT_B=%s", tarn__cl_type(p->a.dtype), tarn__cl_type(p->b.dtype));
    if (way == PANELS)
        snprintf(shape, sizeof(shape), " -DROWS=%d -DLANES=%d", t->rows, t->lanes);
    if (way == TILES)
        snprintf(shape, sizeof(shape), " -DACROSS=%d -DTILE_M=%d -DTILE_N=%d -DDEPTH=%d", t->across, t->down_each, t->across_each, t->depth);
    if (way == THIN)
        snprintf(shape, sizeof(shape), " -DROWS=%d%s", rows == 1 ? 1 : THIN_ROWS, on_gpu ? " -DON_GPU -DLANES=64" : "");
    snprintf(g.options, sizeof(g.options), "-DREAL=%s -DT_C=%s -DT_BIAS=%s%s%s", real, c, bias, operands, shape);
    return g;
}

static program combine_program(const tarn__cl_product *p)
{
    program g = {.source = "combine", .kernel = "combine"};
    snprintf(g.options, sizeof(g.options), "-DREAL=%s -DT_C=%s -DT_BIAS=%s", real_of(sums_of(p)), tarn__cl_type(p->c.dtype), bias_type(p));
    return g;
}

/* ---- launches -------------------------------------------------------------------------------------------------------------- */

static tarn__cl_launch begin(const tarn__call *call, const program *g)
{
    return tarn__cl_begin(call, g->source, g->kernel, g->options);
}

/* c, bias, batches, sizes, alpha, beta: the last arguments of all of them. */
static void give_result(tarn__cl_launch *l, const tarn__cl_product *p, const tarn__view *c, const tarn__cl_sizes *s, bool are_parts)
{
    tarn__cl_view(l, c);
    tarn__cl_view(l, p->bias.memory && !are_parts ? &p->bias : NULL);
    tarn__cl_value(l, &p->batches, sizeof(p->batches));
    tarn__cl_value(l, s, sizeof(*s));
    tarn__cl_real(l, are_parts ? 1 : p->alpha);
    tarn__cl_real(l, are_parts ? 0 : p->beta);
}

void tarn__cl_pack(const tarn__call *call, const tarn__view *x, const tarn__view *to, const tarn__nest *batches, const tarn__cl_packing *packing,
                   int64_t batch_count)
{
    const tarn__cl_device *device = tarn__cl_at(call->device);
    program g = pack_program(device, x->dtype, to->dtype);
    tarn__cl_launch l = begin(call, &g);
    tarn__cl_view(&l, x);
    tarn__cl_view(&l, to);
    tarn__cl_value(&l, batches, sizeof(*batches));
    tarn__cl_value(&l, packing, sizeof(*packing));
    size_t panels = (size_t)ceiling(packing->lines, packing->width), count = (size_t)batch_count;
    if (device->local_is_real)
        tarn__cl_go(&l, 3, (size_t[]){panels * (size_t)packing->width, (size_t)packing->depth, count}, (size_t[]){64, 1, 1});
    else
        tarn__cl_go(&l, 3, (size_t[]){(size_t)ceiling(packing->depth, PACK_STEP), panels, count}, (size_t[]){1, 1, 1});
}

/* The parts that lie at `parts`, added up. */
static void combine(const tarn__call *call, const tarn__cl_product *p, const tarn__cl_sizes *s, const tarn__view *parts)
{
    program g = combine_program(p);
    tarn__cl_launch l = begin(call, &g);
    tarn__cl_view(&l, parts);
    give_result(&l, p, &p->c, s, false);
    tarn__cl_go(&l, 3, (size_t[]){(size_t)s->n, (size_t)s->m, (size_t)p->batches.count}, (size_t[]){16, 1, 1});
}

static void run_plain(const tarn__call *call, const tarn__cl_product *p)
{
    program g = sums_program(p, PLAIN, NULL, false, 0, false);
    tarn__cl_launch l = begin(call, &g);
    tarn__cl_view(&l, &p->a);
    tarn__cl_view(&l, &p->b);
    give_result(&l, p, &p->c, &p->sizes, false);
    tarn__cl_go(&l, 3, (size_t[]){(size_t)p->sizes.n, (size_t)p->sizes.m, (size_t)p->batches.count}, (size_t[]){16, 1, 1});
}

/* ---- a few rows ------------------------------------------------------------------------------------------------------------ */

static void exchange(int64_t *x, int64_t *y)
{
    int64_t held = *x;
    *x = *y;
    *y = held;
}

/* cᵀ = bᵀ @ aᵀ: a product with few columns becomes one with few rows. */
static tarn__cl_product turned(const tarn__cl_product *p)
{
    tarn__cl_product t = *p;
    tarn__cl_sizes *s = &t.sizes;
    t.a = p->b, t.b = p->a;
    memcpy(t.batches.stride[1], p->batches.stride[2], sizeof(t.batches.stride[1]));
    memcpy(t.batches.stride[2], p->batches.stride[1], sizeof(t.batches.stride[2]));
    exchange(&s->m, &s->n);
    exchange(&s->a_down, &s->b_across);
    exchange(&s->a_across, &s->b_down);
    exchange(&s->c_down, &s->c_across);
    exchange(&s->bias_down, &s->bias_across);
    return t;
}

static tarn__cl_product thin_of(const tarn__cl_product *p)
{
    return p->sizes.m > THIN_ROWS || (p->sizes.n <= THIN_ROWS && p->sizes.n < p->sizes.m) ? turned(p) : *p;
}

static void run_thin(const tarn__call *call, const tarn__cl_device *device, const tarn__cl_product *product)
{
    tarn__cl_product p = thin_of(product);
    program g = sums_program(&p, THIN, NULL, false, p.sizes.m, device->local_is_real);
    tarn__cl_launch l = begin(call, &g);
    tarn__cl_view(&l, &p.a);
    tarn__cl_view(&l, &p.b);
    give_result(&l, &p, &p.c, &p.sizes, false);
    size_t count = (size_t)p.batches.count, columns = (size_t)p.sizes.n;
    if (!device->local_is_real)
        tarn__cl_go(&l, 3, (size_t[]){(columns + 15) / 16, 1, count}, (size_t[]){1, 1, 1});
    else
        tarn__cl_go(&l, 3, (size_t[]){p.sizes.b_down == 1 ? columns * THIN_GROUP : columns, 1, count}, (size_t[]){THIN_GROUP, 1, 1});
}

/* ---- tiles of groups ------------------------------------------------------------------------------------------------------- */

static void run_tiles(const tarn__call *call, const tarn__cl_device *device, const tarn__cl_product *p, int64_t scratch)
{
    tarn__cl_sizes s = p->sizes;
    choose_splits(device, p, &s);
    tarn__cl_tile tile = tarn__cl_tile_of(device, sums_of(p), &s);
    tarn__view parts = tarn__cl_scratch_view(call, scratch, sums_of(p));
    bool are_parts = s.splits > 1;
    program g = sums_program(p, TILES, &tile, are_parts, 0, true);
    tarn__cl_sizes own = s;
    if (are_parts)
        own.c_down = s.n, own.c_across = 1;
    tarn__cl_launch l = begin(call, &g);
    tarn__cl_view(&l, &p->a);
    tarn__cl_view(&l, &p->b);
    give_result(&l, p, are_parts ? &parts : &p->c, &own, are_parts);
    size_t across = (size_t)tile.across;
    tarn__cl_go(&l, 3, (size_t[]){(size_t)ceiling(s.n, tile.width) * across, (size_t)ceiling(s.m, tile.rows) * across, (size_t)(p->batches.count * s.splits)},
                (size_t[]){across, across, 1});
    if (are_parts)
        combine(call, p, &s, &parts);
}

/* ---- panels ---------------------------------------------------------------------------------------------------------------- */

/* Where everything lies in scratch, in bytes from its begin, and how much is done at a time. */
typedef struct panel_plan {
    tarn__cl_sizes sizes;
    tarn__cl_tile tile;
    int64_t a_bytes, b_bytes, parts_bytes;
    int64_t columns, batches; /* of a piece */
    bool a_is_shared, b_is_shared; /* all batches have one */
} panel_plan;

static bool is_shared(const tarn__nest *nest, int operand)
{
    for (int i = 0; i < nest->rank; i++)
        if (nest->stride[operand][i] != 0)
            return false;
    return true;
}

/* Pieces of whole batches, or where one of them is large, of some columns of one. */
static panel_plan plan_panels(const tarn__cl_device *device, const tarn__cl_product *p)
{
    int64_t size = size_of_sum(p);
    panel_plan plan = {.sizes = p->sizes, .tile = panel_tile(sums_of(p)), .a_is_shared = is_shared(&p->batches, 1), .b_is_shared = is_shared(&p->batches, 2)};
    tarn__cl_sizes *s = &plan.sizes;
    choose_splits(device, p, s);
    int64_t a = tarn__cl_packed_count(s->m, s->k, plan.tile.rows), b = tarn__cl_packed_count(s->n, s->k, plan.tile.width);
    s->a_room = plan.a_is_shared ? 0 : a;
    s->b_room = p->b_is_packed ? s->b_room : plan.b_is_shared ? 0 : b;
    int64_t each = ((plan.a_is_shared ? 0 : a) + (plan.b_is_shared || p->b_is_packed ? 0 : b)) * size;
    plan.batches = most(1, least(p->batches.count, each > 0 ? PIECE_BYTES / each : p->batches.count));
    plan.columns = s->n;
    if (!p->b_is_packed && plan.batches == 1 && b * size > PIECE_BYTES)
        plan.columns = most(1, PIECE_BYTES / (s->k * size) / plan.tile.width) * plan.tile.width;
    if (s->splits > 1)
        plan.batches = p->batches.count, plan.columns = s->n;
    plan.a_bytes = a * size * (plan.a_is_shared ? 1 : plan.batches);
    plan.b_bytes = p->b_is_packed ? 0 : tarn__cl_packed_count(plan.columns, s->k, plan.tile.width) * size * (plan.b_is_shared ? 1 : plan.batches);
    plan.parts_bytes = s->splits > 1 ? s->splits * p->batches.count * s->m * s->n * size : 0;
    return plan;
}

static int64_t panel_bytes(const panel_plan *plan)
{
    return plan->a_bytes + plan->b_bytes + plan->parts_bytes;
}

static void pack_a(const tarn__call *call, const tarn__cl_product *p, const panel_plan *plan, int64_t first, int64_t batches, const tarn__view *to)
{
    const tarn__cl_sizes *s = &plan->sizes;
    tarn__cl_packing packing = {.lines = s->m, .depth = s->k, .first = plan->a_is_shared ? 0 : first, .line_stride = s->a_down,
                                .term_stride = s->a_across, .room = s->a_room, .width = plan->tile.rows, .operand = 1};
    tarn__cl_pack(call, &p->a, to, &p->batches, &packing, plan->a_is_shared ? 1 : batches);
}

static void pack_b(const tarn__call *call, const tarn__cl_product *p, const panel_plan *plan, int64_t first, int64_t batches, int64_t column,
                   int64_t columns, const tarn__view *to)
{
    const tarn__cl_sizes *s = &plan->sizes;
    tarn__cl_packing packing = {.lines = columns, .depth = s->k, .first = plan->b_is_shared ? 0 : first, .line_stride = s->b_across,
                                .term_stride = s->b_down, .room = s->b_room, .width = plan->tile.width, .operand = 2};
    tarn__view from = p->b;
    from.offset += column * s->b_across;
    tarn__cl_pack(call, &from, to, &p->batches, &packing, plan->b_is_shared ? 1 : batches);
}

/* Some columns of some batches, of which the panels are there. */
static void run_piece(const tarn__call *call, const tarn__cl_product *p, const panel_plan *plan, int64_t first, int64_t batches, int64_t column,
                      int64_t columns, const tarn__view *a, const tarn__view *b, const tarn__view *parts)
{
    tarn__cl_sizes s = plan->sizes;
    bool are_parts = s.splits > 1;
    program g = sums_program(p, PANELS, &plan->tile, are_parts, 0, false);
    tarn__cl_product piece = *p;
    piece.c.offset += column * s.c_across;
    piece.bias.offset += column * s.bias_across;
    s.n = columns;
    s.first = first;
    if (are_parts)
        s.c_down = s.n, s.c_across = 1;
    tarn__cl_launch l = begin(call, &g);
    tarn__cl_view(&l, a);
    tarn__cl_view(&l, b);
    give_result(&l, &piece, are_parts ? parts : &piece.c, &s, are_parts);
    tarn__cl_go(&l, 3, (size_t[]){(size_t)ceiling(s.m, plan->tile.rows), (size_t)ceiling(columns, plan->tile.width), (size_t)(batches * s.splits)},
                (size_t[]){1, 1, 1});
}

static void run_panels(const tarn__call *call, const tarn__cl_device *device, const tarn__cl_product *p, int64_t scratch)
{
    panel_plan plan = plan_panels(device, p);
    tarn_dtype sums = sums_of(p);
    tarn__view a = tarn__cl_scratch_view(call, scratch, sums), b = tarn__cl_scratch_view(call, scratch + plan.a_bytes, sums);
    tarn__view parts = tarn__cl_scratch_view(call, scratch + plan.a_bytes + plan.b_bytes, sums);
    for (int64_t first = 0; first < p->batches.count; first += plan.batches) {
        int64_t batches = least(plan.batches, p->batches.count - first);
        if (first == 0 || !plan.a_is_shared)
            pack_a(call, p, &plan, first, batches, &a);
        for (int64_t column = 0; column < plan.sizes.n; column += plan.columns) {
            int64_t columns = least(plan.columns, plan.sizes.n - column);
            tarn__view own = p->b_is_packed ? p->b : b;
            own.offset += p->b_is_packed ? first * plan.sizes.b_room : 0;
            if (!p->b_is_packed && (first == 0 || !plan.b_is_shared || plan.columns < plan.sizes.n))
                pack_b(call, p, &plan, first, batches, column, columns, &b);
            run_piece(call, p, &plan, first, batches, column, columns, &a, &own, &parts);
        }
    }
    if (plan.sizes.splits > 1)
        combine(call, p, &plan.sizes, &parts);
}

/* ---- all of it ------------------------------------------------------------------------------------------------------------- */

static bool is_empty(const tarn__cl_product *p)
{
    return p->sizes.m == 0 || p->sizes.n == 0 || p->batches.count == 0;
}

size_t tarn__cl_product_scratch(const tarn__call *call, const tarn__cl_product *p)
{
    tarn__cl_device *device = tarn__cl_at(call->device);
    if (is_empty(p) || !device)
        return 0;
    tarn__cl_sizes s = p->sizes;
    panel_plan plan;
    switch (way_of(device, p)) {
    case PANELS:
        plan = plan_panels(device, p);
        return (size_t)panel_bytes(&plan);
    case TILES:
        choose_splits(device, p, &s);
        return s.splits > 1 ? (size_t)(s.splits * p->batches.count * s.m * s.n * size_of_sum(p)) : 0;
    default: return 0;
    }
}

void tarn__cl_product_run(const tarn__call *call, const tarn__cl_product *p, int64_t scratch)
{
    tarn__cl_device *device = tarn__cl_at(call->device);
    if (is_empty(p) || !device)
        return;
    switch (way_of(device, p)) {
    case PLAIN: run_plain(call, p); break;
    case THIN: run_thin(call, device, p); break;
    case TILES: run_tiles(call, device, p, scratch); break;
    case PANELS: run_panels(call, device, p, scratch); break;
    }
}
