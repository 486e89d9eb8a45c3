/* conv_im2col.c: convolutions as GEMMs on im2col matrices: 2 · N · O · OH · OW · C / groups · KH · KW FLOPs, in NCHW or
 * NHWC as the result is stored.
 *
 * dgrad is a GEMM followed by col2im; wgrad is a GEMM along all pixels, accumulated from chunk to chunk in order. The
 * im2col matrix of gradients, and sums of 16-bit operands, are f32: results are rounded once. */
#include "backends/cuda/conv/conv_views.h"
#include "backends/cuda/conv/cudnn_conv.h"

/* ---- conv2d ------------------------------------------------------------------------------------------------------ */

/* Broadcasts the bias over N, H and W into the result. */
static void preset_bias(const tarn__conv_job *j, const tarn__view *bias)
{
    tarn__view from = j->result;
    from.memory = bias->memory, from.offset = bias->offset, from.dtype = bias->dtype;
    for (int i = 0; i < 4; i++)
        from.stride[i] = i == 1 ? bias->stride[0] : 0;
    tarn__conv_copy(j, &from, &j->result);
}

/* y = im2col · wᵀ in NHWC, w · im2col in NCHW. */
static void forward_chunk(tarn__conv_job *j, const tarn__view *bias, double beta)
{
    if (j->runs && !j->is_1x1)
        tarn__cuda_im2col(j->call, &j->image, &j->im2col);
    tarn__view w = tarn__conv_weight_matrix(j), im2col = tarn__conv_im2col_matrix(j),
               y = tarn__conv_pixel_matrix(j, &j->result, j->out), wt = tarn__conv_transposed(&w);
    if (j->im2col.is_nhwc)
        tarn__conv_gemm(j, &im2col, &wt, bias, &y, beta);
    else
        tarn__conv_gemm(j, &w, &im2col, NULL, &y, beta);
}

static const tarn__view *bias_of(const tarn__call *call)
{
    return call->inputs > 2 ? call->in[2] : NULL;
}

/* The GEMM adds a bias along its last axis; any other bias is copied into the result first. */
static void describe_forward(tarn__conv_job *j, const tarn__call *call)
{
    tarn__conv_describe(j, call, call->in[0], call->out[0], call->in[1]);
    tarn__conv_choose_layout(j, true);
    tarn__conv_choose_chunks(j, false);
    tarn__conv_alloc_im2col(j, false);
    tarn__conv_describe_weight(j, call->in[1]);
    j->presets_bias = bias_of(call) && !(j->im2col.is_nhwc && j->params->groups == 1);
    tarn__conv_stage_result(j, j->presets_bias);
}

static void walk_forward(tarn__conv_job *j)
{
    const tarn__view *bias = j->presets_bias ? NULL : bias_of(j->call);
    for (j->im2col.image = 0; j->im2col.image < j->image.shape[0]; j->im2col.image += j->images)
        for (j->im2col.row = 0; j->im2col.row < j->im2col.size[0]; j->im2col.row += j->rows) {
            j->im2col.images = tarn__cuda_min(j->images, j->image.shape[0] - j->im2col.image);
            j->im2col.rows = tarn__cuda_min(j->rows, j->im2col.size[0] - j->im2col.row);
            forward_chunk(j, bias, j->presets_bias ? 1 : 0);
        }
}

/* Copies the weight where it is packed. */
static void pack_weight(const tarn__conv_job *j, const tarn__view *weight)
{
    tarn__view from = tarn__conv_ordered_weight(j, weight);
    if (j->is_packed)
        tarn__conv_copy(j, &from, &j->weight);
}

static void run_forward(tarn__conv_job *j)
{
    pack_weight(j, j->call->in[1]);
    if (j->presets_bias)
        preset_bias(j, bias_of(j->call));
    walk_forward(j);
    if (j->is_staged)
        tarn__conv_copy(j, &j->result, j->call->out[0]);
}

/* ---- dgrad ------------------------------------------------------------------------------------------------------- */

/* im2col of the gradient = g · w, folded back by col2im. A band of image rows without windows is folded from nothing:
 * zeros. */
