/* engine_step.c: one step of an engine.
 *
 * Requests are served by age. A step plans tokens: one for each decoding request, then prompt tokens, a page at a time
 * round-robin. The plan takes pages for them, oldest request first; where none is left, the youngest running request
 * gives up its pages and waits. The oldest request always fits. Then one forward pass over all planned tokens, one
 * sample for each request whose tokens are all computed, and full pages are published.
 *
 * A preempted request keeps its tokens and its sampler, and continues from them; most of its pages are
 * usually still there, published, when it runs again. */
#include <string.h>

#include "base/memory.h"
#include "generate/engine.h"

#define MIN_OUTPUTS 64 /* capacity of the first queue of outputs */

/* ---- planning ---------------------------------------------------------------------------------------------------- */

/* Starts waiting requests, oldest first, with the published pages of their prefix. The last token is always computed:
 * its logits are needed. */
static void admit(tarn_engine *e)
{
    int64_t running = 0;
    for (int i = 0; i < e->count; i++)
        running += e->request[i]->is_running;
    for (int i = 0; i < e->count && running < e->options.sequences; i++) {
        tarn__request *r = e->request[i];
        if (r->is_running)
            continue;
        /* all pages of its tokens, so that it is not preempted at once */
        if (running > 0 && tarn__page_pool_available(&e->pool) <= tarn__engine_pages_for(r->count))
            return;
        r->is_running = true;
        running++;
        while (!e->options.no_sharing && (r->pages + 1) * TARN__KV_PAGE < r->count) {
            int32_t page = tarn__page_pool_find(&e->pool, r->key, r->tokens + r->pages * TARN__KV_PAGE);
            if (page < 0)
                break;
            r->page[r->pages++] = page;
            r->key = tarn__page_pool_key(&e->pool, page);
        }
        r->published = r->pages;
        r->computed = r->pages * TARN__KV_PAGE;
        if (r->count == r->prompt)
            r->shared = r->computed;
        e->stats.shared_tokens += r->computed;
    }
}

/* Gives prompt tokens to running requests, a page at a time, beginning after the request that got the last ones. */
static void plan_tokens(tarn_engine *e)
{
    int64_t budget = e->options.prompt_tokens;
    int start = 0;
    for (int i = 0; i < e->count; i++) {
        tarn__request *r = e->request[i];
        r->planned = r->is_running && r->count - r->computed == 1 ? 1 : 0;
        start = r->number <= e->turn ? i + 1 : start;
    }
    for (bool has_given = true; has_given && budget > 0;) {
        has_given = false;
        for (int k = 0; k < e->count && budget > 0; k++) {
            tarn__request *r = e->request[(start + k) % e->count];
            int64_t left = r->count - r->computed - r->planned;
            if (!r->is_running || left == 0)
                continue;
            int64_t n = left < TARN__KV_PAGE ? left : TARN__KV_PAGE;
            n = n < budget ? n : budget;
            r->planned += n;
            budget -= n;
            e->turn = r->number;
            has_given = true;
        }
    }
}

/* The youngest running request; NULL: none. */
static tarn__request *youngest(const tarn_engine *e)
{
    for (int i = e->count - 1; i >= 0; i--)
        if (e->request[i]->is_running)
            return e->request[i];
    return NULL;
}

/* Takes the pages of a request's planned tokens; false where it was preempted itself. */
static bool take_pages(tarn_engine *e, tarn__request *r)
{
    int64_t needed = tarn__engine_pages_for(r->computed + r->planned);
    while (r->pages < needed) {
        int32_t page = tarn__page_pool_take(&e->pool);
        if (page >= 0) {
            r->page[r->pages++] = page;
            continue;
        }
        tarn__request *victim = youngest(e);
        tarn__engine_release_pages(e, victim);
        e->stats.preemptions++;
        if (victim == r)
            return false;
    }
    return true;
}

/* ---- the batch --------------------------------------------------------------------------------------------------- */

/* A step's operands on the host, in one allocation each; tensors are in the open scope. */
typedef struct batch {
    int64_t tokens, sequences, sampled, table_pages;
    int64_t *ids, *positions, *slots, *rows; /* [tokens], [tokens], [tokens], [sampled] */
    int32_t *table, *starts, *lengths;       /* [sequences, table_pages], [sequences + 1], [sequences] */
} batch;

/* Sizes of the batch by the requests' plans. */
static batch size_batch(const tarn_engine *e)
{
    batch b = {.table_pages = 1};
    for (int i = 0; i < e->count; i++) {
        const tarn__request *r = e->request[i];
        if (!r->is_running || r->planned == 0)
            continue;
        int64_t pages = tarn__engine_pages_for(r->computed + r->planned);
        b.sequences++;
        b.tokens += r->planned;
        b.sampled += r->computed + r->planned == r->count;
        b.table_pages = pages > b.table_pages ? pages : b.table_pages;
    }
    return b;
}

