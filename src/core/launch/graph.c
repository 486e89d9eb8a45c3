/* graph.c: captured steps.
 *
 * While a step is recorded, the device's pool hands out blocks of an arena that the graph owns, and holds back blocks
 * given to it, because the recorded kernels will use both again. The device's random offset counts from 0; each run
 * adds where the generator stands. Live values lie in one small block of the arena and are written by one command
 * before the recorded ones. */
#include "core/launch/graph.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "core/memory/pool.h"
#include "core/profile/profiler.h"
#include "core/tensor/random.h"

#define MAX_LIVE 16

typedef struct live {
    size_t offset;
    tarn__refresh_fn refresh;
    _Alignas(16) char ctx[TARN__LIVE_CTX];
} live;

struct tarn_graph {
    tarn_device device;
    const tarn__backend *backend;
    void *recorded; /* NULL: the device cannot record, the step is called */
    tarn_step_fn step;
    void *ctx;
    tarn__arena *arena;
    tarn__pool_block *values; /* TARN__INLINE_WRITE_BYTES of live values */
    size_t values_used;
    live live[MAX_LIVE];
    int live_count;
    const uint64_t *random; /* where the live seed and offset lie; NULL until the step draws */
    uint64_t drawn;         /* counters that one run uses */
};

static _Thread_local tarn_graph *capturing; /* the graph this thread is recording */

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

const void *tarn__graph_live(size_t bytes, tarn__refresh_fn refresh, const void *ctx, size_t ctx_bytes)
{
    tarn_graph *graph = capturing;
    size_t rounded = (bytes + 15) / 16 * 16;
    if (graph->live_count == MAX_LIVE || graph->values_used + rounded > TARN__INLINE_WRITE_BYTES) {
        tarn__raise(TARN_ERROR_UNSUPPORTED,
                    "graph_capture: the step has more values that change than the %d that fit (one for each run of "
                    "parameters that an optimizer "
                    "updates, one for random numbers)",
                    graph->live_count);
        return NULL;
    }
    live *l = &graph->live[graph->live_count++];
    *l = (live){.offset = graph->values_used, .refresh = refresh};
    memcpy(l->ctx, ctx, ctx_bytes);
    graph->values_used += rounded;
    return (const char *)tarn__pool_block_memory(graph->values) + tarn__pool_block_offset(graph->values) + l->offset;
}

static void refresh_random(void *ctx, void *values)
{
    tarn_graph *graph;
    memcpy(&graph, ctx, sizeof(graph));
    tarn__random now = tarn__random_reserve(graph->device, (int64_t)graph->drawn * 4);
    memcpy(values, (uint64_t[]){now.seed, now.offset}, 2 * sizeof(uint64_t));
}

const uint64_t *tarn__graph_random(void)
{
    if (!capturing->random)
        capturing->random = tarn__graph_live(2 * sizeof(uint64_t), refresh_random, &capturing, sizeof(capturing));
    return capturing->random;
}

/* ---- capturing --------------------------------------------------------------------------------------------------- */

/* Runs the step with the device recording; the generator stands at 0 meanwhile. */
static bool record(tarn_graph *graph)
{
    tarn__rng_state before = tarn__random_save();
    uint64_t *offset = tarn__random_offset(graph->device);
    *offset = 0;
    capturing = graph;
    tarn__arena_enter(graph->arena);
    bool good = graph->backend->capture_begin(graph->device.index) ||
                tarn__raise(TARN_ERROR_DEVICE, "graph_capture: %s", graph->backend->failure());
    if (good) {
        good = graph->step(graph->ctx) && !tarn_failed();
        graph->recorded = graph->backend->capture_end(graph->device.index);
        if (good && !graph->recorded)
            good = tarn__raise(TARN_ERROR_DEVICE, "graph_capture: %s", graph->backend->failure());
        else if (!good && !tarn_failed())
            tarn__raise(TARN_ERROR_ARGUMENT, "graph_capture: the step returned false");
    }
    tarn__arena_leave(graph->arena);
    capturing = NULL;
    graph->drawn = *offset;
    tarn__random_restore(&before);
    return good;
}

static bool prepare(tarn_graph *graph)
{
    graph->arena = tarn__arena_new(graph->device);
    if (!graph->arena)
        return false;
    tarn__arena_enter(graph->arena);
    graph->values = tarn__pool_alloc(graph->device, TARN__INLINE_WRITE_BYTES, NULL);
    tarn__arena_leave(graph->arena);
    return graph->values && tarn_synchronize(graph->device) && record(graph);
}

tarn_graph *tarn_graph_capture(tarn_device device, tarn_step_fn step, void *ctx)
{
    const tarn__backend *backend = tarn_failed() ? NULL : tarn__backend_of(device, "graph_capture");
    if (!backend)
        return NULL;
    if (!step || capturing) {
        tarn__raise(TARN_ERROR_ARGUMENT, "graph_capture: %s",
                    step ? "a capture is going on already" : "the step is NULL");
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

static bool write_values(tarn_graph *graph, void *stream)
{
    _Alignas(16) char values[TARN__INLINE_WRITE_BYTES] = {0};
    for (int i = 0; i < graph->live_count; i++)
        graph->live[i].refresh(graph->live[i].ctx, values + graph->live[i].offset);
    return graph->live_count == 0 ||
           graph->backend->write_inline(graph->device.index, tarn__pool_block_memory(graph->values),
                                        tarn__pool_block_offset(graph->values), values, graph->values_used, stream);
}

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
        write_values(graph, stream) && graph->backend->graph_launch(graph->device.index, graph->recorded, stream);
    tarn__timing_end(&timing);
    if (!good)
        return tarn__raise(TARN_ERROR_DEVICE, "graph_run: %s", graph->backend->failure());
    return tarn__device_poll(graph->device, "graph_run");
}

void tarn_graph_free(tarn_graph *graph)
{
    if (!graph)
        return;
    if (graph->recorded) {
        graph->backend->synchronize(graph->device.index); /* a run may still be under way */
        graph->backend->graph_free(graph->device.index, graph->recorded);
    }
    tarn__pool_free(graph->values);
    tarn__arena_free(graph->arena);
    tarn__release(graph, sizeof(*graph));
}
