/* test_mirror_memory.c: a device out of memory: the error names the largest users, the cache is freed first, the
 * program goes on. */
#include <tarn/graph.h>
#include <tarn/profile.h>

#include "support/check.h"

#define MIB ((int64_t)1 << 20)

static tarn_device mirror(void)
{
    return tarn_device_parse("mirror:0");
}

static tarn_tensor *take(int64_t bytes)
{
    return tarn_empty(TARN_SHAPE(bytes), TARN_U8, mirror());
}

static void out_of_memory_names_the_holders(void **state)
{
    (void)state;
    tarn_set_name(good(take(9 * MIB)), "the model");
    tarn_set_name(good(take(3 * MIB)), "activations");
    assert_null(take(6 * MIB));
    const char *model = strstr(tarn_error(), "the model"), *activations = strstr(tarn_error(), "activations");
    assert_true(model && activations && model < activations);
    assert_contains(tarn_error(), "empty: out of memory on mirror:0: 6291456 bytes requested");
    assert_error(TARN_ERROR_MEMORY, "of 16777216 free");
    good(take(1 * MIB)); /* a smaller one fits */
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(4), TARN_F32, mirror()));
    assert_values(tarn_add(x, x), 0, 2, 2, 2, 2);
}

static void an_operation_that_runs_out_names_itself(void **state)
{
    (void)state;
    assert_true(tarn_empty_cache(mirror()));
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(7 * MIB / 4), TARN_F32, mirror()));
    tarn_tensor *y = good(tarn_mul(x, tarn_scalar(2)));
    assert_null(tarn_add(x, y));
    assert_error(TARN_ERROR_MEMORY, "add: out of memory on mirror:0");
    tarn_requires_grad(x, true);
    tarn_free(y);
    y = good(tarn_tanh(x));
    assert_false(tarn_backward_from(y, x, NULL));
    assert_error(TARN_ERROR_MEMORY, "out of memory on mirror:0");
    assert_null(tarn_grad(x));
    assert_true(tarn_item_at(y, TARN_SHAPE(3)) > 0.76);
}

static void the_cache_is_given_back_before_giving_up(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        tarn_tensor *many[7];
        for (int i = 0; i < 7; i++)
            many[i] = good(take(2 * MIB));
        for (int i = 0; i < 7; i++)
            tarn_free(many[i]);
        assert_true(tarn_memory_of(mirror()).cached >= 14 * MIB);
        tarn_free(good(take(15 * MIB))); /* contiguous */
    }
    assert_int_equal(tarn_memory_of(mirror()).used, 0);
}

static void the_other_device_has_its_own(void **state)
{
    (void)state;
    good(take(14 * MIB));
    tarn_device other = tarn_device_parse("mirror:1");
    good(tarn_empty(TARN_SHAPE(14 * MIB), TARN_U8, other));
    assert_null(tarn_empty(TARN_SHAPE(4 * MIB), TARN_U8, other));
    assert_error(TARN_ERROR_MEMORY, "out of memory on mirror:1");
}

static void running_out_again_and_again_leaks_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *x = tarn_requires_grad(tarn_ones(TARN_SHAPE(MIB / 4), TARN_F32, mirror()), true);
        for (int k = 0; x && k < 40; k++)
            x = tarn_mul(x, x);
        assert_null(x);
        tarn_scope_close(scope);
        assert_error(TARN_ERROR_MEMORY, "mul: out of memory on mirror:0");
        assert_int_equal(tarn_memory_of(mirror()).used, 0);
    }
}

/* ---- captures ---------------------------------------------------------------------------------------------------- */

/* Allocates and frees one tensor of *ctx bytes. */
static bool use_memory(void *ctx)
{
    tarn_tensor *x = take(*(int64_t *)ctx);
    if (x)
        tarn_free(x);
    return x != NULL;
}

static void a_capture_takes_the_cache_before_giving_up(void **state)
{
    (void)state;
    int64_t bytes = 11 * MIB;
    for (int i = 0; i < 3; i++)
        tarn_free(good(take((9 + i) * MIB))); /* cached, and of no use to the graph */
    tarn_graph *graph = tarn_graph_capture(mirror(), use_memory, &bytes);
    assert_ok();
    assert_null(take(5 * MIB)); /* its memory is reserved */
    assert_error(TARN_ERROR_MEMORY, "out of memory on mirror:0");
    tarn_graph_free(graph);
    tarn_free(good(take(5 * MIB)));
    bytes = 15 * MIB; /* with the values of the graph too much */
    for (int i = 0; i < 3; i++) {
        assert_null(tarn_graph_capture(mirror(), use_memory, &bytes));
        assert_error(TARN_ERROR_MEMORY, "out of memory on mirror:0");
        assert_int_equal(tarn_memory_of(mirror()).used, 0);
        tarn_free(good(take(15 * MIB)));
    }
}

int main(void)
{
    setenv("TARN_MIRROR_MEMORY", "16777216", 1);
    const struct CMUnitTest tests[] = {
        in_scope(out_of_memory_names_the_holders),           in_scope(an_operation_that_runs_out_names_itself),
        in_scope(the_cache_is_given_back_before_giving_up),  in_scope(the_other_device_has_its_own),
        in_scope(running_out_again_and_again_leaks_nothing), in_scope(a_capture_takes_the_cache_before_giving_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
