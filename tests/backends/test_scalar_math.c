/*
 * The CPU backend's elementary functions and converters against libm and against exact rounding.
 *
 * f32 functions are compared with libm in double over every 1021st bit pattern (1021 is prime, so all low bits occur),
 * f64 functions with long double on drawn inputs. An error is measured in units in the last place of the true value;
 * the bounds are those that the headers promise.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/backends/cpu/common/convert.h"
#include "../../src/backends/cpu/common/scalar_math.h"
#include "../../src/backends/cpu/common/scalar_math_special.h"
#include "../../src/backends/cpu/common/scalar_math_trig.h"

#define TILE 4096
#define STEP 1021
#define SEED UINT64_C(0x9e3779b97f4a7c15)

static float x32[TILE], z32[TILE], y32[TILE];
static double x64[TILE], z64[TILE], y64[TILE];

static uint64_t draw_state;

static uint64_t draw(void)
{
    draw_state ^= draw_state << 13;
    draw_state ^= draw_state >> 7;
    draw_state ^= draw_state << 17;
    return draw_state;
}

static double draw_unit(void)
{
    return (double)(draw() >> 11) * 0x1p-53;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static double double_of(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

static int same_f32(float a, float b)
{
    return (isnan(a) && isnan(b)) || (a == b && !signbit(a) == !signbit(b));
}

static int same_f64(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a == b && !signbit(a) == !signbit(b));
}

/* HUGE_VAL where no error is allowed at all: NaN, infinities, zeros. */
static double error_f32(double want, float got)
{
    float rounded = (float)want;
    if (isnan(want) || isinf(rounded) || isinf(got) || want == 0.0)
        return same_f32(rounded, got) ? 0.0 : HUGE_VAL;
    int e;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1.0, (e < -125 ? -125 : e) - 24);
}

static double error_f64(long double want, double got)
{
    double rounded = (double)want;
    if (isnan(want) || isinf(rounded) || isinf(got) || want == 0.0L)
        return same_f64(rounded, got) ? 0.0 : HUGE_VAL;
    int e;
    frexpl(want, &e);
    return (double)(fabsl((long double)got - want) / ldexpl(1.0L, (e < -1021 ? -1021 : e) - 53));
}

/* ---- one loop for each function, as a kernel would write it ------------------------------------------------------ */

#define UNARY(name) \
    static void run_##name##_f32(void) \
    { \
        for (int i = 0; i < TILE; i++) \
            y32[i] = tarn__##name##_f32(x32[i]); \
    } \
    static void run_##name##_f64(void) \
    { \
        for (int i = 0; i < TILE; i++) \
            y64[i] = tarn__##name##_f64(x64[i]); \
    }

UNARY(exp)
UNARY(exp2)
UNARY(expm1)
UNARY(log)
UNARY(log2)
UNARY(log1p)
UNARY(tanh)
UNARY(erf)
UNARY(erfc)

static void run_sin_f32(void)
{
    tarn__sin_tile_f32(x32, y32, TILE);
}
static void run_cos_f32(void)
{
    tarn__cos_tile_f32(x32, y32, TILE);
}
static void run_sin_f64(void)
{
    tarn__sin_tile_f64(x64, y64, TILE);
}
static void run_cos_f64(void)
{
    tarn__cos_tile_f64(x64, y64, TILE);
}

