/* random.cu: uniform, normal and dropout. Element i, counted row-major, takes word i % 4 of counter offset + i / 4,
 * whatever the layout: the same seed gives the same values on every backend. A thread generates the four values of one
 * counter, or of two if they fill 16 bytes.
 *
 * Uniform values and dropout masks are bitwise identical to the CPU's. So are normals if the CPU has fused
 * multiply-add: the same polynomials are evaluated in the same order. (f64 inside sine and cosine: 24 operations per
 * pair, less than the memory access takes on a data-centre GPU.) */
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/random/dropout.cuh"

/* ---- functions of backends/cpu/common/scalar_math.h, for the arguments that occur here --------------------------- */

/* log u for 2^-25 <= u < 1. */
__device__ __forceinline__ float log_of_unit(float u)
{
    int32_t bits = __float_as_int(u), exponent = (bits - 0x3f3504f3) >> 23;
    float e = (float)exponent, f = __fadd_rn(__int_as_float(bits - exponent * (1 << 23)), -1.0f);
    float p = -0x1.3ec9cp-4f;
    p = fmaf(p, f, 0x1.0a16ccp-3f);
    p = fmaf(p, f, -0x1.0ec458p-3f);
    p = fmaf(p, f, 0x1.2220bcp-3f);
    p = fmaf(p, f, -0x1.542b08p-3f);
    p = fmaf(p, f, 0x1.99a83ep-3f);
    p = fmaf(p, f, -0x1.00042ap-2f);
    p = fmaf(p, f, 0x1.555548p-2f);
    p = fmaf(p, f, -0x1.fffff8p-2f);
    float low = fmaf(__fmul_rn(f, f), p, __fmul_rn(e, 0x1.7f7d1cp-20f));
    return fmaf(e, 0x1.62e4p-1f, __fadd_rn(f, low));
}

/* sin(x - n pi), negated if the integer in the low bits of `rounded` is odd. */
__device__ __forceinline__ float sin_reduced(double x, double n, double rounded)
{
    double r = fma(n, -0x1.921fb5p+1, x);
    r = fma(n, -0x1.110b46p-25, r);
    r = fma(n, -0x1.1a62633145c07p-53, r);
    double z = __dmul_rn(r, r);
    double p = -0x1.9ac3082c66a6fp-26;
    p = fma(p, z, 0x1.7174ca15f866ep-19);
    p = fma(p, z, -0x1.a017fd96c331cp-13);
    p = fma(p, z, 0x1.11110cc14f569p-7);
    p = fma(p, z, -0x1.5555554958bp-3);
    r = __dmul_rn(r, fma(z, p, 1.0));
    return (float)__longlong_as_double(__double_as_longlong(r) ^
                                       (long long)((uint64_t)__double_as_longlong(rounded) << 63));
}

/* Range reduction by rounding x / π to an integer in the low bits. */
__device__ __forceinline__ float sin_of_angle(float x)
{
    double rounded = fma((double)x, 0x1.45f306dc9c883p-2, 0x1.8p52);
    return sin_reduced((double)x, __dadd_rn(rounded, -0x1.8p52), rounded);
}

/* cos x = sin(x + π/2): rounded to a half-integer multiple of π. */
__device__ __forceinline__ float cos_of_angle(float x)
{
    double rounded = __dadd_rn(fma((double)x, 0x1.45f306dc9c883p-2, 0.5), 0x1.8p52);
    return sin_reduced((double)x, __dadd_rn(__dadd_rn(rounded, -0x1.8p52), -0.5), rounded);
}

/* ---- four words to four values ----------------------------------------------------------------------------------- */

/* low + u · (high - low), below high. */
struct uniform {
    float low, span, high;

    static uniform of(const tarn__random *r)
    {
        return uniform{(float)r->a, (float)(r->b - r->a), (float)r->b};
    }
    __device__ __forceinline__ void generate(const uint32_t *word, float *value) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = fmaf(span, tarn__unit_f32(word[i]), low);
            value[i] = x < high || span <= 0 ? x : low; /* rounding up would reach the excluded end */
        }
    }
};

/* Box-Muller: two words give two normals. */
struct normal {
    float mean, std;

    static normal of(const tarn__random *r)
    {
        return normal{(float)r->a, (float)r->b};
    }
    __device__ __forceinline__ void generate(const uint32_t *word, float *value) const
    {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            float u = __fmul_rn(__fadd_rn((float)(word[i] >> 8), 0.5f), 0x1p-24f),
                  angle = __fmul_rn(tarn__unit_f32(word[i + 1]), 6.283185307179586f);
            float radius = sqrtf(__fmul_rn(-2.0f, log_of_unit(u)));
            value[i] = fmaf(std, __fmul_rn(radius, cos_of_angle(angle)), mean);
            value[i + 1] = fmaf(std, __fmul_rn(radius, sin_of_angle(angle)), mean);
        }
    }
};

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Draw: uniform, normal or dropout. */
template <typename Draw> struct draw_args {
    void *to;
    const void *from; /* dropout's operand, else NULL */
    int64_t count;
    source rng;
    Draw draw;
    offset_calc<2> offsets; /* row-major: out, operand */
};

