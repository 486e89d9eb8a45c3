/* virtual_ranks.c: gradients of a step that is split among virtual ranks (ranks.h).
 *
 * A rank runs its virtual ranks one after the other. The micro-batches of a virtual rank are accumulated in the flat
 * gradient buffers of the optimizer as in any step; then the buffers are a leaf of a tree sum (parallel/tree.h) and are
 * overwritten by the next virtual rank. The sums are taken in buckets, during the last backward pass where the run
 * overlaps them (gradient_buckets.h). Random numbers start at a counter of the global micro-batch. Buffers that a
 * step changes (running statistics of a batchnorm) start anew for each virtual rank, and become the mean over all of
 * them. The losses are read at the end and summed per virtual rank, then on the host by the same tree. Where the device
 * can, the micro-batches of one virtual rank are captured as a graph (step_graph.h), launched once per virtual rank.
 *
 * With a fast reduction the buffers are not overwritten but accumulate all own virtual ranks, and the tree has one leaf
 * per rank. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "core/launch/launch.h"
#include "core/tensor/random.h"
#include "core/tensor/tensor.h"
#include "optim/optimizer.h"
#include "parallel/tree.h"
#include "train/loop/gradient_buckets.h"
#include "train/tasks/task.h"

enum { COUNTER_BITS = 32 }; /* counters of one micro-batch: 2^32, of four random numbers each */

static const char *const function = "trainer_run";

/* Result of a virtual rank, as it is exchanged. */
typedef struct result {
    int64_t correct;
    float loss;
    float unused; /* no padding: all bytes are exchanged */
} result;

/* Exchanged by each rank: a header, results [share], and for each segment of the optimizer whether it has a gradient.
 */
typedef struct header {
    int64_t is_stopping;
} header;

/* The buffers of the model that virtual ranks change. */
typedef struct statistics {
    int count;
    tarn_tensor **buffer, **start; /* [count]: borrowed, and their values before the step */
    uint32_t *version;
    tarn__tree tree;
    tarn_tensor *own; /* with a fast reduction: sum over the own virtual ranks; NULL: none yet */
    int64_t elements; /* of the changed ones together */
} statistics;

typedef struct work {
    const tarn__step_ctx *step;
    tarn_trainer *trainer;
    tarn_tensor *const *batch;
    int64_t leaves, first, share; /* virtual ranks: all, and the own ones */
    int64_t most;                 /* virtual ranks of a rank */
    tarn__step_ctx part;          /* of one micro-batch */
    tarn__gradient_buckets buckets;
    statistics statistics;
    tarn_tensor *losses, *correct; /* [share · micro-batches of a virtual rank], on the device; correct may be NULL */
    size_t message_bytes;
    char *messages; /* of all ranks */
} work;

/* ---- exchanged bytes --------------------------------------------------------------------------------------------- */

static char *message_of(const work *w, int rank)
{
    return w->messages + w->message_bytes * (size_t)rank;
}

static header *header_of(const work *w, int rank)
{
    return (header *)message_of(w, rank);
}

static result *results_of(const work *w, int rank)
{
    return (result *)(message_of(w, rank) + sizeof(header));
}

static char *flags_of(const work *w, int rank)
{
    return message_of(w, rank) + sizeof(header) + sizeof(result) * (size_t)w->most;
}

static const result *result_of(const work *w, int64_t virtual_rank)
{
    const tarn__ranks *r = &w->trainer->ranks;
    int owner = tarn__ranks_owner(r, virtual_rank);
    return &results_of(w, owner)[virtual_rank - tarn__ranks_first(r, owner)];
}

/* The tree of sums: its leaves, and the first own one. */
static int64_t tree_leaves(const work *w)
{
    return w->trainer->ranks.is_fast ? w->trainer->ranks.size : w->leaves;
}

static int64_t first_leaf(const work *w)
{
    return w->trainer->ranks.is_fast ? w->trainer->ranks.rank : w->first;
}