static const struct function {
    const char *name;
    void (*run32)(void), (*run64)(void);
    double (*want32)(double);
    long double (*want64)(long double);
    double low, high; /* where the function changes most: half of the f64 inputs lie here */
    double bound32, bound64;
} functions[] = {
    {"exp", run_exp_f32, run_exp_f64, exp, expl, -750, 710, 1, 1.5},
    {"exp2", run_exp2_f32, run_exp2_f64, exp2, exp2l, -1080, 1025, 1.5, 1.5},
    {"expm1", run_expm1_f32, run_expm1_f64, expm1, expm1l, -2, 2, 2, 2.5},
    {"log", run_log_f32, run_log_f64, log, logl, 0, 2, 1, 1.5},
    {"log2", run_log2_f32, run_log2_f64, log2, log2l, 0, 2, 1.5, 2},
    {"log1p", run_log1p_f32, run_log1p_f64, log1p, log1pl, -1, 2, 1.5, 1.5},
    {"sin", run_sin_f32, run_sin_f64, sin, sinl, -1e4, 1e4, 1, 3},
    {"cos", run_cos_f32, run_cos_f64, cos, cosl, -10, 10, 1, 3},
    {"tanh", run_tanh_f32, run_tanh_f64, tanh, tanhl, -4, 4, 1.5, 3},
    {"erf", run_erf_f32, run_erf_f64, erf, erfl, -4, 4, 1.5, 1.5},
    {"erfc", run_erfc_f32, run_erfc_f64, erfc, erfcl, -3, 28, 1, 4},
};

#define FUNCTIONS (sizeof functions / sizeof functions[0])

static void f32_functions_keep_their_bounds(void **state)
{
    (void)state;
    for (size_t f = 0; f < FUNCTIONS; f++) {
        double worst = 0.0;
        float at = 0.0f;
        for (uint64_t u = 0; u <= UINT32_MAX;) {
            for (int i = 0; i < TILE; i++, u += STEP)
                x32[i] = float_of((uint32_t)u); /* wraps once, at the end */
            functions[f].run32();
            for (int i = 0; i < TILE; i++) {
                double error = error_f32(functions[f].want32((double)x32[i]), y32[i]);
                if (error > worst)
                    worst = error, at = x32[i];
            }
        }
        print_message("  %-6s f32 %.3f ulp at %a\n", functions[f].name, worst, (double)at);
        if (worst > functions[f].bound32)
            fail_msg("%s_f32(%a) is wrong by %g ulp", functions[f].name, (double)at, worst);
    }
}

/* Any bit pattern, a drawn value in the range, or a value of moderate size, in turn. */
static double input_f64(const struct function *f, int round)
{
    uint64_t u = draw();
    if (round % 2)
        return f->low + (f->high - f->low) * draw_unit();
    if (round % 4 == 2)
        u = (u & UINT64_C(0x800fffffffffffff)) | ((993 + draw() % 40) << 52);
    return double_of(u);
}

static void f64_functions_keep_their_bounds(void **state)
{
    (void)state;
    draw_state = SEED;
    for (size_t f = 0; f < FUNCTIONS; f++) {
        double worst = 0.0, at = 0.0;
        for (int round = 0; round < 40; round++) {
            for (int i = 0; i < TILE; i++)
                x64[i] = input_f64(&functions[f], round);
            functions[f].run64();
            for (int i = 0; i < TILE; i++) {
                double error = error_f64(functions[f].want64((long double)x64[i]), y64[i]);
                if (error > worst)
                    worst = error, at = x64[i];
            }
        }
        print_message("  %-6s f64 %.3f ulp at %a\n", functions[f].name, worst, at);
        if (worst > functions[f].bound64)
            fail_msg("%s_f64(%a) is wrong by %g ulp (seed %#llx)", functions[f].name, at, worst,
                     (unsigned long long)SEED);
    }
}

/* Half of the exponents are chosen so that the result is in range; half of those are whole, where negative bases count.
 */
