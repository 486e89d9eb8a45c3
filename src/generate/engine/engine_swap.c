/* engine_swap.c: pages of preempted requests in host memory.
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

/* A free slot with memory; -1, without an error: none. */
static int32_t take_slot(tarn_engine *e)
{
    tarn__swap *s = &e->swap;
    if (s->free_count == 0)
        return -1;
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
    bool good = r->slot && end > r->passed && end - r->passed <= e->swap.free_count;
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
    int before = e->swap.moves;
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
        int32_t page = tarn__page_pool_take(&e->pool);
        good = page >= 0;
        if (good)
            r->page[r->pages++] = page;
        good = good && add_move(e, page, r->slot[r->pages - 1], false);
    }
    if (good && swapped.computed > r->computed) {
        r->computed = swapped.computed;
        e->stats.swapped_in += r->pages - found;
    } else if (!good) { /* no memory for the plan: all is recomputed */
        e->swap.moves = before;
        tarn__engine_release_pages(e, r);
        r->is_running = true;
    }
    tarn__engine_drop_swapped(e, r);
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
    e->swap.moves = 0;
    return good;
}

/* What a failed step has left in slots and pages is not known. Requests of the step end with the error. */
void tarn__engine_forget_moves(tarn_engine *e)
{
    e->swap.moves = 0;
    for (int i = 0; i < e->count; i++) {
        tarn__request *r = e->request[i];
        tarn__engine_drop_swapped(e, r);
        if (e->swap.count > 0 && r->is_running && !r->is_in_step)
            tarn__engine_release_pages(e, r);
    }
}
