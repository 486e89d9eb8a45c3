/* tokenize.c: `tarn tokenize`: text to tokens and back, training a tokenizer, and preparing token files (shards).
 *
 * Modes: --train N trains a BPE tokenizer; --out saves the tokenizer; --prepare writes shards; else text is encoded, or
 * with --decode ids are decoded. The tokenizer is owned by tarn__tokenize(). Input is a file per argument, --text, or
 * standard input. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <tarn/text.h>
#include <unistd.h>

#include "cli/cli.h"

/* Message and exit status. */
static int out_of_memory(void)
{
    fprintf(stderr, "tarn tokenize: out of memory\n");
    return TARN__FAILED;
}

/* ---- the tokenizer ----------------------------------------------------------------------------------------------- */

/* A character tokenizer over --text, or over all files: of their bytes if they are encoded as they are, of their
 * documents if they are read as training data. NULL, perhaps with the message already printed and no error pending. */
static tarn_tokenizer *make_characters(const tarn__options *o)
{
    if (o->text)
        return tarn_tokenizer_characters(o->text, strlen(o->text));
    if (o->prepare || o->out)
        return tarn_tokenizer_characters_files((const char *const *)o->words, o->word_count, o->field, o->json_lines);
    /* one text of all files: the character set is their union */
    tarn__input all = {0};
    int status = TARN__DONE;
    for (int i = 0; status == TARN__DONE && i < o->word_count; i++)
        status = tarn__input_file(&all, "tokenize", o->words[i]);
    tarn_tokenizer *tokenizer =
        status == TARN__DONE ? tarn_tokenizer_characters(all.text ? all.text : "", all.length) : NULL;
    free(all.text);
    return tokenizer;
}

/* The tokenizer of the options; the caller frees it. NULL after a message on standard error. */
static tarn_tokenizer *make_tokenizer(const tarn__options *o)
{
    tarn_tokenizer *tokenizer = NULL;
    if (o->vocab_size)
        tokenizer = tarn_bpe_train_files((const char *const *)o->words, o->word_count, o->vocab_size,
                                         &(tarn_bpe_options){.json_lines = o->json_lines, .field = o->field});
    else if (strcmp(o->tokenizer, "characters") == 0)
        tokenizer = make_characters(o);
    else
        tokenizer = strcmp(o->tokenizer, "bytes") == 0 ? tarn_tokenizer_bytes() : tarn_tokenizer_open(o->tokenizer);
    if (!tokenizer && tarn_failed())
        tarn__print_error("tokenize");
    return tokenizer;
}

/* ---- text to ids ------------------------------------------------------------------------------------------------- */

/* Ids on one line, or with --pieces one id and its piece per line. */
static void print_ids(const tarn__options *o, const tarn_tokenizer *t, const int32_t *ids, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        size_t length = 0;
        const char *piece = tarn_tokenizer_piece(t, ids[i], &length);
        printf("%s%d%s", o->pieces || i == 0 ? "" : " ", (int)ids[i], o->pieces ? "\t" : "");
        if (o->pieces) {
            tarn__print_token(piece ? piece : "", length);
            putchar('\n');
        }
    }
    if (!o->pieces)
        putchar('\n');
}

/* Pieces may be invalid UTF-8, so they go through tarn__json_bytes(). */
static void print_ids_json(const tarn__options *o, const tarn_tokenizer *t, const char *name, const int32_t *ids,
                           int64_t count, size_t bytes)
{
    tarn__json json = {stdout, false};
    tarn__json_open(&json, NULL, '{');
    if (name)
        tarn__json_string(&json, "file", name);
    tarn__json_int(&json, "bytes", (int64_t)bytes);
    tarn__json_int(&json, "tokens", count);
    tarn__json_open(&json, "ids", '[');
    for (int64_t i = 0; i < count; i++)
        tarn__json_int(&json, NULL, ids[i]);
    tarn__json_close(&json, ']');
    if (o->pieces) {
        tarn__json_open(&json, "pieces", '[');
        for (int64_t i = 0; i < count; i++) {
            size_t length = 0;
            const char *piece = tarn_tokenizer_piece(t, ids[i], &length);
            tarn__json_bytes(&json, NULL, piece ? piece : "", length);
        }
        tarn__json_close(&json, ']');
    }
    tarn__json_end(&json);
}

/* `name` is NULL for --text and standard input. */
static int encode(const tarn__options *o, const tarn_tokenizer *t, const char *name, const char *text, size_t length)
{
    int64_t count;
    /* with --special-as-text "<|endoftext|>" in the input is ordinary text */
    const tarn_encode_options how = {.special_as_text = o->special_as_text, .add_special = o->add_special};
    int32_t *ids = tarn_tokenizer_encode(t, text, length, &how, &count);
    if (!ids)
        return tarn__print_error("tokenize");
    if (o->json)
        print_ids_json(o, t, name, ids, count, length);
    else
        print_ids(o, t, ids, count);
    tarn_tokenizer_release(ids);
    return TARN__DONE;
}

