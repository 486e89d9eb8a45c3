/* pool.c: max and average pooling over images (N, C, H, W) and their gradients: the launchers of pool.cl. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "backends/opencl/common/element.h"

enum { ROWS, COLUMNS, CHANNELS, DOWN, ACROSS, DIVISORS }; /* divisors: sizes of the grid, and the strides of windows */

/* The struct `pool` of pool.cl, which has the sizes in INDEX. */
typedef struct pool {
    int64_t image[4], result[4];                           /* shapes */
    int64_t image_step[4], result_step[4], index_step[4];  /* strides in elements */
    int64_t kernel[2], stride[2], padding[2], dilation[2]; /* of rows, of columns */
    uint32_t factor[DIVISORS];                             /* of tarn__cl_fast_divisor() */
    int32_t shift[DIVISORS];
    int32_t exclude_padding, by_channel;
} pool;

#define SIZES (offsetof(pool, factor) / sizeof(int64_t)) /* fields that small_pool narrows */

/* The same with sizes in 32 bits. */
typedef struct small_pool {
    int32_t size[SIZES]; /* in the order of `pool` */
    uint32_t factor[DIVISORS];
    int32_t shift[DIVISORS];
    int32_t exclude_padding, by_channel;
} small_pool;

/* `indices` NULL: average pooling, or maxima whose positions are not saved. */
static pool describe(const tarn__call *call, const tarn__view *image, const tarn__view *result,
                     const tarn__view *indices)
{
    const tarn__pool2d *params = call->params;
    pool p = {.exclude_padding = params->exclude_padding,
              .by_channel =
                  image->shape[1] > 1 && image->stride[1] == 1 && (image->shape[3] == 1 || image->stride[3] != 1)};
    for (int i = 0; i < 4; i++) {
        p.image[i] = image->shape[i];
        p.result[i] = result->shape[i];
        p.image_step[i] = image->stride[i];
        p.result_step[i] = result->stride[i];
        p.index_step[i] = indices ? indices->stride[i] : 0;
    }
    for (int axis = 0; axis < 2; axis++) {
        p.kernel[axis] = params->kernel[axis];
        p.stride[axis] = params->stride[axis];
        p.padding[axis] = params->padding[axis];
        p.dilation[axis] = params->dilation[axis];
    }
    return p;
}

/* Divisors of element numbers of `to`, and strides. */
static void add_divisors(pool *p, const tarn__view *to)
{
    const int64_t size[DIVISORS] = {[ROWS] = to->shape[2],
                                    [COLUMNS] = to->shape[3],
                                    [CHANNELS] = to->shape[1],
                                    [DOWN] = p->stride[0],
                                    [ACROSS] = p->stride[1]};
    for (int i = 0; i < DIVISORS; i++)
        /* A size of 1 needs no division, and a larger one divides in 64 bits. */
        if (size[i] > 1 && size[i] <= INT32_MAX)
            tarn__cl_fast_divisor(size[i], &p->factor[i], &p->shift[i]);
}

/* True when every offset and every product of sizes fits 32 bits with a margin. */
static bool is_small(const pool *p)
{
    /* Half of the range of int, so that a sum of two offsets fits. */
    const int64_t limit = INT64_C(1) << 30;
    int64_t max_offset = 0, image = 1, result = 1;
    for (int i = 0; i < 4; i++) {
        int64_t a = p->image_step[i], b = p->result_step[i], c = p->index_step[i];
        max_offset += p->image[i] * (a < 0 ? -a : a) + p->result[i] * ((b < 0 ? -b : b) + (c < 0 ? -c : c));
        image *= p->image[i], result *= p->result[i];
    }
    bool is_good = max_offset < limit && image < limit && result < limit;
    for (int i = 0; i < 2; i++)
        is_good = is_good && p->kernel[i] < 1 << 15 && p->stride[i] < 1 << 15 && p->padding[i] < 1 << 15 &&
                  p->dilation[i] < 1 << 15;
    return is_good;
}

