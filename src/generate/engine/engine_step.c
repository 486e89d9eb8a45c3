/* engine_step.c: one step of an engine.
 *
 * Requests are served by age. A step plans tokens: one for each decoding request, then prompt tokens, a page at a time
 * round-robin. The plan takes pages for them, oldest request first; where none is left, the youngest running request
 * gives up its pages and waits. The oldest request always fits. Then one forward pass over all planned tokens, one
 * sample for each request whose tokens are all computed (engine_sample.c), and full pages are published.
 *
 * A request that decodes may have proposals after its token, n-grams (engine_speculate.c) or those of a draft model
 * (engine_draft.c): they are computed with it, and what was not sampled is as if it had not been.
 *
 * A request waits for a prefix that another one is computing, and then shares its pages: several samples of one prompt
 * compute it once.
 *
 * Longrope (Phi-3): a request whose text grows past the short context is computed anew with the long factors, as by
 * generators (generate/longrope.c). The requests of both sides are two batches.
 *
 * A preempted request keeps its tokens and its sampler, and continues from them; most of its pages are usually still
 * there, published, when it runs again. On devices with memory of their own its pages can also be moved to host memory
 * and back, and so can those of past prefixes (engine_swap.c). */
#include <string.h>

#include "base/memory.h"
#include "generate/engine/engine.h"

/* Prompt tokens of a step with decoding requests. */
#define PROMPT_PER_DECODING 5
#define MIN_PROMPT_TOKENS (2 * TARN__KV_PAGE)

/* ---- planning ---------------------------------------------------------------------------------------------------- */

bool tarn__engine_is_long(const tarn_engine *e, const tarn__request *r)
{
    return e->short_context > 0 && r->count > e->short_context;
}

const int32_t *tarn__engine_page_tokens(const tarn_engine *e, const tarn__request *r, int64_t page,
                                        int32_t buffer[TARN__ENGINE_PAGE_TOKENS])
{
    memcpy(buffer, r->tokens + page * TARN__KV_PAGE, sizeof(*buffer) * TARN__KV_PAGE);
    buffer[TARN__KV_PAGE] = (int32_t)(2 * r->adapter + tarn__engine_is_long(e, r));
    return buffer;
}

/* Tokens of a request that can be computed: the last one needs the mask for its sample. */
static int64_t plannable(const tarn__request *r)
{
    return tarn__request_needs_mask(r) ? r->count - 1 : r->count;
}

/* Tokens of a request that may come from shared pages. The last one is always computed: its logits are needed; and so
 * are those before each token of the prompt whose log probability is still to be output. */
static int64_t shareable(const tarn_engine *e, const tarn__request *r)
{
    if (e->options.no_sharing || (r->prompt_logprobs && r->echoed == 0))
        return 0;
    return r->prompt_logprobs && r->echoed < r->prompt ? r->echoed - 1 : r->count - 1;
}

/* Adds the published pages of a request's prefix, and releases those that its next token does not attend to. */
static void share_pages(tarn_engine *e, tarn__request *r)
{
    int64_t limit = shareable(e, r);
    while ((r->pages + 1) * TARN__KV_PAGE <= limit) {
        int32_t buffer[TARN__ENGINE_PAGE_TOKENS];
        int32_t page = tarn__page_pool_find(&e->pool, r->key, tarn__engine_page_tokens(e, r, r->pages, buffer));
        if (page < 0)
            break;
        r->page[r->pages++] = page;
        r->key = tarn__page_pool_key(&e->pool, page);
    }
    tarn__engine_release_passed(e, r, r->pages * TARN__KV_PAGE);
}

