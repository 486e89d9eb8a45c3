/* rope.c: rotary position embedding (RoPE). The gradient of a rotation is the rotation by the negative angle.
 *
 * Frequencies are computed here in f64 and passed to the kernels, so that all backends rotate by the same angles.
 * Scaling follows transformers: linear divides all frequencies, llama3 interpolates by wavelength. Only positions
 * are saved for backward. */
#include <math.h>
#include <string.h>

#include "ops/internal.h"

#define PI 3.14159265358979323846

/* Options with defaults for zeros. */
static tarn_rope_options with_defaults(const tarn_rope_options *options, size_t size, int64_t head_dim)
{
    tarn_rope_options o = {0};
    if (options)
        memcpy(&o, options, size < sizeof(o) ? size : sizeof(o));
    o.axis = o.axis == 0 ? 1 : o.axis;
    o.base = o.base == 0 ? 10000 : o.base;
    o.dims = o.dims == 0 ? head_dim : o.dims;
    o.factor = o.factor == 0 ? 8 : o.factor;
    o.low_freq_factor = o.low_freq_factor == 0 ? 1 : o.low_freq_factor;
    o.high_freq_factor = o.high_freq_factor == 0 ? 4 : o.high_freq_factor;
    o.original_context = o.original_context == 0 ? 8192 : o.original_context;
    return o;
}

/* The options that do not depend on x. */
static bool check_numbers(const tarn_rope_options *o)
{
    if (!(o->base > 0 && isfinite(o->base)))
        return tarn__raise(TARN_ERROR_ARGUMENT, "rope: base %g is not positive and finite", o->base);
    if ((unsigned)o->scaling > TARN_ROPE_LLAMA3)
        return tarn__raise(TARN_ERROR_ARGUMENT, "rope: unknown scaling %d", (int)o->scaling);
    if (o->scaling != TARN_ROPE_DEFAULT && !(o->factor > 0 && isfinite(o->factor)))
        return tarn__raise(TARN_ERROR_ARGUMENT, "rope: factor %g is not positive and finite", o->factor);
    if (o->scaling == TARN_ROPE_LLAMA3 && !(o->low_freq_factor > 0 && o->high_freq_factor > o->low_freq_factor &&
                                            isfinite(o->high_freq_factor) && o->original_context > 0))
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "rope: low_freq_factor %g, high_freq_factor %g and original_context %lld must be positive, and "
            "low_freq_factor below high_freq_factor",
            o->low_freq_factor, o->high_freq_factor, (long long)o->original_context);
    return true;
}

/* x [B, T, H, D], or [B, H, T, D] with axis 2; positions [T] or [B, T]. */
static bool check_shapes(const tarn_tensor *x, const tarn_tensor *positions, const tarn_rope_options *o)
{
    const tarn__view *view = &x->view;
    if (view->rank != 4)
        return tarn__raise(TARN_ERROR_SHAPE, "rope: x %s must have rank 4: [B, T, H, D], or [B, H, T, D] with axis 2",
                           TARN__SHAPE_STRING(x));
    if (o->axis != 1 && o->axis != 2)
        return tarn__raise(TARN_ERROR_ARGUMENT, "rope: axis is %d; expected 1 or 2", o->axis);
    if (o->dims < 2 || o->dims % 2 != 0 || o->dims > view->shape[3] || o->dims > 2 * TARN__ROPE_PAIRS)
        return tarn__raise(
            TARN_ERROR_ARGUMENT,
            "rope: dims is %lld; expected an even number from 2 to %d and at most the head_dim of x %s, %lld",
            (long long)o->dims, 2 * TARN__ROPE_PAIRS, TARN__SHAPE_STRING(x), (long long)view->shape[3]);
    const tarn__view *p = positions ? &positions->view : NULL;
    int64_t length = view->shape[o->axis];
    bool fits =
        !p || (!positions->is_constant && ((p->rank == 1 && p->shape[0] == length) ||
                                           (p->rank == 2 && p->shape[0] == view->shape[0] && p->shape[1] == length)));
    return fits || tarn__raise(TARN_ERROR_SHAPE, "rope: positions %s do not fit x %s: they are [%lld] or [%lld, %lld]",
                               TARN__SHAPE_STRING(positions), TARN__SHAPE_STRING(x), (long long)length,
                               (long long)view->shape[0], (long long)length);
}

