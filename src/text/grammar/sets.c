/* sets.c: positions in a text as interned sets of configurations, and the transitions between them.
 *
 * A configuration is a state with a stack of return states. A set holds those that have an edge of bytes, after all
 * calls and returns that consume nothing; there are finitely many, since left recursion is refused. A call whose return
 * state only ends its rule pushes nothing, so that right recursion runs in constant depth.
 *
 * Interning makes equal things the same number: a stack is its top with the number of what is below, so stacks share
 * their lower parts and pushing is O(1), and two sets are equal if their numbers are. Everything stays until the tables
 * are closed; matcher.c copies what is in use when they have grown too large. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/grammar/grammar.h"

#define SEEN_SLOTS 16384 /* more than twice the configurations that one closure may visit */
#define MAX_VISITED (SEEN_SLOTS / 2)
#define FIRST_SLOTS 1024

_Static_assert(TARN__G_MAX_CONFIGS <= MAX_VISITED, "a set must fit into the table of its closure");
_Static_assert(TARN__G_MAX_DEPTH < UINT16_MAX, "heights are stored in 16 bits");

/* Odd constants of splitmix64; the tables use the low bits, which a shift has mixed. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t h = (a ^ (b * 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
    return h ^ (h >> 29);
}

static tarn__stack *stack_at(const tarn__sets *s, uint32_t stack)
{
    return (tarn__stack *)(void *)s->stacks.data + stack;
}

static const tarn__config *configs_of(const tarn__sets *s, const tarn__set *set)
{
    return (const tarn__config *)(const void *)s->configs.data + set->first;
}

/* ---- interning --------------------------------------------------------------------------------------------------- */

static uint64_t hash_stack(const tarn__stack *stack)
{
    return mix(stack->target, stack->below);
}

static uint64_t hash_configs(const tarn__config *configs, size_t count, bool accepts)
{
    uint64_t hash = accepts;
    for (size_t i = 0; i < count; i++)
        hash = mix(hash + configs[i].state, configs[i].stack);
    return hash;
}

/* Doubles a table of index + 1 when it is half full; `hash_of` gives the hash of an element. Open addressing with
 * linear probing; nothing is removed singly, so there are no tombstones. */
static bool grow(uint32_t **slots, size_t *count, size_t used, const tarn__sets *s,
                 uint64_t (*hash_of)(const tarn__sets *s, uint32_t index))
{
    if (used * 2 < *count)
        return true;
    size_t larger = *count ? *count * 2 : FIRST_SLOTS;
    uint32_t *table = tarn__alloc(sizeof(*table) * larger);
    if (!table)
        return false;
    for (uint32_t i = 0; i < used; i++) {
        size_t at = hash_of(s, i) & (larger - 1);
        while (table[at])
            at = (at + 1) & (larger - 1);
        table[at] = i + 1;
    }
    tarn__release(*slots, sizeof(**slots) * *count);
    *slots = table;
    *count = larger;
    return true;
}

static uint64_t hash_stack_at(const tarn__sets *s, uint32_t index)
{
    return hash_stack(stack_at(s, index));
}

static uint64_t hash_set_at(const tarn__sets *s, uint32_t index)
{
    const tarn__set *set = tarn__sets_at(s, index);
    return hash_configs(configs_of(s, set), set->count, set->accepts);
}

/* The stack with a return state on top of another; TARN__SET_NONE with an error. */
static uint32_t intern_stack(tarn__sets *s, uint32_t target, uint32_t below)
{
    tarn__stack stack = {target, below, stack_at(s, below)->height + 1};
    if (!grow(&s->stack_slots, &s->stack_slot_count, s->stacks.count, s, hash_stack_at))
        return TARN__SET_NONE;
    size_t at = hash_stack(&stack) & (s->stack_slot_count - 1);
    for (; s->stack_slots[at]; at = (at + 1) & (s->stack_slot_count - 1)) {
        const tarn__stack *other = stack_at(s, s->stack_slots[at] - 1);
        if (other->target == target && other->below == below && other->height == stack.height)
            return s->stack_slots[at] - 1;
    }
    if (!tarn__buffer_add(&s->stacks, &stack, 1, sizeof(stack)))
        return TARN__SET_NONE;
    s->stack_slots[at] = (uint32_t)s->stacks.count;
    return (uint32_t)s->stacks.count - 1;
}

