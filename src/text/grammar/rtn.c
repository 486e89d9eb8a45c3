/* rtn.c: from expressions to a recursive transition network.
 *
 * Each rule becomes a Thompson automaton with empty edges, which are then removed. Edges and states from which the end
 * of a rule cannot be reached are removed too, so that every text accepted so far can be completed. A repeated
 * expression of more than a few states becomes a rule of its own: its copies are single edges. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/grammar/grammar.h"

#define EMPTY_EDGE UINT32_MAX /* in tarn__rtn_edge.rule */
#define INLINE_SIZE 4         /* repeated expressions up to this size are copied */

typedef struct raw_edge {
    tarn__rtn_edge edge;
    uint32_t next; /* of the same state: index + 1 */
} raw_edge;

/* States and edges before empty edges are removed. */
typedef struct builder {
    const tarn__gb *gb;
    const char *function;
    tarn__buffer heads, edges; /* uint32_t: first edge of a state, index + 1; raw_edge */
    tarn__buffer extra;        /* uint32_t: expressions that became rules, after those of gb */
    tarn__buffer rule_of_expr; /* uint32_t, by expression: index in `extra` + 1 */
    tarn__buffer starts, ends; /* uint32_t, by rule */
} builder;

static uint32_t *u32(const tarn__buffer *buffer)
{
    return (uint32_t *)(void *)buffer->data;
}

/* 0 with an error, which is also the first state: callers go on and the end of the front end asks. */
static uint32_t new_state(builder *b)
{
    uint32_t none = 0;
    if (b->heads.count >= TARN__G_MAX_STATES)
        tarn__raise(TARN_ERROR_FORMAT, "%s: the grammar is too large: it needs more than %zu states", b->function,
                    TARN__G_MAX_STATES);
    if (tarn_failed() || !tarn__buffer_add(&b->heads, &none, 1, sizeof(none)))
        return 0;
    return (uint32_t)b->heads.count - 1;
}

/* Edges of a state are a list, newest first; their order does not matter, as finish_states() sorts them. */
static void add_edge(builder *b, uint32_t from, tarn__rtn_edge edge)
{
    if (b->edges.count >= TARN__G_MAX_EDGES)
        tarn__raise(TARN_ERROR_FORMAT, "%s: the grammar is too large: it needs more than %zu edges", b->function,
                    TARN__G_MAX_EDGES);
    if (tarn_failed() || !tarn__buffer_add(&b->edges, &(raw_edge){edge, u32(&b->heads)[from]}, 1, sizeof(raw_edge)))
        return;
    u32(&b->heads)[from] = (uint32_t)b->edges.count;
}

static void add_empty(builder *b, uint32_t from, uint32_t to)
{
    add_edge(b, from, (tarn__rtn_edge){.target = to, .rule = EMPTY_EDGE});
}

static void add_bytes(builder *b, uint32_t from, uint8_t low, uint8_t high, uint32_t to)
{
    add_edge(b, from, (tarn__rtn_edge){.target = to, .low = low, .high = high});
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

static void build(builder *b, uint32_t expr, uint32_t from, uint32_t to);

/* Where UTF-8 forms begin and end; tails[n]: a state from which n continuation bytes of any value lead to the end. */
typedef struct class_ends {
    builder *b;
    uint32_t from, to, tails[4];
} class_ends;

/* Tails are shared by all sequences of a class: most of UTF-8's ranges end in continuation bytes of any value, and a
 * negated class has hundreds of ranges. */
static bool add_sequence(const uint8_t *low, const uint8_t *high, int count, void *ctx)
{
    class_ends *c = ctx;
    uint32_t at = c->from;
    for (int i = 0; i < count && !tarn_failed(); i++) {
        int left = count - 1 - i;
        bool is_any = true; /* the rest is continuation bytes of any value */
        for (int j = i + 1; j < count; j++)
            is_any = is_any && low[j] == 0x80 && high[j] == 0xBF;
        uint32_t next = left == 0 ? c->to : is_any ? c->tails[left] : new_state(c->b);
        if (is_any && left > 0 && next == 0) {
            next = c->to;
            for (int n = 1; n <= left; n++) {
                if (!c->tails[n]) {
                    c->tails[n] = new_state(c->b);
                    add_bytes(c->b, c->tails[n], 0x80, 0xBF, next);
                }
                next = c->tails[n];
            }
        }
        add_bytes(c->b, at, low[i], high[i], next);
        if (is_any)
            break;
        at = next;
    }
    return !tarn_failed();
}

/* A class without ranges has no edge, so nothing matches. */
static void build_class(builder *b, const tarn__expr *e, uint32_t from, uint32_t to)
{
    class_ends ends = {.b = b, .from = from, .to = to};
    for (uint32_t i = 0; i < e->count && !tarn_failed(); i++)
        tarn__utf8_ranges(tarn__gb_ranges(b->gb, e)[i], add_sequence, &ends);
}

static void build_string(builder *b, const tarn__expr *e, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < e->count && !tarn_failed(); i++) {
        uint8_t byte = (uint8_t)b->gb->bytes.data[e->first + i];
        uint32_t next = i + 1 == e->count ? to : new_state(b);
        add_bytes(b, from, byte, byte, next);
        from = next;
    }
}

