/* macros.cpp: every public macro in C++. headers.sh compiles it as C++11, 17 and 20, links it with the library and runs
 * it; a macro of the headers that does not stand here fails the test. The calls that would need files or models are
 * given what they refuse: they must compile, and fail. */
#include <cmath>
#include <cstdio>
#include <tarn/tarn.h>

static int failures;

static void check(bool good, const char *what)
{
    if (good && !tarn_failed())
        return;
    std::printf("%s: %s\n", what, tarn_error());
    failures++;
    tarn_clear_error();
}
#define CHECK(...) check((__VA_ARGS__), #__VA_ARGS__)

/* The call compiles, and refuses its arguments. */
static void refuse(bool refused, const char *what)
{
    if (!refused || !tarn_failed()) {
        std::printf("%s: not refused\n", what);
        failures++;
    }
    tarn_clear_error();
}
#define REFUSED(...) refuse(!(__VA_ARGS__), #__VA_ARGS__)

static tarn_tensor *square(tarn_tensor *const *inputs, int, void *)
{
    return tarn_square(inputs[0]);
}

static void print_note(const char *format, ...) TARN_PRINTF(1, 2);
static void print_note(const char *format, ...)
{
    (void)format;
}

static void tensors(tarn_device cpu)
{
    tarn_tensor *x = tarn_normal(TARN_SHAPE(1, 2, 8, 8), 0, 1, TARN_F32, cpu);
    tarn_tensor *one = tarn_zeros(TARN_SCALAR, TARN_F32, cpu), *f64 = tarn_ones(TARN_SHAPE(3), TARN_F64, cpu);
    static_assert(TARN_SHAPE(4, 2).rank == 2 && TARN_SHAPE(4, 2).size[1] == 2 && TARN_AXES(0, -1).axis[1] == -1,
                  "lists");
    CHECK(tarn_rank(one) == 0 && tarn_size(tarn_sum(x, TARN_AXES(0, -1), false), 0) == 2);
    CHECK(tarn_rank(tarn_sum(x, TARN_ALL_AXES, false)) == 0);
    CHECK(TARN_MAX_RANK == 8 && TARN_MAX_FIELDS == 8 && TARN_MAX_FIELD_RANK == 7 && TARN_TRAIN_MAX_MLP_SIZES > 0 &&
          TARN_TRAIN_FITS > 0 && TARN_TRAIN_METRICS > 0);
    CHECK(TARN_VERSION_MAJOR >= 0 && TARN_VERSION_MINOR >= 0 && TARN_VERSION_PATCH >= 0);
    tarn_tensor *weight = tarn_normal(TARN_SHAPE(3, 2, 3, 3), 0, 1, TARN_F32, cpu),
                *ones = tarn_ones(TARN_SHAPE(2), TARN_F32, cpu);
    CHECK(tarn_conv2d(x, weight, NULL, NULL));
    CHECK(tarn_conv_transpose2d(x, tarn_permute(weight, TARN_AXES(1, 0, 2, 3)), NULL, NULL));
    CHECK(tarn_conv1d(tarn_ones(TARN_SHAPE(1, 2, 5), TARN_F32, cpu), tarn_ones(TARN_SHAPE(3, 2, 2), TARN_F32, cpu),
                      NULL, NULL));
    tarn_pool2d_options two = {};
    two.kernel[0] = two.kernel[1] = 2;
    CHECK(tarn_max_pool2d(x, &two));
    CHECK(tarn_avg_pool2d(x, &two));
    CHECK(tarn_batchnorm(x, ones, ones, ones, ones, NULL));
    CHECK(tarn_batchnorm_relu(x, NULL, ones, ones, ones, ones, NULL));
    tarn_tensor *q = tarn_normal(TARN_SHAPE(1, 2, 4, 8), 0, 1, TARN_F32, cpu),
                *row = tarn_normal(TARN_SHAPE(1, 4, 48), 0, 1, TARN_F32, cpu);
    CHECK(tarn_attention(q, q, q, NULL));
    CHECK(tarn_attention_packed(row, 2, 2, NULL));
    CHECK(tarn_rope(q, tarn_arange(0, 2, 1, TARN_I64, cpu), NULL));
    tarn_tensor *logits = tarn_normal(TARN_SHAPE(4, 3), 0, 1, TARN_F32, cpu),
                *target = tarn_zeros(TARN_SHAPE(4), TARN_I64, cpu);
    CHECK(tarn_cross_entropy(logits, target, NULL));
    CHECK(tarn_linear_cross_entropy(logits, tarn_ones(TARN_SHAPE(5, 3), TARN_F32, cpu), target, NULL));
    CHECK(tarn_gradcheck(square, NULL, &f64, 0, NULL) == false && tarn_failed() && (tarn_clear_error(), true));
    tarn_requires_grad(f64, true);
    CHECK(tarn_gradcheck(square, NULL, &f64, 1, NULL));
    tarn_tensor *y = tarn_square(f64);
#if __cplusplus >= 202002L
    const tarn_backward_options retain = {.retain = true};
#else
    const tarn_backward_options retain = {true};
#endif
    CHECK(tarn_backward_from(y, tarn_ones_like(y), &retain));
}