/* Elements per thread. */
template <typename T> constexpr int neighbours = sizeof(T) == 2 ? 8 : 4;

/* Adjacent elements in one vector. Bytes: each element written, and for dropout read, once. */
template <typename Draw, typename T, bool has_operand>
static __global__ void __launch_bounds__(THREADS) packed_kernel(const __grid_constant__ draw_args<Draw> a)
{
    constexpr int N = neighbours<T>;
    int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (first >= a.count)
        return;
    /* the last vector may be partial */
    bool is_full = first + N <= a.count;
    const T *from = (const T *)a.from + first;
    T *to = (T *)a.to + first;
    vec<T, N> x;
    if (has_operand && is_full) {
        x = *(const vec<T, N> *)from;
    } else if (has_operand) {
#pragma unroll
        for (int i = 0; i < N; i++)
            x.at[i] = first + i < a.count ? from[i] : narrow<T>(0.0f);
    }
    const source rng = resolved(a.rng);
    if constexpr (has_operand) {
        drop_vec(a.draw, rng, (uint64_t)first, x);
    } else {
        float value[N];
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            uint32_t word[4];
            /* one counter per four elements */
            philox(rng, (uint64_t)(first + i) / 4, word);
            a.draw.generate(word, value + i);
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            x.at[i] = narrow<T>(value[i]);
    }
    if (is_full) {
        *(vec<T, N> *)to = x;
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (first + i < a.count)
            to[i] = x.at[i];
}

/* Any layout: four elements of one counter per thread. */
template <typename Draw, typename T, bool has_operand>
static __global__ void __launch_bounds__(THREADS) strided_kernel(const __grid_constant__ draw_args<Draw> a)
{
    int64_t counter = (int64_t)blockIdx.x * THREADS + threadIdx.x, first = counter * 4, offset[2];
    if (first >= a.count)
        return;
    uint32_t word[4];
    float value[4];
    philox(a.rng, (uint64_t)counter, word);
    a.draw.generate(word, value);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (first + i >= a.count)
            break;
        locate(a.offsets, first + i, offset);
        ((T *)a.to)[offset[0]] = has_operand ? drop<T>(((const T *)a.from)[offset[1]], value[i]) : narrow<T>(value[i]);
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Axes in their own order: elements are counted row-major, so the nest must not be collapsed or reordered. */
static offset_calc<2> row_major(const tarn__view *to, const tarn__view *from)
{
    tarn__nest nest = {};
    nest.rank = to->rank;
    nest.count = tarn__view_count(to);
    for (int i = 0; i < to->rank; i++) {
        nest.shape[i] = to->shape[i];
        nest.stride[0][i] = to->stride[i];
        nest.stride[1][i] = from ? from->stride[i] : 0;
    }
    return offset_calc_of<2>(&nest);
}

/* Grid: a thread per vector, or per four elements. Contiguous and aligned operands take the vector kernel; both kernels
 * draw the same values. */
template <typename Draw, bool has_operand>
static void draw(const tarn__call *call, const tarn__random *random, const tarn__view *from, const tarn__view *to)
{
    draw_args<Draw> a = {};
    a.to = tarn__view_at(to);
    a.from = data_of<void>(from);
    a.count = tarn__view_count(to);
    a.rng = source{random->seed, random->offset, random->live};
    a.draw = Draw::of(random);
    if (a.count == 0)
        return;
    size_t size = tarn__dtype_bytes(to->dtype), bytes = size == 2 ? 16 : 4 * size;
    bool is_vectorized = tarn__view_is_contiguous(to) && is_aligned(a.to, bytes) &&
                         (!from || (tarn__view_is_contiguous(from) && is_aligned(a.from, bytes)));
    if (is_vectorized) {
        FOR_FLOAT(
            to->dtype, packed_kernel<Draw, T, has_operand>
            <<<blocks_for((a.count + neighbours<T> - 1) / neighbours<T>, THREADS), THREADS, 0, stream_of(call)>>>(a))
    } else {
        a.offsets = row_major(to, from);
        FOR_FLOAT(to->dtype, strided_kernel<Draw, T, has_operand>
                  <<<blocks_for((a.count + 3) / 4, THREADS), THREADS, 0, stream_of(call)>>>(a))
    }
}

void tarn__cuda_dropout(const tarn__call *call, const tarn__random *random, const tarn__view *from,
                        const tarn__view *to)
{
    draw<dropout, true>(call, random, from, to);
}

template <typename Draw, bool has_operand> static void run(const tarn__call *call)
{
    draw<Draw, has_operand>(call, (const tarn__random *)call->params, has_operand ? call->in[0] : NULL, call->out[0]);
}

/* dropout saves no mask: backward draws the same numbers again. */
void tarn__cuda_register_random(tarn__kernel_row *rows)
{
    rows[TARN__K_uniform] = tarn__row(run<uniform, false>, TARN__FLOATS);
    rows[TARN__K_normal] = tarn__row(run<normal, false>, TARN__FLOATS);
    rows[TARN__K_dropout] = tarn__row(run<dropout, true>, TARN__FLOATS);
}
