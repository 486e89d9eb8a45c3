/* quantize.cl: f32 to quant blocks, bitwise identical with base/quant (quant.c and kquants.c); one block per work-item.
 *
 * Functions follow kquants.c one by one and in its order of operations; keep both in step. Q4_K and Q6_K are written in
 * place and dequantized from there, to choose between the searched scales and those of the range. */
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

/* The element of the largest magnitude becomes -8 · scale exactly, because the negative side has one value more. */
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

#define SCALE_CANDIDATES 24

/* Candidate i divides the scale that just covers the range by this factor, from 0.94 to 1.4. */
static float candidate_factor(int i)
{
    return 0.94f + 0.02f * (float)i;
}

/* The nearest integer from 0 to `limit`; 0 for NaN. */
static float round_quant(float x, float limit)
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

/* Of one group: x ≈ scale · q - minimum. */
typedef struct scale_min {
    float scale, minimum; /* neither is negative */
} scale_min;

/* Covers the group's range exactly; 0 is always representable, since `minimum` cannot be negative. */
static scale_min scale_min_of_range(const float *x)
{
    float low = 0, high = x[0];
    for (int i = 0; i < GROUP; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    scale_min s = {high > low ? (high - low) / 15 : 0, -low};
    return s;
}

/* Quants of all elements, from 0 to 15, for a scale of 1 / inverted. */
static void round_quants(const float *x, float inverted, float minimum, float *q)
{
    for (int i = 0; i < GROUP; i++)
        q[i] = round_quant((x[i] + minimum) * inverted, 15);
}

/* Weighted least squares for given quants. */
static scale_min fit_scale_min(const float *x, const float *weight, const float *q)
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
    scale_min s = {scale > 0 ? scale : 0, minimum};
    return s;
}

static float scale_min_error(const float *x, const float *weight, const float *q, scale_min s)
{
    float sum = 0;
    for (int i = 0; i < GROUP; i++) {
        float off = s.scale * q[i] - s.minimum - x[i];
        sum += weight[i] * off * off;
    }
    return sum;
}

