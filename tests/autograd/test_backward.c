/* test_backward.c: gradients through any record: chains, diamonds, broadcasts, views; overwritten or freed tensors
 * are errors. */
#include <tarn/profile.h>

#include "autograd/tape.h"
#include "support/check.h"

#define CPU tarn_device_cpu()
#define leaf(...) good(tarn_requires_grad(vector(__VA_ARGS__), true))

static tarn_tensor *sum(tarn_tensor *x)
{
    return good(tarn_sum(x, TARN_ALL_AXES, false));
}

static void a_chain(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(0.5f, -1);
    assert_null(tarn_grad(x));
    assert_ok();
    assert_true(tarn_needs_grad(x));
    tarn_tensor *y = tarn_exp(tarn_mul(tarn_square(x), tarn_scalar(2))); /* exp(2x²), derivative 4x exp(2x²) */
    assert_true(tarn_needs_grad(y));
    assert_true(tarn_backward(sum(y)));
    assert_values(tarn_grad(x), 1e-5, 2 * exp(0.5), -4 * exp(2));
    assert_shape(tarn_grad(x), 2);
    assert_false(tarn_needs_grad(tarn_grad(x)));
}

static void a_diamond_adds_both_ways(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(3);
    tarn_tensor *a = tarn_square(x), *b = tarn_mul(x, tarn_scalar(5)), *c = tarn_mul(a, b); /* 5x³ */
    assert_true(tarn_backward(tarn_add(c, a)));                                             /* 15x² + 2x */
    assert_values(tarn_grad(x), 1e-5, 141);
}

static void the_same_tensor_twice(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(3, -2);
    assert_true(tarn_backward(sum(tarn_mul(x, x))));
    assert_values(tarn_grad(x), 0, 6, -4);
    tarn_zero_grad(x);
    assert_true(tarn_backward(sum(tarn_add(x, x))));
    assert_values(tarn_grad(x), 0, 2, 2);
    tarn_zero_grad(x);
    assert_true(tarn_backward(sum(tarn_sub(x, x))));
    assert_values(tarn_grad(x), 0, 0, 0);
    tarn_zero_grad(x);
    tarn_tensor *y = tarn_neg(x); /* not a leaf */
    assert_true(tarn_backward(sum(tarn_mul(y, y))));
    assert_values(tarn_grad(x), 0, 6, -4);
    tarn_zero_grad(x);
    assert_true(tarn_backward(sum(tarn_maximum(x, x))));
    assert_values(tarn_grad(x), 0, 1, 1);
}

/* Rules that open several accumulators before they close one. */
static void the_same_leaf_in_every_place_of_one_operation(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(tarn_from_f64((const double[]){0.5, -1, 2}, TARN_SHAPE(3), CPU), true));
    tarn_tensor *apart[3];
    for (int i = 0; i < 3; i++)
        apart[i] = good(tarn_requires_grad(tarn_clone(tarn_detach(x)), true));
    tarn_tensor *weight = good(tarn_from_f64((const double[]){1, 2, 3}, TARN_SHAPE(3), CPU));
    for (int round = 0; round < 2; round++) { /* the second adds to the first */
        assert_true(tarn_backward(sum(tarn_mul(weight, tarn_layernorm(x, x, x, 1e-5)))));
        assert_true(tarn_backward(sum(tarn_mul(weight, tarn_layernorm(apart[0], apart[1], apart[2], 1e-5)))));
    }
    tarn_tensor *expected = tarn_add(tarn_add(tarn_grad(apart[0]), tarn_grad(apart[1])), tarn_grad(apart[2]));
    assert_close(tarn_grad(x), expected, 1e-12);
    tarn_tensor *m =
        good(tarn_requires_grad(tarn_reshape(tarn_arange(0, 4, 1, TARN_F64, CPU), TARN_SHAPE(2, 2)), true));
    for (int round = 1; round <= 2; round++) {
        assert_true(tarn_backward(sum(tarn_matmul(m, m))));
        assert_values(tarn_grad(m), 1e-12, round * 3, round * 7, round * 5, round * 9);
    }
    tarn_zero_grad(m);
    tarn_tensor *n = tarn_mul(m, tarn_scalar(1)); /* the same through a node */
    assert_true(tarn_backward(sum(tarn_matmul(n, n))));
    assert_values(tarn_grad(m), 1e-12, 3, 7, 5, 9);
}

