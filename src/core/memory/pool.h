/* pool.h: the caching memory pool, one for each device. */
#ifndef TARN__POOL_H
#define TARN__POOL_H

#include <tarn/device.h>

typedef struct tarn__pool_block tarn__pool_block;
struct tarn__storage;

/* Takes a block of at least `bytes` bytes, aligned to 256. NULL with an error raised, holding a table of who holds
 * what, when there is no memory even after the cache was given back. The block belongs to `owner`, whose name the table
 * uses. */
tarn__pool_block *tarn__pool_alloc(tarn_device device, size_t bytes, const struct tarn__storage *owner);

/* Gives a block back to its pool. NULL is allowed. */
void tarn__pool_free(tarn__pool_block *block);

/* Changes a name that the table of the block's pool may be reading, and returns the one before. */
char *tarn__pool_rename(tarn__pool_block *block, char **place, char *name);

/* Where a block lies: a plain address with offset 0, or a device's handle and a byte offset. */
void *tarn__pool_block_memory(const tarn__pool_block *block);
int64_t tarn__pool_block_offset(const tarn__pool_block *block);

/* As tarn_memory_table(), with at most so many rows. */
size_t tarn__memory_table(tarn_device device, int most, char *buffer, size_t size);

/* Peaks count from now on: of all devices, or of one. */
void tarn__pool_reset_peaks(void);
bool tarn__pool_reset_peaks_of(tarn_device device);

#define TARN__POOL_SEGMENT ((size_t)2 << 20) /* bytes that a pool takes from its backend at least */

/* The most bytes at once since the peaks were reset: of tensors, without the scratch of kernels; with it; and of the
 * pool, with what it keeps for later. */
typedef struct tarn__pool_peaks {
    int64_t tensors, used, reserved;
} tarn__pool_peaks;
tarn__pool_peaks tarn__pool_peaks_of(tarn_device device);

/* An arena: a pool of its own that stands in for the device's while a step is captured. Entered, it hands out all
 * blocks of the device, and the device's own blocks that are given back stay with it. Freed, it gives those back; what
 * tensors still hold of it lives on until they are gone. */
typedef struct tarn__arena tarn__arena;
tarn__arena *tarn__arena_new(tarn_device device);
void tarn__arena_enter(tarn__arena *arena);
void tarn__arena_leave(tarn__arena *arena);
void tarn__arena_free(tarn__arena *arena);

#endif
