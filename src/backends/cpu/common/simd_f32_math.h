/* simd_f32_math.h: exp, log, sin, cos, tanh, sigmoid, SiLU, GELU and gradients on the `vec` of simd_f32.h. Each states
 * the range it is valid for; callers recompute lanes outside it (simd_kernels.inc). They need fewer instructions than
 * the forms of scalar_math.h, which are valid everywhere, and are accurate to 4 ulp, including a gradient's product
 * with g.
 *
 * Gradients of GELU and SiLU have a root on the negative side, where their terms cancel. They are written as a
 * product with (|x| - root), exact near the root because the root is stored in two parts; on the positive side both
 * are 1 minus the gradient at -x. Names ending in _df take or return double-floats: a value and its rounding error. */
#ifndef TARN__CPU_SIMD_F32_MATH_H
#define TARN__CPU_SIMD_F32_MATH_H

#include "backends/cpu/common/scalar_math.h"
#include "backends/cpu/common/simd_f32.h"

#if TARN__VEC_LANES

/* ---- exponentials ------------------------------------------------------------------------------------------------ */

/* One Horner step: p x + c. */
#define VEC_HORNER(p, x, c) vec_fma(p, x, vec_set(c))

/* x 2^k for normal x and result: adds k to the exponent bits. */
VEC_INLINE vec vec_ldexp(vec x, vec rounded)
{
    return vec_bits_add_shifted(x, rounded, 23);
}

/* 2^k for the integer k of k + TARN__ROUND_F32. */
VEC_INLINE vec vec_exp2_int(vec rounded)
{
    return vec_ldexp(vec_set(1.0f), rounded);
}

#if TARN__VEC_LANES == 4

/* x = k ln2 + r with integer k. A lookup in a table of 16 costs as much as three polynomial steps here, so there is
 * no table. */

/* e^r - 1 for |r| < 0.35. */
VEC_INLINE vec vec_expm1_reduced(vec r)
{
    vec p = VEC_HORNER(vec_set(0x1.6db5bcp-10f), r, 0x1.123c78p-7f);
    p = VEC_HORNER(p, r, 0x1.55545cp-5f);
    p = VEC_HORNER(p, r, 0x1.55548ep-3f);
    p = VEC_HORNER(p, r, 0x1p-1f);
    return vec_fma(r * r, p, r);
}

/* e^(x + x_low) for |x| <= 87 and a tiny x_low; y_low is the rounding error of the result. */
VEC_INLINE vec vec_exp_df(vec x, vec x_low, vec *y_low)
{
    vec rounded = vec_fma(x, vec_set(0x1.715476p+0f), vec_set(TARN__ROUND_F32)), k = rounded - vec_set(TARN__ROUND_F32);
    vec r = vec_fma(k, vec_set(-TARN__LN2_HIGH_F32), x), scaled = vec_exp2_int(rounded);
    vec tail = vec_expm1_reduced(vec_fma(k, vec_set(-TARN__LN2_LOW_F32), r + x_low)), y = vec_fma(scaled, tail, scaled);
    *y_low = vec_fma(scaled, tail, scaled - y);
    return y;
}

/* |x| <= 87. */
VEC_INLINE vec vec_exp(vec x)
{
    vec rounded = vec_fma(x, vec_set(0x1.715476p+0f), vec_set(TARN__ROUND_F32)), k = rounded - vec_set(TARN__ROUND_F32);
    vec r = vec_fma(k, vec_set(-TARN__LN2_LOW_F32), vec_fma(k, vec_set(-TARN__LN2_HIGH_F32), x)),
        scaled = vec_exp2_int(rounded);
    return vec_fma(scaled, vec_expm1_reduced(r), scaled);
}

VEC_INLINE vec vec_exp_to_df(vec x, vec *y_low)
{
    return vec_exp_df(x, vec_set(0.0f), y_low);
}

/* 2^(x + x_low) for |x| <= 125 and a small x_low. x - k is exact. */
VEC_INLINE vec vec_exp2_from_df(vec x, vec x_low)
{
    vec rounded = x + vec_set(TARN__ROUND_F32), r = (x - (rounded - vec_set(TARN__ROUND_F32))) + x_low,
        scaled = vec_exp2_int(rounded);
    vec p = VEC_HORNER(vec_set(0x1.447886p-13f), r, 0x1.5f0678p-10f);
    p = VEC_HORNER(p, r, 0x1.3b29d2p-7f);
    p = VEC_HORNER(p, r, 0x1.c6af84p-5f);
    p = VEC_HORNER(p, r, 0x1.ebfbep-3f);
    p = VEC_HORNER(p, r, 0x1.62e43p-1f);
    return vec_fma(scaled, r * p, scaled);
}

