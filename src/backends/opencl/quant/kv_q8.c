/* kv_q8.c: quantized KV rows (KV cache type q8_0), u8 with an f16 scale per group, from and to floats: the launchers of
 * kv_q8.cl. */
#include "backends/opencl/common/element.h"

#include <stdio.h>

/* The struct `shape` of kv_q8.cl, passed by value: sizes and strides of x (B, heads, tokens, depth), q8 alike, and
 * scales (B, heads, tokens, groups). */
typedef struct kv_shape {
    int64_t heads, tokens, depth, groups, count; /* count: work-items */
    int64_t x[4], q8[4], scales[4];
} kv_shape;

static kv_shape kv_shape_of(const tarn__view *x, const tarn__view *q8, const tarn__view *scales)
{
    kv_shape s = {.heads = x->shape[1], .tokens = x->shape[2], .depth = x->shape[3], .groups = scales->shape[3]};
    for (int i = 0; i < 4; i++)
        s.x[i] = x->stride[i], s.q8[i] = q8->stride[i], s.scales[i] = scales->stride[i];
    return s;
}

/* Both kernels take the same arguments. Elements are read and written with any strides: the cache slices views. */
static void run_kv(const tarn__call *call, const char *kernel, const tarn__view *x, const tarn__view *q8,
                   const tarn__view *scales, int64_t count)
{
    kv_shape s = kv_shape_of(x, q8, scales);
    char options[96];
    s.count = count;
    if (count == 0)
        return;
    snprintf(options, sizeof(options), "-DT_X=%s", tarn__cl_dtype_name(x->dtype));
    tarn__cl_launch launch = tarn__cl_begin(call, "kv_q8", kernel, options);
    tarn__cl_arg_value(&launch, &s, sizeof(s));
    tarn__cl_arg_view(&launch, x);
    tarn__cl_arg_view(&launch, q8);
    tarn__cl_arg_view(&launch, scales);
    tarn__cl_enqueue_elements(&launch, count);
}

/* One work-item per group of 32 elements: it finds their scale alone, without local memory. */
static void kernel_quantize_kv(const tarn__call *call)
{
    run_kv(call, "quantize", call->in[0], call->out[0], call->out[1], tarn__view_count(call->out[1]));
}

/* One work-item per element. OpenCL has no attention_quant_kv: this precedes every attention over a quantized cache. */
static void kernel_dequantize_kv(const tarn__call *call)
{
    run_kv(call, "dequantize", call->out[0], call->in[0], call->in[1], tarn__view_count(call->out[0]));
}

void tarn__cl_register_kv_q8(tarn__kernel_row *rows)
{
    rows[TARN__K_quantize_kv] = tarn__row(kernel_quantize_kv, TARN__FLOATS);
    rows[TARN__K_dequantize_kv] = tarn__row(kernel_dequantize_kv, TARN__BIT(TARN_U8));
}
