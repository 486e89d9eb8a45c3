/* test_mirror.c: devices other than the CPU, through the mirror backend: device selection, operands on two devices,
 * counted transfers, gradients without a transfer, one thread per device. */
#include <pthread.h>
#include <tarn/profile.h>

#include "support/check.h"

#define CPU tarn_device_cpu()

static tarn_device mirror(int index)
{
    char name[32];
    snprintf(name, sizeof(name), "mirror:%d", index);
    tarn_device device = tarn_device_parse(name);
    assert_ok();
    return device;
}

static bool is_on(const tarn_tensor *tensor, tarn_device device)
{
    return tarn_device_equal(tarn_device_of(tensor), device);
}

static tarn_tensor *on(tarn_device device, float a, float b)
{
    return good(tarn_from_f32((const float[]){a, b}, TARN_SHAPE(2), device));
}

static void devices_have_names_and_figures(void **state)
{
    (void)state;
    char name[32];
    tarn_device_info info;
    assert_int_equal(tarn_device_count("mirror"), 2);
    assert_int_equal(tarn_device_count("nosuch"), 0);
    assert_ok();
    assert_string_equal(tarn_backend_missing("mirror"), "");
    assert_contains(tarn_backend_missing("nosuch"), "unknown backend 'nosuch'");
    assert_string_equal(tarn_device_name(mirror(1), name, sizeof(name)), "mirror:1");
    assert_string_equal(tarn_device_name(CPU, name, sizeof(name)), "cpu");
    assert_string_equal(tarn_device_name((tarn_device){7, 3}, name, sizeof(name)), "?");
    assert_string_equal(tarn_device_name(mirror(1), name, 4), "mir");
    assert_true(tarn_device_query(mirror(1), &info));
    assert_string_equal(info.name, "mirror:1");
    assert_true(info.memory_total > 0 && info.memory_free <= info.memory_total);
    assert_true(tarn_device_query(CPU, &info));
    assert_string_equal(info.name, "cpu");
    assert_false(tarn_device_equal(mirror(0), mirror(1)));
    assert_true(tarn_device_equal(mirror(1), mirror(1)));
    assert_true(tarn_device_equal(tarn_device_parse("mirror"), mirror(0)));
    assert_true(tarn_device_equal(tarn_device_parse("cpu:0"), CPU));
    assert_true(tarn_synchronize(mirror(1)));
}

static void a_device_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    static const char *const texts[] = {"mirror:2",
                                        "mirror:-1",
                                        "mirror:",
                                        "mirror:x",
                                        "mirror:0 ",
                                        "nosuch",
                                        "",
                                        ":0",
                                        "cpu:1",
                                        "CPU",
                                        "../x",
                                        "mirror:99999999999999999999",
                                        "averyveryverylongname",
                                        "auto:1"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_true(tarn_device_equal(tarn_device_parse(texts[i]), CPU));
        assert_error(TARN_ERROR_DEVICE, "device_parse");
    }
    tarn_device_parse("mirror:2");
    assert_error(TARN_ERROR_DEVICE,
                 "device mirror:2 not found; available: mirror:0 (mirror of the CPU, number 0), mirror:1");
    for (int i = 0; i < 20; i++) { /* names that nobody has do not use up the slots */
        char name[16];
        snprintf(name, sizeof(name), "nosuch%d", i);
        assert_int_equal(tarn_device_count(name), 0);
    }
    assert_int_equal(tarn_device_count("mirror"), 2);
    assert_null(tarn_zeros(TARN_SHAPE(1), TARN_F32, (tarn_device){7, 0}));
    assert_error(TARN_ERROR_DEVICE, "zeros: device {7, 0} does not exist");
    assert_null(tarn_ones(TARN_SHAPE(1), TARN_F32, (tarn_device){-1, 0}));
    assert_error(TARN_ERROR_DEVICE, "ones: device {-1, 0} does not exist");
    assert_null(tarn_from_f32((const float[]){1}, TARN_SHAPE(1), (tarn_device){0, 1}));
    assert_error(TARN_ERROR_DEVICE, "from");
}

