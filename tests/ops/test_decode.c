/* test_decode.c: the composed forms of the decode step: equal to their parts, with gradients and errors. */
#include "ops/internal.h"
#include "support/check.h"

#define CPU tarn_device_cpu()

static tarn_tensor *some(int64_t rows, int64_t columns, uint64_t seed)
{
    tarn_seed(seed);
    return good(tarn_normal(TARN_SHAPE(rows, columns), 0, 1, TARN_F32, CPU));
}

static void products_of_a_norm_are_those_of_its_result(void **state)
{
    (void)state;
    tarn_tensor *x = some(3, 64, 1), *norm = good(tarn_reshape(some(1, 64, 2), TARN_SHAPE(64))),
                *h = good(tarn_rmsnorm(x, norm, 1e-5)), *y[3];
    tarn_tensor *weights[] = {some(8, 64, 3), good(tarn_cast(some(5, 64, 4), TARN_Q8_0)), some(4, 64, 5)},
                *biases[] = {good(tarn_reshape(some(1, 8, 6), TARN_SHAPE(8))), NULL, NULL};
    assert_true(tarn__norm_linear(x, &(tarn__decode_norm){.weight = norm, .epsilon = 1e-5}, weights, biases, 3, y));
    for (int i = 0; i < 3; i++)
        assert_close(y[i], good(tarn_linear_apply(h, weights[i], biases[i])), 0);
    assert_true(tarn__norm_linear(x, &(tarn__decode_norm){0}, weights, NULL, 1, y));
    assert_close(y[0], good(tarn_linear_apply(x, weights[0], NULL)), 0);
}

static void a_gate_and_a_sum_are_those_of_their_parts(void **state)
{
    (void)state;
    tarn_tensor *x = some(2, 32, 1), *norm = good(tarn_reshape(some(1, 32, 2), TARN_SHAPE(32))),
                *gate = some(48, 32, 3), *up = some(48, 32, 4), *down = some(32, 48, 5);
    tarn_tensor *h = good(tarn_rmsnorm(x, norm, 1e-6)),
                *inner = good(
                    tarn__norm_gate_up(x, &(tarn__decode_norm){.weight = norm, .epsilon = 1e-6}, gate, up, TARN_SILU));
    assert_close(inner, good(tarn_mul(tarn_silu(tarn_linear_apply(h, gate, NULL)), tarn_linear_apply(h, up, NULL))), 0);
    assert_close(good(tarn__linear_residual(inner, down, NULL, x, 1)),
                 good(tarn_add(x, tarn_linear_apply(inner, down, NULL))), 0);
}

/* Layernorm, offsets, activations and scales, with quantized and float weights. */
static void every_norm_activation_and_scale_is_that_of_its_parts(void **state)
{
    (void)state;
    static const struct {
        tarn_activation_kind kind;
        tarn_tensor *(*apply)(tarn_tensor *x);
    } acts[] = {{TARN_SILU, tarn_silu}, {TARN_GELU, tarn_gelu}, {TARN_GELU_ERF, tarn_gelu_erf}, {TARN_RELU, tarn_relu}};
    tarn_tensor *x = some(2, 64, 1), *weight = good(tarn_reshape(some(1, 64, 2), TARN_SHAPE(64))),
                *shift = good(tarn_reshape(some(1, 64, 7), TARN_SHAPE(64))),
                *bias = good(tarn_reshape(some(1, 48, 8), TARN_SHAPE(48)));
    for (int i = 0; i < 4 * 2 * 3; i++) {
        tarn_tensor *gate = some(48, 64, 3), *up = some(48, 64, 4), *down = some(64, 48, 5);
        if (i / 4 % 2)
            gate = good(tarn_cast(gate, TARN_Q8_0)), up = good(tarn_cast(up, TARN_Q8_0));
        tarn__decode_norm norm = {.weight = weight, .epsilon = 1e-5, .is_layernorm = i / 8 == 0};
        if (norm.is_layernorm)
            norm.bias = i % 4 ? shift : NULL;
        else
            norm.offset = i / 8 == 1 ? 1 : 0;
        tarn_tensor *h = good(norm.is_layernorm ? tarn_layernorm(x, weight, norm.bias, 1e-5)
                                                : tarn_rmsnorm_offset(x, weight, norm.offset, 1e-5));
        tarn_tensor *hidden = good(tarn__norm_up(x, &norm, up, i % 3 ? bias : NULL, acts[i % 4].kind));
        assert_close(hidden, good(acts[i % 4].apply(tarn_linear_apply(h, up, i % 3 ? bias : NULL))), 0);
        assert_close(
            good(tarn__norm_gate_up(x, &norm, gate, up, acts[i % 4].kind)),
            good(tarn_mul(acts[i % 4].apply(tarn_linear_apply(h, gate, NULL)), tarn_linear_apply(h, up, NULL))), 0);
        assert_close(good(tarn__linear_residual(hidden, down, NULL, x, 0.22)),
                     good(tarn_add(x, tarn_mul(tarn_linear_apply(hidden, down, NULL), tarn_scalar(0.22)))), 0);
    }
    assert_null(tarn__norm_up(x, &(tarn__decode_norm){0}, weight, NULL, TARN_TANH));
    assert_error(TARN_ERROR_ARGUMENT, "norm_up: activation");
}

