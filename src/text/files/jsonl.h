/* jsonl.h: a line of JSON to learn from: {"messages": [{"role", "content"} …]}, {"prompt", "completion"} or {"text"}.
 */
#ifndef TARN__JSONL_H
#define TARN__JSONL_H

#include <tarn/text.h>

/* All zero is empty. One of three is there; texts live as long as the line. */
typedef struct tarn__jsonl_sample {
    void *root; /* the JSON; owned */
    tarn_chat_message *messages;
    int count, room;
    const char *prompt, *completion;
    const char *text;
} tarn__jsonl_sample;

/* Reads a line in place of the last one. False with an error that begins with `where`, the file and the line, and says
 * what is wrong. */
bool tarn__jsonl_sample_read(tarn__jsonl_sample *line, const char *where, const char *bytes, size_t length);
void tarn__jsonl_sample_free(tarn__jsonl_sample *line);

#endif
