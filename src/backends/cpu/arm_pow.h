/* arm_pow.h: powers on AArch64 in f32: 2^(b log2 a) with the logarithm in two parts, about 2^-32 of its size off; results are within a few units in the
 * last place. For negative a the power of |a| gets its sign afterwards. A block with anything else (zeros, subnormals, results near
 * the ends of f32's range, NaN) is computed again in f64, and gives those elements. elementwise.c includes it after arm_divisions.h. */
#if TARN__PACK == 4

/* log2 a for normal a > 0: C (s + s³ P(s²)) with s = f / (2 + f) and its remainder, and C = 2 / ln2 in two parts. */
PACK_INLINE pack pack_log2_sum(pack a, pack *low)
{
    pack from = pack_bits_minus(a, pack_bits_all(0x3f3504f3u)), e = pack_exponent(from), two = pack_all(2.0f), c = pack_all(0x1.715476p+1f);
    pack f = pack_bits_minus(a, pack_bits_and(from, pack_bits_all(0xff800000u))) - pack_all(1.0f);
    pack w = two + f, s = f / w, rest = vfmsq_f32(vfmsq_f32(f, s, w), s, f - (w - two)), s_low = rest * vrecpeq_f32(w);
    pack z = s * s, p = PACK_STEP(pack_all(0x1.58b0bap-2f), z, 0x1.a5c934p-2f);
    p = PACK_STEP(p, z, 0x1.2777p-1f);
    p = PACK_STEP(p, z, 0x1.ec709ep-1f);
    pack h = s * c, lost = vfmsq_f32(h, s, c), high = e + h;
    pack tail = pack_fma(s_low, c, pack_fma(s, pack_all(0x1.4ae0cp-25f), (s * z) * p));
    pack more = (h - (high - e)) + (tail - lost), sum = high + more;
    *low = more - (sum - high);
    return sum;
}

/* |a|^b; `beyond` has the lanes where this does not hold, and those where |log2| of the result is above `most`. */
PACK_INLINE pack pack_pow(pack a, pack b, float most, pack *log_high, pack *log_low, pack_mask *beyond)
{
    pack size = pack_size(a), low, high = pack_log2_sum(size, &low), y = b * high, lost = vfmsq_f32(y, b, high);
    *beyond = pack_either(pack_not_normal(size), pack_beyond(y, pack_all(most)));
    *log_high = high, *log_low = low;
    return pack_exp2_sum(y, b * low - lost);
}

/* a^b for negative a, from |a|^b: the sign by an integer b, NaN by others. */
PACK_INLINE pack pack_signed_power(pack a, pack b, pack power)
{
    pack half = b * pack_all(0.5f);
    pack_mask negative = vcltzq_f32(a), whole = vceqq_f32(vrndq_f32(b), b), even = vceqq_f32(vrndq_f32(half), half);
    uint32x4_t turned = vandq_u32(vbicq_u32(negative, even), vdupq_n_u32(0x80000000u));
    power = vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(power), turned));
    return pack_choose(vbicq_u32(negative, whole), pack_all(NAN), power);
}

/* Takes the lanes beyond from `held`. */
PACK_INLINE void take_lanes(pack *y, const float *held, const pack_mask *beyond)
{
    for (int k = 0; k < PACKS_AT_ONCE; k++)
        y[k] = pack_choose(beyond[k], pack_load(held + k * TARN__PACK), y[k]);
}

__attribute__((noinline)) static void mend_pow(const float *A, const float *B, const pack_mask *beyond, pack *y)
{
    float held[BLOCK];
    tile_pow_f32(BLOCK, (const void *[]){A, B}, (void *[]){held}, NULL);
    take_lanes(y, held, beyond);
}

PACK_INLINE void block_pow(const float *A, const float *B, const float *G, float *Y, float *Z)
{
    (void)G, (void)Z;
    pack y[PACKS_AT_ONCE], high, low;
    pack_mask beyond[PACKS_AT_ONCE], any = vdupq_n_u32(0), negative = any;
    for (int k = 0; k < PACKS_AT_ONCE; k++) {
        pack a = pack_load(A + k * TARN__PACK);
        y[k] = pack_pow(a, pack_load(B + k * TARN__PACK), 125.0f, &high, &low, &beyond[k]);
        any = pack_either(any, beyond[k]), negative = pack_either(negative, vcltzq_f32(a));
    }
    if (pack_any(negative))
        for (int k = 0; k < PACKS_AT_ONCE; k++)
            y[k] = pack_signed_power(pack_load(A + k * TARN__PACK), pack_load(B + k * TARN__PACK), y[k]);
    if (pack_any(any))
        mend_pow(A, B, beyond, y);
    for (int k = 0; k < PACKS_AT_ONCE; k++)
        pack_store(Y + k * TARN__PACK, y[k]);
}

