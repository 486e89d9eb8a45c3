/* buffer.h: growing arrays of ids and bytes, results owned by callers, and the hash of tokenizers.
 *
 * Beside base/memory's list, whose count is an int, a buffer counts in size_t: texts may exceed 2 GiB. */
#ifndef TARN__TEXT_BUFFER_H
#define TARN__TEXT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zero is empty. The element size is not stored: every call on one buffer passes the same size. */
typedef struct tarn__buffer {
    char *data;
    size_t count, capacity; /* elements */
} tarn__buffer;

/* Reserves capacity for `more` elements; it at least doubles, so that appending is O(1) on average. False with an
 * error. */
bool tarn__buffer_reserve(tarn__buffer *buffer, size_t more, size_t element);

/* Appends `count` elements. `from` must not point into the buffer. False with an error. */
bool tarn__buffer_add(tarn__buffer *buffer, const void *from, size_t count, size_t element);
void tarn__buffer_free(tarn__buffer *buffer, size_t element);

/* Appends an id; inline, since encoding spends its time here. */
static inline bool tarn__ids_add(tarn__buffer *ids, int32_t id)
{
    if (ids->count == ids->capacity && !tarn__buffer_reserve(ids, 1, sizeof(id)))
        return false;
    ((int32_t *)(void *)ids->data)[ids->count++] = id;
    return true;
}

/* Memory for a result that the caller frees with tarn_tokenizer_release(); its size is stored before it, since the
 * library's allocator wants it back. NULL with an error. */
void *tarn__result_new(size_t bytes);

/* A 64-bit hash, the same on every machine. Not cryptographic. */
uint64_t tarn__hash(const void *bytes, size_t count, uint64_t seed);

#endif
