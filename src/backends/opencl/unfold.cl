/* unfold.cl: what the windows of a convolution see, as a matrix: the operand of a product.
 *
 *   forward   (channels · taps, pixels of the result) of each image and group, from x
 *   GRADIENT  the same for the gradient of x, from that of the result: a window is what sees a pixel of x
 *   WEIGHT    (pixels of all images, channels · taps) of each group, from x
 *
 * Lines, the second axis, lie in panels as in pack.cl. Options: REAL, T_X, the dtype of what is unfolded, and GRADIENT or WEIGHT. */

/* tarn__cl_unfolding of conv.c. */
typedef struct unfolding {
    long first, groups, channels; /* the first image; channels of a group */
    long size[2], stride[2], padding[2], dilation[2];
    long from[2], to[2];          /* rows and columns of what is unfolded, and of windows */
    long x_stride[4];
    long lines, depth, room;
    int width;
} unfolding;

/* Where window `at` sees tap `k` along an axis; -1: nothing is there. */
long seen_at(const unfolding *u, int axis, long at, long k)
{
#ifdef GRADIENT
    long distance = at + u->padding[axis] - k * u->dilation[axis], place = distance / u->stride[axis];
    return distance < 0 || distance % u->stride[axis] != 0 || place >= u->from[axis] ? -1 : place;
#else
    long place = at * u->stride[axis] - u->padding[axis] + k * u->dilation[axis];
    return place < 0 || place >= u->from[axis] ? -1 : place;
#endif
}

/* An element of the matrix: tap `tap` (of channels, rows, columns) of window `window` of image `image`. */
REAL tap_of(const __global void *x, long x_place, const unfolding *u, long image, long group, long tap, long window)
{
    long kx = tap % u->size[1], rest = tap / u->size[1], ky = rest % u->size[0], channel = group * u->channels + rest / u->size[0];
    long row = seen_at(u, 0, window / u->to[1], ky), column = seen_at(u, 1, window % u->to[1], kx);
    if (row < 0 || column < 0)
        return 0;
    return LOAD(T_X, x, x_place + image * u->x_stride[0] + channel * u->x_stride[1] + row * u->x_stride[2] + column * u->x_stride[3]);
}

#ifdef WEIGHT
#define ELEMENT(k, line) tap_of(x, x_place, &u, u.first + (k) / windows, batch, line, (k) % windows)
#else
#define ELEMENT(k, line) tap_of(x, x_place, &u, u.first + batch / u.groups, batch % u.groups, k, line)
#endif

/* A work-item an element, neighbours write neighbours: (lines, depth, batches). */
__kernel void unfold_each(const __global void *x, long x_place, __global void *to, long to_place, unfolding u)
{
    const long line = get_global_id(0), k = get_global_id(1), batch = get_global_id(2), panel = line / u.width, windows = u.to[0] * u.to[1];
    if (panel * u.width < u.lines)
        ((__global REAL *)to)[to_place + batch * u.room + panel * u.width * u.depth + k * u.width + line % u.width] =
            line < u.lines ? ELEMENT(k, line) : 0;
}

/* For processors, a work-item a line of a panel: (depth, panels, batches). */
__kernel void unfold(const __global void *x, long x_place, __global void *to, long to_place, unfolding u)
{
    const long k = get_global_id(0), panel = get_global_id(1), batch = get_global_id(2), windows = u.to[0] * u.to[1], first = panel * u.width;
    __global REAL *line = (__global REAL *)to + to_place + batch * u.room + first * u.depth + k * u.width;
    for (int i = 0; i < u.width; i++)
        line[i] = first + i < u.lines ? ELEMENT(k, first + i) : 0;
}