VEC_INLINE vec vec_exp2(vec x)
{
    return vec_exp2_from_df(x, vec_set(0.0f));
}

#else

/* x = n ln2 + r with n a multiple of 1/16: 2^n is a table entry with its exponent shifted, e^r - 1 a short
 * polynomial. Table bits have the fraction of n subtracted, since shifting n into the exponent adds it back. */

/* Adding it rounds to a multiple of 1/16 and leaves the sixteenths in the low bits. */
#define VEC_ROUND_16TH 0x1.8p19f

_Alignas(64) static const uint32_t vec_exp2_table[16] = {
    0x3f800000u, 0x3f7daac3u, 0x3f7b95c2u, 0x3f79c3d3u, 0x3f7837f0u, 0x3f76f532u, 0x3f75fed7u, 0x3f75583fu,
    0x3f7504f3u, 0x3f7508a4u, 0x3f75672au, 0x3f76248cu, 0x3f7744fdu, 0x3f78ccdfu, 0x3f7ac0c7u, 0x3f7d257du,
};
/* Rounding errors of the table entries, relative to each. */
_Alignas(64) static const float vec_exp2_table_low[16] = {
    0x0p+0f,          0x1.8d96d4p-25f,  -0x1.9c0c22p-27f, 0x1.964904p-25f,  0x1.125002p-25f, 0x1.370be4p-25f,
    -0x1.0a355p-25f,  -0x1.00d8acp-27f, 0x1.26055cp-26f,  -0x1.05cb44p-25f, 0x1.67a1cap-28f, 0x1.a3b5e4p-28f,
    -0x1.f9c304p-27f, -0x1.6961b4p-28f, -0x1.a5217cp-28f, 0x1.61428ep-28f,
};

/* 2^n for the multiple n of 1/16 in `rounded`: a table entry with n's integer part added to its exponent. */
VEC_INLINE vec vec_exp2_16th(vec rounded)
{
    return vec_bits_add_shifted(vec_lookup((const float *)(const void *)vec_exp2_table, rounded), rounded, 19);
}

/* e^(x + x_low) for |x| <= 87 and a tiny x_low; y_low is the rounding error of the result. */
VEC_INLINE vec vec_exp_df(vec x, vec x_low, vec *y_low)
{
    vec rounded = vec_fma(x, vec_set(0x1.715476p+0f), vec_set(VEC_ROUND_16TH)), n = rounded - vec_set(VEC_ROUND_16TH);
    vec r = vec_fma(n, vec_set(0x1.05c61p-29f), vec_fma(n, vec_set(-0x1.62e43p-1f), x)) + x_low;
    vec p = VEC_HORNER(vec_set(0x1.5555aep-3f), r, 0x1.00014ep-1f);
    vec scaled = vec_exp2_16th(rounded), tail = vec_fma(r * r, p, r + vec_lookup(vec_exp2_table_low, rounded));
    vec y = vec_fma(scaled, tail, scaled);
    *y_low = vec_fma(scaled, tail, scaled - y);
    return y;
}

VEC_INLINE vec vec_exp_to_df(vec x, vec *y_low)
{
    return vec_exp_df(x, vec_set(0.0f), y_low);
}

VEC_INLINE vec vec_exp(vec x)
{
    vec y_low;
    return vec_exp_to_df(x, &y_low);
}

/* |x| <= 125. r = x - n is exact. */
VEC_INLINE vec vec_exp2(vec x)
{
    vec rounded = x + vec_set(VEC_ROUND_16TH), r = x - (rounded - vec_set(VEC_ROUND_16TH)),
        scaled = vec_exp2_16th(rounded);
    vec p = VEC_HORNER(VEC_HORNER(vec_set(0x1.c6b08ep-5f), r, 0x1.ebff92p-3f), r, 0x1.62e43p-1f);
    return vec_fma(scaled, r * p, scaled);
}

