/* blas_library.h: the functions of OpenBLAS that tarn calls. */
#ifndef TARN__CPU_BLAS_LIBRARY_H
#define TARN__CPU_BLAS_LIBRARY_H

#include <stdbool.h>

#include "tarn_features.h"

#if TARN__HAVE_OPENBLAS

#include <cblas.h>

/* All NULL: the library is not available. */
typedef struct tarn__blas_library {
    void (*sgemm)(enum CBLAS_ORDER, enum CBLAS_TRANSPOSE, enum CBLAS_TRANSPOSE, blasint, blasint, blasint, float,
                  const float *, blasint, const float *, blasint, float, float *, blasint);
    void (*dgemm)(enum CBLAS_ORDER, enum CBLAS_TRANSPOSE, enum CBLAS_TRANSPOSE, blasint, blasint, blasint, double,
                  const double *, blasint, const double *, blasint, double, double *, blasint);
    char *(*corename)(void);
    int (*parallel)(void), (*threads)(void);
    void (*set_threads)(int);
    void *(*memory_alloc)(int); /* work buffer of one call; NULL where not exported */
    void (*memory_free)(void *);
    int (*omp_max_threads)(void); /* NULL where the build has no OpenMP */
    void (*omp_set_threads)(int);
} tarn__blas_library;

/* Bytes of one call's work buffer, mapped once and kept; the largest that OpenBLAS is built with. */
#define TARN__BLAS_BUFFER ((size_t)128 << 20)

/* Loads the library, once per process. False where the memory for it is not available: OpenBLAS would wait for it
 * forever. Where it is not installed: true, with an all-NULL `library` and a logged warning. */
bool tarn__blas_library_load(tarn__blas_library *library);

#endif
#endif
