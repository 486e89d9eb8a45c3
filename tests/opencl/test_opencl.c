/*
 * test_opencl.c: what is specific to OpenCL devices: their properties, copies, order, deferred faults, memory.
 * Operations are tested by test_cases with TARN_TEST_DEVICE=opencl. Without a device every test is skipped.
 * */
#include "support/opencl.h"

#include <tarn/profile.h>

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static void a_device_reports_its_properties(void **state)
{
    NEEDS_OPENCL();
    tarn_device_info info;
    assert_true(tarn_device_query(opencl, &info));
    assert_string_equal(info.name, "opencl:0");
    assert_true(strcmp(info.type, "cpu") == 0 || strcmp(info.type, "gpu") == 0 ||
                strcmp(info.type, "accelerator") == 0);
    assert_true(info.description[0] && info.vendor[0]);
    assert_true(info.memory_total > 0 && info.memory_free > 0 && info.memory_free <= info.memory_total);
    assert_contains(info.detail, info.vendor);
    assert_contains(info.detail, "compute units, driver ");
    assert_non_null(tarn_native_stream(opencl));
}

/* The CPU's own kernels are faster than a driver's for the CPU. */
static void auto_selects_no_cpu_through_opencl(void **state)
{
    NEEDS_OPENCL();
    tarn_device_info info;
    assert_true(tarn_device_query(tarn_device_auto(), &info));
    assert_true(strcmp(info.type, "gpu") == 0 || tarn_device_equal(tarn_device_auto(), tarn_device_cpu()));
    assert_true(tarn_device_query(tarn_device_cpu(), &info));
    assert_string_equal(info.type, "cpu");
}

