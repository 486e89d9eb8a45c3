/* train_memory.h: the memory that a run needs, as `tarn train` prints it. Plans are borrowed. */
#ifndef TARN__TRAIN_MEMORY_H
#define TARN__TRAIN_MEMORY_H

#include <stdio.h>
#include <tarn/train.h>

/* Prints the lines of a plan: memory needed and free, its parts (weights, gradients, optimizer state, activations),
 * and, if it does not fit, settings that would. */
void tarn__print_memory(FILE *to, const tarn_train_plan *plan);

/* Prints the pending error of a run that was not started for lack of memory, with its options as flags, and clears it.
 * Returns the exit status. */
int tarn__print_memory_error(void);

/* Prints the pending error of a run that ran out of memory, then advice, and clears it. Returns the exit status. */
int tarn__out_of_memory(const tarn_train_plan *plan);

#endif
