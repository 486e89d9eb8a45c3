/* conv.c: conv2d, dgrad and wgrad as GEMMs over im2col columns, some images at a time (im2col.cl, gemm.h).
 *
 * dgrad is such a GEMM too, over the pixels of the output that see a pixel of x. wgrad runs along all pixels and
 * accumulates from piece to piece in order. Columns and sums of 16-bit operands are f32, so that results are rounded
 * once. All pieces have the same number of images but for the last, which has a plan of its own. */
#include <stdio.h>

#include "backends/opencl/common/element.h"
#include "backends/opencl/matmul/gemm.h"
#include "base/kernel/conv_geometry.h"

#define PIECE_BYTES (INT64_C(64) << 20) /* of columns at a time */
#define PIXELS 16                       /* STEP of im2col.cl */

/* The struct `im2col_params` of im2col.cl. */
typedef struct tarn__cl_im2col {
    int64_t first, groups, channels;
    int64_t size[2], stride[2], padding[2], dilation[2];
    int64_t from[2], to[2];
    int64_t x_stride[4];
    int64_t lines, depth, batch_stride;
    int32_t width;
} im2col_params;

enum form { FORWARD, DGRAD, WGRAD };

/* Some images at a time: their GEMM, and the kernel that writes its columns. */
typedef struct piece {
    const tarn__cl_kernel *im2col;
    tarn__cl_gemm_plan gemm;
} piece;

/* A call described for launch. Positions are bytes into scratch. */
typedef struct job {
    bool is_empty;
    bool is_direct;     /* the GEMM writes the output; else a copy at `result` */
    bool copies_weight; /* the weight is copied, to `weight` */
    tarn_dtype sums;    /* f32 or f64 */
    int64_t weight, result, grads, columns, gemm;
    int64_t images; /* per piece */
    int64_t across; /* stride of the result's pixels, or of the gradient's taps */
    im2col_params im2col;
    tarn__cl_gemm_tile tile;
    piece whole, last;
} job;

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Reserves scratch, aligned to 256 bytes; returns its position. */
static int64_t reserve(int64_t *used, int64_t count, tarn_dtype dtype)
{
    const int64_t at = *used;
    *used += (count * (int64_t)tarn__dtype_bytes(dtype) + 255) / 256 * 256;
    return at;
}

/* A contiguous view of that shape in scratch. */
static tarn__view view_at(const tarn__call *call, int64_t at, const tarn__view *shape, tarn_dtype dtype)
{
    tarn__view space = tarn__cl_scratch_view(call, at, dtype), packed = *shape;
    tarn__view_set_row_major(&packed);
    packed.memory = space.memory, packed.offset = space.offset, packed.dtype = dtype;
    return packed;
}

/* A copy by the kernel table, with conversion where dtypes differ. */
static void copy(const tarn__call *call, const tarn__view *from, const tarn__view *to)
{
    static const tarn__fill none = {0};
    tarn__call part = *call;
    part.inputs = part.outputs = 1;
    part.in[0] = from;
    part.out[0] = to;
    part.reads_output = 0;
    part.params = &none;
    part.params_bytes = sizeof(none);
    tarn__cl_kernel_table()[TARN__K_copy].run(&part);
}

/* Offsets are computed in 32 bits where those are enough. */
static bool is_small(const im2col_params *u, int64_t batches)
{
    int64_t max_offset = u->batch_stride * batches;
    for (int i = 0; i < 2; i++)
        max_offset =
            max_i64(max_offset, u->from[i] + u->to[i] * u->stride[i] + u->padding[i] + u->size[i] * u->dilation[i]);
    return max_offset < INT64_C(1) << 30;
}

