/* compose.c: a fused call as a matmul, or a less fused one, and a second kernel; see compose.h.
 *
 *   matmul_gelu        z = a @ b + bias, then gelu(z); backward needs both
 *   matmul_gelu_grad   a @ b, then times gelu'(z) in place; with column sums: the same without them, then a sum
 *   matmul_bias_grad   a summed along its last axis, then a @ b: two passes over a */
#include "base/kernel/compose.h"

/* The parts are copies of the fused call with other operands; they borrow its views and scratch. The second part points
 * into the struct, which therefore must not be copied. */
typedef struct composition {
    tarn__call matmul, second;
    tarn__kernel first, kernel; /* of the first part and the second */
    tarn__elementwise elementwise;
    tarn__reduce reduce;
    tarn__view line; /* of a bias gradient: a column, or a row of column sums */
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

/* A matrix summed along an axis, into a vector. */
static void set_sum(composition *c, const tarn__view *from, int axis, const tarn__view *to)
{
    tarn__call *call = &c->second;
    c->kernel = TARN__K_sum;
    c->reduce = (tarn__reduce){.scale = 1};
    c->line = *to;
    c->line.rank = 2;
    c->line.shape[!axis] = to->shape[0];
    c->line.stride[!axis] = to->stride[0];
    c->line.shape[axis] = 1;
    c->line.stride[axis] = 1;
    call->inputs = call->outputs = 1;
    call->reads_output = 0;
    call->in[0] = from;
    call->out[0] = &c->line;
    call->params = &c->reduce;
    call->params_bytes = sizeof(c->reduce);
}

static void compose(composition *c, tarn__kernel fused, const tarn__call *call)
{
    bool has_gelu = fused == TARN__K_matmul_gelu,
         has_sums = fused == TARN__K_matmul_gelu_grad && call->outputs > 1 && call->out[1];
    c->matmul = c->second = *call;
    c->first = has_sums ? fused : TARN__K_matmul;
    c->matmul.inputs = has_gelu || has_sums ? 3 : 2;
    c->matmul.outputs = 1;
    c->matmul.out[0] = call->out[has_gelu ? 1 : 0];
    if (has_gelu)
        set_elementwise(c, TARN__K_gelu, call->out[1], NULL, call->out[0]);
    else if (has_sums)
        set_sum(c, call->out[0], 0, call->out[1]);
    else if (fused == TARN__K_matmul_gelu_grad)
        set_elementwise(c, TARN__K_gelu_grad, call->in[2], call->out[0], call->out[0]);
    else
        set_sum(c, call->in[0], 1, call->out[1]);
}

/* The job of a composed call. */
typedef struct composed_job {
    tarn__part matmul, second;
} composed_job;

/* The parts run one after the other and share scratch. */
tarn__plan_status tarn__compose_prepare(const tarn__kernel_row *rows, tarn__kernel fused, const tarn__call *call,
                                        tarn__plan *plan)
{
    composition c;
    composed_job *job = tarn__plan_reserve(plan, sizeof(*job));
    compose(&c, fused, call);
    tarn__plan_status status =
        job ? tarn__part_prepare(plan, &job->matmul, &rows[c.first], &c.matmul) : TARN__PLAN_FAILED;
    if (status == TARN__PLAN_READY)
        status = tarn__part_prepare(plan, &job->second, &rows[c.kernel], &c.second);
    if (status == TARN__PLAN_READY)
        plan->scratch_bytes = job->matmul.scratch_bytes > job->second.scratch_bytes ? job->matmul.scratch_bytes
                                                                                    : job->second.scratch_bytes;
    return status;
}

/* The bias gradient first: if the device declines it, the matmul has not accumulated into its output yet. */
void tarn__compose_run(tarn__kernel fused, const tarn__call *call)
{
    composition c;
    const composed_job *job = tarn__plan_job(call->plan);
    compose(&c, fused, call);
    bool is_first = fused == TARN__K_matmul_bias_grad;
    if (is_first)
        tarn__part_run(call, &job->second, &c.second);
    tarn__part_run(call, &job->matmul, &c.matmul);
    if (!is_first)
        tarn__part_run(call, &job->second, &c.second);
}
