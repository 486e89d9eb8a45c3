/* test_llama_mlp_chunks.c: the gated MLP of a quantized Llama computes a prompt in chunks: the same values in less
 * memory. On TARN_TEST_DEVICE, else the CPU. */
#include <stdlib.h>
#include <tarn/autograd.h>
#include <tarn/profile.h>

#include "core/memory/pool.h"
#include "models/lm/arch.h"
#include "support/check.h"

#define CPU tarn_device_cpu()
enum { WIDTH = 64, INNER = 4096 + 512, ROWS = 400 }; /* two whole parts, and one that is not */

static tarn_device device;

/* Replaces a layer's weight by random quantized values. Borrowed. */
static tarn_tensor *pack(tarn_module *layer)
{
    tarn_tensor *dense = good(tarn_normal(tarn_shape_of(tarn__module_own(layer, "weight")), 0, 0.1, TARN_F32, CPU));
    tarn_tensor *there = good(tarn_to(good(tarn_cast(dense, TARN_Q8_0)), device));
    tarn__tensor_retain(there);
    tarn__tensor_release(layer->parameter[0].tensor);
    layer->parameter[0].tensor = there;
    return there;
}

/* Of tensors: a kernel's scratch grows with the number of threads. */
static int64_t peak_of(tarn_module *mlp, tarn_tensor *x, tarn_tensor **y)
{
    tarn_stats_reset();
    int64_t before = tarn_memory_of(device).used;
    *y = good(tarn_forward(mlp, x));
    return tarn__pool_peaks_of(device).tensors - before;
}

static void a_prompt_is_computed_in_chunks(void **state)
{
    (void)state;
    const tarn_llama_config config = {.vocab_size = 32,
                                      .context = 128,
                                      .layers = 1,
                                      .heads = 2,
                                      .hidden_size = WIDTH,
                                      .ffn_size = INNER,
                                      .epsilon = 1e-5,
                                      .rope_theta = 10000};
    tarn_module *model = tarn_model_llama(&config, device, 1);
    assert_ok();
    tarn_module *mlp = tarn__model_child(tarn__model_layers(model)->child[0], TARN__ROLE_MLP);
    tarn_tensor *w[3], *y, *part[2];
    for (int i = 0; i < 3; i++)
        w[i] = pack(mlp->child[i]);
    tarn_tensor *x = good(tarn_to(good(tarn_normal(TARN_SHAPE(2, ROWS / 2, WIDTH), 0, 1, TARN_F32, CPU)), device));
    tarn_no_grad_open();
    int64_t peak = peak_of(mlp, x, &y), wide = ROWS * INNER * 4;
    tarn_no_grad_close();
    for (int i = 0; i < 2; i++)
        part[i] = good(tarn_linear_apply(x, w[i], NULL));
    tarn_tensor *wanted = good(tarn_linear_apply(good(tarn_swiglu(part[0], part[1])), w[2], NULL));
    /* f32 sums of 4608 in another order */
    assert_close_for_size(good(tarn_to(y, CPU)), good(tarn_to(wanted, CPU)), 1e-5);
    if (tarn_device_equal(device, CPU)) {
        assert_close(y, wanted, 0);
        /* gate, and a part of up: three of them before */
        assert_in_range((uint64_t)peak, (uint64_t)wide, (uint64_t)(1.7 * (double)wide));
    }
    tarn_tensor *few = good(tarn_slice(x, 1, 0, 1)), *few_parts[2]; /* rows of a step: as before */
    tarn_no_grad_open();
    y = good(tarn_forward(mlp, few));
    for (int i = 0; i < 2; i++)
        few_parts[i] = good(tarn_linear_apply(few, w[i], NULL));
    wanted = good(tarn_linear_apply(good(tarn_swiglu(few_parts[0], few_parts[1])), w[2], NULL));
    tarn_no_grad_close();
    assert_close_for_size(good(tarn_to(y, CPU)), good(tarn_to(wanted, CPU)), 1e-5);
    tarn_module_free(model);
}

int main(void)
{
    device = test_device("cpu");
    const struct CMUnitTest tests[] = {in_scope(a_prompt_is_computed_in_chunks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
