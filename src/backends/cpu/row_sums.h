/* row_sums.h: sums and the largest element of at most BLOCK numbers, for one type: rows.h includes it with T, BITS, NAMED(x) and, on AArch64,
 * LARGER(a, b), of which a NaN is neither. */

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
#if defined(__aarch64__)
    return (NAMED(lanes))LARGER(a, b);
#else
    NAMED(masks) first = a > b;
    return (NAMED(lanes))((first & (NAMED(masks))a) | (~first & (NAMED(masks))b));
#endif
}

TARN__UNUSED static inline T NAMED(largest)(NAMED(lanes) v)
{
    T most = v[0];
    for (int lane = 1; lane < LANES; lane++)
        most = v[lane] > most ? v[lane] : most;
    return most;
}

/* The largest element; NaN is passed over, and finds its way into the result by other sums. */
TARN__UNUSED static T NAMED(block_max)(const T *x, int64_t n)
{
    T most = -(T)INFINITY;
    int64_t i = 0;
    if (n >= MOST_STRANDS * LANES) {
        NAMED(lanes) a[MOST_STRANDS];
        for (int k = 0; k < MOST_STRANDS; k++)
            a[k] = NAMED(lanes_at)(x + k * LANES);
        for (i = MOST_STRANDS * LANES; i + MOST_STRANDS * LANES <= n; i += MOST_STRANDS * LANES) {
            ROW_AHEAD(x + i);
            for (int k = 0; k < MOST_STRANDS; k++)
                a[k] = NAMED(larger)(NAMED(lanes_at)(x + i + k * LANES), a[k]);
        }
        for (int k = 1; k < MOST_STRANDS; k++)
            a[0] = NAMED(larger)(a[0], a[k]);
        for (int lane = 0; lane < LANES; lane++)
            most = a[0][lane] > most ? a[0][lane] : most;
    }
    for (; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* The sum of ROW_STRANDS vectors, neighbours first. */
static inline double NAMED(total_of)(NAMED(lanes) *a)
{
#if ROW_STRANDS == 8
    return NAMED(total)(((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])));
#else
    return NAMED(total)((a[0] + a[1]) + (a[2] + a[3]));
#endif
}

TARN__UNUSED static double NAMED(block_sum)(const T *x, int64_t n)
{
    NAMED(lanes) a[ROW_STRANDS] = {{0}};
    int64_t i = 0;
    for (; i + ROW_STRANDS * LANES <= n; i += ROW_STRANDS * LANES) {
        ROW_AHEAD(x + i);
        for (int k = 0; k < ROW_STRANDS; k++)
            a[k] += NAMED(lanes_at)(x + i + k * LANES);
    }
    double sum = NAMED(total_of)(a);
    for (; i < n; i++)
        sum += (double)x[i];
    return sum;
}

TARN__UNUSED static double NAMED(block_dot)(const T *x, const T *y, int64_t n)
{
    NAMED(lanes) a[ROW_STRANDS] = {{0}};
    int64_t i = 0;
    for (; i + ROW_STRANDS * LANES <= n; i += ROW_STRANDS * LANES)
        for (int k = 0; k < ROW_STRANDS; k++)
            a[k] += NAMED(lanes_at)(x + i + k * LANES) * NAMED(lanes_at)(y + i + k * LANES);
    double sum = NAMED(total_of)(a);
    for (; i < n; i++)
        sum += (double)(x[i] * y[i]);
    return sum;
}

/* The sum of (x - mean)². */
TARN__UNUSED static double NAMED(block_spread)(const T *x, T mean, int64_t n)
{
    NAMED(lanes) a[ROW_STRANDS] = {{0}};
    int64_t i = 0;
    for (; i + ROW_STRANDS * LANES <= n; i += ROW_STRANDS * LANES) {
        ROW_AHEAD(x + i);
        for (int k = 0; k < ROW_STRANDS; k++) {
            NAMED(lanes) d = NAMED(lanes_at)(x + i + k * LANES) - mean;
            a[k] += d * d;
        }
    }
    double sum = NAMED(total_of)(a);
    for (; i < n; i++)
        sum += (double)((x[i] - mean) * (x[i] - mean));
    return sum;
}

#undef LANES
#undef T
#undef BITS
#undef LARGER
#undef NAMED
