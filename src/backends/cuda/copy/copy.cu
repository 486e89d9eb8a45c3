/* copy.cu: copies with any strides and dtypes.
 *
 * Copies within one dtype move bits, by the first of these that fits the collapsed nest (operand 0 the target, 1 the
 * source):
 *       flat        both are contiguous: the driver's copy
 *       units       rows that are contiguous on both sides with the same alignment: units of 16 or 8 bytes
 *       transposed  the sides are contiguous along different axes: tiles through shared memory (transpose.cu)
 *       window      anything else: differently aligned, repeated or strided rows (window.cu)
 *       single      what is too large for that
 *
 * Bytes: 2 · bytes per element. Copies that convert are vectorized if both sides are flat floats, else one by one. */
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/copy/copy.cuh"

/* Unsigned type of BYTES bytes. */
template <int BYTES> struct bits_of;
template <> struct bits_of<1> {
    typedef uint8_t type;
};
template <> struct bits_of<2> {
    typedef uint16_t type;
};
template <> struct bits_of<4> {
    typedef uint32_t type;
};
template <> struct bits_of<8> {
    typedef uint64_t type;
};
template <> struct bits_of<16> {
    typedef uint4 type;
};
template <int BYTES> using bits = typename bits_of<BYTES>::type;

/* ---- units ------------------------------------------------------------------------------------------------------- */

#define UNITS 4 /* per thread: all loaded before the first is stored */

/* Sizes and strides in units. */
struct copy_args {
    void *to;
    const void *from;
    int64_t count;
    offset_calc<2> offsets;
};

/* Grid-wide stride of 256 units: each of a thread's UNITS accesses is coalesced. */
template <typename B>
static __global__ void __launch_bounds__(THREADS) units_kernel(const __grid_constant__ copy_args a)
{
    int64_t first = (int64_t)blockIdx.x * (THREADS * UNITS) + threadIdx.x, to[UNITS];
    B x[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        int64_t at = first + u * THREADS, offset[2];
        if (at < a.count) {
            locate(a.offsets, at, offset);
            to[u] = offset[0];
            x[u] = ((const B *)a.from)[offset[1]];
        }
    }
#pragma unroll
    for (int u = 0; u < UNITS; u++)
        if (first + u * THREADS < a.count)
            ((B *)a.to)[to[u]] = x[u];
}

/* The widest unit, in bytes, that the rows of both sides allow. */
static int widest_unit(const tarn__nest *nest, const void *to, const void *from, int size)
{
    int last = nest->rank - 1;
    int unit = 16;
    for (; unit > size; unit /= 2) {
        bool fits =
            nest->shape[last] * size % unit == 0 && is_aligned(to, (size_t)unit) && is_aligned(from, (size_t)unit);
        for (int i = 0; fits && i < last; i++)
            fits = nest->stride[0][i] * size % unit == 0 && nest->stride[1][i] * size % unit == 0;
        if (fits)
            break;
    }
    return unit;
}

/* Sizes and strides in units. */
static void count_in_units(tarn__nest *nest, int per_unit)
{
    int last = nest->rank - 1;
    for (int i = 0; i < last; i++) {
        nest->stride[0][i] /= per_unit;
        nest->stride[1][i] /= per_unit;
    }
    nest->shape[last] /= per_unit;
    nest->count /= per_unit;
}

