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

/* A kernel of layernorm_registers.cl. NULL: rows are not kept in registers. */
static const tarn__cl_kernel *find_in_registers(const tarn__call *call, const char *kernel,
                                                const tarn__cl_row_form *form, int vecs, const char *own)
{
    char options[384], all[320];
    if (!vecs)
        return NULL;
    snprintf(all, sizeof(all), " -DVECS=%d%s", vecs, own);
    tarn__cl_row_options(form, all, options, sizeof(options));
    return tarn__cl_find(call, "layernorm_registers", kernel, options);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

enum { OUT, IN, MEAN, RSTD, FIRST, SECOND, OPERANDS }; /* as in layernorm.cl */

/* Operands of a forward call. */
typedef struct forward {
    /* fused with an addition IN is the sum's output, FIRST and SECOND its terms; else those are NULL */
    const tarn__view *view[OPERANDS];
    const tarn__view *weight, *bias;
    bool is_centred;        /* layernorm */
    double epsilon, offset; /* offset: of the weight */
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
    const tarn__cl_kernel *kernel = find_in_registers(call, "norm", &registers, vecs, own);
    /* By rows where the driver cannot give a work-group that many registers. */
    if (tarn__cl_allows(kernel, registers.group))
        form = registers;
    else
        kernel = tarn__cl_find_rows(call, "layernorm", "norm", &form, own);
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, kernel);
    tarn__cl_arg_value(&launch, &rows, sizeof(rows));
    for (int k = 0; k < OPERANDS; k++)
        tarn__cl_arg_view(&launch, f->view[k]);
    tarn__cl_arg_vector(&launch, f->weight);
    tarn__cl_arg_vector(&launch, f->bias);
    tarn__cl_arg_real(&launch, f->epsilon);
    tarn__cl_arg_real(&launch, f->offset);
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
                                 .epsilon = params->epsilon,
                                 .offset = params->offset});
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
                           .epsilon = params->epsilon,
                           .offset = params->rms ? params->offset : 0});
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

enum { GY = 4, OWN }; /* gy, and the gradient that reaches the sum directly; in the slots of FIRST and SECOND */

/* Operands of a backward call. */
typedef struct backward {
    const tarn__view *view[OPERANDS];           /* gx or NULL, x, mean or NULL, rstd, gy, own or NULL */
    const tarn__view *weight, *gweight, *gbias; /* (length); gradients may be NULL */
    bool is_centred;                            /* layernorm */
    double epsilon, offset;                     /* offset: of the weight */
} backward;

/* The call described for launch. */
typedef struct job {
    bool is_short; /* rows computed in `real` */
    int vecs;      /* vec4s of a row per work-item; 0: rows are not in registers */
    tarn__cl_row_set rows;
    tarn__cl_row_form form, grad_form; /* of columns; of gx, which may be the one of registers */
    int64_t chunk_rows, chunks;        /* rows are cut for the gradients of weight and bias */
    /* scratch: recomputed mean and rstd of short rows, then the chunks' sums; sized for f64, whatever `real` is */
    size_t stats_bytes, partial_bytes;
    size_t combine_columns, combine_slices;          /* per work-group of combine; work-items for each */
    const tarn__cl_kernel *grad, *columns, *combine; /* NULL: not needed */
} job;

static bool has_vectors(const backward *b)
{
    return b->gweight || b->gbias;
}

/* Cuts rows into chunks for the gradients of weight and bias. */
static void cut_chunks(job *j, const backward *b)
{
    /* More chunks keep more compute units busy, but all their sums are written and read again. */
    int64_t length = j->rows.length > 0 ? j->rows.length : 1, most = PARTIAL_ELEMENTS / length,
            least = j->vecs ? MIN_REGISTER_ROWS : MIN_ROWS;
    most = j->vecs ? REGISTER_CHUNKS : most < 8 ? 8 : most > MAX_CHUNKS ? MAX_CHUNKS : most;
    j->chunk_rows = (j->rows.count + most - 1) / most;
    j->chunk_rows = j->chunk_rows < least                          ? least
                    : j->vecs && j->chunk_rows > MAX_REGISTER_ROWS ? MAX_REGISTER_ROWS
                                                                   : j->chunk_rows;
    j->chunks = (j->rows.count + j->chunk_rows - 1) / j->chunk_rows;
    j->partial_bytes =
        has_vectors(b) ? 2 * (j->vecs ? sizeof(float) : sizeof(double)) * (size_t)(j->chunks * j->rows.length) : 0;
}

