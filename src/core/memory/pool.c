/* pool.c: a caching memory pool per device.
 *
 * Memory comes from the backend in segments. A segment is cut into blocks; free blocks are in bins by size, are
 * split when allocated and merged with free neighbours when freed. Blocks of up to QUICK_MAX bytes skip merging and
 * go to quick lists of exactly their size, which makes the temporaries of small operations cheap. Invariants, under
 * the lock of the device's pool:
 *   1. the blocks of a segment, in order of `before`/`after`, cover it without gaps;
 *   2. a block is in exactly one state: used by a storage, in a quick list, or in a bin;
 *   3. no two neighbours are both in bins;
 *   4. all blocks of a segment belong to one pool, the device's or an arena's.
 *
 * Memory is reused in stream order: a freed block may be allocated again while kernels that used it are still
 * queued, because later work of the device runs after them.
 * A captured graph has a pool of its own (arena.c). */
#include "core/memory/pool_private.h"

#include <stdatomic.h>
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
bool tarn__pool_is_caching(void)
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
    return is_arena(pool) || tarn__pool_is_caching();
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
        pool->device_pool = pool;
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

/* Bin b holds blocks of [UNIT << b, UNIT << (b + 1)) bytes. */
int tarn__pool_bin_of(size_t bytes)
{
    int bin = 63 - __builtin_clzll((unsigned long long)(bytes / UNIT));
    return bin < BINS ? bin : BINS - 1;
}

