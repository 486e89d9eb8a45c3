/* pool_stats.c: usage of a device's pool: bytes in total, by purpose, and by owner. Arenas count as part of their
 * device.
 *
 * The public counters (tarn_memory_of()) and the table in out-of-memory errors come from the same lists, so they
 * agree. */
#include <stdio.h>
#include <string.h>
#include <tarn/profile.h>

#include "core/memory/pool_private.h"
#include "core/memory/storage.h"

/* Bytes used and cached, and the peak; one consistent snapshot under the pool's lock. */
tarn_memory tarn_memory_of(tarn_device device)
{
    tarn_memory memory = {0};
    tarn__pool *pool = tarn__pool_of(device, "memory_of");
    if (!pool)
        return memory;
    pthread_mutex_lock(&pool->lock);
    memory = (tarn_memory){pool->used, pool->cached, pool->peak.used, pool->blocks};
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
    tarn__pool_peaks peaks = {pool->peak.tensors, pool->peak.used, pool->peak_reserved};
    pthread_mutex_unlock(&pool->lock);
    return peaks;
}

/* Sums the bytes of used blocks by the purpose of their storage. */
static void add_purposes(const tarn__pool *pool, tarn_memory_kinds *kinds)
{
    int64_t bytes[TARN__PURPOSES] = {0};
    for (const tarn__pool_block *block = pool->used_blocks; block; block = block->next)
        if (block->owner)
            bytes[block->owner->purpose] += (int64_t)block->bytes;
    kinds->parameters += bytes[TARN__FOR_PARAMETERS];
    kinds->gradients += bytes[TARN__FOR_GRADIENTS];
    kinds->state += bytes[TARN__FOR_STATE];
}

/* The device's peaks count its arenas. Activations are the remainder: peak minus parameters, gradients, optimizer
 * state and scratch. */
tarn_memory_kinds tarn_memory_kinds_of(tarn_device device)
{
    tarn_memory_kinds kinds = {0};
    tarn__pool *pool = tarn__pool_of(device, "memory_kinds_of");
    if (!pool)
        return kinds;
    pthread_mutex_lock(&pool->lock);
    kinds.peak = pool->peak.used;
    kinds.workspace = pool->peak.workspace;
    add_purposes(pool, &kinds);
    for (const tarn__arena *arena = pool->arenas; arena; arena = arena->next)
        add_purposes(&arena->pool, &kinds);
    pthread_mutex_unlock(&pool->lock);
    int64_t others = kinds.peak - kinds.parameters - kinds.gradients - kinds.state - kinds.workspace;
    kinds.activations = others > 0 ? others : 0;
    return kinds;
}

#define TABLE_ROWS 24

enum { UNNAMED, SCRATCH, OTHERS, NAMED }; /* rows before the named ones */

typedef struct table_row {
    char name[48];
    int64_t bytes, blocks;
} table_row;

/* The row of a block's name; names beyond the table's capacity share one row. */
static table_row *row_of(table_row *rows, int *count, const tarn__pool_block *block)
{
    const char *name = block->owner ? block->owner->name : NULL;
    if (!name)
        return &rows[block->is_workspace ? SCRATCH : UNNAMED];
    for (int i = NAMED; i < *count; i++)
        if (strncmp(rows[i].name, name, sizeof(rows[i].name) - 1) == 0)
            return &rows[i];
    if (*count == TABLE_ROWS)
        return &rows[OTHERS];
    snprintf(rows[*count].name, sizeof(rows[0].name), "%s", name);
    return &rows[(*count)++];
}

/* Adds the used blocks of a pool to the table. */
static void add_blocks(table_row *rows, int *count, const tarn__pool *pool)
{
    for (const tarn__pool_block *block = pool->used_blocks; block; block = block->next) {
        table_row *row = row_of(rows, count, block);
        row->bytes += (int64_t)block->bytes;
        row->blocks++;
    }
}

/* The largest row, "others" excepted; NULL: none left. */
static table_row *largest_of(table_row *rows, int count)
{
    table_row *best = NULL;
    for (int i = 0; i < count; i++)
        if (i != OTHERS && rows[i].blocks && (!best || rows[i].bytes > best->bytes))
            best = &rows[i];
    return best;
}

static size_t print_row(const table_row *row, char *buffer, size_t size, size_t used)
{
    bool fits = buffer && used < size;
    return used + (size_t)snprintf(fits ? buffer + used : NULL, fits ? size - used : 0,
                                   "  %14lld bytes in %6lld blocks  %s\n", (long long)row->bytes,
                                   (long long)row->blocks, row->name);
}

/* One row per name, largest first. The last row sums up the remainder, so that rows add up to the bytes in use. */
size_t tarn__memory_table(tarn_device device, int max_rows, char *buffer, size_t size)
{
    table_row rows[TABLE_ROWS] = {[UNNAMED] = {.name = "(no name)"},
                                  [SCRATCH] = {.name = "(scratch of kernels)"},
                                  [OTHERS] = {.name = "(all others)"}},
              *row;
    int count = NAMED;
    if (buffer && size)
        buffer[0] = 0;
    tarn__pool *pool = tarn__pool_of(device, "memory_table");
    if (!pool)
        return 0;
    pthread_mutex_lock(&pool->lock);
    add_blocks(rows, &count, pool);
    for (const tarn__arena *arena = pool->arenas; arena; arena = arena->next)
        add_blocks(rows, &count, &arena->pool);
    pthread_mutex_unlock(&pool->lock);
    size_t used = 0;
    for (int done = 0; (row = largest_of(rows, count)); done++) {
        if (done < max_rows - 1) {
            used = print_row(row, buffer, size, used);
        } else {
            rows[OTHERS].bytes += row->bytes;
            rows[OTHERS].blocks += row->blocks;
        }
        row->blocks = 0;
    }
    return rows[OTHERS].blocks ? print_row(&rows[OTHERS], buffer, size, used) : used;
}

size_t tarn_memory_table(tarn_device device, char *buffer, size_t size)
{
    return tarn__memory_table(device, TABLE_ROWS, buffer, size);
}
