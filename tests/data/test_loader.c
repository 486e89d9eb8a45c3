/* test_loader.c: batches: bitwise identical with any number of workers, resumed runs, devices, errors in a worker, and
 * an early end. */
#include <stdatomic.h>
#include <tarn/profile.h>
#include <unistd.h>

#include "data/prefetch.h"
#include "support/check.h"

#define CPU tarn_device_cpu()
#define COUNT 53
#define PIXELS 27 /* [3, 3, 3] */

static _Atomic int64_t fail_at = -1;
static _Atomic int reads, naps;

/* Sample i: pixels that depend on it, and its number as the label. Now and then a thread takes longer than the
 * others. */
static bool get(int64_t index, void *const *memory, void *ctx)
{
    (void)ctx;
    uint8_t *pixel = memory[0];
    for (int k = 0; k < PIXELS; k++)
        pixel[k] = (uint8_t)(index * 7 + k * 3 + 1);
    *(int64_t *)memory[1] = index;
    atomic_fetch_add(&reads, 1);
    if (atomic_load(&naps) && index % 11 == 3)
        usleep(2000);
    return index != atomic_load(&fail_at) || tarn_set_error(TARN_ERROR_IO, "the disk is gone");
}

static tarn_dataset *make_dataset(void)
{
    const tarn_field fields[] = {{"image", TARN_U8, TARN_SHAPE(3, 3, 3)}, {"label", TARN_I64, TARN_SCALAR}};
    tarn_dataset *dataset = tarn_dataset_new(fields, 2, COUNT, get, NULL, NULL);
    assert_ok();
    return dataset;
}

static bool brighten(int64_t index, tarn_random_state *random, void *const *memory, void *ctx)
{
    (void)index;
    uint8_t *pixel = memory[0];
    for (int k = 0; k < PIXELS; k++)
        pixel[k] = (uint8_t)(pixel[k] + tarn_random_below(random, *(int *)ctx));
    return true;
}

static int brightness = 5;

static tarn_loader_options everything(int workers)
{
    static const float mean[] = {0.5f, 0.25f, 0.125f}, std[] = {0.5f, 2, 3};
    return (tarn_loader_options){.batch_size = 8,
                                 .shuffle = true,
                                 .seed = 7,
                                 .workers = workers,
                                 .crop_padding = 1,
                                 .flip = true,
                                 .augment = brighten,
                                 .augment_ctx = &brightness,
                                 .normalize = true,
                                 .mean = mean,
                                 .std = std,
                                 .channels = 3};
}

static tarn_loader *open_loader(const tarn_loader_options *options)
{
    tarn_dataset *dataset = make_dataset();
    tarn_loader *loader = tarn_loader_new(dataset, options);
    tarn_dataset_free(dataset); /* the loader keeps it */
    assert_ok();
    assert_non_null(loader);
    return loader;
}

/* Mixes the next batch into a number; false at the end of an epoch. */
static bool mix_batch(tarn_loader *loader, uint64_t *hash, int64_t *samples)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *batch[2];
    bool more = tarn_loader_next(loader, batch);
    assert_ok();
    if (more) {
        unsigned char values[16 * PIXELS * sizeof(float)];
        int64_t labels[16];
        size_t bytes = (size_t)tarn_bytes(batch[0]);
        assert_true(bytes <= sizeof(values) && tarn_read(batch[0], values, bytes) &&
                    tarn_read(batch[1], labels, (size_t)tarn_bytes(batch[1])));
        for (size_t i = 0; i < bytes; i++)
            *hash = (*hash ^ values[i]) * 0x100000001b3u;
        for (int64_t i = 0; i < tarn_size(batch[0], 0); i++)
            *hash = (*hash ^ (uint64_t)labels[i]) * 0x100000001b3u;
        *samples += tarn_size(batch[0], 0);
    }
    tarn_scope_close(scope);
    return more;
}

static uint64_t hash_epochs(tarn_loader *loader, int epochs)
{
    uint64_t hash = 1;
    int64_t samples = 0;
    for (int epoch = 0; epoch < epochs; epoch++)
        while (mix_batch(loader, &hash, &samples))
            ;
    assert_int_equal(samples, COUNT * epochs);
    return hash;
}

