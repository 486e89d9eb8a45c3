/* elementwise.c: the rows of elementwise.def, where, gated, and their gradients. A program is compiled per expression,
 * compute type, dtypes, and access to each operand. */
#include <string.h>

#include "backends/opencl/common/element.h"

/* A kernel: its functions, and how it computes. */
typedef struct expression {
    const char *first, *second; /* functions of expressions.cl; second: of the other output */
    bool needs_f64;             /* f32 is computed in f64 where the device has it: all, or what leaves its range */
    int typed;                  /* first operand whose dtype decides the compute type */
} expression;

enum { IS_DENSE, IS_ONE, IS_CONSTANT, IS_REPEATED }; /* access to an operand, as in elementwise.cl */

#define LOCKSTEP_PER 4 /* elements per work-item in lockstep, */
#define VEC4_PER 2     /* or vec4s */

/* A call described for launch. */
typedef struct job {
    tarn__nest nest;
    tarn__cl_compute compute;
    int outputs; /* present ones: either gradient may be absent */
    const tarn__view *out[2];
    bool has_f64_range; /* results outside the range of f32 are computed in f64 */
    bool contiguous;    /* one row per operand: contiguous, or one element repeated */
    bool vec4;          /* the nest counts vec4s */
    int per;            /* elements, or vec4s, per work-item */
    int mode[3];        /* of each input */
} job;

/* The dtype that decides the compute type; `where` skips its condition. */
static tarn_dtype leading_dtype(const tarn__call *call, int typed)
{
    for (int k = typed; k < call->inputs; k++)
        if (call->in[k])
            return call->in[k]->dtype;
    return call->out[0] ? call->out[0]->dtype : call->out[1]->dtype;
}

/* Access to each operand; contiguous if the whole call is one row. */
static void set_modes(job *j, const tarn__call *call)
{
    j->contiguous = j->nest.rank <= 1;
    for (int k = 0; k < j->outputs; k++)
        j->contiguous = j->contiguous && (j->nest.rank == 0 || j->nest.stride[k][0] == 1);
    for (int k = 0; k < call->inputs; k++) {
        int64_t step = j->nest.rank == 0 ? 1 : j->nest.stride[j->outputs + k][0];
        j->mode[k] = !call->in[k] ? IS_CONSTANT : j->nest.rank <= 1 && step == 0 ? IS_ONE : IS_DENSE;
        j->contiguous = j->contiguous && (j->mode[k] != IS_DENSE || step == 1);
    }
}

/* Floats that are computed in f32. */
static bool is_short_float(tarn_dtype dtype)
{
    return dtype == TARN_F32 || dtype == TARN_BF16 || dtype == TARN_F16;
}

/* True when an operand allows vec4 loads or stores, or is one element repeated. */
static bool allows_vec4(const tarn__nest *nest, int operand, const tarn__view *view, bool is_result)
{
    int last = nest->rank - 1;
    if (!view)
        return true;
    if (!is_short_float(view->dtype) || (nest->stride[operand][last] == 0 && is_result))
        return false;
    bool is_good = nest->stride[operand][last] == 0 || (nest->stride[operand][last] == 1 && view->offset % 4 == 0);
    for (int i = 0; i < last && nest->stride[operand][last] == 1; i++)
        is_good = is_good && nest->stride[operand][i] % 4 == 0;
    return is_good;
}

/* Switches to vec4s where all operands allow them. */
static void use_vec4(job *j, const tarn__call *call, const tarn__view *const *views)
{
    int last = j->nest.rank - 1, operands = j->outputs + call->inputs;
    j->vec4 = j->compute == TARN__CL_F32 && last >= 0 && j->nest.shape[last] % 4 == 0;
    for (int k = 0; k < operands && j->vec4; k++)
        j->vec4 = allows_vec4(&j->nest, k, views[k], k < j->outputs);
    if (!j->vec4)
        return;
    for (int k = 0; k < call->inputs; k++)
        if (j->mode[k] == IS_DENSE && j->nest.stride[j->outputs + k][last] == 0)
            j->mode[k] = IS_REPEATED;
    j->nest.count /= 4;
    j->nest.shape[last] /= 4;
    for (int k = 0; k < operands; k++)
        j->nest.stride[k][last] *= 4;
    /* an axis of one vec4 vanishes */
    j->nest.rank -= j->nest.shape[last] == 1;
}

