/* transfer.c: copies between host and device. */
#include "backends/opencl/opencl.h"

bool tarn__cl_upload(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream)
{
    return tarn__cl_at(index) && tarn__cl_good(clEnqueueWriteBuffer(stream, memory, CL_TRUE, (size_t)offset, bytes, host, 0, NULL, NULL), "a copy to the device");
}

bool tarn__cl_download(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream)
{
    return tarn__cl_at(index) &&
           tarn__cl_good(clEnqueueReadBuffer(stream, (cl_mem)memory, CL_TRUE, (size_t)offset, bytes, host, 0, NULL, NULL), "a copy from the device");
}
