/* test_quant_matmul.c: quantized weights on a CUDA device: their bytes are transferred unchanged, dequantize bitwise as
 * on the CPU, and are multiplied: few rows of x are quantized to 8 bits; many are a GEMM of elements. Skipped without a
 * device. */
#include <math.h>
#include <string.h>

#include "ops/internal.h"
#include "support/gpu.h"
#include "support/quant.h"

static const tarn_dtype kinds[] = {TARN_Q8_0, TARN_Q4_0, TARN_Q4_K, TARN_Q6_K, TARN_Q4_1,   TARN_Q5_0,
                                   TARN_Q5_1, TARN_Q2_K, TARN_Q3_K, TARN_Q5_K, TARN_IQ4_NL, TARN_IQ4_XS};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* Normal values with some large ones among them, quantized. */
static tarn_tensor *weight_of(tarn_dtype kind, int64_t out, int64_t in)
{
    tarn_shape shape = TARN_SHAPE(out, in);
    return good(tarn_cast(
        tarn_mul(tarn_normal(shape, 0, 1, TARN_F32, CPU), tarn_exp(tarn_normal(shape, 0, 1, TARN_F32, CPU))), kind));
}

/* Rows of whole 16-byte vectors and others, shorter and longer than a warp's chunk. */
static int64_t length_of(tarn_dtype kind, int64_t which)
{
    static const int64_t in_blocks[] = {1, 3, 8, 9, 11, 70};
    int64_t length = in_blocks[which] * tarn_dtype_block_size(kind);
    return length < 6000 ? length : 4864;
}
enum { LENGTHS = 6 };

/* Also of random blocks, where every quant and code of a scale occurs. */
static void dequantized_elements_match_the_cpu(void **state)
{
    NEEDS_GPU();
    uint64_t random = test_seed(7);
    for (int k = 0; k < KINDS; k++)
        for (int64_t i = 0; i < LENGTHS; i++) {
            tarn_scope *scope = tarn_scope_open();
            int64_t in = length_of(kinds[k], i);
            tarn_tensor *w = i % 2 ? weight_of(kinds[k], 21, in) : random_quant_blocks(kinds[k], 21, in, &random),
                        *there = good(tarn_to(w, gpu));
            assert_close(good(tarn_to(tarn_cast(there, TARN_F32), CPU)), good(tarn_cast(w, TARN_F32)), 0);
            tarn_tensor *some = good(tarn_flip(tarn_slice(w, 0, 2, 19), TARN_AXES(0))),
                        *some_there = good(tarn_flip(tarn_slice(there, 0, 2, 19), TARN_AXES(0)));
            assert_close(good(tarn_to(tarn_cast(some_there, TARN_F32), CPU)), good(tarn_cast(some, TARN_F32)), 0);
            tarn_tensor *index = good(tarn_from_i64((const int64_t[]){3, 20, 0, 3}, TARN_SHAPE(4), CPU));
            assert_close(good(tarn_to(tarn_embedding(there, tarn_to(index, gpu)), CPU)), good(tarn_embedding(w, index)),
                         0);
            for (tarn_dtype dtype = TARN_BF16; dtype != TARN_F32; dtype = dtype == TARN_BF16 ? TARN_F16 : TARN_F32)
                assert_close(good(tarn_to(tarn__embedding_as(there, tarn_to(index, gpu), dtype), CPU)),
                             good(tarn__embedding_as(w, index, dtype)), 0);
            tarn_scope_close(scope);
        }
}

/* The product of elements, rounded to y's dtype. x has random signs, and so have the errors: their sum exceeds seven
 * times the root of the squares of their bounds once in 10^10. */
