/* merge.h: symbols that stand beside each other become tokens, the best pair first. Byte-level BPE uses it for long
 * words, SentencePiece's BPE for all. */
#ifndef TARN__MERGE_H
#define TARN__MERGE_H

#include "text/tokenizer/buffer.h"

/* A part of a word: a token, or a text that is none. */
typedef struct tarn__symbol {
    int32_t id;            /* -1: no token has this text */
    int32_t before, after; /* -1: none */
    int32_t begin, length; /* in the word's bytes; length 0: became part of the one before it */
    bool is_frozen;        /* merges with nothing */
} tarn__symbol;

/* Whether two neighbours make a token, its rank (the lowest merges first) and its id. */
typedef bool (*tarn__pair_fn)(const void *ctx, const tarn__symbol *left, const tarn__symbol *right, int32_t *rank,
                              int32_t *made);

/* Merges symbols, 0 to count - 1 in a list, until no pair makes a token; of pairs with the same rank the leftmost is
 * first. In n log n, so that a megabyte without a space is no trouble. `heap` is scratch. False with an error. */
bool tarn__merge_symbols(tarn__pair_fn find, const void *ctx, tarn__symbol *symbols, int32_t count, tarn__buffer *heap);
void tarn__merge_heap_free(tarn__buffer *heap);

#endif
