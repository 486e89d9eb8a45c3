/* blas.h: OpenBLAS for the command: whether it is available, and direct calls as a baseline of `tarn bench matmul`. */
#ifndef TARN__CLI_BLAS_H
#define TARN__CLI_BLAS_H

#include <stdbool.h>
#include <stdint.h>

/* Keeps OpenBLAS from starting a thread per core when it is loaded: the library calls it on its own threads. Must be
 * the first call of the command. */
void tarn__blas_start_no_threads(void);

/* NULL when OpenBLAS can be loaded; else the reason, which stays valid for the life of the process. */
const char *tarn__blas_missing(void);

/* True when the work buffers of that many threads fit into memory: OpenBLAS retries a failed mapping forever. */
bool tarn__blas_fits(int threads);

/* Row-major n x n matmuls c = a @ b, with the number of threads set; only if OpenBLAS is not missing. */
void tarn__blas_set_threads(int count);
void tarn__blas_square_f32(int64_t n, const float *a, const float *b, float *c);
void tarn__blas_square_f64(int64_t n, const double *a, const double *b, double *c);

#endif
