/* fused.c: matmul fused with GELU or with the bias gradient. Composed here (base/kernel/compose.h): a CPU's caches
 * hold the intermediate that a GPU would write and read again. The composed kernels come from a table of this
 * level's own. */
#include <pthread.h>

#include "backends/cpu/runtime/level.h"
#include "base/kernel/compose.h"

static tarn__kernel_row rows[TARN__KERNEL_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_rows(void)
{
    TARN__AT_LEVEL(tarn__cpu_register_elementwise)(rows);
    TARN__AT_LEVEL(tarn__cpu_register_matmul)(rows);
    TARN__AT_LEVEL(tarn__cpu_register_reduce)(rows);
}

/* A kernel of this level, also where the registered table has been overwritten by a higher one. */
static const tarn__kernel_row *row_of(tarn__kernel kernel)
{
    pthread_once(&once, fill_rows);
    return &rows[kernel];
}

static size_t scratch_of(tarn__kernel kernel, const tarn__call *call)
{
    return row_of(kernel)->scratch ? row_of(kernel)->scratch(call) : 0;
}

/* Runs one kernel of a composition. They run one after the other and share the call's scratch. */
static void run(tarn__kernel kernel, tarn__call *call, size_t scratch)
{
    call->scratch_bytes = scratch;
    row_of(kernel)->run(call);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static size_t gelu_scratch(const tarn__call *call)
{
    tarn__call matmul = tarn__compose_matmul(call, 3, call->out[1]);
    return scratch_of(TARN__K_matmul, &matmul);
}

/* Outputs gelu(z) and z = a @ b + bias: z is saved for backward. */
static void kernel_matmul_gelu(const tarn__call *call)
{
    tarn__elementwise none = {0};
    tarn__call matmul = tarn__compose_matmul(call, 3, call->out[1]),
               gelu = tarn__compose_elementwise(call, &none, call->out[1], NULL, call->out[0]);
    run(TARN__K_matmul, &matmul, call->scratch_bytes);
    run(TARN__K_gelu, &gelu, 0);
}

static size_t gelu_grad_scratch(const tarn__call *call)
{
    tarn__call matmul = tarn__compose_matmul(call, 2, call->out[0]);
    return scratch_of(TARN__K_matmul, &matmul);
}

static void kernel_matmul_gelu_grad(const tarn__call *call)
{
    tarn__elementwise none = {0};
    tarn__call matmul = tarn__compose_matmul(call, 2, call->out[0]),
               gelu_grad = tarn__compose_elementwise(call, &none, call->in[2], call->out[0], call->out[0]);
    run(TARN__K_matmul, &matmul, call->scratch_bytes);
    run(TARN__K_gelu_grad, &gelu_grad, 0);
}

static size_t bias_grad_scratch(const tarn__call *call)
{
    tarn__bias_grad_call s;
    tarn__compose_bias_grad(&s, call);
    tarn__call matmul = tarn__compose_matmul(call, 2, call->out[0]);
    size_t first = scratch_of(TARN__K_matmul, &matmul), second = scratch_of(TARN__K_sum, &s.call);
    return first > second ? first : second;
}

/* gw = aᵀ @ g and gbias = Σ g: two passes over g. */
static void kernel_matmul_bias_grad(const tarn__call *call)
{
    tarn__bias_grad_call s;
    tarn__compose_bias_grad(&s, call);
    tarn__call matmul = tarn__compose_matmul(call, 2, call->out[0]);
    run(TARN__K_matmul, &matmul, scratch_of(TARN__K_matmul, &matmul));
    run(TARN__K_sum, &s.call, scratch_of(TARN__K_sum, &s.call));
}

void TARN__AT_LEVEL(tarn__cpu_register_fused)(tarn__kernel_row *table)
{
    table[TARN__K_matmul_gelu] = tarn__row(kernel_matmul_gelu, TARN__FLOATS, gelu_scratch);
    table[TARN__K_matmul_gelu_grad] = tarn__row(kernel_matmul_gelu_grad, TARN__FLOATS, gelu_grad_scratch);
    table[TARN__K_matmul_bias_grad] = tarn__row(kernel_matmul_bias_grad, TARN__NUMBERS, bias_grad_scratch);
}
