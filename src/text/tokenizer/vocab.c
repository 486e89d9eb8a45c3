/* vocab.c: a vocabulary, and the letters by which byte-level files write bytes. */
#include "text/tokenizer/vocab.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

/* ---- ids and bytes ----------------------------------------------------------------------------------------------- */

static size_t slot_of(const tarn__vocab *pieces, const char *bytes, size_t length)
{
    size_t at = (size_t)tarn__hash(bytes, length, 0) & (pieces->slots - 1);
    for (; pieces->slot[at]; at = (at + 1) & (pieces->slots - 1)) {
        const tarn__vocab_piece *piece = &pieces->piece[pieces->slot[at] - 1];
        if (piece->length == length && memcmp(pieces->bytes.data + piece->begin, bytes, length) == 0)
            break;
    }
    return at;
}

static bool grow_slots(tarn__vocab *pieces)
{
    if (2 * (pieces->used + 1) <= pieces->slots)
        return true;
    tarn__vocab grown = *pieces;
    grown.slots = pieces->slots ? 2 * pieces->slots : 512;
    grown.slot = tarn__alloc(grown.slots * sizeof(int32_t));
    if (!grown.slot)
        return false;
    for (size_t i = 0; i < pieces->slots; i++)
        if (pieces->slot[i]) {
            const tarn__vocab_piece *piece = &pieces->piece[pieces->slot[i] - 1];
            grown.slot[slot_of(&grown, pieces->bytes.data + piece->begin, piece->length)] = pieces->slot[i];
        }
    tarn__release(pieces->slot, pieces->slots * sizeof(int32_t));
    pieces->slot = grown.slot;
    pieces->slots = grown.slots;
    return true;
}

static bool grow_pieces(tarn__vocab *pieces, int32_t id)
{
    if ((size_t)id < pieces->room)
        return true;
    size_t room = (size_t)id + 1 > 2 * pieces->room ? (size_t)id + 1 : 2 * pieces->room;
    room = room < 256 ? 256 : room;
    tarn__vocab_piece *grown = tarn__alloc(room * sizeof(*grown));
    if (!grown)
        return false;
    if (pieces->piece)
        memcpy(grown, pieces->piece, pieces->room * sizeof(*grown));
    tarn__release(pieces->piece, pieces->room * sizeof(*grown));
    pieces->piece = grown;
    pieces->room = room;
    return true;
}

bool tarn__vocab_add(tarn__vocab *pieces, int32_t id, const char *bytes, size_t length, bool literal)
{
    if (!grow_pieces(pieces, id) || !grow_slots(pieces) || !tarn__buffer_reserve(&pieces->bytes, length + 1, 1))
        return false;
    pieces->piece[id] = (tarn__vocab_piece){pieces->bytes.count, (uint32_t)length, 1, literal, 0, 0};
    tarn__buffer_add(&pieces->bytes, bytes, length, 1);
    tarn__buffer_add(&pieces->bytes, "", 1, 1);
    size_t at = slot_of(pieces, bytes, length);
    pieces->used += !pieces->slot[at];
    if (!pieces->slot[at] || (!literal && pieces->piece[pieces->slot[at] - 1].literal))
        pieces->slot[at] = id + 1;
    pieces->count = id >= pieces->count ? id + 1 : pieces->count;
    return true;
}

int32_t tarn__vocab_find(const tarn__vocab *pieces, const char *bytes, size_t length)
{
    return pieces->slots ? pieces->slot[slot_of(pieces, bytes, length)] - 1 : -1;
}

/* Whether a text is these bytes with a mark for each space. */
static bool is_spaced(const char *bytes, size_t size, const char *text, size_t length)
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

bool tarn__vocab_matches_escaped(const tarn__vocab *pieces, int32_t id, const char *text, size_t length)
{
    size_t size;
    const char *bytes = tarn__vocab_bytes(pieces, id, &size);
    if (pieces->piece[id].byte)
        return tarn__byte_of_piece(text, length) == (unsigned char)bytes[0];
    if (pieces->spaced && !pieces->piece[id].literal)
        return is_spaced(bytes, size, text, length);
    if (pieces->piece[id].literal)
        return size == length && memcmp(bytes, text, length) == 0;
    size_t at = 0, i = 0;
    for (; i < size && at < length; i++) {
        char letter[4];
        size_t letter_size = tarn__utf8_encode(letter, tarn__byte_to_unicode((unsigned char)bytes[i]));
        if (letter_size > length - at || memcmp(text + at, letter, letter_size) != 0)
            return false;
        at += letter_size;
    }
    return i == size && at == length;
}

/* A text with spaces for its marks; false where it has a space itself, which stands for nothing else. */
static bool unmark(char *bytes, size_t *count, const char *text, size_t length)
{
    *count = 0;
    for (size_t at = 0; at < length;) {
        bool is_mark =
            length - at >= TARN__METASPACE_BYTES && memcmp(text + at, TARN__METASPACE, TARN__METASPACE_BYTES) == 0;
        if (text[at] == ' ')
            return false;
        bytes[(*count)++] = is_mark ? ' ' : text[at];
        at += is_mark ? TARN__METASPACE_BYTES : 1;
    }
    return true;
}

int32_t tarn__vocab_find_escaped(const tarn__vocab *pieces, const char *text, size_t length)
{
    char few[256], *bytes = length <= sizeof(few) ? few : tarn__alloc(length);
    size_t count;
    if (!bytes)
        return -1;
    bool is_read =
        pieces->spaced ? unmark(bytes, &count, text, length) : tarn__unicode_to_bytes(bytes, &count, text, length);
    int32_t id = is_read ? tarn__vocab_find(pieces, bytes, count) : -1;
    if (bytes != few)
        tarn__release(bytes, length);
    if (id < 0 || pieces->piece[id].literal)
        id = tarn__vocab_find(pieces, text, length);
    return id >= 0 && tarn__vocab_matches_escaped(pieces, id, text, length) ? id : -1;
}

