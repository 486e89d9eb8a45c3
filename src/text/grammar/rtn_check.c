/* rtn_check.c: what a network must fulfil before a text can follow it: every configuration can be completed, and no
 * rule calls itself before it has consumed a byte. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/grammar/grammar.h"

/* Edges by the state or rule that waits for them, as lists. */
typedef struct reverse {
    uint32_t *head, *next; /* [states + rules], [2 * edges]: index + 1 */
    uint32_t *origin;      /* [edges]: the state of an edge */
    bool *live;            /* [states + rules]: the end of the rule can be reached; the rule has an end */
    uint32_t *pending;
    size_t pending_count, nodes, links;
} reverse;

static void mark(reverse *r, size_t node)
{
    if (!r->live[node]) {
        r->live[node] = true;
        r->pending[r->pending_count++] = (uint32_t)node;
    }
}

/* An edge waits for its target, and an edge that calls also for the rule: two links an edge, at 2 * e and 2 * e + 1. */
static void link_edges(const tarn__rtn *rtn, reverse *r)
{
    for (uint32_t s = 0; s < rtn->state_count; s++) {
        const tarn__rtn_state *state = &rtn->states[s];
        for (uint32_t e = state->first; e < state->first + state->bytes + state->calls; e++) {
            uint32_t target = rtn->edges[e].target, rule = rtn->edges[e].rule;
            r->origin[e] = s;
            r->next[2 * (size_t)e] = r->head[target];
            r->head[target] = 2 * e + 1;
            if (rule) {
                r->next[2 * (size_t)e + 1] = r->head[rtn->state_count + rule - 1];
                r->head[rtn->state_count + rule - 1] = 2 * e + 2;
            }
        }
    }
}

/* Marks states and rules from which an end is reached: from the ends backwards; with `is_empty` without consuming a
 * byte. A rule lives when its start does. An edge is followed once both of what it waits for live, so each link is
 * visited once: linear in states and edges. */
static void mark_live(const tarn__rtn *rtn, reverse *r, const uint32_t *rule_of_start, bool is_empty)
{
    for (size_t s = 0; s < rtn->state_count; s++)
        if (rtn->states[s].is_final)
            mark(r, s);
    while (r->pending_count) {
        uint32_t node = r->pending[--r->pending_count];
        if (node < rtn->state_count && rule_of_start[node])
            mark(r, rtn->state_count + rule_of_start[node] - 1);
        for (uint32_t i = r->head[node]; i; i = r->next[i - 1]) {
            uint32_t e = (i - 1) / 2, rule = rtn->edges[e].rule;
            if (r->live[rtn->edges[e].target] && (rule ? r->live[rtn->state_count + rule - 1] : !is_empty))
                mark(r, r->origin[e]);
        }
    }
}

/* Removes edges that lead nowhere. */
static void prune(tarn__rtn *rtn, const reverse *r)
{
    for (size_t s = 0; s < rtn->state_count; s++) {
        tarn__rtn_state *state = &rtn->states[s];
        uint32_t kept = state->first, bytes = 0, end = state->first + state->bytes + state->calls;
        for (uint32_t e = state->first; e < end; e++) {
            tarn__rtn_edge edge = rtn->edges[e];
            if (!r->live[edge.target] || (edge.rule && !r->live[rtn->state_count + edge.rule - 1]))
                continue;
            rtn->edges[kept++] = edge;
            bytes += edge.rule == 0;
        }
        state->bytes = bytes;
        state->calls = kept - state->first - bytes;
    }
}

/* Removes what cannot be completed, and finds the rules that match the empty string. */
static bool remove_dead(tarn__rtn *rtn, const char *function, bool *nullable)
{
    reverse r = {.nodes = rtn->state_count + rtn->rule_count, .links = 2 * rtn->edge_count + 2};
    uint32_t *rule_of_start = tarn__alloc(sizeof(uint32_t) * rtn->state_count);
    r.head = tarn__alloc(sizeof(uint32_t) * r.nodes);
    r.pending = tarn__alloc(sizeof(uint32_t) * r.nodes);
    r.live = tarn__alloc(r.nodes);
    r.next = tarn__alloc(sizeof(uint32_t) * r.links);
    r.origin = tarn__alloc(sizeof(uint32_t) * r.links);
    bool good = !tarn_failed();
    if (good) {
        for (size_t i = 0; i < rtn->rule_count; i++)
            rule_of_start[rtn->starts[i]] = (uint32_t)i + 1;
        link_edges(rtn, &r);
        mark_live(rtn, &r, rule_of_start, true);
        /* The first pass asks about the empty string, the second about any text. */
        memcpy(nullable, r.live + rtn->state_count, rtn->rule_count);
        memset(r.live, 0, r.nodes);
        mark_live(rtn, &r, rule_of_start, false);
        prune(rtn, &r);
        good = r.live[rtn->state_count + rtn->root] ||
               tarn__raise(TARN_ERROR_FORMAT, "%s: no finite text matches the grammar", function);
    }
    tarn__release(rule_of_start, sizeof(uint32_t) * rtn->state_count);
    tarn__release(r.head, sizeof(uint32_t) * r.nodes);
    tarn__release(r.pending, sizeof(uint32_t) * r.nodes);
    tarn__release(r.live, r.nodes);
    tarn__release(r.next, sizeof(uint32_t) * r.links);
    tarn__release(r.origin, sizeof(uint32_t) * r.links);
    return good;
}

