/* test_lora.c: `tarn generate`, `chat`, `eval`, `convert` and `quantize` with --adapter, end to end.
 * TARN_COMMAND names the binary. */
#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

static void stir(tarn_module *model, double std)
{
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        if (tarn_needs_grad(p))
            assert_true(tarn_copy(p, tarn_normal_like(p, 0, std)));
    }
}

/* The library's output after 1, 2, 3. */
static void expected_ids(tarn_module *model, char *text, size_t size)
{
    const int32_t prompt[] = {1, 2, 3};
    int32_t made[16];
    int64_t count = tarn_generate(model, prompt, 3, made, &(tarn_generate_options){.max_tokens = 12});
    size_t used = 0;
    for (int64_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%d", i ? " " : "", (int)made[i]);
    snprintf(text + used, size - used, "\n");
    assert_ok();
}

/* A Llama in "model", adapters in "adapter"; its output without and with them. */
static void write_both(char *plain, char *adapted, size_t size)
{
    const tarn_llama_config config = {
        .vocab_size = 26, .context = 32, .layers = 2, .heads = 2, .hidden_size = 32, .ffn_size = 64};
    tarn_module *model = tarn_model_llama(&config, CPU, 3);
    tarn_seed(4);
    stir(model, 0.3);
    assert_true(tarn_module_train(model, false) && tarn_model_write(model, scratch("model")));
    expected_ids(model, plain, size);
    assert_true(tarn_lora_add(model, &(tarn_lora_options){.rank = 2}));
    stir(model, 0.2);
    assert_true(tarn_lora_save(model, scratch("adapter"), scratch("model")));
    expected_ids(model, adapted, size);
    assert_string_not_equal(plain, adapted);
    tarn_module_free(model);
    remove(scratch("model/tokenizer.json"));
}

/* A character tokenizer, which GGUF cannot express. */
static void write_tokenizer(void)
{
    tarn_tokenizer *letters = tarn_tokenizer_characters("abcdefghijklmnopqrstuvwxyz", 26);
    assert_true(tarn_tokenizer_save(letters, scratch("model")));
    tarn_tokenizer_free(letters);
}

static void adapters_change_what_is_written(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    char plain[256], adapted[256];
    const char *how = "--ids 1,2,3 --max-tokens 12 --temperature 0 --device cpu";
    write_both(plain, adapted, sizeof(plain));
    assert_int_equal(run_command(command_line("generate %s %s", scratch("model"), how)), 0);
    assert_string_equal(command_output, plain);
    assert_int_equal(
        run_command(command_line("generate %s %s --adapter %s", scratch("model"), how, scratch("adapter"))), 0);
    assert_string_equal(command_output, adapted);
    expect_command(command_line("inspect %s", scratch("adapter")), 0, "\"peft_type\": \"LORA\"");
    assert_contains(command_output, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
    /* configuration, metadata of 3 keys, 28 tensors, all */
    assert_int_equal(command_objects(command_line("inspect %s --json", scratch("adapter"))), 33);
    assert_contains(command_output, "{\"key\": \"adapter_config.json\", \"value\": ");
    /* The adapters alone in a file, and in a folder again. */
    expect_command(
        command_line("convert %s %s --base %s", scratch("adapter"), scratch("adapter.gguf"), scratch("model")), 0,
        "adapters of");
    expect_command(
        command_line("convert %s %s --base %s 2>&1", scratch("adapter"), scratch("adapter.gguf"), scratch("model")), 1,
        "already exists");
    expect_command(command_line("convert %s %s --base %s --type q8_0 2>&1", scratch("adapter"), scratch("other.gguf"),
                                scratch("model")),
                   2, "--base converts adapters alone");
    expect_command(command_line("inspect %s", scratch("adapter.gguf")), 0, "adapter.lora.alpha");
    expect_command(command_line("convert %s %s --base %s", scratch("adapter.gguf"), scratch("again"), scratch("model")),
                   0, "adapters of");
    static const char *const forms[] = {"adapter.gguf", "again"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            run_command(command_line("generate %s %s --adapter %s", scratch("model"), how, scratch(forms[i]))), 0);
        assert_string_equal(command_output, adapted);
    }
    /* Merged, in a folder and in a file. */
    expect_command(command_line("convert %s %s --adapter %s", scratch("model"), scratch("merged"), scratch("adapter")),
                   0, "tensors");
    assert_int_equal(run_command(command_line("generate %s %s", scratch("merged"), how)), 0);
    assert_string_equal(command_output, adapted);
    expect_command(
        command_line("convert %s %s --adapter %s", scratch("model"), scratch("merged.gguf"), scratch("adapter")), 0,
        "tensors");
    assert_int_equal(run_command(command_line("generate %s %s", scratch("merged.gguf"), how)), 0);
    assert_string_equal(command_output, adapted);
    expect_command(command_line("quantize %s %s --type q8_0 --adapter %s", scratch("model"), scratch("q8.gguf"),
                                scratch("adapter")),
                   0, "tensors");
}

static double loss_in_output(void)
{
    const char *at = strstr(command_output, "\"loss\": ");
    assert_non_null(at);
    return strtod(at + 8, NULL);
}

static void adapters_change_what_is_judged(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    char plain[256], adapted[256], text[2001];
    write_both(plain, adapted, sizeof(plain));
    write_tokenizer();
    for (int i = 0; i < 2000; i++)
        text[i] = (char)('a' + (i * i / 7 + i) % 26);
    text[2000] = 0;
    char data[600];
    snprintf(data, sizeof(data), "%s", write_text("letters.txt", text));
    assert_int_equal(
        command_objects(command_line("eval %s --data text:%s --json --device cpu", scratch("model"), data)), 1);
    double before = loss_in_output();
    assert_int_equal(command_objects(command_line("eval %s --data text:%s --json --device cpu --adapter %s",
                                                  scratch("model"), data, scratch("adapter"))),
                     1);
    double with = loss_in_output();
    assert_true(fabs(with - before) > 1e-3);
    assert_int_equal(run_command(command_line("convert %s %s --adapter %s", scratch("model"), scratch("judged"),
                                              scratch("adapter"))),
                     0);
    assert_int_equal(
        command_objects(command_line("eval %s --data text:%s --json --device cpu", scratch("judged"), data)), 1);
    assert_true(fabs(loss_in_output() - with) < 1e-3);
}

static void wrong_calls_say_what_is_wrong(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    char plain[256], adapted[256];
    write_both(plain, adapted, sizeof(plain));
    write_tokenizer();
    const char *folder = scratch("model"), *nowhere = scratch("nowhere");
    expect_command(command_line("generate %s --ids 1 --device cpu --adapter %s 2>&1", folder, nowhere), 1,
                   "adapter_config.json' cannot be opened");
    expect_command(command_line("chat %s --device cpu --adapter %s 2>&1 < /dev/null", folder, nowhere), 1,
                   "adapter_config.json' cannot be opened");
    expect_command(command_line("eval %s --device cpu --adapter %s 2>&1", folder, nowhere), 1,
                   "adapter_config.json' cannot be opened");
    expect_command(command_line("convert %s %s --adapter %s 2>&1", folder, scratch("out"), nowhere), 1,
                   "adapter_config.json' cannot be opened");
    expect_command(command_line("convert %s %s 2>&1", folder, scratch("out")), 1, "neither");
    expect_command(command_line("generate %s --ids 1 --adapter 2>&1", folder), 2, "--adapter needs a value: PATH");
    expect_command(command_line("predict %s x.png --adapter y 2>&1", folder), 2,
                   "--adapter is not an option of this command");
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(adapters_change_what_is_written),
                                       in_scope(adapters_change_what_is_judged),
                                       in_scope(wrong_calls_say_what_is_wrong)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
