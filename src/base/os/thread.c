/* thread.c: a small thread pool behind tarn__parallel_for().
 *
 * One job at a time. A job is published by writing it, opening `entry` and incrementing `generation`; workers enter
 * by incrementing `entry`, run chunks, and increment `left`. Each thread has a share of the chunks, the same one in
 * every job of a size, so that data an operation left in a core's cache is used by the next; a thread that is done
 * with its share steals from the others'. The owner closes `entry` when no chunk is left and waits only for the
 * workers that entered: a worker that slept through a short job costs nothing. A worker spins briefly before it
 * sleeps, so that back-to-back operations do not pay for a wake-up each. A caller that finds the pool busy (another
 * thread, or a nested call) runs its chunks itself; the results are the same. */
#include "base/os/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"

#define MAX_THREADS 256
#define SPINS 4000
#define CLOSED (1 << 30)

typedef struct job {
    int64_t n, grain, chunks;
    tarn__range_fn fn;
    void *ctx;
    int threads; /* threads that may run chunks, the owner included */
} job;

/* The chunks of one thread, from `next` to `end`; on a cache line of its own. */
typedef struct share {
    _Alignas(64) _Atomic int64_t next;
    int64_t end;
} share;

static struct {
    pthread_mutex_t owner; /* held by the thread whose job runs */
    pthread_mutex_t lock;  /* guards sleeping and waking */
    pthread_cond_t wake;
    int started;  /* worker threads that exist */
    int sleeping; /* under lock */
    job job;      /* written while entry is closed */
    share shares[MAX_THREADS];
    _Atomic uint64_t generation;
    _Atomic int entry; /* workers that entered, and CLOSED */
    _Atomic int left;  /* of these, those that are done */
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .entry = CLOSED};

static _Atomic int wanted; /* 0: one per core */
static _Thread_local bool inside_chunk;

static int core_count(void)
{
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : (int)count;
}

int tarn_threads(void)
{
    int count = atomic_load_explicit(&wanted, memory_order_relaxed);
    if (count == 0) {
        const char *text = getenv("TARN_THREADS");
        long asked = text ? strtol(text, NULL, 10) : 0;
        int chosen = asked >= 1 && asked <= MAX_THREADS ? (int)asked : core_count();
        if (atomic_compare_exchange_strong_explicit(&wanted, &count, chosen, memory_order_relaxed,
                                                    memory_order_relaxed))
            count = chosen; /* else tarn_set_threads() came first, and `count` is its value */
    }
    return count;
}

bool tarn_set_threads(int count)
{
    if (count < 0 || count > MAX_THREADS)
        return tarn__raise(TARN_ERROR_ARGUMENT, "set_threads: the count is %d; expected 0 to %d", count, MAX_THREADS);
    atomic_store_explicit(&wanted, count ? count : core_count(), memory_order_relaxed);
    return true;
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* Runs chunks of one share until it is empty. The first load avoids a write to a line that other threads poll. */
static void run_share(const job *work, share *from)
{
    while (atomic_load_explicit(&from->next, memory_order_relaxed) < from->end) {
        int64_t k = atomic_fetch_add_explicit(&from->next, 1, memory_order_relaxed);
        if (k >= from->end)
            break;
        int64_t begin = k * work->grain, end = begin + work->grain;
        work->fn(begin, end < work->n ? end : work->n, work->ctx);
    }
}

/* Runs thread `self`'s share, then helps with the others'. */
static void run_chunks(const job *work, int self)
{
    inside_chunk = true;
    for (int i = 0; i < work->threads; i++)
        run_share(work, &pool.shares[(self + i) % work->threads]);
    inside_chunk = false;
}

static void assign_shares(const job *work)
{
    for (int i = 0; i < work->threads; i++) {
        atomic_store_explicit(&pool.shares[i].next, work->chunks * i / work->threads, memory_order_relaxed);
        pool.shares[i].end = work->chunks * (i + 1) / work->threads;
    }
}

/* Spins for a new generation, then sleeps. Returns the generation seen. */
static uint64_t wait_for_job(uint64_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        uint64_t now = atomic_load_explicit(&pool.generation, memory_order_acquire);
        if (now != seen)
            return now;
        pause_briefly();
    }
    pthread_mutex_lock(&pool.lock);
    pool.sleeping++;
    uint64_t now;
    while ((now = atomic_load_explicit(&pool.generation, memory_order_acquire)) == seen)
        pthread_cond_wait(&pool.wake, &pool.lock);
    pool.sleeping--;
    pthread_mutex_unlock(&pool.lock);
    return now;
}

/* Workers are numbered from 1; 0 is the owner of the job. A worker may miss a job that was published before it was
 * ready. */
static void *worker(void *argument)
{
    int self = (int)(uintptr_t)argument;
    uint64_t seen = 0;
    for (;;) {
        seen = wait_for_job(seen);
        int ticket = atomic_fetch_add_explicit(&pool.entry, 1, memory_order_acq_rel);
        if (ticket & CLOSED)
            continue;
        if (self < pool.job.threads)
            run_chunks(&pool.job, self);
        atomic_fetch_add_explicit(&pool.left, 1, memory_order_release);
    }
    return NULL;
}

/* The child of a fork has no workers, and its locks may be copies of locked ones. */
static void forget_workers(void)
{
    pthread_mutex_init(&pool.owner, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pool.started = pool.sleeping = 0;
    atomic_store(&pool.entry, CLOSED);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_workers);
}

/* Called under the owner lock while no job runs. Fewer workers than wanted is not an error: the caller runs the
 * chunks. */
static void start_workers(int count)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_attr_t attributes;
    if (pool.started >= count || pthread_once(&once, watch_forks) != 0 || pthread_attr_init(&attributes) != 0)
        return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    while (pool.started < count &&
           pthread_create(&thread, &attributes, worker, (void *)(uintptr_t)(pool.started + 1)) == 0)
        pool.started++;
    pthread_attr_destroy(&attributes);
}

static void wake_workers(void)
{
    pthread_mutex_lock(&pool.lock);
    if (pool.sleeping > 0)
        pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
}

static void run_alone(int64_t n, int64_t grain, tarn__range_fn fn, void *ctx)
{
    for (int64_t begin = 0; begin < n; begin += grain)
        fn(begin, begin + grain < n ? begin + grain : n, ctx);
}

void tarn__parallel_for(int64_t n, int64_t grain, tarn__range_fn fn, void *ctx)
{
    if (n <= 0)
        return;
    int threads = n > grain ? tarn_threads() : 1;
    if (threads == 1 || inside_chunk || pthread_mutex_trylock(&pool.owner) != 0) {
        run_alone(n, grain, fn, ctx);
        return;
    }
    start_workers(threads - 1);
    pool.job = (job){n, grain, (n + grain - 1) / grain, fn, ctx, threads};
    assign_shares(&pool.job);
    atomic_store_explicit(&pool.left, 0, memory_order_relaxed);
    atomic_store_explicit(&pool.entry, 0, memory_order_release);
    atomic_fetch_add_explicit(&pool.generation, 1, memory_order_release);
    wake_workers();
    run_chunks(&pool.job, 0);
    int entered = atomic_fetch_or_explicit(&pool.entry, CLOSED, memory_order_acq_rel);
    while (atomic_load_explicit(&pool.left, memory_order_acquire) < entered)
        pause_briefly();
    pthread_mutex_unlock(&pool.owner);
}
