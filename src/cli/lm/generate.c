/* generate.c: `tarn generate`: a language model continues a prompt; a single sequence is printed as it is generated.
 * The tokenizer is the model's; with --ids there is none, and token ids take the place of text. Several sequences, and
 * JSON, are printed when all have finished.
 *
 * Every sequence keeps its tokens and text until the end: JSON needs them, and a stream needs the count. Sequence i
 * samples with the seed --seed + i. `job` owns everything; close_job() frees it, after any failure too. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/lm/sequences.h"

#define DEFAULT_TOKENS 100   /* of --max-tokens 0 */
#define PLANNED_CONTEXT 4096 /* tokens that several devices have room for: the prompt is not read yet */

/* One generated token. */
typedef struct token {
    int32_t id;
    double logprob;
    tarn_candidate *top_logprobs; /* owned; NULL without --top-logprobs */
} token;

/* One generated sequence; owns its arrays. */
typedef struct text {
    token *tokens;
    int64_t count;
    size_t capacity; /* of `tokens`, in elements */
    tarn__input bytes;
    tarn_finish_reason end;
    int64_t cached; /* tokens of the prompt that were not computed for it */
} text;

/* Zeroed members are valid for clean-up. */
typedef struct job {
    const tarn__options *options;
    tarn_kv_type kv_type;
    tarn_speculate speculate;
    tarn_module *model, *draft; /* draft NULL: none */
    tarn_tokenizer *tokenizer;  /* NULL: token ids only */
    tarn_tokenizer *draft_tokenizer;
    tarn_model_info info;
    tarn__prompt prompt;
    tarn__sequences sequences;
    tarn_grammar *grammar; /* NULL: none */
    text *texts;
    double began, first, ended; /* seconds, monotonic: before the prefill, after the first token, at the end */
    bool streams;               /* outputs are printed at once */
    int64_t context;            /* KV cache capacity in tokens */
    bool has_slid;              /* the notice about a full context was printed */
} job;

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

/* Prints the library's error; wrong arguments are misuse. */
static int library_error(void)
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

/* ---- sequences --------------------------------------------------------------------------------------------------- */

/* Copies the token: an output is valid until the next one only. False without memory. */
static bool append_token(text *t, const tarn_output *output)
{
    if (!tarn__input_reserve(&t->tokens, (size_t)t->count, &t->capacity, 1, sizeof(*t->tokens)))
        return false;
    token *now = &t->tokens[t->count];
    *now = (token){.id = output->token, .logprob = output->logprob};
    size_t bytes = sizeof(*now->top_logprobs) * (size_t)output->top_logprob_count;
    if (bytes > 0 && !(now->top_logprobs = malloc(bytes)))
        return false;
    if (bytes > 0)
        memcpy(now->top_logprobs, output->top_logprobs, bytes);
    t->count++;
    return true;
}

/* Appends text and token. A stop string may hold text back, so an output can have a token without text, or text without
 * a token (token < 0). */
