/* test_scale_grad.c: the gradient of x · w where w is broadcast along axes of x, against sums in f64.
 * TARN_TEST_DEVICE names the device; default: the CPU. */
#include "support/check.h"

static tarn_device device;

typedef struct form {
    const char *what;
    int64_t shape[3], weight[3];
    bool transposed; /* x and the upstream gradient lie with their last two axes exchanged */
    bool one_pass;   /* one kernel makes both gradients */
} form;

static const form forms[] = {
    {"a weight for each row", {1, 40, 1500}, {1, 40, 1}, false, true},
    {"a weight for each of many rows", {6, 30, 64}, {6, 30, 1}, false, true},
    {"a weight for each column", {5, 31, 1300}, {1, 1, 1300}, false, true},
    {"a weight for each of few columns", {1, 300, 65}, {1, 1, 65}, false, true},
    {"a weight for each column, strided", {1, 1300, 33}, {1, 1300, 1}, true, true},
    {"a weight for each row, adjacent", {1, 100, 40}, {1, 1, 40}, true, true},
    {"a weight for each of both", {4, 20, 70}, {1, 20, 1}, false, false},
    {"short rows", {1, 40, 12}, {1, 40, 1}, false, false},
    {"one weight", {2, 10, 100}, {1, 1, 1}, false, false},
};

static tarn_tensor *lying(tarn_tensor *x, bool transposed)
{
    return transposed ? tarn_transpose(tarn_contiguous(tarn_transpose(x, 1, 2)), 1, 2) : x;
}

/* In f64, with w repeated in memory and the sum an operation of its own. */
static void exact_gradients(const form *f, tarn_tensor *x, tarn_tensor *w, tarn_tensor *g, tarn_tensor **gx,
                            tarn_tensor **gw)
{
    tarn_shape shape = TARN_SHAPE(f->shape[0], f->shape[1], f->shape[2]);
    tarn_axes repeated = {0};
    for (int i = 0; i < 3; i++)
        if (f->weight[i] != f->shape[i])
            repeated.axis[repeated.count++] = i;
    tarn_tensor *wide = tarn_contiguous(tarn_cast(g, TARN_F64));
    *gx = good(tarn_mul(wide, tarn_contiguous(tarn_expand(tarn_cast(tarn_detach(w), TARN_F64), shape))));
    *gw = good(tarn_sum(tarn_mul(wide, tarn_contiguous(tarn_cast(tarn_detach(x), TARN_F64))), repeated, true));
}

static double apart(tarn_tensor *a, tarn_tensor *b)
{
    double *x = values_of(a), *y = values_of(b), most = 0, size = 0;
    for (int64_t i = 0; i < tarn_count(a); i++) {
        most = fmax(most, fabs(x[i] - y[i]));
        size = fmax(size, fabs(y[i]));
    }
    free(x);
    free(y);
    return most / size;
}

static void check_form(const form *f, tarn_dtype dtype, bool swapped, bool only_weight, double tolerance)
{
    tarn_shape shape = TARN_SHAPE(f->shape[0], f->shape[1], f->shape[2]);
    tarn_tensor *x = good(lying(tarn_normal(shape, 0, 1, dtype, device), f->transposed));
    tarn_tensor *w = good(tarn_normal(TARN_SHAPE(f->weight[0], f->weight[1], f->weight[2]), 0, 1, dtype, device));
    tarn_tensor *g = good(lying(tarn_normal(shape, 0, 1, dtype, device), f->transposed)), *gx, *gw;
    x = tarn_detach(x);
    tarn_requires_grad(x, !only_weight);
    tarn_requires_grad(w, true);
    tarn_tensor *y = good(swapped ? tarn_mul(w, x) : tarn_mul(x, w));
    tarn_counters before = tarn_stats();
    assert_true(tarn_backward_from(y, g, NULL));
    int64_t kernels = tarn_stats().kernels - before.kernels;
    if (f->one_pass && dtype == TARN_F32) /* and a copy: a leaf's gradient lies row by row */
        assert_int_equal(kernels, f->transposed && !only_weight ? 2 : 1);
    exact_gradients(f, x, w, g, &gx, &gw);
    if (!(apart(tarn_grad(w), gw) < tolerance) || (!only_weight && !(apart(tarn_grad(x), gx) < tolerance)))
        fail_msg("%s, %s", f->what, tarn_dtype_name(dtype));
    assert_ok();
}

static void every_form_agrees_with_f64(void **state)
{
    (void)state;
    tarn_seed(11);
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        for (int way = 0; way < 4; way++) {
            tarn_scope *scope = tarn_scope_open();
            check_form(&forms[i], TARN_F64, way & 1, way & 2, 1e-14);
            check_form(&forms[i], TARN_F32, way & 1, way & 2, 1e-6);
            check_form(&forms[i], TARN_BF16, way & 1, way & 2, 1e-6); /* gradients of leaves are f32 */
            check_form(&forms[i], TARN_F16, way & 1, way & 2, 1e-6);
            tarn_scope_close(scope);
        }
}

/* Large enough to be written past the caches. */
static void large_ones_agree_too(void **state)
{
    (void)state;
    static const form large[] = {{"large, by rows", {1, 4099, 2056}, {1, 4099, 1}, false, true},
                                 {"large, by columns", {1, 4099, 2056}, {1, 1, 2056}, false, true}};
    for (int i = 0; i < 2; i++) {
        check_form(&large[i], TARN_F32, false, false, 1e-5);
        if (!getenv("TARN_TEST_QUICK")) /* half a minute under a sanitizer */
            check_form(&large[i], TARN_BF16, false, false, 1e-5);
    }
}

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {in_scope(every_form_agrees_with_f64), in_scope(large_ones_agree_too)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
