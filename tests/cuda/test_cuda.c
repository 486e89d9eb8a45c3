/* test_cuda.c: properties of CUDA devices: memory, stream order, asynchronous errors, captured steps. Skipped without a
 * device. */
#include "support/gpu.h"

#include <tarn/graph.h>

#include "core/launch/stats.h"

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static void a_device_describes_itself(void **state)
{
    NEEDS_GPU();
    tarn_device_info info;
    assert_true(tarn_device_query(gpu, &info));
    assert_string_equal(info.name, "cuda:0");
    assert_true(info.memory_total > 0 && info.memory_free > 0 && info.memory_free <= info.memory_total);
    assert_contains(info.detail, "compute capability");
    assert_true(tarn_device_equal(tarn_device_auto(), gpu));
    assert_non_null(tarn_native_stream(gpu));
}

static void a_missing_device_is_named(void **state)
{
    NEEDS_GPU();
    tarn_device_parse("cuda:99");
    /* and so on: all devices, with their names */
    assert_error(TARN_ERROR_DEVICE, "device cuda:99 not found; available: cuda:0 (");
}

/* ---- order and errors -------------------------------------------------------------------------------------------- */

static void an_index_fault_is_reported_when_the_host_waits(void **state)
{
    NEEDS_GPU();
    tarn_tensor *x = good(tarn_arange(0, 6, 1, TARN_F32, gpu));
    tarn_tensor *index = good(tarn_from_i64((int64_t[]){1, 7, 2}, TARN_SHAPE(3), gpu));
    tarn_index_select(x, 0, index);
    tarn_synchronize(gpu);
    assert_error(TARN_ERROR_ARGUMENT, "index_select: index 7 is outside the axis, which has 6 elements");
    assert_values(tarn_mul(x, x), 0, 0, 1, 4, 9, 16, 25); /* the library still works */
}

static void an_upload_may_be_overwritten_at_once(void **state)
{
    NEEDS_GPU();
    enum { N = 3 << 20 };
    float *host = malloc(sizeof(float) * N);
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    tarn_tensor *x = good(tarn_from_f32(host, TARN_SHAPE(N), gpu));
    memset(host, 0, sizeof(float) * N);
    assert_true(tarn_read_f32(x, host, N));
    for (int i = 0; i < N; i++)
        assert_true(host[i] == (float)i);
    free(host);
}

static void events_measure_the_time_between(void **state)
{
    NEEDS_GPU();
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(4096, 4096), TARN_F32, gpu));
    tarn_event *from = tarn_event_record(gpu);
    for (int i = 0; i < 10; i++)
        tarn_matmul(x, x);
    tarn_event *to = tarn_event_record(gpu);
    double took = tarn_event_elapsed(from, to);
    assert_ok();
    assert_true(took > 1000 && took < 1e6);
    tarn_event_free(from);
    tarn_event_free(to);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Allocates all device memory, piece by piece; the error names the owners, and the library works on. */
static void out_of_memory_is_survived(void **state)
{
    NEEDS_GPU();
    tarn_tensor *before = good(tarn_arange(0, 4, 1, TARN_F32, gpu));
    tarn_scope *scope = tarn_scope_open();
    int taken = 0;
    for (int64_t bytes = (int64_t)16 << 30; bytes >= (int64_t)64 << 20; bytes /= 2) {
        tarn_clear_error(); /* of the previous size, of which no more fitted */
        for (tarn_tensor *x; (x = tarn_empty(TARN_SHAPE(bytes), TARN_U8, gpu)) != NULL; taken++)
            tarn_set_name(x, "filling");
    }
    assert_true(taken > 8);
    assert_true(tarn_error_code() == TARN_ERROR_MEMORY);
    assert_contains(tarn_error(), "out of memory on cuda:0");
    assert_contains(tarn_error(), "filling");
    tarn_clear_error();
    assert_values(tarn_add(before, before), 0, 0, 2, 4, 6);
    tarn_scope_close(scope);
    assert_non_null(good(tarn_zeros(TARN_SHAPE((int64_t)4 << 30), TARN_U8, gpu)));
    assert_true(tarn_empty_cache(gpu));
}

/* ---- a training loop --------------------------------------------------------------------------------------------- */

typedef struct training {
    tarn_tensor *x, *y, *loss;
    tarn_module *net;
    tarn_optimizer *adam;
} training;

