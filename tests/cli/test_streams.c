/* test_streams.c: pipes and devices instead of regular files: rejected at once where a file is needed, read up to a
 * limit where text is read. */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tarn/model.h>

#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

/* Runs a line of the shell, in which TARN is the command, stopped after a minute: status 124. */
static int run_shell(const char *line, const char *path)
{
    char format[2048], whole[4096];
    if (!getenv("TARN_COMMAND"))
        skip();
    snprintf(format, sizeof(format), "TARN='timeout -k 1 60 %s'; %s", getenv("TARN_COMMAND"), line);
    snprintf(whole, sizeof(whole), format, path, path);
    FILE *pipe = popen(whole, "r");
    assert_non_null(pipe);
    command_output[fread(command_output, 1, sizeof(command_output) - 1, pipe)] = 0;
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect_shell(int status, const char *text, const char *line, const char *path)
{
    int found = run_shell(line, path);
    if (found != status || !strstr(command_output, text))
        fail_msg("%s (%s): status %d instead of %d, or no '%s' in: %s", line, path, found, status, text,
                 command_output);
}

/* Without the check each would wait for a writer forever. */
static void pipes_are_refused_where_a_file_is_needed(void **state)
{
    (void)state;
    static const char *const lines[] = {"$TARN inspect '%s' 2>&1",
                                        "$TARN inspect '%s' --json 2>&1",
                                        "$TARN generate '%s' x 2>&1 < /dev/null",
                                        "$TARN chat '%s' 2>&1 < /dev/null",
                                        "$TARN eval '%s' 2>&1",
                                        "$TARN quantize '%s' '%s.gguf' --type q8_0 2>&1",
                                        "$TARN convert '%s' '%s.gguf' 2>&1",
                                        "$TARN train --model mlp --data 'csv:%s' 2>&1",
                                        "$TARN train --data 'text:%s' 2>&1",
                                        "$TARN train '%s' 2>&1",
                                        "$TARN tokenize --tokenizer '%s' --text x 2>&1",
                                        "$TARN tokenize --tokenizer bytes '%s' --prepare '%s.d' 2>&1",
                                        "$TARN data '%s' --tokenizer bytes 2>&1"};
    const char *pipe = scratch("pipe");
    assert_int_equal(mkfifo(pipe, 0666), 0);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        int status = run_shell(lines[i], pipe);
        if ((status != 1 && status != 2) || !command_output[0])
            fail_msg("%s: status %d, and it says '%s'", lines[i], status, command_output);
    }
    expect_shell(1, "is a device or pipe, not a file", "$TARN inspect '%s' 2>&1", pipe);
    expect_shell(1, "is a device or pipe, not a file", "$TARN inspect '%s' 2>&1", "/dev/zero");
}

/* config.json as a pipe, in a folder from elsewhere. */
static void pipes_in_folders_are_refused(void **state)
{
    (void)state;
    mkdir(scratch("folder"), 0777);
    assert_int_equal(mkfifo(scratch("folder/config.json"), 0666), 0);
    expect_shell(1, "", "$TARN inspect '%s' 2>&1", scratch("folder"));
    expect_shell(1, "", "$TARN generate '%s' x 2>&1 < /dev/null", scratch("folder"));
}

static void endless_streams_are_bounded(void **state)
{
    (void)state;
    if (TARN__SANITIZE[0])
        skip(); /* slow there */
    expect_shell(1, "'/dev/zero' is too long: 256 MiB is the most that is read of what is no file",
                 "$TARN tokenize --tokenizer bytes %s 2>&1", "/dev/zero");
    expect_shell(1, "'standard input' is too long", "$TARN tokenize --tokenizer bytes < %s 2>&1", "/dev/zero");
    if (!TARN__HAVE_JANSSON)
        return;
    const tarn_gpt2_config config = {.vocab_size = 256, .context = 8, .layers = 1, .heads = 2, .hidden_size = 16};
    tarn_module *model = tarn_model_gpt2(&config, tarn_device_cpu(), 1);
    tarn_tokenizer *letters = tarn_tokenizer_bytes();
    assert_true(tarn_model_write(model, scratch("gpt")) && tarn_tokenizer_save(letters, scratch("gpt")));
    tarn_tokenizer_free(letters);
    tarn_module_free(model);
    expect_shell(1, "'/dev/zero' is too long for a prompt; at most 64 MiB",
                 "$TARN generate '%s' --prompt-file /dev/zero 2>&1", scratch("gpt"));
}

static void streams_that_end_are_read(void **state)
{
    (void)state;
    expect_shell(0, "97 98 10", "echo ab | $TARN tokenize --tokenizer bytes %s", "/dev/stdin");
    expect_shell(0, "97 98 10", "(echo ab > '%s' &) ; $TARN tokenize --tokenizer bytes '%s'", scratch("pipe"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(pipes_are_refused_where_a_file_is_needed),
                                       in_scope(pipes_in_folders_are_refused), in_scope(endless_streams_are_bounded),
                                       in_scope(streams_that_end_are_read)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
