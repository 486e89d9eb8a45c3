/* dtype.h: the table of element types. */
#ifndef TARN__DTYPE_H
#define TARN__DTYPE_H

#include <tarn/tensor.h>

typedef enum tarn__kind { TARN__FLOAT, TARN__INTEGER, TARN__BOOLEAN } tarn__kind;

typedef struct tarn__dtype {
    const char *name;
    tarn__kind kind;
    int block_elements; /* 1 for plain types; a block type packs several elements */
    int block_bytes;
    int alignment;
} tarn__dtype;

extern const tarn__dtype tarn__dtypes[TARN_DTYPE_COUNT];

/* Sets of dtypes, as masks. */
#define TARN__BIT(dtype) (1u << (dtype))
#define TARN__FLOATS (TARN__BIT(TARN_F32) | TARN__BIT(TARN_F64) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16))
#define TARN__INTS (TARN__BIT(TARN_I32) | TARN__BIT(TARN_I64) | TARN__BIT(TARN_U8))
#define TARN__NUMBERS (TARN__FLOATS | TARN__INTS)
#define TARN__ALL (TARN__NUMBERS | TARN__BIT(TARN_BOOL))
#define TARN__INDEXES (TARN__BIT(TARN_I32) | TARN__BIT(TARN_I64))

static inline bool tarn__is_float(tarn_dtype dtype)
{
    return (TARN__FLOATS >> dtype) & 1;
}

static inline size_t tarn__dtype_bytes(tarn_dtype dtype)
{
    return (size_t)tarn__dtypes[dtype].block_bytes;
}

/* The dtype of a parameter's gradient, and of sums over elements: f32 for the 16-bit floats. */
static inline tarn_dtype tarn__wide_dtype(tarn_dtype dtype)
{
    return dtype == TARN_BF16 || dtype == TARN_F16 ? TARN_F32 : dtype;
}

#endif
