/* kernel.cuh: what kernels share: element types, packs of 16 bytes, indexing, faults, sums over a warp and a block, and
 * starting a kernel.
 *
 * Sums are made in an order fixed by shape alone, never with atomics on floats, so that a result has the same bits in
 * every run. */
#ifndef TARN__KERNEL_CUH
#define TARN__KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "backends/cuda/runtime/cuda.h"

typedef __nv_bfloat16 bf16;
typedef __half f16;

/* ---- element types ----------------------------------------------------------------------------------------------- */

/* What elements of type T are computed in: f32 for f32, bf16 and f16; f64 for f64; i64 for integers and bool. */
template <typename T> struct wide_of {
    typedef int64_t type;
};
template <> struct wide_of<float> {
    typedef float type;
};
template <> struct wide_of<double> {
    typedef double type;
};
template <> struct wide_of<bf16> {
    typedef float type;
};
template <> struct wide_of<f16> {
    typedef float type;
};
template <typename T> using wide = typename wide_of<T>::type;

template <typename T> __device__ __forceinline__ wide<T> widen(T x)
{
    return (wide<T>)x;
}
template <> __device__ __forceinline__ float widen<bf16>(bf16 x)
{
    return __bfloat162float(x);
}
template <> __device__ __forceinline__ float widen<f16>(f16 x)
{
    return __half2float(x);
}

/* From what is computed in to an element, rounded to nearest. */
template <typename T, typename C> __device__ __forceinline__ T narrow(C x)
{
    return (T)x;
}
template <> __device__ __forceinline__ bf16 narrow<bf16, float>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ f16 narrow<f16, float>(float x)
{
    return __float2half_rn(x);
}
template <> __device__ __forceinline__ bf16 narrow<bf16, double>(double x)
{
    return __double2bfloat16(x);
}
template <> __device__ __forceinline__ f16 narrow<f16, double>(double x)
{
    return __double2half(x);
}
template <> __device__ __forceinline__ bool narrow<bool, int64_t>(int64_t x)
{
    return x != 0;
}

/* Runs `...` with T as the element type of a dtype of the group; the table's dtype masks keep others away. */
#define FOR_FLOAT(dtype, ...) \
    switch (dtype) { \
    case TARN_F32: { \
        typedef float T; \
        __VA_ARGS__; \
    } break; \
    case TARN_F64: { \
        typedef double T; \
        __VA_ARGS__; \
    } break; \
    case TARN_BF16: { \
        typedef bf16 T; \
        __VA_ARGS__; \
    } break; \
    case TARN_F16: { \
        typedef f16 T; \
        __VA_ARGS__; \
    } break; \
    default: break; \
    }

/* An index element of either index dtype. */
__device__ __forceinline__ int64_t index_at(const void *indices, int is_long, int64_t at)
{
    return is_long ? ((const int64_t *)indices)[at] : (int64_t)((const int32_t *)indices)[at];
}

/* ---- packs ------------------------------------------------------------------------------------------------------- */

/* N neighbours, moved in one instruction when they make 2, 4, 8 or 16 bytes and lie aligned. */
template <typename T, int N> struct alignas(sizeof(T) * N) pack {
    T at[N];
};

/* How many elements make 16 bytes. */
template <typename T> struct pack_size {
    static constexpr int value = 16 / (int)sizeof(T);
};

/* All of a pack's elements as numbers to compute with, and back. 16-bit floats go in pairs: one instruction to widen
 * each, one to narrow two. */
template <typename T, int N> __device__ __forceinline__ void widen_pack(const pack<T, N> &x, wide<T> *y)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        y[i] = widen(x.at[i]);
}
template <int N> __device__ __forceinline__ void widen_pack(const pack<bf16, N> &x, float *y)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        uint32_t two = ((const uint32_t *)&x)[i];
        y[2 * i] = __uint_as_float(two << 16);
        y[2 * i + 1] = __uint_as_float(two & 0xffff0000u);
    }
}
template <int N> __device__ __forceinline__ void widen_pack(const pack<f16, N> &x, float *y)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        float2 two = __half22float2(((const __half2 *)&x)[i]);
        y[2 * i] = two.x;
        y[2 * i + 1] = two.y;
    }
}

template <typename T, int N, typename C> __device__ __forceinline__ void narrow_pack(const C *y, pack<T, N> &x)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x.at[i] = narrow<T>(y[i]);
}
template <int N> __device__ __forceinline__ void narrow_pack(const float *y, pack<bf16, N> &x)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        ((__nv_bfloat162 *)&x)[i] = __floats2bfloat162_rn(y[2 * i], y[2 * i + 1]);
}
template <int N> __device__ __forceinline__ void narrow_pack(const float *y, pack<f16, N> &x)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        ((__half2 *)&x)[i] = __floats2half2_rn(y[2 * i], y[2 * i + 1]);
}

/* Stores a pack. Said outright where it has 16 bytes: nvcc may cut the assignment of a pack into as many stores as it
 * has words. */
template <typename T, int N> __device__ __forceinline__ void store_pack(T *to, const pack<T, N> &x)
{
    if constexpr (sizeof(x) == sizeof(uint4)) {
        uint4 words;
        memcpy(&words, &x, sizeof(words));
        __stwb((uint4 *)to, words);
    } else {
        *(pack<T, N> *)to = x;
    }
}