static uint64_t hash_of(tarn_loader_options options, int epochs)
{
    tarn_loader *loader = open_loader(&options);
    uint64_t hash = hash_epochs(loader, epochs);
    tarn_loader_free(loader);
    return hash;
}

/* ---- what comes out ---------------------------------------------------------------------------------------------- */

static void batches_come_in_order_and_an_epoch_ends(void **state)
{
    (void)state;
    tarn_loader *loader = open_loader(&(tarn_loader_options){.batch_size = 20});
    tarn_tensor *batch[2];
    assert_int_equal(tarn_loader_batches(loader), 3);
    for (int epoch = 0; epoch < 2; epoch++) {
        for (int64_t b = 0; b < 3; b++) {
            assert_true(tarn_loader_next(loader, batch));
            assert_shape(batch[0], b < 2 ? 20 : 13, 3, 3, 3);
            assert_true(tarn_dtype_of(batch[0]) == TARN_U8 && tarn_dtype_of(batch[1]) == TARN_I64);
            assert_true(tarn_item_at(batch[1], TARN_SHAPE(0)) == 20 * b &&
                        tarn_item_at(batch[1], TARN_SHAPE(12)) == 20 * b + 12);
            assert_true(tarn_item_at(batch[0], TARN_SHAPE(5, 1, 2, 0)) ==
                        (20 * b + 5) * 7 % 256 + 15 * 3 + 1 - ((20 * b + 5) * 7 % 256 + 46 > 255 ? 256 : 0));
        }
        assert_false(tarn_loader_next(loader, batch));
        assert_ok();
        assert_null(batch[0]);
    }
    tarn_loader_free(loader);
    loader = open_loader(&(tarn_loader_options){.batch_size = 20, .drop_last = true});
    assert_int_equal(tarn_loader_batches(loader), 2);
    tarn_loader_free(loader);
}

