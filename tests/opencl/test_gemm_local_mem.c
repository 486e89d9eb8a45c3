/* test_gemm_local_mem.c: GEMM, quantized weights, convolutions and attention by the GPU kernels, on any device; tensor
 * cores are emulated. */
#include "opencl/gemm.h"

int main(void)
{
    const struct CMUnitTest tests[] = {PRODUCT_TESTS};
    setenv("TARN_OPENCL_LOCAL_MEM", "1", 1);
    setenv("TARN_OPENCL_MMA", "1", 1);
    cmocka_set_test_filter(getenv("TARN_TEST_ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
