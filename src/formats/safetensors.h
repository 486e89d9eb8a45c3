/* safetensors.h: the element types of the format, for its reader and its writer. */
#ifndef TARN__SAFETENSORS_H
#define TARN__SAFETENSORS_H

#include <tarn/safetensors.h>

#include "formats/tensor_bytes.h"

/* The longest header, as in the reference implementation. */
#define TARN__SAFETENSORS_MAX_HEADER 100000000

/* Rows are in the reference implementation's order: its writer puts the elements of later rows first. */
typedef struct tarn__safetensors_type {
    const char *name;
    int bits;
    tarn_dtype dtype; /* TARN_DTYPE_COUNT: tarn has none like it */
} tarn__safetensors_type;

#define TARN__SAFETENSORS_TYPES 22
extern const tarn__safetensors_type tarn__safetensors_types[TARN__SAFETENSORS_TYPES];

/* The elements of tensor number `index`, in the map, not verified; for other parts of the library. */
const void *tarn__safetensors_data(const tarn_safetensors *file, int index);

/* Verifies the checksums of all tensors, in parallel; good for a file without any. False with an error that names
 * tensor and file. Reading a tensor verifies that one: this is for readers that must know before they begin, or that
 * use the map. */
bool tarn__safetensors_verify(const char *function, const tarn_safetensors *file);

/* Adds a tensor whose elements `write` writes, exactly as many bytes as dtype and shape need, so that it need not be in
 * memory before. `ctx` is borrowed until the end. */
bool tarn__safetensors_add_streamed(tarn_safetensors_writer *writer, const char *name, tarn_dtype dtype,
                                    tarn_shape shape, tarn__write_fn write, void *ctx);

#endif
