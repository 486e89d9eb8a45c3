/* double_float.cl: exponentials, sigmoids, slopes and powers in f32 to a unit or two in the last place, by products,
 * sums, fma and one division: what a standard promises of exp, pow and a / b would be too little for the formulas made
 * of them.
 *
 * A number is two floats, of which the second is what rounding took from the first. */

typedef struct parts {
    float high, low;
} parts;

static parts sum_of(float a, float b)
{
    parts s;
    s.high = a + b;
    s.low = fabs(a) >= fabs(b) ? (a - s.high) + b : (b - s.high) + a;
    return s;
}

static parts product_of(parts a, parts b)
{
    parts p;
    p.high = a.high * b.high;
    p.low = fma(a.high, b.high, -p.high) + fma(a.high, b.low, a.low * b.high);
    return p;
}

static parts square_of(float x)
{
    parts p;
    p.high = x * x;
    p.low = fma(x, x, -p.high);
    return p;
}

/* e^(r + small) 2^k for |r| < 0.35; two factors, since 2^k alone may be no f32 where the result is one. */
static parts exp_near(float r, float small, int k)
{
    const float p =
        fma(fma(fma(fma(fma(1.9841270e-4f, r, 1.3888889e-3f), r, 8.3333333e-3f), r, 4.1666667e-2f), r, 1.6666667e-1f),
            r, 0.5f);
    const float t = fma(r * r, p, r), y = 1 + t, a = as_float((k / 2 + 127) << 23),
                b = as_float((k - k / 2 + 127) << 23);
    parts e;
    e.high = y * a * b;
    e.low = fma(y, small, t - (y - 1)) * a * b;
    return e;
}

/* e^(x + small) for x that is not above 0. */
static parts exp_close(float x, float small)
{
    const float from = x < -104 ? -104 : x, k = rint(from * 1.44269504f);
    return exp_near(fma(-k, -2.12194440e-4f, fma(-k, 0.693359375f, from)), x < -104 ? 0 : small, (int)k);
}

/* ---- sigmoids and what is made of them --------------------------------------------------------------------------- */

/* A number that may be below the normal ones: digits, and the rest that rounding took from them, times a power of 2.
 * Only where the number is 0 are the digits. */
typedef struct scaled {
    float digits, rest, power;
} scaled;

/* (1 + t) 2^k, where `shifted` is 1.5 2^23 + 254 + k: the integer lies in its low bits. */
static scaled scaled_of(float t, float shifted)
{
    const uint n = as_uint(shifted);
    const float y = 1 + t, half_way = as_float((n >> 1) << 23);
    scaled e;
    e.digits = y * half_way;
    e.rest = (t - (y - 1)) * half_way;
    e.power = as_float((n - (n >> 1)) << 23);
    return e;
}

/* e^x for x that is not above 0, to a unit in the last place; 0 from 2^-254 on. */
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

/* 1 / b for b from 1 to 4. What the device's own is off by, which no standard says, is made up for here and in a
 * quotient. */
static float reciprocal_of(float b)
{
    const float near = native_recip(b);
    return fma(fma(-b, near, 1.0f), near, near);
}

static float quotient_of(float a, float b)
{
    const float r = reciprocal_of(b), q = a * r;
    return fma(fma(-b, q, a), r, q);
}

/* x times the sigmoid of u, where x has the sign of u and e is e^-|u|. What 1 + e loses is carried along. */
static float times_sigmoid(float x, scaled e)
{
    const float whole = e.digits * e.power, s = 1 + whole, rest = whole - (s - 1), n = x < 0 ? e.digits : 1,
                r = reciprocal_of(s), q = n * r;
    const float y = x * fma(fma(-q, rest, fma(-s, q, n)), r, q);
    return x < 0 ? y * e.power : y;
}

/* The sigmoid's slope, e / (1 + e)². */
static float bell_of(scaled e)
{
    const float whole = e.digits * e.power;
    return quotient_of(whole, fma(whole, 2 + whole, 1.0f));
}