/* e^r - 1 for |r| < 0.35, as tarn__expm1_reduced_f32(). */
VEC_INLINE vec vec_expm1_reduced(vec r)
{
    vec p = VEC_HORNER(vec_set(0x1.a29c9ap-13f), r, 0x1.6d43c4p-10f);
    p = VEC_HORNER(p, r, 0x1.110fdcp-7f);
    p = VEC_HORNER(p, r, 0x1.5554fp-5f);
    p = VEC_HORNER(p, r, 0x1.555556p-3f);
    p = VEC_HORNER(p, r, 0x1p-1f);
    return vec_fma(r * r, p, r);
}

#endif

/* e^(x_low - u²/2) = 2^k (1 + result) for u <= 13, with k the integer of `rounded`; includes the rounding error of
 * the square. x_low is tiny. */
VEC_INLINE vec vec_gauss(vec u, vec x_low, vec *rounded)
{
    vec half = u * vec_set(-0.5f), square = half * u, low = vec_fma(half, u, -square);
    *rounded = vec_fma(square, vec_set(0x1.715476p+0f), vec_set(TARN__ROUND_F32));
    vec k = *rounded - vec_set(TARN__ROUND_F32);
    return vec_expm1_reduced(
        vec_fma(k, vec_set(-TARN__LN2_LOW_F32), vec_fma(k, vec_set(-TARN__LN2_HIGH_F32), square) + (low + x_low)));
}

/* ---- tanh and sigmoid -------------------------------------------------------------------------------------------- */

/* Every x: t / (t + 2) with t = e^2|x| - 1, without cancellation. */
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

/* Gradient of sigmoid, e / (1 + e)² with e = e^-|x|, for |x| <= 80. */
VEC_INLINE vec vec_sigmoid_grad(vec x)
{
    vec e = vec_exp(-vec_abs(x));
    return e / vec_fma(e, e + vec_set(2.0f), vec_set(1.0f));
}

/* e / (1 + e)² (1 + e - u) with u = |x| and e = e^-u, for |x| <= 80. The last factor has a root; near it, it is -d +
 * d P(d) with d = u - root. Rounding errors of factors, square and quotient are carried along: products with the
 * result (gated) round twice more and stay within 4 ulp. */
VEC_INLINE vec vec_silu_grad(vec x)
{
    vec u = vec_abs(x), err, e = vec_exp_to_df(-u, &err), d = u - vec_set(0x1.474974p+0f);
    vec p = VEC_HORNER(vec_set(0x1.a425e4p-12f), d, -0x1.344ccap-9f);
    p = VEC_HORNER(p, d, 0x1.7c2b5ap-7f);
    p = VEC_HORNER(p, d, -0x1.7c2eb6p-5f);
    p = VEC_HORNER(p, d, 0x1.1d25dp-3f);
    p = VEC_HORNER(p, d, -0x1.1d25dp-2f);
    vec curved = vec_fma(d, p, vec_set(-0x1.1d1338p-26f)), near_root = curved - d,
        near_root_low = curved - (near_root + d);
    vec direct = (vec_set(1.0f) - u) + e, direct_low = e - (direct - (vec_set(1.0f) - u));
    vec_mask is_near_root = vec_lt(vec_abs(d), vec_set(0.25f));
    vec factor = vec_select(is_near_root, near_root, direct),
        factor_low = vec_select(is_near_root, near_root_low, direct_low);
    vec product = e * factor, product_low = vec_fma(e, factor, -product) + vec_fma(err, factor, e * factor_low);
    vec one_plus = e + vec_set(2.0f), square = vec_fma(e, one_plus, vec_set(1.0f));
    vec square_low = vec_fma(e, one_plus, vec_set(1.0f) - square) + e * (e - (one_plus - vec_set(2.0f)));
    vec rounded = product / square;
    vec remainder = vec_fma(-rounded, square, product) + vec_fma(-rounded, square_low, product_low);
    vec grad = rounded + remainder / square;
    return vec_select(vec_lt(x, vec_set(0.0f)), grad, vec_set(1.0f) - grad);
}

/* ---- GELU (erf) ----
 *
 * With u = |x|, the smaller of Φ(x) and 1 - Φ(x) is e^(-u²/2) erfcx(u / sqrt 2) / 2, and the gradient at -u is
 * e^(-u²/2) (u - root) Q(u). (u + 1) erfcx and Q vary slowly, so that the first term of a polynomial in t = (u - a)
 * / (u + a) dominates, and its rounding is nearly the only one. Valid for x >= VEC_GELU_MIN; the gradient up to 12. */

