/* sum_queue.h: sums over ranks on their own thread, concurrent with the work of the caller.
 *
 * Sums run one after another in the order in which they are put, which is the same on all ranks: the thread uses the
 * communicator alone from the first put to the wait. A rank without a queue may sum in the same order on its own
 * thread; the others see no difference. */
#ifndef TARN__SUM_QUEUE_H
#define TARN__SUM_QUEUE_H

#include "parallel/tree.h"

typedef struct tarn__sum_queue tarn__sum_queue;

/* A sum. The caller owns it, tree and tensor included, and leaves them alone until the wait. */
typedef struct tarn__sum_item {
    tarn__tree *tree; /* all own leaves */
    tarn_tensor *sum; /* may be the last leaf */
    struct tarn__sum_item *next;
} tarn__sum_item;

/* A queue whose thread sleeps until a sum is put. `function` names errors. Borrows the communicator. The caller owns
 * the queue. NULL with an error. */
tarn__sum_queue *tarn__sum_queue_new(const char *function, tarn_comm *comm);

/* Puts a sum at the end. Borrows the item until the wait. False with the error of an earlier sum. */
bool tarn__sum_queue_put(tarn__sum_queue *queue, tarn__sum_item *item);

/* Waits for all sums. False with the error of the first that failed; the others are dropped. While an error of the
 * caller is pending, sums are dropped and the exchange that runs is cancelled: the caller aborts the communicator. */
bool tarn__sum_queue_wait(tarn__sum_queue *queue);

/* Ends the thread. NULL is allowed; works while an error is pending. No sum is pending. */
void tarn__sum_queue_free(tarn__sum_queue *queue);

#endif
