/* generate.c: `tarn generate`: a language model goes on with a prompt; what it writes is printed as it comes. The
 * tokenizer lies with the model; with --ids there is none, and numbers take the place of text. Several texts, and JSON,
 * are printed when all are written. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/lm/lm_common.h"
#include "cli/lm/prompt.h"

#define USUAL 100 /* tokens, unless told */

/* One token, and what is known of it. */
typedef struct token {
    int32_t id;
    double logprob;
    tarn_candidate *top_logprobs; /* of it: --logprobs; NULL without */
} token;

/* One text that is written. */
typedef struct text {
    token *tokens;
    int64_t count, room;
    char *bytes;
    size_t length, byte_room;
    tarn_finish_reason end;
} text;

typedef struct writing {
    const tarn__options *options;
    tarn_kv_type kv_type;
    tarn_module *model;
    tarn_tokenizer *tokenizer; /* NULL: numbers */
    tarn_model_info info;
    tarn__prompt prompt;
    tarn_generator *writer;
    text *texts;
    double began, first, ended; /* seconds */
    bool streams;               /* pieces are printed as they come */
    int64_t context;            /* tokens that there is room for */
    bool has_slid;              /* and that was said */
} writing;

static int misuse(const char *sentence)
{
    fprintf(stderr, "tarn generate: %s\n", sentence);
    return TARN__MISUSED;
}

static int no_memory(void)
{
    fprintf(stderr, "tarn generate: out of memory\n");
    return TARN__FAILED;
}

