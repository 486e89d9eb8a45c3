/* test_meta.c: meta devices of OpenCL count the scratch that kernels use, without compiling, tuning or running any. */
#include "core/device/device.h"
#include "support/opencl.h"

#include <tarn/ops.h>
#include <tarn/profile.h>

static tarn_tensor *leaf(tarn_shape shape, tarn_device device)
{
    return good(tarn_requires_grad(tarn_normal(shape, 0, 1, TARN_F32, device), true));
}

static tarn_tensor *ones(int64_t size, tarn_device device)
{
    return good(tarn_requires_grad(tarn_ones(TARN_SHAPE(size), TARN_F32, device), true));
}

/* Long sums are cut into chunks. */
static tarn_tensor *reductions(tarn_device device)
{
    tarn_tensor *x = leaf(TARN_SHAPE(3, 50000), device);
    tarn_tensor *sum = tarn_add(tarn_sum(x, TARN_AXES(1), false), tarn_max(x, TARN_AXES(1), false));
    return tarn_add(sum, tarn_var(x, TARN_AXES(1), 1, false));
}

static tarn_tensor *sorted(tarn_device device)
{
    tarn_tensor *values, *x = leaf(TARN_SHAPE(2, 3000), device);
    assert_true(tarn_sort(x, 1, true, &values, NULL));
    return tarn_cumsum(values, 1);
}

static tarn_tensor *rows_of_a_table(tarn_device device)
{
    return tarn_embedding(leaf(TARN_SHAPE(50, 24), device), good(tarn_zeros(TARN_SHAPE(700), TARN_I64, device)));
}

static tarn_tensor *norms(tarn_device device)
{
    tarn_tensor *x = leaf(TARN_SHAPE(40, 200), device);
    return tarn_rmsnorm(tarn_layernorm(x, ones(200, device), ones(200, device), 1e-5), ones(200, device), 1e-5);
}

static tarn_tensor *channels(tarn_device device)
{
    tarn_tensor *x = leaf(TARN_SHAPE(4, 8, 19, 21), device);
    return tarn_groupnorm(x, 4, ones(8, device), ones(8, device), 1e-5);
}

static tarn_tensor *matmuls(tarn_device device)
{
    tarn_tensor *x = leaf(TARN_SHAPE(130, 70), device), *w = leaf(TARN_SHAPE(70, 90), device);
    return tarn_matmul(x, w);
}

/* Split along k, and packed in several batches. */
static tarn_tensor *long_matmuls(tarn_device device)
{
    return tarn_matmul(leaf(TARN_SHAPE(3, 20, 2100), device), leaf(TARN_SHAPE(3, 2100, 20), device));
}

static tarn_tensor *images(tarn_device device)
{
    tarn_tensor *x = leaf(TARN_SHAPE(5, 6, 17, 15), device), *w = leaf(TARN_SHAPE(8, 3, 3, 3), device);
    return tarn_conv2d(x, w, ones(8, device), &(tarn_conv2d_options){.groups = 2, .padding = {1, 1}});
}

static tarn_tensor *heads(tarn_device device)
{
    tarn_tensor *q = leaf(TARN_SHAPE(2, 4, 33, 16), device), *k = leaf(TARN_SHAPE(2, 4, 33, 16), device);
    q = tarn_rope(q, NULL, &(tarn_rope_options){.axis = 2});
    return tarn_attention(q, k, leaf(TARN_SHAPE(2, 4, 33, 16), device), &(tarn_attention_options){.causal = true});
}

/* Peak of a formula and its gradients, above what is used before. */
static int64_t peak_of(tarn_tensor *(*formula)(tarn_device), tarn_device device)
{
    tarn_scope *scope = tarn_scope_open();
    int64_t before = tarn_memory_of(device).used;
    tarn_stats_reset();
    tarn_tensor *y = good(formula(device));
    assert_true(tarn_backward(tarn_sum(tarn_mul(y, y), TARN_ALL_AXES, false)));
    int64_t peak = tarn_memory_of(device).peak_used - before;
    tarn_scope_close(scope);
    return peak;
}

static void peaks_are_those_of_the_device(void **state)
{
    NEEDS_OPENCL();
    static tarn_tensor *(*const formulas[])(tarn_device) = {reductions, sorted,       rows_of_a_table, norms, channels,
                                                            matmuls,    long_matmuls, images,          heads};
    tarn_device meta = tarn__meta_device_of(opencl);
    for (size_t i = 0; i < sizeof(formulas) / sizeof(formulas[0]); i++) {
        int64_t planned = peak_of(formulas[i], meta);
        assert_int_equal(tarn_stats().kernels, 0);
        assert_int_equal(planned, peak_of(formulas[i], opencl));
    }
}

static tarn_tensor *large_matmul(tarn_device device)
{
    tarn_tensor *x = leaf(TARN_SHAPE(250, 250), device);
    return tarn_matmul(x, leaf(TARN_SHAPE(250, 250), device));
}

/* Until a tile is chosen, the plan has room for the scratch of any. */
static void a_matmul_to_be_tuned_has_room_for_every_tile(void **state)
{
    NEEDS_OPENCL();
    tarn_device meta = tarn__meta_device_of(opencl);
    int64_t planned = peak_of(large_matmul, meta), needed = peak_of(large_matmul, opencl);
    assert_true(planned >= needed && planned < needed + needed / 4);
    assert_int_equal(peak_of(large_matmul, meta), needed);
}

/* A cache of the test's own: nothing is tuned yet. */
static int set_up(void **state)
{
    static char folder[] = "/tmp/tarn_opencl_meta_XXXXXX";
    (void)state;
    return mkdtemp(folder) ? setenv("XDG_CACHE_HOME", folder, 1) : 1;
}

static int take_down(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", getenv("XDG_CACHE_HOME"));
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_OPENCL(peaks_are_those_of_the_device),
        ON_OPENCL(a_matmul_to_be_tuned_has_room_for_every_tile),
    };
    return cmocka_run_group_tests(tests, set_up, take_down);
}