static size_t batch_bytes(const batch *b)
{
    return sizeof(int64_t) * (size_t)(3 * b->tokens + b->sampled) +
           sizeof(int32_t) * (size_t)(b->sequences * b->table_pages + 2 * b->sequences + 1);
}

/* Lays the arrays out in memory of batch_bytes(), and fills them in. */
static void fill_batch(const tarn_engine *e, batch *b, void *memory)
{
    b->ids = memory, b->positions = b->ids + b->tokens, b->slots = b->positions + b->tokens;
    b->rows = b->slots + b->tokens;
    b->table = (int32_t *)(void *)(b->rows + b->sampled);
    b->starts = b->table + b->sequences * b->table_pages, b->lengths = b->starts + b->sequences + 1;
    int64_t at = 0, sequence = 0, sampled = 0;
    b->starts[0] = 0;
    for (int i = 0; i < e->count; i++) {
        const tarn__request *r = e->request[i];
        if (!r->is_running || r->planned == 0)
            continue;
        for (int64_t k = 0; k < b->table_pages; k++)
            b->table[sequence * b->table_pages + k] = k < r->pages ? r->page[k] : 0;
        for (int64_t k = r->computed; k < r->computed + r->planned; k++, at++) {
            b->ids[at] = r->tokens[k];
            b->positions[at] = k;
            b->slots[at] = (int64_t)r->page[k / TARN__KV_PAGE] * TARN__KV_PAGE + k % TARN__KV_PAGE;
        }
        b->lengths[sequence++] = (int32_t)(r->computed + r->planned);
        b->starts[sequence] = (int32_t)at;
        if (r->computed + r->planned == r->count)
            b->rows[sampled++] = at - 1;
    }
}

/* Logits [sampled, vocab_size] of the batch; with nothing to sample those of its first row, which are not used. Out of
 * training mode, so that dropout never applies. */
