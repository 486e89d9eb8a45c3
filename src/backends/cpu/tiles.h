/* tiles.h: the loops of the element-wise kernels around the expressions of elementwise.def, for one type computed in: T is its name, `real` the type
 * itself. Included by elementwise.c for f32 and by elementwise_wide.c for f64 and i64. */
#ifndef TARN__TILES_H
#define TARN__TILES_H

#include "backends/cpu/forms.h"
#include "backends/cpu/tile.h"

#define TILE_HEAD(name) TARN__UNUSED static void TARN__PASTE(name, T)(int64_t n, const void *const *in, void *const *out, const tarn__elementwise *params)
#define SCALARS                                                                                                                           \
    const real P0 = ON(scalar)(params->p0), P1 = ON(scalar)(params->p1);                                                                              \
    (void)P0, (void)P1

#define VALUE_TILE(name, value)                                                                                                           \
    TILE_HEAD(tile_##name)                                                                                                               \
    {                                                                                                                                    \
        SCALARS;                                                                                                                         \
        const real *X = in[0];                                                                                                           \
        real *Y = out[0];                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real x = X[i];                                                                                                         \
            Y[i] = (value);                                                                                                              \
        }                                                                                                                                \
    }
#define GRAD_TILE(name, value, gradient)                                                                                                  \
    TILE_HEAD(tile_##name##_grad)                                                                                                        \
    {                                                                                                                                    \
        SCALARS;                                                                                                                         \
        const real *X = in[0], *G = in[1];                                                                                               \
        real *Y = out[0];                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real x = X[i], g = G[i], y = (value);                                                                                  \
            (void)x, (void)g, (void)y;                                                                                                   \
            Y[i] = (gradient);                                                                                                           \
        }                                                                                                                                \
    }
#define PAIR_TILE(name, value)                                                                                                            \
    TILE_HEAD(tile_##name)                                                                                                               \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const real *A = in[0], *B = in[1];                                                                                               \
        real *Y = out[0];                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real a = A[i], b = B[i];                                                                                               \
            Y[i] = (value);                                                                                                              \
        }                                                                                                                                \
    }
/* One element as b for the whole tile. */
#define REPEATED_TILE(name, value)                                                                                                        \
    TILE_HEAD(repeated_##name)                                                                                                            \
    {                                                                                                                                     \
        (void)params;                                                                                                                     \
        const real *A = in[0], b = *(const real *)in[1];                                                                                  \
        real *Y = out[0];                                                                                                                 \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                 \
        {                                                                                                                                 \
            const real a = A[i];                                                                                                          \
            Y[i] = (value);                                                                                                               \
        }                                                                                                                                 \
    }
#define PAIR_GRAD_TILE(suffix, name, gradient)                                                                                            \
    TILE_HEAD(tile_##name##suffix)                                                                                                       \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const real *A = in[0], *B = in[1], *G = in[2];                                                                                   \
        real *Y = out[0];                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real a = A[i], b = B[i], g = G[i];                                                                                     \
            (void)a, (void)b;                                                                                                            \
            Y[i] = (gradient);                                                                                                           \
        }                                                                                                                                \
    }
#define PAIR_BOTH_TILE(name, gradient_a, gradient_b)                                                                                      \
    TILE_HEAD(tile_##name##_grad)                                                                                                        \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const real *A = in[0], *B = in[1], *G = in[2];                                                                                   \
        real *YA = out[0], *YB = out[1];                                                                                                 \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real a = A[i], b = B[i], g = G[i];                                                                                     \
            (void)a, (void)b;                                                                                                            \
            const real ga = (gradient_a), gb = (gradient_b);                                                                             \
            YA[i] = ga;                                                                                                                  \
            YB[i] = gb;                                                                                                                  \
        }                                                                                                                                \
    }
#define COMPARE_TILE(name, value)                                                                                                         \
    TILE_HEAD(tile_##name)                                                                                                               \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const real *A = in[0], *B = in[1];                                                                                               \
        uint8_t *Y = out[0];                                                                                                             \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real a = A[i], b = B[i];                                                                                               \
            Y[i] = (uint8_t)(value);                                                                                                     \
        }                                                                                                                                \
    }
#define WHERE_TILE                                                                                                                        \
    TILE_HEAD(tile_where)                                                                                                                \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const real *C = in[0], *A = in[1], *B = in[2];                                                                                   \
        real *Y = out[0];                                                                                                                \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const real a = A[i], b = B[i]; /* both are read, so that the choice is no jump */                                            \
            Y[i] = C[i] != 0 ? a : b;                                                                                                    \
        }                                                                                                                                \
    }                                                                                                                                    \
    TILE_HEAD(tile_where_grad)                                                                                                           \
    {                                                                                                                                    \
        (void)params;                                                                                                                    \
        const real *C = in[0], *G = in[1];                                                                                               \
        real *A = out[0], *B = out[1];                                                                                                   \
        TARN__INDEPENDENT for (int64_t i = 0; i < n; i++)                                                                                \
        {                                                                                                                                \
            const bool holds = C[i] != 0;                                                                                                \
            const real g = G[i];                                                                                                         \
            A[i] = holds ? g : 0;                                                                                                        \
            B[i] = holds ? 0 : g;                                                                                                        \
        }                                                                                                                                \
    }

/* ---- sin and cos once more, for large arguments, which go to the C library one by one ---------------------------- */

#define TRIG_TILES(name, real, t, value, gradient)                                                                     \
    RARE_FORM_TILE(far_##name##_##t, real, 1, value)                                                                   \
    RARE_FORM_TILE(far_##name##_grad_##t, real, 2, gradient)                                                           \
    TWO_FORMS(guarded_##name##_##t, real, t, 1, 1, tile_##name##_##t, far_##name##_##t, tarn__trig_is_large_##t(X[i])) \
    TWO_FORMS(guarded_##name##_grad_##t, real, t, 2, 1, tile_##name##_grad_##t, far_##name##_grad_##t,                 \
              tarn__trig_is_large_##t(X[i]))

/* ---- the gradient of a quotient once more, where a / b or (a / b) / b leave the range that the result may have ----- */

#define DIV_TILES(real, wide, t, low, high)                                                                            \
    static inline int is_far_quotient_##t(real a, real b)                                                              \
    {                                                                                                                  \
        real q = a / b, size = q < 0 ? -q : q, divisor = b < 0 ? -b : b;                                               \
        return (size > (real)high) | ((size < (real)low) & (a != 0)) | (divisor < (real)low) | (divisor > (real)high); \
    }                                                                                                                  \
    RARE_FORM_TILE(far_div_grad_b_##t, real, 3, (real)(-(wide)G[i] * (((wide)X[i] / (wide)Z[i]) / (wide)Z[i])))        \
    TARN__RARE static void far_div_grad_##t(int64_t n, const void *const *in, void *const *out,                        \
                                            const tarn__elementwise *params)                                           \
    {                                                                                                                  \
        tile_div_grad_a_##t(n, in, &out[0], params);                                                                   \
        far_div_grad_b_##t(n, in, &out[1], params);                                                                    \
    }                                                                                                                  \
    TWO_FORMS(guarded_div_grad_b_##t, real, t, 3, 1, tile_div_grad_b_##t, far_div_grad_b_##t,                          \
              is_far_quotient_##t(X[i], Z[i]))                                                                         \
    TWO_FORMS(guarded_div_grad_##t, real, t, 3, 2, tile_div_grad_##t, far_div_grad_##t, is_far_quotient_##t(X[i], Z[i]))

#endif
