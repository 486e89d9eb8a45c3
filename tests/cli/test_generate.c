/* test_generate.c: `tarn generate` end to end. TARN_COMMAND names the binary. */
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

static void write_model(bool has_eos)
{
    const tarn_gpt2_config config = {
        .vocab_size = 50, .context = 40, .layers = 2, .heads = 2, .hidden_size = 16, .has_eos = has_eos, .eos = 49};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 3);
    for (int i = 0; i < tarn_module_parameter_count(model); i++) {
        tarn_tensor *p = tarn_module_parameter(model, i);
        tarn_copy(p, tarn_add(tarn_detach(p), tarn_normal_like(p, 0, 0.2)));
    }
    assert_true(tarn_model_write(model, scratch("model")));
    tarn_module_free(model);
}

/* The library's output for the same options. */
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
    expected_ids(&(tarn_generate_options){.max_tokens = 12}, text, sizeof(text));
    assert_int_equal(run_command(with("--ids 1,2,3 --max-tokens 12 --temperature 0 --device cpu")), 0);
    assert_string_equal(command_output, text);
    expected_ids(&(tarn_generate_options){.temperature = 0.8, .top_k = 40, .seed = 7}, text, sizeof(text));
    /* up to the context length */
    assert_int_equal(run_command(with("--ids=1,2,3 --seed 7 --device cpu --threads 2 --no-slide 2>/dev/null")), 0);
    assert_string_equal(command_output, text);
    expected_ids(&(tarn_generate_options){.max_tokens = 5, .temperature = 2, .top_k = 9, .top_p = 0.9}, text,
                 sizeof(text));
    assert_int_equal(run_command(with("--ids 1,2,3 --max-tokens 5 --temperature 2 --top-k 9 --top-p 0.9 --device cpu")),
                     0);
    assert_string_equal(command_output, text);
}

static void layers_on_the_cpu_change_nothing(void **state)
{
    (void)state;
    char text[512];
    write_model(false);
    expect_command(with("--ids 1 --gpu-layers 1 --device cpu 2>&1 >/dev/null"), 2,
                   "--gpu-layers needs a GPU, and the device is cpu");
    expect_command(with("--ids 1 --gpu-layers 0 2>&1 >/dev/null"), 2, "'0' is out of range; must be from 1 to 1024");
    if (tarn_device_count("mirror") < 1)
        skip();
    expected_ids(&(tarn_generate_options){.max_tokens = 12}, text, sizeof(text));
    assert_int_equal(run_command(with("--ids 1,2,3 --max-tokens 12 --temperature 0 --device mirror --gpu-layers 1")),
                     0);
    assert_string_equal(command_output, text);
    expect_command(with("--ids 1 --device mirror --gpu-layers 3 2>&1 >/dev/null"), 1,
                   "3 layers on the device; it must be from 1 to the model's 2");
    expect_command(
        "bench decode --model gpt2-124m --prompt 2 --tokens 2 --runs 1 --device mirror --gpu-layers 13 2>&1 >/dev/null",
        2, "the model's 12");
}

static void several_devices_change_nothing(void **state)
{
    (void)state;
    char text[512];
    write_model(false);
    expect_command(with("--ids 1 --device cpu --tensor-split 1 2>&1 >/dev/null"), 2,
                   "--tensor-split needs several devices: --device FIRST,SECOND");
    expect_command(with("--ids 1 --device cpu,cpu 2>&1 >/dev/null"), 2, "'cpu' is given twice");
    if (tarn_device_count("mirror") < 2)
        skip();
    expect_command(with("--ids 1 --device mirror:0,cpu --tensor-split 3,1,1 2>&1 >/dev/null"), 2,
                   "--tensor-split: '3,1,1' must be 2 numbers from 0 to 1000000, one per device, not all 0");
    expect_command(with("--ids 1 --device mirror:0,cpu --tensor-split 0,0 2>&1 >/dev/null"), 2, "'0,0' must be 2");
    expect_command(with("--ids 1 --device mirror:0,cpu --gpu-layers 1 2>&1 >/dev/null"), 2,
                   "--gpu-layers is for one device; with several, use --tensor-split");
    expected_ids(&(tarn_generate_options){.max_tokens = 12}, text, sizeof(text));
    static const char *const devices[] = {"mirror:0,mirror:1", "cpu,mirror:1,mirror:0 --tensor-split 0,1,1",
                                          "mirror:1,cpu --tensor-split 1,1 --kv-type q8_0", "mirror:0,cpu"};
    for (int i = 0; i < 4; i++) {
        char options[128];
        snprintf(options, sizeof(options), "--ids 1,2,3 --max-tokens 12 --temperature 0 --devices %s", devices[i]);
        assert_int_equal(run_command(with(options)), 0);
        assert_string_equal(command_output, text);
    }
    expect_command(with("--ids 1,2,3 --device mirror:0,mirror:1 2>&1 >/dev/null"), 0, "(mirror:0: layers 0 to 0, ");
    expect_command(with("--ids 1,2,3 --device mirror:0,cpu --tensor-split 1,0 2>&1 >/dev/null"), 0,
                   "; cpu: no layers, 0.0 MiB of ");
}

