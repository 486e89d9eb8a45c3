/* rope.c: rotary position embedding (RoPE). The gradient of a rotation is the rotation by the negative angle.
 *
 * Frequencies are computed here in f64 and passed to the kernels, so that all backends rotate by the same angles and
 * know no scaling but one factor of cos and sin. Scaling follows transformers' modeling_rope_utils. Only positions are
 * saved for backward. */
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
    o.beta_fast = o.beta_fast == 0 ? 32 : o.beta_fast;
    o.beta_slow = o.beta_slow == 0 ? 1 : o.beta_slow;
    return o;
}

/* The formula divides by ln(base), and takes logarithms of the numbers of rotations. */
static bool check_yarn(const tarn_rope_options *o)
{
    if (o->base == 1 || !(o->beta_fast > 0 && o->beta_slow > 0 && isfinite(o->beta_fast) && isfinite(o->beta_slow)))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "rope: yarn has base %g, beta_fast %g and beta_slow %g; expected positive finite numbers, "
                           "and a base other than 1",
                           o->base, o->beta_fast, o->beta_slow);
    return (isfinite(o->mscale) && isfinite(o->mscale_all_dim)) ||
           tarn__raise(TARN_ERROR_ARGUMENT, "rope: mscale %g and mscale_all_dim %g must be finite", o->mscale,
                       o->mscale_all_dim);
}

/* The options that do not depend on x. */
static bool check_numbers(const tarn_rope_options *o)
{
    if (!(o->base > 0 && isfinite(o->base)))
        return tarn__raise(TARN_ERROR_ARGUMENT, "rope: base %g is not positive and finite", o->base);
    if ((unsigned)o->scaling > TARN_ROPE_LONGROPE)
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
    if (o->scaling > TARN_ROPE_LLAMA3 && (o->original_context < 2 || o->length < 0))
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "rope: original_context is %lld and length %lld; expected at least 2, and at least 0",
                           (long long)o->original_context, (long long)o->length);
    if (o->scaling == TARN_ROPE_DYNAMIC && o->dims == 2)
        return tarn__raise(TARN_ERROR_ARGUMENT, "rope: dims is 2; dynamic scaling needs more");
    if (!(o->attention_factor >= 0 && isfinite(o->attention_factor)))
        return tarn__raise(TARN_ERROR_ARGUMENT, "rope: attention_factor is %g; expected a finite number of at least 0",
                           o->attention_factor);
    return o->scaling != TARN_ROPE_YARN || check_yarn(o);
}

