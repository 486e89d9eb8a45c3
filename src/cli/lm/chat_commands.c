/* chat_commands.c: lines of `tarn chat` that begin with a slash.
 *
 * A command is a row: name, argument, help, function. What a command prints goes to standard error, since standard
 * output has answers alone. A command that fails changes nothing. /set writes the fields of the options that an answer
 * is sampled by, through the table of options, so names, bounds and messages are those of the flags. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/lm/chat.h"

/* Prints why a command was not done. False, for the callers' return. */
static bool refuse(tarn__conversation *c, const char *command, const char *why)
{
    fprintf(stderr, "tarn chat: /%s: %s\n", command, why);
    tarn__chat_refused(c);
    return false;
}

/* Index of the last message of a role; -1: there is none. */
static int last_of(const tarn__history *h, const char *role)
{
    int i = h->count - 1;
    while (i >= 0 && strcmp(h->messages[i].role, role) != 0)
        i--;
    return i;
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

/* Starts over, with the same system message or another one. */
static void reset(tarn__conversation *c, const char *system)
{
    int kept = system ? 0 : tarn__chat_system_count(&c->history);
    tarn__history_remove(&c->history, kept, c->history.count - kept);
    c->pending = 0;
    if (system && system[0] && !tarn__history_add(&c->history, "system", system, NULL))
        c->status = tarn__chat_no_memory(c);
}

static void run_reset(tarn__conversation *c, const char *rest)
{
    (void)rest;
    reset(c, NULL);
}

static void run_system(tarn__conversation *c, const char *rest)
{
    reset(c, rest);
}

/* The last answer again, sampled with the next seed; results of tools that it used stay. */
static void run_retry(tarn__conversation *c, const char *rest)
{
    (void)rest;
    tarn__history *h = &c->history;
    int question = last_of(h, "user"), answer = last_of(h, "assistant");
    if (question < 0) {
        refuse(c, "retry", "there is no question yet");
        return;
    }
    if (answer > question)
        tarn__history_remove(h, answer, h->count - answer);
    c->pending = 0;
    tarn__chat_respond(c);
}

/* Replaces the last question and all after it. On a terminal with an editor the old one is there to be changed. */
static void run_edit(tarn__conversation *c, const char *rest)
{
    tarn__history *h = &c->history;
    int question = last_of(h, "user");
    if (question < 0) {
        refuse(c, "edit", "there is no question yet");
        return;
    }
    if (!rest[0] && !c->editor) {
        refuse(c, "edit", "needs the new question: /edit TEXT; without TEXT it needs a terminal and libedit");
        return;
    }
    const char *text = rest[0] ? rest : tarn__chat_read(c, h->messages[question].content);
    char *copy = text && text[0] ? strdup(text) : NULL;
    if (copy) {
        tarn__history_remove(h, question, h->count - question);
        tarn__chat_answer(c, copy);
    }
    free(copy);
}

/* ---- results of tools -------------------------------------------------------------------------------------------- */

/* The name in a call of the last answer with calls, with its escapes: the `index`-th. The caller frees it; NULL: not
 * found. */
static char *called_name(const tarn__conversation *c, int index)
{
    int at = last_of(&c->history, "assistant");
    tarn_tool_call call = {0};
    const char *calls = at >= 0 ? c->history.more[at] : NULL;
    for (; calls && index >= 0; index--)
        calls = tarn_chat_find_call(c->tools.text, calls, strlen(calls), &call) ? calls + call.end : NULL;
    return calls ? strndup(call.name, call.name_length) : NULL;
}

/* The result of a tool. The model continues once all calls of its answer have one. */
static void run_tool(tarn__conversation *c, const char *result)
{
    int answered = 0;
    for (int i = c->history.count - 1; i >= 0 && strcmp(c->history.messages[i].role, "tool") == 0; i--)
        answered++;
    if (!c->tools.text || c->history.count == tarn__chat_system_count(&c->history)) {
        refuse(c, "tool",
               c->tools.text ? "there is no answer with a call yet" : "no tools were given; use --tools FILE");
        return;
    }
    char *name = called_name(c, answered);
    bool good = tarn__history_add_result(&c->history, result, c->calls - c->pending, name);
    free(name);
    c->pending -= c->pending > 0;
    if (!good)
        c->status = tarn__chat_no_memory(c);
    else if (c->pending == 0)
        tarn__chat_respond(c);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* The path of an argument, with "~/" as the home folder. False with a message if it is missing or too long. */
static bool read_path(tarn__conversation *c, const char *command, const char *rest, char *path, size_t size)
{
    const char *home = getenv("HOME");
    bool is_home = rest[0] == '~' && rest[1] == '/' && home;
    if (!rest[0])
        return refuse(c, command, "needs a file name");
    if (snprintf(path, size, "%s%s", is_home ? home : "", is_home ? rest + 1 : rest) >= (int)size)
        return refuse(c, command, "the file name is too long");
    return true;
}

/* Writes a new file, or a file of that name at once. False with errno. */
static bool write_file(const char *path, const tarn__input *text, bool may_replace)
{
    char next[600];
    snprintf(next, sizeof(next), "%s.%ld", path, (long)getpid());
    const char *target = may_replace ? next : path;
    int file = open(target, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *to = file >= 0 ? fdopen(file, "w") : NULL;
    if (!to)
        return false;
    bool good = fwrite(text->text, 1, text->length, to) == text->length && fflush(to) == 0 && fsync(file) == 0;
    good = fclose(to) == 0 && good && (!may_replace || rename(next, path) == 0);
    int reason = errno;
    if (!good)
        unlink(target);
    errno = reason;
    return good;
}

/* Only the file of this conversation is replaced. */
static void run_save(tarn__conversation *c, const char *rest)
{
    tarn__input text = {0};
    char path[sizeof(c->file)];
    if (!read_path(c, "save", rest[0] ? rest : c->file, path, sizeof(path)))
        return;
    if (c->history.count == 0) {
        refuse(c, "save", "there are no messages yet");
        return;
    }
    if (!tarn__history_json(&c->history, &text))
        c->status = tarn__chat_no_memory(c);
    else if (!write_file(path, &text, strcmp(path, c->file) == 0)) {
        fprintf(stderr, "tarn chat: /save: '%s' cannot be written: %s%s\n", tarn__escaped(path), strerror(errno),
                errno == EEXIST ? "; choose another name" : "");
        tarn__chat_refused(c);
    } else {
        memcpy(c->file, path, sizeof(path));
        fprintf(stderr, "(%d messages saved to %s)\n", c->history.count, tarn__escaped(path));
    }
    free(text.text);
}

static void run_load(tarn__conversation *c, const char *rest)
{
    char path[sizeof(c->file)];
    if (!read_path(c, "load", rest, path, sizeof(path)))
        return;
    if (!tarn__history_load(&c->history, path, &c->calls, &c->pending)) {
        tarn__print_error("chat: /load");
        tarn__chat_refused(c);
        return;
    }
    memcpy(c->file, path, sizeof(path));
    fprintf(stderr, "(%d messages loaded from %s)\n", c->history.count, tarn__escaped(path));
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

/* Options that hold for one answer: all others are fixed when the model is opened. */
static const char *const settings[] = {
    "temperature",       "top-k",           "top-p", "min-p", "seed", "max-tokens", "repeat-penalty", "repeat-last-n",
    "frequency-penalty", "presence-penalty"};
enum { SETTINGS = sizeof(settings) / sizeof(settings[0]) };

static void print_setting(const tarn__options *o, const char *name)
{
    const tarn__option_row *row = tarn__option_find(name, strlen(name), TARN__CHAT);
    const void *field = (const char *)o + row->offset;
    int64_t whole = 0;
    double real = 0;
    if (row->type == TARN__OPT_INT) {
        memcpy(&whole, field, sizeof(whole));
        fprintf(stderr, "  %-17s %lld\n", name, (long long)whole);
    } else {
        memcpy(&real, field, sizeof(real));
        fprintf(stderr, "  %-17s %g\n", name, real);
    }
}

/* The setting of a name as typed, also with underscores; NULL with a message. */
static const char *find_setting(tarn__conversation *c, const char *typed)
{
    char name[64], why[200];
    snprintf(name, sizeof(name), "%s", typed + strspn(typed, "-"));
    for (char *at = name; *at; at++)
        *at = *at == '_' ? '-' : *at;
    for (int i = 0; i < SETTINGS; i++)
        if (strcmp(name, settings[i]) == 0)
            return settings[i];
    const char *near = tarn_suggest(name, settings, SETTINGS);
    snprintf(why, sizeof(why), "unknown setting '%s'; %s%s%s", tarn__escaped(name),
             near ? "did you mean " : "/set lists them", near ? near : "", near ? "?" : "");
    refuse(c, "set", why);
    return NULL;
}

/* "NAME VALUE", or "NAME=VALUE", or "" for a list. */
static void run_set(tarn__conversation *c, const char *rest)
{
    char typed[64];
    size_t length = strcspn(rest, " =");
    const char *value = rest + length + strspn(rest + length, " =");
    snprintf(typed, sizeof(typed), "%.*s", (int)length, rest);
    for (int i = 0; !rest[0] && i < SETTINGS; i++)
        print_setting(&c->options, settings[i]);
    const char *name = rest[0] ? find_setting(c, typed) : NULL;
    if (!name)
        return;
    tarn__options changed = c->options;
    if (!value[0]) {
        print_setting(&c->options, name);
        return;
    }
    if (tarn__option_read("chat", tarn__option_find(name, strlen(name), TARN__CHAT), value, &changed) != TARN__DONE) {
        tarn__chat_refused(c);
        return;
    }
    if (changed.repeat_last_n && changed.repeat_penalty == 1) {
        refuse(c, "set", "repeat-last-n needs a repeat-penalty other than 1: set that first, or repeat-last-n to 0");
        return;
    }
    c->options = changed;
    c->seed = strcmp(name, "seed") == 0 ? (uint64_t)changed.seed : c->seed;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static void run_help(tarn__conversation *c, const char *rest);

/* `run` NULL: /exit. `takes` is the argument in the help; "" for none. */
static const struct {
    const char *name, *takes, *help;
    void (*run)(tarn__conversation *c, const char *rest);
} commands[] = {
    {"help", "", "this list", run_help},
    {"system", " TEXT", "start over with a system message, or with none", run_system},
    {"reset", "", "start over with the same system message", run_reset},
    {"retry", "", "another answer to the last question", run_retry},
    {"edit", " [TEXT]", "change the last question and ask it again", run_edit},
    {"save", " [FILE]", "write the conversation to a file, as JSON", run_save},
    {"load", " FILE", "continue a conversation from a file", run_load},
    {"set", " [NAME VALUE]", "show or change sampling settings", run_set},
    {"tool", " RESULT", "answer a tool call", run_tool},
    {"exit", "", "end the conversation; so does Ctrl-D", NULL},
};
enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void run_help(tarn__conversation *c, const char *rest)
{
    (void)rest;
    for (int i = 0; i < COMMANDS; i++) {
        char left[32];
        snprintf(left, sizeof(left), "/%s%s", commands[i].name, commands[i].takes);
        fprintf(stderr, "  %-20s %s\n", left, commands[i].help);
    }
    fprintf(stderr,
            "A line that ends with a backslash continues on the next; lines between two\n"
            "lines of \"\"\" are one message.%s\nCtrl-C ends an answer.\n",
            c->editor ? " Alt-Enter starts a new line." : "");
}

static void unknown(tarn__conversation *c, const char *typed)
{
    const char *names[COMMANDS], *near;
    for (int i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    near = tarn_suggest(typed, names, COMMANDS);
    fprintf(stderr, "tarn chat: /%s: unknown command; ", tarn__escaped(typed));
    fprintf(stderr, near ? "did you mean /%s?\n" : "/help lists them%s\n", near ? near : "");
    tarn__chat_refused(c);
}

bool tarn__chat_command(tarn__conversation *c, const char *line)
{
    char typed[64];
    size_t length = strcspn(line + 1, " ");
    snprintf(typed, sizeof(typed), "%.*s", (int)length, line + 1);
    const char *rest = line + 1 + length + strspn(line + 1 + length, " ");
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(typed, commands[i].name) != 0)
            continue;
        if (rest[0] && !commands[i].takes[0]) {
            fprintf(stderr, "tarn chat: /%s takes no argument: '%s'\n", typed, tarn__escaped(rest));
            tarn__chat_refused(c);
        } else if (!commands[i].run)
            return false;
        else
            commands[i].run(c, rest);
        return true;
    }
    unknown(c, typed);
    return true;
}
