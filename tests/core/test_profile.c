/* test_profile.c: the profiler: what it records and when, fractions that add up to 1, spans, threads, devices, and
 * the trace. */
#include <math.h>
#include <pthread.h>
#include <tarn/profile.h>
#include <tarn/tarn.h>

#include "core/profile/profiler.h"
#include "support/check.h"
#include "support/scratch.h"
#include "support/trace.h"
#include "tarn_features.h"

#define CPU tarn_device_cpu()

static void start(tarn_device device)
{
    if (!tarn_profile_start(device))
        fail_msg("%s", tarn_error());
}

static void stop(void)
{
    if (!tarn_profile_stop())
        fail_msg("%s", tarn_error());
}

enum { ANY_KIND = -1 };

/* The first record of a name and a kind, forward or backward; fails where there is none. */
static tarn_profile_record find_kind(const char *name, int kind, bool is_backward)
{
    tarn_profile_record r;
    for (int64_t i = 0; i < tarn_profile_count(); i++) {
        assert_true(tarn_profile_get(i, &r));
        if (strcmp(r.name, name) == 0 && r.is_backward == is_backward && (kind == ANY_KIND || (int)r.kind == kind))
            return r;
    }
    fail_msg("there is no record of %s%s", name, is_backward ? " in backward" : "");
    return r;
}

static tarn_profile_record find(const char *name, bool is_backward)
{
    return find_kind(name, ANY_KIND, is_backward);
}

static void multiply(tarn_device device, bool and_back)
{
    tarn_tensor *a = good(tarn_ones(TARN_SHAPE(4, 8), TARN_F32, device)),
                *b = good(tarn_ones(TARN_SHAPE(8, 16), TARN_F32, device));
    tarn_requires_grad(b, and_back);
    tarn_tensor *loss = good(tarn_sum(tarn_tanh(tarn_matmul(a, b)), TARN_ALL_AXES, false));
    if (and_back)
        assert_true(tarn_backward(loss));
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static void kernels_are_recorded_with_what_they_compute(void **state)
{
    (void)state;
    start(CPU);
    assert_true(tarn_profile_is_on());
    multiply(CPU, true);
    stop();
    assert_false(tarn_profile_is_on());
    tarn_profile_record product = find("matmul", false), tanh_back = find("tanh_grad", true);
    assert_int_equal(product.kind, TARN_PROFILE_MATMUL);
    assert_string_equal(product.function, "matmul");
    assert_int_equal(product.dtype, TARN_F32);
    assert_int_equal(product.shape.rank, 2);
    assert_int_equal(product.shape.size[1], 16);
    assert_true(product.flops == 2.0 * 4 * 8 * 16);
    assert_true(product.bytes == 4.0 * (4 * 8 + 8 * 16 + 4 * 16));
    assert_true(product.host_start >= 0 && product.host_start <= product.device_start &&
                product.device_start <= product.device_end && product.device_end <= product.host_end);
    assert_int_equal(tanh_back.kind, TARN_PROFILE_KERNEL);
    assert_true(find("matmul", true).flops > 0);
}

static void convolution_and_attention_know_their_operations(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_ones(TARN_SHAPE(2, 3, 8, 8), TARN_F32, CPU)),
                *w = good(tarn_ones(TARN_SHAPE(5, 3, 3, 3), TARN_F32, CPU));
    tarn_tensor *q = good(tarn_ones(TARN_SHAPE(1, 2, 6, 4), TARN_F32, CPU));
    tarn_requires_grad(w, true);
    tarn_requires_grad(q, true);
    start(CPU);
    assert_true(tarn_backward(tarn_sum(tarn_conv2d(x, w, NULL, NULL), TARN_ALL_AXES, false)));
    assert_true(tarn_backward(
        tarn_sum(tarn_attention(q, q, q, &(tarn_attention_options){.causal = true}), TARN_ALL_AXES, false)));
    stop();
    double convolution = 2.0 * (2 * 5 * 6 * 6) * (3 * 3 * 3), pairs = 6 * 7 / 2.0;
    assert_true(find("conv2d", false).flops == convolution);
    assert_true(find("conv2d_grad_weight", true).flops == convolution);
    assert_int_equal(find("conv2d", false).kind, TARN_PROFILE_CONVOLUTION);
    assert_true(find("attention", false).flops == 2 * 2.0 * 2 * 4 * pairs);
    assert_true(find("attention_grad", true).flops == 2 * 5.0 * 2 * 4 * pairs);
    assert_int_equal(find("attention", false).kind, TARN_PROFILE_ATTENTION);
}

/* Of T rows at the end of S keys: min(window, position + 1) keys each. */
static void attention_counts_the_keys_of_its_window(void **state)
{
    (void)state;
    for (int64_t rows = 1; rows <= 6; rows += 5)
        for (int64_t window = 1; window < 9; window += 3) {
            tarn_tensor *q = good(tarn_ones(TARN_SHAPE(1, 2, rows, 4), TARN_F32, CPU)),
                        *k = good(tarn_ones(TARN_SHAPE(1, 1, 8, 4), TARN_F32, CPU));
            double pairs = 0;
            for (int64_t t = 0; t < rows; t++)
                pairs += (double)(8 - rows + t + 1 < window ? 8 - rows + t + 1 : window);
            start(CPU);
            good(tarn_attention(q, k, k, &(tarn_attention_options){.causal = true, .window = window}));
            stop();
            assert_true(find("attention", false).flops == 2 * 2.0 * 2 * 4 * pairs);
        }
}

