/* tile_arm.h: 4 × 8 tiles of a quantized matmul on AArch64: four weight rows by eight rows of x, 32 elements at a time,
 * with smmla (2 × 8 byte matrices) where the level has i8mm, else with sdot.
 *
 * Four results share a vector, called a unit. Both sides are packed so that one vector of each yields a unit's
 * products, and scales are expanded lane by lane:
 *
 *   i8mm      w {row 2 v, row 2 v + 1} and x {row 2 u, row 2 u + 1}, 8 bytes each: {w0·x0, w0·x1, w1·x0, w1·x1}
 *   dotprod   w {rows 0, 1, 2, 3} of 4 bytes, x a row of 4 bytes: {w0, w1, w2, w3} · x u
 *
 * Integer sums are exact and the float operations after them are the same in both, and in quant_matmul_arm.c for one
 * row: results are bitwise identical. */
#ifndef TARN__CPU_TILE_ARM_H
#define TARN__CPU_TILE_ARM_H

#include <string.h>

#include "backends/cpu/quant/unpack_arm.h"

/* A tile; units are the vectors of four results that it takes in each direction. */
#define W_ROWS 4
#define X_ROWS 8
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define W_UNITS 2
#define X_UNITS 4
#else
#define W_UNITS 1
#define X_UNITS 8
#endif

/* Eight rows of x, one group. */
typedef struct x_group {
    _Alignas(64) int8_t q[X_ROWS * GROUP];
    float scale[X_UNITS][4];
    float sum[2][X_UNITS][4]; /* Σ q · scale: of the group in [0], or for HALF_MINS of its halves */
} x_group;

/* Four rows of a weight, one group; block scales are stored with the block's first group only. */
typedef struct w_group {
    _Alignas(64) int8_t q[W_ROWS * GROUP];
    float scale[W_UNITS][4], min_scale[W_UNITS][4];
    union {
        struct {
            int32_t scale_code[W_UNITS][4];
            float min[W_UNITS][4];
        };
        int32_t half[2][W_UNITS][4];
    };
} w_group;

#if defined(__ARM_FEATURE_MATMUL_INT8)

/* Byte offset of row r's elements X_STEP · t of a group. */
#define X_STEP 8
static inline int x_offset(int r, int t)
{
    return r / 2 * 2 * GROUP + t * 16 + r % 2 * 8;
}

static inline int x_unit(int r)
{
    return r / 2;
}

/* Writes a per-row value into the lanes of row r. */
static inline void set_x(float *unit, int r, float value)
{
    unit[r % 2] = unit[2 + r % 2] = value;
}

/* Result of weight row i and x row r. */
static inline float result_of(float units[W_UNITS][X_UNITS][4], int i, int r)
{
    return units[i / 2][r / 2][i % 2 * 2 + r % 2];
}

/* Interleaves pairs of rows in 8-byte units, as smmla reads them. */
static inline void pack_rows(int8x16_t row[W_ROWS][2], int8_t *to)
{
    for (int v = 0; v < W_UNITS; v++)
        for (int h = 0; h < 2; h++) {
            int64x2_t a = vreinterpretq_s64_s8(row[2 * v][h]), b = vreinterpretq_s64_s8(row[2 * v + 1][h]);
            vst1q_s8(to + v * 64 + h * 32, vreinterpretq_s8_s64(vzip1q_s64(a, b)));
            vst1q_s8(to + v * 64 + h * 32 + 16, vreinterpretq_s8_s64(vzip2q_s64(a, b)));
        }
}

static inline void pack_floats(float32x4_t of_rows, float to[W_UNITS][4])
{
    vst1q_f32(to[0], vzip1q_f32(of_rows, of_rows)), vst1q_f32(to[1], vzip2q_f32(of_rows, of_rows));
}

static inline void pack_ints(int32x4_t of_rows, int32_t to[W_UNITS][4])
{
    vst1q_s32(to[0], vzip1q_s32(of_rows, of_rows)), vst1q_s32(to[1], vzip2q_s32(of_rows, of_rows));
}

/* Adds the dot products of 16 elements: half h of the group. */
static inline void add_half(int32x4_t dots[W_UNITS][X_UNITS], const int8_t *w, const int8_t *x, int h, int units)
{
    for (int t = 2 * h; t < 2 * h + 2; t++) {
        int8x16_t w0 = vld1q_s8(w + 16 * t), w1 = vld1q_s8(w + 64 + 16 * t);
        for (int u = 0; u < units; u++) {
            int8x16_t of_x = vld1q_s8(x + 64 * u + 16 * t);
            dots[0][u] = vmmlaq_s32(dots[0][u], w0, of_x);
            dots[1][u] = vmmlaq_s32(dots[1][u], w1, of_x);
        }
    }
}

#else

