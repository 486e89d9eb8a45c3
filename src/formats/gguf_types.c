/* gguf_types.c: the element types and metadata types of GGUF, indexed by their numbers in files. */
#include "formats/gguf.h"

/* Files are little-endian, and their elements are used in place. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "a big-endian machine would have to swap the bytes of every element");

#define NO_DTYPE TARN_DTYPE_COUNT

/* Name, elements per quant block, bytes per block, dtype, format that is dequantized. Types that tarn cannot load are
 * listed too, so that a file with one can be inspected and its other tensors loaded. Gaps are numbers that ggml has
 * retired. */
const tarn__gguf_dtype tarn__gguf_dtypes[TARN__GGUF_DTYPES] = {
    [0] = {"F32", 1, 4, TARN_F32, TARN__NO_IQUANT},          [1] = {"F16", 1, 2, TARN_F16, TARN__NO_IQUANT},
    [2] = {"Q4_0", 32, 18, TARN_Q4_0, TARN__NO_IQUANT},      [3] = {"Q4_1", 32, 20, TARN_Q4_1, TARN__NO_IQUANT},
    [6] = {"Q5_0", 32, 22, TARN_Q5_0, TARN__NO_IQUANT},      [7] = {"Q5_1", 32, 24, TARN_Q5_1, TARN__NO_IQUANT},
    [8] = {"Q8_0", 32, 34, TARN_Q8_0, TARN__NO_IQUANT},      [9] = {"Q8_1", 32, 40, NO_DTYPE, TARN__NO_IQUANT},
    [10] = {"Q2_K", 256, 84, TARN_Q2_K, TARN__NO_IQUANT},    [11] = {"Q3_K", 256, 110, TARN_Q3_K, TARN__NO_IQUANT},
    [12] = {"Q4_K", 256, 144, TARN_Q4_K, TARN__NO_IQUANT},   [13] = {"Q5_K", 256, 176, TARN_Q5_K, TARN__NO_IQUANT},
    [14] = {"Q6_K", 256, 210, TARN_Q6_K, TARN__NO_IQUANT},   [15] = {"Q8_K", 256, 292, NO_DTYPE, TARN__NO_IQUANT},
    [16] = {"IQ2_XXS", 256, 66, NO_DTYPE, TARN__IQ2_XXS},    [17] = {"IQ2_XS", 256, 74, NO_DTYPE, TARN__IQ2_XS},
    [18] = {"IQ3_XXS", 256, 98, NO_DTYPE, TARN__IQ3_XXS},    [19] = {"IQ1_S", 256, 50, NO_DTYPE, TARN__IQ1_S},
    [20] = {"IQ4_NL", 32, 18, TARN_IQ4_NL, TARN__NO_IQUANT}, [21] = {"IQ3_S", 256, 110, NO_DTYPE, TARN__IQ3_S},
    [22] = {"IQ2_S", 256, 82, NO_DTYPE, TARN__IQ2_S},        [23] = {"IQ4_XS", 256, 136, TARN_IQ4_XS, TARN__NO_IQUANT},
    [24] = {"I8", 1, 1, NO_DTYPE, TARN__NO_IQUANT},          [25] = {"I16", 1, 2, NO_DTYPE, TARN__NO_IQUANT},
    [26] = {"I32", 1, 4, NO_DTYPE, TARN__NO_IQUANT},         [27] = {"I64", 1, 8, NO_DTYPE, TARN__NO_IQUANT},
    [28] = {"F64", 1, 8, NO_DTYPE, TARN__NO_IQUANT},         [29] = {"IQ1_M", 256, 56, NO_DTYPE, TARN__IQ1_M},
    [30] = {"BF16", 1, 2, TARN_BF16, TARN__NO_IQUANT},       [34] = {"TQ1_0", 256, 54, NO_DTYPE, TARN__TQ1_0},
    [35] = {"TQ2_0", 256, 66, NO_DTYPE, TARN__TQ2_0},        [39] = {"MXFP4", 32, 17, NO_DTYPE, TARN__MXFP4},
    [40] = {"NVFP4", 64, 36, NO_DTYPE, TARN__NVFP4},         [41] = {"Q1_0", 128, 18, NO_DTYPE, TARN__NO_IQUANT},
};

/* A short linear search, once per tensor written. */
int tarn__gguf_dtype_of(tarn_dtype dtype)
{
    for (int i = 0; i < TARN__GGUF_DTYPES; i++)
        if (tarn__gguf_dtypes[i].name && tarn__gguf_dtypes[i].dtype == dtype && dtype != NO_DTYPE)
            return i;
    return -1;
}

/* Metadata types: name in messages, and bytes per value; 0: variable. */
static const struct {
    const char *name;
    int bytes;
} types[TARN_GGUF_TYPE_COUNT] = {
    [TARN_GGUF_U8] = {"u8", 1},      [TARN_GGUF_I8] = {"i8", 1},     [TARN_GGUF_U16] = {"u16", 2},
    [TARN_GGUF_I16] = {"i16", 2},    [TARN_GGUF_U32] = {"u32", 4},   [TARN_GGUF_I32] = {"i32", 4},
    [TARN_GGUF_F32] = {"f32", 4},    [TARN_GGUF_BOOL] = {"bool", 1}, [TARN_GGUF_STRING] = {"text", 0},
    [TARN_GGUF_ARRAY] = {"list", 0}, [TARN_GGUF_U64] = {"u64", 8},   [TARN_GGUF_I64] = {"i64", 8},
    [TARN_GGUF_F64] = {"f64", 8},
};

const char *tarn_gguf_type_name(tarn_gguf_type type)
{
    return (unsigned)type < TARN_GGUF_TYPE_COUNT ? types[type].name : "?";
}

int tarn__gguf_type_bytes(tarn_gguf_type type)
{
    return types[type].bytes;
}

/* Gaps are retired numbers. */
const char *tarn_gguf_file_type_name(int64_t file_type)
{
    static const char *const names[] = {"F32",    "F16",    "Q4_0",    "Q4_1",      NULL,     NULL,      NULL,
                                        "Q8_0",   "Q5_0",   "Q5_1",    "Q2_K",      "Q3_K_S", "Q3_K_M",  "Q3_K_L",
                                        "Q4_K_S", "Q4_K_M", "Q5_K_S",  "Q5_K_M",    "Q6_K",   "IQ2_XXS", "IQ2_XS",
                                        "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S",     "IQ4_NL", "IQ3_S",   "IQ3_M",
                                        "IQ2_S",  "IQ2_M",  "IQ4_XS",  "IQ1_M",     "BF16",   NULL,      NULL,
                                        NULL,     "TQ1_0",  "TQ2_0",   "MXFP4_MOE", "NVFP4",  "Q1_0"};
    bool is_known = file_type >= 0 && file_type < (int64_t)(sizeof(names) / sizeof(names[0]));
    return is_known ? names[file_type] : NULL;
}
