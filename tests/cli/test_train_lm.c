/* test_train_lm.c: `tarn train`, `tarn eval` and `tarn generate` with language models, end to end. */
#define _XOPEN_SOURCE 700 /* terminals */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/command.h"
#include "support/files.h"

/* A training text of 3,000 letters. */
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

/* Flags of a run long enough to be stopped. */
static const char *small_run(const char *folder, const char *more)
{
    return command_line(
        "train --data text:%s --layers 1 --heads 2 --hidden-size 16 --context 12 --batch-size 8 --micro-batch 4 "
        "--steps %d --eval-every 25 "
        "--eval-batches 2 --log-every 5 --lr 0.01 --min-lr 0.001 --dropout 0.1 --clip-norm 1 --weight-decay "
        "0.1 --device cpu --out %s %s",
        make_text(), getenv("TARN_TEST_QUICK") ? 100 : 300, folder, more);
}

static void assert_same_model(const char *folder, const char *other)
{
    static const char *const names[] = {"model.safetensors", "best/model.safetensors", "optimizer.safetensors",
                                        "tokenizer.json"};
    for (int i = 0; i < 4; i++) {
        char path[2][1200];
        size_t count[2];
        snprintf(path[0], sizeof(path[0]), "%s/%s", folder, names[i]);
        snprintf(path[1], sizeof(path[1]), "%s/%s", other, names[i]);
        char *a = get_file(path[0], &count[0]), *b = get_file(path[1], &count[1]);
        if (count[0] != count[1] || memcmp(a, b, count[0]) != 0)
            fail_msg("%s and %s differ", path[0], path[1]);
        free(a);
        free(b);
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static void wrong_calls_say_what_is_wrong(void **state)
{
    (void)state;
    const char *text = make_text();
    static const struct {
        const char *flags, *text;
        int status;
    } calls[] = {
        {"--layers 0", "--layers: '0' is out of range; must be from 1 to 1024", 2},
        {"--dropout 1", "out of range", 2},
        {"--heads 5 --hidden-size 16", "must divide", 1},
        {"--precision fp8", "must be one of f32|tf32|bf16", 2},
        {"--precision tf32 --device cpu", "tf32 is not supported on cpu", 2},
        {"--micro-batch 3 --batch-size 8", "does not divide", 2},
        {"--mlp-sizes 3", "mlp-sizes applies to classifiers", 2},
        {"--model mlp", "needs samples with labels", 2},
        {"--tokenizer /nosuch", "/nosuch", 1},
        {"--context 4000 --hidden-size 16 --heads 1 --layers 1", "tokens for training", 1},
    };
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        expect_command(command_line("train --data text:%s %s --dry-run 2>&1", text, calls[i].flags), calls[i].status,
                       calls[i].text);
    expect_command("train --data digits:50 --context 5 --dry-run 2>&1", 2, "context applies to language models");
    expect_command("train --model gpt2 --data digits:50 --dry-run 2>&1", 2, "needs text");
    expect_command("train --data text:/nosuch --dry-run 2>&1", 1, "/nosuch");
    expect_command("train --data shards:/nosuch --dry-run 2>&1", 1, "/nosuch");
}

static void a_dry_run_says_what_it_would_do(void **state)
{
    (void)state;
    expect_command(small_run(scratch("dry"), "--dry-run"), 0, "2700 training tokens, 300 validation tokens");
    assert_non_null(strstr(command_output, "1 layers, 2 heads, hidden size 16, context 12, vocabulary 14"));
    assert_non_null(strstr(command_output, "gradient accumulation over micro-batches of 4"));
    assert_non_null(strstr(command_output, " trained, 0 frozen"));
    assert_non_null(strstr(command_output, "memory      about"));
    assert_null(strstr(command_output, "does not fit"));
}

/* The mirror has 4 GiB. The weights alone need more, so the model is never allocated. */
static void a_dry_run_says_what_is_missing(void **state)
{
    (void)state;
    const char *text = make_text();
    expect_command(
        command_line(
            "train --data text:%s --tokenizer bytes --model gpt2-1.5b --context 64 --device mirror --dry-run --out %s",
            text, scratch("large")),
        0, "does not fit: ");
    assert_non_null(strstr(command_output, "1476073600 trained, 0 frozen"));
    expect_command(
        command_line(
            "train --data text:%s --tokenizer bytes --model gpt2-1.5b --context 64 --device mirror --out %s 2>&1", text,
            scratch("large")),
        1, "tarn train: the run does not fit in memory; --ignore-memory starts it anyway\n");
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

/* Terabytes, too much for any machine: prints the table and settings as flags; no run folder is left. */
static void a_run_that_cannot_fit_does_not_start(void **state)
{
    (void)state;
    const char *text = make_text();
    const char *run =
        command_line("train --data text:%s --tokenizer bytes --layers 64 --heads 2 --hidden-size 64 --context 64 "
                     "--batch-size 65536 --device cpu --out %s",
                     text, scratch("huge"));
    char command[4096];
    snprintf(command, sizeof(command), "%s 2>&1", run);
    expect_command(command, 1, " TiB  activations\n");
    expect_command(command, 1, " needed (lower bound)\n");
    expect_command(command, 1, "free on cpu\n");
    expect_command(command, 1, "would fit, with --micro-batch ");
    /* with --micro-batch, by what is free: train.plan has both */
    expect_command(command, 1, "would fit, with --recompute full");
    assert_int_not_equal(access(scratch("huge"), F_OK), 0);
    snprintf(command, sizeof(command), "%s --dry-run", run);
    expect_command(command, 0, "does not fit: ");
    expect_command(command, 0, "--recompute full");
    snprintf(command, sizeof(command), "%s --dry-run --json", run);
    expect_command(command, 0, "\"fits\": [{\"settings\": \"micro_batch=");
}

static void a_run_is_shown_judged_and_lets_write(void **state)
{
    (void)state;
    expect_command(small_run(scratch("whole"), ""), 0, "tokens/s");
    assert_null(strpbrk(command_output, "\r\033"));
    assert_non_null(strstr(command_output, "best: validation loss "));
    assert_true(command_objects(small_run(scratch("json"), "--json --sample 5")) > 20);
    assert_non_null(strstr(command_output, "{\"event\": \"plan\", \"model\": \"gpt2\""));
    assert_non_null(strstr(command_output, "\"tokens_per_second\": "));
    assert_non_null(strstr(command_output, "{\"event\": \"sample\", \"step\": 25, "));
    assert_same_model(scratch("whole"), scratch("json"));
    assert_true(command_objects(small_run(scratch("long"), "--json --sample 100")) > 20); /* far past the context */
    const char *written = strstr(command_output, "{\"event\": \"sample\", ");
    assert_true(written && (written = strstr(written, "\"text\": \"")) && strcspn(written + 9, "\"") >= 100);
    expect_command(command_line("eval %s", scratch("whole")), 0, "perplexity");
    assert_non_null(strstr(command_output, "over 299 tokens"));
    assert_int_equal(command_objects(command_line("eval %s --json --data text:%s", scratch("whole"), make_text())), 1);
    assert_non_null(strstr(command_output, "\"tokens\": 2999, "));
    expect_command(command_line("eval %s --data digits 2>&1", scratch("whole")), 2, "is not text");
    expect_command(command_line("generate %s \"one t\" --max-tokens 5", scratch("whole")), 0, "");
    expect_command(command_line("generate %s \"one t\" --max-tokens 5", scratch("whole/best")), 0, "");
    expect_command(command_line("predict %s x.png 2>&1", scratch("whole")), 1, "not a classifier");
}

static void shards_are_trained_on(void **state)
{
    (void)state;
    char shards[600];
    snprintf(shards, sizeof(shards), "%s", scratch("shards"));
    expect_command(
        command_line("tokenize %s --prepare %s --tokenizer bytes --val-fraction 0.1 2>&1", make_text(), shards), 0, "");
    const char *flags =
        "--layers 1 --heads 1 --hidden-size 8 --context 8 --batch-size 4 --steps 20 --eval-every 10 --device cpu";
    expect_command(command_line("train --data shards:%s %s --out %s 2>&1", shards, flags, scratch("sharded")), 0,
                   "vocabulary 256");
    expect_command(command_line("train --resume %s --steps 30 2>&1", scratch("sharded")), 0, "step 30 of 30");
    expect_command(command_line("eval %s --data shards:%s", scratch("sharded"), shards), 0, "perplexity");
    expect_command(
        command_line("train --data shards:%s %s --tokenizer characters --out %s 2>&1", shards, flags, scratch("wrong")),
        2, "does not apply to shards");
}

static void the_demo_trains_and_writes(void **state)
{
    (void)state;
    char folder[600];
    snprintf(folder, sizeof(folder), "%s", scratch("above/demo"));
    expect_command(command_line("demo --steps 2 --device cpu --out %s", folder), 0, "sample of the model");
    assert_non_null(strstr(command_output, "step 2 of 2"));
    assert_non_null(strstr(command_output, "\nstatic "));
    expect_command(command_line("demo --steps 2 --device cpu --out %s 2>&1", folder), 1, "already exists");
    expect_command("demo --steps 0 2>&1", 2, "must be from 1 to");
    expect_command("demo --lr 1 2>&1", 2, "--lr is not an option of this command");
}

/* ---- stopped and killed ------------------------------------------------------------------------------------------ */

/* Starts a run that writes to a file; returns its process. */
static pid_t start(const char *arguments, const char *log)
{
    const char *command = getenv("TARN_COMMAND");
    if (!command)
        skip();
    char shell_line[4096];
    snprintf(shell_line, sizeof(shell_line), "exec \"%s\" %s > %s 2>&1", command, arguments, log);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", shell_line, (char *)NULL);
        _exit(127);
    }
    assert_true(child > 0);
    return child;
}

static void sleep_ms(int64_t milliseconds)
{
    nanosleep(&(struct timespec){milliseconds / 1000, (long)(milliseconds % 1000) * 1000000}, NULL);
}

/* Waits until the run's folder holds a line of metrics: the run has started. */
static void wait_for_metrics(const char *folder, pid_t child)
{
    char path[1200];
    struct stat about = {0};
    snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    for (int i = 0; i < 3000 && !(stat(path, &about) == 0 && about.st_size > 0) && waitpid(child, NULL, WNOHANG) == 0;
         i++)
        sleep_ms(10);
    assert_true(about.st_size > 0);
}

/* Output of a run on a terminal of `columns` columns, in `text`. */
static void read_terminal(int columns, const char *folder, char *text, size_t size)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY), own, status;
    if (terminal < 0)
        skip();
    assert_true(grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    own = open(ptsname(terminal), O_RDWR | O_NOCTTY); /* so that it stays open */
    assert_int_equal(ioctl(terminal, TIOCSWINSZ, &(struct winsize){.ws_row = 24, .ws_col = (unsigned short)columns}),
                     0);
    pid_t child = start(small_run(folder, ""), ptsname(terminal));
    size_t used = 0;
    for (bool is_over = false; !is_over;) {
        struct pollfd wait = {.fd = terminal, .events = POLLIN};
        is_over = waitpid(child, &status, WNOHANG) == child;
        while (poll(&wait, 1, is_over ? 0 : 20) > 0 && used < size - 1) {
            ssize_t count = read(terminal, text + used, size - 1 - used);
            assert_true(count > 0);
            used += (size_t)count;
        }
    }
    text[used] = 0;
    close(own);
    close(terminal);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_terminal_shows_one_line_that_fits_it(void **state)
{
    (void)state;
    static char text[1 << 18];
    static const char *const parts[] = {"] ",        " of ",        "loss ", "lr ",    "norm ",
                                        " tokens/s", "validation ", " KiB",  " s left"};
    read_terminal(200, scratch("wide"), text, sizeof(text));
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        assert_contains(text, parts[i]);
    assert_contains(text, "[##");
    read_terminal(50, scratch("narrow"), text, sizeof(text));
    int lines = 0;
    for (char *at = strchr(text, '\r'); at; at = strchr(at + 1, '\r')) {
        char *end = strstr(at, "\033[K"), *next = strchr(at + 1, '\r');
        if (!end || (next && end > next) || end == at + 1)
            continue;
        lines++;
        assert_true(end - at - 1 <= 49);
    }
    assert_true(lines > 1);
}

static void a_signal_saves_and_stops_and_the_run_resumes_bitwise_identically(void **state)
{
    (void)state;
    char log[600], folder[600];
    int status;
    snprintf(folder, sizeof(folder), "%s", scratch("signal"));
    snprintf(log, sizeof(log), "%s.log", folder);
    pid_t child = start(small_run(folder, ""), log);
    wait_for_metrics(folder, child);
    kill(child, SIGTERM);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    expect_command(command_line("train --resume %s", folder), 0, "resuming gpt2");
    assert_same_model(scratch("whole"), folder);
}

static void a_killed_run_goes_on_from_its_last_checkpoint_bit_for_bit(void **state)
{
    (void)state;
    uint64_t random = test_seed(6);
    int rounds = getenv("TARN_TEST_LONG") ? 100 : getenv("TARN_TEST_QUICK") ? 4 : 20, under_way = 0, status;
    char folder[600], log[600];
    snprintf(folder, sizeof(folder), "%s", scratch("killed"));
    snprintf(log, sizeof(log), "%s.log", folder);
    pid_t child = start(small_run(folder, ""), log);
    wait_for_metrics(folder, child);
    for (int i = 0; i < rounds; i++) {
        sleep_ms(random_below(&random, 60));
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        under_way += WIFSIGNALED(status);
        child = start(command_line("train --resume %s", folder), log);
    }
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    print_message("%d of %d kills met a run under way\n", under_way, rounds);
    assert_true(under_way > rounds / 4);
    assert_same_model(scratch("whole"), folder);
}

static void a_loss_that_is_not_finite_names_step_and_layer(void **state)
{
    (void)state;
    expect_command(
        command_line("train --data text:%s --layers 1 --heads 1 --hidden-size 8 --context 8 --batch-size 4 --steps 50 "
                     "--optimizer sgd --lr 100000 "
                     "--weight-decay 100000 --device cpu --out %s 2>&1",
                     make_text(), scratch("nan")),
        1, "is not finite");
    assert_non_null(strstr(command_output, "step "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(wrong_calls_say_what_is_wrong),
        in_scope(a_dry_run_says_what_it_would_do),
        in_scope(a_dry_run_says_what_is_missing),
        in_scope(a_run_that_cannot_fit_does_not_start),
        in_scope(a_run_is_shown_judged_and_lets_write),
        in_scope(shards_are_trained_on),
        in_scope(the_demo_trains_and_writes),
        in_scope(a_terminal_shows_one_line_that_fits_it),
        in_scope(a_signal_saves_and_stops_and_the_run_resumes_bitwise_identically),
        in_scope(a_killed_run_goes_on_from_its_last_checkpoint_bit_for_bit),
        in_scope(a_loss_that_is_not_finite_names_step_and_layer),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