#define X_STEP 16
static inline int x_offset(int r, int t)
{
    return r * GROUP + t * 16;
}

static inline int x_unit(int r)
{
    return r;
}

static inline void set_x(float *unit, int r, float value)
{
    (void)r;
    vst1q_f32(unit, vdupq_n_f32(value));
}

static inline float result_of(float units[W_UNITS][X_UNITS][4], int i, int r)
{
    return units[0][r][i];
}

/* Interleaves four rows in 4-byte units, as sdot by lane reads them. */
static inline void pack_rows(int8x16_t row[W_ROWS][2], int8_t *to)
{
    for (int h = 0; h < 2; h++) {
        int32x4_t a = vreinterpretq_s32_s8(row[0][h]), b = vreinterpretq_s32_s8(row[1][h]),
                  c = vreinterpretq_s32_s8(row[2][h]), d = vreinterpretq_s32_s8(row[3][h]);
        int64x2_t ab_even = vreinterpretq_s64_s32(vtrn1q_s32(a, b)), ab_odd = vreinterpretq_s64_s32(vtrn2q_s32(a, b));
        int64x2_t cd_even = vreinterpretq_s64_s32(vtrn1q_s32(c, d)), cd_odd = vreinterpretq_s64_s32(vtrn2q_s32(c, d));
        vst1q_s8(to + h * 64, vreinterpretq_s8_s64(vtrn1q_s64(ab_even, cd_even)));
        vst1q_s8(to + h * 64 + 16, vreinterpretq_s8_s64(vtrn1q_s64(ab_odd, cd_odd)));
        vst1q_s8(to + h * 64 + 32, vreinterpretq_s8_s64(vtrn2q_s64(ab_even, cd_even)));
        vst1q_s8(to + h * 64 + 48, vreinterpretq_s8_s64(vtrn2q_s64(ab_odd, cd_odd)));
    }
}

static inline void pack_floats(float32x4_t of_rows, float to[W_UNITS][4])
{
    vst1q_f32(to[0], of_rows);
}

static inline void pack_ints(int32x4_t of_rows, int32_t to[W_UNITS][4])
{
    vst1q_s32(to[0], of_rows);
}

static inline void add_half(int32x4_t dots[W_UNITS][X_UNITS], const int8_t *w, const int8_t *x, int h, int units)
{
    int8x16_t w0 = vld1q_s8(w + 64 * h), w1 = vld1q_s8(w + 64 * h + 16), w2 = vld1q_s8(w + 64 * h + 32),
              w3 = vld1q_s8(w + 64 * h + 48);
    for (int u = 0; u < units; u++) {
        int8x16_t of_x = vld1q_s8(x + GROUP * u + 16 * h);
        dots[0][u] = vdotq_laneq_s32(dots[0][u], w0, of_x, 0);
        dots[0][u] = vdotq_laneq_s32(dots[0][u], w1, of_x, 1);
        dots[0][u] = vdotq_laneq_s32(dots[0][u], w2, of_x, 2);
        dots[0][u] = vdotq_laneq_s32(dots[0][u], w3, of_x, 3);
    }
}

#endif

/* Packs one group of four rows with its scales. */
static inline void pack_group(int8x16_t row[W_ROWS][2], const scales4 *n, int g, enum kind kind, w_group *to)
{
    pack_rows(row, to->q);
    if (g == 0)
        pack_floats(n->scale, to->scale);
    if (kind != SCALE_ONLY && kind != HALF_SCALES && g == 0)
        pack_floats(n->min_scale, to->min_scale);
    if (kind == WITH_MIN)
        pack_ints(scale_of(n, g), to->scale_code), pack_floats(min_of(n, g), to->min);
    for (int h = 0; h < 2 && HAS_HALVES(kind); h++)
        pack_ints(half_byte_of(n, g, h), to->half[h]);
}

/* All results of a tile: `units` of x, all of the weight. Loops of constants, which are unrolled. */
#define EACH_UNIT \
    for (int v = 0; v < W_UNITS; v++) \
        for (int u = 0; u < units; u++)

/* Dot products of a group, times its integer scales. x points to the first unit. */
static inline void group_dots(int32x4_t dots[W_UNITS][X_UNITS], const w_group *w, const int8_t *x, int units,
                              enum kind kind)
{
    int32x4_t half[W_UNITS][X_UNITS];
    EACH_UNIT dots[v][u] = zero_s32();
    add_half(dots, w->q, x, 0, units);
    if (HAS_HALVES(kind))
        EACH_UNIT half[v][u] = vmulq_s32(dots[v][u], half_scale(vld1q_s32(w->half[0][v]), kind)),
                  dots[v][u] = zero_s32();
    add_half(dots, w->q, x, 1, units);
    if (HAS_HALVES(kind))
        EACH_UNIT dots[v][u] = vmlaq_s32(half[v][u], dots[v][u], half_scale(vld1q_s32(w->half[1][v]), kind));
    if (kind == WITH_MIN)
        EACH_UNIT dots[v][u] = vmulq_s32(dots[v][u], vld1q_s32(w->scale_code[v]));
}

