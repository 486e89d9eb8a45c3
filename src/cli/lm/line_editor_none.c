/* line_editor_none.c: what the build has without libedit: no editor. */
#include "cli/lm/line_editor.h"

tarn__line_editor *tarn__line_editor_open(bool keeps_history)
{
    (void)keeps_history;
    return NULL;
}

void tarn__line_editor_close(tarn__line_editor *editor)
{
    (void)editor;
}

tarn__line_end tarn__line_editor_read(tarn__line_editor *editor, const char *prompt, const char *text,
                                      tarn__input *line)
{
    (void)editor;
    (void)prompt;
    (void)text;
    (void)line;
    return TARN__LINE_EOF;
}

void tarn__line_editor_remember(tarn__line_editor *editor, const char *text)
{
    (void)editor;
    (void)text;
}
