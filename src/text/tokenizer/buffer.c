/* buffer.c: growing arrays, results for callers, and the hash. */
#include "text/tokenizer/buffer.h"

#include <stdalign.h>
#include <string.h>
#include <tarn/text.h>

#include "base/error.h"
#include "base/memory.h"

/* At least 16 elements and at least twice the last capacity. The limit keeps all later products below SIZE_MAX. */
bool tarn__buffer_reserve(tarn__buffer *buffer, size_t more, size_t element)
{
    if (more <= buffer->capacity - buffer->count)
        return true;
    if (more > SIZE_MAX / 4 / element - buffer->count)
        return tarn__raise(TARN_ERROR_MEMORY, "out of host memory: a text is too long");
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

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Keeps the result aligned for any type. */
#define HEADER_BYTES (sizeof(max_align_t) > sizeof(size_t) ? sizeof(max_align_t) : sizeof(size_t))

void *tarn__result_new(size_t bytes)
{
    char *memory = tarn__alloc(HEADER_BYTES + bytes);
    if (!memory)
        return NULL;
    memcpy(memory, &bytes, sizeof(bytes));
    return memory + HEADER_BYTES;
}

void tarn_tokenizer_release(void *result)
{
    size_t bytes;
    if (!result)
        return;
    char *memory = (char *)result - HEADER_BYTES;
    memcpy(&bytes, memory, sizeof(bytes));
    tarn__release(memory, HEADER_BYTES + bytes);
}

/* ---- hash -------------------------------------------------------------------------------------------------------- */

/* Eight bytes at a time, multiplied and folded. Bytes are assembled little-endian, not loaded, so that the hash does
 * not depend on the machine; token files store it. */
static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

uint64_t tarn__hash(const void *bytes, size_t count, uint64_t seed)
{
    const unsigned char *at = bytes;
    uint64_t hash = mix(seed + UINT64_C(0x2545F4914F6CDD1D), count);
    for (; count >= 8; count -= 8, at += 8) {
        uint64_t word = 0;
        for (int i = 0; i < 8; i++)
            word |= (uint64_t)at[i] << (8 * i);
        hash = mix(hash, word);
    }
    uint64_t last = 0;
    for (size_t i = 0; i < count; i++)
        last |= (uint64_t)at[i] << (8 * i);
    return mix(mix(hash, last), hash >> 32);
}
