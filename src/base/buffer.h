/* buffer.h: growing arrays of any element type, for bytes, ids and records.
 *
 * The same growth as tarn__array_reserve() of memory.h, with array, count and capacity in one struct. Counts are
 * size_t: texts and files may exceed 2 GiB. */
#ifndef TARN__BUFFER_H
#define TARN__BUFFER_H

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

#endif
