/* kquants.c: packing the types that have two levels of scales: a block's in f16, and its groups' as small whole numbers
 * of it.
 *
 * Scaling a group by its extreme elements spends the steps on values that are rarely there. So for each group several
 * spacings of the steps are tried; for the steps that each gives its elements, the scale (and least value) of the
 * smallest weighted error has a closed form. The best of them are then rounded to the block's own scale, where the
 * neighbouring codes are tried as well. Elements weigh their magnitude plus the group's mean of it: large weights of a
 * network matter more than their number says. At the end the block is kept only if its plain squared error is no larger
 * than that of scaling by the extremes. */
#include "base/quant/quant.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

#define Q4_GROUP 32
#define Q6_GROUP 16
#define SPACINGS 24

/* 1 / x; 0 where there is none. */
static float inverse(float x)
{
    float inverted = x != 0 ? 1 / x : 0;
    return isfinite(inverted) ? inverted : 0;
}

/* The factor that a spacing is finer by than the one that reaches the extremes: from 0.94 to 1.4. */
static float spacing(int i)
{
    return 0.94f + 0.02f * (float)i;
}

/* The nearest whole number from 0 to `most`; 0 for NaN. */
static inline float step(float x, float most)
{
    float low = x > 0 ? x : 0;
    return (float)(int)((low < most ? low : most) + 0.5f);
}

static void weigh(const float *x, int count, float *weight)
{
    float sum = 0;
    for (int i = 0; i < count; i++)
        sum += fabsf(x[i]);
    for (int i = 0; i < count; i++)
        weight[i] = sum / (float)count + fabsf(x[i]);
}

static double error_of(const float *x, tarn_dtype dtype, const void *block)
{
    float decoded[256];
    double sum = 0;
    tarn__dequantize_blocks(dtype, block, 256, decoded);
    for (int i = 0; i < 256; i++)
        sum += ((double)decoded[i] - x[i]) * ((double)decoded[i] - x[i]);
    return sum;
}

/* How a block's scale becomes f16. */
typedef uint16_t (*bits_fn)(float scale);

/* To the nearest. */
static uint16_t nearest_bits(float scale)
{
    return tarn__f32_to_f16(scale);
}

/* Where that is so coarse that rounding down would leave the largest group without a code (or all of them without a
 * scale), up. */
static uint16_t scale_bits(float scale)
{
    uint16_t bits = tarn__f32_to_f16(scale);
    return fabsf(scale) > fabsf(tarn__f16_to_f32(bits)) * (1 + 0x1p-8f) ? (uint16_t)(bits + 1) : bits;
}

static const bits_fn plain_bits[] = {scale_bits, nearest_bits}; /* of extremes: the better one is taken */

static int clamp(float x, int low, int high)
{
    return x < (float)low ? low : x > (float)high ? high : (int)lroundf(x);
}

/* ---- q4_k: x ≈ scale · q - least --------------------------------------------------------------------------------- */

typedef struct line {
    float scale, min; /* neither is negative */
} line;