/* The expected order was computed by another Philox. */
static void the_order_is_a_function_of_seed_and_epoch(void **state)
{
    (void)state;
    static const int64_t expected[2][10] = {{3, 4, 0, 2, 9, 1, 7, 8, 5, 6}, {2, 9, 8, 3, 7, 1, 4, 6, 0, 5}};
    tarn_dataset *whole = make_dataset(),
                 *ten = tarn_dataset_subset(whole, (const int64_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 10);
    tarn_loader *loader = tarn_loader_new(ten, &(tarn_loader_options){.batch_size = 10, .shuffle = true, .seed = 7});
    tarn_dataset_free(whole);
    tarn_dataset_free(ten);
    for (int epoch = 0; epoch < 2; epoch++) {
        tarn_tensor *batch[2];
        int64_t labels[10];
        assert_true(tarn_loader_next(loader, batch) && tarn_read(batch[1], labels, sizeof(labels)));
        assert_memory_equal(labels, expected[epoch], sizeof(labels));
        assert_false(tarn_loader_next(loader, batch));
    }
    tarn_loader_free(loader);
}

static void batches_are_bitwise_identical_with_any_workers(void **state)
{
    (void)state;
    uint64_t alone = hash_of(everything(0), 3);
    static const int workers[] = {0, 1, 2, 4, 4, 7}, prefetch[] = {5, 1, 0, 3, 64, 2};
    for (size_t i = 0; i < sizeof(workers) / sizeof(workers[0]); i++) {
        tarn_loader_options options = everything(workers[i]);
        options.prefetch = prefetch[i];
        atomic_store(&naps, i % 2);
        assert_true(hash_of(options, 3) == alone);
    }
    atomic_store(&naps, 0);
    tarn_loader_options other = everything(2);
    other.seed = 8;
    assert_true(hash_of(other, 3) != alone);
    other = everything(0);
    other.shuffle = false; /* what is random in samples differs from epoch to epoch */
    tarn_loader *loader = open_loader(&other);
    assert_true(hash_epochs(loader, 1) != hash_epochs(loader, 1));
    tarn_loader_free(loader);
}

static void a_loader_resumes_where_another_stopped(void **state)
{
    (void)state;
    for (int workers = 0; workers <= 2; workers += 2) {
        uint64_t whole = 1;
        int64_t samples = 0;
        tarn_loader_options options = everything(workers);
        for (int64_t stop = 0; stop < 16; stop++) { /* calls, ends of epochs included */
            uint64_t hash = 1;
            tarn_loader_state place;
            tarn_loader *first = open_loader(&options), *second = open_loader(&options);
            for (int64_t i = 0; i < stop; i++)
                mix_batch(first, &hash, &samples);
            assert_true(tarn_loader_tell(first, &place));
            assert_true(tarn_loader_seek(second, place));
            tarn_loader_free(first);
            for (int64_t i = stop; i < 16; i++)
                mix_batch(second, &hash, &samples);
            tarn_loader_free(second);
            if (stop == 0)
                whole = hash;
            assert_true(hash == whole);
        }
    }
    tarn_loader *loader = open_loader(&(tarn_loader_options){.batch_size = 8});
    assert_false(tarn_loader_seek(loader, (tarn_loader_state){0, 8}));
    assert_error(TARN_ERROR_ARGUMENT, "loader_seek: epoch 0, batch 8 is out of range; an epoch has 7 batches");
    tarn_loader_free(loader);
}

/* ---- what happens to samples ------------------------------------------------------------------------------------- */

static void values_are_normalized_by_channel(void **state)
{
    (void)state;
    const uint8_t pixels[4] = {0, 255, 51, 102};
    const float mean[] = {0.5f, 0.1f}, std[] = {0.5f, 0.2f};
    tarn_dataset *dataset = tarn_dataset_from_arrays((const char *const[]){"x"},
                                                     &(tarn_array){(void *)pixels, TARN_SHAPE(1, 2, 2), TARN_U8}, 1);
    tarn_loader *loader = tarn_loader_new(
        dataset, &(tarn_loader_options){.batch_size = 1, .normalize = true, .mean = mean, .std = std, .channels = 2});
    tarn_tensor *x;
    assert_true(tarn_loader_next(loader, &x));
    assert_true(tarn_dtype_of(x) == TARN_F32);
    assert_values(x, 1e-7, -1, 1, 0.5, 1.5);
    tarn_loader_free(loader);
    loader = tarn_loader_new(dataset, &(tarn_loader_options){.batch_size = 1, .normalize = true});
    assert_true(tarn_loader_next(loader, &x));
    assert_values(x, 1e-7, 0, 1, 0.2, 0.4);
    tarn_loader_free(loader);
    loader = tarn_loader_new(dataset, &(tarn_loader_options){.batch_size = 1, .normalize = true, .scale = 1});
    assert_true(tarn_loader_next(loader, &x));
    assert_values(x, 0, 0, 255, 51, 102);
    tarn_loader_free(loader);
    tarn_dataset_free(dataset);
}

/* Every image must be a shifted and maybe mirrored one, and all nine shifts and both ways must come. */
static void crops_and_flips_are_all_there_and_nothing_else(void **state)
{
    (void)state;
    enum { N = 400 };
    uint8_t images[N][9];
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 9; k++)
            images[i][k] = (uint8_t)(k + 1);
    tarn_dataset *dataset =
        tarn_dataset_from_arrays((const char *const[]){"x"}, &(tarn_array){images, TARN_SHAPE(N, 1, 3, 3), TARN_U8}, 1);
    tarn_loader *loader =
        tarn_loader_new(dataset, &(tarn_loader_options){.batch_size = N, .crop_padding = 1, .flip = true, .seed = 3});
    tarn_tensor *x;
    int seen[3][3][2] = {0};
    assert_true(tarn_loader_next(loader, &x) && tarn_read(x, images, sizeof(images)));
    for (int i = 0; i < N; i++) {
        bool found = false;
        for (int code = 0; code < 18 && !found; code++) {
            int down = code % 3 - 1, right = code / 3 % 3 - 1, mirror = code / 9;
            found = true;
            for (int y = 0; y < 3; y++)
                for (int column = 0; column < 3; column++) {
                    int from_y = y - down, from_x = (mirror ? 2 - column : column) - right;
                    int value = from_y < 0 || from_y > 2 || from_x < 0 || from_x > 2 ? 0 : from_y * 3 + from_x + 1;
                    found = found && images[i][y * 3 + column] == value;
                }
            seen[down + 1][right + 1][mirror] += found;
        }
        assert_true(found);
    }
    for (int code = 0; code < 18; code++)
        assert_true(((int *)seen)[code] > 5);
    tarn_loader_free(loader);
    tarn_dataset_free(dataset);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static void a_batch_costs_one_upload_for_each_field(void **state)
{
    (void)state;
    uint64_t expected = hash_of(everything(0), 2);
    for (int workers = 0; workers <= 3; workers++)
        for (int prefetch = 1; prefetch <= 3; prefetch++) {
            tarn_loader_options options = everything(workers);
            options.device = tarn_device_parse("mirror:1");
            options.prefetch = prefetch;
            assert_true(hash_of(options, 2) == expected);
            tarn_loader *loader = open_loader(&options);
            tarn_tensor *batch[2];
            tarn_stats_reset();
            int64_t bytes = 0;
            while (tarn_loader_next(loader, batch)) {
                assert_true(tarn_device_equal(tarn_device_of(batch[0]), options.device));
                bytes += tarn_bytes(batch[0]) + tarn_bytes(batch[1]);
                usleep(200);
            }
            assert_true(tarn_loader_seek(loader, (tarn_loader_state){0, 0})); /* nothing more is sent */
            tarn_counters stats = tarn_stats();
            /* the first batch of the next epoch may be on its way */
            assert_in_range(stats.uploads, 14, 14 + 2 * (workers > 0));
            assert_true(stats.upload_bytes >= bytes);
            assert_true(stats.downloads == 0 && stats.kernels == 0 && stats.fallbacks == 0);
            tarn_loader_free(loader);
        }
}

/* A device may take its time: the memory a batch travels from is not written again before the copy is done, and a batch
 * is not used before. */
static void late_uploads_give_whole_batches(void **state)
{
    (void)state;
    for (int prefetch = 1; prefetch <= 3; prefetch++) {
        tarn_loader *loader = open_loader(&(tarn_loader_options){
            .batch_size = 5, .workers = 2, .prefetch = prefetch, .device = tarn_device_parse("mirror:0")});
        for (int64_t b = 0; b < 20; b++) {
            tarn_scope *scope = tarn_scope_open();
            tarn_tensor *batch[2];
            if (tarn_loader_next(loader, batch)) {
                int64_t labels[5];
                usleep(2000); /* workers go on meanwhile */
                assert_true(tarn_read(batch[1], labels, (size_t)tarn_bytes(batch[1])));
                for (int64_t i = 0; i < tarn_count(batch[1]); i++)
                    assert_int_equal(labels[i], (b % 12) * 5 + i); /* 11 batches and an end */
            }
            assert_ok();
            tarn_scope_close(scope);
        }
        tarn_loader_free(loader);
    }
}

static void batches_outlive_their_loader(void **state)
{
    (void)state;
    tarn_loader_options options = {.batch_size = 5, .workers = 2, .device = tarn_device_parse("mirror:0")};
    tarn_loader *loader = open_loader(&options);
    tarn_tensor *batch[2], *later[2];
    assert_true(tarn_loader_next(loader, batch) && tarn_loader_next(loader, later));
    tarn_loader_free(loader);
    assert_values(batch[1], 0, 0, 1, 2, 3, 4);
    assert_values(later[1], 0, 5, 6, 7, 8, 9);
}

/* ---- errors and ends --------------------------------------------------------------------------------------------- */

static void a_sample_that_fails_is_named_and_tried_again(void **state)
{
    (void)state;
    for (int workers = 0; workers <= 4; workers += 2) {
        tarn_loader *loader = open_loader(&(tarn_loader_options){.batch_size = 8, .workers = workers});
        tarn_tensor *batch[2];
        tarn_loader_state place;
        atomic_store(&fail_at, 17);
        assert_true(tarn_loader_next(loader, batch) && tarn_loader_next(loader, batch));
        for (int i = 0; i < 2; i++) {
            assert_false(tarn_loader_next(loader, batch));
            assert_error(TARN_ERROR_IO, "loader_next: sample 17: the disk is gone");
        }
        assert_true(tarn_loader_tell(loader, &place) && place.epoch == 0 && place.batch == 2);
        atomic_store(&fail_at, -1);
        assert_false(tarn_loader_next(loader, batch) && false);
        tarn_clear_error(); /* workers may have met the sample once more before it was fixed */
        assert_true(tarn_loader_seek(loader, place) && tarn_loader_next(loader, batch));
        assert_true(tarn_item_at(batch[1], TARN_SHAPE(0)) == 16);
        tarn_loader_free(loader);
    }
}

/* Of 13 batches of 4, ranks of 2 read two of every three, and one of three; 12 are in an epoch. A state has the number
 * of the next batch among all, and a seek to a batch of another rank stops at the next own one. */
static void ranks_read_their_share_of_the_batches(void **state)
{
    (void)state;
    for (int workers = 0; workers <= 2; workers++)
        for (int rank = 0; rank < 2; rank++) {
            tarn_loader *loader = open_loader(&(tarn_loader_options){.batch_size = 4, .workers = workers});
            tarn_tensor *batch[2];
            tarn_loader_state place;
            int64_t begin = rank ? 2 : 0, end = rank ? 3 : 2;
            tarn__loader_select(loader, 12, 3, begin, end);
            for (int64_t epoch = 0; epoch < 2; epoch++) {
                for (int64_t b = 0; b < 12; b++) {
                    if (b % 3 < begin || b % 3 >= end)
                        continue;
                    assert_true(tarn_loader_next(loader, batch));
                    assert_int_equal(tarn_item_at(batch[1], TARN_SHAPE(0)), 4 * b);
                }
                assert_true(tarn_loader_tell(loader, &place));
                assert_int_equal(place.batch, 12);
                assert_false(tarn_loader_next(loader, batch));
                assert_ok();
            }
            assert_true(tarn_loader_seek(loader, (tarn_loader_state){.epoch = 1, .batch = 6}));
            assert_true(tarn_loader_next(loader, batch));
            assert_int_equal(tarn_item_at(batch[1], TARN_SHAPE(0)), 4 * (6 + begin));
            tarn_loader_free(loader);
        }
}

static void a_loader_may_end_at_any_time(void **state)
{
    (void)state;
    atomic_store(&naps, 1);
    for (int taken = 0; taken < 9; taken++)
        for (int workers = 0; workers <= 4; workers += 2) {
            tarn_loader_options options = everything(workers);
            options.device = taken % 2 ? tarn_device_parse("mirror:0") : CPU;
            tarn_loader *loader = open_loader(&options);
            tarn_tensor *batch[2];
            for (int i = 0; i < taken; i++)
                tarn_loader_next(loader, batch);
            tarn_loader_free(loader);
        }
    atomic_store(&naps, 0);
}

/* Prefetching reads as far ahead as it was told to, and no farther. */
static void workers_wait_when_nothing_is_taken(void **state)
{
    (void)state;
    atomic_store(&reads, 0);
    tarn_loader *loader = open_loader(&(tarn_loader_options){.batch_size = 4, .workers = 3, .prefetch = 3});
    for (int i = 0; i < 200 && atomic_load(&reads) < 12; i++)
        usleep(5000);
    usleep(20000);
    assert_int_equal(atomic_load(&reads), 12);
    tarn_loader_free(loader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(batches_come_in_order_and_an_epoch_ends),
        in_scope(the_order_is_a_function_of_seed_and_epoch),
        in_scope(batches_are_bitwise_identical_with_any_workers),
        in_scope(a_loader_resumes_where_another_stopped),
        in_scope(values_are_normalized_by_channel),
        in_scope(crops_and_flips_are_all_there_and_nothing_else),
        in_scope(a_batch_costs_one_upload_for_each_field),
        in_scope(late_uploads_give_whole_batches),
        in_scope(batches_outlive_their_loader),
        in_scope(a_sample_that_fails_is_named_and_tried_again),
        in_scope(ranks_read_their_share_of_the_batches),
        in_scope(a_loader_may_end_at_any_time),
        in_scope(workers_wait_when_nothing_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
