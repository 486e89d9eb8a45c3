/* test_bad_input_nn.c: layers, modes, visits, files and tables of modules are given what they do not take. */
#include "support/refuse.h"

#define CPU tarn_device_cpu()
#define BAD_DTYPE ((tarn_dtype)77)

static const tarn_device nowhere = {6, 0};

static void layers(void **state)
{
    (void)state;
    REFUSE(tarn_dropout_layer, tarn_dropout_layer(-0.1));
    REFUSE(tarn_dropout_layer, tarn_dropout_layer(1.1));
    REFUSE(tarn_dropout_layer, tarn_dropout_layer(NAN));
    REFUSE(tarn_flatten, tarn_flatten(8));
    REFUSE(tarn_flatten, tarn_flatten(-9));
    REFUSE(tarn_embedding_layer, tarn_embedding_layer(0, 2, CPU));
    REFUSE(tarn_embedding_layer, tarn_embedding_layer(2, -1, CPU));
    REFUSE(tarn_embedding_layer, tarn_embedding_layer(2, 2, nowhere));
    REFUSE(tarn_embedding_layer, tarn_embedding_layer((int64_t)1 << 61, 2, CPU));
    REFUSE(tarn_embedding_layer, tarn_embedding_layer_with(2, 2, CPU, &(tarn_embedding_options){.dtype = TARN_I64}));
    REFUSE(tarn_embedding_layer, tarn_embedding_layer_with_sized(0, 2, CPU, NULL, 0));
    REFUSE(tarn_layernorm_layer, tarn_layernorm_layer(0, CPU));
    REFUSE(tarn_layernorm_layer, tarn_layernorm_layer(2, nowhere));
    REFUSE(tarn_layernorm_layer, tarn_layernorm_layer_with(2, CPU, &(tarn_norm_options){.epsilon = -1}));
    REFUSE(tarn_layernorm_layer, tarn_layernorm_layer_with(2, CPU, &(tarn_norm_options){.epsilon = NAN}));
    REFUSE(tarn_layernorm_layer, tarn_layernorm_layer_with(2, CPU, &(tarn_norm_options){.dtype = BAD_DTYPE}));
    REFUSE(tarn_layernorm_layer, tarn_layernorm_layer_with_sized(-1, CPU, NULL, 0));
    REFUSE(tarn_rmsnorm_layer, tarn_rmsnorm_layer(0, CPU));
    REFUSE(tarn_rmsnorm_layer, tarn_rmsnorm_layer(2, nowhere));
    REFUSE(tarn_rmsnorm_layer, tarn_rmsnorm_layer_with(2, CPU, &(tarn_norm_options){.epsilon = INFINITY}));
    REFUSE(tarn_rmsnorm_layer, tarn_rmsnorm_layer_with(2, CPU, &(tarn_norm_options){.dtype = TARN_I32}));
    REFUSE(tarn_rmsnorm_layer, tarn_rmsnorm_layer_with_sized(0, CPU, NULL, 0));
    const tarn_conv2d_layer_options three = {.kernel = {3, 3}};
    REFUSE(tarn_conv2d_layer, tarn_conv2d_layer(0, 2, 3, CPU));
    REFUSE(tarn_conv2d_layer, tarn_conv2d_layer(2, -2, 3, CPU));
    REFUSE(tarn_conv2d_layer, tarn_conv2d_layer(2, 2, 0, CPU));
    REFUSE(tarn_conv2d_layer, tarn_conv2d_layer(2, 2, 3, nowhere));
    REFUSE(tarn_conv2d_layer, tarn_conv2d_layer((int64_t)1 << 40, (int64_t)1 << 40, 3, CPU));
    REFUSE(tarn_conv2d_layer, tarn_conv2d_layer_with(2, 2, CPU, NULL));
    REFUSE(tarn_conv2d_layer, tarn_conv2d_layer_with_sized(2, 2, CPU, &three, 8));
    REFUSE(tarn_conv2d_layer,
           tarn_conv2d_layer_with(2, 2, CPU, &(tarn_conv2d_layer_options){.kernel = {3, 3}, .stride = {1, -1}}));
    REFUSE(tarn_conv2d_layer,
           tarn_conv2d_layer_with(2, 2, CPU, &(tarn_conv2d_layer_options){.kernel = {3, 3}, .padding = {-1, 0}}));
    REFUSE(tarn_conv2d_layer,
           tarn_conv2d_layer_with(2, 2, CPU, &(tarn_conv2d_layer_options){.kernel = {3, 3}, .dilation = {-1, 0}}));
    REFUSE(tarn_conv2d_layer,
           tarn_conv2d_layer_with(4, 2, CPU, &(tarn_conv2d_layer_options){.kernel = {3, 3}, .groups = 4}));
    REFUSE(tarn_conv2d_layer,
           tarn_conv2d_layer_with(4, 4, CPU, &(tarn_conv2d_layer_options){.kernel = {3, 3}, .groups = -1}));
    REFUSE(tarn_conv2d_layer,
           tarn_conv2d_layer_with(4, 4, CPU, &(tarn_conv2d_layer_options){.kernel = {3, 3}, .dtype = TARN_I32}));
    REFUSE(tarn_max_pool2d_layer_sized, tarn_max_pool2d_layer(NULL));
    REFUSE(tarn_max_pool2d_layer_sized, tarn_max_pool2d_layer(&(tarn_pool2d_options){.kernel = {2, 0}}));
    REFUSE(tarn_max_pool2d_layer_sized,
           tarn_max_pool2d_layer(&(tarn_pool2d_options){.kernel = {2, 2}, .stride = {-1, 0}}));
    REFUSE(tarn_avg_pool2d_layer_sized, tarn_avg_pool2d_layer(NULL));
    REFUSE(tarn_avg_pool2d_layer_sized,
           tarn_avg_pool2d_layer(&(tarn_pool2d_options){.kernel = {2, 2}, .padding = {0, -1}}));
    REFUSE(tarn_upsample_layer_sized, tarn_upsample_layer(NULL));
    REFUSE(tarn_upsample_layer_sized, tarn_upsample_layer(&(tarn_upsample_options){.size = {2, 2}, .scale = {2, 2}}));
    const tarn_recurrent_options dropped = {.dropout = 0.5}, negative = {.layers = -1}, whole = {.dtype = TARN_I32};
    REFUSE(tarn_lstm_layer, tarn_lstm_layer(0, 2, CPU));
    REFUSE(tarn_lstm_layer, tarn_lstm_layer(2, 2, nowhere));
    REFUSE(tarn_lstm_layer, tarn_lstm_layer_with(2, -1, CPU, NULL));
    REFUSE(tarn_lstm_layer, tarn_lstm_layer_with(2, 2, CPU, &dropped));
    REFUSE(tarn_lstm_layer, tarn_lstm_layer_with_sized(2, 2, CPU, &negative, sizeof(negative)));
    REFUSE(tarn_gru_layer, tarn_gru_layer(2, 0, CPU));
    REFUSE(tarn_gru_layer, tarn_gru_layer_with(2, 2, CPU, &whole));
    REFUSE(tarn_gru_layer, tarn_gru_layer_with(2, 2, CPU, &(tarn_recurrent_options){.layers = 2, .dropout = NAN}));
    REFUSE(tarn_gru_layer, tarn_gru_layer_with_sized(2, 2, CPU, &negative, sizeof(negative)));
    REFUSE(tarn_recurrent_forward, tarn_recurrent_forward(NULL, vector(1, 2), NULL, NULL));
    tarn_module *pool = tarn_global_avg_pool2d_layer();
    REFUSE(tarn_recurrent_forward, tarn_recurrent_forward(pool, vector(1, 2), NULL, NULL));
    REFUSE(tarn_global_avg_pool2d, tarn_forward(pool, vector(1, 2)));
    tarn_module_free(pool);
    REFUSE(tarn_instancenorm_layer, tarn_instancenorm_layer(0, CPU));
    REFUSE(tarn_instancenorm_layer, tarn_instancenorm_layer_with(4, CPU, &(tarn_instancenorm_options){.epsilon = -1}));
    REFUSE(tarn_instancenorm_layer,
           tarn_instancenorm_layer_with(4, nowhere, &(tarn_instancenorm_options){.affine = true}));
    REFUSE(tarn_instancenorm_layer, tarn_instancenorm_layer_with_sized(-4, CPU, NULL, 0));
    REFUSE(tarn_conv1d_layer, tarn_conv1d_layer(0, 2, 3, CPU));
    REFUSE(tarn_conv1d_layer, tarn_conv1d_layer(2, 2, 0, CPU));
    REFUSE(tarn_conv1d_layer, tarn_conv1d_layer(2, 2, 3, nowhere));
    REFUSE(tarn_conv1d_layer, tarn_conv1d_layer_with(2, 2, CPU, NULL));
    REFUSE(tarn_conv1d_layer,
           tarn_conv1d_layer_with(2, 2, CPU, &(tarn_conv1d_layer_options){.kernel = 3, .stride = -1}));
    REFUSE(tarn_conv1d_layer,
           tarn_conv1d_layer_with(2, 4, CPU, &(tarn_conv1d_layer_options){.kernel = 3, .groups = 4}));
    REFUSE(tarn_conv1d_layer, tarn_conv1d_layer_with_sized(2, 2, CPU, NULL, 0));
    REFUSE(tarn_conv_transpose2d_layer, tarn_conv_transpose2d_layer(2, 0, 3, CPU));
    REFUSE(tarn_conv_transpose2d_layer, tarn_conv_transpose2d_layer(2, 2, -3, CPU));
    REFUSE(tarn_conv_transpose2d_layer, tarn_conv_transpose2d_layer(2, 2, 3, nowhere));
    REFUSE(tarn_conv_transpose2d_layer, tarn_conv_transpose2d_layer_with(2, 2, CPU, NULL));
    REFUSE(tarn_conv_transpose2d_layer,
           tarn_conv_transpose2d_layer_with(
               2, 2, CPU, &(tarn_conv_transpose2d_layer_options){.kernel = {3, 3}, .output_padding = {0, -1}}));
    REFUSE(tarn_conv_transpose2d_layer,
           tarn_conv_transpose2d_layer_with(
               2, 2, CPU, &(tarn_conv_transpose2d_layer_options){.kernel = {3, 3}, .dtype = TARN_I32}));
    REFUSE(tarn_conv_transpose2d_layer, tarn_conv_transpose2d_layer_with_sized(2, 2, CPU, NULL, 0));
    REFUSE(tarn_groupnorm_layer, tarn_groupnorm_layer(0, 4, CPU));
    REFUSE(tarn_groupnorm_layer, tarn_groupnorm_layer(3, 4, CPU));
    REFUSE(tarn_groupnorm_layer, tarn_groupnorm_layer(2, 0, CPU));
    REFUSE(tarn_groupnorm_layer, tarn_groupnorm_layer(2, 4, nowhere));
    REFUSE(tarn_groupnorm_layer, tarn_groupnorm_layer_with(2, 4, CPU, &(tarn_norm_options){.epsilon = -1}));
    REFUSE(tarn_groupnorm_layer, tarn_groupnorm_layer_with_sized(-2, 4, CPU, NULL, 0));
    REFUSE(tarn_batchnorm2d, tarn_batchnorm2d(0, CPU));
    REFUSE(tarn_batchnorm2d, tarn_batchnorm2d(2, nowhere));
    REFUSE(tarn_batchnorm2d, tarn_batchnorm2d_with(2, CPU, &(tarn_batchnorm2d_options){.momentum = 1.5}));
    REFUSE(tarn_batchnorm2d, tarn_batchnorm2d_with(2, CPU, &(tarn_batchnorm2d_options){.momentum = NAN}));
    REFUSE(tarn_batchnorm2d, tarn_batchnorm2d_with(2, CPU, &(tarn_batchnorm2d_options){.epsilon = -1}));
    REFUSE(tarn_batchnorm2d, tarn_batchnorm2d_with(2, CPU, &(tarn_batchnorm2d_options){.dtype = TARN_BOOL}));
    REFUSE(tarn_batchnorm2d, tarn_batchnorm2d_with_sized(-1, CPU, NULL, 0));
    REFUSE(tarn_residual, tarn_residual(NULL, NULL));
    REFUSE(tarn_residual, tarn_residual(NULL, tarn_flatten(1)));
}

