/* kquants.c: quantization of the k-quants, Q4_K and Q6_K, which have two levels of scales: one in f16 per block, and
 * small integer multiples of it per group.
 *
 * Scaling a group by its extreme elements wastes steps on values that rarely occur. So for each group several step
 * sizes are tried; given the step of each element, the scale (and min) with the smallest weighted error has a closed
 * form. The best fit is then rounded to a multiple of the block's scale, and the neighbouring multiples are tried as
 * well. Elements are weighted by their magnitude plus the group's mean magnitude: large weights of a network matter
 * more than their number suggests. Finally the result is compared with scaling by the extremes; the block with the
 * smaller unweighted squared error is kept, so the search never loses to the simple method. */
#include "base/quant/quant.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

#define Q4_GROUP 32
#define Q6_GROUP 16
#define SPACINGS 24

/* 1 / x, or 0 where x has no finite inverse. */
static float inverse(float x)
{
    float inverted = x != 0 ? 1 / x : 0;
    return isfinite(inverted) ? inverted : 0;
}

/* Candidate i divides the step size that just reaches the extremes by this factor, from 0.94 to 1.4. */
static float spacing(int i)
{
    return 0.94f + 0.02f * (float)i;
}

/* The nearest integer from 0 to `max`; 0 for NaN. */
static inline float step(float x, float max)
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

static const bits_fn plain_bits[] = {scale_bits, nearest_bits}; /* for scaling by the extremes, both are tried */

static int clamp(float x, int low, int high)
{
    return x < (float)low ? low : x > (float)high ? high : (int)lroundf(x);
}

/* ---- q4_k: x ≈ scale · q - min ----------------------------------------------------------------------------- */

/* One group's affine map from steps q to values: x ≈ scale · q - min. */
typedef struct line {
    float scale, min; /* neither is negative */
} line;

/* The line through the group's extremes. `min` cannot be negative, so 0 is always representable. */
static line line_of_extremes(const float *x)
{
    float low = 0, high = x[0];
    for (int i = 0; i < Q4_GROUP; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    return high > low ? (line){(high - low) / 15, -low} : (line){0, -low};
}

/* The step q in 0–15 of each element for a line with scale 1 / inverted. */
static void steps_of(const float *x, float inverted, float min, float *q)
{
    for (int i = 0; i < Q4_GROUP; i++)
        q[i] = step((x[i] + min) * inverted, 15);
}

/* Weighted least squares: the line with the smallest error for given steps. Where the best min is negative, which
 * the format cannot hold, the fit is repeated with min = 0. */
static line fit_line(const float *x, const float *weight, const float *q)
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
    return (line){scale > 0 ? scale : 0, min};
}

/* Weighted squared error of a line with given steps. */
static float line_error(const float *x, const float *weight, const float *q, line l)
{
    float sum = 0;
    for (int i = 0; i < Q4_GROUP; i++) {
        float off = l.scale * q[i] - l.min - x[i];
        sum += weight[i] * off * off;
    }
    return sum;
}

