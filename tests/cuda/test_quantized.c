/* test_quantized.c: quantized weights on a CUDA device against the CPU: bytes, elements, products and gradients.
 * Skipped without a device. */
#include <math.h>
#include <string.h>

#include "support/gpu.h"
#include "support/quant.h"

static const tarn_dtype kinds[] = {TARN_Q8_0, TARN_Q4_0, TARN_Q4_K, TARN_Q6_K, TARN_Q4_1,   TARN_Q5_0,
                                   TARN_Q5_1, TARN_Q2_K, TARN_Q3_K, TARN_Q5_K, TARN_IQ4_NL, TARN_IQ4_XS};
/* The first ones are quantized on the device. */
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), ON_DEVICE = 7 };

static tarn_tensor *weight_of(tarn_dtype dtype, int64_t out, int64_t in)
{
    return good(tarn_cast(tarn_normal(TARN_SHAPE(out, in), 0, 0.05, TARN_F32, CPU), dtype));
}

static void bytes_and_elements_match_the_cpu(void **state)
{
    NEEDS_GPU();
    for (int k = 0; k < KINDS; k++) {
        int64_t in = tarn_dtype_block_size(kinds[k]) == 32 ? 1056 : 1280;
        tarn_tensor *here = weight_of(kinds[k], 37, in), *there = good(tarn_to(here, gpu));
        size_t bytes = (size_t)tarn_bytes(here);
        char *a = malloc(bytes), *b = malloc(bytes);
        assert_true(tarn_read(here, a, bytes) && tarn_read(good(tarn_clone(there)), b, bytes));
        assert_memory_equal(a, b, bytes);
        free(a), free(b);
        int64_t before = tarn_stats().fallbacks;
        for (tarn_dtype dtype = TARN_F32; dtype <= TARN_F16; dtype++)
            assert_close(good(tarn_cast(there, dtype)), good(tarn_cast(here, dtype)), 0);
        assert_close(good(tarn_cast(tarn_flip(tarn_slice(there, 0, 3, 30), TARN_AXES(0)), TARN_F32)),
                     good(tarn_cast(tarn_flip(tarn_slice(here, 0, 3, 30), TARN_AXES(0)), TARN_F32)), 0);
        assert_close(good(tarn_cast(tarn_stride(there, TARN_SHAPE(5, 1)), TARN_F32)),
                     good(tarn_cast(tarn_stride(here, TARN_SHAPE(5, 1)), TARN_F32)), 0);
        int64_t list[] = {36, 0, 5, 5, 17, 2};
        tarn_tensor *index = good(tarn_from_i64(list, TARN_SHAPE(2, 3), CPU));
        assert_close(good(tarn_embedding(there, good(tarn_to(index, gpu)))), good(tarn_embedding(here, index)), 0);
        assert_int_equal(tarn_stats().fallbacks, before);
    }
}

/* Quantized on the device: normal elements, and hard ones; a view is made contiguous first, few blocks fill no thread
 * block. */
static void the_device_quantizes_to_the_same_bytes(void **state)
{
    NEEDS_GPU();
    const int64_t rows = is_quick() ? 20 : 100, columns = 2048;
    float *values = malloc((size_t)(rows * columns) * sizeof(float));
    assert_non_null(values);
    fill_quant_patterns(values, rows * columns);
    tarn_tensor *hard = good(tarn_from_f32(values, TARN_SHAPE(rows, columns), CPU)),
                *normal = good(tarn_normal(TARN_SHAPE(rows, columns), 0, 0.05, TARN_F32, CPU));
    free(values);
    tarn_tensor *inputs[] = {hard, normal, good(tarn_cast(normal, TARN_BF16)),
                             good(tarn_slice(tarn_slice(hard, 1, 256, 1024), 0, 3, 8))};
    for (int k = 0; k < ON_DEVICE; k++)
        for (int i = 0; i < 4; i++) {
            tarn_tensor *x = good(tarn_to(inputs[i], gpu));
            int64_t before = tarn_stats().fallbacks;
            tarn_tensor *there = good(tarn_cast(x, kinds[k])), *here = good(tarn_cast(inputs[i], kinds[k]));
            assert_int_equal(tarn_stats().fallbacks, before);
            size_t bytes = (size_t)tarn_bytes(here);
            char *a = malloc(bytes), *b = malloc(bytes);
            assert_true(a && b && tarn_read(here, a, bytes) && tarn_read(there, b, bytes));
            assert_memory_equal(a, b, bytes);
            free(a), free(b);
        }
}

/* Many rows of x: few are quantized to 8 bits, see test_quant_matmul.c. */
static void products_and_gradients_match_those_of_the_elements(void **state)
{
    NEEDS_GPU();
    for (int k = 0; k < KINDS; k++)
        for (int half = 0; half < 2; half++)
            for (int64_t rows = 17; rows <= 40; rows += 23) {
                tarn_dtype dtype = half ? TARN_BF16 : TARN_F32;
                tarn_tensor *here = weight_of(kinds[k], k == 0 ? 5000 : 300, 1024), *there = good(tarn_to(here, gpu));
                tarn_tensor *x = good(tarn_requires_grad(tarn_normal(TARN_SHAPE(rows, 1024), 0, 1, dtype, gpu), true));
                tarn_tensor *bias = good(tarn_normal(TARN_SHAPE(tarn_size(here, 0)), 0, 1, TARN_F32, gpu)),
                            *wide = good(tarn_cast(here, TARN_F64));
                int64_t before = tarn_stats().fallbacks;
                tarn_tensor *y = good(tarn_linear_apply(x, there, bias)), *g = good(tarn_normal_like(y, 0, 1));
                assert_true(tarn_backward_from(y, g, NULL));
                assert_int_equal(tarn_stats().fallbacks, before);
                tarn_tensor *x64 = good(tarn_cast(tarn_to(tarn_detach(x), CPU), TARN_F64)),
                            *g64 = good(tarn_cast(tarn_to(g, CPU), TARN_F64));
                tarn_tensor *expected = good(tarn_linear_apply(x64, wide, tarn_cast(tarn_to(bias, CPU), TARN_F64)));
                assert_close(good(tarn_cast(tarn_to(tarn_detach(y), CPU), TARN_F64)), expected, half ? 3e-2 : 1e-5);
                assert_close(good(tarn_cast(tarn_to(tarn_grad(x), CPU), TARN_F64)), good(tarn_matmul(g64, wide)),
                             half ? 3e-2 : 2e-5);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bytes_and_elements_match_the_cpu, open_gpu, close_gpu),
        cmocka_unit_test_setup_teardown(the_device_quantizes_to_the_same_bytes, open_gpu, close_gpu),
        cmocka_unit_test_setup_teardown(products_and_gradients_match_those_of_the_elements, open_gpu, close_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
