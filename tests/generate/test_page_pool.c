/* test_page_pool.c: the page pool does what a naive model does that knows every page's whole history of tokens. */
#include "generate/engine/page_pool.h"

#include "base/memory.h"
#include "support/check.h"

#define PAGES 12
#define SIZE 2 /* tokens of a page */
#define SEQUENCES 6
#define MAX_PAGES 5

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* A page as the model sees it: the tokens of its whole prefix, if it is published. */
typedef struct model_page {
    int references, length; /* length: tokens of the prefix, this page's included; 0: not published */
    int32_t prefix[MAX_PAGES * SIZE];
    uint64_t salt;
    int64_t freed_at;  /* when its last reference was released */
    bool is_reachable; /* the pages before it have been published all the time */
} model_page;

/* Pages of one sequence, and the tokens in them. */
typedef struct sequence {
    int32_t page[MAX_PAGES], tokens[MAX_PAGES * SIZE];
    tarn__page_key key[MAX_PAGES + 1];
    int pages;
    bool has_chain; /* key[pages] is that of the last page */
    uint64_t salt;
} sequence;

typedef struct world {
    tarn__page_pool pool;
    model_page page[PAGES];
    sequence sequence[SEQUENCES];
    int64_t now;
} world;

static bool is_prefix_of(const model_page *p, const model_page *other)
{
    return p->length > 0 && other->length > p->length && p->salt == other->salt &&
           memcmp(p->prefix, other->prefix, sizeof(int32_t) * (size_t)p->length) == 0;
}

/* The reachable published page of a prefix; -1: none. */
static int32_t model_find(const world *w, uint64_t salt, const int32_t *tokens, int length)
{
    for (int32_t i = 0; i < PAGES; i++) {
        const model_page *p = &w->page[i];
        if (p->length == length && p->is_reachable && p->salt == salt &&
            memcmp(p->prefix, tokens, sizeof(int32_t) * (size_t)length) == 0)
            return i;
    }
    return -1;
}

/* What taking a page may return: any free one, else the unreferenced one released first. */
static void check_taken(world *w, int32_t page)
{
    int free_pages = 0;
    int32_t oldest = -1;
    for (int32_t i = 0; i < PAGES; i++) {
        const model_page *p = &w->page[i];
        free_pages += p->references == 0 && p->length == 0;
        if (p->references == 0 && p->length > 0 && (oldest < 0 || p->freed_at < w->page[oldest].freed_at))
            oldest = i;
    }
    if (free_pages > 0)
        assert_true(page >= 0 && w->page[page].references == 0 && w->page[page].length == 0);
    else
        assert_int_equal(page, oldest);
    if (page < 0)
        return;
    for (int32_t i = 0; i < PAGES; i++) /* pages after a dropped one are never found again */
        if (is_prefix_of(&w->page[page], &w->page[i]) && w->page[page].is_reachable)
            w->page[i].is_reachable = false;
    w->page[page] = (model_page){.references = 1};
}

static void model_release(world *w, int32_t page)
{
    if (--w->page[page].references == 0)
        w->page[page].freed_at = ++w->now;
}

static void check_counts(const world *w)
{
    int available = 0;
    for (int32_t i = 0; i < PAGES; i++) {
        assert_int_equal(w->pool.page[i].references, w->page[i].references);
        assert_int_equal(w->pool.page[i].is_published, w->page[i].length > 0);
        available += w->page[i].references == 0;
    }
    assert_int_equal(tarn__page_pool_available(&w->pool), available);
}

/* ---- random sequences -------------------------------------------------------------------------------------------- */

static void release_all(world *w, sequence *s)
{
    while (s->pages > 0) {
        tarn__page_pool_release(&w->pool, s->page[--s->pages]);
        model_release(w, s->page[s->pages]);
    }
}