/* ---- ids to text ------------------------------------------------------------------------------------------------- */

/* Separators of ids; brackets, so that a JSON array is read too. */
static bool is_between(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == ',' || c == '[' || c == ']';
}

/* End of the word that begins at `from`, at most 20 bytes later: enough for a message. */
static size_t word_end(const char *text, size_t from, size_t length)
{
    size_t end = from + 1;
    while (end < length && end < from + 20 && !is_between(text[end]))
        end++;
    return end;
}

/* Decimal ids between separators. The caller frees them. NULL after a message: not a number, or out of range. */
static int32_t *read_ids(const char *text, size_t length, int64_t *count)
{
    /* an id and its separator take at least two bytes */
    int32_t *ids = malloc((length / 2 + 1) * sizeof(*ids));
    *count = 0;
    for (size_t at = 0; ids && at < length;) {
        if (is_between(text[at])) {
            at++;
            continue;
        }
        /* read by hand: strtoll() would accept signs, and stop at a zero byte in silence */
        int64_t id = 0;
        size_t from = at;
        for (; at < length && text[at] >= '0' && text[at] <= '9' && id <= INT32_MAX; at++)
            id = 10 * id + (text[at] - '0');
        if (at == from || id > INT32_MAX || (at < length && !is_between(text[at]))) {
            fprintf(stderr, "tarn tokenize: --decode: byte %zu is not a token id: '%.*s'\n", from,
                    (int)(word_end(text, from, length) - from), text + from);
            free(ids);
            return NULL;
        }
        ids[(*count)++] = (int32_t)id;
    }
    if (!ids)
        out_of_memory();
    return ids;
}

static int decode(const tarn__options *o, const tarn_tokenizer *t, const char *name, const char *text, size_t length)
{
    int64_t count;
    size_t bytes;
    int32_t *ids = read_ids(text, length, &count);
    if (!ids)
        return TARN__FAILED;
    char *decoded = tarn_tokenizer_decode(t, ids, count, &bytes);
    free(ids);
    if (!decoded)
        return tarn__print_error("tokenize");
    if (o->json) {
        tarn__json json = {stdout, false};
        tarn__json_open(&json, NULL, '{');
        if (name)
            tarn__json_string(&json, "file", name);
        tarn__json_bytes(&json, "text", decoded, bytes);
        tarn__json_end(&json);
    } else {
        /* exact bytes in a pipe, escaped on a terminal */
        tarn__print_generated(decoded, bytes);
    }
    tarn_tokenizer_release(decoded);
    return TARN__DONE;
}

/* Encodes or decodes every file, --text, or standard input; stops at the first failure. */
static int convert(const tarn__options *o, const tarn_tokenizer *t)
{
    /* both take the text of one input and print its result */
    int (*one)(const tarn__options *, const tarn_tokenizer *, const char *, const char *, size_t) =
        o->decode ? decode : encode;
    int status = TARN__DONE;
    if (o->text)
        return one(o, t, NULL, o->text, strlen(o->text));
    for (int i = 0; status == TARN__DONE && i < (o->word_count ? o->word_count : 1); i++) {
        tarn__input in = {0};
        status = o->word_count ? tarn__input_file(&in, "tokenize", o->words[i])
                               : tarn__input_stream(&in, "tokenize", stdin, "standard input");
        if (status == TARN__DONE)
            status = one(o, t, o->word_count ? o->words[i] : NULL, in.text ? in.text : "", in.length);
        free(in.text);
    }
    return status;
}

/* ---- preparing --------------------------------------------------------------------------------------------------- */

/* True continues. The line is overwritten until done == all. */
static bool show_progress(int64_t done, int64_t all, void *ctx)
{
    (void)ctx;
    fprintf(stderr, "\r%3d %% of %s%s", (int)(all ? 100 * (double)done / (double)all : 100), tarn__bytes_text(all),
            done == all ? "\n" : "");
    return true;
}