/* GPUs: an element per work-item. CPUs: all windows of a tap, or all taps of a few pixels. */
static const tarn__cl_kernel *find_im2col(const tarn__call *call, enum form form, tarn_dtype sums,
                                          const im2col_params *u, int64_t batches)
{
    static const char *const forms[] = {"", " -DDGRAD", " -DWGRAD"};
    char options[96];
    snprintf(options, sizeof(options), "-DREAL=%s -DT_X=%s%s%s", sums == TARN_F64 ? "double" : "float",
             tarn__cl_dtype_name(call->in[0]->dtype), forms[form], is_small(u, batches) ? " -DINDEX=int" : "");
    const bool has_local_memory = tarn__cl_device_at(call->device)->has_local_memory;
    return tarn__cl_find(call, "im2col", has_local_memory ? "im2col" : "im2col_panels", options);
}

/* im2col of one piece: a launch over elements on a GPU, over taps or pixels on a CPU. */
static void run_im2col(const tarn__call *call, enum form form, const tarn__cl_kernel *kernel, const im2col_params *u,
                       const tarn__view *to, int64_t batches)
{
    tarn__cl_launch l = tarn__cl_begin_kernel(call, kernel);
    tarn__cl_arg_view(&l, call->in[0]);
    tarn__cl_arg_view(&l, to);
    tarn__cl_arg_value(&l, u, sizeof(*u));
    size_t count = (size_t)batches;
    if (tarn__cl_device_at(call->device)->has_local_memory) {
        tarn__cl_arg_long(&l, u->batch_stride * batches);
        tarn__cl_enqueue_elements(&l, u->batch_stride * batches);
    } else if (form == WGRAD) {
        tarn__cl_enqueue(&l, 2, (size_t[]){(size_t)((u->depth + PIXELS - 1) / PIXELS), count}, (size_t[]){1, 1});
    } else {
        tarn__cl_enqueue(&l, 3, (size_t[]){(size_t)u->depth, 1, count}, (size_t[]){1, 1, 1});
    }
}

/* ---- description ------------------------------------------------------------------------------------------------- */

/* im2col of the first input for windows as the rows and columns of `to`. */
static im2col_params im2col_of(const tarn__call *call, const tarn__view *weight, const tarn__view *to)
{
    const tarn__conv2d *params = call->params;
    const tarn__view *from = call->in[0];
    im2col_params u = {.groups = params->groups, .channels = from->shape[1] / params->groups};
    for (int i = 0; i < 2; i++) {
        u.size[i] = weight->shape[2 + i];
        u.stride[i] = params->stride[i];
        u.padding[i] = params->padding[i];
        u.dilation[i] = params->dilation[i];
        u.from[i] = from->shape[2 + i];
        u.to[i] = to->shape[2 + i];
    }
    for (int i = 0; i < 4; i++)
        u.x_stride[i] = from->stride[i];
    return u;
}

/* Reserves the columns of a piece, b of its GEMM with `m` rows: (depth, lines) per batch, or without local memory in
 * panels of the tile's width. */
static void reserve_columns(const tarn__call *call, job *j, int64_t m, int64_t lines, int64_t depth, int64_t batches,
                            int64_t *used)
{
    im2col_params *u = &j->im2col;
    const bool packs = !tarn__cl_device_at(call->device)->has_local_memory;
    j->tile = tarn__cl_gemm_tile_of(call, j->sums, m, lines, depth, batches);
    u->lines = lines, u->depth = depth;
    u->width = packs ? j->tile.width : (int32_t)lines;
    u->batch_stride = tarn__cl_gemm_packed_count(lines, depth, u->width);
    j->columns = reserve(used, u->batch_stride * batches, j->sums);
}

/* A GEMM with the columns as b. */
static tarn__cl_gemm gemm_of(const tarn__call *call, const job *j, int64_t m, const im2col_params *u)
{
    tarn__cl_gemm p = {.alpha = 1,
                       .tile = j->tile,
                       .b = tarn__cl_scratch_view(call, j->columns, j->sums),
                       .b_is_packed = !tarn__cl_device_at(call->device)->has_local_memory};
    p.sizes = (tarn__cl_gemm_sizes){.m = m,
                                    .n = u->lines,
                                    .k = u->depth,
                                    .splits = 1,
                                    .part = u->depth,
                                    .a_row_stride = u->depth,
                                    .a_col_stride = 1,
                                    .b_row_stride = u->lines,
                                    .b_col_stride = 1,
                                    .b_batch_stride = u->batch_stride};
    return p;
}

