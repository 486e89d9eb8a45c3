/* gradient_buckets.h: the sums of a step's gradients over virtual ranks and ranks, in buckets.
 *
 * A bucket is a range of a flat gradient buffer: whole adjacent parameters, closed at a number of bytes. Buckets are
 * summed in one order, which depends on the optimizer's layout alone and thus is the same on all ranks: those whose
 * parameters backward finishes first come first. Every element is summed by the same tree whatever the buckets are, so
 * they do not change a bit of the result.
 *
 * With a queue (parallel/sum_queue.h) the sums run during the backward pass of the last own virtual rank's last
 * micro-batch: a bucket is put once no gradient of it, nor of a bucket before it, is still to come. */
#ifndef TARN__GRADIENT_BUCKETS_H
#define TARN__GRADIENT_BUCKETS_H

#include "autograd/tape.h"
#include "optim/optimizer.h"
#include "parallel/sum_queue.h"

typedef struct tarn__gradient_bucket {
    int64_t begin, end;     /* elements of its group */
    int first, last;        /* segments [first, last) of the optimizer */
    int checked;            /* those before it are complete */
    int order;              /* the smallest index of its parameters in the module */
    tarn_tensor *buffer;    /* of its group, borrowed */
    tarn_tensor *gradients; /* its range of the buffer, of the scope of the step */
    tarn__tree tree;
    tarn__sum_item item;
} tarn__gradient_bucket;

typedef struct tarn__gradient_buckets {
    const char *function;
    tarn__flat_buffers *flats;
    tarn_comm *comm;
    int64_t leaves, first_leaf;
    bool is_fast;           /* one leaf per rank, whose gradients are accumulated in the buffers */
    tarn__sum_queue *queue; /* borrowed; NULL: sums run on this thread, after the backward pass */
    tarn__gradient_bucket *bucket;
    int count, capacity;
    int begun; /* buckets whose sum has begun, in order */
    bool is_watching;
    tarn__grad_watch watch;
} tarn__gradient_buckets;

/* Divides the buffers of an optimizer into buckets of at least `bytes`; 0: one per group. `given` has function, flats,
 * communicator, queue, and the tree: this rank has the leaves from `first_leaf` on. In the scope of the step, which
 * holds the sums. Closed in any case. False with an error. */
bool tarn__gradient_buckets_open(tarn__gradient_buckets *buckets, const tarn__gradient_buckets *given, int64_t bytes);

/* Adds the gradients of a virtual rank that is not the last of this rank. */
bool tarn__gradient_buckets_add(tarn__gradient_buckets *buckets);

/* Before the last micro-batch of the last virtual rank: with a queue, sums begin during its backward pass. */
void tarn__gradient_buckets_watch(tarn__gradient_buckets *buckets);

/* After it: sums all that is left. The gradients are the sums then. */
bool tarn__gradient_buckets_finish(tarn__gradient_buckets *buckets);

/* Works while an error is pending. */
void tarn__gradient_buckets_close(tarn__gradient_buckets *buckets);

#endif