/* Appends a set with its row of unknown transitions; TARN__SET_NONE with an error. */
static uint32_t add_set(tarn__sets *s, const tarn__config *configs, size_t count, bool accepts)
{
    size_t classes = (size_t)s->rtn->class_count;
    tarn__set set = {.first = (uint32_t)s->configs.count, .count = (uint32_t)count, .accepts = accepts};
    for (size_t i = 0; i < count; i++) {
        uint32_t height = stack_at(s, configs[i].stack)->height;
        set.max_height = height > set.max_height ? height : set.max_height;
    }
    if (!tarn__buffer_reserve(&s->next, classes, sizeof(uint32_t)) ||
        !tarn__buffer_reserve(&s->heights, classes, sizeof(uint16_t)) ||
        (count && !tarn__buffer_add(&s->configs, configs, count, sizeof(*configs))) ||
        !tarn__buffer_add(&s->sets, &set, 1, sizeof(set)))
        return TARN__SET_NONE;
    memset((uint32_t *)(void *)s->next.data + s->next.count, 0xFF, sizeof(uint32_t) * classes);
    s->next.count += classes;
    memset((uint16_t *)(void *)s->heights.data + s->heights.count, 0xFF, sizeof(uint16_t) * classes);
    s->heights.count += classes;
    return (uint32_t)s->sets.count - 1;
}

/* The set of sorted configurations, which are not in the buffer of sets. */
static uint32_t intern_set(tarn__sets *s, const tarn__config *configs, size_t count, bool accepts)
{
    if (!grow(&s->set_slots, &s->set_slot_count, s->sets.count, s, hash_set_at))
        return TARN__SET_NONE;
    size_t at = hash_configs(configs, count, accepts) & (s->set_slot_count - 1);
    for (; s->set_slots[at]; at = (at + 1) & (s->set_slot_count - 1)) {
        uint32_t index = s->set_slots[at] - 1;
        const tarn__set *other = tarn__sets_at(s, index);
        if (index != TARN__SET_ENDED && other->count == count && other->accepts == accepts &&
            (count == 0 || memcmp(configs_of(s, other), configs, sizeof(*configs) * count) == 0))
            return index;
    }
    uint32_t set = add_set(s, configs, count, accepts);
    if (set != TARN__SET_NONE)
        s->set_slots[at] = set + 1;
    return set;
}

/* ---- closures ---------------------------------------------------------------------------------------------------- */

static int by_config(const void *a, const void *b)
{
    const tarn__config *x = a, *y = b;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return x->stack < y->stack ? -1 : x->stack > y->stack;
}

/* The closure being computed. */
typedef struct closure {
    tarn__sets *s;
    size_t visited;
    bool accepts;
    bool overflows; /* more configurations than the limit */
} closure;

/* Visits a configuration once. False with an error. The table is cleared by a new stamp, not by writing it. */
static bool visit(closure *c, uint32_t state, uint32_t stack)
{
    tarn__sets *s = c->s;
    uint64_t key = (uint64_t)state << 32 | stack;
    size_t at = mix(key, 1) & (SEEN_SLOTS - 1);
    for (; s->seen_stamp[at] == s->stamp; at = (at + 1) & (SEEN_SLOTS - 1))
        if (s->seen[at] == key)
            return true;
    if (++c->visited > MAX_VISITED) {
        c->overflows = true;
        return true;
    }
    s->seen[at] = key;
    s->seen_stamp[at] = s->stamp;
    return tarn__buffer_add(&s->work, &(tarn__config){state, stack}, 1, sizeof(tarn__config));
}

/* A rule has ended: goes on at the top of the stack. An empty stack means that the root has ended: the text may end
 * here. */
