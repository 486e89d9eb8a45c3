/*
 * test_products.c: matrix products, convolutions and attention in the form that the device asks for.
 */
#include "opencl/products.h"

int main(void)
{
    const struct CMUnitTest tests[] = {PRODUCT_TESTS};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
