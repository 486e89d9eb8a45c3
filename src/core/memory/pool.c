/* pool.c: a caching memory pool for each device.
 *
 * Memory comes from the backend in segments. A segment is cut into blocks; free blocks lie in bins by size, are split
 * when taken and merged with free neighbours when given back. Blocks of up to QUICK_MAX bytes skip the merging and go
 * to quick lists of exactly their size, which makes the temporaries of small operations cheap. Invariants, under the
 * pool's lock:
 *   1. the blocks of a segment, in order of `before`/`after`, cover it without gaps;
 *   2. a block is in exactly one place: held by a storage, in a quick list, or in a bin;
 *   3. no two neighbours are both in bins. */
#include "core/memory/pool_private.h"

#include <stdlib.h>
#include <string.h>
#include <tarn/profile.h>

#include "base/error.h"
#include "core/launch/stats.h"
#include "core/memory/storage.h"

#define SEGMENT_MIN TARN__POOL_SEGMENT
#define MAX_DEVICES 64
#define MAX_ROWS 7 /* of the table in an error, which has room for so many */

static tarn__pool pools[MAX_DEVICES];
static _Atomic int pool_count;
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int caching = -1; /* -1: the environment has not been asked */

void tarn_set_pool(bool on)
{
    atomic_store(&caching, on);
}

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

/* What an arena had once, each run of the recorded step uses. */
static bool keeps_memory(const tarn__pool *pool)
{
    return pool->is_of || is_caching();
}

static tarn__pool *find_pool(tarn_device device)
{
    int count = atomic_load_explicit(&pool_count, memory_order_acquire);
    for (int i = 0; i < count; i++)
        if (tarn__same_device(pools[i].device, device))
            return &pools[i];
    return NULL;
}

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

static void push(tarn__pool_block **list, tarn__pool_block *block)
{
    block->previous = NULL;
    block->next = *list;
    if (*list)
        (*list)->previous = block;
    *list = block;
}

static void take_out(tarn__pool_block **list, tarn__pool_block *block)
{
    if (block->previous)
        block->previous->next = block->next;
    else
        *list = block->next;
    if (block->next)
        block->next->previous = block->previous;
    block->previous = block->next = NULL;
}

/* Bins grow by powers of two of the unit: bin b holds blocks of [unit << b, unit << (b + 1)). */
static int bin_of(size_t bytes)
{
    int bin = 63 - __builtin_clzll((unsigned long long)(bytes / UNIT));
    return bin < BINS ? bin : BINS - 1;
}

static void put_in_bin(tarn__pool_block *block)
{
    block->place = BINNED;
    push(&block->pool->bin[bin_of(block->bytes)], block);
}

/* ---- splitting and merging --------------------------------------------------------------------------------------- */

static void forget(tarn__pool_block *block)
{
    tarn__release(block, sizeof(*block));
}

/* Cuts what is beyond `bytes` off a block and puts it into a bin. Where no record can be had for the rest, the block
 * stays whole. */
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

/* Joins `block`, which is in no list, with its binned neighbours, and returns the joint block. */
static tarn__pool_block *merge(tarn__pool_block *block)
{
    tarn__pool_block *after = block->after, *before = block->before;
    if (after && after->place == BINNED) {
        take_out(&block->pool->bin[bin_of(after->bytes)], after);
        block->bytes += after->bytes;
        block->after = after->after;
        if (block->after)
            block->after->before = block;
        forget(after);
    }
    if (before && before->place == BINNED) {
        take_out(&block->pool->bin[bin_of(before->bytes)], before);
        before->bytes += block->bytes;
        before->after = block->after;
        if (before->after)
            before->after->before = before;
        forget(block);
        block = before;
    }
    return block;
}

/* ---- taking ------------------------------------------------------------------------------------------------------ */

