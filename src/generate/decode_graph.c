/* decode_graph.c: the decode step (one token per sequence), captured once and then launched as a graph, where the
 * device supports it.
 *
 * Values that change per token are on the device: the token, copied into a fixed tensor, and the sequence lengths,
 * from which kernels derive positions, cache offsets and the number of keys; the step itself advances them. Values
 * chosen by the host are fixed at capture: only `max_keys`, the upper bound of keys. It is a power of two, so that a
 * sequence is captured again only when its length doubles, or longrope changes its factors. The steps before a capture
 * run eagerly in the same form, so that buffers exist and algorithms are chosen. */

#include <string.h>
#include <tarn/autograd.h>

#include "base/error.h"
#include "core/launch/graph.h"
#include "generate/decoder.h"

enum { WARM_UP = 2 }; /* eager steps before a capture */
/* smallest bound of keys: short texts are captured once */
enum { MIN_KEYS = 256 };

void tarn__decode_graph_init(tarn__decode_graph *c, tarn_device device, bool is_enabled)
{
    *c = (tarn__decode_graph){.is_enabled = is_enabled && tarn__can_capture(device)};
}

/* Frees the graph; the next steps warm up again. */
static void drop_graph(tarn__decode_graph *c)
{
    tarn_graph_free(c->captured);
    c->captured = NULL;
    c->warm_steps = 0;
}

void tarn__decode_graph_close(tarn__decode_graph *c)
{
    drop_graph(c);
    tarn_free(c->tokens);
    tarn_free(c->logits);
    *c = (tarn__decode_graph){0};
}

/* The decode step, run eagerly or captured: reads its tokens from the fixed tensor and retains its logits. */
static bool step(void *ctx)
{
    tarn_decoder *d = ctx;
    tarn__decode_graph *c = &d->graph;
    tarn_scope *scope = tarn_scope_open();
    tarn_no_grad_open();
    bool good = scope && tarn__kv_cache_begin_step(&d->cache, 0, d->batch, 1, c->max_keys);
    tarn_tensor *logits = good ? tarn__decoder_forward(d, c->tokens) : NULL;
    tarn_free(c->logits);
    c->logits = logits ? tarn__scope_take(logits) : NULL; /* a captured step writes them there at each run */
    /* last: a failed step must not advance the device's lengths alone */
    good = good && logits && tarn__kv_cache_end_step(&d->cache);
    tarn_no_grad_close();
    tarn_scope_close(scope);
    return good;
}

/* Bound for `length` keys: the next power of two, or the whole capacity. It is on the same side of longrope's short
 * context, because RoPE is scaled for the bound. */
static int64_t max_keys_for(const tarn_decoder *d, int64_t length)
{
    int64_t max_keys = MIN_KEYS;
    while (max_keys < length)
        max_keys *= 2;
    if (length <= d->short_context && max_keys > d->short_context)
        max_keys = d->short_context;
    return max_keys < d->cache.shape.capacity ? max_keys : d->cache.shape.capacity;
}

/* Drops the graph if the sequences have outgrown its bound, and creates the fixed input. */
static bool prepare(tarn_decoder *d)
{
    tarn__decode_graph *c = &d->graph;
    int64_t length = tarn_decoder_length(d) + 1;
    bool is_long = length > d->short_context, was_long = c->max_keys > d->short_context;
    if (length > c->max_keys || (d->short_context > 0 && is_long != was_long)) {
        drop_graph(c);
        c->max_keys = max_keys_for(d, length);
    }
    if (!c->tokens)
        c->tokens = tarn__scope_take(tarn_zeros(TARN_SHAPE(d->batch, 1), TARN_I64, d->info.device));
    return c->tokens != NULL;
}

/* Captures the step. On failure decoding continues eagerly, and the reason is logged. */
static void capture(tarn_decoder *d)
{
    tarn__decode_graph *c = &d->graph;
    tarn_empty_cache(d->info.device); /* frees the blocks that prefill has cached: the graph has its own memory */
    c->captured = tarn_graph_capture(d->info.device, step, d);
    if (c->captured)
        return;
    tarn__error_record why;
    tarn__error_save(&why);
    c->is_enabled = false;
    tarn__log(TARN_LOG_WARNING, "decoder_feed: decoding without a captured graph: %s", why.text + strlen("tarn: "));
}

/* The returned logits are a copy: the graph overwrites its own at the next step. */
tarn_tensor *tarn__decode_graph_feed(tarn_decoder *d, tarn_tensor *tokens)
{
    tarn__decode_graph *c = &d->graph;
    if (!prepare(d) || !tarn_copy(c->tokens, tokens))
        return NULL;
    if (!c->captured && c->is_enabled && c->warm_steps++ >= WARM_UP)
        capture(d);
    if (!(c->captured ? tarn_graph_run(c->captured) : step(d)))
        return NULL;
    tarn__kv_cache_advance(&d->cache, 0, d->batch, 1);
    return tarn_clone(c->logits);
}
