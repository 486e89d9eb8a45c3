/* search.c: the search for scales on the host: Q2_K, Q3_K, Q5_K, IQ4_NL and IQ4_XS, and all formats with an importance
 * per element. Q4_K and Q6_K without importance are in quantize.inc, which devices share.
 *
 * A format has groups of elements, x ≈ scale · q - min, q from a range of integers or from the values of IQ4_NL. For
 * each group scales around the one that covers the range are tried; given q, the scale and min of the smallest weighted
 * error have a closed form (fit_group()), and with these q is rounded anew. Formats of 256 elements store a group's
 * scale and min as small integers, codes, times the block's scale and min in f16: codes are searched around the
 * nearest, then the block's scale and min are fitted to all codes and quants at once, and so on for a few rounds. The
 * best round is kept, or the block of the groups' ranges where that has the smaller error: the search never loses to
 * the simple method.
 *
 * An element's weight is its magnitude plus a multiple of the group's mean magnitude, times its importance. Where
 * importance says what matters, magnitude counts for less. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/quant/quant.h"

#define MAX_GROUP 32
#define MAX_GROUPS 16
#define REFITS 2 /* of a group, per candidate */
#define ROUNDS 3 /* of a block */

typedef struct format {
    int group, groups;       /* elements per group, groups per block */
    float low, high;         /* range of q */
    int code_low, code_high; /* of a group's scale; both 1: the block's scale is the group's */
    int min_high;            /* largest code of a group's min; 1: the block's; 0: there is no min */
    bool is_signed_min;      /* min may be negative */
    bool is_iq4;             /* q is one of TARN__IQ4_VALUES */
    float first, step;       /* factors of the candidates: few levels need a wider range, uneven ones small steps */
    int candidates;
} format;

static const format formats[TARN_DTYPE_COUNT] = {
    [TARN_Q8_0] = {32, 1, -127, 127, 1, 1, 0, false, false, 0.98f, 0.008f, 16},
    [TARN_Q4_0] = {32, 1, -8, 7, 1, 1, 0, false, false, 0.85f, 0.04f, 16},
    [TARN_Q5_0] = {32, 1, -16, 15, 1, 1, 0, false, false, 0.9f, 0.03f, 16},
    [TARN_Q4_1] = {32, 1, 0, 15, 1, 1, 1, true, false, 0.94f, 0.025f, 16},
    [TARN_Q5_1] = {32, 1, 0, 31, 1, 1, 1, true, false, 0.96f, 0.015f, 16},
    [TARN_Q2_K] = {16, 16, 0, 3, 0, 15, 15, false, false, 0.7f, 0.06f, 16},
    [TARN_Q3_K] = {16, 16, -4, 3, -32, 31, 0, false, false, 0.7f, 0.06f, 16},
    [TARN_Q4_K] = {32, 8, 0, 15, 0, 63, 63, false, false, 0.94f, 0.025f, 16},
    [TARN_Q5_K] = {32, 8, 0, 31, 0, 63, 63, false, false, 0.96f, 0.015f, 16},
    [TARN_Q6_K] = {16, 16, -32, 31, -128, 127, 0, false, false, 0.94f, 0.025f, 16},
    [TARN_IQ4_NL] = {32, 1, -127, 113, 1, 1, 0, false, true, 0.85f, 0.02f, 32},
    [TARN_IQ4_XS] = {32, 8, -127, 113, -32, 31, 0, false, true, 0.85f, 0.04f, 16},
};

/* Scale and min: of groups, or of a block. */
typedef struct scale_min {
    float scale, min;
} scale_min;

/* A quantized block before it is packed. */
typedef struct solution {
    uint16_t scale, min; /* f16 */
    int scale_code[MAX_GROUPS], min_code[MAX_GROUPS];
    float q[256];
    double weighted, error; /* squared, with weights and without */
} solution;

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

/* Eight lanes on every machine, so that sums have one order. The whole search is inlined into functions for AVX2 and
 * for the baseline (tarn__quantize_searched()). */
#define INLINE static inline __attribute__((always_inline))

typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t mask __attribute__((vector_size(32), aligned(4), may_alias));

