/* leaks.c: spares the leak check of the address sanitizer where nothing can have leaked. On AArch64 that check walks
 * 2^28 regions of addresses four times: 4 s at the end of each process, more than most test programs take.
 *
 * The hooks below keep the blocks that are allocated and not yet freed. At the end the sanitizer asks
 * __lsan_is_turned_off: yes, when every block left is reachable from a global variable or from a variable of the last
 * thread, by way of other blocks. The sanitizer starts from the same variables and more, so it would find none of these
 * blocks leaked. Whenever one block is not reached, or the table was too small, the sanitizer looks for itself. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dl_iterate_phdr */
#endif
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__) && defined(__aarch64__)

/* The table is read and written inside malloc() and free(), and roots lie in memory that is not the program's own. */
#define PLAIN __attribute__((no_sanitize("address", "undefined")))

typedef struct block {
    uintptr_t begin, size;
} block;

enum { SLOTS = 1 << 22 }; /* at most three quarters of them taken; a page that is never written takes no memory */

static block *slots; /* open addressing, linear probing; begin 0: free */
static size_t live;
static bool is_lost; /* more blocks than the table holds: nothing can be said */
static atomic_flag lock = ATOMIC_FLAG_INIT;

/* Called by the runtime library of the sanitizer, hence seen from outside. */
#define HOOK __attribute__((visibility("default")))
HOOK void __sanitizer_malloc_hook(const volatile void *pointer, size_t size);
HOOK void __sanitizer_free_hook(const volatile void *pointer);
HOOK int __lsan_is_turned_off(void);
size_t __asan_get_alloc_stack(void *pointer, void **trace, size_t size, int *thread);

PLAIN static void take_lock(void)
{
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire))
        ;
}

PLAIN static void release_lock(void)
{
    atomic_flag_clear_explicit(&lock, memory_order_release);
}

/* A child of fork() has one thread; the lock must not be that of another. */
__attribute__((constructor)) static void guard_fork(void)
{
    pthread_atfork(take_lock, release_lock, release_lock);
}

PLAIN static block *map_blocks(size_t count)
{
    void *memory =
        mmap(NULL, count * sizeof(block), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

PLAIN static size_t home_of(uintptr_t begin)
{
    return (size_t)((begin >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 42) % SLOTS;
}

PLAIN static size_t slot_of(uintptr_t begin) /* the block's own, or the free one where it would go */
{
    size_t i = home_of(begin);
    while (slots[i].begin && slots[i].begin != begin)
        i = (i + 1) % SLOTS;
    return i;
}

PLAIN void __sanitizer_malloc_hook(const volatile void *pointer, size_t size)
{
    if (!pointer)
        return;
    take_lock();
    if (!slots && !is_lost)
        slots = map_blocks(SLOTS);
    is_lost |= !slots || live >= SLOTS / 4 * 3;
    if (!is_lost) {
        size_t i = slot_of((uintptr_t)pointer);
        live += !slots[i].begin;
        slots[i] = (block){(uintptr_t)pointer, size};
    }
    release_lock();
}

PLAIN void __sanitizer_free_hook(const volatile void *pointer)
{
    if (!pointer)
        return;
    take_lock();
    size_t gap = slots && !is_lost ? slot_of((uintptr_t)pointer) : 0;
    if (slots && !is_lost && slots[gap].begin) {
        live--;
        /* Blocks behind the gap move into it unless their home lies between the two. */
        for (size_t i = (gap + 1) % SLOTS; slots[i].begin; i = (i + 1) % SLOTS)
            if ((i - home_of(slots[i].begin)) % SLOTS >= (i - gap) % SLOTS) {
                slots[gap] = slots[i];
                gap = i;
            }
        slots[gap].begin = 0;
    }
    release_lock();
}

/* What is left, in the order of addresses, and how far the search has come: blocks that are reached wait in `found`
 * until they were read themselves. */
typedef struct search {
    block *blocks;
    block *found; /* copies */
    size_t count, found_count;
} search;

#define REACHED ((uintptr_t)1 << 63) /* set in the size of a block */

PLAIN static void note(search *s, uintptr_t address)
{
    size_t low = 0, high = s->count; /* the last block that begins at the address or before it */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (s->blocks[middle].begin <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return;
    block *b = &s->blocks[low - 1];
    uintptr_t size = b->size & ~REACHED;
    if (!(b->size & REACHED) && address - b->begin < (size ? size : 1)) {
        s->found[s->found_count++] = *b;
        b->size |= REACHED;
    }
}

PLAIN static void read_words(search *s, uintptr_t begin, size_t size)
{
    for (uintptr_t at = (begin + 7) & ~(uintptr_t)7; at + sizeof(uintptr_t) <= begin + size; at += sizeof(uintptr_t))
        note(s, *(const uintptr_t *)at);
}

/* The variables of one module that is loaded: globals, and those of this thread. */
PLAIN static int read_module(struct dl_phdr_info *module, size_t size, void *to)
{
    search *s = to;
    if (strstr(module->dlpi_name, "san.so")) /* the sanitizers' own tables keep no block alive */
        return 0;
    for (int i = 0; i < module->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &module->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (part->p_flags & PF_W))
            read_words(s, module->dlpi_addr + part->p_vaddr, part->p_memsz);
        if (part->p_type == PT_TLS && size > offsetof(struct dl_phdr_info, dlpi_tls_data) && module->dlpi_tls_data)
            read_words(s, (uintptr_t)module->dlpi_tls_data, part->p_memsz);
    }
    return 0;
}

/* Blocks of the dynamic linker (variables of threads that are kept for the next thread, say) count as reachable, for
 * the sanitizer, too. */
PLAIN static void find_linker_blocks(search *s)
{
    for (size_t i = 0; i < s->count; i++) {
        block *b = &s->blocks[i];
        void *trace[2]; /* malloc(), and its caller */
        Dl_info caller;
        if (!(b->size & REACHED) && __asan_get_alloc_stack((void *)b->begin, trace, 2, NULL) == 2 &&
            dladdr(trace[1], &caller) && caller.dli_fname && strstr(caller.dli_fname, "/ld-linux"))
            note(s, b->begin);
    }
}

PLAIN static int by_address(const void *a, const void *b)
{
    const block *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

PLAIN static void copy_blocks(search *s)
{
    take_lock();
    for (size_t i = 0; i < SLOTS && s->count < live; i++)
        if (slots[i].begin)
            s->blocks[s->count++] = slots[i];
    release_lock();
    qsort(s->blocks, s->count, sizeof(block), by_address);
}

PLAIN int __lsan_is_turned_off(void)
{
    size_t most = live;
    if (is_lost || !slots)
        return 0;
    search s = {.blocks = map_blocks(most + 1), .found = map_blocks(most + 1)};
    if (!s.blocks || !s.found)
        return 0;
    copy_blocks(&s);
    dl_iterate_phdr(read_module, &s);
    find_linker_blocks(&s);
    for (size_t next = 0; next < s.found_count; next++)
        read_words(&s, s.found[next].begin, s.found[next].size);
    return s.found_count == s.count;
}

#endif