static bool pop(closure *c, uint32_t stack)
{
    tarn__stack top = *stack_at(c->s, stack);
    c->s->lowest = top.height < c->s->lowest ? top.height : c->s->lowest;
    if (top.height == 0) {
        c->accepts = true;
        return true;
    }
    return visit(c, top.target, top.below);
}

/* A tail call returns to where its caller would: the target's only purpose is to end its rule. */
static bool call(closure *c, const tarn__rtn_edge *edge, uint32_t stack)
{
    tarn__sets *s = c->s;
    const tarn__rtn_state *target = &s->rtn->states[edge->target];
    bool is_tail = target->is_final && target->bytes + target->calls == 0;
    if (!is_tail && stack_at(s, stack)->height >= TARN__G_MAX_DEPTH) {
        s->lowest = 0; /* nested too deeply: not accepted, which depends on the whole stack */
        return true;
    }
    uint32_t pushed = is_tail ? stack : intern_stack(s, edge->target, stack);
    return pushed != TARN__SET_NONE && visit(c, s->rtn->starts[edge->rule - 1], pushed);
}

/* A configuration with edges of bytes belongs to the set; all are followed through returns and calls. */
static bool expand(closure *c, tarn__config config)
{
    const tarn__rtn_state *state = &c->s->rtn->states[config.state];
    if (state->bytes && !tarn__buffer_add(&c->s->found, &config, 1, sizeof(config)))
        return false;
    if (state->is_final && !pop(c, config.stack))
        return false;
    for (uint32_t i = 0; i < state->calls; i++)
        if (!call(c, &c->s->rtn->edges[state->first + state->bytes + i], config.stack))
            return false;
    return true;
}

/* Starts a closure; a stamp of 0 is one that wrapped around. */
static void begin(tarn__sets *s)
{
    s->work.count = s->found.count = 0;
    s->lowest = UINT16_MAX;
    if (++s->stamp == 0) {
        memset(s->seen_stamp, 0, sizeof(*s->seen_stamp) * SEEN_SLOTS);
        s->stamp = 1;
    }
}

/* Expands all visited configurations and interns the result; an overflow is a dead end. TARN__SET_NONE is an error,
 * TARN__SET_DEAD a text that is not accepted. */
static uint32_t finish(closure *c)
{
    tarn__sets *s = c->s;
    while (s->work.count && !c->overflows)
        if (!expand(c, ((const tarn__config *)(const void *)s->work.data)[--s->work.count]))
            return TARN__SET_NONE;
    if (c->overflows || s->found.count > TARN__G_MAX_CONFIGS) {
        s->lowest = 0;
        return TARN__SET_DEAD;
    }
    tarn__config *found = (tarn__config *)(void *)s->found.data;
    if (s->found.count > 1)
        qsort(found, s->found.count, sizeof(*found), by_config);
    return intern_set(s, found, s->found.count, c->accepts);
}