/* The same architecture with other weights, in a folder. */
static void write_model_in(tarn_dtype dtype)
{
    write_model(false);
    tarn_module *model = tarn_model_open(scratch("model"), CPU, &(tarn_model_open_options){.dtype = dtype});
    assert_true(tarn_model_write(model, scratch("model")));
    tarn_module_free(model);
}

static void weights_stay_as_they_are_stored(void **state)
{
    (void)state;
    const int32_t prompt[] = {1, 2, 3};
    write_model_in(TARN_BF16);
    for (int is_stored = 0; is_stored < 2; is_stored++) {
        char json[1024], found[64], expected[64];
        tarn_module *model = tarn_model_open(scratch("model"), CPU, &(tarn_model_open_options){.as_stored = is_stored});
        tarn_generator *writer = tarn_generator_new(model, NULL, &(tarn_generator_options){.context = 4});
        tarn_output piece = {0};
        assert_true(
            tarn_generator_prompt(writer, 0, prompt, 3, &(tarn_generate_options){.max_tokens = 1, .logprobs = true}) &&
            tarn_generator_next(writer, &piece));
        snprintf(expected, sizeof(expected), "\"logprob\": %.6f", piece.logprob);
        tarn_generator_free(writer);
        tarn_module_free(model);
        snprintf(json, sizeof(json),
                 "--ids 1,2,3 --max-tokens 1 --temperature 0 --json --top-logprobs 1 --device cpu%s",
                 is_stored ? "" : " --dtype f32");
        assert_int_equal(run_command(with(json)), 0);
        const char *at = strstr(command_output, "\"logprob\": ");
        assert_non_null(at);
        snprintf(found, sizeof(found), "%.*s", (int)strcspn(at, ",}"), at);
        assert_memory_equal(found, expected, strlen(found) - 1); /* except the rounding of the last digit */
    }
}

static void json_is_one_object(void **state)
{
    (void)state;
    write_model(false);
    assert_int_equal(command_objects(with("--ids 1,2,3 --max-tokens 2 --temperature 0 --seed 4 --json --dtype f64")),
                     1);
    assert_non_null(strstr(command_output, "\"seed\": 4, \"prompt\": [1, 2, 3], \"tokens\": ["));
}

