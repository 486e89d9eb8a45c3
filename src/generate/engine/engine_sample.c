/* engine_sample.c: what follows the forward pass of a step: samples and log probabilities, without the lock; then, with
 * it, the requests advance and their outputs are queued.
 *
 * Every request samples by itself, from its own row, so that its tokens do not depend on the others. What fails for one
 * request ends this one only. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "core/device/device.h"
#include "generate/engine/engine.h"

/* ---- samples ----------------------------------------------------------------------------------------------------- */

/* Gives the prompt to the sampler's history, at the first sample. */
static bool add_history(tarn__request *r, tarn_device device)
{
    if (!r->needs_history)
        return true;
    r->needs_history = false;
    return tarn_sampler_accept(r->sampler, tarn_from_i32(r->tokens, TARN_SHAPE(1, r->prompt), device));
}

/* Notes the pending error at a request, which ends for it. False, with an error, if there is no memory for that: then
 * the step fails. */
static bool note_error(tarn__request *r)
{
    tarn__error_record why;
    tarn__error_save(&why);
    r->error = tarn__string_copy(why.text);
    return r->error != NULL;
}

/* Samples a request's rows in order and reads each token, as the next row is used only if it is the one proposed. */
static bool sample_proposed(tarn__request *r, tarn_tensor *logits, int64_t row)
{
    bool is_next = true;
    r->ids = 0;
    for (int64_t i = 0; is_next; i++) {
        if (!tarn__constraint_apply(&r->constraint, (int)i, r->sampler))
            return false;
        tarn_tensor *token = tarn_sampler_sample(r->sampler, tarn_slice(logits, 0, row + i, row + i + 1));
        if (!token || !tarn_read(token, &r->id[i], sizeof(r->id[i])))
            return false;
        r->ids++;
        is_next = i < r->proposed && r->id[i] == r->tokens[r->count + i] &&
                  !tarn__constraint_is_end(&r->constraint, (int)i, r->id[i]);
    }
    return true;
}

/* Samples of the batch, i64 [1, 1] each, in `part` [sequences]; NULL for requests without one, and for those whose
 * tokens have been read. */
static bool sample_all(tarn__batch *b, tarn_tensor *logits, tarn_tensor **part)
{
    for (int64_t i = 0; i < b->sequences; i++) {
        tarn__request *r = b->request[i];
        int64_t row = r->first_row + r->prompt_rows;
        if (!r->is_sampled)
            continue;
        if (!add_history(r, tarn_device_of(logits)))
            return false;
        if (r->proposed > 0) {
            if (!sample_proposed(r, logits, row))
                return false;
            continue;
        }
        if (!tarn__constraint_apply(&r->constraint, 0, r->sampler))
            return false;
        r->ids = 1;
        part[i] = tarn_sampler_sample(r->sampler, tarn_slice(logits, 0, row, row + 1));
        if (!part[i])
            return false;
    }
    return true;
}

/* Rows whose token was sampled. */
static int64_t sampled_rows(const tarn__request *r)
{
    return r->is_sampled ? r->ids : 0;
}

/* Log probabilities of a request's rows, f64 [rows · (1 + 2 · top_logprobs)]. A token of -1 counts as 0 here: it is
 * reported when it is read. */
static tarn_tensor *logprobs_of(const tarn__request *r, tarn_tensor *logits, tarn_tensor *sampled)
{
    int64_t rows = r->prompt_rows + sampled_rows(r), first = r->echoed > 1 ? r->echoed : 1;
    first = first > r->computed + 1 ? first : r->computed + 1; /* the token after the first row */
    tarn_tensor *part[2];
    int parts = 0;
    if (r->prompt_rows > 0)
        part[parts++] = tarn_cast(
            tarn_from_i32(r->tokens + first, TARN_SHAPE(r->prompt_rows, 1), tarn_device_of(logits)), TARN_I64);
    tarn_tensor *read =
        r->is_sampled && !sampled ? tarn_from_i64(r->id, TARN_SHAPE(r->ids, 1), tarn_device_of(logits)) : sampled;
    if (read)
        part[parts++] = tarn_maximum(read, tarn_scalar(0));
    tarn_tensor *tokens = tarn_failed() ? NULL : parts == 2 ? tarn_concat(part, 2, 0) : part[0];
    tarn_tensor *found =
        tokens ? tarn_token_logprobs(tarn_slice(logits, 0, r->first_row, r->first_row + rows), tokens, r->top_logprobs)
               : NULL;
    return found ? tarn_reshape(found, TARN_SHAPE(rows * (1 + 2 * r->top_logprobs))) : NULL;
}