static bool stop(tarn_module *module, const char *path, void *ctx)
{
    (void)module, (void)path, (void)ctx;
    return false;
}

static void modules(void **state)
{
    (void)state;
    tarn_module *net = tarn_linear(3, 2, CPU), *own = tarn_module_new("own", unchanged, NULL, NULL);
    REFUSE(tarn_module_add_buffer, tarn_module_add_buffer(NULL, "b", vector(1)));
    REFUSE(tarn_module_add_buffer, tarn_module_add_buffer(own, NULL, vector(1)));
    REFUSE(tarn_module_add_buffer, tarn_module_add_buffer(own, "a.b", vector(1)));
    REFUSE(tarn_module_add_buffer, tarn_module_add_buffer(own, "b", NULL));
    REFUSE(tarn_module_train, tarn_module_train(NULL, true));
    REFUSE(tarn_module_is_training, tarn_module_is_training(NULL));
    REFUSE(tarn_module_kind, tarn_module_kind(NULL));
    REFUSE(tarn_module_visit, tarn_module_visit(NULL, stop, NULL));
    REFUSE(tarn_module_visit, tarn_module_visit(net, NULL, NULL));
    ACCEPT(tarn_module_visit(net, stop, NULL));
    REFUSE(tarn_module_buffer_count, tarn_module_buffer_count(NULL));
    REFUSE(tarn_module_buffer, tarn_module_buffer(NULL, 0));
    REFUSE(tarn_module_buffer, tarn_module_buffer(net, 0));
    REFUSE(tarn_module_buffer_name, tarn_module_buffer_name(NULL, 0));
    REFUSE(tarn_module_buffer_name, tarn_module_buffer_name(net, -1));
    REFUSE(tarn_module_save, tarn_module_save(NULL, "x"));
    REFUSE(tarn_module_save, tarn_module_save(net, NULL));
    REFUSE(tarn_module_save, tarn_module_save(net, "/nonexistent-folder/x"));
    REFUSE(tarn_module_load, tarn_module_load(NULL, "x", NULL));
    REFUSE(tarn_module_load, tarn_module_load(net, NULL, NULL));
    REFUSE(tarn_module_load, tarn_module_load_sized(net, "/nonexistent-folder/x", NULL, 0));
    REFUSE(tarn_module_summary, tarn_module_summary(NULL, TARN_SHAPE(1, 3), TARN_F32, stdout));
    REFUSE(tarn_module_summary, tarn_module_summary(net, TARN_SHAPE(1, 3), TARN_F32, NULL));
    REFUSE(tarn_module_summary, tarn_module_summary(net, TARN_SHAPE(1, 2), TARN_F32, stdout));
    REFUSE(tarn_module_summary_string, tarn_module_summary_string(NULL, TARN_SHAPE(1, 3), TARN_F32));
    REFUSE(tarn_module_summary_string, tarn_module_summary_string(net, TARN_SHAPE(1, -3), TARN_F32));
    REFUSE(tarn_module_summary_string, tarn_module_summary_string(net, TARN_SHAPE(1, 3), BAD_DTYPE));
    REFUSE(tarn_batchnorm_sync, tarn_batchnorm_sync(NULL, NULL));
    REFUSE(tarn_batchnorm_sync, tarn_batchnorm_sync(own, NULL));
    ACCEPT(tarn_string_free(NULL), true);
    tarn_module_free(net);
    tarn_module_free(own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(layers, open_refusals, close_refusals),
        cmocka_unit_test_setup_teardown(modules, open_refusals, close_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
