/* test_bad_input_convert.c: invalid arguments of tarn_model_convert(). */
#include "support/refuse.h"

static void bad_input(void **state)
{
    (void)state;
    assert_null(tarn_convert_mixture_at(-1));
    assert_null(tarn_convert_mixture_at(INT32_MAX));
    REFUSE(tarn_model_convert_sized, tarn_model_convert(NULL, "x.gguf", NULL, NULL));
    REFUSE(tarn_model_convert_sized, tarn_model_convert("x.gguf", NULL, NULL, NULL));
    REFUSE(tarn_model_convert_sized, tarn_model_convert("", "x.gguf", NULL, NULL));
    REFUSE(tarn_model_convert_sized, tarn_model_convert("a", "b", NULL, NULL));
    REFUSE(tarn_model_convert_sized, tarn_model_convert("a.gguf", "b.gguf", NULL, NULL));
    REFUSE(tarn_model_convert_sized, tarn_model_convert("/nonexistent.gguf", "b", NULL, NULL));
    REFUSE(tarn_model_convert_sized, tarn_model_convert("/nonexistent", "b.gguf", NULL, NULL));
    REFUSE(tarn_model_convert_sized,
           tarn_model_convert("a.gguf", "b.gguf", NULL, &(tarn_convert_options){.quantize = true, .type = TARN_I32}));
    REFUSE(tarn_model_convert_sized,
           tarn_model_convert("a.gguf", "b", NULL, &(tarn_convert_options){.quantize = true, .type = TARN_F16}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(bad_input, open_refusals, close_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
