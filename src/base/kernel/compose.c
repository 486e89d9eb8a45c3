/* compose.c: a fused call as a matmul and a second kernel; see compose.h.
 *
 *   matmul_gelu        z = a @ b + bias, then gelu(z); backward needs both
 *   matmul_gelu_grad   a @ b, then times gelu'(z) in place
 *   matmul_bias_grad   a summed along its last axis, then a @ b: two passes over a */
#include "base/kernel/compose.h"

/* The parts are copies of the fused call with other operands; they borrow its views and scratch. The second part points
 * into the struct, which therefore must not be copied. */
typedef struct composition {
    tarn__call matmul, second;
    tarn__kernel kernel; /* of the second part */
    tarn__elementwise elementwise;
    tarn__reduce reduce;
    tarn__view column; /* of a bias gradient */
} composition;

static void set_elementwise(composition *c, tarn__kernel kernel, const tarn__view *x, const tarn__view *grad,
                            const tarn__view *to)
{
    c->kernel = kernel;
    c->elementwise = (tarn__elementwise){0};
    c->second.inputs = grad ? 2 : 1;
    c->second.outputs = 1;
    c->second.in[0] = x;
    c->second.in[1] = grad;
    c->second.out[0] = to;
    c->second.params = &c->elementwise;
    c->second.params_bytes = sizeof(c->elementwise);
}

/* a summed along its last axis, into a vector viewed as a column. */
static void set_sum(composition *c, const tarn__view *to)
{
    c->kernel = TARN__K_sum;
    c->reduce = (tarn__reduce){.scale = 1};
    c->column = *to;
    c->column.rank = 2;
    c->column.shape[1] = 1;
    c->column.stride[1] = 1;
    c->second.inputs = c->second.outputs = 1;
    c->second.reads_output = 0;
    c->second.out[0] = &c->column;
    c->second.params = &c->reduce;
    c->second.params_bytes = sizeof(c->reduce);
}

static void compose(composition *c, tarn__kernel fused, const tarn__call *call)
{
    bool has_gelu = fused == TARN__K_matmul_gelu;
    c->matmul = c->second = *call;
    c->matmul.inputs = has_gelu ? 3 : 2;
    c->matmul.outputs = 1;
    c->matmul.out[0] = call->out[has_gelu ? 1 : 0];
    if (has_gelu)
        set_elementwise(c, TARN__K_gelu, call->out[1], NULL, call->out[0]);
    else if (fused == TARN__K_matmul_gelu_grad)
        set_elementwise(c, TARN__K_gelu_grad, call->in[2], call->out[0], call->out[0]);
    else
        set_sum(c, call->out[1]);
}

static size_t scratch_of(const tarn__kernel_row *row, const tarn__call *call)
{
    return row->scratch ? row->scratch(call) : 0;
}

size_t tarn__compose_scratch(const tarn__kernel_row *rows, tarn__kernel fused, const tarn__call *call)
{
    composition c;
    compose(&c, fused, call);
    size_t first = scratch_of(&rows[TARN__K_matmul], &c.matmul), second = scratch_of(&rows[c.kernel], &c.second);
    return first > second ? first : second;
}

/* The bias gradient first: if the device declines it, the matmul has not accumulated into its output yet. */
void tarn__compose_run(const tarn__kernel_row *rows, tarn__kernel fused, const tarn__call *call)
{
    composition c;
    compose(&c, fused, call);
    bool is_first = c.kernel == TARN__K_sum;
    if (is_first)
        rows[c.kernel].run(&c.second);
    rows[TARN__K_matmul].run(&c.matmul);
    if (!is_first)
        rows[c.kernel].run(&c.second);
}
