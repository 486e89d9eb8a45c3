/* conv_wgrad_plan.c: how the gradient of a weight is cut into blocks and tiles (conv_wgrad.h), and whether it is done
 * so at all.
 *
 * A tile is large enough that what its windows see around it costs little, and small enough that two of them on the way
 * and one in use fit in shared memory; of all that fit, the one is taken with which the slowest block has the least to
 * do. The numbers below are of one multiprocessor of an H200. */
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/conv/cudnn_conv.h"

#define MOST_PIXELS 1024 /* of a tile */
#define MOST_SEEN 65536  /* pixels of x in a tile: they are counted in 16 bits */
#define MOST_UNITS 18    /* of a block */
#define MOST_TILE_IMAGES 64
#define MOST_PARTS 65535
#define MOST_SCRATCH ((size_t)256 << 20)
#define LOAD_BYTES 20.0    /* a cycle, from memory */
#define SHARED_BYTES 128.0 /* a cycle */
#define PRODUCT 1.67       /* cycles of one product of 16 rows and 8 columns */
#define BETWEEN 250.0      /* cycles from tile to tile in which nothing is done */
#define ALONE \
    1.25 /* as much longer where few products follow each load, and there is no second block to fill the gaps */

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int ceiling(int a, int b)
{
    return (a + b - 1) / b;
}

/* ---- what a block has -------------------------------------------------------------------------------------------- */

/* The number of warps beside each other: one that divides all. */
static int warps_for(int units)
{
    int needed = ceiling(units, TARN__WGRAD_UNITS);
    while (TARN__WGRAD_WARPS % needed)
        needed++;
    return needed;
}

