/* cost.c: FLOPs and bytes of a kernel call, computed from its operands: the basis of GB/s, TFLOP/s and MFU in
 * profiles.
 *
 * Counts follow the usual conventions: a multiply-add is two FLOPs, attention counts both GEMMs (five in backward,
 * with the recomputed one), bytes are each operand once, as if caches were infinite. */
#include "core/profile/profiler.h"

/* Distinct elements: expanded axes count once. */
static double elements_of(const tarn__view *view)
{
    double count = 1;
    for (int i = 0; i < view->rank; i++)
        count *= view->stride[i] != 0 || view->shape[i] == 0 ? (double)view->shape[i] : 1;
    return count;
}

/* Quantized elements count their fraction of a block. */
static double bytes_of(const tarn_tensor *tensor)
{
    return tensor ? elements_of(&tensor->view) * (double)tarn__dtype_bytes(tensor->view.dtype) /
                        tarn__dtypes[tensor->view.dtype].block_elements
                  : 0;
}

static double count_of(const tarn_tensor *tensor)
{
    return tensor ? (double)tarn__view_count(&tensor->view) : 0;
}

/* Every operand counts once; an output that is also read, twice. */
static double bytes_moved(const tarn__launch *launch)
{
    double bytes = 0;
    for (int i = 0; i < launch->inputs; i++)
        bytes += bytes_of(launch->in[i]);
    for (int i = 0; i < launch->outputs; i++)
        bytes += bytes_of(launch->out[i]) * ((launch->reads_output >> i) & 1 ? 2 : 1);
    return bytes;
}

/* ---- FLOPs: one function per cost of kernels.def ------------------------------------------------------------------
 */

/* Elementwise kernels, reductions, norms and copies are bound by memory: only bytes count. */
static double flops_of_none(const tarn__launch *launch)
{
    (void)launch;
    return 0;
}

/* a (…, M, K) @ b (…, K, N) -> (…, M, N): 2 · M · N · K per batch. */
static double flops_of_matmul(const tarn__launch *launch)
{
    const tarn__view *a = &launch->in[0]->view;
    return 2 * count_of(launch->out[0]) * (double)a->shape[a->rank - 1];
}

/* One multiply-add per element of y and weight of its output channel; the same count for dgrad and wgrad. */
static double flops_of_image(const tarn_tensor *y, const tarn_tensor *weight)
{
    return 2 * count_of(y) * count_of(weight) / (double)(weight->view.shape[0] > 0 ? weight->view.shape[0] : 1);
}

static double flops_of_conv(const tarn__launch *launch)
{
    return flops_of_image(launch->out[0], launch->in[1]);
}

static double flops_of_conv_grad_x(const tarn__launch *launch)
{
    return flops_of_image(launch->in[0], launch->in[1]);
}

static double flops_of_conv_grad_weight(const tarn__launch *launch)
{
    return flops_of_image(launch->in[1], launch->out[0]);
}

/* Pairs of a row and a key before its sliding window: none for the first rows, keys - window for the last. */
static double pairs_before_window(double rows, double keys, double window)
{
    double first = keys - rows + 1 - window, last = keys - window;
    first = first < 1 ? 1 : first;
    return last < first ? 0 : (first + last) * (last - first + 1) / 2;
}

/* q (B, H, T, D), k (B, KV, S, D): `products` dot products of length D per pair of row and key; causal pairs within
 * the window only. */
static double flops_of_pairs(const tarn__launch *launch, double products)
{
    const tarn__view *q = &launch->in[0]->view, *k = &launch->in[1]->view;
    const tarn__attention *params = launch->params;
    double rows = (double)q->shape[2], keys = (double)k->shape[2], pairs = rows * keys;
    if (params->causal)
        pairs -= rows * (rows - 1) / 2;
    if (params->window > 0)
        pairs -= pairs_before_window(rows, keys, (double)params->window);
    return 2 * products * (double)(q->shape[0] * q->shape[1] * q->shape[3]) * (pairs > 0 ? pairs : 0);
}

static double flops_of_attention(const tarn__launch *launch)
{
    return flops_of_pairs(launch, 2);
}

static double flops_of_attention_grad(const tarn__launch *launch)
{
    return flops_of_pairs(launch, 5);
}

/* One token attends to the whole cache (B, KV, S, D), or to a window of it. */
static double flops_of_attention_decode(const tarn__launch *launch)
{
    const tarn__attention_decode *params = launch->params;
    int64_t keys = launch->out[1]->view.shape[2];
    return 4 * count_of(launch->in[0]) * (double)(params->window > 0 && params->window < keys ? params->window : keys);
}

/* An upper bound: the lengths are on the device, so that every row counts with all pages of the table, or its window.
 */
static double flops_of_attention_paged(const tarn__launch *launch)
{
    const tarn__attention *params = launch->params;
    int64_t keys = launch->in[3]->view.shape[1] * TARN__KV_PAGE;
    return 4 * count_of(launch->in[0]) * (double)(params->window > 0 && params->window < keys ? params->window : keys);
}

/* x (rows, in) times the weights (out, in) among inputs first to end. */
static double flops_of_linears(const tarn__launch *launch, int first, int end)
{
    double products = 0;
    for (int i = first; i < end; i++)
        products += launch->in[i] ? 2 * count_of(launch->in[i]) * (double)launch->in[0]->view.shape[0] : 0;
    return products;
}

static double flops_of_norm_linear(const tarn__launch *launch)
{
    return flops_of_linears(launch, 2, 5);
}

static double flops_of_norm_gate_up(const tarn__launch *launch)
{
    return flops_of_linears(launch, 2, 4);
}

static double flops_of_linear_residual(const tarn__launch *launch)
{
    return flops_of_linears(launch, 1, 2);
}

/* ---- the columns of kernels.def ------------------------------------------------------------------------------------
 */

typedef struct profile_row {
    tarn_profile_kind kind;
    double (*flops)(const tarn__launch *launch);
} profile_row;

#define MEMORY_BOUND \
    { \
        TARN_PROFILE_KERNEL, flops_of_none \
    }

static const profile_row profile_rows[TARN__KERNEL_COUNT] = {
#define UNARY(...) MEMORY_BOUND, MEMORY_BOUND,
#define BINARY(...) MEMORY_BOUND, MEMORY_BOUND, MEMORY_BOUND, MEMORY_BOUND,
#define COMPARE(...) MEMORY_BOUND,
#include "base/kernel/elementwise.def"
#undef UNARY
#undef BINARY
#undef COMPARE
    MEMORY_BOUND, /* where */
#define KERNEL(name, params, kind, cost) {TARN_PROFILE_##kind, flops_of_##cost},
#include "base/kernel/kernels.def"
#undef KERNEL
};

/* The profiler's category of a kernel. */
tarn_profile_kind tarn__kernel_kind(tarn__kernel kernel)
{
    return profile_rows[kernel].kind;
}

/* Dtype and shape are those of the first output. */
void tarn__timing_describe(tarn__timing *timing, const tarn__launch *launch)
{
    const tarn_tensor *first = launch->out[0];
    for (int i = 1; !first && i < launch->outputs; i++)
        first = launch->out[i];
    if (first) {
        timing->record.dtype = first->view.dtype;
        timing->record.shape = tarn__shape_of(first);
    }
    timing->record.bytes = bytes_moved(launch);
    timing->record.flops = profile_rows[launch->kernel].flops(launch);
}
