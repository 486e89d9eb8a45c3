/* prefetch.c: see prefetch.h. */
#include "data/prefetch.h"

#include <signal.h>
#include <string.h>

#define MOST_AT_ONCE 32 /* samples that a thread takes at a time */

/* A few samples of one slot. */
typedef struct chunk {
    tarn__batch_slot *slot;
    int64_t begin, end;
} chunk;

/* ---- slots, under the lock --------------------------------------------------------------------------------------- */

static void write_indices(tarn__prefetcher *crew, tarn__batch_slot *slot)
{
    int64_t first = crew->next.batch * crew->batch_size;
    if (crew->shuffle && crew->order_epoch != crew->next.epoch) {
        tarn__shuffled(slot->keys.order, crew->order, crew->plan.dataset->count);
        crew->order_epoch = crew->next.epoch;
    }
    for (int64_t i = 0; i < slot->size; i++)
        slot->index[i] = crew->shuffle ? crew->order[first + i] : first + i;
}

/* Opens the next slot if it is free. */
static bool open_slot(tarn__prefetcher *crew)
{
    tarn__batch_slot *slot = &crew->slot[crew->opened % crew->slots];
    if (slot->state != TARN__SLOT_FREE)
        return false;
    int64_t left = crew->plan.dataset->count - crew->next.batch * crew->batch_size;
    slot->state = TARN__SLOT_FILLING;
    slot->size = left < crew->batch_size ? left : crew->batch_size;
    slot->given = slot->filled = 0;
    slot->failed = -1;
    slot->keys = tarn__epoch_keys_of(crew->seed, crew->next.epoch);
    write_indices(crew, slot);
    if (++crew->next.batch == crew->batches)
        crew->next = (tarn_loader_state){crew->next.epoch + 1, 0};
    crew->opened++;
    return true;
}

static bool take_chunk(tarn__prefetcher *crew, chunk *c)
{
    if (crew->is_paused)
        return false;
    tarn__batch_slot *slot = crew->opened > 0 ? &crew->slot[(crew->opened - 1) % crew->slots] : NULL;
    if (!slot || slot->state != TARN__SLOT_FILLING || slot->given == slot->size) {
        if (!open_slot(crew))
            return false;
        slot = &crew->slot[(crew->opened - 1) % crew->slots];
        pthread_cond_broadcast(&crew->work); /* there is something for the others too */
    }
    int64_t share = crew->batch_size / (4 * crew->members), most = share < 1              ? 1
                                                                   : share > MOST_AT_ONCE ? MOST_AT_ONCE
                                                                                          : share;
    *c = (chunk){slot, slot->given, slot->size - slot->given < most ? slot->size : slot->given + most};
    slot->given = c->end;
    return true;
}

/* Counts a chunk as done, and keeps the error that comes first in the batch: the same whichever thread met it first. */
static void finish_chunk(tarn__prefetcher *crew, const chunk *c, int64_t failed, const tarn__error_record *error)
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
    pthread_cond_broadcast(&crew->news);
}

/* ---- filling, without the lock ----------------------------------------------------------------------------------- */

static bool fill_sample(const tarn__prefetcher *crew, tarn__batch_slot *slot, int64_t i, char *scratch)
{
    void *place[TARN_MAX_FIELDS];
    for (int k = 0; k < crew->plan.dataset->field_count; k++)
        place[k] = (char *)slot->lane.memory + crew->offset[k] + (size_t)i * crew->plan.bytes[k];
    return tarn__transform_run(&crew->plan, slot->index[i], tarn__sample_random(&slot->keys, slot->index[i]), place,
                               scratch);
}

/* Where it failed, -1 for nowhere; the error is moved out of this thread's record. */
static int64_t fill_chunk(const tarn__prefetcher *crew, const chunk *c, char *scratch, tarn__error_record *error)
{
    int64_t i = c->begin;
    tarn_scope *scope = tarn_scope_open(); /* for tensors that a callback may make */
    tarn_profile_span_open("read samples");
    bool good = scope && tarn__pinned_wait("loader_next", &c->slot->lane);
    while (good && i < c->end) {
        good = fill_sample(crew, c->slot, i, scratch);
        i += good;
    }
    tarn_profile_span_close();
    tarn_scope_close(scope);
    tarn__error_save(error);
    return good ? -1 : i;
}

