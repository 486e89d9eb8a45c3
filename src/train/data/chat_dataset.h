/* chat_dataset.h: documents to fine-tune on, as <tarn/train.h> has them, for the trainer: the same under the names of
 * functions that ask. */
#ifndef TARN__CHATS_H
#define TARN__CHATS_H

#include <tarn/train.h>

typedef struct tarn_chat_dataset tarn__chat_dataset;

enum { TARN__CHAT_TRAINING = TARN_CHAT_DATASET_TRAINING, TARN__CHAT_VALIDATION = TARN_CHAT_DATASET_VALIDATION };

#define TARN__IGNORE_INDEX (-100) /* the target of a token without loss, which tarn_model_loss() ignores */

/* Texts are borrowed for the call; the tokenizer must outlive the chats. */
typedef struct tarn__chat_dataset_options {
    const char *function; /* begins errors; a text that lives as long as the chats */
    const char *path;     /* the JSON lines; "chats:" before it is allowed */
    const char *val_path; /* JSON lines for validation alone; NULL or "": none */
    /* the share of the first file's documents that is for validation, from 0 to below 1; 0 with val_path */
    double val_fraction;
    const tarn_tokenizer *tokenizer;
    const char *template_name; /* chatml, llama2, llama3 or mistral instead of the tokenizer's own; NULL or "": its own,
                                  if any */
    int64_t context;           /* tokens of a row, at least 2 */
    uint64_t seed;             /* of the split and of the order */
} tarn__chat_dataset_options;

typedef tarn_chat_dataset_counts tarn__chat_dataset_summary;
typedef tarn_chat_dataset_rows tarn__chat_dataset_rows;

/* True when data is chats by its name: "chats:FILE", or a name that ends in ".jsonl" and has no kind before it. */
bool tarn__data_is_chats(const char *name);

/* As tarn_chat_dataset_open(), tarn_chat_dataset_counts_of(), tarn_chat_dataset_batch() and tarn_chat_dataset_close().
 */
tarn__chat_dataset *tarn__chat_dataset_open(const tarn__chat_dataset_options *options);
void tarn__chat_dataset_counts(const tarn__chat_dataset *chats, tarn__chat_dataset_summary *summary);
bool tarn__chat_dataset_batch(tarn__chat_dataset *chats, int split, int64_t batch_number, int64_t rows,
                              tarn__chat_dataset_rows *out);
void tarn__chat_dataset_close(tarn__chat_dataset *chats);

#endif