/* A post-norm and the residual addition after it. */
static void a_norm_before_a_sum_is_that_of_its_parts(void **state)
{
    (void)state;
    tarn_tensor *x = some(2, 64, 1), *sum = some(2, 64, 9),
                *weight = good(tarn_reshape(some(1, 64, 2), TARN_SHAPE(64))),
                *shift = good(tarn_reshape(some(1, 64, 7), TARN_SHAPE(64)));
    for (int i = 0; i < 6; i++) {
        double scale = i % 2 ? 0.22 : 1;
        tarn__decode_norm norm = {.weight = weight, .epsilon = 1e-5, .is_layernorm = i / 2 == 2, .offset = i / 2 == 1};
        norm.bias = norm.is_layernorm ? shift : NULL;
        tarn_tensor *h = good(norm.is_layernorm ? tarn_layernorm(x, weight, shift, 1e-5)
                                                : tarn_rmsnorm_offset(x, weight, norm.offset, 1e-5));
        assert_close(good(tarn__norm_residual(x, &norm, sum, scale)),
                     good(tarn_add(sum, scale == 1 ? h : tarn_mul(h, tarn_scalar(scale)))), 0);
    }
    assert_null(tarn__norm_residual(x, &(tarn__decode_norm){.weight = weight, .epsilon = 1e-5}, some(2, 32, 1), 1));
    assert_error(TARN_ERROR_SHAPE, "add");
}

/* A branch is added by what next reads the stream, once. */
static void a_branch_joins_the_stream(void **state)
{
    (void)state;
    tarn_tensor *branch = some(2, 64, 1), *sum = some(2, 64, 9), *gate = some(24, 64, 3), *up = some(24, 64, 4), *y,
                *weight = good(tarn_reshape(some(1, 64, 2), TARN_SHAPE(64)));
    const tarn__decode_norm norm = {.weight = weight, .epsilon = 1e-5, .offset = 1};
    tarn_tensor *x = good(tarn__norm_residual(branch, &norm, sum, 0.3)),
                *h = good(tarn_rmsnorm_offset(x, weight, 1, 1e-5)), *product = good(tarn_linear_apply(h, up, NULL)),
                *cap = tarn_scalar(3);
    for (int i = 0; i < 2; i++) {
        tarn__decode_stream stream = {.sum = i ? sum : x, .branch = i ? branch : NULL, .post = norm, .scale = 0.3};
        tarn__decode_stream gated = stream, logits = stream;
        assert_true(tarn__stream_norm_linear(&stream, &norm, &up, NULL, 1, &y));
        assert_close(y, product, 0);
        assert_null(stream.branch);
        assert_close(stream.sum, x, 0);
        assert_close(good(tarn__stream_sum(&stream)), x, 0);
        assert_close(good(tarn__stream_norm_gate_up(&gated, &norm, gate, up, TARN_SILU)),
                     good(tarn__norm_gate_up(x, &norm, gate, up, TARN_SILU)), 0);
        assert_close(gated.sum, x, 0);
        assert_close(good(tarn__stream_logits(&logits, &norm, up, NULL, 0.5, 3)),
                     good(tarn_mul(tarn_tanh(tarn_div(tarn_mul(product, tarn_scalar(0.5)), cap)), cap)), 0);
        assert_close(logits.sum, x, 0);
    }
}

