/* buffer.c: growing arrays (buffer.h). */
#include "base/buffer.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"

/* At least 16 elements and at least twice the last capacity. The limit keeps all later products below SIZE_MAX. */
bool tarn__buffer_reserve(tarn__buffer *buffer, size_t more, size_t element)
{
    if (more <= buffer->capacity - buffer->count)
        return true;
    if (more > SIZE_MAX / 4 / element - buffer->count)
        return tarn__raise(TARN_ERROR_MEMORY, "out of host memory: an array is too long");
    size_t capacity = buffer->count + more > 2 * buffer->capacity ? buffer->count + more : 2 * buffer->capacity;
    capacity = capacity < 16 ? 16 : capacity;
    char *data = tarn__alloc(capacity * element);
    if (!data)
        return false;
    if (buffer->data)
        memcpy(data, buffer->data, buffer->count * element);
    tarn__release(buffer->data, buffer->capacity * element);
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
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
