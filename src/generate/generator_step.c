/* generator_step.c: the next output of a generator.
 *
 * A step feeds the tokens read last of all active sequences in one batch and samples the next ones; they stay on the
 * device until an output is requested. Ended sequences stay in the batch with a dummy token, which is removed again
 * after the step. A single active sequence is fed alone. With speculation the logits after a token may be known before
 * it is read (speculate.h). */
#include <math.h>
#include <string.h>

#include "generate/generator.h"

/* ---- steps ------------------------------------------------------------------------------------------------------- */

bool tarn__generator_has_output(const tarn_generator *w)
{
    for (int64_t i = w->next_sequence; w->is_on_host && i < w->count; i++)
        if (w->sequence[i].is_active)
            return true;
    return false;
}

/* Number of active sequences; `*last` is one of them. */
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

/* Makes sure that an ended sequence has a slot for the dummy token of the step: a full one loses its last token. */
static bool free_slot(tarn_generator *w, int64_t sequence)
{
    tarn__sequence *s = &w->sequence[sequence];
    int64_t capacity = w->decoder->cache.shape.capacity;
    if (w->decoder->cache.length[sequence] < capacity)
        return true;
    s->count = s->count < capacity - 1 ? s->count : capacity - 1;
    return tarn_decoder_rewind_one(w->decoder, sequence, capacity - 1);
}

/* Logits [batch, vocab_size] after the tokens read last, of all sequences. */
static tarn_tensor *feed_all(tarn_generator *w)
{
    for (int64_t i = 0; i < w->count; i++) {
        const tarn__sequence *s = &w->sequence[i];
        if (!s->is_active && !free_slot(w, i))
            return NULL;
        w->parts[i] = s->is_active ? s->sampled : tarn_zeros(TARN_SHAPE(1, 1), TARN_I64, w->decoder->info.device);
    }
    tarn_tensor *logits = tarn_decoder_feed(w->decoder, tarn_failed() ? NULL : tarn_concat(w->parts, (int)w->count, 0));
    for (int64_t i = 0; logits && i < w->count; i++)
        if (!w->sequence[i].is_active && !tarn_decoder_rewind_one(w->decoder, i, w->decoder->cache.length[i] - 1))
            return NULL;
    return logits;
}

/* Replaces the sampled token of a sequence. */
static bool sample_next(tarn__sequence *s, tarn_tensor *logits)
{
    tarn_free(s->sampled);
    tarn_free(s->logprobs);
    s->sampled = s->logprobs = NULL;
    return logits && tarn__sequence_sample(s, logits);
}

/* Slides the window of active sequences whose context is full, and recomputes those that leave longrope's short
 * context. */
static bool slide_all(tarn_generator *w)
{
    for (int64_t i = 0; i < w->count; i++) {
        bool is_active = w->sequence[i].is_active;
        if (is_active && w->decoder->cache.length[i] == w->decoder->cache.shape.capacity && !tarn__sequence_slide(w, i))
            return false;
        if (is_active && !tarn__longrope_cross(w, i))
            return false;
    }
    return true;
}

/* Active sequences one by one. */
static bool step_each(tarn_generator *w)
{
    for (int64_t i = 0; i < w->count; i++)
        if (w->sequence[i].is_active &&
            !sample_next(&w->sequence[i], tarn_decoder_feed_one(w->decoder, i, w->sequence[i].sampled)))
            return false;
    return true;
}

/* The only sequence, with speculation. */
static bool step_speculating(tarn_generator *w)
{
    tarn__sequence *s = &w->sequence[0];
    tarn_tensor *logits = tarn__speculation_next(&w->speculation);
    if (!logits)
        logits = !tarn_failed() && slide_all(w) ? tarn__speculation_feed(&w->speculation, w->decoder, s) : NULL;
    return sample_next(s, logits);
}

/* A single active sequence is fed alone: its feed needs no concat, and the others no dummy token. */
static bool step(tarn_generator *w)
{
    int64_t one = 0, active = count_active(w, &one);
    if (active == 1 && w->sequence[one].options.speculate != TARN_SPECULATE_OFF)
        return step_speculating(w);
    if (!slide_all(w))
        return false;
    if (active == 0)
        return true;
    if (active == 1 || tarn__longrope_is_split(w))
        return step_each(w);
    tarn_tensor *logits = feed_all(w);
    for (int64_t i = 0; logits && i < w->count; i++)
        if (w->sequence[i].is_active && !sample_next(&w->sequence[i], tarn_slice(logits, 0, i, i + 1)))
            return false;
    return logits != NULL;
}

bool tarn__generator_step(tarn_generator *w)
{
    tarn__generator_drop_prompt(w);
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && step(w);
    tarn_scope_close(scope);
    w->is_on_host = false;
    w->next_sequence = 0;
    for (int64_t i = 0; !good && i < w->count; i++)
        tarn__sequence_end(&w->sequence[i]); /* their caches are no longer consistent */
    if (!good)
        tarn__speculation_drop(&w->speculation, w->decoder, w->sequence[0].count - 1);
    return good;
}