static training start_training(void)
{
    tarn_seed(7);
    training t = {0};
    t.x = tarn_normal(TARN_SHAPE(64, 16), 0, 1, TARN_F32, gpu);
    t.y = tarn_normal(TARN_SHAPE(64, 4), 0, 1, TARN_F32, gpu);
    t.loss = tarn_zeros(((tarn_shape){0, {0}}), TARN_F32, gpu);
    t.net = tarn_sequential(tarn_linear(16, 32, gpu), tarn_activation(TARN_GELU), tarn_linear(32, 4, gpu), NULL);
    static const tarn_parameter_group groups[] = {{.names = "2.*", .lr_scale = 0.5f}};
    t.adam =
        tarn_adamw(t.net, &(tarn_adamw_options){.lr = 0.01f, .weight_decay = 0.1f, .groups = groups, .group_count = 1});
    tarn_optimizer_set_schedule(t.adam,
                                &(tarn_schedule){.kind = TARN_SCHEDULE_COSINE, .warmup_steps = 5, .total_steps = 40});
    assert_ok();
    return t;
}

static void end_training(training *t)
{
    tarn_optimizer_free(t->adam);
    tarn_module_free(t->net);
}

/* With dropout, so that random numbers take part; the norm is clipped in some steps only. */
static bool step(void *ctx)
{
    training *t = ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *loss = tarn_mse_loss(tarn_forward(t->net, tarn_dropout(t->x, 0.1)), t->y);
    bool done = tarn_backward(loss) && tarn_optimizer_clip_norm(t->adam, 0.8) && tarn_optimizer_step(t->adam) &&
                tarn_copy(t->loss, loss);
    tarn_scope_close(scope);
    return done;
}

static void a_training_loop_transfers_only_what_is_read(void **state)
{
    NEEDS_GPU();
    training t = start_training();
    for (int i = 0; i < 3; i++)
        assert_true(step(&t));
    tarn_stats_reset();
    for (int i = 0; i < 20; i++)
        assert_true(step(&t));
    tarn_counters stats = tarn_stats();
    assert_int_equal(stats.uploads + stats.downloads + stats.peer_copies, 0);
    assert_int_equal(stats.fallbacks, 0);
    assert_int_equal(stats.system_allocations, 0);
    assert_true(stats.kernels > 0 && stats.kernels == stats.kernels_on[gpu.backend]);
    assert_true(isfinite(tarn_item(t.loss)));
    assert_int_equal(tarn_stats().downloads, 1);
    end_training(&t);
}

/* ---- captured steps ---------------------------------------------------------------------------------------------- */

enum { WARM_UP = 3, STEPS = 12, BATCH = 64 * 16 };

static void new_batch(training *t, int number)
{
    float values[BATCH];
    for (int i = 0; i < BATCH; i++)
        values[i] = (float)((i * 37 + number * 101) % 64) / 32 - 1;
    assert_true(tarn_write(t->x, values, sizeof(values)));
}

static void losses_of(bool captured, double *losses)
{
    training t = start_training();
    for (int i = 0; i < WARM_UP; i++) {
        new_batch(&t, i);
        assert_true(step(&t));
    }
    tarn_graph *graph = captured ? tarn_graph_capture(gpu, step, &t) : NULL;
    assert_ok();
    for (int i = 0; i < STEPS; i++) {
        new_batch(&t, WARM_UP + i);
        if (i == STEPS / 2)
            assert_true(tarn_optimizer_set_lr(t.adam, 0.003));
        assert_true(captured ? tarn_graph_run(graph) : step(&t));
        losses[i] = tarn_item(t.loss);
        assert_int_equal(tarn_optimizer_steps(t.adam), WARM_UP + i + 1);
    }
    tarn_graph_free(graph);
    end_training(&t);
    assert_ok();
}

static void a_captured_step_is_bitwise_identical_to_an_eager_one(void **state)
{
    NEEDS_GPU();
    double eager[STEPS], captured[STEPS], again[STEPS];
    losses_of(false, eager);
    losses_of(true, captured);
    losses_of(false, again);
    for (int i = 0; i < STEPS; i++) {
        assert_true(eager[i] == again[i]);
        assert_true(eager[i] == captured[i]);
        assert_true(i == 0 || eager[i] != eager[i - 1]);
    }
}

static bool reading_step(void *ctx)
{
    training *t = ctx;
    return isfinite(tarn_item(t->loss));
}

