/* reasoning.h: the thinking of an answer, between <think> and </think>, apart from the text after it.
 *
 * An answer thinks if it begins with <think>, or if the prompt ends with it, as the templates of DeepSeek-R1 and Qwen3
 * write it. Markers may come in any parts; no part of one is ever passed on. White space around the markers belongs to
 * them. */
#ifndef TARN__REASONING_H
#define TARN__REASONING_H

#include <stdbool.h>
#include <stddef.h>

typedef enum tarn__reasoning_state {
    TARN__REASONING_NONE = 0, /* all that comes is content */
    TARN__REASONING_START,    /* nothing but white space and the beginning of a marker so far */
    TARN__REASONING_INSIDE,
    TARN__REASONING_AFTER /* white space after the marker */
} tarn__reasoning_state;

/* All zero: no thinking. */
typedef struct tarn__reasoning {
    tarn__reasoning_state state;
    char *text; /* all until the content begins */
    size_t length, capacity;
    size_t begin, end; /* of the thinking in it, so far */
    size_t at;         /* end of what was passed on or dropped */
    bool has_text;     /* the thinking has begun with something else than white space */
} tarn__reasoning;

/* The final parts of an answer that some text brings, borrowed until the next push. */
typedef struct tarn__reasoning_parts {
    const char *reasoning, *content;
    size_t reasoning_length, content_length;
    bool is_reasoning; /* the text belongs to the thinking, in part at least */
} tarn__reasoning_parts;

/* Takes the next text of an answer; `is_last`: none follows. False without memory. */
bool tarn__reasoning_push(tarn__reasoning *reasoning, const char *text, size_t length, bool is_last,
                          tarn__reasoning_parts *parts);

/* True if a prompt that ends with this text has begun to think. */
bool tarn__reasoning_is_open(const char *text, size_t length);

void tarn__reasoning_close(tarn__reasoning *reasoning);

#endif
