/* dfa.c: deterministic automata of regular languages, for intersections: a pattern with a length, digits with bounds.
 * Automata are explored as grammars are (sets.c), only completely: a grammar without recursion has finitely many sets.
 * They are complete tables of 256 transitions a state, so a test of a byte is one load; states are not minimized. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/grammar/schema.h"

static bool too_large(const char *where)
{
    return tarn__raise(TARN_ERROR_FORMAT, "%s: the constraints together are too complex: they need more than %d states",
                       where, TARN__MAX_DFA_STATES);
}

/* Zeroed: no transitions, no final states. With an error *dfa is empty. */
static bool allocate(tarn__dfa *dfa, uint32_t count)
{
    dfa->next = tarn__alloc(sizeof(*dfa->next) * 256 * count);
    dfa->final = dfa->next ? tarn__alloc(count) : NULL;
    if (!dfa->final) {
        tarn__release(dfa->next, sizeof(*dfa->next) * 256 * count);
        *dfa = (tarn__dfa){0};
        return false;
    }
    dfa->count = count;
    return true;
}

/* Also for one that was never built, all zero. */
void tarn__dfa_free(tarn__dfa *dfa)
{
    tarn__release(dfa->next, sizeof(*dfa->next) * 256 * dfa->count);
    tarn__release(dfa->final, dfa->count);
    *dfa = (tarn__dfa){0};
}

/* Takes every transition of every set; the sets are then the states. Set 0 is dead, 1 is not used, and the start comes
 * next. */
static bool explore(tarn__dfa *dfa, tarn__sets *sets, const char *where)
{
    enum { FIRST = TARN__SET_ENDED + 1 };
    const tarn__rtn *rtn = sets->rtn;
    uint32_t height = UINT32_MAX;
    for (uint32_t set = FIRST; set < sets->sets.count; set++)
        for (int class = 0; class < rtn->class_count; class ++) {
            if (tarn__sets_step(sets, set, class, &height) == TARN__SET_NONE)
                return false;
            if (sets->sets.count > TARN__MAX_DFA_STATES)
                return too_large(where);
        }
    uint32_t count = (uint32_t)sets->sets.count - FIRST;
    if (!allocate(dfa, count ? count : 1))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        dfa->final[i] = tarn__sets_at(sets, FIRST + i)->accepts;
        for (int byte = 0; byte < 256; byte++) {
            uint32_t next = tarn__sets_step(sets, FIRST + i, rtn->classes[byte], &height);
            dfa->next[(size_t)i * 256 + (size_t)byte] = next >= FIRST ? next - FIRST + 1 : 0;
        }
    }
    return true;
}

/* A builder that recurses would not end, but for the limit of states. */
bool tarn__dfa_build(tarn__dfa *dfa, tarn__gb *gb, const char *where)
{
    tarn__rtn rtn = {0};
    tarn__sets sets = {0};
    *dfa = (tarn__dfa){0};
    bool good = !tarn_failed() && tarn__rtn_build(&rtn, gb, where) && tarn__sets_open(&sets, &rtn) &&
                explore(dfa, &sets, where);
    tarn__sets_close(&sets);
    tarn__rtn_free(&rtn);
    tarn__gb_close(gb);
    return good;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* The pairs of states that are reached from the start, which are the states of the intersection. */
typedef struct product {
    const tarn__dfa *a, *b;
    tarn__buffer pairs; /* uint64_t: states of both */
    uint32_t *slots;    /* pairs by hash: index + 1 */
    size_t slot_count;
} product;

/* The state of a pair + 1; 0 with an error. */
static uint32_t state_of(product *p, uint32_t x, uint32_t y)
{
    uint64_t pair = (uint64_t)x << 32 | y;
    size_t at = (pair * 0x9E3779B97F4A7C15u >> 32) & (p->slot_count - 1);
    for (; p->slots[at]; at = (at + 1) & (p->slot_count - 1))
        if (((const uint64_t *)(const void *)p->pairs.data)[p->slots[at] - 1] == pair)
            return p->slots[at];
    if (!tarn__buffer_add(&p->pairs, &pair, 1, sizeof(pair)))
        return 0;
    return p->slots[at] = (uint32_t)p->pairs.count;
}

/* Pairs are numbered as they are found, so pair i's row is row i, and new pairs extend the loop. At most |a| * |b|
 * pairs. */
static bool multiply(product *p, tarn__buffer *rows, const char *where)
{
    if (!state_of(p, 0, 0))
        return false;
    for (size_t i = 0; i < p->pairs.count; i++) {
        uint64_t pair = ((const uint64_t *)(const void *)p->pairs.data)[i];
        const uint32_t *x = p->a->next + (pair >> 32) * 256, *y = p->b->next + (pair & UINT32_MAX) * 256;
        if (!tarn__buffer_reserve(rows, 256, sizeof(uint32_t)))
            return false;
        uint32_t *row = (uint32_t *)(void *)rows->data + rows->count;
        rows->count += 256;
        for (int byte = 0; byte < 256; byte++)
            if (!(row[byte] = x[byte] && y[byte] ? state_of(p, x[byte] - 1, y[byte] - 1) : 0) && tarn_failed())
                return false;
        if (p->pairs.count > TARN__MAX_DFA_STATES)
            return too_large(where);
    }
    return true;
}

/* The table of pairs has more than twice the slots that TARN__MAX_DFA_STATES pairs and one row's new ones can need. */
bool tarn__dfa_intersect(tarn__dfa *a, tarn__dfa *b, const char *where)
{
    product p = {.a = a, .b = b, .slot_count = 65536};
    tarn__buffer rows = {0};
    tarn__dfa result = {0};
    p.slots = tarn__alloc(sizeof(*p.slots) * p.slot_count);
    bool good = p.slots && multiply(&p, &rows, where) && allocate(&result, (uint32_t)p.pairs.count);
    for (uint32_t i = 0; good && i < result.count; i++) {
        uint64_t pair = ((const uint64_t *)(const void *)p.pairs.data)[i];
        result.final[i] = a->final[pair >> 32] && b->final[pair & UINT32_MAX];
    }
    if (good)
        memcpy(result.next, rows.data, sizeof(uint32_t) * 256 * result.count);
    tarn__release(p.slots, sizeof(*p.slots) * p.slot_count);
    tarn__buffer_free(&p.pairs, sizeof(uint64_t));
    tarn__buffer_free(&rows, sizeof(uint32_t));
    tarn__dfa_free(a);
    tarn__dfa_free(b);
    *a = result;
    return good;
}

/* Bytes after a dead end are not read. */
bool tarn__dfa_matches(const tarn__dfa *dfa, const char *text, size_t length)
{
    uint32_t state = 1;
    for (size_t i = 0; i < length && state; i++)
        state = dfa->next[(size_t)(state - 1) * 256 + (uint8_t)text[i]];
    return state && dfa->final[state - 1];
}

/* Every state is reachable from the start. */
bool tarn__dfa_is_empty(const tarn__dfa *dfa)
{
    for (uint32_t i = 0; i < dfa->count; i++)
        if (dfa->final[i])
            return false;
    return true;
}