/* The line through the group's extremes; 0 is always among its values, since `least` cannot be negative. */
static line line_of_extremes(const float *x)
{
    float low = 0, high = x[0];
    for (int i = 0; i < Q4_GROUP; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    return high > low ? (line){(high - low) / 15, -low} : (line){0, -low};
}

static void steps_of(const float *x, float inverted, float min, float *q)
{
    for (int i = 0; i < Q4_GROUP; i++)
        q[i] = step((x[i] + min) * inverted, 15);
}

/* The line of the smallest weighted error for given steps. */
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

static float line_error(const float *x, const float *weight, const float *q, line l)
{
    float sum = 0;
    for (int i = 0; i < Q4_GROUP; i++) {
        float off = l.scale * q[i] - l.min - x[i];
        sum += weight[i] * off * off;
    }
    return sum;
}

static line search_line(const float *x, const float *weight)
{
    float q[Q4_GROUP];
    line extremes = line_of_extremes(x), best = extremes;
    steps_of(x, inverse(extremes.scale), extremes.min, q);
    float least_error = line_error(x, weight, q, extremes);
    for (int i = 0; i < SPACINGS && extremes.scale > 0; i++) {
        steps_of(x, inverse(extremes.scale) * spacing(i), extremes.min, q);
        line fitted = fit_line(x, weight, q);
        steps_of(x, inverse(fitted.scale), fitted.min, q);
        float error = line_error(x, weight, q, fitted);
        if (error < least_error) {
            least_error = error;
            best = fitted;
        }
    }
    return best;
}

/* The codes around those given whose line has the smallest error. */
static void search_codes(const float *x, const float *weight, float scale, float min, int *scale_code, int *least_code)
{
    float q[Q4_GROUP], smallest = INFINITY;
    int from = *scale_code, low_from = *least_code;
    for (int code = from > 0 ? from - 1 : 0; code <= from + 1 && code < 64; code++)
        for (int low = low_from > 0 ? low_from - 1 : 0; low <= low_from + 1 && low < 64; low++) {
            line l = {scale * (float)code, min * (float)low};
            steps_of(x, inverse(l.scale), l.min, q);
            float error = line_error(x, weight, q, l);
            if (error < smallest) {
                smallest = error;
                *scale_code = code;
                *least_code = low;
            }
        }
}

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

/* Packs the groups' lines. With `weight`, codes are searched for. */
static void put_q4_k(const float *x, const float *weight, const line *lines, bits_fn bits_of, tarn__q4_k *block)
{
    line most = {0, 0};
    for (int i = 0; i < 8; i++) {
        most.scale = fmaxf(most.scale, lines[i].scale);
        most.min = fmaxf(most.min, lines[i].min);
    }
    memset(block, 0, sizeof(*block));
    block->scale = bits_of(most.scale / 63);
    block->min = bits_of(most.min / 63);
    float scale = tarn__f16_to_f32(block->scale), min = tarn__f16_to_f32(block->min);
    for (int i = 0; i < 8; i++) {
        int code = clamp(lines[i].scale * inverse(scale), 0, 63), low = clamp(lines[i].min * inverse(min), 0, 63);
        if (weight)
            search_codes(x + i * Q4_GROUP, weight + i * Q4_GROUP, scale, min, &code, &low);
        put_q4_k_group(block, i, x + i * Q4_GROUP, code, low);
    }
}

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
        /* nor is it NaN: a scale beyond f16 */
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

/* Begins with the scale by which the largest element is -32 steps: that side has one more. */
static float search_scale(const float *x, const float *weight)
{
    float q[Q6_GROUP], extreme = extreme_of(x) / -32, best = extreme;
    signed_steps_of(x, inverse(extreme), q);
    float least_error = scale_error(x, weight, q, extreme);
    for (int i = 0; i < SPACINGS && extreme != 0; i++) {
        signed_steps_of(x, inverse(extreme) * spacing(i), q);
        float fitted = fit_scale(x, weight, q);
        signed_steps_of(x, inverse(fitted), q);
        float error = scale_error(x, weight, q, fitted);
        if (error < least_error) {
            least_error = error;
            best = fitted;
        }
    }
    return best;
}

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

/* Packs the groups' scales, the largest of which becomes `top`. With `weight`, codes are searched for. */
static void put_q6_k(const float *x, const float *weight, const float *scales, int top, bits_fn bits_of,
                     tarn__q6_k *block)
{
    float most = 0;
    for (int i = 0; i < 16; i++)
        most = fabsf(scales[i]) > fabsf(most) ? scales[i] : most;
    memset(block, 0, sizeof(*block));
    block->scale = bits_of(most / (float)top);
    float scale = tarn__f16_to_f32(block->scale);
    for (int i = 0; i < 16; i++) {
        int code = clamp(scales[i] * inverse(scale), -128, 127);
        if (weight)
            code = search_code(x + i * Q6_GROUP, weight + i * Q6_GROUP, scale, code);
        put_q6_k_group(block, i, x + i * Q6_GROUP, code);
    }
}

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
        /* nor is it NaN: a scale beyond f16 */
        if (!(error_of(values, TARN_Q6_K, block) <= error_of(values, TARN_Q6_K, &other)))
            *block = other;
    }
}
