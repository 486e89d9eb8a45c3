/* word_cache.c: words repeat, so every coder remembers the ids of those it met. */
#include <string.h>

#include "base/memory.h"
#include "text/tokenizer/tokenizer.h"

#define REMEMBERED_BYTES 64     /* longest word that is remembered */
#define REMEMBERED_WORDS 131072 /* most words that are */

typedef struct tarn__cached_word {
    uint64_t hash;
    size_t bytes, ids; /* where they begin */
    uint16_t length, count;
} tarn__cached_word;

static size_t word_place(const tarn__encoder *coder, uint64_t hash, const char *word, size_t length)
{
    size_t at = (size_t)hash & (coder->word_slots - 1);
    for (const tarn__cached_word *w; (w = &coder->word[at])->length; at = (at + 1) & (coder->word_slots - 1))
        if (w->hash == hash && w->length == length && memcmp(coder->word_bytes.data + w->bytes, word, length) == 0)
            break;
    return at;
}

static bool grow_words(tarn__encoder *coder)
{
    if (2 * (coder->words + 1) <= coder->word_slots)
        return true;
    size_t slots = coder->word_slots ? 4 * coder->word_slots : 128, mask = slots - 1;
    tarn__cached_word *grown = tarn__alloc(slots * sizeof(*grown));
    if (!grown)
        return false;
    for (size_t i = 0; i < coder->word_slots; i++)
        if (coder->word[i].length) {
            size_t at = (size_t)coder->word[i].hash & mask;
            while (grown[at].length)
                at = (at + 1) & mask;
            grown[at] = coder->word[i];
        }
    tarn__release(coder->word, coder->word_slots * sizeof(*grown));
    coder->word = grown;
    coder->word_slots = slots;
    return true;
}

static bool remember(tarn__encoder *coder, uint64_t hash, const char *word, size_t length, const int32_t *ids,
                     size_t count)
{
    if (coder->words >= REMEMBERED_WORDS)
        return true;
    tarn__cached_word added = {hash, coder->word_bytes.count, coder->word_ids.count, (uint16_t)length, (uint16_t)count};
    if (!grow_words(coder) || !tarn__buffer_add(&coder->word_bytes, word, length, 1) ||
        !tarn__buffer_add(&coder->word_ids, ids, count, sizeof(*ids)))
        return false;
    coder->word[word_place(coder, hash, word, length)] = added;
    coder->words++;
    return true;
}

bool tarn__word_cache_encode(const tarn_tokenizer *tokenizer, tarn__encoder *coder, const char *word, size_t length,
                             tarn__word_encode_fn encode, tarn__buffer *ids)
{
    if (length > REMEMBERED_BYTES)
        return encode(tokenizer, coder, word, length, ids);
    uint64_t hash = tarn__hash(word, length, 0);
    const tarn__cached_word *known = coder->word_slots ? &coder->word[word_place(coder, hash, word, length)] : NULL;
    if (known && known->length)
        return tarn__buffer_add(ids, coder->word_ids.data + known->ids * sizeof(int32_t), known->count,
                                sizeof(int32_t));
    size_t before = ids->count;
    return encode(tokenizer, coder, word, length, ids) &&
           remember(coder, hash, word, length, (const int32_t *)(const void *)ids->data + before, ids->count - before);
}

void tarn__encoder_free(tarn__encoder *coder)
{
    tarn__matcher_free(coder->matcher);
    tarn__release(coder->word, coder->word_slots * sizeof(*coder->word));
    tarn__buffer_free(&coder->word_bytes, 1);
    tarn__buffer_free(&coder->word_ids, sizeof(int32_t));
    tarn__buffer_free(&coder->symbols, sizeof(tarn__symbol));
    tarn__merge_heap_free(&coder->heap);
    tarn__buffer_free(&coder->normal, 1);
    tarn__buffer_free(&coder->spaced, 1);
    *coder = (tarn__encoder){0};
}
