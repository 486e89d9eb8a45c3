/* scratch.h: a call's scratch memory as an arena: tables and buffers of the call, then slots for tasks that run at
 * the same time. prepare() lays it out as offsets; run() adds the address of scratch, which belongs to the caller and
 * is uninitialized. */
#ifndef TARN__CPU_SCRATCH_H
#define TARN__CPU_SCRATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "backends/cpu/runtime/level.h"

/* One buffer per concurrently running task. Any task may get any slot: contents never affect results. */
typedef struct slots {
    size_t offset; /* in scratch: flags, then buffers */
    size_t bytes;  /* per slot */
    int count;
    /* addresses, set by slots_init() */
    char *memory;
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

static inline size_t round_up_64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Lays out 64-byte aligned buffers in order. */
typedef struct arena {
    char *memory; /* of arena_alloc(); NULL: it only counts */
    size_t used;
} arena;

/* Offset of the next buffer. */
static inline size_t arena_reserve(arena *c, size_t bytes)
{
    size_t offset = c->used;
    c->used += round_up_64(bytes);
    return offset;
}

/* Address of the next buffer, for the buffers of a task inside its slot. */
static inline void *arena_alloc(arena *c, size_t bytes)
{
    size_t offset = arena_reserve(c, bytes);
    return c->memory ? c->memory + offset : NULL;
}

static inline size_t slot_flags_bytes(int count)
{
    return round_up_64(sizeof(_Atomic int) * (size_t)count) + round_up_64(sizeof(bool) * (size_t)count);
}

static inline slots arena_slots(arena *c, size_t bytes, int count)
{
    slots s = {.bytes = round_up_64(bytes), .count = count};
    s.offset = arena_reserve(c, slot_flags_bytes(count) + s.bytes * (size_t)count);
    return s;
}

/* Marks all slots free. */
static inline void slots_init(slots *s, void *scratch)
{
    char *flags = (char *)scratch + s->offset;
    s->taken = (void *)flags;
    s->used = (void *)(flags + round_up_64(sizeof(*s->taken) * (size_t)s->count));
    s->memory = flags + slot_flags_bytes(s->count);
    for (int i = 0; i < s->count; i++)
        atomic_init(&s->taken[i], 0), s->used[i] = false;
}

/* Slots for tasks that can run at once: at most one per thread. */
static inline int slot_count(int64_t pieces)
{
    int threads = tarn_threads();
    return pieces < 1 ? 1 : pieces < threads ? (int)pieces : threads;
}

#endif