/* Stored as [in, out], given as transposed views. */
static void weights_of_the_other_layout_work(void **state)
{
    (void)state;
    tarn_tensor *x = some(3, 32, 1), *norm = good(tarn_reshape(some(1, 32, 2), TARN_SHAPE(32))), *w = some(32, 48, 3),
                *bias = good(tarn_reshape(some(1, 48, 6), TARN_SHAPE(48))), *sum = some(3, 48, 4), *y,
                *view = good(tarn__transposed(w));
    assert_true(tarn__norm_linear(x, &(tarn__decode_norm){.weight = norm, .epsilon = 1e-5}, &view, &bias, 1, &y));
    assert_close(y, good(tarn__linear_in_out(tarn_rmsnorm(x, norm, 1e-5), w, bias)), 0);
    assert_close(good(tarn__linear_residual(x, view, bias, sum, 1)),
                 good(tarn_add(sum, tarn__linear_in_out(x, w, bias))), 0);
}

static void gradients_pass(void **state)
{
    (void)state;
    tarn_tensor *x = tarn_requires_grad(some(2, 32, 1), true), *other = tarn_requires_grad(some(2, 32, 1), true),
                *norm = good(tarn_reshape(some(1, 32, 2), TARN_SHAPE(32)));
    tarn_tensor *gate = some(16, 32, 3), *up = some(16, 32, 4), *down = some(32, 16, 5),
                *h = good(tarn_rmsnorm(other, norm, 1e-6));
    assert_true(tarn_backward(
        good(tarn_sum(tarn__linear_residual(tarn__norm_gate_up(x, &(tarn__decode_norm){.weight = norm, .epsilon = 1e-6},
                                                               gate, up, TARN_SILU),
                                            down, NULL, x, 1),
                      TARN_AXES(0, 1), false))));
    tarn_tensor *inner = good(tarn_mul(tarn_silu(tarn_linear_apply(h, gate, NULL)), tarn_linear_apply(h, up, NULL)));
    assert_true(
        tarn_backward(good(tarn_sum(tarn_add(other, tarn_linear_apply(inner, down, NULL)), TARN_AXES(0, 1), false))));
    assert_close(tarn_grad(x), tarn_grad(other), 0);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    tarn_tensor *x = some(2, 32, 1), *short_one = some(4, 24, 2), *y[3];
    assert_false(tarn__norm_linear(x, &(tarn__decode_norm){0}, &short_one, NULL, 1, y));
    assert_error(TARN_ERROR_SHAPE, "[2, 32]");
    assert_null(tarn__norm_gate_up(x, &(tarn__decode_norm){0}, short_one, short_one, TARN_SILU));
    assert_error(TARN_ERROR_SHAPE, "[4, 24]");
    assert_null(tarn__linear_residual(short_one, short_one, NULL, x, 1));
    assert_error(TARN_ERROR_SHAPE, "add");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(products_of_a_norm_are_those_of_its_result),
        in_scope(a_gate_and_a_sum_are_those_of_their_parts),
        in_scope(every_norm_activation_and_scale_is_that_of_its_parts),
        in_scope(a_norm_before_a_sum_is_that_of_its_parts),
        in_scope(a_branch_joins_the_stream),
        in_scope(weights_of_the_other_layout_work),
        in_scope(gradients_pass),
        in_scope(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
