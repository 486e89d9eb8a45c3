/* bpe_merge.c: the merging of a long row of symbols, with a list and a heap of the pairs that could be merged. */
#include "text/tokenizer/tokenizer.h"

/* A pair that could be merged. It is stale when its symbols have changed: then their merge makes another token. */
typedef struct candidate {
    int32_t rank, place, made;
} candidate;

static bool comes_first(candidate a, candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.place < b.place;
}

static bool push(tarn__buffer *heap, candidate added)
{
    if (!tarn__buffer_reserve(heap, 1, sizeof(added)))
        return false;
    candidate *all = (candidate *)(void *)heap->data;
    size_t at = heap->count++;
    for (; at > 0 && comes_first(added, all[(at - 1) / 2]); at = (at - 1) / 2)
        all[at] = all[(at - 1) / 2];
    all[at] = added;
    return true;
}

static candidate pop(tarn__buffer *heap)
{
    candidate *all = (candidate *)(void *)heap->data, first = all[0], last = all[--heap->count];
    size_t at = 0, child;
    for (; (child = 2 * at + 1) < heap->count; at = child) {
        child += child + 1 < heap->count && comes_first(all[child + 1], all[child]);
        if (!comes_first(all[child], last))
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

/* What the symbol at a place makes with the one behind it. */
static bool find_pair(const merging *m, int32_t place, candidate *found)
{
    const tarn__symbol *left = &m->symbols[place];
    *found = (candidate){.place = place};
    return left->length > 0 && left->after >= 0 &&
           m->find(m->ctx, left, &m->symbols[left->after], &found->rank, &found->made);
}

static bool propose(const merging *m, int32_t place)
{
    candidate found;
    return place < 0 || !find_pair(m, place, &found) || push(m->heap, found);
}

bool tarn__merge_symbols(tarn__pair_fn find, const void *ctx, tarn__symbol *symbols, int32_t count, tarn__buffer *heap)
{
    const merging m = {find, ctx, symbols, heap};
    heap->count = 0;
    for (int32_t i = 0; i < count; i++)
        if (!propose(&m, i))
            return false;
    while (heap->count > 0) {
        candidate c = pop(heap), now;
        if (!find_pair(&m, c.place, &now) || now.made != c.made)
            continue;
        tarn__symbol *left = &symbols[c.place], *right = &symbols[left->after];
        left->id = c.made;
        left->length += right->length;
        right->length = 0;
        left->after = right->after;
        if (left->after >= 0)
            symbols[left->after].before = c.place;
        if (!propose(&m, left->before) || !propose(&m, c.place))
            return false;
    }
    return true;
}

void tarn__merge_heap_free(tarn__buffer *heap)
{
    tarn__buffer_free(heap, sizeof(candidate));
}
