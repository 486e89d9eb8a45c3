/* launch.h: running a kernel on the device of its operands, with a fallback to the CPU. */
#ifndef TARN__LAUNCH_H
#define TARN__LAUNCH_H

#include "core/tensor/tensor.h"

/* One kernel call on tensors, all on one device (checked by the caller). NULL entries are absent operands. */
typedef struct tarn__launch {
    tarn__kernel kernel;
    const char *function; /* for errors */
    int inputs, outputs;
    tarn_tensor *in[TARN__MAX_INPUTS];
    tarn_tensor *out[TARN__MAX_OUTPUTS];
    uint32_t reads_output;
    const void *params;
    size_t params_bytes;
} tarn__launch;

/* Runs the device's kernel, or the CPU's where the device has none (counted, with one warning per kernel). On a meta
 * device only counts scratch. False with an error. */
bool tarn__run(const tarn__launch *launch);

/* Calls `observe` before every launch of this thread, until NULL replaces it. It may launch kernels itself, after
 * having removed itself for that time. */
typedef void (*tarn__observe_fn)(const tarn__launch *launch, void *ctx);
void tarn__launch_observe(tarn__observe_fn observe, void *ctx);

/* True where a row of the device's own kernel fits the launch: for operations that can be composed of others. Asked
 * with the real inputs, before the outputs are allocated. */
bool tarn__kernel_fits(tarn_device device, const tarn__launch *launch);

/* The same for a kernel whose rows depend on the dtype alone. */
bool tarn__has_kernel(tarn_device device, tarn__kernel kernel, tarn_dtype dtype);

/* Copies elements between tensors of equal shape: any dtype, any strides, any two devices. */
bool tarn__copy_elements(const char *function, tarn_tensor *to, tarn_tensor *from);

/* x itself if contiguous, else a contiguous copy in the open scope, counted as a layout copy. */
tarn_tensor *tarn__contiguous(const char *function, tarn_tensor *x);

/* A scalar for kernels. A double beyond i64 saturates, because the conversion is undefined in C; NaN becomes 0. */
tarn__scalar tarn__scalar_of(double value);

/* Sets every element to a value. */
bool tarn__fill_with(const char *function, tarn_tensor *x, double value);

#endif
