/* quantize.c: quant blocks from and to f32: the launchers of quantize.cl and dequantize.cl.
 *
 * Bytes are identical with those of base/quant, which files and the CPU use. */
#include "backends/opencl/common/element.h"

#include <stdio.h>

/* The macros that select a block format. */
static void write_options(char *options, size_t size, tarn_dtype dtype, const char *more)
{
    snprintf(options, size, "-DFORMAT=%s -DSHIFT=%d%s", tarn__dtypes[dtype].name,
             tarn__dtypes[dtype].block_elements == 32 ? 5 : 8, more);
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
    char options[64];
    write_options(options, sizeof(options), x->dtype, "");
    tarn__cl_launch launch = tarn__cl_begin(call, "dequantize", "dequantize", options);
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
    char options[96];
    write_options(options, sizeof(options), y->dtype, " -cl-fp32-correctly-rounded-divide-sqrt");
    tarn__cl_launch launch = tarn__cl_begin(call, "quantize", "quantize", options);
    tarn__cl_arg_view(&launch, y);
    tarn__cl_arg_view(&launch, x);
    tarn__cl_arg_long(&launch, blocks);
    tarn__cl_enqueue_elements(&launch, blocks);
}

void tarn__cl_register_quantize(tarn__kernel_row *rows)
{
    const uint32_t dtypes = TARN__BIT(TARN_Q8_0) | TARN__BIT(TARN_Q4_0) | TARN__BIT(TARN_Q4_K) | TARN__BIT(TARN_Q6_K) |
                            TARN__BIT(TARN_Q4_1) | TARN__BIT(TARN_Q5_0) | TARN__BIT(TARN_Q5_1);
    rows[TARN__K_quantize] = tarn__row(kernel_quantize, TARN__BIT(TARN_F32) | dtypes);
    rows[TARN__K_dequantize] = tarn__row(kernel_dequantize, TARN__QUANTIZED);
}
