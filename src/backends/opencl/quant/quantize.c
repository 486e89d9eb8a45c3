/* quantize.c: packed numbers to f32, one element a work-item: a block's bytes come from memory once, and 4 bytes an
 * element go there. And f32 to packed numbers, one block a work-item. */
#include "backends/opencl/common/element.h"

#include <stdio.h>

static const char *option_of(tarn_dtype dtype)
{
    return dtype == TARN_Q8_0 ? "-DQ8_0" : dtype == TARN_Q4_0 ? "-DQ4_0" : dtype == TARN_Q4_K ? "-DQ4_K" : "-DQ6_K";
}

static void kernel_decode(const tarn__call *call)
{
    const tarn__view *x = call->in[0], *y = call->out[0];
    tarn__nest nest;
    tarn__nest_make(&nest, 2, (const tarn__view *[]){y, x});
    if (nest.count == 0)
        return;
    tarn__cl_launch launch = tarn__cl_begin(call, "dequantize", "decode", option_of(x->dtype));
    tarn__cl_arg_view(&launch, y);
    tarn__cl_arg_view(&launch, x);
    tarn__cl_arg_long(&launch, nest.count);
    tarn__cl_arg_value(&launch, &nest, sizeof(nest));
    tarn__cl_enqueue_elements(&launch, nest.count);
}

/* Both are dense. The search compares quotients, which must be the host's: a device that rounds divisions otherwise
 * leaves this to the CPU. */
static void kernel_encode(const tarn__call *call)
{
    const tarn__view *x = call->in[0], *y = call->out[0];
    int64_t blocks = tarn__view_count(x) / tarn__dtypes[y->dtype].block_elements;
    if (blocks == 0)
        return;
    char options[64];
    snprintf(options, sizeof(options), "%s -cl-fp32-correctly-rounded-divide-sqrt", option_of(y->dtype));
    tarn__cl_launch launch = tarn__cl_begin(call, "quantize", "encode", options);
    tarn__cl_arg_view(&launch, y);
    tarn__cl_arg_view(&launch, x);
    tarn__cl_arg_long(&launch, blocks);
    tarn__cl_enqueue_elements(&launch, blocks);
}

void tarn__cl_register_quantize(tarn__kernel_row *rows)
{
    rows[TARN__K_quantize] = (tarn__kernel_row){kernel_encode, TARN__BIT(TARN_F32) | TARN__QUANTIZED, NULL};
    rows[TARN__K_dequantize] = (tarn__kernel_row){kernel_decode, TARN__QUANTIZED, NULL};
}
