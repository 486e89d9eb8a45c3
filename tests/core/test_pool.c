/* test_pool.c: the caching pool: reuse, splitting and merging, statistics, the table by name, and random use without
 * overlap. */
#include <pthread.h>
#include <tarn/profile.h>

#include "support/check.h"

#define CPU tarn_device_cpu()
#define MIB ((int64_t)1 << 20)

static tarn_tensor *bytes_of(int64_t count)
{
    return good(tarn_empty(TARN_SHAPE(count), TARN_U8, CPU));
}

static void empty_the_pool(void)
{
    assert_true(tarn_empty_cache(CPU));
    assert_int_equal(tarn_memory_of(CPU).cached, 0);
}

static void a_freed_block_is_used_again(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 100, 4096, 5000, 100000, 3 * 1048576, 20 * 1048576};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tarn_tensor *x = bytes_of(sizes[i]);
        void *address = tarn_data(x);
        tarn_free(x);
        tarn_counters before = tarn_stats();
        tarn_tensor *again = bytes_of(sizes[i]);
        assert_ptr_equal(tarn_data(again), address);
        assert_int_equal(tarn_stats().system_allocations, before.system_allocations);
        assert_int_equal(tarn_stats().allocations, before.allocations + 1);
        tarn_free(again);
    }
}

static void neighbours_merge_when_they_are_free(void **state)
{
    (void)state;
    empty_the_pool();
    tarn_tensor *part[4];
    for (int i = 0; i < 4; i++)
        part[i] = bytes_of(MIB / 2); /* four of them fill one segment of 2 MiB */
    assert_int_equal(tarn_memory_of(CPU).cached, 0);
    tarn_counters before = tarn_stats();
    static const int order[] = {1, 3, 0, 2};
    for (int i = 0; i < 4; i++)
        tarn_free(part[order[i]]);
    tarn_tensor *whole = bytes_of(2 * MIB);
    assert_int_equal(tarn_stats().system_allocations, before.system_allocations);
    tarn_free(whole);
}

static void small_blocks_are_merged_when_segments_are_freed(void **state)
{
    (void)state;
    empty_the_pool();
    tarn_tensor *small[100];
    for (int i = 0; i < 100; i++)
        small[i] = bytes_of(1 + i * 37);
    for (int i = 0; i < 100; i += 2)
        tarn_free(small[i]);
    assert_true(tarn_empty_cache(CPU));
    assert_true(tarn_memory_of(CPU).cached > 0); /* the segment is still in use */
    for (int i = 1; i < 100; i += 2)
        tarn_free(small[i]);
    empty_the_pool();
}

static void the_figures_add_up(void **state)
{
    (void)state;
    empty_the_pool();
    tarn_memory start = tarn_memory_of(CPU);
    tarn_tensor *a = bytes_of(1000), *b = bytes_of(3 * MIB);
    tarn_memory both = tarn_memory_of(CPU);
    assert_int_equal(both.blocks, start.blocks + 2);
    assert_true(both.used - start.used >= 1000 + 3 * MIB && both.used - start.used <= 1024 + 3 * MIB + 256);
    tarn_stats_reset();
    assert_int_equal(tarn_memory_of(CPU).peak_used, both.used);
    tarn_free(b);
    tarn_memory one = tarn_memory_of(CPU);
    assert_int_equal(one.peak_used, both.used);
    assert_int_equal(one.used + 3 * MIB, both.used);
    assert_true(one.cached >= 3 * MIB);
    tarn_stats_reset();
    assert_int_equal(tarn_memory_of(CPU).peak_used, one.used);
    assert_int_equal(tarn_stats().allocations, 0);
    tarn_free(a);
    empty_the_pool();
}

static void the_table_names_the_largest_first(void **state)
{
    (void)state;
    char table[4096], cut[32];
    tarn_set_name(bytes_of(1000), "small");
    tarn_set_name(bytes_of(3 * MIB), "large");
    tarn_set_name(bytes_of(2 * MIB), "large");
    bytes_of(500);
    size_t length = tarn_memory_table(CPU, table, sizeof(table));
    assert_int_equal(length, strlen(table));
    const char *large = strstr(table, "large"), *small = strstr(table, "small");
    assert_true(large && small && large < small);
    assert_contains(table, "5242880 bytes in      2 blocks  large");
    assert_contains(table, "(no name)");
    assert_int_equal(tarn_memory_table(CPU, cut, sizeof(cut)), length);
    assert_int_equal(strlen(cut), sizeof(cut) - 1);
    assert_memory_equal(cut, table, sizeof(cut) - 1);
    assert_int_equal(tarn_memory_table(CPU, NULL, 0), length);
    for (int i = 0; i < 100; i++) { /* more names than rows */
        char name[100];
        snprintf(name, sizeof(name), "a rather long name that does not fit into a row of the table, %d", i);
        tarn_set_name(bytes_of(256 * (i + 1)), name);
    }
    length = tarn_memory_table(CPU, table, sizeof(table));
    assert_true(length > 0 && length < sizeof(table));
    assert_ok();
}

static void without_the_pool_memory_goes_back_at_once(void **state)
{
    (void)state;
    empty_the_pool();
    tarn_set_pool(false);
    tarn_tensor *x = bytes_of(100), *y = bytes_of(5 * MIB);
    tarn_free(x);
    tarn_free(y);
    assert_int_equal(tarn_memory_of(CPU).cached, 0);
    tarn_set_pool(true);
    tarn_tensor *cached = bytes_of(100);
    tarn_set_pool(false); /* blocks of before are given back, too */
    tarn_free(cached);
    assert_int_equal(tarn_memory_of(CPU).cached, 0);
    tarn_set_pool(true);
}

