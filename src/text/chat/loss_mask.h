/* loss_mask.h: which ids of a conversation, or of a prompt with its completion, belong to an answer.
 *
 * An answer is what follows the beginning of one (what tarn_chat_encode() adds for generation), up to and with the
 * token that ends it. Text is encoded as a whole, as transformers does; an id belongs to an answer where it holds a
 * byte of one. */
#ifndef TARN__LOSS_MASK_H
#define TARN__LOSS_MASK_H

#include "text/chat/chat.h"

/* All zero is ready. */
typedef struct tarn__phase_timer {
    tarn__buffer learnt; /* uint8_t, one for each id */
    tarn__buffer turns;  /* size_t: where in the text that has no ids yet an answer begins or ends */
    tarn__buffer trial;  /* int32_t: scratch */
    bool is_answer;
} tarn__phase_timer;

/* A text from `from` to `length` whose ids are those from `first` on. */
typedef struct tarn__section {
    const char *text;
    size_t from, length, first;
} tarn__section;

void tarn__loss_mask_clear(tarn__phase_timer *marks);
void tarn__loss_mask_free(tarn__phase_timer *marks);

/* An answer begins or ends at a place of the text; a token of its own follows; the text so far has got its ids. False
 * with an error. */
bool tarn__loss_mask_toggle(tarn__phase_timer *marks, size_t at);
bool tarn__loss_mask_add_token(tarn__phase_timer *marks);
bool tarn__loss_mask_begin(tarn__phase_timer *marks, tarn__buffer *ids,
                           const tarn__buffer *before); /* ids before all others */
bool tarn__loss_mask_section(tarn__phase_timer *marks, const tarn_tokenizer *tokenizer, tarn__encoder *coder,
                             const tarn__section *section, const tarn__buffer *ids);

/* Makes ids with marks, of one document after the other: what it has remembers words. All zero but for the tokenizer is
 * ready. */
typedef struct tarn__mask_encoder {
    const tarn_tokenizer *tokenizer; /* borrowed */
    tarn__chat_template form;
    bool has_form;
    tarn__encoder coder;
    tarn__buffer text;
    tarn__buffer ids; /* int32_t: the last document's */
    tarn__phase_timer marks;
} tarn__mask_encoder;

/* Takes a template for the messages to come. False with an error that begins with `function`. */
bool tarn__mask_encoder_set_template(tarn__mask_encoder *marker, const char *function, const char *chat);
void tarn__mask_encoder_free(tarn__mask_encoder *marker);

/* Puts a document's ids and marks in place of the last one's: messages by the template; or a prompt and what follows it
 * as they stand, and the token that ends a text. Messages have roles and contents. False with an error that names no
 * function. */
bool tarn__mask_encoder_chat(tarn__mask_encoder *marker, const tarn_chat_message *messages, int count);
bool tarn__mask_encoder_text(tarn__mask_encoder *marker, const char *prompt, const char *answer);

/* The template of a name, as Jinja: "chatml", "llama2", "llama3", "mistral". It lives as long as the program. NULL with
 * an error where there is none, or the tokenizer lacks its tokens. */
const char *tarn__chat_template_named(const char *function, const tarn_tokenizer *tokenizer, const char *name);

#endif
