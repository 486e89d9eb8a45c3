/* kernels.h: the enum of all kernels. An elementwise row `tanh` gives kernels tanh and tanh_grad; a binary row `mul`
 * gives mul, mul_grad (both gradients in one pass), mul_grad_a and mul_grad_b. */
#ifndef TARN__KERNELS_H
#define TARN__KERNELS_H

#include "base/kernel/call.h"

typedef enum tarn__kernel {
#define UNARY(name, ...) TARN__K_##name, TARN__K_##name##_grad,
#define BINARY(name, ...) TARN__K_##name, TARN__K_##name##_grad, TARN__K_##name##_grad_a, TARN__K_##name##_grad_b,
#define COMPARE(name, ...) TARN__K_##name,
#include "base/kernel/elementwise.def"
#undef UNARY
#undef BINARY
#undef COMPARE
    TARN__K_where, /* condition, a, b -> y */
#define KERNEL(name, ...) TARN__K_##name,
#include "base/kernel/kernels.def"
#undef KERNEL
    TARN__KERNEL_COUNT
} tarn__kernel;

extern const char *const tarn__kernel_names[TARN__KERNEL_COUNT];

/* A hash of the kernel list and the layouts of calls and params: a backend compiled against other headers is
 * rejected. */
uint64_t tarn__kernels_hash(void);

#endif