static void an_unknown_device_is_named(void **state)
{
    NEEDS_OPENCL();
    tarn_device_parse("opencl:99");
    /* and so on: all there are, with their names */
    assert_error(TARN_ERROR_DEVICE, "device opencl:99 not found; available: opencl:0 (");
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static const tarn_dtype dtypes[] = {TARN_F32, TARN_F64, TARN_BF16, TARN_F16, TARN_I32, TARN_I64, TARN_U8, TARN_BOOL};
#define DTYPES ((int)(sizeof(dtypes) / sizeof(dtypes[0])))

/* Numbers that round, are cut, or leave the range of smaller dtypes. */
static tarn_tensor *some_values(tarn_dtype dtype)
{
    static const double values[] = {0,     1,    -1,  2.5,  -3.75, 255,  256,  257,   1000.125, -70000,     1e9, 3e9,
                                    65519, 1e-7, 0.1, -0.0, 33,    4097, 1e19, -1e19, 2049,     0.33333334, 7,   8};
    tarn_tensor *x = good(tarn_from_f64(values, TARN_SHAPE(2, 3, 4), tarn_device_cpu()));
    return dtype == TARN_F64 ? x : good(tarn_cast(x, dtype));
}

/* The same view on the device and on the CPU are bitwise identical. */
static void assert_same(tarn_tensor *there, tarn_tensor *here)
{
    double *a = values_of(good(there)), *b = values_of(good(here));
    for (int64_t i = 0; i < tarn_count(here); i++)
        if (!(a[i] == b[i] || (isnan(a[i]) && isnan(b[i]))))
            fail_msg("element %lld is %.17g, not %.17g", (long long)i, a[i], b[i]);
    free(a);
    free(b);
}

static void every_dtype_converts_to_every_other_as_on_the_cpu(void **state)
{
    NEEDS_OPENCL();
    for (int from = 0; from < DTYPES; from++)
        for (int to = 0; to < DTYPES; to++) {
            tarn_tensor *x = some_values(dtypes[from]);
            assert_same(tarn_cast(tarn_to(x, opencl), dtypes[to]), tarn_cast(x, dtypes[to]));
        }
}

static tarn_tensor *odd_view(tarn_tensor *x, int which)
{
    switch (which) {
    case 0: return tarn_transpose(x, 0, 2);
    case 1: return tarn_flip(x, TARN_AXES(1));
    case 2: return tarn_slice(tarn_flip(tarn_transpose(x, 0, 1), TARN_AXES(0, 2)), 2, 1, 3);
    case 3: return tarn_expand(tarn_slice(x, 0, 1, 2), TARN_SHAPE(5, 3, 4));
    case 4: return tarn_slice(x, 1, 3, 3); /* no elements */
    default: return tarn_reshape(tarn_slice(tarn_slice(tarn_slice(x, 0, 1, 2), 1, 2, 3), 2, 1, 2), TARN_SCALAR);
    }
}

static void views_of_any_strides_are_copied(void **state)
{
    NEEDS_OPENCL();
    for (int d = 0; d < DTYPES; d++)
        for (int which = 0; which < 6; which++) {
            tarn_tensor *here = some_values(dtypes[d]), *there = good(tarn_to(here, opencl));
            assert_same(tarn_contiguous(odd_view(there, which)), tarn_contiguous(odd_view(here, which)));
        }
}

static void views_are_filled(void **state)
{
    NEEDS_OPENCL();
    for (int d = 0; d < DTYPES; d++) {
        tarn_tensor *here = some_values(dtypes[d]), *there = good(tarn_to(here, opencl));
        assert_true(tarn_copy(tarn_transpose(tarn_slice(there, 2, 1, 3), 0, 1),
                              tarn_full(TARN_SHAPE(3, 2, 2), 3, dtypes[d], opencl)));
        assert_true(tarn_copy(tarn_transpose(tarn_slice(here, 2, 1, 3), 0, 1),
                              tarn_full(TARN_SHAPE(3, 2, 2), 3, dtypes[d], tarn_device_cpu())));
        assert_same(there, here);
    }
}

static void check_transfer(int64_t count)
{
    float *host = malloc(sizeof(float) * (size_t)count);
    for (int64_t i = 0; i < count; i++)
        host[i] = (float)(i % 8191);
    tarn_tensor *x = good(tarn_from_f32(host, TARN_SHAPE(count), opencl));
    tarn_tensor *y = good(tarn_clone(x));
    memset(host, 0, sizeof(float) * (size_t)count); /* an upload may be overwritten at once */
    assert_true(tarn_read_f32(y, host, count));
    for (int64_t i = 0; i < count; i++)
        assert_true(host[i] == (float)(i % 8191));
    free(host);
}

static void transfers_of_any_size_arrive(void **state)
{
    NEEDS_OPENCL();
    static const int64_t counts[] = {1, 3, 16383, 16384, 16385, 70001, (5 << 20) + 3};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        check_transfer(counts[i]);
}

/* The program asks PoCL for two devices; another driver may have one. */
/* Of one driver, of another backend, and of CUDA, where both are on one card. */
static void devices_copy_to_each_other(void **state)
{
    NEEDS_OPENCL();
    static const char *const backends[] = {"opencl", "mirror", "cuda"};
    int tried = 0;
    for (int i = 0; i < 3; i++) {
        if (tarn_device_count(backends[i]) < (i == 0 ? 2 : 1))
            continue;
        tarn_device other = tarn_device_parse(i == 0 ? "opencl:1" : backends[i]);
        for (int d = 0; d < DTYPES; d++) {
            tarn_tensor *x = some_values(dtypes[d]),
                        *there = good(tarn_to(tarn_transpose(tarn_to(x, opencl), 0, 2), other));
            assert_true(tarn_device_equal(tarn_device_of(there), other));
            assert_same(there, tarn_transpose(x, 0, 2));
            assert_same(tarn_to(there, opencl), tarn_transpose(x, 0, 2));
        }
        tried++;
    }
    if (!tried)
        skip();
}

/* ---- order and errors -------------------------------------------------------------------------------------------- */

static void a_bad_index_is_reported_when_the_host_waits(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = good(tarn_arange(0, 6, 1, TARN_F32, opencl));
    tarn_tensor *index = good(tarn_from_i64((int64_t[]){1, 7, 2}, TARN_SHAPE(3), opencl));
    for (int round = 0; round < 2; round++) { /* a fault that was told is forgotten */
        tarn_index_select(x, 0, index);
        tarn_synchronize(opencl);
        assert_error(TARN_ERROR_ARGUMENT, "index_select: index 7 is outside the axis, which has 6 elements");
        assert_values(tarn_mul(x, x), 0, 0, 1, 4, 9, 16, 25); /* and the library works on */
        assert_true(tarn_synchronize(opencl));
    }
}

/* Behind a lookup that is still on its way the read of faults is put off: none is lost, whatever the host waits for. */
static void a_bad_index_after_a_good_one_is_reported(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(500, 500), TARN_F32, opencl)),
                *all = good(tarn_arange(0, 500, 1, TARN_I64, opencl));
    tarn_tensor *bad = good(tarn_from_i64((int64_t[]){1, 700, 2}, TARN_SHAPE(3), opencl));
    for (int round = 0; round < 9; round++) {
        good(tarn_matmul(x, x)); /* takes a while */
        good(tarn_index_select(x, 0, all));
        tarn_tensor *y = tarn_index_select(x, 0, bad);
        tarn_event *event = round % 3 == 1 ? tarn_event_record(opencl) : NULL;
        float here[1500];
        if (round % 3 == 0)
            tarn_synchronize(opencl);
        else if (round % 3 == 1)
            tarn_event_wait(event);
        else if (y && tarn_read(y, here, sizeof(here)))
            tarn_mul(x, x);
        assert_error(TARN_ERROR_ARGUMENT, "index_select: index 700 is outside the axis, which has 500 elements");
        tarn_event_free(event);
        assert_true(tarn_synchronize(opencl));
    }
}

