/* gpu.h: what tests of CUDA devices begin and end with. Without a device each of them is skipped. */
#ifndef TESTS_GPU_H
#define TESTS_GPU_H

#include <string.h>
#include <tarn/profile.h>

#include "support/check.h"

#define CPU tarn_device_cpu()

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

/* A tensor on the GPU; NULL stays NULL. */
static inline tarn_tensor *there(tarn_tensor *x)
{
    return x ? good(tarn_to(x, gpu)) : NULL;
}

static inline tarn_tensor *back(tarn_tensor *x)
{
    return good(tarn_to(good(x), CPU));
}

/* Normally distributed values, drawn on the CPU. */
static inline tarn_tensor *normal(tarn_shape shape, double std, tarn_dtype dtype)
{
    return good(tarn_cast(good(tarn_normal(shape, 0, std, TARN_F32, CPU)), dtype));
}

/* True on devices with the wgmma kernels. */
static inline bool has_wgmma(void)
{
    tarn_device_info info;
    assert_true(tarn_device_query(gpu, &info));
    return strstr(info.detail, "compute capability 9.") != NULL;
}

/* The variant of the last kernel of a kind since tarn_profile_start(). */
static inline const char *profiled_variant(tarn_profile_kind kind)
{
    const char *found = NULL;
    tarn_profile_record record;
    assert_true(tarn_profile_stop());
    for (int64_t i = 0; i < tarn_profile_count(); i++)
        if (tarn_profile_get(i, &record) && record.kind == kind)
            found = record.variant;
    tarn_profile_clear();
    return found ? found : "";
}

#define NEEDS_GPU() \
    do { \
        if (tarn_device_count("cuda") == 0) \
            skip(); \
        (void)state; \
    } while (0)

#endif
