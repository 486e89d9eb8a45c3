/* dtype.c: the table of element types and its public queries. */
#include "base/dtype.h"

#include <string.h>

#include "base/error.h"

const tarn__dtype tarn__dtypes[TARN_DTYPE_COUNT] = {
    [TARN_F32] = {"f32", TARN__FLOAT, 1, 4, 4},    [TARN_F64] = {"f64", TARN__FLOAT, 1, 8, 8},
    [TARN_BF16] = {"bf16", TARN__FLOAT, 1, 2, 2},  [TARN_F16] = {"f16", TARN__FLOAT, 1, 2, 2},
    [TARN_I32] = {"i32", TARN__INTEGER, 1, 4, 4},  [TARN_I64] = {"i64", TARN__INTEGER, 1, 8, 8},
    [TARN_U8] = {"u8", TARN__INTEGER, 1, 1, 1},    [TARN_BOOL] = {"bool", TARN__BOOLEAN, 1, 1, 1},
};

const char *tarn_dtype_name(tarn_dtype dtype)
{
    return (unsigned)dtype < TARN_DTYPE_COUNT ? tarn__dtypes[dtype].name : "?";
}

size_t tarn_dtype_size(tarn_dtype dtype)
{
    return (unsigned)dtype < TARN_DTYPE_COUNT ? tarn__dtype_bytes(dtype) : 0;
}

tarn_dtype tarn_dtype_parse(const char *text)
{
    for (int i = 0; text && i < TARN_DTYPE_COUNT; i++)
        if (strcmp(text, tarn__dtypes[i].name) == 0)
            return (tarn_dtype)i;
    tarn__raise(TARN_ERROR_ARGUMENT, "dtype_parse: no element type is called '%s'; there are f32 f64 bf16 f16 i32 i64 u8 bool",
                text ? text : "NULL");
    return TARN_DTYPE_COUNT;
}