/* What the library found wrong: the caller's fault, or not. */
static int complain(void)
{
    bool misused = tarn_error_code() == TARN_ERROR_ARGUMENT || tarn_error_code() == TARN_ERROR_SHAPE;
    tarn__print_error("generate");
    return misused ? TARN__MISUSED : TARN__FAILED;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- remembering ------------------------------------------------------------------------------------------------- */

static bool remember_token(text *t, const tarn_output *piece)
{
    if (t->count == t->room) {
        int64_t room = t->room ? 2 * t->room : 256;
        token *tokens = realloc(t->tokens, (size_t)room * sizeof(*tokens));
        if (!tokens)
            return false;
        t->tokens = tokens;
        t->room = room;
    }
    token *now = &t->tokens[t->count];
    *now = (token){.id = piece->token, .logprob = piece->logprob};
    size_t bytes = sizeof(*now->top_logprobs) * (size_t)piece->top_logprob_count;
    if (bytes > 0 && !(now->top_logprobs = malloc(bytes)))
        return false;
    if (bytes > 0)
        memcpy(now->top_logprobs, piece->top_logprobs, bytes);
    t->count++;
    return true;
}

static bool remember(text *t, const tarn_output *piece)
{
    if (t->length + piece->length > t->byte_room) {
        size_t room = 2 * (t->length + piece->length);
        char *bytes = realloc(t->bytes, room);
        if (!bytes)
            return false;
        t->bytes = bytes;
        t->byte_room = room;
    }
    if (piece->length > 0)
        memcpy(t->bytes + t->length, piece->text, piece->length);
    t->length += piece->length;
    t->end = piece->finish_reason;
    return piece->token < 0 || remember_token(t, piece);
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static void print_piece(const writing *w, const tarn_output *piece)
{
    if (w->tokenizer)
        tarn__print_generated(piece->text, piece->length);
    else if (piece->token >= 0)
        printf("%s%d", w->texts[0].count > 1 || w->options->echo ? " " : "", (int)piece->token);
    fflush(stdout);
}

static void print_prompt(const writing *w)
{
    if (w->tokenizer)
        tarn__print_generated(w->prompt.text, w->prompt.length);
    for (int64_t i = 0; !w->tokenizer && i < w->prompt.count; i++)
        printf("%s%d", i ? " " : "", (int)w->prompt.tokens[i]);
}

/* One of several texts, under a line with its number. */
static void print_text(const writing *w, int64_t i)
{
    const text *t = &w->texts[i];
    tarn__heading("--- %lld of %lld ---", (long long)i + 1, (long long)w->options->sequences);
    if (w->options->echo)
        print_prompt(w);
    if (w->tokenizer)
        tarn__print_generated(t->bytes, t->length);
    for (int64_t k = 0; !w->tokenizer && k < t->count; k++)
        printf("%s%d", k || w->options->echo ? " " : "", (int)t->tokens[k].id);
    printf("\n");
}

static void print_logprobs(tarn__json *json, const writing *w, const text *t)
{
    tarn__json_open(json, "logprobs", '[');
    for (int64_t i = 0; i < t->count; i++) {
        tarn__json_open(json, NULL, '{');
        tarn__json_int(json, "token", t->tokens[i].id);
        tarn__json_real(json, "logprob", t->tokens[i].logprob, 6);
        tarn__json_open(json, "likeliest", '[');
        for (int64_t k = 0; k < w->options->logprobs; k++) {
            tarn__json_open(json, NULL, '{');
            tarn__json_int(json, "token", t->tokens[i].top_logprobs[k].token);
            tarn__json_real(json, "logprob", t->tokens[i].top_logprobs[k].logprob, 6);
            tarn__json_close(json, '}');
        }
        tarn__json_close(json, ']');
        tarn__json_close(json, '}');
    }
    tarn__json_close(json, ']');
}

static void print_speed(tarn__json *json, const writing *w)
{
    int64_t all = 0;
    for (int64_t i = 0; i < w->options->sequences; i++)
        all += w->texts[i].count;
    double wrote = w->ended - w->first;
    tarn__json_real(json, "first_token_ms", 1e3 * (w->first - w->began), 3);
    tarn__json_real(json, "tokens_per_second",
                    wrote > 0 && all > w->options->sequences ? (double)(all - w->options->sequences) / wrote : 0, 2);
}

static void print_json(const writing *w, int64_t i)
{
    static const char *const ends[] = {"none", "token", "text", "length"};
    const text *t = &w->texts[i];
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    tarn__json_string(&json, "model", w->options->words[0]);
    tarn__checkpoint_json(&json, w->options);
    tarn__json_int(&json, "seed", w->options->seed + i);
    tarn__json_open(&json, "prompt", '[');
    for (int64_t k = 0; k < w->prompt.count; k++)
        tarn__json_int(&json, NULL, w->prompt.tokens[k]);
    tarn__json_close(&json, ']');
    tarn__json_open(&json, "tokens", '[');
    for (int64_t k = 0; k < t->count; k++)
        tarn__json_int(&json, NULL, t->tokens[k].id);
    tarn__json_close(&json, ']');
    if (w->tokenizer && w->options->echo)
        tarn__json_bytes(&json, "prompt_text", w->prompt.text, w->prompt.length);
    if (w->tokenizer)
        tarn__json_bytes(&json, "text", t->bytes, t->length);
    tarn__json_string(&json, "end", ends[t->end]);
    if (w->options->logprobs)
        print_logprobs(&json, w, t);
    print_speed(&json, w);
    tarn__json_end(&json);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* How many tokens to make, at most, and what there must be room for. False with an error: the prompt is too long, or
 * too much is asked for. */
static bool plan(const writing *w, int64_t *tokens, int64_t *context)
{
    const tarn__options *o = w->options;
    int64_t most = o->context ? o->context : w->info.context, left = most - w->prompt.count;
    if (!o->no_slide) {
        *tokens = o->tokens ? o->tokens : USUAL;
        *context = o->context || left < *tokens ? most : w->prompt.count + *tokens;
        return true;
    }
    *tokens = o->tokens ? o->tokens : left < USUAL ? left : USUAL;
    *context = o->context ? o->context : w->prompt.count + *tokens;
    if (left < 1)
        return tarn_set_error(TARN_ERROR_SHAPE, "a prompt of %lld tokens leaves no room in the context of %lld",
                              (long long)w->prompt.count, (long long)most);
    if (*tokens > left)
        return tarn_set_error(
            TARN_ERROR_SHAPE,
            "a prompt of %lld tokens and %lld more do not fit into the context of %lld; ask for %lld at most",
            (long long)w->prompt.count, (long long)*tokens, (long long)most, (long long)left);
    return true;
}

static bool begin(writing *w)
{
    const tarn__options *o = w->options;
    int64_t tokens, context;
    if (!plan(w, &tokens, &context))
        return false;
    w->context = context;
    w->writer = tarn_generator_new(
        w->model, w->tokenizer,
        &(tarn_generator_options){
            .sequences = o->sequences, .context = context, .kv_type = w->kv_type, .prefill_chunk = o->prefill_chunk});
    for (int64_t i = 0; w->writer && i < o->sequences; i++) {
        const tarn_generate_options how = {.max_tokens = tokens,
                                           .temperature = o->temperature,
                                           .top_k = o->top_k,
                                           .top_p = o->top_p,
                                           .min_p = o->min_p,
                                           .repeat_penalty = o->repeat_penalty,
                                           .repeat_last_n = o->repeat_last_n,
                                           .seed = (uint64_t)(o->seed + i),
                                           .stop_strings = o->stops,
                                           .stop_string_count = o->stop_count,
                                           .ignore_eos = o->ignore_eos,
                                           .logprobs = o->logprobs > 0,
                                           .top_logprobs = (int)o->logprobs,
                                           .slide = !o->no_slide && context > 1};
        if (!tarn_generator_prompt(w->writer, i, w->prompt.tokens, w->prompt.count, &how))
            return false;
    }
    return w->writer != NULL;
}

/* Says once what happened to a text that is longer than the context. */
static void tell_context(writing *w, const tarn_output *piece)
{
    bool is_full = w->options->no_slide && piece->finish_reason == TARN_FINISH_LENGTH &&
                   w->prompt.count + w->texts[piece->sequence].count == w->context;
    if (w->has_slid || !(piece->slid || (is_full && !w->options->tokens)))
        return;
    w->has_slid = true;
    if (is_full)
        fprintf(stderr, "(the context of %lld tokens is full: the text ends here)\n", (long long)w->context);
    else if (w->prompt.count >= w->context)
        fprintf(stderr,
                "(the prompt has %lld tokens, and the context %lld: its last %lld count; --no-slide refuses such a "
                "prompt)\n",
                (long long)w->prompt.count, (long long)w->context, (long long)(w->context / 2));
    else
        fprintf(stderr,
                "%s(the context of %lld tokens is full: the text goes on from its last %lld; --no-slide stops there)\n",
                w->streams && isatty(STDERR_FILENO) ? "\n" : "", (long long)w->context, (long long)(w->context / 2));
}

/* Writes until all texts have ended, or nobody reads. */
static int write_texts(writing *w)
{
    tarn_output piece;
    w->began = seconds();
    if (!begin(w))
        return complain();
    if (w->streams && w->options->echo)
        print_prompt(w);
    while (!ferror(stdout) && tarn_generator_next(w->writer, &piece)) {
        w->first = w->first > 0 ? w->first : seconds();
        if (!remember(&w->texts[piece.sequence], &piece))
            return no_memory();
        if (w->streams)
            print_piece(w, &piece);
        tell_context(w, &piece);
    }
    w->ended = seconds();
    if (tarn_failed())
        return complain();
    for (int64_t i = 0; !w->streams && i < w->options->sequences; i++)
        (w->options->json ? print_json : print_text)(w, i);
    if (w->streams)
        printf("\n");
    return TARN__DONE;
}

static int run(writing *w)
{
    const tarn__options *o = w->options;
    tarn_run_weights weights;
    int status = tarn__checkpoint_use("generate", o, &weights);
    if (status != TARN__DONE)
        return status;
    w->model = tarn__lm_model(o, &weights);
    if (!w->model || !tarn_model_query(w->model, &w->info))
        return tarn__print_error("generate");
    if (!o->ids && !(w->tokenizer = tarn__lm_tokenizer(o)))
        return tarn__print_error("generate");
    status = tarn__prompt_read(&w->prompt, o, w->tokenizer, &w->info);
    if (status != TARN__DONE)
        return status;
    w->texts = calloc((size_t)o->sequences, sizeof(*w->texts));
    return w->texts ? write_texts(w) : no_memory();
}

static void close_writing(writing *w)
{
    for (int64_t i = 0; w->texts && i < w->options->sequences; i++) {
        for (int64_t k = 0; k < w->texts[i].count; k++)
            free(w->texts[i].tokens[k].top_logprobs);
        free(w->texts[i].tokens);
        free(w->texts[i].bytes);
    }
    free(w->texts);
    tarn_generator_free(w->writer);
    tarn__prompt_free(&w->prompt);
    tarn_tokenizer_free(w->tokenizer);
    tarn_module_free(w->model);
}

int tarn__generate(const tarn__options *options)
{
    writing w = {.options = options, .streams = !options->json && options->sequences == 1};
    int prompts = (options->word_count > 1) + (options->ids != NULL) + (options->prompt_file != NULL);
    if (prompts > 1)
        return misuse("a prompt in words, --prompt-file and --ids are two prompts; give one");
    if (options->ids && options->stop_count)
        return misuse("--stop needs text, but with --ids there are numbers only");
    if (options->logprobs && !options->json)
        return misuse("--logprobs needs --json");
    if (options->repeat_last_n && options->repeat_penalty == 1)
        return misuse("--repeat-window needs --repeat-penalty");
    int status = tarn__lm_options("generate", options, &w.kv_type);
    if (status == TARN__DONE)
        status = run(&w);
    close_writing(&w);
    return status;
}
