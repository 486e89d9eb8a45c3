/* test_norm.c: layernorm, rmsnorm and dropout. */
#include "../support/check.h"

static tarn_tensor *normal(tarn_shape shape, tarn_dtype dtype)
{
    return good(tarn_normal(shape, 0.5, 2, dtype, tarn_device_cpu()));
}

static void assert_norm(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias, bool centred, double tolerance)
{
    tarn_tensor *y = good(centred ? tarn_layernorm(x, weight, bias, 1e-5) : tarn_rmsnorm(x, weight, 1e-5));
    int64_t length = tarn_size(x, -1), count = tarn_count(x) / length;
    double *vx = values_of(x), *vy = values_of(y), *vw = weight ? values_of(weight) : NULL,
           *vb = bias ? values_of(bias) : NULL;
    for (int64_t r = 0; r < count; r++) {
        double mean = 0, spread = 0;
        for (int64_t i = 0; centred && i < length; i++)
            mean += vx[r * length + i] / (double)length;
        for (int64_t i = 0; i < length; i++)
            spread += (vx[r * length + i] - mean) * (vx[r * length + i] - mean) / (double)length;
        for (int64_t i = 0; i < length; i++) {
            double expected = (vx[r * length + i] - mean) / sqrt(spread + 1e-5) * (vw ? vw[i] : 1) + (vb ? vb[i] : 0);
            if (fabs(vy[r * length + i] - expected) > tolerance * (1 + fabs(expected)))
                fail_msg("row %d, element %d is %.9g, not %.9g", (int)r, (int)i, vy[r * length + i], expected);
        }
    }
    free(vx), free(vy), free(vw), free(vb);
}

static void rows_of_every_length_layout_and_dtype_are_normalised(void **state)
{
    (void)state;
    static const double tolerance[] = {2e-6, 1e-13, 8e-3, 1e-3};
    static const int64_t lengths[] = {2, 3, 17, 64, 100, 768, 1024, 1030, 5000};
    for (tarn_dtype dtype = TARN_F32; dtype <= TARN_F16; dtype++)
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            tarn_scope *scope = tarn_scope_open();
            int64_t n = lengths[i];
            tarn_tensor *w = normal(TARN_SHAPE(n), dtype), *b = normal(TARN_SHAPE(n), dtype);
            tarn_tensor *xs[] = {normal(TARN_SHAPE(2, 3, n), dtype),
                                 good(tarn_transpose(normal(TARN_SHAPE(n, 4), dtype), 0, 1))};
            for (int k = 0; k < 2; k++) {
                assert_norm(xs[k], w, b, true, tolerance[dtype]);
                assert_norm(xs[k], NULL, b, true, tolerance[dtype]);
                assert_norm(xs[k], NULL, NULL, true, tolerance[dtype]);
                assert_norm(xs[k], w, NULL, false, tolerance[dtype]);
                assert_norm(xs[k], NULL, NULL, false, tolerance[dtype]);
            }
            tarn_scope_close(scope);
        }
}

/* Rows far from 0 among others that are near: two rows near each other, two far ones, one of each. */
static tarn_tensor *scattered(int64_t rows, int64_t length)
{
    float *offset = malloc((size_t)rows * sizeof(float));
    for (int64_t r = 0; r < rows; r++)
        offset[r] = r % 5 == 2 || r % 5 == 3 ? 20.0f : 0.0f;
    tarn_tensor *far_off = good(tarn_from_f32(offset, TARN_SHAPE(rows, 1), tarn_device_cpu()));
    free(offset);
    return good(tarn_add(normal(TARN_SHAPE(rows, length), TARN_F32), far_off));
}

static void rows_far_from_zero_are_normalised_as_well_as_near_ones(void **state)
{
    (void)state;
    static const int64_t lengths[] = {40, 1024, 1030};
    for (int i = 0; i < 3; i++) {
        tarn_tensor *w = normal(TARN_SHAPE(lengths[i]), TARN_F32), *b = normal(TARN_SHAPE(lengths[i]), TARN_F32);
        assert_norm(scattered(20, lengths[i]), w, b, true, 3e-6);
        assert_norm(scattered(20, lengths[i]), w, NULL, false, 2e-6);
    }
}

