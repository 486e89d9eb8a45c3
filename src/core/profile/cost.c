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

/* a (…, M, K) @ b (…, K, N) -> (…, M, N): 2 · M · N · K per batch. */
static double flops_of_matmul(const tarn__launch *launch)
{
    const tarn__view *a = &launch->in[0]->view;
    return 2 * count_of(launch->out[0]) * (double)a->shape[a->rank - 1];
}

/* One multiply-add per element of y and weight of its output channel; the same count for dgrad and wgrad. */
static double flops_of_conv(const tarn_tensor *y, const tarn_tensor *weight)
{
    return 2 * count_of(y) * count_of(weight) / (double)(weight->view.shape[0] > 0 ? weight->view.shape[0] : 1);
}

/* q (B, H, T, D), k (B, KV, S, D): `products` dot products of length D per pair of row and key; causal pairs only. */
static double flops_of_attention(const tarn__launch *launch, double products)
{
    const tarn__view *q = &launch->in[0]->view, *k = &launch->in[1]->view;
    const tarn__attention *tail = launch->params;
    double rows = (double)q->shape[2], keys = (double)k->shape[2], pairs = rows * keys;
    if (tail->causal)
        pairs -= rows * (rows - 1) / 2;
    return 2 * products * (double)(q->shape[0] * q->shape[1] * q->shape[3]) * (pairs > 0 ? pairs : 0);
}

/* x (rows, in) times the weights (out, in) among inputs first to end. */
static double flops_of_linears(const tarn__launch *launch, int first, int end)
{
    double products = 0;
    for (int i = first; i < end; i++)
        products += launch->in[i] ? 2 * count_of(launch->in[i]) * (double)launch->in[0]->view.shape[0] : 0;
    return products;
}

/* Only matmul-like kernels count; all others are bound by memory. */
static double flops_of(const tarn__launch *launch)
{
    switch ((int)launch->kernel) {
    case TARN__K_matmul:
    case TARN__K_matmul_gelu:
    case TARN__K_matmul_gelu_grad:
    case TARN__K_matmul_quant:
    case TARN__K_matmul_bias_grad: return flops_of_matmul(launch);
    case TARN__K_conv2d: return flops_of_conv(launch->out[0], launch->in[1]);
    case TARN__K_conv2d_grad_x: return flops_of_conv(launch->in[0], launch->in[1]);
    case TARN__K_conv2d_grad_weight: return flops_of_conv(launch->in[1], launch->out[0]);
    case TARN__K_attention:
    case TARN__K_attention_documents:
    case TARN__K_attention_quant_kv: return flops_of_attention(launch, 2);
    case TARN__K_attention_documents_grad:
    case TARN__K_attention_grad: return flops_of_attention(launch, 5);
    case TARN__K_norm_linear: return flops_of_linears(launch, 2, 5);
    case TARN__K_norm_gate_up: return flops_of_linears(launch, 2, 4);
    case TARN__K_linear_residual: return flops_of_linears(launch, 1, 2);
    case TARN__K_attention_decode: return 4 * count_of(launch->in[0]) * (double)launch->out[1]->view.shape[2];
    default: return 0;
    }
}

/* The profiler's category of a kernel. */
tarn_profile_kind tarn__kernel_kind(tarn__kernel kernel)
{
    switch ((int)kernel) {
    case TARN__K_matmul:
    case TARN__K_matmul_gelu:
    case TARN__K_matmul_gelu_grad:
    case TARN__K_matmul_quant:
    case TARN__K_norm_linear:
    case TARN__K_norm_gate_up:
    case TARN__K_linear_residual:
    case TARN__K_matmul_bias_grad: return TARN_PROFILE_MATMUL;
    case TARN__K_conv2d:
    case TARN__K_conv2d_grad_x:
    case TARN__K_conv2d_grad_weight: return TARN_PROFILE_CONVOLUTION;
    case TARN__K_attention:
    case TARN__K_attention_quant_kv:
    case TARN__K_attention_documents:
    case TARN__K_attention_documents_grad:
    case TARN__K_attention_decode:
    case TARN__K_attention_grad: return TARN_PROFILE_ATTENTION;
    default: return TARN_PROFILE_KERNEL;
    }
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
    timing->record.flops = flops_of(launch);
}
