/* prompt.c: what a language model goes on with. */
#include "cli/lm/prompt.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

#define MOST_BYTES (64 << 20) /* of a prompt: a device or a pipe may have no end */

static int misuse(const char *sentence, const char *text)
{
    fprintf(stderr, "tarn generate: %s%s%s%s\n", text ? "--ids: '" : "", text ? tarn__escaped(text) : "",
            text ? "' " : "", sentence);
    return TARN__MISUSED;
}

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
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || *at == ' ' || *at == '+' || (*end && *end != ','))
            return misuse("is no list of whole numbers, separated by commas", text);
        if (id < 0 || id > INT32_MAX || errno)
            return misuse("has a number that no token has", text);
        p->tokens[p->count++] = (int32_t)id;
        if (!*end)
            return TARN__DONE;
        at = end + 1;
    }
}

/* The tokens of the text; where there are none it begins with the model's own token for that, or after the one that
 * ends texts. */
static int encode(tarn__prompt *p, const tarn_tokenizer *tokenizer, const tarn_model_info *info)
{
    int64_t count = 0;
    int32_t *tokens =
        tarn_tokenizer_encode(tokenizer, p->text, p->length, &(tarn_encode_options){.add_special = true}, &count);
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
        return misuse("a prompt is missing, and the model has no token that texts begin with", NULL);
    p->tokens[p->count++] = (int32_t)(info->has_bos ? info->bos : info->eos[0]);
    return TARN__DONE;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static bool append(tarn__prompt *p, size_t *room, const char *bytes, size_t count)
{
    if (p->length + count + 1 > *room) {
        *room = 2 * (p->length + count + 1);
        char *text = realloc(p->text, *room);
        if (!text)
            return false;
        p->text = text;
    }
    memcpy(p->text + p->length, bytes, count);
    p->length += count;
    p->text[p->length] = 0;
    return true;
}

static int read_stream(tarn__prompt *p, FILE *from, const char *name)
{
    char bytes[4096];
    size_t room = 0;
    if (!append(p, &room, "", 0))
        return no_memory();
    for (size_t count; (count = fread(bytes, 1, sizeof(bytes), from)) > 0;) {
        if (p->length + count > MOST_BYTES) {
            fprintf(stderr, "tarn generate: '%s' is longer than %d MiB, which a prompt may have at most\n",
                    tarn__escaped(name), MOST_BYTES >> 20);
            return TARN__FAILED;
        }
        if (!append(p, &room, bytes, count))
            return no_memory();
    }
    if (!ferror(from))
        return TARN__DONE;
    fprintf(stderr, "tarn generate: '%s' cannot be read: %s\n", tarn__escaped(name), strerror(errno));
    return TARN__FAILED;
}

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

/* True when standard input is a pipe, a socket or a file: somebody put something there. A terminal, /dev/null and a
 * closed one are not. */
static bool is_piped(void)
{
    struct stat about;
    return fstat(STDIN_FILENO, &about) == 0 &&
           (S_ISFIFO(about.st_mode) || S_ISSOCK(about.st_mode) || S_ISREG(about.st_mode));
}

/* True when there is something to read within so many milliseconds; the end counts for nothing. */
static bool has_input(int wait)
{
    struct stat about;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (fstat(STDIN_FILENO, &about) == 0 && S_ISREG(about.st_mode))
        return lseek(STDIN_FILENO, 0, SEEK_CUR) < about.st_size;
    return poll(&input, 1, wait) > 0 && (input.revents & POLLIN);
}

/* Where the prompt comes from: a path, "-", or NULL: from words, or from nowhere. A prompt that was given goes before a
 * pipe. */
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
            fprintf(stderr,
                    "(standard input is ignored: a prompt is given; - in its place, or --prompt-file -, reads it)\n");
        return source;
    }
    if (!has_input(1000) && isatty(STDERR_FILENO))
        fprintf(stderr, "(the prompt is read from standard input, which is a pipe)\n");
    return "-";
}

int tarn__prompt_read(tarn__prompt *p, const tarn__options *o, const tarn_tokenizer *tokenizer,
                      const tarn_model_info *info)
{
    const char *words = o->word_count > 1 ? o->words[1] : "";
    size_t room = 0;
    const char *source = find_source(o);
    if (o->ids)
        return read_ids(p, o->ids);
    int status = source ? read_file(p, source) : append(p, &room, words, strlen(words)) ? TARN__DONE : no_memory();
    return status == TARN__DONE ? encode(p, tokenizer, info) : status;
}

void tarn__prompt_free(tarn__prompt *p)
{
    free(p->text);
    free(p->tokens);
    *p = (tarn__prompt){0};
}
