/* arm_math.h: rows of elementwise.def on AArch64 that other levels leave to the compiler: its vectors of f64 hold two numbers there, and where f32
 * does with a little care it is four times as fast. Errors stay below 4 units in the last place. Polynomials
 * have their odd and even terms apart: two short sums end before one long one. elementwise.c includes it after packed.h. */
#if TARN__PACK == 4

/* ---- logarithms and exponentials ---- */

/* For normal x > 0: tarn__log2_f32() without its edges. */
PACK_INLINE pack pack_log2(pack x) {
    pack from = pack_bits_minus(x, pack_bits_all(0x3f3504f3u));
    pack f = pack_bits_minus(x, pack_bits_and(from, pack_bits_all(0xff800000u))) - pack_all(1.0f);
    pack p = PACK_STEP(pack_all(-0x1.e55a7p-4f), f, 0x1.87b19ap-3f);
    p = PACK_STEP(p, f, -0x1.84c91ep-3f);
    p = PACK_STEP(p, f, 0x1.a0f4a6p-3f);
    p = PACK_STEP(p, f, -0x1.ead168p-3f);
    p = PACK_STEP(p, f, 0x1.278fdp-2f);
    p = PACK_STEP(p, f, -0x1.715a96p-2f);
    p = PACK_STEP(p, f, 0x1.ec7028p-2f);
    p = PACK_STEP(p, f, -0x1.71547p-1f);
    p = PACK_STEP(p, f, 0x1.c551dap-2f);
    return pack_exponent(from) + pack_fma(f, p, f);
}

/* x >= -87: the larger of x and 0, and e P(e) with e = e^-|x|, where P(e) is log(1 + e) / e. */
PACK_INLINE pack pack_softplus(pack x) {
    pack e = pack_exp(-pack_least(pack_all(87.0f), pack_size(x)));
    pack z = e * e, odd = PACK_STEP(pack_all(-0x1.a93374p-9f), z, -0x1.d29cd4p-5f), even = PACK_STEP(pack_all(0x1.453f18p-6f), z, 0x1.b25366p-4f);
    odd = PACK_STEP(odd, z, -0x1.397564p-3f), even = PACK_STEP(even, z, 0x1.92f698p-3f);
    odd = PACK_STEP(odd, z, -0x1.ff0f88p-3f), even = PACK_STEP(even, z, 0x1.554c8p-2f);
    odd = PACK_STEP(odd, z, -0x1.ffffbep-2f);
    return pack_fma(e, PACK_STEP(pack_fma(even, e, odd), e, 1.0f), pack_most(pack_all(0.0f), x));
}

#define BELOW_SOFTPLUS(x) pack_not_within(-(x), pack_all(87.0f))
#define BELOW_SOFTPLUS_ALONE(x) (!(-(x) <= 87.0f))

PACKED_TILE(log2, BESIDE_LOG, pack_log2(x), tarn__log2_f32(x))
PACKED_GRAD_TILE(exp2, BEYOND_EXP2, g * (pack_all(0x1.62e43p-1f) * pack_exp2(x)), g * 0.6931471805599453 * tarn__exp2_near(0.5 * x) * tarn__exp2_near(0.5 * x))
PACKED_TILE(softplus, BELOW_SOFTPLUS, pack_softplus(x), (float)((double)(x < 0 ? 0 : x) + tarn__log1p_near(tarn__exp_near(-fabs((double)x)))))
PACKED_GRAD_TILE(softplus, BELOW_SIGMOID, g * pack_sigmoid(x), g * sigmoid_f64(x))

/* ---- the error function ---- */

/* Every x: 1 - e^v with v = -u R(u) and u = |x|, in which nothing cancels. Beyond 3.93 it is 1. */
PACK_INLINE pack pack_erf(pack x) {
    pack u = pack_least(pack_all(3.93f), pack_size(x)), z = u * u;
    pack even = PACK_STEP(pack_all(0x1.3696a2p-17f), z, 0x1.4bc9e4p-11f), odd = PACK_STEP(pack_all(-0x1.ed6c46p-14f), z, -0x1.b5004cp-10f);
    even = PACK_STEP(even, z, 0x1.505fcep-13f), odd = PACK_STEP(odd, z, 0x1.39cdc6p-6f);
    even = PACK_STEP(even, z, -0x1.a4fa5ep-4f), odd = PACK_STEP(odd, z, -0x1.45f2fap-1f);
    pack v = u * PACK_STEP(pack_fma(even, u, odd), u, -0x1.20dd76p+0f);
    pack rounded = pack_fma(v, pack_all(0x1.715476p+0f), pack_all(TARN__ROUND_F32)), k = rounded - pack_all(TARN__ROUND_F32);
    pack r = pack_fma(k, pack_all(-TARN__LN2_LOW_F32), pack_fma(k, pack_all(-TARN__LN2_HIGH_F32), v)), s = pack_two_to_whole(rounded);
    return pack_with_sign(vfmsq_f32(pack_all(1.0f) - s, s, pack_expm1_near(r)), x);
}

/* 2 / sqrt(pi) e^(-x²) for |x| <= 9: with what the square loses. */
PACK_INLINE pack pack_erf_slope(pack x) {
    pack square = x * x, low = vfmsq_f32(square, x, x), rounded = pack_fma(square, pack_all(-0x1.715476p+0f), pack_all(TARN__ROUND_F32));
    pack k = rounded - pack_all(TARN__ROUND_F32), most = pack_fma(k, pack_all(-TARN__LN2_HIGH_F32), -square);
    pack rest = pack_expm1_near(pack_fma(k, pack_all(-TARN__LN2_LOW_F32), most + low)), c = pack_all(0x1.20dd76p+0f);
    return pack_moved(pack_fma(c, rest, c), rounded);
}

#define BEYOND_ERF(x) pack_beyond(x, pack_all(9.0f))
#define BEYOND_ERF_ALONE(x) (!(fabsf(x) <= 9.0f))

PACKED_TILE(erf, NOWHERE, pack_erf(x), tarn__erf_f32(x))
PACKED_GRAD_TILE(erf, BEYOND_ERF, g * pack_erf_slope(x), g * 1.1283791670955126 * tarn__exp_near(-x * x))

#define tile_log2_f32 packed_log2
#define tile_exp2_grad_near packed_exp2_grad
#define tile_softplus_near packed_softplus
#define tile_softplus_grad_f32 packed_softplus_grad
#define tile_erf_f32 packed_erf
#define tile_erf_grad_near packed_erf_grad

#endif