/* A byte-level model: prompt bytes in, token bytes out. */
static void words_go_in_and_text_comes_out(void **state)
{
    (void)state;
    const tarn_gpt2_config config = {
        .vocab_size = 256, .context = 30, .layers = 1, .heads = 2, .hidden_size = 16, .has_eos = true, .eos = 10};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 3);
    /* Only small letters are likely: the other embeddings are far from the output of the last norm. */
    tarn_tensor *table = tarn_requires_grad(tarn_module_find(model, "transformer.wte.weight"), false);
    tarn_fill_inplace(tarn_requires_grad(tarn_module_find(model, "transformer.ln_f.bias"), false), 1);
    tarn_sub_inplace(tarn_slice(table, 0, 0, 97), tarn_scalar(9));
    tarn_sub_inplace(tarn_slice(table, 0, 123, 256), tarn_scalar(9));
    assert_true(tarn_model_write(model, scratch("model")));
    tarn_module_free(model);
    expect_command(with("abc 2>&1"), 1, "tokenizer"); /* no tokenizer in the folder yet */
    tarn_tokenizer *letters = tarn_tokenizer_bytes();
    assert_true(tarn_tokenizer_save(letters, scratch("model")));

    assert_int_equal(command_objects(with("'The cat' --max-tokens 9 --seed 5 --json")), 1);
    assert_non_null(strstr(command_output, "\"prompt\": [84, 104, 101, 32, 99, 97, 116], "));
    char *text = strstr(command_output, "\"text\": \""), expected[10];
    assert_non_null(text);
    memcpy(expected, text + 9, 9);
    expected[9] = 0;
    for (int i = 0; i < 9; i++)
        assert_true(expected[i] >= 'a' && expected[i] <= 'z');
    assert_int_equal(run_command(with("'The cat' --max-tokens 9 --seed 5")), 0);
    assert_int_equal(strlen(command_output), 10);
    assert_memory_equal(command_output, expected, 9);
    assert_int_equal(command_objects(with("'' --max-tokens 2 --json")), 1);
    assert_non_null(strstr(command_output, "\"prompt\": [10], "));
    expect_command(with("abc --ids 1 2>&1"), 2, "more than one prompt");
    expect_command(with("'a text that is too long for the context' --no-slide 2>&1"), 2, "fills the context");
    tarn_tokenizer_free(letters);
    remove(scratch("model/tokenizer.json"));
}

static void without_a_prompt_a_text_begins_after_the_end_of_another(void **state)
{
    (void)state;
    write_model(true);
    tarn_tokenizer *letters = tarn_tokenizer_bytes();
    assert_true(tarn_tokenizer_save(letters, scratch("model")));
    assert_int_equal(command_objects(with("--max-tokens 2 --json --ignore-eos < /dev/null")), 1);
    assert_non_null(strstr(command_output, "\"prompt\": [49], "));
    write_model(false);
    expect_command(with("--max-tokens 2 2>&1 < /dev/null"), 2, "the prompt is missing");
    tarn_tokenizer_free(letters);
    remove(scratch("model/tokenizer.json"));
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    write_model(false);
    expect_command("generate 2>&1", 2, "a model folder or .gguf file is missing");
    expect_command("generate --help", 0, "usage: tarn generate MODEL [PROMPT]");
    expect_command("help", 0, "tarn generate");
    expect_command("generate /nonexistent --ids 1 2>&1", 1, "/nonexistent' not found");
    expect_command(with("--ids 1,,2 2>&1"), 2, "is not a list of token ids");
    expect_command(with("--ids 1,2, 2>&1"), 2, "is not a list of token ids");
    expect_command(with("--ids 'a' 2>&1"), 2, "is not a list of token ids");
    expect_command(with("--ids -1 2>&1"), 2, "has an id out of range");
    expect_command(with("--ids 99999999999999999999 2>&1"), 2, "has an id out of range");
    expect_command(with("--ids 1,50 2>&1"), 2, "token 1 of the prompt is 50");
    expect_command(with("--ids 1 --max-tokens 40 --no-slide 2>&1"), 2, "ask for 39 at most");
    expect_command(with("--ids 1 --temperature -1 2>&1"), 2, "'-1' is out of range; must be from 0 to 100");
    expect_command(with("--ids 1 --temperature 1e-9 2>&1"), 2, "--temperature is 1e-09");
    expect_command(with("--ids 1 --temperature nan 2>&1"), 2, "'nan' is not a number");
    expect_command(with("--ids 1 --temperature 1x 2>&1"), 2, "'1x' is not a number");
    expect_command(with("--ids 1 --top-p 1.5 2>&1"), 2, "'1.5' is out of range; must be above 0");
    expect_command(with("--ids 1 --top-p 0 2>&1"), 2, "'0' is out of range; must be above 0 and at most 1");
    expect_command(with("--ids 1 --top-k -1 2>&1"), 2, "'-1' is out of range; must be from 0 to 1000000");
    expect_command(with("--ids 1 --seed 1.5 2>&1"), 2, "'1.5' is not an integer");
    expect_command(with("--ids 1 --dtype i32 2>&1"), 2, "must be f32");
    expect_command(with("--ids 1 --batch-size 3 2>&1"), 2, "--batch-size is not an option of this command");
}