static void a_row_of_equal_elements_becomes_the_bias(void **state)
{
    (void)state;
    static const double values[] = {1234.567, -0.1, 3e19, 1e30};
    tarn_tensor *w = normal(TARN_SHAPE(100), TARN_F32), *b = normal(TARN_SHAPE(100), TARN_F32);
    for (int i = 0; i < 4; i++) {
        tarn_tensor *x = good(tarn_full(TARN_SHAPE(1, 100), values[i], TARN_F32, tarn_device_cpu()));
        tarn_tensor *y = good(tarn_layernorm(x, w, b, 1e-5));
        assert_memory_equal(tarn_data(y), tarn_data(b), 100 * sizeof(float));
    }
}

static tarn_tensor *layernorm(tarn_tensor *const *in, int count, void *ctx)
{
    (void)ctx;
    return tarn_layernorm(in[0], count > 1 ? in[1] : NULL, count > 2 ? in[2] : NULL, 1e-5);
}

static tarn_tensor *rmsnorm(tarn_tensor *const *in, int count, void *ctx)
{
    (void)ctx;
    return tarn_rmsnorm(in[0], count > 1 ? in[1] : NULL, 1e-5);
}

static void gradients_agree_with_differences_with_and_without_weight_and_bias(void **state)
{
    (void)state;
    static const int64_t lengths[] = {5, 40};
    for (int i = 0; i < 2; i++) {
        int64_t n = lengths[i];
        tarn_tensor *in[] = {normal(TARN_SHAPE(2, 20, n), TARN_F64), normal(TARN_SHAPE(n), TARN_F64),
                             normal(TARN_SHAPE(n), TARN_F64)};
        for (int k = 0; k < 3; k++)
            good(tarn_requires_grad(in[k], true));
        for (int count = 1; count <= 3; count++) {
            tarn_gradcheck(layernorm, NULL, in, count, NULL);
            assert_ok();
        }
        for (int count = 1; count <= 2; count++) {
            tarn_gradcheck(rmsnorm, NULL, in, count, NULL);
            assert_ok();
        }
    }
}

static void assert_gradients_of_f64(tarn_tensor *x)
{
    tarn_tensor *w = normal(TARN_SHAPE(96), TARN_F32), *b = normal(TARN_SHAPE(96), TARN_F32);
    tarn_tensor *g = normal(TARN_SHAPE(700, 96), TARN_F32), *narrow[] = {x, w, b}, *wide[3];
    for (int k = 0; k < 3; k++) {
        wide[k] = good(tarn_requires_grad(good(tarn_cast(narrow[k], TARN_F64)), true));
        good(tarn_requires_grad(narrow[k], true));
    }
    assert_true(tarn_backward_from(tarn_layernorm(x, w, b, 1e-5), g, NULL));
    assert_true(
        tarn_backward_from(tarn_layernorm(wide[0], wide[1], wide[2], 1e-5), good(tarn_cast(g, TARN_F64)), NULL));
    for (int k = 0; k < 3; k++)
        assert_close(good(tarn_cast(good(tarn_grad(narrow[k])), TARN_F64)), good(tarn_grad(wide[k])),
                     2e-5); /* sums of 700 terms */
}

static void gradients_in_f32_are_those_in_f64(void **state)
{
    (void)state;
    assert_gradients_of_f64(normal(TARN_SHAPE(700, 96), TARN_F32));
    assert_gradients_of_f64(scattered(700, 96));
}

