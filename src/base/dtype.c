/* dtype.c: the table of element types and its public queries.
 *
 * The table is indexed by tarn_dtype; adding a dtype means a row here, a bit in the masks of dtype.h and kernels
 * that list it. */
#include "base/dtype.h"

#include <string.h>

#include "base/error.h"

/* name, kind, elements and bytes of a block (1 and the element size where it is not quantized), alignment in bytes. */
const tarn__dtype tarn__dtypes[TARN_DTYPE_COUNT] = {
    [TARN_F32] = {"f32", TARN__FLOAT, 1, 4, 4},         [TARN_F64] = {"f64", TARN__FLOAT, 1, 8, 8},
    [TARN_BF16] = {"bf16", TARN__FLOAT, 1, 2, 2},       [TARN_F16] = {"f16", TARN__FLOAT, 1, 2, 2},
    [TARN_I32] = {"i32", TARN__INTEGER, 1, 4, 4},       [TARN_I64] = {"i64", TARN__INTEGER, 1, 8, 8},
    [TARN_U8] = {"u8", TARN__INTEGER, 1, 1, 1},         [TARN_BOOL] = {"bool", TARN__BOOLEAN, 1, 1, 1},
    [TARN_Q8_0] = {"q8_0", TARN__QUANT, 32, 34, 2},     [TARN_Q4_0] = {"q4_0", TARN__QUANT, 32, 18, 2},
    [TARN_Q4_K] = {"q4_k", TARN__QUANT, 256, 144, 2},   [TARN_Q6_K] = {"q6_k", TARN__QUANT, 256, 210, 2},
    [TARN_Q4_1] = {"q4_1", TARN__QUANT, 32, 20, 2},     [TARN_Q5_0] = {"q5_0", TARN__QUANT, 32, 22, 2},
    [TARN_Q5_1] = {"q5_1", TARN__QUANT, 32, 24, 2},     [TARN_Q2_K] = {"q2_k", TARN__QUANT, 256, 84, 2},
    [TARN_Q3_K] = {"q3_k", TARN__QUANT, 256, 110, 2},   [TARN_Q5_K] = {"q5_k", TARN__QUANT, 256, 176, 2},
    [TARN_IQ4_NL] = {"iq4_nl", TARN__QUANT, 32, 18, 2}, [TARN_IQ4_XS] = {"iq4_xs", TARN__QUANT, 256, 136, 2},
};

const char *tarn_dtype_name(tarn_dtype dtype)
{
    return (unsigned)dtype < TARN_DTYPE_COUNT ? tarn__dtypes[dtype].name : "?";
}

/* Of a quantized type the bytes of a block. */
size_t tarn_dtype_size(tarn_dtype dtype)
{
    return (unsigned)dtype < TARN_DTYPE_COUNT ? tarn__dtype_bytes(dtype) : 0;
}

int64_t tarn_dtype_block_size(tarn_dtype dtype)
{
    return (unsigned)dtype < TARN_DTYPE_COUNT ? tarn__dtypes[dtype].block_elements : 0;
}

/* TARN_DTYPE_COUNT with an error for an unknown name. */
tarn_dtype tarn_dtype_parse(const char *text)
{
    for (int i = 0; text && i < TARN_DTYPE_COUNT; i++)
        if (strcmp(text, tarn__dtypes[i].name) == 0)
            return (tarn_dtype)i;
    tarn__raise(TARN_ERROR_ARGUMENT,
                "dtype_parse: unknown dtype '%s'; must be f32, f64, bf16, f16, i32, i64, u8, bool, q8_0, q4_0, q4_1, "
                "q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl or iq4_xs",
                text ? text : "NULL");
    return TARN_DTYPE_COUNT;
}