/* Bytes with the same target are joined to ranges. The automaton's states are copied for each use. */
static void build_dfa(builder *b, const tarn__dfa *dfa, uint32_t from, uint32_t to)
{
    uint32_t base = (uint32_t)b->heads.count;
    for (uint32_t i = 0; i < dfa->count && !tarn_failed(); i++)
        new_state(b);
    for (uint32_t i = 0; i < dfa->count && !tarn_failed(); i++) {
        const uint32_t *next = dfa->next + (size_t)i * 256;
        for (int low = 0, high; low < 256; low = high + 1) {
            for (high = low; high < 255 && next[high + 1] == next[low];)
                high++;
            if (next[low])
                add_bytes(b, base + i, (uint8_t)low, (uint8_t)high, base + next[low] - 1);
        }
        if (dfa->final[i])
            add_empty(b, base + i, to);
    }
    add_empty(b, from, base);
}

/* An estimate of the states that an expression needs, up to INLINE_SIZE + 1. */
static int size_of(const tarn__gb *gb, uint32_t expr)
{
    const tarn__expr *e = tarn__gb_expr(gb, expr);
    int size = 0;
    switch (e->kind) {
    case TARN__E_STRING: return e->count > INLINE_SIZE ? INLINE_SIZE + 1 : (int)e->count;
    case TARN__E_CALL: return 1;
    case TARN__E_CLASS: return e->count && tarn__gb_ranges(gb, e)[e->count - 1].high < 128 ? 1 : INLINE_SIZE + 1;
    case TARN__E_SEQ:
    case TARN__E_ALT:
        for (uint32_t i = 0; i < e->count && size <= INLINE_SIZE; i++)
            size += size_of(gb, tarn__gb_children(gb, e)[i]);
        return size;
    case TARN__E_EMPTY: return 0;
    default: return INLINE_SIZE + 1;
    }
}

/* The rule of an expression that is repeated. */
static uint32_t rule_of(builder *b, uint32_t expr)
{
    uint32_t *known = u32(&b->rule_of_expr) + expr;
    if (!*known && tarn__buffer_add(&b->extra, &expr, 1, sizeof(expr)))
        *known = (uint32_t)b->extra.count;
    return (uint32_t)b->gb->rules.count + *known - 1;
}

/* A copy of the repeated expression, or a call of its rule. */
static void build_copy(builder *b, uint32_t child, bool is_rule, uint32_t from, uint32_t to)
{
    if (is_rule)
        add_edge(b, from, (tarn__rtn_edge){.target = to, .rule = rule_of(b, child) + 1});
    else
        build(b, child, from, to);
}

/* a{2,4} is a a (a (a)?)?: `max` copies in a row, from each of which after the first `min` an empty edge leads to the
 * end. a{2,} is a a and a loop. */
static void build_repeat(builder *b, const tarn__expr *e, uint32_t from, uint32_t to)
{
    uint32_t at = new_state(b);
    int32_t copies = e->max < 0 ? e->min : e->max;
    bool is_rule = copies > 1 && size_of(b->gb, e->first) > INLINE_SIZE;
    add_empty(b, from, at);
    for (int32_t i = 0; i < copies && !tarn_failed(); i++) {
        uint32_t next = new_state(b);
        if (i >= e->min)
            add_empty(b, at, to);
        build_copy(b, e->first, is_rule, at, next);
        at = next;
    }
    if (e->max < 0) /* the state of the loop is its own: nothing else leads to it or away */
        build_copy(b, e->first, is_rule, at, at);
    add_empty(b, at, to);
}

/* `from` and `to` are states that exist; what is built connects them. Recursion is as deep as expressions are nested,
 * which the front ends limit. */
