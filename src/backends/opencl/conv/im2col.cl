/* im2col.cl: im2col: the receptive fields of a convolution as a matrix, the operand of a GEMM.
 *
 *   forward  (channels · taps, pixels of the output) per image and group, from x
 *   DGRAD    the same for the gradient of x, from gy: a window is what sees a pixel of x
 *   WGRAD    (pixels of all images, channels · taps) per group, from x
 *
 * Lines, the second axis, are in panels as in gemm_pack.cl. Options: REAL; T_X, the source's dtype; DGRAD or WGRAD;
 * INDEX for windows, taps and what is between them. */

/* im2col_params of conv.c, passed by value. */
typedef struct im2col_params {
    long first, groups, channels; /* first: image; channels: per group */
    long size[2], stride[2], padding[2], dilation[2];
    long from[2], to[2]; /* rows and columns of the source, and of windows */
    long x_stride[4];
    long lines, depth, batch_stride;
    int width;
} im2col_params;

/* Position of tap `k` of window `at` along an axis of the source; -1: padding. */
INDEX source_of(const im2col_params *u, int axis, INDEX at, INDEX k)
{
    const INDEX stride = (INDEX)u->stride[axis], padding = (INDEX)u->padding[axis], dilation = (INDEX)u->dilation[axis],
                from = (INDEX)u->from[axis];
#ifdef DGRAD
    const INDEX distance = at + padding - k * dilation, position = distance / stride;
    return distance < 0 || position * stride != distance || position >= from ? -1 : position;
#else
    const INDEX position = at * stride - padding + k * dilation;
    return position < 0 || position >= from ? -1 : position;
#endif
}

/* An element of the matrix: tap `tap` (channel, row, column) of window `window` of image `image`. */
REAL tap_of(const __global void *x, long x_offset, const im2col_params *u, long image, INDEX group, INDEX tap,
            INDEX window)
{
    /* tap = (channel · kernel_h + ky) · kernel_w + kx */
    const INDEX high = (INDEX)u->size[0], wide = (INDEX)u->size[1], across = (INDEX)u->to[1];
    const INDEX rest = tap / wide, kx = tap - rest * wide, own = rest / high, ky = rest - own * high,
                window_row = window / across;
    const INDEX row = source_of(u, 0, window_row, ky), column = source_of(u, 1, window - window_row * across, kx);
    if (row < 0 || column < 0)
        return 0;
    const long channel = (long)group * u->channels + own;
    return LOAD(T_X, x,
                x_offset + image * u->x_stride[0] + channel * u->x_stride[1] + row * u->x_stride[2] +
                    column * u->x_stride[3]);
}

#ifdef WGRAD
#define ELEMENT(k, line) tap_of(x, x_offset, &u, u.first + (k) / windows, batch, line, (k) - (k) / windows * windows)
#else
#define ELEMENT(k, line) tap_of(x, x_offset, &u, u.first + batch / groups, batch % groups, k, line)
#endif

/* For GPUs: a work-item per element of all batches, each a contiguous matrix; adjacent work-items write adjacent
 * elements. */
__kernel void im2col(const __global void *x, long x_offset, __global void *to, long to_offset, im2col_params u,
                     long count)
{
    const INDEX i = (INDEX)get_global_id(0), batch_stride = (INDEX)u.batch_stride, lines = (INDEX)u.lines,
                windows = (INDEX)(u.to[0] * u.to[1]), groups = (INDEX)u.groups;
    if (i >= count)
        return;
    const INDEX batch = i / batch_stride, rest = i - batch * batch_stride, k = rest / lines, line = rest - k * lines;
    ((__global REAL *)to)[to_offset + i] = ELEMENT(k, line);
}

/* ---- for CPUs: a work-item follows a line, and divides once ------------------------------------------------------ */

#define STEP 16 /* pixels per work-item of WGRAD; PIXELS of conv.c */

#ifdef WGRAD

/* All taps of STEP pixels. Grid (pixels / STEP, groups). */
__kernel void im2col_panels(const __global void *x, long x_offset, __global void *to, long to_offset, im2col_params u)
{
    const long begin = get_global_id(0) * STEP, end = min(begin + STEP, u.depth), group = get_global_id(1),
               windows = u.to[0] * u.to[1];
    const int width = u.width, channels = (int)u.channels, high = (int)u.size[0], wide = (int)u.size[1];
    for (long k = begin; k < end; k++) {
        const int window = (int)(k % windows), top = (int)(window / (int)u.to[1] * u.stride[0] - u.padding[0]),
                  left = (int)(window % (int)u.to[1] * u.stride[1] - u.padding[1]);
        const long image = x_offset + (u.first + k / windows) * u.x_stride[0] + group * channels * u.x_stride[1];
        __global REAL *panel = (__global REAL *)to + to_offset + group * u.batch_stride + k * width;
        int line = 0;
        for (int c = 0; c < channels; c++)
            for (int ky = 0; ky < high; ky++) {
                const int row = top + ky * (int)u.dilation[0];
                const bool inside = row >= 0 && row < (int)u.from[0];
                const long at = image + c * u.x_stride[1] + row * u.x_stride[2];
                for (int kx = 0, column = left; kx < wide; kx++, column += (int)u.dilation[1]) {
                    panel[line] = inside && column >= 0 && column < (int)u.from[1]
                                      ? (REAL)LOAD(T_X, x, at + column * u.x_stride[3])
                                      : (REAL)0;
                    if (++line == width) {
                        line = 0;
                        panel += width * u.depth;
                    }
                }
            }
        for (; line > 0 && line < width; line++)
            panel[line] = 0;
    }
}

#else

/* All windows of a tap. Grid (taps of a group's channels, 1, images · groups). */
__kernel void im2col_panels(const __global void *x, long x_offset, __global void *to, long to_offset, im2col_params u)
{
    const long tap = get_global_id(0), batch = get_global_id(2),
               channel = batch % u.groups * u.channels + tap / (u.size[0] * u.size[1]);
    const int kx = (int)(tap % u.size[1]), ky = (int)(tap / u.size[1] % u.size[0]), width = u.width,
              columns = (int)u.to[1];
    const long image = x_offset + (u.first + batch / u.groups) * u.x_stride[0] + channel * u.x_stride[1];
    __global REAL *panel = (__global REAL *)to + to_offset + batch * u.batch_stride + tap * width;
    int line = 0;
    for (int row = 0; row < (int)u.to[0]; row++) {
        const long from_row = source_of(&u, 0, row, ky), at = image + from_row * u.x_stride[2];
        for (int column = 0; column < columns; column++) {
#ifdef DGRAD
            const int distance = column + (int)u.padding[1] - kx * (int)u.dilation[1], step = (int)u.stride[1];
            const int position = step == 1 ? distance : distance / step;
            const bool inside =
                distance >= 0 && position < (int)u.from[1] && (step == 1 || position * step == distance);
#else
            const int position = column * (int)u.stride[1] - (int)u.padding[1] + kx * (int)u.dilation[1];
            const bool inside = position >= 0 && position < (int)u.from[1];
#endif
            panel[line] = inside && from_row >= 0 ? (REAL)LOAD(T_X, x, at + position * u.x_stride[3]) : (REAL)0;
            if (++line == width) {
                line = 0;
                panel += width * u.depth;
            }
        }
    }
    for (; line > 0 && line < width; line++)
        panel[line] = 0;
}

#endif