/* A byte-level model whose output depends on positions only. */
static void write_parrot(const char *letters_written)
{
    const tarn_gpt2_config config = {
        .vocab_size = 256, .context = 60, .layers = 1, .heads = 1, .hidden_size = 256, .ffn_size = 1};
    tarn_module *model = tarn_model_gpt2(&config, CPU, 1);
    for (int i = 0; i < tarn_module_parameter_count(model); i++)
        tarn_fill_inplace(tarn_requires_grad(tarn_module_parameter(model, i), false), 0);
    tarn_fill_inplace(tarn_module_find(model, "transformer.ln_f.weight"), 1);
    tarn_copy(tarn_module_find(model, "transformer.wte.weight"), tarn_eye(256, 256, TARN_F32, CPU));
    for (int i = 0; i < 60; i++) {
        unsigned char byte = (unsigned char)letters_written[(size_t)i % strlen(letters_written)];
        tarn_tensor *place = tarn_slice(tarn_module_find(model, "transformer.wpe.weight"), 0, i, i + 1);
        tarn_fill_inplace(tarn_slice(place, 1, byte, byte + 1), 50);
    }
    assert_true(tarn_model_write(model, scratch("model")));
    tarn_tokenizer *letters = tarn_tokenizer_bytes();
    assert_true(tarn_tokenizer_save(letters, scratch("model")));
    tarn_tokenizer_free(letters);
    tarn_module_free(model);
}

/* Output continues at the position after the prompt: its second letter. */
static void texts_stop_and_prompts_come_from_anywhere(void **state)
{
    (void)state;
    char command[1024];
    write_parrot("abc def \303\251 END. ");
    expect_command(with("x --max-tokens 11 --temperature 0"), 0, "abc def \303\251 \n");
    assert_int_equal(run_command(with("x --max-tokens 30 --temperature 0 --stop 'END' --stop zzz")), 0);
    assert_string_equal(command_output, "abc def \303\251 \n");
    assert_int_equal(run_command(with("xab --max-tokens 3 --temperature 0 --echo")), 0);
    assert_string_equal(command_output, "xabc d\n");
    write_text("prompt.txt", "xab");
    snprintf(command, sizeof(command), "--prompt-file %s --max-tokens 3 --temperature 0", scratch("prompt.txt"));
    assert_int_equal(run_command(with(command)), 0);
    assert_string_equal(command_output, "c d\n");
    snprintf(command, sizeof(command), "- --max-tokens 3 --temperature 0 < %s", scratch("prompt.txt"));
    assert_int_equal(run_command(with(command)), 0);
    assert_string_equal(command_output, "c d\n");
    snprintf(command, sizeof(command),
             "--prompt-file - --max-tokens 3 --temperature 0 --prefill-chunk 2 --kv-type q8_0 --context 20 < %s",
             scratch("prompt.txt"));
    assert_int_equal(run_command(with(command)), 0);
    assert_string_equal(command_output, "c d\n");
    expect_command(with("--prompt-file /nonexistent 2>&1"), 1, "'/nonexistent' cannot be opened");
    expect_command(with("x --prompt-file y 2>&1"), 2, "more than one prompt");
    expect_command(with("x --kv-type f64 2>&1"), 2, "'f64' must be model, f32, bf16, f16 or q8_0");
    expect_command(with("x --stop '' 2>&1"), 2, "the value is empty");
    expect_command(with("--ids 1 --stop a 2>&1"), 2, "--stop needs a tokenizer");
    expect_command(with("x --top-logprobs 2 2>&1"), 2, "--top-logprobs needs --json");
    expect_command(with("x --context 3 --max-tokens 3 --no-slide 2>&1"), 2, "ask for 2 at most");
    expect_command(with("x --context 61 2>&1"), 2, "it must be from 1 to the model's 60");
    expect_command(with("x --repeat-penalty 0 2>&1"), 2, "'0' is out of range; must be above 0");
    expect_command(with("x --repeat-penalty 0.001 2>&1"), 2, "--repeat-penalty is 0.001");
    expect_command(with("x --frequency-penalty 101 2>&1"), 2, "'101' is out of range; must be from -100 to 100");
    expect_command(with("x --presence-penalty -101 2>&1"), 2, "'-101' is out of range; must be from -100 to 100");
    expect_command(with("x --min-p 2 2>&1"), 2, "'2' is out of range; must be from 0 to 1");
    expect_command(with("x --n 0 2>&1"), 2, "'0' is out of range; must be from 1 to 1024");
    remove(scratch("model/tokenizer.json"));
}

