/* added_tokens.c: added tokens, <|endoftext|> and the like, which are found in a text before anything else. The
 * leftmost match wins, at the same position the longest, as in Hugging Face's tokenizers. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "text/tokenizer/tokenizer.h"

#define MAX_TOKENS 65535

/* The buffer as an array. */
static tarn__added_token *tokens_of(const tarn__added *added)
{
    return (tarn__added_token *)(void *)added->tokens.data;
}

/* Checks that an added token has an unused id, or the id of the same text in the vocabulary. */
static bool check_id(const tarn_tokenizer *tokenizer, const char *function, const char *name,
                     const tarn__added_token *token)
{
    const tarn__vocab *vocab = &tokenizer->vocab;
    bool same =
        tarn__vocab_has(vocab, token->id) && tarn__vocab_matches_escaped(vocab, token->id, token->text, token->length);
    if (!same && tarn__vocab_has(vocab, token->id))
        return tarn__raise(TARN_ERROR_FORMAT,
                           "%s: '%s': the added token '%.100s' has the id %d, which belongs to another token", function,
                           name, token->text, (int)token->id);
    int32_t known = same ? token->id : tarn__vocab_find_escaped(vocab, token->text, token->length);
    if (known < 0 || known == token->id)
        return true;
    return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': the added token '%.100s' has the id %d, but %d in the vocabulary",
                       function, name, token->text, (int)token->id, (int)known);
}

/* A token outside of the model's vocabulary is added to it, marked as such: merges must not form it. */
bool tarn__added_add(tarn_tokenizer *tokenizer, const char *function, const char *name, const tarn__added_token *token)
{
    tarn__buffer *tokens = &tokenizer->added.tokens;
    if (token->length == 0 || token->length > TARN__MAX_PIECE_BYTES)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': an added token has %zu bytes; it must have 1 to %zu", function,
                           name, token->length, TARN__MAX_PIECE_BYTES);
    if (tokens->count >= MAX_TOKENS)
        return tarn__raise(TARN_ERROR_FORMAT, "%s: '%s': more than %d added tokens", function, name, MAX_TOKENS);
    /* Memory follows the largest id. The bound counts from the number of tokens, not from the largest id so far:
     * otherwise a list of tokens could raise it step by step without limit. */
    if (token->id < 0 || token->id >= (int64_t)tokenizer->vocab.used + TARN__MAX_UNUSED_IDS || token->id >= INT32_MAX)
        return tarn__raise(
            TARN_ERROR_FORMAT,
            "%s: '%s': the added token '%.100s' has the id %d, far from the %zu tokens of the vocabulary", function,
            name, token->text, (int)token->id, tokenizer->vocab.used);
    if (!check_id(tokenizer, function, name, token))
        return false;
    if (!tarn__vocab_has(&tokenizer->vocab, token->id)) {
        if (!tarn__vocab_add(&tokenizer->vocab, token->id, token->text, token->length, true))
            return false;
        tokenizer->vocab.piece[token->id].outside = 1;
    }
    tarn__added_token own = *token;
    own.form = NULL;
    own.form_length = 0;
    own.text = tarn__alloc(token->length + 1);
    if (own.text && tarn__buffer_add(tokens, &own, 1, sizeof(own))) {
        memcpy(own.text, token->text, token->length);
        return true;
    }
    tarn__release(own.text, token->length + 1);
    return false;
}

/* By the first byte of the form, then longest first: the search takes the first match of a bucket. Of equal forms
 * special tokens and lower ids go first, as in Hugging Face's tokenizers. */
static int compare_tokens(const void *a, const void *b)
{
    const tarn__added_token *one = a, *other = b;
    size_t length, other_length;
    const char *form = tarn__added_form(one, &length), *other_form = tarn__added_form(other, &other_length);
    unsigned char first = (unsigned char)form[0], second = (unsigned char)other_form[0];
    if (first != second)
        return first < second ? -1 : 1;
    if (length != other_length)
        return length > other_length ? -1 : 1;
    int order = memcmp(form, other_form, length);
    if (order == 0 && one->special != other->special)
        return one->special ? -1 : 1;
    return order ? order : (one->id > other->id) - (one->id < other->id);
}

/* By the text as written, not by its normalized form: forms may coincide. */
static bool is_same_text(const tarn__added_token *one, const tarn__added_token *other)
{
    return one->length == other->length && memcmp(one->text, other->text, one->length) == 0;
}

/* Builds first[]: a byte that begins no token costs two array reads per byte of text. */
bool tarn__added_sort(tarn__added *added)
{
    tarn__added_token *tokens = tokens_of(added);
    size_t count = added->tokens.count;
    if (count)
        qsort(tokens, count, sizeof(*tokens), compare_tokens);
    for (size_t i = 1; i < count; i++)
        if (tokens[i - 1].id == tokens[i].id || is_same_text(&tokens[i - 1], &tokens[i]))
            return false;
    for (int byte = 0, at = 0; byte <= 256; byte++) {
        for (size_t length; at < (int)count && (unsigned char)tarn__added_form(&tokens[at], &length)[0] < byte;)
            at++;
        added->first[byte] = (uint16_t)at;
    }
    return true;
}

/* Texts are owned by their tokens. */
void tarn__added_free(tarn__added *added)
{
    for (size_t i = 0; i < added->tokens.count; i++) {
        tarn__release(tokens_of(added)[i].text, tokens_of(added)[i].length + 1);
        tarn__release(tokens_of(added)[i].form, tokens_of(added)[i].form_length + 1);
    }
    tarn__regex_free(added->word);
    added->word = NULL;
    tarn__buffer_free(&added->tokens, sizeof(tarn__added_token));
}

/* Scans byte by byte; the buckets of first[] keep that cheap. */
const tarn__added_token *tarn__added_next(const tarn__added *added, bool normalized, bool with_special,
                                          const char *text, size_t length, size_t from, size_t *at)
{
    const tarn__added_token *tokens = tokens_of(added);
    if (added->tokens.count == 0)
        return NULL;
    for (*at = from; *at < length; ++*at) {
        unsigned char byte = (unsigned char)text[*at];
        for (size_t i = added->first[byte]; i < added->first[byte + 1]; i++) {
            const tarn__added_token *t = &tokens[i];
            size_t size;
            const char *form = tarn__added_form(t, &size);
            if (size <= length - *at && t->normalized == normalized && memcmp(text + *at, form, size) == 0) {
                if (with_special || !t->special)
                    return t;
                *at += size - 1; /* stays text as a whole: no shorter token is searched inside */
                break;
            }
        }
    }
    return NULL;
}