static void modules(tarn_device cpu)
{
    tarn_module *net =
        tarn_sequential(tarn_linear(2, 16, cpu), tarn_activation(TARN_TANH), tarn_linear(16, 1, cpu), NULL);
    CHECK(net && tarn_module_parameter_count(net) == 4);
    tarn_adam_options adam = {};
    adam.lr = 0.01f;
    tarn_optimizer *first = tarn_adam(net, &adam);
    CHECK(first);
    tarn_optimizer_free(first);
    tarn_adamw_options adamw = {};
    adamw.lr = 0.01f;
    first = tarn_adamw(net, &adamw);
    CHECK(first);
    tarn_optimizer_free(first);
    tarn_sgd_options sgd = {};
    sgd.lr = 0.1f;
    first = tarn_sgd(net, &sgd);
    CHECK(first);
    tarn_ema_options average = {};
    average.decay = 0.9;
    tarn_ema *ema = tarn_ema_new(net, first, &average);
    CHECK(ema && tarn_ema_update(ema));
    tarn_ema_free(ema);
    tarn_optimizer_free(first);
    REFUSED(tarn_module_load(net, "no such file", NULL));
    tarn_module_free(net);
    tarn_pool2d_options two = {};
    two.kernel[0] = two.kernel[1] = 2;
    tarn_conv2d_layer_options three = {};
    three.kernel[0] = three.kernel[1] = 3;
    tarn_conv_transpose2d_layer_options upwards = {};
    upwards.kernel[0] = upwards.kernel[1] = 2;
    tarn_conv1d_layer_options narrow = {};
    narrow.kernel = 3;
    tarn_upsample_options twice = {};
    twice.scale[0] = twice.scale[1] = 2;
    CHECK(tarn_upsample(tarn_ones(TARN_SHAPE(1, 2, 3, 3), TARN_F32, cpu), &twice));
    tarn_module *all[] = {tarn_upsample_layer(&twice),
                          tarn_lstm_layer_with(2, 3, cpu, NULL),
                          tarn_gru_layer_with(2, 3, cpu, NULL),
                          tarn_linear_with(2, 3, cpu, NULL),
                          tarn_embedding_layer_with(5, 4, cpu, NULL),
                          tarn_layernorm_layer_with(4, cpu, NULL),
                          tarn_rmsnorm_layer_with(4, cpu, NULL),
                          tarn_conv2d_layer_with(2, 3, cpu, &three),
                          tarn_conv_transpose2d_layer_with(2, 3, cpu, &upwards),
                          tarn_conv1d_layer_with(2, 3, cpu, &narrow),
                          tarn_instancenorm_layer_with(4, cpu, NULL),
                          tarn_max_pool2d_layer(&two),
                          tarn_avg_pool2d_layer(&two),
                          tarn_groupnorm_layer_with(2, 4, cpu, NULL),
                          tarn_batchnorm2d_with(4, cpu, NULL),
                          tarn_model_resnet20_with(10, cpu, NULL),
                          tarn_model_resnet(18, 10, cpu, NULL)};
    for (tarn_module *module : all) {
        CHECK(module);
        tarn_module_free(module);
    }
}

