/* weight_rows.h: a weight on its way from one file to another: rows in another order or become columns, elements of
 * another type. */
#ifndef TARN__ROWS_H
#define TARN__ROWS_H

#include <tarn/tensor.h>

#include "base/os/files.h"

/* The pairs that rotary positions turn: (i, i + half), as transformers has them, or neighbours, as GGUF's llama has
 * them. GPT-2's matrices have a row for each input in transformers, and one for each output in GGUF files. */
typedef enum tarn__weight_rows_order {
    TARN__ROWS_UNCHANGED,
    TARN__ROWS_INTERLEAVED,  /* from halves to neighbours */
    TARN__ROWS_SPLIT_HALVES, /* and back */
    TARN__ROWS_TRANSPOSED    /* columns of a matrix become rows */
} tarn__weight_rows_order;

typedef struct tarn__weight_rows {
    const char *function, *path, *name; /* for errors: who asks, the file, the tensor; borrowed */
    const void *elements;               /* borrowed */
    tarn_shape shape;                   /* of what is made; its first axis are the rows */
    tarn_dtype from, to;
    tarn__weight_rows_order order;
    int64_t heads; /* that the rows belong to, where their order changes; they divide into pairs */
} tarn__weight_rows;

/* Appends the rows to a file. What cannot become a number of the new type (NaN, infinity, too large) is an error that
 * names the tensor and the element. */
bool tarn__weight_rows_write(tarn__output *output, const tarn__weight_rows *rows);

/* The same as a tensor on a device, in the open scope. NULL with an error. */
tarn_tensor *tarn__weight_rows_tensor(const tarn__weight_rows *rows, tarn_device device);

#endif