/* 2a + 3b, with a rule that opens both accumulators before it writes into either. */
static bool weighted_backward(const tarn__backward *b)
{
    tarn__grad_acc acc[2];
    if (!tarn__grad_acc_open(b, 0, &acc[0]) || !tarn__grad_acc_open(b, 1, &acc[1]))
        return false;
    for (int i = 0; i < 2; i++) {
        tarn_tensor *product = tarn_mul(b->grads[0], tarn_scalar(2 + i));
        if (acc[i].beta != 0)
            product = tarn_add(product, acc[i].tensor);
        if (!product || !tarn_copy(acc[i].tensor, product))
            return false;
    }
    return tarn__grad_acc_close(b, 0, &acc[0]) && tarn__grad_acc_close(b, 1, &acc[1]);
}

static tarn_tensor *weighted(tarn_tensor *a, tarn_tensor *b)
{
    tarn_no_grad_open();
    tarn_tensor *y = good(tarn_add(tarn_mul(a, tarn_scalar(2)), tarn_mul(b, tarn_scalar(3)))), *in[] = {a, b};
    tarn_no_grad_close();
    assert_true(tarn__record(&(tarn__recording){.function = "weighted",
                                                .rule = weighted_backward,
                                                .inputs = in,
                                                .input_count = 2,
                                                .outputs = &y,
                                                .output_count = 1}));
    return y;
}

static void two_sinks_of_one_tensor_may_be_open_at_once(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(1, 2), *y = leaf(1, 2);
    for (int round = 1; round <= 3; round++) {
        assert_true(tarn_backward(sum(weighted(x, x))));
        assert_values(tarn_grad(x), 0, 5 * round, 5 * round);
        tarn_tensor *h = tarn_neg(y); /* through a node, beside another use of it */
        assert_true(tarn_backward(tarn_add(sum(weighted(h, h)), tarn_add(sum(weighted(y, h)), sum(tarn_square(h))))));
        assert_values(tarn_grad(y), 0, (-5 + 2 - 3 + 2) * round, (-5 + 2 - 3 + 4) * round);
    }
}

static void broadcasting_is_undone(void **state)
{
    (void)state;
    tarn_tensor *a = good(tarn_requires_grad(tarn_ones(TARN_SHAPE(2, 3), TARN_F32, CPU), true));
    tarn_tensor *row = leaf(1, 2, 3), *one = good(tarn_requires_grad(tarn_full(TARN_SCALAR, 2, TARN_F32, CPU), true));
    tarn_tensor *column = good(tarn_requires_grad(tarn_ones(TARN_SHAPE(2, 1), TARN_F32, CPU), true));
    tarn_tensor *y = tarn_mul(tarn_mul(tarn_add(a, row), column), one);
    assert_true(tarn_backward(sum(y)));
    assert_values(tarn_grad(a), 0, 2, 2, 2, 2, 2, 2);
    assert_values(tarn_grad(row), 0, 4, 4, 4);
    assert_values(tarn_grad(column), 0, 18, 18);
    assert_shape(tarn_grad(column), 2, 1);
    assert_values(tarn_grad(one), 0, 18);
    assert_int_equal(tarn_rank(tarn_grad(one)), 0);
    tarn_tensor *empty = good(tarn_requires_grad(tarn_ones(TARN_SHAPE(0, 3), TARN_F32, CPU), true)), *r = leaf(1, 2, 3);
    assert_true(tarn_backward(sum(tarn_mul(empty, r))));
    assert_values(tarn_grad(r), 0, 0, 0, 0);
    assert_shape(tarn_grad(empty), 0, 3);
}