static void dgrad_chunk(tarn__conv_job *j)
{
    tarn__cuda_im2col_args *c = &j->im2col;
    tarn__conv_result_rows(&j->geometry, c->image_row, c->image_rows, &c->row, &c->rows);
    if (c->rows > 0) {
        tarn__view w = tarn__conv_weight_matrix(j), g = tarn__conv_pixel_matrix(j, &j->result, j->out),
                   im2col = tarn__conv_im2col_matrix(j), wt = tarn__conv_transposed(&w);
        if (c->is_nhwc)
            tarn__conv_gemm(j, &g, &w, NULL, &im2col, 0);
        else
            tarn__conv_gemm(j, &wt, &g, NULL, &im2col, 0);
    }
    if (j->runs && !j->is_1x1)
        tarn__cuda_col2im(j->call, c, &j->image);
}

static void describe_dgrad(tarn__conv_job *j, const tarn__call *call)
{
    tarn__conv_describe(j, call, call->out[0], call->in[0], call->in[1]);
    j->im2col.dtype = tarn__acc_dtype(call->in[0]->dtype);
    tarn__conv_choose_layout(j, true);
    tarn__conv_choose_chunks(j, true);
    tarn__conv_alloc_im2col(j, true);
    tarn__conv_describe_weight(j, call->in[1]);
    tarn__conv_stage_result(j, false);
}

/* Chunks are images, or bands of image rows: each pixel is written by one chunk only. */
static void walk_dgrad(tarn__conv_job *j)
{
    for (j->im2col.image = 0; j->im2col.image < j->image.shape[0]; j->im2col.image += j->images)
        for (j->im2col.image_row = 0; j->im2col.image_row < j->image.shape[2]; j->im2col.image_row += j->rows) {
            j->im2col.images = tarn__cuda_min(j->images, j->image.shape[0] - j->im2col.image);
            j->im2col.image_rows = tarn__cuda_min(j->rows, j->image.shape[2] - j->im2col.image_row);
            dgrad_chunk(j);
        }
}

static void run_dgrad(tarn__conv_job *j)
{
    pack_weight(j, j->call->in[1]);
    if (j->is_staged)
        tarn__conv_copy(j, j->call->in[0], &j->result);
    walk_dgrad(j);
}

/* ---- wgrad ------------------------------------------------------------------------------------------------------- */

/* NCHW: the chunk's gradients form an (O, pixels) matrix only after a copy, unless there is one image. */
static tarn__view result_rows(const tarn__conv_job *j)
{
    const tarn__cuda_im2col_args *c = &j->im2col;
    const tarn__view *g = &j->result;
    int64_t windows = tarn__conv_window_count(j), pixel;
    tarn__view from = *g; /* (O, images, rows, columns) */
    from.offset += c->image * g->stride[0] + c->row * g->stride[2];
    from.shape[0] = g->shape[1], from.stride[0] = g->stride[1];
    from.shape[1] = c->images, from.stride[1] = g->stride[0];
    from.shape[2] = c->rows;
    if (!tarn__conv_can_merge(&from, 1, 3, &pixel)) {
        tarn__view dense = from;
        dense.memory = (void *)((uintptr_t)j->call->scratch + j->gathered);
        dense.offset = 0;
        tarn__view_set_row_major(&dense);
        if (j->runs)
            tarn__conv_copy(j, &from, &dense);
        from = dense;
        pixel = 1;
    }
    return tarn__conv_matrices(
        j, &from, 0, &(tarn__conv_matrix){j->out * from.stride[0], 0, j->out, windows, from.stride[0], pixel});
}

/* dW += gᵀ · im2col. */
static void wgrad_chunk(tarn__conv_job *j, double beta)
{
    if (j->runs && !j->is_1x1)
        tarn__cuda_im2col(j->call, &j->image, &j->im2col);
    tarn__view im2col = tarn__conv_im2col_matrix(j), to = tarn__conv_weight_matrix(j), g;
    if (j->im2col.is_nhwc) {
        g = tarn__conv_pixel_matrix(j, &j->result, j->out);
        g = tarn__conv_transposed(&g);
    } else {
        g = result_rows(j);
        im2col = tarn__conv_transposed(&im2col);
    }
    tarn__conv_gemm(j, &g, &im2col, NULL, &to, beta);
}

/* Images of the batch; an empty one is a GEMM with K = 0. */
static int64_t batch_of(const tarn__conv_job *j)
{
    return tarn__cuda_max(1, j->image.shape[0]);
}

