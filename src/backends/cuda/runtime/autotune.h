/* autotune.h: autotuning: times the candidates for one result on the device, and remembers the fastest in a file per
 * device.
 *
 * Later runs read the file, choose the same candidate and so compute bitwise identical results. A run's checkpoints
 * carry the choices it used; imported ones win over the file. */
#ifndef TARN__CUDA_AUTOTUNE_H
#define TARN__CUDA_AUTOTUNE_H

#include "backends/cuda/runtime/cuda.h"
#include "base/os/tuning_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TARN__CUDA_MAX_CANDIDATES 64

/* False with TARN_AUTOTUNE=off: the first candidate is taken, and no file is read or written. */
bool tarn__cuda_autotune_enabled(void);

/* Smallest product worth tuning, in multiply-adds: less is over before it matters. */
#define TARN__CUDA_TUNE_MIN_MULTIPLIES ((double)(1 << 24))

/* ---- remembering ------------------------------------------------------------------------------------------------- */

/* Tuning results of one kernel family, one file per device: $XDG_CACHE_HOME/tarn/FAMILY-DEVICE-VERSION. Keys and values
 * may have no padding. Zero-initialized but for the first four fields; lives as long as the process. */
typedef struct tarn__cuda_tuning {
    const char *family;
    size_t version; /* of the library that the candidates come from */
    size_t key_bytes, value_bytes;
    tarn__tuning_cache files[TARN__CUDA_MAX_DEVICES];
} tarn__cuda_tuning;

/* Copies the value of `key` and marks it as used; false if there is none. */
bool tarn__cuda_tuning_find(tarn__cuda_tuning *tuning, int index, const void *key, void *value);
/* The same without the mark. */
bool tarn__cuda_tuning_peek(tarn__cuda_tuning *tuning, int index, const void *key, void *value);
/* Remembers a value and appends it to the file. */
void tarn__cuda_tuning_store(tarn__cuda_tuning *tuning, int index, const void *key, const void *value);

/* tarn__backend's export and import. */
void tarn__cuda_tuning_export(int index, void (*take)(void *ctx, const char *line), void *ctx);
void tarn__cuda_tuning_import(int index, const char *line);

/* ---- measuring --------------------------------------------------------------------------------------------------- */

typedef struct tarn__cuda_autotune {
    int count; /* candidates, the library's favourite first */
    void *context;
    /* enqueues a candidate, writing to results[result]; false: not supported */
    bool (*run)(void *context, int candidate, int result);
    void *results[2]; /* on the device, borrowed */
    size_t result_bytes;
    int *differ; /* on the device, borrowed */
    cudaStream_t stream;
} tarn__cuda_autotune;

/* Returns the fastest candidate that is deterministic, or -1. Waits for the device. */
int tarn__cuda_autotune_run(const tarn__cuda_autotune *tune);

/* matmul_naive.cu: fills memory with random values of either sign from 0.5 to 2; and sets *flag on the device if two
 * buffers differ. */
bool tarn__cuda_noise(void *memory, size_t bytes, tarn_dtype dtype, cudaStream_t stream);
bool tarn__cuda_differs(const void *x, const void *y, size_t bytes, int *flag, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
