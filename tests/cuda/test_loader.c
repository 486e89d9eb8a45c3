/* test_loader.c: batches on a CUDA device: copied from pinned memory on a second stream while kernels run. Skipped
 * without a device. */
#include <tarn/profile.h>

#include "support/gpu.h"

enum { COUNT = 1000, SIZE = 3 * 64 * 64, BATCH = 64 };

static bool get(int64_t index, void *const *memory, void *ctx)
{
    (void)ctx;
    float *x = memory[0];
    for (int k = 0; k < SIZE; k++)
        x[k] = (float)((index * 31 + k) % 1009);
    *(int64_t *)memory[1] = index;
    return true;
}

static tarn_loader *open_loader(int workers, int prefetch)
{
    const tarn_field fields[] = {{"x", TARN_F32, TARN_SHAPE(3, 64, 64)}, {"label", TARN_I64, TARN_SCALAR}};
    tarn_dataset *dataset = tarn_dataset_new(fields, 2, COUNT, get, NULL, NULL);
    tarn_loader *loader = tarn_loader_new(
        dataset,
        &(tarn_loader_options){
            .batch_size = BATCH, .shuffle = true, .seed = 5, .workers = workers, .prefetch = prefetch, .device = gpu});
    tarn_dataset_free(dataset);
    assert_ok();
    return loader;
}

/* The device is kept busy between batches, and the host runs far ahead of it; each batch is reduced on the device and
 * read only at the end. */
static void batches_are_complete_while_kernels_run(void **state)
{
    NEEDS_GPU();
    tarn_tensor *work = good(tarn_ones(TARN_SHAPE(2048, 2048), TARN_F32, gpu));
    for (int workers = 0; workers <= 4; workers += 2) {
        tarn_loader *loader = open_loader(workers, 1 + workers);
        tarn_tensor *sums[32], *labels[32], *batch[2];
        int count = 0;
        while (tarn_loader_next(loader, batch)) {
            tarn_matmul(work, work);
            labels[count] = batch[1];
            sums[count++] = tarn_sum(tarn_cast(batch[0], TARN_F64), TARN_AXES(1, 2, 3), false);
            tarn_free(batch[0]); /* its pool block is reused while copies are in flight */
            tarn_matmul(work, work);
        }
        assert_ok();
        assert_int_equal(count, (COUNT - 1) / BATCH + 1);
        for (int b = 0; b < count; b++) {
            double *found = values_of(sums[b]), *label = values_of(labels[b]);
            for (int64_t i = 0; i < tarn_count(labels[b]); i++) {
                double expected = 0;
                for (int k = 0; k < SIZE; k++)
                    expected += (double)(((int64_t)label[i] * 31 + k) % 1009);
                assert_true(found[i] == expected);
            }
            free(found);
            free(label);
        }
        tarn_loader_free(loader);
    }
}

static void a_batch_costs_one_upload_per_field(void **state)
{
    NEEDS_GPU();
    tarn_loader *loader = open_loader(2, 2);
    tarn_tensor *batch[2];
    tarn_stats_reset();
    for (int i = 0; i < 10; i++)
        assert_true(tarn_loader_next(loader, batch));
    assert_in_range(tarn_stats().uploads, 20, 22);
    assert_int_equal(tarn_stats().downloads, 0);
    tarn_loader_free(loader); /* with a batch in flight */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(batches_are_complete_while_kernels_run, open_gpu, close_gpu),
        cmocka_unit_test_setup_teardown(a_batch_costs_one_upload_per_field, open_gpu, close_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
