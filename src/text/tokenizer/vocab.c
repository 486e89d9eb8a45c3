/* vocab.c: vocabularies and the escapes of files (vocab.h). The hash table uses open addressing with linear probing and
 * is at most half full. */
#include "text/tokenizer/vocab.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

/* ---- ids and bytes ----------------------------------------------------------------------------------------------- */

/* The slot of these bytes, or the free slot where they belong. */
static size_t slot_of(const tarn__vocab *vocab, const char *bytes, size_t length)
{
    size_t at = (size_t)tarn__hash(bytes, length, 0) & (vocab->slots - 1);
    for (; vocab->slot[at]; at = (at + 1) & (vocab->slots - 1)) {
        const tarn__vocab_piece *piece = &vocab->piece[vocab->slot[at] - 1];
        if (piece->length == length && memcmp(vocab->bytes.data + piece->begin, bytes, length) == 0)
            break;
    }
    return at;
}

/* Keeps the table at most half full. The copy `grown` shares the pieces while ids are rehashed. */
static bool grow_slots(tarn__vocab *vocab)
{
    if (2 * (vocab->used + 1) <= vocab->slots)
        return true;
    tarn__vocab grown = *vocab;
    grown.slots = vocab->slots ? 2 * vocab->slots : 512;
    grown.slot = tarn__alloc(grown.slots * sizeof(int32_t));
    if (!grown.slot)
        return false;
    for (size_t i = 0; i < vocab->slots; i++)
        if (vocab->slot[i]) {
            const tarn__vocab_piece *piece = &vocab->piece[vocab->slot[i] - 1];
            grown.slot[slot_of(&grown, vocab->bytes.data + piece->begin, piece->length)] = vocab->slot[i];
        }
    tarn__release(vocab->slot, vocab->slots * sizeof(int32_t));
    vocab->slot = grown.slot;
    vocab->slots = grown.slots;
    return true;
}

#define FIRST_CAPACITY 256

/* Reserves capacity for an id; ids in between stay unused. */
static bool grow_pieces(tarn__vocab *vocab, int32_t id)
{
    size_t count = (size_t)vocab->count, needed = (size_t)id + 1;
    return needed <= count || tarn__array_reserve(&vocab->piece, count, &vocab->capacity, needed - count,
                                                  sizeof(*vocab->piece), FIRST_CAPACITY);
}

/* All memory is reserved first: after that nothing can fail, and a failed call leaves the vocabulary as it was. */
bool tarn__vocab_add(tarn__vocab *vocab, int32_t id, const char *bytes, size_t length, bool literal)
{
    if (!grow_pieces(vocab, id) || !grow_slots(vocab) || !tarn__buffer_reserve(&vocab->bytes, length + 1, 1))
        return false;
    vocab->piece[id] = (tarn__vocab_piece){vocab->bytes.count, (uint32_t)length, 1, literal, 0, 0};
    tarn__buffer_add(&vocab->bytes, bytes, length, 1);
    tarn__buffer_add(&vocab->bytes, "", 1, 1);
    size_t at = slot_of(vocab, bytes, length);
    vocab->used += !vocab->slot[at];
    if (!vocab->slot[at] || (!literal && vocab->piece[vocab->slot[at] - 1].literal))
        vocab->slot[at] = id + 1;
    vocab->count = id >= vocab->count ? id + 1 : vocab->count;
    return true;
}

/* Slots hold id + 1, so an empty slot gives -1. */
int32_t tarn__vocab_find(const tarn__vocab *vocab, const char *bytes, size_t length)
{
    return vocab->slots ? vocab->slot[slot_of(vocab, bytes, length)] - 1 : -1;
}

/* True if the text is these bytes with U+2581 for each space. */
static bool matches_metaspace(const char *bytes, size_t size, const char *text, size_t length)
{
    size_t at = 0;
    for (size_t i = 0; i < size; i++) {
        const char *part = bytes[i] == ' ' ? TARN__METASPACE : bytes + i;
        size_t part_size = bytes[i] == ' ' ? TARN__METASPACE_BYTES : 1;
        if (part_size > length - at || memcmp(text + at, part, part_size) != 0)
            return false;
        at += part_size;
    }
    return at == length;
}