static void *run_member(void *argument)
{
    tarn__worker *member = argument;
    tarn__prefetcher *crew = member->crew;
    tarn__error_record error;
    chunk c;
    pthread_mutex_lock(&crew->lock);
    while (!crew->is_ending) {
        if (!take_chunk(crew, &c)) {
            pthread_cond_wait(&crew->work, &crew->lock);
            continue;
        }
        crew->busy++;
        pthread_mutex_unlock(&crew->lock);
        int64_t failed = fill_chunk(crew, &c, member->scratch, &error);
        pthread_mutex_lock(&crew->lock);
        finish_chunk(crew, &c, failed, &error);
        if (--crew->busy == 0)
            pthread_cond_broadcast(&crew->news);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

/* ---- the caller's side ------------------------------------------------------------------------------------------- */

static void fill_here(tarn__prefetcher *crew)
{
    tarn__error_record error;
    chunk c;
    tarn__batch_slot *wanted = &crew->slot[crew->taken % crew->slots];
    while (wanted->state != TARN__SLOT_FULL && take_chunk(crew, &c)) {
        int64_t failed = fill_chunk(crew, &c, crew->member[0].scratch, &error);
        finish_chunk(crew, &c, failed, &error);
    }
}

tarn__batch_slot *tarn__prefetch_wait(tarn__prefetcher *crew)
{
    tarn__batch_slot *slot = &crew->slot[crew->taken % crew->slots];
    if (crew->threads == 0) {
        fill_here(crew);
        return slot;
    }
    tarn__timing timing = {0};
    pthread_mutex_lock(&crew->lock);
    if (slot->state != TARN__SLOT_FULL && tarn__is_profiling())
        tarn__timing_begin(&timing, TARN_PROFILE_WAIT, "batch", "loader_next", tarn_device_cpu());
    while (slot->state != TARN__SLOT_FULL)
        pthread_cond_wait(&crew->news, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
    tarn__timing_end(&timing);
    return slot;
}

tarn__batch_slot *tarn__prefetch_peek(tarn__prefetcher *crew)
{
    pthread_mutex_lock(&crew->lock);
    tarn__batch_slot *slot = &crew->slot[crew->taken % crew->slots];
    bool is_full = slot->state == TARN__SLOT_FULL && slot->failed < 0;
    pthread_mutex_unlock(&crew->lock);
    return is_full ? slot : NULL;
}

void tarn__prefetch_take(tarn__prefetcher *crew)
{
    pthread_mutex_lock(&crew->lock);
    crew->slot[crew->taken++ % crew->slots].state = TARN__SLOT_FREE;
    pthread_cond_broadcast(&crew->work);
    pthread_mutex_unlock(&crew->lock);
}

void tarn__prefetch_restart(tarn__prefetcher *crew, tarn_loader_state place)
{
    pthread_mutex_lock(&crew->lock);
    crew->is_paused = true;
    while (crew->busy > 0)
        pthread_cond_wait(&crew->news, &crew->lock);
    for (int i = 0; i < crew->slots; i++)
        crew->slot[i].state = TARN__SLOT_FREE;
    crew->opened = crew->taken = 0;
    crew->next = place.batch == crew->batches ? (tarn_loader_state){place.epoch + 1, 0} : place;
    crew->is_paused = false;
    pthread_cond_broadcast(&crew->work);
    pthread_mutex_unlock(&crew->lock);
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

/* Where the fields lie in a slot. Raises when a batch would be too large for a tensor. */
static bool lay_out(tarn__prefetcher *crew)
{
    const tarn_dataset *dataset = crew->plan.dataset;
    for (int k = 0; k < dataset->field_count; k++) {
        tarn_shape shape = {dataset->field[k].shape.rank + 1, {crew->batch_size}};
        memcpy(shape.size + 1, dataset->field[k].shape.size, sizeof(int64_t) * (size_t)dataset->field[k].shape.rank);
        if (!tarn__check_shape("loader_new", shape, crew->plan.dtype[k]))
            return false;
        size_t bytes = (size_t)crew->batch_size * crew->plan.bytes[k];
        crew->offset[k] = crew->slot_bytes;
        crew->slot_bytes += (bytes + TARN__ALIGNMENT - 1) / TARN__ALIGNMENT * TARN__ALIGNMENT;
        if (crew->slot_bytes > (size_t)INT64_MAX / 128)
            return tarn__raise(TARN_ERROR_MEMORY, "loader_new: a batch of %lld samples has too many bytes",
                               (long long)crew->batch_size);
    }
    return true;
}

static bool make_slots(tarn__prefetcher *crew, const tarn_loader_options *o)
{
    int slots = o->prefetch ? o->prefetch : 2;
    crew->slot = tarn__alloc(sizeof(tarn__batch_slot) * (size_t)slots);
    if (!crew->slot)
        return false;
    crew->slots = slots;
    for (int i = 0; i < slots; i++) {
        crew->slot[i].index = tarn__alloc(sizeof(int64_t) * (size_t)crew->batch_size);
        if (!crew->slot[i].index || !tarn__pinned_new("loader_new", &crew->slot[i].lane, o->device, crew->slot_bytes))
            return false;
    }
    if (!crew->shuffle)
        return true;
    crew->order_epoch = -1;
    crew->order = tarn__alloc(sizeof(int64_t) * (size_t)crew->plan.dataset->count);
    return crew->order != NULL;
}

static bool make_members(tarn__prefetcher *crew, int threads)
{
    int members = threads ? threads : 1;
    crew->member = tarn__alloc(sizeof(tarn__worker) * (size_t)members);
    if (!crew->member)
        return false;
    crew->members = members;
    for (int i = 0; i < members; i++) {
        crew->member[i].crew = crew;
        crew->member[i].scratch = tarn__alloc(tarn__transform_scratch(&crew->plan));
        if (!crew->member[i].scratch)
            return false;
    }
    return true;
}

/* Signals are for the program's own threads. */
static bool start_threads(tarn__prefetcher *crew, int threads)
{
    sigset_t all, before;
    int problem = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (problem == 0 && crew->threads < threads) {
        problem = pthread_create(&crew->member[crew->threads].thread, NULL, run_member, &crew->member[crew->threads]);
        crew->threads += problem == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return problem == 0 || tarn__raise(TARN_ERROR_MEMORY, "loader_new: worker %d of %d could not be started: %s",
                                       crew->threads + 1, threads, strerror(problem));
}

bool tarn__prefetch_start(tarn__prefetcher *crew, const tarn_loader_options *options)
{
    int64_t count = crew->plan.dataset->count;
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->work, NULL);
    pthread_cond_init(&crew->news, NULL);
    crew->shuffle = options->shuffle;
    crew->seed = options->seed;
    crew->batch_size = options->batch_size < count ? options->batch_size : count;
    crew->batches = options->drop_last ? count / crew->batch_size : (count - 1) / crew->batch_size + 1;
    return lay_out(crew) && make_slots(crew, options) && make_members(crew, options->workers) &&
           start_threads(crew, options->workers);
}

void tarn__prefetch_end(tarn__prefetcher *crew)
{
    pthread_mutex_lock(&crew->lock);
    crew->is_ending = true;
    pthread_cond_broadcast(&crew->work);
    pthread_mutex_unlock(&crew->lock);
    for (int i = 0; i < crew->threads; i++)
        pthread_join(crew->member[i].thread, NULL);
    for (int i = 0; i < crew->members; i++)
        tarn__release(crew->member[i].scratch, tarn__transform_scratch(&crew->plan));
    for (int i = 0; i < crew->slots; i++) {
        tarn__pinned_free(&crew->slot[i].lane);
        tarn__release(crew->slot[i].index, sizeof(int64_t) * (size_t)crew->batch_size);
    }
    tarn__release(crew->order, sizeof(int64_t) * (size_t)crew->plan.dataset->count);
    tarn__release(crew->member, sizeof(tarn__worker) * (size_t)crew->members);
    tarn__release(crew->slot, sizeof(tarn__batch_slot) * (size_t)crew->slots);
    pthread_cond_destroy(&crew->news);
    pthread_cond_destroy(&crew->work);
    pthread_mutex_destroy(&crew->lock);
}