ARM_PAIR_TILE(pow, pow, 2, 1)

/* ---- gradients: g b (a^b / a) and g (a^b log a) ---- */

__attribute__((noinline)) static void mend_pow_grads(const float *A, const float *B, const float *G, const pack_mask *beyond, pack *ya, pack *yb)
{
    float held_a[BLOCK], held_b[BLOCK];
    tile_pow_grad_f32(BLOCK, (const void *[]){A, B, G}, (void *[]){held_a, held_b}, NULL);
    take_lanes(ya, held_a, beyond);
    take_lanes(yb, held_b, beyond);
}

/* With powers between 2^-60 and 2^60, and b too (or 0), no product leaves the range; and the b - 1 of a b above 2^-50 is an integer only where b is.
 * The logarithm of a negative a is NaN. */
PACK_INLINE pack_mask pow_grads(pack a, pack b, pack g, pack *ya, pack *yb)
{
    pack high, low;
    pack_mask beyond, none = vceqzq_f32(b), negative = vcltzq_f32(a);
    pack power = pack_pow(a, b, 60.0f, &high, &low, &beyond), log = pack_fma(high, pack_all(0x1.62e43p-1f), low * pack_all(0x1.62e43p-1f));
    power = pack_signed_power(a, b, power);
    *ya = pack_unless(none, g * (b * (power / a)));
    *yb = pack_choose(negative, pack_all(NAN), g * (power * log));
    beyond = pack_either(beyond, pack_beyond(b * high - high, pack_all(60.0f)));
    pack_mask kept = vorrq_u32(none, vandq_u32(vcageq_f32(b, pack_all(0x1p-50f)), vcaleq_f32(b, pack_all(0x1p60f))));
    return pack_either(beyond, vmvnq_u32(kept));
}

#define POW_GRAD_BLOCK(name, stores_a, stores_b)                                                                                          \
    PACK_INLINE void block_##name(const float *A, const float *B, const float *G, float *YA, float *YB)                                  \
    {                                                                                                                                    \
        pack ya[PACKS_AT_ONCE], yb[PACKS_AT_ONCE];                                                                                       \
        pack_mask beyond[PACKS_AT_ONCE], any = vdupq_n_u32(0);                                                                           \
        for (int k = 0; k < PACKS_AT_ONCE; k++) {                                                                                        \
            beyond[k] = pow_grads(pack_load(A + k * TARN__PACK), pack_load(B + k * TARN__PACK), pack_load(G + k * TARN__PACK), &ya[k], &yb[k]); \
            any = pack_either(any, beyond[k]);                                                                                           \
        }                                                                                                                                \
        if (pack_any(any))                                                                                                               \
            mend_pow_grads(A, B, G, beyond, ya, yb);                                                                                     \
        for (int k = 0; k < PACKS_AT_ONCE; k++) {                                                                                        \
            if (stores_a)                                                                                                                \
                pack_store(YA + k * TARN__PACK, ya[k]);                                                                                  \
            if (stores_b)                                                                                                                \
                pack_store(YB + k * TARN__PACK, yb[k]);                                                                                  \
        }                                                                                                                                \
    }

POW_GRAD_BLOCK(pow_grad, true, true)
POW_GRAD_BLOCK(pow_grad_a, true, false)
POW_GRAD_BLOCK(pow_grad_b, false, true)
ARM_PAIR_TILE(pow_grad, pow_grad, 3, 2)
ARM_PAIR_TILE(pow_grad_a, pow_grad_a, 3, 1)
ARM_PAIR_TILE(pow_grad_b, pow_grad_b, 3, 1)

#define tile_pow_f32 arm_pow
#define tile_pow_grad_f32 arm_pow_grad
#define tile_pow_grad_a_f32 arm_pow_grad_a
#define tile_pow_grad_b_f32 arm_pow_grad_b

#endif
