/* loss_mask.h: which ids of a conversation, or of a prompt with its completion, belong to an answer.
 *
 * An answer is what follows the beginning of one (what tarn_chat_encode() adds for generation), up to and with the
 * token that ends it. Text is encoded as a whole, as transformers does; an id belongs to an answer where it holds a
 * byte of one. */
#ifndef TARN__MARKS_H
#define TARN__MARKS_H

#include "text/chat/chat.h"

/* All zero is ready. */
typedef struct tarn__marks {
    tarn__buffer learnt; /* uint8_t, one for each id */
    tarn__buffer turns;  /* size_t: where in the text that has no ids yet an answer begins or ends */
    tarn__buffer trial;  /* int32_t: scratch */
    bool is_answer;
} tarn__marks;

/* A text from `from` to `length` whose ids are those from `first` on. */
typedef struct tarn__section {
    const char *text;
    size_t from, length, first;
} tarn__section;

void tarn__marks_clear(tarn__marks *marks);
void tarn__marks_free(tarn__marks *marks);

/* An answer begins or ends at a place of the text; a token of its own follows; the text so far has got its ids. False
 * with an error. */
bool tarn__marks_turn(tarn__marks *marks, size_t at);
bool tarn__marks_token(tarn__marks *marks);
bool tarn__marks_begin(tarn__marks *marks, tarn__buffer *ids, const tarn__buffer *before); /* ids before all others */
bool tarn__marks_section(tarn__marks *marks, const tarn_tokenizer *tokenizer, tarn__coder *coder,
                         const tarn__section *section, const tarn__buffer *ids);

/* Makes ids with marks, of one document after the other: what it has remembers words. All zero but for the tokenizer is
 * ready. */
typedef struct tarn__marker {
    const tarn_tokenizer *tokenizer; /* borrowed */
    tarn__chat_form form;
    bool has_form;
    tarn__coder coder;
    tarn__buffer text;
    tarn__buffer ids; /* int32_t: the last document's */
    tarn__marks marks;
} tarn__marker;

/* Takes a template for the messages to come. False with an error that begins with `function`. */
bool tarn__marker_take(tarn__marker *marker, const char *function, const char *chat);
void tarn__marker_free(tarn__marker *marker);

/* Puts a document's ids and marks in place of the last one's: messages by the template; or a prompt and what follows it
 * as they stand, and the token that ends a text. Messages have roles and contents. False with an error that names no
 * function. */
bool tarn__marker_chat(tarn__marker *marker, const tarn_chat_message *messages, int count);
bool tarn__marker_text(tarn__marker *marker, const char *prompt, const char *answer);

/* The template of a name, as Jinja: "chatml", "llama2", "llama3", "mistral". It lives as long as the program. NULL with
 * an error where there is none, or the tokenizer lacks its tokens. */
const char *tarn__chat_named(const char *function, const tarn_tokenizer *tokenizer, const char *name);

#endif