/* Gives all ranks the messages of all. */
static bool exchange(const work *w, void *own, void *all, size_t bytes)
{
    const tarn__ranks *r = &w->trainer->ranks;
    size_t list_bytes = sizeof(size_t) * (size_t)r->size, *sizes = tarn__alloc(list_bytes);
    for (int i = 0; sizes && i < r->size; i++)
        sizes[i] = bytes;
    bool good = sizes && (r->size == 1 || tarn_comm_all_gather(r->comm, own, all, sizes));
    tarn__release(sizes, list_bytes);
    return good;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* The weight of the whole step, [], for tasks whose micro-batches differ. Weights are counts of targets: sums of them
 * are exact in any order. */
static bool set_total_weight(work *w)
{
    const tarn__step_ctx *s = w->step;
    double own = 0, total = 0;
    if (!s->task->weight)
        return true;
    size_t bytes = sizeof(double) * (size_t)w->trainer->ranks.size;
    double *all = tarn__alloc(bytes);
    bool good = all != NULL;
    for (int i = 0; good && i < s->micro_batches; i++) {
        tarn_scope *scope = tarn_scope_open();
        own += tarn_item(s->task->weight(w->batch + i * s->fields));
        good = scope && !tarn_failed();
        tarn_scope_close(scope);
    }
    if (good)
        all[w->trainer->ranks.rank] = own;
    good = good && exchange(w, &own, all, sizeof(own));
    for (int i = 0; good && i < w->trainer->ranks.size; i++)
        total += all[i];
    tarn__release(all, bytes);
    w->part.total_weight = good ? tarn_from_f32(&(float){(float)total}, TARN_SCALAR, s->device) : NULL;
    return w->part.total_weight != NULL;
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static bool open_statistics(work *w)
{
    statistics *st = &w->statistics;
    int count = tarn_module_buffer_count(w->step->model);
    st->tree = tarn__tree_open(tree_leaves(w), first_leaf(w));
    if (count <= 0)
        return count == 0;
    st->buffer = tarn__alloc(sizeof(*st->buffer) * (size_t)count);
    st->start = tarn__alloc(sizeof(*st->start) * (size_t)count);
    st->version = tarn__alloc(sizeof(*st->version) * (size_t)count);
    st->count = count;
    bool good = st->buffer && st->start && st->version;
    for (int i = 0; good && i < count; i++) {
        st->buffer[i] = tarn_module_buffer(w->step->model, i);
        st->start[i] = tarn_clone(st->buffer[i]);
        st->version[i] = st->buffer[i]->storage->version;
        good = st->start[i] != NULL;
    }
    return good;
}

static void close_statistics(statistics *st)
{
    tarn__release(st->buffer, sizeof(*st->buffer) * (size_t)st->count);
    tarn__release(st->start, sizeof(*st->start) * (size_t)st->count);
    tarn__release(st->version, sizeof(*st->version) * (size_t)st->count);
}

/* True for f32 buffers that a step changes; counts of batches are the same for every virtual rank. */
static bool is_averaged(const statistics *st, int i)
{
    return st->buffer[i]->view.dtype == TARN_F32 && st->buffer[i]->storage->version != st->version[i];
}

/* Every virtual rank starts with the statistics before the step. */
static bool reset_statistics(const statistics *st)
{
    bool good = true;
    for (int i = 0; good && i < st->count; i++)
        good = st->buffer[i]->storage->version == st->version[i] || tarn_copy(st->buffer[i], st->start[i]);
    return good;
}

/* The changed buffers of a virtual rank become a leaf, or a part of the rank's. */
static bool add_leaf(statistics *st, tarn_tensor *leaf, bool is_fast, bool is_last)
{
    if (!is_fast)
        return tarn__tree_add(&st->tree, leaf);
    if (st->own && !tarn_add_inplace(st->own, leaf))
        return false;
    st->own = st->own ? st->own : leaf;
    return !is_last || tarn__tree_end(&st->tree, st->own);
}

static bool add_statistics(statistics *st, bool is_fast, bool is_last)
{
    tarn_tensor **list = st->count ? tarn__alloc(sizeof(*list) * (size_t)st->count) : NULL;
    int count = 0;
    bool good = true;
    for (int i = 0; list && i < st->count; i++)
        if (is_averaged(st, i))
            list[count++] = tarn_reshape(st->buffer[i], TARN_SHAPE(tarn_count(st->buffer[i])));
    tarn_tensor *leaf = count ? tarn_concat(list, count, 0) : NULL;
    if (count) {
        good = leaf && add_leaf(st, leaf, is_fast, is_last);
        st->elements = leaf ? tarn_count(leaf) : 0;
    }
    tarn__release(list, sizeof(*list) * (size_t)st->count);
    return good && (list || !st->count);
}

/* Mean over all virtual ranks. */
static bool sum_statistics(work *w)
{
    statistics *st = &w->statistics;
    int64_t at = 0;
    if (!st->elements)
        return true;
    tarn_tensor *sum = tarn_zeros(TARN_SHAPE(st->elements), TARN_F32, w->step->device);
    if (!sum || !tarn__tree_sum(function, &st->tree, w->trainer->ranks.comm, sum))
        return false;
    tarn_tensor *mean = tarn_mul(sum, tarn_scalar(1 / (double)w->leaves));
    bool good = mean != NULL;
    for (int i = 0; good && i < st->count; i++)
        if (is_averaged(st, i)) {
            int64_t end = at + tarn_count(st->buffer[i]);
            good = tarn_copy(st->buffer[i], tarn_reshape(tarn_slice(mean, 0, at, end), tarn_shape_of(st->buffer[i])));
            at = end;
        }
    return good;
}

/* ---- a virtual rank ---------------------------------------------------------------------------------------------- */

/* Micro-batches of a virtual rank in a step. */
static int64_t rounds_of(const work *w)
{
    return w->step->all_micro_batches / w->leaves;
}

/* Sets the counter of random numbers to that of micro-batch `number` of the step. */
static void set_random(const work *w, int64_t number)
{
    uint64_t before = (uint64_t)(w->trainer->state.step * w->step->all_micro_batches + number) + 1;
    *tarn__random_offset(w->step->device) = before << COUNTER_BITS;
}

/* Computes gradients of a micro-batch and writes loss and correct answers to their slots. */
static bool run_micro_batch(const tarn__step_ctx *part, tarn_tensor *const *fields, tarn_tensor *losses,
                            tarn_tensor *correct, int64_t slot)
{
    tarn__step_metrics now;
    tarn_scope *scope = tarn_scope_open();
    bool good = scope && part->task->gradients(part, fields, &now) &&
                tarn_copy(tarn_slice(losses, 0, slot, slot + 1), tarn_reshape(tarn_detach(now.loss), TARN_SHAPE(1))) &&
                (!now.correct || !correct ||
                 tarn_copy(tarn_slice(correct, 0, slot, slot + 1), tarn_reshape(now.correct, TARN_SHAPE(1))));
    tarn_scope_close(scope);
    return good && !tarn_failed();
}

/* Micro-batch i of an own virtual rank; the batch has those of all own virtual ranks in ascending order. */
static tarn_tensor *const *fields_of(const work *w, int64_t local, int64_t i)
{
    return w->batch + (i * w->share + local) * w->step->fields;
}

static void tell_finished(const work *w, int64_t micro_batches)
{
    if (w->step->on_micro_batch)
        w->step->on_micro_batch(w->step->trainer, (int)micro_batches);
}

static bool run_eagerly(const work *w, int64_t local, int64_t i)
{
    int64_t slot = local * rounds_of(w) + i;
    set_random(w, i * w->leaves + w->first + local);
    bool good = run_micro_batch(&w->part, fields_of(w, local, i), w->losses, w->correct, slot);
    tell_finished(w, slot + 1);
    return good;
}

/* The part that is captured: one virtual rank, from the static batch to the static metrics. Counters of random numbers
 * are relative to its first micro-batch. */
static bool run_part(void *ctx)
{
    const work *w = ctx;
    const tarn__step_graph *c = &w->trainer->step_graph;
    uint64_t *offset = tarn__random_offset(w->step->device), begin = *offset;
    tarn__step_ctx part = w->part;
    bool good = true;
    part.on_phase = NULL;
    part.total_weight = c->total_weight;
    for (int i = 0; good && i < c->micro_batches; i++) {
        *offset = begin + ((uint64_t)(i * w->leaves) << COUNTER_BITS);
        good = run_micro_batch(&part, c->batch + i * c->fields, c->metrics.loss, c->metrics.correct, i);
    }
    return good;
}

static bool run_captured(work *w, int64_t local)
{
    tarn_trainer *t = w->trainer;
    const tarn__step_graph *c = &t->step_graph;
    int64_t rounds = rounds_of(w), slot = local * rounds;
    bool good = true;
    for (int64_t i = 0; good && i < rounds; i++)
        good = tarn__step_graph_set_batch(t, (int)i, fields_of(w, local, i));
    set_random(w, w->first + local);
    good = good && tarn__step_graph_set_weight(t, w->part.total_weight) && tarn__step_graph_run_part(t, run_part, w) &&
           tarn_copy(tarn_slice(w->losses, 0, slot, slot + rounds), c->metrics.loss) &&
           (!w->correct || tarn_copy(tarn_slice(w->correct, 0, slot, slot + rounds), c->metrics.correct));
    tell_finished(w, slot + rounds);
    return good;
}

/* Notes which segments have a gradient of this virtual rank. */
static void set_flags(const work *w)
{
    const tarn__flat_buffers *flats = &w->step->optimizer->flats;
    char *flags = flags_of(w, w->trainer->ranks.rank);
    for (int i = 0; i < flats->segments; i++)
        flags[i] = flags[i] || flats->segment[i].parameter->grad_is_set;
}

static bool run_virtual_rank(work *w, int64_t local)
{
    int64_t rounds = rounds_of(w);
    bool good = reset_statistics(&w->statistics), is_last = local == w->share - 1, is_fast = w->trainer->ranks.is_fast;
    if (local == 0 || !is_fast)
        tarn_optimizer_zero_grad(w->step->optimizer);
    if (w->trainer->step_graph.is_part_due)
        good = good && run_captured(w, local);
    for (int64_t i = 0; good && i < rounds && !w->trainer->step_graph.is_part_due; i++) {
        if (is_last && i == rounds - 1)
            tarn__gradient_buckets_watch(&w->buckets);
        good = run_eagerly(w, local, i);
    }
    set_flags(w);
    if (good && is_last)
        good = tarn__gradient_buckets_finish(&w->buckets);
    else if (good && !is_fast)
        good = tarn__gradient_buckets_add(&w->buckets);
    return good && add_statistics(&w->statistics, is_fast, is_last);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

/* The thread of the sums lives as long as the trainer. */
static bool open_buckets(work *w)
{
    tarn__ranks *r = &w->trainer->ranks;
    if (r->overlaps && !r->queue && !(r->queue = tarn__sum_queue_new(function, r->comm)))
        return false;
    int64_t bytes = r->size > 1 ? (int64_t)(w->trainer->options.bucket_size * 1048576) : 0;
    tarn__gradient_buckets given = {.function = function,
                                    .flats = &w->step->optimizer->flats,
                                    .comm = r->comm,
                                    .queue = r->overlaps ? r->queue : NULL,
                                    .leaves = tree_leaves(w),
                                    .first_leaf = first_leaf(w),
                                    .is_fast = r->is_fast};
    return tarn__gradient_buckets_open(&w->buckets, &given, bytes);
}

static bool open_work(work *w, const tarn__step_ctx *step, tarn_tensor *const *batch)
{
    tarn_trainer *t = step->trainer;
    const tarn__flat_buffers *flats = &step->optimizer->flats;
    *w = (work){.step = step, .trainer = t, .batch = batch, .leaves = t->ranks.virtual_ranks, .part = *step};
    w->first = tarn__ranks_first(&t->ranks, t->ranks.rank);
    w->share = tarn__ranks_first(&t->ranks, t->ranks.rank + 1) - w->first;
    w->most = (w->leaves + t->ranks.size - 1) / t->ranks.size;
    w->part.micro_batches = 1;
    w->part.on_micro_batch = NULL;
    /* a multiple of 8: every rank's message is aligned */
    w->message_bytes = sizeof(header) + sizeof(result) * (size_t)w->most + ((size_t)flats->segments + 7) / 8 * 8;
    w->messages = tarn__alloc(w->message_bytes * (size_t)t->ranks.size);
    if (w->messages)
        memset(w->messages, 0, w->message_bytes * (size_t)t->ranks.size);
    w->losses = tarn_zeros(TARN_SHAPE(w->share * rounds_of(w)), TARN_F32, step->device);
    w->correct =
        step->task->has_accuracy ? tarn_zeros(TARN_SHAPE(w->share * rounds_of(w)), TARN_I64, step->device) : NULL;
    return w->messages && w->losses && (w->correct || !step->task->has_accuracy) && open_buckets(w) &&
           open_statistics(w) && set_total_weight(w);
}

static void close_work(work *w)
{
    close_statistics(&w->statistics);
    tarn__release(w->messages, w->message_bytes * (size_t)w->trainer->ranks.size);
}

/* A micro-batch of this rank alone: its batchnorms do not wait for the other ranks. */
static bool run_alone(work *w)
{
    const tarn_train_options *o = &w->trainer->options;
    return (!o->sync_batchnorm || tarn_batchnorm_sync(w->step->model, NULL)) && run_eagerly(w, 0, 0) &&
           reset_statistics(&w->statistics) && tarn__batchnorms_sync(o, w->step->model);
}

/* Before the first step rank 0 computes a micro-batch for its autotuning alone, and the others take the results. */
static bool tune(work *w)
{
    tarn__ranks *r = &w->trainer->ranks;
    const tarn__backend *backend = tarn__backend_of(w->step->device, function);
    if (r->is_tuned || r->size == 1 || !backend || !backend->tuning_export)
        return backend != NULL;
    r->is_tuned = true;
    tarn_optimizer_zero_grad(w->step->optimizer);
    bool good = r->rank != 0 || run_alone(w);
    return good && tarn__ranks_share_tuning(w->trainer);
}

/* A parameter has a gradient if one of its virtual ranks has. */
static void read_flags(const work *w)
{
    const tarn__flat_buffers *flats = &w->step->optimizer->flats;
    for (int i = 0; i < flats->segments; i++) {
        bool is_set = false;
        for (int r = 0; r < w->trainer->ranks.size; r++)
            is_set = is_set || flags_of(w, r)[i];
        flats->segment[i].parameter->grad_is_set = is_set;
    }
}

/* Results of virtual ranks `begin` to `end` - 1, added as the tree of the gradients is. */
static float sum_losses(const work *w, int64_t begin, int64_t end)
{
    int64_t half = 1;
    if (end - begin == 1)
        return result_of(w, begin)->loss;
    while (2 * half < end - begin)
        half *= 2;
    return sum_losses(w, begin, begin + half) + sum_losses(w, begin + half, end);
}

/* Adds the losses and correct answers of the micro-batches of each virtual rank. */
static bool read_results(const work *w)
{
    int64_t rounds = rounds_of(w), count = w->share * rounds;
    size_t loss_bytes = sizeof(float) * (size_t)count, correct_bytes = sizeof(int64_t) * (size_t)count;
    float *losses = tarn__alloc(loss_bytes);
    int64_t *correct = tarn__alloc(correct_bytes);
    bool good = losses && correct && tarn_read(w->losses, losses, loss_bytes) &&
                (!w->correct || tarn_read(w->correct, correct, correct_bytes));
    for (int64_t i = 0; good && i < count; i++) {
        result *own = &results_of(w, w->trainer->ranks.rank)[i / rounds];
        own->loss += losses[i];
        own->correct += w->correct ? correct[i] : 0;
    }
    tarn__release(losses, loss_bytes);
    tarn__release(correct, correct_bytes);
    return good;
}

/* All ranks stop once one of them is asked to. */
static bool exchange_results(work *w)
{
    tarn__ranks *r = &w->trainer->ranks;
    if (!read_results(w))
        return false;
    header_of(w, r->rank)->is_stopping = atomic_load(&w->trainer->stop);
    if (!exchange(w, message_of(w, r->rank), w->messages, w->message_bytes))
        return false;
    for (int i = 0; i < r->size; i++)
        r->is_stopped = r->is_stopped || header_of(w, i)->is_stopping;
    read_flags(w);
    return true;
}

static bool set_metrics(const work *w, tarn__step_metrics *metrics)
{
    int64_t correct = 0;
    float loss = sum_losses(w, 0, w->leaves);
    for (int64_t i = 0; i < w->leaves; i++)
        correct += result_of(w, i)->correct;
    metrics->loss = tarn_from_f32(&loss, TARN_SCALAR, w->step->device);
    if (w->step->task->has_accuracy)
        metrics->correct = tarn_from(&correct, TARN_SCALAR, TARN_I64, w->step->device);
    return !tarn_failed();
}

bool tarn__ranks_gradients(const tarn__step_ctx *step, tarn_tensor *const *batch, tarn__step_metrics *metrics)
{
    work w;
    *metrics = (tarn__step_metrics){0};
    if (step->trainer->ranks.comm)
        step->trainer->ranks.comm->step = step->trainer->state.step + 1;
    tarn__rng_state random = tarn__random_save();
    tarn_scope *scope = tarn_scope_open();
    bool good = open_work(&w, step, batch) && scope && tune(&w);
    for (int64_t i = 0; good && i < w.share; i++)
        good = run_virtual_rank(&w, i);
    tarn__random_restore(&random);
    good = good && exchange_results(&w) && sum_statistics(&w);
    tarn__gradient_buckets_close(&w.buckets); /* its sums use tensors of the scope */
    tarn_scope_close(scope);
    good = good && set_metrics(&w, metrics);
    close_work(&w);
    return good;
}