static void pow_keeps_its_bounds(void **state)
{
    (void)state;
    draw_state = SEED;
    double worst32 = 0.0, worst64 = 0.0;
    for (int round = 0; round < 60; round++) {
        for (int i = 0; i < TILE; i++) {
            x32[i] = float_of((uint32_t)draw());
            z32[i] = float_of((uint32_t)draw());
            x64[i] = round % 8 == 7 ? 1.0 + ldexp(draw_unit() - 0.5, -(int)(draw() % 40)) : double_of(draw());
            z64[i] = double_of(draw());
            if (round % 2 == 0)
                continue;
            z32[i] = (float)((draw_unit() * 300 - 150) / log2(fabs((double)x32[i])));
            z64[i] = (draw_unit() * 2200 - 1100) / log2(fabs(x64[i]));
            if (round % 4 == 1)
                z32[i] = rintf(z32[i]), z64[i] = rint(z64[i]);
        }
        for (int i = 0; i < TILE; i++)
            y32[i] = tarn__pow_f32(x32[i], z32[i]);
        for (int i = 0; i < TILE; i++)
            y64[i] = tarn__pow_f64(x64[i], z64[i]);
        for (int i = 0; i < TILE; i++) {
            worst32 = fmax(worst32, error_f32(pow((double)x32[i], (double)z32[i]), y32[i]));
            worst64 = fmax(worst64, error_f64(powl((long double)x64[i], (long double)z64[i]), y64[i]));
        }
    }
    print_message("  pow    f32 %.3f ulp, f64 %.3f ulp\n", worst32, worst64);
    if (worst32 > 1.0 || worst64 > 2.0)
        fail_msg("pow is wrong by %g ulp in f32, %g in f64 (seed %#llx)", worst32, worst64, (unsigned long long)SEED);
}

/* ---- special values ---------------------------------------------------------------------------------------------- */

static const double specials[] = {
    0.0,      -0.0,      1.0,      -1.0,       2.0,        -2.0,       0.5,          -0.5,         3.0,
    -3.0,     2.5,       -2.5,     1e30,       -1e30,      1e-30,      -1e-30,       88.72284,     -103.97209,
    0x1p-149, -0x1p-149, 0x1p-126, 16777215.0, 16777216.0, 16777217.0, 0x1p52 - 0.5, 0x1p53 - 1.0, -(0x1p53 - 1.0),
    0x1p53,   DBL_MAX,   -DBL_MAX, DBL_MIN,    0x1p-1074,  -0x1p-1074, 709.78,       -745.13,      1e300,
    INFINITY, -INFINITY, NAN,
};

#define SPECIALS (sizeof specials / sizeof specials[0])

static void special_values_are_those_of_libm(void **state)
{
    (void)state;
    for (size_t f = 0; f < FUNCTIONS; f++) {
        for (size_t i = 0; i < TILE; i++)
            x64[i] = specials[i % SPECIALS], x32[i] = (float)x64[i];
        functions[f].run32();
        functions[f].run64();
        for (size_t i = 0; i < SPECIALS; i++) {
            if (error_f32(functions[f].want32((double)x32[i]), y32[i]) > functions[f].bound32)
                fail_msg("%s_f32(%a) = %a", functions[f].name, (double)x32[i], (double)y32[i]);
            if (error_f64(functions[f].want64((long double)x64[i]), y64[i]) > functions[f].bound64)
                fail_msg("%s_f64(%a) = %a", functions[f].name, x64[i], y64[i]);
        }
    }
}

static void pow_of_special_values_is_that_of_c99(void **state)
{
    (void)state;
    for (size_t i = 0; i < SPECIALS; i++)
        for (size_t j = 0; j < SPECIALS; j++) {
            double x = specials[i], y = specials[j];
            float u = (float)x, v = (float)y;
            if (error_f32(pow((double)u, (double)v), tarn__pow_f32(u, v)) > 1.0)
                fail_msg("pow_f32(%a, %a) = %a", (double)u, (double)v, (double)tarn__pow_f32(u, v));
            if (error_f64(powl((long double)x, (long double)y), tarn__pow_f64(x, y)) > 2.0)
                fail_msg("pow_f64(%a, %a) = %a", x, y, tarn__pow_f64(x, y));
        }
}

