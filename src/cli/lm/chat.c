/* chat.c: `tarn chat`: a conversation with a language model, from a terminal or a pipe: the model, answers, the turns.
 *
 * The model's chat template renders the whole conversation for each answer; the generator reuses the KV cache of the
 * common prefix, so only new tokens are computed. Ctrl-C ends an answer, not the program: the text so far stays in the
 * conversation.
 *
 * Answers go to standard output; the prompt, notices and errors go to standard error, so that a pipe carries answers
 * alone. Errors of one message (too long, a zero byte) keep an interactive conversation alive and set the exit status
 * of a pipe. The conversation owns model, tokenizer, generator and messages; tarn__chat() frees them. Everything runs
 * on one thread. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/lm/chat.h"

#define DEFAULT_CONTEXT 4096 /* tokens, for models with more */
#define ANSWER_FRACTION 4    /* a fourth of the context is free after turns were dropped */

/* Set by Ctrl-C, read between two tokens. */
static volatile sig_atomic_t interrupted;

/* Async-signal-safe: sets a flag only. */
static void interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

int tarn__chat_no_memory(tarn__conversation *c)
{
    c->is_broken = true;
    fprintf(stderr, "tarn chat: out of memory\n");
    return TARN__FAILED;
}

void tarn__chat_refused(tarn__conversation *c)
{
    c->status = c->is_interactive ? c->status : TARN__FAILED;
}

