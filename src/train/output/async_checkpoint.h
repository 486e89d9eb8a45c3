/* async_checkpoint.h: checkpoints written by a background thread while training continues. At most one is being
 * written; the trainer owns it. All functions are called on the trainer's thread. */
#ifndef TARN__ASYNC_CHECKPOINT_H
#define TARN__ASYNC_CHECKPOINT_H

#include "base/os/files.h"
#include "train/trainer.h"

#define TARN__CHECKPOINT_FILES 4

/* The renames that commit a checkpoint, in this order, once its files are written. A file that it lacks has an empty
 * `from`. */
typedef struct tarn__checkpoint_renames {
    tarn__path from[TARN__CHECKPOINT_FILES], to[TARN__CHECKPOINT_FILES];
} tarn__checkpoint_renames;

/* Writes a checkpoint to memory, with the renames that commit it (checkpoint.c). False with an error. */
bool tarn__checkpoint_snapshot(tarn_trainer *trainer, tarn__memfiles *files, tarn__checkpoint_renames *renames);

/* tarn__checkpoint_save() that returns once the checkpoint is in memory; a thread writes it. Waits for the previous
 * one. A checkpoint too large for the host's memory is written synchronously. False with an error, which may be that
 * of the previous checkpoint. */
bool tarn__async_checkpoint_save(tarn_trainer *trainer);

/* False with an error if writing the last one has failed; does not wait. NULL is allowed, here and below. */
bool tarn__async_checkpoint_poll(tarn__async_checkpoint *checkpoint);

/* Waits until the last one is written. False with its error. */
bool tarn__async_checkpoint_wait(tarn__async_checkpoint *checkpoint);

/* Waits, ignores a failure, and frees. */
void tarn__async_checkpoint_free(tarn__async_checkpoint *checkpoint);

#endif
