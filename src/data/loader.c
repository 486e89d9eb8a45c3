/* loader.c: batches as tensors on a device.
 *
 * A full batch is uploaded one call ahead: while the caller computes with batch n, batch n + 1 is in transfer, where
 * the device can overlap both. Tensors uploaded ahead belong to the loader until tarn_loader_next() moves them to the
 * open scope. A loader is used by one thread at a time; its workers live in prefetch.c. */
#include <stdatomic.h>
#include <string.h>

#include "core/launch/graph.h"
#include "data/prefetch.h"

struct tarn_loader {
    tarn__prefetcher prefetcher;
    tarn_device device;
    tarn_loader_state state; /* what the caller has been given */
    tarn__batch_slot *sent;  /* holds the batch below, on its way; NULL: none */
    tarn_tensor *tensor[TARN_MAX_FIELDS];
};

static bool check_loader(const char *function, const tarn_loader *loader)
{
    if (tarn_failed())
        return false;
    return loader || tarn__raise(TARN_ERROR_ARGUMENT, "%s: the loader is NULL", function);
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* Checks the options of batches; those of samples are checked by tarn__transform_init(). */
static bool check_options(const tarn_dataset *dataset, const tarn_loader_options *o)
{
    if (o->batch_size < 1)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "loader_new: .batch_size is %lld; it is required and must be at least 1",
                           (long long)o->batch_size);
    if (o->workers < 0 || o->workers > 64)
        return tarn__raise(TARN_ERROR_ARGUMENT, "loader_new: .workers is %d; it must be 0 to 64", o->workers);
    if (o->prefetch < 0 || o->prefetch > 64)
        return tarn__raise(TARN_ERROR_ARGUMENT, "loader_new: .prefetch is %d; it must be 0 (default 2) to 64",
                           o->prefetch);
    if (o->augment_ctx && !o->augment)
        return tarn__raise(TARN_ERROR_ARGUMENT, "loader_new: .augment_ctx is for .augment, which is NULL");
    if (dataset->count == 0)
        return tarn__raise(TARN_ERROR_ARGUMENT, "loader_new: the dataset has no samples");
    return !o->drop_last || o->batch_size <= dataset->count ||
           tarn__raise(
               TARN_ERROR_ARGUMENT,
               "loader_new: no batch is full: .batch_size is %lld, the dataset has %lld samples, and .drop_last is set",
               (long long)o->batch_size, (long long)dataset->count);
}

tarn_loader *tarn_loader_new_sized(tarn_dataset *dataset, const tarn_loader_options *options, size_t options_size)
{
    tarn_loader_options chosen = {0};
    if (options)
        memcpy(&chosen, options, options_size < sizeof(chosen) ? options_size : sizeof(chosen));
    if (!tarn__check_dataset("loader_new", dataset) || !check_options(dataset, &chosen))
        return NULL;
    tarn_loader *loader = tarn__alloc(sizeof(*loader));
    if (!loader)
        return NULL;
    loader->device = chosen.device;
    if (!tarn__transform_init(&loader->prefetcher.transform, dataset, &chosen)) {
        tarn__transform_free(&loader->prefetcher.transform);
        tarn__release(loader, sizeof(*loader));
        return NULL;
    }
    if (tarn__prefetch_start(&loader->prefetcher, &chosen))
        return loader;
    tarn_loader_free(loader);
    return NULL;
}

/* ---- uploads ----------------------------------------------------------------------------------------------------- */

/* Drops the batch uploaded ahead. Waits for its transfer first: the memory must not be reused while a copy writes it. A
 * pending error of the caller survives. */
static void drop_sent(tarn_loader *loader)
{
    tarn__error_record pending;
    if (!loader->sent)
        return;
    tarn__error_save(&pending);
    tarn__pinned_wait("loader_next", &loader->sent->buffer);
    loader->sent->buffer.under_way.generation = 0; /* it will not be joined */
    tarn_clear_error();
    tarn__error_restore(&pending);
    for (int k = 0; k < loader->prefetcher.transform.dataset->field_count; k++) {
        tarn_free(loader->tensor[k]);
        loader->tensor[k] = NULL;
    }
    loader->sent = NULL;
}

/* A tensor (size, ...) for field k of the slot's batch; owned by the loader, not by the open scope. */
static tarn_tensor *new_tensor(const tarn_loader *loader, const tarn__batch_slot *slot, int k)
{
    const tarn_field *field = &loader->prefetcher.transform.dataset->field[k];
    tarn_shape shape = {field->shape.rank + 1, {slot->size}};
    memcpy(shape.size + 1, field->shape.size, sizeof(int64_t) * (size_t)field->shape.rank);
    return tarn__scope_take(
        tarn__tensor_new("loader_next", shape, loader->prefetcher.transform.dtype[k], loader->device));
}

/* Creates the tensors of a full slot and starts their uploads. */
static bool send(tarn_loader *loader, tarn__batch_slot *slot)
{
    bool good = true;
    loader->sent = slot;
    for (int k = 0; good && k < loader->prefetcher.transform.dataset->field_count; k++) {
        loader->tensor[k] = new_tensor(loader, slot, k);
        good = loader->tensor[k] &&
               tarn__pinned_upload("loader_next", &slot->buffer, loader->prefetcher.offset[k], loader->tensor[k]);
    }
    if (!good)
        drop_sent(loader);
    return good;
}