bool tarn__vocab_escape(const tarn__vocab *pieces, int32_t id, tarn__buffer *text)
{
    size_t length;
    const char *bytes = tarn__vocab_bytes(pieces, id, &length);
    char name[8];
    if (pieces->piece[id].byte)
        return tarn__buffer_add(text, name, (size_t)snprintf(name, sizeof(name), "<0x%02X>", (unsigned char)bytes[0]),
                                1);
    if (pieces->piece[id].literal)
        return tarn__buffer_add(text, bytes, length, 1);
    if (!pieces->spaced)
        return tarn__bytes_to_unicode(text, bytes, length);
    bool good = true;
    for (size_t i = 0; good && i < length; i++)
        good = tarn__buffer_add(text, bytes[i] == ' ' ? TARN__METASPACE : bytes + i,
                                bytes[i] == ' ' ? TARN__METASPACE_BYTES : 1, 1);
    return good;
}

bool tarn__vocab_add_spm(tarn__vocab *pieces, int32_t id, const char *text, size_t length)
{
    char few[256], *bytes = length <= sizeof(few) ? few : tarn__alloc(length);
    size_t count;
    if (!bytes)
        return false;
    bool is_read = unmark(bytes, &count, text, length);
    bool good = tarn__vocab_add(pieces, id, is_read ? bytes : text, is_read ? count : length, !is_read);
    if (bytes != few)
        tarn__release(bytes, length);
    return good;
}

bool tarn__vocab_add_byte(tarn__vocab *pieces, int32_t id, unsigned char byte)
{
    if (!tarn__vocab_add(pieces, id, &(char){(char)byte}, 1, true))
        return false;
    pieces->piece[id].byte = 1;
    return true;
}

bool tarn__vocab_has(const tarn__vocab *pieces, int64_t id)
{
    return id >= 0 && id < pieces->count && pieces->piece[id].used;
}

const char *tarn__vocab_bytes(const tarn__vocab *pieces, int32_t id, size_t *length)
{
    *length = pieces->piece[id].length;
    return pieces->bytes.data + pieces->piece[id].begin;
}

void tarn__vocab_free(tarn__vocab *pieces)
{
    tarn__buffer_free(&pieces->bytes, 1);
    tarn__release(pieces->piece, pieces->room * sizeof(*pieces->piece));
    tarn__release(pieces->slot, pieces->slots * sizeof(*pieces->slot));
    *pieces = (tarn__vocab){0};
}

/* ---- spaces and bytes of SentencePiece --------------------------------------------------------------------------- */

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int tarn__byte_of_piece(const char *text, size_t length)
{
    if (length != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' || digit_of(text[3]) < 0 || digit_of(text[4]) < 0)
        return -1;
    return 16 * digit_of(text[3]) + digit_of(text[4]);
}

const char *tarn__find_metaspace(const char *text, size_t length)
{
    for (const char *at = text, *end = text + length; (at = memchr(at, TARN__METASPACE[0], (size_t)(end - at))) != NULL;
         at++)
        if (end - at >= TARN__METASPACE_BYTES && memcmp(at, TARN__METASPACE, TARN__METASPACE_BYTES) == 0)
            return at;
    return NULL;
}

/* ---- letters for bytes ------------------------------------------------------------------------------------------- */

/* Bytes that are letters one can see in Latin-1: all but controls, spaces and the soft hyphen. */
static bool is_visible(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
}

/* Of those that cannot be seen: 0 to 32, 127 to 160 and 173. */
#define HIDDEN (33 + 34 + 1)

uint32_t tarn__byte_to_unicode(unsigned char byte)
{
    if (is_visible(byte))
        return byte;
    return 256 + (byte <= ' ' ? byte : byte <= 160 ? 33u + byte - 127u : HIDDEN - 1u);
}

/* The byte of a letter, -1: it stands for none. */
static int byte_of(uint32_t letter)
{
    if (letter < 256)
        return is_visible((int)letter) ? (int)letter : -1;
    int hidden = letter < 256 + HIDDEN ? (int)letter - 256 : -1;
    return hidden <= ' ' ? hidden : hidden < HIDDEN - 1 ? 127 + hidden - 33 : 0xAD;
}

unsigned char tarn__byte_of_rank(int rank)
{
    return (unsigned char)(rank < 94        ? '!' + rank
                           : rank < 94 + 12 ? 0xA1 + rank - 94
                           : rank < 188     ? 0xAE + rank - 106
                                            : byte_of(256u + (uint32_t)rank - 188));
}

bool tarn__bytes_to_unicode(tarn__buffer *letters, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        char text[4];
        size_t size = tarn__utf8_encode(text, tarn__byte_to_unicode((unsigned char)bytes[i]));
        if (!tarn__buffer_add(letters, text, size, 1))
            return false;
    }
    return true;
}

bool tarn__unicode_to_bytes(char *bytes, size_t *count, const char *letters, size_t length)
{
    *count = 0;
    for (size_t at = 0, size; at < length; at += size) {
        uint32_t letter;
        size = tarn__utf8_decode(letters + at, length - at, &letter);
        int byte = size ? byte_of(letter) : -1;
        if (byte < 0)
            return false;
        bytes[(*count)++] = (char)byte;
    }
    return true;
}
