/* test_activation_checkpoint.c: a checkpointed function gives the same gradients as a stored one. */
#include <tarn/profile.h>

#include "support/check.h"

#define CPU tarn_device_cpu()

static tarn_tensor *sum(tarn_tensor *x)
{
    return good(tarn_sum(x, TARN_ALL_AXES, false));
}

static tarn_tensor *leaf_of(int64_t count)
{
    return good(tarn_requires_grad(tarn_normal(TARN_SHAPE(count), 0, 1, TARN_F32, CPU), true));
}

typedef struct block_ctx {
    tarn_tensor *parameter;
    int runs;
    bool fail_in_backward;
} block_ctx;

static tarn_tensor *curve(tarn_tensor *const *inputs, int count, void *ctx)
{
    block_ctx *c = ctx;
    if (c)
        c->runs++;
    if (c && c->fail_in_backward && c->runs > 1) {
        tarn_set_error(TARN_ERROR_FORMAT, "the block does not want to");
        return NULL;
    }
    tarn_tensor *y = tarn_tanh(inputs[0]);
    for (int i = 1; i < count; i++)
        y = tarn_mul(tarn_add(y, inputs[i]), inputs[i]);
    return c && c->parameter ? tarn_mul(y, c->parameter) : y;
}

static void gradients_are_the_same_as_without(void **state)
{
    (void)state;
    tarn_tensor *a = leaf_of(5), *b = leaf_of(5), *p = leaf_of(5), *in[] = {a, b};
    block_ctx ctx = {.parameter = p};
    assert_true(tarn_backward(sum(tarn_square(curve(in, 2, &ctx)))));
    tarn_tensor *all[] = {a, b, p}, *expected[3];
    for (int i = 0; i < 3; i++) {
        expected[i] = good(tarn_clone(tarn_grad(all[i])));
        tarn_zero_grad(all[i]);
    }
    ctx.runs = 0;
    tarn_tensor *y = good(tarn_checkpoint(curve, &ctx, in, 2));
    assert_int_equal(ctx.runs, 1);
    assert_true(tarn_needs_grad(y));
    assert_true(tarn_backward(sum(tarn_square(y))));
    assert_int_equal(ctx.runs, 2);
    for (int i = 0; i < 3; i++)
        assert_close(tarn_grad(all[i]), expected[i], 0);
}

static void gradients_go_on_before_the_block(void **state)
{
    (void)state;
    tarn_tensor *x = leaf_of(4);
    tarn_tensor *in[] = {tarn_square(x)};
    assert_true(tarn_backward(sum(curve(in, 1, NULL))));
    tarn_tensor *expected = good(tarn_clone(tarn_grad(x)));
    tarn_zero_grad(x);
    in[0] = tarn_square(x);
    tarn_tensor *y = good(tarn_checkpoint(curve, NULL, in, 1));
    assert_true(tarn_backward(sum(y)));
    assert_close(tarn_grad(x), expected, 0);
}

static void parameters_inside_get_gradients_even_where_no_input_wants_one(void **state)
{
    (void)state;
    tarn_tensor *p = leaf_of(3), *in[] = {good(vector(1, 2, 3))};
    block_ctx ctx = {.parameter = p};
    tarn_tensor *y = good(tarn_checkpoint(curve, &ctx, in, 1));
    assert_true(tarn_backward(sum(y)));
    assert_values(tarn_grad(p), 1e-6, tanh(1), tanh(2), tanh(3));
}

static tarn_tensor *drop_half(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)count, (void)ctx;
    tarn_tensor *noise = tarn_uniform(tarn_shape_of(inputs[0]), 0, 1, TARN_F32, CPU);
    return tarn_dropout(tarn_mul(tarn_square(inputs[0]), noise), 0.5);
}

static void random_numbers_inside_are_drawn_again(void **state)
{
    (void)state;
    tarn_tensor *x = leaf_of(1000), *in[] = {x};
    tarn_seed(17);
    assert_true(tarn_backward(sum(drop_half(in, 1, NULL))));
    tarn_tensor *expected = good(tarn_clone(tarn_grad(x))),
                *after = good(tarn_uniform(TARN_SHAPE(4), 0, 1, TARN_F32, CPU));
    tarn_zero_grad(x);
    tarn_seed(17);
    tarn_tensor *y = good(tarn_checkpoint(drop_half, NULL, in, 1));
    assert_true(tarn_backward(sum(y)));
    assert_close(tarn_grad(x), expected, 0);
    /* the generator goes on as if it had run once */
    assert_close(tarn_uniform(TARN_SHAPE(4), 0, 1, TARN_F32, CPU), after, 0);
}

static tarn_tensor *pass(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)count, (void)ctx;
    return inputs[0];
}

