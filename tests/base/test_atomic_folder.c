/* test_atomic_folder.c: a folder is replaced atomically: with a failure, and with a kill, at each system call in
 * turn. The system calls are this program's own functions, which the library calls in place of the C library's. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/files.h"
#include "support/files.h"

/* ---- system calls that fail -------------------------------------------------------------------------------------- */

static int calls;         /* since the count began */
static int fails_at = -1; /* that call fails, or kills; -1: none */
static bool kills;
static bool can_exchange = true;

/* True when this call is to fail. */
static bool is_faulty(void)
{
    bool is = calls++ == fails_at;
    if (is && kills)
        _exit(9);
    if (is)
        errno = ENOSPC;
    return is;
}

int rename(const char *from, const char *to)
{
    return is_faulty() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    if (!can_exchange) {
        errno = EINVAL;
        return -1;
    }
    return is_faulty() ? -1 : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

int fsync(int file)
{
    return is_faulty() ? -1 : (int)syscall(SYS_fsync, file);
}

int mkdir(const char *path, mode_t mode)
{
    return is_faulty() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    return is_faulty() ? -1 : (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
}

int unlinkat(int folder, const char *path, int flags)
{
    return is_faulty() ? -1 : (int)syscall(SYS_unlinkat, folder, path, flags);
}

int unlink(const char *path)
{
    return is_faulty() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json"};

static void put_old(void)
{
    char remove[1024];
    fails_at = -1;
    snprintf(remove, sizeof(remove), "rm -rf '%s' '%s'.*", scratch("model"), scratch("model"));
    assert_int_equal(system(remove), 0);
    mkdir(scratch("model"), 0755);
    mkdir(scratch("model/notes"), 0755);
    write_text("model/notes/one", "kept");
    write_text("model/README.md", "kept");
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof(name), "model/%s", files[i]);
        write_text(name, "old");
    }
}

static bool write_new(void)
{
    tarn__staging staging;
    char path[1200];
    if (!tarn__staging_open(&staging, "test", scratch("model")))
        return false;
    for (int i = 0; i < 3; i++) {
        tarn__output output;
        snprintf(path, sizeof(path), "%s/%s", staging.temporary, files[i]);
        if (!tarn__output_open(&output, "test", path) || !tarn__output_write(&output, "new", 3) ||
            !tarn__output_commit(&output)) {
            tarn__staging_discard(&staging);
            return false;
        }
    }
    return tarn__staging_commit(&staging);
}

/* "old" or "new", as all files say; "none" where one is missing or they differ. */
static const char *version(void)
{
    static char found[16];
    for (int i = 0; i < 3; i++) {
        char name[64], text[16] = "";
        snprintf(name, sizeof(name), "model/%s", files[i]);
        FILE *file = fopen(scratch(name), "r");
        if (!file || !fgets(text, sizeof(text), file) || (i > 0 && strcmp(text, found) != 0))
            snprintf(found, sizeof(found), "none");
        else if (i == 0)
            snprintf(found, sizeof(found), "%s", text);
        if (file)
            fclose(file);
    }
    return found;
}

static bool is_there(const char *name)
{
    struct stat about;
    return stat(scratch(name), &about) == 0;
}

/* A folder that could not be moved is in the old one still, and a warning says so. */
static bool has_notes(void)
{
    char pattern[1200];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s*/notes/one", scratch("model"));
    bool is = glob(pattern, 0, NULL, &found) == 0;
    globfree(&found);
    return is;
}

static void a_folder_is_replaced(void **state)
{
    (void)state;
    put_old();
    assert_true(write_new());
    assert_string_equal(version(), "new");
    assert_true(is_there("model/README.md") && is_there("model/notes/one"));
    assert_int_equal(scratch_count(), 1);
    can_exchange = false;
    put_old();
    assert_true(write_new());
    can_exchange = true;
    assert_string_equal(version(), "new");
    assert_true(is_there("model/README.md") && is_there("model/notes/one") && !is_there("model/config.json.replaced"));
    assert_int_equal(scratch_count(), 1);
}

/* Each call fails once: the folder has one version, the new one where the write succeeded. */
static void each_failure_keeps_a_version(void **state)
{
    (void)state;
    tarn_set_log(NULL, NULL);
    for (int exchanged = 0; exchanged < 2; exchanged++) {
        bool more = true;
        can_exchange = exchanged;
        for (int at = 0; more; at++) {
            put_old();
            calls = 0;
            fails_at = at;
            bool good = write_new();
            more = calls > at;
            fails_at = -1;
            if (strcmp(version(), "none") == 0 || (good && strcmp(version(), "new") != 0) ||
                !is_there("model/README.md") || !has_notes())
                fail_msg("call %d failed (%s exchange): %s, then the folder is '%s'", at,
                         exchanged ? "with" : "without", good ? "success" : tarn_error(), version());
            assert_int_equal(good, !tarn_failed());
            tarn_clear_error();
        }
    }
    can_exchange = true;
    tarn_set_log(tarn_log_stderr, NULL);
}

/* A kill at each call: the folder has one version, and the next write leaves nothing behind. */
static void each_kill_keeps_a_version(void **state)
{
    (void)state;
    bool more = true;
    for (int at = 0; more; at++) {
        put_old();
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            calls = 0;
            fails_at = at;
            kills = true;
            _exit(write_new() ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        more = WEXITSTATUS(status) == 9;
        if (strcmp(version(), "none") == 0 || !is_there("model/README.md") || !has_notes())
            fail_msg("killed at call %d: the folder is '%s'", at, version());
        assert_true(write_new());
        assert_string_equal(version(), "new");
        assert_true(scratch_count() <= 2); /* at most the folder with what could not be moved, which holds no model */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(a_folder_is_replaced), in_scope(each_failure_keeps_a_version),
                                       in_scope(each_kill_keeps_a_version)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
