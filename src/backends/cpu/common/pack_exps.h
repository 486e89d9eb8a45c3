/* pack_exps.h: exponentials on packs, for vec_math.h: each says where it holds. */
#ifndef TARN__PACK_EXPS_H
#define TARN__PACK_EXPS_H

#include "backends/cpu/common/vec.h"
#include "backends/cpu/common/vmath.h"

#if TARN__PACK

/* p x + c, the step of a polynomial. */
#define PACK_STEP(p, x, c) pack_fma(p, x, pack_all(c))

/* x 2^k, where both are normal: the exponent is moved. */
PACK_INLINE pack pack_moved(pack x, pack rounded)
{
    return pack_bits_add_shifted(x, rounded, 23);
}

/* 2^k for the integer k of k + TARN__ROUND_F32. */
PACK_INLINE pack pack_two_to_whole(pack rounded)
{
    return pack_moved(pack_all(1.0f), rounded);
}

#if TARN__PACK == 4

/* x = k ln2 + r with an integer k. To look up one table of 16 takes as long as three steps of a polynomial here, so
 * there is none. */

/* e^r - 1 for |r| < 0.35. */
PACK_INLINE pack pack_expm1_near(pack r)
{
    pack p = PACK_STEP(pack_all(0x1.6db5bcp-10f), r, 0x1.123c78p-7f);
    p = PACK_STEP(p, r, 0x1.55545cp-5f);
    p = PACK_STEP(p, r, 0x1.55548ep-3f);
    p = PACK_STEP(p, r, 0x1p-1f);
    return pack_fma(r * r, p, r);
}

/* e^(x + more) for |x| <= 87 and a tiny `more`. `lost` is what rounding takes from the result. */
PACK_INLINE pack pack_exp_more(pack x, pack more, pack *lost)
{
    pack rounded = pack_fma(x, pack_all(0x1.715476p+0f), pack_all(TARN__ROUND_F32)),
         k = rounded - pack_all(TARN__ROUND_F32);
    pack r = pack_fma(k, pack_all(-TARN__LN2_HIGH_F32), x), scaled = pack_two_to_whole(rounded);
    pack rest = pack_expm1_near(pack_fma(k, pack_all(-TARN__LN2_LOW_F32), r + more)),
         y = pack_fma(scaled, rest, scaled);
    *lost = pack_fma(scaled, rest, scaled - y);
    return y;
}

PACK_INLINE pack pack_exp(pack x)
{
    pack rounded = pack_fma(x, pack_all(0x1.715476p+0f), pack_all(TARN__ROUND_F32)),
         k = rounded - pack_all(TARN__ROUND_F32);
    pack r = pack_fma(k, pack_all(-TARN__LN2_LOW_F32), pack_fma(k, pack_all(-TARN__LN2_HIGH_F32), x)),
         scaled = pack_two_to_whole(rounded);
    return pack_fma(scaled, pack_expm1_near(r), scaled);
}

PACK_INLINE pack pack_exp_sum(pack x, pack *lost)
{
    return pack_exp_more(x, pack_all(0.0f), lost);
}

/* 2^(x + more) for |x| <= 125 and a small `more`. x - k is exact. */
PACK_INLINE pack pack_exp2_sum(pack x, pack more)
{
    pack rounded = x + pack_all(TARN__ROUND_F32), r = (x - (rounded - pack_all(TARN__ROUND_F32))) + more,
         scaled = pack_two_to_whole(rounded);
    pack p = PACK_STEP(pack_all(0x1.447886p-13f), r, 0x1.5f0678p-10f);
    p = PACK_STEP(p, r, 0x1.3b29d2p-7f);
    p = PACK_STEP(p, r, 0x1.c6af84p-5f);
    p = PACK_STEP(p, r, 0x1.ebfbep-3f);
    p = PACK_STEP(p, r, 0x1.62e43p-1f);
    return pack_fma(scaled, r * p, scaled);
}

PACK_INLINE pack pack_exp2(pack x)
{
    return pack_exp2_sum(x, pack_all(0.0f));
}

#else

/* x = n ln2 + r with n a multiple of 1/16: 2^n is a number of the table with its exponent moved, e^r - 1 a short
 * polynomial. The table's bits have n's fraction taken off where n, shifted to the exponent, brings it along. */

#define PACK_SIXTEENTHS 0x1.8p19f /* adding it rounds to a multiple of 1/16, whose sixteenths are the low bits */

