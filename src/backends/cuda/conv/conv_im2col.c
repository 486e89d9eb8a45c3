/* conv_im2col.c: convolutions as matrix products: 2 · N · O · OH · OW · C / groups · KH · KW operations, by the
 * device's own matmul, in whichever of two ways the result lies.
 *
 * The gradient of x is a product whose columns are added up again, that of the weight a product along all pixels,
 * accumulated from piece to piece in order. Columns of gradients and sums of 16-bit operands are f32, so that results
 * are rounded once. */
#include "backends/cuda/conv/conv_views.h"
#include "backends/cuda/conv/cudnn_conv.h"

/* ---- conv2d ------------------------------------------------------------------------------------------------------ */

static void spread_bias(const tarn__conv_job *j, const tarn__view *bias)
{
    tarn__view from = j->result;
    from.memory = bias->memory, from.offset = bias->offset, from.dtype = bias->dtype;
    for (int i = 0; i < 4; i++)
        from.stride[i] = i == 1 ? bias->stride[0] : 0;
    tarn__conv_copy(j, &from, &j->result);
}

static void forward_piece(tarn__conv_job *j, const tarn__view *weight, const tarn__view *bias, double beta)
{
    if (j->runs && !j->is_plain)
        tarn__cuda_im2col(j->call, &j->image, &j->columns);
    tarn__view w = tarn__conv_weight_matrix(j, weight), columns = tarn__conv_im2col_matrix(j),
               y = tarn__conv_pixel_matrix(j, &j->result, j->out), w_turned = tarn__conv_transposed(&w);
    if (j->columns.by_pixels)
        tarn__conv_gemm(j, &columns, &w_turned, bias, &y, beta);
    else
        tarn__conv_gemm(j, &w, &columns, NULL, &y, beta);
}

/* The product adds a bias of the last axis; others are laid into the result first. */
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
    bool spreads = bias && !(j.columns.by_pixels && j.params->groups == 1),
         stands_in = tarn__conv_stage_result(&j, spreads);
    if (spreads)
        spread_bias(&j, bias);
    for (j.columns.image = 0; j.columns.image < j.image.shape[0]; j.columns.image += j.images)
        for (j.columns.row = 0; j.columns.row < j.columns.size[0]; j.columns.row += j.rows) {
            j.columns.images = tarn__cuda_min(j.images, j.image.shape[0] - j.columns.image);
            j.columns.rows = tarn__cuda_min(j.rows, j.columns.size[0] - j.columns.row);
            forward_piece(&j, &weight, spreads ? NULL : bias, spreads ? 1 : 0);
        }
    if (stands_in)
        tarn__conv_copy(&j, &j.result, call->out[0]);
    return j.held + j.product;
}

/* ---- the gradient of x ------------------------------------------------------------------------------------------- */

/* Of the results, the rows whose windows see the piece's rows of the image; all of them where these are whole images.
 */
static void choose_result_rows(tarn__conv_job *j)
{
    tarn__cuda_im2col_args *c = &j->columns;
    int64_t step = j->params->stride[0], padding = j->params->padding[0],
            reach = (c->kernel[0] - 1) * j->params->dilation[0];
    int64_t first = tarn__cuda_ceil_div(tarn__cuda_max(0, c->image_row + padding - reach), step);
    int64_t end = tarn__cuda_min(c->size[0], (c->image_row + c->image_rows - 1 + padding) / step + 1);
    bool is_whole = j->rows == j->image.shape[2];
    c->row = is_whole ? 0 : tarn__cuda_min(first, end);
    c->rows = (is_whole ? c->size[0] : end) - c->row;
}

static void grad_x_piece(tarn__conv_job *j, const tarn__view *weight)
{
    choose_result_rows(j);
    if (j->columns.rows > 0) {
        tarn__view w = tarn__conv_weight_matrix(j, weight), g = tarn__conv_pixel_matrix(j, &j->result, j->out),
                   columns = tarn__conv_im2col_matrix(j), w_turned = tarn__conv_transposed(&w);
        if (j->columns.by_pixels)
            tarn__conv_gemm(j, &g, &w, NULL, &columns, 0);
        else
            tarn__conv_gemm(j, &w_turned, &g, NULL, &columns, 0);
    }
    if (j->runs && !j->is_plain)
        tarn__cuda_col2im(j->call, &j->columns, &j->image);
}

static size_t walk_grad_x(const tarn__call *call, bool runs)
{
    tarn__conv_job j = tarn__conv_job_of(call, call->out[0], call->in[0], call->in[1], runs);
    if (tarn__view_count(call->out[0]) == 0)
        return 0;
    j.columns.dtype = tarn__acc_dtype(call->in[0]->dtype);
    tarn__conv_choose_layout(&j, true);
    tarn__conv_choose_chunks(&j, true);
    tarn__conv_alloc_im2col(&j, true);
    tarn__view weight = tarn__conv_weight_of(&j, call->in[1]);
    if (tarn__conv_stage_result(&j, false))
        tarn__conv_copy(&j, call->in[0], &j.result);
    for (j.columns.image = 0; j.columns.image < j.image.shape[0]; j.columns.image += j.images)
        for (j.columns.image_row = 0; j.columns.image_row < j.image.shape[2]; j.columns.image_row += j.rows) {
            j.columns.images = tarn__cuda_min(j.images, j.image.shape[0] - j.columns.image);
            j.columns.image_rows = tarn__cuda_min(j.rows, j.image.shape[2] - j.columns.image_row);
            grad_x_piece(&j, &weight);
        }
    return j.held + j.product;
}

