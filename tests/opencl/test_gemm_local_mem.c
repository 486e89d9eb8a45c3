/* test_gemm_local_mem.c: GEMM, quantized weights, convolutions and attention by the GPU kernels, on any device. */
#include "opencl/gemm.h"

int main(void)
{
    const struct CMUnitTest tests[] = {PRODUCT_TESTS};
    setenv("TARN_OPENCL_LOCAL_MEM", "1", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
