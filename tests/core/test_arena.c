/* test_arena.c: the memory of captured graphs: reused inside a capture, by nothing else while the arena lives, and
 * returned to the device's pool at its end. */
#include <pthread.h>
#include <tarn/profile.h>

#include "core/memory/pool.h"
#include "support/check.h"

#define CPU tarn_device_cpu()
#define MIB ((int64_t)1 << 20)

static tarn_tensor *bytes_of(int64_t count)
{
    return good(tarn_empty(TARN_SHAPE(count), TARN_U8, CPU));
}

static tarn__arena *entered(void)
{
    tarn__arena *arena = tarn__arena_new(CPU);
    assert_true(arena && tarn__arena_enter(arena));
    return arena;
}

static int64_t system_allocations(void)
{
    return tarn_stats().system_allocations;
}

static void empty_the_pool(void)
{
    assert_true(tarn_empty_cache(CPU));
    assert_int_equal(tarn_memory_of(CPU).cached, 0);
}

/* ---- reuse ------------------------------------------------------------------------------------------------------- */

static void a_block_freed_in_a_capture_serves_it_again(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 4096, 5000, 100000, 3 * MIB, 20 * MIB};
    tarn__arena *arena = entered();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        tarn_tensor *x = bytes_of(sizes[i]);
        void *address = tarn_data(x);
        tarn_free(x);
        x = bytes_of(sizes[i]);
        assert_ptr_equal(tarn_data(x), address);
        tarn_free(x);
    }
    tarn__arena_leave(arena);
    assert_true(tarn__arena_bytes(arena) <= 26 * MIB);
    tarn__arena_free(arena);
}

/* A step of several sizes, twice as large while it runs as what it keeps. */
static void run_a_step(void)
{
    tarn_scope *scope = tarn_scope_open();
    for (int i = 1; i <= 8; i++) {
        tarn_tensor *x = bytes_of(i * 3 * MIB), *y = bytes_of(i * 2 * MIB + 1000);
        tarn_free(x);
        tarn_free(i % 2 ? y : NULL);
    }
    tarn_scope_close(scope);
}

static void a_captured_step_takes_the_memory_of_an_eager_one(void **state)
{
    (void)state;
    empty_the_pool();
    tarn_stats_reset();
    int64_t before = tarn_memory_of(CPU).used;
    run_a_step();
    run_a_step();
    tarn__pool_peaks eager = tarn__pool_peaks_of(CPU);
    int64_t allocations = system_allocations();
    tarn__arena *arena = entered();
    run_a_step();
    tarn__arena_leave(arena);
    tarn__pool_peaks captured = tarn__pool_peaks_of(CPU);
    assert_int_equal(system_allocations(), allocations);
    assert_int_equal(captured.used, eager.used);
    assert_int_equal(captured.tensors, eager.tensors);
    assert_int_equal(captured.reserved, eager.reserved);
    assert_int_equal(tarn_memory_kinds_of(CPU).peak, eager.used); /* each arena counts once */
    tarn_stats_reset();
    assert_int_equal(tarn_memory_of(CPU).peak_used, eager.used); /* reserved by the graph */
    tarn__arena_free(arena);
    run_a_step(); /* with the memory that came back */
    assert_int_equal(system_allocations(), 0);
    tarn_stats_reset();
    assert_int_equal(tarn_memory_of(CPU).peak_used, before);
    empty_the_pool();
}

/* Without caching, and when there is no memory for more. */
static void an_arena_keeps_what_it_had(void **state)
{
    (void)state;
    for (int pool = 0; pool < 2; pool++) {
        empty_the_pool();
        tarn_set_pool(pool);
        tarn__arena *arena = entered();
        tarn_tensor *x = bytes_of(5 * MIB), *y = bytes_of(5 * MIB);
        void *address = tarn_data(x);
        tarn_free(x);
        assert_null(tarn_empty(TARN_SHAPE((int64_t)1 << 60), TARN_U8, CPU));
        tarn_clear_error();
        int64_t before = system_allocations();
        x = bytes_of(5 * MIB);
        assert_ptr_equal(tarn_data(x), address);
        assert_int_equal(system_allocations(), before);
        tarn_free(x);
        tarn_free(y);
        tarn__arena_leave(arena);
        tarn__arena_free(arena);
        assert_int_equal(tarn_memory_of(CPU).cached, pool ? 12 * MIB : 0); /* two segments */
        tarn_set_pool(true);
    }
    empty_the_pool();
}

/* ---- tensors of before and after --------------------------------------------------------------------------------- */

