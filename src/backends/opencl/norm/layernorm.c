/* layernorm.c: layernorm and rmsnorm over the last axis, alone and fused with the addition before them, and their
 * gradients: the launchers of layernorm.cl and layernorm_registers.cl. */
#include <stdio.h>

#include "backends/opencl/common/rows.h"

#define MAX_CHUNKS 256
#define MIN_ROWS 16                         /* per chunk */
#define PARTIAL_ELEMENTS (INT64_C(4) << 20) /* of all chunks' sums together */
#define REGISTER_CHUNKS 1024                /* with rows in registers: chunks at most, with at least */
#define MIN_REGISTER_ROWS 4
#define MAX_REGISTER_ROWS 64 /* and at most these rows each, since they are summed in f32 */

/* Dtype name of a view; of an absent one that of another, so that it needs no program of its own. */
static const char *type_of(const tarn__view *view, const tarn__view *fallback)
{
    return tarn__cl_dtype_name(view ? view->dtype : fallback->dtype);
}

/* Short rows are computed in `real`. */
static const char *real_option(const tarn__cl_row_set *rows)
{
    return rows->length <= TARN__CL_SHORT_ROW ? " -DUSE_REAL" : "";
}

/* A kernel of layernorm_registers.cl. Not good: rows do not fit the registers of a work-group on this device. */
static tarn__cl_launch try_registers(const tarn__call *call, const char *kernel, const tarn__cl_row_form *form,
                                     int vecs, const char *own)
{
    char options[384], all[320];
    snprintf(all, sizeof(all), " -DVECS=%d%s", vecs, own);
    tarn__cl_row_options(form, all, options, sizeof(options));
    return vecs ? tarn__cl_try(call, "layernorm_registers", kernel, options, form->group)
                : (tarn__cl_launch){.good = false};
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

enum { OUT, IN, MEAN, RSTD, FIRST, SECOND, OPERANDS }; /* as in layernorm.cl */

/* Operands of a forward call. */
typedef struct forward {
    /* fused with an addition IN is the sum's output, FIRST and SECOND its terms; else those are NULL */
    const tarn__view *view[OPERANDS];
    const tarn__view *weight, *bias;
    bool is_centred; /* layernorm */
    double epsilon;
} forward;

/* In registers where rows fit, else by rows. Bytes: x read, y written; with an addition both terms read and the sum
 * written too. */
static void run_forward(const tarn__call *call, const forward *f)
{
    const tarn__view *x = f->view[IN], *number = f->view[RSTD] ? f->view[RSTD] : f->view[MEAN];
    const int axis = x->rank - 1;
    tarn__cl_row_set rows;
    char own[256];
    tarn__cl_row_set_describe(&rows, axis, OPERANDS, f->view);
    if (rows.count == 0)
        return;
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    tarn__cl_row_form form = tarn__cl_row_form_of(device, &rows, axis, OPERANDS, f->view), registers = form;
    /* Weight and bias are loaded with the row, so they must be aligned as well. */
    const int vecs = tarn__cl_is_vec4(f->weight) && tarn__cl_is_vec4(f->bias)
                         ? tarn__cl_row_registers(device, &rows, &registers, axis, OPERANDS, f->view)
                         : 0;
    snprintf(own, sizeof(own),
             "%s%s%s%s -DFORWARD -DT_X=%s -DT_Y=%s -DT_W=%s -DT_B=%s -DT_STAT=%s -DT_FIRST=%s -DT_SECOND=%s",
             real_option(&rows), f->is_centred ? " -DCENTRED" : "", f->view[FIRST] ? " -DRESIDUAL" : "",
             x->dtype == TARN_F32 ? "" : " -DROUNDS", type_of(x, x), type_of(f->view[OUT], x), type_of(f->weight, x),
             type_of(f->bias, x), number ? tarn__cl_dtype_name(number->dtype) : "f32", type_of(f->view[FIRST], x),
             type_of(f->view[SECOND], x));
    tarn__cl_launch launch = try_registers(call, "norm", &registers, vecs, own);
    /* By rows where the driver cannot give a work-group that many registers. */
    if (launch.good)
        form = registers;
    else
        launch = tarn__cl_begin_rows(call, "layernorm", "norm", &form, own);
    tarn__cl_arg_value(&launch, &rows, sizeof(rows));
    for (int k = 0; k < OPERANDS; k++)
        tarn__cl_arg_view(&launch, f->view[k]);
    tarn__cl_arg_vector(&launch, f->weight);
    tarn__cl_arg_vector(&launch, f->bias);
    tarn__cl_arg_real(&launch, f->epsilon);
    tarn__cl_enqueue_rows(&launch, &form, rows.count);
}

/* Inputs x, weight, bias; outputs y, mean, rstd. */
static void run_layernorm(const tarn__call *call)
{
    const tarn__norm *params = call->params;
    run_forward(call, &(forward){.view = {call->out[0], call->in[0], call->out[1], call->out[2]},
                                 .weight = call->in[1],
                                 .bias = call->in[2],
                                 .is_centred = true,
                                 .epsilon = params->epsilon});
}

/* Inputs x, weight; outputs y, rstd. */
static void run_rmsnorm(const tarn__call *call)
{
    const tarn__norm *params = call->params;
    run_forward(call, &(forward){.view = {call->out[0], call->in[0], NULL, call->out[1]},
                                 .weight = call->in[1],
                                 .epsilon = params->epsilon});
}

/* Inputs both terms, weight, bias; outputs sum, y, mean, rstd. */
static void run_residual_norm(const tarn__call *call)
{
    const tarn__residual_norm *params = call->params;
    run_forward(call,
                &(forward){.view = {call->out[1], call->out[0], call->out[2], call->out[3], call->in[0], call->in[1]},
                           .weight = call->in[2],
                           .bias = call->in[3],
                           .is_centred = !params->rms,
                           .epsilon = params->epsilon});
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

enum { GY = 4, OWN }; /* gy, and the gradient that reaches the sum directly; in the slots of FIRST and SECOND */

/* A backward call described for launch. */
typedef struct backward {
    const tarn__view *view[OPERANDS];           /* gx or NULL, x, mean or NULL, rstd, gy, own or NULL */
    const tarn__view *weight, *gweight, *gbias; /* (length); gradients may be NULL */
    bool is_centred, is_short;                  /* layernorm; rows computed in `real` */
    double epsilon;
    tarn__cl_row_set rows;
    tarn__cl_row_form form, register_form;
    int vecs;                   /* vec4s of a row per work-item; 0: rows are not in registers */
    int64_t chunk_rows, chunks; /* rows are cut for the gradients of weight and bias */
    /* scratch: recomputed mean and rstd of short rows, then the chunks' sums; sized for f64, whatever `real` is */
    size_t stats_bytes, partial_bytes;
} backward;

/* Cuts rows into chunks for the gradients of weight and bias. */
static void cut_chunks(backward *b)
{
    /* More chunks keep more compute units busy, but all their sums are written and read again. */
    int64_t length = b->rows.length > 0 ? b->rows.length : 1, most = PARTIAL_ELEMENTS / length,
            least = b->vecs ? MIN_REGISTER_ROWS : MIN_ROWS;
    most = b->vecs ? REGISTER_CHUNKS : most < 8 ? 8 : most > MAX_CHUNKS ? MAX_CHUNKS : most;
    b->chunk_rows = (b->rows.count + most - 1) / most;
    b->chunk_rows = b->chunk_rows < least                          ? least
                    : b->vecs && b->chunk_rows > MAX_REGISTER_ROWS ? MAX_REGISTER_ROWS
                                                                   : b->chunk_rows;
    b->chunks = (b->rows.count + b->chunk_rows - 1) / b->chunk_rows;
    b->partial_bytes = b->gweight || b->gbias
                           ? 2 * (b->vecs ? sizeof(float) : sizeof(double)) * (size_t)(b->chunks * b->rows.length)
                           : 0;
}

/* Completes a description whose views, vectors and epsilon are set. */
static void plan_backward(backward *b, const tarn__call *call)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    const int axis = b->view[IN]->rank - 1;
    const tarn__view *views[OPERANDS];
    /* Without gx, x stands in for it: the row set needs the shape of the output. */
    for (int k = 0; k < OPERANDS; k++)
        views[k] = b->view[k] ? b->view[k] : k == OUT ? b->view[IN] : NULL;
    tarn__cl_row_set_describe(&b->rows, axis, OPERANDS, views);
    b->form = b->register_form = tarn__cl_row_form_of(device, &b->rows, axis, OPERANDS, b->view);
    b->vecs = tarn__cl_is_vec4(b->weight)
                  ? tarn__cl_row_registers(device, &b->rows, &b->register_form, axis, OPERANDS, b->view)
                  : 0;
    b->is_short = b->rows.length <= TARN__CL_SHORT_ROW;
    b->stats_bytes = b->is_short ? 2 * sizeof(double) * (size_t)b->rows.count : 0;
    cut_chunks(b);
}

/* Inputs x, weight, [mean,] rstd, g; outputs gx, gweight, [gbias]. */
static backward describe_norm(const tarn__call *call, bool is_centred)
{
    /* rmsnorm has no mean: rstd and g come one input earlier. */
    const int after = is_centred ? 3 : 2;
    backward b = {
        .view = {call->out[0], call->in[0], is_centred ? call->in[2] : NULL, call->in[after], call->in[after + 1]},
        .weight = call->in[1],
        .gweight = call->out[1],
        .gbias = is_centred ? call->out[2] : NULL,
        .is_centred = is_centred,
        .epsilon = ((const tarn__norm *)call->params)->epsilon};
    plan_backward(&b, call);
    return b;
}

/* Inputs sum, weight, mean, rstd, gy, and the gradient that reaches the sum directly; outputs as above. */
static backward describe_residual(const tarn__call *call)
{
    const tarn__residual_norm *params = call->params;
    backward b = {.view = {call->out[0], call->in[0], call->in[2], call->in[3], call->in[4], call->in[5]},
                  .weight = call->in[1],
                  .gweight = call->out[1],
                  .gbias = call->out[2],
                  .is_centred = !params->rms,
                  .epsilon = params->epsilon};
    plan_backward(&b, call);
    return b;
}

/* `kernel` is the macro that selects it. */
static void write_options(const backward *b, const char *kernel, char *options, size_t size)
{
    const tarn__view *x = b->view[IN];
    snprintf(options, size, "%s%s -D%s -DT_X=%s -DT_GX=%s -DT_STAT=%s -DT_G=%s -DT_OWN=%s -DT_W=%s",
             b->is_short ? " -DUSE_REAL -DREMEASURE" : "", b->is_centred ? " -DCENTRED" : "", kernel, type_of(x, x),
             type_of(b->view[OUT], x), type_of(b->view[RSTD], x), type_of(b->view[GY], x), type_of(b->view[OWN], x),
             type_of(b->weight, x));
}

/* The arguments that both variants of the gradient share. */
static void arg_operands(tarn__cl_launch *launch, const backward *b)
{
    tarn__cl_arg_value(launch, &b->rows, sizeof(b->rows));
    for (int k = 0; k < OPERANDS; k++)
        tarn__cl_arg_view(launch, b->view[k]);
    tarn__cl_arg_vector(launch, b->weight);
}

/* gx, a row per work-group. Bytes: x and gy read, gx written. */
static void run_grad(const tarn__call *call, const backward *b)
{
    char own[256];
    tarn__cl_row_form form = b->form;
    write_options(b, "GRAD", own, sizeof(own));
    tarn__cl_launch launch = tarn__cl_begin_rows(call, "layernorm", "norm_grad", &form, own);
    arg_operands(&launch, b);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_real(&launch, b->epsilon);
    tarn__cl_enqueue_rows(&launch, &form, b->rows.count);
}

/* A chunk of rows per work-group: gx and the chunk's sums in one pass. False, and nothing done, where rows are not in
 * registers. */
static bool run_registers(const tarn__call *call, const backward *b)
{
    char own[256];
    write_options(b, "GRAD", own, sizeof(own));
    tarn__cl_launch launch = try_registers(call, "norm_grad", &b->register_form, b->vecs, own);
    if (!launch.good)
        return false;
    arg_operands(&launch, b);
    /* A frozen norm has no column sums. */
    if (b->partial_bytes)
        tarn__cl_arg_scratch(&launch, call, 0);
    else
        tarn__cl_arg_view(&launch, NULL);
    tarn__cl_arg_long(&launch, b->chunk_rows);
    tarn__cl_enqueue_rows(&launch, &b->register_form, b->chunks);
    return true;
}

/* Sums of columns: a work-item per few columns of each chunk of rows. Bytes: x and gy read. */
static void run_columns(const tarn__call *call, const backward *b)
{
    char own[256], options[384];
    write_options(b, "COLUMNS", own, sizeof(own));
    tarn__cl_row_options(&b->form, own, options, sizeof(options));
    tarn__cl_launch launch = tarn__cl_begin(call, "layernorm", "norm_columns", options);
    tarn__cl_arg_value(&launch, &b->rows, sizeof(b->rows));
    for (int k = IN; k < OWN; k++)
        tarn__cl_arg_view(&launch, b->view[k]);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_scratch(&launch, call, (int64_t)b->stats_bytes);
    tarn__cl_arg_long(&launch, b->chunk_rows);
    tarn__cl_arg_long(&launch, b->chunks);
    size_t sets = ((size_t)b->rows.length + b->form.lanes - 1) / b->form.lanes;
    tarn__cl_enqueue_independent(&launch, 1, (size_t[]){sets * (size_t)b->chunks}, b->form.lanes > 1 ? 1 : 64);
}

/* `columns` columns per work-group, `slices` work-items for each. */
static tarn__cl_launch try_combine(const tarn__call *call, const backward *b, size_t columns, size_t slices)
{
    char options[192];
    const tarn__view *rstd = b->view[RSTD];
    snprintf(options, sizeof(options),
             "-DGROUP=1 -DLANES=1 -DCOMBINE -DCOLUMNS_A_GROUP=%zu -DSLICES=%zu -DPART=%s -DT_X=f32 -DT_GW=%s -DT_GB=%s",
             columns, slices, b->vecs ? "float" : "real", type_of(b->gweight, rstd), type_of(b->gbias, rstd));
    return columns * slices > 1 ? tarn__cl_try(call, "layernorm", "norm_combine", options, columns * slices)
                                : tarn__cl_begin(call, "layernorm", "norm_combine", options);
}

/* Adds up the chunks' sums, some columns per work-group. */
static void run_combine(const tarn__call *call, const backward *b)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    size_t columns = b->vecs ? 8 : 16,
           slices = device->has_local_memory ? tarn__cl_group_size(device, 256) / columns : 1;
    slices = slices < 1 ? 1 : slices;
    tarn__cl_launch launch = try_combine(call, b, columns, slices);
    /* The driver may allow fewer work-items than the device does in general. */
    while (!launch.good && columns * slices > 1) {
        const size_t left = tarn__cl_max_group(&launch);
        columns = left < columns ? left : columns;
        slices = left / columns;
        launch = try_combine(call, b, columns, slices);
    }
    tarn__cl_arg_scratch(&launch, call, (int64_t)b->stats_bytes);
    tarn__cl_arg_long(&launch, b->chunks);
    tarn__cl_arg_long(&launch, b->rows.length);
    tarn__cl_arg_vector(&launch, b->gweight);
    tarn__cl_arg_vector(&launch, b->gbias);
    size_t groups = ((size_t)b->rows.length + columns - 1) / columns, local = columns * slices;
    tarn__cl_enqueue(&launch, 1, (size_t[]){groups * local}, (size_t[]){local});
}

