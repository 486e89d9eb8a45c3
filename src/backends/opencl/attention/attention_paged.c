/* attention_paged.c: attention over a paged KV cache: the launcher of attention_paged.cl. */
#include <stdio.h>

#include "backends/opencl/runtime/opencl.h"

#define MAX_GROUP 64 /* work-items of a group: one per key of a page */

/* The struct `paged` of attention_paged.cl, passed by value. */
typedef struct paged {
    int64_t heads, group, tokens, sequences, table_pages, pages, window;
    int64_t q[3], y[3], k[4], v[4], k_scale[4], v_scale[4];
    int64_t table[2], starts, lengths;
} paged;

static void set_strides(int64_t *to, const tarn__view *view)
{
    for (int i = 0; view && i < view->rank; i++)
        to[i] = view->stride[i];
}

static paged describe(const tarn__call *call)
{
    const tarn__view *q = call->in[0], *k = call->in[1], *table = call->in[3];
    paged a = {.heads = q->shape[1],
               .group = q->shape[1] / k->shape[2],
               .tokens = q->shape[0],
               .sequences = table->shape[0],
               .table_pages = table->shape[1],
               .pages = k->shape[0],
               .window = ((const tarn__attention *)call->params)->window,
               .starts = call->in[4]->stride[0],
               .lengths = call->in[5]->stride[0]};
    set_strides(a.q, q), set_strides(a.y, call->out[0]), set_strides(a.k, k), set_strides(a.v, call->in[2]);
    set_strides(a.k_scale, call->in[6]), set_strides(a.v_scale, call->in[7]), set_strides(a.table, table);
    return a;
}

/* A group per row and head. A device without fast local memory, a CPU, has one work-item per group, which walks the
 * keys of a page alone. */
static void kernel_attention_paged(const tarn__call *call)
{
    const tarn__attention *params = call->params;
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    const tarn__view *q = call->in[0];
    if (!device || tarn__view_count(q) == 0)
        return;
    paged a = describe(call);
    int width = device->has_local_memory && !device->is_cpu ? MAX_GROUP : 1;
    while (width > 1 && (size_t)width > device->max_group)
        width /= 2;
    char options[192];
    snprintf(options, sizeof(options), "-DREAL=%s -DT=%s -DT_KV=%s -DDEPTH=%lld -DPAGE=%d -DWIDTH=%d%s%s",
             q->dtype == TARN_F64 ? "double" : "float", tarn__cl_dtype_name(q->dtype),
             tarn__cl_dtype_name(call->in[1]->dtype), (long long)q->shape[2], TARN__KV_PAGE, width,
             call->in[6] ? " -DQUANTIZED" : "", params->softcap > 0 ? " -DSOFTCAP" : "");
    tarn__cl_launch l = tarn__cl_begin(call, "attention_paged", "attention_paged", options);
    for (int i = 0; i < 8; i++)
        tarn__cl_arg_view(&l, call->in[i]);
    tarn__cl_arg_view(&l, call->out[0]);
    tarn__cl_arg_value(&l, &a, sizeof(a));
    tarn__cl_arg_real(&l, params->scale);
    tarn__cl_arg_real(&l, params->softcap);
    tarn__cl_arg_fault(&l, call);
    size_t groups = (size_t)(a.tokens * a.heads);
    tarn__cl_enqueue(&l, 1, (size_t[]){groups * (size_t)width}, (size_t[]){(size_t)width});
}

void tarn__cl_register_attention_paged(tarn__kernel_row *rows)
{
    rows[TARN__K_attention_paged] = tarn__row(kernel_attention_paged, TARN__FLOATS | TARN__BIT(TARN_U8));
}
