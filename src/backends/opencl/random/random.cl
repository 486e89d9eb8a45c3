/* random.cl: random elements: element i, counted row-major, takes word i % 4 of counter offset + i / 4, whatever the
 * layout. A work-item has the four elements of a counter.
 *
 * DRAWS_uniform, DRAWS_normal or DRAWS_dropout selects their use, T is the dtype. Uniform and dropout are bitwise
 * identical with the CPU, and with f64 so is normal: the polynomials of backends/cpu/common/scalar_math.h in the same
 * order. */
#include "backends/opencl/common/element.cl"
#include "base/philox.h"

#pragma OPENCL FP_CONTRACT OFF

#ifdef DRAWS_normal
#ifdef HAS_F64
/* log u for 2^-25 <= u < 1. */
static float log_of_unit(float u)
{
    int bits = as_int(u), exponent = (bits - 0x3f3504f3) >> 23;
    float e = (float)exponent, f = as_float(bits - exponent * (1 << 23)) - 1.0f, p = -0x1.3ec9cp-4f;
    p = fma(p, f, 0x1.0a16ccp-3f);
    p = fma(p, f, -0x1.0ec458p-3f);
    p = fma(p, f, 0x1.2220bcp-3f);
    p = fma(p, f, -0x1.542b08p-3f);
    p = fma(p, f, 0x1.99a83ep-3f);
    p = fma(p, f, -0x1.00042ap-2f);
    p = fma(p, f, 0x1.555548p-2f);
    p = fma(p, f, -0x1.fffff8p-2f);
    float low = fma(f * f, p, e * 0x1.7f7d1cp-20f);
    return fma(e, 0x1.62e4p-1f, f + low);
}

/* sin(x - n π), negated when the integer in the low bits of `rounded` is odd. */
static float sin_reduced(double x, double n, double rounded)
{
    double r = fma(n, -0x1.921fb5p+1, x);
    r = fma(n, -0x1.110b46p-25, r);
    r = fma(n, -0x1.1a62633145c07p-53, r);
    double z = r * r, p = -0x1.9ac3082c66a6fp-26;
    p = fma(p, z, 0x1.7174ca15f866ep-19);
    p = fma(p, z, -0x1.a017fd96c331cp-13);
    p = fma(p, z, 0x1.11110cc14f569p-7);
    p = fma(p, z, -0x1.5555554958bp-3);
    r = r * fma(z, p, 1.0);
    return (float)as_double(as_ulong(r) ^ (as_ulong(rounded) << 63));
}

/* By f64 range reduction to [-π/2, π/2]. */
static float sin_of_angle(float x)
{
    double rounded = fma((double)x, 0x1.45f306dc9c883p-2, 0x1.8p52);
    return sin_reduced((double)x, rounded - 0x1.8p52, rounded);
}

static float cos_of_angle(float x)
{
    double rounded = fma((double)x, 0x1.45f306dc9c883p-2, 0.5) + 0x1.8p52;
    return sin_reduced((double)x, (rounded - 0x1.8p52) - 0.5, rounded);
}
#else
#define log_of_unit log
#define sin_of_angle sin
#define cos_of_angle cos
#endif

/* Box-Muller: a pair of words gives a pair of normals. */
static float2 normals(uint first, uint second, float mean, float std)
{
    float u = ((float)(first >> 8) + 0.5f) * 0x1p-24f, angle = tarn__unit_f32(second) * 6.283185307179586f;
    float radius = sqrt(-2.0f * log_of_unit(u));
    return (float2)(fma(std, radius * cos_of_angle(angle), mean), fma(std, radius * sin_of_angle(angle), mean));
}
#endif

/* a, b, c: low, range and high of uniform; mean and std of normal; the scale of elements that dropout keeps. `limit`:
 * dropout zeroes where the upper 24 bits of a word are below it. */
__kernel void draw(__global void *y, long y_first, __global const void *x, long x_first, ulong seed, ulong offset,
                   float a, float b, float c, uint limit, INDEX count, indexer shape)
{
    INDEX counter = (INDEX)get_global_id(0), at[2];
    if (counter >= (count + 3) / 4)
        return;
    uint word[4];
    tarn__philox(seed, offset + (ulong)counter, word);
#ifdef DRAWS_normal
    float2 low = normals(word[0], word[1], a, b), high = normals(word[2], word[3], a, b);
    float normal[4] = {low.x, low.y, high.x, high.y};
#endif
    /* the last counter may have fewer elements */
    for (int i = 0; i < 4 && counter * 4 + i < count; i++) {
        locate(&shape, counter * 4 + i, 2, at);
#if defined(DRAWS_normal)
        C value = (C)normal[i];
#elif defined(DRAWS_uniform)
        float drawn_f32 = fma(b, tarn__unit_f32(word[i]), a);
        C value = (C)(drawn_f32 < c || b <= 0 ? drawn_f32 : a); /* rounding up would reach the excluded end */
#else
        C value = word[i] >> 8 < limit || a == 0 ? (C)0 : GET(T, x, x_first + at[1]) * (C)a;
#endif
        PUT(T, y, y_first + at[0], value);
    }
}
