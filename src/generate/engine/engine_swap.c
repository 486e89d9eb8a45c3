/* engine_swap.c: pages of preempted requests, and of past prefixes, in host memory.
 *
 * A past prefix is moved when its page is needed, the least recently used one first; a request that begins with it has
 * it moved back. Where slots run out, the least recently used prefixes are dropped: requests come first.
 *
 * A slot of host memory holds one page of all layers. Planning, with the lock, decides which pages move and where; the
 * moves are done in that order after it, without the lock and before the step computes: so a page that is given to
 * another request in the same plan is copied before it is written, and a slot before it is used again. Slots are
 * allocated when they are first used. Where there are none left, or no memory, a request is recomputed instead. */
#include <string.h>

#include "base/memory.h"
#include "generate/engine/engine.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

bool tarn__engine_open_swap(tarn_engine *e)
{
    tarn__swap *s = &e->swap;
    int64_t slots = e->options.swap_bytes / tarn__kv_pages_page_bytes(&e->pages.shape);
    if (slots == 0)
        return true;
    int32_t count = (int32_t)(slots < INT32_MAX / TARN__KV_PAGE ? slots : INT32_MAX / TARN__KV_PAGE);
    s->memory = tarn__alloc(sizeof(*s->memory) * (size_t)count);
    s->free_slots = s->memory ? tarn__alloc(sizeof(*s->free_slots) * (size_t)count) : NULL;
    if (!s->free_slots) {
        tarn__release(s->memory, sizeof(*s->memory) * (size_t)count);
        *s = (tarn__swap){0};
        return false;
    }
    s->count = s->free_count = count;
    for (int32_t i = 0; i < count; i++) {
        s->memory[i] = NULL;
        s->free_slots[i] = count - 1 - i; /* slot 0 is taken first */
    }
    return true;
}

void tarn__engine_close_swap(tarn_engine *e)
{
    tarn__swap *s = &e->swap;
    size_t bytes = s->count > 0 ? (size_t)tarn__kv_pages_page_bytes(&e->pages.shape) : 0;
    for (int32_t i = 0; i < s->count; i++)
        tarn__release(s->memory[i], bytes);
    tarn__release(s->memory, sizeof(*s->memory) * (size_t)s->count);
    tarn__release(s->free_slots, sizeof(*s->free_slots) * (size_t)s->count);
    tarn__release(s->move, sizeof(*s->move) * (size_t)s->capacity);
    *s = (tarn__swap){0};
}

/* Slots that take_slot() can return. */
static int64_t slots_left(const tarn_engine *e)
{
    return e->swap.free_count + e->pool.hosted.length;
}

/* Drops what an entry of the pool has in its slot, which becomes free. */
static void free_entry(tarn_engine *e, int32_t entry)
{
    tarn__page_pool_forget(&e->pool, entry);
    e->swap.free_slots[e->swap.free_count++] = entry - e->pool.count;
}

/* A free slot with memory, perhaps that of the least recently used prefix; -1, without an error: none. */
static int32_t take_slot(tarn_engine *e)
{
    tarn__swap *s = &e->swap;
    if (slots_left(e) == 0)
        return -1;
    if (s->free_count == 0) {
        free_entry(e, e->pool.hosted.oldest);
        e->stats.prefixes_dropped++;
    }
    int32_t slot = s->free_slots[s->free_count - 1];
    if (!s->memory[slot])
        s->memory[slot] = tarn__alloc((size_t)tarn__kv_pages_page_bytes(&e->pages.shape));
    if (!s->memory[slot]) {
        tarn_clear_error();
        return -1;
    }
    s->free_count--;
    return slot;
}

void tarn__engine_drop_swapped(tarn_engine *e, tarn__request *r)
{
    for (int64_t i = r->swapped.passed; i < r->swapped.pages; i++)
        e->swap.free_slots[e->swap.free_count++] = r->slot[i];
    r->swapped = (tarn__swapped){0};
}

/* ---- planning ---------------------------------------------------------------------------------------------------- */

