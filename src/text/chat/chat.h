/* chat.h: conversations by the model's chat template: rendered by the interpreter of text/jinja, encoded with the
 * template's own tokens recognized and those in messages left as text.
 *
 * A rendering knows the origin of every byte. chat.c makes it, chat_encode.c encodes it, completions.c finds what the
 * assistant wrote in it. */
#ifndef TARN__CHAT_H
#define TARN__CHAT_H

#include "text/jinja/jinja.h"
#include "text/tokenizer/tokenizer.h"

/* A rendered conversation. All zero is empty. */
typedef struct tarn__rendering {
    tarn__buffer text;       /* bytes */
    tarn__jinja_masks masks; /* of the same length */
} tarn__rendering;

void tarn__rendering_clear(tarn__rendering *rendering);
void tarn__rendering_free(tarn__rendering *rendering);

/* A compiled template. All zero is none. */
typedef struct tarn__chat {
    const tarn_tokenizer *tokenizer; /* borrowed */
    tarn__jinja_program *program;
    char name[80]; /* for errors: "chat template 'chatml'" */
    /* what completions.c learns from a short conversation: */
    bool is_probed;
    tarn__buffer end;    /* bytes: ends an answer that others follow: a token, else text; may be empty */
    tarn__buffer prompt; /* bytes: the generation prompt; may be empty */
    int32_t stop;        /* token that ends the last answer; -1: none */
    bool is_call_probed, parses_arguments; /* loss_mask.c: arguments of tool calls become objects */
    bool has_warned;                       /* of a message that is not printed */
    /* scratch */
    tarn__rendering prefix, answer;
} tarn__chat;

/* Compiles a template; `name` as of tarn_chat_name(). Borrows the tokenizer. False with an error without a function's
 * name. */
bool tarn__chat_open(tarn__chat *chat, const tarn_tokenizer *tokenizer, const char *name, const char *source);
void tarn__chat_close(tarn__chat *chat);

/* A conversation in JSON, as transformers takes it. Texts are borrowed; NULL or empty ones but `messages` are none. */
typedef struct tarn__chat_json {
    const char *messages, *tools, *documents; /* arrays */
    const char *variables;                    /* an object: further variables of the template */
    size_t length;                            /* of messages; the others are terminated */
    bool add_generation_prompt;
} tarn__chat_json;

/* The variables of a rendering: the conversation and the tokenizer's tokens. Belongs to the caller. NULL with an error
 * without a function's name. */
tarn__jinja_context *tarn__chat_context(const tarn__chat *chat, const tarn_chat_message *messages, int count,
                                        bool add_generation_prompt);
tarn__jinja_context *tarn__chat_context_json(const tarn__chat *chat, const tarn__chat_json *json);

/* Renders in place of what `rendering` has. False with an error without a function's name. */
bool tarn__chat_render(const tarn__chat *chat, const tarn__jinja_context *context, tarn__rendering *rendering);

struct tarn__loss_mask;

/* Appends the ids of a rendering. Tokens of the template's own bytes are recognized; special tokens elsewhere are text.
 * `mask` may be NULL; its spans become flags. False with an error. */
bool tarn__chat_encode(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const tarn__rendering *rendering,
                       struct tarn__loss_mask *mask, tarn__buffer *ids);

/* The next special token of the template's own bytes in [from, end); *at is its offset. NULL: none. Borrowed. */
const tarn__added_token *tarn__chat_next_special(const tarn_tokenizer *tokenizer, const tarn__rendering *rendering,
                                                 size_t from, size_t end, size_t *at);

/* Adds the spans of all answers of a rendering without a generation prompt to the mask: bytes of generation blocks if
 * the template has them; else each answer from the generation prompt to the token that ends it. The context is
 * unchanged in the end. False with an error, also for an answer that is not found. */
bool tarn__chat_completions(tarn__chat *chat, tarn__jinja_context *context, const tarn__rendering *rendering,
                            struct tarn__loss_mask *mask);

/* Learns how the template ends an answer and begins one. False with an error. */
bool tarn__chat_probe(tarn__chat *chat);

/* The date of renderings to train on: 26 July 2024, which Llama's templates have by default. */
extern const struct tm tarn__chat_training_day;

/* The tokenizer's template, that for tools if there is one; NULL: none. Borrowed. */
const char *tarn__chat_template_of(const tarn_tokenizer *tokenizer, bool has_tools);

/* The Jinja template of a name: "chatml", "llama2", "llama3", "mistral". Static. NULL with an error for another name,
 * or if the tokenizer lacks its tokens. */
const char *tarn__chat_template_named(const char *function, const tarn_tokenizer *tokenizer, const char *name);

/* The name of such a template's text; "model" for any other. Static. */
const char *tarn__chat_template_name(const char *source);

#endif
