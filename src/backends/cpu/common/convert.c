/* convert.c: loaders into f32 tiles and storers from them, contiguous and strided, and the [dtype][compute] tables
 * of these and of those in convert_f64.c. Compiled once per level. */
#define LOADER(storage, compute) static void load_##storage##_##compute
#define STORER(compute, storage) static void store_##compute##_##storage
#include "backends/cpu/common/convert.inc"

TARN__LOAD(f32, float, f32, float, x)
TARN__LOAD(f64, double, f32, float, (float)x)
TARN__LOAD(bf16, uint16_t, strided_f32, float, tarn__bf16_to_f32(x))
TARN__LOAD(f16, uint16_t, strided_f32, float, tarn__f16_to_f32(x))
TARN__LOAD(i32, int32_t, f32, float, (float)x)
TARN__LOAD(i64, int64_t, f32, float, (float)x)
TARN__LOAD(u8, uint8_t, f32, float, (float)x)
TARN__LOAD(truth, uint8_t, f32, float, x != 0 ? 1.0f : 0.0f)

/* 16-bit floats: contiguous runs use the hand-written vector loops of convert.h. */
static void load_bf16_f32(const void *src, int64_t stride, void *dst, int64_t n)
{
    if (stride == 1)
        tarn__bf16_to_f32_dense(src, dst, n);
    else
        load_bf16_strided_f32(src, stride, dst, n);
}

static void load_f16_f32(const void *src, int64_t stride, void *dst, int64_t n)
{
    if (stride == 1)
        tarn__f16_to_f32_dense(src, dst, n);
    else
        load_f16_strided_f32(src, stride, dst, n);
}

TARN__STORE(f32, float, f32, float, x)
TARN__STORE(f32, float, f64, double, (double)x)
TARN__STORE(f32, float, strided_bf16, uint16_t, tarn__f32_to_bf16(x))
TARN__STORE(f32, float, strided_f16, uint16_t, tarn__f32_to_f16(x))
TARN__STORE(f32, float, i32, int32_t, tarn__f32_to_i32(x))
TARN__STORE(f32, float, i64, int64_t, tarn__f32_to_i64(x))
TARN__STORE(f32, float, u8, uint8_t, (uint8_t)(tarn__f32_to_i32(x) & 0xff))
TARN__STORE(f32, float, truth, uint8_t, x != 0.0f)

static void store_f32_bf16(const void *src, void *dst, int64_t stride, int64_t n)
{
    if (stride == 1)
        tarn__f32_to_bf16_dense(src, dst, n);
    else
        store_f32_strided_bf16(src, dst, stride, n);
}

static void store_f32_f16(const void *src, void *dst, int64_t stride, int64_t n)
{
    if (stride == 1)
        tarn__f32_to_f16_dense(src, dst, n);
    else
        store_f32_strided_f16(src, dst, stride, n);
}

/* ---- tables: [dtype][compute], dtypes in the order of tarn_dtype, compute f32, f64, i64 -------------------------- */

/* One row of a table. */
#define LOADS(storage) \
    { \
        load_##storage##_f32, TARN__F64_LOADER(storage, f64), TARN__F64_LOADER(storage, i64) \
    }
#define STORES(storage) \
    { \
        store_f32_##storage, TARN__F64_STORER(f64, storage), TARN__F64_STORER(i64, storage) \
    }

const tarn__load_fn tarn__load[8][3] = {
    LOADS(f32), LOADS(f64), LOADS(bf16), LOADS(f16), LOADS(i32), LOADS(i64), LOADS(u8), LOADS(truth),
};

const tarn__store_fn tarn__store[8][3] = {
    STORES(f32), STORES(f64), STORES(bf16), STORES(f16), STORES(i32), STORES(i64), STORES(u8), STORES(truth),
};
