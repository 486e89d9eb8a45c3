/* pool.c: a caching memory pool per device.
 *
 * Memory comes from the backend in segments. A segment is cut into blocks; free blocks are in bins by size, are
 * split when allocated and merged with free neighbours when freed. Blocks of up to QUICK_MAX bytes skip merging and
 * go to quick lists of exactly their size, which makes the temporaries of small operations cheap. Invariants, under
 * the pool's lock:
 *   1. the blocks of a segment, in order of `before`/`after`, cover it without gaps;
 *   2. a block is in exactly one state: used by a storage, in a quick list, or in a bin;
 *   3. no two neighbours are both in bins.
 *
 * Memory is reused in stream order: a freed block may be allocated again while kernels that used it are still
 * queued, because later work of the device runs after them. Lock order: an arena's pool before its device's pool. */
#include "core/memory/pool_private.h"

#include <stdlib.h>
#include <string.h>
#include <tarn/profile.h>

#include "base/error.h"
#include "core/launch/stats.h"
#include "core/memory/storage.h"

#define SEGMENT_MIN TARN__POOL_SEGMENT
#define MAX_DEVICES 64
#define MAX_ROWS 7 /* rows of the table in an out-of-memory error */

static tarn__pool pools[MAX_DEVICES];
static _Atomic int pool_count;
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int caching = -1; /* -1: TARN_POOL not read yet */

/* Off: every allocation goes to the backend, for tools that find memory errors. */
void tarn_set_pool(bool on)
{
    atomic_store(&caching, on);
}

/* TARN_POOL=off disables caching; read once. */
static bool is_caching(void)
{
    int mode = atomic_load_explicit(&caching, memory_order_relaxed);
    if (mode < 0) {
        const char *text = getenv("TARN_POOL");
        mode = !(text && strcmp(text, "off") == 0);
        atomic_store(&caching, mode);
    }
    return mode == 1;
}

/* A graph uses the memory of its arena in every run, so an arena always caches. */
static bool caches(const tarn__pool *pool)
{
    return pool->arena || is_caching();
}

/* Lock-free: pools are only appended, and published by the release of pool_count. */
static tarn__pool *find_pool(tarn_device device)
{
    int count = atomic_load_explicit(&pool_count, memory_order_acquire);
    for (int i = 0; i < count; i++)
        if (tarn__same_device(pools[i].device, device))
            return &pools[i];
    return NULL;
}

