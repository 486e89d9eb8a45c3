/* pool_private.h: the structs of a pool, for pool.c, which allocates, and pool_stats.c, which reports usage. All
 * fields are guarded by the pool's lock unless atomic. */
#ifndef TARN__POOL_PRIVATE_H
#define TARN__POOL_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

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
    tarn__pool *pool;
    void *segment; /* memory from the backend */
    size_t segment_bytes;
    size_t offset; /* in the segment */
    size_t bytes;
    int state;
    bool is_workspace; /* used without an owner: scratch of a running kernel */
    const struct tarn__storage *owner;
};

struct tarn__pool {
    pthread_mutex_t lock;
    tarn_device device;
    const tarn__backend *backend;
    tarn__pool_block *quick[QUICK_LISTS];
    tarn__pool_block *bin[BINS];
    tarn__pool_block *used_blocks;
    int64_t used, cached, peak, blocks;
    int64_t workspace, peak_workspace; /* bytes used without an owner: now, and when `peak` was reached */
    int64_t peak_tensors;              /* peak of bytes used by tensors */
    int64_t peak_reserved;             /* peak of bytes from the backend, used or cached */
    /* of a device's pool: peak bytes of its arenas, reserved for as long as they exist */
    int64_t arena_bytes;
    _Atomic(tarn__arena *) entered; /* of a device's pool: the arena that serves it now, else NULL */
    tarn__arena *arenas;            /* of a device's pool: all its arenas */
    tarn__arena *arena;             /* of an arena's pool: the arena; else NULL */
};

struct tarn__arena {
    tarn__pool pool;
    tarn__pool *device_pool;
    tarn__pool_block *retained; /* blocks of the device's pool that were freed during capture */
    tarn__arena *next;
    bool is_orphan; /* freed, but tensors still use blocks of it */
};

/* A device's pool, created on first use. NULL with an error that begins with `function`. */
tarn__pool *tarn__pool_of(tarn_device device, const char *function);

#endif
