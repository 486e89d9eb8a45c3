/* chat.h: chat templates: recognized by reading the template (template_match.c, template_check.c), applied by chat.c.
 *
 * Templates are Jinja programs. tarn does not run them: it recognizes the published ones of four families and writes
 * what they would write. */
#ifndef TARN__CHAT_H
#define TARN__CHAT_H

#include "text/tokenizer/tokenizer.h"

typedef enum tarn__chat_kind { TARN__CHATML, TARN__CHAT_LLAMA2, TARN__CHAT_LLAMA3, TARN__CHAT_MISTRAL } tarn__chat_kind;

/* Mistral: the user message that the system message is written into. */
typedef enum tarn__chat_system { TARN__SYSTEM_UNSUPPORTED, TARN__SYSTEM_FIRST, TARN__SYSTEM_LAST } tarn__chat_system;

/* A recognized template. Strings are copied from it, with escapes resolved. */
typedef struct tarn__chat_template {
    tarn__chat_kind kind;
    bool trims;                        /* strip whitespace around a message (Mistral: completions only) */
    bool always_prompts;               /* the generation prompt is added even if not asked for */
    bool adds_bos;                     /* ChatML: BOS comes first */
    bool thinks;                       /* ChatML: drop <think> blocks of earlier completions, as Qwen3 does */
    bool has_default;                  /* ChatML: default system message, if the messages have none: */
    char system[512];                  /* its text */
    bool has_dates;                    /* Llama 3.1: the system message begins with two dates */
    char date[32];                     /* the second one; empty: today's */
    char before_user[16];              /* Mistral: before a user message */
    char after_user[16];               /* after it */
    char before_completion[4];         /* before a completion */
    char after_completion[4];          /* after its EOS */
    tarn__chat_system system_position; /* Mistral */
} tarn__chat_template;

/* A tag {{ }}, {% %} or {# #} of a template, and the whitespace around it that Jinja removes with transformers'
 * settings (trim_blocks and lstrip_blocks). */
typedef struct tarn__chat_tag {
    const char *begin, *end;        /* NULL: no tag */
    bool trims_before, trims_after; /* all whitespace: {%- and -%} */
    /* removes a newline after it, and spaces between a line's beginning and it */
    bool is_block;
} tarn__chat_tag;

/* The next tag at or after `at`; borrowed from the template. */
tarn__chat_tag tarn__chat_next_tag(const char *at);

/* True if a normalized template (template_match.c) prints what its family prints and nothing else
 * (template_check.c). */
bool tarn__chat_template_check(const tarn__chat_template *chat_template, const char *text);

/* Recognizes a template. False with an error that begins with `function` if it is not one of the four families. */
bool tarn__chat_template_match(const char *function, const char *text, tarn__chat_template *chat_template);

#endif