/* Double-checked: the fast path takes no lock. */
tarn__pool *tarn__pool_of(tarn_device device, const char *function)
{
    tarn__pool *pool = find_pool(device);
    if (pool)
        return pool;
    const tarn__backend *backend = tarn__backend_of(device, function);
    if (!backend)
        return NULL;
    pthread_mutex_lock(&pools_lock);
    pool = find_pool(device);
    int count = atomic_load(&pool_count);
    if (!pool && count < MAX_DEVICES) {
        pool = &pools[count];
        pthread_mutex_init(&pool->lock, NULL);
        pool->device = device;
        pool->backend = backend;
        atomic_store_explicit(&pool_count, count + 1, memory_order_release);
    }
    pthread_mutex_unlock(&pools_lock);
    if (!pool)
        tarn__raise(TARN_ERROR_DEVICE, "%s: more than %d devices in use", function, MAX_DEVICES);
    return pool;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* Doubly linked lists: a block is unlinked in O(1) wherever it is. */
static void push(tarn__pool_block **list, tarn__pool_block *block)
{
    block->previous = NULL;
    block->next = *list;
    if (*list)
        (*list)->previous = block;
    *list = block;
}

static void unlink_block(tarn__pool_block **list, tarn__pool_block *block)
{
    if (block->previous)
        block->previous->next = block->next;
    else
        *list = block->next;
    if (block->next)
        block->next->previous = block->previous;
    block->previous = block->next = NULL;
}

/* Bin b holds blocks of [UNIT << b, UNIT << (b + 1)) bytes. */
static int bin_of(size_t bytes)
{
    int bin = 63 - __builtin_clzll((unsigned long long)(bytes / UNIT));
    return bin < BINS ? bin : BINS - 1;
}

/* The block must be merged already (invariant 3). */
static void put_in_bin(tarn__pool_block *block)
{
    block->state = BINNED;
    push(&block->pool->bin[bin_of(block->bytes)], block);
}

/* ---- splitting and merging --------------------------------------------------------------------------------------- */

static void free_record(tarn__pool_block *block)
{
    tarn__release(block, sizeof(*block));
}

/* Splits the bytes beyond `bytes` off a block into a bin. Out of memory for the record is ignored: the block stays
 * whole. */
static void split(tarn__pool_block *block, size_t bytes)
{
    if (block->bytes - bytes < UNIT)
        return;
    tarn__error_record saved;
    tarn__error_save(&saved);
    tarn__pool_block *rest = tarn__alloc(sizeof(*rest));
    tarn_clear_error();
    tarn__error_restore(&saved);
    if (!rest)
        return;
    *rest = (tarn__pool_block){.before = block,
                               .after = block->after,
                               .pool = block->pool,
                               .segment = block->segment,
                               .segment_bytes = block->segment_bytes,
                               .offset = block->offset + bytes,
                               .bytes = block->bytes - bytes};
    if (rest->after)
        rest->after->before = rest;
    block->after = rest;
    block->bytes = bytes;
    put_in_bin(rest);
}

/* Merges `block`, which is in no list, with its binned neighbours; returns the merged block. */
static tarn__pool_block *merge(tarn__pool_block *block)
{
    tarn__pool_block *after = block->after, *before = block->before;
    if (after && after->state == BINNED) {
        unlink_block(&block->pool->bin[bin_of(after->bytes)], after);
        block->bytes += after->bytes;
        block->after = after->after;
        if (block->after)
            block->after->before = block;
        free_record(after);
    }
    if (before && before->state == BINNED) {
        unlink_block(&block->pool->bin[bin_of(before->bytes)], before);
        before->bytes += block->bytes;
        before->after = block->after;
        if (before->after)
            before->after->before = before;
        free_record(block);
        block = before;
    }
    return block;
}

/* ---- allocating ------------------------------------------------------------------------------------------------ */

/* Best fit within the first bin that has one; splits it. */
static tarn__pool_block *take_from_bins(tarn__pool *pool, size_t bytes)
{
    for (int bin = bin_of(bytes); bin < BINS; bin++) {
        tarn__pool_block *best = NULL;
        for (tarn__pool_block *block = pool->bin[bin]; block; block = block->next)
            if (block->bytes >= bytes && (!best || block->bytes < best->bytes))
                best = block;
        if (!best)
            continue;
        /* A block much larger than the request is left alone: splitting it would keep it from ever being whole
         * again. */
        if (bytes >= SEGMENT_MIN && best->bytes > bytes * 2 && best->bytes - bytes > ((size_t)64 << 20))
            continue;
        unlink_block(&pool->bin[bin], best);
        split(best, bytes);
        return best;
    }
    return NULL;
}

/* A new segment from the backend, rounded up to SEGMENT_MIN, or exact where that fails. NULL without an error when
 * there is no memory (with one when the record cannot be allocated). */
static tarn__pool_block *take_segment(tarn__pool *pool, size_t bytes)
{
    size_t wanted = !is_caching()         ? bytes
                    : bytes < SEGMENT_MIN ? SEGMENT_MIN
                                          : (bytes + SEGMENT_MIN - 1) / SEGMENT_MIN * SEGMENT_MIN;
    tarn__pool_block *block = tarn__alloc(sizeof(*block));
    if (!block)
        return NULL;
    void *memory = pool->backend->alloc(pool->device.index, wanted);
    if (!memory && wanted > bytes)
        memory = pool->backend->alloc(pool->device.index, wanted = bytes);
    if (!memory) {
        free_record(block);
        return NULL;
    }
    tarn__count(TARN__SYSTEM_ALLOCATIONS, 1);
    *block = (tarn__pool_block){.pool = pool, .segment = memory, .segment_bytes = wanted, .bytes = wanted};
    pool->cached += (int64_t)wanted;
    split(block, bytes);
    return block;
}

/* Merges the blocks of the quick lists with their neighbours, before segments can be freed. */
static void flush_quick_lists(tarn__pool *pool)
{
    for (size_t i = 0; i < QUICK_LISTS; i++)
        while (pool->quick[i]) {
            tarn__pool_block *block = pool->quick[i];
            unlink_block(&pool->quick[i], block);
            put_in_bin(merge(block));
        }
}

/* Frees every segment without a used block. */
static void free_segments(tarn__pool *pool)
{
    flush_quick_lists(pool);
    for (int bin = 0; bin < BINS; bin++)
        for (tarn__pool_block *block = pool->bin[bin], *next; block; block = next) {
            next = block->next;
            if (block->before || block->after)
                continue;
            unlink_block(&pool->bin[bin], block);
            pool->cached -= (int64_t)block->bytes;
            pool->backend->release(pool->device.index, block->segment, block->segment_bytes);
            free_record(block);
        }
}

/* Quick list, bins, backend; then once more after the device is idle and its cache freed. */
static tarn__pool_block *take_locked(tarn__pool *pool, size_t bytes)
{
    tarn__pool_block *block = bytes <= QUICK_MAX ? pool->quick[bytes / UNIT - 1] : NULL;
    if (block)
        unlink_block(&pool->quick[bytes / UNIT - 1], block);
    if (!block && caches(pool))
        block = take_from_bins(pool, bytes);
    if (!block)
        block = take_segment(pool, bytes);
    if (!block && !tarn_failed()) {
        pool->backend->synchronize(pool->device.index);
        if (pool->arena) {
            pthread_mutex_lock(&pool->arena->device_pool->lock);
            free_segments(pool->arena->device_pool);
            pthread_mutex_unlock(&pool->arena->device_pool->lock);
        } else {
            free_segments(pool);
        }
        block = take_segment(pool, bytes);
    }
    return block;
}

/* Names the device, the request and the largest users. The allocator's own error, if any, stays. */
static void raise_out_of_memory(tarn__pool *pool, size_t bytes)
{
    char name[32], table[700];
    tarn_device_info info = {0};
    if (!pool->backend->device_query(pool->device.index, &info)) { /* the device was lost */
        tarn__raise(TARN_ERROR_DEVICE, "%s does not respond: %s", tarn_device_name(pool->device, name, sizeof(name)),
                    pool->backend->failure());
        return;
    }
    tarn__memory_table(pool->device, MAX_ROWS, table, sizeof(table));
    int64_t used = tarn_memory_of(pool->device).used;
    tarn__raise(TARN_ERROR_MEMORY, "out of memory on %s: %zu bytes requested, %lld of %lld free; tensors use %lld:\n%s",
                tarn_device_name(pool->device, name, sizeof(name)), bytes, (long long)info.memory_free,
                (long long)info.memory_total, (long long)used, table);
}

/* Updates the peak, under the pool's lock. A device's peak counts its arenas at their own peaks. */
static void update_peak(tarn__pool *pool)
{
    int64_t more = pool->used + pool->arena_bytes - pool->peak;
    if (more <= 0)
        return;
    pool->peak += more;
    pool->peak_workspace = pool->workspace;
    if (!pool->arena)
        return;
    tarn__pool *device = pool->arena->device_pool;
    pthread_mutex_lock(&device->lock);
    device->arena_bytes += more;
    update_peak(device);
    pthread_mutex_unlock(&device->lock);
}

/* Sizes are rounded up to UNIT. The counters are updated under the lock; the error is raised after it is released. */
tarn__pool_block *tarn__pool_alloc(tarn_device device, size_t bytes, const tarn__storage *owner)
{
    tarn__pool *pool = tarn__pool_of(device, "empty");
    if (!pool)
        return NULL;
    tarn__arena *arena = atomic_load_explicit(&pool->entered, memory_order_relaxed);
    if (arena)
        pool = &arena->pool;
    size_t rounded = bytes < UNIT ? UNIT : (bytes + UNIT - 1) / UNIT * UNIT;
    pthread_mutex_lock(&pool->lock);
    tarn__pool_block *block = take_locked(pool, rounded);
    if (block) {
        block->state = USED;
        block->owner = owner;
        block->is_workspace = !owner;
        push(&pool->used_blocks, block);
        pool->used += (int64_t)block->bytes;
        pool->cached -= (int64_t)block->bytes;
        pool->workspace += block->is_workspace ? (int64_t)block->bytes : 0;
        pool->blocks++;
        update_peak(pool);
        if (pool->used - pool->workspace > pool->peak_tensors)
            pool->peak_tensors = pool->used - pool->workspace;
        if (pool->used + pool->cached > pool->peak_reserved)
            pool->peak_reserved = pool->used + pool->cached;
    }
    pthread_mutex_unlock(&pool->lock);
    if (!block)
        raise_out_of_memory(pool, bytes);
    else
        tarn__count(TARN__ALLOCATIONS, 1);
    return block;
}

/* While a step is captured, freed blocks of the device's pool stay with the arena: the captured kernels use them
 * again. */
static bool retain_for_arena(tarn__pool *pool, tarn__pool_block *block)
{
    tarn__arena *arena = atomic_load_explicit(&pool->entered, memory_order_relaxed);
    if (!arena)
        return false;
    pthread_mutex_lock(&pool->lock);
    unlink_block(&pool->used_blocks, block);
    block->owner = NULL;
    push(&arena->retained, block);
    pthread_mutex_unlock(&pool->lock);
    return true;
}

/* The last block of a freed arena was released. */
static void destroy_arena(tarn__arena *arena)
{
    tarn__pool *pool = arena->device_pool;
    free_segments(&arena->pool);
    pthread_mutex_lock(&pool->lock);
    tarn__arena **link = &pool->arenas;
    while (*link != arena)
        link = &(*link)->next;
    *link = arena->next;
    pool->arena_bytes -= arena->pool.peak;
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_destroy(&arena->pool.lock);
    tarn__release(arena, sizeof(*arena));
}

/* Without caching, segments are freed at once. The last block of an orphaned arena destroys it. */
void tarn__pool_free(tarn__pool_block *block)
{
    if (!block)
        return;
    tarn__pool *pool = block->pool;
    if (retain_for_arena(pool, block))
        return;
    pthread_mutex_lock(&pool->lock);
    unlink_block(&pool->used_blocks, block);
    pool->used -= (int64_t)block->bytes;
    pool->cached += (int64_t)block->bytes;
    pool->workspace -= block->is_workspace ? (int64_t)block->bytes : 0;
    pool->blocks--;
    block->owner = NULL;
    if (!caches(pool)) {
        put_in_bin(merge(block));
        free_segments(pool);
    } else if (block->bytes <= QUICK_MAX) {
        block->state = QUICK;
        push(&pool->quick[block->bytes / UNIT - 1], block);
    } else {
        put_in_bin(merge(block));
    }
    bool is_last = pool->arena && pool->arena->is_orphan && pool->blocks == 0;
    pthread_mutex_unlock(&pool->lock);
    if (is_last)
        destroy_arena(pool->arena);
}

/* ---- arenas ------------------------------------------------------------------------------------------------------ */

/* Does not enter it. The caller owns the arena. */
tarn__arena *tarn__arena_new(tarn_device device)
{
    tarn__pool *pool = tarn__pool_of(device, "graph_capture");
    tarn__arena *arena = pool ? tarn__alloc(sizeof(*arena)) : NULL;
    if (!arena)
        return NULL;
    pthread_mutex_init(&arena->pool.lock, NULL);
    arena->pool.device = device;
    arena->pool.backend = pool->backend;
    arena->pool.arena = arena;
    arena->device_pool = pool;
    pthread_mutex_lock(&pool->lock);
    arena->next = pool->arenas;
    pool->arenas = arena;
    pthread_mutex_unlock(&pool->lock);
    return arena;
}

/* From here on the arena serves all threads that use the device; captures are therefore one at a time per device. */
void tarn__arena_enter(tarn__arena *arena)
{
    atomic_store(&arena->device_pool->entered, arena);
}

void tarn__arena_leave(tarn__arena *arena)
{
    atomic_store(&arena->device_pool->entered, NULL);
}

/* Blocks retained during capture go back to the device's pool. The arena's own blocks may outlive it in tensors;
 * then the last of them destroys it. */
void tarn__arena_free(tarn__arena *arena)
{
    if (!arena)
        return;
    tarn__pool *pool = arena->device_pool;
    while (arena->retained) {
        tarn__pool_block *block = arena->retained;
        pthread_mutex_lock(&pool->lock);
        unlink_block(&arena->retained, block);
        push(&pool->used_blocks, block);
        pthread_mutex_unlock(&pool->lock);
        tarn__pool_free(block);
    }
    pthread_mutex_lock(&arena->pool.lock);
    arena->is_orphan = true;
    bool is_empty = arena->pool.blocks == 0;
    pthread_mutex_unlock(&arena->pool.lock);
    if (is_empty)
        destroy_arena(arena);
}

/* The pool's table reads names of used storages under the same lock. */
char *tarn__pool_rename(tarn__pool_block *block, char **slot, char *name)
{
    char *before = *slot;
    pthread_mutex_lock(&block->pool->lock);
    *slot = name;
    pthread_mutex_unlock(&block->pool->lock);
    return before;
}

void *tarn__pool_block_memory(const tarn__pool_block *block)
{
    return block->pool->backend->plain_addresses ? (char *)block->segment + block->offset : block->segment;
}

int64_t tarn__pool_block_offset(const tarn__pool_block *block)
{
    return block->pool->backend->plain_addresses ? 0 : (int64_t)block->offset;
}

/* Waits for the device first: queued kernels may still use cached blocks. */
bool tarn_empty_cache(tarn_device device)
{
    tarn__pool *pool = tarn__pool_of(device, "empty_cache");
    if (!pool)
        return false;
    pool->backend->synchronize(device.index);
    pthread_mutex_lock(&pool->lock);
    free_segments(pool);
    pthread_mutex_unlock(&pool->lock);
    tarn__quarantine_flush();
    return true;
}

/* Peaks restart from the current use. */
static void reset_peaks(tarn__pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->peak = pool->used + pool->arena_bytes;
    pool->peak_workspace = pool->workspace;
    pool->peak_tensors = pool->used - pool->workspace;
    pool->peak_reserved = pool->used + pool->cached;
    pthread_mutex_unlock(&pool->lock);
}

void tarn__pool_reset_peaks(void)
{
    for (int i = 0; i < atomic_load(&pool_count); i++)
        reset_peaks(&pools[i]);
}

bool tarn__pool_reset_peaks_of(tarn_device device)
{
    tarn__pool *pool = tarn__pool_of(device, "memory_of");
    if (pool)
        reset_peaks(pool);
    return pool != NULL;
}