/* Positions decide: after the context slides, output continues from the middle of the 60 letters. */
static void past_the_context_the_window_slides(void **state)
{
    (void)state;
    static char first[1024];
    write_parrot("abcdefghijklmnopqrstuvwxyz0123456789");
    assert_int_equal(run_command(with("x --context 10 --max-tokens 17 --temperature 0 2>/dev/null")), 0);
    /* 10 letters fill the context; 5 tokens stay, and the next one is at position 5 */
    assert_string_equal(command_output, "abcdefghijefghije\n");
    expect_command(with("x --context 10 --max-tokens 30 --temperature 0 2>&1"), 0,
                   "(the context of 10 tokens is full: generation continues from its last 5; --no-slide stops there)");
    assert_null(strstr(strstr(command_output, "is full") + 1, "is full")); /* reported once */
    expect_command(with("x --context 10 --temperature 0 --no-slide 2>&1"), 0,
                   "(the context of 10 tokens is full: generation stops)");
    expect_command(with("x --context 10 --max-tokens 30 --no-slide 2>&1"), 2,
                   "do not fit into the context of 10; ask for 9 at most");
    expect_command(with("'a prompt that is too long' --context 10 --max-tokens 3 --temperature 0 2>&1"), 0,
                   "(the prompt has 25 tokens, and the context 10: only its last 5 are used");
    expect_command(with("'a prompt that is too long' --context 10 --max-tokens 3 --no-slide 2>&1"), 2,
                   "a prompt of 25 tokens fills the context of 10");
    assert_int_equal(run_command(with("x --max-tokens 200 --temperature 1 --seed 3 --n 2 --kv-type q8_0 2>/dev/null")),
                     0);
    snprintf(first, sizeof(first), "%s", command_output);
    assert_int_equal(run_command(with("x --max-tokens 200 --temperature 1 --seed 3 --n 2 --kv-type q8_0 2>/dev/null")),
                     0);
    assert_string_equal(command_output, first);
    assert_int_equal(command_objects(with("x --max-tokens 200 --temperature 0 --json 2>/dev/null")), 1);
    assert_non_null(strstr(command_output, "\"finish_reason\": \"length\""));
    remove(scratch("model/tokenizer.json"));
}

static void a_pipe_is_the_prompt_or_is_said_to_be_ignored(void **state)
{
    (void)state;
    char command[1024];
    write_parrot("abc def ");
    write_text("prompt.txt", "xab");
    snprintf(command, sizeof(command), "--max-tokens 3 --temperature 0 --echo < %s", scratch("prompt.txt"));
    assert_int_equal(run_command(with(command)), 0);
    assert_string_equal(command_output, "xabc d\n");
    snprintf(command, sizeof(command), "%s --max-tokens 3 --temperature 0 --echo", with(""));
    snprintf(arguments, sizeof(arguments), "version > /dev/null; printf xab | $TARN_COMMAND %s", command);
    assert_int_equal(run_command(arguments), 0);
    assert_string_equal(command_output, "xabc d\n");
    snprintf(command, sizeof(command), "xa --max-tokens 3 --temperature 0 2>&1 < %s", scratch("prompt.txt"));
    expect_command(with(command), 0, "(standard input is ignored: a prompt is given;");
    assert_non_null(strstr(command_output, "bc \n"));
    snprintf(command, sizeof(command), "--ids 1,2 --max-tokens 3 --temperature 0 2>&1 < %s", scratch("prompt.txt"));
    expect_command(with(command), 0, "(standard input is ignored");
    expect_command(with("- --max-tokens 3 2>&1 < /dev/zero"), 1,
                   "'standard input' is too long for a prompt; at most 64 MiB");
    assert_int_equal(run_command(with("xa --max-tokens 3 --temperature 0 2>&1 < /dev/null")), 0);
    assert_string_equal(command_output, "bc \n");
    remove(scratch("model/tokenizer.json"));
}

