/* pieces.h: a vocabulary: the bytes of every id, and the id of every text. Also the letters by which byte-level files write bytes. */
#ifndef TARN__PIECES_H
#define TARN__PIECES_H

#include "text/buffer.h"

/* Ids in a file may leave some numbers out, but not many: memory follows the largest. */
#define TARN__MOST_HOLES 65536
#define TARN__LONGEST_PIECE ((size_t)1 << 20)

typedef struct tarn__piece {
    size_t begin; /* in the bytes of all */
    uint32_t length;
    uint8_t used;    /* 0: no token has this id */
    uint8_t literal; /* the file's text is not made of letters for bytes: it stands for itself */
    uint8_t outside; /* an added token that the model's own vocabulary lacks */
} tarn__piece;

typedef struct tarn__pieces {
    tarn__buffer bytes; /* of all pieces, a 0 after each */
    tarn__piece *piece; /* by id */
    int32_t count;      /* the largest id and one more */
    size_t room;        /* of `piece` */
    int32_t *slot;      /* ids and one more by the hash of their bytes; 0: free */
    size_t slots;       /* a power of two, at least twice `used` */
    size_t used;
} tarn__pieces;

/* Adds a piece under an id that is free. Of two with the same bytes the first is found, but a literal one last. False with an error of no
 * memory. */
bool tarn__pieces_add(tarn__pieces *pieces, int32_t id, const char *bytes, size_t length, bool literal);

/* The id of a text, -1: none. */
int32_t tarn__pieces_find(const tarn__pieces *pieces, const char *bytes, size_t length);

/* The same for a text as a file writes it: the letters of its bytes, or a literal text. And whether an id's piece is written so. */
int32_t tarn__pieces_find_written(const tarn__pieces *pieces, const char *text, size_t length);
bool tarn__pieces_is_written(const tarn__pieces *pieces, int32_t id, const char *text, size_t length);

/* True when the id has a piece. */
bool tarn__pieces_has(const tarn__pieces *pieces, int64_t id);
const char *tarn__pieces_bytes(const tarn__pieces *pieces, int32_t id, size_t *length);
void tarn__pieces_free(tarn__pieces *pieces);

/* ---- letters for bytes ----------------------------------------------------------------------------------------------------- */

/* Files of byte-level tokenizers write each byte as a letter that can be seen: itself where it is one, and U+0100, U+0101 … for the others
 * in their order: a space is Ġ. The code of a byte's letter: */
uint32_t tarn__byte_letter(unsigned char byte);

/* Appends the letters of bytes, in UTF-8. False with an error. */
bool tarn__letters_of_bytes(tarn__buffer *letters, const char *bytes, size_t length);

/* The bytes of letters, at most as many as there are bytes of letters; false, which is no error, where a letter stands for none. */
bool tarn__bytes_of_letters(char *bytes, size_t *count, const char *letters, size_t length);

/* The byte that is number `rank` when bytes are sorted by their letters: '!' is 0. Vocabularies begin in this order. */
unsigned char tarn__byte_of_rank(int rank);

#endif