static void trig_limits_are_known(void **state)
{
    (void)state;
    assert_false(tarn__trig_is_large_f32(TARN__TRIG_MAX_F32) || tarn__trig_is_large_f32(INFINITY) ||
                 tarn__trig_is_large_f32(NAN));
    assert_true(tarn__trig_is_large_f32(-2.0f * TARN__TRIG_MAX_F32) &&
                tarn__trig_is_large_f64(2.0 * TARN__TRIG_MAX_F64));
    float at = TARN__TRIG_MAX_F32;
    for (int i = 0; i < 100000; i++, at = nextafterf(at, 0.0f)) {
        assert_true(error_f32(sin((double)at), tarn__sin_f32(at)) <= 1.0);
        assert_true(error_f32(cos((double)at), tarn__cos_f32(at)) <= 1.0);
    }
}

/* f64 numbers nearest to multiples of pi/2, where the reduction is hardest. */
static void trig_is_right_next_to_its_zeros(void **state)
{
    (void)state;
    const long double half_pi = 1.57079632679489661923L;
    for (int n = 1; n < 1000000; n += 1 + n / 1000) {
        double x = (double)(half_pi * n);
        double s = error_f64(sinl((long double)x), tarn__sin_f64(x)),
               c = error_f64(cosl((long double)x), tarn__cos_f64(x));
        if (s > 3.0 || c > 3.0)
            fail_msg("sin or cos of %a is wrong by %g ulp", x, fmax(s, c));
    }
}

/* ---- converters -------------------------------------------------------------------------------------------------- */

/* The value of a 16-bit float with the given number of fraction bits, by definition. */
static double value_of(uint16_t h, int fraction_bits)
{
    int bias = (1 << (14 - fraction_bits)) - 1, e = (h & 0x7fff) >> fraction_bits, m = h & ((1 << fraction_bits) - 1);
    double x = e == 2 * bias + 1 ? (m ? (double)NAN : (double)INFINITY)
               : e               ? ldexp(1.0 + ldexp(m, -fraction_bits), e - bias)
                                 : ldexp(m, 1 - bias - fraction_bits);
    return h & 0x8000 ? -x : x;
}

/* x rounded to nearest even in that format: scaled so that its last place is 1, rounded to an integer, scaled back. All
 * but that is exact. */
static long double round_to(long double x, int fraction_bits)
{
    int bias = (1 << (14 - fraction_bits)) - 1, e;
    if (x == 0.0L || isnan(x) || isinf(x))
        return x;
    frexpl(x, &e);
    int last = (e - 1 < 1 - bias ? 1 - bias : e - 1) - fraction_bits;
    long double y = ldexpl(rintl(ldexpl(x, -last)), last);
    return fabsl(y) >= ldexpl(1.0L, bias + 1) ? copysignl((long double)INFINITY, x) : y;
}

static int is_rounded(long double x, uint16_t got, int fraction_bits)
{
    return same_f64((double)round_to(x, fraction_bits), value_of(got, fraction_bits));
}

static void every_16_bit_float_survives_a_round_trip(void **state)
{
    (void)state;
    static uint16_t all[65536], bf16_back[65536], f16_back[65536];
    static float bf16[65536], f16[65536];
    static double wide[65536];
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    tarn__load[2][0](all, 1, bf16, 65536);
    tarn__load[3][0](all, 1, f16, 65536);
    tarn__store[2][0](bf16, bf16_back, 1, 65536);
    tarn__store[3][0](f16, f16_back, 1, 65536);
    for (int i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        assert_true(same_f64((double)bf16[i], value_of(h, 7)) && same_f64((double)f16[i], value_of(h, 10)));
        assert_int_equal(bf16_back[i], isnan(bf16[i]) ? h | 0x0040 : h);
        assert_int_equal(f16_back[i], isnan(f16[i]) ? h | 0x0200 : h);
        assert_true(same_f32(tarn__f16_to_f32(h), f16[i]));
        assert_int_equal(tarn__f32_to_f16(f16[i]), f16_back[i]);
    }
    tarn__load[3][1](all, 1, wide, 65536);
    tarn__store[3][1](wide, f16_back, 1, 65536);
    for (int i = 0; i < 65536; i++)
        assert_int_equal(f16_back[i], isnan(f16[i]) ? i | 0x0200 : i);
    tarn__load[2][1](all, 1, wide, 65536);
    tarn__store[2][1](wide, bf16_back, 1, 65536);
    for (int i = 0; i < 65536; i++)
        assert_int_equal(bf16_back[i], isnan(bf16[i]) ? i | 0x0040 : i);
}