/* The slope of x sigmoid(u), x u' being x (slope + rest): ((x < 0 ? e : 1) (1 + e) + e x u') / (1 + e)². What its
 * factors lose is carried along. Of an infinite x it is NaN. */
static float bend_of(float x, scaled e, float slope, float rest)
{
    const float whole = e.digits * e.power, s = 1 + whole, s_rest = fma(e.rest, e.power, whole - (s - 1)),
                along = x < 0 ? x : x * whole;
    const float f = x < 0 ? e.digits : 1, f_rest = x < 0 ? e.rest : 0,
                sum = fma(along, slope, s) + fma(along, rest, s_rest), n = sum * f;
    const float square = s * s, square_rest = fma(s + s, s_rest, fma(s, s, -square)), r = reciprocal_of(square),
                q = n * r;
    const float y = fma(fma(-q, square_rest, fma(-square, q, n)) + fma(sum, f_rest, fma(sum, f, -n)), r, q);
    return x < 0 ? y * e.power : y;
}

/* Beyond 12.96 gelu's exponential is 0. NaN stays. */
static float gelu_near(float x)
{
    return x > 12.96f ? 12.96f : x < -12.96f ? -12.96f : x;
}

/* gelu's u is 2 sqrt(2/π) x (1 + 0.044715 x²); here is c + k x² in two parts. c has few digits, so that what is taken
 * from it is exact. */
static parts gelu_factor(float x, float c, float c_rest, float k, float k_rest)
{
    const parts square = square_of(x);
    parts sum;
    sum.high = fma(k, square.high, c);
    sum.low = fma(k, square.high, c - sum.high) + fma(k, square.low, fma(k_rest, square.high, c_rest));
    return sum;
}

static scaled gelu_exponential(float x)
{
    const float size = fabs(gelu_near(x));
    const parts f = gelu_factor(size, 2.30175781f, 0.000450385647f, 0.102943242f, -2.01619854e-9f); /* in powers of 2 */
    const float t = size * f.high;
    return power_of_half(t, fma(size, f.low, fma(size, f.high, -t)));
}

/* ---- powers ------------------------------------------------------------------------------------------------------ */

/* log2 of a normal number above 0: its exponent, and 2/ln2 artanh((m - 1) / (m + 1)) of its digits, sqrt(1/2) <= m <
 * sqrt 2. */
static parts log2_close(float a)
{
    const int e = (int)(as_uint(a) - 0x3f3504f3u) >> 23;
    const float m = as_float(as_int(a) - (e << 23)), n = m - 1;
    const parts third = {0.33333334f, -9.93410748e-9f}, scale = {2.88539004f, 3.85192598e-8f};
    parts d, s;
    d.high = m + 1;
    d.low = m - (d.high - 1);
    const float r = 1 / d.high;
    s.high = n * r;
    s.low = fma(-s.high, d.low, fma(-s.high, d.high, n)) * r;
    const parts square = product_of(s, s);
    const float z = square.high, tail = z * fma(z, fma(z, fma(z, 9.0909091e-2f, 1.1111111e-1f), 1.4285714e-1f), 0.2f);
    parts c = sum_of(third.high, tail);
    c.low += third.low;
    const parts t = product_of(s, product_of(square, c));
    parts l = sum_of(s.high, t.high);
    l.low += s.low + t.low;
    l = product_of(l, scale);
    parts y = sum_of((float)e, l.high);
    y.low += l.low;
    return y;
}

/* a^b of such an a, and log2 a; infinity where it leaves the range of f32 by far. */
static float power_close(float a, float b, parts *l)
{
    const parts whole = {b, 0}, ln2 = {0.693147182f, -1.90465432e-9f};
    *l = log2_close(a);
    const parts y = product_of(whole, *l);
    if (!(fabs(y.high) < 140))
        return INF_F;
    const float k = rint(y.high);
    parts rest = {y.high - k, y.low};
    rest = product_of(rest, ln2);
    const parts e = exp_near(rest.high, rest.low, (int)k);
    return e.high + e.low;
}
