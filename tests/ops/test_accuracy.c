/*
 * Element-wise functions and their gradients in f32, beside libm in f64: within 4 units in the last place for numbers
 * of every size (every 65521st bit pattern, and 20000 close to the roots and bends of each), and bitwise identical
 * whatever the neighbours are. Quotients, remainders and powers (16 units) too. All at every instruction level that the
 * processor has.
 */
#include "support/check.h"
#include "support/levels.h"

#define COUNT 65536
#define STEP UINT32_C(65521) /* a prime: all low bits occur */

static float x_values[COUNT], g_values[COUNT], y_values[COUNT], grad_values[COUNT];

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Units in the last place between the two; zeros of both signs are one number. */
static double apart(double want, float got)
{
    if (isnan(want) || isinf((float)want) || isinf(got))
        return (isnan(want) && isnan(got)) || (float)want == got ? 0 : HUGE_VAL;
    int e;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1.0, (e < -125 ? -125 : e) - 24);
}

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}
static double softplus(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}
static double silu(double x)
{
    return x * sigmoid(x);
}
static double gelu_erf(double x)
{
    return 0.5 * x * erfc(x * -0.70710678118654752440);
}
static double recip(double x)
{
    return 1 / x;
}
static double over_sqrt(double x)
{
    return 1 / sqrt(x);
}
static double sqrt_grad(double x)
{
    return 0.5 / sqrt(x);
}
static double over_sqrt_grad(double x)
{
    return -0.5 / (x * sqrt(x));
}
static double minus_sin(double x)
{
    return -sin(x);
}
static double log2_grad(double x)
{
    return 1.44269504088896340736 / x;
}
static double erf_grad(double x)
{
    return 1.12837916709551257390 * exp(-x * x);
}
static double exp2_grad(double x)
{
    return exp2(x) * 0.69314718055994530942;
}
static double gelu_erf_grad(double x)
{
    return 0.5 * erfc(x * -0.70710678118654752440) + x * 0.39894228040143267794 * exp(-0.5 * x * x);
}

static double sigmoid_grad(double x)
{
    double e = exp(-fabs(x));
    return e / ((1 + e) * (1 + e));
}

static double tanh_grad(double x)
{
    return 4 * sigmoid_grad(2 * x);
}

static double silu_grad(double x)
{
    double u = fabs(x), below = sigmoid_grad(x) * (1 + exp(-u) - u);
    return x < 0 ? below : 1 - below;
}

static const struct function {
    const char *name;
    double (*value)(double), (*grad)(double);
    float middle; /* where most is at stake: a root of the derivative, or of the function */
} functions[] = {
    {"exp", exp, exp, 0},
    {"exp2", exp2, exp2_grad, 0},
    {"log", log, recip, 1},
    {"log2", log2, log2_grad, 1},
    {"sqrt", sqrt, sqrt_grad, 1},
    {"rsqrt", over_sqrt, over_sqrt_grad, 1},
    {"sin", sin, cos, 1.5707964f},
    {"cos", cos, minus_sin, 1.5707964f},
    {"tanh", tanh, tanh_grad, 0},
    {"sigmoid", sigmoid, sigmoid_grad, 0},
    {"softplus", softplus, sigmoid, 0},
    {"erf", erf, erf_grad, 0},
    {"silu", silu, silu_grad, -1.2784645f},
    {"gelu_erf", gelu_erf, gelu_erf_grad, -0.7517915f},
};

#define FUNCTIONS (sizeof(functions) / sizeof(functions[0]))

static tarn_tensor *applied(const char *name, tarn_tensor *x)
{
    tarn_tensor *y = NULL;
    assert_true(tarn_apply(name, &x, 1, NULL, 0, &y, 1));
    return good(y);
}

