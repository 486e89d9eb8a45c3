/* prefetch.h: threads that fill batches ahead of whoever takes them.
 *
 * Batches lie in a ring of slots. A slot is free, being filled, or full; slots are opened and taken in the order of
 * batches, so two running numbers say it all: `opened` and `taken`, with opened - taken slots in between. A thread
 * takes a few samples of the slot opened last and opens the next one when those are gone. Without threads the caller
 * fills each slot when it needs it. What batch a slot holds, and what is random in it, follows from its number alone.
 */
#ifndef TARN__CREW_H
#define TARN__CREW_H

#include <pthread.h>

#include "core/device/pinned.h"
#include "data/transform.h"

typedef enum tarn__slot_state { TARN__SLOT_FREE, TARN__SLOT_FILLING, TARN__SLOT_FULL } tarn__slot_state;

typedef struct tarn__slot {
    tarn__slot_state state;
    tarn__lane lane;       /* the batch: field after field, each [size, ...] */
    int64_t *index;        /* [size] samples */
    int64_t size;          /* samples in this batch */
    int64_t given, filled; /* of these, those that threads took, and those that are done */
    tarn__epoch_keys keys;
    int64_t failed;           /* the first sample, by place in the batch, that failed; -1: none */
    tarn__error_record error; /* and why */
} tarn__slot;

typedef struct tarn__member {
    struct tarn__crew *crew;
    pthread_t thread;
    char *scratch;
} tarn__member;

typedef struct tarn__crew {
    tarn__plan plan;
    int64_t batch_size, batches; /* of an epoch */
    bool shuffle;
    uint64_t seed;
    size_t offset[TARN_MAX_FIELDS]; /* of a field in a slot */
    size_t slot_bytes;

    pthread_mutex_t lock;
    pthread_cond_t work, news; /* there is something to do; something was done */
    tarn__slot *slot;
    int slots;
    int64_t opened, taken;
    tarn_loader_place next; /* the batch that is opened next */
    int64_t *order;         /* of the epoch of `next`; NULL: not shuffled */
    int64_t order_epoch;
    int busy; /* threads that fill */
    bool is_paused, is_ending;
    tarn__member *member; /* one for each thread, or one for the caller */
    int members, threads; /* threads: those that run */
} tarn__crew;

/* Starts with the first batch; the plan is made already, and stays the caller's to release. False with an error;
 * tarn__crew_end() works after that as well. */
bool tarn__crew_start(tarn__crew *crew, const tarn_loader_options *options);
void tarn__crew_end(tarn__crew *crew);

/* The slot of the batch that is taken next, full: fills it or waits for it. */
tarn__slot *tarn__crew_wait(tarn__crew *crew);

/* The slot of the batch after that, or NULL when it is not full yet, or holds an error. Does not wait. */
tarn__slot *tarn__crew_peek(tarn__crew *crew);

/* The slot's batch was sent: others may be filled in its place once the lane allows it. */
void tarn__crew_take(tarn__crew *crew);

/* Forgets all batches and goes on at a place. */
void tarn__crew_restart(tarn__crew *crew, tarn_loader_place place);

#endif
