/* ranks.h: the ranks of a data-parallel run.
 *
 * A batch belongs to L virtual ranks, a number that is stored with the run: virtual rank v has the micro-batches v,
 * v + L, … of a step. N ranks, where N divides L, have L / N adjacent virtual ranks each. Everything in a step is a
 * function of the global micro-batch or of the virtual rank: samples, augmentation, random numbers of dropout, the
 * order in which gradients are added. So N changes the time of a run and not a bit of its weights; a run is resumed on
 * any N that divides L. With a fast reduction (--reduce fast) N is any number up to L: a rank accumulates its virtual
 * ranks like micro-batches, and the sums of the ranks are added as the transport does it best; the bits depend on N.
 *
 * All ranks have the whole model, and take the same steps. With ZeRO-1 the optimizer's state is divided among them, and
 * they write it together; else each has all of it. All evaluate (batch_sums.h). Rank 0 alone has the run folder: it
 * reports, generates samples and writes checkpoints, while the others wait. With one virtual rank a step is not split,
 * and nothing here is involved. */
#ifndef TARN__RANKS_H
#define TARN__RANKS_H

#include <tarn/parallel.h>
#include <tarn/train.h>

#include "parallel/sum_queue.h"
#include "train/loop/step.h"

/* A rank waits so many times longer than in a step while rank 0 writes a checkpoint or generates a sample, at the start
 * of a run, and at the end of an evaluation: a machine that is lost then still ends the run. */
enum { TARN__WRITING_TIME = 10 };

typedef struct tarn__ranks {
    tarn_comm *comm; /* borrowed; NULL: one rank */
    int rank, size;
    int64_t virtual_ranks;  /* at least 1 */
    bool is_fast;           /* N need not divide L; sums depend on N */
    bool is_tuned;          /* they use the same algorithms */
    bool overlaps;          /* gradients are summed during the backward pass, by: */
    tarn__sum_queue *queue; /* owned; NULL: not yet */
    bool is_stopped;        /* all ranks have agreed to stop after the last step; more than one rank only */
} tarn__ranks;

/* Takes the place of this process from options.comm and resolves the number of virtual ranks. Raises unless the number
 * of ranks divides it. */
bool tarn__ranks_open(const char *function, tarn_trainer *trainer);

/* Raises unless batch and micro-batch can be divided among the virtual ranks. */
bool tarn__ranks_check_batch(const char *function, const tarn_trainer *trainer);

/* Raises on all ranks unless they have the same data, options and instruction level; gives them rank 0's folder. */
bool tarn__ranks_compare(const char *function, tarn_trainer *trainer);

/* Decides whether sums of gradients overlap with backward. Raises where that is required and impossible. */
bool tarn__ranks_plan_overlap(const char *function, tarn_trainer *trainer);

/* Makes the trainer's loader read the micro-batches of this rank. */
void tarn__ranks_select(tarn_trainer *trainer);

/* The first virtual rank of a rank; of rank `size` it is L. */
static inline int64_t tarn__ranks_first(const tarn__ranks *ranks, int rank)
{
    return ranks->virtual_ranks * rank / ranks->size;
}

/* The rank that has a virtual rank. */
static inline int tarn__ranks_owner(const tarn__ranks *ranks, int64_t virtual_rank)
{
    return (int)(((virtual_rank + 1) * ranks->size - 1) / ranks->virtual_ranks);
}

/* Rank 0 has the run folder. */
static inline bool tarn__ranks_is_first(const tarn__ranks *ranks)
{
    return ranks->rank == 0;
}

/* Waits for all ranks, longer than in a step: rank 0 may be writing, another one reading. The second copies memory of
 * rank 0 instead. */
bool tarn__ranks_wait(const tarn_trainer *trainer);
bool tarn__ranks_broadcast(const tarn_trainer *trainer, void *memory, size_t bytes);

/* Lets a rank wait for others `factor` times as long; 0: without a limit. Returns the seconds before, for the second.
 */
double tarn__ranks_extend_timeout(const tarn__ranks *ranks, double factor);
void tarn__ranks_set_timeout(const tarn__ranks *ranks, double seconds);

/* Gives all ranks the pieces of all, bytes[i] of rank i, in the order of ranks; waits TARN__WRITING_TIME times as long
 * as in a step: ranks that share an evaluation are not equally fast. */
bool tarn__ranks_gather(const tarn__ranks *ranks, const void *own, void *all, const size_t *bytes);

/* Gives all ranks the autotuning results of rank 0: with other algorithms a rank would compute other bits. */
bool tarn__ranks_share_tuning(const tarn_trainer *trainer);

/* True when the run is to stop: on one rank when that was asked for, on several once all know it. */
bool tarn__ranks_is_stopped(const tarn_trainer *trainer);

/* Tells the other ranks of the pending error. Of a run it then names rank, host and step. */
void tarn__ranks_fail(const tarn_trainer *trainer, bool is_running);

/* Gradients of a step that is split among virtual ranks, on all ranks (loop/virtual_ranks.c). The batch has the
 * micro-batches of this rank in ascending order. */
bool tarn__ranks_gradients(const tarn__step_ctx *step, tarn_tensor *const *batch, tarn__step_metrics *metrics);

#endif
