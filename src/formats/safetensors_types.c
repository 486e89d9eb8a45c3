/* safetensors_types.c: the element types that a safetensors file may name. */
#include "formats/safetensors.h"

/* Files are little-endian, and their elements are copied as they are. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "a big-endian machine would have to swap the bytes of every element");

#define NONE TARN_DTYPE_COUNT

const tarn__safetensors_type tarn__safetensors_types[TARN__SAFETENSORS_TYPES] = {
    {"BOOL", 8, TARN_BOOL}, {"F4", 4, NONE},          {"F6_E2M3", 6, NONE},     {"F6_E3M2", 6, NONE},
    {"U8", 8, TARN_U8},     {"I8", 8, NONE},          {"F8_E5M2", 8, NONE},     {"F8_E4M3", 8, NONE},
    {"F8_E8M0", 8, NONE},   {"F8_E4M3FNUZ", 8, NONE}, {"F8_E5M2FNUZ", 8, NONE}, {"I16", 16, NONE},
    {"U16", 16, NONE},      {"F16", 16, TARN_F16},    {"BF16", 16, TARN_BF16},  {"I32", 32, TARN_I32},
    {"U32", 32, NONE},      {"F32", 32, TARN_F32},    {"C64", 64, NONE},        {"F64", 64, TARN_F64},
    {"I64", 64, TARN_I64},  {"U64", 64, NONE},
};
