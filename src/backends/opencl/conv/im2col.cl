/* im2col.cl: what the windows of a convolution see, as a matrix: the operand of a product.
 *
 *   forward   (channels · taps, pixels of the result) of each image and group, from x
 *   GRADIENT  the same for the gradient of x, from that of the result: a window is what sees a pixel of x
 *   WEIGHT    (pixels of all images, channels · taps) of each group, from x
 *
 * Lines, the second axis, lie in panels as in gemm_pack.cl. Options: REAL, T_X, the dtype of what is unfolded, and
 * GRADIENT or WEIGHT; INDEX for windows, taps and what lies between them. */

/* tarn__cl_im2col of conv.c. */
typedef struct unfolding {
    long first, groups, channels; /* the first image; channels of a group */
    long size[2], stride[2], padding[2], dilation[2];
    long from[2], to[2]; /* rows and columns of what is unfolded, and of windows */
    long x_stride[4];
    long lines, depth, room;
    int width;
} unfolding;

/* Where window `at` sees tap `k` along an axis; -1: nothing is there. */
INDEX seen_at(const unfolding *u, int axis, INDEX at, INDEX k)
{
    const INDEX stride = (INDEX)u->stride[axis], padding = (INDEX)u->padding[axis], dilation = (INDEX)u->dilation[axis],
                from = (INDEX)u->from[axis];
#ifdef GRADIENT
    const INDEX distance = at + padding - k * dilation, place = distance / stride;
    return distance < 0 || place * stride != distance || place >= from ? -1 : place;
#else
    const INDEX place = at * stride - padding + k * dilation;
    return place < 0 || place >= from ? -1 : place;
#endif
}

/* An element of the matrix: tap `tap` (of channels, rows, columns) of window `window` of image `image`. */
REAL tap_of(const __global void *x, long x_place, const unfolding *u, long image, INDEX group, INDEX tap, INDEX window)
{
    const INDEX high = (INDEX)u->size[0], wide = (INDEX)u->size[1], across = (INDEX)u->to[1];
    const INDEX rest = tap / wide, kx = tap - rest * wide, own = rest / high, ky = rest - own * high,
                window_row = window / across;
    const INDEX row = seen_at(u, 0, window_row, ky), column = seen_at(u, 1, window - window_row * across, kx);
    if (row < 0 || column < 0)
        return 0;
    const long channel = (long)group * u->channels + own;
    return LOAD(T_X, x,
                x_place + image * u->x_stride[0] + channel * u->x_stride[1] + row * u->x_stride[2] +
                    column * u->x_stride[3]);
}

#ifdef WEIGHT
#define ELEMENT(k, line) tap_of(x, x_place, &u, u.first + (k) / windows, batch, line, (k) - (k) / windows * windows)
#else
#define ELEMENT(k, line) tap_of(x, x_place, &u, u.first + batch / groups, batch % groups, k, line)
#endif

/* For GPUs: a work-item an element of the `count` of all batches, each a dense matrix: neighbours write neighbours. */
__kernel void unfold_each(const __global void *x, long x_place, __global void *to, long to_place, unfolding u,
                          long count)
{
    const INDEX i = (INDEX)get_global_id(0), room = (INDEX)u.room, lines = (INDEX)u.lines,
                windows = (INDEX)(u.to[0] * u.to[1]), groups = (INDEX)u.groups;
    if (i >= count)
        return;
    const INDEX batch = i / room, rest = i - batch * room, k = rest / lines, line = rest - k * lines;
    ((__global REAL *)to)[to_place + i] = ELEMENT(k, line);
}

/* ---- for processors: a work-item goes along lines, and divides once ---------------------------------------------- */

#define STEP 16 /* pixels of a WEIGHT's work-item */

#ifdef WEIGHT

/* All taps of STEP pixels: (pixels / STEP, groups). */
__kernel void unfold(const __global void *x, long x_place, __global void *to, long to_place, unfolding u)
{
    const long begin = get_global_id(0) * STEP, end = min(begin + STEP, u.depth), group = get_global_id(1),
               windows = u.to[0] * u.to[1];
    const int width = u.width, channels = (int)u.channels, high = (int)u.size[0], wide = (int)u.size[1];
    for (long k = begin; k < end; k++) {
        const int window = (int)(k % windows), top = (int)(window / (int)u.to[1] * u.stride[0] - u.padding[0]),
                  left = (int)(window % (int)u.to[1] * u.stride[1] - u.padding[1]);
        const long image = x_place + (u.first + k / windows) * u.x_stride[0] + group * channels * u.x_stride[1];
        __global REAL *panel = (__global REAL *)to + to_place + group * u.room + k * width;
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

/* All windows of a tap: (taps of a group's channels, 1, images · groups). */
__kernel void unfold(const __global void *x, long x_place, __global void *to, long to_place, unfolding u)
{
    const long tap = get_global_id(0), batch = get_global_id(2),
               channel = batch % u.groups * u.channels + tap / (u.size[0] * u.size[1]);
    const int kx = (int)(tap % u.size[1]), ky = (int)(tap / u.size[1] % u.size[0]), width = u.width,
              columns = (int)u.to[1];
    const long image = x_place + (u.first + batch / u.groups) * u.x_stride[0] + channel * u.x_stride[1];
    __global REAL *panel = (__global REAL *)to + to_place + batch * u.room + tap * width;
    int line = 0;
    for (int row = 0; row < (int)u.to[0]; row++) {
        const long from_row = seen_at(&u, 0, row, ky), at = image + from_row * u.x_stride[2];
        for (int column = 0; column < columns; column++) {
#ifdef GRADIENT
            const int distance = column + (int)u.padding[1] - kx * (int)u.dilation[1], step = (int)u.stride[1];
            const int place = step == 1 ? distance : distance / step;
            const bool inside = distance >= 0 && place < (int)u.from[1] && (step == 1 || place * step == distance);
#else
            const int place = column * (int)u.stride[1] - (int)u.padding[1] + kx * (int)u.dilation[1];
            const bool inside = place >= 0 && place < (int)u.from[1];
#endif
            panel[line] = inside && from_row >= 0 ? (REAL)LOAD(T_X, x, at + place * u.x_stride[3]) : (REAL)0;
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
