/* chats_parts.h: what chats are made of: documents one behind the other in memory, and for each split the documents of
 * each row. */
#ifndef TARN__CHATS_PARTS_H
#define TARN__CHATS_PARTS_H

#include "base/buffer.h"
#include "train/data/chat_dataset.h"

typedef struct tarn__chat_document {
    int64_t begin;             /* of its ids */
    int64_t length;            /* from 2 to the context */
    int64_t completion_tokens; /* ids that are learnt: never the first, which nothing foretells */
} tarn__chat_document;

typedef struct tarn__chat_split {
    int64_t count;
    int64_t *documents; /* [count]: their numbers, row by row */
    int64_t *row_first; /* [count + 1]: where in `documents` a row begins; behind the last row their number */
    int64_t rows;
} tarn__chat_split;

struct tarn_chat_dataset {
    const char *function;
    const tarn_tokenizer *tokenizer;
    int64_t context;
    uint64_t seed;
    tarn__buffer ids;        /* int32_t */
    tarn__buffer learnt;     /* uint8_t, one for each id */
    tarn__buffer documents;  /* tarn__chat_document; those of the file for validation behind the others */
    int64_t first_of_second; /* the number of the first of these */
    int64_t truncated;
    tarn__chat_split split[2];
    int64_t *order; /* [rows of training]: in epoch `epoch`; -1: none yet */
    int64_t epoch;
};

static inline const tarn__chat_document *tarn__chat_document_at(const tarn__chat_dataset *chats, int64_t number)
{
    return (const tarn__chat_document *)(const void *)chats->documents.data + number;
}

/* Adds the documents of a file. `chat` is the template, NULL: none. False with an error that names file and line. */
bool tarn__chat_read(tarn__chat_dataset *chats, const char *path, const char *chat);

/* Deals the documents out to the splits, and packs those of each into rows. False with an error. */
bool tarn__chat_pack(tarn__chat_dataset *chats, double val_fraction);

#endif
