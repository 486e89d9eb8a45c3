/* train.h: what `tarn train` prints of a run's plan and memory, and the text of `tarn demo`. Plans are borrowed. */
#ifndef TARN__CLI_TRAIN_H
#define TARN__CLI_TRAIN_H

#include <stddef.h>
#include <stdio.h>
#include <tarn/parallel.h>
#include <tarn/train.h>

#include "cli/cli.h"

/* ---- plan (train_plan.c) ----------------------------------------------------------------------------------------- */

/* Prints the plan in lines that fit the terminal; `is_auto`: the device was chosen automatically. */
void tarn__train_plan_print(const tarn_train_plan *plan, bool is_auto);

/* Prints the plan as one JSON object, with the event "plan". */
void tarn__train_plan_print_json(const tarn_train_plan *plan);

/* ---- ranks (launch.c) -------------------------------------------------------------------------------------------- */

/* Starts the ranks of --gpus or --ranks, and waits for them; `command` is for messages. Returns the exit status. */
int tarn__launch(const char *command, const tarn__options *options);

/* True in a rank that tarn__launch() has started. */
bool tarn__is_launched(void);

/* The communicator of such a rank. The caller owns it. NULL with an error. */
tarn_comm *tarn__launched_comm(void);

/* Checks --ranks and --gpus against each other and the processes that mpirun, srun or torchrun has launched.
 * TARN__DONE, or TARN__MISUSED with a message on standard error. */
int tarn__check_ranks(const char *command, const tarn__options *options);

/* True if this process starts the ranks, and if it is one of several: of tarn__launch(), mpirun, srun or torchrun. */
bool tarn__is_launcher(const tarn__options *options);
bool tarn__is_rank(void);

/* The communicator of such a rank. The caller owns it. NULL with an error, which the rank prints whose number is 0 by
 * the variables of its launcher. */
tarn_comm *tarn__rank_comm(void);
bool tarn__is_first_launched(void);

/* Gives a rank its GPU, where the device is open: the one of its number on this machine. TARN__DONE, or the result of
 * tarn__rank_misuse(). */
int tarn__place_rank(const char *command, tarn__options *options, tarn_comm *comm);

/* Leaves printing to rank 0, except for a wait for rank 0 unless `is_quiet`. */
void tarn__rank_mute(tarn_comm *comm, bool is_quiet);

/* Ends this rank for a mistake of the user: tells the other ranks, and prints it where this one reports. Returns
 * TARN__MISUSED. comm may be NULL: no ranks. */
int tarn__rank_misuse(const char *command, tarn_comm *comm, const char *format, ...) TARN_PRINTF(3, 4);

/* Tells the other ranks of the pending error. True where the caller is to print it: of all ranks one does. comm may be
 * NULL: no ranks. */
bool tarn__rank_reports(tarn_comm *comm);

/* ---- memory (train_memory.c) ------------------------------------------------------------------------------------- */

/* Prints the lines of a plan: memory needed and free, its parts (weights, gradients, optimizer state, activations),
 * and, if it does not fit, settings that would. */
void tarn__print_memory(FILE *to, const tarn_train_plan *plan);

/* Prints the pending error of a run that was not started for lack of memory, with its options as flags, and clears it.
 * Returns the exit status. */
int tarn__print_memory_error(void);

/* Prints the pending error of a run that ran out of memory, then advice, and clears it. Returns the exit status. */
int tarn__out_of_memory(const tarn_train_plan *plan);

/* ---- text of the demo -------------------------------------------------------------------------------------------- */

/* Sources of tarn, compiled into the program. The build generates the definitions; the array has no terminating 0. */
extern const char tarn__demo_text[];
extern const size_t tarn__demo_length;

/* `tarn demo --chat` (demo_chat.c). */
int tarn__demo_chat(const tarn__options *options);

/* `tarn predict` of a run on a table. */
int tarn__predict_table(const tarn__options *options, tarn_run *run);

/* Confusion matrix and worst mistakes of a classifier (mistakes.c). */
typedef struct tarn__mistakes tarn__mistakes;

/* Classifies the data for --confusion and --mistakes. The caller frees it. NULL after printing an error, with *status
 * set; NULL with DONE: neither was asked for. */
tarn__mistakes *tarn__mistakes_find(const tarn__options *options, tarn_run *run, int *status);
void tarn__mistakes_print(const tarn__mistakes *mistakes, const tarn__options *options, const tarn_run *run);
void tarn__mistakes_print_json(const tarn__mistakes *mistakes, const tarn__options *options, const tarn_run *run,
                               tarn__json *json);
void tarn__mistakes_free(tarn__mistakes *mistakes);

#endif