static bool append(text *t, const tarn_output *output)
{
    if (!tarn__input_add(&t->bytes, output->text, output->length))
        return false;
    t->end = output->finish_reason;
    return output->token < 0 || append_token(t, output);
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

/* Flushed per token: the user reads along. */
static void print_output(const job *w, const tarn_output *output)
{
    if (w->tokenizer)
        tarn__print_generated(output->text, output->length);
    else if (output->token >= 0)
        printf("%s%d", w->texts[0].count > 1 || w->options->echo ? " " : "", (int)output->token);
    fflush(stdout);
}

/* --echo: the prompt as text, or as ids without a tokenizer. */
static void print_prompt(const job *w)
{
    if (w->tokenizer)
        tarn__print_generated(w->prompt.text.text, w->prompt.text.length);
    for (int64_t i = 0; !w->tokenizer && i < w->prompt.count; i++)
        printf("%s%d", i ? " " : "", (int)w->prompt.tokens[i]);
}

/* One of several sequences, under a line with its number. */
static void print_text(const job *w, int64_t i)
{
    const text *t = &w->texts[i];
    tarn__heading("--- %lld of %lld ---", (long long)i + 1, (long long)w->options->sequences);
    if (w->options->echo)
        print_prompt(w);
    if (w->tokenizer)
        tarn__print_generated(t->bytes.text, t->bytes.length);
    for (int64_t k = 0; !w->tokenizer && k < t->count; k++)
        printf("%s%d", k || w->options->echo ? " " : "", (int)t->tokens[k].id);
    printf("\n");
}

/* Per generated token: its log probability and the --top-logprobs candidates, most probable first. */
static void print_logprobs(tarn__json *json, const job *w, const text *t)
{
    tarn__json_open(json, "logprobs", '[');
    for (int64_t i = 0; i < t->count; i++) {
        tarn__json_open(json, NULL, '{');
        tarn__json_int(json, "token", t->tokens[i].id);
        tarn__json_real(json, "logprob", t->tokens[i].logprob, 6);
        tarn__json_open(json, "top_logprobs", '[');
        for (int64_t k = 0; k < w->options->top_logprobs; k++) {
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

/* Decode speed excludes the first token of every sequence: it belongs to the prefill. */
static void print_speed(tarn__json *json, const job *w)
{
    int64_t all = 0;
    for (int64_t i = 0; i < w->options->sequences; i++)
        all += w->texts[i].count;
    double wrote = w->ended - w->first;
    tarn__json_real(json, "first_token_ms", 1e3 * (w->first - w->began), 3);
    tarn__json_real(json, "tokens_per_second",
                    wrote > 0 && all > w->options->sequences ? (double)(all - w->options->sequences) / wrote : 0, 2);
    tarn_generator_stats stats;
    if (w->speculate == TARN_SPECULATE_OFF || !tarn_generator_query(w->sequences.generator, &stats))
        return;
    tarn__json_int(json, "proposed_tokens", stats.proposed_tokens);
    tarn__json_int(json, "accepted_tokens", stats.accepted_tokens);
}

/* `ends` is indexed by tarn_finish_reason. */
static void print_json(const job *w, int64_t i)
{
    static const char *const ends[] = {"none", "token", "text", "length", "grammar"};
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
        tarn__json_bytes(&json, "prompt_text", w->prompt.text.text, w->prompt.text.length);
    if (w->tokenizer)
        tarn__json_bytes(&json, "text", t->bytes.text, t->bytes.length);
    tarn__json_string(&json, "finish_reason", ends[t->end]);
    if (w->sequences.engine)
        tarn__json_int(&json, "cached_tokens", t->cached);
    if (w->options->top_logprobs)
        print_logprobs(&json, w, t);
    print_speed(&json, w);
    tarn__json_end(&json);
}

/* ---- generation -------------------------------------------------------------------------------------------------- */

/* Number of tokens to generate, and the KV cache capacity for them. False with an error: the prompt is too long, or
 * --max-tokens does not fit. */
static bool plan(const job *w, int64_t *tokens, int64_t *context)
{
    const tarn__options *o = w->options;
    int64_t most = o->context ? o->context : w->info.context, left = most - w->prompt.count;
    if (!o->no_slide) {
        *tokens = o->max_tokens ? o->max_tokens : DEFAULT_TOKENS;
        *context = o->context || left < *tokens ? most : w->prompt.count + *tokens;
        return true;
    }
    *tokens = o->max_tokens ? o->max_tokens : left < DEFAULT_TOKENS ? left : DEFAULT_TOKENS;
    *context = o->context ? o->context : w->prompt.count + *tokens;
    if (left < 1)
        return tarn_set_error(TARN_ERROR_SHAPE, "a prompt of %lld tokens fills the context of %lld",
                              (long long)w->prompt.count, (long long)most);
    if (*tokens > left)
        return tarn_set_error(
            TARN_ERROR_SHAPE,
            "a prompt of %lld tokens and %lld more do not fit into the context of %lld; ask for %lld at most",
            (long long)w->prompt.count, (long long)*tokens, (long long)most, (long long)left);
    return true;
}

/* Submits the prompt once per sequence. False with an error. */
static bool begin(job *w)
{
    const tarn__options *o = w->options;
    int64_t tokens, context;
    if (!plan(w, &tokens, &context))
        return false;
    w->context = context;
    const tarn__sequences_plan all = {.model = w->model,
                                      .tokenizer = w->tokenizer,
                                      .info = &w->info,
                                      .prompt = &w->prompt,
                                      .generator = {.sequences = o->sequences,
                                                    .context = context,
                                                    .kv_type = w->kv_type,
                                                    .prefill_chunk = o->prefill_chunk,
                                                    .draft = w->draft,
                                                    .draft_tokenizer = w->draft_tokenizer},
                                      .each = {.max_tokens = tokens,
                                               .temperature = o->temperature,
                                               .top_k = o->top_k,
                                               .top_p = o->top_p,
                                               .min_p = o->min_p,
                                               .repeat_penalty = o->repeat_penalty,
                                               .repeat_last_n = o->repeat_last_n,
                                               .frequency_penalty = o->frequency_penalty,
                                               .presence_penalty = o->presence_penalty,
                                               .seed = (uint64_t)o->seed,
                                               .stop_strings = o->stops,
                                               .stop_string_count = o->stop_count,
                                               .ignore_eos = o->ignore_eos,
                                               .logprobs = o->top_logprobs > 0,
                                               .top_logprobs = (int)o->top_logprobs,
                                               .grammar = w->grammar,
                                               .speculate = w->speculate,
                                               .draft_tokens = o->draft_tokens,
                                               .slide = !o->no_slide && context > 1}};
    return tarn__sequences_begin(&w->sequences, &all);
}

/* Prints one notice about a text longer than the context. */
static void print_context_notice(job *w, const tarn_output *output)
{
    /* is_full: the prompt and the generated tokens fill the context exactly */
    bool is_full = w->options->no_slide && output->finish_reason == TARN_FINISH_LENGTH &&
                   w->prompt.count + w->texts[output->sequence].count == w->context;
    if (w->has_slid || !(output->slid || (is_full && !w->options->max_tokens)))
        return;
    w->has_slid = true;
    if (is_full)
        fprintf(stderr, "(the context of %lld tokens is full: generation stops)\n", (long long)w->context);
    else if (w->prompt.count >= w->context)
        fprintf(
            stderr,
            "(the prompt has %lld tokens, and the context %lld: only its last %lld are used; --no-slide refuses such a "
            "prompt)\n",
            (long long)w->prompt.count, (long long)w->context, (long long)(w->context / 2));
    else
        fprintf(
            stderr,
            "%s(the context of %lld tokens is full: generation continues from its last %lld; --no-slide stops there)\n",
            w->streams && isatty(STDERR_FILENO) ? "\n" : "", (long long)w->context, (long long)(w->context / 2));
}

/* Generates until all sequences have finished, or standard output is closed. */
static int generate(job *w)
{
    tarn_output output;
    int64_t cached;
    w->began = seconds();
    if (!begin(w))
        return library_error();
    if (w->streams && w->options->echo)
        print_prompt(w);
    while (!ferror(stdout) && tarn__sequences_next(&w->sequences, &output, &cached)) {
        w->texts[output.sequence].cached = cached;
        w->first = w->first > 0 ? w->first : seconds();
        if (!append(&w->texts[output.sequence], &output))
            return no_memory();
        if (w->streams)
            print_output(w, &output);
        print_context_notice(w, &output);
    }
    w->ended = seconds();
    if (tarn_failed())
        return library_error();
    for (int64_t i = 0; !w->streams && i < w->options->sequences; i++)
        (w->options->json ? print_json : print_text)(w, i);
    if (w->streams)
        printf("\n");
    if (w->speculate != TARN_SPECULATE_OFF && !w->options->json)
        tarn__lm_print_speculation(w->sequences.generator);
    return TARN__DONE;
}

/* Opens model and tokenizer and reads the prompt: the model first, as its BOS token may be the prompt. */
static int run(job *w)
{
    const tarn__options *o = w->options;
    tarn_run_weights weights;
    int status = tarn__checkpoint_use("generate", o, &weights);
    if (status != TARN__DONE)
        return status;
    const tarn_model_split_options cache = {
        .context = o->context ? o->context : PLANNED_CONTEXT, .sequences = o->sequences, .kv_type = w->kv_type};
    w->model = tarn__lm_model(o, &weights, &cache);
    if (!w->model || !tarn_model_query(w->model, &w->info))
        return tarn__print_error("generate");
    if (!o->ids && !(w->tokenizer = tarn__lm_tokenizer(o)))
        return tarn__print_error("generate");
    status = tarn__lm_draft("generate", o, &w->draft, &w->draft_tokenizer);
    if (status == TARN__DONE)
        status = tarn__lm_grammar("generate", o, w->tokenizer, &w->info, &w->grammar);
    if (status == TARN__DONE)
        status = tarn__prompt_read(&w->prompt, o, w->tokenizer, &w->info);
    if (status != TARN__DONE)
        return status;
    w->texts = calloc((size_t)o->sequences, sizeof(*w->texts));
    return w->texts ? generate(w) : no_memory();
}

/* Members that were never set are NULL. */
static void close_job(job *w)
{
    for (int64_t i = 0; w->texts && i < w->options->sequences; i++) {
        for (int64_t k = 0; k < w->texts[i].count; k++)
            free(w->texts[i].tokens[k].top_logprobs);
        free(w->texts[i].tokens);
        free(w->texts[i].bytes.text);
    }
    free(w->texts);
    tarn__sequences_free(&w->sequences);
    tarn_grammar_free(w->grammar);
    tarn__prompt_free(&w->prompt);
    tarn_tokenizer_free(w->tokenizer);
    tarn_tokenizer_free(w->draft_tokenizer);
    tarn_module_free(w->draft);
    tarn_module_free(w->model);
}

int tarn__generate(const tarn__options *options)
{
    job w = {.options = options, .streams = !options->json && options->sequences == 1};
    int prompts = (options->word_count > 1) + (options->ids != NULL) + (options->prompt_file != NULL);
    if (prompts > 1)
        return misuse("more than one prompt; give one of: a prompt argument, --prompt-file, --ids");
    if (options->ids && options->stop_count)
        return misuse("--stop needs a tokenizer, and --ids uses none; give one of them");
    if (options->top_logprobs && !options->json)
        return misuse("--top-logprobs needs --json");
    if (options->repeat_last_n && options->repeat_penalty == 1)
        return misuse("--repeat-last-n needs --repeat-penalty");
    int status = tarn__lm_options("generate", options, &w.kv_type);
    if (status == TARN__DONE)
        status = tarn__lm_speculate_options("generate", options, &w.speculate);
    if (status == TARN__DONE && w.speculate != TARN_SPECULATE_OFF && options->sequences > 1)
        status = misuse("--speculate is for one sequence; give --n 1");
    if (status == TARN__DONE)
        status = run(&w);
    close_job(&w);
    return status;
}
