/* cudnn_engine.c: engines that cuDNN offers for a graph, and plans built from them. */
#include "backends/cuda/cudnn/cudnn.h"

#include <stdlib.h>
#include <string.h>

#define MAX_NOTES 32
#define MAX_KNOBS 64
#define ENOUGH 4 /* engines: fewer than these, and the fallback heuristic is asked too */

/* ---- identity of an engine --------------------------------------------------------------------------------------- */

/* One round of a multiplicative hash. */
static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    return hash ^ (hash >> 32);
}

/* The engine's index, and its numerical notes as bits; false if cuDNN does not report them. */
static bool query_engine(const tarn__cudnn *c, void *config, int64_t *index, uint32_t *notes)
{
    void *engine = NULL;
    int64_t count = 0;
    int note[MAX_NOTES];
    bool is_ok =
        c->create_descriptor(TARN__CUDNN_ENGINE, &engine) == 0 &&
        c->get(config, TARN__CUDNN_CONFIG_ENGINE, TARN__CUDNN_IS_DESCRIPTOR, 1, &count, &engine) == 0 &&
        c->get(engine, TARN__CUDNN_ENGINE_INDEX, TARN__CUDNN_IS_INT64, 1, &count, index) == 0 &&
        c->get(engine, TARN__CUDNN_ENGINE_NOTES, TARN__CUDNN_IS_NUMERICAL_NOTE, MAX_NOTES, &count, note) == 0 &&
        count <= MAX_NOTES;
    *notes = 0;
    for (int64_t i = 0; is_ok && i < count; i++)
        *notes |= note[i] >= 0 && note[i] < 32 ? (uint32_t)1 << note[i] : 0;
    if (engine)
        c->free(engine);
    return is_ok;
}

/* Hashes the knob settings of a configuration. cuDNN reports their number only to a caller with enough descriptors. */
static bool mix_knobs(const tarn__cudnn *c, void *config, uint64_t *hash)
{
    void *knobs[MAX_KNOBS];
    int64_t count = 0, created = 0, one;
    while (created < MAX_KNOBS && c->create_descriptor(TARN__CUDNN_KNOB, &knobs[created]) == 0)
        created++;
    bool is_ok = created == MAX_KNOBS &&
                 c->get(config, TARN__CUDNN_CONFIG_KNOBS, TARN__CUDNN_IS_DESCRIPTOR, created, &count, knobs) == 0;
    for (int64_t i = 0; is_ok && i < count; i++) {
        int type = 0;
        int64_t value = 0;
        is_ok = c->get(knobs[i], TARN__CUDNN_KNOB_TYPE, TARN__CUDNN_IS_KNOB_TYPE, 1, &one, &type) == 0 &&
                c->get(knobs[i], TARN__CUDNN_KNOB_VALUE, TARN__CUDNN_IS_INT64, 1, &one, &value) == 0;
        *hash = mix(mix(*hash, (uint64_t)type), (uint64_t)value);
    }
    while (created > 0)
        c->free(knobs[--created]);
    return is_ok;
}

/* ---- engines of a graph ------------------------------------------------------------------------------------------ */

static bool is_known(const tarn__cudnn_engine *found, int count, uint64_t identity)
{
    for (int i = 0; i < count; i++)
        if (found[i].identity == identity)
            return true;
    return false;
}

/* Keeps the configurations that are allowed and new; frees the others. Returns the new count. */
static int keep_supported(const tarn__cudnn *c, void **configs, int64_t count, uint32_t excluded_notes,
                          tarn__cudnn_engine *found, int count_found, int capacity)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t index = 0;
        uint32_t notes = 0;
        uint64_t identity = 0x9e3779b97f4a7c15u;
        bool fits =
            count_found < capacity && query_engine(c, configs[i], &index, &notes) && (notes & excluded_notes) == 0;
        identity = mix(identity, (uint64_t)index);
        if (fits && mix_knobs(c, configs[i], &identity) && !is_known(found, count_found, identity))
            found[count_found++] = (tarn__cudnn_engine){configs[i], identity};
        else
            c->free(configs[i]);
    }
    return count_found;
}

/* Queries one heuristic mode; returns the new count. */
static int query_heuristic(const tarn__cudnn *c, const tarn__cudnn_graph *graph, int mode, uint32_t excluded_notes,
                           tarn__cudnn_engine *found, int count_found, int capacity)
{
    void *heuristic = NULL, **configs = NULL;
    int64_t count = 0, created = 0, given = 0;
    bool is_ok = c->create_descriptor(TARN__CUDNN_HEURISTIC, &heuristic) == 0 &&
                 c->set(heuristic, TARN__CUDNN_HEURISTIC_GRAPH, TARN__CUDNN_IS_DESCRIPTOR, 1, &graph->finalized) == 0 &&
                 c->set(heuristic, TARN__CUDNN_HEURISTIC_MODE, TARN__CUDNN_IS_HEURISTIC_MODE, 1, &mode) == 0 &&
                 c->finalize(heuristic) == 0 &&
                 c->get(heuristic, TARN__CUDNN_HEURISTIC_RESULTS, TARN__CUDNN_IS_DESCRIPTOR, 0, &count, NULL) == 0 &&
                 count > 0 && (configs = calloc((size_t)count, sizeof(*configs))) != NULL;
    while (is_ok && created < count && c->create_descriptor(TARN__CUDNN_CONFIG, &configs[created]) == 0)
        created++;
    if (created > 0 &&
        c->get(heuristic, TARN__CUDNN_HEURISTIC_RESULTS, TARN__CUDNN_IS_DESCRIPTOR, created, &given, configs) != 0)
        given = 0;
    while (created > given)
        c->free(configs[--created]);
    count_found = keep_supported(c, configs, created, excluded_notes, found, count_found, capacity);
    free(configs);
    if (heuristic)
        c->free(heuristic);
    return count_found;
}

