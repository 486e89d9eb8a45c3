/* composed.c: kernels that are made of others: the device's own kernels run one after the other, with what lies between them in scratch. */
#include "backends/cuda/cuda.h"

/* ---- scale_grad: the products, then their sums -------------------------------------------------------------------------------- */

typedef struct scale_parts {
    tarn__view products; /* g · x, dense, in the dtype of its sums */
    size_t bytes;        /* of the products, rounded up: the sum's scratch begins there */
    tarn__elementwise none;
    tarn__reduce reduce;
    tarn__call product, sum;
} scale_parts;

static tarn__call part_of(const tarn__call *call, int inputs, int outputs, const void *params, size_t params_bytes)
{
    tarn__call part = *call;
    part.inputs = inputs;
    part.outputs = outputs;
    part.reads_output = 0;
    part.params = params;
    part.params_bytes = params_bytes;
    return part;
}

/* mul_grad takes x, w, g and makes g · w, g · x; where the first is not wanted, mul_grad_b makes the second alone. */
static tarn__kernel describe_scale(scale_parts *p, const tarn__call *call)
{
    bool both = call->out[0] != NULL;
    p->none = (tarn__elementwise){0};
    p->reduce = (tarn__reduce){.scale = 1};
    p->products = *call->in[2];
    p->products.dtype = call->out[1]->dtype;
    p->products.memory = call->scratch;
    p->products.offset = 0;
    tarn__view_pack(&p->products);
    p->bytes = ((size_t)tarn__view_count(&p->products) * tarn__dtype_bytes(p->products.dtype) + 255) / 256 * 256;
    p->product = part_of(call, 3, both ? 2 : 1, &p->none, sizeof(p->none));
    p->product.out[both ? 1 : 0] = &p->products;
    p->sum = part_of(call, 1, 1, &p->reduce, sizeof(p->reduce));
    p->sum.in[0] = &p->products;
    p->sum.out[0] = call->out[1];
    p->sum.scratch = (char *)call->scratch + p->bytes;
    return both ? TARN__K_mul_grad : TARN__K_mul_grad_b;
}

static size_t sum_scratch(const tarn__call *sum)
{
    const tarn__kernel_row *row = &tarn__cuda_rows()[TARN__K_sum];
    return row->scratch ? row->scratch(sum) : 0;
}

static size_t scratch_scale_grad(const tarn__call *call)
{
    scale_parts p;
    describe_scale(&p, call);
    return p.bytes + sum_scratch(&p.sum);
}

static void kernel_scale_grad(const tarn__call *call)
{
    scale_parts p;
    tarn__kernel product = describe_scale(&p, call);
    p.sum.scratch_bytes = sum_scratch(&p.sum);
    tarn__cuda_rows()[product].run(&p.product);
    tarn__cuda_rows()[TARN__K_sum].run(&p.sum);
}

/* ---- where_grad: twice the choice between the gradient and 0 ------------------------------------------------------------------- */

static void kernel_where_grad(const tarn__call *call)
{
    for (int i = 0; i < 2; i++) {
        tarn__elementwise zero = {.constants = i == 0 ? 4u : 2u};
        tarn__call part = part_of(call, 3, 1, &zero, sizeof(zero));
        part.in[1] = i == 0 ? call->in[1] : NULL;
        part.in[2] = i == 0 ? NULL : call->in[1];
        part.out[0] = call->out[i];
        tarn__cuda_rows()[TARN__K_where].run(&part);
    }
}

void tarn__cuda_composed(tarn__kernel_row *rows)
{
    rows[TARN__K_scale_grad] = (tarn__kernel_row){kernel_scale_grad, TARN__FLOATS, scratch_scale_grad};
    rows[TARN__K_where_grad] = (tarn__kernel_row){kernel_where_grad, TARN__ALL, NULL};
}
