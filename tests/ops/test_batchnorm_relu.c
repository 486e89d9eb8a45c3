/* test_batchnorm_relu.c: relu(batchnorm(x) + residual) equals the three operations in sequence: values, statistics
 * and gradients. TARN_TEST_DEVICE names the device; default: the CPU. */
#include "../support/check.h"

static tarn_device device;

static tarn_tensor *numbers(float first, float second)
{
    return good(tarn_to(vector(first, second), device));
}

static tarn_tensor *number(float value)
{
    return good(tarn_to(vector(value), device));
}

typedef struct given {
    tarn_dtype dtype;
    tarn_shape shape;
    bool last, training, has_residual, has_vectors; /* last: the channels lie last in memory */
} given;

enum { X, RESIDUAL, WEIGHT, BIAS, MEAN, VARIANCE, OPERANDS };

static tarn_tensor *laid_out(tarn_tensor *x, bool last)
{
    return last ? good(tarn_permute(good(tarn_contiguous(tarn_permute(x, TARN_AXES(0, 2, 3, 1)))),
                                    TARN_AXES(0, 3, 1, 2)))
                : x;
}

/* Leaves; statistics are none. */
static void draw(const given *how, tarn_tensor **operand)
{
    tarn_dtype wide = tarn_dtype_size(how->dtype) == 2 ? TARN_F32 : how->dtype;
    tarn_shape channels = TARN_SHAPE(how->shape.size[1]);
    for (int i = X; i <= RESIDUAL; i++)
        operand[i] = good(tarn_requires_grad(
            good(tarn_detach(laid_out(good(tarn_normal(how->shape, 0.5, 2, how->dtype, device)), how->last))), true));
    operand[WEIGHT] = how->has_vectors
                          ? good(tarn_requires_grad(good(tarn_normal(channels, 0.5, 2, how->dtype, device)), true))
                          : NULL;
    operand[BIAS] =
        how->has_vectors ? good(tarn_requires_grad(good(tarn_normal(channels, 0.5, 2, wide, device)), true)) : NULL;
    operand[MEAN] = good(tarn_full(channels, 0.25, wide, device));
    operand[VARIANCE] = good(tarn_full(channels, 2, wide, device));
    if (!how->has_residual)
        operand[RESIDUAL] = NULL;
}

static tarn_tensor *fused(tarn_tensor *const *o, bool training)
{
    return good(tarn_batchnorm_relu(o[X], o[RESIDUAL], o[WEIGHT], o[BIAS], o[MEAN], o[VARIANCE],
                                    &(tarn_batchnorm_options){.training = training}));
}

static tarn_tensor *composed(tarn_tensor *const *o, bool training)
{
    tarn_tensor *y = good(tarn_batchnorm(o[X], o[WEIGHT], o[BIAS], o[MEAN], o[VARIANCE],
                                         &(tarn_batchnorm_options){.training = training}));
    return good(tarn_relu(o[RESIDUAL] ? good(tarn_add(y, o[RESIDUAL])) : y));
}

/* Both from copies of the same leaves. */
static void assert_same(const given *how, double tolerance)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *one[OPERANDS], *two[OPERANDS];
    draw(how, one);
    for (int i = 0; i < OPERANDS; i++) {
        two[i] = one[i] ? good(tarn_clone(tarn_detach(one[i]))) : NULL;
        if (two[i] && i <= RESIDUAL) /* a clone's elements lie in rows */
            two[i] = good(tarn_detach(laid_out(two[i], how->last)));
        if (two[i] && i < MEAN)
            good(tarn_requires_grad(two[i], true));
    }
    tarn_tensor *y = fused(one, how->training), *expected = composed(two, how->training);
    assert_close(y, expected, tolerance);
    assert_close(one[MEAN], two[MEAN], 0);
    assert_close(one[VARIANCE], two[VARIANCE], 0);
    if (tolerance == 0) {
        tarn_tensor *g = laid_out(good(tarn_normal(how->shape, 0, 1, how->dtype, device)), how->last);
        assert_true(tarn_backward_from(y, g, NULL));
        assert_true(tarn_backward_from(expected, g, NULL));
        for (int i = 0; i < MEAN; i++)
            if (one[i])
                assert_close(good(tarn_grad(one[i])), good(tarn_grad(two[i])), 0);
    }
    tarn_scope_close(scope);
}

