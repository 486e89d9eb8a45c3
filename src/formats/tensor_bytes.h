/* tensor_bytes.h: a tensor's elements on their way to a file. */
#ifndef TARN__TENSOR_BYTES_H
#define TARN__TENSOR_BYTES_H

#include <tarn/tensor.h>

#include "base/os/files.h"

/* Appends the elements of a tensor of any device and layout, row-major, in its own dtype. False with an error: then
 * discard. */
bool tarn__write_tensor_bytes(const char *function, tarn_tensor *tensor, tarn__output *output);

/* Writes the elements of a tensor that is made when it is its turn. False with an error. */
typedef bool (*tarn__write_fn)(tarn__output *output, void *ctx);

#endif
