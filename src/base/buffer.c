/* buffer.c: growing arrays (buffer.h). A buffer that is all zero owns nothing, so freeing it twice is harmless. */
#include "base/buffer.h"

#include <string.h>

#include "base/memory.h"

#define FIRST_CAPACITY 16

bool tarn__buffer_reserve(tarn__buffer *buffer, size_t more, size_t element)
{
    return more <= buffer->capacity - buffer->count ||
           tarn__array_reserve(&buffer->data, buffer->count, &buffer->capacity, more, element, FIRST_CAPACITY);
}

bool tarn__buffer_add(tarn__buffer *buffer, const void *from, size_t count, size_t element)
{
    if (!tarn__buffer_reserve(buffer, count, element))
        return false;
    if (count)
        memcpy(buffer->data + buffer->count * element, from, count * element);
    buffer->count += count;
    return true;
}

void tarn__buffer_free(tarn__buffer *buffer, size_t element)
{
    tarn__release(buffer->data, buffer->capacity * element);
    *buffer = (tarn__buffer){0};
}
