/* conv_wgrad_plan.c: tiling of the wgrad kernel (conv_wgrad.h), and whether it is used.
 *
 * A tile is large enough that its halo costs little, and small enough that three fit in shared memory. Of all that fit,
 * the one with the lowest estimated time of the slowest block wins. The cost model is that of one multiprocessor of an
 * H200; it changes the speed, never the result's precision. */
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/conv/cudnn_conv.h"

#define MAX_PIXELS 1024        /* per tile */
#define MAX_INPUT_PIXELS 65536 /* pixels of x in a tile: counted in 16 bits */
#define MAX_UNITS 18           /* per block */
#define MAX_TILE_IMAGES 64
#define MAX_PARTS 65535
#define MAX_SCRATCH ((size_t)256 << 20)
#define LOAD_BYTES 20.0    /* per cycle, from memory */
#define SHARED_BYTES 128.0 /* per cycle */
#define PRODUCT 1.67       /* cycles of one mma of 16 rows and 8 columns */
#define BETWEEN 250.0      /* idle cycles between tiles */
#define ALONE 1.25         /* slowdown if few mma follow each load and no second block fills the gaps */

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* ---- tile of dW -------------------------------------------------------------------------------------------------- */

/* Warps side by side: the smallest divisor of all warps that covers the units. */
static int warps_for(int units)
{
    int needed = ceil_div(units, TARN__WGRAD_UNITS);
    while (TARN__WGRAD_WARPS % needed)
        needed++;
    return needed;
}

/* Rows, channels and taps of a block's tile of dW. */
static void split_weight(tarn__wgrad_plan *p)
{
    int taps = p->kernel[0] * p->kernel[1];
    p->outs = p->out <= 16 ? 16 : p->out <= 32 ? 32 : 64;
    p->slice = 64;
    while (p->slice > 16 && (p->slice / 2 >= p->in || taps * (p->slice / 16) > MAX_UNITS))
        p->slice /= 2;
    p->groups = ceil_div(taps * (p->slice / 16), MAX_UNITS);
    p->taps = ceil_div(taps, p->groups);
    p->groups = ceil_div(taps, p->taps);
    p->slices = ceil_div(p->in, p->slice);
    p->blocks = ceil_div(p->out, p->outs);
    p->across = warps_for(p->taps * (p->slice / 16));
}

/* ---- pixel tiles ------------------------------------------------------------------------------------------------- */

static tarn__wgrad_copies copies_of(int channels, int count, int element)
{
    int vecs = channels * element / 16, pixels = TARN__WGRAD_WARPS * 32 / vecs,
        line = (channels + TARN__WGRAD_GAP) * element;
    return (tarn__wgrad_copies){
        .vecs = vecs, .pixels = pixels, .apart = pixels * line, .count = count, .bytes = count * line};
}

/* Everything that follows from the tile size. False if it has too many pixels or does not fit in shared memory. */
static bool split_pixels(tarn__wgrad_plan *p, int images, int rows, int columns, int shared_bytes)
{
    int each = p->is_tf32 ? 8 : 16, element = p->is_tf32 ? 4 : 2;
    const int whole[] = {p->images, p->result[0], p->result[1]}, tile[] = {images, rows, columns};
    int64_t covered = images, pixels = (int64_t)images * rows * columns;
    for (int i = 0; i < 3; i++) {
        p->tile[i] = tile[i];
        p->tiles[i] = ceil_div(whole[i], tile[i]);
    }
    for (int i = 0; i < 2; i++) {
        int64_t side = (int64_t)(p->tile[1 + i] - 1) * (p->stride[i] / p->load[i]) +
                       (int64_t)(p->kernel[i] - 1) * p->dilation[i] + 1;
        if (side >= MAX_INPUT_PIXELS)
            return false;
        p->halo[i] = (int)side;
        covered *= side;
    }
    if (pixels > MAX_PIXELS || covered >= MAX_INPUT_PIXELS)
        return false;
    p->x = copies_of(p->slice, (int)covered, element);
    p->g = copies_of(p->outs, ceil_div((int)pixels, each) * each, element);
    int tiles = TARN__WGRAD_STAGES * (p->x.bytes + p->g.bytes),
        sums = p->outs * (p->across * TARN__WGRAD_UNITS * 16 + 8) * (int)sizeof(float);
    p->shared_bytes = TARN__WGRAD_TILES(*p) + (tiles > sums ? tiles : sums);
    return p->shared_bytes <= shared_bytes;
}

/* Estimated cycles per tile: the largest of tensor-core, shared-memory and load time. */
static double cycles_of(const tarn__wgrad_plan *p)
{
    int turns = TARN__WGRAD_WARPS / p->across, each = p->is_tf32 ? 8 : 16, rows = p->outs / 16;
    double steps = (double)(ceil_div(p->g.count / each, turns) * turns * p->across), bytes = p->x.bytes + p->g.bytes;
    double products = steps * rows * TARN__WGRAD_UNITS * 2 * PRODUCT;
    double shared = steps * 4 * (rows + TARN__WGRAD_UNITS) + bytes / SHARED_BYTES, loads = bytes / LOAD_BYTES;
    double most = products > shared ? products : shared;
    return most > loads ? most : loads;
}

