/* word_cache.c: a cache of encoded words per encoder. Text repeats words: most are encoded once and then copied. The
 * cache stops growing at MAX_WORDS and never evicts, so that its cost stays bounded and results do not depend on it. */
#include <string.h>

#include "base/memory.h"
#include "text/tokenizer/tokenizer.h"

#define MAX_BYTES 64     /* longest cached word */
#define MAX_WORDS 131072 /* cached words per encoder */

typedef struct tarn__cached_word {
    uint64_t hash;          /* compared before the bytes */
    size_t bytes, ids;      /* offsets in word_bytes and word_ids */
    uint16_t length, count; /* bytes and ids; at most MAX_BYTES each */
} tarn__cached_word;

/* The slot of a word, or the free slot where it belongs. */
static size_t slot_of(const tarn__encoder *encoder, uint64_t hash, const char *word, size_t length)
{
    size_t at = (size_t)hash & (encoder->word_slots - 1);
    for (const tarn__cached_word *w; (w = &encoder->word[at])->length; at = (at + 1) & (encoder->word_slots - 1))
        if (w->hash == hash && w->length == length && memcmp(encoder->word_bytes.data + w->bytes, word, length) == 0)
            break;
    return at;
}

/* Keeps the table at most half full; grows by four, since rehashing is the expensive part. */
static bool grow_table(tarn__encoder *encoder)
{
    if (2 * (encoder->words + 1) <= encoder->word_slots)
        return true;
    size_t slots = encoder->word_slots ? 4 * encoder->word_slots : 128, mask = slots - 1;
    tarn__cached_word *grown = tarn__alloc(slots * sizeof(*grown));
    if (!grown)
        return false;
    for (size_t i = 0; i < encoder->word_slots; i++)
        if (encoder->word[i].length) {
            size_t at = (size_t)encoder->word[i].hash & mask;
            while (grown[at].length)
                at = (at + 1) & mask;
            grown[at] = encoder->word[i];
        }
    tarn__release(encoder->word, encoder->word_slots * sizeof(*grown));
    encoder->word = grown;
    encoder->word_slots = slots;
    return true;
}

/* Adds a word, unless the cache is full. */
static bool add_word(tarn__encoder *encoder, uint64_t hash, const char *word, size_t length, const int32_t *ids,
                     size_t count)
{
    if (encoder->words >= MAX_WORDS)
        return true;
    tarn__cached_word added = {hash, encoder->word_bytes.count, encoder->word_ids.count, (uint16_t)length,
                               (uint16_t)count};
    if (!grow_table(encoder) || !tarn__buffer_add(&encoder->word_bytes, word, length, 1) ||
        !tarn__buffer_add(&encoder->word_ids, ids, count, sizeof(*ids)))
        return false;
    encoder->word[slot_of(encoder, hash, word, length)] = added;
    encoder->words++;
    return true;
}

/* Long words are not cached: they rarely repeat, and would fill the cache with bytes. */
bool tarn__word_cache_encode(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *word, size_t length,
                             tarn__word_encode_fn encode, tarn__buffer *ids)
{
    if (length > MAX_BYTES)
        return encode(tokenizer, encoder, word, length, ids);
    uint64_t hash = tarn__hash(word, length, 0);
    const tarn__cached_word *known = encoder->word_slots ? &encoder->word[slot_of(encoder, hash, word, length)] : NULL;
    if (known && known->length)
        return tarn__buffer_add(ids, encoder->word_ids.data + known->ids * sizeof(int32_t), known->count,
                                sizeof(int32_t));
    size_t before = ids->count;
    return encode(tokenizer, encoder, word, length, ids) &&
           add_word(encoder, hash, word, length, (const int32_t *)(const void *)ids->data + before,
                    ids->count - before);
}

/* The encoder is all zero afterwards, and ready again. */
void tarn__encoder_free(tarn__encoder *encoder)
{
    tarn__matcher_free(encoder->matcher);
    tarn__release(encoder->word, encoder->word_slots * sizeof(*encoder->word));
    tarn__buffer_free(&encoder->word_bytes, 1);
    tarn__buffer_free(&encoder->word_ids, sizeof(int32_t));
    tarn__buffer_free(&encoder->symbols, sizeof(tarn__symbol));
    tarn__merge_heap_free(&encoder->heap);
    tarn__buffer_free(&encoder->normal, 1);
    tarn__buffer_free(&encoder->spaced, 1);
    tarn__buffer_free(&encoder->step[0], 1);
    tarn__buffer_free(&encoder->step[1], 1);
    for (int i = 0; i < TARN__MAX_STEPS; i++)
        tarn__buffer_free(&encoder->level[i], 1);
    for (int i = 0; i <= TARN__MAX_STEPS; i++)
        tarn__buffer_free(&encoder->escaped[i], 1);
    tarn__buffer_free(&encoder->unescaped, 1);
    tarn__buffer_free(&encoder->dressed, 1);
    tarn__unigram_paths_free(&encoder->paths);
    tarn__buffer_free(&encoder->ends, sizeof(int32_t));
    *encoder = (tarn__encoder){0};
}
