/* softmax_blocks.h: what softmax does to a block of a row, or to one line of a tile of columns, for one type: softmax.c includes it with
 * T, EXP and NAMED(x). Outputs may be their inputs. */

#define LANES ((int)(VECTOR_BYTES / sizeof(T)))

static double NAMED(most)(const void *x, int64_t n)
{
    return (double)NAMED(block_max)(x, n);
}

static void NAMED(scale)(const void *from, void *to, int64_t n, double factor)
{
    const T *x = from;
    T *y = to, f = (T)factor;
    EACH y[i] = x[i] * f;
}

static void NAMED(logs)(const void *from, void *to, int64_t n, double most, double log_sum)
{
    const T *x = from;
    T *y = to, shift = (T)most, l = (T)log_sum;
    EACH y[i] = (x[i] - shift) - l;
}

static double NAMED(sum)(const void *x, int64_t n)
{
    return NAMED(block_sum)(x, n);
}

/* In f64, because a row with one large element leaves little of g - dot. */
static double NAMED(wide_dot)(const T *y, const T *g, int64_t n)
{
    double lane[DOT_LANES] = {0};
    int64_t whole = n / DOT_LANES * DOT_LANES;
    for (int64_t i = 0; i < whole; i += DOT_LANES)
        for (int k = 0; k < DOT_LANES; k++)
            lane[k] += (double)y[i + k] * (double)g[i + k];
    for (int k = 8; k < DOT_LANES; k++)
        lane[k - 8] += lane[k];
    double sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    for (int64_t i = whole; i < n; i++)
        sum += (double)y[i] * (double)g[i];
    return sum;
}

#if GOES_AHEAD

/* The dot product of next_y and next_g, and with gx, that row's gradient y · (g - dot). Without conversions, which take most of the time, where no
 * element is large. */
static inline __attribute__((always_inline)) double NAMED(dot_beside)(const T *y, const T *g, T *gx, T dot, const T *next_y, const T *next_g, int64_t n)
{
    NAMED(lanes) a[4] = {{0}}, most[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        NAMED(lanes) v[4];
        for (int k = 0; gx && k < 4; k++)
            v[k] = NAMED(lanes_at)(y + i + k * LANES) * (NAMED(lanes_at)(g + i + k * LANES) - dot);
        LINE_AHEAD(next_y + i);
        LINE_AHEAD(next_g + i);
        for (int k = 0; k < 4; k++) {
            NAMED(lanes) there = NAMED(lanes_at)(next_y + i + k * LANES);
            a[k] += there * NAMED(lanes_at)(next_g + i + k * LANES);
            most[k] = NAMED(larger)(most[k], there);
        }
        for (int k = 0; gx && k < 4; k++)
            memcpy(gx + i + k * LANES, &v[k], sizeof(v[k]));
    }
    T largest = NAMED(largest)(NAMED(larger)(NAMED(larger)(most[0], most[1]), NAMED(larger)(most[2], most[3])));
    double sum = NAMED(total)((a[0] + a[1]) + (a[2] + a[3]));
    for (; i < n; i++) {
        if (gx)
            gx[i] = y[i] * (g[i] - dot);
        largest = next_y[i] > largest ? next_y[i] : largest;
        sum += (double)next_y[i] * (double)next_g[i];
    }
    return largest > (T)0.5 ? NAMED(wide_dot)(next_y, next_g, n) : (double)(T)sum;
}

static double NAMED(dot)(const void *y, const void *g, int64_t n)
{
    return NAMED(dot_beside)(NULL, NULL, NULL, 0, y, g, n);
}

static double NAMED(grad_ahead)(const void *y, const void *g, void *gx, double dot, const void *next_y, const void *next_g, int64_t n)
{
    return NAMED(dot_beside)(y, g, gx, (T)dot, next_y, next_g, n);
}

static bool NAMED(is_exact)(double dot)
{
    return (double)(T)dot == dot;
}

/* Two subtractions cost less than conversions. */
static void NAMED(grad)(const void *of, const void *from, void *to, int64_t n, double dot)
{
    const T *y = of, *g = from;
    T *gx = to, high = (T)dot, low = fabs((double)high) < (double)INFINITY ? (T)(dot - (double)high) : 0;
    if (low != 0)
        EACH gx[i] = y[i] * ((g[i] - high) - low);
    else
        EACH gx[i] = y[i] * (g[i] - high);
}

#else

static double NAMED(dot)(const void *y, const void *g, int64_t n)
{
    return NAMED(wide_dot)(y, g, n);
}

