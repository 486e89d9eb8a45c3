/* blas_library.c: loads OpenBLAS at the first matmul that wants it, not at program start: on load it starts a thread
 * per core and maps their work buffers in a loop that never gives up. Without that much address space left it is not
 * loaded. */
#define _GNU_SOURCE
#include "backends/cpu/matmul/blas_library.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/os/platform.h"

#if TARN__HAVE_OPENBLAS

#define LIBRARY_BYTES ((size_t)64 << 20) /* its file, and the Fortran libraries it depends on */
#define STACK_BYTES ((size_t)8 << 20)

#if TARN__OPENBLAS_IS_LINKED

int omp_get_max_threads(void) __attribute__((weak));
void omp_set_num_threads(int count) __attribute__((weak));
void *blas_memory_alloc(int purpose) __attribute__((weak));
void blas_memory_free(void *buffer) __attribute__((weak));

bool tarn__blas_library_load(tarn__blas_library *library)
{
    *library = (tarn__blas_library){.sgemm = cblas_sgemm,
                                    .dgemm = cblas_dgemm,
                                    .corename = openblas_get_corename,
                                    .parallel = openblas_get_parallel,
                                    .threads = openblas_get_num_threads,
                                    .set_threads = openblas_set_num_threads,
                                    .memory_alloc = blas_memory_alloc,
                                    .memory_free = blas_memory_free,
                                    .omp_max_threads = omp_get_max_threads,
                                    .omp_set_threads = omp_set_num_threads};
    return true;
}

#else

/* Threads OpenBLAS will start besides the caller's: it reads this variable on load. */
static size_t extra_threads(void)
{
    const char *text = getenv("OPENBLAS_NUM_THREADS");
    long asked = text ? strtol(text, NULL, 10) : 0, cores = sysconf(_SC_NPROCESSORS_ONLN);
    long count = asked > 0 && asked < cores ? asked : cores;
    return count > 1 ? (size_t)count - 1 : 0;
}

/* NULL where the library lacks the symbol. */
static void *function(const char *name)
{
    char why[256];
    return tarn__platform_symbol(TARN__OPENBLAS_FILE, name, why, sizeof(why));
}

bool tarn__blas_library_load(tarn__blas_library *library)
{
    char why[256];
    *library = (tarn__blas_library){0};
    if (!tarn__platform_can_map(LIBRARY_BYTES + extra_threads() * (TARN__BLAS_BUFFER + STACK_BYTES)))
        return false;
    void *sgemm = tarn__platform_symbol(TARN__OPENBLAS_FILE, "cblas_sgemm", why, sizeof(why));
    if (!sgemm) {
        tarn__log(TARN_LOG_WARNING, "OpenBLAS is not used, matmul is slower: %s", why);
        return true;
    }
    /* ISO C has no conversion from object to function pointers; POSIX guarantees the same representation. */
    const struct {
        void *to, *from;
    } entries[] = {{&library->sgemm, sgemm},
                   {&library->dgemm, function("cblas_dgemm")},
                   {&library->corename, function("openblas_get_corename")},
                   {&library->parallel, function("openblas_get_parallel")},
                   {&library->threads, function("openblas_get_num_threads")},
                   {&library->set_threads, function("openblas_set_num_threads")},
                   {&library->memory_alloc, function("blas_memory_alloc")},
                   {&library->memory_free, function("blas_memory_free")},
                   {&library->omp_max_threads, function("omp_get_max_threads")},
                   {&library->omp_set_threads, function("omp_set_num_threads")}};
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
        memcpy(entries[i].to, &entries[i].from, sizeof(void *));
    return true;
}

#endif
#endif
