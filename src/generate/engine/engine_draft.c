/* engine_draft.c: the draft model of an engine: a smaller model that proposes tokens to its requests.
 *
 * The draft has a KV cache of its own: pages of a pool of its own, which a request takes when it decodes and has
 * proposals, and releases with its other pages. Requests share the pages of a common prefix there, too. Where the pool
 * has no page left, a request has no proposals: it never waits for the draft, and never preempts another one for it.
 *
 * Before a step that decodes alone, the draft computes what it lacks of each request's tokens, a prompt in chunks of
 * .prompt_tokens over several steps, and then continues the texts greedily, all requests in one batch, a pass per
 * proposed token. The lock is not held meanwhile; these requests count as in the step, so that they are cancelled
 * after it. Proposals come after a request's tokens and are sampled as n-grams are (engine_speculate.c): which tokens
 * the draft proposes, and whether its cache was shared, never changes a request's tokens. */
#include <string.h>

#include "base/memory.h"
#include "generate/engine/engine.h"
#include "generate/speculate.h"

#define MAX_CATCHING_UP 2 /* tokens per request that the draft lacked, in a run that is timed as a whole */

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* Raises a draft that an engine cannot have. */
static bool check(const tarn_engine *e)
{
    const tarn_engine_options *o = &e->options;
    tarn__device_map map;
    if (!tarn__draft_check(&e->info, o->tokenizer, o->draft, o->draft_tokenizer) ||
        !tarn__model_device_map(".draft", o->draft, &map))
        return false;
    if (!tarn__device_map_is_cpu(&e->pages.shape.map) || !tarn__device_map_is_cpu(&map))
        return tarn__raise(
            TARN_ERROR_UNSUPPORTED,
            ".draft needs both models on the CPU: elsewhere the bits of logits depend on how many tokens "
            "are computed at once");
    return !o->not_invariant ||
           tarn__raise(TARN_ERROR_UNSUPPORTED, ".draft needs batch invariance; .not_invariant is set");
}

/* As many tokens as the engine's own pages, but no more than all requests can have at once. */
bool tarn__engine_open_draft(const char *function, tarn_engine *e, int64_t pages)
{
    const tarn_engine_options *o = &e->options;
    tarn__draft *d = &e->draft;
    if (!o->draft)
        return !o->draft_tokenizer || tarn__raise(TARN_ERROR_ARGUMENT, "%s: .draft_tokenizer needs .draft", function);
    if (!check(e))
        return tarn__raise_within(function);
    d->model = o->draft;
    tarn__model_describe(d->model, &d->info);
    d->context = d->info.context < o->context ? d->info.context : o->context;
    int64_t one = tarn__engine_pages_for(d->context), most = one * o->sequences;
    pages = pages > one ? pages : one;
    tarn__kv_pages_shape shape = {.layers = d->info.layers,
                                  .pages = pages < most ? pages : most,
                                  .heads = d->info.kv_heads,
                                  .head_dim = d->info.head_dim,
                                  .dtype = tarn__engine_stored_dtype(o->kv_type, d->info.dtype)};
    return tarn__model_device_map(function, d->model, &shape.map) && tarn__kv_pages_open(function, &d->pages, &shape) &&
           tarn__page_pool_open(&d->pool, (int32_t)shape.pages, 0, TARN__ENGINE_PAGE_TOKENS);
}

void tarn__engine_close_draft(tarn_engine *e)
{
    tarn__page_pool_close(&e->draft.pool);
    tarn__kv_pages_close(&e->draft.pages);
}

/* ---- a request's pages ------------------------------------------------------------------------------------------- */

void tarn__engine_release_draft(tarn_engine *e, tarn__request *r)
{
    tarn__drafted *d = &r->draft;
    while (d->pages > 0)
        tarn__page_pool_release(&e->draft.pool, d->page[--d->pages]);
    d->computed = d->published = 0;
    d->key = r->root;
}

/* Adds the published pages of a request's prefix. The last token is always computed: its logits are needed. */
static void share_pages(tarn_engine *e, tarn__request *r)
{
    tarn__drafted *d = &r->draft;
    while (!e->options.no_sharing && (d->pages + 1) * TARN__KV_PAGE < r->count) {
        int32_t buffer[TARN__ENGINE_PAGE_TOKENS];
        int32_t page = tarn__page_pool_find(&e->draft.pool, d->key, tarn__engine_page_tokens(e, r, d->pages, buffer));
        if (page < 0)
            break;
        d->page[d->pages++] = page;
        d->key = tarn__page_pool_key(&e->draft.pool, page);
    }
    d->published = d->pages;
    d->computed = d->pages * TARN__KV_PAGE;
}

/* Publishes the pages that are full of the request's tokens; proposals are not known to be. */
static void publish_pages(tarn_engine *e, tarn__request *r)
{
    tarn__drafted *d = &r->draft;
    int64_t limit = d->computed < r->count ? d->computed : r->count;
    while (!e->options.no_sharing && (d->published + 1) * TARN__KV_PAGE <= limit) {
        int32_t buffer[TARN__ENGINE_PAGE_TOKENS];
        int64_t at = d->published++;
        d->page[at] =
            tarn__page_pool_publish(&e->draft.pool, d->page[at], d->key, tarn__engine_page_tokens(e, r, at, buffer));
        d->key = tarn__page_pool_key(&e->draft.pool, d->page[at]);
    }
}

