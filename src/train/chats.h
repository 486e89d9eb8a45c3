/* chats.h: documents to fine-tune on: JSON lines as rows of tokens, of which only answers carry loss.
 *
 * A line is {"messages": [{"role", "content"} …]}, {"prompt", "completion"} or {"text"}. A row holds whole documents beside each other: positions begin
 * at 0 in each, and `starts` says where the document of a token begins, so that attention stays within it. What is behind the last document of a row is a
 * document of its own without loss. Which documents are for validation, and which share a row, depends on the files, the tokenizer and the options alone. */
#ifndef TARN__CHATS_H
#define TARN__CHATS_H

#include <tarn/text.h>

typedef struct tarn__chats tarn__chats;

enum { TARN__CHATS_TRAINING, TARN__CHATS_VALIDATION };

#define TARN__CHATS_UNCOUNTED (-100) /* the target of a token without loss, which tarn_model_loss() ignores */

/* Texts are borrowed for the call; the tokenizer must outlive the chats. */
typedef struct tarn__chats_options {
    const char *function;  /* begins errors; a text that lives as long as the chats */
    const char *path;      /* the JSON lines; "chats:" before it is allowed */
    const char *val_path;  /* JSON lines for validation alone; NULL or "": none */
    double val_share;      /* the share of the first file's documents that is for validation, from 0 to below 1; 0 with val_path */
    const tarn_tokenizer *tokenizer;
    const char *template_name; /* chatml, llama2, llama3 or mistral instead of the tokenizer's own template; NULL or "": its own, where it has one */
    int64_t context;       /* tokens of a row, at least 2 */
    uint64_t seed;         /* of the split and of the order */
} tarn__chats_options;

/* What is there, by split. */
typedef struct tarn__chats_summary {
    int64_t documents[2];
    int64_t tokens[2];  /* of all documents, as they were cut */
    int64_t answers[2]; /* of these, the tokens that are learnt */
    int64_t rows[2];    /* after packing */
    int64_t cut;        /* documents that were longer than the context, in both splits */
    uint64_t hash;      /* of all tokens, what is learnt, and the places in rows: a run goes on with the same */
} tarn__chats_summary;

/* Arrays [rows, context] of the caller's, filled by tarn__chats_batch(). */
typedef struct tarn__chats_rows {
    int32_t *ids, *targets, *positions, *starts;
} tarn__chats_rows;

/* True when data is chats by its name: "chats:FILE", or a name that ends in ".jsonl" and has no kind before it. */
bool tarn__data_is_chats(const char *name);

/* Reads all documents. An error names file and line and what is wrong there. The caller owns the chats. NULL with an error. */
tarn__chats *tarn__chats_open(const tarn__chats_options *options);
void tarn__chats_close(tarn__chats *chats); /* NULL is allowed */

void tarn__chats_counts(const tarn__chats *chats, tarn__chats_summary *summary);

/* The rows of a batch. Training: batches are numbered from 0 without end; every row is there once before any comes again, each time in another order, so
 * that a run goes on by asking for the next number. Validation: in order; rows behind the last are without loss. One thread asks at a time. False with an error. */
bool tarn__chats_batch(tarn__chats *chats, int split, int64_t batch_number, int64_t rows, tarn__chats_rows *out);

#endif