/* Plans for rows by layernorm.cl instead. */
static void drop_registers(job *j, const backward *b)
{
    j->vecs = 0;
    j->grad_form = j->form;
    cut_chunks(j, b);
}

static void describe_rows(job *j, const backward *b, const tarn__cl_device *device)
{
    const int axis = b->view[IN]->rank - 1;
    const tarn__view *views[OPERANDS];
    *j = (job){.vecs = 0};
    /* Without gx, x stands in for it: the row set needs the shape of the output. */
    for (int k = 0; k < OPERANDS; k++)
        views[k] = b->view[k] ? b->view[k] : k == OUT ? b->view[IN] : NULL;
    tarn__cl_row_set_describe(&j->rows, axis, OPERANDS, views);
    j->form = j->grad_form = tarn__cl_row_form_of(device, &j->rows, axis, OPERANDS, b->view);
    j->vecs = tarn__cl_is_vec4(b->weight)
                  ? tarn__cl_row_registers(device, &j->rows, &j->grad_form, axis, OPERANDS, b->view)
                  : 0;
    j->is_short = j->rows.length <= TARN__CL_SHORT_ROW;
    j->stats_bytes = j->is_short ? 2 * sizeof(double) * (size_t)j->rows.count : 0;
    cut_chunks(j, b);
}

/* Inputs x, weight, [mean,] rstd, g; outputs gx, gweight, [gbias]. */
static backward norm_operands(const tarn__call *call, bool is_centred)
{
    /* rmsnorm has no mean: rstd and g come one input earlier. */
    const int after = is_centred ? 3 : 2;
    return (backward){
        .view = {call->out[0], call->in[0], is_centred ? call->in[2] : NULL, call->in[after], call->in[after + 1]},
        .weight = call->in[1],
        .gweight = call->out[1],
        .gbias = is_centred ? call->out[2] : NULL,
        .is_centred = is_centred,
        .epsilon = ((const tarn__norm *)call->params)->epsilon,
        .offset = is_centred ? 0 : ((const tarn__norm *)call->params)->offset};
}

/* Inputs sum, weight, mean, rstd, gy, and the gradient that reaches the sum directly; outputs as above. */
static backward residual_operands(const tarn__call *call)
{
    const tarn__residual_norm *params = call->params;
    return (backward){.view = {call->out[0], call->in[0], call->in[2], call->in[3], call->in[4], call->in[5]},
                      .weight = call->in[1],
                      .gweight = call->out[1],
                      .gbias = call->out[2],
                      .is_centred = !params->rms,
                      .epsilon = params->epsilon,
                      .offset = params->rms ? params->offset : 0};
}

/* ---- its kernels ------------------------------------------------------------------------------------------------- */

/* `kernel` is the macro that selects it. */
static void write_options(const backward *b, const job *j, const char *kernel, char *options, size_t size)
{
    const tarn__view *x = b->view[IN];
    snprintf(options, size, "%s%s -D%s -DT_X=%s -DT_GX=%s -DT_STAT=%s -DT_G=%s -DT_OWN=%s -DT_W=%s",
             j->is_short ? " -DUSE_REAL -DREMEASURE" : "", b->is_centred ? " -DCENTRED" : "", kernel, type_of(x, x),
             type_of(b->view[OUT], x), type_of(b->view[RSTD], x), type_of(b->view[GY], x), type_of(b->view[OWN], x),
             type_of(b->weight, x));
}

/* False where rows are not in registers. */
static bool find_registers(const tarn__call *call, const backward *b, job *j)
{
    char own[256];
    write_options(b, j, "GRAD", own, sizeof(own));
    j->grad = find_in_registers(call, "norm_grad", &j->grad_form, j->vecs, own);
    return tarn__cl_allows(j->grad, j->grad_form.group);
}

/* gx and the sums of columns separately. Short rows need the first even without gx: it recomputes the statistics that
 * run_columns() reads. */
