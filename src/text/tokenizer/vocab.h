/* vocab.h: a vocabulary: the bytes of every id, and the id of every text. Also the letters by which byte-level files
 * write bytes. */
#ifndef TARN__PIECES_H
#define TARN__PIECES_H

#include "text/tokenizer/buffer.h"

/* Ids in a file may leave some numbers out, but not many: memory follows the largest. */
#define TARN__MOST_HOLES 65536
#define TARN__LONGEST_PIECE ((size_t)1 << 20)

typedef struct tarn__piece {
    size_t begin; /* in the bytes of all */
    uint32_t length;
    uint8_t used;    /* 0: no token has this id */
    uint8_t literal; /* the file's text is not made of letters for bytes: it stands for itself */
    uint8_t outside; /* an added token that the model's own vocabulary lacks */
    uint8_t byte;    /* literal: a byte that files write as <0x0A> */
} tarn__piece;

typedef struct tarn__pieces {
    tarn__buffer bytes; /* of all pieces, a 0 after each */
    tarn__piece *piece; /* by id */
    int32_t count;      /* the largest id and one more */
    size_t room;        /* of `piece` */
    int32_t *slot;      /* ids and one more by the hash of their bytes; 0: free */
    size_t slots;       /* a power of two, at least twice `used` */
    size_t used;
    bool spaced; /* files write a space as U+2581 and some bytes as <0x0A>; else every byte as a letter */
} tarn__pieces;

/* Adds a piece under an id that is free. Of two with the same bytes the first is found, but a literal one last. False
 * with an error of no memory. */
bool tarn__pieces_add(tarn__pieces *pieces, int32_t id, const char *bytes, size_t length, bool literal);

/* The id of a text, -1: none. */
int32_t tarn__pieces_find(const tarn__pieces *pieces, const char *bytes, size_t length);

/* The same for a text as a file writes it: the letters of its bytes, or a literal text. Whether an id's piece is
 * written so; and how it is written, appended to a text: false with an error. */
int32_t tarn__pieces_find_written(const tarn__pieces *pieces, const char *text, size_t length);
bool tarn__pieces_is_written(const tarn__pieces *pieces, int32_t id, const char *text, size_t length);

bool tarn__pieces_write(const tarn__pieces *pieces, int32_t id, tarn__buffer *text);

/* Adds a piece as files of SentencePiece write it; or the piece of a byte. False with an error of no memory. */
bool tarn__pieces_add_spaced(tarn__pieces *pieces, int32_t id, const char *text, size_t length);
bool tarn__pieces_add_byte(tarn__pieces *pieces, int32_t id, unsigned char byte);

/* The byte that <0x0A> stands for, -1: the text is none such. */
int tarn__byte_of_name(const char *text, size_t length);

/* True when the id has a piece. */
bool tarn__pieces_has(const tarn__pieces *pieces, int64_t id);
const char *tarn__pieces_bytes(const tarn__pieces *pieces, int32_t id, size_t *length);
void tarn__pieces_free(tarn__pieces *pieces);

/* ---- spaces ---------------------------------------------------------------------------------------------------- */

/* U+2581, for which files of SentencePiece have a space. */
#define TARN__MARK "\xE2\x96\x81"
#define TARN__MARK_BYTES 3

/* Where a mark stands in a text, from a place on; NULL: nowhere. */
const char *tarn__find_mark(const char *text, size_t length);

/* ---- letters for bytes ------------------------------------------------------------------------------------------- */

/* Files of byte-level tokenizers write each byte as a letter that can be seen: itself where it is one, and U+0100,
 * U+0101 … for the others in their order: a space is Ġ. The code of a byte's letter: */
uint32_t tarn__byte_letter(unsigned char byte);

/* Appends the letters of bytes, in UTF-8. False with an error. */
bool tarn__letters_of_bytes(tarn__buffer *letters, const char *bytes, size_t length);

/* The bytes of letters, at most as many as there are bytes of letters; false, which is no error, where a letter stands
 * for none. */
bool tarn__bytes_of_letters(char *bytes, size_t *count, const char *letters, size_t length);

/* The byte that is number `rank` when bytes are sorted by their letters: '!' is 0. Vocabularies begin in this order. */
unsigned char tarn__byte_of_rank(int rank);

#endif
