/* convert_loops.h: the loops of loaders and storers. The includer says before what LOADER(storage, compute) and STORER(compute, storage) are called.
 * The storage of bool is called truth here: bool itself is a macro. */
#ifndef TARN__CONVERT_LOOPS_H
#define TARN__CONVERT_LOOPS_H

#include "backends/cpu/convert.h"

#define TARN__LOAD(storage, storage_type, compute, compute_type, value)                                            \
    LOADER(storage, compute)(const void *src, int64_t stride, void *dst, int64_t n) {   \
        const storage_type *restrict from = src;                                                                   \
        compute_type *restrict to = dst;                                                                           \
        if (stride == 1) {                                                                                         \
            for (int64_t i = 0; i < n; i++) {                                                                      \
                storage_type x = from[i];                                                                          \
                to[i] = (value);                                                                                   \
            }                                                                                                      \
        } else if (stride == 0 && n > 0) {                                                                         \
            storage_type x = from[0];                                                                              \
            compute_type y = (value);                                                                              \
            for (int64_t i = 0; i < n; i++) to[i] = y;                                                             \
        } else {                                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                                      \
                storage_type x = from[i * stride];                                                                 \
                to[i] = (value);                                                                                   \
            }                                                                                                      \
        }                                                                                                          \
    }

/* store_<compute>_<storage>(src, dst, stride, n): dst[i * stride] = src[i] for i < n; stride is not 0 unless n < 2. src and dst are borrowed and
 * do not overlap. */
#define TARN__STORE(compute, compute_type, storage, storage_type, value)                                           \
    STORER(compute, storage)(const void *src, void *dst, int64_t stride, int64_t n) {  \
        const compute_type *restrict from = src;                                                                   \
        storage_type *restrict to = dst;                                                                           \
        if (stride == 1) {                                                                                         \
            for (int64_t i = 0; i < n; i++) {                                                                      \
                compute_type x = from[i];                                                                          \
                to[i] = (value);                                                                                   \
            }                                                                                                      \
        } else {                                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                                      \
                compute_type x = from[i];                                                                          \
                to[i * stride] = (value);                                                                          \
            }                                                                                                      \
        }                                                                                                          \
    }

#endif
