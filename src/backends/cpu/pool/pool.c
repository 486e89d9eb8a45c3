/* pool.c: max_pool2d and avg_pool2d and their gradients.
 *
 * Outputs are computed in tiles: of columns (NCHW), or of channels (NHWC). max takes the first of equal elements in
 * a window, NaN over everything, and ignores padding; the index of the winner within its window, row-major, is saved
 * for backward (u8 or i32). Backward sums each band of the input gradient in a buffer of the compute type, window
 * after window in order, and rounds once: bitwise reproducible with any number of threads. */
#include <math.h>

#include "backends/cpu/common/convert.h"
#include "backends/cpu/common/int_math.h"
#include "backends/cpu/common/scratch.h"

#define TILE 256
#define GRAIN 4096          /* elements read per task, at least */
#define CHANNELS_AT_ONCE 64 /* channels of a patch of channels-last images */
#define PATCH_BYTES (INT64_C(256) << 10)
#define NONE 255                 /* u8 index of an empty window (all padding) */
#define SMALL (INT64_C(1) << 29) /* a few such values can be added in 32 bits */

/* One call. image is x or gx, result y or gy: the geometry is the same in both directions. */
typedef struct pool {
    /* x and y, or their gradients; argmax indices, u8 or i32, or NULL */
    const tarn__view *image, *result, *indices;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    bool is_max, exclude_padding;
    bool by_channel;           /* channels last: tiles run along channels */
    int64_t pieces;            /* tiles per row of columns, or per pixel's channels */
    int64_t rows, row_sets;    /* short rows of columns: rows per tile, and the number of such sets */
    int64_t band, bands, sets; /* backward: rows of a patch, patches per image, sets of channels */
    /* backward: 2 × 2 windows without overlap that cover the image, in tiles of columns */
    bool is_2x2;
    bool is_small; /* backward: u8 indices, and offsets in a plane fit 32 bits */
    slots slots;
} pool;

/* Outputs from (image, channel, row, column): `count` along channels, or along columns in each of `rows` rows. */
typedef struct tile {
    int64_t image, channel, row, column, rows, count;
} tile;

/* Which band of the image gradient a task sums. */
typedef struct patch_at {
    int64_t image, channel, channels, row, rows;
} patch_at;

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* Range of `count` elements, `stride` apart with the first at `column`, that falls inside the image. */
static void columns_inside(const pool *p, int64_t column, int64_t count, int64_t *low, int64_t *high)
{
    int64_t stride = p->stride[1], width = p->image->shape[3];
    *low = column < 0 ? min_i64(count, ceil_div(-column, stride)) : 0;
    *high = column >= width ? *low : max_i64(*low, min_i64(count, (width - 1 - column) / stride + 1));
}

/* Extent of a window along an axis, with or without padding: the divisor of an average. */
static int64_t window_length(const pool *p, int axis, int64_t at)
{
    int64_t begin = at * p->stride[axis] - p->padding[axis], size = p->image->shape[2 + axis];
    int64_t end = min_i64(begin + p->kernel[axis], size + p->padding[axis]);
    return p->exclude_padding ? max_i64(1, min_i64(end, size) - max_i64(begin, 0)) : end - begin;
}

/* First output row whose window ends at `row` or below; first whose window begins there or below. */
static int64_t first_window(const pool *p, int64_t row)
{
    int64_t reach = (p->kernel[0] - 1) * p->dilation[0], distance = row + p->padding[0] - reach;
    return distance <= 0 ? 0 : ceil_div(distance, p->stride[0]);
}

