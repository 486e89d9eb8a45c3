/* graph.c: captured steps (CUDA graphs, and a replayed list of calls in tests).
 *
 * While a step is captured, its memory comes from an arena owned by the graph (core/memory/arena.c): what the step
 * frees serves the same capture again, and nothing else for as long as the graph lives. The random counter starts at 0;
 * each run adds the generator's position. Live values (learning rate, step count, seed) are in one small block of the
 * arena, written by one inline write before each launch.
 *
 * Ownership: the graph owns its arena, the captured object and copies of the live values' contexts. The step and its
 * context are borrowed and needed after capture only on devices without capture support. */
#include "core/launch/graph.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "core/memory/pool.h"
#include "core/profile/profiler.h"
#include "core/tensor/random.h"

#define MAX_LIVE_VALUES 16

typedef struct live {
    size_t offset;
    tarn__refresh_fn refresh;
    _Alignas(16) char ctx[TARN__LIVE_CTX];
} live;

struct tarn_graph {
    tarn_device device;
    const tarn__backend *backend;
    void *captured; /* NULL: no capture support, the step is called */
    tarn_step_fn step;
    void *ctx;
    tarn__arena *arena;
    tarn__pool_block *values; /* TARN__INLINE_WRITE_BYTES bytes of live values */
    size_t values_used;
    live live[MAX_LIVE_VALUES];
    int live_count;
    const uint64_t *random; /* address of the live seed and offset; NULL until the step draws */
    uint64_t drawn;         /* random counters used per run */
};

static _Thread_local tarn_graph *capturing; /* the graph this thread is capturing */

bool tarn__can_capture(tarn_device device)
{
    const tarn__backend *backend = tarn__backend_at(device.backend);
    return backend && backend->capture_begin;
}

bool tarn__is_capturing(tarn_device device)
{
    return capturing && tarn__same_device(capturing->device, device);
}

bool tarn__not_captured(const char *function, tarn_device device, const char *what)
{
    return !tarn__is_capturing(device) ||
           tarn__raise(TARN_ERROR_UNSUPPORTED, "%s: %s inside a captured step", function, what);
}

/* ---- live values ------------------------------------------------------------------------------------------------- */

/* Values are packed in order of request, 16-byte aligned. */
const void *tarn__graph_live(size_t bytes, tarn__refresh_fn refresh, const void *ctx, size_t ctx_bytes)
{
    tarn_graph *graph = capturing;
    size_t rounded = (bytes + 15) / 16 * 16;
    if (graph->live_count == MAX_LIVE_VALUES || graph->values_used + rounded > TARN__INLINE_WRITE_BYTES) {
        tarn__raise(
            TARN_ERROR_UNSUPPORTED,
            "graph_capture: the step has more than %d changing values, the maximum (one per run of parameters that "
            "an optimizer updates, one for an average, one for random numbers)",
            graph->live_count);
        return NULL;
    }
    live *l = &graph->live[graph->live_count++];
    *l = (live){.offset = graph->values_used, .refresh = refresh};
    memcpy(l->ctx, ctx, ctx_bytes);
    graph->values_used += rounded;
    return (const char *)tarn__pool_block_memory(graph->values) + tarn__pool_block_offset(graph->values) + l->offset;
}

/* Advances the generator by the counters that one run uses, as eager execution would. */
static void refresh_random(void *ctx, void *values)
{
    tarn_graph *graph;
    memcpy(&graph, ctx, sizeof(graph));
    tarn__random now = tarn__random_reserve(graph->device, (int64_t)graph->drawn * 4);
    memcpy(values, (uint64_t[]){now.seed, now.offset}, 2 * sizeof(uint64_t));
}

/* One pair of values serves all random operations of the step. */
const uint64_t *tarn__graph_random(void)
{
    if (!capturing->random)
        capturing->random = tarn__graph_live(2 * sizeof(uint64_t), refresh_random, &capturing, sizeof(capturing));
    return capturing->random;
}

/* ---- capturing --------------------------------------------------------------------------------------------------- */

