/* convert.c: loaders and storers for every pair of a storage dtype and a type computed in, dense and strided. */
#include "backends/cpu/convert.h"

#define TARN__LOAD(storage, storage_type, compute, compute_type, value)                                            \
    static void load_##storage##_##compute(const void *src, int64_t stride, void *dst, int64_t n) {   \
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

TARN__LOAD(f32, float, f32, float, x)
TARN__LOAD(f32, float, f64, double, (double)x)
TARN__LOAD(f32, float, i64, int64_t, tarn__f32_to_i64(x))
TARN__LOAD(f64, double, f32, float, (float)x)
TARN__LOAD(f64, double, f64, double, x)
TARN__LOAD(f64, double, i64, int64_t, tarn__f64_to_i64(x))
TARN__LOAD(bf16, uint16_t, strided_f32, float, tarn__bf16_to_f32(x))
TARN__LOAD(bf16, uint16_t, f64, double, (double)tarn__bf16_to_f32(x))
TARN__LOAD(bf16, uint16_t, i64, int64_t, tarn__f32_to_i64(tarn__bf16_to_f32(x)))
TARN__LOAD(f16, uint16_t, strided_f32, float, tarn__f16_to_f32(x))
TARN__LOAD(f16, uint16_t, f64, double, (double)tarn__f16_to_f32(x))
TARN__LOAD(f16, uint16_t, i64, int64_t, tarn__f32_to_i64(tarn__f16_to_f32(x)))
TARN__LOAD(i32, int32_t, f32, float, (float)x)
TARN__LOAD(i32, int32_t, f64, double, (double)x)
TARN__LOAD(i32, int32_t, i64, int64_t, x)
TARN__LOAD(i64, int64_t, f32, float, (float)x)
TARN__LOAD(i64, int64_t, f64, double, (double)x)
TARN__LOAD(i64, int64_t, i64, int64_t, x)
TARN__LOAD(u8, uint8_t, f32, float, (float)x)
TARN__LOAD(u8, uint8_t, f64, double, (double)x)
TARN__LOAD(u8, uint8_t, i64, int64_t, x)
TARN__LOAD(bool, uint8_t, f32, float, x != 0 ? 1.0f : 0.0f)
TARN__LOAD(bool, uint8_t, f64, double, x != 0 ? 1.0 : 0.0)
TARN__LOAD(bool, uint8_t, i64, int64_t, x != 0)

static void load_bf16_f32(const void *src, int64_t stride, void *dst, int64_t n) {
    if (stride == 1) tarn__bf16_to_f32_dense(src, dst, n);
    else load_bf16_strided_f32(src, stride, dst, n);
}

static void load_f16_f32(const void *src, int64_t stride, void *dst, int64_t n) {
    if (stride == 1) tarn__f16_to_f32_dense(src, dst, n);
    else load_f16_strided_f32(src, stride, dst, n);
}

/* ---- storers ----
 *
 * store_<compute>_<storage>(src, dst, stride, n): dst[i * stride] = src[i] for i < n; stride is not 0 unless n < 2. src and dst are borrowed and
 * do not overlap. */

#define TARN__STORE(compute, compute_type, storage, storage_type, value)                                           \
    static void store_##compute##_##storage(const void *src, void *dst, int64_t stride, int64_t n) {  \
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

TARN__STORE(f32, float, f32, float, x)
TARN__STORE(f32, float, f64, double, (double)x)
TARN__STORE(f32, float, strided_bf16, uint16_t, tarn__f32_to_bf16(x))
TARN__STORE(f32, float, strided_f16, uint16_t, tarn__f32_to_f16(x))
TARN__STORE(f32, float, i32, int32_t, tarn__f32_to_i32(x))
TARN__STORE(f32, float, i64, int64_t, tarn__f32_to_i64(x))
TARN__STORE(f32, float, u8, uint8_t, (uint8_t)(tarn__f32_to_i32(x) & 0xff))
TARN__STORE(f32, float, bool, uint8_t, x != 0.0f)
TARN__STORE(f64, double, f32, float, (float)x)
TARN__STORE(f64, double, f64, double, x)
TARN__STORE(f64, double, bf16, uint16_t, tarn__f64_to_bf16(x))
TARN__STORE(f64, double, f16, uint16_t, tarn__f64_to_f16(x))
TARN__STORE(f64, double, i32, int32_t, tarn__f64_to_i32(x))
TARN__STORE(f64, double, i64, int64_t, tarn__f64_to_i64(x))
TARN__STORE(f64, double, u8, uint8_t, (uint8_t)(tarn__f64_to_i32(x) & 0xff))
TARN__STORE(f64, double, bool, uint8_t, x != 0.0)
TARN__STORE(i64, int64_t, f32, float, (float)x)
TARN__STORE(i64, int64_t, f64, double, (double)x)
TARN__STORE(i64, int64_t, bf16, uint16_t, tarn__i64_to_bf16(x))
TARN__STORE(i64, int64_t, f16, uint16_t, tarn__i64_to_f16(x))
TARN__STORE(i64, int64_t, i32, int32_t, tarn__i64_to_i32(x))
TARN__STORE(i64, int64_t, i64, int64_t, x)
TARN__STORE(i64, int64_t, u8, uint8_t, (uint8_t)(x & 0xff))
TARN__STORE(i64, int64_t, bool, uint8_t, x != 0)

static void store_f32_bf16(const void *src, void *dst, int64_t stride, int64_t n) {
    if (stride == 1) tarn__f32_to_bf16_dense(src, dst, n);
    else store_f32_strided_bf16(src, dst, stride, n);
}

static void store_f32_f16(const void *src, void *dst, int64_t stride, int64_t n) {
    if (stride == 1) tarn__f32_to_f16_dense(src, dst, n);
    else store_f32_strided_f16(src, dst, stride, n);
}

#undef TARN__LOAD
#undef TARN__STORE

/* ---- the tables: [dtype][compute], dtypes in the order of tarn_dtype, compute f32, f64, i64 ---- */

const tarn__load_fn tarn__load[8][3] = {
    {load_f32_f32, load_f32_f64, load_f32_i64},
    {load_f64_f32, load_f64_f64, load_f64_i64},
    {load_bf16_f32, load_bf16_f64, load_bf16_i64},
    {load_f16_f32, load_f16_f64, load_f16_i64},
    {load_i32_f32, load_i32_f64, load_i32_i64},
    {load_i64_f32, load_i64_f64, load_i64_i64},
    {load_u8_f32, load_u8_f64, load_u8_i64},
    {load_bool_f32, load_bool_f64, load_bool_i64},
};

const tarn__store_fn tarn__store[8][3] = {
    {store_f32_f32, store_f64_f32, store_i64_f32},
    {store_f32_f64, store_f64_f64, store_i64_f64},
    {store_f32_bf16, store_f64_bf16, store_i64_bf16},
    {store_f32_f16, store_f64_f16, store_i64_f16},
    {store_f32_i32, store_f64_i32, store_i64_i32},
    {store_f32_i64, store_f64_i64, store_i64_i64},
    {store_f32_u8, store_f64_u8, store_i64_u8},
    {store_f32_bool, store_f64_bool, store_i64_bool},
};
