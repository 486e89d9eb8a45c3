/* test_generate.c: `tarn generate`, as its users meet it. TARN_COMMAND names the binary. */
#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

static char arguments[2048];

/* "generate FOLDER more" */
static const char *with(const char *more)
{
    snprintf(arguments, sizeof(arguments), "generate %s %s", scratch("model"), more);
    return arguments;
}

static void write_model(bool has_end)
{
    const tarn_gpt2_config config = {.vocab = 50, .context = 40, .layers = 2, .heads = 2, .width = 16, .has_end = has_end, .end = 49};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 3);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p), tarn_normal_like(p, 0, 0.2)));
    }
    assert_true(tarn_model_write(model, scratch("model")));
    tarn_module_free(model);
}

/* What the library makes of the same. */
static void expected_ids(const tarn_generate_options *options, char *text, size_t size)
{
    const int32_t prompt[] = {1, 2, 3};
    int32_t made[64];
    tarn_module *model = tarn_model_open(scratch("model"), CPU, NULL);
    int64_t count = tarn_generate(model, prompt, 3, made, options);
    tarn_module_free(model);
    assert_ok();
    size_t used = 0;
    for (int64_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%d", i ? " " : "", (int)made[i]);
    snprintf(text + used, size - used, "\n");
}

static void numbers_come_out_as_the_library_makes_them(void **state)
{
    (void)state;
    char text[512];
    write_model(false);
    expected_ids(&(tarn_generate_options){.tokens = 12}, text, sizeof(text));
    assert_int_equal(run_command(with("--ids 1,2,3 --tokens 12 --temperature 0 --device cpu")), 0);
    assert_string_equal(command_output, text);
    expected_ids(&(tarn_generate_options){.temperature = 0.8, .top_k = 40, .seed = 7}, text, sizeof(text));
    assert_int_equal(run_command(with("--ids=1,2,3 --seed 7 --device cpu --threads 2")), 0); /* as much as there is room for */
    assert_string_equal(command_output, text);
    expected_ids(&(tarn_generate_options){.tokens = 5, .temperature = 2, .top_k = 9, .top_p = 0.9}, text, sizeof(text));
    assert_int_equal(run_command(with("--ids 1,2,3 --tokens 5 --temperature 2 --top-k 9 --top-p 0.9 --device cpu")), 0);
    assert_string_equal(command_output, text);
}

static void json_is_one_object(void **state)
{
    (void)state;
    write_model(false);
    assert_int_equal(command_objects(with("--ids 1,2,3 --tokens 2 --temperature 0 --seed 4 --json --dtype f64")), 1);
    assert_non_null(strstr(command_output, "\"seed\": 4, \"prompt\": [1, 2, 3], \"tokens\": ["));
}

/* A model of bytes: what goes in is the prompt's letters, what comes out is the tokens' bytes. */
static void words_go_in_and_text_comes_out(void **state)
{
    (void)state;
    const tarn_gpt2_config config = {.vocab = 256, .context = 30, .layers = 1, .heads = 2, .width = 16, .has_end = true, .end = 10};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 3);
    /* Small letters alone: the others lie far from what the last norm gives. */
    tarn_tensor *table = tarn_requires_grad(tarn_module_find(model, "transformer.wte.weight"), false);
    tarn_fill_inplace(tarn_requires_grad(tarn_module_find(model, "transformer.ln_f.bias"), false), 1);
    tarn_sub_inplace(tarn_slice(table, 0, 0, 97), tarn_scalar(9));
    tarn_sub_inplace(tarn_slice(table, 0, 123, 256), tarn_scalar(9));
    assert_true(tarn_model_write(model, scratch("model")));
    tarn_module_free(model);
    expect_command(with("abc 2>&1"), 1, "tokenizer"); /* which is not there yet */
    tarn_tokenizer *letters = tarn_tokenizer_bytes();
    assert_true(tarn_tokenizer_save(letters, scratch("model")));

    assert_int_equal(command_objects(with("'The cat' --tokens 9 --seed 5 --json")), 1);
    assert_non_null(strstr(command_output, "\"prompt\": [84, 104, 101, 32, 99, 97, 116], "));
    char *text = strstr(command_output, "\"text\": \""), expected[10];
    assert_non_null(text);
    memcpy(expected, text + 9, 9);
    expected[9] = 0;
    for (int i = 0; i < 9; i++)
        assert_true(expected[i] >= 'a' && expected[i] <= 'z');
    assert_int_equal(run_command(with("'The cat' --tokens 9 --seed 5")), 0);
    assert_int_equal(strlen(command_output), 10);
    assert_memory_equal(command_output, expected, 9);
    assert_int_equal(command_objects(with("'' --tokens 2 --json")), 1);
    assert_non_null(strstr(command_output, "\"prompt\": [10], "));
    expect_command(with("abc --ids 1 2>&1"), 2, "are two prompts");
    expect_command(with("'a text that is too long for the context' 2>&1"), 2, "leaves no room");
    tarn_tokenizer_free(letters);
    remove(scratch("model/tokenizer.json"));
}

