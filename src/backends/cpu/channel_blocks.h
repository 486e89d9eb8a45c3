/* channel_blocks.h: what the engine of channels.h does to a block, for one type: channels.c includes it with T and NAMED(x).
 *
 * By rows a block is up to BLOCK elements of one channel; by columns a row of up to TILE elements, one or several for each channel. */

#define LANES ((int)(VECTOR_BYTES / sizeof(T)))

/* ---- by rows --------------------------------------------------------------------------------------------------------------- */

/* Lanes add up STEPS elements each, so that few digits are lost, then all go into f64. */
enum { NAMED(WAYS) = 4, NAMED(STEPS) = 8 };

/* The end of the whole rounds of WAYS vectors from i on, of STEPS rounds at most. */
static inline int64_t NAMED(stretch_end)(int64_t i, int64_t n)
{
    int64_t round = NAMED(WAYS) * LANES, rounds = (n - i) / round;
    return i + (rounds < NAMED(STEPS) ? rounds : NAMED(STEPS)) * round;
}

/* The sums of distances from m and of their squares. */
static void NAMED(distances)(const T *x, int64_t n, T m, double *rest, double *square)
{
    *rest = *square = 0;
    int64_t i = 0;
    for (int64_t end; (end = NAMED(stretch_end)(i, n)) > i;) {
        NAMED(lanes) a[NAMED(WAYS)] = {{0}}, b[NAMED(WAYS)] = {{0}};
        for (; i < end; i += NAMED(WAYS) * LANES)
            for (int k = 0; k < NAMED(WAYS); k++) {
                NAMED(lanes) p = NAMED(lanes_at)(x + i + k * LANES) - m;
                a[k] += p;
                b[k] += p * p;
            }
        *rest += NAMED(total)((a[0] + a[1]) + (a[2] + a[3]));
        *square += NAMED(total)((b[0] + b[1]) + (b[2] + b[3]));
    }
    NAMED(lanes) last = {0}, squared = {0};
    for (; i + LANES <= n; i += LANES) {
        NAMED(lanes) p = NAMED(lanes_at)(x + i) - m;
        last += p;
        squared += p * p;
    }
    *rest += NAMED(total)(last), *square += NAMED(total)(squared);
    for (; i < n; i++) {
        double p = (double)(x[i] - m);
        *rest += p;
        *square += p * p;
    }
}

/* Distances from the mean of the first two vectors: their sum, 0 if that were the mean of all, corrects both numbers. Where it is farther from the
 * mean than the elements are on average, digits would cancel, and a second pass has the mean for its centre. */
static void NAMED(row_moments)(const void *from, int64_t n, double *mean, double *squares)
{
    const T *x = from, first = x[0];
    double rest = 0, square = 0;
    T m = first;
    if (n >= 2 * LANES)
        m += (T)(NAMED(total)((NAMED(lanes_at)(x) - first) + (NAMED(lanes_at)(x + LANES) - first)) / (2 * LANES));
    NAMED(distances)(x, n, m, &rest, &square);
    if (!(2 * rest * rest <= square * (double)n)) {
        m = (T)((double)m + rest / (double)n);
        NAMED(distances)(x, n, m, &rest, &square);
    }
    *mean = (double)m + rest / (double)n;
    *squares = square - rest * rest / (double)n;
}

static void NAMED(row_normalise)(const void *from, void *to, int64_t n, double mean, double by, double plus)
{
    const T *x = from;
    T *y = to, high = (T)mean, low = (T)(mean - (double)high), scale = (T)by, bias = (T)plus;
    EACH y[i] = ((x[i] - high) - low) * scale + bias;
}

static void NAMED(row_sums)(const void *of, const void *from, int64_t n, double mean, double rstd, double *sums)
{
    const T *x = of, *g = from;
    T high = (T)mean, low = (T)(mean - (double)high), s = (T)rstd;
    int64_t i = 0;
    for (int64_t end; (end = NAMED(stretch_end)(i, n)) > i;) {
        NAMED(lanes) a[NAMED(WAYS)] = {{0}}, b[NAMED(WAYS)] = {{0}};
        for (; i < end; i += NAMED(WAYS) * LANES)
            for (int k = 0; k < NAMED(WAYS); k++) {
                NAMED(lanes) up = NAMED(lanes_at)(g + i + k * LANES);
                a[k] += up;
                b[k] += up * (((NAMED(lanes_at)(x + i + k * LANES) - high) - low) * s);
            }
        sums[0] += NAMED(total)((a[0] + a[1]) + (a[2] + a[3]));
        sums[1] += NAMED(total)((b[0] + b[1]) + (b[2] + b[3]));
    }
    NAMED(lanes) last = {0}, product = {0};
    for (; i + LANES <= n; i += LANES) {
        NAMED(lanes) up = NAMED(lanes_at)(g + i);
        last += up;
        product += up * (((NAMED(lanes_at)(x + i) - high) - low) * s);
    }
    sums[0] += NAMED(total)(last), sums[1] += NAMED(total)(product);
    for (; i < n; i++) {
        sums[0] += (double)g[i];
        sums[1] += (double)(g[i] * (((x[i] - high) - low) * s));
    }
}

