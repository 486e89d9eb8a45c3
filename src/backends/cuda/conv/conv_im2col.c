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
static void forward_chunk(tarn__conv_job *j, const tarn__view *weight, const tarn__view *bias, double beta)
{
    if (j->runs && !j->is_1x1)
        tarn__cuda_im2col(j->call, &j->image, &j->im2col);
    tarn__view w = tarn__conv_weight_matrix(j, weight), im2col = tarn__conv_im2col_matrix(j),
               y = tarn__conv_pixel_matrix(j, &j->result, j->out), wt = tarn__conv_transposed(&w);
    if (j->im2col.is_nhwc)
        tarn__conv_gemm(j, &im2col, &wt, bias, &y, beta);
    else
        tarn__conv_gemm(j, &w, &im2col, NULL, &y, beta);
}

/* The GEMM adds a bias along its last axis; any other bias is copied into the result first. */
static size_t walk_forward(const tarn__call *call, bool runs)
{
    const tarn__view *bias = call->inputs > 2 ? call->in[2] : NULL;
    tarn__conv_job j = tarn__conv_job_of(call, call->in[0], call->out[0], call->in[1], runs);
    if (tarn__view_count(call->out[0]) == 0)
        return 0;
    tarn__conv_choose_layout(&j, true);
    tarn__conv_choose_chunks(&j, false);
    tarn__conv_alloc_im2col(&j, false);
    tarn__view weight = tarn__conv_weight_of(&j, call->in[1]);
    bool presets = bias && !(j.im2col.is_nhwc && j.params->groups == 1),
         is_staged = tarn__conv_stage_result(&j, presets);
    if (presets)
        preset_bias(&j, bias);
    for (j.im2col.image = 0; j.im2col.image < j.image.shape[0]; j.im2col.image += j.images)
        for (j.im2col.row = 0; j.im2col.row < j.im2col.size[0]; j.im2col.row += j.rows) {
            j.im2col.images = tarn__cuda_min(j.images, j.image.shape[0] - j.im2col.image);
            j.im2col.rows = tarn__cuda_min(j.rows, j.im2col.size[0] - j.im2col.row);
            forward_chunk(&j, &weight, presets ? NULL : bias, presets ? 1 : 0);
        }
    if (is_staged)
        tarn__conv_copy(&j, &j.result, call->out[0]);
    return j.scratch_used + j.gemm_scratch;
}

/* ---- dgrad ------------------------------------------------------------------------------------------------------- */

/* im2col of the gradient = g · w, folded back by col2im. A band of image rows without windows is folded from nothing:
 * zeros. */
static void dgrad_chunk(tarn__conv_job *j, const tarn__view *weight)
{
    tarn__cuda_im2col_args *c = &j->im2col;
    tarn__conv_result_rows(&j->geometry, c->image_row, c->image_rows, &c->row, &c->rows);
    if (c->rows > 0) {
        tarn__view w = tarn__conv_weight_matrix(j, weight), g = tarn__conv_pixel_matrix(j, &j->result, j->out),
                   im2col = tarn__conv_im2col_matrix(j), wt = tarn__conv_transposed(&w);
        if (c->is_nhwc)
            tarn__conv_gemm(j, &g, &w, NULL, &im2col, 0);
        else
            tarn__conv_gemm(j, &wt, &g, NULL, &im2col, 0);
    }
    if (j->runs && !j->is_1x1)
        tarn__cuda_col2im(j->call, c, &j->image);
}

/* Chunks are images, or bands of image rows: each pixel is written by one chunk only. */
static size_t walk_dgrad(const tarn__call *call, bool runs)
{
    tarn__conv_job j = tarn__conv_job_of(call, call->out[0], call->in[0], call->in[1], runs);
    if (tarn__view_count(call->out[0]) == 0)
        return 0;
    j.im2col.dtype = tarn__acc_dtype(call->in[0]->dtype);
    tarn__conv_choose_layout(&j, true);
    tarn__conv_choose_chunks(&j, true);
    tarn__conv_alloc_im2col(&j, true);
    tarn__view weight = tarn__conv_weight_of(&j, call->in[1]);
    if (tarn__conv_stage_result(&j, false))
        tarn__conv_copy(&j, call->in[0], &j.result);
    for (j.im2col.image = 0; j.im2col.image < j.image.shape[0]; j.im2col.image += j.images)
        for (j.im2col.image_row = 0; j.im2col.image_row < j.image.shape[2]; j.im2col.image_row += j.rows) {
            j.im2col.images = tarn__cuda_min(j.images, j.image.shape[0] - j.im2col.image);
            j.im2col.image_rows = tarn__cuda_min(j.rows, j.image.shape[2] - j.im2col.image_row);
            dgrad_chunk(&j, &weight);
        }
    return j.scratch_used + j.gemm_scratch;
}

