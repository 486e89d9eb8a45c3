/* test_quant_composed.c: a device without matmul_quant dequantizes the weight a few rows at a time, without the
 * CPU's help. */
#include <math.h>
#include <stdlib.h>

#include "support/check.h"

static const tarn_dtype kinds[] = {TARN_Q8_0, TARN_Q4_0, TARN_Q4_K, TARN_Q6_K, TARN_Q4_1,   TARN_Q5_0,
                                   TARN_Q5_1, TARN_Q2_K, TARN_Q3_K, TARN_Q5_K, TARN_IQ4_NL, TARN_IQ4_XS};
#define KINDS (int)(sizeof(kinds) / sizeof(kinds[0]))

/* Seven million elements are more than one tile. */
static void products_and_gradients_are_those_of_the_elements(void **state)
{
    (void)state;
    tarn_device device = tarn_device_parse("mirror:0");
    for (int k = 0; k < KINDS; k++)
        for (int half = 0; half < 2; half++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_dtype dtype = half ? TARN_BF16 : TARN_F32;
            int64_t out = k == 0 && !half ? 3500 : 90, in = out > 100 ? 2048 : 512;
            tarn_tensor *w = good(tarn_to(
                tarn_cast(tarn_normal(TARN_SHAPE(out, in), 0, 0.04, TARN_F32, tarn_device_cpu()), kinds[k]), device));
            tarn_tensor *x = good(tarn_requires_grad(tarn_normal(TARN_SHAPE(3, in), 0, 1, dtype, device), true));
            tarn_tensor *bias = good(tarn_normal(TARN_SHAPE(out), 0, 1, TARN_F32, device)),
                        *g = good(tarn_normal(TARN_SHAPE(3, out), 0, 1, dtype, device));
            int64_t before = tarn_stats().fallbacks;
            tarn_tensor *y = good(tarn_linear_apply(x, w, bias));
            assert_true(tarn_backward_from(y, g, NULL));
            assert_int_equal(tarn_stats().fallbacks, before);
            tarn_tensor *wide = good(tarn_cast(w, TARN_F64)),
                        *expected =
                            tarn_linear_apply(tarn_cast(tarn_detach(x), TARN_F64), wide, tarn_cast(bias, TARN_F64));
            assert_close(good(tarn_cast(y, TARN_F64)), good(expected), half ? 2e-2 : 1e-5);
            assert_close(good(tarn_cast(tarn_grad(x), TARN_F64)), good(tarn_matmul(tarn_cast(g, TARN_F64), wide)),
                         half ? 2e-2 : 1e-5);
            tarn_scope_close(scope);
        }
}

int main(void)
{
    setenv("TARN_MIRROR_DISABLE", "matmul_quant", 1);
    const struct CMUnitTest tests[] = {in_scope(products_and_gradients_are_those_of_the_elements)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
