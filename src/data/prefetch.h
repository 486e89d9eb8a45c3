/* prefetch.h: threads that fill batches ahead of whoever takes them.
 *
 * Batches lie in a ring of slots. A slot is free, being filled, or full; slots are opened and taken in the order of
 * batches, so two running numbers say it all: `opened` and `taken`, with opened - taken slots in between. A thread
 * takes a few samples of the slot opened last and opens the next one when those are gone. Without threads the caller
 * fills each slot when it needs it. What batch a slot holds, and what is random in it, follows from its number alone.
 */
#ifndef TARN__PREFETCH_H
#define TARN__PREFETCH_H

#include <pthread.h>

#include "core/device/pinned.h"
#include "data/transform.h"

typedef enum tarn__batch_slot_state { TARN__SLOT_FREE, TARN__SLOT_FILLING, TARN__SLOT_FULL } tarn__batch_slot_state;

typedef struct tarn__batch_slot {
    tarn__batch_slot_state state;
    tarn__pinned lane;     /* the batch: field after field, each [size, ...] */
    int64_t *index;        /* [size] samples */
    int64_t size;          /* samples in this batch */
    int64_t given, filled; /* of these, those that threads took, and those that are done */
    tarn__epoch_keys keys;
    int64_t failed;           /* the first sample, by place in the batch, that failed; -1: none */
    tarn__error_record error; /* and why */
} tarn__batch_slot;

typedef struct tarn__worker {
    struct tarn__prefetcher *crew;
    pthread_t thread;
    char *scratch;
} tarn__worker;

typedef struct tarn__prefetcher {
    tarn__transform plan;
    int64_t batch_size, batches; /* of an epoch */
    bool shuffle;
    uint64_t seed;
    size_t offset[TARN_MAX_FIELDS]; /* of a field in a slot */
    size_t slot_bytes;

    pthread_mutex_t lock;
    pthread_cond_t work, news; /* there is something to do; something was done */
    tarn__batch_slot *slot;
    int slots;
    int64_t opened, taken;
    tarn_loader_state next; /* the batch that is opened next */
    int64_t *order;         /* of the epoch of `next`; NULL: not shuffled */
    int64_t order_epoch;
    int busy; /* threads that fill */
    bool is_paused, is_ending;
    tarn__worker *member; /* one for each thread, or one for the caller */
    int members, threads; /* threads: those that run */
} tarn__prefetcher;

/* Starts with the first batch; the plan is made already, and stays the caller's to release. False with an error;
 * tarn__prefetch_end() works after that as well. */
bool tarn__prefetch_start(tarn__prefetcher *crew, const tarn_loader_options *options);
void tarn__prefetch_end(tarn__prefetcher *crew);

/* The slot of the batch that is taken next, full: fills it or waits for it. */
tarn__batch_slot *tarn__prefetch_wait(tarn__prefetcher *crew);

/* The slot of the batch after that, or NULL when it is not full yet, or holds an error. Does not wait. */
tarn__batch_slot *tarn__prefetch_peek(tarn__prefetcher *crew);

/* The slot's batch was sent: others may be filled in its place once the lane allows it. */
void tarn__prefetch_take(tarn__prefetcher *crew);

/* Forgets all batches and goes on at a place. */
void tarn__prefetch_restart(tarn__prefetcher *crew, tarn_loader_state place);

#endif
