/* convert_wide.h: loaders into f64 and i64 tiles and storers from them: convert.c puts them into its tables. */
#ifndef TARN__CONVERT_WIDE_H
#define TARN__CONVERT_WIDE_H

#include "backends/cpu/runtime/level.h"

#define TARN__WIDE_LOAD(storage, compute) TARN__AT_WIDE_LEVEL(tarn__load_##storage##_##compute)
#define TARN__WIDE_STORE(compute, storage) TARN__AT_WIDE_LEVEL(tarn__store_##compute##_##storage)
#define TARN__WIDE_BOTH(storage, compute) \
    void TARN__WIDE_LOAD(storage, compute)(const void *src, int64_t stride, void *dst, int64_t n); \
    void TARN__WIDE_STORE(compute, storage)(const void *src, void *dst, int64_t stride, int64_t n);
#define TARN__WIDE_ALL(compute) \
    TARN__WIDE_BOTH(f32, compute) \
    TARN__WIDE_BOTH(f64, compute) \
    TARN__WIDE_BOTH(bf16, compute) \
    TARN__WIDE_BOTH(f16, compute) \
    TARN__WIDE_BOTH(i32, compute) \
    TARN__WIDE_BOTH(i64, compute) TARN__WIDE_BOTH(u8, compute) TARN__WIDE_BOTH(truth, compute)
TARN__WIDE_ALL(f64)
TARN__WIDE_ALL(i64)
#undef TARN__WIDE_ALL
#undef TARN__WIDE_BOTH

#endif
