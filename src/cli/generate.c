/* generate.c: `tarn generate`: a language model goes on with a prompt; what it writes is printed as it comes. The tokenizer lies in the model's
 * folder; with --ids there is none, and numbers take the place of text. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/generate.h>
#include <tarn/text.h>

#include "cli/cli.h"

#define USUAL 100 /* tokens, unless told */

typedef struct writing {
    const tarn__options *options;
    tarn_tokenizer *tokenizer; /* NULL: numbers */
    int32_t *prompt;
    int64_t prompt_count;
    int32_t *made;
    int64_t count, room;
    bool failed; /* there was no memory */
} writing;

static int misuse(const char *sentence, const char *text)
{
    fprintf(stderr, "tarn generate: %s%s%s%s\n", text ? "--ids: '" : "", text ? text : "", text ? "' " : "", sentence);
    return TARN__MISUSED;
}

/* ---- the prompt ------------------------------------------------------------------------------------------------------------ */

static int no_memory(void)
{
    fprintf(stderr, "tarn generate: out of memory\n");
    return TARN__FAILED;
}

/* "1,2,3" */
static int read_ids(writing *w, const char *text)
{
    size_t commas = 0;
    for (const char *c = text; *c; c++)
        commas += *c == ',';
    w->prompt = malloc((commas + 1) * sizeof(*w->prompt));
    if (!w->prompt)
        return no_memory();
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || *at == ' ' || *at == '+' || (*end && *end != ','))
            return misuse("is no list of whole numbers, separated by commas", text);
        if (id < 0 || id > INT32_MAX || errno)
            return misuse("has a number that no token has", text);
        w->prompt[w->prompt_count++] = (int32_t)id;
        if (!*end)
            return TARN__DONE;
        at = end + 1;
    }
}

/* Without a prompt a text begins after the token that ends texts, as GPT-2 was trained. */
static int read_end(writing *w, const tarn_module *model)
{
    tarn_gpt2_config config;
    if (!tarn_gpt2_config_of(model, &config))
        return tarn__complain("generate");
    if (!config.has_end)
        return misuse("a prompt is missing, and the model has no token that texts begin with", NULL);
    w->prompt = malloc(sizeof(*w->prompt));
    if (!w->prompt)
        return no_memory();
    w->prompt[w->prompt_count++] = (int32_t)config.end;
    return TARN__DONE;
}

static int read_words(writing *w, const char *text)
{
    int64_t count = 0;
    int32_t *ids = tarn_tokenizer_encode(w->tokenizer, text, strlen(text), &(tarn_encode_options){.add_special = true}, &count);
    if (!ids)
        return tarn__complain("generate");
    w->prompt = malloc((size_t)(count + 1) * sizeof(*w->prompt));
    if (w->prompt && count)
        memcpy(w->prompt, ids, (size_t)count * sizeof(*w->prompt));
    tarn_tokenizer_release(ids);
    w->prompt_count = count;
    return w->prompt ? TARN__DONE : no_memory();
}

static int read_prompt(writing *w, const tarn_module *model)
{
    const tarn__options *o = w->options;
    if (o->ids)
        return read_ids(w, o->ids);
    w->tokenizer = tarn_tokenizer_open(o->words[0]);
    if (!w->tokenizer)
        return tarn__complain("generate");
    return o->word_count > 1 && o->words[1][0] ? read_words(w, o->words[1]) : read_end(w, model);
}

/* ---- the text -------------------------------------------------------------------------------------------------------------- */

static bool remember(writing *w, int32_t token)
{
    if (w->count == w->room) {
        int64_t room = w->room ? 2 * w->room : 256;
        int32_t *made = realloc(w->made, (size_t)room * sizeof(*made));
        if (!made)
            return false;
        w->made = made;
        w->room = room;
    }
    w->made[w->count++] = token;
    return true;
}

static bool print_token(const writing *w, int32_t token)
{
    size_t length = 0;
    if (!w->tokenizer) {
        printf("%s%d", w->count > 1 ? " " : "", (int)token);
        return fflush(stdout) == 0;
    }
    char *text = tarn_tokenizer_decode(w->tokenizer, &token, 1, &length); /* of a letter, perhaps a part */
    if (!text)
        return false;
    fwrite(text, 1, length, stdout);
    tarn_tokenizer_release(text);
    return fflush(stdout) == 0;
}

static bool on_token(int32_t token, void *ctx)
{
    writing *w = ctx;
    if (!remember(w, token)) {
        w->failed = true;
        return false;
    }
    if (!w->options->json && !print_token(w, token))
        return false;
    return (w->options->tokens > 0 || w->count < USUAL) && !ferror(stdout);
}

static void print_ids(tarn__json *json, const char *key, const int32_t *ids, int64_t count)
{
    tarn__json_open(json, key, '[');
    for (int64_t i = 0; i < count; i++)
        tarn__json_whole(json, NULL, ids[i]);
    tarn__json_close(json, ']');
}

static int print_json(const writing *w)
{
    tarn__json json = {stdout, false};
    size_t length = 0;
    char *text = w->tokenizer ? tarn_tokenizer_decode(w->tokenizer, w->made, w->count, &length) : NULL;
    if (w->tokenizer && !text)
        return tarn__complain("generate");
    tarn__json_open(&json, NULL, '{');
    tarn__json_text(&json, "model", w->options->words[0]);
    tarn__json_whole(&json, "seed", w->options->seed);
    print_ids(&json, "prompt", w->prompt, w->prompt_count);
    print_ids(&json, "tokens", w->made, w->count);
    if (text)
        tarn__json_bytes(&json, "text", text, length);
    tarn__json_end(&json);
    tarn_tokenizer_release(text);
    return TARN__DONE;
}

static int write_text(writing *w, tarn_module *model)
{
    const tarn__options *o = w->options;
    int64_t made = tarn_generate(model, w->prompt, w->prompt_count, NULL,
                                 &(tarn_generate_options){.tokens = o->tokens,
                                                          .temperature = o->temperature,
                                                          .top_k = o->top_k,
                                                          .top_p = o->top_p,
                                                          .seed = (uint64_t)o->seed,
                                                          .ignore_end = o->ignore_end,
                                                          .on_token = on_token,
                                                          .ctx = w});
    if (made < 0) {
        bool misused = tarn_error_code() == TARN_ERROR_ARGUMENT || tarn_error_code() == TARN_ERROR_SHAPE;
        tarn__complain("generate");
        return misused ? TARN__MISUSED : TARN__FAILED;
    }
    if (w->failed)
        return no_memory();
    if (o->json)
        return print_json(w);
    printf("\n");
    return TARN__DONE;
}

int tarn__generate(const tarn__options *options)
{
    writing w = {.options = options};
    if (options->word_count > 1 && options->ids)
        return misuse("a prompt in words and --ids are two prompts; give one", NULL);
    tarn_module *model = tarn_model_open(options->words[0], options->device, &(tarn_model_open_options){.dtype = options->dtypes[0].dtype});
    if (!model)
        return tarn__complain("generate");
    int status = read_prompt(&w, model);
    if (status == TARN__DONE)
        status = write_text(&w, model);
    free(w.prompt);
    free(w.made);
    tarn_tokenizer_free(w.tokenizer);
    tarn_module_free(model);
    return status;
}