static void assert_product_of_elements(tarn_tensor *x, tarn_tensor *w, tarn_tensor *bias, tarn_tensor *y)
{
    assert_ok();
    int64_t rows = tarn_size(x, 0), in = tarn_size(w, 1), out = tarn_size(w, 0);
    double *vx = values_of(x), *vy = values_of(y), *vb = bias ? values_of(bias) : NULL,
           *vw = values_of(good(tarn_cast(w, TARN_F32)));
    double unit = tarn_dtype_of(y) == TARN_BF16 ? 0x1p-8 : tarn_dtype_of(y) == TARN_F16 ? 0x1p-11 : 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = vb ? vb[o] : 0, size = fabs(sum), squares = 0;
            for (int64_t i = 0; i < in; i++) {
                double term = vx[r * in + i] * vw[o * in + i];
                sum += term, size += fabs(term), squares += term * term;
            }
            double error = fabs(vy[r * out + o] - sum),
                   bound = unit * (7 * sqrt(squares) + 1.02 * fabs(sum)) + 1e-6 * size;
            if (!(error <= bound))
                fail_msg("%s [%d, %d]: row %d, column %d is %g, not %g: off by %g of %g",
                         tarn_dtype_name(tarn_dtype_of(w)), (int)out, (int)in, (int)r, (int)o, vy[r * out + o], sum,
                         error, bound);
        }
    free(vx), free(vy), free(vb), free(vw);
}

/* Few rows of x are quantized; many are a GEMM of elements. */
static void assert_right(tarn_tensor *x, tarn_tensor *w, tarn_tensor *bias, tarn_tensor *y)
{
    if (tarn_size(x, 0) <= 16)
        assert_quant_matmul(x, w, bias, y);
    else
        assert_product_of_elements(x, w, bias, y);
}

static void products_are_correct_up_to_rounding(void **state)
{
    NEEDS_GPU();
    static const int64_t rows[] = {1, 2, 4, 5, 16, 17, 140}, outs[] = {1, 7, 64, 205};
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16, TARN_F16};
    uint64_t bits = test_seed(11);
    for (int round = 0; round < 70 * KINDS; round++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_dtype kind = kinds[round % KINDS];
        int64_t d = random_below(&bits, 3), in = length_of(kind, random_below(&bits, LENGTHS)),
                out = outs[random_below(&bits, 4)], many = rows[round / KINDS % 7];
        tarn_tensor *w = weight_of(kind, out, in), *x = good(tarn_normal(TARN_SHAPE(many, in), 0, 2, dtypes[d], CPU));
        tarn_tensor *bias =
            random_below(&bits, 2)
                ? good(tarn_normal(TARN_SHAPE(out), 0, 1, random_below(&bits, 2) ? TARN_F32 : dtypes[d], CPU))
                : NULL;
        int64_t before = tarn_stats().fallbacks;
        tarn_tensor *there =
            good(tarn_linear_apply(tarn_to(x, gpu), tarn_to(w, gpu), bias ? tarn_to(bias, gpu) : NULL));
        assert_int_equal(tarn_stats().fallbacks, before);
        assert_int_equal(tarn_dtype_of(there), dtypes[d]);
        assert_right(x, w, bias, good(tarn_to(there, CPU)));
        tarn_scope_close(scope);
    }
}

static void slices_and_strides_of_both_operands_work(void **state)
{
    NEEDS_GPU();
    for (int k = 0; k < KINDS; k++)
        for (int64_t many = 3; many <= 36; many += 33) {
            tarn_scope *scope = tarn_scope_open();
            int64_t in = length_of(kinds[k], 3);
            tarn_tensor *w = weight_of(kinds[k], 40, in),
                        *x = good(tarn_normal(TARN_SHAPE(in, many), 0, 1, TARN_F32, CPU));
            tarn_tensor *part = good(tarn_stride(tarn_slice(w, 0, 3, 40), TARN_SHAPE(3, 1))),
                        *wide = good(tarn_to(w, gpu));
            tarn_tensor *there =
                good(tarn_linear_apply(tarn_transpose(tarn_to(x, gpu), 0, 1),
                                       tarn_stride(tarn_slice(wide, 0, 3, 40), TARN_SHAPE(3, 1)), NULL));
            assert_right(good(tarn_contiguous(tarn_transpose(x, 0, 1))), part, NULL, good(tarn_to(there, CPU)));
            tarn_scope_close(scope);
        }
}

