/* hf.h: how much memory the weights of a file take, and what to say when a device has less. */
#ifndef TARN__FIT_H
#define TARN__FIT_H

#include <tarn/gguf.h>
#include <tarn/safetensors.h>

#include "models/lm/device_map.h"

/* Bytes of a model's weights as they are opened. */
typedef struct tarn__weight_bytes {
    int64_t rest;          /* of what is no block */
    int64_t blocks, block; /* how many there are, and what one takes on average */
} tarn__weight_bytes;

/* The bytes of the files' tensors, where those that are no blocks of packed numbers become `dtype`. The first one
 * passes over names for which `ignores` is true. */
tarn__weight_bytes tarn__safetensors_weight_bytes(const tarn_safetensors *file, tarn_dtype dtype,
                                                  bool (*ignores)(const char *name));
tarn__weight_bytes tarn__gguf_weight_bytes(const tarn_gguf *file, tarn_dtype dtype);

/* Raises that a device had no room for these weights: how much is missing, and how many layers would fit. Replaces the
 * pending error, which says where memory ran out, unless that is all that is known. */
void tarn__model_out_of_memory(const char *function, const tarn__weight_bytes *bytes, const tarn__device_map *where);

#endif