static bool find_passes(const tarn__call *call, const backward *b, job *j)
{
    const bool has_grad = b->view[OUT] || j->is_short;
    char own[256], options[384];
    j->grad = NULL;
    if (has_grad) {
        write_options(b, j, "GRAD", own, sizeof(own));
        j->grad = tarn__cl_find_rows(call, "layernorm", "norm_grad", &j->grad_form, own);
    }
    if (has_vectors(b)) {
        write_options(b, j, "COLUMNS", own, sizeof(own));
        tarn__cl_row_options(&j->form, own, options, sizeof(options));
        j->columns = tarn__cl_find(call, "layernorm", "norm_columns", options);
    }
    return (!has_grad || tarn__cl_allows(j->grad, 1)) && (!has_vectors(b) || tarn__cl_allows(j->columns, 1));
}

/* Some columns per work-group, and work-items for each; fewer where the driver limits the kernel. */
static bool find_combine(const tarn__call *call, const backward *b, job *j)
{
    const tarn__cl_device *device = tarn__cl_device_at(call->device);
    const tarn__view *rstd = b->view[RSTD];
    size_t columns = j->vecs ? 8 : 16,
           slices = device->has_local_memory ? tarn__cl_group_size(device, 256) / columns : 1;
    char options[192];
    slices = slices < 1 ? 1 : slices;
    for (;;) {
        snprintf(
            options, sizeof(options),
            "-DGROUP=1 -DLANES=1 -DCOMBINE -DCOLUMNS_A_GROUP=%zu -DSLICES=%zu -DPART=%s -DT_X=f32 -DT_GW=%s -DT_GB=%s",
            columns, slices, j->vecs ? "float" : "real", type_of(b->gweight, rstd), type_of(b->gbias, rstd));
        j->combine = tarn__cl_find(call, "layernorm", "norm_combine", options);
        j->combine_columns = columns, j->combine_slices = slices;
        if (columns * slices == 1 || tarn__cl_allows(j->combine, columns * slices))
            return tarn__cl_allows(j->combine, 1);
        const size_t left = tarn__cl_group_of(j->combine);
        columns = left < columns ? left : columns;
        slices = left / columns;
    }
}

/* One pass in registers, or gx and the sums of columns separately; then the chunks' sums. Scratch is the larger of both
 * plans: a meta device does not know whether rows fit registers. */
static tarn__plan_status prepare_backward(const tarn__call *call, const backward *b, tarn__plan *plan)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j)), rows_only;
    bool found = true;
    if (!j)
        return TARN__PLAN_FAILED;
    describe_rows(j, b, tarn__cl_device_at(call->device));
    rows_only = *j;
    drop_registers(&rows_only, b);
    plan->scratch_bytes =
        j->stats_bytes + (j->partial_bytes > rows_only.partial_bytes ? j->partial_bytes : rows_only.partial_bytes);
    if (call->is_meta)
        return TARN__PLAN_READY;
    if (j->rows.count > 0 && !find_registers(call, b, j)) {
        *j = rows_only;
        found = find_passes(call, b, j);
    }
    if (has_vectors(b))
        found = find_combine(call, b, j) && found;
    return tarn__cl_ready(call, found);
}

/* ---- its launches ------------------------------------------------------------------------------------------------ */

/* The arguments that both variants of the gradient share. */
static void arg_operands(tarn__cl_launch *launch, const backward *b, const job *j)
{
    tarn__cl_arg_value(launch, &j->rows, sizeof(j->rows));
    for (int k = 0; k < OPERANDS; k++)
        tarn__cl_arg_view(launch, b->view[k]);
    tarn__cl_arg_vector(launch, b->weight);
}

/* gx, a row per work-group. Bytes: x and gy read, gx written. */
static void run_grad(const tarn__call *call, const backward *b, const job *j)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, j->grad);
    arg_operands(&launch, b, j);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_real(&launch, b->epsilon);
    tarn__cl_arg_real(&launch, b->offset);
    tarn__cl_enqueue_rows(&launch, &j->grad_form, j->rows.count);
}

