/* test_lora.c: linear layers with LoRA adapters on a CUDA device: values and gradients against the CPU. Skipped without
 * a device. */
#include "ops/internal.h"
#include "support/gpu.h"

enum { LAYERS = 3, IN = 136 };
static const int64_t outs[LAYERS] = {264, 72, 16};

typedef struct network {
    tarn_tensor *x;
    tarn__lora_linear layer[LAYERS];
} network;

static tarn_tensor *trained(tarn_tensor *x)
{
    return tarn_requires_grad(good(x), true);
}

static network network_on(const network *from, tarn_device device)
{
    network n = {.x = trained(tarn_to(tarn_detach(from->x), device))};
    for (int i = 0; i < LAYERS; i++) {
        const tarn__lora_linear *l = &from->layer[i];
        n.layer[i] =
            (tarn__lora_linear){good(tarn_to(l->weight, device)), NULL, trained(tarn_to(tarn_detach(l->a), device)),
                                trained(tarn_to(tarn_detach(l->b), device)), l->scale};
    }
    return n;
}

static network make(int64_t rows, int64_t rank)
{
    network n = {.x = good(tarn_normal(TARN_SHAPE(rows, IN), 0, 1, TARN_BF16, CPU))};
    for (int i = 0; i < LAYERS; i++)
        n.layer[i] = (tarn__lora_linear){good(tarn_normal(TARN_SHAPE(outs[i], IN), 0, 0.1, TARN_BF16, CPU)), NULL,
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
    assert_true(tarn__lora_linears(n->x, n->layer, LAYERS, false, y));
    tarn_tensor *all = NULL;
    for (int i = 0; i < LAYERS; i++) {
        tarn_tensor *sum = tarn_sum(tarn_mul(tarn_cast(y[i], TARN_F32), g[i]), TARN_ALL_AXES, false);
        all = all ? tarn_add(all, sum) : sum;
    }
    assert_true(tarn_backward(good(all)));
}

static void lora_layers_match_the_cpu(void **state)
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

static void runs_are_bitwise_identical(void **state)
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
        ON_GPU(lora_layers_match_the_cpu),
        ON_GPU(runs_are_bitwise_identical),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
