/* gemm_thin.h: products of up to THIN_ROWS rows, for one compute type; gemm.h includes it. They are bound by reading b once: nothing is packed. A chunk is LONGEST_LINE
 * columns of one batch. */

/* Columns of b lie along memory: sums run down k for a whole line of columns. */
static void NAMED(thin_by_lines)(const product *p, int64_t batch, int64_t column, int64_t n, T sum[THIN_ROWS][LONGEST_LINE])
{
    T left[THIN_ROWS][STRIP], line[4][LONGEST_LINE];
    bool native = p->b.dtype == NATIVE && p->b.across == 1;
    int64_t size = (int64_t)tarn__dtype_bytes(p->b.dtype);
    memset(sum, 0, sizeof(T) * THIN_ROWS * LONGEST_LINE);
    for (int64_t begin = 0; begin < p->k; begin += STRIP) {
        int64_t strip = p->k - begin < STRIP ? p->k - begin : STRIP;
        for (int64_t r = 0; r < p->m; r++)
            tarn__load[p->a.dtype][COMPUTE](element(p, &p->a, batch, r, begin), p->a.across, left[r], strip);
        for (int64_t k = 0; k < strip; k += 4) {
            const T *from[4];
            int lines = strip - k < 4 ? (int)(strip - k) : 4;
            const char *b = element(p, &p->b, batch, begin + k, column);
            for (int i = 0; i < lines; i++) {
                if (!native)
                    tarn__load[p->b.dtype][COMPUTE](b + i * p->b.down * size, p->b.across, line[i], n);
                from[i] = native ? (const T *)(const void *)(b + i * p->b.down * size) : line[i];
            }
            for (int64_t r = 0; r < p->m; r++) {
                const T *x = left[r] + k;
                if (lines == 4)
                    for (int64_t j = 0; j < n; j++)
                        sum[r][j] += (x[0] * from[0][j] + x[1] * from[1][j]) + (x[2] * from[2][j] + x[3] * from[3][j]);
                else
                    for (int i = 0; i < lines; i++)
                        for (int64_t j = 0; j < n; j++)
                            sum[r][j] += x[i] * from[i][j];
            }
        }
    }
}

static T NAMED(dot)(const T *a, const T *b, int64_t n)
{
    NAMED(vector) s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        s0 += NAMED(load_vector)(a + i) * NAMED(load_vector)(b + i);
        s1 += NAMED(load_vector)(a + i + LANES) * NAMED(load_vector)(b + i + LANES);
        s2 += NAMED(load_vector)(a + i + 2 * LANES) * NAMED(load_vector)(b + i + 2 * LANES);
        s3 += NAMED(load_vector)(a + i + 3 * LANES) * NAMED(load_vector)(b + i + 3 * LANES);
    }
    s0 = (s0 + s1) + (s2 + s3);
    T sum = 0;
    for (int lane = 0; lane < LANES; lane++)
        sum += s0[lane];
    for (; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

#if defined(WIDEN_BF16)
/* The same with b's numbers widened on their way: the sums have the same bits. */
#define DOT_16(name, widen, one)                                                                                                          \
    static float name(const float *a, const uint16_t *b, int64_t n)                                                                       \
    {                                                                                                                                     \
        vector_f32 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};                                                                                \
        int64_t i = 0;                                                                                                                    \
        for (; i + 4 * LANES <= n; i += 4 * LANES) {                                                                                      \
            s0 += load_vector_f32(a + i) * widen(b + i);                                                                                  \
            s1 += load_vector_f32(a + i + LANES) * widen(b + i + LANES);                                                                  \
            s2 += load_vector_f32(a + i + 2 * LANES) * widen(b + i + 2 * LANES);                                                          \
            s3 += load_vector_f32(a + i + 3 * LANES) * widen(b + i + 3 * LANES);                                                          \
        }                                                                                                                                 \
        s0 = (s0 + s1) + (s2 + s3);                                                                                                       \
        float sum = 0;                                                                                                                    \
        for (int lane = 0; lane < LANES; lane++)                                                                                          \
            sum += s0[lane];                                                                                                              \
        for (; i < n; i++)                                                                                                                \
            sum += a[i] * one(b[i]);                                                                                                      \
        return sum;                                                                                                                       \
    }
DOT_16(dot_bf16, WIDEN_BF16, tarn__bf16_to_f32)
DOT_16(dot_f16, WIDEN_F16, tarn__f16_to_f32)
#undef DOT_16
#endif

/* Asks for the strip that is due a few dot products later: left alone, the processor has to find the way again in every line. */
static inline void NAMED(ask_ahead)(const product *p, int64_t batch, int64_t column, int64_t n, int64_t begin, int64_t j, int64_t strip)
{
    bool below = j + THIN_AHEAD >= n;
    int64_t k = below ? begin + strip : begin, at = below ? j + THIN_AHEAD - n : j + THIN_AHEAD;
    if (k >= p->k || at >= n)
        return;
    const char *from = element(p, &p->b, batch, k, column + at);
    int64_t bytes = (p->k - k < strip ? p->k - k : strip) * (int64_t)tarn__dtype_bytes(p->b.dtype);
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(from + i);
}

/* Rows of k lie along memory: each element of the output is a dot product. */
static void NAMED(thin_by_dots)(const product *p, int64_t batch, int64_t column, int64_t n, T sum[THIN_ROWS][LONGEST_LINE])
{
    T left[THIN_ROWS][LONGEST_LINE], line[LONGEST_LINE];
    bool native = p->b.dtype == NATIVE;
    memset(sum, 0, sizeof(T) * THIN_ROWS * LONGEST_LINE);
    for (int64_t begin = 0; begin < p->k; begin += LONGEST_LINE) {
        int64_t strip = p->k - begin < LONGEST_LINE ? p->k - begin : LONGEST_LINE;
        for (int64_t r = 0; r < p->m; r++)
            tarn__load[p->a.dtype][COMPUTE](element(p, &p->a, batch, r, begin), p->a.across, left[r], strip);
        for (int64_t j = 0; j < n; j++) {
            const char *b = element(p, &p->b, batch, begin, column + j);
            NAMED(ask_ahead)(p, batch, column, n, begin, j, strip);
#if defined(WIDEN_BF16)
            if (p->b.dtype == TARN_BF16 || p->b.dtype == TARN_F16) {
                for (int64_t r = 0; r < p->m; r++)
                    sum[r][j] += (p->b.dtype == TARN_BF16 ? dot_bf16 : dot_f16)(left[r], (const uint16_t *)(const void *)b, strip);
                continue;
            }
#endif
            if (!native)
                tarn__load[p->b.dtype][COMPUTE](b, 1, line, strip);
            for (int64_t r = 0; r < p->m; r++)
                sum[r][j] += NAMED(dot)(left[r], native ? (const T *)(const void *)b : line, strip);
        }
    }
}

static void NAMED(run_thin)(int64_t begin, int64_t end, void *ctx)
{
    const product *p = ctx;
    T sum[THIN_ROWS][LONGEST_LINE];
    for (int64_t chunks = ceiling(p->n, p->thin_columns); begin < end; begin++) {
        int64_t batch = begin / chunks, column = begin % chunks * p->thin_columns;
        int64_t n = p->n - column < p->thin_columns ? p->n - column : p->thin_columns;
        if (p->b.down == 1 && p->b.across != 1)
            NAMED(thin_by_dots)(p, batch, column, n, sum);
        else
            NAMED(thin_by_lines)(p, batch, column, n, sum);
        for (int64_t r = 0; r < p->m; r++)
            NAMED(store_line)(p, batch, r, column, sum[r], n);
    }
}
