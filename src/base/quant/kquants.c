/* kquants.c: quantization of the k-quants, Q4_K and Q6_K, which have two levels of scales: one in f16 per block, and
 * small integer multiples of it per group.
 *
 * A scale that covers a group's range spends quants on values that rarely occur. So for each group several scales are
 * tried; given the quant q of each element, the scale (and min) with the smallest weighted error has a closed form. The
 * best fit is then rounded to a code, a multiple of the block's scale, and the neighbouring codes are tried as well.
 * Elements are weighted by their magnitude plus the group's mean magnitude: large weights of a network matter more than
 * their number suggests. Finally the result is compared with scales of the groups' ranges; the block with the smaller
 * unweighted squared error is kept, so the search never loses to the simple method.
 *
 * ggml calls a block here a super-block and a group a block; q, scale and min are its words. */
#include "base/quant/quant.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

#define Q4_GROUP 32
#define Q6_GROUP 16
#define SCALE_CANDIDATES 24

/* 1 / x, or 0 where x has no finite inverse. */
static float inverse(float x)
{
    float inverted = x != 0 ? 1 / x : 0;
    return isfinite(inverted) ? inverted : 0;
}

/* Candidate i divides the scale that just covers the range by this factor, from 0.94 to 1.4. */
static float candidate_factor(int i)
{
    return 0.94f + 0.02f * (float)i;
}

/* The nearest integer from 0 to `max`; 0 for NaN. */
static inline float round_quant(float x, float max)
{
    float low = x > 0 ? x : 0;
    return (float)(int)((low < max ? low : max) + 0.5f);
}

/* Weight of each element: its magnitude plus the group's mean magnitude. */
static void weigh(const float *x, int count, float *weight)
{
    float sum = 0;
    for (int i = 0; i < count; i++)
        sum += fabsf(x[i]);
    for (int i = 0; i < count; i++)
        weight[i] = sum / (float)count + fabsf(x[i]);
}

/* Squared error of a finished block of 256 elements, unweighted, in f64. */
static double error_of(const float *x, tarn_dtype dtype, const void *block)
{
    float decoded[256];
    double sum = 0;
    tarn__dequantize_blocks(dtype, block, 256, decoded);
    for (int i = 0; i < 256; i++)
        sum += ((double)decoded[i] - x[i]) * ((double)decoded[i] - x[i]);
    return sum;
}

/* Rounding of a block's scale to f16. */
typedef uint16_t (*bits_fn)(float scale);

/* Round to nearest. */
static uint16_t nearest_bits(float scale)
{
    return tarn__f32_to_f16(scale);
}

/* Rounds up where f16 is so coarse that rounding down would leave the largest group without a code (or all groups
 * with a scale of 0). */
static uint16_t scale_bits(float scale)
{
    uint16_t bits = tarn__f32_to_f16(scale);
    return fabsf(scale) > fabsf(tarn__f16_to_f32(bits)) * (1 + 0x1p-8f) ? (uint16_t)(bits + 1) : bits;
}

static const bits_fn range_roundings[] = {scale_bits, nearest_bits}; /* for scales of the range, both are tried */

static int clamp(float x, int low, int high)
{
    return x < (float)low ? low : x > (float)high ? high : (int)lroundf(x);
}

/* ---- q4_k: x ≈ scale · q - min ----------------------------------------------------------------------------- */

/* Scale and min of one group: x ≈ scale · q - min. */
typedef struct scale_min {
    float scale, min; /* neither is negative */
} scale_min;

