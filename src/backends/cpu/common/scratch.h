/* scratch.h: scratch memory cut into pieces: tables and buffers of a call, and a slot for each piece of work that may
 * run at once. */
#ifndef TARN__CPU_SCRATCH_H
#define TARN__CPU_SCRATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "backends/cpu/runtime/level.h"

/* Room for as many pieces of work as run at once. Which piece gets which makes no difference to it. */
typedef struct slots {
    char *memory;
    size_t bytes; /* of one */
    int count;
    _Atomic int *taken; /* 1: in use */
    bool *used;         /* was taken before, by this call: what it holds is the last piece's */
} slots;

/* `used` may be NULL. */
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

static inline void slot_release(const slots *s, int which)
{
    atomic_store_explicit(&s->taken[which], 0, memory_order_release);
}

/* Hands out pieces of the scratch one after the other, aligned; with no memory it only counts. */
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

/* The last piece. Threads may have become more since the scratch was counted: there are as many slots as fit. */
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

/* As many slots as pieces that can run at once. */
static inline int slot_count(int64_t pieces)
{
    int threads = tarn_threads();
    return pieces < 1 ? 1 : pieces < threads ? (int)pieces : threads;
}

#endif
