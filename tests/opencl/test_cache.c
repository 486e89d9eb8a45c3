/*
 * test_cache.c: compiled programs on disk: a second process compiles nothing; a damaged file is ignored and rewritten;
 * a failing write is logged. The program starts itself: with an argument it casts some elements and exits with the
 * number of programs compiled for that, or of warnings that none can be cached.
 * */
#include "support/opencl.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *self;
static char folder[256], kept[512]; /* $XDG_CACHE_HOME, and what the backend makes of it */

/* ---- the child --------------------------------------------------------------------------------------------------- */

static int compiled, told;

static void listen(tarn_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    compiled += level == TARN_LOG_INFO && strstr(text, ": compiled ") != NULL;
    told += level == TARN_LOG_WARNING &&
            strstr(text, "compiled kernels cannot be cached, every run compiles them again: ") != NULL;
}

/* How many programs were compiled, or warnings given; 100 when something went wrong. */
static int work(const char *count)
{
    float values[3] = {0};
    tarn_set_log(listen, NULL);
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = tarn_from_i64((const int64_t[]){1, 2, 3}, TARN_SHAPE(3), tarn_device_parse("opencl"));
    bool good =
        tarn_read_f32(tarn_cast(tarn_flip(x, TARN_AXES(0)), TARN_F32), values, 3) && values[0] == 3 && values[2] == 1;
    tarn_scope_close(scope);
    return !good || tarn_failed() ? 100 : strcmp(count, "told") == 0 ? told : compiled;
}

static int counted_by_a_new_process(const char *what)
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl(self, self, what, (char *)NULL);
        _exit(101);
    }
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int compiled_by_a_new_process(void)
{
    return counted_by_a_new_process("compiled");
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

static int files(char *last, size_t size)
{
    DIR *open = opendir(kept);
    int count = 0;
    for (struct dirent *entry; open && (entry = readdir(open)) != NULL;)
        if (entry->d_name[0] != '.') {
            count++;
            snprintf(last, size, "%s/%s", kept, entry->d_name);
        }
    if (open)
        closedir(open);
    return count;
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/tarn-test-cache-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(kept, sizeof(kept), "%s/tarn/opencl", folder);
    return setenv("XDG_CACHE_HOME", folder, 1);
}

static int remove_folder(void **state)
{
    char command[300];
    (void)state;
    snprintf(command, sizeof(command), "rm -r '%s'", folder);
    return system(command);
}

static void a_second_process_compiles_nothing(void **state)
{
    char file[1024];
    NEEDS_OPENCL();
    int first = compiled_by_a_new_process();
    assert_true(first > 0 && first < 10);
    assert_int_equal(files(file, sizeof(file)), first);
    assert_int_equal(compiled_by_a_new_process(), 0);
}

static void a_damaged_file_is_ignored_and_rewritten(void **state)
{
    char file[1024];
    NEEDS_OPENCL();
    for (int damage = 0; damage < 3; damage++) {
        assert_true(files(file, sizeof(file)) > 0);
        FILE *open = fopen(file, "r+b");
        assert_non_null(open);
        struct stat before;
        assert_int_equal(fstat(fileno(open), &before), 0);
        if (damage == 0) /* cut off */
            assert_int_equal(ftruncate(fileno(open), before.st_size / 2), 0);
        else if (damage == 1) /* nothing left */
            assert_int_equal(ftruncate(fileno(open), 0), 0);
        else /* one byte of the binary */
            assert_true(fseek(open, -9, SEEK_END) == 0 && fputc(0x5a, open) == 0x5a &&
                        fseek(open, -10, SEEK_END) == 0 && fputc(0xa5, open) == 0xa5);
        fclose(open);
        assert_int_equal(compiled_by_a_new_process(), 1);
        assert_int_equal(compiled_by_a_new_process(), 0);
    }
}

static void without_a_folder_everything_is_compiled(void **state)
{
    NEEDS_OPENCL();
    setenv("TARN_OPENCL_CACHE", "off", 1);
    int first = compiled_by_a_new_process();
    assert_true(first > 0 && first == compiled_by_a_new_process());
    unsetenv("TARN_OPENCL_CACHE");
    setenv("XDG_CACHE_HOME", "/dev/null", 1); /* a folder that cannot be made */
    setenv("POCL_CACHE_DIR", folder, 1);
    assert_true(compiled_by_a_new_process() == first);
    setenv("XDG_CACHE_HOME", folder, 1);
    unsetenv("POCL_CACHE_DIR");
}

/* Once a process, unless it is wanted so; and a file where the folder should be is one that cannot be made, too. */
static void a_failing_cache_is_logged_once(void **state)
{
    NEEDS_OPENCL();
    assert_int_equal(counted_by_a_new_process("told"), 0);
    setenv("POCL_CACHE_DIR", folder, 1);
    setenv("XDG_CACHE_HOME", "/dev/null", 1);
    assert_int_equal(counted_by_a_new_process("told"), 1);
    setenv("TARN_OPENCL_CACHE", "off", 1);
    assert_int_equal(counted_by_a_new_process("told"), 0);
    unsetenv("TARN_OPENCL_CACHE");
    char other[300], file[400];
    snprintf(other, sizeof(other), "%s/other", folder);
    snprintf(file, sizeof(file), "%s/tarn", other);
    assert_true(mkdir(other, 0777) == 0 && mkdir(file, 0777) == 0);
    snprintf(file, sizeof(file), "%s/tarn/opencl", other);
    FILE *open = fopen(file, "w");
    assert_true(open && fclose(open) == 0);
    setenv("XDG_CACHE_HOME", other, 1);
    assert_int_equal(counted_by_a_new_process("told"), 1);
    setenv("XDG_CACHE_HOME", folder, 1);
    unsetenv("POCL_CACHE_DIR");
}

int main(int count, char **arguments)
{
    if (count > 1)
        return work(arguments[1]);
    self = arguments[0];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_process_compiles_nothing),
        cmocka_unit_test(a_damaged_file_is_ignored_and_rewritten),
        cmocka_unit_test(without_a_folder_everything_is_compiled),
        cmocka_unit_test(a_failing_cache_is_logged_once),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
