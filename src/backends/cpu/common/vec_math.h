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

#if TARN__PACK

/* ---- hyperbolic tangent and sigmoid ------------------------------------------------------------------------------ */

/* Every x: t / (t + 2) with t = e^2|x| - 1, in which nothing cancels. */
PACK_INLINE pack pack_tanh(pack x)
{
    pack twice = pack_least(pack_all(19.0f), pack_size(x + x));
    pack rounded = pack_fma(twice, pack_all(0x1.715476p+0f), pack_all(TARN__ROUND_F32)),
         k = rounded - pack_all(TARN__ROUND_F32);
    pack r = pack_fma(k, pack_all(-TARN__LN2_LOW_F32), pack_fma(k, pack_all(-TARN__LN2_HIGH_F32), twice));
    pack s = pack_two_to_whole(rounded), t = pack_fma(s, pack_expm1_near(r), s - pack_all(1.0f));
    return pack_with_sign(t / (t + pack_all(2.0f)), x);
}

/* 1 + e^-x for x >= -87. */
PACK_INLINE pack pack_one_and_exp(pack x)
{
    return pack_all(1.0f) + pack_exp(-pack_least(pack_all(87.0f), x));
}

PACK_INLINE pack pack_sigmoid(pack x)
{
    return pack_all(1.0f) / pack_one_and_exp(x);
}

PACK_INLINE pack pack_silu(pack x)
{
    return x / pack_one_and_exp(x);
}

/* The slope of the sigmoid, e / (1 + e)² with e = e^-|x|, for |x| <= 80. */
PACK_INLINE pack pack_sigmoid_slope(pack x)
{
    pack e = pack_exp(-pack_size(x));
    return e / pack_fma(e, e + pack_all(2.0f), pack_all(1.0f));
}

/* e / (1 + e)² (1 + e - u) with u = |x| and e = e^-u, for |x| <= 80. The last factor has a root: beside it, it is
 * -d + d P(d) with d = u - root. What factors, square and quotient lose by rounding is carried along: products with it
 * (swiglu) round twice more, and stay within 4 ulp. */
PACK_INLINE pack pack_silu_slope(pack x)
{
    pack u = pack_size(x), lost, e = pack_exp_sum(-u, &lost), d = u - pack_all(0x1.474974p+0f);
    pack p = PACK_STEP(pack_all(0x1.a425e4p-12f), d, -0x1.344ccap-9f);
    p = PACK_STEP(p, d, 0x1.7c2b5ap-7f);
    p = PACK_STEP(p, d, -0x1.7c2eb6p-5f);
    p = PACK_STEP(p, d, 0x1.1d25dp-3f);
    p = PACK_STEP(p, d, -0x1.1d25dp-2f);
    pack bent = pack_fma(d, p, pack_all(-0x1.1d1338p-26f)), beside = bent - d, beside_lost = bent - (beside + d);
    pack away = (pack_all(1.0f) - u) + e, away_lost = e - (away - (pack_all(1.0f) - u));
    pack_mask is_beside = pack_below(pack_size(d), pack_all(0.25f));
    pack last = pack_choose(is_beside, beside, away), last_lost = pack_choose(is_beside, beside_lost, away_lost);
    pack product = e * last, product_lost = pack_fma(e, last, -product) + pack_fma(lost, last, e * last_lost);
    pack more = e + pack_all(2.0f), square = pack_fma(e, more, pack_all(1.0f));
    pack square_lost = pack_fma(e, more, pack_all(1.0f) - square) + e * (e - (more - pack_all(2.0f)));
    pack rounded = product / square;
    pack rest = pack_fma(-rounded, square, product) + pack_fma(-rounded, square_lost, product_lost);
    pack slope = rounded + rest / square;
    return pack_choose(pack_below(x, pack_all(0.0f)), slope, pack_all(1.0f) - slope);
}

/* ---- GELU ----
 *
 * With u = |x|, the smaller of Φ(x) and 1 - Φ(x) is e^(-u²/2) erfcx(u / sqrt 2) / 2, and the slope at -u is e^(-u²/2)
 * (u - root) Q(u). (u + 1) erfcx and Q vary slowly, so that the first term of a polynomial in t = (u - a) / (u + a)
 * dominates, and its rounding is nearly the only one. For x >= PACK_GELU_LEAST; the slope up to 12. */

#define PACK_GELU_LEAST -6.0f

