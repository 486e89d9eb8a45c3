/* compare.cu: comparisons, whose result is bool, and the choice between two operands. */
#include "backends/cuda/elementwise.cuh"

#define UNARY(name, ...)
#define BINARY(name, ...)
#define COMPARE(name, value) EXPRESSION(name##_value, 2, 1, PLAIN, const real a = in[0], b = in[1]; out[0] = (real)(value);)
#include "base/elementwise.def"
#undef COMPARE

/* Results are bytes: packs are as long as 16 bytes of operands. */
template <typename Op> static void run_compare(const tarn__call *call)
{
    tarn_dtype dtype = leading_dtype(call);
    if (is_nothing(call))
        return;
    bool done = dtype == TARN_F32    ? launch_packed<Op, float, bool>(call)
                : dtype == TARN_BF16 ? launch_packed<Op, bf16, bool>(call)
                : dtype == TARN_F16  ? launch_packed<Op, f16, bool>(call)
                                     : false;
    if (!done && dtype == TARN_F64)
        launch_single<Op, twice>(call);
    else if (!done && tarn__is_float(dtype))
        launch_single<Op, fine>(call);
    else if (!done)
        launch_single<Op, whole>(call);
}

/* The condition's dtype is its own: packs of where() have a kernel of their own; the rest goes one by one. */
EXPRESSION(where_value, 3, 1, PLAIN, out[0] = in[0] != K(0) ? in[1] : in[2];)

static void run_where(const tarn__call *call)
{
    tarn_dtype dtype = call->in[1] ? call->in[1]->dtype : call->in[2] ? call->in[2]->dtype : call->out[0]->dtype;
    if (is_nothing(call))
        return;
    if (dtype == TARN_F64)
        launch_single<where_value, twice>(call);
    else if (tarn__is_float(dtype))
        launch_single<where_value, fine>(call);
    else
        launch_single<where_value, whole>(call);
}

void tarn__cuda_compare(tarn__kernel_row *rows)
{
#define COMPARE(name, ...) rows[TARN__K_##name] = tarn__kernel_row{run_compare<name##_value>, TARN__ALL, NULL};
#include "base/elementwise.def"
    rows[TARN__K_where] = tarn__kernel_row{run_where, TARN__ALL, NULL};
}