static void models(tarn_device cpu)
{
    tarn_gpt2_config gpt2;
    tarn_llama_config llama;
    tarn_lm_config lm;
    tarn_model_info info = {};
    REFUSED(tarn_gpt2_config_named("none", &gpt2));
    REFUSED(tarn_llama_config_named("none", &llama));
    REFUSED(tarn_model_gpt2(NULL, cpu, 1));
    REFUSED(tarn_model_llama(NULL, cpu, 1));
    REFUSED(tarn_gpt2_config_of(NULL, &gpt2));
    REFUSED(tarn_llama_config_of(NULL, &llama));
    REFUSED(tarn_lm_config_named("none", &lm));
    REFUSED(tarn_model_lm(NULL, cpu, 1));
    REFUSED(tarn_lm_config_of(NULL, &lm));
    REFUSED(tarn_model_query(NULL, &info));
    REFUSED(tarn_model_open("no such folder", cpu, NULL));
    tarn_model_split split;
    REFUSED(tarn_model_plan_split("no such folder", &cpu, 1, &split, NULL));
    REFUSED(tarn_lora_add(NULL, NULL));
    REFUSED(tarn_model_convert("none", "other", NULL, NULL));
    REFUSED(tarn_decoder_new(NULL, NULL));
    REFUSED(tarn_embedder_new(NULL, NULL));
    tarn_sampler *sampler = tarn_sampler_new(NULL);
    CHECK(sampler);
    tarn_sampler_free(sampler);
    int32_t token = 0;
    tarn_output piece;
    tarn_decode_timing timing;
    REFUSED(tarn_generate(NULL, &token, 1, NULL, NULL) > 0);
    tarn_engine_output engine_output;
    tarn_engine_stats engine_stats;
    REFUSED(tarn_engine_new(NULL, NULL));
    REFUSED(tarn_engine_add(NULL, &token, 1, NULL) >= 0);
    REFUSED(tarn_engine_next(NULL, &engine_output));
    REFUSED(tarn_engine_query(NULL, &engine_stats));
    REFUSED(tarn_engine_requests(NULL, NULL, 0) >= 0);
    REFUSED(tarn_generator_new(NULL, NULL, NULL));
    REFUSED(tarn_generator_open("none", cpu, NULL));
    REFUSED(tarn_generator_prompt(NULL, 0, &token, 1, NULL));
    REFUSED(tarn_generator_prompt_text(NULL, 0, "a", 1, NULL));
    REFUSED(tarn_generator_next(NULL, &piece));
    tarn_generator_stats generator_stats;
    REFUSED(tarn_generator_query(NULL, &generator_stats));
    REFUSED(tarn_decode_measure(&timing, NULL));
}

static void data_and_training(tarn_device cpu)
{
    int64_t count = 0;
    REFUSED(tarn_dataset_csv("no such file", NULL));
    REFUSED(tarn_dataset_images("no such folder", NULL));
    REFUSED(tarn_table_open("no such file", NULL));
    REFUSED(tarn_table_encoder_new(nullptr, NULL));
    REFUSED(tarn_loader_new(NULL, NULL));
    REFUSED(tarn_tokenizer_encode(NULL, "a", 1, NULL, &count));
    size_t length;
    REFUSED(tarn_chat_render_json(NULL, "[]", 2, NULL, &length));
    REFUSED(tarn_chat_encode_json(NULL, "[]", 2, NULL, NULL, &count));
    REFUSED(tarn_text_stream_new(NULL, NULL));
    uint32_t mask[TARN_MASK_WORDS(256)];
    REFUSED(tarn_grammar_vocab_new(NULL, NULL));
    REFUSED(tarn_matcher_mask(NULL, mask, TARN_MASK_WORDS(256)));
    REFUSED(tarn_bpe_train(NULL, NULL, 0, 300, NULL));
    REFUSED(tarn_bpe_train_files(NULL, 0, 300, NULL));
    REFUSED(tarn_shards_prepare(NULL, 0, NULL, NULL, NULL, NULL));
    tarn_train_options options = {};
    tarn_train_timing timing;
    REFUSED(tarn_train_options_set(&options, "no such option", "1"));
    REFUSED(tarn_train_options_load(&options, "no such file"));
    options.batch_size = -1;
    REFUSED(tarn_trainer_new(&options));
    REFUSED(tarn_trainer_resume("no such folder", NULL));
    REFUSED(tarn_trainer_dry_run(NULL, &options));
    REFUSED(tarn_train_measure(0, 0, &timing, NULL));
    REFUSED(tarn_run_open_with("no such folder", cpu, NULL));
    REFUSED(tarn_chat_dataset_open(NULL));
}

int main()
{
    tarn_scope *scope = tarn_scope_open();
    tarn_device cpu = tarn_device_cpu();
    print_note("%d", 1);
    tensors(cpu);
    modules(cpu);
    models(cpu);
    data_and_training(cpu);
    tarn_scope_close(scope);
    return failures == 0 ? 0 : 1;
}
