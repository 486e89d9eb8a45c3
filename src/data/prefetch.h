/* prefetch.h: prefetch workers: threads that fill batches ahead of the caller.
 *
 * Batches are in a ring of slots. A slot is free, being filled, or full. Slots are opened and taken in batch order, so
 * two running counts describe the ring: `opened` and `taken`, with opened - taken slots in use. A worker claims a chunk
 * of samples from the slot opened last and opens the next slot once all are claimed. Without workers the caller fills a
 * slot when it needs one.
 *
 * Deterministic: a slot's batch and its random states follow from the batch number alone, never from the threads.
 * `lock` guards everything below it in the struct; the batches themselves are written without it. */
#ifndef TARN__PREFETCH_H
#define TARN__PREFETCH_H

#include <pthread.h>

#include "core/device/pinned.h"
#include "data/transform.h"

typedef enum tarn__batch_slot_state { TARN__SLOT_FREE, TARN__SLOT_FILLING, TARN__SLOT_FULL } tarn__batch_slot_state;

typedef struct tarn__batch_slot {
    tarn__batch_slot_state state;
    tarn__pinned buffer;     /* the batch: field after field, each [size, ...] */
    int64_t *index;          /* [size] sample indices */
    int64_t size;            /* samples in this batch */
    int64_t claimed, filled; /* samples that threads have claimed, and have finished */
    tarn__epoch_keys keys;
    int64_t failed;           /* position in the batch of the first sample that failed; -1: none */
    tarn__error_record error; /* its error */
} tarn__batch_slot;

typedef struct tarn__worker {
    struct tarn__prefetcher *prefetcher;
    pthread_t thread;
    char *scratch; /* tarn__transform_scratch() bytes; owned */
} tarn__worker;

typedef struct tarn__prefetcher {
    tarn__transform transform;
    int64_t batch_size, batches; /* samples per batch, batches per epoch */
    /* of every `period` batches those from `begin` to `end` - 1 are read; period 0: all */
    int64_t period, begin, end;
    bool shuffle;
    uint64_t seed;
    size_t offset[TARN_MAX_FIELDS]; /* of field k in a slot, aligned to TARN__ALIGNMENT */
    size_t slot_bytes;

    pthread_mutex_t lock;
    pthread_cond_t work, done; /* samples can be claimed; a slot is full or no worker is busy */
    tarn__batch_slot *slot;
    int slots;
    int64_t opened, taken;
    tarn_loader_state next; /* the batch that is opened next */
    int64_t *order;         /* of the epoch of `next`; NULL: not shuffled */
    int64_t order_epoch;
    int busy; /* workers outside the lock */
    bool is_paused, is_ending;
    tarn__worker *worker;      /* one per thread; without threads one for the caller */
    int worker_count, threads; /* threads that were started */
} tarn__prefetcher;

/* Starts at the first batch. The caller has initialized prefetcher->transform and frees it after tarn__prefetch_end(),
 * which also works after a failed start. False with an error. */
bool tarn__prefetch_start(tarn__prefetcher *prefetcher, const tarn_loader_options *options);
void tarn__prefetch_end(tarn__prefetcher *prefetcher);

/* The full slot of the next batch to take: waits for it, or fills it without workers. Borrowed. Its `failed` must be
 * checked. */
tarn__batch_slot *tarn__prefetch_wait(tarn__prefetcher *prefetcher);

/* The same slot if it is full already and has no error, else NULL. Does not wait. */
tarn__batch_slot *tarn__prefetch_peek(tarn__prefetcher *prefetcher);

/* Frees the slot of the batch just taken. Workers wait for its upload to end before they fill it again. */
void tarn__prefetch_take(tarn__prefetcher *prefetcher);

/* Drops all batches and continues at a state: waits until no worker is busy. */
void tarn__prefetch_restart(tarn__prefetcher *prefetcher, tarn_loader_state state);

/* The first batch from `batch` on that is read; `batches`: none is left in the epoch. */
int64_t tarn__prefetch_selected(const tarn__prefetcher *prefetcher, int64_t batch);

/* Reads only batches `begin` to `end` - 1 of every `period`, for a rank among others, and ends an epoch after `batches`
 * batches (loader.c). They are numbered as without a selection, so that a state means the same on every rank. Call it
 * before the first batch. */
void tarn__loader_select(tarn_loader *loader, int64_t batches, int64_t period, int64_t begin, int64_t end);

/* Starts the upload of a loader's next batch if it is full by now (loader.c). For a caller that takes several batches
 * in a row: the next one is rarely full when it takes the last. */
void tarn__loader_send_ahead(tarn_loader *loader);

#endif
