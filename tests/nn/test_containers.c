/* test_containers.c: a relu after a module that ends with a batchnorm is fused with it: results, gradients and
 * statistics equal those of the layers one by one. */
#include "../support/check.h"

#define CPU tarn_device_cpu()

static tarn_tensor *cut(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module, (void)ctx;
    return tarn_relu(x);
}

/* The relu layer, or a callback with the same result, which containers cannot recognize. */
static tarn_module *relu(bool is_known)
{
    return is_known ? tarn_activation(TARN_RELU) : tarn_module_new("cut", cut, NULL, NULL);
}

static tarn_module *convolution(void)
{
    return tarn_conv2d_layer_with(4, 4, CPU,
                                  &(tarn_conv2d_layer_options){.kernel = {3, 3}, .padding = {1, 1}, .no_bias = true});
}

static tarn_module *norm_of_convolution(void)
{
    return tarn_sequential(convolution(), tarn_batchnorm2d(4, CPU), NULL);
}

enum { PAIR, BLOCK, BLOCK_WITH_SHORTCUT, NESTED, FORMS };

/* From the same numbers each time. */
static tarn_module *make(int form, bool is_known)
{
    tarn_seed(7);
    tarn_module *body =
        tarn_sequential(convolution(), tarn_batchnorm2d(4, CPU), relu(is_known), norm_of_convolution(), NULL);
    if (form == NESTED)
        body = tarn_residual(body, NULL);
    if (form != PAIR)
        body = tarn_residual(body, form == BLOCK ? NULL : norm_of_convolution());
    return tarn_sequential(body, relu(is_known), NULL);
}

static void assert_same(tarn_module *one, tarn_module *two, tarn_tensor *x, tarn_tensor *g)
{
    tarn_tensor *leaf[2] = {tarn_requires_grad(tarn_clone(x), true), tarn_requires_grad(tarn_clone(x), true)};
    tarn_tensor *y = good(tarn_forward(one, leaf[0]));
    tarn_tensor *expected = good(tarn_forward(two, leaf[1]));
    assert_close(y, expected, 0);
    assert_true(tarn_backward_from(y, g, NULL));
    assert_true(tarn_backward_from(expected, g, NULL));
    /* a residual's two gradients are added in another order */
    assert_close(good(tarn_grad(leaf[0])), good(tarn_grad(leaf[1])), 1e-6);
    for (int i = 0; i < tarn_module_parameter_count(one); i++)
        assert_close(good(tarn_grad(tarn_module_parameter(one, i))), good(tarn_grad(tarn_module_parameter(two, i))), 0);
    for (int i = 0; i < tarn_module_buffer_count(one); i++)
        assert_close(tarn_module_buffer(one, i), tarn_module_buffer(two, i), 0);
}

static void a_relu_behind_a_batchnorm_changes_no_result(void **state)
{
    (void)state;
    for (int form = 0; form < FORMS; form++)
        for (int training = 0; training < 2; training++) {
            tarn_module *one = make(form, true), *two = make(form, false);
            assert_non_null(one);
            assert_non_null(two);
            tarn_module_train(one, training), tarn_module_train(two, training);
            tarn_tensor *x = good(tarn_normal(TARN_SHAPE(5, 4, 6, 6), 0, 1, TARN_F32, CPU));
            assert_same(one, two, x, good(tarn_normal(TARN_SHAPE(5, 4, 6, 6), 0, 1, TARN_F32, CPU)));
            tarn_module_free(one), tarn_module_free(two);
        }
}

static tarn_tensor *average(tarn_module *module, tarn_tensor *x, void *ctx)
{
    (void)module, (void)ctx;
    return tarn_mean(x, TARN_AXES(2, 3), true);
}

/* What tarn_add() broadcasts is broadcast here, too. */
static void a_shortcut_of_fewer_elements_is_broadcast(void **state)
{
    (void)state;
    tarn_module *block[2];
    for (int i = 0; i < 2; i++) {
        tarn_seed(7);
        block[i] = tarn_sequential(
            tarn_residual(norm_of_convolution(), tarn_module_new("average", average, NULL, NULL)), relu(i == 0), NULL);
        assert_non_null(block[i]);
    }
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(5, 4, 6, 6), 0, 1, TARN_F32, CPU));
    assert_same(block[0], block[1], x, good(tarn_normal(TARN_SHAPE(5, 4, 6, 6), 0, 1, TARN_F32, CPU)));
    tarn_module_free(block[0]), tarn_module_free(block[1]);
}

/* Two convolutions and two batchnorms are four kernels; nothing is left of the sum and the two relus. */
static void a_block_runs_no_kernels_for_its_sum_and_relu(void **state)
{
    (void)state;
    tarn_module *one = make(BLOCK, true);
    tarn_module_train(one, false);
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(5, 4, 6, 6), 0, 1, TARN_F32, CPU));
    tarn_stats_reset();
    good(tarn_forward(one, x));
    assert_int_equal(tarn_stats().kernels, 4);
    tarn_module_free(one);
}

/* An observer of the layers still sees every one of them. */
static void a_summary_names_every_layer(void **state)
{
    (void)state;
    tarn_module *one = make(BLOCK_WITH_SHORTCUT, true), *two = make(BLOCK_WITH_SHORTCUT, false);
    char *text = tarn_module_summary_string(one, TARN_SHAPE(5, 4, 6, 6), TARN_F32);
    char *other = tarn_module_summary_string(two, TARN_SHAPE(5, 4, 6, 6), TARN_F32);
    assert_non_null(text);
    assert_non_null(other);
    int lines[2] = {0, 0};
    for (const char *c = text; *c; c++)
        lines[0] += *c == '\n';
    for (const char *c = other; *c; c++)
        lines[1] += *c == '\n';
    assert_int_equal(lines[0], lines[1]);
    assert_contains(text, "relu");
    assert_contains(text, "batchnorm2d");
    tarn_string_free(text), tarn_string_free(other);
    tarn_module_free(one), tarn_module_free(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_relu_behind_a_batchnorm_changes_no_result),
        in_scope(a_shortcut_of_fewer_elements_is_broadcast),
        in_scope(a_block_runs_no_kernels_for_its_sum_and_relu),
        in_scope(a_summary_names_every_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