/* Escapes byte by byte while comparing: no buffer is needed. */
bool tarn__vocab_matches_escaped(const tarn__vocab *vocab, int32_t id, const char *text, size_t length)
{
    size_t size;
    const char *bytes = tarn__vocab_bytes(vocab, id, &size);
    if (vocab->piece[id].byte)
        return tarn__byte_of_piece(text, length) == (unsigned char)bytes[0];
    if (vocab->metaspaced && !vocab->piece[id].literal)
        return matches_metaspace(bytes, size, text, length);
    if (vocab->piece[id].literal)
        return size == length && memcmp(bytes, text, length) == 0;
    size_t at = 0, i = 0;
    for (; i < size && at < length; i++) {
        char character[4];
        size_t character_size = tarn__utf8_encode(character, tarn__byte_to_unicode((unsigned char)bytes[i]));
        if (character_size > length - at || memcmp(text + at, character, character_size) != 0)
            return false;
        at += character_size;
    }
    return i == size && at == length;
}

/* Replaces U+2581 by spaces. False if the text has a space of its own: such a piece is literal. */
static bool unescape_metaspace(char *bytes, size_t *count, const char *text, size_t length)
{
    *count = 0;
    for (size_t at = 0; at < length;) {
        bool is_metaspace =
            length - at >= TARN__METASPACE_BYTES && memcmp(text + at, TARN__METASPACE, TARN__METASPACE_BYTES) == 0;
        if (text[at] == ' ')
            return false;
        bytes[(*count)++] = is_metaspace ? ' ' : text[at];
        at += is_metaspace ? TARN__METASPACE_BYTES : 1;
    }
    return true;
}

/* Unescaped first; a literal piece is found by its own text. The match is verified: a literal piece may
 * equal the unescaped bytes of another text. */
int32_t tarn__vocab_find_escaped(const tarn__vocab *vocab, const char *text, size_t length)
{
    char small[256], *bytes = length <= sizeof(small) ? small : tarn__alloc(length);
    size_t count;
    if (!bytes)
        return -1;
    bool is_escaped = vocab->metaspaced ? unescape_metaspace(bytes, &count, text, length)
                                        : tarn__unicode_to_bytes(bytes, &count, text, length);
    int32_t id = is_escaped ? tarn__vocab_find(vocab, bytes, count) : -1;
    if (bytes != small)
        tarn__release(bytes, length);
    if (id < 0 || vocab->piece[id].literal)
        id = tarn__vocab_find(vocab, text, length);
    return id >= 0 && tarn__vocab_matches_escaped(vocab, id, text, length) ? id : -1;
}

/* The inverse of the readers' unescaping: a saved tokenizer has the texts of the file it came from. */
bool tarn__vocab_escape(const tarn__vocab *vocab, int32_t id, tarn__buffer *text)
{
    size_t length;
    const char *bytes = tarn__vocab_bytes(vocab, id, &length);
    char name[8];
    if (vocab->piece[id].byte)
        return tarn__buffer_add(text, name, (size_t)snprintf(name, sizeof(name), "<0x%02X>", (unsigned char)bytes[0]),
                                1);
    if (vocab->piece[id].literal)
        return tarn__buffer_add(text, bytes, length, 1);
    if (!vocab->metaspaced)
        return tarn__bytes_to_unicode(text, bytes, length);
    bool good = true;
    for (size_t i = 0; good && i < length; i++)
        good = tarn__buffer_add(text, bytes[i] == ' ' ? TARN__METASPACE : bytes + i,
                                bytes[i] == ' ' ? TARN__METASPACE_BYTES : 1, 1);
    return good;
}

/* A text with spaces of its own cannot be unescaped and is stored literally. */
bool tarn__vocab_add_spm(tarn__vocab *vocab, int32_t id, const char *text, size_t length)
{
    char small[256], *bytes = length <= sizeof(small) ? small : tarn__alloc(length);
    size_t count;
    if (!bytes)
        return false;
    bool is_escaped = unescape_metaspace(bytes, &count, text, length);
    bool good = tarn__vocab_add(vocab, id, is_escaped ? bytes : text, is_escaped ? count : length, !is_escaped);
    if (bytes != small)
        tarn__release(bytes, length);
    return good;
}

/* Literal: merges find the byte's own piece, never this one. */
bool tarn__vocab_add_byte(tarn__vocab *vocab, int32_t id, unsigned char byte)
{
    if (!tarn__vocab_add(vocab, id, &(char){(char)byte}, 1, true))
        return false;
    vocab->piece[id].byte = 1;
    return true;
}

/* The id comes from outside: any value is allowed. */
bool tarn__vocab_has(const tarn__vocab *vocab, int64_t id)
{
    return id >= 0 && id < vocab->count && vocab->piece[id].used;
}

/* Borrowed, terminated, and good until a piece is added; the id must exist. */
const char *tarn__vocab_bytes(const tarn__vocab *vocab, int32_t id, size_t *length)
{
    *length = vocab->piece[id].length;
    return vocab->bytes.data + vocab->piece[id].begin;
}