static void a_block_of_before_is_retained_with_its_contents(void **state)
{
    (void)state;
    tarn_tensor *x = bytes_of(5 * MIB);
    unsigned char *data = tarn_data(x);
    memset(data, 7, 5 * MIB);
    int64_t used = tarn_memory_of(CPU).used;
    tarn__arena *arena = entered();
    tarn_free(x);
    assert_int_equal(tarn_memory_of(CPU).used, used);
    for (int i = 0; i < 2; i++) { /* inside the capture, and after it */
        tarn_tensor *y = bytes_of(5 * MIB);
        memset(tarn_data(y), 9, 5 * MIB);
        if (i == 0)
            tarn__arena_leave(arena);
    }
    for (int64_t i = 0; i < 5 * MIB; i++)
        assert_int_equal(data[i], 7);
    char table[4096]; /* adds up to the bytes in use */
    tarn_memory_table(CPU, table, sizeof(table));
    long long sum = 0, bytes;
    for (const char *line = table; *line; line = strchr(line, '\n') + 1)
        sum += sscanf(line, "%lld bytes", &bytes) == 1 ? bytes : 0;
    assert_int_equal(sum, tarn_memory_of(CPU).used);
    used = tarn_memory_of(CPU).used;
    tarn__arena_free(arena);
    assert_int_equal(tarn_memory_of(CPU).used, used - 5 * MIB);
}

static void an_output_outlives_its_arena(void **state)
{
    (void)state;
    int64_t used = tarn_memory_of(CPU).used;
    tarn__arena *arena = entered();
    tarn_tensor *x = bytes_of(5 * MIB), *y = bytes_of(5 * MIB), *small = bytes_of(100);
    memset(tarn_data(x), 7, 5 * MIB);
    tarn__arena_leave(arena);
    tarn_free(y); /* stays reserved */
    assert_true(tarn__arena_bytes(arena) >= 10 * MIB);
    void *address = tarn_data(x);
    tarn__arena_free(arena);
    assert_int_equal(tarn_memory_of(CPU).used, used + 5 * MIB + 256);
    for (int i = 0; i < 4; i++)
        memset(tarn_data(bytes_of(5 * MIB)), 9, 5 * MIB);
    assert_ptr_equal(tarn_data(x), address);
    for (int64_t i = 0; i < 5 * MIB; i++)
        assert_int_equal(((unsigned char *)address)[i], 7);
    tarn_free(x);
    tarn_free(small);
}

/* An output of one graph is freed while another is captured, which may use it; then the first graph is freed. */
static void an_output_of_another_graph_is_retained_too(void **state)
{
    (void)state;
    empty_the_pool();
    tarn__arena *first = entered();
    tarn_tensor *x = bytes_of(5 * MIB);
    void *address = tarn_data(x);
    tarn__arena_leave(first);
    tarn__arena *second = entered();
    tarn_free(x);
    tarn__arena_leave(second);
    tarn__arena_free(first);
    tarn_tensor *y = bytes_of(5 * MIB);
    assert_ptr_not_equal(tarn_data(y), address);
    tarn__arena_free(second);
    tarn_tensor *z = bytes_of(5 * MIB);
    assert_ptr_equal(tarn_data(z), address);
    tarn_free(y);
    tarn_free(z);
    empty_the_pool();
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void *allocate(void *address)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = tarn_empty(TARN_SHAPE(5 * MIB), TARN_U8, CPU);
    bool is_other = x && tarn_data(x) != address;
    tarn_scope_close(scope);
    return is_other ? NULL : address;
}

/* Returns its argument if it could enter. */
static void *try_to_enter(void *argument)
{
    tarn__arena *arena = tarn__arena_new(CPU);
    bool has_entered = tarn__arena_enter(arena);
    if (has_entered)
        tarn__arena_leave(arena);
    tarn__arena_free(arena);
    return has_entered ? argument : NULL;
}

static void *in_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, run, argument), 0);
    pthread_join(thread, &result);
    return result;
}

static void another_thread_is_not_part_of_the_capture(void **state)
{
    (void)state;
    tarn__arena *arena = entered();
    tarn_tensor *x = bytes_of(5 * MIB);
    void *address = tarn_data(x);
    tarn_free(x);
    int64_t reserved = tarn__arena_bytes(arena);
    assert_null(in_thread(allocate, address));
    assert_int_equal(tarn__arena_bytes(arena), reserved);
    assert_null(in_thread(try_to_enter, address)); /* one capture at a time */
    x = bytes_of(5 * MIB);
    assert_ptr_equal(tarn_data(x), address);
    tarn__arena_leave(arena);
    assert_non_null(in_thread(try_to_enter, address));
    tarn__arena_free(arena);
}