static tarn_tensor *forward(tarn_engine *e, const batch *b)
{
    static const int64_t first = 0;
    tarn_device device = e->info.device;
    const tarn__page_batch pages = {
        .pages = &e->pages,
        .sequences = {tarn_from_i32(b->table, TARN_SHAPE(b->sequences, b->table_pages), device),
                      tarn_from_i32(b->starts, TARN_SHAPE(b->sequences + 1), device),
                      tarn_from_i32(b->lengths, TARN_SHAPE(b->sequences), device)},
        .slots = tarn_from_i64(b->slots, TARN_SHAPE(b->tokens), device),
        .positions = tarn_from_i64(b->positions, TARN_SHAPE(1, b->tokens), device),
        .context = e->options.context};
    tarn_tensor *tokens = tarn_from_i64(b->ids, TARN_SHAPE(1, b->tokens), device),
                *rows = tarn_from_i64(b->sampled > 0 ? b->rows : &first, TARN_SHAPE(b->sampled > 0 ? b->sampled : 1),
                                      device);
    if (tarn_failed())
        return NULL;
    bool was_training = e->model->training;
    if (was_training)
        tarn_module_train(e->model, false);
    tarn_no_grad_open();
    if (!e->options.not_invariant)
        tarn__batch_invariant_open();
    tarn_tensor *logits = tarn__model_forward_paged(e->model, tokens, &pages, rows);
    if (!e->options.not_invariant)
        tarn__batch_invariant_close();
    tarn_no_grad_close();
    if (was_training) {
        tarn__error_record error; /* the mode comes back after a failure too */
        tarn__error_save(&error);
        tarn_module_train(e->model, true);
        tarn__error_restore(&error);
    }
    return logits;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Samples a token of each request that has logits, each by itself, and downloads all at once. */
static bool sample(tarn_engine *e, const batch *b, tarn_tensor *logits, int64_t *ids)
{
    tarn_tensor **part = tarn__alloc(sizeof(*part) * (size_t)b->sampled);
    bool good = part != NULL;
    int64_t at = 0;
    for (int i = 0; good && i < e->count; i++) {
        tarn__request *r = e->request[i];
        if (!r->is_running || r->planned == 0 || r->computed + r->planned < r->count)
            continue;
        part[at] = tarn_sampler_sample(r->sampler, tarn_slice(logits, 0, at, at + 1));
        good = part[at++] != NULL;
    }
    tarn_tensor *all = good ? tarn_concat(part, (int)b->sampled, 0) : NULL;
    good = all && tarn_read(all, ids, sizeof(*ids) * (size_t)b->sampled);
    tarn__release(part, sizeof(*part) * (size_t)b->sampled);
    return good;
}

/* Publishes the pages that the step has filled. Without batch invariance, only those of the prompt: another batch would
 * compute other bits for sampled tokens. */
static void publish(tarn_engine *e, tarn__request *r)
{
    int64_t limit = e->options.not_invariant && r->prompt < r->computed ? r->prompt : r->computed;
    while (!e->options.no_sharing && (r->published + 1) * TARN__KV_PAGE <= limit) {
        int64_t at = r->published++;
        r->page[at] = tarn__page_pool_publish(&e->pool, r->page[at], r->key, r->tokens + at * TARN__KV_PAGE);
        r->key = tarn__page_pool_key(&e->pool, r->page[at]);
    }
}

/* True for EOS, unless it is ignored, and for the caller's stop tokens. */
static bool is_end_token(const tarn_engine *e, const tarn__request *r, int64_t token)
{
    for (int i = 0; i < r->stop_count; i++)
        if (r->stop[i] == token)
            return true;
    for (int i = 0; !r->ignore_eos && i < e->info.eos_count; i++)
        if (e->info.eos[i] == token)
            return true;
    return false;
}

/* Queues the output of a sampled token; true when the request has ended. */
static bool accept(tarn_engine *e, tarn__request *r, int64_t token)
{
    tarn_engine_output *to = &e->output[e->outputs++];
    bool is_end = is_end_token(e, r, token);
    *to = (tarn_engine_output){.request = r->number, .token = is_end ? -1 : (int32_t)token, .shared = r->shared};
    if (!is_end) {
        r->tokens[r->count++] = (int32_t)token;
        e->stats.new_tokens++;
    }
    to->finish_reason = is_end ? TARN_FINISH_TOKEN : r->count == r->max_count ? TARN_FINISH_LENGTH : TARN_FINISH_NONE;
    return to->finish_reason != TARN_FINISH_NONE;
}

/* Advances all requests of the step by their sampled tokens. */
static bool advance(tarn_engine *e, const int64_t *ids)
{
    int64_t at = 0;
    for (int i = 0; i < e->count;) {
        tarn__request *r = e->request[i];
        bool has_ended = false, has_logits = r->computed + r->planned == r->count;
        if (r->is_running && r->planned > 0) {
            e->stats.prompt_tokens += r->planned > 1 || !has_logits ? r->planned : 0;
            r->computed += r->planned;
            r->planned = 0;
            publish(e, r);
            if (has_logits && ids[at] < 0)
                return tarn__raise(TARN_ERROR_FORMAT,
                                   "request %lld: the logits of token %lld are not finite; check the model's weights "
                                   "and dtype",
                                   (long long)r->number, (long long)r->count);
            has_ended = has_logits && accept(e, r, ids[at++]);
        }
        if (has_ended)
            tarn__engine_remove(e, r);
        else
            i++;
    }
    return true;
}

/* Computes the planned tokens. */
static bool run(tarn_engine *e)
{
    batch b = size_batch(e);
    if (b.tokens == 0) /* the only request with tokens was preempted: the next step serves the others */
        return true;
    size_t bytes = batch_bytes(&b), id_bytes = sizeof(int64_t) * (size_t)(b.sampled + 1);
    void *memory = tarn__alloc(bytes);
    int64_t *ids = memory ? tarn__alloc(id_bytes) : NULL;
    tarn_scope *scope = ids ? tarn_scope_open() : NULL;
    bool good = scope && tarn__array_reserve(&e->output, (size_t)e->outputs, &e->output_capacity, (size_t)b.sampled,
                                             sizeof(*e->output), MIN_OUTPUTS);
    if (good)
        fill_batch(e, &b, memory);
    tarn_tensor *logits = good ? forward(e, &b) : NULL;
    good = logits && (b.sampled == 0 || sample(e, &b, logits, ids));
    tarn_scope_close(scope);
    good = good && advance(e, ids);
    tarn__release(ids, id_bytes);
    tarn__release(memory, bytes);
    return good;
}

/* Ends the requests of a failed step: what their pages hold is not known. Keeps the pending error. */
static void end_running(tarn_engine *e)
{
    tarn__error_record why;
    tarn__error_save(&why);
    for (int i = e->count - 1; i >= 0; i--)
        if (e->request[i]->is_running)
            tarn__engine_remove(e, e->request[i]);
    tarn__error_restore(&why);
}

bool tarn__engine_step(tarn_engine *e)
{
    if (e->first_output == e->outputs)
        e->first_output = e->outputs = 0;
    admit(e);
    plan_tokens(e);
    for (int i = 0; i < e->count; i++)
        if (e->request[i]->is_running && e->request[i]->planned > 0)
            take_pages(e, e->request[i]);
    e->stats.steps++;
    if (run(e))
        return true;
    end_running(e);
    return false;
}
