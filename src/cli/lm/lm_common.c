/* lm_common.c: shared by generate, chat, eval and bench decode: opening a language model by the options, and reading a
 * prompt.
 *
 * A prompt comes from an argument, a file, a pipe on standard input, or --ids. A pipe is read only where no other
 * prompt is given, so that the command works inside loops whose standard input belongs to something else. */
#include "cli/lm/lm_common.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tarn/lora.h>
#include <unistd.h>

#include "cli/cli.h"

#define MAX_PROMPT_BYTES (64 << 20) /* a device or a pipe may have no end */
#define PAGE_TOKENS 64

/* ---- the model --------------------------------------------------------------------------------------------------- */

int tarn__lm_options(const char *command, const tarn__options *o, tarn_kv_type *kv_type)
{
    if (o->kv_type && !tarn_kv_type_parse(o->kv_type, kv_type)) {
        fprintf(stderr, "tarn %s: --kv-type: '%s' must be model, f32, bf16, f16 or q8_0\n", command, o->kv_type);
        tarn_clear_error();
        return TARN__MISUSED;
    }
    if (o->gpu_layers && tarn_device_equal(o->device, tarn_device_cpu())) {
        fprintf(stderr, "tarn %s: --gpu-layers needs a GPU, and the device is cpu; give another --device\n", command);
        return TARN__MISUSED;
    }
    int status = tarn__lm_split_options(command, o);
    return status == TARN__DONE ? tarn__lm_grammar_options(command, o) : status;
}

int64_t tarn__lm_token_bytes(const tarn_model_info *info, tarn_kv_type kv_type)
{
    int64_t heads = 2 * info->layers * info->kv_heads, values = heads * info->head_dim;
    if (kv_type == TARN_KV_Q8_0)
        return values + heads * 2 * ((info->head_dim + 31) / 32); /* an f16 per 32 of a head */
    return values * (kv_type == TARN_KV_F32                              ? 4
                     : kv_type == TARN_KV_BF16 || kv_type == TARN_KV_F16 ? 2
                                                                         : (int64_t)tarn_dtype_size(info->dtype));
}

/* Engines allocate pages of PAGE_TOKENS, so a context is rounded up to whole pages. */
void tarn__lm_size_engine(const tarn__options *o, const tarn_model_info *info, tarn_engine_options *engine)
{
    engine->context = o->context                             ? o->context
                      : info->context < TARN__ENGINE_CONTEXT ? info->context
                                                             : TARN__ENGINE_CONTEXT;
    int64_t one = (engine->context + PAGE_TOKENS - 1) / PAGE_TOKENS * PAGE_TOKENS, all = one * engine->sequences;
    int64_t tokens = all < TARN__ENGINE_KV_TOKENS ? all : one > TARN__ENGINE_KV_TOKENS ? one : TARN__ENGINE_KV_TOKENS;
    engine->kv_bytes = o->kv_memory ? o->kv_memory << 20 : tokens * tarn__lm_token_bytes(info, engine->kv_type);
}

tarn_tokenizer *tarn__lm_tokenizer(const tarn__options *o)
{
    char path[4096];
    struct stat about;
    /* an adapter folder may lack a tokenizer: the model's is used then */
    bool is_named = o->adapter && (size_t)snprintf(path, sizeof(path), "%s/tokenizer.json", o->adapter) < sizeof(path);
    return tarn_tokenizer_open(is_named && stat(path, &about) == 0 ? o->adapter : o->words[0]);
}

/* Opens the weights on one device or several. */
static tarn_module *open_on(const tarn__options *o, const char *path, const tarn_model_open_options *options,
                            const tarn_model_split_options *cache)
{
    tarn_model_open_options how = *options;
    tarn_model_split split;
    if (o->device_count > 1) {
        if (!tarn__lm_split(o, path, &how, cache, &split))
            return NULL;
        how.split = &split;
    }
    return tarn_model_open(path, o->device, &how);
}

tarn_module *tarn__lm_model(const tarn__options *o, const tarn_run_weights *weights,
                            const tarn_model_split_options *cache)
{
    tarn_model_open_options how = {.as_stored = o->dtype_count == 0 && !weights->quantize,
                                   .device_layers = o->gpu_layers,
                                   .quantize = weights->quantize};
    how.dtype = o->dtype_count > 0 ? o->dtypes[0].dtype : TARN_F32;
    tarn_module *model = open_on(o, weights->path, &how, cache);
    if (!model && how.as_stored && tarn_error_code() == TARN_ERROR_DTYPE) {
        tarn_clear_error(); /* mixed dtypes: f32 holds the values of all but f64 */
        how.as_stored = false;
        model = open_on(o, weights->path, &how, cache);
        if (model)
            fprintf(stderr, "(the weights have several dtypes: running in f32; --dtype selects another)\n");
    }
    if (!model || !o->adapter || tarn_lora_load(model, o->adapter))
        return model;
    tarn_module_free(model);
    return NULL;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* `text`: the value of --ids that is wrong; NULL for other messages. */
static int misuse(const char *message, const char *text)
{
    fprintf(stderr, "tarn generate: %s%s%s%s\n", text ? "--ids: '" : "", text ? tarn__escaped(text) : "",
            text ? "' " : "", message);
    return TARN__MISUSED;
}

/* Message and exit status. */
static int no_memory(void)
{
    fprintf(stderr, "tarn generate: out of memory\n");
    return TARN__FAILED;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* "1,2,3" */
static int read_ids(tarn__prompt *p, const char *text)
{
    size_t commas = 0;
    for (const char *c = text; *c; c++)
        commas += *c == ',';
    p->tokens = malloc((commas + 1) * sizeof(*p->tokens));
    if (!p->tokens)
        return no_memory();
    /* strtoll() skips spaces and accepts a plus sign: both are rejected here */
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || *at == ' ' || *at == '+' || (*end && *end != ','))
            return misuse("is not a list of token ids, separated by commas", text);
        if (id < 0 || id > INT32_MAX || errno)
            return misuse("has an id out of range; must be from 0 to 2147483647", text);
        p->tokens[p->count++] = (int32_t)id;
        if (!*end)
            return TARN__DONE;
        at = end + 1;
    }
}

