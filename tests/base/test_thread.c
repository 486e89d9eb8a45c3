/* test_thread.c: parallel_for runs each chunk exactly once: for many sizes and thread counts, nested, from several
 * threads, after a fork. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os/thread.h"
#include "support/check.h"

enum { MOST = 5000 };

typedef struct visits {
    int64_t n, grain;
    _Atomic int bad; /* chunks that are not the ones promised */
    _Atomic int seen[MOST];
} visits;

static void visit(int64_t begin, int64_t end, void *ctx)
{
    visits *v = ctx;
    int64_t expected = begin + v->grain < v->n ? begin + v->grain : v->n;
    if (begin % v->grain != 0 || end != expected || begin < 0 || begin >= end)
        atomic_fetch_add(&v->bad, 1);
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add_explicit(&v->seen[i], 1, memory_order_relaxed);
}

static bool covers(visits *v, int64_t n, int64_t grain)
{
    v->n = n;
    v->grain = grain;
    atomic_store(&v->bad, 0);
    for (int i = 0; i < MOST; i++)
        atomic_store_explicit(&v->seen[i], 0, memory_order_relaxed);
    tarn__parallel_for(n, grain, visit, v);
    bool good = atomic_load(&v->bad) == 0;
    for (int64_t i = 0; i < MOST; i++)
        good = good && atomic_load_explicit(&v->seen[i], memory_order_relaxed) == (i < n ? 1 : 0);
    return good;
}

static void each_index_is_visited_once(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 4, 7, 16};
    static const int64_t sizes[] = {0, 1, 2, 3, 63, 64, 65, 1000, MOST}, grains[] = {1, 2, 7, 64, 999, 5000, 1 << 20};
    static visits v;
    for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
        assert_true(tarn_set_threads(threads[t]));
        assert_int_equal(tarn_threads(), threads[t]);
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            for (size_t k = 0; k < sizeof(grains) / sizeof(grains[0]); k++)
                assert_true(covers(&v, sizes[i], grains[k]));
    }
    assert_true(covers(&v, -5, 1));
}

static void many_short_jobs_in_a_row(void **state)
{
    (void)state;
    static visits v;
    assert_true(tarn_set_threads(4));
    for (int round = 0; round < 300; round++) {
        assert_true(covers(&v, 1 + round % 17, 1));
        if (round % 100 == 99)
            usleep(2000); /* long enough for the workers to fall asleep */
    }
}

static void outer(int64_t begin, int64_t end, void *ctx)
{
    visits *inner = ctx;
    for (int64_t i = begin; i < end; i++)
        if (!covers(&inner[i], 100 + i, 3))
            atomic_fetch_add(&inner[i].bad, 1);
}

static void nested_calls_run_on_their_caller(void **state)
{
    (void)state;
    static visits inner[6];
    assert_true(tarn_set_threads(4));
    tarn__parallel_for(6, 1, outer, inner);
    for (int i = 0; i < 6; i++)
        assert_int_equal(atomic_load(&inner[i].bad), 0);
}

static void *user(void *argument)
{
    visits *v = argument;
    for (int round = 0; round < 100; round++)
        if (!covers(v, 37 + round, 1 + round % 5))
            return v;
    return NULL;
}

static void several_threads_at_once(void **state)
{
    (void)state;
    static visits v[4];
    pthread_t thread[4];
    assert_true(tarn_set_threads(3));
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, user, &v[i]), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
}

#if defined(__SANITIZE_THREAD__)
#define FORKS 0 /* the thread sanitizer does not let a child start threads */
#else
#define FORKS 1
#endif

static void a_fork_can_go_on(void **state)
{
    (void)state;
    static visits v;
    assert_true(tarn_set_threads(4));
    assert_true(covers(&v, 1000, 10));
    if (!FORKS || getenv("TARN_TEST_EMULATED")) /* qemu 7.2's own threads do not survive a fork */
        skip();
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(covers(&v, 1000, 10) && covers(&v, MOST, 1) && covers(&v, 777, 7) ? 0 : 1);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(covers(&v, 1000, 10));
}

static void the_number_of_threads_has_bounds(void **state)
{
    (void)state;
    assert_true(tarn_set_threads(5));
    assert_false(tarn_set_threads(-1));
    assert_error(TARN_ERROR_ARGUMENT, "set_threads: the count is -1");
    assert_false(tarn_set_threads(257));
    assert_error(TARN_ERROR_ARGUMENT, "set_threads: the count is 257");
    assert_int_equal(tarn_threads(), 5);
    assert_true(tarn_set_threads(256));
    assert_int_equal(tarn_threads(), 256);
    assert_true(tarn_set_threads(0));
    assert_true(tarn_threads() >= 1 && tarn_threads() <= 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_index_is_visited_once),
        cmocka_unit_test(many_short_jobs_in_a_row),
        cmocka_unit_test(nested_calls_run_on_their_caller),
        cmocka_unit_test(several_threads_at_once),
        cmocka_unit_test(a_fork_can_go_on),
        cmocka_unit_test(the_number_of_threads_has_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