/* Images whose columns of `elements` elements each fit PIECE_BYTES; at least one. */
static int64_t images_per_piece(const job *j, int64_t images, int64_t elements)
{
    int64_t bytes = elements * (int64_t)tarn__dtype_bytes(j->sums) + 1;
    return max_i64(1, min_i64(images, tarn__conv_items_in(PIECE_BYTES, bytes)));
}

/* The weight as its copy is laid out: (O, C, KH, KW), or transposed for dgrad, (groups, C, O of the group, KH, KW). */
static tarn__view weight_of(const tarn__call *call, bool transposed)
{
    const tarn__view *weight = call->in[1];
    const int64_t groups = ((const tarn__conv2d *)call->params)->groups, out = weight->shape[0] / groups;
    tarn__view from = *weight;
    if (transposed) {
        from.rank = 5;
        int64_t shape[] = {groups, weight->shape[1], out, weight->shape[2], weight->shape[3]};
        int64_t stride[] = {out * weight->stride[0], weight->stride[1], weight->stride[0], weight->stride[2],
                            weight->stride[3]};
        for (int i = 0; i < 5; i++)
            from.shape[i] = shape[i], from.stride[i] = stride[i];
    }
    return from;
}

/* The plan of a piece: its GEMM, and im2col for `batches` batches. */
static tarn__plan_status prepare_piece(const tarn__call *call, const job *j, enum form form, const im2col_params *u,
                                       const tarn__cl_gemm *gemm, int64_t batches, piece *to)
{
    to->im2col = find_im2col(call, form, j->sums, u, batches);
    tarn__plan_status status = tarn__cl_gemm_prepare(call, gemm, &to->gemm);
    return status == TARN__PLAN_READY ? tarn__cl_ready(call, tarn__cl_allows(to->im2col, 1)) : status;
}

/* Images of the last piece: 0 where there are no images at all. */
static int64_t last_images(int64_t images, int64_t per_piece)
{
    return images > 0 ? (images - 1) % per_piece + 1 : 0;
}

/* Scratch after the reservations is shared by the GEMMs of all pieces. */
static size_t scratch_of(const job *j, bool has_whole)
{
    const size_t whole = has_whole ? j->whole.gemm.scratch_bytes : 0, last = j->last.gemm.scratch_bytes;
    return (size_t)j->gemm + (whole > last ? whole : last);
}

/* ---- forward and dgrad ------------------------------------------------------------------------------------------- */

/* Where the GEMM writes. */
static tarn__view result_of(const tarn__call *call, const job *j)
{
    const tarn__view *to = call->out[0];
    return j->is_direct ? *to : view_at(call, j->result, to, to->dtype);
}

/* (rows, taps) · (taps, pixels), of `images` images from `first`, times groups. `weight` is contiguous. */
static tarn__cl_gemm images_gemm(const tarn__call *call, const job *j, enum form form, const tarn__view *weight,
                                 const tarn__view *result, int64_t first, int64_t images)
{
    const tarn__view *bias = form == FORWARD && call->inputs > 2 ? call->in[2] : NULL;
    const im2col_params *u = &j->im2col;
    const int64_t groups = u->groups, rows = result->shape[1] / groups;
    tarn__cl_gemm p = gemm_of(call, j, rows, u);
    p.a = *weight;
    p.c = *result;
    p.c.offset += first * result->stride[0];
    p.sizes.c_row_stride = result->stride[1], p.sizes.c_col_stride = j->across;
    if (bias) {
        p.bias = *bias;
        p.sizes.bias_row_stride = bias->shape[0] > 1 ? bias->stride[0] : 0;
    }
    p.batches = (tarn__nest){.rank = 2, .operands = 4, .count = images * groups, .shape = {images, groups}};
    int64_t strides[4][2] = {{result->stride[0], rows * result->stride[1]},
                             {0, rows * u->depth},
                             {groups * u->batch_stride, u->batch_stride},
                             {0, rows * p.sizes.bias_row_stride}};
    for (int i = 0; i < 4; i++)
        p.batches.stride[i][0] = strides[i][0], p.batches.stride[i][1] = strides[i][1];
    return p;
}