static void json_says_how_likely_tokens_were(void **state)
{
    (void)state;
    write_parrot("abc");
    assert_int_equal(command_objects(with("x --max-tokens 3 --temperature 0 --json --top-logprobs 2 --stop c")), 1);
    assert_non_null(strstr(command_output, "\"tokens\": [97, 98, 99], \"text\": \"ab\", \"finish_reason\": \"text\", "
                                           "\"logprobs\": [{\"token\": 97, \"logprob\": "));
    assert_non_null(strstr(command_output, "\"top_logprobs\": [{\"token\": 97, "));
    assert_non_null(strstr(command_output, "\"tokens_per_second\": "));
    remove(scratch("model/tokenizer.json"));
}

/* Each of two sequences equals the one generated alone with its seed. */
static void expect_both(const char *how)
{
    char more[512], first[1024], second[1024], both[4096];
    for (int i = 0; i < 2; i++) {
        snprintf(more, sizeof(more), "%s --seed %d --device cpu 2>/dev/null", how, 7 + i);
        assert_int_equal(run_command(with(more)), 0);
        snprintf(i == 0 ? first : second, sizeof(first), "%.1000s", command_output);
    }
    snprintf(both, sizeof(both), "--- 1 of 2 ---\n%s--- 2 of 2 ---\n%s", first, second);
    snprintf(more, sizeof(more), "%s --seed 7 --n 2 --device cpu 2>/dev/null", how);
    assert_int_equal(run_command(with(more)), 0);
    assert_string_equal(command_output, both);
}

/* With each option that several sequences have in their own way; the last ones fill the context, and slide. */
static void several_texts_are_written_at_once(void **state)
{
    (void)state;
    static const char *const ways[] = {"",
                                       "--echo --temperature 0",
                                       "--kv-type q8_0 --prefill-chunk 2 --top-k 0",
                                       "--dtype f64",
                                       "--dtype bf16",
                                       "--repeat-penalty 1.5 --repeat-last-n 4 --frequency-penalty 1",
                                       "--max-tokens 37",
                                       "--max-tokens 0 --no-slide",
                                       "--max-tokens 60",
                                       "--context 8 --max-tokens 30"};
    write_model(true);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        char how[256];
        snprintf(how, sizeof(how), "--ids 1,2,3 %s%s", strstr(ways[i], "--max") ? "" : "--max-tokens 8 ", ways[i]);
        expect_both(how);
    }
    assert_int_equal(command_objects(with("--ids 1,2,3 --max-tokens 8 --seed 7 --n 3 --json --top-logprobs 2")), 3);
    assert_contains(command_output, "\"logprob\": -");
    assert_contains(command_output, "\"cached_tokens\": 0");
    expect_command(with("--ids 1,50 --n 2 2>&1"), 2, "token 1 of the prompt is 50");
}

