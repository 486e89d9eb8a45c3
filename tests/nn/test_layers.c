/* test_layers.c: layers made of one operation, trees with buffers, training mode, and visits. tests/parity/layers.py
 * compares with torch.nn. */
#include "support/check.h"

#define CPU tarn_device_cpu()

/* ---- layers ------------------------------------------------------------------------------------------------------ */

static void norms_begin_as_their_operations_without_parameters(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(3, 8), 1, 2, TARN_F32, CPU));
    tarn_module *layer = tarn_layernorm_layer(8, CPU), *root = tarn_rmsnorm_layer(8, CPU);
    assert_close(tarn_forward(layer, x), tarn_layernorm(x, NULL, NULL, 1e-5), 0);
    assert_close(tarn_forward(root, x), tarn_rmsnorm(x, NULL, 1e-6), 0);
    assert_int_equal(tarn_module_parameter_count(layer), 2);
    assert_int_equal(tarn_module_parameter_count(root), 1);
    assert_string_equal(tarn_module_parameter_name(layer, 1), "bias");
    tarn_module_free(layer);
    tarn_module_free(root);
}

static void norms_have_options(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(3, 8), 1, 2, TARN_F64, CPU));
    tarn_module *layer =
        tarn_layernorm_layer_with(8, CPU, &(tarn_norm_options){.epsilon = 0.5, .no_bias = true, .dtype = TARN_F64});
    tarn_module *plain = tarn_rmsnorm_layer_with(8, CPU, &(tarn_norm_options){.epsilon = 0.25, .no_affine = true});
    assert_int_equal(tarn_module_parameter_count(layer), 1);
    assert_int_equal(tarn_module_parameter_count(plain), 0);
    assert_close(tarn_forward(layer, x), tarn_layernorm(x, NULL, NULL, 0.5), 0);
    assert_close(tarn_forward(plain, x), tarn_rmsnorm(x, NULL, 0.25), 0);
    tarn_module_free(layer);
    tarn_module_free(plain);
}

static void an_embedding_begins_normal_and_looks_rows_up(void **state)
{
    (void)state;
    tarn_seed(3);
    tarn_module *layer = tarn_embedding_layer(1000, 16, CPU);
    tarn_tensor *weight = good(tarn_module_find(layer, "weight"));
    assert_true(fabs(tarn_item(tarn_mean(weight, TARN_ALL_AXES, false))) < 0.05);
    assert_true(fabs(tarn_item(tarn_var(weight, TARN_ALL_AXES, 1, false)) - 1) < 0.05);
    tarn_tensor *y = good(tarn_forward(layer, tarn_from_i64((const int64_t[]){7, 7, 999, 0}, TARN_SHAPE(2, 2), CPU)));
    assert_shape(y, 2, 2, 16);
    assert_true(tarn_item_at(y, TARN_SHAPE(0, 1, 3)) == tarn_item_at(weight, TARN_SHAPE(7, 3)));
    tarn_module_free(layer);
    layer = tarn_embedding_layer_with(4, 2, CPU, &(tarn_embedding_options){.dtype = TARN_BF16});
    assert_int_equal(tarn_dtype_of(tarn_module_parameter(layer, 0)), TARN_BF16);
    tarn_module_free(layer);
}

static void dropout_drops_in_training_mode_only(void **state)
{
    (void)state;
    tarn_module *layer = tarn_dropout_layer(0.5);
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(1000), TARN_F32, CPU));
    double dropped = tarn_item(tarn_mean(tarn_forward(layer, x), TARN_ALL_AXES, false));
    assert_true(dropped != 1 && fabs(dropped - 1) < 0.2);
    assert_true(tarn_module_train(layer, false));
    assert_ptr_equal(tarn_forward(layer, x), x);
    assert_true(tarn_module_train(layer, true));
    assert_ptr_not_equal(tarn_forward(layer, x), x);
    tarn_module_free(layer);
}

static void flatten_joins_the_axes_from_one_on(void **state)
{
    (void)state;
    tarn_tensor *x = count_up(TARN_SHAPE(2, 3, 4));
    tarn_module *layers[] = {tarn_flatten(1), tarn_flatten(0), tarn_flatten(-1), tarn_flatten(-2), tarn_flatten(3)};
    assert_shape(tarn_forward(layers[0], x), 2, 12);
    assert_shape(tarn_forward(layers[1], x), 24);
    assert_shape(tarn_forward(layers[2], x), 2, 3, 4);
    assert_shape(tarn_forward(layers[3], x), 2, 12);
    assert_null(tarn_forward(layers[4], x));
    assert_error(TARN_ERROR_SHAPE, "flatten: axis 3");
    expect(tarn_forward(layers[0], tarn_slice(x, 0, 1, 2)), TARN_SHAPE(1, 12),
           VALUES(12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23));
    for (int i = 0; i < 5; i++)
        tarn_module_free(layers[i]);
}

