/* quantize.cl: f32 to quant blocks, bitwise identical with base/quant (quant.c and kquants.c); one block per work-item.
 *
 * Functions follow kquants.c one by one and in its order of operations; keep both in step. Q4_K and Q6_K are written in
 * place and dequantized from there, to choose between the searched scales and those of the extremes. */
#include "backends/opencl/quant/dequantize.cl"

#define ELEMENTS (1 << SHIFT)

/* Round to nearest even, in private memory: vstore_half works without cl_khr_fp16. */
static ushort f16_of(float x)
{
    ushort bits;
    vstore_half_rte(x, 0, (half *)&bits);
    return bits;
}

static float f32_of(ushort bits)
{
    return vload_half(0, (const half *)&bits);
}

static void put_f16(__global uchar *p, ushort bits)
{
    p[0] = (uchar)bits;
    p[1] = (uchar)(bits >> 8);
}

/* 1 / x; 0 where it is not finite. */
static float inverse(float x)
{
    float inverted = x != 0 ? 1 / x : 0;
    return isfinite(inverted) ? inverted : 0;
}

#if defined(Q8_0)
static void quantize_block(const float *x, __global uchar *block)
{
    float largest = 0;
    for (int i = 0; i < 32; i++)
        largest = fmax(largest, fabs(x[i]));
    float scale = largest / 127, inverted = inverse(scale);
    put_f16(block, f16_of(scale));
    for (int i = 0; i < 32; i++)
        block[2 + i] = (uchar)(char)(int)round(x[i] * inverted);
}
#elif defined(Q4_0)
/* 4 bits, rounded half up, clamped at 15; never below 0 for elements within the range. */
static int nibble(float value, float inverted)
{
    int q = (int)(value * inverted + 8.5f);
    return q < 15 ? q : 15;
}

/* The element of the largest magnitude becomes -8 · scale exactly, because the negative side has one step more. */
static void quantize_block(const float *x, __global uchar *block)
{
    float largest = 0;
    for (int i = 0; i < 32; i++)
        if (fabs(x[i]) > fabs(largest))
            largest = x[i];
    float scale = largest / -8, inverted = inverse(scale);
    put_f16(block, f16_of(scale));
    for (int i = 0; i < 16; i++)
        block[2 + i] = (uchar)(nibble(x[i], inverted) | nibble(x[i + 16], inverted) << 4);
}
#else

/* ---- shared by the k-quants -------------------------------------------------------------------------------------- */

#define SPACINGS 24

/* Candidate i of the search: the step size is finer than that of the extremes by a factor from 0.94 to 1.4. */
static float spacing(int i)
{
    return 0.94f + 0.02f * (float)i;
}

/* The nearest integer from 0 to `limit`; 0 for NaN. */
static float round_step(float x, float limit)
{
    float low = x > 0 ? x : 0;
    return (float)(int)((low < limit ? low : limit) + 0.5f);
}

/* Weights of squared errors: large elements count more, as they do in a dot product. */
static void weigh(const float *x, int count, float *weight)
{
    float sum = 0;
    for (int i = 0; i < count; i++)
        sum += fabs(x[i]);
    for (int i = 0; i < count; i++)
        weight[i] = sum / (float)count + fabs(x[i]);
}

/* Squared error of a finished block, in f64: this decides between two blocks. */
static double error_of(const float *x, __global const uchar *block)
{
    double sum = 0;
    for (int i = 0; i < 256; i++) {
        double off = (double)element_of(block, i) - (double)x[i];
        sum += off * off;
    }
    return sum;
}

/* A block's scale in f16, rounded up where rounding down would leave the largest group without a code, or all groups
 * without a scale (f16 is coarse near 0). */
static ushort scale_bits(float scale)
{
    ushort bits = f16_of(scale);
    return fabs(scale) > fabs(f32_of(bits)) * (1 + 0x1p-8f) ? (ushort)(bits + 1) : bits;
}

/* Rounded and clamped to a code. */
static int code_of(float x, int low, int high)
{
    return x < (float)low ? low : x > (float)high ? high : (int)round(x);
}

/* ---- q4_k: x ≈ scale · q - minimum ---------------------------------------------------------------------------------
 */

#ifdef Q4_K
#define GROUP 32
#define GROUPS 8

/* x ≈ scale · q - minimum. */
typedef struct line {
    float scale, minimum; /* neither is negative */
} line;

