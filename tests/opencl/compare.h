/* compare.h: results of a device are compared with the CPU's in f64 and bitwise with a second run; nothing may fall
 * back to the CPU. */
#ifndef TESTS_OPENCL_COMPARE_H
#define TESTS_OPENCL_COMPARE_H

#include "support/opencl.h"

#include <tarn/profile.h>

#define CPU tarn_device_cpu()

/* What is computed of some tensors; two runs on the device are bitwise identical, and its elements are near those of
 * the CPU in f64. */
typedef tarn_tensor *(*formula)(tarn_tensor **x, const void *options);

/* The result, then the gradients of all of x for a gradient that is the same on every device. */
static void run_on(tarn_device device, tarn_dtype dtype, formula f, tarn_tensor *const *x, int count,
                   const void *options, tarn_tensor **to)
{
    tarn_tensor *there[4];
    for (int i = 0; i < count; i++)
        there[i] = tarn_requires_grad(good(tarn_detach(tarn_cast(tarn_to(x[i], device), dtype))), true);
    to[0] = good(f(there, options));
    tarn_seed(7);
    tarn_tensor *g = good(tarn_cast(tarn_normal(tarn_shape_of(to[0]), 0, 1, TARN_F32, CPU), tarn_dtype_of(x[0])));
    assert_true(tarn_backward_from(to[0], tarn_cast(tarn_to(g, device), dtype), NULL));
    for (int i = 0; i < count; i++)
        to[1 + i] = good(tarn_grad(there[i]));
}

static void assert_same_bits(const tarn_tensor *a, const tarn_tensor *b)
{
    size_t bytes = (size_t)tarn_bytes(a);
    char *in_a = malloc(bytes + 1), *in_b = malloc(bytes + 1);
    assert_true(tarn_read(a, in_a, bytes) && tarn_read(b, in_b, bytes));
    assert_memory_equal(in_a, in_b, bytes);
    free(in_a), free(in_b);
}

/* x are tensors of the CPU. */
static void compare(tarn_dtype dtype, formula f, tarn_tensor **x, int count, const void *options, double tolerance)
{
    tarn_tensor *here[5], *there[5], *again[5];
    for (int i = 0; i < count; i++)
        x[i] = good(tarn_cast(x[i], dtype));
    tarn_stats_reset();
    run_on(opencl, dtype, f, x, count, options, there);
    run_on(opencl, dtype, f, x, count, options, again);
    assert_int_equal(tarn_stats().fallbacks, 0);
    run_on(CPU, TARN_F64, f, x, count, options, here);
    for (int i = 0; i <= count; i++) {
        assert_same_bits(there[i], again[i]);
        assert_close_for_size(tarn_cast(tarn_to(there[i], CPU), TARN_F64), here[i], tolerance);
    }
}

static tarn_tensor *random_of(tarn_shape shape)
{
    return good(tarn_normal(shape, 0, 1, TARN_F32, CPU));
}

#endif