INLINE const lanes *lanes_at(const float *x)
{
    return (const lanes *)(const void *)x;
}

INLINE float sum_of(const lanes *x)
{
    return (((*x)[0] + (*x)[4]) + ((*x)[1] + (*x)[5])) + (((*x)[2] + (*x)[6]) + ((*x)[3] + (*x)[7]));
}

/* ---- one group --------------------------------------------------------------------------------------------------- */

INLINE float inverse_of(float x)
{
    float inverted = x != 0 ? 1 / x : 0;
    return inverted - inverted == 0 ? inverted : 0; /* finite */
}

static const float iq4_values[16] = {TARN__IQ4_VALUES};

/* The nearest of iq4_values: the distances to the next one are added up while x is beyond the middle. */
INLINE void round_iq4(lanes *x)
{
    lanes q = *x * 0 + iq4_values[0];
    for (int k = 0; k < 15; k++) {
        lanes step = *x * 0 + (iq4_values[k + 1] - iq4_values[k]);
        q += (lanes)((*x > (iq4_values[k] + iq4_values[k + 1]) / 2) & (mask)step);
    }
    *x = q;
}

/* q of each element: the nearest level of x + min in units of 1 / inverted. */
INLINE void round_all(const format *f, const float *x, float inverted, float min, float *q)
{
    for (int i = 0; i < f->group; i += 8) {
        lanes scaled = (*lanes_at(x + i) + min) * inverted, low = {0}, high = {0};
        low += f->low, high += f->high;
        mask is_above = scaled > low; /* not NaN */
        scaled = (lanes)((is_above & (mask)scaled) | (~is_above & (mask)low));
        mask is_below = scaled < high;
        scaled = (lanes)((is_below & (mask)scaled) | (~is_below & (mask)high));
        if (f->is_iq4)
            round_iq4(&scaled);
        else
            scaled = __builtin_convertvector(__builtin_convertvector(scaled - low + 0.5f, mask), lanes) + low;
        *(lanes *)(void *)(q + i) = scaled;
    }
}

INLINE float error_of(const format *f, const float *x, const float *weight, const float *q, scale_min s)
{
    lanes sum = {0};
    for (int i = 0; i < f->group; i += 8) {
        lanes off = s.scale * *lanes_at(q + i) - s.min - *lanes_at(x + i);
        sum += *lanes_at(weight + i) * off * off;
    }
    return sum_of(&sum);
}

/* Scale and min of the smallest weighted error for given q. A min that the format cannot hold becomes 0. */
INLINE scale_min fit_group(const format *f, const float *x, const float *weight, const float *q)
{
    lanes sw = {0}, swq = {0}, swqq = {0}, swx = {0}, swxq = {0};
    for (int i = 0; i < f->group; i += 8) {
        lanes one = *lanes_at(weight + i), at = one * *lanes_at(q + i);
        swqq += at * *lanes_at(q + i);
        swxq += at * *lanes_at(x + i);
        sw += one;
        swq += at;
        swx += one * *lanes_at(x + i);
    }
    float wxq = sum_of(&swxq), wqq = sum_of(&swqq);
    if (f->min_high == 0)
        return (scale_min){wxq * inverse_of(wqq), 0};
    float w = sum_of(&sw), wq = sum_of(&swq), wx = sum_of(&swx);
    float scale = (w * wxq - wx * wq) * inverse_of(w * wqq - wq * wq), min = (scale * wq - wx) * inverse_of(w);
    if (min < 0 && !f->is_signed_min) {
        min = 0;
        scale = wxq * inverse_of(wqq);
    }
    return (scale_min){scale > 0 ? scale : 0, min};
}

INLINE float extreme_of(const format *f, const float *x)
{
    float extreme = 0;
    for (int i = 0; i < f->group; i++)
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    return extreme;
}

