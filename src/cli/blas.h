/* blas.h: OpenBLAS as the command sees it: whether it is here, and called directly to compare with. */
#ifndef TARN__CLI_BLAS_H
#define TARN__CLI_BLAS_H

#include <stdbool.h>
#include <stdint.h>

/* OpenBLAS starts a thread per core as it is loaded; the library calls it on its own threads. First thing in the
 * command. */
void tarn__blas_start_no_threads(void);

/* NULL when OpenBLAS can be loaded; otherwise the reason why not, which stays for the program's life. */
const char *tarn__blas_missing(void);

/* True when its threads' work buffers fit: OpenBLAS repeats a mapping that fails forever. */
bool tarn__blas_fits(int threads);

/* Row-major n x n products c = a @ b, by as many threads as were set; only where it is not missing. */
void tarn__blas_set_threads(int count);
void tarn__blas_square_f32(int64_t n, const float *a, const float *b, float *c);
void tarn__blas_square_f64(int64_t n, const double *a, const double *b, double *c);

#endif