#define VEC_GELU_MIN -6.0f

VEC_INLINE vec vec_gelu_erf(vec x)
{
    vec u = vec_min(vec_set(-VEC_GELU_MIN), vec_abs(x)), one_more = u + vec_set(1.0f), quotient = u / one_more;
    vec err = u - (one_more - vec_set(1.0f)), t = vec_fma(quotient, vec_set(2.0f), vec_set(-1.0f));
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
    /* minus the rounding error of u + 1 */
    vec rounded, remainder = vec_gauss(u, vec_fma(err, quotient, -err), &rounded), half = p * quotient;
    /* -0, so that results that vanish below 0 are -0 */
    return vec_max(vec_set(-0.0f), x) - vec_ldexp(vec_fma(half, remainder, half), rounded);
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
    vec err = vec_fma(d, p, vec_set(-0x1.dc87p-28f) - q), rounded, remainder = vec_gauss(u, vec_set(0.0f), &rounded);
    vec grad = vec_ldexp(q + vec_fma(q, remainder, err), rounded);
    return vec_select(vec_lt(x, vec_set(0.0f)), grad, vec_set(1.0f) - grad);
}

/* ---- GELU (tanh) ----
 *
 * x / (1 + e^-v) with v = x (A + B x²), each as a double-float: the rounding error of v would show in the exponential.
 * A has so few bits that A - w is exact. Valid for x >= -VEC_TANH_GELU_MAX; the gradient for |x| up to that, and not
 * near its root.
 *
 * The gradient at -u is q / (1 + q)² (1 + q - m) with q = e^-v(u) and m = u v'(u) = u (A + 3 B u²); at u, 1 minus
 * that. */

#define VEC_TANH_GELU_MAX 9.875f
#define VEC_TANH_GELU_ROOT 0x1.8142ap-1f

/* x (A + b x²) with b in two parts, and its rounding error. */
VEC_INLINE vec vec_cubic(vec x, float high, float low, vec *err)
{
    vec s = x * x, s_low = vec_fma(x, x, -s), w = vec_fma(s, vec_set(high), vec_set(0x1.98845p+0f));
    vec one_plus = vec_fma(s_low, vec_set(high), vec_fma(s, vec_set(low), vec_set(0x1.9ea1b2p-23f)));
    vec w_low = vec_fma(s, vec_set(high), vec_set(0x1.98845p+0f) - w) + one_plus, v = x * w;
    *err = vec_fma(x, w_low, vec_fma(x, w, -v));
    return v;
}

VEC_INLINE vec vec_gelu(vec x)
{
    vec v_low, err, v = vec_cubic(vec_min(vec_set(VEC_TANH_GELU_MAX), x), 0x1.2444f2p-4f, 0x1.49b16ap-29f, &v_low);
    return x / (vec_set(1.0f) + vec_exp_df(-v, -v_low, &err));
}

VEC_INLINE vec vec_gelu_grad(vec x)
{
    vec u = vec_abs(x), v_low, m_low, q_low;
    vec v = vec_cubic(u, 0x1.2444f2p-4f, 0x1.49b16ap-29f, &v_low),
        m = vec_cubic(u, 0x1.b6676cp-3f, -0x1.175e1ep-32f, &m_low);
    vec q = vec_exp_df(-v, -v_low, &q_low), one = vec_set(1.0f), part = one - m, back = part - one;
    vec part_low = (one - (part - back)) - (m + back), factor = part + q, back2 = factor - part;
    vec factor_low = (part - (factor - back2)) + (q - back2) + ((part_low - m_low) + q_low);
    vec grad = vec_fma(q, factor, vec_fma(q_low, factor, q * factor_low)) / vec_fma(q, q + vec_set(2.0f), one);
    return vec_select(vec_lt(x, vec_set(0.0f)), grad, one - grad);
}

/* ---- logarithm --------------------------------------------------------------------------------------------------- */

/* For normal x > 0: tarn__log_f32() without its special values. */
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
 * As in scalar_math_trig.h, but in f32 alone, for |x| <= VEC_TRIG_MAX: the first part of n pi has so few bits that x -
 * n pi begins with an exact difference. */

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