/* Plans for rows by layernorm.cl instead. */
static void drop_registers(backward *b)
{
    b->vecs = 0;
    cut_chunks(b);
}

/* One pass in registers, or gx and the sums of columns separately; then the chunks' sums. */
static void run_backward(const tarn__call *call, backward *b)
{
    const bool has_vectors = b->gweight || b->gbias;
    if (b->rows.count > 0 && !run_registers(call, b)) {
        drop_registers(b);
        /* Short rows need the pass even without gx: it recomputes the statistics that run_columns() reads. */
        if (b->view[OUT] || b->is_short)
            run_grad(call, b);
        if (has_vectors)
            run_columns(call, b);
    }
    if (has_vectors)
        run_combine(call, b);
}

/* Each launch and its scratch describe the call in the same way, so that both choose the same chunks. */
static void run_layernorm_grad(const tarn__call *call)
{
    backward b = describe_norm(call, true);
    run_backward(call, &b);
}

static void run_rmsnorm_grad(const tarn__call *call)
{
    backward b = describe_norm(call, false);
    run_backward(call, &b);
}

static void run_residual_norm_grad(const tarn__call *call)
{
    backward b = describe_residual(call);
    run_backward(call, &b);
}

/* The larger of both plans: whether rows fit registers is known only when the kernel is begun. */
static size_t scratch_of(const backward *b)
{
    backward rows_only = *b;
    drop_registers(&rows_only);
    return b->stats_bytes + (b->partial_bytes > rows_only.partial_bytes ? b->partial_bytes : rows_only.partial_bytes);
}

