/* test_bad_input_lora.c: invalid arguments of the LoRA functions. */
#include "support/files.h"
#include "support/refuse.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

static const tarn_llama_config config = {
    .vocab_size = 8, .context = 8, .layers = 1, .heads = 2, .hidden_size = 8, .ffn_size = 8};

static void options(void **state)
{
    (void)state;
    tarn_module *model = tarn_model_llama(&config, CPU, 1), *other = tarn_linear(2, 2, CPU);
    REFUSE(tarn_lora_add_sized, tarn_lora_add(NULL, &(tarn_lora_options){.rank = 1}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(other, &(tarn_lora_options){.rank = 1}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, NULL));
    REFUSE(tarn_lora_add_sized, tarn_lora_add_sized(model, &(tarn_lora_options){.rank = 1}, 0));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 0}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = -1}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 65537}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .alpha = -1}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .alpha = NAN}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .alpha = INFINITY}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .dropout = 1}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .dropout = -0.1}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .dropout = NAN}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .dtype = TARN_I32}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .dtype = TARN_Q8_0}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .dtype = (tarn_dtype)99}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .targets = ""}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .targets = ","}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .targets = "q_proj,nosuch"}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .targets = "norm"}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .modules_to_save = "nosuch"}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .modules_to_save = ","}));
    REFUSE(tarn_lora_add_sized,
           tarn_lora_add(model, &(tarn_lora_options){.rank = 1, .targets = "q_proj", .modules_to_save = "q_proj"}));
    REFUSE(tarn_lora_has, tarn_lora_has(NULL));
    REFUSE(tarn_lora_has, tarn_lora_has(other));
    REFUSE(tarn_lora_merge, tarn_lora_merge(NULL));
    REFUSE(tarn_lora_merge, tarn_lora_merge(other));
    REFUSE(tarn_lora_merge, tarn_lora_merge(model));
    ACCEPT(tarn_lora_add(model, &(tarn_lora_options){.rank = 1}));
    REFUSE(tarn_lora_add_sized, tarn_lora_add(model, &(tarn_lora_options){.rank = 1}));
    tarn_module_free(model);
    tarn_module_free(other);
}

static void folders(void **state)
{
    (void)state;
    tarn_module *model = tarn_model_llama(&config, CPU, 1), *other = tarn_linear(2, 2, CPU);
    char longer[5000];
    memset(longer, 'x', sizeof(longer));
    longer[sizeof(longer) - 1] = 0;
    REFUSE(tarn_lora_save, tarn_lora_save(model, scratch("out"), NULL)); /* it has none */
    REFUSE(tarn_lora_load, tarn_lora_load(NULL, scratch("out")));
    REFUSE(tarn_lora_load, tarn_lora_load(other, scratch("out")));
    REFUSE(tarn_lora_load, tarn_lora_load(model, NULL));
    REFUSE(tarn_lora_load, tarn_lora_load(model, ""));
    REFUSE(tarn_lora_load, tarn_lora_load(model, longer));
    REFUSE(tarn_lora_load, tarn_lora_load(model, scratch("nosuch")));
    ACCEPT(tarn_lora_add(model, &(tarn_lora_options){.rank = 1}));
    REFUSE(tarn_lora_save, tarn_lora_save(NULL, scratch("out"), NULL));
    REFUSE(tarn_lora_save, tarn_lora_save(other, scratch("out"), NULL));
    REFUSE(tarn_lora_save, tarn_lora_save(model, NULL, NULL));
    REFUSE(tarn_lora_save, tarn_lora_save(model, "", NULL));
    REFUSE(tarn_lora_save, tarn_lora_save(model, longer, NULL));
    REFUSE(tarn_lora_save, tarn_lora_save(model, write_text("a-file", "x"), NULL));
    if (TARN__HAVE_JANSSON)
        REFUSE(tarn_lora_save, tarn_lora_save(model, scratch("out"), "\xff\xfe")); /* JSON has no place for it */
    REFUSE(tarn_lora_load, tarn_lora_load(model, scratch("out")));
    REFUSE(tarn_model_convert_sized, tarn_model_convert("a", "b", NULL, &(tarn_convert_options){.adapter = ""}));
    REFUSE(tarn_model_convert_sized,
           tarn_model_convert("/nonexistent", "b", NULL, &(tarn_convert_options){.adapter = "c"}));
    tarn_module_free(model);
    tarn_module_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(options, open_refusals, close_refusals),
                                       cmocka_unit_test_setup_teardown(folders, open_refusals, close_refusals)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
