/* arm_divisions.h: rows of elementwise.def on AArch64 that divide: its divider takes as long for one pack as six other instructions, so each division is
 * made once, and inverse roots by Newton's steps. elementwise.c includes it after packed.h.
 *
 * Rows of two operands run in blocks of PACKS_AT_ONCE packs. Elements outside of what holds in f32 are computed again, each by itself. */
#if TARN__PACK == 4

/* ---- roots ---- */

/* 2^-60 to 2^60: what follows stays within the range of f32. A negative number has the highest bit. */
#define BESIDE_ROOT(x) vcgeq_u32(vsubq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x21800000u)), vdupq_n_u32(0x3c000000u))
#define BESIDE_ROOT_ALONE(x) (!((x) >= 0x1p-60f && (x) < 0x1p60f))

/* 8 bits, then twice as many with each step. */
PACK_INLINE pack pack_rsqrt(pack x)
{
    pack r = vrsqrteq_f32(x);
    r = r * vrsqrtsq_f32(x * r, r);
    return r * vrsqrtsq_f32(x * r, r);
}

PACKED_TILE(rsqrt, BESIDE_ROOT, pack_rsqrt(x), 1.0f / sqrtf(x))
PACKED_GRAD_TILE(sqrt, BESIDE_ROOT, g * (pack_all(0.5f) * pack_rsqrt(x)), g / (2 * sqrt(x)))
PACKED_GRAD_TILE(rsqrt, BESIDE_ROOT, g * (pack_rsqrt(x) / (x * pack_all(-2.0f))), g / fabs(x) / (-2 * sqrt(x)))

/* ---- reciprocals and quotients ---- */

#define BESIDE_RECIP(x) BESIDE_ROOT(pack_size(x))
#define BESIDE_RECIP_ALONE(x) BESIDE_ROOT_ALONE(fabsf(x))

PACK_INLINE pack pack_recip_grad(pack x, pack g)
{
    pack r = pack_all(1.0f) / x;
    return -(g * r) * r;
}

PACKED_GRAD_TILE(recip, BESIDE_RECIP, pack_recip_grad(x, g), -(g / x) / x)

enum { BLOCK = PACKS_AT_ONCE * TARN__PACK };

/* A kernel of `outputs` results: block_##name(a, b, g, y, z) computes BLOCK elements; the last ones lie among ones. */
#define ARM_PAIR_TILE(tile, name, inputs, outputs)                                                                                        \
    static void arm_##tile(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)                          \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const float *A = in[0], *B = in[1], *G = in[inputs - 1];                                                                         \
        float *Y = out[0], *Z = out[outputs - 1];                                                                                        \
        int64_t i = 0;                                                                                                                   \
        for (; i + BLOCK <= n; i += BLOCK)                                                                                               \
            block_##name(A + i, B + i, G + i, Y + i, Z + i);                                                                             \
        if (i == n)                                                                                                                      \
            return;                                                                                                                      \
        const size_t bytes = (size_t)(n - i) * sizeof(float);                                                                            \
        float a[BLOCK], b[BLOCK], g[BLOCK], y[2][BLOCK];                                                                                 \
        for (int j = 0; j < BLOCK; j++)                                                                                                  \
            a[j] = b[j] = g[j] = 1.0f;                                                                                                   \
        memcpy(a, A + i, bytes), memcpy(b, B + i, bytes), memcpy(g, G + i, bytes);                                                       \
        block_##name(a, b, g, y[0], y[outputs - 1]);                                                                                     \
        memcpy(Y + i, y[0], bytes), memcpy(Z + i, y[outputs - 1], bytes);                                                                \
    }

/* block_##name: `y` and `z` from the packs a, b and g by value(a, b, g, &y, &z), which gives the lanes where it does not hold; there y_alone and z_alone
 * from single numbers. A row of one result has it in z. */
#define ARM_BLOCK(name, value, stores_y, y_alone, z_alone)                                                                                \
    __attribute__((noinline, cold)) static void mend_##name(const float *A, const float *B, const float *G, const pack_mask *beyond, pack *y, pack *z) \
    {                                                                                                                                    \
        for (int k = 0; k < PACKS_AT_ONCE; k++)                                                                                          \
            for (int j = 0; j < TARN__PACK; j++) {                                                                                       \
                const float a = A[k * TARN__PACK + j], b = B[k * TARN__PACK + j], g = G[k * TARN__PACK + j];                             \
                (void)g;                                                                                                                 \
                if (beyond[k][j] == 0)                                                                                                   \
                    continue;                                                                                                            \
                y[k][j] = y_alone;                                                                                                       \
                z[k][j] = z_alone;                                                                                                       \
            }                                                                                                                            \
    }                                                                                                                                    \
    PACK_INLINE void block_##name(const float *A, const float *B, const float *G, float *Y, float *Z)                                    \
    {                                                                                                                                    \
        pack y[PACKS_AT_ONCE], z[PACKS_AT_ONCE];                                                                                         \
        pack_mask beyond[PACKS_AT_ONCE], any = vdupq_n_u32(0);                                                                           \
        for (int k = 0; k < PACKS_AT_ONCE; k++) {                                                                                        \
            beyond[k] = value(pack_load(A + k * TARN__PACK), pack_load(B + k * TARN__PACK), pack_load(G + k * TARN__PACK), &y[k], &z[k]); \
            any = pack_either(any, beyond[k]);                                                                                           \
        }                                                                                                                                \
        if (__builtin_expect(pack_any(any), 0))                                                                                          \
            mend_##name(A, B, G, beyond, y, z);                                                                                          \
        for (int k = 0; k < PACKS_AT_ONCE; k++) {                                                                                        \
            if (stores_y)                                                                                                                \
                pack_store(Y + k * TARN__PACK, y[k]);                                                                                    \
            pack_store(Z + k * TARN__PACK, z[k]);                                                                                        \
        }                                                                                                                                \
    }

