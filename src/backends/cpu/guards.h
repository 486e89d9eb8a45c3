/* guards.h: rows of elementwise.def that look at a tile before they compute it. Most tiles hold nothing extreme: then
 * the plain form is right (sin, mod, div), or a shorter one is (exp, tanh's gradient). In a tile with anything else
 * each element has its own form (forms.h). elementwise.c includes it after the rows' own tiles. */

CHOOSE_FORMS(float, f32)

#if !TARN__PACK
TRIG_TILES(sin, float, f32, trig_f32(X[i], 0), G[i] * trig_f32(X[i], 1))
TRIG_TILES(cos, float, f32, trig_f32(X[i], 1), -G[i] * trig_f32(X[i], 0))
#endif

/* ---- the remainder once more, for large quotients -------------------------------------------------------------------------- */

static inline float mod_any_grad_b_f32(float a, float b, float g)
{
    return (float)mod_grad_b((double)a, (double)b, (double)g, (double)mod_any_f32(a, b));
}

#if TARN__PACK != 4 /* AArch64 has arm_divisions.h */
#define IS_LARGE_QUOTIENT (fabs((double)X[i]) > MOD_MAX * fabs((double)Z[i]))

RARE_FORM_TILE(far_mod_f32, float, 2, mod_any_f32(X[i], Z[i]))
RARE_FORM_TILE(far_mod_grad_b_f32, float, 3, mod_any_grad_b_f32(X[i], Z[i], G[i]))
static void far_mod_grad_f32(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
{
    tile_mod_grad_a_f32(n, in, &out[0], params);
    far_mod_grad_b_f32(n, in, &out[1], params);
}
TWO_FORMS(guarded_mod_f32, float, f32, 2, 1, tile_mod_f32, far_mod_f32, IS_LARGE_QUOTIENT)
TWO_FORMS(guarded_mod_grad_b_f32, float, f32, 3, 1, tile_mod_grad_b_f32, far_mod_grad_b_f32, IS_LARGE_QUOTIENT)
TWO_FORMS(guarded_mod_grad_f32, float, f32, 3, 2, tile_mod_grad_f32, far_mod_grad_f32, IS_LARGE_QUOTIENT)

DIV_TILES(float, double, f32, 1e-18f, 1e18f)
#endif

/* ---- gradients with an exponential once more, where it leaves the range of f32 that its product with g may still have ---------- */

#define EXPONENT_MAX 80.0f /* exp(±80) and all of its digits are within the range */

#if !TARN__PACK
FORM_TILE(far_exp_grad_f32, float, 2,
          (float)((double)G[i] * tarn__exp_f64(0.5 * (double)X[i]) * tarn__exp_f64(0.5 * (double)X[i])))
TWO_FORMS(guarded_exp_grad_f32, float, f32, 2, 1, tile_exp_grad_f32, far_exp_grad_f32,
          (fabsf(X[i]) > EXPONENT_MAX) | ((fabsf(Z[i]) < 0x1p-100f) & (Z[i] != 0)))
#endif
#if TARN__PACK != 4 /* AArch64 has arm_math.h for it */
FORM_TILE(far_softplus_grad_f32, float, 2, (float)((double)G[i] * sigmoid_f64((double)X[i])))
TWO_FORMS(guarded_softplus_grad_f32, float, f32, 2, 1, tile_softplus_grad_f32, far_softplus_grad_f32,
          X[i] < -EXPONENT_MAX)
#endif

#if !TARN__PACK /* levels with packs have packed.h for these */

/* ---- exponentials without their guards, where all of a tile is far from the ends of f32's range: a third fewer instructions ----- */

#define CALM 64.0f

TARN__VECTOR static inline float exp_calm(float x)
{
    float rounded = tarn__fma_f32(x, 0x1.715476p+0f, TARN__ROUND_F32);
    float r = tarn__reduce_ln2_f32(x, rounded - TARN__ROUND_F32);
    return (1.0f + tarn__expm1_near_f32(r)) * tarn__pow2_f32((int32_t)(tarn__bits_f32(rounded) - 0x4b400000u));
}

#define CALM_TILE(name, value)                                                                                         \
    FORM_TILE(near_##name##_f32, float, 1, value)                                                                      \
    TWO_FORMS(calm_##name##_f32, float, f32, 1, 1, near_##name##_f32, tile_##name##_f32, !(fabsf(X[i]) <= CALM))
static inline float sigmoid_calm(float x)
{
    float e = exp_calm(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}
static inline float silu_calm(float x)
{
    float e = exp_calm(-fabsf(x));
    return x * (x < 0 ? e : 1.0f) / (1.0f + e);
}
CALM_TILE(exp, exp_calm(X[i]))
CALM_TILE(sigmoid, sigmoid_calm(X[i]))
CALM_TILE(silu, silu_calm(X[i]))

/* The slopes of sigmoid and tanh as e / (1 + e)², which has nothing to cancel. */
static inline float bell_calm(float x)
{
    float e = exp_calm(-fabsf(x));
    return e / tarn__fma_f32(e, e + 2.0f, 1.0f); /* the square of 1 + e, rounded fewer times */
}

#define CALM_GRAD_TILE(name, most, slope)                                                                              \
    FORM_TILE(near_##name##_grad, float, 2, G[i] * (slope))                                                            \
    TWO_FORMS(calm_##name##_grad, float, f32, 2, 1, near_##name##_grad, tile_##name##_grad_near,                       \
              !(fabsf(X[i]) <= (most)))
CALM_GRAD_TILE(sigmoid, CALM, bell_calm(X[i]))
CALM_GRAD_TILE(tanh, CALM / 2, 4.0f * bell_calm(2.0f * X[i]))

/* ---- gelu_erf of 16-bit operands, whose results are far from needing f64 -------------------------------------------------------- */

#define HALF_MOST 11.0f

/* Half of erfc(|x| / sqrt 2): e^(-x²/2) times a polynomial, as tarn__erfcx_near() has it. */
TARN__VECTOR static inline float gelu_tail_half(float x, float e)
{
    float a = fabsf(x) * 0x1.6a09e6p-1f, t = (a - 4.0f) / (a + 4.0f);
    float p = 0x1.f0684ep-20f;
    p = tarn__fma_f32(p, t, -0x1.dca4dep-19f);
    p = tarn__fma_f32(p, t, -0x1.709e44p-16f);
    p = tarn__fma_f32(p, t, 0x1.51c4c6p-14f);
    p = tarn__fma_f32(p, t, -0x1.6cec8ep-16f);
    p = tarn__fma_f32(p, t, -0x1.a34f2cp-11f);
    p = tarn__fma_f32(p, t, 0x1.0a16cp-8f);
    p = tarn__fma_f32(p, t, -0x1.a4ddacp-7f);
    p = tarn__fma_f32(p, t, 0x1.0066eap-5f);
    p = tarn__fma_f32(p, t, -0x1.027d5cp-4f);
    p = tarn__fma_f32(p, t, 0x1.be502cp-4f);
    p = tarn__fma_f32(p, t, -0x1.506666p-3f);
    p = tarn__fma_f32(p, t, 0x1.bff01ap-3f);
    p = tarn__fma_f32(p, t, -0x1.094922p-2f);
    return 0.5f * tarn__fma_f32(p, t, 0x1.18932cp-3f) * e;
}

static inline float gelu_erf_half(float x)
{
    float tail = gelu_tail_half(x, exp_calm(-0.5f * x * x));
    return x * (x < 0 ? tail : 1.0f - tail);
}

/* Beside its root the slope is a difference of two nearly equal numbers: there its series counts, as in near.h. */
static inline float gelu_erf_grad_half(float x)
{
    float e = exp_calm(-0.5f * x * x), tail = gelu_tail_half(x, e);
    float slope = (x < 0 ? tail : 1.0f - tail) + x * 0x1.988454p-2f * e;
    float d = (x + 0x1.80ead2p-1f) - 0x1.a03fd4p-27f;
    float series = d * tarn__fma_f32(d, tarn__fma_f32(d, -0x1.2a2efap-6f, 0x1.8d9a94p-2f), 0x1.b9d99p-2f);
    return fabsf(d) < 0x1p-7f ? series : slope;
}

#define BEYOND_HALF (!(fabsf(X[i]) <= HALF_MOST))
FORM_TILE(near_gelu_erf_half, float, 1, gelu_erf_half(X[i]))
FORM_TILE(near_gelu_erf_grad_half, float, 2, G[i] * gelu_erf_grad_half(X[i]))
TWO_FORMS(half_gelu_erf, float, f32, 1, 1, near_gelu_erf_half, tile_gelu_erf_near, BEYOND_HALF)
TWO_FORMS(half_gelu_erf_grad, float, f32, 2, 1, near_gelu_erf_grad_half, tile_gelu_erf_grad_near, BEYOND_HALF)

#endif

#if TARN__PACK != 4
/* ---- the gradient of rsqrt with one division, where x · sqrt(x) stays far within the range of f32 ------------------------------- */

FORM_TILE(near_rsqrt_grad_f32, float, 2, G[i] / (-2.0f * X[i] * sqrtf(X[i])))
TWO_FORMS(guarded_rsqrt_grad_f32, float, f32, 2, 1, near_rsqrt_grad_f32, tile_rsqrt_grad_f32,
          !((X[i] > 0x1p-80f) & (X[i] < 0x1p80f)))
#endif