static void cut_weight(tarn__wgrad_plan *p)
{
    int taps = p->kernel[0] * p->kernel[1];
    p->outs = p->out <= 16 ? 16 : p->out <= 32 ? 32 : 64;
    p->slice = 64;
    while (p->slice > 16 && (p->slice / 2 >= p->in || taps * (p->slice / 16) > MOST_UNITS))
        p->slice /= 2;
    p->groups = ceiling(taps * (p->slice / 16), MOST_UNITS);
    p->taps = ceiling(taps, p->groups);
    p->groups = ceiling(taps, p->taps);
    p->slices = ceiling(p->in, p->slice);
    p->blocks = ceiling(p->out, p->outs);
    p->across = warps_for(p->taps * (p->slice / 16));
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

static tarn__wgrad_copies moves_of(int channels, int count, int element)
{
    int packs = channels * element / 16, pixels = TARN__WGRAD_WARPS * 32 / packs,
        line = (channels + TARN__WGRAD_GAP) * element;
    return (tarn__wgrad_copies){
        .packs = packs, .pixels = pixels, .apart = pixels * line, .count = count, .bytes = count * line};
}

/* Everything that follows from the size of a tile. False where it has too many pixels, or does not fit in shared
 * memory. */
static bool cut_pixels(tarn__wgrad_plan *p, int images, int rows, int columns, int shared_bytes)
{
    int each = p->is_wide ? 8 : 16, element = p->is_wide ? 4 : 2;
    const int whole[] = {p->images, p->result[0], p->result[1]}, tile[] = {images, rows, columns};
    int64_t seen = images, pixels = (int64_t)images * rows * columns;
    for (int i = 0; i < 3; i++) {
        p->tile[i] = tile[i];
        p->tiles[i] = ceiling(whole[i], tile[i]);
    }
    for (int i = 0; i < 2; i++) {
        int64_t side = (int64_t)(p->tile[1 + i] - 1) * (p->stride[i] / p->load[i]) +
                       (int64_t)(p->kernel[i] - 1) * p->dilation[i] + 1;
        if (side >= MOST_SEEN)
            return false;
        p->halo[i] = (int)side;
        seen *= side;
    }
    if (pixels > MOST_PIXELS || seen >= MOST_SEEN)
        return false;
    p->x = moves_of(p->slice, (int)seen, element);
    p->g = moves_of(p->outs, ceiling((int)pixels, each) * each, element);
    int tiles = TARN__WGRAD_STAGES * (p->x.bytes + p->g.bytes),
        sums = p->outs * (p->across * TARN__WGRAD_UNITS * 16 + 8) * (int)sizeof(float);
    p->shared_bytes = TARN__WGRAD_TILES(*p) + (tiles > sums ? tiles : sums);
    return p->shared_bytes <= shared_bytes;
}

/* Cycles of one tile's work. */
static double cycles_of(const tarn__wgrad_plan *p)
{
    int turns = TARN__WGRAD_WARPS / p->across, each = p->is_wide ? 8 : 16, rows = p->outs / 16;
    double steps = (double)(ceiling(p->g.count / each, turns) * turns * p->across), bytes = p->x.bytes + p->g.bytes;
    double products = steps * rows * TARN__WGRAD_UNITS * 2 * PRODUCT;
    double shared = steps * 4 * (rows + TARN__WGRAD_UNITS) + bytes / SHARED_BYTES, loads = bytes / LOAD_BYTES;
    double most = products > shared ? products : shared;
    return most > loads ? most : loads;
}

/* Blocks of which a multiprocessor has room for the registers and the shared memory: two, of the smallest kernel. */
static int blocks_at_once(const tarn__wgrad_plan *p, int shared_bytes)
{
    return p->outs == 16 && 2 * (p->shared_bytes + 1024) <= shared_bytes + 1024 ? 2 : 1;
}

/* Shares the tiles among as many blocks as make the least of the whole, whose cycles are given. */
static double share(tarn__wgrad_plan *p, int multiprocessors, int shared_bytes)
{
    int at_once = blocks_at_once(p, shared_bytes), room = multiprocessors * at_once,
        others = p->slices * p->groups * p->blocks, best = 1;
    int64_t tiles = (int64_t)p->tiles[0] * p->tiles[1] * p->tiles[2];
    double work = cycles_of(p) * at_once, cycles = (p->outs == 16 && at_once == 1 ? ALONE * work : work) + BETWEEN,
           fastest = 0;
    for (int waves = 1; waves <= 4; waves++) {
        int64_t parts = (int64_t)room * waves / others;
        parts = parts < 1 ? 1 : parts > tiles ? tiles : parts > MOST_PARTS ? MOST_PARTS : parts;
        double rounds = (double)((tiles + parts - 1) / parts), needed = (double)((parts * others + room - 1) / room);
        double took = needed * (rounds + 1) * cycles; /* the first tile is waited for */
        if (waves == 1 || took < fastest)
            fastest = took, best = (int)parts;
    }
    p->parts = best;
    p->each = (int)(tiles / best);
    p->more = (int)(tiles % best);
    return fastest;
}

/* The best tile of these columns: some rows of an image, or some whole images. */
static void try_columns(const tarn__wgrad_plan *like, int columns, int multiprocessors, int shared_bytes,
                        tarn__wgrad_plan *best, double *fastest)
{
    for (int pieces = 1; pieces <= like->result[0]; pieces++) {
        int rows = ceiling(like->result[0], pieces),
            most = pieces == 1 && columns == like->result[1] ? least(like->images, MOST_TILE_IMAGES) : 1;
        if (pieces > 1 && rows == ceiling(like->result[0], pieces - 1))
            continue;
        for (int images = 1; images <= most; images++) {
            tarn__wgrad_plan p = *like;
            if (!cut_pixels(&p, images, rows, columns, shared_bytes))
                break;
            double took = share(&p, multiprocessors, shared_bytes);
            if (*fastest == 0 || took < *fastest)
                *best = p, *fastest = took;
        }
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* -1: forbidden, 1: wanted, 0: as it is measured. */
static int wish(void)
{
    static _Atomic int answer = 2; /* 2: the environment has not been asked */
    if (answer == 2) {
        const char *text = getenv("TARN_CUDA_CONV_WEIGHT");
        answer = !text ? 0 : strcmp(text, "off") == 0 ? -1 : strcmp(text, "on") == 0;
    }
    return answer;
}

bool tarn__wgrad_is_forced(void)
{
    return wish() > 0;
}

bool tarn__wgrad_is_off(void)
{
    return wish() < 0;
}

bool tarn__wgrad_supports(const tarn__cudnn_conv *v)
{
    bool may =
        (v->in_dtype == TARN_BF16 || (v->in_dtype == TARN_F32 && v->tf32)) && v->in < 1 << 24 && v->out < 1 << 24;
    for (int i = 0; i < 2; i++) /* sums of a few of these stay below 2^31 */
        may = may && v->size[i] < 1 << 24 && v->padding[i] < 1 << 24 && v->dilation[i] < 1 << 24 &&
              v->stride[i] < 1 << 12 && v->kernel[i] < 1 << 12;
    return may && v->what == TARN__CONV_WGRAD && v->groups == 1 && v->in % 8 == 0 && v->out % 8 == 0 && wish() >= 0;
}

bool tarn__wgrad_plan_of(int index, const tarn__cudnn_conv *v, tarn__wgrad_plan *plan)
{
    const tarn__cuda_device *device = tarn__cuda_at(index);
    tarn__wgrad_plan like = {.is_wide = v->in_dtype == TARN_F32};
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
    cut_weight(&like);
    for (int pieces = 1; pieces <= like.result[1] && pieces <= MOST_PIXELS; pieces++)
        if (pieces == 1 || ceiling(like.result[1], pieces) < ceiling(like.result[1], pieces - 1))
            try_columns(&like, ceiling(like.result[1], pieces), device->multiprocessors, device->shared_bytes, plan,
                        &fastest);
    return fastest > 0 && tarn__wgrad_scratch(plan) <= MOST_SCRATCH;
}
