/* test_data.c: `tarn data`, end to end. */
#include "support/command.h"
#include "support/files.h"
#include "support/small_tokenizer.h"
#include "tarn_features.h"

/* Runs a command; each %s is replaced by a scratch file or the model folder. */
static void expect_with(int status, const char *text, const char *format, const char *file)
{
    char arguments[2048];
    snprintf(arguments, sizeof(arguments), format, file, scratch("model"));
    expect_command(arguments, status, text);
}

/* A model with a context of 48 and the small tokenizer: texts start with <|endoftext|> and end with <tag>. */
static void write_model(void)
{
    if (!TARN__HAVE_PCRE2 || !TARN__HAVE_JANSSON)
        skip();
    const tarn_gpt2_config config = {.vocab_size = 263, .context = 48, .layers = 1, .heads = 1, .hidden_size = 4};
    tarn_module *model = tarn_model_gpt2(&config, tarn_device_cpu(), 1);
    assert_true(tarn_model_write(model, scratch("model")));
    tarn_module_free(model);
    write_text("model/tokenizer.json", small_tokenizer_text());
    write_text("model/tokenizer_config.json", "{\"bos_token\": \"<|endoftext|>\", \"eos_token\": \"<tag>\"}");
}

static void rows_are_shown(void **state)
{
    (void)state;
    write_model();
    const char *path = write_text("a.jsonl", "{\"prompt\": \"he\\n\", \"completion\": \"llo\"}\n{\"text\": \"abc\"}\n");
    expect_with(0, "rows of 48 tokens, template: none\n", "data %s --model %s", path);
    assert_contains(command_output, "training              2           10            6        1    20.8 %\n");
    assert_contains(command_output, "row 0: 2 documents, 10 of 48 tokens, 6 with loss\n");
    assert_contains(command_output, "  <|endoftext|>·he·\\n·[llo]·[<tag>]\n");
    assert_contains(command_output, "  <|endoftext|>·[a]·[b]·[c]·[<tag>]\n");
    expect_with(0, "rows of 5 tokens", "data %s --model %s --context 5 --show 0 --val-fraction 0.5", path);
    assert_contains(command_output, "validation            1            5");
    assert_null(strstr(command_output, "row 0"));
    expect_with(0, "1 of 1 documents are longer than the context of 5 tokens", "data %s --model %s --context 5 2>&1",
                write_text("cut.jsonl", "{\"text\": \"abcd\"}\n"));
    expect_with(0, "template: mistral", "data %s --model %s --template mistral", path);
    expect_with(0, "template: chatml", "data %s --model %s --template chatml --add-tokens '<|im_start|>,<|im_end|>'",
                path);
}

static void json_has_ids_and_loss(void **state)
{
    (void)state;
    write_model();
    char arguments[1024];
    const char *path = write_text("j.jsonl", "{\"prompt\": \"he\", \"completion\": \"llo\"}\n");
    snprintf(arguments, sizeof(arguments), "data %s --model %s --json --show 3", path, scratch("model"));
    assert_int_equal(command_objects(arguments), 2);
    assert_contains(
        command_output,
        "\"training\": {\"documents\": 1, \"tokens\": 4, \"tokens_with_loss\": 2, \"rows\": 1, \"filled\": 0.0833}");
    assert_contains(command_output,
                    "\"documents\": [{\"ids\": [260, 256, 258, 262], \"loss\": [0, 0, 1, 1], \"pieces\": "
                    "[\"<|endoftext|>\", \"he\", \"llo\", \"<tag>\"]}]");
}

static void mistakes_are_explained(void **state)
{
    (void)state;
    write_model();
    const char *path = write_text("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n");
    expect_with(1, "bad.jsonl', line 2: \"text\" is not a string", "data %s --model %s 2>&1", path);
    expect_with(1, "line 1: \"messages\" need a chat template", "data %s --model %s 2>&1",
                write_text("m.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n"));
    expect_with(1, "template 'x' not found", "data %s --model %s --template x 2>&1", path);
    expect_with(1, "has an empty token", "data %s --model %s --add-tokens 'a,,b' 2>&1", path);
    expect_with(1, "none.jsonl", "data %s --model %s 2>&1", scratch("none.jsonl"));
    expect_with(2, "--val-fraction must be below 1", "data %s --model %s --val-fraction 1 2>&1", path);
    expect_with(2, "--val and --val-fraction exclude each other", "data %s --model %s --val a --val-fraction 0.1 2>&1",
                path);
    expect_with(2, "a row has at least 2 tokens", "data %s --model %s --context 1 2>&1", path);
    expect_with(2, "--model is missing", "data %s 2>&1", path);
    expect_command("data 2>&1", 2, "a file of JSON lines is missing");
    expect_command("data --help", 0, "--show N");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(rows_are_shown, clear_error),
        cmocka_unit_test_setup(json_has_ids_and_loss, clear_error),
        cmocka_unit_test_setup(mistakes_are_explained, clear_error),
    };
    return cmocka_run_group_tests_name("cli/data", tests, make_scratch, remove_scratch);
}
