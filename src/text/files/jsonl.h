/* jsonl.h: a line of JSON as a training sample, of a format that is recognized by its fields. */
#ifndef TARN__JSONL_H
#define TARN__JSONL_H

#include <tarn/text.h>

#include "base/buffer.h"

/* Formats by their fields. */
typedef enum tarn__sample_format {
    TARN__SAMPLE_MESSAGES, /* {"messages": [{"role", "content"} …], "tools"}, as for OpenAI's fine-tuning */
    TARN__SAMPLE_SHAREGPT, /* {"conversations": [{"from", "value"} …]} */
    TARN__SAMPLE_ALPACA,   /* {"instruction", "input", "output"} */
    TARN__SAMPLE_PROMPT,   /* {"prompt", "completion"} */
    TARN__SAMPLE_QUESTION, /* {"question", "answer"} */
    TARN__SAMPLE_TEXT,     /* {"text"} */
    TARN__SAMPLE_FORMATS
} tarn__sample_format;

/* As messages, as a prompt with its completion, or as text; the others are NULL or empty. All zero is empty. Strings
 * are borrowed from `root`. */
typedef struct tarn__jsonl_sample {
    void *root; /* json_t; owned */
    /* JSON text of the conversation's arrays, with a 0 that counts; empty: none. Owned, reused for the next line */
    tarn__buffer messages, tools, documents;
    tarn__sample_format format;
    tarn__buffer joined;             /* the prompt of an Alpaca line with "input"; owned, reused */
    const char *prompt, *completion; /* both or none */
    const char *text;                /* a whole document: all of it counts in the loss */
} tarn__jsonl_sample;

/* Reads a line in place of the last one. False with an error that begins with `where`, the file and the line number. */
bool tarn__jsonl_sample_read(tarn__jsonl_sample *line, const char *where, const char *bytes, size_t length);
void tarn__jsonl_sample_free(tarn__jsonl_sample *line);

#endif