static void NAMED(grad)(const void *of, const void *from, void *to, int64_t n, double dot)
{
    const T *y = of, *g = from;
    T *gx = to;
    EACH gx[i] = y[i] * (T)((double)g[i] - dot);
}

#endif

static void NAMED(log_grad)(const void *of, const void *from, void *to, int64_t n, double sum)
{
    const T *y = of, *g = from;
    T *gx = to, s = (T)sum;
    if (is_extreme(sum))
        EACH gx[i] = (T)((double)g[i] - tarn__exp_f64((double)y[i]) * sum);
    else
        NAMED(less_exps)(y, g, gx, n, s);
}

static void NAMED(column_most)(const void *from, void *to, int64_t n)
{
    const T *x = from;
    T *most = to;
    EACH most[i] = x[i] > most[i] ? x[i] : most[i];
}

/* A column with nothing but -infinity so far has no shift, and a sum of 0. */
static void NAMED(column_shift)(double *sum, void *before, void *after, void *by, int64_t n)
{
    T *most = before, *risen = after, *shift = by;
    EACH {
        T factor = most[i] == risen[i] ? 1 : EXP(most[i] - risen[i]);
        sum[i] *= (double)factor;
        shift[i] = risen[i] == -(T)INFINITY ? 0 : risen[i];
        most[i] = risen[i];
    }
}

static void NAMED(column_exps)(const void *from, void *to, const void *by, int64_t n)
{
    const T *x = from, *shift = by;
    T *part = to;
    EACH part[i] += EXP(x[i] - shift[i]);
}

static void NAMED(column_add)(double *sum, const void *from, int64_t n)
{
    const T *part = from;
    EACH sum[i] += (double)part[i];
}

static void NAMED(column_softmax)(const void *from, void *to, const void *of, const double *factor, int64_t n)
{
    const T *x = from, *most = of;
    T *y = to;
    EACH y[i] = EXP(x[i] - most[i]) * (T)factor[i];
}

static void NAMED(column_logs)(const void *from, void *to, const void *of, const double *log_sum, int64_t n)
{
    const T *x = from, *most = of;
    T *y = to;
    EACH y[i] = (x[i] - most[i]) - (T)log_sum[i];
}

static void NAMED(column_dot)(const void *of, const void *from, double *sum, int64_t n)
{
    const T *y = of, *g = from;
    EACH sum[i] += (double)y[i] * (double)g[i];
}

static void NAMED(column_sum)(const void *of, const void *from, double *sum, int64_t n)
{
    const T *g = from;
    (void)of;
    EACH sum[i] += (double)g[i];
}

static void NAMED(column_grad)(const void *of, const void *from, void *to, const double *dot, int64_t n)
{
    const T *y = of, *g = from;
    T *gx = to;
    EACH gx[i] = y[i] * (T)((double)g[i] - dot[i]);
}

static void NAMED(column_log_grad)(const void *of, const void *from, void *to, const double *sum, int64_t n)
{
    const T *y = of, *g = from;
    T *gx = to;
    int extreme = 0;
    for (int64_t i = 0; i < n; i++)
        extreme |= is_extreme(sum[i]);
    if (extreme)
        EACH gx[i] = (T)((double)g[i] - tarn__exp_f64((double)y[i]) * sum[i]);
    else
        EACH gx[i] = g[i] - EXP(y[i]) * (T)sum[i];
}

static const maths NAMED(maths) = {
    .size = sizeof(T),
    .most = NAMED(most),
    .exps = NAMED(block_exps),
    .scale = NAMED(scale),
    .logs = NAMED(logs),
    .sum = NAMED(sum),
    .dot = NAMED(dot),
    .grad = NAMED(grad),
#if GOES_AHEAD
    .grad_ahead = NAMED(grad_ahead),
    .is_exact = NAMED(is_exact),
#endif
    .log_grad = NAMED(log_grad),
    .column_most = NAMED(column_most),
    .column_shift = NAMED(column_shift),
    .column_exps = NAMED(column_exps),
    .column_add = NAMED(column_add),
    .column_softmax = NAMED(column_softmax),
    .column_logs = NAMED(column_logs),
    .column_dot = NAMED(column_dot),
    .column_sum = NAMED(column_sum),
    .column_grad = NAMED(column_grad),
    .column_log_grad = NAMED(column_log_grad),
};

#undef LANES
#undef T
#undef EXP
#undef NAMED