/* A new sequence of a few tokens takes the published pages of its prefix. */
static void begin(world *w, sequence *s, uint64_t *seed)
{
    release_all(w, s);
    *s = (sequence){.salt = (uint64_t)random_below(seed, 2), .has_chain = true};
    s->key[0] = tarn__page_root(s->salt);
    for (int i = 0; i < MAX_PAGES * SIZE; i++)
        s->tokens[i] = (int32_t)random_below(seed, 2);
    for (int32_t found; s->pages < MAX_PAGES; s->pages++) {
        int32_t expected = model_find(w, s->salt, s->tokens, (s->pages + 1) * SIZE);
        found = tarn__page_pool_find(&w->pool, s->key[s->pages], s->tokens + s->pages * SIZE);
        assert_int_equal(found, expected);
        if (found < 0)
            break;
        w->page[found].references++;
        s->page[s->pages] = found;
        s->key[s->pages + 1] = tarn__page_pool_key(&w->pool, found);
    }
}

/* One page more; published at once, or left private, which ends the chain. */
static void grow(world *w, sequence *s, bool publish)
{
    if (s->pages == MAX_PAGES)
        return;
    int32_t page = tarn__page_pool_take(&w->pool);
    check_taken(w, page);
    if (page < 0)
        return;
    int at = s->pages++, length = s->pages * SIZE;
    s->page[at] = page;
    s->has_chain = s->has_chain && publish;
    if (!s->has_chain)
        return;
    int32_t equal = model_find(w, s->salt, s->tokens, length);
    s->page[at] = tarn__page_pool_publish(&w->pool, page, s->key[at], s->tokens + at * SIZE);
    assert_int_equal(s->page[at], equal >= 0 ? equal : page);
    s->key[s->pages] = tarn__page_pool_key(&w->pool, s->page[at]);
    if (equal >= 0) {
        w->page[equal].references++;
        model_release(w, page);
        return;
    }
    w->page[page].length = length;
    w->page[page].salt = s->salt;
    w->page[page].is_reachable = true;
    memcpy(w->page[page].prefix, s->tokens, sizeof(int32_t) * (size_t)length);
}

/* Writing to the last page copies it where it is shared or published. */
static void write_last(world *w, sequence *s)
{
    if (s->pages == 0)
        return;
    int32_t *page = &s->page[s->pages - 1], before = *page;
    bool is_own = w->page[before].references == 1 && w->page[before].length == 0;
    int32_t after = tarn__page_pool_writable(&w->pool, before);
    if (is_own) {
        assert_int_equal(after, before);
        return;
    }
    check_taken(w, after);
    if (after < 0)
        return;
    model_release(w, before);
    *page = after;
    s->has_chain = false;
}

static void run_random(uint64_t seed, int steps)
{
    world w = {.now = 0};
    assert_true(tarn__page_pool_open(&w.pool, PAGES, 0, SIZE));
    for (int i = 0; i < steps; i++) {
        sequence *s = &w.sequence[random_below(&seed, SEQUENCES)];
        switch (random_below(&seed, 8)) {
        case 0: begin(&w, s, &seed); break;
        case 1:
            release_all(&w, s);
            s->has_chain = false;
            break;
        case 2: write_last(&w, s); break;
        case 3: grow(&w, s, false); break;
        default: grow(&w, s, s->has_chain); break;
        }
        check_counts(&w);
    }
    for (int i = 0; i < SEQUENCES; i++)
        release_all(&w, &w.sequence[i]);
    assert_int_equal(tarn__page_pool_available(&w.pool), PAGES);
    tarn__page_pool_close(&w.pool);
}

static void the_pool_does_what_the_model_does(void **state)
{
    (void)state;
    uint64_t seed = test_seed(5);
    for (int i = 0; i < 200; i++)
        run_random(seed * 1000 + (uint64_t)i, 300);
}

/* ---- single properties ------------------------------------------------------------------------------------------- */

