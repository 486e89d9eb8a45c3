/* blas.c: OpenBLAS, called directly. The library loads OpenBLAS at its first matmul; the command loads it by the same
 * name and gets the same instance, so a thread count set here applies to the library too.
 *
 * Three builds: linked, loaded at run time, or none; in the last one the functions do nothing and tarn__blas_missing()
 * has the reason. Used by the main thread only. */
#define _GNU_SOURCE
#include "cli/blas.h"

#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tarn_features.h"

#define THREAD_BYTES ((size_t)160 << 20) /* per thread: work buffer, stack and a margin */

void tarn__blas_start_no_threads(void)
{
    /* read by OpenBLAS when it is loaded, so it must be set before */
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
}

bool tarn__blas_fits(int threads)
{
    size_t bytes = (size_t)threads * THREAD_BYTES;
    /* a mapping of the same size, undone at once: what fits now is assumed to fit then */
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED && munmap(memory, bytes) == 0;
}

#if TARN__HAVE_OPENBLAS
#include <cblas.h>

/* static builds link it: there is nothing to look up */
#if TARN__OPENBLAS_IS_LINKED

#define FUNCTION(name) name

const char *tarn__blas_missing(void)
{
    return NULL;
}

#else

#include <dlfcn.h>

/* A function by its name, with the type of its declaration. Never NULL after tarn__blas_missing() returned NULL. */
#define FUNCTION(name) (*(__typeof__(name) **)&(void *){symbol(#name)})

/* Stays loaded: the library uses it too. */
static void *library;

const char *tarn__blas_missing(void)
{
    library = library ? library : dlopen(TARN__OPENBLAS_FILE, RTLD_NOW | RTLD_LOCAL);
    if (library)
        return NULL;
    const char *why = dlerror();
    return why ? why : "no reason given";
}

static void *symbol(const char *name)
{
    return tarn__blas_missing() ? NULL : dlsym(library, name);
}

#endif

void tarn__blas_set_threads(int count)
{
    FUNCTION(openblas_set_num_threads)(count);
}

void tarn__blas_square_f32(int64_t n, const float *a, const float *b, float *c)
{
    blasint m = (blasint)n;
    FUNCTION(cblas_sgemm)(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, m, m, 1, a, m, b, m, 0, c, m);
}

void tarn__blas_square_f64(int64_t n, const double *a, const double *b, double *c)
{
    blasint m = (blasint)n;
    FUNCTION(cblas_dgemm)(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, m, m, 1, a, m, b, m, 0, c, m);
}

#else

const char *tarn__blas_missing(void)
{
    return "built without it";
}

void tarn__blas_set_threads(int count)
{
    (void)count;
}

void tarn__blas_square_f32(int64_t n, const float *a, const float *b, float *c)
{
    (void)n, (void)a, (void)b, (void)c;
}

void tarn__blas_square_f64(int64_t n, const double *a, const double *b, double *c)
{
    (void)n, (void)a, (void)b, (void)c;
}

#endif
