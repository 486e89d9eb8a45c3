/* prefetch.c: the ring of batch slots and its workers (prefetch.h).
 *
 * Lock order: there is one lock. It is held to claim and finish chunks, never while samples are read, so that a slow
 * dataset does not serialize the workers. */
#include "data/prefetch.h"

#include <signal.h>
#include <string.h>

#define MAX_CHUNK 32 /* samples that a worker claims at once */

/* Samples begin to end - 1 of one slot's batch, claimed by one thread. */
typedef struct chunk {
    tarn__batch_slot *slot;
    int64_t begin, end;
} chunk;

/* ---- slots, under the lock --------------------------------------------------------------------------------------- */

int64_t tarn__prefetch_selected(const tarn__prefetcher *p, int64_t batch)
{
    int64_t phase = p->period ? batch % p->period : 0;
    if (p->period && phase < p->begin)
        batch += p->begin - phase;
    else if (p->period && phase >= p->end)
        batch += p->period - phase + p->begin;
    return batch < p->batches ? batch : p->batches;
}

/* The selected batch at a state or after it; every epoch has one. */
static tarn_loader_state selected_state(const tarn__prefetcher *p, tarn_loader_state state)
{
    int64_t batch = tarn__prefetch_selected(p, state.batch);
    if (batch < p->batches)
        return (tarn_loader_state){state.epoch, batch};
    return (tarn_loader_state){state.epoch + 1, tarn__prefetch_selected(p, 0)};
}

/* Writes the sample indices of the batch about to be opened. The epoch's order is computed once, when its first batch
 * is opened: slots are opened in order, so no earlier epoch can be needed again. */
static void write_indices(tarn__prefetcher *p, tarn__batch_slot *slot)
{
    int64_t first = p->next.batch * p->batch_size;
    if (p->shuffle && p->order_epoch != p->next.epoch) {
        tarn__shuffled(slot->keys.order, p->order, p->transform.dataset->count);
        p->order_epoch = p->next.epoch;
    }
    for (int64_t i = 0; i < slot->size; i++)
        slot->index[i] = p->shuffle ? p->order[first + i] : first + i;
}

/* Assigns the next batch to the next slot of the ring. False if that slot is still in use. */
static bool open_slot(tarn__prefetcher *p)
{
    tarn__batch_slot *slot = &p->slot[p->opened % p->slots];
    if (slot->state != TARN__SLOT_FREE)
        return false;
    int64_t left = p->transform.dataset->count - p->next.batch * p->batch_size;
    slot->state = TARN__SLOT_FILLING;
    slot->size = left < p->batch_size ? left : p->batch_size;
    slot->claimed = slot->filled = 0;
    slot->failed = -1;
    slot->keys = tarn__epoch_keys_of(p->seed, p->next.epoch);
    write_indices(p, slot);
    p->next = selected_state(p, (tarn_loader_state){p->next.epoch, p->next.batch + 1});
    p->opened++;
    return true;
}

/* Claims samples of the open batch, or opens the next one. False if there is nothing to do now. */
static bool take_chunk(tarn__prefetcher *p, chunk *c)
{
    if (p->is_paused)
        return false;
    tarn__batch_slot *slot = p->opened > 0 ? &p->slot[(p->opened - 1) % p->slots] : NULL;
    if (!slot || slot->state != TARN__SLOT_FILLING || slot->claimed == slot->size) {
        if (!open_slot(p))
            return false;
        slot = &p->slot[(p->opened - 1) % p->slots];
        pthread_cond_broadcast(&p->work); /* there is something for the others too */
    }
    /* About four chunks per worker and batch balance uneven samples; more would only contend for the lock. */
    int64_t share = p->batch_size / (4 * p->worker_count), size = share < 1 ? 1 : share > MAX_CHUNK ? MAX_CHUNK : share;
    *c = (chunk){slot, slot->claimed, slot->size - slot->claimed < size ? slot->size : slot->claimed + size};
    slot->claimed = c->end;
    return true;
}

/* Marks a chunk as filled. Of several errors the first in batch order is kept, so that the report does not depend on
 * which thread was faster. */
static void finish_chunk(tarn__prefetcher *p, const chunk *c, int64_t failed, const tarn__error_record *error)
{
    tarn__batch_slot *slot = c->slot;
    if (failed >= 0 && (slot->failed < 0 || failed < slot->failed)) {
        slot->failed = failed;
        slot->error = *error;
    }
    slot->filled += c->end - c->begin;
    if (slot->filled < slot->size)
        return;
    slot->state = TARN__SLOT_FULL;
    pthread_cond_broadcast(&p->done);
}

