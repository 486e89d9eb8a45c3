/* pool_private.h: what a pool is made of, for pool.c, which hands blocks out, and pool_stats.c, which says who holds
 * them. */
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

enum { HELD, QUICK, BINNED }; /* a block's place */

struct tarn__pool_block {
    tarn__pool_block *before, *after;  /* neighbours in the segment */
    tarn__pool_block *previous, *next; /* in the bin, quick list, or list of held blocks */
    tarn__pool *pool;
    void *segment; /* the backend's memory */
    size_t segment_bytes;
    size_t offset; /* in the segment */
    size_t bytes;
    int place;
    bool is_workspace; /* held without an owner: of a kernel that runs */
    const struct tarn__storage *owner;
};

struct tarn__pool {
    pthread_mutex_t lock;
    tarn_device device;
    const tarn__backend *backend;
    tarn__pool_block *quick[QUICK_LISTS];
    tarn__pool_block *bin[BINS];
    tarn__pool_block *held;
    int64_t used, cached, peak, blocks;
    int64_t workspace, peak_workspace; /* bytes held without an owner: now, and when `peak` was reached */
    int64_t peak_tensors;              /* the most bytes held with one */
    int64_t peak_reserved;             /* the most bytes taken from the backend, in use or kept for later */
    /* a device's pool: what its arenas have needed at most, which nobody else can use while they live */
    int64_t lent;
    _Atomic(tarn__arena *) entered; /* a device's pool: the arena that stands in for it now */
    tarn__arena *arenas;            /* a device's pool: all of its arenas */
    tarn__arena *is_of;             /* an arena's pool: that arena */
};

struct tarn__arena {
    tarn__pool pool;
    tarn__pool *device_pool;
    tarn__pool_block *kept; /* blocks of the device's pool that were given back meanwhile */
    tarn__arena *next;
    bool is_orphan; /* freed, but tensors still hold blocks of it */
};

/* A device's pool, made when it is first asked for. NULL with an error that begins with `function`. */
tarn__pool *tarn__pool_of(tarn_device device, const char *function);

#endif
