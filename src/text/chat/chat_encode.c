/* chat_encode.c: ids of a rendered conversation.
 *
 * Added tokens are cut out and the text between them is encoded as one, across the border of template and message: ids
 * equal those of transformers, where a piece may hold the last byte of the template's text and the first of a message.
 * The exception is what makes a conversation safe: a special token is recognized only where all its bytes are the
 * template's. In a message, or half in one, it is text: nobody can end a turn by typing <|im_end|>. */
#include <string.h>

#include "base/utf8.h"
#include "text/chat/loss_mask.h"

/* The arguments of a call. */
typedef struct job {
    const tarn_tokenizer *tokenizer;
    tarn__encoder *encoder;
    const char *text;
    const uint8_t *origins;
    tarn__loss_mask *mask; /* NULL: none */
    tarn__buffer *ids;
} job;

static job job_of(const tarn_tokenizer *tokenizer, const tarn__rendering *rendering)
{
    return (job){.tokenizer = tokenizer,
                 .text = rendering->text.data,
                 .origins = (const uint8_t *)rendering->masks.origins.data};
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* Bytes of the template in [begin, end). */
static size_t own_bytes(const job *j, size_t begin, size_t end)
{
    size_t count = 0;
    for (size_t i = begin; i < end; i++)
        count += (j->origins[i] & TARN__JINJA_ORIGIN) == 0;
    return count;
}

/* Which tokens a search is for. */
typedef enum search { UNNORMALIZED, NORMALIZED, OWN_SPECIAL, FOREIGN_SPECIAL } search;

static bool is_wanted(const job *j, search which, const tarn__added_token *token, size_t at)
{
    bool is_own = !token->special || own_bytes(j, at, at + token->length) == token->length;
    switch (which) {
    case UNNORMALIZED: return is_own && !token->normalized && !token->single_word; /* the tokenizer knows words */
    case NORMALIZED: return is_own && token->normalized;
    case OWN_SPECIAL: return is_own && token->special;
    case FOREIGN_SPECIAL: break;
    }
    return !is_own;
}

/* The leftmost token in [from, end), at the same position the longest. A special token inside a message is text as a
 * whole: no shorter one is searched in it. */
static const tarn__added_token *next_token(const job *j, search which, size_t from, size_t end, size_t *at)
{
    const tarn__added *added = &j->tokenizer->added;
    const tarn__added_token *tokens = (const tarn__added_token *)(const void *)added->tokens.data;
    for (*at = from; added->tokens.count && *at < end; ++*at) {
        unsigned char byte = (unsigned char)j->text[*at];
        for (size_t i = added->first[byte]; i < added->first[byte + 1]; i++) {
            const tarn__added_token *t = &tokens[i];
            if (t->length > end - *at || memcmp(j->text + *at, t->text, t->length) != 0)
                continue;
            if (is_wanted(j, which, t, *at))
                return t;
            if (t->special && own_bytes(j, *at, *at + t->length) == 0) {
                *at += t->length - 1;
                break;
            }
        }
    }
    return NULL;
}

const tarn__added_token *tarn__chat_next_special(const tarn_tokenizer *tokenizer, const tarn__rendering *rendering,
                                                 size_t from, size_t end, size_t *at)
{
    job j = job_of(tokenizer, rendering);
    return next_token(&j, OWN_SPECIAL, from, end, at);
}

/* True if a special token may be found in normalized text that the original does not show. SentencePiece's BPE changes
 * only spaces, which no such token has. */
static bool hides_special(const tarn_tokenizer *t)
{
    const tarn__added_token *tokens = (const tarn__added_token *)(const void *)t->added.tokens.data;
    bool is_normalized = false, changes = tarn__tokenizer_normalizes(t) && t->kind != &tarn__kind_spm;
    for (size_t i = 0; changes && i < t->added.tokens.count; i++)
        is_normalized = is_normalized || (tokens[i].special && tokens[i].normalized);
    return is_normalized;
}

/* ---- sections ---------------------------------------------------------------------------------------------------- */

/* Whitespace that a token with lstrip or rstrip absorbs. */
static size_t spaces_before(const job *j, size_t from, size_t at)
{
    while (at > from) {
        size_t begin = at - 1;
        uint32_t code;
        while (begin > from && ((unsigned char)j->text[begin] & 0xC0) == 0x80)
            begin--;
        if (tarn__utf8_decode(j->text + begin, at - begin, &code) != at - begin || !tarn__is_space(code))
            break;
        at = begin;
    }
    return at;
}

static size_t spaces_after(const job *j, size_t at, size_t end)
{
    uint32_t code;
    for (size_t size; (size = tarn__utf8_decode(j->text + at, end - at, &code)) != 0 && tarn__is_space(code);)
        at += size;
    return at;
}

static bool encode_section(const job *j, size_t begin, size_t end, bool with_special)
{
    const tarn__section section = {j->text, begin, end, j->ids->count, with_special};
    return tarn__tokenizer_append_section(j->tokenizer, j->encoder, j->text + begin, end - begin, with_special,
                                          j->ids->count > 0, j->ids) &&
           (!j->mask || tarn__loss_mask_section(j->mask, j->tokenizer, j->encoder, &section, j->ids));
}

/* Cuts tokens out of [begin, end), those of the original text first. A text without a special token in a message goes
 * to the tokenizer as it is, which finds the tokens of normalized text; they are cut out here otherwise. */
static bool split(const job *j, search which, size_t begin, size_t end)
{
    size_t done = begin, from = begin, at;
    const tarn__added_token *token = NULL;
    for (;;) {
        token = next_token(j, which, from, end, &at);
        from = token ? at + token->length : end;
        size_t stop = !token ? end : token->strip_left ? spaces_before(j, begin, at) : at, foreign;
        stop = stop < done && (!token || token->strip_left) ? done : stop;
        size_t next = token && token->strip_right ? spaces_after(j, from, end) : from;
        if (stop > next) /* inside of what the token before absorbed */
            continue;
        if (done < stop) {
            bool is_clean = which == UNNORMALIZED && !hides_special(j->tokenizer) &&
                            !next_token(j, FOREIGN_SPECIAL, done, stop, &foreign);
            if (!(is_clean || which == NORMALIZED ? encode_section(j, done, stop, is_clean)
                                                  : split(j, NORMALIZED, done, stop)))
                return false;
        }
        if (!token)
            return true;
        if (stop < next &&
            (!tarn__ids_add(j->ids, token->id) || (j->mask && !tarn__loss_mask_token(j->mask, at, at + token->length))))
            return false;
        done = next;
    }
}

bool tarn__chat_encode(const tarn_tokenizer *tokenizer, tarn__encoder *encoder, const tarn__rendering *rendering,
                       tarn__loss_mask *mask, tarn__buffer *ids)
{
    job j = job_of(tokenizer, rendering);
    j.encoder = encoder;
    j.mask = mask;
    j.ids = ids;
    return split(&j, UNNORMALIZED, 0, rendering->text.count);
}
