/* decode_gemv.c: the linear layers of a decode step, with norm, bias, activation, gate and residual: the launchers of
 * decode_gemv.cl. They need local memory; CPUs compose these operations. */
#include <stdio.h>
#include <string.h>

#include "backends/opencl/runtime/opencl.h"

#define MAX_ROWS 8 /* of x; more are a matmul */
#define GROUP 128  /* work-items of a work-group */
#define GROUPS_PER_UNIT 8

/* The struct `gemv_args` of decode_gemv.cl. */
typedef struct gemv_args {
    int64_t x, x_down, norm, norm_bias;
    int64_t weight[3], pitch[3], bias[3], bias_step[3], y[3], y_down[3];
    int64_t sum, sum_down;
    int64_t jobs;
    int32_t out[3], bias_dtype[3];
    int32_t in, rows, act;
    float epsilon, offset, scale, cap;
} gemv_args;

enum bias_dtype { BIAS_F32, BIAS_BF16, BIAS_F16 };

/* Properties that a program is compiled for; compared byte by byte. */
typedef struct form {
    int8_t dtype, format, rows, weights;
    bool is_gated, has_norm, has_norm_bias, is_centred, has_bias, has_residual;
} form;

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Of a call of any of the three kernels. */
typedef struct operands {
    const tarn__view *x, *norm, *norm_bias, *weight[3], *bias[3], *sum, *y[3];
    int weights;
    bool is_gated;
} operands;

static const tarn__view *input(const tarn__call *call, int at)
{
    return at < call->inputs ? call->in[at] : NULL;
}

static const tarn__view *output(const tarn__call *call, int at)
{
    return at < call->outputs ? call->out[at] : NULL;
}

static operands of_norm_linear(const tarn__call *call)
{
    operands o = {.x = call->in[0], .norm = input(call, 1), .norm_bias = input(call, 8)};
    for (; o.weights < 3 && input(call, 2 + o.weights); o.weights++) {
        o.weight[o.weights] = input(call, 2 + o.weights), o.bias[o.weights] = input(call, 5 + o.weights);
        o.y[o.weights] = output(call, o.weights);
    }
    return o;
}

static operands of_norm_gate_up(const tarn__call *call)
{
    return (operands){.x = call->in[0],
                      .norm = input(call, 1),
                      .norm_bias = input(call, 4),
                      .weight = {input(call, 2), input(call, 3)},
                      .y = {output(call, 0)},
                      .weights = 2,
                      .is_gated = true};
}