static void results_are_on_the_device_of_their_operands(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        tarn_device device = mirror(i);
        tarn_tensor *x = on(device, 1, 2);
        tarn_tensor *made[] = {tarn_add(x, x),
                               tarn_tanh(x),
                               tarn_gt(x, tarn_scalar(1)),
                               tarn_zeros_like(x),
                               tarn_normal_like(x, 0, 1),
                               tarn_clone(x),
                               tarn_cast(x, TARN_BF16),
                               tarn_sum(x, TARN_ALL_AXES, false),
                               tarn_reshape(x, TARN_SHAPE(2, 1)),
                               tarn_eye(3, 3, TARN_F32, device),
                               tarn_arange(0, 5, 1, TARN_I64, device)};
        assert_ok();
        for (size_t k = 0; k < sizeof(made) / sizeof(made[0]); k++)
            assert_true(is_on(good(made[k]), device));
        assert_values(made[0], 0, 2, 4);
        assert_values(made[7], 0, 3);
        char text[64];
        tarn_format(tarn_flip(x, TARN_AXES(0)), text, sizeof(text));
        assert_string_equal(text, "[2. 1.]");
    }
}

static void operands_on_two_devices_are_an_error_naming_both(void **state)
{
    (void)state;
    tarn_tensor *a = on(mirror(0), 1, 2), *b = on(mirror(1), 3, 4), *c = on(CPU, 5, 6);
    assert_null(tarn_add(a, b));
    assert_contains(tarn_error(), "mirror:1");
    assert_error(TARN_ERROR_DEVICE, "add: operands are on mirror:0 and mirror:1");
    assert_null(tarn_mul(c, a));
    assert_error(TARN_ERROR_DEVICE, "mul: operands are on cpu and mirror:0");
    assert_null(tarn_where(tarn_gt(a, tarn_scalar(1)), c, c));
    assert_error(TARN_ERROR_DEVICE, "where");
    assert_null(tarn_add_inplace(a, c));
    assert_error(TARN_ERROR_DEVICE, "add_inplace");
}

static void mixed_mode_moves_the_cpus_operand(void **state)
{
    (void)state;
    tarn_tensor *a = on(mirror(0), 1, 2), *b = on(mirror(1), 3, 4), *c = on(CPU, 5, 6);
    tarn_set_cross_device(TARN_CROSS_DEVICE_MOVE);
    tarn_stats_reset();
    tarn_tensor *sum = good(tarn_add(c, a));
    assert_true(is_on(sum, mirror(0)));
    assert_int_equal(tarn_stats().uploads, 1);
    assert_int_equal(tarn_stats().upload_bytes, 8);
    assert_values(sum, 0, 6, 8);
    tarn_tensor *leaf = good(tarn_requires_grad(on(CPU, 2, 3), true));
    assert_true(tarn_backward_from(tarn_mul(a, leaf), on(mirror(0), 1, 1), NULL));
    assert_true(is_on(tarn_grad(leaf), CPU));
    assert_values(tarn_grad(leaf), 0, 1, 2);
    assert_null(tarn_add(a, b)); /* neither is on the CPU */
    assert_error(
        TARN_ERROR_DEVICE,
        "add: operands are on mirror:0 and mirror:1; move one with tarn_to(); only operands on the CPU are moved");
    tarn_set_cross_device(TARN_CROSS_DEVICE_ERROR);
    assert_null(tarn_add(c, a));
    assert_error(TARN_ERROR_DEVICE, "add");
}

static void copies_between_devices_are_counted(void **state)
{
    (void)state;
    tarn_tensor *x = on(CPU, 1, 2);
    tarn_stats_reset();
    tarn_tensor *a = good(tarn_to(x, mirror(0)));
    assert_int_equal(tarn_stats().uploads, 1);
    tarn_tensor *b = good(tarn_to(a, mirror(1)));
    assert_int_equal(tarn_stats().peer_copies, 1);
    assert_int_equal(tarn_stats().peer_bytes, 8);
    tarn_tensor *back = good(tarn_to(b, CPU));
    assert_int_equal(tarn_stats().downloads, 1);
    assert_int_equal(tarn_stats().download_bytes, 8);
    assert_values(back, 0, 1, 2);
    assert_ptr_equal(tarn_to(back, CPU), back);
    assert_ptr_equal(tarn_to(b, mirror(1)), b);
    tarn_counters counters = tarn_stats();
    assert_int_equal(counters.uploads, 1);
    assert_int_equal(counters.downloads, 1);
    assert_int_equal(counters.peer_copies, 1);
}

