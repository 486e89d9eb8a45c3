/* decode.cuh: shared by the kernels of a decode step: programmatic dependent launch, and asynchronous copies into
 * shared memory.
 *
 * A decode step is a chain of short kernels. On compute capability 9 and later a captured one is launched with
 * programmatic dependent launch (PDL): the blocks of a kernel start as soon as there is room, prefetch weights, then
 * wait for the previous kernel (pdl_wait), and only then read its results or write anything. Since every kernel waits
 * so, a finished kernel means that all before it have finished. Memory read before the wait is written by no kernel of
 * the graph: weights, and keys and values of earlier tokens. The exception is the token's position, written for the
 * next step by the last kernel, which is an ordinary launch. */
#ifndef TARN__CUDA_DECODE_CUH
#define TARN__CUDA_DECODE_CUH

#include "backends/cuda/quant/dot.cuh"

/* ---- programmatic dependent launch ------------------------------------------------------------------------------- */

/* Lets the blocks of the next kernel start. */
__device__ __forceinline__ void pdl_launch_dependents(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until the previous kernel has finished and its writes are visible. */
__device__ __forceinline__ void pdl_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Launches a kernel with one argument struct. PDL needs code that waits: only kernels compiled for 9.0 or later get it.
 * All kernels prefer the same split between L1 cache and shared memory: kernels with different splits do not share a
 * multiprocessor. */
template <typename A>
static void launch_decode(const tarn__call *call, void (*kernel)(A), dim3 blocks, unsigned threads, size_t shared,
                          const A &args)
{
    cudaFuncAttributes attributes;
    cudaLaunchAttribute pdl = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks, config.blockDim = dim3(threads), config.dynamicSmemBytes = shared,
    config.stream = stream_of(call);
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &pdl;
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (tarn__cuda_uses_pdl(call->device) && cudaFuncGetAttributes(&attributes, (const void *)kernel) == cudaSuccess &&
        attributes.ptxVersion >= 90)
        config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, args);
}

/* Prefetches the cache line of an address into L2. */
__device__ __forceinline__ void prefetch_l2(const void *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/* ---- the last block ---------------------------------------------------------------------------------------------- */

/* True in the last of `count` blocks to call it, which sees all writes of the others. Resets the counter. */
__device__ __forceinline__ bool is_last_block(int *counter, int count)
{
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomic_inc(counter) == count - 1;
        if (is_last)
            *counter = 0;
    }
    __syncthreads();
    return is_last;
}

/* ---- asynchronous copies into shared memory ---------------------------------------------------------------------- */

/* Copies the first `count` of 16 bytes, zeroes the rest. Both sides are 16-byte aligned. */
__device__ __forceinline__ void copy_async16(void *to, const void *from, int count)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(count)
                 : "memory");
}

/* Copies 16 bytes to a shared-memory address. */
__device__ __forceinline__ void copy_async16_at(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Closes a group of copies; waits until at most N of the thread's groups are in flight. */
__device__ __forceinline__ void commit_copies(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ __forceinline__ void wait_for_copies(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- eight elements ---------------------------------------------------------------------------------------------- */

/* Eight elements as loaded, 16-byte aligned, unpacked when needed. Plain loads: other kernels may have written the
 * memory just before. Quantized bytes have a scale. */
template <typename S> struct vec8 {
    uint4 words[sizeof(S) == 4 ? 2 : 1];
    __device__ __forceinline__ void load(const char *from)
    {
#pragma unroll
        for (int i = 0; i < (sizeof(S) == 4 ? 2 : 1); i++)
            words[i] = ((const uint4 *)from)[i];
    }
    __device__ __forceinline__ void store(char *to) const
    {
#pragma unroll
        for (int i = 0; i < (sizeof(S) == 4 ? 2 : 1); i++)
            ((uint4 *)to)[i] = words[i];
    }
    __device__ __forceinline__ void unpack(float, float *to) const
    {
        if constexpr (sizeof(S) == 4) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                to[i] = ((const float *)words)[i];
        } else {
            widen_vec(*(const vec<S, 8> *)words, to);
        }
    }
    __device__ __forceinline__ void pack(const float *from)
    {
        if constexpr (sizeof(S) == 4) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                ((float *)words)[i] = from[i];
        } else {
            narrow_vec(from, *(vec<S, 8> *)words);
        }
    }
};
template <> struct vec8<uint8_t> {
    uint2 words;
    __device__ __forceinline__ void load(const char *from)
    {
        words = *(const uint2 *)from;
    }
    __device__ __forceinline__ void unpack(float scale, float *to) const
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            to[i] = ((float)((i < 4 ? words.x : words.y) >> i % 4 * 8 & 0xff) - 128) * scale;
    }
};

/* ---- single elements --------------------------------------------------------------------------------------------- */

/* One element as loaded; converted when needed, so that loads can be issued early. */
__device__ __forceinline__ uint32_t load_bits(const void *x, tarn_dtype dtype, int64_t at)
{
    return dtype == TARN_F32 ? ((const uint32_t *)x)[at] : ((const uint16_t *)x)[at];
}

__device__ __forceinline__ float widen_bits(uint32_t bits, tarn_dtype dtype)
{
    return dtype == TARN_F32    ? __uint_as_float(bits)
           : dtype == TARN_BF16 ? __uint_as_float(bits << 16)
                                : scale_of((uint16_t)bits);
}

/* A value rounded to the precision of a dtype. */
__device__ __forceinline__ float round_to(float x, tarn_dtype dtype)
{
    return dtype == TARN_F32 ? x : dtype == TARN_BF16 ? widen(narrow<bf16>(x)) : widen(narrow<f16>(x));
}

#endif
