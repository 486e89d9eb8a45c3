/*
 * test_products_local.c: matrix products, convolutions and attention in the form for GPUs, on whichever device there
 * is.
 */
#include "opencl/products.h"

int main(void)
{
    const struct CMUnitTest tests[] = {PRODUCT_TESTS};
    setenv("TARN_OPENCL_LOCAL", "1", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
