/* memory.h: host memory, all of it through the caller's allocator. */
#ifndef TARN__MEMORY_H
#define TARN__MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Alignment of storages: a cache line pair, and what every device's vector loads want. */
#define TARN__ALIGNMENT 256

/* Memory for the library's own records, zeroed; NULL with an error raised when there is none. The caller owns it and
 * gives it back with the same size. */
void *tarn__alloc(size_t bytes);
void tarn__release(void *memory, size_t bytes);

/* The same for records that may be used after their end by mistake: they stay readable until TARN__QUARANTINE more were
 * released so, in a debug build forever; under a caller's allocator no longer than until tarn_empty_cache(). All of
 * them have one size. They do not count as held. */
#define TARN__QUARANTINE 65536
void tarn__release_late(void *memory, size_t bytes);

/* Gives a caller's allocator back what is in quarantine; the C library's stays there. */
void tarn__quarantine_flush(void);

/* Memory for storages: aligned, not zeroed, and no error raised when there is none (the pool tries again first). */
void *tarn__alloc_aligned(size_t bytes);

/* A copy of a text, and giving it back (NULL is allowed). NULL with an error raised when there is no memory. */
char *tarn__string_copy(const char *text);
void tarn__string_free(char *text);

/* Bytes that are out at the moment. */
int64_t tarn__memory_in_use(void);

/* ---- growing arrays ---------------------------------------------------------------------------------------------- */

/* Makes room for one more element of `each` bytes in a list that holds `count` and has room for `*room`: *list is then
 * perhaps elsewhere, and twice as long. False with an error, and nothing changed. The list is released by
 * tarn__release() with `*room` times `each` bytes. */
bool tarn__list_reserve(void *list, int count, int *room, size_t each);

#endif
