/* decode.cuh: what kernels of a decoding step share: copies into shared memory that pass by the registers, and kernels
 * that begin before the one in front has ended.
 *
 * A step is a chain of short kernels. On devices of compute capability 9 and above a recorded one is launched so that a
 * kernel's blocks come as soon as there is room for them: they ask for weights, then wait for the kernel in front
 * (wait_for_front), and only then read what it wrote, or write anything. As each waits so, a kernel that has ended
 * means that all before it have. What is read before waiting is written by no kernel of the recording: weights, and
 * keys and values of earlier tokens; but for the token's position, which the last one, an ordinary launch, writes for
 * the next step. */
#ifndef TARN__CUDA_STEP_CUH
#define TARN__CUDA_STEP_CUH

#include "backends/cuda/quant/dot.cuh"

/* ---- beginning early --------------------------------------------------------------------------------------------- */

/* Lets the blocks of the next kernel come. */
__device__ __forceinline__ void call_next(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_front(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Starts a kernel with one struct of arguments. It may begin early only where its code waits: where it was compiled
 * for 9.0 or above. All have memory shared out between cache and blocks in the same way: kernels that want it otherwise
 * do not run beside each other on a multiprocessor. */
template <typename A>
static void launch_step(const tarn__call *call, void (*kernel)(A), dim3 blocks, unsigned threads, size_t shared,
                        const A &args)
{
    cudaFuncAttributes about;
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t how = {};
    how.gridDim = blocks, how.blockDim = dim3(threads), how.dynamicSmemBytes = shared, how.stream = stream_of(call);
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    how.attrs = &early;
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (tarn__cuda_uses_pdl(call->device) && cudaFuncGetAttributes(&about, (const void *)kernel) == cudaSuccess &&
        about.ptxVersion >= 90)
        how.numAttrs = 1;
    cudaLaunchKernelEx(&how, kernel, args);
}

/* Brings the 16 bytes at an address, and those around them, nearer. */
__device__ __forceinline__ void expect(const void *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/* ---- the last block ---------------------------------------------------------------------------------------------- */

/* Adds 1; what the block has written before is seen by whoever adds after it. */
__device__ __forceinline__ int count_up(int *counter)
{
    int before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

/* True in the block that is the last of `count` to come here; whatever the others have written is seen by it. The
 * counter is 0 again then. */
__device__ __forceinline__ bool is_last_of(int *counter, int count)
{
    __shared__ bool is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = count_up(counter) == count - 1;
        if (is_last)
            *counter = 0;
    }
    __syncthreads();
    return is_last;
}

/* ---- copies into shared memory ----------------------------------------------------------------------------------- */

/* The first `count` of 16 bytes; the others become 0. Both sides lie aligned. */
__device__ __forceinline__ void copy_pack(void *to, const void *from, int count)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(count)
                 : "memory");
}

/* All of 16 bytes. */
__device__ __forceinline__ void copy_whole_pack(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Ends a group of copies; and waits until of the thread's groups at most N are under way. */
__device__ __forceinline__ void end_copies(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ __forceinline__ void wait_for_copies(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- eight elements ---------------------------------------------------------------------------------------------- */

/* As they lie in memory that other kernels may have written just before, at 16 bytes' alignment: loaded, and opened
 * when they are needed. Codes of a byte have a scale. */
template <typename S> struct eight {
    uint4 words[sizeof(S) == 4 ? 2 : 1];
    __device__ __forceinline__ void load(const char *from)
    {
#pragma unroll
        for (int i = 0; i < (sizeof(S) == 4 ? 2 : 1); i++)
            words[i] = ((const uint4 *)from)[i];
    }
    __device__ __forceinline__ void open(float, float *to) const
    {
        if constexpr (sizeof(S) == 4) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                to[i] = ((const float *)words)[i];
        } else {
            widen_pack(*(const pack<S, 8> *)words, to);
        }
    }
};
template <> struct eight<uint8_t> {
    uint2 words;
    __device__ __forceinline__ void load(const char *from)
    {
        words = *(const uint2 *)from;
    }
    __device__ __forceinline__ void open(float scale, float *to) const
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            to[i] = ((float)((i < 4 ? words.x : words.y) >> i % 4 * 8 & 0xff) - 128) * scale;
    }
};

/* ---- single elements --------------------------------------------------------------------------------------------- */

/* One as it lies in memory: loaded, and opened when it is needed. */
__device__ __forceinline__ uint32_t bits_at(const void *x, tarn_dtype dtype, int64_t at)
{
    return dtype == TARN_F32 ? ((const uint32_t *)x)[at] : ((const uint16_t *)x)[at];
}

__device__ __forceinline__ float opened(uint32_t bits, tarn_dtype dtype)
{
    return dtype == TARN_F32    ? __uint_as_float(bits)
           : dtype == TARN_BF16 ? __uint_as_float(bits << 16)
                                : scale_of((uint16_t)bits);
}

/* A number as a tensor of that dtype holds it. */
__device__ __forceinline__ float rounded(float x, tarn_dtype dtype)
{
    return dtype == TARN_F32 ? x : dtype == TARN_BF16 ? widen(narrow<bf16>(x)) : widen(narrow<f16>(x));
}

#endif
