/* page_pool.c: the pages of the KV cache: references, a list of free pages, published prefixes, least recently used
 * pages. */
#include "generate/engine/page_pool.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"

#define ROOT ((tarn__page_key)1 << 63) /* set in the keys of beginnings, clear in those of pages */

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Pages and entries. */
static int32_t all_of(const tarn__page_pool *pool)
{
    return pool->count + pool->host;
}

bool tarn__page_pool_open(tarn__page_pool *pool, int32_t count, int32_t host, int32_t page_size)
{
    *pool = (tarn__page_pool){.count = count,
                              .host = host,
                              .page_size = page_size,
                              .unreferenced = {-1, -1, 0},
                              .hosted = {-1, -1, 0},
                              .next_key = 1};
    size_t all = (size_t)all_of(pool);
    pool->bucket_count = 1;
    while ((size_t)pool->bucket_count < all && pool->bucket_count < 1 << 30)
        pool->bucket_count *= 2;
    pool->page = tarn__alloc(sizeof(*pool->page) * all);
    pool->tokens = pool->page ? tarn__alloc(sizeof(int32_t) * all * (size_t)page_size) : NULL;
    pool->free_pages = pool->tokens ? tarn__alloc(sizeof(int32_t) * (size_t)count) : NULL;
    pool->bucket = pool->free_pages ? tarn__alloc(sizeof(int32_t) * (size_t)pool->bucket_count) : NULL;
    if (!pool->bucket) {
        tarn__page_pool_close(pool);
        return false;
    }
    for (int32_t i = 0; i < pool->bucket_count; i++)
        pool->bucket[i] = -1;
    for (int32_t i = 0; i < count; i++)
        pool->free_pages[pool->free_count++] = count - 1 - i; /* page 0 is taken first */
    return true;
}

void tarn__page_pool_close(tarn__page_pool *pool)
{
    size_t all = (size_t)all_of(pool);
    tarn__release(pool->page, sizeof(*pool->page) * all);
    tarn__release(pool->tokens, sizeof(int32_t) * all * (size_t)pool->page_size);
    tarn__release(pool->free_pages, sizeof(int32_t) * (size_t)pool->count);
    tarn__release(pool->bucket, sizeof(int32_t) * (size_t)pool->bucket_count);
    *pool = (tarn__page_pool){0};
}

/* ---- published pages --------------------------------------------------------------------------------------------- */

/* SplitMix64's finalizer. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

tarn__page_key tarn__page_root(uint64_t value)
{
    return value | ROOT;
}

static int32_t *bucket_of(const tarn__page_pool *pool, tarn__page_key parent, const int32_t *tokens)
{
    uint64_t hash = mix(parent);
    for (int32_t i = 0; i < pool->page_size; i++)
        hash = mix(hash + (uint32_t)tokens[i] + UINT64_C(0x9e3779b97f4a7c15));
    return &pool->bucket[hash & (uint64_t)(pool->bucket_count - 1)];
}

static int32_t *tokens_of(const tarn__page_pool *pool, int32_t page)
{
    return pool->tokens + (int64_t)page * pool->page_size;
}

int32_t tarn__page_pool_look(const tarn__page_pool *pool, tarn__page_key parent, const int32_t *tokens)
{
    int32_t page = *bucket_of(pool, parent, tokens);
    while (page >= 0 && (pool->page[page].parent != parent ||
                         memcmp(tokens_of(pool, page), tokens, sizeof(int32_t) * (size_t)pool->page_size) != 0))
        page = pool->page[page].next_in_bucket;
    return page;
}

/* Lists a page with its key, parent and tokens in its bucket. */
static void list_published(tarn__page_pool *pool, int32_t page)
{
    tarn__page *p = &pool->page[page];
    int32_t *bucket = bucket_of(pool, p->parent, tokens_of(pool, page));
    p->is_published = true;
    p->next_in_bucket = *bucket;
    *bucket = page;
}

static void unpublish(tarn__page_pool *pool, int32_t page)
{
    tarn__page *p = &pool->page[page];
    int32_t *link = bucket_of(pool, p->parent, tokens_of(pool, page));
    while (*link != page)
        link = &pool->page[*link].next_in_bucket;
    *link = p->next_in_bucket;
    p->is_published = false;
}

/* ---- unreferenced published pages, and entries in host memory -----------------------------------------------------
 */

static tarn__page_list *list_of(tarn__page_pool *pool, int32_t page)
{
    return page < pool->count ? &pool->unreferenced : &pool->hosted;
}

