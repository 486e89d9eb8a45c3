/* test_dataset.c: custom datasets, arrays in memory, subsets and splits, and their lifetimes. */
#include "support/check.h"

static int released;

static void note_release(void *ctx)
{
    (void)ctx;
    released++;
}

static bool squares(int64_t index, void *const *memory, void *ctx)
{
    int64_t offset = *(const int64_t *)ctx;
    ((float *)memory[0])[0] = (float)index;
    ((float *)memory[0])[1] = (float)(index * index);
    *(int64_t *)memory[1] = index + offset;
    return index != 13 || tarn_set_error(TARN_ERROR_IO, "thirteen is not to be had");
}

static int64_t offset = 100;
static const tarn_field fields[] = {{"x", TARN_F32, {1, {2}}}, {"label", TARN_I64, {0, {0}}}};

static tarn_dataset *squares_of(int64_t count)
{
    tarn_dataset *dataset = tarn_dataset_new(fields, 2, count, squares, &offset, note_release);
    assert_ok();
    assert_non_null(dataset);
    return dataset;
}

static int64_t label_at(const tarn_dataset *dataset, int64_t index)
{
    float x[2];
    int64_t label = -1;
    assert_true(tarn_dataset_read(dataset, index, (void *const[]){x, &label}));
    return label;
}

static void a_custom_dataset_is_queried_and_read(void **state)
{
    (void)state;
    released = 0;
    tarn_dataset *dataset = squares_of(20);
    tarn_field field;
    float x[2];
    int64_t label;
    assert_int_equal(tarn_dataset_count(dataset), 20);
    assert_int_equal(tarn_dataset_field_count(dataset), 2);
    assert_true(tarn_dataset_field(dataset, 0, &field));
    assert_string_equal(field.name, "x");
    assert_ptr_not_equal(field.name, fields[0].name); /* copied */
    assert_true(field.dtype == TARN_F32 && field.shape.rank == 1 && field.shape.size[0] == 2);
    assert_true(tarn_dataset_read(dataset, 7, (void *const[]){x, &label}));
    assert_true(x[0] == 7 && x[1] == 49 && label == 107);
    assert_false(tarn_dataset_read(dataset, 13, (void *const[]){x, &label}));
    assert_error(TARN_ERROR_IO, "dataset_read: thirteen is not to be had");
    tarn_dataset_free(dataset);
    assert_int_equal(released, 1);
}

static void a_context_is_released_on_failure_too(void **state)
{
    (void)state;
    released = 0;
    assert_null(tarn_dataset_new(fields, 0, 1, squares, &offset, note_release));
    assert_error(TARN_ERROR_ARGUMENT, "dataset_new: 0 fields");
    const tarn_field twice[] = {fields[0], fields[0]};
    assert_null(tarn_dataset_new(twice, 2, 1, squares, &offset, note_release));
    assert_error(TARN_ERROR_ARGUMENT, "fields 0 and 1 are both called 'x'");
    const tarn_field deep = {"deep", TARN_F32, {8, {1, 1, 1, 1, 1, 1, 1, 1}}};
    assert_null(tarn_dataset_new(&deep, 1, 1, squares, &offset, note_release));
    assert_error(TARN_ERROR_SHAPE, "dataset_new: field 'deep' has 8 axes; a field has at most 7");
    assert_int_equal(released, 3);
}

static void subsets_retain_their_dataset(void **state)
{
    (void)state;
    released = 0;
    tarn_dataset *whole = squares_of(20);
    tarn_dataset *some = tarn_dataset_subset(whole, (const int64_t[]){5, 5, 19, 0}, 4);
    tarn_dataset *fewer = tarn_dataset_subset(some, (const int64_t[]){2}, 1);
    assert_ok();
    tarn_dataset_free(whole);
    tarn_dataset_free(some);
    assert_int_equal(released, 0);
    assert_int_equal(label_at(fewer, 0), 119);
    tarn_dataset_free(fewer);
    assert_int_equal(released, 1);
}

static void a_split_is_complete_and_depends_on_the_seed_alone(void **state)
{
    (void)state;
    tarn_dataset *whole = squares_of(12), *first[3], *second[3];
    const uint64_t seeds[3] = {1, 1, 2};
    int seen[12] = {0}, differ = 0;
    for (int i = 0; i < 3; i++)
        assert_true(tarn_dataset_split(whole, 9, seeds[i], &first[i], &second[i]));
    assert_int_equal(tarn_dataset_count(first[0]), 9);
    assert_int_equal(tarn_dataset_count(second[0]), 3);
    for (int64_t i = 0; i < 9; i++) {
        assert_int_equal(label_at(first[0], i), label_at(first[1], i));
        differ += label_at(first[0], i) != label_at(first[2], i);
        seen[label_at(first[0], i) - 100]++;
    }
    for (int64_t i = 0; i < 3; i++)
        seen[label_at(second[0], i) - 100]++;
    for (int i = 0; i < 12; i++)
        assert_int_equal(seen[i], 1);
    assert_true(differ > 0);
    for (int i = 0; i < 3; i++) {
        tarn_dataset_free(first[i]);
        tarn_dataset_free(second[i]);
    }
    tarn_dataset_free(whole);
}

static void arrays_are_copied(void **state)
{
    (void)state;
    float x[6] = {1, 2, 3, 4, 5, 6}, row[2];
    uint8_t y[3] = {7, 8, 9}, label;
    const tarn_array arrays[] = {{x, TARN_SHAPE(3, 2), TARN_F32}, {y, TARN_SHAPE(3), TARN_U8}};
    tarn_dataset *dataset = tarn_dataset_from_arrays((const char *const[]){"x", "y"}, arrays, 2);
    assert_ok();
    memset(x, 0, sizeof(x));
    assert_int_equal(tarn_dataset_count(dataset), 3);
    assert_true(tarn_dataset_read(dataset, 2, (void *const[]){row, &label}));
    assert_true(row[0] == 5 && row[1] == 6 && label == 9);
    tarn_dataset_free(dataset);
    const tarn_array uneven[] = {{x, TARN_SHAPE(3, 2), TARN_F32}, {y, TARN_SHAPE(2), TARN_U8}};
    assert_null(tarn_dataset_from_arrays((const char *const[]){"x", "y"}, uneven, 2));
    assert_error(TARN_ERROR_SHAPE, "dataset_from_arrays: 'x' has 3 samples, but 'y' has 2");
}

/* The expected numbers were computed by another Philox. They are part of the interface: a run resumed with a newer
 * library sees the same order. */
static void random_numbers_are_what_they_always_were(void **state)
{
    (void)state;
    tarn_random_state random = {.key = 42};
    int64_t counts[7] = {0};
    for (int i = 0; i < 70000; i++)
        counts[tarn_random_below(&random, 7)]++;
    for (int i = 0; i < 7; i++)
        assert_true(counts[i] > 9600 && counts[i] < 10400);
    for (int i = 0; i < 1000; i++) {
        double u = tarn_random_unit(&random);
        assert_true(u >= 0 && u < 1);
    }
    tarn_random_state again = {.key = 42};
    assert_int_equal(tarn_random_below(&again, 1000000), 75859);
    assert_int_equal(tarn_random_below(&again, INT64_MAX), 6033254488940945703);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(a_custom_dataset_is_queried_and_read),
        in_scope(a_context_is_released_on_failure_too),
        in_scope(subsets_retain_their_dataset),
        in_scope(a_split_is_complete_and_depends_on_the_seed_alone),
        in_scope(arrays_are_copied),
        in_scope(random_numbers_are_what_they_always_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