static void events_measure_the_time_between_them(void **state)
{
    NEEDS_OPENCL();
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(512, 512), TARN_F32, opencl));
    assert_true(tarn_synchronize(opencl));
    tarn_event *from = tarn_event_record(opencl);
    for (int i = 0; i < 20; i++)
        tarn_add(x, x);
    tarn_event *to = tarn_event_record(opencl);
    double took = tarn_event_elapsed(from, to);
    assert_ok();
    assert_true(took > 10 && took < 60e6);
    tarn_event_free(from);
    tarn_event_free(to);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static int64_t free_memory(void)
{
    tarn_device_info info;
    assert_true(tarn_empty_cache(opencl) && tarn_device_query(opencl, &info));
    return info.memory_free;
}

static void memory_is_released(void **state)
{
    NEEDS_OPENCL();
    int64_t before = free_memory();
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(1 << 20), TARN_F32, opencl));
    assert_true(free_memory() <= before - (4 << 20));
    good(tarn_add(x, x));
    tarn_scope_close(scope);
    assert_true(free_memory() == before);
}

/* For real: more than the device has. */
static void more_memory_than_exists_is_refused(void **state)
{
    NEEDS_OPENCL();
    tarn_device_info info;
    assert_true(tarn_device_query(opencl, &info));
    tarn_tensor *x = good(tarn_arange(0, 4, 1, TARN_F32, opencl));
    assert_null(tarn_empty(TARN_SHAPE(info.memory_total + 1), TARN_U8, opencl));
    assert_error(TARN_ERROR_MEMORY, "empty: out of memory on opencl:0");
    assert_values(tarn_add(x, x), 0, 0, 2, 4, 6);
}

/* ---- a steady loop ----------------------------------------------------------------------------------------------- */

typedef struct training {
    tarn_tensor *x, *y, *loss;
    tarn_module *net;
    tarn_optimizer *adam;
} training;

static training start_training(void)
{
    tarn_seed(7);
    training t = {0};
    t.x = tarn_normal(TARN_SHAPE(64, 16), 0, 1, TARN_F32, opencl);
    t.y = tarn_normal(TARN_SHAPE(64, 4), 0, 1, TARN_F32, opencl);
    t.loss = tarn_zeros(TARN_SCALAR, TARN_F32, opencl);
    t.net = tarn_sequential(tarn_linear(16, 32, opencl), tarn_activation(TARN_GELU), tarn_linear(32, 4, opencl), NULL);
    t.adam = tarn_adamw(t.net, &(tarn_adamw_options){.lr = 0.01f, .weight_decay = 0.1f});
    assert_ok();
    return t;
}

/* With dropout, so that random numbers take part. */
static bool step(training *t)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *loss = tarn_mse_loss(tarn_forward(t->net, tarn_dropout(t->x, 0.1)), t->y);
    bool done = tarn_backward(loss) && tarn_optimizer_clip_norm(t->adam, 0.8) && tarn_optimizer_step(t->adam) &&
                tarn_copy(t->loss, loss);
    tarn_scope_close(scope);
    return done;
}

static double train(int steps)
{
    training t = start_training();
    for (int i = 0; i < steps; i++)
        assert_true(step(&t));
    double loss = tarn_item(t.loss);
    tarn_optimizer_free(t.adam);
    tarn_module_free(t.net);
    return loss;
}

static void a_steady_loop_touches_the_host_only_when_read(void **state)
{
    NEEDS_OPENCL();
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
    assert_true(stats.kernels > 0 && stats.kernels == stats.kernels_on[opencl.backend]);
    assert_true(isfinite(tarn_item(t.loss)));
    assert_int_equal(tarn_stats().downloads, 1);
    tarn_optimizer_free(t.adam);
    tarn_module_free(t.net);
}

static void two_runs_are_bitwise_identical(void **state)
{
    NEEDS_OPENCL();
    double first = train(25);
    assert_true(isfinite(first) && first == train(25) && first != train(24));
}

int main(void)
{
    setenv("POCL_DEVICES", "pthread pthread", 1); /* read when the driver is opened */
    const struct CMUnitTest tests[] = {
        ON_OPENCL(a_device_reports_its_properties),
        ON_OPENCL(auto_selects_no_cpu_through_opencl),
        ON_OPENCL(an_unknown_device_is_named),
        ON_OPENCL(every_dtype_converts_to_every_other_as_on_the_cpu),
        ON_OPENCL(views_of_any_strides_are_copied),
        ON_OPENCL(views_are_filled),
        ON_OPENCL(transfers_of_any_size_arrive),
        ON_OPENCL(devices_copy_to_each_other),
        ON_OPENCL(a_bad_index_is_reported_when_the_host_waits),
        ON_OPENCL(a_bad_index_after_a_good_one_is_reported),
        ON_OPENCL(events_measure_the_time_between_them),
        ON_OPENCL(memory_is_released),
        ON_OPENCL(more_memory_than_exists_is_refused),
        ON_OPENCL(a_steady_loop_touches_the_host_only_when_read),
        ON_OPENCL(two_runs_are_bitwise_identical),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
