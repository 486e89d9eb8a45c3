/* jsonl.h: a line of JSON as a training sample: {"messages": [{"role", "content"} …], "tools"}, as for OpenAI's
 * fine-tuning, {"prompt", "completion"} or {"text"}. */
#ifndef TARN__JSONL_H
#define TARN__JSONL_H

#include <tarn/text.h>

#include "base/buffer.h"

/* One of the three forms; the others are NULL or empty. All zero is empty. Strings are borrowed from `root`. */
typedef struct tarn__jsonl_sample {
    void *root; /* json_t; owned */
    /* JSON text of the conversation's arrays, with a 0 that counts; empty: none. Owned, reused for the next line */
    tarn__buffer messages, tools, documents;
    const char *prompt, *completion; /* both or none */
    const char *text;                /* a whole document: all of it counts in the loss */
} tarn__jsonl_sample;

/* Reads a line in place of the last one. False with an error that begins with `where`, the file and the line number. */
bool tarn__jsonl_sample_read(tarn__jsonl_sample *line, const char *where, const char *bytes, size_t length);
void tarn__jsonl_sample_free(tarn__jsonl_sample *line);

#endif