_Alignas(64) static const uint32_t pack_roots_of_two[16] = {
    0x3f800000u, 0x3f7daac3u, 0x3f7b95c2u, 0x3f79c3d3u, 0x3f7837f0u, 0x3f76f532u, 0x3f75fed7u, 0x3f75583fu,
    0x3f7504f3u, 0x3f7508a4u, 0x3f75672au, 0x3f76248cu, 0x3f7744fdu, 0x3f78ccdfu, 0x3f7ac0c7u, 0x3f7d257du,
};
/* What rounding took from them, as a share of each. */
_Alignas(64) static const float pack_roots_low[16] = {
    0x0p+0f,          0x1.8d96d4p-25f,  -0x1.9c0c22p-27f, 0x1.964904p-25f,  0x1.125002p-25f, 0x1.370be4p-25f,
    -0x1.0a355p-25f,  -0x1.00d8acp-27f, 0x1.26055cp-26f,  -0x1.05cb44p-25f, 0x1.67a1cap-28f, 0x1.a3b5e4p-28f,
    -0x1.f9c304p-27f, -0x1.6961b4p-28f, -0x1.a5217cp-28f, 0x1.61428ep-28f,
};

PACK_INLINE pack pack_two_to(pack rounded)
{
    return pack_bits_add_shifted(pack_look_up((const float *)(const void *)pack_roots_of_two, rounded), rounded, 19);
}

/* e^(x + more) for |x| <= 87 and a tiny `more`. `lost` is what rounding takes from the result. */
PACK_INLINE pack pack_exp_more(pack x, pack more, pack *lost)
{
    pack rounded = pack_fma(x, pack_all(0x1.715476p+0f), pack_all(PACK_SIXTEENTHS)),
         n = rounded - pack_all(PACK_SIXTEENTHS);
    pack r = pack_fma(n, pack_all(0x1.05c61p-29f), pack_fma(n, pack_all(-0x1.62e43p-1f), x)) + more;
    pack p = PACK_STEP(pack_all(0x1.5555aep-3f), r, 0x1.00014ep-1f);
    pack scaled = pack_two_to(rounded), rest = pack_fma(r * r, p, r + pack_look_up(pack_roots_low, rounded));
    pack y = pack_fma(scaled, rest, scaled);
    *lost = pack_fma(scaled, rest, scaled - y);
    return y;
}

PACK_INLINE pack pack_exp_sum(pack x, pack *lost)
{
    return pack_exp_more(x, pack_all(0.0f), lost);
}

PACK_INLINE pack pack_exp(pack x)
{
    pack lost;
    return pack_exp_sum(x, &lost);
}

/* |x| <= 125. r = x - n is exact. */
PACK_INLINE pack pack_exp2(pack x)
{
    pack rounded = x + pack_all(PACK_SIXTEENTHS), r = x - (rounded - pack_all(PACK_SIXTEENTHS)),
         scaled = pack_two_to(rounded);
    pack p = PACK_STEP(PACK_STEP(pack_all(0x1.c6b08ep-5f), r, 0x1.ebff92p-3f), r, 0x1.62e43p-1f);
    return pack_fma(scaled, r * p, scaled);
}

/* e^r - 1 for |r| < 0.35, as tarn__expm1_near_f32(). */
PACK_INLINE pack pack_expm1_near(pack r)
{
    pack p = PACK_STEP(pack_all(0x1.a29c9ap-13f), r, 0x1.6d43c4p-10f);
    p = PACK_STEP(p, r, 0x1.110fdcp-7f);
    p = PACK_STEP(p, r, 0x1.5554fp-5f);
    p = PACK_STEP(p, r, 0x1.555556p-3f);
    p = PACK_STEP(p, r, 0x1p-1f);
    return pack_fma(r * r, p, r);
}

#endif

/* e^(more - u²/2) is 2^k (1 + the result) for u <= 13, where k is the integer of `rounded`: with what the square loses.
 * `more` is tiny. */
PACK_INLINE pack pack_bell(pack u, pack more, pack *rounded)
{
    pack half = u * pack_all(-0.5f), square = half * u, low = pack_fma(half, u, -square);
    *rounded = pack_fma(square, pack_all(0x1.715476p+0f), pack_all(TARN__ROUND_F32));
    pack k = *rounded - pack_all(TARN__ROUND_F32);
    return pack_expm1_near(
        pack_fma(k, pack_all(-TARN__LN2_LOW_F32), pack_fma(k, pack_all(-TARN__LN2_HIGH_F32), square) + (low + more)));
}

#endif

#endif
