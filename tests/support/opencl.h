/* opencl.h: what tests of OpenCL devices begin and end with. Without a device each of them is skipped. */
#ifndef TESTS_OPENCL_H
#define TESTS_OPENCL_H

#include "support/check.h"

static tarn_device opencl;

/* Set-up and tear-down of a test: a scope, and the same random seed. */
static inline int open_opencl(void **state)
{
    if (tarn_device_count("opencl") == 0)
        return 0;
    static bool is_told;
    tarn_device_info info;
    opencl = tarn_device_parse("opencl");
    if (!is_told && tarn_device_query(opencl, &info))
        print_message("%s is %s\n", info.name,
                      info.description); /* where there are several it depends on the drivers that are found */
    is_told = true;
    tarn_seed(1);
    return open_test(state);
}

static inline int close_opencl(void **state)
{
    return tarn_device_count("opencl") == 0 ? 0 : close_test(state);
}

#define NEEDS_OPENCL() \
    do { \
        if (tarn_device_count("opencl") == 0) \
            skip(); \
        (void)state; \
    } while (0)

#define ON_OPENCL(test) cmocka_unit_test_setup_teardown(test, open_opencl, close_opencl)

#endif