static void build(builder *b, uint32_t expr, uint32_t from, uint32_t to)
{
    const tarn__gb *gb = b->gb;
    tarn__expr e = *tarn__gb_expr(gb, expr);
    if (tarn_failed())
        return;
    switch (e.kind) {
    case TARN__E_CLASS: build_class(b, &e, from, to); break;
    case TARN__E_STRING: build_string(b, &e, from, to); break;
    case TARN__E_DFA: build_dfa(b, (const tarn__dfa *)(const void *)gb->dfas.data + e.first, from, to); break;
    case TARN__E_CALL: add_edge(b, from, (tarn__rtn_edge){.target = to, .rule = e.first + 1}); break;
    case TARN__E_REPEAT: build_repeat(b, &e, from, to); break;
    case TARN__E_ALT:
        for (uint32_t i = 0; i < e.count; i++)
            build(b, tarn__gb_children(gb, &e)[i], from, to);
        break;
    case TARN__E_SEQ:
        for (uint32_t i = 0; i < e.count; i++) {
            uint32_t next = i + 1 == e.count ? to : new_state(b);
            build(b, tarn__gb_children(gb, &e)[i], from, next);
            from = next;
        }
        break;
    default: add_empty(b, from, to);
    }
}

/* Rules that repetitions add are built in turn. */
static bool build_rules(builder *b)
{
    size_t own = b->gb->rules.count;
    for (size_t i = 0; i < own + b->extra.count && !tarn_failed(); i++) {
        uint32_t start = new_state(b), end = new_state(b);
        build(b, i < own ? tarn__gb_rule_at(b->gb, (uint32_t)i)->expr : u32(&b->extra)[i - own], start, end);
        tarn__buffer_add(&b->starts, &start, 1, sizeof(start));
        tarn__buffer_add(&b->ends, &end, 1, sizeof(end));
    }
    return !tarn_failed();
}

/* ---- empty edges ------------------------------------------------------------------------------------------------- */

/* Byte edges first, in the order of their ranges; equal edges are adjacent. */
static int by_kind(const void *a, const void *b)
{
    const tarn__rtn_edge *x = a, *y = b;
    if ((x->rule != 0) != (y->rule != 0))
        return x->rule ? 1 : -1;
    if (x->low != y->low)
        return x->low < y->low ? -1 : 1;
    if (x->high != y->high)
        return x->high < y->high ? -1 : 1;
    if (x->rule != y->rule)
        return x->rule < y->rule ? -1 : 1;
    return x->target < y->target ? -1 : x->target > y->target;
}

/* State of the removal: `out` collects edges; number[raw state] + 1 is the state's new number. */
typedef struct removal {
    const builder *b;
    tarn__buffer edges, states; /* tarn__rtn_edge, tarn__rtn_state */
    tarn__buffer order;         /* uint32_t: raw states by their new numbers */
    uint32_t *number, *stamp, *pending;
} removal;

/* Numbers are given in the order of discovery, to states that are reached. */
static uint32_t number_of(removal *r, uint32_t raw)
{
    if (!r->number[raw] && tarn__buffer_add(&r->order, &raw, 1, sizeof(raw)))
        r->number[raw] = (uint32_t)r->order.count;
    return r->number[raw] - 1;
}

/* Removes equal edges from sorted ones; the number that is left. */
static uint32_t u_unique(tarn__rtn_edge *edges, uint32_t count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (i == 0 || by_kind(&edges[kept - 1], &edges[i]) != 0)
            edges[kept++] = edges[i];
    return kept;
}

/* The edges of a state and of all that empty edges reach from it. */
static bool close_state(removal *r, uint32_t raw, uint32_t stamp, uint32_t end)
{
    size_t pending = 0, first = r->edges.count;
    tarn__rtn_state state = {.first = (uint32_t)first};
    r->pending[pending++] = raw;
    r->stamp[raw] = stamp;
    while (pending) {
        uint32_t at = r->pending[--pending];
        state.is_final = state.is_final || at == end;
        for (uint32_t i = u32(&r->b->heads)[at]; i;) {
            const raw_edge *edge = (const raw_edge *)(const void *)r->b->edges.data + i - 1;
            i = edge->next;
            if (edge->edge.rule != EMPTY_EDGE) {
                tarn__rtn_edge copy = edge->edge;
                copy.target = number_of(r, edge->edge.target);
                if (!tarn__buffer_add(&r->edges, &copy, 1, sizeof(copy)))
                    return false;
            } else if (r->stamp[edge->edge.target] != stamp) {
                r->stamp[edge->edge.target] = stamp;
                r->pending[pending++] = edge->edge.target;
            }
        }
        if (r->edges.count > TARN__G_MAX_EDGES)
            return tarn__raise(TARN_ERROR_FORMAT, "%s: the grammar is too large: it needs more than %zu edges",
                               r->b->function, TARN__G_MAX_EDGES);
    }
    tarn__rtn_edge *edges = (tarn__rtn_edge *)(void *)r->edges.data + first;
    if (r->edges.count > first)
        qsort(edges, r->edges.count - first, sizeof(*edges), by_kind);
    uint32_t count = u_unique(edges, (uint32_t)(r->edges.count - first));
    r->edges.count = first + count;
    while (state.bytes < count && !edges[state.bytes].rule)
        state.bytes++;
    state.calls = count - state.bytes;
    return tarn__buffer_add(&r->states, &state, 1, sizeof(state));
}

