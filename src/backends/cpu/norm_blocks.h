/* norm_blocks.h: what norms do to a block of a row, for one type: norm_maths.h includes it with T and NAMED(x). */

#define LANES ((int)(VECTOR_BYTES / sizeof(T)))

/* The sums of distances from a centre, where wanted, and of their squares. */
static inline __attribute__((always_inline)) void NAMED(distances)(const T *x, T from, bool centred, int64_t n, double *sums)
{
    NAMED(lanes) a[4] = {{0}}, b[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        LINE_AHEAD(x + i);
        for (int k = 0; k < 4; k++) {
            NAMED(lanes) d = NAMED(lanes_at)(x + i + k * LANES) - from;
            if (centred)
                a[k] += d;
            b[k] += d * d;
        }
    }
    sums[0] = NAMED(total)((a[0] + a[1]) + (a[2] + a[3])), sums[1] = NAMED(total)((b[0] + b[1]) + (b[2] + b[3]));
    for (; i < n; i++) {
        double d = (double)x[i] - (double)from;
        sums[0] += centred ? d : 0;
        sums[1] += d * d;
    }
}

static void NAMED(powers)(const void *x, bool centred, int64_t n, double *sums)
{
    if (centred)
        NAMED(distances)(x, 0, true, n, sums);
    else
        NAMED(distances)(x, 0, false, n, sums);
}

/* Whether the mean is so far from the centre, or something so large, that digits are lost. */
static inline bool NAMED(is_off)(const double *sums, int64_t n)
{
    return !(2 * sums[0] * sums[0] <= sums[1] * (double)n && sums[1] - sums[1] == 0);
}

/* The sum of distances from a centre corrects both numbers. 0 is a good centre for most rows; else it is found from the distances of some elements to
 * the first, or of all: exact where all are equal. Else the mean of equal elements far from 0 could be off by a rounding, which 1 / deviation
 * makes large. */
static void NAMED(moments)(const void *of, int64_t n, double *sums)
{
    const T *x = of, first = x[0];
    T from = 0;
    for (int pass = 0; pass < 2 && NAMED(is_off)(sums, n); pass++) {
        if (pass > 0)
            from = (T)((double)from + sums[0] / (double)n);
        else
            from = n < LANES ? first : first + (T)(NAMED(total)(NAMED(lanes_at)(x) - first) / LANES);
        NAMED(distances)(x, from, true, n, sums);
    }
    double rest = sums[0] / (double)n;
    sums[1] -= rest * sums[0];
    sums[0] = (double)from + rest;
}

/* With `next`, another row's sums as powers() finds them, the same bits. */
static inline __attribute__((always_inline)) void NAMED(normalised)(const T *x, const T *weight, const T *bias, T *y, const scaling *c, bool is_far,
                                                                    const T *next, bool centred, int64_t n, double *sums)
{
    T m = (T)c->mean, s = (T)c->rstd, shift = (T)(-c->mean * (double)s);
    NAMED(lanes) a[4] = {{0}}, b[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        NAMED(lanes) v[4];
        for (int k = 0; k < 4; k++) {
            NAMED(lanes) there = NAMED(lanes_at)(x + i + k * LANES);
            v[k] = is_far ? (there - m) * s : there * s + shift;
        }
        if (next) {
            LINE_AHEAD(next + i);
            for (int k = 0; k < 4; k++) {
                NAMED(lanes) there = NAMED(lanes_at)(next + i + k * LANES);
                if (centred)
                    a[k] += there;
                b[k] += there * there;
            }
        }
        for (int k = 0; k < 4; k++)
            v[k] = v[k] * NAMED(lanes_at)(weight + i + k * LANES) + NAMED(lanes_at)(bias + i + k * LANES);
        for (int k = 0; k < 4; k++)
            memcpy(y + i + k * LANES, &v[k], sizeof(v[k]));
    }
    sums[0] = NAMED(total)((a[0] + a[1]) + (a[2] + a[3])), sums[1] = NAMED(total)((b[0] + b[1]) + (b[2] + b[3]));
    for (int64_t at = i; next && at < n; at++) {
        sums[0] += centred ? (double)next[at] : 0;
        sums[1] += (double)next[at] * (double)next[at];
    }
    TARN__INDEPENDENT for (; i < n; i++)
        y[i] = (is_far ? (x[i] - m) * s : x[i] * s + shift) * weight[i] + bias[i];
}

static void NAMED(normalise)(const void *x, const void *weight, const void *bias, void *y, const scaling *c, int64_t n)
{
    double none[2];
    if (c->is_far)
        NAMED(normalised)(x, weight, bias, y, c, true, NULL, false, n, none);
    else
        NAMED(normalised)(x, weight, bias, y, c, false, NULL, false, n, none);
}

