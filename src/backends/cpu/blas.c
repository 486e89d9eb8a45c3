/* blas.c: OpenBLAS behind a small face. Threads are tarn's business: every call here runs on the thread that makes it. */
#include "backends/cpu/blas.h"

#include "tarn_features.h"

#if TARN__HAVE_OPENBLAS

#include <cblas.h>
#include <pthread.h>
#include <string.h>

/* An OpenMP build of the library takes its thread count from each calling thread's OpenMP setting, which is the host program's. It is
 * set aside for one call and put back. Absent in other builds. */
int omp_get_max_threads(void) __attribute__((weak));
void omp_set_num_threads(int count) __attribute__((weak));

#define BUILT_WITH_OPENMP 2

static int widest; /* bytes of its kernels' vectors */
static bool uses_openmp;

/* Only kernel sets with vectors wider than 16 bytes are named; names of ARM and others' cores fall under the rest. */
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

static void ask_library(void)
{
    widest = width_of(openblas_get_corename());
    uses_openmp = openblas_get_parallel() == BUILT_WITH_OPENMP;
}

bool tarn__blas_suits(int vector_bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask_library);
    if (widest < vector_bytes || (uses_openmp && (!omp_get_max_threads || !omp_set_num_threads)))
        return false;
    if (!uses_openmp && openblas_get_num_threads() != 1)
        openblas_set_num_threads(1);
    return true;
}

static int enter(void)
{
    if (!uses_openmp)
        return 0;
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    return threads;
}

static void leave(int threads)
{
    if (uses_openmp)
        omp_set_num_threads(threads);
}

void tarn__blas_sgemm(const tarn__blas_call *c)
{
    int threads = enter();
    cblas_sgemm(CblasRowMajor, c->transpose_a ? CblasTrans : CblasNoTrans, c->transpose_b ? CblasTrans : CblasNoTrans, (blasint)c->m,
                (blasint)c->n, (blasint)c->k, (float)c->alpha, c->a, (blasint)c->lda, c->b, (blasint)c->ldb, (float)c->beta, c->c,
                (blasint)c->ldc);
    leave(threads);
}

void tarn__blas_dgemm(const tarn__blas_call *c)
{
    int threads = enter();
    cblas_dgemm(CblasRowMajor, c->transpose_a ? CblasTrans : CblasNoTrans, c->transpose_b ? CblasTrans : CblasNoTrans, (blasint)c->m,
                (blasint)c->n, (blasint)c->k, c->alpha, c->a, (blasint)c->lda, c->b, (blasint)c->ldb, c->beta, c->c, (blasint)c->ldc);
    leave(threads);
}

#else

bool tarn__blas_suits(int vector_bytes)
{
    (void)vector_bytes;
    return false;
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
