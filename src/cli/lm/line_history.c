/* line_history.c: the history of typed lines on disk: $XDG_STATE_HOME/tarn/history, else ~/.local/state/tarn/history.
 *
 * An entry is a line of the file, with \\ and \n for a backslash and a line break. Entries are appended with one
 * write each, so that several programs can share the file. It is readable by its user alone. A file that has grown to
 * twice TARN__HISTORY_MAX entries, or beyond MAX_BYTES, is replaced by its last entries, under a temporary name
 * first. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/lm/line_editor.h"

#define MAX_BYTES ((size_t)4 << 20)   /* of the file */
#define ENTRY_BYTES ((size_t)1 << 16) /* longer messages are not kept */

/* Creates the folders above the file, for the user alone; `path` is restored. */
static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        bool good = mkdir(path, 0700) == 0 || errno == EEXIST;
        *slash = '/';
        if (!good)
            return false;
    }
    return true;
}

bool tarn__line_history_path(char *path, size_t size)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int length = state && state[0] == '/' ? snprintf(path, size, "%s/tarn/history", state)
                 : home && home[0] == '/' ? snprintf(path, size, "%s/.local/state/tarn/history", home)
                                          : -1;
    return length > 0 && (size_t)length < size && make_folders(path);
}

/* In place. */
static void unescape(char *line)
{
    char *to = line;
    for (const char *at = line; *at; at++) {
        bool is_escape = at[0] == '\\' && at[1];
        at += is_escape;
        *to++ = is_escape && *at == 'n' ? '\n' : *at;
    }
    *to = 0;
}

/* Writes all bytes; false with errno. */
static bool write_all(int file, const char *bytes, size_t count)
{
    for (ssize_t written; count > 0; bytes += written, count -= (size_t)written)
        if ((written = write(file, bytes, count)) <= 0)
            return false;
    return true;
}

/* Replaces the file by a part of its text. A failure leaves the file as it was: it is only longer than wanted. */
static void cut(const char *path, const char *text, size_t length)
{
    char next[TARN__MESSAGE_MAX];
    if (snprintf(next, sizeof(next), "%s.%ld", path, (long)getpid()) >= (int)sizeof(next))
        return;
    int file = open(next, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool good = file >= 0 && write_all(file, text, length) && fsync(file) == 0;
    if (file >= 0 && (close(file) != 0 || !good || rename(next, path) != 0))
        unlink(next);
}

/* The whole file. False if there is none, or it cannot be read. */
static bool read_file(const char *path, tarn__input *content)
{
    char bytes[4096];
    FILE *from = tarn__input_regular(path);
    bool good = from != NULL;
    for (size_t count; good && (count = fread(bytes, 1, sizeof(bytes), from)) > 0;)
        good = content->length + count <= 4 * MAX_BYTES && tarn__input_add(content, bytes, count);
    if (from)
        fclose(from);
    return good && content->length > 0;
}

/* Begin of the last `count` lines. */
static size_t last_lines(const tarn__input *content, int count)
{
    size_t at = content->length;
    while (at > 0 && (content->text[at - 1] != '\n' || at == content->length || count-- > 1))
        at--;
    return at;
}

void tarn__line_history_load(const char *path, void (*take)(const char *text, void *ctx), void *ctx)
{
    tarn__input content = {0};
    if (read_file(path, &content)) {
        size_t first = last_lines(&content, TARN__HISTORY_MAX);
        if (content.length > MAX_BYTES || last_lines(&content, 2 * TARN__HISTORY_MAX) > 0)
            cut(path, content.text + first, content.length - first);
        for (char *line = content.text + first, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = 0;
            unescape(line);
            if (line[0])
                take(line, ctx);
        }
    }
    free(content.text);
}

bool tarn__line_history_append(const char *path, const char *text)
{
    tarn__input line = {0};
    bool good = true;
    if (strlen(text) > ENTRY_BYTES)
        return true;
    for (const char *at = text; good && *at; at++)
        good = *at == '\n'   ? tarn__input_add(&line, "\\n", 2)
               : *at == '\\' ? tarn__input_add(&line, "\\\\", 2)
                             : tarn__input_add(&line, at, 1);
    good = good && tarn__input_add(&line, "\n", 1);
    int file = good ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    good = file >= 0 && write_all(file, line.text, line.length);
    if (file >= 0)
        good = close(file) == 0 && good;
    free(line.text);
    return good;
}
