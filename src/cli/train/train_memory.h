/* train_memory.h: the memory that a run needs, as `tarn train` shows it. */
#ifndef TARN__TRAIN_MEMORY_H
#define TARN__TRAIN_MEMORY_H

#include <stdio.h>
#include <tarn/train.h>

/* The lines of a plan: what is needed and free, what it is for, and where that is too much, settings that would fit. */
void tarn__print_memory(FILE *to, const tarn_train_plan *plan);

/* Prints the pending error of a run that did not start for want of memory, with its options as flags, and clears it.
 * Returns the status to exit with. */
int tarn__print_memory_error(void);

/* Adds to the pending error of a run that ran out of memory what would help, prints both and clears it. Returns the
 * status to exit with. */
int tarn__out_of_memory(const tarn_train_plan *plan);

#endif
