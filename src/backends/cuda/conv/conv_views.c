/* conv_views.c: images, weights and im2col matrices as GEMM operands, and the chunk size.
 *
 * As many images as fit IM2COL_BYTES are unfolded at a time; a larger image goes in bands of rows. A 1×1 kernel needs
 * no im2col: the image is the matrix. */
#include "backends/cuda/conv/conv_views.h"

#include <string.h>

#include "backends/cuda/matmul/matmul.h"

#define IM2COL_BYTES (INT64_C(256) << 20)
#define MAX_IMAGES INT64_C(32768) /* batch size of one GEMM */
#define MAX_PIXELS (INT64_C(1) << 30)

/* ---- views ------------------------------------------------------------------------------------------------------- */

bool tarn__conv_can_merge(const tarn__view *v, int first, int last, int64_t *stride)
{
    *stride = 1;
    for (int i = 0; i < v->rank; i++)
        if (v->shape[i] > 1 && v->stride[i] < 0)
            return false;
    return tarn__view_has_one_stride(v, first, last, stride);
}

tarn__view tarn__conv_to_nhwc(const tarn__view *v)
{
    static const int order[] = {0, 2, 3, 1};
    tarn__view transposed = *v;
    for (int i = 0; i < 4; i++) {
        transposed.shape[i] = v->shape[order[i]];
        transposed.stride[i] = v->stride[order[i]];
    }
    return transposed;
}

/* Rank 4: (outer batch, inner batch, rows, columns). */
tarn__view tarn__conv_matrices(const tarn__conv_job *j, const tarn__view *base, int64_t offset,
                               const tarn__conv_matrix *m)
{
    tarn__view v = *base;
    int64_t groups = j->params->groups, images = j->per_image ? j->im2col.images : 1;
    int group = groups <= images ? 0 : 1;
    v.offset += offset;
    v.rank = 4;
    v.shape[group] = groups, v.stride[group] = m->by_group;
    v.shape[1 - group] = images, v.stride[1 - group] = m->per_image;
    v.shape[2] = m->rows, v.stride[2] = m->down;
    v.shape[3] = m->columns, v.stride[3] = m->across;
    return v;
}

