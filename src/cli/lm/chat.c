/* chat.c: `tarn chat`: a conversation with a language model, line by line, from a terminal or a pipe.
 *
 * The model's chat template renders the whole conversation for each answer; the generator reuses the KV cache of the
 * common prefix, so only new tokens are computed. Ctrl-C ends an answer, not the program: the text so far stays in the
 * conversation.
 *
 * Answers go to standard output; the prompt, notices and errors go to standard error, so that a pipe carries answers
 * alone. Errors of one message (too long, a zero byte) keep an interactive conversation alive and set the exit status
 * of a pipe. `chat` owns model, tokenizer, generator and messages; tarn__chat() frees them. Everything runs on one
 * thread. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/lm/chat_tools.h"
#include "cli/lm/lm_common.h"

#define DEFAULT_CONTEXT 4096 /* tokens, for models with more */
#define ANSWER_FRACTION 4    /* a fourth of the context is free after turns were dropped */

/* Zeroed members are valid for clean-up. */
typedef struct chat {
    tarn_run_weights weights;
    const tarn__options *options;
    tarn_kv_type kv_type;
    tarn_speculate speculate;
    bool forgets;        /* --on-full forget: drops the oldest turns when the context is full */
    bool is_interactive; /* standard input is a terminal */
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
    int status;
    bool is_broken; /* an error ended the conversation */
} chat;

/* Set by Ctrl-C, read between two tokens. */
static volatile sig_atomic_t interrupted;

/* Async-signal-safe: sets a flag only. */
static void interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Ends the conversation: after it, memory cannot be relied on. */
static int no_memory(chat *c)
{
    c->is_broken = true;
    fprintf(stderr, "tarn chat: out of memory\n");
    return TARN__FAILED;
}

