/* write_inline.cu: a few bytes written in stream order, carried by the command itself. */
#include "backends/cuda/common/kernel.cuh"

struct few_bytes {
    unsigned char at[TARN__INLINE_WRITE_BYTES];
};

static __global__ void poke_kernel(few_bytes bytes, unsigned char *to, int count)
{
    if ((int)threadIdx.x < count)
        to[threadIdx.x] = bytes.at[threadIdx.x];
}

bool tarn__cuda_write_inline(int index, void *memory, int64_t offset, const void *bytes, size_t count, void *stream)
{
    few_bytes values;
    if (!tarn__cuda_at(index) || count > sizeof(values))
        return false;
    memcpy(values.at, bytes, count);
    poke_kernel<<<1, TARN__INLINE_WRITE_BYTES, 0, (cudaStream_t)stream>>>(values, (unsigned char *)memory + offset,
                                                                          (int)count);
    return tarn__cuda_good(cudaGetLastError(), "a kernel");
}
