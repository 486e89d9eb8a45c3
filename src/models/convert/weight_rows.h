/* weight_rows.h: a weight on its way between files: other row order, transposed, or of another type. */
#ifndef TARN__WEIGHT_ROWS_H
#define TARN__WEIGHT_ROWS_H

#include <tarn/tensor.h>

#include "base/os/files.h"
#include "base/quant/quant.h"

/* Row order. RoPE pairs are split halves (i, i + half) in transformers, and interleaved in GGUF's llama. GPT-2's
 * matrices are [in, out] in transformers, and [out, in] in GGUF files. */
typedef enum tarn__weight_rows_order {
    TARN__ROWS_UNCHANGED,
    TARN__ROWS_INTERLEAVED,  /* from split halves to interleaved */
    TARN__ROWS_SPLIT_HALVES, /* and back */
    TARN__ROWS_QKV_BLOCKS,   /* from q, k and v of each head to all q, all k, all v */
    TARN__ROWS_QKV_BY_HEAD,  /* and back */
    TARN__ROWS_TRANSPOSED    /* columns become rows */
} tarn__weight_rows_order;

/* A weight to convert. Borrows everything. */
typedef struct tarn__weight_rows {
    const char *function, *path, *name; /* for errors: who asks, the file, the tensor; borrowed */
    const void *elements;               /* borrowed */
    tarn_shape shape;                   /* of the result; its first axis is the rows */
    tarn_dtype from, to;                /* from: TARN_DTYPE_COUNT where .iquant is set */
    tarn__iquant iquant;                /* format of the source that has no dtype */
    const float *importance;            /* of the columns, for quantized results; NULL: none; borrowed */
    tarn__weight_rows_order order;
    int64_t heads; /* heads of the rows, if their order changes */
    float shift;   /* added to every value, in f32 */
} tarn__weight_rows;

/* Bytes of `count` elements of the source. */
int64_t tarn__weight_rows_source_bytes(const tarn__weight_rows *rows, int64_t count);

/* Writes the converted rows to a file. A value that the new type cannot represent (NaN, infinity, too large) is an
 * error that names the tensor and the element. */
bool tarn__weight_rows_write(tarn__output *output, const tarn__weight_rows *rows);

/* The same as a tensor on a device, in the open scope. NULL with an error. */
tarn_tensor *tarn__weight_rows_tensor(const tarn__weight_rows *rows, tarn_device device);

#endif