static tarn__pool_block *take_from_bins(tarn__pool *pool, size_t bytes)
{
    for (int bin = bin_of(bytes); bin < BINS; bin++) {
        tarn__pool_block *best = NULL;
        for (tarn__pool_block *block = pool->bin[bin]; block; block = block->next)
            if (block->bytes >= bytes && (!best || block->bytes < best->bytes))
                best = block;
        if (!best)
            continue;
        /* A large block is not worn down by small requests: that would keep it from ever being whole again. */
        if (bytes >= SEGMENT_MIN && best->bytes > bytes * 2 && best->bytes - bytes > ((size_t)64 << 20))
            continue;
        take_out(&pool->bin[bin], best);
        split(best, bytes);
        return best;
    }
    return NULL;
}

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
        forget(block);
        return NULL;
    }
    tarn__count(TARN__SYSTEM_ALLOCATIONS, 1);
    *block = (tarn__pool_block){.pool = pool, .segment = memory, .segment_bytes = wanted, .bytes = wanted};
    pool->cached += (int64_t)wanted;
    split(block, bytes);
    return block;
}

static void flush_quick_lists(tarn__pool *pool)
{
    for (size_t i = 0; i < QUICK_LISTS; i++)
        while (pool->quick[i]) {
            tarn__pool_block *block = pool->quick[i];
            take_out(&pool->quick[i], block);
            put_in_bin(merge(block));
        }
}

/* Gives every segment without a held block back to the backend. */
static void give_segments_back(tarn__pool *pool)
{
    flush_quick_lists(pool);
    for (int bin = 0; bin < BINS; bin++)
        for (tarn__pool_block *block = pool->bin[bin], *next; block; block = next) {
            next = block->next;
            if (block->before || block->after)
                continue;
            take_out(&pool->bin[bin], block);
            pool->cached -= (int64_t)block->bytes;
            pool->backend->release(pool->device.index, block->segment, block->segment_bytes);
            forget(block);
        }
}

static tarn__pool_block *take_locked(tarn__pool *pool, size_t bytes)
{
    tarn__pool_block *block = bytes <= QUICK_MAX ? pool->quick[bytes / UNIT - 1] : NULL;
    if (block)
        take_out(&pool->quick[bytes / UNIT - 1], block);
    if (!block && keeps_memory(pool))
        block = take_from_bins(pool, bytes);
    if (!block)
        block = take_segment(pool, bytes);
    if (!block && !tarn_failed()) {
        pool->backend->synchronize(pool->device.index);
        if (pool->is_of) {
            pthread_mutex_lock(&pool->is_of->device_pool->lock);
            give_segments_back(pool->is_of->device_pool);
            pthread_mutex_unlock(&pool->is_of->device_pool->lock);
        } else {
            give_segments_back(pool);
        }
        block = take_segment(pool, bytes);
    }
    return block;
}

static void raise_out_of_memory(tarn__pool *pool, size_t bytes)
{
    char name[32], table[700];
    tarn_device_info info = {0};
    if (!pool->backend->device_query(pool->device.index, &info)) { /* it is gone, and its memory with it */
        tarn__raise(TARN_ERROR_DEVICE, "%s does not answer: %s", tarn_device_name(pool->device, name, sizeof(name)),
                    pool->backend->failure());
        return;
    }
    tarn__memory_table(pool->device, MAX_ROWS, table, sizeof(table));
    int64_t used = tarn_memory_of(pool->device).used;
    tarn__raise(TARN_ERROR_MEMORY,
                "out of memory on %s: %zu bytes asked for, %lld of %lld free; tensors hold %lld:\n%s",
                tarn_device_name(pool->device, name, sizeof(name)), bytes, (long long)info.memory_free,
                (long long)info.memory_total, (long long)used, table);
}

/* Under the pool's lock. The peak of a device counts its arenas as full as they ever were. */
static void raise_peak(tarn__pool *pool)
{
    int64_t more = pool->used + pool->lent - pool->peak;
    if (more <= 0)
        return;
    pool->peak += more;
    pool->peak_workspace = pool->workspace;
    if (!pool->is_of)
        return;
    tarn__pool *device = pool->is_of->device_pool;
    pthread_mutex_lock(&device->lock);
    device->lent += more;
    raise_peak(device);
    pthread_mutex_unlock(&device->lock);
}

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
        block->place = HELD;
        block->owner = owner;
        block->is_workspace = !owner;
        push(&pool->held, block);
        pool->used += (int64_t)block->bytes;
        pool->cached -= (int64_t)block->bytes;
        pool->workspace += block->is_workspace ? (int64_t)block->bytes : 0;
        pool->blocks++;
        raise_peak(pool);
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

