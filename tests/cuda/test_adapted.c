/*
 * Narrow products on a CUDA device, both results of one way through x and each alone, against sums in f64; and layers with adapters, which are made of them,
 * against the CPU. Without a device every test is skipped.
 */
#include "ops/adapted.h"
#include "support/gpu.h"

#define CPU tarn_device_cpu()

/* Sums over k of left[i, k] · right[j, k] · alpha against what was found; right for numbers of 16 bits with sums in f32, as a share of the terms' size. */
static void sums_are_right(const double *found, const double *before, const double *left, const double *right, int64_t m, int64_t n, int64_t k, double alpha,
                           double tolerance)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, size = 1e-30;
            for (int64_t l = 0; l < k; l++) {
                double term = alpha * left[i * k + l] * right[j * k + l];
                sum += term;
                size += term * term;
            }
            sum += before ? before[i * n + j] : 0;
            assert_true(fabs(found[i * n + j] - sum) <= tolerance * (sqrt(size) + fabs(sum)));
        }
}

typedef struct trial {
    int64_t rows, columns, rank;
    bool has_p, has_q, is_turned; /* s is a transposed view, and so is q */
} trial;

static tarn_tensor *turned(tarn_tensor *x)
{
    return good(tarn_transpose(x, 0, 1));
}

static void narrow_products_are_right(const trial *t, tarn_dtype dtype)
{
    bool flips = t->is_turned;
    tarn_tensor *x = good(tarn_normal(TARN_SHAPE(t->rows, t->columns), 0, 1, dtype, gpu));
    tarn_tensor *s = good(tarn_normal(flips ? TARN_SHAPE(t->rank, t->columns) : TARN_SHAPE(t->columns, t->rank), 0, 1, dtype, gpu));
    tarn_tensor *wide = good(tarn_normal(TARN_SHAPE(t->rows, t->rank + 16), 0, 1, dtype, gpu)), *right = good(tarn_slice(wide, 1, 8, 8 + t->rank));
    tarn_tensor *p = good(tarn_zeros(TARN_SHAPE(t->rows, t->rank), dtype, gpu));
    tarn_tensor *q = good(tarn_normal(flips ? TARN_SHAPE(t->rank, t->columns) : TARN_SHAPE(t->columns, t->rank), 0, 1, TARN_F32, gpu));
    s = flips ? turned(s) : s;
    tarn_tensor *to = flips ? turned(q) : q;
    double *before = values_of(good(tarn_contiguous(to)));
    tarn__matmul tail = {.alpha = 0.5, .beta = 1};
    assert_true(tarn__kernel_call(TARN__K_narrow_products, "test", tail, TARN__IN(x, t->has_p ? s : NULL, t->has_q ? right : NULL),
                                  TARN__OUT(t->has_p ? p : NULL, t->has_q ? to : NULL), .reads_output = 2));
    double *of_x = values_of(x), *of_x_turned = values_of(good(tarn_contiguous(turned(x)))), *of_s = values_of(good(tarn_contiguous(turned(s)))),
           *of_t = values_of(good(tarn_contiguous(turned(right)))), *of_p = values_of(p), *of_q = values_of(good(tarn_contiguous(to)));
    if (t->has_p)
        sums_are_right(of_p, NULL, of_x, of_s, t->rows, t->rank, t->columns, 0.5, dtype == TARN_BF16 ? 8e-3 : 1e-3);
    if (t->has_q)
        sums_are_right(of_q, before, of_x_turned, of_t, t->columns, t->rank, t->rows, 0.5, 1e-5);
    assert_int_equal(tarn_stats().fallbacks, 0);
    free(before), free(of_x), free(of_x_turned), free(of_s), free(of_t), free(of_p), free(of_q);
    assert_ok();
}

static void narrow_products_are_sums(void **state)
{
    NEEDS_GPU();
    static const trial all[] = {{256, 256, 16, true, true, false}, {300, 520, 16, true, true, false}, {1000, 40, 8, true, true, false},
                                {333, 264, 32, true, true, true},  {257, 8, 24, true, true, false},   {700, 1032, 48, true, false, true},
                                {321, 304, 48, false, true, true}, {64, 256, 40, true, false, false}, {5, 16, 16, false, true, false},
                                {2000, 72, 16, true, true, true},  {129, 70 * 8, 32, false, true, true}};
    tarn_stats_reset();
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        for (int d = 0; d < 2; d++) {
            tarn_scope *scope = tarn_scope_open();
            narrow_products_are_right(&all[i], d ? TARN_F16 : TARN_BF16);
            tarn_scope_close(scope);
        }
}

/* ---- layers ---------------------------------------------------------------------------------------------------------------- */

enum { LAYERS = 3, IN = 136 };
static const int64_t outs[LAYERS] = {264, 72, 16};

typedef struct network {
    tarn_tensor *x;
    tarn__adapted_layer layer[LAYERS];
} network;