/* Grid: UNITS units per thread, 256 threads per block. */
static void launch_units(const tarn__call *call, const tarn__nest *nest, int unit)
{
    copy_args a = {tarn__view_at(call->out[0]), tarn__view_at(call->in[0]), nest->count, offset_calc_of<2>(nest)};
    unsigned blocks = blocks_for(nest->count, THREADS * UNITS);
    switch (unit) {
    case 16: units_kernel<bits<16>><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    case 8: units_kernel<bits<8>><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    case 4: units_kernel<bits<4>><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    case 2: units_kernel<bits<2>><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    default: units_kernel<bits<1>><<<blocks, THREADS, 0, stream_of(call)>>>(a); break;
    }
}

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* A copy is a window that is the whole target. */
static bool copy_window(const tarn__call *call, const tarn__nest *nest, int unit)
{
    tarn__pad_axis axis[TARN_MAX_RANK] = {{1, 0, 1, 1, 1, 1}};
    for (int i = 0; i < nest->rank; i++)
        axis[i] = tarn__pad_axis{nest->shape[i], 0, nest->shape[i], 1, nest->stride[0][i], nest->stride[1][i]};
    return tarn__cuda_window(call, axis, nest->rank > 0 ? nest->rank : 1, unit, make_uint4(0, 0, 0, 0));
}

/* Selects by layout, in the order of the list above. */
static void copy_bits(const tarn__call *call, const tarn__nest *nest, int size)
{
    void *to = tarn__view_at(call->out[0]);
    const void *from = tarn__view_at(call->in[0]);
    if (tarn__nest_is_contiguous(nest, 0) && tarn__nest_is_contiguous(nest, 1)) {
        cudaMemcpyAsync(to, from, (size_t)(nest->count * size), cudaMemcpyDeviceToDevice, stream_of(call));
        return;
    }
    int last = nest->rank - 1;
    if (nest->stride[0][last] == 1 && nest->stride[1][last] == 1) {
        int unit = widest_unit(nest, to, from, size);
        tarn__nest units = *nest;
        count_in_units(&units, unit / size);
        if (unit >= 8 || !copy_window(call, &units, unit))
            launch_units(call, &units, unit);
    } else if (!tarn__cuda_transpose(call, nest, size) && !copy_window(call, nest, size)) {
        launch_units(call, nest, size);
    }
}

/* ---- conversions ------------------------------------------------------------------------------------------------- */

/* Operand 0 is the target, 1 the source. */
template <typename C> struct convert_args {
    void *to;
    const void *from;
    tarn_dtype to_dtype, from_dtype;
    int64_t count;
    offset_calc<2> offsets;
};

/* One element per thread, any layout; C is the source's compute type. */
template <typename C>
static __global__ void __launch_bounds__(THREADS) convert_kernel(const __grid_constant__ convert_args<C> a)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, offset[2];
    if (at >= a.count)
        return;
    locate(a.offsets, at, offset);
    store_any(a.to, a.to_dtype, offset[0], load_any<C>(a.from, a.from_dtype, offset[1]));
}

/* Eight elements per thread: 16 bytes on the 16-bit side. */
template <typename T, typename O>
static __global__ void __launch_bounds__(THREADS) convert_vector_kernel(const T *from, O *to, int64_t count)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
    if (at + 8 <= count) {
        constexpr int N = vec_size<T>::value < 8 ? vec_size<T>::value : 8,
                      M = vec_size<O>::value < 8 ? vec_size<O>::value : 8;
        vec<T, N> x[8 / N];
        vec<O, M> y[8 / M];
#pragma unroll
        for (int i = 0; i < 8 / N; i++)
            x[i] = ((const vec<T, N> *)(from + at))[i];
#pragma unroll
        for (int i = 0; i < 8; i++)
            y[i / M].at[i % M] = narrow<O>(widen(x[i / N].at[i % N]));
#pragma unroll
        for (int i = 0; i < 8 / M; i++)
            ((vec<O, M> *)(to + at))[i] = y[i];
    } else {
        for (; at < count; at++)
            to[at] = narrow<O>(widen(from[at]));
    }
}

#define WIDEN_VECS 4 /* vectors per thread */

