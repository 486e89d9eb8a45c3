/* test_convert.c: `tarn inspect`, `tarn quantize` and `tarn convert`, end to end. */
#include <sys/stat.h>
#include <sys/wait.h>

#include "support/command.h"
#include "support/files.h"
#include "support/gguf_shards.h"
#include "tarn_features.h"

/* Runs with the path of a scratch file or folder in place of each %s. */
static void expect_with(int status, const char *text, const char *format, const char *first, const char *second)
{
    char arguments[2048];
    snprintf(arguments, sizeof(arguments), format, first, second);
    expect_command(arguments, status, text);
}

/* A file with a matrix that divides into quant blocks, one that does not, and a norm. */
static const char *write_gguf(const char *name, float value)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *weight = tarn_full(TARN_SHAPE(4, 512), value, TARN_F32, tarn_device_cpu());
    const float reals[] = {0.5f, 2};
    tarn_gguf_writer *w = tarn_gguf_create(scratch(name));
    assert_true(tarn_gguf_add_string(w, "general.architecture", "any", 3) &&
                tarn_gguf_add_string(w, "x.text", "a\nb\"", 4) &&
                tarn_gguf_add_array(w, "x.reals", TARN_GGUF_F32, reals, 2) &&
                tarn_gguf_add(w, "output.weight", weight) && tarn_gguf_add(w, "blk.0.weight", weight) &&
                tarn_gguf_add(w, "odd.weight", tarn_zeros(TARN_SHAPE(4, 33), TARN_F32, tarn_device_cpu())) &&
                tarn_gguf_add(w, "norm.weight", vector(1, 2, 3)) && tarn_gguf_finish(w));
    tarn_scope_close(scope);
    return scratch(name);
}

static void a_file_is_inspected(void **state)
{
    (void)state;
    char arguments[1024];
    const char *path = write_gguf("a.gguf", 1);
    expect_with(0, "GGUF, 3 keys, 4 tensors", "inspect %s", path, "");
    assert_contains(command_output, "x.text: \"a\\nb\"\"\n");
    assert_contains(command_output, "x.reals: 2 of f32: 0.5, 2\n");
    assert_contains(command_output, "F32      [4, 512]  8 KiB");
    snprintf(arguments, sizeof(arguments), "inspect %s --json", path);
    assert_int_equal(command_objects(arguments), 8);
    assert_contains(command_output,
                    "{\"key\": \"x.reals\", \"type\": \"list\", \"element_type\": \"f32\", \"value\": [0.5, 2]}");
    assert_contains(command_output, "\"tensor\": \"norm.weight\", \"type\": \"F32\", \"shape\": [3], \"bytes\": 12");
    expect_with(1, "cannot be opened", "inspect %s 2>&1", scratch("none.gguf"), "");
    expect_command("inspect 2>&1", 2, "a file or model folder is missing");
}

/* Names from files are escaped on a terminal. */
static void names_are_shown_as_text(void **state)
{
    (void)state;
    tarn_gguf_writer *w = tarn_gguf_create(scratch("names.gguf"));
    assert_true(tarn_gguf_add_string(w, "key\x1b[2J", "x", 1) &&
                tarn_gguf_add(w, "name\x1b[31m\n\xC3\xA9", vector(1, 2, 3)) && tarn_gguf_finish(w));
    expect_with(0, "key\\x1b[2J: \"x\"\n", "inspect %s", scratch("names.gguf"), "");
    assert_contains(command_output, "name\\x1b[31m\\n\xC3\xA9  F32      [3]");
    assert_null(strchr(command_output, 27));
}

