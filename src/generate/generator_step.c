/* generator_step.c: the next piece of a writer's texts.
 *
 * A step feeds the tokens that were read last, of all texts that go on, and draws the next ones; they stay on the
 * device until somebody asks for a piece. Texts that have ended stay in the batch with what they have: what a step does
 * to them is taken back. One text alone is fed alone. */
#include <math.h>
#include <string.h>

#include "generate/generator.h"

/* ---- a step ------------------------------------------------------------------------------------------------------ */

bool tarn__generator_has_output(const tarn_generator *w)
{
    for (int64_t i = w->turn; w->is_read && i < w->count; i++)
        if (w->sequence[i].is_active)
            return true;
    return false;
}

/* How many texts go on; `*last` is one of them. */
static int64_t count_active(const tarn_generator *w, int64_t *last)
{
    int64_t active = 0;
    for (int64_t i = 0; i < w->count; i++)
        if (w->sequence[i].is_active) {
            active++;
            *last = i;
        }
    return active;
}

/* A text that has ended gets room for the token that the step puts behind it: where it is full, its last token is
 * forgotten. */
static bool make_room(tarn_generator *w, int64_t sequence)
{
    tarn__sequence *s = &w->sequence[sequence];
    int64_t capacity = w->decoder->cache.shape.capacity;
    if (w->decoder->cache.length[sequence] < capacity)
        return true;
    s->count = s->count < capacity - 1 ? s->count : capacity - 1;
    return tarn_decoder_rewind_one(w->decoder, sequence, capacity - 1);
}

/* Logits [batch, vocab] of what follows the tokens read last. */
static tarn_tensor *feed_all(tarn_generator *w)
{
    for (int64_t i = 0; i < w->count; i++) {
        const tarn__sequence *s = &w->sequence[i];
        if (!s->is_active && !make_room(w, i))
            return NULL;
        w->parts[i] = s->is_active ? s->drawn : tarn_zeros(TARN_SHAPE(1, 1), TARN_I64, w->decoder->info.device);
    }
    tarn_tensor *logits = tarn_decoder_feed(w->decoder, tarn_failed() ? NULL : tarn_concat(w->parts, (int)w->count, 0));
    for (int64_t i = 0; logits && i < w->count; i++)
        if (!w->sequence[i].is_active && !tarn_decoder_rewind_one(w->decoder, i, w->decoder->cache.length[i] - 1))
            return NULL;
    return logits;
}

static bool draw_next(tarn__sequence *s, tarn_tensor *logits)
{
    tarn_free(s->drawn);
    tarn_free(s->logprobs);
    s->drawn = s->logprobs = NULL;
    return logits && tarn__sequence_sample(s, logits);
}

/* Texts that have filled the context forget their middle. */
static bool slide_all(tarn_generator *w)
{
    for (int64_t i = 0; i < w->count; i++)
        if (w->sequence[i].is_active && w->decoder->cache.length[i] == w->decoder->cache.shape.capacity &&
            !tarn__sequence_slide(w, i))
            return false;
    return true;
}

static bool step(tarn_generator *w)
{
    int64_t one = 0, active = count_active(w, &one);
    if (!slide_all(w))
        return false;
    if (active == 0)
        return true;
    if (active == 1)
        return draw_next(&w->sequence[one], tarn_decoder_feed_one(w->decoder, one, w->sequence[one].drawn));
    tarn_tensor *logits = feed_all(w);
    for (int64_t i = 0; logits && i < w->count; i++)
        if (w->sequence[i].is_active && !draw_next(&w->sequence[i], tarn_slice(logits, 0, i, i + 1)))
            return false;
    return logits != NULL;
}

bool tarn__generator_step(tarn_generator *w)
{
    tarn__generator_drop_prompt(w);
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && step(w);
    tarn_scope_close(scope);
    w->is_read = false;
    w->turn = 0;
    for (int64_t i = 0; !good && i < w->count; i++)
        tarn__sequence_end(&w->sequence[i]); /* none can go on */
    return good;
}

/* Brings the tokens that were drawn to the host, all in one copy. */
static bool read_tokens(tarn_generator *w)
{
    int64_t count = 0, ids_of_active = 0;
    tarn_scope *scope = tarn_scope_open();
    for (int64_t i = 0; i < w->count; i++)
        if (w->sequence[i].is_active)
            w->parts[count++] = w->sequence[i].drawn;
    tarn_tensor *all = count > 1 ? tarn_concat(w->parts, (int)count, 0) : w->parts[0];
    bool good = scope && all && tarn_read(all, w->ids, sizeof(*w->ids) * (size_t)count);
    tarn_scope_close(scope);
    ids_of_active = count;
    for (int64_t i = w->count - 1; good && i >= 0; i--) /* each to its own place */
        if (w->sequence[i].is_active)
            w->ids[i] = w->ids[--ids_of_active];
    w->is_read = good;
    w->turn = 0;
    return good;
}

