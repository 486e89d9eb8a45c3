/* async_checkpoint.h: checkpoints that are written while the run goes on. */
#ifndef TARN__BEHIND_H
#define TARN__BEHIND_H

#include "base/os/files.h"
#include "train/trainer.h"

#define TARN__CHECKPOINT_FILES 3

/* What makes a checkpoint count, in this order, once its files are there. */
typedef struct tarn__checkpoint_renames {
    tarn__path from[TARN__CHECKPOINT_FILES], to[TARN__CHECKPOINT_FILES];
} tarn__checkpoint_renames;

/* checkpoint.c: all of a checkpoint in memory, and the names that its files get. False with an error. */
bool tarn__checkpoint_snapshot(tarn_trainer *trainer, tarn__memfiles *kept, tarn__checkpoint_renames *renaming);

/* tarn__checkpoint_save(), but returns as soon as all is in memory; a thread writes it. Waits for the one before. Where
 * a checkpoint would take too much of the host's memory, it is written at once. False with an error, which may be the
 * last one's. */
bool tarn__async_checkpoint_save(tarn_trainer *trainer);

/* False, with its error, where writing the last one has failed; does not wait. */
bool tarn__async_checkpoint_poll(tarn__async_checkpoint *behind);

/* Waits until the last one is written. False with its error. */
bool tarn__async_checkpoint_wait(tarn__async_checkpoint *behind);

/* Waits, forgets what went wrong, and frees. */
void tarn__async_checkpoint_free(tarn__async_checkpoint *behind);

#endif
