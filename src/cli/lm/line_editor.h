/* line_editor.h: lines typed on a terminal, with editing and a history that outlives the program. Without libedit, or
 * without a terminal that it can drive, there is no editor, and lines are read as they come. */
#ifndef TARN__LINE_EDITOR_H
#define TARN__LINE_EDITOR_H

#include "cli/cli.h"

typedef struct tarn__line_editor tarn__line_editor;

typedef enum tarn__line_end {
    TARN__LINE_DONE,
    TARN__LINE_EOF,        /* Ctrl-D on an empty line, or the terminal is gone */
    TARN__LINE_INTERRUPTED /* Ctrl-C: what was typed is dropped */
} tarn__line_end;

/* Opens the editor for standard input and standard error. With `keeps_history` the lines of earlier programs can be
 * recalled, and new ones are written to the user's history. The caller closes it; NULL: there is none. */
tarn__line_editor *tarn__line_editor_open(bool keeps_history);
void tarn__line_editor_close(tarn__line_editor *editor);

/* Reads a line, which may have several with Alt-Enter; `text`, unless NULL, stands on it at first. Replaces *line. The
 * prompt is borrowed for the call. */
tarn__line_end tarn__line_editor_read(tarn__line_editor *editor, const char *prompt, const char *text,
                                      tarn__input *line);

/* Adds a message to the history, unless it is empty or begins with a space. */
void tarn__line_editor_remember(tarn__line_editor *editor, const char *text);

/* ---- the history on disk (line_history.c) ------------------------------------------------------------------------ */

/* Path of the user's history, whose folders are created as needed. False without HOME or XDG_STATE_HOME. */
bool tarn__line_history_path(char *path, size_t size);

/* Calls `take` for the last TARN__HISTORY_MAX entries of the file, the oldest first; a file that has become long is cut
 * to them. A file that does not exist has none. */
enum { TARN__HISTORY_MAX = 1000 };
void tarn__line_history_load(const char *path, void (*take)(const char *text, void *ctx), void *ctx);

/* Appends an entry. False, with errno, if the file cannot be written. */
bool tarn__line_history_append(const char *path, const char *text);

#endif