/* Token counts are of the files written, separators included. */
static void print_summary(const tarn__options *o, const tarn_tokenizer *t, const tarn_shards_summary *s)
{
    tarn__json json = {stdout, false};
    if (o->json) {
        tarn__json_open(&json, NULL, '{');
        tarn__json_string(&json, "folder", o->prepare);
        tarn__json_string(&json, "tokenizer", tarn_tokenizer_kind(t));
        tarn__json_int(&json, "vocab_size", tarn_tokenizer_count(t));
        tarn__json_int(&json, "documents", s->documents);
        tarn__json_int(&json, "bytes", s->bytes);
        tarn__json_int(&json, "train_tokens", s->train_tokens);
        tarn__json_int(&json, "valid_tokens", s->valid_tokens);
        tarn__json_int(&json, "files", s->train_files + s->valid_files);
        tarn__json_end(&json);
    } else if (!o->quiet) {
        printf("%s: %lld documents, %s; %lld training tokens, %lld validation tokens; %d files\n",
               tarn__escaped(o->prepare), (long long)s->documents, tarn__bytes_text(s->bytes),
               (long long)s->train_tokens, (long long)s->valid_tokens, s->train_files + s->valid_files);
    }
}

/* Writes the shards of a training and a val set to the folder --prepare. */
static int prepare(const tarn__options *o, const tarn_tokenizer *t)
{
    tarn_shards_summary summary;
    /* zeroed members are the library's defaults */
    const tarn_shards_options how = {.val_fraction = o->val_fraction,
                                     .shard_tokens = o->shard_tokens,
                                     .field = o->field,
                                     .separator = o->separator,
                                     .no_separator = o->no_separator,
                                     .json_lines = o->json_lines,
                                     .parse_special = o->parse_special,
                                     .progress = !o->quiet && isatty(STDERR_FILENO) ? show_progress : NULL};
    if (!tarn_shards_prepare((const char *const *)o->words, o->word_count, t, o->prepare, &summary, &how))
        return tarn__print_error("tokenize");
    print_summary(o, t, &summary);
    return TARN__DONE;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* Message and exit status of wrong usage. */
static int misuse(const char *sentence)
{
    fprintf(stderr, "tarn tokenize: %s; see tarn tokenize --help\n", sentence);
    return TARN__MISUSED;
}

/* Options that exclude each other: an option without effect is an error, never ignored. */
static int check(const tarn__options *o)
{
    /* writes: to files instead of standard output */
    bool prepares = o->prepare != NULL, trains = o->vocab_size > 0, writes = prepares || trains || o->out;
    if (!trains && !o->tokenizer)
        return misuse("--tokenizer is missing");
    if (trains && o->tokenizer)
        return misuse("--train and --tokenizer exclude each other");
    if (trains && !o->out && !prepares)
        return misuse("--train needs --out or --prepare");
    if ((trains || prepares) && o->word_count == 0)
        return misuse("files are missing");
    if (writes && (o->decode || o->pieces || o->special_as_text || o->add_special))
        return misuse("--decode, --pieces, --special-as-text and --add-special exclude --train, --out and --prepare");
    if ((trains || prepares) && o->text)
        return misuse("--text excludes --train and --prepare; give files");
    if (o->out && !prepares && o->json)
        return misuse("--json with --out needs --prepare: --out alone prints nothing");
    if (o->out && !prepares && !trains && (o->text || o->word_count) && strcmp(o->tokenizer, "characters") != 0)
        return misuse("--out excludes --text and files, except with --tokenizer characters");
    if (!prepares && (o->val_fraction != 0 || o->shard_tokens || o->separator || o->no_separator || o->parse_special))
        return misuse("--val-fraction, --shard-tokens, --separator, --no-separator and --parse-special need --prepare");
    if (!(writes && o->word_count) && (o->field || o->json_lines))
        return misuse("--json-lines and --field need files with --train, --prepare or --out");
    if (o->decode && (o->pieces || o->special_as_text || o->add_special))
        return misuse("--pieces, --special-as-text and --add-special exclude --decode");
    return o->text && o->word_count ? misuse("--text and files exclude each other") : TARN__DONE;
}

/* --out and --prepare may be combined; the tokenizer is saved first, so that it survives a failure of the other. */
int tarn__tokenize(const tarn__options *options)
{
    int status = check(options);
    if (status != TARN__DONE)
        return status;
    tarn_tokenizer *tokenizer = make_tokenizer(options);
    if (!tokenizer)
        return TARN__FAILED;
    /* a small corpus has fewer merges than asked for: a notice, not an error */
    if (options->vocab_size && tarn_tokenizer_count(tokenizer) < options->vocab_size && !options->quiet)
        fprintf(stderr, "tarn tokenize: the files have no more than %lld tokens to learn\n",
                (long long)tarn_tokenizer_count(tokenizer));
    if (options->out && !tarn_tokenizer_save(tokenizer, options->out))
        status = tarn__print_error("tokenize");
    if (status == TARN__DONE && options->prepare)
        status = prepare(options, tokenizer);
    else if (status == TARN__DONE && !options->out)
        status = convert(options, tokenizer);
    tarn_tokenizer_free(tokenizer);
    return status;
}