/* An empty vocabulary, which can be filled again. */
void tarn__vocab_free(tarn__vocab *vocab)
{
    tarn__buffer_free(&vocab->bytes, 1);
    tarn__release(vocab->piece, vocab->capacity * sizeof(*vocab->piece));
    tarn__release(vocab->slot, vocab->slots * sizeof(*vocab->slot));
    *vocab = (tarn__vocab){0};
}

/* ---- spaces and bytes of SentencePiece --------------------------------------------------------------------------- */

/* Upper-case hexadecimal only, as SentencePiece writes byte pieces. */
static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0x0A>" is 10; -1: no byte piece. */
int tarn__byte_of_piece(const char *text, size_t length)
{
    if (length != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' || digit_of(text[3]) < 0 || digit_of(text[4]) < 0)
        return -1;
    return 16 * digit_of(text[3]) + digit_of(text[4]);
}

/* memchr() skips to the first byte of U+2581, which is rare in most text. */
const char *tarn__find_metaspace(const char *text, size_t length)
{
    for (const char *at = text, *end = text + length; (at = memchr(at, TARN__METASPACE[0], (size_t)(end - at))) != NULL;
         at++)
        if (end - at >= TARN__METASPACE_BYTES && memcmp(at, TARN__METASPACE, TARN__METASPACE_BYTES) == 0)
            return at;
    return NULL;
}

/* ---- byte-level escapes ------------------------------------------------------------------------------------------ */

/* Bytes that are visible in Latin-1: all but controls, spaces and the soft hyphen. */
static bool is_visible(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
}

/* The number of invisible bytes: 0 to 32, 127 to 160 and 173. */
#define INVISIBLE (33 + 34 + 1)

/* GPT-2's table: visible bytes are themselves, the others U+0100 and on in order: a space is U+0120. */
uint32_t tarn__byte_to_unicode(unsigned char byte)
{
    if (is_visible(byte))
        return byte;
    return 256 + (byte <= ' ' ? byte : byte <= 160 ? 33u + byte - 127u : INVISIBLE - 1u);
}

/* The byte that a code point stands for; -1: none. */
static int byte_of(uint32_t character)
{
    if (character < 256)
        return is_visible((int)character) ? (int)character : -1;
    int invisible = character < 256 + INVISIBLE ? (int)character - 256 : -1;
    return invisible <= ' ' ? invisible : invisible < INVISIBLE - 1 ? 127 + invisible - 33 : 0xAD;
}

/* Visible ASCII, the two visible ranges of Latin-1, then the invisible bytes in order. */
unsigned char tarn__byte_of_rank(int rank)
{
    return (unsigned char)(rank < 94        ? '!' + rank
                           : rank < 94 + 12 ? 0xA1 + rank - 94
                           : rank < 188     ? 0xAE + rank - 106
                                            : byte_of(256u + (uint32_t)rank - 188));
}

bool tarn__bytes_to_unicode(tarn__buffer *escaped, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        char text[4];
        size_t size = tarn__utf8_encode(text, tarn__byte_to_unicode((unsigned char)bytes[i]));
        if (!tarn__buffer_add(escaped, text, size, 1))
            return false;
    }
    return true;
}

/* An escape takes one or two bytes and gives one: the result never exceeds the input. */
bool tarn__unicode_to_bytes(char *bytes, size_t *count, const char *escaped, size_t length)
{
    *count = 0;
    for (size_t at = 0, size; at < length; at += size) {
        uint32_t character;
        size = tarn__utf8_decode(escaped + at, length - at, &character);
        int byte = size ? byte_of(character) : -1;
        if (byte < 0)
            return false;
        bytes[(*count)++] = (char)byte;
    }
    return true;
}

/* ---- hash -------------------------------------------------------------------------------------------------------- */

/* Eight bytes at a time, multiplied and folded. Bytes are assembled little-endian, not loaded, so that the hash does
 * not depend on the machine; token files store it. */
static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

/* The count is mixed in first, so that trailing zero bytes matter. */
uint64_t tarn__hash(const void *bytes, size_t count, uint64_t seed)
{
    const unsigned char *at = bytes;
    uint64_t hash = mix(seed + UINT64_C(0x2545F4914F6CDD1D), count);
    for (; count >= 8; count -= 8, at += 8) {
        uint64_t word = 0;
        for (int i = 0; i < 8; i++)
            word |= (uint64_t)at[i] << (8 * i);
        hash = mix(hash, word);
    }
    uint64_t last = 0;
    for (size_t i = 0; i < count; i++)
        last |= (uint64_t)at[i] << (8 * i);
    return mix(mix(hash, last), hash >> 32);
}
