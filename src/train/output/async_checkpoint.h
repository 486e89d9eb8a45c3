/* async_checkpoint.h: checkpoints that are written while the run goes on. */
#ifndef TARN__BEHIND_H
#define TARN__BEHIND_H

#include "base/os/files.h"
#include "train/trainer.h"

#define TARN__CHECKPOINT_FILES 3

/* What makes a checkpoint count, in this order, once its files are there. */
typedef struct tarn__renaming {
    tarn__path from[TARN__CHECKPOINT_FILES], to[TARN__CHECKPOINT_FILES];
} tarn__renaming;

/* checkpoint.c: all of a checkpoint in memory, and the names that its files get. False with an error. */
bool tarn__checkpoint_keep(tarn_trainer *trainer, tarn__kept *kept, tarn__renaming *renaming);

/* tarn__checkpoint_save(), but returns as soon as all is in memory; a thread writes it. Waits for the one before. Where
 * a checkpoint would take too much of the host's memory, it is written at once. False with an error, which may be the
 * last one's. */
bool tarn__behind_save(tarn_trainer *trainer);

/* False, with its error, where writing the last one has failed; does not wait. */
bool tarn__behind_look(tarn__behind *behind);

/* Waits until the last one is written. False with its error. */
bool tarn__behind_wait(tarn__behind *behind);

/* Waits, forgets what went wrong, and frees. */
void tarn__behind_free(tarn__behind *behind);

#endif
