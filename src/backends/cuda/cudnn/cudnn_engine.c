/* cudnn_engine.c: engines that cuDNN offers for a graph, and plans made of them. */
#include "backends/cuda/cudnn/cudnn.h"

#include <stdlib.h>
#include <string.h>

#define MOST_NOTES 32
#define MOST_KNOBS 64
#define ENOUGH 4 /* engines: the slow ones that always work are asked for where there are fewer */

/* ---- what an engine is ------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    return hash ^ (hash >> 32);
}

/* The engine's number and its notes, as bits; false when it does not tell. */
static bool ask_engine(const tarn__cudnn *c, void *config, int64_t *number, uint32_t *notes)
{
    void *engine = NULL;
    int64_t count = 0;
    int note[MOST_NOTES];
    bool is_good =
        c->make(TARN__CUDNN_ENGINE, &engine) == 0 &&
        c->get(config, TARN__CUDNN_CONFIG_ENGINE, TARN__CUDNN_IS_DESCRIPTOR, 1, &count, &engine) == 0 &&
        c->get(engine, TARN__CUDNN_ENGINE_INDEX, TARN__CUDNN_IS_INT64, 1, &count, number) == 0 &&
        c->get(engine, TARN__CUDNN_ENGINE_NOTES, TARN__CUDNN_IS_NUMERICAL_NOTE, MOST_NOTES, &count, note) == 0 &&
        count <= MOST_NOTES;
    *notes = 0;
    for (int64_t i = 0; is_good && i < count; i++)
        *notes |= note[i] >= 0 && note[i] < 32 ? (uint32_t)1 << note[i] : 0;
    if (engine)
        c->free(engine);
    return is_good;
}

/* The settings of a configuration, mixed into a number. How many there are is only told to who has room for them. */
static bool mix_knobs(const tarn__cudnn *c, void *config, uint64_t *hash)
{
    void *knobs[MOST_KNOBS];
    int64_t count = 0, made = 0, one;
    while (made < MOST_KNOBS && c->make(TARN__CUDNN_KNOB, &knobs[made]) == 0)
        made++;
    bool is_good = made == MOST_KNOBS &&
                   c->get(config, TARN__CUDNN_CONFIG_KNOBS, TARN__CUDNN_IS_DESCRIPTOR, made, &count, knobs) == 0;
    for (int64_t i = 0; is_good && i < count; i++) {
        int type = 0;
        int64_t value = 0;
        is_good = c->get(knobs[i], TARN__CUDNN_KNOB_TYPE, TARN__CUDNN_IS_KNOB_TYPE, 1, &one, &type) == 0 &&
                  c->get(knobs[i], TARN__CUDNN_KNOB_VALUE, TARN__CUDNN_IS_INT64, 1, &one, &value) == 0;
        *hash = mix(mix(*hash, (uint64_t)type), (uint64_t)value);
    }
    while (made > 0)
        c->free(knobs[--made]);
    return is_good;
}

/* ---- engines of a graph ------------------------------------------------------------------------------------------ */

static bool is_known(const tarn__cudnn_engine *found, int count, uint64_t identity)
{
    for (int i = 0; i < count; i++)
        if (found[i].identity == identity)
            return true;
    return false;
}

/* Takes those of the configurations that may be used and are new; gives the others back. */
static int keep_fitting(const tarn__cudnn *c, void **configs, int64_t count, uint32_t refused_notes,
                        tarn__cudnn_engine *found, int kept, int room)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t number = 0;
        uint32_t notes = 0;
        uint64_t identity = 0x9e3779b97f4a7c15u;
        bool fits = kept < room && ask_engine(c, configs[i], &number, &notes) && (notes & refused_notes) == 0;
        identity = mix(identity, (uint64_t)number);
        if (fits && mix_knobs(c, configs[i], &identity) && !is_known(found, kept, identity))
            found[kept++] = (tarn__cudnn_engine){configs[i], identity};
        else
            c->free(configs[i]);
    }
    return kept;
}

/* Asks one heuristic; gives how many are known then. */
static int ask_heuristic(const tarn__cudnn *c, const tarn__cudnn_graph *graph, int mode, uint32_t refused_notes,
                         tarn__cudnn_engine *found, int kept, int room)
{
    void *heuristic = NULL, **configs = NULL;
    int64_t count = 0, made = 0, given = 0;
    bool is_good = c->make(TARN__CUDNN_HEURISTIC, &heuristic) == 0 &&
                   c->set(heuristic, TARN__CUDNN_HEURISTIC_GRAPH, TARN__CUDNN_IS_DESCRIPTOR, 1, &graph->whole) == 0 &&
                   c->set(heuristic, TARN__CUDNN_HEURISTIC_MODE, TARN__CUDNN_IS_HEURISTIC_MODE, 1, &mode) == 0 &&
                   c->finish(heuristic) == 0 &&
                   c->get(heuristic, TARN__CUDNN_HEURISTIC_RESULTS, TARN__CUDNN_IS_DESCRIPTOR, 0, &count, NULL) == 0 &&
                   count > 0 && (configs = calloc((size_t)count, sizeof(*configs))) != NULL;
    while (is_good && made < count && c->make(TARN__CUDNN_CONFIG, &configs[made]) == 0)
        made++;
    if (made > 0 &&
        c->get(heuristic, TARN__CUDNN_HEURISTIC_RESULTS, TARN__CUDNN_IS_DESCRIPTOR, made, &given, configs) != 0)
        given = 0;
    while (made > given)
        c->free(configs[--made]);
    kept = keep_fitting(c, configs, made, refused_notes, found, kept, room);
    free(configs);
    if (heuristic)
        c->free(heuristic);
    return kept;
}