static operands of_linear_residual(const tarn__call *call)
{
    return (operands){.x = call->in[0],
                      .weight = {input(call, 1)},
                      .bias = {input(call, 2)},
                      .sum = input(call, 3),
                      .y = {output(call, 0)},
                      .weights = 1};
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

/* Params are NULL when an operation only asks whether the call fits. */
static form form_of(const operands *o, const tarn__decode_linear *params)
{
    const int64_t rows = o->x->shape[0];
    form f;
    memset(&f, 0, sizeof(f));
    f.dtype = (int8_t)o->x->dtype, f.format = (int8_t)o->weight[0]->dtype, f.weights = (int8_t)o->weights;
    f.rows = (int8_t)(rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : MAX_ROWS);
    f.is_gated = o->is_gated, f.has_norm = o->norm != NULL, f.has_norm_bias = o->norm_bias != NULL;
    f.has_bias = o->bias[0] || o->bias[1] || o->bias[2], f.has_residual = o->sum != NULL;
    f.is_centred = params && params->centred;
    return f;
}

/* Numeric options of decode_gemv.cl: work-items per team, rows of weights that a team multiplies at once, units in
 * flight, elements of x in local memory. */
typedef struct shape {
    int team, jobs, unroll, chunk;
    bool is_staged, has_x16;
} shape;

/* With several rows of x a team multiplies more rows of the weights at once, since it reads x anew for each batch of
 * them. 16-bit x then stays 16 bits wide. Local memory stays within 48 KiB. */
static shape shape_of(const form *f)
{
    const bool is_quantized = tarn__is_quantized((tarn_dtype)f->format);
    if (f->rows == 1) {
        const bool is_staged = f->format == TARN_Q8_0 && !f->is_gated;
        return (shape){32, f->is_gated || f->format == TARN_Q4_K ? 2 : 1, is_quantized ? 1 : 4, 2048, is_staged, false};
    }
    if (f->rows == 2)
        return (shape){32, 2, is_quantized ? 1 : 4, 2048, false, false};
    if (f->dtype != TARN_F32)
        return (shape){32, 2, is_quantized ? 1 : 2, 2048, false, true};
    return (shape){is_quantized && f->rows == MAX_ROWS ? 16 : 32, 2, 1, 4096 / f->rows, false, false};
}

static const tarn__cl_kernel *find(const tarn__call *call, const form *f)
{
    const char *dtype = tarn__cl_dtype_name((tarn_dtype)f->dtype), *format = tarn__dtypes[f->format].name;
    const shape s = shape_of(f);
    char options[512];
    snprintf(options, sizeof(options),
             "-DT=%s -DFORMAT=%s -DIS_%s -DROWS=%d -DGROUP=%d -DTEAM=%d -DJOBS=%d -DUNROLL=%d -DCHUNK=%d -DWEIGHTS=%d"
             "%s%s%s%s%s%s%s%s",
             dtype, format, format, f->rows, GROUP, s.team, s.jobs, s.unroll, s.chunk, f->weights,
             f->is_gated ? " -DGATED" : "", f->has_norm ? " -DNORM" : "", f->has_norm_bias ? " -DNORM_BIAS" : "",
             f->is_centred ? " -DCENTRED" : "", f->has_bias ? " -DBIAS" : "", f->has_residual ? " -DRESIDUAL" : "",
             s.is_staged ? " -DSTAGED" : "", s.has_x16 ? " -DX16" : "");
    return tarn__cl_find(call, "decode_gemv", "gemv", options);
}

/* The program of a call, cached for all devices, since calls ask several times: formatting and hashing its options
 * would take longer than the launch. NULL if it cannot run. */
static const tarn__cl_kernel *kernel_of(const tarn__call *call, const form *f)
{
    enum { CAPACITY = 256 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct entry {
        bool is_used;
        int device;
        form form;
        const tarn__cl_kernel *kernel;
    } table[CAPACITY];
    unsigned hash = (unsigned)call->device;
    for (size_t i = 0; i < sizeof(*f); i++)
        hash = hash * 31 + ((const unsigned char *)f)[i];
    pthread_mutex_lock(&lock);
    int at = (int)(hash % CAPACITY), left = CAPACITY;
    while (--left > 0 && table[at].is_used &&
           (table[at].device != call->device || memcmp(&table[at].form, f, sizeof(*f)) != 0))
        at = (at + 1) % CAPACITY;
    const bool is_known = left > 0 && table[at].is_used;
    const tarn__cl_kernel *kernel = is_known ? table[at].kernel : NULL;
    pthread_mutex_unlock(&lock);
    if (is_known)
        return kernel;
    kernel = find(call, f);
    kernel = tarn__cl_allows(kernel, GROUP) ? kernel : NULL;
    pthread_mutex_lock(&lock);
    if (!table[at].is_used && left > 0)
        table[at] = (struct entry){true, call->device, *f, kernel};
    pthread_mutex_unlock(&lock);
    return kernel;
}

/* ---- which calls fit --------------------------------------------------------------------------------------------- */

/* True when elements of the last axis are contiguous, and rows begin at multiples of `bytes`. */
static bool is_aligned(const tarn__view *view, int64_t bytes)
{
    const int last = view->rank - 1;
    bool good = view->stride[last] == 1 && (view->base + tarn__bytes_of(view->dtype, view->offset)) % bytes == 0;
    for (int i = 0; i < last; i++)
        good = good && (view->shape[i] == 1 ||
                        (view->stride[i] >= 0 && tarn__bytes_of(view->dtype, view->stride[i]) % bytes == 0));
    return good;
}

/* Vectors of four elements of x's dtype. */
static bool is_vec4(const tarn__view *view)
{
    return !view || is_aligned(view, 4 * (int64_t)tarn__dtype_bytes(view->dtype));
}

/* Rows of whole 16-byte vectors, in one of the formats of decode_gemv.cl. */
static bool weight_fits(const tarn__view *weight)
{
    const uint32_t formats =
        TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16) | TARN__BIT(TARN_Q8_0) | TARN__BIT(TARN_Q4_K);
    const int64_t in = weight->shape[1];
    return ((formats >> weight->dtype) & 1) && in % 8 == 0 && in <= INT32_MAX / 8 && weight->shape[0] <= INT32_MAX &&
           tarn__bytes_of(weight->dtype, in) % 16 == 0 && is_aligned(weight, 16);
}

static bool fits(const tarn__call *call, const operands *o)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    bool good = device && device->has_local_memory && o->x->rank == 2 && o->x->shape[0] <= MAX_ROWS &&
                o->x->shape[1] > 0 && o->weights > 0 && is_vec4(o->x) && is_vec4(o->norm) && is_vec4(o->norm_bias) &&
                (!o->sum || o->sum->stride[1] == 1);
    for (int i = 0; good && i < o->weights; i++)
        good = weight_fits(o->weight[i]) && o->weight[i]->dtype == o->weight[0]->dtype &&
               (!o->y[i] || o->y[i]->stride[1] == 1);
    const form f = good ? form_of(o, call->params) : (form){0};
    return good && kernel_of(call, &f);
}