/* ---- a piece ----------------------------------------------------------------------------------------------------- */

static bool ends_text(const tarn_generator *w, const tarn__sequence *s, int64_t token)
{
    const tarn__model_info *info = &w->decoder->info;
    for (int i = 0; i < s->options.stop_count; i++)
        if (s->stop[i] == token)
            return true;
    for (int i = 0; !s->options.ignore_eos && i < info->eos_count; i++)
        if (info->eos[i] == token)
            return true;
    return false;
}

/* The text of a token, or of none, joins what is held back. A vocabulary may be filled up with tokens that have no
 * text, or have gaps. */
static bool add_text(const tarn_generator *w, tarn__sequence *s, int32_t token, bool is_end)
{
    size_t length = 0;
    const char *text = "";
    if (!w->tokenizer)
        return true;
    if (token >= 0 && token < tarn_tokenizer_count(w->tokenizer) && tarn_tokenizer_piece(w->tokenizer, token, NULL))
        text = tarn_text_stream_push(s->stream, token, &length);
    if (!text || !tarn__stop_buffer_add(&s->held, text, length))
        return false;
    if (is_end &&
        (!(text = tarn_text_stream_end(s->stream, &length)) || !tarn__stop_buffer_add(&s->held, text, length)))
        return false;
    tarn__stop_buffer_settle(&s->held, is_end);
    return true;
}

static bool add_logprobs(tarn__sequence *s, tarn_output *piece)
{
    double values[1 + 2 * TARN__MAX_TOP_LOGPROBS];
    int top = s->options.top_logprobs;
    if (!s->logprobs)
        return true;
    if (!tarn_read(s->logprobs, values, sizeof(*values) * (size_t)(1 + 2 * top)))
        return false;
    piece->logprob = values[0];
    for (int i = 0; i < top; i++)
        s->top_logprobs[i] = (tarn_candidate){.token = (int32_t)values[1 + i], .logprob = values[1 + top + i]};
    piece->top_logprobs = s->top_logprobs;
    piece->top_logprob_count = top;
    return true;
}

/* The piece of a sequence whose token was read. */
static bool make_piece(const tarn_generator *w, int64_t sequence, tarn_output *piece)
{
    tarn__sequence *s = &w->sequence[sequence];
    int64_t token = w->ids[sequence];
    *piece = (tarn_output){.sequence = sequence, .token = (int32_t)token, .logprob = NAN, .slid = s->slid};
    s->slid = false;
    if (token < 0)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "the logits of token %lld are not finite: the model's weights, or its dtype, are wrong",
                           (long long)s->count);
    bool is_end = ends_text(w, s, token);
    if (is_end)
        piece->token = -1;
    else if (!tarn__sequence_add(s, (int32_t)token) || !add_logprobs(s, piece))
        return false;
    bool is_full = !is_end && ++s->made == s->most;
    if (!add_text(w, s, piece->token, is_end || is_full))
        return false;
    piece->text = w->tokenizer ? (s->held.text ? s->held.text : "") : NULL;
    piece->length = s->held.given;
    piece->finish_reason = s->held.is_over ? TARN_FINISH_STRING
                           : is_end        ? TARN_FINISH_TOKEN
                           : is_full       ? TARN_FINISH_LENGTH
                                           : TARN_FINISH_NONE;
    if (piece->finish_reason != TARN_FINISH_NONE)
        tarn__sequence_end(s);
    return true;
}

bool tarn__generator_next(tarn_generator *w, tarn_output *piece)
{
    int64_t one;
    if (!tarn__generator_has_output(w)) {
        if (w->is_read && !tarn__generator_step(w))
            return false;
        if (count_active(w, &one) == 0 || !read_tokens(w))
            return false;
    }
    while (!w->sequence[w->turn].is_active)
        w->turn++;
    int64_t sequence = w->turn++;
    if (make_piece(w, sequence, piece))
        return true;
    tarn__sequence_end(&w->sequence[sequence]);
    return false;
}

bool tarn_generator_next_sized(tarn_generator *writer, tarn_output *piece, size_t piece_size)
{
    const char *function = "generator_next";
    tarn_output found;
    if (tarn_failed())
        return false;
    if (!writer || !piece)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s is NULL", function, writer ? "piece" : "writer");
    if (!tarn__generator_next(writer, &found))
        return tarn_failed() && tarn__raise_within(function);
    memset(piece, 0, piece_size);
    memcpy(piece, &found, piece_size < sizeof(found) ? piece_size : sizeof(found));
    return true;
}
