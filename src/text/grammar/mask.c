/* mask.c: token masks.
 *
 * A mask is computed by one walk over the trie of the vocabulary. It depends on the set and on as much of its stacks as
 * the tokens can return to: the walk records the lowest stack height that any transition looked at. The mask is stored
 * under the set with its stacks cut there, so that the same position at another nesting depth finds it. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/vocab.h"

#define MAX_KEY_DEPTH 24 /* masks that look deeper are found by their set alone */

/* Pieces end with one of these, which are no states: states are at most TARN__G_MAX_STATES. */
#define CUT UINT32_MAX /* ends of stacks in a key: unknown below, or empty */
#define BOTTOM (UINT32_MAX - 1)

void tarn__masks_free(tarn__masks *m)
{
    tarn__buffer_free(&m->masks, sizeof(tarn__mask));
    tarn__buffer_free(&m->keys, sizeof(uint32_t));
    tarn__buffer_free(&m->words, sizeof(uint32_t));
    tarn__buffer_free(&m->path, sizeof(uint32_t));
    tarn__buffer_free(&m->key, sizeof(uint32_t));
    tarn__buffer_free(&m->pieces, sizeof(uint32_t));
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static uint32_t *u32(const tarn__buffer *buffer)
{
    return (uint32_t *)(void *)buffer->data;
}

/* Order of configurations in a key: by content, as the numbers of stacks depend on history. */
static int compare_pieces(const uint32_t *a, const uint32_t *b)
{
    for (;; a++, b++) {
        if (*a != *b)
            return *a < *b ? -1 : 1;
        if (*a >= BOTTOM)
            return 0;
    }
}

static int by_piece(const void *a, const void *b)
{
    return compare_pieces(*(const uint32_t *const *)a, *(const uint32_t *const *)b);
}

/* Appends each configuration of a set as its state and the stack frames down to a height. */
static bool add_pieces(const tarn__sets *s, uint32_t set, uint32_t cut, tarn__buffer *pieces)
{
    const tarn__set *source = tarn__sets_at(s, set);
    const tarn__config *config = (const tarn__config *)(const void *)s->configs.data + source->first;
    const tarn__stack *stacks = (const tarn__stack *)(const void *)s->stacks.data;
    for (uint32_t i = 0; i < source->count; i++) {
        uint32_t at = config[i].stack, end = cut ? CUT : BOTTOM;
        if (!tarn__buffer_add(pieces, &config[i].state, 1, sizeof(uint32_t)))
            return false;
        for (; stacks[at].height && stacks[at].height >= cut; at = stacks[at].below)
            if (!tarn__buffer_add(pieces, &stacks[at].target, 1, sizeof(uint32_t)))
                return false;
        if (!tarn__buffer_add(pieces, &end, 1, sizeof(end)))
            return false;
    }
    return true;
}

/* The key of a set with stacks cut at a height: its configurations in order, without duplicates. False with an error.
 */
static bool make_key(tarn__masks *m, const tarn__sets *s, uint32_t set, uint32_t cut)
{
    size_t count = tarn__sets_at(s, set)->count, at = 0;
    m->pieces.count = m->key.count = 0;
    const uint32_t **order = tarn__alloc(sizeof(*order) * (count + 1));
    bool good = order && add_pieces(s, set, cut, &m->pieces);
    for (size_t i = 0; good && i < count; i++) {
        order[i] = u32(&m->pieces) + at;
        while (u32(&m->pieces)[at] < BOTTOM)
            at++;
        at++;
    }
    if (good && count > 1)
        qsort(order, count, sizeof(*order), by_piece);
    for (size_t i = 0; good && i < count; i++) {
        size_t length = 1;
        while (order[i][length - 1] < BOTTOM)
            length++;
        if (i == 0 || compare_pieces(order[i - 1], order[i]) != 0)
            good = tarn__buffer_add(&m->key, order[i], length, sizeof(uint32_t));
    }
    tarn__release(order, sizeof(*order) * (count + 1));
    return good;
}

/* The depth is part of the hash: keys of different depths are different questions. */
static uint32_t *bucket_of(tarn__masks *m, uint32_t depth)
{
    return &m->buckets[tarn__hash(m->key.data, m->key.count * sizeof(uint32_t), depth) % TARN__MASK_BUCKETS];
}

/* A mask of the current key; index + 1, 0: none. */
static uint32_t find_key(tarn__masks *m, uint32_t depth)
{
    const tarn__mask *masks = (const tarn__mask *)(const void *)m->masks.data;
    for (uint32_t i = *bucket_of(m, depth); i; i = masks[i - 1].next)
        if (masks[i - 1].depth == depth && masks[i - 1].key_count == m->key.count &&
            memcmp(u32(&m->keys) + masks[i - 1].key, m->key.data, m->key.count * sizeof(uint32_t)) == 0)
            return i;
    return 0;
}

/* Stack levels from the top of a set's highest stack down to a height. 0: no transition looked at a stack, and the mask
 * depends on the states alone. */
static uint32_t depth_of(const tarn__set *set, uint32_t lowest)
{
    return lowest > set->max_height ? 0 : set->max_height - lowest + 1;
}

/* A mask stored for another set that is equal as far as it was looked at: keys are tried from the shallowest depth to
 * the deepest in use. False with an error. */
static bool find_mask(tarn_grammar *g, uint32_t set, uint32_t *mask)
{
    tarn__masks *m = &g->masks;
    uint32_t top = tarn__sets_at(&g->sets, set)->max_height + 1;
    *mask = 0;
    for (uint32_t depth = 0; depth <= m->max_depth && depth <= top && !*mask; depth++) {
        if (!make_key(m, &g->sets, set, top - depth))
            return false;
        *mask = find_key(m, depth);
    }
    return true;
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

/* Twins are in the order of their nodes, as the trie was built in that order. */
static void set_bits(const tarn_grammar_vocab *v, uint32_t node, int32_t token, bool is_twin, uint32_t *words)
{
    words[token / 32] |= 1u << (token % 32);
    if (!is_twin)
        return;
    const tarn__token_twin *twins = (const tarn__token_twin *)(const void *)v->twins.data;
    size_t low = 0, high = v->twins.count; /* the first twin of the node */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (twins[middle].node < node)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < v->twins.count && twins[low].node == node; low++)
        words[twins[low].token / 32] |= 1u << (twins[low].token % 32);
}

/* Sets the bits of all tokens that lead from a set to one that is not dead. The work is counted by configurations,
 * cached or not, so that whether it is too much does not depend on history. Memory is limited by the sets that a walk
 * adds. */
static bool walk(tarn_grammar *g, uint32_t start, uint32_t *words, uint32_t *lowest)
{
    const tarn_grammar_vocab *v = g->vocab;
    const tarn__token_node *nodes = (const tarn__token_node *)(const void *)v->nodes.data;
    const uint8_t *classes = g->rtn.classes;
    /* path[d]: the set after the first d bytes of the token at hand. Nodes are in depth-first order, so what is shared
     * with the token before is known; a dead end skips the subtree. */
    uint32_t *path = u32(&g->masks.path), count = (uint32_t)v->nodes.count;
    int64_t work = 0;
    size_t limit = tarn__sets_bytes(&g->sets) + 2 * TARN__G_SETS_BYTES;
    path[0] = start;
    for (uint32_t i = 1; i < count;) {
        const tarn__token_node *node = &nodes[i];
        uint32_t from = path[node->depth - 1], next = tarn__sets_step(&g->sets, from, classes[node->byte], lowest);
        if (next == TARN__SET_DEAD) {
            i = node->end;
            continue;
        }
        if (next == TARN__SET_NONE)
            return false;
        path[node->depth] = next;
        work += tarn__sets_at(&g->sets, next)->count;
        if (node->token >= 0)
            set_bits(v, i, node->token, node->is_twin, words);
        i++;
        /* Sizes are asked for rarely: they are sums. */
        if ((i & 1023) == 0 && (work > TARN__G_MAX_WORK || tarn__sets_bytes(&g->sets) > limit))
            return tarn__raise(TARN_ERROR_FORMAT, "the grammar is too ambiguous: a mask needs too much work");
    }
    return true;
}

/* ---- storage ----------------------------------------------------------------------------------------------------- */

/* All at once: what is in use again is computed again, a walk each. */
static void drop_masks(tarn_grammar *g)
{
    tarn__masks *m = &g->masks;
    m->masks.count = m->keys.count = m->words.count = 0;
    m->max_depth = 0;
    memset(m->buckets, 0, sizeof(m->buckets));
    for (uint32_t i = 0; i < g->sets.sets.count; i++)
        tarn__sets_at(&g->sets, i)->mask = 0;
}

/* Stores the mask that is last in `words` under the set's key; 0 with an error. */
static uint32_t store(tarn_grammar *g, uint32_t set, uint32_t lowest)
{
    tarn__masks *m = &g->masks;
    const tarn__set *source = tarn__sets_at(&g->sets, set);
    uint32_t depth = depth_of(source, lowest), index = (uint32_t)m->masks.count + 1;
    bool is_shared = depth <= MAX_KEY_DEPTH;
    tarn__mask mask = {.key = m->keys.count, .depth = depth};
    if (is_shared && !make_key(m, &g->sets, set, source->max_height + 1 - depth))
        return 0;
    if (is_shared) {
        uint32_t *bucket = bucket_of(m, depth);
        mask.key_count = m->key.count;
        mask.next = *bucket;
        if ((m->key.count && !tarn__buffer_add(&m->keys, m->key.data, m->key.count, sizeof(uint32_t))) ||
            !tarn__buffer_add(&m->masks, &mask, 1, sizeof(mask)))
            return 0;
        *bucket = index;
        m->max_depth = depth > m->max_depth ? depth : m->max_depth;
    } else if (!tarn__buffer_add(&m->masks, &mask, 1, sizeof(mask))) {
        return 0;
    }
    return index;
}

/* Room is made before the walk, which adds sets but no masks. Words are taken only if the mask could be stored. */
static uint32_t compute(tarn_grammar *g, uint32_t set)
{
    tarn__masks *m = &g->masks;
    size_t words = (size_t)g->vocab->words;
    uint32_t lowest = UINT32_MAX;
    if ((m->words.count + words) * sizeof(uint32_t) > TARN__G_MASKS_BYTES)
        drop_masks(g);
    if (!tarn__buffer_reserve(&m->words, words, sizeof(uint32_t)) ||
        !tarn__buffer_reserve(&m->path, g->vocab->max_depth + 1, sizeof(uint32_t)))
        return 0;
    memset(u32(&m->words) + m->words.count, 0, sizeof(uint32_t) * words);
    if (!walk(g, set, u32(&m->words) + m->words.count, &lowest))
        return 0;
    uint32_t index = store(g, set, lowest);
    m->words.count += index ? words : 0;
    return index;
}

/* First the set's own mask, then one of an equal position, then a walk over the trie. */
const uint32_t *tarn__mask_of(tarn_grammar *g, uint32_t set)
{
    uint32_t mask = tarn__sets_at(&g->sets, set)->mask;
    if (!mask) {
        if (!find_mask(g, set, &mask) || (!mask && !(mask = compute(g, set))))
            return NULL;
        tarn__sets_at(&g->sets, set)->mask = mask;
    }
    return u32(&g->masks.words) + (size_t)(mask - 1) * (size_t)g->vocab->words;
}