static size_t layernorm_grad_scratch(const tarn__call *call)
{
    backward b = describe_norm(call, true);
    return scratch_of(&b);
}

static size_t rmsnorm_grad_scratch(const tarn__call *call)
{
    backward b = describe_norm(call, false);
    return scratch_of(&b);
}

static size_t residual_norm_grad_scratch(const tarn__call *call)
{
    backward b = describe_residual(call);
    return scratch_of(&b);
}

void tarn__cl_register_layernorm(tarn__kernel_row *rows)
{
    rows[TARN__K_layernorm] = tarn__row(run_layernorm, TARN__FLOATS, NULL);
    rows[TARN__K_layernorm_grad] = tarn__row(run_layernorm_grad, TARN__FLOATS, layernorm_grad_scratch);
    rows[TARN__K_rmsnorm] = tarn__row(run_rmsnorm, TARN__FLOATS, NULL);
    rows[TARN__K_rmsnorm_grad] = tarn__row(run_rmsnorm_grad, TARN__FLOATS, rmsnorm_grad_scratch);
    rows[TARN__K_residual_norm] = tarn__row(run_residual_norm, TARN__FLOATS, NULL);
    rows[TARN__K_residual_norm_grad] = tarn__row(run_residual_norm_grad, TARN__FLOATS, residual_norm_grad_scratch);
}
