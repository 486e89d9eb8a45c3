/* codes.c: rows of numbers in 8 bits, with a scale for each group of a row: the launchers of kv_q8.cl. */
#include <stdio.h>

#include "backends/opencl/common/element.h"

/* As kv_q8.cl has it. */
typedef struct shape {
    int64_t heads, tokens, depth, groups, count; /* count: work-items */
    int64_t x[4], codes[4], scales[4];
} shape;

static shape shape_of(const tarn__view *x, const tarn__view *codes, const tarn__view *scales)
{
    shape s = {.heads = x->shape[1], .tokens = x->shape[2], .depth = x->shape[3], .groups = scales->shape[3]};
    for (int i = 0; i < 4; i++)
        s.x[i] = x->stride[i], s.codes[i] = codes->stride[i], s.scales[i] = scales->stride[i];
    return s;
}

static void start(const tarn__call *call, const char *kernel, const tarn__view *x, const tarn__view *codes,
                  const tarn__view *scales, int64_t count)
{
    shape s = shape_of(x, codes, scales);
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

/* A work-item for each group. */
static void kernel_codes_encode(const tarn__call *call)
{
    start(call, "encode", call->in[0], call->out[0], call->out[1], tarn__view_count(call->out[1]));
}

/* A work-item for each element. */
static void kernel_codes_decode(const tarn__call *call)
{
    start(call, "decode", call->out[0], call->in[0], call->in[1], tarn__view_count(call->out[0]));
}

void tarn__cl_register_kv_q8(tarn__kernel_row *rows)
{
    rows[TARN__K_quantize_kv] = (tarn__kernel_row){kernel_codes_encode, TARN__FLOATS, NULL};
    rows[TARN__K_dequantize_kv] = (tarn__kernel_row){kernel_codes_decode, TARN__BIT(TARN_U8), NULL};
}
