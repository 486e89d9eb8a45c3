/* double_float.cl: exponentials, sigmoids, their derivatives and powers in f32 to one or two units in the last place,
 * from products, sums, fma and one division: the accuracy that OpenCL guarantees for exp, pow and a / b is too low for
 * the formulas built on them.
 *
 * A double-float is the sum of two floats, of which the second is what rounding took from the first. */

typedef struct dfloat {
    float high, low;
} dfloat;

/* Exact sum of two floats (Dekker). */
static dfloat two_sum(float a, float b)
{
    dfloat s;
    s.high = a + b;
    s.low = fabs(a) >= fabs(b) ? (a - s.high) + b : (b - s.high) + a;
    return s;
}

/* Product to about 2^-46; the low parts' own product is dropped. */
static dfloat df_product(dfloat a, dfloat b)
{
    dfloat p;
    p.high = a.high * b.high;
    p.low = fma(a.high, b.high, -p.high) + fma(a.high, b.low, a.low * b.high);
    return p;
}

/* Exact square by an fma. */
static dfloat df_square(float x)
{
    dfloat p;
    p.high = x * x;
    p.low = fma(x, x, -p.high);
    return p;
}

/* e^(r + small) · 2^k for |r| < 0.35; by two factors, since 2^k alone may be no f32 where the result is. */
static dfloat exp_reduced(float r, float small, int k)
{
    const float p =
        fma(fma(fma(fma(fma(1.9841270e-4f, r, 1.3888889e-3f), r, 8.3333333e-3f), r, 4.1666667e-2f), r, 1.6666667e-1f),
            r, 0.5f);
    const float t = fma(r * r, p, r), y = 1 + t, a = as_float((k / 2 + 127) << 23),
                b = as_float((k - k / 2 + 127) << 23);
    dfloat e;
    e.high = y * a * b;
    e.low = fma(y, small, t - (y - 1)) * a * b;
    return e;
}

/* e^(x + small) for x <= 0. */
static dfloat exp_df(float x, float small)
{
    const float from = x < -104 ? -104 : x, k = rint(from * 1.44269504f);
    return exp_reduced(fma(-k, -2.12194440e-4f, fma(-k, 0.693359375f, from)), x < -104 ? 0 : small, (int)k);
}

/* ---- sigmoids and gated activations ------------------------------------------------------------------------------ */

/* A number that may be below the normal range: mantissa and rounding remainder, times a power of 2. The mantissa is 0
 * only where the number is. */
typedef struct scaled {
    float mantissa, rest, power;
} scaled;

/* (1 + t) 2^k, where `shifted` is 1.5 2^23 + 254 + k: its low bits are the integer. */
static scaled scaled_of(float t, float shifted)
{
    const uint n = as_uint(shifted);
    const float y = 1 + t, half_power = as_float((n >> 1) << 23);
    scaled e;
    e.mantissa = y * half_power;
    e.rest = (t - (y - 1)) * half_power;
    e.power = as_float((n - (n >> 1)) << 23);
    return e;
}

/* e^x for x <= 0, to one unit in the last place; 0 below 2^-254. */
static scaled exp_scaled(float x)
{
    const float from = x < -176.1f ? -176.1f : x, shifted = fma(from, 1.44269504f, 12583166.0f),
                k = shifted - 12583166.0f;
    const float r = fma(k, 2.12194440e-4f, fma(k, -0.693359375f, from));
    const float p =
        fma(fma(fma(fma(0.00138213555f, r, 0.00836866908f), r, 0.0416682586f), r, 0.166665211f), r, 0.49999994f);
    return scaled_of(fma(r * r, p, r), shifted);
}

/* 2^-(t + rest) for t from 0 to 254. */
static scaled power_of_half(float t, float rest)
{
    const float shifted = 12583166.0f - t, r = ((12583166.0f - shifted) - t) - rest;
    const float p =
        fma(fma(fma(fma(0.000153293106f, r, 0.00133909704f), r, 0.00961849932f), r, 0.0555035956f), r, 0.240226477f);
    return scaled_of(fma(p, r, 0.693147182f) * r, shifted);
}

/* 1 / b for 1 <= b <= 4. The error of native_recip(), which no standard bounds, is corrected here and in a quotient. */
static float reciprocal_of(float b)
{
    const float estimate = native_recip(b);
    return fma(fma(-b, estimate, 1.0f), estimate, estimate);
}

/* a / b for 1 <= b <= 4, corrected by the remainder. */
static float quotient_of(float a, float b)
{
    const float r = reciprocal_of(b), q = a * r;
    return fma(fma(-b, q, a), r, q);
}

