/* page_pool.h: which pages of the KV cache are in use, and which hold a prefix that another sequence can share.
 *
 * The pool knows page numbers only; the caller owns the tensors. A page has references: one per sequence that
 * reads it. A full page whose tokens are known can be published: it is then found by its tokens and those of all pages
 * before it, and stays findable after its last reference, until it is the least recently used one and its memory is
 * needed. A published page is never written again.
 *
 * Pages are found by a chain: the key of a page is a hash of the key of the page before it and of its own tokens, which
 * are compared too. The key of a chain's beginning is the caller's, so that sequences that must not share pages do not.
 * A key is never used twice: a page whose predecessor was dropped is never found, and is dropped in its turn.
 *
 * Beside its pages a pool may have entries in host memory: what was published can be moved to one instead of being
 * dropped, and back to a page, with its key. An entry has no references; the caller says which are used, and copies.
 *
 * Not thread-safe: one thread owns a pool. */
#ifndef TARN__PAGE_POOL_H
#define TARN__PAGE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Key of a published page, or of a chain's beginning. */
typedef uint64_t tarn__page_key;

/* A chain's beginning: equal for equal values, which are less than 2^63. */
tarn__page_key tarn__page_root(uint64_t value);

typedef struct tarn__page {
    int32_t references;
    int32_t previous, next; /* neighbours in the list of unreferenced published pages, least recently used first; -1 */
    int32_t next_in_bucket; /* of published pages; -1 */
    bool is_published;
    tarn__page_key parent, key; /* of a published page */
} tarn__page;

/* Pages by use, least recently used first. */
typedef struct tarn__page_list {
    int32_t oldest, newest; /* -1: empty */
    int32_t length;
} tarn__page_list;

typedef struct tarn__page_pool {
    int32_t count, host, page_size;
    tarn__page *page; /* [count + host]: entries in host memory after the pages */
    int32_t *tokens;  /* [count + host, page_size], of what is published */
    int32_t *free_pages, free_count;
    tarn__page_list unreferenced; /* published pages */
    tarn__page_list hosted;       /* published entries in host memory */
    int32_t shared;               /* pages with more than one reference */
    int32_t *bucket, bucket_count;
    tarn__page_key next_key;
} tarn__page_pool;

/* A pool of `count` pages of `page_size` tokens, all free, and `host` entries in host memory. False with an error.
 * Closing an all-zero pool is allowed. */
bool tarn__page_pool_open(tarn__page_pool *pool, int32_t count, int32_t host, int32_t page_size);
void tarn__page_pool_close(tarn__page_pool *pool);

/* Pages that tarn__page_pool_take() can still return. */
int32_t tarn__page_pool_available(const tarn__page_pool *pool);

/* A page with one reference and unknown contents; -1, without an error, if all are in use. May drop the least recently
 * used published page. */
int32_t tarn__page_pool_take(tarn__page_pool *pool);

/* Adds and removes a reference. A sequence releases its pages from the last to the first, so that the end of a prefix
 * is dropped before its beginning; one with a sliding window releases the beginning first, and while it runs. */
void tarn__page_pool_retain(tarn__page_pool *pool, int32_t page);
void tarn__page_pool_release(tarn__page_pool *pool, int32_t page);

/* The published page with these tokens after the page of key `parent`, with a reference of its own; -1: none. */
int32_t tarn__page_pool_find(tarn__page_pool *pool, tarn__page_key parent, const int32_t *tokens);

/* Publishes a page, which is full of these tokens and which the caller alone references. Where an equal page is
 * published already, the caller gets a reference to that one in exchange. Returns the published page: the pages of a
 * chain are then referenced by their sequence, and none of these is dropped before those after it. */
int32_t tarn__page_pool_publish(tarn__page_pool *pool, int32_t page, tarn__page_key parent, const int32_t *tokens);

/* Key of a published page or entry. */
tarn__page_key tarn__page_pool_key(const tarn__page_pool *pool, int32_t page);

/* The page, or the entry in host memory (from `count` on), with these tokens after the page of key `parent`, without a
 * reference; -1: none. */
int32_t tarn__page_pool_look(const tarn__page_pool *pool, tarn__page_key parent, const int32_t *tokens);

/* The page that tarn__page_pool_take() would drop next; -1: it would drop none, as there are free ones or all are in
 * use. */
int32_t tarn__page_pool_next_dropped(const tarn__page_pool *pool);

/* Moves what is published at `from`, an unreferenced page or an entry, to `to`, an unpublished one, with its key. The
 * caller copies. `from` is free then. */
void tarn__page_pool_move(tarn__page_pool *pool, int32_t from, int32_t to);

/* Drops what is published at a page or an entry; a page keeps its references, and is free without any. */
void tarn__page_pool_forget(tarn__page_pool *pool, int32_t page);

/* Makes an entry the most recently used one. */
void tarn__page_pool_touch(tarn__page_pool *pool, int32_t entry);

/* Copy on write: the page itself where the caller's reference is the only one and it is not published; else a new page,
 * to which the caller copies its rows, in exchange for the reference. -1, without an error, if all are in use: then
 * nothing changes. */
int32_t tarn__page_pool_writable(tarn__page_pool *pool, int32_t page);

#endif