/* numbers: mean, rstd, scale, first, second. */
static void NAMED(row_grad)(const void *of, const void *from, void *to, int64_t n, const double *numbers)
{
    const T *x = of, *g = from;
    T *gx = to, high = (T)numbers[0], low = (T)(numbers[0] - (double)high), s = (T)numbers[1], scale = (T)numbers[2];
    T first = (T)numbers[3], second = (T)numbers[4];
    EACH gx[i] = g[i] * scale - first - ((x[i] - high) - low) * s * second;
}

static void NAMED(row_scale)(const void *from, void *to, int64_t n, double by)
{
    const T *g = from;
    T *gx = to, scale = (T)by;
    EACH gx[i] = g[i] * scale;
}

/* What is added to results, or NULL, and relu. */
static void NAMED(add_and_cut)(void *to, const void *more, int64_t n)
{
    T *y = to;
    const T *beside = more;
    if (beside)
        EACH y[i] += beside[i];
    EACH y[i] = y[i] < 0 ? (T)0 : y[i];
}

/* relu's gradient: what is not a number goes through, as its value does. */
static void NAMED(let_through)(const void *of, const void *from, void *to, int64_t n, double least)
{
    const T *y = of, *g = from;
    T *up = to, low = (T)least;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        NAMED(masks) stopped = NAMED(lanes_at)(y + i) <= low;
        NAMED(masks) through = (NAMED(masks))NAMED(lanes_at)(g + i) & ~stopped;
        memcpy(up + i, &through, sizeof(through));
    }
    for (; i < n; i++)
        up[i] = y[i] <= low ? (T)0 : g[i];
}

/* The same where relu's result is made again from x, as row_normalise() made it. */
static void NAMED(row_let_through)(const void *of, const void *from, void *to, int64_t n, double mean, double by, double plus, double least)
{
    const T *x = of, *g = from;
    T *up = to, high = (T)mean, low = (T)(mean - (double)high), scale = (T)by, bias = (T)plus, limit = (T)least;
    int64_t i = 0;
    for (; i + NAMED(WAYS) * LANES <= n; i += NAMED(WAYS) * LANES) {
        NAMED(masks) through[NAMED(WAYS)];
        for (int k = 0; k < NAMED(WAYS); k++) {
            NAMED(lanes) y = ((NAMED(lanes_at)(x + i + k * LANES) - high) - low) * scale + bias;
            through[k] = (NAMED(masks))NAMED(lanes_at)(g + i + k * LANES) & ~(y <= limit);
        }
        memcpy(up + i, through, sizeof(through));
    }
    for (; i < n; i++) {
        T y = ((x[i] - high) - low) * scale + bias;
        up[i] = y <= limit ? (T)0 : g[i];
    }
}

/* ---- by columns ------------------------------------------------------------------------------------------------------------ */

/* The numbers of a tile of channels in the type computed in. */
typedef struct NAMED(tile) {
    T high[TILE], low[TILE], rstd[TILE], scale[TILE], bias[TILE], first[TILE], second[TILE];
} NAMED(tile);

/* Numbers that a pass does not use are not there. */
static void NAMED(fetch_numbers)(T *to, const double *from, int64_t at, int64_t n)
{
    for (int64_t i = 0; from && i < n; i++)
        to[i] = (T)from[at + i];
}

/* n channels from `at` on, once for every position in a row. */
static void NAMED(fetch_tile)(void *to, const tarn__channel_numbers *numbers, int64_t at, int64_t n, int64_t fold)
{
    NAMED(tile) *t = to;
    for (int64_t k = 0; k < fold; k++) {
        NAMED(fetch_numbers)(t->high + k * n, numbers->mean, at, n);
        for (int64_t i = 0; i < n; i++)
            t->low[k * n + i] = (T)(numbers->mean[at + i] - (double)t->high[k * n + i]);
        NAMED(fetch_numbers)(t->rstd + k * n, numbers->rstd, at, n);
        NAMED(fetch_numbers)(t->scale + k * n, numbers->scale, at, n);
        NAMED(fetch_numbers)(t->bias + k * n, numbers->bias, at, n);
        NAMED(fetch_numbers)(t->first + k * n, numbers->first, at, n);
        NAMED(fetch_numbers)(t->second + k * n, numbers->second, at, n);
    }
}