/* By value, in the width of INDEX. */
static void arg_pool(tarn__cl_launch *launch, const pool *p)
{
    small_pool small = {.exclude_padding = p->exclude_padding, .by_channel = p->by_channel};
    int64_t size[SIZES];
    if (!is_small(p)) {
        tarn__cl_arg_value(launch, p, sizeof(*p));
        return;
    }
    /* The sizes come first in `pool`, so that they can be narrowed in one loop. */
    memcpy(size, p, sizeof(size));
    for (size_t i = 0; i < SIZES; i++)
        small.size[i] = (int32_t)size[i];
    memcpy(small.factor, p->factor, sizeof(small.factor));
    memcpy(small.shift, p->shift, sizeof(small.shift));
    tarn__cl_arg_value(launch, &small, sizeof(small));
}

/* Disjoint windows: each begins where the last one ends. */
static bool are_disjoint(const pool *p)
{
    bool is_good = true;
    for (int i = 0; i < 2; i++)
        is_good =
            is_good && p->stride[i] == p->kernel[i] && p->padding[i] == 0 && (p->dilation[i] == 1 || p->kernel[i] == 1);
    return is_good;
}

/* Such windows of two columns, contiguous and at even offsets. */
static bool has_pairs(const pool *p, const tarn__view *image)
{
    bool is_good =
        are_disjoint(p) && p->kernel[1] == 2 && p->image[3] % 2 == 0 && p->image_step[3] == 1 && image->offset % 2 == 0;
    for (int i = 0; i < 3; i++)
        is_good = is_good && p->image_step[i] % 2 == 0;
    return is_good && (image->dtype == TARN_F32 || image->dtype == TARN_BF16 || image->dtype == TARN_F16);
}

/* True when a view is contiguous and aligned along `axis` in units of `width` elements. */
static bool is_vector(const tarn__view *view, int64_t width, int axis)
{
    bool is_good = view->stride[axis] == 1 && view->offset % width == 0;
    for (int i = 0; i < 4; i++)
        is_good = is_good && (i == axis || view->shape[i] == 1 || view->stride[i] % width == 0);
    return is_good && view->dtype != TARN_F64;
}

/* Channels in aligned vec4s, in all tensors of the call. */
static bool has_vec4(const pool *p, const tarn__view *const *views)
{
    bool is_good = p->by_channel && p->image[1] % 4 == 0;
    for (int k = 0; k < 3; k++)
        is_good = is_good && (!views[k] || is_vector(views[k], 4, 1));
    return is_good;
}

/* Windows of which two can be read as a vec4, and their results written as two elements. */
static bool has_vec2(const pool *p, const tarn__view *const *views)
{
    return has_pairs(p, views[0]) && p->result[3] % 2 == 0 && is_vector(views[0], 4, 3) && is_vector(views[1], 2, 3) &&
           (!views[2] || is_vector(views[2], 2, 3));
}

/* Makes the window a compile-time constant. */
static void option_windows(char *options, size_t size, const pool *p, const tarn__view *image)
{
    size_t length = strlen(options);
    snprintf(options + length, size - length,
             " -DKERNEL_0=%d -DKERNEL_1=%d -DSTRIDE_0=%d -DSTRIDE_1=%d -DDILATION_0=%d -DDILATION_1=%d%s%s",
             (int)p->kernel[0], (int)p->kernel[1], (int)p->stride[0], (int)p->stride[1], (int)p->dilation[0],
             (int)p->dilation[1], are_disjoint(p) ? " -DAPART" : "", has_pairs(p, image) ? " -DPAIRS" : "");
}

/* A work-item per element of `to`, per window where windows scatter, or per vector. GPUs have a program per window
 * shape; CPUs only for disjoint windows, whose gradient was a fifth of LeNet's step on PoCL. Bytes: the image once,
 * overlapping windows from a cache; in backward the result once per window of an element. */
