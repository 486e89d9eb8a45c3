/* test_bad_input.c: invalid arguments to every function of data.h: an error that names it. test_readers.c has invalid
 * files. */
#include "support/files.h"

static tarn_dataset *dataset;
static tarn_loader *loader;
static int failures;

static void refused(const char *name, const char *expression, int line)
{
    char start[64];
    snprintf(start, sizeof(start), "tarn: %s: ", name);
    if (!tarn_failed() || strncmp(tarn_error(), start, strlen(start)) != 0) {
        print_error("line %d: %s: expected an error of %s, found: %s\n", line, expression, name, tarn_error());
        failures++;
    }
    tarn_clear_error();
}

#define REFUSE(name, ...) \
    do { \
        (void)(__VA_ARGS__); \
        refused(#name, #__VA_ARGS__, __LINE__); \
    } while (0)

static bool get(int64_t index, void *const *memory, void *ctx)
{
    (void)index, (void)memory, (void)ctx;
    return true;
}

static const tarn_field field = {"x", TARN_F32, {1, {2}}};
static const char *const names[] = {"x", "y", "z"}, *const no_names[] = {NULL, "y"};
static float values[6];
static const tarn_array array = {values, {2, {3, 2}}, TARN_F32};

static int open_all(void **state)
{
    failures = 0;
    if (open_test(state) != 0)
        return -1;
    dataset = tarn_dataset_from_arrays(names, &array, 1);
    loader = tarn_loader_new(dataset, &(tarn_loader_options){.batch_size = 2});
    return loader ? 0 : -1;
}

static int close_all(void **state)
{
    tarn_loader_free(loader);
    tarn_dataset_free(dataset);
    int closed = close_test(state);
    return failures || closed ? -1 : 0;
}

static void datasets(void **state)
{
    (void)state;
    const tarn_field nameless = {NULL, TARN_F32, {1, {2}}}, odd = {"x", (tarn_dtype)77, {1, {2}}},
                     negative = {"x", TARN_F32, {1, {-2}}},
                     huge = {"x", TARN_F64, {2, {(int64_t)1 << 40, (int64_t)1 << 40}}},
                     rank = {"x", TARN_F32, {-1, {0}}};
    REFUSE(dataset_new, tarn_dataset_new(NULL, 1, 1, get, NULL, NULL));
    REFUSE(dataset_new, tarn_dataset_new(&field, 9, 1, get, NULL, NULL));
    REFUSE(dataset_new, tarn_dataset_new(&field, 1, -1, get, NULL, NULL));
    REFUSE(dataset_new, tarn_dataset_new(&field, 1, 1, NULL, NULL, NULL));
    REFUSE(dataset_new, tarn_dataset_new(&nameless, 1, 1, get, NULL, NULL));
    REFUSE(dataset_new, tarn_dataset_new(&odd, 1, 1, get, NULL, NULL));
    REFUSE(dataset_new, tarn_dataset_new(&negative, 1, 1, get, NULL, NULL));
    REFUSE(dataset_new, tarn_dataset_new(&huge, 1, 1, get, NULL, NULL));
    REFUSE(dataset_new, tarn_dataset_new(&rank, 1, 1, get, NULL, NULL));
    const tarn_array empty = {NULL, {1, {3}}, TARN_F32}, scalar = {values, {0, {0}}, TARN_F32},
                     odd_array = {values, {1, {3}}, (tarn_dtype)-1};
    REFUSE(dataset_from_arrays, tarn_dataset_from_arrays(NULL, &array, 1));
    REFUSE(dataset_from_arrays, tarn_dataset_from_arrays(names, NULL, 1));
    REFUSE(dataset_from_arrays, tarn_dataset_from_arrays(names, &array, 0));
    REFUSE(dataset_from_arrays, tarn_dataset_from_arrays(names, &array, 9));
    REFUSE(dataset_from_arrays, tarn_dataset_from_arrays(no_names, &array, 1));
    REFUSE(dataset_from_arrays, tarn_dataset_from_arrays(names, &empty, 1));
    REFUSE(dataset_from_arrays, tarn_dataset_from_arrays(names, &scalar, 1));
    REFUSE(dataset_from_arrays, tarn_dataset_from_arrays(names, &odd_array, 1));
    tarn_field found;
    float row[2];
    REFUSE(dataset_count, tarn_dataset_count(NULL));
    REFUSE(dataset_field_count, tarn_dataset_field_count(NULL));
    REFUSE(dataset_field, tarn_dataset_field(NULL, 0, &found));
    REFUSE(dataset_field, tarn_dataset_field(dataset, 1, &found));
    REFUSE(dataset_field, tarn_dataset_field(dataset, -1, &found));
    REFUSE(dataset_field, tarn_dataset_field(dataset, 0, NULL));
    REFUSE(dataset_read, tarn_dataset_read(NULL, 0, (void *const[]){row}));
    REFUSE(dataset_read, tarn_dataset_read(dataset, 3, (void *const[]){row}));
    REFUSE(dataset_read, tarn_dataset_read(dataset, -1, (void *const[]){row}));
    REFUSE(dataset_read, tarn_dataset_read(dataset, 0, NULL));
    REFUSE(dataset_read, tarn_dataset_read(dataset, 0, (void *const[]){NULL}));
    tarn_dataset_free(NULL);
    assert_ok();
}

static void parts(void **state)
{
    (void)state;
    tarn_dataset *a = dataset, *b = dataset;
    REFUSE(dataset_subset, tarn_dataset_subset(NULL, (const int64_t[]){0}, 1));
    REFUSE(dataset_subset, tarn_dataset_subset(dataset, NULL, 1));
    REFUSE(dataset_subset, tarn_dataset_subset(dataset, (const int64_t[]){0}, -1));
    REFUSE(dataset_subset, tarn_dataset_subset(dataset, (const int64_t[]){3}, 1));
    REFUSE(dataset_subset, tarn_dataset_subset(dataset, (const int64_t[]){-1}, 1));
    REFUSE(dataset_split, tarn_dataset_split(NULL, 1, 0, &a, &b));
    assert_true(!a && !b);
    REFUSE(dataset_split, tarn_dataset_split(dataset, 4, 0, &a, &b));
    REFUSE(dataset_split, tarn_dataset_split(dataset, -1, 0, &a, &b));
    REFUSE(dataset_split, tarn_dataset_split(dataset, 1, 0, NULL, &b));
    REFUSE(dataset_split, tarn_dataset_split(dataset, 1, 0, &a, NULL));
    tarn_random_state random = {0};
    REFUSE(random_below, tarn_random_below(NULL, 3));
    REFUSE(random_below, tarn_random_below(&random, 0));
    REFUSE(random_unit, tarn_random_unit(NULL));
}

static void files(void **state)
{
    (void)state;
    tarn_array loaded;
    const char *nowhere = "/nowhere/file", *none = NULL;
    REFUSE(dataset_idx, tarn_dataset_idx(NULL, NULL));
    REFUSE(dataset_idx, tarn_dataset_idx(nowhere, NULL));
    REFUSE(dataset_mnist, tarn_dataset_mnist(NULL, true));
    REFUSE(dataset_mnist, tarn_dataset_mnist(nowhere, true));
    REFUSE(dataset_cifar10, tarn_dataset_cifar10(NULL, 1));
    REFUSE(dataset_cifar10, tarn_dataset_cifar10(&nowhere, 0));
    REFUSE(dataset_cifar10, tarn_dataset_cifar10(&nowhere, 1));
    REFUSE(dataset_cifar10, tarn_dataset_cifar10(&none, 1));
    REFUSE(dataset_cifar10_folder, tarn_dataset_cifar10_folder(NULL, true));
    REFUSE(dataset_cifar10_folder, tarn_dataset_cifar10_folder(nowhere, false));
    REFUSE(dataset_csv, tarn_dataset_csv_sized(NULL, NULL, 0));
    REFUSE(dataset_csv, tarn_dataset_csv(nowhere, NULL));
    const char *path = write_text("good.csv", "1,2\n");
    REFUSE(dataset_csv, tarn_dataset_csv(path, &(tarn_csv_options){.header = (tarn_csv_header)5}));
    REFUSE(dataset_csv, tarn_dataset_csv(path, &(tarn_csv_options){.delimiter = '"'}));
    REFUSE(dataset_csv, tarn_dataset_csv(path, &(tarn_csv_options){.delimiter = '1'}));
    REFUSE(dataset_csv, tarn_dataset_csv(path, &(tarn_csv_options){.dtype = TARN_I64}));
    REFUSE(dataset_csv, tarn_dataset_csv(path, &(tarn_csv_options){.label = "2"}));
    REFUSE(dataset_csv, tarn_dataset_csv(path, &(tarn_csv_options){.label = ""}));
    REFUSE(dataset_npy, tarn_dataset_npy(NULL, &nowhere, 1));
    REFUSE(dataset_npy, tarn_dataset_npy(names, NULL, 1));
    REFUSE(dataset_npy, tarn_dataset_npy(names, &nowhere, 0));
    REFUSE(dataset_npy, tarn_dataset_npy(names, &nowhere, 1));
    REFUSE(npy_load, tarn_npy_load(NULL, &loaded));
    REFUSE(npy_load, tarn_npy_load(nowhere, &loaded));
    REFUSE(npy_load, tarn_npy_load(nowhere, NULL));
}

#define REFUSE_OPTIONS(...) REFUSE(loader_new, tarn_loader_new(dataset, &(tarn_loader_options){__VA_ARGS__}))

static void loaders(void **state)
{
    (void)state;
    const float one[] = {1, 1}, zero[] = {0, 0}, nan[] = {NAN, 1};
    tarn_dataset *nobody = tarn_dataset_subset(dataset, NULL, 0);
    REFUSE(loader_new,
           tarn_loader_new_sized(NULL, &(tarn_loader_options){.batch_size = 1}, sizeof(tarn_loader_options)));
    REFUSE(loader_new, tarn_loader_new(dataset, NULL));
    REFUSE(loader_new, tarn_loader_new(nobody, &(tarn_loader_options){.batch_size = 1}));
    REFUSE_OPTIONS(.batch_size = 0);
    REFUSE_OPTIONS(.batch_size = -1);
    REFUSE_OPTIONS(.batch_size = 4, .drop_last = true);
    REFUSE_OPTIONS(.batch_size = 1, .workers = -1);
    REFUSE_OPTIONS(.batch_size = 1, .workers = 65);
    REFUSE_OPTIONS(.batch_size = 1, .prefetch = -1);
    REFUSE_OPTIONS(.batch_size = 1, .prefetch = 65);
    REFUSE_OPTIONS(.batch_size = 1, .device = {6, 0});
    REFUSE_OPTIONS(.batch_size = 1, .crop_padding = -1);
    REFUSE_OPTIONS(.batch_size = 1, .crop_padding = 1); /* no image */
    REFUSE_OPTIONS(.batch_size = 1, .flip = true);
    REFUSE_OPTIONS(.batch_size = 1, .augment_ctx = values);
    REFUSE_OPTIONS(.batch_size = 1, .mean = one, .channels = 2); /* without .normalize */
    REFUSE_OPTIONS(.batch_size = 1, .scale = 2);
    REFUSE_OPTIONS(.batch_size = 1, .normalize = true, .mean = one);
    REFUSE_OPTIONS(.batch_size = 1, .normalize = true, .mean = one, .channels = 3);
    REFUSE_OPTIONS(.batch_size = 1, .normalize = true, .mean = one, .channels = -1);
    REFUSE_OPTIONS(.batch_size = 1, .normalize = true, .channels = 2);
    REFUSE_OPTIONS(.batch_size = 1, .normalize = true, .std = zero, .channels = 2);
    REFUSE_OPTIONS(.batch_size = 1, .normalize = true, .mean = nan, .channels = 2);
    REFUSE_OPTIONS(.batch_size = 1, .normalize = true, .scale = INFINITY);
    tarn_dataset_free(nobody);
    tarn_tensor *batch;
    tarn_loader_state place;
    REFUSE(loader_next, tarn_loader_next(NULL, &batch));
    REFUSE(loader_next, tarn_loader_next(loader, NULL));
    REFUSE(loader_batches, tarn_loader_batches(NULL));
    REFUSE(loader_tell, tarn_loader_tell(NULL, &place));
    REFUSE(loader_tell, tarn_loader_tell(loader, NULL));
    REFUSE(loader_seek, tarn_loader_seek(NULL, (tarn_loader_state){0, 0}));
    REFUSE(loader_seek, tarn_loader_seek(loader, (tarn_loader_state){-1, 0}));
    REFUSE(loader_seek, tarn_loader_seek(loader, (tarn_loader_state){0, -1}));
    REFUSE(loader_seek, tarn_loader_seek(loader, (tarn_loader_state){0, 3}));
    tarn_loader_free(NULL);
    assert_true(tarn_loader_next(loader, &batch)); /* and all of it left the loader as it was */
}

#define with_all(test) cmocka_unit_test_setup_teardown(test, open_all, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {with_all(datasets), with_all(parts), with_all(files), with_all(loaders)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
