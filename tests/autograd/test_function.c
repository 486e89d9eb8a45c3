/* test_function.c: user-defined operations: several inputs and outputs, wrong gradients, and a release called
 * exactly once. */
#include "support/check.h"

#define CPU tarn_device_cpu()

/* product and difference of two tensors; what went wrong is chosen by `mode`. */
typedef enum mode { RIGHT, WRONG_SHAPE, WRONG_DTYPE, FAILS, FAILS_SILENTLY, GIVES_NOTHING } mode;

typedef struct product {
    tarn_tensor *a, *b; /* kept */
    mode mode;
    int calls, arrived; /* bit i: output i had a gradient */
    int *released;
} product;

static void release_product(void *ctx)
{
    product *p = ctx;
    ++*p->released;
    tarn_free(p->a);
    tarn_free(p->b);
    free(p);
}

static bool product_backward(tarn_tensor *const *g, tarn_tensor **grads, void *ctx)
{
    product *p = ctx;
    p->calls++;
    p->arrived = (g[0] != NULL) | (g[1] != NULL) << 1;
    if (p->mode == FAILS)
        return tarn_set_error(TARN_ERROR_IO, "the user's own failure");
    if (p->mode == FAILS_SILENTLY)
        return false;
    if (p->mode == GIVES_NOTHING)
        return true;
    grads[0] = g[0] ? tarn_mul(g[0], p->b) : NULL;
    grads[1] = g[0] ? tarn_mul(g[0], p->a) : NULL;
    if (g[1]) {
        grads[0] = grads[0] ? tarn_add(grads[0], g[1]) : g[1];
        grads[1] = grads[1] ? tarn_sub(grads[1], g[1]) : tarn_neg(g[1]);
    }
    if (p->mode == WRONG_SHAPE)
        grads[1] = tarn_sum(grads[1], TARN_ALL_AXES, false);
    if (p->mode == WRONG_DTYPE)
        grads[1] = tarn_cast(grads[1], TARN_I32);
    return grads[0] && grads[1];
}

static product *record(tarn_tensor *a, tarn_tensor *b, mode how, int *released, tarn_tensor **out)
{
    product *p = calloc(1, sizeof(*p));
    assert_non_null(p);
    tarn_no_grad_open();
    *p = (product){.a = tarn_keep(tarn_detach(a)), .b = tarn_keep(tarn_detach(b)), .mode = how, .released = released};
    out[0] = tarn_mul(a, b);
    out[1] = tarn_sub(a, b);
    tarn_no_grad_close();
    *released = 0;
    tarn_tensor *in[] = {a, b};
    return tarn_function(in, 2, out, 2, product_backward, p, release_product) ? p : NULL;
}

static tarn_tensor *leaf2(float a, float b)
{
    return good(tarn_requires_grad(vector(a, b), true));
}

static tarn_tensor *sum(tarn_tensor *x)
{
    return good(tarn_sum(x, TARN_ALL_AXES, false));
}

static void several_inputs_and_outputs(void **state)
{
    (void)state;
    int released;
    tarn_tensor *a = leaf2(2, 3), *b = leaf2(5, 7), *out[2];
    product *p = record(a, b, RIGHT, &released, out);
    assert_non_null(p);
    assert_true(tarn_needs_grad(out[0]) && tarn_needs_grad(out[1]));
    tarn_backward_options retain = {.retain = true};
    assert_true(tarn_backward_from(tarn_add(sum(out[0]), sum(out[1])), NULL, &retain));
    assert_int_equal(p->arrived, 3);
    assert_values(tarn_grad(a), 0, 6, 8);
    assert_values(tarn_grad(b), 0, 1, 2);
    assert_true(tarn_backward_from(tarn_square(sum(out[1])), NULL, &retain)); /* only the second */
    assert_int_equal(p->arrived, 2);
    assert_values(tarn_grad(a), 0, 6 - 14, 8 - 14);
    assert_int_equal(released, 0);
    assert_true(tarn_backward(sum(out[0])));
    assert_int_equal(released, 1); /* the record is gone */
    assert_false(tarn_backward(sum(out[0])));
    assert_error(TARN_ERROR_ARGUMENT, "the record of function was freed by an earlier backward");
    assert_int_equal(released, 1);
}

static void release_comes_once_when_nothing_is_walked(void **state)
{
    (void)state;
    int released;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *out[2];
    assert_non_null(record(leaf2(1, 2), leaf2(3, 4), RIGHT, &released, out));
    assert_int_equal(released, 0);
    tarn_scope_close(scope);
    assert_int_equal(released, 1);
}