/* Mode A first: fast, and ordered by expected speed. The fallback mode lists engines that work everywhere. */
int tarn__cudnn_find_engines(const tarn__cudnn_graph *graph, uint32_t excluded_notes, tarn__cudnn_engine *found,
                             int capacity)
{
    const tarn__cudnn *c = tarn__cudnn_open();
    int count_found = query_heuristic(c, graph, TARN__CUDNN_HEURISTIC_A, excluded_notes, found, 0, capacity);
    if (count_found >= ENOUGH)
        return count_found;
    return query_heuristic(c, graph, TARN__CUDNN_HEURISTIC_FALLBACK, excluded_notes, found, count_found, capacity);
}

void tarn__cudnn_free_engines(tarn__cudnn_engine *engines, int count)
{
    for (int i = 0; i < count; i++)
        if (engines[i].config)
            tarn__cudnn_open()->free(engines[i].config);
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

/* Finalizing may compile kernels: seconds for fused attention. */
bool tarn__cudnn_build_plan(void *handle, tarn__cudnn_engine *engine, tarn__cudnn_plan *plan)
{
    const tarn__cudnn *c = tarn__cudnn_open();
    void *created = NULL;
    int64_t count = 0, workspace = 0;
    if (c->create_descriptor(TARN__CUDNN_PLAN, &created) != 0)
        return false;
    if (c->set(created, TARN__CUDNN_PLAN_HANDLE, TARN__CUDNN_IS_HANDLE, 1, &handle) != 0 ||
        c->set(created, TARN__CUDNN_PLAN_CONFIG, TARN__CUDNN_IS_DESCRIPTOR, 1, &engine->config) != 0 ||
        c->finalize(created) != 0 ||
        c->get(created, TARN__CUDNN_PLAN_WORKSPACE, TARN__CUDNN_IS_INT64, 1, &count, &workspace) != 0 ||
        workspace < 0) {
        c->free(created);
        return false;
    }
    *plan = (tarn__cudnn_plan){.plan = created, .config = engine->config, .workspace = (size_t)workspace};
    engine->config = NULL;
    return true;
}

/* Also frees the configuration: a plan refers to it. */
void tarn__cudnn_free_plan(tarn__cudnn_plan *plan)
{
    const tarn__cudnn *c = tarn__cudnn_open();
    if (plan->variant_pack)
        c->free(plan->variant_pack);
    if (plan->plan)
        c->free(plan->plan);
    if (plan->config)
        c->free(plan->config);
    *plan = (tarn__cudnn_plan){0};
}

/* Reuses the last variant pack if the addresses are the same, as in most training steps. */
static bool set_variant_pack(const tarn__cudnn *c, tarn__cudnn_plan *plan, int count, const int64_t *ids,
                             void *const *addresses, void *workspace)
{
    size_t bytes = (size_t)count * sizeof(addresses[0]);
    if (plan->variant_pack && memcmp(plan->addresses, addresses, bytes) == 0 && plan->addresses[count] == workspace)
        return true;
    if (plan->variant_pack)
        c->free(plan->variant_pack);
    plan->variant_pack = NULL;
    void *created = NULL;
    bool is_ok =
        tarn__cudnn_good(c->create_descriptor(TARN__CUDNN_VARIANT_PACK, &created), "cannot create a variant pack");
    is_ok =
        is_ok &&
        tarn__cudnn_good(c->set(created, TARN__CUDNN_VARIANT_PACK_IDS, TARN__CUDNN_IS_INT64, count, ids),
                         "cannot create a variant pack") &&
        tarn__cudnn_good(c->set(created, TARN__CUDNN_VARIANT_PACK_ADDRESSES, TARN__CUDNN_IS_POINTER, count, addresses),
                         "cannot create a variant pack") &&
        tarn__cudnn_good(c->set(created, TARN__CUDNN_VARIANT_PACK_WORKSPACE, TARN__CUDNN_IS_POINTER, 1, &workspace),
                         "cannot create a variant pack") &&
        tarn__cudnn_good(c->finalize(created), "cannot create a variant pack");
    if (!is_ok) {
        if (created)
            c->free(created);
        return false;
    }
    plan->variant_pack = created;
    memcpy(plan->addresses, addresses, bytes);
    plan->addresses[count] = workspace;
    return true;
}

/* Asynchronous, on the handle's stream. */
bool tarn__cudnn_run_plan(void *handle, tarn__cudnn_plan *plan, int count, const int64_t *ids, void *const *addresses,
                          void *workspace)
{
    const tarn__cudnn *c = tarn__cudnn_open();
    return set_variant_pack(c, plan, count, ids, addresses, workspace) &&
           tarn__cudnn_good(c->run(handle, plan->plan, plan->variant_pack), "cannot execute a plan");
}