static void a_residual_adds_its_input_or_its_shortcut(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(2, 3), 0, 1, TARN_F32, CPU));
    tarn_module *plain = tarn_residual(tarn_activation(TARN_TANH), NULL);
    assert_close(tarn_forward(plain, x), tarn_add(tarn_tanh(x), x), 0);
    tarn_module *both =
        tarn_residual(tarn_sequential(tarn_linear(3, 4, CPU), tarn_activation(TARN_RELU)), tarn_linear(3, 4, CPU));
    assert_string_equal(tarn_module_parameter_name(both, 0), "body.0.weight");
    assert_string_equal(tarn_module_parameter_name(both, 3), "shortcut.bias");
    assert_shape(tarn_forward(both, x), 2, 4);
    tarn_module_free(plain);
    tarn_module_free(both);
}

static void a_residual_frees_what_it_was_given_when_it_fails(void **state)
{
    (void)state;
    tarn_module *owned = tarn_linear(3, 3, CPU), *parent = tarn_sequential(owned, NULL),
                *twice = tarn_linear(3, 3, CPU);
    assert_null(tarn_residual(NULL, tarn_linear(3, 3, CPU)));
    assert_error(TARN_ERROR_ARGUMENT, "residual: the body is NULL");
    assert_null(tarn_residual(owned, tarn_linear(3, 3, CPU)));
    assert_error(TARN_ERROR_ARGUMENT, "residual: the body is already a child of another module");
    assert_null(tarn_residual(tarn_linear(3, 3, CPU), owned));
    assert_error(TARN_ERROR_ARGUMENT, "residual: the shortcut is already a child of another module");
    assert_null(tarn_residual(twice, twice));
    assert_error(TARN_ERROR_ARGUMENT, "the same module");
    tarn_module_free(parent);
}

static void transposed_and_one_dimensional_convolutions_are_their_operations(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(2, 4, 5, 6), 0, 1, TARN_F32, CPU)),
                *sequence = good(tarn_normal(TARN_SHAPE(2, 4, 11), 0, 1, TARN_F32, CPU));
    tarn_module *up = tarn_conv_transpose2d_layer(4, 6, 3, CPU), *line = tarn_conv1d_layer(4, 6, 3, CPU);
    tarn_conv_transpose2d_layer_options wanted = {.kernel = {3, 2},
                                                  .stride = {2, 1},
                                                  .padding = {1, 0},
                                                  .output_padding = {1, 0},
                                                  .dilation = {1, 2},
                                                  .groups = 2,
                                                  .no_bias = true};
    tarn_conv1d_layer_options narrow = {.kernel = 4, .stride = 2, .padding = 3, .dilation = 2, .groups = 2};
    tarn_module *up_with = tarn_conv_transpose2d_layer_with(4, 6, CPU, &wanted),
                *line_with = tarn_conv1d_layer_with(4, 6, CPU, &narrow);
    assert_shape(tarn_module_find(up, "weight"), 4, 6, 3, 3);
    assert_shape(tarn_module_find(up_with, "weight"), 4, 3, 3, 2);
    assert_shape(tarn_module_find(line_with, "weight"), 6, 2, 4);
    assert_int_equal(tarn_module_parameter_count(up_with), 1);
    assert_int_equal(tarn_module_parameter_count(line_with), 2);
    assert_shape(tarn_forward(up, x), 2, 6, 7, 8);
    tarn_conv_transpose2d_options same = {
        .stride = {2, 1}, .padding = {1, 0}, .output_padding = {1, 0}, .dilation = {1, 2}, .groups = 2};
    assert_close(tarn_forward(up_with, x), tarn_conv_transpose2d(x, tarn_module_find(up_with, "weight"), NULL, &same),
                 0);
    assert_shape(tarn_forward(line, sequence), 2, 6, 9);
    tarn_conv1d_options same_line = {2, 3, 2, 2};
    assert_close(
        tarn_forward(line_with, sequence),
        tarn_conv1d(sequence, tarn_module_find(line_with, "weight"), tarn_module_find(line_with, "bias"), &same_line),
        0);
    tarn_module_free(up), tarn_module_free(line), tarn_module_free(up_with), tarn_module_free(line_with);
}