/* Plans a move. False, without an error, if there is no memory for it. */
static bool add_move(tarn_engine *e, int32_t page, int32_t slot, bool is_out)
{
    tarn__swap *s = &e->swap;
    if (!tarn__list_reserve(&s->move, s->moves, &s->capacity, sizeof(*s->move))) {
        tarn_clear_error();
        return false;
    }
    s->move[s->moves++] = (tarn__swap_move){page, slot, is_out};
    return true;
}

/* Only pages with computed tokens: those taken in the present plan are empty. */
void tarn__engine_swap_out(tarn_engine *e, tarn__request *r)
{
    int64_t end = tarn__engine_pages_for(r->computed);
    int before = e->swap.moves;
    bool good = r->slot && end > r->passed && end - r->passed <= slots_left(e);
    if (good)
        r->swapped = (tarn__swapped){r->computed, r->passed, r->passed, r->published, r->key};
    for (int64_t i = r->passed; good && i < end; i++) {
        int32_t slot = take_slot(e);
        good = slot >= 0;
        if (good)
            r->slot[r->swapped.pages++] = slot;
        good = good && add_move(e, r->page[i], slot, true);
    }
    if (good) {
        e->stats.swapped_out += end - r->passed;
        return;
    }
    e->swap.moves = before;
    tarn__engine_drop_swapped(e, r);
}

/* Without a window the request has begun with published pages that were found, and resumes with copies of the others;
 * these are published again. With one, the beginning of its chain is gone, and it goes on after its own last page. */
void tarn__engine_swap_in(tarn_engine *e, tarn__request *r)
{
    const tarn__swapped swapped = r->swapped;
    if (swapped.pages == 0)
        return;
    if (swapped.passed > 0 && r->pages < swapped.pages) {
        e->stats.shared_tokens -= r->computed;
        tarn__engine_release_pages(e, r);
        r->is_running = true;
        r->pages = r->passed = swapped.passed;
        r->published = swapped.published;
        r->key = swapped.key;
    }
    int64_t found = r->pages;
    bool good = true;
    while (good && r->pages < swapped.pages) {
        int32_t page = tarn__engine_take_page(e);
        good = page >= 0;
        if (good)
            r->page[r->pages++] = page;
        good = good && add_move(e, page, r->slot[r->pages - 1], false);
    }
    if (good && swapped.computed > r->computed) {
        r->computed = swapped.computed;
        e->stats.swapped_in += r->pages - found;
    } else if (!good) { /* no memory for the plan: all is recomputed; moves to pages that are free again do no harm */
        tarn__engine_release_pages(e, r);
        r->is_running = true;
    }
    tarn__engine_drop_swapped(e, r);
}

/* ---- past prefixes ----------------------------------------------------------------------------------------------- */

int32_t tarn__engine_take_page(tarn_engine *e)
{
    int32_t page = e->swap.count > 0 ? tarn__page_pool_next_dropped(&e->pool) : -1,
            slot = page >= 0 ? take_slot(e) : -1;
    if (slot >= 0 && add_move(e, page, slot, true)) {
        tarn__page_pool_move(&e->pool, page, e->pool.count + slot);
        e->stats.prefixes_out++;
    } else if (slot >= 0) {
        e->swap.free_slots[e->swap.free_count++] = slot;
    }
    return tarn__page_pool_take(&e->pool);
}

/* A page with the contents and the key of an entry; -1, without an error: none. */
static int32_t take_restored(tarn_engine *e, tarn__page_key parent, const int32_t *tokens)
{
    int32_t page = tarn__engine_take_page(e), entry = tarn__page_pool_look(&e->pool, parent, tokens);
    bool good = page >= 0 && entry >= e->pool.count && /* which that has not dropped */
                add_move(e, page, entry - e->pool.count, false);
    if (good) {
        tarn__page_pool_move(&e->pool, entry, page);
        e->swap.free_slots[e->swap.free_count++] = entry - e->pool.count;
        e->stats.prefixes_in++;
        return page;
    }
    if (page >= 0)
        tarn__page_pool_release(&e->pool, page);
    return -1;
}