static int64_t last_window(const pool *p, int64_t row)
{
    return min_i64(p->result->shape[2], ceil_div(row + p->padding[0], p->stride[0]));
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* Line numbers follow the memory order of the result. */
static tile tile_at(const pool *p, int64_t index)
{
    const tarn__view *y = p->result;
    int64_t piece = index % p->pieces * TILE, outer = index / p->pieces;
    if (p->by_channel) {
        int64_t row = outer / y->shape[3];
        return (tile){row / y->shape[2],   piece, row % y->shape[2],
                      outer % y->shape[3], 1,     min_i64(y->shape[1] - piece, TILE)};
    }
    int64_t plane = outer / p->row_sets, row = outer % p->row_sets * p->rows;
    return (tile){plane / y->shape[1],
                  plane % y->shape[1],
                  row,
                  piece,
                  min_i64(y->shape[2] - row, p->rows),
                  min_i64(y->shape[3] - piece, TILE)};
}

static void *tile_address(const tarn__view *view, const tile *t)
{
    return (char *)tarn__view_at(view) + (t->image * view->stride[0] + t->channel * view->stride[1] +
                                          t->row * view->stride[2] + t->column * view->stride[3]) *
                                             (int64_t)tarn__dtype_bytes(view->dtype);
}

/* Stride along a tile: of channels (NHWC) or columns (NCHW). */
static int64_t tile_stride(const pool *p, const tarn__view *view)
{
    return view->stride[p->by_channel ? 1 : 3];
}

static void store_bytes(const int32_t *at, uint8_t *to, int64_t stride, int64_t n)
{
    if (stride == 1)
        for (int64_t i = 0; i < n; i++)
            to[i] = (uint8_t)at[i];
    else
        for (int64_t i = 0; i < n; i++)
            to[i * stride] = (uint8_t)at[i];
}

/* In the dtype of the saved indices; -1 becomes NONE in u8. */
static void store_indices(const pool *p, const tile *t, const int32_t *at)
{
    int32_t *to = tile_address(p->indices, t);
    int64_t stride = tile_stride(p, p->indices);
    if (p->indices->dtype == TARN_U8)
        store_bytes(at, (uint8_t *)(void *)to, stride, t->count);
    else
        for (int64_t i = 0; i < t->count; i++)
            to[i * stride] = at[i];
}

/* First row or column of a window inside the image; -1: none. */
static int64_t first_inside(const pool *p, int axis, int64_t at)
{
    int64_t begin = at * p->stride[axis] - p->padding[axis],
            skipped = begin < 0 ? ceil_div(-begin, p->dilation[axis]) : 0;
    return skipped < p->kernel[axis] && begin + skipped * p->dilation[axis] < p->image->shape[2 + axis] ? skipped : -1;
}

/* Index of each window's first element inside the image: the winner among equal elements. */
static void first_indices(const pool *p, const tile *t, int32_t *at)
{
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t row = first_inside(p, 0, t->row + r);
        for (int64_t i = 0; i < t->count; i++) {
            int64_t column = first_inside(p, 1, t->column + (p->by_channel ? 0 : i));
            at[r * t->count + i] = row < 0 || column < 0 ? -1 : (int32_t)(row * p->kernel[1] + column);
        }
    }
}

/* Offset of element `index` of a window from the window's first element, in its plane. */
static int64_t offset_in_window(const pool *p, int64_t index)
{
    return index / p->kernel[1] * p->dilation[0] * p->image->shape[3] + index % p->kernel[1] * p->dilation[1];
}

/* Offset of a window in its plane; negative in the padding. */
static int64_t window_begin(const pool *p, int64_t row, int64_t column)
{
    return (row * p->stride[0] - p->padding[0]) * p->image->shape[3] + column * p->stride[1] - p->padding[1];
}

/* Offsets of a tile's winners in a patch from u8 indices; the first window begins at `begin`. Division by the kernel
 * width is a multiplication, so that the loop vectorizes. */
static void offsets_of_indices(const pool *p, const tile *t, const uint8_t *at, int64_t begin, int32_t *restrict offset)
{
    /* index / columns by multiplication, exact for indices below 256; offset = begin + i · step + row · row_step +
     * index · column_step. */
    const uint32_t columns = (uint32_t)p->kernel[1], column_step = (uint32_t)p->dilation[1],
                   inverse = 65536 / columns + 1;
    const uint32_t row_step = (uint32_t)(p->dilation[0] * p->image->shape[3]) - columns * column_step,
                   step = p->by_channel ? 0 : (uint32_t)p->stride[1];
    const int64_t stride = tile_stride(p, p->indices), n = t->count;
    uint8_t dense[TILE];
    for (int64_t r = 0; r < t->rows;
         r++, at += p->indices->stride[2], offset += n, begin += p->stride[0] * p->image->shape[3]) {
        const uint8_t *restrict index_row = stride == 1 ? at : dense;
        for (int64_t i = 0; stride != 1 && i < n; i++)
            dense[i] = at[i * stride];
        for (int64_t i = 0; i < n; i++) {
            uint32_t index = index_row[i], row = index * inverse >> 16, first = (uint32_t)begin + (uint32_t)i * step;
            offset[i] = index == NONE ? INT32_MIN : (int32_t)(first + row * row_step + index * column_step);
        }
    }
}