/* Values and gradients of `count` numbers, from x_values and g_values. */
static void run(const char *name, int64_t count)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *x = tarn_requires_grad(good(tarn_from_f32(x_values, TARN_SHAPE(count), tarn_device_cpu())), true);
    tarn_tensor *g = good(tarn_from_f32(g_values, TARN_SHAPE(count), tarn_device_cpu())), *y = applied(name, x);
    assert_true(tarn_backward_from(y, g, NULL));
    assert_true(tarn_read_f32(y, y_values, count) && tarn_read_f32(tarn_grad(x), grad_values, count));
    tarn_scope_close(scope);
    assert_ok();
}

static void compare(const struct function *f, double *worst)
{
    run(f->name, COUNT);
    for (int i = 0; i < COUNT; i++) {
        double x = (double)x_values[i];
        double value = isinf(x) ? 0 : apart(f->value(x), y_values[i]),
               grad = isinf(x) ? 0 : apart((double)g_values[i] * f->grad(x), grad_values[i]);
        if (value > 4 || grad > 4)
            fail_msg("%s(%a) is %a, %g units off; its gradient for %a is %a, %g units off", f->name, x,
                     (double)y_values[i], value, (double)g_values[i], (double)grad_values[i], grad);
        worst[0] = fmax(worst[0], value), worst[1] = fmax(worst[1], grad);
    }
}

static void results_are_within_four_units(void **state)
{
    (void)state;
    for (size_t k = 0; k < FUNCTIONS; k++) {
        double worst[2] = {0, 0};
        for (uint32_t i = 0; i < COUNT; i++)
            x_values[i] = float_of(i * STEP),
            g_values[i] = i % 2 ? 1.0f : 1.0f + (float)(i * 40503u % 65536u) * 0x1p-16f;
        compare(&functions[k], worst);
        for (uint32_t i = 0; i < COUNT; i++) { /* neighbours of the middle, then numbers up to 16 */
            float middle = functions[k].middle;
            x_values[i] = i < 20000 ? middle + (float)((int)i - 10000) * 0x1p-23f
                                    : (float)((int)i - 42768) * 0x1p-11f + (float)i * 0x1p-26f;
        }
        compare(&functions[k], worst);
        print_message("  %-9s value %.2f, gradient %.2f units\n", functions[k].name, worst[0], worst[1]);
    }
}

/* ---- two operands ------------------------------------------------------------------------------------------------ */

#define PAIRS (COUNT - 15) /* no whole number of vectors, so that the last elements are among others */

static float b_values[COUNT], grad_b_values[COUNT];

static double mod(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static double quotient(double a, double b)
{
    return a / b;
}
static double quotient_grad(double a, double b)
{
    return (void)a, 1 / b;
}
static double quotient_grad_b(double a, double b)
{
    return -(a / b) / b;
}
static double mod_grad(double a, double b)
{
    return (void)a, (void)b, 1;
}
static double mod_grad_b(double a, double b)
{
    return -floor(a / b);
}
static double pow_grad(double a, double b)
{
    return b == 0 ? 0 : b * pow(a, b - 1);
}
static double pow_grad_b(double a, double b)
{
    return a == 0 && b >= 0 ? 0 : pow(a, b) * log(a);
}

static const struct pair {
    const char *name;
    double (*value)(double, double), (*grad)(double, double), (*grad_b)(double, double);
    double units;
    bool divides; /* where b is 0 or far below a, gradients are limits, or conventions */
} pairs[] = {
    {"div", quotient, quotient_grad, quotient_grad_b, 4, true},
    {"mod", mod, mod_grad, mod_grad_b, 1, true},
    {"pow", pow, pow_grad, pow_grad_b, 16, false},
};
enum { PAIR_FUNCTIONS = sizeof(pairs) / sizeof(pairs[0]) };

/* Numbers of every size and sign; then numbers up to 8, and b so that powers fill f32's range; then negative a with
 * integers. */
static void fill_pairs(uint32_t part)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        float a = float_of(i * STEP + part), b = float_of(i * UINT32_C(2654435761) + part);
        if (part == 1)
            a = (float)(i + 1) * 0x1p-13f,
            b = (float)((int)(i * 40503u % 65536u) - 32768) * 0x1p-8f / fmaxf(fabsf(log2f(a)), 0x1p-20f);
        if (part == 2)
            a = (float)((int)i - 32768) * 0x1p-12f, b = (float)((int)(i % 41) - 20) * (i % 3 ? 1.0f : 0.5f);
        x_values[i] = a, b_values[i] = b, g_values[i] = i % 2 ? 1.0f : 1.0f + (float)(i * 40503u % 65536u) * 0x1p-16f;
    }
}

