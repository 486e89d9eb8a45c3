/* test_blas.c: matmul by OpenBLAS with limited address space: fewer work buffers give bitwise identical results, none
 * gives an error. Each case runs in a process of its own, since a process loads the library once. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <tarn/ops.h>
#include <unistd.h>

#include "support/check.h"
#include "tarn_features.h"

enum { N = 192, CALLERS = 6, ROUNDS = 8 };

/* Address space in use, in bytes. */
static rlim_t address_space(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static tarn_tensor *matmul(void)
{
    tarn_seed(7);
    tarn_shape shape = TARN_SHAPE(N, N);
    tarn_tensor *a = tarn_normal(shape, 0, 1, TARN_F64, tarn_device_cpu()),
                *b = tarn_normal(shape, 0, 1, TARN_F64, tarn_device_cpu());
    return tarn_matmul(a, b);
}

static double expected[N * N];
static tarn_tensor *left, *right;

static void *multiply(void *bad)
{
    tarn_scope *scope = tarn_scope_open();
    for (int i = 0; i < ROUNDS; i++) {
        tarn_tensor *c = tarn_matmul(left, right);
        if (!c || (expected[0] != 0 && memcmp(tarn_data(c), expected, sizeof(expected)) != 0))
            *(bool *)bad = true;
        else if (expected[0] == 0)
            memcpy(expected, tarn_data(c), sizeof(expected));
    }
    tarn_scope_close(scope);
    return NULL;
}

/* All callers at once, each on its own thread. 0 where all results are bitwise identical. */
static int many_callers(void)
{
    pthread_t threads[CALLERS];
    bool bad[CALLERS] = {false}, any = false, first = false;
    left = tarn_ones(TARN_SHAPE(N, N), TARN_F64, tarn_device_cpu());
    right = matmul();
    if (!right)
        return 2;
    multiply(&first);
    int made = 0; /* the limit may leave no memory for the stack of one more */
    while (made < CALLERS && pthread_create(&threads[made], NULL, multiply, &bad[made]) == 0)
        made++;
    for (int i = 0; i < made; i++) {
        pthread_join(threads[i], NULL);
        any = any || bad[i];
    }
    return first || any || made == 0;
}

static int one_matmul(void)
{
    bool good = matmul() != NULL;
    return good ? 0 : tarn_error_code() == TARN_ERROR_MEMORY && strstr(tarn_error(), "OpenBLAS") ? 10 : 11;
}

/* Exit status of a child limited to this many MiB of address space more than it uses; 0: no limit. */
static int in_child(int (*work)(void), long mebibytes)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        struct rlimit limit;
        limit.rlim_cur = limit.rlim_max = address_space() + ((rlim_t)mebibytes << 20);
        if (mebibytes > 0 && setrlimit(RLIMIT_AS, &limit) != 0)
            _exit(20);
        tarn_scope *scope = tarn_scope_open();
        int found = work();
        tarn_scope_close(scope);
        _exit(found);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static void skip_without_limits(void)
{
    if (!TARN__HAVE_OPENBLAS || TARN__SANITIZE[0] || address_space() == 0 || getenv("TARN_TEST_LAUNCHER"))
        skip();
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
}

static void too_little_memory_is_an_error(void **state)
{
    (void)state;
    skip_without_limits();
    if (in_child(one_matmul, 0) != 0)
        fail_msg("matmul fails without a limit");
    int errors = 0;
    for (long mebibytes = 24; mebibytes <= 600; mebibytes += 48) {
        int status = in_child(one_matmul, mebibytes);
        errors += status == 10;
        if (status != 0 && status != 10)
            fail_msg("within %ld MiB: status %d", mebibytes, status);
    }
    assert_int_equal(in_child(one_matmul, 600), 0);
    print_message("%d limits were met with an error\n", errors);
}

static void callers_share_the_buffers_there_are(void **state)
{
    (void)state;
    skip_without_limits();
    assert_true(tarn_set_threads(1));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(in_child(many_callers, 0), 0);
        assert_int_equal(in_child(many_callers, 400), 0);
        assert_int_equal(in_child(many_callers, 900), 0);
    }
    assert_true(tarn_set_threads(3));
    assert_int_equal(in_child(many_callers, 500), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {in_scope(too_little_memory_is_an_error),
                                       in_scope(callers_share_the_buffers_there_are)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
