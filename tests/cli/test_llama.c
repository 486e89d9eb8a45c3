/* test_llama.c: `tarn train`, `tarn eval`, `tarn generate` and `tarn bench train` with models of the Llama family. */
#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

static const char *make_text(void)
{
    static char path[600];
    char text[3001];
    for (int i = 0; i < 3000; i++)
        text[i] = "one two three four five; \n"[i % 26];
    text[3000] = 0;
    snprintf(path, sizeof(path), "%s", write_text("numbers.txt", text));
    return path;
}

static const char *small(const char *model, const char *more)
{
    return command_line(
        "train --model %s --data text:%s --layers 2 --heads 4 --kv-heads 2 --hidden-size 16 --context 12 "
        "--batch-size 8 --steps 60 "
        "--eval-every 30 --log-every "
        "10 --lr 0.01 --device cpu %s",
        model, make_text(), more);
}

static void a_dry_run_says_what_it_would_do(void **state)
{
    (void)state;
    expect_command(small("llama", "--ffn-size 24 --dry-run"), 0, "training llama");
    assert_non_null(strstr(command_output,
                           "2 layers, 4 heads (2 KV heads), hidden size 16, context 12, vocabulary 14, FFN size 24"));
    assert_non_null(strstr(command_output, "runs/llama-numbers-2x16x12-cpu"));
}

static void a_run_trains_validates_resumes_and_generates(void **state)
{
    (void)state;
    char folder[600], more[700];
    snprintf(folder, sizeof(folder), "%s", scratch("run"));
    snprintf(more, sizeof(more), "--out %s", folder);
    expect_command(small("qwen3", more), 0, "validation loss");
    expect_command(command_line("eval %s", folder), 0, "qwen3 on text:");
    assert_int_equal(command_objects(command_line("eval %s --json", folder)), 1);
    assert_non_null(strstr(command_output, "\"model\": \"qwen3\""));
    expect_command(command_line("train --resume %s --steps 70", folder), 0, "resuming qwen3");
    expect_command(command_line("generate %s \"one two\" --max-tokens 5 --temperature 0", folder), 0, " thre");
}

static void wrong_calls_say_what_is_wrong(void **state)
{
    (void)state;
    expect_command(small("llama", "--dropout 0.1 --dry-run 2>&1"), 2, "a llama does not support it");
    expect_command(small("gpt2", "--dry-run 2>&1"), 2, "--kv-heads is for Llama models");
    expect_command(small("llama2", "--dry-run 2>&1"), 2, "must be one of");
    expect_command("bench train --model mistral --vocab-size 64 2>&1", 2, "a mistral has no size of its own");
    expect_command(command_line("train --model mistral --data text:%s --device cpu --dry-run 2>&1", make_text()), 0,
                   "chosen to train in minutes on a CPU");
    expect_command("train --model llama --data digits:50 --dry-run 2>&1", 2, "needs text");
}

static void a_step_is_measured(void **state)
{
    (void)state;
    assert_int_equal(
        command_objects("bench train --json --model llama --layers 1 --heads 2 --kv-heads 1 --hidden-size 16 "
                        "--ffn-size 24 --context 8 --vocab-size 64 --batch 4 "
                        "--steps 2 --warmup 1 --device cpu"),
        1);
    assert_non_null(strstr(command_output, "\"model\": \"llama\""));
}

static void shipped_configurations_are_accepted(void **state)
{
    (void)state;
    const char *source = getenv("TARN_SOURCE_DIR");
    if (!source)
        skip();
    expect_command(command_line("train %s/configs/llama-char-cpu.json --data text:%s --dry-run", source, make_text()),
                   0, "4 heads (2 KV heads)");
    expect_command(
        command_line("train %s/configs/llama-char-gpu.json --data text:%s --device cpu --dry-run", source, make_text()),
        0, "6 heads (2 KV heads)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dry_run_says_what_it_would_do),
        cmocka_unit_test(a_run_trains_validates_resumes_and_generates),
        cmocka_unit_test(wrong_calls_say_what_is_wrong),
        cmocka_unit_test(a_step_is_measured),
        cmocka_unit_test(shipped_configurations_are_accepted),
    };
    return TARN__HAVE_JANSSON ? cmocka_run_group_tests(tests, make_scratch, remove_scratch) : 0;
}
