/* test_array.c: growing arrays: content, capacities, zeroed spare elements, limits, and failed allocations, which leave
 * an array as it was. */
#include <limits.h>

#include "base/buffer.h"
#include "base/memory.h"
#include "support/check.h"

/* An allocator that fails after `left` more calls; -1: never. */
static int left = -1;

static void *limited_alloc(size_t bytes, size_t alignment, void *ctx)
{
    (void)alignment, (void)ctx;
    if (left == 0)
        return NULL;
    left -= left > 0;
    return malloc(bytes);
}

static void limited_release(void *memory, size_t bytes, void *ctx)
{
    (void)bytes, (void)ctx;
    free(memory);
}

static int use_limited_allocator(void **state)
{
    (void)state;
    left = -1;
    return !tarn_set_allocator(&(tarn_allocator){limited_alloc, limited_release, NULL});
}

static int restore_allocator(void **state)
{
    (void)state;
    tarn_clear_error();
    return !tarn_set_allocator(NULL); /* fails if bytes leaked */
}

static void a_list_doubles_and_keeps_its_content(void **state)
{
    (void)state;
    int *list = NULL, count = 0, capacity = 0;
    for (; count < 1000; count++) {
        int before = capacity;
        assert_true(tarn__list_reserve(&list, count, &capacity, sizeof(*list)));
        if (capacity != before)
            assert_int_equal(capacity, before ? 2 * before : 32);
        assert_int_equal(list[count], 0);
        list[count] = count;
    }
    for (int i = 0; i < count; i++)
        assert_int_equal(list[i], i);
    tarn__release(list, sizeof(*list) * (size_t)capacity);
}

static void the_first_capacity_can_be_chosen(void **state)
{
    (void)state;
    char *list = NULL;
    int capacity = 0;
    assert_true(tarn__list_reserve_min(&list, 0, &capacity, 1, 2));
    assert_int_equal(capacity, 2);
    assert_true(tarn__list_reserve_min(&list, 2, &capacity, 1, 2));
    assert_int_equal(capacity, 4);
    tarn__release(list, (size_t)capacity);
}

static void an_array_grows_by_more_than_one_element(void **state)
{
    (void)state;
    double *array = NULL;
    size_t capacity = 0;
    assert_true(tarn__array_reserve(&array, 0, &capacity, 3, sizeof(*array), 8));
    assert_int_equal(capacity, 8);
    for (size_t i = 0; i < 8; i++)
        array[i] = (double)i;
    assert_true(tarn__array_reserve(&array, 8, &capacity, 1, sizeof(*array), 8));
    assert_int_equal(capacity, 16);
    assert_true(tarn__array_reserve(&array, 8, &capacity, 1000, sizeof(*array), 8));
    assert_int_equal(capacity, 1008);
    for (size_t i = 0; i < capacity; i++)
        assert_true(array[i] == (i < 8 ? (double)i : 0.0));
    tarn__release(array, sizeof(*array) * capacity);
}

static void a_failed_allocation_leaves_the_array_as_it_was(void **state)
{
    (void)state;
    int *list = NULL, capacity = 0;
    tarn__buffer buffer = {0};
    assert_true(tarn__list_reserve_min(&list, 0, &capacity, sizeof(*list), 1));
    assert_true(tarn__buffer_add(&buffer, "sixteen bytes...", 16, 1));
    list[0] = 7;
    left = 0;
    int *before = list;
    assert_false(tarn__list_reserve_min(&list, 1, &capacity, sizeof(*list), 1));
    assert_int_equal(tarn_error_code(), TARN_ERROR_MEMORY);
    tarn_clear_error();
    assert_ptr_equal(list, before);
    assert_int_equal(capacity, 1);
    assert_int_equal(list[0], 7);
    assert_false(tarn__buffer_add(&buffer, "!", 1, 1));
    assert_int_equal(tarn_error_code(), TARN_ERROR_MEMORY);
    assert_int_equal(buffer.count, 16);
    assert_memory_equal(buffer.data, "sixteen bytes...", 16);
    left = -1;
    tarn__release(list, sizeof(*list) * (size_t)capacity);
    tarn__buffer_free(&buffer, 1);
}

static void lengths_that_overflow_are_errors(void **state)
{
    (void)state;
    char *list = NULL;
    int capacity = INT_MAX;
    size_t size = 0;
    assert_false(tarn__list_reserve(&list, INT_MAX, &capacity, 1));
    assert_int_equal(tarn_error_code(), TARN_ERROR_MEMORY);
    assert_int_equal(capacity, INT_MAX);
    tarn_clear_error();
    assert_false(tarn__array_reserve(&list, 0, &size, SIZE_MAX / 2, 8, 0));
    assert_int_equal(tarn_error_code(), TARN_ERROR_MEMORY);
    assert_null(list);
    assert_int_equal(size, 0);
}

#define WITH_LIMIT(test) cmocka_unit_test_setup_teardown(test, use_limited_allocator, restore_allocator)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_LIMIT(a_list_doubles_and_keeps_its_content),    WITH_LIMIT(the_first_capacity_can_be_chosen),
        WITH_LIMIT(an_array_grows_by_more_than_one_element), WITH_LIMIT(a_failed_allocation_leaves_the_array_as_it_was),
        WITH_LIMIT(lengths_that_overflow_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