static void copies_convert_dtype_and_layout_on_the_way(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_reshape(tarn_arange(0, 6, 1, TARN_F32, mirror(0)), TARN_SHAPE(2, 3)));
    tarn_tensor *to = good(tarn_zeros(TARN_SHAPE(3, 2), TARN_I64, mirror(1)));
    assert_true(tarn_copy(to, tarn_transpose(x, 0, 1)));
    assert_values(to, 0, 0, 3, 1, 4, 2, 5);
    assert_true(tarn_copy(tarn_transpose(to, 0, 1), tarn_flip(x, TARN_AXES(1))));
    assert_values(to, 0, 2, 5, 1, 4, 0, 3);
    assert_values(tarn_to(tarn_expand(tarn_slice(x, 0, 1, 2), TARN_SHAPE(2, 3)), CPU), 0, 3, 4, 5, 3, 4, 5);
    float raw[2] = {8, 9};
    assert_true(tarn_write(tarn_slice(x, 1, 1, 2), raw, sizeof(raw)));
    assert_values(x, 0, 0, 8, 2, 3, 9, 5);
    assert_true(tarn_item_at(x, TARN_SHAPE(1, 1)) == 9);
    tarn_tensor *large = good(tarn_arange(0, 5000000, 1, TARN_F32, mirror(0))); /* larger than one piece of staging */
    assert_true(tarn_item_at(tarn_to(large, CPU), TARN_SHAPE(4999999)) == 4999999);
}

static void constants_cost_no_transfer(void **state)
{
    (void)state;
    tarn_tensor *x = on(mirror(0), 1, 2);
    tarn_stats_reset();
    tarn_tensor *y = good(tarn_add(tarn_mul(x, tarn_scalar(3)), tarn_scalar(1)));
    y = good(tarn_where(tarn_gt(y, tarn_scalar(4)), y, tarn_scalar(0)));
    y = good(tarn_pow(y, tarn_scalar(2)));
    tarn_counters counters = tarn_stats();
    assert_int_equal(counters.uploads + counters.downloads + counters.peer_copies, 0);
    assert_int_equal(counters.kernels, counters.kernels_on[mirror(0).backend]);
    assert_values(y, 1e-6, 0, 49);
}

static void training_needs_no_transfer(void **state)
{
    (void)state;
    tarn_device device = mirror(1);
    tarn_seed(1);
    tarn_tensor *w = good(tarn_requires_grad(tarn_normal(TARN_SHAPE(4, 3), 0, 1, TARN_F32, device), true));
    tarn_tensor *b = good(tarn_requires_grad(tarn_zeros(TARN_SHAPE(3), TARN_F32, device), true));
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(5, 4), 0, 1, TARN_F32, device));
    tarn_stats_reset();
    for (int i = 0; i < 3; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *wide = tarn_mul(tarn_unsqueeze(x, 2), tarn_unsqueeze(w, 0)); /* [5, 4, 3] */
        tarn_tensor *y = tarn_tanh(tarn_add(tarn_sum(wide, TARN_AXES(1), false), b));
        assert_true(tarn_backward(tarn_mean(tarn_square(y), TARN_ALL_AXES, false)));
        tarn_no_grad_open();
        good(tarn_sub_inplace(w, tarn_mul(tarn_grad(w), tarn_scalar(0.1))));
        good(tarn_sub_inplace(b, tarn_mul(tarn_grad(b), tarn_scalar(0.1))));
        tarn_no_grad_close();
        tarn_zero_grad(w);
        tarn_zero_grad(b);
        tarn_scope_close(scope);
    }
    tarn_counters counters = tarn_stats();
    assert_int_equal(counters.uploads + counters.downloads + counters.peer_copies + counters.fallbacks, 0);
    assert_int_equal(counters.kernels_on[0], 0);
    assert_true(is_on(w, device));
}

static void gradients_flow_back_across_devices(void **state)
{
    (void)state;
    tarn_tensor *x = good(tarn_requires_grad(on(CPU, 2, 3), true));
    tarn_tensor *y = good(tarn_square(tarn_to(tarn_square(tarn_to(x, mirror(0))), mirror(1))));
    assert_true(tarn_backward(tarn_sum(y, TARN_ALL_AXES, false)));
    assert_true(is_on(tarn_grad(x), CPU));
    assert_values(tarn_grad(x), 1e-6, 32, 108);
    assert_false(tarn_backward_from(tarn_to(tarn_square(x), mirror(0)), on(CPU, 1, 1), NULL));
    assert_error(TARN_ERROR_DEVICE, "backward_from: the gradient given is on another device");
}

