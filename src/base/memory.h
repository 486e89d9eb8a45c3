/* memory.h: host memory, all of it through the caller's allocator. */
#ifndef TARN__MEMORY_H
#define TARN__MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Alignment of storages: a cache line pair, and what every device's vector loads want. */
#define TARN__ALIGNMENT 256

/* Memory for the library's own records, zeroed; NULL with an error raised when there is none. The caller owns it and gives it back with
 * the same size. */
void *tarn__alloc(size_t bytes);
void tarn__release(void *memory, size_t bytes);

/* Memory for storages: aligned, not zeroed, and no error raised when there is none (the pool tries again first). */
void *tarn__alloc_aligned(size_t bytes);

/* A copy of a text, and giving it back (NULL is allowed). NULL with an error raised when there is no memory. */
char *tarn__text_copy(const char *text);
void tarn__text_release(char *text);

/* Bytes that are out at the moment. */
int64_t tarn__memory_held(void);

#endif