static bool fits_norm_linear(const tarn__call *call)
{
    const operands o = of_norm_linear(call);
    return !input(call, 9) && fits(call, &o);
}

static bool fits_norm_gate_up(const tarn__call *call)
{
    const operands o = of_norm_gate_up(call);
    return !input(call, 5) && fits(call, &o);
}

static bool fits_linear_residual(const tarn__call *call)
{
    const operands o = of_linear_residual(call);
    return fits(call, &o);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

typedef struct job {
    const tarn__cl_kernel *kernel;
} job;

static tarn__plan_status prepare(const tarn__call *call, tarn__plan *plan, const operands *o)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    const form f = form_of(o, call->params);
    if (!j)
        return TARN__PLAN_FAILED;
    j->kernel = call->is_meta ? NULL : kernel_of(call, &f);
    return tarn__cl_ready(call, j->kernel != NULL);
}

static gemv_args args_of(const operands *o, const tarn__decode_linear *params)
{
    const tarn__view *x = o->x;
    gemv_args a = {.x = x->offset,
                   .x_down = x->stride[0],
                   .norm = o->norm ? o->norm->offset : 0,
                   .norm_bias = o->norm_bias ? o->norm_bias->offset : 0,
                   .sum = o->sum ? o->sum->offset : 0,
                   .sum_down = o->sum ? o->sum->stride[0] : 0,
                   .in = (int32_t)x->shape[1],
                   .rows = (int32_t)x->shape[0],
                   .act = params->act,
                   .epsilon = (float)params->epsilon,
                   .offset = (float)params->offset,
                   .scale = (float)params->scale,
                   .cap = (float)params->softcap};
    for (int i = 0; i < o->weights; i++) {
        const tarn__view *w = o->weight[i], *bias = o->bias[i], *y = o->y[i];
        a.weight[i] = w->base + tarn__bytes_of(w->dtype, w->offset);
        a.pitch[i] = tarn__bytes_of(w->dtype, w->stride[0]), a.out[i] = (int32_t)w->shape[0];
        a.jobs += o->is_gated && i > 0 ? 0 : w->shape[0];
        if (bias)
            a.bias[i] = bias->offset, a.bias_step[i] = bias->stride[0],
            a.bias_dtype[i] = bias->dtype == TARN_F32    ? BIAS_F32
                              : bias->dtype == TARN_BF16 ? BIAS_BF16
                                                         : BIAS_F16;
        if (y)
            a.y[i] = y->offset, a.y_down[i] = y->stride[0];
    }
    return a;
}

