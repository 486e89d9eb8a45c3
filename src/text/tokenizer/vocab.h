/* vocab.h: a vocabulary: the bytes of every id, and the id of every byte string. Also the two ways in which files
 * escape bytes: byte-level BPE writes each as a visible character, SentencePiece writes spaces as U+2581.
 *
 * Pieces live in one growing buffer, so pointers to them are valid until the next addition. */
#ifndef TARN__VOCAB_H
#define TARN__VOCAB_H

#include "base/buffer.h"

/* Limit of unused ids: memory follows the largest id in a file. */
#define TARN__MAX_UNUSED_IDS 65536
#define TARN__MAX_PIECE_BYTES ((size_t)1 << 20)

typedef struct tarn__vocab_piece {
    size_t begin;    /* offset in tarn__vocab.bytes */
    uint32_t length; /* in bytes, at most TARN__MAX_PIECE_BYTES */
    uint8_t used;    /* 0: the id is unused */
    uint8_t literal; /* the file's text is not escaped: it stands for itself */
    uint8_t outside; /* an added token outside the model's own vocabulary */
    uint8_t byte;    /* a byte piece, written as <0x0A>; also literal */
} tarn__vocab_piece;

typedef struct tarn__vocab {
    tarn__buffer bytes;       /* of all pieces, each terminated by a 0 */
    tarn__vocab_piece *piece; /* by id */
    int32_t count;            /* largest id + 1 */
    size_t capacity;          /* of `piece`, in elements */
    int32_t *slot;            /* hash table of id + 1, by bytes; 0: free */
    size_t slots;             /* a power of two, at least twice `used` */
    size_t used;
    bool metaspaced; /* escaped as SentencePiece does; else as byte-level BPE does */
} tarn__vocab;

/* Adds a piece under an unused id; the bytes are copied. Of pieces with equal bytes find() returns the first, and a
 * literal one only if there is no other. False with an error: no memory. */
bool tarn__vocab_add(tarn__vocab *vocab, int32_t id, const char *bytes, size_t length, bool literal);

/* The id of a byte string; -1: none. */
int32_t tarn__vocab_find(const tarn__vocab *vocab, const char *bytes, size_t length);

/* Escaped forms, as files have them. find_escaped: the id of an escaped or literal text, -1: none. matches_escaped:
 * whether an id's piece is written so. escape: appends the escaped form of a piece; false with an error. */
int32_t tarn__vocab_find_escaped(const tarn__vocab *vocab, const char *text, size_t length);
bool tarn__vocab_matches_escaped(const tarn__vocab *vocab, int32_t id, const char *text, size_t length);

bool tarn__vocab_escape(const tarn__vocab *vocab, int32_t id, tarn__buffer *text);

/* Adds a piece as escaped by SentencePiece; or a byte piece. False with an error: no memory. */
bool tarn__vocab_add_spm(tarn__vocab *vocab, int32_t id, const char *text, size_t length);
bool tarn__vocab_add_byte(tarn__vocab *vocab, int32_t id, unsigned char byte);

/* The value of a byte piece's text, 10 for <0x0A>; -1: not a byte piece. */
int tarn__byte_of_piece(const char *text, size_t length);

/* True when the id is used. bytes(): its piece, borrowed, terminated by a 0 that *length does not count. */
bool tarn__vocab_has(const tarn__vocab *vocab, int64_t id);
const char *tarn__vocab_bytes(const tarn__vocab *vocab, int32_t id, size_t *length);
void tarn__vocab_free(tarn__vocab *vocab);

/* ---- SentencePiece ----------------------------------------------------------------------------------------------- */

/* U+2581, which stands for a space in SentencePiece's files. */
#define TARN__METASPACE "\xE2\x96\x81"
#define TARN__METASPACE_BYTES 3

/* The first U+2581 in a text; NULL: none. */
const char *tarn__find_metaspace(const char *text, size_t length);

/* ---- byte-level escapes ------------------------------------------------------------------------------------------ */

/* GPT-2's bytes_to_unicode(): files write each byte as a visible character: itself if it is visible in Latin-1, and
 * U+0100, U+0101 … for the others in order; a space is Ġ. The code point of a byte: */
uint32_t tarn__byte_to_unicode(unsigned char byte);

/* Appends the escaped form of bytes, in UTF-8. False with an error. */
bool tarn__bytes_to_unicode(tarn__buffer *letters, const char *bytes, size_t length);

/* Reverses the escape; `bytes` must have capacity for `length`. False, without an error, if a character is not an
 * escape. */
bool tarn__unicode_to_bytes(char *bytes, size_t *count, const char *letters, size_t length);

/* The byte of a rank in the order of code points: '!' is 0. Trained vocabularies begin in this order. */
unsigned char tarn__byte_of_rank(int rank);

/* A 64-bit hash, the same on every machine. Not cryptographic. */
uint64_t tarn__hash(const void *bytes, size_t count, uint64_t seed);

#endif
