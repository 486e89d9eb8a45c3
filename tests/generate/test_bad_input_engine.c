/* test_bad_input_engine.c: invalid arguments of engines. */
#include <tarn/engine.h>

#include "support/refuse.h"

#define CPU tarn_device_cpu()

static void engines(void **state)
{
    (void)state;
    const tarn_gpt2_config small = {.vocab_size = 7, .context = 5, .layers = 1, .heads = 2, .hidden_size = 4};
    tarn_module *model = tarn_model_gpt2(&small, CPU, 1), *other = tarn_linear(2, 2, CPU);
    tarn_engine *engine = tarn_engine_new(model, NULL);
    const int32_t tokens[5] = {1, 2, 3}, wrong[] = {7}, negative[] = {-1};
    tarn_engine_output output;
    tarn_engine_stats stats;
    REFUSE(tarn_engine_new, tarn_engine_new(NULL, NULL));
    REFUSE(tarn_engine_new, tarn_engine_new(other, NULL));
    REFUSE(tarn_engine_new, tarn_engine_new_sized(other, NULL, 0));
    REFUSE(tarn_engine_new, tarn_engine_new(model, &(tarn_engine_options){.context = -1}));
    REFUSE(tarn_engine_new, tarn_engine_new(model, &(tarn_engine_options){.context = 6}));
    REFUSE(tarn_engine_new, tarn_engine_new(model, &(tarn_engine_options){.sequences = -1}));
    REFUSE(tarn_engine_new, tarn_engine_new(model, &(tarn_engine_options){.sequences = 1025}));
    REFUSE(tarn_engine_new, tarn_engine_new(model, &(tarn_engine_options){.kv_bytes = -1}));
    REFUSE(tarn_engine_new, tarn_engine_new(model, &(tarn_engine_options){.kv_bytes = 1}));
    REFUSE(tarn_engine_new, tarn_engine_new(model, &(tarn_engine_options){.prompt_tokens = -1}));
    REFUSE(tarn_engine_new, tarn_engine_new(model, &(tarn_engine_options){.kv_type = (tarn_kv_type)5}));
    REFUSE(tarn_engine_add, tarn_engine_add(NULL, tokens, 1, NULL));
    REFUSE(tarn_engine_add, tarn_engine_add_sized(NULL, tokens, 1, NULL, 0));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, NULL, 1, NULL));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 0, NULL));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, -1, NULL));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 5, NULL));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, wrong, 1, NULL));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, negative, 1, NULL));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.max_tokens = 3}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.max_tokens = -1}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.temperature = -1}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.stop_count = 1}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.stop_count = -1}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.top_logprobs = -1}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.top_logprobs = 8}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.slide = true}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.keep = 1}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.prompt_only = true}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.stop_string_count = 1}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.frequency_penalty = 101}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.presence_penalty = NAN}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.logit_bias_count = 1}));
    REFUSE(tarn_engine_add,
           tarn_engine_add(engine, tokens, 3,
                           &(tarn_generate_options){.logit_bias = &(tarn_logit_bias){7, 1}, .logit_bias_count = 1}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3,
                                            &(tarn_generate_options){.logit_bias = &(tarn_logit_bias){1, INFINITY},
                                                                     .logit_bias_count = 1}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.adapter = 1}));
    REFUSE(tarn_engine_add, tarn_engine_add(engine, tokens, 3, &(tarn_generate_options){.adapter = -1}));
    REFUSE(tarn_engine_add_adapter, tarn_engine_add_adapter(NULL, "none"));
    REFUSE(tarn_engine_add_adapter, tarn_engine_add_adapter(engine, NULL));
    REFUSE(tarn_engine_add_adapter, tarn_engine_add_adapter(engine, ""));
    REFUSE(tarn_engine_step, tarn_engine_step(NULL));
    REFUSE(tarn_engine_next, tarn_engine_next(NULL, &output));
    REFUSE(tarn_engine_next, tarn_engine_next(engine, NULL));
    REFUSE(tarn_engine_next, tarn_engine_next_sized(NULL, &output, 0));
    REFUSE(tarn_engine_query, tarn_engine_query(NULL, &stats));
    REFUSE(tarn_engine_query, tarn_engine_query(engine, NULL));
    REFUSE(tarn_engine_query, tarn_engine_query_sized(NULL, &stats, 0));
    REFUSE(tarn_engine_cancel, tarn_engine_cancel(NULL, 1));
    REFUSE(tarn_engine_cancel, tarn_engine_cancel(engine, 0));
    REFUSE(tarn_engine_cancel, tarn_engine_cancel(engine, 1));
    REFUSE(tarn_engine_wait, tarn_engine_wait(NULL, 0));
    REFUSE(tarn_engine_wait, tarn_engine_wait(engine, -1));
    REFUSE(tarn_engine_wait, tarn_engine_wait(engine, NAN));
    REFUSE(tarn_engine_wake, tarn_engine_wake(NULL));
    REFUSE(tarn_engine_requests, tarn_engine_requests(NULL, NULL, 0));
    REFUSE(tarn_engine_requests, tarn_engine_requests(engine, NULL, 1));
    REFUSE(tarn_engine_requests, tarn_engine_requests(engine, NULL, -1));
    REFUSE(tarn_engine_requests, tarn_engine_requests_sized(NULL, NULL, 0, 0));
    ACCEPT(tarn_engine_free(NULL));
    tarn_engine_free(engine);
    tarn_module_free(model);
    tarn_module_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(engines, open_refusals, close_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