/* Computes the log probabilities of every request, and reads all at once. */
static bool read_logprobs(tarn__batch *b, tarn_tensor *logits, tarn_tensor **sampled, tarn_tensor **part)
{
    int count = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < b->sequences; i++) {
        tarn__request *r = b->request[i];
        int64_t rows = r->prompt_rows + sampled_rows(r);
        r->logprobs_at = 0;
        if (!r->logprobs || rows == 0 || r->error)
            continue;
        part[count] = logprobs_of(r, logits, sampled[i]);
        if (part[count]) {
            count++;
            r->logprobs_at = at;
            at += rows * (1 + 2 * r->top_logprobs);
        } else if (!note_error(r)) {
            return false;
        }
    }
    if (count == 0)
        return true;
    tarn_tensor *all = tarn_concat(part, count, 0);
    return all && tarn_read(all, b->logprob, sizeof(*b->logprob) * (size_t)at);
}

/* Reads the sampled tokens of all requests at once. */
static bool read_tokens(const tarn__batch *b, tarn_tensor **sampled, tarn_tensor **part, int64_t *ids)
{
    int count = 0;
    for (int64_t i = 0; i < b->sequences; i++)
        if (sampled[i])
            part[count++] = sampled[i];
    if (count == 0)
        return true;
    tarn_tensor *all = tarn_concat(part, count, 0);
    if (!all || !tarn_read(all, ids, sizeof(*ids) * (size_t)count))
        return false;
    for (int64_t i = b->sequences - 1; i >= 0; i--)
        if (sampled[i])
            b->request[i]->id[0] = ids[--count];
    return true;
}