static void release_comes_at_once_when_nothing_is_recorded(void **state)
{
    (void)state;
    int released;
    tarn_tensor *out[2];
    record(good(vector(1, 2)), good(vector(3, 4)), RIGHT, &released, out);
    assert_ok();
    assert_int_equal(released, 1);
    assert_false(tarn_needs_grad(out[0]));
    tarn_no_grad_open();
    record(leaf2(1, 2), leaf2(3, 4), RIGHT, &released, out);
    tarn_no_grad_close();
    assert_int_equal(released, 1);
    assert_ok();
}

static int releases;

static void count_release(void *ctx)
{
    (void)ctx;
    releases++;
}

static void release_comes_once_when_the_call_fails(void **state)
{
    (void)state;
    tarn_tensor *x = leaf2(1, 2), *plain = good(vector(1, 2)), *whole = good(tarn_arange(0, 2, 1, TARN_I32, CPU));
    tarn_tensor *const null[] = {NULL}, *const in[] = {x}, *const out[] = {plain}, *const twice[] = {plain, plain},
                       *const ints[] = {whole};
    tarn_tensor *const recorded[] = {tarn_square(x)};
    releases = 0;
    assert_false(tarn_function(NULL, 1, out, 1, product_backward, x, count_release));
    assert_error(TARN_ERROR_ARGUMENT, "function");
    assert_false(tarn_function(in, 0, out, 1, product_backward, x, count_release));
    assert_error(TARN_ERROR_ARGUMENT, "function");
    assert_false(tarn_function(in, 1, NULL, 1, product_backward, x, count_release));
    assert_error(TARN_ERROR_ARGUMENT, "function");
    assert_false(tarn_function(in, 1, out, 1, NULL, x, count_release));
    assert_error(TARN_ERROR_ARGUMENT, "function");
    assert_false(tarn_function(null, 1, out, 1, product_backward, x, count_release));
    assert_error(TARN_ERROR_ARGUMENT, "function: an input is NULL");
    assert_false(tarn_function(in, 1, null, 1, product_backward, x, count_release));
    assert_error(TARN_ERROR_ARGUMENT, "function: an output is NULL");
    assert_false(tarn_function(in, 1, ints, 1, product_backward, x, count_release));
    assert_error(TARN_ERROR_DTYPE, "function: an output is i32");
    assert_false(tarn_function(in, 1, recorded, 1, product_backward, x, count_release));
    assert_error(TARN_ERROR_ARGUMENT, "function: output 0 is already part of a recorded computation");
    assert_false(tarn_function(in, 1, in, 1, product_backward, x, count_release));
    assert_error(TARN_ERROR_ARGUMENT, "function: output 0 is already part of a recorded computation");
    assert_false(tarn_function(in, 1, twice, 2, product_backward, x, count_release));
    assert_error(TARN_ERROR_ARGUMENT, "function: outputs 0 and 1 are the same tensor");
    assert_int_equal(releases, 10);
    tarn_set_error(TARN_ERROR_IO, "pending");
    assert_false(tarn_function(in, 1, out, 1, product_backward, x, count_release));
    assert_error(TARN_ERROR_IO, "pending");
    assert_int_equal(releases, 11);
    assert_false(tarn_function(in, 0, out, 1, product_backward, x, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "function");
}

static void wrong_gradients_are_refused(void **state)
{
    (void)state;
    static const struct {
        mode mode;
        tarn_code code;
        const char *text;
    } cases[] = {{WRONG_SHAPE, TARN_ERROR_SHAPE, "function: the gradient of input 1 is f32 [], the input f32 [2]"},
                 {WRONG_DTYPE, TARN_ERROR_SHAPE, "function: the gradient of input 1 is i32 [2]"},
                 {FAILS, TARN_ERROR_IO, "the user's own failure"},
                 {FAILS_SILENTLY, TARN_ERROR_ARGUMENT, "function: a user's backward failed without setting an error"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int released;
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *a = leaf2(2, 3), *b = leaf2(5, 7), *out[2];
        assert_non_null(record(a, b, cases[i].mode, &released, out));
        assert_false(tarn_backward(sum(out[0])));
        assert_error(cases[i].code, cases[i].text);
        assert_null(tarn_grad(b));
        tarn_scope_close(scope);
        assert_int_equal(released, 1);
    }
}

static void a_rule_may_give_nothing(void **state)
{
    (void)state;
    int released;
    tarn_tensor *a = leaf2(2, 3), *b = leaf2(5, 7), *out[2], *middle = tarn_square(a);
    assert_non_null(record(middle, b, GIVES_NOTHING, &released, out));
    assert_true(tarn_backward(sum(out[0])));
    assert_null(tarn_grad(a));
    assert_null(tarn_grad(b));
    assert_ok();
}

static void inputs_that_want_no_gradient_are_skipped(void **state)
{
    (void)state;
    int released;
    tarn_tensor *a = leaf2(2, 3), *b = good(vector(5, 7)), *out[2];
    assert_non_null(record(a, b, WRONG_SHAPE, &released, out)); /* the wrong one is b's, and nobody wants it */
    assert_true(tarn_backward(sum(out[0])));
    assert_values(tarn_grad(a), 0, 5, 7);
}

static void an_output_that_outlives_its_inputs(void **state)
{
    (void)state;
    int released;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *a = tarn_keep(leaf2(2, 3)), *out[2];
    assert_non_null(record(a, leaf2(5, 7), RIGHT, &released, out));
    out[1] = tarn_keep(out[1]);
    tarn_scope_close(scope);
    assert_int_equal(released, 0);
    assert_true(tarn_backward(sum(out[1])));
    assert_values(tarn_grad(a), 0, 1, 1);
    assert_int_equal(released, 1);
    tarn_free(out[1]);
    tarn_free(a);
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

static bool sigmoid_backward(tarn_tensor *const *g, tarn_tensor *const *saved, tarn_tensor **grads, void *ctx)
{
    (void)ctx;
    tarn_tensor *y = saved[0];
    grads[0] = tarn_mul(g[0], tarn_mul(y, tarn_sub(tarn_scalar(1), y)));
    return grads[0] != NULL && saved[1] == NULL;
}

/* sigmoid, whose backward needs its own output. */
static tarn_tensor *own_sigmoid(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)count;
    tarn_no_grad_open();
    tarn_tensor *y = tarn_sigmoid(inputs[0]), *saved[] = {y, NULL};
    tarn_no_grad_close();
    return tarn_function_save(inputs, 1, &y, 1, saved, 2, sigmoid_backward, ctx, NULL) ? y : NULL;
}

static void a_saved_output_reaches_backward(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(tarn_from_f64((const double[]){-2, 0, 0.5}, TARN_SHAPE(3), CPU), true));
    assert_true(tarn_gradcheck(own_sigmoid, NULL, &x, 1, NULL));
    assert_ok();
}

static void saved_tensors_go_with_the_record(void **state)
{
    (void)state;
    int64_t before = tarn_memory_of(CPU).blocks;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = leaf2(1, 2), *y = good(own_sigmoid(&x, 1, NULL)), *kept = good(tarn_keep(y));
    tarn_scope_close(scope); /* the record holds its own output without holding itself */
    assert_true(tarn_backward(sum(kept)));
    tarn_free(kept);
    scope = tarn_scope_open();
    x = leaf2(1, 2);
    good(own_sigmoid(&x, 1, NULL));
    tarn_scope_close(scope);
    tarn_scope_close(tarn_scope_open());
    assert_true(tarn_memory_of(CPU).blocks <= before + 1); /* that of the sum above, in the test's scope */
}

static void a_kept_handle_of_an_output_can_be_saved(void **state)
{
    (void)state;
    int64_t before = tarn_memory_of(CPU).blocks;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = leaf2(0, 0);
    tarn_no_grad_open();
    tarn_tensor *y = good(tarn_sigmoid(x)), *handle = good(tarn_keep(y)), *saved[] = {handle, NULL};
    tarn_no_grad_close();
    assert_true(tarn_function_save(&x, 1, &y, 1, saved, 2, sigmoid_backward, NULL, NULL));
    tarn_free(handle); /* the record has what it needs */
    assert_true(tarn_backward(sum(y)));
    assert_values(tarn_grad(x), 0, 0.25, 0.25);
    tarn_scope_close(scope);
    assert_int_equal(tarn_memory_of(CPU).blocks, before);
}

static bool scale_backward(tarn_tensor *const *g, tarn_tensor *const *saved, tarn_tensor **grads, void *ctx)
{
    (void)ctx;
    grads[0] = tarn_mul(g[0], saved[0]);
    return grads[0] != NULL;
}

static void a_saved_tensor_that_was_overwritten_is_named(void **state)
{
    (void)state;
    tarn_tensor *x = leaf2(2, 3), *scale = good(tarn_set_name(vector(5, 7), "scale"));
    tarn_no_grad_open();
    tarn_tensor *y = good(tarn_mul(x, scale));
    tarn_no_grad_close();
    assert_true(tarn_function_save(&x, 1, &y, 1, &scale, 1, scale_backward, NULL, NULL));
    assert_true(tarn_write(scale, (const float[]){1, 1}, 8));
    assert_false(tarn_backward(sum(y)));
    assert_error(TARN_ERROR_ARGUMENT, "backward: function_save needs a tensor [2] scale that was overwritten in place");
    assert_null(tarn_grad(x));
}

static void what_cannot_be_saved_is_refused(void **state)
{
    (void)state;
    tarn_tensor *x = leaf2(2, 3), *y = good(vector(1, 2)), *freed = vector(1, 2), *constant = tarn_scalar(2);
    tarn_free(freed);
    releases = 0;
    assert_false(tarn_function_save(&x, 1, &y, 1, &freed, 1, scale_backward, NULL, count_release));
    assert_error(TARN_ERROR_ARGUMENT, "function_save: a saved tensor was freed");
    assert_false(tarn_function_save(&x, 1, &y, 1, &constant, 1, scale_backward, NULL, count_release));
    assert_error(TARN_ERROR_ARGUMENT, "function_save: saved tensor 0 is a tarn_scalar()");
    assert_false(tarn_function_save(&x, 1, &y, 1, NULL, 1, scale_backward, NULL, count_release));
    assert_error(TARN_ERROR_ARGUMENT, "function_save: a list of 1 saved tensors that is NULL");
    assert_int_equal(releases, 3);
}

static bool freed_gradient(tarn_tensor *const *g, tarn_tensor **grads, void *ctx)
{
    (void)ctx;
    grads[0] = tarn_square(g[0]);
    tarn_free(grads[0]);
    return true;
}

static void a_gradient_that_was_freed_is_refused(void **state)
{
    (void)state;
    tarn_tensor *x = leaf2(2, 3), *y = good(vector(1, 2));
    assert_true(tarn_function(&x, 1, &y, 1, freed_gradient, NULL, NULL));
    assert_false(tarn_backward(sum(y)));
    assert_error(TARN_ERROR_ARGUMENT, "function: the gradient of an input was freed: f32 [2]");
}

/* A ctx that holds a handle on the input itself, as programs did before tensors could be saved. */
static bool square_backward(tarn_tensor *const *g, tarn_tensor **grads, void *ctx)
{
    grads[0] = tarn_mul(tarn_mul(g[0], ctx), tarn_scalar(2));
    return grads[0] != NULL;
}

static void free_handle(void *ctx)
{
    tarn_free(ctx);
}

static tarn_tensor *own_square(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)count, (void)ctx;
    tarn_no_grad_open();
    tarn_tensor *y = tarn_square(inputs[0]);
    tarn_no_grad_close();
    return tarn_function(inputs, 1, &y, 1, square_backward, tarn_keep(inputs[0]), free_handle) ? y : NULL;
}

