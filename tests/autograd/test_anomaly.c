/* test_anomaly.c: the first operation that produces a non-finite value from finite operands is named, forward and
 * backward; others are not. */
#include "support/check.h"

#define CPU tarn_device_cpu()
#define leaf(...) good(tarn_requires_grad(vector(__VA_ARGS__), true))

static int switch_on(void **state)
{
    tarn_set_anomaly(true);
    return open_test(state);
}

static int switch_off(void **state)
{
    tarn_set_anomaly(false);
    return close_test(state);
}

#define in_anomaly_mode(test) cmocka_unit_test_setup_teardown(test, switch_on, switch_off)

static tarn_tensor *sum(tarn_tensor *x)
{
    return good(tarn_sum(x, TARN_ALL_AXES, false));
}

static void a_forward_operation_is_named(void **state)
{
    (void)state;
    assert_null(tarn_log(vector(1, 0, -1)));
    assert_contains(tarn_error(), "2 values that are not finite");
    assert_error(TARN_ERROR_ARGUMENT, "anomaly: log produced");
    assert_null(tarn_div(vector(1), vector(0)));
    assert_error(TARN_ERROR_ARGUMENT, "anomaly: div produced 1 value that is not finite");
    assert_null(tarn_exp(tarn_full(TARN_SHAPE(3), 20, TARN_F16, CPU)));
    assert_error(TARN_ERROR_ARGUMENT, "anomaly: exp");
    assert_null(tarn_cast(vector(1e30f), TARN_F16));
    assert_error(TARN_ERROR_ARGUMENT, "anomaly: cast");
    good(tarn_exp(vector(1)));
}

static void operands_that_are_not_finite_are_not_blamed_on_the_operation(void **state)
{
    (void)state;
    tarn_tensor *bad = good(vector(NAN, INFINITY));
    good(tarn_add(bad, bad));
    good(tarn_mul(tarn_square(bad), vector(1, 2)));
    good(tarn_sum(bad, TARN_ALL_AXES, false));
    good(tarn_gt(bad, tarn_scalar(0)));
}

static void a_backward_rule_is_named(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(0, 1);
    assert_false(tarn_backward(sum(tarn_sqrt(x)))); /* finite forward, infinite gradient at 0 */
    assert_error(TARN_ERROR_ARGUMENT, "anomaly: the backward of sqrt produced 1 value that is not finite");
    tarn_tensor *y = leaf(1, 2);
    assert_true(tarn_backward(sum(tarn_sqrt(y))));
    tarn_tensor *deep = leaf(0, 4); /* the first on the way back is named, not the last */
    assert_false(tarn_backward(sum(tarn_square(tarn_sqrt(tarn_mul(tarn_exp(deep), tarn_scalar(0)))))));
    assert_error(TARN_ERROR_ARGUMENT, "the backward of sqrt");
}

static bool overflowing_rule(tarn_tensor *const *g, tarn_tensor **grads, void *ctx)
{
    (void)ctx;
    grads[0] = tarn_mul(g[0], tarn_exp(tarn_full_like(g[0], 200))); /* its inner steps are not what is named */
    return grads[0] != NULL;
}

static void a_users_rule_is_named_and_not_its_steps(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(1, 2), *const in[] = {x}, *out[] = {good(vector(1, 2))};
    assert_true(tarn_function(in, 1, out, 1, overflowing_rule, NULL, NULL));
    assert_false(tarn_backward(sum(out[0])));
    assert_error(TARN_ERROR_ARGUMENT, "the backward of function");
}

static void gradients_and_saved_values_that_are_not_finite_blame_nobody(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(1, 2);
    assert_true(tarn_backward_from(tarn_square(x), good(vector(INFINITY, 1)), NULL)); /* the caller's own */
    tarn_zero_grad(x);
    assert_true(tarn_backward(sum(tarn_mul(x, vector(INFINITY, 1))))); /* what mul saved is not finite */
    assert_values(tarn_grad(x), 0, INFINITY, 1);
    assert_true(tarn_backward(sum(tarn_square(x)))); /* a finite one is added to it: square is not to blame */
    assert_values(tarn_grad(x), 0, INFINITY, 5);
}

static void one_branch_does_not_blame_the_other(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(1, 2), *h = tarn_mul(x, tarn_scalar(1));
    /* walked first: h has an infinite gradient */
    tarn_tensor *good_branch = tarn_square(h), *bad_branch = tarn_mul(h, vector(INFINITY, 1));
    assert_true(tarn_backward(tarn_add(sum(good_branch), sum(bad_branch))));
    assert_values(tarn_grad(x), 0, INFINITY, 5);
    assert_ok();
}

static void a_matrix_product_is_named(void **state)
{
    (void)state;
    tarn_tensor *a = good(tarn_full(TARN_SHAPE(2, 2), 1e30, TARN_F32, CPU));
    assert_null(tarn_matmul(a, a));
    assert_error(TARN_ERROR_ARGUMENT, "anomaly: matmul produced 4 values");
    tarn_tensor *w = good(tarn_requires_grad(tarn_full(TARN_SHAPE(2, 2), 1e-30, TARN_F32, CPU), true));
    tarn_tensor *y = good(tarn_matmul(w, a)), *g = good(tarn_full(TARN_SHAPE(2, 2), 1e30, TARN_F32, CPU));
    assert_false(tarn_backward_from(y, g, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "the backward of matmul");
    tarn_tensor *small = good(tarn_ones(TARN_SHAPE(2, 2), TARN_F32, CPU));
    assert_true(tarn_backward_from(tarn_matmul(w, small), small, NULL)); /* and a finite one passes and adds up */
    assert_true(tarn_backward_from(tarn_matmul(w, small), small, NULL));
    assert_values(tarn_grad(w), 0, 4, 4, 4, 4);
}

static void off_means_off(void **state)
{
    (void)state;
    tarn_set_anomaly(false);
    assert_values(tarn_log(vector(0)), 0, -INFINITY);
    tarn_tensor *x = leaf(0);
    assert_true(tarn_backward(sum(tarn_sqrt(x))));
    assert_values(tarn_grad(x), 0, INFINITY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_anomaly_mode(a_forward_operation_is_named),
        in_anomaly_mode(operands_that_are_not_finite_are_not_blamed_on_the_operation),
        in_anomaly_mode(a_backward_rule_is_named),
        in_anomaly_mode(a_users_rule_is_named_and_not_its_steps),
        in_anomaly_mode(gradients_and_saved_values_that_are_not_finite_blame_nobody),
        in_anomaly_mode(one_branch_does_not_blame_the_other),
        in_anomaly_mode(a_matrix_product_is_named),
        in_anomaly_mode(off_means_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
