/* arm_rows.h: rows of elementwise.def on AArch64 that choose between values, on packs. The compiler turns a choice around, and then asks for NaN in four
 * instructions where its opposite takes one. Four packs a step keep up with the memory. elementwise.c includes it after packed.h. */
#if TARN__PACK == 4

/* n elements from X and G (X again where there is no gradient) to Y: `value` from the packs x and g, and the parameters P0 and P1. */
#define ARM_RUN(name, X, G, value)                                                                                                       \
    static void arm_##name(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)                          \
    {                                                                                                                                    \
        const float *from = X, *by = G;                                                                                                  \
        float *Y = out[0];                                                                                                               \
        const pack P0 = pack_all(scalar_f32(params->p0)), P1 = pack_all(scalar_f32(params->p1));                                         \
        (void)P0, (void)P1;                                                                                                              \
        int64_t i = 0;                                                                                                                   \
        for (; i + PACKS_AT_ONCE * TARN__PACK <= n; i += PACKS_AT_ONCE * TARN__PACK) {                                                   \
            pack y[PACKS_AT_ONCE];                                                                                                       \
            for (int k = 0; k < PACKS_AT_ONCE; k++) {                                                                                    \
                const pack x = pack_load(from + i + k * TARN__PACK), g = pack_load(by + i + k * TARN__PACK);                             \
                (void)g;                                                                                                                 \
                y[k] = value;                                                                                                            \
            }                                                                                                                            \
            for (int k = 0; k < PACKS_AT_ONCE; k++)                                                                                      \
                pack_store(Y + i + k * TARN__PACK, y[k]);                                                                                \
        }                                                                                                                                \
        for (int64_t here; i < n; i += here) {                                                                                           \
            here = n - i < TARN__PACK ? n - i : TARN__PACK;                                                                              \
            const pack x = pack_load_some(from + i, here), g = pack_load_some(by + i, here);                                             \
            (void)g;                                                                                                                     \
            pack_store_some(Y + i, value, here);                                                                                         \
        }                                                                                                                                \
    }
#define ARM_VALUE(name, value) ARM_RUN(name, in[0], in[0], value)
#define ARM_GRAD(name, value) ARM_RUN(name##_grad, in[0], in[1], value)

/* x or +0. */
PACK_INLINE pack pack_where(pack_mask mask, pack x)
{
    return vreinterpretq_f32_u32(vandq_u32(mask, vreinterpretq_u32_f32(x)));
}

PACK_INLINE pack pack_unless(pack_mask mask, pack x)
{
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), mask));
}

/* 1 and -1; +0 for both zeros and NaN. */
PACK_INLINE pack pack_sign(pack x)
{
    return pack_where(vcagtq_f32(x, pack_all(0.0f)), pack_with_sign(pack_all(1.0f), x));
}

ARM_VALUE(abs, pack_size(x))
ARM_GRAD(abs, g * pack_sign(x))
ARM_VALUE(sign, pack_sign(x))
ARM_VALUE(relu, pack_unless(vcltzq_f32(x), x))
ARM_GRAD(relu, pack_unless(vclezq_f32(x), g))
ARM_VALUE(leaky_relu, pack_choose(vcgtzq_f32(x), x, x * P0))
ARM_GRAD(leaky_relu, pack_choose(vcgtzq_f32(x), g, g * P0))
ARM_VALUE(clamp, pack_choose(vcltq_f32(x, P0), P0, pack_choose(vcgtq_f32(x, P1), P1, x)))
ARM_GRAD(clamp, pack_where(vandq_u32(vcgtq_f32(x, P0), vcltq_f32(x, P1)), g))

/* The gradients of maximum and minimum: half of g where both are the same, all of it for the one that was chosen; `loses` says where a was not.
 * NaN loses to nothing. */
#define ARM_EXTREMUM_GRADS(name, loses)                                                                                                  \
    PACK_INLINE void name##_grads(pack a, pack b, pack g, pack *ga, pack *gb)                                                            \
    {                                                                                                                                    \
        pack half = g * pack_all(0.5f);                                                                                                  \
        pack_mask same = vceqq_f32(a, b);                                                                                                \
        *ga = pack_choose(same, half, pack_unless(loses(a, b), g));                                                                      \
        *gb = pack_choose(same, half, pack_unless(loses(b, a), g));                                                                      \
    }                                                                                                                                    \
    static void arm_##name##_grad(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)                   \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const float *A = in[0], *B = in[1], *G = in[2];                                                                                  \
        float *YA = out[0], *YB = out[1];                                                                                                \
        pack ga, gb;                                                                                                                     \
        int64_t i = 0;                                                                                                                   \
        for (; i + TARN__PACK <= n; i += TARN__PACK) {                                                                                   \
            name##_grads(pack_load(A + i), pack_load(B + i), pack_load(G + i), &ga, &gb);                                                \
            pack_store(YA + i, ga), pack_store(YB + i, gb);                                                                              \
        }                                                                                                                                \
        if (i < n) {                                                                                                                     \
            name##_grads(pack_load_some(A + i, n - i), pack_load_some(B + i, n - i), pack_load_some(G + i, n - i), &ga, &gb);            \
            pack_store_some(YA + i, ga, n - i), pack_store_some(YB + i, gb, n - i);                                                      \
        }                                                                                                                                \
    }
ARM_EXTREMUM_GRADS(maximum, vcltq_f32)
ARM_EXTREMUM_GRADS(minimum, vcgtq_f32)

#define tile_abs_f32 arm_abs
#define tile_abs_grad_f32 arm_abs_grad
#define tile_sign_f32 arm_sign
#define tile_relu_f32 arm_relu
#define tile_relu_grad_f32 arm_relu_grad
#define tile_leaky_relu_f32 arm_leaky_relu
#define tile_leaky_relu_grad_f32 arm_leaky_relu_grad
#define tile_clamp_f32 arm_clamp
#define tile_clamp_grad_f32 arm_clamp_grad
#define tile_maximum_grad_f32 arm_maximum_grad
#define tile_minimum_grad_f32 arm_minimum_grad

#endif
