/* test_host.c: gradients of operations on host arrays, by name, against tarn_backward_from() on tensors. */
#include "base/memory.h"
#include "cases/cases.h"
#include "support/check.h"

#define CPU tarn_device_cpu()
#define COUNT(list) ((int)(sizeof(list) / sizeof(list[0])))

static tarn_array array_of(tarn_tensor *x)
{
    tarn_array array = {NULL, tarn_shape_of(x), tarn_dtype_of(x)};
    array.data = malloc((size_t)tarn_bytes(x) + 1);
    assert_true(tarn_read(x, array.data, (size_t)tarn_bytes(x)));
    return array;
}

static void assert_array(const tarn_array *array, tarn_tensor *expected)
{
    assert_int_equal(array->dtype, tarn_dtype_of(expected));
    assert_int_equal(array->shape.rank, tarn_rank(expected));
    tarn_array own = array_of(expected);
    assert_memory_equal(array->data, own.data, (size_t)tarn_bytes(expected));
    free(own.data);
}

/* One operation: host arrays give the gradients that tensors do, bit for bit. */
static void compare(const tarn__case *one)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *in[TARN__CASE_INPUTS] = {0}, *out[TARN__CASE_OUTPUTS] = {0};
    tarn_array arrays[TARN__CASE_INPUTS], grads[TARN__CASE_OUTPUTS] = {{0}}, results[TARN__CASE_INPUTS];
    uint64_t wanted = 0;
    assert_true(tarn__case_inputs(one, TARN_F32, TARN__CONTIGUOUS, CPU, 1, in));
    tarn_op_info info;
    assert_true(tarn_op_at(tarn_op_find(one->operation), &info));
    for (int i = 0; i < one->inputs; i++) {
        arrays[i] = array_of(in[i]);
        if (tarn__case_flows(one, i)) {
            wanted |= (uint64_t)1 << i;
            tarn_requires_grad(in[i], true);
        }
    }
    assert_true(tarn_apply(one->operation, in, one->inputs, one->attribute, one->attributes, out, info.outputs));
    assert_true(tarn_needs_grad(out[0]));
    tarn_tensor *upstream = good(tarn_normal(tarn_shape_of(out[0]), 0, 1, tarn_dtype_of(out[0]), CPU));
    grads[0] = array_of(upstream);
    assert_true(tarn_backward_from(out[0], upstream, NULL));
    tarn_no_grad_open(); /* which is the caller's, and does not matter */
    bool done = tarn_apply_host_backward(one->operation, CPU, arrays, one->inputs, one->attribute, one->attributes,
                                         grads, info.outputs, wanted, results);
    tarn_no_grad_close();
    if (!done)
        fail_msg("%s %s: %s", one->operation, one->variant ? one->variant : "", tarn_error());
    for (int i = 0; i < one->inputs; i++) {
        assert_true(((wanted >> i) & 1) || !results[i].data);
        if (results[i].data)
            assert_array(&results[i], tarn_grad(in[i]));
        else
            assert_null(tarn_grad(in[i]));
        tarn_array_free(&results[i]);
        free(arrays[i].data);
    }
    free(grads[0].data);
    tarn_scope_close(scope);
}

static void host_arrays_give_the_gradients_of_tensors(void **state)
{
    (void)state;
    static const char *const names[] = {"add",           "mul",     "div",    "exp",       "gelu",
                                        "sum",           "max",     "matmul", "linear",    "layernorm",
                                        "softmax",       "conv2d",  "gather", "concat",    "where",
                                        "cross_entropy", "permute", "pow",    "batchnorm", "mse_loss"};
    const tarn__scale scale = tarn__scale_small();
    int tried = 0;
    for (int c = 0; c < tarn__case_count(); c++) {
        const tarn__case one = tarn__case_resolve(tarn__case_at(c), &scale, TARN_F32);
        bool flows = tarn__case_smooth(&one, 0);
        for (int i = 0, any = 0; flows && i < one.inputs; i++) {
            any |= tarn__case_flows(&one, i);
            flows = i + 1 < one.inputs || any;
        }
        for (int k = 0; flows && k < COUNT(names); k++)
            if (strcmp(one.operation, names[k]) == 0) {
                compare(&one);
                tried++;
            }
    }
    assert_true(tried >= COUNT(names) - 4);
}

static void every_float_input_is_wanted_by_default(void **state)
{
    (void)state;
    float x[] = {1, 2, 3, 4}, g[] = {1, 10};
    int64_t at[] = {1, 0};
    tarn_attribute axis = {.name = "axis", .integer = 0};
    tarn_array inputs[] = {{x, TARN_SHAPE(2, 2), TARN_F32}, {at, TARN_SHAPE(1, 2), TARN_I64}}, grads[2];
    tarn_array upstream = {g, TARN_SHAPE(1, 2), TARN_F32};
    assert_true(tarn_apply_host_backward("gather", CPU, inputs, 2, &axis, 1, &upstream, 1, 0, grads));
    assert_null(grads[1].data);
    assert_memory_equal(grads[0].data, ((float[]){0, 10, 1, 0}), 16);
    tarn_array_free(&grads[0]);
    assert_true(
        tarn_apply_host_backward("mul", CPU, (tarn_array[]){inputs[0], inputs[0]}, 2, NULL, 0, inputs, 1, 2, grads));
    assert_null(grads[0].data);
    assert_memory_equal(grads[1].data, ((float[]){1, 4, 9, 16}), 16);
    tarn_array_free(&grads[1]);
}