static void NAMED(normalise_ahead)(const void *x, const void *weight, const void *bias, void *y, const scaling *c, const void *next, bool centred, int64_t n,
                                   double *sums)
{
    if (c->is_far)
        NAMED(normalised)(x, weight, bias, y, c, true, next, true, n, sums);
    else if (centred)
        NAMED(normalised)(x, weight, bias, y, c, false, next, true, n, sums);
    else
        NAMED(normalised)(x, weight, bias, y, c, false, next, false, n, sums);
}

/* x̂ in T, and what SUM_STRANDS vectors add to the sums. */
typedef struct NAMED(hat) {
    T m, s, shift;
    bool is_far;
} NAMED(hat);

static inline NAMED(hat) NAMED(hat_of)(const scaling *c, bool is_far)
{
    T s = (T)c->rstd;
    return (NAMED(hat)){(T)c->mean, s, (T)(-c->mean * (double)s), is_far};
}

static inline __attribute__((always_inline)) void NAMED(add_vectors)(T *to, const NAMED(lanes) *terms)
{
    NAMED(lanes) v[SUM_STRANDS];
    for (int k = 0; k < SUM_STRANDS; k++)
        v[k] = NAMED(lanes_at)(to + k * LANES) + terms[k];
    for (int k = 0; k < SUM_STRANDS; k++)
        memcpy(to + k * LANES, &v[k], sizeof(v[k]));
}

static inline __attribute__((always_inline)) void NAMED(add_terms)(const T *x, const T *g, const T *weight, T *gweight, T *gbias, NAMED(hat) h, bool centred,
                                                                   NAMED(lanes) *first, NAMED(lanes) *second)
{
    NAMED(lanes) up[SUM_STRANDS], turned[SUM_STRANDS];
    for (int k = 0; k < SUM_STRANDS; k++) {
        NAMED(lanes) there = NAMED(lanes_at)(x + k * LANES), w = NAMED(lanes_at)(weight + k * LANES);
        up[k] = NAMED(lanes_at)(g + k * LANES);
        turned[k] = up[k] * (h.is_far ? (there - h.m) * h.s : there * h.s + h.shift);
        if (centred)
            first[k] += up[k] * w;
        second[k] += turned[k] * w;
    }
    if (gweight)
        NAMED(add_vectors)(gweight, turned);
    if (gbias)
        NAMED(add_vectors)(gbias, up);
}

/* The elements from i on, behind the last whole vectors. */
static inline void NAMED(add_rest)(slope *r, const T *weight, T *gweight, T *gbias, NAMED(hat) h, int64_t i, int64_t n)
{
    const T *x = r->x, *g = r->g;
    for (; i < n; i++) {
        T turned = g[i] * (h.is_far ? (x[i] - h.m) * h.s : x[i] * h.s + h.shift);
        r->sums[0] += (double)(g[i] * weight[i]);
        r->sums[1] += (double)(turned * weight[i]);
        if (gweight)
            gweight[i] += turned;
        if (gbias)
            gbias[i] += g[i];
    }
}

static inline void NAMED(add_lanes)(slope *r, const NAMED(lanes) *first, const NAMED(lanes) *second)
{
#if SUM_STRANDS == 4
    r->sums[0] += NAMED(total)((first[0] + first[1]) + (first[2] + first[3]));
    r->sums[1] += NAMED(total)((second[0] + second[1]) + (second[2] + second[3]));
#else
    r->sums[0] += NAMED(total)(first[0]);
    r->sums[1] += NAMED(total)(second[0]);
#endif
}

static inline __attribute__((always_inline)) void NAMED(add_row)(slope *r, const T *weight, T *gweight, T *gbias, bool is_far, bool centred, int64_t n)
{
    NAMED(hat) h = NAMED(hat_of)(&r->c, is_far);
    NAMED(lanes) first[SUM_STRANDS] = {{0}}, second[SUM_STRANDS] = {{0}};
    const T *x = r->x, *g = r->g;
    int64_t i = 0;
    for (; i + SUM_STRANDS * LANES <= n; i += SUM_STRANDS * LANES) {
        LINE_AHEAD(x + i);
        LINE_AHEAD(g + i);
        NAMED(add_terms)(x + i, g + i, weight + i, gweight ? gweight + i : NULL, gbias ? gbias + i : NULL, h, centred, first, second);
    }
    NAMED(add_lanes)(r, first, second);
    NAMED(add_rest)(r, weight, gweight, gbias, h, i, n);
}

static void NAMED(sums)(slope *r, const void *weight, void *gweight, void *gbias, bool centred, int64_t n)
{
    if (r->c.is_far)
        NAMED(add_row)(r, weight, gweight, gbias, true, true, n);
    else if (centred)
        NAMED(add_row)(r, weight, gweight, gbias, false, true, n);
    else
        NAMED(add_row)(r, weight, gweight, gbias, false, false, n);
}

