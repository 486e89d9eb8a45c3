/* kv_q8.cl: rows of numbers in 8 bits, with a scale for each group of a row, and back. A group is what a block of Q8_0
 * is, bit for bit, but for a group that is not finite. */

#define OPERAND(name) __global void *name, long name##_at
#define GROUP 32
#define ZERO 128

typedef struct shape {
    long heads, tokens, depth, groups, count; /* count: work-items */
    long x[4], codes[4], scales[4];
} shape;

static long row_of(const shape *s, const long *stride, long row)
{
    const long t = row % s->tokens, head = row / s->tokens % s->heads, batch = row / s->tokens / s->heads;
    return batch * stride[0] + head * stride[1] + t * stride[2];
}

/* x / 127, rounded once, also where the device's own quotients are not: what is left of x corrects a product. */
static float over_127(float x)
{
    const float part = 0x1.020408p-7f, near = x * part;
    return fma(fma(-127.0f, near, x), part, near);
}

/* 1 / x in the same way; 0 where there is none. */
static float inverse_of(float x)
{
    float y = x != 0 ? 1 / x : 0;
    y = fma(fma(-x, y, 1.0f), y, y);
    y = fma(fma(-x, y, 1.0f), y, y);
    return isfinite(y) ? y : 0;
}

/* One group for each work-item. The largest is found among the bits of magnitudes, where NaN is the largest of all. */
__kernel void encode(shape s, OPERAND(x), OPERAND(codes), OPERAND(scales))
{
    const long row = get_global_id(0) / s.groups, group = get_global_id(0) % s.groups;
    if (get_global_id(0) >= s.count)
        return;
    const long from = x_at + row_of(&s, s.x, row) + group * GROUP * s.x[3],
               to = codes_at + row_of(&s, s.codes, row) + group * GROUP * s.codes[3];
    const int n = (int)min(s.depth - group * GROUP, (long)GROUP);
    uint most = 0;
    for (int i = 0; i < n; i++)
        most = max(most, as_uint((float)LOAD(T_X, x, from + i * s.x[3])) & 0x7fffffffu);
    const float scale = over_127(as_float(most)), inverse = inverse_of(scale);
    const bool is_finite = isfinite(scale);
    for (int i = 0; i < n; i++) {
        const float value = (float)LOAD(T_X, x, from + i * s.x[3]);
        STORE(u8, codes, to + i * s.codes[3], is_finite ? ZERO + (int)round(value * inverse) : ZERO);
    }
    STORE(f16, scales, scales_at + row_of(&s, s.scales, row) + group * s.scales[3], scale);
}

/* One element for each work-item. */
__kernel void decode(shape s, OPERAND(x), OPERAND(codes), OPERAND(scales))
{
    const long row = get_global_id(0) / s.depth, d = get_global_id(0) % s.depth;
    if (get_global_id(0) >= s.count)
        return;
    const float scale = LOAD(f16, scales, scales_at + row_of(&s, s.scales, row) + d / GROUP * s.scales[3]);
    const float q = (float)(LOAD(u8, codes, codes_at + row_of(&s, s.codes, row) + d * s.codes[3]) - ZERO);
    STORE(T_X, x, x_at + row_of(&s, s.x, row) + d * s.x[3], q * scale);
}