/* `vectors` vectors of columns from `at` on: the rows are few and lie in the cache, the sums stay in registers. */
static inline __attribute__((always_inline)) void NAMED(moments_at)(const void *const *row, int rows, int64_t at, int vectors, double *mean,
                                                                    double *squares)
{
    NAMED(lanes) m[4], rest[4], square[4];
    const T share = (T)1 / (T)rows;
    for (int k = 0; k < vectors; k++)
        m[k] = rest[k] = square[k] = (NAMED(lanes)){0};
    for (int r = 1; r < rows; r++)
        for (int k = 0; k < vectors; k++)
            m[k] += NAMED(lanes_at)((const T *)row[r] + at + k * LANES) - NAMED(lanes_at)((const T *)row[0] + at + k * LANES);
    for (int k = 0; k < vectors; k++)
        m[k] = NAMED(lanes_at)((const T *)row[0] + at + k * LANES) + m[k] * share;
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < vectors; k++) {
            NAMED(lanes) d = NAMED(lanes_at)((const T *)row[r] + at + k * LANES) - m[k];
            rest[k] += d;
            square[k] += d * d;
        }
    for (int k = 0; k < vectors; k++)
        for (int i = 0; i < LANES; i++) {
            mean[at + k * LANES + i] = (double)m[k][i] + (double)rest[k][i] / rows;
            squares[at + k * LANES + i] = (double)square[k][i] - (double)rest[k][i] * (double)rest[k][i] / rows;
        }
}

/* Moments of each column over a few rows: a mean from the distances to the first row, then the distances from it. */
static void NAMED(column_moments)(const void *const *row, int rows, int64_t n, double *mean, double *squares)
{
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        NAMED(moments_at)(row, rows, i, 4, mean, squares);
    for (; i + LANES <= n; i += LANES)
        NAMED(moments_at)(row, rows, i, 1, mean, squares);
    for (; i < n; i++) {
        T first = ((const T *)row[0])[i], m = 0;
        double rest = 0, square = 0;
        for (int r = 1; r < rows; r++)
            m += ((const T *)row[r])[i] - first;
        m = first + m / (T)rows;
        for (int r = 0; r < rows; r++) {
            double d = (double)(((const T *)row[r])[i] - m);
            rest += d;
            square += d * d;
        }
        mean[i] = (double)m + rest / rows;
        squares[i] = square - rest * rest / rows;
    }
}

static void NAMED(column_normalise)(const void *from, void *to, int64_t n, const void *numbers)
{
    const NAMED(tile) *t = numbers;
    const T *x = from;
    T *y = to;
    EACH y[i] = ((x[i] - t->high[i]) - t->low[i]) * t->scale[i] + t->bias[i];
}

static inline __attribute__((always_inline)) void NAMED(sums_at)(const void *const *of, const void *const *from, int rows, int64_t at,
                                                                 int vectors, const NAMED(tile) *t, double *sum, double *product)
{
    NAMED(lanes) a[2], b[2];
    for (int k = 0; k < vectors; k++)
        a[k] = b[k] = (NAMED(lanes)){0};
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < vectors; k++) {
            int64_t i = at + k * LANES;
            NAMED(lanes) up = NAMED(lanes_at)((const T *)from[r] + i), x = NAMED(lanes_at)((const T *)of[r] + i);
            a[k] += up;
            b[k] += up * (((x - NAMED(lanes_at)(t->high + i)) - NAMED(lanes_at)(t->low + i)) * NAMED(lanes_at)(t->rstd + i));
        }
    for (int k = 0; k < vectors; k++)
        for (int i = 0; i < LANES; i++) {
            sum[at + k * LANES + i] += (double)a[k][i];
            product[at + k * LANES + i] += (double)b[k][i];
        }
}

/* Sums of each column over a few rows, added to what is there. */
static void NAMED(column_sums)(const void *const *of, const void *const *from, int rows, int64_t n, const void *numbers, double *sum,
                               double *product)
{
    const NAMED(tile) *t = numbers;
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        NAMED(sums_at)(of, from, rows, i, 2, t, sum, product);
    for (; i + LANES <= n; i += LANES)
        NAMED(sums_at)(of, from, rows, i, 1, t, sum, product);
    for (; i < n; i++)
        for (int r = 0; r < rows; r++) {
            T up = ((const T *)from[r])[i];
            sum[i] += (double)up;
            product[i] += (double)(up * (((((const T *)of[r])[i] - t->high[i]) - t->low[i]) * t->rstd[i]));
        }
}

static void NAMED(column_grad)(const void *of, const void *from, void *to, int64_t n, const void *numbers)
{
    const NAMED(tile) *t = numbers;
    const T *x = of, *g = from;
    T *gx = to;
    EACH gx[i] = g[i] * t->scale[i] - t->first[i] - ((x[i] - t->high[i]) - t->low[i]) * t->rstd[i] * t->second[i];
}

static void NAMED(column_scale)(const void *from, void *to, int64_t n, const void *numbers)
{
    const NAMED(tile) *t = numbers;
    const T *g = from;
    T *gx = to;
    EACH gx[i] = g[i] * t->scale[i];
}

static const blocks NAMED(blocks) = {
    NAMED(row_moments),    NAMED(row_normalise),    NAMED(row_sums),    NAMED(row_grad),    NAMED(row_scale),    NAMED(fetch_tile),
    NAMED(column_moments), NAMED(column_normalise), NAMED(column_sums), NAMED(column_grad), NAMED(column_scale),
    NAMED(add_and_cut),    NAMED(let_through),      NAMED(row_let_through),
};

#undef LANES
#undef T
#undef NAMED