/* Number of messages before the first turn: 1 with a system message. */
static int system_count(const tarn__history *h)
{
    return h->count > 0 && strcmp(h->messages[0].role, "system") == 0;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* Tokens of the conversation up to the start of the answer. NULL with an error. */
static int32_t *encode(const chat *c, int64_t *count)
{
    return tarn__history_encode(&c->history, c->history.count, tarn_generator_tokenizer(c->writer), c->tools.text, true,
                                count);
}

static int library_error(chat *c)
{
    c->is_broken = true;
    return tarn__print_error("chat");
}

/* Number of messages of the oldest turn: a question and all up to the next, results of tools too. 0: it is the last. */
static int turn_count(const tarn__history *h, int first)
{
    for (int i = first + 1; i < h->count; i++)
        if (strcmp(h->messages[i].role, "user") == 0)
            return i - first;
    return 0;
}

/* Drops the oldest turns, a question and its answer each, until the conversation leaves a fourth of the context free,
 * or only the last question remains. Takes ownership of `tokens`; returns the tokens of the shorter conversation. NULL
 * with an error. */
static int32_t *forget(chat *c, int32_t *tokens, int64_t *count)
{
    int turns = 0, first = system_count(&c->history);
    int64_t most = c->context - c->context / ANSWER_FRACTION;
    for (int dropped; tokens && *count > most && (dropped = turn_count(&c->history, first)) > 0;) {
        tarn__history_remove(&c->history, first, dropped);
        turns++;
        tarn_tokenizer_release(tokens);
        tokens = encode(c, count);
    }
    if (tokens && turns > 0)
        fprintf(stderr, "(the context of %lld tokens was full: the oldest %d turn%s dropped)\n", (long long)c->context,
                turns, turns > 1 ? "s are" : " is");
    return tokens;
}

/* Rejects the last question, which does not fit, and removes it from the history. With forgetting, it is the only turn
 * left. */
static void refuse(chat *c, int64_t count)
{
    fprintf(stderr,
            "tarn chat: the %s %lld tokens, and the context is %lld: no capacity left for an answer; the question was "
            "skipped. %s\n",
            c->forgets ? "question alone takes" : "conversation has", (long long)count, (long long)c->context,
            c->forgets ? "Ask a shorter one, or give a larger --context"
                       : "/reset starts over; without --no-slide (--on-full refuse) the oldest turns are dropped");
    tarn__history_remove(&c->history, c->history.count - 1, 1);
    c->status = c->is_interactive ? c->status : TARN__FAILED;
}

/* Number of leading tokens of the system message, which stay when the KV cache slides. Found as the common prefix with
 * the system message rendered alone, since templates put it anywhere. 0: no such prefix, or over half of the context.
 */
static int64_t system_tokens(const chat *c, const int32_t *tokens, int64_t count)
{
    int64_t length = 0, same = 0;
    if (system_count(&c->history) == 0)
        return 0;
    int32_t *heading =
        tarn__history_encode(&c->history, 1, tarn_generator_tokenizer(c->writer), c->tools.text, false, &length);
    while (heading && same < length && same < count && heading[same] == tokens[same])
        same++;
    tarn_tokenizer_release(heading);
    tarn_clear_error(); /* some templates cannot render a system message alone */
    return same <= (c->context - 1) / 2 ? same : 0;
}

/* Starts an answer: prefills what the KV cache lacks. Each answer has its own seed, so that a conversation is
 * reproducible from --seed. */
static bool begin(chat *c, const int32_t *tokens, int64_t count)
{
    const tarn__options *o = c->options;
    int64_t left = c->context - count;
    const tarn_generate_options how = {.max_tokens = c->forgets ? (o->max_tokens ? o->max_tokens : c->context)
                                                     : o->max_tokens < left ? o->max_tokens
                                                                            : 0,
                                       .slide = c->forgets,
                                       .keep = c->forgets ? system_tokens(c, tokens, count) : 0,
                                       .temperature = o->temperature,
                                       .top_k = o->top_k,
                                       .top_p = o->top_p,
                                       .min_p = o->min_p,
                                       .repeat_penalty = o->repeat_penalty,
                                       .repeat_last_n = o->repeat_last_n,
                                       .frequency_penalty = o->frequency_penalty,
                                       .presence_penalty = o->presence_penalty,
                                       .seed = c->seed++,
                                       .grammar = c->grammar,
                                       .speculate = c->speculate,
                                       .draft_tokens = o->draft_tokens,
                                       .stop = &c->stop,
                                       .stop_count = c->stop >= 0};
    return tarn_generator_prompt(c->writer, 0, tokens, count, &how);
}

/* Prints the answer token by token. Returns a copy of it, which the caller frees; NULL without memory. Stops at Ctrl-C
 * and when standard output is closed. */
static char *print_answer(const chat *c, tarn_output *piece)
{
    tarn__input text = {0};
    bool has_slid = false, good = tarn__input_add(&text, "", 0);
    while (good && !interrupted && !ferror(stdout) && tarn_generator_next(c->writer, piece)) {
        tarn__print_generated(piece->text, piece->length);
        fflush(stdout);
        good = tarn__input_add(&text, piece->text, piece->length);
        has_slid = has_slid || piece->slid;
    }
    printf("\n");
    if (has_slid)
        fprintf(stderr, "(the context of %lld tokens was full: the answer continues from its last %lld%s)\n",
                (long long)c->context, (long long)(c->context / 2),
                system_count(&c->history) ? " and the system message" : "");
    if (!good)
        free(text.text);
    return good ? text.text : NULL;
}

/* Appends the answer to the history and lists its calls of tools. False without memory. */
static bool keep_answer(chat *c, const char *text)
{
    tarn_tool_call call;
    size_t length = strlen(text);
    c->pending = tarn__history_add_answer(&c->history, text, c->tools.text, &c->calls);
    if (c->pending <= 0)
        return c->pending == 0;
    for (const char *at = text; tarn_chat_find_call(c->tools.text, at, length - (size_t)(at - text), &call);
         at += call.end) {
        char *shown = strndup(call.name, call.name_length), *arguments = strndup(call.arguments, call.arguments_length);
        if (shown && arguments) {
            fprintf(stderr, "(tool call: %s", tarn__escaped(shown));
            fprintf(stderr, " %s)\n", tarn__escaped(arguments));
        }
        free(shown);
        free(arguments);
    }
    fprintf(stderr, "(/tool RESULT answers %s)\n", c->pending > 1 ? "the first of these calls" : "the call");
    return true;
}

/* Prints the answer and appends it to the history, also one cut short by Ctrl-C. False with an error, or without
 * memory. */
static bool print_and_keep_answer(chat *c)
{
    tarn_output piece = {0};
    int64_t length = 0;
    char *text = print_answer(c, &piece);
    tarn_generator_stop(c->writer, 0);
    bool is_full = piece.finish_reason == TARN_FINISH_LENGTH && tarn_generator_tokens(c->writer, 0, &length) &&
                   !c->forgets && length == c->context;
    if (is_full)
        fprintf(stderr, "(the context of %lld tokens is full: the answer ends here)\n", (long long)c->context);
    else if (piece.finish_reason == TARN_FINISH_LENGTH && c->forgets && !c->options->max_tokens)
        fprintf(stderr, "(the answer ends at %lld tokens; --max-tokens allows more)\n", (long long)c->context);
    bool good = text && !tarn_failed() && keep_answer(c, text);
    free(text);
    return good;
}

/* Lets the model answer the last message, which stays in the history unless it is rejected. */
static void respond(chat *c)
{
    int64_t count = 0;
    interrupted = 0; /* before the prefill: Ctrl-C during it counts */
    int32_t *tokens = encode(c, &count);
    if (tokens && c->forgets && count >= c->context - c->context / ANSWER_FRACTION)
        tokens = forget(c, tokens, &count);
    if (tokens && count >= c->context)
        refuse(c, count);
    else if (!tokens || !begin(c, tokens, count) || !print_and_keep_answer(c))
        c->status = tarn_failed() ? library_error(c) : no_memory(c);
    tarn_tokenizer_release(tokens);
}

/* One turn. */
static void answer(chat *c, const char *question)
{
    c->pending = 0;
    if (tarn__history_add(&c->history, "user", question, NULL))
        respond(c);
    else
        c->status = no_memory(c);
}

/* The name in a call of the last answer with calls, with its escapes: the `index`-th. The caller frees it; NULL: not
 * found. */
static char *called_name(const chat *c, int index)
{
    int at = c->history.count - 1;
    tarn_tool_call call = {0};
    while (at >= 0 && strcmp(c->history.messages[at].role, "assistant") != 0)
        at--;
    const char *calls = at >= 0 ? c->history.more[at] : NULL;
    for (; calls && index >= 0; index--)
        calls = tarn_chat_find_call(c->tools.text, calls, strlen(calls), &call) ? calls + call.end : NULL;
    return calls ? strndup(call.name, call.name_length) : NULL;
}

/* The result of a tool. The model continues once all calls of its answer have one. */
static void give_result(chat *c, const char *result)
{
    int answered = 0;
    for (int i = c->history.count - 1; i >= 0 && strcmp(c->history.messages[i].role, "tool") == 0; i--)
        answered++;
    if (!c->tools.text || c->history.count == 0 || system_count(&c->history) == c->history.count) {
        fprintf(stderr, "tarn chat: /tool: %s\n",
                c->tools.text ? "there is no answer with a call yet" : "no tools were given; use --tools FILE");
        c->status = c->is_interactive ? c->status : TARN__FAILED;
        return;
    }
    char *name = called_name(c, answered);
    bool good = tarn__history_add_result(&c->history, result, c->calls - c->pending, name);
    free(name);
    c->pending -= c->pending > 0;
    if (!good)
        c->status = no_memory(c);
    else if (c->pending == 0)
        respond(c);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Starts over, with the same system message or another one. */
static void reset(chat *c, const char *system)
{
    int kept = system ? 0 : system_count(&c->history);
    tarn__history_remove(&c->history, kept, c->history.count - kept);
    c->pending = 0;
    if (system && system[0] && !tarn__history_add(&c->history, "system", system, NULL))
        c->status = no_memory(c);
}

/* A line that starts with a slash. False: the end. */
static bool command(chat *c, const char *line)
{
    if (strcmp(line, "/exit") == 0)
        return false;
    if (strcmp(line, "/reset") == 0)
        reset(c, NULL);
    else if (strncmp(line, "/system", 7) == 0 && (line[7] == ' ' || !line[7]))
        reset(c, line[7] ? line + 8 : "");
    else if (strncmp(line, "/tool", 5) == 0 && (line[5] == ' ' || !line[5]))
        give_result(c, line[5] ? line + 6 : "");
    else
        fprintf(stderr,
                "%s: unknown command; use /reset (start over), /system TEXT (start over with a system message), /tool "
                "RESULT "
                "(answer a tool call) or /exit\n",
                tarn__escaped(line));
    return true;
}

/* False, with a message, for a line with a zero byte: it is skipped, not truncated. */
static bool is_text(chat *c, const char *line, size_t length)
{
    if (strlen(line) == length)
        return true;
    fprintf(stderr, "tarn chat: the message has a zero byte and was skipped\n");
    c->status = c->is_interactive ? c->status : TARN__FAILED;
    return false;
}

/* The next line without its line break, in a buffer that is reused. NULL at the end of input. Ctrl-C at the prompt
 * gives a hint. */
static char *read_line(chat *c, tarn__input *line)
{
    for (;;) {
        if (c->is_interactive)
            fprintf(stderr, "> ");
        errno = 0;
        if (tarn__input_line(line, stdin)) {
            while (line->length > 0 && (line->text[line->length - 1] == '\n' || line->text[line->length - 1] == '\r'))
                line->text[--line->length] = 0;
            if (is_text(c, line->text, line->length))
                return line->text;
            continue;
        }
        if (errno == EFBIG) {
            fprintf(stderr, "tarn chat: a line is longer than %s\n", tarn__bytes_text((int64_t)TARN__LINE_MAX));
            c->status = TARN__FAILED;
        }
        if (errno != EINTR)
            return NULL;
        clearerr(stdin);
        fprintf(stderr, "\n(/exit ends the conversation)\n");
    }
}

/* Until the end of input, /exit, an error, or a closed standard output. Empty lines are ignored. */
static void talk(chat *c)
{
    tarn__input memory = {0};
    char *line;
    bool continues = true;
    while (continues && !c->is_broken && !ferror(stdout) && (line = read_line(c, &memory)) != NULL)
        if (line[0] == '/')
            continues = command(c, line);
        else if (line[0])
            answer(c, line);
    free(memory.text);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* False with an error; tarn__chat() frees whatever was opened. A tokenizer without a chat template is an error. */
static bool open_writer(chat *c)
{
    const tarn__options *o = c->options;
    tarn_model_info info;
    c->model = tarn__lm_model(o, &c->weights);
    c->tokenizer = c->model ? tarn__lm_tokenizer(o) : NULL;
    if (c->tokenizer && o->template_name && !tarn_tokenizer_set_chat(c->tokenizer, o->template_name))
        return false;
    if (!c->tokenizer || !tarn_chat_name(c->tokenizer) || !tarn_model_query(c->model, &info))
        return false;
    c->context = o->context ? o->context : info.context < DEFAULT_CONTEXT ? info.context : DEFAULT_CONTEXT;
    c->stop = tarn_chat_eot(c->tokenizer);
    c->writer = tarn_generator_new(c->model, c->tokenizer,
                                   &(tarn_generator_options){.context = c->context,
                                                             .kv_type = c->kv_type,
                                                             .prefill_chunk = o->prefill_chunk,
                                                             .draft = c->draft,
                                                             .draft_tokenizer = c->draft_tokenizer});
    return c->writer != NULL;
}

/* Without SA_RESTART: a pending read is interrupted too. */
static void catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = interrupt};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

static int run(chat *c)
{
    int status = tarn__lm_draft("chat", c->options, &c->draft, &c->draft_tokenizer);
    if (status != TARN__DONE)
        return status;
    if (!open_writer(c)) {
        bool misused = tarn_error_code() == TARN_ERROR_ARGUMENT;
        tarn__print_error("chat");
        return misused ? TARN__MISUSED : TARN__FAILED;
    }
    tarn_model_info info;
    if (!tarn_model_query(c->model, &info))
        return library_error(c);
    status = tarn__lm_grammar("chat", c->options, c->tokenizer, &info, &c->grammar);
    if (status != TARN__DONE)
        return status;
    if (c->options->system && !tarn__history_add(&c->history, "system", c->options->system, NULL))
        return no_memory(c);
    catch_interrupts();
    if (c->is_interactive)
        fprintf(stderr, "%s, context of %lld tokens; /reset, /system TEXT, %s/exit; Ctrl-C ends an answer\n",
                tarn_chat_name(c->tokenizer), (long long)c->context, c->tools.text ? "/tool RESULT, " : "");
    talk(c);
    if (c->speculate != TARN_SPECULATE_OFF)
        tarn__lm_print_speculation(c->writer);
    return c->status;
}

int tarn__chat(const tarn__options *options)
{
    chat c = {.options = options,
              .is_interactive = isatty(STDIN_FILENO),
              .seed = (uint64_t)options->seed,
              .status = TARN__DONE};
    const char *on_full = options->on_full ? options->on_full : options->no_slide ? "refuse" : "forget";
    c.forgets = strcmp(on_full, "forget") == 0;
    if (options->no_slide && c.forgets) {
        fprintf(stderr, "tarn chat: --no-slide and --on-full forget exclude each other; give one\n");
        return TARN__MISUSED;
    }
    if (!c.forgets && strcmp(on_full, "refuse") != 0) {
        fprintf(stderr, "tarn chat: --on-full: '%s' must be refuse or forget\n", on_full);
        return TARN__MISUSED;
    }
    if (options->repeat_last_n && options->repeat_penalty == 1) {
        fprintf(stderr, "tarn chat: --repeat-last-n needs --repeat-penalty\n");
        return TARN__MISUSED;
    }
    int status = tarn__lm_options("chat", options, &c.kv_type);
    if (status == TARN__DONE)
        status = tarn__lm_speculate_options("chat", options, &c.speculate);
    if (status == TARN__DONE)
        status = tarn__checkpoint_use("chat", options, &c.weights);
    if (status == TARN__DONE && options->tools)
        status = tarn__tools_read(options->tools, &c.tools);
    if (status == TARN__DONE)
        status = run(&c);
    tarn__history_free(&c.history);
    free(c.tools.text);
    tarn_generator_free(c.writer);
    tarn_grammar_free(c.grammar);
    tarn_tokenizer_free(c.tokenizer);
    tarn_tokenizer_free(c.draft_tokenizer);
    tarn_module_free(c.draft);
    tarn_module_free(c.model);
    return status;
}