static tarn_tensor *trained(tarn_tensor *x)
{
    return tarn_requires_grad(good(x), true);
}

static network network_on(const network *from, tarn_device device)
{
    network n = {.x = trained(tarn_to(tarn_detach(from->x), device))};
    for (int i = 0; i < LAYERS; i++) {
        const tarn__adapted_layer *l = &from->layer[i];
        n.layer[i] = (tarn__adapted_layer){good(tarn_to(l->weight, device)), NULL, trained(tarn_to(tarn_detach(l->a), device)),
                                           trained(tarn_to(tarn_detach(l->b), device)), l->scale};
    }
    return n;
}

static network make(int64_t rows, int64_t rank)
{
    network n = {.x = good(tarn_normal(TARN_SHAPE(rows, IN), 0, 1, TARN_BF16, CPU))};
    for (int i = 0; i < LAYERS; i++)
        n.layer[i] = (tarn__adapted_layer){good(tarn_normal(TARN_SHAPE(outs[i], IN), 0, 0.1, TARN_BF16, CPU)), NULL,
                                           good(tarn_normal(TARN_SHAPE(rank, IN), 0, 0.1, TARN_BF16, CPU)),
                                           good(tarn_normal(TARN_SHAPE(outs[i], rank), 0, 0.1, TARN_BF16, CPU)), 1.5};
    return n;
}

static double apart(tarn_tensor *a, tarn_tensor *b)
{
    double *x = values_of(good(a)), *y = values_of(good(b)), most = 0, size = 1e-30;
    for (int64_t i = 0; i < tarn_count(a); i++) {
        most = fmax(most, isfinite(x[i]) ? fabs(x[i] - y[i]) : INFINITY);
        size = fmax(size, fabs(y[i]));
    }
    free(x);
    free(y);
    return most / size;
}

static void pass(network *n, tarn_tensor *const *g, tarn_tensor **y)
{
    assert_true(tarn__linears_adapted(n->x, n->layer, LAYERS, false, y));
    tarn_tensor *all = NULL;
    for (int i = 0; i < LAYERS; i++) {
        tarn_tensor *sum = tarn_sum(tarn_mul(tarn_cast(y[i], TARN_F32), g[i]), TARN_ALL_AXES, false);
        all = all ? tarn_add(all, sum) : sum;
    }
    assert_true(tarn_backward(good(all)));
}

static void layers_with_adapters_agree_with_the_cpu(void **state)
{
    NEEDS_GPU();
    static const int64_t rows[] = {3, 300, 1000}, ranks[] = {16, 8, 5, 32};
    for (int r = 0; r < 3; r++)
        for (int k = 0; k < 4; k++) {
            tarn_scope *scope = tarn_scope_open();
            network from = make(rows[r], ranks[k]), here = network_on(&from, CPU), there = network_on(&from, gpu);
            tarn_tensor *g[LAYERS], *same[LAYERS], *y[LAYERS], *found[LAYERS];
            for (int i = 0; i < LAYERS; i++) {
                g[i] = good(tarn_normal(TARN_SHAPE(rows[r], outs[i]), 0, 1, TARN_F32, CPU));
                same[i] = good(tarn_to(g[i], gpu));
            }
            tarn_stats_reset();
            pass(&there, same, found);
            assert_int_equal(tarn_stats().fallbacks, 0);
            pass(&here, g, y);
            assert_true(apart(tarn_grad(there.x), tarn_grad(here.x)) < 2e-2);
            for (int i = 0; i < LAYERS; i++) {
                assert_true(apart(found[i], y[i]) < 2e-2);
                assert_true(apart(tarn_grad(there.layer[i].a), tarn_grad(here.layer[i].a)) < 2e-2);
                assert_true(apart(tarn_grad(there.layer[i].b), tarn_grad(here.layer[i].b)) < 2e-2);
            }
            tarn_scope_close(scope);
        }
}

static void runs_have_the_same_bits(void **state)
{
    NEEDS_GPU();
    network from = make(3000, 16);
    tarn_tensor *g[LAYERS];
    double *grads[2];
    for (int i = 0; i < LAYERS; i++)
        g[i] = good(tarn_normal(TARN_SHAPE(3000, outs[i]), 0, 1, TARN_F32, gpu));
    for (int run = 0; run < 2; run++) {
        network n = network_on(&from, gpu);
        tarn_tensor *y[LAYERS];
        pass(&n, g, y);
        grads[run] = values_of(good(tarn_grad(n.layer[0].b)));
    }
    assert_memory_equal(grads[1], grads[0], sizeof(double) * 264 * 16);
    free(grads[0]);
    free(grads[1]);
}

int main(void)
{
#define ON_GPU(test) cmocka_unit_test_setup_teardown(test, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        ON_GPU(narrow_products_are_sums),
        ON_GPU(layers_with_adapters_agree_with_the_cpu),
        ON_GPU(runs_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
