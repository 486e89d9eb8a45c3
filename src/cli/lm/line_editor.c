/* line_editor.c: line editing by libedit.
 *
 * The library is opened when a conversation starts on a terminal: linked, it would be loaded by every command. Its
 * functions are found by name; a libedit that lacks one is not used. It reads standard input and draws on standard
 * error, so that standard output has answers alone. It edits characters by the locale: where the user's has no UTF-8,
 * C.UTF-8 is set for characters only.
 *
 * Signals: libedit restores the terminal when one arrives while it reads, calls our handler, and redraws after a
 * change of size or a stop. The user's ~/.editrc is read, as in every program with libedit. */
#include "cli/lm/line_editor.h"

#include <dlfcn.h>
#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tarn_features.h"

#define FUNCTIONS(X) \
    X(el_init, EditLine *, (const char *program, FILE *in, FILE *out, FILE *errors)) \
    X(el_end, void, (EditLine * edit)) \
    X(el_gets, const char *, (EditLine * edit, int *count)) \
    X(el_push, void, (EditLine * edit, const char *keys)) \
    X(el_reset, void, (EditLine * edit)) \
    X(el_set, int, (EditLine * edit, int operation, ...)) \
    X(el_source, int, (EditLine * edit, const char *path)) \
    X(history_init, History *, (void)) \
    X(history_end, void, (History * history)) \
    X(history, int, (History * history, HistEvent * event, int operation, ...))

struct tarn__line_editor {
#define MEMBER(name, result, arguments) result(*name) arguments;
    FUNCTIONS(MEMBER)
#undef MEMBER
    EditLine *edit;
    History *list;
    char path[TARN__MESSAGE_MAX]; /* of the history; "": none is kept */
};

/* ---- the library ------------------------------------------------------------------------------------------------- */

/* POSIX lets a pointer to an object hold one to a function; ISO C has no cast for it. */
static bool find(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof(found));
    return found != NULL;
}

/* False, with a notice, when libedit is not installed. It stays open until the process ends. */
static bool load(tarn__line_editor *e)
{
    void *library = dlopen(TARN__EDIT_FILE, RTLD_NOW | RTLD_LOCAL);
#define FIND(name, result, arguments) &&find(library, #name, &e->name)
    bool good = library FUNCTIONS(FIND);
#undef FIND
    if (!good)
        fprintf(stderr, "(no line editing: %s; the package libedit2 brings it)\n",
                library ? TARN__EDIT_FILE " is too old" : dlerror());
    return good;
}

/* The locale of the environment, or one with UTF-8: what is typed reaches the model as UTF-8 in any case. */
static void use_utf8(void)
{
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

/* Shown by libedit, which passes no pointer of ours: a process has one terminal. */
static char shown_prompt[16];

static char *prompt_of(EditLine *edit)
{
    (void)edit;
    return shown_prompt;
}

/* ---- history ----------------------------------------------------------------------------------------------------- */

static void enter(const char *text, void *ctx)
{
    HistEvent event;
    tarn__line_editor *e = ctx;
    e->history(e->list, &event, H_ENTER, text);
}

/* A file that cannot be written is reported once; the lines of this conversation can still be recalled. */
void tarn__line_editor_remember(tarn__line_editor *e, const char *text)
{
    if (!text[0] || text[0] == ' ')
        return;
    enter(text, e);
    if (e->path[0] && !tarn__line_history_append(e->path, text)) {
        fprintf(stderr, "tarn chat: the history '%s' cannot be written: %s\n", tarn__escaped(e->path), strerror(errno));
        e->path[0] = 0;
    }
}

static bool open_history(tarn__line_editor *e, bool keeps_history)
{
    HistEvent event;
    e->list = e->history_init();
    if (!e->list)
        return false;
    e->history(e->list, &event, H_SETSIZE, TARN__HISTORY_MAX);
    e->history(e->list, &event, H_SETUNIQUE, 1); /* no entry equal to the one before it */
    e->el_set(e->edit, EL_HIST, e->history, e->list);
    if (!keeps_history || !tarn__line_history_path(e->path, sizeof(e->path)))
        e->path[0] = 0;
    if (e->path[0])
        tarn__line_history_load(e->path, enter, e);
    return true;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Alt-Enter as terminals send it. */
static const char *const alt_enter[] = {"\\e\\r", "\\e\\n"};
enum { ALT_ENTERS = sizeof(alt_enter) / sizeof(alt_enter[0]) };

tarn__line_editor *tarn__line_editor_open(bool keeps_history)
{
    const char *kind = getenv("TERM");
    bool is_terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO) && kind && kind[0] && strcmp(kind, "dumb") != 0;
    tarn__line_editor *e = is_terminal ? calloc(1, sizeof(*e)) : NULL;
    if (!e || !load(e)) {
        free(e);
        return NULL;
    }
    use_utf8();
    e->edit = e->el_init("tarn", stdin, stderr, stderr);
    if (e->edit) {
        e->el_set(e->edit, EL_PROMPT, prompt_of);
        e->el_set(e->edit, EL_EDITOR, "emacs");
        e->el_set(e->edit, EL_SIGNAL, 1);
        for (int i = 0; i < ALT_ENTERS; i++) /* Ctrl-V quotes the line break */
            e->el_set(e->edit, EL_BIND, "-s", alt_enter[i], "\\026\\n", NULL);
        e->el_source(e->edit, NULL);
    }
    if (!e->edit || !open_history(e, keeps_history)) {
        tarn__line_editor_close(e);
        return NULL;
    }
    return e;
}

void tarn__line_editor_close(tarn__line_editor *e)
{
    if (!e)
        return;
    for (int i = 0; e->edit && i < ALT_ENTERS; i++) /* libedit frees the text of no key that is still bound */
        e->el_set(e->edit, EL_BIND, "-r", alt_enter[i], NULL);
    if (e->list)
        e->history_end(e->list);
    if (e->edit)
        e->el_end(e->edit);
    free(e);
}

/* Types a text as keys would: Ctrl-V before what is not a character to insert, such as a line break. */
static void type(tarn__line_editor *e, const char *text)
{
    tarn__input keys = {0};
    bool good = true;
    for (const char *at = text; good && *at; at++) {
        bool is_control = (unsigned char)*at < 0x20 || *at == 0x7F;
        good = (!is_control || tarn__input_add(&keys, "\026", 1)) && tarn__input_add(&keys, at, 1);
    }
    if (good && keys.length > 0)
        e->el_push(e->edit, keys.text);
    free(keys.text);
}

tarn__line_end tarn__line_editor_read(tarn__line_editor *e, const char *prompt, const char *text, tarn__input *line)
{
    int count = 0;
    snprintf(shown_prompt, sizeof(shown_prompt), "%s", prompt);
    /* Ctrl-D between two reads, where the terminal edits lines, arrives as NUL. libedit binds NUL as the terminal's
     * disabled keys, of which one quotes the next key: the Ctrl-D after it would be inserted. */
    e->el_set(e->edit, EL_BIND, "^@", "ed-ignore", NULL);
    if (text)
        type(e, text);
    errno = 0;
    const char *typed = e->el_gets(e->edit, &count);
    bool is_interrupted = !typed && errno == EINTR;
    line->length = 0;
    if (is_interrupted)
        e->el_reset(e->edit);
    if (!typed || count <= 0)
        return is_interrupted ? TARN__LINE_INTERRUPTED : TARN__LINE_EOF;
    bool has_break = typed[count - 1] == '\n';
    return tarn__input_add(line, typed, (size_t)(count - has_break)) ? TARN__LINE_DONE : TARN__LINE_EOF;
}
