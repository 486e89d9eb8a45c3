/* test_sync_batchnorm.c: batchnorms with the statistics of all ranks, with threads as ranks: results, gradients and
 * running statistics are those of one batchnorm over the whole batch. */
#include <pthread.h>
#include <tarn/parallel.h>

#include "support/check.h"

enum { MAX_RANKS = 4, BATCH = 8, CHANNELS = 5, SIDE = 3, VALUES = BATCH * CHANNELS * SIDE * SIDE };

/* What a batchnorm gives: y and the gradient of x of the own samples, then of the rest the whole. */
typedef struct outcome {
    double y[VALUES], gx[VALUES], gweight[CHANNELS], gbias[CHANNELS], mean[CHANNELS], variance[CHANNELS];
} outcome;

typedef struct rank_run {
    pthread_t thread;
    tarn_comm *comm; /* NULL: the whole batch on one rank */
    bool has_relu;
    outcome out;
    char error[256];
} rank_run;

/* Samples begin to end of the batch, with a mean that differs from sample to sample. */
static tarn_tensor *samples(int begin, int end, double scale, double shift)
{
    static _Thread_local float values[VALUES];
    int count = CHANNELS * SIDE * SIDE;
    for (int i = begin * count; i < end * count; i++)
        values[i - begin * count] = (float)(scale * sin(1.7 * i + 0.3 * (i % 11)) + shift * (i / count));
    return tarn_from_f32(values, TARN_SHAPE(end - begin, CHANNELS, SIDE, SIDE), tarn_device_cpu());
}

static void read_into(double *to, const tarn_tensor *tensor)
{
    tarn_read_f64(tensor, to, tarn_count(tensor));
}

static void forward_and_backward(rank_run *r, tarn_module *norm, int begin, int end)
{
    tarn_tensor *x = tarn_requires_grad(samples(begin, end, 1.5, 0.4), true), *g = samples(begin, end, 0.7, -0.2);
    tarn_tensor *y = tarn_forward(norm, x);
    y = r->has_relu ? tarn_relu(y) : y;
    int64_t at = (int64_t)begin * CHANNELS * SIDE * SIDE;
    read_into(r->out.y + at, y);
    tarn_backward_from(y, g, NULL);
    if (tarn_failed())
        return;
    read_into(r->out.gx + at, tarn_grad(x));
    read_into(r->out.gweight, tarn_grad(tarn_module_parameter(norm, 0)));
    read_into(r->out.gbias, tarn_grad(tarn_module_parameter(norm, 1)));
    read_into(r->out.mean, tarn_module_buffer(norm, 0));
    read_into(r->out.variance, tarn_module_buffer(norm, 1));
}

static void *run_rank(void *argument)
{
    rank_run *r = argument;
    int size = r->comm ? tarn_comm_size(r->comm) : 1, rank = r->comm ? tarn_comm_rank(r->comm) : 0;
    tarn_scope *scope = tarn_scope_open();
    tarn_module *norm = tarn_batchnorm2d(CHANNELS, tarn_device_cpu());
    if (!r->comm || tarn_batchnorm_sync(norm, r->comm)) {
        tarn_module_train(norm, true);
        forward_and_backward(r, norm, BATCH / size * rank, BATCH / size * (rank + 1));
    }
    snprintf(r->error, sizeof(r->error), "%s", tarn_error());
    if (tarn_failed())
        tarn_comm_abort(r->comm, r->error);
    tarn_clear_error();
    tarn_module_free(norm);
    tarn_scope_close(scope);
    return NULL;
}

static void run_ranks(int size, bool has_relu, rank_run *ranks)
{
    tarn_comm *comms[MAX_RANKS] = {0};
    if (size > 1)
        assert_true(tarn_comm_threads(size, comms));
    for (int i = 0; i < size; i++) {
        ranks[i] = (rank_run){.comm = comms[i], .has_relu = has_relu};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < size; i++) {
        tarn_comm_free(comms[i]);
        assert_string_equal(ranks[i].error, "");
    }
}

static void assert_near(const char *what, int size, const double *found, const double *expected, int count)
{
    for (int i = 0; i < count; i++)
        if (!(fabs(found[i] - expected[i]) <= 2e-5 * (1 + fabs(expected[i]))))
            fail_msg("%s on %d ranks: element %d is %.9g, not %.9g", what, size, i, found[i], expected[i]);
}

/* Gradients of weight and bias are those of the own batch: their sum is compared. */
static void check_ranks(int size, bool has_relu)
{
    static rank_run one, ranks[MAX_RANKS];
    outcome all = {0};
    run_ranks(1, has_relu, &one);
    run_ranks(size, has_relu, ranks);
    for (int r = 0; r < size; r++) {
        for (int i = 0; i < VALUES; i++) {
            all.y[i] += ranks[r].out.y[i];
            all.gx[i] += ranks[r].out.gx[i];
        }
        for (int c = 0; c < CHANNELS; c++) {
            all.gweight[c] += ranks[r].out.gweight[c];
            all.gbias[c] += ranks[r].out.gbias[c];
        }
        assert_near("the running mean", size, ranks[r].out.mean, one.out.mean, CHANNELS);
        assert_near("the running variance", size, ranks[r].out.variance, one.out.variance, CHANNELS);
        assert_memory_equal(ranks[r].out.mean, ranks[0].out.mean, sizeof(all.mean));
        assert_memory_equal(ranks[r].out.variance, ranks[0].out.variance, sizeof(all.variance));
    }
    assert_near("y", size, all.y, one.out.y, VALUES);
    assert_near("the gradient of x", size, all.gx, one.out.gx, VALUES);
    assert_near("the gradient of weight", size, all.gweight, one.out.gweight, CHANNELS);
    assert_near("the gradient of bias", size, all.gbias, one.out.gbias, CHANNELS);
}

static void ranks_give_the_batchnorm_of_the_whole_batch(void **state)
{
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size *= 2) {
        check_ranks(size, false);
        check_ranks(size, true);
    }
}

static void the_same_number_of_ranks_is_bitwise_identical(void **state)
{
    (void)state;
    static rank_run first[MAX_RANKS], second[MAX_RANKS];
    run_ranks(MAX_RANKS, false, first);
    run_ranks(MAX_RANKS, false, second);
    for (int i = 0; i < MAX_RANKS; i++)
        assert_memory_equal(&first[i].out, &second[i].out, sizeof(outcome));
}

static void a_module_without_batchnorms_is_an_error(void **state)
{
    (void)state;
    tarn_module *linear = tarn_linear(2, 3, tarn_device_cpu());
    assert_false(tarn_batchnorm_sync(linear, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "the module has no batchnorms");
    assert_false(tarn_batchnorm_sync(NULL, NULL));
    assert_error(TARN_ERROR_ARGUMENT, "batchnorm_sync: the module is NULL");
    tarn_module_free(linear);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_give_the_batchnorm_of_the_whole_batch),
        cmocka_unit_test(the_same_number_of_ranks_is_bitwise_identical),
        in_scope(a_module_without_batchnorms_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