static void a_kept_input_in_ctx_leaves_the_input_alone(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(tarn_from_f64((const double[]){-2, 0, 3}, TARN_SHAPE(3), CPU), true));
    assert_true(tarn_gradcheck(own_square, NULL, &x, 1, NULL));
    assert_values(x, 0, -2, 0, 3);
    assert_ok();
}

static bool keep_stride(tarn_tensor *const *g, tarn_tensor **grads, void *ctx)
{
    *(int64_t *)ctx = tarn_stride_of(g[0], 1);
    grads[0] = g[0];
    return true;
}

/* An image with channels last that is used twice: what flows back is added up in its order, so that nothing before it
 * has to turn it again. */
static void sums_of_gradients_keep_the_order_of_channels(void **state)
{
    (void)state;
    int64_t stride = 0;
    tarn_tensor *rows = good(tarn_uniform(TARN_SHAPE(2, 4, 5, 3), -1, 1, TARN_F32, CPU));
    tarn_requires_grad(rows, true);
    tarn_tensor *x = good(tarn_permute(rows, TARN_AXES(0, 3, 1, 2)));
    tarn_no_grad_open();
    tarn_tensor *y = good(tarn_relu(x));
    tarn_no_grad_close();
    assert_int_equal(tarn_stride_of(y, 1), 1);
    assert_true(tarn_function(&x, 1, &y, 1, keep_stride, &stride, NULL));
    tarn_tensor *z = good(tarn_add(tarn_relu(y), y)); /* both get the same gradient, which must not be written to */
    assert_true(tarn_backward(sum(good(tarn_exp(z)))));
    assert_int_equal(stride, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(several_inputs_and_outputs),
        in_scope(release_comes_once_when_nothing_is_walked),
        in_scope(release_comes_at_once_when_nothing_is_recorded),
        in_scope(release_comes_once_when_the_call_fails),
        in_scope(wrong_gradients_are_refused),
        in_scope(a_rule_may_give_nothing),
        in_scope(inputs_that_want_no_gradient_are_skipped),
        in_scope(an_output_that_outlives_its_inputs),
        in_scope(a_saved_output_reaches_backward),
        in_scope(saved_tensors_go_with_the_record),
        in_scope(a_kept_handle_of_an_output_can_be_saved),
        in_scope(a_saved_tensor_that_was_overwritten_is_named),
        in_scope(what_cannot_be_saved_is_refused),
        in_scope(a_gradient_that_was_freed_is_refused),
        in_scope(a_kept_input_in_ctx_leaves_the_input_alone),
        in_scope(sums_of_gradients_keep_the_order_of_channels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