/* Loads a pack of memory that the kernel does not write; likewise. */
template <typename T, int N> __device__ __forceinline__ pack<T, N> load_pack(const T *from)
{
    pack<T, N> x;
    if constexpr (sizeof(x) == sizeof(uint4)) {
        uint4 words = __ldg((const uint4 *)from);
        memcpy(&x, &words, sizeof(words));
    } else {
        x = *(const pack<T, N> *)from;
    }
    return x;
}

static inline bool is_aligned(const void *address, size_t bytes)
{
    return (uintptr_t)address % bytes == 0;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

#define WARP 32
#define FULL_WARP 0xffffffffu

struct add_up {
    template <typename C> static __device__ __forceinline__ C of(C a, C b)
    {
        return a + b;
    }
};

/* Every lane gets the result over the warp. */
template <typename How, typename C> __device__ __forceinline__ C over_warp(C x)
{
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        x = How::of(x, __shfl_xor_sync(FULL_WARP, x, step));
    return x;
}

/* Every thread of the block gets the result; blockDim.x is a multiple of 32. `space` has room for 32 values, and may be
 * used again after the next __syncthreads(). `nothing` is what threads that have no part in it would bring. */
template <typename How, typename C> __device__ __forceinline__ C over_block(C x, C *space, C nothing)
{
    x = over_warp<How>(x);
    if (threadIdx.x % WARP == 0)
        space[threadIdx.x / WARP] = x;
    __syncthreads();
    x = threadIdx.x % WARP < blockDim.x / WARP ? space[threadIdx.x % WARP] : nothing;
    x = over_warp<How>(x);
    __syncthreads();
    return x;
}

/* ---- places in a strided nest ------------------------------------------------------------------------------------ */

/* Division by a number known before the kernel starts: 32-bit where both fit, by multiplication; else the ordinary one.
 */
struct divider {
    uint64_t by;
    uint32_t multiplier, shift;
};

static inline divider divider_of(int64_t by)
{
    divider d = {(uint64_t)by, 0, 0};
    if (by < 1 || by >= ((int64_t)1 << 31))
        return d;
    while (((uint64_t)1 << d.shift) < (uint64_t)by)
        d.shift++;
    d.multiplier = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)by)) / (uint64_t)by + 1);
    return d;
}

__device__ __forceinline__ uint32_t divide_small(uint32_t x, const divider &d)
{
    return (__umulhi(x, d.multiplier) + x) >> d.shift; /* x < 2^31, so the sum does not overflow */
}

static __device__ __noinline__ uint64_t divide_large(uint64_t x, uint64_t by)
{
    return x / by;
}

/* A loop nest for kernels: sizes and strides of N operands, the last axis the fastest. */
template <int N> struct places {
    int rank;
    bool is_small; /* all counts below 2^31 */
    divider size[TARN_MAX_RANK];
    int64_t stride[N][TARN_MAX_RANK];
};

/* From the collapsed nest of the views' shared shape, leaving out the last `inner` axes. */
template <int N> static places<N> places_of(const tarn__nest *nest, int inner = 0)
{
    places<N> p = {};
    p.rank = nest->rank - inner;
    p.is_small = nest->count < ((int64_t)1 << 31);
    for (int i = 0; i < p.rank; i++) {
        p.size[i] = divider_of(nest->shape[i]);
        for (int k = 0; k < N; k++)
            p.stride[k][i] = nest->stride[k][i];
    }
    return p;
}

/* The offsets, in elements, of the operands' element number `at`. */
template <int N> __device__ __forceinline__ void locate(const places<N> &p, int64_t at, int64_t *offset)
{
#pragma unroll
    for (int k = 0; k < N; k++)
        offset[k] = 0;
    if (p.is_small) {
        uint32_t rest = (uint32_t)at;
        for (int i = p.rank - 1; i >= 0; i--) {
            uint32_t next = divide_small(rest, p.size[i]), here = rest - next * (uint32_t)p.size[i].by;
#pragma unroll
            for (int k = 0; k < N; k++)
                offset[k] += (int64_t)here * p.stride[k][i];
            rest = next;
        }
        return;
    }
    uint64_t rest = (uint64_t)at;
    for (int i = p.rank - 1; i >= 0; i--) {
        uint64_t next = divide_large(rest, p.size[i].by), here = rest - next * p.size[i].by;
#pragma unroll
        for (int k = 0; k < N; k++)
            offset[k] += (int64_t)here * p.stride[k][i];
        rest = next;
    }
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* What a kernel needs to report an index outside its axis. */
struct fault_place {
    int *lock;
    tarn__fault *record;
    const char *function;
};

static inline fault_place faults_of(const tarn__call *call)
{
    tarn__cuda_device *d = tarn__cuda_at(call->device);
    return fault_place{d->fault_lock, d->fault, call->function};
}

static __device__ __noinline__ void report_fault(const fault_place &to, int64_t value, int64_t limit)
{
    if (atomicCAS(to.lock, 0, 1) != 0)
        return;
    to.record->function = to.function;
    to.record->value = value;
    to.record->limit = limit;
    __threadfence_system();
    *(volatile int32_t *)&to.record->raised = 1;
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

#define THREADS 256

static inline cudaStream_t stream_of(const tarn__call *call)
{
    return (cudaStream_t)call->stream;
}

static inline unsigned blocks_for(int64_t work, int64_t each)
{
    int64_t blocks = (work + each - 1) / each;
    return (unsigned)(blocks < 1 ? 1 : blocks > 0x7fffffff ? 0x7fffffff : blocks);
}

template <typename T> static inline T *data_of(const tarn__view *view)
{
    return view ? (T *)tarn__view_at(view) : (T *)NULL;
}

#endif