/* Task numbers run over bands, then sets of channels, then images. */
static patch_at patch_of(const pool *p, int64_t index)
{
    int64_t band = index % p->bands, set = index / p->bands % p->sets,
            channels_per_patch = p->by_channel ? CHANNELS_AT_ONCE : 1;
    return (patch_at){index / p->bands / p->sets, set * channels_per_patch,
                      min_i64(p->image->shape[1] - set * channels_per_patch, channels_per_patch), band * p->band,
                      min_i64(p->image->shape[2] - band * p->band, p->band)};
}

#define T float
#define BITS uint32_t
#define COMPUTE COMPUTE_F32
#define NATIVE TARN_F32
#define NAMED(x) x##_f32
#include "backends/cpu/pool/pool_tiles.inc"
#undef T
#undef BITS
#undef COMPUTE
#undef NATIVE
#undef NAMED

#define T double
#define BITS uint64_t
#define COMPUTE COMPUTE_F64
#define NATIVE TARN_F64
#define NAMED(x) x##_f64
#include "backends/cpu/pool/pool_tiles.inc"

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Channels are contiguous and columns are not. */
static bool is_channels_last(const tarn__view *x)
{
    return x->shape[1] > 1 && x->stride[1] == 1 && (x->shape[3] == 1 || x->stride[3] != 1);
}

/* Short rows of columns are joined: several rows per tile. */
static pool describe(const tarn__call *call, const tarn__view *image, const tarn__view *result,
                     const tarn__view *indices, bool is_max)
{
    const tarn__pool2d *params = call->params;
    pool p = {.image = image,
              .result = result,
              .indices = indices,
              .is_max = is_max,
              .exclude_padding = params->exclude_padding,
              .by_channel = is_channels_last(image)};
    for (int axis = 0; axis < 2; axis++) {
        p.kernel[axis] = params->kernel[axis];
        p.stride[axis] = params->stride[axis];
        p.padding[axis] = params->padding[axis];
        p.dilation[axis] = params->dilation[axis];
    }
    /* Tiles of at most TILE elements. */
    p.pieces = ceil_div(result->shape[p.by_channel ? 1 : 3], TILE);
    p.rows = max_i64(1, min_i64(TILE / result->shape[3], result->shape[2]));
    p.row_sets = ceil_div(result->shape[2], p.rows);
    return p;
}

/* Parallel over tiles of the result. */
static void run_forward(const tarn__call *call, const tarn__view *indices, bool is_max)
{
    const tarn__view *y = call->out[0];
    if (tarn__view_count(y) == 0)
        return;
    pool p = describe(call, call->in[0], y, indices, is_max);
    int64_t tiles = y->shape[0] * p.pieces * (p.by_channel ? y->shape[2] * y->shape[3] : y->shape[1] * p.row_sets);
    int64_t work = p.kernel[0] * p.kernel[1] *
                   (8 + (p.by_channel ? min_i64(TILE, y->shape[1]) : p.rows * min_i64(TILE, y->shape[3])));
    tarn__parallel_for(tiles, ceil_div(GRAIN, work), call->in[0]->dtype == TARN_F64 ? pool_tiles_f64 : pool_tiles_f32,
                       &p);
}

/* Bands of at most PATCH_BYTES; 2 × 2 windows need an even number of rows. */
static void choose_patches(pool *p, int64_t size)
{
    const tarn__view *x = p->image;
    int64_t channels_per_patch = p->by_channel ? CHANNELS_AT_ONCE : 1;
    p->sets = ceil_div(x->shape[1], channels_per_patch);
    p->band = max_i64(1, min_i64(x->shape[2], PATCH_BYTES / (size * channels_per_patch * x->shape[3])));
    /* A band must hold whole windows. */
    p->is_2x2 = p->is_2x2 && p->band > 1;
    p->band -= p->is_2x2 ? p->band % 2 : 0;
    p->bands = ceil_div(x->shape[2], p->band);
}

