/* engine_output.c: the queue of outputs of an engine.
 *
 * Texts and candidates are in two growing arrays, in the order of their outputs. What was read is dropped before a
 * step, once it is half of the queue. The queue always has space for a last output of every request, so that none ends
 * in silence for want of memory. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "generate/engine/engine.h"

#define MIN_REPLIES 64 /* first capacity of the queue */
#define MIN_TEXT 1024  /* and of the arrays */
#define MIN_CANDIDATES 64

#define NO_TEXT SIZE_MAX

bool tarn__engine_reserve_outputs(tarn_engine *e, int64_t more, int64_t requests)
{
    return tarn__array_reserve(&e->reply, (size_t)e->replies, &e->reply_capacity, (size_t)(more + requests),
                               sizeof(*e->reply), MIN_REPLIES);
}

/* Moves what is left of the arrays to their beginning. */
static void compact(tarn_engine *e)
{
    size_t text = e->text_length, candidates = e->candidates; /* first of those in use */
    for (int i = e->first_reply; i < e->replies; i++) {
        const tarn__reply *reply = &e->reply[i];
        text = reply->text < text ? reply->text : text;
        if (reply->output.top_logprob_count > 0 && reply->candidates < candidates)
            candidates = reply->candidates;
    }
    for (int i = e->first_reply; i < e->replies; i++) {
        tarn__reply *to = &e->reply[i - e->first_reply];
        *to = e->reply[i];
        to->text -= to->text == NO_TEXT ? 0 : text;
        to->candidates -= to->output.top_logprob_count > 0 ? candidates : 0;
    }
    e->replies -= e->first_reply;
    e->first_reply = 0;
    e->text_length -= text;
    e->candidates -= candidates;
    if (e->text_length > 0)
        memmove(e->text, e->text + text, e->text_length);
    if (e->candidates > 0)
        memmove(e->candidate, e->candidate + candidates, sizeof(*e->candidate) * e->candidates);
}

void tarn__engine_reset_outputs(tarn_engine *e)
{
    if (e->first_reply >= e->replies - e->first_reply)
        compact(e);
}

tarn__reply *tarn__engine_reply(tarn_engine *e, const tarn__request *r, int32_t token, tarn_finish_reason reason)
{
    double now = tarn__engine_now();
    tarn__reply *reply = &e->reply[e->replies++];
    *reply = (tarn__reply){
        .output = {.request = r->number, .token = token, .finish_reason = reason, .shared = r->shared, .logprob = NAN},
        .text = NO_TEXT};
    reply->output.end_token = -1;
    reply->output.proposed_tokens = r->proposed_tokens;
    reply->output.accepted_tokens = r->accepted_tokens;
    if (r->added_at > 0)
        reply->output.wait_ms = (r->started_at > 0 ? r->started_at : now) - r->added_at;
    if (r->started_at > 0)
        reply->output.prompt_ms = (r->decoded_at > 0 ? r->decoded_at : now) - r->started_at;
    if (r->decoded_at > 0)
        reply->output.decode_ms = now - r->decoded_at;
    return reply;
}

bool tarn__reply_text(tarn_engine *e, tarn__reply *reply, const char *text, size_t length)
{
    if (!tarn__array_reserve(&e->text, e->text_length, &e->text_capacity, length + 1, 1, MIN_TEXT))
        return false;
    reply->text = e->text_length;
    reply->output.length = length;
    if (length > 0)
        memcpy(e->text + e->text_length, text, length);
    e->text[e->text_length + length] = '\0';
    e->text_length += length + 1;
    return true;
}

bool tarn__reply_logprobs(tarn_engine *e, tarn__reply *reply, const double *values, int top)
{
    if (!tarn__array_reserve(&e->candidate, e->candidates, &e->candidate_capacity, (size_t)top, sizeof(*e->candidate),
                             MIN_CANDIDATES))
        return false;
    reply->output.logprob = values[0];
    reply->output.top_logprob_count = top;
    reply->candidates = e->candidates;
    for (int i = 0; i < top; i++)
        e->candidate[e->candidates++] =
            (tarn_candidate){.token = (int32_t)values[1 + i], .logprob = values[1 + top + i]};
    return true;
}

/* The sentence is lost if there is no memory for it; the output never is. */
void tarn__engine_fail(tarn_engine *e, tarn__request *r, const char *sentence)
{
    tarn__error_record pending;
    tarn__error_save(&pending);
    const char *why = sentence ? sentence : pending.text;
    if (!tarn__reply_text(e, tarn__engine_reply(e, r, -1, TARN_FINISH_ERROR), why, strlen(why)))
        tarn_clear_error();
    e->stats.failed++;
    tarn__error_restore(&pending);
    tarn__engine_remove(e, r);
}

bool tarn__engine_drop_outputs(tarn_engine *e, int64_t request)
{
    bool was_ended = false;
    int left = e->first_reply;
    for (int i = e->first_reply; i < e->replies; i++)
        if (e->reply[i].output.request != request)
            e->reply[left++] = e->reply[i];
        else
            was_ended = was_ended || e->reply[i].output.finish_reason != TARN_FINISH_NONE;
    e->replies = left;
    return was_ended;
}

/* The public form of an output: its offsets become pointers. An error is kept where the text is. */
static tarn_engine_output resolve(const tarn_engine *e, const tarn__reply *reply)
{
    tarn_engine_output output = reply->output;
    const char *text = reply->text == NO_TEXT ? "" : e->text + reply->text;
    if (output.finish_reason == TARN_FINISH_ERROR) {
        output.error = text[0] ? text : "out of memory";
        text = "";
        output.length = 0;
    }
    output.text = e->options.tokenizer ? text : NULL;
    output.top_logprobs = output.top_logprob_count > 0 ? e->candidate + reply->candidates : NULL;
    return output;
}

bool tarn_engine_next_sized(tarn_engine *e, tarn_engine_output *output, size_t output_size)
{
    if (!tarn__engine_check("engine_next", e))
        return false;
    if (!output)
        return tarn__raise(TARN_ERROR_ARGUMENT, "engine_next: the output is NULL");
    tarn_engine_output found;
    tarn__engine_lock(e);
    bool has_output = e->first_reply < e->replies;
    if (has_output)
        found = resolve(e, &e->reply[e->first_reply++]);
    else
        tarn__engine_reset_outputs(e);
    tarn__engine_unlock(e);
    if (!has_output)
        return false;
    memset(output, 0, output_size);
    memcpy(output, &found, output_size < sizeof(found) ? output_size : sizeof(found));
    return true;
}