/* True if a running request is about to publish the next page of this one's prefix. */
static bool is_being_computed(const tarn_engine *e, const tarn__request *r)
{
    int64_t end = (r->pages + 1) * TARN__KV_PAGE;
    if (end > shareable(e, r))
        return false;
    for (int i = 0; i < e->count; i++) {
        const tarn__request *other = e->request[i];
        if (other->is_running && other->root == r->root && other->adapter == r->adapter &&
            other->published <= r->pages && other->prompt >= end && plannable(other) >= end &&
            tarn__engine_is_long(e, other) == tarn__engine_is_long(e, r) &&
            memcmp(other->tokens, r->tokens, sizeof(*r->tokens) * (size_t)end) == 0)
            return true;
    }
    return false;
}

static void start_request(tarn_engine *e, tarn__request *r)
{
    r->is_running = true;
    r->published = r->pages;
    r->computed = r->pages * TARN__KV_PAGE;
    e->stats.shared_tokens += r->computed;
    if (r->started_at > 0)
        return; /* after a preemption: its own pages are not those of others */
    r->shared = r->computed;
    r->started_at = tarn__engine_now();
}

/* Pages that the tokens of a request need beside those that it has. */
static int64_t pages_to_take(const tarn_engine *e, const tarn__request *r)
{
    int64_t needed = tarn__engine_max_pages(e, r->count), held = r->pages - r->passed,
            left = tarn__engine_pages_for(r->count) - r->pages;
    needed = needed > held ? needed - held : 0;
    return needed < left ? needed : left;
}

/* True if there are free pages for all tokens of a request, and one more, beside those that running requests have yet
 * to take for theirs: it is not preempted at once. */
static bool has_pages(const tarn_engine *e, const tarn__request *r)
{
    int64_t left = tarn__page_pool_available(&e->pool) - pages_to_take(e, r);
    for (int i = 0; i < e->count; i++)
        left -= e->request[i]->is_running ? pages_to_take(e, e->request[i]) : 0;
    return left > 0;
}

/* Starts waiting requests, oldest first, with the published pages of their prefix. */
static void admit(tarn_engine *e)
{
    int64_t running = 0;
    for (int i = 0; i < e->count; i++)
        running += e->request[i]->is_running;
    for (int i = 0; i < e->count && running < e->options.sequences; i++) {
        tarn__request *r = e->request[i];
        if (r->is_running)
            continue;
        share_pages(e, r);
        bool has_room = running == 0 || has_pages(e, r), has_more = r->swapped.pages > r->pages;
        if (!has_room || (!has_more && is_being_computed(e, r))) {
            tarn__engine_release_pages(e, r);
            if (!has_room)
                return;
        } else {
            if (!has_more)
                tarn__engine_restore(e, r, shareable(e, r));
            start_request(e, r);
            tarn__engine_swap_in(e, r);
            running++;
        }
    }
}

/* True if a request has all the prompt tokens that a step may compute of it: one page where every token of the prompt
 * has a row of logits and log probabilities, whose memory grows with the vocabulary. */
static bool is_planned(const tarn__request *r)
{
    return r->computed + r->planned == plannable(r) ||
           (r->prompt_logprobs && r->echoed < r->prompt && r->planned >= TARN__KV_PAGE);
}

/* Max prompt tokens of a step with `decoding` requests: few enough that a long prompt delays their next tokens by about
 * one step (measured on an H200 with one request). Depends on counts, not on times: the same requests give the same
 * steps. */
static int64_t prompt_budget(const tarn_engine *e, int64_t decoding)
{
    int64_t beside = PROMPT_PER_DECODING * decoding / TARN__KV_PAGE * TARN__KV_PAGE;
    beside = beside > MIN_PROMPT_TOKENS ? beside : MIN_PROMPT_TOKENS;
    return decoding > 0 && beside < e->options.prompt_tokens ? beside : e->options.prompt_tokens;
}