/* x · sigmoid(u), where x has the sign of u and e is e^-|u|. The rounding error of 1 + e is carried along. */
static float times_sigmoid(float x, scaled e)
{
    const float value = e.mantissa * e.power, s = 1 + value, rest = value - (s - 1), n = x < 0 ? e.mantissa : 1,
                r = reciprocal_of(s), q = n * r;
    const float y = x * fma(fma(-q, rest, fma(-s, q, n)), r, q);
    return x < 0 ? y * e.power : y;
}

/* The derivative of the sigmoid, e / (1 + e)². */
static float sigmoid_grad_of(scaled e)
{
    const float value = e.mantissa * e.power;
    return quotient_of(value, fma(value, 2 + value, 1.0f));
}

/* The derivative of x · sigmoid(u), x u' being x · (factor_grad + rest): ((x < 0 ? e : 1) (1 + e) + e x u') / (1 + e)².
 * Rounding errors of the factors are carried along. NaN for an infinite x. */
static float gated_grad_of(float x, scaled e, float factor_grad, float rest)
{
    const float value = e.mantissa * e.power, s = 1 + value, s_rest = fma(e.rest, e.power, value - (s - 1)),
                along = x < 0 ? x : x * value;
    const float f = x < 0 ? e.mantissa : 1, f_rest = x < 0 ? e.rest : 0,
                sum = fma(along, factor_grad, s) + fma(along, rest, s_rest), n = sum * f;
    const float square = s * s, square_rest = fma(s + s, s_rest, fma(s, s, -square)), r = reciprocal_of(square),
                q = n * r;
    const float y = fma(fma(-q, square_rest, fma(-square, q, n)) + fma(sum, f_rest, fma(sum, f, -n)), r, q);
    return x < 0 ? y * e.power : y;
}

/* Beyond 12.96 gelu's exponential is 0. NaN stays. */
static float gelu_clamp(float x)
{
    return x > 12.96f ? 12.96f : x < -12.96f ? -12.96f : x;
}

/* gelu's u is 2 sqrt(2/π) x (1 + 0.044715 x²); this is c + k x² as a double-float. c has few bits, so that subtracting
 * it is exact. */
static dfloat gelu_factor(float x, float c, float c_rest, float k, float k_rest)
{
    const dfloat square = df_square(x);
    dfloat sum;
    sum.high = fma(k, square.high, c);
    sum.low = fma(k, square.high, c - sum.high) + fma(k, square.low, fma(k_rest, square.high, c_rest));
    return sum;
}

/* e^-|u| of gelu. */
static scaled gelu_exponential(float x)
{
    const float size = fabs(gelu_clamp(x));
    const dfloat f =
        gelu_factor(size, 2.30175781f, 0.000450385647f, 0.102943242f, -2.01619854e-9f); /* in powers of 2 */
    const float t = size * f.high;
    return power_of_half(t, fma(size, f.low, fma(size, f.high, -t)));
}

/* ---- powers ------------------------------------------------------------------------------------------------------ */

/* log2 of a normal number above 0: its exponent, and 2/ln2 artanh((m - 1) / (m + 1)) of its mantissa, sqrt(1/2) <= m <
 * sqrt 2. */
static dfloat log2_df(float a)
{
    const int e = (int)(as_uint(a) - 0x3f3504f3u) >> 23;
    const float m = as_float(as_int(a) - (e << 23)), n = m - 1;
    const dfloat third = {0.33333334f, -9.93410748e-9f}, scale = {2.88539004f, 3.85192598e-8f};
    dfloat d, s;
    d.high = m + 1;
    d.low = m - (d.high - 1);
    const float r = 1 / d.high;
    s.high = n * r;
    s.low = fma(-s.high, d.low, fma(-s.high, d.high, n)) * r;
    const dfloat square = df_product(s, s);
    const float z = square.high, tail = z * fma(z, fma(z, fma(z, 9.0909091e-2f, 1.1111111e-1f), 1.4285714e-1f), 0.2f);
    dfloat c = two_sum(third.high, tail);
    c.low += third.low;
    const dfloat t = df_product(s, df_product(square, c));
    dfloat l = two_sum(s.high, t.high);
    l.low += s.low + t.low;
    l = df_product(l, scale);
    dfloat y = two_sum((float)e, l.high);
    y.low += l.low;
    return y;
}

/* a^b for such an a, and log2 a; infinity where it leaves the range of f32 by far. */
static float power_df(float a, float b, dfloat *l)
{
    const dfloat value = {b, 0}, ln2 = {0.693147182f, -1.90465432e-9f};
    *l = log2_df(a);
    const dfloat y = df_product(value, *l);
    if (!(fabs(y.high) < 140))
        return INF_F;
    const float k = rint(y.high);
    dfloat rest = {y.high - k, y.low};
    rest = df_product(rest, ln2);
    const dfloat e = exp_reduced(rest.high, rest.low, (int)k);
    return e.high + e.low;
}
