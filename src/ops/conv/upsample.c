/* upsample.c: images of another size, as torch.nn.functional.interpolate: nearest and bilinear, larger or smaller.
 *
 * Rows and columns are resampled one after the other. Composed of other operations, which have gradients and run on
 * every backend: an integer factor of nearest is a broadcast and a copy; else whole rows, or columns, are selected by
 * indices, two of them and a blend for bilinear. Indices and weights are computed on the device, so that a captured
 * step can have them too.
 *
 * Coordinates are torch's: of nearest in f32, whose rounding decides which pixel is the nearest; of bilinear in f64. */
#include <math.h>
#include <string.h>

#include "ops/op.h"

#define FUNCTION "upsample"

/* One axis of an operand. */
typedef struct resampling {
    int axis;
    int64_t in, out;
    double scale; /* as the caller gave it; 0: out / in */
} resampling;

/* ---- nearest ----------------------------------------------------------------------------------------------------- */

static float nearest_step(const resampling *r)
{
    return r->scale > 0 ? (float)(1 / r->scale) : (float)r->in / (float)r->out;
}

/* True when every element is repeated `out / in` times. Torch doubles without looking at the coordinates. */
static bool is_repetition(const resampling *r)
{
    int64_t times = r->out / r->in;
    float step = nearest_step(r);
    if (r->out % r->in != 0)
        return false;
    for (int64_t i = 0; times > 2 && i < r->out; i++)
        if ((int64_t)floorf((float)i * step) != i / times)
            return false;
    return true;
}

/* [.., n, ..] to [.., n, times, ..] without a copy, then to [.., n · times, ..] with one. */
static tarn_tensor *repeat(tarn_tensor *x, const resampling *r)
{
    tarn_shape wide = tarn__shape_of(x), result = wide;
    wide.rank++;
    for (int i = wide.rank - 1; i > r->axis + 1; i--)
        wide.size[i] = wide.size[i - 1];
    wide.size[r->axis + 1] = r->out / r->in;
    result.size[r->axis] = r->out;
    return tarn_reshape(tarn_expand(tarn_unsqueeze(x, r->axis + 1), wide), result);
}

static tarn_tensor *resample_nearest(tarn_tensor *x, const resampling *r)
{
    if (r->in == r->out)
        return x;
    if (is_repetition(r))
        return repeat(x, r);
    tarn_tensor *at =
        tarn_mul(tarn_arange(0, (double)r->out, 1, TARN_F32, tarn__device(x)), tarn_scalar((double)nearest_step(r)));
    return tarn_index_select(x, r->axis, tarn_cast(tarn_clamp(at, 0, (double)(r->in - 1)), TARN_I64));
}

/* ---- bilinear ---------------------------------------------------------------------------------------------------- */

static double linear_step(const resampling *r, bool align_corners)
{
    if (align_corners)
        return r->out > 1 ? (double)(r->in - 1) / (double)(r->out - 1) : 0;
    return r->scale > 0 ? 1 / r->scale : (double)r->in / (double)r->out;
}

/* x[i] · (1 - weight) + x[i + 1] · weight, with the fraction of the coordinate as weight; beyond the last element there
 * is only that. Their difference could overflow. */
static tarn_tensor *resample_linear(tarn_tensor *x, const resampling *r, bool align_corners)
{
    double step = linear_step(r, align_corners), last = (double)(r->in - 1);
    tarn_shape along = {.rank = x->view.rank, .size = {1, 1, 1, 1}};
    along.size[r->axis] = r->out;
    if (r->in == r->out) /* with a scale too that would move the coordinates: as torch on the CPU */
        return x;
    tarn_tensor *at = tarn_arange(0, (double)r->out, 1, TARN_F64, tarn__device(x));
    at = align_corners ? tarn_mul(at, tarn_scalar(step))
                       : tarn_sub(tarn_mul(tarn_add(at, tarn_scalar(0.5)), tarn_scalar(step)), tarn_scalar(0.5));
    at = tarn_clamp(at, 0, last);
    tarn_tensor *first = tarn_cast(at, TARN_I64), *whole = tarn_cast(first, TARN_F64);
    tarn_tensor *second = tarn_cast(tarn_clamp(tarn_add(whole, tarn_scalar(1)), 0, last), TARN_I64);
    tarn_tensor *weight = tarn_reshape(tarn_cast(tarn_sub(at, whole), x->view.dtype), along);
    tarn_tensor *a = tarn_index_select(x, r->axis, first), *b = tarn_index_select(x, r->axis, second);
    return tarn_add(tarn_mul(a, tarn_sub(tarn_scalar(1), weight)), tarn_mul(b, weight));
}