/* The f64 rows that double_float.cl computes accurately in f32. */
static bool has_double_float(const expression *e)
{
    static const char *const rows[] = {"grad_tanh",        "grad_erf",        "grad_sigmoid",
                                       "value_gelu",       "grad_gelu",       "grad_silu",
                                       "value_gated_gelu", "gated_gelu_gate", "gated_silu_gate"};
    bool found = false;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        found = found || strcmp(rows[i], e->first) == 0;
    return found;
}

/* Chooses compute type, access and vector width. */
static void describe(job *j, const tarn__call *call, const expression *e)
{
    /* operands of the nest: present outputs, then inputs */
    const tarn__view *views[TARN__MAX_OPERANDS];
    *j = (job){.compute = tarn__cl_compute_of(leading_dtype(call, e->typed))};
    for (int k = 0; k < call->outputs; k++)
        if (call->out[k])
            views[j->outputs] = j->out[j->outputs] = call->out[k], j->outputs++;
    for (int k = 0; k < call->inputs; k++)
        views[j->outputs + k] = call->in[k];
    tarn__nest_make(&j->nest, j->outputs + call->inputs, views);
    if (j->compute == TARN__CL_F32 && e->needs_f64 && tarn__cl_device_at(call->device)->has_f64) {
        j->has_f64_range = has_double_float(e) &&
                           strcmp(e->first, "value_gelu") != 0; /* its factors stay in the range of its result */
        j->compute = has_double_float(e) ? TARN__CL_F32 : TARN__CL_F64;
    }
    set_modes(j, call);
    if (j->nest.count > 0 && tarn__cl_device_at(call->device)->in_lockstep)
        use_vec4(j, call, views);
    j->per = !tarn__cl_device_at(call->device)->in_lockstep ? 1 : j->vec4 ? VEC4_PER : LOCKSTEP_PER;
}

/* Returns whether 32-bit offsets are enough. */
static bool write_options(tarn__cl_options *o, const job *j, const tarn__call *call, const expression *e)
{
    tarn__cl_option_compute(o, j->compute);
    bool is_small = tarn__cl_option_index(o, &j->nest);
    tarn__cl_option(o, " -DINPUTS=%d -DOUTPUTS=%d -DEXPRESSION=%s -DSECOND=%s%s", call->inputs, j->outputs,
                    call->out[0] ? e->first : e->second, e->second ? e->second : e->first,
                    j->contiguous ? " -DCONTIGUOUS" : "");
    tarn__cl_option(o, " -DPER=%d%s", j->per, j->vec4 ? " -DVEC4" : "");
    if (j->has_f64_range)
        tarn__cl_option(o, " -DF64_RANGE=f64_%s -DF64_RANGE_SECOND=f64_%s", call->out[0] ? e->first : e->second,
                        e->second ? e->second : e->first);
    for (int k = 0; k < j->outputs; k++)
        tarn__cl_option(o, " -DT_Y%d=%s", k, tarn__cl_dtype_name(j->out[k]->dtype));
    for (int k = 0; k < call->inputs; k++)
        tarn__cl_option(o, " -DM_X%d=%d -DT_X%d=%s", k, j->mode[k], k,
                        tarn__cl_dtype_name(call->in[k] ? call->in[k]->dtype : TARN_F32));
    return is_small;
}

/* Saturates a parameter (the bound of a clamp) for integer rows. */
static tarn__scalar parameter(double p)
{
    return (tarn__scalar){p, p >= 0x1p63 ? INT64_MAX : p <= -0x1p63 ? INT64_MIN : p == p ? (int64_t)p : 0};
}

/* One element per work-item, or on a GPU several, adjacent to adjacent. Bytes: each input read and each output written
 * once. */
