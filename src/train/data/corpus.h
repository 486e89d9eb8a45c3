/* corpus.h: text to train a language model on: tokens by their name ("text:FILE", "shards:FOLDER"), and windows of them
 * as datasets. */
#ifndef TARN__CORPUS_H
#define TARN__CORPUS_H

#include <tarn/data.h>
#include <tarn/text.h>

#include "train/data/chat_dataset.h"

/* Tokens in a row: in memory, or in files that are mapped. */
typedef struct tarn__token_span {
    const int32_t *ids;        /* NULL: mapped */
    const tarn_tokens *mapped; /* NULL: in memory */
    int64_t count;
} tarn__token_span;

typedef struct tarn__corpus {
    tarn_tokenizer *tokenizer; /* owned */
    int32_t *ids;              /* of a text; owned */
    tarn_tokens *mapped[2];    /* of shards; owned */
    tarn__token_span training, validation;
    uint64_t hash; /* the same for the same tokens: a run is not resumed with others */
} tarn__corpus;

/* True when data is text by its name, so that a language model learns from it. */
bool tarn__data_is_text(const char *name);

/* Opens text to train on. Of a text file the last tenth is for validation; shards have a part for it. `tokenizer` says
 * how text becomes tokens: "characters", "bytes", or where a tokenizer lies; "" is characters for a text file, and the
 * shards' own for shards, which take no other. False with an error; free it then too. */
bool tarn__corpus_open(const char *function, const char *name, const char *tokenizer, tarn__corpus *corpus);

/* Opens validation text, all of it as `validation`; of shards the part for validation. Takes the tokenizer, on failure
 * too. */
bool tarn__corpus_open_for_evaluation(const char *function, const char *name, tarn_tokenizer *tokenizer,
                                      tarn__corpus *corpus);

void tarn__corpus_free(tarn__corpus *corpus); /* all zero is allowed */

/* Windows as samples: "tokens" and "targets", i32 [context], where the targets are the tokens that follow. They borrow
 * the stretch's tokens, which must outlive dataset and loaders. The caller owns the dataset.
 *
 * In order: all tokens once, the last window filled up with targets that do not count (-100); where `most` is above 0
 * and there are more windows than that, so many of them, spread evenly. At random: `count` samples, whose places a
 * loader draws with tarn__windows_draw() as its augment function and tarn__windows_ctx() for it, anew in every epoch.
 */
tarn_dataset *tarn__windows_in_order(const char *function, const tarn__token_span *stretch, int64_t context,
                                     int64_t most);
tarn_dataset *tarn__windows_at_random(const char *function, const tarn__token_span *stretch, int64_t context,
                                      int64_t count);
bool tarn__windows_draw(int64_t index, tarn_random_state *random, void *const *memory, void *ctx);
void *tarn__windows_ctx(const tarn_dataset *dataset);

/* Rows of chats as samples: "tokens", "targets", "positions" and "starts", i32 [context]. `count` samples: of training
 * as many rows as there are or more, which then begin anew; of validation some of them, spread evenly. Borrows the
 * chats, which must outlive dataset and loaders. The caller owns the dataset. NULL with an error. */
tarn_dataset *tarn__chat_samples(const char *function, tarn__chat_dataset *chats, int split, int64_t context,
                                 int64_t count);

#endif