/* Refits scale and min for each candidate and keeps the best. */
static scale_min search_scale_min(const float *x, const float *weight)
{
    float q[GROUP];
    scale_min extremes = scale_min_of_range(x), best = extremes;
    round_quants(x, inverse(extremes.scale), extremes.minimum, q);
    float min_error = scale_min_error(x, weight, q, extremes);
    for (int i = 0; i < SCALE_CANDIDATES && extremes.scale > 0; i++) {
        round_quants(x, inverse(extremes.scale) * candidate_factor(i), extremes.minimum, q);
        scale_min fitted = fit_scale_min(x, weight, q);
        round_quants(x, inverse(fitted.scale), fitted.minimum, q);
        float error = scale_min_error(x, weight, q, fitted);
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
    int scale_from = *scale_code, min_from = *min_code;
    for (int a = scale_from > 0 ? scale_from - 1 : 0; a <= scale_from + 1 && a < 64; a++)
        for (int b = min_from > 0 ? min_from - 1 : 0; b <= min_from + 1 && b < 64; b++) {
            scale_min s = {scale * (float)a, minimum * (float)b};
            round_quants(x, inverse(s.scale), s.minimum, q);
            float error = scale_min_error(x, weight, q, s);
            if (error < smallest) {
                smallest = error;
                *scale_code = a;
                *min_code = b;
            }
        }
}

static void pack_group(__global uchar *block, int group, const float *x, float block_scale, float block_min,
                       int scale_code, int min_code)
{
    float q[GROUP];
    __global uchar *s = block + 4, *to = block + 16 + group / 2 * 32;
    int i = group & 3, shift = group % 2 * 4;
    if (group < 4) {
        s[i] |= (uchar)scale_code;
        s[4 + i] |= (uchar)min_code;
    } else {
        s[8 + i] = (uchar)((scale_code & 15) | (min_code & 15) << 4);
        s[i] |= (uchar)(scale_code >> 4 << 6);
        s[4 + i] |= (uchar)(min_code >> 4 << 6);
    }
    round_quants(x, inverse(block_scale * (float)scale_code), block_min * (float)min_code, q);
    for (int k = 0; k < GROUP; k++)
        to[k] |= (uchar)((int)q[k] << shift);
}

/* Packs all groups; with `searches` codes are refined by search_codes(). */
static void pack_block(const float *x, const float *weight, const scale_min *groups, bool searches,
                       __global uchar *block)
{
    scale_min largest = {0, 0};
    for (int i = 0; i < GROUPS; i++) {
        largest.scale = fmax(largest.scale, groups[i].scale);
        largest.minimum = fmax(largest.minimum, groups[i].minimum);
    }
    for (int i = 0; i < BYTES; i++)
        block[i] = 0;
    ushort scale_half = scale_bits(largest.scale / 63), min_half = scale_bits(largest.minimum / 63);
    put_f16(block, scale_half);
    put_f16(block + 2, min_half);
    float scale = f32_of(scale_half), minimum = f32_of(min_half);
    for (int i = 0; i < GROUPS; i++) {
        int scale_code = code_of(groups[i].scale * inverse(scale), 0, 63),
            min_code = code_of(groups[i].minimum * inverse(minimum), 0, 63);
        if (searches)
            search_codes(x + i * GROUP, weight + i * GROUP, scale, minimum, &scale_code, &min_code);
        pack_group(block, i, x + i * GROUP, scale, minimum, scale_code, min_code);
    }
}

static void quantize_block(const float *x, __global uchar *block)
{
    float weight[256];
    scale_min extremes[GROUPS], best[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        weigh(x + i * GROUP, GROUP, weight + i * GROUP);
        extremes[i] = scale_min_of_range(x + i * GROUP);
        best[i] = search_scale_min(x + i * GROUP, weight + i * GROUP);
    }
    pack_block(x, weight, extremes, false, block);
    double extremes_error = error_of(x, block);
    /* the search is not guaranteed to win after its scales are rounded to codes */
    pack_block(x, weight, best, true, block);
    if (!(error_of(x, block) <= extremes_error)) /* or NaN, from a scale beyond f16 */
        pack_block(x, weight, extremes, false, block);
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

/* Quants of all elements, from -32 to 31, for a scale of 1 / inverted. */
static void round_signed_quants(const float *x, float inverted, float *q)
{
    for (int i = 0; i < GROUP; i++)
        q[i] = round_quant(x[i] * inverted + 32, 63) - 32;
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

/* Weighted least squares for given quants. */
static float fit_scale(const float *x, const float *weight, const float *q)
{
    float wxq = 0, wqq = 0;
    for (int i = 0; i < GROUP; i++) {
        wxq += weight[i] * x[i] * q[i];
        wqq += weight[i] * q[i] * q[i];
    }
    return wxq * inverse(wqq);
}

/* Starts with the scale for which the largest element is q = -32, because that side has one value more. */
static float search_scale(const float *x, const float *weight)
{
    float q[GROUP], extreme = extreme_of(x) / -32, best = extreme;
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

/* Tries the neighbours of a code and keeps the one with the smallest error. */
static int search_code(const float *x, const float *weight, float scale, int from)
{
    float q[GROUP], smallest = INFINITY;
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

static void pack_group(__global uchar *block, int group, const float *x, float block_scale, int code)
{
    float q[GROUP];
    int chunk = group / 2, low_shift = chunk / 2 % 2 * 4, high_shift = chunk % 4 * 2;
    __global uchar *low = block + chunk / 4 * 64 + chunk % 2 * 32 + group % 2 * 16,
                   *high = block + 128 + chunk / 4 * 32 + group % 2 * 16;
    block[192 + group] = (uchar)(char)code;
    round_signed_quants(x, inverse(block_scale * (float)code), q);
    for (int i = 0; i < GROUP; i++) {
        int unsigned_q = (int)q[i] + 32;
        low[i] |= (uchar)((unsigned_q & 15) << low_shift);
        high[i] |= (uchar)(unsigned_q >> 4 << high_shift);
    }
}

/* Packs the groups' scales, the largest of which becomes `top`; with `searches` codes are refined by search_code(). */
static void pack_block(const float *x, const float *weight, const float *scales, int top, bool searches,
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
        pack_group(block, i, x + i * GROUP, scale, code);
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
    pack_block(x, weight, extremes, 127, false, block);
    double extremes_error = error_of(x, block);
    pack_block(x, weight, best, -128, true, block);
    if (!(error_of(x, block) <= extremes_error)) /* or NaN, from a scale beyond f16 */
        pack_block(x, weight, extremes, 127, false, block);
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