/* ---- random use -------------------------------------------------------------------------------------------------- */

enum { TENSORS = 40, GRAPHS = 3, RANGES = 400 };

typedef struct range {
    const char *begin, *end;
} range;

/* A tensor that is alive; `graph`: the one that it was allocated for, -1: none. */
typedef struct held {
    tarn_tensor *tensor;
    range memory;
    int graph;
} held;

/* A graph that is alive, with all memory that its kernels use. */
typedef struct graph {
    tarn__arena *arena;
    range used[RANGES];
    int count;
} graph;

static held tensors[TENSORS];
static graph graphs[GRAPHS];

static bool overlap(range a, range b)
{
    return a.begin < b.end && b.begin < a.end;
}

static void assert_apart_from_graphs(range memory, int but)
{
    for (int g = 0; g < GRAPHS; g++)
        for (int i = 0; g != but && graphs[g].arena && i < graphs[g].count; i++)
            assert_false(overlap(memory, graphs[g].used[i]));
}

static void add_range(int g, range memory)
{
    assert_true(graphs[g].count < RANGES);
    graphs[g].used[graphs[g].count++] = memory;
}

static void take_one(uint64_t *seed, held *to, int g)
{
    static const int64_t limits[] = {600, 5000, 300000, 4 * MIB};
    int64_t bytes = 1 + random_below(seed, limits[random_below(seed, 4)]);
    *to = (held){.tensor = bytes_of(bytes), .graph = g};
    to->memory = (range){tarn_data(to->tensor), (const char *)tarn_data(to->tensor) + bytes};
    for (int i = 0; i < TENSORS; i++)
        assert_true(&tensors[i] == to || !tensors[i].tensor || !overlap(to->memory, tensors[i].memory));
    assert_apart_from_graphs(to->memory, g);
    if (g >= 0)
        add_range(g, to->memory);
}

/* Allocates a tensor or frees one. What a capture frees may have been used by it before. */
static void use_one(uint64_t *seed, int g)
{
    held *h = &tensors[random_below(seed, TENSORS)];
    if (!h->tensor) {
        take_one(seed, h, g);
        return;
    }
    if (g >= 0 && h->graph != g)
        add_range(g, h->memory);
    tarn_free(h->tensor);
    h->tensor = NULL;
}

static void capture_or_free(uint64_t *seed)
{
    int g = (int)random_below(seed, GRAPHS);
    if (graphs[g].arena) {
        tarn__arena_free(graphs[g].arena);
        graphs[g].arena = NULL;
        for (int i = 0; i < TENSORS; i++)
            tensors[i].graph = tensors[i].graph == g ? -1 : tensors[i].graph;
        return;
    }
    graphs[g].count = 0;
    graphs[g].arena = entered();
    for (int i = 0; i < 100; i++)
        use_one(seed, g);
    tarn__arena_leave(graphs[g].arena);
}

static void memory_of_a_graph_is_its_own(void **state)
{
    (void)state;
    empty_the_pool();
    uint64_t seed = test_seed(11);
    int64_t before = tarn_memory_of(CPU).used;
    for (int round = 0; round < 3000; round++) {
        use_one(&seed, -1);
        if (random_below(&seed, 40) == 0)
            capture_or_free(&seed);
        if (random_below(&seed, 200) == 0)
            tarn_empty_cache(CPU);
    }
    for (int g = 0; g < GRAPHS; g++)
        tarn__arena_free(graphs[g].arena);
    for (int i = 0; i < TENSORS; i++)
        if (tensors[i].tensor)
            tarn_free(tensors[i].tensor);
    assert_int_equal(tarn_memory_of(CPU).used, before);
    empty_the_pool();
    tarn_stats_reset();
    assert_int_equal(tarn_memory_of(CPU).peak_used, before);
    assert_int_equal(tarn__pool_peaks_of(CPU).reserved, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_block_freed_in_a_capture_serves_it_again),
        in_scope(a_captured_step_takes_the_memory_of_an_eager_one),
        in_scope(an_arena_keeps_what_it_had),
        in_scope(a_block_of_before_is_retained_with_its_contents),
        in_scope(an_output_outlives_its_arena),
        in_scope(an_output_of_another_graph_is_retained_too),
        in_scope(another_thread_is_not_part_of_the_capture),
        in_scope(memory_of_a_graph_is_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