static void several_passes_add_up(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(1, 2);
    for (int i = 1; i <= 3; i++) {
        assert_true(tarn_backward(sum(tarn_square(x))));
        assert_values(tarn_grad(x), 0, 2 * i, 4 * i);
    }
    tarn_zero_grad(x);
    assert_null(tarn_grad(x));
    assert_ok();
    assert_true(tarn_backward(sum(tarn_square(x))));
    assert_values(tarn_grad(x), 0, 2, 4);
}

static void a_record_serves_once_unless_it_is_retained(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(3), *y = tarn_square(x), *loss = tarn_mul(y, tarn_scalar(2));
    tarn_backward_options retain = {.retain = true};
    assert_true(tarn_backward_from(loss, NULL, &retain));
    assert_true(tarn_backward_from(loss, NULL, &retain));
    assert_values(tarn_grad(x), 0, 24);
    assert_true(tarn_backward(loss));
    assert_values(tarn_grad(x), 0, 36);
    assert_false(tarn_backward(loss));
    assert_error(TARN_ERROR_ARGUMENT, "the record of mul was freed by an earlier backward");
    assert_values(tarn_grad(x), 0, 36);
    tarn_tensor *other = tarn_mul(y, tarn_scalar(3)); /* a new end on a record that is gone */
    assert_false(tarn_backward(other));
    assert_error(TARN_ERROR_ARGUMENT, "the record of square was freed by an earlier backward");
}

static void activations_are_released_on_the_way(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(1, 2, 3);
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *y = x;
    for (int i = 0; i < 20; i++)
        y = tarn_tanh(y);
    tarn_tensor *loss = tarn_keep(sum(y));
    tarn_scope_close(scope);
    int64_t held = tarn_memory_of(CPU).blocks;
    assert_true(tarn_backward(loss));
    assert_true(tarn_memory_of(CPU).blocks <= held - 19 + 1); /* saved values go, the gradient comes */
    tarn_free(loss);
}

static void an_upstream_gradient_can_be_given(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(1, 2), *y = tarn_square(x), *g = good(vector(10, 100));
    assert_false(tarn_backward(y));
    assert_error(TARN_ERROR_SHAPE, "backward: a tensor [2]");
    assert_true(tarn_backward_from(y, g, NULL));
    assert_values(tarn_grad(x), 0, 20, 400);
    assert_values(g, 0, 10, 100);
    assert_true(tarn_backward_from(x, g, NULL)); /* into a leaf itself */
    assert_values(tarn_grad(x), 0, 30, 500);
    assert_true(tarn_backward_from(tarn_add(x, x), g, NULL)); /* what is passed on untouched stays the caller's */
    assert_values(g, 0, 10, 100);
    assert_values(tarn_grad(x), 0, 50, 700);
    assert_false(tarn_backward_from(tarn_square(x), good(vector(1, 2, 3)), NULL));
    assert_error(TARN_ERROR_SHAPE, "backward_from: the gradient given is [3], the tensor [2]");
    assert_false(tarn_backward_from(tarn_square(x), tarn_cast(g, TARN_F64), NULL));
    assert_error(TARN_ERROR_DTYPE, "backward_from: the gradient given is f64, the tensor f32");
    assert_false(tarn_backward(sum(g)));
    assert_error(TARN_ERROR_ARGUMENT, "nothing the tensor was computed from requires a gradient");
}

