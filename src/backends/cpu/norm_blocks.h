/* norm_blocks.h: what norms do to a block of a row, for one type: norm.c includes it with T and NAMED(x). */

#define LANES ((int)(VECTOR_BYTES / sizeof(T)))

/* From the distances to the block's first element: exact where all are equal. Else the mean of equal elements far from 0 could be off by a
 * rounding, which 1 / deviation makes large. */
static double NAMED(sum)(const void *from, int64_t n)
{
    const T *x = from, first = x[0];
    NAMED(lanes) a[ROW_STRANDS] = {{0}};
    int64_t i = 0;
    for (; i + ROW_STRANDS * LANES <= n; i += ROW_STRANDS * LANES) {
        ROW_AHEAD(x + i);
        for (int k = 0; k < ROW_STRANDS; k++)
            a[k] += NAMED(lanes_at)(x + i + k * LANES) - first;
    }
    double sum = NAMED(total_of)(a);
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
    NAMED(lanes) first[SUM_STRANDS] = {{0}}, second[SUM_STRANDS] = {{0}};
    int64_t i = 0;
    for (; i + SUM_STRANDS * LANES <= n; i += SUM_STRANDS * LANES) {
        LINE_AHEAD(x + i);
        LINE_AHEAD(g + i);
        for (int k = 0; k < SUM_STRANDS; k++) {
            int64_t at = i + k * LANES;
            NAMED(lanes) hat = (NAMED(lanes_at)(x + at) - m) * s, up = NAMED(lanes_at)(g + at), gw = up * NAMED(lanes_at)(weight + at);
            first[k] += gw;
            second[k] += gw * hat;
            if (gweight)
                NAMED(add_vector)(gweight + at, up * hat);
            if (gbias)
                NAMED(add_vector)(gbias + at, up);
        }
    }
#if SUM_STRANDS == 4
    sums[0] += NAMED(total)((first[0] + first[1]) + (first[2] + first[3]));
    sums[1] += NAMED(total)((second[0] + second[1]) + (second[2] + second[3]));
#else
    sums[0] += NAMED(total)(first[0]);
    sums[1] += NAMED(total)(second[0]);
#endif
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
