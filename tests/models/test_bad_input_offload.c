/* test_bad_input_offload.c: invalid arguments of tarn_model_offload() and tarn_model_split_layers(). */
#include "support/refuse.h"

#define CPU tarn_device_cpu()

static void offloading(void **state)
{
    (void)state;
    const tarn_device nowhere = {6, 0};
    const tarn_gpt2_config config = {.vocab_size = 8, .context = 8, .layers = 2, .heads = 1, .hidden_size = 4};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 1);
    tarn_module *other = tarn_model_mlp(2, NULL, 0, 2, CPU);
    REFUSE(tarn_model_offload, tarn_model_offload(NULL, CPU, 1));
    REFUSE(tarn_model_offload, tarn_model_offload(other, CPU, 1));
    REFUSE(tarn_model_offload, tarn_model_offload(model, CPU, -1));
    REFUSE(tarn_model_offload, tarn_model_offload(model, CPU, 3));
    REFUSE(tarn_model_offload, tarn_model_offload(model, nowhere, 1));
    REFUSE(tarn_model_split_layers, tarn_model_split_layers(NULL, &(tarn_model_split){.count = 1, .layers = {2}}));
    REFUSE(tarn_model_split_layers, tarn_model_split_layers(other, &(tarn_model_split){.count = 1, .layers = {2}}));
    REFUSE(tarn_model_split_layers, tarn_model_split_layers(model, NULL));
    REFUSE(tarn_model_split_layers, tarn_model_split_layers(model, &(tarn_model_split){0}));
    REFUSE(tarn_model_split_layers, tarn_model_split_layers(model, &(tarn_model_split){.count = 1, .layers = {1}}));
    REFUSE(tarn_model_split_layers,
           tarn_model_split_layers(model, &(tarn_model_split){.count = 2, .device = {CPU, nowhere}, .layers = {1, 1}}));
    REFUSE(tarn_run_open, tarn_run_open_with(NULL, CPU, NULL));
    REFUSE(tarn_run_open, tarn_run_open_with("", CPU, &(tarn_run_open_options){.device_layers = 1}));
    REFUSE(tarn_run_open, tarn_run_open_with_sized("no such folder", CPU, NULL, 0));
    REFUSE(tarn_run_open,
           tarn_run_open_with("no such folder", CPU, &(tarn_run_open_options){.chat_template = "chatml"}));
    tarn_module_free(other);
    tarn_module_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(offloading, open_refusals, close_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