PACK_INLINE pack pack_gelu_erf(pack x)
{
    pack u = pack_least(pack_all(-PACK_GELU_LEAST), pack_size(x)), one_more = u + pack_all(1.0f), share = u / one_more;
    pack lost = u - (one_more - pack_all(1.0f)), t = pack_fma(share, pack_all(2.0f), pack_all(-1.0f));
    pack p = PACK_STEP(pack_all(-0x1.71b6b8p-13f), t, -0x1.b9e9ep-11f);
    p = PACK_STEP(p, t, -0x1.967c42p-10f);
    p = PACK_STEP(p, t, -0x1.1d0aaep-10f);
    p = PACK_STEP(p, t, 0x1.1ba718p-10f);
    p = PACK_STEP(p, t, 0x1.32270ep-8f);
    p = PACK_STEP(p, t, 0x1.1a65e2p-7f);
    p = PACK_STEP(p, t, 0x1.25c2dap-7f);
    p = PACK_STEP(p, t, -0x1.734f2ep-9f);
    p = PACK_STEP(p, t, -0x1.26f9dp-5f);
    p = PACK_STEP(p, t, -0x1.432a8ap-4f);
    p = PACK_STEP(p, t, -0x1.aee3b6p-6f);
    p = PACK_STEP(p, t, 0x1.0bdb2ep-1f);
    /* less what u + 1 lost */
    pack rounded, rest = pack_bell(u, pack_fma(lost, share, -lost), &rounded), half = p * share;
    /* -0, so that what vanishes below 0 is -0 */
    return pack_most(pack_all(-0.0f), x) - pack_moved(pack_fma(half, rest, half), rounded);
}

PACK_INLINE pack pack_gelu_erf_slope(pack x)
{
    pack u = pack_size(x), t = pack_fma(u / (u + pack_all(3.0f)), pack_all(2.0f), pack_all(-1.0f));
    pack p = PACK_STEP(pack_all(0x1.12efccp-15f), t, 0x1.54fa1ep-13f);
    p = PACK_STEP(p, t, 0x1.aa844ap-14f);
    p = PACK_STEP(p, t, -0x1.20cba4p-10f);
    p = PACK_STEP(p, t, -0x1.b33c48p-13f);
    p = PACK_STEP(p, t, 0x1.cd3602p-7f);
    p = PACK_STEP(p, t, -0x1.b70ea4p-5f);
    p = PACK_STEP(p, t, 0x1.eb6b5ap-4f);
    p = PACK_STEP(p, t, -0x1.e9c6dep-2f);
    pack d = u - pack_all(0x1.80ead2p-1f), q = pack_fma(d, p, pack_all(-0x1.dc87p-28f));
    pack lost = pack_fma(d, p, pack_all(-0x1.dc87p-28f) - q), rounded, rest = pack_bell(u, pack_all(0.0f), &rounded);
    pack slope = pack_moved(q + pack_fma(q, rest, lost), rounded);
    return pack_choose(pack_below(x, pack_all(0.0f)), slope, pack_all(1.0f) - slope);
}

/* ---- GELU in its tanh form ----
 *
 * x / (1 + e^-v) with v = x (A + B x²), in two parts each: what v loses by rounding would be seen in the exponential. A
 * has so few bits that A - w is exact. For x >= -PACK_TANH_GELU_MOST; the slope for no larger |x| either, and not
 * beside its root.
 *
 * The slope at -u is q / (1 + q)² (1 + q - m) with q = e^-v(u) and m = u v'(u) = u (A + 3 B u²), and at u 1 minus that.
 */

#define PACK_TANH_GELU_MOST 9.875f
#define PACK_TANH_GELU_ROOT 0x1.8142ap-1f

/* x (A + b x²), where b is given in two parts, and what it loses. */
PACK_INLINE pack pack_cubic(pack x, float high, float low, pack *lost)
{
    pack s = x * x, s_lost = pack_fma(x, x, -s), w = pack_fma(s, pack_all(high), pack_all(0x1.98845p+0f));
    pack more = pack_fma(s_lost, pack_all(high), pack_fma(s, pack_all(low), pack_all(0x1.9ea1b2p-23f)));
    pack w_lost = pack_fma(s, pack_all(high), pack_all(0x1.98845p+0f) - w) + more, v = x * w;
    *lost = pack_fma(x, w_lost, pack_fma(x, w, -v));
    return v;
}

