/*
 * test_products_local.c: matrix products, convolutions and attention in the form for GPUs, on whichever device there is.
 */
#include "opencl/products.h"

int main(void)
{
    setenv("TARN_OPENCL_LOCAL", "1", 1);
    return cmocka_run_group_tests(product_tests, NULL, NULL);
}
