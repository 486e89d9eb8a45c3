/* cuda.h: what the files of the CUDA backend share on the host's side. Plain C, so that everything but kernels is C. */
#ifndef TARN__CUDA_H
#define TARN__CUDA_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "base/kernel/backend.h"

#define TARN__CUDA_COUNTERS 4096

/* One GPU, set up when it is first used. All work of a device goes through its one stream: the pool's blocks may then
 * be used again as soon as they are given back, because whatever still reads them was enqueued before. */
typedef struct tarn__cuda_device {
    cudaStream_t stream;
    int *fault_lock;     /* on the device: the first kernel that finds a fault takes it */
    tarn__fault *fault;  /* host memory that the device writes */
    void *staging;       /* see transfer.c */
    cudaStream_t copies; /* see pinned.c; NULL until the first lane is made */
    /* on the device, TARN__CUDA_COUNTERS of them: 0 between kernels, each of which leaves them so */
    int *counters;
    int multiprocessors;
    int shared_bytes; /* that a block may have */
    int major;        /* of the compute capability */
    bool is_capturing;
    bool has_failed; /* since the last poll */
} tarn__cuda_device;

/* The device at `index`, made current for the calling thread; NULL when it cannot be set up (see tarn__cuda_failure).
 */
tarn__cuda_device *tarn__cuda_at(int index);
int tarn__cuda_count(void);

/* A launcher that could not do its work says so here; poll() then fails with the sentence that was remembered. */
void tarn__cuda_set_failed(int index);

/* True for cudaSuccess; else remembers what failed, for this thread. */
bool tarn__cuda_good(cudaError_t error, const char *what);
void tarn__cuda_fail(const char *format, ...) TARN_PRINTF(1, 2);
const char *tarn__cuda_failure(void);

/* transfer.c */
bool tarn__cuda_upload(int index, void *memory, int64_t offset, const void *host, size_t bytes, void *stream);
bool tarn__cuda_download(int index, const void *memory, int64_t offset, void *host, size_t bytes, void *stream);
bool tarn__cuda_peer(int to_index, void *to, int64_t to_offset, int from_index, const void *from, int64_t from_offset,
                     size_t bytes, void *stream);

/* pinned.c */
void *tarn__cuda_pinned_new(int index, size_t bytes, void **host);
void tarn__cuda_pinned_free(int index, void *lane);
bool tarn__cuda_pinned_send(int index, void *lane, size_t from, void *memory, int64_t offset, size_t bytes);
bool tarn__cuda_pinned_join(int index, void *lane);
bool tarn__cuda_pinned_wait(int index, void *lane);
void tarn__cuda_pinned_mark(int index, void *lane, void *from, void *to);

/* graph.c */
bool tarn__cuda_capture_begin(int index);
void *tarn__cuda_capture_end(int index);
bool tarn__cuda_graph_launch(int index, void *graph, void *stream);
void tarn__cuda_graph_free(int index, void *graph);

/* True when kernels of a step may begin before the one in front of them has ended: in a recording, on a device that
 * can, unless TARN_CUDA_OVERLAP is off. */
bool tarn__cuda_uses_pdl(int index);

/* write_inline.cu */
bool tarn__cuda_write_inline(int index, void *memory, int64_t offset, const void *bytes, size_t count, void *stream);

/* The table itself, for kernels made of others. */
const tarn__kernel_row *tarn__cuda_rows(void);

/* One function a family enters its kernels into the table. */
void tarn__cuda_unary(tarn__kernel_row *rows);
void tarn__cuda_binary(tarn__kernel_row *rows);
void tarn__cuda_binary_grad(tarn__kernel_row *rows);
void tarn__cuda_swiglu(tarn__kernel_row *rows);
void tarn__cuda_compare(tarn__kernel_row *rows);
void tarn__cuda_copy(tarn__kernel_row *rows);
void tarn__cuda_dequantize(tarn__kernel_row *rows);
void tarn__cuda_quant_matmul(tarn__kernel_row *rows);
void tarn__cuda_kv_q8(tarn__kernel_row *rows);
void tarn__cuda_fill(tarn__kernel_row *rows);
void tarn__cuda_pad(tarn__kernel_row *rows);
void tarn__cuda_random(tarn__kernel_row *rows);
void tarn__cuda_reduce(tarn__kernel_row *rows);
void tarn__cuda_argmax(tarn__kernel_row *rows);
void tarn__cuda_var_grad(tarn__kernel_row *rows);
void tarn__cuda_scan(tarn__kernel_row *rows);
void tarn__cuda_gather(tarn__kernel_row *rows);
void tarn__cuda_sort(tarn__kernel_row *rows);
void tarn__cuda_matmul(tarn__kernel_row *rows);
void tarn__cuda_conv(tarn__kernel_row *rows);
void tarn__cuda_pool(tarn__kernel_row *rows);
void tarn__cuda_softmax(tarn__kernel_row *rows);
void tarn__cuda_layernorm(tarn__kernel_row *rows);
void tarn__cuda_attention(tarn__kernel_row *rows);
void tarn__cuda_rope(tarn__kernel_row *rows);
void tarn__cuda_decode_gemv(tarn__kernel_row *rows);
void tarn__cuda_decode_attention(tarn__kernel_row *rows);
void tarn__cuda_decode_argmax(tarn__kernel_row *rows);
void tarn__cuda_batchnorm(tarn__kernel_row *rows);
void tarn__cuda_batchnorm_grad(tarn__kernel_row *rows);
void tarn__cuda_cross_entropy(tarn__kernel_row *rows);
void tarn__cuda_optimizer(tarn__kernel_row *rows);
void tarn__cuda_clip(tarn__kernel_row *rows);
void tarn__cuda_scale_grad(tarn__kernel_row *rows);

#ifdef __cplusplus
}
#endif
#endif