/* Covers the group's range exactly. `min` cannot be negative, so 0 is always representable. */
static scale_min scale_min_of_range(const float *x)
{
    float low = 0, high = x[0];
    for (int i = 0; i < Q4_GROUP; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    return high > low ? (scale_min){(high - low) / 15, -low} : (scale_min){0, -low};
}

/* The quant q in 0–15 of each element for a scale of 1 / inverted. */
static void round_quants(const float *x, float inverted, float min, float *q)
{
    for (int i = 0; i < Q4_GROUP; i++)
        q[i] = round_quant((x[i] + min) * inverted, 15);
}

/* Weighted least squares: scale and min of the smallest error for given quants. Where the best min is negative, which
 * the format cannot hold, the fit is repeated with min = 0. */
static scale_min fit_scale_min(const float *x, const float *weight, const float *q)
{
    float w = 0, wq = 0, wqq = 0, wx = 0, wxq = 0;
    for (int i = 0; i < Q4_GROUP; i++) {
        float one = weight[i], at = one * q[i];
        w += one;
        wq += at;
        wqq += at * q[i];
        wx += one * x[i];
        wxq += at * x[i];
    }
    float scale = (w * wxq - wx * wq) * inverse(w * wqq - wq * wq), min = (scale * wq - wx) * inverse(w);
    if (min < 0) {
        min = 0;
        scale = wxq * inverse(wqq);
    }
    return (scale_min){scale > 0 ? scale : 0, min};
}

/* Weighted squared error of a scale and min with given quants. */
static float scale_min_error(const float *x, const float *weight, const float *q, scale_min s)
{
    float sum = 0;
    for (int i = 0; i < Q4_GROUP; i++) {
        float off = s.scale * q[i] - s.min - x[i];
        sum += weight[i] * off * off;
    }
    return sum;
}

/* The best of the range's scale and all refits, by weighted error. Quants are recomputed after each fit. */
static scale_min search_scale_min(const float *x, const float *weight)
{
    float q[Q4_GROUP];
    scale_min extremes = scale_min_of_range(x), best = extremes;
    round_quants(x, inverse(extremes.scale), extremes.min, q);
    float min_error = scale_min_error(x, weight, q, extremes);
    for (int i = 0; i < SCALE_CANDIDATES && extremes.scale > 0; i++) {
        round_quants(x, inverse(extremes.scale) * candidate_factor(i), extremes.min, q);
        scale_min fitted = fit_scale_min(x, weight, q);
        round_quants(x, inverse(fitted.scale), fitted.min, q);
        float error = scale_min_error(x, weight, q, fitted);
        if (error < min_error) {
            min_error = error;
            best = fitted;
        }
    }
    return best;
}

/* Tries the 3 × 3 neighbouring codes of scale and min (0–63) and keeps the pair with the smallest error. */
static void search_codes(const float *x, const float *weight, float scale, float min, int *scale_code, int *min_code)
{
    float q[Q4_GROUP], smallest = INFINITY;
    int scale_from = *scale_code, min_from = *min_code;
    for (int a = scale_from > 0 ? scale_from - 1 : 0; a <= scale_from + 1 && a < 64; a++)
        for (int b = min_from > 0 ? min_from - 1 : 0; b <= min_from + 1 && b < 64; b++) {
            scale_min s = {scale * (float)a, min * (float)b};
            round_quants(x, inverse(s.scale), s.min, q);
            float error = scale_min_error(x, weight, q, s);
            if (error < smallest) {
                smallest = error;
                *scale_code = a;
                *min_code = b;
            }
        }
}

/* Packs one group into a zeroed block: its 6-bit codes and its 32 nibbles, quantized with the scale and min as they
 * were rounded. */
static void pack_q4_k_group(tarn__q4_k *block, int group, const float *x, int scale_code, int min_code)
{
    float q[Q4_GROUP], scale = tarn__f16_to_f32(block->scale) * (float)scale_code,
                       min = tarn__f16_to_f32(block->min) * (float)min_code;
    uint8_t *s = block->scales, *to = block->q + group / 2 * 32;
    int i = group & 3, shift = group % 2 * 4;
    if (group < 4) {
        s[i] |= (uint8_t)scale_code;
        s[4 + i] |= (uint8_t)min_code;
    } else {
        s[8 + i] = (uint8_t)((scale_code & 15) | (min_code & 15) << 4);
        s[i] |= (uint8_t)(scale_code >> 4 << 6);
        s[4 + i] |= (uint8_t)(min_code >> 4 << 6);
    }
    round_quants(x, inverse(scale), min, q);
    for (int k = 0; k < Q4_GROUP; k++)
        to[k] |= (uint8_t)((int)q[k] << shift);
}

/* Packs all groups. The largest scale and min get code 63. With `weight`, codes are searched for; without, rounded. */
static void pack_q4_k(const float *x, const float *weight, const scale_min *groups, bits_fn bits_of, tarn__q4_k *block)
{
    scale_min max = {0, 0};
    for (int i = 0; i < 8; i++) {
        max.scale = fmaxf(max.scale, groups[i].scale);
        max.min = fmaxf(max.min, groups[i].min);
    }
    memset(block, 0, sizeof(*block));
    block->scale = bits_of(max.scale / 63);
    block->min = bits_of(max.min / 63);
    float scale = tarn__f16_to_f32(block->scale), min = tarn__f16_to_f32(block->min);
    for (int i = 0; i < 8; i++) {
        int scale_code = clamp(groups[i].scale * inverse(scale), 0, 63),
            min_code = clamp(groups[i].min * inverse(min), 0, 63);
        if (weight)
            search_codes(x + i * Q4_GROUP, weight + i * Q4_GROUP, scale, min, &scale_code, &min_code);
        pack_q4_k_group(block, i, x + i * Q4_GROUP, scale_code, min_code);
    }
}

/* Searches each group's scale and min, then falls back to those of the range, rounded both ways, where better. */
void tarn__q4_k_quantize(const float *values, tarn__q4_k *block)
{
    float weight[256];
    scale_min range[8], best[8];
    tarn__q4_k fallback;
    for (int i = 0; i < 8; i++) {
        weigh(values + i * Q4_GROUP, Q4_GROUP, weight + i * Q4_GROUP);
        range[i] = scale_min_of_range(values + i * Q4_GROUP);
        best[i] = search_scale_min(values + i * Q4_GROUP, weight + i * Q4_GROUP);
    }
    pack_q4_k(values, weight, best, scale_bits, block);
    for (int i = 0; i < 2; i++) {
        pack_q4_k(values, NULL, range, range_roundings[i], &fallback);
        /* NaN as well: a scale beyond f16 */
        if (!(error_of(values, TARN_Q4_K, block) <= error_of(values, TARN_Q4_K, &fallback)))
            *block = fallback;
    }
}

/* ---- q6_k: x ≈ scale · (q - 32) ---------------------------------------------------------------------------------- */

/* The element of the largest magnitude. */
static float extreme_of(const float *x)
{
    float largest = 0;
    for (int i = 0; i < Q6_GROUP; i++)
        largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    return largest;
}

/* The quant q in -32…31 of each element for a scale of 1 / inverted. */
static void round_signed_quants(const float *x, float inverted, float *q)
{
    for (int i = 0; i < Q6_GROUP; i++)
        q[i] = round_quant(x[i] * inverted + 32, 63) - 32;
}

static float scale_error(const float *x, const float *weight, const float *q, float scale)
{
    float sum = 0;
    for (int i = 0; i < Q6_GROUP; i++) {
        float off = scale * q[i] - x[i];
        sum += weight[i] * off * off;
    }
    return sum;
}

/* The scale of the smallest weighted error for given quants. */
static float fit_scale(const float *x, const float *weight, const float *q)
{
    float wxq = 0, wqq = 0;
    for (int i = 0; i < Q6_GROUP; i++) {
        wxq += weight[i] * x[i] * q[i];
        wqq += weight[i] * q[i] * q[i];
    }
    return wxq * inverse(wqq);
}

/* Starts from the scale that maps the largest element to q = -32, because that side has one value more. */
static float search_scale(const float *x, const float *weight)
{
    float q[Q6_GROUP], extreme = extreme_of(x) / -32, best = extreme;
    round_signed_quants(x, inverse(extreme), q);
    float min_error = scale_error(x, weight, q, extreme);
    for (int i = 0; i < SCALE_CANDIDATES && extreme != 0; i++) {
        round_signed_quants(x, inverse(extreme) * candidate_factor(i), q);
        float fitted = fit_scale(x, weight, q);
        round_signed_quants(x, inverse(fitted), q);
        float error = scale_error(x, weight, q, fitted);
        if (error < min_error) {
            min_error = error;
            best = fitted;
        }
    }
    return best;
}

/* Tries the neighbouring codes (-128…127) of a group's scale and returns the one with the smallest error. */
static int search_code(const float *x, const float *weight, float scale, int from)
{
    float q[Q6_GROUP], smallest = INFINITY;
    int best = from;
    for (int code = from > -128 ? from - 1 : -128; code <= from + 1 && code < 128; code++) {
        round_signed_quants(x, inverse(scale * (float)code), q);
        float error = scale_error(x, weight, q, scale * (float)code);
        if (error < smallest) {
            smallest = error;
            best = code;
        }
    }
    return best;
}

/* Packs one group into a zeroed block: its scale's code, the low nibbles and the upper two bits of its 16 elements. */
static void pack_q6_k_group(tarn__q6_k *block, int group, const float *x, int code)
{
    float q[Q6_GROUP];
    int chunk = group / 2, low_shift = chunk / 2 % 2 * 4, high_shift = chunk % 4 * 2;
    uint8_t *low = block->low + chunk / 4 * 64 + chunk % 2 * 32 + group % 2 * 16,
            *high = block->high + chunk / 4 * 32 + group % 2 * 16;
    block->scales[group] = (int8_t)code;
    round_signed_quants(x, inverse(tarn__f16_to_f32(block->scale) * (float)code), q);
    for (int i = 0; i < Q6_GROUP; i++) {
        int unsigned_q = (int)q[i] + 32;
        low[i] |= (uint8_t)((unsigned_q & 15) << low_shift);
        high[i] |= (uint8_t)(unsigned_q >> 4 << high_shift);
    }
}

/* Packs all groups. The scale of the largest magnitude gets the code `top`. With `weight`, codes are searched for. */
static void pack_q6_k(const float *x, const float *weight, const float *scales, int top, bits_fn bits_of,
                      tarn__q6_k *block)
{
    float max = 0;
    for (int i = 0; i < 16; i++)
        max = fabsf(scales[i]) > fabsf(max) ? scales[i] : max;
    memset(block, 0, sizeof(*block));
    block->scale = bits_of(max / (float)top);
    float scale = tarn__f16_to_f32(block->scale);
    for (int i = 0; i < 16; i++) {
        int code = clamp(scales[i] * inverse(scale), -128, 127);
        if (weight)
            code = search_code(x + i * Q6_GROUP, weight + i * Q6_GROUP, scale, code);
        pack_q6_k_group(block, i, x + i * Q6_GROUP, code);
    }
}

/* As tarn__q4_k_quantize(): search, then fall back to scales of the range where they are better. */
void tarn__q6_k_quantize(const float *values, tarn__q6_k *block)
{
    float weight[256], range[16], best[16];
    tarn__q6_k fallback;
    for (int i = 0; i < 16; i++) {
        weigh(values + i * Q6_GROUP, Q6_GROUP, weight + i * Q6_GROUP);
        range[i] = fabsf(extreme_of(values + i * Q6_GROUP)) / 31;
        best[i] = search_scale(values + i * Q6_GROUP, weight + i * Q6_GROUP);
    }
    pack_q6_k(values, weight, best, -128, scale_bits, block);
    for (int i = 0; i < 2; i++) {
        pack_q6_k(values, NULL, range, 127, range_roundings[i], &fallback);
        /* NaN as well: a scale beyond f16 */
        if (!(error_of(values, TARN_Q6_K, block) <= error_of(values, TARN_Q6_K, &fallback)))
            *block = fallback;
    }
}