/* Takes pages for so many tokens; false if there are not enough. */
static bool take_pages(tarn_engine *e, tarn__drafted *d, int64_t tokens)
{
    while (d->pages < tarn__engine_pages_for(tokens)) {
        int32_t page = tarn__page_pool_take(&e->draft.pool);
        if (page < 0)
            return false;
        d->page[d->pages++] = page;
    }
    return true;
}

/* True if the draft knows the tokens that it has yet to compute: its vocabulary may be padded otherwise. */
static bool knows_tokens(const tarn_engine *e, const tarn__request *r)
{
    for (int64_t i = r->draft.computed; i < r->count; i++)
        if (r->tokens[i] >= e->draft.info.vocab_size)
            return false;
    return true;
}

int64_t tarn__engine_want_draft(tarn_engine *e, tarn__request *r, int64_t most)
{
    tarn__drafted *d = &r->draft;
    int64_t left = e->draft.context - r->count + 1; /* the last proposal is not computed */
    if (d->made > 0) {                              /* before a step that the request was left out of */
        d->wanted = most < d->made ? most : d->made;
        return d->wanted;
    }
    most = most < left ? most : left;
    if (most < 1 || e->draft.budget < 1)
        return 0;
    if (d->pages == 0)
        share_pages(e, r);
    int64_t lacking = r->count - d->computed, fed = lacking < e->draft.budget ? lacking : e->draft.budget;
    int64_t wanted = fed == lacking ? most : 0;
    if (!knows_tokens(e, r) || !take_pages(e, d, wanted ? r->count + wanted - 1 : d->computed + fed))
        return 0;
    e->draft.budget -= fed;
    d->fed = fed, d->wanted = wanted;
    return wanted;
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

/* One forward pass of the draft: the next `fed` tokens of some requests. */
typedef struct pass {
    int64_t tokens, sequences, rows, table_pages;
    int64_t *ids, *positions, *slots, *row; /* [tokens], [tokens], [tokens], [sequences] */
    int32_t *table, *starts, *lengths;      /* [sequences, table_pages], [sequences + 1], [sequences] */
} pass;

static size_t pass_bytes(const pass *p)
{
    return sizeof(int64_t) * (size_t)(3 * p->tokens + p->sequences) +
           sizeof(int32_t) * (size_t)(p->sequences * (p->table_pages + 2) + 1);
}

/* Sizes and arrays; no sequences: nothing is left to compute. False with an error. */
static bool open_pass(pass *p, tarn__request *const *request, int count)
{
    *p = (pass){.table_pages = 1};
    for (int i = 0; i < count; i++) {
        const tarn__drafted *d = &request[i]->draft;
        int64_t pages = tarn__engine_pages_for(d->computed + d->fed);
        p->tokens += d->fed;
        p->sequences += d->fed > 0;
        p->table_pages = d->fed > 0 && pages > p->table_pages ? pages : p->table_pages;
    }
    if (p->sequences == 0)
        return true;
    p->ids = tarn__alloc(pass_bytes(p));
    if (!p->ids)
        return false;
    p->positions = p->ids + p->tokens, p->slots = p->positions + p->tokens, p->row = p->slots + p->tokens;
    p->table = (int32_t *)(void *)(p->row + p->sequences);
    p->starts = p->table + p->sequences * p->table_pages, p->lengths = p->starts + p->sequences + 1;
    return true;
}

static void fill_pass(pass *p, tarn__request *const *request, int count)
{
    int64_t at = 0, sequence = 0;
    for (int i = 0; i < count; i++) {
        const tarn__drafted *d = &request[i]->draft;
        if (d->fed == 0)
            continue;
        for (int64_t k = 0; k < p->table_pages; k++)
            p->table[sequence * p->table_pages + k] = k < d->pages ? d->page[k] : 0;
        for (int64_t k = d->computed; k < d->computed + d->fed; k++, at++) {
            p->ids[at] = request[i]->tokens[k];
            p->positions[at] = k;
            p->slots[at] = (int64_t)d->page[k / TARN__KV_PAGE] * TARN__KV_PAGE + k % TARN__KV_PAGE;
        }
        p->lengths[sequence++] = (int32_t)(d->computed + d->fed);
        p->starts[sequence] = (int32_t)at;
        if (d->wanted > 0)
            p->row[p->rows++] = at - 1;
    }
}

/* The most likely token after each row, -1 where logits are not finite, in `p->row`. Without rows, those of the first
 * token are computed and not used. */
static bool compute_pass(tarn_engine *e, pass *p)
{
    static const int64_t first = 0;
    tarn_device device = e->draft.info.device;
    const tarn__page_index index = {
        .sequences = {tarn_from_i32(p->table, TARN_SHAPE(p->sequences, p->table_pages), device),
                      tarn_from_i32(p->starts, TARN_SHAPE(p->sequences + 1), device),
                      tarn_from_i32(p->lengths, TARN_SHAPE(p->sequences), device)},
        .slots = tarn_from_i64(p->slots, TARN_SHAPE(p->tokens), device),
        .positions = tarn_from_i64(p->positions, TARN_SHAPE(1, p->tokens), device)};
    const tarn__page_batch pages = {.pages = &e->draft.pages, .index = &index, .context = e->draft.context};
    tarn_tensor *tokens = tarn_from_i64(p->ids, TARN_SHAPE(1, p->tokens), device),
                *rows = tarn_from_i64(p->rows > 0 ? p->row : &first, TARN_SHAPE(p->rows > 0 ? p->rows : 1), device);
    if (tarn_failed())
        return false;
    tarn_tensor *logits = tarn__engine_forward(e->draft.model, tokens, &pages, rows, true);
    if (!logits || p->rows == 0)
        return logits != NULL;
    tarn_tensor *argmax = tarn__argmax_finite(logits);
    return argmax && tarn_read(argmax, p->row, sizeof(*p->row) * (size_t)p->rows);
}

/* Adds what the pass found to the requests, and what they need of the next one. */
static void take_tokens(const tarn_engine *e, const pass *p, tarn__request **request, int count)
{
    const int64_t *id = p->row;
    for (int i = 0; i < count; i++) {
        tarn__request *r = request[i];
        tarn__drafted *d = &r->draft;
        if (d->fed == 0)
            continue;
        d->computed += d->fed;
        d->fed = 0;
        if (d->wanted == 0)
            continue;
        if (*id >= 0 && *id < e->info.vocab_size)
            r->tokens[r->count + d->made++] = (int32_t)*id;
        else
            d->wanted = d->made;
        d->fed = d->made < d->wanted && d->made > 0 && *id < e->draft.info.vocab_size;
        id++;
    }
}

/* Computes all passes, without the lock; `*first_ms` is the time of the first. False with an error. */
static bool compute(tarn_engine *e, tarn__request **request, int count, double *first_ms)
{
    double began = tarn__engine_now();
    for (bool is_first = true;; is_first = false) {
        pass p;
        if (!open_pass(&p, request, count))
            return false;
        if (p.sequences == 0)
            return true;
        p.starts[0] = 0;
        fill_pass(&p, request, count);
        tarn_scope *scope = tarn_scope_open();
        bool good = scope && compute_pass(e, &p);
        tarn_scope_close(scope);
        if (good)
            take_tokens(e, &p, request, count);
        tarn__release(p.ids, pass_bytes(&p));
        if (!good)
            return false;
        *first_ms = is_first ? tarn__engine_now() - began : *first_ms;
    }
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

/* Notes the time of a proposed token of one request. Where a prompt was computed, or what came since the draft was
 * given up, the first pass is left out, which has a token of each request: so that is timed, too. */
static void note_time(tarn_engine *e, tarn__request *const *request, int count, int64_t lacking, double first_ms,
                      double ms)
{
    bool is_late = lacking > MAX_CATCHING_UP * count;
    int64_t made = 0;
    for (int i = 0; i < count; i++)
        made += request[i]->draft.made - (is_late && request[i]->draft.made > 0);
    if (made > 0)
        tarn__engine_estimate(&e->draft.token_ms, (is_late ? ms - first_ms : ms) / (double)made);
}

/* Ends the run of a request, with the lock. */
static void end_run(tarn_engine *e, tarn__request *r, bool is_good)
{
    r->is_in_step = false;
    if (!is_good)
        r->draft.made = r->draft.wanted = r->draft.fed = 0;
    if (is_good)
        publish_pages(e, r);
    if (r->is_cancelled)
        tarn__engine_remove(e, r);
    else if (r->constraint.grammar && r->draft.made > 0)
        tarn__engine_want_masks_ahead(e, r);
}

bool tarn__engine_run_draft(tarn_engine *e)
{
    int count = 0;
    int64_t lacking = 0;
    for (int i = 0; i < e->count; i++)
        count += e->request[i]->draft.fed > 0;
    if (count == 0)
        return true;
    size_t bytes = sizeof(tarn__request *) * (size_t)count;
    tarn__request **request = tarn__alloc(bytes);
    if (!request)
        return false;
    for (int i = 0, at = 0; i < e->count; i++)
        if (e->request[i]->draft.fed > 0) {
            request[at++] = e->request[i];
            e->request[i]->is_in_step = true;
            lacking += e->request[i]->draft.fed;
        }
    tarn__engine_unlock(e);
    double began = tarn__engine_now(), first_ms = 0;
    bool good = compute(e, request, count, &first_ms);
    tarn__engine_lock(e);
    if (good)
        note_time(e, request, count, lacking, first_ms, tarn__engine_now() - began);
    for (int i = 0; i < count; i++)
        end_run(e, request[i], good);
    tarn__release(request, bytes);
    return good;
}