static void run(const tarn__call *call, bool is_forward, const char *what, pool *p, const tarn__view *const *views,
                const tarn__view *to)
{
    const bool has_program = is_small(p) && (tarn__cl_device_at(call->device)->in_lockstep || are_disjoint(p)),
               is_scatter = has_program && !is_forward && are_disjoint(p);
    const bool vec4 = has_program && has_vec4(p, views), vec2 = has_program && is_forward && has_vec2(p, views);
    const tarn__view *image = is_forward ? call->in[0] : call->out[0], *indices = views[is_forward ? 2 : 1];
    tarn__view windows = *to;
    char options[384];
    snprintf(options, sizeof(options), "%s -DT_X=%s -DT_Y=%s -DT_INDICES=%s -DINDEX=%s%s%s", what,
             tarn__cl_dtype_name(call->in[0]->dtype), tarn__cl_dtype_name(to->dtype),
             tarn__cl_dtype_name(indices ? indices->dtype : TARN_U8), is_small(p) ? "int" : "long",
             vec4 ? " -DVEC4" : "", vec2 ? " -DTWO" : "");
    if (has_program)
        option_windows(options, sizeof(options), p, image);
    /* A window that reaches beyond the image has no result, but its elements need a gradient of 0: it is counted too.
     * */
    for (int i = 0; i < 2 && is_scatter; i++)
        windows.shape[2 + i] = (p->image[2 + i] + p->kernel[i] - 1) / p->kernel[i];
    /* work-items count vectors */
    windows.shape[1] /= vec4 ? 4 : 1;
    windows.shape[3] /= vec2 ? 2 : 1;
    const int64_t count = tarn__view_count(&windows);
    add_divisors(p, &windows);
    tarn__cl_launch launch = tarn__cl_begin(call, "pool",
                                            is_forward   ? "pool_windows"
                                            : is_scatter ? "pool_scatter"
                                                         : "pool_grad",
                                            options);
    arg_pool(&launch, p);
    tarn__cl_arg_long(&launch, count);
    for (int k = 0; k < 3; k++)
        tarn__cl_arg_view(&launch, views[k]);
    tarn__cl_enqueue(&launch, 1, (size_t[]){(size_t)count}, NULL);
}

/* The largest element of each window, and its index in it where backward will need it. */
static void run_max_pool2d(const tarn__call *call)
{
    pool p = describe(call, call->in[0], call->out[0], call->out[1]);
    run(call, true, "-DFORWARD -DLARGEST", &p, (const tarn__view *[]){call->in[0], call->out[0], call->out[1]},
        call->out[0]);
}

/* The mean of each window, with or without padding in the count. */
static void run_avg_pool2d(const tarn__call *call)
{
    pool p = describe(call, call->in[0], call->out[0], NULL);
    run(call, true, "-DFORWARD", &p, (const tarn__view *[]){call->in[0], call->out[0], NULL}, call->out[0]);
}

/* Each gradient goes to the element whose index was saved. */
static void run_max_pool2d_grad(const tarn__call *call)
{
    pool p = describe(call, call->out[0], call->in[0], call->in[1]);
    run(call, false, "-DBACKWARD -DLARGEST", &p, (const tarn__view *[]){call->in[0], call->in[1], call->out[0]},
        call->out[0]);
}

/* Each gradient is divided evenly over its window. */
static void run_avg_pool2d_grad(const tarn__call *call)
{
    pool p = describe(call, call->out[0], call->in[0], NULL);
    run(call, false, "-DBACKWARD", &p, (const tarn__view *[]){call->in[0], NULL, call->out[0]}, call->out[0]);
}

void tarn__cl_register_pool(tarn__kernel_row *rows)
{
    rows[TARN__K_max_pool2d] = tarn__row(run_max_pool2d, TARN__FLOATS);
    rows[TARN__K_max_pool2d_grad] = tarn__row(run_max_pool2d_grad, TARN__FLOATS);
    rows[TARN__K_avg_pool2d] = tarn__row(run_avg_pool2d, TARN__FLOATS);
    rows[TARN__K_avg_pool2d_grad] = tarn__row(run_avg_pool2d_grad, TARN__FLOATS);
}