/* Divisors of the frequencies: as many as there are pairs, positive. */
static bool check_pair_factors(const tarn_rope_options *o)
{
    const float *list[] = {o->pair_factors, o->long_pair_factors};
    bool needs_both = o->scaling == TARN_ROPE_LONGROPE;
    for (int i = 0; i < 2; i++) {
        if (!list[i] && needs_both)
            return tarn__raise(TARN_ERROR_ARGUMENT, "rope: longrope needs pair_factors and long_pair_factors");
        if (list[i] && !needs_both && i == 1)
            return tarn__raise(TARN_ERROR_ARGUMENT, "rope: long_pair_factors are longrope's; scaling is %d",
                               (int)o->scaling);
        if (list[i] && o->pair_factor_count != o->dims / 2)
            return tarn__raise(TARN_ERROR_ARGUMENT, "rope: pair_factor_count is %lld; dims %lld have %lld pairs",
                               (long long)o->pair_factor_count, (long long)o->dims, (long long)(o->dims / 2));
        for (int64_t k = 0; list[i] && k < o->dims / 2; k++)
            if (!(list[i][k] > 0 && isfinite(list[i][k])))
                return tarn__raise(TARN_ERROR_ARGUMENT, "rope: factor %g of pair %lld is not positive and finite",
                                   (double)list[i][k], (long long)k);
    }
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

/* Dynamic (NTK): the base grows with the length beyond the original context, so that low frequencies shrink most. */
static double dynamic_base(const tarn_rope_options *o)
{
    double context = (double)o->original_context, length = (double)o->length > context ? (double)o->length : context;
    return o->base * pow(o->factor * length / context - (o->factor - 1), (double)o->dims / (double)(o->dims - 2));
}

/* The pair, as a real number, that makes so many rotations within the original context. */
static double pair_of_rotations(double rotations, const tarn_rope_options *o)
{
    return (double)o->dims * log((double)o->original_context / (rotations * 2 * PI)) / (2 * log(o->base));
}

/* YaRN: pairs up to that of beta_fast rotations are left, those from beta_slow on divided by `factor`, with a linear
 * ramp over the pairs in between. */
static double yarn_frequency(double frequency, int64_t pair, const tarn_rope_options *o)
{
    double low = pair_of_rotations(o->beta_fast, o), high = pair_of_rotations(o->beta_slow, o);
    if (!o->untruncated)
        low = floor(low), high = ceil(high);
    low = low > 0 ? low : 0;
    high = high < (double)(o->dims - 1) ? high : (double)(o->dims - 1);
    high += high == low ? 0.001 : 0; /* as transformers, no division by 0 */
    double ramp = ((double)pair - low) / (high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return frequency / o->factor * ramp + frequency * (1 - ramp);
}

/* 0.1 * mscale * ln(factor) + 1: YaRN's correction of the attention's temperature. */
static double yarn_magnitude(double scale, const tarn_rope_options *o)
{
    return o->factor <= 1 ? 1 : 0.1 * scale * log(o->factor) + 1;
}

/* Factor of cos and sin, if the options give none. */
static double default_magnitude(const tarn_rope_options *o)
{
    if (o->scaling == TARN_ROPE_YARN)
        return o->mscale != 0 && o->mscale_all_dim != 0
                   ? yarn_magnitude(o->mscale, o) / yarn_magnitude(o->mscale_all_dim, o)
                   : yarn_magnitude(1, o);
    if (o->scaling == TARN_ROPE_LONGROPE && o->factor > 1)
        return sqrt(1 + log(o->factor) / log((double)o->original_context));
    return 1;
}

/* An attention_factor in the options overrides the formula. */
double tarn__rope_magnitude(const tarn_rope_options *o)
{
    return o->attention_factor != 0 ? o->attention_factor : default_magnitude(o);
}

/* Divisors of the frequencies, or NULL. */
static const float *pair_factors_of(const tarn_rope_options *o)
{
    return o->scaling == TARN_ROPE_LONGROPE && o->length > o->original_context ? o->long_pair_factors : o->pair_factors;
}

/* frequency is in radians per position. */
static double scaled(double frequency, int64_t pair, const tarn_rope_options *o)
{
    switch (o->scaling) {
    case TARN_ROPE_LINEAR: return frequency / o->factor;
    case TARN_ROPE_LLAMA3: return llama3_frequency(frequency, o);
    case TARN_ROPE_YARN: return yarn_frequency(frequency, pair, o);
    default: return frequency; /* dynamic: by its base; longrope: by its pair factors */
    }
}

/* frequency[i] = base^(-2i / dims), scaled; computed in f64 on the host, so that all backends agree. */
static tarn__rope params_of(const tarn_rope_options *o)
{
    tarn__rope params = {.axis = o->axis, .interleaved = o->interleaved, .dims = o->dims};
    params.magnitude = tarn__rope_magnitude(o);
    const double base = o->scaling == TARN_ROPE_DYNAMIC ? dynamic_base(o) : o->base;
    const float *divisor = pair_factors_of(o);
    for (int64_t i = 0; i < o->dims / 2; i++) {
        double frequency = scaled(pow(base, -2 * (double)i / (double)o->dims), i, o);
        params.frequency[i] = divisor ? frequency / (double)divisor[i] : frequency;
    }
    return params;
}

/* For kernels that rotate by themselves (decode.c); the options are the caller's and were checked. */
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
    if (!check_shapes(x, positions, &o) || !check_numbers(&o) || !check_pair_factors(&o))
        return NULL;
    /* Dynamic and longrope scale by the length of the text: as given, or that of x. */
    o.length = o.length == 0 ? x->view.shape[o.axis] : o.length;
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
                           .original_context = tarn__attribute_int(v, "original_context", 0),
                           .attention_factor = tarn__attribute_real(v, "attention_factor", 0),
                           .mscale = tarn__attribute_real(v, "mscale", 0),
                           .mscale_all_dim = tarn__attribute_real(v, "mscale_all_dim", 0),
                           .beta_fast = tarn__attribute_real(v, "beta_fast", 0),
                           .beta_slow = tarn__attribute_real(v, "beta_slow", 0),
                           .untruncated = tarn__attribute_int(v, "untruncated", 0) != 0,
                           .length = tarn__attribute_int(v, "length", 0)};
    return (out[0] = tarn_rope(v->in[0], v->in[1], &o)) != NULL;
}
