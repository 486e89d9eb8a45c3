/* pack_exps.h: exponentials on packs, for vec_math.h: each says where it holds. */
#ifndef TARN__PACK_EXPS_H
#define TARN__PACK_EXPS_H

#include "backends/cpu/common/vec.h"
#include "backends/cpu/common/vmath.h"

#if TARN__VEC_LANES

/* p x + c, the step of a polynomial. */
#define VEC_HORNER(p, x, c) vec_fma(p, x, vec_set(c))

/* x 2^k, where both are normal: the exponent is moved. */
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

/* x = k ln2 + r with an integer k. To look up one table of 16 takes as long as three steps of a polynomial here, so
 * there is none. */

/* e^r - 1 for |r| < 0.35. */
VEC_INLINE vec vec_expm1_reduced(vec r)
{
    vec p = VEC_HORNER(vec_set(0x1.6db5bcp-10f), r, 0x1.123c78p-7f);
    p = VEC_HORNER(p, r, 0x1.55545cp-5f);
    p = VEC_HORNER(p, r, 0x1.55548ep-3f);
    p = VEC_HORNER(p, r, 0x1p-1f);
    return vec_fma(r * r, p, r);
}

/* e^(x + more) for |x| <= 87 and a tiny `more`. `lost` is what rounding takes from the result. */
VEC_INLINE vec vec_exp_df(vec x, vec more, vec *lost)
{
    vec rounded = vec_fma(x, vec_set(0x1.715476p+0f), vec_set(TARN__ROUND_F32)), k = rounded - vec_set(TARN__ROUND_F32);
    vec r = vec_fma(k, vec_set(-TARN__LN2_HIGH_F32), x), scaled = vec_exp2_int(rounded);
    vec rest = vec_expm1_reduced(vec_fma(k, vec_set(-TARN__LN2_LOW_F32), r + more)), y = vec_fma(scaled, rest, scaled);
    *lost = vec_fma(scaled, rest, scaled - y);
    return y;
}

VEC_INLINE vec vec_exp(vec x)
{
    vec rounded = vec_fma(x, vec_set(0x1.715476p+0f), vec_set(TARN__ROUND_F32)), k = rounded - vec_set(TARN__ROUND_F32);
    vec r = vec_fma(k, vec_set(-TARN__LN2_LOW_F32), vec_fma(k, vec_set(-TARN__LN2_HIGH_F32), x)),
        scaled = vec_exp2_int(rounded);
    return vec_fma(scaled, vec_expm1_reduced(r), scaled);
}

VEC_INLINE vec vec_exp_to_df(vec x, vec *lost)
{
    return vec_exp_df(x, vec_set(0.0f), lost);
}

/* 2^(x + more) for |x| <= 125 and a small `more`. x - k is exact. */
VEC_INLINE vec vec_exp2_from_df(vec x, vec more)
{
    vec rounded = x + vec_set(TARN__ROUND_F32), r = (x - (rounded - vec_set(TARN__ROUND_F32))) + more,
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

/* x = n ln2 + r with n a multiple of 1/16: 2^n is a number of the table with its exponent moved, e^r - 1 a short
 * polynomial. The table's bits have n's fraction taken off where n, shifted to the exponent, brings it along. */

#define VEC_ROUND_16TH 0x1.8p19f /* adding it rounds to a multiple of 1/16, whose sixteenths are the low bits */

_Alignas(64) static const uint32_t vec_exp2_table[16] = {
    0x3f800000u, 0x3f7daac3u, 0x3f7b95c2u, 0x3f79c3d3u, 0x3f7837f0u, 0x3f76f532u, 0x3f75fed7u, 0x3f75583fu,
    0x3f7504f3u, 0x3f7508a4u, 0x3f75672au, 0x3f76248cu, 0x3f7744fdu, 0x3f78ccdfu, 0x3f7ac0c7u, 0x3f7d257du,
};
/* What rounding took from them, as a share of each. */
_Alignas(64) static const float vec_exp2_table_low[16] = {
    0x0p+0f,          0x1.8d96d4p-25f,  -0x1.9c0c22p-27f, 0x1.964904p-25f,  0x1.125002p-25f, 0x1.370be4p-25f,
    -0x1.0a355p-25f,  -0x1.00d8acp-27f, 0x1.26055cp-26f,  -0x1.05cb44p-25f, 0x1.67a1cap-28f, 0x1.a3b5e4p-28f,
    -0x1.f9c304p-27f, -0x1.6961b4p-28f, -0x1.a5217cp-28f, 0x1.61428ep-28f,
};

VEC_INLINE vec vec_exp2_16th(vec rounded)
{
    return vec_bits_add_shifted(vec_lookup((const float *)(const void *)vec_exp2_table, rounded), rounded, 19);
}

/* e^(x + more) for |x| <= 87 and a tiny `more`. `lost` is what rounding takes from the result. */
VEC_INLINE vec vec_exp_df(vec x, vec more, vec *lost)
{
    vec rounded = vec_fma(x, vec_set(0x1.715476p+0f), vec_set(VEC_ROUND_16TH)), n = rounded - vec_set(VEC_ROUND_16TH);
    vec r = vec_fma(n, vec_set(0x1.05c61p-29f), vec_fma(n, vec_set(-0x1.62e43p-1f), x)) + more;
    vec p = VEC_HORNER(vec_set(0x1.5555aep-3f), r, 0x1.00014ep-1f);
    vec scaled = vec_exp2_16th(rounded), rest = vec_fma(r * r, p, r + vec_lookup(vec_exp2_table_low, rounded));
    vec y = vec_fma(scaled, rest, scaled);
    *lost = vec_fma(scaled, rest, scaled - y);
    return y;
}

VEC_INLINE vec vec_exp_to_df(vec x, vec *lost)
{
    return vec_exp_df(x, vec_set(0.0f), lost);
}

VEC_INLINE vec vec_exp(vec x)
{
    vec lost;
    return vec_exp_to_df(x, &lost);
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

/* e^(more - u²/2) is 2^k (1 + the result) for u <= 13, where k is the integer of `rounded`: with what the square loses.
 * `more` is tiny. */
VEC_INLINE vec vec_gauss(vec u, vec more, vec *rounded)
{
    vec half = u * vec_set(-0.5f), square = half * u, low = vec_fma(half, u, -square);
    *rounded = vec_fma(square, vec_set(0x1.715476p+0f), vec_set(TARN__ROUND_F32));
    vec k = *rounded - vec_set(TARN__ROUND_F32);
    return vec_expm1_reduced(
        vec_fma(k, vec_set(-TARN__LN2_LOW_F32), vec_fma(k, vec_set(-TARN__LN2_HIGH_F32), square) + (low + more)));
}

#endif

#endif
