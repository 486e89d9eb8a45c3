/* test_gemm.c: GEMM, quantized weights, convolutions and attention by the kernels for the device at hand. */
#include "opencl/gemm.h"

int main(void)
{
    const struct CMUnitTest tests[] = {PRODUCT_TESTS};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