/* Sums go directly into the gradient if the GEMM can write it and it is rounded once; else into scratch first. */
static void describe_wgrad(tarn__conv_job *j, const tarn__call *call)
{
    tarn__conv_describe(j, call, call->in[0], call->in[1], call->out[0]);
    int64_t stride;
    tarn__conv_choose_layout(j, true);
    j->is_1x1 = j->is_1x1 && j->im2col.is_nhwc;
    j->per_image = false;
    tarn__conv_choose_chunks(j, false);
    tarn__conv_alloc_im2col(j, false);
    int64_t gradients = j->im2col.is_nhwc ? 0 : j->images * j->rows * j->im2col.size[1] * j->result.shape[1];
    j->gathered = tarn__conv_alloc(j, (size_t)gradients * tarn__dtype_bytes(j->result.dtype));
    tarn__view to = tarn__conv_ordered_weight(j, call->out[0]);
    bool is_whole = j->images >= batch_of(j) && j->rows >= j->im2col.size[0];
    j->is_packed = !(tarn__conv_can_merge(&to, 1, 3, &stride) && (is_whole || to.dtype == tarn__acc_dtype(to.dtype)));
    j->weight = j->is_packed ? tarn__conv_alloc_like(j, &to, tarn__acc_dtype(j->image.dtype), &j->packed) : to;
}

static void walk_wgrad(tarn__conv_job *j)
{
    double beta = j->params->beta;
    for (j->im2col.image = 0; j->im2col.image < batch_of(j); j->im2col.image += j->images)
        for (j->im2col.row = 0; j->im2col.row < j->im2col.size[0]; j->im2col.row += j->rows) {
            j->im2col.images = tarn__cuda_min(j->images, j->image.shape[0] - j->im2col.image);
            j->im2col.rows = tarn__cuda_min(j->rows, j->im2col.size[0] - j->im2col.row);
            wgrad_chunk(j, beta);
            beta = 1;
        }
}

static void run_wgrad(tarn__conv_job *j)
{
    tarn__view to = tarn__conv_ordered_weight(j, j->call->out[0]);
    if (j->is_packed && j->params->beta != 0)
        tarn__conv_copy(j, &to, &j->weight);
    walk_wgrad(j);
    if (j->is_packed)
        tarn__conv_copy(j, &j->weight, &to);
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

static const struct walk {
    void (*describe)(tarn__conv_job *j, const tarn__call *call);
    void (*chunks)(tarn__conv_job *j);
    void (*run)(tarn__conv_job *j);
} walks[] = {[TARN__CONV_FORWARD] = {describe_forward, walk_forward, run_forward},
             [TARN__CONV_DGRAD] = {describe_dgrad, walk_dgrad, run_dgrad},
             [TARN__CONV_WGRAD] = {describe_wgrad, walk_wgrad, run_wgrad}};

/* wgrad of an empty batch is zeros, or the old gradient: it runs. */
static bool is_empty(const tarn__call *call, int what)
{
    return what != TARN__CONV_WGRAD && tarn__view_count(call->out[0]) == 0;
}

static void set_addresses(tarn__conv_job *j, const tarn__call *call, int what)
{
    const tarn__view *image = what == TARN__CONV_DGRAD ? call->out[0] : call->in[0],
                     *result = what == TARN__CONV_FORWARD ? call->out[0]
                               : what == TARN__CONV_DGRAD ? call->in[0]
                                                          : call->in[1],
                     *weight = what == TARN__CONV_WGRAD ? call->out[0] : call->in[1];
    tarn__conv_set_addresses(j, call, image, result, weight);
}

tarn__plan_status tarn__cuda_conv_im2col_prepare(const tarn__call *call, int what, tarn__plan *plan)
{
    if (is_empty(call, what))
        return TARN__PLAN_READY;
    tarn__conv_job *j = tarn__plan_reserve(plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    walks[what].describe(j, call);
    set_addresses(j, call, what);
    walks[what].chunks(j);
    plan->scratch_bytes = j->scratch_used + j->gemm_scratch;
    tarn__conv_clear_addresses(j);
    return j->has_failed ? TARN__PLAN_FAILED : TARN__PLAN_READY;
}

void tarn__cuda_conv_im2col_run(const tarn__call *call, int what)
{
    if (is_empty(call, what))
        return;
    tarn__conv_job j = *(const tarn__conv_job *)tarn__plan_job(call->plan);
    j.runs = true;
    set_addresses(&j, call, what);
    walks[what].run(&j);
}
