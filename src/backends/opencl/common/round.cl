/* round.cl: a float rounded to the precision of a dtype: ROUND(T, x). */
float round_f32(float x)
{
    return x;
}
float round_bf16(float x)
{
    return bf16_to_f32(f32_to_bf16(x));
}
float round_f16(float x)
{
#ifdef HAS_F16
    return convert_float(convert_half_rte(x));
#else
    ushort bits;
    vstore_half_rte(x, 0, (half *)&bits);
    return vload_half(0, (const half *)&bits);
#endif
}
#define ROUND(T, x) JOIN(round_, T)(x)
