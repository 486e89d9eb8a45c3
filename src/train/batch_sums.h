/* batch_sums.h: sums over the batches of an evaluation, which ranks share.
 *
 * Of N ranks each evaluates every N-th batch. The values of all batches are gathered and added in the order of batches,
 * in f64, so that sums are bitwise identical for every number of ranks. Values stay on the device until all batches are
 * evaluated: no batch waits for the host. */
#ifndef TARN__BATCH_SUMS_H
#define TARN__BATCH_SUMS_H

#include <tarn/data.h>

#include "train/ranks.h"

typedef struct tarn__batch_sums {
    const tarn__ranks *ranks; /* borrowed; NULL: one rank */
    int64_t batches, added;   /* of all ranks; of this one so far */
    int columns;              /* values of a batch */
    tarn_tensor *values;      /* f64 [own batches, columns], in the scope of tarn__batch_sums_open() */
} tarn__batch_sums;

/* Makes a new loader read this rank's batches. False with an error. */
bool tarn__batch_sums_open(tarn__batch_sums *sums, const tarn__ranks *ranks, tarn_loader *loader, int columns,
                           tarn_device device);

/* Adds the values of the next batch, each f64 []. */
bool tarn__batch_sums_add(tarn__batch_sums *sums, tarn_tensor *const *values);

/* Sums of all batches, [columns]. Called once, by all ranks. */
bool tarn__batch_sums_read(const tarn__batch_sums *sums, double *sum);

/* Samples of a batch in an evaluation during a run: those of a step or, where that is divided, of a micro-batch. */
int64_t tarn__evaluation_batch(const tarn_trainer *trainer);

/* Adds integers of all ranks, in place. `ranks` may be NULL. */
bool tarn__ranks_add(const tarn__ranks *ranks, int64_t *values, int64_t count);

#endif