static bool uploading_step(void *ctx)
{
    float one = 1;
    (void)ctx;
    return tarn_from_f32(&one, TARN_SHAPE(1), gpu) != NULL;
}

static bool moving_step(void *ctx)
{
    training *t = ctx;
    return tarn_to(t->loss, tarn_device_cpu()) != NULL;
}

static bool new_product_step(void *ctx)
{
    (void)ctx;
    tarn_tensor *x = tarn_zeros(TARN_SHAPE(1000, 1016), TARN_F32, gpu);
    return tarn_matmul(tarn_transpose(x, 0, 1), x) != NULL;
}

static void operations_that_cannot_be_captured_are_named(void **state)
{
    NEEDS_GPU();
    training t = start_training();
    assert_null(tarn_graph_capture(gpu, reading_step, &t));
    assert_error(TARN_ERROR_UNSUPPORTED, "item: a value read by the host inside a captured step");
    assert_null(tarn_graph_capture(gpu, uploading_step, &t));
    assert_error(TARN_ERROR_UNSUPPORTED, "from: a copy from the host inside a captured step");
    assert_null(tarn_graph_capture(gpu, moving_step, &t));
    assert_error(TARN_ERROR_UNSUPPORTED, "inside a captured step");
    assert_null(tarn_graph_capture(gpu, new_product_step, &t));
    assert_error(TARN_ERROR_DEVICE, "matmul: cuda:0 failed: matmul is not tuned: ");
    assert_true(step(&t)); /* the device still works */
    assert_true(isfinite(tarn_item(t.loss)));
    end_training(&t);
}

/* ---- more than 2^31 elements ------------------------------------------------------------------------------------- */

static void tensors_beyond_two_to_the_31_work(void **state)
{
    NEEDS_GPU();
    int64_t rows = ((int64_t)1 << 21) + 3, columns = 1032; /* 2.16e9 elements: 4.3 GB of bf16 */
    tarn_tensor *x = good(tarn_full(TARN_SHAPE(rows, columns), 0.5, TARN_BF16, gpu));
    tarn_tensor *y = good(tarn_add(x, x));
    assert_true(tarn_item_at(y, TARN_SHAPE(rows - 1, columns - 1)) == 1);
    tarn_tensor *sums = good(tarn_sum(y, TARN_AXES(1), false));
    assert_true(tarn_item_at(sums, TARN_SHAPE(rows - 1)) == 1032);
    tarn_tensor *all = good(tarn_sum(tarn_cast(sums, TARN_F64), TARN_ALL_AXES, false));
    assert_true(tarn_item(all) == (double)(rows * columns));
    tarn_tensor *soft = good(tarn_softmax(y, -1));
    assert_true(fabs(tarn_item_at(soft, TARN_SHAPE(rows - 1, columns - 1)) - 1.0 / 1032) < 1e-5);
    tarn_tensor *turned = good(tarn_contiguous(tarn_permute(y, TARN_AXES(1, 0))));
    assert_true(tarn_item_at(turned, TARN_SHAPE(columns - 1, rows - 1)) == 1);
    tarn_tensor *copy = good(tarn_clone(turned));
    assert_true(tarn_item_at(copy, TARN_SHAPE(columns - 1, rows - 1)) == 1);
    tarn_tensor *product = good(tarn_matmul(y, tarn_ones(TARN_SHAPE(columns, 8), TARN_BF16, gpu)));
    assert_true(tarn_item_at(product, TARN_SHAPE(rows - 1, 7)) == 1032);
    tarn_tensor *columns_sum = good(tarn_sum(y, TARN_AXES(0), false));
    double per_column = tarn_item_at(columns_sum, TARN_SHAPE(columns - 1));
    assert_true(fabs(per_column - (double)rows) / (double)rows < 4e-3); /* the result is bf16 */
}

int main(void)
{
#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        ON_GPU(a_device_describes_itself),
        ON_GPU(a_missing_device_is_named),
        ON_GPU(an_index_fault_is_reported_when_the_host_waits),
        ON_GPU(an_upload_may_be_overwritten_at_once),
        ON_GPU(events_measure_the_time_between),
        ON_GPU(out_of_memory_is_survived),
        ON_GPU(a_training_loop_transfers_only_what_is_read),
        ON_GPU(a_captured_step_is_bitwise_identical_to_an_eager_one),
        ON_GPU(operations_that_cannot_be_captured_are_named),
        ON_GPU(tensors_beyond_two_to_the_31_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
