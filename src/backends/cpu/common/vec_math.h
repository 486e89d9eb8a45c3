/* vec_math.h: elementary functions on packs, for f32 results of most numbers: each says where it holds, and its caller
 * mends what lies outside (vec_kernels.inc). They need fewer instructions than the forms of vmath.h, which hold
 * everywhere, and err by less than 4 units in the last place, the product of a slope and a gradient included.
 *
 * Slopes of GELU and SiLU have a root on the negative side, where their terms cancel. They are written as a product
 * with (|x| - root), which is exact beside the root because the root stands there in two parts; on the positive side
 * both are 1 minus the slope of -x. */
#ifndef TARN__PACK_MATH_H
#define TARN__PACK_MATH_H

#include "backends/cpu/common/pack_exps.h"

#if TARN__VEC_LANES

/* ---- hyperbolic tangent and sigmoid ------------------------------------------------------------------------------ */

/* Every x: t / (t + 2) with t = e^2|x| - 1, in which nothing cancels. */
VEC_INLINE vec vec_tanh(vec x)
{
    vec twice = vec_min(vec_set(19.0f), vec_abs(x + x));
    vec rounded = vec_fma(twice, vec_set(0x1.715476p+0f), vec_set(TARN__ROUND_F32)),
        k = rounded - vec_set(TARN__ROUND_F32);
    vec r = vec_fma(k, vec_set(-TARN__LN2_LOW_F32), vec_fma(k, vec_set(-TARN__LN2_HIGH_F32), twice));
    vec s = vec_exp2_int(rounded), t = vec_fma(s, vec_expm1_reduced(r), s - vec_set(1.0f));
    return vec_copysign(t / (t + vec_set(2.0f)), x);
}

/* 1 + e^-x for x >= -87. */
VEC_INLINE vec vec_one_plus_exp_neg(vec x)
{
    return vec_set(1.0f) + vec_exp(-vec_min(vec_set(87.0f), x));
}

VEC_INLINE vec vec_sigmoid(vec x)
{
    return vec_set(1.0f) / vec_one_plus_exp_neg(x);
}

VEC_INLINE vec vec_silu(vec x)
{
    return x / vec_one_plus_exp_neg(x);
}

/* The slope of the sigmoid, e / (1 + e)² with e = e^-|x|, for |x| <= 80. */
VEC_INLINE vec vec_sigmoid_grad(vec x)
{
    vec e = vec_exp(-vec_abs(x));
    return e / vec_fma(e, e + vec_set(2.0f), vec_set(1.0f));
}

/* e / (1 + e)² (1 + e - u) with u = |x| and e = e^-u, for |x| <= 80. The last factor has a root: beside it, it is
 * -d + d P(d) with d = u - root. What factors, square and quotient lose by rounding is carried along: products with it
 * (swiglu) round twice more, and stay within 4 ulp. */
VEC_INLINE vec vec_silu_grad(vec x)
{
    vec u = vec_abs(x), lost, e = vec_exp_to_df(-u, &lost), d = u - vec_set(0x1.474974p+0f);
    vec p = VEC_HORNER(vec_set(0x1.a425e4p-12f), d, -0x1.344ccap-9f);
    p = VEC_HORNER(p, d, 0x1.7c2b5ap-7f);
    p = VEC_HORNER(p, d, -0x1.7c2eb6p-5f);
    p = VEC_HORNER(p, d, 0x1.1d25dp-3f);
    p = VEC_HORNER(p, d, -0x1.1d25dp-2f);
    vec bent = vec_fma(d, p, vec_set(-0x1.1d1338p-26f)), beside = bent - d, beside_lost = bent - (beside + d);
    vec away = (vec_set(1.0f) - u) + e, away_lost = e - (away - (vec_set(1.0f) - u));
    vec_mask is_beside = vec_lt(vec_abs(d), vec_set(0.25f));
    vec last = vec_select(is_beside, beside, away), last_lost = vec_select(is_beside, beside_lost, away_lost);
    vec product = e * last, product_lost = vec_fma(e, last, -product) + vec_fma(lost, last, e * last_lost);
    vec more = e + vec_set(2.0f), square = vec_fma(e, more, vec_set(1.0f));
    vec square_lost = vec_fma(e, more, vec_set(1.0f) - square) + e * (e - (more - vec_set(2.0f)));
    vec rounded = product / square;
    vec rest = vec_fma(-rounded, square, product) + vec_fma(-rounded, square_lost, product_lost);
    vec slope = rounded + rest / square;
    return vec_select(vec_lt(x, vec_set(0.0f)), slope, vec_set(1.0f) - slope);
}

