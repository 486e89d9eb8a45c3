/* loss_mask.c: see loss_mask.h. Tokenizers do not say where in a text an id begins. But pieces add up: as many bytes as
 * the pieces of a text's beginning have, encoded by itself, lie before the place where that beginning ends, and
 * normalisation does to both the same. */
#include "text/chat/loss_mask.h"

#include <string.h>

void tarn__loss_mask_clear(tarn__phase_timer *m)
{
    m->learnt.count = m->turns.count = 0;
    m->is_answer = false;
}

void tarn__loss_mask_free(tarn__phase_timer *m)
{
    tarn__buffer_free(&m->learnt, 1);
    tarn__buffer_free(&m->turns, sizeof(size_t));
    tarn__buffer_free(&m->trial, sizeof(int32_t));
}

bool tarn__loss_mask_toggle(tarn__phase_timer *m, size_t at)
{
    return tarn__buffer_add(&m->turns, &at, 1, sizeof(at));
}

/* Ids that begin a text come before all others: text behind them is encoded as a beginning. */
bool tarn__loss_mask_begin(tarn__phase_timer *m, tarn__buffer *ids, const tarn__buffer *before)
{
    size_t more = before->count;
    if (!tarn__buffer_reserve(ids, more, sizeof(int32_t)) || !tarn__buffer_reserve(&m->learnt, more, 1))
        return false;
    if (more == 0)
        return true;
    memmove(ids->data + more * sizeof(int32_t), ids->data, ids->count * sizeof(int32_t));
    memcpy(ids->data, before->data, more * sizeof(int32_t));
    memmove(m->learnt.data + more, m->learnt.data, m->learnt.count);
    memset(m->learnt.data, 0, more);
    ids->count += more;
    m->learnt.count += more;
    return true;
}

bool tarn__loss_mask_add_token(tarn__phase_timer *m)
{
    uint8_t learnt = m->is_answer;
    return tarn__buffer_add(&m->learnt, &learnt, 1, 1);
}

static size_t bytes_of(const tarn_tokenizer *tokenizer, const tarn__buffer *ids, size_t from, size_t end)
{
    size_t sum = 0;
    for (size_t i = from; i < end; i++) {
        size_t length = 0;
        tarn__vocab_bytes(&tokenizer->pieces, ((const int32_t *)(const void *)ids->data)[i], &length);
        sum += length;
    }
    return sum;
}

/* How many bytes of pieces lie before a place of the section. */
static bool find_place(tarn__phase_timer *m, const tarn_tokenizer *tokenizer, tarn__encoder *coder,
                       const tarn__section *s, size_t at, size_t *place)
{
    m->trial.count = 0;
    *place = 0;
    if (at <= s->from)
        return true;
    bool good = tarn__tokenizer_append_section(tokenizer, coder, s->text + s->from, at - s->from, false, s->first > 0,
                                               &m->trial);
    *place = good ? bytes_of(tokenizer, &m->trial, 0, m->trial.count) : 0;
    return good;
}

/* Marks what holds bytes of pieces from `begin` up to `end`. */
static void mark(tarn__phase_timer *m, const tarn_tokenizer *tokenizer, const tarn__section *s, const tarn__buffer *ids,
                 size_t begin, size_t end)
{
    for (size_t i = s->first, at = 0; i < ids->count; i++) {
        size_t next = at + bytes_of(tokenizer, ids, i, i + 1);
        if (next > begin && at < end)
            m->learnt.data[i] = 1;
        at = next;
    }
}

bool tarn__loss_mask_section(tarn__phase_timer *m, const tarn_tokenizer *tokenizer, tarn__encoder *coder,
                             const tarn__section *s, const tarn__buffer *ids)
{
    const uint8_t none = 0;
    const size_t *turns = (const size_t *)(const void *)m->turns.data;
    size_t begin = 0, whole = bytes_of(tokenizer, ids, s->first, ids->count);
    bool good = true;
    for (size_t i = s->first; good && i < ids->count; i++)
        good = tarn__buffer_add(&m->learnt, &none, 1, 1);
    for (size_t i = 0; good && i < m->turns.count; i++) {
        size_t at = turns[i] < s->length ? turns[i] : s->length, place = whole; /* spaces before a token may be gone */
        good = at == s->length || find_place(m, tokenizer, coder, s, at, &place);
        if (good && m->is_answer)
            mark(m, tokenizer, s, ids, begin, place);
        begin = place;
        m->is_answer = !m->is_answer;
    }
    if (good && m->is_answer)
        mark(m, tokenizer, s, ids, begin, whole);
    m->turns.count = 0;
    return good;
}