static void instance_norm_is_a_group_per_channel(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(3, 5, 4, 6), 1, 2, TARN_F32, CPU));
    tarn_module *plain = tarn_instancenorm_layer(5, CPU),
                *affine =
                    tarn_instancenorm_layer_with(5, CPU, &(tarn_instancenorm_options){.affine = true, .epsilon = 0.1});
    assert_int_equal(tarn_module_parameter_count(plain), 0);
    assert_int_equal(tarn_module_parameter_count(affine), 2);
    assert_close(tarn_forward(plain, x), tarn_groupnorm(x, 5, NULL, NULL, 1e-5), 0);
    assert_close(tarn_forward(affine, x), tarn_groupnorm(x, 5, NULL, NULL, 0.1), 1e-6);
    tarn_module_free(plain), tarn_module_free(affine);
}

static void convolution_and_pooling_are_their_operations(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(2, 4, 9, 7), 0, 1, TARN_F32, CPU));
    tarn_module *plain = tarn_conv2d_layer(4, 6, 3, CPU);
    tarn_conv2d_layer_options wanted = {
        .kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2, .no_bias = true};
    tarn_module *with = tarn_conv2d_layer_with(4, 6, CPU, &wanted);
    assert_shape(tarn_module_find(plain, "weight"), 6, 4, 3, 3);
    assert_shape(tarn_module_find(with, "weight"), 6, 2, 3, 2);
    assert_int_equal(tarn_module_parameter_count(with), 1);
    assert_close(tarn_forward(plain, x),
                 tarn_conv2d(x, tarn_module_find(plain, "weight"), tarn_module_find(plain, "bias"), NULL), 0);
    tarn_conv2d_options same = {.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2};
    assert_close(tarn_forward(with, x), tarn_conv2d(x, tarn_module_find(with, "weight"), NULL, &same), 0);
    tarn_pool2d_options window = {.kernel = {3, 2}, .stride = {2, 2}, .padding = {1, 1}};
    tarn_module *pools[] = {tarn_max_pool2d_layer(&window), tarn_avg_pool2d_layer(&window),
                            tarn_global_avg_pool2d_layer()};
    assert_close(tarn_forward(pools[0], x), tarn_max_pool2d(x, &window), 0);
    assert_close(tarn_forward(pools[1], x), tarn_avg_pool2d(x, &window), 0);
    assert_shape(tarn_forward(pools[2], x), 2, 4, 1, 1);
    for (int i = 0; i < 3; i++)
        tarn_module_free(pools[i]);
    tarn_module_free(plain);
    tarn_module_free(with);
}

static tarn_tensor *to_upsample, *upsampled;

static bool upsample_step(void *ctx)
{
    (void)ctx;
    return tarn_copy(upsampled, tarn_upsample(to_upsample, &(tarn_upsample_options){.size = {7, 9}, .mode = 1}));
}

/* Also in a captured step: indices and weights are computed on the device. Channels-last images stay so. */
static void upsampling_is_its_operation(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(2, 3, 4, 6), 0, 1, TARN_F32, CPU));
    tarn_upsample_options twice = {.scale = {2, 2}}, other = {.size = {7, 9}, .mode = TARN_UPSAMPLE_BILINEAR};
    tarn_module *layer = tarn_upsample_layer(&twice);
    tarn_tensor *y = good(tarn_forward(layer, x)), *bilinear = good(tarn_upsample(x, &other));
    assert_shape(y, 2, 3, 8, 12);
    for (int i = 0; i < 4; i++)
        assert_close(tarn_stride(tarn_slice(tarn_slice(y, 2, i / 2, 8), 3, i % 2, 12), TARN_SHAPE(1, 1, 2, 2)), x, 0);
    tarn_tensor *last = tarn_permute(tarn_contiguous(tarn_permute(x, TARN_AXES(0, 2, 3, 1))), TARN_AXES(0, 3, 1, 2));
    tarn_tensor *result = good(tarn_upsample(last, &other));
    assert_true(tarn_is_contiguous(tarn_permute(result, TARN_AXES(0, 2, 3, 1))));
    assert_close(result, bilinear, 1e-6);
    tarn_device device = tarn_device_parse("mirror:0");
    to_upsample = good(tarn_to(x, device));
    upsampled = good(tarn_zeros(TARN_SHAPE(2, 3, 7, 9), TARN_F32, device));
    tarn_graph *graph = tarn_graph_capture(device, upsample_step, NULL);
    assert_true(graph && tarn_graph_run(graph));
    assert_close(tarn_to(upsampled, CPU), bilinear, 1e-6);
    tarn_graph_free(graph);
    tarn_module_free(layer);
}