static void f32_is_rounded_to_nearest_even(void **state)
{
    (void)state;
    static uint16_t bf16[TILE], f16[TILE];
    for (uint64_t u = 0; u <= UINT32_MAX;) {
        for (int i = 0; i < TILE; i++, u += STEP * 4)
            x32[i] = float_of((uint32_t)u);
        tarn__store[2][0](x32, bf16, 1, TILE);
        tarn__store[3][0](x32, f16, 1, TILE);
        for (int i = 0; i < TILE; i++)
            if (!is_rounded(x32[i], bf16[i], 7) || !is_rounded(x32[i], f16[i], 10) ||
                tarn__f32_to_f16(x32[i]) != f16[i])
                fail_msg("%a became bf16 %#x, f16 %#x", (double)x32[i], bf16[i], f16[i]);
    }
}

/* Every midpoint between neighbours, and the doubles just below and above it: what rounding twice gets wrong. */
static void f64_is_rounded_once(void **state)
{
    (void)state;
    static const int bits[2] = {7, 10};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 65536; i++) {
            int infinity = ((1 << (15 - bits[k])) - 1) << bits[k];
            if ((i & 0x7fff) >= infinity)
                continue;
            double a = value_of((uint16_t)i, bits[k]);
            int last = (i & 0x7fff) + 1 == infinity; /* its other neighbour would be the next power of two */
            double b = last ? copysign(ldexp(1.0, 1 << (14 - bits[k])), a) : value_of((uint16_t)(i + 1), bits[k]);
            double middle = 0.5 * a + 0.5 * b;
            double tries[5] = {middle, nextafter(middle, a), nextafter(middle, b), middle * (1 + 0x1p-30),
                               middle * (1 - 0x1p-30)};
            for (int j = 0; j < 5; j++) {
                uint16_t h = k ? tarn__f64_to_f16(tries[j]) : tarn__f64_to_bf16(tries[j]);
                if (!is_rounded((long double)tries[j], h, bits[k]))
                    fail_msg("%a became %#x with %d bits", tries[j], h, bits[k]);
            }
        }
    assert_int_equal(tarn__f64_to_bf16(1e300), 0x7f80);
    assert_int_equal(tarn__f64_to_f16(-1e300), 0xfc00);
    assert_int_equal(tarn__f64_to_bf16(-1e-300), 0x8000);
    assert_int_equal(tarn__f64_to_f16(1e-300), 0);
}

static void i64_is_rounded_once(void **state)
{
    (void)state;
    draw_state = SEED;
    for (int i = 0; i < 300000; i++) {
        int64_t x = (int64_t)(draw() >> (draw() % 64));
        if (i % 3 == 0)
            x = (int64_t)((UINT64_C(0x181) << (draw() % 55)) + draw() % 3 - 1); /* next to a tie of bf16 */
        if (i % 2)
            x = -(x & INT64_MAX);
        if (!is_rounded((long double)x, tarn__i64_to_bf16(x), 7) ||
            !is_rounded((long double)x, tarn__i64_to_f16(x), 10))
            fail_msg("%lld became bf16 %#x, f16 %#x", (long long)x, tarn__i64_to_bf16(x), tarn__i64_to_f16(x));
    }
}

