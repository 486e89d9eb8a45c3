/* packed.h: rows of elementwise.def on packs, where the level has them (packs.h). A function of pack_math.h holds for almost every element; where one of
 * a pack lies outside, that element alone is computed again by the form that always holds, so that no result depends on its neighbours.
 * elementwise.c includes it after guards.h. */
#include "backends/cpu/pack_math.h"

#if TARN__PACK

/* A kernel of whole_##name() over n elements, several packs at a time. */
#define PACKED_RUN(name)                                                                                                                 \
    static void packed_##name(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)                       \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const float *X = in[0];                                                                                                          \
        float *Y = out[0];                                                                                                               \
        int64_t i = 0;                                                                                                                   \
        for (; i + PACKS_AT_ONCE * TARN__PACK <= n; i += PACKS_AT_ONCE * TARN__PACK)                                                     \
            several_##name(X + i, Y + i);                                                                                                \
        for (; i + TARN__PACK <= n; i += TARN__PACK)                                                                                     \
            pack_store(Y + i, whole_##name(pack_load(X + i)));                                                                           \
        if (i < n)                                                                                                                       \
            pack_store_some(Y + i, whole_##name(pack_load_some(X + i, n - i)), n - i);                                                   \
    }

/* One pass over a tile: `value` from the pack x, where no lane of `outside` is set; `alone` from the single x elsewhere. */
#define PACKED_TILE(name, outside, value, alone)                                                                                          \
    __attribute__((noinline, cold)) static pack mend_##name(pack x_pack, pack y_pack)                                                   \
    {                                                                                                                                    \
        float from[TARN__PACK], to[TARN__PACK];                                                                                          \
        pack_store(from, x_pack), pack_store(to, y_pack);                                                                                \
        for (int j = 0; j < TARN__PACK; j++) {                                                                                           \
            const float x = from[j];                                                                                                     \
            to[j] = outside##_ALONE(x) ? (alone) : to[j];                                                                                \
        }                                                                                                                                \
        return pack_load(to);                                                                                                            \
    }                                                                                                                                    \
    PACK_INLINE pack whole_##name(pack x)                                                                                                \
    {                                                                                                                                    \
        pack y = value;                                                                                                                  \
        return __builtin_expect(pack_any(outside(x)), 0) ? mend_##name(x, y) : y;                                                        \
    }                                                                                                                                    \
    PACK_INLINE void several_##name(const float *X, float *Y)                                                                            \
    {                                                                                                                                    \
        pack from[PACKS_AT_ONCE], to[PACKS_AT_ONCE];                                                                                     \
        pack_mask beyond = (pack_mask){0};                                                                                               \
        for (int k = 0; k < PACKS_AT_ONCE; k++) {                                                                                        \
            const pack x = from[k] = pack_load(X + k * TARN__PACK);                                                                      \
            to[k] = value;                                                                                                               \
            beyond = k ? pack_either(beyond, outside(x)) : outside(x);                                                                   \
        }                                                                                                                                \
        if (__builtin_expect(pack_any(beyond), 0))                                                                                       \
            for (int k = 0; k < PACKS_AT_ONCE; k++)                                                                                      \
                to[k] = mend_##name(from[k], to[k]);                                                                                     \
        for (int k = 0; k < PACKS_AT_ONCE; k++)                                                                                          \
            pack_store(Y + k * TARN__PACK, to[k]);                                                                                       \
    }                                                                                                                                    \
    PACKED_RUN(name)

/* The same for a gradient from x and g. */
#define PACKED_GRAD_TILE(name, outside, value, alone) PACKED_GRAD_TILE_OF(PACKS_AT_ONCE, name, outside, value, alone)

/* The same with another number of packs at a time. */
#define PACKED_GRAD_TILE_OF(packs, name, outside, value, alone)                                                                          \
    __attribute__((noinline, cold)) static pack mend_##name##_grad(pack x_pack, pack g_pack, pack y_pack)                                \
    {                                                                                                                                    \
        float from[TARN__PACK], by[TARN__PACK], to[TARN__PACK];                                                                          \
        pack_store(from, x_pack), pack_store(by, g_pack), pack_store(to, y_pack);                                                        \
        for (int j = 0; j < TARN__PACK; j++) {                                                                                           \
            const double x = (double)from[j], g = (double)by[j];                                                                         \
            to[j] = outside##_ALONE(from[j]) ? (float)(alone) : to[j];                                                                   \
        }                                                                                                                                \
        return pack_load(to);                                                                                                            \
    }                                                                                                                                    \
    PACK_INLINE pack whole_##name##_grad(pack x, pack g)                                                                                 \
    {                                                                                                                                    \
        pack y = value;                                                                                                                  \
        return __builtin_expect(pack_any(outside(x)), 0) ? mend_##name##_grad(x, g, y) : y;                                              \
    }                                                                                                                                    \
    PACK_INLINE void several_##name##_grad(const float *X, const float *G, float *Y)                                                     \
    {                                                                                                                                    \
        pack from[packs], by[packs], to[packs];                                                                                          \
        pack_mask beyond = (pack_mask){0};                                                                                               \
        for (int k = 0; k < packs; k++) {                                                                                                \
            const pack x = from[k] = pack_load(X + k * TARN__PACK), g = by[k] = pack_load(G + k * TARN__PACK);                           \
            to[k] = value;                                                                                                               \
            beyond = k ? pack_either(beyond, outside(x)) : outside(x);                                                                   \
        }                                                                                                                                \
        if (__builtin_expect(pack_any(beyond), 0))                                                                                       \
            for (int k = 0; k < packs; k++)                                                                                              \
                to[k] = mend_##name##_grad(from[k], by[k], to[k]);                                                                       \
        for (int k = 0; k < packs; k++)                                                                                                  \
            pack_store(Y + k * TARN__PACK, to[k]);                                                                                       \
    }                                                                                                                                    \
    static void packed_##name##_grad(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)                \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const float *X = in[0], *G = in[1];                                                                                              \
        float *Y = out[0];                                                                                                               \
        int64_t i = 0;                                                                                                                   \
        for (; i + packs * TARN__PACK <= n; i += packs * TARN__PACK)                                                                     \
            several_##name##_grad(X + i, G + i, Y + i);                                                                                  \
        for (; i + TARN__PACK <= n; i += TARN__PACK)                                                                                     \
            pack_store(Y + i, whole_##name##_grad(pack_load(X + i), pack_load(G + i)));                                                  \
        if (i < n)                                                                                                                       \
            pack_store_some(Y + i, whole_##name##_grad(pack_load_some(X + i, n - i), pack_load_some(G + i, n - i)), n - i);              \
    }

/* Where a function does not hold, for a pack and for one element; NaN is always outside. */
#define BEYOND_EXP(x) pack_beyond(x, pack_all(87.0f))
#define BEYOND_EXP_ALONE(x) (!(fabsf(x) <= 87.0f))
#define BEYOND_EXP2(x) pack_beyond(x, pack_all(125.0f))
#define BEYOND_EXP2_ALONE(x) (!(fabsf(x) <= 125.0f))
#define BEYOND_BELL(x) pack_beyond(x, pack_all(80.0f))
#define BEYOND_BELL_ALONE(x) (!(fabsf(x) <= 80.0f))
#define BEYOND_TANH(x) pack_beyond(x, pack_all(40.0f))
#define BEYOND_TANH_ALONE(x) (!(fabsf(x) <= 40.0f))
#define BEYOND_TRIG(x) pack_beyond(x, pack_all(PACK_TRIG_MOST))
#define BEYOND_TRIG_ALONE(x) (!(fabsf(x) <= PACK_TRIG_MOST))
#define BELOW_SIGMOID(x) pack_not_within(-(x), pack_all(80.0f))
#define BELOW_SIGMOID_ALONE(x) (!(-(x) <= 80.0f))
#define BELOW_GELU(x) pack_not_within(-(x), pack_all(-PACK_GELU_LEAST))
#define BELOW_GELU_ALONE(x) (!((x) >= PACK_GELU_LEAST))
#define BESIDE_GELU(x) pack_not_within(pack_most(x, (x)*pack_all(-2.0f)), pack_all(-2.0f * PACK_GELU_LEAST)) /* or above 12 */
#define BESIDE_GELU_ALONE(x) (!((x) >= PACK_GELU_LEAST && (x) <= -2.0f * PACK_GELU_LEAST))
#define BELOW_TANH_GELU(x) pack_not_within(-(x), pack_all(PACK_TANH_GELU_MOST))
#define BELOW_TANH_GELU_ALONE(x) (!((x) >= -PACK_TANH_GELU_MOST))
#define NEAR_ROOT(x) pack_below(pack_size((x) + pack_all(PACK_TANH_GELU_ROOT)), pack_all(0x1.8p-7f))
#define BESIDE_TANH_GELU(x) pack_not_within(pack_choose(NEAR_ROOT(x), pack_all(FLT_MAX), pack_size(x)), pack_all(PACK_TANH_GELU_MOST))
#define BESIDE_TANH_GELU_ALONE(x) (!(fabsf(x) <= PACK_TANH_GELU_MOST) || fabsf((x) + PACK_TANH_GELU_ROOT) < 0x1.8p-7f)
#define BESIDE_LOG(x) pack_not_normal(x)
#define BESIDE_LOG_ALONE(x) (!((x) >= FLT_MIN && (x) <= FLT_MAX))
#define NOWHERE(x) ((pack_mask){0})
#define NOWHERE_ALONE(x) 0

PACKED_TILE(exp, BEYOND_EXP, pack_exp(x), tarn__exp_f32(x))
PACKED_TILE(exp2, BEYOND_EXP2, pack_exp2(x), tarn__exp2_f32(x))
PACKED_TILE(log, BESIDE_LOG, pack_log(x), tarn__log_f32(x))
PACKED_TILE(tanh, NOWHERE, pack_tanh(x), tarn__tanh_f32(x))
PACKED_TILE(sigmoid, BELOW_SIGMOID, pack_sigmoid(x), sigmoid_f32(x))
PACKED_TILE(silu, BELOW_SIGMOID, pack_silu(x), silu_f32(x))
PACKED_TILE(sin, BEYOND_TRIG, pack_sin(x), trig_f32(x, 0))
PACKED_TILE(cos, BEYOND_TRIG, pack_cos(x), trig_f32(x, 1))
PACKED_TILE(gelu_erf, BELOW_GELU, pack_gelu_erf(x), (float)(0.5 * (double)x * tarn__erfc_near((double)x * -0.7071067811865476)))

PACKED_TILE(gelu, BELOW_TANH_GELU, pack_gelu(x), (float)gelu_near((double)x))

PACKED_GRAD_TILE_OF(PACKS_OF_MUCH, gelu, BESIDE_TANH_GELU, g * pack_gelu_slope(x), g * TARN__GELU_ROOT_NEAR(x, gelu_grad_near(x)))
PACKED_GRAD_TILE(exp, BEYOND_EXP, g * pack_exp(x), g * tarn__exp_f64(0.5 * x) * tarn__exp_f64(0.5 * x))
PACKED_GRAD_TILE(sigmoid, BEYOND_BELL, g * pack_sigmoid_slope(x), g * sigmoid_grad_near(x))
PACKED_GRAD_TILE(tanh, BEYOND_TANH, g * (pack_all(4.0f) * pack_sigmoid_slope(x + x)), g * sech2_near(x))
PACKED_GRAD_TILE(silu, BEYOND_BELL, g * pack_silu_slope(x), g * silu_grad_near(x))
PACKED_GRAD_TILE(gelu_erf, BESIDE_GELU, g * pack_gelu_erf_slope(x), g * gelu_erf_grad_near(x))
PACKED_GRAD_TILE(sin, BEYOND_TRIG, g * pack_cos(x), g * (double)trig_f32((float)x, 1))
PACKED_GRAD_TILE(cos, BEYOND_TRIG, -g * pack_sin(x), -g * (double)trig_f32((float)x, 0))

#endif
