/* tensor_bytes.h: writing the elements of tensors to files. */
#ifndef TARN__TENSOR_BYTES_H
#define TARN__TENSOR_BYTES_H

#include <tarn/tensor.h>

#include "base/os/files.h"

/* Appends the elements of a tensor on any device and with any strides, row-major, in its own dtype. Borrows the tensor.
 * False with an error; the caller then discards the output. */
bool tarn__write_tensor_bytes(const char *function, tarn_tensor *tensor, tarn__output *output);

/* Writes the elements of a tensor that is computed only when its turn comes, so that a conversion need not hold all
 * tensors in memory. False with an error. */
typedef bool (*tarn__write_fn)(tarn__output *output, void *ctx);

#endif
