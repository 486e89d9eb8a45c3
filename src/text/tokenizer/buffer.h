/* buffer.h: memory that grows: ids and bytes of any number. */
#ifndef TARN__TEXT_BUFFER_H
#define TARN__TEXT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zero is empty. Elements of one size: the functions take it. */
typedef struct tarn__buffer {
    char *data;
    size_t count, room; /* elements */
} tarn__buffer;

/* Room for `more` elements behind those that are there. False with an error. */
bool tarn__buffer_reserve(tarn__buffer *buffer, size_t more, size_t element);

/* Appends elements. False with an error. */
bool tarn__buffer_add(tarn__buffer *buffer, const void *from, size_t count, size_t element);
void tarn__buffer_free(tarn__buffer *buffer, size_t element);

/* Ids, one at a time: the case that must be quick. */
static inline bool tarn__ids_add(tarn__buffer *ids, int32_t id)
{
    if (ids->count == ids->room && !tarn__buffer_reserve(ids, 1, sizeof(id)))
        return false;
    ((int32_t *)(void *)ids->data)[ids->count++] = id;
    return true;
}

/* Memory for a caller, who gives it back with tarn_tokenizer_release(): its size stands before it. NULL with an error.
 */
void *tarn__result_new(size_t bytes);

/* A number for a piece of memory: the same on every machine. */
uint64_t tarn__hash(const void *bytes, size_t count, uint64_t seed);

#endif
