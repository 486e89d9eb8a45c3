/* write_inline.cu: writes a few bytes in stream order. The bytes travel as kernel arguments, so the host buffer may
 * change at once and a graph captures the values. One block, one thread per byte. */
#include "backends/cuda/common/kernel.cuh"

struct inline_bytes {
    unsigned char at[TARN__INLINE_WRITE_BYTES];
};

static __global__ void write_kernel(inline_bytes bytes, unsigned char *to, int count)
{
    if ((int)threadIdx.x < count)
        to[threadIdx.x] = bytes.at[threadIdx.x];
}

bool tarn__cuda_write_inline(int index, void *memory, int64_t offset, const void *bytes, size_t count, void *stream)
{
    inline_bytes values;
    if (!tarn__cuda_at(index) || count > sizeof(values))
        return false;
    memcpy(values.at, bytes, count);
    write_kernel<<<1, TARN__INLINE_WRITE_BYTES, 0, (cudaStream_t)stream>>>(values, (unsigned char *)memory + offset,
                                                                           (int)count);
    return tarn__cuda_good(cudaGetLastError(), "a kernel failed");
}