static void append(tarn__page_pool *pool, int32_t page)
{
    tarn__page_list *list = list_of(pool, page);
    tarn__page *p = &pool->page[page];
    p->previous = list->newest, p->next = -1;
    *(list->newest >= 0 ? &pool->page[list->newest].next : &list->oldest) = page;
    list->newest = page;
    list->length++;
}

static void unlink_page(tarn__page_pool *pool, int32_t page)
{
    tarn__page_list *list = list_of(pool, page);
    const tarn__page *p = &pool->page[page];
    *(p->previous >= 0 ? &pool->page[p->previous].next : &list->oldest) = p->next;
    *(p->next >= 0 ? &pool->page[p->next].previous : &list->newest) = p->previous;
    list->length--;
}

int32_t tarn__page_pool_next_dropped(const tarn__page_pool *pool)
{
    return pool->free_count > 0 ? -1 : pool->unreferenced.oldest;
}

void tarn__page_pool_forget(tarn__page_pool *pool, int32_t page)
{
    if (!pool->page[page].is_published)
        return;
    unpublish(pool, page);
    if (pool->page[page].references > 0)
        return;
    unlink_page(pool, page);
    if (page < pool->count)
        pool->free_pages[pool->free_count++] = page;
}

void tarn__page_pool_move(tarn__page_pool *pool, int32_t from, int32_t to)
{
    tarn__page *p = &pool->page[to];
    p->parent = pool->page[from].parent, p->key = pool->page[from].key;
    memcpy(tokens_of(pool, to), tokens_of(pool, from), sizeof(int32_t) * (size_t)pool->page_size);
    tarn__page_pool_forget(pool, from);
    list_published(pool, to);
    if (to >= pool->count)
        append(pool, to);
}

void tarn__page_pool_touch(tarn__page_pool *pool, int32_t entry)
{
    unlink_page(pool, entry);
    append(pool, entry);
}

/* ---- references -------------------------------------------------------------------------------------------------- */

int32_t tarn__page_pool_available(const tarn__page_pool *pool)
{
    return pool->free_count + pool->unreferenced.length;
}

int32_t tarn__page_pool_take(tarn__page_pool *pool)
{
    int32_t page = -1;
    if (pool->free_count > 0) {
        page = pool->free_pages[--pool->free_count];
    } else if (pool->unreferenced.oldest >= 0) {
        page = pool->unreferenced.oldest;
        unlink_page(pool, page);
        unpublish(pool, page);
    }
    if (page >= 0)
        pool->page[page].references = 1;
    return page;
}

void tarn__page_pool_retain(tarn__page_pool *pool, int32_t page)
{
    if (pool->page[page].references++ == 0)
        unlink_page(pool, page);
    pool->shared += pool->page[page].references == 2;
}

void tarn__page_pool_release(tarn__page_pool *pool, int32_t page)
{
    pool->shared -= pool->page[page].references == 2;
    if (--pool->page[page].references > 0)
        return;
    if (pool->page[page].is_published)
        append(pool, page);
    else
        pool->free_pages[pool->free_count++] = page;
}

int32_t tarn__page_pool_find(tarn__page_pool *pool, tarn__page_key parent, const int32_t *tokens)
{
    int32_t page = tarn__page_pool_look(pool, parent, tokens);
    if (page < 0 || page >= pool->count)
        return -1;
    tarn__page_pool_retain(pool, page);
    return page;
}

int32_t tarn__page_pool_publish(tarn__page_pool *pool, int32_t page, tarn__page_key parent, const int32_t *tokens)
{
    int32_t equal = tarn__page_pool_find(pool, parent, tokens);
    if (equal >= 0) {
        tarn__page_pool_release(pool, page);
        return equal;
    }
    tarn__page *p = &pool->page[page];
    memcpy(tokens_of(pool, page), tokens, sizeof(int32_t) * (size_t)pool->page_size);
    p->parent = parent, p->key = pool->next_key++;
    list_published(pool, page);
    return page;
}

tarn__page_key tarn__page_pool_key(const tarn__page_pool *pool, int32_t page)
{
    return pool->page[page].key;
}

int32_t tarn__page_pool_writable(tarn__page_pool *pool, int32_t page)
{
    const tarn__page *p = &pool->page[page];
    if (p->references == 1 && !p->is_published)
        return page;
    int32_t copy = tarn__page_pool_take(pool);
    if (copy >= 0)
        tarn__page_pool_release(pool, page);
    return copy;
}
