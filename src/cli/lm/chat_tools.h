/* chat_tools.h: the messages of `tarn chat`, and its tools: messages as JSON, and calls in answers. */
#ifndef TARN__CHAT_TOOLS_H
#define TARN__CHAT_TOOLS_H

#include "cli/cli.h"

/* The messages in order; a system message, if any, is the first. */
typedef struct tarn__history {
    tarn_chat_message *messages; /* contents are owned */
    char **more;                 /* further members of each as JSON, after a comma; owned; NULL: none */
    int count;
    size_t capacity, more_capacity; /* in elements */
} tarn__history;

/* Appends a message with copies of content and members; `more` may be NULL, roles are literals. False without
 * memory. */
bool tarn__history_add(tarn__history *history, const char *role, const char *content, const char *more);

/* Removes `count` messages from `first` on. */
void tarn__history_remove(tarn__history *history, int first, int count);
void tarn__history_free(tarn__history *history);

/* Tokens of the first `count` messages, with tools unless NULL; the caller releases them. NULL with an error, or
 * without memory. */
int32_t *tarn__history_encode(const tarn__history *history, int count, const tarn_tokenizer *tokenizer,
                              const char *tools, bool add_generation_prompt, int64_t *id_count);

/* Appends the conversation as a line of JSON with the array "messages", the form of training data. False without
 * memory. */
bool tarn__history_json(const tarn__history *history, tarn__input *json);

/* Reads the file of --tools. Returns the exit status, with a message. */
int tarn__tools_read(const char *path, tarn__input *tools);

/* Appends an answer: its calls of tools as such, numbered from *number on, and the text before them as content. Returns
 * the number of calls; -1 without memory. */
int tarn__history_add_answer(tarn__history *history, const char *answer, const char *tools, int *number);

/* Appends the result of the call of that number; `name`, as in JSON, is that of the function; NULL: not known. False
 * without memory. */
bool tarn__history_add_result(tarn__history *history, const char *result, int number, const char *name);

#endif
