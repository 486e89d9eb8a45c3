/* conv.c: convolutions, 2 · N · O · OH · OW · C / groups · KH · KW operations: by cuDNN (cudnn_conv.c) where it is there, else as matrix products.
 *
 * The windows of as many images as fit into a bounded piece of scratch are laid out as columns (columns.h), then the device's own matmul does
 * the rest, in whichever of two ways the result lies; an image larger than that goes in bands of rows. A kernel of 1 by 1 needs no columns:
 * the images are the matrix. The gradient of x is a product whose columns are added up again, that of the weight a product along all pixels,
 * accumulated from piece to piece in order. Columns of gradients and sums of 16-bit operands are f32, so that results are rounded once.
 *
 * Every kernel is described by one walk over its steps, which is taken twice: to measure the scratch, and to run. */
#include <string.h>

#include "backends/cuda/columns.h"
#include "backends/cuda/cudnn_conv.h"

#define COLUMNS_BYTES (INT64_C(256) << 20)
#define MOST_IMAGES INT64_C(32768) /* batches of one product */
#define MOST_PIXELS (INT64_C(1) << 30)

typedef struct job {
    const tarn__call *call;
    const tarn__conv2d *params;
    bool runs;                    /* else only the scratch is measured */
    bool is_plain;                /* 1 by 1, and the images lie so that they are the matrix */
    bool by_image;                /* each image is a product of its own, else they are part of one */
    tarn__view image, result;     /* x or its gradient, y or its gradient; or what stands for them in scratch */
    int64_t in, out, taps, depth; /* channels of a group, taps, and both: in · taps */
    tarn__cuda_columns columns;   /* of the piece that is done */
    int64_t images, rows;         /* of one piece, at most; rows of the image where its gradient is made */
    size_t held, product;         /* bytes of scratch: what is kept, and behind it what one product needs */
} job;

static int64_t ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- views ------------------------------------------------------------------------------------------------------------------- */

/* Axes first to last seen as one; false where no single stride walks them, or where one of the view runs backwards: products take no such
 * batches. */
static bool merges(const tarn__view *v, int first, int last, int64_t *stride)
{
    int64_t size = 1;
    *stride = 1;
    for (int i = 0; i < v->rank; i++)
        if (v->shape[i] > 1 && v->stride[i] < 0)
            return false;
    for (int i = last; i >= first; i--) {
        if (v->shape[i] == 1)
            continue;
        if (size > 1 && v->stride[i] != *stride * size)
            return false;
        if (size == 1)
            *stride = v->stride[i];
        size *= v->shape[i];
    }
    return true;
}

/* The axes in another order: (N, C, H, W) becomes (N, H, W, C). */
static tarn__view channels_behind(const tarn__view *v)
{
    static const int order[] = {0, 2, 3, 1};
    tarn__view turned = *v;
    for (int i = 0; i < 4; i++) {
        turned.shape[i] = v->shape[order[i]];
        turned.stride[i] = v->stride[order[i]];
    }
    return turned;
}

/* One matrix of a batch by groups and images, the fewer of them outside: what lies outside may cost a product each. */
typedef struct matrix {
    int64_t by_group, by_image; /* strides */
    int64_t rows, columns, down, across;
} matrix;

static tarn__view matrices(const job *j, const tarn__view *base, int64_t offset, const matrix *m)
{
    tarn__view v = *base;
    int64_t groups = j->params->groups, images = j->by_image ? j->columns.images : 1;
    int group = groups <= images ? 0 : 1;
    v.offset += offset;
    v.rank = 4;
    v.shape[group] = groups, v.stride[group] = m->by_group;
    v.shape[1 - group] = images, v.stride[1 - group] = m->by_image;
    v.shape[2] = m->rows, v.stride[2] = m->down;
    v.shape[3] = m->columns, v.stride[3] = m->across;
    return v;
}