bool tarn__engine_sample(tarn__batch *b, tarn_tensor *logits)
{
    size_t bytes = (2 * sizeof(tarn_tensor *) + sizeof(int64_t)) * (size_t)b->sequences;
    int64_t *ids = tarn__alloc(bytes);
    if (!ids)
        return false;
    tarn_tensor **sampled = (tarn_tensor **)(void *)(ids + b->sequences), **part = sampled + b->sequences;
    bool good =
        sample_all(b, logits, sampled) && read_logprobs(b, logits, sampled, part) && read_tokens(b, sampled, part, ids);
    tarn__release(ids, bytes);
    return good;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Publishes the pages that the step has filled. Without batch invariance, which only the CPU has, those of the prompt
 * alone: another batch would compute other bits for sampled tokens. */
static void publish(tarn_engine *e, tarn__request *r)
{
    bool is_invariant = !e->options.not_invariant && tarn__device_map_is_cpu(&e->pages.shape.map);
    int64_t limit = is_invariant || r->computed < r->prompt ? r->computed : r->prompt;
    while (!e->options.no_sharing && (r->published + 1) * TARN__KV_PAGE <= limit) {
        int32_t buffer[TARN__ENGINE_PAGE_TOKENS];
        int64_t at = r->published++;
        const int32_t *tokens = tarn__engine_page_tokens(e, r, at, buffer);
        if (!tarn__engine_publish_restored(e, r->page[at], r->key, tokens))
            r->page[at] = tarn__page_pool_publish(&e->pool, r->page[at], r->key, tokens);
        r->key = tarn__page_pool_key(&e->pool, r->page[at]);
    }
}

/* Raises logits that gave no token, or no log probability. */
static bool raise_not_finite(const tarn__request *r, int64_t token)
{
    return tarn__raise(TARN_ERROR_FORMAT,
                       "request %lld: the logits of token %lld are not finite; check the model's weights and dtype",
                       (long long)r->number, (long long)token);
}

/* Queues the tokens of the prompt whose log probabilities are known; there is space. */
static bool echo(tarn_engine *e, tarn__request *r, const double *logprob)
{
    if (r->prompt_logprobs && r->echoed == 0)
        tarn__engine_reply(e, r, r->tokens[r->echoed++], TARN_FINISH_NONE)->output.is_prompt = true;
    for (int64_t i = 0; i < r->prompt_rows; i++, logprob += 1 + 2 * r->top_logprobs) {
        if (isnan(logprob[0]))
            return raise_not_finite(r, r->echoed);
        tarn__reply *reply = tarn__engine_reply(e, r, r->tokens[r->echoed++], TARN_FINISH_NONE);
        reply->output.is_prompt = true;
        if (!tarn__reply_logprobs(e, reply, logprob, r->top_logprobs))
            return false;
    }
    return true;
}

/* Adds text and log probabilities to the output of a sampled token, and its finish reason. */
static bool describe(tarn_engine *e, tarn__request *r, tarn__reply *reply, const double *logprob,
                     tarn_finish_reason reason)
{
    bool is_end = reason != TARN_FINISH_NONE;
    tarn__stop_buffer *text = &r->stop_buffer;
    if (r->logprobs && !tarn__reply_logprobs(e, reply, logprob, r->top_logprobs))
        return false;
    if (e->options.tokenizer &&
        (!tarn__stop_buffer_add_token(text, e->options.tokenizer, r->stream, reply->output.token, is_end) ||
         !tarn__reply_text(e, reply, text->text, text->ready)))
        return false;
    reply->output.finish_reason = text->is_over ? TARN_FINISH_STRING : reason;
    return true;
}

/* Queues the output of a sampled token; there is space. Whether it is the last one of a grammar is known later
 * (engine_masks.c). False with an error. */
static bool accept(tarn_engine *e, tarn__request *r, int row, const double *logprob)
{
    int64_t token = r->id[row];
    if (token < 0)
        return raise_not_finite(r, r->count);
    bool is_end = tarn__constraint_is_end(&r->constraint, row, token);
    if (!is_end) {
        r->tokens[r->count++] = (int32_t)token;
        e->stats.new_tokens++;
        tarn__engine_want_mask(e, r);
        if (e->short_context > 0 && r->count == e->short_context + 1)
            tarn__engine_release_pages(e, r); /* its keys fit shorter texts only: all are computed anew */
    }
    if (r->decoded_at == 0)
        r->decoded_at = tarn__engine_now();
    tarn__reply *reply = tarn__engine_reply(e, r, is_end ? -1 : (int32_t)token, TARN_FINISH_NONE);
    reply->output.end_token = is_end ? (int32_t)token : -1;
    bool is_last = r->count == r->max_count && !tarn__request_needs_mask(r);
    return describe(e, r, reply, logprob, is_end ? TARN_FINISH_TOKEN : is_last ? TARN_FINISH_LENGTH : TARN_FINISH_NONE);
}

/* Queues the outputs of a computed request, and ends it where it has to. */
static void reply(tarn_engine *e, const tarn__batch *b, tarn__request *r)
{
    const double *logprob = b->logprob + r->logprobs_at;
    bool is_last = false;
    if (r->error) {
        tarn__engine_fail(e, r, r->error);
        return;
    }
    bool good = echo(e, r, logprob);
    if (good && r->is_sampled) {
        int64_t each = 1 + 2 * r->top_logprobs;
        for (int i = 0; good && !is_last && i < r->ids; i++) {
            good = accept(e, r, i, logprob + (r->prompt_rows + i) * each);
            is_last = good && e->reply[e->replies - 1].output.finish_reason != TARN_FINISH_NONE;
        }
    } else if (good && r->prompt_only && r->computed == r->count) {
        tarn__engine_reply(e, r, -1, TARN_FINISH_LENGTH);
        is_last = true;
    }
    if (!good) {
        tarn__engine_fail(e, r, NULL);
        tarn_clear_error();
    } else if (is_last) {
        e->stats.finished++;
        tarn__engine_remove(e, r);
    }
}

bool tarn__engine_advance(tarn_engine *e, const tarn__batch *b)
{
    if (!tarn__engine_reserve_outputs(e, b->rows + b->sequences, e->count))
        return false;
    for (int64_t i = 0; i < b->sequences; i++) {
        tarn__request *r = b->request[i];
        bool is_decoding = r->planned == 1 + r->proposed && r->is_sampled && r->count > r->prompt;
        e->stats.prompt_tokens += is_decoding ? 0 : r->planned;
        r->computed += r->proposed > 0 ? r->ids : r->planned; /* keys after another token are written anew */
        tarn__engine_note_accepted(e, r);
        r->planned = 0;
        r->is_in_step = false;
        publish(e, r);
        tarn__engine_release_passed(e, r, r->computed);
        if (r->is_cancelled)
            tarn__engine_remove(e, r);
        else
            reply(e, b, r);
    }
    pthread_cond_broadcast(&e->changed);
    return true;
}

/* What the pages of a failed step hold is not known: they are not published. */
void tarn__engine_fail_all(tarn_engine *e, const tarn__batch *b)
{
    for (int64_t i = 0; i < b->sequences; i++) {
        tarn__request *r = b->request[i];
        r->is_in_step = false;
        if (r->is_cancelled)
            tarn__engine_remove(e, r);
        else
            tarn__engine_fail(e, r, NULL);
    }
}
