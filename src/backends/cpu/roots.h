/* roots.h: sqrt and 1 / sqrt of f32 on AVX-512, which has an approximation of 14 bits beside the divider. The divider takes two to four times as
 * long as the steps of Newton here, which end with a residual that fused operations give exactly. So sqrt is rounded once, as the
 * divider rounds it; 1 / sqrt is within 0.5001 units, where a division after a root is up to 1.5 off. 1 / x gains nothing so: its division
 * is not slower than the memory.
 *
 * Where a step would leave the range of f32 (zeros, subnormals and little above, infinities, NaN, negative numbers) the divider does it.
 * elementwise.c includes it after packed.h. */
#if TARN__PACK == 16

#define ROOTS_LEAST 0x0d800000 /* the bits of 2^-100, below which residuals are lost */

/* Lanes whose bits are below these, or not below those of infinity; a negative number has the highest bit. */
PACK_INLINE pack_mask outside_root(pack x)
{
    __m512i above = _mm512_sub_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(ROOTS_LEAST));
    return _mm512_cmpge_epu32_mask(above, _mm512_set1_epi32(0x7f800000 - ROOTS_LEAST));
}

/* With r near 1 / sqrt(x): s = x r and h = r / 2 both get better by e = 1/2 - h s; then s by x - s², times h. */
PACK_INLINE pack near_sqrt(pack x)
{
    pack half = pack_all(0.5f), r = _mm512_rsqrt14_ps(x), s = x * r, h = half * r;
    pack e = _mm512_fnmadd_ps(h, s, half);
    s = pack_fma(s, e, s), h = pack_fma(h, e, h);
    return pack_fma(_mm512_fnmadd_ps(s, s, x), h, s);
}

/* The same for r; then y gets better by (1 - x y²) / 2 of itself, with x y in two parts. */
PACK_INLINE pack near_rsqrt(pack x)
{
    pack half = pack_all(0.5f), r = _mm512_rsqrt14_ps(x);
    pack y = pack_fma(r, _mm512_fnmadd_ps(half * r, x * r, half), r);
    pack high = x * y, low = _mm512_fmsub_ps(x, y, high);
    pack rest = _mm512_fnmadd_ps(low, y, _mm512_fnmadd_ps(high, y, pack_all(1.0f)));
    return pack_fma(half * y, rest, y);
}

#define ROOT_TILE(name, divided)                                                                                                         \
    PACK_INLINE pack whole_##name(pack x)                                                                                                \
    {                                                                                                                                    \
        pack_mask other = outside_root(x);                                                                                               \
        pack y = near_##name(x);                                                                                                         \
        return __builtin_expect(pack_any(other), 0) ? pack_choose(other, divided, y) : y;                                                \
    }                                                                                                                                    \
    PACK_INLINE void several_##name(const float *X, float *Y)                                                                            \
    {                                                                                                                                    \
        for (int k = 0; k < PACKS_AT_ONCE; k++)                                                                                          \
            pack_store(Y + k * TARN__PACK, whole_##name(pack_load(X + k * TARN__PACK)));                                                 \
    }                                                                                                                                    \
    PACKED_RUN(name)

ROOT_TILE(sqrt, _mm512_sqrt_ps(x))
ROOT_TILE(rsqrt, pack_all(1.0f) / _mm512_sqrt_ps(x))

#endif