/* Blocks resident per multiprocessor: two of the smallest kernel, else one. */
static int blocks_at_once(const tarn__wgrad_plan *p, int shared_bytes)
{
    return p->outs == 16 && 2 * (p->shared_bytes + 1024) <= shared_bytes + 1024 ? 2 : 1;
}

/* Splits the tiles over blocks; returns the estimated cycles of the whole. */
static double split_tiles(tarn__wgrad_plan *p, int multiprocessors, int shared_bytes)
{
    int at_once = blocks_at_once(p, shared_bytes), slots = multiprocessors * at_once,
        others = p->slices * p->groups * p->blocks, best = 1;
    int64_t tiles = (int64_t)p->tiles[0] * p->tiles[1] * p->tiles[2];
    double work = cycles_of(p) * at_once, cycles = (p->outs == 16 && at_once == 1 ? ALONE * work : work) + BETWEEN,
           fastest = 0;
    for (int waves = 1; waves <= 4; waves++) {
        int64_t parts = (int64_t)slots * waves / others;
        parts = parts < 1 ? 1 : parts > tiles ? tiles : parts > MAX_PARTS ? MAX_PARTS : parts;
        double rounds = (double)((tiles + parts - 1) / parts), needed = (double)((parts * others + slots - 1) / slots);
        double took = needed * (rounds + 1) * cycles; /* + 1: the first tile is not overlapped */
        if (waves == 1 || took < fastest)
            fastest = took, best = (int)parts;
    }
    p->parts = best;
    p->each = (int)(tiles / best);
    p->more = (int)(tiles % best);
    return fastest;
}

/* Best tile with these columns: some rows of an image, or some whole images. */
static void try_columns(const tarn__wgrad_plan *like, int columns, int multiprocessors, int shared_bytes,
                        tarn__wgrad_plan *best, double *fastest)
{
    for (int pieces = 1; pieces <= like->result[0]; pieces++) {
        int rows = ceil_div(like->result[0], pieces),
            most = pieces == 1 && columns == like->result[1] ? min_int(like->images, MAX_TILE_IMAGES) : 1;
        if (pieces > 1 && rows == ceil_div(like->result[0], pieces - 1))
            continue;
        for (int images = 1; images <= most; images++) {
            tarn__wgrad_plan p = *like;
            if (!split_pixels(&p, images, rows, columns, shared_bytes))
                break;
            double took = split_tiles(&p, multiprocessors, shared_bytes);
            if (*fastest == 0 || took < *fastest)
                *best = p, *fastest = took;
        }
    }
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

/* TARN_CUDA_WGRAD: -1 off, 1 on, 0 tuned. */
static int setting(void)
{
    static _Atomic int answer = 2; /* 2: environment not read yet */
    if (answer == 2) {
        const char *text = tarn__cuda_env("TARN_CUDA_WGRAD", "TARN_CUDA_CONV_WEIGHT");
        answer = !text ? 0 : strcmp(text, "off") == 0 ? -1 : strcmp(text, "on") == 0;
    }
    return answer;
}

bool tarn__wgrad_is_forced(void)
{
    return setting() > 0;
}

bool tarn__wgrad_is_off(void)
{
    return setting() < 0;
}

/* Size limits keep all products of the plan within 32 bits. */
bool tarn__wgrad_supports(const tarn__cudnn_conv *v)
{
    bool may =
        (v->in_dtype == TARN_BF16 || (v->in_dtype == TARN_F32 && v->tf32)) && v->in < 1 << 24 && v->out < 1 << 24;
    for (int i = 0; i < 2; i++) /* sums of a few of these stay below 2^31 */
        may = may && v->size[i] < 1 << 24 && v->padding[i] < 1 << 24 && v->dilation[i] < 1 << 24 &&
              v->stride[i] < 1 << 12 && v->kernel[i] < 1 << 12;
    return may && v->what == TARN__CONV_WGRAD && v->groups == 1 && v->in % 8 == 0 && v->out % 8 == 0 && setting() >= 0;
}

/* Tries every tile shape, once per convolution. */
bool tarn__wgrad_plan_of(int index, const tarn__cudnn_conv *v, tarn__wgrad_plan *plan)
{
    const tarn__cuda_device *device = tarn__cuda_at(index);
    tarn__wgrad_plan like = {.is_tf32 = v->in_dtype == TARN_F32};
    double fastest = 0;
    if (!device || !v->channels_last || !tarn__wgrad_supports(v))
        return false;
    like.images = (int)v->images, like.in = (int)v->in, like.out = (int)v->out;
    for (int i = 0; i < 2; i++) {
        like.size[i] = (int)v->size[i], like.result[i] = (int)v->result[i], like.kernel[i] = (int)v->kernel[i];
        like.stride[i] = (int)v->stride[i], like.padding[i] = (int)v->padding[i],
        like.dilation[i] = (int)v->dilation[i];
        like.load[i] = like.kernel[i] == 1 ? like.stride[i] : 1;
    }
    split_weight(&like);
    for (int pieces = 1; pieces <= like.result[1] && pieces <= MAX_PIXELS; pieces++)
        if (pieces == 1 || ceil_div(like.result[1], pieces) < ceil_div(like.result[1], pieces - 1))
            try_columns(&like, ceil_div(like.result[1], pieces), device->multiprocessors, device->shared_bytes, plan,
                        &fastest);
    return fastest > 0 && tarn__wgrad_scratch(plan) <= MAX_SCRATCH;
}