tarn__view tarn__conv_transposed(const tarn__view *v)
{
    tarn__view t = *v;
    t.shape[2] = v->shape[3], t.shape[3] = v->shape[2];
    t.stride[2] = v->stride[3], t.stride[3] = v->stride[2];
    return t;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

size_t tarn__conv_alloc(tarn__conv_job *j, size_t bytes)
{
    size_t at = j->scratch_used;
    j->scratch_used += tarn__cuda_align(bytes);
    return at;
}

tarn__view tarn__conv_alloc_like(tarn__conv_job *j, const tarn__view *v, tarn_dtype dtype, size_t *at)
{
    tarn__view copy = *v;
    copy.dtype = dtype;
    copy.memory = NULL;
    copy.offset = 0;
    *at = tarn__conv_alloc(j, (size_t)tarn__view_count(v) * tarn__dtype_bytes(dtype));
    tarn__view_set_row_major(&copy);
    return copy;
}

void tarn__conv_copy(const tarn__conv_job *j, const tarn__view *from, const tarn__view *to)
{
    tarn__fill none = {0};
    tarn__call part = {.inputs = 1,
                       .outputs = 1,
                       .in = {from},
                       .out = {to},
                       .device = j->call->device,
                       .stream = j->call->stream,
                       .function = j->call->function,
                       .fault = j->call->fault,
                       .params = &none,
                       .params_bytes = sizeof(none)};
    tarn__cuda_rows()[TARN__K_copy].run(&part);
}

void tarn__conv_gemm(tarn__conv_job *j, const tarn__view *a, const tarn__view *b, const tarn__view *bias,
                     const tarn__view *c, double beta)
{
    tarn__matmul params = {.alpha = 1, .beta = beta, .tf32 = j->params->tf32};
    tarn__call part = {.inputs = 3,
                       .outputs = 1,
                       .in = {a, b, bias},
                       .out = {c},
                       .reads_output = beta != 0,
                       .is_meta = j->call->is_meta,
                       .device = j->call->device,
                       .stream = j->call->stream,
                       .function = j->call->function,
                       .fault = j->call->fault,
                       .params = &params,
                       .params_bytes = sizeof(params)};
    if (j->runs) {
        part.scratch = (char *)j->call->scratch + j->scratch_used;
        tarn__cuda_gemm_run(&part);
        return;
    }
    size_t bytes = 0;
    j->has_failed = j->has_failed || !tarn__cuda_gemm_scratch(&part, &bytes);
    j->gemm_scratch = bytes > j->gemm_scratch ? bytes : j->gemm_scratch;
}

/* ---- layout and chunks ------------------------------------------------------------------------------------------- */

static bool is_nhwc_matrix(const tarn__view *v)
{
    tarn__view nhwc = tarn__conv_to_nhwc(v);
    int64_t stride;
    return (v->shape[1] == 1 || v->stride[1] == 1) && tarn__conv_can_merge(&nhwc, 0, 2, &stride);
}

/* NHWC if the GEMM can write or read the result in place, else NCHW, which always works. Without im2col the same must
 * hold for the images. */
void tarn__conv_choose_layout(tarn__conv_job *j, bool may_skip_im2col)
{
    const tarn__conv2d *p = j->params;
    /* one window per image: NCHW would be a batch of vectors, NHWC is one GEMM */
    bool is_pixel = j->result.shape[2] * j->result.shape[3] == 1;
    j->im2col.is_nhwc = is_nhwc_matrix(&j->result) && (tarn__conv_is_nhwc(&j->image) || is_pixel);
    j->per_image = !j->im2col.is_nhwc;
    int64_t stride;
    bool is_matrix = j->im2col.is_nhwc ? is_nhwc_matrix(&j->image) : tarn__conv_can_merge(&j->image, 2, 3, &stride);
    j->is_1x1 = may_skip_im2col && is_matrix && j->taps == 1 && p->stride[0] == 1 && p->stride[1] == 1 &&
                p->padding[0] == 0 && p->padding[1] == 0;
}

/* Chunks of equal size: each new size is a GEMM that must be planned, and perhaps tuned. */
void tarn__conv_choose_chunks(tarn__conv_job *j, bool is_gradient)
{
    int64_t pixels = j->im2col.size[0] * j->im2col.size[1], batch = j->image.shape[0];
    int64_t bytes = j->is_1x1 ? 0 : j->image.shape[1] * j->taps * pixels * (int64_t)tarn__dtype_bytes(j->im2col.dtype);
    int64_t limit = tarn__cuda_max(
        1, tarn__cuda_min(bytes > 0 ? tarn__conv_items_in(IM2COL_BYTES, bytes) : batch, MAX_PIXELS / pixels));
    if (!j->im2col.is_nhwc)
        limit = tarn__cuda_min(limit, MAX_IMAGES);
    j->images = tarn__conv_even_chunk(batch, limit);
    j->rows = is_gradient ? j->image.shape[2] : j->im2col.size[0];
    if (bytes <= IM2COL_BYTES)
        return;
    int64_t fit = tarn__conv_items_in(IM2COL_BYTES, bytes / j->im2col.size[0]);
    j->rows = is_gradient ? tarn__conv_band_rows(&j->geometry, fit) : tarn__conv_even_chunk(j->im2col.size[0], fit);
}

/* `image` is x or its gradient, `result` y or its gradient; for wgrad `weight` gives the kernel size only. */
void tarn__conv_describe(tarn__conv_job *j, const tarn__call *call, const tarn__view *image, const tarn__view *result,
                         const tarn__view *weight)
{
    const tarn__conv2d *params = call->params;
    *j = (tarn__conv_job){.call = call, .params = params, .image = *image, .result = *result, .weight = *weight};
    j->geometry = tarn__conv_geometry_of(params, image, result, weight);
    j->in = image->shape[1] / params->groups;
    j->out = result->shape[1] / params->groups;
    j->taps = weight->shape[2] * weight->shape[3];
    j->depth = j->in * j->taps;
    j->im2col = (tarn__cuda_im2col_args){.params = params,
                                         .kernel = {weight->shape[2], weight->shape[3]},
                                         .size = {result->shape[2], result->shape[3]},
                                         .dtype = image->dtype};
}

/* While a call is prepared, scratch is at address 0: the alignment is the same. */
static void *scratch_at(const tarn__call *call, size_t offset)
{
    return (void *)((uintptr_t)call->scratch + offset);
}

/* The operand's, or that of its copy in scratch. */
static void set_address(tarn__view *view, const tarn__view *operand, bool is_copy, void *copy)
{
    view->memory = is_copy ? copy : operand->memory;
    view->offset = is_copy ? 0 : operand->offset;
}

void tarn__conv_set_addresses(tarn__conv_job *j, const tarn__call *call, const tarn__view *image,
                              const tarn__view *result, const tarn__view *weight)
{
    j->call = call;
    j->params = j->im2col.params = call->params;
    set_address(&j->image, image, false, NULL);
    set_address(&j->result, result, j->is_staged, scratch_at(call, j->staged));
    set_address(&j->weight, weight, j->is_packed, scratch_at(call, j->packed));
    j->im2col.at = scratch_at(call, j->columns);
}

void tarn__conv_clear_addresses(tarn__conv_job *j)
{
    j->call = NULL;
    j->params = j->im2col.params = NULL;
    j->image.memory = j->result.memory = j->weight.memory = j->im2col.at = NULL;
}

/* Scratch for the chunk with the most rows of windows. */
void tarn__conv_alloc_im2col(tarn__conv_job *j, bool is_gradient)
{
    int64_t rows = is_gradient ? tarn__conv_max_result_rows(&j->geometry, j->rows) : j->rows;
    int64_t count = j->is_1x1 ? 0 : j->images * rows * j->im2col.size[1] * j->image.shape[1] * j->taps;
    j->columns = tarn__conv_alloc(j, (size_t)count * tarn__dtype_bytes(j->im2col.dtype));
}

/* A result that no GEMM can access in place is staged in scratch, contiguous. So is a 16-bit result that is accumulated
 * onto, as f32: the library's kernels round a product before they add. */
void tarn__conv_stage_result(tarn__conv_job *j, bool is_added_to)
{
    int64_t stride;
    bool rounds = is_added_to && tarn__dtype_bytes(j->result.dtype) == 2;
    if (!rounds && (j->im2col.is_nhwc || tarn__conv_can_merge(&j->result, 2, 3, &stride)))
        return;
    j->is_staged = true;
    j->result = tarn__conv_alloc_like(j, &j->result, rounds ? TARN_F32 : j->result.dtype, &j->staged);
    if (j->im2col.is_nhwc) {
        const int64_t *shape = j->result.shape;
        j->result.stride[1] = 1, j->result.stride[3] = shape[1], j->result.stride[2] = shape[1] * shape[3];
        j->result.stride[0] = shape[1] * shape[3] * shape[2];
    }
}

/* ---- GEMM operands ----------------------------------------------------------------------------------------------- */

int64_t tarn__conv_window_count(const tarn__conv_job *j)
{
    return j->im2col.images * j->im2col.rows * j->im2col.size[1];
}

tarn__view tarn__conv_ordered_weight(const tarn__conv_job *j, const tarn__view *weight)
{
    return j->im2col.is_nhwc ? tarn__conv_to_nhwc(weight) : *weight;
}

/* In place if its last three axes merge. */
void tarn__conv_describe_weight(tarn__conv_job *j, const tarn__view *weight)
{
    int64_t stride;
    j->weight = tarn__conv_ordered_weight(j, weight);
    j->is_packed = !tarn__conv_can_merge(&j->weight, 1, 3, &stride);
    if (j->is_packed)
        j->weight = tarn__conv_alloc_like(j, &j->weight, j->weight.dtype, &j->packed);
}

tarn__view tarn__conv_weight_matrix(const tarn__conv_job *j)
{
    const tarn__view *weight = &j->weight;
    int64_t stride;
    tarn__conv_can_merge(weight, 1, 3, &stride);
    return tarn__conv_matrices(
        j, weight, 0, &(tarn__conv_matrix){j->out * weight->stride[0], 0, j->out, j->depth, weight->stride[0], stride});
}

/* Offset to the chunk's first image and row; batched over groups, and in NCHW over images. */
tarn__view tarn__conv_pixel_matrix(const tarn__conv_job *j, const tarn__view *v, int64_t channels)
{
    const tarn__cuda_im2col_args *c = &j->im2col;
    tarn__view nhwc = tarn__conv_to_nhwc(v);
    int64_t pixel, offset = c->image * v->stride[0] + c->row * v->stride[2];
    tarn__conv_can_merge(&nhwc, c->is_nhwc ? 0 : 1, 2, &pixel);
    if (c->is_nhwc)
        return tarn__conv_matrices(j, v, offset,
                                   &(tarn__conv_matrix){channels * v->stride[1], 0, tarn__conv_window_count(j),
                                                        channels, pixel, v->stride[1]});
    return tarn__conv_matrices(j, v, offset,
                               &(tarn__conv_matrix){channels * v->stride[1], v->stride[0], channels,
                                                    c->rows * c->size[1], v->stride[1], pixel});
}

/* Without im2col, the image itself. */
tarn__view tarn__conv_im2col_matrix(const tarn__conv_job *j)
{
    const tarn__cuda_im2col_args *c = &j->im2col;
    int64_t windows = tarn__conv_window_count(j), pixels = j->per_image ? c->rows * c->size[1] : windows;
    tarn__view base = {.memory = c->at, .dtype = c->dtype};
    if (j->is_1x1)
        return tarn__conv_pixel_matrix(j, &j->image, j->in);
    if (c->is_nhwc)
        return tarn__conv_matrices(
            j, &base, 0, &(tarn__conv_matrix){j->depth, 0, windows, j->depth, j->params->groups * j->depth, 1});
    return tarn__conv_matrices(j, &base, 0,
                               &(tarn__conv_matrix){j->depth * windows, pixels, j->depth, pixels, windows, 1});
}
