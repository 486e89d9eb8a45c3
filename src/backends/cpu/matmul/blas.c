/* blas.c: OpenBLAS behind a small interface. tarn owns the threads: every call runs on the calling thread.
 *
 * OpenBLAS maps a work buffer per concurrent call, keeps it for later calls, and retries a failed mapping forever.
 * So calls share buffers that are known to exist: they are mapped here, a few at a time, after a check that the
 * memory is available, and while no call runs. Where one more cannot be mapped, calls wait for earlier ones; results
 * are bitwise identical. */
#include "backends/cpu/matmul/blas.h"

#include "backends/cpu/matmul/blas_library.h"
#include "base/error.h"

#if TARN__HAVE_OPENBLAS

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <tarn/base.h>

#include "base/os/platform.h"

#define BUILT_WITH_OPENMP 2
#define MAX_BUFFERS 64
#define MARGIN ((size_t)32 << 20) /* what other threads may allocate between check and mapping */

static tarn__blas_library library;
static bool is_loaded;   /* false: not enough memory to load it */
static int vector_width; /* vector bytes of its kernels */
static bool uses_openmp;

/* Invariant: idle plus the number of running calls equals count, except while a thread grows the set. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    _Atomic int idle;    /* buffers not in use; also acquired without the lock */
    _Atomic int waiting; /* threads waiting for an idle buffer */
    int count;           /* existing buffers; under lock */
    bool is_final;       /* no more can be mapped; under lock */
    bool is_growing;     /* a thread is collecting all buffers; under lock */
} buffers = {.lock = PTHREAD_MUTEX_INITIALIZER, .freed = PTHREAD_COND_INITIALIZER};

/* ---- the library ------------------------------------------------------------------------------------------------- */

