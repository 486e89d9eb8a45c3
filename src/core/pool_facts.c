/* pool_facts.c: what a device's pool knows: how much is held, for what, and by whom. */
#include <stdio.h>
#include <string.h>
#include <tarn/profile.h>

#include "core/pool_inside.h"
#include "core/storage.h"

tarn_memory tarn_memory_of(tarn_device device)
{
    tarn_memory memory = {0};
    tarn__pool *pool = tarn__pool_of(device, "memory_of");
    if (!pool)
        return memory;
    pthread_mutex_lock(&pool->lock);
    memory = (tarn_memory){pool->used, pool->cached, pool->peak, pool->blocks};
    for (const tarn__arena *arena = pool->arenas; arena; arena = arena->next) {
        memory.used += arena->pool.used;
        memory.cached += arena->pool.cached;
        memory.blocks += arena->pool.blocks;
    }
    pthread_mutex_unlock(&pool->lock);
    return memory;
}

tarn__pool_peaks tarn__pool_peaks_of(tarn_device device)
{
    tarn__pool *pool = tarn__pool_of(device, "memory_of");
    if (!pool)
        return (tarn__pool_peaks){0};
    pthread_mutex_lock(&pool->lock);
    tarn__pool_peaks peaks = {pool->peak_tensors, pool->peak, pool->peak_reserved};
    pthread_mutex_unlock(&pool->lock);
    return peaks;
}

static void add_purposes(const tarn__pool *pool, tarn_memory_kinds *kinds)
{
    int64_t bytes[TARN__PURPOSES] = {0};
    for (const tarn__block *block = pool->held; block; block = block->next)
        if (block->owner)
            bytes[block->owner->purpose] += (int64_t)block->bytes;
    kinds->parameters += bytes[TARN__FOR_PARAMETERS];
    kinds->gradients += bytes[TARN__FOR_GRADIENTS];
    kinds->state += bytes[TARN__FOR_STATE];
    kinds->workspace += pool->peak_workspace;
    kinds->peak += pool->peak;
}

tarn_memory_kinds tarn_memory_kinds_of(tarn_device device)
{
    tarn_memory_kinds kinds = {0};
    tarn__pool *pool = tarn__pool_of(device, "memory_kinds_of");
    if (!pool)
        return kinds;
    pthread_mutex_lock(&pool->lock);
    add_purposes(pool, &kinds);
    for (const tarn__arena *arena = pool->arenas; arena; arena = arena->next)
        add_purposes(&arena->pool, &kinds);
    pthread_mutex_unlock(&pool->lock);
    int64_t others = kinds.peak - kinds.parameters - kinds.gradients - kinds.state - kinds.workspace;
    kinds.activations = others > 0 ? others : 0;
    return kinds;
}

#define TABLE_ROWS 24

/* One row a name, the largest first; names beyond TABLE_ROWS and blocks without one are summed up. */
size_t tarn_memory_table(tarn_device device, char *buffer, size_t size)
{
    struct row {
        char name[48];
        int64_t bytes, blocks;
    } rows[TABLE_ROWS + 1] = {{.name = "(no name)"}};
    int count = 1;
    if (buffer && size)
        buffer[0] = 0;
    tarn__pool *pool = tarn__pool_of(device, "memory_table");
    if (!pool)
        return 0;
    pthread_mutex_lock(&pool->lock);
    for (tarn__block *block = pool->held; block; block = block->next) {
        const char *name = block->owner && block->owner->name ? block->owner->name : NULL;
        int i = name ? 1 : 0;
        while (name && i < count && strncmp(rows[i].name, name, sizeof(rows[i].name) - 1) != 0)
            i++;
        if (i == count && count < TABLE_ROWS)
            snprintf(rows[count++].name, sizeof(rows[0].name), "%s", name);
        else if (i == count)
            i = 0;
        rows[i].bytes += (int64_t)block->bytes;
        rows[i].blocks++;
    }
    pthread_mutex_unlock(&pool->lock);
    size_t used = 0;
    for (int done = 0; done < count; done++) {
        int best = -1;
        for (int i = 0; i < count; i++)
            if (rows[i].blocks && (best < 0 || rows[i].bytes > rows[best].bytes))
                best = i;
        if (best < 0)
            break;
        int length = snprintf(buffer && used < size ? buffer + used : NULL, buffer && used < size ? size - used : 0,
                              "  %14lld bytes in %6lld blocks  %s\n", (long long)rows[best].bytes, (long long)rows[best].blocks,
                              rows[best].name);
        used += (size_t)length;
        rows[best].blocks = 0;
    }
    return used;
}