/* ---- GELU ----
 *
 * With u = |x|, the smaller of Φ(x) and 1 - Φ(x) is e^(-u²/2) erfcx(u / sqrt 2) / 2, and the slope at -u is e^(-u²/2)
 * (u - root) Q(u). (u + 1) erfcx and Q vary slowly, so that the first term of a polynomial in t = (u - a) / (u + a)
 * dominates, and its rounding is nearly the only one. For x >= PACK_GELU_LEAST; the slope up to 12. */

#define VEC_GELU_MIN -6.0f

VEC_INLINE vec vec_gelu_erf(vec x)
{
    vec u = vec_min(vec_set(-VEC_GELU_MIN), vec_abs(x)), one_more = u + vec_set(1.0f), share = u / one_more;
    vec lost = u - (one_more - vec_set(1.0f)), t = vec_fma(share, vec_set(2.0f), vec_set(-1.0f));
    vec p = VEC_HORNER(vec_set(-0x1.71b6b8p-13f), t, -0x1.b9e9ep-11f);
    p = VEC_HORNER(p, t, -0x1.967c42p-10f);
    p = VEC_HORNER(p, t, -0x1.1d0aaep-10f);
    p = VEC_HORNER(p, t, 0x1.1ba718p-10f);
    p = VEC_HORNER(p, t, 0x1.32270ep-8f);
    p = VEC_HORNER(p, t, 0x1.1a65e2p-7f);
    p = VEC_HORNER(p, t, 0x1.25c2dap-7f);
    p = VEC_HORNER(p, t, -0x1.734f2ep-9f);
    p = VEC_HORNER(p, t, -0x1.26f9dp-5f);
    p = VEC_HORNER(p, t, -0x1.432a8ap-4f);
    p = VEC_HORNER(p, t, -0x1.aee3b6p-6f);
    p = VEC_HORNER(p, t, 0x1.0bdb2ep-1f);
    /* less what u + 1 lost */
    vec rounded, rest = vec_gauss(u, vec_fma(lost, share, -lost), &rounded), half = p * share;
    /* -0, so that what vanishes below 0 is -0 */
    return vec_max(vec_set(-0.0f), x) - vec_ldexp(vec_fma(half, rest, half), rounded);
}

VEC_INLINE vec vec_gelu_erf_grad(vec x)
{
    vec u = vec_abs(x), t = vec_fma(u / (u + vec_set(3.0f)), vec_set(2.0f), vec_set(-1.0f));
    vec p = VEC_HORNER(vec_set(0x1.12efccp-15f), t, 0x1.54fa1ep-13f);
    p = VEC_HORNER(p, t, 0x1.aa844ap-14f);
    p = VEC_HORNER(p, t, -0x1.20cba4p-10f);
    p = VEC_HORNER(p, t, -0x1.b33c48p-13f);
    p = VEC_HORNER(p, t, 0x1.cd3602p-7f);
    p = VEC_HORNER(p, t, -0x1.b70ea4p-5f);
    p = VEC_HORNER(p, t, 0x1.eb6b5ap-4f);
    p = VEC_HORNER(p, t, -0x1.e9c6dep-2f);
    vec d = u - vec_set(0x1.80ead2p-1f), q = vec_fma(d, p, vec_set(-0x1.dc87p-28f));
    vec lost = vec_fma(d, p, vec_set(-0x1.dc87p-28f) - q), rounded, rest = vec_gauss(u, vec_set(0.0f), &rounded);
    vec slope = vec_ldexp(q + vec_fma(q, rest, lost), rounded);
    return vec_select(vec_lt(x, vec_set(0.0f)), slope, vec_set(1.0f) - slope);
}

/* ---- GELU in its tanh form ----
 *
 * x / (1 + e^-v) with v = x (A + B x²), in two parts each: what v loses by rounding would be seen in the exponential. A
 * has so few bits that A - w is exact. For x >= -PACK_TANH_GELU_MOST; the slope for no larger |x| either, and not
 * beside its root.
 *
 * The slope at -u is q / (1 + q)² (1 + q - m) with q = e^-v(u) and m = u v'(u) = u (A + 3 B u²), and at u 1 minus that.
 */

#define VEC_TANH_GELU_MAX 9.875f
#define VEC_TANH_GELU_ROOT 0x1.8142ap-1f

/* x (A + b x²), where b is given in two parts, and what it loses. */
VEC_INLINE vec vec_cubic(vec x, float high, float low, vec *lost)
{
    vec s = x * x, s_lost = vec_fma(x, x, -s), w = vec_fma(s, vec_set(high), vec_set(0x1.98845p+0f));
    vec more = vec_fma(s_lost, vec_set(high), vec_fma(s, vec_set(low), vec_set(0x1.9ea1b2p-23f)));
    vec w_lost = vec_fma(s, vec_set(high), vec_set(0x1.98845p+0f) - w) + more, v = x * w;
    *lost = vec_fma(x, w_lost, vec_fma(x, w, -v));
    return v;
}