int tarn__chat_system_count(const tarn__history *h)
{
    return h->count > 0 && strcmp(h->messages[0].role, "system") == 0;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* Tokens of the conversation up to the start of the answer. NULL with an error. */
static int32_t *encode(const tarn__conversation *c, int64_t *count)
{
    return tarn__history_encode(&c->history, c->history.count, tarn_generator_tokenizer(c->writer), c->tools.text, true,
                                count);
}

static int library_error(tarn__conversation *c)
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
static int32_t *forget(tarn__conversation *c, int32_t *tokens, int64_t *count)
{
    int turns = 0, first = tarn__chat_system_count(&c->history);
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
static void refuse(tarn__conversation *c, int64_t count)
{
    fprintf(stderr,
            "tarn chat: the %s %lld tokens, and the context is %lld: no capacity left for an answer; the question was "
            "skipped. %s\n",
            c->forgets ? "question alone takes" : "conversation has", (long long)count, (long long)c->context,
            c->forgets ? "Ask a shorter one, or give a larger --context"
                       : "/reset starts over; without --no-slide (--on-full refuse) the oldest turns are dropped");
    tarn__history_remove(&c->history, c->history.count - 1, 1);
    tarn__chat_refused(c);
}

/* Number of leading tokens of the system message, which stay when the KV cache slides. Found as the common prefix with
 * the system message rendered alone, since templates put it anywhere. 0: no such prefix, or over half of the context.
 */
static int64_t system_tokens(const tarn__conversation *c, const int32_t *tokens, int64_t count)
{
    int64_t length = 0, same = 0;
    if (tarn__chat_system_count(&c->history) == 0)
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
static bool begin(tarn__conversation *c, const int32_t *tokens, int64_t count)
{
    const tarn__options *o = &c->options;
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

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Speed of an answer: the first token shows what the prompt took, the rate is that of the others. */
static void print_speed(int64_t tokens, double first, double rest)
{
    fprintf(stderr, "(%lld token%s", (long long)tokens, tokens == 1 ? "" : "s");
    if (tokens > 1 && rest > 0)
        fprintf(stderr, ", %.1f tokens/s", (double)(tokens - 1) / rest);
    fprintf(stderr, tokens > 0 ? ", first after %.2f s)\n" : ")\n", first);
}

/* Prints the answer token by token. Returns a copy of it, which the caller frees; NULL without memory. Stops at Ctrl-C
 * and when standard output is closed. `start` is when the question was asked. */
static char *print_answer(const tarn__conversation *c, tarn_output *piece, double start)
{
    tarn__input text = {0};
    int64_t tokens = 0;
    double first = start;
    bool has_slid = false, good = tarn__input_add(&text, "", 0);
    while (good && !interrupted && !ferror(stdout) && tarn_generator_next(c->writer, piece)) {
        first = tokens++ == 0 ? now() : first;
        tarn__print_generated(piece->text, piece->length);
        fflush(stdout);
        good = tarn__input_add(&text, piece->text, piece->length);
        has_slid = has_slid || piece->slid;
    }
    printf("\n");
    fflush(stdout);
    if (c->is_measured)
        print_speed(tokens, first - start, now() - first);
    if (has_slid)
        fprintf(stderr, "(the context of %lld tokens was full: the answer continues from its last %lld%s)\n",
                (long long)c->context, (long long)(c->context / 2),
                tarn__chat_system_count(&c->history) ? " and the system message" : "");
    if (!good)
        free(text.text);
    return good ? text.text : NULL;
}

/* Appends the answer to the history and lists its calls of tools. False without memory. */
static bool keep_answer(tarn__conversation *c, const char *text)
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
static bool print_and_keep_answer(tarn__conversation *c, double start)
{
    tarn_output piece = {0};
    int64_t length = 0;
    char *text = print_answer(c, &piece, start);
    tarn_generator_stop(c->writer, 0);
    bool is_full = piece.finish_reason == TARN_FINISH_LENGTH && tarn_generator_tokens(c->writer, 0, &length) &&
                   !c->forgets && length == c->context;
    if (is_full)
        fprintf(stderr, "(the context of %lld tokens is full: the answer ends here)\n", (long long)c->context);
    else if (piece.finish_reason == TARN_FINISH_LENGTH && c->forgets && !c->options.max_tokens)
        fprintf(stderr, "(the answer ends at %lld tokens; --max-tokens allows more)\n", (long long)c->context);
    bool good = text && !tarn_failed() && keep_answer(c, text);
    free(text);
    return good;
}

void tarn__chat_respond(tarn__conversation *c)
{
    int64_t count = 0;
    double start = now();
    interrupted = 0; /* before the prefill: Ctrl-C during it counts */
    int32_t *tokens = encode(c, &count);
    if (tokens && c->forgets && count >= c->context - c->context / ANSWER_FRACTION)
        tokens = forget(c, tokens, &count);
    if (tokens && count >= c->context)
        refuse(c, count);
    else if (!tokens || !begin(c, tokens, count) || !print_and_keep_answer(c, start))
        c->status = tarn_failed() ? library_error(c) : tarn__chat_no_memory(c);
    tarn_tokenizer_release(tokens);
}

void tarn__chat_answer(tarn__conversation *c, const char *question)
{
    c->pending = 0;
    if (tarn__history_add(&c->history, "user", question, NULL))
        tarn__chat_respond(c);
    else
        c->status = tarn__chat_no_memory(c);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* Until the end of input, /exit, an error, or a closed standard output. Empty messages are ignored. */
static void talk(tarn__conversation *c)
{
    char *message;
    bool continues = true;
    while (continues && !c->is_broken && !ferror(stdout) && (message = tarn__chat_read(c, NULL)) != NULL)
        if (message[0] == '/' && !c->is_block)
            continues = tarn__chat_command(c, message);
        else if (message[0])
            tarn__chat_answer(c, message);
}

/* False with an error; tarn__chat() frees whatever was opened. A tokenizer without a chat template is an error. */
static bool open_writer(tarn__conversation *c)
{
    const tarn__options *o = &c->options;
    tarn_model_info info;
    const tarn_model_split_options cache = {.context = o->context ? o->context : DEFAULT_CONTEXT,
                                            .kv_type = c->kv_type};
    c->model = tarn__lm_model(o, &c->weights, &cache);
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

static int run(tarn__conversation *c)
{
    int status = tarn__lm_draft("chat", &c->options, &c->draft, &c->draft_tokenizer);
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
    status = tarn__lm_grammar("chat", &c->options, c->tokenizer, &info, &c->grammar);
    if (status != TARN__DONE)
        return status;
    if (c->options.system && !tarn__history_add(&c->history, "system", c->options.system, NULL))
        return tarn__chat_no_memory(c);
    catch_interrupts();
    if (c->is_interactive)
        c->editor = tarn__line_editor_open(!c->options.no_history);
    if (c->is_interactive && !c->options.quiet)
        fprintf(stderr, "%s template, context of %lld tokens; /help lists commands, Ctrl-C ends an answer\n",
                tarn_chat_name(c->tokenizer), (long long)c->context);
    talk(c);
    if (c->speculate != TARN_SPECULATE_OFF)
        tarn__lm_print_speculation(c->writer);
    return c->status;
}

int tarn__chat(const tarn__options *options)
{
    tarn__conversation c = {.options = *options,
                            .is_interactive = isatty(STDIN_FILENO),
                            .is_measured = isatty(STDIN_FILENO) && isatty(STDERR_FILENO) && !options->quiet,
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
    tarn__line_editor_close(c.editor);
    tarn__history_free(&c.history);
    free(c.line.text);
    free(c.message.text);
    free(c.tools.text);
    tarn_generator_free(c.writer);
    tarn_grammar_free(c.grammar);
    tarn_tokenizer_free(c.tokenizer);
    tarn_tokenizer_free(c.draft_tokenizer);
    tarn_module_free(c.draft);
    tarn_module_free(c.model);
    return status;
}