/* Downloads the sampled tokens of all active sequences in one transfer. */
static bool read_tokens(tarn_generator *w)
{
    int64_t count = 0, ids_of_active = 0;
    tarn_scope *scope = tarn_scope_open();
    for (int64_t i = 0; i < w->count; i++)
        if (w->sequence[i].is_active)
            w->parts[count++] = w->sequence[i].sampled;
    tarn_tensor *all = count > 1 ? tarn_concat(w->parts, (int)count, 0) : w->parts[0];
    bool good = scope && all && tarn_read(all, w->ids, sizeof(*w->ids) * (size_t)count);
    tarn_scope_close(scope);
    ids_of_active = count;
    for (int64_t i = w->count - 1; good && i >= 0; i--) /* spread to the indices of their sequences, from the last */
        if (w->sequence[i].is_active)
            w->ids[i] = w->ids[--ids_of_active];
    w->is_on_host = good;
    w->next_sequence = 0;
    return good;
}

/* ---- outputs ----------------------------------------------------------------------------------------------------- */

/* Downloads the log probabilities of a sequence's token. */
static bool add_logprobs(tarn__sequence *s, tarn_output *output)
{
    double values[1 + 2 * TARN__MAX_TOP_LOGPROBS];
    int top = s->options.top_logprobs;
    if (!s->logprobs)
        return true;
    if (!tarn_read(s->logprobs, values, sizeof(*values) * (size_t)(1 + 2 * top)))
        return false;
    output->logprob = values[0];
    for (int i = 0; i < top; i++)
        s->top_logprobs[i] = (tarn_candidate){.token = (int32_t)values[1 + i], .logprob = values[1 + top + i]};
    output->top_logprobs = s->top_logprobs;
    output->top_logprob_count = top;
    return true;
}

/* Appends a token that was read, and compares it with the proposed one. Without its cache, the text is not reused. */
static bool add_token(tarn_generator *w, tarn__sequence *s, int32_t token)
{
    if (!tarn__sequence_add(s, token))
        return false;
    if (tarn__speculation_accept(&w->speculation, w->decoder, s->count, token))
        return true;
    s->count = 0;
    return false;
}

/* The output of a sequence whose token was read. */
static bool make_output(tarn_generator *w, int64_t sequence, tarn_output *output)
{
    tarn__sequence *s = &w->sequence[sequence];
    int64_t token = w->ids[sequence];
    *output = (tarn_output){.sequence = sequence, .token = (int32_t)token, .logprob = NAN, .slid = s->slid};
    s->slid = false;
    if (token < 0)
        return tarn__raise(TARN_ERROR_FORMAT,
                           "the logits of token %lld are not finite; check the model's weights and dtype",
                           (long long)s->count);
    bool is_end = tarn__constraint_is_end(&s->constraint, 0, token), is_done = false;
    if (is_end)
        output->token = -1;
    else if (!add_token(w, s, (int32_t)token) || !add_logprobs(s, output) ||
             !tarn__constraint_accept(&s->constraint, (int32_t)token, &is_done))
        return false;
    bool is_full = !is_end && ++s->generated == s->most;
    if (w->tokenizer && !tarn__stop_buffer_add_token(&s->stop_buffer, w->tokenizer, s->stream, output->token,
                                                     is_end || is_full || is_done))
        return false;
    output->text = w->tokenizer ? (s->stop_buffer.text ? s->stop_buffer.text : "") : NULL;
    output->length = s->stop_buffer.ready;
    output->finish_reason = s->stop_buffer.is_over ? TARN_FINISH_STRING
                            : is_end               ? TARN_FINISH_TOKEN
                            : is_done              ? TARN_FINISH_GRAMMAR
                            : is_full              ? TARN_FINISH_LENGTH
                                                   : TARN_FINISH_NONE;
    if (output->finish_reason == TARN_FINISH_NONE)
        return true;
    tarn__sequence_end(s);
    return tarn__speculation_drop(&w->speculation, w->decoder, is_end ? s->count : s->count - 1);
}

/* Returns the outputs of one step in the order of the sequences; only then feeds the next step. */
bool tarn__generator_next(tarn_generator *w, tarn_output *output)
{
    int64_t one;
    if (!tarn__generator_has_output(w)) {
        if (w->is_on_host && !tarn__generator_step(w))
            return false;
        if (count_active(w, &one) == 0 || !read_tokens(w))
            return false;
    }
    while (!w->sequence[w->next_sequence].is_active)
        w->next_sequence++;
    int64_t sequence = w->next_sequence++;
    if (make_output(w, sequence, output))
        return true;
    tarn__sequence_end(&w->sequence[sequence]);
    tarn__speculation_drop(&w->speculation, w->decoder, w->sequence[sequence].count - 1);
    return false;
}

/* `output` may be of an older or newer header: unknown fields become zero. */
bool tarn_generator_next_sized(tarn_generator *generator, tarn_output *output, size_t output_size)
{
    const char *function = "generator_next";
    tarn_output found;
    if (tarn_failed())
        return false;
    if (!generator || !output)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: the %s is NULL", function, generator ? "output" : "generator");
    if (!tarn__generator_next(generator, &found))
        return tarn_failed() && tarn__raise_within(function);
    memset(output, 0, output_size);
    memcpy(output, &found, output_size < sizeof(found) ? output_size : sizeof(found));
    return true;
}
