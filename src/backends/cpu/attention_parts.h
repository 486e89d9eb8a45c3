/* attention_parts.h: the products and sums that attention is made of, for one compute type: attention_blocks.h includes it. */

#define LANES ((int)(VECTOR_BYTES / sizeof(T)))
#define NR (2 * LANES)

#include "backends/cpu/by_lane.h"
#include "backends/cpu/panels.h"

/* ---- products -------------------------------------------------------------------------------------------------------------- */

/* c (TILE_ROWS, NR) = or += a · b over k terms: element (i, p) of a at a[i · row + p · step], row p of b at b[p · ldb]. Three rows share a pointer:
 * so all addresses fit the registers, where the function is alone with them. */
__attribute__((noinline)) static void NAMED(tile)(int64_t k, const T *restrict a, int64_t row, int64_t step, const T *restrict b, int64_t ldb,
                                                  T *restrict c, int64_t ldc, bool add)
{
    int64_t twice = 2 * row;
#if TILE_ROWS > 6
    const T *a6 = a + 6 * row;
#define NEXT_A6 a6 += step;
#else
#define NEXT_A6
#endif
    const T *a3 = a + 3 * row;
#define SUMS(i, from, at) NAMED(vector) l##i = {0}, r##i = {0};
    EACH_ROW(SUMS)
#if defined(__aarch64__)
#define BY_LANES(i, v, lane) NAMED(BY_LANE)(l##i, left, v, lane), NAMED(BY_LANE)(r##i, right, v, lane);
    for (; row == 1 && k > 0; k--, a += step, b += ldb) { /* the numbers of a term lie side by side */
        NAMED(vector) left = NAMED(load_vector)(b), right = NAMED(load_vector)(b + LANES);
        NAMED(LOAD_EIGHT)(a)
        NAMED(EACH_OF_EIGHT)(BY_LANES)
    }
    for (; step == 1 && k >= LANES; k -= LANES, a += LANES, a3 += LANES, a6 += LANES) { /* those of a row do */
#define LOAD(i, from, at) NAMED(LOAD_FEW)(v##i, from + (at))
        EACH_ROW(LOAD)
#define TERM(lane)                                                                                           \
    {                                                                                                        \
        NAMED(vector) left = NAMED(load_vector)(b), right = NAMED(load_vector)(b + LANES);                   \
        BY_LANES(0, v0, lane) BY_LANES(1, v1, lane) BY_LANES(2, v2, lane) BY_LANES(3, v3, lane)              \
        BY_LANES(4, v4, lane) BY_LANES(5, v5, lane) BY_LANES(6, v6, lane) BY_LANES(7, v7, lane)              \
        b += ldb;                                                                                            \
    }
        NAMED(EACH_LANE)(TERM)
    }
#undef BY_LANES
#undef LOAD
#undef TERM
#endif
    for (; k > 0; k--) {
        NAMED(vector) left = NAMED(load_vector)(b), right = NAMED(load_vector)(b + LANES);
#define MULTIPLY(i, from, at) l##i += left * from[at], r##i += right * from[at];
        EACH_ROW(MULTIPLY)
        a += step, a3 += step, b += ldb;
        NEXT_A6
    }
#define ADD(i, from, at) l##i += NAMED(load_vector)(c + i * ldc), r##i += NAMED(load_vector)(c + i * ldc + LANES);
    if (add) {
        EACH_ROW(ADD)
    }
#define STORE(i, from, at) NAMED(store_vector)(c + i * ldc, l##i), NAMED(store_vector)(c + i * ldc + LANES, r##i);
    EACH_ROW(STORE)
#undef SUMS
#undef MULTIPLY
#undef ADD
#undef STORE
#undef NEXT_A6
}

#define SIDE_BY_SIDE 4

/* The first row of a by several panels of b, whose sums take turns: a row alone would wait for each of its own. The bits are those of the tile. */
static void NAMED(single)(int64_t k, const T *restrict a, int64_t step, const T *restrict b, int64_t panel, int64_t ldb, int64_t panels, T *restrict c, bool add)
{
    NAMED(vector) sum[SIDE_BY_SIDE][2] = {{{0}}};
    for (; k > 0; k--, a += step, b += ldb)
        for (int j = 0; j < SIDE_BY_SIDE; j++) {
            const T *from = b + (j < panels ? j : 0) * panel;
            sum[j][0] += NAMED(load_vector)(from) * *a, sum[j][1] += NAMED(load_vector)(from + LANES) * *a;
        }
    for (int j = 0; j < panels; j++)
        for (int i = 0; i < 2; i++) {
            T *to = c + j * NR + i * LANES;
            NAMED(store_vector)(to, add ? sum[j][i] + NAMED(load_vector)(to) : sum[j][i]);
        }
}

