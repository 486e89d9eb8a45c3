/* nccl.h: binding to NCCL. Neither a header of it is needed to build nor the library to load the backend: it is opened
 * when the ranks of a run are connected. The constants are those of its binary interface, which is stable in version 2.
 */
#ifndef TARN__NCCL_H
#define TARN__NCCL_H

#include "backends/cuda/runtime/cuda.h"
#include "base/kernel/device_link.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Results. */
enum { TARN__NCCL_SUCCESS = 0, TARN__NCCL_IN_PROGRESS = 7 };

enum { TARN__NCCL_UINT8 = 1, TARN__NCCL_F32 = 7 }; /* data types */

enum { TARN__NCCL_SUM = 0 }; /* reduction */

typedef struct tarn__nccl_id {
    char bytes[TARN__LINK_ID];
} tarn__nccl_id;

/* The configuration of version 2.14, the first one with calls that do not block; later versions read their additions
 * as not set. */
typedef struct tarn__nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, unused;
} tarn__nccl_config;

#define TARN__NCCL_MIN_VERSION 21400
#define TARN__NCCL_CONFIG \
    { \
        sizeof(tarn__nccl_config), 0xcafebeefu, TARN__NCCL_MIN_VERSION, 0, INT_MIN \
    }

typedef struct tarn__nccl {
    int (*version)(int *version);
    const char *(*status_text)(int status);
    const char *(*last_error)(void *comm);
    int (*new_id)(tarn__nccl_id *id);
    int (*open)(void **comm, int size, tarn__nccl_id id, int rank, tarn__nccl_config *config);
    int (*async_error)(void *comm, int *status);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *memory, size_t count, int type, int peer, void *comm, cudaStream_t stream);
    int (*receive)(void *memory, size_t count, int type, int peer, void *comm, cudaStream_t stream);
    int (*all_gather)(const void *in, void *out, size_t count, int type, void *comm, cudaStream_t stream);
    int (*all_reduce)(const void *in, void *out, size_t count, int type, int reduction, void *comm,
                      cudaStream_t stream);
    int (*broadcast)(const void *in, void *out, size_t count, int type, int root, void *comm, cudaStream_t stream);
    int (*finalize)(void *comm);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);
} tarn__nccl;

/* The opened library; NULL: see tarn__cuda_failure(). */
const tarn__nccl *tarn__nccl_open(void);

/* "NCCL 2.28.3"; valid once it is open. */
const char *tarn__nccl_about(void);

/* gpu_links.c: how two devices are connected: "NVLink, 18 links of each". */
bool tarn__gpu_link(int a, int b, char *text, size_t size);

/* nccl_sum.cu: enqueues the sum on the stream. */
bool tarn__nccl_tree_sum(const tarn__link_sum *sum, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