static void a_large_block_is_not_worn_down(void **state)
{
    (void)state;
    empty_the_pool();
    tarn_tensor *large = bytes_of(256 * MIB);
    void *address = tarn_data(large);
    tarn_free(large);
    tarn_tensor *medium = bytes_of(4 * MIB); /* takes a segment of its own */
    large = bytes_of(256 * MIB);
    assert_ptr_equal(tarn_data(large), address);
    tarn_free(medium);
    tarn_free(large);
    empty_the_pool();
}

/* ---- random use -------------------------------------------------------------------------------------------------- */

enum { SLOTS = 64 };

typedef struct held {
    tarn_tensor *tensor;
    int64_t bytes;
    unsigned char mark;
} held;

static bool intact(const held *h)
{
    const unsigned char *data = tarn_data(h->tensor);
    for (int64_t i = 0; i<h->bytes; i += h->bytes> 5000 ? 97 : 1)
        if (data[i] != h->mark)
            return false;
    return data[h->bytes - 1] == h->mark;
}

/* Each block is filled with its own mark; an overlap would overwrite another's. */
static void *use_at_random(void *argument)
{
    uint64_t seed = *(uint64_t *)argument;
    held slot[SLOTS] = {{0}};
    static const int64_t limits[] = {600, 5000, 300000, 4 * 1048576};
    bool good_so_far = true;
    for (int round = 0; good_so_far && round < 4000; round++) {
        held *h = &slot[random_below(&seed, SLOTS)];
        if (h->tensor) {
            good_so_far = intact(h);
            tarn_free(h->tensor);
            h->tensor = NULL;
            continue;
        }
        *h = (held){.bytes = 1 + random_below(&seed, limits[random_below(&seed, 16) == 0 ? 3 : random_below(&seed, 3)]),
                    .mark = (unsigned char)random_bits(&seed)};
        h->tensor = tarn_empty(TARN_SHAPE(h->bytes), TARN_U8, CPU);
        good_so_far = h->tensor != NULL;
        if (h->tensor)
            memset(tarn_data(h->tensor), h->mark, (size_t)h->bytes);
        if (random_below(&seed, 500) == 0)
            tarn_empty_cache(CPU);
    }
    for (int i = 0; i < SLOTS; i++)
        if (slot[i].tensor) {
            good_so_far = good_so_far && intact(&slot[i]);
            tarn_free(slot[i].tensor);
        }
    return good_so_far ? NULL : argument;
}

static void random_use_never_overlaps(void **state)
{
    (void)state;
    uint64_t seed = test_seed(5);
    assert_null(use_at_random(&seed));
    empty_the_pool();
}

static void random_use_from_several_threads(void **state)
{
    (void)state;
    uint64_t seed[3] = {test_seed(6), 7, 8};
    pthread_t thread[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, use_at_random, &seed[i]), 0);
    for (int i = 0; i < 3; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
    empty_the_pool();
}

static void *rename_often(void *argument)
{
    char name[32];
    for (int i = 0; i < 500; i++) {
        snprintf(name, sizeof(name), "name %d", i);
        tarn_set_name(argument, name);
    }
    return NULL;
}

static void names_change_while_the_table_is_read(void **state)
{
    (void)state;
    tarn_tensor *x = tarn_keep(bytes_of(1000));
    char table[1024];
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, rename_often, x), 0);
    for (int i = 0; i < 500; i++)
        assert_true(tarn_memory_table(CPU, table, sizeof(table)) > 0);
    pthread_join(thread, NULL);
    tarn_memory_table(CPU, table, sizeof(table));
    assert_contains(table, "name 499");
    tarn_free(x);
}

static void too_much_memory_is_an_error_that_names_the_holders(void **state)
{
    (void)state;
    tarn_set_name(bytes_of(5000), "a holder");
    assert_null(tarn_zeros(TARN_SHAPE((int64_t)1 << 60), TARN_U8, CPU));
    assert_contains(tarn_error(), "a holder");
    assert_error(TARN_ERROR_MEMORY, "zeros: out of memory on cpu: 1152921504606846976 bytes");
    assert_null(tarn_arange(0, 8e15, 1, TARN_F64, CPU));
    assert_error(TARN_ERROR_MEMORY, "arange: out of memory");
    assert_values(tarn_add(vector(1), vector(2)), 0, 3);
}

/* More names than rows: the last row is all the rest, and rows add up to what is held. */
static void the_table_of_who_holds_what_adds_up(void **state)
{
    (void)state;
    char table[4096], name[16];
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof(name), "tensor-%d", i);
        assert_true(tarn_set_name(tarn_zeros(TARN_SHAPE(64 * (i + 1)), TARN_F32, CPU), name));
    }
    tarn_memory_table(CPU, table, sizeof(table));
    assert_contains(table, "(all others)");
    long long sum = 0, bytes;
    for (const char *line = table; *line; line = strchr(line, '\n') + 1)
        sum += sscanf(line, "%lld bytes", &bytes) == 1 ? bytes : 0;
    assert_int_equal(sum, tarn_memory_of(CPU).used);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(the_table_of_who_holds_what_adds_up),
        in_scope(a_freed_block_is_used_again),
        in_scope(neighbours_merge_when_they_are_free),
        in_scope(small_blocks_are_merged_when_segments_are_freed),
        in_scope(the_figures_add_up),
        in_scope(the_table_names_the_largest_first),
        in_scope(without_the_pool_memory_goes_back_at_once),
        in_scope(a_large_block_is_not_worn_down),
        in_scope(random_use_never_overlaps),
        in_scope(random_use_from_several_threads),
        in_scope(names_change_while_the_table_is_read),
        in_scope(too_much_memory_is_an_error_that_names_the_holders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
