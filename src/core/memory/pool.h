/* pool.h: the caching memory pool, one per device. Thread-safe. */
#ifndef TARN__POOL_H
#define TARN__POOL_H

#include <tarn/device.h>

typedef struct tarn__pool_block tarn__pool_block;
struct tarn__storage;

/* Allocates a block of at least `bytes` bytes, aligned to 256. NULL with an error that holds a table of the largest
 * users, when there is none even after the cache was freed. `owner` is borrowed for that table; NULL: scratch of a
 * kernel. */
tarn__pool_block *tarn__pool_alloc(tarn_device device, size_t bytes, const struct tarn__storage *owner);

/* Returns a block to its pool. NULL is allowed. */
void tarn__pool_free(tarn__pool_block *block);

/* Replaces a name that the pool's table may be reading, under the pool's lock; returns the old one. */
char *tarn__pool_rename(tarn__pool_block *block, char **slot, char *name);

/* Memory and byte offset of a block: an address and 0, or a device's handle and an offset. */
void *tarn__pool_block_memory(const tarn__pool_block *block);
int64_t tarn__pool_block_offset(const tarn__pool_block *block);

/* As tarn_memory_table(), with at most `max_rows` rows. */
size_t tarn__memory_table(tarn_device device, int max_rows, char *buffer, size_t size);

/* Resets the peak counters of all devices, or of one. */
void tarn__pool_reset_peaks(void);
bool tarn__pool_reset_peaks_of(tarn_device device);

#define TARN__POOL_SEGMENT ((size_t)2 << 20) /* smallest allocation from the backend, in bytes */

/* Peak bytes since the last reset: of tensors, without scratch; of tensors and scratch; of the pool with its cache. */
typedef struct tarn__pool_peaks {
    int64_t tensors, used, reserved;
} tarn__pool_peaks;
tarn__pool_peaks tarn__pool_peaks_of(tarn_device device);

/* An arena: the memory of a captured graph. While entered, it serves all allocations of the entering thread on the
 * device; memory that the step frees is reused inside the capture, and by nobody else for as long as the arena lives.
 * Blocks of the device's pool that are freed meanwhile are retained, with their contents. */
typedef struct tarn__arena tarn__arena;
tarn__arena *tarn__arena_new(tarn_device device);

/* False, without an error, when an arena of the device is entered already. */
bool tarn__arena_enter(tarn__arena *arena);
void tarn__arena_leave(tarn__arena *arena);

/* Bytes that it has reserved, used or free. */
int64_t tarn__arena_bytes(const tarn__arena *arena);

/* Returns all its memory to the device's pool; tensors in it stay valid. NULL is allowed. Not while entered. */
void tarn__arena_free(tarn__arena *arena);

#endif
