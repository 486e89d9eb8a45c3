/* kernel.cuh: base of all kernels: element types, 16-byte vectors, warp and block reductions, strided indexing, faults,
 * launch helpers.
 *
 * Sums run in an order fixed by the shape, never with atomics on floats, so that results are deterministic. */
#ifndef TARN__CUDA_KERNEL_CUH
#define TARN__CUDA_KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "backends/cuda/runtime/cuda.h"

typedef __nv_bfloat16 bf16;
typedef __half f16;

/* ---- element types ----------------------------------------------------------------------------------------------- */

/* The type that elements of T are computed in: f32 for f32, bf16 and f16; f64 for f64; i64 for integers and bool. */
template <typename T> struct compute_of {
    typedef int64_t type;
};
template <> struct compute_of<float> {
    typedef float type;
};
template <> struct compute_of<double> {
    typedef double type;
};
template <> struct compute_of<bf16> {
    typedef float type;
};
template <> struct compute_of<f16> {
    typedef float type;
};
template <typename T> using compute = typename compute_of<T>::type;

/* From an element to its compute type; exact. */
template <typename T> __device__ __forceinline__ compute<T> widen(T x)
{
    return (compute<T>)x;
}
template <> __device__ __forceinline__ float widen<bf16>(bf16 x)
{
    return __bfloat162float(x);
}
template <> __device__ __forceinline__ float widen<f16>(f16 x)
{
    return __half2float(x);
}

/* From a compute type to an element, rounded to nearest even. */
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

/* Runs `...` with T as the element type of a float dtype. The kernel table's dtype mask excludes all others. */
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

/* Index `at` of an i32 or i64 tensor. */
__device__ __forceinline__ int64_t index_at(const void *indices, int is_long, int64_t at)
{
    return is_long ? ((const int64_t *)indices)[at] : (int64_t)((const int32_t *)indices)[at];
}

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

/* N adjacent elements. One load or store where they are aligned and have 2, 4, 8 or 16 bytes. */
template <typename T, int N> struct alignas(sizeof(T) * N) vec {
    T at[N];
};

/* Elements in 16 bytes. */
template <typename T> struct vec_size {
    static constexpr int value = 16 / (int)sizeof(T);
};

/* A vector to compute types, and back. 16-bit floats are converted in pairs: one instruction to narrow two. */
template <typename T, int N> __device__ __forceinline__ void widen_vec(const vec<T, N> &x, compute<T> *y)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        y[i] = widen(x.at[i]);
}
template <int N> __device__ __forceinline__ void widen_vec(const vec<bf16, N> &x, float *y)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        uint32_t two = ((const uint32_t *)&x)[i];
        y[2 * i] = __uint_as_float(two << 16);
        y[2 * i + 1] = __uint_as_float(two & 0xffff0000u);
    }
}
template <int N> __device__ __forceinline__ void widen_vec(const vec<f16, N> &x, float *y)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        float2 two = __half22float2(((const __half2 *)&x)[i]);
        y[2 * i] = two.x;
        y[2 * i + 1] = two.y;
    }
}

template <typename T, int N, typename C> __device__ __forceinline__ void narrow_vec(const C *y, vec<T, N> &x)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x.at[i] = narrow<T>(y[i]);
}
template <int N> __device__ __forceinline__ void narrow_vec(const float *y, vec<bf16, N> &x)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        ((__nv_bfloat162 *)&x)[i] = __floats2bfloat162_rn(y[2 * i], y[2 * i + 1]);
}
template <int N> __device__ __forceinline__ void narrow_vec(const float *y, vec<f16, N> &x)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        ((__half2 *)&x)[i] = __floats2half2_rn(y[2 * i], y[2 * i + 1]);
}

/* Explicit 16-byte store: nvcc may split the assignment of a vector into word stores. */
template <typename T, int N> __device__ __forceinline__ void store_vec(T *to, const vec<T, N> &x)
{
    if constexpr (sizeof(x) == sizeof(uint4)) {
        uint4 words;
        memcpy(&words, &x, sizeof(words));
        __stwb((uint4 *)to, words);
    } else {
        *(vec<T, N> *)to = x;
    }
}

/* Explicit 16-byte load through the read-only cache; the kernel must not write that memory. */
template <typename T, int N> __device__ __forceinline__ vec<T, N> load_vec(const T *from)
{
    vec<T, N> x;
    if constexpr (sizeof(x) == sizeof(uint4)) {
        uint4 words = __ldg((const uint4 *)from);
        memcpy(&x, &words, sizeof(words));
    } else {
        x = *(const vec<T, N> *)from;
    }
    return x;
}