static tarn_module *image_network(void)
{
    tarn_conv2d_layer_options three = {.kernel = {3, 3}, .padding = {1, 1}, .no_bias = true};
    tarn_module *body = tarn_sequential(tarn_conv2d_layer_with(6, 6, CPU, &three), tarn_groupnorm_layer(2, 6, CPU),
                                        tarn_activation(TARN_RELU));
    return tarn_sequential(tarn_conv2d_layer_with(2, 6, CPU, &three), tarn_batchnorm2d(6, CPU),
                           tarn_activation(TARN_RELU),
                           tarn_max_pool2d_layer((&(tarn_pool2d_options){.kernel = {2, 2}})), tarn_residual(body, NULL),
                           tarn_global_avg_pool2d_layer(), tarn_flatten(1), tarn_linear(6, 3, CPU));
}

static void a_convolutional_network_learns_on_a_device_without_a_transfer(void **state)
{
    (void)state;
    tarn_device device = tarn_device_parse("mirror:0");
    tarn_seed(1);
    tarn_module *net = image_network();
    assert_true(tarn_module_to(net, device));
    tarn_optimizer *adam = tarn_adamw(net, &(tarn_adamw_options){.lr = 0.02f});
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(6, 2, 8, 8), 0, 1, TARN_F32, device));
    tarn_tensor *y = good(tarn_from_i64((const int64_t[]){0, 1, 2, 0, 1, 2}, TARN_SHAPE(6), device)), *kept[40];
    tarn_stats_reset();
    for (int i = 0; i < 40; i++) {
        tarn_scope *scope = tarn_scope_open();
        kept[i] = tarn_cross_entropy(tarn_forward(net, x), y, NULL);
        assert_true(tarn_backward(kept[i]) && tarn_optimizer_step(adam));
        kept[i] = tarn_keep(kept[i]);
        tarn_scope_close(scope);
    }
    tarn_counters counters = tarn_stats();
    assert_int_equal(counters.uploads + counters.downloads + counters.peer_copies + counters.fallbacks, 0);
    assert_int_equal(counters.kernels_on[0], 0);
    assert_true(tarn_item(kept[39]) < tarn_item(kept[0]) / 2);
    for (int i = 0; i < 40; i++)
        tarn_free(kept[i]);
    tarn_optimizer_free(adam);
    tarn_module_free(net);
}

static void a_batchnorm_tracks_its_batches_in_training_mode_only(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(8, 3, 5, 4), 2, 3, TARN_F32, CPU));
    tarn_module *layer = tarn_batchnorm2d(3, CPU),
                *bare =
                    tarn_batchnorm2d_with(3, CPU, &(tarn_batchnorm2d_options){.no_tracking = true, .no_affine = true});
    assert_int_equal(tarn_module_buffer_count(layer), 3);
    assert_int_equal(tarn_module_buffer_count(bare), 0);
    for (int i = 0; i < 200; i++) {
        tarn_scope *scope = tarn_scope_open();
        assert_shape(tarn_forward(layer, x), 8, 3, 5, 4);
        tarn_scope_close(scope);
    }
    assert_true(tarn_item(tarn_module_find(layer, "num_batches_tracked")) == 200);
    assert_close(tarn_module_find(layer, "running_mean"), tarn_mean(x, TARN_AXES(0, 2, 3), false), 1e-5);
    assert_close(tarn_module_find(layer, "running_var"), tarn_var(x, TARN_AXES(0, 2, 3), 1, false), 1e-5);
    tarn_tensor *trained = good(tarn_forward(bare, x)),
                *mean = good(tarn_clone(tarn_module_find(layer, "running_mean")));
    assert_true(tarn_module_train(layer, false) && tarn_module_train(bare, false));
    assert_close(tarn_forward(bare, x), trained, 0);
    assert_close(tarn_forward(layer, x), trained, 0.01);
    assert_close(tarn_module_find(layer, "running_mean"), mean, 0);
    assert_true(tarn_item(tarn_module_find(layer, "num_batches_tracked")) == 200);
    tarn_module_free(layer);
    tarn_module_free(bare);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static void buffers_are_named_counted_and_not_trained(void **state)
{
    (void)state;
    tarn_module *layer = tarn_module_new("mine", unchanged, NULL, NULL);
    good(tarn_module_add_parameter(layer, "weight", vector(1, 2)));
    tarn_tensor *mean = good(tarn_module_add_buffer(layer, "mean", vector(3, 4)));
    good(tarn_module_add_buffer(layer, "steps", tarn_zeros(TARN_SCALAR, TARN_I64, CPU)));
    tarn_module *net = tarn_sequential(tarn_linear(2, 2, CPU), layer, NULL);
    assert_int_equal(tarn_module_buffer_count(net), 2);
    assert_string_equal(tarn_module_buffer_name(net, 0), "1.mean");
    assert_string_equal(tarn_module_buffer_name(layer, 1), "steps");
    assert_string_equal(tarn_name(mean), "1.mean");
    assert_ptr_equal(tarn_module_buffer(net, 0), mean);
    assert_ptr_equal(tarn_module_find(net, "1.mean"), mean);
    assert_int_equal(tarn_module_parameter_count(net), 3);
    assert_int_equal(tarn_module_element_count(net), 8);
    tarn_optimizer *sgd = tarn_sgd(net, &(tarn_sgd_options){.lr = 1});
    tarn_backward(tarn_sum(tarn_forward(net, tarn_ones(TARN_SHAPE(1, 2), TARN_F32, CPU)), TARN_ALL_AXES, false));
    assert_true(tarn_optimizer_step(sgd));
    expect(mean, TARN_SHAPE(2), VALUES(3, 4));
    tarn_optimizer_free(sgd);
    tarn_module_free(net);
}

