/* compose.h: the calls that a fused kernel is composed of, for backends that lack the fused form. Each helper copies
 * the fused call and replaces its operands; the copies borrow the views. */
#ifndef TARN__COMPOSE_H
#define TARN__COMPOSE_H

#include "base/kernel/call.h"

/* The matmul alone, into `to`. */
static inline tarn__call tarn__compose_matmul(const tarn__call *call, int inputs, const tarn__view *to)
{
    tarn__call part = *call;
    part.inputs = inputs;
    part.outputs = 1;
    part.out[0] = to;
    return part;
}

/* An elementwise kernel of one operand or two (`second` may be NULL). */
static inline tarn__call tarn__compose_elementwise(const tarn__call *call, const tarn__elementwise *none,
                                                   const tarn__view *first, const tarn__view *second,
                                                   const tarn__view *to)
{
    tarn__call part = *call;
    part.inputs = second ? 2 : 1;
    part.outputs = 1;
    part.in[0] = first;
    part.in[1] = second;
    part.out[0] = to;
    part.params = none;
    part.params_bytes = sizeof(*none);
    return part;
}

/* matmul_bias_grad: a summed along its last axis, into a vector viewed as a column. The call points into the struct,
 * which therefore must not be copied. */
typedef struct tarn__bias_grad_call {
    tarn__view column;
    tarn__reduce params;
    tarn__call call;
} tarn__bias_grad_call;

static inline void tarn__compose_bias_grad(tarn__bias_grad_call *s, const tarn__call *call)
{
    s->column = *call->out[1];
    s->column.rank = 2;
    s->column.shape[1] = 1;
    s->column.stride[1] = 1;
    s->params = (tarn__reduce){.scale = 1};
    s->call = *call;
    s->call.inputs = s->call.outputs = 1;
    s->call.reads_output = 0;
    s->call.out[0] = &s->column;
    s->call.params = &s->params;
    s->call.params_bytes = sizeof(s->params);
}

#endif
