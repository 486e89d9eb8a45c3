/* encode.c: text to ids, the parts shared by all kinds of tokenizers.
 *
 * Added tokens that match the original text are cut out; the text between them is normalized; added tokens that match
 * normalized text are cut out; the rest goes to the kind's encode(). This is the order of Hugging Face's tokenizers. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

/* The arguments of one call of encode, shared by its steps. */
typedef struct job {
    const tarn_tokenizer *tokenizer;
    tarn__encoder *encoder;
    bool with_special;
    tarn__buffer *ids;
} job;

/* spaces_before: the beginning of the whitespace that ends at `at`. spaces_after: the end of the whitespace that begins
 * at `at`. For tokens with lstrip and rstrip. `blank` is a space, or 0 where spaces stand for U+2581, which is none. */
static size_t spaces_before(const char *text, size_t at, uint32_t blank)
{
    while (at > 0) {
        size_t begin = at - 1;
        uint32_t code;
        while (begin > 0 && ((unsigned char)text[begin] & 0xC0) == 0x80) /* back to the character's first byte */
            begin--;
        if (tarn__utf8_decode(text + begin, at - begin, &code) != at - begin || !tarn__is_space(code) ||
            (code == ' ' && !blank))
            break;
        at = begin;
    }
    return at;
}

static size_t spaces_after(const char *text, size_t length, size_t at, uint32_t blank)
{
    uint32_t code;
    for (size_t bytes; (bytes = tarn__utf8_decode(text + at, length - at, &code)) != 0 && tarn__is_space(code) &&
                       (code != ' ' || blank);)
        at += bytes;
    return at;
}

/* Whether the character before or after an offset belongs to a word. */
static bool is_word_at(const job *j, const char *text, size_t length, size_t at, bool before)
{
    size_t begin = at, first, last;
    uint32_t code;
    for (int back = 0; before && back < 4 && begin > 0;) {
        back++;
        if (((unsigned char)text[--begin] & 0xC0) != 0x80)
            break;
    }
    size_t bytes = tarn__utf8_decode(text + begin, (before ? at : length) - begin, &code);
    if (!bytes || (!j->encoder->matcher && !(j->encoder->matcher = tarn__matcher_new())))
        return false;
    return tarn__regex_next(j->tokenizer->added.word, j->encoder->matcher, text + begin, bytes, 0, &first, &last) == 1;
}

/* A token with single_word counts only between characters that belong to no word. */
static bool is_alone(const job *j, const tarn__added_token *token, const char *text, size_t length, size_t at,
                     size_t end)
{
    return !token->single_word || (!is_word_at(j, text, length, at, true) && !is_word_at(j, text, length, end, false));
}

/* Appends the ids of added tokens found in the text; the text between them goes to `between`. The search continues
 * right after a token: whitespace that it absorbs may hold another, from whose end text goes on. */
static bool split_added(const job *j, bool normalized, const char *text, size_t length,
                        bool (*between)(const job *, const char *, size_t))
{
    const tarn_tokenizer *t = j->tokenizer;
    uint32_t blank = normalized && t->kind == &tarn__kind_spm && !t->spm.in_pre_tokenizer ? 0 : ' ';
    size_t done = 0, from = 0, at, size;
    const tarn__added_token *token;
    while ((token = tarn__added_next(&t->added, normalized, j->with_special, text, length, from, &at)) != NULL) {
        tarn__added_form(token, &size);
        from = at + size;
        if (!is_alone(j, token, text, length, at, from))
            continue;
        size_t begin = token->strip_left ? spaces_before(text, at, blank) : at;
        begin = token->strip_left && begin < done ? done : begin;
        size_t end = token->strip_right ? spaces_after(text, length, from, blank) : from;
        if (begin > end) /* inside of what the token before absorbed: Hugging Face's tokenizers fail */
            continue;
        if ((done < begin && !between(j, text + done, begin - done)) ||
            (begin < end && !tarn__ids_add(j->ids, token->id)))
            return false;
        j->encoder->continues = false; /* the text after a token is a new beginning */
        j->encoder->is_inside = true;
        done = end;
    }
    return !tarn_failed() && (done >= length || between(j, text + done, length - done));
}

static bool encode_text(const job *j, const char *text, size_t length)
{
    return j->tokenizer->kind->encode(j->tokenizer, j->encoder, text, length, j->ids);
}

/* Normalizes text between added tokens and searches for the tokens that match normalized text. */
static bool encode_normalized(const job *j, const char *text, size_t length)
{
    if (tarn__tokenizer_normalizes(j->tokenizer)) {
        j->encoder->normal.count = 0;
        if (!tarn__tokenizer_normalize(j->tokenizer, j->encoder, text, length, &j->encoder->normal))
            return false;
        text = j->encoder->normal.data;
        length = j->encoder->normal.count;
    }
    return split_added(j, true, text, length, encode_text);
}

/* The first of the three steps; the others follow through `between`. */
bool tarn__tokenizer_append_section(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text,
                                    size_t length, bool with_special, bool is_inside, tarn__buffer *ids)
{
    const job j = {tokenizer, encoder, with_special, ids};
    encoder->is_inside = is_inside;
    return split_added(&j, false, text, length, encode_normalized);
}

bool tarn__tokenizer_append(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const char *text, size_t length,
                            const tarn_encode_options *options, tarn__buffer *ids)
{
    bool adds = options->add_special;
    return (!adds || tarn__buffer_add(ids, tokenizer->before.data, tokenizer->before.count, sizeof(int32_t))) &&
           tarn__tokenizer_append_section(tokenizer, encoder, text, length, !options->special_as_text,
                                          encoder->continues, ids) &&
           (!adds || tarn__buffer_add(ids, tokenizer->after.data, tokenizer->after.count, sizeof(int32_t)));
}

/* A fresh encoder per call: its cache only pays off within one text. Callers with many texts use
 * tarn__tokenizer_append(). */
int32_t *tarn_tokenizer_encode_sized(const tarn_tokenizer *tokenizer, const char *text, size_t length,
                                     const tarn_encode_options *options, size_t options_size, int64_t *count)
{
    tarn_encode_options chosen = {0};
    if (count)
        *count = 0;
    if (tarn_failed())
        return NULL;
    if (!tokenizer) {
        tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_encode: tokenizer is NULL");
        return NULL;
    }
    if ((!text && length) || !count) {
        tarn__raise(TARN_ERROR_ARGUMENT, "tokenizer_encode: %s is NULL", count ? "text" : "count");
        return NULL;
    }
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    tarn__encoder encoder = {0};
    tarn__buffer ids = {0};
    int32_t *result = NULL;
    if (tarn__tokenizer_append(tokenizer, &encoder, text ? text : "", length, &chosen, &ids) &&
        (result = tarn__result_new(ids.count * sizeof(int32_t))) != NULL) {
        if (ids.count)
            memcpy(result, ids.data, ids.count * sizeof(int32_t));
        *count = (int64_t)ids.count;
    }
    tarn__buffer_free(&ids, sizeof(int32_t));
    tarn__encoder_free(&encoder);
    return result;
}
