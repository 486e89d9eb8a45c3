/* test_hostile_names.c: hostile file names and names in files: every command prints them escaped. */
#include <sys/stat.h>
#include <tarn/gguf.h>
#include <tarn/safetensors.h>

#include "support/command.h"
#include "support/files.h"

/* ESC, a newline, DEL, a C1 control as UTF-8, an invalid UTF-8 byte, and a right-to-left override. */
#define HOSTILE \
    "a\x1b[2J\n\r\x7F\xC2\x9B" \
    "31m\xFF\xE2\x80\xAE" \
    "b"
#define VALID \
    "a\x1b[2J\n\r\x7F\xC2\x9B" \
    "31m\xE2\x80\xAE" \
    "b"
#define IN_JSON \
    "a\\u001b[2J\\n\\u007f\xC2\x9B" \
    "31m\xE2\x80\xAE" \
    "b"

/* The output has no control sequences. */
static void check_output(const char *arguments)
{
    for (const unsigned char *c = (const unsigned char *)command_output; *c; c++) {
        bool is_c1 = c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0, turns = c[0] == 0xE2 && c[1] == 0x80 && c[2] == 0xAE;
        if ((*c < 0x20 && *c != '\n' && *c != '\t') || *c == 0x7F || *c == 0xFF || is_c1 || turns)
            fail_msg("tarn %s: byte %02x is printed as it is: ...%.60s", arguments, *c, (const char *)c);
    }
}

/* Runs a command whose arguments hold one %s, a path in single quotes; its output must be escaped and on one line. */
static void check_command(const char *format, const char *path)
{
    char arguments[2048];
    snprintf(arguments, sizeof(arguments), format, path);
    int status = run_command(arguments);
    check_output(arguments);
    if (!command_output[0] || status > 2)
        fail_msg("tarn %s: status %d, and it says '%s'", arguments, status, command_output);
}

static const char *const on_files[] = {"inspect '%s' 2>&1",
                                       "inspect '%s' --json 2>&1",
                                       "generate '%s' hello 2>&1",
                                       "chat '%s' 2>&1 < /dev/null",
                                       "eval '%s' 2>&1",
                                       "quantize '%s' /dev/null/x 2>&1",
                                       "convert '%s' /dev/null/x 2>&1",
                                       "predict '%s' x.png 2>&1",
                                       "tokenize --tokenizer '%s' --text x 2>&1",
                                       "train --model '%s' --data digits:10 2>&1",
                                       "train '%s' 2>&1",
                                       "train --model mlp --data 'text:%s' 2>&1",
                                       "data '%s' --tokenizer bytes 2>&1",
                                       "runs '%s' 2>&1",
                                       "runs '%s' --json 2>&1",
                                       "train --resume '%s' 2>&1",
                                       "generate --adapter '%s' x 2>&1",
                                       "help '%s' 2>&1",
                                       "'%s' 2>&1",
                                       "info '--%s' 2>&1"};

static void check_all(const char *path)
{
    for (size_t i = 0; i < sizeof(on_files) / sizeof(on_files[0]); i++)
        check_command(on_files[i], path);
}

static void names_of_files(void **state)
{
    (void)state;
    check_all(scratch("absent " HOSTILE));
    put_file(scratch("text " HOSTILE), "{", 1);
    check_all(scratch("text " HOSTILE));
}

static void names_in_gguf(void **state)
{
    (void)state;
    const char *path = scratch("names " HOSTILE ".gguf");
    tarn_gguf_writer *w = tarn_gguf_create(path);
    assert_true(tarn_gguf_add_string(w, "general.architecture", VALID, strlen(VALID)) &&
                tarn_gguf_add_string(w, VALID, HOSTILE, strlen(HOSTILE)) &&
                tarn_gguf_add(w, "x\x1b[31m\xC2\x9B\n", vector(1, 2, 3)) && tarn_gguf_finish(w));
    check_all(path);
}

/* A folder in which every file has the same contents. */
static void put_folder(const char *folder, const char *config)
{
    static const char *const names[] = {"config.json",    "adapter_config.json",
                                        "tokenizer.json", "tokenizer_config.json",
                                        "trainer.json",   "run.json",
                                        "options.json",   "runs.jsonl",
                                        "log.jsonl",      "model.safetensors.index.json",
                                        "metrics.jsonl"};
    char path[2048];
    mkdir(folder, 0777);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        put_file(path, config, strlen(config));
    }
}

