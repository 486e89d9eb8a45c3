/* kv_q8.cl: rows of the KV cache in 8 bits with one f16 scale per group of 32 elements, quantized and dequantized.
 *
 * A group equals a Q8_0 block bit for bit, except that elements are offset by 128 to fit u8, and that a group with an
 * infinity or NaN keeps a non-finite scale and zeros. */

#define OPERAND(name) __global void *name, long name##_at
#define GROUP 32
#define ZERO 128

/* kv_shape of kv_q8.c, passed by value. */
typedef struct shape {
    long heads, tokens, depth, groups, count; /* count: work-items */
    long x[4], q8[4], scales[4];
} shape;

/* Offset of a row, numbered over (batch, head, token). */
static long row_of(const shape *s, const long *stride, long row)
{
    const long t = row % s->tokens, head = row / s->tokens % s->heads, batch = row / s->tokens / s->heads;
    return batch * stride[0] + head * stride[1] + t * stride[2];
}

/* x / 127, correctly rounded even where the device's division is not: the remainder corrects an estimate. */
static float div_127(float x)
{
    const float part = 0x1.020408p-7f, estimate = x * part;
    return fma(fma(-127.0f, estimate, x), part, estimate);
}

/* 1 / x by Newton steps, the same on every device; 0 where it is not finite. */
static float inverse_of(float x)
{
    float y = x != 0 ? 1 / x : 0;
    y = fma(fma(-x, y, 1.0f), y, y);
    y = fma(fma(-x, y, 1.0f), y, y);
    return isfinite(y) ? y : 0;
}

/* One group per work-item. The maximum is taken over the bits of magnitudes, among which NaN is the largest. */
__kernel void quantize(shape s, OPERAND(x), OPERAND(q8), OPERAND(scales))
{
    const long row = get_global_id(0) / s.groups, group = get_global_id(0) % s.groups;
    if (get_global_id(0) >= s.count)
        return;
    const long from = x_at + row_of(&s, s.x, row) + group * GROUP * s.x[3],
               to = q8_at + row_of(&s, s.q8, row) + group * GROUP * s.q8[3];
    const int n = (int)min(s.depth - group * GROUP, (long)GROUP);
    uint max_bits = 0;
    for (int i = 0; i < n; i++)
        max_bits = max(max_bits, as_uint((float)LOAD(T_X, x, from + i * s.x[3])) & 0x7fffffffu);
    const float scale = div_127(as_float(max_bits)), inverse = inverse_of(scale);
    const bool is_finite = isfinite(scale);
    for (int i = 0; i < n; i++) {
        const float value = (float)LOAD(T_X, x, from + i * s.x[3]);
        STORE(u8, q8, to + i * s.q8[3], is_finite ? ZERO + (int)round(value * inverse) : ZERO);
    }
    STORE(f16, scales, scales_at + row_of(&s, s.scales, row) + group * s.scales[3], scale);
}

/* One element per work-item. */
__kernel void dequantize(shape s, OPERAND(x), OPERAND(q8), OPERAND(scales))
{
    const long row = get_global_id(0) / s.depth, d = get_global_id(0) % s.depth;
    if (get_global_id(0) >= s.count)
        return;
    const float scale = LOAD(f16, scales, scales_at + row_of(&s, s.scales, row) + d / GROUP * s.scales[3]);
    const float q = (float)(LOAD(u8, q8, q8_at + row_of(&s, s.q8, row) + d * s.q8[3]) - ZERO);
    STORE(T_X, x, x_at + row_of(&s, s.x, row) + d * s.x[3], q * scale);
}
