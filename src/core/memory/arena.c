/* arena.c: arenas, the pools of captured graphs.
 *
 * A graph runs its kernels in the order in which one stream captured them. Stream order therefore holds inside a
 * capture as it does outside: a block freed there may serve later allocations of the same capture. It may serve nothing
 * else while the graph lives, because each run writes to it again. Hence one arena per graph, a pool with the same
 * lists and the same algorithm as the device's:
 *   - It serves the thread that captures. Other threads are not part of the graph and use the device's pool.
 *   - It adopts segments that the device's pool has cached, if they have the size that it would request from the
 *     backend: those of the eager steps before the capture. So a captured step takes the memory of an eager one, and
 *     not the same amount again.
 *   - Its blocks return to it when they are freed, also after the capture (outputs of the graph).
 *   - Blocks of other pools that are freed during the capture are retained, unused. Captured kernels may have read
 *     them, and each run reads them again. They count as used.
 *   - When it is freed, all its segments go to the device's pool, with the blocks that tensors still use. That is also
 *     the end of a failed capture.
 *
 * The lock of the device's pool guards its arenas. */
#include "core/memory/pool_private.h"

/* ---- peaks ------------------------------------------------------------------------------------------------------- */

static void update_own_peak(tarn__pool *pool)
{
    const tarn__peak_bytes *arenas = &pool->arena_peaks;
    int64_t used = pool->used + arenas->used, tensors = pool->used - pool->workspace + arenas->tensors;
    if (used > pool->peak.used) {
        pool->peak.used = used;
        pool->peak.workspace = pool->workspace + arenas->workspace;
    }
    if (tensors > pool->peak.tensors)
        pool->peak.tensors = tensors;
}

/* Adds the peaks of an arena to those of its device's arenas, or removes them. */
static void add_peaks(tarn__peak_bytes *to, const tarn__peak_bytes *peaks, int sign)
{
    to->used += sign * peaks->used;
    to->workspace += sign * peaks->workspace;
    to->tensors += sign * peaks->tensors;
}

void tarn__pool_update_peaks(tarn__pool *pool)
{
    tarn__pool *device = pool->device_pool;
    if (!is_arena(pool)) {
        update_own_peak(pool);
        return;
    }
    add_peaks(&device->arena_peaks, &pool->peak, -1);
    update_own_peak(pool);
    add_peaks(&device->arena_peaks, &pool->peak, 1);
    update_own_peak(device);
}

/* ---- during a capture -------------------------------------------------------------------------------------------- */

tarn__pool_block *tarn__arena_adopt(tarn__pool *arena, size_t bytes, size_t max_bytes)
{
    tarn__pool *device = arena->device_pool;
    tarn__pool_block *best = NULL;
    for (int bin = tarn__pool_bin_of(bytes); bin <= tarn__pool_bin_of(max_bytes) && !best; bin++)
        for (tarn__pool_block *block = device->bin[bin]; block; block = block->next)
            if (!block->before && !block->after && block->bytes >= bytes && block->bytes <= max_bytes &&
                (!best || block->bytes < best->bytes))
                best = block;
    if (!best)
        return NULL;
    unlink_block(&device->bin[tarn__pool_bin_of(best->bytes)], best);
    device->cached -= (int64_t)best->bytes;
    arena->cached += (int64_t)best->bytes;
    best->pool = arena;
    return best;
}

void tarn__arena_retain(tarn__arena *arena, tarn__pool_block *block)
{
    block->owner = NULL;
    block->next_retained = arena->retained;
    arena->retained = block;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

/* Does not enter it. The caller owns the arena. */
tarn__arena *tarn__arena_new(tarn_device device)
{
    tarn__pool *pool = tarn__pool_of(device, "graph_capture");
    tarn__arena *arena = pool ? tarn__alloc(sizeof(*arena)) : NULL;
    if (!arena)
        return NULL;
    arena->pool.device_pool = pool;
    arena->pool.device = device;
    arena->pool.backend = pool->backend;
    pthread_mutex_lock(&pool->lock);
    tarn__pool_flush_quick_lists(pool); /* so that cached segments are whole and can be adopted */
    arena->next = pool->arenas;
    pool->arenas = arena;
    pthread_mutex_unlock(&pool->lock);
    return arena;
}

bool tarn__arena_enter(tarn__arena *arena)
{
    tarn__pool *device = arena->pool.device_pool;
    pthread_mutex_lock(&device->lock);
    bool is_free = !device->entered;
    if (is_free) {
        arena->thread = pthread_self();
        device->entered = arena;
    }
    pthread_mutex_unlock(&device->lock);
    return is_free;
}

void tarn__arena_leave(tarn__arena *arena)
{
    tarn__pool *device = arena->pool.device_pool;
    pthread_mutex_lock(&device->lock);
    device->entered = NULL;
    pthread_mutex_unlock(&device->lock);
}

int64_t tarn__arena_bytes(const tarn__arena *arena)
{
    pthread_mutex_t *lock = &arena->pool.device_pool->lock;
    pthread_mutex_lock(lock);
    int64_t bytes = arena->pool.used + arena->pool.cached;
    pthread_mutex_unlock(lock);
    return bytes;
}

static void move_list(tarn__pool_block **from, tarn__pool_block **to, tarn__pool *pool)
{
    while (*from) {
        tarn__pool_block *block = *from;
        unlink_block(from, block);
        block->pool = pool;
        push(to, block);
    }
}

/* Moves all segments to the device's pool, by invariant 4 as they are. */
static void move_segments(tarn__pool *arena, tarn__pool *device)
{
    tarn__pool_flush_quick_lists(arena);
    move_list(&arena->used_blocks, &device->used_blocks, device);
    for (int bin = 0; bin < BINS; bin++)
        move_list(&arena->bin[bin], &device->bin[bin], device);
    device->used += arena->used;
    device->cached += arena->cached;
    device->workspace += arena->workspace;
    device->blocks += arena->blocks;
}

void tarn__arena_free(tarn__arena *arena)
{
    if (!arena)
        return;
    tarn__pool *device = arena->pool.device_pool;
    pthread_mutex_lock(&device->lock);
    while (arena->retained) {
        tarn__pool_block *block = arena->retained;
        arena->retained = block->next_retained;
        tarn__pool_free_locked(block);
    }
    move_segments(&arena->pool, device);
    tarn__arena **link = &device->arenas;
    while (*link != arena)
        link = &(*link)->next;
    *link = arena->next;
    add_peaks(&device->arena_peaks, &arena->pool.peak, -1);
    if (!tarn__pool_is_caching())
        tarn__pool_free_segments(device);
    pthread_mutex_unlock(&device->lock);
    tarn__release(arena, sizeof(*arena));
}
