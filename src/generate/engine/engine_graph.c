/* engine_graph.c: steps in which every request decodes one token, captured as graphs on devices that support them.
 *
 * The shape of such a step is its number of sequences and the width of their page tables. The width is padded to a
 * power of two, so that a graph serves until a text has doubled in length. A shape is captured after a few eager steps
 * in a row: its algorithms are chosen by then, and shapes that change with every step are not worth a capture. A launch
 * is preceded by two writes: tokens, positions and slots; tables, starts and lengths. Tokens are sampled eagerly from
 * the graph's logits, before its next launch.
 *
 * Eager steps of this kind have tables of the same width, so captured and eager steps are bitwise identical. A few
 * graphs are kept; a new one replaces the least recently used one. Only the thread that steps uses them. */
#include <string.h>

#include "core/launch/graph.h"
#include "generate/engine/engine.h"

enum { WARM_UP = 3 };              /* equal steps in a row before a capture */
enum { MAX_GRAPH_SEQUENCES = 64 }; /* with more, a step takes the device longer than the host */
enum { MIN_TABLE_PAGES = 4 };

void tarn__engine_open_graphs(tarn_engine *e)
{
    e->graphs.is_enabled = !e->options.no_capture && e->pages.shape.map.count == 1 && tarn__can_capture(e->info.device);
}

static void drop(tarn__engine_graph *g)
{
    tarn_free(g->logits);
    tarn_graph_free(g->captured);
    tarn_free(g->rows);
    tarn_free(g->numbers);
    tarn_free(g->indices);
    *g = (tarn__engine_graph){0};
}

void tarn__engine_close_graphs(tarn_engine *e)
{
    for (int i = 0; i < TARN__ENGINE_GRAPHS; i++)
        drop(&e->graphs.graph[i]);
}

int64_t tarn__engine_graph_pages(const tarn_engine *e, const tarn__batch *b)
{
    int64_t pages = MIN_TABLE_PAGES, all = tarn__engine_pages_for(e->options.context);
    if (!e->graphs.is_enabled || !b->is_decoding || b->groups > 0 || b->sequences > MAX_GRAPH_SEQUENCES)
        return 0;
    while (pages < b->table_pages)
        pages *= 2;
    return pages < all || b->table_pages > all ? pages : all;
}

/* ---- a graph ----------------------------------------------------------------------------------------------------- */

/* Slice [begin, end) of a vector, in a shape. */
static tarn_tensor *part_of(tarn_tensor *vector, int64_t begin, int64_t end, tarn_shape shape)
{
    return tarn_reshape(tarn_slice(vector, 0, begin, end), shape);
}

typedef struct capture_ctx {
    tarn_engine *engine;
    tarn__engine_graph *graph;
} capture_ctx;

/* The forward pass, from the static inputs to the static logits. */
static bool forward(void *ctx)
{
    tarn_engine *e = ((capture_ctx *)ctx)->engine;
    tarn__engine_graph *g = ((capture_ctx *)ctx)->graph;
    const int64_t S = g->shape.sequences, table = S * g->shape.table_pages;
    tarn_scope *scope = tarn_scope_open();
    const tarn__page_index index = {
        .sequences = {part_of(g->numbers, 0, table, TARN_SHAPE(S, g->shape.table_pages)),
                      part_of(g->numbers, table, table + S + 1, TARN_SHAPE(S + 1)),
                      part_of(g->numbers, table + S + 1, table + 2 * S + 1, TARN_SHAPE(S))},
        .slots = part_of(g->indices, 2 * S, 3 * S, TARN_SHAPE(S)),
        .positions = part_of(g->indices, S, 2 * S, TARN_SHAPE(1, S)),
    };
    tarn_tensor *tokens = part_of(g->indices, 0, S, TARN_SHAPE(1, S));
    tarn_tensor *logits =
        scope && !tarn_failed() ? tarn__engine_forward_on(e, &index, tokens, g->rows, NULL, g->shape.is_long) : NULL;
    g->logits = logits ? tarn__scope_take(logits) : NULL;
    tarn_scope_close(scope);
    return g->logits != NULL;
}

/* Every sequence has one token and one row of logits. */
static bool open_inputs(const tarn_engine *e, tarn__engine_graph *g)
{
    const int64_t S = g->shape.sequences;
    tarn_device device = e->info.device;
    g->indices = tarn__scope_take(tarn_zeros(TARN_SHAPE(3 * S), TARN_I64, device));
    g->numbers = tarn__scope_take(tarn_zeros(TARN_SHAPE(S * g->shape.table_pages + 2 * S + 1), TARN_I32, device));
    g->rows = tarn__scope_take(tarn_arange(0, (double)S, 1, TARN_I64, device));
    return g->indices && g->numbers && g->rows;
}

/* On failure decoding continues eagerly, and the reason is logged. */
static tarn__engine_graph *capture(tarn_engine *e, const tarn__step_shape *shape)
{
    tarn__engine_graph *g = &e->graphs.graph[0];
    for (int i = 1; i < TARN__ENGINE_GRAPHS; i++)
        g = e->graphs.graph[i].used < g->used ? &e->graphs.graph[i] : g;
    drop(g);
    g->shape = *shape;
    if (open_inputs(e, g))
        g->captured = tarn_graph_capture(e->info.device, forward, &(capture_ctx){e, g});
    if (g->captured)
        return g;
    tarn__error_record why;
    tarn__error_save(&why);
    drop(g);
    e->graphs.is_enabled = false;
    tarn__log(TARN_LOG_WARNING, "engine_step: decoding without captured graphs: %s", why.text + strlen("tarn: "));
    return NULL;
}

static bool is_same(const tarn__step_shape *a, const tarn__step_shape *b)
{
    return a->sequences == b->sequences && a->table_pages == b->table_pages && a->is_long == b->is_long;
}

/* The graph of a shape, captured now if that is due; NULL without an error: there is none. */
static tarn__engine_graph *graph_of(tarn_engine *e, const tarn__step_shape *shape)
{
    tarn__engine_graphs *all = &e->graphs;
    for (int i = 0; i < TARN__ENGINE_GRAPHS; i++)
        if (all->graph[i].captured && is_same(&all->graph[i].shape, shape))
            return &all->graph[i];
    all->equal_steps = is_same(&all->last, shape) ? all->equal_steps + 1 : 1;
    all->last = *shape;
    return all->is_enabled && all->equal_steps > WARM_UP ? capture(e, shape) : NULL;
}

/* The arrays of a batch are adjacent, in the order of the static inputs: two writes copy them. */
tarn_tensor *tarn__engine_graph_run(tarn_engine *e, const tarn__batch *b)
{
    const tarn__step_shape shape = {b->sequences, b->table_pages, b->is_long};
    const bool fits = b->table_pages == tarn__engine_graph_pages(e, b);
    tarn__engine_graph *g = fits ? graph_of(e, &shape) : NULL;
    if (!g)
        return NULL;
    g->used = ++e->graphs.clock;
    bool good = tarn_write(g->indices, b->ids, sizeof(int64_t) * (size_t)(3 * b->tokens)) &&
                tarn_write(g->numbers, b->table,
                           sizeof(int32_t) * (size_t)(b->sequences * b->table_pages + 2 * b->sequences + 1)) &&
                tarn_graph_run(g->captured);
    return good ? g->logits : NULL;
}