static tarn__view turned(const tarn__view *v)
{
    tarn__view t = *v;
    t.shape[2] = v->shape[3], t.shape[3] = v->shape[2];
    t.stride[2] = v->stride[3], t.stride[3] = v->stride[2];
    return t;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------------- */

/* A place in scratch, 256 bytes aligned. */
static void *hold(job *j, size_t bytes)
{
    void *at = (void *)((uintptr_t)j->call->scratch + j->held);
    j->held += (bytes + 255) / 256 * 256;
    return at;
}

/* A dense stand-in for a view, in scratch. */
static tarn__view hold_like(job *j, const tarn__view *v, tarn_dtype dtype)
{
    tarn__view held = *v;
    held.dtype = dtype;
    held.offset = 0;
    held.memory = hold(j, (size_t)tarn__view_count(v) * tarn__dtype_bytes(dtype));
    tarn__view_pack(&held);
    return held;
}

static void copy(const job *j, const tarn__view *from, const tarn__view *to)
{
    tarn__fill none = {0};
    tarn__call part = {.inputs = 1, .outputs = 1, .in = {from}, .out = {to}, .device = j->call->device, .stream = j->call->stream,
                       .function = j->call->function, .fault = j->call->fault, .params = &none, .params_bytes = sizeof(none)};
    if (j->runs)
        tarn__cuda_rows()[TARN__K_copy].run(&part);
}

/* c = a @ b + beta · c (+ bias). Its own scratch lies behind what is held, so nothing may be held after the first product. */
static void multiply(job *j, const tarn__view *a, const tarn__view *b, const tarn__view *bias, const tarn__view *c, double beta)
{
    const tarn__kernel_row *row = &tarn__cuda_rows()[TARN__K_matmul];
    tarn__matmul params = {.alpha = 1, .beta = beta, .tf32 = j->params->tf32};
    tarn__call part = {.inputs = 3, .outputs = 1, .in = {a, b, bias}, .out = {c}, .reads_output = beta != 0, .device = j->call->device,
                       .stream = j->call->stream, .function = j->call->function, .fault = j->call->fault, .params = &params,
                       .params_bytes = sizeof(params)};
    part.scratch_bytes = row->scratch ? row->scratch(&part) : 0;
    if (part.scratch_bytes > j->product)
        j->product = part.scratch_bytes;
    part.scratch = (char *)((uintptr_t)j->call->scratch + j->held);
    if (j->runs)
        row->run(&part);
}

/* ---- the way ----------------------------------------------------------------------------------------------------------------- */

static bool lies_by_pixels(const tarn__view *v)
{
    tarn__view behind = channels_behind(v);
    int64_t stride;
    return (v->shape[1] == 1 || v->stride[1] == 1) && merges(&behind, 0, 2, &stride);
}

/* Channels lie next to each other and columns do not. */
static bool is_channels_last(const tarn__view *v)
{
    return v->shape[1] > 1 && v->stride[1] == 1 && (v->shape[3] == 1 || v->stride[3] != 1);
}

/* Which way the product goes. By pixels the product must be able to write or read `result` where it
 * lies; by rows everything goes. Without columns the same holds for the images. */
static void choose_way(job *j, bool may_be_plain)
{
    const tarn__conv2d *p = j->params;
    bool is_pixel = j->result.shape[2] * j->result.shape[3] == 1; /* one window: a batch of vectors by rows, one product by pixels */
    j->columns.by_pixels = lies_by_pixels(&j->result) && (is_channels_last(&j->image) || is_pixel);
    j->by_image = !j->columns.by_pixels;
    int64_t stride;
    bool is_matrix = j->columns.by_pixels ? lies_by_pixels(&j->image) : merges(&j->image, 2, 3, &stride);
    j->is_plain = may_be_plain && is_matrix && j->taps == 1 && p->stride[0] == 1 && p->stride[1] == 1 && p->padding[0] == 0 && p->padding[1] == 0;
}

/* Rows of the image whose gradient needs at most `rows` rows of columns; a few more where the kernel itself reaches further than that. */
static int64_t image_rows_for(const job *j, int64_t rows)
{
    int64_t reach = (j->columns.kernel[0] - 1) * j->params->dilation[0];
    return most(1, least(j->image.shape[2], most((rows - 1) * j->params->stride[0] - reach, reach)));
}

/* Pieces of equal size, as far as they go: each new size is a product that must be planned. */
static void choose_pieces(job *j, bool is_gradient)
{
    int64_t pixels = j->columns.size[0] * j->columns.size[1], batch = j->image.shape[0];
    int64_t bytes = j->is_plain ? 0 : j->image.shape[1] * j->taps * pixels * (int64_t)tarn__dtype_bytes(j->columns.dtype);
    int64_t limit = most(1, least(bytes > 0 ? COLUMNS_BYTES / bytes : batch, MOST_PIXELS / pixels));
    if (!j->columns.by_pixels)
        limit = least(limit, MOST_IMAGES);
    j->images = ceiling(most(batch, 1), ceiling(most(batch, 1), limit));
    j->rows = is_gradient ? j->image.shape[2] : j->columns.size[0];
    if (bytes <= COLUMNS_BYTES)
        return;
    int64_t fit = most(1, COLUMNS_BYTES / (bytes / j->columns.size[0]));
    j->rows = is_gradient ? image_rows_for(j, fit) : ceiling(j->columns.size[0], ceiling(j->columns.size[0], fit));
}

static job describe(const tarn__call *call, const tarn__view *image, const tarn__view *result, const tarn__view *weight, bool runs)
{
    const tarn__conv2d *params = call->params;
    job j = {.call = call, .params = params, .runs = runs, .image = *image, .result = *result};
    j.in = image->shape[1] / params->groups;
    j.out = result->shape[1] / params->groups;
    j.taps = weight->shape[2] * weight->shape[3];
    j.depth = j.in * j.taps;
    j.columns = (tarn__cuda_columns){.params = params, .kernel = {weight->shape[2], weight->shape[3]}, .size = {result->shape[2], result->shape[3]},
                                     .dtype = image->dtype};
    return j;
}

/* Room for the columns of one piece of the most rows that it can have. */
static void hold_columns(job *j, bool is_gradient)
{
    int64_t reach = (j->columns.kernel[0] - 1) * j->params->dilation[0], rows = j->rows;
    if (is_gradient)
        rows = rows == j->image.shape[2] ? j->columns.size[0] : least(j->columns.size[0], (rows - 1 + reach) / j->params->stride[0] + 1);
    int64_t count = j->is_plain ? 0 : j->images * rows * j->columns.size[1] * j->image.shape[1] * j->taps;
    j->columns.at = hold(j, (size_t)count * tarn__dtype_bytes(j->columns.dtype));
}

/* A result that no product can write or read where it lies: a dense one in scratch stands for it. So does one of f32 for a 16-bit result that is
 * added to: the library's kernels round a product before they add what lies in the result. */
static bool stand_in_for_result(job *j, bool is_added_to)
{
    int64_t stride;
    bool rounds = is_added_to && tarn__dtype_bytes(j->result.dtype) == 2;
    if (!rounds && (j->columns.by_pixels || merges(&j->result, 2, 3, &stride)))
        return false;
    j->result = hold_like(j, &j->result, rounds ? TARN_F32 : j->result.dtype);
    if (j->columns.by_pixels) {
        const int64_t *shape = j->result.shape;
        j->result.stride[1] = 1, j->result.stride[3] = shape[1], j->result.stride[2] = shape[1] * shape[3];
        j->result.stride[0] = shape[1] * shape[3] * shape[2];
    }
    return true;
}

/* ---- operands of the products ------------------------------------------------------------------------------------------------- */

/* Pixels of the piece. */
static int64_t windows_of(const job *j)
{
    return j->columns.images * j->columns.rows * j->columns.size[1];
}

/* The weight, (O, C, KH, KW) by rows and (O, KH, KW, C) by pixels, as a matrix (O, depth); a copy where it does not lie so. */
static tarn__view weight_of(job *j, const tarn__view *weight)
{
    tarn__view w = j->columns.by_pixels ? channels_behind(weight) : *weight;
    int64_t stride;
    if (merges(&w, 1, 3, &stride))
        return w;
    tarn__view held = hold_like(j, &w, w.dtype);
    copy(j, &w, &held);
    return held;
}

/* (out, depth) for each group. */
static tarn__view weight_matrix(const job *j, const tarn__view *weight)
{
    int64_t stride;
    merges(weight, 1, 3, &stride);
    return matrices(j, weight, 0, &(matrix){j->out * weight->stride[0], 0, j->out, j->depth, weight->stride[0], stride});
}

/* Channels and pixels of the piece of an image or a result: (channels, pixels) by rows, (pixels, channels) by pixels. */
static tarn__view pixel_matrix(const job *j, const tarn__view *v, int64_t channels)
{
    const tarn__cuda_columns *c = &j->columns;
    tarn__view behind = channels_behind(v);
    int64_t pixel, offset = c->image * v->stride[0] + c->row * v->stride[2];
    merges(&behind, c->by_pixels ? 0 : 1, 2, &pixel);
    if (c->by_pixels)
        return matrices(j, v, offset, &(matrix){channels * v->stride[1], 0, windows_of(j), channels, pixel, v->stride[1]});
    return matrices(j, v, offset, &(matrix){channels * v->stride[1], v->stride[0], channels, c->rows * c->size[1], v->stride[1], pixel});
}

/* The columns of the piece: (depth, pixels of an image, or of all) by rows, (all pixels, depth) by pixels. */
static tarn__view column_matrix(const job *j)
{
    const tarn__cuda_columns *c = &j->columns;
    int64_t windows = windows_of(j), pixels = j->by_image ? c->rows * c->size[1] : windows;
    tarn__view base = {.memory = c->at, .dtype = c->dtype};
    if (j->is_plain)
        return pixel_matrix(j, &j->image, j->in);
    if (c->by_pixels)
        return matrices(j, &base, 0, &(matrix){j->depth, 0, windows, j->depth, j->params->groups * j->depth, 1});
    return matrices(j, &base, 0, &(matrix){j->depth * windows, pixels, j->depth, pixels, windows, 1});
}

/* ---- conv2d ------------------------------------------------------------------------------------------------------------------- */

static void spread_bias(const job *j, const tarn__view *bias)
{
    tarn__view from = j->result;
    from.memory = bias->memory, from.offset = bias->offset, from.dtype = bias->dtype;
    for (int i = 0; i < 4; i++)
        from.stride[i] = i == 1 ? bias->stride[0] : 0;
    copy(j, &from, &j->result);
}

static void forward_piece(job *j, const tarn__view *weight, const tarn__view *bias, double beta)
{
    if (j->runs && !j->is_plain)
        tarn__cuda_im2col(j->call, &j->image, &j->columns);
    tarn__view w = weight_matrix(j, weight), columns = column_matrix(j), y = pixel_matrix(j, &j->result, j->out), w_turned = turned(&w);
    if (j->columns.by_pixels)
        multiply(j, &columns, &w_turned, bias, &y, beta);
    else
        multiply(j, &w, &columns, NULL, &y, beta);
}

/* The product adds a bias of the last axis; others are laid into the result first. */
static size_t walk_forward(const tarn__call *call, bool runs)
{
    const tarn__view *bias = call->inputs > 2 ? call->in[2] : NULL;
    job j = describe(call, call->in[0], call->out[0], call->in[1], runs);
    if (tarn__view_count(call->out[0]) == 0)
        return 0;
    choose_way(&j, true);
    choose_pieces(&j, false);
    hold_columns(&j, false);
    tarn__view weight = weight_of(&j, call->in[1]);
    bool spreads = bias && !(j.columns.by_pixels && j.params->groups == 1), stands_in = stand_in_for_result(&j, spreads);
    if (spreads)
        spread_bias(&j, bias);
    for (j.columns.image = 0; j.columns.image < j.image.shape[0]; j.columns.image += j.images)
        for (j.columns.row = 0; j.columns.row < j.columns.size[0]; j.columns.row += j.rows) {
            j.columns.images = least(j.images, j.image.shape[0] - j.columns.image);
            j.columns.rows = least(j.rows, j.columns.size[0] - j.columns.row);
            forward_piece(&j, &weight, spreads ? NULL : bias, spreads ? 1 : 0);
        }
    if (stands_in)
        copy(&j, &j.result, call->out[0]);
    return j.held + j.product;
}

/* ---- the gradient of x ---------------------------------------------------------------------------------------------------------- */

/* Of the results, the rows whose windows see the piece's rows of the image; all of them where these are whole images. */
static void choose_result_rows(job *j)
{
    tarn__cuda_columns *c = &j->columns;
    int64_t step = j->params->stride[0], padding = j->params->padding[0], reach = (c->kernel[0] - 1) * j->params->dilation[0];
    int64_t first = ceiling(most(0, c->image_row + padding - reach), step);
    int64_t end = least(c->size[0], (c->image_row + c->image_rows - 1 + padding) / step + 1);
    bool is_whole = j->rows == j->image.shape[2];
    c->row = is_whole ? 0 : least(first, end);
    c->rows = (is_whole ? c->size[0] : end) - c->row;
}

static void grad_x_piece(job *j, const tarn__view *weight)
{
    choose_result_rows(j);
    if (j->columns.rows > 0) {
        tarn__view w = weight_matrix(j, weight), g = pixel_matrix(j, &j->result, j->out), columns = column_matrix(j), w_turned = turned(&w);
        if (j->columns.by_pixels)
            multiply(j, &g, &w, NULL, &columns, 0);
        else
            multiply(j, &w_turned, &g, NULL, &columns, 0);
    }
    if (j->runs && !j->is_plain)
        tarn__cuda_col2im(j->call, &j->columns, &j->image);
}

static size_t walk_grad_x(const tarn__call *call, bool runs)
{
    job j = describe(call, call->out[0], call->in[0], call->in[1], runs);
    if (tarn__view_count(call->out[0]) == 0)
        return 0;
    j.columns.dtype = tarn__wide_dtype(call->in[0]->dtype);
    choose_way(&j, true);
    choose_pieces(&j, true);
    hold_columns(&j, true);
    tarn__view weight = weight_of(&j, call->in[1]);
    if (stand_in_for_result(&j, false))
        copy(&j, call->in[0], &j.result);
    for (j.columns.image = 0; j.columns.image < j.image.shape[0]; j.columns.image += j.images)
        for (j.columns.image_row = 0; j.columns.image_row < j.image.shape[2]; j.columns.image_row += j.rows) {
            j.columns.images = least(j.images, j.image.shape[0] - j.columns.image);
            j.columns.image_rows = least(j.rows, j.image.shape[2] - j.columns.image_row);
            grad_x_piece(&j, &weight);
        }
    return j.held + j.product;
}

/* ---- the gradient of the weight --------------------------------------------------------------------------------------------------- */

/* By rows the piece's gradients are a matrix (O, pixels of all images) only after a copy, unless there is one image. */
static tarn__view result_rows(const job *j, void *place)
{
    const tarn__cuda_columns *c = &j->columns;
    const tarn__view *g = &j->result;
    int64_t windows = windows_of(j), pixel;
    tarn__view from = *g; /* (O, images, rows, columns) */
    from.offset += c->image * g->stride[0] + c->row * g->stride[2];
    from.shape[0] = g->shape[1], from.stride[0] = g->stride[1];
    from.shape[1] = c->images, from.stride[1] = g->stride[0];
    from.shape[2] = c->rows;
    if (!merges(&from, 1, 3, &pixel)) {
        tarn__view dense = from;
        dense.memory = place;
        dense.offset = 0;
        tarn__view_pack(&dense);
        copy(j, &from, &dense);
        from = dense;
        pixel = 1;
    }
    return matrices(j, &from, 0, &(matrix){j->out * from.stride[0], 0, j->out, windows, from.stride[0], pixel});
}

static void grad_weight_piece(job *j, const tarn__view *sums, double beta, void *place)
{
    if (j->runs && !j->is_plain)
        tarn__cuda_im2col(j->call, &j->image, &j->columns);
    tarn__view columns = column_matrix(j), to = weight_matrix(j, sums), g;
    if (j->columns.by_pixels) {
        g = pixel_matrix(j, &j->result, j->out);
        g = turned(&g);
    } else {
        g = result_rows(j, place);
        columns = turned(&columns);
    }
    multiply(j, &g, &columns, NULL, &to, beta);
}

/* The sums go straight into the gradient where it lies as the product makes it and is rounded once; else into scratch first. An empty batch
 * is a product along an axis of size 0. */
static size_t walk_grad_weight(const tarn__call *call, bool runs)
{
    job j = describe(call, call->in[0], call->in[1], call->out[0], runs);
    int64_t batch = most(1, j.image.shape[0]), stride;
    choose_way(&j, true);
    j.is_plain = j.is_plain && j.columns.by_pixels;
    j.by_image = false;
    choose_pieces(&j, false);
    hold_columns(&j, false);
    int64_t gradients = j.columns.by_pixels ? 0 : j.images * j.rows * j.columns.size[1] * j.result.shape[1];
    void *place = hold(&j, (size_t)gradients * tarn__dtype_bytes(j.result.dtype));
    tarn__view to = j.columns.by_pixels ? channels_behind(call->out[0]) : *call->out[0];
    bool is_whole = j.images >= batch && j.rows >= j.columns.size[0];
    bool is_direct = merges(&to, 1, 3, &stride) && (is_whole || to.dtype == tarn__wide_dtype(to.dtype));
    tarn__view sums = is_direct ? to : hold_like(&j, &to, tarn__wide_dtype(j.image.dtype));
    double beta = j.params->beta;
    if (!is_direct && beta != 0)
        copy(&j, &to, &sums);
    for (j.columns.image = 0; j.columns.image < batch; j.columns.image += j.images)
        for (j.columns.row = 0; j.columns.row < j.columns.size[0]; j.columns.row += j.rows) {
            j.columns.images = least(j.images, j.image.shape[0] - j.columns.image);
            j.columns.rows = least(j.rows, j.columns.size[0] - j.columns.row);
            grad_weight_piece(&j, &sums, beta, place);
            beta = 1;
        }
    if (!is_direct)
        copy(&j, &sums, &to);
    return j.held + j.product;
}

/* ---- kernels -------------------------------------------------------------------------------------------------------------------- */

size_t tarn__cuda_conv_columns(const tarn__call *call, int what, bool runs)
{
    return what == TARN__CONV_FORWARD ? walk_forward(call, runs) : what == TARN__CONV_GRAD_X ? walk_grad_x(call, runs) : walk_grad_weight(call, runs);
}

/* By cuDNN where it is there and does this one best, else by columns. */
static size_t walk(const tarn__call *call, int what, bool runs)
{
    size_t bytes;
    return tarn__cudnn_conv_call(call, what, runs, &bytes) ? bytes : tarn__cuda_conv_columns(call, what, runs);
}

#define KERNEL(name, what)                                                                                                                \
    static size_t scratch_##name(const tarn__call *call) { return walk(call, what, false); }                                             \
    static void kernel_##name(const tarn__call *call) { walk(call, what, true); }
KERNEL(conv2d, TARN__CONV_FORWARD)
KERNEL(conv2d_grad_x, TARN__CONV_GRAD_X)
KERNEL(conv2d_grad_weight, TARN__CONV_GRAD_WEIGHT)

void tarn__cuda_conv(tarn__kernel_row *rows)
{
    rows[TARN__K_conv2d] = (tarn__kernel_row){kernel_conv2d, TARN__FLOATS, scratch_conv2d};
    rows[TARN__K_conv2d_grad_x] = (tarn__kernel_row){kernel_conv2d_grad_x, TARN__FLOATS, scratch_conv2d_grad_x};
    rows[TARN__K_conv2d_grad_weight] = (tarn__kernel_row){kernel_conv2d_grad_weight, TARN__FLOATS, scratch_conv2d_grad_weight};
}
