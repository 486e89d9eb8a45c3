/* memory.c: host memory through the allocator callback, with a count of the bytes in use; the quarantine of tensor
 * headers; strings; growing arrays.
 *
 * The allocator may change only while nothing is in use, so that each block returns to the allocator it came from.
 * Threads: everything but tarn_set_allocator() may be called concurrently. */
#include "base/memory.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/os/platform.h"

/* Large aligned blocks get huge pages where the system has them. */
static void *default_alloc(size_t bytes, size_t alignment, void *ctx)
{
    (void)ctx;
    if (alignment <= _Alignof(max_align_t))
        return malloc(bytes);
    if (bytes >= TARN__LARGE_MEMORY && alignment <= TARN__ALIGNMENT)
        return tarn__platform_large_memory(bytes);
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

/* free() takes all of the memory that default_alloc() returns. */
static void default_release(void *memory, size_t bytes, void *ctx)
{
    (void)bytes;
    (void)ctx;
    free(memory);
}

static tarn_allocator allocator = {default_alloc, default_release, NULL};
static _Atomic int64_t in_use;

/* Bytes are counted as asked for, not as the allocator rounds them, so that releases cancel them exactly. */
static void *allocate(size_t bytes, size_t alignment)
{
    void *memory = allocator.alloc(bytes, alignment, allocator.ctx);
    if (memory)
        atomic_fetch_add_explicit(&in_use, (int64_t)bytes, memory_order_relaxed);
    return memory;
}

/* Zero bytes count as one, so that every allocation has an address. */
void *tarn__alloc(size_t bytes)
{
    void *memory = allocate(bytes ? bytes : 1, _Alignof(max_align_t));
    if (!memory) {
        tarn__raise(TARN_ERROR_MEMORY, "out of host memory: %zu bytes for a record of the library", bytes);
        return NULL;
    }
    return memset(memory, 0, bytes);
}

/* Not zeroed, and no error is raised: callers may free cached memory and try again. */
void *tarn__alloc_aligned(size_t bytes)
{
    return allocate(bytes ? bytes : 1, TARN__ALIGNMENT);
}

/* `bytes` must be those of the allocation: the callback may need them, and the count does. */
void tarn__release(void *memory, size_t bytes)
{
    if (!memory)
        return;
    atomic_fetch_sub_explicit(&in_use, (int64_t)(bytes ? bytes : 1), memory_order_relaxed);
    allocator.release(memory, bytes ? bytes : 1, allocator.ctx);
}

/* ---- quarantine -------------------------------------------------------------------------------------------------- */

static _Atomic size_t late_bytes; /* size of each record in quarantine */

static void end_record(void *memory)
{
    if (memory)
        allocator.release(memory, atomic_load_explicit(&late_bytes, memory_order_relaxed), allocator.ctx);
}

#ifdef NDEBUG

/* A ring of the last TARN__QUARANTINE records. A thread reserves CHUNK slots at a time, so that threads rarely
 * contend for the counter. A slot may come round to another thread before its first owner used it, so slots are
 * exchanged atomically and whatever was there is released. */
enum { CHUNK = 64 };
static _Atomic(void *) ring[TARN__QUARANTINE];
static _Atomic uint32_t next_chunk;

static void *put_into_quarantine(void *memory)
{
    static _Thread_local uint32_t slot; /* a multiple of CHUNK: a new chunk is due */
    if (slot % CHUNK == 0)
        slot = atomic_fetch_add_explicit(&next_chunk, CHUNK, memory_order_relaxed) % TARN__QUARANTINE;
    return atomic_exchange_explicit(&ring[slot++], memory, memory_order_acq_rel);
}

static void empty_quarantine(void)
{
    for (int i = 0; i < TARN__QUARANTINE; i++)
        if (atomic_load_explicit(&ring[i], memory_order_relaxed))
            end_record(atomic_exchange_explicit(&ring[i], NULL, memory_order_acq_rel));
}

#else

typedef struct link {
    struct link *next;
} link;
static _Atomic(link *) quarantine;

static void *put_into_quarantine(void *memory)
{
    link *entry = memory;
    entry->next = atomic_load_explicit(&quarantine, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&quarantine, &entry->next, entry, memory_order_acq_rel,
                                                  memory_order_relaxed))
        ;
    return NULL;
}

