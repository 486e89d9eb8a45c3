/* loss_mask.h: loss masks: which ids of a conversation, or of a prompt with its completion, count in the loss.
 *
 * A completion is the text after the generation prompt (what tarn_chat_encode() adds for generation), up to and
 * including the token that ends it. Text is encoded as a whole, as in transformers; an id counts if it contains a byte
 * of a completion. */
#ifndef TARN__LOSS_MASK_H
#define TARN__LOSS_MASK_H

#include "text/chat/chat.h"

/* All zero is ready. */
typedef struct tarn__loss_mask {
    tarn__buffer flags;   /* uint8_t per id: 1 counts in the loss */
    tarn__buffer toggles; /* size_t: offsets in the pending text where a completion begins or ends */
    tarn__buffer trial;   /* int32_t: scratch */
    bool is_completion;   /* the current position is inside a completion */
} tarn__loss_mask;

/* A text, of which bytes `from` to `length` gave the ids from index `first`. */
typedef struct tarn__section {
    const char *text;
    size_t from, length, first;
} tarn__section;

void tarn__loss_mask_clear(tarn__loss_mask *mask);
void tarn__loss_mask_free(tarn__loss_mask *mask);

/* toggle: a completion begins or ends at an offset of the pending text. add_token: a token was appended. begin: ids
 * were inserted before all others. section: the pending text was encoded. False with an error. */
bool tarn__loss_mask_toggle(tarn__loss_mask *mask, size_t at);
bool tarn__loss_mask_add_token(tarn__loss_mask *mask);
bool tarn__loss_mask_begin(tarn__loss_mask *mask, tarn__buffer *ids,
                           const tarn__buffer *before); /* also inserts the ids */
bool tarn__loss_mask_section(tarn__loss_mask *mask, const tarn_tokenizer *tokenizer, tarn__encoder *encoder,
                             const tarn__section *section, const tarn__buffer *ids);

/* Encodes documents with their masks, one at a time; buffers and the word cache are reused. All zero but for the
 * tokenizer is ready. One per thread. */
typedef struct tarn__mask_encoder {
    const tarn_tokenizer *tokenizer; /* borrowed */
    tarn__chat_template template;
    bool has_template;
    tarn__encoder encoder;
    tarn__buffer text;
    tarn__buffer ids; /* int32_t: of the last document */
    tarn__loss_mask mask;
} tarn__mask_encoder;

/* Sets the template for the messages to come. False with an error that begins with `function`. */
bool tarn__mask_encoder_set_template(tarn__mask_encoder *m, const char *function, const char *chat);
void tarn__mask_encoder_free(tarn__mask_encoder *m);

/* Encodes a document in place of the last one: messages by the template; or a prompt and its completion unchanged, and
 * EOS. Roles and contents are not NULL. False with an error without a function's name. */
bool tarn__mask_encoder_chat(tarn__mask_encoder *m, const tarn_chat_message *messages, int count);
bool tarn__mask_encoder_text(tarn__mask_encoder *m, const char *prompt, const char *completion);

/* The Jinja template of a name: "chatml", "llama2", "llama3", "mistral". Static. NULL with an error for another name,
 * or if the tokenizer lacks its tokens. */
const char *tarn__chat_template_named(const char *function, const tarn_tokenizer *tokenizer, const char *name);

#endif
