/* special_tokens.c: special tokens by the names that chat templates see: "pad_token", "image_token", as transformers
 * reads them from the files next to a tokenizer. A text need not be a token of the vocabulary. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

#define MAX_NAMED 256
#define MAX_NAME 128 /* bytes */

const char *const tarn__special_names[] = {"bos_token", "eos_token", "unk_token",  "sep_token",
                                           "pad_token", "cls_token", "mask_token", NULL};

/* The names that transformers gives every tokenizer; others are a model's own. */
bool tarn__is_special_name(const char *name)
{
    for (const char *const *at = tarn__special_names; *at; at++)
        if (strcmp(*at, name) == 0)
            return true;
    return false;
}

/* A search through all: MAX_NAMED at most. */
static tarn__special_token *find(const tarn_tokenizer *t, const char *name)
{
    tarn__special_token *tokens = (tarn__special_token *)(void *)t->special.data;
    for (size_t i = 0; i < t->special.count; i++)
        if (strcmp(tokens[i].name, name) == 0)
            return &tokens[i];
    return NULL;
}

/* Borrowed until the name gets another text; NULL: none. */
const char *tarn__tokenizer_special(const tarn_tokenizer *t, const char *name)
{
    const tarn__special_token *token = find(t, name);
    return token ? token->text : NULL;
}

/* Terminated; the text may be empty. */
static char *copy(const char *text, size_t length)
{
    char *result = tarn__alloc(length + 1);
    if (result && length)
        memcpy(result, text, length);
    return result;
}

/* A name that exists gets the new text. Both are copied. */
bool tarn__tokenizer_name_special(tarn_tokenizer *t, const char *name, const char *text, size_t length)
{
    tarn__special_token *known = find(t, name);
    size_t bytes = strlen(name);
    if (length > TARN__MAX_PIECE_BYTES || memchr(text, 0, length) || tarn__utf8_prefix(text, length) != length ||
        bytes == 0 || bytes > MAX_NAME || (!known && t->special.count >= MAX_NAMED))
        return tarn__raise(
            TARN_ERROR_FORMAT,
            "the special token \"%.60s\" is not valid UTF-8, contains a NUL, is too long, or one of more "
            "than %d",
            name, MAX_NAMED);
    tarn__special_token token = {NULL, copy(text, length)};
    if (token.text && known) {
        tarn__string_free(known->text);
        known->text = token.text;
        return true;
    }
    token.name = token.text ? tarn__string_copy(name) : NULL;
    if (token.name && tarn__buffer_add(&t->special, &token, 1, sizeof(token)))
        return true;
    tarn__string_free(token.name);
    tarn__string_free(token.text);
    return false;
}

/* By the text that an id has; an id without a token changes nothing. */
bool tarn__tokenizer_name_special_id(tarn_tokenizer *t, const char *name, int64_t id)
{
    size_t length;
    if (id < 0 || !tarn__vocab_has(&t->vocab, id))
        return true;
    const char *text = tarn__vocab_bytes(&t->vocab, (int32_t)id, &length);
    return tarn__tokenizer_name_special(t, name, text, length);
}

void tarn__tokenizer_free_special(tarn_tokenizer *t)
{
    tarn__special_token *tokens = (tarn__special_token *)(void *)t->special.data;
    for (size_t i = 0; i < t->special.count; i++) {
        tarn__string_free(tokens[i].name);
        tarn__string_free(tokens[i].text);
    }
    tarn__buffer_free(&t->special, sizeof(*tokens));
}

/* The unknown token is kept beside the model it belongs to. */
int32_t tarn__tokenizer_unknown(const tarn_tokenizer *t)
{
    bool is_own = t->kind == &tarn__kind_characters || t->kind == &tarn__kind_wordpiece || t->kind == &tarn__kind_words;
    return t->kind == &tarn__kind_unigram ? t->unigram.unknown : is_own ? t->unknown : t->bpe.unknown;
}
