/* vec4.cl: four adjacent elements in one load or store; the index is a multiple of four. */
#define LOAD_4(T, pointer, index) LOAD_4_(T, pointer, index)
#define LOAD_4_(T, pointer, index) load_4_##T((const __global T *)(pointer) + (index))
#define STORE_4(T, pointer, index, value) STORE_4_(T, pointer, index, value)
#define STORE_4_(T, pointer, index, value) store_4_##T((__global T *)(pointer) + (index), value)

float4 load_4_f32(const __global f32 *p)
{
    return *(const __global float4 *)p;
}
float4 load_4_bf16(const __global bf16 *p)
{
    return as_float4(convert_uint4(*(const __global ushort4 *)p) << 16);
}
#ifdef HAS_F16
float4 load_4_f16(const __global f16 *p)
{
    return convert_float4(*(const __global half4 *)p);
}
#else
float4 load_4_f16(const __global f16 *p)
{
    return vloada_half4(0, (const __global half *)p);
}
#endif

void store_4_f32(__global f32 *p, float4 x)
{
    *(__global float4 *)p = x;
}
void store_4_bf16(__global bf16 *p, float4 x)
{
    *(__global ushort4 *)p = (ushort4)(f32_to_bf16(x.x), f32_to_bf16(x.y), f32_to_bf16(x.z), f32_to_bf16(x.w));
}
#ifdef HAS_F16
void store_4_f16(__global f16 *p, float4 x)
{
    *(__global half4 *)p = convert_half4_rte(x);
}
#else
void store_4_f16(__global f16 *p, float4 x)
{
    vstorea_half4_rte(x, 0, (__global half *)p);
}
#endif
#ifdef HAS_F64
double4 load_4_f64(const __global f64 *p)
{
    return *(const __global double4 *)p;
}
void store_4_f64(__global f64 *p, double4 x)
{
    *(__global double4 *)p = x;
}
#endif