/* ---- filling, without the lock ----------------------------------------------------------------------------------- */

/* Writes sample i of the slot's batch, field k at offset[k] + i · bytes[k]. */
static bool fill_sample(const tarn__prefetcher *p, tarn__batch_slot *slot, int64_t i, char *scratch)
{
    void *out[TARN_MAX_FIELDS];
    for (int k = 0; k < p->transform.dataset->field_count; k++)
        out[k] = (char *)slot->buffer.memory + p->offset[k] + (size_t)i * p->transform.bytes[k];
    return tarn__transform_run(&p->transform, slot->index[i], tarn__sample_random(&slot->keys, slot->index[i]), out,
                               scratch);
}

/* Fills a chunk. The position of the sample that failed, -1: none. The error moves from this thread's record to *error,
 * since the caller of the loader is another thread. */
static int64_t fill_chunk(const tarn__prefetcher *p, const chunk *c, char *scratch, tarn__error_record *error)
{
    int64_t i = c->begin;
    tarn_scope *scope = tarn_scope_open(); /* for tensors that a callback creates */
    tarn_profile_span_open("read samples");
    bool good = scope && tarn__pinned_wait("loader_next", &c->slot->buffer);
    while (good && i < c->end) {
        good = fill_sample(p, c->slot, i, scratch);
        i += good;
    }
    tarn_profile_span_close();
    tarn_scope_close(scope);
    tarn__error_save(error);
    return good ? -1 : i;
}