/* 16-bit images are blended in f32 and rounded once. */
static tarn_tensor *resample(tarn_tensor *x, const resampling *axes, const tarn_upsample_options *o)
{
    tarn_dtype dtype = x->view.dtype, wide = tarn__acc_dtype(dtype);
    bool is_linear = o->mode == TARN_UPSAMPLE_BILINEAR;
    if (is_linear && wide != dtype)
        x = tarn_cast(x, wide);
    for (int i = 0; x && i < 2; i++)
        x = is_linear ? resample_linear(x, &axes[i], o->align_corners) : resample_nearest(x, &axes[i]);
    return is_linear && wide != dtype ? tarn_cast(x, dtype) : x;
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

bool tarn__upsample_check(const char *function, const tarn_upsample_options *o)
{
    bool has_size = o->size[0] != 0 || o->size[1] != 0, has_scale = o->scale[0] != 0 || o->scale[1] != 0;
    if (has_size == has_scale)
        return tarn__raise(TARN_ERROR_ARGUMENT, "%s: %s; exactly one of .size and .scale is required", function,
                           has_size ? ".size and .scale are both given" : "neither .size nor .scale is given");
    if (has_size && !tarn__check_pair(function, ".size", o->size, 1))
        return false;
    for (int i = 0; has_scale && i < 2; i++)
        if (!(o->scale[i] > 0) || !isfinite(o->scale[i]))
            return tarn__raise(TARN_ERROR_ARGUMENT, "%s: .scale %g of the %s must be a finite number above 0", function,
                               o->scale[i], i == 0 ? "rows" : "columns");
    if (o->mode != TARN_UPSAMPLE_NEAREST && o->mode != TARN_UPSAMPLE_BILINEAR)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "%s: .mode is %d; must be TARN_UPSAMPLE_NEAREST or TARN_UPSAMPLE_BILINEAR", function,
                           (int)o->mode);
    return !o->align_corners || o->mode == TARN_UPSAMPLE_BILINEAR ||
           tarn__raise(TARN_ERROR_ARGUMENT, "%s: .align_corners applies to TARN_UPSAMPLE_BILINEAR only", function);
}

/* The size of the result, rounded down from the scale. False with an error. */
static bool plan_axis(const tarn_tensor *x, const tarn_upsample_options *o, int i, resampling *r)
{
    r->in = x->view.shape[2 + i];
    r->scale = o->scale[i];
    double size = o->scale[i] > 0 ? floor((double)r->in * o->scale[i]) : (double)o->size[i];
    if (size < 1 || size > (double)TARN__IMAGE_LIMIT)
        return tarn__raise(TARN_ERROR_SHAPE, FUNCTION ": x %s times .scale %g has %.0f %s; must be from 1 to %lld",
                           TARN__SHAPE_STRING(x), o->scale[i], size, i == 0 ? "rows" : "columns",
                           (long long)TARN__IMAGE_LIMIT);
    r->out = (int64_t)size;
    return true;
}

/* Channels-last images are resampled as [N, H, W, C], in which they are contiguous, and stay so. */
tarn_tensor *tarn_upsample_sized(tarn_tensor *x, const tarn_upsample_options *options, size_t options_size)
{
    tarn_upsample_options o = {.size = {0}};
    resampling axes[2];
    if (options)
        memcpy(&o, options, options_size < sizeof(o) ? options_size : sizeof(o));
    if (tarn_failed() || !tarn__check_image(FUNCTION, x, "x") || !tarn__upsample_check(FUNCTION, &o) ||
        !plan_axis(x, &o, 0, &axes[0]) || !plan_axis(x, &o, 1, &axes[1]))
        return NULL;
    bool is_last = tarn__channels_last(x);
    axes[0].axis = is_last ? 1 : 2;
    axes[1].axis = is_last ? 2 : 3;
    tarn_tensor *y = resample(is_last ? tarn_permute(x, TARN_AXES(0, 2, 3, 1)) : x, axes, &o);
    if (!y)
        tarn__raise_within(FUNCTION);
    return y && is_last ? tarn_permute(y, TARN_AXES(0, 3, 1, 2)) : y;
}

bool tarn__apply_upsample(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_upsample_options o = {
        .scale = {tarn__attribute_real(v, "scale_rows", 0), tarn__attribute_real(v, "scale_columns", 0)},
        .mode = (tarn_upsample_mode)tarn__attribute_int_clamped(v, "mode", 0),
        .align_corners = tarn__attribute_int(v, "align_corners", 0) != 0};
    return tarn__attribute_pair(v, "size", 0, o.size) && (out[0] = tarn_upsample(v->in[0], &o)) != NULL;
}