static void nothing_is_recorded_before_and_after(void **state)
{
    (void)state;
    multiply(CPU, false);
    start(CPU);
    stop();
    multiply(CPU, false);
    assert_int_equal(tarn_profile_count(), 0);
    start(CPU);
    multiply(CPU, false);
    stop();
    int64_t count = tarn_profile_count();
    assert_true(count > 0);
    multiply(CPU, false);
    assert_int_equal(tarn_profile_count(), count);
    tarn_profile_clear();
    assert_int_equal(tarn_profile_count(), -1);
    assert_error(TARN_ERROR_ARGUMENT, "no profile was recorded");
}

static void elements_of_expanded_axes_count_once(void **state)
{
    (void)state;
    tarn_tensor *wide = good(tarn_expand(tarn_ones(TARN_SHAPE(1, 8), TARN_F32, CPU), TARN_SHAPE(100, 8)));
    start(CPU);
    good(tarn_exp(wide));
    stop();
    assert_true(find("exp", false).bytes == 4.0 * (8 + 800));
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static void shares_add_up_and_rows_hold_every_record(void **state)
{
    (void)state;
    tarn_profile_summary sum;
    tarn_profile_row row[64];
    start(CPU);
    for (int i = 0; i < 5; i++)
        multiply(CPU, true);
    stop();
    assert_true(tarn_profile_summarize(&sum, row, 64));
    double all = 0;
    for (int i = 0; i < TARN_PARTS; i++) {
        assert_true(sum.part[i] >= 0);
        assert_non_null(tarn_profile_part_name((tarn_profile_part)i));
        all += sum.part[i];
    }
    assert_true(fabs(all - 1) < 1e-9);
    assert_true(sum.part[TARN_PART_MATMUL] > 0 && sum.part[TARN_PART_KERNELS] > 0 && sum.part[TARN_PART_HOST] > 0);
    assert_true(fabs(sum.utilization - sum.part[TARN_PART_MATMUL] - sum.part[TARN_PART_KERNELS]) < 1e-9);
    int64_t calls = 0;
    for (int64_t i = 0; i < sum.rows; i++) {
        assert_true(i == 0 || row[i - 1].device_microseconds >= row[i].device_microseconds);
        calls += row[i].calls;
    }
    assert_int_equal(calls, sum.records);
    assert_int_equal(sum.lost, 0);
    assert_true(tarn_profile_summarize(&sum, NULL, 0));
}

static void a_sample_leaves_the_profile_before_it(void **state)
{
    (void)state;
    double utilization = -1;
    start(CPU);
    multiply(CPU, false);
    assert_false(tarn__sample_start(CPU)); /* while a profile is taken */
    assert_ok();
    stop();
    int64_t count = tarn_profile_count();
    assert_true(tarn__sample_start(CPU));
    multiply(CPU, true);
    assert_true(tarn__sample_stop(&utilization));
    assert_true(utilization > 0);
    assert_int_equal(tarn_profile_count(), count);
    assert_true(find("matmul", false).flops > 0);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static void copies_and_waits_of_a_device_are_recorded(void **state)
{
    (void)state;
    tarn_device mirror = tarn_device_parse("mirror:0");
    assert_ok();
    start(mirror);
    tarn_tensor *x = good(tarn_from_f32((const float[]){1, 2, 3, 4}, TARN_SHAPE(4), mirror));
    assert_true(tarn_item(tarn_sum(x, TARN_ALL_AXES, false)) == 10);
    stop();
    tarn_profile_record up = find("upload", false), down = find("download", false);
    assert_int_equal(up.kind, TARN_PROFILE_COPY);
    assert_true(up.bytes == 16);
    assert_true(tarn_device_equal(up.device, mirror));
    assert_int_equal(down.kind, TARN_PROFILE_COPY);
    assert_int_equal(find("synchronize", false).kind, TARN_PROFILE_WAIT);
    assert_true(tarn_device_equal(find("sum", false).device, mirror));
}

/* ---- spans, threads and the trace -------------------------------------------------------------------------------- */

static void *work_apart(void *ctx)
{
    (void)ctx;
    tarn_scope *scope = tarn_scope_open();
    tarn_profile_span_open("apart");
    tarn_exp(tarn_ones(TARN_SHAPE(1000), TARN_F32, CPU));
    tarn_profile_span_close();
    tarn_scope_close(scope);
    return NULL;
}

static void spans_of_all_threads_nest_in_the_trace(void **state)
{
    (void)state;
    pthread_t thread[3];
    start(CPU);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, work_apart, NULL), 0);
    for (int i = 0; i < 4; i++) {
        tarn_profile_span_open("outer \"quoted\"");
        multiply(CPU, true);
        tarn_profile_span_open("inner");
        multiply(CPU, false);
        tarn_profile_span_close();
        tarn_profile_span_close();
    }
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    stop();
    assert_int_equal(find("inner", false).thread, 0);
    assert_true(isnan(find("inner", false).device_start));
    assert_true(find("apart", false).thread > 0);
    if (!TARN__HAVE_JANSSON)
        skip();
    const char *path = scratch("trace.json");
    assert_true(tarn_profile_write_trace(path));
    trace t = read_trace(path);
    assert_int_equal(count_events(&t, TRACE_HOST, "inner"), 4);
    assert_int_equal(count_events(&t, TRACE_HOST, "outer ?quoted?"), 4);
    assert_int_equal(count_events(&t, TRACE_HOST, "apart"), 3);
    assert_true(count_events(&t, TRACE_DEVICE, "matmul") >= 8);
    for (int i = 0; i < t.count; i++)
        assert_true(t.event[i].process == TRACE_HOST || t.event[i].process == TRACE_DEVICE);
    free_trace(&t);
}

