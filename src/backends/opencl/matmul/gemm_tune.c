/* gemm_tune.c: tiles of GEMMs, and autotuning among them.
 *
 * Which tile is fastest depends on device and driver: the first large f32 GEMM measures the candidates that fit, once,
 * and the result is cached on disk (base/os/tuning_cache.h). Small GEMMs, and those in f64, have a tile by rule. A
 * tile changes no bit of a result, since the terms of an element are added in the same order in all of them.
 *
 * TARN_AUTOTUNE=off disables measuring, and so does a disabled cache: every run would pay for it.
 * TARN_OPENCL_TILE=N takes candidate N for all f32 GEMMs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/opencl/matmul/gemm.h"
#include "base/os/platform.h"
#include "base/os/tuning_cache.h"

#define LARGE_ON_GPU 0x1p28 /* multiply-adds of a GEMM that is worth measuring for */
#define LARGE_ON_CPU 0x1p23
#define SIDE_ON_GPU 2048 /* sides and terms of the GEMM that is measured */
#define TERMS_ON_GPU 1024
#define SIDE_ON_CPU 192
#define ROUNDS 10 /* timed, after one that compiles; the fastest counts */
#define IN_A_ROUND 2

#define GROUPS(x, y, y_each, x_each, depth_, registers_) \
    { \
        .rows = (y) * (y_each), .width = (x) * (x_each), .across = x, .down = y, .across_each = x_each, \
        .down_each = y_each, .depth = depth_, .registers = registers_ \
    }
#define PANEL(rows_, lanes_) \
    { \
        .rows = rows_, .width = 2 * (lanes_), .lanes = lanes_ \
    }

/* Candidates for work-groups, in the order of fallback for devices with fewer resources. The register limits let two
 * groups of 256 work-items share a multiprocessor. */
static const tarn__cl_gemm_tile group_tiles[] = {
    GROUPS(16, 16, 8, 8, 8, 0),    GROUPS(16, 16, 8, 8, 8, 128), GROUPS(16, 16, 8, 8, 16, 0),
    GROUPS(16, 16, 8, 8, 16, 128), GROUPS(16, 8, 8, 8, 16, 0),   GROUPS(16, 16, 8, 4, 16, 0),
    GROUPS(16, 16, 4, 4, 16, 0),   GROUPS(8, 8, 8, 8, 16, 0),    GROUPS(8, 8, 4, 4, 16, 0),
};

/* Candidates for panels; the first is the default. */
static const tarn__cl_gemm_tile panel_tiles[] = {PANEL(12, 16), PANEL(8, 16), PANEL(6, 8), PANEL(8, 8), PANEL(12, 4)};

#define COUNT(list) ((int)(sizeof(list) / sizeof((list)[0])))

/* ---- rules ------------------------------------------------------------------------------------------------------- */

/* Two stages of both operands, with the padding of gemm_tiled.cl. */
static size_t local_bytes(const tarn__cl_gemm_tile *t, tarn_dtype sums)
{
    return tarn__dtype_bytes(sums) * 2 * (size_t)(t->depth * (t->rows + t->width + 8));
}

/* On a CPU used like a GPU (TARN_OPENCL_LOCAL_MEM=1) large groups would compile for minutes. */
static bool fits(const tarn__cl_device *device, const tarn__cl_gemm_tile *t, tarn_dtype sums)
{
    size_t items = (size_t)(t->across * t->down);
    return items <= device->max_group && local_bytes(t, sums) <= device->local_bytes &&
           (items <= 64 || !device->is_cpu);
}

/* Register limits are an option of NVIDIA's compiler. */
static bool is_for_vendor(const tarn__cl_device *device, const tarn__cl_gemm_tile *t)
{
    return t->registers == 0 || strstr(device->vendor, "NVIDIA") != NULL;
}

/* The first that fits and has at most `max_each` sums per work-item; the last one where none does. */
static const tarn__cl_gemm_tile *first_group_tile(const tarn__cl_device *device, tarn_dtype sums, int max_each)
{
    for (int i = 0; i < COUNT(group_tiles); i++)
        if (group_tiles[i].down_each * group_tiles[i].across_each <= max_each && fits(device, &group_tiles[i], sums))
            return &group_tiles[i];
    return &group_tiles[COUNT(group_tiles) - 1];
}

