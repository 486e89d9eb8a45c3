/* test_memory_limit.c: commands under limits of address space or data end by themselves, with a result or a
 * message. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/command.h"
#include "support/files.h"
#include "tarn_features.h"

#define PATIENCE 30 /* seconds; far more than any of them takes, for machines that are busy */

/* Runs the command under a limit, its output into a file. The status of waitpid(); -1: it had to be killed. */
static int run_limited(int resource, long mebibytes, const char *const *words, const char *output)
{
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {(rlim_t)mebibytes << 20, (rlim_t)mebibytes << 20};
        if (!freopen(output, "w", stdout) || dup2(1, 2) < 0 || setrlimit(resource, &limit) != 0)
            _exit(99);
        execv(words[0], (char **)(uintptr_t)words);
        _exit(98);
    }
    assert_true(child > 0);
    int status;
    for (int i = 0; i < PATIENCE * 100; i++) {
        if (waitpid(child, &status, WNOHANG) == child)
            return status;
        nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
}

/* Succeeds, or fails with a message; that of the program loader (127) counts. */
static bool ended_well(int status, const char *text)
{
    if (status == -1 || !WIFEXITED(status))
        return false;
    int code = WEXITSTATUS(status);
    if (strstr(text, "--out of")) /* the sentence's first word is no option */
        return false;
    return code == 0 || (code == 1 && strstr(text, "tarn ") && strstr(text, "emory")) || (code == 127 && text[0]);
}

/* True when it succeeded. */
static bool check_limit(int resource, long mebibytes, const char *const *words)
{
    char *output = strdup(scratch("output")), remove[4096];
    size_t count;
    snprintf(remove, sizeof(remove), "rm -rf '%s'", scratch("run"));
    assert_int_equal(system(remove), 0);
    int status = run_limited(resource, mebibytes, words, output);
    char *text = get_file(output, &count);
    if (!ended_well(status, text))
        fail_msg("tarn %s %s within %ld MiB of %s: %s %d:\n%s", words[1], words[2], mebibytes,
                 resource == RLIMIT_AS ? "address space" : "data", status == -1 ? "did not end" : "status", status,
                 text);
    free(text);
    free(output);
    return status == 0;
}

static void check_limits(const char *const *words)
{
    const char *command = getenv("TARN_COMMAND");
    int good = 0;
    if (!command || TARN__SANITIZE[0] || getenv("TARN_TEST_LAUNCHER")) /* a sanitizer takes terabytes of addresses */
        skip();
    for (long mebibytes = 16; mebibytes <= 512; mebibytes += mebibytes < 192 ? 16 : 64)
        good += check_limit(RLIMIT_AS, mebibytes, words);
    for (long mebibytes = 16; mebibytes <= 256; mebibytes += 48)
        check_limit(RLIMIT_DATA, mebibytes, words);
    assert_true(good > 0);
}

static void training_ends_within_any_limit(void **state)
{
    (void)state;
    char out[4096];
    snprintf(out, sizeof(out), "--out=%s", scratch("run"));
    const char *words[] = {getenv("TARN_COMMAND"),
                           "train",
                           "--model=mlp",
                           "--data=digits:200",
                           "--steps=2",
                           "--batch-size=100",
                           "--threads=2",
                           "--device=cpu",
                           out,
                           NULL};
    check_limits(words);
}

static void measuring_ends_within_any_limit(void **state)
{
    (void)state;
    const char *words[] = {getenv("TARN_COMMAND"), "bench",        "matmul", "--sizes=128", "--runs=5",
                           "--threads=2",          "--device=cpu", NULL};
    check_limits(words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(training_ends_within_any_limit),
                                       in_scope(measuring_ends_within_any_limit)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
