/* close.cl: exponentials, sigmoids, slopes and powers in f32 to a unit or two in the last place, by products, sums, fma and one division: what a standard
 * promises of exp, pow and a / b would be too little for the formulas made of them.
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

/* What a division of 2.5 units leaves over is divided once more. */
static float quotient_of(parts a, parts b)
{
    const float r = 1 / b.high, q = a.high * r;
    return fma(fma(-q, b.low, fma(-b.high, q, a.high)) + a.low, r, q);
}

/* e^(r + small) 2^k for |r| < 0.35; two factors, since 2^k alone may be no f32 where the result is one. */
static parts exp_near(float r, float small, int k)
{
    const float p = fma(fma(fma(fma(fma(1.9841270e-4f, r, 1.3888889e-3f), r, 8.3333333e-3f), r, 4.1666667e-2f), r, 1.6666667e-1f), r, 0.5f);
    const float t = fma(r * r, p, r), y = 1 + t, a = as_float((k / 2 + 127) << 23), b = as_float((k - k / 2 + 127) << 23);
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

static parts one_and(parts e)
{
    parts s;
    s.high = 1 + e.high;
    s.low = (e.high - (s.high - 1)) + e.low;
    return s;
}

/* The sigmoid of u, where x has its sign and e is e^-|u|. */
static float sigmoid_of(float x, parts e)
{
    const parts one = {1, 0};
    return quotient_of(x < 0 ? e : one, one_and(e));
}

/* Its slope, e / (1 + e)². */
static float bell_of(parts e)
{
    const parts s = one_and(e);
    return quotient_of(e, product_of(s, s));
}

/* The slope of x sigmoid(u), w being x u': ((x < 0 ? e : 1) (1 + e) + e w) / (1 + e)². Where u is infinite, so may w be; of an infinite x it is NaN. */
static float bend_of(float x, parts e, parts w)
{
    const parts s = one_and(e), square = product_of(s, s);
    parts sum, n;
    if (e.high == 0)
        return (x < 0 ? 0 : 1) + (x - x);
    if (x < 0) {
        sum = sum_of(s.high, w.high);
        sum.low += s.low + w.low;
        n = product_of(e, sum);
    } else {
        sum = product_of(e, w);
        n = sum_of(s.high, sum.high);
        n.low += s.low + sum.low;
    }
    return quotient_of(n, square);
}

/* 2 sqrt(2/π) x (1 + k x²) */
static parts gelu_argument(float x, parts k)
{
    const parts c = {1.5957691669464111f, -4.534068042e-8f}, own = {x, 0}, term = product_of(k, square_of(x));
    parts sum = sum_of(1, term.high);
    sum.low += term.low;
    return product_of(product_of(c, own), sum);
}

static parts gelu_exponential(float x)
{
    const parts k = {0.044715f, 1.546144485e-9f}, u = gelu_argument(fabs(x), k);
    return exp_close(-u.high, -u.low);
}

/* ---- powers ------------------------------------------------------------------------------------------------------------------------ */

/* log2 of a normal number above 0: its exponent, and 2/ln2 artanh((m - 1) / (m + 1)) of its digits, sqrt(1/2) <= m < sqrt 2. */
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