/* True for the common stride-2 pooling without padding: every image element belongs to exactly one window. */
static bool covers_2x2(const pool *p)
{
    bool is_good = !p->by_channel && p->indices->stride[3] == 1 && p->indices->stride[2] == p->indices->shape[3];
    for (int axis = 0; axis < 2; axis++)
        is_good = is_good && p->kernel[axis] == 2 && p->stride[axis] == 2 && p->padding[axis] == 0 &&
                  p->dilation[axis] == 1 && 2 * p->result->shape[2 + axis] == p->image->shape[2 + axis];
    return is_good;
}

/* True where offsets fit 32 bits, so that offsets_of_indices() can compute in vectors. */
static bool is_small(const pool *p)
{
    int64_t width = p->image->shape[3], rows = p->image->shape[2] + p->kernel[0] * p->dilation[0];
    return p->indices->dtype == TARN_U8 && rows < SMALL / width && p->kernel[1] * p->dilation[1] < SMALL &&
           p->stride[1] < SMALL / TILE;
}

/* The output is the gradient of the image; indices follow the gradient of the result. */
static void bind_backward(pool *p, const tarn__call *call)
{
    p->image = call->out[0];
    p->result = call->in[0];
    p->indices = p->is_max ? call->in[1] : NULL;
    slots_init(&p->slots, call->scratch);
}

static tarn__plan_status prepare_backward(const tarn__call *call, tarn__plan *plan, bool is_max)
{
    const tarn__view *gx = call->out[0];
    int64_t size = call->in[0]->dtype == TARN_F64 ? 8 : 4;
    arena c = {0};
    pool *p = tarn__plan_reserve(plan, sizeof(*p));
    if (!p)
        return TARN__PLAN_FAILED;
    if (tarn__view_count(gx) == 0)
        return TARN__PLAN_READY;
    *p = describe(call, gx, call->in[0], is_max ? call->in[1] : NULL, is_max);
    p->is_2x2 = is_max && covers_2x2(p);
    p->is_small = is_max && is_small(p);
    choose_patches(p, size);
    int64_t channels_per_patch = p->by_channel ? CHANNELS_AT_ONCE : 1;
    p->slots = arena_slots(&c, (size_t)(size * channels_per_patch * p->band * gx->shape[3]),
                           slot_count(gx->shape[0] * p->sets * p->bands));
    p->image = p->result = p->indices = NULL; /* a plan has no addresses */
    plan->scratch_bytes = c.used;
    return TARN__PLAN_READY;
}

/* Parallel over patches of the image gradient: each is written by one task. */
static void run_backward(const tarn__call *call)
{
    if (tarn__view_count(call->out[0]) == 0)
        return;
    pool p = *(const pool *)tarn__plan_job(call->plan);
    bind_backward(&p, call);
    int64_t patches = p.image->shape[0] * p.sets * p.bands,
            work = p.band * p.image->shape[3] * (p.by_channel ? CHANNELS_AT_ONCE : 1);
    tarn__parallel_for(patches, ceil_div(GRAIN, work),
                       call->in[0]->dtype == TARN_F64 ? grad_patches_f64 : grad_patches_f32, &p);
}

/* KH · KW comparisons per output; indices are written where backward needs them. */
static void kernel_max_pool2d(const tarn__call *call)
{
    run_forward(call, call->out[1], true);
}

static void kernel_avg_pool2d(const tarn__call *call)
{
    run_forward(call, NULL, false);
}

/* One addition per output. */
static tarn__plan_status prepare_max_pool2d_grad(const tarn__call *call, tarn__plan *plan)
{
    return prepare_backward(call, plan, true);
}

/* KH · KW additions per output. */
static tarn__plan_status prepare_avg_pool2d_grad(const tarn__call *call, tarn__plan *plan)
{
    return prepare_backward(call, plan, false);
}

void TARN__AT_LEVEL(tarn__cpu_register_pool)(tarn__kernel_row *rows)
{
    rows[TARN__K_max_pool2d] = tarn__row(kernel_max_pool2d, TARN__FLOATS);
    rows[TARN__K_max_pool2d_grad] = tarn__row_planned(prepare_max_pool2d_grad, run_backward, TARN__FLOATS);
    rows[TARN__K_avg_pool2d] = tarn__row(kernel_avg_pool2d, TARN__FLOATS);
    rows[TARN__K_avg_pool2d_grad] = tarn__row_planned(prepare_avg_pool2d_grad, run_backward, TARN__FLOATS);
}