static void arg_memory(tarn__cl_launch *l, const tarn__view *view)
{
    cl_mem memory = view ? view->memory : NULL;
    tarn__cl_arg_value(l, view ? &memory : NULL, sizeof(memory));
}

/* Grid: at most as many work-groups as run at once; they take elements of y in turn. Bytes: the weights'. */
static void run(const tarn__call *call, const operands *o)
{
    const job *j = tarn__plan_job(call->plan);
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    const gemv_args a = args_of(o, call->params);
    const form f = form_of(o, call->params);
    const shape s = shape_of(&f);
    const int64_t outputs = GROUP / s.team * (o->is_gated ? s.jobs / 2 : s.jobs);
    if (!device || a.jobs == 0 || a.rows == 0)
        return;
    const size_t needed = (size_t)((a.jobs + outputs - 1) / outputs), most = device->compute_units * GROUPS_PER_UNIT,
                 groups = needed < most ? needed : most;
    tarn__cl_launch l = tarn__cl_begin_kernel(call, j->kernel);
    tarn__cl_arg_value(&l, &a, sizeof(a));
    arg_memory(&l, o->x);
    if (o->norm)
        arg_memory(&l, o->norm);
    if (o->norm_bias)
        arg_memory(&l, o->norm_bias);
    for (int i = 0; i < o->weights; i++)
        arg_memory(&l, o->weight[i]);
    for (int i = 0; i < 3 && (o->bias[0] || o->bias[1] || o->bias[2]); i++)
        arg_memory(&l, o->bias[i]);
    if (o->sum)
        arg_memory(&l, o->sum);
    for (int i = 0; i < (o->is_gated ? 1 : o->weights); i++)
        arg_memory(&l, o->y[i]);
    tarn__cl_enqueue(&l, 1, (size_t[]){groups * GROUP}, (size_t[]){GROUP});
}

static tarn__plan_status prepare_norm_linear(const tarn__call *call, tarn__plan *plan)
{
    const operands o = of_norm_linear(call);
    return prepare(call, plan, &o);
}

/* Up to three weights (q, k, v) share one norm of x. */
static void kernel_norm_linear(const tarn__call *call)
{
    const operands o = of_norm_linear(call);
    run(call, &o);
}

static tarn__plan_status prepare_norm_gate_up(const tarn__call *call, tarn__plan *plan)
{
    const operands o = of_norm_gate_up(call);
    return prepare(call, plan, &o);
}

/* act(gate) · up: a team multiplies both rows of an element of y. */
static void kernel_norm_gate_up(const tarn__call *call)
{
    const operands o = of_norm_gate_up(call);
    run(call, &o);
}

static tarn__plan_status prepare_linear_residual(const tarn__call *call, tarn__plan *plan)
{
    const operands o = of_linear_residual(call);
    return prepare(call, plan, &o);
}

static void kernel_linear_residual(const tarn__call *call)
{
    const operands o = of_linear_residual(call);
    run(call, &o);
}

void tarn__cl_register_decode_gemv(tarn__kernel_row *rows)
{
    const uint32_t dtypes =
        TARN__BIT(TARN_F32) | TARN__BIT(TARN_BF16) | TARN__BIT(TARN_F16) | TARN__BIT(TARN_Q8_0) | TARN__BIT(TARN_Q4_K);
    rows[TARN__K_norm_linear] =
        tarn__row_fits(tarn__row_planned(prepare_norm_linear, kernel_norm_linear, dtypes), fits_norm_linear);
    rows[TARN__K_norm_gate_up] =
        tarn__row_fits(tarn__row_planned(prepare_norm_gate_up, kernel_norm_gate_up, dtypes), fits_norm_gate_up);
    rows[TARN__K_linear_residual] = tarn__row_fits(
        tarn__row_planned(prepare_linear_residual, kernel_linear_residual, dtypes), fits_linear_residual);
}
