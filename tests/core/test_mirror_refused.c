/* test_mirror_refused.c: a backend that cannot be used is rejected with its reason, and the program goes on without
 * it. Each case is a process of its own, because a backend is loaded once. */
#include <sys/wait.h>
#include <unistd.h>

#include "support/check.h"

/* `reason` is in tarn_backend_missing(), `error` in the message of tarn_device_parse(). */
static bool refused_for(const char *reason, const char *error)
{
    if (tarn_device_count("mirror") != 0 || tarn_failed() || !strstr(tarn_backend_missing("mirror"), reason)) {
        print_error("missing: '%s', error: '%s'\n", tarn_backend_missing("mirror"), tarn_error());
        return false;
    }
    tarn_device device = tarn_device_parse("mirror:0");
    bool said =
        tarn_error_code() == TARN_ERROR_DEVICE && strstr(tarn_error(), error) && strstr(tarn_error(), "device_parse");
    if (!said)
        print_error("error: '%s'\n", tarn_error());
    tarn_clear_error();
    return said && tarn_device_equal(device, tarn_device_cpu()) && tarn_item(tarn_scalar(2)) == 2;
}

static int in_child_with(const char *variable, const char *value, const char *reason, const char *error)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv(variable, value, 1);
        _exit(refused_for(reason, error) ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

static int in_child(const char *variable, const char *value, const char *reason)
{
    return in_child_with(variable, value, reason, reason);
}

static void a_backend_may_say_why_it_does_not_work(void **state)
{
    (void)state;
    assert_int_equal(
        in_child("TARN_MIRROR_REFUSE", "no driver of version 9", "does not work here: no driver of version 9"), 0);
}

static void a_backend_with_another_kernel_list_is_refused(void **state)
{
    (void)state;
    assert_int_equal(in_child("TARN_MIRROR_OLD", "1", "another kernel list"), 0);
}

static void a_backend_that_is_not_there_is_missing(void **state)
{
    (void)state;
    assert_int_equal(in_child_with("TARN_BACKEND_PATH", "/nowhere:relative:/tmp/does-not-exist",
                                   "unknown backend 'mirror'", "unknown device 'mirror'"),
                     0);
}

static void a_file_that_is_no_backend_cannot_be_opened(void **state)
{
    (void)state;
    char folder[] = "/tmp/tarn-test-XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/libtarn-mirror.so", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("not a shared object", file);
    fclose(file);
    int status = in_child("TARN_BACKEND_PATH", folder, "cannot be opened");
    remove(path);
    rmdir(folder);
    assert_int_equal(status, 0);
}

/* What a backend has can be listed without a device. */
static void a_backend_without_a_device_shows_its_kernels(void **state)
{
    (void)state;
    assert_int_equal(
        in_child("TARN_MIRROR_DEVICELESS", "nothing is plugged in", "does not work here: nothing is plugged in"), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("TARN_MIRROR_DEVICELESS", "nothing", 1);
        setenv("TARN_MIRROR_DISABLE", "tanh", 1);
        _exit(tarn_op_on(tarn_op_find("mul"), "mirror", true) && !tarn_op_on(tarn_op_find("tanh"), "mirror", false) &&
                      tarn_device_count("mirror") == 0
                  ? 0
                  : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
}

static void a_backend_may_be_hidden(void **state)
{
    (void)state;
    static const char *const lists[] = {"cpu", "cuda,opencl", "mirror2,cpu", "mirro", ",", "MIRROR"};
    char why[64];
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        snprintf(why, sizeof(why), "hidden, since TARN_BACKENDS is '%s'", lists[i]);
        assert_int_equal(in_child("TARN_BACKENDS", lists[i], why), 0);
    }
}

static void a_backend_that_is_named_is_not_hidden(void **state)
{
    (void)state;
    static const char *const lists[] = {"mirror", "cpu,mirror", "mirror,cpu", ""};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            setenv("TARN_BACKENDS", lists[i], 1);
            _exit(tarn_device_count("mirror") == 2 ? 0 : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
    }
}

/* The mirror as libtarn-cuda.so, with GPUs of which the first are of no use. */
static bool passes_over(const char *count, const char *chosen)
{
    char name[32];
    setenv("TARN_MIRROR_GPU", "1", 1);
    setenv("TARN_MIRROR_UNUSABLE", count, 1);
    tarn_device_name(tarn_device_auto(), name, sizeof(name));
    bool good = strcmp(name, chosen) == 0 && !tarn_failed();
    tarn_device found = tarn_device_parse("cuda:0");
    good = good && tarn_device_equal(found, tarn_device_cpu()) && tarn_error_code() == TARN_ERROR_DEVICE &&
           strstr(tarn_error(), "cuda:0 cannot be used: it is of another kind than this build has code for");
    if (!good)
        print_error("auto takes %s, and cuda:0: '%s'\n", name, tarn_error());
    tarn_clear_error();
    return good;
}

static void devices_without_code_are_skipped(void **state)
{
    (void)state;
    char folder[] = "/tmp/tarn-test-XXXXXX", from[512], path[128];
    assert_non_null(mkdtemp(folder));
    assert_non_null(getenv("TARN_BACKEND_PATH"));
    snprintf(from, sizeof(from), "%.*s/libtarn-mirror.so", (int)strcspn(getenv("TARN_BACKEND_PATH"), ":"),
             getenv("TARN_BACKEND_PATH"));
    snprintf(path, sizeof(path), "%s/libtarn-cuda.so", folder);
    assert_int_equal(symlink(from, path), 0);
    int status[2];
    for (int i = 0; i < 2; i++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            setenv("TARN_BACKEND_PATH", folder, 1);
            unsetenv("TARN_BACKENDS");
            _exit(passes_over(i ? "2" : "1", i ? "cpu" : "cuda:1") ? 0 : 1);
        }
        waitpid(child, &status[i], 0);
    }
    remove(path);
    rmdir(folder);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
}

static bool path_by_call(const char *folders, bool found)
{
    return tarn_set_backend_path(folders) && (tarn_device_count("mirror") == 2) == found;
}

static void the_path_can_be_set_by_a_call(void **state)
{
    (void)state;
    const char *folder = getenv("TARN_BACKEND_PATH");
    assert_non_null(folder);
    for (int found = 0; found < 2; found++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0)
            _exit(path_by_call(found ? folder : "/nowhere", found) ? 0 : 1);
        int status = -1;
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
    }
    assert_false(tarn_set_backend_path(NULL));
    assert_error(TARN_ERROR_ARGUMENT, "set_backend_path");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_backend_may_say_why_it_does_not_work),
        cmocka_unit_test(a_backend_with_another_kernel_list_is_refused),
        cmocka_unit_test(a_backend_that_is_not_there_is_missing),
        cmocka_unit_test(a_backend_may_be_hidden),
        cmocka_unit_test(a_backend_that_is_named_is_not_hidden),
        cmocka_unit_test(a_file_that_is_no_backend_cannot_be_opened),
        cmocka_unit_test(the_path_can_be_set_by_a_call),
        cmocka_unit_test(a_backend_without_a_device_shows_its_kernels),
        cmocka_unit_test(devices_without_code_are_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