static void backward_takes_gradients_of_several_outputs(void **state)
{
    (void)state;
    float x[] = {3, 1, 2}, g[] = {10, 20, 30};
    tarn_attribute axis = {.name = "axis", .integer = 0};
    tarn_array input = {x, TARN_SHAPE(3), TARN_F32}, upstream[2] = {{g, TARN_SHAPE(3), TARN_F32}, {0}}, grad;
    assert_true(tarn_apply_host_backward("sort", CPU, &input, 1, &axis, 1, upstream, 2, 0, &grad));
    assert_memory_equal(grad.data, ((float[]){30, 10, 20}), 12); /* the indices carry none */
    tarn_array_free(&grad);
    upstream[1] = (tarn_array){(int64_t[]){1, 2, 3}, TARN_SHAPE(3), TARN_I64};
    assert_false(tarn_apply_host_backward("sort", CPU, &input, 1, &axis, 1, upstream, 2, 0, &grad));
    assert_error(TARN_ERROR_ARGUMENT, "apply_host_backward: no gradient flows through output 1 of sort");
    assert_null(grad.data);
}

static void what_does_not_fit_is_refused_and_leaves_nothing(void **state)
{
    (void)state;
    int64_t before = tarn__memory_in_use();
    float x[] = {1, 2}, g[] = {1, 2, 3};
    tarn_array input = {x, TARN_SHAPE(2), TARN_F32}, long_one = {g, TARN_SHAPE(3), TARN_F32}, none = {0}, grad = {0};
    tarn_array wide = {(double[]){1, 2}, TARN_SHAPE(2), TARN_F64};
    assert_false(tarn_apply_host_backward("exp", CPU, &input, 1, NULL, 0, &long_one, 1, 0, &grad));
    assert_error(TARN_ERROR_SHAPE, "apply_host_backward: the gradient of output 0 is f32 [3]; the output is f32 [2]");
    assert_false(tarn_apply_host_backward("exp", CPU, &input, 1, NULL, 0, &wide, 1, 0, &grad));
    assert_error(TARN_ERROR_SHAPE, "apply_host_backward: the gradient of output 0 is f64 [2]; the output is f32 [2]");
    assert_false(tarn_apply_host_backward("exp", CPU, &input, 1, NULL, 0, &none, 1, 0, &grad));
    assert_error(TARN_ERROR_ARGUMENT, "apply_host_backward: no gradient of an output is given");
    assert_false(tarn_apply_host_backward("sign", CPU, &input, 1, NULL, 0, &input, 1, 4, &grad));
    assert_error(TARN_ERROR_ARGUMENT, "apply_host_backward: wanted has bits beyond the 1 inputs given");
    assert_null(grad.data);
    tarn_empty_cache(CPU);
    assert_true(tarn__memory_in_use() <= before);
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

static tarn_tensor *applied(const char *name, tarn_tensor *x, const tarn_attribute *attributes, int count)
{
    tarn_tensor *y = NULL;
    assert_true(tarn_apply(name, &x, 1, attributes, count, &y, 1));
    return good(y);
}

static void earlier_spellings_of_attributes_are_accepted(void **state)
{
    (void)state;
    static const struct {
        const char *op, *name[2];
        double value;
    } rows[] = {{"argmax", {"keepdim", "keep"}, 1},        {"clamp", {"min", "low"}, 0.5},
                {"clamp", {"max", "high"}, 0.5},           {"rope", {"low_freq_factor", "low"}, 2},
                {"rope", {"high_freq_factor", "high"}, 8}, {"rope", {"original_context", "original"}, 16}};
    tarn_tensor *x = tarn_normal(TARN_SHAPE(1, 40, 2, 8), 0, 1, TARN_F32, CPU);
    for (int i = 0; i < COUNT(rows); i++) {
        bool is_rope = strcmp(rows[i].op, "rope") == 0;
        tarn_tensor *y[2];
        tarn_attribute list[] = {
            {.name = "scaling", .integer = TARN_ROPE_LLAMA3}, {.name = "factor", .number = 8}, {0}};
        for (int k = 0; k < 2; k++) {
            list[2] =
                (tarn_attribute){.name = rows[i].name[k], .number = rows[i].value, .integer = (int64_t)rows[i].value};
            y[k] = applied(rows[i].op, x, is_rope ? list : list + 2, is_rope ? 3 : 1);
        }
        tarn_array first = array_of(y[0]), plain = array_of(applied(rows[i].op, x, list, is_rope ? 2 : 0));
        assert_array(&first, y[1]);
        if (strcmp(rows[i].op, "argmax") == 0) /* and the attribute has an effect */
            assert_int_equal(plain.shape.rank + 1, first.shape.rank);
        else
            assert_memory_not_equal(plain.data, first.data, (size_t)tarn_bytes(y[0]));
        free(first.data);
        free(plain.data);
    }
    tarn_tensor *y = NULL;
    assert_false(tarn_apply("sum", &x, 1, &(tarn_attribute){.name = "low"}, 1, &y, 1));
    assert_error(TARN_ERROR_ARGUMENT, "apply: sum has no attribute 'low'; it has: axes:list keepdim:bool");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(host_arrays_give_the_gradients_of_tensors),
        in_scope(every_float_input_is_wanted_by_default),
        in_scope(backward_takes_gradients_of_several_outputs),
        in_scope(what_does_not_fit_is_refused_and_leaves_nothing),
        in_scope(earlier_spellings_of_attributes_are_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