static void run_pair(const char *name, int64_t n)
{
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *in[] = {tarn_requires_grad(good(tarn_from_f32(x_values, TARN_SHAPE(n), tarn_device_cpu())), true),
                         tarn_requires_grad(good(tarn_from_f32(b_values, TARN_SHAPE(n), tarn_device_cpu())), true)};
    tarn_tensor *g = good(tarn_from_f32(g_values, TARN_SHAPE(n), tarn_device_cpu())), *y = NULL;
    assert_true(tarn_apply(name, in, 2, NULL, 0, &y, 1) && tarn_backward_from(good(y), g, NULL));
    assert_true(tarn_read_f32(y, y_values, n) && tarn_read_f32(tarn_grad(in[0]), grad_values, n));
    assert_true(tarn_read_f32(tarn_grad(in[1]), grad_b_values, n));
    tarn_scope_close(scope);
    assert_ok();
}

static void pairs_are_within_their_units(void **state)
{
    (void)state;
    for (size_t k = 0; k < PAIR_FUNCTIONS; k++) {
        double worst[3] = {0, 0, 0};
        for (uint32_t part = 0; part < 3; part++) {
            fill_pairs(part);
            run_pair(pairs[k].name, PAIRS);
            for (int i = 0; i < PAIRS; i++) {
                double a = (double)x_values[i], b = (double)b_values[i], g = (double)g_values[i];
                bool has_grads = isfinite(a) && isfinite(b) && (!pairs[k].divides || (b != 0 && fabs(a / b) < 0x1p50));
                double off[3] = {apart(pairs[k].value(a, b), y_values[i]),
                                 has_grads ? apart(g * pairs[k].grad(a, b), grad_values[i]) : 0,
                                 has_grads ? apart(g * pairs[k].grad_b(a, b), grad_b_values[i]) : 0};
                for (int j = 0; j < 3; j++) {
                    if (off[j] > pairs[k].units)
                        fail_msg("%s(%a, %a) is %a, its gradients for %a are %a and %a: %g, %g and %g units off",
                                 pairs[k].name, a, b, (double)y_values[i], g, (double)grad_values[i],
                                 (double)grad_b_values[i], off[0], off[1], off[2]);
                    worst[j] = fmax(worst[j], off[j]);
                }
            }
        }
        print_message("  %-9s value %.2f, gradients %.2f and %.2f units\n", pairs[k].name, worst[0], worst[1],
                      worst[2]);
    }
}

/* COUNT numbers whose bits begin at `bits` and go on by `step`. */
static void check_roots(uint32_t bits, uint32_t step)
{
    for (uint32_t i = 0; i < COUNT; i++)
        x_values[i] = float_of(bits + i * step);
    tarn_scope *scope = tarn_scope_open();
    tarn_tensor *y = applied("sqrt", good(tarn_from_f32(x_values, TARN_SHAPE(COUNT), tarn_device_cpu())));
    assert_true(tarn_read_f32(y, y_values, COUNT));
    tarn_scope_close(scope);
    for (int i = 0; i < COUNT; i++) {
        float root = sqrtf(x_values[i]);
        if (y_values[i] != root && !(isnan(root) && isnan(y_values[i])))
            fail_msg("sqrt(%a) is %a, not %a", (double)x_values[i], (double)y_values[i], (double)root);
    }
}

/* The bits of a root after the point follow from those of its number, and from whether its exponent is even: 1 to 4 has
 * them all. */