/* Kernel sets with vectors wider than 16 bytes; every other core, ARM included, counts as 16. */
static int width_of(const char *core)
{
    static const char *const by_64[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    static const char *const by_32[] = {"Haswell", "Zen", "Excavator"};
    for (size_t i = 0; i < sizeof(by_64) / sizeof(by_64[0]); i++)
        if (strcmp(core, by_64[i]) == 0)
            return 64;
    for (size_t i = 0; i < sizeof(by_32) / sizeof(by_32[0]); i++)
        if (strcmp(core, by_32[i]) == 0)
            return 32;
    return 16;
}

/* After fork() the child has none of the threads that were in a call. */
static void reset_after_fork(void)
{
    pthread_mutex_init(&buffers.lock, NULL);
    pthread_cond_init(&buffers.freed, NULL);
    atomic_store(&buffers.idle, buffers.count);
    atomic_store(&buffers.waiting, 0);
    buffers.is_growing = false;
}

/* Once per process. Missing symbols leave vector_width 0: the library is never used then. */
static void load_library(void)
{
    is_loaded = tarn__blas_library_load(&library);
    if (!library.sgemm || !library.dgemm || !library.corename || !library.parallel || !library.threads ||
        !library.set_threads)
        return;
    pthread_atfork(NULL, NULL, reset_after_fork);
    vector_width = width_of(library.corename());
    uses_openmp = library.parallel() == BUILT_WITH_OPENMP;
}

bool tarn__blas_usable(int vector_bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_library);
    if (!is_loaded)
        return true; /* tarn__blas_prepare() raises the error */
    if (vector_width < vector_bytes || (uses_openmp && (!library.omp_max_threads || !library.omp_set_threads)))
        return false;
    /* The host program may have changed it since. */
    if (!uses_openmp && library.threads() != 1)
        library.set_threads(1);
    return true;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* Maps `want` buffers, of which `have` exist, while no call runs; returns how many exist then. Beyond the first they
 * take at most a quarter of the remaining address space: tensors need some, too. */
static int map_buffers(int have, int want)
{
    void *mapped[MAX_BUFFERS];
    int count = 0;
    while (count < want &&
           (count < have || tarn__platform_can_map(count == 0 ? TARN__BLAS_BUFFER + MARGIN : 4 * TARN__BLAS_BUFFER))) {
        mapped[count] = library.memory_alloc ? library.memory_alloc(0) : NULL;
        count++;
    }
    for (int i = 0; i < count && library.memory_free; i++)
        library.memory_free(mapped[i]);
    return count;
}

/* Lock-free fast path. */
static bool acquire_idle(void)
{
    int idle = atomic_load_explicit(&buffers.idle, memory_order_relaxed);
    while (idle > 0)
        if (atomic_compare_exchange_weak_explicit(&buffers.idle, &idle, idle - 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

/* Under the lock. */
static void wait_for_idle(void)
{
    atomic_fetch_add(&buffers.waiting, 1);
    while (!acquire_idle())
        pthread_cond_wait(&buffers.freed, &buffers.lock);
    atomic_fetch_sub(&buffers.waiting, 1);
}

/* Under the lock. Acquires all buffers, so that no call runs, maps more, and releases all but `in_use`. */
static void grow(int want, int in_use)
{
    want = want < MAX_BUFFERS ? want : MAX_BUFFERS;
    buffers.is_growing = true;
    for (int i = 0; i < buffers.count; i++)
        wait_for_idle();
    int count = map_buffers(buffers.count, want);
    /* Fewer than wanted: no more memory; try no further. */
    buffers.is_final = count > 0 && (count < want || want == MAX_BUFFERS);
    buffers.count = count;
    buffers.is_growing = false;
    atomic_store(&buffers.idle, count - (count > 0 ? in_use : 0));
    pthread_cond_broadcast(&buffers.freed);
}

bool tarn__blas_prepare(const char *function)
{
    if (!is_loaded)
        return tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory: OpenBLAS cannot be loaded", function);
    pthread_mutex_lock(&buffers.lock);
    if (buffers.count == 0)
        grow(tarn_threads(), 0);
    bool is_ready = buffers.count > 0;
    pthread_mutex_unlock(&buffers.lock);
    return is_ready || tarn__raise(TARN_ERROR_MEMORY, "%s: out of host memory: OpenBLAS needs %zu MiB of address space",
                                   function, (TARN__BLAS_BUFFER + MARGIN) >> 20);
}

/* Acquires a buffer; only after tarn__blas_prepare() has succeeded. */
static void acquire_buffer(void)
{
    if (acquire_idle())
        return;
    pthread_mutex_lock(&buffers.lock);
    if (buffers.is_final || buffers.is_growing)
        wait_for_idle();
    else if (!acquire_idle())
        grow(2 * buffers.count, 1);
    pthread_mutex_unlock(&buffers.lock);
}

/* Wakes waiters only where there are some. */
static void release_buffer(void)
{
    atomic_fetch_add(&buffers.idle, 1);
    if (atomic_load(&buffers.waiting) == 0)
        return;
    pthread_mutex_lock(&buffers.lock);
    pthread_cond_broadcast(&buffers.freed);
    pthread_mutex_unlock(&buffers.lock);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* An OpenMP build takes its thread count from the calling thread's OpenMP setting, which belongs to the host
 * program: saved for one call and restored. */
static int enter(void)
{
    acquire_buffer();
    if (!uses_openmp)
        return 0;
    int threads = library.omp_max_threads();
    library.omp_set_threads(1);
    return threads;
}

static void leave(int threads)
{
    if (uses_openmp)
        library.omp_set_threads(threads);
    release_buffer();
}

void tarn__blas_sgemm(const tarn__blas_call *c)
{
    int threads = enter();
    library.sgemm(CblasRowMajor, c->transpose_a ? CblasTrans : CblasNoTrans, c->transpose_b ? CblasTrans : CblasNoTrans,
                  (blasint)c->m, (blasint)c->n, (blasint)c->k, (float)c->alpha, c->a, (blasint)c->lda, c->b,
                  (blasint)c->ldb, (float)c->beta, c->c, (blasint)c->ldc);
    leave(threads);
}

void tarn__blas_dgemm(const tarn__blas_call *c)
{
    int threads = enter();
    library.dgemm(CblasRowMajor, c->transpose_a ? CblasTrans : CblasNoTrans, c->transpose_b ? CblasTrans : CblasNoTrans,
                  (blasint)c->m, (blasint)c->n, (blasint)c->k, c->alpha, c->a, (blasint)c->lda, c->b, (blasint)c->ldb,
                  c->beta, c->c, (blasint)c->ldc);
    leave(threads);
}

#else

bool tarn__blas_usable(int vector_bytes)
{
    (void)vector_bytes;
    return false;
}

bool tarn__blas_prepare(const char *function)
{
    return tarn__raise(TARN_ERROR_INTERNAL, "%s: built without OpenBLAS", function);
}

void tarn__blas_sgemm(const tarn__blas_call *call)
{
    (void)call;
}

void tarn__blas_dgemm(const tarn__blas_call *call)
{
    (void)call;
}

#endif
