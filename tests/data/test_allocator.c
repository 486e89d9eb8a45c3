/* test_allocator.c: out of memory at every allocation in turn, in readers and in loaders with and without threads: an
 * error of the right kind or none, no leak. */
#include <pthread.h>

#include "base/memory.h"
#include "support/files.h"
#include "tarn_features.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t calls, fail_at = -1, failed, held;
static bool from_then_on;

static void *count_alloc(size_t size, size_t alignment, void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&lock);
    bool fails = fail_at >= 0 && (calls == fail_at || (from_then_on && calls > fail_at));
    calls++;
    failed += fails;
    void *memory = NULL;
    if (!fails && posix_memalign(&memory, alignment < sizeof(void *) ? sizeof(void *) : alignment, size) != 0)
        memory = NULL;
    held += memory ? (int64_t)size : 0;
    pthread_mutex_unlock(&lock);
    return memory;
}

static void count_release(void *memory, size_t size, void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&lock);
    held -= (int64_t)size;
    pthread_mutex_unlock(&lock);
    free(memory);
}

static char csv[512], idx[512], npy[512];

static void read_files(void)
{
    tarn_dataset_free(tarn_dataset_csv(csv, &(tarn_csv_options){.label = "c"}));
    tarn_dataset_free(tarn_dataset_idx(idx, NULL));
    const char *paths[] = {npy, npy};
    tarn_dataset_free(tarn_dataset_npy((const char *const[]){"a", "b"}, paths, 2));
}

static void load(int workers)
{
    float values[40] = {0};
    const float mean[] = {1};
    const tarn_array array = {values, TARN_SHAPE(10, 1, 2, 2), TARN_F32};
    tarn_dataset *whole = tarn_dataset_from_arrays((const char *const[]){"x"}, &array, 1), *most = NULL, *rest = NULL;
    tarn_dataset_split(whole, 7, 1, &most, &rest);
    tarn_loader *loader = tarn_loader_new(most, &(tarn_loader_options){.batch_size = 2,
                                                                       .shuffle = true,
                                                                       .workers = workers,
                                                                       .flip = true,
                                                                       .normalize = true,
                                                                       .mean = mean,
                                                                       .channels = 1});
    tarn_tensor *batch[1];
    for (int i = 0; i < 6; i++)
        tarn_loader_next(loader, batch);
    tarn_loader_free(loader);
    tarn_dataset_free(rest);
    tarn_dataset_free(most);
    tarn_dataset_free(whole);
}

static void load_here(void)
{
    load(0);
}

static void load_with_threads(void)
{
    load(2);
}

static void run_failing(void (*run)(void))
{
    for (int64_t n = 0, reached = 1; reached; n++) {
        tarn_scope *scope = tarn_scope_open();
        calls = failed = 0;
        fail_at = n;
        run();
        fail_at = -1;
        tarn_code code = tarn_error_code();
        if (code != TARN_OK && code != TARN_ERROR_MEMORY)
            print_error("allocation %lld: %s\n", (long long)n, tarn_error());
        assert_true(code == TARN_OK || code == TARN_ERROR_MEMORY);
        reached = failed;
        tarn_clear_error();
        tarn_scope_close(scope);
        assert_true(tarn_empty_cache(tarn_device_cpu()));
        assert_int_equal(held, 0);
        assert_true(reached || n > 8);
    }
}

static void every_allocation_fails_in_turn(void **state)
{
    (void)state;
    static bytes b;
    put(&b, "\0\0\x08\x01\0\0\0\x02\x07\x08", 10);
    snprintf(idx, sizeof(idx), "%s",
             TARN__HAVE_ZLIB ? write_gzip("a.idx", b.data, b.count) : write_file("a.idx", b.data, b.count));
    snprintf(csv, sizeof(csv), "%s", write_text("a.csv", "a,b,c\n1,2,3\n4,5,6\n7,8,9\n1,2,3\n4,5,6\n"));
    const char *head = "{'descr': '<i4', 'fortran_order': True, 'shape': (1, 2), }";
    b.count = 0;
    put(&b, "\x93NUMPY\x01\0", 8);
    put(&b, (const unsigned char[]){(unsigned char)strlen(head), 0}, 2);
    put_text(&b, head);
    put(&b, "\1\0\0\0\2\0\0\0", 8);
    snprintf(npy, sizeof(npy), "%s", write_file("a.npy", b.data, b.count));
    assert_true(tarn_set_allocator(&(tarn_allocator){count_alloc, count_release, NULL}));
    for (int all = 0; all < 2; all++) {
        from_then_on = all;
        run_failing(read_files);
        run_failing(load_here);
        run_failing(load_with_threads);
    }
    assert_true(tarn_set_allocator(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_fails_in_turn)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