/* To the last bit, but for 16-bit sums, which are rounded once here and twice there. */
static void it_is_batchnorm_a_sum_and_relu(void **state)
{
    (void)state;
    static const double tolerance[] = {[TARN_BF16] = 2e-2, [TARN_F16] = 2e-3, [TARN_F32] = 0, [TARN_F64] = 0};
    const tarn_shape shapes[] = {TARN_SHAPE(3, 4, 5, 6), TARN_SHAPE(40, 2, 1, 1), TARN_SHAPE(2, 3, 40, 50),
                                 TARN_SHAPE(5, 300, 3, 3), TARN_SHAPE(300, 16, 4, 4)};
    for (tarn_dtype dtype = TARN_F32; dtype <= TARN_F16; dtype++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
            for (int bits = 0; bits < 16; bits++) {
                given how = {dtype, shapes[i], bits & 1, bits & 2, bits & 4, bits & 8};
                assert_same(&how, how.has_residual ? tolerance[dtype] : 0);
            }
}

typedef struct check_case {
    bool training, last, has_residual;
} check_case;

static tarn_tensor *run(tarn_tensor *const *in, int count, void *ctx)
{
    const check_case *c = ctx;
    tarn_tensor *image[2] = {in[0], c->has_residual ? in[count - 1] : NULL};
    for (int i = 0; c->last && i < 2; i++)
        image[i] = image[i] ? tarn_permute(image[i], TARN_AXES(0, 3, 1, 2)) : NULL;
    tarn_tensor *mean = c->training ? NULL : tarn_full(TARN_SHAPE(6), 0.3, TARN_F64, device),
                *variance = c->training ? NULL : tarn_full(TARN_SHAPE(6), 2, TARN_F64, device);
    return tarn_batchnorm_relu(image[0], image[1], in[1], in[2], mean, variance,
                               &(tarn_batchnorm_options){.training = c->training});
}

static void gradients_agree_with_differences(void **state)
{
    (void)state;
    for (int bits = 0; bits < 8; bits++) {
        check_case c = {bits & 1, bits & 2, bits & 4};
        tarn_shape shape = c.last ? TARN_SHAPE(3, 4, 5, 6) : TARN_SHAPE(3, 6, 4, 5);
        tarn_tensor *in[] = {good(tarn_normal(shape, 0.5, 2, TARN_F64, device)),
                             good(tarn_normal(TARN_SHAPE(6), 0.5, 2, TARN_F64, device)),
                             good(tarn_normal(TARN_SHAPE(6), 0.5, 2, TARN_F64, device)),
                             good(tarn_normal(shape, 0.5, 2, TARN_F64, device))};
        for (int i = 0; i < 4; i++)
            good(tarn_requires_grad(in[i], true));
        tarn_gradcheck(run, &c, in, c.has_residual ? 4 : 3, NULL);
        assert_ok();
    }
}

/* Operands of different layouts, and only some gradients. */
static void any_operand_may_have_the_only_gradient_and_a_layout_of_its_own(void **state)
{
    (void)state;
    for (int training = 0; training < 2; training++)
        for (int wanted = X; wanted < MEAN; wanted++) {
            given how = {TARN_F32, TARN_SHAPE(4, 6, 7, 9), false, training, true, true};
            tarn_tensor *one[OPERANDS], *two[OPERANDS];
            draw(&how, one);
            one[RESIDUAL] = good(tarn_detach(laid_out(one[RESIDUAL], true)));
            for (int i = 0; i < OPERANDS; i++) {
                one[i] = good(tarn_detach(one[i]));
                two[i] = i == wanted || i >= MEAN ? good(tarn_clone(one[i])) : one[i];
            }
            good(tarn_requires_grad(one[wanted], true)), good(tarn_requires_grad(two[wanted], true));
            tarn_tensor *g = laid_out(good(tarn_normal(how.shape, 0, 1, TARN_F32, device)), training);
            assert_true(tarn_backward_from(fused(one, training), g, NULL));
            assert_true(tarn_backward_from(composed(two, training), g, NULL));
            assert_close(good(tarn_grad(one[wanted])), good(tarn_grad(two[wanted])), 1e-5);
        }
}

static void one_kernel_runs_each_way_and_nothing_is_copied(void **state)
{
    (void)state;
    for (int last = 0; last < 2; last++) {
        given how = {TARN_F32, TARN_SHAPE(4, 6, 7, 9), last, true, true, true};
        tarn_tensor *o[OPERANDS];
        draw(&how, o);
        tarn_tensor *g = laid_out(good(tarn_normal(how.shape, 0, 1, TARN_F32, device)), last);
        tarn_stats_reset();
        tarn_tensor *y = fused(o, true);
        assert_int_equal(tarn_stats().kernels, 1);
        assert_true(tarn_backward_from(y, g, NULL));
        assert_int_equal(tarn_stats().layout_copies, 0);
        for (int i = 0; i < 4; i++) /* x's layout is kept */
            assert_int_equal(tarn_stride_of(y, i), tarn_stride_of(o[X], i));
    }
}

/* 0 is not above 0; what is not a number goes through; numbers too small for f16 are 0 for the gradient, too. */
static void the_gradient_goes_where_the_result_is_above_zero(void **state)
{
    (void)state;
    static const float x[] = {-1, 0, 1, NAN};
    tarn_batchnorm_options o = {.epsilon = 1};
    for (int has_residual = 0; has_residual < 2; has_residual++) {
        tarn_tensor *in = good(tarn_requires_grad(good(tarn_from_f32(x, TARN_SHAPE(4, 1), device)), true));
        tarn_tensor *zero = good(tarn_zeros(TARN_SHAPE(4, 1), TARN_F32, device));
        tarn_tensor *y =
            good(tarn_batchnorm_relu(in, has_residual ? zero : NULL, NULL, NULL, number(0), number(3), &o));
        assert_true(tarn_backward_from(y, good(tarn_ones(TARN_SHAPE(4, 1), TARN_F32, device)), NULL));
        assert_values(good(tarn_grad(in)), 0, 0, 0, 0.5, 0.5);
    }
    tarn_tensor *tiny = good(tarn_requires_grad(good(tarn_full(TARN_SHAPE(2, 1), 0x1p-24, TARN_F16, device)), true));
    /* 2^-25, half of the least f16 above 0 */
    tarn_tensor *y = good(tarn_batchnorm_relu(tiny, NULL, NULL, NULL, number(0), number(3), &o));
    assert_values(y, 0, 0, 0);
    assert_true(tarn_backward_from(y, good(tarn_ones(TARN_SHAPE(2, 1), TARN_F16, device)), NULL));
    assert_values(good(tarn_grad(tiny)), 0, 0, 0);
}

static void empty_tensors_have_empty_results_and_zero_gradients(void **state)
{
    (void)state;
    tarn_tensor *w = good(tarn_requires_grad(numbers(1, 2), true)), *b = good(tarn_requires_grad(numbers(1, 2), true));
    tarn_tensor *x = good(tarn_zeros(TARN_SHAPE(0, 2, 3), TARN_F32, device)),
                *r = good(tarn_requires_grad(good(tarn_clone(x)), true));
    tarn_tensor *y = good(tarn_batchnorm_relu(x, r, w, b, numbers(0, 0), numbers(1, 1), NULL));
    assert_shape(y, 0, 2, 3);
    assert_true(tarn_backward_from(y, x, NULL));
    assert_values(good(tarn_grad(w)), 0, 0, 0);
    assert_shape(good(tarn_grad(r)), 0, 2, 3);
}

static void wrong_operands_are_errors_that_name_them(void **state)
{
    (void)state;
    tarn_batchnorm_options training = {.training = true};
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(5, 3, 4), TARN_F32, device));
    assert_null(tarn_batchnorm_relu(x, good(tarn_ones(TARN_SHAPE(5, 3, 1), TARN_F32, device)), NULL, NULL, NULL, NULL,
                                    &training));
    assert_error(TARN_ERROR_SHAPE, "batchnorm_relu: x [5, 3, 4] and residual [5, 3, 1] must have one shape");
    assert_null(tarn_batchnorm_relu(x, good(tarn_cast(x, TARN_F64)), NULL, NULL, NULL, NULL, &training));
    assert_error(TARN_ERROR_DTYPE, "batchnorm_relu: x is f32 and residual is f64");
    assert_null(tarn_batchnorm_relu(x, NULL, numbers(1, 2), NULL, NULL, NULL, &training));
    assert_error(TARN_ERROR_SHAPE, "batchnorm_relu: weight [2] does not fit x [5, 3, 4]: it must be [3]");
    assert_null(tarn_batchnorm_relu(x, NULL, NULL, NULL, NULL, NULL, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "batchnorm_relu: without .training it needs running_mean and running_var");
}

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {
        in_scope(it_is_batchnorm_a_sum_and_relu),
        in_scope(gradients_agree_with_differences),
        in_scope(any_operand_may_have_the_only_gradient_and_a_layout_of_its_own),
        in_scope(one_kernel_runs_each_way_and_nothing_is_copied),
        in_scope(the_gradient_goes_where_the_result_is_above_zero),
        in_scope(empty_tensors_have_empty_results_and_zero_gradients),
        in_scope(wrong_operands_are_errors_that_name_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