static void no_grad_records_nothing(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(2);
    assert_true(tarn_grad_enabled());
    tarn_no_grad_open();
    tarn_no_grad_open();
    assert_false(tarn_grad_enabled());
    tarn_tensor *y = tarn_square(x);
    tarn_no_grad_close();
    assert_false(tarn_grad_enabled());
    assert_false(tarn_needs_grad(y));
    tarn_no_grad_close();
    assert_true(tarn_grad_enabled());
    assert_true(tarn_backward(tarn_mul(tarn_square(x), y))); /* y is a constant here */
    assert_values(tarn_grad(x), 0, 16);
    tarn_no_grad_close();
    assert_error(TARN_ERROR_ARGUMENT, "no_grad_close");
    assert_true(tarn_grad_enabled());
}

static void detached_values_stop_the_gradient(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(2), *y = tarn_square(x), *d = tarn_detach(y);
    assert_false(tarn_needs_grad(d));
    assert_ptr_equal(tarn_data(d), tarn_data(y));
    assert_true(tarn_backward(tarn_mul(y, d)));
    assert_values(tarn_grad(x), 0, 16);
    assert_null(tarn_requires_grad(y, true));
    assert_error(TARN_ERROR_ARGUMENT, "requires_grad: the tensor is the result of a recorded operation");
    tarn_tensor *fresh = good(tarn_requires_grad(tarn_detach(y), true));
    assert_true(tarn_backward(tarn_square(fresh)));
    assert_values(tarn_grad(fresh), 0, 8);
}

static void only_floats_require_gradients(void **state)
{
    (void)state;
    assert_null(tarn_requires_grad(tarn_arange(0, 3, 1, TARN_I64, CPU), true));
    assert_error(TARN_ERROR_DTYPE, "requires_grad");
    assert_null(tarn_requires_grad(tarn_scalar(1), true));
    assert_error(TARN_ERROR_ARGUMENT, "requires_grad: a tarn_scalar()");
    tarn_tensor *x = leaf(1, 2);
    assert_false(tarn_needs_grad(tarn_gt(x, tarn_scalar(1))));
    assert_false(tarn_needs_grad(tarn_cast(x, TARN_I32)));
    tarn_requires_grad(x, false);
    assert_false(tarn_needs_grad(tarn_square(x)));
}

/* ---- in place ---------------------------------------------------------------------------------------------------- */

static void what_was_overwritten_is_refused_by_name(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(1, 2), *w = good(tarn_set_name(vector(3, 4), "the weight"));
    tarn_tensor *y = sum(tarn_mul(x, w));
    good(tarn_add_inplace(w, tarn_scalar(1)));
    assert_false(tarn_backward(y));
    assert_contains(tarn_error(), "the weight");
    assert_error(TARN_ERROR_ARGUMENT, "backward: mul needs a tensor [2] the weight that was overwritten in place");
    assert_null(tarn_grad(x));
    y = sum(tarn_add(x, w)); /* add needs no values */
    good(tarn_mul_inplace(w, tarn_scalar(2)));
    assert_true(tarn_backward(y));
    assert_values(tarn_grad(x), 0, 1, 1);
}

static void every_way_of_writing_is_noticed(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(1, 2);
    float raw[2] = {5, 6};
    for (int way = 0; way < 6; way++) {
        tarn_tensor *w = good(vector(3, 4)), *y = sum(tarn_mul(x, w));
        tarn_tensor *view = good(tarn_detach(w)), *part = good(tarn_slice(w, 0, 1, 2));
        if (way == 0)
            assert_true(tarn_write(w, raw, sizeof(raw)));
        else if (way == 1)
            assert_true(tarn_copy(w, x));
        else if (way == 2)
            good(tarn_fill_inplace(view, 1));
        else if (way == 3)
            good(tarn_exp_inplace(part));
        else if (way == 4)
            assert_true(tarn_write(part, raw, 4));
        else
            good(tarn_sub_inplace(w, view));
        assert_false(tarn_backward(y));
        assert_error(TARN_ERROR_ARGUMENT, "backward: mul needs a tensor [2] that was overwritten");
    }
}