/* Numbers the states that rules begin with and edges lead to, and closes each. The end of a rule is known by the
 * rule's states: they follow its start. */
static bool remove_empty(removal *r, tarn__rtn *rtn)
{
    const builder *b = r->b;
    size_t done = 0;
    for (size_t i = 0; i < b->starts.count; i++) {
        rtn->starts[i] = number_of(r, u32(&b->starts)[i]);
        for (; done < r->order.count; done++)
            if (!close_state(r, u32(&r->order)[done], (uint32_t)done + 1, u32(&b->ends)[i]))
                return false;
    }
    return !tarn_failed();
}

static bool finish_states(const builder *b, tarn__rtn *rtn)
{
    size_t count = b->heads.count, bytes = sizeof(uint32_t) * count;
    removal r = {.b = b};
    rtn->rule_count = b->starts.count;
    rtn->starts = tarn__alloc(sizeof(*rtn->starts) * rtn->rule_count);
    r.number = rtn->starts ? tarn__alloc(bytes) : NULL;
    r.stamp = r.number ? tarn__alloc(bytes) : NULL;
    r.pending = r.stamp ? tarn__alloc(bytes) : NULL;
    bool good = r.pending && remove_empty(&r, rtn);
    if (good) {
        rtn->state_count = r.states.count;
        rtn->edge_count = r.edges.count;
        rtn->states = tarn__alloc(sizeof(*rtn->states) * r.states.count);
        rtn->edges = rtn->states && r.edges.count ? tarn__alloc(sizeof(*rtn->edges) * r.edges.count) : NULL;
        good = !tarn_failed();
    }
    if (good) {
        memcpy(rtn->states, r.states.data, sizeof(*rtn->states) * r.states.count);
        if (r.edges.count)
            memcpy(rtn->edges, r.edges.data, sizeof(*rtn->edges) * r.edges.count);
    }
    tarn__release(r.number, bytes);
    tarn__release(r.stamp, bytes);
    tarn__release(r.pending, bytes);
    tarn__buffer_free(&r.edges, sizeof(tarn__rtn_edge));
    tarn__buffer_free(&r.states, sizeof(tarn__rtn_state));
    tarn__buffer_free(&r.order, sizeof(uint32_t));
    return good;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

/* Splits bytes where an edge begins or ends. */
static void find_classes(tarn__rtn *rtn)
{
    bool begins[257] = {true};
    for (size_t i = 0; i < rtn->edge_count; i++)
        if (!rtn->edges[i].rule)
            begins[rtn->edges[i].low] = begins[rtn->edges[i].high + 1] = true;
    for (int i = 0; i < 256; i++) {
        if (begins[i])
            rtn->class_bytes[rtn->class_count++] = (uint8_t)i;
        rtn->classes[i] = (uint8_t)(rtn->class_count - 1);
    }
}

void tarn__rtn_free(tarn__rtn *rtn)
{
    tarn__release(rtn->states, sizeof(*rtn->states) * rtn->state_count);
    tarn__release(rtn->edges, sizeof(*rtn->edges) * rtn->edge_count);
    tarn__release(rtn->starts, sizeof(*rtn->starts) * rtn->rule_count);
    *rtn = (tarn__rtn){0};
}

bool tarn__rtn_build(tarn__rtn *rtn, const tarn__gb *gb, const char *function)
{
    builder b = {.gb = gb, .function = function};
    *rtn = (tarn__rtn){.root = gb->root};
    bool good = tarn__buffer_reserve(&b.rule_of_expr, gb->exprs.count, sizeof(uint32_t));
    if (good)
        memset(b.rule_of_expr.data, 0, sizeof(uint32_t) * gb->exprs.count);
    good = good && build_rules(&b) && finish_states(&b, rtn) && tarn__rtn_check(rtn, gb, function);
    if (good)
        find_classes(rtn);
    tarn__buffer_free(&b.heads, sizeof(uint32_t));
    tarn__buffer_free(&b.edges, sizeof(raw_edge));
    tarn__buffer_free(&b.extra, sizeof(uint32_t));
    tarn__buffer_free(&b.rule_of_expr, sizeof(uint32_t));
    tarn__buffer_free(&b.starts, sizeof(uint32_t));
    tarn__buffer_free(&b.ends, sizeof(uint32_t));
    return good;
}
