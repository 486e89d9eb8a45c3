/* test_memory.c: an OpenCL device out of memory: the error names the largest holders, the cache is released first, the
 * program continues. */
#include "support/opencl.h"

#define MIB ((int64_t)1 << 20)

static tarn_tensor *take(int64_t bytes)
{
    return tarn_empty(TARN_SHAPE(bytes), TARN_U8, opencl);
}

static void out_of_memory_names_the_holders(void **state)
{
    NEEDS_OPENCL();
    tarn_set_name(good(take(9 * MIB)), "the model");
    tarn_set_name(good(take(3 * MIB)), "activations");
    assert_null(take(6 * MIB));
    const char *model = strstr(tarn_error(), "the model"), *activations = strstr(tarn_error(), "activations");
    assert_true(model && activations && model < activations);
    assert_contains(tarn_error(), "empty: out of memory on opencl:0: 6291456 bytes requested");
    assert_error(TARN_ERROR_MEMORY, "of 16777216 free");
    good(take(1 * MIB)); /* a smaller one fits */
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(4), TARN_F32, opencl));
    assert_values(tarn_add(x, x), 0, 2, 2, 2, 2);
}

static void the_cache_is_released_first(void **state)
{
    NEEDS_OPENCL();
    tarn_scope *scope = tarn_scope_open();
    good(take(12 * MIB));
    tarn_scope_close(scope);
    good(take(14 * MIB)); /* fits once the 12 MiB that the pool keeps are gone */
}

int main(void)
{
    setenv("TARN_OPENCL_MEMORY", "16777216", 1);
    const struct CMUnitTest tests[] = {
        ON_OPENCL(out_of_memory_names_the_holders),
        ON_OPENCL(the_cache_is_released_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