/* Tokens of the text. An empty prompt becomes BOS, or EOS for a model without BOS. */
static int encode(tarn__prompt *p, const tarn_tokenizer *tokenizer, const tarn_model_info *info)
{
    int64_t count = 0;
    int32_t *tokens = tarn_tokenizer_encode(tokenizer, p->text.text, p->text.length,
                                            &(tarn_encode_options){.add_special = true}, &count);
    if (!tokens)
        return tarn__print_error("generate");
    p->tokens = malloc((size_t)(count + 1) * sizeof(*p->tokens));
    if (p->tokens && count)
        memcpy(p->tokens, tokens, (size_t)count * sizeof(*p->tokens));
    tarn_tokenizer_release(tokens);
    if (!p->tokens)
        return no_memory();
    p->count = count;
    if (count > 0)
        return TARN__DONE;
    if (!info->has_bos && !info->eos_count)
        return misuse("the prompt is missing, and the model has no BOS token", NULL);
    p->tokens[p->count++] = (int32_t)(info->has_bos ? info->bos : info->eos[0]);
    return TARN__DONE;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Reads to the end of file. The text stays valid, and owned by the prompt, after a failure too. */
static int read_stream(tarn__prompt *p, FILE *from, const char *name)
{
    /* allocates a terminating 0 from the start: an empty stream is an empty string */
    char bytes[4096];
    if (!tarn__input_add(&p->text, "", 0))
        return no_memory();
    for (size_t count; (count = fread(bytes, 1, sizeof(bytes), from)) > 0;) {
        if (p->text.length + count > MAX_PROMPT_BYTES) {
            fprintf(stderr, "tarn generate: '%s' is too long for a prompt; at most %d MiB\n", tarn__escaped(name),
                    MAX_PROMPT_BYTES >> 20);
            return TARN__FAILED;
        }
        if (!tarn__input_add(&p->text, bytes, count))
            return no_memory();
    }
    if (!ferror(from))
        return TARN__DONE;
    fprintf(stderr, "tarn generate: '%s' cannot be read: %s\n", tarn__escaped(name), strerror(errno));
    return TARN__FAILED;
}

/* "-" is standard input. */
static int read_file(tarn__prompt *p, const char *path)
{
    if (strcmp(path, "-") == 0)
        return read_stream(p, stdin, "standard input");
    FILE *from = fopen(path, "rb");
    if (!from) {
        fprintf(stderr, "tarn generate: '%s' cannot be opened: %s\n", tarn__escaped(path), strerror(errno));
        return TARN__FAILED;
    }
    int status = read_stream(p, from, path);
    fclose(from);
    return status;
}

/* True when standard input is a pipe, a socket or a file; not for a terminal, /dev/null and a closed one. */
static bool is_piped(void)
{
    struct stat about;
    return fstat(STDIN_FILENO, &about) == 0 &&
           (S_ISFIFO(about.st_mode) || S_ISSOCK(about.st_mode) || S_ISREG(about.st_mode));
}

/* True when input arrives within `wait` milliseconds; an end of file does not count. */
static bool has_input(int wait)
{
    struct stat about;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (fstat(STDIN_FILENO, &about) == 0 && S_ISREG(about.st_mode))
        return lseek(STDIN_FILENO, 0, SEEK_CUR) < about.st_size;
    return poll(&input, 1, wait) > 0 && (input.revents & POLLIN);
}

/* Source of the prompt: a path, "-", or NULL for the argument or none. A given prompt takes precedence over a pipe. */
static const char *find_source(const tarn__options *o)
{
    bool is_given = o->word_count > 1 || o->prompt_file || o->ids;
    const char *source = o->prompt_file                                       ? o->prompt_file
                         : o->word_count > 1 && strcmp(o->words[1], "-") == 0 ? "-"
                                                                              : NULL;
    bool is_read = source && strcmp(source, "-") == 0;
    if (!is_piped() || is_read)
        return source;
    if (is_given) {
        if (has_input(0))
            fprintf(stderr, "(standard input is ignored: a prompt is given; use - or --prompt-file - to read it)\n");
        return source;
    }
    if (!has_input(1000) && isatty(STDERR_FILENO))
        fprintf(stderr, "(reading the prompt from standard input)\n");
    return "-";
}

/* --ids skips the tokenizer; the check of standard input runs anyway, for its notice. */
int tarn__prompt_read(tarn__prompt *p, const tarn__options *o, const tarn_tokenizer *tokenizer,
                      const tarn_model_info *info)
{
    const char *words = o->word_count > 1 ? o->words[1] : "";
    const char *source = find_source(o);
    if (o->ids)
        return read_ids(p, o->ids);
    int status = source                                            ? read_file(p, source)
                 : tarn__input_add(&p->text, words, strlen(words)) ? TARN__DONE
                                                                   : no_memory();
    return status == TARN__DONE ? encode(p, tokenizer, info) : status;
}

void tarn__prompt_free(tarn__prompt *p)
{
    free(p->text.text);
    free(p->tokens);
    *p = (tarn__prompt){0};
}