static void describe_images(job *j, const tarn__call *call, enum form form)
{
    const tarn__view *to = call->out[0], from = weight_of(call, form == DGRAD);
    *j = (job){.is_empty = tarn__view_count(to) == 0, .sums = tarn__cl_accum_dtype(call->in[0]->dtype)};
    if (j->is_empty)
        return;
    im2col_params *u = &j->im2col;
    *u = im2col_of(call, call->in[1], to);
    const int64_t windows = u->to[0] * u->to[1], depth = u->channels * u->size[0] * u->size[1];
    int64_t used = 0;
    j->copies_weight = form == DGRAD || !tarn__view_is_contiguous(call->in[1]);
    if (j->copies_weight)
        j->weight = reserve(&used, tarn__view_count(&from), from.dtype);
    /* the GEMM writes a matrix: rows and columns of an image must have one stride */
    j->is_direct = tarn__view_has_one_stride(to, 2, 3, &j->across);
    if (!j->is_direct)
        j->result = reserve(&used, tarn__view_count(to), to->dtype);
    const tarn__view result = result_of(call, j);
    tarn__view_has_one_stride(&result, 2, 3, &j->across);
    j->images = images_per_piece(j, to->shape[0], depth * windows * u->groups);
    reserve_columns(call, j, to->shape[1] / u->groups, windows, depth, j->images * u->groups, &used);
    j->gemm = used;
}

/* Forward and dgrad. */
static tarn__plan_status prepare_images(const tarn__call *call, enum form form, tarn__plan *plan)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    describe_images(j, call, form);
    if (j->is_empty)
        return TARN__PLAN_READY;
    const tarn__view from = weight_of(call, form == DGRAD), result = result_of(call, j),
                     weight = j->copies_weight ? view_at(call, j->weight, &from, from.dtype) : from;
    const int64_t all = result.shape[0], last = last_images(all, j->images), groups = j->im2col.groups;
    const bool has_whole = all > last;
    const tarn__cl_gemm of_last = images_gemm(call, j, form, &weight, &result, all - last, last);
    tarn__plan_status status = prepare_piece(call, j, form, &j->im2col, &of_last, last * groups, &j->last);
    if (status == TARN__PLAN_READY && has_whole) {
        const tarn__cl_gemm gemm = images_gemm(call, j, form, &weight, &result, 0, j->images);
        status = prepare_piece(call, j, form, &j->im2col, &gemm, j->images * groups, &j->whole);
    }
    plan->scratch_bytes = scratch_of(j, has_whole);
    return status;
}

/* Piece by piece im2col, then a GEMM per image and group. */
static void run_images(const tarn__call *call, enum form form)
{
    const job *j = tarn__plan_job(call->plan);
    if (j->is_empty)
        return;
    const tarn__view from = weight_of(call, form == DGRAD), result = result_of(call, j),
                     weight = j->copies_weight ? view_at(call, j->weight, &from, from.dtype) : from;
    if (j->copies_weight)
        copy(call, &from, &weight);
    const int64_t all = result.shape[0];
    im2col_params u = j->im2col;
    for (int64_t first = 0; first < all; first += j->images) {
        const int64_t images = min_i64(j->images, all - first);
        const piece *own = first + j->images < all ? &j->whole : &j->last;
        const tarn__cl_gemm p = images_gemm(call, j, form, &weight, &result, first, images);
        u.first = first;
        run_im2col(call, form, own->im2col, &u, &p.b, images * u.groups);
        tarn__cl_gemm_run(call, &p, &own->gemm, j->gemm);
    }
    if (!j->is_direct)
        copy(call, &result, call->out[0]);
}