/* Gives prompt tokens to running requests, a page at a time, beginning after the request that got the last ones. */
static void plan_tokens(tarn_engine *e)
{
    int64_t decoding = 0;
    int start = 0;
    for (int i = 0; i < e->count; i++) {
        tarn__request *r = e->request[i];
        r->proposed = 0;
        r->planned = r->is_running && r->count - r->computed == 1 && plannable(r) == r->count;
        decoding += r->planned;
        start = r->number <= e->turn ? i + 1 : start;
    }
    int64_t budget = prompt_budget(e, decoding);
    for (bool has_given = true; has_given && budget > 0;) {
        has_given = false;
        for (int k = 0; k < e->count && budget > 0; k++) {
            tarn__request *r = e->request[(start + k) % e->count];
            int64_t left = plannable(r) - r->computed - r->planned;
            if (!r->is_running || is_planned(r))
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
        int32_t page = tarn__engine_take_page(e);
        if (page >= 0) {
            r->page[r->pages++] = page;
            continue;
        }
        tarn__request *victim = youngest(e);
        tarn__engine_swap_out(e, victim);
        tarn__engine_release_pages(e, victim);
        victim->preemptions++;
        e->stats.preemptions++;
        if (victim == r)
            return false;
    }
    return true;
}

/* ---- the batch --------------------------------------------------------------------------------------------------- */

/* Rows of logits that a request needs after its planned tokens: one before each token of the prompt that is to be
 * output with its log probability, and one for the next token. */
static void plan_rows(tarn__request *r)
{
    int64_t end = r->computed + r->planned, first = r->echoed > 1 ? r->echoed - 1 : 0;
    first = first > r->computed ? first : r->computed;
    r->is_sampled = end == r->count + r->proposed && !r->prompt_only;
    end = end < r->prompt - 1 ? end : r->prompt - 1;
    r->prompt_rows = r->prompt_logprobs && end > first ? end - first : 0;
}

/* True if a request has planned tokens in a batch. */
static bool is_in(const tarn_engine *e, const tarn__batch *b, const tarn__request *r)
{
    return r->is_running && r->planned > 0 && tarn__engine_is_long(e, r) == b->is_long;
}

/* Number of the next adapter after one that a request of the batch has; INT64_MAX: none. */
static int64_t next_adapter(const tarn_engine *e, const tarn__batch *b, int64_t after)
{
    int64_t next = INT64_MAX;
    for (int i = 0; i < e->count; i++)
        if (is_in(e, b, e->request[i]) && e->request[i]->adapter > after && e->request[i]->adapter < next)
            next = e->request[i]->adapter;
    return next;
}

/* Sizes of the batch by the requests' plans. */
static void size_batch(const tarn_engine *e, tarn__batch *b)
{
    b->table_pages = 1;
    b->is_decoding = true;
    for (int i = 0; i < e->count; i++) {
        tarn__request *r = e->request[i];
        if (!is_in(e, b, r))
            continue;
        plan_rows(r);
        int64_t pages = tarn__engine_pages_for(r->computed + r->planned);
        int64_t rows = r->prompt_rows + (r->is_sampled ? 1 + r->proposed : 0);
        b->is_decoding = b->is_decoding && r->planned == 1 && rows == 1 && r->is_sampled;
        b->sequences++;
        b->tokens += r->planned;
        b->rows += rows;
        b->logprobs += r->logprobs ? rows * (1 + 2 * r->top_logprobs) : 0;
        b->table_pages = pages > b->table_pages ? pages : b->table_pages;
    }
    for (int64_t adapter = next_adapter(e, b, 0); adapter < INT64_MAX; adapter = next_adapter(e, b, adapter))
        b->groups++;
    int64_t pages = tarn__engine_graph_pages(e, b);
    b->table_pages = pages > 0 ? pages : b->table_pages;
}

static size_t batch_bytes(const tarn__batch *b)
{
    return sizeof(*b->request) * (size_t)b->sequences + sizeof(*b->group) * (size_t)b->groups +
           sizeof(int64_t) * (size_t)(3 * b->tokens + b->rows) + sizeof(double) * (size_t)b->logprobs +
           sizeof(int32_t) * (size_t)(b->sequences * b->table_pages + 2 * b->sequences + 1);
}

void tarn__batch_release(tarn__batch *b)
{
    tarn__release(b->request, batch_bytes(b));
    *b = (tarn__batch){0};
}

/* Lays the arrays out in memory of batch_bytes(). */
static bool open_batch(tarn__batch *b)
{
    b->request = tarn__alloc(batch_bytes(b));
    if (!b->request)
        return false;
    b->group = (tarn__lora_group *)(void *)(b->request + b->sequences);
    b->ids = (int64_t *)(void *)(b->group + b->groups), b->positions = b->ids + b->tokens;
    b->slots = b->positions + b->tokens, b->row = b->slots + b->tokens;
    b->logprob = (double *)(void *)(b->row + b->rows);
    b->table = (int32_t *)(void *)(b->logprob + b->logprobs);
    b->starts = b->table + b->sequences * b->table_pages, b->lengths = b->starts + b->sequences + 1;
    return true;
}

/* Adds a request's planned tokens as a sequence of the batch; `*at` and `*row` are the tokens and rows so far. */
static void add_sequence(tarn__batch *b, int64_t sequence, tarn__request *r, int64_t *at, int64_t *row)
{
    int64_t end = r->computed + r->planned;
    b->request[sequence] = r;
    for (int64_t k = 0; k < b->table_pages; k++)
        b->table[sequence * b->table_pages + k] = k >= r->passed && k < r->pages ? r->page[k] : 0;
    int64_t first = *at - r->computed; /* of the token at position 0 */
    for (int64_t k = r->computed; k < end; k++) {
        b->ids[first + k] = r->tokens[k];
        b->positions[first + k] = k;
        b->slots[first + k] = (int64_t)r->page[k / TARN__KV_PAGE] * TARN__KV_PAGE + k % TARN__KV_PAGE;
    }
    *at += r->planned;
    b->lengths[sequence] = (int32_t)end;
    b->starts[sequence + 1] = (int32_t)*at;
    r->first_row = *row;
    int64_t echo = end < r->prompt - 1 ? end : r->prompt - 1; /* the prompt's rows end here */
    for (int64_t k = echo - r->prompt_rows; k < echo; k++)
        b->row[(*row)++] = first + k;
    for (int64_t k = r->is_sampled ? r->proposed : -1; k >= 0; k--)
        b->row[(*row)++] = *at - 1 - k;
    r->is_in_step = true;
}

/* Requests by adapter, those without one first; those of one by age. */
static void fill_batch(const tarn_engine *e, tarn__batch *b)
{
    int64_t at = 0, sequence = 0, row = 0;
    tarn__lora_group *group = b->group;
    b->starts[0] = 0;
    for (int64_t adapter = 0; adapter < INT64_MAX; adapter = next_adapter(e, b, adapter)) {
        tarn__lora_group own = {.first = at, .first_logit = row};
        for (int i = 0; i < e->count; i++)
            if (is_in(e, b, e->request[i]) && e->request[i]->adapter == adapter)
                add_sequence(b, sequence++, e->request[i], &at, &row);
        if (adapter == 0)
            continue;
        own.set = e->adapter[adapter - 1], own.end = at, own.end_logit = row;
        *group++ = own;
    }
}

/* Ends all running requests for the pending error, which stays. */
static void fail_running(tarn_engine *e)
{
    for (int i = e->count - 1; i >= 0; i--)
        if (e->request[i]->is_running)
            tarn__engine_fail(e, e->request[i], NULL);
}

/* Without tokens the only request that had some was preempted, and the next step serves the others; or masks are
 * missing. */
bool tarn__engine_plan(tarn_engine *e, tarn__batch batch[TARN__ENGINE_BATCHES])
{
    bool has_tokens = false;
    admit(e);
    plan_tokens(e);
    if (!tarn__engine_propose(e)) {
        fail_running(e);
        return false;
    }
    for (int i = 0; i < e->count; i++)
        if (e->request[i]->is_running && e->request[i]->planned > 0)
            take_pages(e, e->request[i]);
    for (int i = 0; i < TARN__ENGINE_BATCHES; i++) {
        tarn__batch *b = &batch[i];
        *b = (tarn__batch){.is_long = i == 1};
        size_batch(e, b);
        if (b->tokens == 0)
            continue;
        if (!open_batch(b)) {
            fail_running(e);
            for (int k = 0; k <= i; k++)
                tarn__batch_release(&batch[k]);
            return false;
        }
        fill_batch(e, b);
        has_tokens = true;
    }
    return has_tokens;
}

tarn_tensor *tarn__engine_forward(tarn_module *model, tarn_tensor *tokens, const tarn__page_batch *pages,
                                  tarn_tensor *rows, bool is_invariant)
{
    bool was_training = model->training;
    if (was_training)
        tarn_module_train(model, false);
    tarn_no_grad_open();
    if (is_invariant)
        tarn__batch_invariant_open();
    tarn_tensor *logits = tarn__model_forward_paged(model, tokens, pages, rows);
    if (is_invariant)
        tarn__batch_invariant_close();
    tarn_no_grad_close();
    if (was_training) {
        tarn__error_record error; /* the mode comes back after a failure too */
        tarn__error_save(&error);
        tarn_module_train(model, true);
        tarn__error_restore(&error);
    }
    return logits;
}

/* Where the tokens of the batch are, on a device of the model. */
static tarn__page_index index_on(const tarn__batch *b, tarn_device device)
{
    return (tarn__page_index){.sequences = {tarn_from_i32(b->table, TARN_SHAPE(b->sequences, b->table_pages), device),
                                            tarn_from_i32(b->starts, TARN_SHAPE(b->sequences + 1), device),
                                            tarn_from_i32(b->lengths, TARN_SHAPE(b->sequences), device)},
                              .slots = tarn_from_i64(b->slots, TARN_SHAPE(b->tokens), device),
                              .positions = tarn_from_i64(b->positions, TARN_SHAPE(1, b->tokens), device)};
}

tarn_tensor *tarn__engine_forward_on(tarn_engine *e, const tarn__page_index *index, tarn_tensor *tokens,
                                     tarn_tensor *rows, const tarn__lora_groups *adapters, bool is_long)
{
    const tarn__page_batch pages = {.pages = &e->pages,
                                    .index = index,
                                    .adapters = adapters,
                                    .context =
                                        e->short_context > 0 && !is_long ? e->short_context : e->options.context};
    return tarn__engine_forward(e->model, tokens, &pages, rows, !e->options.not_invariant);
}

/* Logits [rows, vocab_size] of the batch; where none are needed those of its first row, which are not used. */
static tarn_tensor *forward(tarn_engine *e, const tarn__batch *b)
{
    static const int64_t first = 0;
    tarn_device device = e->info.device;
    tarn_tensor *captured = tarn__engine_graph_run(e, b);
    if (captured || tarn_failed())
        return captured;
    const tarn__lora_groups adapters = {b->group, b->groups, e->adapter, e->adapters};
    tarn__page_index index[TARN_SPLIT_MAX_DEVICES];
    for (int i = 0; i < e->pages.shape.map.count; i++)
        index[i] = index_on(b, e->pages.shape.map.device[i]);
    tarn_tensor *tokens = tarn_from_i64(b->ids, TARN_SHAPE(1, b->tokens), device),
                *rows = tarn_from_i64(b->rows > 0 ? b->row : &first, TARN_SHAPE(b->rows > 0 ? b->rows : 1), device);
    return tarn_failed()
               ? NULL
               : tarn__engine_forward_on(e, index, tokens, rows, e->adapters > 0 ? &adapters : NULL, b->is_long);
}

bool tarn__engine_compute(tarn_engine *e, tarn__batch *b)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *logits = scope ? forward(e, b) : NULL;
    bool good = logits && tarn__engine_sample(b, logits);
    tarn_scope_close(scope);
    return good;
}