static void buffers_are_checked_when_they_are_added(void **state)
{
    (void)state;
    tarn_module *layer = tarn_module_new("mine", unchanged, NULL, NULL);
    good(tarn_module_add_buffer(layer, "b", vector(1)));
    assert_null(tarn_module_add_buffer(layer, "b", vector(1)));
    assert_error(TARN_ERROR_ARGUMENT, "module_add_buffer: the mine module already has a buffer 'b'");
    assert_null(tarn_module_add_parameter(layer, "b", vector(1)));
    assert_error(TARN_ERROR_ARGUMENT, "already has a buffer 'b'");
    assert_null(tarn_module_add_buffer(layer, "g", tarn_requires_grad(vector(1), true)));
    assert_error(TARN_ERROR_ARGUMENT, "'g' collects a gradient");
    assert_null(tarn_module_add_buffer(layer, "c", tarn_scalar(1)));
    assert_error(TARN_ERROR_ARGUMENT, "a constant");
    tarn_module_free(layer);
}

/* ---- modes and visits -------------------------------------------------------------------------------------------- */

typedef struct trail {
    char text[512];
    int left; /* modules until the visit is ended; negative: none */
} trail;

static bool follow(tarn_module *module, const char *path, void *ctx)
{
    trail *t = ctx;
    if (t->left-- == 0)
        return false;
    snprintf(t->text + strlen(t->text), sizeof(t->text) - strlen(t->text), "%s=%s%s ", path, tarn_module_kind(module),
             tarn_module_is_training(module) ? "" : "!");
    return true;
}

static void training_mode_reaches_the_whole_tree_and_visits_see_it(void **state)
{
    (void)state;
    tarn_module *inner = tarn_sequential(tarn_dropout_layer(0.1), tarn_flatten(1));
    tarn_module *net = tarn_sequential(tarn_linear(2, 2, CPU), tarn_residual(inner, NULL));
    trail all = {.left = -1}, below = {.left = -1}, some = {.left = 2};
    assert_true(tarn_module_is_training(net));
    assert_true(tarn_module_train(inner, false));
    assert_true(tarn_module_visit(net, follow, &all));
    assert_string_equal(all.text,
                        "=sequential 0=linear 1=residual 1.body=sequential! 1.body.0=dropout! 1.body.1=flatten! ");
    assert_true(tarn_module_train(net, false));
    assert_true(tarn_module_visit(inner, follow, &below));
    assert_string_equal(below.text, "=sequential! 0=dropout! 1=flatten! ");
    assert_false(tarn_module_visit(net, follow, &some));
    assert_string_equal(some.text, "=sequential! 0=linear! ");
    assert_ok();
    tarn_module_free(net);
}

/* ---- on another device ------------------------------------------------------------------------------------------- */

