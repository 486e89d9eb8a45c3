/* scratch.h: a call's scratch memory as an arena: tables and buffers of the call, then slots for tasks that run at
 * the same time. Scratch belongs to the caller and is uninitialized; nothing is freed one by one. */
#ifndef TARN__CPU_SCRATCH_H
#define TARN__CPU_SCRATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "backends/cpu/runtime/level.h"

/* One buffer per concurrently running task. Any task may get any slot: contents never affect results. */
typedef struct slots {
    char *memory;
    size_t bytes; /* per slot */
    int count;
    _Atomic int *taken; /* 1: in use */
    bool *used;         /* acquired before by this call: it holds the previous task's data */
} slots;

/* Acquires a free slot, spinning until there is one: usually there are as many slots as threads. `used` may be NULL. */
static inline char *slot_acquire(const slots *s, int *which, bool *used)
{
    for (int i = 0;; i = (i + 1) % s->count)
        if (!atomic_load_explicit(&s->taken[i], memory_order_relaxed) &&
            !atomic_exchange_explicit(&s->taken[i], 1, memory_order_acquire)) {
            *which = i;
            if (used)
                *used = s->used[i];
            s->used[i] = true;
            return s->memory + (size_t)i * s->bytes;
        }
}

/* Release order: the next holder sees what this task wrote, although it does not use it. */
static inline void slot_release(const slots *s, int which)
{
    atomic_store_explicit(&s->taken[which], 0, memory_order_release);
}

/* Allocates 64-byte aligned pieces in order; without memory it only counts bytes, so that one function serves both
 * the size query and the layout. */
typedef struct arena {
    char *memory;
    size_t size, used;
} arena;

static inline size_t round_up_64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static inline void *arena_alloc(arena *c, size_t bytes)
{
    void *block = c->memory ? c->memory + c->used : NULL;
    c->used += round_up_64(bytes);
    return block;
}

static inline size_t slot_flags_bytes(int count)
{
    return round_up_64(sizeof(_Atomic int) * (size_t)count) + round_up_64(sizeof(bool) * (size_t)count);
}

/* The last allocation. Threads may have been added since the scratch was sized: as many slots as fit. */
static inline slots arena_slots(arena *c, size_t bytes, int count)
{
    slots s = {.bytes = round_up_64(bytes), .count = count};
    while (c->memory && s.count > 1 && c->used + slot_flags_bytes(s.count) + s.bytes * (size_t)s.count > c->size)
        s.count--;
    s.taken = arena_alloc(c, sizeof(*s.taken) * (size_t)s.count);
    s.used = arena_alloc(c, sizeof(*s.used) * (size_t)s.count);
    s.memory = arena_alloc(c, s.bytes * (size_t)s.count);
    for (int i = 0; s.taken && i < s.count; i++)
        atomic_init(&s.taken[i], 0), s.used[i] = false;
    return s;
}

/* Slots for tasks that can run at once: at most one per thread. */
static inline int slot_count(int64_t pieces)
{
    int threads = tarn_threads();
    return pieces < 1 ? 1 : pieces < threads ? (int)pieces : threads;
}

#endif
