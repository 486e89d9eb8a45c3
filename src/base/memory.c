/* memory.c: host memory through the allocator callback, with a count of what is out. */
#include "base/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/platform.h"

static void *default_alloc(size_t bytes, size_t alignment, void *ctx)
{
    (void)ctx;
    if (alignment <= _Alignof(max_align_t))
        return malloc(bytes);
    if (bytes >= TARN__LARGE_MEMORY && alignment <= TARN__ALIGNMENT)
        return tarn__platform_large_memory(bytes);
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void default_release(void *memory, size_t bytes, void *ctx)
{
    (void)bytes;
    (void)ctx;
    free(memory);
}

static tarn_allocator allocator = {default_alloc, default_release, NULL};
static _Atomic int64_t held;

static void *take(size_t bytes, size_t alignment)
{
    void *memory = allocator.alloc(bytes, alignment, allocator.ctx);
    if (memory)
        atomic_fetch_add_explicit(&held, (int64_t)bytes, memory_order_relaxed);
    return memory;
}

void *tarn__alloc(size_t bytes)
{
    void *memory = take(bytes ? bytes : 1, _Alignof(max_align_t));
    if (!memory) {
        tarn__raise(TARN_ERROR_MEMORY, "out of host memory: %zu bytes for a record of the library", bytes);
        return NULL;
    }
    return memset(memory, 0, bytes);
}

void *tarn__alloc_aligned(size_t bytes)
{
    return take(bytes ? bytes : 1, TARN__ALIGNMENT);
}

void tarn__release(void *memory, size_t bytes)
{
    if (!memory)
        return;
    atomic_fetch_sub_explicit(&held, (int64_t)(bytes ? bytes : 1), memory_order_relaxed);
    allocator.release(memory, bytes ? bytes : 1, allocator.ctx);
}

char *tarn__text_copy(const char *text)
{
    char *copy = tarn__alloc(strlen(text) + 1);
    return copy ? memcpy(copy, text, strlen(text) + 1) : NULL;
}

void tarn__text_release(char *text)
{
    if (text)
        tarn__release(text, strlen(text) + 1);
}

int64_t tarn__memory_held(void)
{
    return atomic_load_explicit(&held, memory_order_relaxed);
}

bool tarn_set_allocator(const tarn_allocator *wanted)
{
    if (wanted && (!wanted->alloc || !wanted->release))
        return tarn__raise(TARN_ERROR_ARGUMENT, "set_allocator: both functions are required");
    if (tarn__memory_held() != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "set_allocator: %lld bytes of the allocator before are still in use; free tensors, modules and optimizers and "
                           "call tarn_empty_cache() first",
                           (long long)tarn__memory_held());
    allocator = wanted ? *wanted : (tarn_allocator){default_alloc, default_release, NULL};
    return true;
}