/* A captured step goes on using what is given back while it is recorded. */
static bool keep_for_arena(tarn__pool *pool, tarn__pool_block *block)
{
    tarn__arena *arena = atomic_load_explicit(&pool->entered, memory_order_relaxed);
    if (!arena)
        return false;
    pthread_mutex_lock(&pool->lock);
    take_out(&pool->held, block);
    block->owner = NULL;
    push(&arena->kept, block);
    pthread_mutex_unlock(&pool->lock);
    return true;
}

static void destroy_arena(tarn__arena *arena)
{
    tarn__pool *pool = arena->device_pool;
    give_segments_back(&arena->pool);
    pthread_mutex_lock(&pool->lock);
    tarn__arena **place = &pool->arenas;
    while (*place != arena)
        place = &(*place)->next;
    *place = arena->next;
    pool->lent -= arena->pool.peak;
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_destroy(&arena->pool.lock);
    tarn__release(arena, sizeof(*arena));
}

void tarn__pool_free(tarn__pool_block *block)
{
    if (!block)
        return;
    tarn__pool *pool = block->pool;
    if (keep_for_arena(pool, block))
        return;
    pthread_mutex_lock(&pool->lock);
    take_out(&pool->held, block);
    pool->used -= (int64_t)block->bytes;
    pool->cached += (int64_t)block->bytes;
    pool->workspace -= block->is_workspace ? (int64_t)block->bytes : 0;
    pool->blocks--;
    block->owner = NULL;
    if (!keeps_memory(pool)) {
        put_in_bin(merge(block));
        give_segments_back(pool);
    } else if (block->bytes <= QUICK_MAX) {
        block->place = QUICK;
        push(&pool->quick[block->bytes / UNIT - 1], block);
    } else {
        put_in_bin(merge(block));
    }
    bool is_last = pool->is_of && pool->is_of->is_orphan && pool->blocks == 0;
    pthread_mutex_unlock(&pool->lock);
    if (is_last)
        destroy_arena(pool->is_of);
}

/* ---- arenas ------------------------------------------------------------------------------------------------------ */

tarn__arena *tarn__arena_new(tarn_device device)
{
    tarn__pool *pool = tarn__pool_of(device, "graph_capture");
    tarn__arena *arena = pool ? tarn__alloc(sizeof(*arena)) : NULL;
    if (!arena)
        return NULL;
    pthread_mutex_init(&arena->pool.lock, NULL);
    arena->pool.device = device;
    arena->pool.backend = pool->backend;
    arena->pool.is_of = arena;
    arena->device_pool = pool;
    pthread_mutex_lock(&pool->lock);
    arena->next = pool->arenas;
    pool->arenas = arena;
    pthread_mutex_unlock(&pool->lock);
    return arena;
}

void tarn__arena_enter(tarn__arena *arena)
{
    atomic_store(&arena->device_pool->entered, arena);
}

void tarn__arena_leave(tarn__arena *arena)
{
    atomic_store(&arena->device_pool->entered, NULL);
}

void tarn__arena_free(tarn__arena *arena)
{
    if (!arena)
        return;
    tarn__pool *pool = arena->device_pool;
    while (arena->kept) {
        tarn__pool_block *block = arena->kept;
        pthread_mutex_lock(&pool->lock);
        take_out(&arena->kept, block);
        push(&pool->held, block);
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

char *tarn__pool_rename(tarn__pool_block *block, char **place, char *name)
{
    char *before = *place;
    pthread_mutex_lock(&block->pool->lock);
    *place = name;
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

bool tarn_empty_cache(tarn_device device)
{
    tarn__pool *pool = tarn__pool_of(device, "empty_cache");
    if (!pool)
        return false;
    pool->backend->synchronize(device.index);
    pthread_mutex_lock(&pool->lock);
    give_segments_back(pool);
    pthread_mutex_unlock(&pool->lock);
    tarn__quarantine_flush();
    return true;
}

static void reset_peaks(tarn__pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->peak = pool->used + pool->lent;
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
