/* fill.cu: fill with one value, and arange. */
#include "backends/cuda/common/element.cuh"

/* ---- fill -------------------------------------------------------------------------------------------------------- */

/* C: f64 for floats and bool, i64 for integers. */
template <typename C> struct fill_args {
    void *to;
    tarn_dtype dtype;
    int64_t count;
    C value;
    offset_calc<1> offsets;
};

/* One element per thread, any layout. */
template <typename C>
static __global__ void __launch_bounds__(THREADS) fill_kernel(const __grid_constant__ fill_args<C> a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[1];
    if (at >= a.count)
        return;
    locate(a.offsets, at, offset);
    store_any(a.to, a.dtype, offset[0], a.value);
}

/* 16 bytes at a time of a repeating pattern; the last few bytes one by one. */
static __global__ void __launch_bounds__(THREADS) fill_flat_kernel(uint4 *to, int64_t count, uint4 pattern, int tail)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at < count)
        to[at] = pattern;
    if (at < tail)
        ((uint8_t *)(to + count))[at] = ((const uint8_t *)&pattern)[at];
}

/* The bits of one element over 16 bytes; 16-bit floats are rounded from f32, as on the CPU. */
uint4 tarn__cuda_bits_of(tarn_dtype dtype, const tarn__scalar *value)
{
    union {
        uint4 whole;
        float f32[4];
        double f64[2];
        uint16_t half[8];
        int32_t i32[4];
        int64_t i64[2];
        uint8_t bytes[16];
    } p;
    __nv_bfloat16_raw short_bits = __nv_bfloat16_raw(__float2bfloat16_rn((float)value->real));
    __half_raw half_bits = __half_raw(__float2half_rn((float)value->real));
    for (int i = 0; i < 16; i++)
        switch (dtype) {
        case TARN_F32: p.f32[i / 4] = (float)value->real; break;
        case TARN_F64: p.f64[i / 8] = value->real; break;
        case TARN_BF16: p.half[i / 2] = short_bits.x; break;
        case TARN_F16: p.half[i / 2] = half_bits.x; break;
        case TARN_I32: p.i32[i / 4] = (int32_t)(uint32_t)(uint64_t)value->integer; break;
        case TARN_I64: p.i64[i / 8] = value->integer; break;
        case TARN_U8: p.bytes[i] = (uint8_t)value->integer; break;
        default: p.bytes[i] = value->real != 0; break;
        }
    return p.whole;
}

template <typename C> static void fill_single(const tarn__call *call, const tarn__nest *nest, C value)
{
    fill_args<C> a = {tarn__view_at(call->out[0]), call->out[0]->dtype, nest->count, value, offset_calc_of<1>(nest)};
    fill_kernel<C><<<blocks_for(nest->count, THREADS), THREADS, 0, stream_of(call)>>>(a);
}

/* Grid: 16 bytes per thread if contiguous and aligned, else an element. Bytes: the target's. */
static void kernel_fill(const tarn__call *call)
{
    const tarn__fill *fill = (const tarn__fill *)call->params;
    const tarn__view *to = call->out[0];
    tarn__nest nest;
    tarn__nest_make(&nest, 1, &to);
    if (nest.count == 0)
        return;
    void *memory = tarn__view_at(to);
    if ((nest.rank == 0 || (nest.rank == 1 && nest.stride[0][0] == 1)) && is_aligned(memory, 16)) {
        int64_t bytes = nest.count * (int64_t)tarn__dtype_bytes(to->dtype);
        fill_flat_kernel<<<blocks_for(bytes / 16, THREADS), THREADS, 0, stream_of(call)>>>(
            (uint4 *)memory, bytes / 16, tarn__cuda_bits_of(to->dtype, &fill->value), (int)(bytes % 16));
    } else if (tarn__is_float(to->dtype) || to->dtype == TARN_BOOL) {
        fill_single<double>(call, &nest, to->dtype == TARN_F64 ? fill->value.real : (double)(float)fill->value.real);
    } else {
        fill_single<int64_t>(call, &nest, fill->value.integer);
    }
}

/* ---- arange ------------------------------------------------------------------------------------------------------ */

/* One axis, any stride. */
struct arange_args {
    void *to;
    tarn_dtype dtype;
    int64_t count, stride;
    tarn__scalar value, step;
    bool is_real, is_whole; /* floats; integers with an integer step */
};

/* value + i · step, from i each time: no accumulated error. */
static __global__ void __launch_bounds__(THREADS) arange_kernel(const __grid_constant__ arange_args a)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.count)
        return;
    double x = __dadd_rn(a.value.real, __dmul_rn((double)i, a.step.real)); /* not fused: bitwise identical to the CPU */
    if (a.is_real)
        store_any(a.to, a.dtype, i * a.stride, x);
    else
        store_any(a.to, a.dtype, i * a.stride, a.is_whole ? a.value.integer + i * a.step.integer : (int64_t)x);
}

/* Grid: one element per thread. */
static void kernel_arange(const tarn__call *call)
{
    const tarn__fill *fill = (const tarn__fill *)call->params;
    const tarn__view *to = call->out[0];
    arange_args a = {tarn__view_at(to),
                     to->dtype,
                     to->shape[0],
                     to->stride[0],
                     fill->value,
                     fill->step,
                     tarn__is_float(to->dtype),
                     fill->step.real == (double)fill->step.integer};
    if (a.count > 0)
        arange_kernel<<<blocks_for(a.count, THREADS), THREADS, 0, stream_of(call)>>>(a);
}

void tarn__cuda_register_fill(tarn__kernel_row *rows)
{
    rows[TARN__K_fill] = tarn__row(kernel_fill, TARN__ALL);
    rows[TARN__K_arange] = tarn__row(kernel_arange, TARN__NUMBERS);
}
