/* pool_private.h: the structs of a pool, for pool.c, which allocates, arena.c, the pools of captured graphs, and
 * pool_stats.c, which reports usage. All
 * fields are guarded by the lock of the device's pool. */
#ifndef TARN__POOL_PRIVATE_H
#define TARN__POOL_PRIVATE_H

#include <pthread.h>

#include "base/memory.h"
#include "core/device/device.h"
#include "core/memory/pool.h"

typedef struct tarn__pool tarn__pool;

#define UNIT ((size_t)TARN__ALIGNMENT)
#define QUICK_MAX ((size_t)4096)
#define QUICK_LISTS (QUICK_MAX / UNIT)
#define BINS 64

enum { USED, QUICK, BINNED }; /* state of a block */

struct tarn__pool_block {
    tarn__pool_block *before, *after;  /* neighbours in the segment, by address */
    tarn__pool_block *previous, *next; /* in the bin, quick list, or list of used blocks */
    tarn__pool *device_pool;           /* of its device; constant, and its lock guards the block */
    tarn__pool *pool;                  /* in whose lists it is: the device's, or an arena's */
    void *segment;                     /* memory from the backend */
    size_t segment_bytes;
    size_t offset; /* in the segment */
    size_t bytes;
    int state;
    bool is_workspace; /* used without an owner: scratch of a running kernel */
    const struct tarn__storage *owner;
    tarn__pool_block *next_retained; /* in the list of an arena */
};

/* Peak bytes: used by tensors and scratch, the scratch in that, and used by tensors alone (at another time). */
typedef struct tarn__peak_bytes {
    int64_t used, workspace, tensors;
} tarn__peak_bytes;

struct tarn__pool {
    tarn__pool *device_pool; /* itself, or of an arena's pool: that of its device */
    tarn_device device;
    const tarn__backend *backend;
    tarn__pool_block *quick[QUICK_LISTS];
    tarn__pool_block *bin[BINS];
    tarn__pool_block *used_blocks;
    int64_t used, cached, blocks;
    int64_t workspace;     /* bytes used without an owner */
    tarn__peak_bytes peak; /* with arenas at their own peaks */
    /* of a device's pool only */
    pthread_mutex_t lock;            /* guards its arenas as well */
    tarn__peak_bytes arena_peaks;    /* sum over its arenas, for as long as they exist */
    int64_t reserved, peak_reserved; /* bytes from the backend, used or cached, with arenas */
    tarn__arena *arenas;             /* all of the device */
    tarn__arena *entered;            /* serves the thread that captures; NULL: no capture */
};

struct tarn__arena {
    tarn__pool pool;
    pthread_t thread;           /* that entered it */
    tarn__pool_block *retained; /* used blocks of other pools that were freed during the capture */
    tarn__arena *next;
};

/* Doubly linked lists: a block is unlinked in O(1) wherever it is. */
static inline void push(tarn__pool_block **list, tarn__pool_block *block)
{
    block->previous = NULL;
    block->next = *list;
    if (*list)
        (*list)->previous = block;
    *list = block;
}

static inline void unlink_block(tarn__pool_block **list, tarn__pool_block *block)
{
    if (block->previous)
        block->previous->next = block->next;
    else
        *list = block->next;
    if (block->next)
        block->next->previous = block->previous;
    block->previous = block->next = NULL;
}

static inline bool is_arena(const tarn__pool *pool)
{
    return pool->device_pool != pool;
}

/* A device's pool, created on first use. NULL with an error that begins with `function`. */
tarn__pool *tarn__pool_of(tarn_device device, const char *function);

/* False with TARN_POOL=off. */
bool tarn__pool_is_caching(void);

/* All that follows is called under the lock of the device's pool. */

/* Index of the bin for blocks of `bytes` bytes. */
int tarn__pool_bin_of(size_t bytes);

/* Merges the blocks of the quick lists with their neighbours. */
void tarn__pool_flush_quick_lists(tarn__pool *pool);

/* Frees every segment without a used block. */
void tarn__pool_free_segments(tarn__pool *pool);

/* Returns a used block to its pool. */
void tarn__pool_free_locked(tarn__pool_block *block);

/* Raises the peaks of a pool to its current use. Those of a device count its arenas at their own peaks, because their
 * memory is reserved. */
void tarn__pool_update_peaks(tarn__pool *pool);

/* Moves a cached segment of the device's pool to an arena's: the smallest from `bytes` to `max_bytes`. Returns its one
 * block, in no list; NULL: none. */
tarn__pool_block *tarn__arena_adopt(tarn__pool *arena, size_t bytes, size_t max_bytes);

/* Keeps a used block of another pool, which its owner frees, until the arena is freed. */
void tarn__arena_retain(tarn__arena *arena, tarn__pool_block *block);

#endif