static void without_a_prompt_a_text_begins_after_the_end_of_another(void **state)
{
    (void)state;
    write_model(true);
    tarn_tokenizer *letters = tarn_tokenizer_bytes();
    assert_true(tarn_tokenizer_save(letters, scratch("model")));
    assert_int_equal(command_objects(with("--tokens 2 --json --ignore-end")), 1);
    assert_non_null(strstr(command_output, "\"prompt\": [49], "));
    write_model(false);
    expect_command(with("--tokens 2 2>&1"), 2, "a prompt is missing");
    tarn_tokenizer_free(letters);
    remove(scratch("model/tokenizer.json"));
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    write_model(false);
    expect_command("generate 2>&1", 2, "a model's folder is missing");
    expect_command("generate --help", 0, "usage: tarn generate MODEL [PROMPT]");
    expect_command("help", 0, "tarn generate");
    expect_command("generate /nonexistent --ids 1 2>&1", 1, "/nonexistent/config.json");
    expect_command(with("--ids 1,,2 2>&1"), 2, "is no list of whole numbers");
    expect_command(with("--ids 1,2, 2>&1"), 2, "is no list of whole numbers");
    expect_command(with("--ids 'a' 2>&1"), 2, "is no list of whole numbers");
    expect_command(with("--ids -1 2>&1"), 2, "has a number that no token has");
    expect_command(with("--ids 99999999999999999999 2>&1"), 2, "has a number that no token has");
    expect_command(with("--ids 1,50 2>&1"), 2, "token 1 of the prompt is 50");
    expect_command(with("--ids 1 --tokens 40 2>&1"), 2, "ask for 39 at most");
    expect_command(with("--ids 1 --temperature -1 2>&1"), 2, "'-1' is outside 0 to 100");
    expect_command(with("--ids 1 --temperature 1e-9 2>&1"), 2, ".temperature is 1e-09");
    expect_command(with("--ids 1 --temperature nan 2>&1"), 2, "'nan' is not a number");
    expect_command(with("--ids 1 --temperature 1x 2>&1"), 2, "'1x' is not a number");
    expect_command(with("--ids 1 --top-p 1.5 2>&1"), 2, "'1.5' is outside 0 to 1");
    expect_command(with("--ids 1 --top-p 0 2>&1"), 2, "'0' is not above 0, up to 1");
    expect_command(with("--ids 1 --top-k -1 2>&1"), 2, "'-1' is outside 0 to 1000000");
    expect_command(with("--ids 1 --seed 1.5 2>&1"), 2, "'1.5' is not a whole number");
    expect_command(with("--ids 1 --dtype i32 2>&1"), 2, "is none of f32");
    expect_command(with("--ids 1 --batch-size 3 2>&1"), 2, "takes no --batch-size");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(numbers_come_out_as_the_library_makes_them),
        in_scope(json_is_one_object),
        in_scope(words_go_in_and_text_comes_out),
        in_scope(without_a_prompt_a_text_begins_after_the_end_of_another),
        in_scope(wrong_calls_are_refused),
    };
    return TARN__HAVE_JANSSON ? cmocka_run_group_tests(tests, make_scratch, remove_scratch) : 0;
}