/* Starts the upload of the next batch if it is full already and the transfer is asynchronous. A failure is dropped: it
 * comes up again when the batch is due. */
static void send_ahead(tarn_loader *loader)
{
    tarn__batch_slot *slot = loader->prefetcher.threads > 0 ? tarn__prefetch_peek(&loader->prefetcher) : NULL;
    if (slot && slot->buffer.handle && !send(loader, slot))
        tarn_clear_error();
}

/* A pending error is the caller's: send_ahead() would clear it. */
void tarn__loader_send_ahead(tarn_loader *loader)
{
    if (!loader->sent && !tarn_failed())
        send_ahead(loader);
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* Raises a worker's error in the caller's thread, with the sample's index before it. */
static bool fail_sample(const tarn__batch_slot *slot)
{
    return tarn__raise(slot->error.code, "loader_next: sample %lld: %s", (long long)slot->index[slot->failed],
                       slot->error.text + strlen("tarn: "));
}

/* Waits for the next batch, by the upload started ahead or by a new one, and orders the device's work after it. */
static bool fetch(tarn_loader *loader)
{
    if (!loader->sent) {
        tarn__batch_slot *slot = tarn__prefetch_wait(&loader->prefetcher);
        if (slot->failed >= 0 ? !fail_sample(slot) : !send(loader, slot))
            return false;
    }
    return tarn__pinned_join("loader_next", &loader->sent->buffer);
}

/* Drops all prefetched batches and continues at another state. Returns false, for callers that fail. */
static bool restart(tarn_loader *loader, tarn_loader_state state)
{
    drop_sent(loader);
    tarn__prefetch_restart(&loader->prefetcher, state);
    loader->state = (tarn_loader_state){state.epoch, tarn__prefetch_selected(&loader->prefetcher, state.batch)};
    return false;
}

/* Prefetch workers may have filled a batch already: it is dropped. */
void tarn__loader_select(tarn_loader *loader, int64_t batches, int64_t period, int64_t begin, int64_t end)
{
    pthread_mutex_lock(&loader->prefetcher.lock);
    loader->prefetcher.batches = batches;
    loader->prefetcher.period = period;
    loader->prefetcher.begin = begin;
    loader->prefetcher.end = end;
    pthread_mutex_unlock(&loader->prefetcher.lock);
    restart(loader, (tarn_loader_state){0});
}

bool tarn_loader_next(tarn_loader *loader, tarn_tensor **fields)
{
    if (!check_loader("loader_next", loader))
        return false;
    if (!fields)
        return tarn__raise(TARN_ERROR_ARGUMENT, "loader_next: `fields` is NULL");
    int count = loader->prefetcher.transform.dataset->field_count;
    memset(fields, 0, sizeof(*fields) * (size_t)count);
    if (!tarn__not_captured("loader_next", loader->device, "a batch from the host"))
        return false;
    if (loader->state.batch == loader->prefetcher.batches) {
        loader->state = (tarn_loader_state){loader->state.epoch + 1, tarn__prefetch_selected(&loader->prefetcher, 0)};
        return false;
    }
    if (!fetch(loader))
        return restart(loader, loader->state);
    for (int k = 0; k < count; k++) { /* ownership moves from the loader to the open scope */
        fields[k] = loader->tensor[k];
        loader->tensor[k] = NULL;
        atomic_fetch_sub_explicit(&fields[k]->kept, 1, memory_order_relaxed);
        tarn__scope_add(fields[k]);
    }
    loader->sent = NULL;
    loader->state.batch = tarn__prefetch_selected(&loader->prefetcher, loader->state.batch + 1);
    tarn__prefetch_take(&loader->prefetcher);
    send_ahead(loader);
    return true;
}

/* ---- loader state ------------------------------------------------------------------------------------------------ */

int64_t tarn_loader_batches(const tarn_loader *loader)
{
    return check_loader("loader_batches", loader) ? loader->prefetcher.batches : -1;
}

bool tarn_loader_tell(const tarn_loader *loader, tarn_loader_state *state)
{
    if (!check_loader("loader_tell", loader))
        return false;
    if (!state)
        return tarn__raise(TARN_ERROR_ARGUMENT, "loader_tell: the result pointer is NULL");
    *state = loader->state;
    return true;
}

bool tarn_loader_seek(tarn_loader *loader, tarn_loader_state state)
{
    if (!check_loader("loader_seek", loader))
        return false;
    if (state.epoch < 0 || state.epoch == INT64_MAX || state.batch < 0 || state.batch > loader->prefetcher.batches)
        return tarn__raise(TARN_ERROR_ARGUMENT,
                           "loader_seek: epoch %lld, batch %lld is out of range; an epoch has %lld batches",
                           (long long)state.epoch, (long long)state.batch, (long long)loader->prefetcher.batches);
    restart(loader, state);
    return true;
}

void tarn_loader_free(tarn_loader *loader)
{
    if (!loader)
        return;
    drop_sent(loader);
    tarn__prefetch_end(&loader->prefetcher);
    tarn__transform_free(&loader->prefetcher.transform);
    tarn__release(loader, sizeof(*loader));
}
