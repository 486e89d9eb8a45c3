/* autotune.h: what is chosen by measuring: the fastest of several ways to the same result, and the file that remembers
 * which one it was. */
#ifndef TARN__CUDA_CHOICE_H
#define TARN__CUDA_CHOICE_H

#include "backends/cuda/runtime/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TARN__CUDA_MAX_DEVICES 64
#define TARN__CUDA_MAX_CANDIDATES 64

/* False where TARN_TUNE=off: first choices are taken, and nothing is read or written. */
bool tarn__cuda_autotune_enabled(void);

/* Multiplications from which a choice is worth measuring: what has fewer is over before it matters. */
#define TARN__CUDA_TUNE_MIN_MULTIPLIES ((double)(1 << 24))

/* ---- remembering ------------------------------------------------------------------------------------------------- */

/* The choices of one family of kernels, one file a device: $XDG_CACHE_HOME/tarn/FAMILY-DEVICE-VERSION. A line is a key
 * and a value, bytes as hexadecimal digits, so both must be without padding. All zero but the first four fields; lives
 * as long as the program. */
typedef struct tarn__cuda_tuning {
    const char *family;
    size_t version; /* of the library that the candidates come from */
    size_t key_bytes, value_bytes;
    struct tarn__cuda_tuning_file {
        bool is_read;
        char name[400];  /* FAMILY-DEVICE-VERSION */
        char path[1100]; /* empty: there is no place for it */
        char *records;   /* key, value, and whether this process has used it */
        int count;
    } files[TARN__CUDA_MAX_DEVICES];
} tarn__cuda_tuning;

bool tarn__cuda_tuning_find(tarn__cuda_tuning *choices, int index, const void *key, void *value);
void tarn__cuda_tuning_store(tarn__cuda_tuning *choices, int index, const void *key, const void *value);

/* As tarn__backend has them. A line is the name of the file, a space, and the line that would stand there. */
void tarn__cuda_tuning_export(int index, void (*take)(void *ctx, const char *line), void *ctx);
void tarn__cuda_tuning_import(int index, const char *line);

/* ---- measuring --------------------------------------------------------------------------------------------------- */

typedef struct tarn__cuda_autotune {
    int count; /* of candidates, the library's favourite first */
    void *context;
    bool (*run)(void *context, int candidate, int result); /* enqueues it, into result 0 or 1; false: this one cannot */
    void *results[2];                                      /* on the device, borrowed */
    size_t result_bytes;
    int *differ; /* on the device, borrowed */
    cudaStream_t stream;
} tarn__cuda_autotune;

/* The fastest candidate that gives the same bits twice; -1 when there is none. Waits for the device. */
int tarn__cuda_autotune_run(const tarn__cuda_autotune *race);

/* matmul_naive.cu: random numbers of either sign from 0.5 to 2; and whether two pieces of memory differ, told in *flag
 * on the device. */
bool tarn__cuda_noise(void *memory, size_t bytes, tarn_dtype dtype, cudaStream_t stream);
bool tarn__cuda_differs(const void *x, const void *y, size_t bytes, int *flag, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
