/* norm_blocks.h: what norms do to a block of a row, for one type: norm.c includes it with T and NAMED(x). */

#define LANES ((int)(VECTOR_BYTES / sizeof(T)))

/* From the distances to the block's first element: exact where all are equal. Else the mean of equal elements far from 0 could be off by a
 * rounding, which 1 / deviation makes large. */
static double NAMED(sum)(const void *from, int64_t n)
{
    const T *x = from, first = x[0];
    NAMED(lanes) a = {0}, b = {0}, c = {0}, d = {0};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        a += NAMED(lanes_at)(x + i) - first;
        b += NAMED(lanes_at)(x + i + LANES) - first;
        c += NAMED(lanes_at)(x + i + 2 * LANES) - first;
        d += NAMED(lanes_at)(x + i + 3 * LANES) - first;
    }
    double sum = NAMED(total)((a + b) + (c + d));
    for (; i < n; i++)
        sum += (double)x[i] - (double)first;
    return sum + (double)n * (double)first;
}

static double NAMED(spread)(const void *x, double mean, int64_t n)
{
    return NAMED(block_spread)(x, (T)mean, n);
}

static void NAMED(normalise)(const void *from, const void *by, const void *plus, void *to, double mean, double rstd, int64_t n)
{
    const T *x = from, *weight = by, *bias = plus;
    T *y = to, m = (T)mean, s = (T)rstd;
    EACH y[i] = (x[i] - m) * s * weight[i] + bias[i];
}

static inline void NAMED(add_vector)(T *to, NAMED(lanes) v)
{
    v += NAMED(lanes_at)(to);
    memcpy(to, &v, sizeof(v));
}

static void NAMED(sums)(const void *of, const void *from, const void *by, void *to_weight, void *to_bias, double mean, double rstd, int64_t n,
                        double *sums)
{
    const T *x = of, *g = from, *weight = by;
    T *gweight = to_weight, *gbias = to_bias, m = (T)mean, s = (T)rstd;
    NAMED(lanes) first = {0}, second = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        NAMED(lanes) hat = (NAMED(lanes_at)(x + i) - m) * s, up = NAMED(lanes_at)(g + i), gw = up * NAMED(lanes_at)(weight + i);
        first += gw;
        second += gw * hat;
        if (gweight)
            NAMED(add_vector)(gweight + i, up * hat);
        if (gbias)
            NAMED(add_vector)(gbias + i, up);
    }
    sums[0] += NAMED(total)(first);
    sums[1] += NAMED(total)(second);
    for (; i < n; i++) {
        T hat = (x[i] - m) * s, gw = g[i] * weight[i];
        sums[0] += (double)gw;
        sums[1] += (double)(gw * hat);
        if (gweight)
            gweight[i] += g[i] * hat;
        if (gbias)
            gbias[i] += g[i];
    }
}

static void NAMED(grad)(const void *of, const void *from, const void *by, void *to, double mean, double rstd, const double *means, int64_t n)
{
    const T *x = of, *g = from, *weight = by;
    T *gx = to, m = (T)mean, s = (T)rstd, first = (T)means[0], second = (T)means[1];
    EACH gx[i] = s * (g[i] * weight[i] - first - (x[i] - m) * s * second);
}

static void NAMED(plus)(const void *first, const void *second, void *to, int64_t n)
{
    const T *x = first, *y = second;
    T *sum = to;
    EACH sum[i] = x[i] + y[i];
}

static void NAMED(add)(const void *from, double *sum, int64_t n)
{
    const T *x = from;
    EACH sum[i] += (double)x[i];
}

static const maths NAMED(maths) = {sizeof(T), NAMED(sum), NAMED(spread), NAMED(normalise), NAMED(sums), NAMED(grad), NAMED(plus), NAMED(add)};

#undef LANES
#undef T
#undef NAMED