static void run(const tarn__call *call, const expression *e)
{
    const tarn__elementwise *params = call->params;
    job j;
    describe(&j, call, e);
    if (j.nest.count == 0)
        return;
    tarn__cl_options options = {.length = 0};
    bool is_small = write_options(&options, &j, call, e);
    tarn__cl_launch launch = tarn__cl_begin(call, "elementwise", "elementwise", options.text);
    /* absent operands are NULL pointers, which the program never reads */
    for (int k = 0; k < 2; k++)
        tarn__cl_arg_view(&launch, j.out[k]);
    for (int k = 0; k < 3; k++)
        tarn__cl_arg_view(&launch, k < call->inputs ? call->in[k] : NULL);
    for (int k = 0; k < 3; k++)
        tarn__cl_arg_scalar(&launch, j.compute, params->constant[k]);
    tarn__cl_arg_scalar(&launch, j.compute, parameter(params->p0));
    tarn__cl_arg_scalar(&launch, j.compute, parameter(params->p1));
    tarn__cl_arg_index(&launch, is_small, j.nest.count);
    if (!j.contiguous)
        tarn__cl_arg_indexer(&launch, is_small, &j.nest);
    tarn__cl_enqueue_elements(&launch, (j.nest.count + j.per - 1) / j.per);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

enum { IN_F32 = 0, IN_F64 = 1 };

#define KERNEL(name, ...) \
    static void kernel_##name(const tarn__call *call) \
    { \
        run(call, &(expression){__VA_ARGS__}); \
    }
#define UNARY(name, dtypes, pv, pg, value, gradient) \
    KERNEL(name, .first = "value_" #name, .needs_f64 = pv) KERNEL(name##_grad, .first = "grad_" #name, .needs_f64 = pg)
#define BINARY(name, dtypes, pv, pg, value, ga, gb) \
    KERNEL(name, .first = "value_" #name, .needs_f64 = pv) \
    KERNEL(name##_grad, .first = "grad_a_" #name, .second = "grad_b_" #name, .needs_f64 = pg) \
    KERNEL(name##_grad_a, .first = "grad_a_" #name, .needs_f64 = pg) \
    KERNEL(name##_grad_b, .first = "grad_b_" #name, .needs_f64 = pg)
#define COMPARE(name, value) KERNEL(name, .first = "value_" #name)
#include "base/kernel/elementwise.def"
#undef UNARY
#undef BINARY
#undef COMPARE

KERNEL(where, .first = "value_where", .typed = 1)
KERNEL(where_grad, .first = "where_holds", .second = "where_not", .typed = 1)

/* By activation, as tarn__act numbers them; values and gradients as precise as the activation's row. */
static const expression gated[TARN__ACT_COUNT][2] = {
    {{.first = NULL}, {.first = NULL}},
    {{.first = "value_gated_silu"}, {.first = "gated_silu_gate", .second = "gated_silu_up", .needs_f64 = true}},
    {{.first = "value_gated_gelu", .needs_f64 = true},
     {.first = "gated_gelu_gate", .second = "gated_gelu_up", .needs_f64 = true}},
    {{.first = "value_gated_gelu_erf", .needs_f64 = true},
     {.first = "gated_gelu_erf_gate", .second = "gated_gelu_erf_up", .needs_f64 = true}},
    {{.first = "value_gated_relu"}, {.first = "gated_relu_gate", .second = "gated_relu_up"}}};

static void kernel_gated(const tarn__call *call)
{
    run(call, &gated[((const tarn__elementwise *)call->params)->act][0]);
}

static void kernel_gated_grad(const tarn__call *call)
{
    run(call, &gated[((const tarn__elementwise *)call->params)->act][1]);
}

#define DTYPES_FLOAT TARN__FLOATS
#define DTYPES_NUMBER TARN__ALL

void tarn__cl_register_elementwise(tarn__kernel_row *rows)
{
#define ROW(name, mask) rows[TARN__K_##name] = tarn__row(kernel_##name, mask);
#define UNARY(name, dtypes, ...) ROW(name, DTYPES_##dtypes) ROW(name##_grad, TARN__FLOATS)
#define BINARY(name, dtypes, ...) \
    ROW(name, DTYPES_##dtypes) \
    ROW(name##_grad, TARN__FLOATS) ROW(name##_grad_a, TARN__FLOATS) ROW(name##_grad_b, TARN__FLOATS)
#define COMPARE(name, ...) ROW(name, TARN__ALL)
#include "base/kernel/elementwise.def"
    ROW(where, TARN__ALL)
    ROW(where_grad, TARN__ALL)
    ROW(gated, TARN__FLOATS)
    ROW(gated_grad, TARN__FLOATS)
}