static void what_takes_part_in_a_gradient_is_not_overwritten(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(1, 2), *y = tarn_square(x);
    float raw[2] = {5, 6};
    assert_null(tarn_add_inplace(x, tarn_scalar(1)));
    assert_error(TARN_ERROR_ARGUMENT, "add_inplace: x is part of a recorded computation");
    assert_null(tarn_tanh_inplace(y));
    assert_error(TARN_ERROR_ARGUMENT, "tanh_inplace: x is part of a recorded computation");
    tarn_no_grad_open();
    assert_ptr_equal(tarn_add_inplace(x, tarn_scalar(1)), x); /* a leaf between records: an optimizer's step */
    assert_null(tarn_fill_inplace(y, 0));
    assert_error(TARN_ERROR_ARGUMENT, "fill_inplace");
    tarn_no_grad_close();
    assert_values(x, 0, 2, 3);
    assert_false(tarn_write(y, raw, sizeof(raw)));
    assert_error(TARN_ERROR_ARGUMENT, "write: the tensor is the result of a recorded operation");
    assert_false(tarn_copy(y, x));
    assert_error(TARN_ERROR_ARGUMENT, "copy: the tensor is the result of a recorded operation");
    assert_false(tarn_backward(sum(y))); /* square saved x, which was stepped on */
    assert_error(TARN_ERROR_ARGUMENT, "backward: square needs a tensor");
}

/* ---- views ------------------------------------------------------------------------------------------------------- */

static void gradients_flow_through_views(void **state)
{
    (void)state;
    tarn_tensor *x =
        good(tarn_requires_grad(tarn_reshape(tarn_arange(0, 6, 1, TARN_F32, CPU), TARN_SHAPE(2, 3)), true));
    tarn_tensor *t = tarn_transpose(x, 0, 1), *part = tarn_slice(t, 0, 1, 3); /* [[1 4] [2 5]] */
    assert_true(tarn_backward(sum(tarn_square(part))));
    assert_values(tarn_grad(x), 0, 0, 2, 4, 0, 8, 10);
    assert_true(tarn_backward(sum(tarn_flip(tarn_expand(tarn_slice(x, 0, 0, 1), TARN_SHAPE(4, 3)), TARN_AXES(0)))));
    assert_values(tarn_grad(x), 0, 4, 6, 8, 0, 8, 10);
    /* a leaf that is a view itself */
    tarn_tensor *leaf_view = good(tarn_requires_grad(tarn_transpose(tarn_detach(x), 0, 1), true));
    assert_true(tarn_backward(sum(tarn_mul(leaf_view, leaf_view))));
    assert_values(tarn_grad(leaf_view), 0, 0, 6, 2, 8, 4, 10);
    assert_shape(tarn_grad(leaf_view), 3, 2);
}

static void a_deep_chain_needs_no_stack(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(1), *y = x;
    for (int i = 0; i < 200000; i++)
        y = tarn_mul(y, x); /* saves both */
    good(y);
    assert_true(tarn_backward(y));
    assert_values(tarn_grad(x), 0, 200001);
    y = x;
    for (int i = 0; i < 200000; i++)
        y = tarn_neg(y);
    good(y); /* and one that is dropped without being walked */
}

static void sixteen_bit_leaves_have_f32_gradients(void **state)
{
    (void)state;
    static const tarn_dtype dtypes[] = {TARN_BF16, TARN_F16};
    for (int i = 0; i < 2; i++) {
        tarn_tensor *x = good(tarn_requires_grad(tarn_cast(vector(1, 2), dtypes[i]), true));
        tarn_tensor *y = tarn_square(x);
        assert_int_equal(tarn_dtype_of(y), dtypes[i]);
        assert_true(tarn_backward(sum(y)));
        assert_int_equal(tarn_dtype_of(tarn_grad(x)), TARN_F32);
        for (int k = 0; k < 300; k++) /* small steps that 8 bits would lose */
            assert_true(tarn_backward(sum(tarn_mul(x, tarn_scalar(0.0078125)))));
        assert_values(tarn_grad(x), 1e-6, 2 + 300 * 0.0078125, 4 + 300 * 0.0078125);
    }
    tarn_tensor *master = leaf(1.00390625f); /* through a cast: f32 again */
    assert_true(tarn_backward(sum(tarn_square(tarn_cast(master, TARN_BF16)))));
    assert_int_equal(tarn_dtype_of(tarn_grad(master)), TARN_F32);
}