int tarn__cudnn_find_engines(const tarn__cudnn_graph *graph, uint32_t refused_notes, tarn__cudnn_engine *found,
                             int room)
{
    const tarn__cudnn *c = tarn__cudnn_open();
    int kept = ask_heuristic(c, graph, TARN__CUDNN_HEURISTIC_A, refused_notes, found, 0, room);
    if (kept >= ENOUGH)
        return kept;
    return ask_heuristic(c, graph, TARN__CUDNN_HEURISTIC_FALLBACK, refused_notes, found, kept, room);
}

void tarn__cudnn_free_engines(tarn__cudnn_engine *engines, int count)
{
    for (int i = 0; i < count; i++)
        if (engines[i].config)
            tarn__cudnn_open()->free(engines[i].config);
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

bool tarn__cudnn_build_plan(void *handle, tarn__cudnn_engine *engine, tarn__cudnn_plan *plan)
{
    const tarn__cudnn *c = tarn__cudnn_open();
    void *made = NULL;
    int64_t count = 0, workspace = 0;
    if (c->make(TARN__CUDNN_PLAN, &made) != 0)
        return false;
    if (c->set(made, TARN__CUDNN_PLAN_HANDLE, TARN__CUDNN_IS_HANDLE, 1, &handle) != 0 ||
        c->set(made, TARN__CUDNN_PLAN_CONFIG, TARN__CUDNN_IS_DESCRIPTOR, 1, &engine->config) != 0 ||
        c->finish(made) != 0 ||
        c->get(made, TARN__CUDNN_PLAN_WORKSPACE, TARN__CUDNN_IS_INT64, 1, &count, &workspace) != 0 || workspace < 0) {
        c->free(made);
        return false;
    }
    *plan = (tarn__cudnn_plan){.plan = made, .config = engine->config, .workspace = (size_t)workspace};
    engine->config = NULL;
    return true;
}

void tarn__cudnn_free_plan(tarn__cudnn_plan *plan)
{
    const tarn__cudnn *c = tarn__cudnn_open();
    if (plan->pack)
        c->free(plan->pack);
    if (plan->plan)
        c->free(plan->plan);
    if (plan->config)
        c->free(plan->config);
    *plan = (tarn__cudnn_plan){0};
}

/* A pack of the addresses; the last one where they are the same, as they are in most steps of a training. */
static bool make_pack(const tarn__cudnn *c, tarn__cudnn_plan *plan, int count, const int64_t *ids,
                      void *const *addresses, void *workspace)
{
    size_t bytes = (size_t)count * sizeof(addresses[0]);
    if (plan->pack && memcmp(plan->addresses, addresses, bytes) == 0 && plan->addresses[count] == workspace)
        return true;
    if (plan->pack)
        c->free(plan->pack);
    plan->pack = NULL;
    void *made = NULL;
    bool is_good = tarn__cudnn_good(c->make(TARN__CUDNN_VARIANT_PACK, &made), "a pack of addresses");
    is_good =
        is_good &&
        tarn__cudnn_good(c->set(made, TARN__CUDNN_VARIANT_PACK_IDS, TARN__CUDNN_IS_INT64, count, ids),
                         "a pack of addresses") &&
        tarn__cudnn_good(c->set(made, TARN__CUDNN_VARIANT_PACK_ADDRESSES, TARN__CUDNN_IS_POINTER, count, addresses),
                         "a pack of addresses") &&
        tarn__cudnn_good(c->set(made, TARN__CUDNN_VARIANT_PACK_WORKSPACE, TARN__CUDNN_IS_POINTER, 1, &workspace),
                         "a pack of addresses") &&
        tarn__cudnn_good(c->finish(made), "a pack of addresses");
    if (!is_good) {
        if (made)
            c->free(made);
        return false;
    }
    plan->pack = made;
    memcpy(plan->addresses, addresses, bytes);
    plan->addresses[count] = workspace;
    return true;
}

bool tarn__cudnn_run_plan(void *handle, tarn__cudnn_plan *plan, int count, const int64_t *ids, void *const *addresses,
                          void *workspace)
{
    const tarn__cudnn *c = tarn__cudnn_open();
    return make_pack(c, plan, count, ids, addresses, workspace) &&
           tarn__cudnn_good(c->run(handle, plan->plan, plan->pack), "running a plan");
}
