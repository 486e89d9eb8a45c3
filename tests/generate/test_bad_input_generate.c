/* test_bad_input_generate.c: decoders, samplers and the loop around them are given what they do not take. */
#include "support/refuse.h"

#define CPU tarn_device_cpu()

static const tarn_gpt2_config small = {.vocab = 7, .context = 5, .layers = 1, .heads = 2, .width = 4};

static void decoders(void **state)
{
    (void)state;
    tarn_module *model = tarn_model_gpt2(&small, CPU, 1), *other = tarn_linear(2, 2, CPU);
    tarn_decoder *decoder = tarn_decoder_new(model, NULL);
    tarn_tensor *one = tarn_zeros(TARN_SHAPE(1, 1), TARN_I32, CPU);
    REFUSE(tarn_decoder_new, tarn_decoder_new(NULL, NULL));
    REFUSE(tarn_decoder_new, tarn_decoder_new(other, NULL));
    REFUSE(tarn_decoder_new, tarn_decoder_new(model, &(tarn_decoder_options){.batch = -1}));
    REFUSE(tarn_decoder_new, tarn_decoder_new(model, &(tarn_decoder_options){.batch = INT64_MAX}));
    REFUSE(tarn_decoder_new, tarn_decoder_new(model, &(tarn_decoder_options){.context = -1}));
    REFUSE(tarn_decoder_new, tarn_decoder_new(model, &(tarn_decoder_options){.context = 6}));
    REFUSE(tarn_decoder_new, tarn_decoder_new_sized(other, NULL, 0));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(NULL, one));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, NULL));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(1), TARN_I32, CPU)));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(2, 1), TARN_I32, CPU)));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(1, 0), TARN_I32, CPU)));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(1, 6), TARN_I32, CPU)));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_zeros(TARN_SHAPE(1, 1), TARN_F32, CPU)));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_full(TARN_SHAPE(1, 1), 7, TARN_I32, CPU)));
    REFUSE(tarn_decoder_feed, tarn_decoder_feed(decoder, tarn_full(TARN_SHAPE(1, 1), -1, TARN_I64, CPU)));
    REFUSE(tarn_decoder_length, tarn_decoder_length(NULL));
    REFUSE(tarn_decoder_room, tarn_decoder_room(NULL));
    REFUSE(tarn_decoder_rewind, tarn_decoder_rewind(NULL, 0));
    REFUSE(tarn_decoder_rewind, tarn_decoder_rewind(decoder, 1));
    REFUSE(tarn_decoder_rewind, tarn_decoder_rewind(decoder, -1));
    ACCEPT(tarn_decoder_free(NULL));
    assert_int_equal(tarn_decoder_length(decoder), 0);
    tarn_decoder_free(decoder);
    tarn_module_free(model);
    tarn_module_free(other);
}

static void samplers(void **state)
{
    (void)state;
    tarn_sampler *sampler = tarn_sampler_new(NULL);
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.temperature = -1}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.temperature = 101}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.temperature = 1e-300}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.temperature = NAN}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.top_k = -1}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.top_p = 1.1}));
    REFUSE(tarn_sampler_new, tarn_sampler_new(&(tarn_sampler_options){.top_p = -0.1}));
    const tarn_sampler_options nan = {.top_p = NAN};
    REFUSE(tarn_sampler_new, tarn_sampler_new_sized(&nan, sizeof(nan)));
    REFUSE(tarn_sampler_draw, tarn_sampler_draw(NULL, vector(1)));
    REFUSE(tarn_sampler_draw, tarn_sampler_draw(sampler, NULL));
    REFUSE(tarn_sampler_draw, tarn_sampler_draw(sampler, vector(1, 2)));
    REFUSE(tarn_sampler_draw, tarn_sampler_draw(sampler, tarn_zeros(TARN_SHAPE(1, 0), TARN_F32, CPU)));
    REFUSE(tarn_sampler_draw, tarn_sampler_draw(sampler, tarn_zeros(TARN_SHAPE(0, 3), TARN_F32, CPU)));
    REFUSE(tarn_sampler_draw, tarn_sampler_draw(sampler, tarn_zeros(TARN_SHAPE(1, 3), TARN_I32, CPU)));
    ACCEPT(tarn_sampler_free(NULL));
    tarn_sampler_free(sampler);
}

static bool broken(int32_t token, void *ctx)
{
    (void)token, (void)ctx;
    return tarn_set_error(TARN_ERROR_IO, "the pipe is closed");
}

static void texts(void **state)
{
    (void)state;
    const int32_t prompt[] = {1, 2, 3, 4, 5, 6}, outside[] = {1, 7}, negative[] = {-1};
    int32_t made[5];
    tarn_module *model = tarn_model_gpt2(&small, CPU, 1), *other = tarn_linear(2, 2, CPU);
    REFUSE(tarn_generate, tarn_generate(NULL, prompt, 2, made, NULL));
    REFUSE(tarn_generate, tarn_generate(other, prompt, 2, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, NULL, 2, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 0, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, prompt, -1, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 5, made, NULL)); /* no room left */
    REFUSE(tarn_generate, tarn_generate(model, prompt, 6, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, outside, 2, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, negative, 1, made, NULL));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.tokens = 4}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.tokens = -1}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.temperature = -1}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.top_k = -1}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.top_p = 2}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.stop_count = 1}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.stop = prompt, .stop_count = -1}));
    REFUSE(tarn_generate, tarn_generate(model, prompt, 2, made, &(tarn_generate_options){.on_token = broken}));
    REFUSE(tarn_generate, tarn_generate_sized(other, prompt, 2, made, NULL, 0));
    tarn_module_free(model);
    tarn_module_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(decoders, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(samplers, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(texts, open_refusals, close_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