/* Notes a prefix's pages and entries in the request, without references, and makes the entries the last ones to be
 * dropped, the beginning last of all. Returns the end of the prefix, in pages. */
static int64_t look_ahead(tarn_engine *e, tarn__request *r, int64_t limit)
{
    int32_t buffer[TARN__ENGINE_PAGE_TOKENS];
    int64_t end = r->pages;
    for (tarn__page_key key = r->key; (end + 1) * TARN__KV_PAGE <= limit; end++) {
        int32_t found = tarn__page_pool_look(&e->pool, key, tarn__engine_page_tokens(e, r, end, buffer));
        if (found < 0)
            break;
        r->page[end] = found;
        key = tarn__page_pool_key(&e->pool, found);
    }
    for (int64_t i = end - 1; i >= r->pages; i--)
        if (r->page[i] >= e->pool.count)
            tarn__page_pool_touch(&e->pool, r->page[i]);
    return end;
}

/* A page may be moved to host memory for one before it, so each is looked up again. One before the window is not
 * needed but for its key: where one behind it then cannot be had, all are given up. */
void tarn__engine_restore(tarn_engine *e, tarn__request *r, int64_t limit)
{
    int64_t end = e->pool.hosted.length > 0 ? look_ahead(e, r, limit) : r->pages;
    tarn__engine_release_passed(e, r, end * TARN__KV_PAGE);
    while (r->pages < end) {
        int32_t buffer[TARN__ENGINE_PAGE_TOKENS];
        const int32_t *tokens = tarn__engine_page_tokens(e, r, r->pages, buffer);
        int32_t found = tarn__page_pool_look(&e->pool, r->key, tokens);
        if (found >= 0 && r->pages >= r->passed)
            found = found < e->pool.count ? tarn__page_pool_find(&e->pool, r->key, tokens)
                                          : take_restored(e, r->key, tokens);
        if (found < 0)
            break;
        r->page[r->pages++] = found;
        r->key = tarn__page_pool_key(&e->pool, found);
    }
    if (r->pages < end && r->passed > 0)
        tarn__engine_release_pages(e, r);
}

bool tarn__engine_publish_restored(tarn_engine *e, int32_t page, tarn__page_key parent, const int32_t *tokens)
{
    int32_t entry = e->pool.hosted.length > 0 ? tarn__page_pool_look(&e->pool, parent, tokens) : -1;
    if (entry < e->pool.count)
        return false;
    tarn__page_pool_move(&e->pool, entry, page);
    e->swap.free_slots[e->swap.free_count++] = entry - e->pool.count;
    return true;
}

/* ---- moving ------------------------------------------------------------------------------------------------------ */

bool tarn__engine_move_pages(tarn_engine *e)
{
    bool good = true;
    for (int i = 0; good && i < e->swap.moves; i++) {
        const tarn__swap_move *move = &e->swap.move[i];
        good = (move->is_out ? tarn__kv_pages_read : tarn__kv_pages_write)(&e->pages, move->page,
                                                                           e->swap.memory[move->slot]);
    }
    return good;
}

/* What a failed step has left in slots and pages is not known. Requests of the step end with the error. */
static void forget_moves(tarn_engine *e)
{
    for (int i = 0; i < e->swap.moves; i++) {
        const tarn__swap_move *move = &e->swap.move[i];
        int32_t entry = e->pool.count + move->slot;
        if (!move->is_out)
            tarn__page_pool_forget(&e->pool, move->page);
        else if (e->pool.page[entry].is_published)
            free_entry(e, entry);
    }
    for (int i = 0; i < e->count; i++) {
        tarn__request *r = e->request[i];
        tarn__engine_drop_swapped(e, r);
        if (e->swap.count > 0 && r->is_running && !r->is_in_step)
            tarn__engine_release_pages(e, r);
    }
}

void tarn__engine_end_moves(tarn_engine *e, bool is_good)
{
    if (!is_good)
        forget_moves(e);
    e->swap.moves = 0;
}