/* ---- wgrad ------------------------------------------------------------------------------------------------------- */

/* gy of a piece as (O, images, rows, columns): a view. */
static tarn__view grads_of(const tarn__view *g, int64_t first, int64_t images)
{
    tarn__view from = *g;
    from.offset += first * g->stride[0];
    from.shape[0] = g->shape[1], from.stride[0] = g->stride[1];
    from.shape[1] = images, from.stride[1] = g->stride[0];
    return from;
}

/* Where sums are accumulated. */
static tarn__view sums_of(const tarn__call *call, const job *j)
{
    return j->is_direct ? *call->out[0] : view_at(call, j->result, call->out[0], j->sums);
}

/* im2col of a piece: its depth are the pixels of its images. */
static im2col_params im2col_of_piece(const job *j, int64_t first, int64_t images)
{
    im2col_params u = j->im2col;
    u.first = first;
    u.depth = images * u.to[0] * u.to[1];
    u.batch_stride = tarn__cl_gemm_packed_count(u.lines, u.depth, u.width);
    return u;
}

/* gy, copied to (O, pixels), times columns (pixels, taps). The first piece adds to beta · the gradient, the others to
 * those before. */
static tarn__cl_gemm wgrad_gemm(const tarn__call *call, const job *j, const im2col_params *u, const tarn__view *grads)
{
    const tarn__view sums = sums_of(call, j);
    const int64_t rows = sums.shape[0] / u->groups;
    tarn__cl_gemm p = gemm_of(call, j, rows, u);
    p.a = *grads;
    p.c = sums;
    p.beta = u->first == 0 ? ((const tarn__conv2d *)call->params)->beta : 1;
    p.sizes.c_row_stride = sums.stride[0], p.sizes.c_col_stride = j->across;
    p.batches = (tarn__nest){.rank = 1, .operands = 4, .count = u->groups, .shape = {u->groups}};
    p.batches.stride[0][0] = rows * p.sizes.c_row_stride;
    p.batches.stride[1][0] = rows * u->depth;
    p.batches.stride[2][0] = u->batch_stride;
    return p;
}

/* Sums go straight into the gradient where its layout allows and one rounding suffices; else into scratch first. */
static void describe_wgrad(job *j, const tarn__call *call)
{
    const tarn__view *x = call->in[0], *g = call->in[1], *to = call->out[0];
    *j = (job){.is_empty = tarn__view_count(to) == 0, .sums = tarn__cl_accum_dtype(x->dtype)};
    if (j->is_empty)
        return;
    im2col_params *u = &j->im2col;
    *u = im2col_of(call, to, g);
    const int64_t images = x->shape[0], windows = u->to[0] * u->to[1], lines = u->channels * u->size[0] * u->size[1];
    int64_t used = 0;
    j->images = images_per_piece(j, images, windows * lines * u->groups);
    j->is_direct = tarn__view_has_one_stride(to, 1, 3, &j->across) &&
                   (j->images >= images || to->dtype == tarn__acc_dtype(to->dtype));
    if (!j->is_direct)
        j->result = reserve(&used, tarn__view_count(to), j->sums);
    const tarn__view sums = sums_of(call, j), grads = grads_of(g, 0, j->images);
    tarn__view_has_one_stride(&sums, 1, 3, &j->across);
    j->grads = reserve(&used, tarn__view_count(&grads), g->dtype);
    reserve_columns(call, j, to->shape[0] / u->groups, lines, j->images * windows, u->groups, &used);
    j->gemm = used;
}