bool tarn__cl_gemm_next_tile(const tarn__cl_device *device, tarn_dtype sums, size_t max_items, tarn__cl_gemm_tile *tile)
{
    int next = 0;
    while (next < COUNT(group_tiles) && memcmp(&group_tiles[next], tile, sizeof(*tile)) != 0)
        next++;
    for (next++; next < COUNT(group_tiles); next++) {
        const tarn__cl_gemm_tile *t = &group_tiles[next];
        if (fits(device, t, sums) && is_for_vendor(device, t) &&
            (max_items == 0 || (size_t)(t->across * t->down) <= max_items)) {
            *tile = *t;
            return true;
        }
    }
    return false;
}

static const tarn__cl_gemm_tile *default_tile(const tarn__cl_device *device)
{
    return device->has_local_memory ? first_group_tile(device, TARN_F32, 64) : &panel_tiles[0];
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* A GEMM of zeros: speed does not depend on values. */
typedef struct trial {
    tarn__cl_device *device;
    cl_mem memory[3];
    tarn__cl_gemm gemm;
} trial;

static cl_mem zeros(const tarn__cl_device *d, size_t bytes)
{
    static const cl_float zero;
    cl_int error;
    cl_mem memory = clCreateBuffer(d->context, CL_MEM_READ_WRITE, bytes, NULL, &error);
    if (error == CL_SUCCESS &&
        clEnqueueFillBuffer(d->queue, memory, &zero, sizeof(zero), 0, bytes, 0, NULL, NULL) == CL_SUCCESS)
        return memory;
    if (error == CL_SUCCESS)
        clReleaseMemObject(memory);
    return NULL;
}

/* Buffers outside of the pool: they live for the trial only. */
static bool set_up(trial *t, tarn__cl_device *device)
{
    int64_t side = device->is_cpu ? SIDE_ON_CPU : SIDE_ON_GPU, k = device->is_cpu ? SIDE_ON_CPU : TERMS_ON_GPU;
    size_t bytes[] = {(size_t)(side * k) * 4, (size_t)(side * k) * 4, (size_t)(side * side) * 4};
    *t = (trial){.device = device};
    t->gemm = (tarn__cl_gemm){.batches = {.operands = 4, .count = 1}, .alpha = 1, .is_trial = true};
    t->gemm.sizes = (tarn__cl_gemm_sizes){.m = side,
                                          .n = side,
                                          .k = k,
                                          .splits = 1,
                                          .part = k,
                                          .c_row_stride = side,
                                          .c_col_stride = 1,
                                          .a_row_stride = k,
                                          .a_col_stride = 1,
                                          .b_row_stride = side,
                                          .b_col_stride = 1};
    bool good = true;
    for (int i = 0; i < 3; i++)
        good = good && (t->memory[i] = zeros(device, bytes[i])) != NULL;
    tarn__view *views[] = {&t->gemm.a, &t->gemm.b, &t->gemm.c};
    for (int i = 0; i < 3; i++)
        *views[i] = (tarn__view){.memory = t->memory[i], .dtype = TARN_F32};
    return good;
}

static void take_down(trial *t)
{
    for (int i = 0; i < 3; i++)
        if (t->memory[i])
            clReleaseMemObject(t->memory[i]);
}

/* True when a launch of the trial failed. The failure is cleared, since it is not the caller's. */
static bool has_failed(tarn__cl_device *device, bool before)
{
    pthread_mutex_lock(&device->lock);
    bool failed = device->has_failed && !before;
    device->has_failed = before;
    pthread_mutex_unlock(&device->lock);
    return failed;
}

/* Best time of a GEMM with this tile in seconds; infinite where it cannot run. */
static double seconds_of(trial *t, const tarn__cl_gemm_tile *tile)
{
    double best = HUGE_VAL;
    bool before = t->device->has_failed;
    tarn__call call = {.device = t->device->index};
    tarn__cl_gemm_plan plan;
    t->gemm.tile = *tile;
    if (tarn__cl_gemm_prepare(&call, &t->gemm, &plan) != TARN__PLAN_READY ||
        (plan.scratch_bytes > 0 && !(call.scratch = zeros(t->device, plan.scratch_bytes))))
        return best;
    for (int round = 0; round <= ROUNDS; round++) {
        clFinish(t->device->queue);
        double begin = tarn__platform_seconds();
        for (int i = 0; i < IN_A_ROUND; i++)
            tarn__cl_gemm_run(&call, &t->gemm, &plan, 0);
        bool good = !tarn__cl_declined(t->device->index) && clFinish(t->device->queue) == CL_SUCCESS &&
                    !has_failed(t->device, before);
        double took = (tarn__platform_seconds() - begin) / IN_A_ROUND;
        if (!good) {
            best = HUGE_VAL;
            break;
        }
        best = round > 0 && took < best ? took : best;
    }
    if (call.scratch)
        clReleaseMemObject(call.scratch);
    return best;
}

/* Borrowed, static. */
static void candidates_of(const tarn__cl_device *device, const tarn__cl_gemm_tile **list, int *count)
{
    *list = device->has_local_memory ? group_tiles : panel_tiles;
    *count = device->has_local_memory ? COUNT(group_tiles) : COUNT(panel_tiles);
}

static void name_tile(const tarn__cl_gemm_tile *t, char *name, size_t size)
{
    if (t->lanes > 0)
        snprintf(name, size, "%d x %d", t->rows, t->width);
    else
        snprintf(name, size, "%d x %d x %d, %d work-items%s", t->rows, t->width, t->depth, t->across * t->down,
                 t->registers ? ", registers capped" : "");
}

/* Logs every candidate. NULL where none could run. */
static const tarn__cl_gemm_tile *measure(tarn__cl_device *device)
{
    const tarn__cl_gemm_tile *list, *best = NULL;
    double best_seconds = HUGE_VAL;
    char name[64];
    int count;
    trial t;
    candidates_of(device, &list, &count);
    bool good = set_up(&t, device);
    for (int i = 0; good && i < count; i++) {
        if (device->has_local_memory && (!fits(device, &list[i], TARN_F32) || !is_for_vendor(device, &list[i])))
            continue;
        double took = seconds_of(&t, &list[i]);
        name_tile(&list[i], name, sizeof(name));
        tarn__cl_host->log(TARN_LOG_INFO, "opencl:%d: f32 GEMM with tiles of %s takes %.3f ms", device->index, name,
                           took * 1e3);
        best = took < best_seconds ? &list[i] : best;
        best_seconds = took < best_seconds ? took : best_seconds;
    }
    take_down(&t);
    return best;
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* The key: device, driver, compute units, group limits, candidates, and the kernel's source; zeros after it. The value
 * is the index of a tile, one byte. */
#define KEY_BYTES 1024

static bool write_key(const tarn__cl_device *d, char *key, size_t size)
{
    char *text = tarn__cl_program_source(d->has_local_memory ? "gemm_tiled" : "gemm_panels"), name[64];
    uint64_t hash = 0xcbf29ce484222325u;
    const tarn__cl_gemm_tile *list;
    int count;
    if (!text)
        return false;
    memset(key, 0, size);
    for (const char *at = text; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
    free(text);
    int length =
        snprintf(key, size, "tile\n%s\n%s\n%u units\n%zu in a group, %zu bytes\n%s\n%016llx\n", d->name, d->driver,
                 d->compute_units, d->group_limit, d->local_bytes, d->options, (unsigned long long)hash);
    candidates_of(d, &list, &count);
    for (int i = 0; i < count && length < (int)size; i++) {
        name_tile(&list[i], name, sizeof(name));
        length += snprintf(key + length, size - (size_t)length, "%s\n", name);
    }
    return true;
}

/* The tile that TARN_OPENCL_TILE asks for; a warning where it does not fit. NULL: none. */
static const tarn__cl_gemm_tile *find_forced(const tarn__cl_device *d)
{
    const char *value = getenv("TARN_OPENCL_TILE");
    const tarn__cl_gemm_tile *list;
    int count;
    if (!value || !*value)
        return NULL;
    candidates_of(d, &list, &count);
    char *end;
    long number = strtol(value, &end, 10);
    if (end != value && *end == 0 && number >= 0 && number < count &&
        (!d->has_local_memory || fits(d, &list[number], TARN_F32)))
        return &list[number];
    tarn__cl_host->log(TARN_LOG_WARNING, "TARN_OPENCL_TILE is %s; must be a tile that fits opencl:%d, from 0 to %d",
                       value, d->index, count - 1);
    return NULL;
}

/* The tile found by an earlier run, or measured now; the default where none could run. NULL: it must be measured, and
 * may not. */
static const tarn__cl_gemm_tile *cached_or_measured(tarn__cl_device *d, const char *key, bool may_measure)
{
    tarn__tuning_cache cache = {.key_bytes = KEY_BYTES, .value_bytes = 1};
    const tarn__cl_gemm_tile *list, *tile = NULL;
    unsigned char number;
    int count;
    candidates_of(d, &list, &count);
    tarn__tuning_cache_open(&cache, "opencl", "gemm-tiles");
    if (tarn__tuning_cache_find(&cache, key, &number, true) && number < count) {
        tile = &list[number];
    } else if (may_measure && (tile = measure(d)) != NULL) {
        number = (unsigned char)(tile - list);
        tarn__tuning_cache_store(&cache, key, &number);
    }
    tarn__tuning_cache_close(&cache);
    return tile || !may_measure ? tile : default_tile(d);
}

/* Forced, default, cached or measured, in this order. NULL: it must be measured, and may not. */
static const tarn__cl_gemm_tile *tune(tarn__cl_device *d, bool may_measure)
{
    const char *autotune = tarn__cl_variable("TARN_AUTOTUNE");
    const tarn__cl_gemm_tile *tile = find_forced(d);
    char key[KEY_BYTES];
    if (tile || (autotune && strcmp(autotune, "off") == 0) || !tarn__cl_cache_is_on() ||
        !write_key(d, key, sizeof(key)))
        return tile ? tile : default_tile(d);
    return cached_or_measured(d, key, may_measure);
}

/* Tunes once per device; other threads wait. */
static const tarn__cl_gemm_tile *tuned(tarn__cl_device *d, bool may_measure)
{
    pthread_mutex_lock(&d->tile_lock);
    if (!d->tile)
        d->tile = tune(d, may_measure);
    const tarn__cl_gemm_tile *tile = d->tile;
    pthread_mutex_unlock(&d->tile_lock);
    return tile;
}

/* Elements that round a size up to a multiple. */
static int padding_of(int64_t size, int to)
{
    return (int)((to - size % to) % to);
}

/* Of all candidates the rows and the width that pad packed operands of m rows and n columns most. */
static tarn__cl_gemm_tile largest_panel(int64_t m, int64_t n)
{
    tarn__cl_gemm_tile tile = panel_tiles[0];
    for (int i = 1; i < COUNT(panel_tiles); i++) {
        const tarn__cl_gemm_tile *t = &panel_tiles[i];
        tile.rows = padding_of(m, t->rows) > padding_of(m, tile.rows) ? t->rows : tile.rows;
        tile.width = padding_of(n, t->width) > padding_of(n, tile.width) ? t->width : tile.width;
    }
    return tile;
}

/* Tuning applies where it pays: large f32 GEMMs. Others follow rules, so that small models never measure. Tiles of
 * work-groups need no scratch of their own, so any of them does before tuning. */
tarn__cl_gemm_tile tarn__cl_gemm_tile_of(const tarn__call *call, tarn_dtype sums, int64_t m, int64_t n, int64_t k,
                                         int64_t batches)
{
    tarn__cl_device *device = tarn__cl_device_at(call->device);
    double terms = (double)m * (double)n * (double)k * (double)batches;
    const char *value = getenv("TARN_OPENCL_TILE");
    const bool is_forced = value && *value;
    if (!device->has_local_memory && sums == TARN_F64)
        return (tarn__cl_gemm_tile)PANEL(12, 8);
    if (!device->has_local_memory && !is_forced && terms < LARGE_ON_CPU)
        return panel_tiles[0];
    if (device->has_local_memory && (sums != TARN_F32 || !is_forced)) {
        if (sums == TARN_F64 || m <= 64 || n <= 64)
            return *first_group_tile(device, sums, 16);
        if (terms < LARGE_ON_GPU)
            return *first_group_tile(device, sums, 64);
    }
    const tarn__cl_gemm_tile *tile = tuned(device, !call->is_meta);
    return tile ? *tile : device->has_local_memory ? *default_tile(device) : largest_panel(m, n);
}
