/* test_recurrent.c: LSTM and GRU: gradients of inputs, weights and states, sequences in parts, directions, layouts,
 * dropout between layers, and training on a device. tests/parity compares values with torch. */
#include "support/check.h"

#define CPU tarn_device_cpu()

enum { T = 4, B = 3, IN = 2, HIDDEN = 5 };

typedef tarn_module *(*make_fn)(int64_t in, int64_t hidden, tarn_device device, const tarn_recurrent_options *options,
                                size_t options_size);
static const make_fn makes[] = {tarn_lstm_layer_with_sized, tarn_gru_layer_with_sized};

static tarn_module *layer_of(int kind, tarn_recurrent_options options)
{
    tarn_module *module = makes[kind](IN, HIDDEN, CPU, &options, sizeof(options));
    assert_ok();
    return module;
}

static tarn_tensor *draw(tarn_shape shape, tarn_dtype dtype, tarn_device device)
{
    return good(tarn_normal(shape, 0, 1, dtype, device));
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* Inputs: x, h and, of an LSTM, c. The result depends on all states after the last step, too. */
static tarn_tensor *apply(tarn_tensor *const *inputs, int count, void *ctx)
{
    tarn_module *module = ctx;
    int states = strcmp(tarn_module_kind(module), "lstm") == 0 ? 2 : 1;
    (void)count;
    tarn_recurrent_state first = {.h = inputs[1], .c = states == 2 ? inputs[2] : NULL}, last;
    tarn_tensor *y = tarn_recurrent_forward(module, inputs[0], &first, &last);
    tarn_tensor *ends = tarn_sum(tarn_square(last.h), TARN_ALL_AXES, false);
    if (states == 2)
        ends = tarn_add(ends, tarn_sum(tarn_tanh(last.c), TARN_ALL_AXES, false));
    return tarn_add(tarn_sum(tarn_square(y), TARN_ALL_AXES, false), ends);
}

static void gradients_agree_with_differences(void **state)
{
    (void)state;
    tarn_seed(test_seed(3));
    for (int kind = 0; kind < 2; kind++) {
        tarn_module *module = layer_of(
            kind, (tarn_recurrent_options){.layers = 2, .bidirectional = true, .batch_first = true, .dtype = TARN_F64});
        int parameters = tarn_module_parameter_count(module), count = kind == 0 ? 3 : 2;
        tarn_tensor *inputs[32] = {draw(TARN_SHAPE(B, T, IN), TARN_F64, CPU),
                                   draw(TARN_SHAPE(4, B, HIDDEN), TARN_F64, CPU),
                                   draw(TARN_SHAPE(4, B, HIDDEN), TARN_F64, CPU)};
        assert_int_equal(parameters, 16);
        for (int i = 0; i < count; i++)
            tarn_requires_grad(inputs[i], true);
        for (int i = 0; i < parameters; i++)
            inputs[count + i] = tarn_module_parameter(module, i);
        if (!tarn_gradcheck(apply, module, inputs, count + parameters, NULL))
            fail_msg("%s", tarn_error());
        tarn_module_free(module);
    }
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */

static void a_sequence_in_parts_is_the_whole_one(void **state)
{
    (void)state;
    tarn_seed(test_seed(4));
    for (int kind = 0; kind < 2; kind++) {
        tarn_module *module = layer_of(kind, (tarn_recurrent_options){.layers = 2});
        tarn_tensor *x = draw(TARN_SHAPE(T, B, IN), TARN_F32, CPU);
        tarn_recurrent_state middle, end, whole_end;
        tarn_tensor *whole = good(tarn_recurrent_forward(module, x, NULL, &whole_end));
        tarn_tensor *parts[2] = {tarn_recurrent_forward(module, tarn_slice(x, 0, 0, 3), NULL, &middle),
                                 tarn_recurrent_forward(module, tarn_slice(x, 0, 3, T), &middle, &end)};
        assert_shape(whole, T, B, HIDDEN);
        assert_shape(whole_end.h, 2, B, HIDDEN);
        assert_close(tarn_concat(parts, 2, 0), whole, 1e-6);
        assert_close(end.h, whole_end.h, 1e-6);
        assert_close(tarn_forward(module, x), whole, 0);
        assert_close(tarn_slice(whole_end.h, 0, 1, 2), tarn_slice(whole, 0, T - 1, T), 0);
        if (kind == 0)
            assert_close(end.c, whole_end.c, 1e-6);
        else
            assert_null(whole_end.c);
        tarn_module_free(module);
    }
}

/* The second direction is the first one over the reversed sequence, with its own weights. */
static void the_second_direction_begins_at_the_end(void **state)
{
    (void)state;
    tarn_seed(test_seed(5));
    for (int kind = 0; kind < 2; kind++) {
        tarn_module *both = layer_of(kind, (tarn_recurrent_options){.bidirectional = true}),
                    *one = layer_of(kind, (tarn_recurrent_options){.layers = 1});
        tarn_tensor *x = draw(TARN_SHAPE(T, B, IN), TARN_F32, CPU), *y = good(tarn_forward(both, x));
        assert_shape(y, T, B, 2 * HIDDEN);
        assert_non_null(tarn_module_find(both, "weight_hh_l0_reverse"));
        for (int i = 0; i < 4; i++)
            assert_true(tarn_copy(tarn_module_parameter(one, i), tarn_module_parameter(both, 4 + i)));
        tarn_tensor *reversed = tarn_flip(tarn_forward(one, tarn_flip(x, TARN_AXES(0))), TARN_AXES(0));
        assert_close(tarn_slice(y, 2, HIDDEN, 2 * HIDDEN), reversed, 1e-6);
        tarn_module_free(both), tarn_module_free(one);
    }
}

static void batch_first_swaps_the_axes(void **state)
{
    (void)state;
    tarn_seed(test_seed(6));
    for (int kind = 0; kind < 2; kind++) {
        tarn_recurrent_options options = {.layers = 2, .bidirectional = true};
        tarn_module *steps_first = layer_of(kind, options);
        options.batch_first = true;
        tarn_module *batch_first = layer_of(kind, options);
        for (int i = 0; i < tarn_module_parameter_count(steps_first); i++)
            assert_true(tarn_copy(tarn_module_parameter(batch_first, i), tarn_module_parameter(steps_first, i)));
        tarn_tensor *x = draw(TARN_SHAPE(T, B, IN), TARN_F32, CPU);
        tarn_tensor *y = good(tarn_forward(batch_first, tarn_transpose(x, 0, 1)));
        assert_shape(y, B, T, 2 * HIDDEN);
        assert_close(tarn_transpose(y, 0, 1), tarn_forward(steps_first, x), 1e-6);
        tarn_module_free(steps_first), tarn_module_free(batch_first);
    }
}

static void dropout_is_between_layers_in_training_mode(void **state)
{
    (void)state;
    tarn_seed(test_seed(7));
    for (int kind = 0; kind < 2; kind++) {
        tarn_recurrent_options options = {.layers = 2};
        tarn_module *plain = layer_of(kind, options);
        options.dropout = 0.5;
        tarn_module *dropped = layer_of(kind, options);
        for (int i = 0; i < tarn_module_parameter_count(plain); i++)
            assert_true(tarn_copy(tarn_module_parameter(dropped, i), tarn_module_parameter(plain, i)));
        tarn_tensor *x = draw(TARN_SHAPE(T, B, IN), TARN_F32, CPU), *y = good(tarn_forward(plain, x));
        tarn_tensor *trained = good(tarn_forward(dropped, x));
        assert_true(tarn_item(tarn_sum(tarn_abs(tarn_sub(trained, y)), TARN_ALL_AXES, false)) > 1e-3);
        tarn_module_train(dropped, false);
        assert_close(tarn_forward(dropped, x), y, 0);
        tarn_module_free(plain), tarn_module_free(dropped);
    }
}

/* ---- a device ---------------------------------------------------------------------------------------------------- */

/* Reproduces a random sequence: forward, backward and steps without a transfer or a kernel of the CPU. */
static void it_learns_on_a_device_without_a_transfer(void **state)
{
    (void)state;
    tarn_device device = tarn_device_parse("mirror:0");
    tarn_seed(1);
    for (int kind = 0; kind < 2; kind++) {
        tarn_module *net = tarn_sequential(layer_of(kind, (tarn_recurrent_options){.layers = 2, .batch_first = true}),
                                           tarn_linear(HIDDEN, 1, CPU), NULL);
        assert_true(tarn_module_to(net, device));
        tarn_optimizer *adam = tarn_adamw(net, &(tarn_adamw_options){.lr = 0.03f});
        tarn_tensor *x = draw(TARN_SHAPE(B, T, IN), TARN_F32, device), *y = draw(TARN_SHAPE(B, T, 1), TARN_F32, device);
        tarn_tensor *first = NULL, *last = NULL;
        tarn_stats_reset();
        for (int i = 0; i < 60; i++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_tensor *loss = tarn_mse_loss(tarn_forward(net, x), y);
            assert_true(tarn_backward(loss) && tarn_optimizer_step(adam));
            if (i == 0)
                first = tarn_keep(loss);
            if (i == 59)
                last = tarn_keep(loss);
            tarn_scope_close(scope);
        }
        tarn_counters counters = tarn_stats();
        assert_int_equal(counters.uploads + counters.downloads + counters.peer_copies + counters.fallbacks, 0);
        assert_int_equal(counters.kernels_on[0], 0);
        assert_true(tarn_item(last) < tarn_item(first) / 2);
        tarn_free(first), tarn_free(last);
        tarn_optimizer_free(adam);
        tarn_module_free(net);
    }
}

static void wrong_inputs_are_errors(void **state)
{
    (void)state;
    tarn_module *gru = layer_of(1, (tarn_recurrent_options){.layers = 2}), *linear = tarn_linear(IN, 2, CPU);
    tarn_tensor *x = draw(TARN_SHAPE(T, B, IN), TARN_F32, CPU), *h = draw(TARN_SHAPE(2, B, HIDDEN), TARN_F32, CPU);
    assert_null(tarn_forward(gru, draw(TARN_SHAPE(T, B, 3), TARN_F32, CPU)));
    assert_error(TARN_ERROR_SHAPE, "gru_layer: x is [4, 3, 3]; must be [T, B, features] with 2 features");
    assert_null(tarn_forward(gru, draw(TARN_SHAPE(T, IN), TARN_F32, CPU)));
    assert_error(TARN_ERROR_SHAPE, "gru_layer: x is [4, 2]");
    assert_null(tarn_forward(gru, draw(TARN_SHAPE(0, B, IN), TARN_F32, CPU)));
    assert_error(TARN_ERROR_SHAPE, "at least one step");
    assert_null(tarn_recurrent_forward(gru, x, &(tarn_recurrent_state){.h = x}, NULL));
    assert_error(TARN_ERROR_SHAPE, "the initial hidden state is [4, 3, 2]; must be [2, 3, 5]");
    assert_null(tarn_recurrent_forward(gru, x, &(tarn_recurrent_state){.h = h, .c = h}, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "a GRU has none");
    assert_null(tarn_recurrent_forward(linear, x, NULL, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "the module is of kind linear; must be an lstm or a gru");
    tarn_module_free(gru), tarn_module_free(linear);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(gradients_agree_with_differences),
        in_scope(a_sequence_in_parts_is_the_whole_one),
        in_scope(the_second_direction_begins_at_the_end),
        in_scope(batch_first_swaps_the_axes),
        in_scope(dropout_is_between_layers_in_training_mode),
        in_scope(it_learns_on_a_device_without_a_transfer),
        in_scope(wrong_inputs_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