/* A model that would write something else follows the grammar. */
static void texts_follow_a_grammar(void **state)
{
    (void)state;
    char command[1024];
    write_parrot("abc def \303\251 END. ");
    expect_command(with("x --regex 'yes|no' --temperature 0"), 0, "\n");
    assert_true(strcmp(command_output, "yes\n") == 0 || strcmp(command_output, "no\n") == 0);
    assert_int_equal(run_command(with("x --regex '[abc]{3} [def]{3}\\.' --temperature 0 --max-tokens 8")), 0);
    assert_string_equal(command_output, "abc def.\n");
    write_text("g.gbnf", "root ::= \"<\" [a-c]{3} \">\"\n");
    snprintf(command, sizeof(command), "x --grammar %s --temperature 0 --json", scratch("g.gbnf"));
    expect_command(with(command), 0, "\"finish_reason\": \"grammar\"");
    assert_contains(command_output, "\"text\": \"<bc");
    write_text("s.json", "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x y\",7]}},\"required\":[\"a\"]}");
    snprintf(command, sizeof(command), "x --json-schema %s --temperature 0 --max-tokens 3 --json", scratch("s.json"));
    expect_command(with(command), 0, "\"finish_reason\": \"length\"");
    expect_command(with("x --json-object --max-tokens 4 --n 2"), 0, "{");
    expect_both("x --regex '[abc]{3} [def]{3}\\.' --temperature 2");
    expect_command(with("x --regex a --json-object 2>&1"), 2, "more than one grammar; give one of: --grammar");
    expect_command(with("--ids 1 --regex a 2>&1"), 2, "a grammar needs a tokenizer, and --ids uses none");
    expect_command(with("x --regex a --ignore-eos 2>&1"), 2, "--ignore-eos and a grammar exclude each other");
    expect_command(with("x --regex '(a' 2>&1"), 2, "a parenthesis is not closed");
    expect_command(with("x --grammar /nonexistent 2>&1"), 1, "/nonexistent");
    write_text("s.json", "{\"type\":\"string\",\"contains\":1}");
    snprintf(command, sizeof(command), "x --json-schema %s 2>&1", scratch("s.json"));
    expect_command(with(command), 1, "#/contains: the keyword 'contains' is not supported");
    write_text("g.gbnf", "start ::= \"a\"\n");
    snprintf(command, sizeof(command), "x --grammar %s 2>&1", scratch("g.gbnf"));
    expect_command(with(command), 1, "no rule named root");
}

/* The text of a repeating schema takes fewer steps, and is the same. */
static void speculation_follows_a_grammar(void **state)
{
    (void)state;
    char command[1024], text[512];
    write_parrot("abc def \303\251 END. ");
    write_text("s.json",
               "{\"type\":\"array\",\"minItems\":6,\"maxItems\":6,\"items\":{\"enum\":[\"first\",\"second\"]}}");
    snprintf(command, sizeof(command), "x --json-schema %s --temperature 0 --device cpu", scratch("s.json"));
    assert_int_equal(run_command(with(command)), 0);
    snprintf(text, sizeof(text), "%s", command_output);
    assert_true(text[0] == '[' && strlen(text) > 40);
    strcat(command, " --speculate ngram 2>/dev/null");
    expect_command(with(command), 0, text);
    snprintf(command, sizeof(command), "x --json-schema %s --temperature 0 --device cpu --speculate ngram --json",
             scratch("s.json"));
    expect_command(with(command), 0, "\"accepted_tokens\": ");
    assert_null(strstr(command_output, "\"accepted_tokens\": 0"));
}

/* Number of different tokens among the 12 of a greedy text. */
static int different_tokens(const char *flags)
{
    char command[200];
    bool seen[1000] = {false};
    int different = 0;
    snprintf(command, sizeof(command), "--ids 1,2 --max-tokens 12 --temperature 0 --ignore-eos --json %s", flags);
    expect_command(with(command), 0, "\"tokens\": [");
    const char *at = strstr(strstr(command_output, "\"tokens\": ["), "[");
    for (int i = 0; i < 12; i++) {
        char *end;
        long token = strtol(at + 1, &end, 10);
        assert_true(end > at + 1 && token >= 0 && token < 1000);
        different += !seen[token];
        seen[token] = true;
        at = end;
    }
    return different;
}

static void penalties_keep_generated_tokens_from_coming_again(void **state)
{
    (void)state;
    assert_true(different_tokens("") < 12);
    assert_int_equal(different_tokens("--frequency-penalty 100"), 12);
    assert_int_equal(different_tokens("--presence-penalty 100"), 12);
    assert_int_equal(different_tokens("--presence-penalty -100"), 1);
}