static void prefixes_are_shared_until_they_are_the_oldest(void **state)
{
    (void)state;
    tarn__page_pool pool;
    const int32_t first[] = {1, 2}, second[] = {3, 4};
    assert_true(tarn__page_pool_open(&pool, 2, 0, SIZE));
    int32_t a = tarn__page_pool_take(&pool), b = tarn__page_pool_take(&pool);
    assert_int_equal(tarn__page_pool_take(&pool), -1);
    assert_int_equal(tarn__page_pool_publish(&pool, a, tarn__page_root(0), first), a);
    tarn__page_key key = tarn__page_pool_key(&pool, a);
    assert_int_equal(tarn__page_pool_publish(&pool, b, key, second), b);
    tarn__page_pool_release(&pool, b), tarn__page_pool_release(&pool, a);
    assert_int_equal(tarn__page_pool_find(&pool, tarn__page_root(1), first), -1);
    assert_int_equal(tarn__page_pool_find(&pool, tarn__page_root(0), first), a);
    assert_int_equal(tarn__page_pool_find(&pool, key, second), b);
    tarn__page_pool_release(&pool, b), tarn__page_pool_release(&pool, a);
    assert_int_equal(tarn__page_pool_take(&pool), b); /* the end of the prefix goes first */
    assert_int_equal(tarn__page_pool_find(&pool, tarn__page_root(0), first), a);
    assert_int_equal(tarn__page_pool_find(&pool, key, second), -1);
    tarn__page_pool_close(&pool);
}

static void a_closed_pool_leaves_no_memory(void **state)
{
    (void)state;
    tarn__page_pool pool = {0};
    tarn__page_pool_close(&pool);
    int64_t before = tarn__memory_in_use();
    assert_true(tarn__page_pool_open(&pool, 100, 20, 64));
    tarn__page_pool_close(&pool);
    assert_int_equal(tarn__memory_in_use(), before);
}

/* What is published moves to an entry and back; what follows it is found there and after it. */
static void pages_move_to_host_memory_and_back(void **state)
{
    (void)state;
    enum { FIRST = 2, SECOND = 3 };
    const int32_t first[] = {1, 2}, second[] = {3, 4};
    const tarn__page_key root = tarn__page_root(7);
    tarn__page_pool pool;
    assert_true(tarn__page_pool_open(&pool, 2, 2, SIZE));
    int32_t a = tarn__page_pool_publish(&pool, tarn__page_pool_take(&pool), root, first);
    tarn__page_key key = tarn__page_pool_key(&pool, a);
    assert_int_equal(tarn__page_pool_next_dropped(&pool), -1); /* one is free */
    int32_t b = tarn__page_pool_publish(&pool, tarn__page_pool_take(&pool), key, second);
    assert_int_equal(tarn__page_pool_next_dropped(&pool), -1); /* both are in use */
    tarn__page_pool_release(&pool, b);
    tarn__page_pool_release(&pool, a);
    assert_int_equal(tarn__page_pool_next_dropped(&pool), b);
    tarn__page_pool_move(&pool, b, SECOND);
    tarn__page_pool_move(&pool, a, FIRST);
    assert_true(tarn__page_pool_available(&pool) == 2 && pool.unreferenced.length == 0 && pool.hosted.length == 2);
    assert_int_equal(tarn__page_pool_look(&pool, root, first), FIRST);
    assert_int_equal(tarn__page_pool_look(&pool, tarn__page_pool_key(&pool, FIRST), second), SECOND);
    assert_int_equal(tarn__page_pool_find(&pool, root, first), -1); /* it is in no page */
    assert_int_equal(pool.hosted.oldest, SECOND);
    tarn__page_pool_touch(&pool, SECOND);
    assert_int_equal(pool.hosted.oldest, FIRST);

    int32_t c = tarn__page_pool_take(&pool);
    tarn__page_pool_move(&pool, FIRST, c);
    assert_true(tarn__page_pool_key(&pool, c) == key && pool.hosted.length == 1);
    assert_int_equal(tarn__page_pool_find(&pool, root, first), c);
    assert_int_equal(tarn__page_pool_look(&pool, key, second), SECOND);
    tarn__page_pool_forget(&pool, SECOND);
    assert_int_equal(tarn__page_pool_look(&pool, key, second), -1);
    tarn__page_pool_forget(&pool, c); /* it has two references */
    assert_int_equal(tarn__page_pool_available(&pool), 1);
    tarn__page_pool_release(&pool, c);
    tarn__page_pool_release(&pool, c);
    assert_true(tarn__page_pool_available(&pool) == 2 && pool.unreferenced.length == 0 && pool.hosted.length == 0);
    tarn__page_pool_close(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_pool_does_what_the_model_does),
        in_scope(prefixes_are_shared_until_they_are_the_oldest),
        in_scope(a_closed_pool_leaves_no_memory),
        cmocka_unit_test(pages_move_to_host_memory_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