/* rstd · (g · weight - first - x̂ · second): what does not depend on the element is a factor of x and a term. */
typedef struct NAMED(line) {
    T m, factor, rest, s;
    bool is_far;
} NAMED(line);

static inline NAMED(line) NAMED(line_of)(const slope *r, bool is_far)
{
    T s = (T)r->c.rstd;
    double factor = -(double)s * r->sums[1];
    return (NAMED(line)){(T)r->c.mean, (T)factor, (T)((is_far ? 0 : -r->c.mean * factor) - r->sums[0]), s, is_far};
}

static inline __attribute__((always_inline)) NAMED(lanes) NAMED(slope_at)(const T *x, const T *g, const T *weight, NAMED(line) l)
{
    NAMED(lanes) there = NAMED(lanes_at)(x);
    return ((l.is_far ? there - l.m : there) * l.factor + l.rest + NAMED(lanes_at)(g) * NAMED(lanes_at)(weight)) * l.s;
}

static inline __attribute__((always_inline)) void NAMED(grad_row)(const slope *r, const T *weight, T *gx, bool is_far, int64_t n)
{
    NAMED(line) l = NAMED(line_of)(r, is_far);
    const T *x = r->x, *g = r->g;
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        NAMED(lanes) v[4];
        for (int k = 0; k < 4; k++)
            v[k] = NAMED(slope_at)(x + i + k * LANES, g + i + k * LANES, weight + i + k * LANES, l);
        for (int k = 0; k < 4; k++)
            memcpy(gx + i + k * LANES, &v[k], sizeof(v[k]));
    }
    TARN__INDEPENDENT for (; i < n; i++)
        gx[i] = ((is_far ? x[i] - l.m : x[i]) * l.factor + l.rest + g[i] * weight[i]) * l.s;
}

static void NAMED(grad)(const slope *r, const void *weight, void *gx, int64_t n)
{
    if (r->c.is_far)
        NAMED(grad_row)(r, weight, gx, true, n);
    else
        NAMED(grad_row)(r, weight, gx, false, n);
}

static inline __attribute__((always_inline)) void NAMED(grad_and_add)(const slope *r, const T *weight, T *gx, slope *next, T *gweight, T *gbias, bool centred,
                                                                      int64_t n)
{
    NAMED(line) l = NAMED(line_of)(r, false);
    NAMED(hat) h = NAMED(hat_of)(&next->c, false);
    NAMED(lanes) first[SUM_STRANDS] = {{0}}, second[SUM_STRANDS] = {{0}};
    const T *x = r->x, *g = r->g, *next_x = next->x, *next_g = next->g;
    int64_t i = 0;
    for (; i + SUM_STRANDS * LANES <= n; i += SUM_STRANDS * LANES) {
        NAMED(lanes) v[SUM_STRANDS];
        LINE_AHEAD(next_x + i);
        LINE_AHEAD(next_g + i);
        for (int k = 0; k < SUM_STRANDS; k++)
            v[k] = NAMED(slope_at)(x + i + k * LANES, g + i + k * LANES, weight + i + k * LANES, l);
        for (int k = 0; k < SUM_STRANDS; k++)
            memcpy(gx + i + k * LANES, &v[k], sizeof(v[k]));
        NAMED(add_terms)(next_x + i, next_g + i, weight + i, gweight + i, gbias ? gbias + i : NULL, h, centred, first, second);
    }
    NAMED(add_lanes)(next, first, second);
    NAMED(add_rest)(next, weight, gweight, gbias, h, i, n);
    for (; i < n; i++)
        gx[i] = (x[i] * l.factor + l.rest + g[i] * weight[i]) * l.s;
}

static void NAMED(grad_ahead)(const slope *r, const void *weight, void *gx, slope *next, void *gweight, void *gbias, bool centred, int64_t n)
{
    if (gbias)
        NAMED(grad_and_add)(r, weight, gx, next, gweight, gbias, true, n);
    else if (centred)
        NAMED(grad_and_add)(r, weight, gx, next, gweight, NULL, true, n);
    else
        NAMED(grad_and_add)(r, weight, gx, next, gweight, NULL, false, n);
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

static const maths NAMED(maths) = {
    .size = sizeof(T),
    .powers = NAMED(powers),
    .moments = NAMED(moments),
    .normalise = NAMED(normalise),
    .sums = NAMED(sums),
    .grad = NAMED(grad),
    .plus = NAMED(plus),
    .add = NAMED(add),
    .normalise_ahead = GOES_AHEAD ? NAMED(normalise_ahead) : NULL,
    .grad_ahead = GOES_AHEAD ? NAMED(grad_ahead) : NULL,
};

#undef LANES
#undef T
#undef NAMED