static void names_in_folders(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\": \"" IN_JSON "\", \"architectures\": [\"" IN_JSON "\"], \"" IN_JSON
        "\": \"\x1b[31m\", \"model\": \"" IN_JSON "\", \"data\": \"" IN_JSON "\", \"version\": \"" IN_JSON
        "\", \"weight_map\": {\"" IN_JSON "\": \"" IN_JSON "\"}}\n";
    put_folder(scratch("folder"), config);
    check_all(scratch("folder"));
    static const char clean[] =
        "{\"model_type\": \"" IN_JSON "\", \"architectures\": [\"" IN_JSON "\"], \"peft_type\": \"" IN_JSON
        "\", \"model\": \"" IN_JSON "\", \"weight_map\": {\"" IN_JSON "\": \"" IN_JSON
        "\"}, \"base_model_name_or_path\": \"" IN_JSON "\"}\n";
    put_folder(scratch("clean"), clean);
    check_all(scratch("clean"));
}

static void names_in_safetensors(void **state)
{
    (void)state;
    char folder[1024], path[1100], head[512];
    snprintf(folder, sizeof(folder), "%s", scratch("tensors"));
    mkdir(folder, 0777);
    snprintf(path, sizeof(path), "%s/config.json", folder);
    put_file(path, "{\"model_type\": \"llama\"}", 23);
    snprintf(head, sizeof(head),
             "{\"__metadata__\": {\"" IN_JSON "\": \"" IN_JSON "\"}, \"" IN_JSON
             "\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}");
    bytes b = {.count = 0};
    uint64_t length = strlen(head);
    put(&b, &length, 8); /* the formats' byte order is this machine's on both architectures */
    put_text(&b, head);
    put(&b, "\0\0\0\0", 4);
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    put_file(path, b.data, b.count);
    check_command("inspect '%s' 2>&1", path);
    check_all(folder);
}

static void the_log_of_runs(void **state)
{
    (void)state;
    char folder[1024], path[1100];
    static const char line[] = "{\"date\": \"2026-01-01T00:00:00Z\", \"end\": \"" IN_JSON "\", \"folder\": \"" IN_JSON
                               "\", \"model\": \"" IN_JSON "\", \"data\": \"text:/" IN_JSON "\", \"device\": \"" IN_JSON
                               "\", \"precision\": \"" IN_JSON "\","
                               "\"processor\": \"\", \"version\": \"\", \"parameters\": 1, \"batch_size\": 1, "
                               "\"steps_in_epoch\": 1, \"first_step\": 0, \"step\": 1, "
                               "\"steps\": 1, \"best_step\": 0, \"seconds\": 1, \"seconds_per_1000_steps\": 1, "
                               "\"seconds_per_epoch\": 1, \"loss\": 1, "
                               "\"val_loss\": 1, \"best_loss\": null, \"best_accuracy\": null}\n";
    snprintf(folder, sizeof(folder), "%s", scratch("runs"));
    mkdir(folder, 0777);
    snprintf(path, sizeof(path), "%s/log.jsonl", folder);
    put_file(path, line, strlen(line));
    check_command("runs '%s' 2>&1", folder);
    assert_contains(command_output, "\\x1b[2J\\n\\x7f\\u009b31m\\u202eb");
    check_command("runs '%s' --json 2>&1", folder);
    assert_contains(command_output, "\\u001b[2J\\u000a\\u007f\\u009b31m\\u202eb");
}

/* A model's text is its bytes in a pipe and escaped on a terminal, which `script` gives. */
static void what_a_model_writes(void **state)
{
    (void)state;
    const char *command = getenv("TARN_COMMAND");
    char line[2048], output[4096] = "";
    expect_command("tokenize --tokenizer bytes --decode --text '27 91 65 10 9 155'", 0, "\x1b[A\n\t\x9B");
    snprintf(line, sizeof(line),
             "script -qec \"'%s' tokenize --tokenizer bytes --decode --text '27 91 65 10 9 155'\" /dev/null < "
             "/dev/null 2>&1",
             command);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    output[fread(output, 1, sizeof(output) - 1, pipe)] = 0;
    if (pclose(pipe) != 0)
        skip(); /* no such program */
    assert_contains(output, "\\x1b[A");
    assert_contains(output, "\\x9b");
    assert_null(strchr(output, 27));
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(names_of_files),   in_scope(names_in_gguf),
                                       in_scope(names_in_folders), in_scope(names_in_safetensors),
                                       in_scope(the_log_of_runs),  in_scope(what_a_model_writes)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