/* Llama 3: long wavelengths are divided by `factor`, short ones are not, with linear interpolation in between. */
static double llama3_frequency(double frequency, const tarn_rope_options *o)
{
    double rotations = (double)o->original_context * frequency / (2 * PI); /* rotations within the original context */
    if (rotations > o->high_freq_factor)
        return frequency;
    if (rotations < o->low_freq_factor)
        return frequency / o->factor;
    double weight = (rotations - o->low_freq_factor) / (o->high_freq_factor - o->low_freq_factor);
    return (1 - weight) * frequency / o->factor + weight * frequency;
}

/* frequency[i] = base^(-2i / dims), scaled; computed in f64 on the host, so that all backends agree. */
static tarn__rope params_of(const tarn_rope_options *o)
{
    tarn__rope params = {.axis = o->axis, .interleaved = o->interleaved, .dims = o->dims};
    for (int64_t i = 0; i < o->dims / 2; i++) {
        double frequency = pow(o->base, -2 * (double)i / (double)o->dims);
        params.frequency[i] = o->scaling == TARN_ROPE_LINEAR   ? frequency / o->factor
                              : o->scaling == TARN_ROPE_LLAMA3 ? llama3_frequency(frequency, o)
                                                               : frequency;
    }
    return params;
}

tarn__rope tarn__rope_params(const tarn_rope_options *options, int64_t head_dim)
{
    tarn_rope_options o = with_defaults(options, sizeof(o), head_dim);
    return params_of(&o);
}

/* One kernel: x read once, y written once. */
static tarn_tensor *rotate(tarn_tensor *x, tarn_tensor *positions, const tarn__rope *params, tarn_dtype dtype)
{
    tarn_tensor *y = tarn__result_like("rope", (tarn_tensor *[]){x}, 1, tarn__shape_of(x), dtype, tarn__device(x));
    return y && tarn__kernel_call(TARN__K_rope, "rope", *params, TARN__IN(x, positions), TARN__OUT(y)) ? y : NULL;
}

static bool rope_backward(const tarn__backward *b)
{
    tarn__rope params = *(const tarn__rope *)b->params;
    params.inverse = 1;
    return tarn__accumulate_grad(b, 0, rotate(b->grads[0], b->saved[0], &params, tarn__grad_dtype(b, 0)));
}

/* Rotates pairs of the first `dims` elements of each head by position · frequency; the others are copied. */
tarn_tensor *tarn_rope_sized(tarn_tensor *x, tarn_tensor *positions, const tarn_rope_options *options,
                             size_t options_size)
{
    tarn_tensor *pair[] = {x, positions};
    if (!tarn__check("rope", x, "x") || !tarn__check_dtype("rope", x, TARN__FLOATS, "x") ||
        (positions && !tarn__check_dtype("rope", positions, TARN__INDEXES, "positions")) ||
        !tarn__unify_devices("rope", pair, 2))
        return NULL;
    x = pair[0], positions = pair[1];
    tarn_rope_options o = with_defaults(options, options_size, x->view.rank == 4 ? x->view.shape[3] : 0);
    if (!check_shapes(x, positions, &o) || !check_numbers(&o))
        return NULL;
    tarn__rope params = params_of(&o);
    tarn_tensor *y = rotate(x, positions, &params, x->view.dtype);
    return y && tarn__finish("rope", rope_backward, params, TARN__INPUTS(x), TARN__OUTPUTS(y), TARN__SAVED(positions))
               ? y
               : NULL;
}

bool tarn__apply_rope(const tarn__invocation *v, tarn_tensor **out)
{
    tarn_rope_options o = {.axis = tarn__attribute_int_clamped(v, "axis", 0),
                           .base = tarn__attribute_real(v, "base", 0),
                           .dims = tarn__attribute_int(v, "dims", 0),
                           .interleaved = tarn__attribute_int(v, "interleaved", 0) != 0,
                           .scaling = (tarn_rope_scaling)tarn__attribute_int_clamped(v, "scaling", 0),
                           .factor = tarn__attribute_real(v, "factor", 0),
                           .low_freq_factor = tarn__attribute_real(v, "low_freq_factor", 0),
                           .high_freq_factor = tarn__attribute_real(v, "high_freq_factor", 0),
                           .original_context = tarn__attribute_int(v, "original_context", 0)};
    return (out[0] = tarn_rope(v->in[0], v->in[1], &o)) != NULL;
}
