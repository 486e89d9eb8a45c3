/*
 * test_products.c: matrix products, convolutions and attention in the form that the device asks for.
 */
#include "opencl/products.h"

static tarn_tensor *attended(tarn_tensor **x, const void *options)
{
    return tarn_attention(x[0], x[1], x[2], (const tarn_attention_options *)options);
}

/* Two heads of q for each of k and v; rows, keys and D that no tile divides. */
static void attention(void **state)
{
    NEEDS_OPENCL();
    const tarn_attention_options options = {.causal = true};
    compare(TARN_F32, attended,
            (tarn_tensor *[]){random_of(TARN_SHAPE(2, 4, 70, 24)), random_of(TARN_SHAPE(2, 2, 90, 24)), random_of(TARN_SHAPE(2, 2, 90, 24))}, 3, &options, 2e-5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {PRODUCT_TESTS, ON_OPENCL(attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