static tarn_module *token_network(void)
{
    tarn_module *block = tarn_sequential(tarn_layernorm_layer(8, CPU), tarn_linear(8, 8, CPU),
                                         tarn_activation(TARN_GELU), tarn_dropout_layer(0.2));
    return tarn_sequential(tarn_embedding_layer(11, 8, CPU), tarn_residual(block, NULL), tarn_rmsnorm_layer(8, CPU),
                           tarn_flatten(1), tarn_linear(32, 3, CPU));
}

static void forward_backward_and_step_on_a_device_make_no_transfer(void **state)
{
    (void)state;
    tarn_device device = tarn_device_parse("mirror:1");
    tarn_module *net = token_network();
    good(tarn_module_add_buffer(net, "seen", vector(5, 6)));
    assert_true(tarn_module_to(net, device));
    assert_true(tarn_device_equal(tarn_device_of(tarn_module_buffer(net, 0)), device));
    expect(tarn_module_buffer(net, 0), TARN_SHAPE(2), VALUES(5, 6));
    tarn_optimizer *adam = tarn_adamw(net, &(tarn_adamw_options){.lr = 0.01f});
    tarn_tensor *x = good(tarn_from_i64((const int64_t[]){1, 2, 3, 4, 5, 6, 7, 10}, TARN_SHAPE(2, 4), device));
    tarn_tensor *y = good(tarn_from_i64((const int64_t[]){0, 2}, TARN_SHAPE(2), device));
    tarn_stats_reset();
    double losses[30];
    tarn_tensor *kept[30];
    for (int i = 0; i < 30; i++) {
        tarn_scope *scope = tarn_scope_open();
        kept[i] = tarn_cross_entropy(tarn_forward(net, x), y, NULL);
        assert_true(tarn_backward(kept[i]) && tarn_optimizer_step(adam));
        kept[i] = tarn_keep(kept[i]);
        tarn_scope_close(scope);
    }
    tarn_counters counters = tarn_stats();
    assert_int_equal(counters.uploads + counters.downloads + counters.peer_copies + counters.fallbacks, 0);
    assert_int_equal(counters.kernels_on[0], 0);
    for (int i = 0; i < 30; i++) {
        losses[i] = tarn_item(kept[i]);
        tarn_free(kept[i]);
    }
    assert_true(losses[29] < losses[0] / 2);
    tarn_optimizer_free(adam);
    tarn_module_free(net);
}

/* ---- without memory ---------------------------------------------------------------------------------------------- */

static void a_failed_allocation_anywhere_leaves_nothing_behind(void **state)
{
    (void)state;
    tarn_empty_cache(CPU);
    if (!tarn_set_allocator(&scarce_allocator))
        fail_msg("%s", tarn_error());
    bool made = false;
    for (int room = 0; !made && room < 2000; room++) {
        allocations_left = room;
        tarn_module *net = token_network();
        char *text = tarn_module_summary_string(net, TARN_SHAPE(1, 4), TARN_I64);
        made = text != NULL;
        tarn_code code = tarn_error_code();
        allocations_left = 1000000;
        tarn_clear_error();
        assert_true(made || code == TARN_ERROR_MEMORY);
        tarn_string_free(text);
        tarn_module_free(net);
        tarn_empty_cache(CPU);
    }
    assert_true(made);
    if (!tarn_set_allocator(NULL)) /* which it refuses while memory is out */
        fail_msg("%s", tarn_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_failed_allocation_anywhere_leaves_nothing_behind,
                               clear_error), /* first: nothing holds memory yet */
        in_scope(norms_begin_as_their_operations_without_parameters),
        in_scope(norms_have_options),
        in_scope(an_embedding_begins_normal_and_looks_rows_up),
        in_scope(dropout_drops_in_training_mode_only),
        in_scope(flatten_joins_the_axes_from_one_on),
        in_scope(a_residual_adds_its_input_or_its_shortcut),
        in_scope(a_residual_frees_what_it_was_given_when_it_fails),
        in_scope(convolution_and_pooling_are_their_operations),
        in_scope(transposed_and_one_dimensional_convolutions_are_their_operations),
        in_scope(instance_norm_is_a_group_per_channel),
        in_scope(upsampling_is_its_operation),
        in_scope(a_convolutional_network_learns_on_a_device_without_a_transfer),
        in_scope(a_batchnorm_tracks_its_batches_in_training_mode_only),
        in_scope(buffers_are_named_counted_and_not_trained),
        in_scope(buffers_are_checked_when_they_are_added),
        in_scope(training_mode_reaches_the_whole_tree_and_visits_see_it),
        in_scope(forward_backward_and_step_on_a_device_make_no_transfer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
