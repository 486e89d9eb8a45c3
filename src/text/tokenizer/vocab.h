/* vocab.h: a vocabulary: the bytes of every id, and the id of every text. Also the letters by which byte-level files
 * write bytes. */
#ifndef TARN__VOCAB_H
#define TARN__VOCAB_H

#include "text/tokenizer/buffer.h"

/* Ids in a file may leave some numbers out, but not many: memory follows the largest. */
#define TARN__MAX_UNUSED_IDS 65536
#define TARN__MAX_PIECE_BYTES ((size_t)1 << 20)

typedef struct tarn__vocab_piece {
    size_t begin; /* in the bytes of all */
    uint32_t length;
    uint8_t used;    /* 0: no token has this id */
    uint8_t literal; /* the file's text is not made of letters for bytes: it stands for itself */
    uint8_t outside; /* an added token that the model's own vocabulary lacks */
    uint8_t byte;    /* literal: a byte that files write as <0x0A> */
} tarn__vocab_piece;

typedef struct tarn__vocab {
    tarn__buffer bytes;       /* of all pieces, a 0 after each */
    tarn__vocab_piece *piece; /* by id */
    int32_t count;            /* the largest id and one more */
    size_t room;              /* of `piece` */
    int32_t *slot;            /* ids and one more by the hash of their bytes; 0: free */
    size_t slots;             /* a power of two, at least twice `used` */
    size_t used;
    bool spaced; /* files write a space as U+2581 and some bytes as <0x0A>; else every byte as a letter */
} tarn__vocab;

/* Adds a piece under an id that is free. Of two with the same bytes the first is found, but a literal one last. False
 * with an error of no memory. */
bool tarn__vocab_add(tarn__vocab *pieces, int32_t id, const char *bytes, size_t length, bool literal);

/* The id of a text, -1: none. */
int32_t tarn__vocab_find(const tarn__vocab *pieces, const char *bytes, size_t length);

/* The same for a text as a file writes it: the letters of its bytes, or a literal text. Whether an id's piece is
 * written so; and how it is written, appended to a text: false with an error. */
int32_t tarn__vocab_find_escaped(const tarn__vocab *pieces, const char *text, size_t length);
bool tarn__vocab_matches_escaped(const tarn__vocab *pieces, int32_t id, const char *text, size_t length);

bool tarn__vocab_escape(const tarn__vocab *pieces, int32_t id, tarn__buffer *text);

/* Adds a piece as files of SentencePiece write it; or the piece of a byte. False with an error of no memory. */
bool tarn__vocab_add_spm(tarn__vocab *pieces, int32_t id, const char *text, size_t length);
bool tarn__vocab_add_byte(tarn__vocab *pieces, int32_t id, unsigned char byte);

/* The byte that <0x0A> stands for, -1: the text is none such. */
int tarn__byte_of_piece(const char *text, size_t length);

/* True when the id has a piece. */
bool tarn__vocab_has(const tarn__vocab *pieces, int64_t id);
const char *tarn__vocab_bytes(const tarn__vocab *pieces, int32_t id, size_t *length);
void tarn__vocab_free(tarn__vocab *pieces);

/* ---- spaces ---------------------------------------------------------------------------------------------------- */

/* U+2581, for which files of SentencePiece have a space. */
#define TARN__METASPACE "\xE2\x96\x81"
#define TARN__METASPACE_BYTES 3

/* Where a mark stands in a text, from a place on; NULL: nowhere. */
const char *tarn__find_metaspace(const char *text, size_t length);

/* ---- letters for bytes ------------------------------------------------------------------------------------------- */

/* Files of byte-level tokenizers write each byte as a letter that can be seen: itself where it is one, and U+0100,
 * U+0101 … for the others in their order: a space is Ġ. The code of a byte's letter: */
uint32_t tarn__byte_to_unicode(unsigned char byte);

/* Appends the letters of bytes, in UTF-8. False with an error. */
bool tarn__bytes_to_unicode(tarn__buffer *letters, const char *bytes, size_t length);

/* The bytes of letters, at most as many as there are bytes of letters; false, which is no error, where a letter stands
 * for none. */
bool tarn__unicode_to_bytes(char *bytes, size_t *count, const char *letters, size_t length);

/* The byte that is number `rank` when bytes are sorted by their letters: '!' is 0. Vocabularies begin in this order. */
unsigned char tarn__byte_of_rank(int rank);

#endif