/* ---- wgrad ------------------------------------------------------------------------------------------------------- */

/* NCHW: the chunk's gradients form an (O, pixels) matrix only after a copy, unless there is one image. */
static tarn__view result_rows(const tarn__conv_job *j, void *copy)
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
        dense.memory = copy;
        dense.offset = 0;
        tarn__view_set_row_major(&dense);
        tarn__conv_copy(j, &from, &dense);
        from = dense;
        pixel = 1;
    }
    return tarn__conv_matrices(
        j, &from, 0, &(tarn__conv_matrix){j->out * from.stride[0], 0, j->out, windows, from.stride[0], pixel});
}

/* dW += gᵀ · im2col. */
static void wgrad_chunk(tarn__conv_job *j, const tarn__view *sums, double beta, void *copy)
{
    if (j->runs && !j->is_1x1)
        tarn__cuda_im2col(j->call, &j->image, &j->im2col);
    tarn__view im2col = tarn__conv_im2col_matrix(j), to = tarn__conv_weight_matrix(j, sums), g;
    if (j->im2col.is_nhwc) {
        g = tarn__conv_pixel_matrix(j, &j->result, j->out);
        g = tarn__conv_transposed(&g);
    } else {
        g = result_rows(j, copy);
        im2col = tarn__conv_transposed(&im2col);
    }
    tarn__conv_gemm(j, &g, &im2col, NULL, &to, beta);
}

/* Sums go directly into the gradient if the GEMM can write it and it is rounded once; else into scratch first. An empty
 * batch is a GEMM with K = 0. */
static size_t walk_wgrad(const tarn__call *call, bool runs)
{
    tarn__conv_job j = tarn__conv_job_of(call, call->in[0], call->in[1], call->out[0], runs);
    int64_t batch = tarn__cuda_max(1, j.image.shape[0]), stride;
    tarn__conv_choose_layout(&j, true);
    j.is_1x1 = j.is_1x1 && j.im2col.is_nhwc;
    j.per_image = false;
    tarn__conv_choose_chunks(&j, false);
    tarn__conv_alloc_im2col(&j, false);
    int64_t gradients = j.im2col.is_nhwc ? 0 : j.images * j.rows * j.im2col.size[1] * j.result.shape[1];
    void *copy = tarn__conv_alloc(&j, (size_t)gradients * tarn__dtype_bytes(j.result.dtype));
    tarn__view to = j.im2col.is_nhwc ? tarn__conv_to_nhwc(call->out[0]) : *call->out[0];
    bool is_whole = j.images >= batch && j.rows >= j.im2col.size[0];
    bool is_direct = tarn__conv_can_merge(&to, 1, 3, &stride) && (is_whole || to.dtype == tarn__acc_dtype(to.dtype));
    tarn__view sums = is_direct ? to : tarn__conv_alloc_like(&j, &to, tarn__acc_dtype(j.image.dtype));
    double beta = j.params->beta;
    if (!is_direct && beta != 0)
        tarn__conv_copy(&j, &to, &sums);
    for (j.im2col.image = 0; j.im2col.image < batch; j.im2col.image += j.images)
        for (j.im2col.row = 0; j.im2col.row < j.im2col.size[0]; j.im2col.row += j.rows) {
            j.im2col.images = tarn__cuda_min(j.images, j.image.shape[0] - j.im2col.image);
            j.im2col.rows = tarn__cuda_min(j.rows, j.im2col.size[0] - j.im2col.row);
            wgrad_chunk(&j, &sums, beta, copy);
            beta = 1;
        }
    if (!is_direct)
        tarn__conv_copy(&j, &sums, &to);
    return j.scratch_used + j.gemm_scratch;
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

size_t tarn__cuda_conv_im2col(const tarn__call *call, int what, bool runs)
{
    return what == TARN__CONV_FORWARD ? walk_forward(call, runs)
           : what == TARN__CONV_DGRAD ? walk_dgrad(call, runs)
                                      : walk_wgrad(call, runs);
}
