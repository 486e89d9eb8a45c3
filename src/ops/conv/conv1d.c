/* conv1d.c: convolution of sequences: that of images of one row, which every kernel of conv2d computes. [N, C, L] is
 * seen as [N, C, 1, L]; nothing is copied, and gradients flow through the views. */
#include <string.h>

#include "ops/op.h"

/* x [N, C, L] and weight [O, C / groups, K]; what is left is checked as an image of one row. */
static bool check_sequence(const tarn_tensor *x, const tarn_tensor *weight)
{
    if (!tarn__check("conv1d", x, "x") || !tarn__check("conv1d", weight, "weight"))
        return false;
    if (x->view.rank != 3)
        return tarn__raise(TARN_ERROR_SHAPE, "conv1d: x %s has rank %d, but must be [N, C, L]", TARN__SHAPE_STRING(x),
                           x->view.rank);
    return weight->view.rank == 3 ||
           tarn__raise(TARN_ERROR_SHAPE, "conv1d: weight %s has rank %d, but must be [O, C / groups, K]",
                       TARN__SHAPE_STRING(weight), weight->view.rank);
}

/* The convolution of an image of one row. */
tarn_tensor *tarn_conv1d_sized(tarn_tensor *x, tarn_tensor *weight, tarn_tensor *bias,
                               const tarn_conv1d_options *options, size_t options_size)
{
    tarn_conv1d_options o = {0};
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    if (tarn_failed() || !check_sequence(x, weight))
        return NULL;
    /* Options of the axis of length 1 are those that leave it so. */
    tarn_conv2d_options rows = {
        .stride = {1, o.stride}, .padding = {0, o.padding}, .dilation = {1, o.dilation}, .groups = o.groups};
    tarn_tensor *y = tarn_conv2d(tarn_unsqueeze(x, 2), tarn_unsqueeze(weight, 2), bias, &rows);
    if (!y)
        tarn__raise_within("conv1d");
    return y ? tarn_squeeze(y, 2) : NULL;
}

/* A bias is absent as a NULL input. */
bool tarn__apply_conv1d(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_conv1d_options o = {.stride = tarn__attribute_int(v, "stride", 1),
                             .padding = tarn__attribute_int(v, "padding", 0),
                             .dilation = tarn__attribute_int(v, "dilation", 1),
                             .groups = tarn__attribute_int(v, "groups", 1)};
    return (out[0] = tarn_conv1d(v->in[0], v->in[1], v->in[2], &o)) != NULL;
}