/* Covers the group's range. Without a sign, min keeps 0 in the range. */
INLINE scale_min range_of(const format *f, const float *x)
{
    if (f->min_high == 0)
        return (scale_min){fabsf(extreme_of(f, x)) / f->high, 0};
    float low = f->is_signed_min ? x[0] : 0, high = x[0];
    for (int i = 0; i < f->group; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    return (scale_min){high > low ? (high - low) / f->high : 0, -low};
}

/* Tries multiples of one scale and their refits; updates the best. With a min every second one starts half a step
 * higher (see quantize.inc). */
INLINE void try_scales(const format *f, const float *x, const float *weight, scale_min from, scale_min *best,
                       float *smallest)
{
    float q[MAX_GROUP], inverted = inverse_of(from.scale);
    for (int i = 0; i < f->candidates && inverted != 0; i++) {
        float factored = inverted * (f->first + f->step * (float)i);
        round_all(f, x, factored, from.min - (f->min_high > 0 && i % 2 != 0 ? 0.5f * inverse_of(factored) : 0), q);
        for (int refit = 0; refit < REFITS; refit++) {
            scale_min fitted = fit_group(f, x, weight, q);
            round_all(f, x, inverse_of(fitted.scale), fitted.min, q);
            float error = error_of(f, x, weight, q, fitted);
            if (error < *smallest) {
                *smallest = error;
                *best = fitted;
            }
        }
    }
}

/* Where q has a sign, the extreme may be at either end: the ends differ. */
INLINE scale_min search_group(const format *f, const float *x, const float *weight)
{
    float q[MAX_GROUP];
    scale_min best = range_of(f, x);
    round_all(f, x, inverse_of(best.scale), best.min, q);
    float smallest = error_of(f, x, weight, q, best);
    if (f->min_high > 0)
        try_scales(f, x, weight, best, &best, &smallest);
    else
        for (int end = 0; end < 2; end++)
            try_scales(f, x, weight, (scale_min){extreme_of(f, x) / (end ? f->low : f->high), 0}, &best, &smallest);
    return best;
}

/* ---- one block --------------------------------------------------------------------------------------------------- */

INLINE void weigh(const format *f, const float *x, const float *importance, float *weight)
{
    for (int g = 0; g < f->groups; g++) {
        const float *of_group = x + g * f->group;
        float sum = 0;
        for (int i = 0; i < f->group; i++)
            sum += fabsf(of_group[i]);
        float mean = sum / (float)f->group * (importance ? 2 : 1.5f);
        for (int i = 0; i < f->group; i++)
            weight[g * f->group + i] = (mean + fabsf(of_group[i])) * (importance ? importance[g * f->group + i] : 1);
    }
}

INLINE int nearest_code(float x, int low, int high)
{
    return x < (float)low ? low : x > (float)high ? high : x == x ? (int)roundf(x) : 0;
}

/* The neighbouring codes of scale and min with the smallest error; codes are in *scale and *min. */
INLINE void search_codes(const format *f, const float *x, const float *weight, scale_min block, int *scale, int *min)
{
    float q[MAX_GROUP], smallest = INFINITY;
    int scale_from = *scale, min_from = *min, reach = f->min_high > 1;
    for (int a = scale_from - 1; a <= scale_from + 1; a++)
        for (int b = min_from - reach; b <= min_from + reach; b++) {
            if (a < f->code_low || a > f->code_high || b < 0 || b > f->min_high)
                continue;
            scale_min s = {block.scale * (float)a, block.min * (float)b};
            round_all(f, x, inverse_of(s.scale), s.min, q);
            float error = error_of(f, x, weight, q, s);
            if (error < smallest) {
                smallest = error;
                *scale = a;
                *min = b;
            }
        }
}

/* Codes, quants and errors for the groups' scales and mins and the block's, in f16. */
INLINE void solve(const format *f, const float *x, const float *weight, const scale_min *groups, bool searches,
                  solution *s)
{
    scale_min block = {tarn__f16_to_f32(s->scale), tarn__f16_to_f32(s->min)};
    float ones[MAX_GROUP];
    for (int i = 0; i < f->group; i++)
        ones[i] = 1;
    s->weighted = s->error = 0;
    for (int g = 0; g < f->groups; g++) {
        const float *of_group = x + g * f->group, *w = weight + g * f->group;
        int *scale = &s->scale_code[g], *min = &s->min_code[g];
        *scale = nearest_code(groups[g].scale * inverse_of(block.scale), f->code_low, f->code_high);
        *min = f->min_high == 1 ? 1 : nearest_code(groups[g].min * inverse_of(block.min), 0, f->min_high);
        if (searches && f->groups > 1)
            search_codes(f, of_group, w, block, scale, min);
        scale_min rounded = {block.scale * (float)*scale, block.min * (float)*min};
        round_all(f, of_group, inverse_of(rounded.scale), rounded.min, s->q + g * f->group);
        s->weighted += (double)error_of(f, of_group, w, s->q + g * f->group, rounded);
        s->error += (double)error_of(f, of_group, ones, s->q + g * f->group, rounded);
    }
}

/* f16 of a scale: the nearest, or with `up` rounded up where f16 is so coarse that rounding down would leave the
 * largest group without a code. */
INLINE uint16_t scale_bits(float scale, bool up)
{
    uint16_t bits = tarn__f32_to_f16(scale);
    return up && fabsf(scale) > fabsf(tarn__f16_to_f32(bits)) * (1 + 0x1p-8f) ? (uint16_t)(bits + 1) : bits;
}

/* The block's scale gives the largest group its largest code, or with a sign its lowest (`end`). */
INLINE void set_scales(const format *f, const scale_min *groups, bool end, bool up, solution *s)
{
    scale_min max = {0, 0};
    for (int g = 0; g < f->groups; g++) {
        max.scale = fabsf(groups[g].scale) > fabsf(max.scale) ? groups[g].scale : max.scale;
        max.min = fabsf(groups[g].min) > fabsf(max.min) ? groups[g].min : max.min;
    }
    s->scale = scale_bits(max.scale / (float)(end ? f->code_low : f->code_high), up);
    s->min = f->min_high > 0 ? scale_bits(max.min / (float)f->min_high, up) : 0;
}

/* The block's scale and min of the smallest weighted error for given codes and quants, in f16. */
INLINE void refit_block(const format *f, const float *x, const float *weight, solution *s)
{
    double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0; /* x ≈ scale · a - min · b */
    for (int i = 0; i < f->group * f->groups; i++) {
        int g = i / f->group;
        double a = (double)s->scale_code[g] * (double)s->q[i], b = f->min_high > 0 ? -s->min_code[g] : 0,
               w = (double)weight[i], value = (double)x[i];
        aa += w * a * a;
        ab += w * a * b;
        bb += w * b * b;
        ax += w * a * value;
        bx += w * b * value;
    }
    double det = aa * bb - ab * ab, scale = aa > 0 ? ax / aa : 0, min = 0;
    if (det > 1e-9 * aa * bb) {
        scale = (ax * bb - bx * ab) / det;
        min = (bx * aa - ax * ab) / det;
    } else if (f->min_high > 0) {
        return;
    }
    if ((f->min_high > 0 && scale < 0) || (min < 0 && !f->is_signed_min))
        return;
    s->scale = tarn__f32_to_f16((float)scale);
    s->min = f->min_high > 0 ? tarn__f32_to_f16((float)min) : 0;
}

/* Keeps `s` where it is better. */
INLINE void keep_better(const solution *s, bool by_weight, solution *best)
{
    double was = by_weight ? best->weighted : best->error, is = by_weight ? s->weighted : s->error;
    if (is < was || was != was)
        *best = *s;
}

/* Without importance the groups' ranges win by the unweighted error, so that no block is worse than them. */
INLINE void search_block(const format *f, const float *x, const float *importance, solution *best)
{
    float weight[256];
    scale_min range[MAX_GROUPS], found[MAX_GROUPS];
    solution s = {0};
    weigh(f, x, importance, weight);
    for (int g = 0; g < f->groups; g++) {
        range[g] = range_of(f, x + g * f->group);
        found[g] = search_group(f, x + g * f->group, weight + g * f->group);
    }
    best->weighted = best->error = NAN;
    for (int end = 0; end < (f->code_low < 0 ? 2 : 1); end++) {
        set_scales(f, found, end, true, &s);
        for (int round = 0; round < ROUNDS; round++) {
            solve(f, x, weight, found, true, &s);
            keep_better(&s, true, best);
            refit_block(f, x, weight, &s);
        }
    }
    uint16_t scale = 0, min = 0; /* rounded up; almost always the nearest as well */
    for (int up = 1; up >= 0; up--) {
        set_scales(f, range, false, up != 0, &s);
        if (!up && s.scale == scale && s.min == min)
            return;
        scale = s.scale, min = s.min;
        solve(f, x, weight, range, false, &s);
        keep_better(&s, importance != NULL, best);
    }
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* q as stored: counted from the lowest. */
static int level_of(const format *f, float q)
{
    int level = 0;
    while (f->is_iq4 && iq4_values[level] < q)
        level++;
    return f->is_iq4 ? level : (int)(q - f->low);
}

/* 32 levels of 4 or 5 bits: nibbles, and the upper bits where `high` is not NULL. */
static void pack_32(const uint8_t *level, uint8_t *low, uint8_t *high)
{
    for (int i = 0; i < 16; i++)
        low[i] = (uint8_t)((level[i] & 15) | (level[i + 16] & 15) << 4);
    for (int i = 0; high && i < 32; i++)
        high[i / 8] = (uint8_t)((i % 8 ? high[i / 8] : 0) | level[i] >> 4 << i % 8);
}

/* 6-bit scales and mins of Q4_K and Q5_K; see tarn__q4_k. */
static void pack_scales(const solution *s, uint8_t *to)
{
    for (int i = 0; i < 4; i++) {
        to[i] = (uint8_t)(s->scale_code[i] | s->scale_code[4 + i] >> 4 << 6);
        to[4 + i] = (uint8_t)(s->min_code[i] | s->min_code[4 + i] >> 4 << 6);
        to[8 + i] = (uint8_t)((s->scale_code[4 + i] & 15) | (s->min_code[4 + i] & 15) << 4);
    }
}

/* Nibbles of Q4_K and Q5_K: two groups of 32 in 32 bytes. */
static void pack_pairs(const uint8_t *level, uint8_t *to)
{
    for (int i = 0; i < 128; i++) {
        int first = i / 32 * 64 + i % 32;
        to[i] = (uint8_t)((level[first] & 15) | (level[first + 32] & 15) << 4);
    }
}

/* Two bits of Q2_K and Q3_K: four groups of 32 in 32 bytes. */
static void pack_quads(const uint8_t *level, uint8_t *to)
{
    for (int i = 0; i < 64; i++) {
        const uint8_t *first = level + i / 32 * 128 + i % 32;
        to[i] = (uint8_t)((first[0] & 3) | (first[32] & 3) << 2 | (first[64] & 3) << 4 | (first[96] & 3) << 6);
    }
}

/* The upper bit of 256 levels: bit k of byte i is that of element 32 k + i. */
static void pack_high(const uint8_t *level, int bit, uint8_t *to)
{
    memset(to, 0, 32);
    for (int i = 0; i < 256; i++)
        to[i % 32] |= (uint8_t)((level[i] >> bit & 1) << i / 32);
}

static void pack_q2_k(const solution *s, const uint8_t *level, tarn__q2_k *to)
{
    for (int g = 0; g < 16; g++)
        to->scales[g] = (uint8_t)(s->scale_code[g] | s->min_code[g] << 4);
    pack_quads(level, to->q);
    to->scale = s->scale;
    to->min = s->min;
}

static void pack_q3_k(const solution *s, const uint8_t *level, tarn__q3_k *to)
{
    memset(to->scales, 0, sizeof(to->scales));
    for (int g = 0; g < 16; g++) {
        int code = s->scale_code[g] + 32;
        to->scales[g % 8] |= (uint8_t)((code & 15) << g / 8 * 4);
        to->scales[8 + g % 4] |= (uint8_t)(code >> 4 << g / 4 * 2);
    }
    pack_quads(level, to->q);
    pack_high(level, 2, to->high);
    to->scale = s->scale;
}

static void pack_q4_k(const solution *s, const uint8_t *level, tarn__q4_k *to)
{
    to->scale = s->scale;
    to->min = s->min;
    pack_scales(s, to->scales);
    pack_pairs(level, to->q);
}

static void pack_q5_k(const solution *s, const uint8_t *level, tarn__q5_k *to)
{
    to->scale = s->scale;
    to->min = s->min;
    pack_scales(s, to->scales);
    pack_pairs(level, to->q);
    pack_high(level, 4, to->high);
}

static void pack_q6_k(const solution *s, const uint8_t *level, tarn__q6_k *to)
{
    for (int g = 0; g < 16; g++)
        to->scales[g] = (int8_t)s->scale_code[g];
    for (int half = 0; half < 2; half++, level += 128) {
        for (int i = 0; i < 64; i++)
            to->low[half * 64 + i] = (uint8_t)((level[i] & 15) | (level[i + 64] & 15) << 4);
        for (int i = 0; i < 32; i++)
            to->high[half * 32 + i] =
                (uint8_t)(level[i] >> 4 | level[i + 32] >> 4 << 2 | level[i + 64] >> 4 << 4 | level[i + 96] >> 4 << 6);
    }
    to->scale = s->scale;
}

static void pack_iq4_xs(const solution *s, const uint8_t *level, tarn__iq4_xs *to)
{
    *to = (tarn__iq4_xs){.scale = s->scale};
    for (int g = 0; g < 8; g++) {
        int code = s->scale_code[g] + 32;
        to->scales_low[g / 2] |= (uint8_t)((code & 15) << g % 2 * 4);
        to->scales_high = (uint16_t)(to->scales_high | code >> 4 << 2 * g);
        pack_32(level + g * 32, to->q + g * 16, NULL);
    }
}

/* min is added in the formats of 32 elements, and subtracted in those of 256. */
static void pack(tarn_dtype dtype, const solution *s, const uint8_t *level, void *block)
{
    tarn__q4_0 *q4_0 = block;
    tarn__q5_0 *q5_0 = block;
    tarn__q4_1 *q4_1 = block;
    tarn__q5_1 *q5_1 = block;
    tarn__q8_0 *q8_0 = block;
    switch (dtype) {
    case TARN_Q8_0:
        q8_0->scale = s->scale;
        for (int i = 0; i < 32; i++)
            q8_0->q[i] = (int8_t)s->q[i];
        break;
    case TARN_IQ4_NL: /* the same layout */
    case TARN_Q4_0:
        q4_0->scale = s->scale;
        pack_32(level, q4_0->q, NULL);
        break;
    case TARN_Q5_0:
        q5_0->scale = s->scale;
        pack_32(level, q5_0->q, q5_0->high);
        break;
    case TARN_Q4_1:
        *q4_1 = (tarn__q4_1){.scale = s->scale, .min = s->min ^ 0x8000};
        pack_32(level, q4_1->q, NULL);
        break;
    case TARN_Q5_1:
        *q5_1 = (tarn__q5_1){.scale = s->scale, .min = s->min ^ 0x8000};
        pack_32(level, q5_1->q, q5_1->high);
        break;
    case TARN_Q2_K: pack_q2_k(s, level, block); break;
    case TARN_Q3_K: pack_q3_k(s, level, block); break;
    case TARN_Q4_K: pack_q4_k(s, level, block); break;
    case TARN_Q5_K: pack_q5_k(s, level, block); break;
    case TARN_Q6_K: pack_q6_k(s, level, block); break;
    default: pack_iq4_xs(s, level, block);
    }
}

INLINE void quantize_all(tarn_dtype dtype, const float *values, const float *importance, int64_t count, char *block)
{
    const format *f = &formats[dtype];
    int64_t elements = tarn__dtypes[dtype].block_elements;
    for (int64_t i = 0; i < count; i += elements, block += tarn__dtype_bytes(dtype)) {
        solution best = {0};
        uint8_t level[256];
        search_block(f, values + i, importance ? importance + i : NULL, &best);
        for (int k = 0; k < (int)elements; k++)
            level[k] = (uint8_t)level_of(f, best.q[k]);
        pack(dtype, &best, level, block);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void quantize_avx2(tarn_dtype dtype, const float *values,
                                                          const float *importance, int64_t count, char *blocks)
{
    quantize_all(dtype, values, importance, count, blocks);
}
#endif

void tarn__quantize_searched(tarn_dtype dtype, const float *values, const float *importance, int64_t count,
                             void *blocks)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        quantize_avx2(dtype, values, importance, count, blocks);
        return;
    }
#endif
    quantize_all(dtype, values, importance, count, blocks);
}
