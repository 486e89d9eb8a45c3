/* chat_dataset.h: chat datasets for fine-tuning, as in <tarn/train.h>, for the trainer: the same functions with errors
 * in the caller's name.
 *
 * Documents are tokenized once and kept in memory as ids with a loss mask; each split is packed into rows of `context`
 * tokens, whole documents per row. A row is a function of its number and the seed, so that a run resumes by number. */
#ifndef TARN__CHAT_DATASET_H
#define TARN__CHAT_DATASET_H

#include <tarn/train.h>

#include "base/buffer.h"

typedef struct tarn_chat_dataset tarn__chat_dataset;

enum { TARN__CHAT_TRAINING = TARN_CHAT_DATASET_TRAINING, TARN__CHAT_VALIDATION = TARN_CHAT_DATASET_VALIDATION };

#define TARN__IGNORE_INDEX (-100) /* target of a token without loss; tarn_model_loss() ignores it, as PyTorch does */

/* Strings are borrowed for the call; the tokenizer must outlive the dataset. */
typedef struct tarn__chat_dataset_options {
    const char *function; /* prefix of errors; static storage */
    const char *path;     /* JSON lines; the prefix "chats:" is allowed */
    const char *val_path; /* JSON lines for validation; NULL or "": none */
    /* fraction of the first file's documents for validation, in [0, 1); 0 with val_path */
    double val_fraction;
    const tarn_tokenizer *tokenizer;
    const char *template_name; /* chatml, llama2, llama3 or mistral instead of the tokenizer's own; NULL or "": its own,
                                  if any */
    int64_t context;           /* tokens of a row, at least 2 */
    uint64_t seed;             /* of the split and of the order */
} tarn__chat_dataset_options;

typedef tarn_chat_dataset_counts tarn__chat_dataset_summary;
typedef tarn_chat_dataset_rows tarn__chat_dataset_rows;

/* True for the name of chat data: "chats:FILE", or a name that ends in ".jsonl" or ".json" and has no other prefix. */
bool tarn__data_is_chats(const char *name);

/* As tarn_chat_dataset_open(), tarn_chat_dataset_counts_of(), tarn_chat_dataset_batch() and tarn_chat_dataset_close().
 */
tarn__chat_dataset *tarn__chat_dataset_open(const tarn__chat_dataset_options *options);
void tarn__chat_dataset_counts(const tarn__chat_dataset *chats, tarn__chat_dataset_summary *summary);
bool tarn__chat_dataset_batch(tarn__chat_dataset *chats, int split, int64_t batch_number, int64_t rows,
                              tarn__chat_dataset_rows *out);
void tarn__chat_dataset_close(tarn__chat_dataset *chats);

/* ---- inside (chat_dataset.c, chat_read.c, chat_pack.c) ------------------------------------------------------------
 */

typedef struct tarn__chat_document {
    int64_t begin;             /* index of its first id */
    int64_t length;            /* from 2 to the context */
    int64_t completion_tokens; /* ids with loss: never the first, which is not predicted */
} tarn__chat_document;

/* Rows of a split, as packed by chat_pack.c. Arrays are owned. */
typedef struct tarn__chat_split {
    int64_t count;
    int64_t *documents; /* [count]: document numbers, row by row */
    int64_t *row_first; /* [count + 1]: index in `documents` of a row's first document; the end after the last row */
    int64_t rows;
} tarn__chat_split;

struct tarn_chat_dataset {
    const char *function;
    const tarn_tokenizer *tokenizer;
    int64_t context;
    uint64_t seed;
    tarn__buffer ids;           /* int32_t */
    tarn__buffer loss_mask;     /* loss mask: uint8_t per id, 1: counts in the loss */
    tarn__buffer documents;     /* tarn__chat_document; those of the validation file last */
    int64_t first_val_document; /* number of the first document of the validation file */
    int64_t truncated;
    char formats[256]; /* what the files hold: "ShareGPT, 1,204 conversations" */
    tarn__chat_split split[2];
    int64_t *order; /* [rows of training]: in epoch `epoch`; -1: none yet */
    int64_t epoch;
};

static inline const tarn__chat_document *tarn__chat_document_at(const tarn__chat_dataset *chats, int64_t number)
{
    return (const tarn__chat_document *)(const void *)chats->documents.data + number;
}

/* Adds the documents of a file (chat_read.c). template_name: of one of tarn's own templates; NULL: the tokenizer's, if
 * any. False with an error that names file and line. */
bool tarn__chat_read(tarn__chat_dataset *chats, const char *path, const char *template_name);

/* Splits the documents and packs each split into rows (chat_pack.c). False with an error. */
bool tarn__chat_pack(tarn__chat_dataset *chats, double val_fraction);

#endif