static void a_block_may_return_its_input(void **state)
{
    (void)state;
    tarn_tensor *x = leaf_of(3), *in[] = {x};
    tarn_tensor *y = good(tarn_checkpoint(pass, NULL, in, 1));
    assert_true(tarn_backward(sum(tarn_mul(y, tarn_scalar(3)))));
    assert_values(tarn_grad(x), 0, 3, 3, 3);
    tarn_zero_grad(x);
    in[0] = tarn_mul(x, tarn_scalar(2)); /* not a leaf */
    y = good(tarn_checkpoint(pass, NULL, in, 1));
    assert_true(tarn_backward(tarn_add(sum(y), sum(in[0]))));
    assert_values(tarn_grad(x), 0, 4, 4, 4);
}

static void the_same_input_twice(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(vector(0.5f), true)), *in[] = {x, x};
    assert_true(tarn_backward(tarn_checkpoint(curve, NULL, in, 2))); /* (tanh x + x) x */
    assert_values(tarn_grad(x), 1e-6, tanh(0.5) + 0.5 + 0.5 * (2 - tanh(0.5) * tanh(0.5)));
}

static tarn_tensor *nested(tarn_tensor *const *inputs, int count, void *ctx)
{
    return tarn_square(tarn_checkpoint(curve, ctx, inputs, count));
}

static void checkpoints_nest(void **state)
{
    (void)state;
    tarn_tensor *x = leaf_of(4), *in[] = {x};
    assert_true(tarn_backward(sum(tarn_square(curve(in, 1, NULL)))));
    tarn_tensor *expected = good(tarn_clone(tarn_grad(x)));
    tarn_zero_grad(x);
    assert_true(tarn_backward(sum(tarn_checkpoint(nested, NULL, in, 1))));
    assert_close(tarn_grad(x), expected, 0);
}

static tarn_tensor *deep(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)count, (void)ctx;
    tarn_tensor *y = inputs[0];
    for (int i = 0; i < 10; i++)
        y = tarn_tanh(y);
    return y;
}

static void less_memory_is_held(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(tarn_ones(TARN_SHAPE(100000), TARN_F32, CPU), true)), *in[] = {x};
    int64_t before = tarn_memory_of(CPU).used;
    tarn_tensor *y = good(tarn_checkpoint(deep, NULL, in, 1));
    assert_true(tarn_memory_of(CPU).used - before < 2 * 400384);
    assert_true(tarn_backward(sum(y)));
}

static void without_gradients_nothing_is_recorded(void **state)
{
    (void)state;
    tarn_tensor *in[] = {good(vector(1))};
    block_ctx ctx = {0};
    assert_false(tarn_needs_grad(good(tarn_checkpoint(curve, &ctx, in, 1))));
    tarn_tensor *x = leaf_of(1);
    in[0] = x;
    tarn_no_grad_open();
    assert_false(tarn_needs_grad(good(tarn_checkpoint(curve, &ctx, in, 1))));
    tarn_no_grad_close();
    assert_int_equal(ctx.runs, 2);
}

static tarn_tensor *nothing(tarn_tensor *const *inputs, int count, void *ctx)
{
    (void)inputs, (void)count, (void)ctx;
    return NULL;
}

static void a_failing_block_is_an_error(void **state)
{
    (void)state;
    tarn_tensor *x = leaf_of(2), *in[] = {x};
    assert_null(tarn_checkpoint(nothing, NULL, in, 1));
    assert_error(TARN_ERROR_ARGUMENT, "checkpoint: the function returned NULL");
    block_ctx ctx = {.fail_in_backward = true};
    tarn_tensor *y = good(tarn_checkpoint(curve, &ctx, in, 1));
    assert_false(tarn_backward(sum(y)));
    assert_error(TARN_ERROR_FORMAT, "the block does not want to");
    assert_true(tarn_grad_enabled());
    assert_null(tarn_grad(x));
}

static void an_overwritten_input_is_refused(void **state)
{
    (void)state;
    tarn_tensor *p = leaf_of(2), *x = good(vector(1, 2)), *in[] = {x};
    block_ctx ctx = {.parameter = p};
    tarn_tensor *y = good(tarn_checkpoint(curve, &ctx, in, 1));
    good(tarn_add_inplace(x, tarn_scalar(1)));
    assert_false(tarn_backward(sum(y)));
    assert_error(TARN_ERROR_ARGUMENT, "backward: checkpoint needs a tensor [2]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(gradients_are_the_same_as_without),
        in_scope(gradients_go_on_before_the_block),
        in_scope(parameters_inside_get_gradients_even_where_no_input_wants_one),
        in_scope(random_numbers_inside_are_drawn_again),
        in_scope(a_block_may_return_its_input),
        in_scope(the_same_input_twice),
        in_scope(checkpoints_nest),
        in_scope(less_memory_is_held),
        in_scope(without_gradients_nothing_is_recorded),
        in_scope(a_failing_block_is_an_error),
        in_scope(an_overwritten_input_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
