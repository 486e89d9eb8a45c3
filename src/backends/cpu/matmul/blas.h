/* blas.h: the products of an outside library, where the build has one. */
#ifndef TARN__CPU_BLAS_H
#define TARN__CPU_BLAS_H

#include <stdbool.h>
#include <stdint.h>

/* True when the library is there, runs on the calling thread alone, and has kernels for this processor whose vectors
 * are at least `vector_bytes` wide: a library that does not know the processor falls back to narrow ones, and tarn's
 * own are faster then. Also true when there is no memory to load it: then tarn__blas_prepare() fails. The answer never
 * changes in a process. Cheap: asked for every product. */
bool tarn__blas_usable(int vector_bytes);

/* Gets the memory that products need, at the first one. Comes before any product, after tarn__blas_usable(). False with
 * an error of code memory that names `function`. */
bool tarn__blas_prepare(const char *function);

/* Row-major c (m, n) = alpha · a @ b + beta · c; a transposed operand lies as its transpose. Sizes and strides fit 31
 * bits. */
typedef struct tarn__blas_call {
    bool transpose_a, transpose_b;
    int64_t m, n, k, lda, ldb, ldc;
    double alpha, beta;
    const void *a, *b;
    void *c;
} tarn__blas_call;
void tarn__blas_sgemm(const tarn__blas_call *call);
void tarn__blas_dgemm(const tarn__blas_call *call);

#endif