/* The block must be merged already (invariant 3). */
static void put_in_bin(tarn__pool_block *block)
{
    block->state = BINNED;
    push(&block->pool->bin[tarn__pool_bin_of(block->bytes)], block);
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
                               .device_pool = block->device_pool,
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
        unlink_block(&block->pool->bin[tarn__pool_bin_of(after->bytes)], after);
        block->bytes += after->bytes;
        block->after = after->after;
        if (block->after)
            block->after->before = block;
        free_record(after);
    }
    if (before && before->state == BINNED) {
        unlink_block(&block->pool->bin[tarn__pool_bin_of(before->bytes)], before);
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
    for (int bin = tarn__pool_bin_of(bytes); bin < BINS; bin++) {
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

/* A new segment from the backend, of `wanted` bytes, or of exactly `bytes` where that fails. NULL without an error
 * when there is no memory (with one when the record cannot be allocated). */
static tarn__pool_block *new_segment(tarn__pool *pool, size_t bytes, size_t wanted)
{
    tarn__pool *device = pool->device_pool;
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
    *block = (tarn__pool_block){
        .device_pool = device, .pool = pool, .segment = memory, .segment_bytes = wanted, .bytes = wanted};
    pool->cached += (int64_t)wanted;
    device->reserved += (int64_t)wanted;
    if (device->reserved > device->peak_reserved)
        device->peak_reserved = device->reserved;
    return block;
}

/* A segment for `bytes`, rounded up to SEGMENT_MIN. NULL as new_segment(). */
static tarn__pool_block *take_segment(tarn__pool *pool, size_t bytes)
{
    size_t wanted = !tarn__pool_is_caching() ? bytes
                    : bytes < SEGMENT_MIN    ? SEGMENT_MIN
                                             : (bytes + SEGMENT_MIN - 1) / SEGMENT_MIN * SEGMENT_MIN;
    tarn__pool_block *block = is_arena(pool) ? tarn__arena_adopt(pool, bytes, wanted) : NULL;
    if (!block)
        block = new_segment(pool, bytes, wanted);
    if (block)
        split(block, bytes);
    return block;
}

/* Merges the blocks of the quick lists with their neighbours, before segments can be freed. */
void tarn__pool_flush_quick_lists(tarn__pool *pool)
{
    for (size_t i = 0; i < QUICK_LISTS; i++)
        while (pool->quick[i]) {
            tarn__pool_block *block = pool->quick[i];
            unlink_block(&pool->quick[i], block);
            put_in_bin(merge(block));
        }
}

/* Frees every segment without a used block. */
void tarn__pool_free_segments(tarn__pool *pool)
{
    tarn__pool_flush_quick_lists(pool);
    for (int bin = 0; bin < BINS; bin++)
        for (tarn__pool_block *block = pool->bin[bin], *next; block; block = next) {
            next = block->next;
            if (block->before || block->after)
                continue;
            unlink_block(&pool->bin[bin], block);
            pool->cached -= (int64_t)block->bytes;
            pool->device_pool->reserved -= (int64_t)block->bytes;
            pool->backend->release(pool->device.index, block->segment, block->segment_bytes);
            free_record(block);
        }
}

/* Quick list, bins, backend; then once more after the device is idle and its cache freed. During a capture the device
 * is idle, and must not be waited for. */
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
        if (!is_arena(pool))
            pool->backend->synchronize(pool->device.index);
        tarn__pool_free_segments(pool->device_pool);
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

/* The pool that serves the calling thread, under the lock. */
static tarn__pool *serving_pool(tarn__pool *device)
{
    tarn__arena *arena = device->entered;
    return arena && pthread_equal(arena->thread, pthread_self()) ? &arena->pool : device;
}

/* Sizes are rounded up to UNIT. The counters are updated under the lock; the error is raised after it is released. */
tarn__pool_block *tarn__pool_alloc(tarn_device device, size_t bytes, const tarn__storage *owner)
{
    tarn__pool *device_pool = tarn__pool_of(device, "empty");
    if (!device_pool)
        return NULL;
    size_t rounded = bytes < UNIT ? UNIT : (bytes + UNIT - 1) / UNIT * UNIT;
    pthread_mutex_lock(&device_pool->lock);
    tarn__pool *pool = serving_pool(device_pool);
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
        tarn__pool_update_peaks(pool);
    }
    pthread_mutex_unlock(&device_pool->lock);
    if (!block)
        raise_out_of_memory(device_pool, bytes);
    else
        tarn__count(TARN__ALLOCATIONS, 1);
    return block;
}

/* Under the lock. Without caching, segments are freed at once. */
void tarn__pool_free_locked(tarn__pool_block *block)
{
    tarn__pool *pool = block->pool;
    unlink_block(&pool->used_blocks, block);
    pool->used -= (int64_t)block->bytes;
    pool->cached += (int64_t)block->bytes;
    pool->workspace -= block->is_workspace ? (int64_t)block->bytes : 0;
    pool->blocks--;
    block->owner = NULL;
    if (!caches(pool)) {
        put_in_bin(merge(block));
        tarn__pool_free_segments(pool);
    } else if (block->bytes <= QUICK_MAX) {
        block->state = QUICK;
        push(&pool->quick[block->bytes / UNIT - 1], block);
    } else {
        put_in_bin(merge(block));
    }
}

void tarn__pool_free(tarn__pool_block *block)
{
    if (!block)
        return;
    tarn__pool *device = block->device_pool;
    pthread_mutex_lock(&device->lock);
    if (device->entered && block->pool != &device->entered->pool)
        tarn__arena_retain(device->entered, block);
    else
        tarn__pool_free_locked(block);
    pthread_mutex_unlock(&device->lock);
}

/* The pool's table reads names of used storages under the same lock. */
char *tarn__pool_rename(tarn__pool_block *block, char **slot, char *name)
{
    char *before = *slot;
    pthread_mutex_lock(&block->device_pool->lock);
    *slot = name;
    pthread_mutex_unlock(&block->device_pool->lock);
    return before;
}

void *tarn__pool_block_memory(const tarn__pool_block *block)
{
    return block->device_pool->backend->plain_addresses ? (char *)block->segment + block->offset : block->segment;
}

int64_t tarn__pool_block_offset(const tarn__pool_block *block)
{
    return block->device_pool->backend->plain_addresses ? 0 : (int64_t)block->offset;
}

/* Waits for the device first: queued kernels may still use cached blocks. */
bool tarn_empty_cache(tarn_device device)
{
    tarn__pool *pool = tarn__pool_of(device, "empty_cache");
    if (!pool)
        return false;
    pool->backend->synchronize(device.index);
    pthread_mutex_lock(&pool->lock);
    tarn__pool_free_segments(pool);
    pthread_mutex_unlock(&pool->lock);
    tarn__quarantine_flush();
    return true;
}

/* Peaks restart from the current use. */
static void reset_peaks(tarn__pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->peak = (tarn__peak_bytes){0};
    tarn__pool_update_peaks(pool);
    pool->peak_reserved = pool->reserved;
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