static void host_arrays_are_computed_on_a_device(void **state)
{
    (void)state;
    float a[] = {1, 2, 3}, b[] = {10, 20, 30};
    tarn_array in[] = {{a, TARN_SHAPE(3), TARN_F32}, {b, TARN_SHAPE(3), TARN_F32}}, out = {0};
    int64_t before = tarn_memory_of(mirror(0)).used;
    tarn_stats_reset();
    assert_true(tarn_apply_host("add", mirror(0), in, 2, NULL, 0, &out, 1));
    assert_int_equal(tarn_stats().uploads, 2);
    assert_int_equal(tarn_stats().downloads, 1);
    assert_true(((float *)out.data)[2] == 33 && out.shape.rank == 1 && out.dtype == TARN_F32);
    tarn_array_free(&out);
    assert_null(out.data);
    in[1].shape = TARN_SHAPE(2);
    assert_false(tarn_apply_host("add", mirror(0), in, 2, NULL, 0, &out, 1));
    assert_error(TARN_ERROR_SHAPE, "add");
    assert_null(out.data);
    assert_int_equal(tarn_memory_of(mirror(0)).used, before);
}

static void each_device_has_its_own_random_numbers_and_pool(void **state)
{
    (void)state;
    tarn_seed(9);
    tarn_tensor *cpu = good(tarn_uniform(TARN_SHAPE(5), 0, 1, TARN_F32, CPU));
    tarn_tensor *zero = good(tarn_uniform(TARN_SHAPE(5), 0, 1, TARN_F32, mirror(0)));
    tarn_tensor *one = good(tarn_uniform(TARN_SHAPE(5), 0, 1, TARN_F32, mirror(1)));
    assert_close(cpu, zero, 0); /* the same seed from offset 0: bitwise identical */
    assert_close(cpu, one, 0);
    tarn_memory before[2] = {tarn_memory_of(mirror(0)), tarn_memory_of(mirror(1))};
    good(tarn_zeros(TARN_SHAPE(1000), TARN_F32, mirror(1)));
    assert_int_equal(tarn_memory_of(mirror(0)).blocks, before[0].blocks);
    assert_int_equal(tarn_memory_of(mirror(1)).blocks, before[1].blocks + 1);
}

/* ---- one thread for each device ---------------------------------------------------------------------------------- */

typedef struct work {
    tarn_device device;
    double result;
    char error[256];
} work;

static void *compute(void *argument)
{
    work *job = argument;
    tarn_seed(3);
    tarn_tensor *w = tarn_requires_grad(tarn_normal(TARN_SHAPE(64, 64), 0, 0.1, TARN_F32, job->device), true);
    for (int i = 0; i < 30; i++) {
        tarn_scope *scope = tarn_scope_open();
        tarn_tensor *y = tarn_sum(tarn_tanh(tarn_mul(w, tarn_normal(TARN_SHAPE(64, 64), 0, 1, TARN_F32, job->device))),
                                  TARN_ALL_AXES, false);
        tarn_backward(y);
        tarn_no_grad_open();
        tarn_sub_inplace(w, tarn_mul(tarn_grad(w), tarn_scalar(0.01)));
        tarn_no_grad_close();
        tarn_zero_grad(w);
        tarn_scope_close(scope);
    }
    job->result = tarn_item(tarn_sum(w, TARN_ALL_AXES, false));
    snprintf(job->error, sizeof(job->error), "%s", tarn_error());
    return NULL;
}

static void one_thread_for_each_device(void **state)
{
    (void)state;
    work jobs[4] = {{.device = CPU}, {.device = mirror(0)}, {.device = mirror(1)}, {.device = mirror(1)}};
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, compute, &jobs[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(jobs[i].error, "");
        assert_true(jobs[i].result == jobs[0].result);
    }
}

static int nothing_is_held(void **state)
{
    (void)state;
    return tarn_memory_of(mirror(0)).used == 0 && tarn_memory_of(mirror(1)).used == 0 && tarn_empty_cache(mirror(0)) &&
                   tarn_memory_of(mirror(0)).cached == 0
               ? 0
               : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scope(devices_have_names_and_figures),
        in_scope(a_device_that_is_not_there_is_an_error),
        in_scope(results_are_on_the_device_of_their_operands),
        in_scope(operands_on_two_devices_are_an_error_naming_both),
        in_scope(mixed_mode_moves_the_cpus_operand),
        in_scope(copies_between_devices_are_counted),
        in_scope(copies_convert_dtype_and_layout_on_the_way),
        in_scope(constants_cost_no_transfer),
        in_scope(training_needs_no_transfer),
        in_scope(gradients_flow_back_across_devices),
        in_scope(host_arrays_are_computed_on_a_device),
        in_scope(each_device_has_its_own_random_numbers_and_pool),
        in_scope(one_thread_for_each_device),
    };
    return cmocka_run_group_tests(tests, NULL, nothing_is_held);
}
