/* loss_mask.h: loss masks: which ids of a conversation, or of a prompt with its completion, count in the loss.
 *
 * A completion is what a model writes: after the generation prompt, up to and including the token that ends it. Text is
 * encoded as a whole, as in transformers; an id counts if it contains a byte of a completion. */
#ifndef TARN__LOSS_MASK_H
#define TARN__LOSS_MASK_H

#include "text/chat/chat.h"

/* Bytes of a completion in a rendered text. */
typedef struct tarn__span {
    size_t begin, end;
} tarn__span;

/* All zero is ready. */
typedef struct tarn__loss_mask {
    tarn__buffer flags; /* uint8_t per id: 1 counts in the loss */
    tarn__buffer spans; /* tarn__span: ascending and disjoint */
    size_t next;        /* the first span that does not end before the text to come */
    tarn__buffer trial; /* int32_t: scratch */
} tarn__loss_mask;

/* Text that was encoded as one: bytes `begin` to `end` gave the ids from index `first`. */
typedef struct tarn__section {
    const char *text;
    size_t begin, end, first;
    bool with_special;
} tarn__section;

void tarn__loss_mask_clear(tarn__loss_mask *mask);
void tarn__loss_mask_free(tarn__loss_mask *mask);

/* span: adds a completion, before anything is encoded. token: an id was appended for bytes `begin` to `end`. section:
 * a section was encoded. begin: inserts ids before all others, without loss. False with an error. */
bool tarn__loss_mask_span(tarn__loss_mask *mask, size_t begin, size_t end);
bool tarn__loss_mask_token(tarn__loss_mask *mask, size_t begin, size_t end);
bool tarn__loss_mask_section(tarn__loss_mask *mask, const tarn_tokenizer *tokenizer, tarn__encoder *encoder,
                             const tarn__section *section, const tarn__buffer *ids);
bool tarn__loss_mask_begin(tarn__loss_mask *mask, tarn__buffer *ids, const tarn__buffer *before);

/* Encodes documents with their masks, one at a time; buffers and the word cache are reused. All zero but for the
 * tokenizer is ready. One per thread. */
typedef struct tarn__mask_encoder {
    const tarn_tokenizer *tokenizer; /* borrowed */
    tarn__chat chat, tools_chat;     /* the second: for conversations with tools, if that is another template */
    tarn__encoder encoder;
    tarn__rendering rendering;
    tarn__buffer ids; /* int32_t: of the last document */
    tarn__loss_mask mask;
} tarn__mask_encoder;

/* Sets the template for the messages to come: of a name, or the tokenizer's own for NULL. False with an error without a
 * function's name. */
bool tarn__mask_encoder_set_template(tarn__mask_encoder *m, const char *name);
void tarn__mask_encoder_free(tarn__mask_encoder *m);

/* Encodes a document in place of the last one: a conversation by the template; or a prompt and its completion
 * unchanged, and EOS. Roles and contents are not NULL. strftime_now gives a fixed date: training data must not change
 * from day to day. False with an error without a function's name. */
bool tarn__mask_encoder_chat(tarn__mask_encoder *m, const tarn_chat_message *messages, int count);
bool tarn__mask_encoder_json(tarn__mask_encoder *m, const tarn__chat_json *json);
bool tarn__mask_encoder_text(tarn__mask_encoder *m, const char *prompt, const char *completion);

#endif