/* The line through the group's extremes; 0 is always representable, since `minimum` cannot be negative. */
static line line_of_extremes(const float *x)
{
    float low = 0, high = x[0];
    for (int i = 0; i < GROUP; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    line l = {high > low ? (high - low) / 15 : 0, -low};
    return l;
}

/* Steps q of all elements for a line, from 0 to 15. */
static void round_steps(const float *x, float inverted, float minimum, float *q)
{
    for (int i = 0; i < GROUP; i++)
        q[i] = round_step((x[i] + minimum) * inverted, 15);
}

/* Weighted least squares for given steps. */
static line fit_line(const float *x, const float *weight, const float *q)
{
    float w = 0, wq = 0, wqq = 0, wx = 0, wxq = 0;
    for (int i = 0; i < GROUP; i++) {
        float one = weight[i], at = one * q[i];
        w += one;
        wq += at;
        wqq += at * q[i];
        wx += one * x[i];
        wxq += at * x[i];
    }
    float scale = (w * wxq - wx * wq) * inverse(w * wqq - wq * wq), minimum = (scale * wq - wx) * inverse(w);
    if (minimum < 0) {
        minimum = 0;
        scale = wxq * inverse(wqq);
    }
    line l = {scale > 0 ? scale : 0, minimum};
    return l;
}

static float line_error(const float *x, const float *weight, const float *q, line l)
{
    float sum = 0;
    for (int i = 0; i < GROUP; i++) {
        float off = l.scale * q[i] - l.minimum - x[i];
        sum += weight[i] * off * off;
    }
    return sum;
}

/* Refits the line for each candidate step size and keeps the best. */
static line search_line(const float *x, const float *weight)
{
    float q[GROUP];
    line extremes = line_of_extremes(x), best = extremes;
    round_steps(x, inverse(extremes.scale), extremes.minimum, q);
    float min_error = line_error(x, weight, q, extremes);
    for (int i = 0; i < SPACINGS && extremes.scale > 0; i++) {
        round_steps(x, inverse(extremes.scale) * spacing(i), extremes.minimum, q);
        line fitted = fit_line(x, weight, q);
        round_steps(x, inverse(fitted.scale), fitted.minimum, q);
        float error = line_error(x, weight, q, fitted);
        if (error < min_error) {
            min_error = error;
            best = fitted;
        }
    }
    return best;
}

/* Tries the neighbours of both codes and keeps the pair with the smallest error. */
static void search_codes(const float *x, const float *weight, float scale, float minimum, int *scale_code,
                         int *min_code)
{
    float q[GROUP], smallest = INFINITY;
    int from = *scale_code, low_from = *min_code;
    for (int code = from > 0 ? from - 1 : 0; code <= from + 1 && code < 64; code++)
        for (int low = low_from > 0 ? low_from - 1 : 0; low <= low_from + 1 && low < 64; low++) {
            line l = {scale * (float)code, minimum * (float)low};
            round_steps(x, inverse(l.scale), l.minimum, q);
            float error = line_error(x, weight, q, l);
            if (error < smallest) {
                smallest = error;
                *scale_code = code;
                *min_code = low;
            }
        }
}

static void put_group(__global uchar *block, int group, const float *x, float block_scale, float block_min, int code,
                      int low)
{
    float q[GROUP];
    __global uchar *s = block + 4, *to = block + 16 + group / 2 * 32;
    int i = group & 3, shift = group % 2 * 4;
    if (group < 4) {
        s[i] |= (uchar)code;
        s[4 + i] |= (uchar)low;
    } else {
        s[8 + i] = (uchar)((code & 15) | (low & 15) << 4);
        s[i] |= (uchar)(code >> 4 << 6);
        s[4 + i] |= (uchar)(low >> 4 << 6);
    }
    round_steps(x, inverse(block_scale * (float)code), block_min * (float)low, q);
    for (int k = 0; k < GROUP; k++)
        to[k] |= (uchar)((int)q[k] << shift);
}

/* Packs the groups' lines; with `searches` codes are refined by search_codes(). */
static void put_block(const float *x, const float *weight, const line *lines, bool searches, __global uchar *block)
{
    line largest = {0, 0};
    for (int i = 0; i < GROUPS; i++) {
        largest.scale = fmax(largest.scale, lines[i].scale);
        largest.minimum = fmax(largest.minimum, lines[i].minimum);
    }
    for (int i = 0; i < BYTES; i++)
        block[i] = 0;
    ushort scale_half = scale_bits(largest.scale / 63), min_half = scale_bits(largest.minimum / 63);
    put_f16(block, scale_half);
    put_f16(block + 2, min_half);
    float scale = f32_of(scale_half), minimum = f32_of(min_half);
    for (int i = 0; i < GROUPS; i++) {
        int code = code_of(lines[i].scale * inverse(scale), 0, 63),
            low = code_of(lines[i].minimum * inverse(minimum), 0, 63);
        if (searches)
            search_codes(x + i * GROUP, weight + i * GROUP, scale, minimum, &code, &low);
        put_group(block, i, x + i * GROUP, scale, minimum, code, low);
    }
}

static void quantize_block(const float *x, __global uchar *block)
{
    float weight[256];
    line extremes[GROUPS], best[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        weigh(x + i * GROUP, GROUP, weight + i * GROUP);
        extremes[i] = line_of_extremes(x + i * GROUP);
        best[i] = search_line(x + i * GROUP, weight + i * GROUP);
    }
    put_block(x, weight, extremes, false, block);
    double extremes_error = error_of(x, block);
    /* the search is not guaranteed to win after its scales are rounded to codes */
    put_block(x, weight, best, true, block);
    if (!(error_of(x, block) <= extremes_error)) /* or NaN, from a scale beyond f16 */
        put_block(x, weight, extremes, false, block);
}

/* ---- q6_k: x ≈ scale · (q - 32) ---------------------------------------------------------------------------------- */

#else
#define GROUP 16
#define GROUPS 16

/* The element of the largest magnitude. */
static float extreme_of(const float *x)
{
    float largest = 0;
    for (int i = 0; i < GROUP; i++)
        largest = fabs(x[i]) > fabs(largest) ? x[i] : largest;
    return largest;
}

/* Steps q of all elements for a scale, from -32 to 31. */
static void round_signed_steps(const float *x, float inverted, float *q)
{
    for (int i = 0; i < GROUP; i++)
        q[i] = round_step(x[i] * inverted + 32, 63) - 32;
}

static float scale_error(const float *x, const float *weight, const float *q, float scale)
{
    float sum = 0;
    for (int i = 0; i < GROUP; i++) {
        float off = scale * q[i] - x[i];
        sum += weight[i] * off * off;
    }
    return sum;
}

/* Weighted least squares for given steps. */
static float fit_scale(const float *x, const float *weight, const float *q)
{
    float wxq = 0, wqq = 0;
    for (int i = 0; i < GROUP; i++) {
        wxq += weight[i] * x[i] * q[i];
        wqq += weight[i] * q[i] * q[i];
    }
    return wxq * inverse(wqq);
}

/* Starts with the scale for which the largest element is -32 steps, because that side has one more. */
static float search_scale(const float *x, const float *weight)
{
    float q[GROUP], extreme = extreme_of(x) / -32, best = extreme;
    round_signed_steps(x, inverse(extreme), q);
    float min_error = scale_error(x, weight, q, extreme);
    for (int i = 0; i < SPACINGS && extreme != 0; i++) {
        round_signed_steps(x, inverse(extreme) * spacing(i), q);
        float fitted = fit_scale(x, weight, q);
        round_signed_steps(x, inverse(fitted), q);
        float error = scale_error(x, weight, q, fitted);
        if (error < min_error) {
            min_error = error;
            best = fitted;
        }
    }
    return best;
}

/* Tries the neighbours of a code and keeps the one with the smallest error. */
static int search_code(const float *x, const float *weight, float scale, int from)
{
    float q[GROUP], smallest = INFINITY;
    int best = from;
    for (int code = from > -128 ? from - 1 : -128; code <= from + 1 && code < 128; code++) {
        round_signed_steps(x, inverse(scale * (float)code), q);
        float error = scale_error(x, weight, q, scale * (float)code);
        if (error < smallest) {
            smallest = error;
            best = code;
        }
    }
    return best;
}

static void put_group(__global uchar *block, int group, const float *x, float block_scale, int code)
{
    float q[GROUP];
    int part = group / 2, low_shift = part / 2 % 2 * 4, high_shift = part % 4 * 2;
    __global uchar *low = block + part / 4 * 64 + part % 2 * 32 + group % 2 * 16,
                   *high = block + 128 + part / 4 * 32 + group % 2 * 16;
    block[192 + group] = (uchar)(char)code;
    round_signed_steps(x, inverse(block_scale * (float)code), q);
    for (int i = 0; i < GROUP; i++) {
        int six = (int)q[i] + 32;
        low[i] |= (uchar)((six & 15) << low_shift);
        high[i] |= (uchar)(six >> 4 << high_shift);
    }
}

/* Packs the groups' scales, the largest of which becomes `top`; with `searches` codes are refined by search_code(). */
static void put_block(const float *x, const float *weight, const float *scales, int top, bool searches,
                      __global uchar *block)
{
    float largest = 0;
    for (int i = 0; i < GROUPS; i++)
        largest = fabs(scales[i]) > fabs(largest) ? scales[i] : largest;
    for (int i = 0; i < BYTES; i++)
        block[i] = 0;
    ushort scale_half = scale_bits(largest / (float)top);
    put_f16(block + 208, scale_half);
    float scale = f32_of(scale_half);
    for (int i = 0; i < GROUPS; i++) {
        int code = code_of(scales[i] * inverse(scale), -128, 127);
        if (searches)
            code = search_code(x + i * GROUP, weight + i * GROUP, scale, code);
        put_group(block, i, x + i * GROUP, scale, code);
    }
}

static void quantize_block(const float *x, __global uchar *block)
{
    float weight[256], extremes[GROUPS], best[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        weigh(x + i * GROUP, GROUP, weight + i * GROUP);
        extremes[i] = fabs(extreme_of(x + i * GROUP)) / 31;
        best[i] = search_scale(x + i * GROUP, weight + i * GROUP);
    }
    put_block(x, weight, extremes, 127, false, block);
    double extremes_error = error_of(x, block);
    put_block(x, weight, best, -128, true, block);
    if (!(error_of(x, block) <= extremes_error)) /* or NaN, from a scale beyond f16 */
        put_block(x, weight, extremes, 127, false, block);
}
#endif
#endif

/* One block per work-item, its elements in private memory. */
__kernel void quantize(__global uchar *y, long y_first, __global const float *x, long x_first, long blocks)
{
    long which = get_global_id(0);
    if (which >= blocks)
        return;
    float values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++)
        values[i] = x[x_first + which * ELEMENTS + i];
    quantize_block(values, y + y_first + which * BYTES);
}