/* Flags of earlier versions. */
/* The model as its own draft is always right; a smaller vocabulary is refused. */
static void speculation_writes_the_same_text(void **state)
{
    (void)state;
    char text[512], command[3 * 512];
    write_model(false);
    expected_ids(&(tarn_generate_options){.max_tokens = 30}, text, sizeof(text));
    const char *plain = "--ids 1,2,3 --max-tokens 30 --temperature 0 --device cpu";
    snprintf(command, sizeof(command), "%s --speculate ngram --draft-tokens 5 2>/dev/null", plain);
    assert_int_equal(run_command(with(command)), 0);
    assert_string_equal(command_output, text);
    snprintf(command, sizeof(command), "%s --draft-model %s 2>/dev/null", plain, scratch("model"));
    assert_int_equal(run_command(with(command)), 0);
    assert_string_equal(command_output, text);
    snprintf(command, sizeof(command), "%s --speculate ngram 2>&1 >/dev/null", plain);
    expect_command(with(command), 0, "proposed tokens accepted");
    snprintf(command, sizeof(command), "%s --speculate draft --draft-model %s --json", plain, scratch("model"));
    assert_int_equal(run_command(with(command)), 0);
    assert_contains(command_output, "\"proposed_tokens\":");
    assert_contains(command_output, "\"accepted_tokens\":");
    snprintf(command, sizeof(command), "%s --json", plain);
    assert_int_equal(run_command(with(command)), 0);
    assert_null(strstr(command_output, "proposed_tokens"));
    static const char *const wrong[][2] = {
        {"--speculate lookup", "--speculate: 'lookup' must be off, ngram or draft"},
        {"--speculate draft", "--speculate draft needs --draft-model"},
        {"--speculate ngram --draft-model x", "--draft-model needs --speculate draft, or no --speculate"},
        {"--draft-tokens 3", "--draft-tokens needs --speculate ngram or --draft-model"},
        {"--speculate ngram --n 2", "--speculate is for one sequence; give --n 1"}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        snprintf(command, sizeof(command), "%s %s 2>&1 >/dev/null", plain, wrong[i][0]);
        expect_command(with(command), 2, wrong[i][1]);
    }
    const tarn_gpt2_config config = {.vocab_size = 48, .context = 40, .layers = 1, .heads = 2, .hidden_size = 16};
    tarn_module *other = tarn_model_gpt2(&config, CPU, 3);
    assert_true(tarn_model_write(other, scratch("other")));
    tarn_module_free(other);
    snprintf(command, sizeof(command), "%s --draft-model %s 2>&1 >/dev/null", plain, scratch("other"));
    expect_command(with(command), 2, "the draft model has a vocabulary of 48 tokens; it must be the model's, of 50");
}

static void old_flags_are_accepted(void **state)
{
    (void)state;
    expect_command(with("--ids 1,2 --tokens 3 --kv f32 --chunk 2 --repeat-penalty 1.1 --repeat-window 4 --ignore-end "
                        "--json --logprobs 1 --temperature 0"),
                   0, "\"top_logprobs\": [");
    char old[400];
    snprintf(old, sizeof(old), "%.*s", (int)strcspn(strstr(command_output, "\"tokens\""), "]"),
             strstr(command_output, "\"tokens\""));
    expect_command(with("--ids 1,2 --max-tokens 3 --kv-type f32 --prefill-chunk 2 --repeat-penalty 1.1 "
                        "--repeat-last-n 4 --ignore-eos --json --top-logprobs 1 --temperature 0"),
                   0, old);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(numbers_come_out_as_the_library_makes_them),
        in_scope(layers_on_the_cpu_change_nothing),
        in_scope(several_devices_change_nothing),
        in_scope(weights_stay_as_they_are_stored),
        in_scope(json_is_one_object),
        in_scope(words_go_in_and_text_comes_out),
        in_scope(without_a_prompt_a_text_begins_after_the_end_of_another),
        in_scope(texts_stop_and_prompts_come_from_anywhere),
        in_scope(past_the_context_the_window_slides),
        in_scope(a_pipe_is_the_prompt_or_is_said_to_be_ignored),
        in_scope(json_says_how_likely_tokens_were),
        in_scope(several_texts_are_written_at_once),
        in_scope(texts_follow_a_grammar),
        in_scope(speculation_follows_a_grammar),
        in_scope(penalties_keep_generated_tokens_from_coming_again),
        in_scope(speculation_writes_the_same_text),
        in_scope(old_flags_are_accepted),
        in_scope(wrong_calls_are_refused),
    };
    return TARN__HAVE_JANSSON ? cmocka_run_group_tests(tests, make_scratch, remove_scratch) : 0;
}