static void spans_on_the_host_nest(void **state)
{
    (void)state;
    if (!TARN__HAVE_JANSSON)
        skip();
    start(CPU);
    for (int i = 0; i < 4; i++) {
        tarn_profile_span_open("outer");
        multiply(CPU, true);
        tarn_profile_span_open("inner");
        multiply(CPU, false);
        tarn_profile_span_close();
        tarn_profile_span_close();
    }
    stop();
    const char *path = scratch("nested.json");
    assert_true(tarn_profile_write_trace(path));
    trace t = read_trace(path);
    assert_nested(&t);
    free_trace(&t);
}

/* Spans deeper than there is room for are left out, and those around them are right. */
static void spans_may_be_too_deep(void **state)
{
    (void)state;
    start(CPU);
    for (int i = 0; i < 40; i++)
        tarn_profile_span_open("deep");
    for (int i = 0; i < 40; i++)
        tarn_profile_span_close();
    tarn_profile_span_close(); /* one too many does nothing */
    tarn_profile_span_open("after");
    tarn_profile_span_close();
    stop();
    assert_int_equal(tarn_profile_count(), 16 + 1);
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

static bool get_sample(int64_t index, void *const *memory, void *ctx)
{
    (void)ctx;
    *(float *)memory[0] = (float)index;
    return true;
}

/* While the device is at step n, batch n + 1 travels: the mirror device has lanes. Which batches are full in time
 * depends on the threads, so a step waits for them as long as it takes. */
static void the_copy_of_the_next_batch_overlaps_a_step(void **state)
{
    (void)state;
    tarn_device mirror = tarn_device_parse("mirror:0");
    tarn_dataset *dataset = tarn_dataset_new(&(tarn_field){"x", TARN_F32, TARN_SCALAR}, 1, 64, get_sample, NULL, NULL);
    tarn_loader *loader =
        tarn_loader_new(dataset, &(tarn_loader_options){.batch_size = 2, .workers = 1, .device = mirror});
    assert_ok();
    if (!TARN__HAVE_JANSSON)
        skip();
    start(mirror);
    for (int i = 0; i < 32; i++) {
        tarn_tensor *x;
        tarn_scope *scope = tarn_scope_open();
        /* the thread fills the batch behind the one that is taken now */
        nanosleep(&(struct timespec){0, 2000000}, NULL);
        assert_true(tarn_loader_next(loader, &x));
        tarn_profile_span_open("step");
        assert_true(tarn_item(tarn_sum(x, TARN_ALL_AXES, false)) == 4.0 * i + 1);
        tarn_profile_span_close();
        tarn_scope_close(scope);
    }
    stop();
    tarn_loader_free(loader);
    tarn_dataset_free(dataset);
    const char *path = scratch("batches.json");
    assert_true(tarn_profile_write_trace(path));
    trace t = read_trace(path);
    assert_int_equal(count_events(&t, TRACE_DEVICE, "batch"), 32);
    assert_true(count_events(&t, TRACE_HOST, "read samples") >= 32);
    assert_true(count_overlaps(&t, "step") > 0);
    free_trace(&t);
    /* beside waits for a batch, where the thread was late */
    assert_true(find_kind("batch", TARN_PROFILE_LOADER_COPY, false).bytes == 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(kernels_are_recorded_with_what_they_compute),
        in_scope(convolution_and_attention_know_their_operations),
        in_scope(attention_counts_the_keys_of_its_window),
        in_scope(nothing_is_recorded_before_and_after),
        in_scope(elements_of_expanded_axes_count_once),
        in_scope(shares_add_up_and_rows_hold_every_record),
        in_scope(a_sample_leaves_the_profile_before_it),
        in_scope(copies_and_waits_of_a_device_are_recorded),
        in_scope(spans_of_all_threads_nest_in_the_trace),
        in_scope(spans_on_the_host_nest),
        in_scope(spans_may_be_too_deep),
        in_scope(the_copy_of_the_next_batch_overlaps_a_step),
    };
    int status = cmocka_run_group_tests(tests, make_scratch, remove_scratch);
    tarn_profile_clear();
    return status;
}
