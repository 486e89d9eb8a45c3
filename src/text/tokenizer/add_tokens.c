/* add_tokens.c: special tokens added to an open tokenizer, from a list: "<|im_start|>,<|im_end|>", or "text:FILE" with
 * one per line. */
#include <string.h>

#include "base/error.h"
#include "base/os/files.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

#define IN_FILE "text:"
#define MAX_FILE ((size_t)16 << 20) /* bytes */

/* One token of a list. False with an error. */
typedef bool (*token_fn)(const char *token, size_t length, void *ctx);

/* Tokens between separators. Spaces around them are not part of them; `skips_empty`: empty lines of a file. */
static bool each_between(const char *function, const char *text, size_t length, char separator, bool skips_empty,
                         token_fn visit, void *ctx)
{
    for (size_t at = 0; at <= length;) {
        const char *begin = text + at, *end = memchr(begin, separator, length - at);
        size_t count = end ? (size_t)(end - begin) : length - at;
        at += count + 1;
        for (; count && (begin[0] == ' ' || begin[0] == '\t'); count--)
            begin++;
        while (count && (begin[count - 1] == ' ' || begin[count - 1] == '\t' || begin[count - 1] == '\r'))
            count--;
        if (count == 0 && skips_empty)
            continue;
        if (count == 0)
            return tarn__raise(TARN_ERROR_ARGUMENT,
                               "%s: '%.100s' has an empty token; it must be tokens and commas, or text:FILE with one "
                               "per line",
                               function, text);
        if (!visit(begin, count, ctx))
            return false;
    }
    return true;
}

/* Empty lines are skipped; the file is text without NULs. */
static bool each_in_file(const char *function, const char *path, token_fn visit, void *ctx)
{
    tarn__map map;
    if (!tarn__map_open(&map, function, path))
        return false;
    bool is_text = map.bytes <= MAX_FILE && (!map.bytes || !memchr(map.memory, 0, map.bytes));
    bool good = is_text ? each_between(function, map.bytes ? map.memory : "", map.bytes, '\n', true, visit, ctx)
                        : tarn__raise(TARN_ERROR_FORMAT, "%s: '%s' is no list of tokens, one per line", function, path);
    tarn__map_close(&map);
    return good;
}

/* "a,b" or "text:FILE". */
static bool each_token(const char *function, const char *list, token_fn visit, void *ctx)
{
    bool is_file = strncmp(list, IN_FILE, strlen(IN_FILE)) == 0;
    return is_file ? each_in_file(function, list + strlen(IN_FILE), visit, ctx)
                   : each_between(function, list, strlen(list), ',', false, visit, ctx);
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

/* `added` counts the tokens that got new ids. */
typedef struct addition {
    const char *function;
    tarn_tokenizer *tokenizer;
    int added;
} addition;

/* By the text as written. */
static tarn__added_token *find_added(const tarn_tokenizer *t, const char *text, size_t length)
{
    tarn__added_token *tokens = (tarn__added_token *)(void *)t->added.tokens.data;
    for (size_t i = 0; i < t->added.tokens.count; i++)
        if (tokens[i].length == length && memcmp(tokens[i].text, text, length) == 0)
            return &tokens[i];
    return NULL;
}

/* A token that exists becomes special; a piece of the vocabulary becomes an added token with its id. */
static bool add_one(const char *text, size_t length, void *ctx)
{
    addition *a = ctx;
    tarn_tokenizer *t = a->tokenizer;
    if (tarn__utf8_prefix(text, length) != length)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: a token is not valid UTF-8", a->function);
    tarn__added_token *known = find_added(t, text, length);
    if (known) {
        known->special = true;
        return true;
    }
    int32_t id = tarn__vocab_find_escaped(&t->vocab, text, length);
    if (tarn_failed())
        return false;
    a->added += id < 0;
    const tarn__added_token token = {
        .text = (char *)(uintptr_t)text, .length = length, .id = id >= 0 ? id : t->vocab.count, .special = true};
    return tarn__added_add(t, a->function, "added tokens", &token);
}

/* Returns the number of new ids, by which embeddings must grow; -1 with an error. The hash changes. */
int tarn_tokenizer_add_tokens(tarn_tokenizer *tokenizer, const char *tokens)
{
    addition a = {.function = "tokenizer_add_tokens", .tokenizer = tokenizer};
    if (tarn_failed())
        return -1;
    if (!tokenizer || !tokens) {
        tarn__raise(TARN_ERROR_ARGUMENT, "%s: tokenizer or tokens is NULL", a.function);
        return -1;
    }
    bool good = each_token(a.function, tokens, add_one, &a);
    /* after a failure too: the tokenizer stays usable with those that were added */
    if (!good) {
        tarn__added_sort(&tokenizer->added);
        return -1;
    }
    return tarn__tokenizer_finish(tokenizer, a.function, "added tokens") ? a.added : -1;
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */

/* The ids that were asked for, in their order, once each. */
typedef struct listing {
    const tarn_tokenizer *tokenizer;
    tarn__buffer *ids;
} listing;

/* A token must exist: this is for tokens that are to be trained. */
static bool list_one(const char *text, size_t length, void *ctx)
{
    const listing *l = ctx;
    int64_t id = tarn_tokenizer_find(l->tokenizer, text, length);
    const int64_t *ids = (const int64_t *)(const void *)l->ids->data;
    for (size_t i = 0; i < l->ids->count; i++)
        if (ids[i] == id)
            return true;
    return id < 0 ? tarn__raise(TARN_ERROR_ARGUMENT, "the tokenizer lacks the token '%.*s'",
                                (int)(length < 60 ? length : 60), text)
                  : tarn__buffer_add(l->ids, &id, 1, sizeof(id));
}

/* Appends int64_t to `ids`. */
bool tarn__tokenizer_listed(const char *function, const tarn_tokenizer *tokenizer, const char *tokens,
                            tarn__buffer *ids)
{
    listing l = {tokenizer, ids};
    return each_token(function, tokens, list_one, &l);
}