static void floats_become_integers_without_surprise(void **state)
{
    (void)state;
    assert_int_equal(tarn__f32_to_i32(-2.9f), -2);
    assert_int_equal(tarn__f64_to_i64(2.9), 2);
    assert_int_equal(tarn__f32_to_i32(3e9f), INT32_MAX);
    assert_int_equal(tarn__f64_to_i32(-3e9), INT32_MIN);
    assert_int_equal(tarn__f64_to_i32(2147483646.5), 2147483646);
    assert_true(tarn__f32_to_i64(INFINITY) == INT64_MAX && tarn__f64_to_i64(-1e19) == INT64_MIN);
    assert_true(tarn__f32_to_i64(NAN) == 0 && tarn__f64_to_i32((double)NAN) == 0);
    float x[16] = {NAN, -0.0f, 1e-45f, 300.0f, -1.0f, 255.9f, 0.0f, INFINITY};
    uint8_t truth[16], byte[16];
    tarn__store[7][0](x, truth, 1, 16);
    tarn__store[6][0](x, byte, 1, 16);
    const uint8_t want_truth[8] = {1, 0, 1, 1, 1, 1, 0, 1}, want_byte[8] = {0, 0, 0, 44, 255, 255, 0, 255};
    assert_memory_equal(truth, want_truth, 8);
    assert_memory_equal(byte, want_byte, 8);
    int64_t wide[2] = {INT64_C(0x123456789), -1};
    int32_t narrow[2];
    tarn__store[4][2](wide, narrow, 1, 2);
    assert_true(narrow[0] == 0x23456789 && narrow[1] == -1);
}

/* Small whole numbers exist in every dtype, so that a value that went to the wrong place is seen. */
static void every_loader_and_storer_follows_its_stride(void **state)
{
    (void)state;
    enum { N = 37 };
    static const int64_t strides[] = {1, 2, 3, -1, -2};
    for (int dtype = 0; dtype < 8; dtype++)
        for (int compute = 0; compute < 3; compute++)
            for (size_t s = 0; s < sizeof strides / sizeof strides[0]; s++) {
                static const int sizes[8] = {4, 8, 2, 2, 4, 8, 1, 1};
                int64_t stride = strides[s], first = stride < 0 ? -stride * (N - 1) : 0;
                union {
                    float f32[N];
                    double f64[N];
                    int64_t i64[N];
                } tile, back;
                _Alignas(8) unsigned char storage[8 * 3 * N] = {0};
                for (int i = 0; i < N; i++) {
                    int v = i % 3 == 0;
                    if (dtype != 7)
                        v = i;
                    if (compute == 0)
                        tile.f32[i] = (float)v;
                    else if (compute == 1)
                        tile.f64[i] = v;
                    else
                        tile.i64[i] = v;
                }
                unsigned char *start = storage + first * sizes[dtype];
                tarn__store[dtype][compute](tile.i64, start, stride, N);
                tarn__load[dtype][compute](start, stride, back.i64, N);
                assert_memory_equal(&tile, &back, compute ? 8 * N : 4 * N);
                for (int i = 0; i < 3 * N && stride > 1; i++)
                    if (i % stride || i >= stride * N)
                        for (int k = 0; k < sizes[dtype]; k++)
                            assert_int_equal(storage[i * sizes[dtype] + k], 0);
                tarn__load[dtype][compute](start + 3 * stride * sizes[dtype], 0, back.i64, N);
                for (int i = 0; i < N; i++)
                    assert_true(compute == 0   ? back.f32[i] == tile.f32[3]
                                : compute == 1 ? back.f64[i] == tile.f64[3]
                                               : back.i64[i] == tile.i64[3]);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_functions_keep_their_bounds),
        cmocka_unit_test(f64_functions_keep_their_bounds),
        cmocka_unit_test(pow_keeps_its_bounds),
        cmocka_unit_test(special_values_are_those_of_libm),
        cmocka_unit_test(pow_of_special_values_is_that_of_c99),
        cmocka_unit_test(trig_limits_are_known),
        cmocka_unit_test(trig_is_right_next_to_its_zeros),
        cmocka_unit_test(every_16_bit_float_survives_a_round_trip),
        cmocka_unit_test(f32_is_rounded_to_nearest_even),
        cmocka_unit_test(f64_is_rounded_once),
        cmocka_unit_test(i64_is_rounded_once),
        cmocka_unit_test(floats_become_integers_without_surprise),
        cmocka_unit_test(every_loader_and_storer_follows_its_stride),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