static void square_roots_are_rounded_once(void **state)
{
    (void)state;
    uint32_t step = getenv("TARN_TEST_QUICK") ? 301 : 3;
    for (uint32_t bits = UINT32_C(0x3f800000); bits < UINT32_C(0x40800000); bits += COUNT * step)
        check_roots(bits, step);
    check_roots(0, STEP); /* numbers of every size */
    check_roots(0, 1), check_roots(UINT32_C(0x0d800000) - COUNT / 2, 1),
        check_roots(UINT32_C(0x7f800000) - COUNT / 2, 1);
}

static bool are_same(const float *a, const float *b, int n)
{
    bool same = true;
    for (int i = 0; i < n; i++)
        same = same && is_same_float(&a[i], &b[i], sizeof(float));
    return same;
}

/* Numbers that need another form (too large, negative, NaN) lie between others that do not. Alone, or in short runs,
 * each result is bitwise identical. */
static void no_result_depends_on_its_neighbours(void **state)
{
    (void)state;
    static const float wild[] = {-100, 100, 3000, 1e9f, -INFINITY, NAN, 0, -0.0f, 1e-42f, -7, 13, 126, -86};
    enum { N = 333 };
    float together[N], grads[N];
    for (size_t k = 0; k < FUNCTIONS; k++) {
        for (int i = 0; i < N; i++)
            x_values[i] = i % 5 == 2 ? wild[i / 5 % 13] : (float)(i % 97) * 0.11f - 4.0f, g_values[i] = 1.5f;
        run(functions[k].name, N);
        memcpy(together, y_values, sizeof(together));
        memcpy(grads, grad_values, sizeof(grads));
        float all[N];
        memcpy(all, x_values, sizeof(all));
        for (int i = 0, n; i < N; i += n) {
            n = i % 7 + 1 < N - i ? i % 7 + 1 : N - i;
            memcpy(x_values, all + i, sizeof(float) * (size_t)n);
            run(functions[k].name, n);
            if (!are_same(y_values, together + i, n) || !are_same(grad_values, grads + i, n))
                fail_msg("%s: elements %d to %d of %d have other bits alone", functions[k].name, i, i + n - 1, N);
        }
    }
}

/* The same for two operands. */
static void no_pair_depends_on_its_neighbours(void **state)
{
    (void)state;
    static const float wild[] = {-100, 100, 3000, 1e30f, -INFINITY, NAN, 0, -0.0f, 1e-42f, 1e-38f};
    enum { N = 333 };
    float a[N], b[N], together[3][N];
    for (int i = 0; i < N; i++) {
        a[i] = i % 5 == 2 ? wild[i / 5 % 10] : (float)(i % 97) * 0.11f - 4.0f;
        b[i] = i % 7 == 3 ? wild[i / 7 % 10] : (float)(i % 13) - 6;
        g_values[i] = 1.5f;
    }
    for (size_t k = 0; k < PAIR_FUNCTIONS; k++)
        for (int i = 0, n = N; i < N; n = i % 7 + 1 < N - i ? i % 7 + 1 : N - i) {
            size_t bytes = sizeof(float) * (size_t)n;
            memcpy(x_values, a + i, bytes), memcpy(b_values, b + i, bytes);
            run_pair(pairs[k].name, n);
            if (n == N) {
                memcpy(together[0], y_values, bytes), memcpy(together[1], grad_values, bytes),
                    memcpy(together[2], grad_b_values, bytes);
                continue;
            }
            if (!are_same(y_values, together[0] + i, n) || !are_same(grad_values, together[1] + i, n) ||
                !are_same(grad_b_values, together[2] + i, n))
                fail_msg("%s: elements %d to %d of %d have other bits alone", pairs[k].name, i, i + n - 1, N);
            i += n;
        }
}

static int run_here(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_within_four_units),     cmocka_unit_test(pairs_are_within_their_units),
        cmocka_unit_test(square_roots_are_rounded_once),     cmocka_unit_test(no_result_depends_on_its_neighbours),
        cmocka_unit_test(no_pair_depends_on_its_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return run_at_every_level(run_here);
}