/* Rows of a matrix: the left operand of a product, as it is (row: the distance of its rows, step 1) or turned (row 1). */
typedef struct NAMED(lines) {
    const T *at;
    int64_t row, step;
} NAMED(lines);

/* Columns of a matrix in panels of NR: the first element of a panel, the distance of panels and that of the rows in one. */
typedef struct NAMED(panels) {
    const T *at;
    int64_t panel, row;
} NAMED(panels);

/* c (m, n) = or += a (m, k) · b (k, n). c has room for m and n rounded up to whole tiles; so does what a and b are read from. */
static void NAMED(multiply)(int64_t m, int64_t n, int64_t k, NAMED(lines) a, NAMED(panels) b, T *c, int64_t ldc, bool add)
{
    for (int64_t begin = 0; begin < k; begin += DEPTH_BLOCK) {
        int64_t depth = least(k - begin, DEPTH_BLOCK);
        for (int64_t j = 0; m == 1 && j < n; j += SIDE_BY_SIDE * NR)
            NAMED(single)(depth, a.at + begin * a.step, a.step, b.at + j / NR * b.panel + begin * b.row, b.panel, b.row,
                          least((n - j + NR - 1) / NR, SIDE_BY_SIDE), c + j, add || begin > 0);
#if defined(__aarch64__) /* rows of a, loaded as vectors, stay in the first-level cache; else columns of b do */
        for (int64_t i = 0; m > 1 && i < m; i += TILE_ROWS)
            for (int64_t j = 0; j < n; j += NR)
#else
        for (int64_t j = 0; m > 1 && j < n; j += NR)
            for (int64_t i = 0; i < m; i += TILE_ROWS)
#endif
                NAMED(tile)(depth, a.at + i * a.row + begin * a.step, a.row, a.step, b.at + j / NR * b.panel + begin * b.row, b.row,
                            c + i * ldc + j, ldc, add || begin > 0);
    }
}

/* ---- rows of weights ------------------------------------------------------------------------------------------------------- */

static void NAMED(exponents)(T *x, T shift, int64_t n)
{
    EACH x[i] = EXP(x[i] - shift);
}

static void NAMED(scale)(T *x, T factor, int64_t n)
{
    EACH x[i] *= factor;
}

static void NAMED(drop)(T *x, const float *factor, int64_t n)
{
    EACH x[i] = factor[i] == 0 ? 0 : x[i] * (T)factor[i];
}

/* All lanes of a vector, in halves: rows may be so short that this is most of their sum. */
static inline T NAMED(folded)(NAMED(vector) v)
{
    T lane[LANES];
    memcpy(lane, &v, sizeof(v));
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

/* The largest of n scores, n in whole vectors; NaN is passed over, and finds its way into the result by other sums. */
static T NAMED(most_of)(const T *x, int64_t n)
{
    NAMED(lanes) most = NAMED(lanes_at)(x);
    for (int64_t i = LANES; i < n; i += LANES)
        most = NAMED(larger)(NAMED(lanes_at)(x + i), most);
    T largest = -(T)INFINITY;
    for (int i = 0; i < LANES; i++)
        largest = most[i] > largest ? most[i] : largest;
    return largest;
}

/* Sums over a chunk of a row, in whole vectors. */
static double NAMED(sum_of)(const T *x, int64_t n)
{
    NAMED(vector) a = {0}, b = {0}, c = {0}, d = {0};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        a += NAMED(load_vector)(x + i);
        b += NAMED(load_vector)(x + i + LANES);
        c += NAMED(load_vector)(x + i + 2 * LANES);
        d += NAMED(load_vector)(x + i + 3 * LANES);
    }
    for (; i < n; i += LANES)
        a += NAMED(load_vector)(x + i);
    return (double)NAMED(folded)((a + b) + (c + d));
}

static double NAMED(dot_of)(const T *x, const T *y, int64_t n)
{
    NAMED(vector) a = {0}, b = {0}, c = {0}, d = {0};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        a += NAMED(load_vector)(x + i) * NAMED(load_vector)(y + i);
        b += NAMED(load_vector)(x + i + LANES) * NAMED(load_vector)(y + i + LANES);
        c += NAMED(load_vector)(x + i + 2 * LANES) * NAMED(load_vector)(y + i + 2 * LANES);
        d += NAMED(load_vector)(x + i + 3 * LANES) * NAMED(load_vector)(y + i + 3 * LANES);
    }
    for (; i < n; i += LANES)
        a += NAMED(load_vector)(x + i) * NAMED(load_vector)(y + i);
    return (double)NAMED(folded)((a + b) + (c + d));
}
