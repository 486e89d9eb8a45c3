/* conv.c: conv2d, dgrad and wgrad as GEMMs over im2col columns, some images at a time (im2col.cl, gemm.h).
 *
 * dgrad is such a GEMM too, over the pixels of the output that see a pixel of x. wgrad runs along all pixels and
 * accumulates from piece to piece in order. Columns and sums of 16-bit operands are f32, so that results are rounded
 * once. A walk goes through the steps of a kernel twice: to measure scratch, and to run. */
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

/* One walk over a kernel: its description, the GEMM of the current piece, and scratch so far. */
typedef struct job {
    const tarn__call *call;
    const tarn__conv2d *params;
    tarn__cl_device *device;
    enum form form;
    bool runs;       /* else scratch is only measured */
    tarn_dtype sums; /* f32 or f64 */
    tarn__view from; /* the source of im2col */
    im2col_params u;
    tarn__cl_gemm gemm;
    int64_t images;         /* per piece */
    int64_t used, max_gemm; /* bytes of scratch: reserved so far, and after it for the largest GEMM */
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

/* Reserves scratch for a contiguous view of that shape, aligned to 256 bytes. */
static tarn__view reserve(job *j, const tarn__view *shape, tarn_dtype dtype)
{
    tarn__view used = tarn__cl_scratch_view(j->call, j->used, dtype), packed = *shape;
    tarn__view_set_row_major(&packed);
    packed.memory = used.memory, packed.offset = used.offset, packed.dtype = dtype;
    j->used += (tarn__view_count(shape) * (int64_t)tarn__dtype_bytes(dtype) + 255) / 256 * 256;
    return packed;
}

/* A copy by the kernel table, with conversion where dtypes differ. */
static void copy(const job *j, const tarn__view *from, const tarn__view *to)
{
    static const tarn__fill none = {0};
    tarn__call part = *j->call;
    part.inputs = part.outputs = 1;
    part.in[0] = from;
    part.out[0] = to;
    part.reads_output = 0;
    part.params = &none;
    part.params_bytes = sizeof(none);
    if (j->runs)
        tarn__cl_kernel_table()[TARN__K_copy].run(&part);
}

/* GPUs: an element per work-item. CPUs: all windows of a tap, or all taps of a few pixels. */
static const char *im2col_kernel(const job *j)
{
    return j->device->has_local_memory ? "im2col" : "im2col_panels";
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

static void im2col_options(const job *j, int64_t batches, char *options, size_t size)
{
    static const char *const forms[] = {"", " -DDGRAD", " -DWGRAD"};
    snprintf(options, size, "-DREAL=%s -DT_X=%s%s%s", j->sums == TARN_F64 ? "double" : "float",
             tarn__cl_dtype_name(j->from.dtype), forms[j->form], is_small(&j->u, batches) ? " -DINDEX=int" : "");
}

/* im2col of one piece: a launch over elements on a GPU, over taps or pixels on a CPU. */
static void run_im2col(const job *j, const tarn__view *to, int64_t batches)
{
    char options[96];
    im2col_options(j, batches, options, sizeof(options));
    if (!j->runs)
        return;
    tarn__cl_launch l = tarn__cl_begin(j->call, "im2col", im2col_kernel(j), options);
    tarn__cl_arg_view(&l, &j->from);
    tarn__cl_arg_view(&l, to);
    tarn__cl_arg_value(&l, &j->u, sizeof(j->u));
    size_t count = (size_t)batches;
    if (j->device->has_local_memory) {
        tarn__cl_arg_long(&l, j->u.batch_stride * batches);
        tarn__cl_enqueue_elements(&l, j->u.batch_stride * batches);
    } else if (j->form == WGRAD) {
        tarn__cl_enqueue(&l, 2, (size_t[]){(size_t)((j->u.depth + PIXELS - 1) / PIXELS), count}, (size_t[]){1, 1});
    } else {
        tarn__cl_enqueue(&l, 3, (size_t[]){(size_t)j->u.depth, 1, count}, (size_t[]){1, 1, 1});
    }
}

/* The GEMM of one piece; scratch after the reservations is shared by all of them. */
static void run_gemm(job *j)
{
    j->max_gemm = max_i64(j->max_gemm, (int64_t)tarn__cl_gemm_scratch(j->call, &j->gemm));
    if (j->runs)
        tarn__cl_gemm_run(j->call, &j->gemm, j->used);
}

/* ---- description ------------------------------------------------------------------------------------------------- */

/* A job with im2col of `from` for windows as the rows and columns of `to`. */
static job job_of(const tarn__call *call, enum form form, const tarn__view *from, const tarn__view *weight,
                  const tarn__view *to, bool runs)
{
    const tarn__conv2d *params = call->params;
    job j = {.call = call,
             .params = params,
             .device = tarn__cl_device_at(call->device),
             .form = form,
             .runs = runs,
             .sums = tarn__cl_accum_dtype(from->dtype),
             .from = *from};
    j.u = (im2col_params){.groups = params->groups, .channels = from->shape[1] / params->groups};
    for (int i = 0; i < 2; i++) {
        j.u.size[i] = weight->shape[2 + i];
        j.u.stride[i] = params->stride[i];
        j.u.padding[i] = params->padding[i];
        j.u.dilation[i] = params->dilation[i];
        j.u.from[i] = from->shape[2 + i];
        j.u.to[i] = to->shape[2 + i];
    }
    for (int i = 0; i < 4; i++)
        j.u.x_stride[i] = from->stride[i];
    j.gemm.alpha = 1;
    j.gemm.sizes.splits = 1;
    return j;
}

/* Reserves the columns of a piece, b of its GEMM: (depth, lines) per batch, or without local memory in panels of the
 * tile's width. */
static tarn__view reserve_columns(job *j, int64_t lines, int64_t depth, int64_t batches)
{
    tarn__cl_gemm_sizes *s = &j->gemm.sizes;
    bool packs = !j->device->has_local_memory;
    j->gemm.tile = tarn__cl_gemm_tile_of(j->device, j->sums, s->m, lines, depth, batches);
    j->u.lines = lines, j->u.depth = depth;
    j->u.width = packs ? j->gemm.tile.width : (int32_t)lines;
    j->u.batch_stride = tarn__cl_gemm_packed_count(lines, depth, j->u.width);
    j->gemm.b_is_packed = packs;
    s->n = lines, s->k = s->part = depth;
    s->b_row_stride = lines, s->b_col_stride = 1, s->b_batch_stride = j->u.batch_stride;
    tarn__view space = {.rank = 1, .shape = {j->u.batch_stride * batches}, .stride = {1}};
    j->gemm.b = reserve(j, &space, j->sums);
    return j->gemm.b;
}

/* Images whose columns of `elements` elements each fit PIECE_BYTES; at least one. */
static int64_t images_per_piece(const job *j, int64_t images, int64_t elements)
{
    int64_t bytes = elements * (int64_t)tarn__dtype_bytes(j->sums) + 1;
    return max_i64(1, min_i64(images, tarn__conv_items_in(PIECE_BYTES, bytes)));
}

/* The weight, contiguous: itself or a copy, (O, C, KH, KW), or transposed for dgrad, (groups · C, O of the group, KH,
 * KW). */
static tarn__view weight_of(job *j, const tarn__view *weight, bool transposed)
{
    int64_t groups = j->params->groups, out = weight->shape[0] / groups;
    if (!transposed && tarn__view_is_contiguous(weight))
        return *weight;
    tarn__view from = *weight;
    if (transposed) { /* (groups, C, O, KH, KW) */
        from.rank = 5;
        int64_t shape[] = {groups, weight->shape[1], out, weight->shape[2], weight->shape[3]};
        int64_t stride[] = {out * weight->stride[0], weight->stride[1], weight->stride[0], weight->stride[2],
                            weight->stride[3]};
        for (int i = 0; i < 5; i++)
            from.shape[i] = shape[i], from.stride[i] = stride[i];
    }
    tarn__view used = reserve(j, &from, weight->dtype);
    copy(j, &from, &used);
    return used;
}

/* ---- forward and dgrad ------------------------------------------------------------------------------------------- */

/* Sets the batches of the GEMM (rows, taps) · (taps, pixels): `images` images from `first`, times groups. */
static void set_batches(job *j, const tarn__view *to, int64_t first, int64_t images)
{
    tarn__cl_gemm *p = &j->gemm;
    int64_t groups = j->params->groups, rows = to->shape[1] / groups;
    p->batches = (tarn__nest){.rank = 2, .operands = 4, .count = images * groups, .shape = {images, groups}};
    int64_t strides[4][2] = {{to->stride[0], rows * to->stride[1]},
                             {0, rows * p->sizes.k},
                             {groups * j->u.batch_stride, j->u.batch_stride},
                             {0, rows * p->sizes.bias_row_stride}};
    for (int i = 0; i < 4; i++)
        p->batches.stride[i][0] = strides[i][0], p->batches.stride[i][1] = strides[i][1];
    p->c = *to;
    p->c.offset += first * to->stride[0];
    j->u.first = first;
}

/* Forward and dgrad: piece by piece im2col, then a GEMM per image and group. Returns the bytes of scratch. */
static size_t walk_images(const tarn__call *call, enum form form, bool runs)
{
    const tarn__view *to = call->out[0], *bias = form == FORWARD && call->inputs > 2 ? call->in[2] : NULL;
    job j = job_of(call, form, call->in[0], call->in[1], to, runs);
    int64_t groups = j.params->groups, windows = j.u.to[0] * j.u.to[1], images = to->shape[0], across;
    if (!j.device || tarn__view_count(to) == 0)
        return 0;
    tarn__cl_gemm *p = &j.gemm;
    p->a = weight_of(&j, call->in[1], form == DGRAD);
    int64_t depth = j.u.channels * j.u.size[0] * j.u.size[1];
    /* the GEMM writes a matrix: rows and columns of an image must have one stride */
    bool is_direct = tarn__view_has_one_stride(to, 2, 3, &across);
    tarn__view result = is_direct ? *to : reserve(&j, to, to->dtype);
    tarn__view_has_one_stride(&result, 2, 3, &across);
    p->sizes.m = to->shape[1] / groups;
    p->sizes.c_row_stride = result.stride[1], p->sizes.c_col_stride = across;
    p->sizes.a_row_stride = depth, p->sizes.a_col_stride = 1;
    if (bias) {
        p->bias = *bias;
        p->sizes.bias_row_stride = bias->shape[0] > 1 ? bias->stride[0] : 0;
    }
    j.images = images_per_piece(&j, images, depth * windows * groups);
    tarn__view columns = reserve_columns(&j, windows, depth, j.images * groups);
    for (int64_t first = 0; first < images; first += j.images) {
        int64_t count = min_i64(j.images, images - first);
        set_batches(&j, &result, first, count);
        run_im2col(&j, &columns, count * groups);
        run_gemm(&j);
    }
    if (!is_direct)
        copy(&j, &result, to);
    return (size_t)(j.used + j.max_gemm);
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

/* Adds one piece to the gradient: gy is copied to (O, pixels), columns are (pixels, taps). `place` is scratch for the
 * copy. */
static void wgrad_piece(job *j, const tarn__view *g, const tarn__view *place, const tarn__view *columns, int64_t first,
                        int64_t images)
{
    tarn__cl_gemm *p = &j->gemm;
    int64_t groups = j->params->groups, rows = g->shape[1] / groups;
    tarn__view from = grads_of(g, first, images), used = from;
    used.memory = place->memory, used.offset = place->offset, used.dtype = place->dtype;
    tarn__view_set_row_major(&used);
    copy(j, &from, &used);
    p->a = used;
    p->sizes.k = p->sizes.part = j->u.depth = images * j->u.to[0] * j->u.to[1];
    p->sizes.a_row_stride = p->sizes.k, p->sizes.a_col_stride = 1;
    j->u.batch_stride = p->sizes.b_batch_stride = tarn__cl_gemm_packed_count(j->u.lines, j->u.depth, j->u.width);
    j->u.first = first;
    p->batches = (tarn__nest){.rank = 1, .operands = 4, .count = groups, .shape = {groups}};
    p->batches.stride[0][0] = rows * p->sizes.c_row_stride;
    p->batches.stride[1][0] = rows * p->sizes.k;
    p->batches.stride[2][0] = j->u.batch_stride;
    run_im2col(j, columns, groups);
    run_gemm(j);
}

/* Sums go straight into the gradient where its layout allows and one rounding suffices; else into scratch first. An
 * empty batch is a GEMM with k = 0. */
static size_t walk_wgrad(const tarn__call *call, bool runs)
{
    const tarn__view *x = call->in[0], *g = call->in[1], *to = call->out[0];
    job j = job_of(call, WGRAD, x, to, g, runs);
    tarn__cl_gemm *p = &j.gemm;
    int64_t images = x->shape[0], windows = j.u.to[0] * j.u.to[1], lines = j.u.channels * j.u.size[0] * j.u.size[1],
            across;
    if (!j.device || tarn__view_count(to) == 0)
        return 0;
    j.images = images_per_piece(&j, images, windows * lines * j.params->groups);
    bool is_direct =
        tarn__view_has_one_stride(to, 1, 3, &across) && (j.images >= images || to->dtype == tarn__acc_dtype(to->dtype));
    tarn__view sums = is_direct ? *to : reserve(&j, to, j.sums);
    tarn__view_has_one_stride(&sums, 1, 3, &across);
    if (!is_direct && j.params->beta != 0)
        copy(&j, to, &sums);
    tarn__view grads = grads_of(g, 0, j.images), place = reserve(&j, &grads, g->dtype);
    p->c = sums;
    p->beta = j.params->beta;
    p->sizes.m = to->shape[0] / j.params->groups;
    p->sizes.c_row_stride = sums.stride[0], p->sizes.c_col_stride = across;
    tarn__view columns = reserve_columns(&j, lines, j.images * windows, j.params->groups);
    for (int64_t first = 0; first < max_i64(1, images); first += j.images) {
        wgrad_piece(&j, g, &place, &columns, first, min_i64(j.images, images - first));
        p->beta = 1;
    }
    if (!is_direct)
        copy(&j, &sums, to);
    return (size_t)(j.used + j.max_gemm);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static size_t conv2d_scratch(const tarn__call *call)
{
    return walk_images(call, FORWARD, false);
}

/* y = conv(x, weight) + bias. 2 · O · C / groups · KH · KW operations per pixel. */
static void kernel_conv2d(const tarn__call *call)
{
    walk_images(call, FORWARD, true);
}

static size_t conv2d_grad_x_scratch(const tarn__call *call)
{
    return walk_images(call, DGRAD, false);
}

/* dgrad: gx from gy and the transposed weight. */
static void kernel_conv2d_grad_x(const tarn__call *call)
{
    walk_images(call, DGRAD, true);
}

static size_t conv2d_grad_weight_scratch(const tarn__call *call)
{
    return walk_wgrad(call, false);
}

/* wgrad: gweight from x and gy; accumulates with beta. */
static void kernel_conv2d_grad_weight(const tarn__call *call)
{
    walk_wgrad(call, true);
}

void tarn__cl_register_conv(tarn__kernel_row *rows)
{
    rows[TARN__K_conv2d] = tarn__row(kernel_conv2d, TARN__FLOATS, conv2d_scratch);
    rows[TARN__K_conv2d_grad_x] = tarn__row(kernel_conv2d_grad_x, TARN__FLOATS, conv2d_grad_x_scratch);
    rows[TARN__K_conv2d_grad_weight] = tarn__row(kernel_conv2d_grad_weight, TARN__FLOATS, conv2d_grad_weight_scratch);
}
