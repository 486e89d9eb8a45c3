/* cuda.h: host-side interface shared by the files of the CUDA backend. Plain C: only kernels are CUDA C++. */
#ifndef TARN__CUDA_H
#define TARN__CUDA_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "base/kernel/backend.h"

#define TARN__CUDA_MAX_DEVICES 64

/* Atomic counters per device, for kernels whose last thread block does the final step. */
#define TARN__CUDA_COUNTERS 4096

/* One GPU, set up on first use. All kernels run on its one stream: a block of the pool may be reused as soon as it is
 * released, since earlier users of it were enqueued before. */
typedef struct tarn__cuda_device {
    cudaStream_t stream;
    int *fault_lock;     /* on the device: taken by the first kernel that finds a fault */
    tarn__fault *fault;  /* mapped host memory, written by the device */
    void *staging;       /* transfer.c */
    cudaStream_t copies; /* copy stream of pinned.c; NULL until the first pinned buffer */
    /* on the device, TARN__CUDA_COUNTERS; 0 between kernels, each kernel resets those it used */
    int *counters;
    int multiprocessors;
    int shared_bytes; /* max dynamic shared memory per thread block */
    int major;        /* compute capability */
    bool is_capturing;
    bool has_failed; /* since the last poll */
} tarn__cuda_device;

/* The device at `index`, made current for this thread. NULL if it cannot be set up: see tarn__cuda_failure(). */
tarn__cuda_device *tarn__cuda_at(int index);
int tarn__cuda_count(void);

/* Marks a failed launch; the next poll() fails with the remembered sentence. */
void tarn__cuda_set_failed(int index);

/* True for cudaSuccess; else remembers `what` and the error, for this thread. */
bool tarn__cuda_good(cudaError_t error, const char *what);
void tarn__cuda_fail(const char *format, ...) TARN_PRINTF(1, 2);
const char *tarn__cuda_failure(void);

/* An environment variable by its name, else by its former name; NULL if neither is set. */
const char *tarn__cuda_env(const char *name, const char *former);

/* Bytes rounded up to cudaMalloc's alignment: every part of a scratch buffer starts aligned. */
static inline size_t tarn__cuda_align(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Hash of a plan's key: a struct without padding, of whole 64-bit words. */
static inline uint64_t tarn__cuda_hash(const void *key, size_t bytes)
{
    const uint64_t *word = (const uint64_t *)key;
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < bytes / sizeof(uint64_t); i++)
        hash = (hash ^ word[i]) * 0xff51afd7ed558ccdu, hash ^= hash >> 32;
    return hash;
}

/* transfer.c: host memory is borrowed during the call */
bool tarn__cuda_upload(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream);
bool tarn__cuda_download(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream);
bool tarn__cuda_peer(int to_index, void *to, int64_t to_offset, int from_index, const void *from, int64_t from_offset,
                     size_t bytes, void *stream);

/* pinned.c: a buffer is owned by the caller; `host` is its memory */
void *tarn__cuda_pinned_new(int index, size_t bytes, void **host);
void tarn__cuda_pinned_free(int index, void *pinned);
bool tarn__cuda_pinned_send(int index, void *pinned, size_t from, void *memory, int64_t offset, size_t bytes);
bool tarn__cuda_pinned_join(int index, void *pinned);
bool tarn__cuda_pinned_wait(int index, void *pinned);
void tarn__cuda_pinned_mark(int index, void *pinned, void *from, void *to);

/* graph.c: graphs are owned by the caller */
bool tarn__cuda_capture_begin(int index);
void *tarn__cuda_capture_end(int index);
bool tarn__cuda_graph_launch(int index, void *graph, void *stream);
void tarn__cuda_graph_free(int index, void *graph);

/* True if kernels of a decode step are launched with programmatic dependent launch: in a capture, on compute capability
 * 9 and later, unless TARN_CUDA_PDL=off. */
bool tarn__cuda_uses_pdl(int index);

/* write_inline.cu: `count` bytes at most TARN__INLINE_BYTES */
bool tarn__cuda_write_inline(int index, void *memory, int64_t offset, const void *bytes, size_t count, void *stream);

/* The kernel table, for kernels composed of others. */
const tarn__kernel_row *tarn__cuda_rows(void);

/* Registration: each unit of families.def writes its rows of the kernel table. */
#define TARN__CUDA_PROTOTYPE_YES(unit) void tarn__cuda_register_##unit(tarn__kernel_row *rows);
#define TARN__CUDA_PROTOTYPE_NO(unit)
#define UNIT(family, unit, cpu, cuda, opencl) TARN__CUDA_PROTOTYPE_##cuda(unit)
#include "base/kernel/families.def"
#undef UNIT

#ifdef __cplusplus
}
#endif
#endif