/* The loop of a worker thread: claims a chunk under the lock, fills it without, and finishes it under the lock. */
static void *run_worker(void *argument)
{
    tarn__worker *worker = argument;
    tarn__prefetcher *p = worker->prefetcher;
    tarn__error_record error;
    chunk c;
    pthread_mutex_lock(&p->lock);
    while (!p->is_ending) {
        if (!take_chunk(p, &c)) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        p->busy++;
        pthread_mutex_unlock(&p->lock);
        int64_t failed = fill_chunk(p, &c, worker->scratch, &error);
        pthread_mutex_lock(&p->lock);
        finish_chunk(p, &c, failed, &error);
        if (--p->busy == 0)
            pthread_cond_broadcast(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- the caller's side ------------------------------------------------------------------------------------------- */

/* Without workers: fills the next slot in the caller's thread. */
static void fill_here(tarn__prefetcher *p)
{
    tarn__error_record error;
    chunk c;
    tarn__batch_slot *wanted = &p->slot[p->taken % p->slots];
    while (wanted->state != TARN__SLOT_FULL && take_chunk(p, &c)) {
        int64_t failed = fill_chunk(p, &c, p->worker[0].scratch, &error);
        finish_chunk(p, &c, failed, &error);
    }
}

tarn__batch_slot *tarn__prefetch_wait(tarn__prefetcher *p)
{
    tarn__batch_slot *slot = &p->slot[p->taken % p->slots];
    if (p->threads == 0) {
        fill_here(p);
        return slot;
    }
    tarn__timing timing = {0};
    pthread_mutex_lock(&p->lock);
    if (slot->state != TARN__SLOT_FULL && tarn__is_profiling())
        tarn__timing_begin(&timing, TARN_PROFILE_WAIT, "batch", "loader_next", tarn_device_cpu());
    while (slot->state != TARN__SLOT_FULL)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
    tarn__timing_end(&timing);
    return slot;
}

tarn__batch_slot *tarn__prefetch_peek(tarn__prefetcher *p)
{
    pthread_mutex_lock(&p->lock);
    tarn__batch_slot *slot = &p->slot[p->taken % p->slots];
    bool is_full = slot->state == TARN__SLOT_FULL && slot->failed < 0;
    pthread_mutex_unlock(&p->lock);
    return is_full ? slot : NULL;
}

void tarn__prefetch_take(tarn__prefetcher *p)
{
    pthread_mutex_lock(&p->lock);
    p->slot[p->taken++ % p->slots].state = TARN__SLOT_FREE;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
}

void tarn__prefetch_restart(tarn__prefetcher *p, tarn_loader_state out)
{
    pthread_mutex_lock(&p->lock);
    p->is_paused = true;
    while (p->busy > 0)
        pthread_cond_wait(&p->done, &p->lock);
    for (int i = 0; i < p->slots; i++)
        p->slot[i].state = TARN__SLOT_FREE;
    p->opened = p->taken = 0;
    p->next = selected_state(p, out);
    p->is_paused = false;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

/* Computes the offsets of the fields in a slot. Raises when a batch is too large for a tensor. */
static bool layout_slot(tarn__prefetcher *p)
{
    const tarn_dataset *dataset = p->transform.dataset;
    for (int k = 0; k < dataset->field_count; k++) {
        tarn_shape shape = {dataset->field[k].shape.rank + 1, {p->batch_size}};
        memcpy(shape.size + 1, dataset->field[k].shape.size, sizeof(int64_t) * (size_t)dataset->field[k].shape.rank);
        if (!tarn__check_shape("loader_new", shape, p->transform.dtype[k]))
            return false;
        size_t bytes = (size_t)p->batch_size * p->transform.bytes[k];
        p->offset[k] = p->slot_bytes;
        p->slot_bytes += (bytes + TARN__ALIGNMENT - 1) / TARN__ALIGNMENT * TARN__ALIGNMENT;
        if (p->slot_bytes > (size_t)INT64_MAX / 128)
            return tarn__raise(TARN_ERROR_MEMORY, "loader_new: a batch of %lld samples has too many bytes",
                               (long long)p->batch_size);
    }
    return true;
}

/* Allocates the ring: index arrays and pinned buffers. prefetch->slots counts those that tarn__prefetch_end() must
 * free. */
static bool create_slots(tarn__prefetcher *p, const tarn_loader_options *o)
{
    int slots = o->prefetch ? o->prefetch : 2;
    p->slot = tarn__alloc(sizeof(tarn__batch_slot) * (size_t)slots);
    if (!p->slot)
        return false;
    p->slots = slots;
    for (int i = 0; i < slots; i++) {
        p->slot[i].index = tarn__alloc(sizeof(int64_t) * (size_t)p->batch_size);
        if (!p->slot[i].index || !tarn__pinned_new("loader_new", &p->slot[i].buffer, o->device, p->slot_bytes))
            return false;
    }
    if (!p->shuffle)
        return true;
    p->order_epoch = -1;
    p->order = tarn__alloc(sizeof(int64_t) * (size_t)p->transform.dataset->count);
    return p->order != NULL;
}

/* Allocates the workers' scratch; at least one, for the caller's own thread. */
static bool create_workers(tarn__prefetcher *p, int threads)
{
    int worker_count = threads ? threads : 1;
    p->worker = tarn__alloc(sizeof(tarn__worker) * (size_t)worker_count);
    if (!p->worker)
        return false;
    p->worker_count = worker_count;
    for (int i = 0; i < worker_count; i++) {
        p->worker[i].prefetcher = p;
        p->worker[i].scratch = tarn__alloc(tarn__transform_scratch(&p->transform));
        if (!p->worker[i].scratch)
            return false;
    }
    return true;
}

/* Workers block all signals: handlers run in the program's own threads. */
static bool start_threads(tarn__prefetcher *p, int threads)
{
    sigset_t all, before;
    int problem = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (problem == 0 && p->threads < threads) {
        problem = pthread_create(&p->worker[p->threads].thread, NULL, run_worker, &p->worker[p->threads]);
        p->threads += problem == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return problem == 0 || tarn__raise(TARN_ERROR_MEMORY, "loader_new: worker %d of %d could not be started: %s",
                                       p->threads + 1, threads, strerror(problem));
}

bool tarn__prefetch_start(tarn__prefetcher *p, const tarn_loader_options *options)
{
    int64_t count = p->transform.dataset->count;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    p->shuffle = options->shuffle;
    p->seed = options->seed;
    p->batch_size = options->batch_size < count ? options->batch_size : count;
    p->batches = options->drop_last ? count / p->batch_size : (count - 1) / p->batch_size + 1;
    return layout_slot(p) && create_slots(p, options) && create_workers(p, options->workers) &&
           start_threads(p, options->workers);
}

void tarn__prefetch_end(tarn__prefetcher *p)
{
    pthread_mutex_lock(&p->lock);
    p->is_ending = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->threads; i++)
        pthread_join(p->worker[i].thread, NULL);
    for (int i = 0; i < p->worker_count; i++)
        tarn__release(p->worker[i].scratch, tarn__transform_scratch(&p->transform));
    for (int i = 0; i < p->slots; i++) {
        tarn__pinned_free(&p->slot[i].buffer);
        tarn__release(p->slot[i].index, sizeof(int64_t) * (size_t)p->batch_size);
    }
    tarn__release(p->order, sizeof(int64_t) * (size_t)p->transform.dataset->count);
    tarn__release(p->worker, sizeof(tarn__worker) * (size_t)p->worker_count);
    tarn__release(p->slot, sizeof(tarn__batch_slot) * (size_t)p->slots);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
}