/* True if the address is a multiple of `bytes`. */
static inline bool is_aligned(const void *address, size_t bytes)
{
    return (uintptr_t)address % bytes == 0;
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

#define WARP 32
#define FULL_WARP 0xffffffffu

/* A reduction operator: a type with a static of(a, b). */
struct plus {
    template <typename C> static __device__ __forceinline__ C of(C a, C b)
    {
        return a + b;
    }
};

/* Butterfly reduction: every lane gets the result, in the same order on all lanes. */
template <typename How, typename C> __device__ __forceinline__ C warp_reduce(C x)
{
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        x = How::of(x, __shfl_xor_sync(FULL_WARP, x, step));
    return x;
}

/* Every thread of the block gets the result; blockDim.x is a multiple of 32. `space` holds 32 values and may be reused
 * after the next __syncthreads(). `identity` stands in for missing warps. Contains barriers: all threads must call
 * it. */
template <typename How, typename C> __device__ __forceinline__ C block_reduce(C x, C *space, C identity)
{
    x = warp_reduce<How>(x);
    if (threadIdx.x % WARP == 0)
        space[threadIdx.x / WARP] = x;
    __syncthreads();
    x = threadIdx.x % WARP < blockDim.x / WARP ? space[threadIdx.x % WARP] : identity;
    x = warp_reduce<How>(x);
    __syncthreads();
    return x;
}

/* ---- strided indexing -------------------------------------------------------------------------------------------- */

/* Division by a value known at launch: a multiplication and a shift for operands below 2^31, else a real division. */
struct divider {
    uint64_t by;
    uint32_t multiplier, shift;
};

/* Granlund-Montgomery: the multiplier and shift of a 32-bit division by `by`. Not used for by >= 2^31. */
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
    return (__umulhi(x, d.multiplier) + x) >> d.shift; /* no overflow: x < 2^31 */
}

/* Not inlined: a 64-bit division is long, and large tensors are rare. */
static __device__ __noinline__ uint64_t divide_large(uint64_t x, uint64_t by)
{
    return x / by;
}

/* Maps a linear index to the offsets of N strided operands: sizes and strides, the last axis fastest. */
template <int N> struct offset_calc {
    int rank;
    bool is_small; /* all counts below 2^31: 32-bit division */
    divider size[TARN_MAX_RANK];
    int64_t stride[N][TARN_MAX_RANK];
};

/* From the collapsed nest of the operands' shape, without its last `inner` axes. */
template <int N> static offset_calc<N> offset_calc_of(const tarn__nest *nest, int inner = 0)
{
    offset_calc<N> p = {};
    p.rank = nest->rank - inner;
    p.is_small = nest->count < ((int64_t)1 << 31);
    for (int i = 0; i < p.rank; i++) {
        p.size[i] = divider_of(nest->shape[i]);
        for (int k = 0; k < N; k++)
            p.stride[k][i] = nest->stride[k][i];
    }
    return p;
}

/* Offsets, in elements, of linear index `at` in each operand. */
template <int N> __device__ __forceinline__ void locate(const offset_calc<N> &p, int64_t at, int64_t *offset)
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

/* ---- index faults ------------------------------------------------------------------------------------------------ */

/* Where a kernel reports an index outside its axis: the first reporter wins, and the host reads the record in
 * poll(). */
struct fault_slot {
    int *lock;
    tarn__fault *record;
    const char *function;
};

/* Fault slot of the call's device; `function` names the operation in the error. */
static inline fault_slot faults_of(const tarn__call *call)
{
    tarn__cuda_device *d = tarn__cuda_at(call->device);
    return fault_slot{d->fault_lock, d->fault, call->function};
}

/* `raised` is written last, after a system fence, so that the host never sees half a record. */
static __device__ __noinline__ void report_fault(const fault_slot &to, int64_t value, int64_t limit)
{
    if (atomicCAS(to.lock, 0, 1) != 0)
        return;
    to.record->function = to.function;
    to.record->value = value;
    to.record->limit = limit;
    __threadfence_system();
    *(volatile int32_t *)&to.record->raised = 1;
}

/* Increments a counter with acquire-release order at device scope: earlier writes of this block are visible to blocks
 * that increment it later. Returns the value before. */
__device__ __forceinline__ int atomic_inc(int *counter)
{
    int before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Default block size: 8 warps hide latency, and blocks of 256 divide the 2,048 threads of a multiprocessor. */
#define THREADS 256

/* Absolute value of a stride. */
static inline int64_t magnitude(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

static inline cudaStream_t stream_of(const tarn__call *call)
{
    return (cudaStream_t)call->stream;
}

/* Thread blocks for `work` items, `each` per block: at least 1, at most the grid limit. */
static inline unsigned blocks_for(int64_t work, int64_t each)
{
    int64_t blocks = (work + each - 1) / each;
    return (unsigned)(blocks < 1 ? 1 : blocks > 0x7fffffff ? 0x7fffffff : blocks);
}

/* Reserves the job of a plan: NULL if there is no room. And the job that prepare() described. */
template <typename J> static inline J *reserve_job(tarn__plan *plan)
{
    return (J *)tarn__plan_reserve(plan, sizeof(J));
}
template <typename J> static inline const J *job_of(const tarn__call *call)
{
    return (const J *)tarn__plan_job(call->plan);
}

/* Address of a view's first element; NULL for no view. */
template <typename T> static inline T *data_of(const tarn__view *view)
{
    return view ? (T *)tarn__view_at(view) : (T *)NULL;
}

#endif