static void empty_quarantine(void)
{
    for (link *entry = atomic_exchange_explicit(&quarantine, NULL, memory_order_acq_rel), *next; entry; entry = next) {
        next = entry->next;
        end_record(entry);
    }
}

#endif

/* The record leaves the count of bytes in use at once; the oldest record in quarantine is freed in its place. */
void tarn__release_late(void *memory, size_t bytes)
{
    atomic_fetch_sub_explicit(&in_use, (int64_t)bytes, memory_order_relaxed);
    atomic_store_explicit(&late_bytes, bytes, memory_order_relaxed);
    end_record(put_into_quarantine(memory));
}

void tarn__quarantine_flush(void)
{
    if (allocator.alloc != default_alloc)
        empty_quarantine();
}

/* ---- strings ------------------------------------------------------------------------------------------------- */

char *tarn__string_copy(const char *text)
{
    char *copy = tarn__alloc(strlen(text) + 1);
    return copy ? memcpy(copy, text, strlen(text) + 1) : NULL;
}

void tarn__string_free(char *text)
{
    if (text)
        tarn__release(text, strlen(text) + 1);
}

int64_t tarn__memory_in_use(void)
{
    return atomic_load_explicit(&in_use, memory_order_relaxed);
}

/* NULL restores the default. Must not race with other calls of the library. */
bool tarn_set_allocator(const tarn_allocator *wanted)
{
    if (wanted && (!wanted->alloc || !wanted->release))
        return tarn__raise(TARN_ERROR_ARGUMENT, "set_allocator: both functions are required");
    if (tarn__memory_in_use() != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "set_allocator: %lld bytes of the current allocator are in use; free tensors, modules "
                           "and optimizers and "
                           "call tarn_empty_cache() first",
                           (long long)tarn__memory_in_use());
    empty_quarantine(); /* its records belong to the old allocator */
    allocator = wanted ? *wanted : (tarn_allocator){default_alloc, default_release, NULL};
    return true;
}

/* ---- growing arrays ---------------------------------------------------------------------------------------------- */

#define FIRST_CAPACITY 32

/* Allocates, copies and releases: the allocator callback has no realloc. The limit keeps all later products below
 * SIZE_MAX. */
bool tarn__array_reserve(void *array, size_t count, size_t *capacity, size_t more, size_t each, size_t min)
{
    void *old, *grown;
    if (more <= *capacity - count)
        return true;
    if (more > SIZE_MAX / 4 / each - count)
        return tarn__raise(TARN_ERROR_MEMORY, "out of host memory: an array is too long");
    size_t larger = count + more > 2 * *capacity ? count + more : 2 * *capacity;
    larger = larger < min ? min : larger;
    if (!(grown = tarn__alloc(each * larger)))
        return false;
    memcpy(&old, array, sizeof(old)); /* `array` points to a pointer of any type: no aliasing by assignment */
    if (count > 0)
        memcpy(grown, old, each * count);
    tarn__release(old, each * *capacity);
    memcpy(array, &grown, sizeof(grown));
    *capacity = larger;
    return true;
}

/* For lists with int counts: the same growth, within int. */
bool tarn__list_reserve_min(void *array, int count, int *capacity, size_t each, int min)
{
    if (count < *capacity)
        return true;
    if (*capacity > INT_MAX / 2)
        return tarn__raise(TARN_ERROR_MEMORY, "out of host memory: an array is too long");
    size_t larger = (size_t)*capacity;
    bool good = tarn__array_reserve(array, (size_t)count, &larger, 1, each, (size_t)min);
    *capacity = (int)larger;
    return good;
}

bool tarn__list_reserve(void *array, int count, int *capacity, size_t each)
{
    return tarn__list_reserve_min(array, count, capacity, each, FIRST_CAPACITY);
}
