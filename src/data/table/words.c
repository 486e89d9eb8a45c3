/* words.c: distinct strings, numbered in the order in which they are added, with an index by hash (open addressing). */
#include <string.h>

#include "data/table/table.h"

/* FNV-1a. */
static uint32_t hash(const char *text)
{
    uint32_t value = 2166136261u;
    for (; *text; text++)
        value = (value ^ (unsigned char)*text) * 16777619u;
    return value;
}

/* The slot of a word, or the free one where it belongs. `slots` is a power of two, never full. */
static int slot_of(const tarn__words *w, const char *text)
{
    int at = (int)(hash(text) & (uint32_t)(w->slots - 1));
    while (w->slot[at] && strcmp(w->word[w->slot[at] - 1], text) != 0)
        at = (at + 1) & (w->slots - 1);
    return at;
}

/* Without an index there are no words. */
int tarn__words_find(const tarn__words *w, const char *text)
{
    return w->slots ? w->slot[slot_of(w, text)] - 1 : -1;
}

/* Doubles the index. At most half of it is in use. */
static bool grow(tarn__words *w)
{
    tarn__words larger = *w;
    larger.slots = w->slots ? 2 * w->slots : 64;
    larger.slot = tarn__alloc(sizeof(int32_t) * (size_t)larger.slots);
    if (!larger.slot)
        return false;
    for (int i = 0; i < w->count; i++)
        larger.slot[slot_of(&larger, w->word[i])] = i + 1;
    tarn__release(w->slot, sizeof(int32_t) * (size_t)w->slots);
    *w = larger;
    return true;
}

int tarn__words_add(tarn__words *w, const char *text)
{
    int found = tarn__words_find(w, text);
    if (found >= 0)
        return found;
    if (2 * w->count >= w->slots && (w->count >= 1 << 29 || !grow(w)))
        return tarn__raise(TARN_ERROR_FORMAT, "table_open: a column has more than 2^29 different words") - 1;
    char *copy = tarn__list_reserve(&w->word, w->count, &w->capacity, sizeof(char *)) ? tarn__string_copy(text) : NULL;
    if (!copy)
        return -1;
    w->word[w->count] = copy;
    w->slot[slot_of(w, text)] = w->count + 1;
    return w->count++;
}

void tarn__words_free(tarn__words *w)
{
    for (int i = 0; i < w->count; i++)
        tarn__string_free(w->word[i]);
    tarn__release(w->word, sizeof(char *) * (size_t)w->capacity);
    tarn__release(w->slot, sizeof(int32_t) * (size_t)w->slots);
    *w = (tarn__words){0};
}
