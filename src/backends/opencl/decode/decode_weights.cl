/* decode_weights.cl: the weight formats of decode_gemv.cl: how a work-item loads a unit and converts it to vectors of
 * four floats.
 *
 * A unit is UNIT elements whose bytes are adjacent. LOAD_RAW(from, unit) is a unit as loaded, VECTOR_OF(bits, v) its
 * vector v; in formats with PARTS this must still be multiplied by the scale of its part. Elements e to e + 3 of a row
 * are vector PLACE(e) of unit UNIT_OF(e). */

#if defined(IS_f32)
#define UNIT 4
typedef float4 raw;
#define LOAD_RAW(from, unit) (((const __global float4 *)(from))[unit])
#define VECTOR_OF(bits, v) (bits)
#elif defined(IS_bf16)
#define UNIT 8
typedef uint4 raw;
#define LOAD_RAW(from, unit) (((const __global uint4 *)(from))[unit])
#define VECTOR_OF(bits, v) ((v) == 0 ? two_bf16((bits).x, (bits).y) : two_bf16((bits).z, (bits).w))
float4 two_bf16(uint a, uint b)
{
    return as_float4((uint4)(a << 16, a & 0xffff0000u, b << 16, b & 0xffff0000u));
}
#elif defined(IS_f16)
#define UNIT 8
typedef uint4 raw;
#define LOAD_RAW(from, unit) (((const __global uint4 *)(from))[unit])
#define VECTOR_OF(bits, v) ((v) == 0 ? two_f16((bits).x, (bits).y) : two_f16((bits).z, (bits).w))
float4 two_f16(uint a, uint b)
{
    uint2 words = (uint2)(a, b);
    return vload_half4(0, (const half *)&words);
}
#elif defined(IS_q4_k)
/* Sixteen bytes: low nibbles belong to one group, high nibbles to the next. */
#define UNIT 32
#define PARTS 2
#define HAS_MIN
typedef struct raw {
    uint4 q, head;
} raw;
#define LOAD_RAW(from, unit) \
    ((raw){((const __global uint4 *)(from))[(unit) / 8 * 9 + 1 + (unit) % 8], \
           ((const __global uint4 *)(from))[(unit) / 8 * 9]})
#define WORD_OF(bits, v) \
    ((v) % 4 == 0 ? (bits).q.x : (v) % 4 == 1 ? (bits).q.y : (v) % 4 == 2 ? (bits).q.z : (bits).q.w)
#define VECTOR_OF(bits, v) convert_float4(as_uchar4((WORD_OF(bits, v) >> ((v) / 4 * 4)) & 0x0f0f0f0fu))
#define PLACE(e) ((e) % 64 / 32 * 4 + (e) % 16 / 4)
#define UNIT_OF(e) ((e) / 64 * 2 + (e) % 32 / 16)
float half_of(uint bits)
{
    ushort low = (ushort)bits;
    return vload_half(0, (const half *)&low);
}
float2 scale_and_min(const raw *w, int unit, int part)
{
    const int group = unit % 8 / 2 * 2 + part, by = group % 4 * 8;
    const uint scale = group < 4 ? w->head.y >> by & 63 : (w->head.w >> by & 15) | (w->head.y >> (by + 6) & 3) << 4,
               min = group < 4 ? w->head.z >> by & 63 : (w->head.w >> (by + 4) & 15) | (w->head.z >> (by + 6) & 3) << 4;
    return (float2)(half_of(w->head.x) * (float)scale, half_of(w->head.x >> 16) * (float)min);
}
#elif defined(IS_q8_0)
/* Blocks begin at even bytes: nine words have one. */
#define UNIT 32
#define PARTS 1
typedef struct raw {
    uint q[8];
    float scale;
} raw;
#define VECTOR_OF(bits, v) convert_float4(as_char4((bits).q[v]))
#ifdef STAGED
#define SPACE __local
#else
#define SPACE __global
#endif
raw load_q8_0(const SPACE uint *from, int unit)
{
    const SPACE uint *at = from + unit * 34 / 4;
    const bool is_odd = unit & 1;
    uint words[9];
    raw w;
    EACH(i, 9) words[i] = at[i];
    EACH(i, 8) w.q[i] = is_odd ? words[i + 1] : words[i] >> 16 | words[i + 1] << 16;
    const ushort bits = (ushort)(is_odd ? words[0] >> 16 : words[0]);
    w.scale = vload_half(0, (const half *)&bits);
    return w;
}
#define LOAD_RAW(from, unit) load_q8_0((const SPACE uint *)(from), unit)
float2 scale_and_min(const raw *w, int unit, int part)
{
    return (float2)(w->scale, 0);
}
#define BLOCK_ELEMENTS 32
#define BLOCK_BYTES 34
#endif