static void a_folder_is_inspected_and_converted(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    const tarn_llama_config config = {
        .vocab_size = 8, .context = 8, .layers = 1, .heads = 2, .hidden_size = 32, .ffn_size = 64};
    tarn_module *model = tarn_model_llama(&config, tarn_device_cpu(), 1);
    char folder[256];
    snprintf(folder, sizeof(folder), "%s", scratch("model"));
    assert_true(tarn_model_write(model, folder));
    tarn_module_free(model);
    expect_with(0, "model.embed_tokens.weight", "inspect %s", folder, "");
    assert_contains(command_output, "\"model_type\": \"llama\"");
    expect_with(0, "12 tensors", "convert %s %s", folder, scratch("model.gguf"));
    expect_with(1, "already exists", "convert %s %s 2>&1", folder, scratch("model.gguf"));
    expect_with(0, "12 tensors", "convert %s %s", scratch("model.gguf"), scratch("back"));
    expect_with(1, "already has a model", "convert %s %s 2>&1", scratch("model.gguf"), scratch("back"));
    expect_with(0, "3 tensors stay f32", "quantize %s %s --type q8_0", folder, scratch("small.gguf"));
    expect_with(0,
                "9 of 9 matrices cannot be q4_k: rows of 32 elements are not a multiple of 256; they are q8_0 instead",
                "quantize %s %s --type q4_k --force 2>&1", folder, scratch("small.gguf"));
    /* the warning comes before the summary */
    const char *warning = strstr(command_output, "not a multiple of 256");
    assert_non_null(warning);
    assert_true(warning < strstr(command_output, "12 tensors"));
    tarn_tokenizer *letters = tarn_tokenizer_bytes();
    assert_true(tarn_tokenizer_save(letters, folder));
    tarn_tokenizer_free(letters);
    expect_with(1, "use the model's folder, which all commands open; for a GGUF file train with a BPE (tarn tokenize",
                "convert %s %s --force 2>&1", folder, scratch("small.gguf"));
    assert_int_equal(remove(scratch("model/tokenizer.json")), 0);
    expect_with(1, "has no model.safetensors", "inspect %s 2>&1", scratch(""), "");
}

static void weights_are_packed(void **state)
{
    (void)state;
    const char *from = write_gguf("from.gguf", 1), *to = scratch("to.gguf");
    expect_with(0,
                "1 tensors stay f32: norms, biases and position embeddings\n1 tensors fall back to q8_0 or stay as "
                "they are: their rows are not a multiple of the quant block\nthe head is promoted to q6_k\n",
                "quantize %s %s --type q4_k", from, to);
    expect_with(0, "Q4_K     [4, 512]", "inspect %s", to, "");
    expect_with(1, "already exists; set --force to replace it", "quantize %s %s --type q8_0 2>&1", from, to);
    expect_with(0, "\"changed\": 2, \"unquantized\": 1, \"fallback\": 1, \"promoted\": 0",
                "quantize %s %s --type q8_0 --force --json", from, to);
    expect_with(0, "", "quantize %s %s --type f16 --force --quiet", from, to);
    expect_with(0, "\"fallback\": 1, \"promoted\": 1", "quantize %s %s --type Q4_K_M --force --json", from, to);
    expect_with(0, "GGUF of type Q4_K_M, ", "inspect %s", to, "");
    expect_with(0, "Q6_K     [", "inspect %s", to, "");
    expect_with(0, "\"file_type\": \"Q4_K_M\"", "inspect %s --json", to, "");
    expect_with(0, "1 tensors are promoted to types of more bits", "convert %s %s --type q3_k_l --force", from, to);
    expect_with(0, "", "quantize %s %s --type f16 --force --quiet", from, to);
    expect_with(1, "is a device or pipe, not a file", "quantize %s %s --type q4_k --force --imatrix /dev/null 2>&1",
                from, to);
    expect_with(2, "must be one of Q2_K Q3_K_S", "quantize %s %s --type q7_k 2>&1", from, to);
    expect_with(2, "did you mean 'Q4_K_M'?", "quantize %s %s --type Q4_K 2>&1", from, to);
    expect_with(2, "--type is missing", "quantize %s %s 2>&1", from, to);
    expect_with(2, "the output path is missing", "quantize %s 2>&1", from, "");
    expect_with(1, "tensor 'output.weight', element 0 is nan", "quantize %s %s --type q8_0 --force 2>&1",
                write_gguf("nan.gguf", NAN), to);
    expect_with(0, "F16 ", "inspect %s", to, ""); /* the existing file is unchanged */
}

