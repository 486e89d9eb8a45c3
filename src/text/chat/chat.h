/* chat.h: what a chat template makes of messages, found by reading the template (template_match.c), done by chat.c. */
#ifndef TARN__CHAT_H
#define TARN__CHAT_H

#include "text/tokenizer/tokenizer.h"

typedef enum tarn__chat_kind { TARN__CHATML, TARN__CHAT_LLAMA2, TARN__CHAT_LLAMA3, TARN__CHAT_MISTRAL } tarn__chat_kind;

/* Which message of a user gets the system's text before it. */
typedef enum tarn__chat_system { TARN__SYSTEM_UNSUPPORTED, TARN__SYSTEM_FIRST, TARN__SYSTEM_LAST } tarn__chat_system;

/* Short texts are those of the template, as it writes them. */
typedef struct tarn__chat_template {
    tarn__chat_kind kind;
    bool trims;              /* spaces at the ends of a message are left out (in Mistral's only of answers) */
    bool always_prompts;     /* the beginning of an answer is added whether or not it is asked for */
    bool begins;             /* ChatML: the token that begins a text comes first */
    bool thinks;             /* ChatML: thoughts (<think>) of earlier answers are left out, as Qwen3 has it */
    bool has_default;        /* ChatML: there is a system's text where the messages have none: */
    char system[512];        /* that text */
    bool has_dates;          /* Llama 3.1: a system's text begins with two dates */
    char date[32];           /* of which the second is this; empty: today */
    char open[16];           /* Mistral: before a user's text, … */
    char close[16];          /* … behind it, … */
    char answer[4];          /* … before an answer, … */
    char behind[4];          /* … and behind what ends one */
    tarn__chat_system place; /* Mistral */
} tarn__chat_template;

/* A tag {{ }}, {% %} or {# #} of a template; and how transformers has spaces beside it left out (trim_blocks and
 * lstrip_blocks). */
typedef struct tarn__chat_tag {
    const char *begin, *end;         /* NULL and NULL: none */
    bool takes_before, takes_behind; /* all spaces there: {%- and -%} */
    /* takes the line's end behind it, and spaces before it from a line's beginning on */
    bool is_block;
} tarn__chat_tag;

/* The next tag from a place on. */
tarn__chat_tag tarn__chat_next_tag(const char *at);

/* Whether a template, brought into template_match.c's one form, prints what its kind prints and nothing else
 * (template_check.c). */
bool tarn__chat_template_check(const tarn__chat_template *form, const char *text);

/* What a template is. False with an error, which begins with `function`, where it is none that tarn knows. */
bool tarn__chat_template_match(const char *function, const char *text, tarn__chat_template *form);

#endif
