/* chat_input.c: messages of `tarn chat`, from a terminal with or without line editing, or from a pipe.
 *
 * A message is a line. One that ends with a backslash continues on the next line, with a line break between them; lines
 * between two lines of """ are one message as they are. A message with a zero byte is skipped, not truncated. Ctrl-C
 * drops what was typed so far. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/lm/chat.h"

#define FENCE "\"\"\""

/* False, with a message, for a line with a zero byte. */
static bool is_text(tarn__conversation *c, const tarn__input *line)
{
    if (strlen(line->text) == line->length)
        return true;
    fprintf(stderr, "tarn chat: the message has a zero byte and was skipped\n");
    tarn__chat_refused(c);
    return false;
}

/* A line of a pipe, or of a terminal without an editor. */
static tarn__line_end read_plain(tarn__conversation *c, const char *prompt)
{
    tarn__input *line = &c->line;
    if (c->is_interactive)
        fprintf(stderr, "%s", prompt);
    errno = 0;
    if (tarn__input_line(line, stdin)) {
        while (line->length > 0 && (line->text[line->length - 1] == '\n' || line->text[line->length - 1] == '\r'))
            line->text[--line->length] = 0;
        return TARN__LINE_DONE;
    }
    if (errno == EFBIG) {
        fprintf(stderr, "tarn chat: a line is longer than %s\n", tarn__bytes_text((int64_t)TARN__LINE_MAX));
        c->status = TARN__FAILED;
    }
    if (errno != EINTR)
        return TARN__LINE_EOF;
    clearerr(stdin);
    return TARN__LINE_INTERRUPTED;
}

/* One line into c->line. Ctrl-C at the prompt gives a hint; what ends input on a terminal ends its line. */
static tarn__line_end read_line(tarn__conversation *c, const char *prompt, const char *text)
{
    tarn__line_end end = c->editor ? tarn__line_editor_read(c->editor, prompt, text, &c->line) : read_plain(c, prompt);
    if (end == TARN__LINE_INTERRUPTED)
        fprintf(stderr, "\n(/exit ends the conversation)\n");
    else if (end == TARN__LINE_EOF && c->is_interactive)
        fprintf(stderr, "\n");
    return end;
}

/* True for a line of """, which begins and ends a block. */
static bool is_fence(const tarn__input *line)
{
    return line->length == strlen(FENCE) && memcmp(line->text, FENCE, line->length) == 0;
}

/* Appends c->line to a message of several lines. False without memory. */
static bool append(tarn__conversation *c, tarn__input *message, bool is_first)
{
    if ((is_first || tarn__input_add(message, "\n", 1)) && tarn__input_add(message, c->line.text, c->line.length))
        return true;
    tarn__chat_no_memory(c);
    return false;
}

/* The lines up to the closing """. */
static tarn__line_end read_block(tarn__conversation *c, tarn__input *message)
{
    for (bool is_first = true;; is_first = false) {
        tarn__line_end end = read_line(c, ". ", NULL);
        if (end == TARN__LINE_EOF) {
            fprintf(stderr,
                    "tarn chat: the message that begins with " FENCE " does not end with " FENCE "; it was skipped\n");
            tarn__chat_refused(c);
        }
        if (end != TARN__LINE_DONE || is_fence(&c->line))
            return end;
        if (!append(c, message, is_first))
            return TARN__LINE_EOF;
    }
}

/* The first line is c->line; lines that end with a backslash continue. The last one may be cut short by the end of
 * input. */
static tarn__line_end read_continued(tarn__conversation *c, tarn__input *message)
{
    for (bool is_first = true;; is_first = false) {
        bool continues = c->line.length > 0 && c->line.text[c->line.length - 1] == '\\';
        if (continues)
            c->line.text[--c->line.length] = 0;
        if (!append(c, message, is_first))
            return TARN__LINE_EOF;
        tarn__line_end end = continues ? read_line(c, ". ", NULL) : TARN__LINE_DONE;
        if (!continues || end == TARN__LINE_EOF)
            return TARN__LINE_DONE;
        if (end == TARN__LINE_INTERRUPTED)
            return end;
    }
}

static tarn__line_end read_message(tarn__conversation *c, const char *text, tarn__input *message)
{
    tarn__line_end end = read_line(c, "> ", text);
    message->length = 0;
    if (end != TARN__LINE_DONE || !tarn__input_add(message, "", 0))
        return end == TARN__LINE_DONE ? TARN__LINE_EOF : end;
    c->is_block = is_fence(&c->line);
    return c->is_block ? read_block(c, message) : read_continued(c, message);
}

char *tarn__chat_read(tarn__conversation *c, const char *text)
{
    for (;;) {
        tarn__line_end end = read_message(c, text, &c->message);
        if (end == TARN__LINE_EOF || c->is_broken || (end == TARN__LINE_INTERRUPTED && text))
            return NULL;
        if (end == TARN__LINE_DONE && is_text(c, &c->message)) {
            if (c->editor)
                tarn__line_editor_remember(c->editor, c->message.text);
            return c->message.text;
        }
    }
}