static void an_operation_with_several_outputs(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(1, 2, 3, 4, 5, 6), *part[3];
    assert_true(tarn_split(x, 0, (const int64_t[]){1, 2, 3}, 3, part));
    /* the middle gets none */
    assert_true(tarn_backward(tarn_add(sum(tarn_square(part[2])), tarn_mul(sum(part[0]), tarn_scalar(7)))));
    assert_values(tarn_grad(x), 0, 7, 0, 0, 8, 10, 12);
    tarn_tensor *y = leaf(3, 1, 2), *values, *indices;
    assert_true(tarn_sort(y, 0, false, &values, &indices));
    assert_values(values, 0, 1, 2, 3);
    assert_false(tarn_needs_grad(indices));
    assert_true(tarn_backward(sum(tarn_mul(values, vector(10, 20, 30)))));
    assert_values(tarn_grad(y), 0, 30, 10, 20);
}

static void a_failed_walk_leaves_no_trace_in_the_record(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(2), *w = good(vector(3));
    tarn_tensor *a = tarn_square(x), *b = tarn_mul(a, w), *c = tarn_mul(b, tarn_scalar(2));
    good(tarn_add_inplace(w, tarn_scalar(1)));
    assert_false(tarn_backward(c));
    assert_error(TARN_ERROR_ARGUMENT, "mul needs a tensor");
    assert_null(tarn_grad(x));
    assert_true(tarn_backward(tarn_add(a, a))); /* a's node kept nothing of the failed walk */
    assert_values(tarn_grad(x), 0, 8);
}

static void options_of_an_older_caller_are_accepted(void **state)
{
    (void)state;
    tarn_tensor *x = leaf(2), *y = tarn_square(x);
    struct {
        tarn_backward_options options;
        double unknown[4];
    } newer = {.options = {.retain = true}};
    assert_true(tarn_backward_from_sized(y, NULL, &newer.options, sizeof(newer)));
    assert_true(tarn_backward_from_sized(y, NULL, &newer.options, 0)); /* knows no field: the default */
    assert_false(tarn_backward(y));
    assert_error(TARN_ERROR_ARGUMENT, "freed by an earlier backward");
    assert_values(tarn_grad(x), 0, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_chain),
        in_scope(a_diamond_adds_both_ways),
        in_scope(the_same_tensor_twice),
        in_scope(the_same_leaf_in_every_place_of_one_operation),
        in_scope(two_sinks_of_one_tensor_may_be_open_at_once),
        in_scope(broadcasting_is_undone),
        in_scope(several_passes_add_up),
        in_scope(a_record_serves_once_unless_it_is_retained),
        in_scope(activations_are_released_on_the_way),
        in_scope(an_upstream_gradient_can_be_given),
        in_scope(no_grad_records_nothing),
        in_scope(detached_values_stop_the_gradient),
        in_scope(only_floats_require_gradients),
        in_scope(what_was_overwritten_is_refused_by_name),
        in_scope(every_way_of_writing_is_noticed),
        in_scope(what_takes_part_in_a_gradient_is_not_overwritten),
        in_scope(gradients_flow_through_views),
        in_scope(a_deep_chain_needs_no_stack),
        in_scope(sixteen_bit_leaves_have_f32_gradients),
        in_scope(an_operation_with_several_outputs),
        in_scope(a_failed_walk_leaves_no_trace_in_the_record),
        in_scope(options_of_an_older_caller_are_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