/* All bytes of a class are on the same edges, so one of them stands for all. */
uint32_t tarn__sets_compute(tarn__sets *s, uint32_t set, int class)
{
    closure c = {.s = s};
    uint8_t byte = s->rtn->class_bytes[class];
    size_t at = (size_t)set * (size_t)s->rtn->class_count + (size_t) class;
    begin(s);
    for (uint32_t i = 0; i < tarn__sets_at(s, set)->count; i++) {
        tarn__config config = configs_of(s, tarn__sets_at(s, set))[i];
        const tarn__rtn_state *state = &s->rtn->states[config.state];
        for (uint32_t j = 0; j < state->bytes; j++) {
            const tarn__rtn_edge *edge = &s->rtn->edges[state->first + j];
            if (edge->low <= byte && byte <= edge->high && !visit(&c, edge->target, config.stack))
                return TARN__SET_NONE;
        }
    }
    uint32_t next = finish(&c);
    if (next == TARN__SET_NONE)
        return next;
    ((uint32_t *)(void *)s->next.data)[at] = next;
    ((uint16_t *)(void *)s->heights.data)[at] = (uint16_t)s->lowest;
    return next;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* The empty set is dead, number 0; number 1 is empty too, and is not entered in the table, so that it is never found as
 * the dead one. */
bool tarn__sets_open(tarn__sets *s, const tarn__rtn *rtn)
{
    *s = (tarn__sets){.rtn = rtn};
    s->seen = tarn__alloc(sizeof(*s->seen) * SEEN_SLOTS);
    s->seen_stamp = tarn__alloc(sizeof(*s->seen_stamp) * SEEN_SLOTS);
    closure c = {.s = s};
    if (tarn_failed() || !tarn__buffer_add(&s->stacks, &(tarn__stack){0}, 1, sizeof(tarn__stack)) ||
        intern_set(s, NULL, 0, false) != TARN__SET_DEAD || add_set(s, NULL, 0, false) != TARN__SET_ENDED)
        return false;
    begin(s);
    s->start = visit(&c, rtn->starts[rtn->root], 0) ? finish(&c) : TARN__SET_NONE;
    return s->start != TARN__SET_NONE;
}

void tarn__sets_close(tarn__sets *s)
{
    tarn__release(s->seen, sizeof(*s->seen) * SEEN_SLOTS);
    tarn__release(s->seen_stamp, sizeof(*s->seen_stamp) * SEEN_SLOTS);
    tarn__release(s->stack_slots, sizeof(*s->stack_slots) * s->stack_slot_count);
    tarn__release(s->set_slots, sizeof(*s->set_slots) * s->set_slot_count);
    tarn__buffer_free(&s->stacks, sizeof(tarn__stack));
    tarn__buffer_free(&s->configs, sizeof(tarn__config));
    tarn__buffer_free(&s->sets, sizeof(tarn__set));
    tarn__buffer_free(&s->next, sizeof(uint32_t));
    tarn__buffer_free(&s->heights, sizeof(uint16_t));
    tarn__buffer_free(&s->work, sizeof(tarn__config));
    tarn__buffer_free(&s->found, sizeof(tarn__config));
    *s = (tarn__sets){0};
}

/* Slots and scratch are left out: they are small beside the rest, or of fixed size. */
size_t tarn__sets_bytes(const tarn__sets *s)
{
    return s->stacks.count * sizeof(tarn__stack) + s->configs.count * sizeof(tarn__config) +
           s->sets.count * sizeof(tarn__set) + s->next.count * (sizeof(uint32_t) + sizeof(uint16_t));
}

/* The frames of a stack are interned from the bottom. */
static uint32_t copy_stack(tarn__sets *s, const tarn__sets *from, uint32_t stack)
{
    tarn__buffer frames = {0};
    uint32_t copy = 0;
    for (; stack; stack = stack_at(from, stack)->below)
        if (!tarn__buffer_add(&frames, &stack_at(from, stack)->target, 1, sizeof(uint32_t)))
            copy = TARN__SET_NONE;
    while (frames.count && copy != TARN__SET_NONE)
        copy = intern_stack(s, ((const uint32_t *)(const void *)frames.data)[--frames.count], copy);
    tarn__buffer_free(&frames, sizeof(uint32_t));
    return copy;
}

/* Numbers of stacks change, and with them the order of configurations. */
uint32_t tarn__sets_copy(tarn__sets *s, const tarn__sets *from, uint32_t set)
{
    const tarn__set *source = tarn__sets_at(from, set);
    if (set <= TARN__SET_ENDED)
        return set;
    s->found.count = 0;
    for (uint32_t i = 0; i < source->count; i++) {
        tarn__config config = configs_of(from, source)[i];
        config.stack = copy_stack(s, from, config.stack);
        if (config.stack == TARN__SET_NONE || !tarn__buffer_add(&s->found, &config, 1, sizeof(config)))
            return TARN__SET_NONE;
    }
    tarn__config *found = (tarn__config *)(void *)s->found.data;
    if (s->found.count > 1)
        qsort(found, s->found.count, sizeof(*found), by_config);
    return intern_set(s, found, s->found.count, source->accepts);
}