/* More elements than are dequantized at a time, in rows whose number is no power of two: each part of y is the product
 * with its part of the weight. */
static void weights_of_several_tiles_work(void **state)
{
    NEEDS_GPU();
    enum { DIFFERENT = 500, OUT = 36000, PART = 9000, IN = 3072 };
    static const tarn_dtype dtypes[] = {TARN_F32, TARN_BF16};
    static int64_t list[OUT];
    for (int64_t i = 0; i < OUT; i++)
        list[i] = i * 7 % DIFFERENT;
    tarn_tensor *few = good(tarn_to(weight_of(TARN_Q8_0, DIFFERENT, IN), gpu));
    tarn_tensor *w = good(tarn_index_select(few, 0, tarn_from_i64(list, TARN_SHAPE(OUT), gpu)));
    for (int d = 0; d < 2; d++) {
        tarn_tensor *x = good(tarn_normal(TARN_SHAPE(20, IN), 0, 1, dtypes[d], gpu)),
                    *y = good(tarn_linear_apply(x, w, NULL));
        for (int64_t begin = 0; begin < OUT; begin += PART)
            assert_close_for_size(good(tarn_to(tarn_slice(y, 1, begin, begin + PART), CPU)),
                                  good(tarn_to(tarn_linear_apply(x, tarn_slice(w, 0, begin, begin + PART), NULL), CPU)),
                                  d ? 1e-2 : 1e-5);
    }
}

/* The gradient of x, bitwise identical runs, and non-finite values. */
static void gradients_and_non_finite_values_match_the_cpu(void **state)
{
    NEEDS_GPU();
    for (int k = 0; k < KINDS; k++) {
        tarn_scope *scope = tarn_scope_open();
        int64_t in = length_of(kinds[k], 2);
        tarn_tensor *w = weight_of(kinds[k], 30, in), *wide = good(tarn_to(w, gpu)),
                    *x = good(tarn_normal(TARN_SHAPE(3, in), 0, 1, TARN_F32, CPU));
        tarn_tensor *near = tarn_requires_grad(good(tarn_clone(x)), true),
                    *far = tarn_requires_grad(good(tarn_to(x, gpu)), true);
        tarn_tensor *g = good(tarn_normal(TARN_SHAPE(3, 30), 0, 1, TARN_F32, CPU));
        assert_true(tarn_backward_from(good(tarn_linear_apply(near, w, NULL)), g, NULL));
        assert_true(tarn_backward_from(good(tarn_linear_apply(far, wide, NULL)), good(tarn_to(g, gpu)), NULL));
        assert_close_for_size(good(tarn_to(tarn_grad(far), CPU)), tarn_grad(near), 1e-5);
        tarn_tensor *there = good(tarn_to(x, gpu));
        assert_close(good(tarn_to(tarn_linear_apply(there, wide, NULL), CPU)),
                     good(tarn_to(tarn_linear_apply(there, wide, NULL), CPU)), 0);
        float odd[] = {INFINITY, 0, 1e-40f, -NAN};
        for (int i = 0; i < 4; i++) {
            tarn_tensor *row = good(tarn_full(TARN_SHAPE(1, in), odd[i], TARN_F32, CPU));
            assert_close(good(tarn_to(tarn_linear_apply(tarn_to(row, gpu), wide, NULL), CPU)),
                         good(tarn_linear_apply(row, w, NULL)), 0);
        }
        tarn_scope_close(scope);
    }
}

int main(void)
{
#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        ON_GPU(dequantized_elements_match_the_cpu),
        ON_GPU(products_are_correct_up_to_rounding),
        ON_GPU(slices_and_strides_of_both_operands_work),
        ON_GPU(weights_of_several_tiles_work),
        ON_GPU(gradients_and_non_finite_values_match_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
