/* memory.h: host memory and growing arrays. Every byte goes through the caller's allocator (tarn_set_allocator()),
 * which needs the size at release: each owner stores the size of what it allocated. */
#ifndef TARN__MEMORY_H
#define TARN__MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Alignment of storages in bytes: two cache lines, and enough for the vector loads of every device. */
#define TARN__ALIGNMENT 256

/* Zeroed memory for the library's own records; NULL with an error raised when there is none. The caller owns it and
 * releases it with the same size; releasing NULL does nothing. */
void *tarn__alloc(size_t bytes);
void tarn__release(void *memory, size_t bytes);

/* For records that a caller may use after free by mistake (tensor headers): they stay readable until
 * TARN__QUARANTINE more were released this way, in a debug build forever; with a caller's allocator until
 * tarn_empty_cache() at the latest. All such records have one size. They do not count as in use. */
#define TARN__QUARANTINE 65536
void tarn__release_late(void *memory, size_t bytes);

/* Returns the records in quarantine to a caller's allocator; those of the C library stay. */
void tarn__quarantine_flush(void);

/* Memory for storages, aligned to TARN__ALIGNMENT and not zeroed. NULL without an error when there is none, because
 * the pool frees its cache and tries again first. */
void *tarn__alloc_aligned(size_t bytes);

/* A copy of a string, owned by the caller, and its release (NULL is allowed). NULL with an error when out of memory. */
char *tarn__string_copy(const char *text);
void tarn__string_free(char *text);

/* Bytes allocated and not yet released. */
int64_t tarn__memory_in_use(void);

/* ---- growing arrays ---------------------------------------------------------------------------------------------- */

/* Grows an array of `count` elements of `each` bytes, with space for *capacity, so that `more` elements fit: to at
 * least twice the capacity and at least `min` elements. Updates *array (a pointer to a pointer) and *capacity; elements
 * beyond `count` are zero. False with an error, and nothing changed. The owner releases the array by tarn__release()
 * with *capacity · each bytes. */
bool tarn__array_reserve(void *array, size_t count, size_t *capacity, size_t more, size_t each, size_t min);

/* The same for one more element of an array that is counted in ints; the first capacity is 32, or `min`. */
bool tarn__list_reserve(void *array, int count, int *capacity, size_t each);
bool tarn__list_reserve_min(void *array, int count, int *capacity, size_t each, int min);

#endif
