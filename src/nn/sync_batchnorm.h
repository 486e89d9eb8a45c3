/* sync_batchnorm.h: batchnorm in training with the statistics of all ranks' batches. */
#ifndef TARN__SYNC_BATCHNORM_H
#define TARN__SYNC_BATCHNORM_H

#include <tarn/parallel.h>

/* All is borrowed. weight and bias, and the running statistics, may be NULL. */
typedef struct tarn__sync_batchnorm {
    tarn_comm *comm;
    tarn_tensor *weight, *bias, *running_mean, *running_var; /* [C] */
    double momentum, epsilon;                                /* 0: defaults of tarn_batchnorm() */
} tarn__sync_batchnorm;

/* batchnorm(x), x [N, C, …] of the own batch; all ranks call it with one shape. Updates the running statistics. */
tarn_tensor *tarn__sync_batchnorm_apply(const tarn__sync_batchnorm *batchnorm, tarn_tensor *x);

#endif
