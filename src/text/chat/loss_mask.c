/* loss_mask.c: loss masks (loss_mask.h).
 *
 * Tokenizers do not report the offsets of ids. But pieces add up: the beginning of a text, encoded by itself, has as
 * many bytes of pieces as lie before that position in the encoding of the whole, since normalization changes both
 * alike. */
#include "text/chat/loss_mask.h"

#include <string.h>

void tarn__loss_mask_clear(tarn__loss_mask *m)
{
    m->flags.count = m->toggles.count = 0;
    m->is_completion = false;
}

void tarn__loss_mask_free(tarn__loss_mask *m)
{
    tarn__buffer_free(&m->flags, 1);
    tarn__buffer_free(&m->toggles, sizeof(size_t));
    tarn__buffer_free(&m->trial, sizeof(int32_t));
}

/* Toggles are recorded as offsets and applied when the text is encoded: only then do ids exist. */
bool tarn__loss_mask_toggle(tarn__loss_mask *m, size_t at)
{
    return tarn__buffer_add(&m->toggles, &at, 1, sizeof(at));
}

/* Special tokens are inserted last, not encoded first, so that the text is encoded as the beginning of an input. */
bool tarn__loss_mask_begin(tarn__loss_mask *m, tarn__buffer *ids, const tarn__buffer *before)
{
    size_t more = before->count;
    if (!tarn__buffer_reserve(ids, more, sizeof(int32_t)) || !tarn__buffer_reserve(&m->flags, more, 1))
        return false;
    if (more == 0)
        return true;
    memmove(ids->data + more * sizeof(int32_t), ids->data, ids->count * sizeof(int32_t));
    memcpy(ids->data, before->data, more * sizeof(int32_t));
    memmove(m->flags.data + more, m->flags.data, m->flags.count);
    memset(m->flags.data, 0, more);
    ids->count += more;
    m->flags.count += more;
    return true;
}

/* A token of the template inside a completion, such as its end, counts too. */
bool tarn__loss_mask_add_token(tarn__loss_mask *m)
{
    uint8_t flags = m->is_completion;
    return tarn__buffer_add(&m->flags, &flags, 1, 1);
}

/* Sum of the bytes of pieces of ids from … end - 1. */
static size_t bytes_of(const tarn_tokenizer *tokenizer, const tarn__buffer *ids, size_t from, size_t end)
{
    size_t sum = 0;
    for (size_t i = from; i < end; i++) {
        size_t length = 0;
        tarn__vocab_bytes(&tokenizer->vocab, ((const int32_t *)(const void *)ids->data)[i], &length);
        sum += length;
    }
    return sum;
}

/* Bytes of pieces before an offset of the section: encodes the section up to there. */
static bool piece_bytes_before(tarn__loss_mask *m, const tarn_tokenizer *tokenizer, tarn__encoder *encoder,
                               const tarn__section *s, size_t at, size_t *offset)
{
    m->trial.count = 0;
    *offset = 0;
    if (at <= s->from)
        return true;
    bool good = tarn__tokenizer_append_section(tokenizer, encoder, s->text + s->from, at - s->from, false, s->first > 0,
                                               &m->trial);
    *offset = good ? bytes_of(tokenizer, &m->trial, 0, m->trial.count) : 0;
    return good;
}

/* Flags the ids that contain bytes of pieces from `begin` to `end`. */
static void set_flags(tarn__loss_mask *m, const tarn_tokenizer *tokenizer, const tarn__section *s,
                      const tarn__buffer *ids, size_t begin, size_t end)
{
    for (size_t i = s->first, at = 0; i < ids->count; i++) {
        size_t next = at + bytes_of(tokenizer, ids, i, i + 1);
        if (next > begin && at < end)
            m->flags.data[i] = 1;
        at = next;
    }
}

/* All ids of the section get a flag of 0 first; those between a beginning and an end are then set. */
bool tarn__loss_mask_section(tarn__loss_mask *m, const tarn_tokenizer *tokenizer, tarn__encoder *encoder,
                             const tarn__section *s, const tarn__buffer *ids)
{
    const uint8_t none = 0;
    const size_t *toggles = (const size_t *)(const void *)m->toggles.data;
    size_t begin = 0, total = bytes_of(tokenizer, ids, s->first, ids->count);
    bool good = true;
    for (size_t i = s->first; good && i < ids->count; i++)
        good = tarn__buffer_add(&m->flags, &none, 1, 1);
    for (size_t i = 0; good && i < m->toggles.count; i++) {
        size_t at = toggles[i] < s->length ? toggles[i] : s->length,
               offset = total; /* a token with lstrip may have removed trailing spaces */
        good = at == s->length || piece_bytes_before(m, tokenizer, encoder, s, at, &offset);
        if (good && m->is_completion)
            set_flags(m, tokenizer, s, ids, begin, offset);
        begin = offset;
        m->is_completion = !m->is_completion;
    }
    if (good && m->is_completion)
        set_flags(m, tokenizer, s, ids, begin, total);
    m->toggles.count = 0;
    return good;
}