/* ---- the gradient of the weight ---------------------------------------------------------------------------------- */

/* By rows the piece's gradients are a matrix (O, pixels of all images) only after a copy, unless there is one image. */
static tarn__view result_rows(const tarn__conv_job *j, void *place)
{
    const tarn__cuda_im2col_args *c = &j->columns;
    const tarn__view *g = &j->result;
    int64_t windows = tarn__conv_window_count(j), pixel;
    tarn__view from = *g; /* (O, images, rows, columns) */
    from.offset += c->image * g->stride[0] + c->row * g->stride[2];
    from.shape[0] = g->shape[1], from.stride[0] = g->stride[1];
    from.shape[1] = c->images, from.stride[1] = g->stride[0];
    from.shape[2] = c->rows;
    if (!tarn__conv_can_merge(&from, 1, 3, &pixel)) {
        tarn__view dense = from;
        dense.memory = place;
        dense.offset = 0;
        tarn__view_set_row_major(&dense);
        tarn__conv_copy(j, &from, &dense);
        from = dense;
        pixel = 1;
    }
    return tarn__conv_matrices(
        j, &from, 0, &(tarn__conv_matrix){j->out * from.stride[0], 0, j->out, windows, from.stride[0], pixel});
}

static void grad_weight_piece(tarn__conv_job *j, const tarn__view *sums, double beta, void *place)
{
    if (j->runs && !j->is_plain)
        tarn__cuda_im2col(j->call, &j->image, &j->columns);
    tarn__view columns = tarn__conv_im2col_matrix(j), to = tarn__conv_weight_matrix(j, sums), g;
    if (j->columns.by_pixels) {
        g = tarn__conv_pixel_matrix(j, &j->result, j->out);
        g = tarn__conv_transposed(&g);
    } else {
        g = result_rows(j, place);
        columns = tarn__conv_transposed(&columns);
    }
    tarn__conv_gemm(j, &g, &columns, NULL, &to, beta);
}

/* The sums go straight into the gradient where it lies as the product makes it and is rounded once; else into scratch
 * first. An empty batch is a product along an axis of size 0. */
static size_t walk_grad_weight(const tarn__call *call, bool runs)
{
    tarn__conv_job j = tarn__conv_job_of(call, call->in[0], call->in[1], call->out[0], runs);
    int64_t batch = tarn__cuda_max(1, j.image.shape[0]), stride;
    tarn__conv_choose_layout(&j, true);
    j.is_plain = j.is_plain && j.columns.by_pixels;
    j.by_image = false;
    tarn__conv_choose_chunks(&j, false);
    tarn__conv_alloc_im2col(&j, false);
    int64_t gradients = j.columns.by_pixels ? 0 : j.images * j.rows * j.columns.size[1] * j.result.shape[1];
    void *place = tarn__conv_alloc(&j, (size_t)gradients * tarn__dtype_bytes(j.result.dtype));
    tarn__view to = j.columns.by_pixels ? tarn__conv_to_nhwc(call->out[0]) : *call->out[0];
    bool is_whole = j.images >= batch && j.rows >= j.columns.size[0];
    bool is_direct = tarn__conv_can_merge(&to, 1, 3, &stride) && (is_whole || to.dtype == tarn__acc_dtype(to.dtype));
    tarn__view sums = is_direct ? to : tarn__conv_alloc_like(&j, &to, tarn__acc_dtype(j.image.dtype));
    double beta = j.params->beta;
    if (!is_direct && beta != 0)
        tarn__conv_copy(&j, &to, &sums);
    for (j.columns.image = 0; j.columns.image < batch; j.columns.image += j.images)
        for (j.columns.row = 0; j.columns.row < j.columns.size[0]; j.columns.row += j.rows) {
            j.columns.images = tarn__cuda_min(j.images, j.image.shape[0] - j.columns.image);
            j.columns.rows = tarn__cuda_min(j.rows, j.columns.size[0] - j.columns.row);
            grad_weight_piece(&j, &sums, beta, place);
            beta = 1;
        }
    if (!is_direct)
        tarn__conv_copy(&j, &sums, &to);
    return j.held + j.product;
}

/* ---- all three --------------------------------------------------------------------------------------------------- */

size_t tarn__cuda_conv_im2col(const tarn__call *call, int what, bool runs)
{
    return what == TARN__CONV_FORWARD ? walk_forward(call, runs)
           : what == TARN__CONV_DGRAD ? walk_grad_x(call, runs)
                                      : walk_grad_weight(call, runs);
}