/* A chunk of rows per work-group: gx and the chunk's sums in one pass. */
static void run_registers(const tarn__call *call, const backward *b, const job *j)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, j->grad);
    arg_operands(&launch, b, j);
    /* A frozen norm has no column sums. */
    if (j->partial_bytes)
        tarn__cl_arg_scratch(&launch, call, 0);
    else
        tarn__cl_arg_view(&launch, NULL);
    tarn__cl_arg_long(&launch, j->chunk_rows);
    tarn__cl_arg_real(&launch, b->offset);
    tarn__cl_enqueue_rows(&launch, &j->grad_form, j->chunks);
}

/* Sums of columns: a work-item per few columns of each chunk of rows. Bytes: x and gy read. */
static void run_columns(const tarn__call *call, const backward *b, const job *j)
{
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, j->columns);
    tarn__cl_arg_value(&launch, &j->rows, sizeof(j->rows));
    for (int k = IN; k < OWN; k++)
        tarn__cl_arg_view(&launch, b->view[k]);
    tarn__cl_arg_scratch(&launch, call, 0);
    tarn__cl_arg_scratch(&launch, call, (int64_t)j->stats_bytes);
    tarn__cl_arg_long(&launch, j->chunk_rows);
    tarn__cl_arg_long(&launch, j->chunks);
    size_t sets = ((size_t)j->rows.length + j->form.lanes - 1) / j->form.lanes;
    tarn__cl_enqueue_independent(&launch, 1, (size_t[]){sets * (size_t)j->chunks}, j->form.lanes > 1 ? 1 : 64);
}

/* Adds up the chunks' sums, some columns per work-group. */
static void run_combine(const tarn__call *call, const backward *b, const job *j)
{
    const size_t columns = j->combine_columns, local = columns * j->combine_slices;
    tarn__cl_launch launch = tarn__cl_begin_kernel(call, j->combine);
    tarn__cl_arg_scratch(&launch, call, (int64_t)j->stats_bytes);
    tarn__cl_arg_long(&launch, j->chunks);
    tarn__cl_arg_long(&launch, j->rows.length);
    tarn__cl_arg_vector(&launch, b->gweight);
    tarn__cl_arg_vector(&launch, b->gbias);
    size_t groups = ((size_t)j->rows.length + columns - 1) / columns;
    tarn__cl_enqueue(&launch, 1, (size_t[]){groups * local}, (size_t[]){local});
}

static void run_backward(const tarn__call *call, const backward *b)
{
    const job *j = tarn__plan_job(call->plan);
    if (j->rows.count > 0 && j->vecs) {
        run_registers(call, b, j);
    } else if (j->rows.count > 0) {
        if (b->view[OUT] || j->is_short)
            run_grad(call, b, j);
        if (has_vectors(b))
            run_columns(call, b, j);
    }
    if (has_vectors(b))
        run_combine(call, b, j);
}

#define BACKWARD(name, operands) \
    static tarn__plan_status prepare_##name(const tarn__call *call, tarn__plan *plan) \
    { \
        const backward b = operands; \
        return prepare_backward(call, &b, plan); \
    } \
    static void run_##name(const tarn__call *call) \
    { \
        const backward b = operands; \
        run_backward(call, &b); \
    }
BACKWARD(layernorm_grad, norm_operands(call, true))
BACKWARD(rmsnorm_grad, norm_operands(call, false))
BACKWARD(residual_norm_grad, residual_operands(call))

void tarn__cl_register_layernorm(tarn__kernel_row *rows)
{
    rows[TARN__K_layernorm] = tarn__row(run_layernorm, TARN__FLOATS);
    rows[TARN__K_layernorm_grad] = tarn__row_planned(prepare_layernorm_grad, run_layernorm_grad, TARN__FLOATS);
    rows[TARN__K_rmsnorm] = tarn__row(run_rmsnorm, TARN__FLOATS);
    rows[TARN__K_rmsnorm_grad] = tarn__row_planned(prepare_rmsnorm_grad, run_rmsnorm_grad, TARN__FLOATS);
    rows[TARN__K_residual_norm] = tarn__row(run_residual_norm, TARN__FLOATS);
    rows[TARN__K_residual_norm_grad] =
        tarn__row_planned(prepare_residual_norm_grad, run_residual_norm_grad, TARN__FLOATS);
}
