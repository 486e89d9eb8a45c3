/* dtype.h: the table of element types and masks of them. The order is that of the public enum tarn_dtype. */
#ifndef TARN__DTYPE_H
#define TARN__DTYPE_H

#include <tarn/tensor.h>

typedef enum tarn__kind { TARN__FLOAT, TARN__INTEGER, TARN__BOOLEAN, TARN__QUANT } tarn__kind;

typedef struct tarn__dtype {
    const char *name;
    tarn__kind kind;
    int block_elements; /* 1; of a quantized type, the elements of the last axis that a block holds */
    int block_bytes;
    int alignment;
} tarn__dtype;

extern const tarn__dtype tarn__dtypes[TARN_DTYPE_COUNT];

/* Sets of dtypes, as masks. */
#define TARN__BIT(dtype) (1u << (dtype))
#define TARN__FLOATS (TARN__BIT(TARN_F32) | TARN__BIT(TARN_F64) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16))
#define TARN__INTS (TARN__BIT(TARN_I32) | TARN__BIT(TARN_I64) | TARN__BIT(TARN_U8))
#define TARN__NUMBERS (TARN__FLOATS | TARN__INTS)
#define TARN__ALL (TARN__NUMBERS | TARN__BIT(TARN_BOOL))                    /* all but the quantized types */
#define TARN__QUANTIZED (TARN__BIT(TARN_IQ4_XS + 1) - TARN__BIT(TARN_Q8_0)) /* the last ones of the enum */
#define TARN__INDEXES (TARN__BIT(TARN_I32) | TARN__BIT(TARN_I64))

static inline bool tarn__is_float(tarn_dtype dtype)
{
    return (TARN__FLOATS >> dtype) & 1;
}

static inline bool tarn__is_quantized(tarn_dtype dtype)
{
    return (TARN__QUANTIZED >> dtype) & 1;
}

/* Bytes of one element, or of one quant block. */
static inline size_t tarn__dtype_bytes(tarn_dtype dtype)
{
    return (size_t)tarn__dtypes[dtype].block_bytes;
}

/* Bytes of `elements` elements, which of a quantized type are a multiple of the block size. */
static inline int64_t tarn__bytes_of(tarn_dtype dtype, int64_t elements)
{
    const tarn__dtype *row = &tarn__dtypes[dtype];
    return row->block_elements == 1 ? elements * row->block_bytes : elements / row->block_elements * row->block_bytes;
}

/* The dtype in which gradients of parameters and sums over elements are accumulated: f32 for the 16-bit floats, else
 * the dtype itself. */
static inline tarn_dtype tarn__acc_dtype(tarn_dtype dtype)
{
    return dtype == TARN_BF16 || dtype == TARN_F16 ? TARN_F32 : dtype;
}

#endif
