/* test_gradcheck.c: gradcheck passes correct gradients and finds wrong ones. */
#include "support/check.h"

#define CPU tarn_device_cpu()

static tarn_tensor *f64(double a, double b, double c)
{
    return good(tarn_requires_grad(tarn_from_f64((const double[]){a, b, c}, TARN_SHAPE(3), CPU), true));
}

static tarn_tensor *mixture(tarn_tensor *const *in, int count, void *ctx)
{
    (void)ctx;
    tarn_tensor *y = tarn_mul(tarn_tanh(in[0]), tarn_exp(in[0]));
    return count > 1 ? tarn_div(y, tarn_add(tarn_square(in[1]), tarn_scalar(1))) : y;
}

static void right_gradients_pass(void **state)
{
    (void)state;
    tarn_tensor *a = f64(0.3, -1.2, 2), *b = f64(1, 0.5, -0.7), *in[] = {a, b};
    assert_true(tarn_gradcheck(mixture, NULL, in, 2, NULL));
    assert_ok();
    assert_values(a, 0, 0.3, -1.2, 2); /* the inputs are as before */
    tarn_requires_grad(b, false);
    assert_true(
        tarn_gradcheck(mixture, NULL, in, 2, &(tarn_gradcheck_options){.seed = 4, .step = 1e-5, .tolerance = 1e-6}));
    assert_ok();
}

/* y = x², with a gradient that is off by a factor, at every element or at the last. */
static bool wrong_backward(tarn_tensor *const *g, tarn_tensor **grads, void *ctx)
{
    tarn_tensor *x = ctx;
    grads[0] = tarn_mul(g[0], tarn_mul(x, tarn_from_f64((const double[]){2, 2, 2.001}, TARN_SHAPE(3), CPU)));
    return grads[0] != NULL;
}

static tarn_tensor *wrong_square(tarn_tensor *const *in, int count, void *ctx)
{
    (void)count, (void)ctx;
    tarn_no_grad_open();
    tarn_tensor *y = tarn_square(in[0]);
    tarn_no_grad_close();
    return y && tarn_function(in, 1, &y, 1, wrong_backward, in[0], NULL) ? y : NULL;
}

static void a_wrong_gradient_is_found(void **state)
{
    (void)state;
    tarn_tensor *x = f64(1, 2, 3), *in[] = {x};
    assert_false(tarn_gradcheck(wrong_square, NULL, in, 1, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "gradcheck: input 0, element 2: backward gives");
    assert_values(x, 0, 1, 2, 3);
    assert_true(tarn_gradcheck(wrong_square, NULL, in, 1, &(tarn_gradcheck_options){.tolerance = 0.01}));
}

static tarn_tensor *cut(tarn_tensor *const *in, int count, void *ctx)
{
    (void)count, (void)ctx;
    return tarn_mul(in[0], tarn_detach(in[0])); /* half of the gradient is missing */
}

static void a_missing_gradient_is_found(void **state)
{
    (void)state;
    tarn_tensor *in[] = {f64(1, 2, 3)};
    assert_false(tarn_gradcheck(cut, NULL, in, 1, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "gradcheck: input 0");
    tarn_tensor *two[] = {f64(1, 2, 3), f64(1, 2, 3)}; /* an input that is not used has the gradient 0 */
    assert_true(tarn_gradcheck(mixture, NULL, two, 1, NULL));
}

static tarn_tensor *noisy(tarn_tensor *const *in, int count, void *ctx)
{
    (void)count, (void)ctx;
    return tarn_mul(in[0], tarn_uniform_like(in[0], 1, 2));
}

static void random_numbers_inside_stay_the_same(void **state)
{
    (void)state;
    tarn_tensor *in[] = {f64(1, 2, 3)};
    assert_true(tarn_gradcheck(noisy, NULL, in, 1, NULL));
    assert_ok();
}

static int fail_at, calls;

static tarn_tensor *failing(tarn_tensor *const *in, int count, void *ctx)
{
    (void)count, (void)ctx;
    if (calls++ == fail_at) {
        tarn_set_error(TARN_ERROR_FORMAT, "not now");
        return NULL;
    }
    return tarn_square(in[0]);
}

static void a_failing_block_is_an_error_and_leaves_the_inputs(void **state)
{
    (void)state;
    for (fail_at = 0; fail_at < 7; fail_at++) {
        tarn_tensor *x = f64(1, 2, 3), *in[] = {x};
        calls = 0;
        assert_false(tarn_gradcheck(failing, NULL, in, 1, NULL));
        assert_error(TARN_ERROR_FORMAT, "not now");
        assert_values(x, 0, 1, 2, 3);
        assert_true(tarn_grad_enabled());
    }
}

static tarn_tensor *to_f32(tarn_tensor *const *in, int count, void *ctx)
{
    (void)count, (void)ctx;
    return tarn_cast(in[0], TARN_F32);
}

static void only_f64_is_checked(void **state)
{
    (void)state;
    tarn_tensor *in[] = {good(tarn_requires_grad(vector(1), true))};
    assert_false(tarn_gradcheck(mixture, NULL, in, 1, NULL));
    assert_error(TARN_ERROR_DTYPE, "gradcheck: an input is f32");
    in[0] = f64(1, 2, 3);
    assert_false(tarn_gradcheck(to_f32, NULL, in, 1, NULL));
    assert_error(TARN_ERROR_DTYPE, "gradcheck: the result is f32");
    tarn_requires_grad(in[0], false);
    assert_false(tarn_gradcheck(mixture, NULL, in, 1, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "gradcheck: the result does not depend");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(right_gradients_pass),
        in_scope(a_wrong_gradient_is_found),
        in_scope(a_missing_gradient_is_found),
        in_scope(random_numbers_inside_stay_the_same),
        in_scope(a_failing_block_is_an_error_and_leaves_the_inputs),
        in_scope(only_f64_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