static void shards_are_one_file(void **state)
{
    (void)state;
    split_gguf(write_gguf("whole.gguf", 1), "parts", 3);
    for (int i = 0; i < 3; i++) {
        expect_with(0, "GGUF in 3 shards, 6 keys, 4 tensors", "inspect %s", shard_path("parts", i, 3), "");
        assert_contains(command_output, "output.weight  F32      [4, 512]");
        assert_contains(command_output, "norm.weight    F32      [3]");
    }
    mkdir(scratch("one"), 0777);
    mkdir(scratch("two"), 0777);
    expect_with(0, "4 tensors", "quantize %s %s --type q8_0", scratch("whole.gguf"), scratch("one/q8.gguf"));
    expect_with(0, "4 tensors", "quantize %s %s --type q8_0", shard_path("parts", 0, 3), scratch("two/q8.gguf"));
    assert_same_file(scratch("one"), scratch("two"), "q8.gguf");
    assert_int_equal(remove(shard_path("parts", 2, 3)), 0);
    expect_with(1, "parts-00003-of-00003.gguf' not found; it is shard 3 of 3", "inspect %s 2>&1",
                shard_path("parts", 0, 3), "");
}

/* Runs a line of the shell, in which TARN is the command; its output is command_output. */
static int run_shell(const char *line)
{
    char whole[4096];
    if (!getenv("TARN_COMMAND"))
        skip();
    snprintf(whole, sizeof(whole), "TARN='%s'; %s", getenv("TARN_COMMAND"), line);
    FILE *pipe = popen(whole, "r");
    assert_non_null(pipe);
    command_output[fread(command_output, 1, sizeof(command_output) - 1, pipe)] = 0;
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_limit_of_file_sizes_is_a_full_disk(void **state)
{
    (void)state;
    char line[2048];
    const char *from = write_gguf("limited.gguf", 1);
    mkdir(scratch("limit"), 0777);
    snprintf(line, sizeof(line), "ulimit -f 2; \"$TARN\" quantize '%s' '%s' --type f16 2>&1", from,
             scratch("limit/to.gguf"));
    assert_int_equal(run_shell(line), 1);
    assert_contains(command_output, "could not be written: File too large");
    snprintf(line, sizeof(line), "ls -A '%s'", scratch("limit"));
    assert_int_equal(run_shell(line), 0);
    assert_string_equal(command_output, "");
}

/* Temporary files of a killed process are removed by the next write to the same name; those of a running one stay. */
static void leftovers_are_removed(void **state)
{
    (void)state;
    char line[2048];
    const char *from = write_gguf("again.gguf", 1);
    mkdir(scratch("left"), 0777);
    snprintf(line, sizeof(line),
             "cd '%s' || exit 2; sh -c 'echo $$' > number; gone=$(cat number); echo x > to.gguf.$gone-0.tmp; echo x > "
             "other.gguf.$gone-0.tmp; echo x > to.gguf.$$-0.tmp; "
             "\"$TARN\" quantize '%s' to.gguf --type f16 > /dev/null || exit 3; ls to.gguf.$gone-0.tmp 2> /dev/null && "
             "exit 4; "
             "ls to.gguf to.gguf.$$-0.tmp other.gguf.$gone-0.tmp > /dev/null || exit 5",
             scratch("left"), from);
    assert_int_equal(run_shell(line), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_file_is_inspected, clear_error),
        cmocka_unit_test_setup(names_are_shown_as_text, clear_error),
        cmocka_unit_test_setup(a_folder_is_inspected_and_converted, clear_error),
        cmocka_unit_test_setup(shards_are_one_file, clear_error),
        cmocka_unit_test_setup(weights_are_packed, clear_error),
        cmocka_unit_test_setup(a_limit_of_file_sizes_is_a_full_disk, clear_error),
        cmocka_unit_test_setup(leftovers_are_removed, clear_error),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
