/* bpe_merge.c: merging a long list of symbols, with a linked list and a heap of candidate pairs.
 *
 * A candidate is not removed when one of its symbols changes: it goes stale. When it is popped, its pair is looked up
 * again, and it is dropped unless the lookup still gives the same result. */
#include "text/tokenizer/tokenizer.h"

/* A pair that may merge: the symbol at `index` and the next one. */
typedef struct candidate {
    int32_t rank, index, merged;
} candidate;

/* The order of merging: lowest rank, then leftmost. */
static bool is_before(candidate a, candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.index < b.index;
}

/* A binary heap in an array: the children of i are 2i + 1 and 2i + 2. */
static bool push(tarn__buffer *heap, candidate candidate_added)
{
    if (!tarn__buffer_reserve(heap, 1, sizeof(candidate_added)))
        return false;
    candidate *all = (candidate *)(void *)heap->data;
    size_t at = heap->count++;
    for (; at > 0 && is_before(candidate_added, all[(at - 1) / 2]); at = (at - 1) / 2)
        all[at] = all[(at - 1) / 2];
    all[at] = candidate_added;
    return true;
}

/* Removes the first candidate; the heap is not empty. */
static candidate pop(tarn__buffer *heap)
{
    candidate *all = (candidate *)(void *)heap->data, first = all[0], last = all[--heap->count];
    size_t at = 0, child;
    for (; (child = 2 * at + 1) < heap->count; at = child) {
        child += child + 1 < heap->count && is_before(all[child + 1], all[child]);
        if (!is_before(all[child], last))
            break;
        all[at] = all[child];
    }
    all[at] = last;
    return first;
}

typedef struct merging {
    tarn__pair_fn find;
    const void *ctx;
    tarn__symbol *symbols;
    tarn__buffer *heap;
} merging;

/* Looks up the merge of a symbol with the next one. False if there is none. */
static bool find_candidate(const merging *m, int32_t index, candidate *found)
{
    const tarn__symbol *left = &m->symbols[index];
    *found = (candidate){.index = index};
    return left->length > 0 && left->next >= 0 &&
           m->find(m->ctx, left, &m->symbols[left->next], &found->rank, &found->merged);
}

/* Pushes the pair that begins at a symbol, if it merges. */
static bool push_pair(const merging *m, int32_t index)
{
    candidate found;
    return index < 0 || !find_candidate(m, index, &found) || push(m->heap, found);
}

/* Every merge pushes at most two candidates, so the heap has O(n) entries in all. */
bool tarn__merge_symbols(tarn__pair_fn find, const void *ctx, tarn__symbol *symbols, int32_t count, tarn__buffer *heap)
{
    const merging m = {find, ctx, symbols, heap};
    heap->count = 0;
    for (int32_t i = 0; i < count; i++)
        if (!push_pair(&m, i))
            return false;
    while (heap->count > 0) {
        candidate c = pop(heap), now;
        if (!find_candidate(&m, c.index, &now) || now.merged != c.merged)
            continue;
        tarn__symbol *left = &symbols[c.index], *right = &symbols[left->next];
        /* The left symbol becomes the result, the right one leaves the list with length 0. */
        left->id = c.merged;
        left->length += right->length;
        right->length = 0;
        left->next = right->next;
        if (left->next >= 0)
            symbols[left->next].prev = c.index;
        if (!push_pair(&m, left->prev) || !push_pair(&m, c.index))
            return false;
    }
    return true;
}

/* The element type is private to this file. */
void tarn__merge_heap_free(tarn__buffer *heap)
{
    tarn__buffer_free(heap, sizeof(candidate));
}