/* Accumulates `count` groups for `units` units of x from `first`. */
static inline __attribute__((always_inline)) void add_groups(const w_group *w, const x_group *x, int64_t count,
                                                             int first, int units, enum kind kind,
                                                             float to[W_UNITS][X_UNITS][4])
{
    float32x4_t sum[W_UNITS][X_UNITS];
    int32x4_t dots[W_UNITS][X_UNITS];
    EACH_UNIT sum[v][u] = vld1q_f32(to[v][first + u]);
    for (int64_t g = 0; g < count; g++) {
        group_dots(dots, &w[g], x[g].q + first * (X_ROWS / X_UNITS) * GROUP, units, kind);
        EACH_UNIT sum[v][u] = vfmaq_f32(sum[v][u], vcvtq_f32_s32(dots[v][u]),
                                        vmulq_f32(vld1q_f32(w[g].scale[v]), vld1q_f32(x[g].scale[first + u])));
        if (kind == SCALE_MIN)
            EACH_UNIT sum[v][u] = vfmaq_f32(sum[v][u], vld1q_f32(w[g].min_scale[v]), vld1q_f32(x[g].sum[0][first + u]));
    }
    EACH_UNIT vst1q_f32(to[v][first + u], sum[v][u]);
}

/* The same for blocks of eight groups: sums of a block first, then its scale and min. */
static inline __attribute__((always_inline)) void add_blocks(const w_group *w, const x_group *x, int64_t count,
                                                             int first, int units, enum kind kind,
                                                             float to[W_UNITS][X_UNITS][4])
{
    float32x4_t part[W_UNITS][X_UNITS], min[W_UNITS][X_UNITS];
    int32x4_t dots[W_UNITS][X_UNITS];
    for (int64_t k = 0; k < count; k += GROUPS, w += GROUPS, x += GROUPS) {
        EACH_UNIT part[v][u] = min[v][u] = vdupq_n_f32(0);
        for (int g = 0; g < GROUPS; g++) {
            group_dots(dots, &w[g], x[g].q + first * (X_ROWS / X_UNITS) * GROUP, units, kind);
            EACH_UNIT part[v][u] = vfmaq_f32(part[v][u], vcvtq_f32_s32(dots[v][u]), vld1q_f32(x[g].scale[first + u]));
            if (kind == WITH_MIN)
                EACH_UNIT min[v][u] = vfmaq_f32(min[v][u], vld1q_f32(w[g].min[v]), vld1q_f32(x[g].sum[0][first + u]));
            for (int h = 0; h < 2 && kind == HALF_MINS; h++)
                EACH_UNIT min[v][u] =
                    vfmaq_f32(min[v][u], half_min(vld1q_s32(w[g].half[h][v])), vld1q_f32(x[g].sum[h][first + u]));
        }
        EACH_UNIT
        {
            float32x4_t sum = vfmaq_f32(vld1q_f32(to[v][first + u]), part[v][u], vld1q_f32(w->scale[v]));
            vst1q_f32(to[v][first + u],
                      kind != HALF_SCALES ? vfmsq_f32(sum, min[v][u], vld1q_f32(w->min_scale[v])) : sum);
        }
    }
}

/* Specialized by its constant arguments. */
static inline __attribute__((always_inline)) void add_tile(const w_group *w, const x_group *x, int64_t count, int first,
                                                           int units, enum kind kind, float to[W_UNITS][X_UNITS][4])
{
    if (IS_SMALL(kind))
        add_groups(w, x, count, first, units, kind, to);
    else
        add_blocks(w, x, count, first, units, kind, to);
}
#undef EACH_UNIT

/* The same for as many units as `rows` rows of x need: a full tile, or unit by unit. */
#define TILE_OF(name, kind) \
    static void name(const w_group *w, const x_group *x, int64_t count, int64_t rows, float to[W_UNITS][X_UNITS][4]) \
    { \
        int units = x_unit((int)rows - 1) + 1; \
        if (units == X_UNITS) \
            add_tile(w, x, count, 0, X_UNITS, kind, to); \
        else \
            for (int u = 0; u < units; u++) \
                add_tile(w, x, count, u, 1, kind, to); \
    }

TILE_OF(tile_SCALE_ONLY, SCALE_ONLY)
TILE_OF(tile_SCALE_MIN, SCALE_MIN)
TILE_OF(tile_WITH_MIN, WITH_MIN)
TILE_OF(tile_HALF_SCALES, HALF_SCALES)
TILE_OF(tile_HALF_MINS, HALF_MINS)
#undef TILE_OF

#endif
