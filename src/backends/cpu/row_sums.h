/* row_sums.h: sums and the largest element of at most BLOCK numbers, for one type: rows.h includes it with T, BITS and NAMED(x). */

#define LANES ((int)(VECTOR_BYTES / sizeof(T)))

typedef T NAMED(lanes) __attribute__((vector_size(VECTOR_BYTES)));
typedef BITS NAMED(masks) __attribute__((vector_size(VECTOR_BYTES)));

TARN__UNUSED static inline NAMED(lanes) NAMED(lanes_at)(const T *from)
{
    NAMED(lanes) v;
    memcpy(&v, from, sizeof(v));
    return v;
}

TARN__UNUSED static inline double NAMED(total)(NAMED(lanes) v)
{
    double lane[LANES];
    for (int i = 0; i < LANES; i++)
        lane[i] = (double)v[i];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

TARN__UNUSED static inline NAMED(lanes) NAMED(larger)(NAMED(lanes) a, NAMED(lanes) b)
{
    NAMED(masks) first = a > b;
    return (NAMED(lanes))((first & (NAMED(masks))a) | (~first & (NAMED(masks))b));
}

/* The largest element; NaN is passed over, and finds its way into the result by other sums. */
TARN__UNUSED static T NAMED(block_max)(const T *x, int64_t n)
{
    T most = -(T)INFINITY;
    int64_t i = 0;
    if (n >= 2 * LANES) {
        NAMED(lanes) a = NAMED(lanes_at)(x), b = NAMED(lanes_at)(x + LANES);
        for (i = 2 * LANES; i + 2 * LANES <= n; i += 2 * LANES) {
            a = NAMED(larger)(NAMED(lanes_at)(x + i), a);
            b = NAMED(larger)(NAMED(lanes_at)(x + i + LANES), b);
        }
        a = NAMED(larger)(a, b);
        for (int lane = 0; lane < LANES; lane++)
            most = a[lane] > most ? a[lane] : most;
    }
    for (; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

TARN__UNUSED static double NAMED(block_sum)(const T *x, int64_t n)
{
    NAMED(lanes) a = {0}, b = {0}, c = {0}, d = {0};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        a += NAMED(lanes_at)(x + i);
        b += NAMED(lanes_at)(x + i + LANES);
        c += NAMED(lanes_at)(x + i + 2 * LANES);
        d += NAMED(lanes_at)(x + i + 3 * LANES);
    }
    double sum = NAMED(total)((a + b) + (c + d));
    for (; i < n; i++)
        sum += (double)x[i];
    return sum;
}

TARN__UNUSED static double NAMED(block_dot)(const T *x, const T *y, int64_t n)
{
    NAMED(lanes) a = {0}, b = {0}, c = {0}, d = {0};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        a += NAMED(lanes_at)(x + i) * NAMED(lanes_at)(y + i);
        b += NAMED(lanes_at)(x + i + LANES) * NAMED(lanes_at)(y + i + LANES);
        c += NAMED(lanes_at)(x + i + 2 * LANES) * NAMED(lanes_at)(y + i + 2 * LANES);
        d += NAMED(lanes_at)(x + i + 3 * LANES) * NAMED(lanes_at)(y + i + 3 * LANES);
    }
    double sum = NAMED(total)((a + b) + (c + d));
    for (; i < n; i++)
        sum += (double)(x[i] * y[i]);
    return sum;
}

/* The sum of (x - mean)². */
TARN__UNUSED static double NAMED(block_spread)(const T *x, T mean, int64_t n)
{
    NAMED(lanes) a = {0}, b = {0}, c = {0}, d = {0};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        NAMED(lanes) p = NAMED(lanes_at)(x + i) - mean, q = NAMED(lanes_at)(x + i + LANES) - mean;
        NAMED(lanes) r = NAMED(lanes_at)(x + i + 2 * LANES) - mean, s = NAMED(lanes_at)(x + i + 3 * LANES) - mean;
        a += p * p, b += q * q, c += r * r, d += s * s;
    }
    double sum = NAMED(total)((a + b) + (c + d));
    for (; i < n; i++)
        sum += (double)((x[i] - mean) * (x[i] - mean));
    return sum;
}

#undef LANES
#undef T
#undef BITS
#undef NAMED