/* ---- left recursion ---------------------------------------------------------------------------------------------- */

/* A walk over states that are reached before a byte is consumed: past calls of rules that match the empty string. */
typedef struct left_walk {
    const tarn__rtn *rtn;
    bool *nullable;    /* [rules] */
    uint32_t *stamp;   /* [states] */
    uint32_t *pending; /* [states] */
    uint32_t round;
} left_walk;

/* Appends the rules called first by a rule. False with an error. */
static bool add_first_calls(left_walk *w, uint32_t rule, tarn__buffer *calls)
{
    size_t pending = 0;
    w->round++;
    w->pending[pending++] = w->rtn->starts[rule];
    w->stamp[w->rtn->starts[rule]] = w->round;
    while (pending) {
        const tarn__rtn_state *state = &w->rtn->states[w->pending[--pending]];
        for (uint32_t i = 0; i < state->calls; i++) {
            const tarn__rtn_edge *edge = &w->rtn->edges[state->first + state->bytes + i];
            uint32_t called = edge->rule - 1;
            if (!tarn__buffer_add(calls, &called, 1, sizeof(called)))
                return false;
            if (w->nullable[called] && w->stamp[edge->target] != w->round) {
                w->stamp[edge->target] = w->round;
                w->pending[pending++] = edge->target;
            }
        }
    }
    return true;
}

#define CLOSES 0x80000000u /* on the stack of the search: all calls of the rule were searched */

/* Opens a rule of a depth-first search and puts its first calls on the stack. A call of an open rule is a cycle:
 * returns it; -1 for none, -2 with an error. */
static int64_t open_rule(left_walk *w, uint32_t rule, uint8_t *is_open, bool *is_done, tarn__buffer *stack)
{
    uint32_t closes = rule | CLOSES;
    is_open[rule] = is_done[rule] = true;
    if (!tarn__buffer_add(stack, &closes, 1, sizeof(closes)))
        return -2;
    size_t first = stack->count;
    if (!add_first_calls(w, rule, stack))
        return -2;
    for (size_t i = first; i < stack->count; i++)
        if (is_open[((const uint32_t *)(const void *)stack->data)[i]])
            return ((const uint32_t *)(const void *)stack->data)[i];
    return -1;
}

/* A rule of a cycle of first calls; -1 for none, -2 with an error. */
static int64_t find_cycle(left_walk *w, uint8_t *is_open, bool *is_done)
{
    tarn__buffer stack = {0}; /* uint32_t */
    int64_t found = -1;
    for (uint32_t i = 0; i < w->rtn->rule_count && found == -1; i++) {
        if (!tarn__buffer_add(&stack, &i, 1, sizeof(i)))
            found = -2;
        while (stack.count && found == -1) {
            uint32_t rule = ((const uint32_t *)(const void *)stack.data)[--stack.count];
            if (rule & CLOSES)
                is_open[rule & ~CLOSES] = false;
            else if (!is_done[rule])
                found = open_rule(w, rule, is_open, is_done, &stack);
        }
    }
    tarn__buffer_free(&stack, sizeof(uint32_t));
    return found;
}

/* A rule that calls itself first, also through others, would push return states without end before a byte is read. */
static bool refuse_left_recursion(const tarn__rtn *rtn, const tarn__gb *gb, const char *function, bool *nullable)
{
    left_walk w = {.rtn = rtn, .nullable = nullable};
    uint8_t *is_open = tarn__alloc(rtn->rule_count);
    bool *is_done = tarn__alloc(rtn->rule_count);
    w.stamp = tarn__alloc(sizeof(uint32_t) * rtn->state_count);
    w.pending = tarn__alloc(sizeof(uint32_t) * rtn->state_count);
    int64_t found = tarn_failed() ? -2 : find_cycle(&w, is_open, is_done);
    if (found >= 0) {
        const tarn__grammar_rule *rule =
            found < (int64_t)gb->rules.count ? tarn__gb_rule_at(gb, (uint32_t)found) : NULL;
        int length = rule ? (int)(rule->name_length < 100 ? rule->name_length : 100) : 0;
        tarn__raise(TARN_ERROR_FORMAT, "%s: left recursion is not supported: %s%.*s%s can begin with itself", function,
                    length ? "the rule '" : "a rule", length, length ? gb->bytes.data + rule->name : "",
                    length ? "'" : "");
    }
    tarn__release(is_open, rtn->rule_count);
    tarn__release(is_done, rtn->rule_count);
    tarn__release(w.stamp, sizeof(uint32_t) * rtn->state_count);
    tarn__release(w.pending, sizeof(uint32_t) * rtn->state_count);
    return found == -1;
}

bool tarn__rtn_check(tarn__rtn *rtn, const tarn__gb *gb, const char *function)
{
    bool *nullable = tarn__alloc(rtn->rule_count);
    bool good = nullable && remove_dead(rtn, function, nullable) && refuse_left_recursion(rtn, gb, function, nullable);
    tarn__release(nullable, rtn->rule_count);
    return good;
}