VEC_INLINE vec vec_gelu(vec x)
{
    vec v_lost, lost, v = vec_cubic(vec_min(vec_set(VEC_TANH_GELU_MAX), x), 0x1.2444f2p-4f, 0x1.49b16ap-29f, &v_lost);
    return x / (vec_set(1.0f) + vec_exp_df(-v, -v_lost, &lost));
}

VEC_INLINE vec vec_gelu_grad(vec x)
{
    vec u = vec_abs(x), v_lost, m_lost, q_lost;
    vec v = vec_cubic(u, 0x1.2444f2p-4f, 0x1.49b16ap-29f, &v_lost),
        m = vec_cubic(u, 0x1.b6676cp-3f, -0x1.175e1ep-32f, &m_lost);
    vec q = vec_exp_df(-v, -v_lost, &q_lost), one = vec_set(1.0f), part = one - m, back = part - one;
    vec part_lost = (one - (part - back)) - (m + back), last = part + q, again = last - part;
    vec last_lost = (part - (last - again)) + (q - again) + ((part_lost - m_lost) + q_lost);
    vec slope = vec_fma(q, last, vec_fma(q_lost, last, q * last_lost)) / vec_fma(q, q + vec_set(2.0f), one);
    return vec_select(vec_lt(x, vec_set(0.0f)), slope, one - slope);
}

/* ---- logarithm --------------------------------------------------------------------------------------------------- */

/* For normal x > 0: tarn__log_f32() without its edges. */
VEC_INLINE vec vec_log(vec x)
{
    vec from = vec_bits_sub(x, vec_bits_set(0x3f3504f3u)), e = vec_exponent(from);
    vec f = vec_bits_sub(x, vec_bits_and(from, vec_bits_set(0xff800000u))) - vec_set(1.0f);
    vec p = VEC_HORNER(vec_set(-0x1.3ec9cp-4f), f, 0x1.0a16ccp-3f);
    p = VEC_HORNER(p, f, -0x1.0ec458p-3f);
    p = VEC_HORNER(p, f, 0x1.2220bcp-3f);
    p = VEC_HORNER(p, f, -0x1.542b08p-3f);
    p = VEC_HORNER(p, f, 0x1.99a83ep-3f);
    p = VEC_HORNER(p, f, -0x1.00042ap-2f);
    p = VEC_HORNER(p, f, 0x1.555548p-2f);
    p = VEC_HORNER(p, f, -0x1.fffff8p-2f);
    vec low = vec_fma(f * f, p, e * vec_set(TARN__LN2_LOW_F32));
    return vec_fma(e, vec_set(TARN__LN2_HIGH_F32), f + low);
}

/* ---- sine and cosine ----
 *
 * As in vmath.h, with f32 alone for |x| <= PACK_TRIG_MOST: n pi's first part has so few bits that x - n pi begins with
 * an exact difference. */

#define VEC_TRIG_MAX 2048.0f

VEC_INLINE vec vec_sin_reduced(vec x, vec n, vec rounded)
{
    vec r = vec_fma(n, vec_set(-0x1.92p+1f), x);
    r = vec_fma(n, vec_set(-0x1.fb5444p-11f), r);
    r = vec_fma(n, vec_set(-0x1.68c234p-38f), r);
    vec z = r * r;
    vec p = VEC_HORNER(vec_set(-0x1.9d91c8p-26f), z, 0x1.71955ep-19f);
    p = VEC_HORNER(p, z, -0x1.a018fep-13f);
    p = VEC_HORNER(p, z, 0x1.11111p-7f);
    p = VEC_HORNER(p, z, -0x1.555556p-3f);
    return vec_negate_odd(r * vec_fma(z, p, vec_set(1.0f)), rounded);
}

VEC_INLINE vec vec_sin(vec x)
{
    vec rounded = vec_fma(x, vec_set(0x1.45f306p-2f), vec_set(TARN__ROUND_F32));
    return vec_sin_reduced(x, rounded - vec_set(TARN__ROUND_F32), rounded);
}

VEC_INLINE vec vec_cos(vec x)
{
    vec rounded = vec_fma(x, vec_set(0x1.45f306p-2f), vec_set(0.5f)) + vec_set(TARN__ROUND_F32);
    return vec_sin_reduced(x, (rounded - vec_set(TARN__ROUND_F32)) - vec_set(0.5f), rounded);
}

#endif

#endif
