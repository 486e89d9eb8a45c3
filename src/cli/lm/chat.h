/* chat.h: a conversation of `tarn chat`, shared by its parts: answers (chat.c), messages from a terminal or a pipe
 * (chat_input.c), lines that begin with a slash (chat_commands.c), and files of conversations (chat_load.c). */
#ifndef TARN__CHAT_H
#define TARN__CHAT_H

#include "cli/cli.h"
#include "cli/lm/chat_tools.h"
#include "cli/lm/line_editor.h"
#include "cli/lm/lm_common.h"

/* Zeroed members are valid for clean-up. */
typedef struct tarn__conversation {
    tarn_run_weights weights;
    tarn__options options; /* a copy: /set changes how answers are sampled */
    tarn_kv_type kv_type;
    tarn_speculate speculate;
    bool forgets;        /* --on-full forget: drops the oldest turns when the context is full */
    bool is_interactive; /* standard input is a terminal */
    bool is_measured;    /* prints tokens/s after each answer */
    tarn_module *model;
    tarn_tokenizer *tokenizer;
    tarn_module *draft; /* NULL: none */
    tarn_tokenizer *draft_tokenizer;
    tarn_generator *writer;
    tarn_grammar *grammar; /* of every answer; NULL: none */
    int64_t context;
    tarn__history history;
    tarn__input tools; /* JSON of --tools; text NULL: none */
    int calls;         /* of all answers so far */
    int pending;       /* of the last answer, without a result yet */
    int32_t stop;
    uint64_t seed;
    tarn__line_editor *editor; /* NULL: lines are read as they come */
    tarn__input line, message; /* memory of the input */
    bool is_block;             /* the message came between lines of """: a slash at its start is text */
    char file[512];            /* that the conversation was last saved to or loaded from; "": none */
    int status;
    bool is_broken; /* an error ended the conversation */
} tarn__conversation;

/* ---- chat.c ------------------------------------------------------------------------------------------------------ */

/* Ends the conversation: after it, memory cannot be relied on. Returns TARN__FAILED. */
int tarn__chat_no_memory(tarn__conversation *c);

/* An input that could not be used, reported by now, sets the exit status of a pipe; on a terminal the user saw it. */
void tarn__chat_refused(tarn__conversation *c);

/* Lets the model answer the last message, which stays in the history unless it is rejected. */
void tarn__chat_respond(tarn__conversation *c);

/* One turn: a question and its answer. */
void tarn__chat_answer(tarn__conversation *c, const char *question);

/* Number of messages before the first turn: 1 with a system message. */
int tarn__chat_system_count(const tarn__history *history);

/* ---- chat_input.c ------------------------------------------------------------------------------------------------ */

/* The next message, in memory of the conversation that the next call reuses. `text`, unless NULL, is to be edited.
 * NULL at the end of input, and when a message was to be edited and Ctrl-C was pressed. */
char *tarn__chat_read(tarn__conversation *c, const char *text);

/* ---- chat_commands.c --------------------------------------------------------------------------------------------- */

/* A line that begins with a slash. False: the conversation ends. */
bool tarn__chat_command(tarn__conversation *c, const char *line);

/* ---- chat_load.c ------------------------------------------------------------------------------------------------- */

/* Replaces the history by the messages of a file: JSON with the array "messages", as /save and training data have it.
 * *calls and *pending receive the calls of tools in it, and those of the last answer without a result. False with an
 * error, and nothing changed. */
bool tarn__history_load(tarn__history *history, const char *path, int *calls, int *pending);

#endif
