/* blas.h: GEMM of an external BLAS (OpenBLAS), where the build has one. */
#ifndef TARN__CPU_BLAS_H
#define TARN__CPU_BLAS_H

#include <stdbool.h>
#include <stdint.h>

/* True where the library is usable: installed, runs on the calling thread alone, and has kernels for this processor
 * with vectors of at least `vector_bytes`; a library that does not know the processor falls back to narrow ones, and
 * tarn's own GEMM is faster then. Also true where memory is too low to load it: then tarn__blas_prepare() fails. The
 * answer never changes within a process. Cheap: asked per matmul. */
bool tarn__blas_usable(int vector_bytes);

/* Reserves the memory that calls need, on first use. Must succeed before any call, after tarn__blas_usable(). False
 * with a memory error that names `function`. */
bool tarn__blas_prepare(const char *function);

/* Row-major c (m, n) = alpha · a @ b + beta · c; a transposed operand is stored as its transpose. Sizes and strides
 * fit 31 bits. Borrows all pointers. */
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
