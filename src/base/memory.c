/* memory.c: host memory through the allocator callback, with a count of what is out. */
#include "base/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/os/platform.h"

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

/* ---- quarantine -------------------------------------------------------------------------------------------------- */

static _Atomic size_t late_bytes; /* of each record in quarantine */

static void end_record(void *memory)
{
    if (memory)
        allocator.release(memory, atomic_load_explicit(&late_bytes, memory_order_relaxed), allocator.ctx);
}

#ifdef NDEBUG

/* A ring in the order of release. A thread takes CHUNK slots at a time, so that threads seldom meet at the counter; a
 * slot may come round to another thread before its first owner used it, therefore slots are exchanged. */
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

void tarn__release_late(void *memory, size_t bytes)
{
    atomic_fetch_sub_explicit(&held, (int64_t)bytes, memory_order_relaxed);
    atomic_store_explicit(&late_bytes, bytes, memory_order_relaxed);
    end_record(put_into_quarantine(memory));
}

void tarn__quarantine_flush(void)
{
    if (allocator.alloc != default_alloc)
        empty_quarantine();
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

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
    return atomic_load_explicit(&held, memory_order_relaxed);
}

bool tarn_set_allocator(const tarn_allocator *wanted)
{
    if (wanted && (!wanted->alloc || !wanted->release))
        return tarn__raise(TARN_ERROR_ARGUMENT, "set_allocator: both functions are required");
    if (tarn__memory_in_use() != 0)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "set_allocator: %lld bytes of the allocator before are still in use; free tensors, modules "
                           "and optimizers and "
                           "call tarn_empty_cache() first",
                           (long long)tarn__memory_in_use());
    empty_quarantine(); /* its records are the old allocator's */
    allocator = wanted ? *wanted : (tarn_allocator){default_alloc, default_release, NULL};
    return true;
}

/* ---- growing arrays ---------------------------------------------------------------------------------------------- */

#define FIRST_ROOM 32

bool tarn__list_reserve(void *list, int count, int *room, size_t each)
{
    void *old, *wider;
    if (count < *room)
        return true;
    int more = *room ? 2 * *room : FIRST_ROOM;
    if (!(wider = tarn__alloc(each * (size_t)more)))
        return false;
    memcpy(&old, list, sizeof(old)); /* a pointer to elements of any type */
    if (count > 0)
        memcpy(wider, old, each * (size_t)count);
    tarn__release(old, each * (size_t)*room);
    memcpy(list, &wider, sizeof(wider));
    *room = more;
    return true;
}