static void the_bits_are_the_same_with_one_two_and_four_threads(void **state)
{
    (void)state;
    int before = tarn_threads();
    tarn_tensor *x = scattered(3000, 70), *w = normal(TARN_SHAPE(70), TARN_F32), *b = normal(TARN_SHAPE(70), TARN_F32);
    tarn_tensor *g = normal(TARN_SHAPE(3000, 70), TARN_F32), *one[4] = {0};
    for (int threads = 1; threads <= 4; threads *= 2) {
        tarn_set_threads(threads);
        tarn_tensor *in[3], *from[] = {x, w, b};
        for (int k = 0; k < 3; k++)
            in[k] = good(tarn_requires_grad(good(tarn_detach(from[k])), true));
        tarn_tensor *y = good(tarn_layernorm(in[0], in[1], in[2], 1e-5));
        assert_true(tarn_backward_from(y, g, NULL));
        tarn_tensor *now[] = {good(tarn_detach(y)), good(tarn_grad(in[0])), good(tarn_grad(in[1])),
                              good(tarn_grad(in[2]))};
        for (int k = 0; k < 4; k++) {
            if (one[k])
                assert_memory_equal(tarn_data(one[k]), tarn_data(now[k]), (size_t)tarn_bytes(now[k]));
            one[k] = now[k];
        }
    }
    tarn_set_threads(before);
}

static void empty_tensors_have_empty_results_and_zero_gradients(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(normal(TARN_SHAPE(0, 4), TARN_F32), true)),
                *w = good(tarn_requires_grad(vector(1, 2, 3, 4), true));
    tarn_tensor *y = good(tarn_layernorm(x, w, NULL, 1e-5));
    assert_shape(y, 0, 4);
    assert_true(tarn_backward_from(y, normal(TARN_SHAPE(0, 4), TARN_F32), NULL));
    assert_values(good(tarn_grad(w)), 0, 0, 0, 0, 0);
    assert_shape(good(tarn_rmsnorm(normal(TARN_SHAPE(3, 0), TARN_F32), NULL, 1e-5)), 3, 0);
}

static void wrong_operands_are_errors_that_name_them(void **state)
{
    (void)state;
    tarn_tensor *x = normal(TARN_SHAPE(3, 4), TARN_F32);
    assert_null(tarn_layernorm(x, vector(1, 2, 3), NULL, 1e-5));
    assert_error(TARN_ERROR_SHAPE, "layernorm: weight [3] does not fit x [3, 4]: it must be [4]");
    assert_null(tarn_layernorm(x, NULL, normal(TARN_SHAPE(4), TARN_F64), 1e-5));
    assert_error(TARN_ERROR_DTYPE, "x is f32 and bias is f64");
    assert_null(tarn_rmsnorm(x, NULL, -1));
    assert_error(TARN_ERROR_ARGUMENT, "rmsnorm: epsilon -1");
    assert_null(tarn_rmsnorm(good(tarn_zeros(TARN_SCALAR, TARN_F32, tarn_device_cpu())), NULL, 1e-5));
    assert_error(TARN_ERROR_SHAPE, "rank 0");
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

static void dropout_scales_what_it_keeps_and_draws_the_same_mask_in_backward(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(good(tarn_ones(TARN_SHAPE(100, 100), TARN_F32, tarn_device_cpu())), true));
    tarn_tensor *y = good(tarn_dropout(x, 0.25));
    assert_true(tarn_backward_from(y, good(tarn_ones(TARN_SHAPE(100, 100), TARN_F32, tarn_device_cpu())), NULL));
    double *vy = values_of(y), *gx = values_of(good(tarn_grad(x)));
    int dropped = 0;
    for (int i = 0; i < 10000; i++) {
        dropped += vy[i] == 0;
        assert_true(vy[i] == 0 || fabs(vy[i] - 4.0 / 3) < 1e-6);
        assert_true(gx[i] == vy[i]);
    }
    assert_in_range(dropped, 2250, 2750);
    free(vy), free(gx);
}

static void dropout_of_nothing_is_x_and_of_everything_zero(void **state)
{
    (void)state;
    tarn_tensor *x = vector(1, 2, 3);
    assert_ptr_equal(good(tarn_dropout(x, 0)), x);
    assert_values(good(tarn_dropout(x, 1)), 0, 0, 0, 0);
    assert_null(tarn_dropout(x, 1.5));
    assert_error(TARN_ERROR_ARGUMENT, "dropout: probability 1.5 is outside 0 to 1");
    assert_null(tarn_dropout(x, NAN));
    assert_error(TARN_ERROR_ARGUMENT, "dropout");
}

