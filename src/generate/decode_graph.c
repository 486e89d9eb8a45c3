/* decode_graph.c: the step of one token for every sequence, recorded once and then run as a whole, where the device can
 * do that.
 *
 * What changes from token to token lies on the device: the token, which is copied into a tensor that stays, and the
 * lengths of the sequences, from which positions, places in the cache and the keys to look at are taken there; the step
 * itself moves them on. What the host decided stays as it was: `reach`, the keys that are looked at at most. It is a
 * power of two, so that a text is recorded again each time that it has grown to twice its length, not more often. Steps
 * before the recorded one are taken one by one in the same form: buffers are made and algorithms chosen in them. */
#include "generate/captured.h"

#include <string.h>
#include <tarn/autograd.h>

#include "base/error.h"
#include "core/launch/graph.h"
#include "generate/decoder.h"

enum { WARM_UP = 2 };          /* steps that are taken one by one first */
enum { SMALLEST_REACH = 256 }; /* keys */

void tarn__decode_graph_init(tarn__decode_graph *c, tarn_device device, bool is_wanted)
{
    *c = (tarn__decode_graph){.is_wanted = is_wanted && tarn__can_capture(device)};
}

static void forget(tarn__decode_graph *c)
{
    tarn_graph_free(c->graph);
    c->graph = NULL;
    c->warm_steps = 0;
}

void tarn__decode_graph_close(tarn__decode_graph *c)
{
    forget(c);
    tarn_free(c->tokens);
    tarn_free(c->logits);
    *c = (tarn__decode_graph){0};
}

/* The step itself, run or recorded. Its token is in its place; its logits are kept. */
static bool step(void *ctx)
{
    tarn_decoder *d = ctx;
    tarn__decode_graph *c = &d->captured;
    tarn_scope *scope = tarn_scope_open();
    tarn_no_grad_open();
    bool good = scope && tarn__kv_cache_begin_step(&d->cache, 0, d->batch, 1, c->reach);
    tarn_tensor *logits = good ? tarn__decoder_forward(d, c->tokens) : NULL;
    tarn_free(c->logits);
    c->logits = logits ? tarn__scope_take(logits) : NULL; /* of a recorded step: each run makes them there again */
    /* last: a step that fails must not count on the device alone */
    good = good && logits && tarn__kv_cache_end_step(&d->cache);
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return good;
}

/* Room for `length` keys: the next power of two, or all there is. */
static int64_t reach_for(const tarn_decoder *d, int64_t length)
{
    int64_t reach = SMALLEST_REACH;
    while (reach < length)
        reach *= 2;
    return reach < d->cache.shape.capacity ? reach : d->cache.shape.capacity;
}

static bool prepare(tarn_decoder *d)
{
    tarn__decode_graph *c = &d->captured;
    int64_t length = tarn_decoder_length(d) + 1;
    if (length > c->reach) {
        forget(c);
        c->reach = reach_for(d, length);
    }
    if (!c->tokens)
        c->tokens = tarn__scope_take(tarn_zeros(TARN_SHAPE(d->batch, 1), TARN_I64, d->info.device));
    return c->tokens != NULL;
}

/* Records the step. Where that fails steps are taken one by one from now on, and the reason is logged. */
static void record(tarn_decoder *d)
{
    tarn__decode_graph *c = &d->captured;
    tarn_empty_cache(d->info.device); /* what the prompt has used lies there: the recorded step has its own */
    c->graph = tarn_graph_capture(d->info.device, step, d);
    if (c->graph)
        return;
    tarn__error_record why;
    tarn__error_save(&why);
    c->is_wanted = false;
    tarn__log(TARN_LOG_WARNING, "decoder_feed: steps are taken one by one, because this one cannot be recorded: %s",
              why.text + strlen("tarn: "));
}

tarn_tensor *tarn__decode_graph_feed(tarn_decoder *d, tarn_tensor *tokens)
{
    tarn__decode_graph *c = &d->captured;
    if (!prepare(d) || !tarn_copy(c->tokens, tokens))
        return NULL;
    if (!c->graph && c->is_wanted && c->warm_steps++ >= WARM_UP)
        record(d);
    if (!(c->graph ? tarn_graph_run(c->graph) : step(d)))
        return NULL;
    tarn__kv_cache_advance(&d->cache, 0, d->batch, 1);
    return tarn_clone(c->logits);
}