/* The best of the extremes' line and SPACINGS refits, by weighted error. Steps are recomputed after each fit. */
static line search_line(const float *x, const float *weight)
{
    float q[Q4_GROUP];
    line extremes = line_of_extremes(x), best = extremes;
    steps_of(x, inverse(extremes.scale), extremes.min, q);
    float min_error = line_error(x, weight, q, extremes);
    for (int i = 0; i < SPACINGS && extremes.scale > 0; i++) {
        steps_of(x, inverse(extremes.scale) * spacing(i), extremes.min, q);
        line fitted = fit_line(x, weight, q);
        steps_of(x, inverse(fitted.scale), fitted.min, q);
        float error = line_error(x, weight, q, fitted);
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
    int from = *scale_code, low_from = *min_code;
    for (int code = from > 0 ? from - 1 : 0; code <= from + 1 && code < 64; code++)
        for (int low = low_from > 0 ? low_from - 1 : 0; low <= low_from + 1 && low < 64; low++) {
            line l = {scale * (float)code, min * (float)low};
            steps_of(x, inverse(l.scale), l.min, q);
            float error = line_error(x, weight, q, l);
            if (error < smallest) {
                smallest = error;
                *scale_code = code;
                *min_code = low;
            }
        }
}

/* Packs one group into a zeroed block: its 6-bit codes and its 32 nibbles, quantized with the scale and min as they
 * were rounded. */
static void put_q4_k_group(tarn__q4_k *block, int group, const float *x, int code, int low)
{
    float q[Q4_GROUP], scale = tarn__f16_to_f32(block->scale) * (float)code,
                       min = tarn__f16_to_f32(block->min) * (float)low;
    uint8_t *s = block->scales, *to = block->q + group / 2 * 32;
    int i = group & 3, shift = group % 2 * 4;
    if (group < 4) {
        s[i] |= (uint8_t)code;
        s[4 + i] |= (uint8_t)low;
    } else {
        s[8 + i] = (uint8_t)((code & 15) | (low & 15) << 4);
        s[i] |= (uint8_t)(code >> 4 << 6);
        s[4 + i] |= (uint8_t)(low >> 4 << 6);
    }
    steps_of(x, inverse(scale), min, q);
    for (int k = 0; k < Q4_GROUP; k++)
        to[k] |= (uint8_t)((int)q[k] << shift);
}

/* Packs all groups. The largest scale and min get code 63. With `weight`, codes are searched for; without, rounded. */
static void put_q4_k(const float *x, const float *weight, const line *lines, bits_fn bits_of, tarn__q4_k *block)
{
    line max = {0, 0};
    for (int i = 0; i < 8; i++) {
        max.scale = fmaxf(max.scale, lines[i].scale);
        max.min = fmaxf(max.min, lines[i].min);
    }
    memset(block, 0, sizeof(*block));
    block->scale = bits_of(max.scale / 63);
    block->min = bits_of(max.min / 63);
    float scale = tarn__f16_to_f32(block->scale), min = tarn__f16_to_f32(block->min);
    for (int i = 0; i < 8; i++) {
        int code = clamp(lines[i].scale * inverse(scale), 0, 63), low = clamp(lines[i].min * inverse(min), 0, 63);
        if (weight)
            search_codes(x + i * Q4_GROUP, weight + i * Q4_GROUP, scale, min, &code, &low);
        put_q4_k_group(block, i, x + i * Q4_GROUP, code, low);
    }
}

/* Searches each group's line, then falls back to the extremes' lines, rounded both ways, where they are better. */
void tarn__q4_k_quantize(const float *values, tarn__q4_k *block)
{
    float weight[256];
    line plain[8], best[8];
    tarn__q4_k other;
    for (int i = 0; i < 8; i++) {
        weigh(values + i * Q4_GROUP, Q4_GROUP, weight + i * Q4_GROUP);
        plain[i] = line_of_extremes(values + i * Q4_GROUP);
        best[i] = search_line(values + i * Q4_GROUP, weight + i * Q4_GROUP);
    }
    put_q4_k(values, weight, best, scale_bits, block);
    for (int i = 0; i < 2; i++) {
        put_q4_k(values, NULL, plain, plain_bits[i], &other);
        /* NaN as well: a scale beyond f16 */
        if (!(error_of(values, TARN_Q4_K, block) <= error_of(values, TARN_Q4_K, &other)))
            *block = other;
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

/* The step q in -32…31 of each element for a scale of 1 / inverted. */
static void signed_steps_of(const float *x, float inverted, float *q)
{
    for (int i = 0; i < Q6_GROUP; i++)
        q[i] = step(x[i] * inverted + 32, 63) - 32;
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

/* The scale of the smallest weighted error for given steps. */
static float fit_scale(const float *x, const float *weight, const float *q)
{
    float wxq = 0, wqq = 0;
    for (int i = 0; i < Q6_GROUP; i++) {
        wxq += weight[i] * x[i] * q[i];
        wqq += weight[i] * q[i] * q[i];
    }
    return wxq * inverse(wqq);
}

/* Starts from the scale that maps the largest element to -32 steps, because that side has one step more. */
static float search_scale(const float *x, const float *weight)
{
    float q[Q6_GROUP], extreme = extreme_of(x) / -32, best = extreme;
    signed_steps_of(x, inverse(extreme), q);
    float min_error = scale_error(x, weight, q, extreme);
    for (int i = 0; i < SPACINGS && extreme != 0; i++) {
        signed_steps_of(x, inverse(extreme) * spacing(i), q);
        float fitted = fit_scale(x, weight, q);
        signed_steps_of(x, inverse(fitted), q);
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
        signed_steps_of(x, inverse(scale * (float)code), q);
        float error = scale_error(x, weight, q, scale * (float)code);
        if (error < smallest) {
            smallest = error;
            best = code;
        }
    }
    return best;
}

/* Packs one group into a zeroed block: its scale's code, the low nibbles and the upper two bits of its 16 elements. */
static void put_q6_k_group(tarn__q6_k *block, int group, const float *x, int code)
{
    float q[Q6_GROUP];
    int part = group / 2, low_shift = part / 2 % 2 * 4, high_shift = part % 4 * 2;
    uint8_t *low = block->low + part / 4 * 64 + part % 2 * 32 + group % 2 * 16,
            *high = block->high + part / 4 * 32 + group % 2 * 16;
    block->scales[group] = (int8_t)code;
    signed_steps_of(x, inverse(tarn__f16_to_f32(block->scale) * (float)code), q);
    for (int i = 0; i < Q6_GROUP; i++) {
        int six = (int)q[i] + 32;
        low[i] |= (uint8_t)((six & 15) << low_shift);
        high[i] |= (uint8_t)(six >> 4 << high_shift);
    }
}

/* Packs all groups. The scale of the largest magnitude gets the code `top`. With `weight`, codes are searched for. */
static void put_q6_k(const float *x, const float *weight, const float *scales, int top, bits_fn bits_of,
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
        put_q6_k_group(block, i, x + i * Q6_GROUP, code);
    }
}

/* As tarn__q4_k_quantize(): search, then fall back to scaling by the extremes where that is better. */
void tarn__q6_k_quantize(const float *values, tarn__q6_k *block)
{
    float weight[256], plain[16], best[16];
    tarn__q6_k other;
    for (int i = 0; i < 16; i++) {
        weigh(values + i * Q6_GROUP, Q6_GROUP, weight + i * Q6_GROUP);
        plain[i] = fabsf(extreme_of(values + i * Q6_GROUP)) / 31;
        best[i] = search_scale(values + i * Q6_GROUP, weight + i * Q6_GROUP);
    }
    put_q6_k(values, weight, best, -128, scale_bits, block);
    for (int i = 0; i < 2; i++) {
        put_q6_k(values, NULL, plain, 127, plain_bits[i], &other);
        /* NaN as well: a scale beyond f16 */
        if (!(error_of(values, TARN_Q6_K, block) <= error_of(values, TARN_Q6_K, &other)))
            *block = other;
    }
}