/* Runs the step while the device captures; the random counter starts at 0 meanwhile. */
static bool capture(tarn_graph *graph)
{
    tarn__rng_state before = tarn__random_save();
    uint64_t *offset = tarn__random_offset(graph->device);
    *offset = 0;
    capturing = graph;
    bool good = graph->backend->capture_begin(graph->device.index) ||
                tarn__raise(TARN_ERROR_DEVICE, "graph_capture: %s", graph->backend->failure());
    if (good) {
        good = graph->step(graph->ctx) && !tarn_failed();
        graph->captured = graph->backend->capture_end(graph->device.index);
        if (good && !graph->captured)
            good = tarn__raise(TARN_ERROR_DEVICE, "graph_capture: %s", graph->backend->failure());
        else if (!good && !tarn_failed())
            tarn__raise(TARN_ERROR_ARGUMENT, "graph_capture: the step returned false");
    }
    capturing = NULL;
    graph->drawn = *offset;
    tarn__random_restore(&before);
    return good;
}

/* The device must be idle, so that no earlier work is captured. */
static bool prepare(tarn_graph *graph)
{
    graph->arena = tarn__arena_new(graph->device);
    if (!graph->arena || !tarn_synchronize(graph->device))
        return false;
    if (!tarn__arena_enter(graph->arena))
        return tarn__raise(TARN_ERROR_ARGUMENT, "graph_capture: another thread captures on the same device");
    graph->values = tarn__pool_alloc(graph->device, TARN__INLINE_WRITE_BYTES, NULL);
    bool good = graph->values && capture(graph);
    tarn__arena_leave(graph->arena);
    return good;
}

/* Without capture support the graph just calls the step on each run, with the same results. */
tarn_graph *tarn_graph_capture(tarn_device device, tarn_step_fn step, void *ctx)
{
    const tarn__backend *backend = tarn_failed() ? NULL : tarn__backend_of(device, "graph_capture");
    if (!backend)
        return NULL;
    if (!step || capturing) {
        tarn__raise(TARN_ERROR_ARGUMENT, "graph_capture: %s",
                    step ? "a capture is already in progress" : "the step is NULL");
        return NULL;
    }
    tarn_graph *graph = tarn__alloc(sizeof(*graph));
    if (!graph)
        return NULL;
    graph->device = device;
    graph->backend = backend;
    graph->step = step;
    graph->ctx = ctx;
    if (backend->capture_begin && !prepare(graph)) {
        tarn_graph_free(graph);
        return NULL;
    }
    return graph;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* All live values in one inline write, before the launch. */
static bool write_values(tarn_graph *graph, void *stream)
{
    _Alignas(16) char values[TARN__INLINE_WRITE_BYTES] = {0};
    for (int i = 0; i < graph->live_count; i++)
        graph->live[i].refresh(graph->live[i].ctx, values + graph->live[i].offset);
    return graph->live_count == 0 ||
           graph->backend->write_inline(graph->device.index, tarn__pool_block_memory(graph->values),
                                        tarn__pool_block_offset(graph->values), values, graph->values_used, stream);
}

/* Enqueues the graph; does not wait for it. */
bool tarn_graph_run(tarn_graph *graph)
{
    if (tarn_failed())
        return false;
    if (!graph)
        return tarn__raise(TARN_ERROR_ARGUMENT, "graph_run: the graph is NULL");
    if (!graph->backend->capture_begin)
        return graph->step(graph->ctx) || tarn_failed() ||
               tarn__raise(TARN_ERROR_ARGUMENT, "graph_run: the step returned false");
    if (!tarn__not_captured("graph_run", graph->device, "a graph cannot run"))
        return false;
    void *stream = graph->backend->stream ? graph->backend->stream(graph->device.index) : NULL;
    tarn__timing timing = {0};
    if (tarn__is_profiling())
        tarn__timing_begin(&timing, TARN_PROFILE_GRAPH, "captured step", "graph_run", graph->device);
    bool good =
        write_values(graph, stream) && graph->backend->graph_launch(graph->device.index, graph->captured, stream);
    tarn__timing_end(&timing);
    if (!good)
        return tarn__raise(TARN_ERROR_DEVICE, "graph_run: %s", graph->backend->failure());
    return tarn__device_poll(graph->device, "graph_run");
}

/* The device must be idle before its memory is released. */
void tarn_graph_free(tarn_graph *graph)
{
    if (!graph)
        return;
    if (graph->captured) {
        graph->backend->synchronize(graph->device.index); /* a run may still be queued */
        graph->backend->graph_free(graph->device.index, graph->captured);
    }
    tarn__pool_free(graph->values);
    tarn__arena_free(graph->arena);
    tarn__release(graph, sizeof(*graph));
}
