/* corpus.h: text to train a language model on: tokens by their name ("text:FILE", "shards:FOLDER"), and windows of them
 * as datasets.
 *
 * A corpus is read-only once open; datasets borrow from it, and prefetch workers read it concurrently. */
#ifndef TARN__CORPUS_H
#define TARN__CORPUS_H

#include <tarn/data.h>
#include <tarn/text.h>

#include "train/data/chat_dataset.h"

/* A contiguous sequence of tokens, in memory or mapped. Borrowed. */
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

/* True when the name is that of text, for a language model. */
bool tarn__data_is_corpus(const char *name);

/* Opens text for training. The last tenth of a text file is for validation; shards have a split for it. `tokenizer`:
 * "characters", "bytes", or a path; "" means characters for a text file and the shards' own for shards, which allow no
 * other. False with an error; free it then too. */
bool tarn__corpus_open(const char *function, const char *name, const char *tokenizer, tarn__corpus *corpus);

/* Opens text for evaluation, all of it as `validation`; of shards the validation split. Takes ownership of the
 * tokenizer, after a failure too. */
bool tarn__corpus_open_for_evaluation(const char *function, const char *name, tarn_tokenizer *tokenizer,
                                      tarn__corpus *corpus);

void tarn__corpus_free(tarn__corpus *corpus); /* all zero is allowed */

/* Windows as samples: "tokens" and "targets", i32 [context]; targets are the tokens one position later. They borrow the
 * span, which must outlive dataset and loaders. The caller owns the dataset.
 *
 * In order: all tokens once; the last window is padded with ignored targets (-100). With `max_windows` above 0 and
 * more windows than that, `max_windows` of them, evenly spaced. At random: `count` samples, whose offsets a loader
 * draws anew in every epoch, with tarn__windows_draw() as its augment function and tarn__windows_ctx() as its context.
 */
tarn_dataset *tarn__windows_in_order(const char *function, const tarn__token_span *span, int64_t context,
                                     int64_t max_windows);
tarn_dataset *tarn__windows_at_random(const char *function, const tarn__token_span *span, int64_t context,
                                      int64_t count);
bool tarn__windows_draw(int64_t index, tarn_random_state *random, void *const *memory, void *ctx);
void *tarn__windows_ctx(const tarn_dataset *dataset);

/* Packed rows of chats as samples: "tokens", "targets", "positions" and "starts", i32 [context]. `count` samples: of
 * training all rows or more, which then continue with the next epoch; of validation some, evenly spaced. Borrows the
 * chats, which must outlive dataset and loaders. The caller owns the dataset. NULL with an error. */
tarn_dataset *tarn__chat_samples(const char *function, tarn__chat_dataset *chats, int split, int64_t context,
                                 int64_t count);

#endif
