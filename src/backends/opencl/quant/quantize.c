/* quantize.c: quant blocks (Q8_0, Q4_0, Q4_K, Q6_K) from and to f32, and quantized KV rows: the launchers of
 * quantize.cl, dequantize.cl and kv_q8.cl.
 *
 * Bytes are identical with those of base/quant, which files and the CPU use. */
#include "backends/opencl/common/element.h"

#include <stdio.h>

/* The macro that selects a block format. */
static const char *option_of(tarn_dtype dtype)
{
    return dtype == TARN_Q8_0 ? "-DQ8_0" : dtype == TARN_Q4_0 ? "-DQ4_0" : dtype == TARN_Q4_K ? "-DQ4_K" : "-DQ6_K";
}

/* One element per work-item. Bytes: each block read once (by adjacent work-items, from a cache), 4 written per element.
 */
static void kernel_dequantize(const tarn__call *call)
{
    const tarn__view *x = call->in[0], *y = call->out[0];
    tarn__nest nest;
    tarn__nest_make(&nest, 2, (const tarn__view *[]){y, x});
    if (nest.count == 0)
        return;
    tarn__cl_launch launch = tarn__cl_begin(call, "dequantize", "dequantize", option_of(x->dtype));
    tarn__cl_arg_view(&launch, y);
    tarn__cl_arg_view(&launch, x);
    tarn__cl_arg_long(&launch, nest.count);
    tarn__cl_arg_value(&launch, &nest, sizeof(nest));
    tarn__cl_enqueue_elements(&launch, nest.count);
}

/* One quant block per work-item; both operands are contiguous. The k-quant search compares quotients, which must equal
 * the host's: with the option, a device without correctly rounded division fails to compile and declines the call. */
static void kernel_quantize(const tarn__call *call)
{
    const tarn__view *x = call->in[0], *y = call->out[0];
    int64_t blocks = tarn__view_count(x) / tarn__dtypes[y->dtype].block_elements;
    if (blocks == 0)
        return;
    char options[64];
    snprintf(options, sizeof(options), "%s -cl-fp32-correctly-rounded-divide-sqrt", option_of(y->dtype));
    tarn__cl_launch launch = tarn__cl_begin(call, "quantize", "quantize", options);
    tarn__cl_arg_view(&launch, y);
    tarn__cl_arg_view(&launch, x);
    tarn__cl_arg_long(&launch, blocks);
    tarn__cl_enqueue_elements(&launch, blocks);
}

/* ---- KV cache rows in 8 bits --------------------------------------------------------------------------------------
 */

/* The struct `shape` of kv_q8.cl. x (B, heads, tokens, depth), codes alike, scales (B, heads, tokens, groups): strides.
 */
typedef struct kv_shape {
    int64_t heads, tokens, depth, groups, count; /* count: work-items */
    int64_t x[4], codes[4], scales[4];
} kv_shape;

static kv_shape kv_shape_of(const tarn__view *x, const tarn__view *codes, const tarn__view *scales)
{
    kv_shape s = {.heads = x->shape[1], .tokens = x->shape[2], .depth = x->shape[3], .groups = scales->shape[3]};
    for (int i = 0; i < 4; i++)
        s.x[i] = x->stride[i], s.codes[i] = codes->stride[i], s.scales[i] = scales->stride[i];
    return s;
}

/* The arguments of both directions are alike. */
static void run_kv(const tarn__call *call, const char *kernel, const tarn__view *x, const tarn__view *codes,
                   const tarn__view *scales, int64_t count)
{
    kv_shape s = kv_shape_of(x, codes, scales);
    char options[96];
    s.count = count;
    if (count == 0)
        return;
    snprintf(options, sizeof(options), "-DT_X=%s", tarn__cl_dtype_name(x->dtype));
    tarn__cl_launch launch = tarn__cl_begin(call, "kv_q8", kernel, options);
    tarn__cl_arg_value(&launch, &s, sizeof(s));
    tarn__cl_arg_view(&launch, x);
    tarn__cl_arg_view(&launch, codes);
    tarn__cl_arg_view(&launch, scales);
    tarn__cl_enqueue_elements(&launch, count);
}

/* One work-item per group of 32 elements of a row. */
static void kernel_quantize_kv(const tarn__call *call)
{
    run_kv(call, "quantize", call->in[0], call->out[0], call->out[1], tarn__view_count(call->out[1]));
}

/* One work-item per element. */
static void kernel_dequantize_kv(const tarn__call *call)
{
    run_kv(call, "dequantize", call->out[0], call->in[0], call->in[1], tarn__view_count(call->out[0]));
}

void tarn__cl_register_quantize(tarn__kernel_row *rows)
{
    rows[TARN__K_quantize] = (tarn__kernel_row){kernel_quantize, TARN__BIT(TARN_F32) | TARN__QUANTIZED, NULL};
    rows[TARN__K_dequantize] = (tarn__kernel_row){kernel_dequantize, TARN__QUANTIZED, NULL};
    rows[TARN__K_quantize_kv] = (tarn__kernel_row){kernel_quantize_kv, TARN__FLOATS, NULL};
    rows[TARN__K_dequantize_kv] = (tarn__kernel_row){kernel_dequantize_kv, TARN__BIT(TARN_U8), NULL};
}