/* 16-bit floats to f32, four elements at a time: adjacent threads fill whole sectors of the target. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) widen_kernel(const T *from, float *to, int64_t count)
{
    const int64_t first = (int64_t)blockIdx.x * (THREADS * WIDEN_VECS) + threadIdx.x, vecs = count / 4;
    vec<T, 4> x[WIDEN_VECS];
#pragma unroll
    for (int u = 0; u < WIDEN_VECS; u++)
        if (first + u * THREADS < vecs)
            x[u] = ((const vec<T, 4> *)from)[first + u * THREADS];
#pragma unroll
    for (int u = 0; u < WIDEN_VECS; u++)
        if (first + u * THREADS < vecs) {
            vec<float, 4> y;
            widen_vec(x[u], y.at);
            ((vec<float, 4> *)to)[first + u * THREADS] = y;
        }
    if (first < count - vecs * 4)
        to[vecs * 4 + first] = widen(from[vecs * 4 + first]);
}

/* False if a side is not aligned. */
template <typename T> static bool convert_widened(const tarn__call *call, int64_t count)
{
    const T *from = (const T *)tarn__view_at(call->in[0]);
    float *to = (float *)tarn__view_at(call->out[0]);
    if (!is_aligned(from, 8) || !is_aligned(to, 16))
        return false;
    widen_kernel<T><<<blocks_for(count, THREADS * WIDEN_VECS * 4), THREADS, 0, stream_of(call)>>>(from, to, count);
    return true;
}

template <typename T, typename O> static bool convert_vectorized(const tarn__call *call, int64_t count)
{
    const T *from = (const T *)tarn__view_at(call->in[0]);
    O *to = (O *)tarn__view_at(call->out[0]);
    if (!is_aligned(from, 16) || !is_aligned(to, 16))
        return false;
    convert_vector_kernel<T, O><<<blocks_for(count, THREADS * 8), THREADS, 0, stream_of(call)>>>(from, to, count);
    return true;
}

/* f32 to and from 16 bits; other pairs go one by one. */
static bool convert_flat(const tarn__call *call, int64_t count)
{
    tarn_dtype from = call->in[0]->dtype, to = call->out[0]->dtype;
    if (from == TARN_F32 && to == TARN_BF16)
        return convert_vectorized<float, bf16>(call, count);
    if (from == TARN_BF16 && to == TARN_F32)
        return convert_widened<bf16>(call, count);
    if (from == TARN_F32 && to == TARN_F16)
        return convert_vectorized<float, f16>(call, count);
    return from == TARN_F16 && to == TARN_F32 && convert_widened<f16>(call, count);
}

/* Grid: one element per thread. */
template <typename C> static void convert_general(const tarn__call *call, const tarn__nest *nest)
{
    convert_args<C> a = {
        tarn__view_at(call->out[0]), tarn__view_at(call->in[0]), call->out[0]->dtype, call->in[0]->dtype, nest->count,
        offset_calc_of<2>(nest)};
    convert_kernel<C><<<blocks_for(nest->count, THREADS), THREADS, 0, stream_of(call)>>>(a);
}

/* The one entry: also used by matmul, convolutions and transfers of views. */
static void kernel_copy(const tarn__call *call)
{
    const tarn__view *views[] = {call->out[0], call->in[0]};
    tarn_dtype from = call->in[0]->dtype;
    tarn__nest nest;
    tarn__nest_make(&nest, 2, views);
    if (nest.count == 0)
        return;
    if (from == call->out[0]->dtype)
        copy_bits(call, &nest, (int)tarn__dtype_bytes(from));
    else if (tarn__nest_is_contiguous(&nest, 0) && tarn__nest_is_contiguous(&nest, 1) && convert_flat(call, nest.count))
        return;
    else if (from == TARN_F64)
        convert_general<double>(call, &nest);
    else if (tarn__is_float(from))
        convert_general<float>(call, &nest);
    else
        convert_general<int64_t>(call, &nest);
}

void tarn__cuda_register_copy(tarn__kernel_row *rows)
{
    rows[TARN__K_copy] = tarn__row(kernel_copy, TARN__ALL);
}