/* The plan of a piece of wgrad. */
static tarn__plan_status prepare_wgrad_piece(const tarn__call *call, const job *j, int64_t first, int64_t images,
                                             piece *to)
{
    const im2col_params u = im2col_of_piece(j, first, images);
    const tarn__view from = grads_of(call->in[1], first, images), grads = view_at(call, j->grads, &from, from.dtype);
    const tarn__cl_gemm gemm = wgrad_gemm(call, j, &u, &grads);
    return prepare_piece(call, j, WGRAD, &u, &gemm, u.groups, to);
}

/* An empty batch is a GEMM with k = 0. */
static tarn__plan_status prepare_conv2d_grad_weight(const tarn__call *call, tarn__plan *plan)
{
    job *j = tarn__cl_reserve_job(call, plan, sizeof(*j));
    if (!j)
        return TARN__PLAN_FAILED;
    describe_wgrad(j, call);
    if (j->is_empty)
        return TARN__PLAN_READY;
    const int64_t all = call->in[0]->shape[0], last = last_images(all, j->images);
    const bool has_whole = all > last;
    tarn__plan_status status = prepare_wgrad_piece(call, j, all - last, last, &j->last);
    if (status == TARN__PLAN_READY && has_whole)
        status = prepare_wgrad_piece(call, j, 0, j->images, &j->whole);
    plan->scratch_bytes = scratch_of(j, has_whole);
    return status;
}

/* wgrad: gweight from x and gy; accumulates with beta. */
static void kernel_conv2d_grad_weight(const tarn__call *call)
{
    const job *j = tarn__plan_job(call->plan);
    if (j->is_empty)
        return;
    const tarn__view *to = call->out[0], sums = sums_of(call, j);
    const int64_t all = call->in[0]->shape[0];
    if (!j->is_direct && ((const tarn__conv2d *)call->params)->beta != 0)
        copy(call, to, &sums);
    for (int64_t first = 0; first < max_i64(1, all); first += j->images) {
        const int64_t images = min_i64(j->images, all - first);
        const piece *own = first + j->images < all ? &j->whole : &j->last;
        const im2col_params u = im2col_of_piece(j, first, images);
        const tarn__view from = grads_of(call->in[1], first, images),
                         grads = view_at(call, j->grads, &from, from.dtype);
        const tarn__cl_gemm p = wgrad_gemm(call, j, &u, &grads);
        copy(call, &from, &grads);
        run_im2col(call, WGRAD, own->im2col, &u, &p.b, u.groups);
        tarn__cl_gemm_run(call, &p, &own->gemm, j->gemm);
    }
    if (!j->is_direct)
        copy(call, &sums, to);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static tarn__plan_status prepare_conv2d(const tarn__call *call, tarn__plan *plan)
{
    return prepare_images(call, FORWARD, plan);
}

/* y = conv(x, weight) + bias. 2 · O · C / groups · KH · KW operations per pixel. */
static void kernel_conv2d(const tarn__call *call)
{
    run_images(call, FORWARD);
}

static tarn__plan_status prepare_conv2d_grad_x(const tarn__call *call, tarn__plan *plan)
{
    return prepare_images(call, DGRAD, plan);
}

/* dgrad: gx from gy and the transposed weight. */
static void kernel_conv2d_grad_x(const tarn__call *call)
{
    run_images(call, DGRAD);
}

void tarn__cl_register_conv(tarn__kernel_row *rows)
{
    rows[TARN__K_conv2d] = tarn__row_planned(prepare_conv2d, kernel_conv2d, TARN__FLOATS);
    rows[TARN__K_conv2d_grad_x] = tarn__row_planned(prepare_conv2d_grad_x, kernel_conv2d_grad_x, TARN__FLOATS);
    rows[TARN__K_conv2d_grad_weight] =
        tarn__row_planned(prepare_conv2d_grad_weight, kernel_conv2d_grad_weight, TARN__FLOATS);
}
