/* gpu.h: what tests of CUDA devices begin and end with. Without a device each of them is skipped. */
#ifndef TESTS_GPU_H
#define TESTS_GPU_H

#include "support/check.h"

static tarn_device gpu;

/* Set-up and tear-down of a test: a scope, and the same random seed. */
static inline int open_gpu(void **state)
{
    if (tarn_device_count("cuda") == 0)
        return 0;
    gpu = tarn_device_parse("cuda");
    tarn_seed(1);
    return open_test(state);
}

static inline int close_gpu(void **state)
{
    return tarn_device_count("cuda") == 0 ? 0 : close_test(state);
}

/* Few and small sizes are wanted: under a sanitizer a kernel takes a hundred times as long. */
static inline bool is_quick(void)
{
    return getenv("TARN_TEST_QUICK") != NULL;
}

#define NEEDS_GPU() \
    do { \
        if (tarn_device_count("cuda") == 0) \
            skip(); \
        (void)state; \
    } while (0)

#endif