PACK_INLINE pack pack_gelu(pack x)
{
    pack v_lost, lost,
        v = pack_cubic(pack_least(pack_all(PACK_TANH_GELU_MOST), x), 0x1.2444f2p-4f, 0x1.49b16ap-29f, &v_lost);
    return x / (pack_all(1.0f) + pack_exp_more(-v, -v_lost, &lost));
}

PACK_INLINE pack pack_gelu_slope(pack x)
{
    pack u = pack_size(x), v_lost, m_lost, q_lost;
    pack v = pack_cubic(u, 0x1.2444f2p-4f, 0x1.49b16ap-29f, &v_lost),
         m = pack_cubic(u, 0x1.b6676cp-3f, -0x1.175e1ep-32f, &m_lost);
    pack q = pack_exp_more(-v, -v_lost, &q_lost), one = pack_all(1.0f), part = one - m, back = part - one;
    pack part_lost = (one - (part - back)) - (m + back), last = part + q, again = last - part;
    pack last_lost = (part - (last - again)) + (q - again) + ((part_lost - m_lost) + q_lost);
    pack slope = pack_fma(q, last, pack_fma(q_lost, last, q * last_lost)) / pack_fma(q, q + pack_all(2.0f), one);
    return pack_choose(pack_below(x, pack_all(0.0f)), slope, one - slope);
}

/* ---- logarithm --------------------------------------------------------------------------------------------------- */

/* For normal x > 0: tarn__log_f32() without its edges. */
PACK_INLINE pack pack_log(pack x)
{
    pack from = pack_bits_minus(x, pack_bits_all(0x3f3504f3u)), e = pack_exponent(from);
    pack f = pack_bits_minus(x, pack_bits_and(from, pack_bits_all(0xff800000u))) - pack_all(1.0f);
    pack p = PACK_STEP(pack_all(-0x1.3ec9cp-4f), f, 0x1.0a16ccp-3f);
    p = PACK_STEP(p, f, -0x1.0ec458p-3f);
    p = PACK_STEP(p, f, 0x1.2220bcp-3f);
    p = PACK_STEP(p, f, -0x1.542b08p-3f);
    p = PACK_STEP(p, f, 0x1.99a83ep-3f);
    p = PACK_STEP(p, f, -0x1.00042ap-2f);
    p = PACK_STEP(p, f, 0x1.555548p-2f);
    p = PACK_STEP(p, f, -0x1.fffff8p-2f);
    pack low = pack_fma(f * f, p, e * pack_all(TARN__LN2_LOW_F32));
    return pack_fma(e, pack_all(TARN__LN2_HIGH_F32), f + low);
}

/* ---- sine and cosine ----
 *
 * As in vmath.h, with f32 alone for |x| <= PACK_TRIG_MOST: n pi's first part has so few bits that x - n pi begins with
 * an exact difference. */

#define PACK_TRIG_MOST 2048.0f

PACK_INLINE pack pack_sin_reduced(pack x, pack n, pack rounded)
{
    pack r = pack_fma(n, pack_all(-0x1.92p+1f), x);
    r = pack_fma(n, pack_all(-0x1.fb5444p-11f), r);
    r = pack_fma(n, pack_all(-0x1.68c234p-38f), r);
    pack z = r * r;
    pack p = PACK_STEP(pack_all(-0x1.9d91c8p-26f), z, 0x1.71955ep-19f);
    p = PACK_STEP(p, z, -0x1.a018fep-13f);
    p = PACK_STEP(p, z, 0x1.11111p-7f);
    p = PACK_STEP(p, z, -0x1.555556p-3f);
    return pack_turned(r * pack_fma(z, p, pack_all(1.0f)), rounded);
}

PACK_INLINE pack pack_sin(pack x)
{
    pack rounded = pack_fma(x, pack_all(0x1.45f306p-2f), pack_all(TARN__ROUND_F32));
    return pack_sin_reduced(x, rounded - pack_all(TARN__ROUND_F32), rounded);
}

PACK_INLINE pack pack_cos(pack x)
{
    pack rounded = pack_fma(x, pack_all(0x1.45f306p-2f), pack_all(0.5f)) + pack_all(TARN__ROUND_F32);
    return pack_sin_reduced(x, (rounded - pack_all(TARN__ROUND_F32)) - pack_all(0.5f), rounded);
}

#endif

#endif