/* g / b and -g a / b² as -(g / b) (a / b): both quotients must keep their digits, and a product that is not small says that they do. */
PACK_INLINE pack_mask div_grads(pack a, pack b, pack g, pack *ga, pack *gb)
{
    pack q = a / b, most = pack_all(0x1p60f);
    *ga = g / b;
    *gb = -*ga * q;
    pack_mask zero = vorrq_u32(vceqzq_f32(a), vceqzq_f32(g)), kept = vorrq_u32(zero, vcageq_f32(*gb, pack_all(0x1p-60f)));
    return vmvnq_u32(vandq_u32(kept, vandq_u32(vcaleq_f32(q, most), vcaleq_f32(*ga, most))));
}

static inline float div_grad_b_alone(float a, float b, float g)
{
    return (float)(-(double)g * (((double)a / (double)b) / (double)b));
}

ARM_BLOCK(div_grad, div_grads, true, g / b, div_grad_b_alone(a, b, g))
ARM_BLOCK(div_grad_b, div_grads, false, g / b, div_grad_b_alone(a, b, g))
ARM_PAIR_TILE(div_grad, div_grad, 3, 2)
ARM_PAIR_TILE(div_grad_b, div_grad_b, 3, 1)

/* ---- remainders ----
 *
 * a - q b is exact in f32 for an integer q next to a / b: it is a multiple of the smaller operand's last place, and no larger than b. */

/* The remainder with the sign of b, and the integer that was taken: floor(a / b). */
PACK_INLINE pack_mask mod_parts(pack a, pack b, pack *remainder, pack *whole)
{
    pack q = vrndnq_f32(a / b), r = vfmsq_f32(a, q, b);
    pack_mask other_side = vcltzq_s32(veorq_s32(vreinterpretq_s32_f32(r), vreinterpretq_s32_f32(b)));
    pack_mask is_zero = vceqzq_f32(r);
    other_side = vbicq_u32(other_side, is_zero);
    r = pack_choose(is_zero, pack_with_sign(r, a), r); /* as fmod() has it */
    *remainder = pack_choose(other_side, r + b, r);
    *whole = q - vreinterpretq_f32_u32(vandq_u32(other_side, vreinterpretq_u32_f32(pack_all(1.0f))));
    return vmvnq_u32(vandq_u32(vcaleq_f32(q, pack_all(0x1p22f)), vceqq_f32(r, r)));
}

PACK_INLINE pack_mask mod_values(pack a, pack b, pack g, pack *unused, pack *y)
{
    (void)g;
    return mod_parts(a, b, y, unused);
}

PACK_INLINE pack_mask mod_grads(pack a, pack b, pack g, pack *ga, pack *gb)
{
    pack remainder, whole;
    pack_mask beyond = mod_parts(a, b, &remainder, &whole);
    *ga = g;
    *gb = -g * whole;
    return beyond;
}

ARM_BLOCK(mod, mod_values, false, 0.0f, mod_any_f32(a, b))
ARM_BLOCK(mod_grad, mod_grads, true, g, mod_any_grad_b_f32(a, b, g))
ARM_BLOCK(mod_grad_b, mod_grads, false, g, mod_any_grad_b_f32(a, b, g))
ARM_PAIR_TILE(mod, mod, 2, 1)
ARM_PAIR_TILE(mod_grad, mod_grad, 3, 2)
ARM_PAIR_TILE(mod_grad_b, mod_grad_b, 3, 1)

#define tile_rsqrt_f32 packed_rsqrt
#define tile_sqrt_grad_f32 packed_sqrt_grad
#define tile_rsqrt_grad_f32 packed_rsqrt_grad
#define tile_recip_grad_f32 packed_recip_grad
#define tile_div_grad_f32 arm_div_grad
#define tile_div_grad_b_f32 arm_div_grad_b
#define tile_mod_f32 arm_mod
#define tile_mod_grad_f32 arm_mod_grad
#define tile_mod_grad_b_f32 arm_mod_grad_b

#endif
