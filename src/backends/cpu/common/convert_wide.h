/* convert_wide.h: loaders into f64 and i64 tiles and storers from them: convert.c puts them into its tables. */
#ifndef TARN__CONVERT_WIDE_H
#define TARN__CONVERT_WIDE_H

#include "backends/cpu/runtime/level.h"

#define TARN__F64_LOADER(storage, compute) TARN__AT_F64_LEVEL(tarn__load_##storage##_##compute)
#define TARN__F64_STORER(compute, storage) TARN__AT_F64_LEVEL(tarn__store_##compute##_##storage)
#define TARN__F64_PAIR(storage, compute) \
    void TARN__F64_LOADER(storage, compute)(const void *src, int64_t stride, void *dst, int64_t n); \
    void TARN__F64_STORER(compute, storage)(const void *src, void *dst, int64_t stride, int64_t n);
#define TARN__F64_ALL(compute) \
    TARN__F64_PAIR(f32, compute) \
    TARN__F64_PAIR(f64, compute) \
    TARN__F64_PAIR(bf16, compute) \
    TARN__F64_PAIR(f16, compute) \
    TARN__F64_PAIR(i32, compute) \
    TARN__F64_PAIR(i64, compute) TARN__F64_PAIR(u8, compute) TARN__F64_PAIR(truth, compute)
TARN__F64_ALL(f64)
TARN__F64_ALL(i64)
#undef TARN__F64_ALL
#undef TARN__F64_PAIR

#endif