static tarn_tensor *rmsnorm_offset(tarn_tensor *const *in, int count, void *ctx)
{
    (void)ctx;
    return tarn_rmsnorm_offset(in[0], count > 1 ? in[1] : NULL, 1, 1e-5);
}

static tarn_tensor *residual_rmsnorm(tarn_tensor *const *in, int count, void *ctx)
{
    (void)ctx, (void)count;
    tarn_tensor *sum, *y = tarn_residual_rmsnorm(in[0], tarn_square(in[0]), in[1], 0.7, 1e-5, &sum);
    return y ? tarn_add(y, sum) : NULL;
}

/* 1 + weight in f32: as f32 weights with 1 added; 16-bit ones would round to multiples of 2^-7. */
static void an_offset_is_added_before_anything_is_rounded(void **state)
{
    (void)state;
    static const int64_t lengths[] = {20, 96, 1030};
    for (int i = 0; i < 3; i++) {
        tarn_tensor *x = normal(TARN_SHAPE(5, lengths[i]), TARN_F32), *one = tarn_scalar(1),
                    *small = good(
                        tarn_cast(tarn_mul(normal(TARN_SHAPE(lengths[i]), TARN_F32), tarn_scalar(1e-3)), TARN_BF16)),
                    *wide = good(tarn_cast(small, TARN_F32)), *half = good(tarn_cast(x, TARN_BF16));
        assert_close(good(tarn_rmsnorm_offset(x, wide, 1, 1e-6)), good(tarn_rmsnorm(x, tarn_add(wide, one), 1e-6)),
                     lengths[i] < 33 ? 1e-7 : 0);
        assert_close(good(tarn_rmsnorm_offset(half, small, 1, 1e-6)),
                     good(tarn_cast(tarn_rmsnorm(tarn_cast(half, TARN_F32), tarn_add(wide, one), 1e-6), TARN_BF16)),
                     1e-2);
        assert_close(good(tarn_rmsnorm_offset(x, NULL, 1, 1e-6)), good(tarn_rmsnorm(x, NULL, 1e-6)), 0);
    }
}

static void gradients_with_an_offset_agree_with_differences(void **state)
{
    (void)state;
    static const int64_t lengths[] = {5, 40};
    for (int i = 0; i < 2; i++) {
        tarn_tensor *in[] = {normal(TARN_SHAPE(2, 7, lengths[i]), TARN_F64), normal(TARN_SHAPE(lengths[i]), TARN_F64)};
        for (int k = 0; k < 2; k++)
            good(tarn_requires_grad(in[k], true));
        for (int count = 1; count <= 2; count++) {
            tarn_gradcheck(rmsnorm_offset, NULL, in, count, NULL);
            assert_ok();
        }
        tarn_gradcheck(residual_rmsnorm, NULL, in, 2, NULL);
        assert_ok();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(rows_of_every_length_layout_and_dtype_are_normalised),
        in_scope(rows_far_from_zero_are_normalised_as_well_as_near_ones),
        in_scope(a_row_of_equal_elements_becomes_the_bias),
        in_scope(gradients_agree_with_differences_with_and_without_weight_and_bias),
        in_scope(gradients_in_f32_are_those_in_f64),
        in_scope(the_bits_are_the_same_with_one_two_and_four_threads),
        in_scope(empty_tensors_have_empty_results_and_zero_gradients),
        in_scope(wrong_operands_are_errors_that_name_them),
        in_scope(dropout_scales_what_it_keeps_and_draws_the_same_mask_in_backward),
        in_scope(dropout_of_nothing_is_x_and_of_everything_zero),
        in_scope(an_offset_is_added_before_anything_is_rounded),
        in_scope(gradients_with_an_offset_agree_with_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
